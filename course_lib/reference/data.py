"""Model answers of notebook 04: datasets, batches, splits, seeds, workers and tokens.

Letters: B batch, T the longest sequence of a batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, get_worker_info, random_split


class ToySine(Dataset):
    """`n` points of a sine curve, the same on every visit: `ToySine(n, seed)`.

    Its length is `n`. Item `i` is a pair `(x, y)` of float32 tensors of shape (1,).
    Each `x` is random, uniform between -pi and pi; `y` is sin(x), with some noise if you like, at most 0.5 off.
    The data depend on `n` and `seed` alone: the same seed gives the same items in whatever order they are read,
    another seed gives others. No global random state (of torch, NumPy or `random`) is used or changed.
    An index of `n` or more raises IndexError; a negative one never comes.
    """

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = (2 * torch.rand(n, 1, generator=generator) - 1) * math.pi
        self.y = self.x.sin() + 0.1 * torch.randn(n, 1, generator=generator).clamp(-3, 3)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def load_batches(
    dataset: Dataset, order: Iterable[int], batch_size: int, collate_fn: Callable[[list], Any]
) -> Iterator[Any]:
    """Yield the batches of one epoch: what `collate_fn` makes of the list of items of each batch.

    `order` gives the indices, in the order in which the items are read; it can be iterated only once, and it
    may leave indices out or repeat them. Every batch has `batch_size` items, except for the last one, which
    has what is left. There is no empty batch.
    Nothing is read from `dataset` before the batch that needs it is asked for.
    """
    batch = []
    for index in order:
        batch.append(dataset[index])
        if len(batch) == batch_size:
            yield collate_fn(batch)
            batch = []
    if batch:
        yield collate_fn(batch)


def mean_loss(loader: Iterable[tuple[Tensor, Tensor]], loss_fn: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the mean loss over all samples that `loader` yields, as a plain float.

    Each batch is a pair `(x, y)` whose first dimension counts the samples: (B, ...). B may differ from batch
    to batch. `loss_fn(x, y)` is the mean over the B samples, a tensor without dimensions.
    Every sample counts the same, whichever batch it came in. There is at least one.
    Samples that `loader` does not yield do not count. `loader` is iterated once; it may have no length.
    """
    total, n_samples = 0.0, 0
    for x, y in loader:
        total += loss_fn(x, y).item() * len(x)
        n_samples += len(x)
    return total / n_samples


def collate_pad(batch: list[Tensor]) -> dict[str, Tensor]:
    """Make one batch of sequences of different lengths: a dict of three tensors of shape (B, T).

    `batch` is a list of B 1-D int64 tensors, none of them empty; T is the length of the longest.
    `"input_ids"`: the sequences, padded with 0 on the right, int64.
    `"attention_mask"`: 1 for each token of a sequence and 0 for padding, int64 or bool.
    `"labels"`: the same ids in the same places (not shifted), with -100 for padding, int64.
    A sequence may hold any ids, 0 and negative ones too: these are tokens. The sequences are not changed.
    """
    ones = [torch.ones_like(ids) for ids in batch]
    return {
        "input_ids": pad_sequence(batch, batch_first=True),
        "attention_mask": pad_sequence(ones, batch_first=True),
        "labels": pad_sequence(batch, batch_first=True, padding_value=-100),
    }


def make_loaders(ds: Dataset, seed: int) -> tuple[DataLoader, DataLoader]:
    """Split `ds` at random into training and validation, and return a DataLoader for each: `(train, val)`.

    Every item is in exactly one of the two, and an epoch yields all of them: none is lost, none comes twice.
    Between a tenth and a half of the items, as you like, is for validation. `ds` has 20 items or more.
    `seed` alone decides which: the same seed gives the same split whatever was drawn before, another seed gives
    another. The call itself draws nothing from the global random state and does not seed it.
    `train` comes in a new order in every epoch, `val` in the same order in every epoch.
    The batch size is yours. Use no worker processes.
    """
    train, val = random_split(ds, [0.8, 0.2], generator=torch.Generator().manual_seed(seed))
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(val, batch_size=16)


def transformed_split(
    dataset: Dataset,
    train_indices: list[int],
    val_indices: list[int],
    train_transform: Callable[[Any], Any],
    val_transform: Callable[[Any], Any],
) -> tuple[Dataset, Dataset]:
    """Return `(train, val)`: the items at these indices, each part under its own transform.

    `dataset` has an attribute `transform`, which is None; its `__getitem__` applies it to the item if it is set.
    Item `k` of `train` is the item at `train_indices[k]` under `train_transform`, and likewise for `val`.
    A transform may be random: it runs anew on every visit. Both parts have a length.
    `dataset` itself comes out as it went in, with `transform` None.
    """
    parts = []
    for indices, transform in ((train_indices, train_transform), (val_indices, val_transform)):
        own = copy.copy(dataset)
        own.transform = transform
        parts.append(Subset(own, indices))
    return tuple(parts)


