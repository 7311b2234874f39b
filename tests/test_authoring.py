"""Two notebooks from one source: what is filled in, taken out and refused, and that bytes repeat."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from course_lib import authoring
from course_lib.authoring import AuthorError, Topic, learner_notebook, solved_notebook, to_text
from tests.notebooks import nbval

SANITIZE = Path(__file__).with_name("sanitize.cfg")

SOURCE = '''\
# %% [markdown]
# # A sample
#
# After this notebook you can:
#
# {{objectives}}

# %%
check = predict = print

# %% [markdown]
# First think.
#
# {{predict sum}}

# %%
predict("sum", "b")

# %% objective="sample.add"
1 + 1

# %% [markdown]
# {{exercise double}}
#
# Then check.

# %% exercise="double"
def double(x: int) -> int:
    """Return twice `x`."""
    ### BEGIN SOLUTION
    return x + x
    ### END SOLUTION

# %%
check(double)

# %% [markdown]
# {{exercise Tally}}

# %% exercise="Tally"
class Tally:
    """Count calls of `add`."""

    def __init__(self) -> None:
        ### BEGIN SOLUTION
        self.count = 0
        ### END SOLUTION

    def add(self) -> int:
        """Add one and return the count."""
        ### BEGIN SOLUTION
        self.count += 1
        if self.count > 9:
            raise OverflowError
        return self.count
        ### END SOLUTION

# %%
check(Tally)
'''


def double(x: int) -> int:
    """Said differently in the reference."""
    return x + x


class Tally:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        if self.count > 9:
            raise OverflowError
        return self.count


def exercise(reference: Callable, **changes) -> SimpleNamespace:
    facts = {
        "reference": reference,
        "name": reference.__name__,
        "number": "09.1",
        "title": f"Write {reference.__name__}",
        "difficulty": 2,
        "minutes": 5,
        "points": 1,
        "stretch": False,
        "hints": ("where", "what", "nearly"),
    }
    return SimpleNamespace(**facts | changes)


def topic(**changes) -> Topic:
    question = SimpleNamespace(
        name="sum",
        text="What is shown?\n\n```python\n1 + 1\n```",
        choices={"a": "`1`", "b": "`2`"},
        answer="b",
    )
    sample = Topic(
        exercises={
            "double": exercise(double),
            "Tally": exercise(Tally, number="09.2", stretch=True, points=2),
        },
        questions={"sum": question},
        objectives={"sample.add": "add two numbers", "sample.count": "count"},
    )
    return replace(sample, **changes)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_source(text: str = SOURCE, name: str = "09_sample") -> Path:
        path = tmp_path / "solutions" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_source


def sources(notebook: nbformat.NotebookNode, kind: str = "code") -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def cell_of(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    (cell,) = (cell for cell in notebook.cells if cell.metadata.get("exercise") == name)
    return cell


class TestLearnerNotebook:
    def test_a_solution_becomes_a_stub(self, write) -> None:
        cell = cell_of(learner_notebook(write(), topic()), "double")
        assert cell.source == (
            "def double(x: int) -> int:\n"
            '    """Return twice `x`."""\n'
            '    raise NotImplementedError("your turn: double")'
        )

    def test_every_region_of_a_class_becomes_a_stub(self, write) -> None:
        source = cell_of(learner_notebook(write(), topic()), "Tally").source
        methods = ast.parse(source).body[0].body[1:]
        assert [type(method.body[-1]) for method in methods] == [ast.Raise, ast.Raise]
        assert source.count('        raise NotImplementedError("your turn: Tally")') == 2
        assert "OverflowError" not in source
        assert "Add one and return the count" in source

    def test_a_prediction_is_left_open(self, write) -> None:
        assert 'predict("sum", ...)' in sources(learner_notebook(write(), topic()))

    def test_nothing_of_the_answers_is_left_and_nothing_is_executed(self, write) -> None:
        text = to_text(learner_notebook(write(), topic()))
        for secret in ("SOLUTION", "x + x", "self.count", '\\"b\\")', "{{"):
            assert secret not in text
        notebook = nbformat.reads(text, as_version=4)
        assert all(cell.outputs == [] for cell in notebook.cells if cell.cell_type == "code")


LOCKED_TEST = {"grade": True, "locked": True, "solution": False, "schema_version": 3}


class TestSolvedNotebook:
    def test_it_is_the_same_but_for_answers(self, write) -> None:
        learner, solved = learner_notebook(write(), topic()), solved_notebook(write(), topic())
        assert [cell.id for cell in learner.cells] == [cell.id for cell in solved.cells]
        assert [cell.metadata for cell in learner.cells] == [cell.metadata for cell in solved.cells]
        assert sources(learner, "markdown") == sources(solved, "markdown")
        pairs = zip(sources(learner), sources(solved), strict=True)
        assert sum(left != right for left, right in pairs) == 3
        assert "    return x + x" in cell_of(solved, "double").source
        assert 'predict("sum", "b")' in sources(solved)

    def test_metadata(self, write) -> None:
        notebook = solved_notebook(write(), topic())
        nbformat.validate(notebook)
        assert notebook.metadata.course_lib == {"notebook": "09_sample"}
        assert notebook.metadata.kernelspec.name == "python3"
        assert [cell.metadata for cell in notebook.cells if cell.metadata] == [
            {"objective": "sample.add"},
            {"exercise": "double"},
            {"nbgrader": {**LOCKED_TEST, "grade_id": "double", "points": 1}},
            {"exercise": "Tally"},
            {"nbgrader": {**LOCKED_TEST, "grade_id": "Tally", "points": 2}},
        ]


class TestPlaceholders:
    def test_an_exercise_becomes_its_card(self, write) -> None:
        prose = sources(learner_notebook(write(), topic()), "markdown")
        assert prose[2] == (
            "### Exercise 09.1 · Write double\n\n"
            "●●○ difficulty 2 of 3 · about 5 minutes · core · 1 point\n\nThen check."
        )
        assert prose[3].endswith("about 5 minutes · stretch · 2 points")

    def test_a_prediction_becomes_its_question(self, write) -> None:
        prose = sources(learner_notebook(write(), topic()), "markdown")[1]
        assert prose == (
            "First think.\n\n**Predict.** What is shown?\n\n```python\n1 + 1\n```\n\n"
            "- **a** · `1`\n- **b** · `2`"
        )

    def test_objectives_become_a_list(self, write) -> None:
        prose = sources(learner_notebook(write(), topic()), "markdown")[0]
        assert prose.endswith("can:\n\n- add two numbers\n- count")


class TestIds:
    def test_they_do_not_move_when_a_cell_is_put_in(self, write) -> None:
        before = solved_notebook(write(), topic())
        after = solved_notebook(write("# %% [markdown]\n# News.\n\n" + SOURCE), topic())
        assert [cell.id for cell in after.cells[1:]] == [cell.id for cell in before.cells]

    def test_an_exercise_keeps_its_id_when_it_is_reworded(self, write) -> None:
        before = solved_notebook(write(), topic())
        after = solved_notebook(write(SOURCE.replace("Return twice", "Return two times")), topic())
        assert cell_of(before, "double").source != cell_of(after, "double").source
        assert [cell.id for cell in before.cells] == [cell.id for cell in after.cells]

    def test_equal_cells_differ_and_so_do_notebooks(self, write) -> None:
        twice = solved_notebook(write(SOURCE + "\n# %%\n1 + 1\n\n# %%\n1 + 1\n"), topic())
        other = solved_notebook(write(name="08_other"), topic())
        ids = [cell.id for notebook in (twice, other) for cell in notebook.cells]
        assert len(set(ids)) == len(ids)


def edit(old: str, new: str) -> Callable[[str], str]:
    def change(source: str) -> str:
        assert old in source
        return source.replace(old, new, 1)

    return change


CHECK = "# %%\ncheck(double)\n"
CARD = "# {{exercise double}}\n"

REFUSED_SOURCES = {
    "no statement": (edit('    """Return twice `x`."""\n', ""), "no statement"),
    "a statement inside the solution": (
        edit(
            '    """Return twice `x`."""\n    ### BEGIN SOLUTION\n',
            '    ### BEGIN SOLUTION\n    """Return twice `x`."""\n',
        ),
        "no statement",
    ),
    "no solution region": (
        edit("    ### BEGIN SOLUTION\n    return x + x\n    ### END SOLUTION\n", "    return x + x\n"),
        "no solution region",
    ),
    "no END": (edit("    ### END SOLUTION\n", ""), "there is no '### END SOLUTION'"),
    "no BEGIN": (edit("    ### BEGIN SOLUTION\n", ""), "where '### BEGIN SOLUTION' should"),
    "BEGIN twice": (edit("    return x + x\n", "    ### BEGIN SOLUTION\n    return x + x\n"), "where"),
    "a marker misspelled": (edit("### BEGIN SOLUTION", "# begin solution"), "'# begin solution' stands"),
    "a region around a function": (
        edit(
            "def double(x: int) -> int:", "### BEGIN SOLUTION\n### END SOLUTION\ndef double(x: int) -> int:"
        ),
        "not inside a function",
    ),
    "markers outside an exercise": (
        edit("1 + 1\n", "if True:\n    ### BEGIN SOLUTION\n    1 + 1\n    ### END SOLUTION\n"),
        "outside an exercise cell",
    ),
    "another body": (edit("return x + x", "return 2 * x"), "differs from the reference"),
    "another signature": (edit("x: int)", "x)"), "differs from the reference"),
    "not Python": (edit("return x + x", "return x +"), "not valid Python"),
    "another name": (edit("def double", "def twice"), "does not define double"),
    "no check": (edit(CHECK, ""), "the next code cell is not check(double)"),
    "a check of another": (edit(CHECK, "# %%\ncheck(Tally)\n"), "the next code cell is not check(double)"),
    "code before the check": (
        edit(CHECK, "# %%\n1 + 1\n\n" + CHECK),
        "the next code cell is not check(double)",
    ),
    "no last check": (edit("# %%\ncheck(Tally)\n", ""), "the next code cell is not check(Tally)"),
    "a card twice": (edit(CARD, CARD + "#\n" + CARD), "stands there 2 times"),
    "no card": (edit(CARD, ""), "stands there never"),
    "a card after its cell": (lambda source: edit(CARD, "")(source) + "\n# %% [markdown]\n" + CARD, "before"),
    "an unknown exercise in prose": (
        edit("{{exercise double}}", "{{exercise triple}}"),
        "no exercise 'triple'",
    ),
    "an unknown exercise in code": (edit('exercise="double"', 'exercise="triple"'), "no exercise 'triple'"),
    "an unknown question in prose": (edit("{{predict sum}}", "{{predict product}}"), "no predict 'product'"),
    "an unknown question in code": (edit('predict("sum"', 'predict("product"'), "no question 'product'"),
    "a question without its cell": (edit('# %%\npredict("sum", "b")\n', ""), "its cell never"),
    "a cell without its question": (edit("# {{predict sum}}\n", ""), "stands there never"),
    "a wrong prediction": (edit('"sum", "b"', '"sum", "a"'), "the answer is not 'a'"),
    "a prediction among code": (
        edit('predict("sum", "b")', 'predict("sum", "b")\n1 + 1'),
        "among other code",
    ),
    "an unknown objective": (edit("sample.add", "sample.ad"), "no objective 'sample.ad'"),
    "an unknown option": (edit('objective="', 'objectives="'), "unknown option 'objectives'"),
    "a placeholder that is none": (edit("{{objectives}}", "{{goals}}"), "{{goals}} cannot be filled in"),
    "a placeholder in a sentence": (edit("Then check.", "Do {{exercise double}}."), "cannot be filled in"),
}

REFUSED_EXERCISES = {
    "no title": ({"title": ""}, "a title"),
    "no difficulty": ({"difficulty": None}, "a difficulty"),
    "a difficulty of 4": ({"difficulty": 4}, "a difficulty"),
    "no minutes": ({"minutes": 0}, "the minutes"),
    "two hints": ({"hints": ("where", "what")}, "three hints"),
    "an empty hint": ({"hints": ("where", "", "nearly")}, "three hints"),
}


class TestRefusals:
    @pytest.mark.parametrize(("change", "message"), REFUSED_SOURCES.values(), ids=REFUSED_SOURCES.keys())
    def test_a_source(self, write, change: Callable[[str], str], message: str) -> None:
        with pytest.raises(AuthorError, match=re.escape(message)) as refusal:
            learner_notebook(write(change(SOURCE)), topic())
        assert "solutions/09_sample.py" in str(refusal.value)
        with pytest.raises(AuthorError, match=re.escape(message)):
            solved_notebook(write(change(SOURCE)), topic())

    @pytest.mark.parametrize(("facts", "message"), REFUSED_EXERCISES.values(), ids=REFUSED_EXERCISES.keys())
    def test_an_exercise(self, write, facts: dict, message: str) -> None:
        exercises = topic().exercises | {"double": exercise(double, **facts)}
        with pytest.raises(AuthorError, match=f"double lacks {message}"):
            learner_notebook(write(), topic(exercises=exercises))

    def test_an_exercise_that_is_never_shown(self, write) -> None:
        exercises = topic().exercises | {"exercise": exercise(exercise)}
        with pytest.raises(
            AuthorError, match=r"\{\{exercise exercise\}\} stands there never and its cell never"
        ):
            learner_notebook(write(), topic(exercises=exercises))

    def test_a_message_names_the_cell_and_shows_the_difference(self, write) -> None:
        with pytest.raises(AuthorError) as refusal:
            learner_notebook(write(SOURCE.replace("return x + x", "return 2 * x")), topic())
        message = str(refusal.value)
        assert message.startswith("solutions/09_sample.py, cell 7 (def double(x: int) -> int:): ")
        assert "-    return x + x\n+    return 2 * x" in message

    def test_comments_and_docstrings_may_differ_from_the_reference(self, write) -> None:
        commented = SOURCE.replace("return x + x", "# twice\n    return (x + x)")
        assert "# twice" in cell_of(solved_notebook(write(commented), topic()), "double").source

    def test_a_topic_without_exercises_module(self, write) -> None:
        with pytest.raises(
            AuthorError, match=r"there is no course_lib\.exercises\.sample\. Write that module"
        ):
            learner_notebook(write())


FLAKY = (
    SOURCE
    + """
