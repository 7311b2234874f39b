"""Finding a learner's answer in the cells of a notebook, and giving it a namespace of its own.

The answer is the last definition of its name, together with what it needs: the imports, helper definitions and
constants of the notebook that it refers to, directly or through one another. Nothing else of the notebook runs,
so a stale variable, an edited check cell or a changed global setting can't change a verdict.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import symtable
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NotDefined(Exception):
    """The answer's source ran and did not define its name: the definition stands behind a false condition."""


@dataclass(frozen=True)
class Answer:
    """An answer's own source: `source` is complete, `definition` the text of the last definition alone."""

    name: str
    source: str
    definition: str
    problem: str = ""  # a syntax error in the cell that seems to define it

    @property
    def digest(self) -> str:
        """The same for the same code, however it is formatted or commented."""
        text = self.source if self.problem else ast.dump(ast.parse(self.source))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def tree(self) -> ast.stmt:
        return ast.parse(self.definition).body[-1]

    def load(self) -> Any:
        """Run the source in a fresh module and return what it defines.

        Raises NotDefined, and whatever the source raises.
        """
        module = types.ModuleType("answer")
        filename = f"<your {self.name}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        exec(compile(self.source, filename, "exec"), module.__dict__)
        if self.name not in module.__dict__:
            raise NotDefined(self.name)
        return module.__dict__[self.name]


@dataclass(frozen=True)
class _Statement:
    """A top-level statement: what it binds, what it reads when it runs, and what its functions read later."""

    text: str
    bound: frozenset[str]
    eager: frozenset[str]
    deferred: frozenset[str]


def find_answer(cells: Sequence[str], name: str) -> Answer | None:
    """The last definition of `name` in `cells` with what it needs, or None where nothing defines it."""
    statements, problem = [], None
    for cell in cells:
        found = _read(cell)
        if found is None:
            problem = _syntax_problem(cell, name) or problem
        else:
            statements += found
            problem = None if any(name in statement.bound for statement in found) else problem
    if problem:
        return problem
    last = _binding(statements, name)
    if last is None:
        return None
    chosen = _closure(statements, last)
    return Answer(name, "\n".join(statements[i].text for i in sorted(chosen)), statements[last].text)


