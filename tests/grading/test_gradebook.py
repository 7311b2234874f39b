"""The gradebook on real files: nothing is lost, nothing is counted twice, and what is exported reads back equal."""

from __future__ import annotations

import csv
import json
import os
import random
import sqlite3
import string
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from course_lib.environment import ROOT
from course_lib.grading import files, gradebook, tables
from course_lib.grading.files import OutputProblem
from course_lib.grading.gradebook import COULD_NOT_BE_READ, Gradebook, Row
from tests.grading.rooms import HARD_NAMES, graded, room, row, submission

ONE, TWO = "def flat_index(i): return 1", "def flat_index(i): return 2"


@pytest.fixture
def book(tmp_path: Path) -> Gradebook:
    return Gradebook(tmp_path / "out")


def only(rows: list[Row]) -> Row:
    (found,) = rows
    return found


def unreadable(found) -> tuple:
    return found, row("", COULD_NOT_BE_READ, 0, student=found.student, max_points=0, reason=found.problem)


class TestRecording:
    def test_what_goes_in_comes_out_in_order(self, book):
        rows = (row("b", "failed", 0, misconception="m", diagnosis="You did."), row("a", points=1.5))
        book.record(graded(submission(), *rows))
        assert [replace(found, attempts=1) for found in book.rows()] == list(rows)
        assert Gradebook(book.folder).rows() == book.rows()

    def test_the_same_submission_twice_is_the_same_row(self, book):
        one = graded(submission(cells=(ONE,)), row(), row("view_write", "failed", 0, kind="prediction"))
        book.record(one)
        before = book.rows(), [path.read_bytes() for path in book.export()]
        book.record(one)
        assert (book.rows(), [path.read_bytes() for path in book.export()]) == before

    def test_a_newer_version_takes_the_place_of_the_older(self, book):
        book.record(graded(submission(cells=(ONE,)), row(verdict="failed", points=0), row("b")))
        book.record(graded(submission(cells=(TWO,), digest="other"), row()))
        assert only(book.rows()) == row(attempts=2)

    def test_other_notebooks_and_other_students_stay(self, book):
        for student, notebook in [("ann", "01_tensors"), ("ann", "02_autograd"), ("Ann", "01_tensors")]:
            book.record(graded(submission(student, notebook), row()))
        assert [(found.student, found.notebook) for found in book.rows()] == [
            ("Ann", "01_tensors"),
            ("ann", "01_tensors"),
            ("ann", "02_autograd"),
        ]

    def test_any_text_can_be_kept(self, book):
        found = submission("half \ud83d and \x1b[31m\0", cells=())
        book.record(graded(found, row(reason="\udcff" + "x" * 9999)))
        kept = only(book.rows())
        assert kept.student == "half \\ud83d and ␛[31m␀"
        assert kept.reason.startswith("\\udcffxxx") and len(kept.reason) < 2100
        assert book.is_current(found, "c1")
        assert "␛" in book.export()[0].read_text(encoding="utf-8")

    @pytest.mark.parametrize("verdict", ["grader fault", COULD_NOT_BE_READ])
    def test_what_was_not_judged_has_no_mark(self, book, verdict):
        book.record(graded(submission(), row(verdict=verdict, points=0), row("b", "failed", 0)))
        assert [found.points for found in book.rows()] == [None, 0]


class TestAttempts:
    def attempts(self, book, *cells: str, verdict: str = "failed", kind: str = "exercise", name="flat_index"):
        book.record(graded(submission(cells=cells), row(name, verdict, 0, kind=kind)))
        return only(book.rows()).attempts

    def test_different_answers_count_and_the_same_again_does_not(self, book):
        assert self.attempts(book, ONE) == 1
        assert self.attempts(book, ONE, "print('something else')") == 1
        assert self.attempts(book, f"# a comment\n{ONE}") == 1
        assert self.attempts(book, TWO) == 2
        assert self.attempts(book, ONE) == 2
        assert self.attempts(Gradebook(book.folder), ONE.replace("1", "3")) == 3

    def test_a_stub_is_no_attempt(self, book):
        assert self.attempts(book, "def flat_index(i): ...", verdict="not attempted") == 0
        assert self.attempts(book, "def flat_index(i):") == 1  # it can't be parsed, but it says something

    def test_a_prediction_counts_by_its_letter(self, book):
        details = {"kind": "prediction", "name": "view_write"}
        assert self.attempts(book, 'predict("view_write", "a")', **details) == 1
        assert self.attempts(book, 'predict("view_write",  "a")', "x = 1", **details) == 1
        assert self.attempts(book, 'predict("view_write", "b")', **details) == 2

    def test_every_student_counts_alone(self, book):
        self.attempts(book, ONE)
        book.record(graded(submission("ben", cells=(TWO,)), row(student="ben")))
        assert [found.attempts for found in book.rows()] == [1, 1]


