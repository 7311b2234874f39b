"""The exercises and questions of notebook 03: modules."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import re
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checking import Exercise, Question, case, observe
from course_lib.reference import modules as reference

CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # float32 sums of a few terms, in any order


def made(answer: Callable, *args: Any) -> Any:
    """What the answer builds. Drawing initial weights is no side effect."""
    with torch.random.fork_rng(devices=[]):
        return answer(*args)


def fill(module: nn.Module, seed: int = 0) -> nn.Module:
    """Put other numbers into all parameters than those that they start with, the same for every answer."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers by name."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


@torch.enable_grad()
def run_backward(module: nn.Module, x: Tensor) -> tuple[Any, Any]:
    """A module's output, and the gradients of its input and parameters under a cotangent that is not all ones."""
    x = x.detach().requires_grad_()
    output = module(x)
    if not isinstance(output, Tensor) or not output.requires_grad:
        return output, None
    sources = [x, *(p for p in module.parameters() if p.requires_grad)]
    cotangent = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
    return output, torch.autograd.grad(output, sources, cotangent, retain_graph=True, allow_unused=True)


class TiedModel(nn.Module):
    """Token numbers -> scores, with one table for both ends."""

    def __init__(self, n_tokens: int = 5, dim: int = 3):
        super().__init__()
        self.table = nn.Embedding(n_tokens, dim)
        self.norm = nn.BatchNorm1d(dim)
        self.head = nn.Linear(dim, n_tokens, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.table(tokens)))


