"""The answers of notebook 03: modules.

Names of sizes: batch samples, dim numbers in each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


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
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("cache", torch.zeros(dim), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.cache.copy_(x.detach().mean(dim=0))
            self.mean.lerp_(self.cache, 0.1)
        return (x - self.mean) * self.weight


class DeepMLP(nn.Module):
    """A stack of linear layers with a ReLU between each two: (batch, dims[0]) -> (batch, dims[-1]).

    `dims` is a list or tuple of two or more sizes; layer `i` is an `nn.Linear(dims[i], dims[i + 1])` with bias.
    There is no activation after the last layer.
    All layers are registered, from the first to the last, and each has weights of its own.
    `nn.ModuleList` is made for this; any other container that registers the layers will do as well.
    """

    def __init__(self, dims: list[int] | tuple[int, ...]):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n_in, n_out) for n_in, n_out in pairwise(dims))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


def count_params(model: nn.Module) -> dict[str, int]:
    """Return how many numbers `model` holds, as a dict with the keys "trainable", "frozen" and "buffers".

    "trainable" counts the elements of all parameters that require gradients, "frozen" those of all others,
    "buffers" those of all buffers, whether they are saved or not.
    Submodules at every depth belong to the model. A tensor with several names counts once.
    The values are plain ints. The model is not changed.
    """
    counts = {"trainable": 0, "frozen": 0}
    for parameter in model.parameters():
        counts["trainable" if parameter.requires_grad else "frozen"] += parameter.numel()
    counts["buffers"] = sum(buffer.numel() for buffer in model.buffers())
    return counts


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Return what `model.state_dict()` holds now, in tensors that later training does not change.

    The result is a dict with the same names and values; a subclass such as OrderedDict will do.
    Its tensors have storages of their own and require no gradients.
    `model.load_state_dict(result)` brings this state back later. The model is not changed.
    """
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def strip_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a checkpoint under the names that the unwrapped model has.

    Wrappers put `module.` (data parallel) or `_orig_mod.` (torch.compile) in front of every name.
    A model may have been wrapped several times, in any order: remove all that stand at the front of a name.
    The same words further inside a name belong to the model and stay.
    Each tensor is handed on as it is. The result is a dict in the order of `state`, and `state` is not changed.
    """
    stripped = {}
    for name, tensor in state.items():
        while name.startswith(("module.", "_orig_mod.")):
            name = name.partition(".")[2]
        stripped[name] = tensor
    return stripped


def load_matching(model: nn.Module, state: dict[str, Tensor]) -> list[str]:
    """Load the entries of `state` that fit `model`; return the names of the model's entries that stayed as they were.

    An entry fits if `model.state_dict()` has one of the same name and the same shape. Its values are copied into
    the model, so that training the model later does not change `state`.
    All other entries of `state` are ignored. The names are returned as a sorted list.
    Raise ValueError if no entry fits: such a checkpoint belongs to another model. The model is then as before.
    """
    own = model.state_dict()
    fitting = {
        name: tensor for name, tensor in state.items() if name in own and tensor.shape == own[name].shape
    }
    if not fitting:
        raise ValueError("no entry of this checkpoint fits the model")
    model.load_state_dict(fitting, strict=False)
    return sorted(own.keys() - fitting.keys())


def tied_names(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of tied parameters: a list with one tuple of names for each parameter that has several.

    Two names are tied if they lead to the same Parameter object. Equal values are not tied, nor are two
    Parameters over one storage. The model may be on any device, `meta` as well.
    The names in each tuple are sorted, and so is the list. The model is not changed.
    """
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return sorted(tuple(sorted(group)) for group in names.values() if len(group) > 1)


def load_from_meta(build: Callable[[], nn.Module], state: dict[str, Tensor]) -> nn.Module:
    """Return the model that `build()` makes, with the values in `state`, and without computing initial weights.

    Call `build()` under the meta device, so that no memory is filled and no random number drawn.
    `state` has an entry for each parameter and buffer of the model; raise RuntimeError if one is missing.
    The model is on the device of the entries, the CPU here, and has storages of its own: training it does not
    change `state`. A parameter that `build()` froze is frozen. The default device is left as it was.
    No two names of the model are tied, and `build` asks for no device itself.
    """
    with torch.device("meta"):
        model = build()
    own = {name: tensor.clone() for name, tensor in state.items()}
    model.load_state_dict(own, assign=True)
    return model


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Evaluate inside the block: `with eval_mode(model):` switches to eval mode and stops recording gradients.

    Inside the block every submodule is in eval mode, and operations build no graph.
    Afterwards, also when the block raises, each submodule is back in the mode in which it was, and gradients are
    recorded or not as before. The exception goes on to the caller.
    Nothing changes before the block is entered. What `as` gives is up to you.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        for module, mode in modes:
            module.training = mode


