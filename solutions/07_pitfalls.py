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
# # The pitfalls clinic
#
# > Training runs, and something is off: a curve, a number, an error.
# > **How do you get from the symptom to the line, and how do you know that the line was all?**
#
# Thirty pieces of training code are ill, each in a way that real projects were.
# Every visit has the same five steps.
#
# 1. The **symptom** comes first, executed: a curve, a number, an error.
# 2. You give a **diagnosis** before you see the evidence.
# 3. The evidence decides.
# 4. You **repair** the code. The check asks two questions: is the bug gone, and is everything else as it was?
# 5. You take home one **line** that would have caught it.
#
# **Time:** about 5 hours. It splits anywhere: each patient is a visit of about ten minutes, and each ward stands alone.
#
# **You need:** notebooks 01 to 05, or the experience behind them. No GPU.
# If an exercise resists, run `hint(its_name)` in a cell of your own.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## Triage
#
# What do you see? It leads to a ward, and in the ward to a patient.
#
# | symptom | suspect | patient |
# |---|---|---|
# | an error that names two devices | a tensor that was never moved, a result thrown away | 2, 3 |
# | the error names "a leaf", or "an inplace operation" | a write that autograd recorded, or noticed | 8, 11 |
# | the error names an overflow | a constant for another dtype | 28 |
# | the loss stops above zero, or is high for perfect predictions | shapes that broadcast, softmax twice | 1, 15 |
# | the loss explodes, or gradients grow | gradients of several batches, parameters that nobody clears | 6, 9 |
# | a part of the model never changes | no owner, or a graph that was cut | 7, 9, 10, 25 |
# | training slows down to nothing | the schedule, a NaN that stays | 16, 17 |
# | two runs, or two calls, differ | mode, seeds | 12, 13, 18 |
# | each epoch is worse, or each is the same | data edited in place, a generator rewound | 20, 21 |
# | evaluation differs from training | mode, statistics, masks | 4, 5, 12, 14 |
# | memory grows | a graph that somebody keeps | 22, 24 |
# | the GPU waits; numbers are too good | reads, copies, a clock that stops early | 22, 23, 26 |
# | a run gets worse after a resume, or after loading | state that was not saved, a tie undone | 29, 30 |
# | nothing at all, only slow | workers, precision | 19, 27 |

# %% [markdown]
# ## The words of this notebook
#
# | term | in code | meaning |
# |---|---|---|
# | symptom | | what you can see from outside: a number, a curve, an error |
# | repair | | the bug is gone, and every feature that was there still is |
# | probe | `x + 1` for a perfect prediction, NaN for a batch | an input for which you know the answer |
# | owner | `opt.param_groups` | the optimizer that steps on a parameter |
# | leaf | `w.is_leaf` | a tensor that no recorded operation made; where gradients arrive |
# | mode | `model.training` | how layers behave; not the same as recording gradients |
# | sync | `.item()`, `float(t)` | the host reads a value and waits for the device |
# | tie | `head.weight is emb.weight` | one parameter under two names |
#
# A batch is a pair of inputs (batch, 4) and class numbers (batch,).
# The functions that are ill are called `sick_...`; the one that you write has the healthy name.

# %%
import math
import os
import pickle
import random
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, StepLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.checking.recorders import MoveRecorder, OpRecorder

# %% [markdown]
# The patients share tiny models, tiny data and a few instruments, which live in one small module.
# `curve` draws numbers as a row of bars. `StrictDevices` and `SimulatedGPU` stand in for a GPU, and say so.
# %%
from course_lib.exercises.clinic import (
    CountingBlock,
    GraphWatch,
    Pixels,
    SimulatedGPU,
    StrictDevices,
    Tied,
    classifier,
    curve,
    labelled_batches,
)

warnings.simplefilter("ignore")  # half of the patients only warn; where a warning matters, we look at it
_ = torch.manual_seed(0)

