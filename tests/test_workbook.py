"""The learner's copies: what is delivered, what is never touched, and what a reset puts back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from course_lib import workbook
from course_lib.environment import Problem
from course_lib.workbook import deliver, reset


def cell(source: str, kind: str = "code", **metadata) -> dict:
    made = {"cell_type": kind, "id": f"{kind}-{len(source)}", "metadata": metadata}
    made["source"] = source.splitlines(keepends=True)
    return {**made, "outputs": [], "execution_count": None} if kind == "code" else made


STUB = 'def double(x):\n    """Twice x."""\n    raise NotImplementedError("your turn: double")\n'
ANSWER = STUB.replace('raise NotImplementedError("your turn: double")', "return x + x")


def notebook(*cells: dict) -> dict:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def lesson(title: str = "# One", answer: str = STUB) -> dict:
    return notebook(cell(title, "markdown"), cell(answer, exercise="double"), cell("check(double)"))


def write(path: Path, content: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def sources(path: Path) -> list[str]:
    return ["".join(one["source"]) for one in json.loads(path.read_text(encoding="utf-8"))["cells"]]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A course of one notebook, not yet delivered."""
    monkeypatch.setattr(workbook, "ROOT", tmp_path)
    for name in ("NOTEBOOKS", "WORKBOOK"):
        monkeypatch.setattr(workbook, name, tmp_path / name.lower())
    monkeypatch.setattr(workbook, "BACKUPS", tmp_path / "workbook" / "backups")
    monkeypatch.setattr(workbook, "RECORD", tmp_path / "workbook" / ".delivered.json")
    write(tmp_path / "notebooks" / "01_one.ipynb", lesson())
    return tmp_path


@pytest.fixture
def mine(here):
    """The learner's copy, as delivered."""
    deliver()
    return here / "workbook" / "01_one.ipynb"


def publish(here: Path, content: dict) -> Path:
    """A newer version in the course."""
    return write(here / "notebooks" / "01_one.ipynb", content)


def backups(here: Path) -> list[Path]:
    return (
        sorted((here / "workbook" / "backups").glob("*")) if (here / "workbook" / "backups").exists() else []
    )


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


# Delivering


def test_a_first_start_copies_every_notebook_byte_for_byte(here):
    write(here / "notebooks" / "00_zero.ipynb", lesson("# Zero"))
    assert deliver() == []
    for name in ("00_zero.ipynb", "01_one.ipynb"):
        assert (here / "workbook" / name).read_bytes() == (here / "notebooks" / name).read_bytes()
    assert workbook.first_notebook() == here / "workbook" / "00_zero.ipynb"


def test_with_nothing_to_do_nothing_is_written_or_said(here, mine):
    before = everything(here)
    assert deliver() == []
    assert everything(here) == before


def test_a_deleted_copy_is_delivered_again(here, mine):
    mine.unlink()
    assert deliver() == []
    assert mine.exists()


def test_an_unchanged_copy_is_brought_up_to_date(here, mine):
    newer = publish(here, lesson("# One, better"))
    lines = deliver()
    assert len(lines) == 1
    assert "brought up to date" in lines[0]
    assert mine.read_bytes() == newer.read_bytes()
    assert deliver() == []


def test_what_jupyterlab_writes_on_a_save_is_no_change(here, mine):
    saved = json.loads(mine.read_text())
    saved["metadata"] = {"kernelspec": {"name": "python3"}, "widgets": {}}
    saved["cells"][1] |= {
        "outputs": [{"output_type": "stream", "name": "stdout", "text": "1"}],
        "execution_count": 7,
    }
    for one in saved["cells"]:
        one["source"] = "".join(one["source"])
    saved["cells"].append(cell(""))  # Shift-Enter on the last cell
    write(mine, saved)
    newer = publish(here, lesson("# One, better"))
    deliver()
    assert mine.read_bytes() == newer.read_bytes()


def test_a_changed_copy_is_left_alone_and_the_newer_put_beside(here, mine):
    write(mine, lesson(answer=ANSWER))
    before = mine.read_bytes()
    newer = publish(here, lesson("# One, better"))
    lines = deliver()
    beside = here / "workbook" / "01_one.new.ipynb"
    assert mine.read_bytes() == before
    assert beside.read_bytes() == newer.read_bytes()
    assert len(lines) == 1
    assert beside.name in lines[0]
    assert deliver() == [], "said once"


