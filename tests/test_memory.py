"""The simulation of a training step: equal to a real run, to the arithmetic, and to what is known of a full step."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

from course_lib.reference.memory import PeakTracker, gpt_activation_bytes, peak_stage, training_bytes
from course_lib.simulation import (
    FULL_SIZE,
    GPTConfig,
    MemoryTracker,
    MiB,
    MiniGPT,
    track_training,
)

SMALL = GPTConfig()
CHECKPOINTED = replace(SMALL, checkpointed=True)


def run_both(config: GPTConfig, batch: int = 4, seq: int = 16, **options):
    options = {"steps": 2, **options}
    return [track_training(config, batch, seq, fake=fake, **options) for fake in (True, False)]


def parameters_of(config: GPTConfig) -> list[torch.Tensor]:
    with torch.device("meta"):
        return list(MiniGPT(config).parameters())


def paper(config: GPTConfig, batch: int, seq: int) -> int:
    return gpt_activation_bytes(batch, seq, config.dim, config.n_heads, config.n_layers, config.vocab)


# ---- simulated and real ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("config", [SMALL, CHECKPOINTED], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_simulation_equals_a_real_run_byte_for_byte(config, bf16, micro_batches):
    simulated, real = run_both(config, bf16=bf16, micro_batches=micro_batches)
    assert simulated.peaks() == real.peaks()
    assert sorted(simulated.events()) == sorted(real.events())
    at_peaks = [{c: s[t.peak_event] for c, s in t.by_category().items()} for t in (simulated, real)]
    assert at_peaks[0] == at_peaks[1]
    if not (bf16 and config.checkpointed):  # there autocast empties its cache in an order of its own
        assert simulated.events() == real.events()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_it_is_equal_with_either_norm(norm):
    simulated, real = run_both(replace(SMALL, norm=norm), batch=3, seq=7)
    assert simulated.events() == real.events()


def test_a_simulation_takes_no_memory_and_leaves_the_random_numbers_alone():
    state = torch.get_rng_state()
    vast = GPTConfig(vocab=50_000, dim=4096, n_heads=32, n_layers=8, max_seq=64)
    assert track_training(vast, batch=64, seq=64).peak > 25 * 2**30
    assert torch.equal(state, torch.get_rng_state())


def test_a_real_run_leaves_the_random_numbers_alone():
    state = torch.get_rng_state()
    track_training(SMALL, 2, 4, fake=False)
    assert torch.equal(state, torch.get_rng_state())


# ---- simulated and on paper --------------------------------------------------------------------------------------

WIDE = replace(FULL_SIZE, norm=nn.LayerNorm)
CONFIGURATIONS = [
    (SMALL, 4, 16),
    (GPTConfig(vocab=500, dim=24, n_heads=3, n_layers=3), 3, 8),
    (GPTConfig(vocab=2000, dim=64, n_heads=4, n_layers=4), 8, 64),
    (replace(WIDE, n_layers=2), 8, 128),
    (WIDE, 32, 128),
]


@pytest.mark.parametrize(("config", "batch", "seq"), CONFIGURATIONS)
def test_what_a_forward_pass_leaves_behind_is_what_the_formula_says(config, batch, seq):
    """Exactly, once the positions (8 bytes a place) and two single numbers of the loss are added."""
    kept = track_training(config, batch, seq).allocations
    tracked = sum(a.nbytes for a in kept if a.category == "activations")
    assert tracked == paper(config, batch, seq) + 8 * seq + 8


@pytest.mark.parametrize(("config", "batch", "seq"), CONFIGURATIONS)
def test_the_peak_is_what_the_formula_says(config, batch, seq):
    """Parameters and moments, the batch, activations, two more tensors as large as the logits; and besides the
    rounding above four bytes for each of AdamW's counters."""
    parameters, rows = parameters_of(config), batch * seq
    n_parameters, counters = sum(p.numel() for p in parameters), 4 * len(parameters)
    expected = 12 * n_parameters + 16 * rows + paper(config, batch, seq) + 8 * rows * config.vocab
    timeline = track_training(config, batch, seq, steps=2)
    assert timeline.peak == expected + 8 * seq + 8 + counters
    assert timeline.phase_at(timeline.peak_event) == "backward 2"


@pytest.mark.parametrize(("config", "batch", "seq"), CONFIGURATIONS[2:])
def test_with_accumulation_the_gradients_wait_as_well(config, batch, seq):
    parameters, rows = parameters_of(config), batch * seq
    n_parameters, counters = sum(p.numel() for p in parameters), 4 * len(parameters)
    expected = 16 * n_parameters + 16 * rows + paper(config, batch, seq) + 8 * rows * config.vocab
    peak = track_training(config, batch, seq, steps=2, micro_batches=2).peak
    # the batch before is let go only when the next one is made, so its token numbers may be there twice
    assert 0 <= peak - (expected + 8 * seq + 8 + counters) <= 16 * rows


@pytest.mark.parametrize(("config", "batch", "seq"), CONFIGURATIONS)
def test_a_checkpointed_block_keeps_its_input_alone(config, batch, seq):
    rows = batch * seq
    kept = track_training(replace(config, checkpointed=True), batch, seq).allocations
    tracked = sum(a.nbytes for a in kept if a.category == "activations")
    inputs, head = config.n_layers * rows * config.dim, 2 * rows * config.dim + 2 * rows + rows * config.vocab
    assert tracked == 4 * (inputs + head) + 8 * seq + 8


@pytest.mark.parametrize(("config", "batch", "seq"), CONFIGURATIONS)
def test_what_stays_between_steps_is_the_budget(config, batch, seq):
    with torch.device("meta"):
        budget = training_bytes(MiniGPT(config), "adamw")
    timeline = track_training(config, batch, seq, steps=2)
    before = next(start for name, start, _ in timeline.spans() if name == "forward 2")
    series = {name: values[before - 1] for name, values in timeline.by_category().items()}
    counters = 4 * len(parameters_of(config))
    assert series["parameters"] == budget["params"]
    assert series["optimizer"] == budget["opt"] + counters


def test_the_full_step_takes_what_is_known_of_it():
    """32 x 128 tokens, float32, AdamW: 3369.5 MiB, with three tensors of the size of the logits at the peak."""
    timeline = track_training(FULL_SIZE, batch=32, seq=128, steps=2)
    assert sum(p.numel() for p in parameters_of(FULL_SIZE)) == 30_313_728
    assert round(timeline.peak / MiB, 1) == 3369.5
    largest = timeline.alive_at(timeline.peak_event)[:3]
    assert {a.nbytes for a in largest} == {32 * 128 * 50257 * 4}


def test_with_a_tiny_batch_the_peak_is_where_the_two_gradients_of_the_tied_table_meet():
    config = replace(WIDE, n_layers=2)
    timeline = track_training(config, batch=1, seq=16, steps=2)
    assert timeline.phase_at(timeline.peak_event) == "backward 2"
    largest = {
        a.op.split(".")[1] for a in timeline.alive_at(timeline.peak_event)[:5] if a.phase == "backward 2"
    }
    assert largest == {"mm", "embedding_dense_backward"}
    assert timeline.peak > 16 * sum(p.numel() for p in parameters_of(config))


# ---- the tracker -------------------------------------------------------------------------------------------------


def test_views_bring_no_storage_and_the_last_reader_frees_it():
    with MemoryTracker() as tracker:
        x = torch.ones(100)
        y = x.view(10, 10)[2:]
        y.add_(1)
        del x
        assert tracker.timeline().totals() == [400]
        del y
    assert tracker.timeline().totals() == [400, 0]


def test_phases_and_labels():
    with MemoryTracker() as tracker:
        with tracker.phase("build"):
            weight = torch.ones(10, requires_grad=True)
        tracker.label("parameters", [weight])
        with tracker.phase("forward"):
            loss = (weight * 2).exp().sum()
        with tracker.phase("backward"):
            loss.backward()
        tracker.label("gradients", [weight.grad])
        del loss
    timeline = tracker.timeline()
    assert [name for name, _ in timeline.phases] == ["build", "forward", "backward"]
    assert {a.category for a in timeline.allocations} >= {"parameters", "activations", "gradients"}
    assert sum(nbytes for _, nbytes in timeline.events()) == 80  # the weight and its gradient
    assert timeline.peaks()["build"] == 40


def test_the_exercises_agree_with_the_tracker():
    timeline = track_training(SMALL, 4, 16, steps=2)
    assert peak_stage(timeline.events()) == (timeline.peak, timeline.phase_at(timeline.peak_event))
    with PeakTracker() as mine, MemoryTracker() as theirs:
        model = MiniGPT(SMALL)
        model(torch.zeros(2, 8, dtype=torch.long), torch.zeros(2, 8, dtype=torch.long)).backward()
    assert mine.peak == theirs.timeline().peak
    del model
    gc.collect()
    assert mine.now == 0


def test_the_mini_gpt_sees_no_later_token():
    torch.manual_seed(0)
    model = MiniGPT(SMALL)
    seen = []
    model.head.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    tokens = torch.randint(96, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 96
    for batch in (tokens, changed):
        model(batch, tokens)
    assert torch.equal(seen[0][:, :5], seen[1][:, :5]) and not torch.equal(seen[0][:, 5:], seen[1][:, 5:])


def test_checkpointed_gradients_are_the_same():
    tokens = torch.arange(16).view(2, 8)
    gradients = []
    for config in (SMALL, CHECKPOINTED):
        torch.manual_seed(0)
        model = MiniGPT(config)
        model(tokens, tokens).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *gradients))
