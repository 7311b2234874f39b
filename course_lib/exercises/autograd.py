"""The exercises and questions of notebook 02: autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.checking import Exercise, Question, case, observe
from course_lib.checking.recorders import OpRecorder
from course_lib.exercises.leftovers import left_on
from course_lib.reference import autograd as reference

# ---- what the scenarios share ------------------------------------------------------------------------------


def is_function(answer: Any) -> bool:
    return isinstance(answer, type) and issubclass(answer, torch.autograd.Function)


def outcome_of_edit(answer: Any, edits_input: bool, x: Tensor, *args: Any) -> str:
    """What backward does after its input or its output was changed in place, between forward and backward."""
    leaf = x.detach().clone().requires_grad_()
    try:
        (unedited,) = torch.autograd.grad(answer.apply(leaf, *args).sum(), leaf)
        middle = leaf.clone()
        y = answer.apply(middle, *args)
        (middle if edits_input else y).sub_(10)
    except Exception as error:
        return f"backward raised {type(error).__name__} without any edit"
    try:
        (edited,) = torch.autograd.grad(y.sum(), leaf)
    except RuntimeError:
        return "refused or right"
    return "refused or right" if torch.equal(edited, unedited) else "a wrong gradient, without a word"


def apply_and_edit(answer: Any, x: Tensor, *args: Any) -> Any:
    """The output of a Function of one tensor, and what its backward makes of edits in place."""
    if not is_function(answer):
        return "not a torch.autograd.Function"
    return {
        "output": answer.apply(x, *args),
        "backward after the input was edited": outcome_of_edit(answer, True, x, *args),
        "backward after the output was edited": outcome_of_edit(answer, False, x, *args),
    }


class GraphsAlive:
    """Counts what autograd keeps for backward: all in all, and the most at any one time."""

    def __init__(self) -> None:
        self.saved = self.alive = self.most = 0
        self._hooks = saved_tensors_hooks(self._pack, lambda kept: kept.tensor)

    def _pack(self, tensor: Tensor) -> Any:
        self.saved += 1
        self.alive += 1
        self.most = max(self.most, self.alive)
        return _Kept(tensor, self)

    def __enter__(self) -> GraphsAlive:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hooks.__exit__(*exc_info)


class _Kept:
    """A tensor in the keeping of autograd, which lets go of it when backward has passed."""

    def __init__(self, tensor: Tensor, counter: GraphsAlive) -> None:
        self.tensor, self._counter = tensor, counter

    def __del__(self) -> None:
        self._counter.alive -= 1


class CountingSGD(torch.optim.SGD):
    """Plain SGD that knows how many steps it made."""

    n_steps = 0

    def step(self, closure: Callable | None = None) -> Any:
        self.n_steps += 1
        return super().step(closure)


def built_alike(make: Callable[[], nn.Module]) -> nn.Module:
    """A module with the same weights every time, without touching the random state outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return make()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# ---- graph_nodes -------------------------------------------------------------------------------------------

graph_nodes = Exercise(
    reference.graph_nodes,
    title="Walk the graph",
    objective="autograd.graph",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "Look at `out.grad_fn.next_functions` for a small `out`, and then at the same attribute of the nodes in "
        "it. Where does it end? And what is there instead of a node for a plain number?",
        "Start with `out.grad_fn`, and visit every node that you can reach. Skip None, and keep a set of the "
        "nodes that you have met, so that none is counted twice.",
        "Keep a list `waiting = [out.grad_fn]`. Take a node from it; if it is None or already in `seen`, go on. "
        "Otherwise add it to `seen`, note its name, and put the first entry of each pair in "
        "`node.next_functions` on the list.",
    ),
    why="The nodes form a DAG: a value that is used twice has one node that two others point to. A walk that "
    "does not remember where it was visits it once per path, and the number of paths can double with every "
    "operation. Backward visits each node once, as you did.",
)


@graph_nodes.scenario
def _(answer, out):
    """Names in alphabetical order, without the C++ namespace that `node.name()` puts before some."""
    names = answer(out)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return names
    return sorted(name.rpartition("::")[2] for name in names)


@graph_nodes.cases
def _(rng):
    def leaf(*shape):
        return torch.randn(*shape, generator=rng).requires_grad_()

    x = leaf(1)
    yield case("x ** 3 + 5", x**3 + 5)
    yield case("a tensor without a graph", torch.tensor([1.0, -2.0]))
    yield case("x * x: both factors are the same leaf", x * x)
    y = leaf(2, 3).exp()
    yield case("y + y: a node that is reached twice", y + y)
    yield case("a transpose of a product", (leaf(2, 3) @ leaf(3, 4)).t())
    for _ in range(3):
        x = x * x
    yield case("squared three times", x)
    yield case("the result of detach", (leaf(2) * 3).detach())
    a, b = leaf(3), leaf(3)
    yield case("two branches that meet", ((a.sin() * b) + (a.cos() * b)).sum())
    yield case("one operation, twice", (a * b) * (b * a))
    yield case(
        "the second output of an operation", leaf(4, 2).sort(dim=0).values + leaf(4, 2).max(dim=0).values
    )
    yield case("a row of a stack", torch.stack([a * 2, b * 3, torch.ones(3)])[1])


@graph_nodes.alternative
def visits_recursively(out):
    seen = set()

    def visit(node):
        if node is not None and node not in seen:
            seen.add(node)
            for parent, _ in node.next_functions:
                visit(parent)

    visit(out.grad_fn)
    return [type(node).__name__ for node in seen]


@graph_nodes.alternative
def goes_level_by_level(out):
    level = [out.grad_fn] if out.grad_fn else []
    found = dict.fromkeys(level)
    while level:
        parents = [parent for node in level for parent, _ in node.next_functions if parent]
        level = [parent for parent in dict.fromkeys(parents) if parent not in found]
        found.update(dict.fromkeys(level))
    return [node.name() for node in found]


@graph_nodes.alternative
def names_leaves_by_hand(out):
    names, seen, waiting = [], [], [out.grad_fn]
    while waiting:
        node = waiting.pop(0)
        if node is not None and not any(node is other for other in seen):
            seen.append(node)
            names.append("AccumulateGrad" if hasattr(node, "variable") else node.name())
            waiting.extend(pair[0] for pair in node.next_functions)
    return names


@graph_nodes.misconception(
    "You walked the graph as a tree: a node that several others point to was counted once for each way that "
    "leads to it. The graph is a DAG, and a value that is used twice has one node."
)
def walks_a_tree(out):
    def visit(node):
        if node is None:
            return []
        return [node.name(), *(name for parent, _ in node.next_functions for name in visit(parent))]

    return visit(out.grad_fn)


@graph_nodes.misconception(
    "You looked at `grad_fn` and at the nodes right behind it. Those have `next_functions` too, and so on, "
    "down to the leaves."
)
def looks_one_level_down(out):
    if out.grad_fn is None:
        return []
    found = {out.grad_fn, *(parent for parent, _ in out.grad_fn.next_functions if parent is not None)}
    return [node.name() for node in found]


@graph_nodes.misconception(
    "You left out the nodes in which the graph ends. An `AccumulateGrad` node has no further nodes behind it, "
    "but it is the one that writes to the `.grad` of its leaf."
)
def drops_the_leaves(out):
    names, seen, waiting = [], set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or not node.next_functions:
            continue
        seen.add(node)
        names.append(node.name())
        waiting += [parent for parent, _ in node.next_functions]
    return names


@graph_nodes.misconception(
    "You met None and asked it for its name. `next_functions` has None for an input that needs no gradient, "
    "such as a plain number, and `grad_fn` is None for a tensor without a graph."
)
def does_not_expect_none(out):
    names, seen, waiting = [], set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        names.append(node.name())
        waiting += [parent for parent, _ in node.next_functions]
    return names


@graph_nodes.misconception(
    "You collected names instead of nodes. Two multiplications are two nodes with one name, and both count."
)
def collects_names(out):
    names, waiting = {}, [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node.name() not in names:
            names[node.name()] = node
        if node is not None:
            waiting += [parent for parent, _ in node.next_functions]
    return list(names)


@graph_nodes.misconception(
    "You followed the first input of each node only. An operation has as many inputs as `next_functions` has "
    "pairs, and each may have a graph behind it."
)
def follows_the_first_input(out):
    names, node = [], out.grad_fn
    while node is not None:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    return names


# ---- sqrt_or_zero ------------------------------------------------------------------------------------------

sqrt_or_zero = Exercise(
    reference.sqrt_or_zero,
    title="A branch that is not taken",
    objective="autograd.backward",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(rtol=1e-6), observe.gradients()],
    hints=(
        "What is the derivative of the square root at 0 and below? And what does backward multiply it with, at "
        "the places where `where` took the other branch?",
        "0 times infinity is NaN. So the root must never see a number at which its derivative is not finite: "
        "change its input, not only its output.",
        "Use `where` twice: once to put a harmless number, such as 1, wherever `x > 0` is false, and once after "
        "the root to put the 0 there.",
    ),
    why="The gradient runs through both branches: the branch not taken gets the cotangent 0 and multiplies it "
    "by its derivative, and 0 times infinity is NaN. With a harmless input the derivative is finite, and 0 "
    "times a finite number is 0.",
)


@sqrt_or_zero.cases
def _(rng):
    yield case("a positive number", torch.tensor([4.0], requires_grad=True))
    yield case("positive and negative", torch.tensor([-1.0, 4.0], requires_grad=True))
    yield case("zero", torch.tensor([0.0, 9.0], requires_grad=True))
    yield case("all of them negative", torch.tensor([-3.0, -0.5], requires_grad=True))
    x = torch.randn(4, 3, generator=rng)
    x[1, 1] = 0
    yield case("a transposed matrix", x.t().requires_grad_())
    yield case("a very small number", torch.tensor([1e-12, -1e-12], requires_grad=True))


@sqrt_or_zero.alternative
def writes_only_where_positive(x):
    result = torch.zeros_like(x)
    positive = x > 0
    result[positive] = x[positive].sqrt()
    return result


@sqrt_or_zero.alternative
def multiplies_by_the_mask(x):
    positive = x > 0
    return x.masked_fill(~positive, 1).sqrt() * positive


@sqrt_or_zero.alternative
def takes_a_power(x):
    safe = torch.where(x > 0, x, torch.ones_like(x))
    return torch.where(x > 0, safe**0.5, torch.zeros_like(x))


@sqrt_or_zero.misconception(
    "Your values are right and some gradients are NaN. `where` chooses among results; backward goes through "
    "both branches, and in the one not taken 0 meets an infinite derivative. Make the input of the root safe."
)
def chooses_after_the_root(x):
    return torch.where(x > 0, x.sqrt(), 0.0)


@sqrt_or_zero.misconception(
    "You cut the negative numbers off before the root. But at 0 the root is infinitely steep: the gradient at "
    "0 is infinite, and below it 0 times infinity, which is NaN."
)
def clamps_before_the_root(x):
    return x.clamp(min=0).sqrt()


@sqrt_or_zero.misconception(
    "You added a small number under the root. The gradient is finite now, but at 0 it is huge instead of 0, and "
    "the value is no longer 0."
)
def adds_an_epsilon(x):
    return (x.clamp(min=0) + 1e-8).sqrt()


@sqrt_or_zero.misconception(
    "You multiplied by a mask after the root. The root of a negative number is NaN, and NaN times 0 is NaN."
)
def masks_the_nan(x):
    return x.sqrt() * (x > 0)


@sqrt_or_zero.misconception(
    "You made the input safe and left it at that. Where `x` is not positive, the result is the root of the "
    "harmless number; put 0 there in the end."
)
def forgets_the_zero(x):
    return torch.where(x > 0, x, 1.0).sqrt()


@sqrt_or_zero.misconception(
    "You computed the root without recording it. The values are right, and no gradient flows to `x` at all."
)
def detaches_the_root(x):
    return torch.where(x > 0, x.detach().clamp(min=0).sqrt(), 0.0)


@sqrt_or_zero.misconception(
    "You took the root of the absolute value. Below zero the gradient is cut off, but at 0 itself backward "
    "still multiplies 0 by the infinite slope of the root."
)
def takes_the_absolute_value(x):
    return torch.where(x > 0, x.abs().sqrt(), 0.0)


# ---- accumulate_step ---------------------------------------------------------------------------------------

accumulate_step = Exercise(
    reference.accumulate_step,
    title="A large batch in small pieces",
    objective="autograd.backward",
    difficulty=2,
    minutes=15,
    points=2,
    observes=[observe.value(rtol=1e-4, atol=1e-6)],
    hints=(
        "Write down the loss of the large batch as a sum over its samples. Which factor stands before the sum, "
        "and what is left of it in each micro-batch?",
        "The gradient of a sum is the sum of the gradients, and `backward` adds. So each micro-batch has to "
        "contribute the sum of its squared errors, divided by the number of samples in *all* of them.",
        "Count the samples first. Clear the gradients once before the loop; in it, take the loss with "
        '`reduction="sum"`, divide it by the count and call `backward()`. Step once after the loop.',
    ),
    why="Backward adds to `.grad`, so after the loop it holds the gradient of the sum of the losses. Each loss "
    "was divided by the number of all samples, so this sum is the mean over the large batch. Dividing by the "
    "number of micro-batches gives the same only where all of them have the same size.",
)


@accumulate_step.scenario
def _(answer, x, y, sizes, stale):
    """The weights after the step, the number of steps, and whether the graphs were alive one at a time."""
    model = built_alike(lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    opt = CountingSGD(model.parameters(), lr=0.5)
    if stale:
        (model(torch.ones(4, 2)).sum() * 3).backward()
    with GraphsAlive() as graphs:
        answer(model, opt, list(zip(x.split(sizes), y.split(sizes))))
    found = {"weights": weights_of(model), "steps": opt.n_steps, "left on the model": left_on(model)}
    if len(sizes) > 2:
        found["one graph at a time"] = graphs.most * 2 <= graphs.saved
    return found


@accumulate_step.cases
def _(rng):
    def samples(n):
        x = torch.randn(2, n, generator=rng).t()
        return x, x.sum(dim=1, keepdim=True) + torch.randn(n, 1, generator=rng)

    yield case("one micro-batch", *samples(4), [4], False)
    yield case("four equal micro-batches", *samples(12), [3, 3, 3, 3], False)
    yield case("a smaller last micro-batch", *samples(13), [4, 4, 4, 1], False)
    yield case("three of three sizes", *samples(9), [2, 6, 1], False)
    yield case("gradients left over from before", *samples(6), [2, 2, 2], True)
    x, y = samples(10)
    yield case("inputs that are contiguous", x.contiguous(), y, [5, 5], False)


@accumulate_step.alternative
def weights_each_mean(model, opt, microbatches):
    n_samples = sum(x.shape[0] for x, _ in microbatches)
    model.zero_grad()
    for x, y in microbatches:
        loss = (model(x) - y).pow(2).mean() * (x.shape[0] / n_samples)
        loss.backward()
    opt.step()
    opt.zero_grad()


@accumulate_step.alternative
def divides_the_gradients(model, opt, microbatches):
    opt.zero_grad(set_to_none=False)
    n_samples = 0
    for x, y in microbatches:
        ((model(x) - y) ** 2).sum().backward()
        n_samples += len(y)
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad /= n_samples
    opt.step()


@accumulate_step.alternative
def adds_by_hand(model, opt, microbatches):
    params = list(model.parameters())
    totals = [torch.zeros_like(p) for p in params]
    n_samples = sum(len(x) for x, _ in microbatches)
    for x, y in microbatches:
        grads = torch.autograd.grad(F.mse_loss(model(x), y, reduction="sum"), params)
        totals = [total + grad / n_samples for total, grad in zip(totals, grads)]
    for p, total in zip(params, totals):
        p.grad = total
    opt.step()


@accumulate_step.misconception(
    "You added up the mean losses without dividing. With four micro-batches the gradient is four times too "
    "large, as if the learning rate were."
)
def does_not_divide(model, opt, microbatches):
    opt.zero_grad()
    for x, y in microbatches:
        F.mse_loss(model(x), y).backward()
    opt.step()


@accumulate_step.misconception(
    "You divided each mean loss by the number of micro-batches. That is right as long as all have the same "
    "size; here the samples of a small last micro-batch count more than the others. Divide by samples."
)
def divides_by_the_number_of_microbatches(model, opt, microbatches):
    opt.zero_grad()
    for x, y in microbatches:
        (F.mse_loss(model(x), y) / len(microbatches)).backward()
    opt.step()


@accumulate_step.misconception(
    "You called `opt.step()` inside the loop. Then the later micro-batches see other weights than the first, "
    "and it is no longer one step of one large batch."
)
def steps_inside_the_loop(model, opt, microbatches):
    n_samples = sum(len(x) for x, _ in microbatches)
    opt.zero_grad()
    for x, y in microbatches:
        (F.mse_loss(model(x), y, reduction="sum") / n_samples).backward()
        opt.step()


@accumulate_step.misconception(
    "You cleared the gradients in every round. What the earlier micro-batches had added is gone, and the step "
    "follows the last one alone."
)
def clears_inside_the_loop(model, opt, microbatches):
    n_samples = sum(len(x) for x, _ in microbatches)
    for x, y in microbatches:
        opt.zero_grad()
        (F.mse_loss(model(x), y, reduction="sum") / n_samples).backward()
    opt.step()


@accumulate_step.misconception(
    "You did not clear the gradients before the first micro-batch. Whatever an earlier batch left there was "
    "added to yours."
)
def never_clears(model, opt, microbatches):
    n_samples = sum(len(x) for x, _ in microbatches)
    for x, y in microbatches:
        (F.mse_loss(model(x), y, reduction="sum") / n_samples).backward()
    opt.step()


@accumulate_step.misconception(
    "You stepped after every fourth micro-batch. Where their number is not a multiple of four, the rest is "
    "never applied. Here one call is one step, after the last micro-batch, however many there are."
)
def drops_the_rest(model, opt, microbatches):
    n_samples = sum(len(x) for x, _ in microbatches)
    opt.zero_grad()
    for i, (x, y) in enumerate(microbatches):
        (F.mse_loss(model(x), y, reduction="sum") / n_samples).backward()
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()


@accumulate_step.misconception(
    "The step is right, but everything was in memory at once: one graph over all micro-batches, or all of their "
    "graphs together. To avoid that is what micro-batches are for: call backward for each, before the next one."
)
def keeps_all_graphs(model, opt, microbatches):
    n_samples = sum(len(x) for x, _ in microbatches)
    opt.zero_grad()
    losses = [F.mse_loss(model(x), y, reduction="sum") for x, y in microbatches]
    (sum(losses) / n_samples).backward()
    opt.step()


# ---- distill_loss ------------------------------------------------------------------------------------------

distill_loss = Exercise(
    reference.distill_loss,
    title="Learn from a teacher",
    objective="autograd.stopping",
    difficulty=1,
    minutes=5,
    points=1,
    stretch=True,
    observes=[observe.value(rtol=1e-5, atol=1e-7), observe.requires_grad(), observe.gradients()],
    hints=(
        "Draw the graph of the loss. Which of the two branches should backward not enter?",
        "Cut one branch off where it comes in, and leave the other one alone.",
        "Call `detach()` on the tensor that should get no gradient, and use the result in the mean of the squares.",
    ),
    why="`detach` gives a tensor with the same numbers and without history: the loss can be computed from it, "
    "and backward has no way through it. `no_grad` around the whole would cut both branches.",
)


@distill_loss.cases
def _(rng):
    def leaf(*shape):
        return torch.randn(*shape, generator=rng).requires_grad_()

    yield case(
        "two logits",
        torch.tensor([1.0, -2.0], requires_grad=True),
        torch.tensor([0.0, 2.0], requires_grad=True),
    )
    yield case("a batch", leaf(2, 3), leaf(2, 3))
    yield case("a teacher that is frozen", leaf(4), torch.randn(4, generator=rng))
    yield case("transposed", torch.randn(3, 2, generator=rng).t().requires_grad_(), leaf(2, 3))


@distill_loss.alternative
def computes_the_target_first(student, teacher):
    with torch.no_grad():
        target = teacher.clone()
    return F.mse_loss(student, target)


@distill_loss.alternative
def takes_the_bare_numbers(student, teacher):
    return ((student - teacher.data) ** 2).sum() / student.numel()


@distill_loss.alternative
def stops_in_a_block(student, teacher):
    with torch.set_grad_enabled(False):
        target = teacher + 0
    return torch.mean((target - student) ** 2)


@distill_loss.misconception(
    "Your loss sends gradients to the teacher as well. It would move toward the student, half of the way each. "
    "Cut its branch with `detach`."
)
def does_not_detach(student, teacher):
    return (student - teacher).square().mean()


@distill_loss.misconception(
    "You put everything under `no_grad`. Nothing was recorded, so the student has no gradient either. Cut one "
    "branch, not the tree."
)
def records_nothing(student, teacher):
    with torch.no_grad():
        return (student - teacher).square().mean()


@distill_loss.misconception(
    "You detached the student, the one that should learn. The gradient went to the teacher."
)
def detaches_the_student(student, teacher):
    return (student.detach() - teacher).square().mean()


@distill_loss.misconception(
    "You returned a Python number. `item()` leaves the graph for good, and nothing can flow back from a float."
)
def returns_a_number(student, teacher):
    return (student - teacher).square().mean().item()


@distill_loss.misconception(
    "You switched `requires_grad` off on the teacher itself, for everyone and for good. `detach()` gives you a "
    "tensor of your own to cut, and leaves the teacher alone."
)
def freezes_the_teacher(student, teacher):
    return (student - teacher.requires_grad_(False)).square().mean()


@distill_loss.misconception("You added up the squares. The mean is asked for.")
def sums_the_squares(student, teacher):
    return (student - teacher.detach()).square().sum()


# ---- train_in_chunks ---------------------------------------------------------------------------------------

train_in_chunks = Exercise(
    reference.train_in_chunks,
    title="A long sequence, chunk by chunk",
    objective="autograd.stopping",
    difficulty=3,
    minutes=15,
    points=2,
    observes=[observe.value(rtol=1e-4, atol=1e-6), observe.requires_grad()],
    hints=(
        "Which graph hangs on `h` when the second chunk begins? Draw it, and say which of its saved tensors are "
        "still there after the first backward.",
        "Between two chunks the numbers of `h` should go on and its graph should not. Inside a chunk, both.",
        "Begin each round of the outer loop with `h = h.detach()`. Then run the cell over the steps, clear, "
        "call backward on the loss, and step. Detach once more at the end.",
    ),
    why="After a chunk `h` drags that chunk's graph along: its saved tensors are freed, and its weights have "
    "been changed in place by the step. A backward that runs into it fails for the one reason, and with "
    "`retain_graph=True` for the other. `detach` keeps the numbers and drops the graph: truncated "
    "backpropagation through time.",
)


@train_in_chunks.scenario
def _(answer, sequence, seq, h):
    """The state that came back, the weights after training, and the number of steps."""
    cell = built_alike(lambda: nn.RNNCell(2, 3))
    opt = CountingSGD(cell.parameters(), lr=0.5)
    returned = answer(cell, list(sequence.split(seq)), h, opt)
    return {
        "returned": returned,
        "weights": weights_of(cell),
        "steps": opt.n_steps,
        "left on the cell": left_on(cell),
    }


@train_in_chunks.cases
def _(rng):
    def randn(*shape):
        return torch.randn(*shape, generator=rng)

    yield case("one chunk of one step", randn(1, 2, 2), 1, torch.zeros(2, 3))
    yield case("one chunk of three steps", randn(3, 2, 2), 3, torch.zeros(2, 3))
    yield case("two chunks", randn(4, 2, 2), 2, torch.zeros(2, 3))
    yield case("a first state that is not zero", randn(4, 2, 2), 2, randn(2, 3))
    yield case("three chunks, the last one shorter, one sequence", randn(5, 1, 2), 2, randn(1, 3))
    yield case("inputs that are not contiguous", randn(2, 4, 2).transpose(0, 1), 2, randn(3, 2).t())


@train_in_chunks.alternative
def detaches_after_the_step(cell, chunks, h, opt):
    for chunk in chunks:
        opt.zero_grad()
        for t in range(chunk.shape[0]):
            h = cell(chunk[t], h)
        loss = (h**2).mean()
        loss.backward()
        opt.step()
        h = h.detach()
    return h


@train_in_chunks.alternative
def detaches_in_place(cell, chunks, h, opt):
    for chunk in chunks:
        for x in chunk.unbind(0):
            h = cell(x, h)
        h.pow(2).mean().backward()
        opt.step()
        opt.zero_grad()
        h.detach_()
    return h


@train_in_chunks.alternative
def asks_for_gradients(cell, chunks, h, opt):
    params = list(cell.parameters())
    for chunk in chunks:
        state = h
        for x in chunk:
            state = cell(x, state)
        for p, grad in zip(params, torch.autograd.grad(state.square().mean(), params)):
            p.grad = grad
        opt.step()
        h = state.data
    return h


@train_in_chunks.misconception(
    "You let the graph go on from chunk to chunk. The second backward runs into the graph of the first chunk, "
    'whose saved tensors are gone: "Trying to backward through the graph a second time".'
)
def never_detaches(cell, chunks, h, opt):
    for chunk in chunks:
        for x in chunk:
            h = cell(x, h)
        opt.zero_grad()
        h.square().mean().backward()
        opt.step()
    return h.detach()


@train_in_chunks.misconception(
    "You began every chunk with the first state. The graph ends where it should, but the cell forgets what it "
    "read before: the numbers should go on."
)
def starts_again_each_time(cell, chunks, h, opt):
    state = h
    for chunk in chunks:
        state = h
        for x in chunk:
            state = cell(x, state)
        opt.zero_grad()
        state.square().mean().backward()
        opt.step()
    return state.detach()


@train_in_chunks.misconception(
    "You detached at every step. Then gradients reach back one step only, and the cell never learns what to "
    "remember within a chunk. Detach between chunks."
)
def detaches_every_step(cell, chunks, h, opt):
    for chunk in chunks:
        for x in chunk:
            h = cell(x, h.detach())
        opt.zero_grad()
        h.square().mean().backward()
        opt.step()
    return h.detach()


@train_in_chunks.misconception(
    "You did not clear the gradients, so each step follows the sum of the gradients of all chunks so far."
)
def never_clears_between_chunks(cell, chunks, h, opt):
    for chunk in chunks:
        h = h.detach()
        for x in chunk:
            h = cell(x, h)
        h.square().mean().backward()
        opt.step()
    return h.detach()


@train_in_chunks.misconception(
    "The state that you returned still has the graph of the last chunk behind it. Whoever keeps it keeps all of "
    "that in memory, and a later backward may run into it."
)
def returns_an_attached_state(cell, chunks, h, opt):
    for chunk in chunks:
        h = h.detach()
        for x in chunk:
            h = cell(x, h)
        opt.zero_grad()
        h.square().mean().backward()
        opt.step()
    return h


@train_in_chunks.misconception(
    "You made one step at the end, with the gradients of all chunks. Here every chunk has its own step, and the "
    "next one is read with the new weights."
)
def steps_once(cell, chunks, h, opt):
    opt.zero_grad()
    for chunk in chunks:
        h = h.detach()
        for x in chunk:
            h = cell(x, h)
        h.square().mean().backward()
    opt.step()
    return h.detach()


@train_in_chunks.misconception(
    "You detached the state before the loss. Then no graph leads from the loss to the weights, and there is "
    "nothing to differentiate."
)
def detaches_before_the_loss(cell, chunks, h, opt):
    for chunk in chunks:
        for x in chunk:
            h = cell(x, h)
        h = h.detach()
        opt.zero_grad()
        h.square().mean().requires_grad_().backward()
        opt.step()
    return h


# ---- sgd_step_ ---------------------------------------------------------------------------------------------

sgd_step_ = Exercise(
    reference.sgd_step_,
    title="The optimizer's line",
    objective="autograd.inplace",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value(rtol=1e-5, atol=1e-7)],
    hints=(
        "Try `w -= 0.1` on a leaf that requires grad, and read the message. Then try `w = w - 0.1`, and look at "
        "what the caller's `w` is afterwards.",
        "An update is no part of the function that is differentiated. Switch recording off around it, change each "
        "parameter in place, and skip those without a gradient.",
        "Under `with torch.no_grad():` go through `params`; where `p.grad` is not None, use `p -= ...` and then "
        "set `p.grad` to None.",
    ),
    why="Under `no_grad` the in-place edit is allowed, because nothing is recorded that it could break. It "
    "changes the very tensor that the model holds; `p = p - ...` would make a new one and tie a new local name "
    "to it. This is what every optimizer does in `step()`.",
)


