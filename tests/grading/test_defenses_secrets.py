"""What an answer can't get at: expected values, answers, other people's files, the grader, and the network."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import os
import socket
import struct
import subprocess
import sys
import types
import zlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from course_lib import exercises
from course_lib.checking import Exercise
from course_lib.environment import ROOT
from course_lib.grading import judging, protocol
from tests.answers import answer_from
from tests.grading.hostile import (
    assert_full_marks,
    assert_no_marks,
    calling,
    exercise,
    judged,
    needs,
    rightly,
    short_of_time,
    within,
)

# ---- 15: looking for expected values -------------------------------------------------------------------------------

SEARCH = """
import gc, hashlib, linecache, sys, types

KNOWN = {known}

def fingerprint(code):
    return hashlib.sha256(repr((code.co_code, code.co_names, code.co_varnames)).encode()).hexdigest()[:12]

def codes_in(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)

def codes():
    frame = sys._getframe()
    while frame:
        yield frame.f_code
        frame = frame.f_back
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType:
            yield thing.__code__
        elif type(thing) in (list, tuple, dict):
            yield from [item for item in gc.get_referents(thing) if type(item) is types.CodeType]

def search():
    hits = {{KNOWN[f] for code in codes() for f in map(fingerprint, codes_in(code)) if f in KNOWN}}
    sources = [name for name in linecache.cache if "reference" in name or "exercises" in name]
    names = ("course_lib.exercises", "course_lib.reference.")  # a module that was imported has a spec
    modules = [n for n, module in sys.modules.items() if n.startswith(names) and getattr(module, "__spec__", None)]
    return sorted(hits) + sources + [name for name in modules if name != "course_lib.reference.sources"]

def {name}(*args, found=[], **kwargs):
    found = found or found.append(search()) or found
    raise ValueError(f"found: {{found[0]}}")
"""


def fingerprints(notebook: str) -> dict[str, str]:
    """What is searched for, by fingerprint: the code of every reference and misconception of a notebook."""
    return {
        _TOOLS["fingerprint"](code): f"{label} of {item.name}"
        for item in exercises.exercises_of(notebook)
        for label, code in secret_code(item)
    }


def secret_code(item: Exercise) -> Iterator[tuple[str, types.CodeType]]:
    """Each function of the answers to an exercise that is long enough not to be like any other."""
    for answer in (item.reference, *(misconception.answer for misconception in item.misconceptions)):
        functions = list(vars(answer).values()) if inspect.isclass(answer) else [answer]
        for function in filter(inspect.isfunction, functions):
            for code in _TOOLS["codes_in"](function.__code__):
                if len(code.co_code) > 60 and _is_ours(code):
                    yield answer.__name__, code


def _is_ours(code: types.CodeType) -> bool:
    """PyTorch's decorators wrap functions of the course; short comprehensions look like those of anybody."""
    return code.co_filename.startswith(str(ROOT / "course_lib")) and not code.co_name.startswith("<")


_TOOLS: dict = {}
exec(SEARCH.format(known={}, name="unused"), _TOOLS)  # the same words on both sides


@pytest.mark.parametrize("notebook", [notebook.name for notebook in exercises.NOTEBOOKS])
def test_nothing_in_memory_knows_an_answer(worker, notebook):
    name = next(item.name for item in exercises.exercises_of(notebook) if not inspect.isclass(item.reference))
    report = judged(worker, SEARCH.format(known=fingerprints(notebook), name=name), name)
    assert_no_marks(report)
    assert "found: []" in report.error, report


def test_the_search_finds_what_is_there(worker):
    """A search that can't find anything proves nothing."""
    there = inspect.getsource(exercise("broadcast_shape").reference).replace(
        "def broadcast_shape", "def hidden_here"
    )
    source = there + SEARCH.format(known=fingerprints("01_tensors"), name="count_elements")
    report = judged(
        worker, source.replace("found.append(search())", "found.append(hidden_here and search())")
    )
    assert "broadcast_shape of broadcast_shape" in report.error


