"""The exercises and questions of notebook 09: inference and deployment."""

from __future__ import annotations

import copy
import importlib
import logging
import math
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from course_lib.checking import Exercise, Question, case, observe
from course_lib.reference import inference as reference

CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # another batch size may mean another order of additions


# ---- predict_logits ----------------------------------------------------------------------------------------


class Watch(nn.Module):
    """Passes its input on and notes how many rows came, and whether a graph is recorded. Copies note here
    too."""

    seen: list[tuple[int, bool]] = []  # noqa: RUF012 - of the class, on purpose

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((len(x), x.requires_grad))
        return x


predict_logits = Exercise(
    reference.predict_logits,
    title="Ask a model, and leave it as it was",
    objective="inference.modes",
    difficulty=1,
    minutes=10,
    points=2,
    observes=[observe.value(**CLOSE), observe.requires_grad()],
    hints=(
        "There are three things to take care of: how the layers behave, whether a graph is recorded, and "
        "how many rows go in at once. And a fourth one afterwards.",
        "Note the mode of each submodule, switch to eval, run the pieces under `torch.inference_mode()`, "
        "put them together, and write each mode back.",
        "`x.split(batch_size)` gives the pieces, the last one as short as it has to be; `torch.cat` joins "
        "their answers. `model.modules()` gives every submodule, and `module.training` can be assigned.",
    ),
    why="`eval()` decides what layers compute, `inference_mode` whether autograd takes notes; neither does "
    "the work of the other. In eval mode a row's answer does not depend on its neighbors, so the size of "
    "the pieces is a matter of memory alone. `train()` at the end would wake a part that somebody froze.",
)


@predict_logits.scenario
def ask_and_watch(answer, model, x, batch_size):
    Watch.seen.clear()
    logits = answer(model, x, batch_size)
    return {
        "logits": logits,
        "too many rows at once": any(rows > batch_size for rows, _ in Watch.seen),
        "a graph was recorded": any(recorded for _, recorded in Watch.seen),
    }


@predict_logits.cases
def _(rng):
    def rows(*shape):
        return torch.randn(*shape, generator=rng)

    def network(*layers):
        return nn.Sequential(nn.Linear(3, 4), *layers, Watch(), nn.Linear(4, 2))

    yield case("two rows at once", network(), rows(2, 3), 2)
    yield case("five rows, two at a time", network(nn.ReLU()), rows(5, 3), 2)
    yield case("a dropout, in train mode", network(nn.Dropout(0.5)), rows(3, 3), 3)
    yield case("a batch norm, in train mode", network(nn.BatchNorm1d(4)), rows(4, 3), 2)
    frozen = network(nn.BatchNorm1d(4), nn.Dropout(0.5))
    frozen[1].eval()
    yield case("a batch norm that was frozen on purpose", frozen, rows(4, 3), 3)
    yield case("a model that is in eval mode", network(nn.Dropout(0.5)).eval(), rows(3, 3), 2)
    yield case("sequences that lie transposed", network(nn.ReLU()), rows(3, 4, 5).transpose(0, 2), 2)


@predict_logits.alternative
def asks_a_copy(model, x, batch_size):
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        return torch.cat([twin(x[i : i + batch_size]) for i in range(0, len(x), batch_size)])


@predict_logits.alternative
@torch.no_grad()
def one_row_at_a_time(model, x, batch_size):
    in_training = [module for module in model.modules() if module.training]
    try:
        return torch.stack([model.eval()(row.unsqueeze(0)).squeeze(0) for row in x])
    finally:
        for module in in_training:
            module.training = True


@predict_logits.misconception(
    "Without `eval()` dropout drops, and batch norm uses the rows that happen to come together and moves "
    "its statistics: the model is changed by being asked."
)
def stays_in_train_mode(model, x, batch_size):
    with torch.inference_mode():
        return torch.cat([model(rows) for rows in x.split(batch_size)])


@predict_logits.misconception(
    "`eval()` changes what layers compute and does not stop autograd. The answers carry a graph, and with "
    "it all activations."
)
def records_a_graph(model, x, batch_size):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    logits = torch.cat([model(rows) for rows in x.split(batch_size)])
    for module, mode in modes.items():
        module.training = mode
    return logits


@predict_logits.misconception(
    "You cut the result off with `detach`. By then the graph was recorded, and its activations were in memory."
)
def detaches_the_result(model, x, batch_size):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    logits = torch.cat([model(rows) for rows in x.split(batch_size)]).detach()
    for module, mode in modes.items():
        module.training = mode
    return logits


@predict_logits.misconception(
    "You leave the model in eval mode. Whoever trains it next trains without dropout."
)
def leaves_eval_mode(model, x, batch_size):
    model.eval()
    with torch.inference_mode():
        return torch.cat([model(rows) for rows in x.split(batch_size)])


@predict_logits.misconception(
    "You call `train()` at the end, whatever was before. A model that came in eval mode leaves in train mode."
)
def always_trains_afterwards(model, x, batch_size):
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(rows) for rows in x.split(batch_size)])
    model.train()
    return logits


@predict_logits.misconception(
    "You keep one flag for the whole model. `train(flag)` sets it in every submodule, also in the one that "
    "was frozen on purpose."
)
def keeps_one_flag(model, x, batch_size):
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(rows) for rows in x.split(batch_size)])
    model.train(was_training)
    return logits


@predict_logits.misconception(
    "You hand over all rows at once. `batch_size` is the limit of what fits into memory together."
)
def all_rows_at_once(model, x, batch_size):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.inference_mode():
        logits = model(x)
    for module, mode in modes.items():
        module.training = mode
    return logits


@predict_logits.misconception(
    "The rows after the last full batch get no answer. Training may drop them; whoever asked waits for a reply."
)
def drops_the_last_rows(model, x, batch_size):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.inference_mode():
        full = range(0, len(x) - batch_size + 1, batch_size)
        logits = torch.cat([model(x[i : i + batch_size]) for i in full])
    for module, mode in modes.items():
        module.training = mode
    return logits


# ---- seed_everything ---------------------------------------------------------------------------------------

seed_everything = Exercise(
    reference.seed_everything,
    title="The same numbers again",
    objective="inference.determinism",
    difficulty=1,
    minutes=6,
    observes=[observe.value()],
    hints=(
        "How many random generators does a Python program with PyTorch in it have? Which one does "
        "`torch.manual_seed` know?",
        "Three generators get the seed: Python's, NumPy's and PyTorch's. And one switch makes PyTorch "
        "refuse what is not deterministic.",
        "Three functions are called `seed`, `seed` and `manual_seed`. The switch is "
        "`torch.use_deterministic_algorithms`; a warning instead of an error is not enough here.",
    ),
    why="The three generators know nothing of each other. Seeds make *random numbers* repeatable; the "
    "switch is about operators whose *result* depends on who comes first. With `warn_only` such an operator "
    "still runs, and cuDNN's flags are about convolutions on a GPU alone. The price is speed, and an error "
    "where there is no other way.",
)


def draws() -> list[float]:
    """The next number of each of the three generators."""
    return [random.random(), float(np.random.rand()), torch.rand(1).item()]


def outcome_of(call: Callable) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "no error"


@contextmanager
def cudnn_and_environment_kept() -> Iterator[None]:
    """Settings that an answer may change and that the standing observers do not know."""
    flags = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    environment = dict(os.environ)
    torch.backends.cudnn.deterministic = False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags
        os.environ.clear()
        os.environ.update(environment)


@seed_everything.scenario
def seed_and_draw(answer, seed, drawn):
    """The global generator is put back where seeding left it at the start of its stream: the rest shows as
    consumed."""
    before = torch.get_rng_state()
    with cudnn_and_environment_kept():
        answer(seed)
        start = torch.Generator().manual_seed(torch.initial_seed())
        at_its_start = torch.equal(torch.get_rng_state(), start.get_state())
        first = draws()
        _ = [draws() for _ in range(drawn)]
        answer(seed)
        again = draws()
        answer((seed + 1) % 2**32)
        other = draws()
        put = outcome_of(lambda: torch.zeros(3).put_(torch.tensor([0]), torch.ones(1)))
        cudnn = torch.backends.cudnn.deterministic and put == "no error"
    if at_its_start:
        torch.set_rng_state(before)
    names = ("Python", "NumPy", "PyTorch")
    return {
        "the same numbers": {name: a == b for name, a, b in zip(names, first, again)},
        "other numbers with another seed": {name: a != b for name, a, b in zip(names, first, other)},
        "an operator without a deterministic form": put,
        "a flag of cuDNN in place of the switch": cudnn,
    }


@seed_everything.cases
def _(rng):
    yield case("seed 0, nothing drawn between", 0, 0)
    yield case("seed 7, five numbers drawn between", 7, 5)
    yield case("the largest seed", 2**32 - 1, 1)


