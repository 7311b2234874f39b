"""The answers of notebook 10: causal, within the budget of the race, undecided at first. And text held out honestly."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from course_lib.reference import gpt as reference
from course_lib.reference import text
from course_lib.reference.sources import MarkovSource

SIZES = {"four layers of 128": (128, 4, 4, 64), "three layers of 96": (96, 3, 3, 64)}
MODELS = [reference.MiniGPT, reference.RotaryGPT]


def tokens(vocab: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_later_token_moves_no_earlier_logit(model_class, size):
    model = model_class(65, *size)
    idx = tokens(65, 2, 12)
    changed = idx.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 65
    before, after = model(idx), model(changed)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-4)
    assert (before[:, 7:] - after[:, 7:]).abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize("vocab", [65, 103])
def test_the_small_rotary_model_is_within_the_budget_of_the_race(vocab):
    model = reference.RotaryGPT(vocab, *SIZES["three layers of 96"])
    assert sum(p.numel() for p in model.parameters()) <= 344_256


def test_the_sizes_are_those_of_the_formula():
    vocab, (dim, _, n_layer, max_len) = 65, SIZES["four layers of 128"]
    model = reference.MiniGPT(vocab, *SIZES["four layers of 128"])
    expected = (vocab + max_len + 1) * dim + n_layer * (12 * dim * dim + 2 * dim)
    assert sum(p.numel() for p in model.parameters()) == expected == 804_096


@pytest.mark.parametrize("start", [reference.init_weights, reference.init_silent_blocks])
def test_the_first_loss_is_near_ln_v(start):
    model = reference.MiniGPT(65, *SIZES["four layers of 128"])
    start(model)
    _, loss = model(tokens(65, 12, 64), tokens(65, 12, 64, seed=1))
    assert abs(loss.item() - math.log(65)) < 0.1


def test_silent_blocks_add_nothing_and_learn():
    model = reference.MiniGPT(11, 16, 2, 2, 8)
    reference.init_silent_blocks(model)
    x = torch.randn(2, 8, 16)
    assert all(torch.equal(block(x), x) for block in model.blocks)
    model(tokens(11, 2, 8), tokens(11, 2, 8, seed=1))[1].backward()
    assert all(block.attn.proj.weight.grad.any() for block in model.blocks)


def test_rotary_scores_depend_on_distances_alone():
    rotary = reference.Rotary(32, 8)
    q, k = torch.randn(2, 1, 8).expand(2, 32, 8)
    scores = rotary(q) @ rotary(k).mT
    assert torch.allclose(scores.diagonal(-5), scores[5, 0].expand(27), atol=1e-4)
    assert scores.std() > 0.1


def test_a_generator_alone_decides_what_is_written():
    model = reference.MiniGPT(11, 16, 2, 1, 8)
    reference.init_weights(model)
    written = [
        reference.generate(model, tokens(11, 2, 3), 20, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(written[0], written[1]) and not torch.equal(written[0], written[2])


def test_training_reaches_the_entropy_rate_and_not_less():
    source = MarkovSource(8, seed=0)
    stream = source.tokens(16_000, seed=1)

    def sample(B, S, generator):
        return stream[torch.randint(len(stream) - S, (B, 1), generator=generator) + torch.arange(S)]

    model = reference.train_gpt(sample, 80)
    loss = reference.validation_loss(model, source.tokens(8_000, seed=2), 8)
    assert source.entropy_rate() - 0.05 < loss < source.entropy_rate() + 0.15
    assert reference.entropy_rate(source.transition) == pytest.approx(source.entropy_rate(), abs=1e-9)


def test_a_loss_in_nats_and_one_in_bits_agree_on_full_windows():
    model, data = reference.MiniGPT(11, 16, 2, 1, 8), tokens(11, 8 * 9 + 1)
    nats = reference.validation_loss(model, data, 8, batch=4)
    assert reference.bits_per_character(model, data, 8) * math.log(2) == pytest.approx(nats, rel=1e-5)
    by_one = F.cross_entropy(model(data[:-1].view(-1, 8)).flatten(0, 1), data[1:]).item()
    assert nats == pytest.approx(by_one, rel=1e-5)


# ---- text --------------------------------------------------------------------------------------------------------


def test_no_paragraph_of_validation_is_in_training():
    parts = [f"topic {i}\n\nquoted everywhere, in each part\n\nown text {i}\n\n" for i in range(20)]
    training, validation = text.held_out(parts)
    assert "own text 0" in validation and "own text 10" in validation and "own text 1\n" in training
    assert not set(training.split("\n\n")) & set(validation.split("\n\n")) - {""}


def test_the_help_topics_are_text_of_some_size():
    training, validation = text.held_out(text.python_topics())
    assert len(training) > 8 * len(validation) > 80_000


def test_too_few_parts_are_refused():
    with pytest.raises(ValueError, match="3 parts"):
        text.held_out(["a", "b", "c"])


def test_a_file_of_ones_own_is_read_by_paragraphs(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("One.\n\n\nTwo,\nstill two.\n\n\n\n", encoding="utf-8")
    assert text.paragraphs_of(path) == ["One.\n\n", "Two,\nstill two.\n\n"]


def test_characters_come_back():
    characters = text.Characters("hello, world")
    assert characters.decode(characters.encode("dollar"[:4])) == "doll" and len(characters) == 9
    with pytest.raises(ValueError, match="'x'"):
        characters.encode("xylophone")
