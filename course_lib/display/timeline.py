"""`show_trace`: a profiler's trace as a flame strip: each call a box, under the call that made it.

A trace is read as data: the list that `prof.export_chrome_trace` writes. The same list gives the same picture.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.display.theme import INK, LINE, MONO, TENSOR_COLORS, Face, escape, style

KINDS = ("user_annotation", "cpu_op", "kernel", "gpu_memcpy", "gpu_memset")
WIDTH, ROW = 900, 19  # SVG units
DEEPEST = 12
NARROWEST = 0.8  # a box below this width is left out
LETTER = 6.4  # width of a letter
TEXT_ROWS = 40

_SHEET = f"""
.cl-tr {{ color: {INK}; font-size: 13px; line-height: 1.35; margin: 6px 0; max-width: 100%; overflow-x: auto; }}
.cl-tr svg {{ display: block; min-width: 640px; width: 100%; height: auto; }}
.cl-tr text {{ font-family: {MONO}; font-size: 10.5px; fill: #fff; pointer-events: none; }}
.cl-tr rect {{ stroke: {LINE}; stroke-width: .5; }}
.cl-tr rect:hover {{ stroke: currentColor; stroke-width: 2; }}
.cl-tr h4 {{ font-size: 13px !important; font-weight: 600; margin: 8px 0 3px !important; color: inherit; }}
.cl-tr .d {{ opacity: .78; font-size: 12px; }}
""" + "".join(f".cl-tr .c{i} {{ fill: {color}; }} " for i, color in enumerate(TENSOR_COLORS))


@dataclass
class Span:
    """One call: when it began, how long it took (both in microseconds), and the calls that it made."""

    name: str
    kind: str
    start: float
    duration: float
    children: list[Span] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.start + self.duration


def show_trace(trace: str | Path | Sequence[dict[str, Any]], *, within: str = "") -> Face:
    """Draw the calls of a trace, given as a file or as its list of events, one strip for each thread or stream.

    `within` draws only the first call of that name and what it made. Raises LookupError where there is none.
    """
    threads = spans_of(_events(trace))
    if within:
        threads = {thread: [span] for thread, span in _first(threads, within)}
    if not any(threads.values()):
        raise LookupError(
            f"no call named {within!r} in this trace" if within else "there are no calls in this trace"
        )
    body = "".join(_strip(thread, spans) for thread, spans in threads.items())
    note = "Point at a box to read its name and duration. Calls too short to be seen are left out."
    text = "\n\n".join(_text(thread, spans) for thread, spans in threads.items())
    return Face(f'{style(_SHEET)}<div class="cl-tr">{body}<div class="d">{note}</div></div>', text)


def _events(trace: str | Path | Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    if isinstance(trace, (str, Path)):
        return json.loads(Path(trace).read_text(encoding="utf-8"))["traceEvents"]
    return trace


def spans_of(events: Iterable[dict[str, Any]]) -> dict[Any, list[Span]]:
    """For each thread the outermost calls, in order, with what they made inside them."""
    complete = [e for e in events if e.get("ph") == "X" and e.get("cat", "cpu_op") in KINDS]
    threads: dict[Any, list[Span]] = {}
    stacks: dict[Any, list[Span]] = {}
    for e in sorted(complete, key=lambda e: (e["ts"], -e["dur"])):
        span = Span(e["name"], e.get("cat", "cpu_op"), e["ts"], e["dur"])
        stack = stacks.setdefault(e["tid"], [])
        while stack and stack[-1].end <= span.start:
            stack.pop()
        (stack[-1].children if stack else threads.setdefault(e["tid"], [])).append(span)
        stack.append(span)
    return threads


def _first(threads: dict[Any, list[Span]], name: str) -> list[tuple[Any, Span]]:
    for thread, spans in threads.items():
        pending = list(spans)
        while pending:
            span = pending.pop(0)
            if span.name == name:
                return [(thread, span)]
            pending = span.children + pending
    return []


# ---- as HTML -------------------------------------------------------------------------------------------


def _strip(thread: Any, spans: list[Span]) -> str:
    start, end = spans[0].start, max(span.end for span in spans)
    depth = min(max(map(_depth, spans)), DEEPEST)
    boxes = "".join(_boxes(span, 0, start, WIDTH / max(end - start, 1e-9)) for span in spans)
    title = f"<h4>thread {escape(thread)}: {len(spans)} outermost calls, {duration_text(end - start)}</h4>"
    label = escape(f"flame strip of thread {thread}: {_spoken(spans)}")
    box = f"0 0 {WIDTH} {depth * ROW + 2}"
    return f'{title}<svg viewBox="{box}" role="img" aria-label="{label}">{boxes}</svg>'


def _depth(span: Span) -> int:
    return 1 + max(map(_depth, span.children), default=0)


def _boxes(span: Span, depth: int, start: float, scale: float) -> str:
    """The box of a call and of all that it made, as far as they can be seen."""
    width = span.duration * scale
    if width < NARROWEST or depth >= DEEPEST:
        return ""
    x, y = (span.start - start) * scale, depth * ROW + 1
    title = f"<title>{escape(span.name)}: {duration_text(span.duration)}</title>"
    box = f'<rect class="c{_color(span)}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}">{title}</rect>'
    letters = int((width - 6) / LETTER)
    if letters >= 3:
        box += f'<text x="{x + 3:.1f}" y="{y + 13}">{escape(_cut(span.name, letters))}</text>'
    return box + "".join(_boxes(child, depth + 1, start, scale) for child in span.children)


def _color(span: Span) -> int:
    """Your own ranges, autograd's, PyTorch's operators, matrix products among them, copies, and the device's work."""
    if span.kind != "cpu_op":
        return 0 if span.kind == "user_annotation" else 5
    if not span.name.startswith("aten::"):
        return 3
    operator = span.name.removeprefix("aten::")
    if operator in ("copy_", "clone", "contiguous", "_to_copy", "to"):
        return 1
    return 2 if "mm" in operator or operator in ("linear", "matmul") else 4


def _cut(name: str, letters: int) -> str:
    name = name.removeprefix("autograd::engine::evaluate_function: ").removeprefix("aten::")
    return name if len(name) <= letters else name[: letters - 1] + "…"


def duration_text(microseconds: float) -> str:
    """`12.5 µs`, `3.2 ms`."""
    return f"{microseconds:.1f} µs" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


# ---- as text -------------------------------------------------------------------------------------------


def _spoken(spans: list[Span]) -> str:
    return ", ".join(f"{span.name} {duration_text(span.duration)}" for span in spans[:6])


def _text(thread: Any, spans: list[Span]) -> str:
    """The calls that take a hundredth or more of the whole, indented under their callers."""
    whole = max(span.end for span in spans) - spans[0].start
    lines = [line for span in spans for line in _lines(span, 1, whole / 100)]
    more = [f"  ... {len(lines) - TEXT_ROWS} more"] if len(lines) > TEXT_ROWS else []
    return "\n".join([f"thread {thread}: {duration_text(whole)}", *lines[:TEXT_ROWS], *more])


def _lines(span: Span, depth: int, shortest: float) -> list[str]:
    if span.duration < shortest:
        return []
    inner = [line for child in span.children for line in _lines(child, depth + 1, shortest)]
    return [f"{'  ' * depth}{span.name} {duration_text(span.duration)}", *inner]
