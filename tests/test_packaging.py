"""One list of what a learner needs: everything else follows requirements.txt."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from importlib.util import find_spec

import pytest

from course_lib.__main__ import BEYOND, OLDEST
from course_lib.environment import ROOT, requirement_lines

RANGE = f">={OLDEST[0]}.{OLDEST[1]},<{BEYOND[0]}.{BEYOND[1]}"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package as pip builds it, from a copy, with the setuptools that is installed."""
    if not (find_spec("setuptools") and find_spec("pip")):
        pytest.skip("neither setuptools nor pip is installed here, so no wheel can be built")
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "course_lib", folder / "course_lib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "README.md").write_text("# Read me\n")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as built:
        yield built


def test_the_metadata_follows_requirements(wheel):
    name = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = wheel.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, re.MULTILINE)
    assert {normal(line) for line in required} == {normal(line) for line in requirement_lines()}
    python = re.search(r"^Requires-Python: (.+)$", metadata, re.MULTILINE).group(1)
    assert normal(python) == normal(RANGE)


def normal(requirement: str) -> tuple[str, ...]:
    """Without spaces, and with the bounds in one order."""
    return tuple(sorted(re.findall(r"[<>=!~]=?[\d.]+|[\w-]+(?=[<>=!~]|$)", requirement.replace(" ", ""))))


def test_the_package_holds_every_room_and_every_file(wheel):
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "course_lib").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel.namelist() if name.startswith("course_lib/")} == here


def test_conda_follows_requirements():
    lines = [line.strip() for line in read("environment.yml").splitlines() if line.strip().startswith("- ")]
    assert lines == ["- conda-forge", f"- python{RANGE}", "- pip", "- pip:", "- -r requirements.txt"]


def test_the_python_range_is_said_once_and_the_same():
    assert f'requires-python = "{RANGE}"' in read("pyproject.toml")


def test_requirements_are_names_with_bounds():
    names = [re.match(r"[A-Za-z0-9-]+", line).group() for line in requirement_lines()]
    assert len(names) == len(set(names))
    assert all(re.search(r">=", line) for line in requirement_lines())


def test_the_suite_runs_with_what_is_optional_for_learners():
    optional = set(requirement_lines(["onnx"])) - set(requirement_lines())
    assert len(optional) == 3 and optional <= set(requirement_lines(["test"]))


def test_what_is_the_learners_is_not_committed(tmp_path):
    if not shutil.which("git"):
        pytest.skip("git is not installed here")
    shutil.copy(ROOT / ".gitignore", tmp_path)
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "init", "--quiet", "."], cwd=tmp_path, check=True, env=environ)
    ignored = [
        "workbook/01_tensors.ipynb",
        "progress.sqlite",
        "progress.sqlite-wal",
        ".venv/pyvenv.cfg",
        ".venv.lock",
    ]
    kept = [
        "notebooks/01_tensors.ipynb",
        "solutions/01_tensors.ipynb",
        "course_lib/workbook.py",
        "tests/test_workbook.py",
    ]
    command = ["git", "check-ignore", "--", *ignored, *kept]
    answer = subprocess.run(command, cwd=tmp_path, check=True, env=environ, capture_output=True, text=True)
    assert answer.stdout.split() == ignored


# .ci/run


@pytest.mark.skipif(os.name == "nt", reason=".ci/run is for bash")
@pytest.mark.parametrize("has_apt", [True, False])
def test_ci_installs_a_browser_where_it_can_and_exits_as_the_tests_do(tmp_path, has_apt):
    """With stand-ins for all the programs that it calls; none of them is the machine's."""
    tools = {"python3": 'case "$1" in -m) echo "tests $*"; exit 7;; esac', "id": "echo 0"}
    if has_apt:
        tools["apt-get"] = 'echo "apt-get $*"; exit 1'
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    bash = shutil.which("bash")
    command = [bash, str(ROOT / ".ci" / "run"), "-x"]
    outcome = subprocess.run(
        command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 7, outcome.stderr
    assert "tests -m course_lib test -x" in outcome.stdout
    assert "tests that need a browser will be skipped" in outcome.stderr
    assert ("apt-get update" in outcome.stdout) == has_apt


def test_ci_can_be_executed():
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR or os.name == "nt"
