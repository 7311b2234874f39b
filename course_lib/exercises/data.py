"""The exercises and questions of notebook 04: data."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    get_worker_info,
    random_split,
)

from course_lib.checking import Exercise, Question, case, observe
from course_lib.exercises.simulated_workers import SimulatedWorker, simulated_epochs
from course_lib.reference import data as reference


class Numbered(Dataset):
    """The numbers 0 to `n - 1`, so that an item says which one it is."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return int(index)


def other_random_states() -> tuple:
    """The global random states of NumPy and of `random`, for comparing."""
    _, words, position, *_ = np.random.get_state()
    return words.tobytes(), position, random.getstate()


def numbers_of(loader: Iterable) -> list[int]:
    """All numbers that an epoch of a loader over `Numbered` yields, in order."""
    return [int(number) for batch in loader for number in torch.as_tensor(batch).flatten()]


def are_pair_of(kind: type, value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, kind) for part in value)


# ---- ToySine -----------------------------------------------------------------------------------------------

ToySine = Exercise(
    reference.ToySine,
    title="A dataset that stays the same",
    objective="data.datasets",
    difficulty=1,
    minutes=10,
    points=1,
    observes=[observe.value()],
    hints=(
        "Ask for `ds[0]` twice, and for `ds[2]` before `ds[1]`. When must the random numbers be drawn so that "
        "you get the same items each time?",
        "Draw all `n` points in `__init__`, from `torch.Generator().manual_seed(seed)`, and keep them. "
        "`__getitem__` then only looks up. Which shape must the kept tensors have so that one row is (1,)?",
        "`torch.rand(n, 1, generator=generator)` lies between 0 and 1; stretch it to -pi to pi and keep it as "
        "`self.x`, and its sine as `self.y`. A row `self.x[index]` has the shape (1,), and an index past the "
        "end raises IndexError by itself.",
    ),
    why="What is drawn in `__init__` is drawn once, so that items don't depend on when, how often or in which "
    "order they are read. A generator of its own keeps the dataset from moving anyone else's random numbers, "
    "and from being moved. With items of shape (1,) a batch is (B, 1), the shape of a linear layer's output.",
)


@ToySine.cases
def _(rng):
    yield case("4 points", 4, 0)
    yield case("9 points, another seed", 9, 1)
    yield case("200 points", 200, 7)


@ToySine.scenario
def _(answer: Any, n: int, seed: int) -> Any:
    states = other_random_states()
    ds, other_seed = answer(n, seed), answer(n, seed + 1)
    if not isinstance(ds, Dataset):
        return ds
    backwards = [ds[i] for i in reversed(range(n))][::-1]
    items, again, others = ([d[i] for i in range(n)] for d in (ds, answer(n, seed), other_seed))
    return {
        "length": len(ds),
        "an item": described(items[0]),
        "a batch of 4": described(default_collate(items[:4])),
        "the same items when read backwards and forwards": alike(backwards, items),
        "the same items for the same seed": alike(items, again),
        "other items for another seed": not alike(items, others),
        "IndexError past the end": raises_index_error(ds, n),
        **curve_facts(items),
        "random states of NumPy and random": "kept" if states == other_random_states() else "changed",
    }


def described(value: Any) -> Any:
    """Shapes and dtypes in place of tensors."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype)[6:]} of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return tuple(map(described, value))
    return type(value).__name__


def alike(first: Any, second: Any) -> bool:
    return str(torch_numbers(first)) == str(torch_numbers(second))


def torch_numbers(value: Any) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.tolist()
    return [torch_numbers(item) for item in value] if isinstance(value, (tuple, list)) else value


def raises_index_error(ds: Dataset, index: int) -> bool:
    try:
        ds[index]
    except IndexError:
        return True
    return False


def curve_facts(items: list) -> dict[str, Any]:
    x, y = (torch.tensor([float(item[part]) for item in items]) for part in (0, 1))
    return {
        "x between -pi and pi": bool((x.abs() <= math.pi + 1e-6).all()),
        "x on both sides of 0": len(x) < 100 or bool((x < 0).any() and (x > 0).any()),
        "hardly any x twice": len(set(x.tolist())) > 0.9 * len(x),
        "y at most 0.5 from sin(x)": bool(((y - x.sin()).abs() <= 0.5).all()),
    }


@ToySine.alternative
class DrawsWithNumPy(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-np.pi, np.pi, size=(n, 1)).astype(np.float32)
        self.points = list(zip(torch.from_numpy(x), torch.from_numpy(np.sin(x))))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index]


@ToySine.alternative
class IsATensorDataset(TensorDataset):
    def __init__(self, n, seed):
        x = torch.empty(n, 1).uniform_(-math.pi, math.pi, generator=torch.Generator().manual_seed(seed))
        super().__init__(x, torch.sin(x))


@ToySine.alternative
class SeedsEachItem(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index >= self.n:
            raise IndexError("no such point")
        rng = random.Random(self.seed * 1_000_003 + index)
        x = rng.uniform(-math.pi, math.pi)
        return torch.tensor([x]), torch.tensor([math.sin(x) + rng.uniform(-0.1, 0.1)])


@ToySine.alternative
class PutsTheGlobalStateBack(Dataset):
    def __init__(self, n, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.x = torch.rand(n) * 2 * math.pi - math.pi

    def __len__(self):
        return self.x.numel()

    def __getitem__(self, index):
        x = self.x[index].reshape(1)
        return x, x.sin()


@ToySine.misconception(
    "You draw a point when it is asked for. Then item 3 is another one on each visit: an epoch never sees the "
    "data of the last one again, and validation is measured on new points each time."
)
class DrawsAnewOnEachVisit(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index >= self.n:
            raise IndexError(index)
        x = (torch.rand(1) * 2 - 1) * math.pi
        return x, torch.sin(x)


@ToySine.misconception(
    "Your dataset draws from its own generator, but at each visit. Which numbers item 3 gets then depends on "
    "what was read before it, and shuffling shows other data. Draw everything in `__init__`."
)
class OwnGeneratorButOnEachVisit(Dataset):
    def __init__(self, n, seed):
        self.n, self.generator = n, torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index >= self.n:
            raise IndexError(index)
        x = (torch.rand(1, generator=self.generator) * 2 - 1) * math.pi
        return x, torch.sin(x)


@ToySine.misconception(
    "Your items have no dimensions, so a batch is (B,), and the output of a linear layer will be (B, 1): the "
    "two broadcast to (B, B) in the loss. Items of shape (1,) make batches of (B, 1)."
)
class ScalarItems(Dataset):
    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = (torch.rand(n, generator=generator) * 2 - 1) * math.pi

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], torch.sin(self.x[index])


@ToySine.misconception(
    "You take no notice of the seed: the points come from the global random state, wherever the program has "
    "left it, and they move everyone else's random numbers."
)
class IgnoresTheSeed(Dataset):
    def __init__(self, n, seed):
        self.x = (torch.rand(n, 1) * 2 - 1) * math.pi
        self.y = torch.sin(self.x)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@ToySine.misconception(
    "Your dataset seeds the global random state. Making it resets the random numbers of the whole program: "
    "dropout, shuffling and initialization all start over. Give it a `torch.Generator` of its own."
)
class SeedsTheWholeProgram(Dataset):
    def __init__(self, n, seed):
        torch.manual_seed(seed)
        self.x = (torch.rand(n, 1) * 2 - 1) * math.pi
        self.y = torch.sin(self.x)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@ToySine.misconception(
    "Your dataset seeds NumPy's global state. That is a global state too: other code in the program draws from "
    "it. `np.random.default_rng(seed)` makes a generator of your own."
)
class SeedsNumPyGlobally(Dataset):
    def __init__(self, n, seed):
        np.random.seed(seed)
        self.x = torch.from_numpy(np.random.uniform(-np.pi, np.pi, (n, 1))).float()
        self.y = torch.sin(self.x)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@ToySine.misconception(
    "You made a generator and did not seed it. A new `torch.Generator()` always starts from the same constant, "
    "so that every seed gives the same points."
)
class LeavesItsGeneratorUnseeded(Dataset):
    def __init__(self, n, seed):
        self.x = (torch.rand(n, 1, generator=torch.Generator()) * 2 - 1) * math.pi
        self.y = torch.sin(self.x)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@ToySine.misconception(
    "`__len__` counts the tensors that you keep, x and y, and not the points. The loader believes it and reads "
    "two items in an epoch."
)
class CountsItsTensors(Dataset):
    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        x = (torch.rand(n, 1, generator=generator) * 2 - 1) * math.pi
        self.data = (x, torch.sin(x))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[0][index], self.data[1][index]


@ToySine.misconception(
    "Your items are float64: NumPy draws 64-bit numbers and `from_numpy` keeps them. The weights of a model "
    "are float32, and a linear layer refuses to mix the two."
)
class KeepsNumPysDtype(Dataset):
    def __init__(self, n, seed):
        x = np.random.default_rng(seed).uniform(-np.pi, np.pi, (n, 1))
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(np.sin(x))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@ToySine.misconception(
    "Any index gives a point, so that `for x, y in dataset` never ends: Python stops at the first IndexError. "
    "Raise it for an index of `n` or more."
)
class NeverEnds(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        x = (torch.rand(1, generator=generator) * 2 - 1) * math.pi
        return x, torch.sin(x)


# ---- load_batches ------------------------------------------------------------------------------------------

load_batches = Exercise(
    reference.load_batches,
    title="A loader of your own",
    objective="data.batches",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "Write the loop as a person would do it: take the next index, read its item, put it on the pile. When "
        "is the pile a batch? What is left on it at the end?",
        "The function is a generator: `yield` hands out one batch and waits until the next one is asked for. "
        "`order` may be an iterator, so loop over it once and take no slices of it.",
        "Keep a list. `for index in order`, append `dataset[index]`; when the list has `batch_size` items, "
        "yield what `collate_fn` makes of it and start a new list. After the loop, yield what is left, if any.",
    ),
    why="This loop is all that a DataLoader without workers does: the order comes from the sampler, the items "
    "from `dataset[index]`, the batch from `collate_fn`. Since it yields, it holds one batch at a time in "
    "memory and not the epoch.",
)


class NotesReads(Numbered):
    """Numbers times ten; notes which were read."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.read: list[int] = []

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return 10 * super().__getitem__(index)


@load_batches.cases
def _(rng):
    yield case("six items in order, by two", 6, [0, 1, 2, 3, 4, 5], 2)
    yield case("five items backwards, by two", 5, [4, 3, 2, 1, 0], 2)
    yield case("an order that leaves out and repeats", 8, [5, 0, 5, 2], 3)
    yield case("one batch, larger than what there is", 3, [2, 0, 1], 10)
    yield case("batches of one", 3, [1, 2, 0], 1)
    yield case("nothing to read", 3, [], 2)


