"""Intake: every way in which a notebook comes back has a rule, a verdict or a problem in words."""

from __future__ import annotations

import json
import os
import stat
import zipfile

import pytest

from course_lib import selfcheck
from course_lib.grading import intake
from course_lib.grading.intake import find_submissions, survey
from tests.grading.handed_in import (
    ANSWER,
    STUB,
    WRONG,
    answered,
    as_bytes,
    code,
    notebook,
    save,
    text,
    zipped,
)

NAME = "00_start_here"


def only(path) -> intake.Submission:
    (found,) = find_submissions([path])
    return found


def read(tmp_path, content: bytes, name: str = f"{NAME}.ipynb") -> intake.Submission:
    return only(save(tmp_path / "alice" / name, content).parent.parent)


def verdict(submission: intake.Submission) -> str:
    """What the engine says about the answer in it."""
    lines = selfcheck.judge_cells(list(submission.cells), submission.notebook)
    return next(line.verdict for line in lines if line.name == "count_elements")


def by_student(path) -> dict[str, intake.Submission]:
    found = find_submissions([path])
    assert len({one.student for one in found}) == len(found)
    return {one.student: one for one in found}


# ---- what learners do to cells -----------------------------------------------------------------------------------


CHECK, PREDICT = code("check(count_elements)"), code('predict("first_prediction", "b")')

CELLS = {
    "as delivered": [code(ANSWER), CHECK, PREDICT],
    "check edited": [code(ANSWER), code("print('passed')")],
    "check emptied": [code(ANSWER), code("")],
    "check deleted": [code(ANSWER)],
    "check doubled": [code(ANSWER), CHECK, CHECK],
    "check moved": [CHECK, code(ANSWER)],
    "check retyped": [code(ANSWER), text("check(count_elements)")],
    "check redefined": [code("def check(f): pass"), code(ANSWER), CHECK],
    "answer moved to the end": [CHECK, code("x = 1"), code(ANSWER)],
    "answer in a new cell": [code(STUB), CHECK, code(ANSWER)],
    "answer doubled, wrong one first": [code(WRONG), code(ANSWER)],
    "same id twice": [code(WRONG, id="a"), code(ANSWER, id="a")],
    "source as lines": [code(ANSWER.splitlines(keepends=True))],
    "windows line ends": [code(ANSWER.replace("\n", "\r\n"))],
    "old mac line ends": [code(ANSWER.replace("\n", "\r"))],
    "a cell that is no cell": [
        code(ANSWER),
        3,
        None,
        {"cell_type": "code"},
        {"cell_type": "code", "source": 5},
    ],
    "a cell of IPython": [code("%matplotlib inline\n!rm x"), code(ANSWER)],
    "a cell that is no Python": [code("for"), code(ANSWER)],
    "a cell too deep for the parser": [code("-" * 20_000 + "1"), code("(" * 300 + ")" * 300), code(ANSWER)],
    "a lone surrogate in another cell": [code("s = '\ud800'"), code(ANSWER)],
    "a form feed and a line separator": [code("s = 'a\u2028b'\x0c\n" + ANSWER)],
    "ten thousand cells": [*(code(f"x{i} = {i}") for i in range(10_000)), code(ANSWER)],
}
WRONG_CELLS = {
    "answer doubled, right one first": [code(ANSWER), code(WRONG)],
    "check forged": [
        code(WRONG),
        code("print('✓ passed')", outputs=[{"output_type": "stream", "text": "passed"}]),
    ],
}
NOT_ATTEMPTED = {
    "untouched": [code(STUB), CHECK],
    "answer turned into text": [text(ANSWER), CHECK],
    "answer turned into a raw cell": [{**text(ANSWER), "cell_type": "raw"}, CHECK],
    "behind a false condition": [code("if False:\n    def count_elements(shape): return 6"), code(STUB)],
    "nothing at all": [],
}


