"""The notebooks of the course in the states in which learners have them, and how tests run them."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from course_lib import exercises
from tests.answers import definition

ROOT = Path(__file__).parents[1]
NAMES = [notebook.name for notebook in exercises.NOTEBOOKS]

NO_NETWORK = """
import socket as _socket
_connect = _socket.socket.connect
def _refuse(self, address):
    if self.family != getattr(_socket, "AF_UNIX", None) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise AssertionError(f"a cell reaches the network: {address}")
    return _connect(self, address)
_socket.socket.connect = _refuse
"""


def untouched(name: str) -> NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def solved(name: str) -> NotebookNode:
    return nbformat.read(ROOT / "solutions" / f"{name}.ipynb", as_version=4)


def half_solved(name: str) -> NotebookNode:
    """Of three exercises in a row one is right, one holds a misconception, one is untouched; predictions likewise."""
    notebook, answers = (
        untouched(name),
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


STATES = {"untouched": untouched, "half solved": half_solved, "solved": solved}


def run(
    notebook: NotebookNode, cwd: Path, *, strict: bool = False, allow_errors: bool = False
) -> NotebookNode:
    """Execute a copy of `notebook` in a fresh kernel that has no network; the copy with its new outputs."""
    copy = nbformat.from_dict(notebook)
    copy.cells.insert(0, nbformat.v4.new_code_cell(NO_NETWORK))
    environment = {**os.environ, "COURSE_LIB_STRICT": "1" if strict else "", "PYTHONPATH": str(ROOT)}
    client = NotebookClient(
        copy, timeout=300, allow_errors=allow_errors, resources={"metadata": {"path": str(cwd)}}
    )
    client.execute(env=environment)
    del copy.cells[0]
    return copy


def errors(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that raised although no tag announces it."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    plain = [cell for cell in code if "raises-exception" not in cell.metadata.get("tags", [])]
    return [cell for cell in plain if any(output.output_type == "error" for output in cell.outputs)]
