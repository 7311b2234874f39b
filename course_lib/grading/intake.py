"""Who handed in what: submissions in folders, notebooks and zips, as learners and learning platforms leave them.

One bad file never stops the rest: what can't be graded becomes a `Submission` with a `problem`.

| what was found | what is done |
|---|---|
| check and predict cells edited, emptied, deleted, doubled, moved | nothing: they are not asked for a verdict |
| an answer cell doubled, or moved | the last definition counts, wherever it stands |
| an answer cell turned into text | it is not judged, and a note says so |
| metadata or ids lost or doubled, another kernel, a new file name | noted; known by metadata, else name, else content |
| nbformat 3, byte-order mark, Windows line ends, lone surrogates, bytes that are no text | read, and noted |
| any amount of outputs | not looked at, up to `LARGEST` bytes of file |
| an empty file, cut-short JSON, no notebook, no exercise of the course | problem |
| `.ipynb_checkpoints`, `__MACOSX`, `backups`, hidden files, other files | set aside |
| a zip, also in a zip (`DEPTH` deep) | looked into; nothing is ever unpacked to disk |
| a zip member named `../x` or `/x`, a link (also outside of zips) | not followed: problem |
| a zip with a password, damaged, too large unpacked, too deep, with too many files; `.rar`, `.7z`, `.tar` | problem |
| two files of one student for one notebook | one counts (`_rank`), the other is set aside and noted on the first |
| two students whose ids are equal, up to case or spaces | kept apart, the second as `id (2)`, and noted on both |
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import time
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from course_lib import exercises, notebook
from course_lib.notebook import NotACourseNotebook

LARGEST = 256 * 2**20  # bytes of one file, unpacked
MOST_BYTES = 2 * 2**30  # bytes unpacked from one archive, all that is in it together
MOST_MEMBERS = 20_000
DEPTH = 3  # a zip of students' zips is 2
ID_LENGTH = 120
COURSE_FOLDERS = {"workbook", "notebooks", "solutions"}  # they say nothing about who it is
SKIPPED_FOLDERS = {".ipynb_checkpoints", "__MACOSX", "backups", "__pycache__"}
OTHER_ARCHIVES = (".rar", ".7z", ".tar", ".gz", ".tgz", ".bz2", ".xz")

# How learning platforms name what they export, and what in it says who it is: the name with the platform's number.
CANVAS = re.compile(r"(?P<who>[^_/]+)(?P<late>_LATE)?_(?P<id>\d{3,})_(?P<upload>\d{3,})_.+", re.DOTALL)
MOODLE = re.compile(r"(?P<who>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+_?.*", re.DOTALL)
ENDINGS = re.compile(r"(\.ipynb(\.\w+)?|\.zip|(\.tar)?\.(rar|7z|tar|gz|tgz|bz2|xz))$", re.IGNORECASE)
RESUBMITTED = re.compile(r"[-_ ]?\(?(\d{1,2})\)?$")  # 01_tensors-1, 01_tensors (2)


@dataclass(frozen=True)
class Submission:
    """One notebook that a student handed in, or a file that should have been one."""

    student: str  # cleaned id
    notebook: str  # "01_tensors", or "" where it can't be told
    path: Path  # the file as found; for a member of a zip the path of the zip
    member: str = ""  # name inside the zip
    digest: str = ""  # sha256 of the bytes of the file, first 16 hex digits
    cells: tuple[str, ...] = ()  # sources of the code cells
    problem: str = ""  # why it can't be graded, in one sentence
    notes: tuple[str, ...] = ()  # what was repaired or odd

    @property
    def place(self) -> str:
        """Where it was found, for people."""
        return f"{self.path} > {self.member}" if self.member else str(self.path)


@dataclass(frozen=True)
class SetAside:
    """Something that is no submission, or not the one that counts."""

    place: str
    reason: str
    student: str = ""  # where it is known


@dataclass(frozen=True)
class Survey:
    """All that was found: what is to be graded, and the rest with the reason."""

    submissions: list[Submission]
    set_aside: list[SetAside]


@dataclass(frozen=True)
class File:
    """A file as the walk comes by it. `chain` leads from below the source to it, through folders and zips."""

    source: Path  # what the caller named
    path: Path
    chain: tuple[str, ...]
    member: str = ""
    modified: float = 0.0
    content: bytes = field(default=b"", repr=False)
    problem: str = ""

    @property
    def name(self) -> str:
        return self.chain[-1]

    @property
    def place(self) -> str:
        return f"{self.path} > {self.member}" if self.member else str(self.path)


def find_submissions(paths: Iterable[Path]) -> list[Submission]:
    """What is to be graded, by student and notebook: one submission for each pair."""
    return survey(paths).submissions


def survey(paths: Iterable[Path]) -> Survey:
    """Look through folders, notebooks and zips. Never raises for what is in them."""
    files, others = _sorted_out(paths)
    found = _told_apart(_named(files) + _empty_handed(others, files))
    aside = [SetAside(file.place, reason) for file, reason in others]
    chosen = []
    for rivals in _by_student_and_notebook(found).values():
        submission, losers = _best(rivals)
        chosen.append(submission)
        aside += losers
    chosen.sort(key=lambda one: (one.student.casefold(), one.student, one.notebook, one.place))
    return Survey(chosen, aside)


# ---- every file, also inside of zips -----------------------------------------------------------------------------


def walk(paths: Iterable[Path]) -> Iterator[File]:
    """Every file below the paths, in a fixed order, once, the content of notebooks with it."""
    seen = set()
    for source in map(Path, paths):
        for path in _files_in(source) if source.is_dir() else (source,):
            place = os.path.abspath(path)
            if place not in seen:
                seen.add(place)
                below = path.relative_to(source).parts
                yield from _opened(source, path, below or (path.absolute().name,))


def _files_in(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):  # does not follow links
        linked = [name for name in folders if os.path.islink(os.path.join(where, name))]
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS - set(linked))
        yield from (Path(where, name) for name in sorted([*names, *linked]))


def _opened(source: Path, path: Path, chain: tuple[str, ...]) -> Iterator[File]:
    file = File(source, path, chain)
    try:
        about = path.lstat() if path != source else path.stat()
        file = replace(file, modified=about.st_mtime)
        if stat.S_ISLNK(about.st_mode):
            yield replace(file, problem="it is a link; links are not followed")
        elif not stat.S_ISREG(about.st_mode):
            yield replace(file, problem="it is no ordinary file")
        elif _is_zip(path.name):
            yield from _in_zip(file, path, _Budget())
        elif not _is_notebook(path.name):
            yield file
        elif about.st_size > LARGEST:
            yield replace(file, problem=_too_large())
        else:
            yield replace(file, content=path.read_bytes())
    except OSError as error:
        yield replace(file, problem=f"it can't be read: {error.strerror or error}")


class _Budget:
    """What may still be unpacked from one archive, everything inside of it together."""

    def __init__(self) -> None:
        self.bytes, self.members = MOST_BYTES, MOST_MEMBERS


def _in_zip(archive: File, data: Path | io.BytesIO, budget: _Budget, depth: int = 1) -> Iterator[File]:
    """The files of a zip; `archive` is the zip itself as it was found."""
    if depth > DEPTH:
        yield replace(archive, problem=f"there are zips inside of zips, more than {DEPTH} deep")
        return
    try:
        with zipfile.ZipFile(data) as opened:
            for info in opened.infolist():
                budget.members -= 1
                if budget.members < 0:
                    yield replace(archive, problem=f"the zip holds more than {MOST_MEMBERS} files")
                    return
                if not info.is_dir():
                    yield from _member(archive, opened, info, budget, depth)
    except Exception as error:  # a damaged zip may break the reader in any way
        yield replace(archive, problem=f"the zip can't be opened ({_words(error)})")


def _member(
    archive: File, opened: zipfile.ZipFile, info: zipfile.ZipInfo, budget: _Budget, depth: int
) -> Iterator[File]:
    name = _name_of(info)
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    member = f"{archive.member} > {name}" if archive.member else name
    file = replace(archive, member=member, modified=_time_of(info))
    if not _is_inside(name, parts):
        yield replace(file, problem=f"the zip names a place outside of itself, {name[:80]!r}")
        return
    file = replace(file, chain=(*archive.chain, *parts))
    if SKIPPED_FOLDERS & set(parts[:-1]) or not (_is_zip(name) or _is_notebook(name)):
        yield file
    elif stat.S_ISLNK(info.external_attr >> 16):
        yield replace(file, problem="it is a link; links are not followed")
    elif info.flag_bits & 1:
        yield replace(file, problem="the zip is protected by a password")
    else:
        yield from _unpacked(file, opened, info, budget, depth)


def _unpacked(
    file: File, opened: zipfile.ZipFile, info: zipfile.ZipInfo, budget: _Budget, depth: int
) -> Iterator[File]:
    """A member's bytes, counted as they come: what a zip says about its sizes may be wrong."""
    limit = min(LARGEST, budget.bytes)
    try:
        with opened.open(info) as stream:
            content = stream.read(limit + 1)
    except Exception as error:  # each way of packing has exceptions of its own
        yield replace(file, problem=f"it can't be unpacked ({_words(error)})")
        return
    budget.bytes -= len(content)
    if len(content) > limit:
        yield replace(file, problem=_too_large())
    elif _is_zip(file.name):
        yield from _in_zip(file, io.BytesIO(content), budget, depth + 1)
    else:
        yield replace(file, content=content)


