"""Submissions: how they are found and read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Submission:
    """One notebook that somebody handed in, read but not run."""

    student: str
    notebook: str  # "01_tensors", or "" where it can't be told
    path: Path  # the file as found; for a member of a zip, the zip
    member: str = ""  # name inside a zip
    digest: str = ""  # of the file's bytes: sha256, first 16 hex digits
    cells: tuple[str, ...] = ()  # sources of the code cells, outputs never kept
    problem: str = ""  # why it can't be graded, one sentence
    notes: tuple[str, ...] = ()  # what was repaired or odd
