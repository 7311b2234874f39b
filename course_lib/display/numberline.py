"""The floating-point formats on one logarithmic number line, and where the numbers of a tensor fall."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from course_lib.display.plots import CARD, FAINT, INK, Picture, new_figure, quiet, to_png
from course_lib.display.theme import TENSOR_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
ENDS = (-46, 40)  # powers of ten that are shown
BINS = 86  # one per power of ten


def show_number_line(gradients: Tensor | None = None, scale: float = 1.0) -> Picture:
    """Ranges of float32, bfloat16 and float16, and how fine each is near 1.

    With `gradients` (any shape) their sizes are drawn above the line; with a `scale`, the scaled sizes as well.
    """
    figure = new_figure(9, 3.4)
    ranges, steps = figure.subplots(1, 2, width_ratios=[3, 1], sharey=True)
    _draw_ranges(ranges)
    _draw_steps(steps)
    text = "; ".join(map(_in_words, FORMATS))
    if gradients is not None:
        _draw_sizes(ranges, gradients, scale)
        text += f"; {_lost_in_words(gradients, scale)}"
    return Picture(to_png(figure), text)


def smallest(dtype: torch.dtype) -> float:
    """The smallest positive number of a format, subnormal numbers included."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _in_words(dtype: torch.dtype) -> str:
    info = torch.finfo(dtype)
    return f"{_name(dtype)} {smallest(dtype):.1e} to {info.max:.1e}, next after 1: 1 + {info.eps:.1e}"


def _lost_in_words(gradients: Tensor, scale: float) -> str:
    sizes = _sizes(gradients)
    lost = [int((sizes * factor < smallest(torch.float16) / 2).sum()) for factor in (1.0, scale)]
    scaled = f", {lost[1]} when scaled by {scale:g}" if scale != 1 else ""
    return f"of {len(sizes)} gradients float16 loses {lost[0]}{scaled}"


def _sizes(gradients: Tensor) -> Tensor:
    sizes = gradients.detach().double().abs().flatten()
    return sizes[(sizes > 0) & sizes.isfinite()]


def _draw_ranges(axes: Axes) -> None:
    """A bar per format: solid where it has full precision, pale where it is subnormal."""
    quiet(axes)
    for row, dtype in enumerate(FORMATS):
        info, color = torch.finfo(dtype), TENSOR_COLORS[row]
        low, tiny, high = (math.log10(value) for value in (smallest(dtype), info.tiny, info.max))
        axes.barh(row, high - tiny, left=tiny, height=0.34, color=color)
        axes.barh(row, tiny - low, left=low, height=0.34, color=CARD, edgecolor=color, hatch="////")
        ends = f"{_name(dtype)}   {smallest(dtype):.0e} … {info.tiny:.0e} … {info.max:.0e}"
        axes.text(ENDS[0], row + 0.27, ends, fontsize=8, color=INK)
    axes.set(xlim=ENDS, ylim=(-0.4, 2.7), yticks=[])
    axes.set_xticks(range(-40, 41, 10), [f"1e{power}" for power in range(-40, 41, 10)])
    axes.set_xlabel("size of a number (hatched: subnormal, fewer digits)", fontsize=8, color=INK)


def _draw_steps(axes: Axes) -> None:
    """The numbers that exist between 1 and 1 + 4/128."""
    quiet(axes)
    for row, dtype in enumerate(FORMATS):
        eps = max(torch.finfo(dtype).eps, 2.0**-14)  # finer marks would run into one another
        marks = [1 + i * eps for i in range(int(4 / 128 / eps) + 1)]
        axes.vlines(marks, row - 0.17, row + 0.17, color=TENSOR_COLORS[row], linewidth=1)
    axes.set(xlim=(0.997, 1 + 4.6 / 128), xticks=[1, 1 + 2 / 128, 1 + 4 / 128])
    axes.tick_params(left=False, labelleft=False)
    axes.set_xticklabels(["1", "1 + 2/128", "1 + 4/128"])
    axes.set_xlabel("the numbers that exist near 1", fontsize=8, color=INK)


def _draw_sizes(axes: Axes, gradients: Tensor, scale: float) -> None:
    """How many gradients have which size, above the bars; dashed: the smallest number of float16."""
    axes.set_ylim(-0.4, 4.4)
    for factor, color, style in ((1.0, INK, "solid"), (scale, TENSOR_COLORS[3], "dashed")):
        counts = torch.histc((_sizes(gradients) * factor).log10(), BINS, *ENDS)
        edges = torch.linspace(*ENDS, BINS + 1).tolist()
        label = "gradients" if factor == 1 else f"gradients times {scale:g}"
        heights = (2.9 + 1.3 * counts / counts.max()).tolist()
        axes.stairs(heights, edges, baseline=2.9, color=color, linestyle=style, label=label, linewidth=1.2)
        if scale == 1:
            break
    axes.axvline(math.log10(smallest(torch.float16)), color=FAINT, linestyle="--", linewidth=1, zorder=0)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="upper left")