@load_batches.scenario
def _(answer: Any, n: int, order: list[int], batch_size: int) -> Any:
    dataset = NotesReads(n)
    batches = answer(dataset, iter(order), batch_size, tuple)
    if not isinstance(batches, Iterable):
        return batches
    seen = [("before the first batch", list(dataset.read))]
    for batch in itertools.islice(batches, 20):
        seen.append((batch, list(dataset.read)))
    return [{"batch": batch, "read so far": read} for batch, read in seen]


@load_batches.alternative
def takes_slices_of_an_iterator(dataset, order, batch_size, collate_fn):
    order = iter(order)
    while indices := list(itertools.islice(order, batch_size)):
        yield collate_fn([dataset[index] for index in indices])


@load_batches.alternative
def lets_torch_group_the_indices(dataset, order, batch_size, collate_fn):
    for indices in BatchSampler(order, batch_size, drop_last=False):
        yield collate_fn([dataset[i] for i in indices])


@load_batches.alternative
def cuts_a_list_of_indices(dataset, order, batch_size, collate_fn):
    order = list(order)
    starts = range(0, len(order), batch_size)
    return (collate_fn([dataset[i] for i in order[start : start + batch_size]]) for start in starts)


@load_batches.misconception(
    "The last batch is missing where it is not full. `drop_last=True` does this on purpose; by default every "
    "item is yielded."
)
def drops_the_last_batch(dataset, order, batch_size, collate_fn):
    batch = []
    for index in order:
        batch.append(dataset[index])
        if len(batch) == batch_size:
            yield collate_fn(batch)
            batch = []


@load_batches.misconception(
    "You read the dataset from its first item to its last. The order is the sampler's affair: it may shuffle, "
    "leave out and repeat."
)
def reads_in_the_datasets_order(dataset, order, batch_size, collate_fn):
    for start in range(0, len(dataset), batch_size):
        stop = min(start + batch_size, len(dataset))
        yield collate_fn([dataset[index] for index in range(start, stop)])


@load_batches.misconception(
    "You yield the list of items. A model wants a batch: `collate_fn` makes it of the list."
)
def forgets_to_collate(dataset, order, batch_size, collate_fn):
    batch = []
    for index in order:
        batch.append(dataset[index])
        if len(batch) == batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


@load_batches.misconception(
    "You read all items before the first batch is out. An epoch of images does not fit into memory: read the "
    "items of a batch when it is asked for."
)
def reads_everything_first(dataset, order, batch_size, collate_fn):
    items = [dataset[index] for index in order]
    for start in range(0, len(items), batch_size):
        yield collate_fn(items[start : start + batch_size])


@load_batches.misconception(
    "A list of batches is the whole epoch at once. Yield each batch when it is asked for, and only one has to "
    "be in memory."
)
def returns_a_list(dataset, order, batch_size, collate_fn):
    groups = BatchSampler(order, batch_size, drop_last=False)
    return [collate_fn([dataset[index] for index in group]) for group in groups]


@load_batches.misconception(
    "After the loop you yield what is left even where nothing is left: one empty batch too many. A model that "
    "gets it returns NaN for its mean."
)
def yields_an_empty_batch(dataset, order, batch_size, collate_fn):
    batch = []
    for index in order:
        batch.append(dataset[index])
        if len(batch) == batch_size:
            yield collate_fn(batch)
            batch = []
    yield collate_fn(batch)


@load_batches.misconception(
    "You slice `order`, but an order need not be a list: a sampler gives an iterator, which has no length and "
    "no slices."
)
def slices_the_order(dataset, order, batch_size, collate_fn):
    for start in range(0, len(order), batch_size):
        yield collate_fn([dataset[index] for index in order[start : start + batch_size]])


# ---- mean_loss ---------------------------------------------------------------------------------------------

mean_loss = Exercise(
    reference.mean_loss,
    title="The mean over samples, not over batches",
    objective="data.batches",
    difficulty=2,
    minutes=8,
    points=1,
    observes=[observe.value(rtol=1e-5, atol=1e-6)],
    hints=(
        "Take 4 samples with losses 1, 1, 1 and 9, in batches of 3 and 1. What is their mean, and what is the "
        "mean of the two batch means?",
        "The mean of a batch times its number of samples is the sum of its losses. Add these sums up, and count "
        "the samples that came by.",
        "For each batch, add `.item()` of its loss times `len(x)` to a total, and `len(x)` to a counter. Divide "
        "the one by the other once, at the end.",
    ),
    why="The last batch is mostly smaller, and a mean of batch means gives its samples more weight than the "
    "others have. Only what came by can be counted: `len(loader.dataset)` does not know about a sampler or "
    "`drop_last`, and a stream has no length at all.",
)


