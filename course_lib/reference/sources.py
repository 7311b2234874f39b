"""Datasets and a token source that stand in a module, so that worker processes can import them.

A worker that is started afresh (macOS, Windows, Linux from Python 3.14 on) finds a class by its module and name.
A class that was defined in a notebook has no module that it could import.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class OwnGenerator(Dataset):
    """`n` random numbers, drawn on each visit from a NumPy generator that belongs to the dataset."""

    def __init__(self, n: int) -> None:
        self.n, self.rng = n, np.random.default_rng(0)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return int(self.rng.integers(1_000_000))


class GlobalDraws(Dataset):
    """`n` random numbers, drawn on each visit from the global generator of NumPy or of PyTorch."""

    def __init__(self, n: int, library: str) -> None:
        self.n, self.library = n, library

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return int(np.random.randint(1_000_000) if self.library == "numpy" else torch.randint(1_000_000, ()))


class CountsReads(Dataset):
    """Numbers 0 to `n - 1`, each with the worker that read it; `reads` counts the visits to this object."""

    def __init__(self, n: int) -> None:
        self.n, self.reads = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads += 1
        worker = get_worker_info()
        return index, -1 if worker is None else worker.id


class SlowItems(Dataset):
    """Numbers 0 to `n - 1`; each takes `seconds` to come, as if it were decoded or fetched."""

    def __init__(self, n: int, seconds: float) -> None:
        self.n, self.seconds = n, seconds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if self.seconds:
            time.sleep(self.seconds)
        return index


class FailsAt(Dataset):
    """Numbers 0 to 3, except for one that is broken."""

    def __init__(self, broken: int) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        return index


class Countdown(IterableDataset):
    """The stream `n - 1, ..., 1, 0`, whoever reads it."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n - 1, -1, -1))


class MarkovSource:
    """Tokens of which each depends on the one before: a language with one rule, whose entropy is known.

    `transition[a, b]` is the probability that `b` follows `a`: (vocabulary, vocabulary).
    """

    def __init__(self, vocabulary: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64)
        self.transition = logits.softmax(dim=1)

    def tokens(self, n: int, seed: int) -> Tensor:
        """`n` tokens: (n,), int64. The same seed gives the same tokens; no global generator is used."""
        thresholds = self.transition.cumsum(dim=1).numpy()
        token, found = 0, []
        for draw in np.random.default_rng(seed).random(n):
            token = min(int(np.searchsorted(thresholds[token], draw)), len(thresholds) - 1)
            found.append(token)
        return torch.tensor(found)

    def entropy_rate(self) -> float:
        """The lowest mean loss, in nats per token, that any model of this source can reach."""
        stationary = torch.linalg.matrix_power(self.transition, 1000)[0]
        surprise = -(self.transition * self.transition.log()).sum(dim=1)
        return float(stationary @ surprise)
