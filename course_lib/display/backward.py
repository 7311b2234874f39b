"""`show_backward`: one run of backward, step by step, next to the graph that it walks.

The real engine runs, watched by hooks that are taken away again. It hands the gradients out instead of adding
them to `.grad`. A *cotangent* is the gradient of the output with respect to a node's result.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from course_lib.display.graph import (
    NODES_SHOWN,
    Sketch,
    drawing,
    heading,
    known_names,
    legend,
    plural,
    sheet,
    sketch_of,
    summary,
    why_no_graph,
    words,
)
from course_lib.display.names import Names, as_typed
from course_lib.display.nodes import Edge, Graph, is_leaf, operation, read_graph, size_and_dtype
from course_lib.display.strips import short
from course_lib.display.theme import LINE, MONO, Face, escape

ELEMENTS_SHOWN = 6
SEED = 0

Gradient = Tensor | None  # None: the node got or passed no gradient, which counts as zeros
Terms = dict[int, list[Gradient]]


@dataclass(frozen=True)
class Step:
    """One node's turn: the cotangent of each of its results, and what it passed to each input.

    `terms` are what arrived for each result, and a cotangent is their sum. At a leaf the cotangent is what
    `backward()` adds to `.grad`.
    """

    node: int
    cotangents: tuple[Gradient, ...]
    passed: tuple[Gradient, ...]
    terms: Terms


def show_backward(output: Tensor, *, names: dict[str, Tensor] | None = None) -> Face:
    """Run the backward of `output` and show each step: the cotangent that came in and what was passed on.

    A real scalar starts from 1, any other output from a random cotangent with a seed of its own. No `.grad`
    changes and the graph can be used again. Your own hooks run, as in any backward.
    Raises TypeError for what is not a tensor, and RuntimeError where `backward()` would.
    """
    caller = sys._getframe(1)
    typed = as_typed(1, caller)
    known = known_names([output], typed, names, caller)
    if output.grad_fn is None:
        return words([f"There is nothing to run. {why_no_graph(known, typed[0], output)}"])
    graph = read_graph([output.grad_fn])
    start = first_cotangent(output)
    steps = run(graph, output, start)
    sketch = sketch_of(graph, known, [known.of(output)], _numbers(graph, steps))
    record = Record(known.of(output), _start_in_words(output, start), graph, steps, sketch, known)
    return Face(_picture(record), _text(record))


# ---- the run -------------------------------------------------------------------------------------------


def first_cotangent(output: Tensor) -> Tensor:
    """What backward starts from: 1 for a real scalar, seeded numbers with one decimal for anything else."""
    if output.numel() == 1 and not output.is_complex():
        return torch.ones_like(output)
    generator = torch.Generator().manual_seed(SEED)
    dtype = torch.complex64 if output.is_complex() else torch.float32
    numbers = torch.view_as_real if output.is_complex() else torch.Tensor.detach
    drawn = torch.randn(output.shape, generator=generator, dtype=dtype)
    numbers(drawn).mul_(10).round_().div_(10)
    return drawn.to(output)


def run(graph: Graph, output: Tensor, cotangent: Tensor) -> list[Step]:
    """Every step of the engine over `graph`, the graph of `output`, in the order in which `backward()` takes them."""
    leaves = [i for i, node in enumerate(graph.nodes) if is_leaf(node)]
    edges = [GradientEdge(graph.nodes[i], 0) for i in leaves]
    ran: list[tuple[int, tuple[Gradient, ...], tuple[Gradient, ...]]] = []
    with _watched(graph, ran), _retained_grads_kept():
        grads = torch.autograd.grad(output, edges, cotangent, retain_graph=True, allow_unused=True)
    return _with_leaves(graph, ran, dict(zip(leaves, grads)))


@contextlib.contextmanager
def _watched(graph: Graph, ran: list) -> Iterator[None]:
    """Note each node that runs. The hooks are gone afterwards, whatever happens."""
    with contextlib.ExitStack() as hooks:
        for i, node in enumerate(graph.nodes):
            if not is_leaf(node):
                hooks.enter_context(node.register_hook(partial(_note, ran, i)))
        yield


def _note(ran: list, i: int, passed: tuple[Gradient, ...], cotangents: tuple[Gradient, ...]) -> None:
    """Copies, because the engine and careless functions go on to edit these tensors in place."""
    ran.append(
        (i, *(tuple(x if x is None else x.detach().clone() for x in xs) for xs in (cotangents, passed)))
    )


@contextlib.contextmanager
def _retained_grads_kept() -> Iterator[None]:
    """A result on which `retain_grad()` was called gets its `.grad` in any backward. Put the old one back."""
    alive = (x for x in gc.get_objects() if type(x) is Tensor)  # what a subclass answers is its own affair
    before = [(x, x.grad) for x in alive if x.retains_grad]
    try:
        yield
    finally:
        for x, grad in before:
            x.grad = grad


def _with_leaves(graph: Graph, ran: list, grads: dict[int, Gradient]) -> list[Step]:
    """The steps, with each leaf's as soon as all of its terms are there: that is when the engine takes it."""
    edges, missing = defaultdict(list), defaultdict(int)
    for edge in graph.edges:
        edges[edge.source].append(edge)
        missing[edge.target] += 1
    terms: dict[int, Terms] = defaultdict(lambda: defaultdict(list))
    steps = []
    for node, cotangents, passed in ran:
        steps.append(Step(node, cotangents, passed, terms[node]))
        for edge in edges[node]:
            terms[edge.target][edge.output].append(passed[edge.input])
            missing[edge.target] -= 1
            if edge.target in grads and not missing[edge.target]:
                steps.append(Step(edge.target, (grads[edge.target],), (), terms[edge.target]))
    return steps


