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
# # Modules: what is registered is what exists
#
# > You write `self.thing = something` in a module. **Who will know about it: the optimizer, the checkpoint, `.to(device)`, `eval()`?**
#
# This is the question of the whole notebook.
# Each of the four finds what it needs by walking through the module, and sees only what is **registered**.
# What is not registered is not trained, not saved, not moved and not switched, and nothing warns you.
#
# **Time:** about 4 hours: one and a half to read and predict, the rest for the exercises.
# It splits well after section 3 and after section 6.
#
# **You need:** notebooks 00 and 01, and from notebook 02 what `backward`, `.grad` and `no_grad` do.
# No GPU is needed: `.double()` and the `meta` device show what moves and what does not.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# | term | in code | meaning |
# |---|---|---|
# | module | `nn.Module` | an object with a `forward` and registries for what belongs to it |
# | parameter | `nn.Parameter` | a registered tensor that an optimizer is meant to change |
# | buffer | `register_buffer` | a registered tensor that no optimizer changes: saved and moved along |
# | persistent | `persistent=False` | whether a buffer is saved |
# | submodule | `model.children()` | a module that is registered in another one |
# | state dict | `model.state_dict()` | names and tensors of all that is saved |
# | tie | `b.weight = a.weight` | one Parameter with two names |
# | mode | `module.training` | the flag that `train()` and `eval()` set |
# | hook, handle | `register_forward_hook` | a function that PyTorch calls on the way, and the object that removes it |
#
# The batch of this course goes on: `(batch, seq, dim)`, now with numbers that a layer can take.

# %%
import contextlib
import copy
import gc
import io
import warnings
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from course_lib import check, hint, passing, predict, progress, solution

_ = torch.manual_seed(0)
batch = torch.arange(24.0).reshape(2, 3, 4)  # (batch, seq, dim)

# %% [markdown]
# ## 1 What a module knows
#
# We would like to write a layer like this: assign what it needs, and say in `forward` how it is used.

# %%
class Tiny(nn.Module):
    """Shift, mix and scale: (batch, seq, dim) -> (batch, seq, dim)."""

    def __init__(self, dim: int):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.scale = nn.Parameter(torch.full((dim,), 2.0))
        self.register_buffer("center", torch.full((dim,), 11.5))
        self.shift = torch.full((dim,), -1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - self.center) * self.scale + self.shift

# %% objective="modules.registration"
tiny = Tiny(4)
print(tuple(batch.shape), "->", tuple(tiny(batch).shape))

# %% [markdown]
# Four assignments that look alike.
# They are not: `nn.Module` watches every assignment and sorts it.
# Here are its drawers.

# %% objective="modules.registration"
print("parameters", list(tiny._parameters))
print("buffers   ", list(tiny._buffers))
print("modules   ", list(tiny._modules))
print("the rest  ", [name for name in vars(tiny) if name in ("linear", "scale", "center", "shift")])

# %% [markdown]
# Three **registries**, and the `__dict__` that every Python object has.
# `shift` is an ordinary attribute in there: `forward` finds it, and nobody else looks.
#
# The registries exist as soon as `super().__init__()` has made them, and no sooner.

