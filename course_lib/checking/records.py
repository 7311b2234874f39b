"""Plain, immutable records of what an answer produced.

An observation must not change when the learner's object changes later, must not run the learner's methods
(`__eq__`, `__repr__`, `__len__` may lie), and must be able to cross a process boundary. So values are copied
into records by their exact type; whatever is not known becomes the name of its type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

LARGEST = 10_000_000  # elements; an expanded result can claim more than any memory holds
DEEPEST = 20  # levels of nesting

SCALARS = (type(None), bool, int, float, complex, str, bytes)
STATEFUL = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True, eq=False)
class TensorRecord:
    """A tensor's class, shape, dtype, device and values; `data` is None where there are none (meta, too large)."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    data: torch.Tensor | None
    state: Any = None  # (requires_grad, grad, hooks) when the tensor was an input


@dataclass(frozen=True)
class Record:
    """A container or an opaque object: `kind` names its type, `items` holds (key, record) pairs."""

    kind: str
    items: tuple[tuple[Any, Any], ...] = ()


def freeze(value: Any, *, with_state: bool = False, depth: int = 0) -> Any:
    """Copy `value` into plain records. `with_state` adds what autograd keeps on tensors (inputs are judged by it)."""

    def inner(item: Any) -> Any:
        return freeze(item, with_state=with_state, depth=depth + 1)

    kind = type(value)
    if kind in SCALARS:
        return value
    if depth > DEEPEST:
        return Record("nested too deep")
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():  # a subclass answers no question itself
            return _freeze_tensor(value, with_state)
    if kind is np.ndarray:
        return TensorRecord("ndarray", value.shape, str(value.dtype), "numpy", _array_values(value))
    if isinstance(value, (tuple, list, set, frozenset)) and _is_trusted(kind):
        return Record(_sequence_name(kind), _sequence_items(value, inner))
    if isinstance(value, dict) and _is_trusted(kind):
        return Record(kind.__name__, tuple((_key(k), inner(v)) for k, v in dict.items(value)))
    if isinstance(value, nn.Module):
        return _freeze_module(value, with_state)
    if isinstance(value, STATEFUL):  # what they hold is what they would save
        return Record(kind.__name__, (("state", inner(value.state_dict())),))
    if isinstance(value, torch.Generator):
        return Record("Generator", (("state", inner(value.get_state())),))
    if kind in NAMED:
        return Record(kind.__name__, (("name", str(value)),))
    if isinstance(value, np.generic):
        return Record(f"numpy.{kind.__name__}", (("value", value.item()),))
    return Record(kind.__name__)


def _is_trusted(kind: type) -> bool:
    """Builtin containers, named tuples and the standard library's dicts: iterating them runs no learner's code."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind.__iter__ is tuple.__iter__
    return kind in (tuple, list, set, frozenset, dict, torch.Size) or kind.__module__ == "collections"


def _sequence_name(kind: type) -> str:
    return "tuple" if kind is torch.Size else kind.__name__


def _sequence_items(value: Any, inner: Any) -> tuple:
    if isinstance(value, (set, frozenset)):
        return tuple(("item", record) for record in sorted(map(inner, value), key=repr))
    if hasattr(value, "_fields"):
        return tuple((name, inner(item)) for name, item in zip(value._fields, value))
    return tuple((index, inner(item)) for index, item in enumerate(value))


def _key(key: Any) -> Any:
    return key if type(key) in SCALARS else str(freeze(key))


def _freeze_tensor(tensor: torch.Tensor, with_state: bool) -> TensorRecord:
    kind = "Tensor" if type(tensor) in (torch.Tensor, nn.Parameter) else type(tensor).__name__
    if tensor.layout is not torch.strided:
        kind = f"{kind} ({tensor.layout})"
    return TensorRecord(
        kind,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        str(tensor.device),
        _tensor_values(tensor),
        _autograd_state(tensor) if with_state else None,
    )


def _tensor_values(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.is_meta or tensor.numel() > LARGEST or type(tensor) not in (torch.Tensor, nn.Parameter):
        return None
    with torch.no_grad():
        values = tensor.detach()
        if values.layout is not torch.strided:
            values = values.to_dense()
        return values.resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)


def _array_values(array: np.ndarray) -> torch.Tensor | None:
    if array.size > LARGEST or array.dtype.kind not in "biufc":
        return None
    return torch.from_numpy(np.array(array, order="C", copy=True))


def _autograd_state(tensor: torch.Tensor) -> Record:
    grad = tensor.grad if tensor.is_leaf else None
    hooks = len(tensor._backward_hooks or ())
    kept = (("requires_grad", tensor.requires_grad), ("grad", freeze(grad)), ("hooks", hooks))
    return Record("autograd", kept)


def hook_count(module: nn.Module) -> int:
    """Hooks of every kind on this one module."""
    return sum(len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks"))


def _freeze_module(module: nn.Module, with_state: bool) -> Record:
    """A module by what it holds: mode, hooks, parameters and buffers, by qualified name."""
    modes = [(f"{name or 'root'}.training", m.training) for name, m in module.named_modules()]
    hooks = [(f"{name or 'root'}.hooks", hook_count(m)) for name, m in module.named_modules()]
    tensors = [*module.named_parameters(), *module.named_buffers()]
    frozen = [(name, _freeze_tensor(tensor, with_state)) for name, tensor in tensors]
    return Record(type(module).__name__, tuple(modes + hooks + frozen))


def tensors_in(value: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    """(path, tensor) for every tensor in nested lists, tuples, dicts and modules."""
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, nn.Module):
        named = [*value.named_parameters(), *value.named_buffers()]
        return [(f"{path}.{name}", tensor) for name, tensor in named]
    if isinstance(value, dict):
        entries = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        entries = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return []
    return [found for inner, item in entries for found in tensors_in(item, inner)]
