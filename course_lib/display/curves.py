"""Curves that are drawn while a training loop runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from course_lib.display.plots import INK, Picture, new_figure, quiet, to_png
from course_lib.display.theme import STATE_COLORS, TENSOR_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Curves:
    """A panel per name, side by side; in a notebook the picture grows as numbers are added.

    with Curves("loss", "lr") as curves:      # shows the picture
        curves.add(loss=0.5, lr=1e-3)         # an underscore in a keyword stands for the space in a name
    """

    def __init__(self, *names: str, every: int = 20):
        self.points: dict[str, list[float]] = {name: [] for name in names}
        self.every = every  # how many additions make a new picture
        self.added = 0
        self._shown: Any = None  # the place in the notebook that holds the picture

    def __enter__(self) -> Curves:
        from IPython.display import display

        self._shown = display(self.picture(), display_id=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._redraw()

    def add(self, **values: float) -> None:
        """One more point for each curve that is named. A number that is not finite is marked, not drawn."""
        for name, value in values.items():
            self.points[name.replace("_", " ")].append(float(value))
        self.added += 1
        if self.added % self.every == 0:
            self._redraw()

    def picture(self) -> Picture:
        """The curves so far."""
        figure = new_figure(3.0 * len(self.points), 2.2)
        panels = figure.subplots(1, len(self.points), squeeze=False)[0]
        for position, (axes, (name, values)) in enumerate(zip(panels, self.points.items())):
            _draw(axes, name, values, TENSOR_COLORS[position % len(TENSOR_COLORS)])
        return Picture(to_png(figure), f"curves: {', '.join(self.points)}")

    def _redraw(self) -> None:
        if self._shown is not None:  # outside of a notebook there is no place to draw
            self._shown.update(self.picture())


def _draw(axes: Axes, name: str, values: list[float], color: str) -> None:
    quiet(axes)
    axes.set_title(name, fontsize=10, color=INK, loc="left")
    axes.set_xlabel("step", fontsize=8, color=INK)
    axes.plot(range(len(values)), values, color=color, linewidth=1.4)
    missing = [step for step, value in enumerate(values) if not math.isfinite(value)]
    for step in missing:
        axes.axvline(step, color=STATE_COLORS["failed"], linewidth=1, linestyle=":")
    if missing:
        axes.plot([], [], ":", color=STATE_COLORS["failed"], label="not finite")
        axes.legend(fontsize=7, frameon=False, labelcolor=INK)


def show_losses(runs: dict[str, list[float]], levels: dict[str, float]) -> Picture:
    """Losses by step, one line for each run, against horizontal lines that say what a loss means.

    `levels` are named losses, for example {"ln V": 2.08, "entropy rate": 0.81}. A line below the lowest is suspect.
    """
    figure = new_figure(6.4, 3.0)
    axes = figure.subplots()
    quiet(axes)
    axes.set_xlabel("step", fontsize=8, color=INK)
    axes.set_ylabel("loss, nats per token", fontsize=8, color=INK)
    for position, (name, values) in enumerate(runs.items()):
        color = TENSOR_COLORS[position % len(TENSOR_COLORS)]
        axes.plot(range(len(values)), values, color=color, linewidth=1.4, label=name)
    for name, level in levels.items():
        axes.axhline(level, color=INK, linewidth=1, linestyle=":")
        axes.annotate(
            name,
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(4, -3),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    said = "; ".join(f"{name} ends at {values[-1]:.2f}" for name, values in runs.items())
    return Picture(
        to_png(figure), f"losses: {said}; {', '.join(f'{n} is {v:.2f}' for n, v in levels.items())}"
    )
