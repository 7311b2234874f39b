"""Laws over every notebook of the course: built, runnable in every state, covered, free of answers and dead links."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections import Counter

import nbformat
import pytest

from course_lib import authoring, exercises, selfcheck
from tests.notebooks import NAMES, ROOT, STATES, errors, half_solved, run, solved, untouched

each_notebook = pytest.mark.parametrize("name", NAMES)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


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


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A function from a notebook's name and state to the executed notebook; each is executed once."""

    @functools.cache
    def execute(name: str, state: str):
        return run(STATES[state](name), tmp_path_factory.mktemp("run"))

    return execute


@each_notebook
@pytest.mark.parametrize("state", STATES)
def test_notebooks_run_from_top_to_bottom(name, state, executed):
    assert errors(executed(name, state)) == []


@each_notebook
def test_strict_mode_raises_where_something_is_not_passed(name, tmp_path):
    done = run(untouched(name), tmp_path, strict=True, allow_errors=True)
    asked = exercises.exercises_of(name) + exercises.questions_of(name)
    failed = errors(done)
    assert len(failed) == len(asked)
    assert {output.ename for cell in failed for output in cell.outputs if output.output_type == "error"} == {
        "CheckFailed"
    }


def nbval(*arguments: str, strict: bool) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval-sanitize-with",
        "tests/sanitize.cfg",
    ]
    environment = {
        **os.environ,
        "COURSE_LIB_STRICT": "1" if strict else "",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
def test_solved_notebooks_reproduce_their_outputs(strict):
    done = nbval("--nbval", *(f"solutions/{name}.ipynb" for name in NAMES), strict=strict)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("state", [untouched, half_solved], ids=lambda state: state.__name__)
def test_unfinished_notebooks_run_under_nbval(state, tmp_path):
    paths = [tmp_path / f"{name}.ipynb" for name in NAMES]
    for name, path in zip(NAMES, paths, strict=True):
        nbformat.write(state(name), path)
    done = nbval("--nbval-lax", *map(str, paths), strict=False)
    assert done.returncode == 0, done.stdout[-5000:]


# ---- one verdict everywhere --------------------------------------------------------------------------------------


VERDICTS = ("passed", "failed", "not attempted", "error", "grader fault")


def verdicts_shown(notebook) -> dict[str, str]:
    """What each check cell of an executed notebook said."""
    found = {}
    for cell in code_cells(notebook):
        if match := re.fullmatch(r"check\((\w+)\)", cell.source.strip()):
            text = cell.outputs[0].data["text/plain"]
            found[match[1]] = next(verdict for verdict in VERDICTS if verdict in text.splitlines()[0])
    return found


@each_notebook
def test_check_and_the_command_line_agree(name, executed):
    notebook = half_solved(name)
    shown = verdicts_shown(executed(name, "half solved"))
    lines = selfcheck.judge_cells([cell.source for cell in code_cells(notebook)], name)
    assert shown == {line.name: line.verdict for line in lines if line.kind == "exercise"}
    assert name == "00_start_here" or {"passed", "not attempted"} < set(shown.values())


@each_notebook
def test_a_solved_notebook_passes_the_command_line(name):
    lines = selfcheck.judge_cells([cell.source for cell in code_cells(solved(name))], name)
    assert {line.verdict for line in lines} == {"passed"}


# ---- no answer is readable before its time -----------------------------------------------------------------------


def telling_lines(exercise) -> list[str]:
    """Lines of the solution that would give it away: not what the stub itself gives, such as a class's `__init__`."""
    given = statements_of(cell_of(exercise, untouched))
    return [text for text in statements_of(cell_of(exercise, solved)) if text not in given]


def statements_of(source: str) -> list[str]:
    """Its statements that are long enough to tell something: not a bare loop header or a one-word return."""
    tree = ast.parse(source)
    statements = [
        node for node in ast.walk(tree) if isinstance(node, (ast.Return, ast.Assign, ast.AugAssign, ast.Expr))
    ]
    texts = [
        ast.unparse(n)
        for n in statements
        if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    ]
    return [text for text in texts if len(text) > 15]


def cell_of(exercise, state) -> str:
    """The cell of the exercise in the notebook that asks it, in one of its states."""
    for name in NAMES:
        for cell in state(name).cells:
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
