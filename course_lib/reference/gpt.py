"""The answers of notebook 10: a mini GPT, from attention to samples.

Letters of shapes: B sequences in a batch, T tokens in each, D numbers per token (the width), H heads of D // H
numbers, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# ---- attention ---------------------------------------------------------------------------------------------------


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return for each query the weighted mean of the values that it may see: causal attention, by hand.

    `q` is (..., Tq, Dh), `k` and `v` are (..., Tk, Dh), with `Tq <= Tk`; the result is (..., Tq, Dh).
    The weight of a key is the softmax, over the keys, of `q @ k` divided by the square root of `Dh`.
    The queries are the *last* `Tq` of the `Tk` positions: the last query sees every key,
    and the query before it all keys but the last.
    What a query may not see has no influence on its result.
    `scaled_dot_product_attention` is not allowed here.
    """
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # (..., Tq, Tk)
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(k.shape[-2] - q.shape[-2])
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    return weights @ v


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what `causal_attention(q, k, v)` returns, computed by `F.scaled_dot_product_attention`.

    `q` is (..., Tq, Dh), `k` and `v` are (..., Tk, Dh), with `Tq <= Tk`.
    The queries are the last `Tq` of the `Tk` positions.
    `softmax` is not allowed here: the fused function has its own.
    """
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    may_see = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device).tril(n_keys - n_queries)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=may_see)


class CausalSelfAttention(nn.Module):
    """Each token looks back at the tokens before it, with several heads: (B, T, D) in and out.

    `CausalSelfAttention(dim, n_head)` has two layers, both without bias, and registers nothing else:
    `qkv`, a linear layer from `dim` to `3 * dim`, and `proj`, from `dim` to `dim`.
    The outputs of `qkv` are all queries, then all keys, then all values, `dim` numbers each;
    within each of the three, the heads follow one another, `dim // n_head` numbers each.
    Each head attends causally on its own; the heads are put side by side again, in order, and go through `proj`.
    If `n_head` does not divide `dim`, the constructor raises an AssertionError or a ValueError.
    """

    def __init__(self, dim: int, n_head: int):
        super().__init__()
        if dim % n_head:
            raise ValueError(
                f"{n_head} heads can't share a width of {dim}: it must be a multiple of {n_head}"
            )
        self.n_head = n_head
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, D // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D // H) each
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(heads.transpose(1, 2).reshape(B, T, D))


# ---- the model ---------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Look back, then think: attention and a small network, each added to what came in. (B, T, D) in and out.

    `Block(dim, n_head)` has four parts and registers nothing else: `norm1` and `norm2`, each an `nn.RMSNorm(dim)`;
    `attn`, a `CausalSelfAttention(dim, n_head)`; and `ffn`, an `nn.Sequential` of a linear layer
    from `dim` to `4 * dim`, an `nn.GELU()` and a linear layer back to `dim`, both without bias.
    The norms stand in front: `norm1` is applied to what goes into `attn`, `norm2` to what goes into `ffn`.
    The result of each of the two is added to the stream, which itself is never normalized.
    """

    def __init__(self, dim: int, n_head: int):
        super().__init__()
        self.norm1 = nn.RMSNorm(dim)
        self.attn = CausalSelfAttention(dim, n_head)
        self.norm2 = nn.RMSNorm(dim)
        self.ffn = nn.Sequential(
            nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class MiniGPT(nn.Module):
    """From tokens (B, T) to the scores of the token that follows each of them: logits (B, T, V).

    `MiniGPT(vocab, dim, n_head, n_layer, max_len)` has these parts, and registers nothing else:
    `tok`, an `nn.Embedding(vocab, dim)`, and `pos`, an `nn.Embedding(max_len, dim)`: a row for each token
    and a row for each position, which are added; `blocks`, an `nn.ModuleList` of `n_layer` `Block(dim, n_head)`;
    `norm`, an `nn.RMSNorm(dim)` after the last block; and `head`, a linear layer from `dim` to `vocab`, without bias.
    The weight of `head` *is* the weight of `tok`: one Parameter.
    `model(idx)` returns the logits. `model(idx, targets)` returns `(logits, loss)`, the loss being the mean
    cross entropy over all B * T tokens. `targets` may be a slice of a larger tensor.
    The model works on the device of `idx`, whichever it is.
    """

    def __init__(self, vocab: int, dim: int, n_head: int, n_layer: int, max_len: int):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(Block(dim, n_head) for _ in range(n_layer))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]  # (B, T, D) + (T, D)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def init_weights(model: nn.Module) -> None:
    """Give a mini GPT weights with which it starts out undecided: a first loss near ln V.

    Every linear layer and embedding gets weights drawn from a normal distribution (truncated or not)
    with mean 0 and standard deviation 0.02, except for the two layers of each block that write to the stream,
    `attn.proj` and the last layer of `ffn`: theirs is 0.02 / sqrt(2 * L), where L is the number of blocks.
    The norms keep their weights, and `head.weight` stays the Parameter that `tok.weight` is.
    `model` is made like `MiniGPT`, with the same names. Which generator is used is up to you.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    for block in model.blocks:
        for layer in (block.attn.proj, block.ffn[-1]):
            nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * len(model.blocks)))


def init_silent_blocks(model: nn.Module) -> None:
    """`init_weights`, with zeros in the layers that write to the stream: at first each block adds nothing."""
    init_weights(model)
    for block in model.blocks:
        nn.init.zeros_(block.attn.proj.weight)
        nn.init.zeros_(block.ffn[-1].weight)


# ---- training ----------------------------------------------------------------------------------------------------


def get_batch(data: Tensor, B: int, S: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cut B random windows out of a long row of tokens: inputs and targets, (B, S) each.

    `data` is (N,), int64, with N > S. The targets are the inputs, one token later.
    Windows start anywhere, with the same chance for each place from which S + 1 tokens can be read,
    and each start is drawn independently of the others, from `generator` alone.
    Both tensors are contiguous.
    """
    starts = torch.randint(len(data) - S, (B, 1), generator=generator)
    places = starts + torch.arange(S)  # (B, S)
    return data[places], data[places + 1]


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of logits (B, T, V) and targets (B, T), in nats per token: the loss for a training loop."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def entropy_rate(transition: Tensor) -> float:
    """Return the entropy rate of a Markov source in nats per token, as a plain `float`.

    `transition[a, b]` is the probability that token b follows token a: (V, V), float64; each row adds up to 1.
    The rate is the mean surprise, -log of the probability of the token that comes, over an endless text.
    No model can have a lower loss than that.
    From each token every other one can be reached. Some probabilities may be 0; what never happens surprises nobody.
    The source may be periodic: it may even repeat a fixed sequence for ever.
    """
    n = len(transition)
    # How often each token occurs: the shares that one more step leaves as they are, and that add up to 1.
    equations = torch.cat([transition.T - torch.eye(n, dtype=transition.dtype), transition.new_ones(1, n)])
    right_side = transition.new_zeros(n + 1, 1)
    right_side[-1] = 1
    shares = torch.linalg.lstsq(equations, right_side).solution[:, 0]
    return float(shares @ torch.special.entr(transition).sum(dim=1))


