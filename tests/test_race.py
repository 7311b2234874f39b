"""The race: its optimizer against the singular values, its budget, its validation loss, and the record of the best."""

from __future__ import annotations

import copy
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib import record_race
from course_lib import session as session_module
from course_lib.reference import race as r
from course_lib.reference.gpt import MiniGPT, init_weights

QUICK = r.RaceSettings(steps=12, batch=4, seq=8)


def tiny_gpt(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = MiniGPT(vocab=5, dim=16, n_head=2, n_layer=1, max_len=8)
    init_weights(model)
    return model


def tokens(n: int, seed: int = 0) -> torch.Tensor:
    """A text with a rule: each token is the one before, plus 0 or 1, modulo 5."""
    steps = torch.randint(2, (n,), generator=torch.Generator().manual_seed(seed))
    return steps.cumsum(0) % 5


# ---- orthogonalize -----------------------------------------------------------------------------------------------


def singular_parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.linalg.svd(x, full_matrices=False)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5), (3, 8, 5)])
def test_singular_vectors_stay_and_singular_values_come_near_1(shape):
    generator = torch.Generator().manual_seed(0)
    u, _, vh = singular_parts(torch.randn(shape, generator=generator, dtype=torch.float64))
    values = torch.linspace(1.0, 0.2, u.shape[-1], dtype=torch.float64)
    done = r.orthogonalize(1e3 * (u * values) @ vh)
    inside = u.mT @ done @ vh.mT  # diagonal where the singular vectors are the same
    assert torch.allclose(inside, torch.diag_embed(inside.diagonal(dim1=-2, dim2=-1)), atol=1e-10)
    assert torch.allclose((u @ u.mT) @ done, done, atol=1e-10)
    assert inside.diagonal(dim1=-2, dim2=-1).min() > 0.65
    assert inside.diagonal(dim1=-2, dim2=-1).max() < 1.25