def _name_of(info: zipfile.ZipInfo) -> str:
    """The member's name with forward slashes; UTF-8 where the zip holds it without saying so."""
    name = info.orig_filename if "\0" in info.orig_filename else info.filename
    if not info.flag_bits & 0x800:
        with suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")


def _is_inside(name: str, parts: tuple[str, ...]) -> bool:
    is_absolute = name.startswith("/") or re.match(r"[A-Za-z]:", name)
    return bool(parts) and ".." not in parts and not is_absolute and "\0" not in name


def _time_of(info: zipfile.ZipInfo) -> float:
    try:
        return time.mktime((*info.date_time, 0, 0, -1))
    except (ValueError, OverflowError):
        return 0.0


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120] if str(error) else type(error).__name__


def _too_large() -> str:
    return f"it is larger than {LARGEST // 2**20} MB, or what its archive holds is"


# ---- one file ----------------------------------------------------------------------------------------------------


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _is_notebook(name: str) -> bool:
    """Also `.ipynb.txt` and `.ipynb.json`, which browsers make of it."""
    return ".ipynb" in name.lower()


def _why_skipped(file: File) -> str:
    """Why a file is not looked at as a submission; empty if it is."""
    if SKIPPED_FOLDERS & set(file.chain[:-1]):
        return "a copy that a program keeps for itself"
    if file.name.startswith("."):
        return "a hidden file"
    if _is_notebook(file.name) or _is_zip(file.name) or file.name.lower().endswith(OTHER_ARCHIVES):
        return ""
    return file.problem or "no notebook"