# %%
def messages_of(f: Callable, *args: Any) -> list[str]:
    """What calling `f` says: the first sentence of its warnings, and of the error where there is one."""
    torch.set_warn_always(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            f(*args)
        except Exception as error:
            caught = [*caught, error]
    torch.set_warn_always(False)
    return [str(getattr(item, "message", item)).split(". ")[0] for item in caught]

# %% [markdown]
# ## Ward 1: shapes and devices
#
# Broadcasting makes shapes fit. It never asks whether you meant it.
#
# ### Patient 1: perfect, and not good enough
#
# A regression does not get below a certain loss, however long it trains.

# %%
def sick_regression_loss(pred: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(pred, y)

# %% objective="pitfalls.shapes"
y = torch.tensor([1.0, 2.0, 3.0])
perfect = y.view(3, 1)  # as a linear layer returns it
sick_regression_loss(perfect, y)

# %% [markdown]
# A probe is an input whose answer you know. The answer for a perfect prediction is 0.
#
# {{predict diagnose_regression}}

# %%
predict("diagnose_regression", "b")

# %% objective="pitfalls.shapes"
print(tuple(perfect.shape), "-", tuple(y.shape), "->", tuple((perfect - y).shape))
print(perfect - y)
print(*messages_of(sick_regression_loss, perfect, y))

# %% [markdown]
# Nine differences. The loss is smallest when every prediction is the mean of all targets, and training goes there.
# `F.mse_loss` warns; `(pred - y).pow(2).mean()` would not even do that.
#
# "Then I squeeze the prediction." And where the targets come as (batch, 1)?
#
# {{exercise regression_loss}}

# %% exercise="regression_loss"
def regression_loss(pred: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared error between `pred` and `y`, as a tensor without dimensions.

    Repair `sick_regression_loss`. `pred` has the shape (batch, 1), as it comes from a linear layer.
    `y` has the shape (batch,) or (batch, 1), and `batch` may be 1.
    Prediction `i` belongs to target `i` alone. Gradients flow back to `pred`.
    """
    ### BEGIN SOLUTION
    return F.mse_loss(pred.reshape(-1), y.reshape(-1))
    ### END SOLUTION

# %%
check(regression_loss)

# %% [markdown]
# **The line that would have caught it:** hand the loss its own targets.

# %% objective="pitfalls.shapes"
for loss in (sick_regression_loss, passing(regression_loss)):
    print(f"{loss.__name__:22} perfect predictions give 0:", loss(y.view(-1, 1), y).item() == 0)

# %% [markdown]
# ### Patient 2: moved, and still there
#
# The classic of the first hour on a GPU. Here the `meta` device stands in for the GPU.

# %%
def sick_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    inputs.to(next(iter(model.parameters())).device)
    return F.cross_entropy(model(inputs), labels)

# %% objective="pitfalls.shapes"
model = classifier().to("meta")
(inputs, labels), = labelled_batches([4], torch.Generator().manual_seed(0))
with StrictDevices():
    print(*messages_of(sick_loss, model, inputs, labels))

# %% [markdown]
# With CUDA the message names `cuda:0` and `cpu`.
#
# {{predict diagnose_device}}

# %%
predict("diagnose_device", "a")

# %% objective="pitfalls.shapes"
moved = inputs.to("meta")
print("inputs:", inputs.device, " moved:", moved.device, " labels:", labels.device)
print("a module moves in place:", next(iter(classifier().to("meta").parameters())).device)

# %% [markdown]
# The result was thrown away, and the labels were forgotten altogether: they meet the logits.
# "Then I write `.cuda()` everywhere." That works on your machine. The model knows where it is.
#
# {{exercise loss_on_device}}

# %% exercise="loss_on_device"
def loss_on_device(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of `model` on inputs `x` and class numbers `y`, wherever these lie.

    Repair `sick_loss`. All parameters of `model` are on one device, and there is at least one.
    `x` and `y` may each be on that device or on another one; the loss is on the model's.
    The model stays where it is. Gradients flow back to it.
    """
    ### BEGIN SOLUTION
    device = next(model.parameters()).device
    return F.cross_entropy(model(x.to(device)), y.to(device))
    ### END SOLUTION

# %%
check(loss_on_device)

# %% [markdown]
# **The line that would have caught it:** run one step on `meta`, with strict devices, in a test without a GPU.

# %% objective="pitfalls.shapes"
for loss in (sick_loss, passing(loss_on_device)):
    with StrictDevices():
        print(f"{loss.__name__:15}", messages_of(loss, model, inputs, labels) or "no complaint")

# %% [markdown]
# ### Patient 3: one door for all
#
# A popular one-liner moves everything to the model. It was copied into a library, and met an activation.

# %%
def sick_to_device(module: nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
    place = next(iter(module.parameters()))
    return tuple(tensor.to(place) for tensor in tensors)

# %% objective="pitfalls.shapes"
print(len(sick_to_device(nn.Linear(4, 3), inputs)))
try:
    sick_to_device(nn.ReLU(), inputs)
except StopIteration as error:
    print("StopIteration:", repr(str(error)))

# %% [markdown]
# An error without a text, from a line that works everywhere else.
#
# {{predict diagnose_door}}

# %%
predict("diagnose_door", "c")

# %% objective="pitfalls.shapes"
print("parameters of ReLU:", list(nn.ReLU().parameters()))
print("labels before and after:", labels.dtype, sick_to_device(nn.Linear(4, 3), labels)[0].dtype)

# %% [markdown]
# There is a second illness in the same line. `tensor.to(parameter)` takes over the *dtype*, too,
# and class numbers become floating.
# (For a model that is spread over several devices there is no right answer, so nobody asks for one here.)
#
# {{exercise to_model_device}}

# %% exercise="to_model_device"
def to_model_device(model: nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors on the device of `model`, as a tuple, in their order.

    Repair `sick_to_device`. All parameters of `model` are on one device.
    A module without parameters and buffers, such as `nn.ReLU()`, leaves the tensors where they are.
    Each tensor keeps its dtype. One tensor gives a tuple of one. The model stays where it is.
    """
    ### BEGIN SOLUTION
    parameter = next(model.parameters(), None)
    return tensors if parameter is None else tuple(t.to(parameter.device) for t in tensors)
    ### END SOLUTION

# %%
check(to_model_device)

# %% [markdown]
# **The line that would have caught it:** try the helper on a module that has nothing.

# %% objective="pitfalls.shapes"
door = passing(to_model_device)
print("ReLU:", [t.dtype for t in door(nn.ReLU(), inputs, labels)], " same:", door(nn.ReLU(), inputs)[0] is inputs)

# %% [markdown]
# ### Patient 4: everyone is in the same place
#
# Word order makes no difference to this model, although it has a table of positions.

# %%
def sick_add_positions(x: Tensor, table: Tensor) -> Tensor:
    seq = x.size(1)
    return x + table[seq]

# %% objective="pitfalls.shapes"
table = torch.arange(5.0).view(5, 1).repeat(1, 2)  # (max_len, dim): row t holds t
sick_add_positions(torch.zeros(1, 3, 2), table)

# %% [markdown]
# Three steps, (batch, seq, dim) = (1, 3, 2), and they should read 0, 1, 2.
#
# {{predict diagnose_positions}}

# %%
predict("diagnose_positions", "b")

# %% objective="pitfalls.shapes"
print("one row:", tuple(table[3].shape), " broadcasts to:", torch.broadcast_shapes(table[3].shape, (1, 3, 2)))
print(*messages_of(sick_add_positions, torch.zeros(1, 5, 2), table))

# %% [markdown]
# The shapes fit by accident, and only a sequence of full length raises.
#
# {{exercise add_positions}}

# %% exercise="add_positions"
def add_positions(x: Tensor, table: Tensor) -> Tensor:
    """Add to each step the vector of its position: (batch, seq, dim) + (max_len, dim) -> (batch, seq, dim).

    Repair `sick_add_positions`. Step `t` of every sequence gets row `t` of `table`, counted from 0.
    `seq` is at most `max_len`. `x` is not changed. Gradients flow back to `x` and to `table`.
    """
    ### BEGIN SOLUTION
    return x + table[: x.size(1)]
    ### END SOLUTION

# %%
check(add_positions)

# %% [markdown]
# **The line that would have caught it:** two equal tokens at two places must come out different.

# %% objective="pitfalls.shapes"
for add in (sick_add_positions, passing(add_positions)):
    out = add(torch.zeros(1, 3, 2), table)
    print(f"{add.__name__:18} places differ:", not torch.equal(out[:, 0], out[:, 1]))

# %% [markdown]
# ### Patient 5: a mask that means the opposite
#
# The code was moved from `nn.MultiheadAttention` to `scaled_dot_product_attention`. Nothing raised.

# %%
def sick_attend(q: Tensor, k: Tensor, v: Tensor, is_padding: Tensor) -> Tensor:
    mask = is_padding[:, None, None, :]  # (batch, 1, 1, seq)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

# %% objective="pitfalls.shapes"
q = k = torch.zeros(1, 1, 3, 2)  # (batch, n_heads, seq, head_dim): all scores equal
v = torch.tensor([1.0, 2.0, 99.0]).view(1, 1, 3, 1)
is_padding = torch.tensor([[False, False, True]])
sick_attend(q, k, v, is_padding).flatten()

# %% [markdown]
# With equal scores each step should get the mean of the real values, 1.5. The 99 is padding.
#
# {{predict diagnose_mask}}

# %%
predict("diagnose_mask", "a")

# %% objective="pitfalls.shapes"
attention = nn.MultiheadAttention(2, 1, batch_first=True)
_, weights = attention(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2), torch.zeros(1, 3, 2), key_padding_mask=is_padding)
print("nn.MultiheadAttention, weights of step 0:", weights[0, 0].tolist())

# %% [markdown]
# The same mask, handed to the module, blocks the padding: there True means *blocked*.
# Two conventions in one library, and both are bool.
#
# {{exercise attend_to_real}}

# %% exercise="attend_to_real"
def attend_to_real(q: Tensor, k: Tensor, v: Tensor, is_padding: Tensor) -> Tensor:
    """Return the attention of every step to the steps that are not padding: (batch, n_heads, seq, head_dim).

    Repair `sick_attend`. `q`, `k` and `v` have that shape, too.
    `is_padding` has the shape (batch, seq) and is True where a step is padding. Each sequence has a real step.
    No step, padding or not, gives any weight to a padding step; the weights on the real ones sum to 1.
    Scores are scaled by 1 / sqrt(head_dim). There is no causal mask.
    """
    ### BEGIN SOLUTION
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~is_padding[:, None, None, :])
    ### END SOLUTION

# %%
check(attend_to_real)

# %% [markdown]
# **The line that would have caught it:** change what must not be seen, and look whether anything moves.

# %% objective="pitfalls.shapes"
other = v.clone()
other[..., -1, :] = -5  # the padding
for attend in (sick_attend, passing(attend_to_real)):
    same = torch.equal(attend(q, k, v, is_padding), attend(q, k, other, is_padding))
    print(f"{attend.__name__:15} is blind to the padding:", same)

# %% [markdown]
# ## Ward 2: gradients
#
# Gradients are added, optimizers own objects, and a graph remembers what it was built from.
#
# ### Patient 6: steps that grow
#
# The loop of the first tutorial, with one line missing.

# %%
def sick_train(model: nn.Module, opt: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    for inputs, labels in batches:
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()

# %% objective="pitfalls.gradients"
def losses_of(trainer: Callable, epochs: int = 30) -> list[float]:
    """The loss on 64 examples after each epoch of 16 batches."""
    torch.manual_seed(1)
    model, generator = classifier(), torch.Generator().manual_seed(2)
    opt = torch.optim.SGD(model.parameters(), lr=0.3)
    test_inputs, test_labels = labelled_batches([64], generator)[0]
    batches, losses = labelled_batches([16] * 16, generator), []
    for _ in range(epochs):
        trainer(model, opt, batches)
        losses.append(F.cross_entropy(model(test_inputs), test_labels).item())
    return losses

# %% objective="pitfalls.gradients"
curve(losses_of(sick_train))

# %% [markdown]
# The loss should fall smoothly; guessing among three classes costs ln 3 = 1.10.
#
# {{predict diagnose_zero_grad}}

# %%
predict("diagnose_zero_grad", "c")

# %% objective="pitfalls.gradients"
torch.manual_seed(0)
model = classifier()
for _ in range(3):
    F.cross_entropy(model(inputs), labels).backward()
    print(f"norm of the head's gradient: {model.head.weight.grad.norm():.3f}")

# %% [markdown]
# Twice, three times the gradient, for one batch and without a step.
# "Zero it before the training" is the usual advice, and it is one word off: before *each backward pass*.
#
# {{exercise train}}

# %% exercise="train"
def train(model: nn.Module, opt: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Take one optimizer step on each batch, in order.

    Repair `sick_train`: each step follows the gradient of its own batch.
    Something else may have left gradients behind before the call; they don't count.
    The loss of a batch is `F.cross_entropy(model(inputs), labels)`. The settings of `opt` stay as they are.
    What is in `.grad` after the call, and what is returned, is up to you.
    """
    ### BEGIN SOLUTION
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    ### END SOLUTION

# %%
check(train)

# %% [markdown]
# **The line that would have caught it:** one batch, twice, at a learning rate of 0; the gradient must not change.

# %% objective="pitfalls.gradients"
for trainer in (sick_train, passing(train)):
    model, norms = classifier(), []
    for _ in range(2):
        trainer(model, torch.optim.SGD(model.parameters(), lr=0), [(inputs, labels)])
        norms.append(round(model.head.weight.grad.norm().item(), 5))
    print(f"{trainer.__name__:10} same gradient twice:", norms[0] == norms[1])

# %% objective="pitfalls.gradients"
curve(losses_of(passing(train)))

# %% [markdown]
# ### Patient 7: two owners
#
# One body, two heads, two losses. "So two optimizers," somebody thought.

# %%
def sick_make_optimizers(body: nn.Module, head1: nn.Module, head2: nn.Module, lr: float) -> list[Optimizer]:
    return [torch.optim.SGD([*body.parameters(), *head.parameters()], lr) for head in (head1, head2)]

# %% objective="pitfalls.gradients"
body, head1, head2 = nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(3, 2)
first, second = sick_make_optimizers(body, head1, head2, lr=0.1)
owners = [sum(p is body.weight for group in opt.param_groups for p in group["params"]) for opt in (first, second)]
print("owners of body.weight:", sum(owners))

# %% [markdown]
# The body moves too fast, and nobody finds a learning rate that suits it.
#
# {{predict diagnose_owners}}

# %%
predict("diagnose_owners", "c")

# %% objective="pitfalls.gradients"
w = torch.ones((), requires_grad=True)
first, second = torch.optim.SGD([w], lr=0.1), torch.optim.SGD([w], lr=0.1)
(2 * w).backward()
(5 * w).backward()
first.step()
second.step()
print("gradient:", w.grad.item(), " w:", round(w.item(), 4))

# %% [markdown]
# Gradients *add*: 2 + 5 = 7. (Some lists of pitfalls say that they overwrite each other.)
# Then the sum is applied twice.
# Putting the body into two groups of one optimizer is no way out, and PyTorch says so:

# %% objective="pitfalls.gradients"
print(*messages_of(torch.optim.SGD, [{"params": [w]}, {"params": [w]}], 0.1))

# %% [markdown]
# The body learns with `lr`, the heads ten times as fast, and there is one owner.
#
# {{exercise make_optimizer}}

# %% exercise="make_optimizer"
def make_optimizer(body: nn.Module, head1: nn.Module, head2: nn.Module, lr: float) -> Optimizer:
    """Return one optimizer that owns every parameter of the three modules exactly once.

    Repair `sick_make_optimizers`. The body learns with the rate `lr`, both heads with `10 * lr`.
    No parameter belongs to two of the modules. The kind of optimizer is up to you.
    """
    ### BEGIN SOLUTION
    heads = [*head1.parameters(), *head2.parameters()]
    return torch.optim.AdamW([{"params": body.parameters()}, {"params": heads, "lr": 10 * lr}], lr=lr)
    ### END SOLUTION

# %%
check(make_optimizer)

# %% [markdown]
# **The line that would have caught it:** every parameter has exactly one owner.

# %% objective="pitfalls.gradients"
def owned_once(model: nn.Module, *opts: Optimizer) -> bool:
    """Whether the optimizers own each parameter of the model exactly once."""
    owned = sorted(id(p) for opt in opts for group in opt.param_groups for p in group["params"])
    return owned == sorted(id(p) for p in model.parameters())

# %% objective="pitfalls.gradients"
parts = nn.ModuleList([body, head1, head2])
print("sick: ", owned_once(parts, *sick_make_optimizers(body, head1, head2, 0.1)))
print("cured:", owned_once(parts, passing(make_optimizer)(body, head1, head2, 0.1)))

# %% [markdown]
# ### Patient 8: hands off the leaf
#
# A weight is to be moved by hand. This is refused:

# %%
def sick_shift_(w: Tensor, d: Tensor) -> Tensor:
    w.sub_(d)
    return w

# %% tags=["raises-exception"] objective="pitfalls.gradients"
weight = torch.tensor([1.0, -2.0], requires_grad=True)
sick_shift_(weight, torch.tensor([0.5, 0.5]))

# %% [markdown]
# "Avoid methods with an underscore on leaves," says the usual list. But optimizers write to leaves all day.
# The usual quick fix is `.data`, and it works, which is the problem.
#
# {{predict diagnose_leaf}}

# %%
predict("diagnose_leaf", "b")

# %% objective="pitfalls.gradients"
loss = (weight * weight).sum()  # its gradient is 2 w = [2, -4]
weight.data -= torch.tensor([0.5, 0.5])
loss.backward()
print("gradient:", weight.grad.tolist(), " version:", weight._version)

# %% [markdown]
# [1, -5] is the gradient of nothing that was ever computed.
# The version is still 0, so autograd could not notice.
#
# Write in place so that autograd accepts it, *and* still protects the graphs that need the old numbers.
#
# {{exercise shift_}}

# %% exercise="shift_"
def shift_(w: Tensor, d: Tensor) -> Tensor:
    """Subtract `d` from `w` in place, and return `w` itself.

    Repair `sick_shift_`. `w` is a leaf, which may require gradients and still does afterwards.
    The subtraction is not recorded. `d` broadcasts to the shape of `w`.
    A backward pass through a graph that was built before the call, and that needs the old `w`, still raises
    RuntimeError instead of using the new numbers.
    """
    ### BEGIN SOLUTION
    with torch.no_grad():
        w -= d
    return w
    ### END SOLUTION

# %%
check(shift_)

# %% [markdown]
# **The line that would have caught it:** the version counter must move with every write.

# %% objective="pitfalls.gradients"
weight = torch.tensor([1.0, -2.0], requires_grad=True)
loss = (weight * weight).sum()
passing(shift_)(weight, torch.tensor([0.5, 0.5]))
print("version:", weight._version, " backward says:", messages_of(loss.backward)[0][:96], "...")

# %% [markdown]
# ### Patient 9: the head that nobody owns
#
# A trained model gets a new head for a new task. The loop clears gradients, as it should.

# %%
def sick_finetune(model: nn.Module, opt: Optimizer) -> Optimizer:
    return opt  # built before the head was replaced

# %% objective="pitfalls.gradients"
torch.manual_seed(0)
model = classifier()
opt = sick_finetune(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
model.head = nn.Linear(5, 3)
before = model.head.weight.detach().clone()
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    opt.step()
    print(f"norm of the head's gradient: {model.head.weight.grad.norm():.2f}")

# %% [markdown]
# {{predict diagnose_head}}

# %%
predict("diagnose_head", "a")

# %% objective="pitfalls.gradients"
owned = [p for group in opt.param_groups for p in group["params"]]
print("opt owns the new head:", any(p is model.head.weight for p in owned))
print("the new head has moved:", not torch.equal(before, model.head.weight))

# %% [markdown]
# An optimizer holds parameter *objects*. Replacing a layer puts new objects into the model, and `opt` never hears of it.
# Clearing with the model's `zero_grad` would only calm the gradient; the head would still not move.
# And a fresh optimizer would forget the body's momentum.
#
# {{exercise finetune}}

# %% exercise="finetune"
def finetune(model: nn.Module, opt: Optimizer) -> Optimizer:
    """Return an optimizer that trains the whole model, after `model.head` was replaced by a new layer.

    Repair `sick_finetune`. `opt` (SGD with one group of parameters) was built before, and has made steps.
    The result owns every parameter of `model` exactly once; it may be `opt` itself.
    The body keeps its momentum, and all parameters have the settings of `opt`.
    Whether the old head stays in the optimizer is up to you.
    """
    ### BEGIN SOLUTION
    opt.add_param_group({"params": model.head.parameters()})
    return opt
    ### END SOLUTION

# %%
check(finetune)

# %% [markdown]
# **The line that would have caught it:** after one step, everything has moved.

# %% objective="pitfalls.gradients"
def moved_by_a_step(model: nn.Module, opt: Optimizer) -> dict[str, bool]:
    """Which parameters a step changes."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    passing(train)(model, opt, [(inputs, labels)])
    return {name: not torch.equal(before[name], p) for name, p in model.named_parameters()}

# %% objective="pitfalls.gradients"
for cure in (sick_finetune, passing(finetune)):
    model = classifier()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head = nn.Linear(5, 3)
    print(f"{cure.__name__:13}", moved_by_a_step(model, cure(model, opt)))

# %% [markdown]
# ### Patient 10: shown, and never minimized
#
# The log shows a main loss and an auxiliary loss, and their total. The auxiliary one never falls.

# %%
def sick_total_loss(main: Tensor, aux: Sequence[Tensor], weight: float) -> Tensor:
    return main + weight * torch.tensor(aux).sum()

# %% objective="pitfalls.gradients"
w = torch.tensor(3.0, requires_grad=True)
total = sick_total_loss((w - 1) ** 2, [10 * w], weight=1.0)
total.backward()
print("total:", total.item(), " gradient:", w.grad.item())

# %% [markdown]
# The total 4 + 30 is right. Its derivative is 2 · (3 - 1) + 10 = 14.
#
# {{predict diagnose_aux}}

# %%
predict("diagnose_aux", "b")

# %% objective="pitfalls.gradients"
print("10 * w       ", (10 * w).grad_fn is not None)
print("torch.tensor ", torch.tensor([10 * w]).grad_fn is not None)
print(*messages_of(torch.tensor, [10 * w]))

# %% [markdown]
# `torch.tensor` makes a new leaf from numbers. `detach()` and `.item()` would do the same, more openly.
#
# {{exercise total_loss}}

# %% exercise="total_loss"
def total_loss(main: Tensor, aux: Sequence[Tensor], weight: float) -> Tensor:
    """Return `main` plus `weight` times the sum of the auxiliary losses, as a tensor without dimensions.

    Repair `sick_total_loss`. `main` and the elements of `aux` are tensors without dimensions; `aux` may be empty.
    Gradients flow back through `main` and through every auxiliary loss. `main` is not changed.
    """
    ### BEGIN SOLUTION
    return main + weight * sum(aux)
    ### END SOLUTION

# %%
check(total_loss)

# %% [markdown]
# **The line that would have caught it:** a loss that counts has a gradient without the others.

# %% objective="pitfalls.gradients"
for combine in (sick_total_loss, passing(total_loss)):
    alone = combine(torch.zeros(()), [10 * w], 1.0)
    print(f"{combine.__name__:16} the auxiliary loss alone requires grad:", alone.requires_grad)

# %% [markdown]
# ### Patient 11: edited after the fact
#
# The forward pass is fine. The error comes much later, from `backward`, and names no line of yours.

# %%
def sick_masked_tanh(x: Tensor, blocked: Tensor) -> Tensor:
    y = torch.tanh(x)
    y[blocked] = 0
    return y

# %% tags=["raises-exception"] objective="pitfalls.gradients"
x = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
blocked = torch.tensor([False, True, False])
sick_masked_tanh(x, blocked).sum().backward()

# %% [markdown]
# Read it: a tensor, *output 0 of Tanh*, is at version 1, and version 0 was expected.
# Someone wrote into it once.
#
# {{predict diagnose_inplace}}

# %%
predict("diagnose_inplace", "a")

# %% objective="pitfalls.gradients"
y = x * 2
y[blocked] = 0
y.sum().backward()
print("x * 2, then the write:", x.grad.tolist())
print("tanh saves:", [name for name in dir(torch.tanh(x).grad_fn) if name.startswith("_saved")])

# %% [markdown]
# Whether a write is legal depends on what the operation *saved*.
# The product by 2 saved nothing; tanh saved its result.
# `y.data[blocked] = 0` would silence the alarm, and the blocked element would get the gradient 1.
#
# {{exercise masked_tanh}}

# %% exercise="masked_tanh"
def masked_tanh(x: Tensor, blocked: Tensor) -> Tensor:
    """Return the tanh of every element of `x`, and 0 where `blocked` is True.

    Repair `sick_masked_tanh`. `blocked` is a bool tensor of the shape of `x`. `x` holds finite numbers, and is
    not changed. Gradients flow back to `x`: 0 where blocked, those of tanh elsewhere.
    """
    ### BEGIN SOLUTION
    return torch.tanh(x).masked_fill(blocked, 0)
    ### END SOLUTION

# %%
check(masked_tanh)

# %% [markdown]
# **The line that would have caught it:** `gradcheck` compares the backward pass with finite differences.

# %% objective="pitfalls.gradients"
point = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
for f in (sick_masked_tanh, passing(masked_tanh)):
    said = messages_of(torch.autograd.gradcheck, f, (point, blocked))
    print(f"{f.__name__:17}", said[0][:75] if said else "gradcheck agrees")

# %% [markdown]
# ## Ward 3: loop and mode
#
# The loop is ten lines long, and each of them can stand in the wrong place.
#
# ### Patient 12: ask twice
#
# The score of a model depends on how often it was computed.

# %%
def sick_predict(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)

# %% objective="pitfalls.loop"
torch.manual_seed(0)
model = classifier(norm=True, dropout=0.5)
statistics = model.norm.running_mean.clone()
print(torch.equal(sick_predict(model, inputs), sick_predict(model, inputs)))

# %% [markdown]
# {{predict diagnose_mode}}

# %%
predict("diagnose_mode", "c")

# %% objective="pitfalls.loop"
print("statistics unchanged:", torch.equal(statistics, model.norm.running_mean))
print("batches counted:", model.norm.num_batches_tracked.item())
print("eval alone, requires grad:", model.eval()(inputs).requires_grad)

# %% [markdown]
# `eval()` is about behavior, `no_grad()` about recording. Prediction needs both, and then the way back.
#
# "The way back is `model.train()`." It switches *every* submodule on, also a norm layer that was frozen on purpose.
#
# {{exercise predict_batch}}

# %% exercise="predict_batch"
def predict_batch(model: nn.Module, x: Tensor) -> Tensor:
    """Return the output of `model` for `x`, as in evaluation.

    Repair `sick_predict`. Dropout is off, normalization uses its running statistics and leaves them alone.
    The result requires no gradients. Dropout keeps its rate for later.
    Afterwards every submodule is in the mode in which it was before: one may be in eval mode on purpose.
    """
    ### BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        out = model(x)
    for module, mode in modes:
        module.training = mode
    return out
    ### END SOLUTION

# %%
check(predict_batch)

# %% [markdown]
# **The line that would have caught it:** ask twice, and compare the model's state before and after.

# %% objective="pitfalls.loop"
for ask in (sick_predict, passing(predict_batch)):
    model = classifier(norm=True, dropout=0.5)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    repeats = torch.equal(ask(model, inputs), ask(model, inputs))
    kept = all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    print(f"{ask.__name__:14} repeats: {repeats}  state kept: {kept}  training: {model.training}")

# %% [markdown]
# ### Patient 13: the dropout that never sleeps
#
# `eval()` was called, the flag is down, and two calls still differ.

# %%
class SickNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(F.dropout(x, 0.5))

# %% objective="pitfalls.loop"
torch.manual_seed(0)
net, ones = SickNet().eval(), torch.ones(2, 8)
print("training:", net.training, " two calls equal:", torch.equal(net(ones), net(ones)))

# %% [markdown]
# {{predict diagnose_dropout}}

# %%
predict("diagnose_dropout", "a")

# %% objective="pitfalls.loop"
import inspect

print("F.dropout:", inspect.signature(F.dropout))
print("modules that eval() reaches:", [name for name, _ in net.named_modules() if name])

# %% [markdown]
# Taking the dropout out would calm the evaluation, too. It would also end its work in training.
#
# {{exercise Net}}

# %% exercise="Net"
class Net(nn.Module):
    """A linear layer with dropout on its input: (batch, 8) -> (batch, 3).

    Repair `SickNet`. The layer is `self.linear = nn.Linear(8, 3)`; nothing else has parameters.
    In training mode half of the inputs are dropped, the others doubled. `net.eval()` switches this off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        return self.linear(F.dropout(x, 0.5, training=self.training))
        ### END SOLUTION

# %%
check(Net)

# %% [markdown]
# **The line that would have caught it:** equal in eval, and *different* in training. The second half guards the feature.

# %% objective="pitfalls.loop"
for make in (SickNet, passing(Net)):
    net = make().eval()
    calm = torch.equal(net(ones), net(ones))
    net.train()
    print(f"{make.__name__:8} eval repeats: {calm}  training varies: {not torch.equal(net(ones), net(ones))}")

# %% [markdown]
# ### Patient 14: normalized by a handful
#
# Sixteen examples do not fit, so they come in four parts of four. Their gradients should add up to that of the whole.

# %%
def sick_accumulate(model: nn.Module, microbatches: Sequence[tuple[Tensor, Tensor]]) -> None:
    opt = torch.optim.SGD(model.parameters())
    opt.zero_grad()
    for inputs, labels in microbatches:
        loss = F.cross_entropy(model(inputs), labels) / len(microbatches)
        loss.backward()

# %% objective="pitfalls.loop"
def gradient_error(accumulate: Callable, model: nn.Module, parts: list) -> float:
    """How far the accumulated gradient is from that of the whole, by norm; the norm layers use running statistics."""
    accumulate(model, parts)
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    whole = classifier(norm=True)
    whole.load_state_dict(model.state_dict())
    whole.norm.eval()
    inputs, labels = (torch.cat(tensors) for tensors in zip(*parts))
    F.cross_entropy(whole(inputs), labels).backward()
    expected = torch.cat([p.grad.flatten() for p in whole.parameters()])
    return ((found - expected).norm() / expected.norm()).item()

# %% objective="pitfalls.loop"
torch.manual_seed(0)
model = classifier(norm=True)
parts = labelled_batches([4, 4, 4, 4], torch.Generator().manual_seed(1))
print("off by more than 10 %:", gradient_error(sick_accumulate, model, parts) > 0.1)
print("updates of the running statistics:", model.norm.num_batches_tracked.item())

# %% [markdown]
# {{predict diagnose_norm}}

# %%
predict("diagnose_norm", "b")

# %% objective="pitfalls.loop"
whole = torch.cat([inputs for inputs, _ in parts])
for mode in (True, False):
    model.norm.train(mode)
    alone = model(parts[0][0])  # four examples among themselves, then the same four among all
    print(f"norm.training = {mode!s:5} same output:", torch.allclose(alone, model(whole)[:4], atol=1e-6))

# %% [markdown]
# In training mode an example's output depends on its neighbors. So the parts compute another *function* than the whole,
# and no weighting can repair that. Is it always a disaster, as some lists say? And is `SyncBatchNorm` the cure, as others say?
# Let us measure against the whole batch, normalized by itself; an error of 0.1 is a tenth of the gradient's norm.

# %% objective="pitfalls.loop"
def error_of_parts(size: int, convert: Callable = lambda model: model) -> float:
    """How far the gradient of 64 examples in parts of `size` is from that of one part of 64."""
    torch.manual_seed(0)
    model = convert(classifier(norm=True))
    whole = labelled_batches([64], torch.Generator().manual_seed(3))[0]
    gradients = []
    for part_size in (64, size):
        sick_accumulate(model, list(zip(*(tensor.split(part_size) for tensor in whole))))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return ((gradients[1] - gradients[0]).norm() / gradients[0].norm()).item()

# %% objective="pitfalls.loop"
for size in (2, 8, 32):
    errors = error_of_parts(size), error_of_parts(size, nn.SyncBatchNorm.convert_sync_batchnorm)
    print(f"parts of {size:2}: {errors[0]:.1f}  with SyncBatchNorm: {errors[1]:.1f}")

# %% [markdown]
# The harm is normalizing by a handful: it shrinks as the parts grow.
# `SyncBatchNorm` joins *processes*, and there is one; `momentum=0` would keep the statistics and still normalize by the part.
#
# {{exercise accumulate}}

# %% exercise="accumulate"
def accumulate(model: nn.Module, microbatches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Leave in `.grad` the gradient of the mean loss over all examples of all micro-batches.

    Repair `sick_accumulate`. Micro-batches may differ in size; gradients from before don't count.
    `nn.BatchNorm1d` layers use their running statistics and leave them alone, and everything is in the mode in
    which it was before. All else works as in training: dropout stays on.
    Run the model once per micro-batch, in order. What is returned is up to you.
    """
    ### BEGIN SOLUTION
    total = sum(len(y) for _, y in microbatches)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d) and m.training]
    model.zero_grad()
    for norm in norms:
        norm.eval()
    for x, y in microbatches:
        (F.cross_entropy(model(x), y, reduction="sum") / total).backward()
    for norm in norms:
        norm.train()
    ### END SOLUTION

# %%
check(accumulate)

# %% [markdown]
# **The line that would have caught it:** the parts against the whole, with parts of *different* sizes.

# %% objective="pitfalls.loop"
unequal = labelled_batches([6, 4, 2], torch.Generator().manual_seed(1))
for accumulates in (sick_accumulate, passing(accumulate)):
    model = classifier(norm=True)
    equal = gradient_error(accumulates, model, unequal) < 1e-5
    print(f"{accumulates.__name__:16} equal: {equal}  statistics moved: {model.norm.num_batches_tracked.item()}")

# %% [markdown]
# ### Patient 15: a loss with a floor
#
# Accuracy is 100 %, and the loss stays at 0.55.

# %%
def sick_loss_from_logits(logits: Tensor, labels: Tensor) -> Tensor:
    probabilities = logits.softmax(dim=1)
    return F.cross_entropy(probabilities, labels)

# %% objective="pitfalls.loop"
certain = torch.tensor([[100.0, -100.0, -100.0]])
print(round(sick_loss_from_logits(certain, torch.tensor([0])).item(), 4))

# %% [markdown]
# {{predict diagnose_softmax}}

# %%
predict("diagnose_softmax", "c")

# %% objective="pitfalls.loop"
print("ln(e + 2) - 1 =", round(math.log(math.e + 2) - 1, 4))
naive = F.nll_loss(certain.softmax(dim=1).log(), torch.tensor([1]))
print("log of a softmax, for a wrong answer:", naive.item())

# %% [markdown]
# The lists say "unstable". The floor is the symptom here: ln(e + C - 1) - 1 for C classes tells you the bug by a number.
# The instability belongs to another cure, the logarithm of a softmax: it meets a probability that has rounded to 0.
#
# {{exercise loss_from_logits}}

# %% exercise="loss_from_logits"
def loss_from_logits(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of `logits` (batch, classes) and class numbers `y` (batch,).

    Repair `sick_loss_from_logits`. It approaches 0 for confident, right logits; it is finite for every finite
    input, also for logits of 200 and -200; and its gradient is that of the cross-entropy there, too.
    """
    ### BEGIN SOLUTION
    return F.cross_entropy(logits, y)
    ### END SOLUTION

# %%
check(loss_from_logits)

# %% [markdown]
# **The line that would have caught it:** confident and right costs nothing.

# %% objective="pitfalls.loop"
for loss in (sick_loss_from_logits, passing(loss_from_logits)):
    right, wrong = (loss(certain, torch.tensor([label])).item() for label in (0, 1))
    print(f"{loss.__name__:22} right: {right:.4f}  wrong: {wrong:.4f}")

# %% [markdown]
# ### Patient 16: the schedule that ran away
#
# The first epoch looks good. Then nothing moves any more.

# %%
def sick_run_epochs(model, opt, sched, batches, epochs):
    for _ in range(epochs):
        for inputs, labels in batches:
            opt.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            opt.step()
            sched.step()

# %% objective="pitfalls.loop"
def rates_of(run: Callable, epochs: int = 4) -> list[str]:
    """The learning rate of every optimizer step; 3 batches per epoch, a tenth every second epoch."""
    model, rates = classifier(), []
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    sched = StepLR(opt, step_size=2, gamma=0.1)
    opt.register_step_pre_hook(lambda opt, args, kwargs: rates.append(f"{opt.param_groups[0]['lr']:g}"))
    run(model, opt, sched, labelled_batches([4] * 3, torch.Generator().manual_seed(0)), epochs)
    return rates

# %% objective="pitfalls.loop"
print(*rates_of(sick_run_epochs))

# %% [markdown]
# {{predict diagnose_schedule}}

# %%
predict("diagnose_schedule", "b")

# %% objective="pitfalls.loop"
opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
sched = CosineAnnealingLR(opt, T_max=4)
seen = []
for _ in range(9):
    seen.append(round(opt.param_groups[0]["lr"], 2))
    opt.step()
    sched.step()
print(seen)

# %% [markdown]
# A cosine does not even stay low: after `T_max` calls it comes back up.
# Nothing in a scheduler knows what an epoch is.
#
# {{exercise run_epochs}}

# %% exercise="run_epochs"
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
    ### BEGIN SOLUTION
    for _ in range(epochs):
        for x, y in batches:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        sched.step()
    ### END SOLUTION

# %%
check(run_epochs)

# %% [markdown]
# **The line that would have caught it:** print the learning rate of every step of a short run, once.

# %% objective="pitfalls.loop"
print(*rates_of(passing(run_epochs)))

# %% [markdown]
# ### Patient 17: one bad batch
#
# Batches with a gradient that is not finite are skipped, as they should be. One of them comes, and it was the last step.

# %%
def sick_train_through_nan(model: nn.Module, opt: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> int:
    done = 0
    for inputs, labels in batches:
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            opt.step()
            opt.zero_grad()
            done += 1
    return done

# %% objective="pitfalls.loop"
def five_batches() -> list[tuple[Tensor, Tensor]]:
    """Five batches, the second of which holds a NaN."""
    batches = labelled_batches([4] * 5, torch.Generator().manual_seed(0))
    batches[1][0][0, 0] = float("nan")
    return batches

# %% objective="pitfalls.loop"
torch.manual_seed(0)
model = classifier()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
print("steps:", sick_train_through_nan(model, opt, five_batches()), "of 4 good batches")

# %% [markdown]
# {{predict diagnose_nan}}

# %%
predict("diagnose_nan", "a")

# %% objective="pitfalls.loop"
print("weights finite:  ", all(p.isfinite().all().item() for p in model.parameters()))
print("gradients finite:", all(p.grad.isfinite().all().item() for p in model.parameters()))
zero = torch.zeros((), requires_grad=True)
zero.sqrt().backward()
print("sqrt(0) =", zero.sqrt().item(), " its derivative:", zero.grad.item())

# %% [markdown]
# The step was skipped and the gradient was kept.
# Taking the check out, or writing numbers over the NaN, gives the batch a say that it was not to have.
# And a finite *loss* proves nothing, as the square root shows.
#
# {{exercise train_through_nan}}

# %% exercise="train_through_nan"
def train_through_nan(model: nn.Module, opt: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> int:
    """Take one optimizer step on each batch whose gradient is finite; return the number of steps.

    Repair `sick_train_through_nan`. A batch whose gradient has an infinity or a NaN anywhere changes nothing:
    no weight, no momentum, no later step. Its loss may be finite all the same.
    Every parameter of `model` gets a gradient from every batch.
    """
    ### BEGIN SOLUTION
    updates = 0
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if all(p.grad.isfinite().all() for p in model.parameters()):
            opt.step()
            updates += 1
    return updates
    ### END SOLUTION

# %%
check(train_through_nan)

# %% [markdown]
# **The line that would have caught it:** put one NaN into a run of five batches, and count the steps.

# %% objective="pitfalls.loop"
for trainer in (sick_train_through_nan, passing(train_through_nan)):
    model = classifier()
    print(f"{trainer.__name__:22}", trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), five_batches()) == 4)

# %% [markdown]
# ## Ward 4: data and randomness
#
# ### Patient 18: a seed that decides too little
#
# Both programs call the same function with the same seed. One of them draws a random number before it trains.

# %%
def sick_build(seed: int) -> tuple[nn.Module, DataLoader]:
    torch.random.manual_seed(seed)
    net = nn.Linear(4, 2)
    return net, DataLoader(torch.arange(32), batch_size=8, shuffle=True)

# %% objective="pitfalls.data"
def first_batch(make: Callable, seed: int, draws: int = 0) -> list[int]:
    """The first batch of a run that draws `draws` random numbers between building and training."""
    _, loader = make(seed)
    torch.rand(draws)
    return next(iter(loader)).tolist()

# %% objective="pitfalls.data"
print(first_batch(sick_build, seed=0))
print(first_batch(sick_build, seed=0, draws=1))

# %% [markdown]
# {{predict diagnose_seed}}

# %%
predict("diagnose_seed", "c")

# %% objective="pitfalls.data"
state = torch.get_rng_state()
loader = DataLoader(torch.arange(32), batch_size=8)  # not even shuffled
print("making a loader draws:   ", not torch.equal(state, torch.get_rng_state()))
_ = iter(loader)
print("iterating a loader draws:", not torch.equal(state, torch.get_rng_state()))
print("a fresh Generator starts from", torch.Generator().initial_seed())

# %% [markdown]
# Even a loader that does not shuffle draws, so a validation pass in between changes the training order.
# A generator of the loader's own is the cure, *seeded*: a fresh one always starts from that same constant.
#
# `sick_build` has a second illness: it seeds the whole program. `torch.random.fork_rng()` puts the state back.
# And it seeds less than people think, PyTorch alone:

# %% objective="pitfalls.data"
torch.random.manual_seed(0)
first = random.random(), np.random.rand()
torch.random.manual_seed(0)
print("random repeats:", first[0] == random.random(), " NumPy repeats:", first[1] == np.random.rand())

# %% [markdown]
# {{exercise build}}

# %% exercise="build"
def build(seed: int) -> tuple[nn.Module, DataLoader]:
    """Return `(model, loader)`, both decided by `seed` alone.

    Repair `sick_build`. `model` is an `nn.Linear(4, 2)`.
    `loader` yields the numbers 0 to 31 in batches of 8, shuffled anew in every epoch.
    The same seed gives the same weights and the same order of the first epoch, whatever else draws random
    numbers before, between or after; another seed gives others.
    The global random state is left as it was (`torch.random.fork_rng()` puts it back).
    """
    ### BEGIN SOLUTION
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Linear(4, 2)
    order = torch.Generator().manual_seed(seed)
    return model, DataLoader(torch.arange(32), batch_size=8, shuffle=True, generator=order)
    ### END SOLUTION

# %%
check(build)

# %% [markdown]
# **The line that would have caught it:** the same seed with noise in between is equal; another seed is not.

# %% objective="pitfalls.data"
for make in (sick_build, passing(build)):
    plain, noisy, other = first_batch(make, 0), first_batch(make, 0, draws=1), first_batch(make, 1)
    print(f"{make.__name__:10} immune to noise: {plain == noisy}  seeds differ: {plain != other}")

# %% [markdown]
# ### Patient 19: workers that can't be hired
#
# It runs on the author's machine. On a colleague's laptop it does not even start.

# %%
def sick_make_loader(ds: Dataset) -> DataLoader:
    return DataLoader(ds, batch_size=4, num_workers=8, collate_fn=lambda items: torch.stack(items).float() / 255)

# %% objective="pitfalls.data"
loader = sick_make_loader(Pixels(8))
try:
    pickle.dumps(loader.collate_fn)
except (AttributeError, pickle.PicklingError):
    print("this loader's collate function can't be sent to a worker")

# %% [markdown]
# Where workers start as fresh processes, this is what happens to everything that they need.
# Here is the same function with a name:

# %%
def scaled_batch(items: list[Tensor]) -> Tensor:
    """Collate uint8 tensors into one float32 batch between 0 and 1. At the top level, so workers can find it."""
    return torch.stack(items).float() / 255

# %% [markdown]
# {{predict diagnose_workers}}

# %%
predict("diagnose_workers", "b")

# %% objective="pitfalls.data"
print("lambda:      ", loader.collate_fn.__qualname__)
print("scaled_batch:", scaled_batch.__qualname__, " pickled:", len(pickle.dumps(scaled_batch)) < 100, "(a name)")
print("workers:", loader.num_workers, " persistent:", loader.persistent_workers)

# %% [markdown]
# The other two findings: eight workers, whatever the machine has (PyTorch warns where that is too many),
# and all of them dismissed after each epoch.
#
# "So zero workers, and no trouble?" Measure it: for small, fast data that may well be the fastest.
# Here we suppose that loading is slow, and that someone has to do it.
#
# {{exercise make_loader}}

# %% exercise="make_loader"
def make_loader(ds: Dataset) -> DataLoader:
    """Return a loader of batches of 4, in order, collated by `scaled_batch` or in the same way.

    Repair `sick_make_loader`. `ds` yields uint8 tensors of shape (3,).
    There is at least one worker process, and no more of them than the machine has cores (`os.cpu_count()`).
    The workers stay alive between epochs.
    What is handed to them has a name at the top level of the notebook: no lambda, no function inside another.
    """
    ### BEGIN SOLUTION
    n_workers = min(2, os.cpu_count() or 1)
    return DataLoader(
        ds, batch_size=4, num_workers=n_workers, persistent_workers=True, collate_fn=scaled_batch
    )
    ### END SOLUTION

# %%
check(make_loader)

# %% [markdown]
# **The line that would have caught it:** pickle what the workers get.

# %% objective="pitfalls.data"
for make in (sick_make_loader, passing(make_loader)):
    loader = make(Pixels(8))
    print(f"{make.__name__:16} can be sent: {not messages_of(pickle.dumps, (loader.dataset, loader.collate_fn))}")
print("the workers fit:", 1 <= loader.num_workers <= (os.cpu_count() or 1))

# %% [markdown]
# ### Patient 20: the data set that drifts
#
# The first epoch trains as it should. The second starts from worse numbers, and the third from still worse ones.

# %%
def sick_standardize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    x -= mean
    x /= std
    return x

# %% objective="pitfalls.data"
rows = torch.tensor([[10.0], [20.0], [30.0]])
mean, std = torch.tensor([20.0]), torch.tensor([10.0])
for epoch in range(3):
    print("epoch", epoch, [round(value, 3) for value in sick_standardize(rows[:], mean, std).flatten().tolist()])

# %% [markdown]
# Every line should read -1, 0, 1.
#
# {{predict diagnose_drift}}

# %%
predict("diagnose_drift", "a")

# %% objective="pitfalls.data"
rows = torch.tensor([[10.0], [20.0], [30.0]])
batch = rows[:]
_ = sick_standardize(batch, mean, std)
print("the data set:", rows.flatten().tolist(), " same storage:", batch.data_ptr() == rows.data_ptr())

# %% [markdown]
# A slice is a view (notebook 01), and `-=` writes through it.
# In a module's `forward`, the same line edits the batch under the feet of whoever else reads it.
#
# {{exercise standardize}}

# %% exercise="standardize"
def standardize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return `(x - mean) / std`: (batch, dim) -> (batch, dim).

    Repair `sick_standardize`. `mean` and `std` have the shape (dim,), and no element of `std` is 0.
    They belong to the whole training set; `x` is one batch, which is used again in the next epoch.
    """
    ### BEGIN SOLUTION
    return (x - mean) / std
    ### END SOLUTION

# %%
check(standardize)

# %% [markdown]
# **The line that would have caught it:** the version counter of the input.

# %% objective="pitfalls.data"
for f in (sick_standardize, passing(standardize)):
    batch = torch.tensor([[10.0], [20.0], [30.0]])
    f(batch, mean, std)
    print(f"{f.__name__:17} writes to its input: {batch._version}")

# %% [markdown]
# ### Patient 21: the preview that freezes the training
#
# After each epoch a picture is generated from fixed noise, so that pictures can be compared. A good idea.

# %%
def sick_preview_noise(shape: tuple[int, ...], seed: int) -> Tensor:
    torch.random.manual_seed(seed)
    return torch.randn(shape)

# %% objective="pitfalls.data"
def numbers_per_epoch(preview: Callable, epochs: int = 3) -> list[float]:
    """One random number that the training draws in each epoch, with a preview after each."""
    torch.random.manual_seed(5)
    drawn = []
    for _ in range(epochs):
        drawn.append(round(torch.rand(1).item(), 3))
        preview((2,), 0)
    return drawn

# %% objective="pitfalls.data"
numbers_per_epoch(sick_preview_noise)

# %% [markdown]
# From the second epoch on, the training draws the same numbers: the same dropout masks, the same order.
#
# {{predict diagnose_preview}}

# %%
predict("diagnose_preview", "b")

# %% objective="pitfalls.data"
torch.random.manual_seed(5)
state = torch.get_rng_state()
_ = sick_preview_noise((2,), 0)
print("global state kept:", torch.equal(state, torch.get_rng_state()))

# %% [markdown]
# Taking the seed out would free the training, and the pictures could not be compared any more.
#
# {{exercise preview_noise}}

# %% exercise="preview_noise"
def preview_noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return standard normal noise of this shape, decided by `seed` alone.

    Repair `sick_preview_noise`. The same seed gives the same noise on every call, another seed gives other noise.
    The global random state is neither used nor changed.
    """
    ### BEGIN SOLUTION
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    ### END SOLUTION

# %%
check(preview_noise)

# %% [markdown]
# **The line that would have caught it:** the global state, before and after anything that is not training.

# %% objective="pitfalls.data"
print(numbers_per_epoch(passing(preview_noise)))

# %% [markdown]
# ## Ward 5: memory and syncs
#
# ### Patient 22: asking after every step
#
# The utilization of the GPU is a saw-tooth. Without a GPU we count instead: how often does the host read a value?

# %%
def sick_train_and_average(model: nn.Module, opt: Optimizer, batches: Iterable) -> float:
    total, steps = 0.0, 0
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        total, steps = total + loss.item(), steps + 1
    return total / steps

# %% objective="pitfalls.memory"
def reads_of(trainer: Callable, n_batches: int = 20) -> int:
    """How often the host reads a number from a tensor while `trainer` runs."""
    model = classifier()
    batches = labelled_batches([4] * n_batches, torch.Generator().manual_seed(0))
    with OpRecorder() as recorder:
        trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
    return recorder.ops.count("aten._local_scalar_dense.default")

# %% [markdown]
# {{predict diagnose_sync}}

# %%
predict("diagnose_sync", "c")

# %% objective="pitfalls.memory"
print("reads in 20 steps:", reads_of(sick_train_and_average))
for name, read in {"float": float, "f-string": "{:.2f}".format, "if": bool}.items():
    with OpRecorder() as recorder:
        read(torch.ones(()))
    print(f"{name:8} reads:", recorder.ops.count("aten._local_scalar_dense.default"))

# %% [markdown]
# One operator, `_local_scalar_dense`, is behind all of them.
# On a GPU each is a wait: the host can't hand over new work meanwhile. (Said from the documentation, not measured here.)
#
# "So I sum the loss tensors." With their graphs? That trades a wait for a leak, which is patient 24.
#
# {{exercise train_and_average}}

# %% exercise="train_and_average"
def train_and_average(model: nn.Module, opt: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Take one step on each batch, in order, and return the mean of the batch losses as a Python float.

    Repair `sick_train_and_average`. The host reads a value from the device once in the whole call.
    No graph outlives its step. Every batch counts the same, whatever its size; there is at least one.
    """
    ### BEGIN SOLUTION
    losses = []
    for x, y in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()
    ### END SOLUTION

# %%
check(train_and_average)

# %% [markdown]
# **The line that would have caught it:** count the reads. (On a CUDA machine `torch.cuda.set_sync_debug_mode` does it for you.)

# %% objective="pitfalls.memory"
print("reads in 20 steps:", reads_of(passing(train_and_average)))

# %% [markdown]
# A read every hundred steps, for a progress bar, is fine.
# And a warning about the number itself: the mean of batch means gives a small last batch a full vote.

# %% objective="pitfalls.memory"
per_example = torch.tensor([0.0, 0.0, 0.0, 0.0, 10.0])
means = [part.mean() for part in per_example.split(4)]
print("mean of the means:", torch.stack(means).mean().item(), " mean:", per_example.mean().item())

# %% [markdown]
# If the sizes differ and it matters, weigh by size.
#
# ### Patient 23: half of a fast copy
#
# "Transfers are asynchronous," says the comment. A recorder notes the moves, and sends those to CUDA to `meta`.

# %%
def sick_make_batches(ds: Dataset, device) -> tuple[DataLoader, list]:
    loader = DataLoader(ds, batch_size=16)
    return loader, [[tensor.to(device, non_blocking=True) for tensor in batch] for batch in loader]

# %% objective="pitfalls.memory"
ds = torch.utils.data.TensorDataset(torch.randn(20, 4))
with MoveRecorder() as recorder:
    loader, moved = sick_make_batches(ds, "cuda")
for name, device, non_blocking in recorder.moves:
    print(name, device, "non_blocking:", non_blocking)

# %% [markdown]
# > **What PyTorch's documentation says a copy to a GPU needs, to be asynchronous for the host:**
# > a source in pinned memory, and a request not to wait. Either one alone waits. (Not measured here.)
#
# {{predict diagnose_pin}}

# %%
predict("diagnose_pin", "a")

# %% objective="pitfalls.memory"
print("the loader pins:", loader.pin_memory)
print("the batch is pinned:", next(iter(loader))[0].is_pinned())
print("to() waits unless told otherwise:", "non_blocking=False" in torch.Tensor.to.__doc__)

# %% [markdown]
# "Then I call `batch.pin_memory()` in the loop." That is one more copy, made by the process that was not to wait.
# And none of it overlaps with the GPU's work by itself; it frees the *host*.
#
# {{exercise make_batches}}

# %% exercise="make_batches"
def make_batches(ds: Dataset, device: torch.device | str) -> tuple[DataLoader, list[list[Tensor]]]:
    """Return `(loader, batches)`: a loader of batches of 16, in order, and all its batches on `device`.

    Repair `sick_make_batches`. `ds` yields tuples of tensors, so that a batch is a list of tensors.
    The loader pins its batches, and no move makes the host wait.
    Go through the loader once, and move each tensor once.
    """
    ### BEGIN SOLUTION
    loader = DataLoader(ds, batch_size=16, pin_memory=True)
    return loader, [[t.to(device, non_blocking=True) for t in batch] for batch in loader]
    ### END SOLUTION

# %%
check(make_batches)

# %% [markdown]
# **The line that would have caught it:** both halves, in one assertion.

# %% objective="pitfalls.memory"
for make in (sick_make_batches, passing(make_batches)):
    with MoveRecorder() as recorder:
        loader, _ = make(ds, "cuda")
    print(f"{make.__name__:17}", loader.pin_memory and all(non_blocking for *_, non_blocking in recorder.moves))

# %% [markdown]
# ### Patient 24: the mean that remembers everything
#
# Memory grows a little with every step, and after some hours the run dies.

# %%
def sick_running_mean(losses: Iterable[Tensor]) -> Tensor:
    total, steps = 0, 0
    for loss in losses:
        total += loss
        steps += 1
    return total / steps

# %% objective="pitfalls.memory"
def training(watch: GraphWatch, steps: int = 20) -> Iterable[Tensor]:
    """A training loop that yields its losses; `watch` counts the graphs that are still alive."""
    weight = torch.ones((), requires_grad=True)
    for step in range(steps):
        loss = watch.mark(weight * step)
        loss.backward()
        yield loss
        del loss

# %% objective="pitfalls.memory"
watch = GraphWatch()
mean = sick_running_mean(training(watch))
print("mean:", mean.item(), " graphs alive:", watch.alive())

# %% [markdown]
# {{predict diagnose_leak}}

# %%
predict("diagnose_leak", "b")

# %% objective="pitfalls.memory"
print("mean.grad_fn:", mean.grad_fn.name(), "<-", mean.grad_fn.next_functions[0][0].name())
watch = GraphWatch()
numbers = [loss.item() for loss in training(watch)]
print("with .item() graphs alive:", watch.alive())

# %% [markdown]
# Nothing hangs, and `.item()` is not the leak: it is one of the cures, at the price of a wait per step.
#
# {{exercise running_mean_loss}}

# %% exercise="running_mean_loss"
def running_mean_loss(losses: Iterable[Tensor]) -> Tensor | float:
    """Return the mean of the losses, as a float or as a tensor that is in no graph.

    Repair `sick_running_mean`. `losses` yields one tensor without dimensions per training step, at least one.
    It may be a generator that trains while you consume it: leave the grad mode on around it.
    No more than the graph of the latest loss is kept alive.
    """
    ### BEGIN SOLUTION
    total, count = 0.0, 0
    for loss in losses:
        total = total + loss.detach()
        count += 1
    return total / count
    ### END SOLUTION

# %%
check(running_mean_loss)

# %% [markdown]
# **The line that would have caught it:** whatever you log has no `grad_fn`.

# %% objective="pitfalls.memory"
for average in (sick_running_mean, passing(running_mean_loss)):
    watch = GraphWatch()
    mean = average(training(watch))
    print(f"{average.__name__:18} no grad_fn: {getattr(mean, 'grad_fn', None) is None}  graphs alive: {watch.alive()}")

# %% [markdown]
# ### Patient 25: the block that learns nothing
#
# To save memory, a block is checkpointed: its activations are recomputed in the backward pass.
# The embedding before it is frozen.

# %%
def sick_run_checkpointed(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=True)

# %% objective="pitfalls.memory"
torch.manual_seed(0)
block, frozen = CountingBlock(), torch.randn(2, 4)
out = sick_run_checkpointed(block, frozen)
print("weights require grad:", block.linear.weight.requires_grad, " output requires grad:", out.requires_grad)

# %% [markdown]
# {{predict diagnose_checkpoint}}

# %%
predict("diagnose_checkpoint", "a")

# %% objective="pitfalls.memory"
print(*messages_of(sick_run_checkpointed, block, frozen))
asking = frozen.clone().requires_grad_()
print("with an input that requires grad:", sick_run_checkpointed(block, asking).requires_grad)

# %% [markdown]
# A warning, and a block that is dead. Calling the block directly would bring it back to life, and all its activations with it.
#
# {{exercise run_checkpointed}}

# %% exercise="run_checkpointed"
def run_checkpointed(block: nn.Module, x: Tensor) -> Tensor:
    """Return `block(x)`, with the block's activations recomputed in the backward pass instead of kept.

    Repair `sick_run_checkpointed`. `x` may or may not require gradients, and stays as it is.
    Gradients reach the parameters of `block` either way, and `x` where it requires them.
    They are those of `block(x)`: dropout in the block draws the same mask again.
    """
    ### BEGIN SOLUTION
    return checkpoint(block, x, use_reentrant=False)
    ### END SOLUTION

# %%
check(run_checkpointed)

# %% [markdown]
# **The line that would have caught it:** every parameter has a gradient, *and* the block runs twice.

# %% objective="pitfalls.memory"
for run in (sick_run_checkpointed, passing(run_checkpointed)):
    block = CountingBlock()
    _ = messages_of(lambda run, block: run(block, frozen).sum().backward(), run, block)
    gradients = all(p.grad is not None for p in block.parameters())
    print(f"{run.__name__:21} gradients: {gradients!s:5}  runs of the block: {block.calls}")

# %% [markdown]
# ### Patient 26: numbers that are too good
#
# A new kernel is a hundred times as fast, says the benchmark. The device here is simulated: its clock is a variable.

# %%
def sick_seconds(work: Callable, device) -> float:
    began = device.clock()
    work()
    return device.clock() - began

# %% objective="pitfalls.memory"
gpu = SimulatedGPU()
half_a_second = partial(gpu.launch, 0.5)
print(sick_seconds(half_a_second, gpu), "seconds")

# %% [markdown]
# {{predict diagnose_clock}}

# %%
predict("diagnose_clock", "c")

# %% objective="pitfalls.memory"
print("simulated time, now:         ", gpu.clock())
gpu.synchronize()
print("when the device has finished:", gpu.clock())

# %% [markdown]
# A real GPU behaves alike: a call returns when its work is queued. (Said from the documentation, not measured here.)
# And what was in the queue before must not count either.
#
# {{exercise seconds_on_device}}

# %% exercise="seconds_on_device"
def seconds_on_device(work: Callable[[], Any], device: Any) -> float:
    """Return the seconds from the start of `work()` until the device has done what it launched.

    Repair `sick_seconds`. The method `synchronize` of `device` waits until the device has nothing left to do,
    and its method `clock` returns the time on the host, in seconds.
    The device may still be busy with earlier work, which does not count. `work` runs once.
    """
    ### BEGIN SOLUTION
    device.synchronize()
    start = device.clock()
    work()
    device.synchronize()
    return device.clock() - start
    ### END SOLUTION

# %%
check(seconds_on_device)

# %% [markdown]
# **The line that would have caught it:** twice the work takes about twice the time.

# %% objective="pitfalls.memory"
for seconds in (sick_seconds, passing(seconds_on_device)):
    gpu = SimulatedGPU()
    gpu.launch(2.0)  # something that is still running
    once, twice = (seconds(partial(gpu.launch, length), gpu) for length in (0.5, 1.0))
    print(f"{seconds.__name__:18} {once:.3f} {twice:.3f}")

# %% [markdown]
# ## Ward 6: precision
#
# ### Patient 27: half precision on paper
#
# The configuration says bfloat16. The training is as slow as ever.

# %%
def sick_amp_config(device, bf16_ok: bool) -> tuple[str, torch.dtype, bool]:
    return "cuda", torch.bfloat16 if bf16_ok else torch.float16, True

# %% objective="pitfalls.precision"
device_type, dtype, use_scaler = sick_amp_config("cpu", bf16_ok=True)
with torch.autocast(device_type, dtype):
    product = torch.ones(2, 2) @ torch.ones(2, 2)
print(product.dtype)

# %% [markdown]
# What you see here is a machine whose tensors are on the CPU.
#
# {{predict diagnose_amp}}

# %%
predict("diagnose_amp", "b")

# %% objective="pitfalls.precision"
with torch.autocast("cpu", torch.bfloat16):
    print("autocast for the CPU:", (torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
tiny = torch.tensor(1e-8)
print("1e-8 in float16:", tiny.half().item(), " in bfloat16:", f"{tiny.bfloat16().item():.2e}")

# %% [markdown]
# The table has three rows. The CPU does bfloat16. A GPU does bfloat16 if it can; then no scaler is needed,
# since 1e-8 survives. Else it does float16, where small gradients vanish unless the loss is scaled.
#
# {{exercise amp_config}}

# %% exercise="amp_config"
def amp_config(device: torch.device | str, bf16_ok: bool) -> tuple[str, torch.dtype, bool]:
    """Return `(device_type, dtype, use_scaler)` for `torch.autocast` and `torch.amp.GradScaler`.

    Repair `sick_amp_config`. `device` is the CPU or the GPU "cuda", as a string or a `torch.device`.
    On the CPU the dtype is bfloat16, whatever `bf16_ok` says. On the GPU it is bfloat16 where `bf16_ok` says that
    the card has it, else float16. A scaler is used for float16 only.
    """
    ### BEGIN SOLUTION
    if torch.device(device).type == "cpu":
        return "cpu", torch.bfloat16, False
    return ("cuda", torch.bfloat16, False) if bf16_ok else ("cuda", torch.float16, True)
    ### END SOLUTION

# %%
check(amp_config)

# %% [markdown]
# **The line that would have caught it:** look at a dtype inside, not at the configuration.

# %% objective="pitfalls.precision"
for configure in (sick_amp_config, passing(amp_config)):
    device_type, dtype, _ = configure("cpu", True)
    with torch.autocast(device_type, dtype):
        print(f"{configure.__name__:16}", (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype)

# %% [markdown]
# ### Patient 28: minus one billion does not fit
#
# A causal mask that has worked for years meets half precision.

# %%
def sick_mask_scores(scores: Tensor, blocked: Tensor) -> Tensor:
    return scores.masked_fill(blocked, -1e9)

# %% tags=["raises-exception"] objective="pitfalls.precision"
scores, blocked = torch.zeros(2, 2).half(), torch.tensor([[False, True], [False, False]])
sick_mask_scores(scores, blocked)

# %% [markdown]
# {{predict diagnose_overflow}}

# %%
predict("diagnose_overflow", "a")

# %% objective="pitfalls.precision"
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    print(f"{dtype!s:15} lowest: {torch.finfo(dtype).min:.4g}")

# %% [markdown]
# "So -1e4." It fits, and it is not below every score. "So float32." Then half precision is gone from here on.
#
# {{exercise mask_scores}}

# %% exercise="mask_scores"
def mask_scores(scores: Tensor, blocked: Tensor) -> Tensor:
    """Return `scores` with a number so low where `blocked` is True that softmax gives exactly 0 there.

    Repair `sick_mask_scores`. It works for float32, float16 and bfloat16, and the dtype stays.
    `blocked` is a bool tensor that broadcasts to the shape of `scores`. Not all of a row is blocked.
    The scores are finite, above half of the lowest number of their dtype, and not changed.
    """
    ### BEGIN SOLUTION
    return scores.masked_fill(blocked, float("-inf"))
    ### END SOLUTION

# %%
check(mask_scores)

# %% [markdown]
# **The line that would have caught it:** all dtypes that the code will ever meet, in one loop.

# %% objective="pitfalls.precision"
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    weights = passing(mask_scores)(scores.to(dtype), blocked).softmax(dim=-1)
    print(f"{dtype!s:15}", weights.dtype is dtype, weights.tolist())

# %% [markdown]
# ## Ward 7: saving
#
# ### Patient 29: the run that comes back younger
#
# A run is stopped and resumed. The curve has a bump at that place.

# %%
class SickRunFile:
    def __init__(self, path):
        self.path = path

    def save(self, model, opt, sched):
        torch.save(model.state_dict(), self.path)

    def load(self, model, opt, sched):
        model.load_state_dict(torch.load(self.path))

# %% objective="pitfalls.saving"
def new_run() -> tuple:
    """A model, an optimizer with momentum and a schedule, always the same."""
    torch.random.manual_seed(0)
    model = classifier()
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return model, opt, CosineAnnealingLR(opt, T_max=6)

# %% [markdown]
# Three steps, a stop, three more; beside it, the run that nobody stopped.

# %% objective="pitfalls.saving"
def steps_of(run: tuple, n_steps: int) -> list[float]:
    """Losses of some steps on one batch."""
    model, opt, sched = run
    losses = []
    for _ in range(n_steps):
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        sched.step()
        losses.append(round(loss.item(), 4))
    return losses

# %% objective="pitfalls.saving"
def with_a_stop(file_class: type) -> list[float]:
    """Six steps, with a stop after the third: the losses of the last three."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.pt")
        run, fresh = new_run(), new_run()
        steps_of(run, 3)
        file_class(path).save(*run)
        file_class(path).load(*fresh)
        return steps_of(fresh, 3)

# %% objective="pitfalls.saving"
print("uninterrupted:", steps_of(new_run(), 6)[3:])
print("resumed:      ", with_a_stop(SickRunFile))

# %% [markdown]
# {{predict diagnose_resume}}

# %%
predict("diagnose_resume", "c")

# %% objective="pitfalls.saving"
model, opt, sched = new_run()
_ = steps_of((model, opt, sched), 3)
print("state of the optimizer:", list(opt.state[model.head.weight]))
print("learning rate:", round(opt.param_groups[0]["lr"], 4), "after", sched.last_epoch, "steps of the schedule")

# %% [markdown]
# The first loss agrees, since the weights do. Then the missing momentum and the younger learning rate show.
#
# This run draws nothing at random. Yours does, so its random states belong into the file too (notebook 05).
#
# {{exercise RunFile}}

# %% exercise="RunFile"
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
        ### BEGIN SOLUTION
        run = {"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}
        torch.save(run, self.path)
        ### END SOLUTION

    def load(self, model: nn.Module, opt: Optimizer, sched: LRScheduler) -> None:
        ### BEGIN SOLUTION
        run = torch.load(self.path, weights_only=True)
        model.load_state_dict(run["model"])
        opt.load_state_dict(run["opt"])
        sched.load_state_dict(run["sched"])
        ### END SOLUTION

# %%
check(RunFile)

# %% [markdown]
# **The line that would have caught it:** with and without a stop, bit for bit.

# %% objective="pitfalls.saving"
for file_class in (SickRunFile, passing(RunFile)):
    print(f"{file_class.__name__:11}", with_a_stop(file_class) == steps_of(new_run(), 6)[3:])

# %% [markdown]
# ### Patient 30: a tie that comes undone
#
# A small language model uses one matrix twice, as embedding and as head. It gets pretrained embeddings, and trains badly.

# %%
def sick_load_embedding(model: nn.Module, weights: Tensor) -> None:
    model.emb.weight = nn.Parameter(weights.clone())

# %% objective="pitfalls.saving"
model, weights = Tied(vocab=4, dim=3), torch.arange(12.0).view(4, 3)
print("one matrix before:", model.head.weight is model.emb.weight)
sick_load_embedding(model, weights)
print("one matrix after: ", model.head.weight is model.emb.weight)

# %% [markdown]
# {{predict diagnose_tie}}

# %%
predict("diagnose_tie", "b")

# %% objective="pitfalls.saving"
print("parameters:", sum(p.numel() for p in model.parameters()), " before:", Tied(4, 3).emb.weight.numel())
states = {"emb.weight": weights, "head.weight": weights}
model = Tied(4, 3)
model.load_state_dict(states, assign=True)
print("load_state_dict(assign=True) keeps the tie:", model.head.weight is model.emb.weight)

# %% [markdown]
# Sharing is a property of *objects*. An assignment gives one name a new object; the other name, and the optimizer, keep the old one.
#
# {{exercise load_embedding}}

# %% exercise="load_embedding"
def load_embedding(model: nn.Module, weights: Tensor) -> None:
    """Put a copy of `weights` into `model.emb`, an `nn.Embedding` that shares its weight with `model.head`.

    Repair `sick_load_embedding`. `weights` has the shape (vocab, dim) of `model.emb.weight`, and is not changed.
    Afterwards the two layers still share one parameter, which requires gradients, has a storage of its own,
    and belongs to the optimizers that owned it before. What is returned is up to you.
    """
    ### BEGIN SOLUTION
    with torch.no_grad():
        model.emb.weight.copy_(weights)
    ### END SOLUTION

# %%
check(load_embedding)

# %% [markdown]
# **The line that would have caught it:** the count of parameters, before and after.

# %% objective="pitfalls.saving"
for load in (sick_load_embedding, passing(load_embedding)):
    model = Tied(4, 3)
    load(model, weights)
    print(f"{load.__name__:20}", sum(p.numel() for p in model.parameters()) == 12)

# %% [markdown]
# ## The answer
#
# > How do you get from the symptom to the line, and how do you know that the line was all?
#
# By a **probe**: an input whose answer you know. Perfect predictions cost 0; a blocked step changes nothing; a batch of NaN changes
# nothing; the parts equal the whole; the same call gives the same answer.
# Each of the thirty lines is one of these, and it costs less than an hour of looking at curves.
#
# And a repair is proved by two probes, not by one: the symptom is gone, and the *feature* still works.
# Dropout still drops in training, the schedule still falls, the block is still recomputed, the seed still decides.

# %% [markdown]
# ## Thirty lines
#
# | | the check |
# |---|---|
# | 1 | `loss(y.view(-1, 1), y) == 0`: perfect predictions cost nothing |
# | 2 | one step on `meta` under strict devices, in a test without a GPU |
# | 3 | the helper on `nn.ReLU()`; integer labels stay integers |
# | 4 | two equal tokens at two places come out different |
# | 5 | change the padding: nothing moves |
# | 6 | the same batch twice at `lr=0`: the same gradient |
# | 7 | the ids in all `param_groups` are those of `model.parameters()`, each once |
# | 8 | `w._version` moves with every write |
# | 9 | after one step every parameter has moved |
# | 10 | each loss alone requires grad |
# | 11 | `torch.autograd.gradcheck` in float64 |
# | 12 | ask twice: equal; `state_dict()` and modes are as before |
# | 13 | two calls: equal in eval, different in training |
# | 14 | accumulated gradient equals the whole one, with parts of different sizes |
# | 15 | confident and right costs 0; a floor of ln(e + C - 1) - 1 is a softmax too many |
# | 16 | print the learning rate of every step of a short run |
# | 17 | one NaN among five batches: four steps |
# | 18 | same seed with noise in between: equal; another seed: different |
# | 19 | `pickle.dumps` of what the workers get |
# | 20 | `batch._version` is 0 after the call |
# | 21 | `torch.get_rng_state()` before and after |
# | 22 | count the reads, or `torch.cuda.set_sync_debug_mode("warn")` |
# | 23 | `loader.pin_memory` and `non_blocking=True`, both |
# | 24 | what is logged has no `grad_fn` |
# | 25 | every parameter has a gradient, and the block ran twice |
# | 26 | twice the work takes twice the time |
# | 27 | the dtype of a product inside `autocast` |
# | 28 | every dtype, in a loop |
# | 29 | with and without a stop, bit for bit |
# | 30 | `sum(p.numel() for p in model.parameters())` before and after |

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] name the shapes that meet in a loss, a mask and a table of positions? (`regression_loss`, `attend_to_real`, `add_positions`, [ward 1](#Ward-1-shapes-and-devices))
# - [ ] move a batch to the model, whatever the model is? (`loss_on_device`, `to_model_device`, [ward 1](#Ward-1-shapes-and-devices))
# - [ ] say who owns a parameter, and what happens with two owners or none? (`train`, `make_optimizer`, `finetune`, [ward 2](#Ward-2-gradients))
# - [ ] write to a tensor that autograd watches, or know why not? (`shift_`, `masked_tanh`, `total_loss`, [ward 2](#Ward-2-gradients))
# - [ ] tell mode from recording, and restore both? (`predict_batch`, `Net`, `accumulate`, [ward 3](#Ward-3-loop-and-mode))
# - [ ] find the bug by the floor of a loss, a list of learning rates, a count of steps? (`loss_from_logits`, `run_epochs`, `train_through_nan`, [ward 3](#Ward-3-loop-and-mode))
# - [ ] make a run depend on its seed alone, and leave data and random state as they were? (`build`, `make_loader`, `standardize`, `preview_noise`, [ward 4](#Ward-4-data-and-randomness))
# - [ ] say what keeps a graph alive, and where the host waits? (`train_and_average`, `make_batches`, `running_mean_loss`, `run_checkpointed`, `seconds_on_device`, [ward 5](#Ward-5-memory-and-syncs))
# - [ ] choose half precision for a machine, and a constant that fits? (`amp_config`, `mask_scores`, [ward 6](#Ward-6-precision))
# - [ ] resume a run bit for bit, and load weights into a tied model? (`RunFile`, `load_embedding`, [ward 7](#Ward-7-saving))

# %% tags=["nbval-ignore-output"]
progress()
