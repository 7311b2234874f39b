"""What learners get: a zip from which no answer can be read, and in which everything still works."""

from __future__ import annotations

import ast
import functools
import io
import json
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import nbformat
import pytest

from course_lib import exercises, sealed, selfcheck
from course_lib.grading import release
from tests.notebooks import NAMES, ROOT, errors, half_solved, run, solved, untouched

GRAM = 20
TRIVIAL = 25  # characters; `return x.view(2, 3)` is what anybody writes

# Lines of the engine that an answer has as well: how PyTorch wants a mode, a fork of its generator or a storage.
IDIOMS = {
    "result = func(*args, **(kwargs or {}))",
    "return func(*args, **(kwargs or {}))",
    "with torch.random.fork_rng(devices=[]):",
    "storage = tensor.untyped_storage()",
    "torch.set_grad_enabled(True)",
    "generator = torch.Generator().manual_seed(1)",
    "generator.manual_seed(seed)",
    "with ExitStack() as stack:",
}


@pytest.fixture(scope="module")
def content() -> bytes:
    return release.archive()


@pytest.fixture(scope="module")
def copy(content, tmp_path_factory) -> Path:
    """A released copy as a learner unpacks it."""
    folder = tmp_path_factory.mktemp("learner")
    zipfile.ZipFile(io.BytesIO(content)).extractall(folder)
    return folder / release.FOLDER


