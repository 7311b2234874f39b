"""Laws over the code of the library: who may import whom, how long functions are, and what never stands in it."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "course_lib"
MODULES = sorted(LIBRARY.rglob("*.py"))

# Lowest first: an import goes only to a room that stands lower, or stays inside its own.
ROOMS = [
    {"reference", "simulation", "ranks", "sealed"},
    {"checking"},
    {"exercises"},
    {"display", "execution", "kernel", "notebook"},
    {"progress"},
    {"authoring", "guide"},
    {"session", "selfcheck"},
    {"grading"},
    {"environment"},
    {"workbook", "doctor"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room(path: Path) -> str:
    first = path.relative_to(LIBRARY).parts[0]
    return first.removesuffix(".py")


def imported_rooms(tree: ast.AST, for_types_only: set[ast.stmt]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in for_types_only:
            names = (
                [node.module] if node.module != "course_lib" else [f"course_lib.{a.name}" for a in node.names]
            )
            found |= {name.split(".")[1] for name in names if name.startswith("course_lib.")}
    return found


def type_checking_imports(tree: ast.AST) -> set[ast.stmt]:
    guards = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    ]
    return {statement for guard in guards for statement in guard.body}


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if p.parent != LIBRARY or p.stem != "__init__"],
    ids=lambda p: str(p.relative_to(LIBRARY)),
)
def test_imports_go_to_lower_rooms(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for other in imported_rooms(tree, type_checking_imports(tree)):
        assert other == room(path) or LEVEL[other] < LEVEL[room(path)], f"{room(path)} imports {other}"


def test_the_answers_import_nothing_of_ours():
    for path in (LIBRARY / "reference").glob("*.py"):
        imports = [
            n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.Import, ast.ImportFrom))
        ]
        names = {a.name for n in imports if isinstance(n, ast.Import) for a in n.names} | {
            n.module for n in imports if isinstance(n, ast.ImportFrom)
        }
        assert not any(name.startswith("course_lib") for name in names)


def test_functions_are_short():
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    assert statistics.median(lengths) <= 11
    assert lengths[int(len(lengths) * 0.9)] <= 25


def test_the_engine_can_be_read_in_an_afternoon():
    lines = [
        line
        for path in (LIBRARY / "checking").glob("*.py")
        for line in path.read_text().splitlines()
        if line.strip()
    ]
    assert len(lines) <= 1500


def test_the_first_check_of_a_session_does_not_wait_for_the_compiler():
    """It loads the exercises of all notebooks; what brings `torch._dynamo` along takes three times as long."""
    loads = "import sys; from course_lib import exercises; exercises.all_exercises()"
    done = subprocess.run(
        [sys.executable, "-c", f"{loads}; print('torch._dynamo' in sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["False"], done.stderr


def test_ruff_is_content():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "."], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_path_of_an_authors_machine_is_in_the_repository():
    patterns = ("/home/", "/root/", "/Users/", "C:\\\\Users")
    for path in [
        *MODULES,
        *ROOT.glob("solutions/*"),
        *ROOT.glob("notebooks/*"),
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("*.toml"),
    ]:
        text = path.read_text(encoding="utf-8")
        assert not any(pattern in text for pattern in patterns), path


def test_no_file_is_large():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split(
        "\0"
    )
    assert [name for name in listed if name and (ROOT / name).stat().st_size > 1_000_000] == []


def test_tests_that_share_something_stay_on_one_worker(request):
    """pytest-xdist marks them by the end of their names; with a pytest that it does not know it does so no longer."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith(f"@{Path(__file__).stem}")
