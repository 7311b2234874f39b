# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Training: a loop to take to work
#
# > At three in the morning your training run is killed, at step 731.
# > **What must have been written down, so that it ends with the same bits as if nothing had happened?**
#
# To answer this you have to know everything in a training loop that *remembers* something.
# So you build the loop piece by piece, look at what each piece does to the next step, and check it.
# At the end you write the whole of it from memory, and kill it.
#
# **Time:** about 5 hours: two to read and predict, three for the exercises.
# It splits well after sections 3, 5 and 6.
#
# **You need:** notebooks 02 (gradients accumulate), 03 (modules, modes, `state_dict`) and 04 (datasets and loaders).
# No GPU is needed: the loop that you write here runs unchanged where there is one.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# | term | in code | meaning |
# |---|---|---|
# | step, update | `opt.step()` | one change of the parameters |
# | epoch | `for x, y in loader` | one walk over all samples |
# | gradient norm | `clip_grad_norm_(...)` | the length of all gradients laid end to end in one vector |
# | parameter group | `opt.param_groups` | parameters that share a learning rate and a weight decay |
# | schedule | `sched.step()` | what changes the learning rate from step to step |
# | micro-batch | | a part of a batch that fits into memory |
# | autocast | `torch.autocast(...)` | runs some operators in 16 bits; the weights stay as they are |
# | scaler | `torch.amp.GradScaler(...)` | multiplies the loss, so that small gradients survive in float16 |
# | checkpoint | `torch.save({...})` | a file from which a run can go on |

# %%
import builtins
import copy
import inspect
import io
import math
import os
import random
import symtable
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler, TensorDataset
from tqdm.auto import tqdm

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.checking import Spy
from course_lib.display import Curves, show_number_line

_ = torch.manual_seed(0)

# %% [markdown]
# ## 1 One step, in seven words
#
# Here is a skeleton as you find it in many places, with the remark that you can use it as it is.
# It is kept as text, because it would not run.

# %% objective="training.loop"
skeleton = """
model = MyModel().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
for epoch in range(epochs):
    for x, y in DataLoader(dataset, batch_size=64):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    if epoch % save_interval == 0:
        torch.save(model.state_dict(), f"{epoch}.pt")
"""

# %% [markdown]
# Python can tell which names this code reads and nobody defines.

# %% objective="training.loop"
symbols = symtable.symtable(skeleton, "skeleton", "exec").get_symbols()
read = {s.get_name() for s in symbols if s.is_referenced() and not s.is_assigned()}
sorted(name for name in read if not hasattr(builtins, name))

# %% [markdown]
# Seven names. Three are imports; the others are your model, your data and two numbers.
# That is honest enough for a sketch. What is *not* on the list matters more:
#
# - no `shuffle=True`: the samples come in the order of the file, every epoch (notebook 04);
# - no evaluation and no mode, no clipping, no schedule;
# - `set_to_none=True` asks for what is the default;
# - epochs 0, 4 and 8 of 10 are saved with an interval of 4, and the last one is not;
# - the file holds the model alone, so no run can go on from it.

# %% objective="training.checkpoints"
print("set_to_none:", inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default)
print("saved epochs:", [epoch for epoch in range(10) if epoch % 4 == 0])

# %% [markdown]
# Older copies of the skeleton also import their tools from a place that has moved:

# %%
def warnings_of(f: Callable) -> list[str]:
    """The first sentence of each warning that calling `f()` gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f()
    return [str(warning.message).split(". ")[0] for warning in caught]


# %% objective="training.precision"
warnings_of(torch.cuda.amp.GradScaler)[0]

# %% [markdown]
# So let us write our own.
# Our tiny batch is with us again, as floats: two sequences of three tokens, four numbers each.
# A model of one layer shall learn the mean of each token.

# %% objective="training.loop"
batch = torch.arange(24.0).reshape(2, 3, 4) / 24  # (batch, seq, dim)
target = batch.mean(dim=-1, keepdim=True)  # (batch, seq, 1)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)

# %% [markdown]
# One training step is seven words: **batch, zero, forward, loss, backward, clip, step**.
# Each line below is one of them, from the second on.

# %% objective="training.loop"
losses = []
for _ in range(5):
    opt.zero_grad()
    prediction = model(batch)
    loss = F.mse_loss(prediction, target)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    losses.append(round(loss.item(), 4))
losses

# %% [markdown]
# The loss falls. Now leave a word out.
# Without `zero`, `backward` adds to what the last step has left (notebook 02):

# %% objective="training.loop"
w = nn.Parameter(torch.zeros(1))
opt = torch.optim.SGD([w], lr=0.1)
seen = []
for _ in range(3):
    w.sum().backward()
    seen.append(w.grad.item())
    opt.step()
seen

# %% [markdown]
# The true gradient is 1 every time. The steps grow and grow.
#
# > **Classic mistake: clearing once per epoch.**
# > "`zero_grad` before training" is how it is often said. It belongs before every *update*.
#
# And what exactly does `zero_grad` leave behind?
#
# {{predict zero_grad_none}}

# %%
predict("zero_grad_none", "a")

# %% objective="training.loop"
def second_step(make: Callable, set_to_none: bool) -> float:
    """How far the second step goes, after a first one with a gradient of 1."""
    w = nn.Parameter(torch.tensor(1.0))
    opt = make([w])
    w.grad = torch.tensor(1.0)
    opt.step()
    after_one = w.item()
    opt.zero_grad(set_to_none=set_to_none)
    opt.step()
    return round(w.item() - after_one, 3)


# %% objective="training.loop"
momentum = lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)  # noqa: E731
adamw = lambda params: torch.optim.AdamW(params, lr=0.1)  # noqa: E731
for set_to_none in (True, False):
    print(f"set_to_none={set_to_none!s:5}  momentum {second_step(momentum, set_to_none):6}  AdamW {second_step(adamw, set_to_none):6}")

# %% [markdown]
# None says "this parameter had no part in the step", and it is left alone.
# Zero says "its gradient is zero", and the momentum moves it on, that of AdamW as well.
# So the two differ in memory, and also in what they mean.
#
# ### Which number should the loss be?
#
# A number that you can't judge is of no use.
# Before training, a classifier of 10 classes knows nothing, so its loss should be ln 10 = 2.303.
# When it is perfectly sure and right, it should be 0:

# %% objective="training.loop"
label = torch.tensor([0])
sure = torch.tensor([[100.0] + [-100.0] * 9])
print("knows nothing:", round(F.cross_entropy(torch.zeros(1, 10), label).item(), 3), "= ln 10")
print("is sure:      ", F.cross_entropy(sure, label).item())
print("softmax first:", round(F.cross_entropy(sure.softmax(-1), label).item(), 3))

# %% [markdown]
# > **Classic mistake: softmax before `cross_entropy`.**
# > `cross_entropy` takes logits. With a softmax in front of it the best possible loss is ln(1 + 9/e) = 1.461.
# > Accuracy still gets to 100 %, so only the loss tells.
#
# The same holds for two classes: hand over logits, and keep the sigmoid out of the model.

# %% objective="training.loop"
logit, wrong = torch.tensor([200.0]), torch.tensor([0.0])
print("from logits:       ", F.binary_cross_entropy_with_logits(logit, wrong).item())
print("after a sigmoid:   ", F.binary_cross_entropy(logit.sigmoid(), wrong).item())

# %% [markdown]
# The loss of a logit of 200 that is wrong is 200.
# The sigmoid has rounded it to exactly 1 before, and PyTorch cuts the loss off at 100.
#
# ### An epoch
#
# The loss of an epoch is a mean over *samples*. Here are two batches, of three samples and of one:

# %% objective="training.loop"
per_sample = [torch.tensor([1.0, 1.0, 1.0]), torch.tensor([9.0])]
print("mean of the batch means:", torch.stack([b.mean() for b in per_sample]).mean().item())
print("mean over the samples:  ", torch.cat(per_sample).mean().item())

# %% [markdown]
# With the first one, the reported loss depends on how the data happens to be cut.
#
# {{exercise train_one_epoch}}

# %% exercise="train_one_epoch"
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
    ### BEGIN SOLUTION
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
    ### END SOLUTION

# %%
check(train_one_epoch)

# %% [markdown]
# Let it work. The data is a sine with noise of standard deviation 0.1.
# (Random numbers come from generators of their own; section 8 is about why.)

# %% objective="training.loop"
def noisy_sine(n: int, seed: int, noise: float = 0.1) -> TensorDataset:
    """`n` samples of y = sin(x) + noise: x and y of shape (n, 1)."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=gen) * 6 - 3
    return TensorDataset(x, x.sin() + noise * torch.randn(n, 1, generator=gen))


