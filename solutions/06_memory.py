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
# # Memory and profiling
#
# > Your training step dies with *out of memory*, on a GPU that you can't log in to.
# > **Which line needs the most, how much does it need, and what do you change?**
#
# Most people answer by trying: a smaller batch, another guess, another crash.
# You will answer on a laptop without a GPU, before the run: on paper, by simulation, and by measuring, and the three
# will agree to the byte.
# In the second half you ask the same question about time.
#
# **Time:** about 4 hours: one and a half to read and predict, the rest for the exercises.
# It splits well after section 2 and after section 5.
#
# **You need:** notebooks 01 (storages), 02 (what a graph saves) and 05 (the training step).
# No GPU is needed. Where there is one, the same cells measure it, and section 5 sets the numbers side by side.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# | term | in code | meaning |
# |---|---|---|
# | parameters | `model.parameters()` | what is trained; there from the beginning to the end |
# | gradients | `p.grad` | one number for each trained parameter; there from the backward pass to `zero_grad()` |
# | optimizer state | `optimizer.state` | what an optimizer remembers for each parameter |
# | activations | | what a forward pass leaves behind for the backward pass |
# | peak | | the most that was in use at any moment |
# | phase | `tracker.phase("forward 1")` | a named part of a training step |
# | fake tensor | `FakeTensorMode()` | a tensor with a size and without numbers |
# | checkpoint | `checkpoint(block, x)` | keep the input of a block, and compute its inside a second time |
# | trace | `prof.export_chrome_trace(...)` | the list of all calls with their times |
# | self time | `row.self_cpu_time_total` | the time of a call without the calls inside it |
# | host sync | `loss.item()` | the CPU waits until a number has been computed |
#
# Sizes have names: `batch` sequences of `seq` tokens, `dim` numbers per token, `n_heads` attention heads, `vocab` words.

# %%
import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # or the profiler prints the time and its process id
import json
import tempfile
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.display import show_memory, show_trace
from course_lib.reference.modules import ActivationRecorder
from course_lib.simulation import FULL_SIZE, GPTConfig, MemoryTracker, MiniGPT, measure_on_gpu, track_training

_ = torch.manual_seed(0)
torch.set_num_threads(1)
MiB, GiB = 2**20, 2**30

# %% [markdown]
# ## 1 Before the first batch
#
# Some memory is taken whatever you feed the model.
#
# {{predict adamw_bytes}}

# %%
predict("adamw_bytes", "d")

# %% objective="memory.budget"
layer = nn.Linear(1000, 1000, bias=False)  # one million parameters
adamw = torch.optim.AdamW(layer.parameters())
layer(torch.ones(1, 1000)).sum().backward()
adamw.step()

# %% objective="memory.budget"
print("weight    ", layer.weight.nbytes)
print("its .grad ", layer.weight.grad.nbytes)
for name, tensor in adamw.state[layer.weight].items():
    print(f"{name:10}", tensor.nbytes)

# %% [markdown]
# Four tensors of 4 MB, and four bytes in which AdamW counts its steps.
#
# **Rule 1.** In float32 with AdamW a trained parameter takes 16 bytes: 4 for itself, 4 for its gradient, 8 for two moments.
#
# What other optimizers keep, you can ask them in the same way:

# %% objective="memory.budget"
choices = {
    "SGD": torch.optim.SGD(layer.parameters(), lr=0.1),
    "SGD, momentum": torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9),
    "AdamW, amsgrad": torch.optim.AdamW(layer.parameters(), amsgrad=True),
    "Adafactor": torch.optim.Adafactor(layer.parameters()),
}
for name, choice in choices.items():
    choice.step()
    state = [tensor for tensor in choice.state[layer.weight].values() if isinstance(tensor, Tensor)]
    print(f"{name:15} {sum(tensor.nbytes for tensor in state) / layer.weight.nbytes:.3f} times the weight")

# %% [markdown]
# "Mixed precision halves this" is often said, and wrong as long as the float32 weights stay.
# Their gradients and moments have their dtype.
# What it does save, you will see in section 4.
#
# Write the rule for any model.
#
# {{exercise training_bytes}}

# %% exercise="training_bytes"
def training_bytes(model: nn.Module, opt: str) -> dict[str, int]:
    """Return what stays in memory from step to step: `{"params": ..., "grads": ..., "opt": ...}` in bytes.

    `opt` is "sgd" (no momentum), "momentum" (SGD with momentum) or "adamw".
    "params" counts all parameters, trained or frozen; a tied weight is there once. Buffers do not count.
    "grads" counts the gradients that exist after a backward pass that reaches every trained parameter.
    "opt" counts what the optimizer keeps for the trained parameters after its first step, in their dtype.
    Leave out the few bytes in which Adam counts its steps.
    The values are plain `int`. The model is not changed, and need not be run.
    """
    ### BEGIN SOLUTION
    params = sum(p.nbytes for p in model.parameters())
    grads = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    copies = {"sgd": 0, "momentum": 1, "adamw": 2}[opt]
    return {"params": params, "grads": grads, "opt": copies * grads}
    ### END SOLUTION

# %%
check(training_bytes)

# %% [markdown]
# The model of this notebook is a mini GPT, and you will meet it in two sizes: tiny, and as in many tutorials,
# with 6 layers and a vocabulary of 50,257 words.
# You need no memory to build the large one: on the `meta` device, tensors have sizes and no numbers.

# %% objective="memory.budget"
with torch.device("meta"):
    large = MiniGPT(FULL_SIZE)
print("parameters     ", sum(parameter.numel() for parameter in large.parameters()))
print("state_dict says", sum(tensor.numel() for tensor in large.state_dict().values()))

# %% [markdown]
# Two counts for one model.
# Its table of words serves both ends, and `state_dict()` lists both names of the one tensor.
# In memory it is there once, so 30.3 million is the count.

# %% objective="memory.budget"
budget = passing(training_bytes)(large, "adamw")
for name, nbytes in budget.items():
    print(f"{name:7} {nbytes / MiB:7.1f} MiB")