# ---- in words ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """A run with everything that tells of it."""

    name: str
    start: str
    graph: Graph
    steps: list[Step]
    sketch: Sketch
    names: Names

    @property
    def title(self) -> tuple[str, str]:
        parts = [plural(len(self.steps), "step"), f"it starts from {self.start}"]
        if len(self.steps) > NODES_SHOWN:
            parts.append(f"the first {NODES_SHOWN} steps are shown")
        return f"backward of {self.name}", "; ".join(parts)

    def shown(self) -> list[tuple[int, Step]]:
        return list(enumerate(self.steps[:NODES_SHOWN], start=1))

    def number(self, node: int) -> int:
        return next(number for number, step in enumerate(self.steps, start=1) if step.node == node)

    def title_of(self, node: int) -> str:
        """The node's operation, with the leaf's name."""
        name = self.leaf_name(node) if is_leaf(self.graph.nodes[node]) else ""
        return " ".join(filter(None, [operation(self.graph.nodes[node]), name]))

    def leaf_name(self, node: int) -> str:
        return self.names.of(self.graph.nodes[node].variable) or "a leaf"


def _numbers(graph: Graph, steps: list[Step]) -> list[int]:
    """The step of each node; nodes that the engine left out come last."""
    order = dict.fromkeys([*(step.node for step in steps), *range(len(graph.nodes))])
    numbers = {node: number for number, node in enumerate(order, start=1)}
    return [numbers[i] for i in range(len(graph.nodes))]


def _start_in_words(output: Tensor, start: Tensor) -> str:
    value = value_text(start)
    if output.numel() == 1 and not output.is_complex():
        return value
    return f"a random cotangent (seed {SEED}), because the output is not a real scalar: {value}"


def value_text(x: Gradient) -> str:
    """A gradient by its values where they are few, by size and dtype otherwise."""
    if x is None:
        return "nothing"
    return _nested(x.tolist()) if _is_small(x) else size_and_dtype(x)


def _is_small(x: Tensor) -> bool:
    return x.numel() <= ELEMENTS_SHOWN and x.layout == torch.strided and x.device.type != "meta"


def _nested(values: object) -> str:
    return f"[{', '.join(map(_nested, values))}]" if isinstance(values, list) else short(values)


def _arrivals(step: Step) -> list[str]:
    """One line for each result that got a cotangent; which result is said where the node has several."""
    texts = [_arrival(step.terms.get(i, []), x) for i, x in enumerate(step.cotangents)]
    if len(texts) == 1:
        return texts
    return [f"output {i}: {text}" for i, text in enumerate(texts)]


def _arrival(terms: list[Gradient], cotangent: Gradient) -> str:
    """A cotangent with the terms that it is the sum of, where there are several."""
    value, parts = value_text(cotangent), [term for term in terms if term is not None]
    if cotangent is None or not parts:
        return value
    if not _is_small(cotangent):
        return f"{value}, a sum of {len(parts)}" if len(parts) > 1 else value
    written = " + ".join(map(value_text, parts))
    if not torch.allclose(sum(parts), cotangent, equal_nan=True):
        return f"{written}, which a hook changed to {value}"
    return f"{written} = {value}" if len(parts) > 1 else value


def _departures(record: Record, step: Step) -> list[str]:
    """What the node passed to each input; at a leaf, what accumulates."""
    if is_leaf(record.graph.nodes[step.node]):
        return [_accumulation(record, step)]
    edges = [edge for edge in record.graph.edges if edge.source == step.node]
    return [f"input {edge.input} {_destination(record, step, edge)}" for edge in edges]