class Centered(nn.Module):
    """(batch, dim) -> (batch, dim), with a buffer that is saved and one that is not."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("cache", torch.zeros(dim), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.weight


# ---- RunningNorm -------------------------------------------------------------------------------------------

running_norm = Exercise(
    reference.RunningNorm,
    title="A parameter, a buffer and a cache",
    objective="modules.registration",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value(**CLOSE)],
    hints=(
        "Three tensors, three ways to assign them. Ask of each: shall the optimizer change it? Shall a "
        "checkpoint hold it? Shall `.to()` move it?",
        "`nn.Parameter(...)` for what is trained, `register_buffer(name, tensor)` for what is saved, and the "
        "same with `persistent=False` for what only moves along. Update the means in place, from `x.detach()`.",
        "In `forward`: under `if self.training`, `copy_` the batch mean into the cache and let `mean.lerp_` go "
        "a tenth of the way; then subtract and scale in every mode. In `__init__`, `super().__init__()` first.",
    ),
    why="The three kinds differ only in the registry in which they stand: `_parameters`, `_buffers`, or `_buffers` "
    "with a note that the name is not saved. Everything that walks over a module reads these. The running mean is "
    "updated in place from a detached batch, as it would otherwise carry the graph of every batch it has seen.",
)


@running_norm.scenario
def use_norm(answer, dim, x, training):
    norm = made(answer, dim)
    if not isinstance(norm, nn.Module):
        return norm
    facts = {"registered": observe.registered_in(norm), "start": tensors_of(norm)}
    state = {"weight": torch.linspace(-1, 2, dim), "mean": torch.linspace(3, 1, dim)}
    facts["state that did not fit"] = tuple(map(sorted, norm.load_state_dict(state, strict=False)))
    norm.train(training)
    facts["first call"], facts["second call"] = run_backward(norm, x), run_backward(norm, x)
    facts["afterwards"] = tensors_of(norm)
    facts["buffers with a graph"] = [name for name, buffer in norm.named_buffers() if buffer.requires_grad]
    norm.double()
    facts["in float64"] = {name: tensor.dtype for name, tensor in tensors_of(norm).items()}
    facts["output in float64"] = norm(x.double()).dtype
    return facts


@running_norm.cases
def _(rng):
    x = torch.tensor([[1.0, -2.0], [3.0, 2.0], [2.0, 3.0]])
    yield case("eval mode", dim=2, x=x, training=False)
    yield case("train mode", dim=2, x=x.clone(), training=True)
    wide = torch.randn(4, 3, generator=rng)
    yield case("a batch of four, train mode", dim=3, x=wide, training=True)
    yield case("a transposed batch, train mode", dim=4, x=wide.clone().t(), training=True)
    yield case("a transposed batch, eval mode", dim=4, x=wide.clone().t(), training=False)


@running_norm.alternative
class uses_nn_buffer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(dim))
        self.cache = nn.Buffer(torch.zeros(dim), persistent=False)
        self.weight = nn.Parameter(torch.ones(dim))

    @torch.no_grad()
    def look(self, x):
        self.cache.copy_(x.mean(0))
        self.mean.add_(self.cache - self.mean, alpha=0.1)

    def forward(self, x):
        if self.training:
            self.look(x)
        return self.weight * (x - self.mean)


@running_norm.alternative
class assigns_new_tensors_to_buffers(nn.Module):
    momentum = 0.1

    def __init__(self, dim):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.ones(dim)))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("cache", torch.zeros(dim), persistent=False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.cache = x.mean(dim=0)
                self.mean = (1 - self.momentum) * self.mean + self.momentum * self.cache
        return x * self.weight - self.mean * self.weight


@running_norm.misconception(
    "Your `mean` is a plain attribute. The module does not know it: it is not saved, and `.to()` and `.double()` "
    "leave it where it was. `register_buffer` is for tensors that belong to the state and are not trained."
)
class mean_is_a_plain_attribute(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.mean = torch.zeros(dim)
        self.register_buffer("cache", torch.zeros(dim), persistent=False)

    def forward(self, x):
        if self.training:
            self.cache.copy_(x.detach().mean(dim=0))
            self.mean = self.mean + 0.1 * (self.cache - self.mean)
        return (x - self.mean) * self.weight


@running_norm.misconception(
    "Your `mean` is a Parameter. It is saved and moved, but it also counts as a weight, and an optimizer would "
    "change what is meant to be a measurement. A buffer is saved and moved, and that is all."
)
class mean_is_a_parameter(reference.RunningNorm):
    def __init__(self, dim):
        super().__init__(dim)
        del self.mean
        self.mean = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.cache.copy_(x.mean(dim=0))
                self.mean.lerp_(self.cache, 0.1)
        return (x - self.mean) * self.weight


@running_norm.misconception(
    "Your `mean` is a Parameter that requires no gradients. No optimizer trains it by itself, but it is still "
    "listed among the parameters, where weight decay, counting and `requires_grad_(True)` find it."
)
class mean_is_a_frozen_parameter(reference.RunningNorm):
    def __init__(self, dim):
        super().__init__(dim)
        del self.mean
        self.mean = nn.Parameter(torch.zeros(dim), requires_grad=False)


@running_norm.misconception(
    "Your `mean` is not persistent, so that a checkpoint does not hold it: after loading, the norm starts from "
    "zero again. Only the cache may be lost."
)
class mean_is_not_saved(reference.RunningNorm):
    def __init__(self, dim):
        super().__init__(dim)
        self.register_buffer("mean", torch.zeros(dim), persistent=False)


@running_norm.misconception(
    "Your `weight` is a plain tensor, with or without `requires_grad=True`. Only an `nn.Parameter` is registered "
    "when it is assigned, so that no optimizer gets yours and no checkpoint holds it."
)
class weight_is_a_plain_tensor(reference.RunningNorm):
    def __init__(self, dim):
        super().__init__(dim)
        del self.weight
        self.weight = torch.ones(dim)


@running_norm.misconception(
    "Your `weight` is a buffer: saved and moved, but not trained. What an optimizer shall change is a Parameter."
)
class weight_is_a_buffer(reference.RunningNorm):
    def __init__(self, dim):
        super().__init__(dim)
        del self.weight
        self.register_buffer("weight", torch.ones(dim))


@running_norm.misconception(
    "Your `cache` is saved. It is worth nothing after the next batch; `persistent=False` keeps it out of the "
    "checkpoint and still lets it move with the module."
)
class cache_is_saved(reference.RunningNorm):
    def __init__(self, dim):
        super().__init__(dim)
        self.register_buffer("cache", torch.zeros(dim))


@running_norm.misconception(
    "Your `cache` is a plain attribute. It is not saved, as it should be, but it does not move either: on a GPU "
    "the first batch would meet a tensor on the CPU. A buffer with `persistent=False` moves and is not saved."
)
class cache_is_a_plain_attribute(reference.RunningNorm):
    def __init__(self, dim):
        super().__init__(dim)
        del self.cache
        self.cache = torch.zeros(dim)


@running_norm.misconception(
    "You assigned before `super().__init__()`. The registries do not exist until `nn.Module.__init__` has made "
    "them, so the first parameter or buffer has nowhere to go."
)
class forgets_to_call_init(reference.RunningNorm):
    def __init__(self, dim):
        self.weight = nn.Parameter(torch.ones(dim))


@running_norm.misconception(
    "Your running mean keeps the graph. It was computed from `x` without `detach()` or `no_grad`, so that each "
    "step hangs on all earlier ones, and memory grows until it ends."
)
class mean_keeps_the_graph(reference.RunningNorm):
    def forward(self, x):
        if self.training:
            self.cache = x.detach().mean(dim=0)
            self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return (x - self.mean.detach()) * self.weight


@running_norm.misconception(
    "Your means move in eval mode as well. Then evaluating changes the model, and a prediction depends on what "
    "was predicted before. Look at `self.training`."
)
class updates_in_eval_mode(reference.RunningNorm):
    def forward(self, x):
        self.cache.copy_(x.detach().mean(dim=0))
        self.mean.lerp_(self.cache, 0.1)
        return (x - self.mean) * self.weight


@running_norm.misconception(
    "Your output does not use `weight`. As long as the weight is 1, as in a new module, this looks right."
)
class ignores_the_weight(reference.RunningNorm):
    def forward(self, x):
        return super().forward(x) / self.weight.detach()


@running_norm.misconception(
    "Your means never move. In train mode, put the batch mean into `cache`, and move `mean` a tenth of the way."
)
class never_updates(reference.RunningNorm):
    def forward(self, x):
        return (x - self.mean) * self.weight


# ---- DeepMLP -----------------------------------------------------------------------------------------------

deep_mlp = Exercise(
    reference.DeepMLP,
    title="As deep as the list is long",
    objective="modules.containers",
    difficulty=1,
    minutes=10,
    points=1,
    observes=[observe.value(**CLOSE)],
    hints=(
        "Build one, print it, and look at `list(mlp.parameters())`. Does the module know every layer? Are they "
        "all different objects?",
        "`itertools.pairwise(dims)` gives the sizes of each layer. Put new `nn.Linear` objects into an "
        "`nn.ModuleList`, and let `forward` treat the last one differently.",
        "Loop over `self.layers[:-1]` with a ReLU after each layer; then return what the last layer makes of it.",
    ),
    why="`nn.ModuleList` is a list that is also a module, so that its items are registered. It runs nothing by "
    "itself: `forward` decides. Without the ReLU between them, the layers would be one affine map in disguise; "
    "with one after the last, no output could be negative.",
)


@deep_mlp.scenario
def use_mlp(answer, dims, x):
    mlp = made(answer, dims)
    if not isinstance(mlp, nn.Module):
        return mlp
    facts = {
        "parameters": [tuple(parameter.shape) for parameter in mlp.parameters()],
        "saved entries": len(mlp.state_dict()),
        "other": {**observe.registered_in(mlp), "parameters": None},
    }
    fill(mlp)
    facts["in train mode"] = run_backward(mlp.train(), x)
    facts["in eval mode"] = run_backward(mlp.eval(), x)
    return facts


@deep_mlp.cases
def _(rng):
    yield case("one layer", dims=(2, 3), x=torch.tensor([[1.0, -2.0]]))
    yield case("hidden layers of one size", dims=(3, 5, 5, 5, 5, 2), x=torch.randn(4, 3, generator=rng))
    yield case("three layers", dims=[2, 4, 3, 1], x=torch.randn(3, 2, generator=rng))
    yield case("a transposed batch", dims=(3, 2, 4), x=torch.randn(3, 5, generator=rng).t())


@deep_mlp.alternative
class a_sequence_with_its_activations(nn.Module):
    def __init__(self, dims):
        super().__init__()
        layers = []
        for n_in, n_out in pairwise(dims):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.net(x)


@deep_mlp.alternative
class names_each_layer(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.n_layers = len(dims) - 1
        for i in range(self.n_layers):
            setattr(self, f"layer{i}", nn.Linear(dims[i], dims[i + 1]))

    def forward(self, x):
        for i in range(self.n_layers):
            x = getattr(self, f"layer{i}")(x if i == 0 else F.relu(x))
        return x


@deep_mlp.alternative
class holds_hidden_layers_apart(nn.Module):
    def __init__(self, dims):
        super().__init__()
        pairs = list(pairwise(dims))
        self.hidden = nn.ModuleDict({str(i): nn.Linear(*sizes) for i, sizes in enumerate(pairs[:-1])})
        self.last = nn.Linear(*pairs[-1])

    def forward(self, x):
        for layer in self.hidden.values():
            x = torch.clamp(layer(x), min=0)
        return self.last(x)


@deep_mlp.misconception(
    "Your layers are in a Python list. The module looks at what is assigned, sees a list, and does not look into "
    "it: no layer is registered, so none is trained, saved or moved. `nn.ModuleList` is the list that is seen."
)
class python_list(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = [nn.Linear(n_in, n_out) for n_in, n_out in pairwise(dims)]

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


@deep_mlp.misconception(
    "Your hidden layers are one layer, listed several times. `[layer] * n` repeats the object and not its "
    "construction, so the network is deep in its code and shallow in its weights. Construct each layer anew."
)
class repeats_one_layer(reference.DeepMLP):
    def __init__(self, dims):
        nn.Module.__init__(self)
        hidden = [nn.Linear(dims[1], dims[1])] * (len(dims) - 3)
        last = [nn.Linear(dims[-2], dims[-1])] if len(dims) > 2 else []
        self.layers = nn.ModuleList([nn.Linear(dims[0], dims[1]), *hidden, *last])


@deep_mlp.misconception(
    "There is an activation after your last layer too, so that your network cannot put out a negative number."
)
class activates_the_last_layer(reference.DeepMLP):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


@deep_mlp.misconception(
    "There is no activation between your layers. Affine maps in a row are one affine map, so all of your layers "
    "together can do what one could."
)
class never_activates(reference.DeepMLP):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@deep_mlp.misconception(
    "You put the activation before each layer, so the input loses its negative numbers before the first layer "
    "sees them."
)
class activates_the_input(reference.DeepMLP):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x.relu())
        return x


@deep_mlp.misconception(
    "Your layers have no bias. `nn.Linear` has one unless told otherwise; here it is wanted."
)
class leaves_the_bias_out(reference.DeepMLP):
    def __init__(self, dims):
        nn.Module.__init__(self)
        self.layers = nn.ModuleList(nn.Linear(n_in, n_out, bias=False) for n_in, n_out in pairwise(dims))


@deep_mlp.misconception(
    "Your last layer is missing: `len(dims)` sizes make `len(dims) - 1` layers, and the last one leads to "
    "`dims[-1]`."
)
class one_layer_short(reference.DeepMLP):
    def __init__(self, dims):
        nn.Module.__init__(self)
        self.layers = nn.ModuleList(nn.Linear(dims[i], dims[i + 1]) for i in range(len(dims) - 2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


# ---- count_params ------------------------------------------------------------------------------------------

count_params = Exercise(
    reference.count_params,
    title="How many numbers?",
    objective="modules.containers",
    difficulty=1,
    minutes=6,
    points=1,
    observes=[observe.value()],
    hints=(
        "Three sums over two walks: `model.parameters()` and `model.buffers()`. What do they do with a tensor "
        "that has two names, and what does `state_dict()` do with it?",
        "Add up `numel()`. A parameter goes into one of two sums, depending on its `requires_grad`.",
        "Start with zeros for both sums, loop over the parameters once, and choose the key by `requires_grad`; "
        "then sum up the buffers.",
    ),
    why="`parameters()` and `buffers()` walk through all submodules and meet each tensor once, whatever number of "
    "names it has. `state_dict()` lists names, so it holds a tied weight twice, mixes parameters with buffers, and "
    "leaves out the buffers that are not saved.",
)


def frozen_part(frozen: nn.Module, *others: nn.Module) -> nn.Module:
    return nn.Sequential(frozen.requires_grad_(False), *others)


@count_params.cases
def _(rng):
    yield case("a linear layer", nn.Linear(3, 2))
    yield case("a linear layer without bias", nn.Linear(3, 2, bias=False))
    yield case("a layer without parameters", nn.ReLU())
    yield case("one of two layers frozen", frozen_part(nn.Linear(2, 3), nn.Linear(3, 1)))
    yield case("only a bias frozen", layer_with_frozen_bias())
    yield case("a batch norm and its buffers", nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)))
    yield case("a weight with two names", TiedModel())
    yield case("a buffer that is not saved", nn.Sequential(Centered(3), nn.Linear(3, 2)))
    yield case(
        "one layer used twice", nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))] * 2)
    )
    yield case(
        "a convolution in channels_last", nn.Conv2d(2, 3, (2, 3)).to(memory_format=torch.channels_last)
    )
    yield case("a frozen tied model with a new head", frozen_part(TiedModel(4, 2), nn.Linear(4, 3)))
    yield case("a model on meta", nn.Linear(4, 3).to("meta"))


def layer_with_frozen_bias() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    return layer


@count_params.alternative
def sums_three_times(model):
    parameters = list(model.parameters())
    return {
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "frozen": sum(p.numel() for p in parameters if not p.requires_grad),
        "buffers": sum(b.numel() for b in model.buffers()),
    }


@count_params.alternative
def walks_through_the_registries(model):
    seen, counts = set(), {"trainable": 0, "frozen": 0, "buffers": 0}
    for module in model.modules():
        for tensor in [*module._parameters.values(), *module._buffers.values()]:
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            is_parameter = isinstance(tensor, nn.Parameter)
            kind = "buffers" if not is_parameter else "trainable" if tensor.requires_grad else "frozen"
            counts[kind] += tensor.nelement()
    return counts


@count_params.alternative
def subtracts_the_trainable(model):
    total = sum(p.numel() for _, p in model.named_parameters())
    trainable = sum(filter(None, (p.requires_grad * p.numel() for p in model.parameters())))
    return {
        "trainable": trainable,
        "frozen": total - trainable,
        "buffers": sum(map(torch.numel, model.buffers())),
    }


@count_params.misconception(
    "You counted the entries of `state_dict()`. It lists a tied weight under each of its names, and leaves out "
    "buffers that are not saved. `parameters()` and `buffers()` meet each tensor once."
)
def counts_the_state_dict(model):
    requires_grad = {name: p.requires_grad for name, p in model.named_parameters(remove_duplicate=False)}
    counts = {"trainable": 0, "frozen": 0, "buffers": 0}
    for name, tensor in model.state_dict().items():
        kind = "trainable" if requires_grad.get(name) else "frozen" if name in requires_grad else "buffers"
        counts[kind] += tensor.numel()
    return counts


@count_params.misconception(
    "A tensor with two names is counted twice. `remove_duplicate=False`, or a sum over submodules, asks for every "
    "name; a tied weight is still one tensor."
)
def counts_every_name(model):
    counts = {"trainable": 0, "frozen": 0}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        counts["trainable" if parameter.requires_grad else "frozen"] += parameter.numel()
    counts["buffers"] = sum(b.numel() for _, b in model.named_buffers(remove_duplicate=False))
    return counts


@count_params.misconception(
    "You counted frozen parameters as trainable. They are in `parameters()` like all others; what tells them "
    "apart is `requires_grad`."
)
def counts_frozen_as_trainable(model):
    total = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return {"trainable": total, "frozen": frozen, "buffers": sum(b.numel() for b in model.buffers())}


@count_params.misconception("You counted the tensors. How many numbers a tensor holds, `numel()` tells.")
def counts_tensors(model):
    parameters = list(model.parameters())
    trainable = sum(p.requires_grad for p in parameters)
    return {
        "trainable": trainable,
        "frozen": len(parameters) - trainable,
        "buffers": len(list(model.buffers())),
    }


@count_params.misconception(
    "You counted the buffers as frozen parameters, too. Buffers require no gradients, but they are no parameters."
)
def counts_buffers_as_frozen(model):
    counts = reference.count_params(model)
    return {**counts, "frozen": counts["frozen"] + counts["buffers"]}


@count_params.misconception(
    "You counted only what the model itself holds, not what its submodules hold. `recurse=False` stays on top."
)
def stays_on_top(model):
    own = list(model.parameters(recurse=False))
    return {
        "trainable": sum(p.numel() for p in own if p.requires_grad),
        "frozen": sum(p.numel() for p in own if not p.requires_grad),
        "buffers": sum(b.numel() for b in model.buffers(recurse=False)),
    }


@count_params.misconception(
    "You left out the buffers that are not saved, or counted as buffers what is left of the `state_dict()`. "
    "`model.buffers()` has them all."
)
def counts_saved_buffers(model):
    saved = model.state_dict(keep_vars=True)
    buffers = {id(t): t.numel() for t in saved.values() if not isinstance(t, nn.Parameter)}
    return {**reference.count_params(model), "buffers": sum(buffers.values())}


# ---- snapshot ----------------------------------------------------------------------------------------------

snapshot = Exercise(
    reference.snapshot,
    title="Keep the best weights",
    objective="modules.saving",
    difficulty=1,
    minutes=6,
    points=1,
    observes=[observe.value()],
    hints=(
        "Take the state dict, run one training step, and look at what you took. Which of the words detach, copy "
        "and clone gives a tensor a storage of its own?",
        "Go through the entries of `model.state_dict()` and put a clone of each tensor into a new dict.",
        "A dict comprehension over `.items()` is enough, or `copy.deepcopy` of the right thing.",
    ),
    why="`state_dict()` is a new dict with the old storages: its tensors are detached views of what the optimizer "
    "goes on changing. `clone` gives each a storage of its own. A shallow copy of the dict copies the references.",
)


@snapshot.scenario
def train_on_and_restore(answer, model):
    taken = answer(model)
    if not isinstance(taken, dict):
        return taken
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.add_(1)
    facts = {
        "taken": dict(taken),
        "requires grad": [name for name, tensor in taken.items() if tensor.requires_grad],
    }
    facts["does not fit"] = tuple(map(sorted, model.load_state_dict(taken, strict=False)))
    facts["restored"] = dict(model.state_dict())
    return facts


@snapshot.cases
def _(rng):
    yield case("a linear layer", nn.Linear(2, 1))
    yield case("a batch norm and its buffers", nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    yield case("a buffer that is not saved", nn.Sequential(Centered(2), nn.Linear(2, 3)))
    yield case("a frozen layer and a trained one", frozen_part(nn.Linear(2, 3), nn.Linear(3, 1)))
    yield case("a tied model", TiedModel())
    yield case("a convolution in channels_last", nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last))


@snapshot.alternative
def copies_deeply(model):
    return copy.deepcopy(model.state_dict())


@snapshot.alternative
def goes_through_a_file(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@snapshot.alternative
def asks_a_copy_of_the_model(model):
    return copy.deepcopy(model).state_dict()


@snapshot.misconception(
    "Your snapshot changed when training went on. `state_dict()` gives references: `dict(...)`, `.copy()`, "
    "`detach()` and, on a CPU, `.cpu()` all keep the storage. Only a copy of the tensors survives."
)
def keeps_references(model):
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@snapshot.misconception(
    "Your snapshot holds the parameters alone. Buffers belong to the state as well: without the running "
    "statistics of a BatchNorm the best weights do not give the best predictions."
)
def only_parameters(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@snapshot.misconception(
    "Your copies are still connected to the graph. A clone of a parameter is the result of an operation on it and "
    "requires gradients; `state_dict()` detaches before you clone."
)
def clones_parameters_with_their_graph(model):
    names = model.state_dict().keys()
    return {
        name: tensor.clone() for name, tensor in model.state_dict(keep_vars=True).items() if name in names
    }


@snapshot.misconception(
    "You returned a copy of the model. It does keep the values, but what was asked for is a state that "
    "`load_state_dict` takes."
)
def returns_a_model(model):
    return copy.deepcopy(model)


@snapshot.misconception(
    "Your snapshot also holds the buffers that are not meant to be saved, and each tied weight once. "
    "`load_state_dict` refuses both. `model.state_dict()` has the names that it wants."
)
def collects_all_tensors(model):
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


# ---- strip_prefixes ----------------------------------------------------------------------------------------

strip_prefixes = Exercise(
    reference.strip_prefixes,
    title="Names without their wrappers",
    objective="modules.saving",
    difficulty=1,
    minutes=8,
    points=1,
    observes=[observe.value()],
    hints=(
        "Write down the names of a model that was compiled and then wrapped for data parallel training, and of "
        "one where it was the other way round.",
        "Work on the front of each name only, and as long as it begins with one of the two prefixes.",
        "`while name.startswith((one, other)):` cut off everything up to the first dot. Then put the tensor into a "
        "new dict under what is left.",
    ),
    why="Each wrapper is a module with one child, `module` or `_orig_mod`, so its name stands in front of all "
    "others. Wrapping twice puts two there, in the order of wrapping, which is why a loop is needed. A name may hold "
    "the same word further inside, where it is part of the model.",
)


@strip_prefixes.scenario
def strip(answer, state):
    stripped = answer(state)
    return list(stripped.items()) if isinstance(stripped, dict) else stripped


@strip_prefixes.cases
def _(rng):
    def state(*names):
        return {name: torch.tensor([float(i), -1.0]) for i, name in enumerate(names)}

    yield case("no wrapper", state("weight", "bias"))
    yield case("data parallel", state("module.weight", "module.bias"))
    yield case("compiled", state("_orig_mod.0.weight", "_orig_mod.0.bias"))
    yield case("compiled, then data parallel", state("module._orig_mod.weight", "module._orig_mod.bias"))
    yield case("data parallel, then compiled", state("_orig_mod.module.weight", "_orig_mod.module.bias"))
    yield case("wrapped three times", state("module._orig_mod.module.0.weight"))
    yield case("a submodule called module", state("module.encoder.module.weight", "module.encoder.bias"))
    yield case("a name that begins alike", state("modules.0.weight", "module_list.bias"))
    yield case(
        "names that begin with the same letters", state("module.model.weight", "_orig_mod.domain.bias")
    )
    yield case("an ordered dict", OrderedDict(state("module.b", "module.a")))
    yield case("a transposed weight", {"module.weight": torch.randn(2, 3, generator=rng).t()})
    yield case("nothing at all", {})


@strip_prefixes.alternative
def uses_a_pattern(state):
    return {re.sub(r"^((module|_orig_mod)\.)+", "", name): tensor for name, tensor in state.items()}


@strip_prefixes.alternative
def removes_until_nothing_changes(state):
    def bare(name):
        shorter = name.removeprefix("module.").removeprefix("_orig_mod.")
        return name if shorter == name else bare(shorter)

    return OrderedDict((bare(name), tensor) for name, tensor in state.items())


@strip_prefixes.alternative
def drops_parts_from_the_front(state):
    stripped = {}
    for name, tensor in state.items():
        parts = name.split(".")
        while parts[0] in ("module", "_orig_mod"):
            parts = parts[1:]
        stripped[".".join(parts)] = tensor
    return stripped


@strip_prefixes.misconception(
    "You removed the word wherever it stands. `encoder.module.weight` is a name of the model, and so is "
    "`modules.0`; a wrapper stands in front."
)
def replaces_everywhere(state):
    return {name.replace("module.", "").replace("_orig_mod.", ""): tensor for name, tensor in state.items()}


@strip_prefixes.misconception(
    "You remove `module.` only. A compiled model has `_orig_mod.` in front of its names."
)
def only_data_parallel(state):
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


@strip_prefixes.misconception(
    "You remove `_orig_mod.` only. A model that was wrapped for data parallel training has `module.` there."
)
def only_compiled(state):
    return {name.removeprefix("_orig_mod."): tensor for name, tensor in state.items()}


@strip_prefixes.misconception(
    "You remove one prefix of each name. A model may be wrapped more than once: go on until none is left."
)
def only_one_prefix(state):
    def bare(name):
        if name.startswith(("module.", "_orig_mod.")):
            return name.partition(".")[2]
        return name

    return {bare(name): tensor for name, tensor in state.items()}


@strip_prefixes.misconception(
    "You remove both prefixes in one fixed order. Wrapping goes in any order, and may be done twice with one."
)
def one_order(state):
    return {name.removeprefix("module.").removeprefix("_orig_mod."): t for name, t in state.items()}


@strip_prefixes.misconception(
    "You used `lstrip`, which takes a set of letters and not a word: it goes on eating `model.` or `domain.` as "
    "long as their letters are in the set. `removeprefix` takes a word."
)
def strips_letters(state):
    return {name.lstrip("module.").lstrip("_orig_mod.").lstrip("module."): t for name, t in state.items()}  # noqa: B005


@strip_prefixes.misconception("You cut seven letters off every name, whether or not `module.` stands there.")
def cuts_seven_letters(state):
    return {name[7:]: tensor for name, tensor in state.items()}


@strip_prefixes.misconception(
    "You renamed the entries of the dict that came in. It belongs to the caller, who may still need the old names."
)
def renames_in_place(state):
    for name in list(state):
        state[re.sub(r"^((module|_orig_mod)\.)+", "", name)] = state.pop(name)
    return state


# ---- load_matching -----------------------------------------------------------------------------------------

load_matching = Exercise(
    reference.load_matching,
    title="Load what fits, and say what did not",
    objective="modules.saving",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "`strict=False` forgives names that are missing or unknown. Try it with a head of another size, and with a "
        "checkpoint in which no name is right.",
        "Choose the entries yourself: the name is in `model.state_dict()`, and the shapes are equal. None chosen: "
        "raise. Then load these, and find out which names of the model were not among them.",
        "With `own = model.state_dict()` and the dict of fitting entries, `load_state_dict(..., strict=False)` does "
        "the copying, and a difference of two key sets gives the names.",
    ),
    why="`strict=False` is silent about names, so that a checkpoint with a wrong prefix 'loads' and the model "
    "predicts like a random one; about shapes it still raises. Choosing the entries first makes both decisions "
    "yours, and the returned names are what you should look at before you train.",
)


@load_matching.scenario
def load_and_train(answer, model, state):
    stayed = answer(model, state)
    loaded = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    return {"stayed as they were": stayed, "model": loaded}


def other_head(n_classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, n_classes))


@load_matching.cases
def _(rng):
    def saved(model, seed):
        return {name: t.clone() for name, t in fill(model, seed).state_dict().items()}

    yield case("everything fits", nn.Linear(2, 3), saved(nn.Linear(2, 3), 1))
    yield case("a head of another size", other_head(2), saved(other_head(5), 2))
    yield case(
        "nothing fits", nn.Linear(2, 3), {f"module.{k}": v for k, v in saved(nn.Linear(2, 3), 3).items()}
    )
    yield case(
        "a shape that would broadcast", nn.Linear(3, 2), saved(nn.Linear(3, 1), 4) | {"other": torch.ones(2)}
    )
    yield case("only a bias fits", nn.Linear(2, 3), {"bias": torch.tensor([1.0, -2.0, 3.0])})
    yield case(
        "more than the model has", nn.Linear(3, 4), {**saved(nn.Linear(3, 4), 5), "extra": torch.ones(1)}
    )
    yield case(
        "a transposed weight", nn.Linear(2, 3, bias=False), {"weight": torch.randn(2, 3, generator=rng).t()}
    )
    yield case("a frozen layer", frozen_part(nn.Linear(2, 3), nn.Linear(3, 1)), {"0.bias": -torch.ones(3)})
    yield case("an empty checkpoint", nn.Linear(2, 1), {})


@load_matching.alternative
def copies_entry_by_entry(model, state):
    own, stayed = model.state_dict(), []
    for name, tensor in own.items():
        if name in state and state[name].shape == tensor.shape:
            tensor.copy_(state[name])
        else:
            stayed.append(name)
    if len(stayed) == len(own):
        raise ValueError("nothing fits")
    return sorted(stayed)


@load_matching.alternative
def asks_for_the_missing_keys(model, state):
    own = model.state_dict()
    fitting = {k: v for k, v in state.items() if k in own and own[k].size() == v.size()}
    if len(fitting) == 0:
        raise ValueError
    return sorted(model.load_state_dict(fitting, strict=False).missing_keys)


@load_matching.alternative
def fills_up_with_its_own(model, state):
    own = model.state_dict()
    stayed = sorted(name for name in own if name not in state or state[name].shape != own[name].shape)
    if set(stayed) == set(own):
        raise ValueError("this checkpoint belongs to another model")
    model.load_state_dict({name: own[name] if name in stayed else state[name] for name in own})
    return stayed


@load_matching.misconception(
    "You left the choice to `strict=False`. It ignores names that are missing or unknown, but a known name with "
    "another shape still raises RuntimeError, and a checkpoint in which nothing fits goes through in silence."
)
def trusts_strict_false(model, state):
    return sorted(model.load_state_dict(state, strict=False).missing_keys)


@load_matching.misconception(
    "Your answer is silent where nothing fits. That is the dangerous case: the model keeps its random weights, "
    "and the program goes on as if it had loaded a checkpoint."
)
def silent_where_nothing_fits(model, state):
    own = model.state_dict()
    fitting = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
    model.load_state_dict(fitting, strict=False)
    return sorted(own.keys() - fitting.keys())


@load_matching.misconception(
    "You loaded with `strict=True` after choosing. Strict means that every name of the model must be there, and "
    "here some are left out on purpose."
)
def stays_strict(model, state):
    own = model.state_dict()
    fitting = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
    if not fitting:
        raise ValueError
    model.load_state_dict(fitting)
    return sorted(own.keys() - fitting.keys())


@load_matching.misconception(
    "You compared no shapes and let `copy_` decide. It broadcasts: a bias of one number fills two places, and the "
    "model has a weight that nobody trained."
)
def lets_copy_broadcast(model, state):
    own, stayed = model.state_dict(), []
    for name, tensor in own.items():
        try:
            tensor.copy_(state[name])
        except (KeyError, RuntimeError):
            stayed.append(name)
    if len(stayed) == len(own):
        raise ValueError
    return sorted(stayed)


@load_matching.misconception(
    "Your model now holds the tensors of the checkpoint itself, by `assign=True` or `.data =`. When it is trained, "
    "the checkpoint in memory changes with it. Copy the values."
)
def holds_the_checkpoints_tensors(model, state):
    own = model.state_dict()
    fitting = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
    if not fitting:
        raise ValueError
    model.load_state_dict(fitting, strict=False, assign=True)
    return sorted(own.keys() - fitting.keys())


@load_matching.misconception(
    "You returned the names that were loaded. Wanted are those of the model that were not: what still has its "
    "initial values."
)
def returns_what_was_loaded(model, state):
    own = model.state_dict()
    return sorted(own.keys() - set(reference.load_matching(model, state)))


@load_matching.misconception(
    "You returned names of the checkpoint that the model did not take. Wanted are the names of the model that got "
    "nothing: those are the ones that are still random."
)
def returns_what_was_ignored(model, state):
    stayed = reference.load_matching(model, state)
    return sorted(name for name in state if name in stayed or name not in model.state_dict())


# ---- tied_names --------------------------------------------------------------------------------------------

tied_names = Exercise(
    reference.tied_names,
    title="Find the ties",
    objective="modules.tying",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "`named_parameters()` hides what you look for: it names each parameter once. It has an option.",
        "Group the names by the *object* they lead to. `id(parameter)` is the same for the same object, whatever "
        "the values and wherever the storage is.",
        "Go through `named_parameters(remove_duplicate=False)`, append each name to the list at `id(parameter)`, "
        "and keep the lists with more than one name, sorted and as tuples.",
    ),
    why="A tie is two attributes that hold one Parameter. The optimizer then sees one parameter and `backward` adds "
    "up both uses in one `.grad`. Two Parameters over one storage look the same until something moves them: then "
    "they come apart, and on `meta` every address is 0.",
)


class Shared(nn.Module):
    """Three linear layers whose weights are made by hand."""

    def __init__(self, *weights: Any):
        super().__init__()
        self.c, self.b, self.a = (nn.Linear(3, 4, bias=False) for _ in range(3))
        for layer, weight in zip((self.c, self.b, self.a), weights):
            layer.weight = weight


def twin() -> nn.Module:
    """Two Parameters over one storage."""
    weight = nn.Parameter(torch.randn(4, 3))
    return Shared(weight, nn.Parameter(weight.data), nn.Parameter(torch.ones(4, 3)))


@tied_names.cases
def _(rng):
    weight, other = (nn.Parameter(torch.randn(4, 3, generator=rng)) for _ in range(2))
    turned = nn.Parameter(torch.randn(3, 4, generator=rng).t())
    yield case("no ties", nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    yield case("an embedding and its head", TiedModel())
    yield case("a layer used twice", nn.Sequential(*[nn.Linear(2, 2)] * 2))
    yield case("three names for one weight", Shared(weight, weight, weight))
    yield case("the first and the last of three", Shared(turned, other, turned))
    yield case("equal values in two weights", nn.Sequential(nn.LayerNorm(3), nn.LayerNorm(3)))
    yield case("two Parameters over one storage", twin())
    yield case("two ties", nn.ModuleList([TiedModel(2, 3), nn.ReLU(), TiedModel(3, 2)]))
    yield case("a model on meta, its tie lost on the way", TiedModel().to("meta"))
    with torch.device("meta"):
        yield case("a tied model built on meta", TiedModel())
    yield case("no parameters", nn.ReLU())


@tied_names.alternative
def compares_each_with_each(model):
    named = list(model.named_parameters(remove_duplicate=False))
    groups = {tuple(sorted(other for other, q in named if q is p)) for _, p in named}
    return sorted(group for group in groups if len(group) > 1)


@tied_names.alternative
def keeps_the_objects_as_keys(model):
    names = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(parameter, set()).add(f"{prefix}.{name}".lstrip("."))
    return sorted(tuple(sorted(group)) for group in names.values() if len(group) >= 2)


@tied_names.alternative
def asks_the_state_dict_for_the_objects(model):
    names = defaultdict(list)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, nn.Parameter):
            names[id(tensor)].append(name)
    return sorted(tuple(sorted(group)) for group in names.values() if group[1:])


@tied_names.misconception(
    "You went through `named_parameters()` as it is. It gives each parameter one name, the first, so that no tie "
    "can show. And `state_dict()` makes a new tensor for each name: those are never the same object."
)
def names_each_parameter_once(model):
    names = defaultdict(list)
    for name, parameter in model.named_parameters():
        names[id(parameter)].append(name)
    return sorted(tuple(sorted(group)) for group in names.values() if len(group) > 1)


@tied_names.misconception(
    "You compared values. Two weights may be equal, as fresh norms and biases are, and will not stay so in "
    "training. A tie is one object with two names."
)
def compares_values(model):
    named = list(model.named_parameters(remove_duplicate=False))
    groups = {
        tuple(sorted(m for m, q in named if q.is_meta == p.is_meta and (q is p or torch.equal(p, q))))
        for _, p in named
        if not p.is_meta
    }
    return sorted(group for group in groups if len(group) > 1)


@tied_names.misconception(
    "You compared addresses. Two Parameters over one storage are two for the optimizer and come apart when the "
    "model moves; and on `meta` all addresses are 0, so that everything looks tied."
)
def compares_addresses(model):
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter.data_ptr()].append(name)
    return sorted(tuple(sorted(group)) for group in names.values() if len(group) > 1)


@tied_names.misconception("Your list also has the parameters with a single name. Those are tied to nothing.")
def lists_everything(model):
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return sorted(tuple(sorted(group)) for group in names.values())


@tied_names.misconception(
    "You compared each name with the one before it. Tied layers often stand at the two ends of a model, with "
    "everything else between them."
)
def compares_neighbors(model):
    named = list(model.named_parameters(remove_duplicate=False))
    return sorted(tuple(sorted((a, b))) for (a, p), (b, q) in pairwise(named) if p is q)


@tied_names.misconception(
    "You return pairs. A parameter with three names is one tie of three, not three ties of two."
)
def returns_pairs(model):
    named = sorted(model.named_parameters(remove_duplicate=False), key=lambda item: item[0])
    return sorted((a, b) for i, (a, p) in enumerate(named) for b, q in named[i + 1 :] if p is q)


# ---- load_from_meta ----------------------------------------------------------------------------------------

load_from_meta = Exercise(
    reference.load_from_meta,
    title="Build nothing, then load",
    objective="modules.meta",
    difficulty=2,
    minutes=10,
    points=2,
    stretch=True,
    observes=[observe.value()],
    hints=(
        "Build a layer under `torch.device('meta')` and load a state dict into it as usual. Read the warning, and "
        "look at `layer.weight.device`.",
        "Values cannot be copied *into* a tensor that has no storage. Either the model takes the tensors of the "
        "state as its own (`assign=True`), or it gets empty storages first (`to_empty`). Whose storages are they?",
        "Build inside the `with`, clone the entries, and load them with `assign=True`; or call "
        "`to_empty(device='cpu')` and load as usual.",
    ),
    why="Under the meta device the constructors run, but nothing is allocated and no random number is drawn, so "
    "that a large model is not filled twice. `assign=True` puts the given tensors in the place of the meta ones; "
    "cloned, they belong to the model alone.",
)


@load_from_meta.scenario
def load_and_look(answer, build, state):
    model = answer(build, state)
    if not isinstance(model, nn.Module):
        return model
    facts = {
        "values": dict(model.state_dict()),
        "parameters": {name: p.requires_grad for name, p in model.named_parameters()},
        "parameter type": all(type(p) is nn.Parameter for p in model.parameters()),
        "modes": [module.training for module in model.modules()],
    }
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    return facts


def build_linear() -> nn.Module:
    return nn.Linear(2, 3)


def build_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def build_frozen() -> nn.Module:
    return nn.Sequential(nn.Embedding(4, 3).requires_grad_(False), nn.Linear(3, 2))


def build_conv() -> nn.Module:
    return nn.Conv2d(2, 3, 2)


@load_from_meta.cases
def _(rng):
    def state_of(build):
        with torch.random.fork_rng(devices=[]):
            state = fill(build(), 3).state_dict()
        return {name: tensor.clone() for name, tensor in state.items()}

    yield case("a linear layer", build_linear, state_of(build_linear))
    yield case("a batch norm and its buffers", build_norm, state_of(build_norm))
    yield case("a frozen table", build_frozen, state_of(build_frozen))
    yield case("an entry is missing", build_linear, {"weight": torch.ones(3, 2)})
    channels_last = {
        name: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t
        for name, t in state_of(build_conv).items()
    }
    yield case("a convolution in channels_last", build_conv, channels_last)


@load_from_meta.alternative
def gives_it_empty_storages(build, state):
    with torch.device("meta"):
        model = build()
    model.to_empty(device="cpu").load_state_dict(state)
    return model


@load_from_meta.alternative
def copies_the_state_deeply(build, state):
    with torch.device("meta"):
        model = build()
    model.load_state_dict(copy.deepcopy(state), strict=True, assign=True)
    return model


@load_from_meta.alternative
def makes_room_for_each_entry(build, state):
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        model = build()
    finally:
        torch.set_default_device(before if before.type != "cpu" else None)
    room = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    model.load_state_dict(room, assign=True)
    model.load_state_dict(state)
    return model


@load_from_meta.misconception(
    "Your model is still on `meta`. Without `assign=True`, loading copies values into the tensors that are there, "
    "and a meta tensor has no place for them: PyTorch warns, and does nothing."
)
def copies_into_nothing(build, state):
    with torch.device("meta"):
        model = build()
    model.load_state_dict(state)
    return model


@load_from_meta.misconception(
    "Your model and `state` hold the same storages. `assign=True` takes the tensors as they are, so that training "
    "the model changes the checkpoint in memory. Clone them first."
)
def shares_with_the_state(build, state):
    with torch.device("meta"):
        model = build()
    model.load_state_dict(state, assign=True)
    return model


@load_from_meta.misconception(
    "You built the model for real: its weights were drawn at random, only to be overwritten. That is the memory "
    "and the time that the meta device saves."
)
def builds_it_for_real(build, state):
    model = build()
    model.load_state_dict(state)
    return model


@load_from_meta.misconception(
    "You asked a meta model to move to the CPU. There are no values to move, which is why PyTorch refuses. "
    "`to_empty` makes storages without values, `assign=True` brings its own."
)
def moves_it_to_the_cpu(build, state):
    with torch.device("meta"):
        model = build()
    model.to("cpu").load_state_dict(state)
    return model


@load_from_meta.misconception(
    "You loaded with `strict=False`. An entry that is missing then leaves its parameter on `meta`, and you find "
    "out at the first batch instead of now."
)
def forgives_what_is_missing(build, state):
    with torch.device("meta"):
        model = build()
    model.load_state_dict(copy.deepcopy(state), strict=False, assign=True)
    return model


@load_from_meta.misconception(
    "You left the default device at `meta`. Every tensor that anyone makes from now on has no values."
)
def leaves_the_default_device(build, state):
    torch.set_default_device("meta")
    model = build()
    model.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    return model


@load_from_meta.misconception(
    "You put new Parameters in by hand, and they all require gradients. What `build()` had frozen is frozen no "
    "more."
)
def thaws_what_was_frozen(build, state):
    model = reference.load_from_meta(build, state)
    return model.requires_grad_(True)


# ---- eval_mode ---------------------------------------------------------------------------------------------

eval_mode = Exercise(
    reference.eval_mode,
    title="Evaluate, and leave no trace",
    objective="modules.modes",
    difficulty=2,
    minutes=12,
    points=2,
    stretch=True,
    observes=[observe.value(**CLOSE)],
    hints=(
        "Two switches are independent: what the layers do, and whether a graph is built. And `training` is not one "
        "flag: every submodule has its own.",
        "Note the flag of each module in `model.modules()`, switch, run the block under `torch.no_grad()`, and put "
        "each flag back in a `finally`.",
        "In a function with `@contextmanager`: collect pairs, call `model.eval()`, `try:` with the `yield` inside "
        "`with torch.no_grad():`, `finally:` set `module.training` pair by pair.",
    ),
    why="`model.train()` after an evaluation switches *all* submodules to train mode, also those that somebody had "
    "put into eval mode on purpose, such as a frozen BatchNorm. The flags are plain attributes, so that noting and "
    "setting them restores exactly what was there.",
)


@eval_mode.scenario
def evaluate(answer, model, x, ends, recording=True):
    with contextlib.nullcontext() if recording else torch.no_grad():
        manager = answer(model)
        if not hasattr(manager, "__enter__"):
            return manager
        facts = {"before the block": modes_of(model), "came out": "nothing"}
        try:
            with manager:
                facts["in the block"] = modes_of(model)
                facts["outputs"] = (model(x), model(x))
                facts["graphs"] = [output.requires_grad for output in facts["outputs"]]
                if ends == "an error":
                    raise KeyError("in the block")
        except KeyError:
            facts["came out"] = "KeyError"
        facts["after the block"] = modes_of(model)
        facts["records again"] = torch.is_grad_enabled()
        facts["graph"] = model(x).requires_grad
    return facts


def modes_of(model: nn.Module) -> dict[str, bool]:
    return {name or "root": module.training for name, module in model.named_modules()}


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def child_in_eval() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].eval()
    return model


def partly_in_eval() -> nn.Module:
    """A model in train mode in which a nested BatchNorm was put into eval mode on purpose."""
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    inner[1].eval()
    return nn.Sequential(inner, nn.BatchNorm1d(4), nn.Linear(4, 2))


def turned_linear() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.weight = nn.Parameter(torch.randn(3, 2).t())
    return layer


@eval_mode.cases
def _(rng):
    x = torch.randn(5, 3, generator=rng)
    yield case("dropout", with_dropout(), x, ends="well")
    yield case(
        "a batch norm in train mode",
        nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)),
        x.clone(),
        ends="well",
    )
    yield case("a norm in eval mode", child_in_eval(), x.clone(), ends="well")
    yield case("a nested norm in eval mode", partly_in_eval(), x.clone(), ends="well")
    yield case("a model already in eval mode", with_dropout().eval(), x.clone(), ends="well")
    yield case("the block raises", with_dropout(), x.clone(), ends="an error")
    yield case("the block raises, a nested norm in eval mode", partly_in_eval(), x.clone(), ends="an error")
    yield case("gradients are off around it", with_dropout(), x.clone(), ends="well", recording=False)
    yield case("a transposed weight", turned_linear(), x.clone().t().contiguous().t(), ends="well")


@eval_mode.alternative
class restores_on_exit:
    def __init__(self, model):
        self.model, self.no_grad = model, torch.no_grad()

    def __enter__(self):
        self.modes = {name: module.training for name, module in self.model.named_modules()}
        self.no_grad.__enter__()
        return self.model.eval()

    def __exit__(self, *exception):
        self.no_grad.__exit__(*exception)
        for name, module in self.model.named_modules():
            module.training = self.modes[name]


@eval_mode.alternative
@contextmanager
def switches_back_who_was_training(model):
    training = [module for module in model.modules() if module.training]
    recording = torch.is_grad_enabled()
    model.eval()
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_grad_enabled(recording)
        for module in training:
            module.training = True


@eval_mode.alternative
@contextmanager
def stacks_what_is_to_do(model):
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        model.eval()
        stack.enter_context(torch.no_grad())
        yield model


@eval_mode.misconception(
    "You called `model.train()` at the end. That switches every submodule to train mode: a norm that was frozen on "
    "purpose wakes up, and a model that was in eval mode before is not any more."
)
@contextmanager
def calls_train_afterwards(model):
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train()


@eval_mode.misconception(
    "You restored the flag of the root alone, by `model.train(was_training)`: all submodules got the same one. "
    "Each has a flag of its own."
)
@contextmanager
def restores_the_root(model):
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train(was_training)


@eval_mode.misconception(
    "Your block builds no graph, but the layers are still in train mode: dropout drops, and a BatchNorm uses the "
    "batch and changes its statistics. `no_grad` and `eval()` are two switches."
)
@contextmanager
def only_stops_gradients(model):
    with torch.no_grad():
        yield model


@eval_mode.misconception(
    "Your block is in eval mode, but it still builds graphs. `eval()` tells layers how to behave; whether autograd "
    "records is another switch, `torch.no_grad()`."
)
@contextmanager
def only_switches_modes(model):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode


@eval_mode.misconception(
    "Where the block raises, your modes are not restored: the exception arrives at the `yield` and leaves your "
    "function there. What must happen in any case belongs into `finally`."
)
@contextmanager
def forgets_exceptions(model):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        yield model
    for module, mode in modes:
        module.training = mode


@eval_mode.misconception(
    "You swallowed the exception: `except` without `raise`, or a true value returned from `__exit__`. The caller "
    "believes that the evaluation went well."
)
@contextmanager
def swallows_the_exception(model):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield model
    except Exception:
        pass
    for module, mode in modes:
        module.training = mode


@eval_mode.misconception(
    "You switched gradients on at the end. Where they were off before your block, they should be off after it: "
    "restore the state that you found. `with torch.no_grad():` does."
)
@contextmanager
def switches_gradients_on(model):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    torch.set_grad_enabled(False)
    try:
        yield model
    finally:
        torch.set_grad_enabled(True)
        for module, mode in modes:
            module.training = mode


@eval_mode.misconception(
    "You restored the model and its direct children, but not what lies deeper. `model.modules()` walks through "
    "all levels."
)
@contextmanager
def restores_one_level(model):
    modes = [(module, module.training) for module in (model, *model.children())]
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        for module, mode in modes:
            module.train(mode)


# ---- freeze_backbone ---------------------------------------------------------------------------------------

freeze_backbone = Exercise(
    reference.freeze_backbone,
    title="Freeze it, all of it",
    objective="modules.freezing",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value(**CLOSE)],
    hints=(
        "A backbone has two kinds of state, and they are changed by two different things: parameters by the "
        "optimizer, running statistics by the forward pass.",
        "Switch off gradients for all parameters of the backbone, and put its normalization into eval mode. The "
        "head stays as it is.",
        "`requires_grad_(False)` and `eval()` are methods of a module and reach everything in it. Return the "
        "parameters of the head.",
    ),
    why="`requires_grad_(False)` stops the gradients. A BatchNorm in train mode still normalizes with the batch and "
    "moves its running statistics in every forward pass, without any gradient; eval mode stops that. The optimizer "
    "gets what shall be trained and nothing else.",
)


def norm_backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())


def plain_backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh())


def image_backbone() -> nn.Module:
    """(batch, 2, 3, 4) -> (batch, 3), in channels_last as fast convolutions like it."""
    layers = (nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def linear_head() -> nn.Module:
    return nn.Linear(4, 2)


def deep_head() -> nn.Module:
    """A head with state of its own, all of which is to be trained."""
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def image_head() -> nn.Module:
    return nn.Linear(3, 2)


def tied_head() -> nn.Module:
    return nn.Sequential(*[nn.Linear(4, 4)] * 2)


def built(*builders: Callable) -> list[nn.Module]:
    return [fill(made(build)) for build in builders]


@torch.enable_grad()
def loss_of(output: Tensor) -> Tensor:
    return (output - 5 - torch.arange(output.shape[1])).square().mean()


def train_twice(forward: Callable, parameters: list, x: Tensor) -> None:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        with torch.enable_grad():
            output = forward(x + step)
        loss_of(output).backward()
        optimizer.step()


@freeze_backbone.scenario
def finetune(answer, build_backbone, build_head, x):
    backbone, head = built(build_backbone, build_head)
    before = tensors_of(backbone)
    returned = answer(backbone, head)
    parameters = list(returned) if isinstance(returned, Iterable) else []
    if not parameters or not all(isinstance(p, Tensor) for p in parameters):
        return returned
    names = {id(p): f"head.{name}" for name, p in head.named_parameters()}
    names |= {id(p): f"backbone.{name}" for name, p in backbone.named_parameters()}
    with torch.random.fork_rng(devices=[]):
        train_twice(lambda x: head(backbone(x)), parameters, x)
    after = tensors_of(backbone)
    return {
        "to be trained": sorted(names.get(id(p), "unknown") for p in parameters),
        "backbone tensors that changed": [n for n in before if not torch.equal(before[n], after.get(n, x))],
        "backbone parameters that require grad": [
            n for n, p in backbone.named_parameters() if p.requires_grad
        ],
        "registered in the head": observe.registered_in(head),
        "hooks of the backbone": observe.registered_in(backbone)["hooks"],
        "head after two steps": tensors_of(head),
    }


@freeze_backbone.cases
def _(rng):
    x = torch.randn(6, 3, generator=rng)
    yield case("a backbone without a norm", plain_backbone, linear_head, x)
    yield case("a backbone with a batch norm", norm_backbone, linear_head, x.clone())
    yield case("a head with a norm and dropout", norm_backbone, deep_head, x.clone())
    images = torch.randn(4, 2, 3, 4, generator=rng).to(memory_format=torch.channels_last)
    yield case("a convolution in channels_last", image_backbone, image_head, images)
    yield case("a head that uses one layer twice", norm_backbone, tied_head, x.clone())


@freeze_backbone.alternative
def only_norms_in_eval_mode(backbone, head):
    for parameter in backbone.parameters():
        parameter.requires_grad = False
    for module in backbone.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return head.parameters()


@freeze_backbone.alternative
def goes_module_by_module(backbone, head):
    for module in backbone.modules():
        module.training = False
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
    return [parameter for _, parameter in head.named_parameters()]


@freeze_backbone.alternative
def filters_both(backbone, head):
    backbone.train(False).requires_grad_(False)
    return (p for p in nn.ModuleList([backbone, head]).parameters() if p.requires_grad)


@freeze_backbone.misconception(
    "Your backbone's running statistics drift. `requires_grad_(False)` is about gradients, and a BatchNorm in "
    "train mode moves its statistics in the forward pass, without any."
)
def only_stops_the_gradients(backbone, head):
    backbone.requires_grad_(False)
    return list(head.parameters())


@freeze_backbone.misconception(
    "You put the backbone into eval mode and hand its parameters to the optimizer with the rest. `eval()` stops no "
    "gradient: the weights of the backbone moved."
)
def only_eval_mode(backbone, head):
    backbone.eval()
    return [*backbone.parameters(), *head.parameters()]


@freeze_backbone.misconception(
    "Your optimizer does not get the backbone, so its weights stay. But they still require gradients: `backward` "
    "computes and stores them in every step, for nothing."
)
def only_keeps_them_from_the_optimizer(backbone, head):
    backbone.eval()
    return list(head.parameters())


@freeze_backbone.misconception(
    "You froze the head as well. Then the loss depends on nothing that requires gradients, and `backward` raises."
)
def freezes_both(backbone, head):
    for module in (backbone, head):
        module.requires_grad_(False)
    backbone.eval()
    return list(head.parameters())


@freeze_backbone.misconception(
    "Your list holds the frozen parameters of the backbone as well. They get no gradients, so nothing happens "
    "today; but an optimizer that owns them goes on with whatever thaws them. Hand over what shall be trained."
)
def returns_everything(backbone, head):
    backbone.requires_grad_(False).eval()
    return [*backbone.parameters(), *head.parameters()]


@freeze_backbone.misconception(
    "You put the head into eval mode too: its dropout is off and its norm does not learn while you train it."
)
def puts_the_head_into_eval_mode(backbone, head):
    backbone.requires_grad_(False).eval()
    head.eval()
    return list(head.parameters())


@freeze_backbone.misconception(
    "You set the momentum of the norms to 0. The running mean stays, but in train mode a BatchNorm still "
    "normalizes each batch with its own statistics, and goes on counting batches."
)
def sets_the_momentum_to_zero(backbone, head):
    backbone.requires_grad_(False)
    for module in backbone.modules():
        if hasattr(module, "momentum"):
            module.momentum = 0.0
    return list(head.parameters())


# ---- FrozenBackbone ----------------------------------------------------------------------------------------

frozen_backbone = Exercise(
    reference.FrozenBackbone,
    title="Frozen, and it stays so",
    objective="modules.freezing",
    difficulty=3,
    minutes=15,
    points=3,
    stretch=True,
    observes=[observe.value(**CLOSE)],
    hints=(
        "Every training loop calls `model.train()` at the start of an epoch. Which flags does that set, and in "
        "which order does it reach the submodules?",
        "`train(mode)` is a method like any other. Override it: let it do its work, then put the backbone back.",
        "Call `super().train(mode)`, then `eval()` on the backbone, and return `self`. `eval()` itself calls "
        "`train(False)`, and a containing module calls the `train` of its children.",
    ),
    why="`model.train()` sets the flag of every submodule by calling each child's `train`. So a module that "
    "overrides `train` decides for everything below it, wherever it is used. It must return `self`, as in "
    "`model = Net().train()`.",
)


@frozen_backbone.scenario
def finetune_for_some_epochs(answer, build_backbone, build_head, x):
    backbone, head = built(build_backbone, build_head)
    before = tensors_of(backbone)
    model = answer(backbone, head)
    if not isinstance(model, nn.Module):
        return model
    facts = {"registered": observe.registered_in(model), "at first": states_of(model, head)}
    with torch.random.fork_rng(devices=[]):
        facts["first outputs"] = model(x)
        head.eval()
        whole = nn.Sequential(model)
        for train in (model.train, whole.train):
            facts[f"after train() of {'the model' if train == model.train else 'a module around it'}"] = (
                train() is train.__self__,
                states_of(model, head),
            )
            train_twice(model, [p for p in model.parameters() if p.requires_grad], x)
    facts["after eval()"] = (model.eval() is model, states_of(model, head))
    facts["predictions"] = model(x)
    facts["back in train mode"] = (model.train(True) is model, states_of(model, head))
    after = tensors_of(backbone)
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    return {"backbone tensors that changed": changed, **facts, "head": tensors_of(head)}


def states_of(model: nn.Module, head: nn.Module) -> dict[str, bool]:
    return {"model.training": model.training, "head.training": all(m.training for m in head.modules())}


@frozen_backbone.cases
def _(rng):
    x = torch.randn(6, 3, generator=rng)
    yield case("a backbone without a norm", plain_backbone, linear_head, x)
    yield case("a backbone with a batch norm", norm_backbone, linear_head, x.clone())
    yield case("a head with a norm and dropout", norm_backbone, deep_head, x.clone())
    images = torch.randn(4, 2, 3, 4, generator=rng).to(memory_format=torch.channels_last)
    yield case("a convolution in channels_last", image_backbone, image_head, images)


@frozen_backbone.alternative
class puts_it_back_before_each_use(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head
        for parameter in backbone.parameters():
            parameter.requires_grad = False

    def forward(self, x):
        self.backbone.eval()
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


@frozen_backbone.alternative
class switches_the_head_only(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head
        self.backbone.requires_grad_(False)
        self.backbone.eval()

    def train(self, mode=True):
        self.training = mode
        self.head.train(mode)
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


@frozen_backbone.misconception(
    "Your backbone is frozen until somebody calls `model.train()`, as every loop does: that puts all submodules "
    "into train mode, and its norms go on learning. Override `train`."
)
class frozen_at_the_start_only(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.head = head

    def forward(self, x):
        return self.head(self.backbone(x))


@frozen_backbone.misconception(
    "Your backbone is frozen from the first `train()` call on, and not before: a new module is in train mode "
    "without anyone calling `train`. Put it into eval mode in `__init__` as well."
)
class frozen_after_the_first_train(reference.FrozenBackbone):
    def __init__(self, backbone, head):
        nn.Module.__init__(self)
        self.backbone = backbone.requires_grad_(False)
        self.head = head


@frozen_backbone.misconception(
    "Your backbone stays in eval mode, but its parameters require gradients: an optimizer over all that requires "
    "gradients trains it."
)
class only_modes(reference.FrozenBackbone):
    def __init__(self, backbone, head):
        nn.Module.__init__(self)
        self.backbone = backbone.eval()
        self.head = head


@frozen_backbone.misconception(
    "Your backbone requires no gradients, and its norms still move their statistics in every forward pass in train "
    "mode. Gradients have no part in that."
)
class only_gradients(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.head = head

    def forward(self, x):
        return self.head(self.backbone(x))


@frozen_backbone.misconception(
    "Your `train` returns nothing. `model = Net().train()` and `eval()`, which calls `train(False)`, hand on what "
    "it returns."
)
class train_returns_nothing(reference.FrozenBackbone):
    def train(self, mode=True):
        nn.Module.train(self, mode)
        self.backbone.eval()


@frozen_backbone.misconception(
    "Your `train` puts the backbone into eval mode and does nothing else: the head, and the module itself, never "
    "change their mode. Call `super().train(mode)` first."
)
class train_forgets_the_rest(reference.FrozenBackbone):
    def train(self, mode=True):
        self.backbone.eval()
        return self


@frozen_backbone.misconception(
    "Your `train` ignores `mode`. `eval()` is `train(False)`: with you, the head would be in train mode for ever."
)
class train_ignores_the_mode(reference.FrozenBackbone):
    def train(self, mode=True):
        return super().train()


@frozen_backbone.misconception(
    "Your backbone is hidden from the module, in a list or a tuple. `train()` no longer reaches it, but nor do "
    "`state_dict()` and `.to()`: it is not saved, and stays on the CPU."
)
class hides_the_backbone(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.hidden = [backbone.requires_grad_(False).eval()]
        self.head = head

    def forward(self, x):
        return self.head(self.hidden[0](x))


# ---- output_of ---------------------------------------------------------------------------------------------

output_of = Exercise(
    reference.output_of,
    title="Look inside once",
    objective="modules.hooks",
    difficulty=1,
    minutes=8,
    points=1,
    observes=[observe.value(**CLOSE), observe.gradients()],
    hints=(
        "`model.get_submodule(name)` finds the layer. Who calls it, and when? Only the model knows what arrives "
        "there.",
        "Register a forward hook that keeps the output, call the model, remove the hook in any case.",
        "`handle = layer.register_forward_hook(...)` with a hook that appends its third argument to a list; `try:` "
        "the model, `finally:` `handle.remove()`; then return what is in the list.",
    ),
    why="A forward hook sees what the layer puts out in its place inside the model. A hook stays until it is removed, "
    "so the removal belongs into `finally`: a model that raises would otherwise carry it on, and each retry would "
    "add one.",
)


class TwoPaths(nn.Module):
    """Two layers side by side, so that running the children in a row is not what the model does."""

    def __init__(self, n_in: int = 3, n_out: int = 2):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(n_in, 4), nn.Dropout(0.5), nn.Linear(4, n_out))
        self.right = nn.Linear(n_in, n_out)
        self.last = nn.Linear(n_out, n_in)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.left(x) * self.right(x).tanh())


class Refuses(nn.Module):
    """A layer that has no use for any input."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("this layer refuses")


