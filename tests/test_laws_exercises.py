"""Laws over every exercise and every question of the course. A new exercise is under them the day it appears."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import cycle, islice

import pytest
import torch
from torch import nn

from course_lib import exercises
from course_lib.checking import Answer, Exercise, Misconception, Verdict, find_answer, judge
from course_lib.checking.compare import difference
from course_lib.checking.records import freeze, tensors_in
from tests.answers import answer_from, cells_for, surroundings
from tests.judged import judged

ALL = list(exercises.all_exercises().values())
QUESTIONS = list(exercises.all_questions().values())
MISTAKES = [(e, m) for e in ALL for m in e.misconceptions]
ALTERNATIVES = [(e, a) for e in ALL for a in e.alternatives]


def over(pairs: list[tuple[Exercise, object]]):
    names = [f"{e.name}-{getattr(x, 'name', getattr(x, '__name__', x))}" for e, x in pairs]
    return pytest.mark.parametrize(("exercise", "item"), pairs, ids=names)


CLASSES = [e for e in ALL if isinstance(e.reference, type)]
MODULES = [e for e in CLASSES if issubclass(e.reference, nn.Module)]

each_exercise = pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)


def judge_source(exercise: Exercise, source: str):
    return judge(exercise, find_answer([surroundings(exercise.reference), source], exercise.name))


def judge_live(exercise: Exercise, answer: Callable):
    """Judge a function that has no source: the engine is asked past the search for the answer."""
    from course_lib.checking.judge import _verdict, expected_observations, observe

    return _verdict(exercise, expected_observations(exercise), observe(exercise, answer)[0], [])


def variant(exercise: Exercise, around: Callable) -> Callable:
    """The reference with `around(call, args, kwargs)` in the place of each call; of a class, of each of its methods.

    A torch.autograd.Function is never instantiated: it is called by way of `apply`.
    """
    reference = exercise.reference
    if not isinstance(reference, type):
        return lambda *args, **kwargs: around(reference, args, kwargs)
    if issubclass(reference, torch.autograd.Function):
        apply = staticmethod(lambda *args: around(reference.apply, args, {}))
        return type(reference.__name__, (reference,), {"apply": apply})

    def surrounded(method: Callable) -> Callable:
        return lambda self, *args, **kwargs: around(partial(method, self), args, kwargs)

    methods = {name: surrounded(f) for name, f in vars(reference).items() if inspect.isfunction(f)}
    return type(reference.__name__, (reference,), methods)


def inputs_of(case) -> list:
    return [*case.args, *case.kwargs.values()]


# ---- right answers pass ------------------------------------------------------------------------------------------


@each_exercise
def test_the_reference_passes_its_own_check(exercise):
    report, _ = judged(exercise, exercise.reference)
    assert report.verdict is Verdict.PASSED, report
    assert report.points == exercise.points and report.cases_passed == report.cases_total > 0


@each_exercise
def test_there_are_two_alternatives(exercise):
    assert len(exercise.alternatives) >= 2


@over(ALTERNATIVES)
def test_alternatives_pass(exercise, item):
    report, _ = judged(exercise, item)
    assert report.verdict is Verdict.PASSED, report


@each_exercise
def test_noise_costs_nothing(exercise):
    def noisy(call, args, kwargs):
        print("debugging", args)
        warnings.warn("a warning", stacklevel=2)
        return call(*args, **kwargs)

    report = judge_live(exercise, variant(exercise, noisy))
    assert report.verdict is Verdict.PASSED, report


# ---- wrong answers fail, for their own reason --------------------------------------------------------------------


@over(MISTAKES)
def test_misconceptions_are_diagnosed_as_themselves(exercise, item: Misconception):
    report, _ = judged(exercise, item.answer)
    assert report.verdict in (Verdict.FAILED, Verdict.ERROR), report
    assert report.misconception == item.name, report
    assert report.diagnosis == item.sentence
    assert report.points == 0 and any(not facet.same for facet in report.facets)


@each_exercise
def test_stubs_are_not_attempted(exercise):
    parameters = ", ".join(exercise.parameters)
    for body in ("pass", "...", '"""Doc."""', "return None", 'raise NotImplementedError("your turn")'):
        report = judge_source(exercise, f"def {exercise.name}({parameters}):\n    {body}\n")
        assert report.verdict is Verdict.NOT_ATTEMPTED, (body, report)
        stubs = class_stub(exercise, body)
        assert judge_source(exercise, stubs).verdict is Verdict.NOT_ATTEMPTED, (body, stubs)
    assert judge(exercise, None).verdict is Verdict.NOT_ATTEMPTED


def class_stub(exercise: Exercise, body: str) -> str:
    """A class with the methods of the reference, or with a `__call__` where that is a function, and nothing in them."""
    reference = exercise.reference
    members = vars(reference) if isinstance(reference, type) else {"__call__": reference}
    names = [n for n, item in members.items() if inspect.isfunction(getattr(item, "__func__", item))]
    methods = [f"    def {name}(self, *args):\n        {body}\n" for name in names]
    return f"class {exercise.name}:\n" + "".join(methods)


@each_exercise
@pytest.mark.parametrize("constant", ["0", "1", "True", "False", "()", "(3, 4)", "torch.zeros(2, 3)", "''"])
def test_constants_fail(exercise, constant):
    source = f"import torch\ndef {exercise.name}(*args, **kwargs):\n    return {constant}\n"
    assert judge_source(exercise, source).verdict is Verdict.FAILED


@pytest.mark.parametrize("exercise", CLASSES, ids=lambda e: e.name)
@pytest.mark.parametrize("constant", ["0", "args[-1]", "torch.zeros(2, 3)"])
def test_classes_whose_methods_return_constants_fail(exercise, constant):
    name, answer = exercise.name, class_stub(exercise, f"return {constant}").replace(":", "(nn.Module):", 1)
    answer += "    def __init__(self, *args):\n        super().__init__()\n"
    report = judge_source(exercise, f"import torch\nfrom torch import nn\n{answer}")
    assert report.verdict in (Verdict.FAILED, Verdict.ERROR), (name, report)


@each_exercise
def test_returning_the_first_input_fails(exercise):
    report = judge_live(exercise, variant(exercise, lambda call, args, kwargs: args[0] if args else None))
    assert report.verdict is not Verdict.PASSED, report


def right_only_if(exercise: Exercise, fits: Callable[[torch.Tensor], bool]) -> Callable:
    """An answer that does the right thing where every tensor input fits, and nothing elsewhere."""

    def answer(call, args, kwargs):
        inputs = [tensor for _, tensor in tensors_in([*args, *kwargs.values()])]
        return call(*args, **kwargs) if all(map(fits, inputs)) else None

    return variant(exercise, answer)


def dtypes_and_dims(exercise: Exercise) -> set[tuple[torch.dtype, int]]:
    """Of every tensor among its inputs."""
    return {(t.dtype, t.dim()) for case in exercise.fresh_cases() for _, t in tensors_in(inputs_of(case))}


TAKEN = {e: dtypes_and_dims(e) for e in ALL}
WITH_TENSORS = [e for e in ALL if TAKEN[e]]
WITH_NUMBERS = [e for e in ALL if any(dtype is not torch.bool for dtype, _ in TAKEN[e])]
WITH_MATRICES = [e for e in ALL if any(dim >= 2 for _, dim in TAKEN[e])]


@pytest.mark.parametrize("exercise", WITH_TENSORS, ids=lambda e: e.name)
def test_right_only_for_contiguous_inputs_fails(exercise):
    assert (
        judge_live(exercise, right_only_if(exercise, torch.Tensor.is_contiguous)).verdict
        is not Verdict.PASSED
    )


@pytest.mark.parametrize("exercise", WITH_MATRICES, ids=lambda e: e.name)
def test_right_only_for_square_inputs_fails(exercise):
    answer = right_only_if(exercise, lambda tensor: len(set(tensor.shape)) <= 1)
    assert judge_live(exercise, answer).verdict is not Verdict.PASSED


@pytest.mark.parametrize("exercise", WITH_NUMBERS, ids=lambda e: e.name)
def test_right_only_for_positive_inputs_fails(exercise):
    answer = right_only_if(exercise, lambda tensor: tensor.is_meta or bool((tensor >= 0).all()))
    assert judge_live(exercise, answer).verdict is not Verdict.PASSED


@pytest.mark.parametrize("exercise", WITH_TENSORS, ids=lambda e: e.name)
def test_an_answer_that_changes_its_input_fails(exercise):
    def mutator(call, args, kwargs):
        result = call(*args, **kwargs)
        with torch.no_grad():
            for _, tensor in tensors_in([*args, *kwargs.values()]):
                if tensor.dtype is not torch.bool and tensor._is_view() is False:
                    tensor.add_(1)
        return result

    assert judge_live(exercise, variant(exercise, mutator)).verdict is not Verdict.PASSED


# ---- modules: whatever the weights, in every mode, and nothing left behind ---------------------------------------


LEFT_ON_A_MODULE = {
    "a hook": lambda module: module.register_forward_hook(lambda *args: None),
    "a backward hook": lambda module: module.register_full_backward_hook(lambda *args: None),
    "the other mode": lambda module: module.train(not module.training),
    "a buffer": lambda module: module.register_buffer("left_behind", torch.zeros(1)),
    "a parameter": lambda module: module.register_parameter("left_behind", nn.Parameter(torch.zeros(1))),
}


@each_exercise
def test_an_answer_that_leaves_something_on_a_module_fails(exercise):
    """After every call, on each module that it was ever handed: a Trainer gets its model when it is made.

    Where it is handed none, nothing is left, and the answer passes. What it is handed in another process (a rank)
    is not seen here; then either all of them fail or none was handed.
    """
    passed = {}
    for what, leave in LEFT_ON_A_MODULE.items():
        answer, handed = leaves_on_modules(exercise, leave)
        passed[what] = judge_live(exercise, answer).verdict is Verdict.PASSED
        assert not (passed[what] and handed), what
        if passed[what]:
            break
    assert not any(passed.values()) or len(passed) == 1, passed


def leaves_on_modules(exercise: Exercise, leave: Callable) -> tuple[Callable, dict[int, nn.Module]]:
    """The answer, and the modules that it is handed, for reading when it has run."""
    handed: dict[int, nn.Module] = {}

    def answer(call, args, kwargs):
        result = call(*args, **kwargs)
        handed.update((id(arg), arg) for arg in args if isinstance(arg, nn.Module))
        for module in handed.values():
            leave(module)
        return result

    return variant(exercise, answer), handed


@pytest.mark.parametrize("exercise", MODULES, ids=lambda e: e.name)
@pytest.mark.parametrize(
    "leave",
    [
        lambda module: module.register_forward_pre_hook(lambda *args: None),
        lambda module: module.register_buffer("extra", torch.zeros(1)),
        lambda module: module.register_buffer("extra", torch.zeros(1), persistent=False),
        lambda module: module.register_parameter("extra", nn.Parameter(torch.zeros(1))),
        lambda module: module.add_module("extra", nn.Linear(1, 1)),
    ],
    ids=["a hook", "a buffer", "a buffer that is not saved", "a parameter", "a layer"],
)
def test_a_module_that_registers_too_much_fails(exercise, leave):
    class Answer(exercise.reference):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            leave(self)

    assert judge_live(exercise, Answer).verdict is not Verdict.PASSED


def doubled(output):
    """Twice the numbers, also of a model that returns logits and a loss."""
    return tuple(map(doubled, output)) if isinstance(output, tuple) else output * 2


@pytest.mark.parametrize("exercise", MODULES, ids=lambda e: e.name)
def test_a_module_that_is_right_only_in_one_mode_fails(exercise):
    for mode in (True, False):

        class Answer(exercise.reference):
            def forward(self, *inputs):
                output = super().forward(*inputs)
                return output if self.training is mode else doubled(output)  # noqa: B023

        assert judge_live(exercise, Answer).verdict is not Verdict.PASSED


@pytest.mark.parametrize("exercise", MODULES, ids=lambda e: e.name)
def test_a_module_that_is_right_only_with_its_initial_weights_fails(exercise):
    class Answer(exercise.reference):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.initial = [parameter.detach().clone() for parameter in self.parameters()]

        def forward(self, *inputs):
            output = super().forward(*inputs)
            as_new = all(map(torch.equal, self.initial, self.parameters()))
            return output if as_new else doubled(output)

    assert judge_live(exercise, Answer).verdict is not Verdict.PASSED


def always_draws(exercise: Exercise) -> bool:
    """Whether the reference takes numbers from PyTorch's global generator in each of its calls."""
    draws = []

    def look(call, args, kwargs):
        before = torch.get_rng_state()
        result = call(*args, **kwargs)
        draws.append(not torch.equal(before, torch.get_rng_state()))
        return result

    judge_live(exercise, variant(exercise, look))
    return all(draws)