def test_what_was_put_beside_is_replaced_by_a_newer_one_unless_the_learner_works_in_it(here, mine):
    write(mine, lesson(answer=ANSWER))
    beside = here / "workbook" / "01_one.new.ipynb"
    publish(here, lesson("# Second"))
    deliver()
    third = publish(here, lesson("# Third"))
    deliver()
    assert beside.read_bytes() == third.read_bytes()

    write(beside, lesson("# Third", ANSWER))
    fourth = publish(here, lesson("# Fourth"))
    lines = deliver()
    assert "return x + x" in sources(beside)[1]
    assert (here / "workbook" / "01_one.new-2.ipynb").read_bytes() == fourth.read_bytes()
    assert "01_one.new-2.ipynb" in lines[0]


def test_a_changed_copy_with_nothing_newer_is_not_mentioned(here, mine):
    write(mine, lesson(answer=ANSWER))
    before = everything(here)
    assert deliver() == []
    assert everything(here) == before


def test_what_was_put_beside_and_deleted_does_not_come_back(here, mine):
    write(mine, lesson(answer=ANSWER))
    publish(here, lesson("# Second"))
    deliver()
    (here / "workbook" / "01_one.new.ipynb").unlink()
    assert deliver() == []
    assert not (here / "workbook" / "01_one.new.ipynb").exists()


def test_a_change_taken_back_is_no_change(here, mine):
    delivered = mine.read_bytes()
    write(mine, lesson(answer=ANSWER))
    publish(here, lesson("# Second"))
    deliver()
    mine.write_bytes(delivered)
    deliver()
    assert sources(mine)[0] == "# Second"


@pytest.mark.parametrize("record", [None, "", "[]", '{"01_one.ipynb": 3}', '{"01_one.ipynb": {"odd": 1}}'])
def test_without_a_readable_record_nothing_of_the_learners_is_lost(here, mine, record):
    write(mine, lesson(answer=ANSWER))
    before = mine.read_bytes()
    workbook.RECORD.unlink()
    if record is not None:
        workbook.RECORD.write_text(record)
    deliver()
    assert mine.read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b'{"cells": [', b"{}", b'{"cells": [{"source": 1}]}', b"\xff\xfe"])
def test_a_damaged_copy_is_kept_aside(here, mine, damage):
    mine.write_bytes(damage)
    lines = deliver()
    assert len(lines) == 1
    assert "could not be read" in lines[0]
    assert [path.read_bytes() for path in backups(here)] == [damage]
    assert backups(here)[0].name in lines[0]
    assert sources(mine) == sources(here / "notebooks" / "01_one.ipynb")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(here, mine, monkeypatch):
    publish(here, lesson("# Second"))
    before = mine.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Problem, match="could not be brought up to date") as raised:
        deliver()
    assert "No space left" in raised.value.why
    assert mine.read_bytes() == before
    assert sorted(path.name for path in mine.parent.iterdir()) == [".delivered.json", "01_one.ipynb"]


