"""The tables of the instructor's guide, made from the exercises: how long each takes, and what goes wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from course_lib import exercises
from course_lib.checking import Exercise
from course_lib.exercises import Notebook

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "instructors.md"
MISTAKES = ROOT / "docs" / "mistakes.md"
BEGIN, END = "<!-- plan: made by build -->\n", "<!-- end of plan -->\n"
HEAD = """\
# Common mistakes, and what to say about each

Made from the exercises by `python3 -m course_lib build`; a change here is overwritten.
Each line is a wrong answer that people write, by the name that the gradebook gives it, and the sentence that `check`
shows. It holds answers: keep it from learners who still solve these exercises.

Notebooks: {links}
"""


def write() -> list[Path]:
    """Bring both pages of the guide up to date; their paths."""
    MISTAKES.write_text(mistakes_page(), encoding="utf-8", newline="\n")
    GUIDE.write_text(with_plan(GUIDE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    return [GUIDE, MISTAKES]


def with_plan(guide: str) -> str:
    """The guide with the table of notebooks as the exercises have it now."""
    before, _, rest = guide.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + plan_table() + END + after


def plan_table() -> str:
    """What each notebook asks, and for how long, as a Markdown table. Minutes are those on the exercises' cards."""
    lines = [
        "| | notebook | predictions | core exercises | stretch exercises | points |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_plan_line(notebook) for notebook in exercises.NOTEBOOKS]
    return "\n".join(lines) + "\n"


def _plan_line(notebook: Notebook) -> str:
    found, asked = exercises.exercises_of(notebook.name), exercises.questions_of(notebook.name)
    counts = [[e.minutes for e in found if e.stretch is flag] for flag in (False, True)]
    core, stretch = (f"{len(minutes)}, {sum(minutes)} min" if minutes else "none" for minutes in counts)
    points = sum(item.points for item in (*found, *asked))
    return f"| {notebook.name[:2]} | {notebook.title} | {len(asked)} | {core} | {stretch} | {points:g} |"


def mistakes_page() -> str:
    """All misconceptions of the course as Markdown, by notebook and exercise."""
    links = " · ".join(f"[{notebook.name[:2]}](#{_anchor(notebook)})" for notebook in exercises.NOTEBOOKS)
    sections = [_section(notebook) for notebook in exercises.NOTEBOOKS]
    return "\n".join([HEAD.format(links=links), *sections])


def _section(notebook: Notebook) -> str:
    found = exercises.exercises_of(notebook.name)
    tables = [line for exercise in found for line in _table(exercise)]
    return "\n".join([f"## {_heading(notebook)}", "", *tables])


def _table(exercise: Exercise) -> Iterator[str]:
    kind = "stretch" if exercise.stretch else "core"
    yield f"### {exercise.number} {exercise.title} (`{exercise.name}`, {exercise.minutes} min, {kind})"
    yield ""
    yield "| mistake | what to say |"
    yield "|---|---|"
    for misconception in exercise.misconceptions:
        yield f"| `{misconception.name}` | {_cell(misconception.sentence)} |"
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _heading(notebook: Notebook) -> str:
    return f"{notebook.name[:2]} {notebook.title}"


def _anchor(notebook: Notebook) -> str:
    kept = "".join(c for c in _heading(notebook).lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")