def squared_error(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().mean()


def batches_of(losses: list[float], sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Batches of these sizes whose samples have these squared errors."""
    x = torch.tensor(losses).sqrt()[:, None]
    return list(zip(x.split(sizes), torch.zeros_like(x).split(sizes)))


class WithoutLength:
    """Batches that can be iterated, and no more."""

    def __init__(self, batches: list) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator:
        return iter(self._batches)


@mean_loss.cases
def _(rng):
    yield case("two equal batches", batches_of([1.0, 3.0, 5.0, 7.0], [2, 2]), squared_error)
    yield case(
        "losses 1, 1, 1 and 9 in batches of 3 and 1", batches_of([1, 1, 1, 9.0], [3, 1]), squared_error
    )
    yield case("one sample", batches_of([-0.0 + 4.0], [1]), squared_error)
    data = torch.randn(10, 4, generator=rng)
    ds = TensorDataset(data.T.contiguous().T, torch.randn(10, 4, generator=rng))
    yield case("a loader with an uneven last batch", quiet(ds, 4), squared_error)
    yield case("a loader with a sampler of 3 out of 10", quiet(ds, 2, sampler=[7, 1, 4]), squared_error)
    yield case("a loader that drops its last batch", quiet(ds, 4, drop_last=True), squared_error)
    yield case("a stream without length", WithoutLength(batches_of([2, 4, 6.0], [2, 1])), squared_error)
    x = torch.randn(6, 3, generator=rng, requires_grad=True)
    rows = [(x[:4], torch.zeros(4, 3)), (x[4:].mT.contiguous().mT, torch.zeros(2, 3))]
    yield case("predictions that autograd follows", rows, squared_error)


def quiet(ds: Dataset, batch_size: int, **options: Any) -> DataLoader:
    """A loader that draws nothing from the global random state."""
    return DataLoader(ds, batch_size, generator=torch.Generator().manual_seed(0), **options)


@mean_loss.alternative
def sums_then_divides_in_one_line(loader, loss_fn):
    pairs = [(float(loss_fn(x, y)), x.shape[0]) for x, y in loader]
    return sum(loss * n for loss, n in pairs) / sum(n for _, n in pairs)


@mean_loss.alternative
def keeps_a_running_mean(loader, loss_fn):
    mean, seen = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            seen += len(y)
            mean += (loss_fn(x, y).item() - mean) * len(y) / seen
    return mean


@mean_loss.alternative
def weighs_with_numpy(loader, loss_fn):
    losses, sizes = zip(*[(loss_fn(*batch).item(), len(batch[0])) for batch in loader])
    return float(np.average(losses, weights=sizes))


@mean_loss.misconception(
    "You averaged the batch means. The last batch is smaller, and its samples get more weight than the others: "
    "a batch of one counts as much as a batch of three."
)
def averages_the_batch_means(loader, loss_fn):
    losses = [loss_fn(x, y).item() for x, y in loader]
    return sum(losses) / len(losses)


@mean_loss.misconception(
    "You divided by `len(loader.dataset)`. With a sampler or `drop_last` the loader yields fewer samples than "
    "the dataset has, and the loss looks better than it is. Count the samples that came by."
)
def divides_by_the_dataset(loader, loss_fn):
    total, seen = 0.0, 0
    for x, y in loader:
        total += loss_fn(x, y).item() * len(x)
        seen += len(x)
    return total / (len(loader.dataset) if hasattr(loader, "dataset") else seen)


@mean_loss.misconception(
    "You divided by the number of batches times the size of the first one. The last batch has only what is "
    "left, so this counts samples that do not exist."
)
def trusts_the_first_batch_size(loader, loss_fn):
    batches = list(loader)
    total = sum(loss_fn(x, y).item() * len(x) for x, y in batches)
    return total / (len(batches) * len(batches[0][0]))


@mean_loss.misconception(
    "You added up the mean losses of the batches and divided by the number of samples. A mean has been divided "
    "once already: multiply it by the size of its batch first."
)
def divides_twice(loader, loss_fn):
    total, seen = 0.0, 0
    for x, y in loader:
        total += loss_fn(x, y).item()
        seen += len(x)
    return total / seen


@mean_loss.misconception(
    "You returned a tensor. Where the loss belongs to a graph, adding such tensors up keeps the graph of every "
    "batch in memory; `.item()` gives a plain number."
)
def returns_a_tensor(loader, loss_fn):
    total, seen = 0.0, 0
    for x, y in loader:
        total = total + loss_fn(x, y) * len(x)
        seen += len(x)
    return total / seen


@mean_loss.misconception(
    "Your sum is right, and it is still a sum: divide by the number of samples that came by."
)
def forgets_to_divide(loader, loss_fn):
    return sum(loss_fn(x, y).item() * len(x) for x, y in loader)


# ---- collate_pad -------------------------------------------------------------------------------------------

collate_pad = Exercise(
    reference.collate_pad,
    title="Pad, and say what is padding",
    objective="data.collate",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "Take sequences of 3 and 1 tokens by hand: which rows must the three tensors have? What tells padding "
        "from a token whose id is 0?",
        "`torch.nn.utils.rnn.pad_sequence` pads a list of tensors; look at its `batch_first` and "
        "`padding_value`. The mask is what you get when you pad ones: it knows lengths, not ids.",
        "Pad three times with `batch_first=True`: the sequences with 0, `torch.ones_like` of each with 0, and "
        "the sequences with -100.",
    ),
    why="Only the length of a sequence says where its padding begins: 0 may be a token. `F.cross_entropy` "
    "leaves out targets of -100, its `ignore_index`, so that padding adds nothing to the loss and is not "
    "counted in its mean. The mask is for the model, which must not attend to padding.",
)


@collate_pad.cases
def _(rng):
    yield case("three tokens and one", [torch.tensor([5, 6, 7]), torch.tensor([8])])
    yield case("a token that is 0", [torch.tensor([0, 4, 0]), torch.tensor([3, 0])])
    yield case("a batch of one", [torch.tensor([2, 3])])
    yield case("equal lengths", [torch.tensor([1, 2]), torch.tensor([3, 4])])
    yield case(
        "the longest comes last", [torch.tensor([9]), torch.tensor([1, 2, 3, 4]), torch.tensor([7, 7])]
    )
    yield case("ids that are negative", [torch.tensor([-1, 5]), torch.tensor([-2])])
    long = torch.randint(0, 50, (40,), generator=rng)
    yield case("every third id of a longer stream", [long[::3], long[1:5], long[7::3]])
    lengths = torch.randint(1, 20, (6,), generator=rng).tolist()
    yield case("six sequences", [torch.randint(0, 9, (n,), generator=rng) for n in lengths])


@collate_pad.scenario
def _(answer: Any, batch: list[Tensor]) -> Any:
    result = answer(batch)
    mask = result.get("attention_mask") if isinstance(result, dict) else None
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        result = {**result, "attention_mask": mask.long()}  # both dtypes are right
    return dict(sorted(result.items())) if type(result) is dict else result


@collate_pad.alternative
def fills_row_by_row(batch):
    shape = len(batch), max(map(len, batch))
    ids, labels = torch.zeros(shape, dtype=torch.long), torch.full(shape, -100)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, sequence in enumerate(batch):
        ids[row, : len(sequence)] = labels[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@collate_pad.alternative
def compares_positions_with_lengths(batch):
    ids = pad_sequence(batch, batch_first=True)
    lengths = torch.tensor([len(sequence) for sequence in batch])
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    return {"labels": ids.masked_fill(~mask, -100), "attention_mask": mask.long(), "input_ids": ids}


@collate_pad.alternative
def pads_with_functional(batch):
    longest = max(len(sequence) for sequence in batch)

    def pad(tensors, value):
        return torch.stack([F.pad(t, (0, longest - len(t)), value=value) for t in tensors])

    ones = [torch.ones(len(sequence), dtype=torch.long) for sequence in batch]
    return {"input_ids": pad(batch, 0), "attention_mask": pad(ones, 0), "labels": pad(batch, -100)}


@collate_pad.misconception(
    "Your mask asks whether the id is 0. But 0 may be a token, and then a real token is hidden from the model. "
    "Only the lengths know where padding begins."
)
def masks_the_id_zero(batch):
    ids = pad_sequence(batch, batch_first=True)
    labels = pad_sequence(batch, batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


@collate_pad.misconception(
    "Your labels are -100 wherever the id is 0. But 0 may be a token, and then the model is never asked to "
    "predict it. Only the lengths know where padding begins."
)
def ignores_the_id_zero(batch):
    ids = pad_sequence(batch, batch_first=True)
    mask = pad_sequence([torch.ones_like(t) for t in batch], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(ids == 0, -100)}


@collate_pad.misconception(
    "Your tensors are (T, B): `pad_sequence` puts the steps first unless it is told `batch_first=True`."
)
def puts_steps_first(batch):
    ones = [torch.ones_like(t) for t in batch]
    return {
        "input_ids": pad_sequence(batch),
        "attention_mask": pad_sequence(ones),
        "labels": pad_sequence(batch, padding_value=-100),
    }


@collate_pad.misconception(
    "Your mask is the wrong way round: it says 1 for padding. (`key_padding_mask` of `nn.MultiheadAttention` "
    "is read that way; an attention mask of a batch says 1 for tokens.)"
)
def marks_the_padding(batch):
    ids = pad_sequence(batch, batch_first=True)
    mask = pad_sequence([torch.zeros_like(t) for t in batch], batch_first=True, padding_value=1)
    labels = pad_sequence(batch, batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@collate_pad.misconception(
    "Your mask is 1 everywhere, so the model takes padding for tokens. It must be 0 from the length of each "
    "sequence on."
)
def marks_everything(batch):
    ids = pad_sequence(batch, batch_first=True)
    labels = pad_sequence(batch, batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@collate_pad.misconception(
    "Your labels are padded with 0, and 0 is a class: the model is trained to predict it after the end. "
    "-100 is what `F.cross_entropy` leaves out."
)
def pads_labels_with_zero(batch):
    ids = pad_sequence(batch, batch_first=True)
    mask = pad_sequence([torch.ones_like(t) for t in batch], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


@collate_pad.misconception(
    "You padded the ids with -100 as well. That is for labels; an embedding has no row -100 and raises "
    "IndexError."
)
def pads_ids_with_the_ignore_index(batch):
    ids = pad_sequence(batch, batch_first=True, padding_value=-100)
    mask = pad_sequence([torch.ones_like(t) for t in batch], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


@collate_pad.misconception(
    "You padded on the left. The statement asks for the right: token `i` of a sequence stays at place `i`."
)
def pads_on_the_left(batch):
    longest = max(map(len, batch))

    def pad(tensors, value):
        return torch.stack([F.pad(t, (longest - len(t), 0), value=value) for t in tensors])

    ones = [torch.ones_like(t) for t in batch]
    return {"input_ids": pad(batch, 0), "attention_mask": pad(ones, 0), "labels": pad(batch, -100)}


@collate_pad.misconception(
    "You cut all sequences to the shortest one. Nothing needs padding then, and most of the data is gone."
)
def cuts_to_the_shortest(batch):
    shortest = min(map(len, batch))
    ids = torch.stack([t[:shortest] for t in batch])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


@collate_pad.misconception(
    "You shifted the labels by one. The statement wants them in the same places: models that take such labels "
    "shift them inside, and would shift them twice."
)
def shifts_the_labels(batch):
    ids = pad_sequence(batch, batch_first=True)
    mask = pad_sequence([torch.ones_like(t) for t in batch], batch_first=True)
    labels = pad_sequence(batch, batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": mask, "labels": F.pad(labels[:, 1:], (0, 1), value=-100)}


# ---- make_loaders ------------------------------------------------------------------------------------------

make_loaders = Exercise(
    reference.make_loaders,
    title="A split without leaks",
    objective="data.splits",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "Which of the two has to be shuffled in every epoch, and which must not be? And which of the random "
        "decisions does `seed` fix?",
        "`random_split(ds, [0.8, 0.2], generator=...)` makes two datasets without a common item. The generator "
        "is a `torch.Generator` that you seed; then each part gets its own DataLoader.",
        "`torch.Generator().manual_seed(seed)` for the split. `shuffle=True` for the first part alone; "
        "`drop_last` is False by default, so leave it.",
    ),
    why="The split is decided once, by a generator that nothing else draws from, so that validation data stay "
    "validation data in the next run. Training data come in a new order each epoch, since a model learns "
    "from the order too; for a mean over validation the order is nothing to the point.",
)


@make_loaders.cases
def _(rng):
    yield case("20 items", 20, 0)
    yield case("23 items, another seed", 23, 1)
    yield case("150 items", 150, 7)


@make_loaders.scenario
def _(answer: Any, n: int, seed: int) -> Any:
    loaders = answer(Numbered(n), seed)
    if not are_pair_of(DataLoader, loaders):
        return loaders
    with torch.random.fork_rng(devices=[]):
        first, second = ([numbers_of(loader) for loader in loaders] for _ in range(2))
        torch.manual_seed(99)
        again, *others = (set(numbers_of(answer(Numbered(n), seed + more)[1])) for more in (0, 1, 2, 3))
    return split_facts(n, *first) | {
        "train in the order of the dataset": first[0] == sorted(first[0]),
        "train in a new order in the next epoch": first[0] != second[0],
        "val in the same order in the next epoch": first[1] == second[1],
        "the same split for the same seed": set(first[1]) == again,
        "another split for another seed": any(other != again for other in others),
    }


def split_facts(n: int, train: list[int], val: list[int]) -> dict[str, Any]:
    block = sorted(val) == list(range(min(val, default=0), max(val, default=0) + 1))
    return {
        "items in both": sorted(set(train) & set(val)),
        "items in neither": sorted(set(range(n)) - set(train) - set(val)),
        "items that come twice in an epoch": len(train) + len(val) - len(set(train)) - len(set(val)),
        "val is a tenth to a half": n / 10 <= len(val) <= n / 2,
        "val drawn at random": not block or n < 100,  # a few items may lie side by side by chance
    }


@make_loaders.alternative
def permutes_the_indices(ds, seed):
    order = torch.randperm(len(ds), generator=torch.Generator().manual_seed(seed)).tolist()
    n_val = len(ds) // 5
    train, val = Subset(ds, order[n_val:]), Subset(ds, order[:n_val])
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(val, batch_size=4)


@make_loaders.alternative
def uses_samplers(ds, seed):
    order = np.random.default_rng(seed).permutation(len(ds)).tolist()
    n_val = round(0.25 * len(ds))
    return (
        DataLoader(ds, batch_size=8, sampler=SubsetRandomSampler(order[n_val:])),
        DataLoader(ds, batch_size=8, sampler=sorted(order[:n_val])),
    )


@make_loaders.alternative
def seeds_everything_it_can(ds, seed):
    generator = torch.Generator().manual_seed(seed)
    n_train = int(0.9 * len(ds))
    train, val = random_split(ds, [n_train, len(ds) - n_train], generator=generator)
    return (
        DataLoader(train, batch_size=32, shuffle=True, generator=generator),
        DataLoader(val, batch_size=64, shuffle=False),
    )


@make_loaders.misconception(
    "Your validation loader holds the whole dataset, training items and all. A model that has learned its "
    "training data by heart looks perfect on it."
)
def validates_on_everything(ds, seed):
    train, _ = random_split(ds, [0.8, 0.2], generator=torch.Generator().manual_seed(seed))
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(ds, batch_size=4)


@make_loaders.misconception(
    "Your split does not use the seed: it draws from the global random state. The next run trains on items that "
    "this one validated on."
)
def splits_without_a_seed(ds, seed):
    train, val = random_split(ds, [0.8, 0.2])
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(val, batch_size=4)


@make_loaders.misconception(
    "You seeded the global random state for the split. Everything that the program draws later starts over "
    "from there. Pass a `torch.Generator` of your own to the split."
)
def seeds_the_whole_program(ds, seed):
    torch.manual_seed(seed)
    train, val = random_split(ds, [0.8, 0.2])
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(val, batch_size=4)


@make_loaders.misconception(
    "You passed a generator that was never seeded. A new `torch.Generator()` starts from the same constant "
    "every time, so that each seed gives the same split."
)
def leaves_the_generator_unseeded(ds, seed):
    train, val = random_split(ds, [0.8, 0.2], generator=torch.Generator())
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(val, batch_size=4)


@make_loaders.misconception(
    "You cut off the end of the dataset for validation. Files are often sorted, by class or by date: then one "
    "part holds what the other never saw. Draw the items at random."
)
def cuts_off_the_end(ds, seed):
    n_train = int(0.8 * len(ds))
    train, val = Subset(ds, range(n_train)), Subset(ds, range(n_train, len(ds)))
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(val, batch_size=4)


@make_loaders.misconception(
    "You shuffle the validation data. Their mean does not need it, and predictions no longer line up with the "
    "items from one epoch to the next."
)
def shuffles_both(ds, seed):
    train, val = random_split(ds, [0.8, 0.2], generator=torch.Generator().manual_seed(seed))
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(val, batch_size=4, shuffle=True)


@make_loaders.misconception(
    "`drop_last=True` loses the items of the last batch where it is not full. For validation this means a score "
    "that leaves items out."
)
def drops_what_is_left(ds, seed):
    train, val = random_split(ds, [0.8, 0.2], generator=torch.Generator().manual_seed(seed))
    return (
        DataLoader(train, batch_size=7, shuffle=True, drop_last=True),
        DataLoader(val, batch_size=7, drop_last=True),
    )


@make_loaders.misconception(
    "Your training data come in the same order in every epoch: `shuffle` is False unless you say True."
)
def forgets_to_shuffle(ds, seed):
    train, val = random_split(ds, [0.8, 0.2], generator=torch.Generator().manual_seed(seed))
    return DataLoader(train, batch_size=4), DataLoader(val, batch_size=4)


@make_loaders.misconception(
    "Train and val share one item: the slices meet at an index that both of them include."
)
def overlaps_by_one(ds, seed):
    order = torch.randperm(len(ds), generator=torch.Generator().manual_seed(seed)).tolist()
    n_val = len(ds) // 5
    train, val = Subset(ds, order[n_val - 1 :]), Subset(ds, order[:n_val])
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(val, batch_size=4)


# ---- transformed_split -------------------------------------------------------------------------------------

transformed_split = Exercise(
    reference.transformed_split,
    title="One split, two transforms",
    objective="data.splits",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "`Subset(dataset, indices)` keeps the dataset and the indices, and no copy of anything. How many "
        "`transform` attributes are there if you make two Subsets of one dataset?",
        "Each part needs a dataset object of its own with its own `transform`. `copy.copy` makes a second "
        "object that shares the samples. Or write a small Dataset that applies a transform to items.",
        "For each part: make a `copy.copy` of the dataset, set `transform` on the copy, and make a `Subset` of the "
        "copy with the part's indices.",
    ),
    why="`Subset` and `random_split` hold on to the one dataset that you gave them, and a `transform` set there "
    "is seen by both parts. A shallow copy has an attribute of its own and shares the samples, so that it "
    "costs nothing. The transform runs in `__getitem__`, and so anew on each visit.",
)


class Words(Dataset):
    """Words, under a transform where there is one."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.transform = words, None

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Any:
        word = self.words[index]
        return word if self.transform is None else self.transform(word)


class CountedTransform:
    """Marks a word with a name and with how often the transform has run."""

    def __init__(self, name: str) -> None:
        self.name, self.runs = name, 0

    def __call__(self, word: str) -> str:
        self.runs += 1
        return f"{self.name}({word}) {self.runs}"


@transformed_split.cases
def _(rng):
    yield case("three words, two for training", ["a", "b", "c"], [0, 2], [1])
    yield case("indices in another order", list("abcdef"), [5, 0, 3], [4, 1, 2])
    yield case("an item of each", list("ab"), [1], [0])


@transformed_split.scenario
def _(answer: Any, words: list[str], train_indices: list[int], val_indices: list[int]) -> Any:
    dataset = Words(words)
    parts = answer(dataset, train_indices, val_indices, CountedTransform("train"), CountedTransform("val"))
    is_pair = isinstance(parts, tuple) and len(parts) == 2 and all(hasattr(p, "__getitem__") for p in parts)
    if not is_pair:
        return parts
    train, val = parts
    return {
        "lengths": (len(train), len(val)),
        "train": [train[i] for i in range(len(train_indices))],
        "val": [val[i] for i in range(len(val_indices))],
        "the first of train again": train[0],
        "dataset.transform afterwards": dataset.transform,
    }


@transformed_split.alternative
def wraps_the_items(dataset, train_indices, val_indices, train_transform, val_transform):
    class Transformed(Dataset):
        def __init__(self, indices, transform):
            self.indices, self.transform = indices, transform

        def __len__(self):
            return len(self.indices)

        def __getitem__(self, k):
            return self.transform(dataset[self.indices[k]])

    return Transformed(train_indices, train_transform), Transformed(val_indices, val_transform)


@transformed_split.alternative
def copies_deeply(dataset, train_indices, val_indices, train_transform, val_transform):
    for_train, for_val = copy.deepcopy(dataset), copy.deepcopy(dataset)
    for_train.transform, for_val.transform = train_transform, val_transform
    return Subset(for_train, train_indices), Subset(for_val, val_indices)


@transformed_split.misconception(
    "Both parts stand on one dataset object, and it has one `transform`: what you set last holds for training "
    "and validation alike. Each part needs an object of its own."
)
def sets_it_on_the_shared_dataset(dataset, train_indices, val_indices, train_transform, val_transform):
    train, val = Subset(dataset, train_indices), Subset(dataset, val_indices)
    train.dataset.transform = train_transform
    val.dataset.transform = val_transform
    return train, val


@transformed_split.misconception(
    "You set `transform` on the Subset, where nobody looks at it: the `__getitem__` of the dataset inside reads "
    "its own attribute. Python lets you set any attribute without a word."
)
def sets_it_on_the_subset(dataset, train_indices, val_indices, train_transform, val_transform):
    train, val = Subset(dataset, train_indices), Subset(dataset, val_indices)
    train.transform, val.transform = train_transform, val_transform
    return train, val


@transformed_split.misconception(
    "You applied the transforms once and kept the results. A random augmentation would be the same in every "
    "epoch; it has to run on each visit."
)
def transforms_once(dataset, train_indices, val_indices, train_transform, val_transform):
    return (
        [train_transform(dataset[i]) for i in train_indices],
        [val_transform(dataset[i]) for i in val_indices],
    )


@transformed_split.misconception(
    "Training and validation are apart now, but one of them uses the dataset that you were given, and left its "
    "transform set. Whoever reads that dataset next gets transformed items."
)
def leaves_the_given_one_changed(dataset, train_indices, val_indices, train_transform, val_transform):
    for_val = copy.copy(dataset)
    dataset.transform, for_val.transform = train_transform, val_transform
    return Subset(dataset, train_indices), Subset(for_val, val_indices)


@transformed_split.misconception(
    "Item `k` of a part is item `k` of the whole dataset here. It should be the one at `indices[k]`."
)
def forgets_the_indices(dataset, train_indices, val_indices, train_transform, val_transform):
    for_train, for_val = copy.copy(dataset), copy.copy(dataset)
    for_train.transform, for_val.transform = train_transform, val_transform
    return Subset(for_train, range(len(train_indices))), Subset(for_val, range(len(val_indices)))


# ---- group_split -------------------------------------------------------------------------------------------

group_split = Exercise(
    reference.group_split,
    title="Groups stay together",
    objective="data.splits",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "Ten patients, a hundred pictures: which of the two do you draw at random? And how does a picture find "
        "out on which side it is?",
        "`groups.unique()` lists the groups. Permute this list with a seeded generator and take the first fifth. "
        "An item is for validation if its group is among them.",
        "`torch.isin(groups, chosen)` is a mask over the items; `mask.nonzero().flatten().tolist()` are its "
        "indices, and those of `~mask` the others.",
    ),
    why="The unit of a split is what items have in common: a patient, a recording, an author. Draw the groups, "
    "and let the items follow. Then a score says how the model does on a patient that it has never met, which "
    "is the question that validation is asked.",
)


@group_split.cases
def _(rng):
    yield case("ten groups of two", torch.arange(10).repeat_interleave(2), 0)
    yield case("ten groups in turn, another seed", torch.arange(10).repeat(3), 4)
    sizes = torch.tensor([9, 1, 1, 4, 1, 2, 1, 7, 1, 3, 1, 1])
    yield case(
        "groups of many sizes, negative numbers", (torch.arange(12) * 7 - 30).repeat_interleave(sizes), 1
    )
    many = torch.randint(0, 80, (1200,), generator=rng) * 3
    yield case("many groups, every second entry of a column", many[::2], 2)


@group_split.scenario
def _(answer: Any, groups: Tensor, seed: int) -> Any:
    states = other_random_states()
    parts = answer(groups, seed)
    if not (are_pair_of(list, parts) and all(type(i) is int for part in parts for i in part)):
        return parts
    others = [answer(groups, seed + more) for more in (1, 2, 3, 4, 5)]
    return {
        **group_facts(groups.tolist(), *parts),
        "the same split for the same seed": sides(parts) == sides(answer(groups, seed)),
        "another split for another seed": any(sides(other) != sides(parts) for other in others),
        "random states of NumPy and random": "kept" if states == other_random_states() else "changed",
    }


def sides(parts: tuple[list[int], list[int]]) -> list[list[int]]:
    return [sorted(part) for part in parts]


def group_facts(groups: list[int], train: list[int], val: list[int]) -> dict[str, Any]:
    n, names = len(groups), sorted(set(groups))
    of_train, of_val = ({groups[i] for i in part if 0 <= i < n} for part in (train, val))
    at_the_end = of_val in (set(names[: len(of_val)]), set(names[len(names) - len(of_val) :]))
    return {
        "every index once": sorted(train + val) == list(range(n)),
        "groups on both sides": len(of_train & of_val),
        "val has a tenth to a half of the groups": len(names) / 10 <= len(of_val) <= len(names) / 2,
        "val drawn at random": len(names) < 50 or not at_the_end,  # a few groups may be neighbors by chance
    }


@group_split.alternative
def looks_each_item_up_in_a_set(groups, seed):
    names = sorted(set(groups.tolist()))
    chosen = set(random.Random(seed).sample(names, max(1, len(names) // 4)))
    pairs = list(enumerate(groups.tolist()))
    return [i for i, g in pairs if g not in chosen], [i for i, g in pairs if g in chosen]


@group_split.alternative
def numbers_the_groups(groups, seed):
    names, number = torch.unique(groups, return_inverse=True)
    is_val = torch.zeros(len(names), dtype=torch.bool)
    is_val[np.random.default_rng(seed).permutation(len(names))[: round(0.3 * len(names))].tolist()] = True
    in_val = is_val[number]
    return torch.where(~in_val)[0].tolist(), torch.where(in_val)[0].tolist()


@group_split.misconception(
    "You split the items. Nearly every group then has items on both sides, and the model is tested on patients "
    "that it knows."
)
def splits_the_items(groups, seed):
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    n_val = len(groups) // 5
    return order[n_val:], order[:n_val]


@group_split.misconception(
    "You sorted the items by group and cut after a fifth of the items. The cut goes through a group, which is "
    "then on both sides; and the groups in front are not drawn at random."
)
def cuts_through_a_group(groups, seed):
    order = groups.argsort(stable=True).tolist()
    n_val = len(groups) // 5 + 1
    return order[n_val:], order[:n_val]


@group_split.misconception(
    "Whole groups, and always the last ones: the seed changes nothing. Group numbers often go with time or "
    "place, so that validation would see another kind of data."
)
def takes_the_last_groups(groups, seed):
    names = groups.unique()
    in_val = torch.isin(groups, names[-(len(names) // 5) :])
    return (~in_val).nonzero().flatten().tolist(), in_val.nonzero().flatten().tolist()


@group_split.misconception(
    "Your groups are drawn from the global random state, so the next run has another validation set. Seed a "
    "generator of your own."
)
def draws_without_the_seed(groups, seed):
    names = groups.unique()
    in_val = torch.isin(groups, names[torch.randperm(len(names))][: len(names) // 5])
    return (~in_val).nonzero().flatten().tolist(), in_val.nonzero().flatten().tolist()


@group_split.misconception(
    "You returned the numbers of the groups. Asked for are the indices of the items, which a `Subset` takes."
)
def returns_the_groups(groups, seed):
    names = groups.unique()
    names = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))].tolist()
    return names[len(names) // 5 :], names[: len(names) // 5]


@group_split.misconception(
    "The two sides are swapped: your first list is the small one. Training comes first."
)
def swaps_the_sides(groups, seed):
    names = groups.unique()
    names = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))]
    in_val = torch.isin(groups, names[: len(names) // 5])
    return in_val.nonzero().flatten().tolist(), (~in_val).nonzero().flatten().tolist()


@group_split.misconception(
    "Whole groups, and always those that come first: the seed changes nothing. Permute the groups with a "
    "generator that you seed, then take some."
)
def takes_the_first_groups(groups, seed):
    names = list(dict.fromkeys(groups.tolist()))
    chosen = set(names[: len(names) // 5])
    pairs = list(enumerate(groups.tolist()))
    return [i for i, g in pairs if g not in chosen], [i for i, g in pairs if g in chosen]


# ---- EpochSampler ------------------------------------------------------------------------------------------

EpochSampler = Exercise(
    reference.EpochSampler,
    title="An order that can be found again",
    objective="data.seeding",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "A run stops in epoch 7 and is started again there. What does your sampler know at this moment, and "
        "what does it not know?",
        "Make the generator in `__iter__`, and seed it with a number made of `seed` and the epoch. Then nothing "
        "is left over from one iteration to the next.",
        "`torch.Generator().manual_seed(self.seed + self.epoch)` and `torch.randperm(n, generator=...)`; "
        "iterate over its `.tolist()`.",
    ),
    why="An order that is computed from the seed and the epoch needs no memory: it is the same after a restart, "
    "on every machine, and however often it was asked for. `DistributedSampler` does it in this way, which "
    "is why it wants to hear `set_epoch` before every epoch.",
)


@EpochSampler.cases
def _(rng):
    yield case("12 indices, seed 0", 12, 0)
    yield case("13 indices, seed 5", 13, 5)
    yield case("50 indices, seed 123", 50, 123)


@EpochSampler.scenario
def _(answer: Any, n: int, seed: int) -> Any:
    states = other_random_states()
    sampler, restarted, other_seed = answer(n, seed), answer(n, seed), answer(n, seed + 100)
    if not isinstance(sampler, Iterable) or not hasattr(sampler, "set_epoch"):
        return sampler
    unset = order_of(sampler, n)
    orders = {epoch: order_of(sampler, n, epoch) for epoch in (0, 1, 2, 3)}
    restarted_order = order_of(restarted, n, 2)
    return {
        "length": len(sampler),
        "each index once": all(sorted(order) == list(range(n)) for order in orders.values()),
        "shuffled": all(order != list(range(n)) for order in orders.values()),
        "epoch 0 where none was set": unset == orders[0],
        "another order in each epoch": len(set(map(tuple, orders.values()))) == 4,
        "epoch 2 again after others": order_of(sampler, n, 2) == orders[2],
        "epoch 2 after a restart": restarted_order == orders[2],
        "epochs 2 and 3 differ after a restart": order_of(answer(n, seed), n, 3) != restarted_order,
        "another order for another seed": order_of(other_seed, n, 2) != orders[2],
        "random states of NumPy and random": "kept" if states == other_random_states() else "changed",
    }


def order_of(sampler: Any, n: int, epoch: int | None = None) -> list[int]:
    if epoch is not None:
        sampler.set_epoch(epoch)
    return [int(index) for index in itertools.islice(iter(sampler), 2 * n)]


@EpochSampler.alternative
class SortsByRandomKeys(Sampler):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed
        self.set_epoch(0)

    def set_epoch(self, epoch):
        keys = np.random.default_rng([self.seed, epoch]).random(self.n)
        self.order = np.argsort(keys)

    def __iter__(self):
        return iter(self.order.tolist())

    def __len__(self):
        return self.n


@EpochSampler.alternative
class ShufflesAFreshList(Sampler):
    def __init__(self, n, seed):
        self.n = n
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(range(self.n))
        random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        yield from order

    def __len__(self):
        return self.n


@EpochSampler.misconception(
    "`set_epoch` changes nothing in the order: it is the same in every epoch. The seed of the order has to be "
    "made of `seed` and the epoch."
)
class IgnoresTheEpoch(Sampler):
    def __init__(self, n, seed):
        self.n, self.seed, self.epoch = n, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        return iter(torch.randperm(self.n, generator=generator).tolist())

    def __len__(self):
        return self.n


@EpochSampler.misconception(
    "Your generator lives on from one iteration to the next, so an order depends on how many came before it. "
    "After a restart in epoch 2 you get the order of epoch 0."
)
class LetsItsGeneratorRunOn(Sampler):
    def __init__(self, n, seed):
        self.n, self.generator = n, torch.Generator().manual_seed(seed)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(self.n, generator=self.generator).tolist())

    def __len__(self):
        return self.n


@EpochSampler.misconception(
    "You shuffle the list that you shuffled before. The order of an epoch then depends on all orders before it; "
    "begin with `range(n)` each time."
)
class ShufflesTheShuffled(Sampler):
    def __init__(self, n, seed):
        self.order, self.seed, self.epoch = list(range(n)), seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        random.Random(self.seed + self.epoch).shuffle(self.order)
        return iter(list(self.order))

    def __len__(self):
        return len(self.order)


@EpochSampler.misconception(
    "You seed the global random state in every epoch. All other random numbers, dropout and augmentation, then "
    "repeat as well. Use a generator of your own."
)
class SeedsTheProgramInEachEpoch(Sampler):
    def __init__(self, n, seed):
        self.n, self.seed, self.epoch = n, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        torch.manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.n).tolist())

    def __len__(self):
        return self.n


@EpochSampler.misconception("The order depends on the epoch alone: two runs with two seeds get the same one.")
class IgnoresItsSeed(Sampler):
    def __init__(self, n, seed):
        self.n, self.epoch = n, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(self.n, generator=generator).tolist())

    def __len__(self):
        return self.n


@EpochSampler.misconception(
    "You draw each index by itself, so that some come twice and others not at all. A permutation has each of "
    "them once: `torch.randperm`."
)
class DrawsWithReplacement(Sampler):
    def __init__(self, n, seed):
        self.n, self.seed, self.epoch = n, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randint(self.n, (self.n,), generator=generator).tolist())

    def __len__(self):
        return self.n


@EpochSampler.misconception(
    "You multiplied the seed by the epoch. With seed 0 every epoch has the same order, and epoch 0 is the same "
    "for all seeds. Add them, or hand both to the generator."
)
class MultipliesSeedAndEpoch(Sampler):
    def __init__(self, n, seed):
        self.n, self.seed, self.epoch = n, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed * self.epoch)
        return iter(torch.randperm(self.n, generator=generator).tolist())

    def __len__(self):
        return self.n


# ---- independent_loaders -----------------------------------------------------------------------------------

independent_loaders = Exercise(
    reference.independent_loaders,
    title="Validation that leaves training alone",
    objective="data.seeding",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "Run `before = torch.get_rng_state()`, iterate a loader without shuffling, and compare. Who has drawn?",
        "A DataLoader draws from its `generator` if it has one, and from the global state if not: for the "
        "order, and once per epoch for a base seed. So each of the two needs a generator.",
        "Pass `generator=torch.Generator().manual_seed(seed)` to both loaders, a new one each, and "
        "`shuffle=True` to the first.",
    ),
    why="`iter(loader)` draws a base seed for workers even where there are none and nothing is shuffled. With a "
    "generator each, the two loaders have no number in common with each other or with dropout, so that "
    "validating more often does not change what is trained.",
)


