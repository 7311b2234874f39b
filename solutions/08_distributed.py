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
# # Distributed: several processes, one model
#
# > Your script trains on one GPU. Somebody lends you eight.
# > **What do you change, what moves between the eight, and how do you know that they still train *one* model?**
#
# Most scripts for many GPUs run at once, and are wrong without an error: every process trains a model of its own,
# or all of them read the same data, or the reported accuracy depends on how many there are.
# You will see each of these, with two real processes on this machine, and count what they send.
#
# **Time:** about 4 hours: one and a half to read and predict, the rest for the exercises.
# It splits well after section 3 and after section 5.
#
# **You need:** notebooks 04 (samplers), 05 (the training template) and 06 (what Adam keeps).
# No GPU and no network are needed. What holds for GPUs only is marked as *not shown here*.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# | term | in code | meaning |
# |---|---|---|
# | rank | `dist.get_rank()` | a process of the group, and its number: 0, 1, ... |
# | world size | `dist.get_world_size()` | how many ranks there are |
# | backend | `"gloo"`, `"nccl"` | who moves the numbers: gloo between CPUs, nccl between NVIDIA GPUs |
# | collective | `dist.all_reduce(x)` | a call that all ranks make, and that moves numbers between them |
# | replica | `DistributedDataParallel(model)` | one rank's copy of the model; all replicas have equal numbers |
# | shard | `DistributedSampler`, `fully_shard` | one rank's part: of the data, or of the model |
# | DDP | | replicas of the model, shards of the data |
# | FSDP, ZeRO | | shards of the model as well |
# | launcher | `launch`, `torchrun` | the program that starts the ranks |

# %%
import contextlib
import copy
import inspect
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.display import show_collective, show_shards
from course_lib.ranks import RanksFailed, launch
from course_lib.reference.training import Trainer

_ = torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## 1 Several processes
#
# How we would like to write it: a function, and a number of processes that run it.
#
# {{predict both_print}}

# %%
predict("both_print", "b")

# %% objective="distributed.ranks"
def own_sum():
    x = torch.tensor([dist.get_rank() + 1.0])
    x += x
    print(x.item())


# %% objective="distributed.ranks"
launch(own_sum, ranks=2)

# %% [markdown]
# `launch` belongs to this course. It starts the ranks, connects them (gloo, over this machine's loopback), waits,
# and shows what each printed and how it ended.
# Each rank is a process with a memory of its own. They run the same lines; only `dist.get_rank()` differs.
#
# What they return comes back to the notebook, in order of rank:

# %% objective="distributed.ranks"
def who():
    return dist.get_rank(), dist.get_world_size(), dist.get_backend(), os.environ["LOCAL_RANK"]


launch(who, ranks=3).results

# %% [markdown]
# `RANK`, `LOCAL_RANK` and `WORLD_SIZE` are environment variables, set as `torchrun` sets them.
# `LOCAL_RANK` counts on each machine anew: it says which of its GPUs a process takes.
#
# > "Why processes? Python has threads."
#
# One process per GPU has an interpreter of its own, so none waits for another's.
# And it may stand on another machine: nothing in the program changes then.
#
# What if a rank goes missing?
#
# {{predict missing_rank}}

# %%
predict("missing_rank", "c")

# %% objective="distributed.ranks"
def one_leaves():
    if dist.get_rank() == 1:
        return
    dist.all_reduce(torch.ones(2))


launch(one_leaves)

# %% [markdown]
# Rank 0 would wait to this day.
# Our launcher keeps a journal of the calls of each rank, so it sees that nobody will come, and ends both.
# A real job shows nothing: the log stands still, until a timeout ends it. By default that takes a while:

# %% objective="distributed.ranks"
print("gloo gives up after", dist.constants.default_pg_timeout)

# %% [markdown]
# A rank that raises leaves the others in the same place:

# %% objective="distributed.ranks"
def one_raises():
    if dist.get_rank() == 1:
        raise ValueError("a broken sample")
    dist.barrier()


broken = launch(one_raises)
broken

# %% [markdown]
# So the first thing to look for in a job that hangs is not the rank that waits. It is the one that doesn't.
#
# **Rule 1.** Every rank makes the same collective calls, in the same order.
#
# Asking for the results of a launch that failed is an error, which tells the same story:

# %% objective="distributed.ranks" tags=["raises-exception"]
broken.results

# %% [markdown]
# A process can also die: out of memory, or somebody's `kill`. Then the connection breaks, and the others notice.

# %% objective="distributed.ranks"
def one_dies():
    if dist.get_rank() == 1:
        os._exit(9)
    dist.barrier()


print("\n".join(f"rank {r.rank} {r.end}" for r in launch(one_dies).ranks))

# %% [markdown]
# ## 2 Collectives
#
# A collective is a call that all ranks make together. There are few of them, and it pays to see each one once.
# Two ranks hold a row of our tiny batch each, `torch.arange(24).reshape(2, 3, 4)` as floats:

# %%
batch = torch.arange(24.0).reshape(2, 3, 4)  # (batch, seq, dim)


def own_row() -> Tensor:
    return batch[dist.get_rank(), 0].clone()  # (dim,)


# %% objective="distributed.collectives"
def all_reduced():
    x = own_row()
    dist.all_reduce(x)
    return x


rows = launch(own_row).results
show_collective("all_reduce", rows, launch(all_reduced).results)

# %% [markdown]
# `all_reduce` adds up, in place, and gives the sum to everybody.
# `broadcast` gives everybody what one rank has:

# %% objective="distributed.collectives"
def broadcasted():
    x = own_row()
    dist.broadcast(x, src=1)
    return x


show_collective("broadcast from rank 1", rows, launch(broadcasted).results)

# %% [markdown]
# `all_gather` gives everybody everything, side by side. Nothing is computed, but the result is larger:

# %% objective="distributed.collectives"
def gathered():
    parts = [torch.empty(4) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own_row())
    return torch.cat(parts)


show_collective("all_gather", rows, launch(gathered).results)

# %% [markdown]
# `reduce_scatter` adds up, and each rank keeps one part of the sum:

# %% objective="distributed.collectives"
def reduce_scattered():
    part = torch.empty(2)
    dist.reduce_scatter(part, list(own_row().chunk(2)))
    return part


show_collective("reduce_scatter", rows, launch(reduce_scattered).results)

# %% [markdown]
# Look at the last two pictures together: a reduce-scatter followed by an all-gather is an all-reduce.
# Remember that. In section 7 it is what makes sharding affordable.
#
# > **Classic mistake: taking `reduce` for `all_reduce`.**
# > `dist.reduce(x, dst=0)` brings the sum to rank 0 only. There is no error in the other ranks. They go on with
# > something else.

# %% objective="distributed.collectives"
def reduced():
    x = own_row()
    dist.reduce(x, dst=0)
    return x


print("rank 0 has the sum:", torch.equal(launch(reduced).results[0], rows[0] + rows[1]))

# %% [markdown]
# What the other ranks find in `x` after a `reduce` is nobody's promise.
#
# What a collective adds up is up to you. A mean over ranks that hold different amounts takes a thought:
#
# {{exercise global_mean}}

# %% exercise="global_mean"
def global_mean(values: Tensor) -> float:
    """Return the mean over all values of all ranks, as a plain `float`: the same number in every rank.

    `values` is a float32 tensor of shape (n,), and n may differ from rank to rank.
    A rank may have none at all; at least one rank has some.
    Every value counts the same, whichever rank holds it.
    """
    ### BEGIN SOLUTION
    total = torch.stack([values.sum(), torch.tensor(float(len(values)))])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
    ### END SOLUTION

# %%
check(global_mean)

# %% objective="distributed.collectives"
mean_over_ranks = passing(global_mean)


def uneven_mean():
    return mean_over_ranks(batch.flatten()[: 5 if dist.get_rank() else 24])


print(launch(uneven_mean).results, "mean of the means:", (11.5 + 2.0) / 2)

# %% [markdown]
# ### An all-reduce out of sends
#
# Who does the adding? Could rank 0 collect all, add, and send the sum back?
# It could, and with eight ranks everything would pass through its one wire. A ring does better:
# each rank talks to its two neighbors only, and all wires are busy all the time.

# %% objective="distributed.collectives"
def pass_it_on():
    me, world = dist.get_rank(), dist.get_world_size()
    left, right = (me - 1) % world, (me + 1) % world
    arrived = torch.empty(1)
    work = dist.isend(torch.tensor([10.0 * me]), right)
    dist.recv(arrived, left)
    work.wait()
    return arrived.item()


launch(pass_it_on, ranks=3).results

# %% [markdown]
# `isend` starts to send and returns at once. What if everybody uses the plain `send`?

# %% objective="distributed.collectives"
def all_send_first():
    other = 1 - dist.get_rank()
    dist.send(torch.ones(1), other)
    dist.recv(torch.empty(1), other)


launch(all_send_first)

# %% [markdown]
# Both stand in `send` and wait for a receiver.
#
# {{exercise ring_all_reduce_}}

