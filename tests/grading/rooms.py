"""Rooms of made-up students, whose marks look as the grader's do."""

from __future__ import annotations

import random
from pathlib import Path

from course_lib import exercises
from course_lib.checking import Exercise
from course_lib.grading.gradebook import Graded, Row
from course_lib.grading.intake import Submission

HARD_NAMES = {
    "comma": "Doe, Jr",
    "quotes": 'Ann "the wall" O\'Neil',
    "newline": "two\nlines",
    "windows newline": "two\r\nlines",
    "formula": '=HYPERLINK("http://example.org","click")',
    "plus": "+1234",
    "minus": "-1-1",
    "at": "@SUM(1)",
    "tab": "\t=1",
    "return": "\r=1",
    "full-width": "＝1+1",
    "apostrophe": "'Abd",
    "apostrophe and formula": "'=1+1",
    "emoji": "👩‍🔬 Zoë",
    "right to left": "דנה כהן",
    "turned around": "\u202egnp.exe",
    "long": "x" * 5000,
    "markup": "<img src=x onerror=alert(1)>&amp;",
    "handler": "\" onmouseover=alert(1) x=\"' onclick='alert(1)",
    "path": "../../etc/passwd",
    "spaces": "  padded  ",
    "nothing": "",
    "semicolon": "a;b",
}


def submission(student: str = "ann", notebook: str = "01_tensors", **details) -> Submission:
    return Submission(
        student, notebook, Path("inbox", "answers.ipynb"), **{"digest": "0123456789abcdef"} | details
    )


def graded(found: Submission, *rows: Row, course: str = "c1") -> Graded:
    return Graded(found, rows, (), "no network", course)


def row(exercise: str = "flat_index", verdict: str = "passed", points: float = 1, **details) -> Row:
    given = {
        "student": "ann",
        "notebook": "01_tensors",
        "kind": "exercise",
        "max_points": 1,
        "reason": verdict,
    }
    return Row(exercise=exercise, verdict=verdict, points=points, **given | details)


def room(students: int, notebooks: tuple[str, ...] = ("01_tensors",), seed: int = 0) -> list[Row]:
    """`students` students who do some exercises, share misconceptions and leave others open."""
    choice = random.Random(seed)
    names = [*HARD_NAMES.values(), *(f"student{i:03d}" for i in range(students))][:students]
    return [
        mark
        for student in sorted(names)
        for notebook in notebooks
        if choice.random() < 0.95
        for mark in _marks(student, notebook, choice)
    ]


def _marks(student: str, notebook: str, choice: random.Random) -> list[Row]:
    if choice.random() < 0.03:
        reason = "The file ends in the middle of a cell."
        return [Row(student, notebook, "", "exercise", "could not be read", None, 0, reason)]
    asked = [
        Row(student, notebook, question.name, "prediction", *_answered(choice))
        for question in exercises.questions_of(notebook)
    ]
    return asked + [
        Row(student, notebook, item.name, "exercise", *_solved(item, choice))
        for item in exercises.exercises_of(notebook)
    ]


def _answered(choice: random.Random) -> tuple:
    return choice.choice([("passed", 1, 1, "Right."), ("failed", 0, 1, "'a' is not what happens.")])


def _solved(item: Exercise, choice: random.Random) -> tuple:
    luck = choice.random()
    if luck < 0.6:
        return "passed", item.points, item.points, "Right in all 12 cases."
    if luck < 0.8:
        known = choice.choice(item.misconceptions[:3])
        return "failed", 0, item.points, "Value differs in 3 of 12 cases.", known.name, known.sentence
    if luck < 0.85:
        return "failed", 0, item.points, "Value differs in 3 of 12 cases."
    if luck < 0.9:
        return "error", 0, item.points, "Your code raised IndexError."
    if luck < 0.902:
        return "grader fault", None, item.points, "Our check is broken, not your answer."
    return "not attempted", 0, item.points, f"{item.name} is waiting for you."
