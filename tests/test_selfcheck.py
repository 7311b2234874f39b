"""`python -m course_lib check`: a table, an exit code, JSON; and files that are not what they should be."""

from __future__ import annotations

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib import exercises, selfcheck
from tests.notebooks import half_solved, solved, untouched

NAME = "00_start_here"


def save(tmp_path, notebook, name: str = f"{NAME}.ipynb"):
    path = tmp_path / name
    nbformat.write(notebook, path)
    return path


def grade(path, capsys) -> tuple[int, dict]:
    code = selfcheck.main(path, as_json=True)
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("state", "code"),
    [(solved, 0), (half_solved, 1), (untouched, 1)],
    ids=["solved", "half solved", "untouched"],
)
def test_exit_codes(state, code, tmp_path, capsys):
    assert grade(save(tmp_path, state("01_tensors"), "01_tensors.ipynb"), capsys)[0] == code


def test_the_table_names_everything_that_is_asked(tmp_path, capsys):
    assert selfcheck.main(str(save(tmp_path, half_solved(NAME)))) == 1
    table = capsys.readouterr().out
    asked = exercises.exercises_of(NAME) + exercises.questions_of(NAME)
    assert all(item.name in table for item in asked) and "points" in table


def test_json_carries_the_diagnosis(tmp_path, capsys):
    exercise = exercises.exercise("count_elements")
    notebook = new_notebook(cells=[new_code_cell("def count_elements(shape):\n    return sum(shape)")])
    _, found = grade(save(tmp_path, notebook, "renamed.ipynb"), capsys)
    item = next(item for item in found["items"] if item["name"] == exercise.name)
    known = {m.name: m.sentence for m in exercise.misconceptions}
    assert item["verdict"] == "failed" and known[item["misconception"]] == item["diagnosis"]
    assert found["notebook"] == NAME and found["points"] == 0


def test_edited_check_cells_and_dead_code_change_nothing(tmp_path, capsys):
    cells = [
        new_code_cell("def check(f):\n    print('passed')"),
        new_code_cell("if False:\n    def count_elements(shape): return 6"),
        new_code_cell("def count_elements(shape):\n    raise NotImplementedError('your turn')"),
        new_code_cell("check(count_elements)"),
        new_markdown_cell("def count_elements(shape): return 1"),
    ]
    _, found = grade(save(tmp_path, new_notebook(cells=cells)), capsys)
    assert {item["verdict"] for item in found["items"]} == {"not attempted"}


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        ('predict("first_prediction", {right!r})', "passed"),
        ('predict("first_prediction", choice={right!r})', "passed"),
        ('predict(name="first_prediction", choice=" {RIGHT} ")', "passed"),
        ('predict("first_prediction", ...)', "not attempted"),
        ('predict("first_prediction", "z")', "failed"),
        ('predict("another", {right!r})', "not attempted"),
        ('predict("first_prediction", "z")\npredict("first_prediction", {right!r})', "passed"),
    ],
)
def test_predictions_are_read_from_the_source(call, verdict, tmp_path, capsys):
    right = exercises.question("first_prediction").answer
    cells = [new_code_cell(call.format(right=right, RIGHT=right.upper()))]
    _, found = grade(save(tmp_path, new_notebook(cells=cells)), capsys)
    assert next(i["verdict"] for i in found["items"] if i["name"] == "first_prediction") == verdict


def test_a_notebook_is_known_by_metadata_by_name_or_by_content(tmp_path, capsys):
    stub = new_code_cell("def flat_index(): pass")
    by_metadata = new_notebook(metadata={"course_lib": {"notebook": "01_tensors"}})
    for notebook, name in (
        (by_metadata, "a.ipynb"),
        (new_notebook(), "01_tensors (copy).ipynb"),
        (new_notebook(cells=[stub]), "b.ipynb"),
    ):
        assert grade(save(tmp_path, notebook, name), capsys)[1]["notebook"] == "01_tensors"


def test_old_formats_and_byte_order_marks_are_read(tmp_path, capsys):
    source = "def count_elements(shape):\r\n    return 0"
    old = {
        "nbformat": 3,
        "nbformat_minor": 0,
        "metadata": {},
        "worksheets": [
            {
                "cells": [
                    {
                        "cell_type": "code",
                        "language": "python",
                        "input": source,
                        "outputs": [],
                        "metadata": {},
                    }
                ]
            }
        ],
    }
    path = tmp_path / "old.ipynb"
    path.write_text("\ufeff" + json.dumps(old), encoding="utf-8")
    assert grade(path, capsys)[1]["notebook"] == NAME


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"cells": 3}', json.dumps(new_notebook())],
    ids=["empty", "truncated", "a list", "no cells", "foreign"],
)
def test_what_cannot_be_judged_exits_with_2_and_says_why(content, tmp_path, capsys):
    path = tmp_path / "broken.ipynb"
    path.write_text(content)
    assert selfcheck.main(str(path)) == 2
    assert "broken.ipynb" in capsys.readouterr().out


def test_a_missing_file_exits_with_2(tmp_path, capsys):
    assert selfcheck.main(str(tmp_path / "nothing.ipynb")) == 2
    assert "can't be read" in capsys.readouterr().out
