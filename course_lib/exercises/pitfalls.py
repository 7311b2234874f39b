"""The exercises and questions of notebook 07: the pitfalls clinic. Each repairs a piece of training code."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from course_lib.checking import Exercise, Question, case, observe
from course_lib.checking.observe import registered_in
from course_lib.checking.recorders import MoveRecorder
from course_lib.exercises.clinic import (
    Batches,
    CountingBlock,
    GraphWatch,
    LoggingSGD,
    Pixels,
    SignedRoot,
    SimulatedGPU,
    StrictDevices,
    Tied,
    WatchedLinear,
    classifier,
    labelled_batches,
)
from course_lib.reference import pitfalls as reference
from course_lib.reference.pitfalls import scaled_batch

# ---- how the patients are looked at ------------------------------------------------------------------------


def looked_at(look: Callable[[], Any]) -> Any:
    """What `look()` finds, or, where the result is not what it looks for, that it could not be used."""
    try:
        return look()
    except Exception as error:
        return f"could not be used: {type(error).__name__}"


@contextmanager
def drawing_allowed(draw: Callable[[], Any], times: int = 1) -> Iterator[None]:
    """Up to `times` draws like `draw()` from the global random state are not counted as a change of it."""
    before = torch.get_rng_state()
    allowed = []
    for _ in range(times):
        draw()
        allowed.append(torch.get_rng_state())
    torch.set_rng_state(before)
    yield
    if any(torch.equal(torch.get_rng_state(), state) for state in allowed):
        torch.set_rng_state(before)


def built(build: Callable[[], Any]) -> Any:
    """What `build()` returns; its draws from the global random state are ours, not the answer's."""
    with torch.random.fork_rng(devices=[]):
        return build()


def as_number(value: Any) -> Any:
    """A number that came as a tensor without dimensions, or from NumPy, as a Python number."""
    if isinstance(value, Tensor) and value.dim() == 0:
        return value.detach().item()
    return value.item() if isinstance(value, np.generic) else value


def without_gradients(model: nn.Module) -> None:
    """What an answer leaves in `.grad` is not judged."""
    for parameter in model.parameters():
        parameter.grad = None


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def lying_transposed(layer: nn.Linear) -> nn.Linear:
    """The same layer with a weight that is not contiguous."""
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return layer


def rates_by_name(optimizer: Any, modules: dict[str, nn.Module]) -> dict[str, list[float]]:
    """For each parameter of the modules the learning rates with which an optimizer owns it."""
    groups = [group for one in optimizer for group in one.param_groups]
    return {
        f"{key}.{name}": [group["lr"] for group in groups for p in group["params"] if p is parameter]
        for key, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def optimizers_in(result: Any) -> list[torch.optim.Optimizer]:
    found = result if isinstance(result, (list, tuple)) else [result]
    return [item for item in found if isinstance(item, torch.optim.Optimizer)]


# ======== ward 1: shapes and devices ========================================================================
# ---- regression_loss ---------------------------------------------------------------------------------------

regression_loss = Exercise(
    reference.regression_loss,
    title="The loss that perfect predictions can't satisfy",
    objective="pitfalls.shapes",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value(1e-5, 1e-7), observe.gradients()],
    hints=(
        "Print the shape of `pred - y`. How many differences are there, and how many should there be?",
        "Give both sides the same shape before they meet, whichever of the two shapes `y` has.",
        "`reshape(-1)` makes (batch,) out of both (batch, 1) and (batch,), and also for a batch of one. Do it to "
        "both, then take the mean squared error.",
    ),
    why="The difference of (batch, 1) and (batch,) is (batch, batch): every prediction meets every target. With "
    "one shape on both sides nothing is left to broadcast. `squeeze()` on one side is half a cure: it fits one "
    "of the two shapes of `y`, and no other.",
)


@regression_loss.cases
def _(rng):
    for label, shape in (("perfect predictions", (3,)), ("perfect predictions, targets (batch, 1)", (3, 1))):
        y = torch.tensor([1.0, 2.0, 3.0])
        yield case(label, y.view(3, 1), y.view(shape))
    yield case("a batch of one", torch.tensor([[2.0]]), torch.tensor([-1.0]))
    yield case("a batch of one, target (1, 1)", torch.tensor([[2.0]]), torch.tensor([[-1.0]]))
    pred = torch.randn(5, 1, generator=rng).requires_grad_()
    yield case("predictions with a gradient", pred, torch.randn(5, generator=rng))
    column = torch.randn(4, 3, generator=rng)[:, :1].requires_grad_()
    yield case("a column of a wider output", column, torch.randn(4, 2, generator=rng)[:, 1])
    yield case(
        "float64", torch.randn(6, 1, generator=rng).double(), torch.randn(6, 1, generator=rng).double()
    )


@regression_loss.alternative
def gives_pred_the_shape_of_y(pred, y):
    return F.mse_loss(pred.view_as(y) if pred.is_contiguous() else pred.reshape(y.shape), y)


@regression_loss.alternative
def gives_y_the_shape_of_pred(pred, y):
    return (pred - y.reshape(pred.shape)).pow(2).mean()


@regression_loss.alternative
def flattens_both(pred, y):
    difference = pred.flatten() - y.flatten()
    return difference.dot(difference) / len(difference)


@regression_loss.misconception(
    "The shapes still differ when `y` is (batch,): (batch, 1) and (batch,) broadcast to (batch, batch), and every "
    "prediction is compared with every target. `mse_loss` only warns; `.mean()` hides it."
)
def broadcasts(pred, y):
    return F.mse_loss(pred, y)


@regression_loss.misconception(
    "You changed the shape of one side, so it fits `y` of shape (batch,) and no longer fits (batch, 1). There the "
    "two broadcast again. Let the shape follow from the other side, or flatten both."
)
def fits_one_shape_of_y(pred, y):
    return F.mse_loss(pred.squeeze(), y)


@regression_loss.misconception(
    "You compared the means. Errors in opposite directions cancel there; each example has to be compared on its "
    "own before anything is averaged."
)
def compares_the_means(pred, y):
    return (pred.mean() - y.mean()).pow(2)


@regression_loss.misconception(
    "The number is right, but you cut the graph, with `detach()` or `item()`: no gradient reaches the model."
)
def cuts_the_graph(pred, y):
    return F.mse_loss(pred.detach().reshape(-1), y.reshape(-1))


@regression_loss.misconception(
    "You added the squares up. The mean divides by the number of examples, so that the loss does not grow with "
    "the batch."
)
def adds_up(pred, y):
    return (pred.reshape(-1) - y.reshape(-1)).pow(2).sum()


@regression_loss.misconception(
    "You took the mean of the absolute differences. That is another loss; the repair keeps the squares."
)
def takes_another_loss(pred, y):
    return F.l1_loss(pred.reshape(-1), y.reshape(-1))


# ---- loss_on_device ----------------------------------------------------------------------------------------

loss_on_device = Exercise(
    reference.loss_on_device,
    title="Data here, model there",
    objective="pitfalls.shapes",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value(1e-5, 1e-7), observe.requires_grad()],
    hints=(
        "Which tensors meet inside the function? The inputs meet the weights, and the labels meet the logits.",
        "Ask a parameter of the model for its device, and move both tensors there. `Tensor.to` returns the moved "
        "tensor and leaves the old one alone.",
        "`next(model.parameters()).device` is the place. Write `x = x.to(...)` and `y = y.to(...)` before the loss.",
    ),
    why="The model says where the work happens, and a parameter is the one thing that knows it: modules have no "
    "`.device`. Both tensors meet something of the model's, so both move. And `Tensor.to` hands out the moved "
    "tensor; if nobody keeps it, nothing has moved.",
)


@loss_on_device.scenario
def loss_under_strict_devices(answer, model, x, y):
    """The meta device stands in for a GPU, and refuses tensors from elsewhere as a GPU does."""
    with StrictDevices():
        return answer(model, x, y)


@loss_on_device.cases
def _(rng):
    model = classifier()
    (x, y), (wide, labels) = labelled_batches([2, 3], rng)
    yield case("all on the CPU", copy.deepcopy(model), x.clone(), y.clone())
    yield case("the model elsewhere", classifier().to("meta"), x.clone(), y.clone())
    yield case("model and labels elsewhere", classifier().to("meta"), x.clone(), y.to("meta"))
    yield case("model and inputs elsewhere", classifier().to("meta"), x.to("meta"), y.clone())
    yield case("all elsewhere", classifier().to("meta"), x.to("meta"), y.to("meta"))
    yield case("inputs that lie transposed", model, wide.t().contiguous().t(), labels)


@loss_on_device.alternative
def moves_to_the_weight(model, x, y):
    weight = list(model.parameters())[-1]
    x, y = x.to(device=weight.device), y.to(device=weight.device)
    return F.nll_loss(F.log_softmax(model(x), dim=-1), y)


@loss_on_device.alternative
def moves_the_labels_to_the_logits(model, x, y):
    logits = model(x.to(next(model.parameters()).device))
    return F.cross_entropy(logits, y.to(logits.device))


@loss_on_device.alternative
def asks_the_state_dict(model, x, y):
    device = next(iter(model.state_dict().values())).device
    return nn.CrossEntropyLoss()(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))


@loss_on_device.misconception(
    "The tensors are where they were: either nothing moves them, or the result of `x.to(device)` is thrown away. "
    "`Tensor.to` returns the moved tensor and leaves `x` alone; only `Module.to` works in place."
)
def moves_nothing(model, x, y):
    device = next(model.parameters()).device
    x.to(device)
    y.to(device)
    return F.cross_entropy(model(x), y)


@loss_on_device.misconception(
    "You moved the inputs and forgot the labels. They meet the logits, which are on the model's device."
)
def moves_the_inputs_only(model, x, y):
    return F.cross_entropy(model(x.to(next(model.parameters()).device)), y)


@loss_on_device.misconception(
    "You moved the labels and forgot the inputs, which meet the weights of the first layer."
)
def moves_the_labels_only(model, x, y):
    return F.cross_entropy(model(x), y.to(next(model.parameters()).device))


@loss_on_device.misconception(
    'You wrote "cuda" into the function. It fails where there is no GPU, and wherever the model is on another '
    "device. The model knows where it is: ask it."
)
def writes_cuda_into_it(model, x, y):
    return F.cross_entropy(model(x.cuda()), y.cuda())


@loss_on_device.misconception(
    "A module has no attribute `device`: its parameters might be on several. Ask one of the parameters."
)
def asks_the_module(model, x, y):
    return F.cross_entropy(model(x.to(model.device)), y.to(model.device))


@loss_on_device.misconception(
    "You moved the model to the data. Its weights would travel with every batch, an optimizer would lose sight "
    "of where they are, and the GPU is left idle. Batches come to the model."
)
def moves_the_model(model, x, y):
    model.to(x.device)
    return F.cross_entropy(model(x), y.to(x.device))


# ---- to_model_device ---------------------------------------------------------------------------------------

to_model_device = Exercise(
    reference.to_model_device,
    title="One door for all tensors",
    objective="pitfalls.shapes",
    difficulty=2,
    minutes=6,
    points=1,
    observes=[observe.value()],
    hints=(
        "What does `next(model.parameters())` do for `nn.ReLU()`, which has none?",
        "`next` takes a second argument, which it returns where there is nothing. Without a parameter the tensors "
        "go back as they came; else each is moved, and keeps its dtype.",
        "`parameter = next(model.parameters(), None)`; return `tensors` where that is None, else a `tuple(...)` of "
        "each tensor moved to `parameter.device`.",
    ),
    why="`next` on an empty iterator raises StopIteration, so the popular one-liner breaks for activations, losses "
    "and `nn.Identity()`. A default says what happens there. Moving to `parameter.device` and not to `parameter` "
    "keeps integer labels integers. For a model that is spread over several devices, no single answer is right.",
)


@to_model_device.cases
def _(rng):
    x, y = torch.randn(2, 4, generator=rng), torch.tensor([0, 2])
    yield case("model and tensor on the CPU", nn.Linear(4, 3), x.clone())
    yield case("the model elsewhere", nn.Linear(4, 3).to("meta"), x.clone())
    yield case("inputs and integer labels", nn.Linear(4, 3).to("meta"), x.clone(), y.clone())
    yield case("a module without parameters", nn.ReLU(), x.clone(), y.clone())
    yield case("a float64 model and float32 inputs", nn.Linear(4, 3).double(), x.clone(), y.clone())
    yield case("three tensors, one transposed", classifier().to("meta"), x.t(), y, x)
    yield case("a transposed tensor on the CPU", classifier(), torch.randn(3, 2, generator=rng).t())


@to_model_device.alternative
def catches_the_end(model, *tensors):
    try:
        device = next(model.parameters()).device
    except StopIteration:
        return tensors
    return tuple(t.to(device) for t in tensors)


@to_model_device.alternative
def looks_at_all_parameters(model, *tensors):
    devices = {p.device for p in model.parameters()}
    return tuple([t.to(device=devices.copy().pop()) if devices else t for t in tensors])


@to_model_device.alternative
def goes_by_each_tensor(model, *tensors):
    return tuple(t.to(next((p.device for p in model.parameters()), t.device)) for t in tensors)


@to_model_device.misconception(
    "`next(model.parameters())` raises StopIteration for a module without parameters. Give `next` a default, and "
    "leave the tensors alone there."
)
def trusts_next(model, *tensors):
    device = next(model.parameters()).device
    return tuple(t.to(device) for t in tensors)


@to_model_device.misconception(
    "A module has no attribute `device`. Its parameters have, and a module may have none of them."
)
def asks_the_module_again(model, *tensors):
    return tuple(t.to(model.device) for t in tensors)


@to_model_device.misconception(
    'You wrote "cuda" into the function. It then works on one kind of machine, and only for models that are there.'
)
def always_cuda(model, *tensors):
    return tuple(t.cuda() for t in tensors)


@to_model_device.misconception(
    "The moved tensors are thrown away: `t.to(device)` returns a new tensor, and you return the old ones."
)
def drops_the_moved(model, *tensors):
    parameter = next(model.parameters(), None)
    for t in tensors:
        t.to(t.device if parameter is None else parameter.device)
    return tensors


@to_model_device.misconception(
    "Only the first tensor moves. The labels meet the logits later, and those are on the model's device."
)
def moves_the_first(model, *tensors):
    parameter = next(model.parameters(), None)
    if parameter is None:
        return tensors
    return (tensors[0].to(parameter.device), *tensors[1:])


@to_model_device.misconception(
    "You moved to the parameter itself. `t.to(other)` takes over its device *and* its dtype, so integer labels "
    "become floating."
)
def takes_over_the_dtype(model, *tensors):
    parameter = next(model.parameters(), None)
    return tensors if parameter is None else tuple(t.to(parameter) for t in tensors)


@to_model_device.misconception(
    "One tensor comes back bare. The caller unpacks a tuple whatever the number of tensors is; a rule with an "
    "exception for one makes every call site ask which case it is."
)
def unpacks_one(model, *tensors):
    parameter = next(model.parameters(), None)
    moved = tensors if parameter is None else tuple(t.to(parameter.device) for t in tensors)
    return moved[0] if len(moved) == 1 else moved


@to_model_device.misconception(
    "You moved the model to the tensors. The function is the door for data; the model stays where it was put."
)
def moves_the_model_instead(model, *tensors):
    model.to(tensors[0].device)
    return tensors


# ---- add_positions -----------------------------------------------------------------------------------------

add_positions = Exercise(
    reference.add_positions,
    title="One position for everyone",
    objective="pitfalls.shapes",
    difficulty=1,
    minutes=4,
    points=1,
    observes=[observe.value(1e-6, 1e-7), observe.gradients()],
    hints=(
        "What is the shape of `table[seq]`, and what is that of `table[:seq]`?",
        "You need `seq` rows of the table, one for each step, counted from row 0. `seq` is dimension 1 of `x`.",
        "Slice the table with `[: x.size(1)]`; (seq, dim) broadcasts over the batch.",
    ),
    why="`table[seq]` is one row, and one row broadcasts over all steps: every token is told the same position, "
    "and without a mask attention then can't know the order. One colon makes it `seq` rows. Only a test that "
    "permutes the steps, or compares two of them, can see the difference.",
)


@add_positions.cases
def _(rng):
    count = torch.arange(5.0).view(5, 1).repeat(1, 2)
    yield case("three steps of zeros", torch.zeros(1, 3, 2), count.clone())
    yield case("one step", torch.zeros(2, 1, 2), count.clone())
    yield case("as many steps as rows", torch.zeros(2, 5, 2), count.clone())
    yield case("more sequences than steps", torch.ones(4, 2, 2), count.clone())
    x = torch.randn(2, 4, 3, generator=rng).requires_grad_()
    yield case("with gradients", x, torch.randn(6, 3, generator=rng).requires_grad_())
    yield case(
        "both lie transposed",
        torch.randn(4, 2, 3, generator=rng).transpose(0, 1),
        torch.randn(3, 6, generator=rng).t(),
    )


@add_positions.alternative
def looks_up_positions(x, table):
    return x + F.embedding(torch.arange(x.shape[1], device=x.device), table)


@add_positions.alternative
def unpacks_the_shape(x, table):
    _, seq, _ = x.shape
    return x + table[None, :seq, :]


@add_positions.alternative
def narrows_the_table(x, table):
    return x + table.narrow(0, 0, x.size(1)).expand_as(x)


@add_positions.misconception(
    "`table[seq]` is a single row, the one after the last step, and it broadcasts over all of them. Every step "
    "gets the same vector, and where `seq` equals `max_len` there is no such row. You want the rows before it."
)
def takes_one_row(x, table):
    return x + table[x.size(1)]


@add_positions.misconception(
    "You added the whole table. It fits only where a sequence has as many steps as the table has rows."
)
def adds_the_whole_table(x, table):
    return x + table


@add_positions.misconception(
    "You cut the table by the number of sequences. In (batch, seq, dim) the steps are dimension 1."
)
def counts_the_batch(x, table):
    return x + table[: x.size(0)]


@add_positions.misconception(
    "You took the last rows of the table. Positions count from the start: step 0 gets row 0."
)
def takes_the_last_rows(x, table):
    return x + table[-x.size(1) :]


@add_positions.misconception(
    "You left the positions out. The wrong broadcast is gone, and with it all knowledge of the order."
)
def leaves_positions_out(x, table):
    return x.clone()


@add_positions.misconception(
    "You wrote the sum into `x`. The caller's tensor changes, and where it is a leaf that requires gradients the "
    "write is refused."
)
def adds_in_place(x, table):
    x += table[: x.size(1)]
    return x


# ---- attend_to_real ----------------------------------------------------------------------------------------

