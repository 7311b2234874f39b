"""Running one answer on one case, and putting everything back as it was."""

from __future__ import annotations

import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from course_lib.checking.records import Record, freeze

SEED = 20_260_101  # every case starts from the same random state, whatever the notebook did before
PRINTED = 4_000  # characters of output kept: the first and the last half


@dataclass(frozen=True)
class Case:
    """One set of inputs, named in plain words."""

    label: str
    args: tuple
    kwargs: dict[str, Any]


def case(label: str, /, *args: Any, **kwargs: Any) -> Case:
    """Inputs for one call of the answer. Build them afresh each time: the answer may change them."""
    return Case(label, args, kwargs)


@dataclass
class Trial:
    """A case after the answer ran on it."""

    case: Case
    names: tuple[str, ...]  # parameter names, for saying which input is meant
    result: Any = None
    raised: BaseException | None = None
    inputs_before: Any = None
    inputs_after: Any = None
    versions_before: tuple[int, ...] = ()
    state: Record | None = None
    logs: dict[type, Any] = field(default_factory=dict)

    def named_inputs(self) -> list[tuple[str, Any]]:
        return [*zip(self.names, self.case.args), *self.case.kwargs.items()]


class CappedText(io.TextIOBase):
    """Takes any amount of output and keeps the beginning and the end."""

    def __init__(self, limit: int = PRINTED) -> None:
        self._half, self._head, self._tail, self._length = limit // 2, "", "", 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._length += len(text)
        room = self._half - len(self._head)
        self._head += text[:room]
        self._tail = (self._tail + text[room:])[-self._half :]
        return len(text)

    def getvalue(self) -> str:
        dropped = self._length - len(self._head) - len(self._tail)
        middle = f"\n... {dropped} characters left out ...\n" if dropped else ""
        return self._head + middle + self._tail


def global_state() -> dict[str, Any]:
    """The switches of PyTorch that code can leave changed, all of them restorable."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.get_deterministic_debug_mode(),  # 0 off, 1 warns, 2 raises
        "anomaly detection": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def _restore(state: dict[str, Any]) -> None:
    torch.set_default_dtype(state["default dtype"])
    if torch.get_default_device() != state["default device"]:
        torch.set_default_device(state["default device"])
    torch.set_grad_enabled(state["grad mode"])
    torch.set_num_threads(state["threads"])
    if torch.get_deterministic_debug_mode() != (mode := state["deterministic algorithms"]):  # slow to import
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
    torch.autograd.set_detect_anomaly(state["anomaly detection"])
    torch.set_autocast_enabled("cpu", state["autocast"])


def _seed() -> None:
    torch.default_generator.manual_seed(SEED)  # torch.manual_seed would change the learner's GPUs as well
    np.random.seed(SEED)
    random.seed(SEED)


@contextmanager
def quarantine() -> Iterator[CappedText]:
    """One thread, known state, output and warnings caught; on leaving, the kernel is as it was."""
    before = global_state()
    generators = torch.get_rng_state(), np.random.get_state(), random.getstate()
    printed = CappedText()
    profiler, tracer = sys.getprofile(), sys.gettrace()
    try:
        torch.set_num_threads(1)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        with redirect_stdout(printed), redirect_stderr(printed), warnings.catch_warnings():
            warnings.showwarning = _print_warning
            warnings.simplefilter("always")
            yield printed
    finally:
        _restore_hooks(profiler, tracer)
        _restore(before)
        torch.set_rng_state(generators[0])
        np.random.set_state(generators[1])
        random.setstate(generators[2])


def _restore_hooks(profiler, tracer) -> None:
    """Only if the answer replaced them: setting them anew would end a profiler that runs around us."""
    if sys.getprofile() is not profiler:
        sys.setprofile(profiler)
    if sys.gettrace() is not tracer:
        sys.settrace(tracer)


def _print_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Warnings reach the learner without the file name, which in a notebook is a hash."""
    sys.stderr.write(f"{category.__name__}: {message}\n")


def run_case(
    answer: Callable, case: Case, names: tuple[str, ...], recorders: list[type], scenario: Callable
) -> Trial:
    """Run `scenario(answer, *args, **kwargs)` and note what happened. Only KeyboardInterrupt passes through."""
    trial = Trial(case, names)
    trial.inputs_before = freeze((case.args, case.kwargs), with_state=True)
    trial.versions_before = versions(case)
    _seed()
    before, generator = global_state(), torch.get_rng_state()
    with ExitStack() as stack:
        trial.logs = {recorder: stack.enter_context(recorder()) for recorder in recorders}
        try:
            trial.result = scenario(answer, *case.args, **case.kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a learner's exit() must not end the kernel
            trial.raised = error
    trial.state = _state_changes(before, global_state(), generator)
    _restore(before)
    trial.inputs_after = freeze((case.args, case.kwargs), with_state=True)
    return trial


def versions(case: Case) -> tuple[int, ...]:
    """Version counters of the tensor inputs: each in-place edit adds one."""
    tensors = [value for value in (*case.args, *case.kwargs.values()) if isinstance(value, torch.Tensor)]
    return tuple(-1 if tensor.is_inference() else tensor._version for tensor in tensors)


def _state_changes(before: dict, after: dict, generator: torch.Tensor) -> Record:
    """What the run left changed, by name; nothing is the usual case."""
    changed = [(name, f"{old} became {after[name]}") for name, old in before.items() if after[name] != old]
    if not torch.equal(generator, torch.get_rng_state()):
        changed.append(("random state", "consumed"))
    return Record("changes", tuple(changed))
