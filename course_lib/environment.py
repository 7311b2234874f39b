"""Which Python runs the course, and how that environment is made. Standard library only.

The active interpreter is used where it meets `requirements.txt`; otherwise `.venv` in the course's folder.
A stamp inside says that we made it, and from which requirements: a `.venv` without one is never touched.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "course_lib.json"
GIGABYTE = 10**9
SPACE_NEEDED = 2 * GIGABYTE  # measured: 1.5 GB with the CPU build of PyTorch, and what pip unpacks meanwhile
PIP_LINES_SHOWN = 4
SECONDS_TO_END = 5  # for pip to clear its own things away after Ctrl-C
NETWORK_SIGNS = (  # in what pip says
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "ReadTimeout",
    "ProxyError",
    "Connection refused",
    "connection broken",
)


class Problem(Exception):
    """Something that a person can put right: what happened, why, and what to do next."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.why, self.remedy = what, why, remedy

    def __str__(self) -> str:
        indent = "\n" + " " * len("  What to do: ")
        why, remedy = (text.replace("\n", indent) for text in (self.why, self.remedy))
        return f"{self.what}\n  Why:        {why}\n  What to do: {remedy}"


# What is required, and what is there


@dataclass(frozen=True)
class Missing:
    """A requirement that an interpreter does not meet; `installed` is empty where there is nothing at all."""

    requirement: str
    installed: str


def requirement_lines(extras: Sequence[str] = ()) -> list[str]:
    """The requirements as text: those of the learner, then those of the extras (`pyproject.toml`)."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    required = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return required + [line for extra in extras for line in _extra(extra)]


def _extra(name: str) -> list[str]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        from pip._vendor import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["optional-dependencies"][name]


def missing(extras: Sequence[str] = ()) -> list[Missing]:
    """The requirements that the active interpreter does not meet.

    Raises ImportError where it has neither `packaging` nor pip, so that nothing can be said.
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:
        from pip._vendor.packaging.requirements import Requirement
    unmet = []
    for line in requirement_lines(extras):
        requirement = Requirement(line)
        version = installed_version(requirement.name)
        if not version or not requirement.specifier.contains(version, prereleases=True):
            unmet.append(Missing(line, version))
    return unmet


def installed_version(distribution: str) -> str:
    """The version that the active interpreter has of a distribution; empty if it has none."""
    try:
        return metadata.version(distribution) or ""
    except metadata.PackageNotFoundError:
        return ""


def satisfied(extras: Sequence[str] = ()) -> bool:
    """Whether the active interpreter meets every requirement."""
    try:
        return not missing(extras)
    except ImportError:
        return False


# The stamp in `.venv`


@dataclass(frozen=True)
class Stamp:
    """What `.venv` was made from. An empty fingerprint: it was never finished."""

    fingerprint: str = ""
    extras: tuple[str, ...] = ()


