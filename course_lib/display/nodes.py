"""The live autograd graph as data: distinct nodes, the edges between them, and what each node saved.

Legend: a *node* is one operation's backward, a `grad_fn`; an *edge* leads from input `input` of a node to the
node that made that input, and gradients flow along it; an *AccumulateGrad* node stands for a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from course_lib.display.names import Names
from course_lib.display.strips import short

VALUE_WIDTH = 48
FREED = "saved tensors freed"
PACKED = "packed by a saved-tensor hook; unpacking would run it"
_PLAIN = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class Edge:
    """`target` is None for an input that needs no gradient; `output` is which result of `target` the input is."""

    source: int
    input: int
    target: int | None
    output: int


@dataclass(frozen=True)
class Graph:
    """Every node that is reachable, nearest first, and every edge, by the node's number and the input's."""

    nodes: list[Node]
    edges: list[Edge]


def read_graph(roots: Sequence[Node]) -> Graph:
    """What is reachable from `roots`. The graph is only looked at."""
    nodes = list(dict.fromkeys(roots))
    number = {node: i for i, node in enumerate(nodes)}
    edges = []
    for source, node in enumerate(nodes):  # grows while it is read
        for position, (target, output) in enumerate(node.next_functions):
            if target is not None and target not in number:
                number[target] = len(nodes)
                nodes.append(target)
            edges.append(Edge(source, position, number.get(target), output))
    return Graph(nodes, edges)


def is_leaf(node: Node) -> bool:
    """Whether the node accumulates into a leaf, which is then `node.variable`."""
    return node.name() == "torch::autograd::AccumulateGrad"


def operation(node: Node) -> str:
    """The node's name as `grad_fn` prints it."""
    return node.name().rpartition("::")[2]


def size_and_dtype(x: Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"


# ---- what a node saved ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unread:
    """Why something that a node saved cannot be looked at."""

    reason: str


def saved(node: Node, names: Names) -> list[str]:
    """What the node keeps for its backward, one line each: tensors first, what it left out last."""
    by_function = hasattr(type(node), "saved_tensors")
    found = _saved_by_function(node) if by_function else _saved_by_operation(node)
    freed = [FREED] if any(value == _Unread(FREED) for _, value in found) else []
    left = [(name, value) for name, value in found if value != _Unread(FREED)]
    return freed + [f"{name}: {_describe(value, node, names)}" for name, value in left]


def _saved_by_operation(node: Node) -> list[tuple[str, object]]:
    attributes = [name for name in dir(node) if name.startswith("_saved_")]
    found = [(_argument(name), _look(node, name)) for name in attributes]
    return sorted(found, key=lambda item: (item[1] is None, not _is_tensors(item[1])))


def _argument(attribute: str) -> str:
    return attribute.removeprefix("_saved_").replace("_sym_", " ")


def _saved_by_function(node: Node) -> list[tuple[str, object]]:
    """A custom Function: what it gave to `save_for_backward`, and what it put on `ctx`."""
    kept = _look(node, "saved_tensors")
    several = not isinstance(kept, _Unread)
    tensors = [(f"tensor {i}", x) for i, x in enumerate(kept)] if several else [("tensors", kept)]
    return [*tensors, *((f"ctx.{name}", value) for name, value in vars(node).items())]


def _look(node: Node, attribute: str) -> object:
    """The value, or the reason that autograd gives for not handing it out. A hook's packing is not undone."""
    try:
        packed = getattr(node, f"_raw_{attribute.lstrip('_')}", ())
        if any(
            getattr(one, "unpack_hook", None) for one in (packed if isinstance(packed, tuple) else [packed])
        ):
            return _Unread(PACKED)
        return getattr(node, attribute)
    except RuntimeError as refusal:
        return _Unread(_in_words(str(refusal)))


def _in_words(refusal: str) -> str:
    if "inplace operation" in refusal:
        return "edited in place since it was saved; backward will refuse"
    return FREED if "second time" in refusal else refusal.partition("\n")[0]


def _is_tensors(value: object) -> bool:
    several = value if isinstance(value, (tuple, list)) else [value]
    return any(isinstance(one, (Tensor, _Unread)) for one in several)


def _describe(value: object, node: Node, names: Names) -> str:
    if isinstance(value, _Unread):
        return value.reason
    if isinstance(value, Tensor):
        return f"{_role(value, node, names)}, {size_and_dtype(value)}"
    text = _several(value, node, names) if isinstance(value, (tuple, list)) else _plain(value)
    return text if len(text) <= VALUE_WIDTH else f"{text[: VALUE_WIDTH - 1]}…"


def _several(values: Sequence[object], node: Node, names: Names) -> str:
    texts = [_describe(value, node, names) for value in values]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _plain(value: object) -> str:
    """A value as Python spells it; an object by its type, because its own words may hold an address."""
    if isinstance(value, int) and value >= 2**63:
        value -= 2**64  # torch hands out a negative dim or index without its sign
    return str(value) if isinstance(value, _PLAIN) else f"an object of type {type(value).__name__}"


def _role(x: Tensor, node: Node, names: Names) -> str:
    """What a saved tensor is to its node, with its name where it has one; a constant needs no gradient."""
    return " = ".join(filter(None, [names.of(x), _part(x, node)])) or _constant(x)


def _constant(x: Tensor) -> str:
    readable = x.dim() == 0 and x.device.type == "cpu" and type(x) is Tensor
    return f"constant {short(x.item())}" if readable else "a constant"


def _part(x: Tensor, node: Node) -> str:
    if not x.requires_grad:
        return ""
    if x.grad_fn is node:
        return "the result"
    inputs = [str(i) for i, edge in enumerate(node.next_functions) if _made_by(x, *edge)]
    if inputs:
        return f"input {' and '.join(inputs)}"
    return "a leaf" if x.grad_fn is None else f"result of {operation(x.grad_fn)}"


def _made_by(x: Tensor, node: Node | None, output: int) -> bool:
    if node is None:
        return False
    if is_leaf(node):
        return node.variable is x
    return node is x.grad_fn and output == x.output_nr
