"""Judging one answer in isolation: the learner's code runs in a worker, the comparison happens here.

A `Worker` is a process that never sees an answer of the course. For each exercise it gets the code that runs and
observes (the scenario and the observers) and one case at a time; what comes back is compared with the reference's
observations by the engine that `check` uses.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from course_lib.checking import Answer, Exercise, Report, judge
from course_lib.checking.compare import describe
from course_lib.checking.judge import CouldNotRun, Fault, Observation, Run, grader_fault
from course_lib.checking.observe import STANDING
from course_lib.checking.records import tensors_in
from course_lib.checking.trial import Case
from course_lib.grading.protocol import (
    CaseToBuild,
    Ended,
    Malformed,
    OutOfTime,
    decode_observation,
    pickled,
    receive,
    send,
)
from course_lib.grading.sandbox import Limits
from course_lib.grading.worker import END, RUN

ROOT = Path(__file__).resolve().parents[2]
COMPARING = threading.Lock()  # the engine looks at one answer at a time; answers run beside each other
START = 120.0  # seconds until a worker has imported PyTorch, on a busy machine
NOBODY = 65534
PRINTED = 4_000  # characters of what an answer printed that go into its report
STARTER = """
import json, socket, sys
control = socket.socket(fileno=int(sys.argv.pop()))
setting = json.loads(control.recv(2**16))  # not an argument: those can be read by all
sys.path.insert(0, setting["staged"])
from course_lib.grading import sandbox
kept = [setting["staged"], setting["folder"], sys.prefix, sys.base_prefix, sys.exec_prefix]
active = sandbox.seclude(setting["hidden"], kept)  # before PyTorch is imported, which starts threads
from course_lib.grading.worker import main
main(control, setting, active)
"""

STAGED = (  # what a learner's code may import of the course; nothing here knows an exercise or an answer
    "checking",
    "display",
    "grading/__init__.py",
    "grading/protocol.py",
    "grading/sandbox.py",
    "grading/worker.py",
    "reference/__init__.py",
    "reference/sources.py",
    "ranks.py",
)
STAND_IN = '''"""The course as a graded answer sees it: nothing to check with, and no answer to fall back on."""


def passing(answer):
    return answer


def check(*anything):
    return None


hint = solution = predict = progress = check
'''


class NoWorker(Exception):
    """The process that runs learners' code can't be started: a fault of ours or of the machine."""


def stage(folder: Path) -> Path:
    """Copy the modules that a worker needs to `folder`, without any that holds an answer."""
    package = folder / "course_lib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    for name in STAGED:
        source, target = ROOT / "course_lib" / name, package / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)
    return folder


@dataclass(frozen=True)
class Task:
    """An exercise as a worker gets it: what runs and observes, and the cases, each by itself."""

    setup: bytes
    cases: tuple[tuple[str, bytes], ...]  # each with its label
    facets: frozenset[str]  # what every observation holds
    standing: frozenset[str]  # what it holds even where the answer raised


@cache
def task_of(exercise: Exercise) -> Task:
    """Pickled once, sent for every submission."""
    observers = [
        replace(observer, describe=describe) for observer in exercise.observers
    ]  # words are made here
    setup = {
        "parameters": exercise.parameters,
        "recorders": exercise.recorders,
        "observers": observers,
        "run": exercise.run,
        "forbids": exercise.forbids,
    }
    cases = enumerate(exercise.fresh_cases())
    return Task(
        pickled(setup),
        tuple((case.label, _case(exercise, index, case)) for index, case in cases),
        frozenset(observer.name for observer in exercise.observers),
        frozenset(observer.name for observer in STANDING),
    )


def _case(exercise: Exercise, index: int, case: Case) -> bytes:
    """A case as it is; one whose inputs hang on a graph can't be copied, so the code that builds it goes instead."""
    inputs = [tensor for _, tensor in tensors_in([list(case.args), case.kwargs])]
    if all(tensor.is_leaf for tensor in inputs):
        return pickled(case)
    return pickled(CaseToBuild(exercise.builder, exercise.seed, index))


