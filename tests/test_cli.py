"""The command line, as a person meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

import course_lib
from course_lib import cli, doctor, environment, workbook
from course_lib.environment import Problem
from course_lib.progress import Progress, default_path

LONGEST = 120  # seconds, after which a server that says nothing is stopped


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course_lib", *arguments]
    environ = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
    )


@pytest.fixture
def course(tmp_path, copy_course):
    """A throw-away copy that the active environment satisfies, with one notebook."""
    folder = copy_course(tmp_path / "course")
    stub = {
        "cell_type": "code",
        "id": "a",
        "metadata": {"exercise": "double"},
        "source": "def double(x):\n    raise NotImplementedError('your turn: double')\n",
        "outputs": [],
        "execution_count": None,
    }
    notebook = {"cells": [stub], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "notebooks" / "00_first.ipynb").write_text(json.dumps(notebook))
    return folder


@pytest.fixture
def unprepared(course):
    """A copy whose requirements no environment meets."""
    (course / "requirements.txt").write_text("no-such-distribution-here>=1\n")
    return course


# Which command


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("start", [])),
        (["--port", "9000"], ("start", ["--port", "9000"])),
        (["start", "--no-browser"], ("start", ["--no-browser"])),
        (["test", "-k", "status", "-x"], ("test", ["-k", "status", "-x"])),
        (["--help"], ("--help", [])),
    ],
)
def test_no_command_means_start(arguments, expected):
    assert cli._split(arguments) == expected


@pytest.mark.parametrize("arguments", [["--help"], ["help"], ["start", "--help"], ["test", "-h"]])
def test_help_names_every_command(arguments, capsys):
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in cli.COMMANDS)


def test_an_unknown_command(capsys):
    assert cli.main(["strat"]) == 2
    message = capsys.readouterr().err
    assert "no command strat" in message
    assert "start, test" in message


@pytest.mark.parametrize(
    "line", ["check", "check a b", "check --jason a", "reset", "status now", "doctor -x", "build -x"]
)
def test_wrong_arguments(line, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(line.split())
    assert stopped.value.code == 2
    assert f"python3 -m course_lib {line.split()[0]}: error:" in capsys.readouterr().err


def test_a_notebook_that_is_not_there(capsys):
    assert cli.main(["check", "no_such_notebook"]) == 2
    assert "There is no notebook no_such_notebook" in capsys.readouterr().err


# Starting JupyterLab


def test_as_root_jupyterlab_is_allowed(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    assert "--allow-root" in cli.lab_command(Path("python"), Path("workbook/00.ipynb"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "--allow-root" not in cli.lab_command(Path("python"), Path("workbook/00.ipynb"))


def test_without_a_browser_none_is_opened(monkeypatch):
    monkeypatch.setattr(doctor, "has_browser", lambda: False)
    assert "--no-browser" in cli.lab_command(Path("python"), Path("workbook/00.ipynb"))
    monkeypatch.setattr(doctor, "has_browser", lambda: True)
    assert "--no-browser" not in cli.lab_command(Path("python"), Path("workbook/00.ipynb"))


def test_on_linux_a_browser_needs_a_display(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(doctor.webbrowser, "get", lambda: object())
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not doctor.has_browser()
    monkeypatch.setenv("DISPLAY", ":0")
    assert doctor.has_browser()


def test_a_display_without_a_browser(monkeypatch):
    def none_found():
        raise doctor.webbrowser.Error

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(doctor.webbrowser, "get", none_found)
    assert not doctor.has_browser()


@pytest.mark.skipif(os.name == "nt", reason="a process group is stopped in another way on Windows")
def test_jupyterlab_serves_the_first_notebook_though_the_port_is_taken(course):
    """The real JupyterLab, in the active environment."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "course_lib", "start", f"--port={port}", "--no-browser"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, cwd=course, start_new_session=True, **streams) as server:
            watchdog = threading.Timer(LONGEST, os.killpg, (server.pid, signal.SIGKILL))
            watchdog.start()
            try:
                address = find_address(server)
                page = fetch(address, server)
            finally:
                watchdog.cancel()
                os.killpg(server.pid, signal.SIGKILL)
    assert f":{port}/" not in address
    assert "/lab/tree/00_first.ipynb?token=" in address
    assert '"treePath": "00_first.ipynb"' in page
    assert '"news": {"disabled": true}' in page, "a learner is not asked about news, nor is the network"
    assert (course / "workbook" / "00_first.ipynb").exists()
    assert not (course / ".venv").exists(), "the active environment was used"