@independent_loaders.cases
def _(rng):
    yield case("12 and 3 items, by two", 12, 3, 2, 0)
    yield case("13 and 6 items, by five", 13, 6, 5, 1)
    yield case("40 and 9 items, by four", 40, 9, 4, 123)


@independent_loaders.scenario
def _(answer: Any, n_train: int, n_val: int, batch_size: int, seed: int) -> Any:
    def build(seed: int) -> Any:
        return answer(Numbered(n_train), Numbered(n_val), batch_size, seed)

    loaders = build(seed)
    if not are_pair_of(DataLoader, loaders):
        return loaders
    with torch.random.fork_rng(devices=[]):
        orders, val_orders, drawn = three_epochs(loaders, validate=False)
        torch.manual_seed(99)
        validated, _, _ = three_epochs(build(seed), validate=True)
        others, _, _ = three_epochs(build(seed + 1), validate=False)
        sizes = tuple(len(torch.as_tensor(next(iter(loader)))) for loader in loaders)
    return {
        "sizes of the first batches": sizes,
        "train yields every item": all(sorted(order) == list(range(n_train)) for order in orders),
        "train in a new order in each epoch": len(set(map(tuple, orders))) == 3,
        "val in its order": all(order == list(range(n_val)) for order in val_orders),
        "the same orders when val is iterated in between": orders == validated,
        "other orders for another seed": orders != others,
        "iterating draws from the global random state": drawn,
    }


