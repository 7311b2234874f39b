"""The answers of notebook 07: the pitfalls clinic.

Names of sizes: batch examples, seq steps in each, dim numbers per step, n_heads attention heads.
A batch is a pair `(x, y)` of inputs and class numbers; the loss is `F.cross_entropy`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

# ---- shapes and devices ------------------------------------------------------------------------------------


def regression_loss(pred: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared error between `pred` and `y`, as a tensor without dimensions.

    Repair `sick_regression_loss`. `pred` has the shape (batch, 1), as it comes from a linear layer.
    `y` has the shape (batch,) or (batch, 1), and `batch` may be 1.
    Prediction `i` belongs to target `i` alone. Gradients flow back to `pred`.
    """
    return F.mse_loss(pred.reshape(-1), y.reshape(-1))


def loss_on_device(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of `model` on inputs `x` and class numbers `y`, wherever these lie.

    Repair `sick_loss`. All parameters of `model` are on one device, and there is at least one.
    `x` and `y` may each be on that device or on another one; the loss is on the model's.
    The model stays where it is. Gradients flow back to it.
    """
    device = next(model.parameters()).device
    return F.cross_entropy(model(x.to(device)), y.to(device))


def to_model_device(model: nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors on the device of `model`, as a tuple, in their order.

    Repair `sick_to_device`. All parameters of `model` are on one device.
    A module without parameters and buffers, such as `nn.ReLU()`, leaves the tensors where they are.
    Each tensor keeps its dtype. One tensor gives a tuple of one. The model stays where it is.
    """
    parameter = next(model.parameters(), None)
    return tensors if parameter is None else tuple(t.to(parameter.device) for t in tensors)


def add_positions(x: Tensor, table: Tensor) -> Tensor:
    """Add to each step the vector of its position: (batch, seq, dim) + (max_len, dim) -> (batch, seq, dim).

    Repair `sick_add_positions`. Step `t` of every sequence gets row `t` of `table`, counted from 0.
    `seq` is at most `max_len`. `x` is not changed. Gradients flow back to `x` and to `table`.
    """
    return x + table[: x.size(1)]


def attend_to_real(q: Tensor, k: Tensor, v: Tensor, is_padding: Tensor) -> Tensor:
    """Return the attention of every step to the steps that are not padding: (batch, n_heads, seq, head_dim).

    Repair `sick_attend`. `q`, `k` and `v` have that shape, too.
    `is_padding` has the shape (batch, seq) and is True where a step is padding. Each sequence has a real step.
    No step, padding or not, gives any weight to a padding step; the weights on the real ones sum to 1.
    Scores are scaled by 1 / sqrt(head_dim). There is no causal mask.
    """
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~is_padding[:, None, None, :])


# ---- gradients ---------------------------------------------------------------------------------------------


