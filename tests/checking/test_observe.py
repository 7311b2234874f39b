"""Each observer tells a right answer from a wrong one that agrees in everything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from course_lib.checking import Exercise, Spy, Verdict, case, judge_callable, observe
from course_lib.checking.judge import _verdict, call_text, expected_observations
from course_lib.checking.judge import observe as run

# ruff: noqa: E731


def exercise(reference: Callable, observer, build: Callable, scenario: Callable | None = None) -> Exercise:
    made = Exercise(
        reference,
        title="t",
        objective="o",
        difficulty=1,
        minutes=1,
        hints=("a", "b", "c"),
        why="w",
        observes=[observer],
    )
    made.cases(lambda rng: build(rng))
    if scenario:
        made.scenario(scenario)
    return made


def one(*make: Callable) -> Callable:
    """One case, with its inputs built afresh."""
    return lambda rng: iter([case("the case", *(m() for m in make))])


matrix = lambda: torch.arange(6.0).reshape(2, 3)
leaf = lambda: torch.tensor([1.0, -2.0, 0.5], requires_grad=True, dtype=torch.float64)


class WrongSecond(torch.autograd.Function):
    """x**3 whose backward saved 3x**2 as a constant: the first derivative is right, the second is 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = 3 * x**2
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.slope


class EditsCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.mul_(2)


class IgnoresCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return torch.full_like(cotangent, 2)


def build_module(buffer: bool = False, hook: bool = False) -> nn.Module:
    module = nn.Linear(2, 2)
    if buffer:
        module.register_buffer("mean", torch.zeros(2), persistent=False)
    if hook:
        module.register_forward_hook(lambda *args: None)
    return module


def right_order(optimizer):
    optimizer.zero_grad()
    optimizer.step()


def wrong_order(optimizer):
    optimizer.step()
    optimizer.zero_grad()


PAIRS = {
    "value": (observe.value(), lambda x: x + 1, lambda x: x + 2, one(matrix)),
    "value within rounding": (
        observe.value(rtol=1e-6, precise=True),
        lambda x: x / 3,
        lambda x: (x / 3).half().float(),
        one(matrix),
    ),
    "strides": (observe.strides(), lambda x: x.t(), lambda x: x.t().contiguous(), one(matrix)),
    "storage offset": (observe.storage_offset(), lambda x: x[1:], lambda x: x[1:].clone(), one(matrix)),
    "shares storage": (
        observe.shares_storage(),
        lambda x: x.view(-1),
        lambda x: x.flatten().clone(),
        one(matrix),
    ),
    "requires grad": (observe.requires_grad(), lambda x: x * 2, lambda x: (x * 2).detach(), one(leaf)),
    "autograd": (observe.autograd(), lambda x: x.exp().sum(), lambda x: (x.exp() * 1).sum(), one(leaf)),
    "gradients": (observe.gradients(), lambda x: x * 2, lambda x: x + x.detach(), one(leaf)),
    "cotangent ignored": (
        observe.gradients(),
        lambda x: x * 2,
        lambda x: IgnoresCotangent.apply(x),
        one(leaf),
    ),
    "cotangent edited": (observe.gradients(), lambda x: x * 2, lambda x: EditsCotangent.apply(x), one(leaf)),
    "second order": (observe.gradients(order=2), lambda x: x**3, lambda x: WrongSecond.apply(x), one(leaf)),
    "saved tensors": (
        observe.saved_tensors(),
        lambda x: x * 2,
        lambda x: x * torch.full_like(x, 2),
        one(leaf),
    ),
    "version counters": (observe.version_counters(), lambda x: x + 0, lambda x: x.add_(0), one(matrix)),
    "operators": (observe.ops(), lambda x: x * 2, lambda x: x + x, one(matrix)),
    "bytes": (observe.allocated_bytes(), lambda x: x.t(), lambda x: x.clone().t(), one(matrix)),
    "host syncs": (
        observe.host_syncs(),
        lambda x: x * 2,
        lambda x: x * 2 if x.sum().item() else x,
        one(matrix),
    ),
    "host syncs of whole tensors": (
        observe.host_syncs(),
        lambda x: x * 2,
        lambda x: torch.tensor(x.tolist()) * 2,
        one(matrix),
    ),
    "device moves": (
        observe.device_moves(),
        lambda x: x.to("cuda"),
        lambda x: x.to("cuda").to("cuda"),
        one(matrix),
    ),
    "registered": (observe.registered(), lambda: build_module(buffer=True), lambda: build_module(), one()),
    "hooks": (observe.registered(), lambda: build_module(), lambda: build_module(hook=True), one()),
    "calls": (observe.calls(), right_order, wrong_order, one(lambda: Spy("optimizer"))),
}