attend_to_real = Exercise(
    reference.attend_to_real,
    title="A mask that means the opposite",
    objective="pitfalls.shapes",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(1e-4, 1e-5), observe.requires_grad()],
    hints=(
        "What does True mean in `is_padding`, and what does True mean in `attn_mask` of "
        "`F.scaled_dot_product_attention`? And which dimension of the scores (batch, n_heads, query, key) is it "
        "about?",
        "Turn the mask around, and give it a shape that broadcasts to (batch, n_heads, query, key) with the steps "
        "in the place of the keys.",
        "`~is_padding` says where to attend. Index it with `[:, None, None, :]` and hand it over as `attn_mask`.",
    ),
    why="In `scaled_dot_product_attention` True means *attend here*; in `nn.MultiheadAttention` and its "
    "`key_padding_mask` True means *blocked*. Nothing raises when they are mixed up. The last dimension of the "
    "scores is the key, and it is keys that have to be ignored; what a padding query returns, nobody reads.",
)


@attend_to_real.cases
def _(rng):
    def qkv(batch, heads, seq, dim):
        return [torch.randn(batch, heads, seq, dim, generator=rng) for _ in range(3)]

    yield case("one sequence, its last step padding", *qkv(1, 1, 3, 2), torch.tensor([[False, False, True]]))
    yield case("no padding", *qkv(2, 1, 2, 3), torch.zeros(2, 2, dtype=torch.bool))
    lengths = torch.arange(4) >= torch.tensor([[4], [1], [3]])
    yield case("three lengths", *qkv(3, 2, 4, 2), lengths.clone())
    yield case(
        "padding in front", *qkv(2, 2, 3, 4), torch.tensor([[True, False, False], [True, True, False]])
    )
    heads = [torch.randn(3, 4, 2, 2, generator=rng).transpose(1, 2).requires_grad_() for _ in range(3)]
    yield case("heads that were split by transpose", *heads, lengths)


@attend_to_real.alternative
def fills_the_scores(q, k, v, is_padding):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores.masked_fill(is_padding[:, None, None, :], float("-inf")).softmax(dim=-1) @ v


@attend_to_real.alternative
def adds_minus_infinity(q, k, v, is_padding):
    bias = torch.zeros(is_padding.shape, dtype=q.dtype).masked_fill(is_padding, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(1).unsqueeze(1))


@attend_to_real.alternative
def expands_the_mask(q, k, v, is_padding):
    batch, heads, seq, _ = q.shape
    keep = is_padding.logical_not().view(batch, 1, 1, seq).expand(batch, heads, seq, seq)
    return F.scaled_dot_product_attention(q, k, v, keep)


@attend_to_real.misconception(
    "The mask is upside down: in `scaled_dot_product_attention` True means that a step takes part. So only the "
    "padding was attended to."
)
def hands_it_over_as_it_is(q, k, v, is_padding):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=is_padding[:, None, None, :])


@attend_to_real.misconception(
    "You left the mask out. The error is gone, and every step now attends to the padding."
)
def leaves_the_mask_out(q, k, v, is_padding):
    return F.scaled_dot_product_attention(q, k, v)


@attend_to_real.misconception(
    "You masked the queries. The dimensions of the scores are (batch, n_heads, query, key), and it is the keys "
    "that must not be padding."
)
def masks_the_queries(q, k, v, is_padding):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~is_padding[:, None, :, None])


@attend_to_real.misconception(
    "The mask keeps its shape (batch, seq), and broadcasting takes that for (query, key). It must be told which "
    "dimension is which: (batch, 1, 1, seq)."
)
def hands_over_batch_by_seq(q, k, v, is_padding):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~is_padding)


@attend_to_real.misconception(
    "You set the weights to zero after the softmax. The padding had its share of the denominator by then, so the "
    "weights on the real steps no longer sum to 1."
)
def masks_after_the_softmax(q, k, v, is_padding):
    weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(dim=-1)
    return weights * ~is_padding[:, None, None, :] @ v


@attend_to_real.misconception(
    "You set the keys of the padding to zero. That gives them the score 0, which is a score like any other: "
    "softmax gives it exp(0)."
)
def zeroes_the_keys(q, k, v, is_padding):
    return F.scaled_dot_product_attention(q, k.masked_fill(is_padding[:, None, :, None], 0), v)


@attend_to_real.misconception(
    "A mask of floats is added to the scores. Adding 1 to the real ones favors them a little; it excludes nothing. "
    "A bool mask excludes."
)
def adds_ones(q, k, v, is_padding):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(~is_padding[:, None, None, :]).float())


# ======== ward 2: gradients =================================================================================
# ---- train -------------------------------------------------------------------------------------------------

train = Exercise(
    reference.train,
    title="The gradients of all batches so far",
    objective="pitfalls.gradients",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[],
    hints=(
        "`backward()` adds to `.grad`. What is in it when the second batch begins? And the first?",
        "Before each backward pass nothing old may be left. There are several places in the loop for that, and "
        "one of them also covers what was there before the call.",
        "Inside the loop, ahead of the backward pass: `opt.zero_grad()`.",
    ),
    why="`backward()` adds, so that accumulation is possible; clearing is your part. At the top of the loop it "
    "covers every batch and whatever was left by code that ran before. Between backward and step it would clear "
    "the gradient that the step needs.",
)


@train.scenario
def train_and_forget_gradients(answer, model, opt, batches):
    answer(model, opt, batches)
    without_gradients(model)


@train.cases
def _(rng):
    def patient(sizes, optimizer, **settings):
        model = classifier().double()
        batches = [(x.double(), y) for x, y in labelled_batches(sizes, rng)]
        return model, optimizer(model.parameters(), **settings), batches

    sgd = torch.optim.SGD
    yield case("one batch", *patient([2], sgd, lr=0.5))
    yield case("three batches", *patient([2, 3, 1], sgd, lr=0.5))
    model, opt, batches = patient([2, 2], sgd, lr=0.5)
    F.cross_entropy(model(batches[1][0]), batches[0][1]).backward()
    yield case("gradients left from before", model, opt, batches)
    yield case("with momentum", *patient([3, 2, 2], sgd, lr=0.1, momentum=0.9))
    yield case("AdamW", *patient([2, 2, 2], torch.optim.AdamW, lr=0.1))
    model, opt, batches = patient([3, 2], sgd, lr=0.5)
    yield case(
        "inputs that lie transposed", model, opt, [(x.t().contiguous().t(), labels) for x, labels in batches]
    )


@train.alternative
def clears_after_each_step_and_before(model, opt, batches):
    opt.zero_grad()
    for inputs, labels in batches:
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        opt.zero_grad()


@train.alternative
def lets_the_model_clear(model, opt, batches):
    for inputs, labels in batches:
        loss = F.cross_entropy(model(inputs), labels)
        model.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()


@train.alternative
def never_accumulates(model, opt, batches):
    parameters = list(model.parameters())
    for inputs, labels in batches:
        found = torch.autograd.grad(F.cross_entropy(model(inputs), labels), parameters)
        for parameter, gradient in zip(parameters, found):
            parameter.grad = gradient
        opt.step()


@train.misconception(
    "Nothing clears the gradients, so each step follows the sum over all batches so far. `backward()` adds to "
    "`.grad`; clear it before every backward pass."
)
def never_clears(model, opt, batches):
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
        opt.step()


@train.misconception(
    "You cleared the gradients once, before the loop. From the second batch on they add up again."
)
def clears_once(model, opt, batches):
    opt.zero_grad()
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
        opt.step()


@train.misconception(
    "You cleared between backward and step, so the step finds no gradient. The old ones have to go before the new "
    "one is computed, not after."
)
def clears_before_the_step(model, opt, batches):
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
        opt.zero_grad()
        opt.step()


@train.misconception(
    "You cleared after each step only. The first batch then adds to whatever the code before the call has left."
)
def clears_after_the_step(model, opt, batches):
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
        opt.step()
        opt.zero_grad()


@train.misconception("You step once, at the end. That is one large batch; asked for is a step on each.")
def steps_once(model, opt, batches):
    opt.zero_grad()
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
    opt.step()


@train.misconception(
    "You lowered the learning rate. The curve calms down, and each step still follows the sum over all batches "
    "so far. The cause is in `.grad`."
)
def lowers_the_rate(model, opt, batches):
    for group in opt.param_groups:
        group["lr"] /= 10
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
        opt.step()


# ---- make_optimizer ----------------------------------------------------------------------------------------

make_optimizer = Exercise(
    reference.make_optimizer,
    title="One owner per parameter",
    objective="pitfalls.gradients",
    difficulty=2,
    minutes=6,
    points=1,
    observes=[observe.value(1e-9)],
    hints=(
        "How many optimizers step on the body? And what does an optimizer accept in the place of `parameters()`?",
        "One optimizer, whose parameters come in groups: a list of dicts, each with `params` and, where it "
        "differs from the default, its own `lr`.",
        'Hand over `[{"params": body.parameters()}, {"params": ..., "lr": ...}]` and the default `lr=lr`. Both '
        "heads can be one group: `[*head1.parameters(), *head2.parameters()]`.",
    ),
    why="An optimizer updates what it owns, with the gradient that it finds. If two own the body, it is updated "
    "twice, each time with the sum of the gradients of both losses; nothing is overwritten. Groups give different "
    "settings under one owner, and PyTorch refuses a parameter that stands in two of them.",
)


@make_optimizer.scenario
def owners_and_rates(answer, lr, dim):
    sizes = {"body": (4, dim), "head1": (dim, 2), "head2": (dim, 3)}
    modules = built(lambda: {name: nn.Linear(*size) for name, size in sizes.items()})
    result = answer(*modules.values(), lr)
    found = optimizers_in(result)
    return {
        "optimizers": len(found),
        "learning rates": rates_by_name(found, modules),
        "modules": {name: registered_in(module) for name, module in modules.items()},
    }


@make_optimizer.cases
def _(rng):
    yield case("a rate of 0.5", 0.5, 3)
    yield case("a rate of 0.001", 0.001, 2)


@make_optimizer.alternative
def adds_groups_later(body, head1, head2, lr):
    opt = torch.optim.SGD(body.parameters(), lr=lr, momentum=0.9)
    for head in (head1, head2):
        opt.add_param_group({"params": head.parameters(), "lr": lr * 10})
    return opt


@make_optimizer.alternative
def one_group_per_module(body, head1, head2, lr):
    rates = {body: lr, head1: lr * 10, head2: lr * 10}
    return torch.optim.Adam([{"params": list(m.parameters()), "lr": rate} for m, rate in rates.items()])


@make_optimizer.alternative
def starts_from_the_heads(body, head1, head2, lr):
    heads = nn.ModuleList([head1, head2])
    groups = [{"params": heads.parameters()}, {"params": body.parameters(), "lr": lr}]
    return torch.optim.SGD(groups, lr=10 * lr)


@make_optimizer.misconception(
    "Two optimizers still own the body: it is stepped twice, each time with the sum of both losses' gradients. "
    "One optimizer can treat its parameters in groups."
)
def two_that_share_the_body(body, head1, head2, lr):
    first = torch.optim.AdamW(
        [{"params": body.parameters()}, {"params": head1.parameters(), "lr": 10 * lr}], lr
    )
    second = torch.optim.AdamW(
        [{"params": body.parameters()}, {"params": head2.parameters(), "lr": 10 * lr}], lr
    )
    return first, second


@make_optimizer.misconception(
    "The body stands in two groups, and PyTorch refuses that: every parameter needs one learning rate, not two."
)
def lists_the_body_twice(body, head1, head2, lr):
    groups = [[*body.parameters(), *head.parameters()] for head in (head1, head2)]
    return torch.optim.AdamW([{"params": group, "lr": 10 * lr} for group in groups])


@make_optimizer.misconception(
    "The heads have their owner, and the body has none: it would never be trained. Taking it out of both "
    "optimizers cures the double step by ending the training."
)
def forgets_the_body(body, head1, head2, lr):
    return torch.optim.AdamW([*head1.parameters(), *head2.parameters()], lr=10 * lr)


@make_optimizer.misconception(
    "Everything is owned once, and everything has the same learning rate. A group can have its own."
)
def one_rate_for_all(body, head1, head2, lr):
    return torch.optim.AdamW([*body.parameters(), *head1.parameters(), *head2.parameters()], lr=lr)


@make_optimizer.misconception(
    "The rates are swapped: the heads are the new parts and learn ten times as fast, not the body."
)
def swaps_the_rates(body, head1, head2, lr):
    heads = [*head1.parameters(), *head2.parameters()]
    return torch.optim.AdamW([{"params": body.parameters(), "lr": 10 * lr}, {"params": heads}], lr=lr)


@make_optimizer.misconception("The second head is in no group. It has gradients, and nobody applies them.")
def forgets_the_second_head(body, head1, head2, lr):
    return torch.optim.AdamW(
        [{"params": body.parameters()}, {"params": head1.parameters(), "lr": 10 * lr}], lr=lr
    )


@make_optimizer.misconception(
    "Each parameter is owned once, by one of several optimizers. That works, and then every loop has to call all "
    "of them, in `zero_grad`, in `step` and in the checkpoint. Asked for is one."
)
def one_optimizer_each(body, head1, head2, lr):
    return [
        torch.optim.AdamW(module.parameters(), lr=rate)
        for module, rate in ((body, lr), (head1, 10 * lr), (head2, 10 * lr))
    ]


# ---- shift_ ------------------------------------------------------------------------------------------------

shift_ = Exercise(
    reference.shift_,
    title="Writing to a leaf",
    objective="pitfalls.gradients",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(1e-6)],
    hints=(
        "Autograd refuses to *record* a write to a leaf. How do optimizers write to theirs?",
        "Switch recording off for the write, and write in place, through `w` itself or through something that "
        "shares its version counter. `.data` does not share it.",
        "`with torch.no_grad():`, then an in-place subtraction on `w`, then return `w`.",
    ),
    why="Under `no_grad` nothing is recorded, so the write is allowed; it still moves the version counter of `w`, "
    "and a graph that saved the old numbers refuses to go on. `.data` writes behind the counter's back: the old "
    "graph then computes a wrong gradient, silently.",
)


@shift_.scenario
def shift_under_a_graph(answer, w, d):
    stale = (w * w).sum() if w.requires_grad else None
    returned = answer(w, d)
    return {
        "w": w.detach().clone(),
        "returned": "w itself" if returned is w else _another(returned),
        "w requires grad, is a leaf": (w.requires_grad, w.is_leaf),
        "backward through an older graph": _backward_of(stale, w),
    }


def _another(returned: Any) -> Any:
    return (returned, returned.requires_grad) if isinstance(returned, Tensor) else returned


def _backward_of(graph: Tensor | None, w: Tensor) -> Any:
    if graph is None:
        return "there is none"
    try:
        return torch.autograd.grad(graph, w)[0]
    except RuntimeError:
        return "raises RuntimeError"


@shift_.cases
def _(rng):
    yield case("no gradients required", torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.5]))
    yield case("a weight", torch.tensor([1.0, -2.0]).requires_grad_(), torch.tensor([0.5, 1.0]))
    weight = torch.randn(2, 3, generator=rng).requires_grad_()
    yield case("one shift for each column", weight, torch.randn(3, generator=rng))
    yield case(
        "a weight that lies transposed",
        torch.randn(3, 2, generator=rng).t().requires_grad_(),
        torch.randn(2, 3, generator=rng),
    )


@shift_.alternative
def subtracts_without_recording(w, d):
    with torch.no_grad():
        w.sub_(d)
    return w


@shift_.alternative
def writes_through_detach(w, d):
    w.detach().sub_(d)
    return w


@shift_.alternative
def copies_the_difference_in(w, d):
    with torch.no_grad():
        return w.copy_(w - d)


@shift_.misconception(
    "The write is recorded, and autograd refuses to record a change of a leaf: the leaf is where gradients end, "
    "so it has to stay what it is. Switch recording off for the write."
)
def writes_with_recording(w, d):
    w -= d
    return w


@shift_.misconception(
    "`.data` writes behind autograd's back. The version counter stays, so a graph that saved the old numbers uses "
    "the new ones and returns a wrong gradient, without a word."
)
def writes_through_data(w, d):
    w.data -= d
    return w


@shift_.misconception(
    "You made a new tensor. `w = w - d` gives the name another meaning inside the function; the parameter that the "
    "caller holds is what it was."
)
def makes_a_new_tensor(w, d):
    w = w - d
    return w


@shift_.misconception(
    "You made a new tensor, and under `no_grad` it is not even connected to anything. The parameter is unchanged: "
    "the write has to be in place."
)
def makes_a_new_tensor_without_recording(w, d):
    with torch.no_grad():
        w = w - d
    return w


@shift_.misconception(
    "You switched `requires_grad` off and left it off. The write is allowed then, and the parameter never learns "
    "again."
)
def gives_gradients_up(w, d):
    w.requires_grad_(False)
    w -= d
    return w


@shift_.misconception("You added `d`. The parameter moves against it: w - d.")
def adds_instead(w, d):
    with torch.no_grad():
        w += d
    return w


@shift_.misconception(
    "The parameter is right, and your function returns None. In-place functions return their tensor, so that calls "
    "can be chained."
)
def returns_nothing(w, d):
    with torch.no_grad():
        w -= d


# ---- finetune ----------------------------------------------------------------------------------------------

finetune = Exercise(
    reference.finetune,
    title="The head that nobody owns",
    objective="pitfalls.gradients",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(1e-5, 1e-7)],
    hints=(
        "Go through `opt.param_groups` and compare the objects in it with `model.parameters()`. Which are missing?",
        "The new head's parameters have to get into an optimizer, and the body's momentum, which is in "
        "`opt.state`, has to survive.",
        "`opt.add_param_group({...})` takes a dict with the key `params`. Give it the head's parameters and no "
        "others, and return `opt`.",
    ),
    why="An optimizer holds parameter objects, not a model. Assigning `model.head` puts new objects into the model; "
    "the optimizer keeps those of the old head. Its `zero_grad` does not clear the new ones and its `step` does not "
    "move them. A new group adds them and leaves the state of all others alone.",
)


def steps(model: nn.Module, opt: torch.optim.Optimizer, batches: list) -> None:
    """One step of `opt` on each batch."""
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()


@finetune.scenario
def finetune_after_a_new_head(answer, momentum, n_outputs):
    """Two steps with the old head, then the repair, then two steps with what it returns."""
    generator = torch.Generator().manual_seed(n_outputs)
    batches = labelled_batches([4, 4, 4, 4], generator)
    model = built(classifier)
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
    steps(model, opt, batches[:2])
    model.head = built(lambda: nn.Linear(5, n_outputs))
    without_gradients(model)
    found = optimizers_in(answer(model, opt))
    if len(found) != 1:
        return f"{len(found)} optimizers"
    with torch.enable_grad():
        steps(model, found[0], batches[2:])
    without_gradients(model)
    return {
        "learning rates": rates_by_name(found, {"model": model}),
        "weights two steps later": dict(model.state_dict()),
        "model": registered_in(model),
    }


