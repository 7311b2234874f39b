"""Pictures drawn from live objects, and how reports look. A name loads its module when it is first used."""

from __future__ import annotations

from importlib import import_module

_MODULES = {
    "Face": "theme",
    "show_storage": "storage",
    "explore": "explorer",
    "show_graph": "graph",
    "show_backward": "backward",
    "Curves": "curves",
    "show_losses": "curves",
    "show_attention": "attention",
    "show_number_line": "numberline",
    "show_memory": "memory",
    "show_trace": "timeline",
    "show_ranks": "ranks",
    "show_collective": "ranks",
    "show_shards": "ranks",
    "report_html": "report",
    "report_text": "report",
    "report_face": "report",
    "question_html": "report",
    "question_text": "report",
    "question_face": "report",
    "hint_face": "report",
    "solution_face": "report",
    "course_map_html": "course_map",
    "course_map_text": "course_map",
    "course_map_face": "course_map",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
