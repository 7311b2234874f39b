"""The exercises and questions of notebook 08: several processes that train one model.

An answer that communicates runs in real ranks, forked for each case; what they return comes back as plain values.
"""

from __future__ import annotations

import builtins
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.checking import Exercise, Question, case, observe
from course_lib.checking.trial import global_state
from course_lib.exercises.leftovers import left_on
from course_lib.ranks import Deadlock, Outcome, RankRaised, RankReport, launch
from course_lib.reference import distributed as reference

TIME_LIMIT = 20.0  # seconds for one case; right answers take a fifth of a second


# ---- answers that run in ranks -----------------------------------------------------------------------------


def in_ranks(ranks: int, body: Callable, answer: Callable, *args: Any, tell: Callable) -> Any:
    """`tell(results, outcome)`, where the results are what `body(answer, *args)` returns in each rank.

    Ranks that can only wait give what became of each. A builtin exception comes out as itself. What the ranks
    print is printed here, and a switch of PyTorch that the answer leaves changed is changed here, so that the
    engine sees both.
    """
    outcome = launch(_watched, body, answer, args, ranks=ranks, time_limit=TIME_LIMIT)
    for report in outcome.ranks:
        print("".join(f"[rank {report.rank}] {line}\n" for line in report.printed.splitlines()), end="")
    try:
        results = outcome.results
    except RankRaised as failure:
        raise _original(outcome, failure) from None
    except Deadlock:
        return {f"rank {report.rank}": _in_short(report) for report in outcome.ranks}
    for _, changes in results:
        _take_over(changes)
    return tell([value for value, _ in results], outcome)


def _in_short(report: RankReport) -> str:
    return f"{report.end} {report.detail.split(',')[0]}" if report.end == "waits" else report.end


def as_list(result: Any, n: int | None = None) -> Any:
    """The first `n` items of any iterable (all of them by default); what is none stays what it is."""
    return list(islice(result, n)) if hasattr(result, "__iter__") else result


def as_float(result: Any) -> Any:
    """Any kind of number counts as a float; what is none stays what it is."""
    return float(result) if isinstance(result, (int, float)) else result


def in_each_rank(results: list[Any], outcome: Outcome) -> dict[str, Any]:
    """The results, and whether all ranks made the same collective calls in the same order."""
    calls = [[(c.name, c.numel) for c in report.collectives] for report in outcome.ranks]
    return {"in each rank": results, "same calls in all ranks": all(made == calls[0] for made in calls)}


def _original(outcome: Outcome, failure: RankRaised) -> Exception:
    first = next(report for report in outcome.ranks if report.end == "raised")
    kind, _, message = first.detail.partition(": ")
    known = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, Exception):
        return known(f"{message}\n    (rank {first.rank})")
    return failure


def _watched(body: Callable, answer: Callable, args: tuple) -> tuple[Any, dict[str, Any]]:
    """In a rank: run the body, and note which switches a call of the answer changed."""
    changes: dict[str, Any] = {}

    def noting(*args: Any, **kwargs: Any) -> Any:
        before, generator = global_state(), torch.get_rng_state()
        result = answer(*args, **kwargs)
        after = global_state()
        found = {name: after[name] for name in after if after[name] != before[name]}
        _take_over({name: before[name] for name in found})  # the next call is not to suffer from it
        changes.update(found)
        if not torch.equal(generator, torch.get_rng_state()):
            changes["random state"] = True
        return result

    return body(noting, *args), changes


def _take_over(changes: dict[str, Any]) -> None:
    switches = {
        "default dtype": torch.set_default_dtype,
        "grad mode": torch.set_grad_enabled,
        "threads": torch.set_num_threads,
        "deterministic algorithms": torch.use_deterministic_algorithms,
        "random state": lambda _: torch.rand(1),
    }
    for name, value in changes.items():
        switches.get(name, lambda _: None)(value)


def numbers_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


# ---- global_mean -------------------------------------------------------------------------------------------

global_mean = Exercise(
    reference.global_mean,
    title="A mean over uneven shares",
    objective="distributed.collectives",
    difficulty=1,
    minutes=8,
    points=1,
    observes=[observe.value(rtol=1e-5, atol=1e-6)],
    hints=(
        "Take a rank with 1 value and a rank with 3. Which two numbers about its own values must each rank tell, "
        "so that the others can work out the mean of all four?",
        "Sums can be added over ranks, and so can counts. Means can't. Divide once, at the end.",
        "Put the local sum and the local number of values into one tensor of two numbers, `dist.all_reduce` it "
        "(it sums, in place), and divide its first number by its second. `.item()` makes a float.",
    ),
    why="A sum over everything is the sum of the sums, and a count is the sum of the counts: both survive an "
    "all-reduce. A mean of means gives each rank the same weight, however many values it has, and a rank without "
    "values would bring a NaN. One call with two numbers is all that moves, however many values there are.",
)


@global_mean.cases
def _(rng):
    yield case("the same number of values in two ranks", [[1.0, 2.0], [3.0, 5.0]])
    yield case("three ranks, one of them without values", [[1.0], [-2.0, 4.0, 6.5], []])


@global_mean.scenario
def _(answer, values):
    return in_ranks(len(values), _mean_in_rank, answer, values, tell=in_each_rank)


def _mean_in_rank(answer: Callable, values: list[list[float]]) -> Any:
    return answer(torch.tensor(values[dist.get_rank()], dtype=torch.float32))


@global_mean.alternative
def sums_and_counts_in_two_calls(values):
    total, n = values.sum(), torch.tensor(values.numel())
    dist.all_reduce(total)
    dist.all_reduce(n)
    return float(total / n)


@global_mean.alternative
def gathers_pairs(values):
    pairs: list = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, (values.sum().item(), len(values)))
    return sum(total for total, _ in pairs) / sum(n for _, n in pairs)


@global_mean.alternative
def gathers_tensors(values):
    own = torch.tensor([values.sum().item(), len(values)], dtype=torch.float64)
    pairs = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(pairs, own)
    total, n = torch.stack(pairs).sum(dim=0)
    return (total / n).item()


@global_mean.misconception(
    "You averaged the means of the ranks. A rank with one value then counts as much as a rank with three, "
    "and a rank without values brings a NaN."
)
def averages_means(values):
    mean = values.mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