@sgd_step_.scenario
def _(answer, values, grads, lr):
    """The parameters after the step, as their owner sees them."""
    params = [value.clone().requires_grad_() for value in values]
    for p, grad in zip(params, grads):
        p.grad = None if grad is None else grad.clone()
    given = list(params)
    answer(given, lr)
    return {
        "parameters": [p.detach().clone() for p in params],
        "the list": ["the same tensor" if a is b else "another tensor" for a, b in zip(params, given)],
        "leaves that require grad": [p.is_leaf and p.requires_grad for p in params],
        "gradients cleared": [p.grad is None or not p.grad.any().item() for p in params],
    }


@sgd_step_.cases
def _(rng):
    def pair(*shape):
        return torch.randn(*shape, generator=rng), torch.randn(*shape, generator=rng)

    yield case("one parameter", [torch.tensor([2.0, -1.0])], [torch.tensor([4.0, -2.0])], 0.1)
    w, g = pair(2, 3)
    yield case("one without a gradient", [w.clone(), w + 1], [g.clone(), None], 0.5)
    b, gb = pair(3)
    yield case("three, and the first has no gradient", [b, w.clone(), b - 2], [None, g.clone(), gb], 0.01)
    yield case("a transposed parameter", [w.t()], [g.t()], 2.0)
    yield case("a parameter without dimensions", [torch.tensor(1.5)], [torch.tensor(-3.0)], 1.0)


@sgd_step_.alternative
def copies_into_place(params, lr):
    for p in params:
        if p.grad is None:
            continue
        with torch.no_grad():
            p.copy_(p - lr * p.grad)
        p.grad = None


@sgd_step_.alternative
def edits_a_detached_view(params, lr):
    for p in params:
        if p.grad is not None:
            p.detach().add_(p.grad, alpha=-lr)
            p.grad.zero_()


@sgd_step_.alternative
def asks_torch(params, lr):
    opt = torch.optim.SGD(params, lr=lr)
    opt.step()
    opt.zero_grad()


@sgd_step_.misconception(
    "You changed a leaf in place while autograd was recording. It refuses: the value that the graph begins with "
    "would be gone. An update is no part of the graph; put it under `torch.no_grad()`."
)
def forgets_no_grad(params, lr):
    for p in params:
        if p.grad is not None:
            p -= lr * p.grad
            p.grad = None


@sgd_step_.misconception(
    "You made new tensors and gave them the old local name. The caller still holds the old ones, and they did "
    "not change. `p -= ...` writes into the tensor; `p = p - ...` does not."
)
def rebinds_the_name(params, lr):
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p = p - lr * p.grad
                p.grad = None


@sgd_step_.misconception(
    "You put new tensors into the list. The model still holds the old ones, which did not change; and the new "
    "ones do not require grad."
)
def replaces_the_list_entries(params, lr):
    with torch.no_grad():
        for i, p in enumerate(params):
            if p.grad is not None:
                params[i] = p - lr * p.grad


@sgd_step_.misconception(
    "You left the gradients as they were. Backward adds to `.grad`, so the next step would follow this gradient "
    "once more."
)
def does_not_clear(params, lr):
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p -= lr * p.grad


@sgd_step_.misconception(
    "You took for granted that every parameter has a gradient. One that the loss did not use has `.grad` None."
)
def does_not_expect_none_gradients(params, lr):
    with torch.no_grad():
        for p in params:
            p -= lr * p.grad
            p.grad = None


@sgd_step_.misconception(
    "You went up the slope. The gradient points to where the loss grows, and a step that lowers it goes the "
    "other way: minus."
)
def adds_the_gradient(params, lr):
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p += lr * p.grad
                p.grad = None


@sgd_step_.misconception(
    "You cleared the gradients first and then made the step: with nothing in `.grad`, nothing moves."
)
def clears_too_early(params, lr):
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p.grad.zero_()
                p -= lr * p.grad


@sgd_step_.misconception(
    "You got the edit allowed by switching `requires_grad` off, and never switched it on again. From now on "
    "these parameters are frozen. `torch.no_grad()` leaves the tensors as they are."
)
def freezes_the_parameters(params, lr):
    for p in params:
        if p.grad is not None:
            p.requires_grad_(False)
            p -= lr * p.grad
            p.grad = None


# ---- MyReLU ------------------------------------------------------------------------------------------------

MyReLU = Exercise(
    reference.MyReLU,
    title="Your own ReLU",
    objective="autograd.functions",
    difficulty=2,
    minutes=15,
    points=3,
    observes=[observe.value(), observe.gradients()],
    hints=(
        "Forward gets the numbers, backward gets the cotangent. What does backward have to know about `x`, and "
        "how does it travel from the one to the other?",
        "Save `x` in forward with `ctx.save_for_backward`. In backward multiply the cotangent by 1 where `x > 0` "
        "and by 0 elsewhere, into a new tensor.",
        "`ctx.saved_tensors` is a tuple, so write `(x,) = ctx.saved_tensors`. Then `x > 0` is a mask that can be "
        "multiplied with `grad_out`.",
    ),
    why="The chain rule: the cotangent times the local derivative, 1 or 0. `save_for_backward` remembers the "
    "version of what it saved, so that an edit in between is noticed; an attribute of `ctx` does not. The "
    "product is a new tensor, so the cotangent stays as it was.",
)
MyReLU.scenario(lambda answer, x: apply_and_edit(answer, x))


