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
# # Data: from a dataset to a batch
#
# > You write `for x, y in loader`.
# > **Which items are in this batch, who chose them, and would they be the same tomorrow?**
#
# Nothing in a training run goes wrong as quietly as its data.
# A leak makes a model look good, a repeated random number makes it worse, and neither raises an error.
# At the end you can answer the three parts of the question for any loader, with workers and without.
#
# **Time:** about 4 hours: one and a half to read and predict, two and a half for the exercises.
# It splits well after section 4 and after section 6.
#
# **You need:** notebook 01. Notebooks 02 and 03 help, and nothing here depends on them.
# No GPU is needed; section 9 says what is different where there is one.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# | term | in code | meaning |
# |---|---|---|
# | item, sample | `dataset[i]` | what the dataset has at index `i`: a tensor, a pair, a dict, ... |
# | map-style dataset | `Dataset` | answers `len(dataset)` and `dataset[i]` |
# | stream | `IterableDataset` | can only be read from the front; it has no indices |
# | sampler | `loader.sampler` | gives the indices of an epoch, in order |
# | collate | `collate_fn` | makes one batch of a list of items |
# | epoch | one `for` loop over the loader | every item once, with the usual samplers |
# | worker | `num_workers=2` | a process that reads items for the loader |
# | base seed | `torch.initial_seed()` in a worker | a number that the loader draws for each epoch, to seed its workers |
# | pinned memory | `pin_memory=True` | CPU memory that the system promises not to move, so that a GPU can fetch it alone |

# %%
import copy
import io
import math
import pickle
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
    random_split,
)

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.reference.sources import (
    Countdown,
    CountsReads,
    FailsAt,
    GlobalDraws,
    MarkovSource,
    OwnGenerator,
    SlowItems,
)

_ = torch.manual_seed(0)

# %% [markdown]
# The last import brings a few small datasets that stand in a module.
# Why they must, you will see in section 7.
#
# ## 1 A dataset answers two questions
#
# A loader asks a map-style dataset how many items it has and what the item at an index is.
# Whatever answers both will do. Our tiny batch does, and so does a list:

# %% objective="data.datasets"
batch = torch.arange(24.0).reshape(2, 3, 4)  # (batch, seq, dim)
print([tuple(x.shape) for x in DataLoader(batch)])
print(list(DataLoader(["to", "be", "or"])))

# %% [markdown]
# Two items of shape (3, 4) became two batches of shape (1, 3, 4): the loader put a batch dimension in front.
# Asked for two items per batch, it gives our batch back.

# %% objective="data.datasets"
(x,) = DataLoader(batch, batch_size=2)
print(tuple(x.shape), " equal:", torch.equal(x, batch))

# %% [markdown]
# **Rule 1.** A map-style dataset has `__len__` and `__getitem__`, and a loader knows nothing else about it.
#
# Leave one of the two out, and it fails:

# %% tags=["raises-exception"] objective="data.datasets"
class HasNoLength(Dataset):
    def __getitem__(self, index):
        return index


DataLoader(HasNoLength(), shuffle=True)

# %% [markdown]
# Without a length there is nothing to shuffle.
# (`Dataset` itself has no `__len__`, and so inheriting from it does not help.)
#
# There is a third, hidden promise: a plain `for` loop asks for items 0, 1, 2, ... until an **IndexError**.

# %% objective="data.datasets"
class Squares(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index**2


print("for loop:", list(islice(Squares(), 6)), "...")
print("loader:  ", torch.cat(list(DataLoader(Squares()))).tolist())

# %% [markdown]
# `islice` stopped the loop after six items; on its own it would never have ended.
# The loader believes the length and stops in time.
#
# ### Items that stay the same
#
# Here is a toy dataset as you find it in many tutorials:

# %% objective="data.datasets"
class ToyData(Dataset):
    def __init__(self, n=4):
        self.x = torch.randn(n)

    def __len__(self):
        return self.x.numel()

    def __getitem__(self, index):
        return self.x[index], 2 * self.x[index]


torch.manual_seed(0)
first, second = ToyData(), ToyData()
print("two of them are equal:", torch.equal(first.x, second.x))

# %% [markdown]
# It draws from the global random state: what it holds depends on who drew before.
# And it moves that state for everyone who draws later.
# Its second fault is a shape:

# %% objective="data.datasets"
x, y = next(iter(DataLoader(first, batch_size=4)))
print("batch", tuple(x.shape), " output of a layer", tuple(torch.nn.Linear(1, 1)(x[:, None]).shape))

# %% [markdown]
# A layer returns (4, 1), the targets are (4,), and you know from notebook 01 what a loss makes of that: (4, 4).
# With items of shape (1,) the batch is (4, 1), and everything fits.
#
# This is the dataset that notebook 05 trains on.
#
# {{exercise ToySine}}

# %% exercise="ToySine"
class ToySine(Dataset):
    """`n` points of a sine curve, the same on every visit: `ToySine(n, seed)`.

    Its length is `n`. Item `i` is a pair `(x, y)` of float32 tensors of shape (1,).
    Each `x` is random, uniform between -pi and pi; `y` is sin(x), with some noise if you like, at most 0.5 off.
    The data depend on `n` and `seed` alone: the same seed gives the same items in whatever order they are read,
    another seed gives others. No global random state (of torch, NumPy or `random`) is used or changed.
    An index of `n` or more raises IndexError; a negative one never comes.
    """

    def __init__(self, n: int, seed: int) -> None:
        ### BEGIN SOLUTION
        generator = torch.Generator().manual_seed(seed)
        self.x = (2 * torch.rand(n, 1, generator=generator) - 1) * math.pi
        self.y = self.x.sin() + 0.1 * torch.randn(n, 1, generator=generator).clamp(-3, 3)
        ### END SOLUTION

    def __len__(self) -> int:
        ### BEGIN SOLUTION
        return len(self.x)
        ### END SOLUTION

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        ### BEGIN SOLUTION
        return self.x[index], self.y[index]
        ### END SOLUTION

# %%
check(ToySine)

# %% [markdown]
# ## 2 A loader is an order, a pile and a collate
#
# {{predict last_batch}}

# %%
predict("last_batch", "b")

# %% objective="data.batches"
sizes = [len(x) for x, y in DataLoader(passing(ToySine)(200, seed=0), batch_size=16)]
print(len(sizes), "batches:", sizes[0], "...", sizes[-1])

# %% [markdown]
# Every item comes, and the last batch has what is left.
#
# {{predict default_order}}

# %%
predict("default_order", "c")

# %% objective="data.batches"
loader = DataLoader([0, 1, 2, 3], batch_size=2)
print([x.tolist() for x in loader], [x.tolist() for x in loader])
print(type(loader.sampler).__name__, "and, with shuffle=True,", end=" ")
print(type(DataLoader([0, 1, 2, 3], shuffle=True).sampler).__name__)

# %% [markdown]
# A line that you meet often is `DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)` "for training".
# It does not shuffle.
# How much does that matter? Here are four classes, sorted as files in folders are.

# %% objective="data.batches"
def accuracy_after_one_epoch(shuffle: bool) -> float:
    torch.manual_seed(0)
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).repeat_interleave(100, dim=0)
    x, y = corners + 0.3 * torch.randn(400, 2), torch.arange(400) // 100
    model = torch.nn.Linear(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=10, shuffle=shuffle):
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
    return (model(x).argmax(1) == y).float().mean().item()