# %%
import json
import sys
import warnings

import ipywidgets
import matplotlib.pyplot as plt
from tqdm import tqdm

# %%
_ = plt.plot([1, 4, 9])

# %%
ipywidgets.IntSlider(description="offset", max=3)

# %% tags=["nbval-ignore-output"]
_ = ipywidgets.interact(lambda offset: print("offset", offset), offset=(0, 3))

# %%
object()

# %%
warnings.warn("look out")

# %%
for _ in tqdm(range(3)):
    print("out")
    print("err", file=sys.stderr)

# %%
print({"storage", "stride", "offset"})

# %% tags=["raises-exception"]
json.loads("{")
"""
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a course whose one notebook was built twice, as `first` and as `09_sample`."""
    root = tmp_path_factory.mktemp("course")
    (root / "solutions").mkdir()
    (root / "solutions" / "09_sample.py").write_text(FLAKY, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authoring, "topic_of", lambda path: topic())
        assert authoring.build(root=root) == 0
        for folder in ("notebooks", "solutions"):
            (root / folder / "09_sample.ipynb").rename(root / folder / "first")
        assert authoring.build(["09_sample"], root=root) == 0
    return root


def run_nbval(notebook: Path, scratch: Path) -> subprocess.CompletedProcess:
    options = ("--nbval", "--nbval-sanitize-with", str(SANITIZE))
    return nbval(notebook, *options, environment=authoring.environment(scratch))


