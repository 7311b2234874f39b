"""The answers of notebook 08: collectives, replicas that agree, shares of the data, and what sharding saves.

All functions that communicate run in every rank of an initialized process group, at the same point of the program.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def global_mean(values: Tensor) -> float:
    """Return the mean over all values of all ranks, as a plain `float`: the same number in every rank.

    `values` is a float32 tensor of shape (n,), and n may differ from rank to rank.
    A rank may have none at all; at least one rank has some.
    Every value counts the same, whichever rank holds it.
    """
    total = torch.stack([values.sum(), torch.tensor(float(len(values)))])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def ring_all_reduce_(x: Tensor) -> Tensor:
    """Replace `x`, in place, by the sum of the `x` of all ranks, and return it. Only sends and receives are used.

    `x` has shape (n,), is contiguous, and n is the same in every rank. There are two or more ranks.
    A rank may send at most 2 * (world - 1) * ceil(n / world) numbers: that is what a ring needs.
    Cut `x` into one chunk for each rank. In world - 1 steps every rank sends a chunk to the rank on its right
    and adds what comes from the left to its own chunk; then one chunk is complete in each rank.
    In world - 1 more steps the complete chunks go round in the same way and replace what is there.
    The calls that may move numbers are `dist.send`, `recv`, `isend`, `irecv` and `batch_isend_irecv`.
    """
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


def broadcast_parameters(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, in place.

    The models of all ranks have the same structure and different numbers.
    The parameters stay the same objects, so that an optimizer that has them goes on working.
    Rank 0 keeps its numbers. Nothing else of the model changes.
    """
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def average_gradients(model: nn.Module) -> None:
    """Replace the gradient of each parameter by its mean over all ranks, in place.

    Every rank has the same model and has run its own backward pass. A parameter that was not used in a rank has
    no gradient there (None), which counts as zeros; afterwards it has the mean, as in the other ranks.
    A parameter that no rank used gets zeros. All parameters require gradients.
    The parameters themselves do not change. There may be any number of ranks.
    """
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def ddp_accumulate(ddp: DistributedDataParallel, microbatches: list[Tensor], opt: Optimizer) -> None:
    """Make one update of `opt` from all micro-batches of all ranks, with a single all-reduce.

    `microbatches` is a list of tensors (batch, dim), all of the same size; every rank has as many.
    The loss of a micro-batch is `ddp(x).pow(2).mean()`. Each is run through `ddp` once, on its own, in order.
    The update follows the gradient of the mean loss over all micro-batches of all ranks.
    What `.grad` held before does not count; you may clear it before or after.
    `ddp` has one bucket of gradients, so that a backward pass that synchronizes makes one all-reduce.
    """
    opt.zero_grad()
    for position, x in enumerate(microbatches, start=1):
        is_last = position == len(microbatches)
        with nullcontext() if is_last else ddp.no_sync():
            loss = ddp(x).pow(2).mean() / len(microbatches)
            loss.backward()
    opt.step()


def shard_indices(n: int, rank: int, world: int, epoch: int, seed: int) -> list[int]:
    """Return the indices that this rank reads in this epoch: the same as DistributedSampler gives.

    All ranks shuffle the indices 0 to n - 1 in one common order: `torch.randperm(n)` from a generator of its own,
    seeded with `seed + epoch`. Every rank gets equally many. Where `world` does not divide `n`, the list
    is made longer by indices from its own beginning, over and over if there are fewer samples than ranks.
    Rank r reads places r, r + world, r + 2 * world, ... of it.
    The result is any iterable of plain ints. The global random state is not used.
    Iterating over a DistributedSampler is not allowed here.
    """
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    length = math.ceil(n / world) * world
    return [order[place % n] for place in range(rank, length, world)]


def distributed_batches(dataset: Dataset, batch_size: int, seed: int, start: int) -> Iterator[Any]:
    """Yield the batches of this rank from step `start` on, epoch after epoch without end.

    The indices of an epoch are those of a `DistributedSampler` with this `seed` (and otherwise its defaults) that
    was told the number of the epoch, counted from 0. `batch_size` is that of one rank. The last batch of an epoch
    may be smaller. Batches are made as a `DataLoader` makes them, without worker processes.
    A run that begins at `start` yields what a run from 0 yields after `start` batches; `start` may be several
    epochs away. The call itself draws nothing from the global random state.
    """
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    first_epoch, skipped = divmod(start, len(loader))
    for epoch in count(first_epoch):
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None)
        skipped = 0


def save_replica(path: str, ddp: DistributedDataParallel) -> None:
    """Write the weights of the model inside `ddp` to the file `path` in rank 0, and in no other rank.

    The file holds the state dict of the model that was wrapped, under its own names: without "module.".
    `torch.load(path, weights_only=True)` reads it.
    Every rank calls this function. None returns before the file is complete, so that each may read it.
    """
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    dist.barrier()


def scaled_lr(base: float, per_gpu: int, world: int, accum: int, ref_batch: int, rule: str) -> float:
    """Return the learning rate for a larger (or smaller) batch than the one that `base` was found with.

    `base` was found with `ref_batch` samples per update. Now each of `world` ranks handles `accum` micro-batches of
    `per_gpu` samples per update.
    With the rule "linear" the learning rate grows as the samples per update, with "sqrt" as their square root.
    """
    ratio = per_gpu * world * accum / ref_batch
    return base * ratio if rule == "linear" else base * math.sqrt(ratio)


def zero_memory(P: int, world: int, stage: int, mixed: bool) -> float:
    """Return the bytes that each of `world` GPUs holds for a model of `P` parameters, trained with Adam.

    Without `mixed` all numbers are float32: parameters, gradients and the two moments of Adam.
    With `mixed`, parameters and gradients have 2 bytes each, and the optimizer keeps the two moments and a master
    copy of the parameters in float32.
    Stage 0 shards nothing. Stage 1 shards the optimizer's state (the master copy is part of it), stage 2 the
    gradients as well, stage 3 also the parameters. What is sharded is split evenly; padding is not counted.
    Activations and buffers are not counted. The result may be off by up to 1 byte.
    """
    parameters, gradients, state = (2 * P, 2 * P, 12 * P) if mixed else (4 * P, 4 * P, 8 * P)
    return (
        (parameters / world if stage >= 3 else parameters)
        + (gradients / world if stage >= 2 else gradients)
        + (state / world if stage >= 1 else state)
    )
