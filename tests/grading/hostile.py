"""What the tests of hostile answers share: judging a piece of source, and looking at what it left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from course_lib import exercises
from course_lib.checking import Exercise, Report, Verdict, find_answer
from course_lib.grading.judging import Worker

RIGHT = """
def count_elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count
"""
WRONG = "def count_elements(shape):\n    return sum(shape)\n"

LOOKS_AROUND = """
import os, tempfile
import torch

def count_elements(shape):
    places = (os.environ["HOME"], os.environ["TMPDIR"], tempfile.gettempdir(), os.getcwd(), "/dev/shm")
    left = [os.path.join(place, name) for place in places for name in os.listdir(place)]
    assert not left, left
    assert torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled()
    count = 1
    for size in shape:
        count *= size
    return count
"""


def exercise(name: str) -> Exercise:
    return exercises.exercise(name)


def judged(worker: Worker, source: str, name: str = "count_elements") -> Report:
    """The report on an answer with this source."""
    return worker.judge(exercise(name), find_answer([source], name))


def assert_no_marks(report: Report) -> None:
    """A zero, and it is the learner's: a fault of the grader would be no mark at all."""
    assert report.points == 0
    assert report.verdict in (Verdict.FAILED, Verdict.ERROR, Verdict.NOT_ATTEMPTED), report


def assert_full_marks(report: Report) -> None:
    assert (report.verdict, report.points) == (Verdict.PASSED, report.max_points), report


def assert_unharmed(worker: Worker) -> None:
    """The next answer finds nothing of the last one, and gets what it is due."""
    assert_full_marks(judged(worker, LOOKS_AROUND))
    assert_nothing_is_left(worker)


def assert_nothing_is_left(worker: Worker) -> None:
    """No process of an answer, and no file where the grader can see it."""
    beside = processes_of(worker)
    assert len(beside) <= 1, beside  # the process that forks, where it isn't the first one itself
    assert not any(worker._folder.iterdir())


def processes_of(worker: Worker) -> list[int]:
    """Everything below the worker's first process."""
    parents = dict(_parents())
    found, pending = [], [worker._process.pid]
    while pending:
        parent = pending.pop()
        children = [child for child, other in parents.items() if other == parent]
        found += children
        pending += children
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(place.name), int(fields[1])


@contextmanager
def short_of_time(worker: Worker, wall: float = 1.0, total: float = 5.0) -> Iterator[None]:
    """The grader waits no longer than this for an answer."""
    before = worker.limits
    worker.limits = replace(before, wall=wall, total=total)
    try:
        yield
    finally:
        worker.limits = before


@contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def needs(worker: Worker, *protections: str) -> None:
    """Skip where this machine can't give what the test is about; the report of the grading says so too."""
    missing = [one for one in protections if one not in worker.protections]
    if missing:
        pytest.skip(f"not to be had on this machine: {', '.join(missing)}")


def calling(body: str, before: str = "", after: str = "return sum(shape)") -> str:
    """A wrong answer that does something first. Every line of `body` runs in the function."""
    lines = [*body.strip().splitlines(), *after.splitlines()]
    return before + "\ndef count_elements(shape):\n" + "".join(f"    {line}\n" for line in lines)


RIGHTLY = "count = 1\nfor size in shape:\n    count *= size\nreturn count"


def rightly(body: str, before: str = "") -> str:
    """A right answer that does something first."""
    return calling(body, before, RIGHTLY)
