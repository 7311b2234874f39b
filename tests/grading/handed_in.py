"""What learners hand in, made for tests: notebooks as files, in folders and in zips."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

ANSWER = "def count_elements(shape):\n    count = 1\n    for size in shape:\n        count *= size\n    return count\n"
WRONG = "def count_elements(shape):\n    return sum(shape)\n"
STUB = 'def count_elements(shape):\n    raise NotImplementedError("your turn: count_elements")\n'


def code(source: str | list[str], **more: Any) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "source": source,
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        **more,
    }


def text(source: str, **more: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": source, "metadata": {}, **more}


def notebook(*cells: dict[str, Any], name: str = "00_start_here", **more: Any) -> dict[str, Any]:
    """A notebook of the course that holds these cells."""
    metadata = {
        "course_lib": {"notebook": name},
        "kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"},
    }
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5, **more}


def as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def answered(source: str = ANSWER, name: str = "00_start_here") -> bytes:
    """The file of a notebook with one answer."""
    return as_bytes(notebook(code(source), name=name))


def save(path: Path, content: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(answered() if content is None else content)
    return path


def zipped(members: dict[str, bytes] | list[tuple[str | zipfile.ZipInfo, bytes]], **options: Any) -> bytes:
    """A zip as bytes; members by name, or in order where a name comes twice."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, **options) as made:
        for name, content in members.items() if isinstance(members, dict) else members:
            made.writestr(name, content)
    return buffer.getvalue()