def train(model: nn.Module, opt: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Take one optimizer step on each batch, in order.

    Repair `sick_train`: each step follows the gradient of its own batch.
    Something else may have left gradients behind before the call; they don't count.
    The loss of a batch is `F.cross_entropy(model(inputs), labels)`. The settings of `opt` stay as they are.
    What is in `.grad` after the call, and what is returned, is up to you.
    """
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()


def make_optimizer(body: nn.Module, head1: nn.Module, head2: nn.Module, lr: float) -> Optimizer:
    """Return one optimizer that owns every parameter of the three modules exactly once.

    Repair `sick_make_optimizers`. The body learns with the rate `lr`, both heads with `10 * lr`.
    No parameter belongs to two of the modules. The kind of optimizer is up to you.
    """
    heads = [*head1.parameters(), *head2.parameters()]
    return torch.optim.AdamW([{"params": body.parameters()}, {"params": heads, "lr": 10 * lr}], lr=lr)


def shift_(w: Tensor, d: Tensor) -> Tensor:
    """Subtract `d` from `w` in place, and return `w` itself.

    Repair `sick_shift_`. `w` is a leaf, which may require gradients and still does afterwards.
    The subtraction is not recorded. `d` broadcasts to the shape of `w`.
    A backward pass through a graph that was built before the call, and that needs the old `w`, still raises
    RuntimeError instead of using the new numbers.
    """
    with torch.no_grad():
        w -= d
    return w


def finetune(model: nn.Module, opt: Optimizer) -> Optimizer:
    """Return an optimizer that trains the whole model, after `model.head` was replaced by a new layer.

    Repair `sick_finetune`. `opt` (SGD with one group of parameters) was built before, and has made steps.
    The result owns every parameter of `model` exactly once; it may be `opt` itself.
    The body keeps its momentum, and all parameters have the settings of `opt`.
    Whether the old head stays in the optimizer is up to you.
    """
    opt.add_param_group({"params": model.head.parameters()})
    return opt


def total_loss(main: Tensor, aux: Sequence[Tensor], weight: float) -> Tensor:
    """Return `main` plus `weight` times the sum of the auxiliary losses, as a tensor without dimensions.

    Repair `sick_total_loss`. `main` and the elements of `aux` are tensors without dimensions; `aux` may be empty.
    Gradients flow back through `main` and through every auxiliary loss. `main` is not changed.
    """
    return main + weight * sum(aux)


def masked_tanh(x: Tensor, blocked: Tensor) -> Tensor:
    """Return the tanh of every element of `x`, and 0 where `blocked` is True.

    Repair `sick_masked_tanh`. `blocked` is a bool tensor of the shape of `x`. `x` holds finite numbers, and is
    not changed. Gradients flow back to `x`: 0 where blocked, those of tanh elsewhere.
    """
    return torch.tanh(x).masked_fill(blocked, 0)


# ---- loop and mode -----------------------------------------------------------------------------------------


def predict_batch(model: nn.Module, x: Tensor) -> Tensor:
    """Return the output of `model` for `x`, as in evaluation.

    Repair `sick_predict`. Dropout is off, normalization uses its running statistics and leaves them alone.
    The result requires no gradients. Dropout keeps its rate for later.
    Afterwards every submodule is in the mode in which it was before: one may be in eval mode on purpose.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        out = model(x)
    for module, mode in modes:
        module.training = mode
    return out


class Net(nn.Module):
    """A linear layer with dropout on its input: (batch, 8) -> (batch, 3).

    Repair `SickNet`. The layer is `self.linear = nn.Linear(8, 3)`; nothing else has parameters.
    In training mode half of the inputs are dropped, the others doubled. `net.eval()` switches this off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(F.dropout(x, 0.5, training=self.training))


def accumulate(model: nn.Module, microbatches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Leave in `.grad` the gradient of the mean loss over all examples of all micro-batches.

    Repair `sick_accumulate`. Micro-batches may differ in size; gradients from before don't count.
    `nn.BatchNorm1d` layers use their running statistics and leave them alone, and everything is in the mode in
    which it was before. All else works as in training: dropout stays on.
    Run the model once per micro-batch, in order. What is returned is up to you.
    """
    total = sum(len(y) for _, y in microbatches)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d) and m.training]
    model.zero_grad()
    for norm in norms:
        norm.eval()
    for x, y in microbatches:
        (F.cross_entropy(model(x), y, reduction="sum") / total).backward()
    for norm in norms:
        norm.train()


