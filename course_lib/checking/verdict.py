"""What the engine says about an answer: plain data, made by comparison, drawn elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """The five things that can be true of an answer."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_ATTEMPTED = "not attempted"
    ERROR = "error"  # the learner's code raised where the reference does not
    GRADER_FAULT = "grader fault"  # ours: never scored, never counted against the learner


@dataclass(frozen=True)
class Facet:
    """One thing that was compared, as text: what the reference showed and what the answer showed."""

    name: str
    same: bool
    expected: str
    got: str


@dataclass(frozen=True)
class Report:
    """The result of judging one answer. `facets` belong to the smallest case that fails."""

    exercise: str
    title: str
    verdict: Verdict
    points: float
    max_points: float
    summary: str
    case: str = ""
    call: str = ""
    cases_passed: int = 0
    cases_total: int = 0
    facets: tuple[Facet, ...] = ()
    misconception: str = ""
    diagnosis: str = ""
    error: str = ""
    printed: str = ""
    next_step: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED
