"""Several processes with `torch.distributed` between them, started from a notebook on one machine.

`launch(function, *args, ranks=2)` runs `function(*args)` in each process and says what became of every one of
them, whatever the function does: return, raise, die, wait for ever, print without end.

On Linux a rank is a fork of this process, which takes a tenth of a second; elsewhere it is a fresh interpreter
that rebuilds the function from its source. The ranks talk over the loopback interface (gloo) and meet at a file.
Each keeps a journal of the collectives that it enters. From the journals the launcher sees at once, without a
clock, that a rank waits for one that will never come.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import importlib
import io
import json
import linecache
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

CAN_FORK = sys.platform == "linux"  # macOS has fork, but its system libraries do not survive it
SEES_SLEEP = sys.platform == "linux"  # /proc tells whether a thread runs
OUTPUT_SHOWN = 4_000  # characters of a rank's output that are kept: the first and the last half
OUTPUT_LIMIT = 64 * 2**20  # bytes after which a rank that prints without end is stopped
LOOK_EVERY = 0.004  # seconds between two looks at the journals
LOOKS_ASLEEP = 15  # so many looks in a row must find a rank asleep before it counts as waiting
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
OP_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather_into_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
}
NOT_PLAIN = (
    "TypeError: what the function returned can't leave its process; "
    "return tensors, numbers, strings, or lists, tuples and dicts of them"
)
NOISE = re.compile(r"\[Gloo\] |\[[IWE]\d{4} \d\d:")
POINT_TO_POINT = ("send", "recv")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
NO_COLLECTIVE = ("wait_tensor", "wrap_tensor_autograd", "monitored_barrier")


# ---- what became of the ranks -----------------------------------------------------------------------------------


class RanksFailed(RuntimeError):
    """Not every rank returned. The message says what happened in which."""


class RankRaised(RanksFailed):
    """An exception came out of the function in at least one rank."""


class RankDied(RanksFailed):
    """The process of at least one rank ended in the middle: a signal, or `os._exit`."""


class Deadlock(RanksFailed):
    """A rank waits in a collective that another rank will never enter."""


class OutOfTime(RanksFailed):
    """The time limit was over, or the output without end."""


@dataclass(frozen=True)
class Collective:
    """One call of a collective or of send or recv, in the order in which a rank made them."""

    name: str  # as in torch.distributed, e.g. "all_reduce"
    numel: int  # elements of the tensors that this rank handed in
    members: tuple[int, ...]  # the ranks of its process group
    peer: int | None = None  # the other rank, of a send or recv


@dataclass(frozen=True)
class RankReport:
    """What became of one rank. `end` is returned, raised, died, waits or out of time; `detail` says more."""

    rank: int
    end: str
    detail: str
    printed: str
    collectives: tuple[Collective, ...]


@dataclass(frozen=True)
class Outcome:
    """What a launch came to: one report per rank and, where all ranks returned, their results."""

    ranks: tuple[RankReport, ...]
    values: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def results(self) -> list[Any]:
        """What each rank returned, in order. Raises RankRaised, RankDied, Deadlock or OutOfTime otherwise."""
        failure = next(
            (kind for end, kind in FAILURES.items() if any(r.end == end for r in self.ranks)), None
        )
        if failure:
            raise failure(f"not every rank returned\n{self.summary()}")
        return list(self.values)

    def summary(self) -> str:
        """One line per rank, and the lines of its traceback."""
        return "\n".join(f"rank {r.rank} {ending(r)}" for r in self.ranks)

    def __repr__(self) -> str:
        printed = [
            f"[rank {r.rank}] {line}"
            for r in self.ranks
            for line in r.printed.rstrip("\n").split("\n")
            if line
        ]
        return "\n".join([*printed, self.summary()])


FAILURES = {"died": RankDied, "raised": RankRaised, "out of time": OutOfTime, "waits": Deadlock}


def ending(report: RankReport) -> str:
    """How one rank ended, as the rest of a sentence that begins with its name."""
    return (
        f"{report.end}{' ' if report.end == 'waits' else ': '}{report.detail}"
        if report.detail
        else report.end
    )


# ---- the launcher ------------------------------------------------------------------------------------------------


def launch(function: Callable, *args: Any, ranks: int = 2, time_limit: float = 30.0) -> Outcome:
    """Run `function(*args)` in `ranks` processes that form one gloo process group, and say what became of them.

    In each process `torch.distributed` is initialized, RANK, LOCAL_RANK and WORLD_SIZE are set as torchrun sets
    them, PyTorch uses one thread, and the random state is that of the caller: the same in every rank.
    A result may hold tensors, numbers, strings and the usual containers.
    After `time_limit` seconds, or as soon as the ranks can only wait for ever, all of them are ended, with the
    processes that they started. Nothing is left behind: no process, no port, no file.
    """
    _import_ahead()
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    running: list[_Process] = []
    try:
        start = _forker(folder, ranks, time_limit) if CAN_FORK else _spawner(folder, ranks, time_limit)
        running += [start(rank, function, args) for rank in range(ranks)]
        limit = _wait(running, time_limit)
        for process in running:
            process.end()
        return _outcome(running, limit)
    finally:
        for process in running:
            process.end()
        shutil.rmtree(folder, ignore_errors=True)


def _import_ahead() -> None:
    """DDP imports this when it is first built: once here, instead of in every forked rank."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")


