"""What every output of grading shares: text made fit to be kept, safe file names, files replaced in one step."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

# Control characters become their pictures (␛ for the escape character); tab and line ends stay.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}
_PLAIN_NAME = re.compile(r"[a-z0-9_@-]+(\.[a-z0-9_@-]+)*")
_DEVICES = {"con", "prn", "aux", "nul"} | {f"{port}{i}" for port in ("com", "lpt") for i in range(10)}
NAME_LENGTH = 60


class OutputProblem(Exception):
    """The output folder or a file in it can't be used. The message says why and what to do."""


def plain(text: str) -> str:
    """`text` as every table, page and encoding can hold it: no control characters, no half surrogates."""
    return text.translate(_PICTURES).encode("utf-8", "backslashreplace").decode("utf-8")


def clip(text: str, length: int) -> str:
    """`text` without what goes beyond `length` characters, and with a word about it."""
    return text if len(text) <= length else f"{text[:length]} ... {len(text) - length} more characters"


def file_name(text: str) -> str:
    """A file name for `text` that is safe everywhere, and another one for every other text, up to case.

    A plain name in lower case stays as it is. Any other keeps what it can, with a digest of `text` behind a `~`,
    which no plain name has.
    """
    text = plain(text)
    if _is_plain(text):
        return text
    kept = re.sub(r"[^A-Za-z0-9_@-]+", "_", text)[:NAME_LENGTH].strip("_")
    return f"{kept}~{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _is_plain(text: str) -> bool:
    fits = len(text) <= NAME_LENGTH and _PLAIN_NAME.fullmatch(text)
    return bool(fits) and text.split(".")[0] not in _DEVICES


def replace_file(path: Path, text: str, encoding: str = "utf-8") -> Path:
    """Put `text` at `path` in one step: whoever reads it sees the old file or the new one, whole.

    Raises OutputProblem, and then the old file is still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_beside(path, text.encode(encoding))
    except OSError as error:
        raise OutputProblem(f"{path} can't be written: {reason_of(error)}.") from error
    return path


def _write_beside(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name[:40]}-{secrets.token_hex(8)}.tmp")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def reason_of(error: OSError) -> str:
    """The system's words, and what to do where they don't say it."""
    if isinstance(error, PermissionError):
        return f"{error.strerror}. Close the program that has it open, or choose another output folder"
    return f"{error.strerror or error}"
