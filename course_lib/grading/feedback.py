"""One page for each submission: what `check` would have said about every answer, and why a mark is missing.

A page shows what the notebook itself shows: the smallest case that fails, a diagnosis, the reply to a prediction.
Solutions, other cases and the right letter of a prediction are on no page.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from course_lib import exercises
from course_lib.checking import Report, Verdict
from course_lib.display.report import question_html, report_html
from course_lib.display.theme import LINE, escape, inline
from course_lib.grading.files import clip, file_name
from course_lib.grading.gradebook import UNSCORED, Graded, Row, prediction
from course_lib.grading.intake import Submission
from course_lib.grading.page import badge, name, scrolling, write_page
from course_lib.grading.tables import number, total

LONGEST = 8_000  # characters of any one text on a page; an answer can print and raise what it likes

_SHEET = f"""
body {{ max-width: 900px; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 3px 16px; margin: 12px 0; }}
dt {{ opacity: .78; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
th, td {{ text-align: left; vertical-align: top; padding: 4px 14px 4px 0; border-top: 1px solid {LINE}; }}
thead th {{ border-top: 0; font-size: 13px; opacity: .78; }}
tbody th {{ font-weight: normal; overflow-wrap: anywhere; min-width: 9em; }}
td.n {{ white-space: nowrap; text-align: right; font-variant-numeric: tabular-nums; }}
section {{ scroll-margin-top: 10px; }}
"""


def feedback_path(submission: Submission) -> Path:
    """Where a submission's page stands, relative to the output folder."""
    return page_of(submission.student, submission.notebook or _unknown(submission))


def page_of(student: str, notebook: str) -> Path:
    """Where the page of a student's notebook stands, relative to the output folder."""
    return Path("feedback", file_name(student), f"{file_name(notebook)}.html")


def _unknown(submission: Submission) -> str:
    """A name for a file whose notebook can't be told, another one for every file."""
    where = f"{submission.path}:{submission.member}".encode("utf-8", "backslashreplace")
    return f"file {Path(submission.member or submission.path).name} {hashlib.sha256(where).hexdigest()[:8]}"


def write_feedback(graded: Graded, folder: Path) -> Path:
    """Write the page of one submission under `folder`, in one step, and return its path.

    Raises OutputProblem where it can't be written.
    """
    submission = graded.submission
    title = f"{submission.notebook or 'Your notebook'}: feedback for {submission.student}"
    body = _header(graded) + (_problem(submission) if submission.problem else _results(graded))
    return write_page(folder / feedback_path(submission), title, _SHEET, f"<main>{body}</main>")


def _header(graded: Graded) -> str:
    submission = graded.submission
    facts = {
        "Student": name(submission.student),
        "File": name(submission.member or submission.path.name),
        "Points": _points(graded.rows),
        "Noticed": "; ".join(map(escape, submission.notes)),
        "Judged by": escape(f"course version {graded.course}" if graded.course else ""),
        "Protections": escape(graded.protections),
    }
    listed = "".join(f"<dt>{label}</dt><dd>{fact}</dd>" for label, fact in facts.items() if fact)
    return f"<h1>{escape(submission.notebook or 'Your notebook')}: feedback</h1><dl>{listed}</dl>"


def _points(rows: tuple[Row, ...]) -> str:
    marked = [row for row in rows if row.verdict not in UNSCORED]
    unmarked = len(rows) - len(marked)
    waiting = f"{unmarked} without a mark, which is not a zero: your instructor decides" if unmarked else ""
    return "; ".join(part for part in (_sum(marked), waiting) if part)


def _sum(marked: list[Row]) -> str:
    if not marked:
        return ""
    return f"<strong>{number(total(marked) or 0)}</strong> of {number(sum(row.max_points for row in marked))}"


def _problem(submission: Submission) -> str:
    return (
        f'<p>{badge("could not be read")}</p><p class="note">{escape(submission.problem)}</p>'
        "<p>Nothing in it was judged, so it has no mark yet. Open the notebook in JupyterLab, see that your answers "
        "are there, save it, and hand it in again.</p>"
    )


# ---- the results -------------------------------------------------------------------------------------------------


def _results(graded: Graded) -> str:
    """An overview of everything, then a card for each item that was attempted."""
    predictions, reports = _prediction_cards(graded), _report_cards(graded)
    lines = "".join(_line(row, linked=row.exercise in {**predictions, **reports}) for row in graded.rows)
    head = "<th>what was asked</th><th>result</th><th></th><th>points</th>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    overview = f"<h2>Overview</h2>{scrolling(table, 'Overview')}"
    sheet = next((_sheet_and_card(card)[0] for card in [*predictions.values(), *reports.values()]), "")
    return overview + sheet + _sections("Predictions", predictions) + _sections("Exercises", reports)


def _line(row: Row, linked: bool) -> str:
    points = "no mark" if row.verdict in UNSCORED else f"{number(row.points)} of {number(row.max_points)}"
    what = escape(row.exercise)
    return (
        f'<tr><th scope="row">{f"<a href=#{what}>{what}</a>" if linked else what}</th>'
        f"<td>{badge(row.verdict)}</td><td>{inline(clip(row.reason, LONGEST))}</td>"
        f'<td class="n">{points}</td></tr>'
    )


def _prediction_cards(graded: Graded) -> dict[str, str]:
    choices = {
        row.exercise: prediction(graded.submission.cells, row.exercise)
        for row in graded.rows
        if _is_prediction(row)
    }
    return {
        question: question_html(exercises.question(question), choice, True)
        for question, choice in choices.items()
        if choice is not None
    }


def _is_prediction(row: Row) -> bool:
    return row.kind == "prediction" and row.verdict not in UNSCORED


def _report_cards(graded: Graded) -> dict[str, str]:
    attempted = [report for report in graded.reports if report.verdict is not Verdict.NOT_ATTEMPTED]
    return {report.exercise: report_html(_for_the_page(report)) for report in attempted}


def _for_the_page(report: Report) -> Report:
    """The report with a way on, and without endless texts."""
    texts = {
        field: clip(getattr(report, field), LONGEST) for field in ("summary", "call", "error", "printed")
    }
    facets = tuple(
        replace(facet, expected=clip(facet.expected, LONGEST), got=clip(facet.got, LONGEST))
        for facet in report.facets
    )
    return replace(report, facets=facets, next_step=report.next_step or _next_step(report), **texts)


def _next_step(report: Report) -> str:
    if report.verdict not in (Verdict.FAILED, Verdict.ERROR):
        return ""
    return f"In the notebook, `hint({report.exercise})` shows where to look."


def _sections(title: str, cards: dict[str, str]) -> str:
    sections = "".join(
        f'<section id="{escape(item)}" aria-label="{escape(item)}">{_sheet_and_card(card)[1]}</section>'
        for item, card in cards.items()
    )
    return f"<h2>{title}</h2>{sections}" if sections else ""


def _sheet_and_card(card: str) -> tuple[str, str]:
    """Every card brings the same style sheet along; a page needs it once."""
    sheet, end, rest = card.partition("</style>")
    return sheet + end, rest
