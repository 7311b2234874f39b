"""The exercises and questions of notebook 05: training."""

from __future__ import annotations

import copy
import io
import itertools
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

from course_lib.checking import Exercise, Question, case, observe
from course_lib.exercises.leftovers import left_on
from course_lib.reference import training as reference

CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # float32 sums of a few terms, in any order


class Watch(nn.Module):
    """Passes its input on and notes what passes: forward or backward, in which mode, under autocast or not."""

    def __init__(self):
        super().__init__()
        self.events: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        self.events.append(f"forward{self._autocast()}")
        if x.requires_grad:
            self.events[-1] += " with a graph"
            x.register_hook(self._backward)
        return x

    def _backward(self, cotangent: Tensor) -> None:
        self.events.append(f"backward{self._autocast()}")

    def _autocast(self) -> str:
        return " under autocast" if torch.is_autocast_enabled("cpu") else ""


def events_of(model: nn.Module) -> list[str]:
    return [event for module in model.modules() if isinstance(module, Watch) for event in module.events]


def filled(module: nn.Module, rng: torch.Generator) -> nn.Module:
    """`module` with numbers in all its parameters that depend on `rng` alone."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return module


def batches_of(rng: torch.Generator, *sizes: int, dim: int = 2) -> list[tuple[Tensor, Tensor]]:
    """(x, y) of shapes (size, dim) and (size, 1) for each size; the later, the larger the targets."""
    drawn = [torch.randn(n, dim + 1, generator=rng, dtype=torch.float32) for n in sizes]
    return [(b[:, :dim].clone(), b[:, dim:] + 2 * i) for i, b in enumerate(drawn)]


def transposed_batches(rng: torch.Generator, *sizes: int, dim: int = 2) -> list[tuple[Tensor, Tensor]]:
    return [(x.t().contiguous().t(), y) for x, y in batches_of(rng, *sizes, dim=dim)]


def transposed_parameter(module: nn.Linear) -> nn.Linear:
    """The same layer, its weight laid out column by column."""
    module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
    return module


def sgd(model: nn.Module, lr: float = 0.1, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def with_stale_gradients(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.75)
    return model


def grad_norm(params: Iterable[nn.Parameter]) -> float:
    return math.sqrt(sum(float(p.grad.square().sum()) for p in params if p.grad is not None))


def clear_gradients(params: Iterable[nn.Parameter]) -> None:
    """What is left in `.grad` is free, so it is not compared."""
    for parameter in params:
        parameter.grad = None


# ---- train_one_epoch ---------------------------------------------------------------------------------------

train_one_epoch = Exercise(
    reference.train_one_epoch,
    title="One epoch",
    objective="training.loop",
    difficulty=1,
    minutes=12,
    points=2,
    observes=[observe.value(**CLOSE)],
    hints=(
        "Say the skeleton aloud: batch, zero, forward, loss, backward, clip, step. Then look at what lies around "
        "it: in which mode does the model train, and what is a mean over batches of unequal size?",
        "Before the loop: train mode, a sum of 0.0 and a count of 0. In the loop the seven words in their order, "
        "and at its end add the loss as a number, times the samples of the batch. After it: sum divided by count.",
        "`loss.item() * len(x)` is what a batch adds to the sum, `len(x)` what it adds to the count. Between "
        "`backward` and `opt.step` stands `nn.utils.clip_grad_norm_` with all parameters and `clip`.",
    ),
    why="Gradients add up, so they are cleared before each backward pass; they are clipped where they exist and "
    "before they are used. `loss.item()` takes the number and lets the graph go. The mean of batch means would "
    "give the samples of a small last batch more weight than all others.",
)


@train_one_epoch.scenario
def train_once(answer, model, loader, loss_fn, opt, clip):
    mean = answer(model, loader, loss_fn, opt, clip)
    too_large = grad_norm(model.parameters()) > 1.001 * clip
    clear_gradients(model.parameters())
    return {"mean loss": mean, "gradients larger than clip are left": too_large}


@train_one_epoch.cases
def _(rng):
    def linear(**kwargs):
        model = filled(nn.Linear(2, 1), rng)
        return model, sgd(model, **kwargs)

    model, opt = linear()
    yield case("one batch", model, batches_of(rng, 3), F.mse_loss, opt, math.inf)
    model, opt = linear()
    yield case("a batch of three and a batch of one", model, batches_of(rng, 3, 1), F.mse_loss, opt, math.inf)
    model, opt = linear()
    yield case("gradients that must be clipped", model, batches_of(rng, 3, 3), F.mse_loss, opt, 0.25)
    model, opt = linear()
    stale = with_stale_gradients(model)
    yield case("old gradients in .grad", stale, batches_of(rng, 4), F.mse_loss, opt, math.inf)
    normed = filled(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), rng).eval()
    yield case(
        "a model that comes in eval mode", normed, batches_of(rng, 4, 3), F.mse_loss, sgd(normed, 0.01), 1.0
    )
    model, opt = linear(momentum=0.9)
    yield case("transposed batches", model, transposed_batches(rng, 3, 2, 2), F.mse_loss, opt, 2.0)
    model, opt = linear()
    (x, y), *_ = batches_of(rng, 7)
    loader = DataLoader(TensorDataset(x, y), batch_size=3, drop_last=True, generator=torch.Generator())
    yield case("a DataLoader that drops the last of 7 samples", model, loader, F.mse_loss, opt, math.inf)
    logits = filled(nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 3)), rng)
    labelled = [(x, torch.tensor([0, 2, 1])) for x, _ in batches_of(rng, 3, 3)]
    yield case("classes, with dropout", logits, labelled, F.cross_entropy, sgd(logits), 1.0)


@train_one_epoch.alternative
def adds_up_at_the_end(model, loader, loss_fn, opt, clip):
    model.train()
    losses, sizes = [], []
    for x, y in loader:
        loss = loss_fn(model(x), y)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for group in opt.param_groups for p in group["params"]], clip)
        opt.step()
        losses.append(loss.detach())
        sizes.append(len(x))
    weights = torch.tensor(sizes, dtype=torch.float64)
    return ((torch.stack(losses).double() * weights).sum() / weights.sum()).item()


@train_one_epoch.alternative
def clears_after_the_step(model, loader, loss_fn, opt, clip):
    model.train()
    model.zero_grad()
    total = count = 0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        opt.zero_grad()
        total += float(loss) * x.shape[0]
        count += x.shape[0]
    return total / count


@train_one_epoch.misconception(
    "You clear the gradients between backward and step, so the step finds nothing. Clear them before backward."
)
def zeroes_after_backward(model, loader, loss_fn, opt, clip):
    model.train()
    total, n_samples = 0.0, 0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.zero_grad()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        total, n_samples = total + loss.item() * len(x), n_samples + len(x)
    return total / n_samples


@train_one_epoch.misconception(
    "You never clear the gradients. `backward` adds to what is there, so each step uses all batches so far."
)
def never_zeroes(model, loader, loss_fn, opt, clip):
    model.train()
    total, n_samples = 0.0, 0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        total, n_samples = total + loss.item() * len(x), n_samples + len(x)
    return total / n_samples


@train_one_epoch.misconception(
    "You clear the gradients once per epoch. They add up over the batches, and the steps grow: clear them for "
    "each update."
)
def zeroes_once_per_epoch(model, loader, loss_fn, opt, clip):
    model.train()
    opt.zero_grad()
    total, n_samples = 0.0, 0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        total, n_samples = total + loss.item() * len(x), n_samples + len(x)
    return total / n_samples


@train_one_epoch.misconception(
    "The gradients were not clipped when the step used them. Is there a clip at all, and does it stand after "
    "backward? Before backward there is nothing to clip."
)
def clips_before_backward(model, loader, loss_fn, opt, clip):
    model.train()
    total, n_samples = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], clip)
        loss.backward()
        opt.step()
        total, n_samples = total + loss.item() * len(x), n_samples + len(x)
    return total / n_samples


@train_one_epoch.misconception(
    "You clip after the step. `.grad` looks clipped then, but the step has used the large gradients."
)
def clips_after_the_step(model, loader, loss_fn, opt, clip):
    model.train()
    total, n_samples = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        total, n_samples = total + loss.item() * len(x), n_samples + len(x)
    return total / n_samples


@train_one_epoch.misconception(
    "You clip each number to [-clip, clip], which turns the step in another direction. Here the norm of all "
    "gradients together is limited: `clip_grad_norm_`, not `clip_grad_value_`."
)
def clips_each_number(model, loader, loss_fn, opt, clip):
    model.train()
    total, n_samples = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), clip)
        opt.step()
        total, n_samples = total + loss.item() * len(x), n_samples + len(x)
    return total / n_samples


@train_one_epoch.misconception(
    "Your sum is a tensor, and it holds the graph of every batch of the epoch. Take the number: `loss.item()`."
)
def sums_tensors(model, loader, loss_fn, opt, clip):
    model.train()
    total, n_samples = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        total, n_samples = total + loss * len(x), n_samples + len(x)
    return total / n_samples


@train_one_epoch.misconception(
    "You took the mean of the batch means. A sample in a small last batch then counts more than the others: "
    "weight each batch by its samples."
)
def mean_of_batch_means(model, loader, loss_fn, opt, clip):
    model.train()
    losses = []
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@train_one_epoch.misconception(
    "You divide by the size of the dataset. A loader may drop or draw samples, and need not have a dataset: "
    "count the samples that came."
)
def divides_by_the_dataset(model, loader, loss_fn, opt, clip):
    model.train()
    total = 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        total += loss.item() * len(x)
    return total / (len(loader.dataset) if hasattr(loader, "dataset") else sum(len(x) for x, _ in loader))


@train_one_epoch.misconception(
    "The model was not put into train mode. The evaluation before has left it in eval mode, in which dropout "
    "does nothing and batch norm learns nothing."
)
def forgets_train_mode(model, loader, loss_fn, opt, clip):
    total, n_samples = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        total, n_samples = total + loss.item() * len(x), n_samples + len(x)
    return total / n_samples


@train_one_epoch.misconception(
    "You returned the loss of the last batch. The mean goes over all samples of the epoch."
)
def returns_the_last_loss(model, loader, loss_fn, opt, clip):
    model.train()
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
    return loss.item()


# ---- evaluate ----------------------------------------------------------------------------------------------

evaluate = Exercise(
    reference.evaluate,
    title="Evaluate, and leave no trace",
    objective="training.evaluation",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value(**CLOSE)],
    hints=(
        "Two switches are independent of each other: one for how layers behave, one for whether a graph is "
        "recorded. And then there is the way back: whose mode do you have to remember?",
        "Note the `training` flag of every module in `model.modules()`, call `eval()`, work under `no_grad`, and "
        "put every flag back in a `finally`, so that an exception does not keep you from it.",
        "`model.train(was_training)` sets all submodules at once, and with them the one that someone froze. "
        "Assign the remembered flag to `module.training` instead, module by module. The mean is that of the epoch.",
    ),
    why="`eval()` changes what layers compute and still records a graph; `no_grad` records none and still runs "
    "dropout and moves the statistics of batch norm. A model may be partly in eval mode on purpose, and the flag "
    "of the root does not say so. `finally` covers the way out that nobody thinks of.",
)


@evaluate.scenario
def evaluate_and_look(answer, model, loader, loss_fn, breaks=False):
    batches = broken_off(loader) if breaks else loader
    try:
        mean = answer(model, batches, loss_fn)
    except KeyError:
        mean = "KeyError came out"
    return {"mean loss": mean, "a graph was recorded": any("graph" in event for event in events_of(model))}


def broken_off(loader: Iterable) -> Iterator:
    yield from loader
    raise KeyError("the file of the next batch is missing")


@evaluate.cases
def _(rng):
    def network(*layers):
        return filled(nn.Sequential(nn.Linear(2, 3), Watch(), *layers, nn.Linear(3, 1)), rng)

    yield case("a small network", network(), batches_of(rng, 2), F.mse_loss)
    yield case("a batch of three and a batch of one", network(), batches_of(rng, 3, 1), F.mse_loss)
    yield case("batch norm, in train mode", network(nn.BatchNorm1d(3)), batches_of(rng, 4, 2), F.mse_loss)
    yield case("dropout, in train mode", network(nn.Dropout(0.5)), batches_of(rng, 4, 2), F.mse_loss)
    yield case("a model in eval mode", network(nn.BatchNorm1d(3)).eval(), batches_of(rng, 3), F.mse_loss)
    frozen = network(nn.BatchNorm1d(3))
    frozen[2].eval()
    yield case("train mode, with a batch norm frozen in eval mode", frozen, batches_of(rng, 3, 2), F.mse_loss)
    yield case("the loader breaks", network(nn.Dropout(0.5)), batches_of(rng, 2), F.mse_loss, breaks=True)
    yield case("gradients in .grad", with_stale_gradients(network()), batches_of(rng, 2, 2), F.mse_loss)
    yield case("transposed batches", network(nn.BatchNorm1d(3)), transposed_batches(rng, 3, 2), F.mse_loss)


@evaluate.alternative
@torch.inference_mode()
def under_inference_mode(model, loader, loss_fn):
    in_train_mode = [module for module in model.modules() if module.training]
    total, count = 0.0, 0
    try:
        model.eval()
        for x, y in loader:
            total += float(loss_fn(model(x), y)) * len(x)
            count += len(x)
    finally:
        for module in in_train_mode:
            module.training = True
    return total / count


@evaluate.alternative
def works_on_a_copy(model, loader, loss_fn):
    double = copy.deepcopy(model).eval()
    for module, original in zip(double.modules(), model.modules()):
        if hasattr(module, "events"):
            module.events = original.events
    batches = list(loader)
    with torch.no_grad():
        losses = torch.stack([loss_fn(double(x), y) for x, y in batches])
    sizes = torch.tensor([float(len(x)) for x, _ in batches])
    return ((losses * sizes).sum() / sizes.sum()).item()


@evaluate.misconception(
    "The model was not in eval mode. `no_grad` records no graph, but dropout still drops, and batch norm uses "
    "the batch and even moves its statistics."
)
def forgets_eval(model, loader, loss_fn):
    with torch.no_grad():
        sums = [(loss_fn(model(x), y).item() * len(x), len(x)) for x, y in loader]
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)


@evaluate.misconception(
    "A graph was recorded. Eval mode changes what layers compute; only `no_grad` or `inference_mode` saves the "
    "memory of the graph."
)
def forgets_no_grad(model, loader, loss_fn):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        sums = [(loss_fn(model(x), y).item() * len(x), len(x)) for x, y in loader]
    finally:
        for module, mode in modes.items():
            module.training = mode
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)


@evaluate.misconception(
    "You left the model in eval mode. The next epoch then trains without dropout and with frozen statistics."
)
def leaves_eval_mode(model, loader, loss_fn):
    model.eval()
    with torch.no_grad():
        sums = [(loss_fn(model(x), y).item() * len(x), len(x)) for x, y in loader]
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)


@evaluate.misconception(
    "You always end in train mode. A model that came in eval mode, or a layer in it, should be found as it was."
)
def always_ends_in_train_mode(model, loader, loss_fn):
    model.eval()
    try:
        with torch.no_grad():
            sums = [(loss_fn(model(x), y).item() * len(x), len(x)) for x, y in loader]
    finally:
        model.train()
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)


@evaluate.misconception(
    "You remembered the mode of the whole model and gave it to every layer. A layer that was frozen in eval mode "
    "trains again after your evaluation: remember the mode of each module."
)
def remembers_the_root_only(model, loader, loss_fn):
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            sums = [(loss_fn(model(x), y).item() * len(x), len(x)) for x, y in loader]
    finally:
        model.train(was_training)
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)


@evaluate.misconception(
    "When the loader raises, your model stays in eval mode. The way back belongs into a `finally`."
)
def no_way_back_after_an_error(model, loader, loss_fn):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        sums = [(loss_fn(model(x), y).item() * len(x), len(x)) for x, y in loader]
    for module, mode in modes.items():
        module.training = mode
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)


@evaluate.misconception(
    "You took the mean of the batch means. Then the result depends on how the data is cut into batches: weight "
    "each batch by its samples."
)
def averages_the_batch_means(model, loader, loss_fn):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            losses = [loss_fn(model(x), y).item() for x, y in loader]
    finally:
        for module, mode in modes.items():
            module.training = mode
    return sum(losses) / len(losses)


@evaluate.misconception("You returned a tensor. A plain `float` can be logged, compared and saved as it is.")
def returns_a_tensor(model, loader, loss_fn):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            sums = [(loss_fn(model(x), y) * len(x), len(x)) for x, y in loader]
    finally:
        for module, mode in modes.items():
            module.training = mode
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)


# ---- clip_by_global_norm -----------------------------------------------------------------------------------

clip_by_global_norm = Exercise(
    reference.clip_by_global_norm,
    title="Clip by the global norm",
    objective="training.stability",
    difficulty=2,
    minutes=12,
    points=2,
    stretch=True,
    observes=[observe.value(rtol=1e-4)],
    forbids=(nn.utils.clip_grad_norm_,),
    hints=(
        "There is one norm and one factor, for all gradients together. How often do you walk over `params`, and "
        "what if it can be walked over only once?",
        "Collect the gradients that are not None in a list first. The global norm is the root of the sum of all "
        "squares. If it is larger than `max_norm`, multiply each gradient in place by their quotient.",
        "`torch.stack([g.norm() for g in grads])` holds the norms of the parts, and the norm of *that* is the "
        "global one. Keep it before you scale anything.",
    ),
    why="One factor for all keeps the direction of the step; a factor per parameter, or a limit per number, would "
    "turn it. The norm of the norms is the norm of everything. A generator is empty after the first walk, and a "
    "second walk clips nothing, without an error.",
)


@clip_by_global_norm.scenario
def clip_them(answer, params, max_norm, once=False):
    return answer((p for p in params) if once else params, max_norm)


@clip_by_global_norm.cases
def _(rng):
    def parameter(grad, shape=None):
        values = torch.randn(shape or torch.tensor(grad).shape, generator=rng)
        made = nn.Parameter(values)
        made.grad = torch.tensor(grad) if grad is not None else None
        return made

    yield case("one gradient of norm 5", [parameter([3.0, -4.0])], 1.0)
    yield case("one gradient of norm 0.5", [parameter([0.3, -0.4])], 1.0)
    yield case("norms 3 and 4", [parameter([3.0, 0.0]), parameter([-4.0])], 2.5)
    yield case("a large and a small one", [parameter([[30.0, 40.0]]), parameter([0.3])], 5.0)
    yield case("one without a gradient", [parameter([6.0, 8.0]), parameter(None, (2, 3))], 5.0)
    yield case("a generator", [parameter([3.0, 4.0]), parameter([12.0])], 6.5, once=True)
    matrix = nn.Parameter(torch.randn(3, 2, generator=rng).t())
    matrix.grad = torch.randn(3, 2, generator=rng).t() * 4
    yield case("a transposed matrix and a vector", [matrix, parameter([5.0, -1.0, 2.0])], 1.0)
    yield case("a norm just below the limit", [parameter([3.0, -4.0])], 5.1)


@clip_by_global_norm.alternative
def multiplies_by_a_capped_factor(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    total = torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads]))
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    torch._foreach_mul_(grads, factor)
    return total


@clip_by_global_norm.alternative
def sums_the_squares(params, max_norm):
    with_grad = [p for p in params if p.grad is not None]
    norm = sum(p.grad.pow(2).sum() for p in with_grad).sqrt()
    if norm > max_norm:
        for p in with_grad:
            p.grad = p.grad * (max_norm / norm)
    return norm


@clip_by_global_norm.misconception(
    "You clip each gradient by its own norm. Large ones shrink and small ones do not, so the step points elsewhere. "
    "One norm over all of them gives one factor."
)
def clips_each_parameter(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    for grad in grads:
        grad.mul_(min(1.0, max_norm / grad.norm().item()))
    return norm


@clip_by_global_norm.misconception(
    "You limit each number. The norm of the whole stays too large, and the direction changes: scale all by one "
    "factor."
)
def clamps_the_numbers(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    for grad in grads:
        grad.clamp_(-max_norm, max_norm)
    return norm


@clip_by_global_norm.misconception(
    "You scale in any case, so gradients that were small enough become larger. Clipping only ever shrinks."
)
def always_rescales(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    for grad in grads:
        grad.mul_(max_norm / norm)
    return norm


@clip_by_global_norm.misconception(
    "You returned the norm after clipping. That is `max_norm` whenever it matters; the norm before tells how "
    "training goes."
)
def returns_the_norm_afterwards(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    if norm > max_norm:
        for grad in grads:
            grad.mul_(max_norm / norm)
    return torch.stack([grad.norm() for grad in grads]).norm()


@clip_by_global_norm.misconception(
    "You walk over `params` twice. A generator is empty the second time: the norm is right and nothing is "
    "clipped. Make a list first."
)
def walks_twice(params, max_norm):
    norm = torch.stack([p.grad.norm() for p in params if p.grad is not None]).norm()
    if norm > max_norm:
        for p in params:
            if p.grad is not None:
                p.grad.mul_(max_norm / norm)
    return norm


@clip_by_global_norm.misconception(
    "You added the norms of the parts. Norms add like the sides of a right triangle: squares, sum, root."
)
def adds_the_norms(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).sum()
    if norm > max_norm:
        for grad in grads:
            grad.mul_(max_norm / norm)
    return norm


@clip_by_global_norm.misconception(
    "You forgot the root: you compare the sum of the squares, which is the square of the norm."
)
def forgets_the_root(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([grad.square().sum() for grad in grads]).sum()
    if norm > max_norm:
        for grad in grads:
            grad.mul_(max_norm / norm)
    return norm


@clip_by_global_norm.misconception(
    "You measured the parameters. What is clipped, and so what is measured, are their gradients."
)
def measures_the_parameters(params, max_norm):
    params = [p for p in params if p.grad is not None]
    norm = torch.stack([p.detach().norm() for p in params]).norm()
    if norm > max_norm:
        for p in params:
            p.grad.mul_(max_norm / norm)
    return norm


# ---- finite_step -------------------------------------------------------------------------------------------

finite_step = Exercise(
    reference.finite_step,
    title="A step, or none",
    objective="training.stability",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "One bad batch must cost one update and no more. What is still lying in `.grad` when the next backward "
        "pass comes?",
        "The norm over all gradients is finite exactly if every number in them is. Step only then; clear the "
        "gradients on both ways.",
        "`nn.utils.clip_grad_norm_` returns the norm from before clipping, so one call tells both. "
        "`math.isfinite` takes it. After the `if`, and not inside, comes `opt.zero_grad()`.",
    ),
    why="NaN and infinity survive every sum, so one look at the global norm is enough. Gradients accumulate: "
    "what is not cleared after a skipped step makes every later sum NaN, and no update ever happens again.",
)


@finite_step.scenario
def steps(answer, params, opt, gradients, clip):
    facts: dict[str, Any] = {"returned": []}
    for added in gradients:
        for parameter, gradient in zip(params, added):
            accumulate(parameter, gradient)
        facts["returned"].append(answer(params, opt, clip))
    facts["gradients are cleared"] = not any(p.grad is not None and bool((p.grad != 0).any()) for p in params)
    clear_gradients(params)
    return facts


def accumulate(parameter: nn.Parameter, gradient: list[float] | None) -> None:
    """What `backward` does with a gradient: add it to what is there."""
    if gradient is not None:
        new = torch.tensor(gradient).expand_as(parameter)
        parameter.grad = new.clone() if parameter.grad is None else parameter.grad + new


@finite_step.cases
def _(rng):
    nan, inf = math.nan, math.inf

    def params(momentum=0.0):
        made = [
            nn.Parameter(torch.randn(2, generator=rng)),
            nn.Parameter(torch.randn(3, 2, generator=rng).t()),
        ]
        return made, torch.optim.SGD(made, lr=0.5, momentum=momentum)

    yield case("finite gradients", *params(), [([0.3, -0.4], [0.0])], 1.0)
    yield case("a NaN", *params(), [([0.3, nan], [0.1])], 1.0)
    yield case("an infinity in the last parameter", *params(), [([0.3, 0.1], [inf])], 1.0)
    yield case("minus infinity", *params(), [([-inf, 0.1], [0.2])], 1.0)
    yield case("gradients to be clipped", *params(), [([30.0, -40.0], [0.0])], 1.0)
    yield case("a parameter without a gradient", *params(), [([3.0, 4.0], None)], 1.0)
    bad_second = [([0.1, 0.2], [0.3]), ([nan, 0.2], [0.3]), ([0.1, 0.2], [0.3]), ([0.4, 0.2], [0.1])]
    yield case("the second of four batches is bad", *params(), bad_second, 1.0)
    yield case("the same with momentum", *params(0.9), bad_second, 1.0)


@finite_step.alternative
def looks_at_every_gradient(params, opt, clip):
    finite = all(torch.isfinite(p.grad).all() for p in params if p.grad is not None)
    if finite:
        torch.nn.utils.clip_grad_norm_(params, clip)
        opt.step()
    opt.zero_grad(set_to_none=False)
    return finite


@finite_step.alternative
def lets_the_clip_raise(params, opt, clip):
    try:
        torch.nn.utils.clip_grad_norm_(params, clip, error_if_nonfinite=True)
    except RuntimeError:
        return False
    else:
        opt.step()
        return True
    finally:
        opt.zero_grad()


@finite_step.misconception(
    "You clear the gradients only after a step. The NaN of the skipped batch stays in `.grad`, infects every later "
    "sum, and no update happens again."
)
def clears_only_after_a_step(params, opt, clip):
    finite = bool(torch.isfinite(torch.nn.utils.clip_grad_norm_(params, clip)))
    if finite:
        opt.step()
        opt.zero_grad()
    return finite


@finite_step.misconception(
    "You step in any case. Clipping does not help against NaN: the norm is NaN, and so is every clipped gradient."
)
def steps_anyway(params, opt, clip):
    finite = bool(torch.isfinite(torch.nn.utils.clip_grad_norm_(params, clip)))
    opt.step()
    opt.zero_grad()
    return finite


@finite_step.misconception("You look for NaN only. An infinite gradient is as bad: clipped, it becomes NaN.")
def looks_for_nan_only(params, opt, clip):
    finite = not any(bool(p.grad.isnan().any()) for p in params if p.grad is not None)
    if finite:
        torch.nn.utils.clip_grad_norm_(params, clip)
        opt.step()
    opt.zero_grad()
    return finite


@finite_step.misconception("You look at the first parameter only. The NaN may be in any of them.")
def looks_at_the_first_parameter(params, opt, clip):
    finite = bool(torch.isfinite(params[0].grad).all())
    if finite:
        torch.nn.utils.clip_grad_norm_(params, clip)
        opt.step()
    opt.zero_grad()
    return finite


@finite_step.misconception(
    "You replace the bad numbers and step. What is left of such a gradient points anywhere; leave the batch out."
)
def repairs_the_gradient(params, opt, clip):
    finite = all(torch.isfinite(p.grad).all() for p in params if p.grad is not None)
    for p in params:
        if p.grad is not None:
            p.grad.nan_to_num_(0.0, 0.0, 0.0)
    torch.nn.utils.clip_grad_norm_(params, clip)
    opt.step()
    opt.zero_grad()
    return finite


@finite_step.misconception("You do not clip. A finite gradient can still be far too large.")
def does_not_clip(params, opt, clip):
    finite = all(torch.isfinite(p.grad).all() for p in params if p.grad is not None)
    if finite:
        opt.step()
    opt.zero_grad()
    return finite


# ---- param_groups ------------------------------------------------------------------------------------------

param_groups = Exercise(
    reference.param_groups,
    title="What decays and what does not",
    objective="training.optimizer",
    difficulty=1,
    minutes=8,
    points=1,
    observes=[observe.value()],
    hints=(
        "Print name and shape of each parameter of a network with a normalization layer. What do the ones that "
        "should not decay have in common? Their names do not tell.",
        "Walk over `model.parameters()`, which gives a tied parameter once. Leave out what does not require "
        "gradients, and split by the number of dimensions.",
        'Two dicts with "params" and "weight_decay". Write the 0.0 out: a group without the key takes the '
        "default of the optimizer, which for AdamW is 0.01.",
    ),
    why="Decay pulls towards 0. For a matrix that is a preference for small weights; for the gain of a "
    "normalization layer 0 means to switch the layer off, and a bias needs to be where the data is. All of these "
    "are vectors, so `dim()` tells them apart where names do not.",
)


@param_groups.scenario
def build_optimizer(answer, model, weight_decay):
    groups = answer(model, weight_decay)
    if (
        not isinstance(groups, (list, tuple))
        or not all(isinstance(group, dict) for group in groups)
        or not groups
    ):
        return groups
    opt = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.03)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [(id(p), float(group["weight_decay"])) for group in opt.param_groups for p in group["params"]]
    return {
        "decays": {names.get(key, "not the model's"): decay for key, decay in held},
        "parameters": len(held),
    }


class TiedNetwork(nn.Module):
    """One table for both ends."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.embed.weight


