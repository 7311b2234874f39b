"""One worker for all hostile answers, one for all others; starting one takes as long as importing PyTorch."""

from __future__ import annotations

import pytest

from course_lib.grading.judging import Worker, stage
from course_lib.grading.sandbox import MIB, Limits
from tests.grading.hostile import assert_unharmed


@pytest.fixture(scope="session")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("room")
    for place in (folder, folder.parent, folder.parent.parent):
        place.chmod(0o711)  # the worker may be another user
    return stage(folder / "staged")


@pytest.fixture(scope="session")
def usual_worker(staged):
    """With the limits that `grade` gives."""
    with Worker(staged) as worker:
        yield worker


@pytest.fixture(scope="session")
def shared_worker(staged):
    """Its limits are small, so that what runs into them does so soon."""
    limits = Limits(wall=20, total=60, cpu=20, memory=1600 * MIB, file_size=16 * MIB, disk=64 * MIB)
    with Worker(staged, limits) as worker:
        yield worker


@pytest.fixture
def worker(shared_worker):
    """After each attack the worker must be what it was before."""
    yield shared_worker
    assert_unharmed(shared_worker)