def group_split(groups: Tensor, seed: int) -> tuple[list[int], list[int]]:
    """Split items so that no group is on both sides, and return the indices of each side: `(train, val)`.

    `groups` has the shape (n,): item `i` belongs to group `groups[i]`. Group numbers are any int64 numbers,
    in any order; there are ten different ones or more.
    The result is two lists of plain ints, in any order. Every index from 0 to n - 1 is in exactly one of them.
    Whole groups go to one side. Between a tenth and a half of the *groups* are for validation, as you like.
    `seed` alone decides which ones, at random: the same seed gives the same split, another seed another.
    No global random state (of torch, NumPy or `random`) is used or changed.
    """
    names = groups.unique()
    names = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))]
    in_val = torch.isin(groups, names[: math.ceil(len(names) / 5)])
    return (~in_val).nonzero().flatten().tolist(), in_val.nonzero().flatten().tolist()


class EpochSampler(Sampler):
    """An order for each epoch that can be found again: `EpochSampler(n, seed)`.

    Iterating yields each index from 0 to `n - 1` once, in a random order; the length is `n`.
    `set_epoch(epoch)` chooses the epoch, 0 or more; without it the epoch is 0.
    The order depends on `n`, `seed` and the epoch alone, not on what was iterated before: two iterations in one
    epoch give the same order. Another epoch gives another order, and so does another seed in the same epoch.
    No global random state (of torch, NumPy or `random`) is used or changed.
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed, self.epoch = n, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.n, generator=generator).tolist())

    def __len__(self) -> int:
        return self.n


def independent_loaders(
    train_set: Dataset, val_set: Dataset, batch_size: int, seed: int
) -> tuple[DataLoader, DataLoader]:
    """Return two DataLoaders `(train, val)` that have nothing random in common with each other or with the rest.

    `train` is shuffled anew in every epoch, `val` comes in the order of `val_set`; both yield every item.
    The orders of `train` in its first, second, third ... epoch depend on `seed` alone: not on whether `val` is
    iterated in between, and not on the global random state. Another seed gives other orders.
    Iterating either of them draws nothing from the global random state; nor does this call, nor does it seed it.
    Use no worker processes.
    """
    return (
        DataLoader(train_set, batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed)),
        DataLoader(val_set, batch_size, generator=torch.Generator().manual_seed(seed)),
    )


def seeded_loader(ds: Dataset, seed: int) -> DataLoader:
    """Return a DataLoader over `ds` with 2 workers whose random draws are all different and can be repeated.

    In `ds[i]` the dataset draws from a NumPy Generator of its own, `ds.rng`.
    A loader is iterated for several epochs. No two visits get the same draws: not in two workers, and not in
    two epochs. A new loader with the same `seed` repeats them all, whatever the global random state is;
    a loader with another seed draws others. Every item comes once in each epoch.
    This call draws nothing from the global random state and does not seed it. Order and batch size are yours.
    """

    def seed_own_generator(worker_id: int) -> None:
        get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())

    return DataLoader(
        ds,
        batch_size=4,
        num_workers=2,
        worker_init_fn=seed_own_generator,
        generator=torch.Generator().manual_seed(seed),
    )


def worker_share(stream: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of `stream` that fall to this worker, in their order.

    It is called in the `__iter__` of an IterableDataset, and each worker process has a `stream` of its own with
    all of the items. Over all workers every item is yielded once, and no worker gets two more than another one.
    In the main process, without workers, all items are yielded.
    Which item falls to whom is yours to choose; items may be anything and may repeat.
    `stream` may have no length and no end: before the first item is yielded, no more are read than there are
    workers (in the main process: one).
    """
    worker = get_worker_info()
    if worker is None:
        return iter(stream)
    return islice(stream, worker.id, None, worker.num_workers)


class TokenWindows(Dataset):
    """Every window of a token stream with its targets: `TokenWindows(tokens, length)`.

    `tokens` is a 1-D int64 tensor. Item `i` is a pair `(inputs, targets)` of shape (length,) each: the tokens
    `i` to `i + length - 1`, and for each of them the token that follows it.
    The dataset has as many items as there are such windows; a stream that is too short for one has none.
    An index of `len` or more raises IndexError; a negative one never comes.
    """

    def __init__(self, tokens: Tensor, length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return max(len(self.tokens) - self.length, 0)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= len(self):
            raise IndexError(index)
        window = self.tokens[index : index + self.length + 1]
        return window[:-1], window[1:]
