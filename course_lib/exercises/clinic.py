"""What the patients of notebook 07 share: tiny models and data, and instruments to look at them with.

Imported by the exercises and by the notebook itself. The devices here are simulated: nothing is measured.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset

from course_lib.checking.records import tensors_in

BARS = "▁▂▃▄▅▆▇█"

# ---- tiny data and models ----------------------------------------------------------------------------------


def labelled_batches(sizes: list[int], generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Batches `(x, y)` of these sizes: x (size, 4), y (size,) the position of the largest of the first three."""
    batches = []
    for size in sizes:
        x = torch.randn(size, 4, generator=generator)
        batches.append((x, x[:, :3].argmax(dim=1)))
    return batches


def classifier(*, norm: bool = False, dropout: float = 0) -> nn.Sequential:
    """(batch, 4) -> (batch, 3) logits, with `body` and `head`, and between them what is asked for."""
    layers: dict[str, nn.Module] = {"body": nn.Linear(4, 5)}
    if norm:
        layers["norm"] = nn.BatchNorm1d(5)
    layers["act"] = nn.Tanh()
    if dropout:
        layers["drop"] = nn.Dropout(dropout)
    layers["head"] = nn.Linear(5, 3)
    return nn.Sequential(OrderedDict(layers))


class SignedRoot(nn.Module):
    """sign(x) * sqrt(|x|), whose derivative at 0 is not finite."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sign() * x.abs().sqrt()


class Tied(nn.Module):
    """An embedding and a head that share one weight: (batch, seq) of tokens -> (batch, seq, vocab) logits."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.emb(tokens))


class CountingBlock(nn.Module):
    """A block (batch, 4) -> (batch, 4) that counts how often its forward pass runs."""

    def __init__(self, dropout: float = 0) -> None:
        super().__init__()
        self.linear, self.dropout, self.calls = nn.Linear(4, 4), dropout, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return F.dropout(torch.tanh(self.linear(x)), self.dropout, self.training)


class Pixels(Dataset):
    """`n` tensors of three uint8 numbers, which count upwards."""

    def __init__(self, n: int) -> None:
        self.rows = torch.arange(3 * n, dtype=torch.uint8).view(n, 3)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


class Batches:
    """An iterable of batches that says nothing about its tensors when printed, as a loader does."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches)


class LoggingSGD(torch.optim.SGD):
    """SGD that notes the learning rate of its first group at every step."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.rates: list[float] = []

    def step(self, closure: Any = None) -> Any:
        self.rates.append(self.param_groups[0]["lr"])
        return super().step(closure)


# ---- instruments -------------------------------------------------------------------------------------------


def curve(values: list[float]) -> str:
    """Numbers as a row of bars between the first and the last of them."""
    low, high = min(values), max(values)
    steps = [round((value - low) / (high - low or 1) * (len(BARS) - 1)) for value in values]
    return f"{values[0]:.2f} {''.join(BARS[step] for step in steps)} {values[-1]:.2f}"


class _Mark(torch.autograd.Function):
    """Does nothing; its node in the graph holds a token."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, token: object) -> Tensor:
        ctx.token = token
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Token:
    """Lives as long as the graph that holds it."""


class GraphWatch:
    """Counts graphs: `mark` puts a token into the graph of a tensor, `alive` says how many tokens still exist."""

    def __init__(self) -> None:
        self._tokens: list[weakref.ref] = []

    def mark(self, tensor: Tensor) -> Tensor:
        token = _Token()
        self._tokens.append(weakref.ref(token))
        return _Mark.apply(tensor, token)

    def alive(self) -> int:
        return sum(token() is not None for token in self._tokens)


class WatchedLinear(nn.Linear):
    """A linear layer that notes at each call how many graphs of earlier calls are still alive."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out)
        self.watch, self.alive = GraphWatch(), []

    def forward(self, x: Tensor) -> Tensor:
        self.alive.append(self.watch.alive())
        return self.watch.mark(super().forward(x))


class StrictDevices(TorchDispatchMode):
    """Lets the meta device stand in for a GPU that refuses operands from two devices. Moves are allowed."""

    MOVES = ("_to_copy", "copy_")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        devices = {str(t.device) for _, t in tensors_in([*args, *kwargs.values()]) if t.dim()}
        if len(devices) > 1 and func.overloadpacket.__name__ not in self.MOVES:
            found = " and ".join(sorted(devices))
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {found}!"
            )
        return func(*args, **kwargs)


class SimulatedGPU:
    """A device that works through a queue while the host goes on. Its seconds are simulated, not measured."""

    LAUNCH = 0.001  # seconds that the host needs to put work into the queue

    def __init__(self) -> None:
        self._now = self._free_at = 0.0

    def launch(self, seconds: float) -> None:
        """Put work of that length into the queue, and return at once."""
        self._now += self.LAUNCH
        self._free_at = max(self._free_at, self._now) + seconds

    def synchronize(self) -> None:
        """Wait until the queue is empty."""
        self._now = max(self._now, self._free_at)

    def clock(self) -> float:
        """The time on the host."""
        return self._now
