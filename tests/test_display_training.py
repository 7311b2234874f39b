"""Curves and the number line: deterministic pictures that say in words what they show."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from course_lib.display import Curves, show_number_line
from course_lib.display.numberline import smallest


def pixels(picture) -> np.ndarray:
    """(height, width, 4), values from 0 to 1."""
    return imread(io.BytesIO(picture.png), format="png")


def losses(n: int = 30) -> Curves:
    curves = Curves("loss", "grad norm")
    for step in range(n):
        curves.add(loss=1 / (1 + step), grad_norm=math.inf if step == 7 else step)
    return curves


def test_equal_numbers_give_equal_bytes():
    assert losses().picture().png == losses().picture().png
    gradients = torch.logspace(-12, 0, 50)
    assert show_number_line(gradients, 1024).png == show_number_line(gradients, 1024).png


def test_other_numbers_give_another_picture():
    assert losses(30).picture().png != losses(29).picture().png
    assert show_number_line().png != show_number_line(torch.ones(3)).png


@pytest.mark.parametrize("picture", [losses().picture(), show_number_line(torch.logspace(-9, 0, 9), 8)])
def test_pictures_bring_their_own_background(picture):
    """So they read alike on a light and on a dark page."""
    image = pixels(picture)
    assert image.shape[2] == 3 or (image[..., 3] == 1).all()
    corner, darkest = image[0, 0, :3].mean(), image[..., :3].mean(axis=2).min()
    assert corner > 0.95 and darkest < 0.3


def test_a_number_that_is_not_finite_is_marked():
    def reddish(odd: float) -> int:
        curves = Curves("loss")  # drawn in blue
        for step in range(30):
            curves.add(loss=odd if step == 7 else 1 / (1 + step))
        image = pixels(curves.picture())
        return int(((image[..., 0] > 0.7) & (image[..., 1] < 0.5) & (image[..., 2] < 0.5)).sum())

    assert reddish(0.1) == 0 < reddish(math.inf)
    assert reddish(math.nan) > 0


def test_curves_are_redrawn_while_numbers_come(monkeypatch):
    class Handle:
        updates: list = []  # noqa: RUF012

        def update(self, picture):
            self.updates.append(picture.png)

    monkeypatch.setattr("IPython.display.display", lambda picture, display_id: Handle())
    with Curves("loss", every=2) as curves:
        for step in range(5):
            curves.add(loss=step)
    assert len(Handle.updates) == 3 and len(set(Handle.updates)) == 3
    assert curves.points == {"loss": [0.0, 1.0, 2.0, 3.0, 4.0]}


def test_an_unknown_curve_is_refused():
    with pytest.raises(KeyError, match="accuracy"):
        Curves("loss").add(accuracy=1.0)


def test_the_smallest_numbers_are_those_of_the_formats():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        least = torch.tensor(smallest(dtype), dtype=torch.float64).to(dtype)
        assert least > 0 and (least.double() / 4).to(dtype) == 0


def test_the_words_count_what_float16_loses():
    gradients = torch.tensor([1e-3, -1e-6, 1e-9, 1e-10, 0.0])
    kept = gradients.to(torch.float16).count_nonzero(), (gradients * 1024).to(torch.float16).count_nonzero()
    assert kept == (2, 4)
    assert "of 4 gradients float16 loses 2, 0 when scaled by 1024" in repr(show_number_line(gradients, 1024))