def _wait(running: list[_Process], time_limit: float) -> str:
    """Until nothing more can happen; the empty string, or which limit was reached."""
    deadline = time.monotonic() + time_limit
    while True:
        for process in running:
            process.look()
        if all(process.is_over for process in running) or _is_stuck(running):
            return ""
        if any(process.printed_bytes() > OUTPUT_LIMIT for process in running):
            return f"stopped after printing more than {OUTPUT_LIMIT // 2**20} MB"
        if time.monotonic() > deadline:
            return f"stopped after {time_limit:g} s"
        time.sleep(LOOK_EVERY)


def _outcome(running: list[_Process], limit: str) -> Outcome:
    values, reports = [], []
    for process in running:
        end, detail = process.ending(limit, running)
        if end == "returned":
            try:
                values.append(torch.load(process.folder / f"{process.rank}.result", weights_only=True))
            except pickle.UnpicklingError:
                end, detail = "raised", NOT_PLAIN
        reports.append(
            RankReport(process.rank, end, detail, process.printed(), tuple(map(_collective, process.ops)))
        )
    return Outcome(tuple(reports), tuple(values))


def _collective(op: dict) -> Collective:
    return Collective(op["op"], op["numel"], tuple(op["members"]), op["peer"])


class _Process:
    """A rank as the launcher sees it: its process, its journal and its output."""

    def __init__(self, rank: int, folder: Path, pid: int, popen: subprocess.Popen | None = None) -> None:
        self.rank, self.folder, self.pid, self._popen = rank, folder, pid, popen
        self.ops: list[dict] = []
        self.final: dict | None = None  # the journal's last entry, or how the process ended
        self.waiting, self.looks_asleep, self._read, self._ended = False, 0, 0, False

    @property
    def is_over(self) -> bool:
        return self.final is not None

    def look(self) -> None:
        """Read what is new in the journal, see whether the process still runs, and whether it sleeps."""
        code = None if self.is_over else self._exit_code()
        new = self._new_entries()
        for entry in new:
            self._take(entry)
        if code is not None and self.final is None:
            self.final = {"end": "died", "detail": _exit_text(code)}
        self.looks_asleep = self.looks_asleep + 1 if not new and self._is_asleep() else 0

    def _take(self, entry: dict) -> None:
        if "op" in entry:
            self.ops.append(entry)
        elif "wait" in entry:
            self.waiting = entry["wait"]
        else:
            self.final = entry

    def _new_entries(self) -> list[dict]:
        with open(self.folder / f"{self.rank}.journal", "rb") as journal:
            journal.seek(self._read)
            whole, _, _ = journal.read().rpartition(b"\n")
        self._read += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.split(b"\n") if line]

    def _exit_code(self) -> int | None:
        """None while it runs. The process is not reaped yet, so that its group can't be taken for another."""
        if not hasattr(os, "waitid"):
            return self._popen.poll()
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _is_asleep(self) -> bool:
        """Whether no thread of the process runs or could run. Where that can't be seen: whether time passed."""
        try:
            tasks = list(Path(f"/proc/{self.pid}/task").iterdir())
            states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
        except OSError:
            return not SEES_SLEEP
        return bool(states) and set(states) <= {"S"}

    @property
    def sleeps(self) -> bool:
        return self.looks_asleep >= (LOOKS_ASLEEP if SEES_SLEEP else 20 * LOOKS_ASLEEP)

    def printed_bytes(self) -> int:
        return (self.folder / f"{self.rank}.output").stat().st_size

    def printed(self) -> str:
        """What the rank printed: its beginning and its end. Gloo's own messages are left out."""
        with open(self.folder / f"{self.rank}.output", "rb") as file:
            size, half = self.printed_bytes(), OUTPUT_SHOWN // 2
            if size <= OUTPUT_SHOWN:
                return _without_noise(file.read().decode(errors="replace"))
            head = file.read(half)
            file.seek(-half, io.SEEK_END)
            tail = file.read(half)
        middle = f"\n... {size - 2 * half} characters left out ...\n"
        return _without_noise(head.decode(errors="replace") + middle + tail.decode(errors="replace"))

    def ending(self, limit: str, running: list[_Process]) -> tuple[str, str]:
        if self.final:
            return self.final["end"], self.final.get("detail", "")
        reason = _why_unjoined(self, running)
        if reason and (not limit or self.sleeps):
            return "waits", reason
        return "out of time", limit

    def end(self) -> None:
        """End the process and all that it started, however often this is called."""
        if self._ended:
            return
        self._ended = True
        for pid in [*_descendants(self.pid), self.pid]:
            _kill(pid)
        if self._popen:
            self._popen.wait()
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