@pytest.mark.parametrize(
    ("cells", "due"),
    [
        *(pytest.param(cells, "passed", id=id_) for id_, cells in CELLS.items()),
        *(pytest.param(cells, "failed", id=id_) for id_, cells in WRONG_CELLS.items()),
        *(pytest.param(cells, "not attempted", id=id_) for id_, cells in NOT_ATTEMPTED.items()),
    ],
)
def test_whatever_happened_to_cells_the_answer_gets_its_verdict(cells, due, tmp_path):
    found = read(tmp_path, as_bytes(notebook(*cells)))
    assert (found.student, found.notebook, found.problem) == ("alice", NAME, "")
    assert verdict(found) == due


@pytest.mark.parametrize("cells", [CELLS["check retyped"], NOT_ATTEMPTED["answer turned into text"]])
def test_selfcheck_reads_the_same_cells(cells, tmp_path):
    path = save(tmp_path / f"{NAME}.ipynb", as_bytes(notebook(*cells)))
    assert selfcheck.read_notebook(path) == (list(only(path).cells), only(path).notebook)


def test_an_answer_that_became_text_is_noted(tmp_path):
    for cell in (text(ANSWER), {**text("lost"), "metadata": {"exercise": "count_elements"}}):
        assert any("count_elements" in note for note in read(tmp_path, as_bytes(notebook(cell))).notes)


# ---- what editors and systems do to files ------------------------------------------------------------------------


def without_metadata() -> dict:
    return {**notebook(code(ANSWER)), "metadata": {}}


OLD_FORMAT = {
    "nbformat": 3,
    "nbformat_minor": 0,
    "metadata": {"name": ""},
    "worksheets": [{"cells": [{"cell_type": "code", "language": "python", "input": ANSWER, "outputs": []}]}],
}
HUGE_OUTPUT = [{"output_type": "stream", "name": "stdout", "text": "x" * 50_000_000}]
OTHER_KERNEL = {"kernelspec": {"name": "torch-env", "language": "python"}, "course_lib": {"notebook": NAME}}

FILES = {
    "plain": (answered(), ""),
    "metadata stripped": (as_bytes(without_metadata()), "metadata"),
    "nbformat 3": (as_bytes(OLD_FORMAT), "nbformat 3"),
    "byte-order mark": (b"\xef\xbb\xbf" + answered(), "byte-order mark"),
    "UTF-16 with a mark": (answered().decode().encode("utf-16"), "byte-order mark"),
    "windows line ends": (json.dumps(json.loads(answered()), indent=1).replace("\n", "\r\n").encode(), ""),
    "bytes that are no text": (answered().replace(b"[{", b'[{"x": "\xff\xfe", ', 1), "not text"),
    "another kernel": (as_bytes(notebook(code(ANSWER), metadata=OTHER_KERNEL)), "another kernel"),
    "50 MB of output": (as_bytes(notebook(code(ANSWER, outputs=HUGE_OUTPUT))), ""),
    "metadata of the wrong types": (as_bytes(notebook(code(ANSWER, metadata=3), metadata=[4])), "metadata"),
    "a lone surrogate": (as_bytes(notebook(code("s = '\ud800'"), code(ANSWER))), "surrogates"),
}


@pytest.mark.parametrize(("content", "note"), FILES.values(), ids=FILES)
def test_odd_files_are_read_and_noted(content, note, tmp_path):
    found = read(tmp_path, content)
    assert found.problem == "" and verdict(found) == "passed"
    assert any(note in said for said in found.notes) if note else found.notes == ()
    assert all(isinstance(cell, str) and cell.encode() is not None for cell in found.cells)


@pytest.mark.parametrize(
    "name",
    ["final version.ipynb", "00_START_HERE.ipynb", "00_start_here.ipynb.txt", "x.ipynb.json", "é😀.ipynb"],
)
def test_renamed_files_are_known(name, tmp_path):
    found = read(tmp_path, answered(), name)
    assert found.notebook == NAME and verdict(found) == "passed"


def test_a_notebook_is_known_by_metadata_then_name_then_content(tmp_path):
    bare = as_bytes(without_metadata())
    assert read(tmp_path / "1", answered(name="01_tensors"), "02_autograd.ipynb").notebook == "01_tensors"
    assert read(tmp_path / "2", bare, "02_autograd.ipynb").notebook == "02_autograd"
    assert read(tmp_path / "3", bare, "mine.ipynb").notebook == NAME
    assert "renamed" in " ".join(read(tmp_path / "4", answered(), "mine.ipynb").notes)


