"""The instruments of notebook 07."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course_lib.exercises.clinic import (
    CountingBlock,
    GraphWatch,
    LoggingSGD,
    SignedRoot,
    SimulatedGPU,
    StrictDevices,
    Tied,
    WatchedLinear,
    classifier,
    curve,
    labelled_batches,
)


def test_batches_can_be_learned_and_repeat():
    first, second = (labelled_batches([3, 2], torch.Generator().manual_seed(0)) for _ in range(2))
    assert [len(x) for x, _ in first] == [3, 2]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))
    assert torch.equal(first[0][1], first[0][0][:, :3].argmax(dim=1))


def test_the_classifier_has_the_layers_that_were_asked_for():
    names = [name for name, _ in classifier(norm=True, dropout=0.5).named_children()]
    assert names == ["body", "norm", "act", "drop", "head"]
    assert [name for name, _ in classifier().named_children()] == ["body", "act", "head"]


def test_a_curve_runs_from_low_to_high():
    assert curve([0.0, 1.0, 2.0]) == "0.00 ▁▅█ 2.00"
    assert curve([3.0, 3.0]) == "3.00 ▁▁ 3.00"


def test_a_graph_lives_as_long_as_someone_holds_it():
    watch, weight = GraphWatch(), torch.ones((), requires_grad=True)
    loss = watch.mark(weight * 2) * 3
    loss.backward()
    assert weight.grad == 6 and watch.alive() == 1
    del loss
    assert watch.alive() == 0
    with torch.no_grad():
        kept = watch.mark(weight * 2)
    assert kept == 2 and watch.alive() == 0


def test_a_watched_layer_counts_the_graphs_of_earlier_calls():
    layer, kept = WatchedLinear(2, 1), []
    for _ in range(3):
        kept.append(layer(torch.ones(1, 2)))
    assert layer.alive == [0, 1, 2]


@pytest.mark.parametrize(
    "mix",
    [
        lambda: F.linear(torch.ones(1, 2), torch.ones(3, 2, device="meta")),
        lambda: F.embedding(torch.tensor([1]), torch.ones(3, 2, device="meta")),
        lambda: F.cross_entropy(torch.ones(1, 2, device="meta"), torch.tensor([1])),
    ],
    ids=["linear", "embedding", "loss"],
)
def test_strict_devices_refuse_mixtures_and_allow_moves(mix):
    with StrictDevices():
        with pytest.raises(RuntimeError, match="same device"):
            mix()
        assert torch.ones(2).to("meta").is_meta
        assert (torch.ones(2, device="meta") * torch.tensor(2.0)).is_meta


def test_the_simulated_gpu_works_while_the_host_goes_on():
    device = SimulatedGPU()
    device.launch(0.5)
    device.launch(0.25)
    assert device.clock() == 2 * device.LAUNCH
    device.synchronize()
    assert device.clock() == pytest.approx(device.LAUNCH + 0.75)


def test_the_optimizer_logs_the_rate_of_each_step():
    weight = torch.ones(1, requires_grad=True)
    opt = LoggingSGD([weight], lr=1.0)
    sched = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    for _ in range(2):
        weight.sum().backward()
        opt.step()
        sched.step()
    assert opt.rates == [1.0, 0.5]


def test_the_other_parts_do_what_they_say():
    block = CountingBlock()
    block(torch.ones(1, 4))
    assert block.calls == 1
    tied = Tied(4, 3)
    assert tied.head.weight is tied.emb.weight and tied(torch.tensor([[1, 2]])).shape == (1, 2, 4)
    x = torch.zeros(1, requires_grad=True)
    SignedRoot()(x).sum().backward()
    assert not x.grad.isfinite()