@finetune.cases
def _(rng):
    with_draws = "a new head of {} outputs, momentum {}"
    for momentum, n_outputs in ((0.0, 3), (0.9, 3), (0.9, 4)):
        yield case(with_draws.format(n_outputs, momentum), momentum, n_outputs)


@finetune.alternative
def exchanges_the_parameters(model, opt):
    opt.param_groups[0]["params"] = list(model.parameters())
    return opt


@finetune.alternative
def carries_the_state_over(model, opt):
    new = type(opt)(model.parameters(), **opt.defaults)
    new.state.update({p: opt.state[p] for p in model.parameters() if p in opt.state})
    return new


@finetune.alternative
def adds_what_is_missing(model, opt):
    owned = {id(p) for group in opt.param_groups for p in group["params"]}
    opt.add_param_group({"params": [p for p in model.parameters() if id(p) not in owned]})
    return opt


@finetune.misconception(
    "The optimizer still holds the old head. Clearing gradients does not change what it owns: the new head gets "
    "gradients, and nobody applies them."
)
def keeps_the_optimizer(model, opt):
    opt.zero_grad()
    model.zero_grad()
    return opt


@finetune.misconception(
    "The new optimizer owns everything and remembers nothing: the momentum of the body was in the old one's state."
)
def starts_afresh(model, opt):
    return torch.optim.SGD(model.parameters(), **opt.defaults)


@finetune.misconception(
    "The new optimizer owns the head alone. The body, which was training, has come to a halt."
)
def trains_the_head_alone(model, opt):
    return torch.optim.SGD(model.head.parameters(), **opt.defaults)


@finetune.misconception(
    "You added all parameters of the model as a second group. Those of the body are owned already, and PyTorch "
    "refuses a parameter in two groups. Add the new ones."
)
def adds_the_whole_model(model, opt):
    opt.add_param_group({"params": model.parameters()})
    return opt


@finetune.misconception(
    "The head is owned now, and you froze the body on the way. That is another experiment; the body was to train on."
)
def freezes_the_body(model, opt):
    model.body.requires_grad_(False)
    opt.add_param_group({"params": model.head.parameters()})
    return opt


@finetune.misconception(
    "You returned two optimizers. The loop that calls `step` on one of them trains half of the model."
)
def returns_a_second_one(model, opt):
    return opt, torch.optim.SGD(model.head.parameters(), **opt.defaults)


# ---- total_loss --------------------------------------------------------------------------------------------

total_loss = Exercise(
    reference.total_loss,
    title="The losses that are only shown",
    objective="pitfalls.gradients",
    difficulty=1,
    minutes=4,
    points=1,
    observes=[observe.value(1e-5, 1e-7)],
    hints=(
        "Look at the `grad_fn` of `torch.tensor(aux)`. Where does it lead?",
        "Add the tensors themselves, so that the sum hangs on their graphs. Think of the empty list, too.",
        "Python's `sum(aux)` adds tensors and gives 0 for an empty list. Times `weight`, plus `main`.",
    ),
    why="`torch.tensor(...)` makes a new leaf out of numbers; where they came from is forgotten. `sum` and "
    "`torch.stack` are operations, so the graph goes on through them. The value is the same either way, which is "
    "why the log never shows the difference.",
)


@total_loss.scenario
def loss_and_gradient(answer, w, factors, weight):
    """`main` is (w - 1)^2 and each auxiliary loss is a factor times w: what is the gradient of w?"""
    leaf = torch.tensor(w, requires_grad=True)
    main = (leaf - 1) ** 2
    kept = main.item()
    loss = answer(main, [leaf * factor for factor in factors], weight)
    if not isinstance(loss, Tensor) or loss.dim():
        return loss
    gradient = torch.autograd.grad(loss, leaf, allow_unused=True)[0] if loss.requires_grad else None
    return {"loss": loss.item(), "gradient of w": gradient, "main is unchanged": main.item() == kept}


@total_loss.cases
def _(rng):
    yield case("one auxiliary loss", 3.0, (10.0,), 1.0)
    yield case("two of them", 3.0, (10.0, 20.0), 1.0)
    yield case("a small weight", -1.0, (10.0, 20.0, -5.0), 0.25)
    yield case("none", 2.0, (), 0.5)


@total_loss.alternative
def stacks_them(main, aux, weight):
    return main + weight * torch.stack(aux).sum() if len(aux) else main


@total_loss.alternative
def adds_one_by_one(main, aux, weight):
    for loss in aux:
        main = main + weight * loss
    return main


@total_loss.alternative
def starts_from_zeros(main, aux, weight):
    return torch.stack([main, *(weight * loss for loss in aux)]).sum()


@total_loss.misconception(
    "The auxiliary losses became plain numbers, through `torch.tensor(...)`, `.item()` or `detach()`. The value is "
    "right, and no gradient flows through them: they are shown and never minimized."
)
def copies_the_numbers(main, aux, weight):
    return main + weight * torch.tensor([loss.item() for loss in aux]).sum()


@total_loss.misconception(
    "You left the auxiliary losses out. Now nothing pretends to train them, and nothing does."
)
def leaves_them_out(main, aux, weight):
    return main * 1


@total_loss.misconception("You took their mean. Asked for is the sum: each loss counts with the full weight.")
def takes_the_mean(main, aux, weight):
    return main + weight * sum(aux) / max(len(aux), 1)


@total_loss.misconception("The weight is missing: the auxiliary losses count as much as the main one.")
def forgets_the_weight(main, aux, weight):
    return main + sum(aux)


@total_loss.misconception("The weight went to the main loss as well. It belongs to the auxiliary ones.")
def weighs_everything(main, aux, weight):
    return weight * (main + sum(aux))


@total_loss.misconception(
    "You added to `main` in place. The caller's tensor, which goes into the log as the main loss, now holds the sum."
)
def adds_to_main(main, aux, weight):
    for loss in aux:
        main += weight * loss
    return main


# ---- masked_tanh -------------------------------------------------------------------------------------------

masked_tanh = Exercise(
    reference.masked_tanh,
    title="Editing what backward needs",
    objective="pitfalls.gradients",
    difficulty=2,
    minutes=6,
    points=2,
    observes=[observe.value(1e-6, 1e-7), observe.gradients()],
    hints=(
        "The derivative of tanh is 1 - tanh². Which tensor does its backward pass keep to compute that?",
        "Leave the output of `tanh` alone, and make a new tensor with the zeros in it.",
        "`masked_fill` without the underscore returns a new tensor: call it on the output, with `blocked` and 0.",
    ),
    why="tanh saves its *output*, since the derivative is 1 - output². Writing zeros into it changes what the "
    "backward pass reads, and the version counter tells. After `x * 2` the same write is legal: that product saved "
    "nothing. Writing into a new tensor is always legal, and `.data` only silences the alarm.",
)


@masked_tanh.cases
def _(rng):
    yield case("one element blocked", torch.tensor([0.5, -1.0]), torch.tensor([False, True]))
    x = torch.tensor([0.5, -1.0, 2.0]).requires_grad_()
    yield case("with gradients", x, torch.tensor([False, True, False]))
    x = torch.randn(2, 3, generator=rng).requires_grad_()
    yield case("a matrix", x, torch.rand(2, 3, generator=rng) > 0.5)
    x = torch.randn(4, 2, generator=rng).t().requires_grad_()
    yield case("a matrix that lies transposed", x, torch.rand(2, 4, generator=rng) > 0.5)
    yield case(
        "nothing blocked", torch.randn(3, generator=rng).requires_grad_(), torch.zeros(3, dtype=torch.bool)
    )
    yield case("all blocked", torch.randn(3, generator=rng).requires_grad_(), torch.ones(3, dtype=torch.bool))


@masked_tanh.alternative
def chooses_with_where(x, blocked):
    return torch.where(blocked, 0.0, x.tanh())


@masked_tanh.alternative
def writes_into_a_clone(x, blocked):
    y = torch.tanh(x).clone()
    y[blocked] = 0
    return y


@masked_tanh.alternative
def blocks_before(x, blocked):
    return torch.tanh(x.masked_fill(blocked, 0))


@masked_tanh.alternative
def multiplies_by_the_mask(x, blocked):
    return torch.tanh(x) * blocked.logical_not()


@masked_tanh.misconception(
    "You wrote into the output of tanh, which its backward pass needs: the derivative is computed from the output. "
    "Autograd noticed by the version counter. Make a new tensor instead."
)
def writes_into_the_output(x, blocked):
    y = torch.tanh(x)
    y[blocked] = 0
    return y


@masked_tanh.misconception(
    "`.data` hides the write from autograd. The backward pass reads your zeros as outputs of tanh, whose derivative "
    "at output 0 is 1: the blocked elements get a gradient as if nothing had been blocked."
)
def writes_behind_autograd(x, blocked):
    y = torch.tanh(x)
    y.data[blocked] = 0
    return y


@masked_tanh.misconception("You left the mask out. The error is gone, and so is what the function was for.")
def leaves_out_the_mask(x, blocked):
    return torch.tanh(x)


@masked_tanh.misconception(
    "You cut the graph. The values are right, and nothing before this function is trained any more."
)
def cuts_the_graph_here(x, blocked):
    return torch.tanh(x).detach().masked_fill(blocked, 0)


@masked_tanh.misconception("The mask is turned around: blocked elements become 0, all others stay.")
def keeps_the_blocked(x, blocked):
    return torch.tanh(x).masked_fill(~blocked, 0)


@masked_tanh.misconception(
    "You wrote into `x`. It belongs to the caller; and a leaf that requires gradients refuses the write."
)
def writes_into_x(x, blocked):
    x[blocked] = 0
    return torch.tanh(x)


# ======== ward 3: loop and mode =============================================================================
# ---- predict_batch -----------------------------------------------------------------------------------------

predict_batch = Exercise(
    reference.predict_batch,
    title="Two answers to one question",
    objective="pitfalls.loop",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(1e-5, 1e-6), observe.requires_grad()],
    hints=(
        "There are two switches: one decides how layers behave, the other whether autograd records. Which one does "
        "`no_grad` turn, and which one does `eval()`?",
        "Turn both, and turn the modes back for every submodule by itself: `model.training` is only the flag of "
        "the outermost one, and a frozen layer may be in eval mode on purpose.",
        "Keep `[(m, m.training) for m in model.modules()]` first, and afterwards write each flag back into its "
        "module.",
    ),
    why="`eval()` is about behavior (dropout, normalization), `no_grad()` about recording; neither implies the "
    "other. `model.train()` at the end would switch *every* submodule on, also those that someone froze. Keeping "
    "each flag and writing it back undoes exactly what `eval()` did.",
)


@predict_batch.scenario
def predict_and_look_at_dropout(answer, model, x):
    out = answer(model, x)
    rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    return {"prediction": out, "dropout rates": rates}


@predict_batch.cases
def _(rng):
    def trained(*, mode=True, **layers):
        model = classifier(**layers).train(mode)
        if layers.get("norm"):
            model.norm.running_mean.copy_(torch.randn(5, generator=rng))
        return model

    x = torch.randn(2, 4, generator=rng)
    yield case("no special layers", trained(), x.clone())
    yield case("with dropout", trained(dropout=0.5), x.clone())
    yield case("with batch norm", trained(norm=True), x.clone())
    frozen = trained(norm=True, dropout=0.5)
    frozen.norm.eval()
    yield case("with a batch norm that is frozen", frozen, x.clone())
    yield case("in eval mode already", trained(norm=True, mode=False), x.clone())
    yield case("inputs that lie transposed", trained(dropout=0.2), torch.randn(4, 3, generator=rng).t())


@predict_batch.alternative
def predicts_with_a_copy(model, x):
    with torch.inference_mode():
        return copy.deepcopy(model).eval()(x)


@predict_batch.alternative
def restores_in_the_end(model, x):
    in_training = [module for module in model.modules() if module.training]
    model.train(False)
    try:
        return model(x).detach()
    finally:
        for module in in_training:
            module.training = True


@predict_batch.alternative
@torch.no_grad()
def keeps_a_dict(model, x):
    modes = {module: module.training for module in model.modules()}
    out = model.eval()(x)
    for module in modes:
        module.training = modes[module]
    return out


@predict_batch.misconception(
    "`no_grad` stops the recording and nothing else. Dropout still drops, and batch norm uses the statistics of "
    "this batch and adds them to the running ones: the model is changed by being asked."
)
def forgets_eval(model, x):
    with torch.no_grad():
        return model(x)


@predict_batch.misconception(
    "`eval()` changes the behavior of layers and leaves autograd on: the result carries a graph, and whoever keeps "
    "it keeps all activations."
)
def forgets_no_grad(model, x):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    out = model(x)
    for module, mode in modes:
        module.training = mode
    return out


@predict_batch.misconception(
    "The model stays in eval mode. The next training step runs without dropout and with frozen statistics."
)
def never_goes_back(model, x):
    model.eval()
    with torch.no_grad():
        return model(x)


@predict_batch.misconception(
    "`model.train()` at the end switches everything on, also a model that was in eval mode, and a layer that "
    "somebody froze."
)
def always_trains_afterwards(model, x):
    model.eval()
    with torch.no_grad():
        out = model(x)
    model.train()
    return out


@predict_batch.misconception(
    "You keep one flag, that of the outermost module, and give it to all. A layer that was frozen in eval mode is "
    "switched on with the rest."
)
def keeps_one_flag(model, x):
    mode = model.training
    model.eval()
    with torch.no_grad():
        out = model(x)
    model.train(mode)
    return out


@predict_batch.misconception(
    "You set the dropout rates to 0. The prediction repeats, and so will the training: dropout is gone for good."
)
def removes_dropout(model, x):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        return model(x)


@predict_batch.misconception(
    "`torch.set_grad_enabled(False)`, called as a function, is global and stays. After the first prediction nothing "
    "in the process trains any more; use `with`."
)
def switches_recording_off_for_good(model, x):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    torch.set_grad_enabled(False)
    out = model(x)
    for module, mode in modes:
        module.training = mode
    return out


# ---- Net ---------------------------------------------------------------------------------------------------

Net = Exercise(
    reference.Net,
    title="The dropout that never sleeps",
    objective="pitfalls.loop",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value(1e-5, 1e-6)],
    hints=(
        "`net.eval()` sets flags on modules. Does `F.dropout` look at one?",
        "Either tell the function which mode the module is in, or let a module do the dropping, made once, in "
        "`__init__`.",
        "`F.dropout` takes `training=`; inside a module the flag is `self.training`.",
    ),
    why="A function has no mode: `F.dropout` has `training=True` as its default and knows no module. "
    "`nn.Dropout` is a module, registered in `__init__`, so `net.eval()` reaches it. The same trap waits in "
    "`F.scaled_dot_product_attention(dropout_p=...)`, which drops in every mode.",
)


@Net.scenario
def look_at_both_modes(answer, n_rows, transposed):
    """Weights are set so that output 0 is input 0, output 1 is minus input 1, and output 2 the sum of all."""
    with drawing_allowed(lambda: nn.Linear(8, 3)):
        net = answer()
    if not isinstance(net, nn.Module):
        return "no module"
    return built(lambda: looked_at(lambda: _modes_of(net, n_rows, transposed)))


def _modes_of(net: nn.Module, n_rows: int, transposed: bool) -> dict[str, Any]:
    with torch.no_grad():
        net.linear.weight.copy_(torch.stack([torch.eye(8)[0], -torch.eye(8)[1], torch.ones(8)]))
        net.linear.bias.zero_()
    ones = torch.ones(8, n_rows).t() if transposed else torch.ones(n_rows, 8)
    made = registered_in(net)
    net.train()
    first, second = net(ones).detach(), net(ones).detach()
    net.eval()
    return {
        "made": made,
        "training: values of one input": sorted(set(first[:, 0].tolist())),
        "training: about half are dropped": bool(0.4 < (first[:, 0] == 0).float().mean() < 0.6),
        "training: inputs are dropped one by one": len(set(first[:, 2].tolist())) > 2,
        "training: two calls are equal": torch.equal(first, second),
        "eval: first call": net(ones[:3]).detach(),
        "eval: second call": net(ones[:3]).detach(),
        "left behind": registered_in(net),
    }


@Net.cases
def _(rng):
    yield case("a thousand rows of ones", 1000, False)
    yield case("rows that lie transposed", 1500, True)


@Net.alternative
class UsesALayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(self.drop(x))


@Net.alternative
class DropsByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        if self.training:
            x = x * (torch.rand(x.shape) < 0.5) * 2
        return self.linear(x)


@Net.alternative
class AsksTheMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(F.dropout(x) if self.training else x)


@Net.misconception(
    "Dropout is still active after `net.eval()`. `F.dropout` drops unless it is told not to, and an `nn.Dropout` "
    "that is made anew in `forward` is in training mode and belongs to no one. Nothing connects it to the flag."
)
class StillRandom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(F.dropout(x, 0.5))


@Net.misconception(
    "You removed dropout, by its line or by `training=False`. Evaluation is calm now, and training has lost what "
    "dropout was there for."
)
class WithoutDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(F.dropout(x, 0.5, training=False))


@Net.misconception(
    "The dropout sits on the output now: it follows the mode, and drops logits instead of inputs."
)
class DropsTheOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return F.dropout(self.linear(x), 0.5, training=self.training)


@Net.misconception(
    "Your mask drops half of the inputs and does not double the others. In training the sums are then half as "
    "large as in evaluation, and the next layer learns numbers that it never sees again."
)
class DropsWithoutScaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        if self.training:
            x = x * (torch.rand(x.shape) < 0.5)
        return self.linear(x)