@param_groups.cases
def _(rng):
    yield case("a linear layer", filled(nn.Linear(2, 3), rng), 0.1)
    normed = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    yield case("with a LayerNorm", filled(normed, rng), 0.1)
    conv = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2, bias=False))
    yield case("a convolution and a batch norm", filled(conv, rng), 0.5)
    yield case("a table used at both ends", filled(TiedNetwork(), rng), 0.1)
    frozen = nn.Sequential(nn.Linear(2, 3), nn.RMSNorm(3), nn.Linear(3, 1))
    frozen[0].requires_grad_(False)
    yield case("a frozen layer and an RMSNorm", filled(frozen, rng), 0.1)
    yield case("a weight that is laid out column by column", transposed_parameter(nn.Linear(2, 3)), 0.2)
    yield case("no vectors at all", filled(nn.Linear(2, 3, bias=False), rng), 0.1)


@param_groups.alternative
def one_group_per_parameter(model, weight_decay):
    return [
        {"params": [p], "weight_decay": weight_decay if p.ndim > 1 else 0}
        for p in model.parameters()
        if p.requires_grad
    ]


@param_groups.alternative
def sorts_into_two_lists(model, weight_decay):
    vectors, matrices = [], []
    for _, p in model.named_parameters():
        if p.requires_grad:
            (vectors if len(p.shape) <= 1 else matrices).append(p)
    groups = [{"params": vectors, "weight_decay": 0.0}, {"params": matrices, "weight_decay": weight_decay}]
    return [group for group in groups if group["params"]]