def norm_stack() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


@output_of.cases
def _(rng):
    x = torch.randn(4, 3, generator=rng)
    yield case("the first layer", fill(norm_stack()), "0", x)
    yield case("a layer in the middle", fill(norm_stack()), "1", x.clone())
    yield case("a layer in the middle, eval mode", fill(norm_stack()).eval(), "2", x.clone())
    yield case("a nested layer", fill(TwoPaths()), "left.2", x.clone())
    yield case("a layer on another path", fill(TwoPaths()).eval(), "right", x.clone())
    yield case("the model itself", fill(TwoPaths()), "", x.clone())
    watched = fill(norm_stack())
    watched[0].register_forward_hook(lambda module, args, output: None)
    yield case("a layer with a hook of somebody else", watched, "0", x.clone())
    yield case("a later layer raises", nn.Sequential(nn.Linear(3, 2), Refuses()), "0", x.clone())
    yield case(
        "a transposed batch", fill(norm_stack()), "3", torch.randn(3, 5, generator=rng).t().requires_grad_()
    )
    turned = fill(turned_linear())
    turned.weight = nn.Parameter(torch.randn(3, 2, generator=rng).t())
    yield case("a transposed weight", nn.Sequential(turned, nn.ReLU()), "0", x.clone())


@output_of.alternative
def finds_it_among_the_named(model, name, x):
    found = {}
    layer = dict(model.named_modules())[name]

    def keep(module, args, output):
        found["output"] = output

    with contextlib.ExitStack() as stack:
        stack.callback(layer.register_forward_hook(keep).remove)
        model(x)
    return found["output"]