@each_exercise
@pytest.mark.parametrize(
    "leave_changed",
    [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_num_threads(2),
        lambda: torch.rand(1),
    ],
    ids=["default dtype", "grad mode", "threads", "random state"],
)
def test_an_answer_that_changes_global_state_fails(exercise, leave_changed, request):
    if request.node.callspec.id.startswith("random state") and always_draws(exercise):
        pytest.skip("every right answer draws from the global generator: how often is its own affair")

    def answer(call, args, kwargs):
        result = call(*args, **kwargs)
        leave_changed()
        return result

    report = judge_live(exercise, variant(exercise, answer))
    assert report.verdict is Verdict.FAILED, report
    assert not next(facet for facet in report.facets if facet.name == "global state").same


# ---- a check is stable and leaves no trace -----------------------------------------------------------------------


@each_exercise
def test_twenty_runs_give_one_report_for_each_answer(exercise):
    """Ten runs of the reference and ten of misconceptions in turn, so that no run may lean on the one before.

    They repeat, in an ordinary process, what was found in an unusual one.
    """
    mistakes = cycle(misconception.answer for misconception in exercise.misconceptions)
    for mistake in islice(mistakes, 10):
        for answer in (exercise.reference, mistake):
            report, _ = judged(exercise, answer)
            assert str(judge(exercise, answer_from(exercise, answer))) == str(report)


