"""The sixty-second race: how low does the loss go when the size of the model and the number of tokens are fixed?

Names of sizes: batch sequences, seq tokens per sequence, rows and cols of a weight matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from tqdm.auto import tqdm


class Budget(NamedTuple):
    """What a run may use at most."""

    parameters: int
    steps: int
    tokens: int  # per step


BUDGET = Budget(parameters=344_256, steps=1_100, tokens=768)


def orthogonalize(update: Tensor, steps: int = 5) -> Tensor:
    """Return `update` with its singular vectors kept and all its singular values near 1.

    `update` is a matrix, or a stack of matrices (..., rows, cols) that are treated one by one. It is not changed.
    Each matrix `x` is divided by its Frobenius norm, which brings its singular values into [0, 1].
    Then `steps` times `x` becomes `a * x + (b * g + c * g @ g) @ x` with `g = x @ x.mT`
    and `(a, b, c) = (3.4445, -4.7750, 2.0315)`: an odd polynomial that lifts every singular value towards 1.
    After five steps those that were not tiny lie between 0.7 and 1.2. A matrix of zeros stays one.

    This is the Newton-Schulz iteration with the coefficients of Keller Jordan's Muon (2024), here in float32:
    on a CPU its bfloat16 form is several times slower.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = update.shape[-2] > update.shape[-1]
    x = update.mT if tall else update  # the smaller of the two products x @ x.mT and x.mT @ x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    for _ in range(steps):
        g = x @ x.mT
        x = a * x + (b * g + c * g @ g) @ x
    return x.mT if tall else x


