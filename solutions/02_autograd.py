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
# # Autograd: the graph behind a number
#
# > You wrote a line of code. **Does a gradient flow through it, and is it the right one?**
#
# This is the question of the whole notebook.
# Sometimes the answer is an error. More often it is a training run in which something does not learn, without a word.
# At the end you answer it for a dozen lines, and you own the engine that gives the answer: you will have written one.
#
# **Time:** about 5 hours: a good one and a half to read and predict, the rest for the exercises.
# It splits well after section 3 and after section 5.
#
# **You need:** notebook 01 (views, storages, broadcasting), and the chain rule of school: the slope of `f(g(x))` is
# the slope of `f` times the slope of `g`.
# No GPU is needed.
# If an exercise resists, run `hint(its_name)` in a cell of your own.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# | term | in code | meaning |
# |---|---|---|
# | graph | | what autograd recorded: which operation made which result, from what |
# | node | `y.grad_fn` | one recorded operation, or the end of the graph at a leaf |
# | leaf | `x.is_leaf` | a tensor that no recorded operation made; a weight is one |
# | cotangent | `grad_out`, `g` | the gradient of the loss with respect to a node's result, as backward hands it on |
# | accumulate | `x.grad` | add to what is there |
# | saved tensor | `ctx.saved_tensors` | what a node keeps, because its slope depends on it |
# | version counter | `x._version` | how often a storage was edited in place |
# | double backward | `create_graph=True` | differentiate what backward computed |
#
# Shapes are written with names, as in `(batch, seq, dim)`.

# %%
import gc
import random
import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.display import show_backward, show_graph

_ = torch.manual_seed(0)

# %% [markdown]
# ## 1 What a line of code records
#
# The smallest graph that has something to say:

# %% objective="autograd.graph"
x = torch.tensor([2.0], requires_grad=True)
y = x**3
z = y + 5
z

# %% [markdown]
# The number is 13, and it carries a second thing: `grad_fn`, the operation that made it.
# Because `x` asked for gradients, everything computed from it was recorded.
#
# {{predict leaf_grad_fn}}

# %%
predict("leaf_grad_fn", "a")

# %% objective="autograd.graph"
print("x:", x.grad_fn, " leaf:", x.is_leaf)
print("y:", type(y.grad_fn).__name__, " leaf:", y.is_leaf, " requires grad:", y.requires_grad)
print("z:", type(z.grad_fn).__name__)

# %% [markdown]
# "Every tensor that requires grad has a `grad_fn`" is a common way to say it, and not quite right.
# The record hangs on what comes *out* of an operation.
# `x` was made by you and not by an operation: it is a **leaf**.
#
# From `z.grad_fn` you can walk back.
# Each node names the nodes of its inputs:

# %% objective="autograd.graph"
def behind(node) -> list[str]:
    """The names of the nodes that a node got its inputs from."""
    return [parent and parent.name() for parent, _ in node.next_functions]


print("behind the +  ", behind(z.grad_fn))
print("behind the ** ", behind(y.grad_fn))

# %% [markdown]
# Behind the `+` lie the power and `None`: the number 5 needs no gradient, so there is nothing to go back to.
# Behind the power lies a node that stands for the leaf itself.
# `AccumulateGrad` will add the gradient to `x.grad`, and it knows its tensor:

# %% objective="autograd.graph"
accumulate = y.grad_fn.next_functions[0][0]
print(accumulate.variable is x)
show_graph(z)

# %% [markdown]
# This picture is read off the live graph, and so are all pictures of this notebook.
# A box is a node; in it stands what it **saved**, because its slope depends on it.
# To differentiate `x**3` you need `x`. To differentiate `y + 5` you need nothing.
#
# **Rule 1.** An operation is recorded if recording is on and at least one input requires grad.
# Its result then requires grad.
#
# Here is our tiny batch from notebook 01, with the smallest model that makes sense for it: one weight per number of
# a token, and a bias.

# %% objective="autograd.graph"
batch = torch.arange(24.0).reshape(2, 3, 4)  # (batch, seq, dim)
weight = torch.tensor([1.0, 0.0, -1.0, 2.0], requires_grad=True)  # (dim,)
bias = torch.tensor(0.5, requires_grad=True)
scores = batch @ weight + bias  # (batch, seq, dim) @ (dim,) -> (batch, seq)
loss = (scores * scores).mean()
show_graph(loss)

# %% [markdown]
# `scores` went into the product twice, and two arrows lead to its one node.
# The graph is no tree: it is a **directed acyclic graph**, a DAG.
# (`UnsafeView` and `Mv` are how PyTorch computes `@` with a vector: as matrix times vector, then reshaped.)
#
# And the failure. Gradients are slopes, and integers have none:

# %% tags=["raises-exception"] objective="autograd.graph"
torch.arange(3, requires_grad=True)

# %% [markdown]
# When recording is off, an operation leaves no trace:

# %% objective="autograd.graph"
with torch.no_grad():
    y = x**3
print(y.grad_fn, y.requires_grad, y.is_leaf)

# %% [markdown]
# The same line, the same number, and no graph.
# Such a tensor counts as a leaf, since no *recorded* operation made it.
#
# Now write the walk.
# Mind the DAG: squaring `x` five times makes five product nodes, and 32 ways lead through them.
#
# {{exercise graph_nodes}}

# %% exercise="graph_nodes"
def graph_nodes(out: Tensor) -> list[str]:
    """Return the names of all nodes in the autograd graph behind `out`: each node once, in any order.

    `out.grad_fn` is the first node. `node.next_functions` holds pairs `(node, index)`, and its nodes may be None.
    The graph is a DAG: a node that is reached along several ways counts once, and two nodes may have one name.
    The `AccumulateGrad` nodes, in which the graph ends at its leaves, count as well.
    A tensor without a graph gives `[]`. `out` is not itself a leaf that requires grad.
    A name is `node.name()` or `type(node).__name__`, whichever you like.
    """
    ### BEGIN SOLUTION
    names, seen, waiting = [], set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names.append(node.name())
        waiting += [parent for parent, _ in node.next_functions]
    return names
    ### END SOLUTION

# %%
check(graph_nodes)

# %% objective="autograd.graph"
count = len(passing(graph_nodes)(loss))
power = torch.tensor(1.01, requires_grad=True)
for _ in range(5):
    power = power * power
print(count, "nodes behind the loss,", len(passing(graph_nodes)(power)), "behind five squarings")

# %% [markdown]
# ## 2 What backward does
#
# Backward walks this graph from the loss to the leaves.
# It carries one tensor along each arrow: the **cotangent**, the gradient of the loss with respect to what was made
# there.
# Each node multiplies it by its own slope and hands the product on.

# %% objective="autograd.backward"
w = torch.tensor([2.0, -1.0], requires_grad=True)
loss = (w * w).sum()
show_backward(loss)

# %% [markdown]
# Read it from the top. The loss changes by 1 when the loss changes by 1, so the walk starts with 1.
# `sum` sends this 1 to each of its two inputs.
# The product gets `[1, 1]` and hands on `cotangent * other factor`, once for each of its two inputs.
# Both arrive at the same leaf and are added: `[4, -2]`, which is `2 * w`.
#
# You only watched: nothing was written. Now for real.

# %% objective="autograd.backward"
loss.backward()
print(w.grad)

# %% [markdown]
# "Backward shares the loss out among the parameters" is a picture that you will meet, and it is wrong.
# It multiplies slopes. The loss was 5; the gradients do not add up to it:

# %% objective="autograd.backward"
print("loss", loss.item(), " sum of gradients", w.grad.sum().item())