# %% [markdown]
# > **Classic mistake: two kinds of giga.**
# > `torch.cuda.memory_allocated() / 1e9`, as you find it in many scripts, gives GB, 10⁹ bytes.
# > Allocators and `nvidia-smi` count in GiB, 2³⁰ bytes. At 80 "giga" the two differ by almost 6.
#
# Here is one number in three dresses.
# You will find it again in section 3:

# %% objective="memory.budget"
nbytes = 3_533_217_956
print(f"{nbytes / MiB:.1f} MiB = {nbytes / GiB:.2f} GiB = {nbytes / 1e9:.2f} GB")

# %% [markdown]
# Not 3.37: whoever divides MiB by a thousand gets a number that is neither.
#
# ## 2 What the forward pass leaves behind
#
# The rest depends on the batch.
# A backward pass needs numbers from the forward pass, and autograd keeps them.
# Which ones?
#
# {{predict relu_saves}}

# %%
predict("relu_saves", "a")

# %% objective="memory.activations"
def show(saved: Tensor) -> Tensor:
    print(f"{tuple(saved.shape)!s:9} {saved.nbytes:5} bytes")
    return saved

# %% [markdown]
# PyTorch calls a function of yours with each tensor that it saves, while this block is open:

# %% objective="memory.activations"
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
x = torch.ones(32, 8)
with saved_tensors_hooks(show, lambda saved: saved):
    y = net(x)

# %% [markdown]
# Read the four lines: the batch, the output of the ReLU, the same tensor once more as the input of the second layer,
# and the second layer's weight, turned around.
# The weight is in memory anyway, and the output of the ReLU is *one* storage that is saved twice.
# So it costs 1024 + 2048 bytes.
#
# Make an instrument of this.
#
# {{exercise saved_activation_bytes}}

# %% exercise="saved_activation_bytes"
def saved_activation_bytes(model: nn.Module, fn: Callable[[], Any]) -> int:
    """Return how many bytes autograd keeps for the backward pass of what `fn()` computes.

    `fn()` runs a forward pass with `model` and returns its output, which you hold while you count.
    Everything that is saved for the backward pass counts, the batch too, with the bytes of its whole storage.
    A storage counts once, however many tensors on it are saved.
    The parameters of `model` do not count, whether they are trained or frozen: they are there anyway.
    Call `fn` once. Where nothing is saved the answer is 0.
    """
    ### BEGIN SOLUTION
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn()
    del output
    return sum(kept.values())
    ### END SOLUTION

# %%
check(saved_activation_bytes)

# %% [markdown]
# Now you can weigh activation functions.
# Each of them is asked on the same (32, 16) tensor of 2048 bytes, between two linear layers:

# %% objective="memory.activations"
for inner in (nn.ReLU(), nn.Sigmoid(), nn.GELU(), nn.SiLU(), nn.Dropout(0.5), nn.LayerNorm(16)):
    net = nn.Sequential(nn.Linear(8, 16), inner, nn.Linear(16, 4))
    print(f"{type(inner).__name__:9}", passing(saved_activation_bytes)(net, lambda net=net: net(x)))

# %% [markdown]
# ReLU and sigmoid need only their output, which the next layer keeps anyway.
# GELU and SiLU need their input: one more tensor of 2048 bytes.
# Dropout keeps its mask, here of one byte per element. LayerNorm keeps its input and two numbers per row.
#
# "So memory is what the layers put out?"
# The recorder that you built in notebook 03 tells what they put out. Set it beside what is kept:

# %% objective="memory.activations"
layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
with ActivationRecorder(layers, ["0", "1", "2"]) as recorder:
    layers(x)
for name, stats in recorder.stats.items():
    print(f"{layers[int(name)]._get_name():6} {stats['shape']!s:9} {4 * torch.Size(stats['shape']).numel():5} bytes")
print("kept:", passing(saved_activation_bytes)(layers, lambda: layers(x)), " of which the batch:", x.nbytes)

# %% [markdown]
# Close, and not the same.
# The last layer's output is kept by nobody: its own backward does not need it, and there is no next layer.
# The batch is kept instead, as the input of the first one: 1024 + 2048 + 2048.
#
# ### What holds a graph, holds its activations
#
# Activations live as long as the graph that they belong to.
# `backward()` frees them. What if nobody calls it?
#
# {{predict sum_of_losses}}

# %%
predict("sum_of_losses", "c")

