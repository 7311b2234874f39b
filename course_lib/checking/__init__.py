"""How an answer is judged: run, observe, compare, diagnose, report. Knows no exercise.

Read in this order: `verdict` (what comes out), `exercise` (what an author writes), `answer` (finding a learner's
code), `trial` and `recorders` (running it), `records` and `observe` (what was seen), `compare`, `judge`.
"""

from course_lib.checking import observe
from course_lib.checking.answer import Answer, find_answer, is_stub
from course_lib.checking.exercise import Exercise, Misconception, Question
from course_lib.checking.judge import judge, judge_callable
from course_lib.checking.recorders import Spy
from course_lib.checking.trial import case
from course_lib.checking.verdict import Facet, Report, Verdict

__all__ = [
    "Answer",
    "Exercise",
    "Facet",
    "Misconception",
    "Question",
    "Report",
    "Spy",
    "Verdict",
    "case",
    "find_answer",
    "is_stub",
    "judge",
    "judge_callable",
    "observe",
]
