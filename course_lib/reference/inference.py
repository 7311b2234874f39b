"""The answers of notebook 09: inference and deployment.

Names of sizes: batch requests, seq tokens of a request, vocab tokens that there are.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram


def predict_logits(model: nn.Module, x: Tensor, batch_size: int) -> Tensor:
    """Return what `model` answers to all rows of `x`, in their order, as one tensor.

    `x` has shape (rows, ...), with at least one row. The model is called with at most `batch_size` rows at a time.
    It answers in eval mode, so that no answer depends on the other rows or on chance.
    No graph is recorded, the result requires no gradient, and no random number is drawn.
    Afterwards each submodule is in the mode in which it was. Parameters and buffers are not changed.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(rows) for rows in x.split(batch_size)])
    for module, mode in modes.items():
        module.training = mode
    return logits


def seed_everything(seed: int) -> None:
    """Make everything that follows repeatable: the same `seed`, the same numbers.

    Afterwards the global generators of Python (`random`), NumPy (`np.random`) and PyTorch depend on `seed` alone,
    whatever was drawn before; another seed gives other numbers. Nothing is drawn after seeding PyTorch's.
    From then on PyTorch *refuses* operators that have no deterministic implementation: they raise a RuntimeError.
    `seed` is at least 0 and less than 2**32. Other settings are up to you.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)


def pad_requests(requests: list[Tensor], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Make one batch of requests of unequal lengths, padded on the left: return `(ids, mask, positions)`.

    Each request is a tensor of shape (seq,) and dtype int64 with at least one token; there is at least one request.
    All three results have shape (batch, longest), and the requests keep their order.
    `ids` (int64) holds the tokens, each request at the right end of its row, and `pad_id` elsewhere.
    `mask` (bool) is True where a token of the request is. A request may contain `pad_id`: that is a token as well.
    `positions` (int64) counts the tokens of each request from 0, and is 0 at the padding.
    The requests are not changed.
    """
    lengths = torch.tensor([len(request) for request in requests])
    columns = torch.arange(int(lengths.max())) - (lengths.max() - lengths).unsqueeze(1)  # (batch, longest)
    mask = columns >= 0
    ids = torch.full(mask.shape, pad_id)
    ids[mask] = torch.cat(requests)
    return ids, mask, columns.clamp(min=0)


def last_token_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Return for each request the logits at its last token, as a tensor of shape (batch, vocab).

    `logits` has shape (batch, seq, vocab); `mask` has shape (batch, seq) and dtype bool, and is True at tokens.
    The tokens of a request stand next to each other, at least one, with padding before them, after them, or both.
    """
    place = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    last = (mask * place).argmax(dim=1)
    return logits[torch.arange(len(logits), device=logits.device), last]


def count_graphs(function: Callable, calls: Iterable[tuple]) -> int:
    """Return how many graphs `torch.compile` makes of `function`, called with each of `calls` in turn.

    Each call is a tuple of arguments. All options of `torch.compile` but the backend are the defaults.
    The count is that of a fresh start: what was compiled before has no influence (`torch.compiler` can be told
    to forget). No C++ compiler is needed: write a backend. It is a function that `torch.compile` calls for each
    graph with `(graph_module, example_inputs)`, and that returns what is to run in place of the graph.
    """
    graphs = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend)
    for args in calls:
        compiled(*args)
    return len(graphs)


def break_free_gate(x: Tensor) -> Tensor:
    """Return `x * 2` if the sum of all elements of `x` is greater than 0, and `x - 1` otherwise.

    `x` is a tensor of floats of any shape, all of them finite.
    Compiled by `torch.compile`, the function is one graph, and that graph serves inputs of both kinds.
    """
    return torch.where(x.sum() > 0, x * 2, x - 1)


def unwrapped_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model that may be wrapped, under the names that the model itself has.

    The wrappers are `torch.compile` and `nn.DataParallel`, any number of them, in any order; or there is none.
    They are around the whole model, not inside. A part of the model may be called `module`, but never the only one.
    """
    while hasattr(model, "_orig_mod") or isinstance(model, nn.DataParallel):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model.state_dict()


def largest_difference(model: Callable, artifact: Callable, batches: Iterable[Tensor]) -> float:
    """Return the largest absolute difference between the answers of `model` and of `artifact`, as a plain `float`.

    Both are called with each of the batches; there is at least one. The difference counts for every element
    of every batch. If one of them is NaN on any side, the result is NaN: the artifact is not to be trusted.
    Raise ValueError if two answers differ in shape.
    No graph is recorded. `model` is a module in eval mode or any callable.
    """
    gaps = []
    with torch.no_grad():
        for batch in batches:
            expected, got = model(batch), artifact(batch)
            if expected.shape != got.shape:
                raise ValueError(f"shapes differ: {tuple(expected.shape)} and {tuple(got.shape)}")
            gaps.append((expected - got).abs().max())
    return torch.stack(gaps).max().item()


def export_dynamic(model: nn.Module, example: Tensor) -> ExportedProgram:
    """Return `model` as a program for inference that takes batches of any size.

    The model is called with one tensor, whose first dimension is the batch; `example` is one, with 2 rows or more.
    The program answers as the model does in eval mode, for 1 row and more, without an upper limit.
    The result is a `torch.export.ExportedProgram`. The model is left as it was, with the mode of each submodule.
    """
    frozen = copy.deepcopy(model).eval()
    return torch.export.export(frozen, (example,), dynamic_shapes=({0: Dim("batch")},))


def load_untrusted(path: str, allowed: Iterable[type] = ()) -> Any:
    """Return what `torch.save` wrote to the file `path`, which comes from a stranger, without running its code.

    Tensors and the plain containers that `torch.load` takes by default are welcome, and the classes in `allowed`.
    For anything else raise `pickle.UnpicklingError`. No code that the file brings along is run, in any case.
    The tensors are put on the CPU. What `torch.load` allows afterwards is what it allowed before.
    """
    with torch.serialization.safe_globals(list(allowed)):
        return torch.load(path, map_location="cpu", weights_only=True)


def save_weights(model: nn.Module, path: str) -> None:
    """Write the weights of `model` to the file `path` in the safetensors format.

    The file holds all entries of the state dict. Names that are tied (two names of one Parameter) are stored once,
    under one of these names, whichever you like. Two tensors with equal values are two tensors.
    A weight may lie in memory in any order. The model is not changed.
    """
    save_model(model, path)


def load_weights(model: nn.Module, path: str) -> None:
    """Load the weights in the safetensors file `path` into `model`.

    Names that are tied in the model are in the file once, under any one of these names.
    The values go into the parameters and buffers that are there: an optimizer that holds them goes on with them,
    and what is tied stays tied. The mode of the model stays as it is.
    Raise RuntimeError if a tensor of the model is in the file under none of its names; what the model holds then
    is up to you. There is no tensor in the file that the model does not have.
    """
    load_model(model, path)
