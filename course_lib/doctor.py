"""`python3 -m course_lib doctor`: what is here, what the course will use, and what to do about each problem.

Works before the environment exists: PyTorch is asked only where it is installed.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from course_lib import environment
from course_lib.environment import GIGABYTE, Problem
from course_lib.progress import default_path

SPACE_TO_WORK = GIGABYTE // 2  # checkpoints and traces of the later notebooks


@dataclass(frozen=True)
class Finding:
    """One line of the report; `remedy` is empty where all is well."""

    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"[problem] {self.text}\n          {self.remedy}" if self.remedy else f"[ok]      {self.text}"


def main() -> int:
    """Print every finding; 0 if all is well, else 1."""
    problems = 0
    for finding in findings():
        print(finding, flush=True)
        problems += bool(finding.remedy)
    print(f"\n{problems} problem{'s' if problems > 1 else ''} found." if problems else "\nAll is well.")
    return 1 if problems else 0


def findings() -> Iterator[Finding]:
    """What there is to say, one thing at a time: asking PyTorch takes some seconds."""
    yield Finding(f"Python {platform.python_version()} ({sys.executable})")
    yield _environment()
    yield from _packages()
    yield from _compute()
    yield _space()
    yield _progress_file()
    yield _browser()


def _environment() -> Finding:
    try:
        python = environment.ready()
    except Problem as problem:
        return Finding(f"{problem.what} {problem.why}", problem.remedy)
    if python is None:
        return Finding("the course's environment: none that is up to date", "Run: python3 -m course_lib")
    return Finding(f"the course's environment: {sys.prefix}")


def _packages() -> Iterator[Finding]:
    try:
        unmet = {one.requirement: one.installed or "not installed" for one in environment.missing()}
    except ImportError:
        yield Finding("installed packages: this Python has no pip to ask", "Run: python3 -m course_lib")
        return
    for line in environment.requirement_lines():
        if line in unmet:
            yield Finding(f"{line}: {unmet[line]} in this Python", "Run: python3 -m course_lib")
        else:
            yield Finding(f"{line}: {environment.installed_version(_name(line))}")


def _name(requirement: str) -> str:
    return requirement.split(">", 1)[0]


def _compute() -> Iterator[Finding]:
    """What the course computes on."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    cores = f"{os.cpu_count()} CPU cores"
    if threads in ("", "1"):
        yield Finding(f"{cores}; the course uses 1 thread, which is quickest for small models")
    else:
        yield Finding(
            f"{cores}; OMP_NUM_THREADS is {threads}: small models run slower on several threads",
            "Unset OMP_NUM_THREADS, or set it to 1, before you start the course.",
        )
    if environment.installed_version("torch"):
        yield _device()


def _device() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        remedy = f"Install it anew: '{sys.executable}' -m pip install --force-reinstall torch"
        return Finding(f"PyTorch cannot be imported: {error}", remedy)
    if torch.cuda.is_available():
        return Finding(f"device: cuda ({torch.cuda.get_device_name()})")
    if torch.backends.mps.is_available():
        return Finding("device: mps (the GPU of this Mac)")
    return Finding("device: cpu, which is all that the course needs")


def _space() -> Finding:
    free = shutil.disk_usage(environment.ROOT).free
    text = f"disk: {free / GIGABYTE:.1f} GB free in {environment.ROOT}"
    needed = SPACE_TO_WORK if environment.satisfied() else environment.SPACE_NEEDED
    return Finding(text, "" if free >= needed else f"Make room: the course needs {needed / GIGABYTE:.1f} GB.")


def _progress_file() -> Finding:
    path = default_path()
    if not path.exists():
        return Finding(f"progress: nothing recorded yet ({path})")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            verdict = connection.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict == "ok":
        return Finding(f"progress: {path}")
    text = f"progress: {path} cannot be read ({verdict})"
    return Finding(text, "Move it away; the next check begins a new one.")


def _browser() -> Finding:
    if has_browser():
        return Finding("browser: found; JupyterLab opens in it")
    return Finding("browser: none found here; the course prints an address to open in one")


def has_browser() -> bool:
    """Whether a window can be opened. A text browser would take the terminal away from JupyterLab."""
    displays = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in displays):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
