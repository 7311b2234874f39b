"""The gradebook: one SQLite file that several graders may write at once, and the tables that are made from it.

What is recorded is one submission at a time, all of it or nothing, so that a grader that is killed at any moment
leaves whole submissions behind, and grading the same folder again fills in the rest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from course_lib.checking import Report, Verdict, find_answer
from course_lib.grading import tables
from course_lib.grading.files import OutputProblem, clip, plain, reason_of, replace_file
from course_lib.grading.intake import Submission
from course_lib.notebook import find_prediction

COULD_NOT_BE_READ = "could not be read"  # the verdict on a submission that is no notebook of the course
UNSCORED = (Verdict.GRADER_FAULT.value, COULD_NOT_BE_READ)  # no mark at all, which is not a zero
BUSY_SECONDS = 60.0  # how long to wait for another grader that is writing; a write takes milliseconds
LONGEST = 2_000  # characters of a reason: an exception's name can be of any length
SCHEMA_VERSION = 1

SCHEMA = (
    # `file` tells apart the files of one student whose notebook can't be told; empty for all others.
    """CREATE TABLE submission (
        id INTEGER PRIMARY KEY, student TEXT NOT NULL, notebook TEXT NOT NULL, file TEXT NOT NULL,
        path TEXT NOT NULL, member TEXT NOT NULL, digest TEXT NOT NULL, course TEXT NOT NULL,
        problem TEXT NOT NULL, notes TEXT NOT NULL, protections TEXT NOT NULL,
        UNIQUE (student, notebook, file))""",
    """CREATE TABLE item (
        submission INTEGER NOT NULL REFERENCES submission ON DELETE CASCADE, position INTEGER NOT NULL,
        exercise TEXT NOT NULL, kind TEXT NOT NULL, verdict TEXT NOT NULL, points REAL, max_points REAL NOT NULL,
        reason TEXT NOT NULL, misconception TEXT NOT NULL, diagnosis TEXT NOT NULL,
        PRIMARY KEY (submission, position))""",
    """CREATE TABLE attempt (
        student TEXT NOT NULL, exercise TEXT NOT NULL, digest TEXT NOT NULL,
        PRIMARY KEY (student, exercise, digest))""",
    """CREATE TABLE overrides (
        student TEXT NOT NULL, notebook TEXT NOT NULL, exercise TEXT NOT NULL, points REAL NOT NULL,
        note TEXT NOT NULL DEFAULT '', PRIMARY KEY (student, notebook, exercise))""",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

ROWS = """
SELECT submission.student, submission.notebook, item.exercise, kind, verdict, item.points, max_points, reason,
    misconception, diagnosis,
    (SELECT count(*) FROM attempt
        WHERE attempt.student = submission.student AND attempt.exercise = item.exercise),
    overrides.points, overrides.note
FROM submission JOIN item ON item.submission = submission.id
LEFT JOIN overrides ON overrides.student = submission.student
    AND overrides.notebook = submission.notebook AND overrides.exercise = item.exercise
ORDER BY submission.student, submission.notebook, file, position"""

# Marks given by hand for what no submission holds: an oral answer, or a file that turned out unreadable later.
BY_HAND_ALONE = """
SELECT student, notebook, exercise, points, note,
    (SELECT max(max_points) FROM item WHERE item.exercise = overrides.exercise)
FROM overrides WHERE NOT EXISTS (
    SELECT 1 FROM submission JOIN item ON item.submission = submission.id
    WHERE submission.student = overrides.student AND submission.notebook = overrides.notebook
        AND item.exercise = overrides.exercise)