def loss_from_logits(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of `logits` (batch, classes) and class numbers `y` (batch,).

    Repair `sick_loss_from_logits`. It approaches 0 for confident, right logits; it is finite for every finite
    input, also for logits of 200 and -200; and its gradient is that of the cross-entropy there, too.
    """
    return F.cross_entropy(logits, y)


def run_epochs(
    model: nn.Module,
    opt: Optimizer,
    sched: LRScheduler,
    batches: Sequence[tuple[Tensor, Tensor]],
    epochs: int,
) -> None:
    """Train for `epochs` epochs: in each, one optimizer step on every batch, in order.

    Repair `sick_run_epochs`. `sched` was built to count epochs: the learning rate is the same within an epoch,
    the first epoch uses the initial one, and at the end `sched` has counted `epochs` epochs.
    Every step follows the gradient of its own batch. What is returned is up to you.
    """
    for _ in range(epochs):
        for x, y in batches:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        sched.step()


def train_through_nan(model: nn.Module, opt: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> int:
    """Take one optimizer step on each batch whose gradient is finite; return the number of steps.

    Repair `sick_train_through_nan`. A batch whose gradient has an infinity or a NaN anywhere changes nothing:
    no weight, no momentum, no later step. Its loss may be finite all the same.
    Every parameter of `model` gets a gradient from every batch.
    """
    updates = 0
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if all(p.grad.isfinite().all() for p in model.parameters()):
            opt.step()
            updates += 1
    return updates


# ---- data and randomness -----------------------------------------------------------------------------------


def build(seed: int) -> tuple[nn.Module, DataLoader]:
    """Return `(model, loader)`, both decided by `seed` alone.

    Repair `sick_build`. `model` is an `nn.Linear(4, 2)`.
    `loader` yields the numbers 0 to 31 in batches of 8, shuffled anew in every epoch.
    The same seed gives the same weights and the same order of the first epoch, whatever else draws random
    numbers before, between or after; another seed gives others.
    The global random state is left as it was (`torch.random.fork_rng()` puts it back).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Linear(4, 2)
    order = torch.Generator().manual_seed(seed)
    return model, DataLoader(torch.arange(32), batch_size=8, shuffle=True, generator=order)


def scaled_batch(items: list[Tensor]) -> Tensor:
    """Collate uint8 tensors into one float32 batch between 0 and 1. At the top level, so workers can find it."""
    return torch.stack(items).float() / 255


def make_loader(ds: Dataset) -> DataLoader:
    """Return a loader of batches of 4, in order, collated by `scaled_batch` or in the same way.

    Repair `sick_make_loader`. `ds` yields uint8 tensors of shape (3,).
    There is at least one worker process, and no more of them than the machine has cores (`os.cpu_count()`).
    The workers stay alive between epochs.
    What is handed to them has a name at the top level of the notebook: no lambda, no function inside another.
    """
    n_workers = min(2, os.cpu_count() or 1)
    return DataLoader(
        ds, batch_size=4, num_workers=n_workers, persistent_workers=True, collate_fn=scaled_batch
    )


def standardize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return `(x - mean) / std`: (batch, dim) -> (batch, dim).

    Repair `sick_standardize`. `mean` and `std` have the shape (dim,), and no element of `std` is 0.
    They belong to the whole training set; `x` is one batch, which is used again in the next epoch.
    """
    return (x - mean) / std


def preview_noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return standard normal noise of this shape, decided by `seed` alone.

    Repair `sick_preview_noise`. The same seed gives the same noise on every call, another seed gives other noise.
    The global random state is neither used nor changed.
    """
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- memory and syncs --------------------------------------------------------------------------------------


def train_and_average(model: nn.Module, opt: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Take one step on each batch, in order, and return the mean of the batch losses as a Python float.

    Repair `sick_train_and_average`. The host reads a value from the device once in the whole call.
    No graph outlives its step. Every batch counts the same, whatever its size; there is at least one.
    """
    losses = []
    for x, y in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def make_batches(ds: Dataset, device: torch.device | str) -> tuple[DataLoader, list[list[Tensor]]]:
    """Return `(loader, batches)`: a loader of batches of 16, in order, and all its batches on `device`.

    Repair `sick_make_batches`. `ds` yields tuples of tensors, so that a batch is a list of tensors.
    The loader pins its batches, and no move makes the host wait.
    Go through the loader once, and move each tensor once.
    """
    loader = DataLoader(ds, batch_size=16, pin_memory=True)
    return loader, [[t.to(device, non_blocking=True) for t in batch] for batch in loader]


def running_mean_loss(losses: Iterable[Tensor]) -> Tensor | float:
    """Return the mean of the losses, as a float or as a tensor that is in no graph.

    Repair `sick_running_mean`. `losses` yields one tensor without dimensions per training step, at least one.
    It may be a generator that trains while you consume it: leave the grad mode on around it.
    No more than the graph of the latest loss is kept alive.
    """
    total, count = 0.0, 0
    for loss in losses:
        total = total + loss.detach()
        count += 1
    return total / count


def run_checkpointed(block: nn.Module, x: Tensor) -> Tensor:
    """Return `block(x)`, with the block's activations recomputed in the backward pass instead of kept.

    Repair `sick_run_checkpointed`. `x` may or may not require gradients, and stays as it is.
    Gradients reach the parameters of `block` either way, and `x` where it requires them.
    They are those of `block(x)`: dropout in the block draws the same mask again.
    """
    return checkpoint(block, x, use_reentrant=False)


def seconds_on_device(work: Callable[[], Any], device: Any) -> float:
    """Return the seconds from the start of `work()` until the device has done what it launched.

    Repair `sick_seconds`. The method `synchronize` of `device` waits until the device has nothing left to do,
    and its method `clock` returns the time on the host, in seconds.
    The device may still be busy with earlier work, which does not count. `work` runs once.
    """
    device.synchronize()
    start = device.clock()
    work()
    device.synchronize()
    return device.clock() - start


# ---- precision ---------------------------------------------------------------------------------------------


def amp_config(device: torch.device | str, bf16_ok: bool) -> tuple[str, torch.dtype, bool]:
    """Return `(device_type, dtype, use_scaler)` for `torch.autocast` and `torch.amp.GradScaler`.

    Repair `sick_amp_config`. `device` is the CPU or the GPU "cuda", as a string or a `torch.device`.
    On the CPU the dtype is bfloat16, whatever `bf16_ok` says. On the GPU it is bfloat16 where `bf16_ok` says that
    the card has it, else float16. A scaler is used for float16 only.
    """
    if torch.device(device).type == "cpu":
        return "cpu", torch.bfloat16, False
    return ("cuda", torch.bfloat16, False) if bf16_ok else ("cuda", torch.float16, True)


def mask_scores(scores: Tensor, blocked: Tensor) -> Tensor:
    """Return `scores` with a number so low where `blocked` is True that softmax gives exactly 0 there.

    Repair `sick_mask_scores`. It works for float32, float16 and bfloat16, and the dtype stays.
    `blocked` is a bool tensor that broadcasts to the shape of `scores`. Not all of a row is blocked.
    The scores are finite, above half of the lowest number of their dtype, and not changed.
    """
    return scores.masked_fill(blocked, float("-inf"))


# ---- saving ------------------------------------------------------------------------------------------------


class RunFile:
    """A file from which a training run goes on as if it had never stopped.

    Repair `SickRunFile`. `RunFile(path).save(model, opt, sched)` writes what the run needs.
    `RunFile(path).load(model, opt, sched)`, in a later process, puts it into freshly built objects of the
    same kinds. The steps after that are those of the run that was not interrupted, bit for bit.
    `path` is a string. The run draws no random numbers.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def save(self, model: nn.Module, opt: Optimizer, sched: LRScheduler) -> None:
        run = {"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}
        torch.save(run, self.path)

    def load(self, model: nn.Module, opt: Optimizer, sched: LRScheduler) -> None:
        run = torch.load(self.path, weights_only=True)
        model.load_state_dict(run["model"])
        opt.load_state_dict(run["opt"])
        sched.load_state_dict(run["sched"])


def load_embedding(model: nn.Module, weights: Tensor) -> None:
    """Put a copy of `weights` into `model.emb`, an `nn.Embedding` that shares its weight with `model.head`.

    Repair `sick_load_embedding`. `weights` has the shape (vocab, dim) of `model.emb.weight`, and is not changed.
    Afterwards the two layers still share one parameter, which requires gradients, has a storage of its own,
    and belongs to the optimizers that owned it before. What is returned is up to you.
    """
    with torch.no_grad():
        model.emb.weight.copy_(weights)
