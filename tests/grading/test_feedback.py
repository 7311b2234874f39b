"""Feedback: what `check` would have said, escaped, and neither solutions nor cases that `check` doesn't show."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from course_lib import exercises
from course_lib.checking import Exercise, Facet, Question, Report, Verdict, judge_callable
from course_lib.checking.judge import call_text
from course_lib.grading.feedback import feedback_path, page_of, write_feedback
from course_lib.grading.files import OutputProblem
from course_lib.grading.gradebook import COULD_NOT_BE_READ, Graded, Row
from course_lib.grading.intake import Submission
from tests.grading.pages import Page, is_self_contained, is_well_formed
from tests.grading.rooms import HARD_NAMES, graded, row, submission

HOSTILE = (
    "</td></pre><script>alert(1)</script><img src='http://example.org/x' onerror=\"x\"> & `code` **bold**"
)
EXERCISES = exercises.all_exercises()


def page(one: Graded, folder: Path) -> Page:
    written = Page(write_feedback(one, folder))
    assert is_self_contained(written)
    assert is_well_formed(written)
    return written


def report(name: str = "flat_index", verdict: Verdict = Verdict.FAILED, **details) -> Report:
    points = 1 if verdict is Verdict.PASSED else 0
    return Report(name, "Find it", verdict, points, 1, **{"summary": "Value differs."} | details)


def judged(*reports: Report, found: Submission | None = None) -> Graded:
    rows = (
        Row("ann", "01_tensors", r.exercise, "exercise", r.verdict.value, r.points, r.max_points, r.summary)
        for r in reports
    )
    return replace(graded(found or submission(), *rows), reports=reports)


class TestWhatItSays:
    def test_the_head(self, tmp_path):
        found = submission(notes=("nbformat 3", "BOM"), member="hand/in.ipynb")
        rows = (row(points=1.5, max_points=2), row("b", "failed", 0), row("c", "grader fault", 0))
        text = page(graded(found, *rows, course="abc123"), tmp_path).text
        for said in ("01_tensors: feedback", "ann", "hand/in.ipynb", "1.5 of 3", "nbformat 3; BOM", "abc123"):
            assert said in text
        assert "1 without a mark, which is not a zero" in text
        assert "no network" in text

    def test_a_report_as_check_shows_it(self, tmp_path):
        facets = (Facet("shape", False, "(2, 3)", "(3, 2)"),)
        one = report(
            case="two rows",
            call="flat_index((1, 2))",
            facets=facets,
            diagnosis="You transposed.",
            printed="hi",
        )
        text = page(judged(one), tmp_path).text
        for said in ("Value differs.", "two rows", "flat_index((1, 2))", "(3, 2)", "You transposed.", "hi"):
            assert said in text
        assert "In the notebook, hint(flat_index) shows where to look." in text

    def test_the_way_on_is_for_those_who_need_it(self, tmp_path):
        one = judged(report(verdict=Verdict.PASSED), report("b", Verdict.GRADER_FAULT))
        assert "hint(" not in page(one, tmp_path).text
        assert "Go on." in page(judged(report(next_step="Go on.")), tmp_path).text

    def test_what_was_not_attempted_has_a_line_and_no_card(self, tmp_path):
        one = page(judged(report(verdict=Verdict.NOT_ATTEMPTED), report("b")), tmp_path)
        assert one.text.count("○ not attempted") == 1
        assert one.values("id") == ["b"]
        assert one.values("href") == ["#b"]

    def test_no_mark_is_not_a_zero(self, tmp_path):
        text = page(judged(report(verdict=Verdict.GRADER_FAULT)), tmp_path).text
        assert "no mark" in text
        assert "0 of 1</td>" not in text

    def test_a_file_that_could_not_be_read(self, tmp_path):
        found = submission(notebook="", problem="The file ends in the middle <of> a cell.")
        one = graded(found, row("", COULD_NOT_BE_READ, 0, max_points=0))
        text = page(one, tmp_path).text
        assert "The file ends in the middle <of> a cell." in text
        assert "hand it in again" in text
        assert "0 of 0" not in text

    def test_predictions_get_their_replies(self, tmp_path):
        question = exercises.question("view_write")
        cells = ('predict("view_write", "a")', 'predict("slice_offset", ...)')
        rows = (
            row("view_write", "failed", 0, kind="prediction"),
            row("slice_offset", "not attempted", 0, kind="prediction"),
        )
        one = page(graded(submission(cells=cells), *rows), tmp_path)
        assert question.replies["a"].replace("`", "")[:60] in one.text
        assert one.values("id") == ["view_write"]

    def test_the_style_sheet_of_the_cards_is_there_once(self, tmp_path):
        reports = [report(name) for name in ("a", "b", "c")]
        assert page(judged(*reports), tmp_path).elements.count("style") == 2  # the page's own, and the cards'

    def test_endless_texts_are_cut(self, tmp_path):
        endless = "x" * 1_000_000
        facets = (Facet("value", False, endless, endless),)
        one = report(summary=endless, call=endless, facets=facets, error=endless, printed=endless)
        written = page(judged(one), tmp_path)
        assert "more characters" in written.text
        assert len(written.source) < 200_000


class TestEscaping:
    @pytest.mark.parametrize("name", HARD_NAMES.values(), ids=HARD_NAMES)
    def test_names(self, name, tmp_path):
        path = write_feedback(graded(submission(name), row()), tmp_path)
        assert path.resolve().is_relative_to(tmp_path / "feedback")
        assert path.parent.parent == tmp_path / "feedback"
        written = Page(path)
        assert name.replace("\r\n", "\n").replace("\r", "\n") in written.text
        assert is_self_contained(written)

    def test_every_text_of_a_report(self, tmp_path):
        texts = dict.fromkeys(
            ("title", "summary", "case", "call", "diagnosis", "error", "printed", "next_step"), HOSTILE
        )
        one = replace(report(), facets=(Facet(HOSTILE, False, HOSTILE, HOSTILE),), **texts)
        found = submission(HOSTILE, member=HOSTILE, notes=(HOSTILE,))
        written = page(judged(one, found=found), tmp_path)
        assert written.text.count("<script>alert(1)</script>") >= 12

    def test_the_problem_and_what_the_grader_says_of_itself(self, tmp_path):
        found = submission(notebook="", problem=HOSTILE)
        one = Graded(found, (row("", COULD_NOT_BE_READ, 0),), (), HOSTILE, HOSTILE)
        assert page(one, tmp_path).text.count("<script>alert(1)</script>") == 3

    def test_control_characters_and_half_characters_are_shown(self, tmp_path):
        text = page(judged(report(error="\x1b[31mred\0 \ud83d")), tmp_path).text
        assert "␛[31mred␀ \\ud83d" in text


class TestWhereItStands:
    def test_two_students_never_share_a_page(self):
        pages = [str(page_of(name, "01_tensors")).lower() for name in [*HARD_NAMES.values(), "ann", "Ann"]]
        assert len(set(pages)) == len(pages)

    def test_two_files_whose_notebook_cannot_be_told_have_two_pages(self):
        files = [
            replace(submission(notebook=""), path=Path("inbox", name)) for name in ("a.ipynb", "b.ipynb")
        ]
        zipped = [replace(submission(notebook="", member=name), path=Path("z.zip")) for name in ("a", "../a")]
        assert len({feedback_path(one) for one in files + zipped}) == 4

    def test_it_is_replaced_in_one_step(self, tmp_path):
        first = write_feedback(judged(report()), tmp_path)
        second = write_feedback(judged(report(summary="Another.")), tmp_path)
        assert first == second
        assert [path.name for path in first.parent.iterdir()] == ["01_tensors.html"]
        assert "Another." in first.read_text(encoding="utf-8")

    def test_a_folder_that_cannot_be_written_is_said(self, tmp_path):
        (tmp_path / "feedback").touch()
        with pytest.raises(OutputProblem, match="can't be written"):
            write_feedback(judged(report()), tmp_path)


# ---- nothing is given away ---------------------------------------------------------------------------------------


def telling_lines(function) -> set[str]:
    """The lines of a reference's body that say something of their own."""
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    body = node.body[1:] if ast.get_docstring(node) else node.body
    lines = source.splitlines()
    return {
        line for s in body for line in map(str.strip, lines[s.lineno - 1 : s.end_lineno]) if len(line) > 9
    }