class TestIsCurrent:
    def test_the_same_bytes_and_the_same_course(self, book):
        found = submission()
        assert not book.is_current(found, "c1")
        book.record(graded(found, row()))
        assert book.is_current(found, "c1")
        assert not book.is_current(found, "c2")
        assert not book.is_current(replace(found, digest="other"), "c1")
        assert not book.is_current(replace(found, student="Ann"), "c1")
        assert not book.is_current(replace(found, notebook="02_autograd"), "c1")
        assert book.is_current(replace(found, path=Path("moved.ipynb")), "c1")

    def test_a_file_without_a_digest_never_is(self, book):
        book.record(graded(submission(digest=""), row()))
        assert not book.is_current(submission(digest=""), "c1")

    def test_what_the_grader_failed_on_is_tried_again(self, book):
        book.record(graded(submission(), row(), row("b", "grader fault", 0)))
        assert not book.is_current(submission(), "c1")


class TestUnreadableFiles:
    def broken(self, name: str, notebook: str = ""):
        return replace(submission(notebook=notebook), path=Path("inbox", name), problem="It is empty.")

    def test_each_is_kept_where_the_notebook_cannot_be_told(self, book):
        for name in ("a.ipynb", "b.ipynb", "b.ipynb"):
            book.record(graded(*unreadable(self.broken(name))))
        assert [(found.notebook, found.points) for found in book.rows()] == [("", None)] * 2
        assert book.is_current(self.broken("a.ipynb"), "c1")
        assert not book.is_current(self.broken("c.ipynb"), "c1")

    def test_the_complaint_goes_when_that_file_can_be_read(self, book):
        book.record(graded(*unreadable(self.broken("a.ipynb"))))
        book.record(graded(*unreadable(self.broken("b.ipynb"))))
        book.record(graded(replace(self.broken("a.ipynb", "01_tensors"), problem=""), row()))
        assert [(found.notebook, found.exercise) for found in book.rows()] == [
            ("", ""),
            ("01_tensors", "flat_index"),
        ]

    def test_another_notebook_in_the_same_file_takes_nothing_away(self, book):
        for notebook in ("01_tensors", "02_autograd"):
            book.record(graded(self.broken("answers.ipynb", notebook), row()))
        assert len(book.rows()) == 2


class TestMarksGivenByHand:
    def test_one_wins_over_whatever_is_graded_later(self, book):
        book.record(graded(submission(cells=(ONE,)), row(verdict="failed", points=0, reason="No."), row("b")))
        book.override("ann", "01_tensors", "flat_index", 0.5, "half right")
        for verdict in ("failed", "grader fault"):
            book.record(graded(submission(), row(verdict=verdict, points=0, reason="No."), row("b")))
            by_hand, other = Gradebook(book.folder).rows()
            assert (by_hand.points, by_hand.verdict, other.points) == (0.5, verdict, 1)
            assert by_hand.reason == f"Set by hand (half right). The grader said: {verdict}. No."
        assert tables.read_table(book.export()[1])[0]["points"] == "1.5"

    def test_a_zero_is_a_mark_and_the_last_word_counts(self, book):
        book.record(graded(submission(), row(verdict="grader fault", points=0)))
        book.override("ann", "01_tensors", "flat_index", 1)
        book.override("ann", "01_tensors", "flat_index", 0)
        assert only(book.rows()).points == 0

    def test_it_may_be_written_into_the_table(self, book):
        book.record(graded(submission(), row()))
        with closing(sqlite3.connect(book.path, isolation_level=None)) as other:
            other.execute("INSERT INTO overrides VALUES ('ann', '01_tensors', 'flat_index', 7, '')")
        assert only(book.rows()).points == 7

    def test_it_counts_where_nothing_was_handed_in(self, book):
        book.record(graded(submission(), row(max_points=2)))
        book.override("zoe", "01_tensors", "flat_index", 1, "said it at the board")
        found = book.rows()[1]
        assert (found.student, found.points, found.max_points, found.attempts) == ("zoe", 1, 2, 0)
        assert tables.read_table(book.export()[2])[-1]["01_tensors"] == "1"

    def test_it_stays_when_the_file_turns_out_unreadable(self, book):
        book.record(graded(submission(), row()))
        book.override("ann", "01_tensors", "flat_index", 1)
        book.record(graded(*unreadable(submission(problem="It is empty."))))
        assert [(found.exercise, found.points) for found in book.rows()] == [("", None), ("flat_index", 1)]


