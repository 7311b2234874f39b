"""The exercises and questions of notebook 06: memory and profiling."""

from __future__ import annotations

import copy
import functools
import json
import tempfile
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from course_lib.checking import Exercise, Question, case, observe
from course_lib.reference import memory as reference
from course_lib.simulation import MemoryTracker


class Tied(nn.Module):
    """Token numbers -> scores, with one table for both ends."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.table.weight


class Transposed(nn.Module):
    """A linear layer whose weight lies in memory the other way round: (batch, 3) -> (batch, 5)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5).t())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


# ---- training_bytes ----------------------------------------------------------------------------------------

training_bytes = Exercise(
    reference.training_bytes,
    title="What a model takes before it sees a batch",
    objective="memory.budget",
    difficulty=1,
    minutes=8,
    points=1,
    observes=[observe.value()],
    hints=(
        "Take them one after the other. Which of the three is there for every parameter, and which two only for "
        "those that are trained?",
        "A gradient is as large as its parameter. Plain SGD keeps nothing, momentum keeps one tensor of that size "
        "for each trained parameter, AdamW keeps two.",
        "Sum `p.nbytes` over `model.parameters()`, which yields a tied weight once; sum it again over those with "
        "`p.requires_grad`; multiply the second sum by 0, 1 or 2.",
    ),
    why="Each trained parameter brings a gradient of its own size, and AdamW brings two moments of that size: "
    "in float32 that is 4 + 4 + 8 bytes per parameter. None of it depends on the batch. `parameters()` yields "
    "each tensor once, so a tied weight counts once, as it does in memory.",
)


@training_bytes.cases
def _(rng):
    linear = nn.Linear(4, 3)
    yield case("a linear layer and plain SGD", linear, "sgd")
    yield case("with momentum", nn.Linear(4, 3), "momentum")
    yield case("with AdamW", nn.Linear(4, 3), "adamw")
    yield case(
        "a frozen layer and a trained one", nn.Sequential(frozen(nn.Linear(4, 3)), nn.Linear(3, 2)), "adamw"
    )
    yield case("a tied weight", Tied(), "adamw")
    yield case("a model with buffers", nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "momentum")
    yield case("half of it in bfloat16", nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).bfloat16()), "adamw")
    yield case("a weight that is a transpose", Transposed(), "momentum")
    yield case("everything frozen", frozen(nn.Linear(4, 3)), "adamw")


@training_bytes.alternative
def sums_over_elements(model, opt):
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in model.parameters()]
    trained = sum(size for size, wanted in sizes if wanted)
    state = trained if opt == "momentum" else 2 * trained if opt == "adamw" else 0
    return {"params": sum(size for size, _ in sizes), "grads": trained, "opt": state}


@training_bytes.alternative
def collects_storages(model, opt):
    total = {"params": 0, "grads": 0, "opt": 0}
    for p in set(model.parameters()):
        total["params"] += p.nbytes
        if p.requires_grad:
            total["grads"] += p.nbytes
            total["opt"] += p.nbytes * ["sgd", "momentum", "adamw"].index(opt)
    return total


@training_bytes.misconception(
    "The tied weight counts twice. Two names for one tensor are one tensor in memory; `parameters()` yields it "
    "once, `state_dict()` lists both names."
)
def counts_a_tie_twice(model, opt):
    named = [(name, p) for name, p in model.named_parameters(remove_duplicate=False)]
    grads = sum(p.nbytes for _, p in named if p.requires_grad)
    copies = {"sgd": 0, "momentum": 1, "adamw": 2}[opt]
    return {"params": sum(p.nbytes for _, p in named), "grads": grads, "opt": copies * grads}


@training_bytes.misconception(
    "You counted elements. A float32 takes four bytes, a bfloat16 two: multiply with `element_size()`, or ask for "
    "`nbytes`."
)
def counts_elements(model, opt):
    params = sum(p.numel() for p in model.parameters())
    grads = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"params": params, "grads": grads, "opt": {"sgd": 0, "momentum": 1, "adamw": 2}[opt] * grads}


@training_bytes.misconception(
    "Frozen parameters get no gradient, so they take their own bytes and no more. That is what freezing saves."
)
def grads_of_frozen(model, opt):
    params = sum(p.nbytes for p in model.parameters())
    return {"params": params, "grads": params, "opt": {"sgd": 0, "momentum": 1, "adamw": 2}[opt] * params}


@training_bytes.misconception(
    "You counted the gradients that exist now. Before the first backward pass there are none; asked for are those "
    "that a backward pass will make, one for each trained parameter."
)
def grads_that_exist_now(model, opt):
    params = sum(p.nbytes for p in model.parameters())
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    grads = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return {"params": params, "grads": grads, "opt": {"sgd": 0, "momentum": 1, "adamw": 2}[opt] * trained}


@training_bytes.misconception(
    "AdamW keeps two moments for each trained parameter, a running mean of the gradient and one of its square."
)
def adam_once(model, opt):
    params = sum(p.nbytes for p in model.parameters())
    grads = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return {"params": params, "grads": grads, "opt": {"sgd": 0, "momentum": 1, "adamw": 1}[opt] * grads}


@training_bytes.misconception(
    "Plain SGD keeps nothing between its steps: the new weight is the old one minus a multiple of the gradient."
)
def sgd_has_state(model, opt):
    params = sum(p.nbytes for p in model.parameters())
    grads = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return {"params": params, "grads": grads, "opt": {"sgd": 1, "momentum": 1, "adamw": 2}[opt] * grads}


@training_bytes.misconception(
    "You took every number for four bytes. The parameters in bfloat16 take two, and so do their gradients and "
    "moments; `nbytes` knows."
)
def four_bytes_each(model, opt):
    params = 4 * sum(p.numel() for p in model.parameters())
    grads = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"params": params, "grads": grads, "opt": {"sgd": 0, "momentum": 1, "adamw": 2}[opt] * grads}


@training_bytes.misconception(
    "You counted the buffers as parameters. They take memory too, but they are no parameters, get no gradient, and "
    "were left out here."
)
def counts_buffers(model, opt):
    grads = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    params = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    return {"params": params, "grads": grads, "opt": {"sgd": 0, "momentum": 1, "adamw": 2}[opt] * grads}


# ---- saved_activation_bytes --------------------------------------------------------------------------------

saved_activation_bytes = Exercise(
    reference.saved_activation_bytes,
    title="What autograd keeps",
    objective="memory.activations",
    difficulty=3,
    minutes=20,
    points=2,
    stretch=True,
    observes=[observe.value()],
    hints=(
        "`torch.autograd.graph.saved_tensors_hooks(pack, unpack)` calls `pack` with each tensor that is saved while "
        "the block is open. What do you need to know of each?",
        "Two tensors on one storage are there once, so note storages: their address and their bytes. Leave out the "
        "storages of the parameters, and add up the rest after `fn()`.",
        "`kept = {}`; in `pack`: `s = tensor.untyped_storage()`, and `kept[s.data_ptr()] = s.nbytes()` unless the "
        "address is one of the parameters'; return the tensor. Hold on to what `fn()` returns while you count.",
    ),
    why="Autograd hands every tensor that it saves to `pack`. A ReLU saves its output, and the linear layer after "
    "it saves the same tensor as its input: one storage, two entries. Weights are saved too, for the gradient of "
    "the input, but they are in memory anyway. `detach()` in `pack` avoids a reference cycle: an output that is "
    "saved for its own backward would otherwise hold its graph, and the graph the output.",
)


def mlp(inner: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), inner, nn.Linear(16, 4))


def without_graph(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


class ForwardOf:
    """`fn` of this exercise: `model` on a fixed batch, with a count of its calls."""

    def __init__(self, forward: Callable, *args: Any):
        self.forward, self.args, self.calls = forward, args, 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.forward(*self.args)


@saved_activation_bytes.cases
def _(rng):
    x = torch.randn(32, 8, generator=rng)
    model = nn.Linear(8, 16)
    yield case("a linear layer", model, ForwardOf(model, x.clone()))
    model = mlp(nn.ReLU())
    yield case("two linear layers and a ReLU", model, ForwardOf(model, x.clone()))
    model = copy.deepcopy(model)
    yield case("the same without a graph", model, ForwardOf(without_graph, model, x.clone()))
    model = mlp(nn.GELU())
    yield case("a GELU keeps its input", model, ForwardOf(model, x.clone()))
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Tanh(), nn.Dropout(0.0))
    yield case("two layers that keep their outputs", model, ForwardOf(model, x.clone()))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), frozen(nn.Linear(16, 4)))
    yield case("a frozen layer at the end", model, ForwardOf(model, x.clone()))
    model = nn.Linear(8, 4)
    yield case("a slice of a larger batch", model, ForwardOf(model, torch.randn(100, 8, generator=rng)[:10]))
    model = Transposed()
    yield case("a weight that is a transpose", model, ForwardOf(model, torch.randn(6, 3, generator=rng)))
    model = frozen(nn.Linear(8, 4))
    yield case("nothing to train", model, ForwardOf(model, x.clone()))