@output_of.alternative
def uses_the_handle_as_context(model, name, x):
    box = SimpleNamespace()
    hook = lambda module, args, output: setattr(box, "output", output)  # noqa: E731
    with model.get_submodule(name).register_forward_hook(hook):
        model(x)
    return box.output


@output_of.misconception(
    "Your hook is still there. It stays until its handle is removed, runs in every later call, and keeps alive "
    "whatever it has collected."
)
def never_removes(model, name, x):
    seen = []
    model.get_submodule(name).register_forward_hook(lambda module, args, output: seen.append(output))
    model(x)
    return seen[0]


@output_of.misconception(
    "Where the model raises, your hook stays: the line that removes it is never reached. `finally` is."
)
def removes_if_all_goes_well(model, name, x):
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, args, output: seen.append(output))
    model(x)
    handle.remove()
    return seen[0]


@output_of.misconception(
    "You called the layer with `x`. What arrives at a layer inside the model is what the layers before it made."
)
def calls_the_layer(model, name, x):
    return model.get_submodule(name)(x)


@output_of.misconception(
    "You called `model.forward(x)`. Hooks run in `model(x)`, which then calls `forward`: one that is registered on "
    "the model itself is skipped."
)
def calls_forward(model, name, x):
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        model.forward(x)
    finally:
        handle.remove()
    return seen[0]


