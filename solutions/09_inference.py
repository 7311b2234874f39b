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
# # Inference and deployment: the same answers elsewhere
#
# > You have trained a model. Tomorrow it answers in another program, on another machine, many requests at once.
# > **How do you know that it is still the same model?**
#
# On its way out a model changes its mode, its neighbors in the batch, its compiler, its file format and its language.
# Each of these steps is a chance to become a slightly different model, and most do not say so.
# You take the steps one by one, and after each you compare.
#
# **Time:** about 4 hours: two to read and predict, two for the exercises.
# It splits well after sections 3 and 5.
#
# **You need:** notebooks 02 (grad modes), 03 (modules, modes, `state_dict`) and 05 (checkpoints).
# No GPU is needed, and no C++ compiler. Section 6 is about ONNX, which is optional: without it the cells tell you what to install.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# | term | in code | meaning |
# |---|---|---|
# | inference | `model(x)` | asking a model, without training it |
# | request | `ids` | what somebody asks: here a sequence of tokens |
# | padding | `pad_id`, `mask` | what fills the rows of a batch of unequal lengths |
# | graph | `GraphModule` | a list of operators, without Python between them |
# | graph break | | where a compiler leaves the graph and lets Python go on |
# | guard | | what a compiled graph tests before it is used again |
# | backend | `backend=` | what turns a graph into something that runs |
# | program | `ExportedProgram` | a graph with its weights, which needs no Python class |
# | artifact | | what you hand over: a program, an ONNX file, a file of weights |
# | parity | | the artifact answers as the model does |

# %%
import argparse
import copy
import io
import json
import logging
import pickle
import random
import tempfile
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from course_lib import check, hint, passing, predict, progress, solution

folder = Path(tempfile.mkdtemp())
_ = torch.manual_seed(0)

# %% [markdown]
# Our tiny batch is with us again, as floats, and a small network that answers with three logits per token.

# %% objective="inference.modes"
batch = torch.arange(24.0).reshape(2, 3, 4) / 24  # (batch, seq, dim)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3))


network()(batch).shape

# %% [markdown]
# ## 1 Ask, and leave no trace
#
# Ask the same question twice:

# %% objective="inference.modes"
model = network()
torch.equal(model(batch), model(batch))

# %% [markdown]
# A new module is in train mode, so dropout drops.
# The first switch is the mode, and it changes *what is computed*:

# %% objective="inference.modes"
_ = model.eval()
torch.equal(model(batch), model(batch))

# %% [markdown]
# The second switch is whether autograd takes notes, and it changes *what is remembered*.
# Neither knows of the other. Here is what autograd keeps for a backward pass that never comes:

# %% objective="inference.modes"
def kept_bytes(mode: Callable) -> int:
    """Bytes that autograd keeps of one forward pass."""
    kept = []
    with mode(), saved_tensors_hooks(lambda t: kept.append(t.untyped_storage().nbytes()), lambda t: t):
        model(batch)
    return sum(kept)


for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
    print(f"{mode.__name__:15} {kept_bytes(mode):5} bytes")

# %% [markdown]
# So which of the last two? `inference_mode` is the stricter one.
# Its results have no version counter and can never take part in training, which saves a little more work.

# %% objective="inference.modes"
with torch.inference_mode():
    y = model(batch)
print("inference tensor:", y.is_inference(), " requires grad:", y.requires_grad)

# %% tags=["raises-exception"] objective="inference.modes"
weight = torch.ones(3, requires_grad=True)
(y * weight).sum().backward()

# %% [markdown]
# Read this error as a promise kept: what is computed for answers stays out of training.
# If you do need such a tensor later, `y.clone()` outside of the block is an ordinary one.
#
# > **In one line.** `eval()` for what layers do, `inference_mode()` for what autograd does. You need both, and neither contains the other.
#
# ### Alone and in company
#
# Batch norm is the layer that looks at its neighbors.
# In train mode one row has none, and the layer refuses:

# %% tags=["raises-exception"] objective="inference.modes"
norm = nn.BatchNorm1d(4)
norm(torch.ones(1, 4))

# %% [markdown]
# With two rows it does not refuse. It answers, and changes itself:

# %% objective="inference.modes"
with torch.inference_mode():
    _ = norm(torch.full((2, 4), 10.0))
print("running mean after one question:", norm.running_mean.tolist())

# %% [markdown]
# Nothing but being asked has moved it, although no gradient was anywhere near.
#
# {{predict row_alone}}

# %%
predict("row_alone", "b")

# %% objective="inference.modes"
net = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)).eval()
rows = torch.randn(64, 4)
with torch.inference_mode():
    print("close:", torch.allclose(net(rows)[:1], net(rows[:1]), atol=1e-6))
    net.train()
    print("close in train mode:", torch.allclose(net(rows)[:2], net(rows[:2]), atol=1e-6))

# %% [markdown]
# So in eval mode you may cut the questions into pieces as your memory allows.
# The rest you know from notebook 05: put the modes back, each of them.
#
# {{exercise predict_logits}}

# %% exercise="predict_logits"
def predict_logits(model: nn.Module, x: Tensor, batch_size: int) -> Tensor:
    """Return what `model` answers to all rows of `x`, in their order, as one tensor.

    `x` has shape (rows, ...), with at least one row. The model is called with at most `batch_size` rows at a time.
    It answers in eval mode, so that no answer depends on the other rows or on chance.
    No graph is recorded, the result requires no gradient, and no random number is drawn.
    Afterwards each submodule is in the mode in which it was. Parameters and buffers are not changed.
    """
    ### BEGIN SOLUTION
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(rows) for rows in x.split(batch_size)])
    for module, mode in modes.items():
        module.training = mode
    return logits
    ### END SOLUTION