train_set, val_set = noisy_sine(96, seed=0), noisy_sine(64, seed=1)

# %% objective="training.loop"
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 1))


model = network()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(train_set, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
train = passing(train_one_epoch)
losses = [train(model, loader, F.mse_loss, opt, clip=1.0) for _ in range(40)]
print([round(loss, 3) for loss in losses[::8]], "->", round(losses[-1], 3))

# %% [markdown]
# It gets to about 0.01 and stays there. Is something wrong?
# No: 0.01 is the variance of the noise, and no model can predict noise.
# Know the floor before you look for a bug.
#
# ## 2 Evaluate, and leave no trace
#
# How good is the model on samples that it has not seen?
# The same loss without the update, one would say. But a model has a mode, and a forward pass has side effects.
#
# {{predict eval_no_grad}}

# %%
predict("eval_no_grad", "b")

# %% objective="training.evaluation"
norm = nn.BatchNorm1d(2)
with torch.no_grad():
    norm(torch.full((4, 2), 10.0))
print(norm.running_mean, norm.num_batches_tracked)

# %% [markdown]
# Two switches, and they do not know of each other.
# `eval()` changes what layers compute, `no_grad()` whether a graph is recorded:

# %% objective="training.evaluation"
layer, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), torch.ones(1, 3)
for mode in ("train", "eval"):
    for recording in (True, False):
        with torch.set_grad_enabled(recording):
            out = getattr(layer, mode)()(x)
        print(f"{mode:5}  no_grad {not recording!s:5}  graph {out.requires_grad!s:5}  dropped {bool((out == 0).any())}")

# %% [markdown]
# Evaluation wants the last line: no graph, nothing dropped.
# Two cases escape the mode: a dropout called as a function, and a batch norm that keeps no statistics.

# %% objective="training.evaluation"
print("F.dropout drops, whatever the mode:", bool((F.dropout(torch.ones(100)) == 0).any()))
norm = nn.BatchNorm1d(1, track_running_stats=False).eval()
print("no statistics kept, so the batch's:", norm(torch.tensor([[10.0], [12.0]])).round().flatten().tolist())

# %% [markdown]
# So pass `training=self.training` to the first, and look twice at the second.
#
# And afterwards? The next epoch must find the model as it was.
# That is more than `model.train()`: somebody may have put a *part* of the model into eval mode on purpose,
# such as a pretrained batch norm that shall keep its statistics.

# %% objective="training.evaluation"
frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
frozen[1].eval()
before = [m.training for m in frozen.modules()]
was_training = frozen.training
_ = frozen.eval().train(was_training)
print(before, "->", [m.training for m in frozen.modules()])

# %% [markdown]
# > **Classic mistake: remembering one flag for the whole model.**
# > The frozen layer came back in train mode, and moves its statistics from now on.
#
# {{exercise evaluate}}

# %% exercise="evaluate"
def evaluate(model: nn.Module, loader: Iterable, loss_fn: Callable) -> float:
    """Return the mean loss of `model` per sample, as a plain `float`, and leave no trace.

    `loader` is any iterable of batches `(x, y)`; there is at least one, and the last may be smaller.
    `loss_fn(model(x), y)` is the mean over the samples of a batch.
    The model works in eval mode, and no graph is recorded.
    Afterwards each submodule is in the mode in which it was, also if an exception comes out.
    Parameters, buffers and gradients are not changed.
    """
    ### BEGIN SOLUTION
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            sums = [(loss_fn(model(x), y).item() * len(x), len(x)) for x, y in loader]
    finally:
        for module, mode in modes.items():
            module.training = mode
    return sum(loss for loss, _ in sums) / sum(n for _, n in sums)
    ### END SOLUTION

# %%
check(evaluate)

# %% objective="training.evaluation"
val_loader = DataLoader(val_set, batch_size=50, generator=torch.Generator())
print("train", round(losses[-1], 3), " unseen", round(passing(evaluate)(model, val_loader, F.mse_loss), 3))

# %% [markdown]
# The two are close: this model has learned the sine and not the noise.
# If the second were much higher, it would have learned its samples by heart.
#
# ## 3 When gradients misbehave
#
# One strange batch can undo an hour of training.
# **Clipping** limits the damage: if the global norm of the gradient is above a limit, the gradient is made shorter.

# %% objective="training.stability"
w = nn.Parameter(torch.zeros(2))
w.grad = torch.tensor([30.0, -40.0])
before = nn.utils.clip_grad_norm_([w], max_norm=1.0)
print("norm before:", before.item(), " gradient now:", w.grad.tolist())

# %% [markdown]
# What came back is the norm *before* clipping, the number to log.
# The direction stayed the same.
# Note where clipping has to stand; this one stands behind the step:

# %% objective="training.stability"
w = nn.Parameter(torch.zeros(1))
opt = torch.optim.SGD([w], lr=1.0)
(100 * w).sum().backward()
opt.step()
_ = nn.utils.clip_grad_norm_([w], 1.0)
print("grad", w.grad.item(), " w", w.item())

# %% [markdown]
# > **Classic mistake: clipping after the step.**
# > The gradient looks clipped, and the weight has gone 100 far. Look at what moved, not at `.grad`.
#
# "Clipping prevents exploding gradients" is true of large numbers. Is it true of all?
#
# {{predict clip_nan}}

