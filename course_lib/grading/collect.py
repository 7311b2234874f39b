"""`collect`: what was handed in, wherever it lies, into FOLDER/<student>/<notebook>.ipynb.

Sources are folders, notebooks and zips, also zips of zips as learning platforms export them; `intake` says who and
which. Nothing is lost: where a file is there already and differs, the later one counts. An earlier one that was there
moves to FOLDER/<student>/backups, one that comes is set aside, and the table says so. Files are copied byte for byte,
damaged ones too, so that `grade FOLDER` can say what is wrong with them.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_lib.grading.intake import File, Submission, Survey, survey, walk

TAKEN_ALL, SEE_TABLE, COULD_NOT_RUN = 0, 1, 2  # exit codes
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')  # in file names, on one system or another
DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
NAME_LENGTH = 100  # bytes


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    student: str
    notebook: str
    outcome: str  # taken, already there, newer version taken, set aside
    remark: str = ""
    is_problem: bool = False


class NotCollected(Exception):
    """Nothing can be collected. The message says why and what to do."""


def main(sources: Sequence[Path], folder: Path) -> int:
    """Collect, print the table, return the exit code."""
    try:
        lines = collect(sources, folder)
    except (NotCollected, OSError) as problem:
        print(f"course_lib: nothing more was collected. {problem}")
        return COULD_NOT_RUN
    print(_table(lines))
    print(f"\n{_counted(lines)}. Grade them: python3 -m course_lib grade {folder} -o OUT")
    return SEE_TABLE if any(line.is_problem for line in lines) else TAKEN_ALL


def collect(sources: Sequence[Path], folder: Path) -> list[Line]:
    """Copy what `sources` hold into `folder`; what became of each file.

    Raises NotCollected where a source is missing, holds nothing or overlaps with `folder`, and OSError where
    `folder` can't be written.
    """
    _refuse_bad_sources(sources, folder)
    found = survey(sources)
    if not found.submissions:
        raise NotCollected("There is no notebook and no zip in what you named.")
    wanted = {(one.path, one.member): one for one in found.submissions}
    targets = _targets(found.submissions, folder)
    lines = []
    for file in walk(sources):
        submission = wanted.pop((file.path, file.member), None)
        if submission:
            lines.append(_take(submission, file, targets[submission.place]))
    lines.sort(key=lambda line: (line.student.casefold(), line.notebook))
    return [*lines, *_rest(found)]


def _refuse_bad_sources(sources: Sequence[Path], folder: Path) -> None:
    goal = folder.resolve()
    for source in map(Path, sources):
        if not source.exists():
            raise NotCollected(f"There is no {source}. Name a folder, a zip or a notebook.")
        place = source.resolve()
        if place == goal or goal in place.parents or (place in goal.parents and source.is_dir()):
            raise NotCollected(
                f"{folder} and {source} lie in each other. Choose a folder outside of it with -o."
            )


def _targets(submissions: Iterable[Submission], folder: Path) -> dict[str, Path]:
    """Where each goes: a folder for each student, also where a system doesn't tell the names apart."""
    folders, names = {}, Counter()
    for student in dict.fromkeys(one.student for one in submissions):
        name = safe_name(student)
        names[name.casefold()] += 1
        count = names[name.casefold()]
        folders[student] = folder / (name if count == 1 else f"{name} ({count})")
    return {one.place: folders[one.student] / f"{one.notebook or _stem(one)}.ipynb" for one in submissions}


def _stem(submission: Submission) -> str:
    name = (submission.member or submission.path.name).replace(" > ", "/").rsplit("/", 1)[-1]
    return safe_name(name.partition(".ipynb")[0])


def safe_name(text: str) -> str:
    """A name for a file or folder that every system takes; texts that had to be cut short stay apart."""
    name = FORBIDDEN.sub("_", text).rstrip(". ") or "_"
    if name.startswith((".", "-")) or DEVICES.match(name):
        name = f"_{name}"
    if len(name.encode()) > NAME_LENGTH:
        name = f"{name[:40]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return name


# ---- taking ------------------------------------------------------------------------------------------------------


def _take(submission: Submission, file: File, target: Path) -> Line:
    outcome, note = _put_there(file, target) if file.content else ("set aside", "")
    remark = "; ".join(filter(None, (note, submission.problem, *submission.notes)))
    return Line(submission.student, submission.notebook, outcome, remark, bool(submission.problem))


def _put_there(file: File, target: Path) -> tuple[str, str]:
    """Write the file unless an equal or a later one is there; what was done, and what there is to say about it."""
    outcome, note = "taken", ""
    if target.exists():
        if target.read_bytes() == file.content:
            return "already there", ""
        if target.stat().st_mtime > file.modified:
            return "set aside", f"{file.place} is older than the one that is there"
        outcome, note = "newer version taken", f"the one that was there is kept as {_set_back(target)}"
    put(target, file.content)
    os.utime(target, (file.modified, file.modified))  # so that a later call knows which one is newer
    return outcome, note


def _set_back(target: Path) -> str:
    """Move what is at `target` to `backups/`, under a name that says when and is free."""
    folder = target.parent / "backups"
    folder.mkdir(exist_ok=True)
    for name in _free_names(f"{target.stem}.{datetime.now():%Y%m%d-%H%M%S}"):
        kept = folder / name
        try:
            os.link(target, kept)  # fails where the name is taken; a rename would overwrite it
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            os.replace(target, kept)
        return f"backups/{name}"
    raise AssertionError("names do not run out")


def _free_names(stem: str) -> Iterator[str]:
    yield f"{stem}.ipynb"
    number = 2
    while True:
        yield f"{stem}-{number}.ipynb"
        number += 1


def put(path: Path, content: bytes) -> None:
    """All or nothing: whatever happens, `path` holds the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")
    try:
        with fresh.open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


# ---- the table ---------------------------------------------------------------------------------------------------


def _rest(found: Survey) -> list[Line]:
    return [Line("", "", "set aside", f"{one.place}: {one.reason}") for one in found.set_aside]


def _table(lines: Sequence[Line]) -> str:
    rows = [(_plain(line.student), line.notebook, line.outcome, _plain(line.remark)) for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*(f"{c:{w}}" for c, w in zip(row, widths)), row[3]]).rstrip() for row in rows)


def _plain(text: str) -> str:
    """Names come from outside: nothing in them may steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _counted(lines: Sequence[Line]) -> str:
    counts = Counter(line.outcome for line in lines)
    students = len({line.student for line in lines if line.student})
    return f"{students} students: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