@pytest.mark.parametrize("notebook", [notebook.name for notebook in exercises.NOTEBOOKS])
def test_no_code_or_text_of_an_answer_is_sent(notebook):
    for item in exercises.exercises_of(notebook):
        task = judging.task_of(item)
        sent = task.setup + b"".join(payload for _, payload in task.cases)
        assert [label for label, code in secret_code(item) if code.co_code in sent] == []
        texts = [item.why, *item.hints, *(misconception.sentence for misconception in item.misconceptions)]
        assert [text for text in texts if text.encode() in sent] == []
        assert b"course_lib.reference." not in sent.replace(b"course_lib.reference.sources", b""), item.name


def test_what_is_staged_holds_no_answer(staged):
    text = "\n".join(path.read_text() for path in staged.rglob("*.py"))
    assert not (staged / "course_lib" / "exercises").exists()
    for item in exercises.all_exercises().values():
        assert f"\ndef {item.name}(" not in text and f"\nclass {item.name}(" not in text
        assert not any(f"def {m.name}(" in text for m in item.misconceptions)


# ---- 16: reading -----------------------------------------------------------------------------------------------------

READ = """
import os, subprocess

PLACES = {places}

def readable(place):
    try:
        if os.path.isdir(place):
            return bool(os.listdir(place))
        with open(place, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False

def count_elements(shape):
    found = [place for place in PLACES if readable(place)]
    told = [place for place in PLACES if subprocess.run(["cat", place], capture_output=True).stdout]
    raise ValueError(f"found: {{found + told}}")
"""


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """A gradebook and another submission, on the disk as they are while the grader runs."""
    folder = tmp_path_factory.mktemp("class")
    for name in ("out/gradebook.sqlite", "in/bob/01_tensors.ipynb"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("secret")
    return folder


def test_no_file_of_the_grader_can_be_read(worker, secrets):
    needs(worker, "only its own files")
    grader, first = os.getpid(), worker._process.pid
    course = ("", ".git", "course_lib", "solutions", "notebooks", "tests", "course_lib/exercises/tensors.py")
    places = [ROOT / name for name in (*course, "course_lib/reference/tensors.py")]
    places += [secrets / name for name in ("", "out/gradebook.sqlite", "in/bob/01_tensors.ipynb")]
    places += ["/etc/shadow", "/etc/passwd", "/root", "/home"]
    files = ("environ", "mem", "maps", "root/etc", "cwd/etc", "map_files", *(f"fd/{n}" for n in range(10)))
    places += [f"/proc/{pid}/{name}" for pid in (grader, first, 1) for name in files]
    report = judged(worker, READ.format(places=list(map(str, places))))
    assert_no_marks(report)
    assert "found: []" in report.error, report.error


def test_other_processes_are_not_to_be_seen(worker):
    needs(worker, "other processes invisible")
    body = "import os\nseen = [int(name) for name in os.listdir('/proc') if name.isdigit()]\n"
    assert_full_marks(judged(worker, rightly(body + "assert sorted(seen) == [1, os.getpid()], seen")))


def test_what_can_be_seen_of_the_worker_says_nothing(worker, monkeypatch):
    body = "import os\ntext = open('/proc/1/cmdline').read() + str(dict(os.environ)) if os.getppid() == 1 else ''\n"
    body += f"assert not any(word in text for word in {['solutions', 'gradebook', str(ROOT / 'course_lib')]}), text"
    assert_full_marks(judged(worker, rightly(body)))


def test_a_copy_of_the_course_among_the_installed_packages_is_hidden(tmp_path):
    """In a process of its own, which then is secluded as a worker is."""
    installed = tmp_path / "site-packages" / "course_lib"
    (installed / "reference").mkdir(parents=True)
    (installed / "reference" / "tensors.py").write_text("answer")
    code = "from course_lib.grading import sandbox; import os, sys\n"
    code += f"active = sandbox.seclude([{str(installed)!r}], [{str(tmp_path)!r}])\n"
    code += f'print("the course\'s answers hidden" in active, os.listdir({str(installed)!r}))'
    said = _python(code)
    if said.startswith("False"):
        pytest.skip("not to be had on this machine: mounts of its own")
    assert said == "True []"


def test_the_places_with_answers_are_found_wherever_python_looks(tmp_path, monkeypatch):
    (tmp_path / "course_lib").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    places = judging._places_with_answers()
    assert str((tmp_path / "course_lib").resolve()) in places
    assert str((ROOT / "course_lib").resolve()) in places


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- 16: doing things to others --------------------------------------------------------------------------------------

LIBC = "import ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\n"
REFUSED = {
    "a signal to process 1": "try:\n    os.kill(1, 0)\nexcept PermissionError:\n    return 0",
    "a signal to the parent": "try:\n    os.kill(os.getppid(), signal.SIGSTOP)\nexcept PermissionError:\n    return 0",
    "ptrace": "return libc.ptrace(16, os.getppid(), None, None)",
    "seize": "return libc.ptrace(0x4206, os.getppid(), None, None)",
    "memory of another": "return libc.syscall(310, os.getppid(), None, 0, None, 0, 1)",
    "a file number of another": "return libc.syscall(438, libc.syscall(434, os.getppid(), 0), 3, 0)",
    "a mount": "return libc.mount(b'none', b'/dev/shm', b'tmpfs', 0, None)",
    "an end of a mount": "return libc.umount2(os.environ['HOME'].encode(), 2)",
    "namespaces, and then an end of a mount": "libc.unshare(0x10020000)\nreturn libc.umount2(b'/tmp', 2)",
    "another root": "return libc.chroot(b'/tmp')",
    "another user": "return libc.setuid(1)",
    "a device": "return libc.mknod(b'disk', 0o60666, 0x800)",
    "a file by its handle": "return libc.open_by_handle_at(-100, b'\\0' * 64, 0)",
    "the clock": "import time\ntry:\n    time.clock_settime(0, 0)\nexcept PermissionError:\n    return 0",
    "the name of the machine": "return libc.sethostname(b'x', 1)",
    "a higher limit": "import resource as r\ntry:\n    r.setrlimit(r.RLIMIT_AS, (-1, -1))\n"
    "except (PermissionError, ValueError):\n    return 0",
    "a higher priority": "try:\n    os.nice(-5)\nexcept PermissionError:\n    return 0",
}


@pytest.mark.parametrize("attack", REFUSED.values(), ids=REFUSED)
def test_what_would_harm_others_is_refused(worker, attack):
    needs(worker, "own process namespace", "no signals to others", "only its own files")
    lines = "".join(f"    {line}\n" for line in attack.splitlines())
    source = f"{LIBC}def attack():\n{lines}    return 1\n" + rightly(
        "assert attack() in (0, -1), 'it worked'\n"
    )
    if "return 0" not in attack:
        source = source.replace("in (0, -1)", "== -1")
    assert_full_marks(judged(worker, source))


@pytest.mark.parametrize("number", [1, 2, 9, 15, 19])
def test_signals_to_all_reach_only_the_answer(worker, number):
    with short_of_time(worker), within(20):
        assert_no_marks(judged(worker, calling(f"import os\nos.kill(-1, {number})\nos.kill(os.getpid(), 9)")))


# ---- 30: the network -------------------------------------------------------------------------------------------------

LISTENING = {
    "TCP": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
    "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, "\0course-lib-test-{pid}"),
    "a socket in /tmp": (socket.AF_UNIX, socket.SOCK_STREAM, "{folder}/socket"),
}


@pytest.mark.parametrize("kind", LISTENING)
def test_a_server_on_this_machine_is_not_reached(worker, kind, tmp_path):
    needs(worker, "no network", "own process namespace")
    family, sort, address = LISTENING[kind]
    with closing(socket.socket(family, sort)) as server:
        if isinstance(address, str):
            address = address.format(pid=os.getpid(), folder=tmp_path)
        server.bind(address)
        server.listen()
        body = f"import socket\ns = socket.socket({int(family)}, {int(sort)})\ns.settimeout(2)\n"
        body += f"try:\n    s.connect({server.getsockname()!r})\nexcept OSError:\n    pass\n"
        body += "else:\n    raise RuntimeError('in')"
        assert_full_marks(judged(worker, rightly(body)))


OUTSIDE = {
    "TCP": "socket.create_connection(('192.0.2.1', 80), 2)",
    "a name": "socket.getaddrinfo('example.org', 80)",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
    "TCP over IPv6": "socket.create_connection(('2001:db8::1', 80), 2)",
    "a page": "__import__('urllib.request').request.urlopen('http://example.org', timeout=2)",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
}


@pytest.mark.parametrize("call", OUTSIDE.values(), ids=OUTSIDE)
def test_nothing_outside_is_reached(worker, call):
    needs(worker, "no network")
    body = f"import socket\ntry:\n    {call}\nexcept OSError:\n    pass\nelse:\n    raise RuntimeError('out')"
    assert_full_marks(judged(worker, rightly(body)))


def test_a_server_that_is_left_listening_is_gone(worker):
    needs(worker, "no network")
    serve = "import os, socket\nif os.fork() == 0:\n    os.setsid()\n    s = socket.socket()\n"
    judged(
        worker,
        rightly(serve + "    s.bind(('127.0.0.1', 4242))\n    s.listen()\n    s.accept()\n    os._exit(0)"),
    )
    call = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 4242), 2)\nexcept OSError:\n    pass\n"
    assert_full_marks(judged(worker, rightly(call + "else:\n    raise RuntimeError('still there')")))