print(f"sorted: {accuracy_after_one_epoch(False):.2f}  shuffled: {accuracy_after_one_epoch(True):.2f}")

# %% [markdown]
# The same model, the same data, one epoch each (notebook 05 explains the loop).
# In sorted order the model has forgotten a part of the other classes by the time it has seen the last one.
#
# ### What is inside
#
# A loader is three parts, and you can take each of them out:

# %% objective="data.batches"
loader = DataLoader(torch.arange(5) * 10, batch_size=2, shuffle=True)
indices = next(iter(loader.batch_sampler))
items = [loader.dataset[i] for i in indices]
print(len(indices), "indices,", len(items), "items, one batch of shape", tuple(loader.collate_fn(items).shape))

# %% [markdown]
# **Rule 2.** The sampler gives indices, `dataset[index]` gives items, `collate_fn` makes a batch of them.
#
# You replace the sampler to choose the order, and the collate to choose what a batch looks like.
# A sampler may also be a list. Here it leaves an item out and repeats another:

# %% objective="data.batches"
print([x.tolist() for x in DataLoader(torch.arange(5) * 10, batch_size=2, sampler=[4, 0, 4])])

# %% [markdown]
# What it may not be is one of two that disagree:

# %% tags=["raises-exception"] objective="data.batches"
DataLoader(torch.arange(5), sampler=[4, 0], shuffle=True)

# %% [markdown]
# Write the loop that joins the three. Without workers, a DataLoader does no more.
#
# {{exercise load_batches}}

# %% exercise="load_batches"
def load_batches(
    dataset: Dataset, order: Iterable[int], batch_size: int, collate_fn: Callable[[list], Any]
) -> Iterator[Any]:
    """Yield the batches of one epoch: what `collate_fn` makes of the list of items of each batch.

    `order` gives the indices, in the order in which the items are read; it can be iterated only once, and it
    may leave indices out or repeat them. Every batch has `batch_size` items, except for the last one, which
    has what is left. There is no empty batch.
    Nothing is read from `dataset` before the batch that needs it is asked for.
    """
    ### BEGIN SOLUTION
    batch = []
    for index in order:
        batch.append(dataset[index])
        if len(batch) == batch_size:
            yield collate_fn(batch)
            batch = []
    if batch:
        yield collate_fn(batch)
    ### END SOLUTION

# %%
check(load_batches)

# %% [markdown]
# Your loop and PyTorch's, on the same order:

# %% objective="data.batches"
order = [4, 2, 0, 1, 3]
mine = list(passing(load_batches)(batch.flatten(), order, 2, default_collate))
theirs = list(DataLoader(batch.flatten(), batch_size=2, sampler=order))
print([x.tolist() for x in mine], " equal:", all(map(torch.equal, mine, theirs)))

# %% [markdown]
# ### The mean of an epoch
#
# The last batch is smaller, and this is where a common loss report goes wrong.
# Four samples with losses 1, 1, 1 and 9 come in batches of three and one:

# %% objective="data.batches"
losses = DataLoader(torch.tensor([1.0, 1.0, 1.0, 9.0]), batch_size=3)
batch_means = [x.mean().item() for x in losses]
print("batch means", batch_means, " their mean", sum(batch_means) / 2)
print("mean of the samples", torch.cat(list(losses)).mean().item())

# %% [markdown]
# In the mean of batch means the lonely sample counts as much as the three others.
#
# > **Classic mistake: dividing by `len(loader.dataset)`.**
# > It helps with the last batch, and it counts samples that never came:

# %% objective="data.batches"
loader = DataLoader(torch.ones(10), batch_size=2, sampler=[0, 1])
total = sum(x.sum().item() for x in loader)
print("every loss is 1; the report says", total / len(loader.dataset))

# %% [markdown]
# The sampler yields 2 of the 10 samples, as a validation sampler does, and the loss looks five times better.
#
# {{exercise mean_loss}}