# %% objective="memory.activations"
def nodes_behind(tensor: Tensor) -> int:
    """How many steps back the graph of a tensor knows."""
    seen, pending = set(), [tensor.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [before for before, _ in node.next_functions]
    return len(seen)

# %% objective="memory.activations"
total, sizes = 0.0, []
for _ in range(5):
    total = total + net(x).pow(2).mean()
    sizes.append(nodes_behind(total))
print(sizes)

# %% [markdown]
# The graph grows with each batch, and with it what it holds.
# Under `no_grad` there is no graph, and the sum is a number:

# %% objective="memory.activations"
with torch.no_grad():
    total = sum(net(x).pow(2).mean() for _ in range(5))
print(nodes_behind(total))

# %% [markdown]
# > **Classic mistake: a statistic with a past.**
# > A running mean that is updated with the outputs of a layer is a result of autograd as well.
# > It survives the step, and the graphs of all steps survive with it, even though `backward()` runs each time.

# %% objective="memory.activations"
mean, sizes = torch.zeros(4), []
for _ in range(4):
    y = net(x)
    mean = 0.9 * mean + 0.1 * y.mean(0)  # with y.detach() all would be well
    y.sum().backward()
    sizes.append(nodes_behind(mean))
print(sizes)

# %% [markdown]
# ### The activations of a GPT
#
# Now the whole mini GPT.
# Its tracker notes every storage that an operator makes, and here you see what is left after one forward pass.
# The sizes are those of our tiny batch, `(batch, seq, dim) = (2, 3, 4)`, with 2 heads, 1 layer and a vocabulary of 10.

# %% objective="memory.activations"
tiny = GPTConfig(vocab=10, dim=4, n_heads=2, n_layers=1, max_seq=3)
for a in track_training(tiny, batch=2, seq=3, fake=False).allocations:
    if a.category == "activations":
        print(f"{a.nbytes // 4:3} numbers  {a.op.removeprefix('aten.').split('.')[0]}")

# %% [markdown]
# Go through it with `rows = batch · seq = 6` and `rows · dim = 24` in hand:
#
# | numbers | what it is | whose backward needs it |
# |---|---|---|
# | 6 | positions, 3 integers of 8 bytes | the table of positions; does not grow with the batch |
# | 24 | the input of the block | first norm |
# | 24, 6, 6 | result of the norm; mean and scale of each row | queries, keys, values; the norm |
# | 72 | queries, keys and values | attention |
# | 24, 12 | result of the attention; one number per row and head | projection; attention |
# | 24, 24, 6, 6 | the sum with the input; second norm as above | second norm; MLP |
# | 96, 96 | inside of the MLP before and after the GELU | GELU; second linear layer |
# | 24, 24, 6, 6 | output of the block; last norm | last norm; head |
# | 60 | log-probabilities, `rows · vocab` | loss |
# | 1, 1 | two single numbers of the loss | does not grow with the batch |
#
# The scores of the attention, `seq · seq` for each head, are not in the list: the fused kernel computes them again.
# Nor are the logits. `cross_entropy` keeps the log-probabilities, and the logits are freed.
#
# {{exercise gpt_activation_bytes}}

# %% exercise="gpt_activation_bytes"
def gpt_activation_bytes(batch: int, seq: int, dim: int, n_heads: int, n_layers: int, vocab: int) -> int:
    """Return how many bytes the forward pass of this notebook's mini GPT leaves behind for the backward pass.

    The numbers are float32, nothing is checkpointed. Count what grows with the batch, as in the table above:
    each of the `n_layers` blocks, then the last norm, the head and the loss. The batch itself (the token numbers)
    does not count. The result is a plain `int`.
    """
    ### BEGIN SOLUTION
    rows = batch * seq
    norm = rows * dim + 2 * rows
    attention = 4 * rows * dim + n_heads * rows
    mlp = 8 * rows * dim
    block = 2 * rows * dim + 2 * norm + attention + mlp
    head = rows * dim + norm + rows * vocab
    return 4 * (n_layers * block + head)
    ### END SOLUTION

# %%
check(gpt_activation_bytes)

# %% [markdown]
# Is it true for other sizes, and does "about" mean anything here?
# Compare with what the tracker sees at the end of a forward pass:

# %% objective="memory.activations"
def left_behind(config: GPTConfig, batch: int, seq: int) -> int:
    return sum(a.nbytes for a in track_training(config, batch, seq).allocations if a.category == "activations")


for batch, seq, dim, n_heads, n_layers, vocab in [(4, 16, 32, 2, 2, 96), (3, 8, 24, 3, 3, 500), (8, 64, 128, 4, 4, 512)]:
    config = GPTConfig(vocab, dim, n_heads, n_layers, max_seq=seq)
    paper = passing(gpt_activation_bytes)(batch, seq, dim, n_heads, n_layers, vocab)
    tracked = left_behind(config, batch, seq)
    print(f"on paper {paper:10,}   tracked {tracked:10,}   difference {tracked - paper} = 8 * {seq} + 8")

# %% [markdown]
# The difference is what the table marks: the positions, 8 bytes per place, and two single numbers.
# Beyond that there is no rounding: the formula is exact.
#
# ## 3 A GPU that is not there
#
# In the last cell nothing was computed.
# The tracker ran on **fake tensors**, which have a shape, a dtype and a storage of a size, and no memory behind it.

# %% objective="memory.timeline"
with FakeTensorMode():
    huge = torch.ones(100_000, 100_000)
    product = huge @ huge
print(tuple(product.shape), product.dtype, f"{product.nbytes / GiB:.1f} GiB")

# %% [markdown]
# Operators work out shapes and sizes, and skip the arithmetic.
# So there is a question that a fake tensor can't answer:

# %% objective="memory.timeline"
try:
    product[0, 0].item()
except Exception as refusal:
    print(type(refusal).__name__, refusal)

# %% [markdown]
# How good is such a simulation?
# Run the same two training steps for real and simulated, and compare *every* event: each storage that comes or goes,
# its size, its phase, in order.

# %% objective="memory.timeline"
simulated = track_training(GPTConfig(), batch=4, seq=16, steps=2)
real = track_training(GPTConfig(), batch=4, seq=16, steps=2, fake=False)
print(real.n_events, "events, peak", real.peak, "bytes; equal:", simulated.events() == real.events())

# %% [markdown]
# > **What is simulated here, and what is not.**
# > The tensors live on the CPU device; fake `cuda` tensors end the kernel in a PyTorch without CUDA, so don't try them.
# > Counted are the bytes of storages. A GPU's allocator rounds each size up to 512 bytes, keeps freed blocks, and can fragment.
# > A CUDA context and the workspaces of cuBLAS take some hundred MB more. (These two sentences are from PyTorch's documentation; no GPU was at hand.)
# > A GPU also has kernels of its own: `nn.RMSNorm` is one fused operator there and several on the CPU, and autocast has another list of operators.
#
# The tracker itself is short, and yours to write.
# You have the pieces: `untyped_storage()` from notebook 01, and an object that PyTorch calls for every operator:

# %% objective="memory.timeline"
class Names(TorchDispatchMode):
    """Print the name of each operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print(func)
        return func(*args, **(kwargs or {}))


with Names():
    torch.ones(2, 3).t().relu_()

# %% [markdown]
# Three operators, and only the first made a storage.
#
# {{exercise PeakTracker}}

# %% exercise="PeakTracker"
class PeakTracker(TorchDispatchMode):
    """Count the bytes of all storages that operators make: `with PeakTracker() as tracker: ...`.

    `tracker.now` is what is in use at this moment, `tracker.peak` the most that ever was; both start at 0.
    A storage counts with all its bytes from the operator that makes it until the last tensor on it is gone.
    Views and results written in place bring no new storage. The tracker keeps nothing alive.
    Results may be a tensor, or tuples, lists and dicts that hold tensors. Operators work as without the tracker.
    Everything that the code inside the block uses is made inside the block.
    """

    def __init__(self):
        ### BEGIN SOLUTION
        super().__init__()
        self.sizes = {}
        self.peak = 0
        ### END SOLUTION

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        ### BEGIN SOLUTION
        result = func(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(result)):
            self.meet(tensor.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def meet(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            weakref.finalize(storage, self.sizes.pop, key)

    @property
    def now(self) -> int:
        return sum(self.sizes.values())
        ### END SOLUTION

# %%
check(PeakTracker)

# %% objective="memory.timeline"
with passing(PeakTracker)() as tracker:
    a = torch.ones(1000)  # 4000 bytes
    b = a.view(10, 100)  # a view
    c = a + b.flatten()  # 4000 bytes
    del c
print("now", tracker.now, " peak", tracker.peak)

# %% [markdown]
# ### One step of the full mini GPT
#
# 32 sequences of 128 tokens, float32, AdamW.
#
# {{predict where_is_the_peak}}

# %%
predict("where_is_the_peak", "b")

# %% objective="memory.timeline"
full = track_training(FULL_SIZE, batch=32, seq=128, steps=2)
show_memory(full, names=["mini GPT, 32 x 128 tokens, float32, AdamW (simulated)"])

# %% [markdown]
# This is a picture of a GPU that is not there.
# Time runs in events. The first step lacks the moments, which AdamW makes in its first `step()`: judge by the second.
#
# Look at the thin spike at the beginning of the backward pass.
# Which tensors are there at its top?

# %% objective="memory.timeline"
print(f"{full.peak / MiB:.1f} MiB in {full.phase_at(full.peak_event)}")
for a in full.alive_at(full.peak_event)[:6]:
    print(f"{a.nbytes / MiB:6.1f} MiB  {a.category:11} made by {a.op.removeprefix('aten.'):38} in {a.phase}")

# %% [markdown]
# Three tensors of 785 MiB: `32 · 128 · 50257 · 4` bytes each.
# The log-probabilities were kept, the loss's backward makes their gradient, and the softmax's backward makes that of the logits.
# **The line that needs the most is the loss**, not the attention, and not the blocks.
#
# Now put it on paper, for a model whose parts you can all count:

# %% objective="memory.timeline"
def on_paper(config: GPTConfig, batch: int, seq: int) -> int:
    """Peak of a step from the second on: parameters and moments, the batch, activations, two more rows of logits."""
    with torch.device("meta"):
        parameters = sum(p.numel() for p in MiniGPT(config).parameters())
    sizes = config.dim, config.n_heads, config.n_layers, config.vocab
    kept = passing(gpt_activation_bytes)(batch, seq, *sizes)
    return 12 * parameters + 16 * batch * seq + kept + 2 * 4 * batch * seq * config.vocab


wide = replace(FULL_SIZE, norm=nn.LayerNorm)
for config, batch, seq in [(GPTConfig(), 4, 16), (GPTConfig(500, 24, 3, 3), 3, 8), (wide, 2, 256), (wide, 32, 128)]:
    print(f"on paper {on_paper(config, batch, seq):13,}   simulated {track_training(config, batch, seq, steps=2).peak:13,}")

# %% [markdown]
# They agree within some hundred bytes: AdamW's counters, the positions, two single numbers.
# Twelve bytes per parameter, not sixteen, since at this moment the gradients do not exist yet.
# (For a tiny batch the peak is elsewhere: at the end of the backward pass, where all gradients exist and the two of the shared table meet.)
#
# > **Classic mistake: an underscore that holds 785 MiB.**
# > `_, loss = model(x, y)` looks as if it threw the logits away. `_` is a name like any other, and holds them.
# > Then four such tensors are there at the peak. Return the loss alone, or `del` the logits before `backward()`.
#
# ### Which step makes the surge?
#
# The question comes up as a list of events, from a tracker or from a GPU: what came, what went, and in which stage.

# %% objective="memory.timeline"
small = track_training(tiny, batch=2, seq=3)
print(small.events()[-4:])

# %% [markdown]
# {{exercise peak_stage}}

# %% exercise="peak_stage"
def peak_stage(events: list[tuple[str, int]]) -> tuple[int, str]:
    """Return the most bytes that were ever in use, and the stage in which that was so: `(bytes, stage)`.

    `events` is a list of `(stage, bytes)` in order of time: a positive number of bytes was allocated in that
    stage, a negative number was freed. Nothing is in use at the beginning.
    There is at least one event, and the peak is reached only once. The list is not changed.
    """
    ### BEGIN SOLUTION
    now, peak, where = 0, 0, ""
    for stage, nbytes in events:
        now += nbytes
        if now > peak:
            peak, where = now, stage
    return peak, where
    ### END SOLUTION

# %%
check(peak_stage)

# %% objective="memory.timeline"
print(passing(peak_stage)(full.events()))
print("after the last event:", sum(nbytes for _, nbytes in full.events()), "bytes")

# %% [markdown]
# The second line is all that a summary at the end can show.
# `torch.cuda.memory_summary()` is a snapshot of one moment: it knows how high the peak was, and not where.
#
# PyTorch brings a tracker of its own, which also sorts by module: `torch.distributed._tools.mem_tracker.MemTracker`.
# (Importing it takes a second or two, since it brings the compiler along.)
# With it, or with yours, you can weigh a model that fits into no machine you have.
#
# {{exercise fake_peak}}

# %% exercise="fake_peak"
def fake_peak(build: Callable[[], nn.Module], batch_shape: tuple[int, ...]) -> int:
    """Return the peak of training `build()` with AdamW, in bytes, without allocating the model or a batch.

    `build()` makes the model. A step is: a float32 batch of `batch_shape`, the sum of the output as the loss,
    backward, `optimizer.step()`. Take the peak over whole steps, one or two: everything that is in use counts,
    parameters, gradients, optimizer state, activations, and the temporary tensors of the optimizer's step.
    The result is a plain `int`. As optimizers do their steps in more than one way, it is right from 4 to 5.2 times
    the bytes of the parameters in these cases. `build()` must make no real parameters: think of models that are too
    large for that.
    """
    ### BEGIN SOLUTION
    from torch.distributed._tools.mem_tracker import MemTracker  # here, for it brings the compiler along

    with FakeTensorMode():
        model = build()
        opt = torch.optim.AdamW(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, opt)
        with tracker:
            model(torch.randn(batch_shape)).sum().backward()
            opt.step()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    return peak["Total"]
    ### END SOLUTION

# %%
check(fake_peak)

# %% objective="memory.timeline"
def thirty_two_gib() -> nn.Module:
    return nn.Sequential(*(nn.Linear(16_384, 16_384, bias=False) for _ in range(32)))


peak = passing(fake_peak)(thirty_two_gib, (16, 16_384))
print(f"{peak / GiB:.0f} GiB to train {32 * 16_384**2 * 4 / GiB:.0f} GiB of parameters")

# %% [markdown]
# ## 4 What helps
#
# Three remedies are named everywhere.
# Each saves something else, and with the simulation you can see what before you rewrite anything.
#
# ### Checkpointing: compute it twice
#
# Keep the input of a block, throw its inside away, and compute the inside again when the backward pass arrives.
#
# {{predict one_checkpoint}}

# %%
predict("one_checkpoint", "b")

# %% [markdown]
# To see the blocks rather than the loss, take a longer sequence and a small vocabulary, as for a model of characters:

# %% objective="memory.savings"
chars = GPTConfig(vocab=512, dim=384, n_heads=6, n_layers=6, max_seq=1024)
plain = track_training(chars, batch=8, seq=1024, steps=2)
lean = track_training(replace(chars, checkpointed=True), batch=8, seq=1024, steps=2)
show_memory(plain, lean, names=["6 layers, 8 x 1024 tokens", "the same, each block checkpointed"])

# %% [markdown]
# In the second picture the backward pass has teeth: each is one block, expanded again and freed.
# The price is a second forward pass through the blocks.
#
# {{exercise forward_checkpointed}}

# %% exercise="forward_checkpointed"
def forward_checkpointed(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    """Return `x` passed through all `blocks`, keeping of each block only its input.

    `x` is `(batch, dim)`, and so is what each block returns. Each block is checkpointed by itself: what it computes
    inside is thrown away, and computed a second time in the backward pass.
    The result and all gradients are those of the plain loop, whether or not `x` requires a gradient,
    and also where a block draws random numbers (dropout).
    """
    ### BEGIN SOLUTION
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x
    ### END SOLUTION

# %%
check(forward_checkpointed)

# %% [markdown]
# Why does it say `use_reentrant=False`?
# The older implementation runs the block without a graph, and attaches one only if an *input* requires a gradient.
# Below, the input comes from frozen layers, and it has none:

# %% objective="memory.savings"
block, x = nn.Linear(2, 2), torch.ones(1, 2)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    y = checkpoint(block, x, use_reentrant=True)
print("connected to the graph:", y.requires_grad)
print(*[str(warning.message) for warning in caught], sep="\n")

# %% [markdown]
# The block would never be trained, and all you get is a warning.
# It is also blind to tensors inside a dataclass or a dict:

# %% objective="memory.savings"
@dataclass
class Hidden:
    state: Tensor


x = torch.ones(1, 2, requires_grad=True)
for reentrant in (True, False):
    y = checkpoint(lambda x: Hidden(block(x)), x, use_reentrant=reentrant)
    print(f"use_reentrant={reentrant!s:5}  connected:", y.state.requires_grad)

# %% [markdown]
# ### Accumulation: smaller batches, the same step
#
# Four micro-batches of two sequences give the gradient of one batch of eight (notebook 05).
# Activations shrink to a quarter. What does not?

# %% objective="memory.savings"
slices = track_training(chars, batch=2, seq=1024, steps=2, micro_batches=4)
show_memory(plain, slices, names=["one batch of 8", "four micro-batches of 2"])

# %% [markdown]
# Four small hills, and from the second on they stand on a higher ground: the gradients wait there, 4 bytes per parameter,
# until the step takes them.
#
# ### bfloat16: half the activations, some of the time
#
# {{predict bf16_halves}}

# %%
predict("bf16_halves", "b")

# %% objective="memory.savings"
def peak_in_mib(config: GPTConfig, batch: int, seq: int, **options) -> str:
    return f"{track_training(config, batch, seq, steps=2, **options).peak / MiB:7.1f}"


shapes = {"6 layers, 8 x 1024, vocab 512": (chars, 8, 1024), "6 layers, 32 x 128, vocab 50257": (wide, 32, 128)}
for name, (config, batch, seq) in shapes.items():
    print(f"{name:32} peak in MiB")
    print("   float32            ", peak_in_mib(config, batch, seq))
    print("   bfloat16           ", peak_in_mib(config, batch, seq, bf16=True))
    print("   checkpointed       ", peak_in_mib(replace(config, checkpointed=True), batch, seq))
    print("   checkpointed, bf16 ", peak_in_mib(replace(config, checkpointed=True), batch, seq, bf16=True))
    print("   4 micro-batches    ", peak_in_mib(config, batch // 4, seq, micro_batches=4))

# %% [markdown]
# Read the two blocks against each other, for no remedy wins everywhere.
#
# - Where the inside of the blocks weighs most, checkpointing is the strongest, and bfloat16 saves about a third.
# - Where the loss weighs most, both do little: the loss is computed in float32 under autocast too, so its three large
#   tensors stay as they are. Smaller micro-batches help most.
# - Together they can be worse than checkpointing alone: in the second block there is one tensor more, a copy of the
#   table of words in bfloat16, which the head's backward pass needs.
#
# These numbers are simulated with the CPU's list of autocast operators; CUDA's list differs.
#
# ## 5 Asking a real GPU
#
# On a CUDA device the allocator itself keeps count.
# Without one, some of these functions answer 0, and others fail, each in its own way.

# %% tags=["nbval-ignore-output"] objective="memory.timeline"
print("allocated", torch.cuda.memory_allocated(), " peak", torch.cuda.max_memory_allocated())
for ask in (torch.cuda.memory_summary, torch.cuda.reset_peak_memory_stats, torch.cuda.memory._record_memory_history):
    try:
        ask()
        print(f"{ask.__name__}: works here")
    except Exception as refusal:
        print(f"{ask.__name__}: {type(refusal).__name__}: {refusal}")

# %% [markdown]
# > **A 0 from `memory_allocated()` is no measurement.** It is what you get without a GPU.
# >
# > *Allocated* is what tensors use. *Reserved* is what PyTorch has taken from the driver and holds for later;
# > `nvidia-smi` shows that, plus the context. `empty_cache()` gives back what is reserved and not allocated: no tensor gets smaller.
#
# To ask for the peak of a *phase*, reset the peak when the phase begins. This is what `measure_on_gpu` does.
# Where there is a GPU, the next cell sets measured beside simulated; the stored output comes from a machine without one.

# %% tags=["nbval-ignore-output"] objective="memory.timeline"
if torch.cuda.is_available():
    measured = measure_on_gpu(FULL_SIZE, batch=32, seq=128)
    for phase, nbytes in full.peaks().items():
        print(f"{phase:12} simulated {nbytes / MiB:7.1f}   measured {measured[phase] / MiB:7.1f} MiB")
else:
    print("There is no CUDA device here, so nothing was measured.")

# %% [markdown]
# For the surge on a GPU there is the **memory snapshot**. Its calls begin with an underscore: they may change.
#
#     torch.cuda.memory._record_memory_history(max_entries=100_000)
#     ...  # some training steps
#     torch.cuda.memory._dump_snapshot("snapshot.pickle")
#
# The file opens at <https://pytorch.org/memory_viz>, which runs in your browser and needs a network.
# But it is a list of events like yours, and you can read it as data.
# Here is its form, written by hand from PyTorch's documentation, since no GPU was at hand:

# %% objective="memory.timeline"
trace = [
    {"action": "segment_alloc", "addr": 0, "size": 2097152},  # the driver gave 2 MiB
    {"action": "alloc", "addr": 0, "size": 1024},
    {"action": "alloc", "addr": 1024, "size": 4096},
    {"action": "free_requested", "addr": 0, "size": 1024},  # the tensor is gone
    {"action": "free_completed", "addr": 0, "size": 1024},  # the block can be used again
    {"action": "alloc", "addr": 0, "size": 512},
]
signs = {"alloc": 1, "free_completed": -1}
changes = [(e["action"], signs[e["action"]] * e["size"]) for e in trace if e["action"] in signs]
print(passing(peak_stage)(changes))

# %% [markdown]
# A free is two events, and only one of them may count.
# A segment is what the allocator has reserved, and does not count either: 5120 bytes were in use at the peak.
# In a real snapshot each event also has `frames`, the lines of your code that led to it. That names the line.
#
# ## 6 Where the time goes
#
# The second half asks the same question about time.
# Here is a training step, with a name on each of its parts:

# %% objective="memory.profiling"
model = MiniGPT(GPTConfig())
trainer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(96, (4, 17))


def train_step(i: int) -> None:
    with record_function(f"user_{i}"):
        with record_function("forward"):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            trainer.step()
            trainer.zero_grad()


# %% [markdown]
# The first steps of a run are unlike the others: memory is allocated, caches are cold.
# So the profiler has a plan: wait, warm up, record.

# %% objective="memory.profiling"
once = schedule(wait=1, warmup=1, active=3, repeat=1)
print([once(i).name for i in range(7)])
again = schedule(wait=1, warmup=1, active=3)
print([again(i).name for i in range(7)])

# %% [markdown]
# Without `repeat=1` the plan starts over after five steps.
#
# {{predict profiler_without_step}}

# %%
predict("profiler_without_step", "c")

# %% objective="memory.profiling"
fired = []
with profile(activities=[ProfilerActivity.CPU], schedule=once, on_trace_ready=fired.append) as prof:
    for i in range(10):
        train_step(i)
print("traces:", len(fired))
try:
    prof.key_averages()
except AssertionError as refusal:
    print(refusal)

# %% [markdown]
# {{exercise profile_window}}

# %% exercise="profile_window"
def profile_window(fn: Callable[[int], Any], wait: int, warmup: int, active: int) -> list[str]:
    """Profile some calls of `fn` on the CPU, and return the names of those that were recorded, sorted.

    Call `fn(0)`, `fn(1)`, ... `wait + warmup + active` times, one call a step. Let the profiler wait for `wait` steps,
    warm up for `warmup` (at least 1) and record `active` (at least 1), once.
    Each `fn(i)` marks its work with `record_function(f"user_{i}")`; the names to return begin with "user_".
    """
    ### BEGIN SOLUTION
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as prof:
        for i in range(wait + warmup + active):
            fn(i)
            prof.step()
    return sorted(row.key for row in prof.key_averages() if row.key.startswith("user_"))
    ### END SOLUTION

# %%
check(profile_window)

# %% objective="memory.profiling"
print(passing(profile_window)(train_step, wait=1, warmup=1, active=3))

# %% [markdown]
# Many scripts ask for `ProfilerActivity.CUDA` as well.
# Without a GPU this gives a warning, and the CPU is recorded all the same:

# %% tags=["nbval-ignore-output"] objective="memory.profiling"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        train_step(0)
print(*[str(warning.message) for warning in caught], sep="\n")

# %% [markdown]
# What was recorded?
# Times differ from run to run, and this notebook never judges by them. Counts do not differ:

# %% objective="memory.profiling"
rows = {row.key: row for row in prof.key_averages()}
for name in ("aten::linear", "aten::mm", "aten::gelu", "aten::native_layer_norm", "aten::item", "user_0"):
    print(f"{name:25} {rows[name].count if name in rows else 0:3} calls")

# %% [markdown]
# Nine matrix products forward: four in each of two blocks, one in the head. And two for each of them backward,
# one for the gradient of the input and one for that of the weight.
# Did you expect `aten::item`? AdamW reads its counter for each of the 20 parameter tensors.
# The counters are kept on the CPU for this reason: reading them makes no GPU wait.
#
# Now rank by time. Each row has two: the *total* holds everything that was called inside.

# %% tags=["nbval-ignore-output"] objective="memory.profiling"
for row in sorted(prof.key_averages(), key=lambda row: -row.cpu_time_total)[:4]:
    print(f"{row.key:40} total {row.cpu_time_total:8.0f} µs   self {row.self_cpu_time_total:8.0f} µs")

# %% [markdown]
# (Measured on the machine that built this notebook; yours will differ.)
# By total time the outermost range wins, and tells you nothing.
#
# {{exercise hottest_op}}

# %% exercise="hottest_op"
def hottest_op(prof: profile) -> str:
    """Return the name of the aten operator that takes the most CPU time itself: in all its calls together,
    without the operators that it calls.

    `prof` is a finished profile. The names of aten operators begin with "aten::"; ranges of your own and Python
    functions are in the profile too, and are no operators. No two operators take the same time.
    """
    ### BEGIN SOLUTION
    operators = [row for row in prof.key_averages() if row.key.startswith("aten::")]
    return max(operators, key=lambda row: row.self_cpu_time_total).key
    ### END SOLUTION

# %%
check(hottest_op)

# %% tags=["nbval-ignore-output"] objective="memory.profiling"
passing(hottest_op)(prof)

# %% [markdown]
# Two things make a table worse than it need be:
#
# - `sort_by="cuda_time_total"`, as in older scripts, is still taken, and sorts by a column of zeros without a GPU.
#   The attribute on the rows is gone; it is called `device_time_total`.
# - `with_stack=True` adds a row for each Python function, and by total time these come first.

# %% objective="memory.profiling"
with profile(activities=[ProfilerActivity.CPU], with_stack=True) as stacked:
    train_step(0)
row = stacked.key_averages()[0]
print(hasattr(row, "cuda_time_total"), hasattr(row, "device_time_total"))
python = sum(".py(" in row.key or "<built-in" in row.key for row in stacked.key_averages())
print("rows that are Python functions, more than a hundred:", python > 100)

# %% [markdown]
# ## 7 A trace is data
#
# A trace is a JSON file, a list of everything that was called.

# %% objective="memory.traces"
folder = Path(tempfile.mkdtemp())
prof.export_chrome_trace(str(folder / "trace.json"))
events = json.loads((folder / "trace.json").read_text())["traceEvents"]
step = next(e for e in events if e.get("name") == "user_0" and e["ph"] == "X")
print({key: type(value).__name__ for key, value in step.items() if key in ("ph", "cat", "name", "ts", "dur", "tid")})

# %% [markdown]
# `ts` is when the call began and `dur` how long it took, in microseconds; `ph` "X" marks a complete call.
# The file can be written once:

# %% tags=["raises-exception"] objective="memory.traces"
prof.export_chrome_trace(str(folder / "again.json"))

# %% [markdown]
# The same happens after `on_trace_ready=tensorboard_trace_handler("logs")`: it has written the file already, under `logs/`.
# TensorBoard need not be installed for that, and is not needed to look.
#
# The list can be drawn.
# Each box is a call, under the call that made it; yours come first, then those of PyTorch:

# %% tags=["nbval-ignore-output"] objective="memory.traces"
show_trace(events, within="user_0")

# %% [markdown]
# (Measured where this notebook was built. Your picture has the same boxes, of other widths.)
# The backward pass runs in the same thread here; on other machines it has one of its own.
#
# For long traces use Perfetto: open <https://ui.perfetto.dev> and drag the file into the window. It stays on your machine.
# `chrome://tracing` still opens it too, and is no longer developed.
#
# A picture shows, and a number decides.
#
# {{exercise self_times}}

# %% exercise="self_times"
def self_times(events: list[dict[str, Any]]) -> dict[str, int]:
    """Return for each name in a trace the time spent in its calls themselves, without the calls inside them.

    `events` is the list `"traceEvents"` of a profiler's trace, in any order. A call is an event with `"ph"` equal to
    "X" and `"cat"` equal to "cpu_op" or "user_annotation"; all other events are to be passed over.
    A call has a `"name"`, a start `"ts"`, a duration `"dur"` (in whole microseconds, at least 1), a thread `"tid"`.
    Within one thread calls lie side by side or one inside the other; of two that start together the longer is outside.
    A call that starts when another ends is not inside it. Calls in different threads are never inside each other.
    The result has one entry for each name, summed over its calls. The events are not changed.
    """
    ### BEGIN SOLUTION
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times = defaultdict(int)
    open_calls = defaultdict(list)
    for call in sorted(calls, key=lambda call: (call["ts"], -call["dur"])):
        outside = open_calls[call["tid"]]
        while outside and outside[-1]["ts"] + outside[-1]["dur"] <= call["ts"]:
            outside.pop()
        if outside:
            times[outside[-1]["name"]] -= call["dur"]
        times[call["name"]] += call["dur"]
        outside.append(call)
    return dict(times)
    ### END SOLUTION

# %%
check(self_times)

# %% [markdown]
# The self times of a step add up to the step: every microsecond has one name.
# (A real trace counts in fractions of them, so we round to nanoseconds first.)

# %% objective="memory.traces"
start, end = step["ts"], step["ts"] + step["dur"]
inside = [e for e in events if e["ph"] == "X" and e["tid"] == step["tid"] and start <= e["ts"] < end]
inside = [{**e, "ts": round(1000 * e["ts"]), "dur": round(1000 * e["dur"])} for e in inside]
times = Counter(passing(self_times)(inside))
print("the sum is the whole:", abs(sum(times.values()) / 1000 / step["dur"] - 1) < 0.01)

# %% tags=["nbval-ignore-output"] objective="memory.traces"
for name, nanoseconds in times.most_common(5):
    print(f"{name.removeprefix('autograd::engine::evaluate_function: '):45} {nanoseconds / 1000:7.0f} µs")

# %% [markdown]
# For so small a model no operator stands out: the time goes into calling them.
# This is what "overhead-bound" looks like, and on a GPU the cure would be larger batches or fewer, fused operators (notebook 09).
#
# ## 8 Waits and copies
#
# A GPU works through a queue. Python puts kernels in and goes on, until someone wants a number.
#
# {{predict hidden_syncs}}

# %%
predict("hidden_syncs", "c")

# %% objective="memory.traces"
loss, best, history = torch.tensor(0.5), torch.tensor(1.0), []
with profile(activities=[ProfilerActivity.CPU]) as prof:
    if loss < best:
        best = loss
    history.append(loss.item())
    text = f"{loss:.3f}"
print({row.key: row.count for row in prof.key_averages() if row.key in ("aten::item", "aten::_local_scalar_dense")})

# %% [markdown]
# Without a GPU nothing waits here, but the questions are the same, and they can be counted.
#
# {{exercise count_host_syncs}}

# %% exercise="count_host_syncs"
def count_host_syncs(fn: Callable[[], Any]) -> int:
    """Return how often `fn()` asks a tensor for its number, so that on a GPU the CPU would have to wait for it.

    `.item()`, `float(x)`, `int(x)`, `bool(x)`, `if x:` and `f"{x:.3f}"` each ask once: each dispatches the operator
    `aten::_local_scalar_dense`. Reading a whole tensor (`tolist()`, `cpu()`, `print(x)`) does not occur.
    Call `fn` once. The result is a plain `int`.
    """
    ### BEGIN SOLUTION
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        fn()
    counts = {row.key: row.count for row in prof.key_averages()}
    return counts.get("aten::_local_scalar_dense", 0)
    ### END SOLUTION

# %%
check(count_host_syncs)

# %% [markdown]
# Use it on two ways to keep an average over 100 steps:

# %% objective="memory.traces"
def eager_average() -> float:
    return sum(model(tokens[:, :-1], tokens[:, 1:]).item() for _ in range(100)) / 100


def patient_average() -> float:
    total = torch.zeros(())
    for _ in range(100):
        total += model(tokens[:, :-1], tokens[:, 1:]).detach()
    return (total / 100).item()


print("syncs:", passing(count_host_syncs)(eager_average), "and", passing(count_host_syncs)(patient_average))

# %% [markdown]
# > **Said here, not shown.** On a GPU, time needs care for the same reason.
# > Between two `time.perf_counter()` without a `torch.cuda.synchronize()` before each of them you time how fast Python
# > fills the queue, and every operator seems to cost the same. Warm up first, and measure many runs.
#
# ### Copies that nobody asked for
#
# Some operators copy their input when it is not contiguous, without a word.
# Their copies are operators too, so the profiler shows them:

# %% objective="memory.traces"
def copies(f: Callable, *inputs: Tensor) -> int:
    """How often something was copied during `f(*inputs)`."""
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        f(*inputs)
    return sum(row.count for row in prof.key_averages() if row.key == "aten::copy_")

# %% objective="memory.traces"
t = torch.ones(64, 64).t()
u = torch.ones(64, 64, 2)[..., 0]  # neighbors are 2 apart in both directions
suspects = {
    "t.reshape(-1)": lambda: t.reshape(-1),
    "t.contiguous()": lambda: t.contiguous(),
    "layer_norm(t)": lambda: nn.functional.layer_norm(t, (64,)),
    "softmax(t)": lambda: t.softmax(dim=-1),
    "t + t": lambda: t + t,
    "t @ t": lambda: t @ t,
    "u @ u": lambda: u @ u,
    "t.view(64, 64)": lambda: t.view(64, 64),
}
print({name: copies(f) for name, f in suspects.items()})

# %% [markdown]
# A product of transposes needs no copy: the library is told to read them the other way round.
# A product of `u` does, since no reading order helps where neighbors are two apart.
#
# ## The answer
#
# > Your training step dies with *out of memory*. Which line needs the most, how much, and what do you change?
#
# Simulate the step, find the moment of its peak, and ask what is there:

# %% objective="memory.timeline"
peak = full.peak_event
print(f"{full.peak / MiB:.1f} MiB in {full.phase_at(peak)}, of it in the three largest tensors:", end=" ")
print(f"{sum(a.nbytes for a in full.alive_at(peak)[:3]) / full.peak:.0%}")
print("what they are:", [a.op.removeprefix("aten.").split(".")[0] for a in full.alive_at(peak)[:3]])

# %% [markdown]
# The loss, 70 percent of it: so neither checkpointing nor another attention would have saved that run.
# Smaller micro-batches would, or a loss that works through the tokens in pieces.
# And had the three largest been inside the blocks, checkpointing would be the answer. That is why one looks first.
#
# ## Recap
#
# - A trained parameter takes 16 bytes in float32 with AdamW (rule 1), under autocast too.
# - Autograd keeps what derivatives need: inputs or outputs, each storage once. What holds a graph holds all of it.
# - The activations of a GPT can be counted on paper, to the byte.
# - Fake tensors have sizes and no memory: the peak of a step that fits nowhere, in a second. Say that it is simulated.
# - The peak is a moment, not a line in a summary. For a large vocabulary it is the loss.
# - Checkpointing saves the inside of blocks, accumulation a part of everything that grows with the batch, bfloat16 some activations.
# - With a schedule the profiler needs `prof.step()`. Rank by self time. A trace is a list that you can read.
# - `if`, `float()` and f-strings wait like `.item()`. Copies show as `aten::copy_`.

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] say what a model takes before its first batch, for three optimizers? (`training_bytes`, [section 1](#1-Before-the-first-batch))
# - [ ] tell GB from GiB, and both from MiB divided by a thousand? ([section 1](#1-Before-the-first-batch))
# - [ ] find out what autograd keeps of a forward pass? (`saved_activation_bytes`, [section 2](#2-What-the-forward-pass-leaves-behind))
# - [ ] count the activations of a GPT on paper? (`gpt_activation_bytes`, [section 2](#2-What-the-forward-pass-leaves-behind))
# - [ ] say why a validation loop eats more with every batch? ([section 2](#2-What-the-forward-pass-leaves-behind))
# - [ ] write a tracker, and name what it does not see of a GPU? (`PeakTracker`, [section 3](#3-A-GPU-that-is-not-there))
# - [ ] name the stage of a surge from a list of events? (`peak_stage`, [section 3](#3-A-GPU-that-is-not-there))
# - [ ] weigh a model that fits nowhere? (`fake_peak`, [section 3](#3-A-GPU-that-is-not-there))
# - [ ] checkpoint each block so that gradients stay the same? (`forward_checkpointed`, [section 4](#4-What-helps))
# - [ ] say which remedy helps when the loss is the peak, and which when the blocks are? ([section 4](#4-What-helps))
# - [ ] record exactly the steps that you mean? (`profile_window`, [section 6](#6-Where-the-time-goes))
# - [ ] find the hottest operator, and say why not by total time? (`hottest_op`, [section 6](#6-Where-the-time-goes))
# - [ ] compute self times from a trace? (`self_times`, [section 7](#7-A-trace-is-data))
# - [ ] find the lines that make a CPU wait, and the copies that nobody asked for? (`count_host_syncs`, [section 8](#8-Waits-and-copies))

# %% tags=["nbval-ignore-output"]
progress()