# %% tags=["raises-exception"] objective="modules.registration"
class NoRegistries(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(4, 4)


NoRegistries()

# %% [markdown]
# Read it as "there is no drawer yet".
# A parameter and a buffer need their drawers just as much:

# %% objective="modules.registration"
unfinished = nn.Module.__new__(nn.Module)  # a module whose __init__ never ran
for value in (nn.Parameter(torch.ones(2)), nn.Buffer(torch.ones(2))):
    try:
        unfinished.thing = value
    except AttributeError as refusal:
        print(refusal)

# %% [markdown]
# Everything else a module can do is a walk through these drawers, and through those of its submodules.

# %% objective="modules.registration"
print([name for name, _ in tiny.named_parameters()])
print([name for name, _ in tiny.named_buffers()])
print(list(tiny.state_dict()))

# %% [markdown]
# The module's own parameter comes first, then those of its children, with a dot in their names.
# `shift` is nowhere.
# What does that mean for a model that moves?
#
# {{predict plain_tensor}}

# %%
predict("plain_tensor", "c")

# %% tags=["raises-exception"] objective="modules.registration"
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.mask = torch.ones(3, 3).tril()

    def forward(self, x):
        return self.linear(x) @ self.mask


Masked().double()(torch.ones(1, 3, dtype=torch.float64))

# %% [markdown]
# `double()` walked through the registries and never met the mask.
# `.to(device)` walks the same way. (With a GPU you would read about two devices instead of two dtypes.)
# Without one, `meta` shows what moves:

# %% objective="modules.registration"
moved = Masked().to("meta")
print("weight:", moved.linear.weight.device, " mask:", moved.mask.device)

# %% [markdown]
# ### The table, executed
#
# You find a table in every tutorial: what is trained, what is saved, what is moved.
# Let us not believe it, and measure.

# %%
def fate(model: nn.Module, name: str) -> list[bool]:
    """Of the attribute `name`: is it trained, is it saved, does it move?"""
    before = copy.deepcopy(getattr(model, name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batch).square().sum().backward()
    optimizer.step()
    trained = not torch.equal(before, getattr(model, name))
    saved = name in model.state_dict()
    moved = getattr(model.double(), name).dtype == torch.float64
    return [trained, saved, moved]

# %%
class Kinds(nn.Module):
    """One tensor of each kind, all of them used: (..., dim) -> (..., dim)."""

    def __init__(self, dim: int):
        super().__init__()
        self.parameter = nn.Parameter(torch.ones(dim))
        self.frozen = nn.Parameter(torch.ones(dim), requires_grad=False)
        self.register_buffer("buffer", torch.ones(dim))
        self.register_buffer("unsaved", torch.ones(dim), persistent=False)
        self.plain = torch.ones(dim)
        self.hopeful = torch.ones(dim, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.parameter + self.frozen + self.buffer + self.unsaved + self.plain + self.hopeful)

# %% objective="modules.registration"
print(f"{'':10} {'trained':8} {'saved':8} {'moved':8}")
for name in ("parameter", "frozen", "buffer", "unsaved", "plain", "hopeful"):
    print(f"{name:10}", *(f"{'yes' if fact else '-':8}" for fact in fate(Kinds(4), name)))

# %% [markdown]
# **Rule 1.** A parameter is trained, saved and moved.
# A buffer is saved and moved. A buffer that is not persistent is moved, no more. A plain tensor is none of the three.
#
# Two lines go beyond the usual table.
# A frozen parameter is saved and not trained: being trained takes `requires_grad` as well.
# And `hopeful` requires gradients, gets gradients, and no optimizer ever hears of it:

# %% objective="modules.registration"
kinds = Kinds(4)
kinds(batch).sum().backward()
print("gradient:", kinds.hopeful.grad.tolist())
print("known to an optimizer:", any(p is kinds.hopeful for p in kinds.parameters()))

# %% [markdown]
# "So why is there no warning?"
# Plain attributes are allowed on purpose: configuration, counters, names.
# PyTorch can't know which tensor you meant to keep.
# It does object where you try to put a plain tensor into the place of a parameter:

# %% tags=["raises-exception"] objective="modules.registration"
tiny.scale = torch.ones(4)

# %% [markdown]
# For buffers there is a second spelling, `self.center = nn.Buffer(...)`.
# Once a name is a buffer, a plain tensor assigned to it stays one:

# %% objective="modules.registration"
tiny.center = torch.zeros(4)
tiny.register_buffer("scratch", torch.zeros(4), persistent=False)
print({name: name in tiny.state_dict() for name, _ in tiny.named_buffers()})

# %% [markdown]
# A running mean is the classic buffer: measured, not trained, and worthless if it is lost.
# It has a trap of its own.
# A new value that is computed from the batch hangs on the batch's graph:

# %% objective="modules.registration"
def graph_size(node: Any) -> int:
    """Nodes of the graph behind a tensor's `grad_fn`, counted along all paths."""
    return 0 if node is None else 1 + sum(graph_size(parent) for parent, _ in node.next_functions)


statistic = torch.zeros(4)
x = batch.clone().requires_grad_()
for step in range(3):
    statistic = 0.9 * statistic + 0.1 * x.mean(dim=(0, 1))
    print("after step", step, "nodes:", graph_size(statistic.grad_fn))

# %% [markdown]
# Every step drags all earlier ones behind it, and memory grows until the process ends.
# A statistic is computed from `x.detach()`, or under `no_grad`.
#
# Now build one of each kind.
#
# {{exercise RunningNorm}}

# %% exercise="RunningNorm"
class RunningNorm(nn.Module):
    """Subtract a running mean, then scale: (batch, dim) -> (batch, dim).

    A new `RunningNorm(dim)` has three tensors of shape (dim,), and nothing else in its registries:
    - `weight`, a parameter, all ones: trained and saved;
    - `mean`, a buffer, all zeros: saved, not trained;
    - `cache`, a buffer, all zeros: moved with the module, but neither saved nor trained.

    `forward(x)` returns `(x - mean) * weight`. In train mode it first puts the mean of `x` over the batch into
    `cache` and moves `mean` a tenth of the way there: `mean + 0.1 * (cache - mean)`.
    In eval mode `mean` and `cache` keep their values.
    Gradients flow to `weight` and `x`, never into the two means: they require none and keep no graph.
    """

    def __init__(self, dim: int):
        ### BEGIN SOLUTION
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("cache", torch.zeros(dim), persistent=False)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        if self.training:
            self.cache.copy_(x.detach().mean(dim=0))
            self.mean.lerp_(self.cache, 0.1)
        return (x - self.mean) * self.weight
        ### END SOLUTION

# %%
check(RunningNorm)

# %% [markdown]
# ## 2 Modules in modules
#
# A module that is assigned becomes a child, and the walk goes on into it.
# For layers in a row there is `nn.Sequential`, which also calls them in a row; for anything else you write `forward`.

# %% objective="modules.containers"
mlp = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
print([name for name, _ in mlp.named_modules()])
print(sum(parameter.numel() for parameter in mlp.parameters()), "numbers")

# %% [markdown]
# This is the network of many first tutorials, for images of 28 by 28.
# It takes rows of 784 numbers, and an image is no row. Nothing flattens it by itself:

# %% tags=["raises-exception"] objective="modules.containers"
images = torch.zeros(2, 1, 28, 28)  # (batch, channels, height, width)
mlp(images)

# %% [markdown]
# Read the sizes: the last dimension, 28, met a weight that wants 784; all others were taken for a batch of 2 · 28 rows.
# `nn.Flatten()` in front makes rows of everything but the first dimension.

# %% objective="modules.containers"
print(tuple(images.shape), "->", tuple(nn.Sequential(nn.Flatten(), mlp)(images).shape))

# %% [markdown]
# When the number of layers is a variable, a list comes to mind.
#
# {{predict layers_in_list}}

# %%
predict("layers_in_list", "b")

# %% objective="modules.containers"
class ListNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2) for _ in range(3)]
        self.head = nn.Linear(2, 1)


net = ListNet()
print(sum(p.numel() for p in net.parameters()), list(net.state_dict()))

# %% [markdown]
# A list is a plain attribute, and rule 1 says the rest: the three layers are not trained, not saved, not moved.
# Without the head at least the optimizer would have complained:

# %% tags=["raises-exception"] objective="modules.containers"
del net.head
torch.optim.SGD(net.parameters(), lr=0.1)

# %% [markdown]
# `nn.ModuleList` is a list that is a module, and `nn.ModuleDict` a dict that is one.
# They only hold: they have no `forward`, and what is called in which order is up to you.

# %% objective="modules.containers"
net.layers = nn.ModuleList(net.layers)
print(list(net.state_dict()))

# %% tags=["raises-exception"] objective="modules.containers"
net.layers(torch.ones(1, 2))

# %% [markdown]
# Lists have a second trap, and this one registers everything.
#
# {{predict repeated_layer}}

# %%
predict("repeated_layer", "c")

# %% objective="modules.containers"
model = nn.Sequential(*[nn.Linear(2, 2)] * 3)
print(sum(p.numel() for p in model.parameters()), len(model.state_dict()))
print("the same object:", model[0] is model[2])

# %% [markdown]
# > **Classic mistake: `[layer] * 3`.**
# > The code is three layers deep, and the weights are one layer wide.
# > `parameters()` meets each tensor once, so its sum tells the truth; the length of the state dict does not.
#
# {{exercise DeepMLP}}

# %% exercise="DeepMLP"
class DeepMLP(nn.Module):
    """A stack of linear layers with a ReLU between each two: (batch, dims[0]) -> (batch, dims[-1]).

    `dims` is a list or tuple of two or more sizes; layer `i` is an `nn.Linear(dims[i], dims[i + 1])` with bias.
    There is no activation after the last layer.
    All layers are registered, from the first to the last, and each has weights of its own.
    `nn.ModuleList` is made for this; any other container that registers the layers will do as well.
    """

    def __init__(self, dims: list[int] | tuple[int, ...]):
        ### BEGIN SOLUTION
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n_in, n_out) for n_in, n_out in pairwise(dims))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)
        ### END SOLUTION

# %%
check(DeepMLP)

# %% [markdown]
# How many numbers has a model?
# The one-liner from above counts all parameters.
# For the memory of an optimizer you want the trained ones, for the size of the model the buffers as well.
#
# {{exercise count_params}}

