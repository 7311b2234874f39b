"""Whatever the process of an answer does to itself, to the machine or to the clock, it costs that answer alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course_lib.checking import Verdict
from course_lib.grading import run
from course_lib.grading.intake import Submission
from course_lib.grading.judging import NoWorker, Worker
from course_lib.grading.sandbox import MIB, Limits
from tests.grading.hostile import (
    RIGHT,
    assert_full_marks,
    assert_no_marks,
    assert_unharmed,
    calling,
    judged,
    needs,
    processes_of,
    rightly,
    short_of_time,
    within,
)

# ---- 5, 6: leaving -------------------------------------------------------------------------------------------------

LEAVING = {
    "sys.exit": "import sys\nsys.exit(0)",
    "SystemExit": "raise SystemExit",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "GeneratorExit": "raise GeneratorExit",
    "an exception of its own": "class E(BaseException): pass\nraise E",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)",
    "__del__": "import sys\nclass D:\n    def __del__(self): sys.exit(0)\nD()",
    "__del__ at the end": "import os, builtins\nclass D:\n    def __del__(self): os._exit(0)\nbuiltins.d = D()",
    "in a thread": "import threading, sys\nt = threading.Thread(target=sys.exit)\nt.start()\nt.join()",
    "os._exit in a thread": "import threading, os\nthreading.Thread(target=os._exit, args=(0,)).start()",
    "os._exit": "import os\nos._exit(0)",
    "os.abort": "import os\nos.abort()",
    "a segmentation fault": "import ctypes\nctypes.string_at(0)",
    "a stack overflow": "import sys\nsys.setrecursionlimit(10**9)\n"
    "def f(x): return [*map(f, [x])]\nreturn f(1)",
    "SIGKILL": "import os\nos.kill(os.getpid(), 9)",
    "SIGTERM": "import os\nos.kill(os.getpid(), 15)",
    "SIGKILL to the group": "import os\nos.killpg(0, 9)",
    "an alarm": "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(100)",
    "another program": "import os\nos.execv('/bin/true', ['true'])",
}
HOW_IT_ENDED = {
    "os._exit": "ended by itself with exit code 0",
    "os.abort": "was killed by signal 6",
    "a segmentation fault": "was killed by signal 11",
    "SIGKILL": "was killed by signal 9",
    "SIGTERM": "was killed by signal 15",
}


@pytest.mark.parametrize("name", LEAVING)
def test_leaving_costs_that_answer_alone(worker, name):
    report = judged(worker, calling(LEAVING[name]))
    assert_no_marks(report)
    assert HOW_IT_ENDED.get(name, "") in report.summary


AT_ONCE = ["sys.exit(0)", "os._exit(0)", "os.abort()", "os.kill(os.getpid(), 9)", "exit()", "quit(0)"]


@pytest.mark.parametrize("leave", AT_ONCE)
def test_leaving_while_it_is_defined(worker, leave):
    source = f"import os, sys\ndef count_elements(shape, start={leave}):\n    return 6\n"
    assert_no_marks(judged(worker, source))


def test_an_end_that_is_put_off_takes_nothing_from_a_right_answer(worker):
    source = rightly(
        "import atexit, os, sys\natexit.register(os._exit, 1)\n"
        "class D:\n    def __del__(self): sys.exit(1)\nD()"
    )
    assert_full_marks(judged(worker, source))


# ---- 7: not coming to an end -----------------------------------------------------------------------------------------

SHIELD = (
    "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
)
SHIELD += "    except (OSError, ValueError):\n        pass\n"
ENDLESS = {
    "a loop": "while True: pass",
    "a loop that catches all": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "signals ignored": SHIELD + "while True: pass",
    "signals blocked": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "sleep": "import time\ntime.sleep(1e6)",
    "a deadlock": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "within one operation of C": "3 ** 10**9",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "a pipe that nobody writes": "import os\nos.read(os.pipe()[0], 1)",
    "many threads": "import threading\nfor _ in range(8):\n    threading.Thread(target=lambda: 3 ** 10**9).start()\n"
    "while True: pass",
    "printing": "while True:\n    print('x' * 10_000)",
    "a comparison": "import time\nclass E(int):\n    def __eq__(self, other): time.sleep(1e6)\n"
    "return [E(1)] == [E(2)]",
}


@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
def test_an_answer_without_end_is_ended(worker, body):
    with short_of_time(worker, wall=0.8), within(15):
        report = judged(worker, calling(body))
    assert_no_marks(report)
    assert "did not finish in time, in the case 'one dimension'" in report.summary


def test_a_definition_without_end_is_ended(worker):
    source = "import time\ndef count_elements(shape, start=time.sleep(1e6)):\n    return 6\n"
    with short_of_time(worker), within(15):
        report = judged(worker, source)
    assert_no_marks(report)
    assert "while it was defined" in report.summary


def test_all_cases_together_have_a_limit(worker):
    with short_of_time(worker, wall=2, total=2), within(15):
        report = judged(worker, rightly("import time\ntime.sleep(0.5)"))
    assert_no_marks(report)
    assert "It has 2 seconds for a case and 2 for all" in report.summary


@pytest.mark.parametrize("ask", ["input()", "__import__('sys').stdin.read() or 1 / 0", "open('/dev/tty')"])
def test_nobody_answers_a_question(worker, ask):
    with within(15):
        assert_no_marks(judged(worker, calling(f"print({ask})")))


# ---- 8: processes that outlive the answer ----------------------------------------------------------------------------

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(1)
    os._exit(0)
"""
OUTLIVING = {
    "a daemon that holds the channel": DAEMON,
    "ten of them": "for _ in range(2):" + DAEMON.replace("\n", "\n    "),
    "a program": "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)",
    "one that ignores signals": "import os\nif os.fork() == 0:\n    os.setsid()\n    "
    + (SHIELD + "while True: pass").replace("\n", "\n    "),
    "one that is stopped": "import os, signal\nif os.fork() == 0:\n    os.setsid()\n"
    "    os.kill(os.getpid(), signal.SIGSTOP)\n    os._exit(0)",
}