@pytest.mark.parametrize(("observer", "right", "wrong", "build"), PAIRS.values(), ids=PAIRS.keys())
def test_observers_tell_right_from_wrong(observer, right, wrong, build):
    made = exercise(right, observer, build)
    assert verdict(made, right) is Verdict.PASSED
    assert verdict(made, wrong) is Verdict.FAILED
    assert failing(made, wrong) == [observer.name]


def verdict(made: Exercise, answer: Callable) -> Verdict:
    from course_lib.checking.judge import _verdict
    from course_lib.checking.judge import observe as run

    return _verdict(made, expected_observations(made), run(made, answer)[0], []).verdict


def failing(made: Exercise, answer: Callable) -> list[str]:
    from course_lib.checking.judge import compare
    from course_lib.checking.judge import observe as run

    pairs = zip(expected_observations(made), run(made, answer)[0])
    return [facet.name for pair in pairs for facet in compare(made, *pair) if not facet.same]


def keeps(x):
    return x.sum()


def mutates(x):
    return x.add_(1).sum() - 6


def accumulates(x):
    x.square().sum().backward()
    return x.detach().sum()


STANDING = [
    ("inputs", lambda x: x.sum(), lambda x: x.add_(1).sum() - 6, one(matrix)),
    ("inputs", lambda x: x.detach().sum(), accumulates, one(leaf)),
    ("inputs", lambda m: 1, lambda m: len(m.eval().training * "x") + 1, one(lambda: nn.Linear(2, 2))),
    ("global state", lambda x: 1, lambda x: (torch.set_default_dtype(torch.float64), 1)[1], one(matrix)),
    ("global state", lambda x: 1, lambda x: (torch.set_grad_enabled(False), 1)[1], one(matrix)),
    ("global state", lambda x: 1, lambda x: (torch.rand(1), 1)[1], one(matrix)),
]


@pytest.mark.parametrize(("facet", "right", "wrong", "build"), STANDING)
def test_side_effects_are_seen_without_being_asked_for(facet, right, wrong, build):
    made = exercise(right, observe.value(), build)
    assert verdict(made, right) is Verdict.PASSED
    assert failing(made, wrong) == [facet]