# %% [markdown]
# **Rule 2.** Backward multiplies the cotangent by the slope of each node, from the output to the leaves.
# Where several ways lead to one node, what comes along them is added.
#
# The walk must start somewhere, and only a scalar has an obvious start:

# %% tags=["raises-exception"] objective="autograd.backward"
(w * w).backward()

# %% [markdown]
# With several outputs you have to say how much each one counts.
# That is the first cotangent, and you may hand it in:

# %% objective="autograd.backward"
w.grad = None
(w * w).backward(gradient=torch.tensor([1.0, 10.0]))
print(w.grad)

# %% [markdown]
# `.sum().backward()` is the same with ones.
# So a gradient for *every* output at once would take one backward per output.
#
# ### Where the numbers go
#
# (A helper first: some of what follows only warns. It returns the warnings instead of printing them.)

# %%
def warnings_of(f) -> list[str]:
    """The first sentence of each warning that calling `f()` gives."""
    torch.set_warn_always(True)  # PyTorch gives some only once per process
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f()
    torch.set_warn_always(False)
    return list(dict.fromkeys(re.split(r"[.]\s", str(warning.message))[0] for warning in caught))

# %% [markdown]
# {{predict nonleaf_grad}}

# %%
predict("nonleaf_grad", "b")

# %% objective="autograd.backward"
x = torch.tensor([2.0, -1.0], requires_grad=True)
y = x * 3
y.sum().backward()
print(x.grad)
print(*warnings_of(lambda: print(y.grad)))

# %% [markdown]
# Only leaves keep a gradient. In between it is handed on and forgotten, which saves memory.
# When you want to see one in the middle, ask before backward:

# %% objective="autograd.backward"
y = x * 3
y.retain_grad()
y.sum().backward()
print("y.grad", y.grad)

# %% [markdown]
# And only leaves that the walk reaches get one.
# A layer that the loss does not use has no zero gradient; it has none:

# %% objective="autograd.backward"
used, unused = nn.Linear(4, 1), nn.Linear(4, 1)
used(batch).sum().backward()
print("used", tuple(used.weight.grad.shape), " unused", unused.weight.grad)

# %% [markdown]
# `loss.backward()` and `torch.autograd.backward(loss)` are the same function.
# There is a third form, which hands the gradients out and writes to no `.grad`:

# %% objective="autograd.backward"
w.grad = None
torch.autograd.backward((w * w).sum())
(handed_out,) = torch.autograd.grad((w * w).sum(), w)
print("written:", w.grad, " handed out:", handed_out)

# %% [markdown]
# In documentation you find the first two printed one under the other, as equivalent.
# Both, one after the other?
#
# {{predict second_backward}}

# %%
predict("second_backward", "c")

# %% tags=["raises-exception"] objective="autograd.backward"
loss = (w * w).sum()
loss.backward()
torch.autograd.backward(loss)

# %% [markdown]
# Read the message: the saved tensors are freed as backward passes.
# The picture shows it too. The nodes are there; what they had kept is gone.

# %% objective="autograd.backward"
show_graph(loss)

# %% [markdown]
# The message proposes `retain_graph=True`.
# It helps if you really want to walk one graph twice.
# Usually you did not, and section 4 shows what the advice leads to.

# %% objective="autograd.backward"
w.grad = None
loss = (w * w).sum()
loss.backward(retain_graph=True)
loss.backward()
print(w.grad)

# %% [markdown]
# ### A branch that is not taken
#
# Slopes are multiplied, even where nobody looks at the value.
#
# {{predict branch_not_taken}}

# %%
predict("branch_not_taken", "c")

# %% objective="autograd.backward"
x = torch.tensor([-1.0, 4.0], requires_grad=True)
y = torch.where(x > 0, x.sqrt(), x)
y.sum().backward()
print("value", y.detach(), " gradient", x.grad)

# %% [markdown]
# The values are right. The gradient is ruined, and one NaN in a weight is enough to ruin all of it in the next step.
# PyTorch can point at the place, at a price in speed:

# %% objective="autograd.backward"
def where_the_nan_is(f: Callable) -> str:
    """What anomaly detection says about the backward of `f()`."""
    try:
        with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
            warnings.simplefilter("ignore")
            f().sum().backward()
    except RuntimeError as anomaly:
        return str(anomaly)
    return "no NaN"


where_the_nan_is(lambda: torch.where(x > 0, x.sqrt(), x))

# %% [markdown]
# > **Classic mistake: masking the output.**
# > `where`, a mask after the fact, `nan_to_num`: they repair the value.
# > In the branch not taken backward still multiplies 0 by a slope that is infinite or NaN.
#
# {{exercise sqrt_or_zero}}

# %% exercise="sqrt_or_zero"
def sqrt_or_zero(x: Tensor) -> Tensor:
    """Return the square root of `x` where `x > 0`, and 0 elsewhere, with gradients that are finite everywhere.

    Where `x > 0` the gradient is that of the square root; elsewhere, at 0 as well, it is 0.
    `x` is a floating tensor of any shape and strides, without NaN, and is not changed.
    """
    ### BEGIN SOLUTION
    positive = x > 0
    safe = torch.where(positive, x, 1.0)
    return torch.where(positive, safe.sqrt(), 0.0)
    ### END SOLUTION

# %%
check(sqrt_or_zero)

# %% [markdown]
# ## 3 Why backward adds
#
# {{predict backward_adds}}

# %%
predict("backward_adds", "b")

# %% objective="autograd.backward"
w = torch.tensor([2.0, -1.0], requires_grad=True)
for _ in range(3):
    loss = (w * w).sum()
    loss.backward()
    print(w.grad)

# %% [markdown]
# "Backward writes the gradient to `.grad`": no, it *adds* it.
# Why would anybody want that?
#
# First, it is rule 2 once more: a gradient along several ways is a sum, and two losses are two ways.
# So two backwards over two losses give the gradient of their sum:

# %% objective="autograd.backward"
w.grad = None
(w * w).sum().backward()
(3 * w).sum().backward()
one_by_one = w.grad
w.grad = None
((w * w).sum() + (3 * w).sum()).backward()
print(one_by_one, w.grad)

# %% [markdown]
# Second, a large batch can be done in small pieces, as you will see at once.
# The price: somebody has to clear. `optimizer.zero_grad()` sets each `.grad` to None, and it has to run
# before *every* backward that begins a new step.
# Clearing once before the loop is the repair that looks right and is not:

# %% objective="autograd.backward"
def gradients(clear_inside: bool) -> list[float]:
    """The gradient that each of three steps follows; the true one is 2.0 every time."""
    w = torch.tensor(1.0, requires_grad=True)
    opt = torch.optim.SGD([w], lr=0.0)
    opt.zero_grad()
    seen = []
    for _ in range(3):
        if clear_inside:
            opt.zero_grad()
        (w * w).backward()
        seen.append(w.grad.item())
    return seen


print("before the loop", gradients(clear_inside=False), " in the loop", gradients(clear_inside=True))

# %% [markdown]
# ### A large batch in small pieces
#
# A batch that is too large for the memory can be cut into micro-batches.
# Each builds its own graph, runs backward, and is gone; the gradients add up in `.grad`.
# You will find this loop in many places, here with the optimizer left out:

# %% objective="autograd.backward"
def relative_error(sizes: list[int], divide: Callable) -> str:
    """How far the accumulated gradient is from the full batch's."""
    x, y = torch.randn(sum(sizes), 3), torch.randn(sum(sizes), 1)
    model = nn.Linear(3, 1)
    (full,) = torch.autograd.grad(F.mse_loss(model(x), y), [model.weight])
    for xs, ys in zip(x.split(sizes), y.split(sizes)):
        divide(F.mse_loss(model(xs), ys), len(xs)).backward()
    return f"{((model.weight.grad - full).norm() / full.norm()).item():.0%}"