@pytest.mark.parametrize("body", OUTLIVING.values(), ids=OUTLIVING)
def test_the_grader_waits_for_the_answer_and_for_nobody_else(worker, body):
    with within(20):
        assert_full_marks(judged(worker, rightly(body)))


def test_a_process_that_holds_the_channel_holds_the_grader_for_one_deadline(worker):
    with short_of_time(worker), within(15):
        assert_no_marks(judged(worker, calling(DAEMON + "os._exit(0)")))


def test_two_processes_that_both_answer_gain_nothing(worker):
    with short_of_time(worker), within(15):
        assert_no_marks(judged(worker, calling("import os\nos.fork()")))


# ---- 9: using everything up ------------------------------------------------------------------------------------------

BOMBS = {
    "processes": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError: pass",
    "processes that leave": "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n"
    "    except OSError: pass",
    "threads": "import threading, time\nwhile True:\n    try:\n"
    "        threading.Thread(target=time.sleep, args=(1e6,)).start()\n    except RuntimeError: pass",
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_contained_and_cleared_away(worker, body):
    needs(worker, "limited processes")
    with short_of_time(worker), within(30):
        assert_no_marks(judged(worker, calling(body)))


def test_processes_are_counted(worker):
    needs(worker, "limited processes")
    body = "import os, time\nstarted = 0\nwhile started < 2_000:\n    try:\n        child = os.fork()\n"
    body += (
        "    except OSError:\n        break\n    if child == 0:\n        time.sleep(1e6)\n    started += 1\n"
    )
    report = judged(worker, calling(body + "raise RuntimeError(f'{started} started')"))
    assert_no_marks(report)
    assert 10 < int(re.search(r"(\d+) started", report.error)[1]) < 500


MEMORY = {
    "one tensor": "torch.empty(10**12).fill_(1)",
    "one list": "[0] * 10**12",
    "many tensors": "kept = []\nwhile True:\n    kept.append(torch.ones(25_000_000))",
    "many objects": "kept = []\nwhile True:\n    kept.append(bytearray(10**7))",
    "a mapping": "import mmap\nmmap.mmap(-1, 10**12)",
}


@pytest.mark.parametrize("body", MEMORY.values(), ids=MEMORY)
def test_memory_runs_out_for_the_answer_alone(worker, body):
    with within(40):
        report = judged(worker, calling(body, "import torch\n"))
    assert_no_marks(report)
    assert any(word in report.summary + report.error for word in ("Memory", "memory", "signal 9", "allocate"))


DISK = {
    "one large file": "with open('x', 'wb') as file:\n    while True: file.write(b'x' * 2**20)",
    "many large files": "for i in range(10_000):\n    with open(f'{i}', 'wb') as file: file.write(b'x' * 2**23)",
    "many small files": "for i in range(100_000):\n    open(f'{i}', 'w').close()",
    "many folders": "import os\nwhile True:\n    os.mkdir('x')\n    os.chdir('x')",
    "shared memory": "for i in range(10_000):\n    with open(f'/dev/shm/{i}', 'wb') as file: file.write(b'x' * 2**23)",
    "open files": "kept = []\nwhile True:\n    kept.append(open('/dev/null'))",
    "sockets": "import socket\nkept = []\nwhile True:\n    kept.append(socket.socketpair())",
}


@pytest.mark.parametrize("body", DISK.values(), ids=DISK)
def test_the_disk_and_the_file_table_stay_usable(worker, body):
    needs(worker, "limited disk", "limited file size", "limited open files")
    with short_of_time(worker, wall=4, total=4), within(40):
        report = judged(worker, calling(body))
    assert_no_marks(report)
    assert "OSError" in report.summary + report.error or "did not finish" in report.summary


def test_what_an_exercise_needs_of_the_machine_is_not_taken_away(worker):
    body = "import subprocess, tempfile, torch\nsubprocess.run(['true'], check=True)\n"
    body += "with tempfile.NamedTemporaryFile() as file:\n    torch.save(torch.ones(1_000_000), file.name)\n"
    body += "loader = torch.utils.data.DataLoader(range(4), num_workers=2, generator=torch.Generator())\n"
    body += "assert len(list(loader)) == 4"
    assert_full_marks(judged(worker, rightly(body, "import torch.utils.data")))


# ---- 29: nothing is left for the next --------------------------------------------------------------------------------

PLACES = [
    "os.environ['HOME']",
    "os.environ['TMPDIR']",
    "os.getcwd()",
    "'/dev/shm'",
    "os.path.expanduser('~/.cache/torch')",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_file_does_not_outlive_its_answer(worker, place):
    body = f"import os\nplace = {place}\nos.makedirs(place, exist_ok=True)\n"
    assert_full_marks(judged(worker, rightly(body + "open(os.path.join(place, 'poison.py'), 'w').close()")))


def test_files_that_can_not_be_removed_do_not_stay(worker):
    body = "import os\nif not os.path.exists('a'):\n    os.makedirs('a/b/c')\n    os.symlink('/', 'a/root')\n"
    assert_full_marks(judged(worker, rightly(body + "    os.chmod('a/b', 0)\n    os.chmod('a', 0)")))


def test_places_that_all_share_are_closed(worker):
    needs(worker, "only its own files")
    body = "import os\nfor place in ('/tmp', '/var/tmp', '/', '/run', '/usr', '/etc', os.path.dirname(os.__file__)):\n"
    body += "    try:\n        open(place + '/poison', 'w')\n    except OSError:\n        continue\n"
    body += "    raise RuntimeError(place)"
    assert_full_marks(judged(worker, rightly(body)))


def test_the_table_of_semaphores_and_segments_is_the_workers_own(worker):
    needs(worker, "own process namespace")
    body = "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.shmget(4242, 4096, 0) == -1, 'left by another'\n"
    segment = "import ctypes\nctypes.CDLL(None).shmget(4242, 4096, 0o1600)"
    judged(worker, rightly(segment))
    assert_full_marks(judged(worker, rightly(body)))


# ---- the process that forks ------------------------------------------------------------------------------------------


def test_limits_bind_and_stopping_ends_all(staged):
    body = "import resource as r\nkinds = (r.RLIMIT_AS, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CPU)\n"
    body += f"limits = [r.getrlimit(kind)[0] for kind in kinds]\nassert limits == {[1500 * MIB, 50, MIB, 2]}, limits"
    with Worker(staged, Limits(memory=1500 * MIB, open_files=50, file_size=MIB, cpu=2)) as worker:
        assert_full_marks(judged(worker, rightly(body)))
        report = judged(worker, calling("while True: pass"))
        assert_no_marks(report)
        assert "was killed by signal" in report.summary  # time on the processor has a limit of its own
        assert_unharmed(worker)
        first, below = worker._process, processes_of(worker)
    assert first.returncode is not None
    assert not any(Path(f"/proc/{process}").exists() for process in below)


def test_a_worker_that_is_lost_is_replaced(worker):
    submission = Submission("alice", "00_start_here", Path("alice.ipynb"), cells=(RIGHT,))
    worker._process.kill()
    (report,) = run.grade_submission(submission, worker, "").reports
    assert_full_marks(report)


def test_an_answer_that_loses_every_worker_is_for_the_instructor_to_look_at(worker, monkeypatch):
    """Not a zero, because it may be the machine's doing, and no end for the others."""
    submission = Submission("alice", "00_start_here", Path("alice.ipynb"), cells=(RIGHT,))
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "_ask", _raise_no_worker)
        patch.setattr(Worker, "restart", lambda self: None)
        (report,) = run.grade_submission(submission, worker, "").reports
    assert report.verdict is Verdict.GRADER_FAULT


def _raise_no_worker(*_: object) -> None:
    raise NoWorker("gone")
