"""Judging an answer: run it, observe it, compare with the reference, diagnose, report."""

from __future__ import annotations

import inspect
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib.checking.answer import Answer, NotDefined, is_stub
from course_lib.checking.compare import describe, difference
from course_lib.checking.exercise import Exercise, Misconception
from course_lib.checking.observe import Observer
from course_lib.checking.records import Record, TensorRecord, freeze, tensors_in
from course_lib.checking.rules import CallTracer, named_in_source
from course_lib.checking.trial import Case, Trial, quarantine, run_case
from course_lib.checking.verdict import Facet, Report, Verdict

TORCH = str(Path(torch.__file__).parent)
SHORT = 100  # characters of a description that fit in a table cell
LONGEST = 1_000  # characters of a description of the learner's result, whatever it is


@dataclass(frozen=True)
class Observation:
    """What one run of one answer on one case showed."""

    facets: dict[str, Any]  # records, by observer
    raised: tuple[str, ...] = ()  # the exception's class and its bases, by name
    error: str = ""  # the traceback in the answer, for showing it; never compared
    your_turn: bool = False  # the answer itself raised NotImplementedError, as a stub does


Seen = list[Observation]  # one for each case


@dataclass(frozen=True)
class Run:
    """All that running an answer showed: an observation per case, what it printed, which forbidden calls it made."""

    observations: Seen
    printed: str
    forbidden: list[str]


class CouldNotRun(Exception):
    """Running an answer gave no observations. `facts` are those of its report."""

    def __init__(self, summary: str, attempted: bool = True, **details: str) -> None:
        super().__init__(summary)
        self.facts = {"summary": summary, "attempted": attempted, **details}


class Fault(Exception):
    """The exercise itself is broken: building a case, observing or running the reference failed."""


# ---- observing ---------------------------------------------------------------------------------------------------


def observe(exercise: Exercise, answer: Callable, *, precise: bool = False) -> tuple[Seen, str]:
    """Run `answer` on every case: what was seen, and what it printed. `precise` uses float64 copies of the inputs."""
    with quarantine() as printed:
        cases = [_widen(case) if precise else case for case in _cases(exercise)]
        return [observe_case(exercise, answer, case) for case in cases], printed.getvalue()


def _cases(exercise: Exercise) -> list[Case]:
    with quarantine(), _blame_the_exercise():
        return exercise.fresh_cases()


@contextmanager
def _blame_the_exercise() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise Fault("".join(traceback.format_exception(error))) from error


def observe_case(exercise: Exercise, answer: Callable, case: Case) -> Observation:
    """Run `answer` on one case and look. Of the exercise only what runs and observes is used, never the reference."""
    trial = run_case(answer, case, exercise.parameters, exercise.recorders, exercise.run)
    readable = exercise.observers if trial.raised is None else exercise.observers[:2]  # the standing ones
    facets = {o.name: _read(o, trial) for o in readable}
    if trial.raised is None:
        return Observation(facets)
    raised = tuple(cls.__name__ for cls in type(trial.raised).__mro__[:-1])
    return Observation(facets, raised, _learners_traceback(trial.raised), _says_your_turn(trial.raised))


def _read(observer: Observer, trial: Trial) -> Any:
    try:
        return observer.read(trial)
    except Exception as error:  # an odd result must not break the check; the reference's are tested
        return Record(f"could not be observed ({type(error).__name__})")