@Net.misconception("The flag is turned around: your dropout works in evaluation and sleeps in training.")
class DropsInEvaluation(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(F.dropout(x, 0.5, training=not self.training))


@Net.misconception(
    "The rate is not the one that was there: half of the inputs are dropped, no more and no fewer."
)
class DropsLess(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(F.dropout(x, 0.1, training=self.training))


# ---- accumulate --------------------------------------------------------------------------------------------

accumulate = Exercise(
    reference.accumulate,
    title="Normalized by a handful",
    objective="pitfalls.loop",
    difficulty=3,
    minutes=15,
    points=3,
    observes=[observe.value()],
    hints=(
        "Two things make the sum of the parts differ from the whole: by what is each micro-batch normalized, and "
        "how much does each count?",
        "Put the `nn.BatchNorm1d` layers that are in training mode into eval mode, and those only. Weigh every "
        "micro-batch by its share of the examples. Then put the modes back.",
        'Add up the sizes first. Per micro-batch, take the cross-entropy with `reduction="sum"`, divide it by that '
        "total, and call `backward()`.",
    ),
    why="In training mode batch norm makes an example's output depend on its neighbors, so cutting the batch changes "
    "the function itself; with running statistics each example stands alone, and gradients add up exactly. Only the "
    "norm layers may be switched: `model.eval()` would take dropout along. SyncBatchNorm couples *processes*, not "
    "micro-batches.",
)


@accumulate.scenario
def accumulate_and_look_at_layers(answer, model, microbatches):
    answer(model, microbatches)
    return [type(module).__name__ for module in model.modules()]


@accumulate.cases
def _(rng):
    def patient(sizes, **layers):
        model = classifier(norm=True, **layers).double()
        model.norm.running_mean.copy_(torch.randn(5, generator=rng))
        model.norm.running_var.copy_(torch.rand(5, generator=rng) + 0.5)
        return model, [(x.double(), y) for x, y in labelled_batches(sizes, rng)]

    yield case("one micro-batch", *patient([4]))
    yield case("two of the same size", *patient([3, 3]))
    yield case("a smaller last one", *patient([4, 4, 2]))
    model, microbatches = patient([3, 2])
    F.cross_entropy(model.eval()(microbatches[0][0]), microbatches[0][1]).backward()
    yield case("gradients from before", model.train(), microbatches)
    model, microbatches = patient([3, 2])
    model.norm.eval()
    yield case("a norm that is frozen already", model, microbatches)
    yield case("with dropout", *patient([4, 2], dropout=0.5))
    model, microbatches = patient([3, 2])
    yield case("inputs that lie transposed", model, [(x.t().contiguous().t(), y) for x, y in microbatches])


@accumulate.alternative
def weighs_the_means(model, microbatches):
    sizes = [len(labels) for _, labels in microbatches]
    norms = {m: m.training for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    for norm in norms:
        norm.train(False)
    for parameter in model.parameters():
        parameter.grad = None
    for size, (inputs, labels) in zip(sizes, microbatches):
        loss = F.cross_entropy(model(inputs), labels)
        (loss * size / sum(sizes)).backward()
    for norm, mode in norms.items():
        norm.train(mode)


@accumulate.alternative
def divides_at_the_end(model, microbatches):
    switched = [m for m in model.modules() if type(m) is nn.BatchNorm1d and m.training]
    model.zero_grad()
    for module in switched:
        module.training = False
    for inputs, labels in microbatches:
        F.cross_entropy(model(inputs), labels, reduction="sum").backward()
    for parameter in model.parameters():
        parameter.grad /= sum(len(labels) for _, labels in microbatches)
    for module in switched:
        module.training = True


@accumulate.alternative
def adds_the_losses_first(model, microbatches):
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d) and m.training]
    for norm in norms:
        norm.eval()
    losses = [F.cross_entropy(model(inputs), labels, reduction="none") for inputs, labels in microbatches]
    model.zero_grad()
    torch.cat(losses).mean().backward()
    for norm in norms:
        norm.train()


def backward_in_parts(model, microbatches, weight=None):
    """Shared by several misconceptions: mean losses, weighted equally unless told otherwise."""
    for inputs, labels in microbatches:
        share = 1 / len(microbatches) if weight is None else weight(labels)
        (F.cross_entropy(model(inputs), labels) * share).backward()


@accumulate.misconception(
    "The norm layers are in training mode: each micro-batch is normalized by its own few examples and moves the "
    "running statistics, as often as there are micro-batches. And a smaller micro-batch counts as much as a full one."
)
def leaves_the_norms_on(model, microbatches):
    model.zero_grad()
    backward_in_parts(model, microbatches)


@accumulate.misconception(
    "SyncBatchNorm shares statistics between *processes*. In one process it changes nothing: each micro-batch is "
    "still normalized by itself. And you have replaced the model's layers."
)
def converts_to_sync_norm(model, microbatches):
    nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model.zero_grad()
    backward_in_parts(model, microbatches)


@accumulate.misconception(
    "Momentum 0 keeps the running statistics as they are, and does not use them: in training mode every micro-batch "
    "is still normalized by its own mean and variance."
)
def sets_the_momentum_to_zero(model, microbatches):
    total = sum(len(labels) for _, labels in microbatches)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    model.zero_grad()
    backward_in_parts(model, microbatches, lambda labels: len(labels) / total)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


@accumulate.misconception(
    "`model.eval()` switches dropout off together with the norms. The gradients add up, and training has lost its "
    "dropout."
)
def switches_everything_off(model, microbatches):
    total = sum(len(labels) for _, labels in microbatches)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    model.zero_grad()
    backward_in_parts(model, microbatches, lambda labels: len(labels) / total)
    for module, mode in modes:
        module.training = mode


@accumulate.misconception(
    "Every micro-batch counts the same. If the last one is smaller, its examples count for more than the others: "
    "weigh by size."
)
def weighs_equally(model, microbatches):
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d) and m.training]
    for norm in norms:
        norm.eval()
    model.zero_grad()
    backward_in_parts(model, microbatches)
    for norm in norms:
        norm.train()


@accumulate.misconception(
    "The means are added and never divided: the gradient is that of a mean, times the number of micro-batches."
)
def adds_the_means(model, microbatches):
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d) and m.training]
    for norm in norms:
        norm.eval()
    model.zero_grad()
    backward_in_parts(model, microbatches, lambda labels: 1)
    for norm in norms:
        norm.train()


@accumulate.misconception(
    "The norm layers stay in eval mode: their statistics are frozen from now on, for all later training."
)
def leaves_the_norms_off(model, microbatches):
    total = sum(len(labels) for _, labels in microbatches)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    model.zero_grad()
    backward_in_parts(model, microbatches, lambda labels: len(labels) / total)


@accumulate.misconception(
    "`norm.train()` at the end switches on every norm, also one that was frozen on purpose before the call."
)
def switches_all_norms_on(model, microbatches):
    total = sum(len(labels) for _, labels in microbatches)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    for norm in norms:
        norm.eval()
    model.zero_grad()
    backward_in_parts(model, microbatches, lambda labels: len(labels) / total)
    for norm in norms:
        norm.train()


@accumulate.misconception(
    "Gradients from before are still there, and yours are added to them. Clear them first."
)
def keeps_old_gradients(model, microbatches):
    total = sum(len(labels) for _, labels in microbatches)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d) and m.training]
    for norm in norms:
        norm.eval()
    backward_in_parts(model, microbatches, lambda labels: len(labels) / total)
    for norm in norms:
        norm.train()


# ---- loss_from_logits --------------------------------------------------------------------------------------

loss_from_logits = Exercise(
    reference.loss_from_logits,
    title="A loss with a floor",
    objective="pitfalls.loop",
    difficulty=1,
    minutes=4,
    points=1,
    observes=[observe.value(1e-5, 1e-6), observe.gradients()],
    hints=(
        "What does `F.cross_entropy` expect: probabilities or logits? What is its smallest value if it is given "
        "numbers between 0 and 1?",
        "Give it the logits as they are. Any route over `softmax` and `log` has to survive a probability that "
        "rounds to 0.",
        "One call with two arguments is all there is. By hand: `logsumexp` over the classes, minus the logit of the "
        "right class, then the mean.",
    ),
    why="`F.cross_entropy` contains the softmax. Given probabilities it can't get below ln(e + C - 1) - 1 for C "
    "classes, although the predictions are perfect: a floor that identifies the bug. It works with logsumexp inside, "
    "which subtracts the maximum first, so logits of 200 do no harm; `log(softmax(x))` takes the logarithm of 0.",
)


@loss_from_logits.cases
def _(rng):
    yield case("right and confident", torch.tensor([[100.0, -100.0, -100.0]]), torch.tensor([0]))
    yield case("wrong and confident", torch.tensor([[200.0, -200.0]]).requires_grad_(), torch.tensor([1]))
    logits = torch.randn(4, 3, generator=rng).requires_grad_()
    yield case("four examples", logits, torch.tensor([2, 0, 1, 1]))
    logits = (torch.randn(3, 5, generator=rng) * 3).t().requires_grad_()
    yield case("logits that lie transposed", logits, torch.tensor([2, 0, 1, 1, 2]))


@loss_from_logits.alternative
def takes_the_log_softmax(logits, y):
    return F.nll_loss(F.log_softmax(logits, dim=1), y)


@loss_from_logits.alternative
def subtracts_from_logsumexp(logits, y):
    return (logits.logsumexp(dim=1) - logits.gather(1, y.unsqueeze(1)).squeeze(1)).mean()


@loss_from_logits.alternative
def uses_one_hot_targets(logits, y):
    return F.cross_entropy(logits, F.one_hot(y, logits.size(1)).to(logits.dtype))


@loss_from_logits.misconception(
    "You applied a softmax before `F.cross_entropy`, which applies one itself. With numbers between 0 and 1 as "
    "logits the loss of a perfect prediction stays far above 0."
)
def applies_softmax_twice(logits, y):
    return F.cross_entropy(logits.softmax(dim=1), y)


@loss_from_logits.misconception(
    "`F.nll_loss` expects logarithms of probabilities. Given raw logits it returns minus the logit of the right "
    "class, which has no lower bound."
)
def gives_logits_to_nll(logits, y):
    return F.nll_loss(logits, y)


@loss_from_logits.misconception(
    "`log(softmax(x))` takes the logarithm of a probability that has rounded to 0: the loss is infinite and the "
    "gradient NaN. `log_softmax` never forms that 0."
)
def takes_the_log_of_softmax(logits, y):
    return F.nll_loss(logits.softmax(dim=1).log(), y)


@loss_from_logits.misconception(
    "A clamp keeps the logarithm finite, and kills the gradient: an example that is wrong with confidence, and "
    "should move most, does not move at all."
)
def clamps_the_probability(logits, y):
    return F.nll_loss(logits.softmax(dim=1).clamp(min=1e-9).log(), y)


@loss_from_logits.misconception(
    "You applied a sigmoid before `F.cross_entropy`. Like a softmax it leaves numbers between 0 and 1, and the loss "
    "gets a floor."
)
def applies_a_sigmoid(logits, y):
    return F.cross_entropy(logits.sigmoid(), y)


@loss_from_logits.misconception(
    "You took the binary loss of each class. It asks one yes-or-no question per class; classes that exclude each "
    "other are one question."
)
def asks_each_class(logits, y):
    target = F.one_hot(y, logits.size(1)).to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, target)


@loss_from_logits.misconception("You added the losses up. The mean does not grow with the batch.")
def adds_the_losses_up(logits, y):
    return F.cross_entropy(logits, y, reduction="sum")


# ---- run_epochs --------------------------------------------------------------------------------------------

run_epochs = Exercise(
    reference.run_epochs,
    title="The schedule that ran away",
    objective="pitfalls.loop",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value(1e-6, 1e-9)],
    hints=(
        "The scheduler counts its own `step()` calls. What was it told that one call means?",
        "One call for each epoch, after the last batch of it, so that the first epoch still uses the initial rate.",
        "`sched.step()` belongs behind the inner loop, with the indentation of that loop.",
    ),
    why="`StepLR(opt, step_size=2)` or `CosineAnnealingLR(opt, T_max=epochs)` count calls of `step()`; whether "
    "a call "
    "is a batch or an epoch is a convention between two lines of your code. Print the sequence of learning rates "
    "once, and compare it with what you meant.",
)


@run_epochs.scenario
def rates_and_weights(answer, epochs, sizes, schedule):
    generator = torch.Generator().manual_seed(len(sizes))
    model = built(lambda: classifier().double())
    opt = LoggingSGD(model.parameters(), lr=0.5)
    sched = SCHEDULES[schedule](opt)
    batches = [(x.double(), y) for x, y in labelled_batches(sizes, generator)]
    answer(model, opt, sched, batches, epochs)
    without_gradients(model)
    return {
        "learning rates": opt.rates,
        "epochs that sched counted": sched.last_epoch,
        "weights": dict(model.state_dict()),
        "model": registered_in(model),
    }


SCHEDULES = {
    "a tenth every second epoch": lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.1),
    "a cosine over 4 epochs": lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4),
}


@run_epochs.cases
def _(rng):
    step, cosine = SCHEDULES
    yield case("two epochs of three batches", 2, (2, 2, 2), step)
    yield case("three epochs of two batches", 3, (3, 1), step)
    yield case("a cosine", 4, (2, 3), cosine)
    yield case("one epoch", 1, (2, 2, 2), step)


def step_on_each(model, opt, batches):
    """Shared by several answers: one step per batch, gradients cleared before each."""
    for inputs, labels in batches:
        opt.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        opt.step()


@run_epochs.alternative
def counts_epochs(model, opt, sched, batches, epochs):
    epoch = 0
    while epoch < epochs:
        for inputs, labels in batches:
            loss = F.cross_entropy(model(inputs), labels)
            model.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        epoch += 1


@run_epochs.alternative
def steps_after_the_last_batch(model, opt, sched, batches, epochs):
    for _ in range(epochs):
        for position, (inputs, labels) in enumerate(batches, start=1):
            opt.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            opt.step()
            if position == len(batches):
                sched.step()


@run_epochs.alternative
def trains_with_a_helper(model, opt, sched, batches, epochs):
    for _ in range(epochs):
        step_on_each(model, opt, batches)
        sched.step()


@run_epochs.misconception(
    "The scheduler steps after every batch. It was built to count epochs, so it is through with its schedule when "
    "the training has hardly begun."
)
def steps_per_batch(model, opt, sched, batches, epochs):
    for _ in range(epochs):
        for inputs, labels in batches:
            opt.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            opt.step()
            sched.step()


@run_epochs.misconception(
    "The scheduler never steps. A learning rate that stays where it is does not collapse, and the schedule is gone."
)
def never_steps_it(model, opt, sched, batches, epochs):
    for _ in range(epochs):
        step_on_each(model, opt, batches)


@run_epochs.misconception(
    "The scheduler steps at the beginning of an epoch, so the first value of the schedule is skipped: the first "
    "epoch already uses the second."
)
def steps_before_the_epoch(model, opt, sched, batches, epochs):
    for _ in range(epochs):
        sched.step()
        step_on_each(model, opt, batches)


@run_epochs.misconception(
    "The scheduler steps once, at the very end, when no step of the optimizer is left to use it."
)
def steps_at_the_very_end(model, opt, sched, batches, epochs):
    for _ in range(epochs):
        step_on_each(model, opt, batches)
    sched.step()


@run_epochs.misconception(
    "The schedule is right, and gradients are cleared once per epoch: within an epoch every step follows the sum "
    "over all batches so far."
)
def clears_once_per_epoch(model, opt, sched, batches, epochs):
    for _ in range(epochs):
        opt.zero_grad()
        for inputs, labels in batches:
            F.cross_entropy(model(inputs), labels).backward()
            opt.step()
        sched.step()


# ---- train_through_nan -------------------------------------------------------------------------------------

train_through_nan = Exercise(
    reference.train_through_nan,
    title="One bad batch, and never a step again",
    objective="pitfalls.loop",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value()],
    hints=(
        "After a batch is skipped, what is in `.grad` when the next one adds to it? What is NaN plus anything?",
        "Clear the gradients on both paths. And look at the gradients themselves: a finite loss can have a gradient "
        "that is not.",
        "`opt.zero_grad()` at the top of the loop serves both paths. Step only if `isfinite().all()` holds for the "
        "gradient of every parameter.",
    ),
    why="Skipping the step is half of it: the NaN stays in `.grad`, and NaN plus a gradient is NaN, so the check "
    "refuses every later batch as well. Replacing NaN by numbers steps on a gradient that is not one, and moves "
    "the momentum too. This skip is what `GradScaler` does for you, with the clearing still being yours.",
)


@train_through_nan.scenario
def count_and_forget_gradients(answer, model, opt, batches):
    taken: list[int] = []
    steps = answer(model, opt, _counted(batches, taken))
    without_gradients(model)
    return {"steps": steps, "batches looked at": len(taken)}


def _counted(batches: list, taken: list[int]) -> Iterator:
    for position, batch in enumerate(batches):
        taken.append(position)
        yield batch


@train_through_nan.cases
def _(rng):
    def patient(sizes, bad=(), value=float("nan"), **settings):
        model = classifier().double()
        batches = [(x.double(), y) for x, y in labelled_batches(sizes, rng)]
        for position in bad:
            batches[position][0][0, 1] = value
        return model, torch.optim.SGD(model.parameters(), lr=0.5, **settings), batches

    yield case("two good batches", *patient([2, 2]))
    yield case("the first of three is bad", *patient([2, 2, 3], bad=[0]))
    yield case("a bad one in the middle", *patient([2, 2, 3, 2], bad=[1]))
    yield case("with momentum", *patient([2, 2, 2, 2], bad=[2], momentum=0.9))
    yield case("nothing but bad ones", *patient([2, 2], bad=[0, 1]))
    model, opt, batches = patient([2, 2, 2])
    model.act = SignedRoot()
    with torch.no_grad():
        model.body.bias.zero_()
    batches[0][0].zero_()
    opt = torch.optim.SGD([p for name, p in model.named_parameters()], lr=0.1)
    yield case("a finite loss with a gradient that is not", model, opt, batches)
    model, _, batches = patient([3, 2, 2], bad=[1])
    lying_transposed(model.body)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    yield case("a weight that lies transposed", model, opt, batches)


@train_through_nan.alternative
def clears_on_both_paths(model, opt, batches):
    opt.zero_grad()
    done = 0
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
        finite = [bool(torch.isfinite(p.grad).all()) for p in model.parameters()]
        if False not in finite:
            opt.step()
            done = done + 1
        opt.zero_grad()
    return done


@train_through_nan.alternative
def adds_the_gradients_up(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        model.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        total = sum(p.grad.abs().sum() for p in model.parameters())
        if math.isfinite(total):
            steps += 1
            opt.step()
    return steps


@train_through_nan.alternative
def asks_for_the_norm(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        opt.zero_grad(set_to_none=False)
        F.cross_entropy(model(inputs), labels).backward()
        norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()]))
        if norm.isnan() or norm.isinf():
            continue
        opt.step()
        steps += 1
    return steps