@dataclass(frozen=True)
class _Candidate:
    """A submission with what decides whose it is and whether it counts. The file's content is gone."""

    submission: Submission
    file: File
    who: str = ""  # the id as it stands in names, before cleaning
    is_known: bool = False  # a learning platform says who it is, with its own number


def _sorted_out(paths: Iterable[Path]) -> tuple[list[_Candidate], list[tuple[File, str]]]:
    """What looks like a submission, read, and the other files with the reason; each file once."""
    candidates, others = [], []
    for file in walk(paths):
        reason, bare = _why_skipped(file), replace(file, content=b"")
        if reason:
            others.append((bare, reason))
        else:
            candidates.append(_Candidate(_read(file), bare))
    return candidates, others


def _read(file: File) -> Submission:
    digest = hashlib.sha256(file.content).hexdigest()[:16] if file.content else ""
    blank = Submission("", notebook.named_in(file.name), file.path, file.member, digest)
    if file.problem or not _is_notebook(file.name):
        other = "this kind of archive is not opened; hand in a notebook or a zip"
        return replace(blank, problem=_sentence(file.problem or other))
    try:
        found = notebook.read(file.content, file.name)
    except NotACourseNotebook as problem:
        return replace(blank, problem=_sentence(str(problem)))
    return replace(blank, notebook=found.name, cells=found.cells, notes=found.notes)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# ---- who it is ---------------------------------------------------------------------------------------------------