# %%
predict("clip_nan", "b")

# %% objective="training.stability"
w = nn.Parameter(torch.zeros(2))
w.grad = torch.tensor([math.nan, 2.0])
print(nn.utils.clip_grad_norm_([w], 1.0), w.grad)

# %% [markdown]
# The norm is NaN, the factor is NaN, and now everything is.
# You can have an error instead:

# %% tags=["raises-exception"] objective="training.stability"
nn.utils.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)

# %% [markdown]
# A last trap is a generator that somebody has walked over already.
# Then there is nothing left to clip, and no more than a warning says so:

# %% objective="training.stability"
parameters = model.parameters()
n_parameters = sum(p.numel() for p in parameters)
print(n_parameters, *warnings_of(lambda: nn.utils.clip_grad_norm_(parameters, 1.0)))

# %% [markdown]
# Build it yourself once, and these questions answer themselves.
#
# {{exercise clip_by_global_norm}}

# %% exercise="clip_by_global_norm"
def clip_by_global_norm(params: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients of `params` in place to a common L2 norm of at most `max_norm`.

    The common norm is that of all gradients laid end to end in one long vector.
    All gradients are multiplied by one factor, so that the direction of the step stays.
    If the norm is no larger than `max_norm`, no gradient is changed.
    Return the norm *before* clipping, as a tensor without dimensions.
    `params` may be a generator. A parameter whose gradient is None is left out; at least one has a gradient.
    Calling `torch.nn.utils.clip_grad_norm_` is not allowed here.
    """
    ### BEGIN SOLUTION
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    if norm > max_norm:
        for grad in grads:
            grad.mul_(max_norm / norm)
    return norm
    ### END SOLUTION

# %%
check(clip_by_global_norm)

# %% [markdown]
# What should a loop do with a batch whose gradient is not finite?
# Leave it out. But watch what happens to the four batches after a bad one:

# %% objective="training.stability"
w = nn.Parameter(torch.ones(1))
opt = torch.optim.SGD([w], lr=0.1)
updates = 0
for slope in [1.0, math.nan, 1.0, 1.0, 1.0, 1.0]:
    (w * slope).sum().backward()
    if torch.isfinite(w.grad).all():
        opt.step()
        opt.zero_grad()
        updates += 1
updates

# %% [markdown]
# One update out of six batches. The step was left out, and its NaN was not:
# it lies in `.grad`, every later gradient is added to it, and NaN plus anything is NaN.
#
# {{exercise finite_step}}

# %% exercise="finite_step"
def finite_step(params: Iterable[nn.Parameter], opt: Optimizer, clip: float) -> bool:
    """Update the parameters if all their gradients are finite, and return whether that was so, as a `bool`.

    `backward` has run. If every number in every gradient is finite,
    clip the gradients to a global norm of at most `clip` and take a step of `opt`.
    If one is infinite or NaN, leave the parameters and the state of `opt` as they are.
    In both cases the gradients are cleared at the end: None or zeros, as you like.
    `params` is a list; some gradients may be None. No finite gradient is so large that its square overflows.
    """
    ### BEGIN SOLUTION
    norm = nn.utils.clip_grad_norm_(params, clip)
    finite = math.isfinite(norm)
    if finite:
        opt.step()
    opt.zero_grad()
    return finite
    ### END SOLUTION

# %%
check(finite_step)

# %% [markdown]
# ## 4 What the optimizer is told
#
# ### Which parameters decay
#
# Weight decay pulls parameters towards 0, whether they have a gradient or not.
# AdamW does it unless told otherwise:

# %% objective="training.optimizer"
for name in ("lr", "weight_decay"):
    print(name, inspect.signature(torch.optim.AdamW).parameters[name].default)

# %% [markdown]
# For a matrix that is a mild preference for small weights.
# A LayerNorm multiplies by a gain, which starts at 1. Let decay alone work on it, without any gradient:

# %% objective="training.optimizer"
norm = nn.LayerNorm(4)
opt = torch.optim.AdamW(norm.parameters(), lr=0.1, weight_decay=0.5)
for p in norm.parameters():
    p.grad = torch.zeros_like(p)
for _ in range(10):
    opt.step()
print("gain", norm.weight.tolist()[0])

# %% [markdown]
# In ten steps the layer has become four tenths quieter, and nothing in the data asked for it.
# The usual remedy: matrices decay, vectors do not.
# (Whether embedding tables should is a convention; here they do, being matrices.)
#
# {{exercise param_groups}}

# %% exercise="param_groups"
def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer, in which only matrices decay.

    Parameters of two or more dimensions get `weight_decay`.
    All others (biases, and the weights and biases of normalization layers) get a weight decay of 0,
    whatever the optimizer's default is.
    Each parameter that requires gradients is in one group, once, also if the model uses it in two places.
    Frozen parameters are in no group.
    The result is a list of dicts as `torch.optim.AdamW` takes it. The order of the groups is up to you.
    """
    ### BEGIN SOLUTION
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    ### END SOLUTION

# %%
check(param_groups)

# %% objective="training.optimizer"
opt = torch.optim.AdamW(passing(param_groups)(network(), weight_decay=0.1), lr=1e-3)
decays = sorted((group["weight_decay"], sorted(tuple(p.shape) for p in group["params"])) for group in opt.param_groups)
for decay, shapes in decays:
    print(decay, shapes)

# %% [markdown]
# ### The learning rate over time
#
# A scheduler changes the learning rate each time that *you* call its `step`.
# It knows nothing of epochs, so its numbers count calls.
# This one shall divide the rate by 10 after every 2 epochs of 10 batches:

# %% objective="training.optimizer"
def rate_after(n_calls: int) -> float:
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.1)
    for _ in range(n_calls):
        opt.step()
        sched.step()
    return opt.param_groups[0]["lr"]


print(f"called per epoch: {rate_after(2):.0e}   called per batch: {rate_after(20):.0e}")

# %% [markdown]
# > **Classic mistake: the wrong unit.**
# > Configured in epochs and called per batch, the rate is gone after one epoch. The loss flattens, and looks finished.
#
# The order matters too. Stepping the schedule first means that the first rate is never used:

# %% objective="training.optimizer"
w = nn.Parameter(torch.zeros(1))
w.grad = torch.ones(1)
opt = torch.optim.SGD([w], lr=1.0)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.1)
print(*warnings_of(sched.step), sep="\n")
opt.step()
print("first step:", w.item())

# %% [markdown]
# The first step used 0.1 instead of 1.
# (The same warning comes, without reason, if a scaler left out the very first step; section 6.)
#
# Now the schedule that most people use, the cosine.
#
# {{predict cosine_end}}

# %%
predict("cosine_end", "b")

# %% objective="training.optimizer"
opt = torch.optim.SGD([w], lr=1.0)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
rates = []
for _ in range(20):
    rates.append(round(sched.get_last_lr()[0], 3))
    opt.step()
    sched.step()