@lru_cache(maxsize=4096)  # every exercise of a notebook asks for its cells
def _read(cell: str) -> tuple[_Statement, ...] | None:
    """A cell's statements, with IPython's magics blanked out where there are any; None if it can't be parsed."""
    for source in (cell, _without_magics(cell)):
        try:
            return tuple(_statements(source, ast.parse(source)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def _without_magics(cell: str) -> str:
    """Lines of IPython's own syntax become comments, so that line numbers stay."""
    lines = cell.splitlines()
    return "\n".join(
        "#" if line.lstrip()[:1] in ("%", "!", "?") or line.endswith("?") else line for line in lines
    )


def _syntax_problem(cell: str, name: str) -> Answer | None:
    """A cell that can't be parsed but whose text starts a definition of `name`."""
    starts = (f"def {name}(", f"class {name}(", f"class {name}:", f"{name} =", f"async def {name}(")
    if not any(line.strip().startswith(starts) for line in cell.splitlines()):
        return None
    try:
        ast.parse(_without_magics(cell))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = (getattr(error, "text", "") or "").strip()
        place = f" in line {error.lineno}: {line}" if getattr(error, "lineno", None) else ""
        return Answer(name, cell, cell, f"{type(error).__name__}: {getattr(error, 'msg', error)}{place}")
    return None


def _statements(source: str, tree: ast.Module) -> Iterable[_Statement]:
    lines = [line.decode() for line in source.encode().splitlines()]  # not at form feeds
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        alone = first != node.lineno or not _shares_line(tree, node)
        text = "\n".join(lines[first - 1 : node.end_lineno]) if alone else ast.unparse(node)
        yield _Statement(text, *map(frozenset, _names(node, text)))


def _shares_line(tree: ast.Module, node: ast.stmt) -> bool:
    """`a = 1; b = 2`: two statements on one line can't be taken apart by lines."""
    return any(
        other is not node and other.lineno <= node.end_lineno and node.lineno <= other.end_lineno
        for other in tree.body
    )


def _names(node: ast.stmt, text: str) -> tuple[set[str], set[str], set[str]]:
    """The names that a top-level statement binds, reads at once, and reads later, inside its functions."""
    top = symtable.symtable(text, "cell", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        bound.add("*")
    eager, deferred = _reads(top)
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        eager.add(node.target.id)
    return bound, eager, deferred


AT_ONCE = ("listcomp", "setcomp", "dictcomp", "genexpr")  # comprehensions run where they stand


def _reads(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Global names that a scope reads: its own (at once) and those of functions in it (later). Locals are not read."""
    is_top = table.get_type() == "module"
    read = [s for s in table.get_symbols() if s.is_referenced() and (is_top or s.is_global())]
    eager, deferred = {symbol.get_name() for symbol in read}, set()
    for child in table.get_children():
        now, later = _reads(child)
        runs_at_once = child.get_type() == "class" or child.get_name() in AT_ONCE
        eager |= now if runs_at_once else set()
        deferred |= later if runs_at_once else now | later
    return eager, deferred


def _binding(statements: Sequence[_Statement], name: str, before: int | None = None) -> int | None:
    """Position of the last statement that binds `name` (before a position, where one is given)."""
    stop = len(statements) if before is None else before
    return next((i for i in reversed(range(stop)) if name in statements[i].bound), None)


def _closure(statements: Sequence[_Statement], start: int) -> set[int]:
    """Positions of the statement at `start` and of everything that it needs."""
    stars = {i for i, statement in enumerate(statements) if "*" in statement.bound}
    chosen, pending = set(stars), [start]
    while pending:
        position = pending.pop()
        if position not in chosen:
            chosen.add(position)
            pending += _needs(statements, position)
    return chosen


def _needs(statements: Sequence[_Statement], position: int) -> list[int]:
    """What a statement reads while it runs must stand before it; what its functions read may come later."""
    statement = statements[position]
    found = [_read_later(statements, name, position) for name in statement.deferred - statement.bound]
    for name in statement.eager:
        earlier = _binding(statements, name, before=position)
        found.append(_binding(statements, name) if earlier is None else earlier)
    return [i for i in found if i is not None]


def _read_later(statements: Sequence[_Statement], name: str, position: int) -> int | None:
    """The last binding, as a corrected helper may follow; but `np = None` in another exercise undoes no import."""
    earlier = _binding(statements, name, before=position)
    is_import = earlier is not None and statements[earlier].text.startswith(("import ", "from "))
    return earlier if is_import else _binding(statements, name)


def is_stub(tree: ast.stmt) -> bool:
    """Whether a definition was never filled in: only a docstring, `...`, `pass`, `return None`, NotImplementedError.

    A class is a stub while any of its methods still raises NotImplementedError and does nothing else, or while
    none of its methods says anything.
    """
    if isinstance(tree, FUNCTIONS):
        return all(_says_nothing(statement) for statement in tree.body)
    if isinstance(tree, ast.ClassDef):
        methods = [node for node in tree.body if isinstance(node, FUNCTIONS)]
        others = [node for node in tree.body if node not in methods]
        return any(is_stub(method) and _raises_not_implemented(method) for method in methods) or (
            all(map(is_stub, methods)) and all(map(_says_nothing, others))
        )
    return False


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Return):
        return statement.value is None or (
            isinstance(statement.value, ast.Constant) and statement.value.value is None
        )
    return isinstance(statement, ast.Pass) or _is_not_implemented(statement)


def _is_not_implemented(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Raise) or statement.exc is None:
        return False
    raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _raises_not_implemented(method: ast.FunctionDef) -> bool:
    return any(_is_not_implemented(statement) for statement in method.body)