def test_predictions_alone_tell_which_notebook_it_is(tmp_path):
    cells = [
        code('predict("view_write", ...)'),
        code("predict(name='slice_offset', choice='a')"),
        code("count_elements = 3"),
    ]
    assert read(tmp_path, as_bytes(notebook(*cells, metadata={})), "mine.ipynb").notebook == "01_tensors"


BROKEN = {
    "empty": (b"", "empty"),
    "zeros": (b"\0" * 5000, "empty"),
    "cut short": (answered()[:-40], "cut short"),
    "cut short after a byte": (b"{", "cut short"),
    "no JSON": (b"<html>log in first</html>", "not JSON"),
    "a list": (b"[1]", "no cells"),
    "no cells": (b'{"cells": 3}', "no cells"),
    "endlessly nested": (b"[" * 100_000, "not JSON"),
    "a number too long": (b'{"cells": [' + b"9" * 10_000 + b"]}", "not JSON"),
    "hundred thousand brackets closed": (b"[" * 100_000 + b"]" * 100_000, "not JSON"),
    "another course's": (
        as_bytes(notebook(code("def other(): pass"), metadata={})),
        "no exercise of this course",
    ),
}


@pytest.mark.parametrize(("content", "word"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_read_is_a_problem_in_words(content, word, tmp_path):
    found = read(tmp_path, content, "mine.ipynb")
    assert word in found.problem and found.cells == () and found.student == "alice"


def test_a_broken_file_keeps_its_notebooks_name_and_stops_nobody(tmp_path):
    save(tmp_path / "alice" / f"{NAME}.ipynb", b"{")
    save(tmp_path / "bob" / f"{NAME}.ipynb")
    found = by_student(tmp_path)
    assert found["alice"].notebook == NAME and found["alice"].problem and not found["bob"].problem


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "LARGEST", 100)
    assert "larger" in read(tmp_path, answered()).problem


def test_unreadable_special_and_linked_files_are_problems(tmp_path):
    secret = save(tmp_path / "elsewhere" / "secret.ipynb")
    hand_in = tmp_path / "class"
    (hand_in / "alice").mkdir(parents=True)
    (hand_in / "alice" / f"{NAME}.ipynb").symlink_to(secret)
    (hand_in / "bob").mkdir()
    os.mkfifo(hand_in / "bob" / f"{NAME}.ipynb")
    (hand_in / "carol").symlink_to(secret.parent)
    found = by_student(hand_in)
    assert "link" in found["alice"].problem and "ordinary" in found["bob"].problem
    assert "carol" not in found and any("link" in one.reason for one in survey([hand_in]).set_aside)


def test_a_missing_path_is_a_problem(tmp_path):
    assert "can't be read" in only(tmp_path / "nothing.ipynb").problem


# ---- zips --------------------------------------------------------------------------------------------------------


def test_a_zip_is_looked_into_and_so_is_a_zip_in_a_zip(tmp_path):
    inner = zipped({f"work/{NAME}.ipynb": answered()})
    outer = zipped({"alice.zip": inner, f"bob/{NAME}.ipynb": answered(WRONG)})
    found = by_student(save(tmp_path / "class.zip", outer))
    assert verdict(found["alice"]) == "passed" and verdict(found["bob"]) == "failed"
    assert found["alice"].member == f"alice.zip > work/{NAME}.ipynb"
    assert list(tmp_path.iterdir()) == [tmp_path / "class.zip"]


@pytest.mark.parametrize(
    "name", ["../00_start_here.ipynb", "/00_start_here.ipynb", "a/../../b.ipynb", "C:\\b.ipynb"]
)
def test_a_member_that_points_outside_is_not_read(name, tmp_path):
    found = only(save(tmp_path / "alice.zip", zipped({name: answered()})))
    assert found.student == "alice" and "outside" in found.problem and found.cells == ()


def test_a_link_in_a_zip_is_not_followed(tmp_path):
    link = zipfile.ZipInfo(f"{NAME}.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    found = only(save(tmp_path / "alice.zip", zipped([(link, b"/etc/passwd")])))
    assert "link" in found.problem


def test_a_hostile_member_costs_only_itself(tmp_path):
    made = zipped({"../bob/00_start_here.ipynb": answered(), f"{NAME}.ipynb": answered()})
    found = find_submissions([save(tmp_path / "class" / "alice.zip", made).parent])
    good = next(one for one in found if one.notebook == NAME)
    assert good.student == "alice" and not good.problem and verdict(good) == "passed"
    assert {one.student for one in found} == {"alice"}


def test_a_password_is_a_problem(tmp_path):
    made = bytearray(zipped({f"{NAME}.ipynb": answered()}))
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        made[made.index(header) + flags] |= 1
    assert "password" in only(save(tmp_path / "alice.zip", bytes(made))).problem


def test_damaged_zips_are_problems(tmp_path):
    good = zipped({f"{NAME}.ipynb": answered()})
    middle = len(good) // 3
    for number, content in enumerate(
        [b"PK", b"Rar!", good[:-30], good[:middle] + b"\0" * 9 + good[middle + 9 :]]
    ):
        found = only(save(tmp_path / str(number) / "alice.zip", content))
        assert found.student == "alice" and found.problem


def test_other_archives_are_problems(tmp_path):
    found = by_student(save(tmp_path / "class" / "alice.tar.gz", b"\x1f\x8b").parent)
    assert "not opened" in found["alice"].problem


def test_a_zip_bomb_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "LARGEST", 2**20)
    monkeypatch.setattr(intake, "MOST_BYTES", 2**21)
    bomb = zipped({f"{n}.ipynb": b"0" * (2**20) for n in range(4)} | {"big.ipynb": b"0" * 2**22})
    found = find_submissions([save(tmp_path / "class" / "alice.zip", bomb).parent])
    assert found and all(
        "larger" in one.problem or "not JSON" in one.problem or "no cells" in one.problem for one in found
    )


def test_a_lie_about_a_members_size_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "LARGEST", 1000)
    made = bytearray(zipped({f"{NAME}.ipynb": b" " * 100_000}))
    for header, size in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = made.index(header) + size
        made[at : at + 4] = (10).to_bytes(4, "little")
    assert only(save(tmp_path / "alice.zip", bytes(made))).problem