def _descendants(pid: int) -> list[int]:
    """Processes that this one started, and theirs, also those that left its group. Only Linux tells."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _kill(pid: int) -> None:
    """A process and, where it leads one, its group."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    return f"the process was killed by {signal.Signals(-code).name}"


def _without_noise(text: str) -> str:
    """Lines that PyTorch's C++ parts write: gloo counts its connections, glog prefixes time and thread."""
    return "".join(line for line in text.splitlines(keepends=True) if not NOISE.match(line))


# ---- who waits for whom ------------------------------------------------------------------------------------------


def _is_stuck(running: list[_Process]) -> bool:
    """Whether the ranks that are left all sleep in a call that can't be joined any more."""
    left = [process for process in running if not process.is_over]
    if not all(process.sleeps and _why_unjoined(process, running) for process in left):
        return False
    return all(process.waiting or _never_joined(process, running) for process in left)


def _why_unjoined(process: _Process, running: Sequence[_Process]) -> str:
    """The first call of this rank that another rank has not joined, in words; empty where all are joined."""
    for position, op in enumerate(process.ops):
        for other in _missing(process, position, running):
            return f"in {op['op']}, its call number {position + 1}, which {_says(other, op)}"
    return ""


def _never_joined(process: _Process, running: Sequence[_Process]) -> bool:
    """Whether a call of this rank lacks a rank that is over, or that made a different call in its place."""
    return any(
        other.is_over or _place(process, position, other) is not None
        for position in range(len(process.ops))
        for other in _missing(process, position, running)
    )


def _says(other: _Process, op: dict) -> str:
    name = f"rank {other.rank}"
    if other.is_over:
        return f"{name} never entered: it {other.final['end']}"
    return f"{name} did not enter"


def _missing(process: _Process, position: int, running: Sequence[_Process]) -> list[_Process]:
    """The ranks that have not made the call that belongs to this one."""
    op = process.ops[position]
    others = [op["peer"]] if op["op"] in POINT_TO_POINT else op["members"]
    found = [other for other in running if other.rank in others and other is not process]
    return [other for other in found if not _joins(process, position, other)]


def _joins(process: _Process, position: int, other: _Process) -> bool:
    op = process.ops[position]
    if op["op"] in POINT_TO_POINT:
        answer = "send" if op["op"] == "recv" else "recv"
        sent = sum(o["op"] == op["op"] and o["peer"] == other.rank for o in process.ops[: position + 1])
        return sum(o["op"] == answer and o["peer"] in (process.rank, None) for o in other.ops) >= sent
    counterpart = _place(process, position, other)
    return counterpart is not None and all(counterpart[key] == op[key] for key in ("op", "root"))


def _place(process: _Process, position: int, other: _Process) -> dict | None:
    """The call that `other` made in the same place of the same group's sequence of collectives."""
    op = process.ops[position]
    if op["op"] in POINT_TO_POINT:
        return None
    index = len(_of_group(process.ops[:position], op["group"]))
    theirs = _of_group(other.ops, op["group"])
    return theirs[index] if index < len(theirs) else None


def _of_group(ops: Sequence[dict], group: str) -> list[dict]:
    return [op for op in ops if op["group"] == group and op["op"] not in POINT_TO_POINT]


# ---- inside a rank -----------------------------------------------------------------------------------------------


