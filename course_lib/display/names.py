"""What the tensors of a picture are called: as the call spells them, or by the caller's variables."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from types import FrameType

import executing
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Module


def as_typed(count: int, caller: FrameType) -> list[str]:
    """The arguments of the running call as source text; numbers where the source is not to be had."""
    call = executing.Source.executing(caller).node
    arguments = call.args if isinstance(call, ast.Call) else []
    if len(arguments) == count and not any(isinstance(argument, ast.Starred) for argument in arguments):
        return [ast.unparse(argument) for argument in arguments]
    return [f"tensor {i}" for i in range(1, count + 1)]


def variables(caller: FrameType) -> Iterator[tuple[str, Tensor]]:
    """The caller's tensors and those of its modules, each with its name; `_` names are left out."""
    local = dict(caller.f_locals)
    visible = [*local.items(), *((name, x) for name, x in caller.f_globals.items() if name not in local)]
    named = [(name, value) for name, value in visible if not name.startswith("_")]
    yield from ((name, value) for name, value in named if isinstance(value, Tensor))
    for name, value in named:
        if isinstance(value, Module):
            members = itertools.chain(value.named_parameters(), value.named_buffers())
            yield from ((f"{name}.{key}", x) for key, x in members)


class Names:
    """Names of tensors by identity. A result is known by the node that made it, so that a copy of the handle,
    which is what autograd saves, has the name as well.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        self._names: dict[object, str] = {}
        self.tensors: list[tuple[str, Tensor]] = list(named)  # kept alive, so that an id stays one tensor's
        for name, x in self.tensors:
            if (key := _key(x)) is not None:
                self._names.setdefault(key, name)

    def of(self, x: Tensor) -> str:
        """The name of `x`, or nothing."""
        return self._names.get(_key(x), "")

    def of_results(self, node: Node) -> list[str]:
        """The names of the results of `node`, in the order in which they were found."""
        return [name for key, name in self._names.items() if isinstance(key, tuple) and key[0] is node]


def _key(x: Tensor) -> object:
    """None for a tensor that autograd refuses to look at: a view made invalid by an edit in place."""
    try:
        return id(x) if x.grad_fn is None else (x.grad_fn, x.output_nr)
    except RuntimeError:
        return None