@param_groups.misconception(
    "Everything decays in yours. The gains of the normalization layers and the biases are pulled to 0 as well."
)
def everything_decays(model, weight_decay):
    return [{"params": [p for p in model.parameters() if p.requires_grad], "weight_decay": weight_decay}]


@param_groups.misconception(
    "You went by the name `bias`. The weight of a normalization layer is called `weight` and is a vector: go by "
    "the number of dimensions."
)
def goes_by_the_name_bias(model, weight_decay):
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in named if "bias" not in name], "weight_decay": weight_decay},
        {"params": [p for name, p in named if "bias" in name], "weight_decay": 0.0},
    ]


@param_groups.misconception(
    "You listed the kinds of normalization layers, and there are more than you thought of. The number of "
    "dimensions covers them all."
)
def lists_layer_norm_only(model, weight_decay):
    normal = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    spared = [p for name, p in named if "bias" in name or id(p) in normal]
    return [
        {"params": [p for _, p in named if all(p is not q for q in spared)], "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]


@param_groups.misconception(
    "You left the weight decay of the vectors open. A group without the key takes the default of the optimizer, "
    "and the default of AdamW is not 0."
)
def leaves_the_zero_out(model, weight_decay):
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2]},
    ]


@param_groups.misconception(
    "The vectors are in no group, so no optimizer ever updates them. They are to train, without decay."
)
def forgets_the_vectors(model, weight_decay):
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    return [{"params": matrices, "weight_decay": weight_decay}]


@param_groups.misconception(
    "Frozen parameters are in your groups. An optimizer holds what is trained; what is unfrozen later would "
    "start to move unasked."
)
def takes_frozen_ones_too(model, weight_decay):
    return [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]


@param_groups.misconception(
    "You walk over the modules, and a parameter that two of them share comes twice. `model.parameters()` gives "
    "it once."
)
def walks_over_modules(model, weight_decay):
    found = [p for m in model.modules() for p in m.parameters(recurse=False) if p.requires_grad]
    return [{"params": [p], "weight_decay": weight_decay if p.dim() >= 2 else 0.0} for p in found]


@param_groups.misconception(
    "You gave the decay to the vectors and spared the matrices. It is the other way round."
)
def swaps_the_groups(model, weight_decay):
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": 0.0},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": weight_decay},
    ]


# ---- warmup_cosine -----------------------------------------------------------------------------------------

warmup_cosine = Exercise(
    reference.warmup_cosine,
    title="Warm-up and cosine",
    objective="training.optimizer",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value(rtol=1e-6, atol=1e-9)],
    hints=(
        "Draw it first: a ramp, half a cosine, a floor. Mark the factor at step 0, at `warmup - 1`, at `warmup`, "
        "at `total` and far behind it.",
        "On the ramp the factor is `(step + 1) / warmup`. After it, let `progress` go from 0 at `warmup` to 1 at "
        "`total`, and no further. `0.5 * (1 + cos(pi * progress))` goes from 1 to 0.",
        "The cosine part has to end at `min_ratio` instead of 0: squeeze it into the height `1 - min_ratio` and "
        "put it on top of `min_ratio`. `min(progress, 1.0)` holds it there.",
    ),
    why="Steps count from 0, so `step / warmup` would waste the first update on a learning rate of 0. The decay is "
    "measured from the end of the warm-up; measured from 0 it would jump. A cosine goes up again after its half "
    "period, so a run that is longer than planned needs the clamp.",
)


@warmup_cosine.scenario
def as_number(answer, step, total, warmup, min_ratio):
    factor = answer(step, total, warmup, min_ratio)
    return float(factor) if isinstance(factor, (int, float)) else factor


@warmup_cosine.cases
def _(rng):
    yield case("the first step", 0, 100, 10, 0.1)
    yield case("in the warm-up", 4, 100, 10, 0.1)
    yield case("the end of the warm-up", 9, 100, 10, 0.1)
    yield case("the first step of the decay", 10, 100, 10, 0.1)
    yield case("a third of the decay", 40, 100, 10, 0.1)
    yield case("half of the decay", 55, 100, 10, 0.1)
    yield case("the end", 100, 100, 10, 0.1)
    yield case("after the end", 130, 100, 10, 0.1)
    yield case("far behind the end", 280, 100, 10, 0.1)
    yield case("no warm-up, the first step", 0, 20, 0, 0.0)
    yield case("no warm-up, half of it", 10, 20, 0, 0.0)
    yield case("a floor of 0.5", 15, 20, 4, 0.5)
    yield case("a warm-up that starts below the floor", 0, 20, 8, 0.25)


@warmup_cosine.alternative
def with_the_squared_cosine(step, total, warmup, min_ratio):
    if step >= total:
        return min_ratio
    if step < warmup:
        return (1 + step) / warmup
    quarter = math.pi / 2 * (step - warmup) / (total - warmup)
    return min_ratio + (1 - min_ratio) * math.cos(quarter) ** 2


@warmup_cosine.alternative
def as_the_smaller_of_two(step, total, warmup, min_ratio):
    ramp = (step + 1) / warmup if warmup else 1
    progress = np.clip((step - warmup) / (total - warmup), 0, 1)
    cosine = (1 + np.cos(np.pi * progress)) / 2
    return float(min(ramp, min_ratio + (1 - min_ratio) * cosine))


@warmup_cosine.misconception(
    "Your first step has the factor 0: the first update is computed and thrown away. Steps count from 0, so the "
    "ramp is `(step + 1) / warmup`."
)
def starts_at_zero(step, total, warmup, min_ratio):
    if step < warmup:
        return step / warmup
    progress = min((step - warmup) / (total - warmup), 1.0)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


@warmup_cosine.misconception(
    "Your ramp divides by `warmup + 1`. That is a usual convention too; here the statement asks for a warm-up "
    "that ends at 1."
)
def divides_by_one_more(step, total, warmup, min_ratio):
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = min((step - warmup) / (total - warmup), 1.0)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


@warmup_cosine.misconception(
    "After `total` your rate goes up again, as that of CosineAnnealingLR does. Hold `progress` at 1."
)
def rises_after_the_end(step, total, warmup, min_ratio):
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (total - warmup)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


@warmup_cosine.misconception(
    "Your cosine begins at step 0, so after the warm-up the rate jumps down. Measure the progress from the end of "
    "the warm-up."
)
def measures_from_step_zero(step, total, warmup, min_ratio):
    if step < warmup:
        return (step + 1) / warmup
    progress = min(step / total, 1.0)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


@warmup_cosine.misconception(
    "You subtract the warm-up from the step and divide by all of `total`: your decay does not reach its end. It "
    "lasts `total - warmup` steps."
)
def divides_by_total(step, total, warmup, min_ratio):
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / total, 1.0)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


@warmup_cosine.misconception("Your cosine ends at 0. It is to end at `min_ratio` and to stay there.")
def ignores_the_floor(step, total, warmup, min_ratio):
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / (total - warmup), 1.0)
    return 0.5 * (1 + math.cos(math.pi * progress))


@warmup_cosine.misconception(
    "You cut the cosine off where it meets `min_ratio`, which comes too early and with a kink. Squeeze the whole "
    "half period into the height that is left."
)
def cuts_off_at_the_floor(step, total, warmup, min_ratio):
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / (total - warmup), 1.0)
    return max(min_ratio, 0.5 * (1 + math.cos(math.pi * progress)))


@warmup_cosine.misconception(
    "You hold the warm-up at `min_ratio` too. The floor belongs to the decay; the ramp starts at `1 / warmup`."
)
def lifts_the_warmup(step, total, warmup, min_ratio):
    if step < warmup:
        return max(min_ratio, (step + 1) / warmup)
    progress = min((step - warmup) / (total - warmup), 1.0)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


@warmup_cosine.misconception("Your decay is a straight line. Half a cosine is slow at both ends.")
def decays_in_a_line(step, total, warmup, min_ratio):
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / (total - warmup), 1.0)
    return min_ratio + (1 - min_ratio) * (1 - progress)


# ---- accumulated_epoch -------------------------------------------------------------------------------------

accumulated_epoch = Exercise(
    reference.accumulated_epoch,
    title="Accumulate unequal micro-batches",
    objective="training.accumulation",
    difficulty=3,
    minutes=18,
    points=3,
    observes=[observe.value()],
    hints=(
        "Take micro-batches of 3 and 1 samples and write down the mean over all four. What does each batch mean "
        "have to be multiplied by? And which window is complete when the epoch ends?",
        "Take up to `accum` micro-batches from the iterator at a time: that is a window. Count its samples, clear "
        "the gradients, run each micro-batch forward and backward with its share, then step once.",
        "`iter(loader)` and `itertools.islice(batches, accum)` cut the windows, the last one included. The share "
        "of a micro-batch is `len(x)` of the samples in its window.",
    ),
    why="`backward` adds, so each micro-batch has to bring its own part of the mean: its batch mean times its share "
    "of the samples. With equal sizes this is the familiar `loss / accum`. A window that the epoch cuts short is "
    "a window too; left over, its gradients would leak into the next epoch.",
)


@accumulated_epoch.scenario
def accumulate_an_epoch(answer, model, loader, loss_fn, opt, accum):
    updates = answer(model, loader, loss_fn, opt, accum)
    clear_gradients(model.parameters())
    passes = [event.split()[0] for event in events_of(model)]
    return {"updates": updates, "passes": " ".join(passes)}


