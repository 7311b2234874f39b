"""An institution's nbgrader grades the built notebooks as they are, and gives the marks that we give.

It runs where nbgrader is installed: pip install -e '.[test,nbgrader]', then pytest tests/grading/test_nbgrader.py
"""

from __future__ import annotations

import copy
import csv
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from course_lib import authoring, exercises, selfcheck
from tests.answers import definition
from tests.notebooks import NAMES, ROOT, half_solved, run, solved, untouched

GRADED = ("00_start_here", "01_tensors")

needs_nbgrader = pytest.mark.skipif(
    find_spec("nbgrader") is None, reason="nbgrader is not installed: pip install -e '.[nbgrader]'"
)


def built(name: str) -> nbformat.NotebookNode:
    return authoring.learner_notebook(ROOT / "solutions" / f"{name}.py")


# ---- the metadata ------------------------------------------------------------------------------------------------


def marks_of(notebook: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    return {c.metadata.nbgrader.grade_id: c for c in notebook.cells if "nbgrader" in c.metadata}


@pytest.mark.parametrize("name", NAMES)
def test_every_point_of_the_course_has_a_cell_that_carries_it(name):
    notebook = built(name)
    marked = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    found = {id_: (cell.source, cell.metadata.nbgrader.points) for id_, cell in marks_of(notebook).items()}
    due = {e.name: (f"check({e.name})", e.points) for e in exercises.exercises_of(name)}
    due["predictions"] = ("progress()", sum(q.points for q in exercises.questions_of(name)))
    assert found == due and len(marked) == len(found)
    assert marked == [
        c
        for c in authoring.solved_notebook(ROOT / "solutions" / f"{name}.py").cells
        if "nbgrader" in c.metadata
    ]


def test_marked_cells_are_locked_tests_of_schema_3():
    for id_, cell in marks_of(built("01_tensors")).items():
        mark = dict(cell.metadata.nbgrader)
        assert re.fullmatch(r"[\w-]+", id_) and mark.pop("points") > 0 and mark.pop("grade_id") == id_
        assert mark == {"grade": True, "locked": True, "solution": False, "schema_version": 3}


# ---- what a kernel does when nbgrader runs it --------------------------------------------------------------------


def test_under_nbgrader_checks_raise_and_progress_gives_the_points_of_the_predictions(tmp_path, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    monkeypatch.delenv("COURSE_LIB_PROGRESS")
    notebook = built("00_start_here")
    for cell in notebook.cells:
        cell.source = cell.source.replace(
            'predict("first_prediction", ...)', "predict('first_prediction', 'b')"
        )
    where = "from course_lib import session; print(session.store().path)"
    notebook.cells.append(nbformat.v4.new_code_cell(where))
    done = run(notebook, tmp_path, allow_errors=True)
    marked = {id_: cell.outputs for id_, cell in marks_of(done).items()}
    assert [output.ename for output in marked["count_elements"] if output.output_type == "error"] == [
        "CheckFailed"
    ]
    results = [output for output in marked["predictions"] if output.output_type == "execute_result"]
    assert [output.data["text/plain"] for output in results] == ["1"]
    assert str(ROOT) not in done.cells[-1].outputs[0].text
    assert not any(output.get("name") == "stderr" for outputs in marked.values() for output in outputs)


# ---- nbgrader itself ---------------------------------------------------------------------------------------------


def wrong(name: str) -> nbformat.NotebookNode:
    """Every answer is a known mistake, every prediction is not what happens."""
    notebook = copy.deepcopy(untouched(name))
    for cell in notebook.cells:
        if "exercise" in cell.metadata:
            exercise = exercises.exercise(cell.metadata.exercise)
            cell.source = definition(exercise.misconceptions[0].answer, exercise.name)
        elif match := re.fullmatch(r'predict\("(\w+)", \.\.\.\)', cell.source):
            question = exercises.question(match[1])
            letter = next(letter for letter in question.choices if letter != question.answer)
            cell.source = f'predict("{question.name}", "{letter}")'
    return notebook


STUDENTS = {"correct": solved, "half": half_solved, "untouched": untouched, "wrong": wrong}

READ_GRADEBOOK = """
import json
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as book:
    print(json.dumps({
        f"{submission.student.id}/{notebook.name}": {
            grade.name: (grade.auto_score, grade.max_score, grade.needs_manual_grade) for grade in notebook.grades
        }
        for submission in book.assignment_submissions("intro") for notebook in submission.notebooks
    }))
"""


def python(course: Path, *arguments: str) -> str:
    """As an institution runs it: no variable of ours is set."""
    ours = ("COURSE_LIB", "OMP_NUM", "KINETO")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader calls alembic
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=course,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def nbgrader(course: Path, *arguments: str) -> None:
    python(course, "-m", "nbgrader", *arguments)


def fill_in(released: Path, state: nbformat.NotebookNode, path: Path) -> None:
    """What a student hands in: the released notebook with the sources of `state`."""
    notebook = nbformat.read(released, as_version=4)
    for cell, done in zip(notebook.cells, state.cells, strict=True):
        cell.source = done.source
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course in nbgrader's layout: an assignment made from our notebooks, handed in by each student, graded."""
    course = tmp_path_factory.mktemp("course")
    (course / "source" / "intro").mkdir(parents=True)
    for name in GRADED:
        path = course / "source" / "intro" / f"{name}.ipynb"
        path.write_text(authoring.to_text(built(name)), encoding="utf-8")
    nbgrader(course, "generate_assignment", "intro")
    for student, state in STUDENTS.items():
        for name in GRADED:
            released = course / "release" / "intro" / f"{name}.ipynb"
            fill_in(released, state(name), course / "submitted" / student / "intro" / f"{name}.ipynb")
    nbgrader(course, "autograde", "intro", "--ExecutePreprocessor.timeout=300")
    return course


@needs_nbgrader
def test_an_assignment_made_from_a_notebook_is_that_notebook(course):
    for name in GRADED:
        released = nbformat.read(course / "release" / "intro" / f"{name}.ipynb", as_version=4)
        assert [cell.source for cell in released.cells] == [cell.source for cell in built(name).cells]


@needs_nbgrader
def test_nbgrader_gives_the_marks_that_check_gives(course):
    theirs, ours = json.loads(python(course, "-c", READ_GRADEBOOK)), {}
    for student in STUDENTS:
        for name in GRADED:
            handed_in = course / "submitted" / student / "intro" / f"{name}.ipynb"
            ours[f"{student}/{name}"] = our_marks(handed_in)
    assert theirs == ours
    assert ours["correct/01_tensors"] != ours["half/01_tensors"] != ours["wrong/01_tensors"]


def our_marks(path: Path) -> dict[str, list]:
    """Points, maximum, and that nobody has to look at it: by exercise, the predictions in one sum."""
    lines = selfcheck.judge_cells(*selfcheck.read_notebook(path))
    marks = {line.name: [line.points, line.max_points, False] for line in lines if line.kind == "exercise"}
    predicted = [line for line in lines if line.kind == "prediction"]
    total = [sum(line.points for line in predicted), sum(line.max_points for line in predicted), False]
    return {**marks, "predictions": total}


@needs_nbgrader
def test_the_exported_totals_are_ours(course):
    nbgrader(course, "export", "--CsvExportPlugin.to=grades.csv")
    with (course / "grades.csv").open(newline="") as file:
        rows = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    for student in STUDENTS:
        marks = [our_marks(course / "submitted" / student / "intro" / f"{name}.ipynb") for name in GRADED]
        assert rows[student] == sum(points for mark in marks for points, *_ in mark.values())
    assert rows["untouched"] == 0 < rows["half"] < rows["correct"]


@needs_nbgrader
def test_grading_leaves_no_progress_and_says_nothing_on_stderr(course):
    assert (
        not (ROOT / "progress.sqlite").exists()
        or (ROOT / "progress.sqlite").stat().st_mtime < course.stat().st_ctime
    )
    for path in (course / "autograded").rglob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            if "nbgrader" in cell.metadata:
                assert not any(output.get("name") == "stderr" for output in cell.outputs), cell.source