# ---- 17: forging what comes back -----------------------------------------------------------------------------------

FORGE = """
import os, stat, time

FRAMES = {frames}

def channels():
    for number in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                yield number
        except OSError:
            pass

def count_elements(shape):
    for number in channels():
        for frame in FRAMES:
            try:
                os.write(number, frame)
            except OSError:
                pass
    {then}
"""


def frame(body: bytes) -> bytes:
    return struct.pack(">Q", len(body)) + body


def observation(**facets: object) -> bytes:
    body = {"facets": facets, "raised": [], "error": "", "your turn": False, "forbidden": []}
    return json.dumps(body).encode()


NOTHING = ["record", "changes", []]
STANDING = {"inputs": NOTHING, "global state": NOTHING}
TENSOR = ["tensor", "Tensor", [3], "float32", "cpu", "float32", "AAAAAAAAAAAAAAAA", ["NoneType", None]]


def seen(value: object) -> bytes:
    return observation(**STANDING, value=value)


def _tensor(**changed: object) -> list:
    names = ("tensor", "kind", "shape", "dtype", "device", "stored", "data", "state")
    return [changed.get(name, part) for name, part in zip(names, TENSOR)]


def _deep(levels: int) -> list:
    found: list = ["int", "0x6"]
    for _ in range(levels):
        found = ["record", "tuple", [[["int", "0x0"], found]]]
    return found