@saved_activation_bytes.scenario
def _(answer, model, fn):
    return {"bytes": answer(model, fn), "calls of fn": fn.calls}


@saved_activation_bytes.alternative
def keeps_the_storages(model, fn):
    ours = {p.untyped_storage()._cdata for p in model.parameters()}
    saved = []
    with saved_tensors_hooks(lambda t: (saved.append(t.detach()), t.detach())[1], lambda t: t):
        output = fn()
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in saved}
    return sum(size for key, size in storages.items() if key not in ours) if output is not None else 0


@saved_activation_bytes.alternative
def sets_of_address_and_size(model, fn):
    found = set()

    def pack(t):
        found.add((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()))
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        kept = fn()
    found -= {(p.untyped_storage().data_ptr(), p.untyped_storage().nbytes()) for p in model.parameters()}
    return sum(size for _, size in found) if kept is not None else 0


@saved_activation_bytes.misconception(
    "The parameters are among what autograd saves, for the gradient of the input, but they are in memory anyway. "
    "Leave their storages out."
)
def counts_parameters(model, fn):
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        output = fn()
    return sum(kept.values()) if output is not None else 0


@saved_activation_bytes.misconception(
    "A storage that is saved twice is there once. The output of a ReLU is saved by the ReLU and again, as its "
    "input, by the layer after it."
)
def counts_entries(model, fn):
    ours = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes = []

    def pack(t):
        if t.untyped_storage().data_ptr() not in ours:
            sizes.append(t.untyped_storage().nbytes())
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        output = fn()
    return sum(sizes) if output is not None else 0


@saved_activation_bytes.misconception(
    "You added up what the layers put out. Autograd keeps what the backward pass needs, which may be an input, an "
    "output, both or neither; and without a graph it keeps nothing."
)
def sums_module_outputs(model, fn):
    sizes, handles = [], []
    for module in model.modules():
        if not list(module.children()):
            handles.append(module.register_forward_hook(lambda m, i, o: sizes.append(o.nbytes)))
    fn()
    for handle in handles:
        handle.remove()
    return sum(sizes)


@saved_activation_bytes.misconception(
    "A saved view keeps its whole storage alive: ten rows of a batch of a hundred hold the hundred. Ask the "
    "storage for its bytes, not the tensor."
)
def counts_the_view(model, fn):
    ours = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in ours:
            kept[t.untyped_storage().data_ptr()] = t.nbytes
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        output = fn()
    return sum(kept.values()) if output is not None else 0


