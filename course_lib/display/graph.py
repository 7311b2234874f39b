"""`show_graph`: the live autograd graph, one box per node, with what each node saved and where gradients go.

`nodes` reads the graph, `layers` places the boxes; here it is put in words, as SVG and as text.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import torch
from torch import Tensor
from torch.autograd.graph import Node

from course_lib.display.layers import Layout, Point, layout
from course_lib.display.names import Names, as_typed, variables
from course_lib.display.nodes import FREED, Edge, Graph, is_leaf, operation, read_graph, saved, size_and_dtype
from course_lib.display.strips import storage_identity
from course_lib.display.theme import INK, LINE, MONO, TENSOR_COLORS, TINT, Face, escape, inline, style

NODES_SHOWN = 40
LINES_SHOWN = 5
LINE_WIDTH = 44
OUTPUT_COLOR, LEAF_COLOR = TENSOR_COLORS[0], TENSOR_COLORS[2]


def show_graph(*outputs: Tensor, names: dict[str, Tensor] | None = None) -> Face:
    """Draw the autograd graph that leads from the outputs to the leaves: one box per node, top to bottom.

    A box says what its node saved for the backward; a leaf's box says whether `.grad` is there. Tensors have the
    names that you give as `{"w": w}`, or those of your variables. The graph is only looked at.
    Raises TypeError for what is not a tensor.
    """
    caller = sys._getframe(1)
    typed = as_typed(len(outputs), caller)
    known = known_names(outputs, typed, names, caller)
    made = [x for x in outputs if x.grad_fn is not None]
    reasons = [why_no_graph(known, name, x) for name, x in zip(typed, outputs) if x.grad_fn is None]
    if not made:
        return words(reasons)
    graph = read_graph([x.grad_fn for x in made])
    labels = list(dict.fromkeys(known.of(x) for x in made))
    sketch = sketch_of(graph, known, labels)
    title = ("graph of " + ", ".join(labels), summary(graph))
    return Face(_picture(title, sketch, reasons), _text(title, sketch, reasons))


def known_names(
    outputs: Sequence[Tensor], typed: list[str], names: dict[str, Tensor] | None, caller: FrameType
) -> Names:
    """Given names come first, then the outputs as typed, then the caller's variables."""
    if not outputs:
        raise TypeError("show_graph() needs at least one tensor, for example show_graph(loss)")
    for name, x in zip(typed, outputs):
        require_tensor(name, x)
    if names is not None and not (
        isinstance(names, dict) and all(isinstance(x, Tensor) for x in names.values())
    ):
        raise TypeError(f'names must be a dict from name to tensor, such as {{"w": w}}; got {names!r}')
    return Names([*(names or {}).items(), *zip(typed, outputs), *variables(caller)])


def require_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"a graph hangs on a tensor, and {name} is of type {type(x).__name__}")


# ---- in words ------------------------------------------------------------------------------------------


def words(sentences: list[str]) -> Face:
    """Sentences where there is nothing to draw."""
    return Face(f"{sheet()}{_paragraphs(sentences)}", "\n".join(sentences).replace("`", ""))


def _paragraphs(sentences: list[str]) -> str:
    return "".join(f'<div class="cl-gr">{inline(sentence)}</div>' for sentence in sentences)


def why_no_graph(names: Names, name: str, x: Tensor) -> str:
    """Why `x` has no `grad_fn`, as far as a tensor can tell."""
    if x.requires_grad:
        return (
            f"`{name}` is a leaf: no operation made it, so its `grad_fn` is None. A graph begins when an operation "
            f"uses it, and its gradient accumulates in `{name}.grad`."
        )
    return f"`{name}` has no graph: its `requires_grad` is False. {_why_no_gradient(names, x)}"


def _why_no_gradient(names: Names, x: Tensor) -> str:
    if x.is_inference():
        return "It was made under `inference_mode()`, which records nothing."
    if not (x.is_floating_point() or x.is_complex()):
        dtype = str(x.dtype).removeprefix("torch.")
        return f"Its elements are {dtype}, and only floating-point and complex tensors have gradients."
    if source := _detached_from(names, x):
        return (
            f"It reads the storage of `{source}`, which does have gradients, so the connection was cut: by "
            "`detach()`, by `.data`, or because it was made under `no_grad()`."
        )
    return (
        "Nothing that it was computed from requires a gradient, or it was computed under `no_grad()`, "
        "or detached: the tensor itself does not keep which."
    )