@train_through_nan.misconception(
    "The bad batch is skipped, and its gradient stays. NaN plus anything is NaN, so every later batch is refused "
    "too. Clear the gradients also where you skip."
)
def keeps_the_bad_gradient(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
        if all(p.grad.isfinite().all() for p in model.parameters()):
            opt.step()
            opt.zero_grad()
            steps += 1
    return steps


@train_through_nan.misconception(
    "You took the check out. The first bad batch then turns the weights into NaN, and no later batch can help."
)
def takes_the_check_out(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        opt.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        opt.step()
        steps += 1
    return steps


@train_through_nan.misconception(
    "You replaced the NaN by 0 and stepped. The batch was to change nothing; now it moves the weights by what was "
    "left of its gradient, and by the momentum."
)
def replaces_the_nan(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        opt.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        for p in model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0)
        opt.step()
        steps += 1
    return steps


@train_through_nan.misconception(
    "The first bad batch ends the training. It was to be skipped, and the rest trained on."
)
def stops_at_the_first(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        opt.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        if not all(p.grad.isfinite().all() for p in model.parameters()):
            break
        opt.step()
        steps += 1
    return steps


@train_through_nan.misconception(
    "You looked at the loss. It can be finite while the gradient is not: the derivative of a square root at 0, or "
    "a branch that `where` did not take. Look at the gradients."
)
def looks_at_the_loss(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        if loss.isfinite():
            loss.backward()
            opt.step()
            steps += 1
    return steps


@train_through_nan.misconception(
    "You set the bad gradients to zero and stepped all the same. A step on zeros still moves what has momentum; to "
    "change nothing, don't step."
)
def steps_on_zeros(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        opt.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        if not finite:
            for p in model.parameters():
                p.grad.zero_()
        opt.step()
        steps += int(finite)
    return steps


@train_through_nan.misconception(
    "Clipping is no cure: the norm of a gradient with a NaN is NaN, and dividing by it makes all of it NaN. And it "
    "shortens the good steps."
)
def clips_instead(model, opt, batches):
    steps = 0
    for inputs, labels in batches:
        opt.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        opt.step()
        steps += 1
    return steps


# ======== ward 4: data and randomness =======================================================================
# ---- build -------------------------------------------------------------------------------------------------

build = Exercise(
    reference.build,
    title="A seed that decides too little",
    objective="pitfalls.data",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "Two things are random here: the weights, drawn when the layer is made, and the order, drawn when the loader "
        "is iterated, which may be much later. From which generator does each of them draw?",
        "Seed before the layer is made, inside `torch.random.fork_rng()`, and give the loader a generator of its "
        "own, seeded as well.",
        "`with torch.random.fork_rng(devices=[]):` holds `manual_seed` and the layer. The loader gets "
        "`generator=torch.Generator().manual_seed(...)`.",
    ),
    why="Weights are drawn at construction, an order at iteration. One global generator makes the order depend on "
    "everything that draws in between; a generator per loader does not. `torch.Generator()` alone is no random "
    "seed: it always starts from the same constant.",
)


@build.scenario
def build_again_and_again(answer, seed):
    result = answer(seed)
    return built(lambda: looked_at(lambda: _facts_about(answer, seed, result)))


def _facts_about(answer: Callable, seed: int, result: Any) -> dict[str, Any]:
    weights, orders = _first_epochs(result, 2)
    torch.manual_seed(4321)
    torch.rand(7)
    again, orders_again = _first_epochs(answer(seed), 1, noise=True)
    other, orders_of_other = _first_epochs(answer(seed + 1), 1)
    return {
        "weights and bias": [tuple(weight.shape) for weight in weights],
        "numbers of an epoch": sorted(itertools.chain(*orders[0])),
        "sizes of the batches": [len(batch) for batch in orders[0]],
        "shuffled": [*itertools.chain(*orders[0])] != list(range(32)),
        "another order in the second epoch": orders[0] != orders[1],
        "same seed, same weights": all(map(torch.equal, weights, again)),
        "same seed, same order, whatever else draws": orders[0] == orders_again[0],
        "another seed, other weights": not torch.equal(weights[0], other[0]),
        "another seed, another order": orders[0] != orders_of_other[0],
    }


def _first_epochs(result: Any, epochs: int, noise: bool = False) -> tuple[list[Tensor], list[list]]:
    model, loader = result
    if noise:
        torch.rand(3)
    orders = [[_numbers_in(batch) for batch in loader] for _ in range(epochs)]
    return list(model.parameters()), orders


def _numbers_in(batch: Any) -> list[int]:
    """A loader over a TensorDataset packs its one tensor into a list."""
    tensor = batch[0] if isinstance(batch, (list, tuple)) else batch
    return tensor.tolist()


@build.cases
def _(rng):
    yield case("seed 0", 0)
    yield case("seed 7", 7)


@build.alternative
def restores_the_state_by_hand(seed):
    before = torch.get_rng_state()
    torch.manual_seed(seed)
    model = nn.Linear(4, 2)
    torch.set_rng_state(before)
    generator = torch.Generator()
    generator.manual_seed(seed)
    data = list(range(32))
    return model, DataLoader(data, batch_size=8, shuffle=True, generator=generator, collate_fn=torch.tensor)


@build.alternative
def fills_the_weights_itself(seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = nn.Linear(4, 2)
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return model, DataLoader(torch.arange(32), batch_size=8, shuffle=True, generator=generator)


@build.alternative
def gives_the_sampler_a_generator(seed):
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        model = nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.arange(32))
    own = torch.Generator().manual_seed(seed + 100)
    sampler = torch.utils.data.RandomSampler(data, generator=own)
    return model, DataLoader(data, 8, sampler=sampler, generator=own)


@build.misconception(
    "The loader has no generator of its own. It draws its order from the global one when it is iterated, so anything "
    "that draws in between changes it."
)
def leaves_the_loader_to_chance(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Linear(4, 2)
    return model, DataLoader(torch.arange(32), batch_size=8, shuffle=True)


@build.misconception(
    "You seeded after the layer was made. Its weights were drawn at construction, from whatever state there was."
)
def seeds_too_late(seed):
    before = torch.get_rng_state()
    model = nn.Linear(4, 2)
    torch.set_rng_state(before)
    order = torch.Generator().manual_seed(seed)
    return model, DataLoader(torch.arange(32), batch_size=8, shuffle=True, generator=order)


@build.misconception(
    "The generator was never seeded. `torch.Generator()` starts from a constant, so every seed gives the same order."
)
def forgets_to_seed_the_generator(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Linear(4, 2)
    return model, DataLoader(torch.arange(32), batch_size=8, shuffle=True, generator=torch.Generator())


@build.misconception(
    "You switched the shuffling off. An order that is always the same is reproducible, and training on sorted data "
    "is another experiment."
)
def stops_shuffling(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Linear(4, 2)
    return model, DataLoader(torch.arange(32), batch_size=8)


@build.misconception(
    "You shuffled once, beforehand. The order depends on the seed, and it is the same in every epoch."
)
def shuffles_once(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Linear(4, 2)
        order = torch.randperm(32)
    return model, DataLoader(order, batch_size=8, generator=torch.Generator())


@build.misconception(
    "All is decided by the seed, and the global random state of the whole program was overwritten on the way: what "
    "the caller draws next is decided by your seed, too."
)
def reseeds_the_world(seed):
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)
    return nn.Linear(4, 2), DataLoader(torch.arange(32), batch_size=8, shuffle=True, generator=order)


# ---- make_loader -------------------------------------------------------------------------------------------

make_loader = Exercise(
    reference.make_loader,
    title="Workers that can't be hired",
    objective="pitfalls.data",
    difficulty=2,
    minutes=8,
    points=1,
    observes=[observe.value(1e-6)],
    hints=(
        "What has to travel to a worker process that is started afresh, and which of it has no name that the worker "
        "could import?",
        "Take the number of workers from the machine and keep at least one. Collate with a function of the top "
        "level. One more argument keeps workers alive between epochs.",
        "`num_workers=min(2, os.cpu_count() or 1)`, `persistent_workers=True`, and `collate_fn=scaled_batch`.",
    ),
    why="Where workers are spawned (macOS, Windows, Linux from Python 3.14 on), everything they need is pickled, and "
    "a lambda has no name to be pickled by. More workers than cores compete with each other, and each is a process "
    "with memory of its own. For a small data set 0 workers may well be the fastest: measure before you hire.",
)

CORES = 2


@contextmanager
def two_cores() -> Iterator[None]:
    """However a program asks for the number of cores, the answer is two."""
    with ExitStack() as stack:
        for name in ("cpu_count", "process_cpu_count"):
            stack.enter_context(mock.patch.object(os, name, create=True, return_value=CORES))
        cores = set(range(CORES))
        stack.enter_context(mock.patch.object(os, "sched_getaffinity", create=True, return_value=cores))
        yield


@make_loader.scenario
def look_at_the_loader(answer, n_rows):
    """On a machine that says it has two cores; no worker is started."""
    with two_cores():
        loader = answer(Pixels(n_rows))
    return looked_at(lambda: _facts_of_loader(loader))


def _facts_of_loader(loader: DataLoader) -> dict[str, Any]:
    ds = loader.dataset
    return {
        "workers": "1 to 2" if 1 <= loader.num_workers <= CORES else loader.num_workers,
        "stay alive": loader.persistent_workers,
        "can be sent to workers": all(
            map(_has_a_place, (type(ds), loader.collate_fn, loader.worker_init_fn))
        ),
        "batches": [loader.collate_fn([ds[i] for i in batch]) for batch in loader.batch_sampler],
    }


def _has_a_place(function: Any) -> bool:
    """Whether another process finds it by its name: neither a lambda nor made inside a function."""
    if isinstance(function, functools.partial):
        return all(map(_has_a_place, (function.func, *function.args, *function.keywords.values())))
    return "<" not in getattr(function, "__qualname__", type(function).__qualname__)


@make_loader.cases
def _(rng):
    yield case("eight rows", 8)
    yield case("a smaller last batch", 10)


@make_loader.alternative
def hires_one(ds):
    return DataLoader(ds, 4, num_workers=1, collate_fn=scaled_batch, persistent_workers=True)


@make_loader.alternative
def hires_all_cores(ds):
    cores = os.cpu_count()
    batches = torch.utils.data.BatchSampler(range(len(ds)), batch_size=4, drop_last=False)
    return DataLoader(
        ds, batch_sampler=batches, num_workers=cores, collate_fn=scaled_batch, persistent_workers=True
    )


class ScaledBatch:
    """Collates by an object instead of a function."""

    def __call__(self, items):
        return torch.stack(items).to(torch.float32).div(255)


@make_loader.alternative
def collates_by_an_object(ds):
    workers = max(1, min(8, os.cpu_count() or 1))
    return DataLoader(ds, 4, num_workers=workers, collate_fn=ScaledBatch(), persistent_workers=True)


@make_loader.misconception(
    "The collate function has no name that a worker could find: a lambda, or a function inside your function, can't "
    "be pickled. It works where workers are forked, and nowhere else."
)
def keeps_the_lambda(ds):
    return DataLoader(
        ds,
        batch_size=4,
        num_workers=1,
        persistent_workers=True,
        collate_fn=lambda items: torch.stack(items).float() / 255,
    )


@make_loader.misconception(
    "Eight workers, whatever the machine: here they share two cores and compete for them. PyTorch warns."
)
def hires_eight(ds):
    return DataLoader(ds, batch_size=4, num_workers=8, persistent_workers=True, collate_fn=scaled_batch)


@make_loader.misconception(
    "No worker, no trouble, and no loading in parallel. The loader was to have at least one."
)
def hires_nobody(ds):
    return DataLoader(ds, batch_size=4, collate_fn=scaled_batch)


@make_loader.misconception(
    "The workers are dismissed after every epoch and started anew for the next. `persistent_workers=True` keeps them."
)
def dismisses_them(ds):
    return DataLoader(ds, batch_size=4, num_workers=2, collate_fn=scaled_batch)


@make_loader.misconception(
    "You dropped the collate function, and with it the scaling: the batches are uint8 numbers up to 255."
)
def drops_the_scaling(ds):
    return DataLoader(ds, batch_size=4, num_workers=2, persistent_workers=True)


@make_loader.misconception("You shuffled. The rows were to come in order; the repair changes nothing else.")
def shuffles_too(ds):
    own = torch.Generator().manual_seed(0)
    return DataLoader(
        ds, 4, shuffle=True, generator=own, num_workers=1, persistent_workers=True, collate_fn=scaled_batch
    )


@make_loader.misconception(
    "The last, smaller batch is gone: `drop_last` throws its rows away in every epoch."
)
def drops_the_last_batch(ds):
    return DataLoader(ds, 4, drop_last=True, num_workers=1, persistent_workers=True, collate_fn=scaled_batch)


# ---- standardize -------------------------------------------------------------------------------------------

standardize = Exercise(
    reference.standardize,
    title="The data set that drifts",
    objective="pitfalls.data",
    difficulty=1,
    minutes=4,
    points=1,
    observes=[observe.value(1e-6, 1e-7)],
    hints=(
        "`x -= mean` and `x = x - mean` print the same `x`. Which tensor does each of them change?",
        "Compute a new tensor; the batch that came in is somebody else's.",
        "One line without `-=` and `/=`: subtract, then divide, and return the result.",
    ),
    why="`-=` and `/=` write into the tensor that the caller owns. If the data set hands out its own rows, the "
    "second "
    "epoch standardizes what is standardized already. The same line in a module's `forward` edits the batch of every "
    "other branch. The arithmetic operators make new tensors.",
)


@standardize.cases
def _(rng):
    for label, x in (
        ("one row", torch.tensor([[3.0, -2.0]])),
        ("three rows", torch.tensor([[3.0, -2.0], [1.0, 0.0], [-1.0, 4.0]])),
    ):
        yield case(label, x, torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.5]))
    mean, std = torch.randn(3, generator=rng), torch.rand(3, generator=rng) + 0.5
    yield case("three columns", torch.randn(4, 3, generator=rng), mean.clone(), std.clone())
    yield case("a batch that lies transposed", torch.randn(3, 2, generator=rng).t(), mean, std)


@standardize.alternative
def divides_the_new_one(x, mean, std):
    return x.sub(mean).div_(std)


@standardize.alternative
def works_on_a_clone(x, mean, std):
    x = x.clone()
    x -= mean
    x /= std
    return x


@standardize.alternative
def multiplies_by_the_inverse(x, mean, std):
    return x.sub(mean) * std.reciprocal()


@standardize.misconception(
    "You wrote into the caller's batch. The result is right once; in the next epoch the same rows are standardized "
    "again."
)
def edits_the_batch(x, mean, std):
    x -= mean
    x /= std
    return x


@standardize.misconception(
    "The division makes a new tensor, the subtraction does not: the rows of the data set move by the mean every time."
)
def edits_it_by_half(x, mean, std):
    x -= mean
    return x / std


@standardize.misconception(
    "You used the statistics of the batch. Then an example's values depend on its neighbors, and a batch of one "
    "has no "
    "spread at all. Mean and deviation come from the training set."
)
def uses_the_batch(x, mean, std):
    return (x - x.mean(dim=0)) / x.std(dim=0, unbiased=False)


@standardize.misconception(
    "You return the batch as it came. It no longer drifts, and it is no longer standardized."
)
def does_nothing(x, mean, std):
    return x.clone()


@standardize.misconception("You centered the batch and did not scale it.")
def only_centers(x, mean, std):
    return x - mean


@standardize.misconception(
    "You divided before you subtracted: the mean has to go first, since it is not scaled."
)
def divides_first(x, mean, std):
    return x / std - mean


# ---- preview_noise -----------------------------------------------------------------------------------------

preview_noise = Exercise(
    reference.preview_noise,
    title="The preview that freezes the training",
    objective="pitfalls.data",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value()],
    hints=(
        "What does `torch.manual_seed(seed)` do to everybody else who draws from the global generator afterwards?",
        "Draw from a generator that belongs to this function alone.",
        "`torch.Generator().manual_seed(...)` returns one; `torch.randn` takes it as `generator=`.",
    ),
    why="A preview with fixed noise is a good idea, and seeding the global generator for it rewinds the dropout "
    "masks "
    "and the shuffling of the training: every epoch draws the same again. A generator of one's own is local by "
    "construction.",
)


@preview_noise.scenario
def draw_again_and_again(answer, shape, seed):
    noise = answer(shape, seed)
    return built(lambda: looked_at(lambda: _facts_of_noise(answer, shape, seed, noise)))


def _facts_of_noise(answer: Callable, shape: tuple, seed: int, noise: Tensor) -> dict[str, Any]:
    torch.manual_seed(99)
    again, other = answer(shape, seed), answer(shape, seed + 1)
    large = answer((4000,), seed)
    return {
        "shape": noise.shape,
        "dtype": noise.dtype,
        "same seed, same noise": torch.equal(noise, again),
        "another seed, other noise": not torch.equal(noise, other),
        "mean 0": bool(large.mean().abs() < 0.1),
        "deviation 1": bool(0.9 < large.std() < 1.1),
    }


@preview_noise.cases
def _(rng):
    yield case("two numbers", (2,), 0)
    yield case("a matrix", (3, 4), 5)


@preview_noise.alternative
def fills_an_empty_tensor(shape, seed):
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.empty(shape).normal_(generator=generator)


@preview_noise.alternative
def forks_the_global_one(shape, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.randn(*shape)


@preview_noise.alternative
def asks_numpy(shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


@preview_noise.misconception(
    "You seeded the global generator. After every preview all other draws, dropout masks and shuffling, start again "
    "from the same place."
)
def seeds_everybody(shape, seed):
    torch.manual_seed(seed)
    return torch.randn(shape)


@preview_noise.misconception(
    "You took the seed out. The training is free again, and the preview shows other noise each time: two previews "
    "can't be compared. It also moves the training's own random state."
)
def takes_the_seed_out(shape, seed):
    return torch.randn(shape)


@preview_noise.misconception(
    "Your generator was never seeded. `torch.Generator()` starts from a constant: every seed gives the same noise."
)
def forgets_the_seed(shape, seed):
    return torch.randn(shape, generator=torch.Generator())


@preview_noise.misconception(
    "`torch.rand` is uniform between 0 and 1. The noise was standard normal: `randn`."
)
def draws_uniform_noise(shape, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@preview_noise.misconception("Zeros are the same on every call, and they are no noise.")
def returns_zeros(shape, seed):
    return torch.zeros(shape)


# ======== ward 5: memory and syncs ==========================================================================
# ---- train_and_average -------------------------------------------------------------------------------------

train_and_average = Exercise(
    reference.train_and_average,
    title="The loop that asks after every step",
    objective="pitfalls.memory",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(1e-5), observe.host_syncs()],
    hints=(
        "`.item()`, `float(loss)` and an f-string all read a value from the device. How many reads does the result "
        "need?",
        "Keep the losses as tensors, without their graphs, and read once, after the loop.",
        "Append `loss.detach()` to a list. After the loop `torch.stack` them, take the mean, and call `.item()` "
        "once.",
    ),
    why="A GPU works behind the host's back; `.item()` makes the host wait until it has caught up, and nothing new "
    "is queued meanwhile. A detached loss is one number on the device: keep as many as you like. Without `detach()` "
    "each of them would hold the graph of its step.",
)


@train_and_average.scenario
def train_and_watch(answer, model, opt, batches):
    mean = answer(model, opt, batches)
    without_gradients(model)
    return {
        "mean loss": mean.item() if isinstance(mean, np.floating) else mean,
        "graphs of earlier steps are kept": max(model.alive, default=0) > 1,
    }


@train_and_average.cases
def _(rng):
    def patient(sizes, **settings):
        model = WatchedLinear(4, 3)
        return (
            model,
            torch.optim.SGD(model.parameters(), lr=0.5, **settings),
            Batches(labelled_batches(sizes, rng)),
        )

    yield case("one batch", *patient([2]))
    yield case("three batches", *patient([2, 2, 3]))
    yield case("six batches", *patient([3, 2, 4, 2, 2, 1]))
    model, _, batches = patient([2, 2, 2, 2])
    lying_transposed(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield case("a weight that lies transposed, with momentum", model, opt, batches)


@train_and_average.alternative
def adds_detached_losses(model, opt, batches):
    total, count = torch.zeros(()), 0
    for inputs, labels in batches:
        loss = F.cross_entropy(model(inputs), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
        count += 1
    return float(total / count)


@train_and_average.alternative
def adds_without_recording(model, opt, batches):
    total = count = 0
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        with torch.no_grad():
            total, count = total + loss, count + 1
    return (total / count).item()


@train_and_average.alternative
def reads_a_list_once(model, opt, batches):
    kept = []
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        kept.append(loss.detach().reshape(1))
    numbers = torch.cat(kept).tolist()
    return sum(numbers) / len(numbers)


@train_and_average.misconception(
    "You read the loss in every step, with `.item()` or `float()`: the host waits for the device each time. Keep "
    "tensors, and read once at the end."
)
def reads_every_loss(model, opt, batches):
    losses = []
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@train_and_average.misconception(
    "The sum stays on the device, and the loss is still read in every step, to print it: an f-string needs the "
    "number."
)
def prints_every_loss(model, opt, batches):
    losses = []
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        print(f"{loss:.3f}")
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


@train_and_average.misconception(
    "One read, and every graph kept: the losses that you add up or collect still hang on their steps. `detach()` "
    "them."
)
def keeps_every_graph(model, opt, batches):
    total, count = 0, 0
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        total = total + loss
        count += 1
    return (total / count).item()


@train_and_average.misconception(
    "You return the last loss. One read, and the mean, which the log is there for, is gone."
)
def returns_the_last(model, opt, batches):
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
    return loss.item()


@train_and_average.misconception("You return the sum of the losses. It grows with the number of batches.")
def returns_the_sum(model, opt, batches):
    total = torch.zeros(())
    for inputs, labels in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        opt.step()
        total += loss.detach()
    return total.item()


@train_and_average.misconception(
    "The mean is returned and nothing is trained: without `opt.step()` the loop only watches."
)
def only_watches(model, opt, batches):
    losses = []
    for inputs, labels in batches:
        with torch.no_grad():
            losses.append(F.cross_entropy(model(inputs), labels))
    return torch.stack(losses).mean().item()


# ---- make_batches ------------------------------------------------------------------------------------------

make_batches = Exercise(
    reference.make_batches,
    title="Half of a fast copy",
    objective="pitfalls.memory",
    difficulty=1,
    minutes=6,
    points=1,
    observes=[observe.value()],
    hints=(
        "An asynchronous copy needs two things: a request, and memory that the operating system does not move. Where "
        "does each of them stand?",
        "The loader pins, the move asks not to wait.",
        "`DataLoader(..., pin_memory=True)` and `t.to(device, non_blocking=True)` for each tensor of each batch.",
    ),
    why="`non_blocking=True` on ordinary memory still waits while the data is staged; pinned memory with a blocking "
    "move waits as well. And `batch.pin_memory()` in the training loop is itself a copy, made by the one process "
    "that should not wait: the loader pins in a thread of its own. Nothing here overlaps with the GPU's work unless "
    "both are there.",
)


@make_batches.scenario
def batches_for_a_gpu(answer, ds, device):
    """The moves are noted, and those to CUDA go to the meta device instead."""
    with MoveRecorder() as recorder, drawing_allowed(_begin_an_epoch, times=2):
        result = answer(ds, device)
    return looked_at(lambda: _facts_of_moves(result, recorder.moves))


def _begin_an_epoch() -> None:
    iter(DataLoader([0]))


def _facts_of_moves(result: Any, moves: list[tuple[str, str, bool]]) -> dict[str, Any]:
    loader, batches = result
    to_device = [move for move in moves if move[0] in ("to", "cuda")]
    return {
        "batch size": loader.batch_size,
        "the loader pins": loader.pin_memory,
        "pinned in the loop": any(move[0] == "pin_memory" for move in moves),
        "moves": len(to_device),
        "moves that make the host wait": sum(not move[2] for move in to_device),
        "rows of the batches": [[len(tensor) for tensor in batch] for batch in batches],
        "all on the device": all(tensor.is_meta for batch in batches for tensor in batch),
    }


@make_batches.cases
def _(rng):
    def rows(*tensors):
        return torch.utils.data.TensorDataset(*tensors)

    x, y = torch.randn(40, 4, generator=rng), torch.arange(40)
    yield case("one batch", rows(x[:16]), "cuda")
    yield case("three batches of inputs and labels", rows(x, y), "cuda")
    yield case("a torch.device", rows(x[:20], y[:20]), torch.device("cuda"))


@make_batches.alternative
def moves_with_cuda(ds, device):
    loader = DataLoader(ds, 16, shuffle=False, pin_memory=True)
    return loader, [[t.cuda(device, non_blocking=True) for t in batch] for batch in loader]


@make_batches.alternative
def goes_batch_by_batch(ds, device):
    sampler = torch.utils.data.SequentialSampler(ds)
    loader, batches = DataLoader(ds, batch_size=16, sampler=sampler, pin_memory=True), []
    for batch in loader:
        batches.append(list(map(functools.partial(torch.Tensor.to, device=device, non_blocking=True), batch)))
    return loader, batches


@make_batches.misconception(
    "You asked not to wait, and the memory is ordinary: the host waits while the data is staged. The loader has to "
    "pin it."
)
def asks_only(ds, device):
    loader = DataLoader(ds, batch_size=16)
    return loader, [[t.to(device, non_blocking=True) for t in batch] for batch in loader]


@make_batches.misconception(
    "The memory is pinned, and the moves wait all the same: `non_blocking` is False unless you say otherwise."
)
def pins_only(ds, device):
    loader = DataLoader(ds, batch_size=16, pin_memory=True)
    return loader, [[t.to(device) for t in batch] for batch in loader]


@make_batches.misconception(
    "You pin in the loop. That is one more copy, and the training process waits for it. The loader pins in a thread "
    "of its own."
)
def pins_in_the_loop(ds, device):
    loader = DataLoader(ds, batch_size=16)
    return loader, [[t.pin_memory().to(device, non_blocking=True) for t in batch] for batch in loader]


@make_batches.misconception("Neither is there: the memory is ordinary, and each move waits.")
def does_neither(ds, device):
    loader = DataLoader(ds, batch_size=16)
    return loader, [[t.to(device) for t in batch] for batch in loader]


@make_batches.misconception(
    "Nothing is moved. A copy that is not made takes no time, and the model is on another device."
)
def moves_nothing_at_all(ds, device):
    loader = DataLoader(ds, batch_size=16, pin_memory=True)
    return loader, list(loader)


@make_batches.misconception(
    "You moved each batch twice, once for its shape or for a test and once for keeps. One move is enough."
)
def moves_twice(ds, device):
    loader = DataLoader(ds, batch_size=16, pin_memory=True)
    batches = []
    for batch in loader:
        on_device = [t.to(device, non_blocking=True) for t in batch]
        batches.append([t.to(device, non_blocking=True) for t in batch[: len(on_device)]])
    return loader, batches


# ---- running_mean_loss -------------------------------------------------------------------------------------

running_mean_loss = Exercise(
    reference.running_mean_loss,
    title="The mean that remembers everything",
    objective="pitfalls.memory",
    difficulty=2,
    minutes=6,
    points=1,
    observes=[observe.value(1e-6)],
    hints=(
        "What does `total.grad_fn` lead to after ten steps?",
        "Add numbers or detached tensors, one after the other, without collecting the losses first.",
        "In the loop: `total = total + loss.detach()`, and count. The mean is their quotient.",
    ),
    why="A sum of tensors is a node of the graph, and it holds all its terms. Nothing hangs, and nothing is freed: "
    "memory grows with every step until it ends. `.item()` is no cause of leaks, it is a cure, at the price of a "
    "sync. Around a generator `no_grad` would apply to the training inside it as well.",
)


@running_mean_loss.scenario
def mean_of_a_training(answer, numbers):
    """The losses come from a generator, which runs a backward pass for each and counts the graphs that live."""
    watch, alive = GraphWatch(), []
    mean = answer(_losses_of_a_training(numbers, watch, alive))
    alive.append(watch.alive())
    return {
        "mean": as_number(mean),
        "hangs on a graph": isinstance(mean, Tensor) and mean.requires_grad,
        "graphs of earlier steps are kept": max(alive) > 1,
    }


def _losses_of_a_training(numbers: tuple, watch: GraphWatch, alive: list[int]) -> Iterator[Tensor]:
    weight = torch.ones((), requires_grad=True)
    for number in numbers:
        alive.append(watch.alive())
        loss = watch.mark(weight * number)
        loss.backward()
        yield loss
        del loss


@running_mean_loss.cases
def _(rng):
    yield case("one loss", (2.0,))
    yield case("four losses", (4.0, 2.0, 1.0, 0.5))
    yield case("losses below zero", (-1.0, 3.0, -2.0, -4.0, 1.5))


@running_mean_loss.alternative
def adds_python_numbers(losses):
    return np.mean([loss.item() for loss in losses])


@running_mean_loss.alternative
def updates_the_mean(losses):
    mean = torch.zeros(())
    for count, loss in enumerate(losses, start=1):
        mean += (loss.detach() - mean) / count
    return mean


@running_mean_loss.alternative
def stacks_detached_losses(losses):
    return torch.stack([loss.detach() for loss in losses]).mean()


@running_mean_loss.misconception(
    "The running total is a tensor that requires gradients: it holds the graphs of all steps so far, `clone()` or "
    "not. Add `loss.detach()`, or a number."
)
def adds_the_losses(losses):
    total, count = 0, 0
    for loss in losses:
        total = total + loss
        count += 1
    return total / count


@running_mean_loss.misconception(
    "You collected the losses and cut them loose at the end. Until then the list holds every graph: the peak is what "
    "runs out of memory."
)
def detaches_at_the_end(losses):
    kept = list(losses)
    return torch.stack(kept).mean().item()


@running_mean_loss.misconception(
    "Under `no_grad` nothing is recorded, also not in the training that the generator runs while you consume it: its "
    "backward pass finds no graph. Detach each loss instead."
)
def switches_recording_off(losses):
    with torch.no_grad():
        kept = list(losses)
        return torch.stack(kept).mean()


@running_mean_loss.misconception("You return the sum, which grows with the number of steps.")
def returns_the_total(losses):
    return sum(loss.item() for loss in losses)


@running_mean_loss.misconception(
    "You return the last loss. It keeps one graph at most, and it is not the mean."
)
def returns_the_last_loss(losses):
    for loss in losses:
        last = loss.item()
    return last


@running_mean_loss.misconception("You averaged the smallest and the largest. The mean takes all of them.")
def takes_the_middle(losses):
    numbers = [loss.item() for loss in losses]
    return (min(numbers) + max(numbers)) / 2


# ---- run_checkpointed --------------------------------------------------------------------------------------

run_checkpointed = Exercise(
    reference.run_checkpointed,
    title="The block that learns nothing",
    objective="pitfalls.memory",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(1e-5, 1e-6)],
    hints=(
        "The old variant runs the block under `no_grad`, and connects its output to the graph by the *inputs*. "
        "What if "
        "none of them requires gradients?",
        "`checkpoint` has a second variant, which needs no input that requires gradients. It is chosen by an "
        "argument.",
        "Call `checkpoint` with the block, `x`, and `use_reentrant` set to what the warning recommends.",
    ),
    why="The reentrant variant is a custom autograd function: its output requires gradients if an input does, and "
    "parameters inside the block are no inputs. Behind a frozen embedding the whole block loses its gradients, "
    "with a "
    "warning only. The variant without reentry records the block as usual and recomputes what it saved.",
)


@run_checkpointed.scenario
def run_and_go_back(answer, block, x):
    out = answer(block, x)
    if not isinstance(out, Tensor):
        return out
    calls = [block.calls]
    if out.requires_grad:
        out.backward(torch.arange(1.0, out.numel() + 1).view(out.shape))
    calls.append(block.calls)
    found = {**gradients_of(block), "x": None if x.grad is None else x.grad.clone()}
    without_gradients(block)
    x.grad = None
    return {"output": out.detach(), "gradients": found, "runs of the block, before and after backward": calls}


@run_checkpointed.cases
def _(rng):
    x = torch.randn(2, 4, generator=rng)
    yield case("inputs without gradients", CountingBlock(), x)
    yield case("inputs with gradients", CountingBlock(), x.clone().requires_grad_())
    yield case("with dropout", CountingBlock(0.5), torch.randn(3, 4, generator=rng))
    yield case("inputs that lie transposed", CountingBlock(), torch.randn(4, 3, generator=rng).t())


@run_checkpointed.alternative
def wraps_the_call(block, x):
    def run(inputs):
        return block(inputs)

    return checkpoint(run, x, use_reentrant=False, preserve_rng_state=True)


@run_checkpointed.alternative
def gives_it_an_input_with_gradients(block, x):
    entry = x if x.requires_grad else x.detach().requires_grad_()
    return checkpoint(block, entry, use_reentrant=True)


@run_checkpointed.alternative
def closes_over_x(block, x):
    return checkpoint(lambda: block(x), use_reentrant=False)


@run_checkpointed.misconception(
    "You use the reentrant variant, by name or because it is the default: without an input that requires gradients "
    "the output is cut off, and the block learns nothing."
)
def stays_reentrant(block, x):
    return checkpoint(block, x, use_reentrant=True)


@run_checkpointed.misconception(
    "You took the checkpoint away. The gradients are back, and so are all the activations: the memory was the reason "
    "for it."
)
def takes_the_checkpoint_away(block, x):
    return block(x)


@run_checkpointed.misconception(
    "You switched `requires_grad` on for the caller's tensor. The block learns, and the input, which belongs to "
    "somebody else, collects gradients from now on."
)
def changes_the_input(block, x):
    return checkpoint(block, x.requires_grad_(), use_reentrant=True)


@run_checkpointed.misconception(
    "You detached the input. Where it came from layers that are trained, they get no gradient any more."
)
def cuts_the_input_off(block, x):
    return checkpoint(block, x.detach(), use_reentrant=False)


@run_checkpointed.misconception(
    "With `preserve_rng_state=False` the recomputation draws another dropout mask than the forward pass: the "
    "gradient "
    "belongs to a block that never ran."
)
def forgets_the_mask(block, x):
    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)


@run_checkpointed.misconception(
    "Under `no_grad` nothing is saved, and nothing can be recomputed either: there is no backward pass."
)
def records_nothing(block, x):
    with torch.no_grad():
        return block(x)


# ---- seconds_on_device -------------------------------------------------------------------------------------

seconds_on_device = Exercise(
    reference.seconds_on_device,
    title="A clock that stops too early",
    objective="pitfalls.memory",
    difficulty=2,
    minutes=6,
    points=1,
    observes=[observe.value(1e-9, 1e-9)],
    hints=(
        "When does the host read its clock: when the work is done, or when it has been handed over? And is the "
        "device "
        "idle at the start?",
        "Wait for the device at both ends: before the clock is started, and before it is read again.",
        "Four lines: synchronize, read the clock, run the work and synchronize, read the clock again.",
    ),
    why="Launching is fast, and the device works on its own time. Without the second wait you measure the launches; "
    "without the first, also what was in the queue before. On a real GPU: `torch.cuda.synchronize()` or CUDA events, "
    "and a few runs to warm up, since the first call pays for much that later ones don't.",
)


@seconds_on_device.scenario
def time_on_a_simulated_gpu(answer, queued, launches):
    device, runs = SimulatedGPU(), []
    device.launch(queued)

    def work():
        runs.append("work")
        for seconds in launches:
            device.launch(seconds)

    seconds = answer(work, device)
    return {"seconds": seconds, "runs of work": len(runs)}


@seconds_on_device.cases
def _(rng):
    yield case("one launch, an idle device", 0.0, (0.5,))
    yield case("one launch, a busy device", 2.0, (0.5,))
    yield case("three launches", 0.25, (0.125, 0.5, 0.25))
    yield case("work that launches nothing", 1.0, ())


@seconds_on_device.alternative
def subtracts_both_times(work, device):
    times = []
    for step in (lambda: None, work):
        step()
        device.synchronize()
        times.append(device.clock())
    return times[1] - times[0]


@seconds_on_device.alternative
def waits_more_often(work, device):
    device.synchronize()
    device.synchronize()
    begin = device.clock()
    try:
        work()
    finally:
        device.synchronize()
    end = device.clock()
    return end - begin


@seconds_on_device.misconception(
    "Nobody waits for the device before the clock is read for the second time: what you measured is how long the "
    "host takes to hand the work over. A wait at the start alone does not change that."
)
def never_waits(work, device):
    start = device.clock()
    work()
    return device.clock() - start


@seconds_on_device.misconception(
    "You wait at the end only. What was in the queue before is counted as if it belonged to the work."
)
def waits_at_the_end(work, device):
    start = device.clock()
    work()
    device.synchronize()
    return device.clock() - start


@seconds_on_device.misconception(
    "You warmed up inside the measured time, or without saying so: `work` ran twice. Here it runs once."
)
def runs_it_twice(work, device):
    work()
    device.synchronize()
    start = device.clock()
    work()
    device.synchronize()
    return device.clock() - start


@seconds_on_device.misconception("The difference is the other way round: the end minus the start.")
def subtracts_backwards(work, device):
    device.synchronize()
    start = device.clock()
    work()
    device.synchronize()
    return start - device.clock()


@seconds_on_device.misconception(
    "You waited for the device and left the work out: nothing was launched between the two readings."
)
def never_works(work, device):
    device.synchronize()
    start = device.clock()
    device.synchronize()
    return device.clock() - start


# ======== ward 6: precision =================================================================================
# ---- amp_config --------------------------------------------------------------------------------------------

amp_config = Exercise(
    reference.amp_config,
    title="Half precision on paper",
    objective="pitfalls.precision",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value()],
    hints=(
        "There are three kinds of machine: a CPU, a GPU with bfloat16, a GPU without. Which dtype has each of them, "
        "and which of the dtypes needs a scaler?",
        "Ask for the type of the device first; `torch.device(device).type` works for a string and for a device. Then "
        "for bfloat16.",
        "Return early for the CPU. For the GPU: bfloat16 without a scaler if it is there, else float16 with one.",
    ),
    why='`autocast("cuda")` on a machine without CUDA switches itself off with a warning, and the training runs in '
    "float32. bfloat16 has the exponent of float32, so small gradients survive and nothing has to be scaled; float16 "
    "loses what is below about 6e-8, which is what the scaler is for.",
)


@amp_config.cases
def _(rng):
    for device in ("cpu", "cuda", torch.device("cpu"), torch.device("cuda")):
        for bf16_ok in (True, False):
            kind = "a string" if isinstance(device, str) else "a torch.device"
            yield case(f"{device} as {kind}, bf16 {'there' if bf16_ok else 'missing'}", device, bf16_ok)


@amp_config.alternative
def looks_it_up(device, bf16_ok):
    table = {
        ("cpu", True): ("cpu", torch.bfloat16, False),
        ("cpu", False): ("cpu", torch.bfloat16, False),
        ("cuda", True): ("cuda", torch.bfloat16, False),
        ("cuda", False): ("cuda", torch.float16, True),
    }
    return table[str(device), bf16_ok]


@amp_config.alternative
def decides_about_fp16_first(device, bf16_ok):
    kind = getattr(device, "type", device)
    fp16 = kind == "cuda" and not bf16_ok
    return kind, torch.float16 if fp16 else torch.bfloat16, fp16


@amp_config.misconception(
    'You answer "cuda" everywhere. On a machine without CUDA `autocast` then switches itself off, with no more than a '
    "warning, and everything runs in float32."
)
def always_says_cuda(device, bf16_ok):
    return ("cuda", torch.bfloat16, False) if bf16_ok else ("cuda", torch.float16, True)


@amp_config.misconception(
    "float16 without a scaler: gradients below about 6e-8 become 0, and nobody notices. Scale the loss, and step "
    "through the scaler."
)
def forgets_the_scaler(device, bf16_ok):
    kind = torch.device(device).type
    return kind, torch.bfloat16 if bf16_ok or kind == "cpu" else torch.float16, False


@amp_config.misconception(
    "You answer bfloat16 for every card. One that does not have it emulates it slowly or refuses; float16 with a "
    "scaler is for those."
)
def trusts_bf16(device, bf16_ok):
    return torch.device(device).type, torch.bfloat16, False


@amp_config.misconception(
    "A scaler with bfloat16 is not needed: its exponent is that of float32, so small gradients don't vanish."
)
def scales_everything(device, bf16_ok):
    kind = torch.device(device).type
    return kind, torch.bfloat16 if bf16_ok or kind == "cpu" else torch.float16, True


@amp_config.misconception(
    "On the CPU `bf16_ok` does not count, it is about the card: CPU autocast in bfloat16 works everywhere, and "
    "float16 "
    "there would want a scaler."
)
def asks_the_card_about_the_cpu(device, bf16_ok):
    kind = torch.device(device).type
    return (kind, torch.bfloat16, False) if bf16_ok else (kind, torch.float16, True)


@amp_config.misconception(
    "You switched AMP off with float32. That is safe, and it was to be used where it can be."
)
def switches_amp_off(device, bf16_ok):
    return torch.device(device).type, torch.float32, False


@amp_config.misconception(
    'You compared the device with the string "cpu". A `torch.device` never equals a string: ask for its `type`.'
)
def compares_with_a_string(device, bf16_ok):
    if device == "cpu":
        return "cpu", torch.bfloat16, False
    return ("cuda", torch.bfloat16, False) if bf16_ok else ("cuda", torch.float16, True)


# ---- mask_scores -------------------------------------------------------------------------------------------

mask_scores = Exercise(
    reference.mask_scores,
    title="Minus one billion does not fit",
    objective="pitfalls.precision",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value(1e-3, 1e-6)],
    hints=(
        "What is the lowest number of float16? `torch.finfo(torch.float16)` tells. And is -65504 low for float32?",
        "Use a number that every floating dtype has and that is below all scores, or ask the dtype of `scores` "
        "for its "
        "lowest.",
        '`float("-inf")` exists in all of them; `torch.finfo(scores.dtype).min` is the other way. Fill with '
        "`masked_fill`, without the underscore.",
    ),
    why="-1e9 was chosen for float32. float16 ends at -65504, so under autocast the same line raises; and a smaller "
    "constant may not be low enough for the others. Minus infinity fits every dtype, and exp(-inf) is exactly "
    "0. A row "
    "that is blocked altogether would give NaN: there is nothing to attend to.",
)


@mask_scores.scenario
def mask_and_normalize(answer, scores, blocked):
    masked = answer(scores, blocked)
    if not isinstance(masked, Tensor) or masked.shape != scores.shape:
        return masked
    kept = ~blocked.expand(scores.shape)
    return {
        "dtype": masked.dtype,
        "scores that are not blocked": masked[kept].float(),
        "softmax": masked.float().softmax(dim=-1),
    }


@mask_scores.cases
def _(rng):
    for label, scores, dtype in (
        ("float32", [1.0, 2.0, 3.0], torch.float32),
        ("float16", [1.0, 2.0, 3.0], torch.float16),
        ("bfloat16", [1.0, 2.0, 3.0], torch.bfloat16),
        ("low scores in float16", [-30000.0, 0.0, -30001.0], torch.float16),
        ("very low scores in float32", [-2e9, 0.0, -2e9], torch.float32),
    ):
        yield case(label, torch.tensor([scores]).to(dtype), torch.tensor([False, True, False]))
    causal = torch.ones(3, 3, dtype=torch.bool).triu(1)
    yield case("two heads, a causal mask", torch.randn(2, 3, 3, generator=rng), causal)
    yield case(
        "scores that lie transposed", torch.randn(4, 2, generator=rng).t(), torch.tensor([1, 0, 0, 0]).bool()
    )


@mask_scores.alternative
def asks_the_dtype(scores, blocked):
    return scores.masked_fill(blocked, torch.finfo(scores.dtype).min)


@mask_scores.alternative
def chooses_by_where(scores, blocked):
    return torch.where(blocked, torch.tensor(float("-inf"), dtype=scores.dtype), scores)


@mask_scores.alternative
def adds_a_bias(scores, blocked):
    bias = torch.zeros(blocked.shape, dtype=scores.dtype).masked_fill(blocked, -math.inf)
    return scores + bias


@mask_scores.misconception(
    "-1e9 is below the lowest number of float16, -65504, so PyTorch refuses to convert it. Take a number that the "
    "dtype has."
)
def fills_with_a_billion(scores, blocked):
    return scores.masked_fill(blocked, -1e9)


@mask_scores.misconception(
    "-1e4 fits every dtype and is not low enough for all scores: where the others are lower still, the blocked one "
    "wins."
)
def fills_with_ten_thousand(scores, blocked):
    return scores.masked_fill(blocked, -1e4)


@mask_scores.misconception(
    "You took the lowest number of float16 for all. For float32 it is an ordinary number, which real scores can be "
    "below."
)
def takes_the_limit_of_half(scores, blocked):
    return scores.masked_fill(blocked, torch.finfo(torch.float16).min)


@mask_scores.misconception(
    "You converted to float32, where -1e9 fits. The scores take twice the memory from here on, and half "
    "precision was "
    "what the autocast was for."
)
def converts_to_float32(scores, blocked):
    return scores.float().masked_fill(blocked, float("-inf"))


@mask_scores.misconception(
    "You multiplied the blocked scores by 0. A score of 0 is a score like any other: exp(0) is 1."
)
def multiplies_by_zero_here(scores, blocked):
    return scores * ~blocked


@mask_scores.misconception("You left the mask out. Nothing overflows, and nothing is blocked.")
def blocks_nothing(scores, blocked):
    return scores.clone()


@mask_scores.misconception(
    "`masked_fill_`, with the underscore, writes into the caller's scores. They were not to change."
)
def fills_in_place(scores, blocked):
    return scores.masked_fill_(blocked, float("-inf"))


# ======== ward 7: saving ====================================================================================
# ---- RunFile -----------------------------------------------------------------------------------------------

RunFile = Exercise(
    reference.RunFile,
    title="The run that comes back younger",
    objective="pitfalls.saving",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "What besides the weights changes from step to step? Momentum has to be somewhere, and so has the "
        "position in "
        "the schedule.",
        "All three have a `state_dict()` and a `load_state_dict()`. Write the three dicts into one file, and "
        "load them "
        "into the three objects.",
        "Save `{name: thing.state_dict()}` for model, optimizer and scheduler; load each with `load_state_dict`.",
    ),
    why="The optimizer holds momentum or Adam's moments and step counts, the scheduler its position, and both "
    "hold the "
    "learning rate of the moment. Without them the weights continue and the run does not. What is missing here, "
    "because "
    "this run draws nothing at random: the state of the random generators, the scaler, and the position in the data.",
)


@RunFile.scenario
def stop_and_resume(answer, optimizer, schedule, before, after):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "run.pt")
        return looked_at(lambda: _resumed_run(answer, path, optimizer, schedule, before, after))


def _resumed_run(answer, path, optimizer, schedule, before, after) -> dict[str, Any]:
    model, opt, sched = _new_run(optimizer, schedule)
    _train_run(model, opt, sched, before)
    answer(path).save(model, opt, sched)
    saved, after_saving = copy.deepcopy(dict(model.state_dict())), registered_in(model)
    uninterrupted = _train_run(model, opt, sched, after)
    resumed = _new_run(optimizer, schedule)
    answer(path).load(*resumed)
    started, after_loading = dict(resumed[0].state_dict()), registered_in(resumed[0])
    return {
        "a file is there": Path(path).exists(),
        "weights as they were saved": all(torch.equal(saved[name], started[name]) for name in saved),
        "losses of the uninterrupted run": uninterrupted,
        "losses of the resumed run": _train_run(*resumed, after),
        "models": (after_saving, after_loading),
        "learning rate at the end": resumed[1].param_groups[0]["lr"],
    }


OPTIMIZERS = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
}


def _new_run(optimizer: str, schedule: str) -> tuple:
    model = built(lambda: classifier().double())
    opt = OPTIMIZERS[optimizer](model)
    return model, opt, SCHEDULES[schedule](opt)


def _train_run(model, opt, sched, steps: int) -> list[float]:
    losses = []
    for x, y in labelled_batches([4] * steps, torch.Generator().manual_seed(steps)):
        opt.zero_grad()
        loss = F.cross_entropy(model(x.double()), y)
        loss.backward()
        opt.step()
        sched.step()
        losses.append(loss.item())
    return losses


@RunFile.cases
def _(rng):
    step, cosine = SCHEDULES
    yield case("momentum and a cosine", "momentum", cosine, 2, 3)
    yield case("AdamW and steps", "AdamW", step, 3, 4)
    yield case("SGD, which has no state of its own", "SGD", cosine, 1, 3)


@RunFile.alternative
class SavesAList:
    def __init__(self, path):
        self.path = path

    def save(self, *parts):
        torch.save([part.state_dict() for part in parts], self.path)

    def load(self, *parts):
        for part, state in zip(parts, torch.load(self.path)):
            part.load_state_dict(state)


@RunFile.alternative
class PicklesTheStates:
    def __init__(self, path):
        self.path = Path(path)

    def save(self, model, opt, sched):
        states = {
            "weights": model.state_dict(),
            "optimizer": opt.state_dict(),
            "schedule": sched.state_dict(),
        }
        self.path.write_bytes(pickle.dumps(states))

    def load(self, model, opt, sched):
        states = pickle.loads(self.path.read_bytes())
        sched.load_state_dict(states["schedule"])
        opt.load_state_dict(states["optimizer"])
        model.load_state_dict(states["weights"])


@RunFile.misconception(
    "The file holds the weights alone. Momentum or Adam's moments start from zero after the resume, and the learning "
    "rate is that of the first step."
)
class SavesTheModel:
    def __init__(self, path):
        self.path = path

    def save(self, model, opt, sched):
        torch.save(model.state_dict(), self.path)

    def load(self, model, opt, sched):
        model.load_state_dict(torch.load(self.path, weights_only=True))


@RunFile.misconception(
    "Model and optimizer are there, the scheduler is not. It begins its schedule anew, with the learning rate "
    "that the "
    "optimizer had reached."
)
class ForgetsTheScheduler:
    def __init__(self, path):
        self.path = path

    def save(self, model, opt, sched):
        torch.save([model.state_dict(), opt.state_dict()], self.path)

    def load(self, model, opt, sched):
        states = torch.load(self.path, weights_only=True)
        model.load_state_dict(states[0])
        opt.load_state_dict(states[1])


@RunFile.misconception(
    "The scheduler remembers its position, and the optimizer nothing: its momentum is gone, and its learning rate is "
    "the initial one until the scheduler steps again."
)
class ForgetsTheOptimizer:
    def __init__(self, path):
        self.path = path

    def save(self, model, opt, sched):
        torch.save([model.state_dict(), sched.state_dict()], self.path)

    def load(self, model, opt, sched):
        states = torch.load(self.path, weights_only=True)
        model.load_state_dict(states[0])
        sched.load_state_dict(states[1])


@RunFile.misconception(
    "Everything is in the file, and `load` reads it without putting it anywhere: `load_state_dict` has to be "
    "called on "
    "each of the three."
)
class LoadsIntoNothing:
    def __init__(self, path):
        self.path = path

    def save(self, model, opt, sched):
        torch.save([part.state_dict() for part in (model, opt, sched)], self.path)

    def load(self, model, opt, sched):
        states = torch.load(self.path, weights_only=True)
        for part, state in zip((model, opt, sched), states):
            part.state_dict().update(state)


@RunFile.misconception(
    "You kept the states in memory, in the object or in the class. They end with the process; and "
    "`state_dict()` hands "
    "out the live tensors, which go on changing with the run."
)
class KeepsThemInMemory:
    states = ()

    def __init__(self, path):
        self.path = path

    def save(self, model, opt, sched):
        type(self).states = [part.state_dict() for part in (model, opt, sched)]

    def load(self, model, opt, sched):
        for part, state in zip((model, opt, sched), type(self).states):
            part.load_state_dict(state)


# ---- load_embedding ----------------------------------------------------------------------------------------

load_embedding = Exercise(
    reference.load_embedding,
    title="A tie that comes undone",
    objective="pitfalls.saving",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(1e-6)],
    hints=(
        "`model.head.weight is model.emb.weight`: before the load, and after it?",
        "Keep the parameter object, which two layers and an optimizer hold, and change the numbers in it.",
        "Under `torch.no_grad()`, copy into the parameter with an in-place method.",
    ),
    why="Sharing is a property of objects: two attributes, and an optimizer's group, name one Parameter. "
    "Assigning a new "
    "one to an attribute changes a name; writing into the old one changes the numbers that all of them see. The same "
    "happens with `load_state_dict(..., assign=True)` and when a model is moved to `meta` and back.",
)