print(rates[:11], "...", round(sched.get_last_lr()[0], 3))

# %% [markdown]
# After 10 steps it is 0, after 20 it is 1 again.
# And look at the last rate that ten steps *use*: 0.024, not 0.
#
# Two things are missing: an end that holds, and a beginning that is gentle.
# In its first steps Adam knows the size of a gradient from one batch only, and a large rate then does harm.
# A **warm-up** lets the rate rise from nearly 0.
#
# {{exercise warmup_cosine}}

# %% exercise="warmup_cosine"
def warmup_cosine(step: int, total: int, warmup: int, min_ratio: float) -> float:
    """Return the factor of the learning rate at `step`, which counts updates from 0.

    Warm-up: in the first `warmup` steps the factor is `(step + 1) / warmup`. So it is never 0, and ends at 1.
    Decay: from step `warmup` (factor 1) to step `total` (factor `min_ratio`) it follows half a cosine.
    From step `total` on it stays at `min_ratio`.
    `warmup` may be 0, which means no warm-up, and is smaller than `total`. `min_ratio` is in [0, 1].
    """
    ### BEGIN SOLUTION
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / (total - warmup), 1.0)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
    ### END SOLUTION

# %%
check(warmup_cosine)

# %% [markdown]
# `LambdaLR` makes a scheduler of any such function.
# Let it draw its own picture:

# %% objective="training.optimizer"
factor = passing(warmup_cosine)
opt = torch.optim.SGD([w], lr=1e-3)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: factor(step, total=100, warmup=10, min_ratio=0.1))
with Curves("lr", every=130) as curves:
    for _ in range(130):
        curves.add(lr=sched.get_last_lr()[0])
        opt.step()
        sched.step()

# %% [markdown]
# A ramp, half a cosine, a floor.
#
# ## 5 A large batch from small ones
#
# The batch that you would like does not fit into memory.
# But gradients add up, so you can compute it in parts: several backward passes, one step.
# How large must each part be? Here are 8 equal parts of a loss, and one step of SGD:

# %% objective="training.accumulation"
def one_step(divide_by: float) -> float:
    w = nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([w], lr=0.1)
    for _ in range(8):
        ((w - 1).pow(2).mean() / divide_by).backward()
    opt.step()
    return round(w.item(), 4)


print("added up:", one_step(1), "  averaged:", one_step(8))

# %% [markdown]
# The right step is 0.2. Added up, it is eight times as large, and overshoots the target.
# With SGD one notices.
#
# {{predict accumulate_adam}}

# %%
predict("accumulate_adam", "c")

# %% objective="training.accumulation"
for times in (1.0, 4.0):
    w = nn.Parameter(torch.zeros(1))
    opt = torch.optim.AdamW([w], lr=0.1)
    (times * (w - 1).pow(2)).sum().backward()
    opt.step()
    print(f"loss times {times}: first step {w.item():.4f}")

# %% [markdown]
# The next trap: parts that are not equal.
# Ten, ten, ten and two samples, which is what the end of an epoch looks like.
# The gradient with `loss / 4` for each part, compared with that of the whole batch; and the same for equal parts:

# %% objective="training.accumulation"
gen = torch.Generator().manual_seed(0)
x, y = torch.randn(32, 4, generator=gen), torch.randn(32, 1, generator=gen)
layer = nn.Linear(4, 1)


def averaged_gradient(sizes: list[int]) -> Tensor:
    layer.zero_grad()
    for xs, ys in zip(x.split(sizes), y.split(sizes)):
        (F.mse_loss(layer(xs), ys) / len(sizes)).backward()
    return layer.weight.grad.clone()


# %% objective="training.accumulation"
whole = averaged_gradient([32])
for sizes in ([8, 8, 8, 8], [10, 10, 10, 2]):
    error = (averaged_gradient(sizes) - whole).norm() / whole.norm()
    print(f"{sizes!s:16} off by {100 * error.item():.1f} %")

# %% [markdown]
# `loss / accum` is right for equal parts only.
# In the second row the two samples of the last part count as much as ten others do.
#
# And the last trap: what is left over when the epoch ends within a window.

# %% objective="training.accumulation"
w = nn.Parameter(torch.zeros(1))
opt = torch.optim.SGD([w], lr=1.0)
used = []
for _ in range(2):
    for number in range(5):
        w.sum().backward()
        if (number + 1) % 4 == 0:
            used.append(w.grad.item())
            opt.step()
            opt.zero_grad()
print("gradients of the updates:", used)

# %% [markdown]
# The fifth batch of the first epoch got no update. It leaked into the second epoch, whose update has 5 parts.
#
# {{exercise accumulated_epoch}}

# %% exercise="accumulated_epoch"
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
    ### BEGIN SOLUTION
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
    ### END SOLUTION

# %%
check(accumulated_epoch)

# %% [markdown]
# One thing accumulation can't do: a batch norm still normalizes each micro-batch by itself.

# %% objective="training.accumulation"
for mode in ("train", "eval"):
    layer = getattr(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), mode)()
    grads = []
    for size in (32, 8):
        layer.zero_grad()
        for xs, ys in zip(x.split(size), y.split(size)):
            (F.mse_loss(layer(xs), ys) * size / 32).backward()
        grads.append(layer[0].weight.grad.clone())
    print(f"{mode:5} off by more than 1 %:", bool((grads[1] - grads[0]).norm() > 0.01 * grads[0].norm()))

# %% [markdown]
# So equal gradients are only to be had with batch norm in eval mode, or with a layer that does not mix samples.
#
# ## 6 Sixteen bits
#
# Half as many bytes to store and to move, and on a GPU much faster matrix products.
# The price is a coarser number line, and there are two of them.

# %% objective="training.precision"
show_number_line()

# %% [markdown]
# Left: how far each format reaches. Right: which numbers it has near 1.
# 16 bits can be spent on reach or on digits: **bfloat16** reaches as far as float32,
# **float16** has eight times finer steps.
#
# {{predict underflow}}

# %%
predict("underflow", "a")

# %% objective="training.precision"
for dtype in (torch.float16, torch.bfloat16):
    print(dtype, torch.tensor(1e-8).to(dtype).item(), " times 1024:", torch.tensor(1e-8 * 1024).to(dtype).item() / 1024)

# %% [markdown]
# In float16 small gradients **underflow** to 0.
# Multiplied by 1024 before the conversion, and divided by 1024 after it, they survive: that is loss scaling.
#
# How small are real gradients? Here are those of six layers with small inputs, above the same line.

# %% objective="training.precision"
torch.manual_seed(0)
deep = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())])
deep(torch.randn(32, 64) / 200).square().mean().backward()
gradients = torch.cat([p.grad.flatten() for p in deep.parameters()])
show_number_line(gradients, scale=1024)

# %% [markdown]
# The left tail of the gradients falls off the edge of float16. Scaled, nearly all of it is inside.
#
# And bfloat16? It never underflows here. What it lacks are digits.
#
# {{predict bf16_add}}