# %% exercise="count_params"
def count_params(model: nn.Module) -> dict[str, int]:
    """Return how many numbers `model` holds, as a dict with the keys "trainable", "frozen" and "buffers".

    "trainable" counts the elements of all parameters that require gradients, "frozen" those of all others,
    "buffers" those of all buffers, whether they are saved or not.
    Submodules at every depth belong to the model. A tensor with several names counts once.
    The values are plain ints. The model is not changed.
    """
    ### BEGIN SOLUTION
    counts = {"trainable": 0, "frozen": 0}
    for parameter in model.parameters():
        counts["trainable" if parameter.requires_grad else "frozen"] += parameter.numel()
    counts["buffers"] = sum(buffer.numel() for buffer in model.buffers())
    return counts
    ### END SOLUTION

# %%
check(count_params)

# %% [markdown]
# Try it on the models that we have.

# %% objective="modules.containers"
counted = passing(count_params)
print(counted(nn.Sequential(nn.Flatten(), mlp)))
print(counted(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))))
print(counted(passing(DeepMLP)([4, 8, 8, 2])))

# %% [markdown]
# The BatchNorm holds 17 numbers in buffers: 8 means, 8 variances, and a counter of batches.
#
# ## 3 Saving: a dict of references
#
# `state_dict()` gives names and tensors.
# `load_state_dict()` copies them back.
# Between the two lies the most expensive mistake of this notebook.
#
# {{predict best_weights}}

# %%
predict("best_weights", "b")

# %% objective="modules.saving"
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
best = model.state_dict()
nn.init.constant_(model.weight, 9.0)
_ = model.load_state_dict(best)
print(model.weight.item())

# %% [markdown]
# `best` was never the best: it was the model's own storage under another name, as notebook 01 would say.

# %% objective="modules.saving"
print("same storage:", best["weight"].data_ptr() == model.weight.data_ptr())
print("requires grad:", best["weight"].requires_grad)

# %% [markdown]
# **Rule 2.** A state dict is a new dict with the old tensors, detached.
#
# Writing it to a file at once is fine: a file is a copy.
# Keeping it in a variable is not.
# And half a copy is none:

# %% objective="modules.saving"
attempts = {
    "dict(...)": dict(model.state_dict()),
    "copy.copy": copy.copy(model.state_dict()),
    ".cpu()": {name: tensor.cpu() for name, tensor in model.state_dict().items()},
}
nn.init.zeros_(model.weight)
print({way: state["weight"].item() for way, state in attempts.items()})

# %% [markdown]
# All three followed the model to 0.
# (From a GPU, `.cpu()` would have copied: the same script keeps the best weights there and loses them here.
# Without a GPU we can't show it.)
#
# {{exercise snapshot}}

# %% exercise="snapshot"
def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Return what `model.state_dict()` holds now, in tensors that later training does not change.

    The result is a dict with the same names and values; a subclass such as OrderedDict will do.
    Its tensors have storages of their own and require no gradients.
    `model.load_state_dict(result)` brings this state back later. The model is not changed.
    """
    ### BEGIN SOLUTION
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ### END SOLUTION

# %%
check(snapshot)

# %% [markdown]
# ### Loading, strictly
#
# Loading compares names first.
# By default each must be there, and no other:

# %% tags=["raises-exception"] objective="modules.saving"
nn.Linear(2, 2).load_state_dict({"weigth": torch.ones(2, 2)})

# %% [markdown]
# A typo, found at once.
# When such an error stands in the way, `strict=False` is the remedy that one reads most.
#
# {{predict lenient_load}}

# %%
predict("lenient_load", "c")

# %% objective="modules.saving"
state = {f"module.{name}": t for name, t in nn.Linear(2, 2).state_dict().items()}
model = nn.Linear(2, 2)
before = model.weight.clone()
print(model.load_state_dict(state, strict=False))
print("changed:", not torch.equal(before, model.weight))

# %% [markdown]
# > **Classic mistake: a checkpoint that "loads".**
# > The returned value lists every name twice, as missing and as unexpected, and the script throws it away.
# > The model then predicts like a random one, since it is one.
#
# Where does such a prefix come from?
# A wrapper is a module that has the model as its child. `torch.compile` is one (it compiles nothing until it is called):

# %% objective="modules.saving"
layer = nn.Linear(2, 2)
print(list(torch.compile(layer).state_dict()))
print(list(nn.DataParallel(layer).state_dict()))
print(list(nn.DataParallel(torch.compile(layer)).state_dict()))

# %% [markdown]
# Saving the model that you wrapped, instead of the wrapper, gives clean names.
# For a checkpoint that is already there, repair the names.
#
# {{exercise strip_prefixes}}

# %% exercise="strip_prefixes"
def strip_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a checkpoint under the names that the unwrapped model has.

    Wrappers put `module.` (data parallel) or `_orig_mod.` (torch.compile) in front of every name.
    A model may have been wrapped several times, in any order: remove all that stand at the front of a name.
    The same words further inside a name belong to the model and stay.
    Each tensor is handed on as it is. The result is a dict in the order of `state`, and `state` is not changed.
    """
    ### BEGIN SOLUTION
    stripped = {}
    for name, tensor in state.items():
        while name.startswith(("module.", "_orig_mod.")):
            name = name.partition(".")[2]
        stripped[name] = tensor
    return stripped
    ### END SOLUTION

# %%
check(strip_prefixes)

# %% [markdown]
# There is an honest use of `strict=False`: a new head on an old body.
# But it forgives names only. Shapes are compared whatever you say:

# %% tags=["raises-exception"] objective="modules.saving"
nn.Linear(2, 3).load_state_dict(nn.Linear(4, 3).state_dict(), strict=False)

# %% [markdown]
# So choose what fits yourself, and know what did not.
#
# {{exercise load_matching}}

# %% exercise="load_matching"
def load_matching(model: nn.Module, state: dict[str, Tensor]) -> list[str]:
    """Load the entries of `state` that fit `model`; return the names of the model's entries that stayed as they were.

    An entry fits if `model.state_dict()` has one of the same name and the same shape. Its values are copied into
    the model, so that training the model later does not change `state`.
    All other entries of `state` are ignored. The names are returned as a sorted list.
    Raise ValueError if no entry fits: such a checkpoint belongs to another model. The model is then as before.
    """
    ### BEGIN SOLUTION
    own = model.state_dict()
    fitting = {
        name: tensor for name, tensor in state.items() if name in own and tensor.shape == own[name].shape
    }
    if not fitting:
        raise ValueError("no entry of this checkpoint fits the model")
    model.load_state_dict(fitting, strict=False)
    return sorted(own.keys() - fitting.keys())
    ### END SOLUTION

