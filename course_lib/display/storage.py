"""`show_storage`: tensors as grids over the one-dimensional storage that they read.

A storage is drawn as a strip of slots. Under it, each tensor has a lane that marks the slots it reads. Below
it is a grid of boxes, and each box says which slot it reads. `strips` has the geometry.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from course_lib.display.names import as_typed
from course_lib.display.strips import (
    BLOCKS_SHOWN,
    COLUMNS_SHOWN,
    ROWS_SHOWN,
    SLOTS_PER_ROW,
    Block,
    Index,
    Reader,
    Strip,
    blocks,
    element_texts,
    strips_of,
)
from course_lib.display.theme import INK, LINE, MONO, TENSOR_COLORS, Face, escape, style

TEXT_WIDTH = 88
TIMES = "\N{MULTIPLICATION SIGN}"


def show_storage(*tensors: Tensor, names: Sequence[str] | None = None) -> Face:
    """Draw each storage as a strip of slots, and each tensor as a grid whose boxes say which slot they read.

    Tensors that share a storage are drawn over one strip. `names` are the captions; without them the picture
    uses the expressions as you typed them. The tensors are only looked at.
    Raises TypeError for what is not a tensor, or has no strides.
    """
    if not tensors:
        raise TypeError("show_storage() needs at least one tensor, for example show_storage(x, x.t())")
    labels = as_typed(len(tensors), sys._getframe(1)) if names is None else _as_given(len(tensors), names)
    for label, x in zip(labels, tensors, strict=True):
        _require_strided(label, x)
    strips = strips_of(labels, tensors)
    return Face(_picture(strips), "\n\n".join(_strip_text(strip) for strip in strips))


def _as_given(count: int, names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or len(names) != count:
        raise TypeError(
            f"names must be a list of {_plural(count, 'name')}, one for each tensor; got {names!r}"
        )
    return [str(name) for name in names]


def _require_strided(label: str, x: object) -> None:
    if not isinstance(x, Tensor):
        kind = type(x).__name__
        raise TypeError(
            f"show_storage() draws tensors, and {label} is of type {kind}. Try torch.as_tensor({label})"
        )
    if x.layout != torch.strided or x.is_quantized or x.is_nested:
        kind = (
            "quantized"
            if x.is_quantized
            else "nested"
            if x.is_nested
            else str(x.layout).removeprefix("torch.")
        )
        raise TypeError(
            f"{label} is {kind}: it is not plain numbers at strides over one storage. Draw a dense tensor"
        )


# ---- in words ------------------------------------------------------------------------------------------


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _title(strip: Strip) -> str:
    dtypes = " and ".join(dict.fromkeys(_dtype(reader.x) for reader in strip.readers))
    parts = [f"{_plural(strip.slots, 'slot')} of {_plural(strip.unit, 'byte')} ({dtypes})"]
    if strip.slots > strip.shown:
        parts.append(_window(strip))
    if not strip.has_data:
        parts.append("on the meta device: sizes and strides, no data")
    if strip.by_byte:
        parts.append("slots are numbered in bytes, because the elements differ in width")
    return "; ".join(parts)


def _window(strip: Strip) -> str:
    if strip.first == 0:
        return f"first {strip.shown} of {strip.slots} slots shown"
    last = strip.label(strip.first + strip.shown - 1)
    return f"{strip.shown} of {strip.slots} slots shown, {strip.label(strip.first)} to {last}"


def _caption(strip: Strip, x: Tensor) -> str:
    size, stride = tuple(x.size()), tuple(x.stride())
    return f"size {size}  stride {stride}  offset {x.storage_offset()}  view of storage {strip.letter}"


def _detail(strip: Strip, x: Tensor) -> str:
    several_dtypes = len({reader.x.dtype for reader in strip.readers}) > 1
    parts = [
        f"read as {_dtype(x)}" if several_dtypes else "",
        _steps(strip, x),
        "contiguous" if x.is_contiguous() else "not contiguous",
        _reach(strip, x),
        "conjugated when read" if x.is_conj() else "",
        "negated when read" if x.is_neg() else "",
        _left_out(x),
    ]
    return "; ".join(filter(None, parts))


def _steps(strip: Strip, x: Tensor) -> str:
    width = strip.slots_per_element(x)
    steps = [f"along dim {dim} moves {_plural(step * width, 'slot')}" for dim, step in enumerate(x.stride())]
    return f"a step {', '.join(steps)}" if steps else "no dimension to step along"


def _reach(strip: Strip, x: Tensor) -> str:
    elements = _plural(x.numel(), "element")
    if not x.numel() or strip.slots > strip.shown:
        return elements
    return f"{elements} over {_plural(sum(map(bool, strip.read_counts(x))), 'slot')}"


def _left_out(x: Tensor) -> str:
    """What the grid does not show of `x`, or nothing."""
    *lead, rows, columns = (1, 1, *x.size())
    limits = [
        ("block", math.prod(lead), BLOCKS_SHOWN),
        ("row", rows, ROWS_SHOWN),
        ("column" if x.dim() > 1 else "element", columns, COLUMNS_SHOWN),
    ]
    parts = [f"{limit} of {size} {noun}s" for noun, size, limit in limits if size > limit]
    return f"first {', '.join(parts)} shown" if parts and x.numel() else ""


def _mark(count: int) -> str:
    """How a lane shows that `count` elements read a slot."""
    return {0: "", 1: "•"}.get(count, f"{TIMES}{count}")


def _legend(strips: list[Strip]) -> str:
    """How to read the picture, as far as this one goes."""
    counts = [[strip.read_counts(reader.x) for reader in strip.readers] for strip in strips]
    unread = any(not any(reads) for lanes in counts for reads in zip(*lanes, strict=True))
    repeated = any(count > 1 for lanes in counts for lane in lanes for count in lane)
    parts = [
        "In each box: the number of its slot above, the value below.",
        "Dashed boxes are slots that nothing here reads." if unread else "",
        f"{TIMES}2 marks a slot that two elements of one tensor read." if repeated else "",
        "Point at a box to see everything that reads its slot.",
    ]
    return " ".join(filter(None, parts))


# ---- as HTML -------------------------------------------------------------------------------------------

# Every picture brings the whole sheet: style elements act on the page, so a later picture must not say less.
_SHEET = f"""
.cl-st {{ color: {INK}; font-size: 13px; line-height: 1.35; margin: 6px 0; overflow-x: auto;
  max-width: 100%; }}