# %% exercise="mean_loss"
def mean_loss(loader: Iterable[tuple[Tensor, Tensor]], loss_fn: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the mean loss over all samples that `loader` yields, as a plain float.

    Each batch is a pair `(x, y)` whose first dimension counts the samples: (B, ...). B may differ from batch
    to batch. `loss_fn(x, y)` is the mean over the B samples, a tensor without dimensions.
    Every sample counts the same, whichever batch it came in. There is at least one.
    Samples that `loader` does not yield do not count. `loader` is iterated once; it may have no length.
    """
    ### BEGIN SOLUTION
    total, n_samples = 0.0, 0
    for x, y in loader:
        total += loss_fn(x, y).item() * len(x)
        n_samples += len(x)
    return total / n_samples
    ### END SOLUTION

# %%
check(mean_loss)

# %% [markdown]
# ## 3 Collate: from a list of items to a batch
#
# {{predict mixed_collate}}

# %%
predict("mixed_collate", "b")

# %% objective="data.collate"
items = [{"x": torch.zeros(2), "n": 3, "name": "a"}, {"x": torch.ones(2), "n": 3, "name": "b"}]
default_collate(items)

# %% [markdown]
# The default collate keeps the structure of an item and works on its leaves.
# Tensors are stacked, numbers become a tensor, strings stay a list.
# A pair of shape (1,) each becomes a pair of shape (B, 1) each:

# %% objective="data.collate"
x, y = default_collate([(torch.zeros(1), torch.ones(1))] * 5)
print(tuple(x.shape), tuple(y.shape))

# %% [markdown]
# It stacks, so all items must have one shape. Sentences seldom do:

# %% tags=["raises-exception"] objective="data.collate"
default_collate([torch.tensor([5, 6, 7]), torch.tensor([8])])

# %% [markdown]
# *"stack expects each tensor to be equal size"*: the usual answer is **padding**.
# The shorter one is filled up, and from then on somebody has to know which numbers are real.

# %% objective="data.collate"
sequences = [torch.tensor([5, 0, 7]), torch.tensor([8])]
ids = pad_sequence(sequences, batch_first=True)
print(ids.tolist())

# %% [markdown]
# Three zeros, and which of them are padding?
# In the first row 0 is a token; in the second row both are filling.
# The padded tensor cannot tell you.
#
# > **Classic mistake: a mask from `ids != 0`.**
# > It is right until a tokenizer gives id 0 to a real token. Here it hides the second token:

# %% objective="data.collate"
print("ids != 0 ", (ids != 0).int().tolist())
print("lengths  ", [len(sequence) for sequence in sequences])

# %% [markdown]
# The lengths know it, and only the collate still has them.
#
# The loss must leave padding out as well.
# `F.cross_entropy` does so for targets of -100, its `ignore_index`:

# %% objective="data.collate"
logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
labels = torch.tensor([5, 7, -100, -100])
print(torch.equal(F.cross_entropy(logits, labels), F.cross_entropy(logits[:2], labels[:2])))

# %% [markdown]
# Two of four labels count, in the sum and in the number that divides it.
# Pad labels with 0 instead, and the model is trained to say token 0 after every end.
#
# {{exercise collate_pad}}

# %% exercise="collate_pad"
def collate_pad(batch: list[Tensor]) -> dict[str, Tensor]:
    """Make one batch of sequences of different lengths: a dict of three tensors of shape (B, T).

    `batch` is a list of B 1-D int64 tensors, none of them empty; T is the length of the longest.
    `"input_ids"`: the sequences, padded with 0 on the right, int64.
    `"attention_mask"`: 1 for each token of a sequence and 0 for padding, int64 or bool.
    `"labels"`: the same ids in the same places (not shifted), with -100 for padding, int64.
    A sequence may hold any ids, 0 and negative ones too: these are tokens. The sequences are not changed.
    """
    ### BEGIN SOLUTION
    ones = [torch.ones_like(ids) for ids in batch]
    return {
        "input_ids": pad_sequence(batch, batch_first=True),
        "attention_mask": pad_sequence(ones, batch_first=True),
        "labels": pad_sequence(batch, batch_first=True, padding_value=-100),
    }
    ### END SOLUTION

# %%
check(collate_pad)

# %% [markdown]
# A collate is handed to the loader, and each batch gets its own width:

# %% objective="data.collate"
sentences = [torch.arange(1, n + 1) for n in (3, 1, 4, 2)]
for padded in DataLoader(sentences, batch_size=2, collate_fn=passing(collate_pad)):
    print(tuple(padded["input_ids"].shape), " real tokens:", padded["attention_mask"].sum(1).tolist())

# %% [markdown]
# The more the lengths in a batch differ, the more of it is padding.
# A sampler that puts similar lengths together saves most of it, at the price of a less random order:

# %% objective="data.collate"
def padding(order: list[int]) -> int:
    """How many places of an epoch are padding."""
    loader = DataLoader(sentences, batch_size=2, sampler=order, collate_fn=passing(collate_pad))
    return sum(int((batch["attention_mask"] == 0).sum()) for batch in loader)


print("as they come:", padding([0, 1, 2, 3]), " by length:", padding([1, 3, 0, 2]))

# %% [markdown]
# ## 4 Splits without leaks
#
# Validation answers one question: how good is the model on data that it has not seen?
# Whatever it has seen after all makes the answer too good.
# `random_split` makes two datasets without a common item:

# %% objective="data.splits"
numbers = list(range(10))
parts = random_split(numbers, [0.7, 0.3], generator=torch.Generator().manual_seed(0))
print([type(part).__name__ for part in parts], [len(part) for part in parts])
print("in both:", set(parts[0]) & set(parts[1]), " together:", sorted([*parts[0], *parts[1]]) == numbers)

# %% [markdown]
# You give it fractions or sizes. Fractions are rounded for you, sizes have to fit:

# %% tags=["raises-exception"] objective="data.splits"
random_split(numbers, [7, 2])

# %% [markdown]
# A split without a generator of its own is drawn from the global state.
# Then the next run validates on what this one trained on, and a resumed run has trained on all of it:

# %% objective="data.splits"
_ = torch.manual_seed(0)
first, second = (set(random_split(range(100), [0.8, 0.2])[1]) for _ in range(2))
print("two runs validate on the same items:", first == second)
generators = [torch.Generator().manual_seed(3) for _ in range(2)]
first, second = (set(random_split(range(100), [0.8, 0.2], generator=g)[1]) for g in generators)
print("with generators seeded alike:       ", first == second)

# %% [markdown]
# {{exercise make_loaders}}

# %% exercise="make_loaders"
def make_loaders(ds: Dataset, seed: int) -> tuple[DataLoader, DataLoader]:
    """Split `ds` at random into training and validation, and return a DataLoader for each: `(train, val)`.

    Every item is in exactly one of the two, and an epoch yields all of them: none is lost, none comes twice.
    Between a tenth and a half of the items, as you like, is for validation. `ds` has 20 items or more.
    `seed` alone decides which: the same seed gives the same split whatever was drawn before, another seed gives
    another. The call itself draws nothing from the global random state and does not seed it.
    `train` comes in a new order in every epoch, `val` in the same order in every epoch.
    The batch size is yours. Use no worker processes.
    """
    ### BEGIN SOLUTION
    train, val = random_split(ds, [0.8, 0.2], generator=torch.Generator().manual_seed(seed))
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(val, batch_size=16)
    ### END SOLUTION

# %%
check(make_loaders)

# %% [markdown]
# ### What two parts share
#
# A part is a `Subset`: the dataset and a list of indices.
# The dataset is not copied.
#
# {{predict shared_transform}}

# %%
predict("shared_transform", "c")

# %% objective="data.splits"
class Photos(Dataset):
    transform = staticmethod(lambda index: f"augmented {index}")

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.transform(index)


dataset = Photos()
train, val = random_split(dataset, [0.5, 0.5], generator=torch.Generator().manual_seed(0))
val.dataset.transform = lambda index: f"plain {index}"
print("train:", train[0], "  val:", val[0], "  one dataset:", train.dataset is val.dataset)

# %% [markdown]
# Training has lost its augmentation, and nothing said so.
# The other attempt is as quiet.
# Python lets you put any attribute on a `Subset`, and nobody reads it:

# %% objective="data.splits"
dataset = Photos()
train, val = random_split(dataset, [0.5, 0.5], generator=torch.Generator().manual_seed(0))
val.transform = lambda index: f"plain {index}"
print("train:", train[0], "  val:", val[0])

# %% [markdown]
# {{exercise transformed_split}}

# %% exercise="transformed_split"
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
    ### BEGIN SOLUTION
    parts = []
    for indices, transform in ((train_indices, train_transform), (val_indices, val_transform)):
        own = copy.copy(dataset)
        own.transform = transform
        parts.append(Subset(own, indices))
    return tuple(parts)
    ### END SOLUTION

# %%
check(transformed_split)

# %% [markdown]
# ### Leaks that no index shows
#
# Items can be different and still know each other.
# Ten patients with ten pictures each: a split by picture puts every patient on both sides.

# %% objective="data.splits"
patient = torch.arange(10).repeat_interleave(10)  # (pictures,)
train, val = random_split(range(100), [0.8, 0.2], generator=torch.Generator().manual_seed(0))
both = set(patient[list(train)].tolist()) & set(patient[list(val)].tolist())
print("patients in validation:", len(set(patient[list(val)].tolist())), " also in training:", len(both))

# %% [markdown]
# Split the *patients*, then take their pictures.
#
# {{exercise group_split}}

# %% exercise="group_split"
def group_split(groups: Tensor, seed: int) -> tuple[list[int], list[int]]:
    """Split items so that no group is on both sides, and return the indices of each side: `(train, val)`.

    `groups` has the shape (n,): item `i` belongs to group `groups[i]`. Group numbers are any int64 numbers,
    in any order; there are ten different ones or more.
    The result is two lists of plain ints, in any order. Every index from 0 to n - 1 is in exactly one of them.
    Whole groups go to one side. Between a tenth and a half of the *groups* are for validation, as you like.
    `seed` alone decides which ones, at random: the same seed gives the same split, another seed another.
    No global random state (of torch, NumPy or `random`) is used or changed.
    """
    ### BEGIN SOLUTION
    names = groups.unique()
    names = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))]
    in_val = torch.isin(groups, names[: math.ceil(len(names) / 5)])
    return (~in_val).nonzero().flatten().tolist(), in_val.nonzero().flatten().tolist()
    ### END SOLUTION

# %%
check(group_split)

# %% [markdown]
# With it, nobody is met again:

# %% objective="data.splits"
train, val = passing(group_split)(patient, seed=0)
both = set(patient[train].tolist()) & set(patient[val].tolist())
print("pictures:", len(train) + len(val), " patients on both sides:", len(both))

# %% [markdown]
# The same holds for windows of one recording (section 10), and for every number that you compute from data:

# %% objective="data.splits"
x = torch.cat([torch.zeros(80), torch.full((20,), 10.0)])  # the last 20 are for validation
print("mean of all:", x.mean().item(), " mean of training:", x[:80].mean().item())

# %% [markdown]
# **Rule 3.** Split first. Means, vocabularies and thresholds come from the training part alone.
#
# ## 5 Random numbers: who draws, and from what
#
# "Set the seed, and the run can be repeated."
# That holds as long as nothing else changes.
# What do the usual recipes survive? This is a program with two epochs, in which something else may draw, too:

# %% objective="data.seeding"
def two_orders(make_loader: Callable[[], DataLoader], other_draws: int) -> list[list[int]]:
    """Orders of two epochs, in a program that draws other random numbers before each of them."""
    _ = torch.seed()  # a fresh start, another one in every run
    loader = make_loader()
    orders = []
    for _ in range(2):
        torch.rand(other_draws)
        orders.append(torch.cat(list(loader)).tolist())
    return orders

# %% [markdown]
# And these are the recipes, as you find them:

# %% objective="data.seeding"
def shuffled(**options: Any) -> DataLoader:
    return DataLoader(torch.arange(50), batch_size=10, shuffle=True, **options)


recipes = {
    "no seed": lambda: shuffled(),
    "random.seed, np.random.seed": lambda: (random.seed(0), np.random.seed(0)) and shuffled(),
    "torch.manual_seed": lambda: torch.manual_seed(0) and shuffled(),
    "generator=torch.Generator()": lambda: shuffled(generator=torch.Generator()),
    "generator, seeded": lambda: shuffled(generator=torch.Generator().manual_seed(0)),
}

# %% objective="data.seeding"
print(f"{'':30}repeats  whatever else draws")
for name, recipe in recipes.items():
    run = two_orders(recipe, other_draws=0)
    print(f"{name:30}{run == two_orders(recipe, 0)!s:9}{run == two_orders(recipe, 3)}")

# %% [markdown]
# Read the columns.
#
# - The seeds of `random` and NumPy change nothing: a loader shuffles with PyTorch's numbers.
# - `torch.manual_seed` repeats the run, as long as the rest of the program draws exactly the same numbers.
#   One more dropout layer, and the order of the data is another one.
# - A generator of its own makes the order immune.
#
# The last but one line passes too, and it should make you suspicious.
#
# {{predict fresh_generator}}

# %%
predict("fresh_generator", "b")

# %% objective="data.seeding"
g, h = torch.Generator(), torch.Generator()
print(torch.equal(torch.rand(3, generator=g), torch.rand(3, generator=h)), torch.Generator().initial_seed())

# %% [markdown]
# The constant is written into PyTorch.
# So "a run with another seed" that forgets `manual_seed` on the generator gives the same order again,
# and the spread over your five seeds is too small.
#
# One more recipe repairs the wrong thing: seeding at the start of *every* epoch.

# %% objective="data.seeding"
orders = []
for _ in range(2):
    torch.manual_seed(0)
    orders.append(torch.cat(list(shuffled())).tolist())
print("both epochs in the same order:", orders[0] == orders[1])

# %% [markdown]
# Repeatable, and no longer shuffled from epoch to epoch.
#
# What you want is an order for each epoch that can be found again: when a run stops in epoch 7 and goes on
# the next day, or when eight processes must agree on it (notebook 08).
# PyTorch's `DistributedSampler` works so, and has a well-known trap:

# %% objective="data.seeding"
sampler = DistributedSampler(range(8), num_replicas=2, rank=0, shuffle=True)
forgetful = [list(sampler) for _ in range(2)]
careful = [sampler.set_epoch(epoch) or list(sampler) for epoch in range(2)]
print("without set_epoch", forgetful)
print("with set_epoch   ", careful)

# %% [markdown]
# Nobody told it that an epoch went by.
# Write one of your own, for one process.
#
# {{exercise EpochSampler}}

# %% exercise="EpochSampler"
class EpochSampler(Sampler):
    """An order for each epoch that can be found again: `EpochSampler(n, seed)`.

    Iterating yields each index from 0 to `n - 1` once, in a random order; the length is `n`.
    `set_epoch(epoch)` chooses the epoch, 0 or more; without it the epoch is 0.
    The order depends on `n`, `seed` and the epoch alone, not on what was iterated before: two iterations in one
    epoch give the same order. Another epoch gives another order, and so does another seed in the same epoch.
    No global random state (of torch, NumPy or `random`) is used or changed.
    """

    def __init__(self, n: int, seed: int) -> None:
        ### BEGIN SOLUTION
        self.n, self.seed, self.epoch = n, seed, 0
        ### END SOLUTION

    def set_epoch(self, epoch: int) -> None:
        ### BEGIN SOLUTION
        self.epoch = epoch
        ### END SOLUTION

    def __iter__(self) -> Iterator[int]:
        ### BEGIN SOLUTION
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.n, generator=generator).tolist())
        ### END SOLUTION

    def __len__(self) -> int:
        ### BEGIN SOLUTION
        return self.n
        ### END SOLUTION

# %%
check(EpochSampler)

# %% [markdown]
# ## 6 A loader that draws without being asked
#
# {{predict validation_draws}}

# %%
predict("validation_draws", "c")

# %% objective="data.seeding"
def training_orders(validate: bool) -> list[list[int]]:
    torch.manual_seed(0)
    train, val = DataLoader(range(6), shuffle=True), DataLoader(range(3))
    orders = []
    for _ in range(2):
        orders.append(torch.cat(list(train)).tolist())
        if validate:
            list(val)
    return orders


print("alone         ", training_orders(validate=False))
print("and validating", training_orders(validate=True))

# %% [markdown]
# The first epoch is the same, the second is not.
# Watch the global random state while a loader is iterated that has nothing random in it:

# %% objective="data.seeding"
before = torch.get_rng_state()
list(DataLoader(range(3)))
print("iterating has drawn:", not torch.equal(before, torch.get_rng_state()))

# %% [markdown]
# Each `iter(loader)` draws a **base seed** for its workers, even if it has none and shuffles nothing.
# It takes the number from the loader's `generator`, if there is one, and from the global state if not.
#
# So the seed is fixed, and "training alone" and "training with validation" are two different runs.
# Somebody will compare them.
#
# {{exercise independent_loaders}}

# %% exercise="independent_loaders"
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
    ### BEGIN SOLUTION
    return (
        DataLoader(train_set, batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed)),
        DataLoader(val_set, batch_size, generator=torch.Generator().manual_seed(seed)),
    )
    ### END SOLUTION

# %%
check(independent_loaders)

# %% [markdown]
# ## 7 Workers
#
# With `num_workers=2` the loader starts two processes.
# It deals the batches out in turn, and collects them in order.
# `CountsReads` says which worker read an item:

# %% objective="data.workers"
dataset = CountsReads(8)
for numbers, workers in DataLoader(dataset, batch_size=2, num_workers=2):
    print("items", numbers.tolist(), " read by worker", workers.tolist())

# %% [markdown]
# Whole batches, in turn: 0, 1, 0, 1.
# It also counts its reads, as `self.reads += 1`.
#
# {{predict worker_counter}}

# %%
predict("worker_counter", "c")

# %% objective="data.workers"
print("reads:", dataset.reads)
_ = list(DataLoader(dataset, batch_size=2))
print("reads without workers:", dataset.reads)

# %% [markdown]
# **Rule 4.** A worker has a *copy* of the dataset, made when it starts. What happens to the copy stays there.
#
# Caches, counters and open files live in the copies.
# And workers start anew with every epoch, so a cache that was filled in a worker is gone in the next one.
#
# ### A random generator is copied, too
#
# {{predict own_generator}}

# %%
predict("own_generator", "b")

# %% objective="data.workers"
loader = DataLoader(OwnGenerator(8), batch_size=2, num_workers=2)
first, second = (torch.cat(list(loader)).tolist() for _ in range(2))
print(first, " different:", len(set(first)), " next epoch the same:", first == second)

# %% [markdown]
# > **Classic mistake: a generator in the dataset.**
# > Both workers draw the same augmentations, and every epoch draws them again.
# > Training runs, and learns from half the variety that you think it has.
#
# Epochs repeat because each starts new workers, with new copies.
# `persistent_workers=True` keeps the workers, and their copies go on from where they are.
# But they still go on alike:

# %% objective="data.workers"
def two_epochs(**options: Any) -> list[list[int]]:
    loader = DataLoader(OwnGenerator(8), batch_size=2, num_workers=2, **options)
    return [torch.cat(list(loader)).tolist() for _ in range(2)]


first, second = two_epochs(persistent_workers=True)
print("different:", len(set(first)), " next epoch the same:", first == second)

# %% [markdown]
# "But I have read that this is the bug with `np.random`!"
# It was. Since version 1.9 PyTorch seeds the *global* generators of torch, NumPy and `random` in each worker:

# %% objective="data.workers"
for library in ("numpy", "torch"):
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(GlobalDraws(8, library), batch_size=2, num_workers=2, generator=generator)
    first, second = (torch.cat(list(loader)).tolist() for _ in range(2))
    print(f"{library}: different: {len(set(first))}  next epoch the same: {first == second}")

# %% [markdown]
# So old advice cures a bug that is gone, and modern NumPy code, which uses generators, has it again.
#
# What is there to seed from? In a worker, `torch.initial_seed()` is the base seed of this epoch plus the
# number of the worker.
# (`Seeds` is defined here in the notebook; why it then needs `fork`, and so Linux, comes below.)

# %% objective="data.workers"
class Seeds(IterableDataset):
    def __iter__(self):
        yield torch.initial_seed()


fork = {"multiprocessing_context": "fork", "num_workers": 2} if sys.platform == "linux" else {}
if fork:
    loader = DataLoader(Seeds(), generator=torch.Generator().manual_seed(0), **fork)
    (a, b), (c, d) = (torch.cat(list(loader)).tolist() for _ in range(2))
    print("second worker minus first:", b - a, "and", d - c, " next epoch the same:", a == c)

# %% [markdown]
# Different in each worker, new in each epoch, and repeatable, since the base seed came from a seeded generator.
# `worker_init_fn(worker_id)` is called in every worker when it starts, and `get_worker_info().dataset` is its
# copy of the dataset.
#
# {{exercise seeded_loader}}

# %% exercise="seeded_loader"
def seeded_loader(ds: Dataset, seed: int) -> DataLoader:
    """Return a DataLoader over `ds` with 2 workers whose random draws are all different and can be repeated.

    In `ds[i]` the dataset draws from a NumPy Generator of its own, `ds.rng`.
    A loader is iterated for several epochs. No two visits get the same draws: not in two workers, and not in
    two epochs. A new loader with the same `seed` repeats them all, whatever the global random state is;
    a loader with another seed draws others. Every item comes once in each epoch.
    This call draws nothing from the global random state and does not seed it. Order and batch size are yours.
    """
    ### BEGIN SOLUTION

    def seed_own_generator(worker_id: int) -> None:
        get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())

    return DataLoader(
        ds,
        batch_size=4,
        num_workers=2,
        worker_init_fn=seed_own_generator,
        generator=torch.Generator().manual_seed(seed),
    )
    ### END SOLUTION

# %%
check(seeded_loader)

# %% [markdown]
# The check ran no processes: it gives your loader's dataset to two make-believe workers, each with its own copy,
# number and seed. So it is the same on every platform.
# Here are real ones, where your function can reach them:

# %% objective="data.workers"
if fork:
    loader = passing(seeded_loader)(OwnGenerator(8), seed=0)
    loader.multiprocessing_context = "fork"
    draws = torch.cat([*loader, *loader]).tolist()
    print("different draws in two epochs:", len(set(draws)), "of", len(draws))

# %% [markdown]
# One thing is still not the same with and without workers: *who draws*.
# Without workers the items draw from the same global generator as the rest of the program.

# %% objective="data.workers"
def draws_and_what_follows(num_workers: int) -> tuple[list[int], int]:
    torch.manual_seed(0)
    loader = DataLoader(GlobalDraws(4, "torch"), num_workers=num_workers)
    return torch.cat(list(loader)).tolist(), int(torch.randint(1000, ()))


for num_workers in (0, 2):
    draws, next_number = draws_and_what_follows(num_workers)
    print(num_workers, "workers: draws", draws, " next number of the program:", next_number)

# %% [markdown]
# Other augmentations, and another number afterwards: the next shuffle starts from another place.
# So "the same seed" means: the same number of workers, too.
# The *order* is safe if the loader has a generator of its own.
#
# ### When workers pay
#
# A schedule on paper: each letter is one unit of time, small while a batch is loaded, large while it is trained on.

# %% objective="data.workers"
def schedule(load: int, step: int, workers: int) -> list[str]:
    """The first row is the training process, the others are its workers. Computed, not measured."""
    rows = [""] * (workers + 1)
    for i, letter in enumerate("abcdef"):
        loader = 1 + i % workers if workers else 0
        rows[loader] += letter * load
        ready = len(rows[loader])
        rows[0] = rows[0].ljust(ready, ".") + letter.upper() * step
    return rows


print(*schedule(load=3, step=1, workers=0), "", *schedule(load=3, step=1, workers=3), sep="\n")

# %% [markdown]
# Loading is slow here, and a step is fast.
# Without workers the training process does both, one after the other.
# With three workers it waits once, at the beginning, and batches arrive as fast as it can use them.
# This overlap comes from **workers**: they load ahead, by so many batches each:

# %% objective="data.workers"
DataLoader(range(8), num_workers=2).prefetch_factor

# %% [markdown]
# {{predict more_workers}}

# %%
predict("more_workers", "c")

# %% objective="data.workers"
for workers in (0, 1, 4):
    print(workers, "workers:", len(schedule(load=1, step=3, workers=workers)[0]), "units")

# %% [markdown]
# **Rule 5.** Workers hide the time of loading behind the time of training. They cannot hide more than there is.
#
# And they cost: processes are started in every epoch, and every batch is sent from one process to another.
# Here is what this machine says, so your words may differ.

# %% tags=["nbval-ignore-output"] objective="data.workers"
def seconds(dataset: Dataset, workers: int) -> float:
    start = time.perf_counter()
    for _ in DataLoader(dataset, batch_size=8, num_workers=workers):
        pass
    return time.perf_counter() - start


for name, dataset in {"slow items": SlowItems(64, 0.01), "fast items": SlowItems(64, 0)}.items():
    ratio = seconds(dataset, 2) / seconds(dataset, 0)
    print(f"{name}: an epoch with 2 workers takes {'less' if ratio < 1 else 'MORE'} time, ratio {ratio:.1f}")

# %% [markdown]
# Items that take 10 ms each gain from two workers.
# Items that are there at once lose, by a factor that depends on how long a process takes to start.
# So measure before you set `num_workers=8`; more workers than cores only bring a warning:

# %% objective="data.workers"
def warnings_of(f: Callable[[], Any]) -> list[str]:
    """The first sentence of each warning that calling `f()` gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f()
    return [str(warning.message).split(". ")[0] for warning in caught]


print(*warnings_of(lambda: DataLoader(range(8), num_workers=10_000)))

# %% [markdown]
# ### How a worker gets its dataset
#
# A process can be started in three ways, and the platform chooses one unless you do.
# (From Python's documentation; no single machine can show all three rows.)
#
# | start method | default on | how the worker gets the dataset |
# |---|---|---|
# | `fork` | Linux, up to Python 3.13 | it inherits a copy of everything in memory; nothing is pickled |
# | `spawn` | macOS, Windows | a new Python starts, imports your modules, and unpickles the dataset |
# | `forkserver` | Linux, from Python 3.14 | like `spawn`, from a server process that was started once |
#
# Pickling stores a class by its *name*. The object below travels as a few bytes that say where to look:

# %% objective="data.workers"
class DefinedHere(Dataset):
    pass


for made in (DefinedHere(), SlowItems(4, 0)):
    module = type(made).__module__
    print(type(made).__name__, "is looked up in", module, " so the bytes say:", module.encode() in pickle.dumps(made))

# %% [markdown]
# `__main__` is this notebook here. In a new process `__main__` is another program, which has no such class:

# %% objective="data.workers"
code = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
command = [sys.executable, "-c", code, pickle.dumps(DefinedHere()).hex()]
done = subprocess.run(command, capture_output=True, text=True)
print(done.stderr.strip().splitlines()[-1].split(" on ")[0])

# %% [markdown]
# This is the message that "works on my Linux" turns into on a Mac, followed by
# *"DataLoader worker (pid(s) ...) exited unexpectedly"*.
# Some things can't be pickled at all, wherever they stand:

# %% objective="data.workers"
no_way = {"lambda": lambda x: x, "open file": io.TextIOWrapper(io.BytesIO()), "generator": (i for i in [])}
for name, made in no_way.items():
    try:
        pickle.dumps(made)
    except (pickle.PicklingError, TypeError, AttributeError) as refusal:
        print(f"{name:10}", type(refusal).__name__)

# %% [markdown]
# A dataset that works everywhere is defined in a module, has named functions as transforms,
# and opens its files in the worker, at the first item. The same goes for `collate_fn` and `worker_init_fn`.
# In a script, `spawn` also wants the training under `if __name__ == "__main__":`,
# as the worker imports the script.
#
# When an item fails in a worker, the error arrives in your process, with the worker's traceback as its message:

# %% objective="data.workers"
def first_and_last_line(loader: DataLoader) -> None:
    try:
        list(loader)
    except ValueError as error:
        lines = str(error).splitlines()
        print(lines[0], "...", lines[-1], sep="\n")


first_and_last_line(DataLoader(FailsAt(3), num_workers=2))

# %% [markdown]
# The last line is the one to read. For a debugger, set `num_workers=0`: then it happens in your process.
#
# ## 8 Streams
#
# Some data have no index: a log, a socket, a file too large to search.
# An `IterableDataset` has `__iter__`, and the loader takes what comes.

# %% objective="data.streams"
print([x.tolist() for x in DataLoader(Countdown(6), batch_size=4)])

# %% [markdown]
# There are no indices to permute, so the loader cannot shuffle:

# %% tags=["raises-exception"] objective="data.streams"
DataLoader(Countdown(6), shuffle=True)

# %% [markdown]
# And there is none to deal out to workers.
#
# {{predict stream_copies}}

# %%
predict("stream_copies", "b")

# %% objective="data.streams"
numbers = torch.cat(list(DataLoader(Countdown(6), batch_size=2, num_workers=2)))
print(len(numbers), "numbers:", sorted(numbers.tolist()))

# %% [markdown]
# > **Classic mistake: an epoch that is `num_workers` times too long.**
# > Each worker reads its own copy of the stream to its end. The loss curve looks fine, only slow.
#
# Each worker has to find out which part is its own.
#
# {{exercise worker_share}}

# %% exercise="worker_share"
def worker_share(stream: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of `stream` that fall to this worker, in their order.

    It is called in the `__iter__` of an IterableDataset, and each worker process has a `stream` of its own with
    all of the items. Over all workers every item is yielded once, and no worker gets two more than another one.
    In the main process, without workers, all items are yielded.
    Which item falls to whom is yours to choose; items may be anything and may repeat.
    `stream` may have no length and no end: before the first item is yielded, no more are read than there are
    workers (in the main process: one).
    """
    ### BEGIN SOLUTION
    worker = get_worker_info()
    if worker is None:
        return iter(stream)
    return islice(stream, worker.id, None, worker.num_workers)
    ### END SOLUTION

# %%
check(worker_share)

# %% [markdown]
# In use, with two real workers where they can be forked, and without any elsewhere:

# %% objective="data.streams"
share = passing(worker_share)


class SharedCountdown(Countdown):
    def __iter__(self):
        return share(super().__iter__())


print(sorted(torch.cat(list(DataLoader(SharedCountdown(6), **fork))).tolist()))

# %% [markdown]
# With several processes that train (notebook 08), deal out by process *and* worker.
#
# How do you shuffle a stream? A little, with a buffer: fill it, hand out one of its items at random, refill.

# %% objective="data.streams"
def shuffle_a_little(stream: Iterable[Any], size: int, generator: random.Random) -> Iterator[Any]:
    buffer = []
    for item in stream:
        buffer.append(item)
        if len(buffer) == size:
            yield buffer.pop(generator.randrange(size))
    generator.shuffle(buffer)
    yield from buffer


mixed = list(shuffle_a_little(range(100), 10, random.Random(0)))
print("all there:", sorted(mixed) == list(range(100)), mixed[:8])
print("places too early, at most:", max(item - place for place, item in enumerate(mixed)))

# %% [markdown]
# No item can come more than 9 places early: a sorted stream stays nearly sorted.
# Shuffle the files first, then use a buffer.
#
# ## 9 To the device
#
# The last station is the copy to the GPU.
# We have none here, so we watch what is *asked for*.
# This log is the one of notebook 01, and also sees pinning:

# %% objective="data.transfer"
class TransferLog(TorchFunctionMode):
    """Note each pin and each move, and let `meta` stand in for CUDA."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.pin_memory:
            print("  pin_memory")
            return args[0]
        if func is not torch.Tensor.to:
            return func(*args, **kwargs)
        print(f"  to {args[1]}, non_blocking={kwargs.get('non_blocking', False)}")
        return args[0].to("meta")

# %% [markdown]
# Three loops that you find in training scripts:

# %% objective="data.transfer"
loops = {
    "plain": lambda x: x.to("cuda"),
    "non_blocking": lambda x: x.to("cuda", non_blocking=True),
    "pinned in the loop": lambda x: x.pin_memory().to("cuda", non_blocking=True),
}
for name, move in loops.items():
    print(name)
    with TransferLog():
        move(batch)

# %% [markdown]
# What do they mean on a machine with a GPU?
#
# > **Said here, not shown.** From PyTorch's documentation, without numbers:
# >
# > - *plain*: Python waits until the copy is done.
# > - *non_blocking* from ordinary memory: the data has to be staged first, and Python waits for that.
# >   The flag alone gains little.
# > - *pinned in the loop*: `pin_memory()` is itself a copy, made by the process that trains.
# > - `DataLoader(pin_memory=True)` makes that copy in a thread of its own, ahead of time.
# >   Together with `non_blocking=True` it lets Python go on at once.
#
# So the two belong together, and the pinning belongs into the loader.
#
# {{predict copy_and_compute}}

# %%
predict("copy_and_compute", "a")

# %% objective="data.transfer"
def transfers(waits: bool, copy: int = 2, kernels: int = 3) -> list[str]:
    """On paper: a..c copies, A..C kernels of three batches on one stream; `w` Python waits, `i` it issues."""
    host = gpu = ""
    for letter in "abc":
        host += "i"
        gpu = gpu.ljust(len(host), ".") + letter * copy
        host = host.ljust(len(gpu), "w") if waits else host
        gpu += letter.upper() * kernels
    return [f"Python {host}", f"GPU    {gpu}"]


print("waiting for each copy", *transfers(waits=True), sep="\n")
print("pinned and non_blocking", *transfers(waits=False), sep="\n")

# %% [markdown]
# Look at the rows of the GPU: they are the same.
# On one stream a copy waits for the kernels before it and the kernels for the copy, with and without the flag.
# What pinning and `non_blocking` free is **Python**: it has issued all three batches early on,
# and can fetch the next one.
#
# You will read that these two options "overlap data loading with computing". Three different things are meant:
#
# | overlap of | comes from |
# |---|---|
# | loading and training | workers, which load ahead |
# | Python and the copy | `pin_memory=True` in the loader together with `non_blocking=True` |
# | the copy and kernels | a second stream, which you have to use yourself |
#
# And without an accelerator, pinning only warns:

# %% objective="data.transfer"
pinning = DataLoader(range(3), pin_memory=True)
print(*warnings_of(lambda: list(pinning)))

# %% [markdown]
# ## 10 Two pipelines to keep
#
# ### Points, for notebook 05
#
# Your dataset and your loaders, put together:

# %% objective="data.splits"
train, val = passing(make_loaders)(passing(ToySine)(300, seed=0), seed=0)
x, y = next(iter(train))
print("a batch:", tuple(x.shape), tuple(y.shape), x.dtype)
print("items that come in an epoch:", sum(len(x) for loader in (train, val) for x, _ in loader))

# %% [markdown]
# How good is a model that knows nothing, and one that knows the sine? Both numbers are marks to aim between:

# %% objective="data.batches"
mean = passing(mean_loss)
print(f"predicting 0:      {mean(val, lambda x, y: F.mse_loss(torch.zeros_like(y), y)):.2f}")
print(f"predicting sin(x): {mean(val, lambda x, y: F.mse_loss(x.sin(), y)):.2f}")

# %% [markdown]
# The second one is what noise costs. A validation loss far below it would be a leak.
#
# ### Tokens, for notebook 10
#
# A language model reads tokens and is asked for the next one, at every place of a window.
# Our language has 16 tokens and one rule: how likely each token follows each other one.

# %% objective="data.tokens"
source = MarkovSource(vocabulary=16, seed=0)
tokens = source.tokens(4000, seed=0)
print(tokens[:10].tolist(), "...", tuple(tokens.shape), tokens.dtype)
print(f"entropy rate {source.entropy_rate():.2f}, ln 16 = {math.log(16):.2f}")

# %% [markdown]
# Since we know the rule, we know the best loss that any model can reach: the entropy rate.
# Guessing costs ln 16. Between the two lies everything there is to learn.
#
# {{exercise TokenWindows}}

# %% exercise="TokenWindows"
class TokenWindows(Dataset):
    """Every window of a token stream with its targets: `TokenWindows(tokens, length)`.

    `tokens` is a 1-D int64 tensor. Item `i` is a pair `(inputs, targets)` of shape (length,) each: the tokens
    `i` to `i + length - 1`, and for each of them the token that follows it.
    The dataset has as many items as there are such windows; a stream that is too short for one has none.
    An index of `len` or more raises IndexError; a negative one never comes.
    """

    def __init__(self, tokens: Tensor, length: int) -> None:
        ### BEGIN SOLUTION
        self.tokens, self.length = tokens, length
        ### END SOLUTION

    def __len__(self) -> int:
        ### BEGIN SOLUTION
        return max(len(self.tokens) - self.length, 0)
        ### END SOLUTION

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        ### BEGIN SOLUTION
        if index >= len(self):
            raise IndexError(index)
        window = self.tokens[index : index + self.length + 1]
        return window[:-1], window[1:]
        ### END SOLUTION

# %%
check(TokenWindows)

# %% [markdown]
# Windows overlap. That is fine within a part, and a trap when you split:
#
# {{predict window_leak}}

# %%
predict("window_leak", "c")

# %% objective="data.tokens"
Windows = passing(TokenWindows)
places = Windows(torch.arange(1000), 32)  # each token is its own position
train, val = random_split(places, [0.9, 0.1], generator=torch.Generator().manual_seed(0))
seen, asked = (set(torch.cat([inputs for inputs, _ in part]).tolist()) for part in (train, val))
print(f"places of validation that training has, too: {len(asked & seen) / len(asked):.0%}")

# %% [markdown]
# Rule 3 again: cut the stream in two, *then* cut windows.

# %% objective="data.tokens"
train_set, val_set = (Windows(part, 32) for part in (tokens[:3600], tokens[3600:]))
train, val = passing(independent_loaders)(train_set, val_set, batch_size=64, seed=0)
inputs, targets = next(iter(train))
print(tuple(inputs.shape), tuple(targets.shape), " shifted by one:", torch.equal(inputs[:, 1:], targets[:, :-1]))

# %% [markdown]
# Is the pipeline right? The simplest model that can learn the rule counts which token follows which.
# It should come close to the entropy rate, and not below.

# %% objective="data.tokens"
counts = torch.ones(16, 16)  # one of each, so that nothing is impossible
for inputs, targets in train:
    counts.index_put_((inputs.flatten(), targets.flatten()), torch.tensor(1.0), accumulate=True)
log_probability = (counts / counts.sum(dim=1, keepdim=True)).log()


def next_token_loss(inputs: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(log_probability[inputs].flatten(0, 1), targets.flatten())


print(f"validation loss {mean(val, next_token_loss):.1f}, entropy rate {source.entropy_rate():.1f}")

# %% [markdown]
# A loss clearly *below* the entropy rate would be impossible for an honest model.
# It is the symptom of targets that are not shifted, or of validation data in training. Keep this test.
#
# ### Real text
#
# For text, a character is the simplest token.
# Python ships a text of its own, so that nothing has to be downloaded. (Its length depends on your Python.)

# %% objective="data.tokens"
from pydoc_data.topics import topics

names = sorted(topics)
held_out = names[::10]  # whole topics, as paragraphs come more than once within one
training_text = "".join(topics[name] for name in names if name not in held_out)
alphabet = sorted(set(training_text))
print("topics held out:", len(held_out) > 5, " characters:", len(training_text) > 100_000)

# %% objective="data.tokens"
number_of = {character: number for number, character in enumerate(alphabet)}
text_tokens = torch.tensor([number_of[character] for character in training_text])
print("and back:", "".join(alphabet[i] for i in text_tokens[:1000].tolist()) == training_text[:1000])
inputs, targets = Windows(text_tokens, 64)[0]
print(tuple(inputs.shape), torch.equal(inputs[1:], targets[:-1]))

# %% [markdown]
# The alphabet comes from the training text alone (rule 3): a character that only the held-out text has needs
# a token for "unknown".
#
# Whole topics are a beginning. Topics also quote one another, so that parts of a held-out text may stand in training
# all the same; notebook 10 finds these parts and takes them out.
#
# ## The answer
#
# > You write `for x, y in loader`. Which items are in this batch, who chose them, and would they be the same
# > tomorrow?
#
# The **sampler** chose the indices. The **dataset** answered them, in this process or in the copy that a worker
# has. The **collate** made a batch of the answers.
#
# Tomorrow they are the same if every random number comes from a generator that is seeded and that nobody else
# draws from. There are four places to look at:
#
# | who draws | from what |
# |---|---|
# | the split | the generator of `random_split`, else the global state |
# | the order | the loader's generator, else the global state; or a sampler that knows the epoch |
# | items, without workers | whatever the dataset draws from: the global state, or a generator of its own |
# | items, in workers | global states seeded with base seed and worker; a generator of its own is copied, and yours to seed |
#
# Here is the token pipeline in two programs: a plain one, and one that validates and draws other numbers as well.

# %% objective="data.seeding"
def training_batches(other_draws: int, validate: bool) -> list[Tensor]:
    parts = Windows(tokens[:200], 8), Windows(tokens[200:260], 8)
    train, val = passing(independent_loaders)(*parts, batch_size=32, seed=0)
    batches = []
    for _ in range(2):
        torch.rand(other_draws)
        batches += [inputs for inputs, _ in train]
        validate and list(val)
    return batches


plain, busy = training_batches(0, validate=False), training_batches(7, validate=True)
print(len(plain), "batches, the same in both programs:", all(map(torch.equal, plain, busy)))

# %% [markdown]
# ## Recap
#
# - A map-style dataset has a length and items. Draw what is random when it is made, not when it is read.
# - Sampler, items, collate: a loader is these three (rule 2). It does not shuffle unless you say so.
# - The mean of an epoch is over samples. Count those that came.
# - Only lengths know what is padding. Labels of -100 stay out of the loss.
# - Split first, by whatever items have in common (rule 3). Two parts share one dataset object.
# - A loader draws from its generator or from the global state, and once per epoch even if nothing is shuffled.
# - A worker has a copy of everything, generators too (rule 4). It hides loading behind training (rule 5).
# - A stream has to be dealt out by the workers themselves.
# - Pinning and `non_blocking` free Python, and only together.
# - Targets are the inputs shifted by one. A loss below the entropy rate is a leak.

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] write a dataset that is the same whoever reads it, and when? (`ToySine`, [section 1](#1-A-dataset-answers-two-questions))
# - [ ] write a loader in ten lines? (`load_batches`, [section 2](#2-A-loader-is-an-order-a-pile-and-a-collate))
# - [ ] report the loss of an epoch whose last batch is small? (`mean_loss`, [section 2](#2-A-loader-is-an-order-a-pile-and-a-collate))
# - [ ] pad a batch and mask it, although 0 is a token? (`collate_pad`, [section 3](#3-Collate-from-a-list-of-items-to-a-batch))
# - [ ] split so that tomorrow's run validates on the same items? (`make_loaders`, [section 4](#4-Splits-without-leaks))
# - [ ] keep all pictures of a patient on one side? (`group_split`, [section 4](#4-Splits-without-leaks))
# - [ ] augment training and not validation? (`transformed_split`, [section 4](#4-Splits-without-leaks))
# - [ ] find the order of epoch 7 again? (`EpochSampler`, [section 5](#5-Random-numbers-who-draws-and-from-what))
# - [ ] validate without changing what is trained? (`independent_loaders`, [section 6](#6-A-loader-that-draws-without-being-asked))
# - [ ] say what two workers share, and seed what they don't? (`seeded_loader`, [section 7](#7-Workers))
# - [ ] say for a given load and step whether workers pay? ([section 7](#7-Workers))
# - [ ] deal a stream out without asking anyone? (`worker_share`, [section 8](#8-Streams))
# - [ ] say which overlap comes from workers, from pinning, from streams? ([section 9](#9-To-the-device))
# - [ ] cut a text into inputs and targets, and know that the cut is right? (`TokenWindows`, [section 10](#10-Two-pipelines-to-keep))

# %% tags=["nbval-ignore-output"]
progress()