def _named(candidates: list[_Candidate]) -> list[_Candidate]:
    """With the student's id."""
    wrappers = _wrappers([one.file for one in candidates])
    named = []
    for one in candidates:
        who, is_known = _student(one.file, wrappers.get(one.file.source, 0))
        submission = replace(one.submission, student=_clean_id(who))
        named.append(replace(one, submission=submission, who=who, is_known=is_known))
    return named


def _empty_handed(others: list[tuple[File, str]], candidates: list[_Candidate]) -> list[_Candidate]:
    """Students of whom a platform or a zip holds something, but no notebook: they have handed in, and must show."""
    wrappers, seen = _wrappers([one.file for one in candidates]), {one.who for one in _named(candidates)}
    found = []
    for file, reason in others:
        who, is_known = _student(file, wrappers.get(file.source, 0))
        in_own_zip = file.member and any(map(_is_zip, file.chain[file.path == file.source : -1]))
        if reason == "no notebook" and (is_known or in_own_zip) and who not in seen:
            seen.add(who)
            problem = f"There is no notebook, only {file.name[:80]}."
            blank = Submission(_clean_id(who), "", file.path, file.member, problem=problem)
            found.append(_Candidate(blank, file, who, is_known))
    return found


def _wrappers(files: list[File]) -> dict[Path, int]:
    """How many folders at the top of each class's zip hold everything, and so say nothing about who it is."""
    chains: dict[Path, list[tuple[str, ...]]] = defaultdict(list)
    for file in files:
        if file.path == file.source and _is_zip(file.path.name):
            chains[file.source].append(file.chain[1:])
    return {source: _depth_of_wrapper(inside) for source, inside in chains.items()}


def _depth_of_wrapper(chains: list[tuple[str, ...]]) -> int:
    depth = 0
    while len({chain[depth : depth + 1] for chain in chains}) == 1 and all(
        len(c) > depth + 1 for c in chains
    ):
        below = {chain[depth + 1] for chain in chains}
        holds_students = any(len(chain) > depth + 2 for chain in chains) or below <= COURSE_FOLDERS
        if len(below) < 2 or not holds_students:
            break
        depth += 1
    return depth


def _student(file: File, wrapper: int) -> tuple[str, bool]:
    """The id that the names on the way to a file hold, and whether a learning platform gave it."""
    for part in file.chain:
        if match := CANVAS.fullmatch(part) or MOODLE.fullmatch(part):
            return f"{match['who']}_{match['id']}", True
    is_class = file.path == file.source and _is_zip(file.path.name) and len(file.chain) > 1
    parts = file.chain[1 + wrapper if is_class else 0 :]
    telling = (_without_notebook(part) for part in parts if part not in COURSE_FOLDERS)
    return next(filter(None, telling), "") or _folder_of(file), False


def _without_notebook(name: str) -> str:
    """`alice_01_tensors.ipynb` is alice's. Empty where the name says the notebook only."""
    stem = ENDINGS.sub("", name)
    found = notebook.named_in(stem)
    if not found:
        return stem
    start = stem.lower().index(found)
    before, after = stem[:start].strip(" _-."), stem[start + len(found) :].strip(" _-.")
    return before or ("" if re.fullmatch(r"\(?\d{1,2}\)?|new|", after) else stem)


def _folder_of(file: File) -> str:
    """A bare `01_tensors.ipynb` belongs to whom its folder or its zip is named after."""
    source = file.source.absolute()
    holder = source if source.is_dir() or _is_zip(source.name) else source.parent
    return _without_notebook(holder.name) or ENDINGS.sub("", holder.name)


def _clean_id(text: str) -> str:
    """One line, no control characters, a bounded length."""
    text = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))
    text = " ".join("".join(" " if unicodedata.category(c) == "Cc" else c for c in text).split())
    if len(text) > ID_LENGTH:
        text = f"{text[:ID_LENGTH]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text if text.strip(". ") else "unnamed"