@global_mean.misconception(
    "You divided the common sum by the number of your own values. The sum is over all ranks, so the count must be, too."
)
def divides_by_its_own_count(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item() / max(len(values), 1)


@global_mean.misconception(
    "You took every rank to hold as many values as this one. Each may hold another number: add the counts up."
)
def multiplies_its_own_count(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item() / max(len(values) * dist.get_world_size(), 1)


@global_mean.misconception(
    "This is the mean of one rank. Nothing was sent, so no rank knows what the others hold."
)
def stays_at_home(values):
    return values.mean().item()


@global_mean.misconception(
    "`dist.reduce` brings the sum to one rank only, and the others go on with what they had. `dist.all_reduce` "
    "brings it to all."
)
def reduces_to_rank_zero(values):
    total = torch.stack([values.sum(), torch.tensor(float(len(values)))])
    dist.reduce(total, dst=0)
    return (total[0] / total[1]).item()


@global_mean.misconception(
    "The function returned a tensor. A plain float was asked for: `.item()` takes it out."
)
def returns_a_tensor(values):
    total = torch.stack([values.sum(), torch.tensor(float(len(values)))])
    dist.all_reduce(total)
    return total[0] / total[1]


# ---- ring_all_reduce_ --------------------------------------------------------------------------------------

ring_all_reduce_ = Exercise(
    reference.ring_all_reduce_,
    title="An all-reduce out of sends",
    objective="distributed.collectives",
    difficulty=3,
    minutes=30,
    points=2,
    stretch=True,
    observes=[observe.value(rtol=1e-5, atol=1e-5)],
    hints=(
        "Draw three ranks in a circle, with three chunks each. Follow chunk 0 from rank 0 on: who adds to it first, "
        "who last, and where is it complete after two steps?",
        "In step s (counted from 0) rank r sends chunk r - s and receives chunk r - s - 1, all modulo the number of "
        "ranks. The same rule goes on through the second round. Only what is done with a chunk that arrives "
        "differs: first it is added, then it replaces.",
        "Cut with `x.tensor_split(world)`; the chunks are views of `x`. In each step start `dist.isend` to the rank "
        "on the right, `dist.recv` into an empty tensor from the rank on the left, then wait for the send.",
    ),
    why="In the first round each chunk visits every rank once and collects what that rank holds of it: a "
    "reduce-scatter. In the second the complete chunks go round: an all-gather. Each rank sends 2 (world - 1) "
    "chunks of n / world numbers, which is less than 2 n, however many ranks there are. If all sent first with a "
    "blocking `send`, nobody would be left to receive: hence `isend`.",
)


@ring_all_reduce_.cases
def _(rng):
    yield case("two ranks, four numbers", 2, 4)
    yield case("three ranks, seven numbers", 3, 7)


@ring_all_reduce_.scenario
def _(answer, world, n):
    limit = 2 * (world - 1) * math.ceil(n / world)
    return in_ranks(world, _reduce_in_rank, answer, n, tell=partial(_what_moved, limit))


def _what_moved(limit: int, results: list, outcome: Outcome) -> dict[str, Any]:
    calls = [call for report in outcome.ranks for call in report.collectives]
    sent = [sum(c.numel for c in report.collectives if c.name == "send") for report in outcome.ranks]
    return {
        "x in each rank": [after for after, _ in results],
        "returns x itself": [is_same for _, is_same in results],
        "collectives used": sorted({call.name for call in calls} - {"send", "recv"}),
        "sends no more than a ring": max(sent) <= limit,
    }


def _reduce_in_rank(answer: Callable, n: int) -> tuple[Tensor, bool]:
    rank = dist.get_rank()
    x = torch.linspace(-2.0, 1.0 + rank, n) * (rank + 1) ** 2
    result = answer(x)
    return x.clone(), result is x


@ring_all_reduce_.alternative
def in_two_rounds(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world, (rank - 1) % world
    chunks = list(torch.tensor_split(x, world))
    for step in range(world - 1):
        sending = dist.isend(chunks[(rank - step) % world], right)
        mine = chunks[(rank - step - 1) % world]
        received = torch.zeros_like(mine)
        dist.recv(received, left)
        mine += received
        sending.wait()
    for step in range(world - 1):
        sending = dist.isend(chunks[(rank + 1 - step) % world], right)
        dist.recv(chunks[(rank - step) % world], left)
        sending.wait()
    return x


@ring_all_reduce_.alternative
def even_ranks_send_first(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world)
    for step in range(2 * (world - 1)):
        target = chunks[(rank - step - 1) % world]
        received = torch.empty_like(target)
        outgoing = chunks[(rank - step) % world].clone()
        moves = [
            lambda outgoing=outgoing: dist.send(outgoing, (rank + 1) % world),
            lambda received=received: dist.recv(received, (rank - 1) % world),
        ]
        for move in moves if rank == 0 else reversed(moves):
            move()
        target.copy_(target + received if step < world - 1 else received)
    return x


@ring_all_reduce_.alternative
def in_batches_of_two(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world)
    for step in range(2 * (world - 1)):
        target = chunks[(rank - step - 1) % world]
        received = torch.empty_like(target)
        moves = [
            dist.P2POp(dist.isend, chunks[(rank - step) % world], (rank + 1) % world),
            dist.P2POp(dist.irecv, received, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        target.copy_(target + received if step < world - 1 else received)
    return x


@ring_all_reduce_.misconception(
    "You sent all of `x` on in every step. The sum is right, but each rank sends (world - 1) * n numbers: with many "
    "ranks far more than the two rounds of chunks need."
)
def sends_everything(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    total, travelling = x.clone(), x.clone()
    for _ in range(2 * (world - 1) - (world - 1)):
        received = torch.empty_like(x)
        sending = dist.isend(travelling, (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        total, travelling = total + received, received
    return x.copy_(total)


@ring_all_reduce_.misconception(
    "`dist.all_reduce` does the whole exercise. Here it is to be made out of sends and receives."
)
def calls_all_reduce(x):
    dist.all_reduce(x)
    return x


@ring_all_reduce_.misconception(
    "Only the first round happened. One chunk is complete in each rank; the second round has to bring the complete "
    "chunks to the others."
)
def stops_after_the_first_round(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world)
    for step in range(world - 1):
        target = chunks[(rank - step - 1) % world]
        received = torch.empty_like(target)
        sending = dist.isend(chunks[(rank - step) % world], (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        target += received
    return x


@ring_all_reduce_.misconception(
    "You added in the second round as well. The chunks that go round there are complete: they replace what is there."
)
def adds_in_both_rounds(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world)
    for step in range(2 * (world - 1)):
        target = chunks[(rank - step - 1) % world]
        received = torch.empty_like(target)
        sending = dist.isend(chunks[(rank - step) % world], (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        target += received
    return x


@ring_all_reduce_.misconception(
    "All ranks stand in `send` and wait for a receiver that stands in `send` as well. Start the send with `isend`, "
    "receive, then wait for it; or let some ranks receive first."
)
def all_send_first(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world)
    for step in range(2 * (world - 1)):
        target = chunks[(rank - step - 1) % world]
        received = torch.empty_like(target)
        dist.send(chunks[(rank - step) % world], (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        target.copy_(target + received if step < world - 1 else received)
    return x


@ring_all_reduce_.misconception(
    "The sum is in a new tensor, and `x` is as it was. The underscore in the name promises to work in place."
)
def leaves_x_alone(x):
    result = x.clone()
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = result.tensor_split(world)
    for step in range(2 * (world - 1)):
        target = chunks[(rank - step - 1) % world]
        received = torch.empty_like(target)
        sending = dist.isend(chunks[(rank - step) % world], (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        target.copy_(target + received if step < world - 1 else received)
    return result


# ---- broadcast_parameters ----------------------------------------------------------------------------------

broadcast_parameters = Exercise(
    reference.broadcast_parameters,
    title="All ranks start alike",
    objective="distributed.ddp",
    difficulty=1,
    minutes=8,
    points=1,
    observes=[observe.value()],
    hints=(
        "What does a model hold besides its parameters? Think of a layer that keeps running statistics.",
        "Every rank calls `dist.broadcast` for every tensor, in the same order: rank 0 sends, the others receive "
        "into the tensor that they pass.",
        "`model.state_dict()` has parameters and buffers under their names; its tensors share their memory with the "
        "model. Broadcast each of them from `src=0`.",
    ),
    why="`broadcast` writes into the tensor that it is given, and the tensors of a state dict are the model's own "
    "storages. So the parameters stay the objects that an optimizer knows, and buffers such as running means come "
    "along. `src` is the rank that sends, and it is the same number in all ranks.",
)


class Counted(nn.Module):
    """(batch, 2) -> (batch, 3), with a parameter, a scale that is no parameter, and a normalization."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("scale", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)) * self.scale


@broadcast_parameters.cases
def _(rng):
    yield case("a linear layer in two ranks", 2, "linear")
    yield case("parameters and buffers in three ranks", 3, "with buffers")


@broadcast_parameters.scenario
def _(answer, world, model):
    return in_ranks(world, _broadcast_in_rank, answer, model, tell=in_each_rank)


def _broadcast_in_rank(answer: Callable, kind: str) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(2, 1) if kind == "linear" else Counted().eval()
    model(torch.randn(4, 2)).sum().backward()
    before, own = left_on(model), list(model.parameters())
    grads = [p.grad.clone() for p in own]
    answer(model)
    after = list(model.parameters())
    return {
        "numbers": numbers_of(model),
        "same parameter objects": all(map(lambda a, b: a is b, own, after)),
        "gradients kept": all(p.grad is not None and torch.equal(p.grad, g) for p, g in zip(own, grads)),
        "rest as before": left_on(model) == before,
    }


@broadcast_parameters.alternative
def parameters_then_buffers(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, 0)


@broadcast_parameters.alternative
def into_the_parameters_themselves(model):
    for parameter in model.parameters():
        dist.broadcast(parameter, src=0)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


@broadcast_parameters.alternative
def as_one_object(model):
    box = [model.state_dict()]
    dist.broadcast_object_list(box, src=0)
    model.load_state_dict(box[0])


@broadcast_parameters.alternative
def through_copies(model):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            received = tensor.clone()
            dist.broadcast(received, src=0)
            tensor.copy_(received)


@broadcast_parameters.misconception(
    "The parameters agree, the buffers don't. Running statistics and other buffers differ from rank to rank as well."
)
def forgets_buffers(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


@broadcast_parameters.misconception(
    "You averaged the models. All ranks agree then, but on a mixture that nobody initialized or loaded. "
    "Rank 0 has the numbers that count."
)
def averages_models(model):
    for tensor in model.state_dict().values():
        mean = tensor.double()
        dist.all_reduce(mean)
        tensor.copy_(mean / dist.get_world_size())


@broadcast_parameters.misconception(
    "Each rank named itself as the source, so all of them send and nobody receives. "
    "`src` is the same number in all ranks."
)
def each_rank_is_the_source(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=dist.get_rank())


@broadcast_parameters.misconception(
    "Only rank 0 called `broadcast`. A collective needs all ranks: the others receive by calling it, too."
)
def only_rank_zero_calls(model):
    if dist.get_rank() == 0:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)


@broadcast_parameters.misconception(
    "The numbers arrived in copies, and the model never got them. Broadcast into its own tensors, or copy back."
)
def broadcasts_copies(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor.clone(), src=0)


@broadcast_parameters.misconception(
    "The model has new parameter objects. An optimizer that was made before would go on updating the old ones."
)
def makes_new_parameters(model):
    box = [model.state_dict()]
    dist.broadcast_object_list(box, src=0)
    model.load_state_dict(box[0], assign=True)


# ---- average_gradients -------------------------------------------------------------------------------------

average_gradients = Exercise(
    reference.average_gradients,
    title="What DDP does, by hand",
    objective="distributed.ddp",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value(rtol=1e-5, atol=1e-6)],
    hints=(
        "How many times does each rank call the collective? It must be the same number in all of them, also in one "
        "whose batch did not use every layer.",
        "A gradient that is None stands for zeros. Make it real zeros before anything is sent. The collective sums; "
        "what turns a sum over ranks into a mean?",
        "For each parameter, in order: zeros where `.grad` is None; `dist.all_reduce` on `.grad` itself, "
        "which works in place; then divide `.grad` in place by `dist.get_world_size()`.",
    ),
    why="With equal batches the mean of the gradients is the gradient of the mean loss over the whole batch, so "
    "every rank takes the step that one process with all the data would take. Every rank must call the collective "
    "for every parameter: a rank that leaves one out pairs its next call with a call of the others about another "
    "parameter, or leaves them waiting for ever.",
)


class Branches(nn.Module):
    """(batch, 2) -> (batch, 1), by way of one of three branches, or (batch, 3) without any (branch None)."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 3)
        self.branches = nn.ModuleList(nn.Linear(3, 1) for _ in range(3))

    def forward(self, x: Tensor, branch: int | None) -> Tensor:
        hidden = self.stem(x).tanh()
        return hidden if branch is None else self.branches[branch](hidden)


@average_gradients.cases
def _(rng):
    yield case("two ranks, one layer", [0, 0], "linear")
    yield case("three ranks, which use different branches, or none", [0, None, 1], "branches")


@average_gradients.scenario
def _(answer, branches, model):
    return in_ranks(len(branches), _average_in_rank, answer, branches, model, tell=in_each_rank)


def _average_in_rank(answer: Callable, branches: list[int], kind: str) -> dict[str, Any]:
    torch.manual_seed(1)
    rank, model = dist.get_rank(), nn.Linear(2, 1) if kind == "linear" else Branches()
    x = torch.randn(len(branches), 4, 2)[rank] + rank
    output = model(x) if kind == "linear" else model(x, branches[rank])
    (output + rank).pow(2).mean().backward()
    before, numbers = left_on(model), numbers_of(model)
    answer(model)
    return {
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "parameters unchanged": all(map(torch.equal, numbers.values(), numbers_of(model).values())),
        "rest as before": left_on(model) == before,
    }


@average_gradients.alternative
def as_one_vector(model):
    parameters = list(model.parameters())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, grad in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = grad.view_as(p).clone()


@average_gradients.alternative
def without_waiting_in_between(model):
    works = []
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad / dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))
    for work in works:
        work.wait()


@average_gradients.alternative
def by_gathering(model):
    for p in model.parameters():
        own = p.grad if p.grad is not None else torch.zeros_like(p)
        found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(found, own)
        p.grad = torch.stack(found).mean(dim=0)


@average_gradients.misconception(
    "The gradients are the sum over the ranks. `all_reduce` adds; divide by the number of ranks to get the mean."
)
def sums(model):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)


@average_gradients.misconception(
    "You divided by 2. There may be any number of ranks: `dist.get_world_size()`."
)
def halves(model):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)
        p.grad /= 2


@average_gradients.misconception(
    "You averaged the parameters. They are equal in all ranks before the step; it is the gradients that differ."
)
def averages_parameters(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


@average_gradients.misconception(
    "The mean went into a tensor that nobody keeps, and `.grad` is still that of one rank. `all_reduce` writes into "
    "the tensor that it is given: give it `.grad` itself."
)
def drops_the_result(model):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        mean = p.grad / dist.get_world_size()
        dist.all_reduce(mean)


@average_gradients.misconception(
    "`dist.reduce` brings the sum to rank 0 only. The other ranks then step along another gradient, and the models "
    "drift apart."
)
def reduces_to_one_rank(model):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.reduce(p.grad, dst=0)
        if dist.get_rank() == 0:
            p.grad /= dist.get_world_size()


@average_gradients.misconception(
    "You left out parameters whose `.grad` is None. Another rank has a gradient there and waits in `all_reduce` "
    "for this one: the ranks no longer make the same calls."
)
def skips_none(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@average_gradients.misconception(
    "Where `.grad` was None you sent zeros and threw the answer away. That rank needs the mean as well, or its model "
    "takes another step than the others."
)
def leaves_none(model):
    for p in model.parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(grad)
        grad /= dist.get_world_size()


# ---- shard_indices -----------------------------------------------------------------------------------------

shard_indices = Exercise(
    reference.shard_indices,
    title="Who reads what",
    objective="distributed.data",
    difficulty=2,
    minutes=12,
    points=1,
    observes=[observe.value()],
    forbids=(DistributedSampler.__iter__,),
    hints=(
        "Work with one list that is the same in every rank: shuffled, and long enough that every rank gets equally "
        "many. What does each rank take from it?",
        "The order depends on `seed + epoch` alone, by way of a `torch.Generator` of your own. The length is `n` "
        "rounded up to a multiple of `world`; place p of the long list holds what place p % n of the order holds.",
        "`torch.randperm(n, generator=g).tolist()` is the order. A rank takes the places "
        "`range(rank, length, world)` of it, modulo `n`.",
    ),
    why="One order for all ranks, cut in strides: nothing is read twice except for the padding, and nothing is left "
    "out. The padding makes the shares equally long, so that all ranks make the same number of steps and nobody "
    "waits for ever. The epoch is in the seed, so each epoch has an order of its own without any communication.",
)


@shard_indices.cases
def _(rng):
    yield case("four samples, two ranks", 4, 0, 2, 0, 0)
    yield case("the other rank", 4, 1, 2, 0, 0)
    yield case("seven samples, three ranks, another epoch", 7, 1, 3, 2, 5)
    yield case("the last rank, which reads the padding", 7, 2, 3, 2, 5)
    yield case("the first rank, which needs none", 7, 0, 3, 2, 5)
    yield case("two samples, five ranks", 2, 4, 5, 1, 3)
    yield case("one rank has everything", 5, 0, 1, 1, 1)


@shard_indices.scenario
def _(answer, n, rank, world, epoch, seed):
    return as_list(answer(n, rank, world, epoch, seed))


@shard_indices.alternative
def pads_and_slices(n, rank, world, epoch, seed):
    generator = torch.Generator()
    generator.manual_seed(epoch + seed)
    indices = torch.randperm(n, generator=generator).tolist()
    total = -(-n // world) * world
    while len(indices) < total:
        indices += indices[: total - len(indices)]
    return indices[rank:total:world]


@shard_indices.alternative
def takes_turns(n, rank, world, epoch, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    length = (n + world - 1) // world * world
    for place, index in zip(range(length), cycle(order)):
        if place % world == rank:
            yield index


@shard_indices.misconception(
    "Each rank shuffled with a seed of its own. Then they hold different lists, and some samples are read twice and "
    "some by nobody. The order must be one and the same in all ranks."
)
def seeds_by_rank(n, rank, world, epoch, seed):
    generator = torch.Generator().manual_seed(seed + epoch + rank)
    order = torch.randperm(n, generator=generator).tolist()
    return [order[place % n] for place in range(rank, math.ceil(n / world) * world, world)]


@shard_indices.misconception(
    "Without padding some ranks get one sample more than others. They make one step more, and wait in its all-reduce "
    "for ever."
)
def does_not_pad(n, rank, world, epoch, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    return order[rank::world]


@shard_indices.misconception(
    "You dropped the rest to make the shares equal. Those samples are read by nobody in this epoch; "
    "the list was to be made longer instead."
)
def drops_the_tail(n, rank, world, epoch, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    return order[rank : n // world * world : world]


@shard_indices.misconception(
    "The epoch plays no part, so every epoch comes in the same order. That is what a forgotten `set_epoch` does."
)
def ignores_the_epoch(n, rank, world, epoch, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[place % n] for place in range(rank, math.ceil(n / world) * world, world)]


@shard_indices.misconception(
    "You cut the list into blocks. That is a fair division, but DistributedSampler deals the places out like cards: "
    "rank, rank + world, rank + 2 * world, ..."
)
def cuts_blocks(n, rank, world, epoch, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    share = math.ceil(n / world)
    return [order[place % n] for place in range(rank * share, (rank + 1) * share)]


@shard_indices.misconception(
    "The padding came once. With fewer samples than half the ranks, the beginning has to be repeated over and over."
)
def pads_once(n, rank, world, epoch, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    order += order[: math.ceil(n / world) * world - n]
    return order[rank::world]


@shard_indices.misconception(
    "You seeded the global generator. Everything that draws from it later, dropout for example, now depends on the "
    "sampler. Use a `torch.Generator` of your own."
)
def seeds_the_global_generator(n, rank, world, epoch, seed):
    torch.manual_seed(seed + epoch)
    order = torch.randperm(n).tolist()
    return [order[place % n] for place in range(rank, math.ceil(n / world) * world, world)]


# ---- ddp_accumulate ----------------------------------------------------------------------------------------

ddp_accumulate = Exercise(
    reference.ddp_accumulate,
    title="Many backward passes, one all-reduce",
    objective="distributed.communication",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value(rtol=1e-4, atol=1e-6)],
    hints=(
        "DDP sends in every backward pass, unless it was told not to. For which micro-batches is sending needless, "
        "and for which one is it needed?",
        "`ddp.no_sync()` is a context manager, and the *forward* pass must be inside it, not only the backward. The "
        "last micro-batch goes without it. The mean over micro-batches needs a division as well.",
        "Clear the gradients. Loop with `enumerate`; `with nullcontext() if is_last else ddp.no_sync():` holds both "
        "the forward pass and `(loss / len(microbatches)).backward()`. Step once, after the loop.",
    ),
    why="Inside `no_sync` the gradients only add up in `.grad`, locally. The last backward pass, outside of it, "
    "sends what has added up: sums of gradients average as well as gradients do. DDP decides in its forward pass "
    "whether the coming backward will send, so the forward pass must be inside the context as well.",
)


@ddp_accumulate.cases
def _(rng):
    yield case("three micro-batches, two updates", 3)


@ddp_accumulate.scenario
def _(answer, microbatches):
    return in_ranks(2, _accumulate_in_rank, answer, microbatches, tell=_what_was_sent)


def _what_was_sent(results: list, outcome: Outcome) -> dict[str, Any]:
    reduced = [sum(c.name == "all_reduce" for c in report.collectives) for report in outcome.ranks]
    found = {"in each rank": [seen for seen, _ in results], "all-reduces in two updates": reduced}
    if reduced != [2, 2]:  # only to say why; a right answer may switch in more than one way
        found["switched on in each backward"] = [switches for _, switches in results]
    return found


def _accumulate_in_rank(answer: Callable, n: int) -> tuple[dict[str, Any], list[bool]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    ddp, opt = DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.5)
    data = torch.randn(2, 2, n, 4, 2)[:, dist.get_rank()] + dist.get_rank()
    before, forwards, switches, kept = left_on(ddp), [], [], []
    for update in data:
        hooks = [
            ddp.register_forward_hook(lambda module, args, output: forwards.append(len(args[0]))),
            model[0].bias.register_post_accumulate_grad_hook(
                lambda _: switches.append(ddp.require_backward_grad_sync)
            ),
        ]
        answer(ddp, list(update), opt)
        for hook in hooks:
            hook.remove()
        kept.append(left_on(ddp) == before)
    seen = {
        "weights": numbers_of(model),
        "samples per forward of ddp": forwards,
        "synchronizes afterwards": ddp.require_backward_grad_sync,
        "rest as before, after each update": kept,
    }
    return seen, switches


@ddp_accumulate.alternative
def last_one_apart(ddp, microbatches, opt):
    *most, last = microbatches
    with ddp.no_sync():
        for x in most:
            (ddp(x).pow(2).mean() / len(microbatches)).backward()
    (ddp(last).pow(2).mean() / len(microbatches)).backward()
    opt.step()
    opt.zero_grad()


@ddp_accumulate.alternative
def divides_the_gradient(ddp, microbatches, opt):
    opt.zero_grad(set_to_none=False)
    for i, x in enumerate(microbatches):
        with ExitStack() as stack:
            if i < len(microbatches) - 1:
                stack.enter_context(ddp.no_sync())
            ddp(x).pow(2).mean().backward()
    for p in ddp.parameters():
        p.grad /= len(microbatches)
    opt.step()


@ddp_accumulate.misconception(
    "Every backward pass sent its gradient. Inside `ddp.no_sync()` it stays local; only the last one has to send."
)
def sends_each_time(ddp, microbatches, opt):
    opt.zero_grad()
    for x in microbatches:
        (ddp(x).pow(2).mean() / len(microbatches)).backward()
    opt.step()


@ddp_accumulate.misconception(
    "Nothing was ever sent: the last micro-batch was inside `no_sync` as well. Each rank steps along its own "
    "gradient, and the replicas drift apart without an error."
)
def never_sends(ddp, microbatches, opt):
    opt.zero_grad()
    with ddp.no_sync():
        for x in microbatches:
            (ddp(x).pow(2).mean() / len(microbatches)).backward()
    opt.step()


@ddp_accumulate.misconception(
    "Only the backward pass was inside `no_sync`. DDP decides in the *forward* pass whether the backward will send, "
    "so it sent every time."
)
def forward_outside(ddp, microbatches, opt):
    opt.zero_grad()
    outputs = []
    for i, x in enumerate(microbatches):
        outputs.append(ddp(x))
        with nullcontext() if i == len(microbatches) - 1 else ddp.no_sync():
            (outputs[-1].pow(2).mean() / len(microbatches)).backward()
    opt.step()


@ddp_accumulate.misconception(
    "`ddp.module(x)` goes past DDP: its forward pass prepares the sending, and without it no gradient is sent."
)
def goes_past_ddp(ddp, microbatches, opt):
    opt.zero_grad()
    for x in microbatches:
        (ddp.module(x).pow(2).mean() / len(microbatches)).backward()
    opt.step()


@ddp_accumulate.misconception(
    "The gradients of the micro-batches were added and never divided, so the step is as many times too long as there "
    "are micro-batches."
)
def does_not_divide(ddp, microbatches, opt):
    opt.zero_grad()
    for i, x in enumerate(microbatches):
        with nullcontext() if i == len(microbatches) - 1 else ddp.no_sync():
            ddp(x).pow(2).mean().backward()
    opt.step()


@ddp_accumulate.misconception(
    "You divided by the number of ranks as well. DDP has already averaged over the ranks."
)
def divides_by_ranks_too(ddp, microbatches, opt):
    opt.zero_grad()
    for i, x in enumerate(microbatches):
        with nullcontext() if i == len(microbatches) - 1 else ddp.no_sync():
            (ddp(x).pow(2).mean() / len(microbatches) / dist.get_world_size()).backward()
    opt.step()


@ddp_accumulate.misconception(
    "The gradients of the update before are still in it. Clear them, before the first backward pass or after the step."
)
def keeps_old_gradients(ddp, microbatches, opt):
    for i, x in enumerate(microbatches):
        with nullcontext() if i == len(microbatches) - 1 else ddp.no_sync():
            (ddp(x).pow(2).mean() / len(microbatches)).backward()
    opt.step()


@ddp_accumulate.misconception(
    "The optimizer stepped after each micro-batch. Accumulating means: many backward passes, then one step."
)
def steps_each_time(ddp, microbatches, opt):
    for i, x in enumerate(microbatches):
        opt.zero_grad()
        with nullcontext() if i == len(microbatches) - 1 else ddp.no_sync():
            (ddp(x).pow(2).mean() / len(microbatches)).backward()
        opt.step()


# ---- scaled_lr ---------------------------------------------------------------------------------------------

scaled_lr = Exercise(
    reference.scaled_lr,
    title="A learning rate for more ranks",
    objective="distributed.communication",
    difficulty=1,
    minutes=5,
    points=1,
    stretch=True,
    observes=[observe.value(rtol=1e-9)],
    hints=(
        "How many samples go into one update now, and how many were there when `base` was found?",
        "Samples per update: micro-batch times ranks times accumulation steps. The learning rate grows with the "
        "ratio to `ref_batch`, or with its square root.",
        'Work out `ratio` from the four numbers; multiply `base` by it for "linear" and by `math.sqrt` of it '
        'for "sqrt".',
    ),
    why="A gradient averaged over k times as many samples is less noisy, so a longer step is affordable: about k "
    "times as long for SGD, rather the square root of k for Adam. It is a rule of thumb, which needs a warm-up and "
    "which ends somewhere: a learning rate that is too large diverges on any number of ranks.",
)


@scaled_lr.cases
def _(rng):
    yield case("eight ranks instead of one", 0.1, 32, 8, 1, 32, "linear")
    yield case("the same batch, in four micro-batches", 0.1, 8, 1, 4, 32, "linear")
    yield case("a smaller batch than before", 0.4, 16, 2, 1, 128, "linear")
    yield case("the square root, for Adam", 1e-3, 64, 4, 1, 64, "sqrt")
    yield case("everything together", 3e-4, 8, 16, 2, 64, "sqrt")


@scaled_lr.scenario
def _(answer, base, per_gpu, world, accum, ref_batch, rule):
    return as_float(answer(base, per_gpu, world, accum, ref_batch, rule))


@scaled_lr.alternative
def by_an_exponent(base, per_gpu, world, accum, ref_batch, rule):
    exponent = {"linear": 1.0, "sqrt": 0.5}[rule]
    return base * (per_gpu * world * accum / ref_batch) ** exponent


@scaled_lr.alternative
def with_two_returns(base, per_gpu, world, accum, ref_batch, rule):
    samples = per_gpu * accum * world
    if rule == "sqrt":
        return base * math.sqrt(samples) / math.sqrt(ref_batch)
    return base / ref_batch * samples


@scaled_lr.misconception(
    "You divided. More samples per update make the gradient less noisy, so the step may be longer, not shorter."
)
def divides(base, per_gpu, world, accum, ref_batch, rule):
    ratio = ref_batch / (per_gpu * world * accum)
    return base * ratio if rule == "linear" else base * math.sqrt(ratio)


@scaled_lr.misconception("The accumulation steps are missing: their micro-batches go into the same update.")
def forgets_accumulation(base, per_gpu, world, accum, ref_batch, rule):
    ratio = per_gpu * world / ref_batch
    return base * ratio if rule == "linear" else base * math.sqrt(ratio)


@scaled_lr.misconception(
    "You multiplied by the number of ranks (and micro-batches) alone. What counts is the ratio to the batch with "
    "which `base` was found."
)
def forgets_the_reference_batch(base, per_gpu, world, accum, ref_batch, rule):
    return base * world * accum if rule == "linear" else base * math.sqrt(world * accum)


@scaled_lr.misconception(
    'You scaled linearly in every case. With the rule "sqrt" the learning rate grows as the square root.'
)
def always_linear(base, per_gpu, world, accum, ref_batch, rule):
    return base * per_gpu * world * accum / ref_batch


# ---- distributed_batches -----------------------------------------------------------------------------------

distributed_batches = Exercise(
    reference.distributed_batches,
    title="Batches for one rank, from any step on",
    objective="distributed.template",
    difficulty=2,
    minutes=15,
    points=2,
    observes=[observe.value()],
    hints=(
        "A DistributedSampler knows its rank by itself and gives one epoch. Who tells it which epoch it is, and when?",
        "`len(loader)` is the number of batches of an epoch in this rank. So `divmod(start, len(loader))` gives the "
        "epoch to begin with, and how many of its batches to leave out. Only that first epoch leaves some out.",
        "Make sampler and loader once. For each epoch from the first on: `sampler.set_epoch(epoch)`, then "
        "`yield from` an `islice` of the loader that begins at what is to be left out; after that it is 0.",
    ),
    why="The sampler shuffles by seed and epoch, so a rank that resumes needs no memory of the past: the step number "
    "says it all. This is the `make_batches(step)` of notebook 05's Trainer, and with it the template runs on many "
    "ranks. Without `set_epoch` every epoch would come in the order of the first.",
)


@distributed_batches.cases
def _(rng):
    yield case("seven samples in two ranks, from the beginning and from two later steps", 2, 7, (0, 3, 5))


@distributed_batches.scenario
def _(answer, world, n, starts):
    return in_ranks(world, _batches_in_rank, answer, n, starts, tell=lambda results, outcome: results)


def _batches_in_rank(answer: Callable, n: int, starts: tuple[int, ...]) -> list[list[list[Tensor]]]:
    dataset = TensorDataset(torch.arange(n), -torch.arange(float(n)))
    return [as_list(answer(dataset, 3, 4, start), 5) for start in starts]


@distributed_batches.alternative
def skips_by_counting(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
    step, epoch = 0, 0
    while True:
        sampler.set_epoch(epoch)
        for batch in loader:
            if step >= start:
                yield batch
            step += 1
        epoch += 1


@distributed_batches.alternative
def as_one_long_stream(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset, dist.get_world_size(), dist.get_rank(), shuffle=True, seed=seed)

    def stream():
        for epoch in count():
            sampler.set_epoch(epoch)
            yield from DataLoader(dataset, batch_size, sampler=sampler)

    return islice(stream(), start, None)


@distributed_batches.misconception(
    "The sampler was never told the epoch, so each epoch comes in the order of the first. Call "
    "`sampler.set_epoch(epoch)` before you iterate."
)
def forgets_set_epoch(dataset, batch_size, seed, start):
    loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset, seed=seed))
    skipped = start % len(loader)
    while True:
        yield from islice(loader, skipped, None)
        skipped = 0


@distributed_batches.misconception(
    "The epoch was set after the loader had begun, when the order was drawn already. So each epoch has the order of "
    "the one before."
)
def sets_the_epoch_too_late(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    first_epoch, skipped = divmod(start, len(loader))
    sampler.set_epoch(max(first_epoch - 1, 0))
    for epoch in count(first_epoch):
        batches = list(loader)
        sampler.set_epoch(epoch)
        yield from batches[skipped:]
        skipped = 0


@distributed_batches.misconception(
    "Every rank reads the whole dataset. DDP averages gradients, it does not divide the data: the sampler does."
)
def does_not_shard(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    first_epoch, skipped = divmod(start, len(loader))
    for epoch in count(first_epoch):
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None)
        skipped = 0


@distributed_batches.misconception("`start` plays no part: a run that resumes reads the first batches again.")
def ignores_start(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader


@distributed_batches.misconception(
    "You left out the right number of batches, but of epoch 0. `start` may be in a later epoch, with another order."
)
def resumes_in_epoch_zero(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    skipped = start % len(loader)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None)
        skipped = 0


@distributed_batches.misconception(
    "You left the same batches out of every epoch. Only the first one begins in the middle."
)
def skips_in_every_epoch(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    first_epoch, skipped = divmod(start, len(loader))
    for epoch in count(first_epoch):
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None)


@distributed_batches.misconception(
    "The sampler did not get the seed, so its order is that of seed 0, whatever the run asked for."
)
def forgets_the_seed(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    first_epoch, skipped = divmod(start, len(loader))
    for epoch in count(first_epoch):
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None)
        skipped = 0


@distributed_batches.misconception(
    "Each rank shuffled with another seed, so the shares overlap, and some samples are read by nobody. All ranks pass "
    "the same seed; the sampler knows its rank."
)
def another_seed_per_rank(dataset, batch_size, seed, start):
    sampler = DistributedSampler(dataset, seed=seed + dist.get_rank())
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    first_epoch, skipped = divmod(start, len(loader))
    for epoch in count(first_epoch):
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None)
        skipped = 0


# ---- save_replica ------------------------------------------------------------------------------------------

save_replica = Exercise(
    reference.save_replica,
    title="One file, written once",
    objective="distributed.template",
    difficulty=2,
    minutes=8,
    points=1,
    observes=[observe.value()],
    hints=(
        "All replicas are equal, so one file is enough. Which rank writes it, and what must the others do meanwhile?",
        "The wrapped model is `ddp.module`; its state dict has the plain names. A collective in which every rank "
        "takes part, and which nobody leaves before all have come, keeps the others from running ahead.",
        "Inside `if dist.get_rank() == 0:` save the state dict of `ddp.module`. After it, outside of the `if`, "
        "in every rank: `dist.barrier()`.",
    ),
    why="The replicas are bit for bit the same, so rank 0 speaks for all. Names without `module.` load into a plain "
    "model on a machine without process groups. The barrier stands after the `if`, where every rank meets it: it lets "
    "nobody go on to read a file that is half written, and inside the `if` rank 0 would wait there alone.",
)


@save_replica.cases
def _(rng):
    yield case("a model with buffers in two ranks", 2)


@save_replica.scenario
def _(answer, world):
    with tempfile.TemporaryDirectory() as folder:
        return in_ranks(world, _save_in_rank, answer, folder, tell=_what_was_saved)


def _what_was_saved(results: list, outcome: Outcome) -> dict[str, Any]:
    found = in_each_rank(results, outcome)
    if not all(seen["complete when this rank goes on"] for seen in results):  # only to say why
        found["calls"] = len(outcome.ranks[0].collectives)
    return found


def _save_in_rank(answer: Callable, folder: str) -> dict[str, Any]:
    """Each rank has a disk of its own here, as on many machines; the slow disk is that of rank 0."""
    torch.manual_seed(0)
    rank, model = dist.get_rank(), Counted().eval()
    paths = [Path(folder) / f"disk-{other}.pt" for other in range(dist.get_world_size())]
    ddp, before = DistributedDataParallel(model), numbers_of(model)
    save, torch.save = torch.save, _slowly(torch.save)
    try:
        answer(str(paths[rank]), ddp)
    finally:
        torch.save = save
    was_complete = paths[0].exists()
    dist.barrier()
    return {
        "complete when this rank goes on": was_complete,
        "wrote a file": rank > 0 and paths[rank].exists(),
        "what rank 0 wrote": _read(paths[0]),
        "model unchanged": all(map(torch.equal, before.values(), numbers_of(model).values())),
    }


def _slowly(save: Callable) -> Callable:
    def slow(*args: Any, **kwargs: Any) -> None:
        time.sleep(0.1)
        save(*args, **kwargs)

    return slow


def _read(path: Path) -> Any:
    try:
        return dict(torch.load(path, weights_only=True))
    except Exception as error:
        return type(error).__name__


@save_replica.alternative
def gathers_first(path, ddp):
    weights = {name: tensor.cpu() for name, tensor in ddp.module.state_dict().items()}
    if not dist.get_rank():
        torch.save(weights, path)
    dist.barrier()


@save_replica.alternative
def strips_the_prefix(path, ddp):
    if dist.get_rank() == 0:
        torch.save({name.removeprefix("module."): t for name, t in ddp.state_dict().items()}, path)
    done = torch.zeros(1)
    dist.all_reduce(done)


@save_replica.misconception(
    "Every rank wrote the file. On one machine they write over one another, on many each disk gets a copy. "
    "Only rank 0 writes."
)
def every_rank_writes(path, ddp):
    torch.save(ddp.module.state_dict(), path)
    dist.barrier()


@save_replica.misconception(
    'The names begin with "module.", because the state dict is that of the wrapper. A plain model can\'t load it. '
    "Save that of `ddp.module`."
)
def saves_the_wrapper(path, ddp):
    if dist.get_rank() == 0:
        torch.save(ddp.state_dict(), path)
    dist.barrier()


@save_replica.misconception(
    "The barrier is inside the `if`: rank 0 waits there alone, for ever. Every rank has to come to it."
)
def barrier_in_rank_zero_only(path, ddp):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path)
        dist.barrier()


@save_replica.misconception(
    "The other ranks did not wait, and went on before the file was complete. A barrier after the `if` holds them."
)
def does_not_wait(path, ddp):
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path)


@save_replica.misconception(
    "The barrier came before the writing. All ranks meet, and then the others go on while rank 0 writes."
)
def waits_too_early(path, ddp):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path)


@save_replica.misconception(
    "The file holds the model object, not its state dict. Loading it would run code from the file, so "
    "`weights_only=True` refuses."
)
def saves_the_object(path, ddp):
    if dist.get_rank() == 0:
        torch.save(ddp.module, path)
    dist.barrier()


# ---- zero_memory -------------------------------------------------------------------------------------------

zero_memory = Exercise(
    reference.zero_memory,
    title="What each GPU holds",
    objective="distributed.memory",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value(atol=1.0)],
    hints=(
        "Three kinds of numbers: parameters, gradients, and what Adam keeps. How many bytes has each of them per "
        "parameter, without and with `mixed`? Which of them does each stage divide?",
        "float32: 4, 4 and 8. Mixed: 2, 2 and 12, because a master copy in float32 is added to the two moments. "
        "Stage 1 divides the last, stage 2 the last two, stage 3 all three.",
        "Make the three totals; divide the state where `stage >= 1`, the gradients where `stage >= 2`, "
        "the parameters where `stage >= 3`; add.",
    ),
    why="Both ways add up to 16 bytes per parameter: mixed precision saves activations and time, not this. The "
    "optimizer's state is the largest part, so stage 1 alone wins the most. Stage 3 divides everything, and pays by "
    "gathering the parameters again for every forward and backward pass.",
)


@zero_memory.cases
def _(rng):
    yield case("nothing is sharded", 1000, 8, 0, False)
    yield case("nothing is sharded, mixed precision", 1000, 8, 0, True)
    yield case("stage 1", 1000, 8, 1, False)
    yield case("stage 1, mixed precision", 1000, 8, 1, True)
    yield case("stage 2", 1000, 4, 2, False)
    yield case("stage 3, mixed precision", 7_000_000_000, 64, 3, True)
    yield case("stage 3", 1000, 4, 3, False)
    yield case("stage 2, mixed precision", 1000, 4, 2, True)
    yield case("stage 3 on one GPU", 1000, 1, 3, False)


@zero_memory.scenario
def _(answer, P, world, stage, mixed):
    return as_float(answer(P, world, stage, mixed))


@zero_memory.alternative
def from_a_table(P, world, stage, mixed):
    sizes = (12, 2, 2) if mixed else (8, 4, 4)  # in the order in which the stages shard them
    shares = [world if position < stage else 1 for position in range(3)]
    return sum(P * size / share for size, share in zip(sizes, shares))


@zero_memory.alternative
def in_whole_bytes(P, world, stage, mixed):
    width = 2 if mixed else 4
    state = 8 * P + (4 * P if mixed else 0)
    sharded = (state if stage > 0 else 0) + (width * P if stage > 1 else 0) + (width * P if stage > 2 else 0)
    return 2 * width * P + state - sharded + sharded // world


@zero_memory.misconception(
    "The master copy is missing. Under mixed precision the optimizer keeps the parameters in float32 once more: "
    "4 bytes for each."
)
def forgets_the_master_copy(P, world, stage, mixed):
    parameters, gradients, state = (2 * P, 2 * P, 8 * P) if mixed else (4 * P, 4 * P, 8 * P)
    return (
        (parameters / world if stage >= 3 else parameters)
        + (gradients / world if stage >= 2 else gradients)
        + (state / world if stage >= 1 else state)
    )


@zero_memory.misconception(
    "You halved everything. Half precision holds for parameters and gradients; the optimizer's numbers stay in "
    "float32, and a master copy is added."
)
def halves_everything(P, world, stage, mixed):
    width = 2 if mixed else 4
    shares = [world if stage >= first else 1 for first in (3, 2, 1)]
    return width * P / shares[0] + width * P / shares[1] + 2 * width * P / shares[2]


@zero_memory.misconception(
    "You divided everything from stage 1 on. Stage 1 shards the optimizer's state only, stage 2 the gradients as "
    "well, and only stage 3 the parameters."
)
def stage_one_shards_all(P, world, stage, mixed):
    return 16 * P / (world if stage else 1)


@zero_memory.misconception(
    "The gradients stay whole in every stage here, as if only the parameters came after the optimizer's state. "
    "Stage 2 shards the gradients, stage 3 the parameters as well."
)
def never_shards_gradients(P, world, stage, mixed):
    parameters, gradients, state = (2 * P, 2 * P, 12 * P) if mixed else (4 * P, 4 * P, 8 * P)
    return (
        (parameters / world if stage >= 2 else parameters)
        + gradients
        + (state / world if stage >= 1 else state)
    )


@zero_memory.misconception("Adam keeps two moments for each parameter, 8 bytes. You counted one.")
def one_moment(P, world, stage, mixed):
    parameters, gradients, state = (2 * P, 2 * P, 8 * P) if mixed else (4 * P, 4 * P, 4 * P)
    return (
        (parameters / world if stage >= 3 else parameters)
        + (gradients / world if stage >= 2 else gradients)
        + (state / world if stage >= 1 else state)
    )


@zero_memory.misconception(
    "Your stages are shifted by one: what you do at stage 1 belongs to stage 2. Stage 0 shards nothing, and stage 1 "
    "already shards the optimizer's state."
)
def stages_shifted(P, world, stage, mixed):
    parameters, gradients, state = (2 * P, 2 * P, 12 * P) if mixed else (4 * P, 4 * P, 8 * P)
    return (
        (parameters / world if stage >= 4 else parameters)
        + (gradients / world if stage >= 3 else gradients)
        + (state / world if stage >= 2 else state)
    )


# ---- predictions -------------------------------------------------------------------------------------------

both_print = Question(
    "both_print",
    objective="distributed.ranks",
    text="""Two processes run this function. What does rank 1 print?

```python
def own_sum():
    x = torch.tensor([dist.get_rank() + 1.0])
    x += x
    print(x.item())
```
""",
    choices={"a": "`2.0`", "b": "`4.0`", "c": "`6.0`", "d": "nothing: only rank 0 prints"},
    answer="b",
    replies={
        "a": "2.0 is what rank 0 prints. Each rank has a memory of its own, and here nothing is sent.",
        "b": "Right. Each rank runs the same lines in a memory of its own; they differ by their rank alone.",
        "c": "6.0 would be the sum over both ranks. But nothing is sent here: `x += x` is arithmetic at home.",
        "d": "Every rank runs every line. Who wants one line of output has to write `if rank == 0`.",
    },
)

missing_rank = Question(
    "missing_rank",
    objective="distributed.ranks",
    text="""Rank 1 returns before the others come to this line. What happens in rank 0?

```python
if dist.get_rank() == 1:
    return
dist.all_reduce(x)
```
""",
    choices={
        "a": "`x` becomes the sum over the ranks that are left",
        "b": "an exception, at once",
        "c": "it waits",
        "d": "`x` stays as it is",
    },
    answer="c",
    replies={
        "a": "A collective knows who belongs to its group, and does not go on without one of them.",
        "b": "As long as the other process lives, nothing tells rank 0 that it will never come. (If it dies, the "
        "connection breaks, and that is an exception.)",
        "c": "Right. A collective ends when all have come. Nobody announces that rank 1 never will.",
        "d": "There is no way past a collective: it returns when all ranks have entered it.",
    },
)

unequal_seeds = Question(
    "unequal_seeds",
    objective="distributed.ddp",
    text="""Two ranks, each with a seed of its own. Are the weights equal in both ranks afterwards?

```python
torch.manual_seed(dist.get_rank())
model = nn.Linear(4, 2)
ddp = DistributedDataParallel(model)
```
""",
    choices={
        "a": "no, they differ by their seeds",
        "b": "yes, both have those of rank 0",
        "c": "yes, both have the mean",
        "d": "no, but they become equal after the first step",
    },
    answer="b",
    replies={
        "a": "They differ up to the second line. The constructor of DDP communicates.",
        "b": "Right. The constructor broadcasts the parameters and buffers of rank 0, once.",
        "c": "Means are for gradients. A mean of two initializations would be a worse one.",
        "d": "Equal gradients on unequal weights give unequal weights, for ever. So DDP makes them equal at the start.",
    },
)

whole_batch = Question(
    "whole_batch",
    objective="distributed.data",
    text="""Two ranks run this. Which samples does rank 1 see?

```python
dataset = torch.arange(4)
loader = DataLoader(dataset, batch_size=2)
ddp = DistributedDataParallel(model)
for batch in loader:
    ...
```
""",
    choices={"a": "2 and 3", "b": "1 and 3", "c": "all four", "d": "none: rank 0 hands them out"},
    answer="c",
    replies={
        "a": "That would be a share in blocks. But who would have cut it? The loader does not know of ranks.",
        "b": "That would be a DistributedSampler's share, without shuffling. There is none here.",
        "c": "Right. DDP averages gradients; it does not divide data. Without a sampler that knows its rank, "
        "all ranks do the same work.",
        "d": "No rank hands out samples. Each has a loader of its own, over the whole dataset.",
    },
)

how_many_sends = Question(
    "how_many_sends",
    objective="distributed.communication",
    text="""`ddp` wraps a small model. How many all-reduces does this make, in each rank?

```python
for x in microbatches:                 # 4 of them
    ddp(x).mean().backward()
opt.step()
```
""",
    choices={"a": "1", "b": "4", "c": "5", "d": "0"},
    answer="b",
    replies={
        "a": "DDP can't know that more is to come. It sends at the end of each backward pass, unless told not to.",
        "b": "Right: one per backward pass. Three of them are needless, since the gradients add up locally as well.",
        "c": "The step communicates nothing: equal gradients on equal weights give equal weights.",
        "d": "The backward pass of a DDP model communicates without being asked.",
    },
)

padded_accuracy = Question(
    "padded_accuracy",
    objective="distributed.data",
    text="""Five samples, of which the model gets only sample 0 right: an accuracy of 1 / 5.
Two ranks evaluate with `DistributedSampler(range(5), shuffle=False)`, and add up correct answers and samples.
Which accuracy do they report?
""",
    choices={"a": "1 / 5", "b": "1 / 6", "c": "2 / 6", "d": "1 / 4"},
    answer="c",
    replies={
        "a": "That would be right, and it needs shares of 3 and 2 samples. The sampler makes all shares equally long.",
        "b": "Six samples are counted, that is so. But which one comes twice?",
        "c": "Right. To make the shares equal, sample 0 is read twice: 2 of 6. With 5 ranks it is 1 / 5.",
        "d": "Nothing is dropped by default; the sampler pads.",
    },
)

zero_three = Question(
    "zero_three",
    objective="distributed.memory",
    text="""A model of 7 billion parameters trains with Adam in mixed precision: 16 bytes per parameter, 112 GB.
What does each of 64 GPUs hold of it under ZeRO stage 1, where only the optimizer's state is sharded?
""",
    choices={"a": "1.75 GB", "b": "about 29 GB", "c": "about 85 GB", "d": "112 GB"},
    answer="b",
    replies={
        "a": "That is all of it divided by 64: stage 3. Stage 1 leaves parameters and gradients whole.",
        "b": "Right: 4 bytes for parameter and gradient stay, 12 are divided by 64. 28 GB and a bit.",
        "c": "84 GB is the optimizer's state, before it is divided.",
        "d": "That is stage 0: every GPU holds everything.",
    },
)

unused_parameter = Question(
    "unused_parameter",
    objective="distributed.ddp",
    text="""A DDP model has a layer that this step does not use. What happens in the *second* step?""",
    choices={
        "a": "nothing special: unused layers have no gradient",
        "b": "a RuntimeError that says so",
        "c": "the ranks wait for ever",
        "d": "the layer gets random gradients",
    },
    answer="b",
    replies={
        "a": "So it is without DDP. But DDP waits for all gradients of a bucket before it sends it.",
        "b": "Right. The reduction of the first step never ended, and DDP notices when the next forward begins.",
        "c": "It could be so; DDP sees it coming, in the forward pass of the next step.",
        "d": "Nothing is written where no gradient came.",
    },
)
