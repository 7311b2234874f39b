"""Attention maps, and losses against their levels."""

from __future__ import annotations

import re

import pytest
import torch

from course_lib.display import show_attention, show_losses

CAUSAL = torch.ones(2, 3, 3).tril().softmax(-1) * torch.ones(3, 3).tril()


def test_each_weight_is_a_box_and_a_leak_is_marked():
    shown = show_attention(CAUSAL, ["a", " ", "\n"])._repr_html_()
    assert shown.count("<figure>") == 2 and shown.count("looks at") == 2 * 6
    assert 'class="future"' not in shown
    leaky = show_attention(torch.full((1, 3, 3), 1 / 3), ["a", "b", "c"])._repr_html_()
    assert leaky.count('class="future"') == 3


def test_blanks_can_be_seen_and_markup_is_literal():
    face = show_attention(torch.eye(3)[None], ["<b>", " ", "\n"])
    assert "<b>" not in face.html and "&lt;b&gt;" in face.html
    assert repr(face) == "head 0: <b>→<b> 1.00, ␣→␣ 1.00, ↵→↵ 1.00"


def test_a_map_follows_the_theme():
    shown = show_attention(CAUSAL, list("abc")).html
    assert "currentColor" in shown and not re.search(r"(fill|color): (black|white|#000|#fff)", shown)


def test_long_sequences_are_cut():
    shown = show_attention(torch.eye(40)[None], ["x"] * 40).html
    assert shown.count("looks at") == 24


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"got \(2, 3, 3\) for 2 tokens"):
        show_attention(CAUSAL, ["a", "b"])


def test_losses_are_drawn_with_their_levels():
    runs, levels = {"right": [2.0, 0.9], "no mask": [2.0, 0.1]}, {"ln V": 2.08, "entropy rate": 0.81}
    picture = show_losses(runs, levels)
    assert picture.png == show_losses(runs, levels).png != show_losses(runs, {"ln V": 2.08}).png
    assert (
        repr(picture)
        == "losses: right ends at 0.90; no mask ends at 0.10; ln V is 2.08, entropy rate is 0.81"
    )