@load_embedding.scenario
def load_and_look_at_the_tie(answer, weights):
    model = built(lambda: Tied(*weights.shape))
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    answer(model, weights)
    return looked_at(lambda: _facts_of_tie(model, opt, weights))


def _facts_of_tie(model: Tied, opt: torch.optim.Optimizer, weights: Tensor) -> dict[str, Any]:
    weight = model.emb.weight
    owned = [p for group in opt.param_groups for p in group["params"]]
    return {
        "embedding": weight.detach(),
        "head": model.head.weight.detach(),
        "one parameter": model.head.weight is weight,
        "requires grad, is a leaf": (weight.requires_grad, weight.is_leaf),
        "the optimizer owns it": any(p is weight for p in owned),
        "a storage of its own": weight.untyped_storage().data_ptr() != weights.untyped_storage().data_ptr(),
        "model": registered_in(model),
    }


@load_embedding.cases
def _(rng):
    yield case("two tokens", torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]))
    yield case("weights that lie transposed", torch.randn(3, 5, generator=rng).t())
    yield case("weights that require gradients", torch.randn(4, 2, generator=rng).requires_grad_())


@load_embedding.alternative
def copies_behind_autograd(model, weights):
    model.emb.weight.data.copy_(weights.detach())


@load_embedding.alternative
def loads_a_state_dict(model, weights):
    model.load_state_dict({"emb.weight": weights, "head.weight": weights})