@accumulated_epoch.cases
def _(rng):
    def network():
        model = filled(nn.Sequential(nn.Linear(2, 2), Watch(), nn.Linear(2, 1)), rng)
        return model, sgd(model)

    def one(*sizes, accum, batches=batches_of, stale=False):
        model, opt = network()
        return (
            with_stale_gradients(model) if stale else model,
            batches(rng, *sizes),
            F.mse_loss,
            opt,
            accum,
        )

    yield case("two equal micro-batches, one window", *one(2, 2, accum=2))
    yield case("sizes 3 and 1, one window", *one(3, 1, accum=2))
    yield case("a last window of one", *one(2, 2, 2, accum=2))
    yield case("a last window of unequal ones", *one(2, 2, 2, 1, 3, accum=3))
    yield case("an epoch shorter than a window", *one(2, 1, accum=4))
    yield case("windows of one", *one(2, 1, accum=1))
    yield case("old gradients in .grad", *one(2, 2, accum=2, stale=True))
    yield case("transposed batches", *one(3, 2, accum=2, batches=transposed_batches))
    model, _ = network()
    in_eval = model.eval()
    yield case(
        "with momentum, in eval mode", in_eval, batches_of(rng, 2, 3, 1), F.mse_loss, sgd(model, 0.05, 0.9), 2
    )


@accumulated_epoch.alternative
def divides_the_gradients_at_the_end(model, loader, loss_fn, opt, accum):
    batches = list(loader)
    for start in range(0, len(batches), accum):
        window = batches[start : start + accum]
        opt.zero_grad(set_to_none=False)
        for x, y in window:
            (loss_fn(model(x), y) * len(x)).backward()
        for p in model.parameters():
            p.grad /= sum(len(x) for x, _ in window)
        opt.step()
    return math.ceil(len(batches) / accum)


@accumulated_epoch.alternative
def counts_as_it_goes(model, loader, loss_fn, opt, accum):
    opt.zero_grad()
    updates = samples = 0
    for i, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) * len(x)).backward()
        samples += len(x)
        if (i + 1) % accum == 0:
            updates += rescaled_step(opt, samples)
            samples = 0
    return updates + (rescaled_step(opt, samples) if samples else 0)


def rescaled_step(opt, samples) -> int:
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad.div_(samples)
    opt.step()
    opt.zero_grad()
    return 1


def run_windows(model, loader, loss_fn, opt, accum, share: Callable) -> int:
    """The frame that several wrong answers have in common: `share(x, window)` multiplies a loss."""
    batches, updates = iter(loader), 0
    while window := list(islice(batches, accum)):
        opt.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) * share(x, window)).backward()
        opt.step()
        updates += 1
    return updates


@accumulated_epoch.misconception(
    "You add the batch means up. The gradient, and with SGD the step, grows with the number of micro-batches: each "
    "must bring only its share."
)
def adds_the_means(model, loader, loss_fn, opt, accum):
    return run_windows(model, loader, loss_fn, opt, accum, lambda x, window: 1.0)


@accumulated_epoch.misconception(
    "You divide by the number of micro-batches. That is right if they are equal; otherwise a sample in a small one "
    "counts more. Weight by samples."
)
def weights_micro_batches_alike(model, loader, loss_fn, opt, accum):
    return run_windows(model, loader, loss_fn, opt, accum, lambda x, window: 1 / len(window))


@accumulated_epoch.misconception(
    "You always divide by `accum`. A window that the epoch cut short has fewer micro-batches, and unequal ones "
    "need weights: divide by the samples of the window."
)
def always_divides_by_accum(model, loader, loss_fn, opt, accum):
    return run_windows(model, loader, loss_fn, opt, accum, lambda x, window: 1 / accum)


@accumulated_epoch.misconception(
    "The last, incomplete window gets no update. Its gradients are computed in vain, or leak into the next epoch."
)
def drops_the_last_window(model, loader, loss_fn, opt, accum):
    batches = list(loader)
    whole = batches[: len(batches) // accum * accum]
    updates = run_windows(
        model, whole, loss_fn, opt, accum, lambda x, window: len(x) / sum(len(other) for other, _ in window)
    )
    for x, y in batches[len(whole) :]:
        loss_fn(model(x), y).backward()
    return updates


@accumulated_epoch.misconception(
    "You do not clear the gradients at the start of the epoch, so what was in `.grad` is part of your first update."
)
def starts_with_old_gradients(model, loader, loss_fn, opt, accum):
    batches, updates = iter(loader), 0
    while window := list(islice(batches, accum)):
        n_samples = sum(len(x) for x, _ in window)
        for x, y in window:
            (loss_fn(model(x), y) * len(x) / n_samples).backward()
        opt.step()
        opt.zero_grad()
        updates += 1
    return updates


@accumulated_epoch.misconception(
    "You clear the gradients for every micro-batch, so only the last one of a window counts. Clear once per window."
)
def clears_per_micro_batch(model, loader, loss_fn, opt, accum):
    batches, updates = iter(loader), 0
    while window := list(islice(batches, accum)):
        for x, y in window:
            opt.zero_grad()
            (loss_fn(model(x), y) * len(x) / sum(len(other) for other, _ in window)).backward()
        opt.step()
        updates += 1
    return updates


@accumulated_epoch.misconception(
    "You step after every micro-batch. Accumulation means: several backward passes, one step."
)
def steps_per_micro_batch(model, loader, loss_fn, opt, accum):
    updates = 0
    for x, y in loader:
        opt.zero_grad()
        loss_fn(model(x), y).backward()
        opt.step()
        updates += 1
    return math.ceil(updates / accum)


@accumulated_epoch.misconception(
    "Your gradient is right, but all graphs of the window are in memory before the first backward pass. To save "
    "that memory is what accumulation is for: run backward after each forward."
)
def keeps_all_graphs(model, loader, loss_fn, opt, accum):
    batches, updates = iter(loader), 0
    while window := list(islice(batches, accum)):
        n_samples = sum(len(x) for x, _ in window)
        opt.zero_grad()
        sum(loss_fn(model(x), y) * len(x) / n_samples for x, y in window).backward()
        opt.step()
        updates += 1
    return updates


@accumulated_epoch.misconception(
    "You returned the number of micro-batches. An update is a call of `opt.step()`, one per window."
)
def counts_micro_batches(model, loader, loss_fn, opt, accum):
    batches = list(loader)
    run_windows(
        model, batches, loss_fn, opt, accum, lambda x, window: len(x) / sum(len(other) for other, _ in window)
    )
    return len(batches)


# ---- make_precision ----------------------------------------------------------------------------------------

make_precision = Exercise(
    reference.make_precision,
    title="One switch for the precision",
    objective="training.precision",
    difficulty=1,
    minutes=6,
    points=1,
    observes=[observe.value()],
    hints=(
        "Make a table with a row for each dtype: does it need autocast? Does it need a scaler, and what for?",
        "Autocast for both 16-bit types. A scaler only where small gradients underflow: that is a matter of the "
        "exponent, and bfloat16 has the exponent of float32.",
        "Both classes take `enabled=`: `torch.autocast(device_type, dtype, enabled=...)` and "
        "`torch.amp.GradScaler(device_type, enabled=...)`. Disabled, they do nothing, and the loop needs no `if`.",
    ),
    why="float16 has 5 bits for the exponent and loses gradients below 6e-8; the scaler lifts them over that edge. "
    "bfloat16 has the 8 bits of float32, so there is nothing to lift. A disabled scaler passes everything through, "
    "so that one loop serves all three.",
)


@make_precision.scenario
def try_precision(answer, device_type, dtype):
    made = answer(device_type, dtype)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], torch.autocast):
        return made
    autocast, scaler = made
    facts = {"autocast for": autocast.device, "a matrix product is": []}
    for _ in range(2):  # a training loop enters it again and again
        with autocast:
            facts["a matrix product is"].append(torch.mm(torch.ones(2, 3), torch.ones(3, 2)).dtype)
    facts["scaler"] = scaler.is_enabled() if isinstance(scaler, torch.amp.GradScaler) else scaler
    return facts


@make_precision.cases
def _(rng):
    yield case("float32 on a CPU", "cpu", torch.float32)
    yield case("bfloat16 on a CPU", "cpu", torch.bfloat16)
    yield case("float16 on a CPU", "cpu", torch.float16)
    yield case("float32 on a GPU", "cuda", torch.float32)


@make_precision.alternative
def asks_for_two_bytes(device_type, dtype):
    return (
        torch.amp.autocast(device_type, dtype=dtype, enabled=dtype.itemsize == 2),
        torch.amp.GradScaler(device_type, enabled=dtype is torch.float16),
    )


@make_precision.alternative
def asks_for_the_smallest_number(device_type, dtype):
    needs_scaler = torch.finfo(dtype).tiny > 1e-30
    autocast = torch.autocast(device_type, dtype if dtype != torch.float32 else torch.bfloat16)
    autocast = autocast if dtype != torch.float32 else torch.autocast(device_type, enabled=False)
    return autocast, torch.amp.GradScaler(device=device_type, enabled=needs_scaler)


@make_precision.misconception(
    "Your scaler is enabled for bfloat16. That type has the exponent of float32, so small gradients do not "
    "underflow, and there is nothing to scale for."
)
def scales_bfloat16_too(device_type, dtype):
    autocast = torch.autocast(device_type, dtype, enabled=dtype != torch.float32)
    return autocast, torch.amp.GradScaler(device_type, enabled=dtype != torch.float32)


@make_precision.misconception(
    "Your scaler is not enabled for float16, so that gradients below 6e-8 become 0. (Or it is for CUDA, its default, "
    "and has switched itself off on a machine without.)"
)
def never_scales(device_type, dtype):
    autocast = torch.autocast(device_type, dtype, enabled=dtype != torch.float32)
    return autocast, torch.amp.GradScaler(device_type, enabled=False)


@make_precision.misconception(
    "Your scaler is always enabled. Only float16 needs it, and every step pays for looking for infinities."
)
def always_scales(device_type, dtype):
    autocast = torch.autocast(device_type, dtype, enabled=dtype != torch.float32)
    return autocast, torch.amp.GradScaler(device_type)


@make_precision.misconception(
    "You left the dtype of autocast to its default: bfloat16 on a CPU, float16 on CUDA. Pass `dtype` on."
)
def leaves_the_dtype_open(device_type, dtype):
    autocast = torch.autocast(device_type, enabled=dtype != torch.float32)
    return autocast, torch.amp.GradScaler(device_type, enabled=dtype == torch.float16)


@make_precision.misconception(
    'You wrote "cuda" into the code. On a machine without it, autocast and the scaler switch themselves off with a '
    "warning, and you train in float32 without noticing."
)
def is_for_cuda_only(device_type, dtype):
    autocast = torch.autocast("cuda", dtype, enabled=dtype != torch.float32)
    return autocast, torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)


# ---- amp_step ----------------------------------------------------------------------------------------------

amp_step = Exercise(
    reference.amp_step,
    title="A step in mixed precision",
    objective="training.precision",
    difficulty=3,
    minutes=18,
    points=3,
    observes=[observe.value(rtol=1e-3, atol=1e-6)],
    hints=(
        "After `scaler.scale(loss).backward()` the gradients are too large by the scale. Which of the things that "
        "follow must see them in their true size, and who decides whether there is a step at all?",
        "The order is: clear, forward under autocast, scale, backward, unscale, clip, step, update. Autocast ends "
        "before backward. A disabled scaler passes everything through, so there is no `if`.",
        "`scaler.unscale_(opt)` goes before the clip, `scaler.step(opt)` in the place of `opt.step()`, and "
        "`scaler.update()` at the end. What you return comes from the loss, not from the scaled loss.",
    ),
    why="Clipping compares with `clip`, so it has to see gradients in their true size. `scaler.step` knows what "
    "`unscale_` found: with an infinity it leaves the optimizer alone, and `update` then halves the scale. Backward "
    "needs no autocast: each operation runs backward in the type in which it ran forward.",
)


@amp_step.scenario
def make_amp_steps(answer, model, x, y, loss_fn, opt, scaler, clip, times=1):
    losses = [answer(model, x, y, loss_fn, opt, scaler, clip) for _ in range(times)]
    clear_gradients(model.parameters())
    return {"losses": losses, "passes": events_of(model)}


@amp_step.cases
def _(rng):
    def step(scale=None, momentum=0.0, stale=False, batches=batches_of, **scaling):
        model = filled(nn.Sequential(nn.Linear(2, 3), Watch(), nn.Linear(3, 1)), rng)
        ((x, y),) = batches(rng, 4)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None, **scaling)
        model = with_stale_gradients(model) if stale else model
        return model, x, y, F.mse_loss, sgd(model, 0.1, momentum), scaler

    def overflow(**kwargs):
        model, x, *rest = step(**kwargs)
        x[1, 0] = math.inf
        return model, x, *rest

    yield case("without a scaler", *step(), 100.0)
    yield case("scale 1024, nothing to clip", *step(1024.0), 100.0)
    yield case("scale 1024, gradients to be clipped", *step(1024.0), 0.5)
    yield case("without a scaler, gradients to be clipped", *step(), 0.5)
    yield case("old gradients in .grad", *step(1024.0, stale=True), 100.0)
    yield case("an input overflows", *overflow(scale=1024.0, momentum=0.9), 1.0)
    yield case("three steps, then the scale grows", *step(64.0, 0.9, growth_interval=3), 1.0, times=3)
    yield case("two steps that overflow", *overflow(scale=1024.0), 1.0, times=2)
    yield case("a transposed batch", *step(1024.0, batches=transposed_batches), 0.5)


@amp_step.alternative
def clips_to_the_scaled_limit(model, x, y, loss_fn, opt, scaler, clip):
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = model(x)
    loss = loss_fn(prediction.float(), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip * scaler.get_scale())
    scaler.step(opt)
    scaler.update()
    return float(loss)


@amp_step.alternative
def clears_at_the_end(model, x, y, loss_fn, opt, scaler, clip):
    with torch.amp.autocast(device_type=x.device.type, dtype=torch.bfloat16):
        loss = loss_fn(model(x), y)
    params = [p for group in opt.param_groups for p in group["params"]]
    grads = torch.autograd.grad(scaler.scale(loss), params)
    for p, grad in zip(params, grads):
        p.grad = grad
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(params, clip)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    return loss.detach().item()


