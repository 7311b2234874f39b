"""The notebooks of the course in the states in which learners have them, and how tests run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_lib import exercises, selfcheck
from course_lib.execution import CELL_SECONDS, Client
from tests.answers import definition

ROOT = Path(__file__).parents[1]
NAMES = [notebook.name for notebook in exercises.NOTEBOOKS]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None) if find_spec("playwright") else None

# A kernel runs this before the first cell.
NO_NETWORK = """
import socket as _socket
_connect = _socket.socket.connect
def _refuse(self, address):
    if self.family != getattr(_socket, "AF_UNIX", None) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise AssertionError(f"a cell reaches the network: {address}")
    return _connect(self, address)
_socket.socket.connect = _refuse
"""

# A last cell, which runs all checks and predictions of an unsolved notebook again.
STRICT_MODE_RAISES = """
import os as _os
from course_lib.session import CheckFailed as _CheckFailed

def _raises(source):
    _os.environ["COURSE_LIB_STRICT"] = "1"
    try:
        exec(source)
    except _CheckFailed:
        return True
    finally:
        _os.environ["COURSE_LIB_STRICT"] = ""
    return False

_silent = [source for source in {sources} if not _raises(source)]
assert _silent == [], f"strict mode accepts {_silent}"
"""
ASKED = re.compile(r'check\((\w+)\)|predict\("(\w+)", .*\)')  # a whole cell
VERDICTS = ("passed", "failed", "not attempted", "error", "grader fault")


@cache
def _read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def untouched(name: str) -> NotebookNode:
    """A copy of what learners get."""
    return nbformat.from_dict(_read(ROOT / "notebooks" / f"{name}.ipynb"))


def solved(name: str) -> NotebookNode:
    """A copy with the outputs that are stored."""
    return nbformat.from_dict(_read(ROOT / "solutions" / f"{name}.ipynb"))


def half_solved(name: str) -> NotebookNode:
    """Of three exercises in a row one is right, one holds a misconception, one is untouched; predictions likewise."""
    notebook, answers = (
        nbformat.from_dict(untouched(name)),
        {c.metadata.exercise: c.source for c in solved(name).cells if "exercise" in c.metadata},
    )
    for position, cell in enumerate(c for c in notebook.cells if "exercise" in c.metadata):
        exercise = exercises.exercise(cell.metadata.exercise)
        if position % 3 == 0:
            cell.source = answers[exercise.name]
        elif position % 3 == 1:
            cell.source = definition(exercise.misconceptions[0].answer, exercise.name)
    for position, cell in enumerate(c for c in notebook.cells if c.source.startswith("predict(")):
        cell.source = cell.source.replace("...", ('"a"', '"b"', "...")[position % 3])
    return notebook


def untouched_and_strict(name: str) -> NotebookNode:
    """Untouched, with a last cell that fails unless strict mode raises at every check and prediction."""
    notebook = nbformat.from_dict(untouched(name))
    sources = [cell.source for cell in code_cells(notebook) if ASKED.fullmatch(cell.source)]
    last = STRICT_MODE_RAISES.replace("{sources}", repr(sources))
    notebook.cells.append(nbformat.v4.new_code_cell(last, id="strict"))
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kernel_environment(scratch: Path, **more: str) -> dict[str, str]:
    """What a kernel is started with: this course, a progress file of its own, and no network."""
    startup = scratch / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "no_network.py").write_text(NO_NETWORK)
    own = {
        "COURSE_LIB_PROGRESS": str(scratch / "progress.sqlite"),
        "COURSE_LIB_STRICT": "",
        "IPYTHONDIR": str(scratch / "ipython"),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(ROOT),
    }
    return {**os.environ, **own, **more}


def run(notebook: NotebookNode, scratch: Path, **options: bool) -> NotebookNode:
    """Execute a copy of `notebook` in a fresh kernel; the copy with its new outputs. Options are nbclient's."""
    copy = nbformat.from_dict(notebook)
    resources = {"metadata": {"path": str(scratch)}}
    Client(copy, timeout=CELL_SECONDS, resources=resources, **options).run(kernel_environment(scratch))
    return copy


def nbval(path: Path, *options: str, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Run pytest with nbval on a notebook: once more where another program took a port of its kernel."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--color=no",
        *options,
        str(path),
    ]
    for _ in range(2):
        done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True)
        if "Kernel died before replying" not in done.stdout:
            break
    return done


def errors(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that raised although no tag announces it."""
    plain = [cell for cell in code_cells(notebook) if "raises-exception" not in cell.metadata.get("tags", [])]
    return [cell for cell in plain if any(output.output_type == "error" for output in cell.outputs)]


def verdicts_shown(notebook: NotebookNode) -> dict[str, str]:
    """What each check cell of an executed notebook said."""
    found = {}
    for cell in code_cells(notebook):
        if match := re.fullmatch(r"check\((\w+)\)", cell.source.strip()):
            text = cell.outputs[0].data["text/plain"]
            found[match[1]] = next(verdict for verdict in VERDICTS if verdict in text.splitlines()[0])
    return found


def verdicts_of_the_command_line(notebook: NotebookNode, name: str) -> dict[str, str]:
    lines = selfcheck.judge_cells([cell.source for cell in code_cells(notebook)], name)
    return {line.name: line.verdict for line in lines if line.kind == "exercise"}
