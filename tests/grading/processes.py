"""Graders that are really killed, really run side by side and really run out of disk: in a process of their own.

`python -m tests.grading.processes FOLDER` plays every scene below and prints what came of each as JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from course_lib.grading import gradebook
from course_lib.grading.files import OutputProblem
from course_lib.grading.gradebook import Gradebook, Graded
from tests.grading.rooms import graded, row, submission

STUDENTS = 30


def of_student(number: int, items: int = 3, reason: str = "") -> Graded:
    student = f"student{number:02d}"
    rows = [row(f"exercise{i}", points=(number + i) % 3, reason=reason) for i in range(items)]
    return graded(submission(student), *(replace(item, student=student) for item in rows))


def in_a_fork(work: Callable[[], None]) -> int:
    """Start `work` in a child that ends when it is done, and return the child's id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def killed(child: int) -> bool:
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def die_before_statement(number: int) -> None:
    """From now on this process kills itself before the `number`th SQL statement, with pages already on disk."""
    connect = gradebook._connect

    def watched(path: Path):
        connection = connect(path)
        connection.execute("PRAGMA cache_size = 1")
        connection.set_trace_callback(count)
        return connection

    def count(_: str) -> None:
        nonlocal number
        number -= 1
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    gradebook._connect = watched


def killed_at_every_statement(folder: Path) -> dict:
    """The second version of a submission is recorded by graders that die at each statement in turn."""
    book = Gradebook(folder)
    book.record(of_student(0))
    before = book.rows()
    after = of_student(0, items=60, reason="x" * 1000)
    kept, journals, number = [], 0, 0

    def record() -> None:
        die_before_statement(number)
        book.record(after)

    while killed(in_a_fork(record)):
        journal = Path(f"{book.path}-journal")
        journals += journal.exists() and journal.stat().st_size > 0
        kept.append(book.rows() == before)
        number += 1
    return {"kept": kept, "journals": journals, "in the end": len(book.rows())}


def killed_and_resumed(folder: Path) -> dict:
    """Graders of one class are killed after a few submissions, again and again; then one may finish."""
    moments, whole, seen = random.Random(0), [], 0
    for _ in range(6):
        seen += grade_until_killed(folder / "killed", moments.randint(1, 5))
        counts = [sum(r.student == s for r in Gradebook(folder / "killed").rows()) for s in names()]
        whole.append(set(counts) <= {0, 3} and sum(counts) >= 3 * seen)
    grade(folder / "killed")
    grade(folder / "undisturbed")
    tables = [
        {path.name: path.read_text(encoding="utf-8") for path in Gradebook(folder / name).export()}
        for name in ("killed", "undisturbed")
    ]
    return {"whole": whole, "seen": seen, "equal": tables[0] == tables[1], "lines": len(tables[0])}


def names() -> list[str]:
    return [of_student(i).submission.student for i in range(STUDENTS)]


def grade(folder: Path, said: int | None = None) -> None:
    """What the command does: skip what is graded already, record the rest, say so after each."""
    book = Gradebook(folder)
    for number in range(STUDENTS):
        one = of_student(number)
        if not book.is_current(one.submission, one.course):
            book.record(one)
            if said is not None:
                os.write(said, b".")


def grade_until_killed(folder: Path, count: int) -> int:
    heard, said = os.pipe()
    child = in_a_fork(lambda: grade(folder, said))
    os.close(said)
    recorded = sum(len(os.read(heard, 1)) for _ in range(count))
    os.kill(child, signal.SIGKILL)
    assert killed(child)
    while more := os.read(heard, 100):
        recorded += len(more)
    os.close(heard)
    return recorded


def side_by_side(folder: Path) -> dict:
    """Three graders begin ten gradebooks at once; each has students of its own, and all have the last one."""
    gate, opened = os.pipe()

    def work(first: int) -> None:
        os.close(opened)
        os.read(gate, 1)  # until the gate is closed
        for place in range(10):
            book = Gradebook(folder / str(place))
            for number in [*range(first, first + 5), 99]:
                book.record(of_student(number))

    children = [in_a_fork(lambda first=first: work(first)) for first in (0, 10, 20)]
    os.close(gate)
    os.close(opened)
    for child in children:
        os.waitpid(child, 0)
    rows = [Gradebook(folder / str(place)).rows() for place in range(10)]
    return {"students": [len({r.student for r in found}) for found in rows], "rows": [*map(len, rows)]}


def full_disk(folder: Path) -> dict:
    """Files may not grow any more: what was recorded stays, and the complaint says why."""
    book = Gradebook(folder)
    book.record(of_student(0))
    before = book.rows()
    read, write = os.pipe()

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (book.path.stat().st_size, resource.RLIM_INFINITY))
        try:
            book.record(of_student(1, items=200, reason="x" * 1000))
        except OutputProblem as problem:
            os.write(write, str(problem).encode())

    os.waitpid(in_a_fork(work), 0)
    os.close(write)
    with os.fdopen(read) as said:
        return {"said": said.read(), "kept": book.rows() == before}


if __name__ == "__main__":
    scenes = (killed_at_every_statement, killed_and_resumed, side_by_side, full_disk)
    print(json.dumps({scene.__name__: scene(Path(sys.argv[1], scene.__name__)) for scene in scenes}))
