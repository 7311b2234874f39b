"""Calls that an exercise forbids, because they would do the exercise.

A forbidden call is found in three ways, so that an alias does not hide it: by name in the answer's source, by
tracing the calls that Python makes, and by the aten operators that PyTorch dispatches.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.checking.answer import Answer

Forbidden = Callable | ModuleType


def label(forbidden: Forbidden) -> str:
    """How a message names it: `torch`, `torch.broadcast_shapes`, `Tensor.unfold`."""
    if isinstance(forbidden, ModuleType):
        return forbidden.__name__
    owner = getattr(forbidden, "__objclass__", None)
    prefix = owner.__name__.removeprefix("_").removesuffix("Base") if owner else forbidden.__module__
    return f"{prefix}.{forbidden.__name__}" if prefix else forbidden.__name__


def named_in_source(answer: Answer, forbids: tuple[Forbidden, ...]) -> list[str]:
    """The forbidden things that the answer's source names, annotations aside."""
    tree = _without_annotations(ast.parse(answer.source))
    names, modules = _named(tree), _used_modules(tree)
    return [label(f) for f in forbids if f.__name__ in (modules if isinstance(f, ModuleType) else names)]


def _without_annotations(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
    return tree


def _named(tree: ast.AST) -> set[str]:
    """Attributes (`x.unfold`), names imported from elsewhere, and strings handed to getattr."""
    nodes = list(ast.walk(tree))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imports = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    getattrs = [call for call in calls if getattr(call.func, "id", "") == "getattr"]
    strings = {arg.value for node in getattrs for arg in node.args[1:2] if isinstance(arg, ast.Constant)}
    return attributes | imports | strings


def _used_modules(tree: ast.AST) -> set[str]:
    """Top-level packages of which the source reads something; that one line imports others too is no use of them."""
    packages: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            packages |= {_bound_name(alias): _package(node, alias) for alias in node.names}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return {package for name, package in packages.items() if name in read}


def _bound_name(alias: ast.alias) -> str:
    return (alias.asname or alias.name).split(".")[0]


def _package(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return (getattr(node, "module", None) or alias.name).split(".")[0]


class CallTracer(TorchDispatchMode):
    """Notes which forbidden callables run while it is active, whatever they are called by."""

    def __init__(self, forbids: tuple[Forbidden, ...]) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self._modules = tuple(f.__name__ for f in forbids if isinstance(f, ModuleType))
        callables = [f for f in forbids if not isinstance(f, ModuleType)]
        self._codes = {f.__code__: label(f) for f in callables if hasattr(f, "__code__")}
        self._builtins = {f.__name__: label(f) for f in callables if not hasattr(f, "__code__")}

    def __enter__(self):
        entered = super().__enter__()
        self._before = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)  # last, so that PyTorch's own entering is not taken for the answer's
        return entered

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(self._before[0])
        threading.setprofile(self._before[1])
        super().__exit__(*exc_info)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self._builtins:
            self.seen.add(self._builtins[name])
        return func(*args, **(kwargs or {}))

    def _profile(self, frame, event: str, arg: Any) -> None:
        if frame.f_code.co_filename == __file__:
            return  # our own bookkeeping
        if event == "c_call":
            self._note(getattr(arg, "__name__", ""), _owner(arg))
        elif event == "call":
            self._note_code(frame)

    def _note(self, name: str, owner: str) -> None:
        if name == "setprofile":
            self.seen.add("sys.setprofile")  # which would turn the tracing off
        if name in self._builtins and owner.startswith(("torch", "numpy", "Tensor", "builtins", "math")):
            self.seen.add(self._builtins[name])
        self.seen.update(module for module in self._modules if _inside(owner, module))

    def _note_code(self, frame) -> None:
        if frame.f_code in self._codes:
            self.seen.add(self._codes[frame.f_code])
        module = frame.f_globals.get("__name__", "")
        self.seen.update(name for name in self._modules if _inside(module, name))


def _owner(function: Any) -> str:
    """The module (or, for a tensor's methods, `torch`) that a builtin function belongs to."""
    bound = getattr(function, "__self__", None)
    if isinstance(bound, ModuleType):
        return bound.__name__
    return getattr(function, "__module__", None) or type(bound).__module__


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")