def train_gpt(sample: Callable[[int, int, torch.Generator], Tensor], steps: int) -> nn.Module:
    """Train a small GPT on a source of tokens, and return it.

    `sample(B, S, generator)` gives B fresh sequences of S tokens: (B, S), int64, numbers from 0 to 7.
    Make `steps` updates of a model that predicts each token from those before it.
    `model(idx)` takes (B, T) tokens, T up to 8, and returns the logits (B, T, 8).
    The loss starts near ln 8: after one update it is at most 1.5 times that.
    After 80 updates it is at most 0.15 above the entropy rate of the source.
    Sizes are up to you. A width of 32, one block, 32 sequences per step and AdamW with a learning rate of 0.003 do it;
    ten times that rate does not. The mode of the model afterwards is up to you.
    """
    generator = torch.Generator().manual_seed(0)
    model = MiniGPT(vocab=8, dim=32, n_head=2, n_layer=1, max_len=8)
    init_weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    for _ in range(steps):
        tokens = sample(32, 9, generator)
        _, loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def bits_per_character(model: nn.Module, data: Tensor, S: int) -> float:
    """Return the mean loss of the model over all of `data`, in bits per token, as a plain `float`.

    `data` is (N,), int64, with N of 2 or more. Every token but the first is predicted once, and all count alike.
    The inputs are cut into windows of S tokens, side by side, from the first token on; the last may be shorter.
    A token is predicted from the tokens of its own window alone. `model(idx)` returns the logits (B, T, V).
    The model works in eval mode, without a graph; afterwards each submodule is in the mode in which it was.
    A loss in nats is the natural logarithm's; one bit is ln 2 nats.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    nats = 0.0
    for x, y in zip(data[:-1].split(S), data[1:].split(S), strict=True):
        nats += F.cross_entropy(model(x[None])[0], y, reduction="sum").item()
    for module, mode in modes.items():
        module.training = mode
    return nats / (len(data) - 1) / math.log(2)


@torch.no_grad()
def validation_loss(model: nn.Module, data: Tensor, T: int, batch: int = 64) -> float:
    """Mean loss over `data` in nats per token: windows of T tokens side by side, without a last shorter one."""
    n_tokens = (len(data) - 1) // T * T
    inputs, targets = data[:n_tokens].view(-1, T), data[1 : n_tokens + 1].view(-1, T)
    pairs = zip(inputs.split(batch), targets.split(batch), strict=True)
    total = sum(next_token_loss(model(x), y).item() * x.numel() for x, y in pairs)
    return total / n_tokens


# ---- sampling ----------------------------------------------------------------------------------------------------


def filter_logits(logits: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Return the logits with those of unlikely tokens replaced by minus infinity. `logits` is (B, V).

    `top_k`: the `top_k` largest logits of each row stay; a `top_k` of V or more leaves all of them.
    `top_p`: the tokens of a row are ranked by probability, the softmax of its logits, the largest first.
    A token stays if the probabilities of those *ranked before it* add up to less than `top_p`. So the first one stays.
    With both, `top_k` comes first, and the probabilities are those of the tokens that it has left.
    Logits that stay keep their value and their place. With neither, all stay. No two logits of a row are equal.
    """
    if top_k is not None:
        smallest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < smallest, -math.inf)
    if top_p is not None:
        ranked, order = logits.sort(dim=-1, descending=True)
        probabilities = ranked.softmax(dim=-1)
        drop = probabilities.cumsum(dim=-1) - probabilities >= top_p
        logits = logits.masked_fill(drop.gather(-1, order.argsort(dim=-1)), -math.inf)
    return logits