@saved_activation_bytes.misconception(
    "You left out only the parameters that are trained. A frozen one is in memory all the same, and counts as "
    "little."
)
def counts_frozen_parameters(model, fn):
    ours = {p.untyped_storage().data_ptr() for p in model.parameters() if p.requires_grad}
    kept = {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in ours:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        output = fn()
    return sum(kept.values()) if output is not None else 0


@saved_activation_bytes.misconception(
    "`fn` ran more than once. Each call is a forward pass of the real thing; the count needs one."
)
def calls_it_twice(model, fn):
    fn()
    ours = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in ours:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        output = fn()
    return sum(kept.values()) if output is not None else 0


# ---- gpt_activation_bytes ----------------------------------------------------------------------------------

gpt_activation_bytes = Exercise(
    reference.gpt_activation_bytes,
    title="The activations of a GPT, on paper",
    objective="memory.activations",
    difficulty=2,
    minutes=15,
    points=2,
    observes=[observe.value()],
    hints=(
        "Go down the table once for one block. Which entries are as large as `batch * seq * dim`, which larger, "
        "which smaller? Then see what comes once, after the blocks.",
        "In units of `batch * seq * dim` a block keeps 1 + 1 + 3 + 1 + 1 + 1 + 4 + 4 = 16. Add two numbers per token "
        "for each of its two norms, and one per token and head. After the blocks: the input and output of the last "
        "norm with its two numbers per token, and `vocab` numbers per token.",
        "With `rows = batch * seq`: `n_layers` times (16 rows·dim + n_heads·rows + 4 rows), plus 2 rows·dim, plus "
        "2 rows, plus rows·vocab. All of it times four bytes.",
    ),
    why="Every entry is the input or the output of an operator whose derivative needs it. The scores of the "
    "attention, seq x seq for each head, are not among them: the fused kernel keeps one number per row and computes "
    "them again. So the sum grows linearly with seq. For a large vocabulary the one row of log-probabilities at the "
    "end outweighs whole blocks.",
)


@gpt_activation_bytes.cases
def _(rng):
    yield case("all sizes 1", 1, 1, 1, 1, 1, 1)
    yield case("no blocks: norm, head and loss", 1, 1, 4, 1, 0, 10)
    yield case("one block, one token", 1, 1, 4, 2, 1, 10)
    yield case("two blocks", 1, 1, 4, 2, 2, 10)
    yield case("three tokens", 1, 3, 4, 2, 1, 10)
    yield case("two sequences", 2, 3, 4, 2, 1, 10)
    yield case("more heads", 2, 3, 8, 4, 2, 10)
    yield case("a large vocabulary", 2, 3, 4, 2, 1, 1000)
    yield case("a long sequence", 1, 512, 8, 2, 3, 11)
    yield case("the size of a first experiment", 8, 64, 128, 4, 4, 512)


@gpt_activation_bytes.alternative
def per_token(batch, seq, dim, n_heads, n_layers, vocab):
    numbers = n_layers * (16 * dim + n_heads + 4) + 2 * dim + 2 + vocab
    return 4 * batch * seq * numbers


@gpt_activation_bytes.alternative
def adds_a_list(batch, seq, dim, n_heads, n_layers, vocab):
    wide = batch * seq * dim
    stats = [batch * seq] * 2
    block = [
        wide,
        *stats,
        wide,
        3 * wide,
        wide,
        n_heads * batch * seq,
        wide,
        *stats,
        wide,
        4 * wide,
        4 * wide,
    ]
    total = [*(block * n_layers), wide, *stats, wide, batch * seq * vocab]
    return sum(total) * torch.finfo(torch.float32).bits // 8


@gpt_activation_bytes.misconception(
    "You counted the scores of the attention, seq x seq for each head. The fused kernel does not keep them: it "
    "keeps one number per row and computes them again."
)
def counts_the_scores(batch, seq, dim, n_heads, n_layers, vocab):
    block = 16 * dim + n_heads * seq + 4
    return 4 * batch * seq * (n_layers * block + 2 * dim + 2 + vocab)


@gpt_activation_bytes.misconception(
    "The logits are not kept next to the log-probabilities. `cross_entropy` keeps the log-probabilities; the logits "
    "are gone when the forward pass returns, unless someone holds them."
)
def counts_logits_twice(batch, seq, dim, n_heads, n_layers, vocab):
    return 4 * batch * seq * (n_layers * (16 * dim + n_heads + 4) + 2 * dim + 2 + 2 * vocab)


@gpt_activation_bytes.misconception("You counted numbers, not bytes. A float32 takes four.")
def counts_numbers(batch, seq, dim, n_heads, n_layers, vocab):
    return batch * seq * (n_layers * (16 * dim + n_heads + 4) + 2 * dim + 2 + vocab)


@gpt_activation_bytes.misconception(
    "The MLP keeps two wide tensors, the input of the GELU and its output: one for the derivative of the GELU, one "
    "for the weight of the layer after it. You counted one."
)
def one_wide_tensor(batch, seq, dim, n_heads, n_layers, vocab):
    return 4 * batch * seq * (n_layers * (12 * dim + n_heads + 4) + 2 * dim + 2 + vocab)


@gpt_activation_bytes.misconception(
    "You left out the loss. The log-probabilities are `vocab` numbers for every token, and with a vocabulary of "
    "50,000 they are the largest tensor of all."
)
def forgets_the_loss(batch, seq, dim, n_heads, n_layers, vocab):
    return 4 * batch * seq * (n_layers * (16 * dim + n_heads + 4) + 2 * dim + 2)


@gpt_activation_bytes.misconception(
    "You counted the head and the loss once for each block. They come once, after the last block."
)
def head_in_every_block(batch, seq, dim, n_heads, n_layers, vocab):
    return 4 * batch * seq * n_layers * (16 * dim + n_heads + 4 + 2 * dim + 2 + vocab)


@gpt_activation_bytes.misconception(
    "The small ones are missing: each norm keeps a mean and a scale for every token, and the attention one number "
    "for every token and head."
)
def forgets_the_statistics(batch, seq, dim, n_heads, n_layers, vocab):
    return 4 * batch * seq * (n_layers * 16 * dim + 2 * dim + vocab)


@gpt_activation_bytes.misconception(
    "You counted the queries, keys and values as one tensor of width dim. They are three."
)
def one_for_qkv(batch, seq, dim, n_heads, n_layers, vocab):
    return 4 * batch * seq * (n_layers * (14 * dim + n_heads + 4) + 2 * dim + 2 + vocab)


# ---- PeakTracker -------------------------------------------------------------------------------------------

peak_tracker = Exercise(
    reference.PeakTracker,
    title="Follow every storage",
    objective="memory.timeline",
    difficulty=3,
    minutes=25,
    points=3,
    stretch=True,
    observes=[observe.value()],
    hints=(
        "PyTorch calls `__torch_dispatch__` for every operator and takes what it returns for the result. Which of "
        "the results' storages have you not met before? And how do you learn that one is gone?",
        "Run the operator, look at all tensors in its result, and ask each for `untyped_storage()`. Count a storage "
        "that you do not know yet. `weakref.finalize(storage, f, *args)` calls `f(*args)` when it is freed.",
        "Keep a dict from `storage._cdata` to `storage.nbytes()`. A storage that is not in it is new: enter it, and "
        "let a finalizer pop its key. `now` is the sum of the values, and after each operator `peak` is raised to it. "
        "Hand the finalizer the key, not the storage, or the storage will live as long as the finalizer.",
    ),
    why="An operator that returns a view, or writes in place, returns a tensor on a storage that was met before. "
    "The finalizer runs when the last tensor on a storage is gone, which is the moment at which PyTorch gives the "
    "memory back. And the key is forgotten together with the storage, because a later one may get the same key.",
)


def views_and_writes(look: Callable) -> None:
    x = torch.ones(1000)
    look()
    y = x.view(10, 100)[2:].t()
    look()
    y.add_(1)
    x.relu_()
    look()


def comings_and_goings(look: Callable) -> None:
    x = torch.ones(1000)
    y = x + x
    look()
    del x
    look()
    z = y * 2
    look()
    del y, z
    look()


def a_slice_holds_it_all(look: Callable) -> None:
    x = torch.ones(1000)
    x = x[:10]
    look()
    x = x.clone()
    look()


def several_results(look: Callable) -> None:
    x = torch.ones(20, 30)
    values, indices = x.max(dim=1)
    look()
    parts = x.split(10)
    look()
    del values, parts
    look()
    del indices
    look()


def many_small_ones(look: Callable) -> None:
    for n in range(1, 6):
        x = torch.ones(100 * n)
        y = x.double()
        look()
        del x, y
    look()


def a_training_step(look: Callable) -> None:
    weight = torch.ones(8, 4, requires_grad=True)
    x = torch.ones(16, 8)
    look()
    loss = (x @ weight).relu().sum()
    look()
    loss.backward()
    look()
    del loss
    look()


@peak_tracker.cases
def _(rng):
    yield case("views, and writing in place", views_and_writes)
    yield case("tensors that come and go", comings_and_goings)
    yield case("a slice holds its storage", a_slice_holds_it_all)
    yield case("operators with several results", several_results)
    yield case("memory that is used again", many_small_ones)
    yield case("a training step", a_training_step)


@peak_tracker.scenario
def _(answer, program):
    seen, made = [], answer()
    if not hasattr(type(made), "__enter__"):
        return made
    with made as tracker:
        program(lambda: seen.append((tracker.now, tracker.peak)))
    return {"(now, peak) at each look": seen}


@peak_tracker.alternative
class HoldsWeakReferences(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.living = weakref.WeakValueDictionary()
        self.peak = 0

    @property
    def now(self):
        return sum(storage.nbytes() for storage in self.living.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.living[leaf.untyped_storage()._cdata] = leaf.untyped_storage()
        self.peak = max(self.peak, self.now)
        return result


@peak_tracker.alternative
class CountsUpAndDown(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if torch.is_tensor(t) and t.untyped_storage()._cdata not in self.known:
                storage = t.untyped_storage()
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
        return out

    def free(self, key, nbytes):
        self.known.remove(key)
        self.now -= nbytes


@peak_tracker.misconception(
    "You counted every tensor that an operator returns. A view is a new tensor on an old storage, and an in-place "
    "operator returns what it was given: neither takes memory."
)
class counts_tensors(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in filter(torch.is_tensor, tree_leaves(result)):
            self.now += t.nbytes
            self.peak = max(self.peak, self.now)
            weakref.finalize(t, self.free, t.nbytes)
        return result

    def free(self, nbytes):
        self.now -= nbytes


@peak_tracker.misconception(
    "Your tracker holds what it counts, in a list, a dict or the arguments of a finalizer, so nothing is ever freed "
    "and `now` only grows. Keep numbers and weak references."
)
class keeps_all_alive(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.storages = {}

    @property
    def now(self):
        return sum(storage.nbytes() for storage in self.storages.values())

    peak = now

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in filter(torch.is_tensor, tree_leaves(result)):
            self.storages[t.untyped_storage()._cdata] = t.untyped_storage()
        return result


@peak_tracker.misconception(
    "Some operators return a tuple or a list of tensors, such as `max` with a dimension, and you counted only single "
    "tensors. `tree_leaves(result)` yields all of them."
)
class single_results_only(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.sizes, self.peak = {}, 0

    @property
    def now(self):
        return sum(self.sizes.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if torch.is_tensor(out) and out.untyped_storage()._cdata not in self.sizes:
            storage = out.untyped_storage()
            self.sizes[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self.sizes.pop, storage._cdata)
            self.peak = max(self.peak, self.now)
        return out


@peak_tracker.misconception(
    "Your peak falls again. `peak` is the most that ever was in use: raise it, never lower it."
)
class peak_is_now(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.sizes = {}

    @property
    def now(self):
        return sum(self.sizes.values())

    peak = now

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in filter(torch.is_tensor, tree_leaves(out)):
            storage = t.untyped_storage()
            if storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        return out


@peak_tracker.misconception(
    "`__torch_dispatch__` has to return the result: what it returns is what the code inside the block gets."
)
class returns_nothing(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in filter(torch.is_tensor, tree_leaves(result)):
            self.now += t.untyped_storage().nbytes()
            self.peak = max(self.peak, self.now)


@peak_tracker.misconception(
    "You tie the storage's life to one of its tensors. When a tensor is gone, a view of it may still hold the "
    "storage; watch the storage itself."
)
class watches_the_first_tensor(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.sizes, self.peak = {}, 0

    @property
    def now(self):
        return sum(self.sizes.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in filter(torch.is_tensor, tree_leaves(out)):
            key = t.untyped_storage()._cdata
            if key not in self.sizes:
                self.sizes[key] = t.untyped_storage().nbytes()
                weakref.finalize(t, self.sizes.pop, key)
                self.peak = max(self.peak, self.now)
        return out


# ---- peak_stage --------------------------------------------------------------------------------------------

peak_stage = Exercise(
    reference.peak_stage,
    title="Which step makes the surge?",
    objective="memory.timeline",
    difficulty=1,
    minutes=6,
    points=1,
    observes=[observe.value()],
    hints=(
        "What is in use after each event? Write it beside a short list by hand.",
        "Keep a running total. Whenever it is above everything so far, remember the total and the stage.",
        "Start with `now = peak = 0`; for each `(stage, nbytes)` add to `now`, and if `now > peak` note both. Return "
        "`(peak, where)`.",
    ),
    why="The peak belongs to the running total, not to any single allocation: many small tensors that are not freed "
    "outweigh one large tensor that is. A summary at the end of the run shows the total at the end, which is why it "
    "can't name the stage; the list of events can.",
)


@peak_stage.cases
def _(rng):
    yield case("one allocation", [("build", 5)])
    yield case(
        "the largest allocation is not the peak",
        [("build", 4), ("forward", 6), ("forward", -6), ("backward", 5)],
    )
    yield case(
        "a first, lower peak",
        [("forward", 6), ("forward", -4), ("backward", 3), ("backward", 4), ("eval", -1)],
    )
    yield case(
        "many small ones",
        [("build", 10), ("build", -9), *[("forward", 3)] * 5, *[("backward", -3)] * 5, ("eval", 8)],
    )
    yield case("all of it freed", [("a", 1), ("b", 2), ("b", -2), ("a", -1)])
    yield case(
        "the peak in a stage that comes twice",
        [("forward", 5), ("backward", -4), ("forward", 6), ("eval", 1)],
    )
    sizes = torch.randint(1, 100, (40,), generator=rng).tolist()
    events = [(f"stage {i // 8}", size) for i, size in enumerate(sizes)]
    yield case("a long list", [e for s, n in events for e in ((s, n), (s, -n // 2))] + [("end", -30)])


@peak_stage.alternative
def accumulates(events):
    totals, total = [], 0
    for _, nbytes in events:
        total += nbytes
        totals.append(total)
    best = max(totals)
    return best, events[totals.index(best)][0]


@peak_stage.alternative
def sums_prefixes(events):
    return max((sum(n for _, n in events[: i + 1]), events[i][0]) for i in range(len(events)))


@peak_stage.misconception(
    "You took the largest single allocation. What counts is what is in use all together."
)
def largest_allocation(events):
    stage, nbytes = max(events, key=lambda event: event[1])
    return nbytes, stage


@peak_stage.misconception(
    "You added up the allocations and left out what was freed. Memory that was given back is used again."
)
def ignores_frees(events):
    now, peak, where = 0, 0, ""
    for stage, nbytes in events:
        now += max(nbytes, 0)
        if now > peak:
            peak, where = now, stage
    return peak, where


@peak_stage.misconception(
    "You stopped at the first peak. After something is freed the total may climb above it."
)
def first_peak(events):
    now, where = 0, ""
    for stage, nbytes in events:
        if nbytes < 0:
            break
        now, where = now + nbytes, stage
    return now, where


@peak_stage.misconception(
    "You returned what is in use at the end. That is what a summary after the run shows, and it is not the peak."
)
def final_value(events):
    return sum(nbytes for _, nbytes in events), events[-1][0]


@peak_stage.misconception(
    "You compared the stages by what each allocates and frees by itself. A stage begins with what the stages before "
    "it left behind."
)
def per_stage(events):
    totals = Counter()
    for stage, nbytes in events:
        totals[stage] += nbytes
    stage = max(totals, key=totals.get)
    return totals[stage], stage


@peak_stage.misconception("The right two values, in the other order: the bytes come first, then the stage.")
def stage_first(events):
    now, peak, where = 0, 0, ""
    for stage, nbytes in events:
        now += nbytes
        if now > peak:
            peak, where = now, stage
    return where, peak


# ---- fake_peak ---------------------------------------------------------------------------------------------

fake_peak = Exercise(
    reference.fake_peak,
    title="Weigh a model that fits nowhere",
    objective="memory.timeline",
    difficulty=3,
    minutes=20,
    points=2,
    stretch=True,
    observes=[observe.value()],
    hints=(
        "`FakeTensorMode` makes tensors without numbers: build, run and step inside it. What will count the bytes? "
        "PyTorch's own `MemTracker`, or the tracker that you wrote.",
        "Inside the mode: the model, an AdamW, then the tracker around forward, backward and `optimizer.step()`. The "
        "moments are made in the step, so a peak without it is half of the truth.",
        "`MemTracker().track_external(model, optimizer)` tells it what is there already; afterwards "
        '`get_tracker_snapshot("peak")` has one entry per device, and each has a "Total".',
    ),
    why="A fake tensor has a shape, a dtype and a storage of a size, and no memory. Operators compute shapes only, so "
    "a step of a model of many gigabytes takes a second. What is in use at the peak is the parameters, their "
    "gradients and two moments, 4 times the parameters, and what the optimizer's step needs on top.",
)


def tower(dim: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(dim, dim, bias=False) for _ in range(depth)))


@fake_peak.cases
def _(rng):
    yield case("4 layers of 256 x 256", functools.partial(tower, 256, 4), (8, 256))
    yield case("6 layers of 512 x 512", functools.partial(tower, 512, 6), (4, 512))


def times(nbytes: Any, of: int) -> Any:
    """How many times the parameters, in words, so that every way to take a step is right."""
    if type(nbytes) is not int:
        return nbytes
    return "4 to 5.2" if 4 <= nbytes / of <= 5.2 else f"{nbytes / of:.2g}"


@fake_peak.scenario
def _(answer, build, batch_shape):
    built = []

    def watched() -> nn.Module:
        built.append(build())
        return built[-1]

    peak = answer(watched, batch_shape)
    with FakeTensorMode():
        parameters = sum(p.nbytes for p in build().parameters())
    weights = [p for model in built for p in model.parameters()]
    real = sum(p.nbytes for p in weights if not (p.is_meta or isinstance(p, FakeTensor)))
    return {"peak, in times the parameters": times(peak, parameters), "bytes of real parameters": real}


class StorageCounter(TorchDispatchMode):
    """A small tracker, for the alternatives."""

    def __init__(self):
        super().__init__()
        self.sizes, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in filter(torch.is_tensor, tree_leaves(out)):
            storage = t.untyped_storage()
            if storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return out


@fake_peak.alternative
def with_an_own_tracker(build, batch_shape):
    with FakeTensorMode(), StorageCounter() as counter:
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.zeros(batch_shape)).sum().backward()
            optimizer.step()
    return counter.peak


@fake_peak.alternative
def on_the_meta_device(build, batch_shape):
    with torch.device("meta"), StorageCounter() as counter:
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(batch_shape)).sum().backward()
        optimizer.step()
    return counter.peak


@fake_peak.alternative
def two_steps_with_a_reset(build, batch_shape):
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        model = build()
        opt = torch.optim.AdamW(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, opt)
        with tracker:
            for _ in range(2):
                model(torch.ones(batch_shape)).sum().backward()
                opt.step()
                opt.zero_grad()
                tracker.reset_mod_stats()
    return next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]


@fake_peak.misconception(
    "Your peak holds parameters and gradients and no more: the optimizer's step is missing, or the optimizer was "
    "plain SGD. AdamW makes its two moments in the first step, which doubles the sum."
)
def no_step(build, batch_shape):
    with FakeTensorMode(), StorageCounter() as counter:
        model = build()
        model(torch.ones(batch_shape)).sum().backward()
    return counter.peak


@fake_peak.misconception(
    "`MemTracker` refuses a second forward pass of the same model until you call `reset_mod_stats()` on it: it keeps "
    "statistics for each module."
)
def no_reset(build, batch_shape):
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):
                model(torch.ones(batch_shape)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    return next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]


@fake_peak.misconception(
    "Your numbers are right, and you allocated everything to get them. Build the model inside `FakeTensorMode`, and "
    "the same code takes no memory."
)
def really_allocates(build, batch_shape):
    with StorageCounter() as counter, torch.random.fork_rng(devices=[]):
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(batch_shape)).sum().backward()
        optimizer.step()
    return counter.peak


@fake_peak.misconception(
    "You returned what is in use at the end of the step. The temporary tensors of the step, and its activations, "
    "are gone by then."
)
def end_of_step(build, batch_shape):
    with FakeTensorMode(), StorageCounter() as counter:
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(batch_shape)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return sum(counter.sizes.values())


@fake_peak.misconception(
    "You returned the bytes of the parameters alone. Training adds a gradient and two moments for each of them."
)
def parameters_alone(build, batch_shape):
    with FakeTensorMode():
        return sum(p.nbytes for p in build().parameters())


# ---- forward_checkpointed ----------------------------------------------------------------------------------

forward_checkpointed = Exercise(
    reference.forward_checkpointed,
    title="Compute it twice, keep it never",
    objective="memory.savings",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value(1e-5, 1e-6), observe.gradients(rtol=1e-4, atol=1e-5)],
    hints=(
        "`torch.utils.checkpoint.checkpoint(f, x)` calls `f(x)` and keeps `x` in place of what `f` computed. What "
        "is `f` here? And which of its two implementations does your call choose?",
        "Go through the blocks one by one, as in the plain loop, and checkpoint each call. The non-reentrant "
        "implementation works whether or not `x` requires a gradient.",
        "The loop is `for block in blocks:`, and in it `x` becomes the result of `checkpoint(block, x, ...)` with "
        "`use_reentrant` set to False.",
    ),
    why="A checkpoint saves its input and runs its function again when the backward pass arrives. One around each "
    "block keeps one tensor per block, and only one block at a time is expanded again; one around everything would "
    "expand all of them at once. The reentrant implementation runs the function without a graph and attaches one "
    "only if an input requires a gradient: with frozen embeddings below, the block would get none, with no more than "
    "a warning.",
)


class Inner(nn.Module):
    """A block with a wide inside: (batch, dim) -> (batch, dim)."""

    def __init__(self, dim: int, p: float = 0.0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 4 * dim), nn.Tanh(), nn.Dropout(p), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


def blocks_of(n: int, dim: int = 3, p: float = 0.0) -> nn.ModuleList:
    return nn.ModuleList(Inner(dim, p) for _ in range(n))


@forward_checkpointed.cases
def _(rng):
    x = functools.partial(torch.randn, generator=rng)
    yield case("one block, frozen input", blocks_of(1), x(2, 3))
    yield case("three blocks", blocks_of(3), x(2, 3, requires_grad=True))
    yield case("three blocks, frozen input", blocks_of(3), x(2, 3))
    yield case("with dropout", blocks_of(2, p=0.5), x(4, 3))
    yield case("an input that is a transpose", blocks_of(2, dim=5), x(5, 4).t())
    yield case("in eval mode", blocks_of(2, p=0.5).eval(), x(3, 3, requires_grad=True))


@forward_checkpointed.scenario
def _(answer, blocks, x):
    with MemoryTracker() as tracker:
        output = answer(blocks, x)
    kept = sum(allocation.nbytes for allocation in tracker.allocations if allocation.freed is None)
    return {"output": output, "bytes kept": kept}


@forward_checkpointed.alternative
def with_a_comprehension(blocks, x):
    for step in [functools.partial(checkpoint, block, use_reentrant=False) for block in blocks]:
        x = step(x)
    return x


@forward_checkpointed.alternative
def with_a_function_of_its_own(blocks, x):
    def run(block, x):
        return block(x)

    for block in blocks:
        x = checkpoint(run, block, x, use_reentrant=False)
    return x


@forward_checkpointed.misconception(
    "The reentrant implementation needs an input that requires a gradient. Where `x` has none the blocks get no "
    "gradient at all, and it can't be used with `torch.autograd.grad`. Say `use_reentrant=False`."
)
def reentrant(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return x


@forward_checkpointed.misconception(
    "This is the plain loop: autograd keeps the inside of every block until the backward pass."
)
def plain_loop(blocks, x):
    for block in blocks:
        x = block(x)
    return x


@forward_checkpointed.misconception(
    "You put one checkpoint around all blocks. The forward pass keeps less, but the backward pass computes all of "
    "them again at once and needs as much as without a checkpoint. Wrap each block by itself."
)
def all_in_one(blocks, x):
    def run(x):
        for block in blocks:
            x = block(x)
        return x

    return checkpoint(run, x, use_reentrant=False)


@forward_checkpointed.misconception(
    "`checkpoint_sequential` leaves the last segment without a checkpoint, so the inside of the last block is kept."
)
def sequential(blocks, x):
    return checkpoint_sequential(list(blocks), len(blocks), x, use_reentrant=False)


@forward_checkpointed.misconception(
    "With `preserve_rng_state=False` the second computation draws other random numbers: dropout lets other numbers "
    "through, and the gradients belong to another forward pass."
)
def other_random_numbers(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    return x


@forward_checkpointed.misconception(
    "Without a graph nothing is kept, and nothing can be trained: there is no way back to the parameters."
)
def without_gradients(blocks, x):
    with torch.no_grad():
        for block in blocks:
            x = block(x)
    return x


@forward_checkpointed.misconception(
    "`detach()` keeps little because it cuts the graph: no gradient reaches the blocks before it."
)
def detaches(blocks, x):
    for block in blocks:
        x = checkpoint(block, x.detach(), use_reentrant=False)
    return x


# ---- profile_window ----------------------------------------------------------------------------------------

profile_window = Exercise(
    reference.profile_window,
    title="Record the steps that you mean",
    objective="memory.profiling",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "`torch.profiler.schedule(wait=..., warmup=..., active=..., repeat=1)` makes a plan. How does the profiler "
        "know that one step is over and the next begins?",
        "Give the plan to `profile(schedule=...)`, call `fn(i)` in a loop, and `prof.step()` after each call. "
        "Afterwards `prof.key_averages()` has a row for each name that was recorded.",
        'Loop over `range(wait + warmup + active)`. Of the rows take `row.key` where it starts with "user_", and '
        "sort.",
    ),
    why="With a schedule the profiler moves on only when you call `prof.step()`: forget it, and it waits for ever "
    "and records nothing, without an error. It needs all `wait + warmup + active` steps to finish its window. And "
    "`repeat=1` ends it after one window; otherwise the next one begins, and the events of the first are cleared.",
)


class MarkedSteps:
    """`fn` of this exercise: marks its work, does a little of it, and counts its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, i: int) -> None:
        self.calls.append(i)
        with record_function(f"user_{i}"):
            torch.ones(3).add(i)
        with record_function("not_yours"):
            torch.ones(3).mul(i)


@profile_window.cases
def _(rng):
    yield case("wait 1, warm up 1, record 1", MarkedSteps(), 1, 1, 1)
    yield case("wait 1, warm up 1, record 3", MarkedSteps(), 1, 1, 3)
    yield case("no waiting", MarkedSteps(), 0, 1, 2)
    yield case("a long warm-up", MarkedSteps(), 2, 3, 2)
    yield case("more than ten steps", MarkedSteps(), 8, 1, 3)


@profile_window.scenario
def _(answer, fn, wait, warmup, active):
    names = answer(fn, wait, warmup, active)
    return {"names": names, "calls of fn": tuple(fn.calls)}


@profile_window.alternative
def collects_when_ready(fn, wait, warmup, active):
    names = []

    def ready(prof):
        names.extend(event.name for event in prof.events() if event.name.startswith("user_"))

    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready) as prof:
        for i in range(wait + warmup + active):
            fn(i)
            prof.step()
    return sorted(set(names))


@profile_window.alternative
def reads_the_trace(fn, wait, warmup, active):
    plan = schedule(skip_first=wait, wait=0, warmup=warmup, active=active, repeat=1)
    prof = profile(activities=[ProfilerActivity.CPU], schedule=plan)
    prof.start()
    for i in range(wait + warmup + active):
        fn(i)
        prof.step()
    prof.stop()
    with tempfile.TemporaryDirectory() as folder:
        prof.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    return sorted({e["name"] for e in events if str(e.get("name")).startswith("user_")})


@profile_window.misconception(
    "`prof.step()` is missing. With a schedule it is what moves the profiler on: without it, it waits for ever."
)
def never_steps(fn, wait, warmup, active):
    names = []
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)

    def ready(prof):
        names.extend(row.key for row in prof.key_averages() if row.key.startswith("user_"))

    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready):
        for i in range(wait + warmup + active):
            fn(i)
    return sorted(names)


@profile_window.misconception(
    "`prof.step()` is missing: the profiler never leaves its waiting phase, and has no averages to show."
)
def never_steps_and_asks(fn, wait, warmup, active):
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as prof:
        for i in range(wait + warmup + active):
            fn(i)
    return sorted(row.key for row in prof.key_averages() if row.key.startswith("user_"))


@profile_window.misconception(
    "Without a schedule every step is recorded, the first ones too, in which memory is allocated and caches are "
    "cold."
)
def no_schedule(fn, wait, warmup, active):
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        for i in range(wait + warmup + active):
            fn(i)
            prof.step()
    return sorted(row.key for row in prof.key_averages() if row.key.startswith("user_"))


@profile_window.misconception(
    "You stopped too early. The window is complete after `wait + warmup + active` steps; with fewer the trace lacks "
    "its last step."
)
def one_step_short(fn, wait, warmup, active):
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as prof:
        for i in range(wait + warmup + active - 1):
            fn(i)
            prof.step()
    return sorted(row.key for row in prof.key_averages() if row.key.startswith("user_"))


@profile_window.misconception(
    "The warm-up steps are run and thrown away, they are not part of the record: profiling has a start-up cost of "
    "its own that would show in them."
)
def records_the_warmup(fn, wait, warmup, active):
    plan = schedule(wait=max(wait - 1, 0), warmup=1, active=warmup - (wait == 0) + active, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as prof:
        for i in range(wait + warmup + active):
            fn(i)
            prof.step()
    return sorted(row.key for row in prof.key_averages() if row.key.startswith("user_"))


@profile_window.misconception(
    "You call `prof.step()` before the work instead of after it, so everything is recorded one step too early."
)
def steps_before(fn, wait, warmup, active):
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as prof:
        for i in range(wait + warmup + active):
            prof.step()
            fn(i)
    return sorted(row.key for row in prof.key_averages() if row.key.startswith("user_"))


# ---- hottest_op --------------------------------------------------------------------------------------------

hottest_op = Exercise(
    reference.hottest_op,
    title="Where the time goes",
    objective="memory.profiling",
    difficulty=1,
    minutes=8,
    points=1,
    observes=[observe.value()],
    hints=(
        "`prof.key_averages()` has a row for each name: `row.key`, `row.count`, and two times. How do they differ "
        "for an operator that calls others?",
        "Total time holds the time of everything that was called inside. Take the *self* time, and only rows of aten "
        "operators.",
        "Keep the rows whose `key` starts with `aten::`, and take the `max` by `self_cpu_time_total`; its `key` is "
        "the answer.",
    ),
    why="A wrapper such as `aten::linear` contains the time of the `aten::addmm` that it calls, and the range around "
    "the whole step contains everything. Ranked by total time the outermost always wins, which says nothing. Self "
    "time adds up to the whole, each microsecond once.",
)


class RecordedProfile:
    """A finished profile of calls with fixed times: (name, start, end) in microseconds, and a thread."""

    def __init__(self, *calls: tuple):
        self.calls = calls

    def events(self) -> EventList:
        found = EventList(
            [
                FunctionEvent(id=i, name=name, thread=(*rest, 1)[0], start_us=start, end_us=end, stack=[])
                for i, (name, start, end, *rest) in enumerate(self.calls)
            ],
            use_device=None,
        )
        found._build_tree()
        return found

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        return self.events().key_averages(group_by_input_shape, group_by_stack_n)

    def export_chrome_trace(self, path: str) -> None:
        self.events().export_chrome_trace(path)


@hottest_op.cases
def _(rng):
    yield case("two operators", RecordedProfile(("aten::add", 0, 10), ("aten::mm", 20, 50)))
    yield case(
        "a wrapper", RecordedProfile(("aten::add", 0, 10), ("aten::linear", 20, 60), ("aten::addmm", 25, 55))
    )
    yield case(
        "a range of your own around them",
        RecordedProfile(("train_step", 0, 500), ("aten::linear", 100, 160), ("aten::addmm", 105, 155)),
    )
    many = [("aten::add", 100 + 10 * i, 109 + 10 * i) for i in range(9)]
    yield case("many short calls", RecordedProfile(("aten::mm", 0, 60), *many))
    few = [("aten::add", 100 + 10 * i, 103 + 10 * i) for i in range(9)]
    yield case("many very short calls", RecordedProfile(("aten::mm", 0, 60), *few))
    python = [("train.py(18): step", 0, 300), ("nn.Module: Linear_0", 5, 200)]
    yield case(
        "Python functions among them",
        RecordedProfile(*python, ("aten::linear", 20, 120), ("aten::t", 30, 35), ("aten::addmm", 40, 110)),
    )
    yield case(
        "two threads",
        RecordedProfile(
            ("aten::sum", 0, 50), ("aten::mm", 10, 40, 2), ("aten::mm", 45, 70, 2), ("aten::t", 48, 52, 2)
        ),
    )


@hottest_op.alternative
def sums_over_events(prof):
    times = Counter()
    for event in prof.events():
        if event.name.startswith("aten::"):
            times[event.name] += event.self_cpu_time_total
    return times.most_common(1)[0][0]


@hottest_op.alternative
def sorts_the_rows(prof):
    rows = sorted(prof.key_averages(), key=lambda row: -row.self_cpu_time_total)
    return next(row.key for row in rows if row.key.split("::")[0] == "aten")


@hottest_op.misconception(
    "You ranked by total time, which holds everything that was called inside; the outermost range always wins."
)
def by_total_time(prof):
    return max(prof.key_averages(), key=lambda row: row.cpu_time_total).key


@hottest_op.misconception(
    "Among operators too, total time holds the time of what an operator calls: `aten::linear` contains its "
    "`aten::addmm`. Rank by self time."
)
def total_among_operators(prof):
    rows = [row for row in prof.key_averages() if row.key.startswith("aten::")]
    return max(rows, key=lambda row: row.cpu_time_total).key


@hottest_op.misconception(
    "You took the operator that is called most often. Many calls may take little time, and one call much."
)
def by_count(prof):
    rows = [row for row in prof.key_averages() if row.key.startswith("aten::")]
    return max(rows, key=lambda row: (row.count, row.cpu_time_total)).key


@hottest_op.misconception(
    "There is no `cuda_time_total` on a row any more: it is `device_time_total`, and without a device it is 0 "
    "everywhere. On a CPU the time is in `self_cpu_time_total`."
)
def by_cuda_time(prof):
    return max(prof.key_averages(), key=lambda row: row.cuda_time_total).key


@hottest_op.misconception(
    "You took the self time of everything, ranges of your own and Python functions included. Asked for is an aten "
    "operator."
)
def self_time_of_everything(prof):
    return max(prof.key_averages(), key=lambda row: row.self_cpu_time_total).key


@hottest_op.misconception(
    "You took the longest single call. Nine calls of nine microseconds are more than one of sixty: add up the calls "
    "of a name."
)
def longest_call(prof):
    calls = [event for event in prof.events() if event.name.startswith("aten::")]
    return max(calls, key=lambda event: event.self_cpu_time_total).name


# ---- self_times --------------------------------------------------------------------------------------------

self_times = Exercise(
    reference.self_times,
    title="Read a trace as data",
    objective="memory.traces",
    difficulty=3,
    minutes=25,
    points=3,
    observes=[observe.value()],
    hints=(
        "Draw two calls on a line, one inside the other. Which part of the outer belongs to it alone? Then think of "
        "a call inside a call inside a call.",
        "Each call gives its whole duration to its own name, and takes it from the name of the call *directly* "
        "around it. To find that one, go through the calls of a thread by start, the longer first, with a stack of "
        "those that are still open.",
        "Sort by `(ts, -dur)`. For each call: pop from its thread's stack while the last has ended by its start; if "
        "one is left, subtract the duration there; add it to the call's own name; push the call.",
    ),
    why="Calls of a thread nest like brackets, so a stack knows at any time which call is the innermost one around. "
    "Taking each duration away from the caller directly around, and from no other, leaves every microsecond with "
    "exactly one name: the self times of a thread add up to the time in which any call was open.",
)


def call(name: str, ts: int, dur: int, tid: int = 1, cat: str = "cpu_op", ph: str = "X") -> dict[str, Any]:
    return {"ph": ph, "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 7, "tid": tid}


@self_times.cases
def _(rng):
    linear = [call("linear", 0, 100), call("addmm", 20, 60)]
    yield case("one call", [call("mm", 5, 30)])
    yield case("a call in a call", linear)
    yield case("a call in a call in a call", [call("step", 0, 200, cat="user_annotation"), *linear])
    yield case("in any order", [call("copy_", 50, 10), call("addmm", 20, 60), call("linear", 0, 100)])
    yield case("the same name twice", [call("mm", 0, 30), call("mm", 40, 50), call("add", 95, 5)])
    yield case(
        "one ends where the next begins", [call("step", 0, 100), call("mm", 10, 40), call("add", 50, 20)]
    )
    yield case("two that start together", [call("mm", 10, 40), call("linear", 10, 80)])
    yield case(
        "two threads", [call("forward", 0, 100), call("backward", 20, 60, tid=2), call("mm", 30, 10, tid=2)]
    )
    others = [
        call("python", 5, 90, cat="python_function"),
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "ts": 30,
            "tid": 1,
            "args": {"Bytes": 64},
        },
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "python"}},
    ]
    yield case("other events among them", [*others, *linear])
    yield case("a name inside itself", [call("f", 0, 50), call("f", 10, 30), call("g", 15, 5)])
    yield case("no calls", others)


@self_times.alternative
def asks_for_the_parent(events):
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times = Counter({e["name"]: 0 for e in calls})

    def inside(a, b):
        ends = a["ts"] + a["dur"] <= b["ts"] + b["dur"]
        return a is not b and a["tid"] == b["tid"] and b["ts"] <= a["ts"] and ends

    for e in calls:
        times[e["name"]] += e["dur"]
        around = [b for b in calls if inside(e, b)]
        if around:
            times[min(around, key=lambda b: b["dur"])["name"]] -= e["dur"]
    return dict(times)


@self_times.alternative
def takes_microsecond_by_microsecond(events):
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times = {e["name"]: 0 for e in calls}
    for tid in {e["tid"] for e in calls}:
        mine = [e for e in calls if e["tid"] == tid]
        for now in range(max(e["ts"] + e["dur"] for e in mine)):
            running = [e for e in mine if e["ts"] <= now < e["ts"] + e["dur"]]
            if running:
                times[min(running, key=lambda e: e["dur"])["name"]] += 1
    return times


@self_times.misconception(
    "These are total times: the time of an outer call holds the time of all calls inside it, and counts it again."
)
def total_times(events):
    times = defaultdict(int)
    for e in events:
        if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation"):
            times[e["name"]] += e["dur"]
    return dict(times)


@self_times.misconception(
    "You took the inner times from every call around, not only from the one directly around. The grandchildren are "
    "in the child's time already."
)
def subtracts_from_all_around(events):
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times = defaultdict(int)
    for e in calls:
        times[e["name"]] += e["dur"]
        for b in calls:
            ends = e["ts"] + e["dur"] <= b["ts"] + b["dur"]
            if b is not e and b["tid"] == e["tid"] and b["ts"] <= e["ts"] and ends:
                times[b["name"]] -= e["dur"]
    return dict(times)


@self_times.misconception(
    "Calls in different threads run side by side; one is never inside the other, whatever their times. Keep a stack "
    "for each `tid`."
)
def one_stack_for_all(events):
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times, stack = defaultdict(int), []
    for e in sorted(calls, key=lambda e: (e["ts"], -e["dur"])):
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"]:
            stack.pop()
        if stack:
            times[stack[-1]["name"]] -= e["dur"]
        times[e["name"]] += e["dur"]
        stack.append(e)
    return dict(times)


@self_times.misconception(
    "A trace holds more than calls of operators: Python functions are calls of another category, and take part in "
    "the nesting if you let them. Look at `cat` as well as at `ph`."
)
def takes_every_category(events):
    calls = [e for e in events if e.get("ph") == "X"]
    times, stacks = defaultdict(int), defaultdict(list)
    for e in sorted(calls, key=lambda e: (e["ts"], -e["dur"])):
        stack = stacks[e["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"]:
            stack.pop()
        if stack:
            times[stack[-1]["name"]] -= e["dur"]
        times[e["name"]] += e["dur"]
        stack.append(e)
    return dict(times)


@self_times.misconception(
    "A name that is called twice lost its first time: you set the entry where you should add to it."
)
def last_call_wins(events):
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times, stacks = {}, defaultdict(list)
    for e in sorted(calls, key=lambda e: (e["ts"], -e["dur"])):
        stack = stacks[e["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"]:
            stack.pop()
        if stack:
            times[stack[-1]["name"]] -= e["dur"]
        times[e["name"]] = e["dur"]
        stack.append(e)
    return times


@self_times.misconception(
    "You trusted the order of the list. The events of a trace come in no particular order: sort them by their start."
)
def trusts_the_order(events):
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times, stacks = defaultdict(int), defaultdict(list)
    for e in calls:
        stack = stacks[e["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"]:
            stack.pop()
        if stack:
            times[stack[-1]["name"]] -= e["dur"]
        times[e["name"]] += e["dur"]
        stack.append(e)
    return dict(times)


@self_times.misconception(
    "Of two calls that start together the longer one is outside. Sorted by start alone, the shorter may come first "
    "and look like the caller."
)
def sorts_by_start_alone(events):
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times, stacks = defaultdict(int), defaultdict(list)
    for e in sorted(calls, key=lambda e: e["ts"]):
        stack = stacks[e["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"]:
            stack.pop()
        if stack:
            times[stack[-1]["name"]] -= e["dur"]
        times[e["name"]] += e["dur"]
        stack.append(e)
    return dict(times)


@self_times.misconception(
    "A call that starts in the microsecond in which another ends comes after it, not inside it. Close a call when "
    "its end is at or before the start of the next."
)
def touching_is_inside(events):
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times, stacks = defaultdict(int), defaultdict(list)
    for e in sorted(calls, key=lambda e: (e["ts"], -e["dur"])):
        stack = stacks[e["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] < e["ts"]:
            stack.pop()
        if stack:
            times[stack[-1]["name"]] -= e["dur"]
        times[e["name"]] += e["dur"]
        stack.append(e)
    return dict(times)


# ---- count_host_syncs --------------------------------------------------------------------------------------

count_host_syncs = Exercise(
    reference.count_host_syncs,
    title="How often does the CPU wait?",
    objective="memory.traces",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "Profile `x.item()` and `bool(x)` once and look at the operators. Which one do they have in common?",
        "Whatever asks a tensor for its number dispatches `aten::_local_scalar_dense`. Count it, in a profile or with "
        "a dispatch mode.",
        "Profile `fn()` on the CPU, look through `prof.key_averages()` for the row of that name, and return its "
        "`count`; there may be no such row.",
    ),
    why="Many lines ask for a number without looking like it: `if loss > best`, `float(x)`, an f-string. All of them "
    "end in one operator, so counting operators finds them, where searching the source for `.item()` finds a part. "
    "On a GPU each of them makes the CPU wait until everything that was queued is done.",
)


def asks_with_item() -> float:
    return torch.ones(3).sum().item()


def asks_nothing() -> Tensor:
    return torch.ones(3).sum() * 2


def asks_in_a_condition() -> str:
    total = torch.ones(3).sum()
    return "large" if total > 2 else "small"


def asks_in_five_ways() -> list:
    x = torch.ones(())
    return [x.item(), float(x), int(x), bool(x), f"{x:.3f}"]


def asks_in_a_loop() -> float:
    losses = torch.arange(12.0).unbind()
    return sum(float(loss) for loss in losses)


def asks_once_for_all() -> float:
    return torch.stack(torch.arange(12.0).unbind()).sum().item()


def looks_for_nan() -> int:
    seen = 0
    for x in (torch.ones(2), torch.zeros(2), torch.full((2,), float("nan"))):
        if torch.isnan(x).any():
            seen += 1
        if x[0] > 0.5 and x[1] > 0.5:
            seen += int(x.sum())
    return seen


class Counted:
    """`fn` of this exercise, with a count of its calls."""

    def __init__(self, fn: Callable):
        self.fn, self.calls = fn, 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.fn()


@count_host_syncs.cases
def _(rng):
    yield case("item()", Counted(asks_with_item))
    yield case("nothing is asked", Counted(asks_nothing))
    yield case("a condition", Counted(asks_in_a_condition))
    yield case("five ways", Counted(asks_in_five_ways))
    yield case("in a loop", Counted(asks_in_a_loop))
    yield case("once, after the loop", Counted(asks_once_for_all))
    yield case("looking for NaN", Counted(looks_for_nan))


@count_host_syncs.scenario
def _(answer, fn):
    return {"syncs": answer(fn), "calls of fn": fn.calls}


@count_host_syncs.alternative
def counts_with_a_mode(fn):
    count = 0

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal count
            count += func.overloadpacket is torch.ops.aten._local_scalar_dense
            return func(*args, **(kwargs or {}))

    with Counter():
        fn()
    return count


@count_host_syncs.alternative
def counts_the_events(fn):
    with torch.autograd.profiler.profile() as prof:
        fn()
    return sum(event.name == "aten::_local_scalar_dense" for event in prof.function_events)


@count_host_syncs.misconception(
    "`item()` is one of many ways to ask. `float(x)`, `if x:` and f-strings ask too, without the word; count the "
    "operator in which all of them end."
)
def looks_for_item_calls(fn):
    count = 0

    class Calls(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal count
            count += func is Tensor.item
            return func(*args, **(kwargs or {}))

    with Calls():
        fn()
    return count


@count_host_syncs.misconception(
    "You counted two rows for one question: `aten::item` calls `aten::_local_scalar_dense`. Count the inner one."
)
def counts_both_rows(fn):
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        fn()
    names = ("aten::item", "aten::_local_scalar_dense")
    return sum(row.count for row in prof.key_averages() if row.key in names)


@count_host_syncs.misconception(
    "You counted rows. A row stands for all calls of a name; how many there were is its `count`."
)
def counts_rows(fn):
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        fn()
    return sum(row.key == "aten::_local_scalar_dense" for row in prof.key_averages())


@count_host_syncs.misconception(
    "`fn` ran more than once: a warm-up call is good for measuring time, and a count needs none. Asked for is one "
    "call."
)
def warms_up(fn):
    fn()
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        fn()
    counts = {row.key: row.count for row in prof.key_averages()}
    return counts.get("aten::_local_scalar_dense", 0)


@count_host_syncs.misconception("Where nothing is asked there is no such row, and the answer is 0.")
def expects_a_row(fn):
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        fn()
    return {row.key: row.count for row in prof.key_averages()}["aten::_local_scalar_dense"]


# ---- questions ---------------------------------------------------------------------------------------------

adamw_bytes = Question(
    "adamw_bytes",
    objective="memory.budget",
    text="""A model has one million parameters in float32. It has taken one training step with AdamW, and the
gradients were not cleared. How many megabytes do parameters, gradients and optimizer take together?""",
    choices={"a": "4", "b": "8", "c": "12", "d": "16"},
    answer="d",
    replies={
        "a": "That is the model alone, as it lies in a file. In training each parameter has company.",
        "b": "Parameters and gradients: right for plain SGD. AdamW keeps something of its own for each parameter.",
        "c": "One number per parameter for the optimizer is what momentum keeps. AdamW follows the mean of the "
        "gradient and the mean of its square.",
        "d": "Right: 4 for the parameters, 4 for the gradients, 8 for two moments. Sixteen bytes per parameter, "
        "before a single activation.",
    },
)

relu_saves = Question(
    "relu_saves",
    objective="memory.activations",
    text="""Two linear layers with a ReLU between them: `Linear(8, 16)`, `ReLU()`, `Linear(16, 4)`, on a batch of 32 in
float32. What does autograd keep for the backward pass, parameters aside?""",
    choices={
        "a": "the batch and the output of the ReLU: 3072 bytes",
        "b": "the outputs of all three layers: 4608 bytes",
        "c": "the batch, and the input and the output of the ReLU: 5120 bytes",
        "d": "nothing, until `backward()` is called",
    },
    answer="a",
    replies={
        "a": "Right: 32·8·4 + 32·16·4. A linear layer needs its input, a ReLU needs only to know where its output is "
        "positive, and its output is the next layer's input: one tensor for both.",
        "b": "What a layer puts out is not what its derivative needs. The result of the last layer is needed by "
        "nobody here, and that of the first only passes through the ReLU.",
        "c": "The ReLU could use either, and PyTorch lets it keep its output, which the next layer keeps anyway. The "
        "input is freed.",
        "d": "By then it would be too late: what is needed is saved while the forward pass runs.",
    },
)

sum_of_losses = Question(
    "sum_of_losses",
    objective="memory.activations",
    text="""A validation loop without `no_grad`:

```python
total = 0.0
for x, y in batches:
    total = total + loss_fn(model(x), y)
```

What is kept after ten batches?""",
    choices={
        "a": "the sum: one number",
        "b": "the graph of the last batch",
        "c": "the graphs and activations of all ten batches",
    },
    answer="c",
    replies={
        "a": "That would be so for Python floats. `total` is a tensor, and it remembers how it was computed.",
        "b": "In training it is like this, because `backward()` frees each graph. Here nobody calls it, and "
        "`total` depends on every one of the losses.",
        "c": "Right. The sum holds on to ten losses, each loss to its graph, and each graph to its activations. It "
        "grows with every batch until memory runs out. `no_grad()`, or `.item()`, ends it.",
    },
)

where_is_the_peak = Question(
    "where_is_the_peak",
    objective="memory.timeline",
    text="""A GPT with a vocabulary of 50,257 takes a training step with AdamW. In which phase is the most memory in
use?""",
    choices={
        "a": "at the end of the forward pass, when all activations are there",
        "b": "early in the backward pass",
        "c": "in the optimizer's step, when the moments are updated",
    },
    answer="b",
    replies={
        "a": "All activations are there, true. But then the backward pass begins with the loss, and it makes "
        "new tensors before it frees the old ones. How large are they?",
        "b": "Right. The first steps back make the gradient of the log-probabilities and that of the logits, each as "
        "large as the logits, while the activations are still there.",
        "c": "The optimizer needs temporary tensors as large as a parameter, and by then all activations are gone. "
        "For a model with a tiny batch you would be right.",
    },
)

bf16_halves = Question(
    "bf16_halves",
    objective="memory.savings",
    text="""You wrap the forward pass of a float32 model in `torch.autocast("cpu", torch.bfloat16)`. What happens to the
memory of parameters, gradients and AdamW's moments?""",
    choices={"a": "it halves", "b": "it stays as it is", "c": "it grows by half"},
    answer="b",
    replies={
        "a": "Autocast casts what operators compute with. The parameters stay in float32, and their gradients and "
        "moments have their dtype.",
        "b": "Right: sixteen bytes per parameter, as before. Autocast saves on activations, and only on those of "
        "operators that run in bfloat16.",
        "c": "For the length of a step there are casted copies of the weights besides the float32 ones, so there is "
        "something in it; but what stays from step to step is the same.",
    },
)

one_checkpoint = Question(
    "one_checkpoint",
    objective="memory.savings",
    text="""Six equal blocks. Instead of one checkpoint around each block you put a single one around all six. What
happens to the peak of the step?""",
    choices={
        "a": "it is lower: one input is kept instead of six",
        "b": "it is about as high as without any checkpoint",
        "c": "the same as with six checkpoints",
    },
    answer="b",
    replies={
        "a": "At the end of the forward pass you are right. Then the backward pass arrives at the single checkpoint, "
        "and has to have the inside of all six blocks again.",
        "b": "Right. The backward pass computes all six again and holds their insides at once. You paid for a second "
        "forward pass, and moved the peak from one place to another.",
        "c": "With six checkpoints one block at a time is expanded again and freed. With one, all six are there "
        "together.",
    },
)

profiler_without_step = Question(
    "profiler_without_step",
    objective="memory.profiling",
    text="""What does the profiler hand to `on_trace_ready` here?

```python
plan = schedule(wait=1, warmup=1, active=2, repeat=1)
with profile(schedule=plan, on_trace_ready=save) as prof:
    for batch in batches:  # 100 of them
        train_step(batch)
```""",
    choices={
        "a": "the third and the fourth step",
        "b": "all 100 steps",
        "c": "nothing: `save` is never called",
    },
    answer="c",
    replies={
        "a": "This is the plan. But how would the profiler know where one step ends? It does not know your loop.",
        "b": "Without a schedule, yes. With this one it begins by waiting for one step, and waits.",
        "c": "Right, and without an error. The profiler moves through its plan when you call `prof.step()`, and nobody "
        "does.",
    },
)

hidden_syncs = Question(
    "hidden_syncs",
    objective="memory.traces",
    text="""How often does one turn of this loop make the CPU wait for a GPU?

```python
loss = step(batch)          # a tensor on the GPU
if loss < best:
    best = loss
history.append(loss.item())
bar.set_postfix(loss=f"{loss:.3f}")
```""",
    choices={"a": "once", "b": "twice", "c": "three times"},
    answer="c",
    replies={
        "a": "There is one `.item()`. But Python's `if` needs a yes or no, and an f-string needs digits.",
        "b": "You found a second one. There is a third line that needs the number.",
        "c": "Right: the `if`, the `.item()`, and the f-string. Keep the losses on the device, and ask once in a "
        "while.",
    },
)