@load_embedding.alternative
def copies_into_the_head(model, weights):
    model.head.weight.detach()[:] = weights.detach()


@load_embedding.misconception(
    "You assigned a new Parameter to the embedding. The head and the optimizer still hold the old one: from "
    "here on the "
    "two drift apart, and the optimizer trains what nobody looks up."
)
def assigns_to_the_embedding(model, weights):
    model.emb.weight = nn.Parameter(weights.detach().clone())


@load_embedding.misconception(
    "Each layer got a Parameter of its own. They begin equal and drift apart, and the model has twice the parameters."
)
def assigns_two(model, weights):
    model.emb.weight = nn.Parameter(weights.detach().clone())
    model.head.weight = nn.Parameter(weights.detach().clone())


@load_embedding.misconception(
    "You tied the layers again, to a new Parameter. The optimizer still owns the old one, so the tied weight is not "
    "trained."
)
def ties_a_new_one(model, weights):
    model.emb.weight = nn.Parameter(weights.detach().clone())
    model.head.weight = model.emb.weight


@load_embedding.misconception(
    "`weight.data = weights` makes the parameter a view of the caller's tensor: from now on each training step "
    "writes "
    "into it. Copy the numbers."
)
def points_at_the_weights(model, weights):
    model.emb.weight.data = weights.detach()


@load_embedding.misconception(
    "The copy is recorded, and autograd refuses to record a write to a leaf. Loading is no computation: switch "
    "recording "
    "off."
)
def copies_with_recording(model, weights):
    model.emb.weight.copy_(weights)