@output_of.misconception(
    "You kept what arrives at the layer. A forward hook gets the module, its positional arguments, and its output, "
    "in this order."
)
def keeps_the_input(model, name, x):
    seen = []
    handle = model.get_submodule(name).register_forward_hook(
        lambda module, args, output: seen.append(args[0])
    )
    try:
        model(x)
    finally:
        handle.remove()
    return seen[0]


@output_of.misconception(
    "You emptied the dict of hooks. Hooks of others were in it, too. A handle removes its own hook."
)
def clears_all_hooks_of_the_layer(model, name, x):
    seen = []
    layer = model.get_submodule(name)
    layer.register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        model(x)
    finally:
        layer._forward_hooks.clear()
    return seen[0]


@output_of.misconception(
    "You detached the output, or ran the model under `no_grad`. The values are right, but nothing flows back "
    "through them."
)
def detaches(model, name, x):
    return reference.output_of(model, name, x).detach()


@output_of.misconception(
    "You looked among the direct children. A layer further down has a name with dots, which `get_submodule` and "
    "`named_modules` know."
)
def looks_among_the_children(model, name, x):
    seen = []
    layer = dict(model.named_children())[name]
    handle = layer.register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        model(x)
    finally:
        handle.remove()
    return seen[0]


@output_of.misconception(
    "You ran the children one after the other until yours was reached. Only a Sequential does that: in general, "
    "`forward` decides what is called with what."
)
def runs_the_children_in_a_row(model, name, x):
    for child_name, child in model.named_children():
        x = child(x)
        if child_name == name.partition(".")[0]:
            return x
    return x


