"""Answers as a learner would write them: cells of a notebook, made from functions of ours."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType

from course_lib.checking import Answer, Exercise, find_answer


@cache
def definition(function: Callable, name: str) -> str:
    """The source of `function` without the exercise's decorators, under another name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    node = tree.body[0]
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id == node.name:
            inner.id = name  # it calls itself
    node.decorator_list = [d for d in node.decorator_list if not _registers_an_answer(d)]
    node.name = name
    return ast.unparse(node)


def _registers_an_answer(decorator: ast.expr) -> bool:
    """`@exercise.alternative` and `@exercise.misconception(...)`; `@contextmanager` belongs to the answer."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(called, "attr", "") in ("alternative", "misconception")


def surroundings(function: Callable) -> str:
    """What the module of `function` offers to its answers: imports and plain helper definitions."""
    return _plain_definitions(inspect.getmodule(function))


@cache
def _plain_definitions(module: ModuleType) -> str:
    tree = ast.parse(inspect.getsource(module))
    return "\n".join(ast.unparse(node) for node in tree.body if _is_plain(node))


def _is_plain(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module not in ("course_lib.checking", "__future__")
    is_definition = isinstance(node, (ast.FunctionDef, ast.ClassDef))
    return isinstance(node, ast.Import) or (is_definition and not node.decorator_list)


def cells_for(exercise: Exercise, function: Callable) -> list[str]:
    """A notebook in which `function` is the learner's answer to `exercise`."""
    return [surroundings(function), definition(function, exercise.name)]


@cache
def answer_from(exercise: Exercise, function: Callable) -> Answer:
    return find_answer(cells_for(exercise, function), exercise.name)


BRING = """
import sys, types

def bring(name, source):
    module = sys.modules[name] = types.ModuleType(name)
    exec(source, vars(module))
    return module
"""


def standing_alone(exercise: Exercise, function: Callable) -> list[str]:
    """The same notebook without the course's answers: what it takes from the reference it brings along as text."""
    surrounding, answer = cells_for(exercise, function)
    return [BRING, "\n".join(map(_brought_along, ast.parse(surrounding).body)), answer]


def _brought_along(node: ast.stmt) -> str:
    """Assignments, because an answer takes along what is imported, defined or assigned, and nothing else."""
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("course_lib.reference"):
        return ast.unparse(node)
    if node.module == "course_lib.reference":
        return "\n".join(f"{a.asname or a.name} = {_bring(f'{node.module}.{a.name}')}" for a in node.names)
    module = node.module.rpartition(".")[2]
    names = [f"{alias.asname or alias.name} = _{module}.{alias.name}" for alias in node.names]
    return "\n".join([f"_{module} = {_bring(node.module)}", *names])


def _bring(module: str) -> str:
    source = inspect.getsource(import_module(module))
    return f"bring({'brought_' + module.rpartition('.')[2]!r}, {source!r})"
