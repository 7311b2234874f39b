"""What the room believes: one page over all submissions, for the instructor.

It shows which exercises are hard, which misconceptions are common and what to say about each, and who did what.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from course_lib.checking import Verdict
from course_lib.display.theme import LINE, TINT, escape, inline
from course_lib.grading.feedback import page_of
from course_lib.grading.gradebook import COULD_NOT_BE_READ, UNSCORED, Row
from course_lib.grading.page import COLORS, SYMBOLS, badge, name, scrolling, write_page
from course_lib.grading.tables import Item, by_student, items_of, number, total

OPEN_WAITING = 8  # longer lists are folded away
OPEN_MISCONCEPTIONS = 12  # what an instructor can talk about in one session; the others are folded away

_LETTERS = {verdict: "pfeng"[place] for place, verdict in enumerate(v.value for v in Verdict)}
_LEGEND = '<p class="quiet">' + ", ".join(f"{SYMBOLS[v.value]} {v.value}" for v in Verdict) + "</p>"
_LOUD = (Verdict.FAILED.value, Verdict.ERROR.value, Verdict.GRADER_FAULT.value)

_SHEET = f"""
body {{ max-width: 1500px; }}
ol.said {{ list-style: none; padding: 0; margin: 10px 0; max-width: 90ch; }}
ol.said li {{ border: 1px solid {LINE}; border-left: 5px solid {COLORS["failed"]}; border-radius: 4px;
  padding: 6px 14px; margin: 8px 0; }}
ol.said p {{ margin: 3px 0; }}
table {{ border-collapse: separate; border-spacing: 0; font-size: 13.5px; }}
th {{ font-weight: normal; text-align: left; }}
.ranked td, .ranked th {{ padding: 3px 16px 3px 0; border-top: 1px solid {LINE}; vertical-align: baseline; }}
.ranked td {{ text-align: right; font-variant-numeric: tabular-nums; }}
.ranked thead th {{ border-top: 0; font-size: 13px; opacity: .78; vertical-align: bottom; }}
.bar {{ display: inline-block; width: 120px; height: 9px; border: 1px solid {LINE}; border-radius: 5px;
  overflow: hidden; margin-right: 8px; }}
.bar b {{ display: block; height: 100%; background: {COLORS["passed"]}; }}
section .scroll {{ max-height: 85vh; border: 1px solid {LINE}; border-radius: 4px; width: fit-content; }}
.grid th, .grid td {{ background: Canvas; border-bottom: 1px solid {LINE}; }}
.grid thead, .grid tfoot {{ position: sticky; top: 0; bottom: 0; z-index: 2; }}
.grid thead th {{ vertical-align: bottom; padding: 6px 2px; }}
.grid thead .group {{ border-bottom: 0; font-size: 12px; padding: 2px 4px 0; }}
.grid thead span {{ writing-mode: vertical-rl; transform: rotate(180deg); white-space: nowrap; }}
.grid tfoot th, .grid tfoot td {{ border-top: 1px solid {LINE}; }}
.grid tr > [scope="row"], .grid [rowspan]:first-child {{ position: sticky; left: 0; z-index: 1; padding: 1px 12px;
  max-width: min(240px, 30vw); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }}
.grid tr > [scope="row"] + td, .grid [rowspan] + [rowspan] {{ text-align: right; padding: 1px 12px 1px 0;
  white-space: nowrap; font-variant-numeric: tabular-nums; }}
.grid td {{ min-width: 22px; height: 22px; text-align: center; padding: 0; }}
.grid tfoot td {{ font-size: 11px; }}
.grid td i {{ position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }}
.grid td.wide {{ text-align: left; padding: 1px 8px; max-width: 60ch; }}
.grid td.p {{ background: linear-gradient(rgba(26, 127, 55, .2) 0 0), Canvas; }}
.grid td.s {{ background: linear-gradient(rgba(196, 55, 45, .26) 0 0), Canvas; }}
.grid tbody tr:hover > * {{ box-shadow: inset 0 0 0 99px {TINT}; }}
section {{ content-visibility: auto; contain-intrinsic-size: auto 900px; }}
"""
_SHEET += " ".join(
    f".grid td.{_LETTERS[verdict]} {{ background: {COLORS[verdict]}; color: #fff; font-weight: 600; }}"
    for verdict in _LOUD
)


class Tally(NamedTuple):
    """How the room did on one item."""

    item: Item
    verdicts: Counter[str]
    unexplained: int  # exercises that failed while no listed misconception says why

    @property
    def marked(self) -> int:
        return sum(count for verdict, count in self.verdicts.items() if verdict not in UNSCORED)

    @property
    def share(self) -> float:
        """The part of those with a mark that passed; 1 where nobody has one."""
        return self.verdicts[Verdict.PASSED.value] / self.marked if self.marked else 1.0


class Belief(NamedTuple):
    """A misconception, and the students whose answers show it."""

    notebook: str
    exercise: str
    name: str
    sentence: str
    students: frozenset[str]
    asked: int  # how many handed in the notebook


def write_room(rows: list[Row], folder: Path) -> Path:
    """Write `folder`/room.html in one step and return its path. Raises OutputProblem where it can't be written."""
    notebooks = sorted({row.notebook for row in rows if row.notebook})
    parts = [
        _summary(rows),
        _contents(notebooks),
        _attention(rows),
        _beliefs_section(beliefs(rows)),
        _difficulty_section(tallies(rows)),
        *(_grid_section(notebook, rows, folder) for notebook in notebooks),
    ]
    return write_page(folder / "room.html", "The room", _SHEET, f"<main>{''.join(parts)}</main>")