# %%
check(load_matching)

# %% [markdown]
# ### Copy or assign
#
# Loading copies values into the tensors of the model. With `assign=True` the model takes the given tensors themselves.
# Who else had the old ones?
#
# {{predict assigned_weights}}

# %%
predict("assigned_weights", "b")

# %% objective="modules.saving"
model = nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
_ = model.load_state_dict({"weight": torch.ones(1, 1)}, assign=True)
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
print("weight", model.weight.item(), " gradient", model.weight.grad.item())

# %% [markdown]
# There is a gradient, and nobody to apply it.
# Load before you make the optimizer, and before you tie weights, which is the next section.
#
# ## 4 Two names, one weight
#
# A language model may use one table at both ends: to look tokens up, and to score them.
# Assigning the Parameter a second time **ties** the two.

# %%
class Tied(nn.Module):
    """Token numbers (batch, seq) -> scores (batch, seq, n_tokens)."""

    def __init__(self, n_tokens: int = 5, dim: int = 4):
        super().__init__()
        self.table = nn.Embedding(n_tokens, dim)
        self.head = nn.Linear(dim, n_tokens, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens))

# %% objective="modules.tying"
tied = Tied()
print("one object:", tied.head.weight is tied.table.weight)
print("parameters:", [name for name, _ in tied.named_parameters()])
print("state dict:", list(tied.state_dict()))
print("counted:   ", counted(tied))

# %% [markdown]
# One Parameter, so the optimizer has one, and both uses add to one gradient.
# The state dict lists it under both names, so a sum over the state dict counts it twice.
#
# Equal values are no tie, and nor is a shared storage.
# `.data` gives a tensor over the same storage, and a second Parameter around it *looks* tied:

# %% objective="modules.tying"
twin = Tied()
twin.head.weight = nn.Parameter(twin.table.weight.data)
print("same storage:", twin.head.weight.data_ptr() == twin.table.weight.data_ptr())
print("parameters:", len(list(twin.parameters())), counted(twin))
_ = twin.double()
print("still one storage:", twin.head.weight.data_ptr() == twin.table.weight.data_ptr())

# %% [markdown]
# Two parameters: an optimizer moves the shared numbers twice per step, and the first `double()` takes them apart.
#
# {{exercise tied_names}}