print("not divided        ", relative_error([8, 8, 8, 8], lambda loss, n: loss))
print("divided by 4       ", relative_error([8, 8, 8, 8], lambda loss, n: loss / 4))
print("a smaller last one ", relative_error([10, 10, 10, 2], lambda loss, n: loss / 4))

# %% [markdown]
# Without the division the gradient is four times too large: an error of 300 %.
# With it, equal pieces give the gradient of the full batch.
# With unequal pieces they do not: the two samples of the last one count as much as the ten of another.
#
# There is a second leak. The usual loop steps after every `accum_steps` micro-batches.
# Ten micro-batches and `accum_steps = 4`:

# %% objective="autograd.backward"
steps = [i for i in range(10) if (i + 1) % 4 == 0]
print("steps after", steps, " never applied:", list(range(steps[-1] + 1, 10)))

# %% [markdown]
# The gradients of micro-batches 8 and 9 are still in `.grad` when the loop ends,
# and are cleared or, worse, added to the next epoch.
#
# Write the step that has neither leak.
#
# {{exercise accumulate_step}}

# %% exercise="accumulate_step"
def accumulate_step(model: nn.Module, opt: torch.optim.Optimizer, microbatches: list) -> None:
    """Make the optimizer step of one large batch, with the memory of one micro-batch.

    `microbatches` is a list of pairs `(x, y)` of shapes (n, features) and (n, 1). `n` may differ from pair to pair.
    The loss is the mean squared error over all samples of all micro-batches together.
    Run the model on one micro-batch at a time, and its backward before the next one, so that there is never
    more than one graph in memory.
    Gradients that are there already, from some earlier batch, do not count. `opt.step()` runs once, at the end.
    What is in `.grad` afterwards is up to you. The model stays in train mode, and no hooks stay on it.
    """
    ### BEGIN SOLUTION
    n_samples = sum(len(x) for x, _ in microbatches)
    opt.zero_grad()
    for x, y in microbatches:
        loss = F.mse_loss(model(x), y, reduction="sum") / n_samples
        loss.backward()
    opt.step()
    ### END SOLUTION

# %%
check(accumulate_step)

# %% [markdown]
# ## 4 Five ways to stop a gradient
#
# "There are two ways to switch gradients off: `no_grad` and `detach`."
# There are at least five, and they do not do the same thing.
# Each of these computes `x * w`, with two leaves that both require grad:

# %% objective="autograd.stopping"
def no_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        return x * w