.cl-st table, .cl-st tr, .cl-st td, .cl-st th {{ background: none !important; border: 0; color: inherit; }}
.cl-st table {{ border-collapse: separate !important; border-spacing: 2px !important;
  margin: 0 0 6px !important; width: auto; table-layout: auto; font-size: 12px; }}
.cl-st td, .cl-st th {{ text-align: center !important; padding: 0 3px !important;
  vertical-align: middle !important; white-space: nowrap; line-height: 1.2; font-weight: normal; }}
.cl-st td {{ font-family: {MONO}; min-width: max(30px, var(--cl-widest) * 1ch); }}
.cl-st th {{ text-align: right !important; padding-right: 6px !important; font-family: {MONO};
  font-size: 11px; opacity: .78; max-width: 12em; overflow: hidden; text-overflow: ellipsis; }}
.cl-st td.b {{ border: 1px solid {LINE} !important; border-radius: 3px; padding: 2px 3px 3px !important; }}
.cl-st td.b small {{ font-size: 10px; opacity: .78; }}
.cl-st td.u {{ border-style: dashed !important;
  background: repeating-linear-gradient(45deg, {LINE} 0 1px, transparent 1px 6px) !important; }}
.cl-st td.l {{ color: #fff; border-radius: 3px; font-size: 11px; font-weight: 600; height: 15px; }}
.cl-st h4 {{ font-size: 13px !important; font-weight: 600; margin: 10px 0 3px !important; color: inherit; }}
.cl-st h4 span, .cl-st .d {{ font-weight: normal; opacity: .78; }}
.cl-st .t {{ border-left: 4px solid; padding: 1px 0 1px 10px; margin: 8px 0 10px; }}
.cl-st .c {{ white-space: pre-wrap; font-family: {MONO}; font-size: 12px; }}
.cl-st .d {{ font-size: 12px; margin: 1px 0 4px; }}
.cl-st .g {{ display: flex; flex-wrap: wrap; gap: 4px 18px; }}
""" + "".join(
    f".cl-st td.l{i} {{ background: {color} !important; }} .cl-st .t{i} {{ border-color: {color}; }} "
    for i, color in enumerate(TENSOR_COLORS)
)


def _picture(strips: list[Strip]) -> str:
    label = ". ".join(_spoken(strip) for strip in strips)
    body = "".join(_strip_html(strip) for strip in strips)
    sheet = style(_SHEET + _hover_rule(strips))
    legend = f'<div class="d">{_legend(strips)}</div>'
    return f'{sheet}<div class="cl-st" role="img" aria-label="{escape(label)}">{body}{legend}</div>'


def _spoken(strip: Strip) -> str:
    tensors = (f"{r.name}: {_caption(strip, r.x)}, {_detail(strip, r.x)}" for r in strip.readers)
    return ". ".join([f"storage {strip.letter}: {_title(strip)}", *tensors])


def _hover_rule(strips: list[Strip]) -> str:
    """Pointing at any box of a slot lights up every box of that slot, in the picture that holds it."""
    slots = sorted({_slot_class(strip, slot) for strip in strips for slot in _drawn_slots(strip)})
    boxes = ", ".join(f".cl-st:has(.{slot}:hover) .{slot}" for slot in slots)
    light = "box-shadow: inset 0 0 0 2px currentColor; background: rgba(255, 193, 7, .45) !important;"
    return f"{boxes} {{ {light} }}" if slots else ""


def _drawn_slots(strip: Strip) -> set[int]:
    drawn = set(range(strip.first, strip.first + strip.shown))
    for reader in strip.readers:
        for index in itertools.chain.from_iterable(itertools.chain.from_iterable(blocks(reader.x))):
            drawn.update(strip.slots_of(reader.x, index))
    return drawn


def _slot_class(strip: Strip, slot: int) -> str:
    return f"{strip.letter}-{slot}"


def _strip_html(strip: Strip) -> str:
    tensors = "".join(_tensor_html(strip, reader) for reader in strip.readers)
    heading = f"<h4>storage {strip.letter}<span>: {escape(_title(strip))}</span></h4>"
    return f"{heading}{_strip_table(strip)}{tensors}"


def _strip_table(strip: Strip) -> str:
    if not strip.shown:
        return '<div class="d">an empty storage: it has no slots</div>'
    values = strip.values()
    lanes = [(reader, strip.read_counts(reader.x)) for reader in strip.readers]
    across = _slots_across(values)
    rows = (range(i, min(i + across, strip.shown)) for i in range(0, strip.shown, across))
    return _table(values, "".join(_strip_row(strip, values, lanes, row) for row in rows))


def _slots_across(values: list[str]) -> int:
    """How many boxes fit side by side in a notebook."""
    widest = _widest(values)
    return SLOTS_PER_ROW if widest <= 4 else 12 if widest <= 7 else 8


def _table(values: Sequence[str], rows: str) -> str:
    """A table all of whose boxes are as wide as the widest value."""
    return f'<table style="--cl-widest: {_widest(values)}">{rows}</table>'


def _strip_row(strip: Strip, values: list[str], lanes: list[tuple[Reader, list[int]]], row: range) -> str:
    read = [any(counts[i] for _, counts in lanes) for i in row]
    boxes = (_box(strip, [strip.first + i], values[i], is_read) for i, is_read in zip(row, read, strict=True))
    marks = (_lane(reader, counts[row.start : row.stop]) for reader, counts in lanes)
    return f"<tr><th>{strip.letter}</th>{''.join(boxes)}</tr>{''.join(marks)}"


def _box(strip: Strip, slots: Sequence[int], value: str, is_read: bool = True) -> str:
    classes = " ".join(["b" if is_read else "b u", *(_slot_class(strip, slot) for slot in slots)])
    return f'<td class="{classes}"><small>{strip.label(slots[0])}</small><br>{escape(value)}</td>'


def _lane(reader: Reader, counts: list[int]) -> str:
    """Which slots one tensor reads: a mark, or how often where it reads one more than once."""
    kind = f"l l{_color(reader)}"
    cells = (f'<td class="{kind}">{_mark(count)}</td>' if count else "<td></td>" for count in counts)
    return f"<tr><th>{escape(reader.name)}</th>{''.join(cells)}</tr>"


def _color(reader: Reader) -> int:
    return reader.position % len(TENSOR_COLORS)


def _tensor_html(strip: Strip, reader: Reader) -> str:
    x = reader.x
    texts = element_texts(x)
    grid = "".join(_block_html(strip, x, texts, block) for block in blocks(x))
    return (
        f'<div class="t t{_color(reader)}">'
        f'<div class="c"><b>{escape(reader.name)}</b>  {_caption(strip, x)}</div>'
        f'<div class="d">{escape(_detail(strip, x))}</div><div class="g">{grid}</div></div>'
    )


def _block_html(strip: Strip, x: Tensor, texts: dict[Index, str], block: Block) -> str:
    rows = (_row_html(strip, x, texts, row) for row in block)
    return _table([*texts.values()], "".join(rows))


def _row_html(strip: Strip, x: Tensor, texts: dict[Index, str], row: list[Index]) -> str:
    head = f"<th>{_row_name(row)}</th>" if x.dim() > 1 else ""
    boxes = (_box(strip, strip.slots_of(x, index), texts.get(index, "")) for index in row)
    return f"<tr>{head}{''.join(boxes)}</tr>"


def _row_name(row: list[Index]) -> str:
    return f"[{', '.join(map(str, row[0][:-1]))}]"


# ---- as text -------------------------------------------------------------------------------------------


def _strip_text(strip: Strip) -> str:
    lines = [f"storage {strip.letter}: {_title(strip)}", *_strip_lines(strip)]
    for reader in strip.readers:
        lines += ["", f"{reader.name}  {_caption(strip, reader.x)}", f"  {_detail(strip, reader.x)}"]
        lines += _grid_lines(strip, reader.x)
    return "\n".join(lines)


def _strip_lines(strip: Strip) -> list[str]:
    numbers = [str(strip.label(strip.first + i)) for i in range(strip.shown)]
    lanes = [(reader.name, list(map(_mark, strip.read_counts(reader.x)))) for reader in strip.readers]
    rows = [("slot", numbers), ("value", strip.values()), *lanes]
    width = _widest(cell for _, cells in rows for cell in cells)
    head = _widest(name for name, _ in rows)
    across = max(1, min(SLOTS_PER_ROW, (TEXT_WIDTH - head - 2) // (width + 1)))
    starts = range(0, strip.shown, across)
    return [_text_row(name, head, cells[i : i + across], width) for i in starts for name, cells in rows]


def _grid_lines(strip: Strip, x: Tensor) -> list[str]:
    """The slot that each element reads, row by row."""
    rows = [row for block in blocks(x) for row in block]
    heads = [_row_name(row) if x.dim() > 1 else "slots" for row in rows]
    cells = [[str(strip.label(strip.slots_of(x, index)[0])) for index in row] for row in rows]
    head, width = _widest(heads), _widest(itertools.chain.from_iterable(cells))
    return [_text_row(name, head, row, width) for name, row in zip(heads, cells, strict=True)]


def _widest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def _text_row(name: str, name_width: int, cells: list[str], width: int) -> str:
    return f"  {name:<{name_width}} {' '.join(f'{cell:>{width}}' for cell in cells)}".rstrip()