def test_zips_in_zips_end_somewhere(tmp_path):
    nested = zipped({f"{NAME}.ipynb": answered()})
    for _ in range(intake.DEPTH):
        nested = zipped({"more.zip": nested})
    assert "deep" in only(save(tmp_path / "alice.zip", nested)).problem


def test_a_zip_with_too_many_files_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "MOST_MEMBERS", 3)
    made = zipped({f"{n}.txt": b"" for n in range(9)})
    assert "more than 3 files" in only(save(tmp_path / "class" / "alice.zip", made).parent).problem


def test_names_in_zips_are_read_as_they_were_meant(tmp_path):
    made = zipped({"José/00_start_here.ipynb": answered(), "Ana\\00_start_here.ipynb": answered(WRONG)})
    assert set(by_student(save(tmp_path / "class.zip", made))) == {"José", "Ana"}


def test_a_zip_without_a_notebook_is_no_silence(tmp_path):
    made = zipped({"alice.zip": zipped({"answers.docx": b"x"}), f"bob/{NAME}.ipynb": answered()})
    found = by_student(save(tmp_path / "class.zip", made))
    assert "no notebook" in found["alice"].problem and "answers.docx" in found["alice"].problem


# ---- who it is ---------------------------------------------------------------------------------------------------


WHO = {
    "alice/00_start_here.ipynb": "alice",
    "alice/week 1/work.ipynb": "alice",
    "alice/workbook/00_start_here.ipynb": "alice",
    "alice_00_start_here.ipynb": "alice",
    "mary-ann o'neil - 00_start_here (2).ipynb": "mary-ann o'neil",
    "jane_doe_homework.ipynb": "jane_doe_homework",
    "doejane_12345_67890_00_start_here.ipynb": "doejane_12345",
    "doejane_LATE_12345_67890_00_start_here-1.ipynb": "doejane_12345",
    "Jane Doe_4711_assignsubmission_file_/00_start_here.ipynb": "Jane Doe_4711",
    "Jane Doe_4711_assignsubmission_file_00_start_here.ipynb": "Jane Doe_4711",
    "week 1/doejane_12345_67890_00_start_here.ipynb": "doejane_12345",
    "00_start_here/alice.ipynb": "alice",
    "00_start_here.ipynb": "class",
    "workbook/00_start_here.ipynb": "class",
    "أحمد/00_start_here.ipynb": "أحمد",
    "=HYPERLINK(1)/00_start_here.ipynb": "=HYPERLINK(1)",
    'a,"b"\nc/00_start_here.ipynb': 'a,"b" c',
    "😀/00_start_here.ipynb": "😀",
}


