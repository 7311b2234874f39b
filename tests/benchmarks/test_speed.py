"""The speeds that the course promises, measured and printed beside the promise; nothing here fails for being slow.

python3 -m course_lib test -n 0 -m benchmark -s
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from course_lib import exercises
from course_lib.checking import judge
from tests.answers import answer_from
from tests.notebooks import ROOT, run, solved

pytestmark = pytest.mark.benchmark


def milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def report(what: str, measured: float, promised: float, unit: str) -> None:
    word = "kept" if measured <= promised else "NOT kept"
    print(f"\n{what}: {measured:.3g} {unit} (promised: at most {promised:g} {unit}; {word})")


def test_a_check_is_felt_as_immediate():
    times = {}
    for exercise in exercises.all_exercises().values():
        for function in (exercise.reference, *(m.answer for m in exercise.misconceptions)):
            answer = answer_from(exercise, function)
            judge(exercise, answer)  # the reference's observations are computed once
            times[f"{exercise.name} with {function.__name__}"] = milliseconds(
                lambda e=exercise, a=answer: judge(e, a)
            )
    slowest = max(times, key=times.get)
    report(f"check, median of {len(times)} answers", statistics.median(times.values()), 30, "ms")
    report(f"check, slowest ({slowest})", times[slowest], 250, "ms")


def python(code: str) -> float:
    return milliseconds(lambda: subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True))


def test_importing_the_library_adds_little():
    pairs = [(python("import torch"), python("import torch; from course_lib import check")) for _ in range(5)]
    report(
        "from course_lib import check, beyond import torch",
        statistics.median(b - a for a, b in pairs),
        100,
        "ms",
    )


def test_a_solved_notebook_runs_quickly(tmp_path):
    for notebook in exercises.NOTEBOOKS:
        report(
            f"{notebook.name}, solved",
            milliseconds(lambda n=notebook: run(solved(n.name), tmp_path)) / 1000,
            15,
            "s",
        )


def until_ready(command: list[str], cwd: Path) -> float:
    """Milliseconds until the server prints its address."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ
    )
    next(line for line in process.stderr if re.search(r"http://\S+token=", line))
    took = (time.perf_counter() - start) * 1000
    process.kill()
    process.wait()
    process.stderr.close()
    return took


def test_the_second_start_is_as_quick_as_jupyter_lab():
    ours = [sys.executable, "-m", "course_lib", "start", "--no-browser"]
    plain = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    until_ready(ours, ROOT)
    ratios = [until_ready(ours, ROOT) / until_ready(plain, ROOT) for _ in range(5)]
    report("second start of the course against plain jupyter lab", statistics.median(ratios), 1.2, "times")
