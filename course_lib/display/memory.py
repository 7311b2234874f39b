"""`show_memory`: what is in use during a training run, stacked by category, with its phases marked.

Time runs from left to right in events, so a picture is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from course_lib.display.theme import INK, LINE, TENSOR_COLORS, TINT, Face, escape, style
from course_lib.simulation import CATEGORIES, Timeline

COLUMNS = 240  # steps along the time axis; each shows the fullest moment of its events
WIDTH, HEIGHT = 760, 190  # of the plot itself, in SVG units
LEFT, TOP = 66, 34  # room for the scale and for the names of the phases
NARROWEST_LABEL = 6  # units per letter that a phase needs for its name
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))

_SHEET = f"""
.cl-mem {{ color: {INK}; font-size: 13px; line-height: 1.35; max-width: 860px; margin: 6px 0; }}
.cl-mem h4 {{ font-size: 13px !important; font-weight: 600; margin: 10px 0 2px !important; color: inherit; }}
.cl-mem h4 span, .cl-mem .d {{ font-weight: normal; opacity: .78; }}
.cl-mem svg {{ display: block; width: 100%; height: auto; }}
.cl-mem text {{ fill: currentColor; font-size: 11px; font-family: inherit; }}
.cl-mem line, .cl-mem path.axis {{ stroke: {LINE}; fill: none; }}
.cl-mem line.peak {{ stroke: currentColor; stroke-dasharray: 3 3; }}
.cl-mem .odd {{ fill: {TINT}; }}
.cl-mem ul {{ display: flex; flex-wrap: wrap; gap: 2px 16px; list-style: none !important;
  margin: 2px 0 !important; padding: 0 !important; font-size: 12px; }}
