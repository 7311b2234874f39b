"""`explore`: choose an operation and its arguments with sliders, and see base, result and storage at once.

The line of code on the screen is the line that runs: the controls make an expression over `x`,
which is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from course_lib.display.storage import show_storage
from course_lib.display.strips import storage_identity
from course_lib.display.theme import INK, LINE, MONO, Face, escape, style

if TYPE_CHECKING:
    import ipywidgets

SIZES_OFFERED = 24
REPEATS_OFFERED = 4
WIDEST_WINDOW = 8

Controls = dict[str, "ipywidgets.ValueWidget"]


@dataclass(frozen=True)
class Attempt:
    """What one line of code did to `x`: its result, or PyTorch's refusal."""

    expression: str
    base: Tensor
    result: Tensor | None
    refusal: str

    @property
    def is_view(self) -> bool:
        return self.result is not None and storage_identity(self.result) == storage_identity(self.base)

    @property
    def verdict(self) -> str:
        if self.result is None:
            return f"PyTorch refuses: {self.refusal}"
        if self.result is self.base:
            return "x itself: there was nothing to do, so you get the same tensor back"
        if self.is_view:
            return "a view: shares the storage"
        return f"a copy: {self.result.untyped_storage().nbytes()} bytes allocated"


def attempt(expression: str, x: Tensor) -> Attempt:
    """Evaluate `expression` over the names `x` and `torch`, without gradients."""
    try:
        with torch.no_grad():
            return Attempt(expression, x, eval(expression, {"x": x, "torch": torch}), "")
    except (RuntimeError, IndexError, ValueError, TypeError) as refusal:
        return Attempt(expression, x, None, f"{type(refusal).__name__}: {refusal}")


def starts(x: Tensor) -> list[str]:
    """Where an operation may start: `x`, or a view of it that makes the operation more interesting."""
    found = ["x"]
    if x.dim() >= 2:
        found += ["x.transpose(0, 1)", "x[:, :1]", "x[:, ::2]"]
    if x.dim() >= 1:
        found += ["x[:1]"]
    return found