def freeze_backbone(backbone: nn.Module, head: nn.Module) -> Iterable[nn.Parameter]:
    """Freeze `backbone`, and return the parameters to hand to the optimizer: those of `head`, each once.

    Afterwards `head(backbone(x))` can be trained, and neither parameters nor buffers of the backbone change.
    No parameter of the backbone requires gradients, and its normalization uses and keeps its running statistics.
    Dropout inside the backbone may be on or off.
    The head keeps its mode, its values and what it trains. Any iterable of parameters will do.
    """
    backbone.requires_grad_(False)
    backbone.eval()
    return list(head.parameters())


class FrozenBackbone(nn.Module):
    """`head(backbone(x))`, of which only the head is trained, whatever `train()` is called.

    From the beginning no parameter of `backbone` requires gradients, and no use of this module changes the
    backbone's parameters or buffers: not in train mode, not after `model.train()`, and not after `train()` of a
    module that contains this one. The backbone's normalization always uses its running statistics.
    The head follows `train()` and `eval()` as usual, and `train()` returns the module itself, as always.
    Backbone and head are registered as `backbone` and `head`: both are saved.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module):
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.head = head

    def train(self, mode: bool = True) -> FrozenBackbone:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def output_of(model: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return what the submodule called `name` puts out when the model is called with `x`.

    `name` is a name from `model.named_modules()`: "0", "block.linear", or "" for the model itself.
    The model is called once, in the mode in which it is, and calls that submodule once; its output is a tensor.
    Gradients flow back through the result.
    Afterwards the model has no more hooks than before, also when it raises: its exception goes on to the caller.
    """
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        model(x)
    finally:
        handle.remove()
    return seen[0]


class ActivationRecorder:
    """Note shape and mean of what some layers put out: `with ActivationRecorder(model, names) as recorder:`.

    `names` holds names from `model.named_modules()`. Call the model inside the block. After it, and inside,
    `recorder.stats[name]` is `{"shape": a tuple, "mean": a float}` of the last output of that layer.
    If a layer returns a tuple, its first element counts. Layers that were not called have no entry.
    The model's outputs and gradients are what they would be without the recorder.
    No graph and no whole output is kept: only numbers.
    After the block no hook is left, also when the block raises; the exception goes on to the caller.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]):
        self.layers = {name: model.get_submodule(name) for name in names}
        self.stats: dict[str, dict[str, Any]] = {}
        self.handles: list[RemovableHandle] = []

    def __enter__(self) -> ActivationRecorder:
        for name, layer in self.layers.items():
            self.handles.append(layer.register_forward_hook(partial(self.note, name)))
        return self

    def __exit__(self, *exception: object) -> None:
        while self.handles:
            self.handles.pop().remove()

    def note(self, name: str, layer: nn.Module, args: tuple, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        self.stats[name] = {"shape": tuple(tensor.shape), "mean": tensor.detach().float().mean().item()}


def step_in_backward(model: nn.Module, lr: float) -> list[RemovableHandle]:
    """Let each `loss.backward()` train `model` by itself: SGD without an optimizer and without stored gradients.

    As soon as the gradient of a parameter is complete, the parameter moves by `-lr` times its gradient, and its
    `.grad` is None again, before the gradients of earlier layers are computed.
    Parameters that require no gradient when this is called are left alone. A parameter with several names moves once.
    Return a list of handles: when `remove()` was called on each, `backward()` only accumulates gradients again.
    """

    @torch.no_grad()
    def step(parameter: Tensor) -> None:
        parameter.sub_(parameter.grad, alpha=lr)
        parameter.grad = None

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [parameter.register_post_accumulate_grad_hook(step) for parameter in trained]
