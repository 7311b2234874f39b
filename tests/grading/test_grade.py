"""The command `grade`, as an instructor uses it: real processes, real files, and a grader that is killed."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.environment import ROOT
from course_lib.grading.gradebook import Gradebook
from tests.grading.handed_in import ANSWER, STUB, WRONG, answered, save

HOSTILE = {
    "leaves at once": "import os\ndef count_elements(shape):\n    os._exit(0)\n",
    "kills itself": "import os, signal\ndef count_elements(shape):\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    "exits when loaded": "import sys\nanswer = sys.exit(0)\ndef count_elements(shape):\n    return answer\n",
    "swallows all memory": "def count_elements(shape):\n    return len(bytearray(2**40))\n",
    "prints without end": "def count_elements(shape):\n    return [print('x' * 10**6) for _ in range(30)]\n",
    "recurses": "def count_elements(shape):\n    return count_elements(shape)\n",
    "forks": "import os\ndef count_elements(shape):\n    [os.fork() for _ in range(4)]\n    return 0\n",
    "writes everywhere": "import os\ndef count_elements(shape):\n    [os.write(n, b'x' * 99) for n in range(1, 20)]\n",
    "returns a liar": "class Liar:\n    __eq__ = lambda a, b: True\ndef count_elements(shape):\n    return Liar()\n",
    "is no Python": "def count_elements(shape:\n",
}


def grade(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course_lib", "grade", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def classroom(folder: Path, students: int, hostile: int) -> Path:
    """So many submissions of notebook 00: right, wrong, untouched, and, spread among them, hostile ones."""
    sources = [ANSWER, WRONG, STUB]
    for number in range(students):
        source = sources[number % 3]
        if number % (students // hostile) == 7 and number // (students // hostile) < hostile:
            source = list(HOSTILE.values())[number // (students // hostile)]
        save(folder / f"student{number:03}" / "00_start_here.ipynb", answered(source))
    return folder


def marks(out: Path) -> list[tuple]:
    return [tuple(vars(row).values()) for row in Gradebook(out).rows()]


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory) -> Path:
    return classroom(tmp_path_factory.mktemp("handed_in"), students=200, hostile=10)


@pytest.fixture(scope="module")
def undisturbed(handed_in, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    done = grade(handed_in, "-o", out, "-j", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def kill_at(share: str, *arguments: object) -> None:
    """Start the grader and kill it, so that it can clean nothing up, as soon as its bar shows `share`."""
    command = [sys.executable, "-m", "course_lib", "grade", *map(str, arguments)]
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    shown = b""
    while not re.search(share.encode(), shown):
        part = os.read(running.stderr.fileno(), 4096)
        assert part, f"the grader ended before it showed {share}: {shown[-500:]}"
        shown += part
    running.send_signal(signal.SIGKILL)
    running.communicate()


def test_a_killed_grader_goes_on_and_ends_as_if_nothing_had_been(handed_in, undisturbed, tmp_path):
    kill_at(r" (9\d|1\d\d)/200", handed_in, "-o", tmp_path, "-j", 2)
    before = marks(tmp_path)
    assert 0 < len(before) < len(marks(undisturbed))
    done = grade(handed_in, "-o", tmp_path, "-j", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 200 submissions were graded before" in done.stdout
    assert marks(tmp_path) == marks(undisturbed)
    for name in ("gradebook.csv", "gradebook_wide.csv", "gradebook_canvas.csv", "room.html"):
        assert (tmp_path / name).read_bytes() == (undisturbed / name).read_bytes()


def test_hostile_submissions_cost_themselves_alone(undisturbed):
    with (undisturbed / "gradebook.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["exercise"] == "count_elements"]
    assert len(rows) == 200
    hostile = [row for row in rows if int(row["student"][-3:]) % 20 == 7]
    harmless = [[row["verdict"] for row in rows[kind::3] if row not in hostile] for kind in range(3)]
    assert list(map(set, harmless)) == [{"passed"}, {"failed"}, {"not attempted"}]
    assert len(hostile) == 10 and not any(float(row["points"]) for row in hostile)


def test_grading_again_changes_nothing(handed_in, undisturbed):
    before = marks(undisturbed)
    done = grade(handed_in, "-o", undisturbed, "-j", 1)
    assert done.returncode == 0 and "200 of 200 submissions were graded before" in done.stdout
    assert marks(undisturbed) == before


def test_every_submission_has_a_page(undisturbed):
    assert len(list((undisturbed / "feedback").rglob("*.html"))) == 200


def test_the_exit_code_says_whether_all_could_be_read(tmp_path):
    save(tmp_path / "in" / "ann" / "00_start_here.ipynb")
    save(tmp_path / "in" / "bob" / "00_start_here.ipynb", answered()[:100])
    done = grade(tmp_path / "in", "-o", tmp_path / "out", "-j", 1)
    assert done.returncode == 1 and "bob" in done.stdout
    assert grade(tmp_path / "nowhere", "-o", tmp_path / "out").returncode == 2
    save(tmp_path / "a file", b"")
    assert grade(tmp_path / "in", "-o", tmp_path / "a file").returncode == 2


def test_the_protections_are_named(undisturbed, handed_in, tmp_path):
    one = handed_in / "student000"
    done = grade(one, "-o", tmp_path, "-j", 1)
    assert re.search(r"The answers ran with: .*limited CPU, limited memory", done.stdout)