.cl-mem li {{ list-style: none !important; margin: 0 !important; }}
.cl-mem i {{ display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }}
""" + "".join(
    f".cl-mem .c{i} {{ fill: {color}; background: {color}; }} " for i, color in enumerate(TENSOR_COLORS)
)


def show_memory(*timelines: Timeline, names: Sequence[str] = ()) -> Face:
    """Draw each timeline as stacked areas, all on one scale, and say what is in use at each peak.

    `names` are the captions, one for each timeline. Raises TypeError where their number differs.
    """
    if not timelines or (names and len(names) != len(timelines)):
        raise TypeError(
            f"show_memory() needs timelines and a name for each; got {len(timelines)} and {names!r}"
        )
    captions = list(names) or [""] * len(timelines)
    scale = max(timeline.peak for timeline in timelines) or 1
    charts = "".join(_chart(c, t, scale) for c, t in zip(captions, timelines, strict=True))
    note = '<div class="d">Time runs in events: each storage that comes or goes is one.</div>'
    text = "\n\n".join(_text(c, t) for c, t in zip(captions, timelines, strict=True))
    return Face(f'{style(_SHEET)}<div class="cl-mem">{charts}{note}</div>', text)


def size_text(nbytes: int) -> str:
    """Bytes in the largest unit of which there is one: `785.3 MiB`, `96 B`."""
    for unit, name in UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}" if nbytes < 1000 * unit else f"{nbytes / unit:.0f} {name}"
    return f"{nbytes} B"


# ---- as HTML -------------------------------------------------------------------------------------------


def _chart(caption: str, timeline: Timeline, scale: int) -> str:
    peak = f"peak {size_text(timeline.peak)} in {timeline.phase_at(timeline.peak_event)}"
    title = f"<h4>{escape(caption) or 'memory'}<span>: {escape(peak)}</span></h4>"
    columns = _columns(timeline)
    body = _phases(timeline) + _areas(timeline, columns, scale) + _scale(scale) + _peak(timeline, scale)
    box = f"0 0 {LEFT + WIDTH + 8} {TOP + HEIGHT + 6}"
    label = escape(f"{caption}: {peak}. {_spoken(timeline)}")
    return f'{title}<svg viewBox="{box}" role="img" aria-label="{label}">{body}</svg>{_legend(timeline)}'


def _columns(timeline: Timeline) -> list[int]:
    """For each step along the time axis, the event in it after which most was in use."""
    totals, n = timeline.totals(), timeline.n_events
    count = min(COLUMNS, n)
    edges = [i * n // count for i in range(count + 1)] if count else []
    return [max(range(a, b), key=totals.__getitem__) for a, b in pairwise(edges)]


def _areas(timeline: Timeline, columns: list[int], scale: int) -> str:
    """One area for each category, on top of those before it."""
    floor, paths = [0] * len(columns), ""
    for i, (category, series) in enumerate(timeline.by_category().items()):
        ceiling = [low + series[event] for low, event in zip(floor, columns, strict=True)]
        if any(series):
            outline = _outline(floor, ceiling, scale)
            paths += f'<path class="c{i}" d="{outline}"><title>{category}</title></path>'
        floor = ceiling
    return paths


def _outline(floor: list[int], ceiling: list[int], scale: int) -> str:
    """The area between two rows of steps: along the ceiling, and back along the floor."""
    points = [*_steps(ceiling, scale), *reversed(_steps(floor, scale))]
    return f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in points)}Z"


def _steps(levels: list[int], scale: int) -> list[tuple[float, float]]:
    """The corners of a row of steps, one column each; columns of one level are one step."""
    width, corners, column = WIDTH / len(levels), [], 0
    for level, columns in groupby(levels):
        end = column + len(list(columns))
        corners += [(LEFT + x * width, _y(level, scale)) for x in (column, end)]
        column = end
    return corners


def _y(nbytes: float, scale: int) -> float:
    return TOP + HEIGHT * (1 - nbytes / scale)


def _x(timeline: Timeline, event: int) -> float:
    return LEFT + WIDTH * event / max(timeline.n_events, 1)


def _phases(timeline: Timeline) -> str:
    """A tinted band behind every other phase, its name above where there is room."""
    bands = ""
    for i, (name, start, end) in enumerate(timeline.spans()):
        left, right = _x(timeline, start), _x(timeline, end)
        kind = "odd" if i % 2 else "even"
        title = f"<title>{escape(name)}</title>"
        bands += f'<rect class="{kind}" fill="none" x="{left:.1f}" y="{TOP - 16}" width="{right - left:.1f}" '
        bands += f'height="{HEIGHT + 16}">{title}</rect>'
        if right - left >= NARROWEST_LABEL * len(name):
            bands += (
                f'<text x="{(left + right) / 2:.1f}" y="{TOP - 5}" text-anchor="middle">{escape(name)}</text>'
            )
    return bands


def _scale(scale: int) -> str:
    """The axis at the left: nothing, half and all of the highest peak in the picture."""
    ticks = ((share, TOP + HEIGHT * (1 - share)) for share in (0, 0.5, 1))
    labels = (
        f'<line x1="{LEFT - 4}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{size_text(int(scale * share))}</text>'
        for share, y in ticks
    )
    return "".join(labels)


def _peak(timeline: Timeline, scale: int) -> str:
    x, y = _x(timeline, timeline.peak_event), _y(timeline.peak, scale)
    return f'<line class="peak" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{TOP + HEIGHT}"/>'


def _legend(timeline: Timeline) -> str:
    """What is in use at the peak, in the order in which it is stacked, from the bottom."""
    rows = (
        f'<li><i class="c{CATEGORIES.index(category)}"></i>{category} {size_text(nbytes)}</li>'
        for category, nbytes in _at_peak(timeline).items()
    )
    return f"<ul><li>at the peak, from the bottom:</li>{''.join(rows)}</ul>"


def _at_peak(timeline: Timeline) -> dict[str, int]:
    if not timeline.n_events:
        return {}
    at_peak = {name: series[timeline.peak_event] for name, series in timeline.by_category().items()}
    return {name: nbytes for name, nbytes in at_peak.items() if nbytes}


# ---- as text -------------------------------------------------------------------------------------------


def _spoken(timeline: Timeline) -> str:
    return ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in _at_peak(timeline).items())


def _text(caption: str, timeline: Timeline) -> str:
    """The peak of each phase as a bar, and what is in use at the highest."""
    peaks = timeline.peaks()
    width = max(map(len, peaks), default=0)
    head = (
        f"{caption or 'memory'}: peak {size_text(timeline.peak)} in {timeline.phase_at(timeline.peak_event)}"
    )
    bars = [
        f"  {name:<{width}} {size_text(nbytes):>10} {'#' * round(40 * nbytes / (timeline.peak or 1))}".rstrip()
        for name, nbytes in peaks.items()
    ]
    return "\n".join([head, *bars, f"  at the peak: {_spoken(timeline)}"])