@amp_step.misconception(
    "You clip the scaled gradients. They are larger by the scale, so nearly every step is clipped, to a "
    "scale-th of `clip`. Unscale first: `scaler.unscale_(opt)` before the clip."
)
def clips_before_unscaling(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception(
    "The loss is not scaled. Small gradients then underflow in float16, and the scaler, which waits to see a "
    "scaled loss, raises."
)
def never_scales_the_loss(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    loss.backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception(
    "You call `opt.step()`. It steps with NaN as well; `scaler.step(opt)` looks first and leaves a bad step out."
)
def steps_past_the_scaler(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    opt.step()
    scaler.update()
    return loss.item()


@amp_step.misconception(
    "You never call `scaler.update()`. The scale neither falls after an overflow nor grows, and the second call "
    "of `unscale_` raises."
)
def never_updates_the_scaler(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    return loss.item()


@amp_step.misconception("The forward pass does not run under autocast: everything is computed in float32.")
def forgets_autocast(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception(
    'You asked for autocast on "cuda". Without CUDA it switches itself off with a warning, and you compute in '
    "float32. Ask for the kind of device that `x` is on."
)
def autocasts_another_device(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast("cuda", torch.bfloat16), torch.autocast("cpu", enabled=False):
        loss = loss_fn(model(x), y)
        events = [module.events for module in model.modules() if hasattr(module, "events")]
        for noted in events:
            noted[-1] += ", on another device"
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception(
    "Backward runs inside autocast. It needs none, since each operation runs backward in the type in which it ran "
    "forward; PyTorch's documentation advises against it."
)
def backward_under_autocast(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception("The gradients are not clipped when the step uses them.")
def never_clips(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception(
    "You divide by the scale once more after `unscale_`, and the step is smaller by the scale."
)
def unscales_twice(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    for p in model.parameters():
        p.grad /= scaler.get_scale()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception("Old gradients are part of your step. Clear them before backward.")
def keeps_old_gradients(model, x, y, loss_fn, opt, scaler, clip):
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception("You returned the scaled loss. What people log is the loss itself.")
def returns_the_scaled_loss(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = scaler.scale(loss_fn(model(x), y))
    loss.backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


@amp_step.misconception(
    "You converted the model itself to bfloat16. Then the optimizer updates bfloat16 numbers, and updates smaller "
    "than 1/256 of a weight are lost. Autocast converts for the computation and keeps float32 weights."
)
def converts_the_model(model, x, y, loss_fn, opt, scaler, clip):
    opt.zero_grad()
    model.to(torch.bfloat16)
    loss = loss_fn(model(x.to(torch.bfloat16)), y.to(torch.bfloat16))
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


# ---- EarlyStopping -----------------------------------------------------------------------------------------

early_stopping = Exercise(
    reference.EarlyStopping,
    title="Stop, and bring the best back",
    objective="training.checkpoints",
    difficulty=2,
    minutes=15,
    points=2,
    observes=[observe.value()],
    hints=(
        "Which three things have to be remembered between two calls? And is `state_dict()` a photograph of the "
        "weights or a window to them?",
        "On an improvement: new best loss, counter to 0, and a *copy* of the state. Otherwise: count. The answer "
        "is whether the counter has reached `patience`.",
        "Write the condition the way that NaN falls on the right side: `if loss < self.best - self.delta`, and "
        "everything else in `else`. `copy.deepcopy(model.state_dict())` is a photograph.",
    ),
    why="`state_dict()` holds the parameters themselves, and training goes on writing into them, so the best "
    "weights need a deep copy. The counter counts misses *in a row*, so an improvement resets it. A comparison "
    "with NaN is False, so the question has to be asked as `loss < ...`.",
)


@early_stopping.scenario
def stop_early(answer, model, patience, delta, losses):
    stopper = answer(patience, delta)
    if not hasattr(stopper, "step"):
        return stopper
    stops = []
    for epoch, loss in enumerate(losses):
        set_numbers(model, epoch)
        stops.append(stopper.step(loss, model))
    set_numbers(model, -5)
    stopper.restore(model)
    restored = copy.deepcopy(dict(model.state_dict()))
    set_numbers(model, -7)
    stopper.restore(model)
    return {"stops": stops, "restored": restored, "restored again": dict(model.state_dict())}


def set_numbers(model: nn.Module, number: float) -> None:
    """Training, as far as this exercise cares: all numbers of the model become others, in place."""
    with torch.no_grad():
        for position, tensor in enumerate(model.state_dict().values()):
            tensor.fill_(number + 10 * position)


@early_stopping.cases
def _(rng):
    def model():
        return filled(nn.Linear(2, 1), rng)

    yield case("two misses in a row", model(), patience=2, delta=0.0, losses=[1.0, 2.0, 3.0])
    yield case("the loss falls all the time", model(), patience=1, delta=0.0, losses=[3.0, 2.0, 1.0])
    yield case(
        "an improvement between misses", model(), patience=2, delta=0.0, losses=[5.0, 6.0, 4.0, 4.5, 4.2]
    )
    noisy = [5.0, 4.0, 4.5, 3.0, 3.5, 2.0, 2.5, 1.0]
    yield case("a noisy curve that gets better", model(), patience=3, delta=0.0, losses=noisy)
    yield case("a plateau", model(), patience=3, delta=0.0, losses=[2.0, 2.0, 2.0, 2.0])
    yield case("down a little from a peak", model(), patience=2, delta=0.0, losses=[1.0, 5.0, 4.0, 3.0])
    yield case("improvements smaller than delta", model(), patience=2, delta=0.5, losses=[3.0, 2.8, 2.7, 1.0])
    yield case("a little worse each time", model(), patience=2, delta=0.5, losses=[3.0, 3.2, 3.4])
    creeping = [3.0, 2.75, 2.25, 2.0]
    yield case("small improvements that add up", model(), patience=3, delta=0.5, losses=creeping)
    yield case("a NaN", model(), patience=2, delta=0.0, losses=[2.0, math.nan, math.nan, 1.0])
    normed = nn.Sequential(transposed_parameter(nn.Linear(2, 3)), nn.BatchNorm1d(3))
    yield case("a batch norm", filled(normed, rng), patience=1, delta=0.0, losses=[1.0, 2.0])


@early_stopping.alternative
class keeps_a_copy_of_the_model:
    def __init__(self, patience, delta=0.0):
        self.patience, self.delta = patience, delta
        self.best = float("inf")
        self.misses = 0
        self.copy = None

    def step(self, loss, model):
        improved = self.best - loss > self.delta
        self.misses = 0 if improved else self.misses + 1
        if improved:
            self.best, self.copy = loss, copy.deepcopy(model)
        return self.misses >= self.patience

    def restore(self, model):
        model.load_state_dict(self.copy.state_dict())


@early_stopping.alternative
class keeps_clones_and_the_history:
    def __init__(self, patience, delta=0.0):
        self.patience, self.delta, self.history = patience, delta, []
        self.best_loss, self.tensors = math.inf, {}

    def step(self, loss, model):
        self.history.append(loss < self.best_loss - self.delta)
        if self.history[-1]:
            self.best_loss = loss
            self.tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return len(self.history) >= self.patience and not any(self.history[-self.patience :])

    def restore(self, model):
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(self.tensors[name])


@early_stopping.misconception(
    "You keep `state_dict()` itself. It holds the living weights, so the best ones are overwritten by every later "
    "step: make a deep copy."
)
class keeps_a_reference(reference.EarlyStopping):
    def step(self, loss, model):
        if loss < self.best - self.delta:
            self.best, self.bad = loss, 0
            self.state = model.state_dict()
        else:
            self.bad += 1
        return self.bad >= self.patience


@early_stopping.misconception(
    "You put a copy on top: a new object with its own numbers, but made at the wrong time, of the last weights "
    "and not of the best."
)
class keeps_the_last_weights(reference.EarlyStopping):
    def step(self, loss, model):
        self.state = copy.deepcopy(model.state_dict())
        if loss < self.best - self.delta:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


@early_stopping.misconception(
    "You copy the parameters and not the buffers. The statistics of batch norm belong to the best model too."
)
class forgets_the_buffers(reference.EarlyStopping):
    def step(self, loss, model):
        if loss < self.best - self.delta:
            self.best, self.bad = loss, 0
            self.state = {name: p.detach().clone() for name, p in model.named_parameters()}
        else:
            self.bad += 1
        return self.bad >= self.patience

    def restore(self, model):
        model.load_state_dict(self.state, strict=False)


@early_stopping.misconception(
    "You stop one call late: `patience` misses in a row are enough, so the comparison is `>=`."
)
class is_too_patient(reference.EarlyStopping):
    def step(self, loss, model):
        super().step(loss, model)
        return self.bad > self.patience


@early_stopping.misconception(
    "You never reset the counter. It is to count misses in a row; on a noisy curve yours stops a run that still "
    "improves."
)
class counts_all_misses(reference.EarlyStopping):
    def step(self, loss, model):
        if loss < self.best - self.delta:
            self.best = loss
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


@early_stopping.misconception(
    "You compare with the previous loss. After a jump up, a small way down is no improvement: compare with the best."
)
class compares_with_the_previous(reference.EarlyStopping):
    def step(self, loss, model):
        if loss < self.best - self.delta:
            self.bad = 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        self.best = loss
        return self.bad >= self.patience


@early_stopping.misconception(
    "For you an equal loss is an improvement. On a plateau the counter then never grows: the comparison is `<`."
)
class takes_a_plateau_for_progress(reference.EarlyStopping):
    def step(self, loss, model):
        if loss <= self.best - self.delta:
            self.best, self.bad = loss, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


@early_stopping.misconception("You leave `delta` out. An improvement has to be larger than that.")
class ignores_delta(reference.EarlyStopping):
    def __init__(self, patience, delta=0.0):
        super().__init__(patience, 0.0)


@early_stopping.misconception(
    "Your `delta` has the wrong sign: a loss that is a little worse than the best counts as an improvement."
)
class adds_delta(reference.EarlyStopping):
    def __init__(self, patience, delta=0.0):
        super().__init__(patience, -delta)


@early_stopping.misconception(
    "A NaN counts as an improvement. Every comparison with NaN is False, so asking `loss >= ...` for a miss lets "
    "it through: ask `loss < ...` for an improvement."
)
class takes_nan_for_progress(reference.EarlyStopping):
    def step(self, loss, model):
        if loss >= self.best - self.delta:
            self.bad += 1
        else:
            self.best, self.bad = loss, 0
            self.state = copy.deepcopy(model.state_dict())
        return self.bad >= self.patience


# ---- save_checkpoint ---------------------------------------------------------------------------------------


class SmallRun:
    """Model, optimizer, scheduler and generator of a run that has taken a few steps."""

    def __init__(self, rng: torch.Generator, model: nn.Module | None = None, steps: int = 2):
        self.model = filled(model or nn.Linear(2, 1), rng)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, T_max=8)
        self.gen = torch.Generator().manual_seed(steps)
        for x, y in batches_of(rng, *[3] * steps):
            self.step(x, y)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.opt.zero_grad()
        (self.model(x) - y).square().mean().backward()
        self.opt.step()
        self.sched.step()
        torch.randperm(5, generator=self.gen)

    @property
    def parts(self) -> tuple:
        return self.model, self.opt, self.sched, self.gen

    def checkpoint(self, epoch: int) -> dict[str, Any]:
        model, opt, sched = (copy.deepcopy(part.state_dict()) for part in (self.model, self.opt, self.sched))
        states = {"model": model, "optimizer": opt, "scheduler": sched, "generator": self.gen.get_state()}
        return {**states, "torch_rng": torch.Generator().manual_seed(epoch).get_state(), "epoch": epoch}


class Unsavable:
    """A scheduler whose state holds a function, which no pickle takes."""

    def state_dict(self) -> dict[str, Any]:
        return {"lr_lambda": lambda step: 1.0}


save_checkpoint = Exercise(
    reference.save_checkpoint,
    title="Save all of it",
    objective="training.checkpoints",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "Walk through one training step and write down everything that remembers something: what holds momentum? "
        "What knows the learning rate? What decides which samples come next, and which neurons are dropped?",
        "Six entries under the names of the statement: three `state_dict()`, two states of generators, one number. "
        "And ask what is left at `path` if the computer stops in the middle of writing.",
        'Write to another name first, for example f"{path}.tmp", with `torch.save`. When it is complete, '
        "`os.replace` puts it in the place of `path` in one go.",
    ),
    why="Whatever remembers something between two steps has to be in the file; what is missing starts anew after "
    "a resume, without an error. State dicts hold tensors and numbers, which `weights_only=True` reads; whole "
    "objects it refuses. `os.replace` is atomic: at every moment one complete file is there.",
)

KEYS = ("model", "optimizer", "scheduler", "generator", "torch_rng", "epoch")


@save_checkpoint.scenario
def save_and_read(answer, model, opt, sched, gen, epoch, older=False):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")
        if older:
            path.write_bytes(b"an older checkpoint")
        try:
            returned = answer(str(path), model, opt, sched, gen, epoch)
            raised = False
        except Exception:
            if not isinstance(sched, Unsavable):
                raise  # nothing had to fail here: the learner sees the error itself
            returned, raised = None, True
        facts = {"returned": returned, "an error came out": raised}
        return facts | {"in the file": what_is_in(path)}


def what_is_in(path: Path) -> Any:
    if not path.exists():
        return "no file"
    try:
        saved = torch.load(path, weights_only=True)
    except Exception as refusal:
        older = path.read_bytes() == b"an older checkpoint"
        return (
            "the older checkpoint"
            if older
            else f"not readable with weights_only=True: {type(refusal).__name__}"
        )
    if not isinstance(saved, dict):
        return saved
    return {
        key: dict(saved[key]) if isinstance(saved.get(key), dict) else saved.get(key, "missing")
        for key in KEYS
    }


@save_checkpoint.cases
def _(rng):
    yield case("before the first step", *SmallRun(rng, steps=0).parts, 0)
    yield case("after two steps", *SmallRun(rng).parts, 3)
    normed = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    yield case("a batch norm", *SmallRun(rng, normed).parts, 1)
    yield case(
        "a weight laid out column by column", *SmallRun(rng, transposed_parameter(nn.Linear(2, 3))).parts, 7
    )
    yield case("over an older checkpoint", *SmallRun(rng, steps=3).parts, 4, older=True)
    model, opt, _, gen = SmallRun(rng).parts
    yield case("saving fails over an older checkpoint", model, opt, Unsavable(), gen, 5, older=True)


@save_checkpoint.alternative
def pickles_in_memory_first(path, model, opt, sched, gen, epoch):
    buffer = io.BytesIO()
    states = {"model": model.state_dict(), "optimizer": opt.state_dict(), "scheduler": sched.state_dict()}
    generators = {"generator": gen.get_state(), "torch_rng": torch.random.get_rng_state()}
    torch.save({**states, **generators, "epoch": epoch, "python_rng": random.getstate()}, buffer)
    Path(path).write_bytes(buffer.getvalue())


@save_checkpoint.alternative
def renames_a_temporary_file(path, model, opt, sched, gen, epoch):
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, "." + name)
    with open(temporary, "wb") as file:
        torch.save(
            {
                "epoch": epoch,
                "torch_rng": torch.default_generator.get_state(),
                "generator": gen.get_state(),
                "scheduler": sched.state_dict(),
                "optimizer": opt.state_dict(),
                "model": {name: tensor.clone() for name, tensor in model.state_dict().items()},
            },
            file,
        )
    os.rename(temporary, path)


def written(path, model, opt, sched, gen, epoch, changes: dict[str, Any]) -> None:
    """The frame of several wrong answers: the right checkpoint with changes; None takes an entry out."""
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": opt.state_dict(),
        "scheduler": sched.state_dict(),
        "generator": gen.get_state(),
        "torch_rng": torch.get_rng_state(),
        "epoch": epoch,
    } | changes
    torch.save({key: value for key, value in checkpoint.items() if value is not None}, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


@save_checkpoint.misconception(
    "The optimizer's state is missing. Its momentum starts from 0 after a resume, and the loss jumps."
)
def saves_no_optimizer(path, model, opt, sched, gen, epoch):
    checkpoint = {
        "model": model.state_dict(),
        "scheduler": sched.state_dict(),
        "generator": gen.get_state(),
        "torch_rng": torch.get_rng_state(),
        "epoch": epoch,
    }
    torch.save(checkpoint, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


@save_checkpoint.misconception(
    "The scheduler's state is missing. After a resume the learning rate starts its curve again."
)
def saves_no_scheduler(path, model, opt, sched, gen, epoch):
    written(path, model, opt, sched, gen, epoch, {"scheduler": None})


@save_checkpoint.misconception(
    "The state of the global generator is missing, so a resumed run drops other neurons than one that was never "
    "interrupted."
)
def saves_no_rng(path, model, opt, sched, gen, epoch):
    written(path, model, opt, sched, gen, epoch, {"torch_rng": None})


@save_checkpoint.misconception(
    "The state of the data's generator is missing, so a resumed run shuffles in another order."
)
def saves_no_generator(path, model, opt, sched, gen, epoch):
    written(path, model, opt, sched, gen, epoch, {"generator": None})


@save_checkpoint.misconception(
    "You saved the seed of the generator. It says where the stream of numbers began, not where it is now: "
    "`get_state()`."
)
def saves_the_seed(path, model, opt, sched, gen, epoch):
    written(path, model, opt, sched, gen, epoch, {"generator": gen.initial_seed()})


@save_checkpoint.misconception("The number of the epoch is missing, so nobody knows where to go on.")
def saves_no_epoch(path, model, opt, sched, gen, epoch):
    written(path, model, opt, sched, gen, epoch, {"epoch": None})


@save_checkpoint.misconception(
    "You pickled the model itself. The file then depends on the code of its class, and since PyTorch 2.6 "
    "`torch.load` refuses it: save the state dict."
)
def pickles_the_module(path, model, opt, sched, gen, epoch):
    written(path, model, opt, sched, gen, epoch, {"model": model})


@save_checkpoint.misconception(
    "You saved the parameters without the buffers. The statistics of batch norm are missing: use `state_dict()`."
)
def saves_parameters_only(path, model, opt, sched, gen, epoch):
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    written(path, model, opt, sched, gen, epoch, {"model": parameters})


@save_checkpoint.misconception(
    "You write straight to `path`. If writing stops half-way, the old checkpoint is gone and the new one is no "
    "checkpoint: write to another name, then `os.replace`."
)
def writes_in_place(path, model, opt, sched, gen, epoch):
    states = {"model": model.state_dict(), "optimizer": opt.state_dict(), "scheduler": sched.state_dict()}
    generators = {"generator": gen.get_state(), "torch_rng": torch.get_rng_state()}
    torch.save({**states, **generators, "epoch": epoch}, path)


# ---- load_checkpoint ---------------------------------------------------------------------------------------

load_checkpoint = Exercise(
    reference.load_checkpoint,
    title="Resume",
    objective="training.checkpoints",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "Six entries were saved. For each: who has the method that takes it back? And if epoch 3 was finished, "
        "which one comes next?",
        "Three times `load_state_dict`, twice `set_state` (once of `gen`, once the global one), and a number to "
        "return. Nothing else is to change: not the mode, and not which tensors are the model's parameters.",
        "`torch.load(path, weights_only=True)` gives the dict. `torch.set_rng_state` is the global one. Do not use "
        "`assign=True`: the optimizer would hold on to the old parameters.",
    ),
    why="Each part takes back what it gave. `load_state_dict` copies into the parameters that exist, so the "
    "optimizer, which holds these very tensors, goes on updating them. The file says which epoch was finished, so "
    "the next one is one more.",
)


@load_checkpoint.scenario
def load_and_look(answer, model, opt, sched, gen, checkpoint, drawn=0):
    if not drawn:
        checkpoint = checkpoint | {"torch_rng": torch.get_rng_state()}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "checkpoint.pt"))
        torch.save(checkpoint, path)
        _ = [torch.rand(1) for _ in range(drawn)]
        epoch = answer(path, model, opt, sched, gen)
    held = [p for group in opt.param_groups for p in group["params"]]
    own = all(p is q for p, q in zip(held, model.parameters()))
    return {"next epoch": epoch, "opt holds the model's parameters": own, "torch rng": torch.get_rng_state()}


@load_checkpoint.cases
def _(rng):
    def runs(build=lambda: nn.Linear(2, 1), steps=2, fresh=0):
        return SmallRun(rng, build(), fresh).parts, SmallRun(rng, build(), steps)

    def network():
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    parts, saved = runs()
    yield case("a checkpoint after two steps", *parts, saved.checkpoint(3))
    parts, saved = runs()
    yield case("the global generator was used since", *parts, saved.checkpoint(1), drawn=2)
    parts, saved = runs(network, steps=3)
    yield case("a batch norm, in train mode", *parts, saved.checkpoint(2), drawn=1)
    parts, saved = runs(network)
    parts[0].eval()
    yield case("a model that is in eval mode", *parts, saved.checkpoint(0), drawn=1)
    parts, saved = runs(lambda: transposed_parameter(nn.Linear(2, 3)))
    yield case("a weight laid out column by column", *parts, saved.checkpoint(6), drawn=1)
    parts, saved = runs(fresh=4)
    yield case("over a run that went further", *parts, saved.checkpoint(5), drawn=1)


@load_checkpoint.alternative
def restores_in_another_order(path, model, opt, sched, gen):
    with open(path, "rb") as file:
        saved = torch.load(file, map_location="cpu")
    torch.default_generator.set_state(saved["torch_rng"])
    gen.set_state(saved["generator"])
    for part, key in ((sched, "scheduler"), (opt, "optimizer"), (model, "model")):
        part.load_state_dict(saved[key])
    return 1 + saved["epoch"]


@load_checkpoint.alternative
def copies_tensor_by_tensor(path, model, opt, sched, gen):
    saved = torch.load(path, weights_only=False)
    own = model.state_dict()
    for name, tensor in saved["model"].items():
        own[name].copy_(tensor)
    opt.load_state_dict(saved["optimizer"])
    sched.load_state_dict(saved["scheduler"])
    gen.set_state(saved["generator"])
    torch.random.set_rng_state(saved["torch_rng"])
    return saved["epoch"] + 1


def loaded(path, model, opt, sched, gen, leave_out=(), **how) -> int:
    """The frame of several wrong answers: everything is restored but what is left out."""
    checkpoint = torch.load(path, weights_only=True)
    restore = {
        "model": lambda state: model.load_state_dict(state, **how),
        "optimizer": opt.load_state_dict,
        "scheduler": sched.load_state_dict,
        "generator": gen.set_state,
        "torch_rng": torch.set_rng_state,
    }
    for key in restore.keys() - set(leave_out):
        restore[key](checkpoint[key])
    return checkpoint["epoch"] + 1


@load_checkpoint.misconception(
    "You return the epoch that was finished, and it would be run twice. The next one is one more."
)
def repeats_the_epoch(path, model, opt, sched, gen):
    return loaded(path, model, opt, sched, gen) - 1


@load_checkpoint.misconception(
    "The optimizer is not restored: its moments and step counts start from nothing."
)
def forgets_the_optimizer(path, model, opt, sched, gen):
    return loaded(path, model, opt, sched, gen, leave_out=["optimizer"])


@load_checkpoint.misconception("The scheduler is not restored: it starts its curve again.")
def forgets_the_scheduler(path, model, opt, sched, gen):
    return loaded(path, model, opt, sched, gen, leave_out=["scheduler"])


@load_checkpoint.misconception("The data's generator is not restored: the samples come in another order.")
def forgets_the_generator(path, model, opt, sched, gen):
    return loaded(path, model, opt, sched, gen, leave_out=["generator"])


@load_checkpoint.misconception("The global generator is not restored: dropout drops other neurons.")
def forgets_the_rng(path, model, opt, sched, gen):
    return loaded(path, model, opt, sched, gen, leave_out=["torch_rng"])


@load_checkpoint.misconception(
    "You seeded the global generator instead of restoring it. A seed says where a stream begins, not where the run "
    "had come to."
)
def seeds_anew(path, model, opt, sched, gen):
    epoch = loaded(path, model, opt, sched, gen, leave_out=["torch_rng"])
    torch.manual_seed(0)
    return epoch


@load_checkpoint.misconception(
    "You put the loaded tensors in the place of the parameters (`assign=True`). The optimizer still holds the old "
    "ones and updates tensors that nobody uses."
)
def assigns_new_parameters(path, model, opt, sched, gen):
    return loaded(path, model, opt, sched, gen, assign=True)


@load_checkpoint.misconception(
    "You put the model into eval mode. That is right for inference; a run that resumes would train without dropout."
)
def ends_in_eval_mode(path, model, opt, sched, gen):
    epoch = loaded(path, model, opt, sched, gen)
    model.eval()
    return epoch


# ---- ResumableBatches --------------------------------------------------------------------------------------

resumable_batches = Exercise(
    reference.ResumableBatches,
    title="Batches from any step on",
    objective="training.resume",
    difficulty=2,
    minutes=12,
    points=2,
    stretch=True,
    observes=[observe.value()],
    hints=(
        "If the batch of step 1000 depended on nothing but the seed and the number 1000, there would be nothing to "
        "save. What must the order of an epoch depend on?",
        "Give the sampler a generator of its own, seeded in `__iter__`. Draw one permutation per epoch from it, cut "
        "it into batches, and leave out the first `start` of them.",
        "`torch.randperm(n, generator=gen).split(batch_size)` are the batches of one epoch, `while True` makes the "
        "epochs, and `itertools.islice(batches, start, None)` leaves the first ones out.",
    ),
    why="The position in the data is then a function of the step number, and the step number is in the checkpoint "
    "anyway. A DataLoader with workers draws batches ahead of the training loop, so a sampler that counted for "
    "itself would count too far. The draws for skipped epochs cost little.",
)

LONG = 23  # batches; several epochs of every case


@resumable_batches.scenario
def take_batches(answer, n, batch_size, seed, start):
    def taken(*args):
        return list(islice(iter(answer(*args)), LONG))

    made = answer(n, batch_size, seed, start)
    if isinstance(made, Tensor) or type(made).__module__ == "builtins":
        return made
    batches, whole = list(islice(iter(made), LONG)), taken(n, batch_size, seed)
    per_epoch = math.ceil(n / batch_size)
    starts = range(0, LONG - per_epoch, per_epoch)
    epochs = [list(itertools.chain(*whole[i : i + per_epoch])) for i in starts]
    return {
        "sizes": [len(batch) for batch in whole[: 2 * per_epoch]],
        "types": sorted({type(item).__name__ for batch in batches for item in (*batch, batch)}),
        "every index once per epoch": [sorted(epoch) == list(range(n)) for epoch in epochs],
        "epochs in different orders": len(set(map(tuple, epochs))) > 1,
        "goes on where a run from 0 would be": batches[: LONG - start] == whole[start:],
        "the same again": list(islice(iter(made), LONG)) == batches,
        "another seed, another first epoch": taken(n, batch_size, seed + 1)[:per_epoch] != whole[:per_epoch],
    }


@resumable_batches.cases
def _(rng):
    yield case("from the beginning", n=6, batch_size=2, seed=0, start=0)
    yield case("a last batch that is shorter", n=7, batch_size=3, seed=1, start=0)
    yield case("within the first epoch", n=8, batch_size=2, seed=2, start=3)
    yield case("at the end of an epoch", n=8, batch_size=2, seed=3, start=4)
    yield case("within the third epoch", n=7, batch_size=2, seed=4, start=10)
    yield case("one batch is the epoch", n=5, batch_size=5, seed=5, start=2)


@resumable_batches.alternative
class seeds_each_epoch(Sampler):
    def __init__(self, n, batch_size, seed, start=0):
        self.n, self.batch_size, self.seed, self.start = n, batch_size, seed, start

    def __iter__(self):
        step = self.start
        while True:
            epoch, position = divmod(step, math.ceil(self.n / self.batch_size))
            order = list(range(self.n))
            random.Random(f"{self.seed}, {epoch}").shuffle(order)
            yield order[position * self.batch_size : (position + 1) * self.batch_size]
            step += 1


@resumable_batches.alternative
class draws_with_numpy:
    def __init__(self, n, batch_size, seed, start=0):
        self.n, self.batch_size, self.seed, self.start = n, batch_size, seed, start

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        for number in itertools.count():
            if number % math.ceil(self.n / self.batch_size) == 0:
                rest = rng.permutation(self.n).tolist()
            batch, rest = rest[: self.batch_size], rest[self.batch_size :]
            if number >= self.start:
                yield batch


@resumable_batches.misconception(
    "Every epoch has the same order in yours. Seed the generator once, before the first epoch, or let the seed of an "
    "epoch depend on its number."
)
class repeats_one_order(reference.ResumableBatches):
    def from_the_beginning(self):
        while True:
            gen = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(self.n, generator=gen)
            yield from (batch.tolist() for batch in order.split(self.batch_size))


@resumable_batches.misconception(
    "You leave out `start` samples. It counts batches, which is what the training loop counts."
)
class skips_samples(reference.ResumableBatches):
    def from_the_beginning(self):
        gen = torch.Generator().manual_seed(self.seed)
        skipped = self.start
        while True:
            order = torch.randperm(self.n, generator=gen)[skipped % self.n if skipped else 0 :]
            skipped = 0
            yield from (batch.tolist() for batch in order.split(self.batch_size))

    def __iter__(self):
        return self.from_the_beginning()


@resumable_batches.misconception(
    "You begin a new shuffle at `start`. Then some samples come twice in that epoch and others not at all."
)
class shuffles_anew(reference.ResumableBatches):
    def __iter__(self):
        self.seed = self.seed + self.start
        return self.from_the_beginning()


@resumable_batches.misconception(
    "You resume at the beginning of the epoch: the batches that were done in it come a second time."
)
class goes_back_to_the_epoch(reference.ResumableBatches):
    def __iter__(self):
        per_epoch = math.ceil(self.n / self.batch_size)
        return islice(self.from_the_beginning(), self.start // per_epoch * per_epoch, None)


@resumable_batches.misconception(
    "You drop the last batch where it is shorter. The statement asks for every index once in each epoch."
)
class drops_the_last(reference.ResumableBatches):
    def from_the_beginning(self):
        gen = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(self.n, generator=gen)
            yield from (
                batch.tolist() for batch in order.split(self.batch_size) if len(batch) == self.batch_size
            )


@resumable_batches.misconception(
    "You shuffle with the global generator. Anything else that draws from it changes your order, and your order "
    "changes what dropout drops."
)
class uses_the_global_generator(reference.ResumableBatches):
    def from_the_beginning(self):
        torch.manual_seed(self.seed)
        while True:
            order = torch.randperm(self.n)
            yield from (batch.tolist() for batch in order.split(self.batch_size))


@resumable_batches.misconception("Your batches end after one epoch. They are to go on, epoch after epoch.")
class ends_after_one_epoch(reference.ResumableBatches):
    def from_the_beginning(self):
        gen = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(self.n, generator=gen)
        yield from (batch.tolist() for batch in order.split(self.batch_size))


@resumable_batches.misconception(
    "Your batches are tensors. A DataLoader hands their elements to the dataset as indices, and the statement asks "
    "for lists of `int`: `tolist()`."
)
class yields_tensors(reference.ResumableBatches):
    def from_the_beginning(self):
        gen = torch.Generator().manual_seed(self.seed)
        while True:
            yield from map(list, torch.randperm(self.n, generator=gen).split(self.batch_size))


# ---- Trainer -----------------------------------------------------------------------------------------------

trainer = Exercise(
    reference.Trainer,
    title="The whole template, from memory",
    objective="training.resume",
    difficulty=3,
    minutes=45,
    points=5,
    observes=[observe.value(rtol=1e-4, atol=1e-6)],
    hints=(
        "Three pieces: one step, the loop around it, and a state that holds everything which remembers something. "
        "Your answers above are the parts. What must be true when `fit` is called a second time?",
        "`fit`: load if there is a file; train mode; ask `make_batches` for the batches from your own step number "
        "on; take as many as are missing; save when the number is divisible, and at the end. The step number counts "
        "over the whole run, and is saved with the five other states.",
        "`islice(make_batches(self.step_number), n_steps - self.step_number)` are the batches that are left. Save "
        "after `sched.step()`, never between two parts of a step, and restore random states last.",
    ),
    why="A run is what it remembers: weights, moments, the position of schedule and scaler, the random numbers, and "
    "how far it has come. All of it is in `state_dict`, and nothing else decides about the next step. So a new "
    "process that loads it cannot do anything but go on.",
)


class Interrupted(Exception):
    """The process was killed, as far as this exercise can do that."""


def parts_of_a_run(kind: str, seed: int) -> tuple:
    """Everything that a Trainer is made of, with initial weights that depend on `seed`."""
    gen = torch.Generator().manual_seed(seed)
    between = {"dropout": [nn.Dropout(0.5)], "batch norm": [nn.BatchNorm1d(3)]}.get(kind, [])
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(2, 3), Watch(), *between, nn.Linear(3, 1))
    model = filled(model.float(), gen).eval()
    opt = torch.optim.AdamW(model.parameters(), lr=0.05) if kind != "plain" else sgd(model, 0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=10, enabled=kind == "float16")
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(kind, torch.float32)
    return model, F.mse_loss, opt, sched, scaler, dtype


def batches_from(
    step: int, asked: list[int], overflow: int | None = None, breaks: int | None = None
) -> Iterator:
    asked.append(step)
    for number in itertools.count(step):
        if number == breaks:
            raise Interrupted
        x, y = batches_of(torch.Generator().manual_seed(number), 4)[0]
        yield (x * math.inf, y) if number == overflow else (x, y)


@trainer.scenario
def run_and_resume(answer, kind, n_steps, save_every, clip, breaks=None, overflow=None):
    def start(folder: str, seed: int, breaks=None):
        parts = parts_of_a_run(kind, seed)
        made = answer(*parts, clip)
        if not hasattr(made, "fit"):
            return parts, made
        run: dict[str, Any] = {}
        asked: list[int] = []
        make_batches = partial(batches_from, asked=asked, overflow=overflow, breaks=breaks)
        recording = nullcontext() if torch.is_grad_enabled() else torch.enable_grad()
        with suppress(Interrupted), recording:
            run["losses"] = made.fit(
                make_batches, n_steps, str(Path(folder, "run.pt")), save_every, progress=False
            )
        return parts, run | {"first step": asked[:1]}

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        whole, facts = start(one, seed=0)
        if not isinstance(facts, dict):
            return facts
        facts |= {
            "passes": " ".join(dict.fromkeys(events_of(whole[0]))),
            "left on the model": left_on(whole[0]),
        }
        facts["in the end"] = end_of(whole)
        if breaks is not None:
            facts["called again when all is done"] = start(one, seed=1)[1].get("losses")
            facts["interrupted"] = start(two, seed=0, breaks=breaks)[1]
            torch.rand(3)
            resumed, facts["resumed"] = start(two, seed=2)
            facts["resumed ends with the same bits"] = same_bits(end_of(whole), end_of(resumed))
    return facts


def end_of(parts: tuple) -> dict[str, Any]:
    """What a run leaves: weights and buffers, moments, learning rate, scale. Shape of a tree of tensors and numbers."""
    model, _, opt, sched, scaler, _ = parts
    moments = [dict(sorted(state.items())) for state in opt.state_dict()["state"].values()]
    state = copy.deepcopy({"model": dict(model.state_dict()), "moments": moments})
    return {**state, "lr": list(sched.get_last_lr()), "scale": scaler.get_scale(), "steps": sched.last_epoch}


def same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other


@trainer.cases
def _(rng):
    yield case("a single step", "plain", n_steps=1, save_every=2, clip=100.0)
    yield case("four steps without interruption", "plain", n_steps=4, save_every=2, clip=100.0)
    yield case("gradients to be clipped", "adamw", n_steps=3, save_every=5, clip=0.1)
    yield case("interrupted after a save", "adamw", n_steps=6, save_every=3, clip=1.0, breaks=3)
    yield case("interrupted between two saves", "dropout", n_steps=7, save_every=3, clip=1.0, breaks=5)
    yield case("interrupted before the first save", "batch norm", n_steps=4, save_every=3, clip=1.0, breaks=1)
    yield case("bfloat16", "bfloat16", n_steps=4, save_every=2, clip=1.0, breaks=3)
    yield case(
        "float16, a step overflows", "float16", n_steps=6, save_every=2, clip=0.5, breaks=5, overflow=1
    )


@trainer.alternative
class one_long_fit:
    def __init__(self, model, loss_fn, opt, sched, scaler, dtype=torch.float32, clip=1.0):
        self.parts = {"m": model, "o": opt, "s": sched, "g": scaler}
        self.model, self.loss_fn, self.dtype, self.clip = model, loss_fn, dtype, clip

    def fit(self, make_batches, n_steps, path, save_every, progress=True):
        done, losses = 0, []
        if Path(path).exists():
            saved = torch.load(path, weights_only=False)
            for name, part in self.parts.items():
                part.load_state_dict(saved[name])
            done = saved["done"]
        model, opt, sched, scaler = self.parts.values()
        model.train()
        batches = iter(make_batches(done))
        if done:
            torch.set_rng_state(saved["rng"])
        while done < n_steps:
            x, y = next(batches)
            with torch.autocast(x.device.type, self.dtype, enabled=self.dtype is not torch.float32):
                loss = self.loss_fn(model(x), y)
            opt.zero_grad(set_to_none=False)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            scaler.step(opt)
            scaler.update()
            sched.step()
            done += 1
            losses.append(float(loss))
            if done % save_every == 0 or done == n_steps:
                states = {name: part.state_dict() for name, part in self.parts.items()}
                torch.save({**states, "done": done, "rng": torch.get_rng_state()}, path)
        return losses


@trainer.alternative
class counts_with_the_schedule:
    def __init__(self, model, loss_fn, opt, sched, scaler, dtype=torch.float32, clip=1.0):
        self.model, self.loss_fn, self.opt, self.sched = model, loss_fn, opt, sched
        self.scaler, self.dtype, self.clip = scaler, dtype, clip

    def fit(self, make_batches, n_steps, path, save_every, progress=True):
        self.resume(path)
        losses = []
        for x, y in make_batches(self.sched.last_epoch):
            if self.sched.last_epoch >= n_steps:
                break
            losses.append(self.one(x, y))
            if self.sched.last_epoch % save_every == 0 or self.sched.last_epoch == n_steps:
                keep = [self.model, self.opt, self.sched, self.scaler]
                torch.save([torch.get_rng_state(), *(part.state_dict() for part in keep)], path)
        return losses

    def resume(self, path):
        if os.path.isfile(path):
            rng, *states = torch.load(path, weights_only=True)
            for part, state in zip([self.model, self.opt, self.sched, self.scaler], states):
                part.load_state_dict(state)
            torch.set_rng_state(rng)

    def one(self, x, y):
        self.model.train()
        if self.dtype == torch.float32:
            loss = self.loss_fn(self.model(x), y)
        else:
            with torch.autocast("cpu", dtype=self.dtype):
                loss = self.loss_fn(self.model(x), y)
        self.scaler.scale(loss).backward()
        limit = self.clip * self.scaler.get_scale()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()
        self.sched.step()
        return loss.item()


def without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: part for name, part in state.items() if name != key}


@trainer.misconception(
    "Your trainer does not look for an older checkpoint, so every run starts from the beginning."
)
class never_resumes:
    def __init__(self, model, loss_fn, opt, sched, scaler, dtype=torch.float32, clip=1.0):
        self.model, self.loss_fn, self.opt, self.sched = model, loss_fn, opt, sched
        self.scaler, self.dtype, self.clip = scaler, dtype, clip

    def fit(self, make_batches, n_steps, path, save_every, progress=True):
        self.model.train()
        losses = []
        for x, y in islice(make_batches(0), n_steps):
            self.opt.zero_grad()
            with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
                loss = self.loss_fn(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.scaler.step(self.opt)
            self.scaler.update()
            self.sched.step()
            losses.append(loss.item())
            if len(losses) % save_every == 0 or len(losses) == n_steps:
                torch.save(self.model.state_dict(), path)
        return losses


@trainer.misconception("Your checkpoint does not hold the optimizer, so a resumed run has lost its moments.")
class resumes_without_the_optimizer(reference.Trainer):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"opt": self.opt.state_dict()})
        for group in self.opt.param_groups:
            group["lr"] = self.sched.get_last_lr()[0]


@trainer.misconception(
    "Your checkpoint does not hold the scheduler, so the learning rate starts its curve again."
)
class resumes_without_the_scheduler(reference.Trainer):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"sched": self.sched.state_dict()})


@trainer.misconception(
    "Your checkpoint does not hold the scaler, so a resumed run begins with the initial scale again."
)
class resumes_without_the_scaler(reference.Trainer):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"scaler": self.scaler.state_dict()})


