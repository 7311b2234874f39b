"""What this learner has done: attempts, hints, predictions and races in one SQLite file.

Nothing in here ever raises into a notebook.  What goes wrong with the file becomes one plain sentence in
`Progress.notices`, the check goes on, and a file that cannot be read is kept aside, never deleted.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SCHEMA_VERSION = 1
BUSY_SECONDS = 10.0  # how long to wait for another kernel that is writing; a write takes milliseconds
SQLITE_MAGIC = b"SQLite format 3\0"
COMPANIONS = ("-journal", "-wal", "-shm")  # the files that SQLite keeps beside a database

# A row counts until its exercise is reset; then `retired_at` is set and the row stays, as history.
SCHEMA = (
    """CREATE TABLE attempt (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, retired_at TEXT, exercise TEXT NOT NULL,
        answer_hash TEXT NOT NULL, verdict TEXT NOT NULL, misconception TEXT NOT NULL)""",
    """CREATE TABLE hint (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, retired_at TEXT, exercise TEXT NOT NULL,
        level INTEGER NOT NULL)""",
    """CREATE TABLE prediction (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, question TEXT NOT NULL,
        choice TEXT NOT NULL, correct INTEGER NOT NULL)""",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

# A table that came later. It is made with its first row, so that a file of this version stays one for every release.
RACE_TABLE = """CREATE TABLE IF NOT EXISTS race (
    id INTEGER PRIMARY KEY, at TEXT NOT NULL, corpus TEXT NOT NULL, setting TEXT NOT NULL, loss REAL NOT NULL)"""

# What SQLite says, and what that means to a person.
REASONS = (
    ("full", "the disk is full. Free some space"),
    ("disk i/o", "the disk refused the write. See that it is not full and that it works"),
    ("readonly", "the file is read-only. Make it writable"),
    ("locked", "another program held the file for too long. Close it"),
    ("unable to open", "the file cannot be opened. See that it is a file, in a folder that you can write to"),
)


class _Unreadable(Exception):
    """The file cannot be used by this version; the message says what it is."""


class Progress:
    """The record of one learner, in the SQLite file at `path`; made when the first row is written.

    `notices` collects sentences for the learner.  Whoever shows them empties the list.
    A connection lives for one operation, so that kernels can fork, be killed or work side by side.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.notices: list[str] = []
        self._warned = False
        # Looked at before SQLite does, which would drop a journal that it cannot play back.
        if _is_foreign(self.path):
            self._set_aside("is not a progress file")
        elif os.path.isfile(self.path) and not _is_sound(self.path):
            self._set_aside("is damaged")

    # -- what happened ---------------------------------------------------------------------------------

    def record_attempt(self, exercise: str, answer_hash: str, verdict: str, misconception: str = "") -> None:
        """Note one check of `exercise`; `misconception` is the id of the diagnosis, or empty."""
        self._write(
            "INSERT INTO attempt (at, exercise, answer_hash, verdict, misconception) VALUES (?, ?, ?, ?, ?)",
            (_now(), exercise, answer_hash, verdict, misconception),
        )

    def record_hint(self, exercise: str, level: int) -> None:
        """Note that the learner read hint `level` of `exercise`."""
        self._write("INSERT INTO hint (at, exercise, level) VALUES (?, ?, ?)", (_now(), exercise, level))

    def record_prediction(self, question: str, choice: str, correct: bool) -> None:
        """Note that the learner predicted `choice`."""
        self._write(
            "INSERT INTO prediction (at, question, choice, correct) VALUES (?, ?, ?, ?)",
            (_now(), question, choice, bool(correct)),
        )

    def record_race(self, corpus: str, setting: str, loss: float) -> None:
        """Note a run on `corpus` with its `setting`, in words, and its loss, which is finite."""

        def run(connection: sqlite3.Connection) -> None:
            connection.execute(RACE_TABLE)
            sql = "INSERT INTO race (at, corpus, setting, loss) VALUES (?, ?, ?, ?)"
            connection.execute(sql, (_now(), corpus, setting, loss))

        self._transact(run)

    def record_reset(self, exercise: str) -> None:
        """Begin `exercise` afresh: what was done so far stays on file, but counts no longer."""

        def run(connection: sqlite3.Connection) -> None:
            for table in ("attempt", "hint"):
                sql = f"UPDATE {table} SET retired_at = ? WHERE exercise = ? AND retired_at IS NULL"
                connection.execute(sql, (_now(), exercise))

        self._transact(run)

    # -- what is known ---------------------------------------------------------------------------------

    def attempts(self, exercise: str) -> int:
        """The number of different answers since the last reset that failed or raised."""
        return self._value(
            "SELECT count(DISTINCT answer_hash) FROM attempt"
            " WHERE exercise = ? AND retired_at IS NULL AND verdict IN ('failed', 'error')",
            exercise,
            default=0,
        )

    def state(self, exercise: str) -> str:
        """'passed' (by any answer since the last reset), 'tried' or 'not attempted'."""
        passed = self._value(
            "SELECT count(*) FROM attempt WHERE exercise = ? AND retired_at IS NULL AND verdict = 'passed'",
            exercise,
            default=0,
        )
        if passed:
            return "passed"
        return "tried" if self.attempts(exercise) else "not attempted"

    def hints_used(self, exercise: str) -> int:
        """The highest level of hint read since the last reset; 0 for none."""
        return self._value(
            "SELECT coalesce(max(level), 0) FROM hint WHERE exercise = ? AND retired_at IS NULL",
            exercise,
            default=0,
        )

    def first_prediction(self, question: str) -> str | None:
        """What the learner chose before seeing any reply."""
        return self._value(
            "SELECT choice FROM prediction WHERE question = ? ORDER BY id LIMIT 1", question, default=None
        )

    def answered(self, question: str) -> bool:
        """Whether the learner ever chose the right answer."""
        sql = "SELECT count(*) FROM prediction WHERE question = ? AND correct"
        return self._value(sql, question, default=0) > 0

    def best_races(self, corpus: str, count: int) -> list[tuple[float, str]]:
        """(loss, setting) of the best runs on `corpus`, at most `count` of them, the lowest loss first."""
        if not self._value("SELECT count(*) FROM sqlite_master WHERE name = ?", "race", default=0):
            return []
        sql = "SELECT loss, setting FROM race WHERE corpus = ? ORDER BY loss, id LIMIT ?"
        return self._operate(
            lambda connection: connection.execute(sql, (corpus, count)).fetchall(), default=[]
        )

    # -- the file --------------------------------------------------------------------------------------

    def _write(self, sql: str, values: tuple) -> None:
        self._transact(lambda connection: connection.execute(sql, values))

    def _transact(self, run: Callable[[sqlite3.Connection], object]) -> None:
        def all_or_nothing(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                run(connection)

        self._operate(all_or_nothing, default=None)

    def _value(self, sql: str, name: str, default: T) -> T:
        """The first column of the first row, or `default` where there is none or no file."""

        def run(connection: sqlite3.Connection) -> T:
            row = connection.execute(sql, (name,)).fetchone()
            return default if row is None else row[0]

        return self._operate(run, default) if os.path.exists(self.path) else default

    def _operate(self, run: Callable[[sqlite3.Connection], T], default: T) -> T:
        """`run` on an open connection; once more, on a fresh file, if this one cannot be read."""
        try:
            try:
                return self._on_file(run)
            except _Unreadable as problem:
                self._set_aside(str(problem))
                return self._on_file(run)
        except (sqlite3.Error, OSError, _Unreadable) as problem:
            self._warn(problem)
            return default

    def _on_file(self, run: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with closing(_connect(self.path)) as connection:
                _prepare(connection)
                return run(connection)
        except sqlite3.DatabaseError as problem:
            if _is_damage(problem) and not _is_sound(self.path):
                raise _Unreadable("is damaged") from problem
            raise

    def _set_aside(self, what: str) -> None:
        """Rename the file, and what SQLite keeps beside it, to a name with the time that nobody has."""
        try:
            kept = _reserve_name(self.path)
            for suffix in COMPANIONS:  # first, so that no fresh file ever meets an old journal
                companion = Path(f"{self.path}{suffix}")
                if companion.exists():
                    os.replace(companion, f"{kept}{suffix}")
            os.replace(self.path, kept)
        except OSError as problem:
            self._warn(problem)
        else:
            self.notices.append(
                f"Your progress file {what}. It is kept as {kept}, and a fresh one has been started."
            )

    def _warn(self, problem: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        text = str(problem)
        reason = next((plain for part, plain in REASONS if part in text.lower()), text)
        self.notices.append(
            f"Your progress is not being saved in {self.path}: {reason}. Checks work as usual meanwhile."
        )


def default_path() -> Path:
    """COURSE_LIB_PROGRESS if set; else in the course's folder, or at home where that is not writable."""
    chosen = os.environ.get("COURSE_LIB_PROGRESS")
    if chosen:
        return Path(chosen)
    root = Path(__file__).resolve().parent.parent
    if os.access(root, os.W_OK):
        return root / "progress.sqlite"
    return Path.home() / ".inside-pytorch-progress.sqlite"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)  # transactions are explicit


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing: if the body raises or the process dies, closing the connection rolls back."""
    connection.execute("BEGIN IMMEDIATE")  # takes the write lock at once, so that waiting cannot deadlock
    yield
    connection.execute("COMMIT")


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file; raise `_Unreadable` for a file of another kind."""
    version = _version(connection)
    if version == 0:
        version = _create(connection)
    if version > SCHEMA_VERSION:
        raise _Unreadable("was written by a newer version of this course")


def _create(connection: sqlite3.Connection) -> int:
    with _transaction(connection):
        if _version(connection) == 0:  # else another kernel was quicker
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise _Unreadable("is a database of another program")
            for statement in SCHEMA:
                connection.execute(statement)
        return _version(connection)


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _is_foreign(path: Path) -> bool:
    """Whether there is a file at `path` that never was a SQLite database."""
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE_MAGIC))
    except OSError:  # no file yet, or one that the first write will complain about
        return False
    return start not in (b"", SQLITE_MAGIC)


def _is_damage(problem: sqlite3.Error) -> bool:
    """Damage is this very class; a full disk, a lock and a missing right are an OperationalError."""
    return type(problem) is sqlite3.DatabaseError


def _is_sound(path: Path) -> bool:
    """Whether SQLite finds no damage: another kernel may have put a fresh file there meanwhile."""
    try:
        with closing(_connect(path)) as connection:
            return connection.execute("PRAGMA quick_check").fetchone()[0] == "ok"
    except sqlite3.DatabaseError as problem:
        return not _is_damage(problem)


def _reserve_name(path: Path) -> Path:
    """Make an empty file whose name holds the time and was free, and return its path."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for count in range(1000):
        kept = path.with_name(f"{path.stem}-{stamp}{f'-{count}' if count else ''}{path.suffix}")
        try:
            kept.touch(exist_ok=False)
        except FileExistsError:
            continue
        return kept
    raise FileExistsError(f"there are already 1000 files like {kept.name}")
