"""What a notebook imports: check, hint, solution, predict, passing, progress, record_race.

These functions find the learner's answer, have it judged, show the result and remember it. They never raise for
a wrong answer, unless strict mode is on: then `check` and `predict` raise `CheckFailed`. It is on with
COURSE_LIB_STRICT=1, and under nbgrader, which takes a cell that raises as failed.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from course_lib import exercises
from course_lib.checking import Answer, Exercise, Question, Report, Verdict, find_answer, judge
from course_lib.display.course_map import course_map_html, course_map_text
from course_lib.display.ranks import show_outcomes_in
from course_lib.display.report import (
    Face,
    hint_face,
    question_html,
    question_text,
    report_html,
    report_text,
    solution_face,
)
from course_lib.kernel import notebook_cells, running_shell
from course_lib.notebook import by_content, predictions
from course_lib.progress import Progress, default_path
from course_lib.sealed import is_sealed

ATTEMPTS_BEFORE_SOLUTION = 3  # different wrong answers after which the solution is offered without the hints
RACES_SHOWN = 3  # the best runs of the race that are listed with a new one
STRICT = "COURSE_LIB_STRICT"
NBGRADER = "NBGRADER_EXECUTION"  # nbgrader sets it while it grades or validates

if os.environ.get(
    NBGRADER
):  # what stands on stderr costs a cell its points, and PyTorch's profiler writes there
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


class CheckFailed(AssertionError):
    """Strict mode: an answer or a prediction did not pass."""


# ---- what a notebook calls ---------------------------------------------------------------------------------------


def check(answer: Callable | type | str) -> None:
    """Judge an answer, given as the function or class or by its name, and show the report."""
    exercise, found = _look_up(answer)
    report = judge(exercise, found)
    if report.cases_total:  # it ran: stubs, syntax errors and interrupted checks are no attempts
        store().record_attempt(exercise.name, found.digest, report.verdict.value, report.misconception)
    report = replace(report, next_step=_next_step(exercise, report))
    _show(Face(report_html(report), report_text(report)))
    _insist(report.passed or report.verdict is Verdict.GRADER_FAULT, report_text(report))


def hint(answer: Callable | type | str) -> None:
    """Show the next hint of an exercise: where to look, what to compute, nearly the code."""
    exercise, _ = _look_up(answer)
    level = min(store().hints_used(exercise.name) + 1, len(exercise.hints))
    store().record_hint(exercise.name, level)
    _show(hint_face(exercise.name, level, len(exercise.hints), exercise.hints[level - 1]))


def solution(answer: Callable | type | str) -> None:
    """Show the course's answer and why it is right: after passing, after all hints, or after a few attempts."""
    exercise, _ = _look_up(answer)
    if is_sealed():
        _say(
            f"Your instructor gives the solution of {exercise.name} out later. "
            f"hint({exercise.name}) shows the next hint."
        )
    elif _may_see_solution(exercise):
        _show(solution_face(exercise.name, inspect.getsource(exercise.reference), exercise.why))
    else:
        _say(
            f"The solution of {exercise.name} opens after {len(exercise.hints)} hints or "
            f"{ATTEMPTS_BEFORE_SOLUTION} different attempts. hint({exercise.name}) shows the next hint."
        )


def predict(name: str, choice: Any = ...) -> None:
    """Answer a question before its cell shows the truth: `predict("question", "letter")`."""
    question = _question(name)
    if choice is ... or choice == "...":
        _say(f"Choose first: replace the dots by a letter, {_letters(question)}, and run this cell.")
        _insist(False, f"{name}: no prediction yet")
        return
    letter = str(choice).strip().lower()
    if letter not in question.choices:
        raise ValueError(f"{choice!r} is no choice of {name!r}. Choose one of {_letters(question)}.")
    first = store().first_prediction(name) is None
    store().record_prediction(name, letter, letter == question.answer)
    _show(Face(question_html(question, letter, first), question_text(question, letter, first)))
    _insist(letter == question.answer, f"{name}: {letter} is not what happens")


def passing(answer: Callable | type | str) -> Any:
    """The learner's own answer if it passes, else the course's, with a notice: later cells run either way."""
    exercise, found = _look_up(answer)
    if found is not None and _passes(exercise, found):
        return answer if callable(answer) else found.load()
    _say(f"Using the course's {exercise.name} here, until yours passes its check.")
    return exercise.reference


def record_race(corpus: str, setting: object, loss: float) -> None:
    """Note a run of the race on `corpus`, and show the best runs on it so far: loss and setting."""
    if not math.isfinite(loss):
        _say(f"A loss of {loss} is no record, and is not kept. A smaller learning rate may help.")
        return
    best = store().best_races(corpus, 1)
    store().record_race(corpus, str(setting), float(loss))
    if not best:
        _say(f"Your first run on {corpus}: {loss:.3f}. It is the one to beat.")
    elif loss < best[0][0]:
        _say(f"A new record on {corpus}: {loss:.3f}. It was {best[0][0]:.3f}.")
    else:
        _say(f"{loss:.3f} on {corpus}. Your record stays {best[0][0]:.3f}.")
    for place, (record, how) in enumerate(store().best_races(corpus, RACES_SHOWN), start=1):
        _say(f"  {place}  {record:.3f}  {how}")
    for notice in _take_notices():
        _say(notice)


def progress() -> float | None:
    """Draw the map of the course with what is done.

    Under nbgrader the result is the points of this notebook's predictions: its cell is the one that carries them,
    and a number is how a cell gives part of its points.
    """
    rows = _course_rows()
    _show(Face(course_map_html(rows), course_map_text(rows)))
    return _points_of_predictions(notebook_cells()) if _in_nbgrader() else None