def sizes(numel: int) -> list[tuple[int, ...]]:
    """Sizes of up to three dimensions that hold `numel` elements, and last one that does not fit."""
    pairs = [(a, numel // a) for a in _divisors(numel)]
    triples = [(a, b, n // b) for a, n in pairs for b in _divisors(n) if 1 not in (a, b, n // b)]
    return [*[(numel,), *pairs, *triples][:SIZES_OFFERED], (numel + 1,)]


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


# ---- the operations: controls that fit a tensor, and the expression they stand for ---------------------


def _slider(label: str, low: int, high: int, value: int) -> ipywidgets.IntSlider:
    import ipywidgets

    bounds = {"min": low, "max": max(low, high), "value": value}
    return ipywidgets.IntSlider(**bounds, description=label, style={"description_width": "9em"})


def _dropdown(label: str, options: list[Any], value: Any) -> ipywidgets.Dropdown:
    import ipywidgets

    return ipywidgets.Dropdown(
        options=options, value=value, description=label, style={"description_width": "9em"}
    )


def _dims(base: Tensor) -> list[int]:
    return list(range(max(base.dim(), 1)))


def _size_controls(base: Tensor) -> Controls:
    offered = sizes(base.numel())
    return {"size": _dropdown("size", [(str(size), size) for size in offered], offered[0])}


def _transpose_controls(base: Tensor) -> Controls:
    dims = _dims(base)
    return {"dim0": _dropdown("dim0", dims, 0), "dim1": _dropdown("dim1", dims, dims[-1])}


def _slice_controls(base: Tensor) -> Controls:
    longest = max(base.size(), default=0)
    return {
        "dim": _dropdown("dim", _dims(base), _dims(base)[-1]),
        "start": _slider("start", 0, longest, min(1, longest)),
        "stop": _slider("stop", 0, longest, longest),
        "step": _slider("step", 1, longest, 1),
    }


def _expand_controls(base: Tensor) -> Controls:
    return {
        "lead": _slider("new dim in front", 0, REPEATS_OFFERED, 0 if 1 in base.size() else 2),
        "repeat": _slider("each size 1 becomes", 1, REPEATS_OFFERED, 3),
    }


def _as_strided_controls(base: Tensor) -> Controls:
    """Overlapping windows to begin with; `_bound_as_strided` keeps every later choice inside the storage."""
    slots = _slots(base)
    width = min(3, slots)
    count = min(WIDEST_WINDOW, slots - width + 1) if slots else 0
    low = min(1, slots)
    return {
        "size0": _slider("size[0]", low, count, count),
        "size1": _slider("size[1]", low, width, width),
        "stride0": _slider("stride[0]", 0, 1, 1),
        "stride1": _slider("stride[1]", 0, 1, 1),
        "offset": _slider("storage_offset", 0, 0, 0),
    }


def _no_controls(base: Tensor) -> Controls:
    return {}


def _slots(base: Tensor) -> int:
    return base.untyped_storage().nbytes() // base.element_size()


def _bound_as_strided(controls: Controls, base: Tensor) -> None:
    """Each slider goes as far as the storage reaches while the other sliders stay where they are."""
    last = _slots(base) - 1
    if last < 0:
        return
    value = {name: control.value for name, control in controls.items()}
    reach = {i: (value[f"size{i}"] - 1) * value[f"stride{i}"] for i in "01"}
    for i in "01":
        room = last - value["offset"] - sum(reach.values()) + reach[i]
        size, stride = value[f"size{i}"], value[f"stride{i}"]
        controls[f"size{i}"].max = max(
            size, min(WIDEST_WINDOW, room // stride + 1 if stride else WIDEST_WINDOW)
        )
        controls[f"stride{i}"].max = room // (size - 1) if size > 1 else last
    controls["offset"].max = last - sum(reach.values())


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _slice_expression(base: Tensor, of: str, dim: int, **at: int) -> str:
    step = f":{at['step']}" if at["step"] > 1 else ""
    return f"{of}[{':, ' * dim}{at['start']}:{at['stop']}{step}]"


def _expand_expression(base: Tensor, of: str, lead: int, repeat: int) -> str:
    front = [lead] if lead else []
    size = [*front, *(repeat if n == 1 else n for n in base.size())]
    return f"{of}.expand({_listed(size) if size else '()'})"


def _as_strided_expression(base: Tensor, of: str, **at: int) -> str:
    size, stride = (at["size0"], at["size1"]), (at["stride0"], at["stride1"])
    return f"{of}.as_strided({size}, {stride}, {at['offset']})"


@dataclass(frozen=True)
class Operation:
    controls: Callable[[Tensor], Controls]
    expression: Callable[..., str]


OPERATIONS = {
    "view": Operation(_size_controls, lambda base, of, size: f"{of}.view({_listed(size)})"),
    "transpose": Operation(
        _transpose_controls, lambda base, of, dim0, dim1: f"{of}.transpose({dim0}, {dim1})"
    ),
    "slice": Operation(_slice_controls, _slice_expression),
    "expand": Operation(_expand_controls, _expand_expression),
    "as_strided": Operation(_as_strided_controls, _as_strided_expression),
    "reshape": Operation(_size_controls, lambda base, of, size: f"{of}.reshape({_listed(size)})"),
    "contiguous": Operation(_no_controls, lambda base, of: f"{of}.contiguous()"),
}

# ---- on the screen -------------------------------------------------------------------------------------

_SHEET = f"""
.cl-ex {{ color: {INK}; font-size: 13px; line-height: 1.45; }}
.cl-ex pre {{ font-family: {MONO}; font-size: 13px; margin: 6px 0; color: inherit; background: none;
  white-space: pre-wrap; overflow-wrap: anywhere; }}
.cl-ex .v {{ border: 1px solid {LINE}; border-left: 4px solid #0072b2; border-radius: 3px; padding: 4px 10px;
  overflow-wrap: anywhere; }}
.cl-ex .copy {{ border-left-color: #ad5700; }} .cl-ex .refused {{ border-left-color: #c4372d; }}
"""


def _panel(done: Attempt, picture: Face) -> str:
    kind = "refused" if done.result is None else "view" if done.is_view else "copy"
    word, colon, rest = done.verdict.partition(":")
    return (
        f'{style(_SHEET)}<div class="cl-ex"><pre>y = {escape(done.expression)}</pre>'
        f'<div class="v {kind}" role="status">'
        f"<strong>{escape(word)}</strong>{colon}{escape(rest)}</div>{picture.html}</div>"
    )


class Explorer:
    """The explorer of one tensor. `current` is the attempt on the screen."""

    def __init__(self, x: Tensor) -> None:
        import ipywidgets

        self.x = x
        self.start = _dropdown("start from", starts(x), "x")
        self.operation = _dropdown("operation", list(OPERATIONS), "view")
        self.parameters = ipywidgets.VBox()
        self.panel = ipywidgets.HTML()
        self.controls: Controls = {}
        chosen = ipywidgets.VBox([self.start, self.operation, self.parameters])
        self.widget = ipywidgets.VBox([chosen, self.panel])
        for choice in (self.start, self.operation):
            choice.observe(self._choose, names="value")
        self._choose()

    def _choose(self, change: object = None) -> None:
        """New controls, for another operation or another start."""
        self.base = attempt(self.start.value, self.x).result
        self.controls = OPERATIONS[self.operation.value].controls(self.base)
        for control in self.controls.values():
            control.observe(self._show, names="value")
        self.parameters.children = tuple(self.controls.values())
        self._show()

    def _show(self, change: object = None) -> None:
        if self.operation.value == "as_strided":
            _bound_as_strided(self.controls, self.base)
        values = {name: control.value for name, control in self.controls.items()}
        expression = OPERATIONS[self.operation.value].expression(self.base, self.start.value, **values)
        self.current = attempt(expression, self.x)
        self.panel.value = _panel(self.current, self._picture())

    def _picture(self) -> Face:
        if self.current.result is not None:
            return show_storage(self.x, self.current.result, names=["x", "y"])
        if self.start.value == "x":
            return show_storage(self.x, names=["x"])
        return show_storage(self.x, self.base, names=["x", self.start.value])

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        return {**self.widget._repr_mimebundle_(**options), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"{self._picture()!r}\n\ny = {self.current.expression}\n{self.current.verdict}"


def explore(tensor: Tensor | None = None) -> Explorer:
    """Try views, slices, strides and copies on a tensor, with sliders.

    Without a tensor it explores `torch.arange(12).reshape(3, 4)`. Raises TypeError
    for what `show_storage` cannot draw.
    """
    x = torch.arange(12).reshape(3, 4) if tensor is None else tensor
    show_storage(x, names=["the argument of explore()"])
    return Explorer(x)
