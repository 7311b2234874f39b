"""Self-grading from the command line: judge every answer and prediction of a saved notebook.

The answers are taken from the file's source and judged by the engine that `check` uses; no cell is executed.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib import exercises
from course_lib.checking import Exercise, Question, Verdict, find_answer, judge

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


class NotACourseNotebook(Exception):
    """The file can't be read, or nothing in it belongs to the course."""


def main(path: str, as_json: bool = False) -> int:
    """Judge the notebook at `path`, print a table (or JSON), return the exit code."""
    try:
        cells, name = read_notebook(Path(path))
    except NotACourseNotebook as problem:
        print(json.dumps({"error": str(problem)}) if as_json else problem)
        return COULD_NOT_RUN
    lines = judge_cells(cells, name)
    print(json.dumps(_as_dict(path, name, lines), indent=2) if as_json else _table(name, lines))
    return _exit_code(lines)


def judge_cells(cells: list[str], notebook: str) -> list[Line]:
    """Judge all that a notebook of the course asks, given the sources of its code cells."""
    asked = [judge_prediction(question, cells) for question in exercises.questions_of(notebook)]
    return asked + [_judge_exercise(exercise, cells) for exercise in exercises.exercises_of(notebook)]


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


def find_prediction(cells: Sequence[str], name: str) -> str | None:
    """The letter in the last `predict(name, letter)` of the notebook; None where it is still open."""
    choice = None
    for call in _predict_calls(cells):
        given = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        given += [keyword.value.value for keyword in call.keywords if isinstance(keyword.value, ast.Constant)]
        if len(given) == 2 and given[0] == name:
            choice = None if given[1] in (..., "...") else str(given[1]).strip().lower()
    return choice


def _predict_calls(cells: Sequence[str]) -> list[ast.Call]:
    calls = []
    for cell in cells:
        try:
            nodes = ast.walk(ast.parse(cell))
        except (SyntaxError, ValueError):
            continue
        calls += [n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "predict"]
    return calls


# ---- the file ----------------------------------------------------------------------------------------------------


def read_notebook(path: Path) -> tuple[list[str], str]:
    """Sources of the code cells, and which notebook of the course it is. Raises NotACourseNotebook."""
    notebook = _load(path)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return cells, _identify(notebook, path, cells)


def _load(path: Path) -> Any:
    import nbformat

    try:
        text = path.read_text(encoding="utf-8-sig")
        return nbformat.reads(text, as_version=4)
    except OSError as error:
        problem = f"{path} can't be read: {error.strerror}. Give the path of a saved notebook."
    except Exception as error:  # nbformat raises a dozen kinds for a damaged file
        problem = (
            f"{path} is no notebook that Jupyter can read ({type(error).__name__}). Save it again in Lab."
        )
    raise NotACourseNotebook(problem)


def _identify(notebook: Any, path: Path, cells: list[str]) -> str:
    """By its metadata; else by its file name; else by the exercises that it defines."""
    names = [nb.name for nb in exercises.NOTEBOOKS]
    claimed = notebook.metadata.get("course_lib", {}).get("notebook", "")
    by_file = [name for name in names if path.stem.startswith(name)]
    by_content = [
        name for name in names if any(find_answer(cells, e.name) for e in exercises.exercises_of(name))
    ]
    found = [name for name in (claimed, *by_file, *by_content) if name in names]
    if not found:
        raise NotACourseNotebook(f"{path} defines no exercise of this course. Notebooks: {', '.join(names)}.")
    return found[0]


# ---- what is printed ---------------------------------------------------------------------------------------------


def _exit_code(lines: list[Line]) -> int:
    verdicts = {line.verdict for line in lines}
    if Verdict.GRADER_FAULT.value in verdicts:
        return COULD_NOT_RUN
    return PASSED if verdicts <= {Verdict.PASSED.value} else NOT_PASSED


def _as_dict(path: str, name: str, lines: list[Line]) -> dict[str, Any]:
    points = sum(line.points for line in lines)
    most = sum(line.max_points for line in lines)
    return {
        "path": path,
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