ORDER BY student, notebook, exercise"""


@dataclass(frozen=True)
class Row:
    """The mark of one student for one exercise or prediction: a line of the long form.

    `points` is None where there is no mark: the grader failed, or the file could not be read.
    """

    student: str
    notebook: str
    exercise: str
    kind: str  # "exercise" or "prediction"
    verdict: str  # a Verdict's value, or COULD_NOT_BE_READ
    points: float | None
    max_points: float
    reason: str  # one sentence: what check would have said
    misconception: str = ""
    diagnosis: str = ""
    attempts: int = 1  # different versions of this answer that the gradebook has seen


@dataclass(frozen=True)
class Graded:
    """Everything about one submission after grading."""

    submission: Submission
    rows: tuple[Row, ...]
    reports: tuple[Report, ...]  # of each exercise that was judged
    protections: str  # one line: which protections were active
    course: str = ""  # version of the course that judged


class Gradebook:
    """`folder`/gradebook.sqlite, made when it is not there yet.

    A connection lives for one operation, so that graders can fork, be killed or work side by side. Every method
    raises OutputProblem where the file can't be used; the file is then left as it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "gradebook.sqlite"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputProblem(f"{self.folder} can't be made: {reason_of(error)}.") from error
        with self._transaction() as connection:
            _prepare(connection, self.path)

    def is_current(self, submission: Submission, course: str) -> bool:
        """Whether these very bytes have been graded by this version of the course, and without a grader's fault."""
        with self._transaction() as connection:
            found = connection.execute(
                """SELECT count(*) FROM submission WHERE student = ? AND notebook = ? AND file = ?
                    AND digest = ? AND digest != '' AND course = ? AND NOT EXISTS (
                        SELECT 1 FROM item WHERE item.submission = submission.id AND verdict = ?)""",
                (*_key(submission), submission.digest, course, Verdict.GRADER_FAULT.value),
            )
            return found.fetchone()[0] > 0

    def record(self, graded: Graded) -> None:
        """Keep the marks of one submission in place of those that its student had for that notebook.

        Marks given by hand stay. What no submission has been graded for since stays as well.
        """
        digests = _digests(graded)  # before the file is locked
        with self._transaction() as connection:
            _forget(connection, graded.submission)
            _insert(connection, graded)
            connection.executemany("INSERT OR IGNORE INTO attempt VALUES (?, ?, ?)", digests)

    def override(self, student: str, notebook: str, exercise: str, points: float, note: str = "") -> None:
        """Give a mark by hand. It wins over the grader's, whatever is graded later."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO overrides VALUES (?, ?, ?, ?, ?)",
                (plain(student), notebook, exercise, points, plain(note)),
            )

    def rows(self) -> list[Row]:
        """Every mark, by student and notebook, in the order in which the notebook asks."""
        with self._transaction() as connection:
            graded = [_row(*found) for found in connection.execute(ROWS)]
            by_hand = [_row_by_hand(*found) for found in connection.execute(BY_HAND_ALONE)]
        return sorted(graded + by_hand, key=lambda row: (row.student, row.notebook))

    def export(self) -> list[Path]:
        """Write the three CSV files, each replaced in one step, and return their paths."""
        rows = self.rows()
        made = {
            "gradebook.csv": (tables.long_form(rows), "utf-8-sig"),  # the mark by which Excel knows UTF-8
            "gradebook_wide.csv": (tables.wide_form(rows), "utf-8-sig"),
            "gradebook_canvas.csv": (tables.canvas_form(rows), "utf-8"),
        }
        return [
            replace_file(self.folder / name, tables.csv_text(table), encoding)
            for name, (table, encoding) in made.items()
        ]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing: if the body raises or the process dies, nothing of it is in the file."""
        try:
            with closing(_connect(self.path)) as connection:
                connection.execute("BEGIN IMMEDIATE")  # takes the lock at once: waiting cannot deadlock
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise OutputProblem(
                f"{self.path} can't be used: {error}. See that the disk is not full and that the file is a "
                "gradebook, or choose another output folder."
            ) from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None
    )  # transactions are explicit
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in an empty file. Raises OutputProblem for a file of another kind."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables_in_it,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == 0 and tables_in_it == 0:
        for statement in SCHEMA:
            connection.execute(statement)
    elif version != SCHEMA_VERSION:
        raise OutputProblem(
            f"{path} is no gradebook that this version of the course can read. Choose another output folder."
        )


# ---- what goes in ------------------------------------------------------------------------------------------------


def _key(submission: Submission) -> tuple[str, str, str]:
    """Student, notebook, and the file where the notebook can't be told."""
    file = "" if submission.notebook else _file(submission)
    return plain(submission.student), submission.notebook, file


def _file(submission: Submission) -> str:
    return plain(f"{submission.path}:{submission.member}")


def _forget(connection: sqlite3.Connection, submission: Submission) -> None:
    """Drop what this submission replaces: also the complaint about the same file from when it was not readable."""
    student, notebook, file = _key(submission)
    connection.execute(
        "DELETE FROM submission WHERE student = ? AND ((notebook = ? AND file = ?) OR file = ?)",
        (student, notebook, file, _file(submission)),
    )


def _insert(connection: sqlite3.Connection, graded: Graded) -> None:
    submission = graded.submission
    details = (
        str(submission.path),
        submission.member,
        submission.digest,
        graded.course,
        submission.problem,
        "\n".join(submission.notes),
        graded.protections,
    )
    values = (*_key(submission), *map(plain, details))
    added = connection.execute(
        f"INSERT INTO submission VALUES (NULL, {', '.join('?' * len(values))})", values
    ).lastrowid
    for position, row in enumerate(graded.rows):
        connection.execute(
            "INSERT INTO item VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (added, position, *_item(row))
        )


def _item(row: Row) -> tuple[str | float | None, ...]:
    points = None if row.verdict in UNSCORED else row.points
    explained = (clip(plain(text), LONGEST) for text in (row.reason, row.misconception, row.diagnosis))
    return (row.exercise, row.kind, row.verdict, points, row.max_points, *explained)


def _digests(graded: Graded) -> list[tuple[str, str, str]]:
    """(student, exercise, digest) of every answer of the submission that says anything."""
    student, cells = plain(graded.submission.student), graded.submission.cells
    tried = [
        row for row in graded.rows if row.verdict not in (Verdict.NOT_ATTEMPTED.value, COULD_NOT_BE_READ)
    ]
    return [(student, row.exercise, _digest(row, cells)) for row in tried]


def _digest(row: Row, cells: tuple[str, ...]) -> str:
    if row.kind == "prediction":
        return prediction(cells, row.exercise) or ""
    answer = find_answer(cells, row.exercise)
    return answer.digest if answer else ""


def prediction(cells: tuple[str, ...], name: str) -> str | None:
    """The letter that was chosen. Only cells that name the question are parsed: there are many questions."""
    return find_prediction([cell for cell in cells if name in cell], name)


# ---- what comes out ----------------------------------------------------------------------------------------------


def _row(*columns) -> Row:
    """A row as the grader made it, with the mark given by hand in place of its own where there is one."""
    *graded, by_hand, note = columns
    row = Row(*graded)
    if by_hand is None:
        return row
    said = f"{_set_by_hand(note)} The grader said: {row.verdict}. {row.reason}"
    return Row(*graded[:5], by_hand, row.max_points, said.strip(), *graded[8:])


def _row_by_hand(student: str, notebook: str, exercise: str, points: float, note: str, most: float) -> Row:
    verdict = Verdict.NOT_ATTEMPTED.value
    most = points if most is None else most
    return Row(student, notebook, exercise, "exercise", verdict, points, most, _set_by_hand(note), attempts=0)


def _set_by_hand(note: str) -> str:
    return f"Set by hand ({note})." if note else "Set by hand."
