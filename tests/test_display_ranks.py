"""Pictures of ranks: labeled as well as colored, escaped, and with the same facts as their text."""

from __future__ import annotations

import re

import pytest
import torch

from course_lib.display import show_collective, show_ranks, show_shards
from course_lib.display.ranks import color_of, show_outcomes_in
from course_lib.ranks import Outcome, RankReport


def outcome(*reports: tuple[str, str, str]) -> Outcome:
    return Outcome(tuple(RankReport(rank, *report, ()) for rank, report in enumerate(reports)))


def test_each_rank_has_its_color_its_number_and_what_it_printed():
    face = show_ranks(outcome(("returned", "", "hello\n"), ("raised", "ValueError: no", "")))
    for rank in range(2):
        assert f"rank {rank}</b>" in face.html and color_of(rank) in face.html
    assert "hello" in face.html and "raised: ValueError: no" in face.html
    assert repr(face) == "[rank 0] hello\nrank 0 returned\nrank 1 raised: ValueError: no"


def test_what_a_rank_printed_is_shown_literally():
    face = show_ranks(outcome(("returned", "", "<script>alert(1)</script>")))
    assert "<script>" not in face.html and "&lt;script&gt;" in face.html


def test_a_rank_that_waits_is_said_in_a_sentence():
    face = show_ranks(outcome(("waits", "in all_reduce, its call number 1", "")))
    assert "waits in all_reduce" in face.html and "waits in all_reduce" in face.text


def test_numbers_stand_apart_where_a_page_shows_no_styles():
    face = show_collective("all_reduce", [torch.tensor([0.0, 1.0])], [torch.tensor([2.0, 3.0])])
    assert "0. 1." in re.sub(r"<[^>]*>", "", face.html)


def test_a_number_that_moved_keeps_its_owners_color_and_a_sum_has_none():
    before = [torch.tensor([1.0]), torch.tensor([5.0])]
    moved = show_collective("broadcast", before, [torch.tensor([5.0]), torch.tensor([5.0])])
    assert moved.html.count(f'border-color:{color_of(1)}">5.') == 3
    added = show_collective("all_reduce", before, [torch.tensor([6.0]), torch.tensor([6.0])])
    assert added.html.count('class="cell made">6.') == 2
    assert added.text.splitlines()[1] == "  rank 0: [1.] -> [6.]"


def test_a_sum_that_equals_a_number_from_before_did_not_move():
    before = [torch.tensor([0.0, 1.0]), torch.tensor([5.0, 6.0])]
    added = show_collective("reduce_scatter", before, [torch.tensor([5.0]), torch.tensor([7.0])])
    assert added.html.count('class="cell made">') == 2


def test_before_and_after_must_have_equally_many_ranks():
    with pytest.raises(ValueError, match="zip"):
        show_collective("broadcast", [torch.ones(1)], [torch.ones(1), torch.ones(1)])


def test_shards_are_drawn_as_wide_as_the_part_and_filled_as_far_as_held():
    face = show_shards(
        {"at rest": [{"layer": (50, 100)}, {"layer": (50, 100)}], "forward": [{"layer": (100, 100)}] * 2}
    )
    assert face.html.count("width:50%") == 2 and face.html.count("width:100%") == 2
    assert "at rest:\n  rank 0: layer: 50 of 100" in face.text


def test_a_notebook_shows_an_outcome_as_a_picture():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    show_outcomes_in(shell)
    formats, _ = shell.display_formatter.format(outcome(("returned", "", "hello")))
    assert "rank 0</b>" in formats["text/html"] and "rank 0 returned" in formats["text/plain"]
