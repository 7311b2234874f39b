"""Progress on real files, with real kills, real writers side by side and a disk that is really full."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from course_lib.progress import SCHEMA_VERSION, Progress, default_path

ROOT = Path(__file__).resolve().parent.parent
needs_posix = pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX")

WRITER = """
import sys
from course_lib.progress import Progress
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
progress = Progress(path)
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    progress.record_attempt(name, f"{name}-{i}", "failed", "")
    print(i, flush=True)
print(progress.notices, flush=True)
"""


def start(script: str, *args: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def run(script: str, *args: object) -> tuple[int, str]:
    """The exit status of the script (negative: the signal that ended it) and what it printed."""
    child = start(script, *args)
    printed, _ = child.communicate()
    return child.returncode, printed


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen:
    writer = start(WRITER, path, name, count)
    assert writer.stdout.readline() == "ready\n"
    return writer


def go(writer: subprocess.Popen) -> None:
    writer.stdin.write("go\n")
    writer.stdin.flush()


def rows(path: Path, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def only(notices: list[str]) -> str:
    (notice,) = notices
    return notice


def answers(path: Path) -> set[str]:
    return {answer for (answer,) in rows(path, "SELECT answer_hash FROM attempt")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.sqlite"


@pytest.fixture
def progress(path: Path) -> Progress:
    return Progress(path)


class TestWhatIsKnown:
    def test_nothing_yet_and_asking_makes_no_file(self, progress: Progress, path: Path) -> None:
        assert progress.attempts("e") == 0
        assert progress.state("e") == "not attempted"
        assert progress.hints_used("e") == 0
        assert progress.first_prediction("q") is None
        assert progress.answered("q") is False
        assert not path.exists()

    def test_attempts_are_different_answers_that_failed_or_raised(self, progress: Progress) -> None:
        for answer, verdict in [
            ("a", "failed"),
            ("a", "failed"),
            ("b", "error"),
            ("c", "not attempted"),
            ("d", "grader fault"),
            ("e", "passed"),
        ]:
            progress.record_attempt("e", answer, verdict, "")
        progress.record_attempt("another", "z", "failed", "")
        assert progress.attempts("e") == 2

    @pytest.mark.parametrize(
        ("verdicts", "state"),
        [
            (["not attempted"], "not attempted"),
            (["grader fault"], "not attempted"),
            (["failed"], "tried"),
            (["error", "not attempted"], "tried"),
            (["failed", "passed", "failed"], "passed"),
        ],
    )
    def test_state(self, progress: Progress, verdicts: list[str], state: str) -> None:
        for answer, verdict in enumerate(verdicts):
            progress.record_attempt("e", str(answer), verdict, "")
        assert progress.state("e") == state

    def test_a_reset_begins_afresh_and_forgets_nothing(self, progress: Progress, path: Path) -> None:
        progress.record_attempt("e", "a", "failed", "compares_values")
        progress.record_attempt("e", "b", "passed", "")
        progress.record_attempt("other", "c", "passed", "")
        progress.record_hint("e", 2)
        progress.record_reset("e")
        assert progress.state("e") == "not attempted"
        assert progress.attempts("e") == progress.hints_used("e") == 0
        assert progress.state("other") == "passed"
        assert answers(path) == {"a", "b", "c"}
        progress.record_attempt("e", "a", "failed", "compares_values")
        assert (progress.state("e"), progress.attempts("e")) == ("tried", 1)

    def test_hints_used_is_the_highest_level(self, progress: Progress) -> None:
        for level in (1, 3, 2):
            progress.record_hint("e", level)
        assert progress.hints_used("e") == 3

    def test_the_first_prediction_stays_and_a_right_one_counts(self, progress: Progress) -> None:
        progress.record_prediction("q", "a", False)
        assert progress.answered("q") is False
        progress.record_prediction("q", "b", True)
        progress.record_prediction("q", "c", False)
        assert progress.first_prediction("q") == "a"
        assert progress.answered("q") is True

    def test_the_best_races_come_first_and_the_earlier_of_equals(self, progress: Progress) -> None:
        for setting, loss in [("a", 2.0), ("b", 1.5), ("c", 1.5), ("d", 1.75)]:
            progress.record_race("topics", setting, loss)
        progress.record_race("my letters", "e", 1.0)
        assert progress.best_races("topics", 3) == [(1.5, "b"), (1.5, "c"), (1.75, "d")]
        assert Progress(progress.path).best_races("my letters", 3) == [(1.0, "e")]

    def test_without_a_race_there_is_none_and_asking_makes_no_table(
        self, progress: Progress, path: Path
    ) -> None:
        assert progress.best_races("topics", 3) == []
        assert not path.exists()
        progress.record_hint("e", 1)
        assert progress.best_races("topics", 3) == progress.notices == []
        assert rows(path, "SELECT count(*) FROM sqlite_master WHERE name = 'race'") == [(0,)]

    def test_a_loss_that_sqlite_cannot_hold_is_a_notice(self, progress: Progress) -> None:
        progress.record_race("topics", "a", float("nan"))
        assert "not being saved" in only(progress.notices)
        assert progress.best_races("topics", 3) == []

    def test_another_session_knows_it_and_times_are_utc(self, progress: Progress, path: Path) -> None:
        progress.record_attempt("e", "a", "passed", "")
        assert Progress(path).state("e") == "passed"
        ((at,),) = rows(path, "SELECT at FROM attempt")
        assert datetime.fromisoformat(at).utcoffset().total_seconds() == 0

    @needs_posix
    def test_a_forked_child_writes_too(self, progress: Progress) -> None:
        progress.record_attempt("e", "parent", "failed", "")
        script = (
            "import os, sys\n"
            "from course_lib.progress import Progress\n"
            "progress = Progress(sys.argv[1])\n"
            "progress.record_attempt('e', 'before', 'failed', '')\n"
            "child = os.fork()\n"
            "progress.record_attempt('e', 'child' if child == 0 else 'mother', 'failed', '')\n"
            "child and os.waitpid(child, 0)\n"
        )
        assert run(script, progress.path) == (0, "")
        assert progress.attempts("e") == 4


class TestWhereTheFileIs:
    def test_the_environment_decides(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        monkeypatch.setenv("COURSE_LIB_PROGRESS", str(path))
        assert default_path() == path

    def test_else_the_root_of_the_course(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("COURSE_LIB_PROGRESS", raising=False)
        assert default_path() == ROOT / "progress.sqlite"

    def test_else_the_home_directory(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("COURSE_LIB_PROGRESS", raising=False)
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))
        assert default_path().parent == tmp_path


@needs_posix
class TestKilled:
    def test_in_mid_write_at_varied_moments(self, path: Path) -> None:
        moments = random.Random(0)
        reported: set[str] = set()
        for round_ in range(12):
            writer = start_writer(path, f"round{round_}", 10_000)
            go(writer)
            for _ in range(moments.randint(1, 60)):
                reported.add(f"round{round_}-{writer.stdout.readline().strip()}")
            writer.kill()
            reported.update(f"round{round_}-{line.strip()}" for line in writer.communicate()[0].splitlines())
            assert reported <= answers(path)
            assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        progress = Progress(path)
        progress.record_attempt("e", "after", "passed", "")
        assert progress.state("e") == "passed"
        assert progress.notices == []

    def test_in_the_middle_of_recording_races(self, path: Path) -> None:
        script = (
            "import sys\n"
            "from course_lib.progress import Progress\n"
            "progress = Progress(sys.argv[1])\n"
            "for i in range(10_000):\n"
            "    progress.record_race('topics', str(i), float(i))\n"
            "    print(i, flush=True)\n"
        )
        writer = start(script, path)
        for _ in range(20):
            writer.stdout.readline()
        writer.kill()
        writer.communicate()
        progress = Progress(path)
        assert [setting for _, setting in progress.best_races("topics", 20)] == [str(i) for i in range(20)]
        assert progress.notices == []

    def test_with_half_a_transaction_already_in_the_file(self, progress: Progress, path: Path) -> None:
        progress.record_attempt("e", "a", "failed", "")
        script = (
            "import os, pathlib, signal, sys\n"
            "from course_lib.progress import _connect\n"
            "connection = _connect(pathlib.Path(sys.argv[1]))\n"
            "connection.execute('PRAGMA cache_size = 1')\n"  # so that pages reach the disk before the commit
            "connection.execute('BEGIN IMMEDIATE')\n"
            "connection.execute('UPDATE attempt SET verdict = \"passed\"')\n"
            "for i in range(3000):\n"
            "    connection.execute('INSERT INTO hint VALUES (NULL, hex(zeroblob(50)), NULL, ?, 3)', 'e')\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        size = path.stat().st_size
        status, _ = run(script, path)
        assert status == -signal.SIGKILL
        assert path.stat().st_size > size
        assert Path(f"{path}-journal").exists()
        assert (progress.state("e"), progress.hints_used("e")) == ("tried", 0)
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        assert progress.notices == []


class TestTwoKernels:
    def test_no_row_is_lost(self, path: Path) -> None:
        writers = [start_writer(path, name, 150) for name in ("left", "right")]
        for writer in writers:
            go(writer)
        for writer in writers:
            assert writer.communicate()[0].splitlines()[-1] == "[]"
        assert answers(path) == {f"{name}-{i}" for name in ("left", "right") for i in range(150)}

    def test_all_may_begin_the_file_at_once(self, tmp_path: Path) -> None:
        def begin(path: Path) -> list[str]:
            progress = Progress(path)
            together.wait()
            progress.record_hint("e", 1)
            return progress.notices

        kernels = 4
        together = threading.Barrier(kernels)
        with ThreadPoolExecutor(kernels) as pool:
            for round_ in range(20):
                path = tmp_path / str(round_)
                assert list(pool.map(begin, [path] * kernels)) == [[]] * kernels
                assert rows(path, "SELECT count(*) FROM hint") == [(kernels,)]

    def test_a_lock_that_never_ends_is_a_notice(
        self, progress: Progress, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = sys.modules[
            Progress.__module__
        ]  # the package's attribute of that name is what a notebook calls
        monkeypatch.setattr(module, "BUSY_SECONDS", 0.01)
        progress.record_attempt("e", "a", "failed", "")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            progress.record_attempt("e", "b", "failed", "")
            assert progress.attempts("e") == 0
        assert "held the file" in only(progress.notices)
        assert progress.attempts("e") == 1


FULL_DISK = """
import json, resource, sys
from course_lib.progress import Progress
progress = Progress(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
for i in range(400):
    progress.record_attempt("e", f"full-{i}", "failed", "x" * 200)
progress.record_hint("e", 1)
print(json.dumps([progress.attempts("e"), progress.notices]))
"""


@needs_posix
class TestNoRoom:
    @pytest.mark.parametrize("limit", [0, 1000, 40_000], ids=["not a byte", "half a page", "a few rows"])
    def test_a_full_disk_never_raises_and_is_told_once(self, path: Path, limit: int) -> None:
        status, printed = run(FULL_DISK, path, limit)
        attempts, notices = json.loads(printed)
        assert status == 0
        assert "disk" in only(notices)
        assert "Checks work as usual" in only(notices)
        assert attempts < 400
        progress = Progress(path)
        progress.record_attempt("e", "with room again", "failed", "")
        assert progress.attempts("e") == attempts + 1
        assert progress.notices == []

    def test_what_was_there_before_the_disk_filled_stays(self, progress: Progress, path: Path) -> None:
        progress.record_attempt("done", "a", "passed", "")
        run(FULL_DISK, path, 0)
        assert progress.state("done") == "passed"


READ_ONLY = """
import json, os, sys
from course_lib.progress import Progress
if os.getuid() == 0:
    os.setuid(65534)  # root may write to anything
progress = Progress(sys.argv[1])
progress.record_attempt("e", "b", "passed", "")
progress.record_attempt("e", "c", "passed", "")
print(json.dumps([progress.state("e"), progress.notices]))
"""


@needs_posix
class TestNotOurs:
    @pytest.fixture
    def open_folder(self, tmp_path: Path):
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_uid == os.getuid() and folder.name.startswith(("pytest-", "popen-")):
                folder.chmod(0o755)
        return tmp_path

    def test_a_read_only_file_is_read_and_told_once(self, progress: Progress, open_folder: Path) -> None:
        progress.record_attempt("e", "a", "failed", "")
        progress.path.chmod(0o444)
        open_folder.chmod(0o555)
        state, notices = json.loads(run(READ_ONLY, progress.path)[1])
        assert state == "tried"
        assert "read-only" in only(notices)

    def test_a_folder_that_is_not_ours(self, path: Path, open_folder: Path) -> None:
        open_folder.chmod(0o555)
        state, notices = json.loads(run(READ_ONLY, path)[1])
        assert state == "not attempted"
        assert "cannot be opened" in only(notices)
        assert list(open_folder.iterdir()) == []


def damage_random(good: bytes) -> bytes:
    return random.Random(0).randbytes(len(good))


def damage_middle(good: bytes) -> bytes:
    return good[:100] + random.Random(0).randbytes(len(good) - 100)


DAMAGE = {
    "random bytes": damage_random,
    "random bytes after the header": damage_middle,
    "half the file": lambda good: good[: len(good) // 2],
    "a torn page": lambda good: good[:8000],
    "a page of zeros": lambda good: good[:4096] + bytes(4096) + good[8192:],
    "a hole in a page": lambda good: good[:7000] + bytes(500) + good[7500:],
    "less than a header": lambda good: good[:50],
    "three bytes": lambda good: good[:3],
    "a text file": lambda good: b"Dear diary, today I learned about strides.\n",
    "a long text file": lambda good: b"strides and storage\n" * 1000,
}


def kept_beside(path: Path) -> list[Path]:
    return sorted(other for other in path.parent.iterdir() if other != path)


class TestDamaged:
    @pytest.fixture
    def good(self, progress: Progress, path: Path) -> bytes:
        for i in range(50):
            progress.record_attempt("e", f"old-{i}", "failed", "")
        return path.read_bytes()

    @pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
    def test_is_kept_aside_and_a_fresh_one_begun(self, path: Path, good: bytes, damage) -> None:
        bad = damage(good)
        path.write_bytes(bad)
        progress = Progress(path)
        progress.record_attempt("e", "new", "passed", "")
        assert progress.state("e") == "passed"
        (kept,) = kept_beside(path)
        assert kept.read_bytes() == bad
        assert str(kept) in only(progress.notices)
        assert "fresh" in only(progress.notices)
        assert answers(path) == {"new"}

    @pytest.mark.parametrize("ask", [False, True], ids=["write first", "read first"])
    def test_in_the_middle_of_a_session(self, progress: Progress, path: Path, good: bytes, ask: bool) -> None:
        path.write_bytes(damage_middle(good))
        if ask:
            assert progress.state("e") == "not attempted"
        progress.record_attempt("e", "new", "failed", "")
        assert progress.attempts("e") == 1
        assert len(progress.notices) == len(kept_beside(path)) == 1

    def test_the_journal_goes_with_it(self, path: Path, good: bytes) -> None:
        path.write_bytes(damage_random(good))
        Path(f"{path}-journal").write_bytes(b"half a page of the past")
        Progress(path).record_attempt("e", "new", "passed", "")
        kept, journal = kept_beside(path)
        assert journal.name == f"{kept.name}-journal"
        assert journal.read_bytes() == b"half a page of the past"

    def test_nothing_that_was_kept_is_ever_overwritten(self, path: Path) -> None:
        for i in range(5):
            path.write_text(f"damage number {i}")
            Progress(path).record_attempt("e", "new", "passed", "")
        texts = [kept.read_text() for kept in kept_beside(path)]
        assert sorted(texts) == [f"damage number {i}" for i in range(5)]

    def test_an_empty_file_is_a_fresh_one(self, path: Path) -> None:
        path.touch()
        progress = Progress(path)
        progress.record_attempt("e", "new", "passed", "")
        assert progress.state("e") == "passed"
        assert progress.notices == kept_beside(path) == []

    def test_a_folder_in_its_place_is_left_alone(self, path: Path) -> None:
        path.mkdir()
        (path / "thesis.txt").write_text("mine")
        progress = Progress(path)
        progress.record_attempt("e", "new", "passed", "")
        assert progress.state("e") == "not attempted"
        assert "See that it is a file" in only(progress.notices)
        assert (path / "thesis.txt").read_text() == "mine"
        assert kept_beside(path) == []


class TestOtherVersions:
    def test_a_newer_one_is_kept_aside(self, progress: Progress, path: Path) -> None:
        progress.record_attempt("e", "old", "passed", "")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        newer = path.read_bytes()
        later = Progress(path)
        assert later.state("e") == "not attempted"
        later.record_attempt("e", "new", "failed", "")
        (kept,) = kept_beside(path)
        assert kept.read_bytes() == newer
        assert later.attempts("e") == 1
        assert "newer version" in only(later.notices)
        assert str(kept) in only(later.notices)

    def test_a_database_of_another_program_is_kept_aside(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE attempt (bookmark TEXT)")
        progress = Progress(path)
        progress.record_attempt("e", "new", "passed", "")
        (kept,) = kept_beside(path)
        assert progress.state("e") == "passed"
        assert rows(kept, "SELECT name FROM sqlite_master") == [("attempt",)]
        assert "another program" in only(progress.notices)
