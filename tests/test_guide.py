"""The instructor's guide: its tables are those of the exercises, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from course_lib import exercises, guide
from course_lib.environment import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_tables_are_those_of_the_exercises():
    """`python3 -m course_lib build` brings them up to date."""
    written = guide.GUIDE.read_text(encoding="utf-8")
    assert written == guide.with_plan(written) and guide.plan_table() in written
    assert guide.MISTAKES.read_text(encoding="utf-8") == guide.mistakes_page()


def test_every_misconception_has_its_line():
    page = guide.mistakes_page()
    for exercise in exercises.all_exercises().values():
        section = page.partition(f"(`{exercise.name}`, ")[2].partition("\n### ")[0]
        assert all(f"| `{misconception.name}` |" in section for misconception in exercise.misconceptions)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.M)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("https://"):
            assert (page.parent / target).exists(), target