# %%
predict("bf16_add", "b")

# %% objective="training.precision"
for dtype in (torch.float32, torch.bfloat16):
    w = torch.tensor(1.0, dtype=dtype)
    for _ in range(1000):
        w += 0.001
    print(dtype, round(w.item(), 3), " next number after 1:", 1 + torch.finfo(dtype).eps)

# %% [markdown]
# **So the weights stay in float32, and only the arithmetic is done in 16 bits.**
# That is what *mixed* precision means, and `torch.autocast` does it.
#
# {{predict autocast_dtypes}}

# %%
predict("autocast_dtypes", "b")

# %% objective="training.precision"
layer = nn.Linear(4, 4)
with torch.autocast("cpu", torch.bfloat16):
    out = layer(batch)
out.sum().backward()
print(out.dtype, layer.weight.dtype, layer.weight.grad.dtype)

# %% [markdown]
# Autocast has lists: operators that are safe in 16 bits, operators that need 32, and all the rest.

# %% objective="training.precision"
with torch.autocast("cpu", torch.bfloat16):
    h = layer(batch)
    kinds = {"linear": h, "relu": h.relu(), "softmax": h.softmax(-1), "mse_loss": F.mse_loss(h, batch)}
print({name: str(value.dtype).removeprefix("torch.") for name, value in kinds.items()})

# %% [markdown]
# The loss is float32, computed from bfloat16 inputs. Computed *outside* the block it might not be:
# `cross_entropy` of bfloat16 logits is bfloat16 there, with three digits. So keep the loss inside.
#
# (These are the lists of the CPU. Said here, not shown: on CUDA they differ; `softmax` for one runs in float32 there,
# and `binary_cross_entropy` is refused.)

# %% objective="training.precision"
logits, labels = h.flatten(0, 1), torch.zeros(6, dtype=torch.long)
with torch.autocast("cpu", torch.bfloat16):
    inside = F.cross_entropy(logits, labels)
print("inside", inside.dtype, " outside", F.cross_entropy(logits, labels).dtype)

# %% [markdown]
# > **Classic mistake: `"cuda"` written into the code.**
# > On a machine without CUDA nothing fails. Autocast and scaler switch themselves off with a warning,
# > and everything runs in float32.

# %% tags=["nbval-ignore-output"] objective="training.precision"
def on_cuda() -> None:
    with torch.autocast("cuda", torch.float16):
        print(layer(batch).dtype, " scaler:", torch.amp.GradScaler("cuda").is_enabled())


print(*warnings_of(on_cuda), sep="\n")

# %% [markdown]
# (This is the output of a machine without CUDA.)
#
# > **Said here, not shown.** How much faster 16 bits are depends on the device.
# > GPUs have units for them. Many CPUs emulate them and are ten or more times *slower* than in float32,
# > which is why all layers of this section are small.
#
# Now, when is a scaler needed? The number line has the answer.
#
# {{exercise make_precision}}

# %% exercise="make_precision"
def make_precision(
    device_type: str, dtype: torch.dtype
) -> tuple[torch.autocast, torch.amp.GradScaler]:
    """Return what a training step in `dtype` needs on this kind of device: `(autocast, scaler)`.

    `device_type` is "cpu" or "cuda"; `dtype` is `torch.float32`, `torch.bfloat16` or `torch.float16`.
    `autocast` is a `torch.autocast` for the device. Inside `with autocast:` matrix products run in `dtype`;
    for float32 it does nothing.
    `scaler` is a `torch.amp.GradScaler` for the device. It is enabled for float16, and only for float16.
    """
    ### BEGIN SOLUTION
    autocast = torch.autocast(device_type, dtype, enabled=dtype != torch.float32)
    scaler = torch.amp.GradScaler(device_type, enabled=dtype == torch.float16)
    return autocast, scaler
    ### END SOLUTION

# %%
check(make_precision)

# %% [markdown]
# ### What a scaler does
#
# It multiplies the loss. By the chain rule every gradient is multiplied with it:

