"""Answers as a learner would write them: cells of a notebook, made from functions of ours."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable

from course_lib.checking import Answer, Exercise, find_answer


def definition(function: Callable, name: str) -> str:
    """The source of `function` without decorators, under another name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    node = tree.body[0]
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id == node.name:
            inner.id = name  # it calls itself
    node.decorator_list, node.name = [], name
    return ast.unparse(node)


def imports_of(function: Callable) -> str:
    """The import statements of the module that defines `function`."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(function)))
    wanted = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) and not _is_ours(n)]
    return "\n".join(ast.unparse(node) for node in wanted)


def _is_ours(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("course_lib", "__future__"))


def cells_for(exercise: Exercise, function: Callable) -> list[str]:
    """A notebook in which `function` is the learner's answer to `exercise`."""
    return [imports_of(function), definition(function, exercise.name)]


def answer_from(exercise: Exercise, function: Callable) -> Answer:
    return find_answer(cells_for(exercise, function), exercise.name)
