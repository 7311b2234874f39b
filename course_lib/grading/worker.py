"""The process that runs learners' code. It holds no reference, no misconception, no grade, and one case at a time.

It is started from a copy of the few modules that it needs (see `staging`), imports PyTorch once, and then forks a
child for each answer: a clean process in a few milliseconds. The child shuts itself in, takes the answer's source and
one case after the other from the grader, and sends back what it saw.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from course_lib.checking.answer import Answer
from course_lib.checking.judge import CouldNotRun, load, observe_case, traced_calls
from course_lib.checking.trial import quarantine
from course_lib.grading import sandbox
from course_lib.grading.protocol import Ended, encode_observation, receive, send, unpickled_case
from course_lib.grading.sandbox import Limits

USED_BY_ANSWERS = (  # slow to import, and never needed at once
    "torch.utils.data",
    "torch.utils.checkpoint",
    "torch.profiler",
    "torch.distributed",
    "torch.distributed._tools.mem_tracker",
    "torch.export",
    "torch._dynamo",
)
RUN, END = b"run", b"end"
PATIENCE = 5.0  # seconds for the last processes of an answer to be gone


def main(control: socket.socket, setting: dict[str, Any], active: list[str]) -> None:
    """Fork a child for each channel that comes through the control socket, until its other end is closed.

    `active` names the protections that the process has already.
    """
    for name in USED_BY_ANSWERS:
        with suppress(ImportError):
            importlib.import_module(name)
    torch.set_num_threads(1)
    control.sendall(b"ready")
    place = Place(Path(setting["staged"]), Path(setting["folder"]), Limits(**setting["limits"]))
    _serve(control, place, active)


@dataclass(frozen=True)
class Place:
    """Where answers run: what they may import, the folder that is theirs, and their limits."""

    staged: Path
    folder: Path
    limits: Limits


def _serve(control: socket.socket, place: Place, active: list[str]) -> None:
    child, status = 0, 0
    while True:
        request, fds, _, _ = socket.recv_fds(control, 3, 1)
        if not request:  # the grader is gone, and nobody waits for the answer that may be running
            return _end(child) if child else None
        if request == RUN:
            child = _fork(socket.socket(fileno=fds[0]), control, place, active)
        elif child:
            child, status = 0, _end(child)
        if request == END:
            control.sendall(str(status).encode())


def _fork(channel: socket.socket, control: socket.socket, place: Place, active: list[str]) -> int:
    capped = sandbox.fresh_folder(place.folder, place.limits)
    sandbox.fresh_folder(Path("/dev/shm"), place.limits)
    if not capped:
        sandbox.empty(place.folder)
    child = os.fork()
    if child:
        channel.close()
        return child
    try:
        control.close()
        protections = active + (["limited disk"] if capped else [])
        run_answer(channel, partial(_shut_in, channel.fileno(), place, protections))
    finally:
        os._exit(0)


def _shut_in(channel: int, place: Place, active: list[str]) -> list[str]:
    """Leave everything behind but the channel and a folder; the protections that took effect."""
    _become_alone(channel, place.folder)
    readable = [*sandbox.system_files(), place.staged]
    active = active + sandbox.restrict(readable, [place.folder, *sandbox.devices()], place.limits)
    return list(dict.fromkeys(active))


def _become_alone(channel: int, folder: Path) -> None:
    """A session of its own, no open file but the channel, an empty environment and an empty home."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.closerange(3, channel)
    os.closerange(channel + 1, 1024)
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "OMP_NUM_THREADS")}
    os.environ.clear()
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "MPLCONFIGDIR": str(folder)}
    os.environ.update(kept, HOME=str(folder), TMPDIR=str(folder), KINETO_LOG_LEVEL="99", **caches)
    tempfile.tempdir = None
    os.chdir(folder)


def _end(child: int) -> int:
    """Kill the child, if it has not ended, and everything that it started; how it ended."""
    for kill in (os.killpg, os.kill):  # it may not lead its own session yet
        with suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    if os.getpid() == 1:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # whatever left the session: nothing else lives in this namespace
    _, status = os.waitpid(child, 0)
    _end_orphans(time.monotonic() + PATIENCE)
    return os.waitstatus_to_exitcode(status)


def _end_orphans(deadline: float) -> None:
    """What left the child's session has become ours as its parents ended, here or wherever orphans can be adopted."""
    while _reap() and time.monotonic() < deadline:
        for orphan in sandbox.children():
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
        time.sleep(0.001)


def _reap() -> bool:
    """Whether this process still has children; those that have ended are let go."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


# ---- in the child ------------------------------------------------------------------------------------------------


def run_answer(channel: socket.socket, shut_in: Callable[[], list[str]]) -> None:
    """Take what to do, load the answer, and observe it on each case that comes, until none comes any more."""
    try:
        task = SimpleNamespace(**pickle.loads(receive(channel)))
        _stand_in_for_module(task.run)
        source = Answer(**json.loads(receive(channel)))
        send(channel, json.dumps({"protections": shut_in()}).encode())
    except Exception:  # nothing of the learner's has run: this is our fault, and must not look like theirs
        send(channel, json.dumps({"fault": traceback.format_exc()}).encode())
        return
    with suppress(Ended):
        function = _loaded(channel, source)
        while function is not None:
            _observe_one(channel, task, function, receive(channel))


def _stand_in_for_module(scenario: Callable) -> None:
    """What came by value still names its module; whoever pickles it, as `torch.save` does, looks it up there."""
    package, _, _ = scenario.__module__.rpartition(".")
    for name in (package, scenario.__module__):
        sys.modules.setdefault(name, ModuleType(name))
    vars(sys.modules[scenario.__module__]).update(
        {name: item for name, item in scenario.__globals__.items() if not name.startswith("__")}
    )


def _loaded(channel: socket.socket, answer: Answer) -> Any:
    """What the answer defines, or None where it does not load; the grader is told."""
    try:
        function = load(answer)
    except CouldNotRun as failure:
        send(channel, json.dumps(failure.facts).encode())
        return None
    send(channel, b"{}")
    return function


def _observe_one(channel: socket.socket, task: Any, function: Any, message: bytes) -> None:
    process = os.getpid()
    with quarantine() as printed:
        seen = observe_case(task, function, unpickled_case(message))
    forbidden = traced_calls(task, function, unpickled_case(message)) if task.forbids else []
    if os.getpid() != process:
        os._exit(0)  # a fork that the answer made, and that came back from it
    send(channel, encode_observation(seen, forbidden))
    send(channel, printed.getvalue().encode(errors="replace"))
