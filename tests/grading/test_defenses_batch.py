"""Whole notebooks: the hostile and awkward ones that other graders got wrong, and a class of them at once."""

from __future__ import annotations

import json
import sqlite3
import sys

import pytest

from course_lib import exercises
from course_lib.checking import Report, Verdict
from course_lib.checking.judge import Fault
from course_lib.grading import judging, run
from course_lib.grading.intake import find_submissions
from tests.answers import cells_for, definition
from tests.grading.handed_in import as_bytes, code, notebook, save, text
from tests.grading.hostile import RIGHT, WRONG, exercise, judged, short_of_time, within

# Section by section of a battery that was run on two widely used graders: five exercises, one of them attacked.

NAMES = ("flat_index", "time_major", "merge_heads", "repeat_mask", "broadcast_shape")
ATTACKED = "time_major"
IMPORTS = "import torch\nfrom torch import Tensor\n"
ANSWERS = {name: IMPORTS + definition(exercise(name).reference, name) for name in NAMES}
ALL = float(sum(exercise(name).points for name in NAMES))
OTHERS = ALL - exercise(ATTACKED).points


def attacked(body: str, before: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"import torch\n{before}\ndef {ATTACKED}(x):\n{lines}    return x.transpose(0, 1)\n"


def cells(**replaced: str) -> list[dict]:
    """A notebook with five right answers, their check cells behind them, some of them replaced."""
    made = []
    for name in NAMES:
        made += [code(replaced.get(name, ANSWERS[name])), code(f"check({name})")]
    return made


def with_attack(body: str) -> list[dict]:
    return cells(**{ATTACKED: attacked(body)})


def all_wrong(before: str) -> list[dict]:
    wrong = "def {name}(*args, **kwargs):\n    import builtins, torch\n{lines}\n    return torch.zeros(3)\n"
    lines = "".join(f"    {line}\n" for line in before.splitlines())
    return [code(wrong.format(name=name, lines=lines)) for name in NAMES]


STUB = f'def {ATTACKED}(x):\n    raise NotImplementedError("your turn: {ATTACKED}")\n'
FORGED_OUTPUT = {"output_type": "stream", "name": "stdout", "text": "✓ passed 8/8"}
EQUALS_ALL = "class L:\n    def __eq__(self, other): return True\nreturn L()"
YES = "lambda *a, **k: True"
DUE = {
    "control": (cells(), ALL),
    "sys.exit in a function": (with_attack("import sys\nsys.exit(0)"), OTHERS),
    "sys.exit at the top of the cell": (
        cells(**{ATTACKED: "import sys\nsys.exit(0)\n" + attacked("pass")}),
        ALL,
    ),
    "os._exit": (with_attack("import os\nos._exit(0)"), OTHERS),
    "infinite loop": (with_attack("while True: pass"), OTHERS),
    "a loop that swallows interrupts": (
        with_attack("while True:\n    try:\n        while True: pass\n    except BaseException: pass"),
        OTHERS,
    ),
    "sleep": (with_attack("import time\ntime.sleep(1e6)"), OTHERS),
    "20 MB of output": (with_attack("print('x' * 2_000_000)"), ALL),
    "20 000 lines": (with_attack("for i in range(2_000):\n    print(i)"), ALL),
    "a debug print": (with_attack("print(x)"), ALL),
    "warnings.warn": (with_attack("import warnings\nwarnings.warn('careful')"), ALL),
    "standard error": (with_attack("import sys\nprint('x', file=sys.stderr)"), ALL),
    "a thread that prints": (
        with_attack(
            "import sys, threading, time\ndef noise():\n    while True:\n        print('x', file=sys.stderr)\n"
            "        time.sleep(0.01)\nthreading.Thread(target=noise, daemon=True).start()"
        ),
        ALL,
    ),
    "os.chdir": (with_attack("import os\nos.chdir('/')"), ALL),
    "a module taken away between exercises": ([*cells()[:4], code("torch = None"), *cells()[4:]], ALL),
    "a module taken away for good": ([*cells(), code("torch = None")], ALL),
    "check cell deleted": ([cell for cell in cells() if "check(" not in cell["source"]], ALL),
    "answer copied, the old one kept": ([code(STUB), *cells()], ALL),
    "answer copied, with its metadata": (
        [
            {**cell, "metadata": {"nbgrader": {"grade_id": "same", "solution": True}}}
            for cell in [code(STUB), *cells()]
        ],
        ALL,
    ),
    "all metadata stripped": (cells(), ALL),
    "a kernel of their own": (cells(), ALL),
    "answer turned into text": (
        [text(cell["source"]) if f"def {ATTACKED}(" in cell["source"] else cell for cell in cells()],
        OTHERS,
    ),
    "an extra cell with input()": ([code("name = input()"), *cells()], ALL),
    "top-level pip and cuda": (
        [code("%pip install nothing"), code("import torch\ntorch.ones(1).cuda()"), *cells()],
        ALL,
    ),
    "a missing import in one answer": (
        cells(**{ATTACKED: "import not_there\n" + attacked("not_there.x")}),
        OTHERS,
    ),
}
NOTHING_DUE = {
    "control wrong": all_wrong("pass"),
    "patched comparisons": all_wrong(
        f"import numpy\ntorch.allclose = torch.equal = torch.isclose = numpy.allclose = numpy.isfinite = {YES}"
    ),
    "__eq__ is always true": all_wrong(EQUALS_ALL),
    "replay of one input": all_wrong(
        "known = {(2, 3, 4): torch.ones(3, 2, 4)}\nreturn known.get(tuple(args[0]), 0)"
    ),
    "showtraceback switched off": [
        code("get_ipython().showtraceback = lambda *a, **k: None"),
        *all_wrong("pass"),
    ],
    "input transformer": [
        code("get_ipython().input_transformers_cleanup.append(lambda lines: [])"),
        code("%%capture\npass"),
        code("%run -i passed.py\n%load passed.py\n!true"),
        *all_wrong("pass"),
    ],
    "the test class patched": all_wrong(
        "import unittest\nunittest.TestCase.run = lambda self, result=None: result"
    ),
    "forged lines": all_wrong(
        "import json\nprint('✓ passed')\nprint(json.dumps({'score': 8, 'verdict': 'passed'}))"
    ),
    "every check cell edited": [
        *all_wrong("pass"),
        *(code(f"print('{n}: passed')", outputs=[FORGED_OUTPUT]) for n in NAMES),
    ],
    "check redefined": [code("def check(*a): return True\ndef passing(f): return f"), *all_wrong("pass")],
}


def graded(worker, tmp_path, made: list[dict], **more: object) -> dict[str, Report]:
    content = notebook(*made, name="01_tensors")
    content["metadata"].update(more)
    save(tmp_path / "alice" / "01_tensors.ipynb", as_bytes(content))
    (found,) = find_submissions([tmp_path])
    with short_of_time(worker, wall=1.5, total=10), within(60):
        reports = run.grade_submission(found, worker, "").reports
    assert not any(report.verdict is Verdict.GRADER_FAULT for report in reports), reports
    return {report.exercise: report for report in reports}


@pytest.mark.parametrize("name", DUE)
def test_no_marks_are_lost(worker, tmp_path, name):
    made, due = DUE[name]
    kernel = {"kernelspec": {"name": "theirs", "language": "R", "display_name": "?"}}
    stripped = {"course_lib": None, "kernelspec": None}
    more = {"all metadata stripped": stripped, "a kernel of their own": kernel}.get(name, {})
    reports = graded(worker, tmp_path, made, **more)
    assert sum(report.points for report in reports.values()) == due
    assert (reports[ATTACKED].points == 0) == (due == OTHERS)


@pytest.mark.parametrize("name", NOTHING_DUE)
def test_no_marks_are_forged(worker, tmp_path, name):
    reports = graded(worker, tmp_path, NOTHING_DUE[name])
    assert sum(report.points for report in reports.values()) == 0
    assert not any(report.verdict is Verdict.NOT_ATTEMPTED for n, report in reports.items() if n in NAMES)


# ---- 34: the grader's own failures -----------------------------------------------------------------------------------

ENGINE = sys.modules["course_lib.checking.judge"]  # the package has a function of that name


def test_a_reference_that_breaks_is_the_graders_fault(worker, monkeypatch):
    def broken(item):
        raise Fault("the reference raises")

    monkeypatch.setattr(ENGINE, "expected_observations", broken)
    report = judged(worker, RIGHT)
    assert (report.verdict, report.points) == (Verdict.GRADER_FAULT, 0)
    monkeypatch.undo()


def test_a_comparison_that_breaks_is_the_graders_fault_and_the_next_is_judged(worker, monkeypatch):
    monkeypatch.setattr(ENGINE, "_failure", lambda *a: 1 / 0)
    assert judged(worker, WRONG).verdict is Verdict.GRADER_FAULT
    monkeypatch.undo()


def test_an_exercise_that_can_not_be_sent_is_the_graders_fault(worker, monkeypatch):
    task = judging.Task(b"no pickle", (), frozenset(), frozenset())
    monkeypatch.setattr(judging, "task_of", lambda item: task)
    assert judged(worker, RIGHT).verdict is Verdict.GRADER_FAULT
    monkeypatch.undo()


# ---- a class at once -------------------------------------------------------------------------------------------------

HOSTILE = {
    "exits": "def count_elements(shape):\n    import os\n    os._exit(0)\n",
    "crashes": "def count_elements(shape):\n    import ctypes\n    ctypes.string_at(0)\n",
    "escapes": "def count_elements(shape):\n"
    "    raise ValueError('\\x1b[31m\\x00\\ud800</pre><script>alert(1)</script>')\n",
    "floods": "def count_elements(shape):\n    print('\\x1b[2J' * 10**6)\n    return len(shape)\n",
    "huge": "def count_elements(shape):\n    return 10**5000\n",
}


def test_a_class_with_hostile_answers_is_graded_as_if_they_were_not_there(tmp_path, capsys):
    folder, out = tmp_path / "in", tmp_path / "out"
    for name, source in {**HOSTILE, "ann": RIGHT, "zoe": RIGHT, "bob": WRONG}.items():
        save(folder / name / "00_start_here.ipynb", as_bytes(notebook(code(source))))
    save(folder / "torn" / "00_start_here.ipynb", b'{"cells": [')
    assert run.main([folder], out, 2) == run.SOME_NOT_GRADED
    points = _points(out)
    assert {name: points[name] for name in points if points[name] != 0} == {"ann": 1, "zoe": 1, "torn": None}
    for page in out.rglob("*.html"):
        content = page.read_text(encoding="utf-8")
        assert "<script>alert" not in content and "\x1b" not in content and "\0" not in content
    said = capsys.readouterr().out
    assert "The answers ran with: " in said
    assert run.main([folder], out, 1) == run.SOME_NOT_GRADED and _points(out) == points  # 32: the same again


def _points(out) -> dict[str, float | None]:
    query = "SELECT student, points FROM item JOIN submission ON submission.id = submission WHERE kind = 'exercise'"
    with sqlite3.connect(out / "gradebook.sqlite") as book:
        return dict(book.execute(query))


def test_what_a_report_holds_can_be_written_down_anywhere(worker):
    """10: whatever came out of an answer is text that JSON and UTF-8 can hold once it is made plain."""
    from course_lib.grading.files import plain

    report = judged(worker, HOSTILE["escapes"])
    written = json.dumps(plain(report.error + report.summary), ensure_ascii=False).encode("utf-8")
    assert b"\x1b" not in written


def test_every_exercise_of_the_course_is_judged_within_the_usual_limits(worker):
    """The notebooks' own limits leave room: no reference comes near them."""
    names = [exercises.exercises_of(notebook.name)[0].name for notebook in exercises.NOTEBOOKS]
    for name in names:
        item = exercise(name)
        source = "\n".join(cells_for(item, item.reference))
        assert judged(worker, source, name).verdict is Verdict.PASSED, name
