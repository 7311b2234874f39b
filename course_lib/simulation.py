"""Memory of a training step, storage by storage: run for real, or simulated with tensors that have no numbers.

Under PyTorch's FakeTensorMode an operator computes shapes, dtypes and sizes and allocates nothing. The tracker
sees the same storages come and go as in a real run, so a model that fits no machine of yours can be weighed.

Not simulated: the allocator of a GPU (it rounds sizes up, caches blocks and fragments), the workspaces of its
libraries, the CUDA context, and kernels that a GPU has and the CPU has not.

Names of sizes: batch sequences, seq tokens in each, dim numbers per token, n_heads attention heads.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

CATEGORIES = ("parameters", "optimizer", "gradients", "activations", "batch", "temporary")
MiB = 2**20


# ---- the model ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a mini GPT. The defaults make one that a CPU trains in milliseconds."""

    vocab: int = 96
    dim: int = 32
    n_heads: int = 2
    n_layers: int = 2
    max_seq: int = 128
    norm: type[nn.Module] = nn.LayerNorm
    checkpointed: bool = False  # keep only the input of each block, and compute its inside twice


class Block(nn.Module):
    """Attention, then an MLP, each with a norm before it and a bridge around it: (batch, seq, dim) in and out."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        dim, self.n_heads = config.dim, config.n_heads
        self.norm1, self.norm2 = config.norm(dim), config.norm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False)
        )

    def attention(self, x: Tensor) -> Tensor:
        batch, seq, dim = x.shape
        qkv = self.qkv(x).view(batch, seq, 3, self.n_heads, dim // self.n_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (batch, n_heads, seq, dim // n_heads) each
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(heads.transpose(1, 2).reshape(batch, seq, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class MiniGPT(nn.Module):
    """Token numbers (batch, seq) and the tokens that follow -> the loss. One table serves both ends.

    The logits are not returned: who holds them holds batch * seq * vocab numbers through the whole backward pass.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.checkpointed = config.checkpointed
        self.tokens = nn.Embedding(config.vocab, config.dim)
        self.positions = nn.Embedding(config.max_seq, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = config.norm(config.dim)
        self.head = nn.Linear(config.dim, config.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# The mini GPT of many tutorials: 30.3 million parameters, 19.3 million of them in the table of tokens.
FULL_SIZE = GPTConfig(vocab=50257, dim=384, n_heads=6, n_layers=6, max_seq=1024, norm=nn.RMSNorm)


# ---- the tracker -------------------------------------------------------------------------------------------------


@dataclass
class Allocation:
    """One storage, and when it came and went. Time is counted in events: each coming and each going is one."""

    nbytes: int
    op: str  # the operator that made it
    phase: str  # the phase in which it was made
    born: int
    freed: int | None = None
    category: str = "temporary"

    def alive_at(self, event: int) -> bool:
        """Whether it was there after that event."""
        return self.born <= event and (self.freed is None or event < self.freed)


class MemoryTracker(TorchDispatchMode):
    """While it is entered, every storage that an operator makes is noted, and noted again when it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.allocations: list[Allocation] = []
        self.phases: list[tuple[str, int]] = []  # name and first event of each phase
        self.n_events = 0
        self._known: dict[int, Allocation] = {}  # the living, by storage

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._meet(tensor.untyped_storage(), str(func))
        return result

    def _meet(self, storage: torch.UntypedStorage, op: str) -> None:
        if storage._cdata in self._known:
            return  # a view, or written in place
        phase = self.phases[-1][0] if self.phases else ""
        allocation = Allocation(storage.nbytes(), op, phase, self._next_event())
        self.allocations.append(allocation)
        self._known[storage._cdata] = allocation
        weakref.finalize(storage, self._free, storage._cdata).atexit = False

    def _free(self, key: int) -> None:
        self._known.pop(key).freed = self._next_event()

    def _next_event(self) -> int:
        self.n_events += 1
        return self.n_events - 1

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Give the events inside a name. What a forward pass leaves behind are activations."""
        self.phases.append((name, self.n_events))
        yield
        if name.startswith("forward"):
            left = (a for a in self._known.values() if a.phase == name and a.category == "temporary")
            for allocation in left:
                allocation.category = "activations"

    def label(self, category: str, tensors: Iterable[Tensor]) -> None:
        """Say what the storages of some living tensors are for."""
        for tensor in tensors:
            known = self._known.get(tensor.untyped_storage()._cdata)
            if known:
                known.category = category

    def label_training(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Parameters and buffers, gradients, and the optimizer's state, as far as they exist now."""
        self.label("parameters", [*model.parameters(), *model.buffers()])
        self.label("gradients", [p.grad for p in model.parameters() if p.grad is not None])
        states = (state.values() for state in optimizer.state.values())
        self.label("optimizer", [item for state in states for item in state if isinstance(item, Tensor)])

    def timeline(self) -> Timeline:
        """What was seen so far."""
        return Timeline(tuple(map(replace, self.allocations)), tuple(self.phases), self.n_events)


@dataclass(frozen=True)
class Timeline:
    """The allocations of a run, and the sums over them after each event."""

    allocations: tuple[Allocation, ...]
    phases: tuple[tuple[str, int], ...]
    n_events: int

    def events(self) -> list[tuple[str, int]]:
        """(phase, bytes) of every allocation and, negative, of every release, in order."""
        changes = [0] * self.n_events
        for a in self.allocations:
            changes[a.born] = a.nbytes
            if a.freed is not None:
                changes[a.freed] = -a.nbytes
        return [(self.phase_at(event), nbytes) for event, nbytes in enumerate(changes)]

    def phase_at(self, event: int) -> str:
        """The phase in which an event happened."""
        return next((name for name, start in reversed(self.phases) if start <= event), "")

    def totals(self) -> list[int]:
        """Bytes in use after each event."""
        return [sum(column) for column in zip(*self.by_category().values())]

    def by_category(self) -> dict[str, list[int]]:
        """For each category the bytes in use after each event."""
        changes = {category: [0] * self.n_events for category in CATEGORIES}
        for a in self.allocations:
            changes[a.category][a.born] += a.nbytes
            if a.freed is not None:
                changes[a.category][a.freed] -= a.nbytes
        return {category: list(accumulate(steps)) for category, steps in changes.items()}

    def spans(self) -> list[tuple[str, int, int]]:
        """(phase, first event, the event after its last) in order."""
        ends = [start for _, start in self.phases[1:]] + [self.n_events]
        return [(name, start, end) for (name, start), end in zip(self.phases, ends)]

    def peaks(self) -> dict[str, int]:
        """The most bytes in use in each phase, what was in use when it began included."""
        totals, peaks = [0, *self.totals()], {}
        for name, start, end in self.spans():
            peaks[name] = max(peaks.get(name, 0), max(totals[start : end + 1]))
        return peaks

    @property
    def peak(self) -> int:
        return max(self.totals(), default=0)

    @property
    def peak_event(self) -> int:
        """The first event after which that much was in use; 0 where nothing ever happened."""
        totals = self.totals()
        return totals.index(max(totals)) if totals else 0

    def alive_at(self, event: int) -> list[Allocation]:
        """What was there after an event, the largest first."""
        return sorted((a for a in self.allocations if a.alive_at(event)), key=lambda a: (-a.nbytes, a.born))


# ---- a training run ----------------------------------------------------------------------------------------------


def track_training(
    config: GPTConfig,
    batch: int,
    seq: int,
    *,
    steps: int = 1,
    micro_batches: int = 1,
    bf16: bool = False,
    fake: bool = True,
) -> Timeline:
    """Train a mini GPT with AdamW on random tokens and note all memory, simulated unless `fake` is False.

    Each step takes that many micro-batches of `batch` sequences. The phases are "build" and then, numbered by
    step, "batch 1", "forward 1", "backward 1", "optimizer 1", and so on.
    """
    with torch.random.fork_rng(devices=[]), _fake_tensors() if fake else nullcontext():
        tracker = MemoryTracker()
        with tracker:
            with tracker.phase("build"):
                model = MiniGPT(config)
                optimizer = torch.optim.AdamW(model.parameters())
            tracker.label_training(model, optimizer)
            for step in range(1, steps + 1):
                make = partial(torch.randint, config.vocab, (batch, seq))
                _step(tracker, model, optimizer, make, step, micro_batches, bf16)
        return tracker.timeline()


def _fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode  # late: importing it takes a moment

    return FakeTensorMode()


def _step(tracker, model, optimizer, make, step: int, micro_batches: int, bf16: bool) -> None:
    """One training step, phase by phase."""
    for _ in range(micro_batches):
        with tracker.phase(f"batch {step}"):
            tokens, targets = make(), make()
        tracker.label("batch", [tokens, targets])
        with (
            tracker.phase(f"forward {step}"),
            torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16),
        ):
            loss = model(tokens, targets) / micro_batches
        with tracker.phase(f"backward {step}"):
            loss.backward()
        tracker.label_training(model, optimizer)
        del loss
    with tracker.phase(f"optimizer {step}"):
        optimizer.step()
        tracker.label_training(model, optimizer)
        optimizer.zero_grad()


def measure_on_gpu(
    config: GPTConfig, batch: int, seq: int, *, steps: int = 2, micro_batches: int = 1, bf16: bool = False
) -> dict[str, int]:
    """The same run on a CUDA device: the most bytes that its allocator had handed out in each phase.

    These are allocated bytes above what was in use before; reserved memory and the CUDA context are more.
    """
    before = torch.cuda.memory_allocated()
    peaks: dict[str, int] = {}

    class Meter(MemoryTracker):
        """Takes the place of the tracker: reads the allocator's own peak instead of following storages."""

        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            torch.cuda.reset_peak_memory_stats()
            yield
            peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_allocated() - before)

    meter = Meter()
    with meter.phase("build"):
        model = MiniGPT(config).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    make = partial(torch.randint, config.vocab, (batch, seq), device="cuda")
    for step in range(1, steps + 1):
        _step(meter, model, optimizer, make, step, micro_batches, bf16)
    return peaks
