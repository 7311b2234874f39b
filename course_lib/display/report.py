"""How reports, replies to predictions, hints and solutions look: HTML in a notebook, text everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.display.theme import (
    INK,
    LINE,
    MONO,
    STATE_COLORS,
    STATE_SYMBOLS,
    TINT,
    Face,
    escape,
    inline,
    preformatted,
    prose,
    style,
    wrap,
)

if TYPE_CHECKING:
    from course_lib.checking import Facet, Question, Report

TEXT_WIDTH = 88
LINES_OPEN = 6
CELL_LINES = 12

_SHEET = f"""
.cl-re {{ color: {INK}; font-size: 14px; line-height: 1.5; max-width: 860px; margin: 6px 0;
  padding: 8px 14px 10px; border: 1px solid {LINE}; border-left: 5px solid; border-radius: 4px;
  box-sizing: border-box; }}
.cl-re p {{ margin: 6px 0 !important; overflow-wrap: anywhere; }}
.cl-re > p:last-child {{ margin-bottom: 0 !important; }}
.cl-re code {{ font-family: {MONO}; font-size: 12.5px; background: {TINT} !important; color: inherit;
  padding: 1px 4px; border-radius: 3px; }}
.cl-re pre {{ font-family: {MONO}; font-size: 12.5px !important; line-height: 1.4; color: inherit;
  background: {TINT} !important; margin: 4px 0 !important; padding: 6px 10px !important; border-radius: 3px;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 22em; overflow-y: auto; }}
.cl-re pre code {{ background: none !important; padding: 0; }}
.cl-re .h {{ display: flex; flex-wrap: wrap; gap: 2px 10px; align-items: center; }}
.cl-re .w {{ color: #fff; font-size: 12.5px; font-weight: 600; padding: 1px 9px; border-radius: 10px;
  white-space: nowrap; }}
.cl-re .m {{ opacity: .78; font-size: 12.5px; }}
.cl-re .h .m {{ margin-left: auto; white-space: nowrap; }}
.cl-re .k {{ font-size: 12.5px; font-weight: 600; margin: 10px 0 2px; }}
.cl-re .b {{ background: {TINT}; border-radius: 4px; padding: 6px 12px; margin: 8px 0; }}
.cl-re .b p {{ margin: 2px 0 !important; }}
.cl-re .o {{ overflow-x: auto; }}
.cl-re table {{ border-collapse: collapse !important; margin: 4px 0 !important; font-size: 12.5px;
  width: 100%; table-layout: auto; border: 0; }}
.cl-re tr {{ background: none !important; }}
.cl-re td, .cl-re th {{ text-align: left !important; vertical-align: top !important;
  padding: 3px 12px 3px 0 !important; border: 0; border-top: 1px solid {LINE} !important;
  background: none !important; color: inherit; }}