@each_exercise
def test_a_check_leaves_the_process_as_it_found_it(exercise):
    for answer in (exercise.reference, *exercise.alternatives, *(m.answer for m in exercise.misconceptions)):
        _, changed = judged(exercise, answer)
        assert changed == [], answer.__name__


@each_exercise
def test_cases_are_built_afresh_and_alike(exercise):
    first, second = exercise.fresh_cases(), exercise.fresh_cases()
    assert [case.label for case in first] == [case.label for case in second]
    assert len({case.label for case in first}) == len(first)
    tensors = [{id(t) for case in cases for _, t in tensors_in(inputs_of(case))} for cases in (first, second)]
    assert not tensors[0] & tensors[1]
    assert not any(difference(freeze(inputs_of(a)), freeze(inputs_of(b))) for a, b in zip(first, second))


@each_exercise
def test_no_two_cases_lie_in_one_storage(exercise):
    """An answer that writes into its input spoils that case alone."""
    found: dict[int, int] = {}
    for number, case in enumerate(exercise.fresh_cases()):
        for _, tensor in tensors_in(inputs_of(case)):
            if not tensor.is_meta and tensor.numel():
                assert found.setdefault(tensor.untyped_storage().data_ptr(), number) == number, case.label


# ---- forbidden calls ---------------------------------------------------------------------------------------------


