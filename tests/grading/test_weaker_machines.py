"""Machines that give fewer protections: grading goes on, the report says so, and what can still be had is had.

Without namespaces a process that left its session is found where orphans can be adopted (Linux) and nowhere else.
Without Landlock and namespaces an answer can read, signal and call whatever its user can; nothing can be given there,
and so nothing is tested here.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict

import pytest

from course_lib.checking import find_answer
from course_lib.grading import judging, protocol
from course_lib.grading.sandbox import MIB, Limits
from tests.grading.hostile import (
    RIGHT,
    assert_full_marks,
    assert_no_marks,
    assert_nothing_is_left,
    calling,
    exercise,
    judged,
    processes_of,
    rightly,
    short_of_time,
    within,
)
from tests.grading.test_defenses_process import DAEMON, OUTLIVING

LESS = {
    "no namespaces, no Landlock": "sandbox._works_in_a_child = lambda *a: False\nsandbox._landlock = lambda *a: []\n"
    "sandbox.fresh_folder = lambda *a: False",
    "another Unix": "import types\nsandbox.sys = types.SimpleNamespace(\n"
    "    platform='darwin', prefix=sys.prefix, base_prefix=sys.base_prefix, exec_prefix=sys.exec_prefix)",
}
NEVER_THERE = {
    "no network",
    "own process namespace",
    "other processes invisible",
    "limited disk",
    "only its own files",
    "no signals to others",
    "the course's answers hidden",
}
LIMITED = {"limited CPU", "limited memory", "limited open files", "limited file size"}


@pytest.fixture(scope="module", params=LESS)
def weak_worker(request, staged):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            judging, "STARTER", judging.STARTER.replace("kept = ", LESS[request.param] + "\nkept = ")
        )
        with judging.Worker(staged, Limits(memory=1600 * MIB, file_size=16 * MIB)) as worker:
            assert_full_marks(judged(worker, RIGHT))
            yield worker


@pytest.fixture
def worker(weak_worker):
    yield weak_worker
    assert_full_marks(judged(weak_worker, RIGHT))
    assert_nothing_is_left(weak_worker)


def test_the_report_says_what_is_missing(worker):
    assert not NEVER_THERE & set(worker.protections)
    assert set(worker.protections) >= LIMITED


ATTACKS = {
    "an exit": "import os\nos._exit(0)",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "a loop": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "memory": "kept = []\nwhile True:\n    kept.append(bytearray(10**8))",
    "a large file": "with open('x', 'wb') as file:\n    while True: file.write(b'x' * 2**20)",
    "a child in its session": "import os, time\nif os.fork() == 0:\n    time.sleep(1e6)",
    "patches": "import builtins, torch\ntorch.equal = builtins.len = lambda *a: True",
}


@pytest.mark.parametrize("body", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_costs_that_answer_alone(worker, body):
    with short_of_time(worker, wall=1.5), within(20):
        assert_no_marks(judged(worker, calling(body)))


@pytest.mark.parametrize("body", [*OUTLIVING.values(), DAEMON + "import os\nos.kill(os.getpid(), 9)"])
def test_orphans_are_found_where_they_can_be_adopted(worker, body):
    if "no process left behind" not in worker.protections:
        pytest.skip("not to be had on this machine: the adoption of orphans")
    with short_of_time(worker, wall=1.5), within(20):
        judged(worker, rightly(body))
    assert_nothing_is_left(worker)


def test_files_do_not_outlive_their_answer(worker):
    body = "import os\nif not os.path.exists('a'):\n    os.makedirs('a/b/c')\n    os.symlink('/', 'a/root')\n"
    body += "    open('file', 'w').close()\n    os.chmod('a/b', 0)\n    os.chmod('a', 0)"
    assert_full_marks(judged(worker, rightly(body)))
    assert_full_marks(
        judged(worker, rightly("import os\nassert os.listdir() in ([], ['seen'])\nopen('seen', 'w')"))
    )
    assert_full_marks(judged(worker, RIGHT))
    assert os.path.exists("/usr")


LOOPS = "import time\ndef count_elements(shape, start=time.sleep(1e6)):\n    return 6\n"


@pytest.mark.parametrize("less", ["", *LESS.values()], ids=["all protections", *LESS])
def test_a_grader_that_is_killed_leaves_nothing_running(staged, monkeypatch, less):
    """The end of the control socket ends the worker, and the answer that it runs."""
    monkeypatch.setattr(judging, "STARTER", judging.STARTER.replace("kept = ", less + "\nkept = "))
    worker = judging.Worker(staged).start()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _begin(worker, ours, theirs)
        below = processes_of(worker)
        assert below
        worker._control.close()
        worker._process.wait(20)
        _wait_until_gone([worker._process.pid, *below])
    worker.stop()


def _begin(worker: judging.Worker, ours: socket.socket, theirs: socket.socket) -> None:
    worker._ask(judging.RUN, theirs.fileno())
    protocol.send(ours, judging.task_of(exercise("count_elements")).setup)
    protocol.send(ours, json.dumps(asdict(find_answer([LOOPS], "count_elements"))).encode())
    protocol.receive(ours, time.monotonic() + 20)  # what comes last before the answer's code runs


def _wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{process}") for process in processes):
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.01)