# %% exercise="tied_names"
def tied_names(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of tied parameters: a list with one tuple of names for each parameter that has several.

    Two names are tied if they lead to the same Parameter object. Equal values are not tied, nor are two
    Parameters over one storage. The model may be on any device, `meta` as well.
    The names in each tuple are sorted, and so is the list. The model is not changed.
    """
    ### BEGIN SOLUTION
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return sorted(tuple(sorted(group)) for group in names.values() if len(group) > 1)
    ### END SOLUTION

# %%
check(tied_names)

# %% [markdown]
# With this instrument we can ask what a tie survives.
# Moving and copying a model are one line each. For loading, and for a weight that is set by hand, two helpers:

# %%
def loaded(model: nn.Module, **options: bool) -> nn.Module:
    """`model` after loading a copy of its own state."""
    model.load_state_dict(copy.deepcopy(model.state_dict()), **options)
    return model


def with_new_weight(model: nn.Module) -> nn.Module:
    """`model` after somebody set a weight 'by hand'."""
    model.table.weight = nn.Parameter(torch.zeros(5, 4))
    return model

# %% [markdown]
# {{predict tie_moves}}

# %%
predict("tie_moves", "c")

# %% objective="modules.tying"
changes = {
    "double()": lambda model: model.double(),
    "deepcopy": copy.deepcopy,
    "load_state_dict(state)": loaded,
    "load_state_dict(state, assign=True)": partial(loaded, assign=True),
    'to("meta")': lambda model: model.to("meta"),
    "a new Parameter in one place": with_new_weight,
}
for change, f in changes.items():
    print(f"{change:36}", "tied" if passing(tied_names)(f(Tied())) else "not tied")

# %% [markdown]
# **Rule 3.** What writes *into* a Parameter keeps the tie. What puts a *new* Parameter in its place breaks it.
#
# The same rule decides whether an optimizer still owns the weights, as it holds Parameters and not names.
#
# > **Classic mistake: loading, and no longer tied.**
# > Head and table drift apart from the first step on, the count doubles, and no error is raised.
# > Tie again after anything that may have broken it: `model.head.weight = model.table.weight`.

# %% objective="modules.tying"
broken = loaded(Tied(), assign=True)
print("trained:", counted(broken)["trainable"])
broken.head.weight = broken.table.weight
print("trained:", counted(broken)["trainable"])

# %% [markdown]
# ## 5 Built on nothing
#
# A large model is filled with random numbers, only to be overwritten by a checkpoint a moment later.
# Under the `meta` device the constructors run without memory: names, shapes, dtypes, and no numbers.

# %% objective="modules.meta"
with torch.device("meta"):
    large = nn.Sequential(nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192))
print(counted(large)["trainable"] * 4 // 2**20, "MiB, if it were real")
print(large[0].weight.device, tuple(large(torch.empty(2, 8192, device="meta")).shape))

# %% [markdown]
# It can be counted, printed and asked for shapes.
# How do numbers get in? Not by moving it:

# %% tags=["raises-exception"] objective="modules.meta"
large.to("cpu")

# %% [markdown]
# And not by copying into tensors that have no place for a number:

# %% objective="modules.meta"
with torch.device("meta"):
    layer = nn.Linear(2, 2)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    layer.load_state_dict(nn.Linear(2, 2).state_dict())
print(layer.weight.device, "-", str(caught[0].message).split(" (")[0])

# %% [markdown]
# A warning, and nothing happened.
# Two ways remain. `to_empty` gives storages with whatever was there, to be filled by you:

# %% objective="modules.meta"
layer.to_empty(device="cpu").reset_parameters()
print(layer.weight.device, layer.weight.shape)

# %% [markdown]
# The other is `assign=True`, which does not copy into the old tensors but replaces them.
# A meta tensor is no loss.
#
# A wart: by rule 3, `to_empty` from `meta` and `assign=True` both break ties.
# And a buffer that is not saved is in no checkpoint, so nobody fills it:

# %% objective="modules.meta"
with torch.device("meta"):
    norm, tied = Kinds(4), Tied()
norm.load_state_dict({name: torch.ones(4) for name in norm.state_dict()}, assign=True)
print("unsaved:", norm.unsaved.device, " tied at first:", passing(tied_names)(tied))
print("tied after to_empty:", passing(tied_names)(tied.to_empty(device="cpu")))

# %% [markdown]
# {{exercise load_from_meta}}

# %% exercise="load_from_meta"
def load_from_meta(build: Callable[[], nn.Module], state: dict[str, Tensor]) -> nn.Module:
    """Return the model that `build()` makes, with the values in `state`, and without computing initial weights.

    Call `build()` under the meta device, so that no memory is filled and no random number drawn.
    `state` has an entry for each parameter and buffer of the model; raise RuntimeError if one is missing.
    The model is on the device of the entries, the CPU here, and has storages of its own: training it does not
    change `state`. A parameter that `build()` froze is frozen. The default device is left as it was.
    No two names of the model are tied, and `build` asks for no device itself.
    """
    ### BEGIN SOLUTION
    with torch.device("meta"):
        model = build()
    own = {name: tensor.clone() for name, tensor in state.items()}
    model.load_state_dict(own, assign=True)
    return model
    ### END SOLUTION

# %%
check(load_from_meta)

# %% [markdown]
# ## 6 Two modes
#
# `train()` and `eval()` do one thing: they set the flag `training` in every module below.
# What it means is up to each layer. Most do not look at it.

# %% objective="modules.modes"
model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.5)))
print([module.training for module in model.modules()])
print([module.training for module in model.eval().modules()])

# %% [markdown]
# A warm-up: what does `eval()` switch off?
#
# {{predict eval_and_graph}}

# %%
predict("eval_and_graph", "b")

# %% objective="modules.modes"
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
model.eval()
print(model(batch).requires_grad)

# %% [markdown]
# The graph is built as before.
# And the other way round, `no_grad` stops no dropout:

# %% objective="modules.modes"
model.train()
with torch.no_grad():
    once, again = model(batch), model(batch)
print("graph:", once.requires_grad, " equal:", torch.equal(once, again))

# %% [markdown]
# **Rule 4.** `eval()` changes what layers compute. `no_grad` changes what autograd records. An evaluation needs both.
#
# ### The table, layer by layer
#
# For each layer: does it answer twice alike in train mode, and in eval mode? Does a forward pass change its buffers?

# %%
def habits(layer: nn.Module, x: Tensor) -> list[str]:
    """Alike twice in train mode, alike twice in eval mode, buffers changed in train mode, and in eval mode."""
    found = []
    for mode in (True, False):
        layer.train(mode)
        before = [buffer.clone() for buffer in layer.buffers()]
        outputs = [layer(x), layer(x)]
        first, second = (out[0] if isinstance(out, tuple) else out for out in outputs)
        changed = not all(map(torch.equal, before, layer.buffers()))
        found.append((torch.equal(first, second), changed))
    (alike_train, moved_train), (alike_eval, moved_eval) = found
    return ["yes" if fact else "-" for fact in (alike_train, alike_eval, moved_train, moved_eval)]

# %%
class Attention(nn.MultiheadAttention):
    """Self-attention, with its input as query, key and value."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x, x)[0]


class Function(nn.Module):
    """A function dressed up as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.forward = function

# %% [markdown]
# Here are the layers that you meet most, and two functions:

# %%
rows = batch.flatten(0, 1)  # (batch * seq, dim)
layers = {
    "Linear": (nn.Linear(4, 4), batch),
    "LayerNorm": (nn.LayerNorm(4), batch),
    "Conv1d": (nn.Conv1d(3, 2, 2), batch),
    "Embedding": (nn.Embedding(6, 4), torch.arange(6)),
    "Dropout": (nn.Dropout(0.5), batch),
    "BatchNorm1d": (nn.BatchNorm1d(4), rows),
    "  no running stats": (nn.BatchNorm1d(4, track_running_stats=False), rows),
    "attention": (Attention(4, 2, dropout=0.5, batch_first=True), batch),
    "LSTM, 2 layers": (nn.LSTM(4, 4, 2, dropout=0.5), batch),
    "F.dropout": (Function(lambda x: F.dropout(x, 0.5)), batch),
    "F.sdpa(dropout_p)": (Function(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)), batch),
}

# %% objective="modules.modes"
print(f"{'':20} {'alike twice':16} {'buffers change'}")
print(f"{'':20} {'train':7} {'eval':8} {'train':7} eval")
for name, (layer, x) in layers.items():
    train, evaluation, moved, moved_in_eval = habits(layer, x)
    print(f"{name:20} {train:7} {evaluation:8} {moved:7} {moved_in_eval}")

# %% [markdown]
# Read it from the top.
# Most layers have no modes. Dropout, and the layers that have some inside, are random in train mode.
# BatchNorm is the only one that a forward pass *changes*.
# And the last two lines are random in both modes, because a function has no mode.
#
# Two warts. There is no `nn.BatchNorm`, only 1d, 2d and 3d.
# And `nn.MultiheadAttention` expects `(seq, batch, dim)`, unless you say `batch_first=True`:

# %% objective="modules.modes"
print(hasattr(nn, "BatchNorm"), nn.MultiheadAttention(4, 2).batch_first)
_, weights = nn.MultiheadAttention(4, 2)(batch, batch, batch)  # meant as (batch 2, seq 3)
print("attention among", weights.shape[-1], "steps, in", weights.shape[0], "sequences")

# %% [markdown]
# It took our 2 sequences of 3 steps for 3 sequences of 2 steps, and nothing was wrong with any shape.
#
# ### What BatchNorm computes
#
# In train mode it subtracts the mean of the batch, and moves its running statistics a tenth of the way.

# %% objective="modules.modes"
norm = nn.BatchNorm1d(4)
out = norm(rows)
print("mean of the output is 0:", torch.allclose(out.mean(dim=0), torch.zeros(4), atol=1e-5))
print("running mean:", norm.running_mean.tolist(), "= 0.1 *", rows.mean(dim=0).tolist())
print("running var: ", norm.running_var.tolist(), "= 0.9 + 0.1 *", rows.var(dim=0).tolist())

# %% [markdown]
# The running variance is the unbiased one, as `Tensor.var` computes it.
# For normalizing, the biased one is used, which divides by n:

# %% objective="modules.modes"
print("biased:  ", torch.allclose(out.var(dim=0, correction=0), torch.ones(4), atol=1e-4))
print("unbiased:", torch.allclose(out.var(dim=0), torch.ones(4), atol=1e-4))

# %% [markdown]
# In eval mode the running statistics take the place of the batch's:

# %% objective="modules.modes"
by_hand = (rows - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
print("eval mode:", torch.allclose(norm.eval()(rows), by_hand))
alone = norm(rows[:1])
print("one row alone gives the same:", torch.allclose(alone, by_hand[:1]))

# %% [markdown]
# In train mode a row alone has no variance, and BatchNorm refuses.
# With `track_running_stats=False` there is nothing to switch to: it uses the batch in eval mode, too.

# %% objective="modules.modes"
untracked = nn.BatchNorm1d(4, track_running_stats=False).eval()
print("still the batch's mean:", torch.allclose(untracked(rows).mean(dim=0), torch.zeros(4), atol=1e-5))

# %% tags=["raises-exception"] objective="modules.modes"
norm.train()(rows[:1])

# %% [markdown]
# ### Functions have no mode
#
# {{predict functional_dropout}}

# %%
predict("functional_dropout", "b")

# %% objective="modules.modes"
class Drops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)


print((Drops().eval()(torch.ones(1000)) == 0).sum())

# %% [markdown]
# > **Classic mistake: `F.dropout(x, 0.5)` in `forward`.**
# > The predictions change from run to run after `eval()`.
# > Pass `training=self.training`, or use `nn.Dropout`, which does. For attention: `dropout_p=0.5 if self.training else 0.0`.

# %% objective="modules.modes"
class KnowsItsMode(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=self.training)


print((KnowsItsMode().eval()(torch.ones(1000)) == 0).sum())

# %% [markdown]
# After an evaluation, one goes on training: `model.train()`.
# It sets *every* flag, whatever it was before.

# %% objective="modules.modes"
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
model[1].eval()  # on purpose: these statistics shall stay
model.eval()
model.train()
print("the norm is in train mode:", model[1].training)

# %% [markdown]
# {{exercise eval_mode}}

# %% exercise="eval_mode"
@contextmanager
def eval_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Evaluate inside the block: `with eval_mode(model):` switches to eval mode and stops recording gradients.

    Inside the block every submodule is in eval mode, and operations build no graph.
    Afterwards, also when the block raises, each submodule is back in the mode in which it was, and gradients are
    recorded or not as before. The exception goes on to the caller.
    Nothing changes before the block is entered. What `as` gives is up to you.
    """
    ### BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        for module, mode in modes:
            module.training = mode
    ### END SOLUTION

# %%
check(eval_mode)

# %% [markdown]
# The norm that was put into eval mode on purpose now stays there:

# %% objective="modules.modes"
model[1].eval()
with passing(eval_mode)(model):
    print("inside:", [m.training for m in model.modules()], model(rows).requires_grad)
print("after: ", [m.training for m in model.modules()], model(rows).requires_grad)

# %% [markdown]
# ## 7 Freezing
#
# To keep a part of a model as it is, `requires_grad_(False)` seems to say it all.
#
# {{predict frozen_norm}}

# %%
predict("frozen_norm", "b")

# %% objective="modules.freezing"
norm = nn.BatchNorm1d(2).requires_grad_(False)
for _ in range(3):
    norm(torch.randn(8, 2) + 5)
print(norm.running_mean)

# %% [markdown]
# Not a parameter moved, and the layer computes something else than before.
# **Rule 5.** A module has two kinds of state. The optimizer changes parameters; the forward pass changes buffers.
# Freezing means to stop both.
#
# "Then nothing flows through frozen layers any more?"
# Gradients flow *through* them, to whatever was there before. They only do not stop there:

# %% objective="modules.freezing"
first, frozen = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
frozen(first(batch)).sum().backward()
print("frozen:", frozen.weight.grad, " before it:", tuple(first.weight.grad.shape))

# %% [markdown]
# So a frozen layer in the middle still takes part in `backward`; only a frozen beginning saves its graph.
# Freezing everything is noticed at once:

# %% tags=["raises-exception"] objective="modules.freezing"
frozen(batch).sum().backward()

# %% [markdown]
# {{exercise freeze_backbone}}

# %% exercise="freeze_backbone"
def freeze_backbone(backbone: nn.Module, head: nn.Module) -> Iterable[nn.Parameter]:
    """Freeze `backbone`, and return the parameters to hand to the optimizer: those of `head`, each once.

    Afterwards `head(backbone(x))` can be trained, and neither parameters nor buffers of the backbone change.
    No parameter of the backbone requires gradients, and its normalization uses and keeps its running statistics.
    Dropout inside the backbone may be on or off.
    The head keeps its mode, its values and what it trains. Any iterable of parameters will do.
    """
    ### BEGIN SOLUTION
    backbone.requires_grad_(False)
    backbone.eval()
    return list(head.parameters())
    ### END SOLUTION

# %%
check(freeze_backbone)

# %% [markdown]
# That is frozen, until somebody calls `model.train()`. Every training loop does, at the start of every epoch:

# %% objective="modules.freezing"
backbone, head = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2)
parameters = list(passing(freeze_backbone)(backbone, head))
model = nn.Sequential(backbone, head)
for _ in range(2):  # epochs
    model.train()
    model(rows)
    print("batches seen by the frozen norm:", backbone[1].num_batches_tracked.item())

