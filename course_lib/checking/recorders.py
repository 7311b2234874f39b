"""What is watched while an answer runs: operators, bytes, host syncs, device moves, saved tensors, calls on a spy.

A recorder is a context manager with a log. An observer names the recorders it needs; only those are entered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.checking.records import Record, freeze, tensors_in


class OpRecorder(TorchDispatchMode):
    """Every aten operator that is dispatched, and the bytes of every storage that one of them allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []
        self.allocated = 0
        self._known: dict[int, Any] = {}  # storages by address, kept alive so that no address is used twice

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.ops.append(str(func))
        self._meet((args, kwargs))
        result = func(*args, **kwargs)
        self.allocated += self._meet(result)
        return result

    def _meet(self, value: Any) -> int:
        """Remember the storages in `value`; the bytes of those seen for the first time."""
        fresh = {}
        for _, tensor in tensors_in(value):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                fresh[storage._cdata] = storage
        self._known.update(fresh)
        return sum(storage.nbytes() for storage in fresh.values())


class HostReadRecorder(TorchFunctionMode):
    """Counts the calls that hand a whole tensor to the host; on a CPU they dispatch no operator."""

    READS = ("tolist", "numpy", "cpu", "__array__")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__name__", "") in self.READS
        return func(*args, **(kwargs or {}))


class MoveRecorder(TorchFunctionMode):
    """Logs each `.to()`, `.cuda()`, `.cpu()` and `.pin_memory()`; the meta device stands in for cuda."""

    MOVES = ("to", "cuda", "cpu", "pin_memory")

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[tuple[str, str, bool]] = []  # method, device asked for, non_blocking

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in self.MOVES or not isinstance(args[0], torch.Tensor):
            return func(*_stand_in(args), **_stand_in(kwargs))
        self.moves.append((name, _asked_device(name, args, kwargs), bool(kwargs.get("non_blocking", False))))
        return self._move(func, name, args, kwargs)

    def _move(self, func, name: str, args, kwargs):
        tensor = args[0]
        if name == "cuda":
            return tensor.to("meta")
        if name == "cpu" and tensor.is_meta:
            return torch.zeros_like(tensor, device="cpu")
        if name == "pin_memory":
            return tensor
        return func(*_stand_in(args), **_stand_in(kwargs))


def _is_cuda(value: Any) -> bool:
    return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")


def _stand_in(value: Any) -> Any:
    """The same arguments with meta in the place of cuda."""
    if _is_cuda(value):
        return torch.device("meta")
    if type(value) is dict:
        return {key: _stand_in(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_stand_in(item) for item in value)
    return value


def _asked_device(name: str, args, kwargs) -> str:
    if name in ("cuda", "cpu"):
        return name
    asked = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, (str, torch.device))]
    asked += [value.device for value in args[1:] if isinstance(value, torch.Tensor)]
    return str(asked[0]) if asked else ""


class SavedTensorsRecorder:
    """What autograd keeps for the backward pass: shape, dtype and bytes of each saved tensor."""

    def __init__(self) -> None:
        self.saved: list[tuple[tuple[int, ...], str, int]] = []
        self._hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.saved.append((tuple(tensor.shape), str(tensor.dtype), tensor.untyped_storage().nbytes()))
        return tensor

    def __enter__(self) -> SavedTensorsRecorder:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hooks.__exit__(*exc_info)


class Spy:
    """An object that notes, in order, the methods called on it (and on what it wraps), with frozen arguments."""

    def __init__(self, name: str, wrapped: Any = None, log: list | None = None) -> None:
        self._name, self._wrapped = name, wrapped
        self._log = [] if log is None else log

    @property
    def calls(self) -> Record:
        """The calls so far, in order: `name.method` with its arguments."""
        return Record("list", tuple(enumerate(self._log)))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        target = getattr(self._wrapped, attribute, None)
        if self._wrapped is not None and not callable(target):
            return target

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = freeze((*args, *kwargs.items()))
            self._log.append(Record(f"{self._name}.{attribute}", arguments.items))
            return target(*args, **kwargs) if target else None

        return call
