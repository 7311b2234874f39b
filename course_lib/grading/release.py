"""`release`: what learners get, as one zip with nothing in it that gives an answer away.

In it are the learners' notebooks, the library, and what sets it up. `reference`, `exercises` and the other modules of
`SEALED` go in sealed (see `course_lib.sealed`). The same course gives the same bytes.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from course_lib import exercises
from course_lib.grading.collect import put
from course_lib.sealed import FILE, is_sealed, seal

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "inside-pytorch"  # everything in the zip lies in it
SEALED = ("reference/", "exercises/", "simulation.py")  # below course_lib/
PLAIN = ("requirements.txt", "pyproject.toml", "environment.yml", "LICENSE")
LEFT_OUT = {"__pycache__", ".ipynb_checkpoints"}
SAME_TIME = (2020, 1, 1, 0, 0, 0)

STANDS_FOR = '''\
"""Sealed in this copy: ask `hint` for help. Your instructor gives the solutions out later."""

from course_lib.sealed import unseal

unseal(__name__)
'''

READ_ME = """\
# Inside PyTorch

Numbered Jupyter notebooks with exercises that tell you which misunderstanding a wrong answer came from.
You need Python 3.10 to 3.13 and nothing else. In this folder run

    python3 -m course_lib          # sets everything up, then opens JupyterLab on the first notebook

On Windows write `py` in place of `python3`. Your own copies of the notebooks lie in `workbook/`; no update overwrites
what you changed there.

| command (after `python3 -m course_lib`) | what it does |
|---|---|
| `status` | what you have done so far |
| `check workbook/{first}.ipynb` | checks all answers of a saved notebook |
| `reset NAME` | begins an exercise or a notebook again; a copy of yours is kept |
| `doctor` | what is installed and used, and what to do about each problem |

In a notebook: `check(name)`, `hint(name)`, `predict("question", "letter")`, `passing(name)`, `progress()`.
Your instructor gives the solutions out later. Hand in the notebook as it is saved in `workbook/`.

{notebooks}
"""


class NotReleased(Exception):
    """The zip can't be made. The message says why and what to do."""


def main(target: Path, names: Sequence[str] = ()) -> int:
    """Write the zip and say what is in it; the exit code: 0, or 2 where it could not be made."""
    try:
        content = archive(names)
        put(target, content)
    except (NotReleased, OSError) as problem:
        print(f"course_lib: nothing was released. {problem}")
        return 2
    count = len(zipfile.ZipFile(io.BytesIO(content)).namelist())
    print(
        f"wrote {target}: {count} files, {len(content) / 1e6:.1f} MB, notebooks {', '.join(_chosen(names))}"
    )
    return 0


def archive(names: Sequence[str] = (), root: Path = ROOT) -> bytes:
    """The zip as bytes, with the named notebooks, or all of them. Raises NotReleased."""
    if is_sealed():
        raise NotReleased("This copy was itself made by release; use the course that it was made from.")
    files = {**_notebooks(_chosen(names), root), **_library(root), **_plain(root), **_read_me(_chosen(names))}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name in sorted(files):
            info = zipfile.ZipInfo(f"{FOLDER}/{name}", SAME_TIME)
            info.external_attr, info.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            made.writestr(info, files[name])
    return buffer.getvalue()


def _chosen(names: Sequence[str]) -> list[str]:
    known = [notebook.name for notebook in exercises.NOTEBOOKS]
    wanted = [name.removesuffix(".ipynb") for name in names]
    if unknown := [name for name in wanted if name not in known]:
        raise NotReleased(f"There is no notebook {unknown[0]}. Notebooks: {', '.join(known)}.")
    return sorted(set(wanted)) or known


# ---- notebooks ---------------------------------------------------------------------------------------------------


def _notebooks(names: Iterable[str], root: Path) -> dict[str, bytes]:
    found = {}
    for name in names:
        path = root / "notebooks" / f"{name}.ipynb"
        content = path.read_bytes()
        if problem := _gives_away(json.loads(content), name):
            raise NotReleased(
                f"notebooks/{path.name} {problem}. Build it again: python3 -m course_lib build {name}"
            )
        found[f"notebooks/{path.name}"] = content
    return found


def _gives_away(notebook: dict[str, Any], name: str) -> str:
    """What a learner's notebook must not hold; empty where it is as it was built."""
    cells, text = notebook["cells"], "\n".join("".join(cell["source"]) for cell in notebook["cells"])
    if any(cell.get("outputs") or cell.get("execution_count") for cell in cells):
        return "holds outputs"
    if any(cell.get("attachments") for cell in cells):
        return "holds attachments"
    if re.search(r"(BEGIN|END) SOLUTION", text):
        return "holds a solution"
    open_ones = {*re.findall(r"your turn: (\w+)", text), *re.findall(r'predict\("(\w+)", \.\.\.\)', text)}
    asked = [item.name for item in (*exercises.exercises_of(name), *exercises.questions_of(name))]
    answered = [item for item in asked if item not in open_ones]
    return f"answers {answered[0]}" if answered else ""


# ---- the library -------------------------------------------------------------------------------------------------


def _library(root: Path) -> dict[str, bytes]:
    library, open_files, sealed = root / "course_lib", {}, {}
    for path in sorted(library.rglob("*")):
        name = path.relative_to(library).as_posix()
        if path.is_file() and not _is_left_out(path.relative_to(library)):
            (sealed if name.startswith(SEALED) else open_files)[name] = path.read_bytes()
    stubs = {
        name: STANDS_FOR.encode() for name in sealed if name.count("/") == 0 or name.endswith("/__init__.py")
    }
    texts = {name: content.decode() for name, content in sealed.items()}
    files = {**open_files, **stubs, FILE.name: seal(texts)}
    return {f"course_lib/{name}": content for name, content in files.items()}


def _is_left_out(path: Path) -> bool:
    return (
        bool(LEFT_OUT & set(path.parts))
        or path.suffix == ".pyc"
        or any(p.startswith(".") for p in path.parts)
    )


def _plain(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in PLAIN if (root / name).is_file()}


def _read_me(names: Sequence[str]) -> dict[str, bytes]:
    titles = {notebook.name: notebook.title for notebook in exercises.NOTEBOOKS}
    table = ["| | notebook |", "|---|---|", *(f"| {name[:2]} | {titles[name]} |" for name in names)]
    return {"README.md": READ_ME.format(first=names[0], notebooks="\n".join(table)).encode()}