def _detached_from(names: Names, x: Tensor) -> str:
    """The first known tensor that requires a gradient and has the storage of `x`."""
    sharing = (name for name, other in names.tensors if other.requires_grad and _share_storage(x, other))
    return next(sharing, "")


def _share_storage(x: Tensor, other: Tensor) -> bool:
    strided = x.layout == other.layout == torch.strided
    return strided and storage_identity(x) == storage_identity(other)


def summary(graph: Graph) -> str:
    leaves = sum(map(is_leaf, graph.nodes))
    parts = [f"{plural(len(graph.nodes), 'node')}, {plural(leaves, 'leaf', 'leaves')}"]
    if len(graph.nodes) > NODES_SHOWN:
        parts.append(f"the {NODES_SHOWN} nodes nearest to the output are shown")
    return "; ".join(parts)


def plural(count: int, noun: str, nouns: str = "") -> str:
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


# ---- what is drawn -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """What a box says: a tag for an output or a leaf, the operation, lines about it, and what it saved."""

    tag: str
    title: str
    notes: list[str]
    saved: list[str]
    is_leaf: bool

    @property
    def lines(self) -> list[str]:
        return [*self.notes, *(line if line == FREED else f"saved {line}" for line in self.saved)]


@dataclass(frozen=True)
class Sketch:
    """The part of a graph that is drawn: its cards, its edges, and the number that each card carries."""

    cards: list[Card]
    edges: list[Edge]
    place: Layout
    numbers: list[int]

    def label(self, i: int) -> str:
        """A node in one line: its number, its operation, and the leaf's name."""
        card = self.cards[i]
        return " ".join(filter(None, [str(self.numbers[i]), card.title, card.tag if card.is_leaf else ""]))

    def order(self) -> list[int]:
        """The cards by their numbers."""
        return sorted(range(len(self.cards)), key=self.numbers.__getitem__)


def sketch_of(graph: Graph, names: Names, outputs: list[str], steps: list[int] | None = None) -> Sketch:
    """Place the nodes that are nearest to the outputs; numbered by `steps`, or as one reads the picture."""
    cards = [_card(node, names, outputs) for node in graph.nodes[:NODES_SHOWN]]
    edges = [edge for edge in graph.edges if edge.source < len(cards)]
    drawn = [(edge.source, edge.target) for edge in edges if _is_drawn(edge, cards)]
    place = layout([_size(card, edges, i) for i, card in enumerate(cards)], drawn)
    return Sketch(cards, edges, place, steps or _reading_order(place.rows))


def _is_drawn(edge: Edge, cards: list[Card]) -> bool:
    return edge.target is not None and edge.target < len(cards)


def _reading_order(rows: list[list[int]]) -> list[int]:
    order = [i for row in rows for i in row]
    numbers = [0] * len(order)
    for number, i in enumerate(order, start=1):
        numbers[i] = number
    return numbers


def _card(node: Node, names: Names, outputs: list[str]) -> Card:
    if is_leaf(node):
        x = node.variable
        lines = [size_and_dtype(x), _grad_line(x)]
        return Card(f"leaf {names.of(x)}".strip(), operation(node), lines, [], True)
    results = names.of_results(node)
    shown = [name for name in results if name in outputs]
    others = [name for name in results if name not in outputs]
    made = [f"makes {', '.join(others)}"] if others else []
    tag = f"output {', '.join(shown)}" if shown else ""
    return Card(tag, operation(node), made, saved(node, names), False)


def _grad_line(x: Tensor) -> str:
    return ".grad is None" if x.grad is None else ".grad is there"


# ---- as SVG --------------------------------------------------------------------------------------------