def three_epochs(
    loaders: tuple, validate: bool
) -> tuple[list[list[int]], list[list[int]], tuple[bool, bool]]:
    """Orders of train, orders of val, and whether iterating each of them moved the global random state.

    Without `validate`, val is iterated only after the three epochs.
    """
    train, val = loaders
    orders, val_orders, drawn = [], [], [False, False]
    for _ in range(3):
        orders.append(noting_draws(train, drawn, 0))
        if validate:
            val_orders.append(noting_draws(val, drawn, 1))
    val_orders += [noting_draws(val, drawn, 1) for _ in range(2)]
    return orders, val_orders, tuple(drawn)


def noting_draws(loader: DataLoader, drawn: list[bool], which: int) -> list[int]:
    before = torch.get_rng_state()
    order = numbers_of(loader)
    drawn[which] |= not torch.equal(before, torch.get_rng_state())
    return order


@independent_loaders.alternative
def gives_val_another_seed(train_set, val_set, batch_size, seed):
    g_train, g_val = torch.Generator(), torch.Generator()
    g_train.manual_seed(seed)
    g_val.manual_seed(seed + 1)
    train = DataLoader(train_set, batch_size=batch_size, shuffle=True, generator=g_train)
    return train, DataLoader(val_set, batch_size=batch_size, shuffle=False, generator=g_val)