RULES = [(e, f) for e in ALL for f in e.forbids]


@over(RULES)
def test_a_forbidden_call_is_found_under_another_name(exercise, item):
    """The reference plus one forbidden call, reached without its name standing in the source."""
    from course_lib.checking.rules import CallTracer, label

    call = item.zeros if hasattr(item, "zeros") else item
    refused = suppress(TypeError, AttributeError, RuntimeError)  # that it ran is what counts
    with CallTracer(exercise.forbids) as tracer, refused:
        call((1,))
    assert label(item) in tracer.seen


@over(RULES)
def test_a_forbidden_name_is_found_in_the_source(exercise, item):
    """It need not run: a call behind a condition that the cases never meet is found by name."""
    name = item.__name__
    call = f"import {name}; {name}.zeros(1)" if hasattr(item, "zeros") else f"x.{name}()"
    report = judge(exercise, with_first_line(exercise, f"if False: {call}"))
    assert report.verdict is Verdict.FAILED, report
    assert "forbidden calls" in [facet.name for facet in report.facets]


@over(RULES)
def test_importing_or_annotating_is_no_call(exercise, item):
    package = item.__name__ if hasattr(item, "zeros") else "torch"
    answer = with_first_line(exercise, "math.pi", f"import math, {package}")
    assert judge(exercise, answer).verdict is Verdict.PASSED


def with_first_line(exercise: Exercise, line: str, imports: str = "") -> Answer:
    """The reference with one more line, at its beginning."""
    surroundings_, source = cells_for(exercise, exercise.reference)
    header, body = source.split("\n", 1)
    return find_answer([surroundings_, imports, f"{header}\n    {line}\n{body}"], exercise.name)


# ---- what an author must give ------------------------------------------------------------------------------------


@each_exercise
def test_each_exercise_is_complete(exercise):
    assert exercise.title and exercise.statement and exercise.why
    assert 1 <= exercise.difficulty <= 3 and exercise.minutes > 0 and exercise.points > 0
    assert len(exercise.hints) == 3 and len(set(exercise.hints)) == 3 and all(exercise.hints)
    assert len(exercise.misconceptions) >= 2
    assert len({m.name for m in exercise.misconceptions}) == len(exercise.misconceptions)


@each_exercise
def test_hints_do_not_hold_the_solution(exercise):
    lines = [line.strip() for line in definition_lines(exercise) if len(line.strip()) > 20]
    for hint in exercise.hints:
        assert not any(line in hint for line in lines if line.startswith("return"))


def definition_lines(exercise: Exercise) -> list[str]:
    return cells_for(exercise, exercise.reference)[1].splitlines()[1:]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.name)
def test_every_choice_has_its_own_reply(question):
    assert question.answer in question.choices and len(question.choices) >= 2
    assert question.choices.keys() == question.replies.keys()
    assert len(set(question.replies.values())) == len(question.replies)


def test_every_objective_is_known_and_graded():
    known = {objective.id for objective in exercises.OBJECTIVES}
    graded = {item.objective for item in ALL + QUESTIONS}
    assert graded == known


def test_names_are_unique_over_the_course():
    names = [e.name for nb in exercises.NOTEBOOKS for e in exercises.exercises_of(nb.name)]
    names += [q.name for nb in exercises.NOTEBOOKS for q in exercises.questions_of(nb.name)]
    assert len(names) == len(set(names))