def status_text() -> str:
    """The map of the course for a terminal, with what there is to say about the progress file."""
    text = course_map_text(_course_rows())
    return "\n".join([text, *_take_notices()])


# ---- finding things ----------------------------------------------------------------------------------------------


def _look_up(answer: Callable | type | str) -> tuple[Exercise, Answer | None]:
    name = answer if isinstance(answer, str) else _name_of(answer)
    known = exercises.all_exercises()
    if name not in known:
        raise LookupError(f"No exercise is called {name!r}. Exercises: {', '.join(known)}.")
    return known[name], find_answer(_cells_of(answer), name)


def _name_of(answer: Any) -> str:
    """The exercise that an object answers: by its name, or by the notebook's name for it (a lambda, a partial)."""
    own = getattr(answer, "__name__", "")
    if own in exercises.all_exercises():
        return own
    shell = running_shell()
    names = [name for name, value in (shell.user_ns if shell else {}).items() if value is answer]
    return next((name for name in names if name in exercises.all_exercises()), own or type(answer).__name__)


def _cells_of(answer: Any) -> list[str]:
    """The notebook's cells; outside of a notebook, the file that defines the answer (or that calls us, for a name)."""
    if running_shell():
        return notebook_cells()
    module = inspect.getmodule(answer) if callable(answer) else sys.modules.get("__main__")
    try:
        return [inspect.getsource(module)]
    except (OSError, TypeError) as error:
        raise LookupError(
            "Your answer's source can't be found. Define it in a notebook or in a file."
        ) from error


def _question(name: str) -> Question:
    known = exercises.all_questions()
    if name not in known:
        raise LookupError(f"No question is called {name!r}. Questions: {', '.join(known)}.")
    return known[name]


def _letters(question: Question) -> str:
    *most, last = (f'"{letter}"' for letter in question.choices)
    return f"{', '.join(most)} or {last}"


# ---- what is remembered ------------------------------------------------------------------------------------------


@cache
def store() -> Progress:
    """This learner's progress. What runs in the solved notebooks or under nbgrader is not kept."""
    is_no_learner = Path.cwd() == Path(__file__).parents[1] / "solutions" or _in_nbgrader()
    if "COURSE_LIB_PROGRESS" not in os.environ and is_no_learner:
        return Progress(Path(tempfile.mkdtemp()) / "progress.sqlite")
    return Progress(default_path())


_judged: dict[tuple[str, str], bool] = {}


def _passes(exercise: Exercise, found: Answer) -> bool:
    key = exercise.name, found.digest
    if key not in _judged:
        _judged[key] = False  # while it is judged: an answer may call passing() on itself
        _judged[key] = judge(exercise, found).passed
    return _judged[key]


def _may_see_solution(exercise: Exercise) -> bool:
    return not is_sealed() and (
        store().state(exercise.name) == "passed"
        or store().hints_used(exercise.name) >= len(exercise.hints)
        or store().attempts(exercise.name) >= ATTEMPTS_BEFORE_SOLUTION
    )


def _next_step(exercise: Exercise, report: Report) -> str:
    if report.verdict is Verdict.NOT_ATTEMPTED:
        return "Fill in the cell that defines it, run that cell, then run this one again."
    if report.verdict not in (Verdict.FAILED, Verdict.ERROR):
        return ""
    used = store().hints_used(exercise.name)
    if used < len(exercise.hints):
        kind = ("where to look", "what to compute", "nearly the code")[used]
        offer = f"`hint({exercise.name})` shows hint {used + 1} of {len(exercise.hints)}: {kind}."
    else:
        offer = "All hints are used."
    return f"{offer} `solution({exercise.name})` is open to you." if _may_see_solution(exercise) else offer


def _course_rows() -> list[tuple[str, list[tuple[str, str, str, bool]]]]:
    return [(f"{nb.name[:2]} {nb.title}", _notebook_rows(nb.name)) for nb in exercises.NOTEBOOKS]


def _notebook_rows(notebook: str) -> list[tuple[str, str, str, bool]]:
    """(name, kind, state, stretch) of a notebook's predictions and exercises."""
    asked = [(q.name, "prediction", _prediction_state(q), False) for q in exercises.questions_of(notebook)]
    return asked + [
        (e.name, "exercise", store().state(e.name), e.stretch) for e in exercises.exercises_of(notebook)
    ]


def _prediction_state(question: Question) -> str:
    if store().answered(question.name):
        return "passed"
    return "tried" if store().first_prediction(question.name) else "not attempted"


def _points_of_predictions(cells: list[str]) -> float:
    """By the last prediction of each question, as the command line judges them."""
    chosen, name = predictions(cells), by_content(cells)
    asked = exercises.questions_of(name) if name else ()
    return sum(question.points for question in asked if chosen.get(question.name) == question.answer)


# ---- showing -----------------------------------------------------------------------------------------------------


def _show(face: Face) -> None:
    if running_shell():
        from IPython.display import display

        display(face)
    else:
        print(face)
    for notice in _take_notices():
        _say(notice)


def _say(sentence: str) -> None:
    print(sentence)


def _take_notices() -> list[str]:
    notices, store().notices[:] = list(store().notices), []
    return notices


def _in_nbgrader() -> bool:
    return bool(os.environ.get(NBGRADER))


def _insist(passed: bool, message: str) -> None:
    is_strict = os.environ.get(STRICT, "") not in ("", "0") or _in_nbgrader()
    if is_strict and not passed:
        raise CheckFailed(message)


if running_shell():
    show_outcomes_in(running_shell())