@independent_loaders.alternative
def makes_its_own_sampler(train_set, val_set, batch_size, seed):
    sampler = RandomSampler(train_set, generator=torch.Generator().manual_seed(seed))
    quiet = torch.Generator()
    train = DataLoader(train_set, batch_size, sampler=sampler, generator=quiet)
    return train, DataLoader(val_set, batch_size, generator=quiet)


@independent_loaders.misconception(
    "Both loaders share one generator. Iterating val draws a base seed from it, and the next order of train is "
    "another one: give each loader its own."
)
def shares_one_generator(train_set, val_set, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    return (
        DataLoader(train_set, batch_size, shuffle=True, generator=generator),
        DataLoader(val_set, batch_size, generator=generator),
    )


@independent_loaders.misconception(
    "Train has a generator, val has none. It needs no order, but each `iter(val)` draws a base seed from the "
    "global state, and so dropout and augmentation go on differently after a validation."
)
def forgets_the_quiet_one(train_set, val_set, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(train_set, batch_size, shuffle=True, generator=generator), DataLoader(
        val_set, batch_size
    )


@independent_loaders.misconception(
    "You seeded the global random state and let both loaders draw from it. Whatever draws in between, a "
    "validation for instance, changes the order of the next epoch; and all of the program was seeded anew."
)
def seeds_once_before(train_set, val_set, batch_size, seed):
    torch.manual_seed(seed)
    return DataLoader(train_set, batch_size, shuffle=True), DataLoader(val_set, batch_size)


@independent_loaders.misconception(
    "Neither loader has a generator, and the seed is not used: the order is whatever the global random state "
    "says at that moment."
)
def uses_no_generator(train_set, val_set, batch_size, seed):
    return DataLoader(train_set, batch_size, shuffle=True), DataLoader(val_set, batch_size)


@independent_loaders.misconception(
    "Your generators were never seeded. A new `torch.Generator()` starts from one constant, so that every seed "
    "gives the same orders."
)
def leaves_the_generators_unseeded(train_set, val_set, batch_size, seed):
    return (
        DataLoader(train_set, batch_size, shuffle=True, generator=torch.Generator()),
        DataLoader(val_set, batch_size, generator=torch.Generator()),
    )


@independent_loaders.misconception(
    "Train is not shuffled. A generator alone does nothing: `shuffle` is False unless you say True."
)
def passes_a_generator_and_does_not_shuffle(train_set, val_set, batch_size, seed):
    return (
        DataLoader(train_set, batch_size, generator=torch.Generator().manual_seed(seed)),
        DataLoader(val_set, batch_size, generator=torch.Generator().manual_seed(seed)),
    )


@independent_loaders.misconception(
    "You shuffle val as well. It was to come in the order of `val_set`, so that predictions line up with items."
)
def shuffles_val_too(train_set, val_set, batch_size, seed):
    return (
        DataLoader(train_set, batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed)),
        DataLoader(val_set, batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed)),
    )


# ---- seeded_loader -----------------------------------------------------------------------------------------

seeded_loader = Exercise(
    reference.seeded_loader,
    title="Workers with random numbers of their own",
    objective="data.workers",
    difficulty=3,
    minutes=20,
    points=3,
    stretch=True,
    observes=[observe.value()],
    hints=(
        "Each worker has a copy of `ds`, made when it starts, and `ds.rng` is copied with it. What differs "
        "between the workers? What differs between two epochs?",
        "`worker_init_fn(worker_id)` runs in each worker when it starts. There, `get_worker_info().dataset` is "
        "its own copy, and `torch.initial_seed()` is a base seed plus its number. The loader draws a new base "
        "seed for every epoch: from its `generator`, if it has one.",
        "In a `worker_init_fn`, set the `rng` of `get_worker_info().dataset` to `np.random.default_rng` of "
        "`torch.initial_seed()`. Pass it with `num_workers=2` and a seeded `generator`.",
    ),
    why="The seed of a worker is a base seed, drawn from the loader's generator in every epoch, plus its number: "
    "other numbers in each worker and in each epoch, and the same ones again for the same seed. PyTorch "
    "seeds the global generators of torch, NumPy and `random` with it; a generator that the dataset owns is "
    "yours to seed.",
)


class Augmented(Dataset):
    """Item `i` is `i`, a random number from the dataset's own generator, and whether NumPy was seeded by hand."""

    def __init__(self, n: int) -> None:
        self.n, self.rng = n, np.random.default_rng(0)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, int, bool]:
        return int(index), int(self.rng.integers(1 << 40)), numpy_was_seeded_by_hand()


def numpy_was_seeded_by_hand() -> bool:
    """PyTorch seeds a worker's global NumPy state with an array, which leaves this word; a plain seed does not."""
    return int(np.random.get_state()[1][0]) != 0x80000000


@seeded_loader.cases
def _(rng):
    yield case("8 items", 8, 0)
    yield case("24 items, another seed", 24, 5)


@seeded_loader.scenario
def _(answer: Any, n: int, seed: int) -> Any:
    loader = answer(Augmented(n), seed)
    if not isinstance(loader, DataLoader):
        return loader
    if loader.num_workers != 2:
        return {"workers": loader.num_workers}
    with torch.random.fork_rng(devices=[]):
        epochs = visits(loader)
        torch.manual_seed(99)
        again, others = visits(answer(Augmented(n), seed)), visits(answer(Augmented(n), seed + 100))
    draws = [[draw for _, draw, _ in epoch] for epoch in epochs]
    return {
        "workers": loader.num_workers,
        "every item once in each epoch": all(
            sorted(i for i, *_ in epoch) == list(range(n)) for epoch in epochs
        ),
        "draws that come twice in an epoch": len(draws[0]) - len(set(draws[0])),
        "draws of the first epoch that come in the second": len(set(draws[0]) & set(draws[1])),
        "the same draws for the same seed": epochs == again,
        "draws that another seed has too": len(
            {d for epoch in draws for d in epoch} & {d for e in others for _, d, _ in e}
        ),
        "the workers draw from": source_of(epochs[0], loader),
    }


def visits(loader: DataLoader) -> list[list[tuple[int, int, bool]]]:
    """(index, draw, NumPy seeded by hand) of every visit in three epochs."""

    def rows(batch: Any) -> list[tuple]:
        return list(zip(*([int(number) for number in torch.as_tensor(part).flatten()] for part in batch)))

    return [[row for batch in epoch for row in rows(batch)] for epoch in simulated_epochs(loader, 3)]


def source_of(epoch: list[tuple[int, int, bool]], loader: DataLoader) -> str:
    """Where draws that repeat come from."""
    draws = [draw for _, draw, _ in epoch]
    if len(set(draws)) == len(draws):
        return "generators of their own"
    if any(by_hand for *_, by_hand in epoch):
        return "equal generators; NumPy's global state was seeded"
    if int(np.random.default_rng(0).integers(1 << 40)) in draws:
        return "copies of the generator that came with ds"
    return "copies of a generator" if loader.worker_init_fn is None else "generators with one seed"


@seeded_loader.alternative
def seeds_from_the_workers_info(ds, seed):
    def init(worker_id):
        info = get_worker_info()
        info.dataset.rng = np.random.default_rng([info.seed, info.id])

    generator = torch.Generator()
    generator.manual_seed(seed)
    return DataLoader(ds, batch_size=2, shuffle=True, num_workers=2, worker_init_fn=init, generator=generator)


@seeded_loader.alternative
def keeps_its_workers(ds, seed):
    def init(worker_id):
        get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed() % 2**32)

    return DataLoader(
        ds,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=init,
        generator=torch.Generator().manual_seed(seed),
    )


@seeded_loader.alternative
def draws_a_seed_in_the_worker(ds, seed):
    def init(worker_id):
        fresh = int(torch.randint(1 << 60, ()))
        get_worker_info().dataset.rng = np.random.default_rng(fresh)

    return DataLoader(
        ds, 3, num_workers=2, worker_init_fn=init, generator=torch.Generator().manual_seed(seed)
    )


@seeded_loader.alternative
def seeds_all_that_it_finds(ds, seed):
    def init(worker_id):
        worker_seed = torch.initial_seed() % 2**32
        np.random.seed(worker_seed)
        random.seed(worker_seed)
        get_worker_info().dataset.rng = np.random.default_rng(worker_seed)

    generator = torch.Generator().manual_seed(seed)
    return DataLoader(ds, batch_size=8, num_workers=2, worker_init_fn=init, generator=generator)


@seeded_loader.misconception(
    "Each worker has a copy of the dataset, its generator included, so both draw the same numbers; and the next "
    "epoch starts from the same copies again. A generator that the dataset owns has to be seeded in each worker."
)
def seeds_no_worker(ds, seed):
    return DataLoader(ds, batch_size=2, num_workers=2, generator=torch.Generator().manual_seed(seed))


@seeded_loader.misconception(
    "You seeded NumPy's global state in the workers, as old recipes do. `ds.rng` is another generator and does "
    "not hear of it. (And the global one is seeded by PyTorch itself since version 1.9.)"
)
def seeds_numpys_global_state(ds, seed):
    def init(worker_id):
        np.random.seed((torch.initial_seed() + worker_id) % 2**32)

    return DataLoader(
        ds, 4, num_workers=2, worker_init_fn=init, generator=torch.Generator().manual_seed(seed)
    )