# %% objective="training.precision"
def scaled_gradients(scale: float, slope: float = 0.5):
    """A parameter with scaled gradients, its optimizer and its scaler."""
    w = nn.Parameter(torch.zeros(2))
    sgd = torch.optim.SGD([w], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale((w * torch.tensor([0.3, slope])).sum()).backward()
    return w, sgd, scaler


w, sgd, scaler = scaled_gradients(1024, slope=0.4)
print("in .grad:", w.grad.tolist())
scaler.unscale_(sgd)
print("unscaled:", w.grad.tolist())

# %% [markdown]
# The true gradient has the norm 0.5. So clipping at 1 must not touch it. Does it?

# %% objective="training.precision"
for unscale in (False, True):
    w, sgd, scaler = scaled_gradients(1024, slope=0.4)
    if unscale:
        scaler.unscale_(sgd)
    norm = nn.utils.clip_grad_norm_([w], 1.0)
    scaler.step(sgd)
    print(f"unscaled first: {unscale!s:5}  norm {norm.item():5.1f}  w {[round(v, 4) for v in w.tolist()]}")

# %% [markdown]
# > **Classic mistake: clipping scaled gradients.**
# > The norm was 512, so the gradient was cut to 1, and *then* divided by 1024.
# > Training hardly moves, and the logged norms are in the thousands.
#
# And the scale itself? It starts high and looks for its own size.
#
# {{predict overflow_step}}

# %%
predict("overflow_step", "c")

# %% objective="training.precision"
w, sgd, scaler = scaled_gradients(1024, slope=math.inf)
scaler.step(sgd)
scaler.update()
print("w", w.tolist(), " scale 1024 ->", scaler.get_scale())
print("good steps before it is doubled:", scaler.get_growth_interval())

# %% [markdown]
# An overflow is no accident but a measurement: the step is left out and the scale is halved.
# After 2000 good steps in a row it is doubled again.
#
# So the order is: **scale, backward, unscale, clip, step, update**.
# A spy shows it. It wraps the scaler and notes each call that passes through.

# %% objective="training.precision"
w = nn.Parameter(torch.zeros(2))
sgd = torch.optim.SGD([w], lr=1.0)
spy = Spy("scaler", torch.amp.GradScaler("cpu", init_scale=1024))
spy.scale(w.sum()).backward()
spy.unscale_(sgd)
nn.utils.clip_grad_norm_([w], 1.0)
spy.step(sgd)
spy.update()
print([call.kind for _, call in spy.calls.items])

# %% [markdown]
# Each place can be wrong in its own way, and some of them are loud.
# Here `scale` was forgotten, and then `unscale_` called twice:

# %% objective="training.precision"
w, sgd, scaler = scaled_gradients(1024)
for forgetful in (lambda: torch.amp.GradScaler("cpu").step(sgd), lambda: [scaler.unscale_(sgd), scaler.unscale_(sgd)]):
    try:
        forgetful()
    except (AssertionError, RuntimeError) as refusal:
        print(type(refusal).__name__, "-", str(refusal).split(".  ")[0])

# %% [markdown]
# Is `unscale_` itself needed? Clipping the scaled gradients to `clip * scaler.get_scale()` gives the same step.
# The check below accepts both, since it looks at what moved.
#
# The dtype is bfloat16 here. The scaler is handed in, enabled or not, and the code does not ask:
# a disabled one passes everything through.
#
# {{exercise amp_step}}

# %% exercise="amp_step"
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
    ### BEGIN SOLUTION
    opt.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(opt)
    scaler.update()
    return loss.item()
    ### END SOLUTION

# %%
check(amp_step)

# %% [markdown]
# Does bfloat16 gain anything from a scaler? Train twice from the same weights:

# %% objective="training.precision"
x, y = train_set.tensors
for enabled in (False, True):
    model = network()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    losses = [passing(amp_step)(model, x, y, F.mse_loss, opt, scaler, 1.0) for _ in range(40)]
    print(f"scaler {enabled!s:5}  loss {losses[0]:.4f} -> {losses[-1]:.4f}")

# %% [markdown]
# The same digits: scaling by a power of two shifts the exponent, and bfloat16 has room for it.
# A scaler would only look for infinities that do not come.
#
# ## 7 Stop in time, and write it down
#
# ### Early stopping
#
# When the loss on unseen samples no longer falls, more training makes the model worse.
# We would like to write:
#
# ```python
# stopper = EarlyStopping(patience=3)
# for epoch in range(100):
#     train_one_epoch(...)
#     if stopper.step(evaluate(...), model):
#         break
# stopper.restore(model)      # the best weights, not the last
# ```
#
# Two questions decide whether that works. What counts as a miss, on a curve that is noisy?
# And what has to be remembered, so that `restore` brings back what was?
#
# {{exercise EarlyStopping}}

# %% exercise="EarlyStopping"
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
        ### BEGIN SOLUTION
        self.patience, self.delta = patience, delta
        self.best, self.bad = math.inf, 0
        self.state: dict[str, Tensor] = {}
        ### END SOLUTION

    def step(self, loss: float, model: nn.Module) -> bool:
        ### BEGIN SOLUTION
        if loss < self.best - self.delta:
            self.best, self.bad = loss, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience
        ### END SOLUTION

    def restore(self, model: nn.Module) -> None:
        ### BEGIN SOLUTION
        model.load_state_dict(self.state)
        ### END SOLUTION

# %%
check(EarlyStopping)

# %% [markdown]
# Ten noisy samples and too large a network: it will learn the noise by heart.

# %% objective="training.checkpoints"
torch.manual_seed(0)
few = DataLoader(noisy_sine(10, seed=4, noise=0.5), batch_size=10, generator=torch.Generator())
big = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(big.parameters(), lr=1e-2)
stopper, validate = passing(EarlyStopping)(patience=60), passing(evaluate)
with Curves("train loss", "val loss", every=50) as curves:
    for _ in range(300):
        train_loss = train(big, few, F.mse_loss, opt, 1.0)
        val_loss = validate(big, val_loader, F.mse_loss)
        curves.add(train_loss=train_loss, val_loss=val_loss)
        if stopper.step(val_loss, big):
            break

# %% objective="training.checkpoints"
last = validate(big, val_loader, F.mse_loss)
stopper.restore(big)
best = validate(big, val_loader, F.mse_loss)
n_epochs = len(curves.points["val loss"])
print(f"stopped early: {n_epochs < 300}   last {last:.1f}   best {best:.1f}")

# %% [markdown]
# The train loss falls on, and the other one turns after a few epochs: from there the model learns noise.
# What is left after `restore` is the model of the turning point.
#
# ### A checkpoint
#
# Back to three in the morning. The popular skeleton saves model, optimizer, scaler and epoch.
# Something is missing.
#
# {{predict forgotten_scheduler}}

# %%
predict("forgotten_scheduler", "c")

# %% objective="training.checkpoints"
def cosine_run(opt: Optimizer, n: int) -> list[float]:
    """The rates that the next `n` epochs use, with a scheduler that is new."""
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
    rates = []
    for _ in range(n):
        rates.append(round(opt.param_groups[0]["lr"], 2))
        opt.step()
        sched.step()
    return rates


# %% objective="training.checkpoints"
first, second = (torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2))
print("uninterrupted:", cosine_run(first, 10)[5:])
first = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
cosine_run(first, 5)
second.load_state_dict(first.state_dict())
print("resumed:      ", cosine_run(second, 5))

# %% [markdown]
# Nothing raised. The model would be a little worse, and nobody would know why.
#
# The optimizer is the other half of the model. Without its state the moments of Adam start from nothing:

# %% objective="training.checkpoints"
def distance_after_resume(with_optimizer: bool) -> float:
    def run(w, opt, n):
        for _ in range(n):
            opt.zero_grad()
            (w - 3).pow(2).sum().backward()
            opt.step()

    w = nn.Parameter(torch.zeros(1))
    opt = torch.optim.AdamW([w], lr=0.1)
    run(w, opt, 5)
    resumed = nn.Parameter(w.detach().clone())
    new = torch.optim.AdamW([resumed], lr=0.1)
    if with_optimizer:
        new.load_state_dict(copy.deepcopy(opt.state_dict()))
    run(w, opt, 5)
    run(resumed, new, 5)
    return abs(w.item() - resumed.item())


print(f"without: {distance_after_resume(False):.4f}   with: {distance_after_resume(True)}")

# %% [markdown]
# What may stand in such a file? Since PyTorch 2.6 `torch.load` reads data only, unless you insist.
# Tensors, numbers, strings and containers of them are data. A whole module is code:

# %% objective="training.checkpoints"
file = io.BytesIO()
torch.save(nn.Linear(2, 1), file)
_ = file.seek(0)
try:
    torch.load(file)
except Exception as refusal:
    print(type(refusal).__name__, "-", str(refusal).split(". ")[0])

# %% [markdown]
# So save `state_dict()`s, and states of generators: both pass.
#
# A wart of the scaler: disabled, it saves an empty state, and an enabled one refuses to load that.
# Decide about the precision before you load.

# %% tags=["raises-exception"] objective="training.checkpoints"
disabled = torch.amp.GradScaler("cpu", enabled=False)
torch.amp.GradScaler("cpu").load_state_dict(disabled.state_dict())

# %% [markdown]
# And the file itself? A process can be killed *while it writes*.
# Then the old checkpoint is gone and the new one is half a file.
#
# {{exercise save_checkpoint}}

# %% exercise="save_checkpoint"
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
    ### BEGIN SOLUTION
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
    ### END SOLUTION

# %%
check(save_checkpoint)

# %% [markdown]
# And back.
#
# {{exercise load_checkpoint}}

# %% exercise="load_checkpoint"
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
    ### BEGIN SOLUTION
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    opt.load_state_dict(checkpoint["optimizer"])
    sched.load_state_dict(checkpoint["scheduler"])
    gen.set_state(checkpoint["generator"])
    torch.set_rng_state(checkpoint["torch_rng"])
    return checkpoint["epoch"] + 1
    ### END SOLUTION

