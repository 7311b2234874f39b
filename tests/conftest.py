"""What every test needs: one thread, silence from the profiler, and a progress file of its own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from course_lib.environment import ROOT

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background may have it ignored


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The workers are busy to the end: the long tests begin first, the rest comes in small groups.

    A group stays on one worker, where it shares a kernel, or what is known about an exercise.
    """
    items.sort(key=_is_short)
    for item in filter(_is_short, items):
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def _is_short(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is None


def _group(item: pytest.Item) -> str:
    """The laws over one exercise stand together, and so does all else of a module."""
    asked = getattr(item, "callspec", None) and item.callspec.params.get("exercise")
    return asked.name if asked else item.path.stem


def pytest_collection_finish() -> None:
    """What is imported by now stays: `gc.collect()`, which some checks call, need not search it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_progress_file(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_LIB_PROGRESS", str(tmp_path / "progress.sqlite"))


@pytest.fixture
def copy_course() -> Callable[[Path], Path]:
    """Makes a throw-away copy of the course in a folder, without notebooks, as a fresh clone has it."""

    def copy(folder: Path) -> Path:
        shutil.copytree(
            ROOT / "course_lib", folder / "course_lib", ignore=shutil.ignore_patterns("__pycache__")
        )
        for name in ("requirements.txt", "pyproject.toml", "environment.yml"):
            shutil.copy(ROOT / name, folder)
        (folder / "notebooks").mkdir()
        return folder

    return copy
