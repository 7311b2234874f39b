"""What pictures made by matplotlib share: a light card of their own, and the form in which a notebook keeps them.

The card is opaque, so that the picture reads the same on a light and on a dark page. Equal data gives equal bytes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CARD, INK, FAINT = "#fcfcfc", "#333333", "#c8c8c8"


@dataclass(frozen=True)
class Picture:
    """A PNG, and the words that stand for it where no picture can be shown."""

    png: bytes = field(repr=False)
    text: str

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return self.text


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches that belongs to no window and no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, facecolor=CARD, layout="constrained")


def quiet(axes: Axes) -> None:
    """Axes as all our pictures have them: two faint lines, dark letters."""
    axes.set_facecolor(CARD)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=8)


def to_png(figure: Figure) -> bytes:
    """The figure as PNG, without the version of the program that drew it."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"font.family": "DejaVu Sans"}):
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()
