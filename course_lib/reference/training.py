"""The answers of notebook 05: training. Together they are a training loop to take to work.

Names of sizes: batch samples, dim features per sample.
"""

from __future__ import annotations

import copy
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler
from tqdm.auto import tqdm


def train_one_epoch(
    model: nn.Module, loader: Iterable, loss_fn: Callable, opt: Optimizer, clip: float
) -> float:
    """Train `model` for one epoch and return its mean loss per sample, as a plain `float`.

    `loader` is any iterable of batches `(x, y)`; there is at least one, and the last may be smaller.
    `loss_fn(model(x), y)` is the mean over the samples of a batch: a tensor without dimensions.
    Each batch makes one update of `opt`, which holds all parameters of `model`.
    The update uses the gradient of this batch alone, whatever `.grad` held before,
    clipped to a global norm of at most `clip` (`math.inf` means: not clipped).
    The model trains in train mode and is left in it.
    The mean counts every sample once, with the loss that its batch had before the update.
    What is in `.grad` afterwards is up to you.
    """
    model.train()
    total, n_samples = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        total += loss.item() * len(x)
        n_samples += len(x)
    return total / n_samples


def evaluate(model: nn.Module, loader: Iterable, loss_fn: Callable) -> float:
    """Return the mean loss of `model` per sample, as a plain `float`, and leave no trace.

    `loader` is any iterable of batches `(x, y)`; there is at least one, and the last may be smaller.
    `loss_fn(model(x), y)` is the mean over the samples of a batch.
    The model works in eval mode, and no graph is recorded.
    Afterwards each submodule is in the mode in which it was, also if an exception comes out.
    Parameters, buffers and gradients are not changed.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            sums = [(loss_fn(model(x), y).item() * len(x), len(x)) for x, y in loader]
    finally:
        for module, mode in modes.items():
            module.training = mode
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)


def clip_by_global_norm(params: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients of `params` in place to a common L2 norm of at most `max_norm`.

    The common norm is that of all gradients laid end to end in one long vector.
    All gradients are multiplied by one factor, so that the direction of the step stays.
    If the norm is no larger than `max_norm`, no gradient is changed.
    Return the norm *before* clipping, as a tensor without dimensions.
    `params` may be a generator. A parameter whose gradient is None is left out; at least one has a gradient.
    Calling `torch.nn.utils.clip_grad_norm_` is not allowed here.
    """
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    if norm > max_norm:
        for grad in grads:
            grad.mul_(max_norm / norm)
    return norm


