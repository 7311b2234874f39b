"""DataLoader workers without processes: what an answer would do in one, seen in this process.

A worker process has a copy of the dataset, random generators seeded from the loader's base seed and its own
number, and an answer to `get_worker_info()`. All three can be had without a process. So a check needs no start
of processes, is the same on every platform, and also takes functions that were defined in a notebook.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker as torch_worker


def _random_states() -> tuple:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_random_states(states: tuple) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@contextmanager
def _other_random_states(states: tuple) -> Iterator[None]:
    """Use these random states for a while; those of the process come back afterwards."""
    outside = _random_states()
    _set_random_states(states)
    try:
        yield
    finally:
        _set_random_states(outside)


class SimulatedWorker:
    """What the worker `worker_id` of `num_workers` has for itself, while it is entered."""

    def __init__(self, dataset: Dataset, worker_id: int, num_workers: int, base_seed: int = 0) -> None:
        self.dataset = copy.deepcopy(dataset)
        seed = base_seed + worker_id
        self.info = torch_worker.WorkerInfo(
            id=worker_id, num_workers=num_workers, seed=seed, dataset=self.dataset
        )
        with _other_random_states(_random_states()):
            torch.default_generator.manual_seed(seed)  # the CPU generator alone
            np.random.seed(torch_worker._generate_state(base_seed, worker_id))
            random.seed(seed)
            self._states = _random_states()

    @contextmanager
    def entered(self) -> Iterator[None]:
        outside, torch_worker._worker_info = torch_worker._worker_info, self.info
        with _other_random_states(self._states):
            try:
                yield
            finally:
                self._states = _random_states()
                torch_worker._worker_info = outside


def simulated_epochs(loader: DataLoader, n_epochs: int) -> list[list[Any]]:
    """The batches of each epoch of a loader over a map-style dataset, as its workers would make them.

    Like the loader itself it draws a base seed for each epoch, gives the batches to the workers in turn, and
    starts the workers anew for every epoch unless they are persistent.
    """
    epochs: list[list[Any]] = []
    workers: list[SimulatedWorker] = []
    for _ in range(n_epochs):
        base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator))
        if not (workers and loader.persistent_workers):
            workers = _start(loader, base_seed)
        batches = enumerate(loader._index_sampler)
        epochs.append([_fetch(loader, workers[i % len(workers)], indices) for i, indices in batches])
    return epochs


def _start(loader: DataLoader, base_seed: int) -> list[SimulatedWorker]:
    workers = [
        SimulatedWorker(loader.dataset, i, loader.num_workers, base_seed) for i in range(loader.num_workers)
    ]
    for worker in workers:
        with worker.entered():
            if loader.worker_init_fn is not None:
                loader.worker_init_fn(worker.info.id)
    return workers


def _fetch(loader: DataLoader, worker: SimulatedWorker, indices: Any) -> Any:
    with worker.entered():
        if loader.batch_sampler is None:  # batching is switched off: one index at a time
            return loader.collate_fn(worker.dataset[indices])
        return loader.collate_fn([worker.dataset[index] for index in indices])