class TestExecuted:
    @pytest.fixture
    def solved(self, built: Path) -> nbformat.NotebookNode:
        return nbformat.read(built / "solutions" / "09_sample.ipynb", as_version=4)

    def test_the_same_source_gives_the_same_bytes(self, built: Path) -> None:
        for folder in ("notebooks", "solutions"):
            again = (built / folder / "09_sample.ipynb").read_bytes()
            assert again == (built / folder / "first").read_bytes()
            assert again.endswith(b"}\n")
            assert b"\r" not in again
        assert not list(built.glob("*/*.tmp"))

    def test_outputs_are_stored_and_steady(self, solved: nbformat.NotebookNode) -> None:
        text = to_text(solved)
        assert "image/png" in text
        assert "<object at 0x...>" in text
        assert "cell.py:1: UserWarning: look out" in text
        assert "IntSlider(value=0, description='offset', max=3)" in text
        assert re.search(r"json/decoder\.py", text)
        for volatile in (
            "widget-view",
            "model_id",
            "ipykernel_",
            "it/s",
            str(Path.home()),
            sys.prefix,
            "iopub",
        ):
            assert volatile not in text
        assert set(solved.metadata) == {"course_lib", "kernelspec", "language_info"}

    def test_nbval_agrees_and_notices_a_change(self, built: Path, tmp_path: Path) -> None:
        stored = built / "solutions" / "09_sample.ipynb"
        verdict = run_nbval(stored, tmp_path)
        assert verdict.returncode == 0, verdict.stdout
        forged = tmp_path / "forged.ipynb"
        forged.write_text(
            stored.read_text(encoding="utf-8").replace("UserWarning: look", "UserWarning: watch"),
            encoding="utf-8",
        )
        verdict = run_nbval(forged, tmp_path)
        assert verdict.returncode == 1
        assert "1 failed" in verdict.stdout

    def test_nbval_sanitizes_what_the_build_settles(self) -> None:
        pairs = re.findall(r"^regex: (.*)\nreplace: (.*)$", SANITIZE.read_text(), re.MULTILINE)
        assert tuple(pairs) == authoring.VOLATILE

    @pytest.mark.parametrize(
        ("text", "steady"),
        [
            ("<AddBackward0 at 0x7f52de406fe0>", "<AddBackward0 at 0x...>"),
            ("bits 0x3f800000", "bits 0x3f800000"),
            ("/tmp/ipykernel_58/360.py:1: UserWarning", "cell.py:1: UserWarning"),
            (r"C:\Users\me\Temp\ipykernel_58\360.py:1: UserWarning", "cell.py:1: UserWarning"),
            ("100%|##| 3/3 [00:00<00:00, 65196.44it/s]", "100%|##| 3/3 [...]"),
            ("0%| | 0/3 [00:00<?, ?it/s]", "0%| | 0/3 [...]"),
            ("[10:20, 3]", "[...]"),
            ("took 1.5 s, tensor([1.5])", "took 1.5 s, tensor([1.5])"),
            ("/home/me/lib/python3.12/site-packages/torch/_ops.py:9: W", ".../torch/_ops.py:9: W"),
            (
                "\x1b[32m~/.pyenv/versions/3.11.7/lib/python3.11/json/decoder.py",
                "\x1b[32m.../json/decoder.py",
            ),
            ("File ~/course/course_lib/session.py:7", "File course_lib/session.py:7"),
            (r"File D:\course\course_lib\session.py:7", "File course_lib/session.py:7"),
            ("import course_lib/session", "import course_lib/session"),
        ],
    )
    def test_steady_text_stays_steady(self, text: str, steady: str) -> None:
        assert authoring._steady(text) == steady
        assert authoring._steady(steady) == steady


