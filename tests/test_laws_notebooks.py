"""Laws over every notebook of the course: built, runnable in every state, covered, free of answers and dead links."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course_lib import authoring, exercises, selfcheck
from tests.notebooks import (
    ASKED,
    BROWSER,
    NAMES,
    ROOT,
    code_cells,
    errors,
    half_solved,
    kernel_environment,
    nbval,
    run,
    solved,
    untouched,
    untouched_and_strict,
    verdicts_of_the_command_line,
    verdicts_shown,
)

each_notebook = pytest.mark.parametrize("name", NAMES)
longest_first = pytest.mark.parametrize("name", NAMES[::-1])  # the later ones take longer


def prose_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


# ---- built from one source ---------------------------------------------------------------------------------------


@each_notebook
def test_notebooks_are_what_the_source_builds(name):
    source = ROOT / "solutions" / f"{name}.py"
    stored = ROOT / "notebooks" / f"{name}.ipynb"
    assert authoring.to_text(authoring.learner_notebook(source)) == stored.read_text(encoding="utf-8"), (
        "build again"
    )


@each_notebook
def test_solved_notebooks_are_what_the_source_builds(name):
    def bare(notebook):
        notebook = nbformat.from_dict(notebook)
        for cell in code_cells(notebook):
            cell.outputs, cell.execution_count = [], None
        return authoring.to_text(notebook)

    stored = solved(name)
    assert all(cell.execution_count for cell in code_cells(stored)), "build with execution"
    assert bare(authoring.solved_notebook(ROOT / "solutions" / f"{name}.py")) == bare(stored), "build again"


@each_notebook
def test_the_statement_in_the_notebook_is_the_references(name):
    stubs = {
        c.metadata.exercise: ast.parse(c.source).body[-1]
        for c in untouched(name).cells
        if "exercise" in c.metadata
    }
    for exercise in exercises.exercises_of(name):
        assert ast.get_docstring(stubs[exercise.name]) == exercise.statement


def test_every_source_is_in_the_table_of_notebooks():
    for folder, suffix in (("solutions", "py"), ("solutions", "ipynb"), ("notebooks", "ipynb")):
        assert sorted(path.stem for path in (ROOT / folder).glob(f"*.{suffix}")) == NAMES


@each_notebook
def test_learners_notebooks_hold_no_output(name):
    assert not any(cell.outputs or cell.execution_count for cell in code_cells(untouched(name)))


# ---- every state runs from top to bottom -------------------------------------------------------------------------


# Each notebook is executed once in each state, because that takes up to minutes: solved and untouched by nbval as
# it is, half solved by Run All in a browser (`tests/test_browser.py`), or here where there is no browser.


def run_nbval(
    notebook: NotebookNode, scratch: Path, *options: str, strict: bool
) -> subprocess.CompletedProcess:
    """What nbval says of a copy of `notebook`."""
    path = scratch / "notebook.ipynb"
    nbformat.write(notebook, path)
    environment = kernel_environment(scratch, COURSE_LIB_STRICT="1" if strict else "")
    return nbval(
        path, "--nbval-sanitize-with", str(ROOT / "tests" / "sanitize.cfg"), *options, environment=environment
    )


def trouble(done: subprocess.CompletedProcess, cells: int) -> str:
    """What pytest said, unless that many cells ran and all passed."""
    all_passed = done.returncode == 0 and re.search(rf"^{cells} passed\b", done.stdout, re.MULTILINE)
    return "" if all_passed else f"{done.stdout[-5000:]}\n{done.stderr[-1000:]}"


@pytest.mark.long
@longest_first
def test_solved_notebooks_reproduce_their_outputs(name, tmp_path):
    """In strict mode, so that every answer and every prediction is right as well."""
    done = run_nbval(solved(name), tmp_path, "--nbval", strict=True)
    assert trouble(done, len(code_cells(solved(name)))) == ""


@pytest.mark.long
@longest_first
def test_untouched_notebooks_run_from_top_to_bottom(name, tmp_path):
    """Without an exception at first, and in a last cell all checks and predictions again, in strict mode."""
    notebook = untouched_and_strict(name)
    done = run_nbval(notebook, tmp_path, "--nbval-lax", strict=False)
    assert trouble(done, len(code_cells(notebook))) == ""


@pytest.mark.long
@pytest.mark.skipif(BROWSER is not None, reason="they run in the browser")
@longest_first
def test_half_solved_notebooks_run_from_top_to_bottom(name, tmp_path):
    done = run(half_solved(name), tmp_path)
    assert errors(done) == []
    assert verdicts_shown(done) == verdicts_of_the_command_line(done, name)


def test_strict_mode_fails_at_each_unsolved_cell_under_nbval(tmp_path):
    name = NAMES[0]
    done = run_nbval(untouched(name), tmp_path, "--nbval-lax", strict=True)
    asked = [c for c in code_cells(untouched(name)) if ASKED.fullmatch(c.source)]
    passed = len(code_cells(untouched(name))) - len(asked)
    assert re.search(rf"^{len(asked)} failed, {passed} passed\b", done.stdout, re.MULTILINE), done.stdout


def test_outputs_are_the_same_without_strict_mode(tmp_path):
    done = run_nbval(solved(NAMES[0]), tmp_path, "--nbval", strict=False)
    assert trouble(done, len(code_cells(solved(NAMES[0])))) == ""


@each_notebook
def test_all_that_is_asked_stands_in_a_cell_of_its_own(name):
    """`untouched_and_strict` finds it so: nothing that strict mode could stop stands elsewhere."""
    calls = [
        cell.source for cell in code_cells(untouched(name)) if re.search(r"\b(check|predict)\(", cell.source)
    ]
    assert all(map(ASKED.fullmatch, calls)), calls
    assert len(calls) == len(exercises.exercises_of(name) + exercises.questions_of(name))


# ---- one verdict everywhere --------------------------------------------------------------------------------------


@each_notebook
def test_half_solved_notebooks_hold_every_kind_of_answer(name):
    """What they show is compared with the command line where they run."""
    verdicts = set(verdicts_of_the_command_line(half_solved(name), name).values())
    assert name == "00_start_here" or {"passed", "not attempted"} < verdicts


@each_notebook
def test_a_solved_notebook_passes_the_command_line(name):
    lines = selfcheck.judge_cells([cell.source for cell in code_cells(solved(name))], name)
    assert {line.verdict for line in lines} == {"passed"}


# ---- no answer is readable before its time -----------------------------------------------------------------------


def telling_lines(exercise) -> list[str]:
    """Lines of the solution that would give it away: not what the stub holds, a bare loop header, a one-word return."""
    given = [*statements(stub_source(exercise)), "super().__init__()"]  # as every module begins
    return [text for text in statements(solution_source(exercise)) if len(text) > 15 and text not in given]


def statements(source: str) -> list[str]:
    kinds = (ast.Return, ast.Assign, ast.AugAssign, ast.Expr)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    is_docstring = [isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) for n in nodes]
    return [ast.unparse(node) for node, skipped in zip(nodes, is_docstring, strict=True) if not skipped]


def stub_source(exercise) -> str:
    return next(
        cell.source
        for name in NAMES
        for cell in untouched(name).cells
        if cell.metadata.get("exercise") == exercise.name
    )


def solution_source(exercise) -> str:
    for name in NAMES:
        for cell in solved(name).cells:
            if cell.metadata.get("exercise") == exercise.name:
                return cell.source
    raise AssertionError(f"{exercise.name} is in no notebook")


@each_notebook
def test_no_solution_survives_in_a_learners_notebook(name):
    text = "\n".join(cell.source for cell in untouched(name).cells)
    assert "BEGIN SOLUTION" not in text and "END SOLUTION" not in text
    for exercise in exercises.exercises_of(name):
        for line in telling_lines(exercise):
            assert line not in text, (exercise.name, line)
    assert text.count("raise NotImplementedError") >= len(exercises.exercises_of(name))
    assert len(re.findall(r'^predict\("\w+", \.\.\.\)$', text, re.MULTILINE)) == len(
        exercises.questions_of(name)
    )


# ---- coverage ----------------------------------------------------------------------------------------------------


@each_notebook
def test_every_objective_is_demonstrated_and_graded(name):
    shown = Counter(cell.metadata.get("objective") for cell in code_cells(untouched(name)))
    graded = {item.objective for item in exercises.exercises_of(name) + exercises.questions_of(name)}
    objectives = {id_ for id_, _ in exercises.objectives_of(name)}
    assert objectives and objectives <= set(shown) and objectives == graded
    assert set(shown) - {None} <= objectives


@each_notebook
def test_predictions_come_before_what_they_ask_about(name):
    code = code_cells(untouched(name))
    for position, cell in enumerate(code):
        if cell.source.startswith("predict("):
            assert "objective" in code[position + 1].metadata, cell.source


# ---- how a notebook reads ----------------------------------------------------------------------------------------


@each_notebook
def test_code_comes_in_small_pieces_with_prose_between(name):
    notebook = untouched(name)
    kinds = "".join("c" if cell.cell_type == "code" else "m" for cell in notebook.cells)
    assert "cccc" not in kinds
    lengths = sorted(
        len(cell.source.splitlines()) for cell in code_cells(notebook) if "exercise" not in cell.metadata
    )
    assert lengths[len(lengths) // 2] <= 6 and lengths[int(len(lengths) * 0.9)] <= 12


@each_notebook
def test_links_images_and_anchors_resolve(name):
    notebook = untouched(name)
    text = "\n".join(cell.source for cell in prose_cells(notebook))
    headings = {
        re.sub(r"[^\w\- ]", "", h).strip().replace(" ", "-")
        for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("https://"):
            assert (ROOT / "notebooks" / target.split("#")[0]).exists(), target
    assert not re.search(r"https?://(localhost|127\.)|src=\"http", text)
