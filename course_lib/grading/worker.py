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
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
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
    "torch.export",
    "torch._dynamo",
)
RUN, END = b"run", b"end"


def main(control_fd: int, staged: str, folder: str, active: list[str]) -> None:
    """Fork a child for each channel that comes through the control socket, until its other end is closed.

    `active` names the protections that the process has already.
    """
    control = socket.socket(fileno=control_fd)
    for name in USED_BY_ANSWERS:
        with suppress(ImportError):
            importlib.import_module(name)
    torch.set_num_threads(1)
    control.sendall(b"ready")
    _serve(control, Path(staged), Path(folder), active)


def _serve(control: socket.socket, staged: Path, folder: Path, active: list[str]) -> None:
    child, status = 0, 0
    while True:
        request, fds, _, _ = socket.recv_fds(control, 3, 1)
        if not request:
            return
        if request == RUN:
            child = _fork(socket.socket(fileno=fds[0]), control, staged, folder, active)
        elif child:
            child, status = 0, _end(child)
        if request == END:
            control.sendall(str(status).encode())


def _fork(
    channel: socket.socket, control: socket.socket, staged: Path, folder: Path, active: list[str]
) -> int:
    limits = Limits()
    capped = sandbox.fresh_folder(folder, limits)
    sandbox.fresh_folder(Path("/dev/shm"), limits)
    child = os.fork()
    if child:
        channel.close()
        return child
    try:
        control.close()
        protections = active + (["limited disk"] if capped else [])
        run_answer(channel, partial(_shut_in, channel.fileno(), folder, staged, limits, protections))
    finally:
        os._exit(0)


def _shut_in(channel: int, folder: Path, staged: Path, limits: Limits, active: list[str]) -> list[str]:
    """Leave everything behind but the channel and a folder; the protections that took effect."""
    _become_alone(channel, folder)
    readable = [*sandbox.system_files(), staged]
    return active + sandbox.restrict(readable, [folder, *sandbox.devices()], limits)


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
    """How the child ended, or None's place 0 where it has not; then everything that is left is killed."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if os.getpid() == 1:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # whatever left the session: nothing else lives in this namespace
    _, status = os.waitpid(child, 0)
    while _reap():
        pass
    return os.waitstatus_to_exitcode(status)


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


# ---- in the child ------------------------------------------------------------------------------------------------


def run_answer(channel: socket.socket, shut_in: Callable[[], list[str]]) -> None:
    """Take what to do, load the answer, and observe it on each case that comes, until none comes any more."""
    try:
        task = SimpleNamespace(**pickle.loads(receive(channel)))
        source = Answer(**json.loads(receive(channel)))
        send(channel, json.dumps({"protections": shut_in()}).encode())
    except Exception:  # nothing of the learner's has run: this is our fault, and must not look like theirs
        send(channel, json.dumps({"fault": traceback.format_exc()}).encode())
        return
    with suppress(Ended):
        function = _loaded(channel, source)
        while function is not None:
            _observe_one(channel, task, function, receive(channel))


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