.cl-re thead th {{ border-top: 0 !important; font-weight: 600; opacity: .78; }}
.cl-re tbody th {{ font-weight: normal; width: 22%; min-width: 9em; }}
.cl-re td.v {{ font-family: {MONO}; white-space: pre-wrap; overflow-wrap: anywhere; }}
.cl-re td.s {{ white-space: nowrap; width: 1%; padding-right: 0 !important; }}
.cl-re tr.x th, .cl-re tr.x td.s {{ font-weight: 600; }}
.cl-re tr.y {{ opacity: .78; }}
.cl-re details {{ margin: 8px 0; }}
.cl-re summary {{ cursor: pointer; font-size: 12.5px; font-weight: 600; }}
.cl-re summary code {{ font-weight: normal; }}
.cl-re .n {{ border-top: 1px solid {LINE}; margin-top: 10px; padding-top: 6px; }}
"""


def _class(state: str) -> str:
    return f"s-{state.replace(' ', '-')}"


_SHEET += "".join(
    f".{_class(state)}.cl-re {{ border-left-color: {color}; }} .{_class(state)} .w {{ background: {color}; }}"
    for state, color in STATE_COLORS.items()
)


def _card(state: str, word: str, title: str, aside: str, body: str) -> str:
    """What all of these share: a badge with symbol and word, a title, an aside on the right, and a body."""
    strong = f"<strong>{inline(title)}</strong> " if title else ""
    note = f'<span class="m">{escape(aside)}</span>' if aside else ""
    return (
        f'{style(_SHEET)}<div class="cl-re {_class(state)}"><div class="h">'
        f'<span class="w">{STATE_SYMBOLS[state]} {escape(word)}</span> '
        f"{strong}{note}</div>{body}</div>"
    )


def _heading(state: str, word: str, title: str, aside: str = "") -> str:
    return f"{STATE_SYMBOLS[state]} {word}: {title}" + (f"  ({aside})" if aside else "")


# ---- reports -------------------------------------------------------------------------------------------


def report_face(report: Report) -> Face:
    """Both faces of a report."""
    return Face(report_html(report), report_text(report))


def report_html(report: Report) -> str:
    """The report as one card: diagnosis first, then the evidence, then what to do next."""
    state = report.verdict.value
    parts = [prose(report.summary), *_evidence_html(report), _next_html(report.next_step)]
    return _card(state, state, report.title, _score(report), "".join(parts))


def _evidence_html(report: Report) -> list[str]:
    return [
        _diagnosis_html(report.diagnosis),
        _case_html(report),
        _facets_html(report.facets),
        _block_html(_raised(report), report.error),
        _block_html("What your code printed", report.printed, collapsed=True),
    ]


def _score(report: Report) -> str:
    cases = f"{report.cases_passed} of {_plural(report.cases_total, 'case')}" if report.cases_total else ""
    points = f"{report.points:g} of {_plural(report.max_points, 'point')}"
    return " · ".join(part for part in (report.exercise, cases, points) if part)


def _raised(report: Report) -> str:
    return f"What {'the check' if report.verdict.value == 'grader fault' else 'your code'} raised"


def _plural(count: float, noun: str) -> str:
    return f"{count:g} {noun}" if count == 1 else f"{count:g} {noun}s"


def _diagnosis_html(diagnosis: str) -> str:
    if not diagnosis:
        return ""
    return (
        f'<div class="b"><div class="k" style="margin-top: 0">What went wrong</div>{prose(diagnosis)}</div>'
    )


def _case_html(report: Report) -> str:
    label = f'<div class="k">Smallest failing case: {inline(report.case)}</div>' if report.case else ""
    return label + (preformatted(report.call) if report.call else "")


def _facets_html(facets: tuple[Facet, ...]) -> str:
    if not facets:
        return ""
    rows = "".join(_facet_row(facet) for facet in _different_first(facets))
    head = "<th>what was compared</th><th>expected</th><th>your answer</th><th></th>"
    return f'<div class="o"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _different_first(facets: tuple[Facet, ...]) -> list[Facet]:
    return sorted(facets, key=lambda facet: facet.same)


def _facet_row(facet: Facet) -> str:
    mark, kind = ("✓ same", "y") if facet.same else ("✗ different", "x")
    values = "".join(f'<td class="v">{escape(_capped(value))}</td>' for value in (facet.expected, facet.got))
    return (
        f'<tr class="{kind}"><th scope="row">{inline(facet.name)}</th>{values}<td class="s">{mark}</td></tr>'
    )


def _capped(text: str) -> str:
    lines = text.splitlines()
    if len(lines) <= CELL_LINES:
        return text
    return "\n".join([*lines[:CELL_LINES], f"... {len(lines) - CELL_LINES} more lines"])


def _block_html(title: str, text: str, collapsed: bool = False) -> str:
    """A titled block of output: folded away where it is long, with its last line still to be seen."""
    lines = text.rstrip().splitlines()
    if not lines:
        return ""
    if not collapsed and len(lines) <= LINES_OPEN:
        return f'<div class="k">{title}</div>{preformatted(text)}'
    peek = (
        f": <code>{escape(lines[-1].strip())}</code>"
        if not collapsed
        else f" ({_plural(len(lines), 'line')})"
    )
    return f"<details><summary>{title}{peek}</summary>{preformatted(text)}</details>"


def _next_html(next_step: str) -> str:
    return f'<div class="n"><strong>Next:</strong> {inline(next_step)}</div>' if next_step else ""


def report_text(report: Report, width: int = TEXT_WIDTH) -> str:
    """The report as plain text, `width` characters wide; code and values are never wrapped."""
    state = report.verdict.value
    parts = [
        _heading(state, state, report.title, _score(report)),
        wrap(report.summary, width, "  "),
        _titled("What went wrong", wrap(report.diagnosis, width, "    ")),
        _case_text(report),
        _facets_text(report.facets),
        _titled(_raised(report), _indent(report.error)),
        _titled("What your code printed", _indent(report.printed)),
        wrap(f"Next: {report.next_step}", width, "  ") if report.next_step else "",
    ]
    return "\n".join(part for part in parts if part)


def _titled(title: str, body: str) -> str:
    return f"  {title}:\n{body}" if body else ""


def _indent(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.rstrip().splitlines())


def _case_text(report: Report) -> str:
    label = f"  Smallest failing case: {report.case}" if report.case else ""
    return "\n".join(part for part in (label, _indent(report.call)) if part)


def _facets_text(facets: tuple[Facet, ...]) -> str:
    different = [_facet_text(facet) for facet in facets if not facet.same]
    same = [facet.name for facet in facets if facet.same]
    return "\n".join([*different, f"  ✓ same: {', '.join(same)}"] if same else different)


def _facet_text(facet: Facet) -> str:
    expected, got = (
        _after(name, _capped(value)) for name, value in (("expected", facet.expected), ("got", facet.got))
    )
    return f"  ✗ different: {facet.name}\n{expected}\n{got}"


def _after(name: str, value: str) -> str:
    """`value` after a label, its further lines aligned under its first."""
    return f"      {name:<8}  " + value.replace("\n", "\n" + " " * 16)


# ---- predictions ---------------------------------------------------------------------------------------

_AGAIN = "You have predicted this one before."
_LOOK = "Run the next cell and see."


def question_face(question: Question, choice: object, first_time: bool) -> Face:
    """Both faces of the reply to a prediction."""
    args = (question, choice, first_time)
    return Face(question_html(*args), question_text(*args))


def question_html(question: Question, choice: object, first_time: bool) -> str:
    """The reply to `choice`. A wrong one is never told the right letter: the next cell shows what is true."""
    state, word = _prediction_state(question, choice)
    if state == "not attempted":
        return _card(state, word, "", question.name, prose(_how_to_predict(question)))
    chosen = f"<p>You predicted {inline(f'`{choice}`')}: {inline(question.choices[choice])}</p>"
    body = chosen + prose(question.replies[choice]) + _next_html(_LOOK)
    return _card(state, word, "", question.name if first_time else f"{question.name} · {_AGAIN}", body)


def question_text(question: Question, choice: object, first_time: bool, width: int = TEXT_WIDTH) -> str:
    """The same reply as plain text."""
    state, word = _prediction_state(question, choice)
    if state == "not attempted":
        return f"{_heading(state, word, question.name)}\n{wrap(_how_to_predict(question), width, '  ')}"
    chosen = f"You predicted {choice}: {question.choices[choice]}"
    parts = [chosen, question.replies[choice], _LOOK]
    heading = _heading(state, word, question.name, "" if first_time else _AGAIN)
    return "\n".join([heading, *(wrap(part, width, "  ") for part in parts)])


def _prediction_state(question: Question, choice: object) -> tuple[str, str]:
    if not isinstance(choice, str) or choice not in question.choices:
        return "not attempted", "no prediction yet"
    return ("passed", "right") if choice == question.answer else ("surprise", "not what happens")


def _how_to_predict(question: Question) -> str:
    letters = ", ".join(f'`"{letter}"`' for letter in question.choices)
    return f"Write your choice as the second argument, one of {letters}, and run the cell again."


# ---- hints and solutions -------------------------------------------------------------------------------


def hint_face(exercise_name: str, level: int, total: int, text: str) -> Face:
    """Hint `level` of `total`, and how to get the next one."""
    word = f"hint {level} of {total}"
    more = f"`hint({exercise_name})` shows hint {level + 1} of {total}." if level < total else ""
    plain = [
        _heading("help", word, exercise_name),
        wrap(text, TEXT_WIDTH, "  "),
        f"  Next: {more}" if more else "",
    ]
    rich = _card("help", word, "", exercise_name, prose(text) + _next_html(more))
    return Face(rich, "\n".join(part for part in plain if part))


def solution_face(name: str, source: str, why: str) -> Face:
    """A solution's source, and why it is right."""
    reason = f'<div class="k">Why</div>{prose(why)}' if why else ""
    rich = _card("help", "solution", "", name, preformatted(source) + reason)
    plain = [
        _heading("help", "solution", name),
        _indent(source),
        _titled("Why", wrap(why, TEXT_WIDTH, "    ")),
    ]
    return Face(rich, "\n".join(part for part in plain if part))
