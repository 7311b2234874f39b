"""Observers: what is looked at after an answer ran. Each turns a trial into a plain record.

The same observer reads the reference, the learner's answer and every misconception.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from course_lib.checking.compare import describe, difference
from course_lib.checking.recorders import (
    HostReadRecorder,
    MoveRecorder,
    OpRecorder,
    SavedTensorsRecorder,
    Spy,
)
from course_lib.checking.records import Record, freeze, hook_count, tensors_in
from course_lib.checking.trial import Trial, versions


@dataclass(frozen=True)
class Observer:
    """Reads one facet of a trial. `rtol` and `atol` apply to floating-point values in the record."""

    name: str
    read: Callable[[Trial], Any]
    rtol: float = 0
    atol: float = 0
    recorders: tuple[type, ...] = ()
    describe: Callable[[Any], str] = describe
    precise: bool = False  # the reference's values are computed in float64


def _facts(**items: Any) -> Record:
    return Record("facts", tuple((name.replace("_", " "), value) for name, value in items.items()))


def _tensors(trial: Trial) -> list[tuple[str, torch.Tensor]]:
    return tensors_in(trial.result)


def _per_tensor(read: Callable[[torch.Tensor], Any]) -> Callable[[Trial], Record]:
    return lambda trial: Record("facts", tuple((path or "result", read(t)) for path, t in _tensors(trial)))


# ---- standing: observed for every exercise ---------------------------------------------------------------------


def inputs() -> Observer:
    """The inputs that the call changed, as they are afterwards: values, `.grad`, `requires_grad`, mode and hooks."""
    return Observer("inputs", _changed_inputs, 1e-5, 1e-7)


def _changed_inputs(trial: Trial) -> Record:
    pairs = zip(_flat_inputs(trial.inputs_before), _flat_inputs(trial.inputs_after))
    names = (*trial.names[: len(trial.case.args)], *trial.case.kwargs)
    changes = tuple((name, after) for name, (before, after) in zip(names, pairs) if difference(before, after))
    return Record("changes", changes)


def _flat_inputs(frozen: Record) -> list:
    """The records of the positional and then of the keyword arguments."""
    return [item for _, group in frozen.items for _, item in group.items]


def global_state() -> Observer:
    """Default dtype and device, grad mode, threads, autocast, random state: what the call left changed."""
    return Observer("global state", lambda trial: trial.state)


# ---- the result --------------------------------------------------------------------------------------------------


def value(rtol: float = 0, atol: float = 0, precise: bool = False) -> Observer:
    """Type, shape, dtype, device and values; exact unless a tolerance is given. NaN equals NaN.

    With `precise` the expected values come from the reference run on float64 copies of the inputs, so that
    the tolerance measures the answer's rounding alone.
    """
    return Observer("value", lambda trial: freeze(trial.result), rtol, atol, precise=precise)


def strides() -> Observer:
    """Strides of each result tensor; dimensions of size 1 and empty tensors have no stride that matters."""

    def read(tensor: torch.Tensor) -> Any:
        pairs = zip(tensor.shape, tensor.stride())
        return freeze(tuple(None if size == 1 or tensor.numel() == 0 else stride for size, stride in pairs))

    return Observer(
        "strides", _per_tensor(read), describe=lambda record: describe(record).replace("None", "any")
    )


def storage_offset() -> Observer:
    """Where in its storage each result tensor starts, in elements; empty tensors start nowhere."""
    return Observer("storage offset", _per_tensor(lambda t: t.storage_offset() if t.numel() else None))


def shares_storage() -> Observer:
    """For each result tensor the inputs whose storage it shares. Empty tensors have no storage to share."""

    def read(trial: Trial) -> Record:
        sources = [(name, t) for name, item in trial.named_inputs() for _, t in tensors_in(item)]
        return _per_tensor(lambda tensor: freeze(_sharing(tensor, sources)))(trial)

    return Observer("shares storage with", read, describe=_describe_sharing)


def _sharing(tensor: torch.Tensor, sources: list[tuple[str, torch.Tensor]]) -> tuple[str, ...] | None:
    if tensor.numel() == 0 or tensor.is_meta:
        return None
    address = tensor.untyped_storage().data_ptr()
    return tuple(name for name, source in sources if source.untyped_storage().data_ptr() == address)


def _describe_sharing(record: Record) -> str:
    if not record.items:
        return "no tensor returned"
    shared = [", ".join(item for _, item in sharing.items) if sharing else "" for _, sharing in record.items]
    return "; ".join(names or "nothing" for names in shared)


# ---- autograd ----------------------------------------------------------------------------------------------------


def requires_grad() -> Observer:
    """Whether each result tensor is connected to the graph."""
    return Observer("requires grad", _per_tensor(lambda t: t.requires_grad))


def autograd() -> Observer:
    """`requires_grad`, `is_leaf` and the chain of `grad_fn` names (along the first input) of each result tensor."""

    def read(tensor: torch.Tensor) -> Record:
        return _facts(
            requires_grad=tensor.requires_grad, is_leaf=tensor.is_leaf, chain=freeze(_chain(tensor.grad_fn))
        )

    return Observer("autograd", _per_tensor(read))


def _chain(node: Any) -> tuple[str, ...]:
    names = []
    while node is not None:
        names.append(type(node).__name__)
        node = next((parent for parent, _ in node.next_functions if parent is not None), None)
    return tuple(names)


def gradients(order: int = 1, rtol: float = 1e-5, atol: float = 1e-6) -> Observer:
    """Gradients of every input that requires grad, of first or first and second order.

    Each is taken under a random cotangent and under an expanded (stride-0) one; a backward that edits its
    cotangent shows too. Uses `torch.autograd.grad`, so no `.grad` is touched.
    """
    return Observer(
        "gradients" if order == 1 else "second-order gradients",
        lambda trial: _gradients(trial, order),
        rtol,
        atol,
    )


def _gradients(trial: Trial, order: int) -> Record:
    sources = [
        t for _, item in trial.named_inputs() for _, t in tensors_in(item) if t.requires_grad and t.is_leaf
    ]
    outputs = [tensor for _, tensor in _tensors(trial) if tensor.requires_grad]
    if not outputs or not sources:
        return Record("not connected to the graph")
    generator = torch.Generator().manual_seed(1)
    kinds = {"random": _random_cotangent, "expanded": _expanded_cotangent}
    pulled = ((name, _pull_back(outputs, sources, make, generator, order)) for name, make in kinds.items())
    return Record("gradients", tuple(pulled))


def _random_cotangent(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)


def _expanded_cotangent(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """What `.sum().backward()` sends: one number, stride 0."""
    return torch.full((), 0.75, dtype=tensor.dtype).expand(tensor.shape)


def _pull_back(outputs, sources, make: Callable, generator: torch.Generator, order: int) -> Any:
    """Vector-Jacobian products, and for order 2 the gradient of a random combination of them."""
    cotangents = [make(tensor, generator) for tensor in outputs]
    kept = freeze(cotangents)
    try:
        with torch.enable_grad():
            first = torch.autograd.grad(
                outputs, sources, cotangents, retain_graph=True, create_graph=order == 2, allow_unused=True
            )
            found = {"first": freeze(first), "cotangent after": freeze(cotangents) if order == 1 else kept}
            if order == 2:
                found["second"] = freeze(_second_order(first, sources, generator))
    except Exception as error:  # the learner's own backward may raise anything
        return Record("raised", (("type", type(error).__name__),))
    return Record("facts", tuple(found.items()))


def _second_order(first, sources, generator: torch.Generator) -> Any:
    pairs = [
        (grad, _random_cotangent(grad, generator))
        for grad in first
        if grad is not None and grad.requires_grad
    ]
    if not pairs:
        return None
    grads, weights = zip(*pairs)
    return torch.autograd.grad(grads, sources, weights, retain_graph=True, allow_unused=True)


def saved_tensors() -> Observer:
    """Shape, dtype and bytes of what was saved for the backward pass, in any order."""
    return Observer(
        "saved for backward",
        lambda trial: freeze(tuple(sorted(trial.logs[SavedTensorsRecorder].saved))),
        recorders=(SavedTensorsRecorder,),
    )


def version_counters() -> Observer:
    """How many in-place edits each input tensor saw during the call."""

    def read(trial: Trial) -> Any:
        return freeze(
            tuple(after - before for before, after in zip(trial.versions_before, versions(trial.case)))
        )

    return Observer("in-place edits of inputs", read)


# ---- cost --------------------------------------------------------------------------------------------------------


def ops() -> Observer:
    """The aten operators dispatched, in order."""
    return Observer(
        "operators", lambda trial: freeze(tuple(trial.logs[OpRecorder].ops)), recorders=(OpRecorder,)
    )


def allocated_bytes() -> Observer:
    """Bytes of all storages that the call allocated, temporaries included."""
    return Observer(
        "bytes allocated", lambda trial: trial.logs[OpRecorder].allocated, recorders=(OpRecorder,)
    )


def host_syncs() -> Observer:
    """How often the host asked for values: `.item()`, `float()`, `if tensor:`, printing, `.tolist()`, `.cpu()`."""

    def read(trial: Trial) -> int:
        scalars = trial.logs[OpRecorder].ops.count("aten._local_scalar_dense.default")
        return scalars + trial.logs[HostReadRecorder].count

    return Observer("host syncs", read, recorders=(OpRecorder, HostReadRecorder))


def device_moves() -> Observer:
    """Each move asked for: method, device, non_blocking. The meta device stands in for cuda."""
    return Observer(
        "device moves", lambda trial: freeze(trial.logs[MoveRecorder].moves), recorders=(MoveRecorder,)
    )


# ---- modules and spies -------------------------------------------------------------------------------------------


def registered() -> Observer:
    """Names, shapes and flags of the parameters, buffers and hooks of the module that the call returned."""
    return Observer("registered", lambda trial: freeze(registered_in(trial.result)))


def registered_in(module: Any) -> Any:
    """The same as plain facts, for a scenario that returns more than the module."""
    if not isinstance(module, nn.Module):
        return module
    saved = set(module.state_dict())
    return {
        "parameters": {name: (tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()},
        "buffers": {name: (tuple(b.shape), name in saved) for name, b in module.named_buffers()},
        "hooks": {name or "root": hook_count(m) for name, m in module.named_modules() if hook_count(m)},
        "training": module.training,
    }


def calls() -> Observer:
    """The methods called on each Spy among the inputs, in order, with their arguments."""

    def read(trial: Trial) -> Record:
        spies = [(name, item.calls) for name, item in trial.named_inputs() if isinstance(item, Spy)]
        return Record("facts", tuple(spies))

    return Observer("calls", read)


STANDING = (inputs(), global_state())