def find_address(server: subprocess.Popen) -> str:
    """The address that JupyterLab prints; what it printed instead if it ends without one."""
    printed = []
    for line in server.stdout:
        printed.append(line)
        address = re.search(r"http://127\.0\.0\.1:\S+", line)
        if address:
            return address.group()
    pytest.fail("JupyterLab printed no address:\n" + "".join(printed))


def fetch(address: str, server: subprocess.Popen) -> str:
    """The page; JupyterLab prints its address a moment before it listens there."""
    while True:
        try:
            with urllib.request.urlopen(address, timeout=LONGEST) as answer:
                return answer.read().decode()
        except urllib.error.URLError:
            if server.poll() is not None:
                raise
            time.sleep(0.02)


# Running the tests


def test_test_runs_pytest_with_its_arguments_and_passes_its_exit_code_on(course):
    (course / "tests").mkdir()
    (course / "tests" / "test_it.py").write_text(
        "import os\n"
        "def test_surroundings():\n"
        "    assert os.environ['PYTHONHASHSEED'] == '0'\n"
        "    assert os.environ['OMP_NUM_THREADS'] == '1'\n"
        "    assert os.environ['KINETO_LOG_LEVEL'] == '99'\n"
        "def test_wrong():\n"
        "    assert False\n"
        "def test_another():\n"
        "    pass\n"
    )
    outcome = run(course, "test", "-q", "-k", "not another", OMP_NUM_THREADS="5")
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "1 failed, 1 passed" in outcome.stdout


def test_test_sets_up_what_the_tests_need(monkeypatch):
    asked = []
    monkeypatch.setattr(environment, "prepare", lambda extras=(): asked.append(extras) or Path("python"))
    monkeypatch.setattr(environment, "hand_over", lambda command, env, folder: 0)
    assert cli.main(["test"]) == 0
    assert asked == [("test",)]


# Commands that need the environment


@pytest.mark.parametrize("arguments", [["status"], ["check", "notebooks/00_first.ipynb"], ["build"]])
def test_without_an_environment_a_command_says_what_to_run(unprepared, arguments):
    outcome = run(unprepared, *arguments)
    assert outcome.returncode == 2
    assert "run this first: python3 -m course_lib" in outcome.stderr


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for a Python is a shell script")
def test_with_an_environment_a_command_is_repeated_in_it(unprepared):
    inside = unprepared / ".venv"
    (inside / "bin").mkdir(parents=True)
    python = '#!/bin/sh\ncase "$*" in *find_spec*) exit 0;; esac\necho ran "$@"; exit 5\n'
    (inside / "bin" / "python").write_text(python)
    (inside / "bin" / "python").chmod(0o755)
    script = "from course_lib import environment as e; e._write_stamp(e.Stamp(e.fingerprint(), ('test',)))"
    subprocess.run([sys.executable, "-c", script], cwd=unprepared, check=True)
    check = ["check", "notebooks/00_first.ipynb", "--json"]
    for arguments in (["status"], check, ["build", "00_first"], ["doctor"]):
        outcome = run(unprepared, *arguments)
        assert outcome.returncode == 5
        assert outcome.stdout.split() == ["ran", "-m", "course_lib", *arguments]


@pytest.fixture
def prepared(monkeypatch):
    """The active environment will do."""
    monkeypatch.setattr(environment, "satisfied", lambda extras=(): True)
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_status_prints_what_the_session_says(prepared, monkeypatch, capsys):
    from course_lib import session

    monkeypatch.setattr(session, "status_text", lambda: "3 of 5")
    assert cli.main(["status"]) == 0
    assert capsys.readouterr().out == "3 of 5\n"


def test_check_passes_the_notebook_on_and_the_exit_code_back(prepared, monkeypatch, tmp_path):
    from course_lib import selfcheck

    asked = []
    monkeypatch.setattr(selfcheck, "main", lambda path, as_json: asked.append((path, as_json)) or 1)
    (tmp_path / "mine.ipynb").write_text("{}")
    assert cli.main(["check", str(tmp_path / "mine.ipynb"), "--json"]) == 1
    assert asked == [(tmp_path / "mine.ipynb", True)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], (None, True)), (["01_tensors", "--no-execute"], (["01_tensors"], False))],
)
def test_build_passes_its_arguments_on(prepared, monkeypatch, arguments, expected):
    authoring = pytest.importorskip("course_lib.authoring")
    asked = []
    monkeypatch.setattr(authoring, "build", lambda names, execute: asked.append((names, execute)) or 0)
    assert cli.main(["build", *arguments]) == 0
    assert asked == [expected]


