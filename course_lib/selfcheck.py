"""Self-grading from the command line: judge every answer and prediction of a saved notebook.

The answers are taken from the file's source and judged by the engine that `check` uses; no cell is executed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib import exercises, notebook
from course_lib.checking import Exercise, Question, Verdict, find_answer, judge
from course_lib.notebook import NotACourseNotebook, find_prediction

PASSED, NOT_PASSED, COULD_NOT_RUN = 0, 1, 2  # exit codes


@dataclass(frozen=True)
class Line:
    """One row of the table: an exercise or a prediction."""

    name: str
    kind: str
    verdict: str
    points: float
    max_points: float
    summary: str
    misconception: str = ""
    diagnosis: str = ""


def main(path: str | Path, as_json: bool = False) -> int:
    """Judge the notebook at `path`, print a table (or JSON), return the exit code."""
    try:
        cells, name = read_notebook(Path(path))
    except NotACourseNotebook as problem:
        print(json.dumps({"error": str(problem)}) if as_json else problem)
        return COULD_NOT_RUN
    lines = judge_cells(cells, name)
    print(json.dumps(_as_dict(path, name, lines), indent=2) if as_json else _table(name, lines))
    return _exit_code(lines)


def judge_cells(cells: list[str], name: str) -> list[Line]:
    """Judge all that a notebook of the course asks, given the sources of its code cells."""
    asked = [judge_prediction(question, cells) for question in exercises.questions_of(name)]
    return asked + [_judge_exercise(exercise, cells) for exercise in exercises.exercises_of(name)]


def _judge_exercise(exercise: Exercise, cells: list[str]) -> Line:
    report = judge(exercise, find_answer(cells, exercise.name))
    return Line(
        exercise.name,
        "exercise",
        report.verdict.value,
        report.points,
        report.max_points,
        report.summary,
        report.misconception,
        report.diagnosis,
    )


def judge_prediction(question: Question, cells: Sequence[str]) -> Line:
    """The last letter chosen in the notebook, against the right one, which is not told."""
    choice = find_prediction(cells, question.name)
    if choice is None:
        verdict, summary = Verdict.NOT_ATTEMPTED, "No prediction yet."
    elif choice == question.answer:
        verdict, summary = Verdict.PASSED, "Right."
    else:
        verdict, summary = Verdict.FAILED, f"{choice!r} is not what happens."
    points = question.points if verdict is Verdict.PASSED else 0
    return Line(question.name, "prediction", verdict.value, points, question.points, summary)


# ---- the file ----------------------------------------------------------------------------------------------------


def read_notebook(path: Path) -> tuple[list[str], str]:
    """Sources of the code cells, and which notebook of the course it is. Raises NotACourseNotebook."""
    try:
        saved = notebook.read(path.read_bytes(), path.name)
    except OSError as error:
        problem = f"{path} can't be read: {error.strerror}. Give the path of a saved notebook."
        raise NotACourseNotebook(problem) from error
    except NotACourseNotebook as problem:
        raise NotACourseNotebook(f"{path} can't be checked: {problem}.") from problem
    return list(saved.cells), saved.name


# ---- what is printed ---------------------------------------------------------------------------------------------


def _exit_code(lines: list[Line]) -> int:
    verdicts = {line.verdict for line in lines}
    if Verdict.GRADER_FAULT.value in verdicts:
        return COULD_NOT_RUN
    return PASSED if verdicts <= {Verdict.PASSED.value} else NOT_PASSED


def _as_dict(path: str | Path, name: str, lines: list[Line]) -> dict[str, Any]:
    points = sum(line.points for line in lines)
    most = sum(line.max_points for line in lines)
    return {
        "path": str(path),
        "notebook": name,
        "points": points,
        "max_points": most,
        "items": [asdict(x) for x in lines],
    }


def _table(name: str, lines: list[Line]) -> str:
    width = max(len(line.name) for line in lines)
    rows = [f"{line.name:{width}}  {line.kind:10}  {line.verdict:13}  {_remark(line)}" for line in lines]
    passed = sum(line.verdict == Verdict.PASSED.value for line in lines)
    points, most = sum(line.points for line in lines), sum(line.max_points for line in lines)
    total = f"{passed} of {len(lines)} passed, {points:g} of {most:g} points"
    return "\n".join([name, *(row.rstrip() for row in rows), total])


def _remark(line: Line) -> str:
    return "" if line.verdict == Verdict.PASSED.value else line.diagnosis or line.summary