@pytest.mark.parametrize(("path", "student"), WHO.items(), ids=map(repr, WHO))
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_names_say_who_it_is(path, student, kind, tmp_path):
    if kind == "zip":
        source = save(tmp_path / "class.zip", zipped({path: answered()}))
    else:
        source = tmp_path / "class"
        save(source / path)
    assert only(source).student == student


def test_a_single_notebook_is_named_after_itself_or_its_folder(tmp_path):
    assert only(save(tmp_path / "alice_00_start_here.ipynb")).student == "alice"
    assert only(save(tmp_path / "bob" / "00_start_here.ipynb")).student == "bob"
    assert only(save(tmp_path / "bob" / "mine.ipynb")).student == "mine"


def test_a_folder_around_a_whole_zip_is_nobody(tmp_path):
    made = {f"class 3/{who}/{NAME}.ipynb": answered(f"# {who}\n{ANSWER}") for who in ("alice", "bob")}
    assert set(by_student(save(tmp_path / "x.zip", zipped(made)))) == {"alice", "bob"}
    course = {f"inside-pytorch/{folder}/{NAME}.ipynb": answered(STUB) for folder in ("notebooks", "workbook")}
    assert only(save(tmp_path / "carol.zip", zipped(course))).student == "carol"


def test_a_very_long_id_is_bounded_and_stays_its_own(tmp_path):
    for last in "ab":
        made = zipped({f"{'x' * 300}{last}/{NAME}.ipynb": answered()})
        save(tmp_path / "class" / f"{last}.zip", made)
    found = find_submissions([tmp_path / "class" / "a.zip", tmp_path / "class" / "b.zip"])
    assert len({one.student for one in found}) == 2 and all(len(one.student) < 140 for one in found)


def test_ids_equal_up_to_case_are_two_students(tmp_path):
    made = {"Alice/00_start_here.ipynb": answered(), "alice/00_start_here.ipynb": answered(WRONG)}
    made["alice (2)/00_start_here.ipynb"] = answered(STUB)
    found = by_student(save(tmp_path / "class.zip", zipped(made)))
    assert set(found) == {"Alice", "alice (3)", "alice (2)"}
    assert verdict(found["Alice"]) == "passed" and verdict(found["alice (3)"]) == "failed"
    assert all("another student" in " ".join(found[who].notes) for who in ("Alice", "alice (3)"))


def test_one_id_in_two_classes_is_two_students_unless_a_platform_numbers_them(tmp_path):
    for group, answer in (("a", ANSWER), ("b", WRONG)):
        save(tmp_path / group / "alice" / f"{NAME}.ipynb", answered(answer))
        save(tmp_path / group / f"doejane_12345_67890_{NAME}.ipynb", answered(answer))
    found = find_submissions([tmp_path / "a", tmp_path / "b"])
    assert sorted(one.student for one in found) == ["alice", "alice (2)", "doejane_12345"]


def test_one_student_hands_in_two_notebooks_in_two_sources(tmp_path):
    save(tmp_path / "1" / "alice" / f"{NAME}.ipynb")
    save(tmp_path / "2" / "alice" / "01_tensors.ipynb", answered(name="01_tensors"))
    found = find_submissions([tmp_path / "1", tmp_path / "2", tmp_path / "1", tmp_path / "1" / "alice"])
    assert [(one.student, one.notebook) for one in found] == [("alice", NAME), ("alice", "01_tensors")]