@MyReLU.cases
def _(rng):
    yield case("negative, zero, positive", torch.tensor([-1.0, 0.0, 2.0], requires_grad=True))
    yield case("two numbers", torch.tensor([-3.0, 5.0], requires_grad=True))
    x = torch.randn(3, 4, generator=rng)
    x[1, 2] = 0
    yield case("a transposed matrix", x.t().requires_grad_())
    yield case("float64, three dimensions", torch.randn(2, 1, 3, generator=rng).double().requires_grad_())


@MyReLU.alternative
class EditsAClone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.where(x > 0, x, 0.0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_out):
        (y,) = ctx.saved_tensors
        grad_in = grad_out.clone()
        grad_in[y <= 0] = 0
        return grad_in


@MyReLU.alternative
class SavesTheMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_out):
        return torch.where(ctx.saved_tensors[0], grad_out, torch.zeros_like(grad_out))


@MyReLU.alternative
class SetsUpTheContext(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.relu(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out.masked_fill(ctx.saved_tensors[0] <= 0, 0)


@MyReLU.misconception(
    "At exactly 0 your gradient passes. You zeroed it where `x < 0`; `torch.relu` gives 0 at 0 as well, so the "
    "mask is `x <= 0`. A gradient check at random points does not meet this place."
)
class PassesAtZero(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        grad_in = grad_out.clone()
        grad_in[x < 0] = 0
        return grad_in


@MyReLU.misconception(
    "You wrote into the cotangent. It is not yours: autograd hands the same tensor to others, and after "
    "`.sum()` all its elements share one place in memory. Make a new tensor, or clone it first."
)
class EditsTheCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        grad_out[x <= 0] = 0
        return grad_out


@MyReLU.misconception(
    "You kept `x` as an attribute of `ctx`. That works until somebody changes it in place: then backward uses "
    "the new numbers, and nobody is told. `save_for_backward` remembers the version and refuses."
)
class KeepsAnAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * (ctx.x > 0)


@MyReLU.misconception(
    "Your backward does not use its cotangent: it returns the derivative of ReLU alone. The chain rule wants "
    "the product. With `.sum().backward()` the cotangent is all ones, and you would never notice."
)
class IgnoresTheCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        return (x > 0).to(x.dtype)


@MyReLU.misconception(
    "Your backward applies ReLU to the cotangent. What decides is the sign of `x` in forward, and a negative "
    "cotangent passes like any other."
)
class RectifiesTheCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out.clamp(min=0)


@MyReLU.misconception(
    "You kept the output as an attribute of `ctx`. An edit of the output in place goes unnoticed; and output and "
    "node hold each other, so that their memory is freed late. Use `save_for_backward`."
)
class KeepsTheOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.clamp(min=0)
        return ctx.y

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * (ctx.y > 0)


@MyReLU.misconception(
    "You multiplied the cotangent by the output instead of by the derivative. Where `x` is positive, ReLU has "
    "the slope 1, whatever the value is."
)
class MultipliesByTheOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        return grad_out * x.clamp(min=0)


# ---- ScaleFeatures -----------------------------------------------------------------------------------------

ScaleFeatures = Exercise(
    reference.ScaleFeatures,
    title="A weight for every feature",
    objective="autograd.functions",
    difficulty=3,
    minutes=20,
    points=3,
    observes=[
        observe.value(rtol=1e-5, atol=1e-6),
        observe.gradients(),
        observe.gradients(order=2),
    ],
    hints=(
        "Write the element `y[b, d] = x[b, d] * weight[d]`. In how many of them does `weight[d]` appear?",
        "The gradient of `x` is the cotangent times the weight. That of `weight` is the cotangent times `x`, "
        "summed over the batch. Compute each only where `ctx.needs_input_grad` says so.",
        "Save both tensors themselves, so that autograd can differentiate your backward. Then "
        "`ctx.needs_input_grad` gives two flags, and `.sum(dim=0)` turns (batch, dim) into (dim,).",
    ),
    why="`weight[d]` was used once per row, so the gradients of all rows add up: the sum undoes the broadcast. "
    "The second derivative works because backward is made of differentiable operations on saved *inputs*; a "
    "detached or precomputed tensor would be a constant there.",
)


@ScaleFeatures.scenario
def _(answer, x, weight):
    """The output, and what backward returns when it is called directly with a full cotangent."""
    if not is_function(answer):
        return "not a torch.autograd.Function"
    y = answer.apply(x, weight)
    if y.grad_fn is None:
        return {"output": y, "direct": "the output has no graph"}
    cotangent = torch.arange(1.0, y.numel() + 1).reshape(y.shape).to(y.dtype)
    with torch.no_grad():
        direct = answer.backward(y.grad_fn, cotangent)
    found = tuple(direct) if isinstance(direct, (tuple, list)) else direct
    return {"output": y, "backward called directly": found}


@ScaleFeatures.cases
def _(rng):
    def leaf(*shape):
        return torch.randn(*shape, generator=rng).requires_grad_()

    yield case(
        "one row",
        torch.tensor([[1.0, -2.0]], requires_grad=True),
        torch.tensor([3.0, 0.5], requires_grad=True),
    )
    yield case("three rows", leaf(3, 2), leaf(2))
    yield case("as many rows as features", leaf(3, 3), leaf(3))
    yield case("only the weight needs a gradient", leaf(3, 2).detach(), leaf(2))
    yield case("only x needs a gradient", leaf(3, 2), leaf(2).detach())
    yield case("transposed", torch.randn(4, 2, generator=rng).t().requires_grad_(), leaf(4))


@ScaleFeatures.alternative
class SumsWithEinsum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.einsum("bd,d->bd", x, weight)

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.einsum("bd,d->bd", grad_out, weight)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.einsum("bd,bd->d", grad_out, x)
        return grad_x, grad_weight


@ScaleFeatures.alternative
class SavesWhatIsNeeded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        needs_x, needs_weight = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return weight * x

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        return (
            None if weight is None else weight * grad_out,
            None if x is None else (x * grad_out).sum(0),
        )


@ScaleFeatures.alternative
class HasAContextOfItsOwn(torch.autograd.Function):
    @staticmethod
    def forward(x, weight):
        return x * weight[None, :]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        gradients = [None, None]
        if ctx.needs_input_grad[0]:
            gradients[0] = grad_out * weight
        if ctx.needs_input_grad[1]:
            gradients[1] = (grad_out * x).sum_to_size(weight.shape)
        return tuple(gradients)


@ScaleFeatures.misconception(
    "You left out the sum over the batch. Through `.backward()` you do not see it, and `gradcheck` does not "
    "either: autograd sums an expanded gradient down by itself. But whoever calls your backward directly gets "
    "a gradient of the wrong shape."
)
class DropsTheSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return grad_out * weight if needs_x else None, grad_out * x if needs_weight else None


@ScaleFeatures.misconception(
    "Your gradient of `weight` has the shape (1, dim). Autograd accepts it and removes the dimension, but the "
    "gradient should have the shape of its input, (dim,)."
)
class KeepsTheSummedDimension(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad_weight = (grad_out * x).sum(dim=0, keepdim=True) if needs_weight else None
        return grad_out * weight if needs_x else None, grad_weight


@ScaleFeatures.misconception(
    "You averaged over the batch. Each row that used the weight adds its gradient; a mean belongs to a loss, "
    "and if there is one it is in the cotangent already."
)
class AveragesOverTheBatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad_weight = (grad_out * x).mean(dim=0) if needs_weight else None
        return grad_out * weight if needs_x else None, grad_weight


@ScaleFeatures.misconception(
    "You summed over the features. `weight[d]` appears once in each row, so its gradient is a sum over the "
    "batch, dimension 0."
)
class SumsOverTheFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad_weight = (grad_out * x).sum(dim=1) if needs_weight else None
        return grad_out * weight if needs_x else None, grad_weight


@ScaleFeatures.misconception(
    "Your backward returns the local derivatives and does not use its cotangent. The chain rule wants the "
    "product of the two."
)
class LeavesTheCotangentOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return weight.expand_as(x) if needs_x else None, x.sum(dim=0) if needs_weight else None


@ScaleFeatures.misconception(
    "You wrote into the cotangent. Autograd may have handed the same tensor to others, and its elements may "
    "share one place in memory. Multiply into a new tensor."
)
class WritesIntoTheCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad_weight = (grad_out * x).sum(dim=0) if needs_weight else None
        return grad_out.mul_(weight) if needs_x else None, grad_weight


@ScaleFeatures.misconception(
    "You computed both gradients in every case. `ctx.needs_input_grad` says which are wanted; for the other one "
    "return None, and save its work. A frozen weight is the usual case."
)
class ComputesBothAlways(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        return grad_out * weight, (grad_out * x).sum(dim=0)


@ScaleFeatures.misconception(
    "You exchanged the two gradients. That of `x` is the cotangent times the weight, that of the weight the "
    "cotangent times `x`; backward returns them in the order of forward's arguments."
)
class ExchangesTheGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return grad_out * x if needs_x else None, (grad_out * weight).sum(dim=0) if needs_weight else None


@ScaleFeatures.misconception(
    "Your first derivatives are right and the second ones are lost. What backward computes with was cut off "
    "from the graph, by `detach`, by `.data` or by saving something else than the inputs, and is a constant "
    "when backward itself is differentiated."
)
class DetachesWhatWasSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = (saved.detach() for saved in ctx.saved_tensors)
        needs_x, needs_weight = ctx.needs_input_grad
        grad_weight = (grad_out * x).sum(dim=0) if needs_weight else None
        return grad_out * weight if needs_x else None, grad_weight


# ---- ScaledExp ---------------------------------------------------------------------------------------------

ScaledExp = Exercise(
    reference.ScaledExp,
    title="An argument that is no tensor",
    objective="autograd.functions",
    difficulty=2,
    minutes=12,
    points=2,
    stretch=True,
    observes=[
        observe.value(rtol=1e-5, atol=1e-7),
        observe.gradients(),
        observe.gradients(order=2),
    ],
    hints=(
        "How many arguments does forward have besides `ctx`? Backward returns as many values. And what can "
        "`save_for_backward` take?",
        "The derivative of `exp(k * x)` is `k * exp(k * x)`. Save a tensor from which it can be computed, and "
        "keep `k` as an attribute of `ctx`.",
        "`ctx.save_for_backward(y)` and `ctx.k = k` in forward. Backward returns two things: the product of the "
        "cotangent, `ctx.k` and the saved output, and None for `k`.",
    ),
    why="Each argument of forward gets a place in what backward returns, and for one that has no gradient it is "
    "None. Saving the *output* with `save_for_backward` keeps it connected: when backward is differentiated, "
    "autograd knows that `y` depends on `x`.",
)
ScaledExp.scenario(lambda answer, x, k: apply_and_edit(answer, x, k))


@ScaledExp.cases
def _(rng):
    def leaf(*shape):
        return torch.randn(*shape, generator=rng).requires_grad_()

    yield case("one number, k = 2", torch.tensor([0.5], requires_grad=True), 2)
    yield case("a float", leaf(3), 0.5)
    yield case("a negative k", leaf(2, 2), -1.5)
    yield case("transposed", torch.randn(3, 2, generator=rng).t().requires_grad_(), 3)


@ScaledExp.alternative
class SavesTheInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.factor = k
        return (x * k).exp()

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        return ctx.factor * (x * ctx.factor).exp() * grad_out, None


@ScaledExp.alternative
class SplitsTheContext(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return torch.exp(x * k)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, grad_out):
        return ctx.saved_tensors[0] * grad_out * ctx.k, None


@ScaledExp.alternative
class CallsItselfInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return torch.pow(torch.e, k * x)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * ctx.k * torch.exp(ctx.k * ctx.saved_tensors[0]), None


@ScaledExp.misconception(
    "Your backward returns one gradient, and forward has two arguments. Every argument needs its place, also "
    "one that has no gradient: return None for `k`."
)
class ReturnsOneGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        y = torch.exp(k * x)
        ctx.save_for_backward(y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx, grad_out):
        (y,) = ctx.saved_tensors
        return grad_out * ctx.k * y


@ScaledExp.misconception(
    "You left the inner derivative out: the derivative of `exp(k * x)` has the factor `k`."
)
class ForgetsTheFactor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        y = torch.exp(k * x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_out):
        (y,) = ctx.saved_tensors
        return grad_out * y, None


@ScaledExp.misconception(
    "You left the outer derivative out: the exponential is its own derivative, so `y` is a factor too."
)
class ForgetsTheOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return torch.exp(k * x)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * ctx.k, None


@ScaledExp.misconception(
    "You gave a Python number to `save_for_backward`, which takes tensors only. A number can't be changed in "
    "place, so an attribute of `ctx` is the right place for it."
)
class SavesTheNumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        y = torch.exp(k * x)
        ctx.save_for_backward(y, k)
        return y

    @staticmethod
    def backward(ctx, grad_out):
        y, k = ctx.saved_tensors
        return grad_out * k * y, None


@ScaledExp.misconception(
    "Your first derivative is right and the second one is lost. What backward computes with was cut off from "
    "the graph, by `detach` or because it was an intermediate result of forward. Save an input or an output."
)
class DetachesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        y = torch.exp(k * x)
        ctx.save_for_backward(y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx, grad_out):
        (y,) = ctx.saved_tensors
        return grad_out * ctx.k * y.detach(), None


@ScaledExp.misconception(
    "You kept the output as an attribute of `ctx`. An edit of it in place goes unnoticed, and gives a wrong "
    "gradient. `save_for_backward` remembers the version."
)
class KeepsTheOutputAsAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.y, ctx.k = torch.exp(k * x), k
        return ctx.y

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * ctx.k * ctx.y, None


@ScaledExp.misconception(
    "Your backward returns the derivative alone. The chain rule wants it multiplied by the cotangent."
)
class ForgetsTheCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        y = torch.exp(k * x)
        ctx.save_for_backward(y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx, grad_out):
        (y,) = ctx.saved_tensors
        return ctx.k * y, None


@ScaledExp.misconception(
    "You multiplied the cotangent in place. It is not yours to change: others may hold the same tensor."
)
class MultipliesInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        y = torch.exp(k * x)
        ctx.save_for_backward(y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx, grad_out):
        (y,) = ctx.saved_tensors
        grad_out *= ctx.k
        return grad_out * y, None


# ---- numerical_gradient ------------------------------------------------------------------------------------

numerical_gradient = Exercise(
    reference.numerical_gradient,
    title="A gradient without autograd",
    objective="autograd.gradcheck",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value(rtol=1e-6, atol=1e-8), observe.requires_grad()],
    hints=(
        "How would you measure a slope if all you could do is call `f`? And which of the elements of `x` may "
        "move while you measure the slope in one of them?",
        "For each element make a step tensor that is `eps` there and 0 elsewhere. Call `f` at `x + step` and at "
        "`x - step`; the slope is the difference over the distance, which is twice `eps`.",
        "Loop over `range(x.numel())`. Build the step flat and `view` it as `x.shape`; write the slope into the "
        "flat view of a contiguous result.",
    ),
    why="The error of a one-sided difference shrinks with `eps`, that of a central one with `eps` squared, since "
    "the curvature cancels. This is what `gradcheck` compares your backward with, and why it wants float64: the "
    "difference of two nearly equal numbers loses half of the digits.",
)


class LyingSquare(torch.autograd.Function):
    """The square, with a wrong derivative: 3 * x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * 3 * ctx.saved_tensors[0]


@numerical_gradient.cases
def _(rng):
    def randn(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    yield case("a cube", lambda x: (x**3).sum(), torch.tensor([2.0], dtype=torch.float64))
    weight = randn(3)
    yield case("a weighted sum of exponentials", lambda x: (weight * x.exp()).sum(), randn(3))
    yield case("a product of all elements", lambda x: x.prod(), randn(2, 3))
    yield case("a transposed matrix", lambda x: (x.cumsum(0) ** 2).sum(), randn(2, 3).t())
    yield case("a tensor without dimensions", lambda x: x.sin(), torch.tensor(-1.0, dtype=torch.float64))
    yield case("a smaller step", lambda x: x.exp().sum(), randn(2), eps=1e-2)
    yield case("a function whose backward is wrong", lambda x: LyingSquare.apply(x).sum(), randn(2))
    yield case("an input that requires grad", lambda x: x.cos().sum(), randn(3).requires_grad_())


@numerical_gradient.alternative
def moves_a_copy(f, x, eps=1e-3):
    copy = x.detach().clone(memory_format=torch.contiguous_format)
    flat, slopes = copy.view(-1), []
    for i in range(flat.numel()):
        old = flat[i].item()
        flat[i] = old + eps
        up = f(copy).item()
        flat[i] = old - eps
        slopes.append((up - f(copy).item()) / (2 * eps))
        flat[i] = old
    return torch.tensor(slopes, dtype=x.dtype).reshape(x.shape)


@numerical_gradient.alternative
def takes_rows_of_the_identity(f, x, eps=1e-3):
    x = x.detach()
    steps = eps * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    slopes = [(f(x + step) - f(x - step)).detach() / (2 * eps) for step in steps]
    return torch.stack(slopes).reshape(x.shape)


@numerical_gradient.misconception(
    "You took a one-sided difference, from `x` to `x + eps`. Its error shrinks with `eps` only; the central "
    "one, from `x - eps` to `x + eps`, is far more exact for the same step."
)
def steps_to_one_side(f, x, eps=1e-3):
    x = x.detach()
    steps = eps * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    return torch.stack([(f(x + step) - f(x)).detach() / eps for step in steps]).reshape(x.shape)


@numerical_gradient.misconception(
    "You divided by `eps`. From `x - eps` to `x + eps` it is twice as far, so the slope is half of that."
)
def divides_by_one_step(f, x, eps=1e-3):
    x = x.detach()
    steps = eps * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    return torch.stack([(f(x + step) - f(x - step)).detach() / eps for step in steps]).reshape(x.shape)


@numerical_gradient.misconception(
    "You moved all elements at once. That measures one number, the slope along the diagonal; the gradient has "
    "one slope per element, with the others held still."
)
def moves_everything(f, x, eps=1e-3):
    x = x.detach()
    return torch.full_like(x, ((f(x + eps) - f(x - eps)) / (2 * eps)).item())


@numerical_gradient.misconception(
    "You asked autograd for the gradient. This number is there to check autograd: if a backward is wrong, you "
    "would compare it with itself."
)
def asks_autograd(f, x, eps=1e-3):
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


@numerical_gradient.misconception(
    "You moved `x` itself and left it moved. Each slope after the first is measured at another place, and the "
    "caller's tensor has changed."
)
def leaves_x_moved(f, x, eps=1e-3):
    slopes = []
    with torch.no_grad():
        flat = x.view(-1) if x.is_contiguous() else x.reshape(-1)
        for i in range(x.numel()):
            flat[i] += eps
            up = f(x).item()
            flat[i] -= 2 * eps
            slopes.append((up - f(x).item()) / (2 * eps))
    return torch.tensor(slopes, dtype=x.dtype).reshape(x.shape)


@numerical_gradient.misconception(
    "Your slopes are right, in a flat tensor. The gradient has the shape of `x`."
)
def returns_a_flat_result(f, x, eps=1e-3):
    x = x.detach()
    steps = eps * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    return torch.stack([(f(x + step) - f(x - step)).detach() / (2 * eps) for step in steps])


@numerical_gradient.misconception(
    "You computed in float32. With 7 digits, the difference of two nearly equal values keeps only a few of "
    "them; that is why a check of gradients is done in float64."
)
def computes_in_single(f, x, eps=1e-3):
    single = x.detach().float()
    steps = eps * torch.eye(x.numel()).reshape(-1, *x.shape)
    slopes = [(f(single + step) - f(single - step)).detach() / (2 * eps) for step in steps]
    return torch.stack(slopes).reshape(x.shape).to(x.dtype)


# ---- unbroadcast -------------------------------------------------------------------------------------------

unbroadcast = Exercise(
    reference.unbroadcast,
    title="Undo a broadcast",
    objective="autograd.engine",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value(rtol=1e-5, atol=1e-6)],
    hints=(
        "A row (3,) was added to a matrix (2, 3). How often was its first element used? And what about a column "
        "(2, 1)?",
        "First sum away the dimensions that were added in front, until there are as many as in `shape`. Then sum "
        "each dimension that is 1 in `shape`, and keep it with size 1.",
        "`while grad.dim() > len(shape)`: sum over dimension 0. Then `enumerate(shape)`, and where the size is 1 "
        "use `sum(dim=dim, keepdim=True)`.",
    ),
    why="Broadcasting uses one element in several places, and each place sends a gradient back: they add up. "
    "Sizes align at the right, so the dimensions in front go first. `Tensor.sum_to_size` does the same.",
)


@unbroadcast.cases
def _(rng):
    def randn(*shape):
        return torch.randn(*shape, generator=rng)

    yield case("a row that was used twice", torch.tensor([[1.0, 2.0], [3.0, -5.0]]), (2,))
    yield case("nothing was broadcast", randn(2, 3), (2, 3))
    yield case("a column that was stretched", randn(2, 3), (2, 1))
    yield case("a row of a matrix that was stretched", randn(2, 3), (1, 3))
    yield case("a number without dimensions", randn(2, 3), ())
    yield case("one element, two dimensions", randn(2, 3), (1, 1))
    yield case("added in front and stretched", randn(2, 4, 3), (4, 1))
    yield case("two added in front", randn(2, 2, 3), (3,))
    yield case("a middle dimension that was stretched", randn(3, 4, 2), (3, 1, 2))
    yield case("a size of 1 that stayed 1", randn(2, 1), (1, 1))
    yield case("a cotangent with stride 0", torch.tensor(-0.5).expand(4, 3), (3,))
    yield case("a transposed cotangent", randn(3, 2).t(), (2, 1))


@unbroadcast.alternative
def asks_for_the_size(grad, shape):
    return grad.sum_to_size(shape)


@unbroadcast.alternative
def collects_the_dimensions(grad, shape):
    n_added = grad.dim() - len(shape)
    dims = [d for d in range(grad.dim()) if d < n_added or shape[d - n_added] != grad.shape[d]]
    return grad.sum(dim=dims, keepdim=True).reshape(shape) if dims else grad


@unbroadcast.alternative
def goes_from_the_right(grad, shape):
    padded = (1,) * (grad.dim() - len(shape)) + tuple(shape)
    for dim, (have, want) in enumerate(zip(grad.shape, padded)):
        if have != want:
            grad = grad.sum(dim, keepdim=True)
    return grad.view(shape) if grad.is_contiguous() else grad.reshape(shape)


@unbroadcast.misconception(
    "You removed the dimensions in front and left the stretched ones. A size of 1 that became larger has to be "
    "summed back to 1 as well."
)
def forgets_the_stretched(grad, shape):
    while grad.dim() > len(shape):
        grad = grad.sum(dim=0)
    return grad


@unbroadcast.misconception(
    "You summed the stretched dimensions and left those in front. A dimension that the input did not have must "
    "vanish."
)
def forgets_the_added(grad, shape):
    padded = (1,) * (grad.dim() - len(shape)) + tuple(shape)
    for dim, size in enumerate(padded):
        if size == 1:
            grad = grad.sum(dim=dim, keepdim=True)
    return grad


@unbroadcast.misconception(
    "You dropped the dimensions that you summed. A column (2, 1) gets a gradient of the shape (2, 1): use "
    "`keepdim=True`."
)
def drops_the_stretched(grad, shape):
    while grad.dim() > len(shape):
        grad = grad.sum(dim=0)
    for dim in reversed(range(len(shape))):
        if shape[dim] == 1:
            grad = grad.sum(dim=dim)
    return grad


@unbroadcast.misconception(
    "You averaged. Each use of an element sends its own gradient back, and they add up; a mean would make an "
    "element that is used more often learn no faster than others."
)
def averages_the_copies(grad, shape):
    while grad.dim() > len(shape):
        grad = grad.mean(dim=0)
    for dim, size in enumerate(shape):
        if size == 1:
            grad = grad.mean(dim=dim, keepdim=True)
    return grad


@unbroadcast.misconception(
    "You took the gradient of the first copy. The other places in which the element was used send gradients "
    "too: sum them."
)
def takes_the_first_copy(grad, shape):
    while grad.dim() > len(shape):
        grad = grad[0]
    for dim, size in enumerate(shape):
        if size == 1:
            grad = grad.narrow(dim, 0, 1)
    return grad


@unbroadcast.misconception(
    "You summed over a list of dimensions that can be empty, and `sum(dim=())` sums over *all* of them. Where "
    "no dimension was added in front, nothing should be summed there."
)
def sums_over_an_empty_list(grad, shape):
    grad = grad.sum(dim=tuple(range(grad.dim() - len(shape))))
    for dim, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(dim=dim, keepdim=True)
    return grad


@unbroadcast.misconception(
    "You summed the surplus dimensions from the end. Shapes align at the right, so the dimensions that were "
    "added are the ones in front."
)
def aligns_at_the_left(grad, shape):
    while grad.dim() > len(shape):
        grad = grad.sum(dim=-1)
    for dim, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(dim=dim, keepdim=True)
    return grad


# ---- topological_order -------------------------------------------------------------------------------------

topological_order = Exercise(
    reference.topological_order,
    title="Parents first",
    objective="autograd.engine",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "Draw `y = x + x.exp()`. Which of the three nodes can be written down first, which last, and why is the "
        "one in the middle not free to choose?",
        "A node may be appended only after all of its parents are in the list. Remember which nodes you have "
        "met, so that each is appended once.",
        "A function that visits a node: return if it was seen; mark it; visit each of `node.parents`; only then "
        "append the node itself. Call it on `root`.",
    ),
    why="When a node is appended, everything it was made from stands in the list already. Read backwards, every "
    "node comes after all that used it: when its turn comes, its cotangent is complete. That is the order in "
    "which backward runs.",
)


class Node:
    """A node of a graph that holds nothing but its parents."""

    def __init__(self, name: str, parents: tuple[Node, ...]) -> None:
        self.name, self.parents = name, parents

    def __repr__(self) -> str:
        return self.name


def graph_of(edges: dict[str, str]) -> dict[str, Node]:
    """Nodes by name, from the names of each one's parents; parents are described before their children."""
    nodes: dict[str, Node] = {}
    for name, parents in edges.items():
        nodes[name] = Node(name, tuple(nodes[parent] for parent in parents.split()))
    return nodes


def stands_after_its_parents(order: list[Node]) -> bool:
    place = {node: i for i, node in reversed(list(enumerate(order)))}
    return all(place.get(parent, len(order)) < i for i, node in enumerate(order) for parent in node.parents)


@topological_order.scenario
def _(answer, edges):
    """Which nodes are in the list, and whether the order is one of the possible ones."""
    root = list(graph_of(edges).values())[-1]
    order = answer(root)
    if not isinstance(order, (list, tuple)) or not all(isinstance(node, Node) for node in order):
        return order
    again = answer(root)
    return {
        "nodes": sorted(node.name for node in order),
        "parents first": stands_after_its_parents(list(order)),
        "last": order[-1].name if order else "",
        "a second call": "gives the same" if list(again) == list(order) else "gives something else",
    }


@topological_order.cases
def _(rng):
    yield case("a leaf", {"x": ""})
    yield case("a chain", {"x": "", "y": "x", "z": "y"})
    yield case("twice the same parent", {"x": "", "y": "x x"})
    yield case("a diamond", {"x": "", "a": "x", "b": "x", "y": "a b"})
    yield case("a short way and a long way", {"x": "", "a": "x", "b": "a", "y": "x b"})
    yield case("the same, the long way first", {"x": "", "a": "x", "b": "a", "y": "b x"})
    yield case("nodes that are not behind the root", {"x": "", "w": "", "a": "x w", "b": "w", "y": "b"})
    edges = {"n0": "", "n1": ""}
    for i in range(2, 12):
        chosen = torch.randint(0, i, (2,), generator=rng).tolist()
        edges[f"n{i}"] = " ".join(f"n{j}" for j in [i - 1, *chosen])
    yield case("a random graph of twelve nodes", edges)


@topological_order.alternative
def keeps_a_stack(root):
    order, seen, stack = [], set(), [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((parent, False) for parent in node.parents)
    return order


@topological_order.alternative
def counts_the_uses(root):
    uses, waiting = {root: 0}, [root]
    while waiting:
        for parent in waiting.pop().parents:
            if parent not in uses:
                uses[parent] = 0
                waiting.append(parent)
            uses[parent] += 1
    order, ready = [], [root]
    while ready:
        node = ready.pop()
        order.append(node)
        for parent in node.parents:
            uses[parent] -= 1
            if uses[parent] == 0:
                ready.append(parent)
    return order[::-1]


@topological_order.alternative
def sorts_by_depth(root):
    depth = {}

    def measure(node):
        if node not in depth:
            depth[node] = 1 + max((measure(parent) for parent in node.parents), default=0)
        return depth[node]

    measure(root)
    return sorted(depth, key=depth.get)


@topological_order.misconception(
    "Your list begins with the root. Each node stands before its parents; append a node after you have visited "
    "them."
)
def appends_before_the_parents(root):
    order, seen = [], set()

    def visit(node):
        if node in seen:
            return
        seen.add(node)
        order.append(node)
        for parent in node.parents:
            visit(parent)

    visit(root)
    return order


@topological_order.misconception(
    "You did not remember which nodes you had met. A node with two children stands in your list twice, and in a "
    "deep graph thousands of times."
)
def does_not_remember(root):
    order = []
    for parent in root.parents:
        order += does_not_remember(parent)
    return [*order, root]


@topological_order.misconception(
    "You went level by level from the root. A parent that is met early, over a short way, may still be needed "
    "by a node further down: where the ways have different lengths, the level does not tell the order."
)
def goes_by_distance(root):
    order, waiting = [], [root]
    while waiting:
        node = waiting.pop(0)
        if node not in order:
            order.append(node)
            waiting.extend(node.parents)
    return order[::-1]


@topological_order.misconception(
    "You turned a list round that begins with the root and follows one way down after the other. For a chain "
    "that is right; where ways meet again, a node lands before one of its parents."
)
def reverses_the_walk(root):
    order, seen = [], set()

    def visit(node):
        if node in seen:
            return
        seen.add(node)
        order.append(node)
        for parent in node.parents:
            visit(parent)

    visit(root)
    return order[::-1]


@topological_order.misconception(
    "You left marks on the nodes. The first call is right; the next one finds everything visited and returns "
    "nothing. Keep the set of nodes that you have seen in the function."
)
def marks_the_nodes(root):
    if getattr(root, "visited", False):
        return []
    root.visited = True
    return [*(node for parent in root.parents for node in marks_the_nodes(parent)), root]


@topological_order.misconception(
    "The root itself is missing. It is the last node of the order, and backward begins there."
)
def leaves_the_root_out(root):
    order, seen = [], {root}

    def visit(node):
        for parent in node.parents:
            if parent not in seen:
                seen.add(parent)
                visit(parent)
                order.append(parent)

    visit(root)
    return order


@topological_order.misconception(
    "You listed the leaves only. Backward passes through every node between them and the root."
)
def lists_the_leaves(root):
    order, seen = [], set()

    def visit(node):
        if node in seen:
            return
        seen.add(node)
        for parent in node.parents:
            visit(parent)
        if not node.parents:
            order.append(node)

    visit(root)
    return order


# ---- Value -------------------------------------------------------------------------------------------------

Value = Exercise(
    reference.Value,
    title="An engine of your own",
    objective="autograd.engine",
    difficulty=3,
    minutes=45,
    points=5,
    stretch=True,
    observes=[observe.value(rtol=1e-4, atol=1e-5)],
    hints=(
        "`__add__` is there: it computes the result, notes its parents, and keeps a function that turns the "
        "cotangent of the result into one for each parent. What are those functions for the other operations?",
        "For `a * b`: the cotangent times the other factor. For `a @ b`: `g @ b.mT` and `a.mT @ g`. For `exp`: "
        "times the result. For `sum`: every element gets the cotangent. In `backward`, keep a dictionary of "
        "cotangents and go through the topological order from its end.",
        "Start with `{self: torch.ones_like(self.data)}`. For each node, last first, pop its cotangent. A leaf "
        "adds it to its `grad`; another node calls `pull` and adds each part to what its parent has in the "
        "dictionary.",
    ),
    why="Forward notes for each result how to hand a cotangent back; backward calls these notes in reverse "
    "topological order. A node's turn comes after all that used it, so its cotangent is complete, and one visit "
    "is enough. Cotangents live in a dictionary for one backward only; what stays is the sum in the leaves.",
)


def graph_behind(leaves: dict[str, Any], program: str) -> Any:
    """What the last line of `program` calls `out`, computed with the leaves under their names."""
    scope = dict(leaves)
    exec(program, {}, scope)
    return scope["out"]


def in_order(root: Any) -> list:
    order, seen = [], set()

    def visit(node: Any) -> None:
        if node not in seen:
            seen.add(node)
            for parent in node.parents:
                visit(parent)
            order.append(node)

    visit(root)
    return order


@Value.scenario
def _(answer, program, **leaves):
    """Values and gradients after one and after two backward calls, and how much work the first one was."""
    if not isinstance(answer, type):
        return "not a class"
    values = {name: answer(data) for name, data in leaves.items()}
    out = graph_behind(values, program)
    found = {"value": out.data, "uses torch's autograd": out.data.requires_grad}
    with OpRecorder() as recorder:
        out.backward()
    n_operations = program.count(";") + 1
    found["gradients"] = {name: value.grad for name, value in values.items()}
    found["work grows with"] = "nodes" if len(recorder.ops) <= 40 * n_operations else "paths"
    out.backward()
    found["after a second backward"] = {name: value.grad for name, value in values.items()}
    return found


@Value.cases
def _(rng):
    def randn(*shape):
        return torch.randn(*shape, generator=rng)

    yield case("a sum", "out = (a + b).sum()", a=torch.tensor([1.0, -2.0]), b=torch.tensor([3.0, 4.0]))
    yield case("a product", "out = (a * b).sum()", a=torch.tensor([1.0, -2.0]), b=torch.tensor([3.0, 4.0]))
    yield case("a leaf itself", "out = a", a=torch.tensor(2.0))
    yield case("a leaf that is used twice", "out = (a * a).sum()", a=randn(3))
    yield case("an exponential of a product", "out = (a * b).exp().sum()", a=randn(3), b=randn(3))
    yield case("a matrix product", "out = (a @ b).exp().sum()", a=randn(2, 3), b=randn(3, 4))
    yield case("a row added to a matrix", "out = ((a + b) * a).sum()", a=randn(2, 3), b=randn(3))
    yield case("a column times a matrix", "out = (a * b).exp().sum()", a=randn(2, 1), b=randn(2, 3))
    yield case("a leaf that is not used", "out = a.sum()", a=randn(2, 2), b=randn(2))
    yield case("a short way and a long way", "b = a.exp(); c = b * b; out = (b + c * b).sum()", a=randn(3))
    doubled = "; ".join(["out = a + a", *(["out = out + out"] * 11)])
    yield case("doubled twelve times", doubled, a=torch.tensor(0.5))
    yield case(
        "transposed leaves", "out = (a @ b).sum() * c", a=randn(3, 2).t(), b=randn(4, 3).t(), c=randn(1).sum()
    )


@Value.alternative
class KeepsClosures:
    def __init__(self, data, parents=()):
        self.data, self.parents, self.grad = data, parents, None
        self.send = lambda g, add: None

    def _make(self, data, *pulls):
        result = type(self)(data, tuple(parent for parent, _ in pulls))

        def send(g, add):
            for parent, pull in pulls:
                add(parent, pull(g).sum_to_size(parent.data.shape))

        result.send = send
        return result

    def __add__(self, other):
        return self._make(self.data + other.data, (self, lambda g: g), (other, lambda g: g))

    def __mul__(self, other):
        return self._make(
            self.data * other.data, (self, lambda g: g * other.data), (other, lambda g: g * self.data)
        )

    def __matmul__(self, other):
        return self._make(
            self.data @ other.data, (self, lambda g: g @ other.data.T), (other, lambda g: self.data.T @ g)
        )

    def exp(self):
        result = self.data.exp()
        return self._make(result, (self, lambda g: g * result))

    def sum(self):
        return self._make(self.data.sum(), (self, lambda g: g.expand_as(self.data)))

    def backward(self):
        gradients = {self: torch.tensor(1.0)}

        def add(node, g):
            gradients[node] = gradients.get(node, 0) + g

        nodes, waiting = {self}, [self]
        while waiting:
            for parent in waiting.pop().parents:
                if parent not in nodes:
                    nodes.add(parent)
                    waiting.append(parent)
        done = set()
        while len(done) < len(nodes):
            used_later = {parent for node in nodes - done for parent in node.parents}
            for node in nodes - done - used_later:
                node.send(gradients[node], add)
                if not node.parents:
                    node.grad = gradients[node] + (0 if node.grad is None else node.grad)
                done.add(node)


@Value.alternative
class WritesATape:
    def __init__(self, data, tape=None, is_leaf=True):
        self.data, self.grad = data, None
        self.tape = [] if tape is None else tape
        self.is_leaf = is_leaf

    def _record(self, data, others, pull):
        joined = list(dict.fromkeys(entry for value in (self, *others) for entry in value.tape))
        result = type(self)(data, joined, is_leaf=False)
        result.tape.append((result, (self, *others), pull))
        return result

    def __add__(self, other):
        return self._record(self.data + other.data, (other,), lambda g: (g, g))

    def __mul__(self, other):
        return self._record(self.data * other.data, (other,), lambda g: (g * other.data, g * self.data))

    def __matmul__(self, other):
        return self._record(
            self.data @ other.data,
            (other,),
            lambda g: (torch.einsum("nm,km->nk", g, other.data), torch.einsum("nk,nm->km", self.data, g)),
        )

    def exp(self):
        return self._record(self.data.exp(), (), lambda g: (g * self.data.exp(),))

    def sum(self):
        return self._record(self.data.sum(), (), lambda g: (g * torch.ones_like(self.data),))

    def backward(self):
        total = {self: torch.ones(())}
        for result, inputs, pull in reversed(self.tape):
            if result in total:
                for value, g in zip(inputs, pull(total[result])):
                    total[value] = total.get(value, 0) + g.sum_to_size(value.data.shape)
        for value, g in total.items():
            if value.is_leaf:
                value.grad = g if value.grad is None else value.grad + g


@Value.misconception(
    "A value that is used twice gets the gradient of its last use only: you assign cotangents where they "
    "have to be added. Each use sends one back, and the chain rule sums over all of them."
)
class AssignsInsteadOfAdding:
    def __init__(self, data, parents=(), pull=None):
        self.data, self.parents, self.pull = data, parents, pull
        self.grad = None

    def __add__(self, other):
        return AssignsInsteadOfAdding(self.data + other.data, (self, other), lambda g: (g, g))

    def __mul__(self, other):
        return AssignsInsteadOfAdding(
            self.data * other.data, (self, other), lambda g: (g * other.data, g * self.data)
        )

    def __matmul__(self, other):
        return AssignsInsteadOfAdding(
            self.data @ other.data, (self, other), lambda g: (g @ other.data.mT, self.data.mT @ g)
        )

    def exp(self):
        result = self.data.exp()
        return AssignsInsteadOfAdding(result, (self,), lambda g: (g * result,))

    def sum(self):
        return AssignsInsteadOfAdding(self.data.sum(), (self,), lambda g: (g.expand(self.data.shape),))

    def backward(self):
        order, seen = [], set()

        def visit(node):
            if node not in seen:
                seen.add(node)
                for parent in node.parents:
                    visit(parent)
                order.append(node)

        visit(self)
        cotangents = {self: torch.ones_like(self.data)}
        for node in reversed(order):
            g = cotangents[node]
            if not node.parents:
                node.grad = g if node.grad is None else node.grad + g
                continue
            for parent, part in zip(node.parents, node.pull(g)):
                cotangents[parent] = part.sum_to_size(parent.data.shape)


class Engine:
    """A right engine in pieces; each wrong one below replaces a piece."""

    def __init__(self, data, parents=(), pull=None):
        self.data, self.parents, self.pull = data, parents, pull
        self.grad = None

    def result(self, data, parents, pull):
        return type(self)(data, parents, pull)

    def __add__(self, other):
        return self.result(self.data + other.data, (self, other), lambda g: (g, g))

    def __mul__(self, other):
        return self.result(self.data * other.data, (self, other), lambda g: (g * other.data, g * self.data))

    def __matmul__(self, other):
        return self.result(
            self.data @ other.data, (self, other), lambda g: (g @ other.data.mT, self.data.mT @ g)
        )

    def exp(self):
        y = self.data.exp()
        return self.result(y, (self,), lambda g: (g * y,))

    def sum(self):
        return self.result(self.data.sum(), (self,), lambda g: (g.expand(self.data.shape),))

    def order(self):
        return in_order(self)

    def fit(self, g, shape):
        return g.sum_to_size(shape)

    def keep(self, g):
        self.grad = g if self.grad is None else self.grad + g

    def backward(self):
        cotangents = {self: torch.ones_like(self.data)}
        for node in reversed(self.order()):
            g = cotangents[node]
            if not node.parents:
                node.keep(g)
                continue
            for parent, part in zip(node.parents, node.pull(g)):
                part = self.fit(part, parent.data.shape)
                cotangents[parent] = cotangents[parent] + part if parent in cotangents else part


@Value.misconception(
    "A second backward replaces what the first one left in `grad`. As in PyTorch it has to add, so that losses "
    "which are computed one after the other can share a step."
)
class ReplacesTheGradient(Engine):
    def keep(self, g):
        self.grad = g


@Value.misconception(
    "You left out the sum over broadcast dimensions: a gradient has the shape of the result instead of the "
    "shape of its input. Use your `unbroadcast`, for both factors."
)
class ForgetsToUnbroadcast(Engine):
    def fit(self, g, shape):
        return g


@Value.misconception(
    "Your gradients of a matrix product are not transposed as they should be. For `a @ b` they are `g @ b.mT` "
    "and `a.mT @ g`; check the shapes with (n, k), (k, m) and (n, m)."
)
class MixesUpTheTransposes(Engine):
    def __matmul__(self, other):
        return self.result(self.data @ other.data, (self, other), lambda g: (g @ other.data, self.data @ g))


@Value.misconception(
    "You multiplied the cotangent of `exp` by the input. The derivative of the exponential is the exponential, "
    "so the factor is the result."
)
class MultipliesByTheInput(Engine):
    def exp(self):
        return self.result(self.data.exp(), (self,), lambda g: (g * self.data,))


@Value.misconception(
    "For a product you multiplied the cotangent by the factor itself. The derivative of `a * b` with respect to "
    "`a` is `b`: by the *other* factor."
)
class MultipliesByTheFactorItself(Engine):
    def __mul__(self, other):
        return self.result(self.data * other.data, (self, other), lambda g: (g * self.data, g * other.data))


@Value.misconception(
    "You went level by level from the output. A node that is met over a short way hands its cotangent on before "
    "the rest of it has come in over the long way. Use the topological order."
)
class GoesLevelByLevel(Engine):
    def order(self):
        order, waiting = [], [self]
        while waiting:
            node = waiting.pop(0)
            if node not in order:
                order.append(node)
                waiting.extend(node.parents)
        return order[::-1]


@Value.misconception(
    "Your gradients are right, but you hand every contribution on alone, as soon as it comes in. A node is then "
    "visited once per path, and the paths double with each step. Wait until the cotangent of a node is complete."
)
class FollowsEveryPath(Engine):
    def backward(self):
        def send(node, g):
            if not node.parents:
                node.keep(g)
                return
            for parent, part in zip(node.parents, node.pull(g)):
                send(parent, part.sum_to_size(parent.data.shape))

        send(self, torch.ones_like(self.data))


@Value.misconception(
    "You collect the cotangents of all nodes in `grad`, and those in the middle still have them when backward "
    "runs a second time. They are handed on once more, and the leaves get too much. Begin each backward with "
    "fresh cotangents."
)
class KeepsCotangentsInTheMiddle(Engine):
    def backward(self):
        self.keep(torch.ones_like(self.data))
        for node in reversed(in_order(self)):
            if node.parents:
                for parent, part in zip(node.parents, node.pull(node.grad)):
                    parent.keep(part.sum_to_size(parent.data.shape))


@Value.misconception(
    "You divided the cotangent of `sum` by the number of elements. That is the mean; in a sum every element "
    "counts with the factor 1."
)
class TakesTheMean(Engine):
    def sum(self):
        n = self.data.numel()
        return self.result(self.data.sum(), (self,), lambda g: (g.expand(self.data.shape) / n,))


# ---- questions ---------------------------------------------------------------------------------------------

leaf_grad_fn = Question(
    "leaf_grad_fn",
    objective="autograd.graph",
    text="""What does this print?

```python
x = torch.tensor([2.0], requires_grad=True)
y = x**3
print(x.grad_fn is None, y.requires_grad)
```""",
    choices={"a": "`True True`", "b": "`False True`", "c": "`True False`"},
    answer="a",
    replies={
        "a": "Right. You made `x`, so no operation is on record for it: it is a leaf. `y` was made by one, and "
        "requires grad because its input does.",
        "b": "For `x` to have a `grad_fn`, a recorded operation would have to have made it. You made it "
        "yourself. The record hangs on what comes *out* of an operation.",
        "c": "Nobody asked for `requires_grad` on `y`. But it depends on a tensor that requires grad, so autograd "
        "passes the flag on.",
    },
)

nonleaf_grad = Question(
    "nonleaf_grad",
    objective="autograd.backward",
    text="""What does this print (apart from a warning)?

```python
x = torch.tensor([2.0, -1.0], requires_grad=True)
y = x * 3
y.sum().backward()
print(x.grad, y.grad)
```""",
    choices={
        "a": "`tensor([3., 3.]) tensor([1., 1.])`",
        "b": "`tensor([3., 3.]) None`",
        "c": "`None tensor([1., 1.])`",
    },
    answer="b",
    replies={
        "a": "Backward did compute the gradient with respect to `y`, on its way to `x`. It does not keep it: "
        "only leaves get a `.grad`, unless you ask with `y.retain_grad()`.",
        "b": "Right. The gradient of `y` was there for a moment, as a cotangent that was handed on. What is kept "
        "is what arrives at the leaves.",
        "c": "It is the other way round: gradients are kept where the graph ends, at the leaves. That is what an "
        "optimizer needs.",
    },
)

second_backward = Question(
    "second_backward",
    objective="autograd.backward",
    text="""What happens in the last line?

```python
w = torch.tensor([2.0, -1.0], requires_grad=True)
loss = (w * w).sum()
loss.backward()
loss.backward()
```""",
    choices={
        "a": "nothing changes: `w.grad` stays `[4., -2.]`",
        "b": "`w.grad` becomes `[8., -4.]`",
        "c": "an error",
    },
    answer="c",
    replies={
        "a": "Then backward would have to notice that it was there before. It does not compare; it runs the "
        "graph once more, or tries to.",
        "b": "That is what happens if the loss is computed anew, or if the first backward was called with "
        "`retain_graph=True`. This graph has already given its saved tensors away.",
        "c": "Right. The first backward frees what the graph had saved (here the two factors), since a second "
        "one is rarely wanted. Without them the product can't be differentiated.",
    },
)

backward_adds = Question(
    "backward_adds",
    objective="autograd.backward",
    text="""The gradient of the loss is `[4., -2.]`. What does this print?

```python
w = torch.tensor([2.0, -1.0], requires_grad=True)
for _ in range(3):
    loss = (w * w).sum()
    loss.backward()
print(w.grad)
```""",
    choices={"a": "`tensor([4., -2.])`", "b": "`tensor([12., -6.])`", "c": "an error"},
    answer="b",
    replies={
        "a": "Then each backward would have to replace what the one before had left. It adds, every time.",
        "b": "Right. Three graphs, three backwards, three times `[4., -2.]`, added up in `w.grad`.",
        "c": "There would be an error if one graph were used twice. Here each round computes a new loss, with a "
        "new graph.",
    },
)

branch_not_taken = Question(
    "branch_not_taken",
    objective="autograd.backward",
    text="""For -1 the second branch is taken, and its slope is 1. What does this print?

```python
x = torch.tensor([-1.0, 4.0], requires_grad=True)
torch.where(x > 0, x.sqrt(), x).sum().backward()
print(x.grad)
```""",
    choices={
        "a": "`tensor([1.0000, 0.2500])`",
        "b": "`tensor([0.0000, 0.2500])`",
        "c": "`tensor([nan, 0.2500])`",
    },
    answer="c",
    replies={
        "a": "That is the true gradient. Backward goes through *both* branches, though; the one that was not "
        "taken contributes 0 times the slope of the root at -1.",
        "b": "The branch that was taken does contribute its 1. And the other one contributes 0 times a slope "
        "that does not exist.",
        "c": "Right. The root was computed for -1 as well, and its slope there is NaN. `where` sends the "
        "cotangent 0 into that branch, and 0 times NaN is NaN. 1 plus NaN is NaN too.",
    },
)

tensor_of_losses = Question(
    "tensor_of_losses",
    objective="autograd.stopping",
    text="""The derivative of the sum is 1 + 10 + 20 = 31. What does this print (apart from a warning)?

```python
w = torch.tensor(1.0, requires_grad=True)
main, extra = w * 1, [w * 10, w * 20]
(main + torch.tensor(extra).sum()).backward()
print(w.grad)
```""",
    choices={"a": "`tensor(31.)`", "b": "`tensor(1.)`", "c": "an error"},
    answer="b",
    replies={
        "a": "For that, `torch.tensor` would have to know where the two numbers come from. It reads their values "
        "and makes a new leaf. `torch.stack(extra).sum()` or `sum(extra)` keeps the graph.",
        "b": "Right. `torch.tensor(...)` copies values, and a copy has no history. The two extra losses are in "
        "the printed loss, and nobody trains on them.",
        "c": "An error would be kind. There is a warning, and a loss that looks right.",
    },
)

parameter_under_no_grad = Question(
    "parameter_under_no_grad",
    objective="autograd.stopping",
    text="""What does this print?

```python
with torch.no_grad():
    weight = torch.nn.Parameter(torch.ones(2))
    y = weight * 2
print(weight.requires_grad, y.requires_grad)
```""",
    choices={"a": "`False False`", "b": "`True True`", "c": "`True False`"},
    answer="c",
    replies={
        "a": "`no_grad` stops the recording of *operations*. Making a Parameter is none, and a Parameter requires "
        "grad whatever the mode is.",
        "b": "The product was computed while nothing was recorded, so it has no history and does not require "
        "grad.",
        "c": "Right. The mode says whether operations are recorded. What a leaf wants is its own affair.",
    },
)

grad_mode_call = Question(
    "grad_mode_call",
    objective="autograd.stopping",
    text="""What does this print?

```python
def predict_price(x):
    torch.set_grad_enabled(False)
    return x * 2

predict_price(torch.ones(1))
print(torch.is_grad_enabled())
```""",
    choices={"a": "`True`", "b": "`False`"},
    answer="b",
    replies={
        "a": "Python does not undo a call when a function ends. Only as `with torch.set_grad_enabled(False):` or "
        "as a decorator does it go back by itself.",
        "b": "Right. Called like a function, it changes the mode of the whole thread, for good. After the first "
        "prediction nothing trains any more.",
    },
)

edit_after_double = Question(
    "edit_after_double",
    objective="autograd.inplace",
    text="""Which of the two functions can be differentiated?

```python
def f(x):
    y = x * 2
    y[1] = 9
    return y.sum()

def g(x):
    y = x.sigmoid()
    y[1] = 9
    return y.sum()
```""",
    choices={"a": "both", "b": "neither", "c": "`f` only", "d": "`g` only"},
    answer="c",
    replies={
        "a": "`sigmoid` saved its *output* for backward, since its slope is `y * (1 - y)`. After the edit this "
        "output is no longer there.",
        "b": "Editing a result in place is allowed, as long as nobody needs the old numbers. To double a number "
        "has the slope 2, whatever the number is.",
        "c": "Right. It depends on what the operation before has saved: `x * 2` needs nothing of `y`, `sigmoid` "
        "needs all of it.",
        "d": "The other way round: `x * 2` needs neither `x` nor `y` to be differentiated, `sigmoid` needs `y`.",
    },
)

edit_through_data = Question(
    "edit_through_data",
    objective="autograd.inplace",
    text="""The slope of `exp` at 1 is 2.7183. What does this print?

```python
x = torch.tensor([1.0], requires_grad=True)
y = x.exp()
y.data.mul_(2)
y.sum().backward()
print(x.grad)
```""",
    choices={"a": "`tensor([2.7183])`", "b": "`tensor([5.4366])`", "c": "an error"},
    answer="b",
    replies={
        "a": "Backward multiplies by the output that `exp` saved, and that is the tensor you have doubled.",
        "b": "Right, and that is a wrong gradient for what was recorded. `.data` has a version counter of its "
        "own, so autograd believes that nothing has happened.",
        "c": "With `y.detach().mul_(2)` there is one. `detach` shares the version counter; `.data` does not, "
        "which is why it should be left alone.",
    },
)

edited_sibling = Question(
    "edited_sibling",
    objective="autograd.functions",
    text="""`Negate.backward` writes into its cotangent: `return g.neg_()`.
The true gradients are -1 for `a` and 1 for `b`. What does this print?

```python
a = torch.ones(1, requires_grad=True)
b = torch.ones(1, requires_grad=True)
z = b * 1 + Negate.apply(a)
z.backward(torch.ones(1))
print(a.grad, b.grad)
```""",
    choices={
        "a": "`tensor([-1.]) tensor([1.])`",
        "b": "`tensor([-1.]) tensor([-1.])`",
        "c": "an error",
    },
    answer="b",
    replies={
        "a": "That is what the formula says. But the `+` handed the *same* tensor to both of its inputs, and one "
        "of them turned it round.",
        "b": "Right: `b` has nothing to do with `Negate`, and its gradient is wrong. The `+` gives one tensor to "
        "both of its inputs, and whoever comes second gets what the first has left.",
        "c": "Autograd does not guard cotangents. That they are not to be written to is a rule for you.",
    },
)

saved_intermediate = Question(
    "saved_intermediate",
    objective="autograd.functions",
    text="""`forward` computes `square = x * x`, saves `x` and `square`, and returns `square * x`.
`backward` returns `g * (square + 2 * x * x)`, which is 3x² times g.
The second derivative of x³ at 2 is 12. What does autograd get by differentiating this backward?""",
    choices={"a": "12", "b": "8", "c": "an error"},
    answer="b",
    replies={
        "a": "For that, autograd would have to know that `square` depends on `x`. It was computed inside forward, "
        "where nothing is recorded.",
        "b": "Right: only `2 * x * x` is seen to depend on `x`, and its derivative at 2 is 8. `square` is an "
        "intermediate result of forward, and to backward it is a constant.",
        "c": "There is no error, and the first derivative is right. The half that is missing is silent.",
    },
)

gradcheck_sum = Question(
    "gradcheck_sum",
    objective="autograd.gradcheck",
    text="""`AddBias` adds a bias (3,) to a batch (2, 3). Its backward returns `g, g`: the second one should be
`g.sum(0)`. Which of these notices?""",
    choices={
        "a": "both: the gradient is wrong and `gradcheck` fails",
        "b": "`gradcheck` only",
        "c": "neither: `bias.grad` is right and `gradcheck` passes",
    },
    answer="c",
    replies={
        "a": "The engine helps where it was not asked to: it sums a gradient that is too large, as long as its "
        "shape can be reached by broadcasting.",
        "b": "`gradcheck` runs your backward through the engine, and sees what the engine makes of it.",
        "c": "Right. The engine sums a gradient of the shape (2, 3) down to (3,) by itself, before anyone looks. "
        "A test has to call the backward directly to see its shape.",
    },
)