class _Journal(TorchDispatchMode):
    """Writes down each collective when it is entered: also those that DDP and FSDP make, inside C++."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, **entry: Any) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional"):
            self._note(func, args)
        return func(*args, **(kwargs or {}))

    def _note(self, func, args: tuple) -> None:
        raw = func.overloadpacket.__name__.strip("_")
        name = OP_NAMES.get(raw, raw.removesuffix("_any_source"))
        if name in NO_COLLECTIVE:
            return
        group, members = _group_of(args)
        number = next((arg for arg in args if type(arg) is int), None)  # a peer or a root, where there is one
        has_peer = name in POINT_TO_POINT and not raw.endswith("_any_source")
        self.write(
            op=name,
            numel=_numel(args),
            group=group,
            members=members,
            peer=members[number] if has_peer else None,
            root=number if name in ROOTED else None,
        )


def _group_of(args: tuple) -> tuple[str, list[int]]:
    """The process group among the arguments of an operator: its name and its ranks."""
    for arg in args:
        with contextlib.suppress(Exception):
            by_name = (
                dist.distributed_c10d._resolve_process_group
            )  # private, as is unbox; the world where they fail
            group = by_name(arg) if isinstance(arg, str) else dist.ProcessGroup.unbox(arg)
            return group.group_name, list(dist.get_process_group_ranks(group))
    return "", list(range(dist.get_world_size()))


def _numel(args: tuple) -> int:
    """Elements of the last tensor argument that holds any: what this rank hands in."""
    sizes = [size for size in map(_elements, args) if size]
    return sizes[-1] if sizes else 0


def _elements(arg: Any) -> int:
    if isinstance(arg, torch.Tensor):
        return arg.numel()
    return sum(map(_elements, arg)) if isinstance(arg, (list, tuple)) else 0


@contextlib.contextmanager
def _waits_noted(journal: _Journal):
    """`work.wait()` says when it begins and ends, so that a rank that waits is told from one that pauses."""
    work_type = dist.distributed_c10d.Work
    original = work_type.wait

    def wait(work, *args: Any, **kwargs: Any) -> Any:
        journal.write(wait=True)
        try:
            return original(work, *args, **kwargs)
        finally:
            journal.write(wait=False)

    work_type.wait = wait
    try:
        yield
    finally:
        work_type.wait = original


def _run_rank(
    rank: int, ranks: int, folder: Path, time_limit: float, function: Callable, args: tuple
) -> None:
    """The whole life of a rank. Does not return: the launcher ends the process."""
    journal = _Journal(folder / f"{rank}.journal")
    try:
        _settle(rank, ranks, folder, time_limit)
        store = dist.FileStore(str(folder / "rendezvous"), ranks)
        forever = datetime.timedelta(seconds=time_limit + 3600)  # the launcher's limit comes first
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=forever)
        with _waits_noted(journal), journal:
            result = function(*args)
        torch.save(result, folder / f"{rank}.result")
        journal.write(end="returned")
    except BaseException as error:  # SystemExit and KeyboardInterrupt are ends like any other
        journal.write(end="raised", detail=_error_text(error))
    sys.stdout.flush()
    while True:  # what is still open stays open, so that the others wait instead of failing
        time.sleep(3600)


def _settle(rank: int, ranks: int, folder: Path, time_limit: float) -> None:
    """Make this process a rank: its threads, its output, its environment, and an end that needs no launcher."""
    torch.set_num_threads(1)  # first: OpenMP does not survive a fork otherwise
    sys.setprofile(None)
    sys.settrace(None)
    _end_without(os.getppid(), time_limit)
    output = os.open(folder / f"{rank}.output", os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = os.fdopen(output, "w", encoding="utf-8", errors="replace", buffering=1)
    warnings.showwarning = _print_warning
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        OMP_NUM_THREADS="1",
    )
    if sys.platform != "win32":
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK


def _end_without(launcher: int, time_limit: float) -> None:
    """End this rank when its launcher is gone: a kernel that is killed ends nothing itself."""

    def watch() -> None:
        deadline = time.monotonic() + time_limit + 10
        while os.getppid() == launcher and time.monotonic() < deadline:
            time.sleep(0.2)
        _kill(os.getpid())

    threading.Thread(target=watch, daemon=True).start()


def _print_warning(message, category, filename, lineno, file=None, line=None) -> None:
    sys.stderr.write(f"{category.__name__}: {message}\n")


def _error_text(error: BaseException) -> str:
    """The exception, and the lines of the function that led to it; those of PyTorch say little."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and f"{os.sep}torch{os.sep}" not in f.filename]
    lines = [f"\n    in {frame.name}: {frame.line}" for frame in own[-4:] if frame.line]
    message = "".join(traceback.format_exception_only(error)).strip()
    if "gloo" in message and "Connection" in message:  # the rest is a path, an address and a port
        message = f"{type(error).__name__}: the connection to another rank is closed"
    return message[:2000] + "".join(lines)


