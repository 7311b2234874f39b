"""The gradebook as CSV: long form, wide form and a layout that Canvas imports; and the reader of what is written.

Two rules make the files safe to open and exact to read. Text that a spreadsheet would take for a formula (it
begins with = + - @, their full-width forms, a tab or a line end, after any number of apostrophes) is written with
one apostrophe more in front, and `read_table` takes that one away. A cell without a mark is empty: 0 is a mark.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.grading.gradebook import Row

Cell = str | float | None
Table = tuple[Sequence[str], list[list[Cell]]]  # header, lines

_FORMULA = re.compile(r"'*[=+\-@＝＋－＠\t\r\n]")
LONG_COLUMNS = (
    "student", "notebook", "exercise", "kind", "verdict", "points", "max_points", "reason", "misconception",
    "diagnosis", "attempts",
)  # fmt: skip
CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")


def csv_text(table: Table) -> str:
    """The table as CSV, quoted where needed, with the line ends of RFC 4180."""
    header, lines = table
    text = io.StringIO()
    csv.writer(text).writerows([[_written(cell) for cell in line] for line in [header, *lines]])
    return text.getvalue()


def _written(cell: Cell) -> str:
    if isinstance(cell, str):
        return f"'{cell}" if _FORMULA.match(cell) else cell
    return "" if cell is None else number(cell)


def number(value: float) -> str:
    """A mark as people write it: 2 and 1.5, exactly."""
    return str(int(value)) if value == int(value) else repr(value)


def read_table(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file written here, by the names of its columns, with the text that went in."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header, *lines = ([_read(cell) for cell in line] for line in csv.reader(file))
    return [dict(zip(header, line)) for line in lines]


def _read(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


# ---- the three layouts -------------------------------------------------------------------------------------------


def long_form(rows: Iterable[Row]) -> Table:
    """One line for each student and item."""
    return LONG_COLUMNS, [[getattr(row, name) for name in LONG_COLUMNS] for row in rows]


def wide_form(rows: Sequence[Row]) -> Table:
    """One line for each student: a column for each item, then the sum of the marks and what it is out of.

    `ungraded` counts what has no mark yet; neither sum holds it.
    """
    items = items_of(rows)
    header = ["student", *map(_title, items), "points", "max_points", "ungraded"]
    return header, [[student, *_marks(own, items), *_sums(own)] for student, own in by_student(rows).items()]


def canvas_form(rows: Sequence[Row]) -> Table:
    """Canvas's own layout: an assignment for each notebook, and what it is out of in the second line.

    A notebook in which anything has no mark yet stays empty, because Canvas would take a part for the whole.
    Canvas finds a student by the login.
    """
    notebooks = sorted({row.notebook for row in rows if row.notebook})
    possible: list[Cell] = ["    Points Possible", "", "", "", "", *(_possible(rows, n) for n in notebooks)]
    return [*CANVAS_COLUMNS, *notebooks], [possible] + [
        [student, "", "", student, "", *(_total(own, notebook) for notebook in notebooks)]
        for student, own in by_student(rows).items()
    ]


def by_student(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each student, students in order."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.student):
        found.setdefault(row.student, []).append(row)
    return found


def total(rows: Iterable[Row]) -> float | None:
    """The sum of the marks; None where there is no mark at all."""
    marks = [row.points for row in rows if row.points is not None]
    return round(math.fsum(marks), 6) if marks else None


Item = tuple[str, str, str]  # notebook, name, kind


def items_of(rows: Iterable[Row]) -> list[Item]:
    """What the notebooks ask, notebook by notebook, each in its own order."""
    in_order = sorted(rows, key=lambda row: row.notebook)
    return list(dict.fromkeys((row.notebook, row.exercise, row.kind) for row in in_order if row.exercise))


def _title(item: Item) -> str:
    notebook, name, kind = item
    return f"{notebook} {name}" + (" (prediction)" if kind == "prediction" else "")


def _marks(own: Iterable[Row], items: Iterable[Item]) -> list[float | None]:
    marks = {(row.notebook, row.exercise, row.kind): row.points for row in own}
    return [marks.get(item) for item in items]


def _sums(own: Sequence[Row]) -> list[float | None]:
    marked = [row for row in own if row.points is not None]
    return [
        total(own),
        math.fsum(row.max_points for row in marked) if marked else None,
        len(own) - len(marked),
    ]


def _total(own: Iterable[Row], notebook: str) -> float | None:
    rows = [row for row in own if row.notebook == notebook]
    return total(rows) if all(row.points is not None for row in rows) else None


def _possible(rows: Iterable[Row], notebook: str) -> float:
    most: dict[str, float] = {}
    for row in rows:
        if row.notebook == notebook:
            most[row.exercise] = max(most.get(row.exercise, 0), row.max_points)
    return math.fsum(most.values())