def python(copy: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """Python in a released copy; nothing of the whole course can be imported."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "", **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True
    )


# ---- nothing gives an answer away --------------------------------------------------------------------------------


def lines_of(room: str, decorator: str = "") -> set[str]:
    """The lines of the answers in a room, of those with this decorator if one is named, without their docstrings:
    a statement is for everybody."""
    found = set()
    for path in (ROOT / "course_lib" / room).glob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and decorator in decorators(node):
                found |= body_lines(node, source.splitlines())
    return found


def decorators(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    called = [getattr(one, "func", one) for one in node.decorator_list]
    return {"", *(getattr(one, "attr", "") for one in called)}


def body_lines(node: ast.AST, lines: list[str]) -> set[str]:
    hidden = set()
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(inner):
            hidden |= set(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
    return {lines[n - 1].strip() for n in range(node.lineno, node.end_lineno + 1) if n not in hidden}


@functools.cache
def shown_to_everybody() -> str:
    """The demonstrations and the stubs, taken from the solved notebooks."""
    sources = [cell.source for name in NAMES for cell in solved(name).cells]
    return re.sub(r"### BEGIN SOLUTION.*?### END SOLUTION", "", "\n".join(sources), flags=re.DOTALL)


def telling(lines: set[str]) -> set[str]:
    shown = shown_to_everybody()
    return {line for line in lines - IDIOMS if len(line) > TRIVIAL and line not in shown}


@functools.cache
def secrets() -> dict[str, set[str]]:
    """Everything that would give something away, by what it is."""
    asked, questions = exercises.all_exercises().values(), exercises.all_questions().values()
    misconceptions = [m for exercise in asked for m in exercise.misconceptions]
    return {
        "answers": telling(lines_of("reference")),
        "alternatives": telling(lines_of("exercises", "alternative")),
        "misconceptions": telling(lines_of("exercises", "misconception")),
        "diagnoses": {m.sentence for m in misconceptions},
        "reasons": {exercise.why for exercise in asked},
        "hints": {hint for exercise in asked for hint in exercise.hints},
        "replies": {
            reply for question in questions for reply in question.replies.values() if len(reply) > TRIVIAL
        },
        "letters": {
            f'predict("{question.name}", "{question.answer}")'
            for question in questions
            if len(question.name) > 6
        },
    }


def everything_in(folder: Path) -> str:
    """What grep sees of a folder, and the sources of notebooks as a person sees them."""
    texts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            texts.append(path.read_bytes().decode("utf-8", "replace"))
        if path.suffix == ".ipynb":
            texts += [cell.source for cell in nbformat.read(path, as_version=4).cells]
    return "\n".join(texts)


def found_in(haystack: str, needles: Iterable[str]) -> list[str]:
    """The needles that occur in the haystack, wherever in a line; in one pass, by how they begin."""
    begin: dict[str, list[str]] = {}
    for needle in needles:
        begin.setdefault(needle[:GRAM], []).append(needle)
    places = (at for at in range(len(haystack) - GRAM) if haystack[at : at + GRAM] in begin)
    hits = {n for at in places for n in begin[haystack[at : at + GRAM]] if haystack.startswith(n, at)}
    return sorted(hits)


def test_no_line_of_an_answer_is_in_a_released_copy(copy):
    kinds = secrets()
    assert all(len(kind) > 50 for kind in kinds.values()) and len(kinds) == 8
    found = found_in(everything_in(copy), set().union(*kinds.values()))
    assert not found, "\n".join(found)


def test_the_leak_test_finds_a_leak(tmp_path):
    leaked = [sorted(kind)[7] for kind in secrets().values()]
    (tmp_path / "leak.py").write_text(
        "".join(f"    {secret}  # here\n" for secret in leaked), encoding="utf-8"
    )
    assert set(leaked) <= set(found_in(everything_in(tmp_path), set().union(*secrets().values())))


def test_only_what_learners_need_is_in_the_zip(content):
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert all(name.startswith(f"{release.FOLDER}/") for name in names)
    below = {name.split("/")[1] for name in names}
    assert below <= {"course_lib", "notebooks", "README.md", *release.PLAIN}
    assert not any(
        re.search(r"__pycache__|\.pyc|/\.|\.sqlite|/tests?/|solutions|workbook/", name) for name in names
    )


def test_released_notebooks_hold_no_outputs_and_no_attachments(copy):
    for path in (copy / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs") and not cell.get("execution_count") and not cell.get("attachments")


def test_the_sealed_file_is_no_archive(copy):
    content = (copy / "course_lib" / "sealed.bin").read_bytes()
    with pytest.raises(zlib.error):
        zlib.decompress(content)
    assert not re.search(rb"[A-Za-z_ ]{16}", content)


def test_no_notebook_asks_for_the_source_of_an_answer():
    """It is not to be had in a released copy, where `passing` gives the course's answer."""
    for name in NAMES:
        text = (ROOT / "solutions" / f"{name}.py").read_text(encoding="utf-8")
        assert "getsource" not in text and "linecache" not in text


PROBE = """
import inspect, linecache, traceback
from course_lib import exercises, passing, solution

for exercise in exercises.all_exercises().values():
    for answer in [exercise.reference, *(m.answer for m in exercise.misconceptions), *exercise.alternatives]:
        try:
            found = inspect.getsource(answer)
        except (OSError, TypeError):
            continue
        raise AssertionError(found)
module = inspect.getmodule(exercises.exercise("flat_index").reference)
assert linecache.getlines(module.__file__, vars(module)) == []
try:
    exercises.exercise("flat_index").reference(1, 2, 3)
except TypeError:
    trace = traceback.format_exc()
assert "return" not in trace and "for " not in trace, trace
solution("flat_index")
print(passing("flat_index")((1, 2), (4, 1), 0))
"""


def test_no_source_can_be_had_in_a_released_copy(copy, tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    done = python(copy, str(tmp_path / "probe.py"), COURSE_LIB_PROGRESS=str(tmp_path / "p.sqlite"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Your instructor gives the solution of flat_index out later." in done.stdout
    assert done.stdout.splitlines()[-1] == "6"


def test_nothing_is_left_behind_by_use(copy, tmp_path):
    python(copy, "-c", "from course_lib import check, exercises; exercises.all_exercises()")
    left = {path.name.split(".")[0] for path in copy.rglob("*.pyc")}
    assert "session" in left and "tensors" not in left
    assert found_in(everything_in(copy), secrets()["answers"]) == []


# ---- everything still works --------------------------------------------------------------------------------------


def judged(copy: Path, notebook, path: Path) -> tuple[int, dict]:
    nbformat.write(notebook, path)
    done = python(copy, "-m", "course_lib", "check", str(path), "--json")
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "state"),
    [("00_start_here", untouched), ("01_tensors", half_solved), ("01_tensors", solved)],
    ids=["untouched", "half solved", "solved"],
)
def test_check_gives_the_same_verdicts_as_the_whole_course(name, state, copy, tmp_path):
    code, found = judged(copy, state(name), tmp_path / f"{name}.ipynb")
    cells = [cell.source for cell in state(name).cells if cell.cell_type == "code"]
    assert found["items"] == [vars(line) for line in selfcheck.judge_cells(cells, name)]
    assert code == (0 if state is solved else 1)


@pytest.mark.parametrize("name", ["00_start_here", "01_tensors"])
def test_a_released_notebook_runs_from_top_to_bottom_unsolved(name, copy, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.notebooks.ROOT", copy)
    monkeypatch.setenv("COURSE_LIB_PROGRESS", str(tmp_path / "progress.sqlite"))
    notebook = nbformat.read(copy / "notebooks" / f"{name}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("import course_lib; print(course_lib.__file__)"))
    done = run(notebook, tmp_path)
    assert errors(done) == []
    assert done.cells[-1].outputs[0].text.strip() == str(copy / "course_lib" / "__init__.py")


def test_hint_predict_and_progress_work(copy, tmp_path):
    probe = tmp_path / "probe.py"
    probe.write_text('from course_lib import *\nhint("flat_index")\npredict("view_write", "a")\nprogress()\n')
    done = python(copy, str(probe), COURSE_LIB_PROGRESS=str(tmp_path / "p.sqlite"))
    assert done.returncode == 0, done.stderr[-3000:]
    first = exercises.exercise("flat_index").hints[0]
    assert first[:30] in done.stdout and "You predicted a" in done.stdout and "01 Tensors" in done.stdout


@pytest.mark.parametrize("command", [["build"], ["test"], ["release", "-o", "x.zip"]])
def test_what_needs_the_solutions_says_so(command, copy):
    done = python(copy, "-m", "course_lib", *command)
    assert done.returncode == 2 and "made for learners" in done.stderr


def test_the_whole_course_is_not_sealed():
    assert not sealed.is_sealed()


# ---- making it ---------------------------------------------------------------------------------------------------


def test_the_same_course_gives_the_same_bytes(content):
    assert release.archive() == content


def test_some_notebooks_only(tmp_path, capsys):
    target = tmp_path / "new folder" / "week1.zip"
    assert release.main(target, ["01_tensors", "00_start_here.ipynb"]) == 0
    names = [name for name in zipfile.ZipFile(target).namelist() if name.endswith(".ipynb")]
    assert [Path(name).stem for name in names] == ["00_start_here", "01_tensors"]
    assert "2 files" not in capsys.readouterr().out


def test_an_unknown_notebook_is_refused(tmp_path, capsys):
    assert release.main(tmp_path / "x.zip", ["99_magic"]) == 2
    assert "99_magic" in capsys.readouterr().out and not (tmp_path / "x.zip").exists()


def with_output(notebook):
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.outputs = [nbformat.v4.new_output("stream", text="6")]


def with_attachment(notebook):
    notebook.cells[0]["attachments"] = {"solution.png": {"image/png": "iVBORw0KGgo="}}


def with_answer(notebook):
    answers = {
        c.metadata.exercise: c.source for c in solved("00_start_here").cells if "exercise" in c.metadata
    }
    for cell in notebook.cells:
        if "exercise" in cell.metadata:
            cell.source = re.sub(r"### (BEGIN|END) SOLUTION", "", answers[cell.metadata.exercise])


def with_markers(notebook):
    notebook.cells.append(nbformat.v4.new_code_cell("### BEGIN SOLUTION\nx = 1\n### END SOLUTION"))


def with_prediction(notebook):
    for cell in notebook.cells:
        cell.source = cell.source.replace(
            'predict("first_prediction", ...)', 'predict("first_prediction", "b")'
        )


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (with_output, "outputs"),
        (with_attachment, "attachments"),
        (with_answer, "answers count_elements"),
        (with_markers, "a solution"),
        (with_prediction, "answers first_prediction"),
    ],
)
def test_a_notebook_that_gives_something_away_is_refused(spoil, word, tmp_path):
    notebook = nbformat.from_dict(untouched("00_start_here"))
    spoil(notebook)
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "00_start_here.ipynb")
    with pytest.raises(release.NotReleased, match=word):
        release.archive(["00_start_here"], tmp_path)
