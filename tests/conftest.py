"""What every test needs: one thread, silence from the profiler, and a progress file of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from course_lib.environment import ROOT

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


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