# ---- which one counts --------------------------------------------------------------------------------------------


def counted(tmp_path, first: str, second: str, **contents) -> tuple[str, intake.Survey]:
    """The name of the one that counts of two files of one student, the second handed in an hour later."""
    for name, age in ((first, 7200), (second, 3600)):
        path = save(tmp_path / "class" / name, contents.get(name) or answered(f"# {name}\n{ANSWER}"))
        os.utime(path, (1_700_000_000 - age,) * 2)
    found = survey([tmp_path / "class"])
    (submission,) = found.submissions
    return submission.path.relative_to(tmp_path / "class").as_posix(), found


def test_the_newer_file_counts_and_the_other_is_named(tmp_path):
    name, found = counted(tmp_path, "alice/b.ipynb", "alice/a.ipynb")
    assert name == "alice/a.ipynb"
    assert "b.ipynb" in " ".join(found.submissions[0].notes) and len(found.set_aside) == 1


CANVAS = "doejane_12345_{}_00_start_here{}.ipynb"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (CANVAS.format(67899, "-1"), CANVAS.format(67890, "")),
        (CANVAS.format(67899, ""), CANVAS.format(67890, "")),
        ("doejane_LATE_12345_67899_00_start_here.ipynb", CANVAS.format(67890, "")),
        ("alice/workbook/00_start_here.ipynb", "alice/notebooks/00_start_here.ipynb"),
        ("alice/00_start_here (1).ipynb", "alice/00_start_here.ipynb"),
    ],
)
def test_what_a_platform_says_beats_the_time_of_the_file(first, second, tmp_path):
    assert counted(tmp_path, first, second)[0] == first


def test_a_copy_without_work_never_wins(tmp_path):
    first, second = "alice/00_start_here.ipynb", "alice/00_start_here.new.ipynb"
    assert counted(tmp_path, first, second, **{second: answered(STUB)})[0] == first


def test_a_broken_file_never_wins(tmp_path):
    first, second = "alice/00_start_here.ipynb", "alice/00_start_here (1).ipynb"
    name, found = counted(tmp_path, first, second, **{second: b"{"})
    assert name == first and "cut short" in found.set_aside[0].reason


def test_the_same_file_twice_needs_no_note(tmp_path):
    first, second = "alice/00_start_here.ipynb", "alice/copy.ipynb"
    _, found = counted(tmp_path, first, second, **{first: answered(), second: answered()})
    assert "the same file again" in found.set_aside[0].reason
    assert not any("not graded" in note for note in found.submissions[0].notes)


def test_what_programs_keep_for_themselves_is_set_aside(tmp_path):
    save(tmp_path / "alice" / f"{NAME}.ipynb")
    made = zipped(
        {f"__MACOSX/._{NAME}.ipynb": b"x", f"backups/{NAME}.ipynb": answered(), f"{NAME}.ipynb": answered()}
    )
    save(tmp_path / "bob.zip", made)
    save(tmp_path / "alice" / ".ipynb_checkpoints" / f"{NAME}-checkpoint.ipynb")
    save(tmp_path / "alice" / f"._{NAME}.ipynb", b"x")
    save(tmp_path / "roster.csv", b"x")
    found = survey([tmp_path])
    assert [one.student for one in found.submissions] == ["alice", "bob"]
    assert not any(one.problem for one in found.submissions)
    assert "roster.csv" in " ".join(one.place for one in found.set_aside)


def test_the_order_is_by_student_and_notebook_and_always_the_same(tmp_path):
    for who in ("bob", "Alice", "carol"):
        for name in ("01_tensors", NAME):
            save(tmp_path / who / f"{name}.ipynb", answered(name=name))
    first = find_submissions([tmp_path])
    assert [one.student for one in first] == ["Alice", "Alice", "bob", "bob", "carol", "carol"]
    assert first == find_submissions([tmp_path])


def test_the_digest_is_of_the_bytes(tmp_path):
    found = read(tmp_path, answered())
    assert len(found.digest) == 16 and int(found.digest, 16) >= 0
    assert read(tmp_path / "2", answered() + b"\n").digest != found.digest
