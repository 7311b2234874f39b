"""The map of the course: each notebook with its exercises and predictions, and what is done."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.display.theme import INK, LINE, STATE_COLORS, STATE_SYMBOLS, TINT, Face, escape, style

Item = tuple[str, str, str, bool]  # name, "exercise" or "prediction", state, stretch
Row = tuple[str, Sequence[Item]]  # title of the notebook, its items in order

TEXT_WIDTH = 88
BAR_WIDTH = 20
KINDS = ("exercise", "prediction")
STATES = ("passed", "tried", "not attempted")

_SHEET = f"""
.cl-map {{ color: {INK}; font-size: 13px; line-height: 1.4; max-width: 900px; margin: 6px 0; }}
.cl-map .h {{ display: flex; flex-wrap: wrap; gap: 2px 12px; align-items: center; margin: 14px 0 5px; }}
.cl-map .h b {{ font-size: 14px; }}
.cl-map .bar {{ flex: 0 0 140px; height: 8px; border: 1px solid {LINE}; border-radius: 5px;
  overflow: hidden; }}
.cl-map .bar div {{ height: 100%; background: {STATE_COLORS["passed"]}; }}
.cl-map .m {{ opacity: .78; font-size: 12.5px; }}
.cl-map ul {{ display: flex; flex-wrap: wrap; gap: 5px; list-style: none !important; margin: 3px 0 !important;
  padding: 0 !important; }}
.cl-map li {{ border: 1px solid {LINE}; border-left: 4px solid; border-radius: 3px; padding: 1px 8px 1px 6px;
  margin: 0 !important; font-size: 12.5px; list-style: none !important; }}
.cl-map li.prediction {{ border-radius: 11px; padding-left: 8px; border-left-width: 1px; }}
.cl-map li.stretch {{ border-top-style: dashed; border-right-style: dashed; border-bottom-style: dashed; }}
.cl-map li.passed {{ border-left-color: {STATE_COLORS["passed"]}; background: rgba(26, 127, 55, .16); }}
.cl-map li.tried {{ border-left-color: {STATE_COLORS["tried"]}; background: rgba(173, 87, 0, .14); }}
.cl-map li.not {{ border-left-color: {LINE}; }}
.cl-map .next {{ background: {TINT}; border-radius: 4px; padding: 5px 12px; margin: 12px 0 4px; }}
"""
_LEGEND = f"{', '.join(f'{STATE_SYMBOLS[state]} {state}' for state in STATES)}; * stretch: beyond the core"


def course_map_face(rows: Sequence[Row]) -> Face:
    """Both faces of the map."""
    return Face(course_map_html(rows), course_map_text(rows))


def course_map_html(rows: Sequence[Row]) -> str:
    """One bar and one list of labelled items for each notebook, and the next thing to do."""
    notebooks = "".join(_notebook_html(title, items) for title, items in rows)
    step = f'<div class="next"><b>Next:</b> {escape(next_item(rows))}</div>'
    return f'{style(_SHEET)}<div class="cl-map">{notebooks}{step}<div class="m">{escape(_LEGEND)}</div></div>'


def next_item(rows: Sequence[Row]) -> str:
    """The first item of the core that has not been passed, then the first stretch item, in words."""
    open_items = [(item, title) for title, items in rows for item in items if item[2] != "passed"]
    if not open_items:
        return "everything here is done."
    (name, kind, _, stretch), title = min(open_items, key=lambda found: found[0][3])
    return f"{'the stretch ' if stretch else 'the '}{kind} {name}, in {title}"


def _counts(items: Sequence[Item]) -> str:
    """'5 of 17 exercises, 3 of 14 predictions'."""
    counted = [_count(kind, [item for item in items if item[1] == kind]) for kind in KINDS]
    return ", ".join(part for part in counted if part) or "nothing to solve"


def _count(kind: str, items: Sequence[Item]) -> str:
    noun = kind if len(items) == 1 else f"{kind}s"
    return f"{_done(items)} of {len(items)} {noun}" if items else ""


def _done(items: Sequence[Item]) -> int:
    return sum(state == "passed" for _, _, state, _ in items)


def _notebook_html(title: str, items: Sequence[Item]) -> str:
    percent = 100 * _done(items) // max(len(items), 1)
    filled = f'<div style="width: {percent}%"></div>'
    bar = f'<div class="bar" role="img" aria-label="{percent} percent done">{filled}</div>'
    lists = "".join(_list_html([item for item in items if item[1] == kind]) for kind in KINDS)
    return f'<div class="h"><b>{escape(title)}</b>{bar}<span class="m">{_counts(items)}</span></div>{lists}'


def _list_html(items: Sequence[Item]) -> str:
    return f"<ul>{''.join(map(_item_html, items))}</ul>" if items else ""


def _item_html(item: Item) -> str:
    name, kind, state, stretch = item
    classes = f"{kind} {state.split()[0]}" + (" stretch" if stretch else "")
    spoken = escape(f"{kind} {name}: {state}" + (", stretch" if stretch else ""))
    return f'<li class="{classes}" title="{spoken}" aria-label="{spoken}">{escape(_label(item))}</li>'


def _label(item: Item) -> str:
    name, _, state, stretch = item
    return f"{STATE_SYMBOLS[state]} {name}{' *' if stretch else ''}"


def course_map_text(rows: Sequence[Row], width: int = TEXT_WIDTH) -> str:
    """The map as plain text."""
    notebooks = [_notebook_text(title, items, width) for title, items in rows]
    return "\n\n".join([*notebooks, f"Next: {next_item(rows)}\n{_LEGEND}"])


def _notebook_text(title: str, items: Sequence[Item], width: int) -> str:
    filled = BAR_WIDTH * _done(items) // max(len(items), 1)
    bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]"
    groups = [[_label(item) for item in items if item[1] == kind] for kind in KINDS]
    return "\n".join(
        [f"{title}  {bar} {_counts(items)}", *(_columns(group, width) for group in groups if group)]
    )


def _columns(labels: list[str], width: int) -> str:
    cell = max(map(len, labels)) + 2
    across = max(1, (width - 2) // cell)
    lines = (labels[i : i + across] for i in range(0, len(labels), across))
    return "\n".join("  " + "".join(f"{label:<{cell}}" for label in line).rstrip() for line in lines)