# %%
check(predict_logits)

# %% objective="inference.modes"
ask = passing(predict_logits)
answers = {size: ask(net, rows, size) for size in (64, 10, 1)}
print({size: torch.allclose(answers[64], answer, atol=1e-6) for size, answer in answers.items()}, " still in train mode:", net.training)

# %% [markdown]
# ## 2 The same numbers again, and their price
#
# Why "up to rounding"? Because a sum has an order.
#
# {{predict sum_order}}

# %%
predict("sum_order", "c")

# %% objective="inference.determinism"
a, b, c = torch.tensor([1e8, 1.0, -1e8])
print(((a + b) + c).item(), ((a + c) + b).item())

# %% [markdown]
# A parallel sum is added in the order in which the parts happen to be ready.
# On a GPU some operators do that, so two runs of one program may differ. (This machine may have no GPU, so it is not shown here.)
#
# There are two reasons why a run is not repeatable: random numbers, and the order of additions. Take the random numbers first.

# %% objective="inference.determinism"
def draw() -> list[float]:
    return [round(float(x), 3) for x in (random.random(), np.random.rand(), torch.rand(1))]


def seeded(*seeders: Callable) -> list[bool]:
    """Seed, draw, draw a bit more, seed again, draw: which generators gave the same number?"""
    results = []
    for _ in range(2):
        _ = [seeder(0) for seeder in seeders]
        results.append(draw())
    return [x == y for x, y in zip(*results)]


print("Python, NumPy, PyTorch:", seeded(torch.manual_seed))

# %% [markdown]
# `torch.manual_seed` seeds PyTorch. Python's `random` and NumPy go on where they were.
#
# For the operators there is one switch. It does not make them deterministic: it chooses a deterministic form where there is one,
# and *refuses* where there is none. We turn it on for a block at a time:

# %% objective="inference.determinism"
@contextmanager
def deterministic(**options: bool):
    torch.use_deterministic_algorithms(True, **options)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)

# %% [markdown]
# On the CPU, `put_` is an operator without a deterministic form.

# %% tags=["raises-exception"] objective="inference.determinism"
with deterministic():
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))

# %% [markdown]
# With `warn_only=True` the same operator runs, and there is one more warning in your log:

# %% objective="inference.determinism"
with deterministic(warn_only=True), warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    result = torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
print(result.tolist(), "and", len(caught), "warning:", str(caught[0].message).split(",")[0])

# %% [markdown]
# That is right for finding such operators, and too little for relying on it.
#
# The switch has one more effect, which you would not expect from its name.
#
# {{predict empty_tensor}}

# %%
predict("empty_tensor", "c")

# %% objective="inference.determinism"
with deterministic():
    print(torch.empty(3), torch.empty(1, dtype=torch.int64))

# %% [markdown]
# Uninitialized memory is not repeatable either, so it is filled with something that you will notice.
#
# > **The price.** Errors where there is no deterministic form, slower forms where there is one, a fill for each `empty`.
# > And the promise is small: the same version of PyTorch, the same device, the same number of threads.
#
# On a GPU two more things belong to it, which no cell can show here: the environment variable `CUBLAS_WORKSPACE_CONFIG=:4096:8`,
# set before the first matrix product, and `torch.backends.cudnn.benchmark = False`, so that no kernel is chosen by the clock.
#
# {{exercise seed_everything}}

# %% exercise="seed_everything"
def seed_everything(seed: int) -> None:
    """Make everything that follows repeatable: the same `seed`, the same numbers.

    Afterwards the global generators of Python (`random`), NumPy (`np.random`) and PyTorch depend on `seed` alone,
    whatever was drawn before; another seed gives other numbers. Nothing is drawn after seeding PyTorch's.
    From then on PyTorch *refuses* operators that have no deterministic implementation: they raise a RuntimeError.
    `seed` is at least 0 and less than 2**32. Other settings are up to you.
    """
    ### BEGIN SOLUTION
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    ### END SOLUTION

# %%
check(seed_everything)

# %% objective="inference.determinism"
print("Python, NumPy, PyTorch:", seeded(passing(seed_everything)))
torch.use_deterministic_algorithms(False)

# %% [markdown]
# We switch it off again: the rest of this notebook needs neither the promise nor the price.
#
# ## 3 Requests of unequal lengths
#
# Three people ask at once, and no two requests are equally long.

# %% objective="inference.requests"
requests = [torch.tensor([5, 1, 7, 2, 9]), torch.tensor([3, 8]), torch.tensor([4, 0, 6])]
[tuple(request.shape) for request in requests]

# %% tags=["raises-exception"] objective="inference.requests"
torch.stack(requests)

# %% [markdown]
# A tensor has no ragged edge. So the short rows are filled up, and the model must not notice.
#
# Here is a model that could notice in every way there is. It has positions, it has attention, and its head is tied to its embedding.
# (Notebook 10 builds such a model with care; here one layer of attention, without weights of its own, is enough.)

# %% objective="inference.requests"
class TinyLM(nn.Module):
    """(batch, seq) token ids -> (batch, seq, vocab) logits for the token that follows."""

    def __init__(self, vocab: int = 10, dim: int = 8, longest: int = 12):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, dim), nn.Embedding(longest, dim)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        x = self.emb(ids) + self.pos(positions)  # (batch, seq, dim)
        x = x + F.scaled_dot_product_attention(x, x, x, attn_mask=visible(mask))
        return self.head(self.norm(x))