MARGIN = 6
PADDING = 10
TITLE_CHAR, LINE_CHAR = 7.3, 6.7  # the width of a character of 12 px in bold and of 11 px
TAG_HEIGHT, TITLE_HEIGHT, LINE_HEIGHT = 20, 20, 15
PORT_WIDTH, PORT_HEIGHT = 34, 12
STUB, STUB_HEIGHT = 15, 26
ARRIVAL_STEP = 22.0
LEAST_SCALE = 0.75  # a wide graph shrinks this far before it scrolls

_SHEET = f"""
.cl-gr {{ color: {INK}; font-size: 13px; line-height: 1.4; margin: 6px 0; overflow-x: auto; max-width: 100%; }}
.cl-gr h4 {{ font-size: 13px !important; font-weight: 600; margin: 4px 0 6px !important; color: inherit; }}
.cl-gr h4 span, .cl-gr .d {{ font-weight: normal; opacity: .78; }}
.cl-gr .d {{ font-size: 12px; margin: 4px 0; }}
.cl-gr code {{ font-family: {MONO}; font-size: 12px; background: {TINT} !important; color: inherit;
  padding: 1px 4px; border-radius: 3px; }}
.cl-gr svg {{ display: block; height: auto; overflow: visible; }}
.cl-gr svg text {{ font-family: {MONO}; font-size: 11px; fill: currentColor; white-space: pre; }}
.cl-gr svg .o {{ font-size: 12px; font-weight: 600; }}
.cl-gr svg .q {{ opacity: .78; }} .cl-gr svg .e {{ text-anchor: end; }}
.cl-gr svg .m, .cl-gr svg .p {{ text-anchor: middle; }}
.cl-gr svg .p {{ font-size: 10px; opacity: .78; }}
.cl-gr svg .w {{ fill: #fff; font-weight: 600; }}
.cl-gr svg .b {{ fill: {TINT}; stroke: {LINE}; stroke-width: 1; }}
.cl-gr svg .out > .b {{ stroke: {OUTPUT_COLOR}; stroke-width: 1.5; }}
.cl-gr svg .leaf > .b {{ stroke: {LEAF_COLOR}; stroke-width: 1.5; }}
.cl-gr svg .out > .t {{ fill: {OUTPUT_COLOR}; }} .cl-gr svg .leaf > .t {{ fill: {LEAF_COLOR}; }}
.cl-gr svg path {{ fill: none; stroke: currentColor; stroke-opacity: .6; stroke-width: 1.3; }}
.cl-gr svg polygon {{ fill: currentColor; fill-opacity: .75; stroke: none; }}
.cl-gr svg path.z {{ stroke-dasharray: 2 3; stroke-opacity: .5; }}
.cl-gr svg g:hover > rect.b {{ stroke: currentColor; stroke-width: 2; }}
.cl-gr svg g:hover > path:not(.z) {{ stroke-opacity: 1; stroke-width: 2.4; }}
"""


def sheet(more: str = "") -> str:
    """The style element of these pictures; every one brings all of it."""
    return style(_SHEET + more)


def _picture(title: tuple[str, str], sketch: Sketch, reasons: list[str]) -> str:
    spoken = f"{': '.join(title)}. " + ". ".join(_spoken(sketch, i) for i in sketch.order())
    return (
        f'{sheet()}{_paragraphs(reasons)}<div class="cl-gr" role="img" aria-label="{escape(spoken)}">'
        f'{heading(*title)}{drawing(sketch)}<div class="d">{legend(sketch)}</div></div>'
    )


def heading(name: str, rest: str) -> str:
    return f"<h4>{escape(name)}<span>: {escape(rest)}</span></h4>"


def _spoken(sketch: Sketch, i: int) -> str:
    card = sketch.cards[i]
    tag = [card.tag] if card.tag and not card.is_leaf else []
    return "; ".join([sketch.label(i), *tag, *card.lines, *_edge_texts(sketch, i)])


def legend(sketch: Sketch) -> str:
    """How to read the picture, as far as this one goes."""
    saving = any(card.saved for card in sketch.cards)
    forks = any(edge.input for edge in sketch.edges)
    outputs = any(edge.output for edge in sketch.edges)
    nones = any(edge.target is None for edge in sketch.edges)
    parts = [
        "Gradients flow along the arrows, and accumulate in the leaves.",
        "A box lists what its operation saved for backward." if saving else "",
        "The numbers at the bottom of a box are the inputs of its operation." if forks else "",
        "A number at the tip of an arrow says which result of the operation it comes back to."
        if outputs
        else "",
        "A dashed end is an input that needs no gradient." if nones else "",
    ]
    return " ".join(filter(None, parts))


