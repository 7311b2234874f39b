"""A law over all exercises: an answer gets the same verdict from `check` and from the grader."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from course_lib import exercises
from course_lib.checking import Exercise, Report, find_answer
from course_lib.grading.judging import task_of
from tests.answers import standing_alone
from tests.judged import judged

ALL = [exercise for notebook in exercises.NOTEBOOKS for exercise in exercises.exercises_of(notebook.name)]
each_exercise = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)


def told(report: Report) -> tuple:
    """What a learner is told, apart from line numbers in tracebacks and what was printed."""
    return report.verdict, report.points, report.misconception, report.summary, report.case, report.facets


def answers_to(exercise: Exercise) -> list[Callable]:
    return [
        exercise.reference,
        *exercise.alternatives[:1],
        *(misconception.answer for misconception in exercise.misconceptions),
    ]


@each_exercise
def test_the_grader_says_what_check_says(exercise, usual_worker):
    for function in answers_to(exercise):
        answer = find_answer(standing_alone(exercise, function), exercise.name)
        report, _ = judged(exercise, function)
        assert told(usual_worker.judge(exercise, answer)) == told(report), function.__name__


@each_exercise
def test_what_goes_into_the_worker_holds_no_answer(exercise):
    """No name of a module with answers in what is sent, and no misconception's name either."""
    task = task_of(exercise)
    for message in (task.setup, *(payload for _, payload in task.cases)):
        assert b"course_lib.reference" not in message.replace(b"course_lib.reference.sources", b"")
        found = [m.name for m in exercise.misconceptions if m.name.encode() in message]
        assert not found