def test_the_scale_of_an_update_does_not_matter_and_zeros_stay():
    update = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(r.orthogonalize(update * 1e-6), r.orthogonalize(update * 1e6), atol=1e-5)
    assert torch.equal(r.orthogonalize(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_no_steps_leave_the_update_divided_by_its_norm():
    update = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert torch.allclose(r.orthogonalize(update, steps=0), update / 5)
    assert update[0, 0] == 3


# ---- Muon --------------------------------------------------------------------------------------------------------


def test_the_first_step_has_the_length_of_the_learning_rate_in_every_direction():
    wide, tall = nn.Parameter(torch.zeros(4, 8)), nn.Parameter(torch.zeros(8, 4))
    generator = torch.Generator().manual_seed(0)
    for matrix in (wide, tall):
        matrix.grad = torch.randn(matrix.shape, generator=generator)
    r.Muon([wide, tall], lr=0.1).step()
    for matrix, expected in ((wide, 0.1), (tall, 0.1 * math.sqrt(2))):
        values = torch.linalg.svdvals(matrix.detach()) / expected
        assert values.min() > 0.65 and values.max() < 1.25
        assert (matrix * matrix.grad).sum() < 0  # downhill


def test_a_matrix_without_a_gradient_is_left_alone():
    idle = nn.Parameter(torch.ones(2, 2))
    r.Muon([idle], lr=0.1).step()
    assert torch.equal(idle.detach(), torch.ones(2, 2))


def muon_run(opt: r.Muon, matrix: nn.Parameter, steps: range) -> None:
    for step in steps:
        matrix.grad = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(step))
        opt.step()


def test_a_run_goes_on_from_its_state_dict_bit_for_bit(tmp_path):
    whole = nn.Parameter(torch.ones(3, 5))
    muon_run(r.Muon([whole], lr=0.1), whole, range(6))

    first = nn.Parameter(torch.ones(3, 5))
    opt = r.Muon([first], lr=0.1)
    muon_run(opt, first, range(3))
    torch.save((first.detach(), opt.state_dict()), tmp_path / "checkpoint.pt")

    weights, state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    second = nn.Parameter(weights)
    resumed = r.Muon([second], lr=7.0)
    resumed.load_state_dict(state)
    muon_run(resumed, second, range(3, 6))
    assert torch.equal(whole, second)


# ---- the run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": 1_101}, "1,101 steps are beyond the budget of the race, which has 1,100"),
        ({"batch": 13, "seq": 64}, "832 tokens per step"),
    ],
)
def test_settings_beyond_the_budget_are_refused_before_anything_happens(changed, said):
    model = tiny_gpt()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=said):
        r.race(model, tokens(200), tokens(100), replace(QUICK, **changed), progress=False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_model_beyond_the_budget_is_refused_and_a_tied_matrix_counts_once():
    large = MiniGPT(vocab=5, dim=128, n_head=2, n_layer=2, max_len=8)
    with pytest.raises(ValueError, match="parameters are beyond the budget"):
        r.race(large, tokens(200), tokens(100), QUICK, progress=False)
    assert r.count_parameters(tiny_gpt()) == 5 * 16 + 8 * 16 + 12 * 16 * 16 + 3 * 16


@pytest.mark.parametrize("lengths", [(8, 100), (100, 8)])
def test_a_text_that_is_too_short_is_told(lengths):
    with pytest.raises(ValueError, match=f"{lengths[0]} for training and {lengths[1]} for validation"):
        r.race(tiny_gpt(), *map(tokens, lengths), QUICK, progress=False)


def test_the_budget_itself_is_allowed():
    r.check_budget(r.BUDGET.parameters, r.RaceSettings())


@pytest.mark.parametrize("matrix_lr", [0.03, 0.0])
def test_a_run_learns_and_the_same_run_gives_the_same_losses(matrix_lr):
    settings = replace(QUICK, steps=40, matrix_lr=matrix_lr)
    results = [r.race(tiny_gpt(), tokens(400), tokens(200, 1), settings, progress=False) for _ in range(2)]
    assert results[0] == results[1]
    assert len(results[0].losses) == 40
    assert results[0].losses[0] == pytest.approx(math.log(5), abs=0.1)
    assert results[0].validation_loss < 1.2  # ln 5 is 1.61, the entropy of the rule ln 2 = 0.69
    another = r.race(tiny_gpt(), tokens(400), tokens(200, 1), replace(settings, seed=1), progress=False)
    assert another.losses != results[0].losses


def test_a_setting_names_the_size_and_what_is_unusual():
    usual = r.RaceResult(r.RaceSettings(), 12_345, [], 1.0)
    assert usual.setting == "12,345 parameters"
    changed = replace(usual, settings=r.RaceSettings(lr=1e-3, zero_outputs=False))
    assert changed.setting == "12,345 parameters, lr 0.001, zero_outputs False"


def test_every_parameter_has_one_optimizer():
    model = tiny_gpt()
    for settings in (QUICK, replace(QUICK, matrix_lr=0.0)):
        opts = r.optimizers(model, settings)
        held = [id(p) for opt in opts for group in opt.param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in model.parameters())
    assert {p.dim() for p in r.optimizers(model, QUICK)[1].param_groups[0]["params"]} == {2}


def test_blocks_with_zero_outputs_pass_on_what_comes_in():
    model = tiny_gpt()
    r.zero_residual_outputs(model)
    x = torch.randn(2, 8, 16)
    assert torch.equal(model.blocks[0](x), x)
    assert model.blocks[0].attn.qkv.weight.abs().min() > 0


def test_the_learning_rate_goes_down_in_a_straight_line():
    assert [r.linear_decay(step, 4, 0.0) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert r.linear_decay(3, 4, 1.0) == 1.0


class LastTokenRepeats(nn.Module):
    """Says with certainty that each token comes again: its loss is known for each token."""

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        return F.one_hot(idx, 5) * 2.0


@pytest.mark.parametrize("n", [2, 8, 9, 10, 41, 64])
def test_the_validation_loss_counts_every_token_but_the_first_once(n):
    data = tokens(n)
    expected = F.cross_entropy(LastTokenRepeats()(data[:-1]), data[1:]).item()
    measured = r.full_validation_loss(LastTokenRepeats(), data, seq=8, batch=3)
    assert measured == pytest.approx(expected, rel=1e-5)


def test_the_validation_loss_is_measured_in_eval_mode_and_leaves_no_trace():
    model = nn.Sequential(nn.Embedding(5, 5), nn.Dropout(0.5))
    losses = {r.full_validation_loss(model, tokens(50), seq=8) for _ in range(3)}
    assert len(losses) == 1
    assert model.training and model[0].weight.grad is None


# ---- the record --------------------------------------------------------------------------------------------------


@pytest.fixture
def own_store():
    """A store for this test alone: where it is was set for each test by conftest."""
    session_module.store.cache_clear()
    yield session_module.store
    session_module.store.cache_clear()


@pytest.mark.usefixtures("own_store")
def test_a_lower_loss_is_a_new_record_and_the_best_are_listed(capsys):
    record_race("topics", "lr 1", 2.0)
    assert "first run on topics: 2.000" in capsys.readouterr().out
    record_race("topics", "lr 2", 1.5)
    assert "new record on topics: 1.500. It was 2.000" in capsys.readouterr().out
    record_race("topics", "lr 3", 1.75)
    said = capsys.readouterr().out
    assert "1.750 on topics. Your record stays 1.500" in said
    assert [line.split() for line in said.splitlines()[1:]] == [
        ["1", "1.500", "lr", "2"],
        ["2", "1.750", "lr", "3"],
        ["3", "2.000", "lr", "1"],
    ]


@pytest.mark.usefixtures("own_store")
def test_corpora_have_records_of_their_own(capsys):
    record_race("topics", "a", 1.0)
    record_race("my letters", "b", 2.0)
    assert "first run on my letters" in capsys.readouterr().out


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_run_that_diverged_is_told_and_not_kept(own_store, capsys, loss):
    record_race("topics", "lr 100", loss)
    assert "is no record" in capsys.readouterr().out
    assert own_store().best_races("topics", 5) == []
    assert not os.path.exists(own_store().path)


def test_a_file_that_cannot_be_written_is_told_and_nothing_raises(own_store, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_LIB_PROGRESS", str(tmp_path / "no such folder" / "progress.sqlite"))
    record_race("topics", "a", 1.0)
    assert "progress is not being saved" in capsys.readouterr().out


def test_races_in_the_folder_of_solutions_are_not_the_learners(own_store, monkeypatch):
    monkeypatch.delenv("COURSE_LIB_PROGRESS")
    monkeypatch.chdir(Path(session_module.__file__).parents[1] / "solutions")
    record_race("topics", "a", 1.0)
    assert own_store().path.parent != Path(session_module.__file__).parents[1]