def drawing(sketch: Sketch) -> str:
    """The boxes and the arrows between them."""
    nodes = "".join(_node_svg(sketch, i) for i in range(len(sketch.cards)))
    ends = [
        _start(sketch, edge)[1] + STUB_HEIGHT for edge in sketch.edges if not _is_drawn(edge, sketch.cards)
    ]
    width, height = sketch.place.width + 2 * MARGIN, max([sketch.place.height, *ends]) + 2 * MARGIN
    fit = f"width: {width:.0f}px; max-width: 100%; min-width: {width * LEAST_SCALE:.0f}px"
    box = f"{-MARGIN} {-MARGIN} {width:.0f} {height:.0f}"
    return f'<svg style="{fit}" viewBox="{box}" aria-hidden="true">{nodes}</svg>'


def _size(card: Card, edges: list[Edge], i: int) -> Point:
    texts = [
        (len(card.title) + 4) * TITLE_CHAR,
        *(len(line) * LINE_CHAR for line in [_clipped(card.tag), *_shown(card)]),
    ]
    ports = sum(edge.source == i for edge in edges)
    extra = (TAG_HEIGHT if card.tag else 0) + (PORT_HEIGHT if ports > 1 else 0)
    height = TITLE_HEIGHT + LINE_HEIGHT * len(_shown(card)) + PADDING + extra
    return max(max(texts) + 2 * PADDING, ports * PORT_WIDTH), height


def _shown(card: Card) -> list[str]:
    """The lines that fit in a box; what is cut off is in its tooltip."""
    lines = [*card.notes, *card.saved]
    if (more := len(lines) - LINES_SHOWN) > 0:
        lines = [*lines[: LINES_SHOWN - 1], f"and {more + 1} more"]
    return [_clipped(line) for line in lines]


def _clipped(text: str) -> str:
    return text if len(text) <= LINE_WIDTH else f"{text[: LINE_WIDTH - 1]}…"


def _node_svg(sketch: Sketch, i: int) -> str:
    card = sketch.cards[i]
    kind = "leaf" if card.is_leaf else "out" if card.tag else ""
    tip = escape("\n".join(filter(None, [sketch.label(i), "" if card.is_leaf else card.tag, *card.lines])))
    edges = "".join(_edge_svg(sketch, edge) for edge in sketch.edges if edge.source == i)
    return f'<g class="n{sketch.numbers[i]} {kind}"><title>{tip}</title>{_box_svg(sketch, i)}{edges}</g>'


def _box_svg(sketch: Sketch, i: int) -> str:
    card, (x, y) = sketch.cards[i], sketch.place.corners[i]
    width, height = _size(card, sketch.edges, i)
    parts = [_rect("b", x, y, width, height)]
    if card.tag:
        parts += [_rect("t", x, y, width, TAG_HEIGHT), _words("w", x + PADDING, y + 14, _clipped(card.tag))]
        y += TAG_HEIGHT
    parts += [
        _words("o", x + PADDING, y + 17, card.title),
        _words("q e", x + width - PADDING, y + 17, str(sketch.numbers[i])),
    ]
    first = y + TITLE_HEIGHT + 12
    lines = enumerate(_shown(card))
    return "".join([*parts, *(_words("q", x + PADDING, first + k * LINE_HEIGHT, line) for k, line in lines)])


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"/>'