@trainer.misconception(
    "The random numbers are not restored. The resumed run drops other neurons than the one that was never interrupted."
)
class resumes_without_random_states(reference.Trainer):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"rng": reference.rng_state()})


@trainer.misconception(
    "After a resume your batches begin at step 0 again. Ask `make_batches` for those from your step number on."
)
class begins_the_data_again(reference.Trainer):
    def fit(self, make_batches, n_steps, path, save_every, progress=True):
        return super().fit(lambda step: make_batches(0), n_steps, path, save_every, progress)


@trainer.misconception(
    "After a resume you make `n_steps` more steps. They are counted from the beginning of the run."
)
class counts_from_the_resume(reference.Trainer):
    def fit(self, make_batches, n_steps, path, save_every, progress=True):
        if os.path.exists(path):
            n_steps += torch.load(path, weights_only=True)["step"]
        return super().fit(make_batches, n_steps, path, save_every, progress)


@trainer.misconception(
    "You save before the scheduler steps. A resumed run then repeats a learning rate: save when a step is complete."
)
class saves_within_the_step(reference.Trainer):
    def state_dict(self):
        behind = self.sched.state_dict()
        behind = behind | {"last_epoch": behind["last_epoch"] - 1, "_step_count": behind["_step_count"] - 1}
        return super().state_dict() | {"sched": behind}