# %% [markdown]
# > **Classic mistake: frozen once.**
# > `model.train()` reached the norm and woke it. The weights do not move, the statistics do, and the checkpoint no longer matches the model that was published.
#
# `train` is a method like any other: `model.train()` sets its flag, then calls `train` of each child.
# A module that has its own `train` decides for all below it.

# %% objective="modules.freezing"
class Stubborn(nn.Linear):
    def train(self, mode: bool = True):
        print("train", mode, "- no")
        return super().train(False)


model = nn.Sequential(Stubborn(4, 4), nn.Dropout(0.5)).train()
print([module.training for module in model.modules()])

# %% [markdown]
# `eval()` is `train(False)`, so it comes through the same door.
#
# {{exercise FrozenBackbone}}

# %% exercise="FrozenBackbone"
class FrozenBackbone(nn.Module):
    """`head(backbone(x))`, of which only the head is trained, whatever `train()` is called.

    From the beginning no parameter of `backbone` requires gradients, and no use of this module changes the
    backbone's parameters or buffers: not in train mode, not after `model.train()`, and not after `train()` of a
    module that contains this one. The backbone's normalization always uses its running statistics.
    The head follows `train()` and `eval()` as usual, and `train()` returns the module itself, as always.
    Backbone and head are registered as `backbone` and `head`: both are saved.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module):
        ### BEGIN SOLUTION
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.head = head
        ### END SOLUTION

    def train(self, mode: bool = True) -> nn.Module:
        ### BEGIN SOLUTION
        super().train(mode)
        self.backbone.eval()
        return self
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        return self.head(self.backbone(x))
        ### END SOLUTION

# %%
check(FrozenBackbone)

# %% [markdown]
# ## 8 Hooks
#
# Registries hold one more thing: functions that PyTorch calls on the way.
# A **forward hook** gets the module, its arguments and its output, after each call.

# %% objective="modules.hooks"
def look(module: nn.Module, args: tuple, output: Tensor) -> None:
    print(type(module).__name__, [tuple(arg.shape) for arg in args], "->", tuple(output.shape))


layer = nn.Linear(4, 2)
handle = layer.register_forward_hook(look)
_ = layer(batch)

# %% [markdown]
# The arguments come as a tuple, even where there is one.
# The **handle** is the only way to get rid of the hook:

# %% objective="modules.hooks"
handle.remove()
_ = layer(batch)
print("hooks left:", len(layer._forward_hooks))

# %% [markdown]
# Who calls the hook?
#
# {{predict forward_call}}

# %%
predict("forward_call", "a")

# %% objective="modules.hooks"
seen = []
layer = nn.Linear(4, 2)
_ = layer.register_forward_hook(lambda module, args, output: seen.append(output.shape))
layer.forward(batch)
print(len(seen))
layer(batch)
print(len(seen))

# %% [markdown]
# > **Classic mistake: `model.forward(x)`.**
# > Hooks live in `__call__`, which calls `forward` between them.
# > Call the module, and let nobody call `forward` but PyTorch.
#
# ### A hook may change what it sees
#
# {{predict hook_returns}}

# %%
predict("hook_returns", "b")

# %% objective="modules.hooks"
layer = nn.Linear(4, 2)
_ = layer.register_forward_hook(lambda module, args, output: output * 0)
print(layer(batch).abs().sum().item())

# %% [markdown]
# A lambda returns the value of its expression.
# `lambda ...: seen.append(...)` is safe because `append` returns None.
#
# A **pre-hook** comes before `forward` and may replace the arguments.
# Keyword arguments are shown to hooks that ask for them:

# %% objective="modules.hooks"
layer = nn.Linear(4, 2)
handle = layer.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
print("only the bias is left:", torch.equal(layer(batch)[0, 0], layer.bias))
handle.remove()
_ = layer.register_forward_hook(lambda m, args, kwargs, out: print(args, list(kwargs)), with_kwargs=True)
_ = layer(input=batch)

# %% [markdown]
# And an output need not be a tensor. Attention returns two, an LSTM a nested tuple:

# %% objective="modules.hooks"
for layer in (nn.LSTM(4, 2), nn.MultiheadAttention(4, 2)):
    inputs = (batch,) * (1 if isinstance(layer, nn.LSTM) else 3)
    with layer.register_forward_hook(lambda module, args, output: print([type(part).__name__ for part in output])):
        layer(*inputs)

# %% [markdown]
# A handle is also a context manager, as you see: it removes its hook at the end of the block, and after exceptions.
#
# ### What stays when a hook stays
#
# A hook that nobody removes runs for ever, and keeps alive what it keeps.
# Here it keeps an output; the output keeps its graph; the graph keeps every activation.

# %% objective="modules.hooks"
model, kept = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), []
handle = model.register_forward_hook(lambda module, args, output: kept.append(output))
activations = []
watching = model[1].register_forward_hook(lambda m, a, output: activations.append(weakref.ref(output)))
for _ in range(3):
    model(batch)
print("activations alive:", sum(ref() is not None for ref in activations))
kept.clear()
print("after letting go: ", sum(ref() is not None for ref in activations))

# %% [markdown]
# Nobody asked for the activations of the middle layer, and none was free while `kept` held the output.
#
# In a notebook there is a leak of its own: run a cell twice, and its hook is registered twice.

# %% objective="modules.hooks"
layer, calls = nn.Linear(4, 2), []
for _ in range(3):  # as if a cell had been run three times
    handle = layer.register_forward_hook(lambda module, args, output: calls.append(1))
layer(batch)
handle.remove()
print("calls:", len(calls), " hooks left after one remove():", len(layer._forward_hooks))

# %% [markdown]
# Now the smallest useful tool: look at one layer, once, and leave nothing behind.
#
# {{exercise output_of}}

# %% exercise="output_of"
def output_of(model: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return what the submodule called `name` puts out when the model is called with `x`.

    `name` is a name from `model.named_modules()`: "0", "block.linear", or "" for the model itself.
    The model is called once, in the mode in which it is, and calls that submodule once; its output is a tensor.
    Gradients flow back through the result.
    Afterwards the model has the hooks that it had before, also when it raises: its exception goes on to the caller.
    """
    ### BEGIN SOLUTION
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        model(x)
    finally:
        handle.remove()
    return seen[0]
    ### END SOLUTION