@seeded_loader.misconception(
    "Every worker gets a generator with the same seed, and so the same numbers. The seed has to differ from "
    "worker to worker."
)
def seeds_all_workers_alike(ds, seed):
    def init(worker_id):
        get_worker_info().dataset.rng = np.random.default_rng(seed)

    return DataLoader(
        ds, 2, num_workers=2, worker_init_fn=init, generator=torch.Generator().manual_seed(seed)
    )


@seeded_loader.misconception(
    "The seed depends on the worker's number and on nothing that changes between epochs. Workers start anew in "
    "every epoch, and so every epoch repeats the same numbers. `torch.initial_seed()` changes with the epoch."
)
def seeds_by_number_alone(ds, seed):
    def init(worker_id):
        get_worker_info().dataset.rng = np.random.default_rng([seed, worker_id])

    return DataLoader(
        ds, 2, num_workers=2, worker_init_fn=init, generator=torch.Generator().manual_seed(seed)
    )


@seeded_loader.misconception(
    "Your loader has no generator, so the base seed of the workers comes from the global random state. The same "
    "seed gives other numbers in a program that has drawn more or fewer before."
)
def gives_the_loader_no_generator(ds, seed):
    def init(worker_id):
        get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())

    return DataLoader(ds, 2, num_workers=2, worker_init_fn=init)


@seeded_loader.misconception(
    "You seeded the dataset that you were given. The workers copy it with its seeded generator, and all copies "
    "draw the same numbers."
)
def seeds_the_original(ds, seed):
    ds.rng = np.random.default_rng(seed)
    return DataLoader(ds, 4, num_workers=2, generator=torch.Generator().manual_seed(seed))


@seeded_loader.misconception(
    "Your loader has no workers: `num_workers` is 0 by default, and then everything happens in the main process."
)
def starts_no_workers(ds, seed):
    ds.rng = np.random.default_rng(seed)
    return DataLoader(ds, batch_size=2, generator=torch.Generator().manual_seed(seed))


# ---- worker_share ------------------------------------------------------------------------------------------

worker_share = Exercise(
    reference.worker_share,
    title="Each worker its share",
    objective="data.streams",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "Two workers read the stream 0, 1, 2, 3, 4. Write down what each of them should yield. What does a "
        "worker have to know for that, and who tells it?",
        "`get_worker_info()` is None in the main process; in a worker it has `id`, from 0 on, and "
        "`num_workers`. Deal the items out like cards: in turn.",
        "`itertools.islice(stream, start, None, step)` takes every `step`-th item from `start` on and reads no "
        "further than it must. In the main process return `iter(stream)`.",
    ),
    why="Each worker has a copy of the whole stream and nobody to ask, so it must be able to tell its own items "
    "by counting. Dealing them out in turn needs neither a length nor an end. Every worker still reads all "
    "of the stream: where reading is the slow part, give each worker its own files instead.",
)


class NotedStream:
    """A stream without length that counts how many of its items were read."""

    def __init__(self, items: list) -> None:
        self.items, self.read = items, 0

    def __iter__(self) -> Iterator:
        for item in self.items:
            self.read += 1
            yield item


@worker_share.cases
def _(rng):
    yield case("six items, two workers", [10, 11, 12, 13, 14, 15], 2)
    yield case("seven items, three workers", [7, 6, 5, 4, 3, 2, 1], 3)
    yield case("the main process, without workers", [3, 1, 2], 0)
    yield case("one worker", ["a", "b", "c"], 1)
    yield case("words, some of them twice", ["to", "be", "or", "not", "to", "be"], 2)
    yield case("fewer items than workers", ["a", "b"], 4)
    yield case("an empty stream", [], 2)
    yield case("even numbers only", list(range(0, 200, 2)), 4)


@worker_share.scenario
def _(answer: Any, items: list, num_workers: int) -> Any:
    shares, reads = [], []
    for worker_id in range(max(num_workers, 1)):
        stream = NotedStream(items)
        with being_worker(worker_id, num_workers):
            share = answer(stream)
            if not isinstance(share, Iterable):
                return share
            share = iter(share)
            first = list(itertools.islice(share, 1))
            reads += [stream.read] if first else []
            shares.append(first + list(itertools.islice(share, 2 * len(items))))
    return share_facts(items, shares, reads, max(num_workers, 1))


def being_worker(worker_id: int, num_workers: int) -> AbstractContextManager:
    """In this block `get_worker_info()` answers as in that worker; for no workers, as in the main process."""
    if num_workers == 0:
        return nullcontext()
    return SimulatedWorker(Numbered(0), worker_id, num_workers).entered()


def share_facts(items: list, shares: list[list], reads: list[int], n_shares: int) -> dict[str, Any]:
    sizes = [len(share) for share in shares]
    together = sorted(map(str, itertools.chain(*shares)))
    return {
        "all shares together": together,
        "in the stream's order": all(is_subsequence(share, items) for share in shares),
        "fair": max(sizes) - min(sizes) <= 1,
        "reads ahead": any(read > n_shares for read in reads),
    }


def is_subsequence(share: list, items: list) -> bool:
    rest = map(str, items)  # as text, since a share may hold anything
    return all(any(str(item) == other for other in rest) for item in share)


@worker_share.alternative
def counts_the_items(stream):
    info = get_worker_info()
    worker_id, num_workers = (info.id, info.num_workers) if info else (0, 1)
    for position, item in enumerate(stream):
        if position % num_workers == worker_id:
            yield item


@worker_share.alternative
def deals_like_cards(stream):
    info = get_worker_info()
    if info is None:
        yield from stream
        return
    for receiver, item in zip(itertools.cycle(range(info.num_workers)), stream):
        if receiver == info.id:
            yield item


@worker_share.alternative
def deals_from_the_last_worker_on(stream):
    info = get_worker_info()
    if info is None:
        return iter(stream)
    return itertools.islice(stream, info.num_workers - 1 - info.id, None, info.num_workers)


@worker_share.misconception(
    "You did not ask which worker this is. Each worker reads its own copy of the stream to the end, and with "
    "two workers an epoch yields everything twice."
)
def yields_everything(stream):
    yield from stream


@worker_share.misconception(
    "In the main process `get_worker_info()` is None, and None has no `id`. With `num_workers=0` your code "
    "raises; there, all items are yours."
)
def forgets_the_main_process(stream):
    info = get_worker_info()
    return itertools.islice(stream, info.id, None, info.num_workers)


@worker_share.misconception(
    "You start at the worker's number and then take every item: the step is missing. Worker 0 yields it all, "
    "worker 1 all but the first."
)
def forgets_the_step(stream):
    info = get_worker_info()
    return iter(stream) if info is None else itertools.islice(stream, info.id, None)


@worker_share.misconception(
    "You let the first worker do all the work. Nothing comes twice, but the others have nothing to do."
)
def leaves_it_to_the_first(stream):
    info = get_worker_info()
    return iter(stream) if info is None or info.id == 0 else iter(())


@worker_share.misconception(
    "You collect the stream in a list before you yield. A stream may be larger than memory, or have no end: "
    "take the items as they come."
)
def makes_a_list_first(stream):
    info, items = get_worker_info(), list(stream)
    return iter(items) if info is None else iter(items[info.id :: info.num_workers])


@worker_share.misconception(
    "You divide by the value of an item instead of its place in the stream. Items may be words; and of even "
    "numbers, worker 1 of 2 gets none."
)
def goes_by_the_value(stream):
    info = get_worker_info()
    if info is None:
        yield from stream
        return
    yield from (item for item in stream if int(item) % info.num_workers == info.id)


@worker_share.misconception(
    "The numbers of workers start at 0. Yours start at 1, so that worker 0 gets the items of another one and "
    "the first item of the stream is lost."
)
def counts_workers_from_one(stream):
    info = get_worker_info()
    return iter(stream) if info is None else itertools.islice(stream, info.id + 1, None, info.num_workers)


# ---- TokenWindows ------------------------------------------------------------------------------------------

TokenWindows = Exercise(
    reference.TokenWindows,
    title="Inputs and targets, shifted by one",
    objective="data.tokens",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "Take the tokens 10, 11, 12, 13, 14 and windows of 3. Write down all pairs of inputs and targets. How "
        "many are there, and which token is never an input?",
        "Inputs and targets are two slices of one length, and the second starts one token later. The last "
        "window still needs the token after its end.",
        "From index `i`, inputs are `tokens[i : i + length]`; for targets, both ends move by one. There are "
        "`len(tokens) - length` of them, or none if that is negative.",
    ),
    why="At each place the model sees the tokens up to there and is asked for the next one, so that targets are "
    "the inputs shifted by one. A window uses `length + 1` tokens, and so there are `n - length` windows. "
    "Slices are views: the windows overlap and nothing is stored twice.",
)


@TokenWindows.cases
def _(rng):
    yield case("five tokens, windows of three", torch.tensor([10, 11, 12, 13, 14]), 3)
    yield case("windows of one", torch.tensor([4, 2, 0]), 1)
    yield case("exactly one window", torch.tensor([7, 8, 9]), 2)
    yield case("one token too few", torch.tensor([7, 8, 9]), 3)
    yield case("far too few", torch.tensor([7]), 4)
    yield case("every second token of a stream", torch.arange(20)[::2], 4)
    yield case("ids that are negative", torch.tensor([-1, 5, -2, 6, -3]), 2)
    yield case("more tokens", torch.randint(0, 50, (30,), generator=rng), 8)


@TokenWindows.scenario
def _(answer: Any, tokens: Tensor, length: int) -> Any:
    ds = answer(tokens, length)
    if not isinstance(ds, Dataset):
        return ds
    n = len(ds)
    return {
        "length": n,
        "items": [ds[i] for i in range(n)],
        "IndexError past the end": raises_index_error(ds, n),
    }


@TokenWindows.alternative
class UnfoldsAllWindows(Dataset):
    def __init__(self, tokens, length):
        enough = len(tokens) > length
        self.windows = tokens.unfold(0, length + 1, 1) if enough else tokens.new_empty(0, length + 1)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        window = self.windows[index]
        return window[:-1], window[1:]


@TokenWindows.alternative
class KeepsAList(Dataset):
    def __init__(self, tokens, length):
        starts = range(len(tokens) - length)
        self.pairs = [
            (tokens[i : i + length].clone(), tokens[i + 1 : i + 1 + length].clone()) for i in starts
        ]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


@TokenWindows.alternative
class IsASubset(Subset):
    def __init__(self, tokens, length):
        inputs = [tokens[i : i + length] for i in range(len(tokens) - length)]
        targets = [tokens[i : i + length] for i in range(1, len(tokens) - length + 1)]
        super().__init__(list(zip(inputs, targets)), range(len(inputs)))