def inference_mode(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        return x * w

# %% objective="autograd.stopping"
def set_grad_enabled(x: Tensor, w: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        return x * w


def detach(x: Tensor, w: Tensor) -> Tensor:
    return x.detach() * w


def requires_grad_(x: Tensor, w: Tensor) -> Tensor:
    return x.requires_grad_(False) * w

# %% [markdown]
# Now let the code fill in the table.
# Four questions to each: does the result have a graph? Is `w` still trained? Does `x` still ask for gradients
# afterwards? And may the result be used in training later?

# %% objective="autograd.stopping"
def works(f: Callable) -> bool:
    """Does calling `f()` pass without a RuntimeError?"""
    try:
        f()
    except RuntimeError:
        return False
    return True


def row(way: Callable) -> list[bool]:
    x, w, v = (torch.ones(2, requires_grad=True) for _ in range(3))
    y = way(x, w)
    trains_w = works(lambda: y.sum().backward()) and w.grad is not None
    return [y.requires_grad, trains_w, x.requires_grad, works(lambda: (y.detach() * v).sum().backward())]

# %% objective="autograd.stopping"
print(f"{'':18}{'graph':8}{'trains w':10}{'x asks':8}usable later")
for way in (no_grad, inference_mode, set_grad_enabled, detach, requires_grad_):
    graph, trains_w, x_asks, later = row(way)
    print(f"{way.__name__:18}{graph!s:8}{trains_w!s:10}{x_asks!s:8}{later}")

# %% [markdown]
# Read it by columns.
#
# - The first three switch the *recording* off, for everything inside: `w` is not trained either.
# - `detach` cuts one branch, here and now. `w` is trained, and `x` itself does not change.
# - `requires_grad_(False)` changes `x` itself, for everybody and until someone changes it back. It is for freezing.
# - Only `inference_mode` gives something that training refuses later.
#
# > **In one line.** Recording off for a block: `no_grad`, or `inference_mode` if nothing in it will ever train.
# > One branch off: `detach`. One weight frozen: `requires_grad_(False)`.
# > Recording on or off by a flag: `with torch.set_grad_enabled(flag)`.
#
# ### What switching the recording off saves
#
# What a graph costs is what its nodes save. Count it:

# %% objective="autograd.stopping"
def saved_bytes(f: Callable) -> int:
    """Bytes of all tensors that autograd saves for backward while `f()` runs."""
    sizes = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        f()
    return sum(sizes)

# %% objective="autograd.stopping"
layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
mlp, inputs = nn.Sequential(*layers), torch.randn(256, 64)
print("recorded  ", saved_bytes(lambda: mlp(inputs)), "bytes")
print("under no_grad", saved_bytes(lambda: torch.no_grad()(mlp)(inputs)), "bytes")

# %% [markdown]
# The weights are counted in it, since the graph holds on to them.
# The larger part is one activation per layer, and it grows with the batch.
# (It saves time as well; how much depends on your machine.)
#
# What does `no_grad` *not* stop? Two things are often expected of it.
#
# {{predict parameter_under_no_grad}}

# %%
predict("parameter_under_no_grad", "c")

# %% objective="autograd.stopping"
norm = nn.BatchNorm1d(2)
with torch.no_grad():
    parameter = nn.Parameter(torch.ones(2))
    product = parameter * 2
    norm(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
print("parameter", parameter.requires_grad, " product", product.requires_grad)
print("running mean", norm.running_mean)

# %% [markdown]
# A new leaf still asks for gradients.
# And a batch-norm layer still updates its running statistics: they are no gradients, and only `eval()` stops them
# (notebook 03).
#
# `inference_mode` goes further. Its tensors have no version counter, and training refuses them, in three wordings:

# %% objective="autograd.stopping"
def refusal(f: Callable) -> str:
    """The first sentence of the RuntimeError that calling `f()` raises."""
    try:
        f()
    except RuntimeError as error:
        return str(error).split(".")[0]
    return "no error"


with torch.inference_mode():
    features = torch.ones(2)
v = torch.ones(2, requires_grad=True)
for f in (lambda: features * v, lambda: features.add_(1), lambda: features.requires_grad_()):
    print(refusal(f))

# %% [markdown]
# The remedy is a `clone()` outside, or `no_grad` in the first place.
#
# ### A switch that stays off
#
# {{predict grad_mode_call}}

# %%
predict("grad_mode_call", "b")

# %% objective="autograd.stopping"
def predict_price(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return x * 2


predict_price(torch.ones(1))
print("after the call     ", torch.is_grad_enabled())
_ = torch.set_grad_enabled(True)

# %% objective="autograd.stopping"
@torch.set_grad_enabled(False)
def predict_price(x: Tensor) -> Tensor:
    return x * 2


print("as a decorator:", predict_price(v).requires_grad, " and afterwards:", torch.is_grad_enabled())

# %% [markdown]
# ### Stopped by accident
#
# Gradients also end where nobody meant them to: whenever a value leaves the graph and comes back as a number.
#
# {{predict tensor_of_losses}}

# %%
predict("tensor_of_losses", "b")

# %% objective="autograd.stopping"
def slope(combine: Callable) -> float:
    """d(main + extra losses) / dw; the true one is 31."""
    w = torch.tensor(1.0, requires_grad=True)
    main, extra = w * 1, [w * 10, w * 20]
    (main + combine(extra)).backward()
    return w.grad.item()


print(*warnings_of(lambda: print("torch.tensor", slope(lambda losses: torch.tensor(losses).sum()))))
print("torch.stack", slope(lambda losses: torch.stack(losses).sum()), " sum", slope(sum))

# %% [markdown]
# > **Classic mistake: losses in the log that nobody trains.**
# > `torch.tensor(list_of_losses)`, `.item()` and `float()` read numbers out of the graph.
# > The loss that you print contains them, and the weights never hear of it.
#
# The opposite accident is a graph where a leaf was wanted.
# `requires_grad=True` was set one operation too early here:

# %% tags=["raises-exception"] objective="autograd.stopping"
image = torch.randn(3, requires_grad=True) * 0.01
torch.optim.SGD([image], lr=1.0)

# %% [markdown]
# `image` is the result of a product. The leaf is what went into it, and has no name any more.
# Compute first, ask for gradients afterwards:

# %% objective="autograd.stopping"
image = (torch.randn(3) * 0.01).requires_grad_()
opt = torch.optim.SGD([image], lr=1.0)
print("leaf:", image.is_leaf)

# %% [markdown]
# ### Two branches, one of which should learn
#
# A student network imitates a teacher. We would like to write `distill_loss(student, teacher).backward()`
# and have the teacher stay as it is.
#
# {{exercise distill_loss}}

# %% exercise="distill_loss"
def distill_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference, with gradients to `student` only.

    Both have the same shape and dtype, any strides, and both may require grad.
    No gradient reaches `teacher`, which is not changed: if it required grad before, it still does.
    The result is a tensor without dimensions.
    """
    ### BEGIN SOLUTION
    return (student - teacher.detach()).square().mean()
    ### END SOLUTION

# %%
check(distill_loss)

# %% [markdown]
# ### A sequence that is too long
#
# A recurrent network reads a sequence of a million steps, and hands a state `h` from step to step.
# One graph over all of them fits into no memory, so you train after each chunk.
# The state goes on.

# %% objective="autograd.stopping"
def read_three(carry: Callable, retain_graph: bool = False) -> str:
    """Three steps with an update after each; `carry` says how the state goes on."""
    cell = nn.RNNCell(4, 3)
    opt = torch.optim.SGD(cell.parameters(), lr=0.1)
    h = torch.zeros(2, 3)  # (batch, hidden)
    for t in range(3):
        h = cell(batch[:, t], carry(h))
        opt.zero_grad()
        h.sum().backward(retain_graph=retain_graph)
        opt.step()
    return "trained"

# %% tags=["raises-exception"] objective="autograd.stopping"
read_three(carry=lambda h: h)

# %% [markdown]
# You know this message: the state drags the graph of the step before along, and that one is used up.
# Now follow its advice.

# %% tags=["raises-exception"] objective="autograd.stopping"
read_three(carry=lambda h: h, retain_graph=True)

# %% [markdown]
# Another error, and a more honest one.
# Backward wants to go through the step before with the weights *of that time*, and the optimizer has changed
# them in place. There is nothing to retain: that step is over.

# %% objective="autograd.stopping"
print(read_three(carry=lambda h: h.detach()))

# %% [markdown]
# > **Classic mistake: `retain_graph=True` because the message said so.**
# > If you did not mean to walk one graph twice, something is carrying an old graph along.
# > Find it and cut it off.
#
# Write the loop with chunks of several steps.
# Within a chunk gradients should flow through all steps. This is *truncated backpropagation through time*.
#
# {{exercise train_in_chunks}}

# %% exercise="train_in_chunks"
def train_in_chunks(
    cell: nn.Module, chunks: list[Tensor], h: Tensor, opt: torch.optim.Optimizer
) -> Tensor:
    """Train a recurrent cell on a long sequence, one optimizer step per chunk, and return the last state.

    `cell(x, h)` gives the next state: (batch, features), (batch, hidden) -> (batch, hidden).
    `chunks` is a list of tensors (seq, batch, features): the sequence, cut into pieces. `h` is the first state.
    The state goes on from chunk to chunk; gradients flow through all steps of a chunk, and not into an earlier one.
    The loss of a chunk is `h.square().mean()` after its last step.
    For each chunk: clear the gradients, run backward, make one step of `opt`. The cell stays in train mode.
    The state that is returned is the one after the last chunk, and does not require grad.
    """
    ### BEGIN SOLUTION
    for chunk in chunks:
        h = h.detach()
        for x in chunk:
            h = cell(x, h)
        opt.zero_grad()
        h.square().mean().backward()
        opt.step()
    return h.detach()
    ### END SOLUTION

# %%
check(train_in_chunks)

# %% [markdown]
# ## 5 Edits in place
#
# A saved tensor is not a copy: the node holds on to the tensor that you have.
# So what if you change it before backward comes?
#
# {{predict edit_after_double}}

# %%
predict("edit_after_double", "c")

# %% objective="autograd.inplace"
def f(x: Tensor) -> Tensor:
    y = x * 2
    y[1] = 9
    return y.sum()


x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
f(x).backward()
print(x.grad)

# %% [markdown]
# The edit is even recorded: element 1 was overwritten, so its gradient is 0.
# The same with `sigmoid`:

# %% tags=["raises-exception"] objective="autograd.inplace"
y = x.sigmoid()
y[1] = 9
y.sum().backward()

# %% [markdown]
# Read the message with rule 1 in hand.
# *"output 0 of Sigmoid"* is the tensor that was changed; the slope of `sigmoid` is `y * (1 - y)`, so its node
# saved `y`. It saved it at **version 0** and found it at **version 1**.
#
# **Rule 3.** An edit in place is an error if, and only if, a node needs the old numbers.
# Version counters find out.

# %% objective="autograd.inplace"
y = x.sigmoid()
print("before", y._version)
y[1] = 9
print("after ", y._version)

# %% [markdown]
# Which operations save what? You have the instrument:

# %% objective="autograd.inplace"
a = torch.tensor([0.5], requires_grad=True)
show_graph(a.sigmoid() + a * 2 + a.sin() + a * a)

# %% [markdown]
# `sigmoid` keeps its result, `sin` and the product keep their inputs, doubling keeps the number 2.
# That is why one formula allows an edit and an equal one does not.
# The remedy is always the same: edit a `clone()`, or do not edit.

# %% objective="autograd.inplace"
x.grad = None
y = x.sigmoid().clone()
y[1] = 9
y.sum().backward()
print(x.grad)

# %% [markdown]
# ### Leaves
#
# For a leaf there is another message. Here it is, with its variant for views:

# %% objective="autograd.inplace"
w = torch.tensor([2.0, -1.0], requires_grad=True)
print(refusal(lambda: w.add_(1)))
print(refusal(lambda: w[0].add_(1)))

# %% [markdown]
# (A "Variable" is what a tensor with gradients was called in 2017.)
# This one has nothing to do with saved tensors: the graph begins with the *value* of `w`.
# If the edit were recorded, `w` would be a result and no leaf any more, and nobody could train it.
#
# "So how does an optimizer do it?"
# With the recording off: an update is no part of the function that is differentiated.

# %% objective="autograd.inplace"
with torch.no_grad():
    w.add_(1)
print(w, " version", w._version)

# %% [markdown]
# {{exercise sgd_step_}}

# %% exercise="sgd_step_"
def sgd_step_(params: list[Tensor], lr: float) -> None:
    """Update every parameter in place, `p - lr * p.grad`, and clear its gradient.

    `params` is a list of leaf tensors that require grad. One whose `.grad` is None is left as it is.
    The caller's tensors themselves change: they stay leaves, and still require grad.
    Afterwards each `.grad` is None or zero, whichever you like.
    """
    ### BEGIN SOLUTION
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p -= lr * p.grad
                p.grad = None
    ### END SOLUTION

# %%
check(sgd_step_)

# %% [markdown]
# Your optimizer, on the loss from section 1, with a learning rate that fits numbers up to 24:

# %% objective="autograd.inplace"
step_ = passing(sgd_step_)
for _ in range(4):
    loss = (batch @ weight + bias).square().mean()
    loss.backward()
    step_([weight, bias], lr=5e-4)
    print(round(loss.item(), 2))

# %% [markdown]
# ### What the counter sees, and what it does not
#
# `detach` gives a view on the same storage, and base and views share one version counter (notebook 01).
# So an edit through it is noticed.
#
# {{predict edit_through_data}}

# %%
predict("edit_through_data", "b")

# %% objective="autograd.inplace"
def slope_after(edit: Callable) -> str:
    """The slope of exp at 1, with an edit between forward and backward; the true one is 2.7183."""
    x = torch.tensor([1.0], requires_grad=True)
    y = x.exp()
    edit(y)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return str(error)[:84]
    return f"{x.grad.item():.4f}"

# %% objective="autograd.inplace"
print("no edit     ", slope_after(lambda y: None))
print("y.detach()  ", slope_after(lambda y: y.detach().mul_(2)))
print("y.data      ", slope_after(lambda y: y.data.mul_(2)))
print("y...numpy() ", slope_after(lambda y: y.detach().numpy().fill(7)))

# %% [markdown]
# One error and two wrong gradients.
# `.data` is an old way to write `detach`, with a version counter of its own; NumPy has none at all.
#
# > **Classic mistake: `.data` because it makes the error go away.**
# > The error was right. Use `detach()` to read and `no_grad` to update.
#
# ### The edit that you did not notice
#
# `x += bias` is an edit in place, and here `x` belongs to somebody else: it is the caller's batch.

# %% objective="autograd.inplace"
class AddsInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x += self.bias
        return x

# %% objective="autograd.inplace"
module, data = AddsInPlace(), torch.zeros(2, 1)
for epoch in range(2):
    module.zero_grad()
    module(data).square().sum().backward()
    print("epoch", epoch, " gradient", module.bias.grad.item(), " data", data.flatten().tolist())

# %% [markdown]
# Two epochs over the same data, and the data has changed: it drifts by one bias per epoch.
# The gradient grew from 4 to 16 since the old graph hangs on the batch, too.
# No error at any point. `x = x + self.bias` costs one new tensor and is right.
#
# ## 6 Your own slope
#
# Sometimes you know a backward that autograd does not: for a kernel of your own, or because it is cheaper.
# A `torch.autograd.Function` holds the two halves:

# %% objective="autograd.functions"
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a * a * a

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return g * 3 * a * a

# %% objective="autograd.functions"
x = torch.tensor([2.0, -1.0], requires_grad=True)
y = Cube.apply(x)
show_backward(y.sum())

# %% [markdown]
# Forward runs without recording. `ctx` carries to backward what it needs, and `backward` receives the cotangent and
# returns the product: Rule 2, for one node.
# (`ctx` *is* the node: it is what stands at `y.grad_fn`.)
#
# Call it through `apply`. The class itself is not for calling:

# %% tags=["raises-exception"] objective="autograd.functions"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    Cube()(x)

# %% [markdown]
# ### Your first one: ReLU
#
# A popular example of a Function is ReLU, with `grad_in[x < 0] = 0` in its backward.
# What is the slope at exactly 0? There is none; each library has to choose.

# %% objective="autograd.functions"
def slope_at_zero(f: Callable) -> float:
    x = torch.zeros((), requires_grad=True)
    f(x).backward()
    return x.grad.item()


print("torch.relu", slope_at_zero(torch.relu), " clamp", slope_at_zero(lambda x: x.clamp(min=0)))
print("maximum   ", slope_at_zero(lambda x: torch.maximum(x, torch.zeros(()))))

# %% [markdown]
# Three functions with the same values, and three slopes at 0. The popular example agrees with `clamp`, not with `relu`.
# Yours should agree with `torch.relu`.
#
# Two rules for a backward first.
# **Save with `save_for_backward`**, not as an attribute of `ctx`, or version counters can't help you:

# %% objective="autograd.functions"
class CubeWithAttribute(Cube):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.a = a
        return a * a * a

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3 * ctx.a * ctx.a


def edited_in_between(function: type) -> Tensor:
    leaf = torch.tensor([1.0], requires_grad=True)
    x = leaf * 1
    y = function.apply(x)
    x.mul_(3)
    return torch.autograd.grad(y, leaf)[0]

# %% objective="autograd.functions"
print("attribute:", edited_in_between(CubeWithAttribute), "and the true slope is 3")
print("saved:    ", refusal(lambda: edited_in_between(Cube))[:84])

# %% [markdown]
# The attribute gave 27, without a word.
# With an *output* as attribute there is a leak besides: output and node hold each other, and only Python's garbage
# collector, some time later, frees them.

# %% objective="autograd.functions"
class KeepsItsOutput(Cube):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.y = a * a * a
        return ctx.y


y = KeepsItsOutput.apply(x)
alive = weakref.ref(y)
del y
print("freed:", alive() is None, end="")
_ = gc.collect()
print(", after a collection:", alive() is None)

# %% [markdown]
# **Leave the cotangent alone.** It is not yours.
#
# {{predict edited_sibling}}

# %%
predict("edited_sibling", "b")

# %% objective="autograd.functions"
class Negate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        return -a

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.neg_()

# %% objective="autograd.functions"
def gradients_of(add: Callable) -> list[float]:
    a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    add(a, b).backward(torch.ones(1))
    return [a.grad.item(), b.grad.item()]


print("b * 1 + Negate(a):", gradients_of(lambda a, b: b * 1 + Negate.apply(a)))
print("Negate(a) + b * 1:", gradients_of(lambda a, b: Negate.apply(a) + b * 1))

# %% [markdown]
# The true gradients are -1 and 1. In one order `b` gets a wrong sign, in the other it does not: the bug of a Function
# shows at a tensor that never met it.
#
# After `.sum().backward()` it is worse: the cotangent is *one* number, expanded with stride 0 (notebook 01), and a
# write to one element is a write to all.
#
# {{exercise MyReLU}}

# %% exercise="MyReLU"
class MyReLU(torch.autograd.Function):
    """`MyReLU.apply(x)`: `x` where it is positive, 0 elsewhere, as `torch.relu`.

    The gradient is the cotangent where `x > 0`, and 0 elsewhere, at `x == 0` as well. `x` is never NaN.
    `backward` leaves its cotangent as it was: autograd may have given the same tensor to others.
    If `x` or the output is changed in place between forward and backward, backward refuses or stays right:
    it never gives a wrong gradient without a word.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        ctx.save_for_backward(x)
        return x.clamp(min=0)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        (x,) = ctx.saved_tensors
        return grad_out * (x > 0)
        ### END SOLUTION

# %%
check(MyReLU)

# %% [markdown]
# ### Several inputs, and what each one needs
#
# Backward returns one gradient per argument of forward, in that order.
# Often not all of them are wanted: a frozen weight, or data. `ctx.needs_input_grad` says which are.

# %% objective="autograd.functions"
class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        print("asked for:", ctx.needs_input_grad)
        return g * b, g * a

# %% objective="autograd.functions"
Times.apply(x, torch.ones(2)).sum().backward()
Times.apply(x, torch.ones(2, requires_grad=True)).sum().backward()

# %% [markdown]
# In the first call the product `g * a` was computed for nothing.
# Return None for what nobody asked for, and do not compute it.
#
# And the shapes: a gradient has the shape of its input.
# Where forward broadcasts, backward has to sum.
# Second derivatives come for free, provided that backward itself is made of differentiable operations on what was
# saved.
#
# {{exercise ScaleFeatures}}

# %% exercise="ScaleFeatures"
class ScaleFeatures(torch.autograd.Function):
    """`ScaleFeatures.apply(x, weight)`: `x * weight`, of shapes (batch, dim) and (dim,) -> (batch, dim).

    `backward` returns a pair: the gradient of `x` and the gradient of `weight`, each with the shape of its input,
    also when it is called directly. It returns None for an input that does not need a gradient.
    It leaves its cotangent as it was. Second derivatives are right as well.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        ctx.save_for_backward(x, weight)
        return x * weight
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None]:
        ### BEGIN SOLUTION
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad_x = grad_out * weight if needs_x else None
        grad_weight = (grad_out * x).sum(dim=0) if needs_weight else None
        return grad_x, grad_weight
        ### END SOLUTION

# %%
check(ScaleFeatures)

# %% [markdown]
# ### Double backward
#
# With `create_graph=True` backward is recorded in turn, and the gradient can be differentiated.
# Our `Cube` at 2: the slope is 3x² = 12, the slope of the slope 6x = 12.

# %% objective="autograd.functions"
def two_derivatives(f: Callable, at: float) -> list[float]:
    x = torch.tensor(at, requires_grad=True)
    (first,) = torch.autograd.grad(f(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    return [first.item(), second.item()]


two_derivatives(Cube.apply, 2.0)

# %% [markdown]
# Now a `Cube` that is a little faster: forward has `x * x` already, so why not save it?
#
# {{predict saved_intermediate}}

# %%
predict("saved_intermediate", "b")

# %% objective="autograd.functions"
class CubeWithSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        square = a * a
        ctx.save_for_backward(a, square)
        return square * a

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        a, square = ctx.saved_tensors
        return g * (square + 2 * a * a)

# %% objective="autograd.functions"
two_derivatives(CubeWithSquare.apply, 2.0)

# %% [markdown]
# The first is right and the second is 8.
# `square` was computed inside forward, where nothing is recorded: it is neither an input nor an output, so to
# autograd it is a constant.
# Save inputs and outputs only.
#
# If you can't, say so: `once_differentiable` is meant to turn the silent error into a loud one.

# %% objective="autograd.functions"
class CubeOnce(CubeWithSquare):
    backward = staticmethod(torch.autograd.function.once_differentiable(CubeWithSquare.backward))


print("alone:       ", refusal(lambda: two_derivatives(CubeOnce.apply, 2.0)))
print("beside x * x:", two_derivatives(lambda x: CubeOnce.apply(x) + x * x, 2.0))

# %% [markdown]
# A wart: it is loud only where nothing else has a second derivative.
# Beside another term that has one, the result is 2 where 14 is right, and nobody objects.
# So test second derivatives if anybody is going to take them (section 7).
#
# ### Arguments that are no tensors
#
# `forward` may take numbers, strings, shapes. Two things go wrong at first:

# %% objective="autograd.functions"
class TimesNumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, k: float) -> Tensor:
        ctx.k = k
        return a * k

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.k


print(refusal(lambda: TimesNumber.apply(x, 2.0).sum().backward()))

# %% [markdown]
# Two arguments went in, so two gradients come out; for a number that is None.
# A number is not for `save_for_backward` either:

# %% tags=["raises-exception"] objective="autograd.functions"
class SavesANumber(TimesNumber):
    @staticmethod
    def forward(ctx: Any, a: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(a, k)
        return a * k


SavesANumber.apply(x, 2.0)

# %% [markdown]
# An attribute of `ctx` is right for a number: nobody can edit a number in place.
#
# {{exercise ScaledExp}}

# %% exercise="ScaledExp"
class ScaledExp(torch.autograd.Function):
    """`ScaledExp.apply(x, k)`: `exp(k * x)`, where `k` is a Python number and has no gradient.

    `x` has any shape and strides; `k` may be an int or a float, and may be negative.
    First and second derivatives with respect to `x` are right. `backward` leaves its cotangent as it was.
    If `x` or the output is changed in place between forward and backward, backward refuses or stays right.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ### BEGIN SOLUTION
        y = torch.exp(k * x)
        ctx.save_for_backward(y)
        ctx.k = k
        return y
        ### END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        (y,) = ctx.saved_tensors
        return grad_out * ctx.k * y, None
        ### END SOLUTION

# %%
check(ScaledExp)

# %% [markdown]
# ## 7 How do you know that it is right?
#
# A slope can be measured: move the input a little, and see how far the output moves.
# No autograd is needed for that, and that is the point.
#
# {{exercise numerical_gradient}}

# %% exercise="numerical_gradient"
def numerical_gradient(f: Callable[[Tensor], Tensor], x: Tensor, eps: float = 1e-3) -> Tensor:
    """Estimate the gradient of `f` at `x` by central differences, one element of `x` at a time.

    `f` takes a tensor of the shape of `x` and returns a tensor without dimensions.
    Element `i` of the result is `(f(x + eps * e_i) - f(x - eps * e_i)) / (2 * eps)`, where `e_i` is 1 in place `i`
    and 0 elsewhere. The result has the shape and dtype of `x` and does not require grad.
    `x` is a float64 tensor of any shape and strides, and holds its old values afterwards.
    """
    ### BEGIN SOLUTION
    gradient = torch.zeros_like(x, memory_format=torch.contiguous_format)
    with torch.no_grad():
        for index in range(x.numel()):
            step = torch.zeros(x.numel(), dtype=x.dtype)
            step[index] = eps
            step = step.view(x.shape)
            gradient.view(-1)[index] = (f(x + step) - f(x - step)) / (2 * eps)
    return gradient
    ### END SOLUTION

# %%
check(numerical_gradient)

# %% [markdown]
# Your numbers against those of autograd, for `Cube`.
# They agree to six digits, which is what central differences with this `eps` can give.

# %% objective="autograd.gradcheck"
def leaf(*shape: int) -> Tensor:
    """Random numbers in float64 that require grad."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


x = leaf(3)
measured = passing(numerical_gradient)(lambda x: Cube.apply(x).sum(), x)
(computed,) = torch.autograd.grad(Cube.apply(x).sum(), x)
print("largest difference below 1e-5:", (measured - computed).abs().max().item() < 1e-5)

# %% [markdown]
# `gradcheck` does this properly: every input against every output, with `eps=1e-6`, in float64.

# %% objective="autograd.gradcheck"
gradcheck(Cube.apply, leaf(3))

# %% tags=["raises-exception"] objective="autograd.gradcheck"
class CubeWithTwo(Cube):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return g * 2 * a * a


gradcheck(CubeWithTwo.apply, torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True))

# %% [markdown]
# *Numerical* is what was measured, *analytical* what your backward said: 3 against 2, 12 against 8.
# The quotient tells you which factor is missing.
#
# In float32 the check fails for right gradients, too, since the differences drown in rounding:

# %% objective="autograd.gradcheck"
single = torch.tensor([1.0, 2.0], requires_grad=True)
print(*warnings_of(lambda: print(gradcheck(Cube.apply, single, raise_exception=False))))

# %% [markdown]
# ### What it can't see
#
# A check that passes is believed. So know its four blind spots.
#
# **Places it does not visit.** ReLU with the slope of `clamp` at 0 passes, since random numbers are never 0:

# %% objective="autograd.gradcheck"
print("clamp as relu:", gradcheck(lambda x: x.clamp(min=0), leaf(5)))

# %% [markdown]
# **What the engine repairs.**
#
# {{predict gradcheck_sum}}

# %%
predict("gradcheck_sum", "c")

# %% objective="autograd.gradcheck"
class AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, bias: Tensor) -> Tensor:
        return a + bias

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, g

# %% objective="autograd.gradcheck"
x, b = torch.zeros(2, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
AddBias.apply(x, b).sum().backward()
print("bias.grad", b.grad, " gradcheck", gradcheck(AddBias.apply, (leaf(2, 3), leaf(3))))
print("called directly:", tuple(AddBias.backward(None, torch.ones(2, 3))[1].shape), "for a bias of shape (3,)")

# %% [markdown]
# The engine sums a gradient that could have come from broadcasting. A shape that could not, it refuses:

# %% objective="autograd.gradcheck"
class WrongShape(AddBias):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, g[:, :2]


print(refusal(lambda: WrongShape.apply(x, b).sum().backward()))

# %% [markdown]
# **Neighbors in the graph.** `Negate`, which writes into its cotangent, is alone in the check and passes.
# Test a Function between siblings, in both orders, or ask whether the cotangent is still what it was:

# %% objective="autograd.gradcheck"
cotangent = torch.ones(1)
Negate.backward(None, cotangent)
print("gradcheck:", gradcheck(Negate.apply, leaf(3)), " the cotangent afterwards:", cotangent)

# %% [markdown]
# **The second derivative.** `CubeWithSquare` passes; `gradgradcheck` exists for it:

# %% objective="autograd.gradcheck"
for function in (Cube, CubeWithSquare):
    second = gradgradcheck(function.apply, leaf(3), raise_exception=False)
    print(f"{function.__name__:15} gradcheck {gradcheck(function.apply, leaf(3))}  gradgradcheck {second}")

# %% [markdown]
# ### Today's way for an operator of your own
#
# "A custom operator needs an `autograd.Function`" was true for years.
# A Function is Python, and a compiler or an exporter has to look into it or stop at it.
# `torch.library.custom_op` makes an *operator*: with a name, a schema that says what it mutates, and a backward that
# is registered.

# %% objective="autograd.functions"
@torch.library.custom_op("course::relu", mutates_args=())
def relu(a: Tensor) -> Tensor:
    return a.clamp(min=0)


@relu.register_fake
def _(a: Tensor) -> Tensor:
    return torch.empty_like(a)

# %% [markdown]
# The *fake* version computes shapes without numbers. It is what a compiler runs.
# (The body must return a new tensor, no view of an input.)

# %% objective="autograd.functions"
def save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def relu_backward(ctx: Any, g: Tensor) -> Tensor:
    return g * (ctx.saved_tensors[0] > 0)


relu.register_autograd(relu_backward, setup_context=save)

# %% objective="autograd.functions"
x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
y = relu(x)
y.sum().backward()
print(y.detach(), x.grad, " an operator:", torch.ops.course.relu.default)

# %% [markdown]
# Does it keep the promises of its schema? `opcheck` asks. It does not check the numbers of the gradient; that is
# still `gradcheck`.

# %% objective="autograd.functions"
tests = ("test_schema", "test_autograd_registration", "test_faketensor")
print(torch.library.opcheck(relu, (torch.randn(3, requires_grad=True),), test_utils=tests))
print("gradcheck:", gradcheck(relu, leaf(3)))

# %% [markdown]
# A fourth test of `opcheck` traces the operator as the compiler does. It is left out here because it takes seconds.
#
# ## 8 Build it yourself
#
# You have seen all parts of autograd. Here they are again, as the engine that you are about to write:
#
# ```python
# a, b = Value(torch.randn(2, 3)), Value(torch.randn(3))
# out = ((a + b) * a).exp().sum()
# out.backward()
# a.grad, b.grad
# ```
#
# Three pieces are needed.
# The first is the sum that undoes a broadcast. Without it `b.grad` would have the shape of `a`.

# %% objective="autograd.engine"
a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
(a + b).sum().backward()
print(tuple(a.grad.shape), tuple(b.grad.shape), b.grad)

# %% [markdown]
# Each element of `b` was used in two rows, and each use sends 1 back: 2.
#
# {{exercise unbroadcast}}

# %% exercise="unbroadcast"
def unbroadcast(grad: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo broadcasting: sum `grad` down to `shape`.

    `shape` is the shape that an input had, and `grad.shape` is one to which it was broadcast.
    An element that was repeated gets the sum of the gradients of its copies.
    Dimensions that were added in front vanish; a dimension that was stretched from 1 has size 1 again.
    `grad` has any strides and is not changed. Where nothing was broadcast, the result may be `grad` itself.
    """
    ### BEGIN SOLUTION
    while grad.dim() > len(shape):
        grad = grad.sum(dim=0)
    for dim, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(dim=dim, keepdim=True)
    return grad
    ### END SOLUTION

# %%
check(unbroadcast)

# %% [markdown]
# The second piece is the order.
# A node may run only when *all* cotangents that it will get have come in.
# Here `x` is used by `exp` and by the `+`. In which order does torch visit them?

# %% objective="autograd.engine"
x = torch.tensor(1.0, requires_grad=True)
middle = x.exp()
show_backward(x + middle * middle)

# %% [markdown]
# The `+` comes first, the product next, then `exp`, and the leaf last, although the `+` points straight at it.
# Its cotangent is complete only when the long way has come in as well.
# Such an order is called *topological*. Read from its end, it is the order of backward.
#
# {{exercise topological_order}}

# %% exercise="topological_order"
def topological_order(root: Any) -> list:
    """Return `root` and everything it was made from as a list in which every node stands after its parents.

    `node.parents` is a tuple of the nodes that a node was made from; leaves have an empty one.
    A node may be a parent of several others, or twice of the same one. It stands in the list once.
    So leaves come early and `root` is last. Which of the possible orders you return is up to you.
    The nodes are left as they were, so that a second call gives the same.
    """
    ### BEGIN SOLUTION
    order, seen = [], set()

    def visit(node: Any) -> None:
        if node in seen:
            return
        seen.add(node)
        for parent in node.parents:
            visit(parent)
        order.append(node)

    visit(root)
    return order
    ### END SOLUTION

# %%
check(topological_order)

# %% [markdown]
# (A visit that calls itself is fine for a lesson. Torch's own engine keeps a queue, since graphs can be thousands of
# nodes deep and Python's calls can't.)
#
# The third piece is the engine. `__init__` and `__add__` are there.
# Each operation computes its result, notes its parents, and keeps a function `pull`: the cotangent of the result in,
# one cotangent per parent out. `backward` puts them to work.
# Your `unbroadcast` and your `topological_order` belong to it, so solve them first.
#
# {{exercise Value}}

# %% exercise="Value"
class Value:
    """A tensor that remembers how it was made: a reverse-mode engine.

    `Value(data)` is a leaf. `data` is a tensor that does not require grad; nothing here uses torch's own autograd.
    `a + b` and `a * b` broadcast as tensors do; `a @ b` multiplies (n, k) by (k, m).
    `a.exp()` works element by element; `a.sum()` adds up all elements, to a value without dimensions.
    Each of them returns a new Value. `parents` holds the values that it was made from.
    `out.backward()`, for an `out` without dimensions, adds the gradient of `out` to the `grad` of every leaf behind it,
    in the shape of the leaf's `data`. Before that `grad` is None. A second call adds the same once more.
    Each node is visited once: the work grows with the number of nodes, not with the number of paths.
    What values other than leaves keep in `grad` is up to you. No `data` is changed.
    """

    def __init__(self, data, parents=(), pull=None):
        self.data, self.parents, self.pull = data, parents, pull  # pull: cotangent -> one for each parent
        self.grad = None

    def __add__(self, other):
        def pull(g):
            return unbroadcast(g, self.data.shape), unbroadcast(g, other.data.shape)

        return Value(self.data + other.data, (self, other), pull)

    def __mul__(self, other):
        ### BEGIN SOLUTION
        def pull(g):
            return unbroadcast(g * other.data, self.data.shape), unbroadcast(g * self.data, other.data.shape)

        return Value(self.data * other.data, (self, other), pull)
        ### END SOLUTION

    def __matmul__(self, other):
        ### BEGIN SOLUTION
        return Value(
            self.data @ other.data, (self, other), lambda g: (g @ other.data.mT, self.data.mT @ g)
        )
        ### END SOLUTION

    def exp(self):
        ### BEGIN SOLUTION
        result = self.data.exp()
        return Value(result, (self,), lambda g: (g * result,))
        ### END SOLUTION

    def sum(self):
        ### BEGIN SOLUTION
        return Value(self.data.sum(), (self,), lambda g: (g.expand(self.data.shape),))
        ### END SOLUTION

    def backward(self):
        ### BEGIN SOLUTION
        cotangents = {self: torch.ones_like(self.data)}
        for node in reversed(topological_order(self)):
            g = cotangents.pop(node)
            if not node.parents:
                node.grad = g if node.grad is None else node.grad + g
                continue
            for parent, part in zip(node.parents, node.pull(g)):
                cotangents[parent] = cotangents[parent] + part if parent in cotangents else part
        ### END SOLUTION

# %%
check(Value)

# %% [markdown]
# Now the trial: formulas that nobody has chosen.
# The same random program runs on your values and on torch's tensors.

# %% objective="autograd.engine"
def random_program(seed: int, leaves: list) -> Any:
    """Eight random operations on two (3, 3) matrices and smaller leaves; a value without dimensions."""
    rng, matrices = random.Random(seed), leaves[:2]
    for _ in range(8):
        a, b = rng.choice(matrices), rng.choice(matrices)
        c = rng.choice(leaves[2:])
        matrices.append(rng.choice([a + b, a * c, a @ b, (a * leaves[-1]).exp() + c]))
    return (matrices[-1] * matrices[-2] + matrices[-3]).sum()

# %% objective="autograd.engine"
def agrees(seed: int, engine: type) -> bool:
    """Do both engines give the same gradients on one random program?"""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 3), (3, 3), (3,), (3, 1), ()]
    data = [0.3 * torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    ours = [engine(d) for d in data]
    theirs = [d.clone().requires_grad_() for d in data]
    random_program(seed, ours).backward()
    random_program(seed, theirs).backward()
    same = [(a.grad is None and b.grad is None) or torch.allclose(a.grad, b.grad) for a, b in zip(ours, theirs)]
    return all(same)


print("equal on", sum(agrees(seed, passing(Value)) for seed in range(100)), "of 100 random programs")

# %% [markdown]
# That is reverse-mode automatic differentiation, whole: about eighty lines, docstrings included.
# PyTorch's engine does the same with some two thousand operators, in C++, on several devices at once.
# Two things it does that yours does not: it frees what was saved as it goes, and it can record backward itself.
# The real one begins in `torch/csrc/autograd/engine.cpp`.
#
# ## The answer
#
# > You wrote a line of code. Does a gradient flow through it, and is it the right one?
#
# Ask four things. Is the line recorded? Does every way from the loss to the leaf stay in the graph?
# Is what was saved still what it was? And if the slope is yours, has it been checked?
# Here they are, for a dozen lines, at x = 2:

# %% objective="autograd.graph"
lines = {
    "x * x": lambda x: x * x,
    "x * x.detach()": lambda x: x * x.detach(),
    "x.detach() ** 2": lambda x: x.detach() ** 2,
    "torch.stack([x, x]).sum()": lambda x: torch.stack([x, x]).sum(),
    "x * x.item()": lambda x: x * x.item(),
    "no_grad()(square)(x)": lambda x: torch.no_grad()(torch.square)(x),
}

# %% objective="autograd.inplace"
more_lines = {
    "x.clone().mul_(3)": lambda x: x.clone().mul_(3),
    "x.exp().clone().mul_(2)": lambda x: x.exp().clone().mul_(2),
    "x.exp().mul_(2)": lambda x: x.exp().mul_(2),
    "x.sin().mul_(2)": lambda x: x.sin().mul_(2),
    "x.round()": lambda x: x.round(),
    "where(x < 0, (-x).sqrt(), x)": lambda x: torch.where(x < 0, (-x).sqrt(), x),
}

# %% objective="autograd.backward"
def verdict(f: Callable) -> str:
    """The gradient at 2 by autograd, and the slope as measured."""
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    measured = passing(numerical_gradient)(f, x).item()
    try:
        f(x).backward()
    except RuntimeError as error:
        return f"measured {measured:7.3f}   {str(error)[:56]}"
    return f"measured {measured:7.3f}   autograd {x.grad.item():7.3f}"


for name, f in {**lines, **more_lines}.items():
    print(f"{name:30}{verdict(f)}")

# %% [markdown]
# Where the two columns agree, the line is what you think it is.
# Where they do not, you can now say why; for some of them that is what was wanted.
#
# ## Recap
#
# - A result remembers the operation that made it, if recording is on and an input requires grad (rule 1).
# - Backward multiplies cotangents by slopes, from the loss to the leaves, and adds where ways meet (rule 2).
# - It adds to `.grad` of leaves. Clear before each step; divide by *samples* when you accumulate.
# - `no_grad` and `inference_mode` stop the recording, `detach` cuts a branch, `requires_grad_(False)` freezes a leaf.
# - An edit in place is an error if a node needs the old numbers (rule 3). `.data` and NumPy are not seen.
# - In a Function: save inputs and outputs, leave the cotangent alone, give each gradient the shape of its input.
# - `gradcheck` misses special points, what the engine repairs, edits of the cotangent, and second derivatives.
# - A reverse-mode engine is three ideas: pull functions, a topological order, and addition.

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] walk a graph, and say where it ends and why it is no tree? (`graph_nodes`, [section 1](#1-What-a-line-of-code-records))
# - [ ] explain what `loss.backward()` does, and why a branch not taken can give NaN? (`sqrt_or_zero`, [section 2](#2-What-backward-does))
# - [ ] say why `zero_grad` is there, and what the accumulated loss is divided by? (`accumulate_step`, [section 3](#3-Why-backward-adds))
# - [ ] name five ways to stop a gradient and choose among them? (`distill_loss`, `train_in_chunks`, [section 4](#4-Five-ways-to-stop-a-gradient))
# - [ ] predict whether an edit in place is allowed, refused or missed? (`sgd_step_`, [section 5](#5-Edits-in-place))
# - [ ] write a Function with two inputs, a number, and right second derivatives? (`MyReLU`, `ScaleFeatures`, `ScaledExp`, [section 6](#6-Your-own-slope))
# - [ ] check a gradient, and name what the check can't see? (`numerical_gradient`, [section 7](#7-How-do-you-know-that-it-is-right))
# - [ ] build a reverse-mode engine? (`unbroadcast`, `topological_order`, `Value`, [section 8](#8-Build-it-yourself))

# %% tags=["nbval-ignore-output"]
progress()