# %%
check(output_of)

# %% [markdown]
# For several layers over several calls, a class is handier.
# You will use this one again in notebook 06, to see where the memory goes.
#
# {{exercise ActivationRecorder}}

# %% exercise="ActivationRecorder"
class ActivationRecorder:
    """Note shape and mean of what some layers put out: `with ActivationRecorder(model, names) as recorder:`.

    `names` holds names from `model.named_modules()`. Call the model inside the block. After it, and inside,
    `recorder.stats[name]` is `{"shape": a tuple, "mean": a float}` of the last output of that layer.
    If a layer returns a tuple, its first element counts. Layers that were not called have no entry.
    The model's outputs and gradients are what they would be without the recorder.
    No graph and no whole output is kept: only numbers.
    After the block your hooks are gone and those of others are still there, also when the block raises; the
    exception goes on to the caller.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]):
        ### BEGIN SOLUTION
        self.layers = {name: model.get_submodule(name) for name in names}
        self.stats: dict[str, dict[str, Any]] = {}
        self.handles: list[RemovableHandle] = []
        ### END SOLUTION

    def __enter__(self) -> Any:
        ### BEGIN SOLUTION
        for name, layer in self.layers.items():
            self.handles.append(layer.register_forward_hook(partial(self.note, name)))
        return self
        ### END SOLUTION

    def __exit__(self, *exception: object) -> None:
        ### BEGIN SOLUTION
        while self.handles:
            self.handles.pop().remove()

    def note(self, name: str, layer: nn.Module, args: tuple, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        self.stats[name] = {"shape": tuple(tensor.shape), "mean": tensor.detach().float().mean().item()}
        ### END SOLUTION

# %%
check(ActivationRecorder)

# %% [markdown]
# The deep network from section 2 has no names worth remembering, so ask it for all of its linear layers:

# %% objective="modules.hooks"
tower = passing(DeepMLP)([4, 8, 8, 2])
names = [name for name, module in tower.named_modules() if isinstance(module, nn.Linear)]
with passing(ActivationRecorder)(tower, names) as recorder:
    tower(rows)
print([entry["shape"] for entry in recorder.stats.values()])

# %% [markdown]
# ### Hooks on the way back
#
# `backward` has hooks as well, and they see gradients.
#
# | registered on | with | sees |
# |---|---|---|
# | a module | `register_full_backward_hook` | the gradients of its inputs and outputs |
# | a tensor | `register_hook` | its gradient, before it goes on; a returned value replaces it |
# | a parameter | `register_post_accumulate_grad_hook` | the parameter, when its `.grad` is complete |
#
# In which order do they come?

# %% objective="modules.hooks"
layer = nn.Linear(4, 2, bias=False)
_ = layer.register_full_backward_hook(lambda m, grad_in, grad_out: print("module   ", tuple(grad_out[0].shape)))
_ = layer.weight.register_hook(lambda grad: print("tensor   ", tuple(grad.shape), layer.weight.grad is None))
_ = layer.weight.register_post_accumulate_grad_hook(lambda p: print("parameter", tuple(p.grad.shape)))
x = batch.clone().requires_grad_()
_ = x.register_hook(lambda grad: print("input    ", tuple(grad.shape)))
layer(x).sum().backward()

# %% [markdown]
# The tensor hook on the weight runs while `.grad` is still None, the hook on the parameter when it is there.
# The module's hook comes when the gradient of its input is known.
# (Between different tensors the order is the engine's business: do not build on it.)
#
# A tensor hook that returns something changes the gradient from there on:

# %% objective="modules.hooks"
weight = torch.ones(2, requires_grad=True)
hidden = weight * 3
handle = hidden.register_hook(lambda grad: grad.clamp(max=0.5))
hidden.sum().backward()
print(weight.grad)

# %% [markdown]
# Without the hook it would be 3; the gradient of `hidden`, 1, was cut to 0.5 on its way.
#
# Two warts. The old `register_backward_hook` is deprecated, as it may miss some of the gradients:

# %% objective="modules.hooks"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    old = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    _ = old.register_backward_hook(lambda module, grad_in, grad_out: None)
    old(batch.clone().requires_grad_()).sum().backward()
print(caught[0].category.__name__, "-", str(caught[0].message).split(". ")[0])

# %% [markdown]
# And a full backward hook wraps the output of its module, so that an in-place layer after it is refused:

# %% objective="modules.hooks"
model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(inplace=True))
_ = model[0].register_full_backward_hook(lambda module, grad_in, grad_out: None)
try:
    model(batch)
except RuntimeError as refusal:
    print(str(refusal).split(". ")[0])

# %% [markdown]
# The third kind, on parameters, can do more than look: at that moment the gradient is complete, and nobody else needs it.
# An optimizer that works here never holds the gradients of a whole model.
#
# {{exercise step_in_backward}}

# %% exercise="step_in_backward"
def step_in_backward(model: nn.Module, lr: float) -> list[RemovableHandle]:
    """Let each `loss.backward()` train `model` by itself: SGD without an optimizer and without stored gradients.

    As soon as the gradient of a parameter is complete, the parameter moves by `-lr` times its gradient, and its
    `.grad` is None again, before the gradients of earlier layers are computed.
    Parameters that require no gradient when this is called are left alone. A parameter with several names moves once.
    Return a list of handles: when `remove()` was called on each, `backward()` only accumulates gradients again.
    """
    ### BEGIN SOLUTION

    @torch.no_grad()
    def step(parameter: Tensor) -> None:
        parameter.sub_(parameter.grad, alpha=lr)
        parameter.grad = None

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [parameter.register_post_accumulate_grad_hook(step) for parameter in trained]
    ### END SOLUTION

# %%
check(step_in_backward)

# %% [markdown]
# ## The answer
#
# > You write `self.thing = something` in a module. Who will know about it?
#
# Whoever walks through the registry in which it landed, and `nn.Module` decides by its type.
# Ask the module itself:

# %%
def registry_of(value: Any) -> str:
    """Where `self.thing = value` puts a value."""
    module = nn.Module()
    module.thing = value
    drawers = {"parameter": module._parameters, "buffer": module._buffers, "submodule": module._modules}
    return next((kind for kind, drawer in drawers.items() if "thing" in drawer), "plain attribute")

# %% objective="modules.registration"
values = {
    "nn.Parameter(tensor)": nn.Parameter(torch.ones(2)),
    "nn.Buffer(tensor)": nn.Buffer(torch.ones(2)),
    "nn.ModuleList([layer])": nn.ModuleList([nn.Linear(2, 2)]),
    "tensor": torch.ones(2),
    "[layer]": [nn.Linear(2, 2)],
    "F.dropout": F.dropout,
}
for text, value in values.items():
    print(f"{text:22} -> {registry_of(value)}")

# %% [markdown]
# The optimizer gets the first, the checkpoint and `.to()` the first two.
# `train()` and `eval()` reach the third, and every walk goes on inside it.
# The last three exist for `forward` alone.
#
# ## Recap
#
# - Parameters are trained, saved and moved; buffers are saved and moved; plain tensors are neither (rule 1).
# - Lists hide modules. `[layer] * n` is one layer. `parameters()` counts a tensor once, the state dict lists names.
# - A state dict holds references (rule 2). `strict=False` is silent about names; read what it returns.
# - What puts a new Parameter in place breaks ties and leaves the optimizer behind (rule 3).
# - On `meta` a model has everything but numbers. `assign=True` or `to_empty` bring them in.
# - `eval()` and `no_grad` are two switches (rule 4). Functions have no mode. `train()` resets every flag.
# - Freezing stops the optimizer *and* the forward pass (rule 5), and must survive the next `train()`.
# - Hooks run in `model(x)`. They see, they may replace, and they stay until they are removed.

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] say what `super().__init__()` makes, and what happens without it? ([section 1](#1-What-a-module-knows))
# - [ ] choose between parameter, buffer, unsaved buffer and plain attribute? (`RunningNorm`, [section 1](#1-What-a-module-knows))
# - [ ] see from a parameter count that layers are missing or shared? (`DeepMLP`, `count_params`, [section 2](#2-Modules-in-modules))
# - [ ] keep the best weights while training goes on? (`snapshot`, [section 3](#3-Saving-a-dict-of-references))
# - [ ] load a checkpoint with foreign names, or with another head, and know what was not loaded? (`strip_prefixes`, `load_matching`, [section 3](#3-Saving-a-dict-of-references))
# - [ ] list what breaks a tie, and find out whether it did? (`tied_names`, [section 4](#4-Two-names-one-weight))
# - [ ] build a model without memory and fill it from a checkpoint? (`load_from_meta`, [section 5](#5-Built-on-nothing))
# - [ ] say for each common layer what its modes change? ([section 6](#6-Two-modes))
# - [ ] evaluate without a trace? (`eval_mode`, [section 6](#6-Two-modes))
# - [ ] freeze a backbone with norms, for good? (`freeze_backbone`, `FrozenBackbone`, [section 7](#7-Freezing))
# - [ ] look at any activation and leave no hook behind? (`output_of`, `ActivationRecorder`, [section 8](#8-Hooks))
# - [ ] choose the hook that sees a gradient at the right moment? (`step_in_backward`, [section 8](#8-Hooks))

# %% tags=["nbval-ignore-output"]
progress()