FORGED = {
    "nothing observed": observation(),
    "only what is always observed": observation(**STANDING),
    "no such word": b'{"verdict": "passed", "points": 1}',
    "passed": b"passed",
    "true": b"true",
    "nothing": b"",
    "a list": b"[]",
    "raised like nothing": observation(**STANDING).replace(b'"raised": []', b'"raised": [""]'),
    "a text that equals all": seen(["str", "*"]),
    "None": seen(None),
    "a kind that is not known": seen(["anything", 1]),
    "too short": seen(["tensor"]),
    "a NaN": seen(["float", "nan"]),
    "NaN sizes": seen(_tensor(shape=[float("nan")])),
    "negative sizes": seen(_tensor(shape=[-1])),
    "huge sizes": seen(_tensor(shape=[10**12])),
    "another dtype than it says": seen(_tensor(stored="int32")),
    "no dtype": seen(_tensor(dtype="nn", stored="nn")),
    "private dtype": seen(_tensor(dtype="__doc__", stored="__doc__")),
    "bits": seen(_tensor(dtype="bits8", stored="bits8")),
    "quantized": seen(_tensor(dtype="quint8", stored="quint8")),
    "no values": seen(_tensor(stored=None, data=None)),
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch /tmp/pwned'\ntR.",
    "no UTF-8": b"\xff\xfe\xff",
    "a million brackets": b"[" * 1_000_000,
    "deep nesting": seen(_deep(55)),
    "deeper nesting": seen(_deep(200)),
    "many parts": b"[" + b"[]," * 500_000 + b"[]]",
    "a number of a million digits": seen(["int", "0x" + "f" * 1_000_000]),
    "a number that is none": seen(["int", "0x"]),
    "an infinite number": b'{"facets": Infinity}',
    "a dtype without a name": seen(["record", "dtype", []]),
    "a word of 2 MB": seen(["record", "x" * 2_000_000, []]),
    "an exception of 2 MB": observation(**STANDING).replace(
        b'"raised": []', b'"raised": ["' + b"x" * 2_000_000 + b'"]'
    ),
    "keys that can't be hashed": seen(["record", "dict", [[TENSOR, TENSOR], [NOTHING, NOTHING]]]),
    "half a surrogate": seen(["str", "\ud800"]),
}


