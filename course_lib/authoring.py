"""From one source to two notebooks: solutions/NN_topic.py becomes notebooks/NN_topic.ipynb, which a learner
opens (stubs, no outputs), and solutions/NN_topic.ipynb (solved, executed, outputs stored).

The same source gives the same bytes.  A source that breaks a convention of the course is refused with an
`AuthorError`, and nothing is written for its notebook.  jupytext reads, nbclient executes.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import inspect
import os
import re
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from course_lib.checking import Exercise, Question
    from course_lib.execution import Client

ROOT = Path(__file__).resolve().parent.parent

OPTIONS = {"exercise", "objective", "tags"}  # what may stand after `# %%`
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
LOOKS_LIKE_MARKER = re.compile(r"#.*\b(BEGIN|END)\b.*\bSOLUTION\b", re.IGNORECASE)
PLACEHOLDER = re.compile(r"^\{\{(\w+)(?: (\w+))?\}\}$", re.MULTILINE)
PREDICT_CELL = re.compile(r'predict\("(\w+)", "(\w+)"\)')
CALLS_PREDICT = re.compile(r"(?<![\w.])predict\(")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# What differs from run to run or from machine to machine, and what is stored instead.
# tests/sanitize.cfg holds the same pairs, so that nbval compares like with like.
VOLATILE = (
    (r"\bat 0x[0-9A-Fa-f]+", "at 0x..."),
    (r"[^\s\x1b]*ipykernel_\d+[/\\]\d+\.py", "cell.py"),
    (r"\[\d\d:\d\d[<,][^\]\n]*\]", "[...]"),
    (r"""(?:~|\b[A-Za-z]:)?[/\\](?:[^\s\x1b'":]+[/\\])?(?:site-packages|python3\.\d+)[/\\]""", ".../"),
    (r"""(?:~|\b[A-Za-z]:)?[/\\](?:[^\s\x1b'":]+[/\\])?course_lib[/\\]""", "course_lib/"),
)


class AuthorError(Exception):
    """A source that cannot be built.  The message names file and cell and says what to do."""


@dataclass(frozen=True)
class Topic:
    """What a notebook must hold: its exercises and questions by name, its objectives as id -> sentence."""

    exercises: dict[str, Exercise]
    questions: dict[str, Question]
    objectives: dict[str, str]


@dataclass(frozen=True)
class Cell:
    """One cell of a source."""

    kind: str  # "markdown" or "code"
    source: str
    options: dict
    where: str  # file, number and first line, for messages

    def refuse(self, problem: str, remedy: str) -> NoReturn:
        raise AuthorError(f"{self.where}: {problem}. {remedy}.")

    @property
    def exercise(self) -> str | None:
        return self.options.get("exercise")

    @property
    def prediction(self) -> str | None:
        """The id of the question that this cell answers."""
        match = PREDICT_CELL.fullmatch(self.source.strip())
        return match[1] if match and self.kind == "code" else None

    @property
    def key(self) -> str:
        """What stays when other cells come, go or move; the learner's and the solved cell share it."""
        if self.exercise:
            return f"exercise {self.exercise}"
        return f"predict {self.prediction}" if self.prediction else f"{self.kind} {self.source}"


@dataclass(frozen=True)
class Source:
    """A source as read, which keeps the conventions."""

    name: str
    cells: list[Cell]
    topic: Topic


# -- the two notebooks ---------------------------------------------------------------------------------


def learner_notebook(path: Path, topic: Topic | None = None) -> NotebookNode:
    """What a learner opens: stubs in place of solutions, `...` in place of predictions, no outputs."""
    return _notebook(_read(path, topic), _learner_code)


def solved_notebook(path: Path, topic: Topic | None = None) -> NotebookNode:
    """The same with solutions and right predictions, not executed yet."""
    return _notebook(_read(path, topic), lambda cell: cell.source)


def _notebook(source: Source, code: Callable[[Cell], str]) -> NotebookNode:
    from nbformat import v4

    notebook, marks = v4.new_notebook(metadata=_notebook_metadata(source.name)), _nbgrader(source)
    for position, (cell, id_) in enumerate(zip(source.cells, _ids(source), strict=True)):
        if cell.kind == "code":
            new = v4.new_code_cell(code(cell), id=id_, metadata=cell.options | marks.get(position, {}))
        else:
            new = v4.new_markdown_cell(_fill(cell, source.topic), id=id_, metadata=cell.options)
        notebook.cells.append(new)
    return notebook


def _notebook_metadata(name: str) -> dict:
    return {
        "course_lib": {"notebook": name},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def _nbgrader(source: Source) -> dict[int, dict]:
    """nbgrader's metadata by position: the check of an exercise carries its points, the last `progress()` those of
    all predictions.

    Answer cells carry none. In nbgrader a cell with points is locked, and one marked as a solution is emptied when an
    assignment is made from it; and two cells with one id, as when a learner copies an answer, stop its grading.
    """
    code = [position for position, cell in enumerate(source.cells) if cell.kind == "code"]
    marks = {}
    for position, following in pairwise(code):
        if name := source.cells[position].exercise:
            marks[following] = _mark(name, source.topic.exercises[name].points)
    maps = [position for position in code if source.cells[position].source.strip() == "progress()"]
    for last in maps[-1:]:
        marks[last] = _mark("predictions", sum(item.points for item in source.topic.questions.values()))
    return marks


def _mark(grade_id: str, points: float) -> dict:
    kind = {"grade": True, "locked": True, "solution": False, "schema_version": 3}
    return {"nbgrader": {**kind, "grade_id": grade_id, "points": points}}


def _ids(source: Source) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for cell in source.cells:
        seen[cell.key] += 1
        yield hashlib.sha256(f"{source.name}\n{seen[cell.key]}\n{cell.key}".encode()).hexdigest()[:16]


def _learner_code(cell: Cell) -> str:
    if cell.exercise:
        return _stub(cell)
    return f'predict("{cell.prediction}", ...)' if cell.prediction else cell.source


def _stub(cell: Cell) -> str:
    """The exercise cell with each solution region replaced by one `raise`."""
    lines, inside = [], False
    for line in cell.source.splitlines():
        if line.strip() == BEGIN:
            inside = True
            lines.append(line.replace(BEGIN, f'raise NotImplementedError("your turn: {cell.exercise}")'))
        elif line.strip() == END:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


# -- placeholders in the prose -------------------------------------------------------------------------


def _fill(cell: Cell, topic: Topic) -> str:
    def text(match: re.Match) -> str:
        kind, name = match.groups()
        if kind == "objectives":
            return "\n".join(f"- {sentence}" for sentence in topic.objectives.values())
        return (
            _exercise_card(topic.exercises[name]) if kind == "exercise" else _question(topic.questions[name])
        )

    return PLACEHOLDER.sub(text, cell.source)


def _exercise_card(exercise: Exercise) -> str:
    facts = (
        f"{'●' * exercise.difficulty}{'○' * (3 - exercise.difficulty)} difficulty {exercise.difficulty} of 3",
        f"about {_count(exercise.minutes, 'minute')}",
        "stretch" if exercise.stretch else "core",
        _count(exercise.points, "point"),
    )
    return f"### Exercise {exercise.number} · {exercise.title}\n\n{' · '.join(facts)}"


def _count(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"


def _question(question: Question) -> str:
    choices = (
        f"- **{letter}** · {textwrap.indent(choice, '  ').lstrip()}"
        for letter, choice in question.choices.items()
    )
    return f"**Predict.** {question.text.strip()}\n\n" + "\n".join(choices)


# -- reading, and the conventions of the course --------------------------------------------------------


def _read(path: Path, topic: Topic | None) -> Source:
    path = Path(path)
    source = Source(path.stem, list(_cells(path)), topic or topic_of(path))
    for cell in source.cells:
        (_check_code if cell.kind == "code" else _check_prose)(cell, source.topic)
    _check_order(source)
    _check_complete(source, path)
    return source


def _cells(path: Path) -> Iterator[Cell]:
    import jupytext

    for number, raw in enumerate(jupytext.read(path, fmt="py:percent").cells, start=1):
        first_line = raw.source.strip().partition("\n")[0]
        where = f"{path.parent.name}/{path.name}, cell {number} ({first_line})"
        options = {key: value for key, value in raw.metadata.items() if key != "lines_to_next_cell"}
        cell = Cell(raw.cell_type, raw.source, options, where)
        if unknown := set(options) - OPTIONS:
            known = ", ".join(sorted(OPTIONS))
            cell.refuse(f"it has an unknown option {sorted(unknown)[0]!r}", f"Options are {known}")
        yield cell


def topic_of(path: Path) -> Topic:
    """What course_lib.exercises asks in the notebook of this source."""
    from course_lib import exercises

    try:
        return Topic(
            {exercise.name: exercise for exercise in exercises.exercises_of(path.stem)},
            {question.name: question for question in exercises.questions_of(path.stem)},
            dict(exercises.objectives_of(path.stem)),
        )
    except ModuleNotFoundError as missing:
        if missing.name != f"course_lib.exercises.{path.stem[3:]}":
            raise
        source = f"{path.parent.name}/{path.name}"
        raise AuthorError(f"{source}: there is no {missing.name}. Write that module first.") from None


def _check_prose(cell: Cell, topic: Topic) -> None:
    known = {"exercise": topic.exercises, "predict": topic.questions}
    for kind, name in PLACEHOLDER.findall(cell.source):
        if kind in known and name not in known[kind]:
            cell.refuse(
                f"this notebook has no {kind} {name!r}",
                "Correct the name, or add it to the topic in course_lib/exercises",
            )
    rest = PLACEHOLDER.sub(lambda match: "" if _is_known(match) else match[0], cell.source)
    if unresolved := re.search(r"\{\{.*?\}\}", rest):
        cell.refuse(
            f"{unresolved[0]} cannot be filled in",
            "Write {{exercise NAME}}, {{predict ID}} or {{objectives}} on a line of its own",
        )


def _is_known(placeholder: re.Match) -> bool:
    kind, name = placeholder.groups()
    return kind == "objectives" if name is None else kind in ("exercise", "predict")


def _check_code(cell: Cell, topic: Topic) -> None:
    objective = cell.options.get("objective")
    if objective is not None and objective not in topic.objectives:
        cell.refuse(f"this notebook has no objective {objective!r}", "See course_lib/exercises/objectives.py")
    if CALLS_PREDICT.search(cell.source):
        _check_prediction(cell, topic)
    _check_markers(cell)
    if cell.exercise is not None:
        _check_exercise(cell, topic)


def _check_prediction(cell: Cell, topic: Topic) -> None:
    match = PREDICT_CELL.fullmatch(cell.source.strip())
    if not match:
        cell.refuse(
            "predict stands among other code", 'Give predict("ID", "b") a cell of its own, written like this'
        )
    question = topic.questions.get(match[1])
    if question is None:
        cell.refuse(f"this notebook has no question {match[1]!r}", "Correct the id, or add it to the topic")
    if match[2] != question.answer:
        cell.refuse(f"the answer is not {match[2]!r}", f'Write predict("{match[1]}", "{question.answer}")')


def _check_markers(cell: Cell) -> None:
    lines = [line for line in cell.source.splitlines() if LOOKS_LIKE_MARKER.search(line)]
    for position, line in enumerate(lines):
        expected = END if position % 2 else BEGIN
        if line.strip() != expected:
            cell.refuse(
                f"{line.strip()!r} stands where {expected!r} should",
                "Markers come in pairs, each alone on a line",
            )
        if not line[0].isspace():
            cell.refuse(
                "a solution region is not inside a function", "Indent the markers like the function's body"
            )
    if len(lines) % 2:
        cell.refuse(f"there is no {END!r}", "Add it after the last line of the solution")
    if lines and cell.exercise is None:
        cell.refuse(
            "a solution stands outside an exercise cell", 'Begin the cell with `# %% exercise="NAME"`'
        )


def _check_exercise(cell: Cell, topic: Topic) -> None:
    exercise = topic.exercises.get(cell.exercise)
    if exercise is None:
        cell.refuse(
            f"this notebook has no exercise {cell.exercise!r}", "Correct the name, or add it to the topic"
        )
    if missing := _missing(exercise):
        cell.refuse(f"the exercise {cell.exercise} lacks {missing}", "Add it in course_lib/exercises")
    if BEGIN not in cell.source:
        cell.refuse("it has no solution region", f"Put the body between {BEGIN!r} and {END!r}")
    answer, stub = _definition(cell, cell.source), _definition(cell, _stub(cell))
    if not ast.get_docstring(stub):
        cell.refuse("it has no statement", "Say in the docstring, before the solution, what to return")
    _check_same_code(cell, answer, exercise)


def _missing(exercise: Exercise) -> str | None:
    """The first thing that every exercise has and this one lacks."""
    required = {
        "a title": bool(exercise.title),
        "a difficulty of 1, 2 or 3": exercise.difficulty in (1, 2, 3),
        "the minutes it takes": bool(exercise.minutes) and exercise.minutes > 0,
        "three hints": len(exercise.hints) == 3 and all(exercise.hints),
    }
    return next((what for what, there in required.items() if not there), None)


def _definition(cell: Cell, code: str) -> ast.AST:
    try:
        body = ast.parse(code).body
    except SyntaxError as error:
        cell.refuse(f"it is not valid Python ({error.msg}, line {error.lineno})", "Correct it")
    found = next((node for node in body if getattr(node, "name", None) == cell.exercise), None)
    if found is None:
        cell.refuse(f"it does not define {cell.exercise}", "The definition has the name of the exercise")
    return found


def _check_same_code(cell: Cell, answer: ast.AST, exercise: Exercise) -> None:
    reference = ast.parse(textwrap.dedent(inspect.getsource(exercise.reference))).body[0]
    shown, right = _without_docstrings(answer), _without_docstrings(reference)
    if shown != right:
        difference = difflib.unified_diff(
            right.splitlines(), shown.splitlines(), "course_lib/reference", "this cell", lineterm="", n=1
        )
        cell.refuse(
            "the solution differs from the reference", "Make them the same:\n" + "\n".join(difference) + "\n"
        )


def _without_docstrings(tree: ast.AST) -> str:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(
            node
        ):
            del node.body[0]
    return ast.unparse(tree)


def _check_order(source: Source) -> None:
    code = [cell for cell in source.cells if cell.kind == "code"]
    for cell, following in zip(code, [*code[1:], None], strict=True):
        check = f"check({cell.exercise})"
        if cell.exercise and (following is None or following.source.strip() != check):
            cell.refuse(f"the next code cell is not {check}", "Add that cell, with nothing else in it")


def _check_complete(source: Source, path: Path) -> None:
    """Each exercise and question of the topic is announced once, and after that asked once."""
    for kind, names, asked in (
        ("exercise", source.topic.exercises, lambda cell: cell.exercise),
        ("predict", source.topic.questions, lambda cell: cell.prediction),
    ):
        for name in names:
            card = f"{{{{{kind} {name}}}}}"
            announced = [i for i, cell in enumerate(source.cells) for _ in range(_lines(cell).count(card))]
            shown = [i for i, cell in enumerate(source.cells) if asked(cell) == name]
            if len(announced) != 1 or len(shown) != 1 or announced > shown:
                raise AuthorError(
                    f"{path.parent.name}/{path.name}: {card} stands there {_times(announced)} and its cell"
                    f" {_times(shown)}. Show each once, {card} before the cell."
                )


def _lines(cell: Cell) -> list[str]:
    return cell.source.splitlines() if cell.kind == "markdown" else []


def _times(found: list[int]) -> str:
    return {0: "never", 1: "once"}.get(len(found), f"{len(found)} times")


# -- execution -----------------------------------------------------------------------------------------


def execute(notebook: NotebookNode, cwd: Path) -> NotebookNode:
    """A copy of `notebook` with the outputs of a fresh kernel in `cwd`, one thread, in strict mode.

    Raises `AuthorError` where a cell fails, does not fail although its tag announces it, or has outputs that
    nbval cannot compare.
    """
    from nbformat import from_dict

    done = from_dict(notebook)
    with tempfile.TemporaryDirectory() as scratch:
        catching = _run(done, cwd, environment(Path(scratch)))
    done.metadata = notebook.metadata
    for index, cell in enumerate(done.cells):
        _check_outputs(done, index, index in catching)
        for output in cell.get("outputs", ()):
            _settle(output)
    return done


def environment(scratch: Path) -> dict[str, str]:
    """What makes a run repeatable, here and under nbval: no progress, settings or threads of the author."""
    fixed = {
        "OMP_NUM_THREADS": "1",
        "KINETO_LOG_LEVEL": "99",
        "PYTHONHASHSEED": "0",
        "COURSE_LIB_STRICT": "1",
        "COURSE_LIB_PROGRESS": str(scratch / "progress.sqlite"),
        "IPYTHONDIR": str(scratch / "ipython"),
    }
    return {key: value for key, value in os.environ.items() if key != "TQDM_DISABLE"} | fixed


def _run(notebook: NotebookNode, cwd: Path, environment: dict[str, str]) -> set[int]:
    """Execute in place; the indices of the cells from which a widget caught output."""
    from nbclient.exceptions import CellControlSignal, DeadKernelError
    from tqdm import tqdm

    from course_lib.execution import CELL_SECONDS, Client

    started, caught = [], []
    with tqdm(total=len(notebook.cells), desc=_name(notebook), unit="cell", leave=False) as bar:

        def executed(cell: NotebookNode, cell_index: int, execute_reply: dict) -> None:
            bar.update(cell_index + 1 - bar.n)
            caught.append((_outputs_in_widgets(client), cell_index))

        client = Client(
            notebook,
            timeout=CELL_SECONDS,
            coalesce_streams=True,  # how a stream is cut into messages is a matter of timing
            record_timing=False,
            resources={"metadata": {"path": str(cwd)}},
            extra_arguments=["--log-level=ERROR"],
            on_cell_start=lambda cell, cell_index: started.append(cell_index),
            on_cell_executed=executed,
        )
        try:
            client.run(environment)
        except (CellControlSignal, DeadKernelError) as error:
            _refuse(notebook, started[-1], _reason(error), "Correct the cell and build again")
    return {index for (before, _), (after, index) in pairwise([(0, -1), *caught]) if after > before}


def _outputs_in_widgets(client: Client) -> int:
    return sum(len(state.get("outputs", ())) for state in client.widget_state.values())


def _name(notebook: NotebookNode) -> str:
    return notebook.metadata.course_lib.notebook


def _check_outputs(notebook: NotebookNode, index: int, catches: bool) -> None:
    tags = notebook.cells[index].metadata.get("tags", ())
    kinds = {output.output_type for output in notebook.cells[index].get("outputs", ())}
    if "raises-exception" in tags and "error" not in kinds:
        _refuse(notebook, index, "it is tagged raises-exception and raises none", "Remove the tag")
    if catches and "nbval-ignore-output" not in tags:
        problem = "a widget catches its output, where nbval cannot see it"
        _refuse(notebook, index, problem, "Tag the cell nbval-ignore-output")


def _refuse(notebook: NotebookNode, index: int, problem: str, remedy: str) -> NoReturn:
    first_line = notebook.cells[index].source.strip().partition("\n")[0]
    raise AuthorError(
        f"solutions/{_name(notebook)}.py, cell {index + 1} ({first_line}): {problem}. {remedy}."
    )


def _reason(error: Exception) -> str:
    """The exception of the cell; or, where it timed out or the kernel died, the first line about that."""
    if hasattr(error, "ename"):
        return f"{error.ename}: {error.evalue}"
    return str(error).partition("\n")[0].rstrip(".")


def _settle(output: NotebookNode) -> None:
    """Take out of an output what another run or another machine would write differently."""
    data = output.get("data", {})
    data.pop(WIDGET_VIEW, None)  # the widget lives in the kernel that made it; its text stays
    for holder in (output, data):
        for key, value in holder.items():
            if key == "traceback":
                holder[key] = [_steady(line) for line in value]
            elif isinstance(value, str) and not key.startswith("image/"):
                holder[key] = _steady(value)


def _steady(text: str) -> str:
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return text


# -- the command ---------------------------------------------------------------------------------------


def build(names: Iterable[str] | None = None, execute: bool = True, root: Path = ROOT) -> int:
    """Build the named notebooks (`01_tensors`), or all; 1 if one of them could not be built, else 0."""
    try:
        sources = _sources(root, list(names or ()))
    except AuthorError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if sum(not _built(source, root, execute) for source in sources) else 0


def _sources(root: Path, names: list[str]) -> list[Path]:
    sources = {path.stem: path for path in sorted((root / "solutions").glob("[0-9][0-9]_*.py"))}
    if unknown := [name for name in names if name not in sources]:
        raise AuthorError(
            f"There is no solutions/{unknown[0]}.py. Sources are: {', '.join(sources) or 'none yet'}."
        )
    return [sources[name] for name in names] or list(sources.values())


def _built(path: Path, root: Path, executes: bool) -> bool:
    """Write both notebooks of one source, or neither and say why."""
    stored = path.with_suffix(".ipynb")
    try:
        learner, solved = learner_notebook(path), solved_notebook(path)
        solved = execute(solved, path.parent) if executes else _with_stored_outputs(solved, stored)
    except AuthorError as error:
        print(f"{error}\nNothing was written for {path.stem}.", file=sys.stderr)
        return False
    for target, notebook in ((root / "notebooks" / stored.name, learner), (stored, solved)):
        _write(target, to_text(notebook))
        print(f"wrote {target.relative_to(root).as_posix()}{_outputs_missing(notebook, target is stored)}")
    return True


def _with_stored_outputs(solved: NotebookNode, stored: Path) -> NotebookNode:
    """`solved` with the outputs of the stored notebook, if the code is still the same."""
    import nbformat

    if not stored.exists():
        return solved
    new = [cell for cell in solved.cells if cell.cell_type == "code"]
    old = [cell for cell in nbformat.read(stored, as_version=4).cells if cell.cell_type == "code"]
    if [cell.source for cell in new] == [cell.source for cell in old]:
        for cell, before in zip(new, old, strict=True):
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return solved


def _outputs_missing(notebook: NotebookNode, wanted: bool) -> str:
    has_some = any(cell.get("execution_count") for cell in notebook.cells)
    return (
        " without outputs, because its code is new: build it without --no-execute"
        if wanted and not has_some
        else ""
    )


def to_text(notebook: NotebookNode) -> str:
    """The bytes of the file, as text: keys sorted, one newline at the end."""
    import nbformat

    return nbformat.writes(notebook, version=4) + "\n"


def _write(path: Path, text: str) -> None:
    """Replace the file at once: a reader sees the old one or the new one, never a half."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    os.replace(unfinished, path)
