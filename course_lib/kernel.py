"""The cells of the notebook that this kernel runs, as last executed.

IPython keeps a history, but not where a cell stood, nor that it was deleted, and nbval runs cells without
history. So each cell is noted when it runs, under the id that the front end sends; running it again replaces it,
deleting it in JupyterLab removes it.
"""

from __future__ import annotations

import linecache
import sys
from typing import Any

_cells: dict[str, str] = {}


def running_shell() -> Any:
    """IPython's shell if this process has one, else None. Does not import IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def notebook_cells() -> list[str]:
    """Sources of the cells that ran and still exist, the most recent last."""
    for gone in _deleted_cells():
        _cells.pop(gone, None)
    return list(_cells.values())


def _note(info: Any) -> None:
    source = info.raw_cell or ""
    key = info.cell_id or f"unnamed {hash(source)}"
    _cells.pop(key, None)
    _cells[key] = source


def _deleted_cells() -> list[str]:
    """JupyterLab tells with each run which cells were deleted since the last."""
    parent = getattr(running_shell(), "parent_header", None) or {}
    return parent.get("metadata", {}).get("deletedCells", [])


def _watch(shell: Any) -> None:
    """Note every later cell; of the earlier ones what the history has; and the cell that is running now."""
    for position, source in enumerate(shell.user_ns.get("In", [])):
        if source:
            _cells[f"history {position}"] = source
    current = _running_cell(shell)
    if current and current not in _cells.values():
        _cells["running"] = current
    shell.events.register("pre_run_cell", _note)


def _running_cell(shell: Any) -> str:
    """The source of the cell whose code is on the stack: IPython keeps it where tracebacks look for it."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals is shell.user_global_ns:
            return "".join(linecache.getlines(frame.f_code.co_filename))
        frame = frame.f_back
    return ""


if running_shell():
    _watch(running_shell())
