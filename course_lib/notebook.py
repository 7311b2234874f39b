"""A saved notebook as it comes back from a learner: its code cells, and which notebook of the course it is.

Read as plain JSON, without any of its outputs, so that 50 MB of them, ten thousand cells or metadata that an editor
has lost make no difference. What was odd about the file is noted in words; only a file that holds no code of the
course is refused. `check` on the command line and `grade` read notebooks here, so they see the same cells.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.exercises import NOTEBOOKS, all_exercises, exercises_of, questions_of

MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))  # byte-order marks
DEFINITION = re.compile(r"^(?:async def|def|class) (\w+)|^(\w+) *=(?!=)", re.MULTILINE)
PREDICTION = re.compile(r"""^predict\((?:name=)?["'](\w+)["']""", re.MULTILINE)
SURROGATES = re.compile("[\ud800-\udfff]")


class NotACourseNotebook(Exception):
    """The file can't be read, or nothing in it belongs to the course. The message is one sentence for people."""


@dataclass(frozen=True)
class Notebook:
    """What counts of a saved notebook."""

    name: str  # which notebook of the course, such as 01_tensors
    cells: tuple[str, ...]  # sources of the code cells, in order
    notes: tuple[str, ...] = ()  # what was odd or repaired


def read(content: bytes, filename: str) -> Notebook:
    """The notebook in `content`. `filename`, without folders, helps to tell which one it is.

    Raises NotACourseNotebook.
    """
    notes: list[str] = []
    saved = _parsed(_decoded(content, notes), notes)
    cells = _code_cells(saved, notes)
    return Notebook(_identified(saved, cells, filename, notes), tuple(cells), tuple(notes))


def named_in(filename: str) -> str:
    """The notebook of the course whose name is in a file's name; empty if there is none."""
    names = [notebook.name for notebook in NOTEBOOKS if notebook.name in filename.lower()]
    return names[0] if names else ""


# ---- the file ----------------------------------------------------------------------------------------------------


def _decoded(content: bytes, notes: list[str]) -> str:
    """The text of the file. Bytes that are no text become U+FFFD, which costs at most the cell they stand in."""
    if not content.strip(b"\0 \t\r\n"):
        raise NotACourseNotebook("the file is empty")
    encoding = next((name for mark, name in MARKS if content.startswith(mark)), "utf-8")
    if encoding != "utf-8":
        notes.append("begins with a byte-order mark")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        notes.append("holds bytes that are not text; they were replaced")
        return content.decode(encoding, errors="replace")


def _parsed(text: str, notes: list[str]) -> dict[str, Any]:
    try:
        saved = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotACourseNotebook(_what_is_wrong(text, error)) from error
    if not isinstance(saved, dict) or not isinstance(_cells_of(saved), list):
        raise NotACourseNotebook("the file is no notebook: it has no cells")
    if "cells" not in saved:
        notes.append("is in the format of IPython 2 (nbformat 3)")
    return saved


def _what_is_wrong(text: str, error: Exception) -> str:
    text = text.strip()
    stopped = error.pos if isinstance(error, json.JSONDecodeError) else 0
    if text.startswith("{") and (not text.endswith("}") or stopped >= len(text) - 1):
        return "the file was cut short; save it again in Lab"
    return "the file is no notebook: it is not JSON"


def _cells_of(saved: dict[str, Any]) -> Any:
    """The cells; before nbformat 4 they lay in worksheets."""
    if "cells" in saved:
        return saved["cells"]
    sheets = saved.get("worksheets")
    if not isinstance(sheets, list):
        return None
    return [cell for sheet in sheets if isinstance(sheet, dict) for cell in _list(sheet.get("cells"))]


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


# ---- the cells ---------------------------------------------------------------------------------------------------


def _code_cells(saved: dict[str, Any], notes: list[str]) -> list[str]:
    cells = [cell for cell in _cells_of(saved) if isinstance(cell, dict)]
    _note_odd_cells(cells, notes)
    sources = [_source(cell) for cell in cells if cell.get("cell_type") == "code"]
    clean = [_clean(source) for source in sources]
    if any(SURROGATES.search(source) for source in sources):
        notes.append("holds halves of characters (lone surrogates); they were replaced")
    if any("\r" in source for source in sources):
        notes.append("has the line ends of Windows")
    return clean


def _source(cell: dict[str, Any]) -> str:
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        return "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""


def _clean(source: str) -> str:
    return SURROGATES.sub("\ufffd", source).replace("\r\n", "\n").replace("\r", "\n")


def _note_odd_cells(cells: list[dict[str, Any]], notes: list[str]) -> None:
    ids = [cell["id"] for cell in cells if isinstance(cell.get("id"), str)]
    if len(set(ids)) < len(ids):
        notes.append("has cells with the same id")
    for cell in cells:
        if cell.get("cell_type") != "code" and (name := _answered_in(cell)):
            notes.append(f"the cell of {name} is no longer a code cell, so it is not judged")


def _answered_in(cell: dict[str, Any]) -> str:
    """The exercise that a cell which is not code was made for, by its metadata or by what it defines."""
    marked = _dict(cell.get("metadata")).get("exercise")
    if isinstance(marked, str):
        return marked
    text = _source(cell).lstrip()
    found = re.match(r"(?:def|class) (\w+)", text)
    return found[1] if found and found[1] in all_exercises() else ""


# ---- which notebook ----------------------------------------------------------------------------------------------


def _identified(saved: dict[str, Any], cells: Sequence[str], filename: str, notes: list[str]) -> str:
    """By its metadata; else by its file name; else the one of which it defines the most exercises."""
    metadata = _dict(saved.get("metadata"))
    _note_kernel(metadata, notes)
    claimed = _dict(metadata.get("course_lib")).get("notebook")
    known = [notebook.name for notebook in NOTEBOOKS]
    if claimed not in known:
        notes.append("its metadata does not say which notebook it is")
    candidates = (claimed, named_in(filename), by_content(cells))
    found = next((name for name in candidates if name in known), "")
    if not found:
        raise NotACourseNotebook(f"it defines no exercise of this course. Notebooks: {', '.join(known)}")
    if named_in(filename) != found:
        notes.append(f"was renamed: it is {found}")
    return found


def _note_kernel(metadata: dict[str, Any], notes: list[str]) -> None:
    spec = _dict(metadata.get("kernelspec"))
    if spec.get("language", "python") != "python" or spec.get("name", "python3") != "python3":
        notes.append(f"was written for another kernel ({str(spec.get('name', ''))[:40]})")


def by_content(cells: Sequence[str]) -> str:
    """The notebook of which the cells define the most exercises and predict the most questions; empty if none.

    By their text, not by parsing it: whatever a cell holds, it can't stop this.
    """
    text = "\n".join(cells)
    names = {name for pair in DEFINITION.findall(text) for name in pair} | set(PREDICTION.findall(text))
    counts = {
        known.name: sum(item.name in names for item in (*exercises_of(known.name), *questions_of(known.name)))
        for known in NOTEBOOKS
    }
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else ""


# ---- predictions -------------------------------------------------------------------------------------------------


def find_prediction(cells: Sequence[str], name: str) -> str | None:
    """The letter in the last `predict(name, letter)` of the notebook; None where it is still open."""
    return predictions(cells).get(name)


def predictions(cells: Sequence[str]) -> dict[str, str | None]:
    """The letter of each question that the cells predict, by the last `predict` of it; None where it is open."""
    found: dict[str, str | None] = {}
    for call in _predict_calls(cells):
        given = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        given += [keyword.value.value for keyword in call.keywords if isinstance(keyword.value, ast.Constant)]
        if len(given) == 2 and isinstance(given[0], str):
            found[given[0]] = None if given[1] in (..., "...") else str(given[1]).strip().lower()
    return found


def _predict_calls(cells: Sequence[str]) -> list[ast.Call]:
    calls = []
    for cell in cells:
        try:
            nodes = list(ast.walk(ast.parse(cell))) if "predict" in cell else []
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        calls += [n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "predict"]
    return calls