def forged(worker, frames: list[bytes], then: str = "time.sleep(1e6)"):
    source = FORGE.format(frames=[f"frames[{i}]" for i in range(len(frames))], then=then)
    for i, content in enumerate(frames):
        source = source.replace(f"'frames[{i}]'", _short_source(content))
    with short_of_time(worker, wall=1.5, total=2), within(30):
        return judged(worker, source)


def _short_source(content: bytes) -> str:
    """An expression for these bytes; frames of megabytes repeat themselves."""
    packed = base64.b85encode(zlib.compress(content)).decode()
    return f"__import__('zlib').decompress(__import__('base64').b85decode({packed!r}))"


@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED)
def test_a_forged_observation_gets_nothing(worker, body):
    report = forged(worker, [frame(body), frame(b"passed")] * 10)
    assert_no_marks(report)
    assert len(report.summary) < 10_000 and len(report.error) < 10_000
    assert all(len(facet.got) < 10_000 for facet in report.facets)


LENGTHS = {
    "the largest length": struct.pack(">Q", 2**64 - 1),
    "a terabyte": struct.pack(">Q", 2**40) + b"x" * 1000,
    "half a length": b"\0\0\0",
    "more than comes": struct.pack(">Q", 1000) + b"{}",
    "empty frames without end": bytes(8) * 10_000,
    "noise": bytes(range(256)) * 100,
}


@pytest.mark.parametrize("content", LENGTHS.values(), ids=LENGTHS)
def test_a_length_that_lies_costs_that_answer_alone(worker, content):
    assert_no_marks(forged(worker, [content]))


def test_forged_frames_before_the_true_ones_gain_nothing(worker):
    assert_no_marks(forged(worker, [frame(observation(**STANDING)), frame(b"")], then="return sum(shape)"))


def test_a_flood_of_small_pieces_does_not_outlast_the_deadline(worker):
    flood = "while True:\n        for number in channels():\n            os.write(number, b'\\0')\n"
    flood += "            time.sleep(0.01)"
    with within(20):
        report = forged(worker, [struct.pack(">Q", 10**6)], then=flood)
    assert_no_marks(report)
    assert "did not finish in time" in report.summary


def test_a_channel_that_is_closed_or_never_read_costs_that_answer_alone(worker):
    for then in ("[os.close(n) for n in channels()]", "os.closerange(0, 256)"):
        assert_no_marks(forged(worker, [], then=then))


def test_the_grader_does_not_wait_for_an_answer_that_takes_nothing(worker):
    """The cases of this exercise are larger than what a socket holds."""
    ours, theirs = socket.socketpair()
    with ours, theirs, short_of_time(worker, wall=0.5), within(10):
        conversation = judging.Conversation(
            ours, judging.Task(bytes(10**8), (), frozenset(), frozenset()), worker.limits
        )
        with pytest.raises(judging.CouldNotRun, match="did not finish in time"):
            conversation.run(answer_from(exercise("count_elements"), exercise("count_elements").reference))


def test_nothing_that_comes_out_is_unpickled():
    source = inspect.getsource(protocol.decode_observation) + inspect.getsource(protocol._decode)
    source += inspect.getsource(judging.Conversation)
    assert "pickle" not in source and "torch.load" not in source


def test_a_digest_of_the_staged_modules_is_the_same_after_all_attacks(worker, staged):
    """Last in this file."""
    again = judging.stage(staged.parent / "again")
    digests = [
        hashlib.sha256(b"".join(p.read_bytes() for p in sorted(folder.rglob("*.py")))).hexdigest()
        for folder in (staged, again)
    ]
    assert digests[0] == digests[1]