# ---- counting ----------------------------------------------------------------------------------------------------


def tallies(rows: Iterable[Row]) -> list[Tally]:
    """Every item of the notebooks, the hardest first."""
    found: dict[Item, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.notebook, row.exercise, row.kind].append(row)
    made = [_tally(item, found[item]) for item in items_of(rows)]
    return sorted(made, key=lambda tally: tally.share)


def _tally(item: Item, rows: list[Row]) -> Tally:
    failed = [row for row in rows if row.verdict == Verdict.FAILED.value and row.kind == "exercise"]
    unexplained = sum(not row.misconception for row in failed)
    return Tally(item, Counter(row.verdict for row in rows), unexplained)


def beliefs(rows: Iterable[Row]) -> list[Belief]:
    """Every misconception that was met, the commonest first."""
    students: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    sentences: dict[tuple[str, str, str], str] = {}
    asked: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        asked[row.notebook].add(row.student)
        if row.misconception:
            key = row.notebook, row.exercise, row.misconception
            students[key].add(row.student)
            sentences[key] = row.diagnosis
    found = [
        Belief(*key, sentences[key], frozenset(who), len(asked[key[0]])) for key, who in students.items()
    ]
    return sorted(found, key=lambda belief: (-len(belief.students), belief[:3]))


# ---- the head of the page ----------------------------------------------------------------------------------------


