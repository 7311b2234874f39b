"""Collect: from folders and exports of learning platforms into one folder for each student; nothing is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from course_lib.environment import ROOT
from course_lib.grading import collect
from course_lib.grading.intake import find_submissions
from tests.grading.handed_in import ANSWER, WRONG, answered, save, zipped

NAME = "00_start_here"


def collected(folder) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def ran(sources, folder, capsys) -> tuple[int, str]:
    code = collect.main(sources, folder)
    return code, capsys.readouterr().out


def test_an_export_of_canvas(tmp_path, capsys):
    export = zipped(
        {
            f"doejane_12345_67890_{NAME}.ipynb": answered(WRONG),
            f"doejane_12345_67899_{NAME}-1.ipynb": answered(),
            "poejohn_LATE_23456_67891_homework.zip": zipped(
                {f"hw/{NAME}.ipynb": answered(f"# John\n{ANSWER}")}
            ),
            "roeann_34567_67892_essay.docx": b"x",
        }
    )
    code, said = ran([save(tmp_path / "submissions.zip", export)], tmp_path / "out", capsys)
    assert collected(tmp_path / "out") == {
        f"doejane_12345/{NAME}.ipynb": answered(),
        f"poejohn_23456/{NAME}.ipynb": answered(f"# John\n{ANSWER}"),
    }
    assert code == 1 and "roeann_34567" in said and "no notebook" in said and "67890" in said


def test_an_export_of_moodle_and_a_plain_folder(tmp_path, capsys):
    export = zipped({f"Jane Doe_4711_assignsubmission_file_/{NAME}.ipynb": answered()})
    save(tmp_path / "plain" / "bob" / "final.ipynb", answered(WRONG))
    save(tmp_path / "plain" / "carol_01_tensors.ipynb", answered(name="01_tensors"))
    sources = [save(tmp_path / "Course-Assignment-99.zip", export), tmp_path / "plain"]
    assert ran(sources, tmp_path / "out", capsys)[0] == 0
    assert set(collected(tmp_path / "out")) == {
        f"Jane Doe_4711/{NAME}.ipynb",
        f"bob/{NAME}.ipynb",
        "carol/01_tensors.ipynb",
    }


def test_what_was_collected_is_found_again_as_it_was(tmp_path, capsys):
    for who, answer in (("alice", ANSWER), ("Bob", WRONG), ("é😀", ANSWER)):
        save(tmp_path / "in" / who / f"{NAME}.ipynb", answered(f"# {who}\n{answer}"))
    ran([tmp_path / "in"], tmp_path / "out", capsys)
    before, after = find_submissions([tmp_path / "in"]), find_submissions([tmp_path / "out"])
    assert [(one.student, one.digest) for one in before] == [(one.student, one.digest) for one in after]


def test_a_damaged_notebook_is_taken_as_it_is_and_named(tmp_path, capsys):
    save(tmp_path / "in" / "alice" / f"{NAME}.ipynb", b'{"cells": [')
    save(tmp_path / "in" / "bob" / f"{NAME}.ipynb")
    code, said = ran([tmp_path / "in"], tmp_path / "out", capsys)
    assert code == 1 and "cut short" in said
    assert collected(tmp_path / "out")[f"alice/{NAME}.ipynb"] == b'{"cells": ['


# ---- again -------------------------------------------------------------------------------------------------------


def handed_in_at(tmp_path, content: bytes, hour: int):
    path = save(tmp_path / f"in{hour}" / "alice" / f"{NAME}.ipynb", content)
    os.utime(path, (1_700_000_000 + hour * 3600,) * 2)
    return path.parent.parent


def test_a_second_call_changes_nothing(tmp_path, capsys):
    source = handed_in_at(tmp_path, answered(), 1)
    ran([source], tmp_path / "out", capsys)
    code, said = ran([source], tmp_path / "out", capsys)
    assert code == 0 and "already there" in said
    assert collected(tmp_path / "out") == {f"alice/{NAME}.ipynb": answered()}


def test_a_newer_version_is_taken_and_the_one_that_was_there_is_kept(tmp_path, capsys):
    ran([handed_in_at(tmp_path, answered(WRONG), 1)], tmp_path / "out", capsys)
    code, said = ran([handed_in_at(tmp_path, answered(), 2)], tmp_path / "out", capsys)
    files = collected(tmp_path / "out")
    (kept,) = (name for name in files if "backups" in name)
    assert files == {f"alice/{NAME}.ipynb": answered(), kept: answered(WRONG)}
    assert code == 0 and "newer version taken" in said and kept.removeprefix("alice/") in said
    assert [one.digest for one in find_submissions([tmp_path / "out"])] == [
        find_submissions([tmp_path / "in2"])[0].digest
    ]


def test_versions_of_one_second_are_all_kept(tmp_path, capsys):
    for hour in range(1, 5):
        ran([handed_in_at(tmp_path, answered(f"x = {hour}\n{ANSWER}"), hour)], tmp_path / "out", capsys)
    assert len(set(collected(tmp_path / "out").values())) == 4


def test_an_older_version_does_not_replace_a_newer_one(tmp_path, capsys):
    ran([handed_in_at(tmp_path, answered(), 2)], tmp_path / "out", capsys)
    _, said = ran([handed_in_at(tmp_path, answered(WRONG), 1)], tmp_path / "out", capsys)
    assert collected(tmp_path / "out") == {f"alice/{NAME}.ipynb": answered()}
    assert "set aside" in said and "older" in said


def test_what_an_instructor_changed_by_hand_stays(tmp_path, capsys):
    source = handed_in_at(tmp_path, answered(), 1)
    ran([source], tmp_path / "out", capsys)
    save(tmp_path / "out" / "alice" / f"{NAME}.ipynb", answered(WRONG))
    ran([source], tmp_path / "out", capsys)
    assert collected(tmp_path / "out") == {f"alice/{NAME}.ipynb": answered(WRONG)}


# ---- names -------------------------------------------------------------------------------------------------------


def test_every_student_has_a_folder_of_their_own_on_every_system(tmp_path, capsys):
    names = ["Alice", "alice", "con", "ab:c", "ab?c", "..", "x" * 250, "-rf", ".hidden", 'q"<>|', "end. "]
    made = zipped(
        {f"{who}.zip": zipped({f"{NAME}.ipynb": answered(f"# {n}\n{ANSWER}")}) for n, who in enumerate(names)}
    )
    source = save(tmp_path / "class.zip", made)
    ran([source], tmp_path / "out", capsys)
    students = {one.student for one in find_submissions([source])}
    folders = [path.name for path in (tmp_path / "out").iterdir()]
    assert len({name.casefold() for name in folders}) == len(folders) == len(students)
    assert not any(re.search(r'[<>:"|?*\\]|^[.-]|[. ]$', name) or len(name) > 100 for name in folders)
    assert {path.resolve().parents[1] for path in (tmp_path / "out").rglob("*.ipynb")} == {tmp_path / "out"}


def test_nothing_is_written_outside(tmp_path, capsys):
    made = zipped(
        {"../../evil.ipynb": answered(), "/tmp/evil.ipynb": answered(), "a/../../evil.ipynb": answered()}
    )
    code, said = ran([save(tmp_path / "a" / "b" / "alice.zip", made)], tmp_path / "a" / "b" / "out", capsys)
    assert code == 1 and "outside" in said
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["alice.zip"]


def test_names_do_not_steer_the_terminal(tmp_path, capsys):
    made = zipped({f"\x1b[2J\u202egnp/{NAME}.ipynb": b"{"})
    said = ran([save(tmp_path / "class.zip", made)], tmp_path / "out", capsys)[1]
    assert "\x1b" not in said and "\u202e" not in said


# ---- what can't be done ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["missing", "empty folder", "inside", "around"])
def test_what_cannot_run_exits_with_2_and_says_why(source, tmp_path, capsys):
    (tmp_path / "empty folder").mkdir()
    out = tmp_path / "out"
    save(out / "alice" / f"{NAME}.ipynb")
    before = collected(tmp_path)
    places = {"inside": out / "alice", "around": tmp_path}
    code, said = ran([places.get(source, tmp_path / source)], out, capsys)
    assert code == 2 and "nothing more was collected" in said and collected(tmp_path) == before


def test_a_folder_that_is_a_file_exits_with_2(tmp_path, capsys):
    save(tmp_path / "in" / "alice" / f"{NAME}.ipynb")
    assert ran([tmp_path / "in"], save(tmp_path / "out", b"mine"), capsys)[0] == 2
    assert (tmp_path / "out").read_bytes() == b"mine"


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = save(tmp_path / "a.ipynb", b"old")
    monkeypatch.setattr(
        collect.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        collect.put(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_the_command(tmp_path):
    source = save(tmp_path / "in" / "alice" / f"{NAME}.ipynb").parent.parent
    command = [sys.executable, "-m", "course_lib", "collect", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "alice" in done.stdout and "taken" in done.stdout
    assert collected(tmp_path / "out") == {f"alice/{NAME}.ipynb": answered()}
