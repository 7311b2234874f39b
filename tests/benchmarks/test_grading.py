"""Grading beside nbgrader, and whether memory stays flat as the class grows.

python3 -m course_lib test -n 0 -m benchmark -s -k grading      (with nbgrader: pip install -e '.[test,nbgrader]')
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from course_lib import exercises
from tests.answers import definition
from tests.grading.handed_in import answered, save
from tests.grading.test_nbgrader import nbgrader, needs_nbgrader
from tests.notebooks import ROOT

pytestmark = pytest.mark.benchmark

CLASS, THEIRS = 40, 8  # nbgrader takes as long for each submission, however many there are
PROMISED = 10  # times the submissions of nbgrader in the same time
EXERCISES = exercises.exercises_of("01_tensors")[:5]
IMPORTS = "from course_lib import check\nimport torch\nfrom torch import Tensor\nfrom math import prod"


def assignment(answer_of) -> nbformat.NotebookNode:
    """Five exercises of notebook 01, each with its check cell as nbgrader marks it."""
    cells = [nbformat.v4.new_code_cell(IMPORTS, id="imports")]
    for exercise in EXERCISES:
        mark = {"grade": True, "locked": True, "solution": False, "schema_version": 3}
        mark |= {"points": exercise.points, "grade_id": exercise.name}
        cells.append(nbformat.v4.new_code_cell(answer_of(exercise), id=exercise.name))
        check = nbformat.v4.new_code_cell(f"check({exercise.name})", id=f"check-{exercise.name}")
        check.metadata["nbgrader"] = mark
        cells.append(check)
    metadata = {
        "course_lib": {"notebook": "01_tensors"},
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def right(exercise) -> str:
    return definition(exercise.reference, exercise.name)


def seconds(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def grade(out: Path, *sources: Path) -> int:
    """Grade with as many processes as there are cores; the peak of the grader's own memory, in MiB."""
    command = [sys.executable, "-m", "course_lib", "grade", *map(str, sources), "-o", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The answers ran with:" in done.stdout
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024


@pytest.fixture
def course(tmp_path) -> Path:
    """A course in nbgrader's layout, with one assignment that all students have solved."""
    source = tmp_path / "source" / "five" / "01_tensors.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(
        assignment(lambda exercise: f"def {exercise.name}(*args):\n    raise NotImplementedError"), source
    )
    nbgrader(tmp_path, "generate_assignment", "five")
    for number in range(CLASS):
        handed_in = "submitted" if number < THEIRS else "submitted too"
        path = tmp_path / handed_in / f"student{number}" / "five" / "01_tensors.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(assignment(right), path)
    return tmp_path


@needs_nbgrader
def test_grading_is_ten_times_as_quick_as_nbgrader(course):
    theirs = seconds(lambda: nbgrader(course, "autograde", "five", "--ExecutePreprocessor.timeout=300"))
    everything = course / "submitted", course / "submitted too"
    ours = seconds(lambda: grade(course / "marks", *everything))
    per_minute = {"nbgrader": 60 * THEIRS / theirs, "ours": 60 * CLASS / ours}
    ratio = per_minute["ours"] / per_minute["nbgrader"]
    print(
        f"\nsubmissions of five exercises per minute: {per_minute}, ratio {ratio:.1f} (promised: {PROMISED})"
    )
    assert ratio >= PROMISED


def test_memory_is_flat_from_10_to_200_submissions(tmp_path):
    peaks = []
    for count in (10, 200):
        for number in range(count):
            save(tmp_path / f"in{count}" / f"student{number:03}" / "00_start_here.ipynb", answered())
        peaks.append(grade(tmp_path / f"out{count}", tmp_path / f"in{count}"))
    print(f"\npeak memory with 10 and with 200 submissions: {peaks[0]} and {peaks[1]} MiB")
    assert peaks[1] <= 1.05 * peaks[0]