# %%
check(load_checkpoint)

# %% [markdown]
# One thing is in no file: the mode.

# %% objective="training.checkpoints"
dropout = nn.Dropout().eval()
new = nn.Dropout()
new.load_state_dict(dropout.state_dict())
print("saved in eval mode, loaded in train mode:", new.training)

# %% [markdown]
# Call `eval()` to predict, and `train()` to go on.
#
# Now six epochs in one go, against three, a new process, and three more. With dropout, a shuffle and a cosine:

# %% objective="training.checkpoints"
def six_epochs(path: str, start: bool, stop: int) -> dict[str, Tensor]:
    """Run epochs up to `stop`, from the beginning or from the checkpoint; the weights."""
    torch.manual_seed(0 if start else 99)
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=6)
    gen = torch.Generator().manual_seed(0)
    first = 0 if start else load(path, model, opt, sched, gen)
    for epoch in range(first, stop):
        loader = DataLoader(train_set, batch_size=32, shuffle=True, generator=gen)
        train(model, loader, F.mse_loss, opt, 1.0)
        sched.step()
        save(path, model, opt, sched, gen, epoch)
    return model.state_dict()


# %% objective="training.checkpoints"
save, load = passing(save_checkpoint), passing(load_checkpoint)
with tempfile.TemporaryDirectory() as folder:
    whole = six_epochs(f"{folder}/one.pt", start=True, stop=6)
    six_epochs(f"{folder}/two.pt", start=True, stop=3)
    resumed = six_epochs(f"{folder}/two.pt", start=False, stop=6)
print("the same bits:", all(torch.equal(whole[name], resumed[name]) for name in whole))

# %% [markdown]
# ## 8 The same bits, from any step on
#
# An epoch can take a day, so we want to resume *within* it. Then one more thing remembers something:
# the position in the data.
# And there is more than one stream of random numbers. Where do they go?
#
# {{predict loader_draws}}

# %%
predict("loader_draws", "b")

# %% objective="training.resume"
def draws(loader: DataLoader) -> bool:
    """Does starting to iterate draw from the global generator?"""
    before = torch.get_rng_state()
    next(iter(loader))
    return not torch.equal(before, torch.get_rng_state())


print("without a generator:", draws(DataLoader(train_set, batch_size=4)))
print("with its own:       ", draws(DataLoader(train_set, batch_size=4, generator=torch.Generator())))

# %% [markdown]
# A run that resumes starts an iterator once more than one that was never interrupted.
# If that draws from the global generator, dropout drops other neurons from there on.
# **Give a loader a generator of its own**, and the two no longer meet.
#
# Better still: let the batches depend on the seed and the step *and nothing else*.
# Then there is no position to save.
#
# {{exercise ResumableBatches}}

# %% exercise="ResumableBatches"
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
        ### BEGIN SOLUTION
        self.n, self.batch_size, self.seed, self.start = n, batch_size, seed, start
        ### END SOLUTION

    def __iter__(self) -> Iterator[list[int]]:
        ### BEGIN SOLUTION
        return islice(self.from_the_beginning(), self.start, None)

    def from_the_beginning(self) -> Iterator[list[int]]:
        gen = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(self.n, generator=gen)
            yield from (batch.tolist() for batch in order.split(self.batch_size))
        ### END SOLUTION

# %%
check(ResumableBatches)

# %% objective="training.resume"
batches = passing(ResumableBatches)
print("from 0:", list(islice(batches(5, 2, seed=0), 6)))
print("from 4:", list(islice(batches(5, 2, seed=0, start=4), 2)))

# %% [markdown]
# A `DataLoader` takes it as its `batch_sampler`, workers and all.
# (Workers fetch batches ahead of the loop. A sampler that counts for itself then counts too far; ours does not count.
# The same idea for loaders that stream is torchdata's `StatefulDataLoader`.)
#
# What is left are the global generators: those of PyTorch, on the CPU and on each GPU, of NumPy and of Python.
# NumPy's state holds an array, which is not on the list of types that `weights_only=True` reads:

# %% objective="training.resume"
file = io.BytesIO()
torch.save(np.random.get_state(), file)
_ = file.seek(0)
try:
    torch.load(file)
except Exception as refusal:
    print(type(refusal).__name__, "-", str(refusal).split(". ")[0])

# %% [markdown]
# A list of the same numbers is.

# %% objective="training.resume"
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

# %% objective="training.resume"
def set_rng_state(state: dict[str, Any]) -> None:
    """Bring all global random generators to what `rng_state()` returned."""
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])

# %% objective="training.resume"
state = rng_state()
first = torch.rand(1).item(), np.random.rand(), random.random()
set_rng_state(state)
print("the same numbers again:", first == (torch.rand(1).item(), np.random.rand(), random.random()))

# %% [markdown]
# ### All of it, from memory
#
# Close the sections above. Write the template: AMP, clipping, a schedule, checkpoints, and a `fit` that resumes.
# Only `Trainer(...)` and `fit` are asked for; cut the rest as you like.
# The check runs it, interrupts it, starts it again with other weights, and compares the bits.
#
# {{exercise Trainer}}

# %% exercise="Trainer"
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
        ### BEGIN SOLUTION
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
        ### END SOLUTION

    def fit(
        self, make_batches: Callable, n_steps: int, path: str, save_every: int, progress: bool = True
    ) -> list[float]:
        ### BEGIN SOLUTION
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
        ### END SOLUTION

# %%
check(Trainer)

# %% [markdown]
# Put the pieces together: groups for the decay, warm-up and cosine, precision by one switch, batches from any step.

# %% objective="training.resume"
groups, make = passing(param_groups), passing(Trainer)


def make_trainer(seed: int, n_steps: int) -> tuple[Any, nn.Module]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.05), nn.Linear(32, 1))
    opt = torch.optim.AdamW(groups(model, weight_decay=0.01), lr=1e-2)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: factor(step, n_steps, 10, 0.1))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return make(model, F.mse_loss, opt, sched, scaler, torch.float32, 1.0), model

# %% objective="training.resume"
def make_batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    sampler = batches(len(train_set), batch_size=16, seed=0, start=step)
    return iter(DataLoader(train_set, batch_sampler=sampler, generator=torch.Generator()))

# %% [markdown]
# First a run that nobody disturbs, with its progress bar:

# %% tags=["nbval-ignore-output"] objective="training.resume"
scratch = tempfile.TemporaryDirectory()
folder = scratch.name
trainer, whole = make_trainer(seed=0, n_steps=120)
losses = trainer.fit(make_batches, 120, f"{folder}/whole.pt", save_every=25)

# %% [markdown]
# Then one that is killed. Its batches stop coming at step 73, with an error that nobody catches in time.
# A new trainer, with other weights, finds the file.

# %% objective="training.resume"
def killed_at(step: int) -> Callable:
    def make(start: int) -> Iterator:
        yield from islice(make_batches(start), step - start)
        raise SystemExit(f"killed at step {step}")

    return make