class Scale(nn.Module):
    """The reference of an exercise that asks for a class."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * self.weight


class IgnoresItsWeight(Scale):
    """Right as long as the weight is 1."""

    def forward(self, x):
        return x


class LeavesAHook(Scale):
    def forward(self, x):
        self.register_forward_hook(lambda *args: None)
        return super().forward(x)


def call_with_other_weights(answer, x):
    module = answer(3)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([2.0, -1.0, 0.5]))
    return module(x), observe.registered_in(module)


def test_modules_among_the_inputs_are_the_same_in_every_run():
    """Their weights come from the global generator, which the cases seed and put back."""

    def build(rng):
        yield case("a layer", nn.Linear(2, 3), len)

    made = exercise(lambda module, f: module.weight.sum(), observe.value(), build)
    before = torch.get_rng_state()
    first, second = made.fresh_cases()[0], made.fresh_cases()[0]
    assert torch.equal(first.args[0].weight, second.args[0].weight)
    assert torch.equal(before, torch.get_rng_state())
    text = call_text(made, first)
    assert "Linear(in_features=2, out_features=3, bias=True), len)" in text
    assert "(<Sequential of Linear, ReLU>)" in call_text(
        made, case("", nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    )


def test_an_exercise_may_ask_for_a_class():
    made = exercise(Scale, observe.value(), one(matrix), call_with_other_weights)
    assert judge_callable(made, Scale).verdict is Verdict.PASSED
    assert verdict(made, IgnoresItsWeight) is Verdict.FAILED
    assert verdict(made, LeavesAHook) is Verdict.FAILED


def test_only_a_stub_counts_as_not_attempted_where_it_raises():
    """PyTorch raises NotImplementedError too: for a module without forward, and for values that meta has not."""
    made = exercise(keeps, observe.value(), one(matrix))

    def your_turn(x):
        raise NotImplementedError("your turn")

    def has_no_forward(x):
        return nn.Module()(x)

    def asks_meta_for_values(x):
        return x.to("meta").cpu()

    assert verdict(made, your_turn) is Verdict.NOT_ATTEMPTED
    assert verdict(made, has_no_forward) is Verdict.ERROR
    assert verdict(made, asks_meta_for_values) is Verdict.ERROR


def test_strides_of_dimensions_that_are_never_stepped_along_do_not_count():
    made = exercise(lambda x: x.view(1, 6), observe.strides(), one(matrix))
    assert verdict(made, lambda x: x.as_strided((1, 6), (77, 1))) is Verdict.PASSED


def test_a_subclass_of_the_expected_exception_will_do():
    class Mine(ValueError):
        pass

    def raises(error):
        def answer(x):
            raise error

        return answer

    def fresh(rng):
        yield case("fine", torch.zeros(1))
        yield case("refused", torch.ones(1))

    def only_zeros(error):
        return lambda x: 0 if x.sum() == 0 else raises(error)(x)

    made = exercise(only_zeros(ValueError()), observe.value(), fresh)
    assert verdict(made, only_zeros(Mine())) is Verdict.PASSED
    assert verdict(made, only_zeros(TypeError())) is Verdict.FAILED
    assert verdict(made, lambda x: 0) is Verdict.FAILED


def test_exit_in_an_answer_is_an_error_of_that_answer():
    made = exercise(lambda x: x, observe.value(), one(matrix))
    assert verdict(made, lambda x: exit()) is Verdict.ERROR


def test_a_broken_exercise_is_our_fault():
    def broken(rng):
        yield case("fine", 1)
        raise RuntimeError("broken case")

    report = judge_callable(exercise(keeps, observe.value(), broken), keeps)
    assert report.verdict is Verdict.GRADER_FAULT and "broken case" in report.error and report.points == 0


def test_a_reference_that_never_returns_is_our_fault():
    def broken(x):
        raise TypeError("wrong signature")

    report = judge_callable(exercise(broken, observe.value(), one(matrix)), keeps)
    assert report.verdict is Verdict.GRADER_FAULT
    assert "wrong signature" in report.error


def test_an_observer_that_cannot_read_the_reference_is_our_fault():
    def unreadable(trial):
        raise RuntimeError

    report = judge_callable(exercise(keeps, observe.Observer("odd", unreadable), one(matrix)), keeps)
    assert report.verdict is Verdict.GRADER_FAULT


def test_two_misconceptions_that_fit_alike_are_no_diagnosis():
    made = exercise(keeps, observe.value(), one(matrix))
    made.misconception("You believe one thing.")(mutates)
    assert judge_callable(made, mutates).misconception == "mutates"
    made.misconception("You believe another.")(lambda x: mutates(x))
    assert judge_callable(made, mutates).misconception == ""


def test_an_interrupt_gives_a_report_and_the_output_is_capped():
    def endless(x):
        for _ in range(10_000):
            print("x" * 1000)
        raise KeyboardInterrupt

    def chatty(x):
        for _ in range(10_000):
            print("x" * 1000)
        return x.sum()

    made = exercise(keeps, observe.value(), one(matrix))
    assert judge_callable(made, endless).error == "KeyboardInterrupt"
    report = judge_callable(made, chatty)
    assert report.verdict is Verdict.PASSED and len(report.printed) < 5000


# ---- optimizers, schedulers and scalers as inputs ----------------------------------------------------------------


def training_inputs(momentum: float = 0.9):
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    opt = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1)
    return weight, opt, sched, torch.amp.GradScaler("cpu", init_scale=4.0)


def train(weight, opt, sched, scaler, *, sched_too=True, scaler_too=True):
    scaler.scale(weight.square().sum()).backward()
    scaler.step(opt)
    scaler.update(2.0 if scaler_too else 4.0)
    if sched_too:
        sched.step()
    weight.grad = None


def forgets_the_scheduler(weight, opt, sched, scaler):
    train(weight, opt, sched, scaler, sched_too=False)
    opt.param_groups[0]["lr"] = 0.01  # the optimizer looks right, the scheduler is behind


def forgets_the_scaler(weight, opt, sched, scaler):
    train(weight, opt, sched, scaler, scaler_too=False)


def forgets_the_momentum(weight, opt, sched, scaler):
    train(weight, opt, sched, scaler)
    opt.state.clear()


@pytest.mark.parametrize("wrong", [forgets_the_scheduler, forgets_the_scaler, forgets_the_momentum])
def test_the_state_of_optimizers_schedulers_and_scalers_is_seen(wrong):
    made = exercise(train, observe.value(), lambda rng: iter([case("one step", *training_inputs())]))
    assert judge_callable(made, train).verdict is Verdict.PASSED
    report = judge_callable(made, wrong)
    assert report.verdict is Verdict.FAILED
    assert [facet.name for facet in report.facets if not facet.same] == ["inputs"]


def test_building_cases_neither_depends_on_the_global_generator_nor_uses_it():
    made = exercise(lambda layer: layer.weight.sum(), observe.value(), one(lambda: nn.Linear(2, 3)))
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        weights.append(made.fresh_cases()[0].args[0].weight)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*weights)


def test_settings_of_a_scenario_are_named_and_no_call():
    def halves(answer, size, times):
        return [answer(torch.ones(size)) for _ in range(times)]

    def wrong(x):
        return x

    made = exercise(lambda x: x / 2, observe.value(), one(lambda: 3, lambda: 2), halves)
    assert judge_callable(made, wrong).call == "with size=3, times=2"
    made = exercise(lambda x: x / 2, observe.value(), one(lambda: 3.0))
    assert judge_callable(made, wrong).call.endswith("(3.0)")


# ---- what PyTorch is told about determinism ----------------------------------------------------------------------


def make_deterministic(warn_only: bool) -> Callable:
    def seed(n):
        torch.use_deterministic_algorithms(True, warn_only=warn_only)

    return seed


def verdict_of(ex: Exercise, answer: Callable) -> Verdict:
    return _verdict(ex, expected_observations(ex), run(ex, answer)[0], []).verdict


def test_a_warning_in_place_of_an_error_is_seen():
    reference, warns = make_deterministic(warn_only=False), make_deterministic(warn_only=True)
    ex = exercise(reference, observe.value(), one(lambda: 3))
    assert verdict_of(ex, reference) is Verdict.PASSED
    assert verdict_of(ex, warns) is Verdict.FAILED


@pytest.mark.parametrize("before", ["default", "warn", "error"])
def test_the_deterministic_mode_is_put_back_as_it_was(before):
    torch.set_deterministic_debug_mode(before)
    mode = torch.get_deterministic_debug_mode()
    try:
        for warn_only in (True, False):
            ex = exercise(lambda n: None, observe.value(), one(lambda: 3))
            verdict_of(ex, make_deterministic(warn_only))
            assert torch.get_deterministic_debug_mode() == mode
    finally:
        torch.set_deterministic_debug_mode("default")