# ---- starting by fork --------------------------------------------------------------------------------------------


def _forker(folder: Path, ranks: int, time_limit: float) -> Callable:
    def start(rank: int, function: Callable, args: tuple) -> _Process:
        _make_files(folder, rank)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            pid = os.fork()
        if pid:
            return _Process(rank, folder, pid)
        try:
            os.setsid()
            _run_rank(rank, ranks, folder, time_limit, function, args)
        finally:
            os._exit(1)

    return start


def _make_files(folder: Path, rank: int) -> None:
    for kind in ("journal", "output"):
        (folder / f"{rank}.{kind}").touch()


# ---- starting afresh ---------------------------------------------------------------------------------------------


def _spawner(folder: Path, ranks: int, time_limit: float) -> Callable:
    """The function and its arguments go to the ranks in a file that only this launch writes and reads."""

    def start(rank: int, function: Callable, args: tuple) -> _Process:
        _make_files(folder, rank)
        if not rank:
            task = (function, args, torch.get_rng_state(), random.getstate())
            with open(folder / "task", "wb") as file:
                SourcePickler(file).dump(task)
        command = [
            sys.executable,
            "-m",
            "course_lib.ranks",
            str(folder),
            str(rank),
            str(ranks),
            str(time_limit),
        ]
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        popen = subprocess.Popen(command, env=environment, start_new_session=True)
        return _Process(rank, folder, popen.pid, popen)

    return start


class SourcePickler(pickle.Pickler):
    """Pickles functions and classes that no module holds, such as those of a notebook, by their source."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if not isinstance(value, (types.FunctionType, type)) or _is_importable(value):
            return NotImplemented
        source = _definition(value)
        if isinstance(value, type):
            return _run, (value.__name__, source, _names_read(value, source))
        return _Late, (value.__name__, source), _names_read(value, source), None, None, _give_names


def _is_importable(value: Callable) -> bool:
    found = sys.modules.get(value.__module__)
    if found is None or value.__module__ == "__main__":
        return False
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _functions_of(value: Callable) -> list[types.FunctionType]:
    members = vars(value).values() if isinstance(value, type) else [value]
    return [member for member in members if isinstance(member, types.FunctionType)]


def _definition(value: Callable) -> str:
    """The source of a function or class, from the cell or file in which it stands."""
    for function in _functions_of(value):
        source = "".join(linecache.getlines(function.__code__.co_filename))
        nodes = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == value.__name__]
        if nodes:
            return textwrap.dedent(ast.get_source_segment(source, nodes[-1], padded=True))
    raise ValueError(
        f"the source of {value.__name__} can't be found, which a new process needs: "
        "define it with `def` or `class` in a cell or in a module"
    )


def _names_read(value: Callable, source: str) -> dict[str, Any]:
    """The globals and the enclosing function's variables that its source names."""
    read = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    found: dict[str, Any] = {}
    for function in _functions_of(value):
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        found |= function.__globals__ | {
            name: cell.cell_contents for name, cell in cells if name != "__class__"
        }
    return {name: found[name] for name in read & found.keys() if found[name] is not value}


def remember_source(filename: str, source: str) -> None:
    """Let tracebacks and `launch` find the lines of code that stands in no file."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def _run(name: str, source: str, names: dict[str, Any]) -> Any:
    """What a definition defines, run with the names that it reads."""
    remember_source(f"<{name}>", source)
    exec(compile("from __future__ import annotations\n" + source, f"<{name}>", "exec"), names)
    return names[name]


class _Late:
    """A function whose source runs when it is first called: what it reads may refer to it in turn."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source, self.names, self.function = name, source, {}, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            self.function = _run(self.name, self.source, self.names)
        return self.function(*args, **kwargs)


def _give_names(late: _Late, names: dict[str, Any]) -> None:
    late.names = names


def _main(folder: str, rank: str, ranks: str, time_limit: str) -> None:
    with open(Path(folder) / "task", "rb") as file:
        function, args, torch_state, python_state = pickle.load(file)
    torch.set_rng_state(torch_state)
    random.setstate(python_state)
    _run_rank(int(rank), int(ranks), Path(folder), float(time_limit), function, args)


if __name__ == "__main__":
    _main(*sys.argv[1:])