class TestTables:
    def record_names(self, book) -> None:
        for name in HARD_NAMES.values():
            said = row(student=name, reason=name, misconception="m", diagnosis=name)
            book.record(graded(submission(name, cells=(ONE,)), replace(said, reason=name or "-")))

    def test_the_long_form_reads_back_equal(self, book):
        self.record_names(book)
        kinds = {"points": float, "max_points": float, "attempts": int}
        read = [
            Row(**{name: kinds.get(name, str)(text) for name, text in line.items()})
            for line in tables.read_table(book.export()[0])
        ]
        assert len(read) == len(HARD_NAMES)
        assert [replace(line, reason="") for line in read] == [
            replace(found, reason="") for found in book.rows()
        ]
        assert {line.student for line in read} == set(HARD_NAMES.values())

    @pytest.mark.parametrize(("place", "column"), [(1, "student"), (2, "Student"), (2, "SIS Login ID")])
    def test_the_names_of_the_other_forms_read_back_equal(self, book, place, column):
        self.record_names(book)
        read = [line[column] for line in tables.read_table(book.export()[place])]
        assert sorted(read[place - 1 :]) == sorted(HARD_NAMES.values())

    def test_no_cell_is_a_formula(self, book):
        self.record_names(book)
        for path in book.export():
            with path.open(encoding="utf-8-sig", newline="") as file:
                cells = [cell for line in csv.reader(file) for cell in line]
            assert len(cells) > len(HARD_NAMES)
            assert not [cell for cell in cells if cell[:1] in tuple("=+-@\t\r\n＝＋－＠")]

    def test_whatever_text_goes_in_is_read_again(self, tmp_path):
        choice, letters = random.Random(0), "=+-@'\"',;\t\r\n a0＝é👩"
        texts = ["".join(choice.choices(letters, k=choice.randint(0, 6))) for _ in range(2000)]
        path = files.replace_file(
            tmp_path / "t.csv", tables.csv_text((["n", "text"], [[0, t] for t in texts]))
        )
        assert [line["text"] for line in tables.read_table(path)] == texts

    def test_spreadsheets_are_told_the_encoding_and_canvas_is_spared_the_mark(self, book):
        book.record(graded(submission(), row()))
        assert [path.read_bytes()[:3] == b"\xef\xbb\xbf" for path in book.export()] == [True, True, False]

    def test_no_mark_is_empty_and_a_zero_is_a_zero(self, book):
        book.record(graded(submission(), row("a", "failed", 0), row("b", "grader fault", 0, max_points=2)))
        book.record(graded(submission("ben"), row("a", "not attempted", 0), row("b", points=2, max_points=2)))
        long, wide, canvas = (tables.read_table(path) for path in book.export())
        assert [line["points"] for line in long] == ["0", "", "0", "2"]
        ann = {"student": "ann", "01_tensors a": "0", "01_tensors b": ""}
        assert wide[0] == {**ann, "points": "0", "max_points": "1", "ungraded": "1"}
        assert [line["01_tensors"] for line in canvas] == ["3", "", "2"]

    def test_a_student_with_nothing_but_a_broken_file_has_a_line_without_a_sum(self, book):
        book.record(graded(*unreadable(submission(notebook="", problem="It is empty."))))
        book.record(graded(submission("ben", "02_autograd"), row("a", points=0.1), row("b", points=0.2)))
        _, wide, canvas = (tables.read_table(path) for path in book.export())
        assert wide[0] == {
            "student": "ann", "02_autograd a": "", "02_autograd b": "",
            "points": "", "max_points": "", "ungraded": "1",
        }  # fmt: skip
        assert wide[1]["points"] == "0.3"
        assert [(line["Student"].strip(), line["02_autograd"]) for line in canvas] == [
            ("Points Possible", "2"),
            ("ann", ""),
            ("ben", "0.3"),
        ]

    def test_canvas_gets_its_own_columns(self, book):
        book.record(graded(submission(), row()))
        first, second, third = book.export()[2].read_text().splitlines()
        assert first == "Student,ID,SIS User ID,SIS Login ID,Section,01_tensors"
        assert second == "    Points Possible,,,,,1"
        assert third == "ann,,,ann,,1"

    def test_a_notebook_that_was_not_handed_in_is_empty(self, book):
        for student, notebook in [("ann", "01_tensors"), ("ben", "02_autograd")]:
            book.record(graded(submission(student, notebook), row()))
        canvas = tables.read_table(book.export()[2])
        assert [(line["01_tensors"], line["02_autograd"]) for line in canvas[1:]] == [("1", ""), ("", "1")]

    def test_the_columns_follow_the_notebooks(self):
        rows = room(3, ("01_tensors", "00_start_here"))
        header, lines = tables.wide_form(rows)
        assert header[1:3] == ["00_start_here first_prediction (prediction)", "00_start_here count_elements"]
        assert header[3] == "01_tensors view_write (prediction)"
        assert [len(line) for line in lines] == [len(header)] * len({found.student for found in rows})

    def test_an_empty_gradebook_has_headers(self, book):
        assert [len(path.read_text(encoding="utf-8-sig").splitlines()) for path in book.export()] == [1, 1, 2]

    def test_a_failed_export_leaves_the_old_file_and_nothing_else(self, book, monkeypatch):
        book.record(graded(submission(), row()))
        paths = book.export()
        before = [path.read_bytes() for path in paths]
        book.record(graded(submission("ben"), row()))
        listed = sorted(book.folder.iterdir())

        def refuse(*_) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(OutputProblem, match=r"gradebook\.csv can't be written: .* Close the program"):
            book.export()
        assert [path.read_bytes() for path in paths] == before
        assert sorted(book.folder.iterdir()) == listed