def finite_step(params: Iterable[nn.Parameter], opt: Optimizer, clip: float) -> bool:
    """Update the parameters if all their gradients are finite, and return whether that was so, as a `bool`.

    `backward` has run. If every number in every gradient is finite,
    clip the gradients to a global norm of at most `clip` and take a step of `opt`.
    If one is infinite or NaN, leave the parameters and the state of `opt` as they are.
    In both cases the gradients are cleared at the end: None or zeros, as you like.
    `params` is a list; some gradients may be None. No finite gradient is so large that its square overflows.
    """
    norm = nn.utils.clip_grad_norm_(params, clip)
    finite = math.isfinite(norm)
    if finite:
        opt.step()
    opt.zero_grad()
    return finite


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer, in which only matrices decay.

    Parameters of two or more dimensions get `weight_decay`.
    All others (biases, and the weights and biases of normalization layers) get a weight decay of 0,
    whatever the optimizer's default is.
    Each parameter that requires gradients is in one group, once, also if the model uses it in two places.
    Frozen parameters are in no group.
    The result is a list of dicts as `torch.optim.AdamW` takes it. The order of the groups is up to you.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def warmup_cosine(step: int, total: int, warmup: int, min_ratio: float) -> float:
    """Return the factor of the learning rate at `step`, which counts updates from 0.

    Warm-up: in the first `warmup` steps the factor is `(step + 1) / warmup`. So it is never 0, and ends at 1.
    Decay: from step `warmup` (factor 1) to step `total` (factor `min_ratio`) it follows half a cosine.
    From step `total` on it stays at `min_ratio`.
    `warmup` may be 0, which means no warm-up, and is smaller than `total`. `min_ratio` is in [0, 1].
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / (total - warmup), 1.0)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


def accumulated_epoch(
    model: nn.Module, loader: Iterable, loss_fn: Callable, opt: Optimizer, accum: int
) -> int:
    """Train for one epoch with one update of `opt` per window of `accum` micro-batches; return the updates made.

    `loader` is any iterable of micro-batches `(x, y)`. They may differ in size.
    If `accum` does not divide their number, the last window is shorter; it gets its update as well.
    The gradient of an update is that of the mean loss over *all samples* of its window.
    `loss_fn(model(x), y)` is the mean over the samples of one micro-batch.
    What `.grad` holds before the epoch does not count.
    Each micro-batch is run through the model once, and its backward pass comes before the next forward pass,
    so that only one graph is in memory. The model's mode is left alone.
    """
    batches, updates = iter(loader), 0
    while window := list(islice(batches, accum)):
        n_samples = sum(len(x) for x, _ in window)
        opt.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) * len(x) / n_samples
            loss.backward()
        opt.step()
        updates += 1
    return updates


def make_precision(device_type: str, dtype: torch.dtype) -> tuple[torch.autocast, torch.amp.GradScaler]:
    """Return what a training step in `dtype` needs on this kind of device: `(autocast, scaler)`.

    `device_type` is "cpu" or "cuda"; `dtype` is `torch.float32`, `torch.bfloat16` or `torch.float16`.
    `autocast` is a `torch.autocast` for the device. Inside `with autocast:` matrix products run in `dtype`;
    for float32 it does nothing.
    `scaler` is a `torch.amp.GradScaler` for the device. It is enabled for float16, and only for float16.
    """
    autocast = torch.autocast(device_type, dtype, enabled=dtype != torch.float32)
    scaler = torch.amp.GradScaler(device_type, enabled=dtype == torch.float16)
    return autocast, scaler


def amp_step(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss_fn: Callable,
    opt: Optimizer,
    scaler: torch.amp.GradScaler,
    clip: float,
) -> float:
    """Make one update in mixed precision and return the loss, not scaled, as a plain `float`.

    The forward pass runs under autocast to bfloat16, on the kind of device that `x` is on;
    the backward pass runs outside. The parameters stay float32.
    `scaler` may be enabled or not; the same code serves both. It multiplies the loss, and it decides about the step:
    if a gradient is not finite, the parameters and the state of `opt` stay as they are.
    It adjusts its scale once per call.
    The gradients, in their true size, are clipped to a global norm of at most `clip`.
    What `.grad` held before does not count, and what it holds afterwards is up to you.
    """
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()


class EarlyStopping:
    """Say when training no longer helps, and bring the best weights back.

    `EarlyStopping(patience, delta)` starts without a best loss: the first finite loss is an improvement.
    `step(loss, model)` takes the validation loss of an epoch, a `float`.
    It is an improvement if `loss < best - delta`; a NaN is none.
    The model of the last improvement is remembered with its parameters and buffers.
    `step` returns True if the last `patience` calls in a row were no improvement, otherwise False.
    `restore(model)` puts the remembered parameters and buffers into `model`, as often as it is called.
    """

    def __init__(self, patience: int, delta: float = 0.0):
        self.patience, self.delta = patience, delta
        self.best, self.bad = math.inf, 0
        self.state: dict[str, Tensor] = {}

    def step(self, loss: float, model: nn.Module) -> bool:
        if loss < self.best - self.delta:
            self.best, self.bad = loss, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience

    def restore(self, model: nn.Module) -> None:
        model.load_state_dict(self.state)


def save_checkpoint(
    path: str, model: nn.Module, opt: Optimizer, sched: LRScheduler, gen: torch.Generator, epoch: int
) -> None:
    """Write all that a run needs to go on after `epoch` (counted from 0) to the file `path`.

    The file holds a dict with the keys "model", "optimizer" and "scheduler" (their state dicts),
    "generator" (the state of `gen`, which shuffles the data), "torch_rng" (the state of PyTorch's global
    CPU generator) and "epoch" (the number `epoch`). More keys are welcome.
    `torch.load(path, weights_only=True)` reads it.
    If writing fails, the error comes out, and an older file at `path` is still there, unharmed.
    Nothing that is passed in is changed.
    """
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": opt.state_dict(),
        "scheduler": sched.state_dict(),
        "generator": gen.get_state(),
        "torch_rng": torch.get_rng_state(),
        "epoch": epoch,
    }
    torch.save(checkpoint, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def load_checkpoint(
    path: str, model: nn.Module, opt: Optimizer, sched: LRScheduler, gen: torch.Generator
) -> int:
    """Restore what `save_checkpoint` wrote to `path`, and return the number of the epoch to run next.

    The file holds a dict with the keys "model", "optimizer", "scheduler" (state dicts),
    "generator" (for `gen`), "torch_rng" (for PyTorch's global CPU generator)
    and "epoch" (the last epoch that was finished).
    All of them are restored. `opt` goes on updating the parameters of `model`.
    The mode of the model stays as it is.
    """
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    opt.load_state_dict(checkpoint["optimizer"])
    sched.load_state_dict(checkpoint["scheduler"])
    gen.set_state(checkpoint["generator"])
    torch.set_rng_state(checkpoint["torch_rng"])
    return checkpoint["epoch"] + 1


class ResumableBatches(Sampler):
    """The indices of shuffled batches, epoch after epoch without end, from any step on.

    `ResumableBatches(n, batch_size, seed, start=0)` is for a dataset of `n` samples.
    Iterating gives lists of `batch_size` indices, as plain `int`. The last batch of an epoch may be shorter.
    Each epoch has every index once, in an order of its own, which depends on `seed`.
    `start` is the number of batches to leave out: what comes is what a run from 0 gives after `start` batches.
    Iterating over the same object again begins at `start` again.
    PyTorch's global generator is not used.
    """

    def __init__(self, n: int, batch_size: int, seed: int, start: int = 0):
        self.n, self.batch_size, self.seed, self.start = n, batch_size, seed, start

    def __iter__(self) -> Iterator[list[int]]:
        return islice(self.from_the_beginning(), self.start, None)

    def from_the_beginning(self) -> Iterator[list[int]]:
        gen = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(self.n, generator=gen)
            yield from (batch.tolist() for batch in order.split(self.batch_size))


def rng_state() -> dict[str, Any]:
    """The states of all global random generators, in types that `torch.load(weights_only=True)` reads."""
    numpy_state = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
        "numpy": numpy_state,
        "python": random.getstate(),
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Bring all global random generators to what `rng_state()` returned."""
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


class Trainer:
    """A training loop that survives being killed: it goes on as if nothing had happened.

    `Trainer(model, loss_fn, opt, sched, scaler, dtype, clip)` trains in train mode, one step per batch:
    forward and loss under autocast to `dtype` (without autocast for float32); a gradient of this batch alone;
    clipped in its true size to a global norm of at most `clip`; a step of `opt` unless the gradient is not finite
    (`scaler` sees to that, if it is enabled); then a step of `sched`, in any case.
    `fit(make_batches, n_steps, path, save_every, progress=True)` goes on until `n_steps` steps are done,
    counted from the beginning of the run, and returns the losses of the steps that this call made, as floats.
    `make_batches(step)` gives an iterator over the batches `(x, y)` from that step on, without end,
    on the device of the model.
    After every `save_every` steps, and after the last one, a checkpoint goes to the file `path`.
    If `path` exists when `fit` is called, the run resumes from it. It then ends with bit for bit the same weights
    as a run that was never interrupted: with the same model, optimizer, scheduler, scaler and random numbers.
    With `progress=False` no progress bar is shown.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable,
        opt: Optimizer,
        sched: LRScheduler,
        scaler: torch.amp.GradScaler,
        dtype: torch.dtype = torch.float32,
        clip: float = 1.0,
    ):
        self.model, self.loss_fn, self.dtype, self.clip = model, loss_fn, dtype, clip
        self.opt, self.sched, self.scaler = opt, sched, scaler
        self.step_number = 0

    def step(self, x: Tensor, y: Tensor) -> float:
        self.opt.zero_grad()
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

    def fit(
        self, make_batches: Callable, n_steps: int, path: str, save_every: int, progress: bool = True
    ) -> list[float]:
        if os.path.exists(path):
            self.load_state_dict(torch.load(path, weights_only=True))
        self.model.train()
        losses: list[float] = []
        batches = islice(make_batches(self.step_number), n_steps - self.step_number)
        with tqdm(total=n_steps, initial=self.step_number, disable=not progress) as bar:
            for x, y in batches:
                losses.append(self.step(x, y))
                if self.step_number % save_every == 0 or self.step_number == n_steps:
                    self.save(path)
                bar.update()
                bar.set_postfix(loss=f"{losses[-1]:.3f}", lr=f"{self.sched.get_last_lr()[0]:.2e}")
        return losses

    def save(self, path: str) -> None:
        torch.save(self.state_dict(), f"{path}.tmp")
        os.replace(f"{path}.tmp", path)

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("model", "opt", "sched", "scaler")}
        return {**parts, "step": self.step_number, "rng": rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("model", "opt", "sched", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.step_number = state["step"]
        set_rng_state(state["rng"])