@torch.no_grad()
def generate(
    model: nn.Module,
    idx: Tensor,
    n: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue each of B sequences by n tokens that the model draws: (B, T) in, (B, T + n) out.

    Each token is drawn, independently for each sequence, from the softmax of the model's logits for the last
    position, divided by `temperature`. A `temperature` of 0 takes the most likely token.
    With `top_k`, only the `top_k` most likely tokens can be drawn.
    The model sees at most the last `model.pos.num_embeddings` tokens. It works in eval mode, without a graph;
    afterwards it is in the mode in which it was. All of its submodules are in that mode, too.
    Random numbers come from `generator`, or from PyTorch's own where that is None. `idx` is not changed.
    """
    was_training = model.training
    model.eval()
    for _ in range(n):
        logits = model(idx[:, -model.pos.num_embeddings :])[:, -1]  # (B, V)
        if temperature == 0:
            token = logits.argmax(dim=-1, keepdim=True)
        else:
            probabilities = filter_logits(logits / temperature, top_k).softmax(dim=-1)
            token = torch.multinomial(probabilities, 1, generator=generator)
        idx = torch.cat([idx, token], dim=1)
    model.train(was_training)
    return idx


def kv_step(
    q: Tensor, k: Tensor, v: Tensor, cache: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Attend with new tokens to all tokens so far, and remember theirs: return `(out, cache)`.

    `q`, `k` and `v` belong to the new tokens alone: (B, H, T, Dh). `cache` is None at first, and then what the
    call before returned: `(K, V)`, the keys and values of all tokens so far, in order, (B, H, T_all, Dh) each.
    `out` is (B, H, T, Dh): what causal attention over all tokens gives for the new ones.
    At first the new tokens may be many (the prompt); with a cache, there is one new token per call.
    """
    if cache is not None:
        k = torch.cat([cache[0], k], dim=-2)
        v = torch.cat([cache[1], v], dim=-2)
    return sdpa_attention(q, k, v), (k, v)


# ---- as it would be written today --------------------------------------------------------------------------------


class Rotary(nn.Module):
    """Positions as angles: no parameters. `num_embeddings` is the number of positions, as of an `nn.Embedding`."""

    def __init__(self, max_len: int, head_dim: int, base: float = 10_000.0):
        super().__init__()
        self.num_embeddings = max_len
        speeds = base ** -(torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.outer(torch.arange(max_len), speeds)  # (T, head_dim // 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Turn each pair of numbers by the angle of its position: (..., T, head_dim) in and out."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class RotaryBlock(nn.Module):
    """A block whose queries and keys are turned by their position, with norms that have no weights."""

    def __init__(self, dim: int, n_head: int, rotary: Rotary):
        super().__init__()
        self.attn = CausalSelfAttention(dim, n_head)
        self.ffn = nn.Sequential(
            nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False)
        )
        self.rotary = rotary

    def attend(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        n_head = self.attn.n_head
        qkv = self.attn.qkv(x).view(B, T, 3, n_head, D // n_head).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(qkv[:2])
        heads = F.scaled_dot_product_attention(q, k, qkv[2], is_causal=True)
        return self.attn.proj(heads.transpose(1, 2).reshape(B, T, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(F.rms_norm(x, x.shape[-1:]))
        return x + self.ffn(F.rms_norm(x, x.shape[-1:]))


class RotaryGPT(nn.Module):
    """`MiniGPT` with rotary positions and norms without weights: what it learns is tokens and matrices alone.

    The parts that it shares with `MiniGPT` have the same names, so `init_weights` and `generate` work with it.
    """

    def __init__(self, vocab: int, dim: int, n_head: int, n_layer: int, max_len: int):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = Rotary(max_len, dim // n_head)
        self.blocks = nn.ModuleList(RotaryBlock(dim, n_head, self.pos) for _ in range(n_layer))
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        x = F.rms_norm(self.tok(idx), (self.tok.embedding_dim,))
        for block in self.blocks:
            x = block(x)
        logits = self.head(F.rms_norm(x, x.shape[-1:]))
        if targets is None:
            return logits
        return logits, next_token_loss(logits, targets)