def test_a_grader_that_writes_is_waited_for_from_the_start(book, monkeypatch):
    monkeypatch.setattr(gradebook, "BUSY_SECONDS", 0.01)
    with book._transaction(), pytest.raises(OutputProblem, match="locked"):  # nothing is read or written yet
        Gradebook(book.folder)
    assert book.rows() == []


class TestAFileThatIsNoGradebook:
    @pytest.mark.parametrize(
        "content", [b"hello, this is no database at all" * 100, b"SQLite format 3\0" * 50]
    )
    def test_it_is_refused_and_left_alone(self, tmp_path, content):
        path = tmp_path / "gradebook.sqlite"
        path.write_bytes(content)
        with pytest.raises(OutputProblem, match="choose another output folder"):
            Gradebook(tmp_path)
        assert path.read_bytes() == content

    @pytest.mark.parametrize("sql", ["PRAGMA user_version = 99", "CREATE TABLE other (x)"])
    def test_so_is_that_of_a_newer_version_or_another_program(self, tmp_path, sql):
        with closing(sqlite3.connect(tmp_path / "gradebook.sqlite", isolation_level=None)) as other:
            other.execute(sql)
        content = (tmp_path / "gradebook.sqlite").read_bytes()
        with pytest.raises(OutputProblem, match="no gradebook that this version"):
            Gradebook(tmp_path)
        assert (tmp_path / "gradebook.sqlite").read_bytes() == content

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(OutputProblem, match="can't be made"):
            Gradebook(tmp_path / "file")


@pytest.mark.skipif(os.name != "posix", reason="forks, signals and limits of POSIX")
class TestRealProcesses:
    @pytest.fixture(scope="class")
    @staticmethod
    def scenes(tmp_path_factory) -> dict:
        folder = tmp_path_factory.mktemp("scenes")
        done = subprocess.run(
            [sys.executable, "-m", "tests.grading.processes", str(folder)],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    def test_a_kill_at_any_statement_leaves_the_older_version_whole(self, scenes):
        scene = scenes["killed_at_every_statement"]
        assert len(scene["kept"]) > 60
        assert all(scene["kept"])
        assert scene["journals"] > 10  # pages of an unfinished transaction were in the file
        assert scene["in the end"] == 60

    def test_a_killed_and_resumed_grader_makes_the_tables_of_an_undisturbed_one(self, scenes):
        scene = scenes["killed_and_resumed"]
        assert 6 <= scene["seen"] < 30
        assert scene["whole"] == [True] * 6
        assert scene["lines"] == 3
        assert scene["equal"]

    def test_graders_side_by_side_lose_no_row(self, scenes):
        assert scenes["side_by_side"] == {"students": [16] * 10, "rows": [48] * 10}

    def test_a_full_disk_is_said_and_costs_nothing(self, scenes):
        assert "See that the disk is not full" in scenes["full_disk"]["said"]
        assert scenes["full_disk"]["kept"]


class TestFileNames:
    def test_they_are_safe_and_all_different(self):
        names = [*HARD_NAMES.values(), "ann", "Ann", "ANN", "con", "nul.txt", "..", ".", "a.", "a b", "a_b"]
        made = [files.file_name(name) for name in names]
        safe = {*string.ascii_letters, *string.digits, *"_@-.~"}
        assert len({name.lower() for name in made}) == len(names)
        assert all(set(name) <= safe and len(name) <= 80 for name in made)
        assert not [name for name in made if name.startswith(".") or name.endswith(".")]
        assert not {name.split(".")[0] for name in made} & {"con", "nul"}

    @pytest.mark.parametrize("name", ["ann", "01_tensors", "ann.lee@example.org", "s-12"])
    def test_plain_ones_stay(self, name):
        assert files.file_name(name) == name
