"""The page of the room: right counts, nothing unescaped, and it says what it can't know."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from course_lib.checking import Verdict
from course_lib.grading.feedback import write_feedback
from course_lib.grading.gradebook import COULD_NOT_BE_READ
from course_lib.grading.room import beliefs, tallies, write_room
from tests.grading.pages import Page, is_self_contained, is_well_formed
from tests.grading.rooms import HARD_NAMES, graded, room, row, submission


def page(rows, folder: Path) -> Page:
    written = Page(write_room(rows, folder))
    assert is_self_contained(written)
    assert is_well_formed(written)
    return written


def of(student: str, *marks, **details):
    return [row(student=student, **mark, **details) for mark in marks]


def passed(exercise="a", **details):
    return {"exercise": exercise, "verdict": "passed", "points": 1, **details}


def failed(exercise="a", misconception="", **details):
    said = f"You believe in {misconception}." if misconception else ""
    mark = {"exercise": exercise, "verdict": "failed", "points": 0, "misconception": misconception}
    return {**mark, "diagnosis": said, **details}


class TestCounting:
    def test_misconceptions_by_the_number_of_students(self):
        rows = [
            *of("ann", failed("a", "x"), failed("b", "x")),
            *of("ben", failed("a", "y"), failed("b", "x")),
            *of("zoe", failed("a", "x"), passed("b")),
            *of("zoe", failed("a", "x"), notebook="02_autograd"),
        ]
        assert [(b.notebook, b.exercise, b.name, len(b.students)) for b in beliefs(rows)] == [
            ("01_tensors", "a", "x", 2),
            ("01_tensors", "b", "x", 2),
            ("01_tensors", "a", "y", 1),
            ("02_autograd", "a", "x", 1),
        ]
        assert beliefs(rows)[0].sentence == "You believe in x."

    def test_the_hardest_first_and_no_mark_is_not_counted(self):
        fault = {"exercise": "a", "verdict": "grader fault", "points": None}
        rows = [
            *of("ann", passed("a"), failed("b", "x"), passed("c")),
            *of("ben", fault, failed("b"), passed("c")),
            *of("zoe", failed("a"), passed("b"), passed("c")),
        ]
        found = tallies(rows)
        assert [(t.item[1], round(t.share, 2), t.marked, t.unexplained) for t in found] == [
            ("b", 0.33, 3, 1),
            ("a", 0.5, 2, 1),
            ("c", 1.0, 3, 0),
        ]

    @pytest.mark.parametrize("students", [1, 40])
    def test_the_page_counts_what_the_rows_say(self, students, tmp_path):
        rows = room(students, seed=2)
        text = page(rows, tmp_path).text
        marks = Counter(mark.verdict for mark in rows if mark.exercise)
        cells = Counter(re.findall(r"[✓✗○!?](passed|failed|not attempted|error|grader fault)", text))
        assert cells == marks
        assert f"{len({mark.student for mark in rows})} student" in text
        assert text.count("⚠ could not be read: The file") == sum(
            m.verdict == COULD_NOT_BE_READ for m in rows
        )

    def test_each_misconception_with_its_count_and_the_sentence_to_say(self, tmp_path):
        rows = [*of("ann", failed("a", "x")), *of("ben", failed("a", "x")), *of("zoe", passed("a"))]
        rows += of("kim", passed("c"), notebook="02_autograd")
        text = page(rows, tmp_path).text
        assert "2 of 3 students · 01_tensors · a x" in text
        assert "You believe in x." in text

    def test_many_misconceptions_are_folded_away_and_all_there(self, tmp_path):
        rows = [*of("ann", *(failed(f"e{i}", f"m{i}") for i in range(20)))]
        written = page(rows, tmp_path)
        assert all(f"You believe in m{i}." in written.text for i in range(20))
        assert "8 other misconceptions" in written.text

    def test_the_points_of_a_student_are_those_of_the_notebook(self, tmp_path):
        rows = [
            *of("ann", passed("a", points=1.5), passed("b")),
            *of("ann", passed(), notebook="02_autograd"),
        ]
        assert "ann</bdi></th><td>2.5</td>" in page(rows, tmp_path).source


class TestWhatItCannotKnow:
    def test_who_handed_in_nothing(self, tmp_path):
        assert "whoever handed in nothing is not on it" in page(of("ann", passed()), tmp_path).text

    def test_who_handed_in_another_notebook_is_named(self, tmp_path):
        rows = [*of("ann", passed()), *of("ben", passed(), notebook="02_autograd")]
        text = page(rows, tmp_path).text
        assert text.count("1 student of this page without this notebook") == 2

    def test_what_has_no_mark_is_listed_with_its_reason(self, tmp_path):
        fault = {"exercise": "a", "verdict": "grader fault", "points": None, "reason": "Our check is broken."}
        broken = {"exercise": "", "verdict": COULD_NOT_BE_READ, "points": None, "reason": "It is empty."}
        rows = [*of("ann", fault), *of("ben", broken, notebook="")]
        text = page(rows, tmp_path).text
        assert "2 results without a mark" in text
        assert "ann, 01_tensors a: ? grader fault Our check is broken." in text
        assert "ben, a file: ⚠ could not be read It is empty." in text

    def test_a_mark_given_by_hand_waits_for_nobody(self, tmp_path):
        text = page(of("ann", {"exercise": "a", "verdict": "grader fault", "points": 1}), tmp_path).text
        assert "without a mark, for you" not in text

    def test_nobody(self, tmp_path):
        assert "0 students, 0 notebooks handed in" in page([], tmp_path).text


class TestEscaping:
    @pytest.mark.parametrize("name", HARD_NAMES.values(), ids=HARD_NAMES)
    def test_names(self, name, tmp_path):
        written = page([*of(name, passed(), failed("b", "x"))], tmp_path)
        assert name.replace("\r\n", "\n").replace("\r", "\n") in written.text

    def test_every_other_text(self, tmp_path):
        hostile = "<script>alert(1)</script>\"'&"
        mark = {"misconception": hostile, "diagnosis": hostile, "reason": hostile}
        rows = [row(hostile, "failed", 0, student=hostile, notebook=hostile, **mark)]
        rows += [row("", COULD_NOT_BE_READ, None, student="ben", notebook="", **mark)]
        assert page(rows, tmp_path).text.count(hostile) > 5


class TestTheGrid:
    def test_symbols_words_and_colors_of_every_verdict(self, tmp_path):
        rows = of("ann", *({"exercise": f"e{i}", "verdict": v.value} for i, v in enumerate(Verdict)))
        written = page(rows, tmp_path)
        cells = re.findall(r"<td class=(\w)>(.)<i>([^<]+)</i>", written.source)
        assert [word for _, _, word in cells] == [verdict.value for verdict in Verdict]
        assert len({look for look, _, _ in cells}) == len({symbol for _, symbol, _ in cells}) == len(Verdict)

    def test_every_column_and_line_has_a_header(self, tmp_path):
        written = page(room(5), tmp_path)
        assert written.values("scope").count("row") > 5
        regions = [key for key, value in written.attributes if (key, value) == ("tabindex", "0")]
        assert len(regions) == 3  # two rankings and the grid can be scrolled with the keyboard

    def test_a_name_leads_to_the_feedback_where_there_is_one(self, tmp_path):
        path = write_feedback(graded(submission("Zoë & co"), row()), tmp_path)
        links = page([*of("Zoë & co", passed()), *of("ann", passed())], tmp_path).values("href")
        (link,) = [one for one in links if not one.startswith("#")]
        assert (tmp_path / link).samefile(path)

    def test_anchors_resolve(self, tmp_path):
        written = page(room(5, ("01_tensors", "02_autograd")), tmp_path)
        anchors = [link[1:] for link in written.values("href") if link.startswith("#")]
        assert len(anchors) == 4
        assert set(anchors) <= set(written.values("id"))


def test_two_hundred_students_and_seven_notebooks_are_one_page_of_moderate_size(tmp_path):
    names = ["01_tensors", "02_autograd", "03_modules", "04_data", "05_training", "06_memory", "07_pitfalls"]
    rows = room(200, tuple(names))
    assert len(rows) > 35_000
    assert write_room(rows, tmp_path).stat().st_size < 4_000_000