def _learners_traceback(error: BaseException) -> str:
    """The traceback from the learner's first line on; our own frames say nothing to them."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if frame.filename.startswith("<")), len(frames))
    shown = [frame for frame in frames[first:] if "course_lib" not in frame.filename][-8:]
    own = [frame for frame in shown if frame.filename.startswith("<")]
    listing = "".join(f"{frame.filename}, line {frame.lineno}\n    {frame.line}\n" for frame in own)
    message = "".join(traceback.format_exception_only(error)).strip()
    return listing + (message if len(message) < 2000 else message[:2000] + " ...")


def _widen(value: Any) -> Any:
    """A float64 copy of a case, or of nested inputs."""
    if isinstance(value, Case):
        return Case(value.label, _widen(value.args), _widen(value.kwargs))
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(map(_widen, value))
    if type(value) is dict:
        return {key: _widen(item) for key, item in value.items()}
    return value


# ---- saying which case -------------------------------------------------------------------------------------------


def call_text(exercise: Exercise, case: Case) -> str:
    """The call as a person would write it; where a scenario has inputs of its own, what these settings are."""
    named = [f"{name}={_argument(arg)}" for name, arg in case.kwargs.items()]
    if set(exercise.parameters) <= set(inspect.signature(exercise.reference).parameters):
        return f"{exercise.name}({', '.join([*map(_argument, case.args), *named])})"
    settings = [f"{name}={_argument(arg)}" for name, arg in zip(exercise.parameters, case.args)]
    return f"with {', '.join(settings + named)}"


def _argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor_argument(value)
    if isinstance(value, (tuple, list)) and tensors_in(value):
        return f"{type(value).__name__}({', '.join(map(_argument, value))})"
    if isinstance(value, nn.Module):
        return _module_argument(value)
    if inspect.isroutine(value):
        return value.__name__
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_argument(item)}" for key, item in value.items()) + "}"
    is_plain = type(value) in (int, float, bool, str, tuple, list, type(None))
    return repr(value) if is_plain else describe(freeze(value))


def _module_argument(module: nn.Module) -> str:
    """A layer as it prints, a larger module by the kinds of its children."""
    children = ", ".join(type(child).__name__ for child in module.children())
    return f"<{type(module).__name__} of {children}>" if children else repr(module)


def _tensor_argument(tensor: torch.Tensor) -> str:
    """Small plain tensors by their values, others by their facts; how it lies in memory where that is not plain."""
    flags = ", requires_grad=True" if tensor.requires_grad else ""
    record = freeze(tensor)
    values, _, facts = describe(record).partition(" of shape ")
    if not tensor.is_contiguous() or tensor.storage_offset():
        return f"<tensor of shape {facts}, stride {tuple(tensor.stride())}, offset {tensor.storage_offset()}{flags}>"
    if not values.endswith(")") or not 0 < tensor.numel() <= 12:
        return f"<tensor of shape {facts}{flags}>"
    dtype = "" if record.dtype in ("float32", "int64", "bool") else f", dtype={record.dtype}"
    return f"{values[:-1]}{dtype}{flags})"


# ---- comparing ---------------------------------------------------------------------------------------------------


def same_case(exercise: Exercise, expected: Observation, got: Observation) -> bool:
    """Whether an answer showed what was expected: an exception of that class or a subclass, and equal facets."""
    if not _same_exception(expected, got) or not expected.facets.keys() <= got.facets.keys():
        return False
    shared = [(expected.facets[o.name], got.facets[o.name], o) for o in _shared(exercise, expected, got)]
    return not any(difference(ours, theirs, o.rtol, o.atol) for ours, theirs, o in shared)


def _same_exception(expected: Observation, got: Observation) -> bool:
    return bool(expected.raised) == bool(got.raised) and set(expected.raised[:1]) <= set(got.raised)


def compare(exercise: Exercise, expected: Observation, got: Observation) -> tuple[Facet, ...]:
    """Every facet of one case, expected against got."""
    facets = [_exception_facet(expected, got)] if expected.raised or got.raised else []
    shared = _shared(exercise, expected, got)
    return (*facets, *(_facet(o, expected.facets[o.name], got.facets[o.name]) for o in shared))


def _shared(exercise: Exercise, expected: Observation, got: Observation) -> list[Observer]:
    return [o for o in exercise.observers if o.name in expected.facets and o.name in got.facets]


def _exception_facet(expected: Observation, got: Observation) -> Facet:
    names = [(seen.raised or ("nothing",))[0] for seen in (expected, got)]
    return Facet("raises", _same_exception(expected, got), *names)


def _facet(observer: Observer, expected: Any, got: Any) -> Facet:
    found = difference(expected, got, observer.rtol, observer.atol)
    ours, theirs = observer.describe(expected), _describe(observer, got)
    if found and (max(len(ours), len(theirs)) > SHORT or ours == theirs):
        place = f"at {found.where}: " if found.where else ""
        ours, theirs = place + found.expected, place + found.got
    return Facet(observer.name, found is None, ours, theirs[:LONGEST])


def _describe(observer: Observer, record: Any) -> str:
    """The learner's result may have any form; an observer's own words fit the reference's."""
    for words in (observer.describe, describe):
        with suppress(Exception):
            return words(record)
    return "something that can't be shown"


# ---- diagnosing --------------------------------------------------------------------------------------------------


def expected_observations(exercise: Exercise) -> Seen:
    """The reference's observations, computed once. With a precise observer its values come from float64 runs."""
    if exercise.expected is None:
        observations, _ = observe(exercise, exercise.reference)
        if any(o.precise for o in exercise.observers):
            wide, _ = observe(exercise, exercise.reference, precise=True)
            observations = [_with_wide_values(exercise, *pair) for pair in zip(observations, wide)]
        _assert_sound(exercise, observations)
        exercise.expected = observations
    return exercise.expected


