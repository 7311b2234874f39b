"""The yardstick of the benchmarks: a small GPT and its training, written plainly from the published description.

It is the char-level setting for a CPU that small GPT code bases publish: 4 layers, 4 heads, width 128, context 64,
batches of 12, no dropout, no biases, AdamW (betas 0.9 and 0.99, weight decay 0.1 on matrices), gradients clipped to 1,
learning rate 1e-3 after 100 steps of warm-up, then half a cosine down to 1e-4 at step 2,000.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT, BATCH, STEPS = 64, 12, 2000
LR, MIN_LR, WARMUP = 1e-3, 1e-4, 100


class Attention(nn.Module):
    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.projection = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, dim = x.shape
        q, k, v = (
            part.view(batch, seq, self.n_heads, dim // self.n_heads).transpose(1, 2)
            for part in self.qkv(x).split(dim, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(mixed.transpose(1, 2).contiguous().view(batch, seq, dim))


class MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.projection = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(dim, bias=False)
        self.attention = Attention(dim, n_heads)
        self.norm_2 = nn.LayerNorm(dim, bias=False)
        self.mlp = MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class PlainGPT(nn.Module):
    """Tokens (batch, seq) to logits (batch, seq, vocabulary), with learned positions and a tied head."""

    def __init__(self, vocabulary: int, dim: int = 128, n_layers: int = 4, n_heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(CONTEXT, dim)
        self.blocks = nn.ModuleList(Block(dim, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(dim, bias=False)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = math.sqrt(2 * n_layers) if name.endswith("projection.weight") else 1
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, idx: Tensor) -> Tensor:
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.tokens(idx) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def plain_batch(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - CONTEXT, (BATCH,), generator=generator)
    x = torch.stack([data[start : start + CONTEXT] for start in starts])
    y = torch.stack([data[start + 1 : start + 1 + CONTEXT] for start in starts])
    return x, y


def plain_lr(step: int) -> float:
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + 0.5 * (1 + math.cos(math.pi * progress)) * (LR - MIN_LR)


def plain_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99))


def plain_step(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, step: int) -> float:
    for group in opt.param_groups:
        group["lr"] = plain_lr(step)
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    return loss.item()