@cache
def first_failure(name: str) -> Report:
    """What is said about the first misconception, when it is the only one that is known."""
    alone = copy.copy(EXERCISES[name])
    alone.misconceptions = alone.misconceptions[:1]
    found = judge_callable(alone, alone.misconceptions[0].answer)
    assert not found.passed
    return found


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
class TestNothingIsGivenAway:
    def test_no_line_of_the_solution_but_the_learners_own(self, exercise: Exercise, tmp_path):
        failed = first_failure(exercise.name)
        own = inspect.getsource(exercise.misconceptions[0].answer)
        text = page(judged(failed), tmp_path).text
        assert failed.summary in text
        assert not {line for line in telling_lines(exercise.reference) if line in text and line not in own}

    def test_no_diagnosis_quotes_the_solution(self, exercise: Exercise):
        lines = telling_lines(exercise.reference)
        for known in exercise.misconceptions:
            quoted = [line for line in lines if line in known.sentence.replace("`", "")]
            assert all(line in inspect.getsource(known.answer) for line in quoted), known.name

    def test_no_case_but_the_smallest_that_fails(self, exercise: Exercise, tmp_path):
        failed = first_failure(exercise.name)
        text = page(judged(failed), tmp_path).text
        calls = {call_text(exercise, case) for case in exercise.fresh_cases()}
        assert failed.call in text
        assert not {call for call in calls if call in text and call not in failed.call}


@pytest.mark.parametrize("question", exercises.all_questions().values(), ids=exercises.all_questions())
def test_a_wrong_prediction_is_not_told_the_right_one(question: Question, tmp_path):
    reply = Page(write_feedback(predicted(question, question.answer), tmp_path)).text
    for letter in question.choices.keys() - {question.answer}:
        text = Page(write_feedback(predicted(question, letter), tmp_path)).text
        assert f"You predicted {letter}" in text
        assert f"You predicted {question.answer}" not in text
        assert reply_of(reply) not in text


def predicted(question: Question, letter: str) -> Graded:
    verdict = "passed" if letter == question.answer else "failed"
    cells = (f"predict({question.name!r}, {letter!r})",)
    return graded(submission(cells=cells), row(question.name, verdict, 0, kind="prediction"))


def reply_of(text: str) -> str:
    """What follows the choice on the page: the reply, up to the way on."""
    return text.split("You predicted ")[1].split("Next:")[0][2:].strip()