def _summary(rows: list[Row]) -> str:
    handed_in = {(row.student, row.notebook) for row in rows if row.notebook}
    students = _plural(len(by_student(rows)), "student")
    return (
        f"<h1>The room</h1><p>{students}, {_plural(len(handed_in), 'notebook')} handed in. "
        "This page knows the files that were graded, not the list of the class: "
        "whoever handed in nothing is not on it.</p>"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _contents(notebooks: list[str]) -> str:
    links = {"beliefs": "What the room believes", "difficulty": "Exercises by difficulty"}
    links |= {f"grid-{notebook}": f"Who did what: {notebook}" for notebook in notebooks}
    listed = "".join(f'<li><a href="#{quote(to)}">{escape(text)}</a></li>' for to, text in links.items())
    return f'<nav aria-label="On this page"><ul>{listed}</ul></nav>'


def _attention(rows: list[Row]) -> str:
    """What has no mark until somebody looks at it."""
    waiting = [row for row in rows if row.points is None]
    if not waiting:
        return ""
    count = f"{_plural(len(waiting), 'result')} without a mark, for you to look at; not one counts as a zero"
    opened = " open" if len(waiting) <= OPEN_WAITING else ""
    listed = "".join(map(_waiting_line, waiting))
    return f'<details class="note"{opened}><summary>{count}</summary><ul>{listed}</ul></details>'


def _waiting_line(row: Row) -> str:
    what = " ".join(filter(None, (row.notebook, row.exercise))) or "a file"
    return f"<li>{name(row.student)}, {escape(what)}: {badge(row.verdict)} {inline(row.reason)}</li>"


# ---- what the room believes --------------------------------------------------------------------------------------


def _beliefs_section(found: Sequence[Belief]) -> str:
    intro = (
        "<p>Wrong answers that the course knows, the commonest first, each with the sentence to say about it.</p>"
        if found
        else "<p>No answer shows a misconception that the course knows.</p>"
    )
    first, others = found[:OPEN_MISCONCEPTIONS], found[OPEN_MISCONCEPTIONS:]
    more = (
        f"<details><summary>{_plural(len(others), 'other misconception')}</summary>"
        f"{_beliefs_list(others)}</details>"
        if others
        else ""
    )
    return f'<h2 id="beliefs">What the room believes</h2>{intro}{_beliefs_list(first)}{more}'


def _beliefs_list(found: Sequence[Belief]) -> str:
    items = "".join(
        f"<li><p><strong>{len(b.students)} of {_plural(b.asked, 'student')}</strong> · {escape(b.notebook)} · "
        f"<code>{escape(b.exercise)}</code> <span class='quiet'>{escape(b.name)}</span></p>"
        f"<p>{inline(b.sentence)}</p></li>"
        for b in found
    )
    return f'<ol class="said">{items}</ol>' if items else ""


# ---- exercises by difficulty -------------------------------------------------------------------------------------


def _difficulty_section(found: list[Tally]) -> str:
    exercises = [tally for tally in found if tally.item[2] == "exercise"]
    predictions = [tally for tally in found if tally.item[2] != "exercise"]
    return (
        '<h2 id="difficulty">Exercises by difficulty</h2><p>The share that passed, of all who handed the notebook '
        "in; the hardest first. A result without a mark is not counted.</p>"
        f"{_ranking(exercises, 'Exercises by difficulty')}"
        f"<h3>Predictions, the most surprising first</h3>{_ranking(predictions, 'Predictions')}"
    )


def _ranking(found: list[Tally], label: str) -> str:
    if not found:
        return "<p>None.</p>"
    verdicts = [verdict.value for verdict in Verdict]
    heads = [
        "exercise",
        "notebook",
        "passed",
        *(f"{SYMBOLS[v]} {v}" for v in verdicts),
        "unexplained failures",
    ]
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    lines = "".join(_ranking_line(tally, verdicts) for tally in found)
    table = f'<table class="ranked"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return scrolling(table, label)


def _ranking_line(tally: Tally, verdicts: list[str]) -> str:
    notebook, exercise, _ = tally.item
    percent = f"{100 * tally.share:.0f}" if tally.marked else ""
    bar = f'<span class="bar"><b style="width: {percent}%"></b></span>{percent}&nbsp;%' if percent else ""
    counts = "".join(
        f"<td>{count or ''}</td>" for count in [*(tally.verdicts[v] for v in verdicts), tally.unexplained]
    )
    return (
        f'<tr><th scope="row">{escape(exercise)}</th><th>{escape(notebook)}</th><td>{bar}</td>{counts}</tr>'
    )


# ---- the grid ----------------------------------------------------------------------------------------------------


def _grid_section(notebook: str, rows: list[Row], folder: Path) -> str:
    here = [row for row in rows if row.notebook == notebook]
    items, students = items_of(here), by_student(here)
    lines = "".join(_grid_line(student, own, items, folder) for student, own in students.items())
    table = f'<table class="grid">{_grid_head(items)}<tbody>{lines}</tbody>{_grid_foot(here, items)}</table>'
    title = f"Who did what: {notebook}"
    return (
        f'<section><h2 id="{escape(f"grid-{notebook}")}">{escape(title)}</h2>{_LEGEND}{_absent(rows, students)}'
        f"{scrolling(table, title)}</section>"
    )


def _grid_head(items: list[Item]) -> str:
    kinds = [(kind, len(list(group))) for kind, group in groupby(item[2] for item in items)]
    groups = "".join(
        f'<th class="group" scope="colgroup" colspan="{width}">{kind}s</th>' for kind, width in kinds
    )
    names = "".join(f'<th scope="col"><span>{escape(item[1])}</span></th>' for item in items)
    return (
        '<thead><tr><th scope="col" rowspan="2">student</th><th scope="col" rowspan="2">points</th>'
        f"{groups}</tr><tr>{names}</tr></thead>"
    )


def _absent(rows: list[Row], students: dict[str, list[Row]]) -> str:
    """Students who handed in another notebook and not this one."""
    missing = [student for student in by_student(rows) if student not in students]
    listed = ", ".join(map(name, missing))
    who = f"{_plural(len(missing), 'student')} of this page without this notebook"
    return f"<details><summary>{who}</summary><p>{listed}</p></details>" if missing else ""


def _grid_line(student: str, own: list[Row], items: list[Item], folder: Path) -> str:
    page = page_of(student, own[0].notebook)
    there = (folder / page).is_file()
    shown = f'<a href="{quote(page.as_posix())}">{name(student)}</a>' if there else name(student)
    marks = {row.exercise: row for row in own}
    points = "" if total(own) is None else number(total(own))
    cells = _unread_cell(own, len(items)) or "".join(_cell(marks.get(item[1])) for item in items)
    return f'<tr><th scope="row" title="{escape(student)}">{shown}</th><td>{points}</td>{cells}</tr>'


def _unread_cell(own: list[Row], width: int) -> str:
    reasons = [row.reason for row in own if row.verdict == COULD_NOT_BE_READ]
    said = f"{SYMBOLS[COULD_NOT_BE_READ]} {COULD_NOT_BE_READ}: {' '.join(reasons)}"
    return f'<td class="wide" colspan="{max(width, 1)}">{escape(said)}</td>' if reasons else ""


def _cell(row: Row | None) -> str:
    if row is None:
        return "<td></td>"
    about = f"{row.verdict}, {row.misconception}" if row.misconception else row.verdict
    hint = f' title="{escape(row.exercise)}: {escape(about)}"' if row.misconception else ""
    return f"<td class={_look(row)}{hint}>{SYMBOLS[row.verdict]}<i>{escape(about)}</i></td>"


def _look(row: Row) -> str:
    """A surprise is what predictions are for, so it is less loud than an answer that fails."""
    surprised = row.kind == "prediction" and row.verdict == Verdict.FAILED.value
    return "s" if surprised else _LETTERS[row.verdict]


def _grid_foot(here: list[Row], items: list[Item]) -> str:
    shares = {tally.item: f"{100 * tally.share:.0f}" if tally.marked else "" for tally in tallies(here)}
    cells = "".join(f"<td>{shares[item]}</td>" for item in items)
    return f'<tfoot><tr><th scope="row">passed, in %</th><td></td>{cells}</tr></tfoot>'