@output_of.misconception(
    "You switched the model to eval mode, or left it there. It is to be called in the mode in which it is."
)
def switches_to_eval_mode(model, name, x):
    return reference.output_of(model.eval(), name, x)


# ---- ActivationRecorder ------------------------------------------------------------------------------------

activation_recorder = Exercise(
    reference.ActivationRecorder,
    title="A recorder made of hooks",
    objective="modules.hooks",
    difficulty=3,
    minutes=20,
    points=3,
    observes=[observe.value(**CLOSE)],
    hints=(
        "One hook for each name. Each must know *its* name when it runs, and a `for` loop has only one variable. "
        "What does a hook that returns something do?",
        "Register in `__enter__`, keep the handles, remove them all in `__exit__`, which runs after exceptions too. "
        "A hook takes the tensor (the first of a tuple), and notes numbers: nothing that hangs on the graph.",
        "Bind the name with `functools.partial(self.note, name)`. In `note`, store `tuple(tensor.shape)` and "
        "`tensor.mean().item()`, and return nothing.",
    ),
    why="A hook that returns a value replaces the output, so yours returns None. A closure over the loop variable "
    "would see its last value; `partial` binds the value of now. `.item()` makes a number, and a number keeps no "
    "graph alive. And `__exit__` is called whatever happens in the block.",
)