def _with_wide_values(exercise: Exercise, plain: Observation, wide: Observation) -> Observation:
    """The plain run says which dtype is right, the wide run which values."""
    names = [o.name for o in _shared(exercise, plain, wide) if o.precise]
    facets = {**plain.facets, **{name: _widened(plain.facets[name], wide.facets[name]) for name in names}}
    return replace(plain, facets=facets)


def _widened(plain: Any, wide: Any) -> Any:
    if isinstance(plain, TensorRecord) and isinstance(wide, TensorRecord):
        return TensorRecord(plain.kind, plain.shape, plain.dtype, plain.device, wide.data, plain.state)
    if isinstance(plain, Record) and isinstance(wide, Record):
        pairs = zip(plain.items, wide.items)
        return Record(plain.kind, tuple((key, _widened(a, b)) for (key, a), (_, b) in pairs))
    return wide if isinstance(plain, float) else plain


def _assert_sound(exercise: Exercise, observations: Seen) -> None:
    """A reference that never returns, or that an observer can't read, is our fault, never the learner's."""
    if all(seen.raised for seen in observations):
        raise Fault(f"{exercise.name}: the reference raises in every case: {observations[0].error}")
    for case, seen in zip(_cases(exercise), observations):
        for name, record in seen.facets.items():
            if isinstance(record, Record) and record.kind.startswith("could not be observed"):
                raise Fault(f"{exercise.name}: the reference's {name} {record.kind} in case '{case.label}'")


def diagnose(exercise: Exercise, got: Seen) -> Misconception | None:
    """The one misconception that equals the answer on every case; two that fit are no evidence for either."""
    fitting = [m for m in exercise.misconceptions if _fits(exercise, m, got)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(exercise: Exercise, misconception: Misconception, got: Seen) -> bool:
    known = exercise.seen_of_misconceptions
    if misconception.name not in known:
        known[misconception.name], _ = observe(exercise, misconception.answer)
    return all(_looks_the_same(exercise, a, b) for a, b in zip(known[misconception.name], got))


def _looks_the_same(exercise: Exercise, known: Observation, got: Observation) -> bool:
    return known.raised[:1] == got.raised[:1] and same_case(exercise, known, got)


# ---- reporting ---------------------------------------------------------------------------------------------------


def judge(exercise: Exercise, answer: Answer | None, run: Callable[..., Run] | None = None) -> Report:
    """Judge an answer found in a notebook. Never raises for what the learner did; an interrupt gives a report.

    `run(exercise, answer)` says where it runs: in this process unless another place is given.
    """
    if answer is None:
        return _report(exercise, Verdict.NOT_ATTEMPTED, f"There is no definition of {exercise.name} yet.")
    if answer.problem:
        return _report(exercise, Verdict.ERROR, "Python can't read this cell.", error=answer.problem)
    if is_stub(answer.tree):
        return _report(exercise, Verdict.NOT_ATTEMPTED, f"{exercise.name} is waiting for you.")
    return _judge_run(exercise, answer, run or run_here)


def judge_callable(exercise: Exercise, function: Callable) -> Report:
    """Judge a function or class of ours (a reference, an alternative, a misconception) as if it were an answer."""
    source = textwrap.dedent(inspect.getsource(function))
    lines = source.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith(("def ", "class ")))
    answer = Answer(function.__name__, "".join(lines[start:]), "".join(lines[start:]))
    return _judge_run(exercise, answer, lambda exercise, answer: _run(exercise, function))


def _judge_run(exercise: Exercise, answer: Answer, run: Callable[..., Run]) -> Report:
    try:
        expected, seen = expected_observations(exercise), run(exercise, answer)
        forbidden = dict.fromkeys([*named_in_source(answer, exercise.forbids), *seen.forbidden])
        return replace(_verdict(exercise, expected, seen.observations, list(forbidden)), printed=seen.printed)
    except CouldNotRun as failure:
        return _could_not_run(exercise, **failure.facts)
    except Fault as fault:
        return grader_fault(exercise, str(fault))
    except KeyboardInterrupt:
        summary = "You interrupted the check. If your code did not come to an end, look at its loops."
        return _report(exercise, Verdict.ERROR, summary, error="KeyboardInterrupt")