# Reset and doctor need no environment


def test_reset_says_where_the_copy_is_and_records_it(unprepared):
    workbook_copy = unprepared / "workbook" / "00_first.ipynb"
    workbook_copy.parent.mkdir()
    workbook_copy.write_bytes((unprepared / "notebooks" / "00_first.ipynb").read_bytes())
    progress = Progress(default_path())
    progress.record_attempt("double", "hash", "passed")
    assert progress.state("double") == "passed"
    outcome = run(unprepared, "reset", "double")
    assert outcome.returncode == 0, outcome.stderr
    kept = next((unprepared / "workbook" / "backups").iterdir())
    assert f"workbook/backups/{kept.name}" in outcome.stdout
    assert progress.state("double") != "passed"


def test_doctor_before_the_environment_exists(unprepared):
    outcome = run(unprepared, "doctor")
    assert outcome.returncode == 1
    assert "[problem] no-such-distribution-here>=1: not installed" in outcome.stdout
    assert "Run: python3 -m course_lib" in outcome.stdout
    assert "[ok]      Python" in outcome.stdout


def test_doctor_in_a_sound_environment(course):
    outcome = run(course, "doctor", OMP_NUM_THREADS="1")
    assert outcome.returncode == 0, outcome.stdout
    assert "device: " in outcome.stdout
    assert "[ok]      torch>=2.6,<2.14: 2." in outcome.stdout
    assert "All is well." in outcome.stdout


def test_doctor_asks_for_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert "Unset OMP_NUM_THREADS" in next(doctor._compute()).remedy


def test_doctor_reads_the_progress_file(tmp_path, monkeypatch):
    path = tmp_path / "progress #1.sqlite"
    monkeypatch.setenv("COURSE_LIB_PROGRESS", str(path))
    assert "nothing recorded yet" in doctor._progress_file().text
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE attempt (id)")
    assert not doctor._progress_file().remedy
    path.write_bytes(b"not a database" * 100)
    assert "cannot be read" in doctor._progress_file().text
    assert doctor._progress_file().remedy


def test_doctor_reports_a_broken_environment(monkeypatch):
    def broken():
        raise Problem("It is broken.", "a reason.", "a remedy")

    monkeypatch.setattr(environment, "ready", broken)
    assert str(doctor._environment()) == "[problem] It is broken. a reason.\n          a remedy"


def test_doctor_asks_for_room(monkeypatch):
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda path: doctor.shutil._ntuple_diskusage(9, 9, 10**6)
    )
    assert doctor._space().remedy.startswith("Make room")


# What `import course_lib` gives


def test_the_package_is_imported_without_pytorch():
    script = "import sys, course_lib, course_lib.cli; print('torch' in sys.modules, 'numpy' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == ["False", "False"]


def test_every_public_name_is_a_function_also_where_a_module_has_its_name():
    from course_lib import session

    for name in course_lib.__all__:
        assert getattr(course_lib, name) is getattr(session, name)
    assert set(course_lib.__all__) <= set(dir(course_lib))


def test_a_name_that_does_not_exist():
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = course_lib.chekc


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def interrupted(rest):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "status", interrupted)
    assert cli.main(["status"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_the_first_notebook_is_what_opens(monkeypatch, tmp_path):
    monkeypatch.setattr(workbook, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(workbook, "WORKBOOK", tmp_path / "workbook")
    for name in ("01_b.ipynb", "00_a.ipynb"):
        (tmp_path / name).write_text('{"cells": []}')
    started = []
    monkeypatch.setattr(environment, "prepare", lambda: Path("python"))
    monkeypatch.setattr(environment, "hand_over", lambda command, env: started.append(command) or 0)
    monkeypatch.setattr(workbook, "RECORD", tmp_path / "workbook" / "record.json")
    assert cli.main(["--port=1"]) == 0
    assert "--LabApp.default_url=/lab/tree/00_a.ipynb" in started[0]
    assert started[0][-1] == "--port=1"