class Recurrent(nn.Module):
    """An LSTM, whose output is a nested tuple, and a head: (batch, seq, dim) -> (batch, seq, 2)."""

    def __init__(self, dim: int = 3):
        super().__init__()
        self.rnn = nn.LSTM(dim, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        return self.head(states)


class Attends(nn.Module):
    """Self-attention whose module returns (output, weights), with one layer used twice."""

    def __init__(self, dim: int = 4):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.linear = nn.Linear(dim, dim)
        self.unused = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        x, _ = self.attention(x, x, x)
        return self.linear(x.relu())


@activation_recorder.scenario
def record(answer, model, names, x, ends):
    recorder = answer(model, names)
    if not hasattr(recorder, "__enter__"):
        return recorder
    facts = {"came out": "nothing"}
    with watching(model, names) as watched:
        try:
            with recorder as recorder:
                facts["output"], facts["gradients"] = run_backward(model, x)
                facts["stats in the block"] = readable(recorder.stats)
                if ends == "an error":
                    raise KeyError("in the block")
        except KeyError:
            facts["came out"] = "KeyError"
        facts["stats"] = readable(recorder.stats)
        facts = {**facts, "output": facts["output"].detach(), "requires grad": facts["output"].requires_grad}
        facts["outputs kept alive"] = kept_alive(watched)
        before = len(watched)
        with torch.no_grad():
            model(x + 1)
    facts["stats after another call"] = readable(recorder.stats)
    facts["hooks of others that still run"] = len(watched) - before
    return facts


@contextmanager
def watching(model: nn.Module, names: Iterable[str]) -> Iterator[list]:
    """Hooks of somebody else on the same layers, which keep nothing alive."""
    watched = []
    layers = [model, *map(model.get_submodule, names)]
    handles = [layer.register_forward_hook(partial(watch, watched)) for layer in layers]
    try:
        yield watched
    finally:
        for handle in handles:
            handle.remove()


def watch(watched: list, module: nn.Module, args: tuple, output: Any) -> None:
    """Remember, without keeping it alive, what the layer put out."""
    watched.append(weakref.ref(output[0] if isinstance(output, tuple) else output))


def kept_alive(references: list) -> int:
    if any(ref() is not None for ref in references):
        gc.collect()  # a cycle is no leak
    return sum(ref() is not None for ref in references)


def readable(stats: Any) -> Any:
    """Means as numbers, whether they were kept as floats or as tensors; and which of them hold a graph."""
    if not isinstance(stats, dict):
        return stats
    return {name: readable_entry(entry) for name, entry in stats.items()}


def readable_entry(entry: Any) -> Any:
    if not isinstance(entry, dict) or not isinstance(entry.get("mean"), (float, Tensor)):
        return entry
    mean = entry["mean"]
    has_graph = isinstance(mean, Tensor) and mean.requires_grad
    return {**entry, "mean": float(mean), **({"mean holds a graph": True} if has_graph else {})}


@activation_recorder.cases
def _(rng):
    x = torch.randn(4, 3, generator=rng)
    yield case("one layer", fill(norm_stack()), ["0"], x, ends="well")
    yield case("two layers", fill(norm_stack()), ["0", "3"], x.clone(), ends="well")
    yield case("two layers, eval mode", fill(norm_stack()).eval(), ("1", "2"), x.clone(), ends="well")
    yield case("nested layers", fill(TwoPaths()), ["left.0", "left", "right"], x.clone(), ends="well")
    sequences = torch.randn(2, 5, 3, generator=rng)
    yield case("a layer that returns a tuple", fill(Recurrent()), ["rnn", "head"], sequences, ends="well")
    twice = torch.randn(2, 3, 4, generator=rng)
    yield case(
        "a layer used twice, another never",
        fill(Attends()),
        ["linear", "attention", "unused"],
        twice,
        ends="well",
    )
    yield case("the block raises", fill(norm_stack()), ["0", "2"], x.clone(), ends="an error")
    yield case(
        "a transposed batch", fill(norm_stack()), ["3"], torch.randn(3, 5, generator=rng).t(), ends="well"
    )
    turned = turned_linear()
    turned.weight = nn.Parameter(torch.randn(3, 2, generator=rng).t())
    yield case(
        "a transposed weight",
        nn.Sequential(turned, nn.ReLU()),
        ["0"],
        x.clone().t().contiguous().t(),
        ends="well",
    )


@activation_recorder.alternative
@contextmanager
def a_generator_with_a_finally(model, names):
    recorder = SimpleNamespace(stats={})

    def hook_for(name):
        def hook(module, args, output):
            first = output[0] if isinstance(output, tuple) else output
            recorder.stats[name] = {"shape": first.shape, "mean": float(first.mean())}

        return hook

    handles = [model.get_submodule(name).register_forward_hook(hook_for(name)) for name in names]
    try:
        yield recorder
    finally:
        for handle in handles:
            handle.remove()


@activation_recorder.alternative
class binds_by_a_default_argument:
    def __init__(self, model, names):
        self.stats, self.stack = {}, contextlib.ExitStack()
        self.layers = [(name, module) for name, module in model.named_modules() if name in names]

    def __enter__(self):
        for name, module in self.layers:
            self.stack.enter_context(
                module.register_forward_hook(lambda m, args, out, name=name: self.look(name, out))
            )
        return self

    @torch.no_grad()
    def look(self, name, out):
        while isinstance(out, tuple):
            out = out[0]
        self.stats[name] = {"shape": tuple(out.size()), "mean": out.sum().div(out.numel()).detach()}

    def __exit__(self, *exception):
        return self.stack.__exit__(*exception)


@activation_recorder.alternative
class finds_the_name_by_the_module:
    def __init__(self, model, names):
        self.model, self.names, self.stats = model, list(names), {}

    def __enter__(self):
        self.handles = [self.model.get_submodule(n).register_forward_hook(self.hook) for n in self.names]
        return self

    def hook(self, module, args, output):
        tensor = output if isinstance(output, Tensor) else output[0]
        for name in self.names:
            if self.model.get_submodule(name) is module:
                self.stats[name] = {"shape": tuple(tensor.shape), "mean": tensor.detach().mean().item()}

    def __exit__(self, *exception):
        for handle in self.handles:
            handle.remove()


@activation_recorder.misconception(
    "Your hooks are still there after the block. They go on noting, and each new recorder adds its own."
)
class never_removes_its_hooks:
    def __init__(self, model, names):
        self.model, self.names, self.stats = model, names, {}

    def __enter__(self):
        for name in self.names:
            self.model.get_submodule(name).register_forward_hook(partial(self.note, name))
        return self

    def __exit__(self, *exception):
        pass

    def note(self, name, layer, args, output):
        tensor = output[0] if isinstance(output, tuple) else output
        self.stats[name] = {"shape": tuple(tensor.shape), "mean": tensor.mean().item()}


@activation_recorder.misconception(
    "Where the block raises, your hooks stay. In a generator, the exception arrives at the `yield`, and only a "
    "`finally` comes after it."
)
@contextmanager
def removes_only_after_success(model, names):
    recorder = reference.ActivationRecorder(model, names)
    yield recorder.__enter__()
    recorder.__exit__()


@activation_recorder.misconception(
    "Your hook returns a value. What a forward hook returns takes the place of the layer's output: here it is "
    "detached, so that no gradient reaches the layers before it."
)
class returns_what_it_looked_at(reference.ActivationRecorder):
    def note(self, name, layer, args, output):
        super().note(name, layer, args, output)
        return output.detach() if isinstance(output, Tensor) else None


@activation_recorder.misconception(
    "You took for granted that an output is a tensor. An LSTM and an attention layer return tuples, which have "
    "no shape."
)
class expects_a_tensor(reference.ActivationRecorder):
    def note(self, name, layer, args, output):
        self.stats[name] = {"shape": tuple(output.shape), "mean": output.mean().item()}


@activation_recorder.misconception(
    "Your means are tensors that require gradients. Each keeps the graph of its forward pass alive, with all the "
    "activations in it. `.item()` makes a number of it."
)
class keeps_means_with_their_graph(reference.ActivationRecorder):
    def note(self, name, layer, args, output):
        tensor = output[0] if isinstance(output, tuple) else output
        self.stats[name] = {"shape": tuple(tensor.shape), "mean": tensor.mean()}


@activation_recorder.misconception(
    "Your recorder keeps the outputs themselves, and with them the whole graph, until it is gone itself. Compute "
    "the numbers in the hook and let the output go."
)
class keeps_the_outputs(reference.ActivationRecorder):
    def note(self, name, layer, args, output):
        super().note(name, layer, args, output)
        vars(self).setdefault("outputs", []).append(output)


@activation_recorder.misconception(
    "All your hooks write under the last name. A function made in a loop looks its variable up when it runs, and by "
    "then the loop is over. Bind the name with `partial`, or as a default argument."
)
class binds_too_late(reference.ActivationRecorder):
    def __enter__(self):
        for name, layer in self.layers.items():
            hook = lambda module, args, output: self.note(name, module, args, output)  # noqa: B023, E731
            self.handles.append(layer.register_forward_hook(hook))
        return self


@activation_recorder.misconception(
    "You looked for the names among the direct children. Layers further down have names with dots; "
    "`get_submodule` finds them."
)
class looks_for_children(reference.ActivationRecorder):
    def __init__(self, model, names):
        super().__init__(model, [])
        self.layers = {name: child for name, child in model.named_children() if name in names}


@activation_recorder.misconception(
    "You keep the first output of a layer that is called twice. Wanted is the last one."
)
class keeps_the_first_call(reference.ActivationRecorder):
    def note(self, name, layer, args, output):
        if name not in self.stats:
            super().note(name, layer, args, output)


@activation_recorder.misconception(
    "You noted what goes into the layer. A forward hook gets module, arguments and output, in this order."
)
class notes_the_input(reference.ActivationRecorder):
    def note(self, name, layer, args, output):
        super().note(name, layer, args, args[0])


@activation_recorder.misconception(
    "You emptied the dict of hooks. In it were not only yours: whoever else looks at these layers sees nothing any "
    "more. A handle removes its own hook."
)
class clears_all_hooks(reference.ActivationRecorder):
    def __exit__(self, *exception):
        for layer in self.layers.values():
            layer._forward_hooks.clear()


@activation_recorder.misconception(
    "Your statistics are gone after the block. They are what the block was for: remove the hooks and keep the "
    "numbers."
)
class forgets_everything_at_the_end(reference.ActivationRecorder):
    def __exit__(self, *exception):
        super().__exit__()
        self.stats = {}


# ---- step_in_backward --------------------------------------------------------------------------------------

step_in_backward = Exercise(
    reference.step_in_backward,
    title="An optimizer made of hooks",
    objective="modules.hooks",
    difficulty=3,
    minutes=15,
    points=3,
    stretch=True,
    observes=[observe.value(**CLOSE)],
    hints=(
        "Which hook runs when a parameter's `.grad` has its final value, and gets the parameter? Read the list of "
        "hooks in this section once more.",
        "For each parameter that requires gradients, `register_post_accumulate_grad_hook`. The hook changes the "
        "parameter under `no_grad`, then sets its `.grad` to None.",
        "One function of the parameter, used for all of them: `sub_` the gradient times `lr` in place. Return the "
        "list of what the registrations returned.",
    ),
    why="The hook runs right after a gradient was accumulated, one parameter at a time, from the last layer to the "
    "first. So a gradient is used and freed before the next one is made, and at no time are there gradients for the "
    "whole model. One function serves all parameters, as it gets its parameter as an argument.",
)


@step_in_backward.scenario
def train_without_optimizer(answer, model, lr, x):
    handles = answer(model, lr)
    if not isinstance(handles, Iterable) or not all(hasattr(handle, "remove") for handle in handles):
        return handles
    parameters = dict(model.named_parameters())
    facts, waiting = {}, []
    for step in ("first step", "second step"):
        middle, output = forward_in_two_halves(model, x)
        middle.register_hook(
            lambda grad: waiting.append(sum(p.grad is not None for p in parameters.values()))
        )
        loss_of(output).backward()
        facts[step] = tensors_of(model)
        facts[f"gradients left after the {step}"] = [n for n, p in parameters.items() if p.grad is not None]
    facts["gradients there while earlier layers wait"] = waiting
    for handle in handles:
        handle.remove()
    loss_of(forward_in_two_halves(model, x)[1]).backward()
    facts["after remove()"] = tensors_of(model)
    facts["gradients after remove()"] = {n: p.grad for n, p in parameters.items()}
    return facts


@torch.enable_grad()
def forward_in_two_halves(model: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the first layer puts out, connected to the graph, and what the model makes of it."""
    middle = model[0](x)
    middle = middle if middle.requires_grad else middle.requires_grad_()
    output = middle
    for layer in model[1:]:
        output = layer(output)
    return middle, output


@step_in_backward.cases
def _(rng):
    def filled(*layers):
        return fill(nn.Sequential(*layers))

    x = torch.randn(4, 3, generator=rng)
    yield case("two layers", filled(nn.Linear(3, 2), nn.Linear(2, 1)), 0.1, x)
    deep = filled(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    yield case("three layers", deep, 0.02, x.clone())
    frozen = filled(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    frozen[0].requires_grad_(False)
    yield case("a frozen layer", frozen, 0.05, x.clone())
    shared = nn.Linear(3, 3)
    yield case("a layer used twice", filled(nn.Linear(3, 3), shared, nn.Tanh(), shared), 0.01, x.clone())
    turned = nn.Sequential(turned_linear(), nn.Linear(2, 2))
    turned[0].weight = nn.Parameter(torch.randn(3, 2, generator=rng).t())
    turned[1].weight = nn.Parameter(torch.randn(2, 2, generator=rng))
    fill(turned, 1)
    yield case("a transposed weight", turned, 0.03, torch.randn(3, 5, generator=rng).t())


@step_in_backward.alternative
def one_hook_for_each(model, lr):
    def hook_with(rate):
        def hook(p):
            p.data = p.data - rate * p.grad
            p.grad = None

        return hook

    return [
        p.register_post_accumulate_grad_hook(hook_with(lr)) for p in model.parameters() if p.requires_grad
    ]


@step_in_backward.alternative
def one_optimizer_for_each(model, lr):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizers = {p: torch.optim.SGD([p], lr=lr) for p in trained}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    return [p.register_post_accumulate_grad_hook(step) for p in trained]


@step_in_backward.misconception(
    "You used `register_hook`. That one runs before the gradient is accumulated: the parameter moves, and then "
    "`.grad` is filled all the same, and stays."
)
def hooks_the_gradient(model, lr):
    def step(p):
        def hook(grad):
            with torch.no_grad():
                p.sub_(grad, alpha=lr)

        return hook

    return [p.register_hook(step(p)) for p in model.parameters() if p.requires_grad]


@step_in_backward.misconception(
    "Your gradients stay. Each `backward` adds to `.grad`, so that the second step is made with the sum of both, "
    "and the memory is used all the same. Set `.grad` to None in the hook."
)
def keeps_the_gradients(model, lr):
    @torch.no_grad()
    def step(p):
        p.sub_(p.grad, alpha=lr)

    return [p.register_post_accumulate_grad_hook(step) for p in model.parameters() if p.requires_grad]


@step_in_backward.misconception(
    "Your gradients are zero, but they are still there: `zero_()` keeps the memory that this was meant to save. "
    "`.grad = None` lets it go."
)
def fills_gradients_with_zeros(model, lr):
    @torch.no_grad()
    def step(p):
        p.sub_(p.grad, alpha=lr)
        p.grad.zero_()

    return [p.register_post_accumulate_grad_hook(step) for p in model.parameters() if p.requires_grad]


@step_in_backward.misconception("Your parameters move with the gradient, uphill. A descent subtracts it.")
def goes_uphill(model, lr):
    return reference.step_in_backward(model, -lr)


@step_in_backward.misconception(
    "You returned no handles. Nobody can remove your hooks any more, and the model trains itself in every "
    "`backward` for as long as it lives."
)
def returns_no_handles(model, lr):
    reference.step_in_backward(model, lr)
    return []


@step_in_backward.misconception(
    "You registered a hook on a frozen parameter. No gradient will ever arrive there, and PyTorch refuses."
)
def hooks_frozen_parameters(model, lr):
    @torch.no_grad()
    def step(p):
        p.sub_(p.grad, alpha=lr)
        p.grad = None

    return [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]


@step_in_backward.misconception(
    "All your hooks move the last parameter. A function made in a loop looks its variable up when it runs; the "
    "parameter that is meant comes as the hook's argument."
)
def moves_the_last_parameter(model, lr):
    handles = []
    for p in model.parameters():
        if p.requires_grad:

            @torch.no_grad()
            def step(_):
                p.sub_(p.grad if p.grad is not None else 0, alpha=lr)  # noqa: B023
                p.grad = None  # noqa: B023

            handles.append(p.register_post_accumulate_grad_hook(step))
    return handles


@step_in_backward.misconception(
    "You step through all parameters whenever one gradient arrives, or register one hook for each name: a parameter "
    "with several uses moves more often than once, or the gradients wait for the last one."
)
def waits_for_the_last_gradient(model, lr):
    trained = [p for p in model.parameters() if p.requires_grad]

    @torch.no_grad()
    def step_all(_):
        if all(p.grad is not None for p in trained):
            for p in trained:
                p.sub_(p.grad, alpha=lr)
                p.grad = None

    return [p.register_post_accumulate_grad_hook(step_all) for p in trained]


# ---- predictions -------------------------------------------------------------------------------------------

plain_tensor = Question(
    "plain_tensor",
    objective="modules.registration",
    text="""What does the last line do?

```python
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.mask = torch.ones(3, 3).tril()

    def forward(self, x):
        return self.linear(x) @ self.mask

model = Masked().double()
model(torch.ones(1, 3, dtype=torch.float64))
```""",
    choices={"a": "it returns a `float64` tensor", "b": "it returns a `float32` tensor", "c": "it raises"},
    answer="c",
    replies={
        "a": "The linear layer is `float64`, as asked. But a tensor that was assigned as it is stays unknown to the "
        "module, so `double()` did not reach the mask.",
        "b": "A matrix product converts nothing: it refuses two dtypes. And there are two.",
        "c": "Right. `double()` reached the linear layer and not the mask, and a matrix product refuses two dtypes. "
        "With a GPU the same model would stop with two devices.",
    },
)

layers_in_list = Question(
    "layers_in_list",
    objective="modules.containers",
    text="""A layer `nn.Linear(2, 2)` has 6 numbers, `nn.Linear(2, 1)` has 3. What is printed?

```python
class ListNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2) for _ in range(3)]
        self.head = nn.Linear(2, 1)

print(sum(p.numel() for p in ListNet().parameters()))
```""",
    choices={"a": "`21`", "b": "`3`", "c": "`0`"},
    answer="b",
    replies={
        "a": "That is what the author of the class meant. But what was assigned is a list, and a module does not "
        "look into lists.",
        "b": "Right, only the head. This is why the mistake lives long: the head trains, the loss falls, and three "
        "layers keep their random weights.",
        "c": "The list is not seen, but the head was assigned by itself and is.",
    },
)

repeated_layer = Question(
    "repeated_layer",
    objective="modules.containers",
    text="""How many numbers does this model train, and how many entries has its state dict?

```python
model = nn.Sequential(*[nn.Linear(2, 2)] * 3)
print(sum(p.numel() for p in model.parameters()), len(model.state_dict()))
```""",
    choices={"a": "18 and 6", "b": "6 and 2", "c": "6 and 6"},
    answer="c",
    replies={
        "a": "That takes three layers. `[layer] * 3` is a list that holds one layer three times.",
        "b": "One layer it is, so 6 numbers. But it has three names in the model, and a state dict lists names.",
        "c": "Right. One layer, 6 numbers, under three names: `parameters()` meets it once, the state dict lists "
        "each name. So the length of a checkpoint proves nothing about depth.",
    },
)

best_weights = Question(
    "best_weights",
    objective="modules.saving",
    text="""The weight is 1 at its best; training goes on and makes it 9. What is printed?

```python
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
best = model.state_dict()
nn.init.constant_(model.weight, 9.0)
model.load_state_dict(best)
print(model.weight.item())
```""",
    choices={"a": "`1.0`", "b": "`9.0`", "c": "an error: the state is out of date"},
    answer="b",
    replies={
        "a": "So it was meant, and so it stands in many training scripts. But what did `state_dict()` return: the "
        "numbers, or another way to the same storage?",
        "b": "Right. The state dict holds the storages of the model. What was kept as the best was the current all "
        "along, and loading it copied the weight onto itself.",
        "c": "Nothing watches over it. Names and shapes fit, so it is loaded.",
    },
)

lenient_load = Question(
    "lenient_load",
    objective="modules.saving",
    text="""A checkpoint was saved from a wrapped model. What does the last line do?

```python
state = {f"module.{name}": t for name, t in nn.Linear(2, 2).state_dict().items()}
model = nn.Linear(2, 2)
model.load_state_dict(state, strict=False)
```""",
    choices={
        "a": "it raises, since no name fits",
        "b": "it loads both tensors, as the prefix is ignored",
        "c": "it loads nothing and raises nothing",
    },
    answer="c",
    replies={
        "a": "With `strict=True`, the default, it would. `strict=False` was written to silence exactly this.",
        "b": "Nothing guesses names. `module.weight` and `weight` are two names.",
        "c": "Right. The model stays random, and the program goes on to evaluate it. The returned value says what "
        "happened; nobody reads it.",
    },
)

assigned_weights = Question(
    "assigned_weights",
    objective="modules.saving",
    text="""The optimizer is made first, then a checkpoint is loaded. What does the step do to `model.weight`?

```python
model = nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model.load_state_dict({"weight": torch.ones(1, 1)}, assign=True)
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
```""",
    choices={"a": "it becomes 0", "b": "it stays 1", "c": "`step()` raises"},
    answer="b",
    replies={
        "a": "That would be 1 - 1.0 * 1, if the optimizer had the weight. It has the Parameter that the model held "
        "when it was made.",
        "b": "Right. Loading put a new Parameter in the place of the old one, and the optimizer still owns the old "
        "one, which gets no gradients. Load first, then make the optimizer.",
        "c": "The old Parameter still exists, in the optimizer. It has no gradient, so it is skipped, silently.",
    },
)

tie_moves = Question(
    "tie_moves",
    objective="modules.tying",
    text="""`model.head.weight` *is* `model.table.weight`. After which of these are they two?""",
    choices={"a": "`model.double()`", "b": "`copy.deepcopy(model)`", "c": '`model.to("meta")`'},
    answer="c",
    replies={
        "a": "`double()` puts new values into the Parameter that is there, so that both names keep leading to it.",
        "b": "`deepcopy` remembers what it has copied already, and puts the one copy in both places.",
        "c": "Right. Where the kind of storage changes too much to be swapped inside the Parameter, a new one is made, "
        "name by name. What was one becomes two, and nothing is said.",
    },
)

eval_and_graph = Question(
    "eval_and_graph",
    objective="modules.modes",
    text="""What is printed?

```python
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
model.eval()
print(model(batch).requires_grad)
```""",
    choices={"a": "`False`", "b": "`True`"},
    answer="b",
    replies={
        "a": "You expect evaluation to cost no graph. But `eval()` sets a flag that layers look at, and autograd is "
        "no layer.",
        "b": "Right. `eval()` and `no_grad` are two switches, and an evaluation needs both: one for right numbers, "
        "one for memory.",
    },
)

functional_dropout = Question(
    "functional_dropout",
    objective="modules.modes",
    text="""How many of the 1000 outputs are zero?

```python
class Drops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)

(Drops().eval()(torch.ones(1000)) == 0).sum()
```""",
    choices={"a": "none", "b": "about half of them", "c": "all"},
    answer="b",
    replies={
        "a": "`nn.Dropout` would look at its flag. The function `F.dropout` belongs to no module; who tells it?",
        "b": "Right. A function has no mode. Its `training` argument is True unless you pass `self.training`, so it "
        "drops for ever.",
        "c": "Half of them are dropped and the rest doubled, so that the mean stays.",
    },
)

frozen_norm = Question(
    "frozen_norm",
    objective="modules.freezing",
    text="""`running_mean` of a new BatchNorm is 0. What is it after this?

```python
norm = nn.BatchNorm1d(2).requires_grad_(False)
for _ in range(3):
    norm(torch.randn(8, 2) + 5)
```""",
    choices={"a": "still 0", "b": "between 1 and 2", "c": "5"},
    answer="b",
    replies={
        "a": "No gradient will ever change it: none would have without `requires_grad_(False)` either. Running "
        "statistics move in the forward pass.",
        "b": "Right: 5 · (1 - 0.9³) is 1.36. Each forward pass in train mode moves the mean a tenth of the way, "
        "gradients or not.",
        "c": "It moves a tenth of the way to the batch mean in each pass, so it needs some more.",
    },
)

forward_call = Question(
    "forward_call",
    objective="modules.hooks",
    text="""How many shapes does the hook note?

```python
seen = []
layer = nn.Linear(4, 2)
layer.register_forward_hook(lambda module, args, output: seen.append(output.shape))
layer.forward(batch)
print(len(seen))
```""",
    choices={"a": "0", "b": "1", "c": "2"},
    answer="a",
    replies={
        "a": "Right. `layer(batch)` runs the hooks and calls `forward` between them. Whoever calls `forward` directly "
        "skips the hooks, and everything else that wraps a module.",
        "b": "Who runs the hook? Not `forward`, which is the code of the layer and knows nothing of hooks.",
        "c": "Neither before nor after: nobody runs it at all.",
    },
)

hook_returns = Question(
    "hook_returns",
    objective="modules.hooks",
    text="""What is `layer(batch).abs().sum()`?

```python
layer = nn.Linear(4, 2)
layer.register_forward_hook(lambda module, args, output: output * 0)
```""",
    choices={"a": "what it was without the hook", "b": "`0`", "c": "an error: a hook returns nothing"},
    answer="b",
    replies={
        "a": "So it is for hooks that return None. This lambda returns a tensor, and that has a meaning.",
        "b": "Right. What a forward hook returns takes the place of the output. A lambda returns the value of its "
        "expression, so a hook that only wanted to look may change the model.",
        "c": "It may return something, and then it is taken at its word.",
    },
)
