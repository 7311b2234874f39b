"""The learner's own copies of the notebooks, in `workbook/`. Standard library only.

Nothing that a learner wrote is ever overwritten. A copy counts as changed when the source of a cell differs:
JupyterLab rewrites outputs and metadata on every save.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from course_lib.environment import ROOT, Problem

NOTEBOOKS = ROOT / "notebooks"
WORKBOOK = ROOT / "workbook"
BACKUPS = WORKBOOK / "backups"
RECORD = WORKBOOK / ".delivered.json"
RELOAD = "If it is open in JupyterLab, choose File > Reload Notebook from Disk."


class Damaged(Problem):
    """A file that is not a notebook, or no longer one."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} cannot be read.",
            "the file is not a notebook, or was cut short.",
            "restore it (in a git clone: git checkout -- notebooks), or get a fresh copy of the course.",
        )


@dataclass(frozen=True)
class Delivery:
    """What was put into `workbook/` under one name."""

    file: str  # hash of the course's file
    sources: str  # hash of its cells' sources
    offered: str = ""  # hash of the newer file that was put beside, if any


# Reading and writing


def read_notebook(path: Path) -> dict:
    """The notebook as JSON. Raises Damaged if it is none, FileNotFoundError if there is no such file."""
    return _parse(path.read_bytes(), path.name)


