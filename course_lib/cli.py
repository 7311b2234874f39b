"""The command line: `python3 -m course_lib [command]`. Standard library only until the environment exists."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from course_lib import doctor, environment, workbook
from course_lib.environment import Problem
from course_lib.sealed import is_sealed

USAGE = """\
usage: python3 -m course_lib [command] [arguments]

for learners
  start [jupyter lab's arguments]   set up what is needed, and open the first notebook (the default)
  status                            what you have done so far
  check NOTEBOOK [--json]           check all answers; exit 0: all passed, 1: not yet, 2: could not run
  reset EXERCISE | NOTEBOOK         begin it again; a copy of yours is kept in workbook/backups
  doctor                            what is installed and used, and what to do about each problem

for instructors
  release -o FILE.zip [NOTEBOOK ...]   what learners get: a zip that gives no answer away
  collect SOURCE ... -o FOLDER         what was handed in, from folders and zips, into FOLDER/<student>
  grade SOURCE ... -o FOLDER [-j N]    marks, feedback and a page for the room, each answer judged in isolation;
                                    exit 0: all graded, 1: some could not be read, 2: could not run

for authors
  test [pytest's arguments]         set up what is needed, and run the whole suite
  build [NAME ...] [--no-execute]   make the notebooks from solutions/*.py
"""

QUIET_LAB = (  # Lab would ask about news at its first start, and look for updates on the network
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)
REPEATABLE = {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", "PYTHONHASHSEED": "0"}
# Many tests wait for a kernel, a browser or a process, so three workers keep two cores busy.
THREE_AT_ONCE = ("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder")
NOT_FOR_LEARNERS = ("test", "build", "release")
COULD_NOT_RUN = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    command, rest = _split(list(sys.argv[1:] if arguments is None else arguments))
    try:
        return _run(command, rest)
    except Problem as problem:
        print(f"course_lib: {problem}", file=sys.stderr)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        print("\ncourse_lib: interrupted.", file=sys.stderr)
        return INTERRUPTED


def _split(arguments: list[str]) -> tuple[str, list[str]]:
    """The command and its arguments; no command, or an option in its place, means start."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        return "start", arguments
    return arguments[0], arguments[1:]


def _run(command: str, rest: list[str]) -> int:
    if command in ("-h", "--help", "help") or rest in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if command not in COMMANDS:
        raise Problem(
            f"There is no command {command}.",
            f"the commands are {', '.join(COMMANDS)}.",
            "python3 -m course_lib --help says what each one does.",
        )
    if command in NOT_FOR_LEARNERS and is_sealed():
        raise Problem(
            f"{command} does not work in this copy of the course.",
            "this copy was made for learners by release: the solutions and the tests are not in it.",
            "use the whole course, from which this copy was made.",
        )
    return COMMANDS[command](rest)


# Commands that set the environment up


def start(rest: list[str]) -> int:
    """Set up what is needed and become JupyterLab. `rest` goes to `jupyter lab`."""
    python = environment.prepare()
    for line in workbook.deliver():
        print(line)
    first = workbook.first_notebook()
    print(f"Starting JupyterLab with {first.name}. To end it, press Ctrl-C twice in this terminal.")
    return environment.hand_over([*lab_command(python, first), *rest], environment.variables())


def lab_command(python: Path, notebook: Path) -> list[str]:
    """How JupyterLab is started here: as root, and without a browser, where that is how things are."""
    root, page = f"--ServerApp.root_dir={notebook.parent}", f"--LabApp.default_url=/lab/tree/{notebook.name}"
    command = [str(python), "-m", "jupyterlab", root, page, *QUIET_LAB]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    if not doctor.has_browser():
        command.append("--no-browser")
    return command


def test(rest: list[str]) -> int:
    """Set up what is needed and become pytest. `rest` goes to pytest."""
    python = environment.prepare(("test",))
    command = [python, "-m", "pytest", *THREE_AT_ONCE, *rest]
    return environment.hand_over(command, {**environment.variables(), **REPEATABLE}, environment.ROOT)


# Commands that run inside the environment


def in_environment(command: str, rest: list[str], work: Callable[[], int], *extras: str) -> int:
    """Do the work here if this interpreter will do; else repeat the command with the one that will.

    Raises Problem where no environment has been set up.
    """
    python = environment.ready(extras)
    if python is None:
        setup = "python3 -m course_lib test" if extras else "python3 -m course_lib"
        raise Problem(
            f"{command} needs the course's environment, and there is none that is up to date.",
            "it has not been set up yet, or what the course needs has changed since.",
            f"run this first: {setup}",
        )
    if python == Path(sys.executable):
        os.environ.update(environment.variables())
        return work()
    return environment.hand_over([python, "-m", "course_lib", command, *rest], environment.variables())


def status(rest: list[str]) -> int:
    """Print what the learner has done so far."""
    _parser("status", "What you have done so far.").parse_args(rest)
    return in_environment("status", rest, _print_status)


def _print_status() -> int:
    from course_lib.session import status_text

    print(status_text())
    return 0


def check(rest: list[str]) -> int:
    """Check all answers of a notebook."""
    parser = _parser("check", "Check all answers. Exit 0: all passed, 1: not yet, 2: could not run.")
    parser.add_argument("notebook", help="a path, or the name of a notebook in workbook/")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    options = parser.parse_args(rest)
    path = workbook.find(options.notebook)
    return in_environment("check", rest, lambda: _check(path, options.json))


def _check(path: Path, as_json: bool) -> int:
    from course_lib import selfcheck

    return selfcheck.main(path, as_json)


def grade(rest: list[str]) -> int:
    """Grade submitted notebooks."""
    parser = _parser("grade", "Exit 0: all graded, 1: some could not be read, 2: could not run.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="SOURCE", help="notebooks, folders, zip files")
    parser.add_argument("-o", "--out", required=True, type=Path, help="where everything is written")
    parser.add_argument(
        "-j", "--jobs", type=_positive, default=os.cpu_count() or 1, help="how many at a time"
    )
    options = parser.parse_args(rest)
    return in_environment("grade", rest, lambda: _grade(options.paths, options.out, options.jobs))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return int(text)


def _grade(paths: list[Path], out: Path, jobs: int) -> int:
    from course_lib.grading import run

    return run.main(paths, out, jobs)


def build(rest: list[str]) -> int:
    """Make the notebooks from their sources."""
    parser = _parser("build", "Make notebooks/ and solutions/*.ipynb from solutions/*.py.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 01_tensors; else all of them")
    parser.add_argument("--no-execute", action="store_true", help="do not run the solved notebooks")
    options = parser.parse_args(rest)
    return in_environment("build", rest, lambda: _build(options.names, not options.no_execute), "test")


def _build(names: list[str], execute: bool) -> int:
    from course_lib import authoring, guide

    failed = authoring.build(names or None, execute)
    for path in guide.write():
        print(f"wrote {path.relative_to(environment.ROOT).as_posix()}")
    return failed


def collect(rest: list[str]) -> int:
    """Put what was handed in where `grade` finds it."""
    parser = _parser("collect", "What was handed in, into FOLDER/<student>/<notebook>.ipynb.")
    parser.epilog = "Exit 0: all taken, 1: something can't be read, see the table, 2: could not run."
    parser.add_argument(
        "sources", nargs="+", type=Path, metavar="SOURCE", help="a folder, a zip or a notebook"
    )
    parser.add_argument(
        "-o", dest="folder", required=True, type=Path, metavar="FOLDER", help="where to put it"
    )
    options = parser.parse_args(rest)
    return in_environment("collect", rest, lambda: _collect(options.sources, options.folder))


def _collect(sources: list[Path], folder: Path) -> int:
    from course_lib.grading import collect

    return collect.main(sources, folder)


def release(rest: list[str]) -> int:
    """Make the zip that learners get."""
    parser = _parser("release", "What learners get: a zip with nothing in it that gives an answer away.")
    parser.add_argument("names", nargs="*", metavar="NOTEBOOK", help="such as 01_tensors; else all of them")
    parser.add_argument(
        "-o", dest="target", required=True, type=Path, metavar="FILE.zip", help="the zip to write"
    )
    options = parser.parse_args(rest)
    return in_environment("release", rest, lambda: _release(options.target, options.names))


def _release(target: Path, names: list[str]) -> int:
    from course_lib.grading import release

    return release.main(target, names)


# Commands that need no environment


def reset(rest: list[str]) -> int:
    """Begin an exercise or a notebook again."""
    parser = _parser("reset", "Begin again. A copy of yours is kept in workbook/backups.")
    parser.add_argument("name", metavar="EXERCISE|NOTEBOOK", help="such as flat_index, or 01_tensors")
    done = workbook.reset(parser.parse_args(rest).name)
    _record_reset(done.exercises)
    print(done.message)
    return 0


def _record_reset(exercises: Sequence[str]) -> None:
    from course_lib.progress import Progress, default_path

    progress = Progress(default_path())
    for exercise in exercises:
        progress.record_reset(exercise)
    for notice in progress.notices:
        print(notice, file=sys.stderr)


def diagnose(rest: list[str]) -> int:
    """Say what is installed and what the course will use, and what to do about each problem."""
    _parser("doctor", "What is installed and used, and what to do about each problem.").parse_args(rest)
    try:
        python = environment.ready()
    except Problem:  # doctor says so itself
        python = None
    if python in (None, Path(sys.executable)):
        return doctor.main()
    return environment.hand_over([python, "-m", "course_lib", "doctor"], environment.variables())


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    prog = f"python3 -m course_lib {command}"
    return argparse.ArgumentParser(prog=prog, description=description, allow_abbrev=False)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "start": start,
    "test": test,
    "status": status,
    "check": check,
    "reset": reset,
    "release": release,
    "collect": collect,
    "grade": grade,
    "build": build,
    "doctor": diagnose,
}