@seed_everything.alternative
def seeds_with_derived_numbers(seed):
    source = random.Random(seed)
    random.seed(source.getrandbits(32))
    np.random.seed(source.getrandbits(32))
    torch.manual_seed(source.getrandbits(32))
    torch.set_deterministic_debug_mode("error")


@seed_everything.alternative
def sets_more_than_it_must(seed):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(mode=True)
    for seeder in (random.seed, np.random.seed, torch.manual_seed):
        seeder(seed)


@seed_everything.misconception(
    "`torch.manual_seed` seeds PyTorch, and PyTorch alone. Python's `random` and NumPy have generators of "
    "their own."
)
def seeds_torch_only(seed):
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)


@seed_everything.misconception(
    "NumPy's generator is missing. Augmentations and splits often draw from it, and nobody notices."
)
def forgets_numpy(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)


@seed_everything.misconception("Python's own `random` is missing: `random.seed(seed)`.")
def forgets_python(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)


@seed_everything.misconception(
    "You seed, and leave the operators as they are. With equal seeds an operator may still add in another "
    "order: `torch.use_deterministic_algorithms(True)`."
)
def seeds_and_nothing_else(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@seed_everything.misconception(
    "With `warn_only=True` the operator runs all the same, and a warning among many is not read. It is to "
    "raise."
)
def warns_only(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


@seed_everything.misconception(
    "The flags of cuDNN are about convolutions on a GPU, and no other operator reads them. "
    "`torch.use_deterministic_algorithms(True)` is about all of PyTorch."
)
def sets_cudnn_flags(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


@seed_everything.misconception("You seed with a number of your own. Then every seed is the same seed.")
def ignores_the_seed(seed):
    random.seed(42)
    np.random.seed(42)
    torch.manual_seed(42)
    torch.use_deterministic_algorithms(True)


@seed_everything.misconception(
    "`np.random.default_rng(seed)` makes a new generator and seeds it; the global one, from which "
    "`np.random.rand` and others draw, is not touched. So it is with `torch.Generator()` and "
    "`random.Random(seed)`."
)
def seeds_new_generators(seed):
    random.Random(seed)
    np.random.default_rng(seed)
    torch.Generator().manual_seed(seed)
    torch.use_deterministic_algorithms(True)


# ---- pad_requests ------------------------------------------------------------------------------------------

pad_requests = Exercise(
    reference.pad_requests,
    title="One batch of unequal requests",
    objective="inference.requests",
    difficulty=2,
    minutes=15,
    points=2,
    observes=[observe.value()],
    hints=(
        "Draw two requests of lengths 3 and 1 on paper, right-aligned. Write the number of each column "
        "above, and below each token the position that it has in its own request. What do you subtract?",
        "In a row, the first token stands in column `longest - length`. Left of it is padding. Column minus "
        "that number is the position; where it is negative, the mask is False.",
        "`torch.arange(longest) - (longest - lengths).unsqueeze(1)` has shape (batch, longest). A bool mask "
        "fills row by row, from left to right, so `torch.cat(requests)` fits into it.",
    ),
    why="A model that generates goes on at the right end of each row, so the padding is at the left. A "
    "position says how far a token is from the beginning of its own request; columns would tell a short "
    "request that it begins in the middle. And the mask comes from the lengths: a token may well equal the "
    "id that pads.",
)


@pad_requests.cases
def _(rng):
    def request(n):
        return torch.randint(-3, 9, (n,), generator=rng)

    yield case("two requests, of three tokens and of one", [torch.tensor([5, 6, 7]), torch.tensor([8])], 0)
    yield case("the short one first", [torch.tensor([8, 9]), torch.tensor([5, 6, 7, 4])], 0)
    yield case(
        "a request that holds the id of the padding", [torch.tensor([3, 0, 0]), torch.tensor([0, 4])], 0
    )
    yield case("padded with 9", [torch.tensor([1, 2]), torch.tensor([3])], 9)
    yield case("a single request", [torch.tensor([4, 4, 2])], 1)
    yield case("equal lengths", [request(3), request(3)], 0)
    spread = torch.tensor([7, 0, -100, 0, 3, 0, 2, 0, 9])
    yield case("every second token of another tensor", [spread[::2], request(3), request(4)[1:]], -1)


@pad_requests.alternative
def fills_row_by_row(requests, pad_id):
    longest = max(map(len, requests))
    ids = torch.full((len(requests), longest), pad_id, dtype=torch.int64)
    mask = torch.zeros(len(requests), longest, dtype=torch.bool)
    positions = torch.zeros(len(requests), longest, dtype=torch.int64)
    for row, request in enumerate(requests):
        n = len(request)
        ids[row, longest - n :] = request
        mask[row, longest - n :] = True
        positions[row, longest - n :] = torch.arange(n)
    return ids, mask, positions


@pad_requests.alternative
def flips_twice(requests, pad_id):
    def flipped(values, filler):
        padded = pad_sequence([v.flip(0) for v in values], batch_first=True, padding_value=filler)
        return padded.flip(1)

    ids = flipped(requests, pad_id)
    mask = flipped([torch.ones(len(r), dtype=torch.bool) for r in requests], False)
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


@pad_requests.misconception(
    "You pad on the right. The next token of a short request would then have to be written over its "
    "padding: what generates goes on at the right end, so the padding is on the left."
)
def pads_on_the_right(requests, pad_id):
    lengths = torch.tensor([len(request) for request in requests])
    columns = torch.arange(int(lengths.max())).expand(len(requests), -1)
    mask = columns < lengths.unsqueeze(1)
    ids = torch.full(mask.shape, pad_id)
    ids[mask] = torch.cat(requests)
    return ids, mask, columns * mask


@pad_requests.misconception(
    "You numbered the columns. The first token of a short request must have position 0, wherever it stands."
)
def numbers_the_columns(requests, pad_id):
    lengths = torch.tensor([len(request) for request in requests])
    longest = int(lengths.max())
    mask = torch.arange(longest) >= (longest - lengths).unsqueeze(1)
    ids = torch.full(mask.shape, pad_id)
    ids[mask] = torch.cat(requests)
    return ids, mask, torch.arange(longest).repeat(len(requests), 1)


@pad_requests.misconception(
    "You take every `pad_id` for padding. A request may hold that token: the lengths know what is padding."
)
def compares_with_the_pad_id(requests, pad_id):
    longest = max(len(request) for request in requests)
    ids = torch.full((len(requests), longest), pad_id)
    for row, request in zip(ids, requests):
        row[longest - len(request) :] = request
    mask = ids != pad_id
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


@pad_requests.misconception(
    "The padding has position -1. An embedding of positions has no such row, and raises: use 0 there."
)
def leaves_negative_positions(requests, pad_id):
    lengths = torch.tensor([len(request) for request in requests])
    longest = int(lengths.max())
    mask = torch.arange(longest) >= (longest - lengths).unsqueeze(1)
    ids = torch.full(mask.shape, pad_id)
    ids[mask] = torch.cat(requests)
    return ids, mask, mask.cumsum(1) - 1


@pad_requests.misconception("Your positions begin at 1. They begin at 0, like every index.")
def counts_from_one(requests, pad_id):
    lengths = torch.tensor([len(request) for request in requests])
    longest = int(lengths.max())
    mask = torch.arange(longest) >= (longest - lengths).unsqueeze(1)
    ids = torch.full(mask.shape, pad_id)
    ids[mask] = torch.cat(requests)
    return ids, mask, mask.cumsum(1)


@pad_requests.misconception(
    "Your mask is True at the padding. Here True means: a token. Libraries differ, so read it up each time."
)
def turns_the_mask_around(requests, pad_id):
    lengths = torch.tensor([len(request) for request in requests])
    longest = int(lengths.max())
    columns = torch.arange(longest) - (longest - lengths).unsqueeze(1)
    ids = torch.full(columns.shape, pad_id)
    ids[columns >= 0] = torch.cat(requests)
    return ids, columns < 0, columns.clamp(min=0)


@pad_requests.misconception(
    "You sorted the requests by length. The answers then come back in another order than the questions."
)
def sorts_by_length(requests, pad_id):
    requests = sorted(requests, key=len, reverse=True)
    lengths = torch.tensor([len(request) for request in requests])
    longest = int(lengths.max())
    columns = torch.arange(longest) - (longest - lengths).unsqueeze(1)
    ids = torch.full(columns.shape, pad_id)
    ids[columns >= 0] = torch.cat(requests)
    return ids, columns >= 0, columns.clamp(min=0)


@pad_requests.misconception("You pad with 0, whatever `pad_id` says.")
def pads_with_zero(requests, pad_id):
    lengths = torch.tensor([len(request) for request in requests])
    longest = int(lengths.max())
    columns = torch.arange(longest) - (longest - lengths).unsqueeze(1)
    ids = torch.zeros(columns.shape, dtype=torch.int64)
    ids[columns >= 0] = torch.cat(requests)
    return ids, columns >= 0, columns.clamp(min=0)


# ---- last_token_logits -------------------------------------------------------------------------------------

last_token_logits = Exercise(
    reference.last_token_logits,
    title="Where the last token is",
    objective="inference.requests",
    difficulty=2,
    minutes=8,
    observes=[observe.value()],
    hints=(
        "Write down a mask with two rows, one padded on the left and one on the right. In which column is "
        "the last True of each row? Does counting the Trues tell?",
        "Give each column a number that grows to the right, make it 0 where there is no token, and ask "
        "where the largest one is.",
        "The numbers must start at 1, or the first column looks like padding. With the columns known, "
        "`logits[rows, columns]` takes one vector from each row, if `rows` counts the requests.",
    ),
    why="The number of tokens says where the last one is only if the padding is on the right, and the last "
    "column only if it is on the left. The largest column number under the mask is right in both cases. Two "
    "index tensors of one length pick one vector per request.",
)


@last_token_logits.cases
def _(rng):
    def mask(*rows):
        return torch.tensor([[c == "x" for c in row] for row in rows])

    def logits(batch, seq, vocab=3):
        return torch.randn(batch, seq, vocab, generator=rng)

    yield case("padded on the right", logits(2, 3, 2), mask("xx.", "xxx"))
    yield case("padded on the left", logits(2, 3, 2), mask(".xx", "xxx"))
    yield case("one token, in the first column", logits(2, 4), mask("x...", "xxx."))
    yield case("padding on both sides", logits(3, 5), mask(".xx..", "..xx.", "xxxxx"))
    yield case("a single request of one token", logits(1, 1), mask("x"))
    yield case("logits that lie transposed", logits(4, 2).transpose(0, 1), mask("x...", ".xx."))


@last_token_logits.alternative
def looks_from_the_right(logits, mask):
    distance = mask.flip(1).int().argmax(dim=1)
    last = mask.shape[1] - 1 - distance
    index = last.view(-1, 1, 1).expand(-1, 1, logits.shape[2])
    return logits.gather(1, index).squeeze(1)


@last_token_logits.alternative
def goes_through_the_rows(logits, mask):
    return torch.stack([vectors[row][-1] for vectors, row in zip(logits, mask)])


@last_token_logits.misconception(
    "You take the last column. For a request that is padded on the right, that is what the model says after "
    "padding."
)
def takes_the_last_column(logits, mask):
    return logits[:, -1]


@last_token_logits.misconception(
    "You count the tokens and take that column. This holds if the padding is on the right; on the left it "
    "points into the middle."
)
def counts_the_tokens(logits, mask):
    return logits[torch.arange(len(logits)), mask.sum(1) - 1]


@last_token_logits.misconception(
    "`argmax` of a bool mask gives the *first* True. That is the first token of the request."
)
def takes_the_first_token(logits, mask):
    return logits[torch.arange(len(logits)), mask.int().argmax(1)]


@last_token_logits.misconception(
    "Your column numbers start at 0, so the first column can't be told from padding, and a request whose "
    "only token is there gets another column."
)
def numbers_from_zero(logits, mask):
    place = torch.arange(mask.shape[1])
    last = (mask * place).flip(1).argmax(dim=1)
    return logits[torch.arange(len(logits)), mask.shape[1] - 1 - last]


@last_token_logits.misconception(
    "You index with a slice and a tensor, `logits[:, last]`. That takes *all* these columns of *every* "
    "request: (batch, batch, vocab). Both indices have to be tensors."
)
def indexes_with_a_slice(logits, mask):
    last = (mask * torch.arange(1, mask.shape[1] + 1)).argmax(dim=1)
    return logits[:, last]


@last_token_logits.misconception(
    "You averaged over the tokens. That is a way to sum up a text; the next token is told by the last one "
    "alone."
)
def averages_the_tokens(logits, mask):
    weights = mask.unsqueeze(2).float()
    return (logits * weights).sum(1) / weights.sum(1)


# ---- count_graphs ------------------------------------------------------------------------------------------


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled before and nothing left behind; what the compiler logs is not for the learner.

    It also times each new guard with a cold cache, which takes longer than all the rest. No count depends on that.
    """
    guards, disabled = importlib.import_module("torch._dynamo.guards"), logging.root.manager.disable
    torch.compiler.reset()
    logging.disable(logging.CRITICAL)
    try:
        with mock.patch.object(guards, "profile_guard_manager", return_value=0.0, create=True):
            yield
    finally:
        logging.disable(disabled)
        torch.compiler.reset()


def smooth(x):
    return x.sin() + 1


def leaky(x):
    if x.sum() > 0:
        return x * 2
    return x * 0.1


def interrupted(x):
    y = x.cos()
    torch._dynamo.graph_break()
    return y + 1


def interrupted_three_times(x):
    for _ in range(3):
        x = interrupted(x)
    return x


count_graphs = Exercise(
    reference.count_graphs,
    title="Count what the compiler makes",
    objective="inference.compile",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "Who is called once per graph, no more and no less? And what does the compiler remember of what it "
        "saw before you came?",
        "A backend of yours: it adds one to a count and returns a callable that runs the graph as it is. "
        "Forget what was compiled, compile once, then make all the calls.",
        "`graph_module.forward` is such a callable. `torch.compiler.reset()` stands before "
        "`torch.compile(function, backend=...)`, and the count is known after the last call, because "
        "compiling happens during the calls.",
    ),
    why="`torch.compile` does nothing until the first call; then it hands each graph that it found to the "
    "backend, and again whenever a guard fails. So the backend's calls are the graphs. What it saw before "
    "changes what it does: a size that has varied once is taken as variable from then on.",
)


@count_graphs.scenario
def count_after(answer, function, calls, before=()):
    with fresh_compiler():
        warmed = torch.compile(function, backend="eager")
        for args in before:
            warmed(*args)
        return answer(function, calls)


@count_graphs.cases
def _(rng):
    def rows(n, dim=3):
        return torch.randn(n, dim, generator=rng)

    yield case("the same size twice", smooth, [(rows(3),), (rows(3),)])
    yield case("sizes 3, 4 and 5", smooth, [(rows(n),) for n in (3, 4, 5)])
    yield case("a branch that depends on the numbers", leaky, [(rows(2).abs(),), (-rows(2).abs(),)])
    yield case(
        "a graph break in a function that is used three times", interrupted_three_times, [(rows(4, 2).t(),)]
    )
    sizes = [(rows(n),) for n in (3, 4)]
    yield case("compiled before, with other sizes", smooth, sizes, before=[(rows(n),) for n in (7, 8)])


@count_graphs.alternative
def uses_a_class(function, calls):
    class Backend:
        graphs = 0

        def __call__(self, graph, example_inputs):
            self.graphs += 1
            return graph

    torch._dynamo.reset()
    backend = Backend()
    compiled = torch.compile(function, backend=backend)
    for args in calls:
        compiled(*args)
    return backend.graphs


@count_graphs.alternative
def uses_the_compilers_own_counter(function, calls):
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter)
    _ = [compiled(*args) for args in calls]
    return counter.frame_count


@count_graphs.misconception(
    "You did not forget what was compiled before. A size that has varied once is variable from then on, so "
    "your count depends on the past: `torch.compiler.reset()` first."
)
def keeps_the_past(function, calls):
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(function, backend=backend)
    for args in calls:
        compiled(*args)
    return len(graphs)


@count_graphs.misconception(
    "You count how often a graph *runs*. The backend is called when a graph is made; what it returns is "
    "called for every use."
)
def counts_the_runs(function, calls):
    runs = []

    def backend(graph, example_inputs):
        def run(*args):
            runs.append(1)
            return graph.forward(*args)

        return run

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend)
    for args in calls:
        compiled(*args)
    return len(runs)


@count_graphs.misconception(
    "You compile inside the loop, with a backend for each call. A backend that is new shares nothing with "
    "the one before, so every call begins again."
)
def compiles_for_each_call(function, calls):
    graphs = []
    torch.compiler.reset()
    for args in calls:

        def backend(graph, example_inputs):
            graphs.append(graph)
            return graph.forward

        torch.compile(function, backend=backend)(*args)
    return len(graphs)


@count_graphs.misconception(
    "`torch._dynamo.explain` looks at one call. What later calls compile anew, it has not seen."
)
def explains_the_first_call(function, calls):
    return torch._dynamo.explain(function)(*calls[0]).graph_count


@count_graphs.misconception(
    "With `fullgraph=True` a graph break is an error, and there is nothing to count. Here the breaks are to "
    "be counted."
)
def demands_one_graph(function, calls):
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for args in calls:
        compiled(*args)
    return len(graphs)


@count_graphs.misconception(
    "With `dynamic=True` sizes are variable from the first call on. That is another setting, with other counts."
)
def asks_for_dynamic_shapes(function, calls):
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for args in calls:
        compiled(*args)
    return len(graphs)


@count_graphs.misconception(
    "You read the count before the calls. `torch.compile` compiles nothing until its function is called."
)
def counts_too_early(function, calls):
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend)
    n = len(graphs)
    for args in calls:
        compiled(*args)
    return n


# ---- break_free_gate ---------------------------------------------------------------------------------------

break_free_gate = Exercise(
    reference.break_free_gate,
    title="A branch that is no branch",
    objective="inference.compile",
    difficulty=2,
    minutes=8,
    stretch=True,
    observes=[observe.value(1e-6, 1e-6)],
    hints=(
        "Python's `if` needs to know *now* whether the sum is positive; a graph is made before the numbers "
        "are there. Which operator chooses between two tensors by a third one?",
        "Compute both results, and let a condition of one element choose. The condition is about the whole "
        "tensor, not about each element.",
        "`torch.where(condition, a, b)` broadcasts: a condition without dimensions chooses for all elements "
        "at once. Write the condition with the sum, as a tensor, and do not turn it into a Python bool.",
    ),
    why="`torch.where` makes the choice a part of the graph. Both sides are computed, which costs a little "
    "and needs both to be harmless. Where a side is expensive, `torch.cond` keeps two graphs and runs one "
    "of them.",
)


def reasons_of_breaks() -> tuple[str, ...]:
    from torch._dynamo.utils import counters

    return tuple(sorted(reason.splitlines()[0] for reason in counters["graph_break"]))


@break_free_gate.scenario
def compile_and_run(answer, x, other):
    from torch._dynamo.testing import CompileCounter
    from torch._dynamo.utils import counters

    eager = [answer(x), answer(other)]
    with fresh_compiler():
        counters.clear()
        counter = CompileCounter()
        compiled = torch.compile(answer, backend=counter)
        in_graphs = [compiled(x), compiled(other)]
        graphs = counter.frame_count
        reasons = reasons_of_breaks() if graphs > 1 else ()
        counters.clear()
    return {"eager": eager, "compiled": in_graphs, "graphs": graphs, "stopped by": reasons}


@break_free_gate.cases
def _(rng):
    def of(*numbers):
        return torch.tensor(numbers)

    yield case("a sum of 3 and a sum of -3", of(4.0, -2.0, 1.0), of(2.0, -6.0, 1.0))
    yield case("a sum of -2, then one of exactly 0", of(-0.5, -1.5), of(1.5, -1.5))
    matrix = torch.randn(2, 3, generator=rng)
    yield case("matrices that lie transposed", matrix.t() - 5, matrix.t() + 5)


@break_free_gate.alternative
def indexes_a_stack(x):
    return torch.stack([x - 1, x * 2])[(x.sum() > 0).long()]


@break_free_gate.alternative
def blends(x):
    gate = (x.sum() > 0).to(x.dtype)
    return gate * (x * 2) + (1 - gate) * (x - 1)


@break_free_gate.alternative
def keeps_two_branches(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


@break_free_gate.misconception(
    "`if` asks the tensor for a Python bool. The compiler ends its graph there, runs it, and begins a new "
    "one for each branch: three graphs in place of one."
)
def branches_in_python(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


@break_free_gate.misconception(
    "`.item()` makes a Python number of the sum. A graph can't hold it: it ends there, as it does at an `if`."
)
def asks_for_the_item(x):
    if x.sum().item() > 0:
        return x * 2
    return x - 1


@break_free_gate.misconception(
    "You kept one branch for good. That is one graph, and it is what tracing an example gives: wrong for "
    "every other input."
)
def freezes_the_branch(x):
    return x * 2


@break_free_gate.misconception(
    "Your condition is about each element. The gate looks at the sum of all of them, and chooses once for "
    "the whole tensor."
)
def chooses_per_element(x):
    return torch.where(x > 0, x * 2, x - 1)


@break_free_gate.misconception("A sum of exactly 0 is not greater than 0, so it gets `x - 1`.")
def counts_zero_as_positive(x):
    return torch.where(x.sum() >= 0, x * 2, x - 1)


# ---- unwrapped_state_dict ----------------------------------------------------------------------------------

unwrapped_state_dict = Exercise(
    reference.unwrapped_state_dict,
    title="The names that the model itself has",
    objective="inference.compile",
    difficulty=2,
    minutes=8,
    stretch=True,
    observes=[observe.value()],
    hints=(
        "A wrapper is a module that has the model as its child. Under which name? Look at the names that "
        "the wrapped model's state dict has.",
        "Take off wrappers from the outside as long as there are any, of either kind. Or take their words "
        "off the front of each name, again and again. What stands further inside belongs to the model.",
        "A compiled model holds the original as `_orig_mod`, a data-parallel one as `module`. A loop, since "
        "there may be several; a test that a plain model does not pass, since it may have a part of that "
        "name.",
    ),
    why="A wrapper shares the weights of what it wraps, so the inner model's own state dict is the one to "
    "save; it loads into a model that is wrapped in another way, or not at all. Replacing text in names "
    "hits names of the model that look alike.",
)


class Net(nn.Module):
    """A model with a part called `module`, and one called `submodule`."""

    def __init__(self):
        super().__init__()
        self.submodule = nn.Linear(2, 3)
        self.module = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self.submodule(x))


@unwrapped_state_dict.scenario
def names_and_tensors(answer, model):
    """Any mapping will do, in any order."""
    state = answer(model)
    return dict(sorted(state.items())) if hasattr(state, "items") else state


@unwrapped_state_dict.cases
def _(rng):
    def compiled(model):
        return torch.compile(model, backend="eager")

    def linear():
        layer = nn.Linear(3, 2)
        layer.weight = nn.Parameter(torch.randn(3, 2, generator=rng).t())
        return layer

    yield case("no wrapper", linear())
    yield case("compiled", compiled(linear()))
    yield case("data parallel", nn.DataParallel(linear()))
    yield case("compiled, then data parallel", nn.DataParallel(compiled(linear())))
    yield case("data parallel, then compiled", compiled(nn.DataParallel(linear())))
    yield case("data parallel twice, with compile between", nn.DataParallel(compiled(nn.DataParallel(Net()))))
    yield case("a part called module, not wrapped", Net())
    yield case("a part called module, compiled", compiled(Net()))
    yield case("a part called module, data parallel", nn.DataParallel(Net()))


WRAPPERS = ("_orig_mod.", "module.")


@unwrapped_state_dict.alternative
def takes_off_by_type(model):
    while True:
        if isinstance(model, nn.DataParallel):
            model = model.module
        elif type(model).__name__ == "OptimizedModule":
            model = model._orig_mod
        else:
            return model.state_dict()


@unwrapped_state_dict.alternative
def strips_what_all_names_have(model):
    state = model.state_dict()
    for _ in range(10):
        for prefix in ("_orig_mod.", "module."):
            if all(name.startswith(prefix) for name in state):
                state = {name[len(prefix) :]: tensor for name, tensor in state.items()}
    return state


@unwrapped_state_dict.misconception(
    "These are the names with the wrappers in front. They load into a model that is wrapped in just this "
    "way, and into no other."
)
def keeps_the_wrappers(model):
    return model.state_dict()


@unwrapped_state_dict.misconception(
    "You take off `_orig_mod` and leave `module` of the data-parallel wrapper."
)
def takes_off_compile_only(model):
    while hasattr(model, "_orig_mod"):
        model = model._orig_mod
    return model.state_dict()


@unwrapped_state_dict.misconception(
    "You take off the data-parallel wrapper and leave that of `torch.compile`."
)
def takes_off_parallel_only(model):
    while isinstance(model, nn.DataParallel):
        model = model.module
    return model.state_dict()


@unwrapped_state_dict.misconception(
    "You look once for each wrapper. They may come in any order and more than once: go on until there is none."
)
def looks_once(model):
    if hasattr(model, "_orig_mod"):
        model = model._orig_mod
    if isinstance(model, nn.DataParallel):
        model = model.module
    return model.state_dict()


@unwrapped_state_dict.misconception(
    "`replace` takes the words out wherever they stand. `submodule.weight` becomes `subweight`, and a part "
    "that is called `module` loses its name."
)
def replaces_everywhere(model):
    state = model.state_dict()
    return {name.replace("_orig_mod.", "").replace("module.", ""): t for name, t in state.items()}


@unwrapped_state_dict.misconception(
    "Everything with an attribute `module` is a wrapper to you. A model may have a part of that name: ask "
    "for the type."
)
def takes_every_module(model):
    while hasattr(model, "_orig_mod") or hasattr(model, "module"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model.state_dict()


# ---- largest_difference ------------------------------------------------------------------------------------

largest_difference = Exercise(
    reference.largest_difference,
    title="Is the artifact the model?",
    objective="inference.export",
    difficulty=2,
    minutes=8,
    observes=[observe.value(**CLOSE)],
    hints=(
        "What could hide a difference? Signs that cancel, a mean, a batch that is not looked at, a shape "
        "that broadcasts, and one kind of number that is larger than nothing.",
        "For each batch: compare the shapes, then the largest absolute difference, as a tensor. Then the "
        "largest over the batches, with a `max` that does not lose NaN.",
        "Python's `max(0.0, nan)` is 0.0. `torch.stack(gaps).max()` keeps NaN. Compare `.shape` and raise "
        "before you subtract, and do it all under `torch.no_grad()`.",
    ),
    why="A test of an artifact is only as good as what it can't overlook. One element, in one batch of one "
    "size, is enough; shapes that broadcast are a difference; and NaN must not vanish in a comparison that "
    "is False.",
)


class Shifted:
    """A callable that answers as `model` does, with something done to the answer."""

    def __init__(self, model: Callable, change: Callable[[Tensor], Tensor]):
        self.model, self.change = model, change

    def __call__(self, x: Tensor) -> Tensor:
        return self.change(self.model(x))


@largest_difference.scenario
def compare_with_a_changed_artifact(answer, model, batches, change):
    return answer(model, Shifted(copy.deepcopy(model), change), batches)


@largest_difference.cases
def _(rng):
    def batches(*sizes):
        return [torch.randn(n, 3, generator=rng) for n in sizes]

    def linear():
        return nn.Linear(3, 2).eval()

    def one_element(value):
        def change(y):
            y = y.clone()
            y[-1, 0] += value
            return y

        return change

    def only_for(rows, value):
        return lambda y: y + value if len(y) == rows else y

    yield case("no difference", linear(), batches(2), lambda y: y)
    yield case("0.25 less in one element", linear(), batches(3), one_element(-0.25))
    yield case("0.5 more in the first of two batches", linear(), batches(1, 4), only_for(1, 0.5))
    yield case("0.5 more in the last of three batches", linear(), batches(1, 4, 2), only_for(2, 0.5))
    yield case("NaN in the first batch", linear(), batches(2, 3), only_for(2, math.nan))
    yield case("NaN in the last batch", linear(), batches(2, 3), only_for(3, math.nan))
    yield case("a NaN in one element", linear(), batches(3), one_element(math.nan))
    yield case("a NaN beside a difference of 2", linear(), batches(3), lambda y: one_element(math.nan)(y) + 2)
    yield case("answers that lost a row", linear(), batches(2), lambda y: y[:1])
    yield case(
        "inputs that lie transposed", linear(), [b.t() for b in (torch.randn(3, 4),)], one_element(2.0)
    )
    yield case("a model with dropout, in eval mode", nn.Dropout(0.5).eval(), batches(4), only_for(4, -0.125))


@largest_difference.alternative
def flattens_everything(model, artifact, batches):
    with torch.inference_mode():
        pairs = [(model(x), artifact(x)) for x in batches]
    for expected, got in pairs:
        if got.shape != expected.shape:
            raise ValueError("the answers have different shapes")
    return max_of(torch.cat([(a - b).flatten() for a, b in pairs]))


def max_of(gaps: Tensor) -> float:
    return float("nan") if gaps.isnan().any() else float(gaps.abs().max())


@largest_difference.alternative
@torch.no_grad()
def uses_the_norm(model, artifact, batches):
    worst = torch.tensor(0.0)
    for x in batches:
        ours, theirs = model(x), artifact(x)
        if tuple(ours.shape) != tuple(theirs.shape):
            raise ValueError(f"{ours.shape} is not {theirs.shape}")
        worst = torch.maximum(worst, torch.linalg.vector_norm(ours - theirs, ord=math.inf))
    return worst.item()


@largest_difference.misconception(
    "Without `abs` a difference to one side counts as negative, and the largest is 0."
)
def forgets_the_sign(model, artifact, batches):
    gaps = []
    with torch.no_grad():
        for batch in batches:
            expected, got = model(batch), artifact(batch)
            if expected.shape != got.shape:
                raise ValueError("shapes differ")
            gaps.append((got - expected).max())
    return torch.stack(gaps).max().item()


@largest_difference.misconception(
    "A mean hides it: one wrong element among a million is a mean of almost nothing. Take the largest."
)
def takes_the_mean(model, artifact, batches):
    gaps = []
    with torch.no_grad():
        for batch in batches:
            expected, got = model(batch), artifact(batch)
            if expected.shape != got.shape:
                raise ValueError("shapes differ")
            gaps.append((expected - got).abs().mean())
    return torch.stack(gaps).max().item()


@largest_difference.misconception(
    "You look at one batch. An artifact may be right at the size of its example and wrong at all others."
)
def looks_at_the_last_batch(model, artifact, batches):
    with torch.no_grad():
        for batch in batches:
            expected, got = model(batch), artifact(batch)
            if expected.shape != got.shape:
                raise ValueError("shapes differ")
            gap = (expected - got).abs().max()
    return gap.item()


@largest_difference.misconception(
    "Python's `max` asks whether one number is larger, and NaN never is. Starting from 0.0, NaN is lost."
)
def loses_nan_between_batches(model, artifact, batches):
    worst = 0.0
    with torch.no_grad():
        for batch in batches:
            expected, got = model(batch), artifact(batch)
            if expected.shape != got.shape:
                raise ValueError("shapes differ")
            worst = max(worst, (expected - got).abs().max().item())
    return worst


@largest_difference.misconception(
    "You replaced NaN with a number. An artifact that answers NaN then looks as if it were right."
)
def replaces_nan(model, artifact, batches):
    gaps = []
    with torch.no_grad():
        for batch in batches:
            expected, got = model(batch), artifact(batch)
            if expected.shape != got.shape:
                raise ValueError("shapes differ")
            gaps.append((expected - got).nan_to_num().abs().max())
    return torch.stack(gaps).max().item()


@largest_difference.misconception(
    "You subtract shapes that differ. They broadcast, and a lost dimension or row becomes an ordinary "
    "difference."
)
def lets_shapes_broadcast(model, artifact, batches):
    with torch.no_grad():
        gaps = [(model(batch) - artifact(batch)).abs().max() for batch in batches]
    return torch.stack(gaps).max().item()


@largest_difference.misconception(
    "You divide by the size of the answer. That is the relative difference; the absolute one was asked for."
)
def takes_the_relative_difference(model, artifact, batches):
    gaps = []
    with torch.no_grad():
        for batch in batches:
            expected, got = model(batch), artifact(batch)
            if expected.shape != got.shape:
                raise ValueError("shapes differ")
            gaps.append(((expected - got) / expected).abs().max())
    return torch.stack(gaps).max().item()


# ---- export_dynamic ----------------------------------------------------------------------------------------

export_dynamic = Exercise(
    reference.export_dynamic,
    title="A program for every batch size",
    objective="inference.export",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value(**CLOSE)],
    hints=(
        "Two decisions are made when a model is exported and can't be changed afterwards: its mode, and "
        "which sizes are numbers and which are names.",
        "Put a copy into eval mode, so that yours stays as it is. Then export it with the example, and say "
        "that dimension 0 of the one input is a `Dim`.",
        "`dynamic_shapes` has the structure of the arguments: a tuple with one entry per input, and the "
        "entry is a dict from dimension to `Dim`. The arguments themselves are a tuple as well, also if "
        "there is one.",
    ),
    why="Export runs the model once, with sizes and without numbers, and writes down what happens. A size "
    "that has no name is written down as a number, with a guard that refuses all others. In train mode it "
    "is dropout that is written down. The copy keeps your model out of it.",
)


def answers_of(program: torch.export.ExportedProgram, example: Tensor) -> dict[str, Any]:
    """What the program answers at several sizes, or which error it raises, and whether it repeats itself."""
    module, seen = program.module(), {}
    for rows in (1, len(example), 5, 300):
        x = torch.cat([example] * (rows // len(example) + 1))[:rows]
        try:
            with torch.no_grad():
                seen[f"{rows} rows"] = {
                    "answer": module(x),
                    "the same twice": torch.equal(module(x), module(x)),
                }
        except Exception:
            seen[f"{rows} rows"] = "refused"
    return seen


@export_dynamic.scenario
def export_and_run(answer, model, example):
    with fresh_compiler():
        program = answer(model, example)
        if not isinstance(program, torch.export.ExportedProgram):
            return {"kind": type(program).__name__}
        return {"kind": "ExportedProgram", **answers_of(program, example)}


@export_dynamic.cases
def _(rng):
    def x(*shape):
        return torch.randn(*shape, generator=rng)

    yield case(
        "a layer and a dropout, in eval mode", nn.Sequential(nn.Linear(3, 2), nn.Dropout()).eval(), x(2, 3)
    )
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    yield case("batch norm and dropout, in train mode", network, x(4, 3))
    frozen = nn.Sequential(nn.LayerNorm(3), nn.Dropout(0.5))
    frozen[0].eval()
    yield case("sequences that lie transposed, with a part in eval mode", frozen, x(3, 2, 3).transpose(0, 2))


@export_dynamic.alternative
def names_no_dimension(model, example):
    twin = copy.deepcopy(model).train(False)
    return torch.export.export(twin, args=(example,), dynamic_shapes=[{0: torch.export.Dim.DYNAMIC}])


@export_dynamic.alternative
def puts_modes_back(model, example):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        return torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    finally:
        for module, mode in modes:
            module.training = mode


@export_dynamic.misconception(
    "Without `dynamic_shapes` the size of the example is written down as a number. The program refuses "
    "every other one."
)
def exports_the_size_of_the_example(model, example):
    return torch.export.export(copy.deepcopy(model).eval(), (example,))


@export_dynamic.misconception(
    "The mode is decided when you export. In train mode the program drops out at random, and no `eval()` "
    "changes that afterwards."
)
def exports_in_train_mode(model, example):
    batch = torch.export.Dim("batch")
    return torch.export.export(copy.deepcopy(model).train(), (example,), dynamic_shapes=({0: batch},))


@export_dynamic.misconception(
    "You exported the model as it came. Its mode is the caller's business; a program for inference is "
    "exported from eval mode."
)
def exports_in_the_given_mode(model, example):
    batch = torch.export.Dim("batch")
    return torch.export.export(copy.deepcopy(model), (example,), dynamic_shapes=({0: batch},))


@export_dynamic.misconception("You leave the model in eval mode. Export a copy, or put the modes back.")
def leaves_the_model_in_eval_mode(model, example):
    batch = torch.export.Dim("batch")
    return torch.export.export(model.eval(), (example,), dynamic_shapes=({0: batch},))


@export_dynamic.misconception(
    "You export with one row. Sizes 0 and 1 are special: they broadcast, so they are written down as "
    "numbers, and the program takes no other size. Export with two rows or more."
)
def exports_with_one_row(model, example):
    shapes = ({0: torch.export.Dim.AUTO},)
    return torch.export.export(copy.deepcopy(model).eval(), (example[:1],), dynamic_shapes=shapes)


@export_dynamic.misconception(
    "You gave the batch an upper limit, and the program refuses what is larger. There is to be none."
)
def sets_a_limit(model, example):
    batch = torch.export.Dim("batch", max=64)
    return torch.export.export(copy.deepcopy(model).eval(), (example,), dynamic_shapes=({0: batch},))


@export_dynamic.misconception(
    "`torch.jit.trace` makes TorchScript, which is deprecated, and it writes down the path of the example "
    "without a word. `torch.export` refuses what it can't represent."
)
def traces(model, example):
    return torch.jit.trace(copy.deepcopy(model).eval(), example)


@export_dynamic.misconception(
    "`torch.compile` speeds up a model in this process. It makes nothing that you could hand to another one."
)
def compiles(model, example):
    return torch.compile(copy.deepcopy(model).eval(), dynamic=True)


# ---- load_untrusted ----------------------------------------------------------------------------------------


def opener() -> str:
    """Which of the two loaders is at work: the one that knows a short list, or Python's own."""
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_globals.get("__name__") == "torch._weights_only_unpickler":
            return "the restricted loader"
    return "the loader without restriction"


class Hostile:
    """Its pickle calls `run_by_a_file` when it is loaded: a harmless stand-in for what a stranger might
    call."""

    def __reduce__(self):
        return run_by_a_file, ()


RUN_BY_A_FILE: list[str] = []


def run_by_a_file() -> None:
    RUN_BY_A_FILE.append(f"in {opener()}")


class Settings:
    """A class of the caller's. It notes who opened it."""

    def __init__(self, **values: Any):
        self.values = values

    def __setstate__(self, state: dict) -> None:
        self.values, self.opened_by = state["values"], opener()


load_untrusted = Exercise(
    reference.load_untrusted,
    title="A file from a stranger",
    objective="inference.trust",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "A pickle is a program. Which argument of `torch.load` restricts it to tensors and plain "
        "containers, and what may you add to that list for the time of one call?",
        "Load with weights only, inside a context manager that allows the classes of the caller and takes "
        "them back afterwards. Whatever is refused is refused: do not try again with less caution.",
        "The context manager is `torch.serialization.safe_globals([...])`. Its opposite is "
        "`add_safe_globals`, which stays in force for the whole process.",
    ),
    why="The restricted loader knows a short list of types and calls nothing else. Classes that you trust "
    "are allowed for one call. The error is the result: a second try without the restriction gives the "
    "stranger what was refused, and so does allowing whatever the file asks for.",
)


def plain(value: Any) -> Any:
    """What is in Settings can be compared as a dict."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return {"Settings": vars(value)} if isinstance(value, Settings) else value


@load_untrusted.scenario
def load_and_look_around(answer, file, allowed=()):
    RUN_BY_A_FILE.clear()
    before = torch.serialization.get_safe_globals()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "checkpoint.pt"))
        torch.save(FILES[file](), path)
        try:
            loaded = plain(answer(path, allowed))
        except pickle.UnpicklingError:
            loaded = "UnpicklingError"
        added = len(set(torch.serialization.get_safe_globals()) - set(before))
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
    return {"loaded": loaded, "the file ran": list(RUN_BY_A_FILE), "classes allowed from now on": added}


# What the files hold. The answer gets a path, so these are made when the file is written.


def weights_and_a_step():
    return {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "step": 3}


def weights_and_code():
    return {"model": {"weight": torch.ones(2)}, "extra": Hostile()}


def weights_and_settings():
    return {"weight": torch.ones(2).neg(), "args": Settings(lr=0.1, layers=[2, 3])}


def settings_and_code():
    return {"args": Settings(lr=0.1), "extra": Hostile()}


def a_whole_model():
    return nn.Linear(2, 2)


def a_transposed_weight():
    return {"weight": torch.arange(6.0).reshape(2, 3).t()}


FILES = {
    make.__name__: make
    for make in (
        weights_and_a_step,
        weights_and_code,
        weights_and_settings,
        settings_and_code,
        a_whole_model,
        a_transposed_weight,
    )
}


@load_untrusted.cases
def _(rng):
    yield case("a state dict and a number", "weights_and_a_step")
    yield case("a file that brings code along", "weights_and_code")
    yield case("settings, not allowed", "weights_and_settings")
    yield case("settings, allowed", "weights_and_settings", (Settings,))
    yield case("code beside what is allowed", "settings_and_code", (Settings,))
    yield case("a whole model", "a_whole_model")
    yield case("a weight that lies transposed", "a_transposed_weight")


@load_untrusted.alternative
def loads_from_an_open_file(path, allowed=()):
    with open(path, "rb") as file, torch.serialization.safe_globals([*allowed]):
        return torch.load(file, map_location=torch.device("cpu"), weights_only=True)


@load_untrusted.alternative
def takes_the_list_back(path, allowed=()):
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals(list(allowed))
    try:
        return torch.load(path, map_location="cpu")
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


@load_untrusted.misconception(
    "`weights_only=False` runs whatever the pickle says. That is for files that you wrote yourself."
)
def trusts_the_file(path, allowed=()):
    return torch.load(path, map_location="cpu", weights_only=False)


@load_untrusted.misconception(
    "You try it safely and then, if it is refused, without caution. The refusal *is* the answer: the second "
    "try runs the code."
)
def tries_again_without_caution(path, allowed=()):
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return torch.load(path, map_location="cpu", weights_only=False)


@load_untrusted.misconception("You leave `allowed` out, so the caller's own classes are refused as well.")
def ignores_what_is_allowed(path, allowed=()):
    return torch.load(path, map_location="cpu", weights_only=True)


@load_untrusted.misconception(
    "`add_safe_globals` holds for the whole process. The next file, from someone else, finds the door open: "
    "`safe_globals` closes it again."
)
def leaves_the_door_open(path, allowed=()):
    torch.serialization.add_safe_globals(list(allowed))
    return torch.load(path, map_location="cpu", weights_only=True)


@load_untrusted.misconception(
    "You allow whatever the file asks for. `get_unsafe_globals_in_checkpoint` tells you what to *look at*; "
    "allowing all of it is no restriction."
)
def allows_what_the_file_asks_for(path, allowed=()):
    asked = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    found = [getattr(importlib.import_module(n.rpartition(".")[0]), n.rpartition(".")[2]) for n in asked]
    with torch.serialization.safe_globals(found):
        return torch.load(path, map_location="cpu", weights_only=True)


@load_untrusted.misconception(
    "You turn the refusal into an empty result. The caller can't tell it from a file that holds nothing."
)
def swallows_the_error(path, allowed=()):
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return {}


# ---- save_weights ------------------------------------------------------------------------------------------

save_weights = Exercise(
    reference.save_weights,
    title="A file that is nothing but weights",
    objective="inference.weights",
    difficulty=2,
    minutes=12,
    points=2,
    observes=[observe.value()],
    hints=(
        "`save_file` takes a dict of tensors and refuses two things: tensors that share memory, and tensors "
        "that do not lie in one piece. Which entries of a state dict are like that?",
        "Keep one name of each tied weight, and make a contiguous copy where one is needed. safetensors has "
        "a function for a whole model that does both.",
        "`safetensors.torch.save_model` is it. By hand: go through the state dict and remember which "
        "tensors you have met by identity (`data_ptr`), not by their values.",
    ),
    why="A file of weights has no notion of two names for one tensor, so one of them is left out, and "
    "loading has to know that. The format holds names, shapes, dtypes and bytes: nothing in it can run. "
    "What it also lacks is everything else: optimizer, step, settings.",
)


class Tied(nn.Module):
    """An embedding and a head that share one weight, with a norm between and a table that is not saved."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(5, 2)
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 5, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("table", torch.ones(3), persistent=False)


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Each name of the state dict, with the first name of the tensor that it leads to."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in sorted(state.items())}


def read_back(path: str, model: nn.Module) -> Any:
    """How often each tensor of the model is in the file, and its values, under whichever name it is there."""
    if not os.path.exists(path):
        return "no file"
    try:
        stored = safetensors.torch.load_file(path)
    except Exception:
        return "not a safetensors file"
    names = canonical_names(model)
    found: dict[str, dict] = {name: {"times": 0} for name in sorted(set(names.values()))}
    for name, tensor in sorted(stored.items()):
        entry = found.setdefault(names.get(name, f"{name} (unknown)"), {"times": 0})
        entry.update(times=entry["times"] + 1, values=tensor)
    return found


@save_weights.scenario
def save_and_read(answer, model):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.safetensors"))
        answer(model, path)
        return read_back(path, model)


@save_weights.cases
def _(rng):
    yield case("one layer", nn.Linear(3, 2))
    yield case("a tied head, and a batch norm with its statistics", Tied())
    yield case("two norms with equal values", nn.Sequential(nn.LayerNorm(3), nn.LayerNorm(3)))
    layer = nn.Linear(3, 2, bias=False)
    layer.weight = nn.Parameter(torch.randn(3, 2, generator=rng).t())
    yield case("a weight that lies transposed", layer)
    yield case("a model in eval mode, partly frozen", nn.Sequential(Tied().eval().requires_grad_(False)))


@save_weights.alternative
def drops_names_by_identity(model, path):
    seen, kept = set(), {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            kept[name] = tensor.detach().contiguous()
        seen.add(id(tensor))
    safetensors.torch.save_file(kept, path)


@save_weights.alternative
def keeps_the_last_name(model, path):
    state = model.state_dict(keep_vars=True)
    by_identity = {id(tensor): (name, tensor) for name, tensor in state.items()}
    data = safetensors.torch.save(
        {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in by_identity.values()}
    )
    Path(path).write_bytes(data)


@save_weights.misconception(
    "`save_file` refuses two names over one memory. Leave one name out, or let `save_model` do it."
)
def saves_the_state_dict(model, path):
    safetensors.torch.save_file({n: t.contiguous() for n, t in model.state_dict().items()}, path)


@save_weights.misconception(
    "You hand over tensors as they lie. `save_file` refuses one that is not contiguous, and the tied names "
    "as well."
)
def saves_tensors_as_they_lie(model, path):
    safetensors.torch.save_file(model.state_dict(), path)


@save_weights.misconception(
    "You cloned everything, which breaks the tie: the weight is in the file twice. For a small language "
    "model that is easily half of the file."
)
def clones_everything(model, path):
    state = {n: t.clone(memory_format=torch.contiguous_format) for n, t in model.state_dict().items()}
    safetensors.torch.save_file(state, path)


@save_weights.misconception(
    "`torch.save` writes a pickle in a zip file, whatever the file is called. It is not the safetensors format."
)
def saves_a_pickle(model, path):
    torch.save(model.state_dict(), path)


@save_weights.misconception(
    "You left out tensors whose values are equal. Two fresh norms are equal and are two all the same: "
    "compare identity, not values."
)
def drops_equal_values(model, path):
    kept: dict = {}
    for name, tensor in model.state_dict().items():
        if not any(t.shape == tensor.shape and torch.equal(t, tensor) for t in kept.values()):
            kept[name] = tensor.contiguous()
    safetensors.torch.save_file(kept, path)


@save_weights.misconception(
    "You saved parameters and no buffers. A batch norm without its statistics answers with those of a new one."
)
def saves_parameters_only(model, path):
    safetensors.torch.save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, path)


@save_weights.misconception(
    "You saved every buffer, also those that are not persistent. They are computed anew by the model, and "
    "are not in its state dict."
)
def saves_every_buffer(model, path):
    named = [*model.named_parameters(), *model.named_buffers()]
    safetensors.torch.save_file({n: t.detach().contiguous() for n, t in named}, path)


# ---- load_weights ------------------------------------------------------------------------------------------

load_weights = Exercise(
    reference.load_weights,
    title="Weights back, and still tied",
    objective="inference.weights",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    hints=(
        "The file has one name of the tied weight, and the model two. What does a strict `load_state_dict` "
        "say to that? What does a lenient one keep quiet about?",
        "Copy the values into the tensors that are there. Then ask which names are missing, and whether "
        "each of them leads to a tensor that came under another name.",
        "safetensors has `load_model` beside `load_file`; it does this. By hand: `load_state_dict(..., "
        "strict=False)` returns what is missing, and `keep_vars=True` gives a state dict of the Parameters "
        "themselves.",
    ),
    why="Filling one name of a tied weight fills the other, so the missing name is no loss, and strictness "
    "has to know that. `assign=True` puts new Parameters in place of the old ones: the tie is gone, and the "
    "optimizer holds what nobody uses any more.",
)


@load_weights.scenario
def load_and_look(answer, model, stored):
    """What the model holds after a refusal is open, so it is put back; what the call returns is open as
    well."""
    held, before = dict(model.named_parameters(remove_duplicate=False)), copy.deepcopy(model.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.safetensors"))
        safetensors.torch.save_file(stored, path)
        try:
            answer(model, path)
        except Exception:
            model.load_state_dict(before)
            raise
    after = dict(model.named_parameters(remove_duplicate=False))
    same = {name: after.get(name) is parameter for name, parameter in held.items()}
    return {"values": dict(sorted(model.state_dict().items())), "the Parameters that were there": same}


@load_weights.cases
def _(rng):
    def stored(model, *left_out):
        state = {n: torch.randn(t.shape, generator=rng) for n, t in model.state_dict().items()}
        counters = [n for n in state if n.endswith("num_batches_tracked")]
        state.update((n, torch.tensor(7)) for n in counters)
        return {n: t for n, t in state.items() if n not in left_out}

    yield case("one layer", nn.Linear(3, 2), stored(nn.Linear(3, 2)))
    yield case("a tied head, stored as emb.weight", Tied(), stored(Tied(), "head.weight"))
    yield case("a tied head, stored as head.weight", Tied(), stored(Tied(), "emb.weight"))
    yield case("a bias is missing", nn.Linear(3, 2), stored(nn.Linear(3, 2), "bias"))
    yield case("neither name of a tied weight is there", Tied(), stored(Tied(), "emb.weight", "head.weight"))
    layer = nn.Linear(3, 2)
    layer.weight = nn.Parameter(torch.randn(3, 2, generator=rng).t())
    yield case("a weight that lies transposed", layer, stored(layer))
    yield case(
        "a model in eval mode", nn.Sequential(Tied().eval()), stored(nn.Sequential(Tied()), "0.head.weight")
    )


@load_weights.alternative
def copies_by_hand(model, path):
    stored = safetensors.torch.load_file(path)
    own = model.state_dict(keep_vars=True)
    filled = {id(own[name]) for name in stored}
    missing = [name for name, tensor in own.items() if id(tensor) not in filled]
    if missing:
        raise RuntimeError(f"missing in the file: {missing}")
    with torch.no_grad():
        for name, tensor in stored.items():
            own[name].copy_(tensor)


@load_weights.alternative
def adds_the_tied_names(model, path):
    stored = safetensors.torch.load_file(path)
    own = model.state_dict(keep_vars=True)
    by_identity = {id(own[name]): tensor for name, tensor in stored.items()}
    complete = {name: by_identity[id(t)] for name, t in own.items() if id(t) in by_identity}
    model.load_state_dict(complete)


@load_weights.misconception(
    "A strict load asks for both names of a tied weight, and the file has one. That is no loss: filling one "
    "fills the other."
)
def loads_strictly(model, path):
    model.load_state_dict(safetensors.torch.load_file(path))


@load_weights.misconception(
    "With `strict=False` a tied name may be missing, and so may everything else: the bias that the file "
    "lacks stays at its random start, without a word."
)
def loads_leniently(model, path):
    model.load_state_dict(safetensors.torch.load_file(path), strict=False)


@load_weights.misconception(
    "`assign=True` puts a new Parameter under the name in the file and leaves the other name with the old "
    "one. The tie is gone, and the optimizer holds the old one."
)
def assigns(model, path):
    model.load_state_dict(safetensors.torch.load_file(path), strict=False, assign=True)


@load_weights.misconception(
    "You put new Parameters in and tied them again. The answers are right; an optimizer that held the old "
    "ones trains something that nobody uses any more. Copy into what is there."
)
def assigns_and_ties_again(model, path):
    stored = safetensors.torch.load_file(path)
    own = model.state_dict(keep_vars=True)
    fresh = {id(own[name]): nn.Parameter(t) for name, t in stored.items() if own[name].requires_grad}
    safetensors.torch.load_model(model, path)
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, fresh[id(parameter)])


@load_weights.misconception(
    "You copy the parameters and leave the buffers out. The statistics of a batch norm stay at those of a "
    "new model."
)
def loads_parameters_only(model, path):
    stored = safetensors.torch.load_file(path)
    own = dict(model.named_parameters(remove_duplicate=False))
    filled = {id(own[name]) for name in stored if name in own}
    if any(id(parameter) not in filled for parameter in own.values()):
        raise RuntimeError("a parameter is missing")
    with torch.no_grad():
        for name in own.keys() & stored.keys():
            own[name].copy_(stored[name])


# ---- questions ---------------------------------------------------------------------------------------------

row_alone = Question(
    "row_alone",
    objective="inference.modes",
    text="A model with batch norm is in eval mode. You ask it about one row alone, and about the same row "
    "in a batch of 64. **Are the two answers the same?**",
    choices={
        "a": "no: batch norm uses the rows that come together",
        "b": "yes, up to rounding",
        "c": "yes, and always with the same bits",
    },
    answer="b",
    replies={
        "a": "In train mode it does. In eval mode it uses the statistics that it has kept, so a row is on "
        "its own.",
        "b": "Right. Rows do not see each other. But another batch size may mean another kernel, which adds "
        "in another order, and the last bits of a sum depend on the order.",
        "c": "The numbers that go in are the same, and so is the formula. The order of the additions need "
        "not be, and nobody promises it.",
    },
)

sum_order = Question(
    "sum_order",
    objective="inference.determinism",
    text="In float32, what are `(a + b) + c` and `(a + c) + b` for `a, b, c = 1e8, 1.0, -1e8`?",
    choices={"a": "both 1", "b": "both 0", "c": "0 and 1"},
    answer="c",
    replies={
        "a": "On paper. In float32, numbers near 1e8 are 8 apart, so `1e8 + 1` is 1e8 again.",
        "b": "The first one is: the 1 is lost in 1e8. In the second the large numbers cancel before the 1 "
        "comes.",
        "c": "Right. Addition in floating point is not associative, so whoever changes the order changes "
        "the result.",
    },
)

empty_tensor = Question(
    "empty_tensor",
    objective="inference.determinism",
    text="With `torch.use_deterministic_algorithms` switched on: what is in `torch.empty(3)`?",
    choices={"a": "whatever was in that memory", "b": "zeros", "c": "NaN", "d": "nothing: it raises"},
    answer="c",
    replies={
        "a": "That is what `empty` gives by default, and it is not repeatable. So the switch does something "
        "about it.",
        "b": "Zeros would be repeatable as well, and would hide that somebody reads memory that nobody has "
        "written.",
        "c": "Right. It fills the memory with a value that you notice: NaN for floats, the largest number "
        "for integers. That costs one write.",
        "d": "Operators without a deterministic form raise. `empty` has one, if it fills its memory.",
    },
)

padded_last = Question(
    "padded_last",
    objective="inference.requests",
    text="Two requests of 5 and 2 tokens are padded **on the right** to one batch, and a language model "
    "gives `logits` of shape (2, 5, vocab). **What is `logits[1, -1]`?**",
    choices={
        "a": "what follows the last token of the short request",
        "b": "what follows three tokens of padding",
        "c": "zeros, because there is no token",
    },
    answer="b",
    replies={
        "a": "That is `logits[1, 1]`. The last column of the short row is padding.",
        "b": "Right. A model says something at every position, also where nobody asked.",
        "c": "The id that pads is a number like any other. The model embeds it and answers.",
    },
)

compile_first = Question(
    "compile_first",
    objective="inference.compile",
    text="`compiled = torch.compile(function)`. **When is `function` compiled?**",
    choices={
        "a": "in this line",
        "b": "when `compiled` is called, and never again",
        "c": "when `compiled` is called, and again when something changes that was taken as fixed",
    },
    answer="c",
    replies={
        "a": "This line makes a wrapper and returns at once. Which shapes and types would it compile for?",
        "b": "The first call compiles. But what was found out holds for these types and sizes only, and "
        "every later call is tested against that.",
        "c": "Right. The tests are called guards. If one fails, the function is compiled again, for the new "
        "case.",
    },
)

sizes_and_graphs = Question(
    "sizes_and_graphs",
    objective="inference.compile",
    text="A compiled layer is called with batches of 3, 4, 5 and 6 rows. **How many graphs are made?**",
    choices={"a": "1", "b": "2", "c": "4"},
    answer="b",
    replies={
        "a": "The first graph is for 3 rows exactly: fixed sizes are faster, and most programs have only one.",
        "b": "Right. One for 3 rows. At 4 rows the size is seen to vary, and the second graph takes any.",
        "c": "It would be so if every size were fixed. After the first change the size is taken as variable.",
    },
)

compiled_in_place = Question(
    "compiled_in_place",
    objective="inference.compile",
    text="`model.compile()` is the form in place. **What are the names in `model.state_dict()` afterwards?**",
    choices={"a": "`_orig_mod.weight`, `_orig_mod.bias`", "b": "`weight`, `bias`", "c": "there are none"},
    answer="b",
    replies={
        "a": "Those are the names of the wrapper that `torch.compile(model)` returns. Here is no wrapper.",
        "b": "Right. The module stays what it was; only its call goes through the compiler.",
        "c": "The parameters are where they were. Compiling replaces computation, not weights.",
    },
)

traced_branch = Question(
    "traced_branch",
    objective="inference.export",
    text="""A module returns `x` if `x.sum() > 0`, and `-x` otherwise. It is traced with
`torch.jit.trace(module, torch.ones(2))`.
**What does the traced module make of `[-1., -1.]`?**""",
    choices={"a": "`[1., 1.]`", "b": "`[-1., -1.]`", "c": "an error"},
    answer="b",
    replies={
        "a": "The original does. Tracing wrote down what happened to the example, whose sum was positive.",
        "b": "Right. The `if` was decided by the example, once and for all, and is not in the trace.",
        "c": "That would be the honest thing, and it is what `torch.export` does. A trace gives a warning, "
        "and an answer.",
    },
)

one_row_example = Question(
    "one_row_example",
    objective="inference.export",
    text='You export with an example of **one** row and say that dimension 0 is `Dim("batch")`. **What '
    "happens?**",
    choices={
        "a": "the program takes batches of any size",
        "b": "the program takes one row only, and says so when it is called",
        "c": "the export itself refuses",
    },
    answer="c",
    replies={
        "a": "One might think so: the name says it. But a size of 1 broadcasts, and the program would have "
        "to be another one.",
        "b": "That is what happens with `Dim.AUTO`, which leaves the decision to the export. A named `Dim` "
        "is a demand.",
        "c": "Right. A size of 1 is written down as 1, and that contradicts the name. Export with two rows "
        "or more.",
    },
)

pickle_runs = Question(
    "pickle_runs",
    objective="inference.trust",
    text="A checkpoint holds a tensor, and an object whose pickle says: call `print` with this text. **What "
    "does `torch.load(file)` do, with nothing else said?**",
    choices={"a": "prints, and returns the dict", "b": "refuses", "c": "returns the dict without the object"},
    answer="b",
    replies={
        "a": "It did so before PyTorch 2.6, and still does with `weights_only=False`. It need not have been "
        "`print`.",
        "b": "Right. Since 2.6 the default is `weights_only=True`: a short list of types, and an error for "
        "all others.",
        "c": "A file that is read in part would be a surprise of its own. It is all or nothing.",
    },
)

tied_file = Question(
    "tied_file",
    objective="inference.weights",
    text="A model has a head that is tied to its embedding. "
    "`safetensors.torch.save_file(model.state_dict(), path)` **does what?**",
    choices={
        "a": "stores the weight twice",
        "b": "stores it once, and notes the second name",
        "c": "refuses",
    },
    answer="c",
    replies={
        "a": "That would double the file and break the tie when it is loaded. It has nothing that would "
        "undo that.",
        "b": "`torch.save` does, because it stores storages. A safetensors file holds names and bytes, one "
        "for one.",
        "c": "Right. Two names over one memory have no place in the format, and it does not choose for you.",
    },
)