def test_a_file_is_replaced_in_one_step(here, mine, monkeypatch):
    publish(here, lesson("# Second"))
    before = mine.read_bytes()

    def killed(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        deliver()
    assert mine.read_bytes() == before


def test_a_course_without_notebooks_says_so(here):
    (here / "notebooks" / "01_one.ipynb").unlink()
    with pytest.raises(Problem, match="notebooks are missing"):
        deliver()


def test_a_damaged_notebook_of_the_course_says_so(here, mine):
    (here / "notebooks" / "01_one.ipynb").write_text("<<<<<<< HEAD")
    with pytest.raises(Problem, match="cannot be read"):
        deliver()


# Finding


@pytest.mark.parametrize("name", ["01_one", "01_one.ipynb"])
def test_a_notebook_is_found_by_its_name(mine, name):
    assert workbook.find(name) == mine


def test_a_notebook_is_found_by_its_path(here, mine, tmp_path):
    elsewhere = write(tmp_path / "elsewhere" / "handed_in.ipynb", lesson())
    assert workbook.find(str(elsewhere)) == elsewhere


def test_a_notebook_that_is_not_there(mine):
    with pytest.raises(Problem, match="no notebook 02_two") as raised:
        workbook.find("02_two")
    assert "01_one" in raised.value.remedy


# Resetting


def test_resetting_an_exercise_changes_that_cell_alone_and_keeps_a_copy(here, mine):
    solved = lesson("# My own title", ANSWER)
    solved["cells"][1] |= {
        "outputs": [{"output_type": "stream", "text": "1"}],
        "execution_count": 3,
        "id": "kept",
    }
    write(mine, solved)
    before = mine.read_bytes()
    done = reset("double")
    assert done.exercises == ("double",)
    assert sources(mine) == ["# My own title", STUB, "check(double)"]
    changed = json.loads(mine.read_text())["cells"][1]
    assert (changed["outputs"], changed["execution_count"], changed["id"]) == ([], None, "kept")
    assert [path.read_bytes() for path in backups(here)] == [before]
    assert f"workbook/backups/{backups(here)[0].name}" in done.message


def test_resetting_finds_a_cell_that_lost_its_metadata(mine):
    write(mine, notebook(cell("%matplotlib inline\nx ="), cell(ANSWER), cell("check(double)")))
    reset("double")
    assert sources(mine)[1] == STUB


def test_resetting_finds_an_answer_that_does_not_parse(mine):
    write(mine, notebook(cell("def double(x):\n    return x +"), cell("check(double)")))
    reset("double")
    assert sources(mine) == [STUB, "check(double)"]


def test_resetting_puts_a_deleted_cell_back_before_its_check(mine):
    write(mine, notebook(cell("# One", "markdown"), cell("check(double)"), cell("1 + 1")))
    reset("double")
    assert sources(mine) == ["# One", STUB, "check(double)", "1 + 1"]


def test_resetting_prefers_the_exercise_to_a_demonstration_of_the_same_name(here, mine):
    demonstration = "def double(x):\n    return 2 * x"
    write(here / "notebooks" / "00_zero.ipynb", notebook(cell(demonstration)))
    deliver()
    write(mine, lesson(answer=ANSWER))
    reset("double")
    assert sources(mine)[1] == STUB
    assert sources(here / "workbook" / "00_zero.ipynb") == [demonstration]


def test_resetting_names_other_cells_that_hold_the_answer(mine):
    write(mine, notebook(cell(ANSWER), cell(ANSWER, exercise="double"), cell("check(double)")))
    assert "cell 1" in reset("double").message
    assert sources(mine) == [ANSWER, STUB, "check(double)"]


def test_resetting_a_notebook_keeps_a_copy(here, mine):
    write(mine, lesson("# My own title", ANSWER))
    publish(here, lesson("# Newer"))
    before = mine.read_bytes()
    done = reset("01_one")
    assert done.exercises == ("double",)
    assert mine.read_bytes() == (here / "notebooks" / "01_one.ipynb").read_bytes()
    assert [path.read_bytes() for path in backups(here)] == [before]
    newer = publish(here, lesson("# Second"))
    deliver()
    assert mine.read_bytes() == newer.read_bytes(), "a notebook that was reset counts as unchanged"


def test_two_resets_in_one_second_keep_two_copies(here, mine):
    for _ in range(3):
        reset("01_one.ipynb")
    assert len(backups(here)) == 3


def test_resetting_a_damaged_notebook_keeps_the_damage(here, mine):
    mine.write_bytes(b"{damaged")
    with pytest.raises(Problem, match="could not be reset") as raised:
        reset("double")
    assert "reset 01_one" in raised.value.remedy
    assert mine.read_bytes() == b"{damaged"
    reset("01_one")
    assert [path.read_bytes() for path in backups(here)] == [b"{damaged"]


def test_resetting_what_does_not_exist_suggests_what_does(mine):
    with pytest.raises(Problem, match="no exercise or notebook called dubble") as raised:
        reset("dubble")
    assert raised.value.remedy.endswith("reset double")
