"""Several ranks in one picture: what each printed and how it ended, what a collective moved, and who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from course_lib.display.strips import short
from course_lib.display.theme import (
    LINE,
    MONO,
    STATE_COLORS,
    STATE_SYMBOLS,
    TENSOR_COLORS,
    TINT,
    Face,
    escape,
    style,
)

if TYPE_CHECKING:
    from course_lib.ranks import Outcome, RankReport

ELEMENTS_SHOWN = 16
BAR = 240  # pixels of the widest row of bars
SHEET = f"""
.ranks {{ font-family: {MONO}; font-size: 12px; line-height: 1.45; margin: .3em 0; }}
.ranks .rank {{ border-left: 4px solid; padding: .1em .6em; margin: .35em 0; }}
.ranks .rank pre {{ margin: 0; white-space: pre-wrap; background: none; color: inherit; font-size: 12px; }}
.ranks b.name {{ color: white; border-radius: 3px; padding: 0 .4em; margin-right: .5em; white-space: nowrap; }}
.ranks table {{ border-collapse: separate; border-spacing: 6px 4px; }}
.ranks td, .ranks th {{ text-align: left; padding: 0; vertical-align: middle; background: none; border: 0; }}
.ranks th {{ font-weight: 600; }}
.ranks .cell {{ display: inline-block; min-width: 2.2em; padding: .1em .3em; margin-right: 2px; text-align: center;
  border: 2px solid {LINE}; border-radius: 3px; }}
.ranks .made {{ border-style: dashed; background: {TINT}; }}
.ranks .bar {{ display: inline-block; height: 14px; margin-right: 3px; border: 1px solid {LINE}; overflow: hidden;
  vertical-align: middle; }}
.ranks .bar span {{ display: block; height: 100%; }}
.ranks small {{ opacity: .8; }}
"""


def color_of(rank: int) -> str:
    """A rank has the same color in every picture. Its number stands next to it."""
    return TENSOR_COLORS[rank % len(TENSOR_COLORS)]


def _name(rank: int) -> str:
    return f'<b class="name" style="background:{color_of(rank)}">rank {rank}</b>'


def _picture(body: str) -> str:
    return f'{style(SHEET)}<div class="ranks">{body}</div>'


# ---- what became of the ranks ------------------------------------------------------------------------------------


def show_ranks(outcome: Outcome) -> Face:
    """What each rank printed, and how it ended."""
    return Face(_picture("".join(map(_block, outcome.ranks))), repr(outcome))


def show_outcomes_in(shell: Any) -> None:
    """Let a notebook show an outcome as a picture where it is the value of a cell."""
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type_by_name("course_lib.ranks", "Outcome", lambda outcome: show_ranks(outcome).html)


def _block(report: RankReport) -> str:
    state = "passed" if report.end == "returned" else "failed"
    printed = f"<pre>{escape(report.printed.rstrip())}</pre>" if report.printed.strip() else ""
    detail = f": {report.detail}" if report.end != "waits" else f" {report.detail}"
    text = f"{report.end}{detail if report.detail else ''}"
    mark = f'<span style="color:{STATE_COLORS[state]}">{STATE_SYMBOLS[state]}</span>'
    ending = f"<pre>{mark} {escape(text)}</pre>"
    return f'<div class="rank" style="border-color:{color_of(report.rank)}">{_name(report.rank)}{printed}{ending}</div>'


# ---- what a collective moves -------------------------------------------------------------------------------------


def show_collective(name: str, before: Sequence[Tensor], after: Sequence[Tensor]) -> Face:
    """What each rank held before and after: (n,) numbers each.

    Where all numbers were there before, they moved, and each keeps the color of its (first) owner. Where some were
    not, the collective computes, and a number that equals one from before does so by accident: all are dashed.
    """
    owners = {value: rank for rank in reversed(range(len(before))) for value in _values(before[rank])}
    if any(value not in owners for x in after for value in _values(x)):
        owners = {}
    rows = [
        f"<tr><td>{_name(rank)}</td><td>{_cells(x, dict.fromkeys(_values(x), rank))}</td>"
        f"<td>&rarr;</td><td>{_cells(y, owners)}</td></tr>"
        for rank, (x, y) in enumerate(zip(before, after, strict=True))
    ]
    head = f"<tr><th></th><th>before</th><th></th><th>after {escape(name)}</th></tr>"
    note = "<small>a number in the color of the rank that held it; dashed: computed on the way</small>"
    return Face(
        _picture(f"<table>{head}{''.join(rows)}</table>{note}"), _collective_text(name, before, after)
    )


def _values(x: Tensor) -> list:
    return x.detach().flatten()[:ELEMENTS_SHOWN].tolist()


def _cells(x: Tensor, owners: dict) -> str:
    """With a space between two numbers, for pages that show no styles."""
    return " ".join(_cell(value, owners.get(value)) for value in _values(x)) or "<small>nothing</small>"


def _cell(value: float, owner: int | None) -> str:
    if owner is None:
        return f'<span class="cell made">{short(value)}</span>'
    return f'<span class="cell" style="border-color:{color_of(owner)}">{short(value)}</span>'


def _collective_text(name: str, before: Sequence[Tensor], after: Sequence[Tensor]) -> str:
    pairs = enumerate(zip(before, after))
    return "\n".join([f"{name}:", *(f"  rank {r}: {_list(x)} -> {_list(y)}" for r, (x, y) in pairs)])


def _list(x: Tensor) -> str:
    return f"[{', '.join(map(short, _values(x)))}]"


# ---- who holds what ----------------------------------------------------------------------------------------------

Holding = dict[str, tuple[int, int]]  # part of the model -> (elements held here, elements in all)


def show_shards(moments: dict[str, Sequence[Holding]]) -> Face:
    """For each moment what each rank holds of each part of a model: a frame as wide as the part, filled as far.

    `moments` maps a moment to one `{part: (held, total)}` per rank.
    """
    widest = max(sum(total for _, total in held.values()) for ranks in moments.values() for held in ranks)
    ranks = range(len(next(iter(moments.values()))))
    head = "".join(f"<th>{_name(rank)}</th>" for rank in ranks)
    rows = "".join(
        f"<tr><th>{escape(moment)}</th>{''.join(_bars(r, held, widest) for r, held in enumerate(holdings))}</tr>"
        for moment, holdings in moments.items()
    )
    return Face(_picture(f"<table><tr><th></th>{head}</tr>{rows}</table>"), _shards_text(moments))


def _bars(rank: int, held: Holding, widest: int) -> str:
    bars = "".join(
        f'<span class="bar" title="{escape(part)}" style="width:{max(BAR * total // widest, 3)}px">'
        f'<span style="width:{100 * here // max(total, 1)}%;background:{color_of(rank)}"></span></span>'
        for part, (here, total) in held.items()
    )
    return f"<td>{bars}<br><small>{_amounts(held)}</small></td>"


def _amounts(held: Holding) -> str:
    return escape(", ".join(f"{part}: {here} of {total}" for part, (here, total) in held.items()))


def _shards_text(moments: dict[str, Sequence[Holding]]) -> str:
    lines = []
    for moment, holdings in moments.items():
        lines += [f"{moment}:", *(f"  rank {rank}: {_amounts(held)}" for rank, held in enumerate(holdings))]
    return "\n".join(lines)