class Worker:
    """One process that runs learners' code, one answer at a time. Use it as a context manager."""

    def __init__(self, staged: Path, limits: Limits | None = None) -> None:
        self.staged, self.limits = staged, limits or Limits()
        self.protections: tuple[str, ...] = ()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def judge(self, exercise: Exercise, answer: Answer | None) -> Report:
        """What `check` would say of this answer. Raises NoWorker where the process itself is lost."""
        with COMPARING:
            try:
                return judge(exercise, answer, self._run)
            except NoWorker:
                raise
            except Exception:  # comparing one answer must not cost the others theirs
                return grader_fault(exercise, traceback.format_exc())

    # ---- the process -------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Take a new process in the place of one that was lost."""
        self.stop()
        self.start()

    def start(self) -> Worker:
        """Start the process and wait until it is ready. Raises NoWorker."""
        self._folder = Path(tempfile.mkdtemp(prefix="answers_", dir=self.staged.parent))
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START)
        with theirs, tempfile.TemporaryFile() as complaints:  # a pipe that nobody reads would fill up
            self._process = self._launch(theirs, complaints)
            theirs.close()
            self._ask(json.dumps(self._setting()).encode())
            if not self._is_ready():
                complaints.seek(0)
                problem = complaints.read().decode(errors="replace")[-2000:]
                raise NoWorker(f"The process that runs the answers did not start.\n{problem}")
        return self

    def _launch(self, control: socket.socket, complaints: Any) -> subprocess.Popen:
        user = _as_nobody()
        if user:
            os.chown(self._folder, NOBODY, NOBODY)
        return subprocess.Popen(
            [sys.executable, "-I", "-c", STARTER, str(control.fileno())],
            pass_fds=[control.fileno()],
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "OMP_NUM_THREADS": "1",
                "KINETO_LOG_LEVEL": "99",
            },
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            **user,
        )

    def _setting(self) -> dict[str, Any]:
        return {
            "staged": str(self.staged),
            "folder": str(self._folder),
            "hidden": _places_with_answers(),
            "limits": asdict(self.limits),
        }

    def _is_ready(self) -> bool:
        try:
            return self._control.recv(16) == b"ready"
        except OSError:
            return False

    def stop(self) -> None:
        """End the process and everything that it started."""
        self._control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, request: bytes, *fds: int) -> None:
        try:
            socket.send_fds(self._control, [request], list(fds))
        except OSError as error:
            raise NoWorker("The process that runs the answers is gone.") from error

    # ---- one answer ---------------------------------------------------------------------------------------------

    def _run(self, exercise: Exercise, answer: Answer) -> Run:
        task = task_of(exercise)
        with _released(COMPARING):
            return self._run_alone(task, answer)

    def _run_alone(self, task: Task, answer: Answer) -> Run:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._ask(RUN, theirs.fileno())
            conversation = Conversation(ours, task, self.limits)
            try:
                return conversation.run(answer)
            except Ended:
                raise conversation.ended(self._end()) from None
            finally:
                self.protections = conversation.protections or self.protections
                self._end()

    def _end(self) -> int:
        """Kill what is left of the answer's processes; how the first one ended (negative: by that signal)."""
        self._ask(END)
        try:
            return int(self._control.recv(16))
        except (OSError, ValueError) as error:
            raise NoWorker("The process that runs the answers is gone.") from error


class Conversation:
    """The exchange with the child that runs one answer."""

    def __init__(self, channel: socket.socket, task: Task, limits: Limits) -> None:
        self.channel, self.task, self.limits = channel, task, limits
        self.turn = self.deadline = time.monotonic() + limits.total
        self.protections: tuple[str, ...] = ()
        self.where = "while it was defined"

    def run(self, answer: Answer) -> Run:
        """Raises CouldNotRun where the answer gives no observations, and Ended where its process is gone."""
        try:
            self._send(self.task.setup)
            self._send(json.dumps(asdict(answer)).encode())
            self._read_protections()
            self._read_load()
            return self._read_cases()
        except OutOfTime:
            most = f"{self.limits.wall:g} seconds for a case and {self.limits.total:g} for all"
            summary = f"Your code did not finish in time, {self.where}. It has {most}."
            raise CouldNotRun(summary) from None
        except Malformed:
            summary = "What came back can't be judged: your code interfered with the process that runs it."
            raise CouldNotRun(summary) from None

    def _send(self, message: bytes) -> None:
        """Begins a turn: what comes back until the next one must come before this turn's deadline."""
        self.turn = min(time.monotonic() + self.limits.wall, self.deadline)
        send(self.channel, message, self.turn)

    def _next(self) -> bytes:
        return receive(self.channel, self.turn)

    def _read_protections(self) -> None:
        """The last message before any of the learner's code runs."""
        first = json.loads(self._next())
        if "fault" in first:
            raise Fault(first["fault"])
        self.protections = tuple(first["protections"])

    def _read_load(self) -> None:
        try:
            facts: Any = json.loads(self._next())
            failure = {str(key): value for key, value in facts.items()}
        except (ValueError, AttributeError) as error:
            raise Malformed("no JSON") from error
        if failure:
            attempted = failure.get("attempted") is not False
            texts = {key: str(failure.get(key, "")) for key in ("summary", "error")}
            raise CouldNotRun(texts["summary"], attempted, error=texts["error"])

    def _read_cases(self) -> Run:
        observations, printed, forbidden = [], [], []
        for label, payload in self.task.cases:
            self.where = f"in the case '{label}'"
            self._send(payload)
            seen, calls = decode_observation(self._next())
            self._demand_all_facets(seen)
            observations.append(seen)
            forbidden += calls
            printed.append(self._next()[: 4 * PRINTED].decode(errors="replace"))
        return Run(observations, "".join(printed)[:PRINTED], forbidden)

    def _demand_all_facets(self, seen: Observation) -> None:
        """What is not there can't be compared; leaving it out must not be a way to be right."""
        demanded = self.task.standing if seen.raised else self.task.facets
        if demanded - seen.facets.keys():
            raise Malformed("an observation without " + " and ".join(sorted(demanded - seen.facets.keys())))

    def ended(self, status: int) -> CouldNotRun:
        """What to say when the process is gone."""
        how = f"was killed by signal {-status}" if status < 0 else f"ended by itself with exit code {status}"
        return CouldNotRun(f"The process that ran your code {how}, {self.where}.")


@contextmanager
def _released(lock: threading.Lock) -> Iterator[None]:
    lock.release()
    try:
        yield
    finally:
        lock.acquire()


def _places_with_answers() -> list[str]:
    """Where this machine keeps answers to the course: here, and in whatever copies are installed."""
    installed = [Path(entry) / "course_lib" for entry in sys.path if entry]
    places = [ROOT / "course_lib", ROOT / "solutions", ROOT / ".git", *installed]
    return sorted({str(place.resolve()) for place in places if place.is_dir()})


def _as_nobody() -> dict[str, Any]:
    """Root's limits on processes do not bind, so root lends the worker another user, where that user can run Python."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not _nobody_can_run():
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


@cache
def _nobody_can_run() -> bool:
    try:
        trial = subprocess.run(
            [sys.executable, "-I", "-c", "import torch.version"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            env={},
            capture_output=True,
        )
    except OSError:
        return False
    return trial.returncode == 0
