"""The sealed part of a released copy: answers, misconceptions and replies, in one file that no search looks into.

In a learner's copy the packages `reference` and `exercises` are short files that call `unseal`; their text stands
in `sealed.bin`, compressed and masked. Sealed is not secret: who wants to can undo it, and a grade never rests on it.
It keeps an answer from being met by accident: in an editor, with grep, in a traceback.

There is no `sealed.bin` in the course itself, and nothing here is used. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
FILE = FOLDER / "sealed.bin"
MASK = b"Ask for a hint first."


def is_sealed() -> bool:
    """Whether this is a released copy, in which solutions are not shown."""
    return FILE.exists()


def seal(sources: Mapping[str, str]) -> bytes:
    """The sealed form of these files: text by path below `course_lib/`, such as `reference/tensors.py`."""
    return _masked(zlib.compress(json.dumps(dict(sorted(sources.items()))).encode(), 9))


def unseal(name: str) -> None:
    """Fill the module `name`, which calls this, with its sealed text; modules below it are found sealed as well."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _run(sys.modules[name], _path_of(name))


def _masked(data: bytes) -> bytes:
    """Each byte against one of an endless key; the same again takes the mask off."""
    key = int.from_bytes(hashlib.shake_256(MASK).digest(len(data)), "big")
    return (int.from_bytes(data, "big") ^ key).to_bytes(len(data), "big")


@cache
def _sources() -> dict[str, str]:
    return json.loads(zlib.decompress(_masked(FILE.read_bytes())))


def _path_of(name: str) -> str | None:
    """The sealed file of a module of ours, if it has one."""
    below = name.split(".")[1:]
    candidates = ("/".join(below) + ".py", "/".join([*below, "__init__.py"]))
    return next((path for path in candidates if path in _sources()), None)


def _run(module: ModuleType, path: str) -> None:
    """Named like the file that it was, which isn't there: nothing can show a line of it."""
    exec(compile(_sources()[path], str(FOLDER / path), "exec", dont_inherit=True), module.__dict__)


class _Finder(MetaPathFinder, Loader):
    """Finds sealed modules. It has no `get_source`, and it leaves no bytecode behind."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        file = _path_of(name) if name.startswith(f"{__package__}.") else None
        if file is None:
            return None
        spec = spec_from_loader(
            name, self, origin=str(FOLDER / file), is_package=file.endswith("__init__.py")
        )
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        _run(module, _path_of(module.__name__))