def run_here(exercise: Exercise, answer: Answer) -> Run:
    """Load the answer in this process and run it on every case. Raises CouldNotRun and Fault."""
    return _run(exercise, load(answer))


def load(answer: Answer) -> Any:
    """What the answer's source defines. Raises CouldNotRun."""
    try:
        with quarantine():
            return answer.load()
    except NotDefined as error:
        summary = f"{answer.name} was not defined when its cell ran."
        raise CouldNotRun(summary, attempted=False) from error
    except (Exception, SystemExit) as error:
        summary = f"Your definition could not be run: {type(error).__name__}."
        raise CouldNotRun(summary, error=_learners_traceback(error)) from error


def _run(exercise: Exercise, function: Callable) -> Run:
    seen, cases = observe(exercise, function), _cases(exercise) if exercise.forbids else []
    return Run(*seen, [name for case in cases for name in traced_calls(exercise, function, case)])


def traced_calls(exercise: Exercise, function: Callable, case: Case) -> list[str]:
    """The forbidden calls that run on one case; what the answer raises is judged in the observed run."""
    with quarantine(), CallTracer(exercise.forbids) as tracer, suppress(Exception, SystemExit):
        exercise.run(function, *case.args, **case.kwargs)
    return sorted(tracer.seen)


def _verdict(exercise: Exercise, expected: Seen, got: Seen, forbidden: list[str]) -> Report:
    failing = [i for i, pair in enumerate(zip(expected, got)) if not same_case(exercise, *pair)]
    if failing:
        return _failure(exercise, expected, got, failing)
    counts = {"cases_passed": len(got), "cases_total": len(got)}
    if forbidden:
        summary = f"The results are right, but this exercise is about doing it without {_join(forbidden)}."
        used = (Facet("forbidden calls", False, "none", ", ".join(forbidden)),)
        return _report(exercise, Verdict.FAILED, summary, facets=used, **counts)
    return _report(exercise, Verdict.PASSED, f"Right in all {len(got)} cases.", **counts)


def _failure(exercise: Exercise, expected: Seen, got: Seen, failing: list[int]) -> Report:
    cases = _cases(exercise)
    smallest = failing[0]  # cases are written small first
    seen = got[smallest]
    if all(observation.your_turn for observation in got):
        return _report(exercise, Verdict.NOT_ATTEMPTED, f"{exercise.name} is waiting for you.")
    facets, known = compare(exercise, expected[smallest], seen), diagnose(exercise, got)
    raised = seen.raised if not expected[smallest].raised else ()
    return _report(
        exercise,
        Verdict.ERROR if raised else Verdict.FAILED,
        _summary(raised, expected[smallest], seen, facets, f"{len(failing)} of {len(got)} cases"),
        case=cases[smallest].label,
        call=call_text(exercise, cases[smallest]),
        cases_passed=len(got) - len(failing),
        cases_total=len(got),
        facets=facets,
        misconception=known.name if known else "",
        diagnosis=known.sentence if known else "",
        error=seen.error if raised else "",
    )


def _says_your_turn(error: BaseException) -> bool:
    """Whether the answer itself says `raise NotImplementedError`, as a stub does; PyTorch raises it too, for others."""
    if type(error) is not NotImplementedError:
        return False
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return not innermost.filename.startswith(TORCH) and (innermost.line or "").startswith("raise")


def _summary(raised: tuple, expected: Observation, seen: Observation, facets: tuple, where: str) -> str:
    if raised:
        return f"Your code raised {raised[0]}."
    if seen.facets.get("value", 0) is None and expected.facets.get("value") is not None:
        return "Your function returned None: is there a `return`?"
    wrong = [facet.name for facet in facets if not facet.same]
    return f"{_join(wrong).capitalize()} {'differs' if len(wrong) == 1 else 'differ'} in {where}."


def _join(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def grader_fault(exercise: Exercise, error: str) -> Report:
    """The report where the check itself failed: no mark, which is not a zero."""
    summary = "Our check is broken, not your answer. This costs you nothing; please report it."
    return _report(exercise, Verdict.GRADER_FAULT, summary, error=error)


def _could_not_run(exercise: Exercise, summary: str, attempted: bool, **details: str) -> Report:
    return _report(exercise, Verdict.ERROR if attempted else Verdict.NOT_ATTEMPTED, summary, **details)


def _report(exercise: Exercise, verdict: Verdict, summary: str, **details: Any) -> Report:
    points = exercise.points if verdict is Verdict.PASSED else 0
    return Report(exercise.name, exercise.title, verdict, points, exercise.points, summary, **details)
