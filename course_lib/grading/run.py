"""`grade`: from a folder of submissions to marks, feedback and the page of the room."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from tqdm import tqdm

from course_lib import exercises
from course_lib.checking import Exercise, Question, Report, Verdict, find_answer
from course_lib.checking.judge import grader_fault
from course_lib.grading.feedback import write_feedback
from course_lib.grading.files import OutputProblem
from course_lib.grading.gradebook import COULD_NOT_BE_READ, Gradebook, Graded, Row
from course_lib.grading.intake import Submission, find_submissions
from course_lib.grading.judging import ROOT, NoWorker, Worker, stage
from course_lib.grading.room import write_room
from course_lib.selfcheck import judge_prediction

ALL_GRADED, SOME_NOT_GRADED, COULD_NOT_RUN = 0, 1, 2  # exit codes


def main(paths: Sequence[Path], out: Path, jobs: int) -> int:
    """Grade what lies at `paths`, write everything to `out`, say what happened, return the exit code."""
    try:
        book = Gradebook(out)
        found = find_submissions(paths)
        if not found:
            print("There is no notebook in what you gave. Name notebooks, folders or zip files.")
            return COULD_NOT_RUN
        faults = grade(found, book, jobs)
        written = [*book.export(), book.path, write_room(book.rows(), out), out / "feedback"]
    except (OutputProblem, NoWorker) as problem:
        print(f"grade: {problem}", file=sys.stderr)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        print(
            "grade: interrupted. What was graded is kept; the same command goes on from there.",
            file=sys.stderr,
        )
        raise
    print("\n".join(["Written:", *(f"  {path}" for path in written)]))
    return _exit_code(found, faults)


def _exit_code(found: Sequence[Submission], faults: int) -> int:
    unread = [submission for submission in found if submission.problem]
    for submission in unread:
        print(f"Not graded: {submission.student}: {submission.problem}")
    if faults:
        print(f"In {faults} submissions our own check failed. Nobody loses a point; please report it.")
    return COULD_NOT_RUN if faults else SOME_NOT_GRADED if unread else ALL_GRADED


def grade(found: Sequence[Submission], book: Gradebook, jobs: int) -> int:
    """Grade each submission that the gradebook does not hold yet; how many of them met a fault of ours."""
    course = version()
    waiting = [submission for submission in found if not book.is_current(submission, course)]
    if len(waiting) < len(found):
        print(f"{len(found) - len(waiting)} of {len(found)} submissions were graded before.")
    faults, protections = 0, set()
    for graded in tqdm(_grade_all(waiting, course, jobs), total=len(waiting), unit="submission"):
        write_feedback(graded, book.folder)
        book.record(graded)  # last: a submission is done when all that belongs to it is written
        faults += any(row.verdict == Verdict.GRADER_FAULT.value for row in graded.rows)
        protections.add(graded.protections)
    for line in sorted(protections - {""}):
        print(f"The answers ran with: {line}.")
    return faults


def _grade_all(waiting: Sequence[Submission], course: str, jobs: int) -> Iterator[Graded]:
    """Graded submissions in the order in which they were found, `jobs` at a time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="course_lib_")))
        folder.chmod(0o711)  # the workers may be another user, and need not look around
        staged = stage(folder / "staged")
        idle: SimpleQueue[Worker] = SimpleQueue()
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=jobs))
        needed = min(jobs, sum(not submission.problem for submission in waiting))
        for worker in pool.map(lambda _: Worker(staged).start(), range(needed)):
            stack.callback(worker.stop)
            idle.put(worker)
        stack.callback(pool.shutdown, cancel_futures=True)
        yield from pool.map(lambda submission: _grade_one(submission, course, idle), waiting)


def _grade_one(submission: Submission, course: str, idle: SimpleQueue[Worker]) -> Graded:
    if submission.problem:
        return _unreadable(submission, course)
    worker = idle.get()
    try:
        return grade_submission(submission, worker, course)
    finally:
        idle.put(worker)


def _unreadable(submission: Submission, course: str) -> Graded:
    row = Row(
        submission.student,
        submission.notebook,
        "",
        "exercise",
        COULD_NOT_BE_READ,
        None,
        0,
        submission.problem,
    )
    return Graded(submission, (row,), (), "", course)


def grade_submission(submission: Submission, worker: Worker, course: str) -> Graded:
    """Judge every prediction and every exercise of one notebook, each exercise by itself."""
    rows, reports = [], []
    for question in exercises.questions_of(submission.notebook):
        rows.append(_prediction_row(submission, question))
    for exercise in exercises.exercises_of(submission.notebook):
        reports.append(_judge(worker, exercise, submission))
        rows.append(_row(submission, reports[-1]))
    return Graded(submission, tuple(rows), tuple(reports), ", ".join(worker.protections), course)


def _judge(worker: Worker, exercise: Exercise, submission: Submission) -> Report:
    """One answer. Where the worker itself is lost a new one tries again, once.

    Raises NoWorker where no new one can be started.
    """
    answer = find_answer(submission.cells, exercise.name)
    for _ in range(2):
        try:
            return worker.judge(exercise, answer)
        except NoWorker as lost:
            worker.restart()
            reason = str(lost)
    return grader_fault(exercise, reason)


def _prediction_row(submission: Submission, question: Question) -> Row:
    line = judge_prediction(question, submission.cells)
    scores = line.verdict, line.points, line.max_points, line.summary
    return Row(submission.student, submission.notebook, question.name, "prediction", *scores)


def _row(submission: Submission, report: Report) -> Row:
    return Row(
        submission.student,
        submission.notebook,
        report.exercise,
        "exercise",
        report.verdict.value,
        report.points,
        report.max_points,
        report.summary,
        report.misconception,
        report.diagnosis,
    )


@cache
def version() -> str:
    """The same for the same course: a digest of the sources that judge."""
    digest = hashlib.sha256()
    for path in sorted(_judging_sources()):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _judging_sources() -> Iterable[Path]:
    rooms = ("reference", "checking", "exercises", "grading")
    return (path for room in rooms for path in (ROOT / "course_lib" / room).rglob("*.py"))
