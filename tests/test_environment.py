"""Setting the course up, and each way in which that can fail, on throw-away copies of the course."""

from __future__ import annotations

import ast
import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from course_lib import environment
from course_lib.__main__ import BEYOND, OLDEST, refusal
from course_lib.environment import Missing, Problem, Stamp

ROOT = environment.ROOT
LONGEST = 120  # seconds, after which a test is stuck

# A build backend that needs nothing, so that pip can install the copy without a network.
BACKEND = """
import base64, hashlib, os, zipfile

def build_editable(directory, config_settings=None, metadata_directory=None):
    lines = [line for line in open("requirements.txt").read().splitlines() if line and line[0] != "#"]
    requires = "".join("Requires-Dist: %s\\n" % line for line in lines)
    metadata = "Metadata-Version: 2.1\\nName: course_lib\\nVersion: 0.1\\n" + requires
    name = "course_lib-0.1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("course_lib.pth", os.getcwd())
        wheel.writestr("course_lib-0.1.dist-info/METADATA", metadata)
        wheel.writestr("course_lib-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("course_lib-0.1.dist-info/RECORD", "")
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "course_lib"
version = "0.1"
dynamic = ["dependencies"]
optional-dependencies = { test = [] }
"""
FAKE_LAB = "import os, sys; print('LAB', sys.prefix, os.environ['OMP_NUM_THREADS'], *sys.argv[1:])"


@pytest.fixture
def course(tmp_path, copy_course):
    """A copy whose requirements no Python meets; pip finds them in `wheels`, and needs no network."""
    folder = copy_course(tmp_path / "the course")
    for name in ("00_first", "01_second"):
        empty = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}\n'
        (folder / "notebooks" / f"{name}.ipynb").write_text(empty)
    (folder / "requirements.txt").write_text("inside-pytorch-stand-in>=1\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    return folder


@pytest.fixture
def wheels(tmp_path):
    """A folder with stand-ins for what the course requires: a `jupyterlab` that says how it was started."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        stem = f"inside_pytorch_stand_in-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("jupyterlab/__init__.py", "")
            wheel.writestr("jupyterlab/__main__.py", FAKE_LAB)
            metadata = f"Metadata-Version: 2.1\nName: inside-pytorch-stand-in\nVersion: {version}\n"
            wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            files = ("jupyterlab/__init__.py", "jupyterlab/__main__.py", f"{stem}.dist-info/METADATA")
            record = "".join(f"{file},,\n" for file in (*files, f"{stem}.dist-info/WHEEL"))
            wheel.writestr(f"{stem}.dist-info/RECORD", f"{record}{stem}.dist-info/RECORD,,\n")
    return folder


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a person who has set nothing: no settings for pip, no path of ours."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHONPATH"))}
    return {**plain, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0", **more}


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course_lib", *arguments]
    environ = surroundings(**variables)
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
    )


def offline(wheels: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The environment module, with a folder of its own as the course."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "STAMP", tmp_path / ".venv" / "course_lib.json")
    for name in ("requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def pretend_venv(folder: Path, stamp: Stamp | None = None, python: str | None = None) -> Path:
    """A `.venv` that costs nothing; `python` is a shell script."""
    inside = folder / ".venv"
    (inside / "bin").mkdir(parents=True)
    if stamp is not None:
        environment._write_stamp(stamp)
    if python is not None:
        (inside / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
        (inside / "bin" / "python").chmod(0o755)
    return inside


# What is required


def test_the_requirements_are_read_from_the_two_files(here):
    (here / "requirements.txt").write_text("# why\ntorch>=2.6,<2.14\n\nnumpy\n")
    assert environment.requirement_lines() == ["torch>=2.6,<2.14", "numpy"]
    assert any(line.startswith("pytest") for line in environment.requirement_lines(["test"]))


def test_what_is_missing_is_named_with_what_is_installed(here):
    (here / "requirements.txt").write_text("pip>=1\npip>=9999\nno-such-distribution-here\n")
    version = environment.installed_version("pip")
    expected = [Missing("pip>=9999", version), Missing("no-such-distribution-here", "")]
    assert environment.missing() == expected
    assert not environment.satisfied()


def test_a_local_build_of_a_version_satisfies(here, monkeypatch):
    (here / "requirements.txt").write_text("torch>=2.6,<2.14\n")
    for version in ("2.13.0+cpu", "2.13.0a0+git1234"):
        monkeypatch.setattr(environment.metadata, "version", lambda name, version=version: version)
        assert environment.satisfied()
    monkeypatch.setattr(environment.metadata, "version", lambda name: "2.14.0")
    assert not environment.satisfied()


def test_a_python_that_cannot_compare_versions_does_not_satisfy(here, monkeypatch):
    for name in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not environment.satisfied()


def test_the_active_python_is_used_where_it_satisfies(here):
    (here / "requirements.txt").write_text("pip>=1\n")
    assert environment.prepare() == environment.ready() == Path(sys.executable)
    assert not (here / ".venv").exists()


# Which Python


@pytest.mark.parametrize(
    ("version", "age"), [((2, 7), "old"), ((3, 9), "old"), ((3, 14), "new"), ((4, 0), "new")]
)
def test_a_python_outside_the_range_is_refused(version, age):
    message = refusal(version)
    assert f"Python {version[0]}.{version[1]} is too {age}" in message
    assert "Why:" in message
    assert "What to do:" in message


@pytest.mark.parametrize("version", [OLDEST, (3, 11), (BEYOND[0], BEYOND[1] - 1)])
def test_a_python_inside_the_range_is_not_refused(version):
    assert refusal(version) is None


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_an_old_python_can_read_what_refuses_it(name):
    """Python 2.7 and 3.6 stop at syntax that they do not know before they can say that they are too old."""
    source = (ROOT / "course_lib" / name).read_text(encoding="ascii")
    nodes = list(ast.walk(ast.parse(source)))
    modern = (
        ast.JoinedStr,
        ast.AnnAssign,
        ast.NamedExpr,
        ast.AsyncFunctionDef,
        ast.Match,
        ast.Starred,
        ast.Nonlocal,
    )
    assert not [node for node in nodes if isinstance(node, modern)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    arguments = [argument for function in functions for argument in function.args.args]
    assert not any(function.returns or function.args.kwonlyargs for function in functions)
    assert not any(argument.annotation for argument in arguments)
    assert "__future__" not in source.replace("__future__ import print_function", "")


# A first start, and what follows it


def test_first_start_second_start_and_changed_requirements(course, wheels):
    first = run(course, "start", "--port=1234", PIP_USER="1", **offline(wheels))
    assert first.returncode == 0, first.stderr
    assert "[1/2]" in first.stdout
    assert "[2/2]" in first.stdout
    assert "Successfully installed" in first.stdout, "what pip says goes through"
    lab = next(line for line in first.stdout.splitlines() if line.startswith("LAB"))
    assert lab.startswith(f"LAB {course / '.venv'} 1 ")
    assert "/lab/tree/00_first.ipynb" in lab
    assert lab.endswith("--port=1234")
    assert (course / "workbook" / "01_second.ipynb").exists()
    assert not (course / ".venv.lock").exists()

    second = run(course, PIP_NO_INDEX="1")
    assert second.returncode == 0, second.stderr
    assert [line.split()[0] for line in second.stdout.splitlines()] == ["Starting", "LAB"]

    (course / "requirements.txt").write_text("inside-pytorch-stand-in>=2\n")
    third = run(course, **offline(wheels))
    assert third.returncode == 0, third.stderr
    assert "has changed since" in third.stdout
    assert run(course, PIP_NO_INDEX="1").returncode == 0

    (course / "requirements.txt").write_text("inside-pytorch-stand-in>=3\n")
    failed = run(course, **offline(wheels))
    assert failed.returncode == 2
    assert (course / ".venv").exists(), (
        "an environment that works is not thrown away because an update failed"
    )
    (course / "requirements.txt").write_text("inside-pytorch-stand-in>=2\n")
    assert run(course, PIP_NO_INDEX="1").returncode == 0


def test_an_interrupted_setup_is_taken_up_again(here, monkeypatch, capsys):
    inside = pretend_venv(here, Stamp())
    (inside / "half a package").write_text("cut sho")
    (here / "course_lib.egg-info").mkdir()
    monkeypatch.setattr(environment, "_create_empty", lambda: pretend_venv(here, Stamp()))
    monkeypatch.setattr(environment, "_install", lambda extras: None)
    monkeypatch.setattr(environment, "satisfied", lambda extras: False)
    assert environment.prepare(["test"]) == inside / "bin" / "python"
    assert "An earlier set-up did not finish" in capsys.readouterr().out
    assert not (inside / "half a package").exists()
    assert not (here / "course_lib.egg-info").exists()
    assert environment.read_stamp() == Stamp(environment.fingerprint(), ("test",))


def test_an_environment_without_the_extras_is_not_ready_for_them(here):
    pretend_venv(here, Stamp(environment.fingerprint(), ()), python="exit 0")
    assert environment.venv_ready()
    assert not environment.venv_ready(["test"])


def test_an_update_keeps_the_extras(here, monkeypatch):
    pretend_venv(here, Stamp("an earlier one", ("test",)), python="exit 0")
    installed = []
    monkeypatch.setattr(environment, "_install", installed.append)
    monkeypatch.setattr(environment, "satisfied", lambda extras: False)
    environment.prepare()
    assert installed == [("test",)]
    assert environment.read_stamp() == Stamp(environment.fingerprint(), ("test",))


def test_a_stamp_that_was_cut_short_is_an_unfinished_environment(here):
    pretend_venv(here, Stamp("abc"))
    environment.STAMP.write_text('{"finger')
    assert environment.read_stamp() == Stamp()


# What can go wrong


def test_no_network(course):
    """Nobody answers at this address: the socket is bound, and does not listen."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        outcome = run(course, PIP_INDEX_URL=index, PIP_RETRIES="1")
    assert outcome.returncode == 2
    assert "the network did not answer" in outcome.stderr
    assert re.search(r"Why: +pip stopped. Its last lines:\n +WARNING: Retrying", outcome.stderr)
    assert "Traceback" not in outcome.stderr
    assert not (course / ".venv").exists()
    assert not (course / ".venv.lock").exists()


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C reaches a process group in another way on Windows")
def test_ctrl_c_clears_away_what_was_begun(course):
    """Somebody answers, and then says nothing: pip waits, and is interrupted."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        environ = surroundings(PIP_INDEX_URL=f"http://127.0.0.1:{slow.getsockname()[1]}/simple")
        command = [sys.executable, "-m", "course_lib"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, cwd=course, env=environ, start_new_session=True, **streams) as process:
            slow.settimeout(LONGEST)
            connection, _ = slow.accept()
            os.killpg(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=LONGEST)
            connection.close()
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert "course_lib/" not in output, "no traceback of ours"
    assert not (course / ".venv").exists()


def test_ctrl_c_does_not_leave_pip_running(here, monkeypatch):
    script = "import os, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(600)"
    heard = []

    def interrupt(line):
        heard.append(int(line))
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "SECONDS_TO_END", 0)
    monkeypatch.setattr(environment, "_pass_on", interrupt)
    with pytest.raises(KeyboardInterrupt):
        environment._run_pip([sys.executable, "-c", script])
    with pytest.raises(OSError, match="No such process"):
        os.kill(heard[0], 0)


def test_no_space_to_begin_with(here, monkeypatch):
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 10**8))
    monkeypatch.setattr(environment, "satisfied", lambda extras: False)
    with pytest.raises(Problem, match="not enough space") as raised:
        environment.prepare()
    assert "0.1 GB are free" in raised.value.why
    assert not (here / ".venv").exists()


def test_the_disk_fills_up_while_the_environment_is_made(here, monkeypatch):
    import venv

    def fill(self, folder):
        (folder / "half").write_text("made")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(venv.EnvBuilder, "create", fill)
    monkeypatch.setattr(environment, "satisfied", lambda extras: False)
    with pytest.raises(Problem, match="not enough space"):
        environment.prepare()
    assert not (here / ".venv").exists()


def test_the_disk_fills_up_while_pip_works():
    said = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]
    assert "not enough space" in environment._pip_failed(said).what


def test_pips_last_errors_are_shown_without_its_other_warnings():
    said = ["ERROR: first", "WARNING: a newer pip", *(f"ERROR: {number}" for number in range(4))]
    problem = environment._pip_failed(said)
    assert problem.what == "The course's packages could not be installed."
    assert problem.why.splitlines()[1:] == ["ERROR: 0", "ERROR: 1", "ERROR: 2", "ERROR: 3"]


def test_no_venv_module(here, monkeypatch):
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == "ensurepip" else object())
    monkeypatch.setattr(environment, "satisfied", lambda extras: False)
    with pytest.raises(Problem, match="cannot make environments") as raised:
        environment.prepare()
    assert "no ensurepip" in raised.value.why
    assert "-venv" in raised.value.remedy
    assert not (here / ".venv").exists()


def test_a_folder_that_cannot_be_written_to(here, monkeypatch):
    (here / "file").write_text("")
    monkeypatch.setattr(environment, "VENV", here / "file" / ".venv")
    monkeypatch.setattr(environment, "STAMP", here / "file" / ".venv" / "course_lib.json")
    monkeypatch.setattr(environment, "satisfied", lambda extras: False)
    with pytest.raises(Problem, match="cannot write to its own folder"):
        environment.prepare()


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for a Python is a shell script")
@pytest.mark.parametrize(
    ("python", "reason"),
    [
        (None, "No such file"),
        ("echo 'cannot open shared object file' >&2; exit 127", "shared object"),
        ("exit 1", "lost its packages"),
    ],
)
def test_a_broken_environment_is_reported_and_kept(here, monkeypatch, python, reason):
    inside = pretend_venv(here, Stamp(environment.fingerprint()), python)
    monkeypatch.setattr(environment, "satisfied", lambda extras: False)
    with pytest.raises(Problem, match="is broken") as raised:
        environment.prepare()
    assert reason in raised.value.why
    assert str(inside) in raised.value.remedy
    assert environment.STAMP.exists()


def test_an_environment_that_is_not_ours_is_never_touched(course):
    (course / ".venv").mkdir()
    (course / ".venv" / "mine").write_text("precious")
    outcome = run(course, PIP_NO_INDEX="1")
    assert outcome.returncode == 2
    assert "the course did not make" in outcome.stderr
    assert "pip install -r" in outcome.stderr
    assert [path.name for path in (course / ".venv").iterdir()] == ["mine"]


@pytest.mark.skipif(os.name == "nt", reason="holds the lock as POSIX does")
def test_two_setups_at_once(here, monkeypatch):
    import fcntl

    monkeypatch.setattr(environment, "satisfied", lambda extras: False)
    with (here / ".venv.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Problem, match="another terminal"):
            environment.prepare()
    assert not (here / ".venv").exists()


def test_removing_leaves_the_stamp_to_the_last(here, monkeypatch):
    inside = pretend_venv(here, Stamp())

    def interrupt(path, ignore_errors=False):
        if not ignore_errors:
            raise KeyboardInterrupt

    monkeypatch.setattr(environment.shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        environment._remove()
    assert environment.read_stamp() == Stamp(), f"{inside} is still known to be ours"


def test_what_cannot_be_removed_is_said(here, monkeypatch):
    pretend_venv(here, Stamp())

    def refuse():
        raise PermissionError(errno.EACCES, "in use")

    monkeypatch.setattr(environment, "_empty", refuse)
    with pytest.raises(Problem, match="could not be removed") as raised:
        environment._remove()
    assert "in use" in raised.value.why


# What runs in it


def test_a_kernel_finds_this_course_from_another_folder(tmp_path):
    command = [sys.executable, "-c", "import course_lib; print(course_lib.__file__)"]
    environ = environment.variables()
    printed = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert Path(printed.strip()) == ROOT / "course_lib" / "__init__.py"


def test_what_the_person_set_is_respected(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    chosen = environment.variables()
    assert chosen["OMP_NUM_THREADS"] == "3"
    assert chosen["KINETO_LOG_LEVEL"] == "99"
    assert chosen["PYTHONPATH"] == f"{ROOT}{os.pathsep}mine"


def test_a_problem_says_what_why_and_what_to_do():
    lines = str(Problem("It broke.", "one\ntwo", "mend it")).splitlines()
    assert lines == ["It broke.", "  Why:        one", "              two", "  What to do: mend it"]