class TestBuild:
    @pytest.fixture(autouse=True)
    def sample_topic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(authoring, "topic_of", lambda path: topic())

    @pytest.mark.parametrize(
        ("code", "reason"),
        [("[][3]", "IndexError: list index out of range"), ("import os; os._exit(1)", "Kernel died")],
        ids=["an exception", "a dead kernel"],
    )
    def test_a_failing_cell_is_named_and_nothing_is_written(
        self, write, tmp_path: Path, capsys, code: str, reason: str
    ) -> None:
        write(SOURCE + f"\n# %%\n{code}\n")
        assert authoring.build(root=tmp_path) == 1
        message = capsys.readouterr().err
        assert f"solutions/09_sample.py, cell 12 ({code}): {reason}" in message
        assert "Nothing was written for 09_sample" in message
        assert not list(tmp_path.glob("*/*.ipynb"))

    def test_a_failure_that_is_announced_must_come(self, write, tmp_path: Path, capsys) -> None:
        write(SOURCE + '\n# %% tags=["raises-exception"]\n1 + 1\n')
        assert authoring.build(root=tmp_path) == 1
        assert "cell 12 (1 + 1): it is tagged raises-exception" in capsys.readouterr().err
        assert not list(tmp_path.glob("*/*.ipynb"))

    def test_output_that_a_widget_catches_must_be_tagged(self, write, tmp_path: Path, capsys) -> None:
        write(SOURCE + "\n# %%\nimport ipywidgets\nwith ipywidgets.Output():\n    print('caught')\n")
        assert authoring.build(root=tmp_path) == 1
        assert "cell 12 (import ipywidgets): a widget catches its output" in capsys.readouterr().err
        assert not list(tmp_path.glob("*/*.ipynb"))

    def test_the_kernel_is_strict_and_has_its_own_progress(self, write, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("COURSE_LIB_PROGRESS", str(tmp_path / "mine"))
        monkeypatch.setenv("TQDM_DISABLE", "1")
        path = write(
            SOURCE + "\n# %%\nimport os\nnames = 'COURSE_LIB_STRICT', 'OMP_NUM_THREADS', 'TQDM_DISABLE'\n"
            "print(*map(os.environ.get, names), os.path.basename(os.getcwd()))\n"
            "print(os.environ['COURSE_LIB_PROGRESS'])\n"
        )
        executed = authoring.execute(solved_notebook(path), path.parent)
        first, progress = executed.cells[-1].outputs[0].text.splitlines()
        assert first == "1 1 None solutions"
        assert progress != str(tmp_path / "mine")

    def test_a_bad_source_does_not_keep_others_from_being_built(self, write, tmp_path: Path, capsys) -> None:
        write(SOURCE.replace("return x + x", "return 2 * x"), name="08_bad")
        write()
        assert authoring.build(execute=False, root=tmp_path) == 1
        assert sorted(path.name for path in tmp_path.glob("*/*.ipynb")) == ["09_sample.ipynb"] * 2
        printed = capsys.readouterr()
        assert "Nothing was written for 08_bad" in printed.err
        assert "wrote notebooks/09_sample.ipynb\nwrote solutions/09_sample.ipynb" in printed.out

    def test_only_what_is_named_is_built(self, write, tmp_path: Path) -> None:
        write(name="08_other")
        write()
        assert authoring.build(["08_other"], execute=False, root=tmp_path) == 0
        assert {path.name for path in tmp_path.glob("*/*.ipynb")} == {"08_other.ipynb"}

    def test_an_unknown_name(self, write, tmp_path: Path, capsys) -> None:
        write()
        assert authoring.build(["9_sample"], execute=False, root=tmp_path) == 1
        assert "no solutions/9_sample.py. Sources are: 09_sample." in capsys.readouterr().err

    def test_without_executing_outputs_stay_while_the_code_stays(self, write, tmp_path: Path, capsys) -> None:
        path = write()
        stored = path.with_suffix(".ipynb")
        executed = solved_notebook(path)
        executed.cells[1].execution_count = 1
        stored.write_text(to_text(executed), encoding="utf-8")

        write(SOURCE.replace("Then check.", "Then check it."))
        assert authoring.build(execute=False, root=tmp_path) == 0
        rebuilt = nbformat.read(stored, as_version=4)
        assert rebuilt.cells[1].execution_count == 1
        assert "Then check it." in stored.read_text(encoding="utf-8")
        assert "without outputs" not in capsys.readouterr().out

        write(SOURCE.replace("1 + 1", "1 + 2"))
        assert authoring.build(execute=False, root=tmp_path) == 0
        assert nbformat.read(stored, as_version=4).cells[1].execution_count is None
        assert "without outputs, because its code is new" in capsys.readouterr().out