def fingerprint() -> str:
    """Changes whenever what has to be installed changes."""
    parts = [(ROOT / name).read_bytes() for name in ("requirements.txt", "pyproject.toml")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read_stamp() -> Stamp | None:
    """The stamp of `.venv`; None where there is no `.venv`, or one that the course did not make."""
    try:
        fields = json.loads(STAMP.read_text(encoding="utf-8"))
        return Stamp(fields["fingerprint"], tuple(fields["extras"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):  # cut short: ours, and not finished
        return Stamp()


def _write_stamp(stamp: Stamp) -> None:
    fields = {"fingerprint": stamp.fingerprint, "extras": list(stamp.extras)}
    STAMP.write_text(json.dumps(fields), encoding="utf-8")


def venv_python() -> Path:
    """The interpreter inside `.venv`."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def venv_ready(extras: Sequence[str] = ()) -> bool:
    """Whether `.venv` is finished and made from today's requirements. Raises Problem if it no longer runs."""
    stamp = read_stamp()
    if not stamp or stamp.fingerprint != fingerprint() or not set(extras) <= set(stamp.extras):
        return False
    _require_working_venv()
    return True


def _require_working_venv() -> None:
    """Start its Python: 10 ms, and it finds a Python that was updated or removed since."""
    probe = "import sys; from importlib.util import find_spec; sys.exit(find_spec('jupyterlab') is None)"
    command = [venv_python(), "-I", "-c", probe]
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        reason = outcome.stderr.strip().splitlines()[-1:] or ["it has lost its packages"]
    except OSError as error:
        reason = [str(error)]
    else:
        if outcome.returncode == 0:
            return
    raise Problem(
        "The environment in .venv is broken.",
        f"its Python does not work ({reason[0]}).\n"
        "This happens when the Python that it was made from is updated or removed.",
        f"remove it, then run the course again:\n{_removal_command()}",
    )


def _removal_command() -> str:
    return f'cmd /c rmdir /s /q "{VENV}"' if os.name == "nt" else f"rm -rf '{VENV}'"


# Making it


def prepare(extras: Sequence[str] = ()) -> Path:
    """The interpreter to run the course with; sets `.venv` up first where that is needed.

    Raises Problem. Nothing half-made is left behind.
    """
    if satisfied(extras):
        return Path(sys.executable)
    if not venv_ready(extras):
        with _only_one_at_a_time():
            _set_up(tuple(extras))
    return venv_python()


def ready(extras: Sequence[str] = ()) -> Path | None:
    """The interpreter to run the course with, or None where none has been set up."""
    if satisfied(extras):
        return Path(sys.executable)
    return venv_python() if venv_ready(extras) else None


@contextmanager
def _only_one_at_a_time() -> Iterator[None]:
    lock = VENV.with_name(".venv.lock")
    try:
        handle = lock.open("a+")
    except OSError as error:
        raise _cannot_write(error) from error
    with handle:
        _lock(handle.fileno())
        try:
            yield
        finally:
            with suppress(PermissionError):  # Windows keeps a file that is open
                lock.unlink()


def _lock(descriptor: int) -> None:
    """Raises Problem if another process holds it. The lock ends with its process, however that ends."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Problem(
            "The course is being set up in another terminal.",
            "two set-ups at once would get into each other's way.",
            "wait for the other one to finish, then run this again.",
        ) from None


def _set_up(extras: tuple[str, ...]) -> None:
    stamp = read_stamp()
    if stamp is None and os.path.lexists(VENV):
        raise Problem(
            "There is a .venv in this folder that the course did not make.",
            "the course keeps its packages in .venv, and does not change or remove what is yours.",
            f"to use yours, install into it and run the course with it:\n"
            f"'{venv_python()}' -m pip install -r '{ROOT / 'requirements.txt'}'\n"
            f"'{venv_python()}' -m course_lib\n"
            f"or remove it, and the course makes its own:\n{_removal_command()}",
        )
    if stamp and stamp.fingerprint:
        _update(stamp, tuple(sorted({*stamp.extras, *extras})))
    else:
        _create(extras, interrupted=stamp is not None)


def _update(stamp: Stamp, extras: tuple[str, ...]) -> None:
    _require_working_venv()
    changed = stamp.fingerprint != fingerprint()
    _say(
        "What the course needs has changed since .venv was made."
        if changed
        else ".venv lacks what this needs."
    )
    try:
        _write_stamp(Stamp())
        _say_step(1, 1, "Installing what is missing")
        _install(extras)
        _write_stamp(Stamp(fingerprint(), extras))
    except Problem:  # pip takes back what it began: the environment is what it was
        _write_stamp(stamp)
        raise
    except KeyboardInterrupt:
        _remove()
        raise


def _create(extras: tuple[str, ...], *, interrupted: bool) -> None:
    _require_venv_module()
    if interrupted:
        _say("An earlier set-up did not finish. Clearing what it left, and beginning again.")
        _remove()
    _require_space()
    _say(f"Setting the course up in {VENV}. This happens once; fetching PyTorch takes some minutes.")
    try:
        _say_step(1, 2, f"Creating an environment with Python {sys.version_info[0]}.{sys.version_info[1]}")
        _create_empty()
        _say_step(2, 2, "Installing what requirements.txt lists; from here on pip reports")
        _install(extras)
        _write_stamp(Stamp(fingerprint(), extras))
    except BaseException:  # Ctrl-C too
        _say("\nClearing away what was begun.")
        _remove()
        raise


def _require_venv_module() -> None:
    lacking = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
    if lacking:
        major, minor = sys.version_info[:2]
        raise Problem(
            "This Python cannot make environments.",
            f"its standard library has no {' and no '.join(lacking)}; some systems package it separately.",
            f"on Debian and Ubuntu: sudo apt install python{major}.{minor}-venv\n"
            "elsewhere install Python from python.org or conda. Then run the course again.",
        )


def _require_space() -> None:
    if shutil.disk_usage(ROOT).free < SPACE_NEEDED:
        raise _no_space()


def _no_space() -> Problem:
    import tempfile

    folders = dict.fromkeys([str(ROOT), tempfile.gettempdir()])
    free = [f"{shutil.disk_usage(path).free / GIGABYTE:.1f} GB are free in {path}" for path in folders]
    needed = f"it needs {SPACE_NEEDED / GIGABYTE:.0f} GB, up to 8 GB where pip installs PyTorch with CUDA."
    return Problem(
        "There is not enough space on the disk to set the course up.",
        "\n".join([needed, *free]),
        "make room and run the course again; TMPDIR names another folder for temporary files.",
    )


def _cannot_write(error: OSError) -> Problem:
    return Problem(
        "The course cannot write to its own folder.",
        str(error),
        f"make {ROOT} writable, or copy it to a folder of yours and run the course there.",
    )


def _create_empty() -> None:
    import venv

    try:
        VENV.mkdir()
        _write_stamp(Stamp())
        venv.EnvBuilder(with_pip=True, symlinks=os.name != "nt", prompt="inside-pytorch").create(VENV)
    except OSError as error:
        raise (_no_space() if error.errno == errno.ENOSPC else _cannot_write(error)) from error
    except subprocess.CalledProcessError as error:
        output = (error.output or b"").decode(errors="replace")
        raise _pip_failed(output.splitlines()) from error


def _install(extras: tuple[str, ...]) -> None:
    target = f".[{','.join(extras)}]" if extras else "."
    pip = [str(venv_python()), "-m", "pip", "install", "--editable", target]
    exit_code, complaints = _run_pip(pip)
    if exit_code:
        raise _pip_failed(complaints)


def _run_pip(command: list[str]) -> tuple[int, list[str]]:
    """What pip says goes through as it comes. Returns its exit code, and what it said on stderr."""
    variables = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    streams = {"stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    with subprocess.Popen(command, cwd=ROOT, env=variables, **streams) as pip:
        try:
            complaints = [_pass_on(line) for line in pip.stderr]
        except KeyboardInterrupt:  # pip was told too
            _end(pip)
            raise
    return pip.returncode, complaints


def _pass_on(line: str) -> str:
    sys.stderr.write(line)
    sys.stderr.flush()
    return line.rstrip()


def _end(process: subprocess.Popen) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_TO_END)
    process.kill()
    process.wait()


def _pip_failed(complaints: list[str]) -> Problem:
    """What has gone wrong, by what pip said on stderr, line by line."""
    text = "\n".join(complaints)
    if "No space left on device" in text or "not enough space on the disk" in text:
        return _no_space()
    signs = ("ERROR: ", "WARNING: Retrying")
    said = [line.strip() for line in complaints]
    telling = [line for line in said if line.startswith(signs)] or said
    why = "\n".join(["pip stopped. Its last lines:", *telling[-PIP_LINES_SHOWN:]])
    if any(sign in text for sign in NETWORK_SIGNS):
        return Problem(
            "The course's packages could not be fetched: the network did not answer.",
            why,
            "check the connection (a proxy goes into HTTPS_PROXY), then run the course again.",
        )
    return Problem(
        "The course's packages could not be installed.",
        why,
        "read what pip says above; once that is put right, run the course again.",
    )


def _remove() -> None:
    """Remove our unfinished `.venv`. Raises Problem."""
    shutil.rmtree(ROOT / "course_lib.egg-info", ignore_errors=True)
    try:
        if VENV.exists():
            _empty()
            VENV.rmdir()
    except OSError as error:
        raise Problem(
            "The unfinished .venv could not be removed.",
            str(error),
            f"end what uses it (and leave it: deactivate), then:\n{_removal_command()}",
        ) from error


def _empty() -> None:
    """The stamp goes last: what an interruption leaves is still known to be ours."""
    for path in VENV.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != STAMP:
            path.unlink()
    STAMP.unlink(missing_ok=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _say_step(number: int, total: int, text: str) -> None:
    _say(f"\n[{number}/{total}] {text}")


# Running things in it


def variables() -> dict[str, str]:
    """The environment variables of everything that the course starts.

    One thread: two of them on a busy laptop can be fifty times slower. `PYTHONPATH`: a kernel starts in
    `workbook/`, and finds this course even where the active environment has none or another one installed.
    """
    chosen = {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", "JUPYTER_PREFER_ENV_PATH": "1", **os.environ}
    chosen["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return chosen


def hand_over(command: Sequence[str | Path], env: dict[str, str], folder: Path | None = None) -> int:
    """Become `command` where the system can do that; else run it and return its exit code."""
    arguments = [str(part) for part in command]
    if os.name == "posix":
        sys.stdout.flush()
        os.chdir(folder or Path.cwd())
        os.execve(arguments[0], arguments, env)
    with subprocess.Popen(arguments, env=env, cwd=folder) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # the child was told too, and ends in its own way
                continue