# %% objective="inference.requests"
def visible(mask: Tensor) -> Tensor:
    """(batch, seq) True at tokens -> (batch, seq, seq) True where a query may look: at earlier tokens, and at itself."""
    seq = mask.shape[1]
    causal = torch.ones(seq, seq, dtype=torch.bool).tril()
    return causal & (mask.unsqueeze(1) | torch.eye(seq, dtype=torch.bool))


torch.manual_seed(0)
lm = TinyLM().eval().requires_grad_(False)

# %% [markdown]
# Why "and at itself"? A padding position at the left end sees no token at all.
# A softmax over nothing is 0/0, and a NaN that nobody asked for spreads in the next layer.

# %% objective="inference.requests"
nothing_visible = torch.full((1, 3), -torch.inf)
print(nothing_visible.softmax(-1))

# %% [markdown]
# The truth to compare with: each request alone, without padding.

# %% objective="inference.requests"
def alone(request: Tensor) -> Tensor:
    """What the model says after the last token of one request: (vocab,)."""
    ids = request.unsqueeze(0)
    return lm(ids, torch.ones_like(ids, dtype=torch.bool), torch.arange(len(request)).unsqueeze(0))[0, -1]


truth = torch.stack([alone(request) for request in requests])  # (batch, vocab)
truth.shape

# %% [markdown]
# {{predict padded_last}}

# %%
predict("padded_last", "b")

# %% objective="inference.requests"
ids = nn.utils.rnn.pad_sequence(requests, batch_first=True)  # on the right, with 0
everything = torch.ones_like(ids, dtype=torch.bool)
logits = lm(ids, everything, torch.arange(5).expand(3, -1))
print([torch.allclose(a, b, atol=1e-5) for a, b in zip(logits[:, -1], truth)])

# %% [markdown]
# Right for the longest request, and wrong for the two others, without a word.
# There are two cures: look in the right column, or pad on the other side.
# Who generates text needs the second one, because the next token is written at the right end of each row:
#
# ```
# padded on the right           padded on the left
# 5 1 7 2 9 | next              5 1 7 2 9 | next
# 3 8 . . . | next?             . . . 3 8 | next
# ```
#
# With it come two more tensors, because the model must neither look at the padding nor count it.
#
# {{exercise pad_requests}}