@TokenWindows.misconception(
    "Your targets are the inputs. A model that copies gets a loss of zero and has learned nothing: the target "
    "at each place is the next token."
)
class TargetsAreTheInputs(Dataset):
    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return max(len(self.tokens) - self.length, 0)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        window = self.tokens[index : index + self.length]
        return window, window


@TokenWindows.misconception(
    "You never use the last token: one more window fits. Its inputs end at the last but one, and its targets "
    "at the last."
)
class StopsOneTooEarly(Dataset):
    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return max(len(self.tokens) - self.length - 1, 0)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        window = self.tokens[index : index + self.length + 1]
        return window[:-1], window[1:]


@TokenWindows.misconception(
    "Your last window runs past the end, and a slice that runs out of tokens is shorter without a word: the "
    "batch that gets it can't be stacked. A window needs `length + 1` tokens."
)
class RunsPastTheEnd(Dataset):
    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return max(len(self.tokens) - self.length + 1, 0)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        i = index
        return self.tokens[i : i + self.length], self.tokens[i + 1 : i + self.length + 1]


@TokenWindows.misconception(
    "Your targets are shifted by two. Inputs and targets overlap in all but one token."
)
class ShiftsByTwo(Dataset):
    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return max(len(self.tokens) - self.length - 1, 0)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        i = index
        return self.tokens[i : i + self.length], self.tokens[i + 2 : i + self.length + 2]


@TokenWindows.misconception(
    "You shifted with `roll`, which puts the first token behind the last one. The last target of each window "
    "is its own first token."
)
class RollsTheTargets(Dataset):
    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return max(len(self.tokens) - self.length, 0)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        window = self.tokens[index : index + self.length]
        return window, window.roll(-1)


@TokenWindows.misconception(
    "Your target is one token, the one after the window. Each place of the window has a next token: a model "
    "that reads from left to right learns from all of them at once."
)
class OneTargetPerWindow(Dataset):
    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return max(len(self.tokens) - self.length, 0)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        return self.tokens[index : index + self.length], self.tokens[index + self.length]


@TokenWindows.misconception(
    "Your windows lie side by side. The statement asks for every window: one from each token on, so that a "
    "token is met in every place of a window."
)
class WindowsSideBySide(Dataset):
    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return max((len(self.tokens) - 1) // self.length, 0)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        start = index * self.length
        window = self.tokens[start : start + self.length + 1]
        return window[:-1], window[1:]


@TokenWindows.misconception(
    "For a stream that is too short your length is negative, and Python's `len` refuses negative numbers. "
    "Such a stream has no window: the length is 0."
)
class NegativeLength(Dataset):
    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return len(self.tokens) - self.length

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        window = self.tokens[index : index + self.length + 1]
        return window[:-1], window[1:]


# ---- questions ---------------------------------------------------------------------------------------------

last_batch = Question(
    "last_batch",
    objective="data.batches",
    text="""A dataset has 200 items.

```python
loader = DataLoader(dataset, batch_size=16)
```

How many batches does it yield, and how large is the last one?""",
    choices={"a": "12 batches of 16", "b": "13 batches, the last one of 8", "c": "13 batches of 16"},
    answer="b",
    replies={
        "a": "That would be `drop_last=True`: 12 batches of 16 are 192 items, and 8 would be lost.",
        "b": "Right. 12 batches of 16 are 192 items, and the 8 that are left make a batch of their own.",
        "c": "The last batch would need 8 more items. A loader pads nothing and repeats nothing.",
    },
)

default_order = Question(
    "default_order",
    objective="data.batches",
    text="""You iterate twice over

```python
loader = DataLoader([0, 1, 2, 3], batch_size=2)
```

What do you get?""",
    choices={
        "a": "another order in each epoch",
        "b": "one random order, the same in both epochs",
        "c": "0, 1 and 2, 3, in both epochs",
    },
    answer="c",
    replies={
        "a": "That is `shuffle=True`. A loader does not shuffle unless you ask for it.",
        "b": "Nothing is random here: a loader does not shuffle unless you ask for it.",
        "c": "Right. `shuffle` is False by default, in training too.",
    },
)

mixed_collate = Question(
    "mixed_collate",
    objective="data.collate",
    text="""Each item is a dict with a tensor, a number and a string:

```python
{"x": torch.zeros(2), "n": 3, "name": "a"}
```

Two of them make a batch. What is `batch["n"]`?""",
    choices={"a": "the list `[3, 3]`", "b": "an int64 tensor, `[3, 3]`", "c": "an error: 3 is no tensor"},
    answer="b",
    replies={
        "a": "Strings stay a list. Numbers become a tensor, since a model will compute with them.",
        "b": "Right. Numbers become a tensor, tensors are stacked, strings stay a list.",
        "c": "The default collate knows numbers: it makes a tensor of them. It refuses what it does not know.",
    },
)

shared_transform = Question(
    "shared_transform",
    objective="data.splits",
    text="""`dataset.transform` augments. For validation it shall not:

```python
train, val = random_split(dataset, [0.5, 0.5])
val.dataset.transform = plain
```

Which items are augmented now?""",
    choices={"a": "those of `train`", "b": "all", "c": "none"},
    answer="c",
    replies={
        "a": "That was meant. But `val.dataset` is `dataset`, and so is `train.dataset`: one object.",
        "b": "The assignment does arrive. It arrives at an object that `train` reads as well.",
        "c": "Right. Both parts hold the same dataset object, so that training lost its augmentation without a word.",
    },
)

validation_draws = Question(
    "validation_draws",
    objective="data.seeding",
    text="""`train` is shuffled, `val` is not, and neither was given a generator.
The program starts with `torch.manual_seed(0)`.
You add a validation after each epoch and change nothing else.

Does training see its data in the same order as before?""",
    choices={
        "a": "yes: `val` has nothing random in it",
        "b": "yes, because the seed is fixed",
        "c": "not after the first epoch",
    },
    answer="c",
    replies={
        "a": "It needs nothing random, but `iter(val)` draws a number all the same: a base seed for workers, "
        "even where there are none.",
        "b": "A seed fixes where the sequence of random numbers begins, not who takes the next one. "
        "`iter(val)` takes one.",
        "c": "Right. `iter(val)` draws a base seed from the global random state, and the next shuffle starts "
        "from another place.",
    },
)

fresh_generator = Question(
    "fresh_generator",
    objective="data.seeding",
    text="""```python
g, h = torch.Generator(), torch.Generator()
```

Neither is seeded. Do they give the same numbers?""",
    choices={
        "a": "no, each starts somewhere else",
        "b": "yes, and the same ones in every run",
        "c": "yes, but other ones in every run",
    },
    answer="b",
    replies={
        "a": "NumPy's `default_rng()` does that. A new `torch.Generator()` starts from a constant.",
        "b": "Right. A new `torch.Generator()` starts from a constant, so that a forgotten seed looks like a "
        "seed that works.",
        "c": "They start from a constant, which is the same in every run.",
    },
)

worker_counter = Question(
    "worker_counter",
    objective="data.workers",
    text="""`dataset.reads` is 0, and `__getitem__` does `self.reads += 1`.

```python
for batch in DataLoader(dataset, num_workers=2): ...
```

The dataset has 6 items. What is `dataset.reads` afterwards?""",
    choices={"a": "6", "b": "3", "c": "0"},
    answer="c",
    replies={
        "a": "Six items were read, but not by this object: each worker counted on a copy of it.",
        "b": "Each worker counted to 3, on a copy of the dataset in its own process. The copies are gone.",
        "c": "Right. Workers are processes. Each counted to 3 on its own copy, and the copies are gone.",
    },
)

own_generator = Question(
    "own_generator",
    objective="data.workers",
    text="""Each of 8 items draws a large random number from `dataset.rng`, a NumPy generator.
A loader with 2 workers reads them.

How many different numbers come out?""",
    choices={"a": "8", "b": "4", "c": "1"},
    answer="b",
    replies={
        "a": "So it should be. But the generator is part of the dataset, and each worker has a copy of it.",
        "b": "Right. Each worker has a copy of the generator in the same state, and each reads 4 items.",
        "c": "Within a worker the generator moves on from item to item.",
    },
)

more_workers = Question(
    "more_workers",
    objective="data.workers",
    text="""Loading a batch takes 1 unit of time, a training step takes 3.
You go from 1 worker to 4.

How much faster is an epoch?""",
    choices={"a": "4 times", "b": "a bit", "c": "not at all"},
    answer="c",
    replies={
        "a": "Workers load; they do not train. With one worker the next batch is already there when a step ends.",
        "b": "With one worker the next batch is already there when a step ends. There is nothing left to save.",
        "c": "Right. One worker already loads faster than training consumes; the step is what takes time.",
    },
)

stream_copies = Question(
    "stream_copies",
    objective="data.streams",
    text="""An `IterableDataset` yields 6 numbers. Its `__iter__` is `return iter(range(6))`.

How many numbers does a loader with 2 workers yield?""",
    choices={"a": "6, three by each worker", "b": "12", "c": "6, all by the first worker"},
    answer="b",
    replies={
        "a": "With a map-style dataset the loader deals out indices. A stream has none, and so there is nothing "
        "to deal out.",
        "b": "Right. Each worker has a copy of the stream and reads it to its end.",
        "c": "Both workers are asked in turn, and each has a copy of the stream.",
    },
)

copy_and_compute = Question(
    "copy_and_compute",
    objective="data.transfer",
    text="""A batch lies in pinned memory, and the loop says `x = x.to("cuda", non_blocking=True)`.
Who can do something else while the copy runs?""",
    choices={
        "a": "the Python program",
        "b": "the Python program, and the GPU, which computes on the last batch",
        "c": "nobody: the next line needs `x`",
    },
    answer="a",
    replies={
        "a": "Right. Python goes on and can fetch the next batch. The GPU does what it is told in order, and "
        "the copy stands in the same queue as the kernels.",
        "b": "On one stream the GPU takes its orders one after the other, and a copy is one of them. To overlap "
        "copies with kernels you need a second stream.",
        "c": "The next line only queues work that uses `x`. Python does not need the numbers themselves.",
    },
)

window_leak = Question(
    "window_leak",
    objective="data.tokens",
    text="""You cut 1000 tokens into all windows of 32 and draw a tenth of the windows at random for validation.

Which part of the pairs (token, next token) in the validation windows also stands in training windows?""",
    choices={"a": "none: no window is in both", "b": "about a tenth", "c": "nearly all"},
    answer="c",
    replies={
        "a": "No window is in both, but windows overlap: a neighbor that starts one token later has nearly the "
        "same content.",
        "b": "A pair stands in 31 windows or so, and it takes only one of them in training to give it away.",
        "c": "Right. Each pair stands in about 31 windows, and nearly always one of them is for training.",
    },
)