def _words(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _edge_svg(sketch: Sketch, edge: Edge) -> str:
    x, y = _start(sketch, edge)
    number = _words("p", x, y - 4, str(edge.input)) if _siblings(sketch, edge) > 1 else ""
    if not _is_drawn(edge, sketch.cards):
        end = "none" if edge.target is None else "more"
        return f'<path class="z" d="M{x:.1f} {y:.1f}v{STUB}"/>{number}{_words("q m", x, y + STUB + 9, end)}'
    tip = _end(sketch, edge)
    points = [(x, y), *sketch.place.waypoints[_drawn_edges(sketch).index(edge)], (tip[0], tip[1] - 7)]
    return f'<path d="{_curve(points)}"/>{_arrowhead(*tip)}{number}{_output_number(sketch, edge, tip)}'


def _siblings(sketch: Sketch, edge: Edge) -> int:
    return sum(other.source == edge.source for other in sketch.edges)


def _start(sketch: Sketch, edge: Edge) -> Point:
    """Where the edge leaves its box: the inputs stand side by side at the bottom."""
    (x, y), (width, height) = sketch.place.corners[edge.source], _node_size(sketch, edge.source)
    return x + width * (edge.input + 1) / (_siblings(sketch, edge) + 1), y + height


def _node_size(sketch: Sketch, i: int) -> Point:
    return _size(sketch.cards[i], sketch.edges, i)


def _drawn_edges(sketch: Sketch) -> list[Edge]:
    return [edge for edge in sketch.edges if _is_drawn(edge, sketch.cards)]


def _end(sketch: Sketch, edge: Edge) -> Point:
    """Where the edge meets its target: side by side with the others that arrive, in the order they come from."""
    (x, y), (width, _) = sketch.place.corners[edge.target], _node_size(sketch, edge.target)
    arriving = [other for other in _drawn_edges(sketch) if other.target == edge.target]
    arriving.sort(key=lambda other: _before_end(sketch, other))
    step = min(ARRIVAL_STEP, width / (len(arriving) + 1))
    return x + width / 2 + (arriving.index(edge) - (len(arriving) - 1) / 2) * step, y


def _before_end(sketch: Sketch, edge: Edge) -> float:
    waypoints = sketch.place.waypoints[_drawn_edges(sketch).index(edge)]
    return waypoints[-1][0] if waypoints else _start(sketch, edge)[0]


def _curve(points: list[Point]) -> str:
    """A smooth path that leaves and enters every point straight down."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (y0 + y1) / 2
        parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    return "".join(parts)


def _arrowhead(x: float, y: float) -> str:
    return f'<polygon points="{x - 4:.1f},{y - 8:.1f} {x + 4:.1f},{y - 8:.1f} {x:.1f},{y - 1:.1f}"/>'


def _output_number(sketch: Sketch, edge: Edge, tip: Point) -> str:
    return _words("p", tip[0] + 8, tip[1] - 4, str(edge.output)) if _has_outputs(sketch, edge) else ""


def _has_outputs(sketch: Sketch, edge: Edge) -> bool:
    """Whether the edge's target made several results, as far as the edges show."""
    return any(other.output for other in sketch.edges if other.target == edge.target is not None)


# ---- as text -------------------------------------------------------------------------------------------


def _text(title: tuple[str, str], sketch: Sketch, reasons: list[str]) -> str:
    lines = [*(reason.replace("`", "") for reason in reasons), ": ".join(title), *text_lines(sketch)]
    return "\n".join(lines)


def text_lines(sketch: Sketch) -> list[str]:
    """Each node with what it saved and where its gradients go."""
    return [line for i in sketch.order() for line in _node_lines(sketch, i)]


def _node_lines(sketch: Sketch, i: int) -> list[str]:
    card = sketch.cards[i]
    tag = f"  [{card.tag}]" if card.tag and not card.is_leaf else ""
    return [
        f"  {sketch.label(i)}{tag}",
        *(f"      {line}" for line in [*card.lines, *_edge_texts(sketch, i)]),
    ]


def _edge_texts(sketch: Sketch, i: int) -> Iterator[str]:
    for edge in sketch.edges:
        if edge.source == i:
            yield f"input {edge.input} {_edge_text(sketch, edge)}"


def _edge_text(sketch: Sketch, edge: Edge) -> str:
    if edge.target is None:
        return "needs no gradient"
    if not _is_drawn(edge, sketch.cards):
        return "→ a node that is not shown"
    output = f", its output {edge.output}" if _has_outputs(sketch, edge) else ""
    return f"→ {sketch.label(edge.target)}{output}"