def _destination(record: Record, step: Step, edge: Edge) -> str:
    if edge.target is None:
        return "needs no gradient"
    to = f"{record.number(edge.target)} {record.title_of(edge.target)}"
    return f"→ {to}: {value_text(step.passed[edge.input])}"


def _accumulation(record: Record, step: Step) -> str:
    name, (gradient,) = record.leaf_name(step.node), step.cotangents
    if gradient is None:
        return f"would leave {name}.grad as it is"
    value, empty = value_text(gradient), record.graph.nodes[step.node].variable.grad is None
    return f"would fill {name}.grad with {value}" if empty else f"would add {value} to {name}.grad"


# ---- as HTML -------------------------------------------------------------------------------------------

_SHEET = f"""
.cl-gr .s {{ display: flex; flex-wrap: wrap; gap: 10px 28px; align-items: flex-start; }}
.cl-gr .s > div {{ max-width: 100%; }}
.cl-gr table {{ border-collapse: collapse !important; margin: 0 !important; font-size: 12px; width: auto;
  table-layout: auto; border: 0; }}
.cl-gr tr {{ background: none !important; }}
.cl-gr td, .cl-gr th {{ text-align: left !important; vertical-align: top !important; color: inherit;
  padding: 4px 16px 4px 4px !important; border: 0; border-top: 1px solid {LINE} !important;
  background: none !important; font-weight: normal; }}
.cl-gr thead th {{ border-top: 0 !important; font-weight: 600; opacity: .78; }}
.cl-gr td {{ font-family: {MONO}; overflow-wrap: anywhere; }} .cl-gr td.k {{ white-space: nowrap; }}
.cl-gr td .i {{ padding-left: 2em; text-indent: -2em; }}
.cl-gr tbody tr:focus {{ outline: 2px solid currentColor; outline-offset: -2px; }}
"""
_NOTHING_ADDED = "This run left every .grad as it is; backward() would accumulate."
_LIGHT = "rgba(255, 193, 7, .4)"


def _picture(record: Record) -> str:
    spoken = escape(
        f"The graph of {record.name}: {summary(record.graph)}. The table says what each node does."
    )
    graph = f'<div role="img" aria-label="{spoken}">{drawing(record.sketch)}</div>'
    notes = f"The number of a box is its step: point at either. {legend(record.sketch)} {_NOTHING_ADDED}"
    return (
        f'{sheet(_SHEET + _hover_rules(record))}<div class="cl-gr">{heading(*record.title)}'
        f'<div class="s">{graph}{_table(record)}</div><div class="d">{notes}</div></div>'
    )


def _hover_rules(record: Record) -> str:
    """Pointing at a step lights up its box, and the other way round, in the picture that holds them."""
    numbers = [number for number, _ in record.shown()]
    boxes = ", ".join(f".cl-gr:has(.r{n}:is(:hover, :focus)) .n{n} > rect.b" for n in numbers)
    arrows = ", ".join(f".cl-gr:has(.r{n}:is(:hover, :focus)) .n{n} > path:not(.z)" for n in numbers)
    rows = ", ".join(f".cl-gr:has(.n{n}:hover) .r{n}, .cl-gr .r{n}:hover" for n in numbers)
    return (
        f"{boxes} {{ fill: {_LIGHT} !important; stroke: currentColor !important; stroke-width: 2 !important; }} "
        f"{arrows} {{ stroke-opacity: 1 !important; stroke-width: 2.4 !important; }} "
        f"{rows} {{ background: {_LIGHT} !important; }}"
    )


def _table(record: Record) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("step", "node", "cotangent in", "passes on"))
    rows = "".join(_row(record, number, step) for number, step in record.shown())
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(record: Record, number: int, step: Step) -> str:
    cells = [_arrivals(step), _departures(record, step)]
    columns = "".join(f"<td>{''.join(map(_line, lines))}</td>" for lines in cells)
    node = f'<td class="k">{escape(record.title_of(step.node))}</td>'
    return f'<tr class="r{number}" tabindex="0"><th scope="row">{number}</th>{node}{columns}</tr>'


def _line(text: str) -> str:
    return f'<div class="i">{escape(text)}</div>'


# ---- as text -------------------------------------------------------------------------------------------


def _text(record: Record) -> str:
    lines = [": ".join(record.title)]
    for number, step in record.shown():
        lines.append(f"  step {number}  {record.title_of(step.node)}")
        lines += [f"      cotangent {line}" for line in _arrivals(step)]
        lines += [f"      {line}" for line in _departures(record, step)]
    return "\n".join(lines)