def _parse(content: bytes, name: str) -> dict:
    try:
        notebook = json.loads(content)
        for cell in notebook["cells"]:
            _source(cell), cell["cell_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(name) from error
    return notebook


def _source(cell: dict) -> str:
    return "".join(cell["source"])


def _sources_hash(notebook: dict) -> str:
    """Of the cells that hold something: running the last cell makes JupyterLab add an empty one."""
    sources = [(cell["cell_type"], _source(cell)) for cell in notebook["cells"] if _source(cell).strip()]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """All or nothing: whatever happens, `path` holds the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _write_notebook(path: Path, notebook: dict) -> None:
    _write(path, (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode())


def _keep(path: Path, why: str = "") -> Path:
    """Copy a learner's notebook to `backups/` under a name that says when; returns the copy."""
    BACKUPS.mkdir(parents=True, exist_ok=True)
    stem = f"{path.stem}{why}.{datetime.now():%Y%m%d-%H%M%S}"
    kept = next(name for name in _numbered(stem) if not (BACKUPS / name).exists())
    return Path(shutil.copy2(path, BACKUPS / kept))


def _numbered(stem: str) -> Iterator[str]:
    yield f"{stem}.ipynb"
    number = 2
    while True:
        yield f"{stem}-{number}.ipynb"
        number += 1


# Delivering


def first_notebook() -> Path:
    """Where the course begins, in `workbook/`."""
    return WORKBOOK / _course_notebooks()[0].name


def _course_notebooks() -> list[Path]:
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    if not paths:
        raise Problem(
            "The course's notebooks are missing.",
            f"there is no notebook in {NOTEBOOKS}.",
            "restore the folder (git checkout -- notebooks), or get a fresh copy of the course.",
        )
    return paths


def deliver() -> list[str]:
    """Bring `workbook/` up to date; returns what the learner should know, one line each. Raises Problem."""
    try:
        before = _read_record()
        record, lines = dict(before), []
        for path in _course_notebooks():
            lines += _deliver(path, record)
        if record != before:
            _write_record(record)
    except OSError as error:
        raise _cannot_write(error) from error
    return lines


def _deliver(course_path: Path, record: dict[str, Delivery]) -> list[str]:
    """One notebook, with its entry in the record."""
    target, content = WORKBOOK / course_path.name, course_path.read_bytes()
    known, newest = record.get(target.name), _delivery_of(content, target.name)
    state = _state(target, known, newest)
    if state == "changed":
        return _offer(target.stem, content, newest, record)
    if state == "unchanged" and known == newest:
        return []
    lines = []
    if state == "damaged":
        kept = _shown(_keep(target, ".damaged"))
        lines.append(f"{target.name} could not be read. It is kept as {kept}; a fresh one is in its place.")
    elif state == "unchanged" and known:
        lines.append(f"{target.name} was brought up to date. You had not changed it.")
    _write(target, content)
    record[target.name] = newest
    return lines


def _delivery_of(content: bytes, name: str) -> Delivery:
    return Delivery(hashlib.sha256(content).hexdigest(), _sources_hash(_parse(content, name)))


def _state(target: Path, known: Delivery | None, newest: Delivery) -> str:
    """What has become of a copy: missing, damaged, unchanged or changed."""
    try:
        sources = _sources_hash(read_notebook(target))
    except FileNotFoundError:
        return "missing"
    except Damaged:
        return "damaged"
    return "unchanged" if sources in (newest.sources, known.sources if known else "") else "changed"


def _offer(stem: str, content: bytes, newest: Delivery, record: dict[str, Delivery]) -> list[str]:
    """Put a newer version beside the learner's, once, under the first name that holds no work of theirs."""
    mine = f"{stem}.ipynb"
    known = record.get(mine, Delivery("", ""))
    if newest.file in (known.file, known.offered):
        return []
    for name in _numbered(f"{stem}.new"):
        if _state(WORKBOOK / name, record.get(name), newest) in ("missing", "unchanged"):
            break
    _write(WORKBOOK / name, content)
    record[name] = newest
    record[mine] = replace(known, offered=newest.file)
    return [f"{mine} has a newer version, put beside yours as {name}. Yours was not touched."]


def _read_record() -> dict[str, Delivery]:
    """Without a readable record every copy that differs from the course's counts as changed."""
    try:
        fields = json.loads(RECORD.read_text(encoding="utf-8"))
        return {name: Delivery(**delivery) for name, delivery in fields.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


def _write_record(record: dict[str, Delivery]) -> None:
    fields = {name: asdict(delivery) for name, delivery in sorted(record.items())}
    _write(RECORD, (json.dumps(fields, indent=1) + "\n").encode())


def _cannot_write(error: OSError) -> Problem:
    return Problem(
        "Your notebooks could not be brought up to date.",
        str(error),
        f"make room on the disk and see that {WORKBOOK} can be written to, then run the course again.",
    )


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Finding


def find(argument: str) -> Path:
    """The notebook that a person means: a path, or the name of one in `workbook/`. Raises Problem."""
    for path in (Path(argument), WORKBOOK / argument, WORKBOOK / f"{argument}.ipynb"):
        if path.is_file():
            return path
    names = ", ".join(sorted(path.stem for path in WORKBOOK.glob("*.ipynb")))
    raise Problem(
        f"There is no notebook {argument}.",
        f"it is neither a path nor the name of a notebook in {WORKBOOK}.",
        f"name one of these: {names}" if names else "run this first: python3 -m course_lib",
    )


# Resetting


@dataclass(frozen=True)
class Reset:
    """What a reset did, in words, and the exercises that begin again."""

    message: str
    exercises: tuple[str, ...]


def reset(name: str) -> Reset:
    """Put an exercise's stub back, or a whole notebook; a copy is kept in `backups/`. Raises Problem."""
    course_path = NOTEBOOKS / f"{name.removesuffix('.ipynb')}.ipynb"
    try:
        if course_path.is_file():
            return _reset_notebook(course_path)
        path, stub = _find_stub(name)
        return _reset_exercise(name, stub, WORKBOOK / path.name)
    except OSError as error:
        raise _cannot_write(error) from error


def _reset_notebook(course_path: Path) -> Reset:
    target, content = WORKBOOK / course_path.name, course_path.read_bytes()
    kept = f" Yours is kept as {_shown(_keep(target))}. {RELOAD}" if target.exists() else ""
    _write(target, content)
    _write_record({**_read_record(), target.name: _delivery_of(content, target.name)})
    message = f"{target.name} is as the course delivers it.{kept}"
    return Reset(message, tuple(_exercises_in(read_notebook(course_path))))


def _find_stub(name: str) -> tuple[Path, dict]:
    """The course's cell of an exercise, and the notebook that it is in. Raises Problem."""
    notebooks = {path: read_notebook(path) for path in _course_notebooks()}
    for holds in (_is_marked, _defines):
        for path, notebook in notebooks.items():
            for cell in notebook["cells"]:
                if holds(name, cell):
                    return path, cell
    raise _unknown(name, notebooks)


def _reset_exercise(name: str, stub: dict, target: Path) -> Reset:
    try:
        notebook = read_notebook(target)
    except (FileNotFoundError, Damaged) as error:
        raise Problem(
            f"{name} could not be reset.",
            f"{target.name} in {WORKBOOK} is missing or cannot be read.",
            f"put the whole notebook back; a copy of what is there is kept:\n"
            f"python3 -m course_lib reset {target.stem}",
        ) from error
    kept = _shown(_keep(target))
    others = ", ".join(str(number) for number in _put_stub(name, stub, notebook["cells"]))
    _write_notebook(target, notebook)
    remark = f" It is also in cell {others}, which was left alone." if others else ""
    done = f"{name} is a stub again in {target.name}.{remark}"
    return Reset(f"{done} Your notebook as it was is kept as {kept}. {RELOAD}", (name,))


def _put_stub(name: str, stub: dict, cells: list[dict]) -> list[int]:
    """Put the stub where the answer was; returns the numbers (from 1) of further cells that hold one."""
    places = enumerate(cells)
    found = [index for index, cell in places if _is_marked(name, cell) or _defines(name, cell)]
    found.sort(key=lambda index: not _is_marked(name, cells[index]))
    if found:
        cells[found[0]] = {**stub, "id": cells[found[0]].get("id", stub.get("id"))}
    else:
        cells.insert(_place_of_check(name, cells), stub)
    return [index + 1 for index in found[1:]]


def _is_marked(name: str, cell: dict) -> bool:
    return cell.get("metadata", {}).get("exercise") == name


def _defines(name: str, cell: dict) -> bool:
    """Whether a code cell defines the function or class; a cell that does not parse is read line by line."""
    if cell["cell_type"] != "code":
        return False
    try:
        statements = ast.parse(_source(cell)).body
    except SyntaxError:  # an IPython magic, or work in progress
        beginnings = (f"def {name}(", f"class {name}(", f"class {name}:")
        return any(line.startswith(beginnings) for line in _source(cell).splitlines())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(statement, kinds) and statement.name == name for statement in statements)


def _place_of_check(name: str, cells: list[dict]) -> int:
    """Before the cell that checks the exercise; at the end where there is none."""
    checks = (index for index, cell in enumerate(cells) if _source(cell).strip() == f"check({name})")
    return next(checks, len(cells))


def _exercises_in(notebook: dict) -> list[str]:
    marks = (cell.get("metadata", {}).get("exercise") for cell in notebook["cells"])
    return [name for name in marks if name]


def _unknown(name: str, notebooks: dict[Path, dict]) -> Problem:
    stems = [path.stem for path in notebooks]
    exercises = [exercise for notebook in notebooks.values() for exercise in _exercises_in(notebook)]
    close = difflib.get_close_matches(name, stems + exercises)
    return Problem(
        f"There is no exercise or notebook called {name}.",
        f"the notebooks are {', '.join(stems)}; the exercises are {', '.join(exercises) or '(none)'}.",
        f"try: python3 -m course_lib reset {close[0] if close else stems[0]}",
    )
