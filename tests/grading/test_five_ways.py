"""One answer, one verdict: `check` in a kernel, the command line, nbval in strict mode, `grade`, and nbgrader.

Every misconception of every exercise, the reference and the stub, in notebooks that hold one answer of each kind to
every exercise. This takes half an hour and needs nbgrader, so it is asked for by name:

    pip install -e '.[test,nbgrader]'
    pytest -n 2 -m sweep tests/grading/test_five_ways.py
"""

from __future__ import annotations

import inspect
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course_lib import exercises, selfcheck
from course_lib.checking import Exercise, find_answer
from tests.answers import standing_alone
from tests.grading.test_nbgrader import READ_GRADEBOOK, built, marks_of, nbgrader, needs_nbgrader, python
from tests.notebooks import NAMES, kernel_environment, nbval, verdicts_shown

pytestmark = [pytest.mark.sweep, needs_nbgrader]


# ---- the notebooks -----------------------------------------------------------------------------------------------


def students(name: str) -> dict[str, dict[str, Callable | None]]:
    """Who answers what: everybody answers every exercise, the k-th wrong student with its k-th misconception."""
    asked = exercises.exercises_of(name)
    most = max(len(exercise.misconceptions) for exercise in asked)
    wrong = {f"wrong{k:02}": {e.name: _misconception(e, k) for e in asked} for k in range(most)}
    return {
        "right": {e.name: e.reference for e in asked},
        "untouched": {e.name: None for e in asked},
        **wrong,
    }


def _misconception(exercise: Exercise, k: int) -> Callable:
    return exercise.misconceptions[k % len(exercise.misconceptions)].answer


def asking(name: str) -> NotebookNode:
    """The built notebook without its text, demonstrations and predictions; the checks stand behind all answers."""
    notebook = built(name)
    imports = next(
        c for c in notebook.cells if c.cell_type == "code" and "from course_lib import" in c.source
    )
    answers = [c for c in notebook.cells if "exercise" in c.metadata]
    helpers = nbformat.v4.new_code_cell("", id="helpers")
    checks = [c for id_, c in marks_of(notebook).items() if id_ != "predictions"]
    notebook.cells = [imports, helpers, *answers, *checks]
    return notebook


def answered(name: str, answers: dict[str, Callable | None]) -> NotebookNode:
    notebook = asking(name)
    helpers = {}
    for cell in notebook.cells:
        if exercise := cell.metadata.get("exercise"):
            function = answers[exercise]
            if function is None:
                continue
            *before, cell.source = standing_alone(exercises.exercise(exercise), function)
            helpers[inspect.getmodule(function)] = "\n".join(before)
    lines = ["from __future__ import annotations", *helpers.values()]  # as in the modules that they come from
    notebook.cells[1].source = "\n".join(lines)
    return notebook


# ---- the five ways -----------------------------------------------------------------------------------------------


def by_command_line(path: Path) -> dict[str, tuple]:
    lines = selfcheck.judge_cells(*selfcheck.read_notebook(path))
    return {
        line.name: (line.verdict, line.points, line.misconception)
        for line in lines
        if line.kind == "exercise"
    }


def by_grade(path: Path, worker) -> dict[str, tuple]:
    cells, name = selfcheck.read_notebook(path)
    reports = [worker.judge(e, find_answer(cells, e.name)) for e in exercises.exercises_of(name)]
    return {r.exercise: (r.verdict.value, r.points, r.misconception) for r in reports}


def by_nbval(path: Path, scratch: Path) -> set[str]:
    """The exercises whose check does not raise."""
    found = scratch / f"{path.parent.name}.xml"
    environment = kernel_environment(scratch, COURSE_LIB_STRICT="1")
    nbval(path, "--nbval-lax", f"--junitxml={found}", environment=environment)
    ran = [case.find("failure") is None for case in ElementTree.parse(found).iter("testcase")]
    code = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert len(ran) == len(code)
    return {_checked(cell) for cell, passed in zip(code, ran) if passed and _checked(cell)}


def _checked(cell: NotebookNode) -> str:
    found = re.fullmatch(r"check\((\w+)\)", cell.source.strip())
    return found[1] if found else ""


def by_nbgrader(course: Path, name: str, answers: dict[str, Path]) -> dict[str, dict]:
    """The scores of each student by exercise."""
    source = course / "source" / "intro" / f"{name}.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(asking(name), source)
    nbgrader(course, "generate_assignment", "intro")
    for student, path in answers.items():
        handed_in = course / "submitted" / student / "intro" / source.name
        handed_in.parent.mkdir(parents=True)
        handed_in.write_bytes(path.read_bytes())
    nbgrader(course, "autograde", "intro", "--ExecutePreprocessor.timeout=300")
    scores = json.loads(python(course, "-c", READ_GRADEBOOK))
    return {key.partition("/")[0]: {e: s[0] for e, s in found.items()} for key, found in scores.items()}


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_gets_one_verdict_in_all_five_ways(name, tmp_path, usual_worker):
    paths = {}
    for student, answers in students(name).items():
        paths[student] = tmp_path / "handed in" / student / f"{name}.ipynb"
        paths[student].parent.mkdir(parents=True)
        nbformat.write(answered(name, answers), paths[student])
    scores = by_nbgrader(tmp_path / "course", name, paths)
    diagnosed = set()
    for student, path in paths.items():
        verdicts = by_command_line(path)
        diagnosed |= {(exercise, said) for exercise, (_, _, said) in verdicts.items() if said}
        assert by_grade(path, usual_worker) == verdicts, student
        graded = tmp_path / "course" / "autograded" / student / "intro" / path.name
        assert verdicts_shown(nbformat.read(graded, as_version=4)) == {
            e: v[0] for e, v in verdicts.items()
        }, student
        assert scores[student] == {e: v[1] for e, v in verdicts.items()}, student
        assert by_nbval(path, tmp_path) == {e for e, v in verdicts.items() if v[0] == "passed"}, student
        expected = {"right": {"passed"}, "untouched": {"not attempted"}}.get(student, {"failed", "error"})
        assert {v[0] for v in verdicts.values()} <= expected, student
    known = {(e.name, m.name) for e in exercises.exercises_of(name) for m in e.misconceptions}
    print(f"{name}: {len(paths)} notebooks, {len(diagnosed & known)} of {len(known)} misconceptions named")