@trainer.misconception(
    "Nothing is saved after the last step, unless its number happens to be divisible. The end of a run is what one "
    "wants to keep."
)
class does_not_save_the_end(reference.Trainer):
    def fit(self, make_batches, n_steps, path, save_every, progress=True):
        self.n_steps, self.save_every = n_steps, save_every
        return super().fit(make_batches, n_steps, path, save_every, progress)

    def save(self, path):
        if self.step_number % self.save_every == 0:
            super().save(path)


@trainer.misconception("The model is not put into train mode, so dropout and batch norm do not train.")
class leaves_the_mode_alone(reference.Trainer):
    def step(self, x, y):
        self.model.eval()
        return super().step(x, y)


@trainer.misconception(
    "You clip the scaled gradients: in float16 nearly every step is clipped to a fraction of `clip`. Unscale first."
)
class clips_what_is_scaled(reference.Trainer):
    def step(self, x, y):
        self.opt.zero_grad()
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            loss = self.loss_fn(self.model(x), y)
        self.scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.sched.step()
        self.step_number += 1
        return loss.item()


@trainer.misconception("The gradients are never cleared, so each step uses those of all steps before.")
class lets_gradients_add_up(reference.Trainer):
    def step(self, x, y):
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            loss = self.loss_fn(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.sched.step()
        self.step_number += 1
        return loss.item()


@trainer.misconception("The gradients are not clipped when the step uses them.")
class steps_without_clipping(reference.Trainer):
    def __init__(self, model, loss_fn, opt, sched, scaler, dtype=torch.float32, clip=1.0):
        super().__init__(model, loss_fn, opt, sched, scaler, dtype, math.inf)


@trainer.misconception("The forward pass does not run under autocast, whatever `dtype` says.")
class computes_in_float32(reference.Trainer):
    def __init__(self, model, loss_fn, opt, sched, scaler, dtype=torch.float32, clip=1.0):
        super().__init__(model, loss_fn, opt, sched, scaler, torch.float32, clip)


@trainer.misconception("The schedule never moves: `sched.step()` is missing.")
class never_steps_the_schedule(reference.Trainer):
    def step(self, x, y):
        before = self.sched.state_dict(), [group["lr"] for group in self.opt.param_groups]
        loss = super().step(x, y)
        self.sched.load_state_dict(before[0])
        for group, lr in zip(self.opt.param_groups, before[1]):
            group["lr"] = lr
        return loss


# ---- predictions -------------------------------------------------------------------------------------------

zero_grad_none = Question(
    "zero_grad_none",
    objective="training.loop",
    text="""Where is `w` after the second step?

```python
w = nn.Parameter(torch.tensor(1.0))
opt = torch.optim.SGD([w], lr=0.1, momentum=0.9)
w.grad = torch.tensor(1.0)
opt.step()          # w goes from 1.0 to 0.9
opt.zero_grad()
opt.step()
```""",
    choices={"a": "`0.9`", "b": "`0.81`", "c": "the second step raises an error"},
    answer="a",
    replies={
        "a": "Right. `zero_grad` sets gradients to None, and an optimizer leaves out what has none, its momentum "
        "included.",
        "b": "That is what happens with a gradient of *zero*: the momentum of the first step carries on. But "
        "`zero_grad` has set the gradient to None, and such a parameter is left out.",
        "c": "A parameter without a gradient is no error: a layer that was not used in this step has none either. "
        "The optimizer leaves it out.",
    },
)

eval_no_grad = Question(
    "eval_no_grad",
    objective="training.evaluation",
    text="""A batch norm sees a batch whose mean is far from 0. What are its running means afterwards?

```python
norm = nn.BatchNorm1d(2)
with torch.no_grad():
    norm(torch.full((4, 2), 10.0))
print(norm.running_mean)
```""",
    choices={
        "a": "`tensor([0., 0.])`: nothing is learned under `no_grad`",
        "b": "`tensor([1., 1.])`: they moved",
        "c": "`tensor([10., 10.])`: they are those of the batch",
    },
    answer="b",
    replies={
        "a": "`no_grad` says that no graph is recorded. The running means are no parameters and need no gradient: "
        "the layer writes them itself, because it is in train mode.",
        "b": "Right. They moved by a tenth of the way, the momentum of the layer. Recording and mode are two "
        "different switches.",
        "c": "The layer normalized with the mean of the batch, but its running mean goes only a tenth of the way "
        "at a time.",
    },
)

clip_nan = Question(
    "clip_nan",
    objective="training.stability",
    text="""One of two gradients is NaN. What do they hold after clipping?

```python
w.grad = torch.tensor([float("nan"), 2.0])
nn.utils.clip_grad_norm_([w], max_norm=1.0)
print(w.grad)
```""",
    choices={"a": "`tensor([nan, 1.])`", "b": "`tensor([nan, nan])`", "c": "`tensor([0., 1.])`"},
    answer="b",
    replies={
        "a": "Then each number would be clipped alone. There is one norm for all of them, and this norm is NaN.",
        "b": "Right. The norm is NaN, so the one factor is NaN, and it spoils the gradient that was fine.",
        "c": "Nothing in clipping looks for NaN, unless you pass `error_if_nonfinite=True`.",
    },
)

cosine_end = Question(
    "cosine_end",
    objective="training.optimizer",
    text="""A run turned out to be twice as long as planned. Which learning rate does it end with?

```python
opt = torch.optim.SGD([w], lr=1.0)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
for _ in range(20):
    opt.step()
    sched.step()
```""",
    choices={
        "a": "0: it stays where the cosine ended",
        "b": "1: it went all the way up again",
        "c": "an error after step 10",
    },
    answer="b",
    replies={
        "a": "It reaches 0 at step 10, and a cosine does not end there. Nothing holds it.",
        "b": "Right. `T_max` is half a period and no end. After it the rate rises, and an almost finished model is "
        "shaken up again.",
        "c": "`OneCycleLR` does raise an error after its last step; this schedule goes on.",
    },
)

accumulate_adam = Question(
    "accumulate_adam",
    objective="training.accumulation",
    text="""Someone adds up four micro-batch losses and forgets to divide, so the gradient is four times too large.
How large is the first step of AdamW, compared with the right one?""",
    choices={"a": "four times as large", "b": "twice as large", "c": "as large as the right one"},
    answer="c",
    replies={
        "a": "That is true of SGD. Adam divides the gradient by its own running size.",
        "b": "Adam divides by the root of the mean *square* of the gradient, which is four times as large as well, "
        "not twice.",
        "c": "Right. Adam divides the gradient by its own size, and the factor cancels. So the mistake hides until "
        "somebody changes the optimizer, or clips.",
    },
)

underflow = Question(
    "underflow",
    objective="training.precision",
    text="A gradient of 1e-8 is converted to 16 bits. In which format does it become 0?",
    choices={"a": "in float16 only", "b": "in bfloat16 only", "c": "in both: 16 bits are too few"},
    answer="a",
    replies={
        "a": "Right. bfloat16 spends its bits on the exponent, and reaches as far down as float32. float16 ends "
        "at 6e-8.",
        "b": "bfloat16 has as many bits for the exponent as float32, 8 of them. It is float16 that has only 5.",
        "c": "What counts is how many of the bits are exponent. bfloat16 has 8, as float32 has; float16 has 5.",
    },
)

bf16_add = Question(
    "bf16_add",
    objective="training.precision",
    text="""A weight of 1 gets an update of 0.001, a thousand times, all of it in bfloat16. Where is it?

```python
w = torch.tensor(1.0, dtype=torch.bfloat16)
for _ in range(1000):
    w += 0.001
```""",
    choices={"a": "at about 2", "b": "at 1", "c": "at infinity"},
    answer="b",
    replies={
        "a": "So it would be in float32. In bfloat16 the next number after 1 is 1.0078, and 1.001 is rounded back "
        "to 1, a thousand times.",
        "b": "Right. The next number after 1 is 1.0078, so each single update is rounded away. This is why the "
        "weights stay in float32.",
        "c": "bfloat16 reaches as far up as float32. What it lacks is not range but digits.",
    },
)

autocast_dtypes = Question(
    "autocast_dtypes",
    objective="training.precision",
    text="""Under autocast to bfloat16 a linear layer runs forward and backward. Which dtypes are there?

```python
with torch.autocast("cpu", torch.bfloat16):
    out = layer(x)
out.sum().backward()
print(out.dtype, layer.weight.dtype, layer.weight.grad.dtype)
```""",
    choices={
        "a": "bfloat16, bfloat16, bfloat16",
        "b": "bfloat16, float32, float32",
        "c": "bfloat16, float32, bfloat16",
    },
    answer="b",
    replies={
        "a": "The layer is not converted. Autocast makes a bfloat16 copy of the weight for this product and leaves "
        "the weight itself alone.",
        "b": "Right. The product ran on bfloat16 copies. The weight stays float32, and a gradient always has the "
        "dtype of its parameter.",
        "c": "A gradient has the dtype of its parameter: on its way back through the conversion it becomes float32.",
    },
)

overflow_step = Question(
    "overflow_step",
    objective="training.precision",
    text="""The loss was scaled, and one gradient came out infinite. What do the scaler's `step` and
`update` do?""",
    choices={
        "a": "they raise an error",
        "b": "they replace the infinity by 0 and step",
        "c": "they make no step and halve the scale",
    },
    answer="c",
    replies={
        "a": "With a scale that is raised again and again until it is too large, overflow is expected, and no error.",
        "b": "What is left of such a gradient points anywhere. The whole step is left out.",
        "c": "Right. The scale was too large: leave this batch out and try a smaller one. A loss of one step costs "
        "nothing.",
    },
)

forgotten_scheduler = Question(
    "forgotten_scheduler",
    objective="training.checkpoints",
    text="""A run of 10 epochs uses `CosineAnnealingLR(opt, T_max=10)` from a rate of 1. Its checkpoint after 5 epochs
holds the model and the optimizer, and no scheduler. It resumes with a *new* scheduler. An uninterrupted run has the
rates 0.50, 0.35, 0.21, 0.10, 0.02 from here on. And this one?""",
    choices={
        "a": "the same: the optimizer remembers its learning rate",
        "b": "1.00, 0.98, 0.90, 0.79, 0.65: the whole curve from the beginning",
        "c": "0.50, 0.49, 0.45, 0.40, 0.33: the beginning of the curve, at half its height",
    },
    answer="c",
    replies={
        "a": "The optimizer brings the rate 0.5 along, that much is true. But where on the curve that is, only the "
        "scheduler knows.",
        "b": "It would be so if the optimizer had been forgotten too. It is loaded, and brings the rate 0.5 along.",
        "c": "Right. The optimizer brings 0.5 along, and the new scheduler, which counts from 0, begins its curve "
        "from there. Nothing raises, and no number looks odd.",
    },
)

loader_draws = Question(
    "loader_draws",
    objective="training.resume",
    text="""`loader = DataLoader(dataset, batch_size=4)` does not shuffle. Does iterating over it change PyTorch's
global random state?""",
    choices={
        "a": "no: nothing random happens",
        "b": "yes: each start of an iteration draws a number",
        "c": "only with `num_workers > 0`",
    },
    answer="b",
    replies={
        "a": "Nothing random happens to the *samples*. But the iterator draws a seed for workers, whether or not "
        "there are any.",
        "b": "Right. It draws a base seed for workers, whether or not there are any, from the loader's `generator` "
        "or else from the global one.",
        "c": "The seed is meant for workers, but it is drawn in any case.",
    },
)
