"""Simulated workers do what real ones do: the same loader gives the same batches with and without processes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from course_lib.exercises.simulated_workers import SimulatedWorker, simulated_epochs
from course_lib.reference.sources import CountsReads, GlobalDraws, OwnGenerator

# From Python 3.12 on, forking a process that has threads warns; the workers of the tests do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def seed_own_generator(worker_id: int) -> None:
    get_worker_info().dataset.rng = np.random.default_rng([torch.initial_seed(), worker_id])


def plain(batch) -> list:
    return torch.stack([torch.as_tensor(part) for part in batch]).tolist()


LOADERS = {
    "a generator of the dataset": (OwnGenerator(10), {}),
    "seeded in each worker": (OwnGenerator(10), {"worker_init_fn": seed_own_generator}),
    "workers that stay": (OwnGenerator(10), {"persistent_workers": True}),
    "workers that stay, seeded": (
        OwnGenerator(10),
        {"persistent_workers": True, "worker_init_fn": seed_own_generator},
    ),
    "PyTorch's global state": (GlobalDraws(10, "torch"), {}),
    "NumPy's global state": (GlobalDraws(10, "numpy"), {}),
    "who reads what, shuffled": (CountsReads(7), {"shuffle": True}),
    "one item at a time": (CountsReads(5), {"batch_size": None}),
    "a sampler, the last batch dropped": (CountsReads(5), {"sampler": [4, 1, 3], "drop_last": True}),
}


@pytest.mark.parametrize("name", LOADERS)
def test_simulated_epochs_are_the_real_ones(name):
    dataset, options = LOADERS[name]

    def loader() -> DataLoader:
        generator = torch.Generator().manual_seed(5)
        return DataLoader(dataset, **{"batch_size": 2, "num_workers": 2, "generator": generator, **options})

    real = loader()
    expected = [[plain(batch) for batch in real] for _ in range(3)]
    assert [[plain(batch) for batch in epoch] for epoch in simulated_epochs(loader(), 3)] == expected


def test_the_processes_own_random_states_stay_as_they_are():
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    with SimulatedWorker(OwnGenerator(4), 1, 2).entered():
        assert get_worker_info().id == 1 and get_worker_info().num_workers == 2
        torch.rand(1), np.random.rand(1), random.random()
    after = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert get_worker_info() is None


def test_a_worker_goes_on_where_it_stopped():
    worker, draws = SimulatedWorker(OwnGenerator(4), 0, 2, base_seed=3), []
    for _ in range(2):
        with worker.entered():
            draws.append((torch.rand(1).item(), np.random.rand(), random.random()))
    assert draws[0] != draws[1]


def test_a_worker_that_raises_is_left_all_the_same():
    with pytest.raises(ZeroDivisionError), SimulatedWorker(OwnGenerator(4), 0, 2).entered():
        1 / 0  # noqa: B018
    assert get_worker_info() is None