class Muon(Optimizer):
    """Momentum whose step, for each weight matrix, is orthogonalized: all directions are learned at one speed.

    For matrices inside a network. Embeddings, heads and vectors are left to another optimizer.
    The step of a matrix with more rows than columns is longer by sqrt(rows / cols), so that `lr` means the same
    change of the outputs for every shape.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._step_of(matrix, group["lr"], group["momentum"])

    def _step_of(self, matrix: nn.Parameter, lr: float, momentum: float) -> None:
        state = self.state[matrix]
        average = state.setdefault("momentum", torch.zeros_like(matrix)).lerp_(matrix.grad, 1 - momentum)
        update = orthogonalize(matrix.grad.lerp(average, momentum))  # Nesterov: one step ahead
        rows, cols = matrix.shape
        matrix.add_(update, alpha=-lr * max(1.0, rows / cols) ** 0.5)


@dataclass(frozen=True)
class RaceSettings:
    """What a driver chooses. `matrix_lr=0` leaves the matrices to AdamW as well."""

    steps: int = BUDGET.steps
    batch: int = 12
    seq: int = 64
    lr: float = 6e-3  # of AdamW
    matrix_lr: float = 0.03  # of Muon
    final_lr: float = 0.0  # the learning rates at the end, as a part of those at the start
    zero_outputs: bool = True  # every block begins as the identity
    seed: int = 0  # of the batches


@dataclass(frozen=True)
class RaceResult:
    settings: RaceSettings
    parameters: int
    losses: list[float]  # one per step, before the step
    validation_loss: float  # over the whole validation split

    @property
    def setting(self) -> str:
        """Size, and the choices that are not the usual ones, in one line for the record."""
        chosen = {f.name: getattr(self.settings, f.name) for f in fields(RaceSettings)}
        unusual = [
            f"{name} {value}" for name, value in chosen.items() if value != getattr(RaceSettings, name)
        ]
        return ", ".join([f"{self.parameters:,} parameters", *unusual])


def race(
    model: nn.Module,
    training: Tensor,
    validation: Tensor,
    settings: RaceSettings = RaceSettings(),
    progress: bool = True,
) -> RaceResult:
    """Train `model` within the budget on the tokens of `training`, and measure it on all of `validation`.

    `model(idx)` gives logits (batch, seq, vocabulary); its blocks are in `model.blocks`.
    The same weights, settings and number of threads give the same losses.
    Raises ValueError for a model or for settings that are beyond the budget, and for a text that is too short.
    """
    parameters = count_parameters(model)
    check_budget(parameters, settings)
    if min(len(training), len(validation)) <= settings.seq:
        raise ValueError(
            f"Both texts need more than {settings.seq} tokens, the length of a window; they have "
            f"{len(training):,} for training and {len(validation):,} for validation."
        )
    losses = train(model, training, settings, progress)
    return RaceResult(settings, parameters, losses, full_validation_loss(model, validation, settings.seq))


def count_parameters(model: nn.Module) -> int:
    """The number of parameters; a tied matrix counts once."""
    return sum(p.numel() for p in model.parameters())


def check_budget(parameters: int, settings: RaceSettings) -> None:
    used = Budget(parameters, settings.steps, settings.batch * settings.seq)
    for what, amount, limit in zip(Budget._fields, used, BUDGET):
        if amount > limit:
            unit = "tokens per step" if what == "tokens" else what
            raise ValueError(f"{amount:,} {unit} are beyond the budget of the race, which has {limit:,}.")


def train(model: nn.Module, data: Tensor, settings: RaceSettings, progress: bool = True) -> list[float]:
    """Train `model` in place, whatever the budget, and return the loss of every step."""
    if settings.zero_outputs:
        zero_residual_outputs(model)
    opts = optimizers(model, settings)
    scheds = [
        LambdaLR(opt, lambda step: linear_decay(step, settings.steps, settings.final_lr)) for opt in opts
    ]
    model.train()
    losses = []
    with tqdm(batches(data, settings), total=settings.steps, disable=not progress) as bar:
        for x, y in bar:
            losses.append(train_step(model, opts, x, y))
            for sched in scheds:
                sched.step()
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
    return losses


def zero_residual_outputs(model: nn.Module) -> None:
    """Set to zero what each sublayer of `model.blocks` adds to the residual stream: its last matrix."""
    for block in model.blocks:
        for sublayer in block.children():
            linears = [module for module in sublayer.modules() if isinstance(module, nn.Linear)]
            if linears:
                nn.init.zeros_(linears[-1].weight)


def optimizers(model: nn.Module, settings: RaceSettings) -> list[Optimizer]:
    """Muon for the matrices in the blocks, AdamW for the rest; AdamW alone where `matrix_lr` is 0."""
    in_blocks = {p for p in model.blocks.parameters() if p.dim() == 2} if settings.matrix_lr else set()
    rest = [p for p in model.parameters() if p not in in_blocks]
    adamw = AdamW(rest, lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    if not in_blocks:
        return [adamw]
    return [adamw, Muon([p for p in model.parameters() if p in in_blocks], lr=settings.matrix_lr)]


def linear_decay(step: int, steps: int, final: float) -> float:
    """The factor of the learning rates: 1 at step 0, on a straight line to `final` at the end."""
    return 1 - (1 - final) * step / steps


def batches(data: Tensor, settings: RaceSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets (batch, seq) from random places of `data`, as many as there are steps."""
    generator = torch.Generator().manual_seed(settings.seed)
    window = torch.arange(settings.seq + 1)
    for _ in range(settings.steps):
        starts = torch.randint(len(data) - settings.seq, (settings.batch, 1), generator=generator)
        tokens = data[starts + window]
        yield tokens[:, :-1], tokens[:, 1:]


def train_step(model: nn.Module, opts: list[Optimizer], x: Tensor, y: Tensor) -> float:
    for opt in opts:
        opt.zero_grad()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    for opt in opts:
        opt.step()
    return loss.item()


@torch.inference_mode()
def full_validation_loss(model: nn.Module, data: Tensor, seq: int, batch: int = 64) -> float:
    """The mean loss, in nats per token, over all of `data`: each token but the first is predicted once.

    The windows of `seq` tokens lie end to end; the last may be shorter. The model's mode is left as it was.
    """
    was_training = model.training
    model.eval()
    total = 0.0
    for x, y in windows(data, seq, batch):
        total += F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
    model.train(was_training)
    return total / (len(data) - 1)


def windows(data: Tensor, seq: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All windows of `data`, end to end: `batch` at a time, and at last the rest in one shorter window."""
    inputs, targets = data[:-1], data[1:]
    whole = len(inputs) // seq * seq
    x, y = inputs[:whole].view(-1, seq), targets[:whole].view(-1, seq)
    yield from zip(x.split(batch), y.split(batch))
    if whole < len(inputs):
        yield inputs[None, whole:], targets[None, whole:]