# %% exercise="ring_all_reduce_"
def ring_all_reduce_(x: Tensor) -> Tensor:
    """Replace `x`, in place, by the sum of the `x` of all ranks, and return it. Only sends and receives are used.

    `x` has shape (n,), is contiguous, and n is the same in every rank. There are two or more ranks.
    A rank may send at most 2 * (world - 1) * ceil(n / world) numbers: that is what a ring needs.
    Cut `x` into one chunk for each rank. In world - 1 steps every rank sends a chunk to the rank on its right
    and adds what comes from the left to its own chunk; then one chunk is complete in each rank.
    In world - 1 more steps the complete chunks go round in the same way and replace what is there.
    The calls that may move numbers are `dist.send`, `recv`, `isend`, `irecv` and `batch_isend_irecv`.
    """
    ### BEGIN SOLUTION
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world)
    for step in range(2 * (world - 1)):
        outgoing, incoming = chunks[(rank - step) % world], chunks[(rank - step - 1) % world]
        received = torch.empty_like(incoming)
        sending = dist.isend(outgoing, (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        is_adding = step < world - 1
        incoming.copy_(incoming + received if is_adding else received)
    return x
    ### END SOLUTION

# %%
check(ring_all_reduce_)

# %% [markdown]
# The journal of a launch holds the calls of each rank, with the numbers that it handed in.
# So you can count what your ring sends, and compare it with passing everything through rank 0:

# %% objective="distributed.collectives"
my_ring = passing(ring_all_reduce_)


def ring_of_a_thousand():
    return my_ring(torch.ones(1000)).sum().item()


for world in (2, 4):
    calls = launch(ring_of_a_thousand, ranks=world).ranks[0].collectives
    sent = sum(call.numel for call in calls if call.name == "send")
    print(f"{world} ranks: each sends {sent} numbers; by way of rank 0 it would send {1000 * (world - 1)}")

# %% [markdown]
# However many ranks there are, a ring sends less than twice the data.
# (The real ones are in NCCL and gloo; they also build trees, and overlap the steps.)
#
# ## 3 Replicas
#
# Data parallel training is one idea: every rank has a copy of the model and a share of the batch,
# and before each step the gradients are averaged.
# It works as long as two things hold: **the replicas start equal, and they take equal steps.**
#
# {{predict unequal_seeds}}

# %%
predict("unequal_seeds", "b")

# %% objective="distributed.ddp"
def wrapped():
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 2)
    before = model.bias.tolist()
    ddp = DistributedDataParallel(model)
    print([round(b, 3) for b in before], "->", [round(b, 3) for b in ddp.module.bias.tolist()])


outcome = launch(wrapped)
outcome

# %% objective="distributed.ddp"
def calls_of(outcome, rank: int = 0) -> list[str]:
    """The collectives of one rank, with the numbers that it handed in."""
    return [f"{call.name}({call.numel})" for call in outcome.ranks[rank].collectives]


calls_of(outcome)

# %% [markdown]
# So the constructor of `DistributedDataParallel` communicates.
# First the ranks compare the shapes of their parameters, then rank 0 sends its numbers: 10 of them, in one message.
# (The message before holds the shapes.)
#
# Now without DDP:
#
# {{exercise broadcast_parameters}}

# %% exercise="broadcast_parameters"
def broadcast_parameters(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, in place.

    The models of all ranks have the same structure and different numbers.
    The parameters stay the same objects, so that an optimizer that has them goes on working.
    Rank 0 keeps its numbers. Nothing else of the model changes.
    """
    ### BEGIN SOLUTION
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    ### END SOLUTION

# %%
check(broadcast_parameters)

# %% [markdown]
# > **Classic mistake: loading the checkpoint after wrapping, in rank 0 only.**
# > The broadcast happens once, in the constructor. What you change later in one rank stays in that rank.

# %% objective="distributed.ddp"
def load_on_rank_zero(when: str) -> float:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(1, 1, bias=False)
    if when == "before wrapping" and dist.get_rank() == 0:
        nn.init.constant_(model.weight, 7.0)
    ddp = DistributedDataParallel(model)
    if when == "after wrapping" and dist.get_rank() == 0:
        nn.init.constant_(model.weight, 7.0)
    ddp(torch.ones(1, 1)).sum().backward()
    return round(model.weight.item() - 0.1 * model.weight.grad.item(), 3)


# %% objective="distributed.ddp"
for when in ("before wrapping", "after wrapping"):
    print(when, launch(load_on_rank_zero, when).results)

# %% [markdown]
# The gradients agree in both cases. But equal steps from different places lead to different places.
#
# ### Equal steps
#
# The same loss over the same samples, once in one process and once in two:

# %% objective="distributed.ddp"
x, y = batch / 24, batch.mean(dim=-1, keepdim=True) / 24  # (batch, seq, dim), (batch, seq, 1)


def three_steps(model: nn.Module, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        opt.zero_grad()
        (F.mse_loss(model(x), y) * scale).backward()
        opt.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# %% objective="distributed.ddp"
def replica(scale: float = 1.0) -> Tensor:
    rank = dist.get_rank()
    torch.manual_seed(rank)  # a seed of its own in each rank
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    return three_steps(ddp, x[rank : rank + 1], y[rank : rank + 1], scale)


torch.manual_seed(0)
alone = three_steps(nn.Linear(4, 1), x, y)
first, second = launch(replica).results

# %% objective="distributed.ddp"
print("both ranks equal, bit for bit:", torch.equal(first, second))
print("equal to one process:", torch.allclose(first, alone, atol=1e-6))

# %% [markdown]
# **Rule 2.** With equal shares and a mean loss, DDP takes the step that one process would take with the whole batch.
#
# The mean is already in it. A factor of your own, "to make up for the ranks", is a learning rate in disguise:

# %% objective="distributed.ddp"
for scale in (2.0, 0.5):
    off = launch(replica, scale).results[0]
    print(f"loss * {scale}: equal to one process:", torch.allclose(off, alone, atol=1e-6))

# %% [markdown]
# A factor is right in one case only: when each rank's loss is a *sum* over its samples divided by the number of
# samples in all ranks. Then the mean over ranks divides once too often, and `* world_size` takes that back
# (section 4 shows it).
#
# Write the averaging yourself, once:
#
# {{exercise average_gradients}}

# %% exercise="average_gradients"
def average_gradients(model: nn.Module) -> None:
    """Replace the gradient of each parameter by its mean over all ranks, in place.

    Every rank has the same model and has run its own backward pass. A parameter that was not used in a rank has
    no gradient there (None), which counts as zeros; afterwards it has the mean, as in the other ranks.
    A parameter that no rank used gets zeros. All parameters require gradients.
    The parameters themselves do not change. There may be any number of ranks.
    """
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    ### END SOLUTION

# %%
check(average_gradients)

# %% [markdown]
# With it and `broadcast_parameters` you have DDP by hand:

# %% objective="distributed.ddp"
start_alike, average = passing(broadcast_parameters), passing(average_gradients)


def by_hand() -> Tensor:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Linear(4, 1)
    start_alike(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        opt.zero_grad()
        F.mse_loss(model(x[rank : rank + 1]), y[rank : rank + 1]).backward()
        average(model)
        opt.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# %% objective="distributed.ddp"
torch.allclose(launch(by_hand).results[1], alone, atol=1e-6)

# %% [markdown]
# What does the real one do better? It does not wait for the end of backward.
# Gradients are collected in *buckets*, and a bucket leaves as soon as it is full, while backward goes on.
# That hides much of the sending. (How much, only a machine with GPUs can show; *not shown here*.)
# Four layers of 10,000 numbers, with buckets of two sizes:

# %% objective="distributed.communication"
def in_buckets(megabytes: float) -> None:
    layers = [nn.Linear(100, 100, bias=False) for _ in range(4)]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=megabytes)
    for _ in range(2):
        ddp(torch.ones(1, 100)).sum().backward()


for megabytes in (25, 0.05):
    calls = launch(in_buckets, megabytes).ranks[0].collectives
    print(megabytes, "MB:", [call.numel for call in calls if call.name == "all_reduce"])

# %% [markdown]
# 25 MB is the default, and all gradients fit into one bucket.
# With small buckets the second step needs two messages. (In the first step DDP learns in which order gradients come;
# then it forms the buckets.)
#
# ### Where DDP does not look
#
# DDP prepares for sending in its own `forward`. Whoever goes past it, trains alone:

# %% objective="distributed.ddp"
def gradient(way: str) -> float:
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model = ddp.module if way == "ddp.module(x)" else ddp
    model(torch.full((1, 1), dist.get_rank() + 1.0)).sum().backward()
    return ddp.module.weight.grad.item()


for way in ("ddp(x)", "ddp.module(x)"):
    print(way, launch(gradient, way).results)

# %% [markdown]
# > **Classic mistake: a helper method.**
# > `ddp.module.generate(...)` is fine for sampling. `ddp.module.training_loss(x).backward()` is not: nothing is sent,
# > nothing fails, and only rank 0's model is saved. Route everything that trains through `forward`.
#
# A layer that a step does not use is another story.
#
# {{predict unused_parameter}}

# %%
predict("unused_parameter", "b")

# %% objective="distributed.ddp"
class WithSpare(nn.Module):
    """(batch, 4) -> (batch, 1); the spare layer is never used."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


# %% objective="distributed.ddp"
def train_with_spare(**options: bool) -> str:
    ddp = DistributedDataParallel(WithSpare(), **options)
    try:
        for _ in range(3):
            ddp(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        return str(error).split(".")[0]
    return "trains"


launch(train_with_spare).results[0]

# %% [markdown]
# There are three ways out. Two are options; the third is to freeze what is not trained, *before* wrapping:

# %% objective="distributed.ddp"
def find_unused():
    return train_with_spare(find_unused_parameters=True)


def static_graph():
    return train_with_spare(static_graph=True)


# %% objective="distributed.ddp"
def frozen_before():
    model = WithSpare()
    model.spare.requires_grad_(False)
    ddp = DistributedDataParallel(model)
    for _ in range(3):
        ddp(torch.ones(2, 4)).sum().backward()
    return "trains"


# %% objective="distributed.ddp"
for choice in (find_unused, static_graph, frozen_before):
    outcome = launch(choice)
    sent = [call.numel for call in outcome.ranks[0].collectives if call.name == "all_reduce"]
    print(f"{choice.__name__:14}", outcome.results[0], " all-reduces:", sent)

# %% [markdown]
# `find_unused_parameters` walks the graph in every step, and tells the other ranks which layers it did not use:
# a second all-reduce each time. `static_graph` promises that all steps look like the first, and finds out once;
# it sends the zeros of the spare layer, though. Freezing sends the 5 numbers that are trained.
#
# A tied weight is one parameter, so DDP reduces it once, and it stays tied:

# %% objective="distributed.ddp"
class Tied(nn.Module):
    """(batch, 4) -> (batch, 4), with one weight for both layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


# %% objective="distributed.ddp"
def train_tied():
    ddp = DistributedDataParallel(Tied())
    ddp(torch.ones(1, 4)).sum().backward()
    return ddp.module.first.weight is ddp.module.second.weight


outcome = launch(train_tied)
print("still tied:", outcome.results, calls_of(outcome)[-1])

# %% [markdown]
# ### Which device, which backend
#
# On a machine with GPUs the rank takes one of them, and says so:
#
# ```python
# device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))     # not shown here: needs GPUs
# torch.cuda.set_device(device)
# dist.init_process_group("nccl")
# ddp = DistributedDataParallel(model.to(device), device_ids=[device.index])
# ```
#
# You also read this line. It leaves open where `rank` comes from:

# %% objective="distributed.ddp" tags=["raises-exception"]
plain = nn.Linear(4, 1)
ddp = DistributedDataParallel(plain.to(rank))  # noqa: F821

# %% [markdown]
# It comes from the environment, and it is the *local* rank: on the second machine, rank 8 has no GPU number 8.
# Nor does that line divide the data (section 4), and it leaves out `device_ids`, which makes DDP move the inputs of
# `forward` to that GPU. (Without it, moving them is up to you.) On a CPU, `device_ids` is an error:

# %% objective="distributed.ddp"
def with_device_ids():
    try:
        DistributedDataParallel(nn.Linear(4, 1), device_ids=[0])
    except ValueError as error:
        return str(error).split(", but")[0]


launch(with_device_ids, ranks=1).results[0]

# %% [markdown]
# The backend for NVIDIA GPUs is not in a PyTorch that was built without them:

# %% objective="distributed.ddp" tags=["nbval-ignore-output"]
def ask_for_nccl():
    try:
        dist.new_group(backend="nccl")
    except RuntimeError as error:
        return str(error)
    return "this PyTorch has NCCL"


launch(ask_for_nccl, ranks=1).results[0]

# %% [markdown]
# `nn.DataParallel` is the older way: one process, one thread per GPU, the model copied anew in every step.
# Its documentation recommends DDP instead. Without a GPU it does nothing at all:

# %% objective="distributed.ddp"
parallel = nn.DataParallel(plain)
print("devices:", parallel.device_ids, " same result:", torch.equal(parallel(x), plain(x)))

# %% [markdown]
# ## 4 Shares of the data
#
# {{predict whole_batch}}

# %%
predict("whole_batch", "c")

# %% objective="distributed.data"
def what_it_reads(sharded: bool) -> list[list[int]]:
    dataset = torch.arange(4)
    sampler = DistributedSampler(dataset, shuffle=False) if sharded else None
    return [found.tolist() for found in DataLoader(dataset, batch_size=2, sampler=sampler)]


for sharded in (False, True):
    print("DistributedSampler:", sharded, launch(what_it_reads, sharded).results)

# %% [markdown]
# **Rule 3.** DDP averages gradients. It does not divide the data: a sampler that knows its rank does.
#
# The sampler shuffles by its seed and the epoch. The epoch it does not know, unless you tell it:

# %% objective="distributed.data"
share = DistributedSampler(range(6), num_replicas=2, rank=0, seed=0)
print("not told:", [list(share) for epoch in range(2)])
for epoch in range(2):
    share.set_epoch(epoch)
    print(f"epoch {epoch}: ", list(share))

# %% [markdown]
# > **Classic mistake: no `set_epoch`.**
# > Every epoch then comes in the order of the first. Training works, a little worse, and nobody knows why.
#
# The sampler works without any process group, given a rank and a world size. So does yours:
#
# {{exercise shard_indices}}

# %% exercise="shard_indices"
def shard_indices(n: int, rank: int, world: int, epoch: int, seed: int) -> list[int]:
    """Return the indices that this rank reads in this epoch: the same as DistributedSampler gives.

    All ranks shuffle the indices 0 to n - 1 in one common order: `torch.randperm(n)` from a generator of its own,
    seeded with `seed + epoch`. Every rank gets equally many. Where `world` does not divide `n`, the list
    is made longer by indices from its own beginning, over and over if there are fewer samples than ranks.
    Rank r reads places r, r + world, r + 2 * world, ... of it.
    The result is any iterable of plain ints. The global random state is not used.
    Iterating over a DistributedSampler is not allowed here.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    length = math.ceil(n / world) * world
    return [order[place % n] for place in range(rank, length, world)]
    ### END SOLUTION

# %%
check(shard_indices)

# %% [markdown]
# ### Shares that are not equal
#
# {{predict padded_accuracy}}

# %%
predict("padded_accuracy", "c")

# %% objective="distributed.data"
is_right = [1, 0, 0, 0, 0]
shares = [list(DistributedSampler(range(5), num_replicas=2, rank=r, shuffle=False)) for r in range(2)]
counted = [is_right[i] for share in shares for i in share]
print(shares, "accuracy:", f"{sum(counted)} / {len(counted)}")

# %% [markdown]
# Sample 0 is read by both, to make the shares equal. For training that is harmless; a metric is wrong.
# For an evaluation give each rank `range(rank, n, world)` and add up counts, as in `global_mean`:

# %% objective="distributed.data"
def exact_accuracy():
    own = [is_right[i] for i in range(dist.get_rank(), 5, dist.get_world_size())]
    return round(mean_over_ranks(torch.tensor(own, dtype=torch.float32)), 3)


launch(exact_accuracy).results

# %% [markdown]
# This works because no collective is called *per batch*: the model is used without DDP's forward.
# Training is different. If one rank has a batch more, it waits:

# %% objective="distributed.data"
def uneven_training(join: bool) -> int:
    ddp, steps = DistributedDataParallel(nn.Linear(1, 1)), 0
    with Join([ddp]) if join else nullcontext():
        for _ in range(3 - dist.get_rank()):  # rank 0 has one batch more
            ddp(torch.ones(1, 1)).sum().backward()
            steps += 1
    return steps


launch(uneven_training, False)

# %% objective="distributed.data"
launch(uneven_training, True).results

# %% [markdown]
# Under `Join` a rank that is done goes on to answer the collectives of the others.
# It costs a question before every step ("who is still there?"). Equal shares cost nothing, which is why the
# sampler pads.
#
# And if the *batches* differ in size? DDP gives each rank the same weight, whatever its batch holds:

# %% objective="distributed.data"
def uneven_batches(weighted: bool) -> Tensor:
    own = torch.tensor([[1.0], [2.0], [3.0]]) if dist.get_rank() else torch.tensor([[10.0]])
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(ddp.module.weight)
    factor = len(own) * dist.get_world_size() / 4 if weighted else 1.0  # 4 samples in all
    ((ddp(own) - 1).pow(2).mean() * factor).backward()
    return round(ddp.module.weight.grad.item(), 3)


# %% objective="distributed.data"
samples, w = torch.tensor([[10.0], [1.0], [2.0], [3.0]]), torch.zeros(1, 1, requires_grad=True)
(samples @ w - 1).pow(2).mean().backward()
print("one process:", w.grad.item())
print("two ranks:  ", launch(uneven_batches, False).results[0])
print("weighted:   ", launch(uneven_batches, True).results[0])

# %% [markdown]
# The mean of means again. A weight of `n * world / total` per rank repairs it.
#
# ## 5 What it costs to talk
#
# Every message takes time in which nobody computes. So count them.
#
# {{predict how_many_sends}}

# %%
predict("how_many_sends", "b")

# %% objective="distributed.communication"
def four_microbatches(quiet: bool) -> None:
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    for i, part in enumerate(x.flatten(0, 1)[:4].split(1)):
        with ddp.no_sync() if quiet and i < 3 else nullcontext():
            ddp(part).mean().backward()


for quiet in (False, True):
    calls = Counter(call.name for call in launch(four_microbatches, quiet).ranks[0].collectives)
    print("no_sync:", quiet, " all-reduces:", calls["all_reduce"])

# %% [markdown]
# Inside `no_sync` gradients add up at home. The first backward outside of it sends the sum.
#
# > **Classic mistake: `no_sync` around the backward only.**
# > Whether a backward pass will send is decided in the *forward* pass before it.

# %% objective="distributed.communication"
def only_backward_is_quiet() -> None:
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    loss = ddp(x).mean()
    with ddp.no_sync():
        loss.backward()


calls_of(launch(only_backward_is_quiet))[-1]

# %% [markdown]
# It was sent all the same.
#
# {{exercise ddp_accumulate}}

# %% exercise="ddp_accumulate"
def ddp_accumulate(ddp: DistributedDataParallel, microbatches: list[Tensor], opt: Optimizer) -> None:
    """Make one update of `opt` from all micro-batches of all ranks, with a single all-reduce.

    `microbatches` is a list of tensors (batch, dim), all of the same size; every rank has as many.
    The loss of a micro-batch is `ddp(x).pow(2).mean()`. Each is run through `ddp` once, on its own, in order.
    The update follows the gradient of the mean loss over all micro-batches of all ranks.
    What `.grad` held before does not count; you may clear it before or after.
    `ddp` has one bucket of gradients, so that a backward pass that synchronizes makes one all-reduce.
    """
    ### BEGIN SOLUTION
    opt.zero_grad()
    for position, x in enumerate(microbatches, start=1):
        is_last = position == len(microbatches)
        with nullcontext() if is_last else ddp.no_sync():
            loss = ddp(x).pow(2).mean() / len(microbatches)
            loss.backward()
    opt.step()
    ### END SOLUTION

# %%
check(ddp_accumulate)

# %% [markdown]
# ### A larger batch and its learning rate
#
# Eight ranks mean eight times as many samples per step. A common rule makes the step eight times as long.
# Does one long step lead to the same place as eight short ones?

# %% objective="distributed.communication"
def descend(lr: float, steps: int) -> float:
    """Gradient descent on a mean of squares; the loss at the end."""
    w, target = torch.zeros(4, 1, requires_grad=True), x.flatten(0, 1) @ torch.ones(4, 1)
    opt = torch.optim.SGD([w], lr=lr)
    for _ in range(steps):
        opt.zero_grad()
        (x.flatten(0, 1) @ w - target).pow(2).mean().backward()
        opt.step()
    return round((x.flatten(0, 1) @ w - target).pow(2).mean().item(), 4)


# %% objective="distributed.communication"
print("small: 8 steps of 0.001:", descend(0.001, 8), "  1 step of 0.008:", descend(0.008, 1))
print("large: 80 steps of 0.2: ", descend(0.2, 80), "  10 steps of 1.6: ", f"{descend(1.6, 10):.1e}")

# %% [markdown]
# As long as the steps are small, they add up. A learning rate that was near its limit diverges.
# So the linear rule is a rule of thumb, with a warm-up before it. For Adam the square root is often taken.
#
# {{exercise scaled_lr}}

# %% exercise="scaled_lr"
def scaled_lr(base: float, per_gpu: int, world: int, accum: int, ref_batch: int, rule: str) -> float:
    """Return the learning rate for a larger (or smaller) batch than the one that `base` was found with.

    `base` was found with `ref_batch` samples per update. Now each of `world` ranks handles `accum` micro-batches of
    `per_gpu` samples per update.
    With the rule "linear" the learning rate grows as the samples per update, with "sqrt" as their square root.
    """
    ### BEGIN SOLUTION
    ratio = per_gpu * world * accum / ref_batch
    return base * ratio if rule == "linear" else base * math.sqrt(ratio)
    ### END SOLUTION

# %%
check(scaled_lr)

# %% [markdown]
# ## 6 Your template, on many ranks
#
# The `Trainer` of notebook 05 asks for batches with `make_batches(step)`, and saves with `save(path)`.
# Both need a rank. (It stands here as the course wrote it; your own works in the same place.)
#
# {{exercise distributed_batches}}

# %% exercise="distributed_batches"
def distributed_batches(dataset: Dataset, batch_size: int, seed: int, start: int) -> Iterator[Any]:
    """Yield the batches of this rank from step `start` on, epoch after epoch without end.

    The indices of an epoch are those of a `DistributedSampler` with this `seed` (and otherwise its defaults) that
    was told the number of the epoch, counted from 0. `batch_size` is that of one rank. The last batch of an epoch
    may be smaller. Batches are made as a `DataLoader` makes them, without worker processes.
    A run that begins at `start` yields what a run from 0 yields after `start` batches; `start` may be several
    epochs away. The call itself draws nothing from the global random state.
    """
    ### BEGIN SOLUTION
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    first_epoch, skipped = divmod(start, len(loader))
    for epoch in count(first_epoch):
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None)
        skipped = 0
    ### END SOLUTION

# %%
check(distributed_batches)

# %% [markdown]
# And the file is written once:
#
# {{exercise save_replica}}

# %% exercise="save_replica"
def save_replica(path: str, ddp: DistributedDataParallel) -> None:
    """Write the weights of the model inside `ddp` to the file `path` in rank 0, and in no other rank.

    The file holds the state dict of the model that was wrapped, under its own names: without "module.".
    `torch.load(path, weights_only=True)` reads it.
    Every rank calls this function. None returns before the file is complete, so that each may read it.
    """
    ### BEGIN SOLUTION
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    dist.barrier()
    ### END SOLUTION

# %%
check(save_replica)

# %% [markdown]
# In the template it is three methods. What is saved has the plain names, so that one process can go on with it:

# %% objective="distributed.template"
class DistributedTrainer(Trainer):
    """The Trainer of notebook 05 around a DDP model. Its checkpoints fit any number of ranks."""

    def save(self, path: str) -> None:
        if dist.get_rank() == 0:
            super().save(path)
        dist.barrier()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "model": self.model.module.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.module.load_state_dict(state["model"])
        super().load_state_dict({**state, "model": self.model.state_dict()})


# %% [markdown]
# The rest of the script is yours, with three changes: the group, the wrapper, the batches.

# %% objective="distributed.template"
points = torch.linspace(-3, 3, 30).reshape(30, 1)
train_set = TensorDataset(points, points.sin())
make_batches = passing(distributed_batches)


def make_trainer(kind: type, wrap) -> Trainer:
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0)
    return kind(model, F.mse_loss, opt, sched, torch.amp.GradScaler("cpu", enabled=False))


# %% objective="distributed.template"
def train_in_ranks(path: str, n_steps: int) -> Tensor:
    trainer = make_trainer(DistributedTrainer, DistributedDataParallel)
    batches = lambda step: make_batches(train_set, 5, 0, step)  # noqa: E731
    trainer.fit(batches, n_steps, path, save_every=10, progress=False)
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


folder = tempfile.TemporaryDirectory()
whole = launch(train_in_ranks, f"{folder.name}/whole.pt", 20).results

# %% [markdown]
# Is it the same model as one process would train, with batches of ten? Here are these batches, put together from the
# shares of both ranks:

# %% objective="distributed.template"
shares_of = passing(shard_indices)


def joint_batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    for number in count(step):
        epoch, place = divmod(number, 3)  # 30 samples, 2 ranks of 5: 3 steps per epoch
        own = [list(shares_of(30, rank, 2, epoch, 0))[5 * place : 5 * place + 5] for rank in range(2)]
        yield train_set[own[0] + own[1]]


# %% objective="distributed.template"
trainer = make_trainer(Trainer, lambda model: model)
_ = trainer.fit(joint_batches, 20, f"{folder.name}/alone.pt", save_every=20, progress=False)
alone = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
print("both ranks equal:", torch.equal(*whole), "  equal to one process:", torch.allclose(whole[0], alone, atol=1e-5))

# %% [markdown]
# Now a run that is stopped after 10 steps. Two new processes go on from its file:

# %% objective="distributed.template"
_ = launch(train_in_ranks, f"{folder.name}/part.pt", 10).results
resumed = launch(train_in_ranks, f"{folder.name}/part.pt", 20).results
print("bit for bit the same:", torch.equal(resumed[0], whole[0]))

# %% objective="distributed.template"
saved = torch.load(f"{folder.name}/part.pt", weights_only=True)
print(saved["step"], list(saved["model"]), sorted(os.listdir(folder.name)))

# %% [markdown]
# A wart: the file holds the random state of rank 0, and all ranks get it when they resume.
# With dropout they would then drop the same units. Who minds, saves one state per rank.
#
# ### The same on a real launcher
#
# `launch` is for notebooks. A job is started by `torchrun`, which comes with PyTorch.
# It starts the script once per rank, and sets the variables that `init_process_group` reads:

# %% objective="distributed.template"
script = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(dist.get_rank())
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
ddp = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
ddp(torch.full((2, 4), dist.get_rank() + 1.0, device=device)).sum().backward()
if dist.get_rank() == 0:
    print(dist.get_world_size(), "ranks, gradient", ddp.module.weight.grad.tolist())
dist.destroy_process_group()
"""

# %% objective="distributed.template"
path = Path(folder.name, "train.py")
_ = path.write_text(script)
command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(path)]
done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
print("".join(line for line in done.stdout.splitlines(True) if "gradient" in line))

# %% [markdown]
# `python -m torch.distributed.run` is `torchrun` under its full name; `--standalone` means: one machine, any free port.
# The gradient is 2 × (1 + 2) / 2 = 3 in each place: the mean over both ranks.
#
# On many machines you run one command on each, and the script stays as it is (*not shown here*: it takes machines):
#
# ```
# torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_id=job1 --rdzv_endpoint=first-machine:29500 train.py
# ```
#
# 16 ranks then; `LOCAL_RANK` counts from 0 to 7 on both, `RANK` from 0 to 15.
# A file that rank 0 writes is on the first machine's disk. If the others read it, the disk must be a shared one.
#
# ## 7 When one GPU is too small
#
# DDP makes training faster, not smaller: each rank holds everything.
# Notebook 06 counted 16 bytes per parameter, and half precision does not change that:

# %% objective="distributed.memory"
print("float32:", {"parameters": 4, "gradients": 4, "two moments": 8}, "=", 4 + 4 + 8)
print("mixed:  ", {"parameters": 2, "gradients": 2, "two moments": 8, "master copy": 4}, "=", 2 + 2 + 8 + 4)

# %% [markdown]
# ZeRO's idea: why should every rank keep *all* of that? Each number needs one owner.
#
# {{predict zero_three}}

# %%
predict("zero_three", "b")

# %% objective="distributed.memory"
for stage, (whole_bytes, shared_bytes) in enumerate([(16, 0), (4, 12), (2, 14), (0, 16)]):
    print(f"stage {stage}: {7 * (whole_bytes + shared_bytes / 64):6.2f} GB")

# %% [markdown]
# {{exercise zero_memory}}

# %% exercise="zero_memory"
def zero_memory(P: int, world: int, stage: int, mixed: bool) -> float:
    """Return the bytes that each of `world` GPUs holds for a model of `P` parameters, trained with Adam.

    Without `mixed` all numbers are float32: parameters, gradients and the two moments of Adam.
    With `mixed`, parameters and gradients have 2 bytes each, and the optimizer keeps the two moments and a master
    copy of the parameters in float32.
    Stage 0 shards nothing. Stage 1 shards the optimizer's state (the master copy is part of it), stage 2 the
    gradients as well, stage 3 also the parameters. What is sharded is split evenly; padding is not counted.
    Activations and buffers are not counted. The result may be off by up to 1 byte.
    """
    ### BEGIN SOLUTION
    parameters, gradients, state = (2 * P, 2 * P, 12 * P) if mixed else (4 * P, 4 * P, 8 * P)
    return (
        (parameters / world if stage >= 3 else parameters)
        + (gradients / world if stage >= 2 else gradients)
        + (state / world if stage >= 1 else state)
    )
    ### END SOLUTION

# %%
check(zero_memory)

# %% [markdown]
# ### FSDP: the shards at work
#
# PyTorch's stage 3 is `fully_shard`, called FSDP2. (`FullyShardedDataParallel` is its older form.)
# Two real ranks: what does each hold, and when?

# %% objective="distributed.memory"
def sharded_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


# %% objective="distributed.memory"
def held_by(model: nn.Module) -> dict[str, tuple[int, int]]:
    """(elements held here, elements in all) for each layer that has parameters."""
    found = {}
    for name, layer in model.named_children():
        own = [p.to_local() if isinstance(p, DTensor) else p for p in layer.parameters()]
        if own:
            found[f"layer {name}"] = (sum(p.numel() for p in own), sum(p.numel() for p in layer.parameters()))
    return found


# %% [markdown]
# We look before the step, at the beginning of each layer's forward pass, and after each pass:

# %% objective="distributed.memory"
def watch_a_step():
    model = sharded_model()
    moments = {"at rest": held_by(model)}
    for name in ("0", "2"):
        layer, key = model.get_submodule(name), f"forward of layer {name}"
        layer.register_forward_pre_hook(lambda *_, key=key: moments.update({key: held_by(model)}))
    loss = model(torch.ones(3, 8)).sum()
    moments["after the forward"] = held_by(model)
    loss.backward()
    moments["after the backward"] = held_by(model)
    return moments


# %% objective="distributed.memory"
outcome = launch(watch_a_step)
show_shards({moment: [held[moment] for held in outcome.results] for moment in outcome.results[0]})

# %% [markdown]
# At rest each rank holds its half. A layer is put together for its own forward pass, and given up after it.
# (Layer 2 comes whole in its turn. In the backward pass the same happens again, in reverse.)
# The journal says what that costs:

# %% objective="distributed.memory"
calls_of(outcome)

# %% [markdown]
# An all-gather per layer and pass, and a reduce-scatter per layer for the gradients: the two halves of an all-reduce,
# and one all-gather more. So stage 3 sends about half as much again as DDP does.
#
# A sharded parameter is a `DTensor`: a tensor that knows which part of it lies here.

# %% objective="distributed.memory"
def look_at_shards():
    model = sharded_model()
    opt = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 8)).sum().backward()
    opt.step()
    weight = model[0].weight
    for name, t in {"weight": weight, "gradient": weight.grad, "moment": opt.state[weight]["exp_avg"]}.items():
        print(f"{name:9}", tuple(t.shape), t.placements, "here:", tuple(t.to_local().shape))


print(launch(look_at_shards).ranks[1].printed)

# %% [markdown]
# And the numbers? The gradients are those of one process, in two halves:

# %% objective="distributed.memory"
def whole_gradient():
    model = sharded_model()
    rank = dist.get_rank()
    model(batch.flatten(0, 1).reshape(3, 8)[rank : rank + 1]).sum().backward()
    return model[0].weight.grad.full_tensor()


torch.manual_seed(0)
same = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
same(batch.flatten(0, 1).reshape(3, 8)[:2]).sum().div(2).backward()
print(all(torch.allclose(found, same[0].weight.grad, atol=1e-6) for found in launch(whole_gradient).results))

# %% [markdown]
# ### Sixty-four ranks that are not there
#
# PyTorch has a backend that only pretends: `fake`. One process plays rank 0 of 64, and its shards have their true sizes.
# (It comes from PyTorch's own tests, so it may change.) We count what it holds, and compare with the formula:

# %% objective="distributed.memory"
def rank_zero_of(world: int) -> tuple[int, int]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 256, bias=False))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 256)).sum().backward()
    opt.step()
    moments = [t for state in opt.state.values() for t in state.values() if t.dim()]
    own = [*model.parameters(), *(p.grad for p in model.parameters()), *moments]
    return sum(p.numel() for p in model.parameters()), sum(t.to_local().nbytes for t in own)


# %% objective="distributed.memory"
formula = passing(zero_memory)
for world in (2, 64):
    n_parameters, measured = launch(rank_zero_of, world, ranks=1).results[0]
    print(f"{world:2} ranks: measured {measured} bytes, formula {formula(n_parameters, world, 3, False):.0f}")

# %% [markdown]
# Equal to the byte. (This was measured on a simulated group; the sizes are real, the 63 others are not.)
# Two things come on top in a real run: activations, and for a moment the layers that are put together.
#
# ### Tensor parallel, in short
#
# FSDP puts a layer together before it computes. Tensor parallel never does: each rank computes its part of the product.
# The first matrix is cut by columns of its output, the second by rows of its input; one all-reduce joins them:

# %% objective="distributed.memory"
def tensor_parallel():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    expected = model(torch.ones(2, 8))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    print(model[0].weight.placements, model[2].weight.placements)
    return torch.allclose(model(torch.ones(2, 8)), expected, atol=1e-6)


outcome = launch(tensor_parallel)
print(outcome.ranks[0].printed, outcome.results, calls_of(outcome)[-1])

# %% [markdown]
# Every layer waits for that all-reduce, so tensor parallel is for GPUs with fast wires between them.
# *Pipeline* parallel cuts the model into groups of layers instead (`torch.distributed.pipelining`; not shown here).
#
# Libraries such as accelerate and transformers write these lines for you. You now know which lines they are.
#
# ## Back to the question
#
# > *What do you change, what moves between the eight, and how do you know that they still train one model?*
#
# You change four places: the process group at the top, the wrapper around the model, the sampler with its epoch,
# and the `if rank == 0` around what is written.
# What moves is one broadcast at the start and one all-reduce of the gradients per step; with shards, two all-gathers and
# a reduce-scatter instead.
# And you know it by a test with two processes on a laptop: both replicas equal bit for bit, and equal to one process.

# %% objective="distributed.ddp"
def replicas_agree() -> bool:
    """The check to take to work: whether all ranks hold the same parameters."""
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    own = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    largest, smallest = own.clone(), own.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return torch.equal(largest, smallest)


launch(replicas_agree, ranks=3).results

# %% [markdown]
# **Can you, without looking:**
#
# - say what happens if one rank makes a collective call less, and where you look first?
# - draw all-reduce, all-gather and reduce-scatter for two ranks, and say which two make the third?
# - name the two conditions under which replicas stay equal, and two ways to break each without an error?
# - say why an accuracy can depend on the number of ranks?
# - say what `no_sync` must stand around?
# - turn a script into its DDP form, and start it with `torchrun`?
# - say what each GPU holds under stages 1, 2 and 3, and what stage 3 pays?

# %%
progress()