# %% exercise="pad_requests"
def pad_requests(requests: list[Tensor], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Make one batch of requests of unequal lengths, padded on the left: return `(ids, mask, positions)`.

    Each request is a tensor of shape (seq,) and dtype int64 with at least one token; there is at least one request.
    All three results have shape (batch, longest), and the requests keep their order.
    `ids` (int64) holds the tokens, each request at the right end of its row, and `pad_id` elsewhere.
    `mask` (bool) is True where a token of the request is. A request may contain `pad_id`: that is a token as well.
    `positions` (int64) counts the tokens of each request from 0, and is 0 at the padding.
    The requests are not changed.
    """
    ### BEGIN SOLUTION
    lengths = torch.tensor([len(request) for request in requests])
    columns = torch.arange(int(lengths.max())) - (lengths.max() - lengths).unsqueeze(1)  # (batch, longest)
    mask = columns >= 0
    ids = torch.full(mask.shape, pad_id)
    ids[mask] = torch.cat(requests)
    return ids, mask, columns.clamp(min=0)
    ### END SOLUTION

# %%
check(pad_requests)

# %% objective="inference.requests"
ids, mask, positions = passing(pad_requests)(requests, pad_id=0)
for row in zip(ids.tolist(), mask.int().tolist(), positions.tolist()):
    print("ids", row[0], " mask", row[1], " positions", row[2])

# %% [markdown]
# The last request holds a real 0, and its mask says so. Now leave out one of the two, and compare with the truth:

# %% objective="inference.requests"
def right(mask: Tensor, positions: Tensor) -> list[bool]:
    answers = lm(ids, mask, positions)[:, -1]
    return [torch.allclose(a, b, atol=1e-5) for a, b in zip(answers, truth)]


columns = torch.arange(5).expand(3, -1)
print("mask and positions:", right(mask, positions))
print("without the mask:  ", right(torch.ones_like(mask), positions))
print("columns counted:   ", right(mask, columns))

# %% [markdown]
# Only with both does a request get the answer that it would get alone.
#
# > **Classic mistake: padding that the model sees.**
# > The answers look plausible, and depend on who else asked at that moment. Tests with one request never find it.
#
# Libraries do not agree on the side, and some give you a mask and no side.
# Then you have to find the last token yourself.
#
# {{exercise last_token_logits}}

# %% exercise="last_token_logits"
def last_token_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Return for each request the logits at its last token, as a tensor of shape (batch, vocab).

    `logits` has shape (batch, seq, vocab); `mask` has shape (batch, seq) and dtype bool, and is True at tokens.
    The tokens of a request stand next to each other, at least one, with padding before them, after them, or both.
    """
    ### BEGIN SOLUTION
    place = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    last = (mask * place).argmax(dim=1)
    return logits[torch.arange(len(logits), device=logits.device), last]
    ### END SOLUTION

# %%
check(last_token_logits)

# %% [markdown]
# With it, padding on the right is right as well. It needs no mask in the model: a causal model never looks ahead, and the padding is ahead.

# %% objective="inference.requests"
right_ids = nn.utils.rnn.pad_sequence(requests, batch_first=True)
right_mask = torch.arange(5) < torch.tensor([len(r) for r in requests]).unsqueeze(1)
logits = lm(right_ids, torch.ones_like(right_mask), columns)
answers = passing(last_token_logits)(logits, right_mask)
print([torch.allclose(a, b, atol=1e-5) for a, b in zip(answers, truth)])

# %% [markdown]
# ## 4 A compiler that you have to ask
#
# "PyTorch 2 compiles your model", one reads. It does not, until you say so.
# And then?
#
# {{predict compile_first}}

# %%
predict("compile_first", "c")

# %% objective="inference.compile"
def show_graph_code(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
    """A backend that compiles nothing: it prints what it was given, and lets it run as it is."""
    print(graph.code.strip())
    return graph


def wave(x: Tensor) -> Tensor:
    return x.sin() * 2 + 1


compiled = torch.compile(wave, backend=show_graph_code)
print("nothing has happened yet")

# %% objective="inference.compile"
print(torch.equal(compiled(batch), wave(batch)))

# %% [markdown]
# `torch.compile` has two halves.
# The first one, Dynamo, reads the bytecode of your function and makes graphs out of it. It needs no compiler.
# The second one, the **backend**, makes something fast out of a graph. The default, Inductor, writes C++ or Triton and needs a compiler for that.
# You have replaced the second half by a `print`.
#
# How many graphs, and when? That is a number that you can count, and it says more than a stopwatch.
#
# {{exercise count_graphs}}

# %% exercise="count_graphs"
def count_graphs(function: Callable, calls: Iterable[tuple]) -> int:
    """Return how many graphs `torch.compile` makes of `function`, called with each of `calls` in turn.

    Each call is a tuple of arguments. All options of `torch.compile` but the backend are the defaults.
    The count is that of a fresh start: what was compiled before has no influence (`torch.compiler` can be told
    to forget). No C++ compiler is needed: write a backend. It is a function that `torch.compile` calls for each
    graph with `(graph_module, example_inputs)`, and that returns what is to run in place of the graph.
    """
    ### BEGIN SOLUTION
    graphs = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend)
    for args in calls:
        compiled(*args)
    return len(graphs)
    ### END SOLUTION

# %%
check(count_graphs)

# %% [markdown]
# With this instrument you can answer questions about the compiler.
#
# {{predict sizes_and_graphs}}

# %%
predict("sizes_and_graphs", "b")

# %% objective="inference.compile"
count = passing(count_graphs)
for sizes in ([3, 3, 3], [3, 4], [3, 4, 5, 6], [1, 2, 3, 4]):
    print(f"sizes {sizes!s:13} graphs {count(nn.Linear(4, 2), [(torch.ones(n, 4),) for n in sizes])}")

# %% [markdown]
# The first graph has fixed sizes and a **guard** that tests them. If the guard fails, there is a second graph, and from then on the size is variable.
#
# What else is guarded? The mode, for one. A graph with dropout in it is not one without:

# %% objective="inference.compile"
def ask_in(mode: bool, x: Tensor) -> Tensor:
    return model.train(mode)(x)


model = network()
print("eval, eval:       ", count(ask_in, [(False, batch), (False, batch)]))
print("train, eval, train:", count(ask_in, [(True, batch), (False, batch), (True, batch)]))

# %% [markdown]
# ### Where a graph breaks
#
# A graph is made before the numbers are there. So what about code that looks at the numbers?

# %% objective="inference.compile"
def gate(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x - 1


seen = torch._dynamo.explain(gate)(batch)
print("graphs:", seen.graph_count, " breaks:", seen.graph_break_count)

# %% [markdown]
# `if` needs a Python bool. Dynamo ends the graph, lets Python decide, and begins another one for the branch that is taken.
# Nothing is wrong with the result. But between the graphs is Python, and no operator is fused across the gap:

# %% objective="inference.compile"
print("positive only:", count(gate, [(batch,), (batch,)]), " then negative:", count(gate, [(batch,), (-batch,)]))

# %% [markdown]
# If you want to be told, demand one graph with `fullgraph=True`. The message is long; its first line is this:

# %% objective="inference.compile"
try:
    torch.compile(gate, backend="eager", fullgraph=True)(batch)
except Exception as error:
    print(type(error).__name__, "-", str(error).splitlines()[0])

# %% [markdown]
# {{exercise break_free_gate}}

# %% exercise="break_free_gate"
def break_free_gate(x: Tensor) -> Tensor:
    """Return `x * 2` if the sum of all elements of `x` is greater than 0, and `x - 1` otherwise.

    `x` is a tensor of floats of any shape, all of them finite.
    Compiled by `torch.compile`, the function is one graph, and that graph serves inputs of both kinds.
    """
    ### BEGIN SOLUTION
    return torch.where(x.sum() > 0, x * 2, x - 1)
    ### END SOLUTION

# %%
check(break_free_gate)

# %% objective="inference.compile"
one_graph = passing(break_free_gate)
print(count(one_graph, [(batch,), (-batch,), (batch,)]), torch.equal(one_graph(-batch), gate(-batch)))

# %% [markdown]
# ### What compiling does to your model
#
# `torch.compile(model)` returns another module, which has yours as a child.

# %% objective="inference.compile"
layer = nn.Linear(4, 3)
wrapped = torch.compile(layer, backend="eager")
print(type(wrapped).__name__, isinstance(wrapped, nn.Linear), list(wrapped.state_dict()))
print("same weights:", wrapped._orig_mod.weight is layer.weight)

# %% [markdown]
# A checkpoint with these names does not load into the plain model:

# %% tags=["raises-exception"] objective="inference.compile"
nn.Linear(4, 3).load_state_dict(wrapped.state_dict())

# %% [markdown]
# So save the state of `layer`, which shares the weights. Or use the other form:
#
# {{predict compiled_in_place}}

# %%
predict("compiled_in_place", "b")

# %% objective="inference.compile"
layer.compile(backend="eager")
print(type(layer).__name__, list(layer.state_dict()))

# %% [markdown]
# In notebook 03 you stripped prefixes from a file, where only names are left.
# If you still have the model, you can do better: take off the wrappers.
# (`nn.DataParallel` stands here for its relatives of notebook 08, which use the same name, `module`.)
#
# {{exercise unwrapped_state_dict}}

# %% exercise="unwrapped_state_dict"
def unwrapped_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model that may be wrapped, under the names that the model itself has.

    The wrappers are `torch.compile` and `nn.DataParallel`, any number of them, in any order; or there is none.
    They are around the whole model, not inside. A part of the model may be called `module`, but never the only one.
    """
    ### BEGIN SOLUTION
    while hasattr(model, "_orig_mod") or isinstance(model, nn.DataParallel):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model.state_dict()
    ### END SOLUTION

# %%
check(unwrapped_state_dict)

# %% [markdown]
# ### Is it faster?
#
# That depends on what there is to fuse, and no cell here measures it: a time on your machine says nothing about mine.
# These figures were measured elsewhere, once, on two shared CPU cores with PyTorch 2.13 and gcc 12:
#
# | what | speed-up | first call |
# |---|---|---|
# | multilayer perceptron | 1.0 | 1 to 7 s |
# | small GPT, forward pass | 1.1 to 1.3 | 7 to 21 s |
# | chain of elementwise operators | 1.7 to 3.5 | 6 to 13 s |
#
# A matrix product is as fast as it gets without a compiler. A chain of elementwise operators reads and writes memory once per operator, and fused it does so once.
# The first call pays: for loading the compiler, for compiling, and again after each failed guard. A process that answers one question should not compile.
#
# One more warning that needs a C++ compiler to be shown, so it is only told: Inductor draws random numbers in its own way.
# A compiled dropout is repeatable under a seed, and not equal to the eager one under the same seed. Compare in eval mode.
#
# ## 5 A program without its class
#
# A compiled function lives and dies with its process. To hand a model over, you **export** it:
# the class stays at home, and what travels is a graph with its weights.
#
# The old way of doing that is TorchScript. You will meet it in many repositories, so look at what it says today:

# %% objective="inference.export"
def warnings_of(f: Callable) -> list[str]:
    """The warnings that calling `f()` gives, up to the first colon or line break."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f()
    return sorted({str(w.message).splitlines()[0].split(":")[0] for w in caught})


def script_save_and_load() -> None:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(network()), file)
    file.seek(0)
    torch.jit.load(file)


print(*warnings_of(script_save_and_load), *warnings_of(lambda: torch.jit.trace(network().eval(), batch)), sep="\n")

# %% [markdown]
# It still works, and it is deprecated. Its successor is `torch.export`.
# There is a better reason to move than a warning. (Exporters and tracers also say much to those who develop them; `quiet` takes that away.)

# %% objective="inference.export"
@contextmanager
def quiet():
    """Without warnings, log lines and prints."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)

# %% [markdown]
# {{predict traced_branch}}

# %%
predict("traced_branch", "b")

# %% objective="inference.export"
class Magnitude(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


with quiet():
    traced = torch.jit.trace(Magnitude(), torch.ones(2))
print("model:", Magnitude()(-torch.ones(2)).tolist(), " traced:", traced(-torch.ones(2)).tolist())

# %% [markdown]
# One of the warnings that we took away was about this `if`. In a long log nobody reads it.
# `torch.export` raises instead. It makes one graph for all inputs, or none:

# %% objective="inference.export"
try:
    with quiet():
        torch.export.export(Magnitude(), (torch.ones(2),))
except Exception as error:
    print("refused:", "data-dependent" in str(error))

# %% [markdown]
# What it does make is a list of operators. Each line below is one call, in order:

# %% objective="inference.export"
model = network().eval()
program = torch.export.export(model, (batch,))
[str(node.target) for node in program.graph.nodes if node.op == "call_function"]

# %% [markdown]
# A dropout, in eval mode? It is there with its flag off, and does nothing. So do not look for the word to find out in which mode something was exported:
# run it twice.

# %% objective="inference.export"
train_program = torch.export.export(network().train(), (batch,))
for name, exported in (("from eval mode", program), ("from train mode", train_program)):
    run = exported.module()
    print(name, "- the same twice:", torch.equal(run(batch), run(batch)))

# %% [markdown]
# Too late to change your mind:

# %% tags=["raises-exception"] objective="inference.export"
train_program.module().eval()

# %% [markdown]
# > **Classic mistake: exporting a model in train mode.**
# > The mode is decided when you export. Call `eval()` before, or there will be dropout in production.
#
# ### Sizes that have a name
#
# The second decision is the sizes. The program above was made from 2 rows. Try 3:

# %% tags=["raises-exception"] objective="inference.export"
program.module()(torch.ones(3, 3, 4))

# %% [markdown]
# The 2 was written down as a number, with a guard. To keep it open, give the dimension a name:

# %% objective="inference.export"
dynamic = torch.export.export(model, (batch,), dynamic_shapes=({0: Dim("rows"), 1: Dim("seq")},))
print([tuple(dynamic.module()(torch.ones(*shape, 4)).shape) for shape in ((1, 3), (5, 3), (2, 100))])

# %% [markdown]
# {{predict one_row_example}}

# %%
predict("one_row_example", "c")

# %% objective="inference.export"
def outcome(rows: int, dim: Any) -> str:
    """Export with that many rows, then ask for five."""
    try:
        with quiet():
            run = torch.export.export(model, (torch.ones(rows, 3, 4),), dynamic_shapes=({0: dim},)).module()
    except Exception:
        return "export refuses"
    try:
        return f"takes five rows: {tuple(run(torch.ones(5, 3, 4)).shape)}"
    except Exception:
        return "exported, and refuses five rows"

# %% objective="inference.export"
for rows in (1, 2):
    print(rows, "row(s), Dim: ", outcome(rows, Dim("rows")))
    print(rows, "row(s), AUTO:", outcome(rows, Dim.AUTO))

# %% [markdown]
# The second line is the one to fear: `AUTO` gives way, with no more than a line in the log, and the error comes on another day, on another machine.
#
# > **In one line.** Eval mode, two rows or more, a name for each size that varies.
#
# {{exercise export_dynamic}}

# %% exercise="export_dynamic"
def export_dynamic(model: nn.Module, example: Tensor) -> ExportedProgram:
    """Return `model` as a program for inference that takes batches of any size.

    The model is called with one tensor, whose first dimension is the batch; `example` is one, with 2 rows or more.
    The program answers as the model does in eval mode, for 1 row and more, without an upper limit.
    The result is a `torch.export.ExportedProgram`. The model is left as it was, with the mode of each submodule.
    """
    ### BEGIN SOLUTION
    frozen = copy.deepcopy(model).eval()
    return torch.export.export(frozen, (example,), dynamic_shapes=({0: Dim("batch")},))
    ### END SOLUTION

# %%
check(export_dynamic)

# %% [markdown]
# The program is saved as one file, and whoever loads it needs PyTorch and not your class:

# %% objective="inference.export"
program = passing(export_dynamic)(model, batch)
torch.export.save(program, folder / "model.pt2")
loaded = torch.export.load(folder / "model.pt2").module()
print(type(loaded).__name__, torch.equal(loaded(batch), program.module()(batch)))

# %% [markdown]
# ### Parity
#
# Is it the model? Believe nothing, compare. But a comparison can be blind, too:

# %% objective="inference.export"
expected, got = torch.tensor([1.0, 2.0]), torch.tensor([1.0, torch.nan])
print("largest so far:", max(0.0, (expected - got).abs().max().item()))
print("mean of signed: ", (torch.tensor([1.0, 2.0]) - torch.tensor([1.5, 1.5])).mean().item())

# %% [markdown]
# A NaN lost to Python's `max`, and two errors that cancel. Write an instrument that overlooks nothing.
#
# {{exercise largest_difference}}

# %% exercise="largest_difference"
def largest_difference(model: Callable, artifact: Callable, batches: Iterable[Tensor]) -> float:
    """Return the largest absolute difference between the answers of `model` and of `artifact`, as a plain `float`.

    Both are called with each of the batches; there is at least one. The difference counts for every element
    of every batch. If one of them is NaN on any side, the result is NaN: the artifact is not to be trusted.
    Raise ValueError if two answers differ in shape.
    No graph is recorded. `model` is a module in eval mode or any callable.
    """
    ### BEGIN SOLUTION
    gaps = []
    with torch.no_grad():
        for batch in batches:
            expected, got = model(batch), artifact(batch)
            if expected.shape != got.shape:
                raise ValueError(f"shapes differ: {tuple(expected.shape)} and {tuple(got.shape)}")
            gaps.append((expected - got).abs().max())
    return torch.stack(gaps).max().item()
    ### END SOLUTION

# %%
check(largest_difference)

# %% objective="inference.export"
gap = passing(largest_difference)
batches = [torch.randn(rows, 3, 4) for rows in (1, 2, 5, 300)]
print("program:", gap(model, loaded, batches) < 1e-5, " from train mode:", gap(model, train_program.module(), [batch]) < 1e-5)

# %% [markdown]
# Why not demand 0? Another order of additions is allowed, and gives 1e-7 or so for numbers around 1.
# A difference of 1e-3 is a bug, or 16-bit numbers where you did not expect them.
#
# ## 6 Another language: ONNX
#
# A program that other runtimes understand, in C++, in a browser, on a phone: that is what ONNX is for.
# It needs three packages that this course does not ask for. If you do not have them, the cells of this section say so and go on.

# %% objective="inference.export"
missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
if missing:
    print("Not installed:", ", ".join(missing), "- for this section, run: python -m pip install onnx onnxscript onnxruntime")

# %% [markdown]
# The exporter is built on `torch.export` (the default since 2.9), so all that you know holds: eval mode, two rows or more, names for sizes.
# In older code you see `dynamic_axes`; today it is `dynamic_shapes`, as above.

# %% objective="inference.export"
def to_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    """Write `model` to `path` as ONNX, with a batch of any size."""
    with quiet():
        torch.onnx.export(model, (example,), path, dynamo=True, dynamic_shapes=({0: Dim("batch")},))


def onnx_answers(path: Path) -> Callable:
    """The file as a function from tensor to tensor, run by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return lambda x: torch.from_numpy(session.run(None, {entry.name: x.numpy()})[0])

# %% objective="inference.export"
if not missing:
    to_onnx(model, batch, folder / "model.onnx")
    print("files:", sorted(path.name for path in folder.glob("model.onnx*")))
    print("parity:", gap(model, onnx_answers(folder / "model.onnx"), batches) < 1e-5)

# %% [markdown]
# Two files: the graph, and the weights beside it. Move them together.
# And the parity was tested at four sizes, of which the export has seen one.
#
# Two more ways out exist, which are not shown because they need a C++ compiler or another runtime:
# AOTInductor compiles an exported program to a library ahead of time, and ExecuTorch runs one on small devices.
# Both begin with `torch.export`. Servers, queues and quantization have books of their own, and are no part of this course.
#
# ## 7 A file from a stranger
#
# You download a checkpoint. `torch.save` writes a **pickle**, and a pickle is not data: it is a program that builds data.
# One of its instructions is "call this function with these arguments".

# %% objective="inference.trust"
class Surprise:
    """When its pickle is loaded, it is not built: a function is called in its place. Here a harmless one."""

    def __reduce__(self):
        return print, ("this line was printed by the file",)


torch.save({"weight": torch.ones(2), "extra": Surprise()}, folder / "gift.pt")

# %% [markdown]
# {{predict pickle_runs}}

# %%
predict("pickle_runs", "b")

# %% objective="inference.trust"
try:
    torch.load(folder / "gift.pt")
except pickle.UnpicklingError as error:
    print(str(error).split(". ")[0])
    print(*(line.split(" Please")[0].strip() for line in str(error).splitlines() if "Unsupported" in line))

# %% [markdown]
# And with `weights_only=False`, as older instructions have it:

# %% objective="inference.trust"
print(torch.load(folder / "gift.pt", weights_only=False))

# %% [markdown]
# It was `print`. It could have been anything that your account may do, and the dict that comes back looks as it should.
#
# > **Classic mistake: `weights_only=False` because of an error.**
# > The message itself suggests it. The error says that the file wants to run something; look first at *what*.

# %% objective="inference.trust"
torch.serialization.get_unsafe_globals_in_checkpoint(folder / "gift.pt")

# %% [markdown]
# Most refusals are harmless: settings in a class of their own, a NumPy number, a whole model in place of its state.

# %% objective="inference.trust"
def loads(content: Any) -> str:
    """What `torch.load` says to a file with this content."""
    torch.save(content, folder / "try.pt")
    try:
        torch.load(folder / "try.pt")
    except pickle.UnpicklingError:
        return f"refused, it asks for {torch.serialization.get_unsafe_globals_in_checkpoint(folder / 'try.pt')[0]}"
    return "loads"


for content in (nn.Linear(2, 2).state_dict(), torch.get_rng_state(), nn.Linear(2, 2), argparse.Namespace(lr=0.1)):
    print(f"{type(content).__name__:12}", loads(content))

# %% [markdown]
# When you write a checkpoint, put state dicts and plain values into it, and this never comes up (notebook 05).
# When you read one with a class that you know, allow that class, for one call:

# %% objective="inference.trust"
with torch.serialization.safe_globals([argparse.Namespace]):
    print(torch.load(folder / "try.pt"))
print("afterwards:", loads(argparse.Namespace(lr=0.1)))

# %% [markdown]
# {{exercise load_untrusted}}

# %% exercise="load_untrusted"
def load_untrusted(path: str, allowed: Iterable[type] = ()) -> Any:
    """Return what `torch.save` wrote to the file `path`, which comes from a stranger, without running its code.

    Tensors and the plain containers that `torch.load` takes by default are welcome, and the classes in `allowed`.
    For anything else raise `pickle.UnpicklingError`. No code that the file brings along is run, in any case.
    The tensors are put on the CPU. What `torch.load` allows afterwards is what it allowed before.
    """
    ### BEGIN SOLUTION
    with torch.serialization.safe_globals(list(allowed)):
        return torch.load(path, map_location="cpu", weights_only=True)
    ### END SOLUTION

# %%
check(load_untrusted)

# %% [markdown]
# `map_location="cpu"` is there because a file remembers the device of each tensor. One from a GPU does not load without a GPU, unless you say where to.
#
# A last honest word: the restricted loader is a list and a small interpreter, and such things have had holes.
# A format that has no instructions at all is safer still.
#
# ## 8 A file that is nothing but weights
#
# **safetensors** is such a format: a header in JSON with names, dtypes, shapes and places, and then the bytes.

# %% objective="inference.weights"
path = folder / "layer.safetensors"
safetensors.torch.save_file({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, path)
raw = path.read_bytes()
length = int.from_bytes(raw[:8], "little")
json.loads(raw[8 : 8 + length])

# %% [markdown]
# That is the whole file: 8 bytes for the length of the header, the header, and 32 bytes of numbers. Nothing in it can be called.
# Nor is there room for an optimizer, a step or settings; a training run still needs its own checkpoint.
#
# Now our language model, whose head is tied to its embedding.
#
# {{predict tied_file}}

# %%
predict("tied_file", "c")

# %% objective="inference.weights"
try:
    safetensors.torch.save_file(lm.state_dict(), folder / "lm.safetensors")
except RuntimeError as error:
    print(str(error).strip().split(",")[0])

# %% [markdown]
# The quick cure is to clone each tensor. Count what that costs here, where the tied weight is 10 × 8 numbers of 4 bytes:

# %% objective="inference.weights"
cloned = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
sizes = {"state dict, cloned": sum(t.nbytes for t in cloned.values()), "parameters": sum(p.nbytes for p in lm.parameters())}
sizes

# %% [markdown]
# In a small GPT the embedding is a third of all numbers, or more. And after loading there are two weights, which training moves apart.
#
# The second refusal is about layout. A transposed weight (notebook 01) does not lie in one piece:

# %% objective="inference.weights"
try:
    safetensors.torch.save_file({"weight": torch.ones(2, 3).t()}, folder / "t.safetensors")
except ValueError as error:
    print(str(error).split(":")[0])

# %% [markdown]
# {{exercise save_weights}}

# %% exercise="save_weights"
def save_weights(model: nn.Module, path: str) -> None:
    """Write the weights of `model` to the file `path` in the safetensors format.

    The file holds all entries of the state dict. Names that are tied (two names of one Parameter) are stored once,
    under one of these names, whichever you like. Two tensors with equal values are two tensors.
    A weight may lie in memory in any order. The model is not changed.
    """
    ### BEGIN SOLUTION
    save_model(model, path)
    ### END SOLUTION

# %%
check(save_weights)

# %% objective="inference.weights"
passing(save_weights)(lm, str(folder / "lm.safetensors"))
stored = safetensors.torch.load_file(folder / "lm.safetensors")
print(len(lm.state_dict()), "names in the model,", len(stored), "in the file")

# %% [markdown]
# One name is missing in the file, and a strict load says so:

# %% tags=["raises-exception"] objective="inference.weights"
TinyLM().load_state_dict(stored)

# %% [markdown]
# Here two quick cures go wrong. `strict=False` keeps quiet about this name, and about every other one.
# And `assign=True` replaces the Parameters, one by one:

# %% objective="inference.weights"
other = TinyLM()
_ = other.load_state_dict(stored, strict=False, assign=True)
print("still tied:", other.head.weight is other.emb.weight)

# %% [markdown]
# {{exercise load_weights}}

# %% exercise="load_weights"
def load_weights(model: nn.Module, path: str) -> None:
    """Load the weights in the safetensors file `path` into `model`.

    Names that are tied in the model are in the file once, under any one of these names.
    The values go into the parameters and buffers that are there: an optimizer that holds them goes on with them,
    and what is tied stays tied. The mode of the model stays as it is.
    Raise RuntimeError if a tensor of the model is in the file under none of its names; what the model holds then
    is up to you. There is no tensor in the file that the model does not have.
    """
    ### BEGIN SOLUTION
    load_model(model, path)
    ### END SOLUTION

# %%
check(load_weights)

# %% objective="inference.weights"
other = TinyLM().eval()
passing(load_weights)(other, str(folder / "lm.safetensors"))
print("tied:", other.head.weight is other.emb.weight, " same answers:", torch.equal(other(ids, mask, positions), lm(ids, mask, positions)))

# %% [markdown]
# ## The answer
#
# > How do you know that it is still the same model?
#
# You compare, with an instrument that overlooks nothing, at sizes that nobody has tried, and in the mode in which it will work.
# Here is the network of this notebook in all its forms:

# %% objective="inference.export"
model = network().eval()
passing(save_weights)(model, str(folder / "net.safetensors"))
torch.save(model.state_dict(), folder / "net.pt")
from_safetensors, from_checkpoint = network().eval(), network().eval()
passing(load_weights)(from_safetensors, str(folder / "net.safetensors"))
_ = from_checkpoint.load_state_dict(passing(load_untrusted)(str(folder / "net.pt")))

# %% objective="inference.export"
artifacts = {
    "in pieces of 7 rows": lambda x: passing(predict_logits)(model, x, 7),
    "captured by torch.compile": torch.compile(model, backend="eager"),
    "exported program": passing(export_dynamic)(model, batch).module(),
    "weights from a checkpoint": from_checkpoint,
    "weights from safetensors": from_safetensors,
    "left in train mode": copy.deepcopy(model).train(),
}
for name, artifact in artifacts.items():
    print(f"{name:26} parity: {gap(model, artifact, batches) < 1e-5}")

# %% [markdown]
# Five are the model. The sixth has the same weights, the same code and the same file, and is another one.
#
# ## Recap
#
# - `eval()` changes what layers compute, `inference_mode()` what autograd keeps. Both, and put the modes back.
# - A seed makes random numbers repeatable; the switch makes operators repeatable, or refuses. Both cost something, and neither reaches another machine.
# - A padded request needs its mask and its positions, or it gets an answer that depends on its neighbors.
# - `torch.compile` works when it is called: one graph per set of guards, a break where Python must look at numbers.
# - A wrapper changes names. Save the model, not the wrapper.
# - An export decides mode and sizes for good. Two rows or more, and a name for each size that varies.
# - TorchScript still runs and is deprecated. A trace follows its example for ever; an export refuses.
# - A pickle is a program. Weights only, and allow what you know for one call.
# - safetensors holds names and bytes. Tied weights are stored once, and come back tied if they are copied into place.

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] say which two switches inference needs, and what each of them changes? (`predict_logits`, [section 1](#1-Ask-and-leave-no-trace))
# - [ ] make a run repeatable, and say where the promise ends? (`seed_everything`, [section 2](#2-The-same-numbers-again-and-their-price))
# - [ ] batch requests of unequal lengths so that each gets the answer that it would get alone? (`pad_requests`, `last_token_logits`, [section 3](#3-Requests-of-unequal-lengths))
# - [ ] count graphs, and say why there are as many? (`count_graphs`, `break_free_gate`, [section 4](#4-A-compiler-that-you-have-to-ask))
# - [ ] save a model that is compiled and wrapped? (`unwrapped_state_dict`, [section 4](#4-A-compiler-that-you-have-to-ask))
# - [ ] export a model for all batch sizes, and prove that the program is the model? (`export_dynamic`, `largest_difference`, [section 5](#5-A-program-without-its-class))
# - [ ] say what TorchScript is, and what to use in its place? ([section 5](#5-A-program-without-its-class))
# - [ ] open a file from a stranger? (`load_untrusted`, [section 7](#7-A-file-from-a-stranger))
# - [ ] save tied weights once, and load them tied? (`save_weights`, `load_weights`, [section 8](#8-A-file-that-is-nothing-but-weights))

# %% tags=["nbval-ignore-output"]
progress()