@load_embedding.misconception(
    "`assign=True` puts the given tensors into the model as they are, one per name: the tie is undone, and the "
    "storage is "
    "the caller's."
)
def loads_by_assignment(model, weights):
    states = {"emb.weight": weights.detach(), "head.weight": weights.detach()}
    model.load_state_dict(states, assign=True)


@load_embedding.misconception(
    "You left the loading out. The tie holds, around weights that were drawn at random."
)
def loads_nothing(model, weights):
    model.emb.weight.detach().mul_(1)


# ======== questions: one diagnosis per patient ==============================================================


def diagnosis(
    name: str, objective: str, text: str, answer: str, causes: dict[str, tuple[str, str]]
) -> Question:
    """A question whose choices are causes, each with the reply to whoever believes in it."""
    choices = {letter: cause for letter, (cause, _) in causes.items()}
    replies = {letter: reply for letter, (_, reply) in causes.items()}
    return Question(name, f"pitfalls.{objective}", text, choices, answer, replies)


diagnose_regression = diagnosis(
    "diagnose_regression",
    "shapes",
    "The predictions are perfect, and `sick_regression_loss` says 1.3333. What does it average?",
    "b",
    {
        "a": (
            "three differences, with a rounding error",
            "Rounding of float32 is about 1e-7. A third is no rounding.",
        ),
        "b": (
            "nine differences, of each prediction and each target",
            "Right. (3, 1) and (3,) broadcast to (3, 3), and only the diagonal holds what was meant.",
        ),
        "c": (
            "three differences, and `mse_loss` divides by something else",
            "`mse_loss` divides by the number of differences. Ask how many of them there are.",
        ),
    },
)

diagnose_device = diagnosis(
    "diagnose_device",
    "shapes",
    "`x.to(device)` stands right there in `sick_loss`. Why is `x` still on the CPU?",
    "a",
    {
        "a": (
            "the moved tensor is thrown away",
            "Right. `Tensor.to` returns a new tensor; the name `x` still means the old one. And `y` is never moved.",
        ),
        "b": (
            "`to` needs `non_blocking=True` to move at all",
            "`non_blocking` decides who waits, not whether something moves.",
        ),
        "c": (
            "`to` moves parameters only",
            "`Module.to` moves a module's parameters, in place. This is `Tensor.to`. What does it return?",
        ),
    },
)

diagnose_door = diagnosis(
    "diagnose_door",
    "shapes",
    "The same helper works for `nn.Linear` and raises StopIteration for `nn.ReLU()`. Who raises it?",
    "c",
    {
        "a": (
            "`to`, which has no device to go to",
            "The call never gets that far: there is no device to hand to `to`.",
        ),
        "b": ("`model.parameters()`", "That returns an iterator for every module, an empty one if need be."),
        "c": (
            "`next`, because there is no parameter",
            "Right. An iterator that has nothing to give raises StopIteration.",
        ),
    },
)

diagnose_positions = diagnosis(
    "diagnose_positions",
    "shapes",
    "Three steps of zeros come out equal, although every row of the table is different. What was added?",
    "b",
    {
        "a": (
            "the whole table, summed over its rows",
            "Nothing here sums over rows. Look at what the index returns.",
        ),
        "b": (
            "one row of the table, to every step",
            "Right. `table[seq]` is a single row, and a row broadcasts over all steps.",
        ),
        "c": (
            "nothing: the addition was lost",
            "The output is not zero. Something was added, the same everywhere.",
        ),
    },
)

diagnose_mask = diagnosis(
    "diagnose_mask",
    "shapes",
    "The output of `sick_attend` is the value of the *padding* step. What does True mean in `attn_mask`?",
    "a",
    {
        "a": (
            "this step takes part",
            "Right. And `is_padding` is True where a step is not to take part. `nn.MultiheadAttention` uses the "
            "opposite "
            "convention, which is where masks of this kind come from.",
        ),
        "b": (
            "this step is blocked",
            "That is the convention of `nn.MultiheadAttention`. With it the padding would have been ignored here.",
        ),
        "c": (
            "the score of this step grows by 1",
            "A mask of floats is added to the scores. A bool mask excludes. But which side?",
        ),
    },
)

diagnose_zero_grad = diagnosis(
    "diagnose_zero_grad",
    "gradients",
    "The same batch three times, and weights that do not move. Why does the norm of the gradient grow?",
    "c",
    {
        "a": (
            "the loss grows",
            "Weights and batch are the same, so is the loss. Look at what is stored between the calls.",
        ),
        "b": (
            "each backward pass multiplies the gradients of all layers",
            "Within one pass, yes: that is the chain rule. It gives the same result for the same batch, though.",
        ),
        "c": (
            "`backward()` adds to what is in `.grad`",
            "Right. Twice the gradient after two passes, three times after three.",
        ),
    },
)

diagnose_owners = diagnosis(
    "diagnose_owners",
    "gradients",
    "Two losses with the gradients 2 and 5, two optimizers with the rate 0.1 that both own `w` = 1. What is `w` "
    "after "
    "`first.step()` and `second.step()`?",
    "c",
    {
        "a": (
            "0.5: the second gradient has overwritten the first",
            "Then one step of 0.1 times 5 would have been taken. Nothing overwrites a gradient: they add up. "
            "And how many "
            "optimizers step?",
        ),
        "b": (
            "0.3: each optimizer applies its own loss's gradient",
            "An optimizer knows no losses; it reads `.grad`.",
        ),
        "c": (
            "-0.4: both apply the sum",
            "Right. 2 + 5 = 7 is in `.grad`, and it is applied twice: 1 - 0.7 - 0.7. Many texts say that "
            "gradients are "
            "overwritten; they are added, and used twice.",
        ),
    },
)

diagnose_leaf = diagnosis(
    "diagnose_leaf",
    "gradients",
    "Someone 'repairs' the write with `w.data -= d`, and the error is gone. What does the gradient of "
    "`loss = (w * w).sum()`, computed *before* the write, become if `loss.backward()` runs *after* it?",
    "b",
    {
        "a": (
            "2 w with the old w, since the loss was computed with it",
            "That would be right, and it would need a copy of the old numbers. `w * w` saved `w` itself.",
        ),
        "b": (
            "2 w with the new w, silently",
            "Right: a gradient of a loss that was never computed. The version counter, which exists to notice "
            "this, was "
            "bypassed.",
        ),
        "c": (
            "an error",
            "With an ordinary in-place write under `no_grad` it would be. `.data` has no such alarm.",
        ),
    },
)

diagnose_head = diagnosis(
    "diagnose_head",
    "gradients",
    "`opt.zero_grad()` is called before every backward pass, and the head's gradient grows from step to step. How?",
    "a",
    {
        "a": (
            "the new head's parameters are not in `opt`",
            "Right. An optimizer holds the parameters that it was given, and those are the old head's.",
        ),
        "b": (
            "`zero_grad` sets gradients to None, and the sum goes on elsewhere",
            "A gradient that is None starts anew. But whose gradients does `opt` clear?",
        ),
        "c": (
            "the learning rate is too high",
            "Then the weights would jump about. Look: they have not moved at all.",
        ),
    },
)

diagnose_aux = diagnosis(
    "diagnose_aux",
    "gradients",
    "The log shows that the auxiliary loss is part of the total. Why is the gradient that of the main loss alone?",
    "b",
    {
        "a": (
            "its weight is too small",
            "The weight is 1. And a gradient that is exactly the main loss's is no accident.",
        ),
        "b": (
            "`torch.tensor(aux)` copied the numbers and left the graph behind",
            "Right. It makes a new leaf, which has no history. PyTorch warns about the conversion, no more.",
        ),
        "c": ("`.sum()` has no derivative", "`sum` has one: 1 for every term. Look at what it sums."),
    },
)

diagnose_inplace = diagnosis(
    "diagnose_inplace",
    "gradients",
    "`(x * 2)[blocked] = 0` is allowed, and after `tanh` the same write ends in an error. What is the difference?",
    "a",
    {
        "a": (
            "the backward pass of tanh reads its output",
            "Right. Its derivative is 1 - output². The derivative of `x * 2` is 2, whatever the output.",
        ),
        "b": (
            "`tanh` returns a view of `x`",
            "Then `x` would have changed. The result is a tensor of its own.",
        ),
        "c": (
            "in-place writes are forbidden on what requires gradients",
            "Then `x * 2` would be refused as well. Only leaves refuse every write; others depend on what was saved.",
        ),
    },
)

diagnose_mode = diagnosis(
    "diagnose_mode",
    "loop",
    "The same input twice, two outputs, and `no_grad` is there. What else has changed after the two calls?",
    "c",
    {
        "a": ("the weights", "No optimizer has run."),
        "b": ("nothing", "That would be so for dropout alone. This model has a batch norm as well."),
        "c": (
            "the running statistics of the batch norm",
            "Right: in training mode it adds the batch to them, also under `no_grad`. Asking the model has "
            "changed it.",
        ),
    },
)

diagnose_dropout = diagnosis(
    "diagnose_dropout",
    "loop",
    "`net.training` is False, and two calls still differ. What does `F.dropout(x, 0.5)` know about the mode?",
    "a",
    {
        "a": (
            "nothing: it is a function, and its own default is to drop",
            "Right. `training=True` is the default of the function; a module's flag has to be handed to it.",
        ),
        "b": (
            "it asks the module that calls it",
            "A function can't see its caller. `nn.Dropout` is a module and has a flag of its own.",
        ),
        "c": (
            "it is off whenever gradients are off",
            "Recording and mode are two switches. And here gradients are on.",
        ),
    },
)

diagnose_norm = diagnosis(
    "diagnose_norm",
    "loop",
    "The weights 1/n are right, the sizes are equal, and the accumulated gradient is off by a large part. Which "
    "layer "
    "makes an example's output depend on its micro-batch?",
    "b",
    {
        "a": ("dropout", "There is none in this model; and dropout treats each example alone."),
        "b": (
            "the batch norm",
            "Right. In training mode it uses the mean and variance of the examples at hand, and 4 of them are "
            "not 16.",
        ),
        "c": (
            "the linear layers",
            "A linear layer treats each row by itself: cutting the batch changes nothing for it.",
        ),
    },
)

diagnose_softmax = diagnosis(
    "diagnose_softmax",
    "loop",
    "The logits are right by a margin of 200, and the loss of three classes is 0.5514 = ln(e + 2) - 1. Where "
    "does this "
    "floor come from?",
    "c",
    {
        "a": ("from label smoothing", "Smoothing gives a floor, too. None is asked for here."),
        "b": ("from float32, which can't represent the probability 1", "It can, exactly."),
        "c": (
            "the loss takes its softmax of numbers between 0 and 1",
            "Right. The largest that it can be given is (1, 0, 0), and the softmax of that is e / (e + 2).",
        ),
    },
)

diagnose_schedule = diagnosis(
    "diagnose_schedule",
    "loop",
    "`StepLR(opt, step_size=2)` was meant to divide the rate by 10 every second *epoch*. How does it know what "
    "an epoch is?",
    "b",
    {
        "a": ("it counts passes over the loader", "It has never seen the loader. What does it get to see?"),
        "b": (
            "it doesn't: it counts its own `step()` calls",
            "Right. Here it is called once per batch, so two batches pass for two epochs.",
        ),
        "c": ("it counts the steps of the optimizer", "It only warns when the optimizer has made none."),
    },
)

diagnose_nan = diagnosis(
    "diagnose_nan",
    "loop",
    "Only the second of five batches holds a NaN. Why is no step taken on the third?",
    "a",
    {
        "a": (
            "the NaN is still in `.grad`",
            "Right. The skip leaves it there, `backward()` adds to it, and NaN plus anything is NaN.",
        ),
        "b": ("the weights are NaN", "They are finite: the step was skipped."),
        "c": (
            "the third batch holds a NaN as well",
            "It does not. Look at what survives from one batch to the next.",
        ),
    },
)

diagnose_seed = diagnosis(
    "diagnose_seed",
    "data",
    "The weights of two builds agree, and the order of the data does not: between build and training one of the two "
    "programs drew a random number. When does a loader draw its order?",
    "c",
    {
        "a": ("when it is made", "Then the extra draw, which came later, could not have mattered."),
        "b": ("when the data set is made", "The data set is `arange`, and nothing about it is random."),
        "c": (
            "when it is iterated, from the global generator",
            "Right. So whatever draws before that moves it. A generator of its own would not be moved.",
        ),
    },
)

diagnose_workers = diagnosis(
    "diagnose_workers",
    "data",
    "Which of these can be sent to a worker process that starts afresh, as on macOS, on Windows, and on Linux "
    "from Python "
    "3.14 on?",
    "b",
    {
        "a": (
            "the lambda",
            "Pickle stores a function by its name, and a lambda has none that could be imported.",
        ),
        "b": (
            "the function at the top level of a module",
            "Right: it travels as its name, and the worker imports it. (A notebook is a special case: what is "
            "defined in "
            "it can't be imported by such a worker at all. Put it into a file.)",
        ),
        "c": ("both", "Where workers are forked, both. A fresh process has to find them by name."),
    },
)

diagnose_drift = diagnosis(
    "diagnose_drift",
    "data",
    "The first epoch was right. Why is the second standardized twice?",
    "a",
    {
        "a": (
            "`-=` and `/=` wrote into the rows of the data set",
            "Right. The batch is a view of the data, and the function edits its input.",
        ),
        "b": ("mean and std changed", "They were computed once and have not changed."),
        "c": (
            "`x` is a copy that the loader keeps",
            "Then the copy would be edited, and the data would be as they were.",
        ),
    },
)

diagnose_preview = diagnosis(
    "diagnose_preview",
    "data",
    "After each epoch a preview is drawn, and the random numbers of all later epochs are equal. Why?",
    "b",
    {
        "a": (
            "the training was seeded once, at the start",
            "That gives one sequence, not the same one in every epoch.",
        ),
        "b": (
            "the preview seeds the generator that the training draws from",
            "Right. Each preview rewinds it to the same place.",
        ),
        "c": ("`torch.randn` always starts from the same state", "It goes on from the state that it finds."),
    },
)

diagnose_sync = diagnosis(
    "diagnose_sync",
    "memory",
    "How often does `sick_train_and_average` read a value from the device in 20 steps?",
    "c",
    {
        "a": ("never: losses are Python numbers", "They become Python numbers by being read."),
        "b": ("once, at the end", "That would do. Look at the line inside of the loop."),
        "c": (
            "20 times",
            "Right. `.item()` reads, so do `float(loss)`, `if loss > 1:` and an f-string. Each makes the host wait.",
        ),
    },
)

diagnose_pin = diagnosis(
    "diagnose_pin",
    "memory",
    "`non_blocking=True` is there. According to the list above, what is missing for a copy that the host need "
    "not wait for?",
    "a",
    {
        "a": (
            "pinned memory",
            "Right. Ordinary memory may be moved by the operating system, so it is staged first, and the host "
            "waits for "
            "that.",
        ),
        "b": ("`torch.cuda.synchronize()`", "That is a wait, the opposite of what is wanted."),
        "c": ("more workers", "They prepare batches. The copy to the device is made by this process."),
    },
)

diagnose_leak = diagnosis(
    "diagnose_leak",
    "memory",
    "What holds the graphs of all twenty steps?",
    "b",
    {
        "a": (
            "`.item()`, because it comes before `detach()`",
            "You can read that in some lists. `.item()` returns a Python number, which holds nothing.",
        ),
        "b": (
            "`total`, because it is a tensor made of all losses",
            "Right. The sum is the newest node of a graph, and that graph holds everything that it was made of.",
        ),
        "c": (
            "`backward()`, which keeps its graph",
            "It frees what was saved. The nodes live as long as someone holds them.",
        ),
    },
)

diagnose_checkpoint = diagnosis(
    "diagnose_checkpoint",
    "memory",
    "The weights of the block require gradients. Why does its output not, when the block is checkpointed?",
    "a",
    {
        "a": (
            "this variant connects the output to the inputs alone, and `x` requires none",
            "Right. The block itself runs under `no_grad`, and its parameters are no inputs.",
        ),
        "b": (
            "checkpointing detaches its output always",
            "With an input that requires gradients it would be connected.",
        ),
        "c": ("the block is in eval mode", "The mode has nothing to do with recording."),
    },
)

diagnose_clock = diagnosis(
    "diagnose_clock",
    "memory",
    "Half a second of work, and `sick_seconds` reports 0.001. What did it measure?",
    "c",
    {
        "a": ("the work, which is that fast", "It takes half a second on this device, by construction."),
        "b": (
            "the time that the device was idle",
            "Both readings are taken on the host. What did the host do in between?",
        ),
        "c": (
            "how long the host took to hand the work over",
            "Right. The device works on while the host goes on, to the second reading.",
        ),
    },
)

diagnose_amp = diagnosis(
    "diagnose_amp",
    "precision",
    'What does `autocast("cuda")` do on a machine without CUDA?',
    "b",
    {
        "a": ("it raises", "An error would be welcome."),
        "b": (
            "it warns once and switches itself off",
            "Right: the training runs in float32, at full cost, and nobody who ignores warnings will know.",
        ),
        "c": (
            "it uses the CPU instead",
            "It was told about one kind of device, and does nothing for others.",
        ),
    },
)

diagnose_overflow = diagnosis(
    "diagnose_overflow",
    "precision",
    "The mask worked for years. What has changed?",
    "a",
    {
        "a": (
            "the scores are float16, whose lowest number is -65504",
            "Right. -1e9 can't be converted, and PyTorch refuses.",
        ),
        "b": (
            "softmax no longer accepts large numbers",
            "The error comes from the fill, before any softmax.",
        ),
        "c": (
            "-1e9 is too small to be represented",
            "In size it is too large: float16 ends at 65504 on both sides.",
        ),
    },
)

diagnose_resume = diagnosis(
    "diagnose_resume",
    "saving",
    "The weights after loading are equal to the last bit, and the very first loss agrees. Why do the later ones "
    "differ?",
    "c",
    {
        "a": ("the data come in another order", "They are the same batches in the same order."),
        "b": ("loading rounds the weights", "They are equal to the last bit, and so is the first loss."),
        "c": (
            "momentum and learning rate have started anew",
            "Right. The weights are what you see of a run; optimizer and schedule have a state as well.",
        ),
    },
)

diagnose_tie = diagnosis(
    "diagnose_tie",
    "saving",
    "The model had 12 parameters before the weights were loaded. How many has it now?",
    "b",
    {
        "a": (
            "12",
            "That needs both layers to share one Parameter. Which object does the assignment put where?",
        ),
        "b": (
            "24",
            "Right. The embedding has a new Parameter, the head still has the old one, and `parameters()` "
            "counts both.",
        ),
        "c": ("0", "Assigning an `nn.Parameter` registers it. But the head was not asked."),
    },
)