try:
    make_trainer(seed=0, n_steps=120)[0].fit(killed_at(73), 120, f"{folder}/killed.pt", 25, progress=False)
except SystemExit as kill:
    print(kill)

# %% objective="training.resume"
trainer, resumed = make_trainer(seed=5, n_steps=120)
rest = trainer.fit(make_batches, 120, f"{folder}/killed.pt", 25, progress=False)
print("steps made after the kill:", len(rest))
print("the same losses:", rest == losses[-len(rest):])
print("the same bits:  ", all(map(torch.equal, whole.parameters(), resumed.parameters())))

# %% [markdown]
# The last checkpoint was of step 50, so 23 steps were made twice, and came out the same.
# (The tests of this course do it with a real process and a real `SIGKILL`, at five random steps.)
#
# Bit for bit holds for the same machine, the same number of threads and the same versions.
# Other kernels add in another order. And on a GPU some operators are not deterministic at all, until you ask:
# `torch.use_deterministic_algorithms(True)`.
#
# ### Watch it live
#
# Last, float16 with a scale that starts far too high, on a GPU if there is one.

# %% objective="training.precision"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = network().to(device)
optimizer = torch.optim.AdamW(groups(model, weight_decay=0.01), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, 100, 10, 0.1))
autocast, _ = passing(make_precision)(device.type, torch.float16)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**28)

# %% [markdown]
# The step is the one that you know. It returns what there is to look at.

# %% objective="training.precision"
def watched_step(x: Tensor, y: Tensor) -> dict[str, float]:
    lr = schedule.get_last_lr()[0]
    optimizer.zero_grad()
    with autocast:
        loss = F.mse_loss(model(x.to(device)), y.to(device))
    scaler.scale(loss.sum()).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    return {"loss": loss.item(), "lr": lr, "grad_norm": norm.item()}


print(*warnings_of(lambda: watched_step(*next(make_batches(0)))))

# %% [markdown]
# This is the warning of section 4, without reason: the order is right, but the scaler left out the very first step,
# so the schedule has never seen the optimizer step.
# Now the rest, drawn while it runs:

# %% objective="training.precision"
with Curves("loss", "lr", "grad norm") as curves:
    for x, y in islice(make_batches(1), 99):
        curves.add(**watched_step(x, y))

# %% objective="training.precision"
norms = curves.points["grad norm"]
print("steps left out:", sum(not math.isfinite(norm) for norm in norms) > 5, " scale fell:", scaler.get_scale() < 2.0**28)

# %% [markdown]
# The dotted lines are steps that the scaler left out while it looked for its scale.
# The loss waits for it, and then falls.
# If you change `float16` to `bfloat16` above and the scaler's `enabled` to False, there is nothing to look for.
#
# ## The answer
#
# > What must have been written down, so that the run ends with the same bits as if nothing had happened?
#
# Everything that remembers something from one step to the next, and nothing else.
# Take each of these out of a checkpoint, resume, and look whether the bits are still the same:

# %% objective="training.resume"
def new_run(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: factor(step, 60, 5, 0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)  # so that it soon grows too far
    return {"model": model, "opt": opt, "sched": sched, "scaler": scaler}

# %% objective="training.resume"
def advance(run: dict[str, Any], first: int, last: int) -> None:
    model, optimizer, schedule, scaler = run.values()
    for x, y in islice(make_batches(first), last - first):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()

# %% [markdown]
# A run of 60 steps, with a checkpoint after 30:

# %% objective="training.resume"
whole = new_run(seed=0)
advance(whole, 0, 30)
saved = copy.deepcopy({name: part.state_dict() for name, part in whole.items()}) | {"rng": rng_state(), "step": 30}
advance(whole, 30, 60)

# %% objective="training.resume"
def resumed_without(forgotten: str) -> bool:
    """Resume with one entry forgotten. Are the weights after 60 steps the same bits?"""
    run = new_run(seed=1)
    for name in run.keys() - {forgotten}:
        run[name].load_state_dict(copy.deepcopy(saved[name]))
    if forgotten != "rng":
        set_rng_state(saved["rng"])
    first = 0 if forgotten == "step" else saved["step"]
    advance(run, first, first + 30)
    return all(map(torch.equal, run["model"].parameters(), whole["model"].parameters()))


# %% objective="training.resume"
for forgotten in ["nothing", *saved]:
    print(f"forgotten: {forgotten:8} the same bits: {resumed_without(forgotten)}")

# %% [markdown]
# Six entries, and none can be left out: the weights, the moments, the place on the schedule, the scale,
# the random numbers, and the number of the step, which tells where the data stands.
#
# ## Recap
#
# - Seven words: batch, zero, forward, loss, backward, clip, step. Then the schedule.
# - The loss of an epoch is a mean over samples. Know its first value and its floor.
# - Mode and recording are two switches. Whoever evaluates puts both back, for each module.
# - Clipping keeps the direction and does not help against NaN. A skipped batch must not leave its gradient behind.
# - Matrices decay, vectors do not. A schedule counts calls, and a cosine does not stop by itself.
# - Accumulated parts count by their samples, and the last window is a window.
# - float16 lacks reach, so its loss is scaled; bfloat16 lacks digits, so weights stay float32.
# - scale, backward, unscale, clip, step, update.
# - `state_dict()` is alive. A file is replaced, not overwritten.
# - Batches that depend on the step alone need no position to be saved.

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] write an epoch, and say what each line is for? (`train_one_epoch`, [section 1](#1-One-step-in-seven-words))
# - [ ] say what the loss should be before training, and at best? (`train_one_epoch`, [section 1](#1-One-step-in-seven-words))
# - [ ] evaluate a model that is partly frozen, and leave no trace? (`evaluate`, [section 2](#2-Evaluate-and-leave-no-trace))
# - [ ] clip by hand, and say what clipping does not help against? (`clip_by_global_norm`, `finite_step`, [section 3](#3-When-gradients-misbehave))
# - [ ] say which parameters decay, and draw the learning rate? (`param_groups`, `warmup_cosine`, [section 4](#4-What-the-optimizer-is-told))
# - [ ] accumulate micro-batches of unequal sizes? (`accumulated_epoch`, [section 5](#5-A-large-batch-from-small-ones))
# - [ ] say why bfloat16 needs no scaler, and in which order float16 needs it? (`make_precision`, `amp_step`, [section 6](#6-Sixteen-bits))
# - [ ] stop early with the best weights? (`EarlyStopping`, [section 7](#7-Stop-in-time-and-write-it-down))
# - [ ] save and restore all that an epoch-long run remembers? (`save_checkpoint`, `load_checkpoint`, [section 7](#7-Stop-in-time-and-write-it-down))
# - [ ] resume within an epoch, bit for bit? (`ResumableBatches`, `Trainer`, [section 8](#8-The-same-bits-from-any-step-on))

# %% tags=["nbval-ignore-output"]
progress()