def _told_apart(found: list[_Candidate]) -> list[_Candidate]:
    """Students whose ids look the same are two people: the second becomes `id (2)`, and both are noted."""
    clashing = _clashing(found)
    people: dict[str, dict[object, list[_Candidate]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        person = (one.who, one.file.source) if one.who in clashing else one.who
        people[one.submission.student.casefold()][person].append(one)
    taken = set(people)
    return [one for same in people.values() for one in _numbered(list(same.values()), taken)]


def _clashing(found: list[_Candidate]) -> set[str]:
    """Ids under which two sources hold different files for one notebook; a platform's own numbers don't clash."""
    holds: dict[tuple[str, str], dict[str, Path]] = defaultdict(dict)
    for one in found:
        if one.submission.notebook and not one.is_known:
            holds[one.who, one.submission.notebook][one.submission.digest] = one.file.source
    return {who for (who, _), by_digest in holds.items() if len(set(by_digest.values())) > 1}


def _numbered(people: list[list[_Candidate]], taken: set[str]) -> Iterator[_Candidate]:
    for files in people:
        student = files[0].submission.student
        others = [other[0].submission.place for other in people if other is not files]
        if files is not people[0]:
            student = _free_name(student, taken)
        notes = (f"another student has this id: {others[0]}",) if others else ()
        for one in files:
            known = one.submission
            yield replace(one, submission=replace(known, student=student, notes=(*known.notes, *notes)))


def _free_name(student: str, taken: set[str]) -> str:
    name = next(
        name for n in range(2, len(taken) + 3) if (name := f"{student} ({n})").casefold() not in taken
    )
    taken.add(name.casefold())
    return name


# ---- which one counts --------------------------------------------------------------------------------------------


def _by_student_and_notebook(found: list[_Candidate]) -> dict[tuple[str, str], list[_Candidate]]:
    groups: dict[tuple[str, str], list[_Candidate]] = defaultdict(list)
    for one in found:
        groups[one.submission.student, one.submission.notebook].append(one)
    return groups


def _best(rivals: list[_Candidate]) -> tuple[Submission, list[SetAside]]:
    """The one that counts, with notes about the others; the same bytes twice are no rivals."""
    *others, best = sorted(rivals, key=_rank)
    aside, notes = [], list(best.submission.notes)
    for other in others:
        submission = other.submission
        reason = submission.problem or "another file of this student counts for this notebook"
        if submission.digest and submission.digest == best.submission.digest:
            reason = "the same file again"
        else:
            notes.append(f"not graded, since this file counts: {submission.place}")
        aside.append(SetAside(submission.place, reason, submission.student))
    return replace(best.submission, notes=tuple(notes)), aside


def _rank(one: _Candidate) -> tuple:
    """The higher one counts: readable, worked on, from `workbook/`, the platform's latest, the newest, the name."""
    match = next((m for part in one.file.chain if (m := CANVAS.fullmatch(part))), None)
    return (
        not one.submission.problem,
        _is_worked_on(one.submission),
        "workbook" in one.file.chain,
        _resubmission(one.file.name),
        int(match["upload"][:18]) if match else 0,
        bool(match and match["late"]),
        one.file.modified,
        one.file.place,
    )


def _resubmission(name: str) -> int:
    """Canvas and browsers number a second file of one name: 01_tensors-1.ipynb, 01_tensors (1).ipynb."""
    stem = ENDINGS.sub("", name)
    found = notebook.named_in(stem)
    after = stem[stem.lower().index(found) + len(found) :] if found else ""
    match = RESUBMITTED.fullmatch(after)
    return int(match[1]) if match else 0


def _is_worked_on(submission: Submission) -> bool:
    """Whether a stub was filled in or a prediction made, by the text alone."""
    text = "\n".join(submission.cells)
    waiting = set(re.findall(r"your turn: (\w+)", text))
    defined = set(re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE))
    asked = exercises.exercises_of(submission.notebook) if submission.notebook else ()
    is_filled_in = any(one.name in defined and one.name not in waiting for one in asked)
    return is_filled_in or bool(re.search(r"""predict\(["']\w+["'], *["']""", text))
