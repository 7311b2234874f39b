# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Mini GPT: every part of it, and why you can trust it
#
# > Two people train a GPT of the same size on the same text. One loss ends near 0.85, the other near 0.15.
# > **Whose model is better?**
#
# You will have built both of them when you can answer.
# Everything in this notebook is yours: attention, model, first weights, batches, training, sampling, cache.
# Each part has one mistake that everybody makes once and that raises no error.
# So each part comes with the number that tells.
#
# **Time:** about 6 hours: two and a half to read and predict, three and a half for the exercises.
# It splits well after sections 4, 7 and 9.
#
# **You need:** notebooks 01 (views), 03 (modules, tying), 05 (the loop). Section 12 uses the tools of 06, 08 and 09.
# No GPU, no download: the text comes with Python, and one more source you make yourself.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# Shapes are written with one letter for each size, here and in the code:
# **B** sequences in a batch, **T** tokens in each, **D** numbers per token (the width),
# **H** heads of D // H numbers each, **V** tokens in the vocabulary.
#
# | term | in code | meaning |
# |---|---|---|
# | token | `idx[b, t]` | a number from 0 to V - 1: here a character |
# | query, key, value | `q`, `k`, `v` | what a token asks for, what it is found by, what it hands over |
# | score | `q @ k.mT` | how well a key fits a query |
# | head | | attention on a part of the numbers, with weights of its own |
# | stream | `x` | what runs through the model, (B, T, D); each block adds to it |
# | logits | `model(idx)` | a score for each token that may follow, (B, T, V) |
# | entropy rate | | the mean surprise of a source; the floor of every loss on it |
# | nat, bit | | surprise with ln, with log2; 1 bit is 0.693 nats |
# | cache | `(K, V)` | keys and values of the tokens so far |

# %%
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.display import show_attention, show_losses

_ = torch.manual_seed(0)
_ = torch.set_num_threads(1)  # a small model: a second thread costs more than it brings

# %% [markdown]
# This is how we would like to use it in the end:
#
# ```python
# model = MiniGPT(vocab=103, dim=96, n_head=3, n_layer=3, max_len=64)
# logits, loss = model(inputs, targets)          # training
# text = generate(model, prompt, n=200)          # writing
# ```
#
# What has to exist for these three lines? From the inside out: attention, a block, the model.
#
# ## 1 Attention by hand
#
# Our tiny batch is with us one last time: two sequences of three tokens, four numbers each.
# Let its tokens be queries, keys and values at once.

# %% objective="gpt.attention"
batch = torch.arange(24.0).reshape(2, 3, 4) / 24  # (B, T, D)
raw = batch @ batch.mT
print("scores:", tuple(raw.shape), "one for each pair of tokens\n", raw[0])

# %% [markdown]
# A score is a sum of products, so it grows with the number of products.
# For queries and keys of independent numbers with standard deviation 1, that of the scores is the root of the width:

# %% objective="gpt.attention"
draws = torch.Generator().manual_seed(0)
for width in (4, 64, 1024):
    queries, keys = (torch.randn(400, width, generator=draws) for _ in range(2))
    spread = (queries @ keys.mT).std().item()
    print(f"width {width:5}: standard deviation {spread:5.1f}, divided by the root of the width {spread / width**0.5:.2f}")

# %% [markdown]
# Why should you care? The softmax turns differences of 10 into certainties, and a certain softmax has no gradient.
# Hence the root in the denominator: **the root of the width of one head**.
#
# ### Hide the future
#
# A token must not see what comes after it, as it is asked to predict that.
# Here is a mask for three tokens, and what becomes of the weights:

# %% objective="gpt.attention"
visible = torch.ones(3, 3, dtype=torch.bool).tril()
shares = (raw[0] / 2).masked_fill(~visible, -math.inf).softmax(dim=-1)
print(visible.int(), "\n", shares)

# %% [markdown]
# Row 0 sees itself alone, so its weight is 1. Each row adds up to 1.
# Minus infinity is what makes a weight exactly 0. What if the order is another one?
#
# {{predict late_mask}}

# %%
predict("late_mask", "b")

# %% objective="gpt.attention"
def change_of_the_past(attention: Callable) -> float:
    """How far the outputs of earlier tokens move when the last token changes: 0, or something leaks."""
    x = torch.randn(1, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[:, :, -1] += 3
    return (attention(x) - attention(y))[:, :, :-1].abs().max().item()


# %% objective="gpt.attention"
def weights_of(x: Tensor, hide: Callable, late: Callable = lambda weights: weights) -> Tensor:
    return late(hide(x @ x.mT / 2).softmax(-1))


keep, minus_infinity = torch.ones(5, 5).tril(), float("-inf")
right = lambda x: weights_of(x, lambda s: s.masked_fill(keep == 0, minus_infinity)) @ x  # noqa: E731
after = lambda x: weights_of(x, lambda s: s, lambda w: w * keep) @ x  # noqa: E731
zeros = lambda x: weights_of(x, lambda s: s * keep) @ x  # noqa: E731
for name, attention in {"-inf before": right, "0 after": after, "0 before": zeros}.items():
    print(f"{name:12} the past moves by {change_of_the_past(attention):.3f}")

# %% [markdown]
# This is the **causality probe**: change a later token, look at earlier outputs. Keep it; it works on whole models too.
#
# > **Classic mistake: a mask that looks right.**
# > All three matrices of weights are causal to the eye, or nearly. Only the first one is causal.
# > And a mask of 0 and -inf, given to code that expects one of 1 and 0, makes all weights equal:
# > it passes the probe, and attends to nothing in particular. So look at the *values* too.
#
# One more reader's objection: why minus infinity, and not -1e9? In float32 both work.
# In float16 the second does not exist:

# %% tags=["raises-exception"] objective="gpt.attention"
torch.zeros(2, 2, dtype=torch.float16).masked_fill(torch.eye(2, dtype=torch.bool), -1e9)

# %% [markdown]
# Now write it. The queries are the *last* positions of all keys: that costs you one number in the mask,
# and makes the function right for decoding with a cache (section 10).
#
# {{exercise causal_attention}}

# %% exercise="causal_attention"
def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return for each query the weighted mean of the values that it may see: causal attention, by hand.

    `q` is (..., Tq, Dh), `k` and `v` are (..., Tk, Dh), with `Tq <= Tk`; the result is (..., Tq, Dh).
    The weight of a key is the softmax, over the keys, of `q @ k` divided by the square root of `Dh`.
    The queries are the *last* `Tq` of the `Tk` positions: the last query sees every key,
    and the query before it all keys but the last.
    What a query may not see has no influence on its result.
    `scaled_dot_product_attention` is not allowed here.
    """
    ### BEGIN SOLUTION
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # (..., Tq, Tk)
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(k.shape[-2] - q.shape[-2])
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    return weights @ v
    ### END SOLUTION

# %%
check(causal_attention)

# %% [markdown]
# Who looks at whom? Random queries and keys look at anything that is allowed.
# A row is a token that looks; the darker the box, the more weight.

# %% objective="gpt.attention"
maps = torch.Generator().manual_seed(1)
q, k = (2 * torch.randn(2, 6, 8, generator=maps) for _ in range(2))  # (H, T, D // H)
weights = passing(causal_attention)(q[None], k[None], torch.eye(6).expand(1, 2, 6, 6))[0]
show_attention(weights, list("attend"))

# %% [markdown]
# (The identity matrix as values hands out the weights themselves: a trick that works with every attention function.)
#
# ## 2 The fused function
#
# PyTorch has all of this in one function, `F.scaled_dot_product_attention`. Is it the same?

# %% objective="gpt.fused"
by_hand = passing(causal_attention)
draws = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(2, 3, 6, 4, generator=draws).requires_grad_() for _ in range(3))  # (B, H, T, D // H)
cotangent = torch.randn(2, 3, 6, 4, generator=draws)
mine, fused = by_hand(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)
print("values agree:   ", torch.allclose(mine, fused, atol=1e-6))
gradients = [torch.autograd.grad(out, (q, k, v), cotangent) for out in (mine, fused)]
print("gradients agree:", all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients)))

# %% [markdown]
# Values and gradients agree. What differs is the memory: by hand, the T x T matrix is written out, several times.

# %% objective="gpt.fused"
from course_lib.simulation import MemoryTracker


def peak_bytes(attention: Callable, T: int) -> int:
    """The most memory that one forward pass takes on top of its inputs."""
    q, k, v = (torch.randn(1, 4, T, 16) for _ in range(3))
    with MemoryTracker() as tracker:
        _ = attention(q, k, v)
    return tracker.timeline().peak


# %% objective="gpt.fused"
fused_causal = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
for T in (256, 512, 1024):
    print(f"T = {T:4}: fused {peak_bytes(fused_causal, T) / 2**20:5.2f} MiB")

# %% tags=["nbval-ignore-output"] objective="gpt.fused"
for T in (256, 512, 1024):
    print(f"T = {T:4}: by hand {peak_bytes(by_hand, T) / 2**20:5.2f} MiB")

# %% [markdown]
# Twice the length: twice the memory when fused, and four times by hand.
# (The fused kernel works in tiles and never has the whole matrix. Your own function decides the second list.)
#
# It is often said that the function "uses FlashAttention". Which kernel runs depends on device, dtype, shape,
# mask and dropout. You can ask the dispatcher which operators it sees:

# %% objective="gpt.fused"
from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Collects the names of the operators that run."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def kernel_of(call: Callable) -> str:
    with Operators() as seen:
        seen.names = []
        call()
    fused = [name for name in seen.names if "flash" in name or "efficient" in name]
    return fused[0] if fused else f"plain math, {len(seen.names)} operators"


# %% objective="gpt.fused" tags=["nbval-ignore-output"]
x = torch.randn(1, 2, 8, 4)
calls = {
    "as above": lambda: fused_causal(x, x, x),
    "bfloat16": lambda: fused_causal(*[x.bfloat16()] * 3),
    "with dropout": lambda: F.scaled_dot_product_attention(x, x, x, is_causal=True, dropout_p=0.1),
    "three dimensions": lambda: fused_causal(x[0], x[0], x[0]),
}
for name, call in calls.items():
    print(f"{name:17} {kernel_of(call)}")

# %% [markdown]
# (What torch 2.13 does on a CPU; the list changes from release to release.)
# FlashAttention itself needs a CUDA device and 16 bits, which this notebook can't show.
# The lesson is that a harmless argument can send you to another kernel, with another price and another memory layout.
#
# {{predict cached_query}}

# %%
predict("cached_query", "b")

# %% objective="gpt.fused"
q, k, v = (torch.randn(1, 1, 6, 4, generator=draws) for _ in range(3))
full = fused_causal(q, k, v)
one = fused_causal(q[..., -1:, :], k, v)
print("the last row of the full result:", torch.allclose(one, full[..., -1:, :]))
print("the first value:                ", torch.allclose(one, v[..., :1, :]))

# %% [markdown]
# > **Classic mistake: `is_causal=True` with a cache.**
# > Its triangle starts in the upper left corner, so it is right where there are as many queries as keys.
#
# The second trap is the boolean mask. For this function True means "may be seen".
# For `nn.MultiheadAttention` and `nn.Transformer` True means "hidden". The last row of an inverted mask is empty:

# %% objective="gpt.fused"
hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)  # as nn.MultiheadAttention wants it
inverted = lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=hidden[:5, :5])  # noqa: E731
straight = lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=~hidden[:5, :5])  # noqa: E731
print("the past moves by", round(change_of_the_past(inverted), 3), "and", change_of_the_past(straight))

# %% [markdown]
# {{exercise sdpa_attention}}

# %% exercise="sdpa_attention"
def sdpa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what `causal_attention(q, k, v)` returns, computed by `F.scaled_dot_product_attention`.

    `q` is (..., Tq, Dh), `k` and `v` are (..., Tk, Dh), with `Tq <= Tk`.
    The queries are the last `Tq` of the `Tk` positions.
    `softmax` is not allowed here: the fused function has its own.
    """
    ### BEGIN SOLUTION
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    may_see = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device).tril(n_keys - n_queries)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=may_see)
    ### END SOLUTION

# %%
check(sdpa_attention)

# %% [markdown]
# ## 3 Several heads
#
# One softmax per token can look at one thing. So the width is cut into H heads, and each looks for itself.
# A linear layer makes queries, keys and values for all heads at once: D numbers in, 3 D out.
#
# The whole art is in the views. Here are two tokens, two heads of two numbers, and the 3 * 4 outputs of each token,
# numbered so that the hundreds say the token:

# %% objective="gpt.attention"
outputs = torch.arange(12) + 100 * torch.arange(1, 3)[:, None]  # (T, 3 * D)
cut = outputs.view(2, 3, 2, 2)  # (T, three, heads, numbers)
queries, keys, values = cut.permute(1, 2, 0, 3)  # (heads, T, numbers) each
print("queries of head 0:\n", queries[0], "\nkeys of head 1:\n", keys[1])

# %% [markdown]
# (2, 12) → (2, 3, 2, 2) → three of (2, 2, 2). No number was moved.
# And back: heads and tokens change places again, before anything is merged.

# %% objective="gpt.attention"
heads = queries  # (H, T, D // H): let them be the result
print("right: ", heads.transpose(0, 1).reshape(2, 4).tolist())
print("mixed: ", heads.reshape(2, 4).tolist())

# %% [markdown]
# > **Classic mistake: merging without transposing.**
# > The second line fits as well. Its first row holds numbers of token 1 and token 2: the future has got into the past.
#
# {{predict mixed_layout}}

# %%
predict("mixed_layout", "c")

# %% objective="gpt.attention"
other = outputs.view(2, 2, 3, 2)  # (T, heads, three, numbers)
print("the same query of head 0, token 1:", queries[0, 0].tolist(), other[0, 0, 0].tolist())
print("queries of head 1, token 1:       ", queries[1, 0].tolist(), other[0, 1, 0].tolist())

# %% [markdown]
# Head 1 of the other model reads what are keys here. Sort the rows of the weight, and it is the same model.
# So the order is a convention, and the statement below fixes it.
#
# The last trap: after the attention comes a transpose, and then `.view(B, T, D)` works on a CPU.
# By luck. Ask for another kernel:

# %% tags=["raises-exception"] objective="gpt.attention"
from torch.nn.attention import SDPBackend, sdpa_kernel

x = torch.randn(1, 2, 3, 4)
with sdpa_kernel(SDPBackend.MATH):
    fused_causal(x, x, x).transpose(1, 2).view(1, 3, 8)

# %% [markdown]
# The fused kernel of the CPU happens to return its result in an order in which the view is possible.
# `reshape` is a view where it can be one and a copy where it must (notebook 01).
#
# And a width of 10 for 3 heads? `10 // 3` is 3, and the error comes late and says nothing about heads:

# %% tags=["raises-exception"] objective="gpt.attention"
torch.zeros(1, 3, 30).view(1, 3, 3, 3, 10 // 3)

# %% [markdown]
# So refuse such a width in the constructor, where both numbers are at hand.
#
# {{exercise CausalSelfAttention}}

# %% exercise="CausalSelfAttention"
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
        ### BEGIN SOLUTION
        super().__init__()
        if dim % n_head:
            raise ValueError(
                f"{n_head} heads can't share a width of {dim}: it must be a multiple of {n_head}"
            )
        self.n_head = n_head
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        B, T, D = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, D // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D // H) each
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(heads.transpose(1, 2).reshape(B, T, D))
        ### END SOLUTION

# %%
check(CausalSelfAttention)

# %% [markdown]
# ## 4 Block and model
#
# A block looks back and then thinks: attention, then a small network for each token on its own.
# Both *add* to the stream. The norm stands in front of each, so the stream itself is never touched:
#
# ```
# x ──┬──────────────────(+)──┬───────────────(+)──►
#     └► norm1 ► attn ────┘   └► norm2 ► ffn ───┘
# ```
#
# Why does that matter? Send a gradient backward through 24 layers of each kind:

# %% objective="gpt.model"
def gradient_at_the_start(step: Callable) -> float:
    """The size of the gradient that reaches the input of 24 random layers."""
    draws = torch.Generator().manual_seed(0)
    x = start = torch.randn(8, 32, generator=draws, requires_grad=True)
    for _ in range(24):
        x = step(x, torch.randn(32, 32, generator=draws) * 0.1)
    return torch.autograd.grad(x.square().mean(), start)[0].norm().item()


norm = lambda x: F.rms_norm(x, x.shape[-1:])  # noqa: E731
print(f"no sum: {gradient_at_the_start(lambda x, w: (x @ w).tanh()):.1e}")
print(f"sum:    {gradient_at_the_start(lambda x, w: x + (norm(x) @ w).tanh()):.1e}")

# %% [markdown]
# Without the sums, next to nothing arrives.
#
# The norm is RMSNorm: it divides by the root of the mean square, and leaves the mean alone.
# Look at its epsilon before you trust it in 16 bits. The default is that of the dtype:

# %% objective="gpt.model"
for dtype in (torch.float32, torch.bfloat16):
    print(f"{dtype!s:15} default eps {torch.finfo(dtype).eps:.1e}")
small = torch.full((1, 4), 1e-2)
print("1e-2 normalized, float32 eps:", nn.RMSNorm(4)(small)[0, 0].item())
print("1e-2 normalized, bfloat16 eps:", round(nn.RMSNorm(4, eps=torch.finfo(torch.bfloat16).eps)(small)[0, 0].item(), 3))

# %% [markdown]
# A stream of small numbers stays small under the large epsilon. In bfloat16 give it a value of your own, such as 1e-6.
#
# The next three exercises use your own class from above.
# If you have left it out, put `from course_lib.reference.gpt import CausalSelfAttention` on top of the cell to go on.
# (Whoever grades you in isolation has none of the course's answers there: come back to it before you hand in.)
#
# {{exercise Block}}

# %% exercise="Block"
class Block(nn.Module):
    """Look back, then think: attention and a small network, each added to what came in. (B, T, D) in and out.

    `Block(dim, n_head)` has four parts and registers nothing else: `norm1` and `norm2`, each an `nn.RMSNorm(dim)`;
    `attn`, a `CausalSelfAttention(dim, n_head)`; and `ffn`, an `nn.Sequential` of a linear layer
    from `dim` to `4 * dim`, an `nn.GELU()` and a linear layer back to `dim`, both without bias.
    The norms stand in front: `norm1` is applied to what goes into `attn`, `norm2` to what goes into `ffn`.
    The result of each of the two is added to the stream, which itself is never normalized.
    """

    def __init__(self, dim: int, n_head: int):
        ### BEGIN SOLUTION
        super().__init__()
        self.norm1 = nn.RMSNorm(dim)
        self.attn = CausalSelfAttention(dim, n_head)
        self.norm2 = nn.RMSNorm(dim)
        self.ffn = nn.Sequential(
            nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False)
        )
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        x = x + self.attn(self.norm1(x))
        return x + self.ffn(self.norm2(x))
        ### END SOLUTION

# %%
check(Block)

# %% [markdown]
# Now the model: a row for each token, a row for each position, blocks, a norm, a head.
# Attention does not know the order of what it sees; the positions are what tells it:

# %% objective="gpt.model"
layer = passing(Block)(8, 2)
tokens = torch.randn(1, 4, 8, generator=draws)
shuffled = tokens[:, [2, 0, 1, 3]]
print("the last token's output is the same:", torch.allclose(layer(tokens)[:, -1], layer(shuffled)[:, -1], atol=1e-6))

# %% [markdown]
# The head has a row for each token, and so has the table at the entrance. One matrix serves both.
#
# {{predict tied_count}}

# %%
predict("tied_count", "b")

# %% objective="gpt.model"
V, D, L, T = 50257, 384, 6, 1024
table, positions, per_block, last_norm = V * D, T * D, 12 * D * D + 2 * D, D
parameters = table + positions + L * per_block + last_norm
print(f"parameters {parameters:,}; entries of the state dict {parameters + table:,}")
print(f"in the table: {table / parameters:.0%}; in the blocks: {L * per_block / parameters:.0%}")

# %% [markdown]
# A tie is one Parameter under two names (notebook 03). Which assignment makes one, and what breaks it?

# %% objective="gpt.model"
table, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
head.weight.data = table.weight.data
print("by .data:       one Parameter:", head.weight is table.weight)
head.weight = table.weight
print("by assignment:  one Parameter:", head.weight is table.weight)
table.weight = nn.Parameter(torch.zeros(5, 3))  # as a careless loader does
print("after a loader: one Parameter:", head.weight is table.weight)

# %% [markdown]
# {{exercise MiniGPT}}

# %% exercise="MiniGPT"
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
        ### BEGIN SOLUTION
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(Block(dim, n_head) for _ in range(n_layer))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tok.weight
        ### END SOLUTION

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        ### BEGIN SOLUTION
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]  # (B, T, D) + (T, D)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        ### END SOLUTION

# %%
check(MiniGPT)

# %% objective="gpt.model"
GPT = passing(MiniGPT)
with torch.device("meta"):  # 30 million parameters, no memory (notebook 03)
    large = GPT(V, D, 6, L, T)
print(f"{sum(p.numel() for p in large.parameters()):,} on paper {parameters:,}")
print(f"{sum(t.numel() for t in large.state_dict().values()):,} entries")

# %% [markdown]
# The count on paper is right. And one line in the loss deserves a look, as it is wrong in many tutorials:

# %% tags=["raises-exception"] objective="gpt.model"
row = torch.arange(10).view(2, 5)
shifted = row[:, 1:]  # targets are usually a slice
shifted.view(-1)

# %% [markdown]
# ## 5 The first loss
#
# Before any training, what should the loss be?
# A model without an opinion finds all V tokens equally likely: its loss is **ln V**.
#
# {{predict first_loss_of_a_gpt}}

# %%
predict("first_loss_of_a_gpt", "c")

# %% tags=["nbval-ignore-output"] objective="gpt.initialization"
torch.manual_seed(0)
fresh = GPT(65, 128, 4, 4, 64)
idx, targets = torch.randint(65, (2, 12, 64)).unbind()
logits, loss = fresh(idx, targets)
print(f"first loss {loss.item():.1f}, ln V {math.log(65):.2f}")
print(f"the most likely next token is the token itself: {(logits.argmax(-1) == idx).float().mean().item():.0%}")

# %% [markdown]
# The table of an `nn.Embedding` is drawn with a standard deviation of 1. As a head, it compares the stream with each
# row, and the stream still holds the row of the token itself. The scalar product of a row with itself is about D.
# So the untrained model is sure that every token repeats itself.
#
# > **Classic mistake: believing the curve.**
# > Such a loss falls from 83 to 5 in a few steps, which looks like learning. It is the recovery from the first weights.
#
# The remedy is small numbers: a standard deviation of 0.02. One kind of layer needs even smaller ones.
# Each block *adds* two outputs to the stream. How does it grow?

# %% objective="gpt.initialization"
def spread_after(n_branches: int, std: float) -> float:
    """Standard deviation of a stream to which so many independent branches are added."""
    draws = torch.Generator().manual_seed(0)
    return (std * torch.randn(n_branches, 20_000, generator=draws)).sum(0).std().item()


for L in (2, 8, 32):
    plain, scaled = spread_after(2 * L, 1.0), spread_after(2 * L, 1 / math.sqrt(2 * L))
    print(f"{L:2} blocks: {plain:4.1f}, with each branch divided by sqrt(2 L): {scaled:.1f}")

# %% [markdown]
# The norms come *before* the branches, so nothing ever brings the stream back to size. (That is the answer to
# "why scale, if we normalize anyway?", which is asked again and again.)
#
# {{exercise init_weights}}

# %% exercise="init_weights"
def init_weights(model: nn.Module) -> None:
    """Give a mini GPT weights with which it starts out undecided: a first loss near ln V.

    Every linear layer and embedding gets weights drawn from a normal distribution (truncated or not)
    with mean 0 and standard deviation 0.02, except for the two layers of each block that write to the stream,
    `attn.proj` and the last layer of `ffn`: theirs is 0.02 / sqrt(2 * L), where L is the number of blocks.
    The norms keep their weights, and `head.weight` stays the Parameter that `tok.weight` is.
    `model` is made like `MiniGPT`, with the same names. Which generator is used is up to you.
    """
    ### BEGIN SOLUTION
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    for block in model.blocks:
        for layer in (block.attn.proj, block.ffn[-1]):
            nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * len(model.blocks)))
    ### END SOLUTION

# %%
check(init_weights)

# %% objective="gpt.initialization"
torch.manual_seed(0)
set_weights = passing(init_weights)
set_weights(fresh)
print("within 0.1 of ln V:", abs(fresh(idx, targets)[1].item() - math.log(65)) < 0.1)

# %% [markdown]
# ## 6 Text
#
# Text to train on, without a download: Python brings half a megabyte of English along, its help topics.

# %% tags=["nbval-ignore-output"] objective="gpt.data"
from course_lib.reference.text import Characters, held_out, paragraphs_of, python_topics

topics = python_topics()
print(f"{len(topics)} topics, {sum(map(len, topics)):,} characters\n\n{topics[0][:230]}")

# %% [markdown]
# Python's releases differ in this text, so your numbers differ a little from those that are stored here.
# To train on a text of your own, take `paragraphs_of("my_file.txt")` for `topics`: everything below works the same way.
#
# What do we keep for validation? The last tenth, one would say. Look at how often paragraphs occur:

# %% tags=["nbval-ignore-output"] objective="gpt.data"
long = [p for topic in topics for p in topic.split("\n\n") if len(p) > 80]
print(f"paragraphs: {len(long)}, of which different: {len(set(long))}")

# %% [markdown]
# The topics quote one another. A model that has seen a paragraph in training and is asked for it in validation looks
# better than it is. `held_out` keeps every tenth topic, whole, and drops from training what these topics quote:

# %% objective="gpt.data"
train_text, val_text = held_out(topics)
both = set(train_text.split("\n\n")) & set(val_text.split("\n\n"))
print("paragraphs in both:", len(both))
characters = Characters(train_text + val_text)
train_data, val_data = characters.encode(train_text), characters.encode(val_text)
print(characters.decode(characters.encode("def f(x):")))

# %% [markdown]
# One token per character. A batch is B windows of S tokens, and as targets the same windows one token later:

# %% objective="gpt.data"
row = torch.tensor([10, 11, 12, 13, 14, 15])
S = 3
print([(row[i : i + S].tolist(), row[i + 1 : i + 1 + S].tolist()) for i in range(len(row) - S)])

# %% [markdown]
# Three starts in six tokens. Each window is three questions: after 10 comes 11; after 10, 11 comes 12; and so on.
#
# {{exercise get_batch}}

# %% exercise="get_batch"
def get_batch(data: Tensor, B: int, S: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cut B random windows out of a long row of tokens: inputs and targets, (B, S) each.

    `data` is (N,), int64, with N > S. The targets are the inputs, one token later.
    Windows start anywhere, with the same chance for each place from which S + 1 tokens can be read,
    and each start is drawn independently of the others, from `generator` alone.
    Both tensors are contiguous.
    """
    ### BEGIN SOLUTION
    starts = torch.randint(len(data) - S, (B, 1), generator=generator)
    places = starts + torch.arange(S)  # (B, S)
    return data[places], data[places + 1]
    ### END SOLUTION

# %%
check(get_batch)

# %% objective="gpt.data"
x, y = passing(get_batch)(torch.arange(100), 2, 8, torch.Generator().manual_seed(0))
print("inputs ", x[0].tolist(), "\ntargets", y[0].tolist())

# %% [markdown]
# > **Classic mistake: shifting twice.**
# > Once in the data set and once more in the model (`logits[:, :-1]` against `targets[:, 1:]`).
# > The loss falls, and the text that comes out skips every second letter. Shift once. Test it with a row that counts.
#
# ## 7 How low can a loss get?
#
# {{predict noise_floor}}

# %%
predict("noise_floor", "b")

# %% objective="gpt.floor"
table = nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)) * 6)
opt = torch.optim.AdamW([table], lr=0.1)
draws = torch.Generator().manual_seed(1)
seen = []
for _ in range(300):
    x, y = torch.randint(16, (2, 512), generator=draws)
    loss = F.cross_entropy(table[x], y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen.append(round(loss.item(), 2))
print(seen[0], seen[20], seen[-1], " ln 16 =", round(math.log(16), 2))

# %% [markdown]
# The loss falls to ln 16 and stays there: nothing was learned, because there is nothing to learn.
#
# For real text nobody knows the floor. So let us make a text whose floor is known: a **Markov source**.
# Each token depends on the one before it, by a table of probabilities. Yours has 8 tokens:

# %% objective="gpt.floor"
from course_lib.reference.sources import MarkovSource

source = MarkovSource(vocabulary=8, seed=0)
print("after token 0:", [round(p, 2) for p in source.transition[0].tolist()])
print("a text:", "".join("abcdefgh"[token] for token in source.tokens(60, seed=1)))

# %% [markdown]
# How surprising is such a text, at best? After token a, the mean surprise is the entropy of row a.
# What remains is how often the text stands at a.
# A coin that comes up heads nine times in ten surprises by 0.325 nats on average; a fair one by ln 2 = 0.693:

# %% objective="gpt.floor"
for p in (0.5, 0.9, 1.0):
    print(p, round(float(torch.special.entr(torch.tensor([p, 1 - p])).sum()), 3))

# %% [markdown]
# {{exercise entropy_rate}}

# %% exercise="entropy_rate"
def entropy_rate(transition: Tensor) -> float:
    """Return the entropy rate of a Markov source in nats per token, as a plain `float`.

    `transition[a, b]` is the probability that token b follows token a: (V, V), float64; each row adds up to 1.
    The rate is the mean surprise, -log of the probability of the token that comes, over an endless text.
    No model can have a lower loss than that.
    From each token every other one can be reached. Some probabilities may be 0; what never happens surprises nobody.
    The source may be periodic: it may even repeat a fixed sequence for ever.
    """
    ### BEGIN SOLUTION
    n = len(transition)
    # How often each token occurs: the shares that one more step leaves as they are, and that add up to 1.
    equations = torch.cat([transition.T - torch.eye(n, dtype=transition.dtype), transition.new_ones(1, n)])
    right_side = transition.new_zeros(n + 1, 1)
    right_side[-1] = 1
    shares = torch.linalg.lstsq(equations, right_side).solution[:, 0]
    return float(shares @ torch.special.entr(transition).sum(dim=1))
    ### END SOLUTION

# %%
check(entropy_rate)

# %% objective="gpt.floor"
rate = passing(entropy_rate)(source.transition)
stream = source.tokens(40_000, seed=1)
alone = float(torch.special.entr(torch.bincount(stream) / len(stream)).sum())
print("ln V:         ", round(math.log(8), 3))
print("single tokens:", round(alone, 2))
print("entropy rate: ", round(rate, 3))

# %% [markdown]
# Three levels, and each says what a model knows: nothing, how often each token occurs, the rule.
# Below the lowest there is nothing to know.
#
# ## 8 Train it, and prove that it learned
#
# Three numbers prove it:
#
# 1. the **first** loss is near ln V, or the first weights are wrong;
# 2. the **last** loss is at the entropy rate, and *not below*;
# 3. the **probe** is 0: a later token does not move earlier logits.
#
# {{predict no_mask_loss}}

# %%
predict("no_mask_loss", "c")

# %% [markdown]
# Here is a right model, and one whose attention has no mask. They are trained alike.

# %% objective="gpt.training"
class LeakyAttention(passing(CausalSelfAttention)):
    """The same layer without the mask."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.size()
        three = self.qkv(x).view(B, T, 3, 2, D // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*three)
        return self.proj(mixed.transpose(1, 2).flatten(2))


# %% objective="gpt.training"
cut = passing(get_batch)


def train_on(model: nn.Module, data: Tensor, T: int, n_steps: int, lr: float, B: int = 32) -> list[float]:
    """Train on windows of a text; the losses, step by step."""
    draws, losses = torch.Generator().manual_seed(0), []
    opt = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    for _ in range(n_steps):
        x, y = cut(data, B, T, draws)
        loss = model(x, y)[1]
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


# %% [markdown]
# 300 updates for each, from the same first weights.
# (`loss.item()` makes a GPU wait; there, take every hundredth.)

# %% objective="gpt.training"
runs, models = {}, {}
for name in ("right", "no mask"):
    torch.manual_seed(0)
    model = GPT(vocab=8, dim=32, n_head=2, n_layer=1, max_len=8)
    if name == "no mask":
        model.blocks[0].attn = LeakyAttention(32, 2)
    set_weights(model)
    models[name], runs[name] = model, train_on(model, stream, T=8, n_steps=300, lr=3e-3)

# %% objective="gpt.training" tags=["nbval-ignore-output"]
show_losses(runs, {"ln V": math.log(8), "single tokens": alone, "entropy rate": rate})

# %% [markdown]
# The dotted lines are what makes the picture readable. In numbers:

# %% objective="gpt.training"
last = {name: sum(losses[-20:]) / 20 for name, losses in runs.items()}
print("right:   at the entropy rate:", abs(last["right"] - rate) < 0.1)
print("no mask: below it by more than half:", last["no mask"] < 0.5 * rate)

# %% [markdown]
# So the better loss is the worse model, and **that answers the question at the top**: a loss of 0.15 on a source with
# an entropy rate of 0.81 is no achievement, it is a proof of a leak.
# When it writes, there is no answer to look at. Hand both models the first four tokens alone, and ask for the fifth:

# %% objective="gpt.training"
x, y = cut(stream, 512, 8, torch.Generator().manual_seed(9))
for name, model in models.items():
    honest = F.cross_entropy(model(x[:, :4])[:, -1], y[:, 3]).item()
    print(f"{name:8} worse than single tokens would be: {honest > alone}")

# %% [markdown]
# > **Classic mistake: trusting the loss alone.**
# > Targets that are not shifted, a mask that is missing, a validation text that was in training: all make it *better*.
#
# {{exercise train_gpt}}

# %% exercise="train_gpt"
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
    ### BEGIN SOLUTION
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
    ### END SOLUTION

# %%
check(train_gpt)

# %% [markdown]
# Did it find the rule? The rule is a table, so read the table out of the model. After the most common token comes:

# %% objective="gpt.training"
def sample(B: int, S: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(stream) - S, (B, 1), generator=generator)
    return stream[starts + torch.arange(S)]


trained = passing(train_gpt)(sample, 80)
found = trained(torch.arange(8)[:, None])[:, -1].softmax(-1)  # (8, 8): what follows each token
common = torch.bincount(stream).topk(3).indices
print("read:", [round(p, 1) for p in found[common[0]].tolist()])
print("true:", [round(p, 1) for p in source.transition[common[0]].tolist()])
print("off by less than 0.1 after the three most common:", bool((found - source.transition)[common].abs().max() < 0.1))

# %% [markdown]
# ## 9 Real text
#
# Now the help topics. The loop is the one that you took to work in notebook 05: your `Trainer`.
# It trains any model with any loss function, resumes after a kill, and wants batches from any step on.
# (Paste yours into a cell above this one and run it, and it is used; otherwise the course's is.)

# %% objective="gpt.training"
Loop = passing("Trainer")
BATCH, CONTEXT, STEPS = 12, 64, 300


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:  # the batch depends on the step alone
        yield cut(train_data, BATCH, CONTEXT, torch.Generator().manual_seed(step))
        step += 1


# %% objective="gpt.training"
torch.manual_seed(0)
gpt = GPT(len(characters), dim=96, n_head=3, n_layer=3, max_len=CONTEXT)
set_weights(gpt)
adamw = torch.optim.AdamW(gpt.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
factor = lambda step: min((step + 1) / 20, 1) * (1 - step / STEPS)  # up for 20 steps, then down to 0  # noqa: E731
schedule = torch.optim.lr_scheduler.LambdaLR(adamw, factor)
loop = Loop(gpt, next_token, adamw, schedule, torch.amp.GradScaler("cpu", enabled=False))

# %% [markdown]
# 300 steps of 12 windows of 64 characters: about ten seconds on a quiet core.

# %% objective="gpt.training" tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
losses = loop.fit(batches_from, STEPS, str(folder / "gpt.pt"), save_every=100, progress=False)
show_losses({"training": losses}, {"ln V": math.log(len(characters))})

# %% [markdown]
# What is such a number worth? Compare it with a model that looks at nothing but the last n characters.
# Its loss can be counted: what follows each group of n characters in the text, and how surprising is that?

# %% objective="gpt.evaluation" tags=["nbval-ignore-output"]
from collections import Counter


def loss_after(text: str, n: int) -> float:
    """Nats per character, for a model that knows the frequencies after each group of n characters."""
    contexts = Counter(text[i : i + n] for i in range(len(text) - n))
    groups = Counter(text[i : i + n + 1] for i in range(len(text) - n))
    return -sum(count * math.log(count / contexts[group[:n]]) for group, count in groups.items()) / (len(text) - n)


for n in range(4):
    print(f"{n} characters back: {loss_after(train_text, n):.2f}")

# %% [markdown]
# So at 3.2 a model knows how often each letter comes, at 2.4 which one follows which, and at 1.7 it looks two back.
# (Three back, most groups occur only once in so short a text: that count flatters.) Which text does each of them write?

# %% objective="gpt.evaluation" tags=["nbval-ignore-output"]
def parrot(text: str, n: int, length: int, seed: int) -> str:
    """Each next character is one that follows the last n somewhere in the text."""
    draws, written = torch.Generator().manual_seed(seed), text[:n]
    for _ in range(length):
        tail = written[len(written) - n :]
        places = [i for i in range(len(text) - n) if text.startswith(tail, i)]
        written += text[places[int(torch.randint(len(places), (1,), generator=draws))] + n]
    return written


for n in range(4):
    print(f"{n} back: {parrot(train_text[:20_000], n, 60, seed=1)!r}")

# %% [markdown]
# Now you can judge a number, and a sample. A model that is to write *words* must get well below 2.
#
# For a number to compare with others, take the *whole* validation text, and each character once.
# In bits per character it can be held against a compressor too.
#
# {{exercise bits_per_character}}

# %% exercise="bits_per_character"
@torch.no_grad()
def bits_per_character(model: nn.Module, data: Tensor, S: int) -> float:
    """Return the mean loss of the model over all of `data`, in bits per token, as a plain `float`.

    `data` is (N,), int64, with N of 2 or more. Every token but the first is predicted once, and all count alike.
    The inputs are cut into windows of S tokens, side by side, from the first token on; the last may be shorter.
    A token is predicted from the tokens of its own window alone. `model(idx)` returns the logits (B, T, V).
    The model works in eval mode, without a graph; afterwards each submodule is in the mode in which it was.
    A loss in nats is the natural logarithm's; one bit is ln 2 nats.
    """
    ### BEGIN SOLUTION
    modes = {module: module.training for module in model.modules()}
    model.eval()
    nats = 0.0
    for x, y in zip(data[:-1].split(S), data[1:].split(S), strict=True):
        nats += F.cross_entropy(model(x[None])[0], y, reduction="sum").item()
    for module, mode in modes.items():
        module.training = mode
    return nats / (len(data) - 1) / math.log(2)
    ### END SOLUTION

# %%
check(bits_per_character)

# %% tags=["nbval-ignore-output"] objective="gpt.evaluation"
import zlib

bits = passing(bits_per_character)(gpt, val_data, CONTEXT)
packed = 8 * len(zlib.compress(val_text.encode(), 9)) / len(val_text)
print(f"validation: {bits:.2f} bits = {bits * math.log(2):.2f} nats per character; perplexity {2**bits:.1f}")
print(f"zlib, which has seen the whole text: {packed:.2f} bits per character")

# %% [markdown]
# After ten seconds a general-purpose compressor is still ahead. Section 13 is about what a minute can do.
#
# ## 10 Let it write
#
# The model gives probabilities, and writing is drawing from them.
# The **temperature** divides the logits:
#
# {{predict cold_sampling}}

# %%
predict("cold_sampling", "b")

# %% objective="gpt.sampling"
logits = torch.tensor([0.8, 0.2]).log()
for temperature in (0.1, 0.5, 1.0, 2.0, 100.0):
    print(f"{temperature:5}: {[round(p, 2) for p in (logits / temperature).softmax(0).tolist()]}")

# %% [markdown]
# Towards 0 the most likely token takes all, and towards infinity every token has its chance.
# What if you divide the *probabilities*? They are normalized again, and nothing has happened:

# %% objective="gpt.sampling"
p = torch.tensor([0.8, 0.2]) / 0.5
print((p / p.sum()).tolist())

# %% [markdown]
# A long tail of unlikely tokens is unlikely one by one, and not as a whole: one slip every few words.
# **top-k** keeps the k most likely tokens. **top-p** keeps the smallest set of top tokens that holds a share p,
# so it is narrow where the model is sure and wide where it is not.
#
# {{exercise filter_logits}}

# %% exercise="filter_logits"
def filter_logits(logits: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Return the logits with those of unlikely tokens replaced by minus infinity. `logits` is (B, V).

    `top_k`: the `top_k` largest logits of each row stay; a `top_k` of V or more leaves all of them.
    `top_p`: the tokens of a row are ranked by probability, the softmax of its logits, the largest first.
    A token stays if the probabilities of those *ranked before it* add up to less than `top_p`. So the first one stays.
    With both, `top_k` comes first, and the probabilities are those of the tokens that it has left.
    Logits that stay keep their value and their place. With neither, all stay. No two logits of a row are equal.
    """
    ### BEGIN SOLUTION
    if top_k is not None:
        smallest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < smallest, -math.inf)
    if top_p is not None:
        ranked, order = logits.sort(dim=-1, descending=True)
        probabilities = ranked.softmax(dim=-1)
        drop = probabilities.cumsum(dim=-1) - probabilities >= top_p
        logits = logits.masked_fill(drop.gather(-1, order.argsort(dim=-1)), -math.inf)
    return logits
    ### END SOLUTION

# %%
check(filter_logits)

# %% objective="gpt.sampling"
sure, unsure = torch.tensor([[6.0, 1.0, 0.5, 0.0, -1.0]]), torch.tensor([[1.0, 0.9, 0.8, 0.7, 0.6]])
kept = passing(filter_logits)
for name, logits in {"sure": sure, "unsure": unsure}.items():
    counts = [int(kept(logits, **rule).isfinite().sum()) for rule in ({"top_k": 3}, {"top_p": 0.9})]
    print(f"{name:6} top_k=3 keeps {counts[0]}, top_p=0.9 keeps {counts[1]}")

# %% [markdown]
# Now the loop. The model has `max_len` positions, and one more is an error:

# %% tags=["raises-exception", "nbval-ignore-output"] objective="gpt.sampling"
gpt(torch.zeros(1, CONTEXT + 1, dtype=torch.int64))

# %% [markdown]
# {{exercise generate}}

# %% exercise="generate"
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
    ### BEGIN SOLUTION
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
    ### END SOLUTION

# %%
check(generate)

# %% objective="gpt.sampling" tags=["nbval-ignore-output"]
write = passing(generate)
prompt = characters.encode("The ")[None]
for temperature, top_k in ((0, None), (0.7, None), (0.7, 10), (1.5, None)):
    drawn = write(gpt, prompt, 120, temperature, top_k, torch.Generator().manual_seed(1))
    print(f"--- temperature {temperature}, top_k {top_k}\n{characters.decode(drawn[0])}")

# %% [markdown]
# At 0 it walks in circles, at 1.5 it babbles, and in between there are words.
#
# Which tokens did it look at? The identity as values shows that here too. Take the first block:

# %% objective="gpt.sampling" tags=["nbval-ignore-output"]
phrase = "the value of the"
with torch.no_grad():
    x = gpt.tok(characters.encode(phrase)[None]) + gpt.pos.weight[: len(phrase)]
    q, k, _ = gpt.blocks[0].attn.qkv(gpt.blocks[0].norm1(x)).view(1, -1, 3, 3, 32).permute(2, 0, 3, 1, 4)
    seen = passing(causal_attention)(q, k, torch.eye(len(phrase)).expand(1, 3, -1, -1))[0]
show_attention(seen, list(phrase))

# %% [markdown]
# ## 11 Remember keys and values
#
# To write one token, `generate` runs the model over the whole context, and uses one row of the result.
# But keys and values of old tokens never change: they depend on what came before them alone.
#
# {{exercise kv_step}}

# %% exercise="kv_step"
def kv_step(
    q: Tensor, k: Tensor, v: Tensor, cache: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Attend with new tokens to all tokens so far, and remember theirs: return `(out, cache)`.

    `q`, `k` and `v` belong to the new tokens alone: (B, H, T, Dh). `cache` is None at first, and then what the
    call before returned: `(K, V)`, the keys and values of all tokens so far, in order, (B, H, T_all, Dh) each.
    `out` is (B, H, T, Dh): what causal attention over all tokens gives for the new ones.
    At first the new tokens may be many (the prompt); with a cache, there is one new token per call.
    """
    ### BEGIN SOLUTION
    if cache is not None:
        k = torch.cat([cache[0], k], dim=-2)
        v = torch.cat([cache[1], v], dim=-2)
    return sdpa_attention(q, k, v), (k, v)
    ### END SOLUTION

# %%
check(kv_step)

# %% [markdown]
# With it, the model runs over new tokens only. This is one pass, with a cache for each block:

# %% objective="gpt.cache"
step_with_cache = passing(kv_step)


def new_logits(model: nn.Module, new: Tensor, caches: list) -> Tensor:
    """Logits for the new tokens (B, T_new); `caches` has an entry per block, None at first, and is updated."""
    first = 0 if caches[0] is None else caches[0][0].shape[-2]
    x = model.tok(new) + model.pos.weight[first : first + new.shape[1]]
    for i, block in enumerate(model.blocks):
        three = block.attn.qkv(block.norm1(x)).view(*new.shape, 3, 3, -1).permute(2, 0, 3, 1, 4)
        heads, caches[i] = step_with_cache(*three, caches[i])
        x = x + block.attn.proj(heads.transpose(1, 2).flatten(2))
        x = x + block.ffn(block.norm2(x))
    return model.head(model.norm(x))


# %% objective="gpt.cache"
text = val_data[:40][None]
with torch.no_grad():
    whole = gpt(text)
    caches = [None] * len(gpt.blocks)
    parts = [new_logits(gpt, piece, caches) for piece in (text[:, :16], *text[:, 16:].split(1, dim=1))]
print("the same logits:", torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-3))
print("tokens run through the model: 40, instead of", sum(range(16, 41)))

# %% [markdown]
# Equal to a full recomputation, up to rounding: a cache is no approximation.
# Its price is memory:
#
# {{predict cache_bytes}}

# %%
predict("cache_bytes", "b")

# %% objective="gpt.cache"
def cache_gib(n_layer: int, T: int, kv_heads: int, head_dim: int, nbytes: int = 2) -> float:
    return 2 * n_layer * T * kv_heads * head_dim * nbytes / 2**30


print(f"32 heads of 128: {cache_gib(32, 4096, 32, 128):.2f} GiB; 8 of them for keys and values: {cache_gib(32, 4096, 8, 128):.2f} GiB")

# %% [markdown]
# The second number is **grouped-query attention**: several heads of queries share one of keys and values.
# `scaled_dot_product_attention` takes them with `enable_gqa=True`.
# (The toy has one thing that a real cache can't afford: `torch.cat` copies everything at each token.
# Serving systems write into pages that are there beforehand.)

# %% objective="gpt.cache"
q = torch.randn(1, 4, 6, 8, generator=draws)
k, v = (torch.randn(1, 2, 6, 8, generator=draws) for _ in range(2))
grouped = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
repeated = fused_causal(q, *(t.repeat_interleave(2, dim=1) for t in (k, v)))
print(torch.allclose(grouped, repeated, atol=1e-6))

# %% [markdown]
# ### What else has changed since
#
# How long is all of this? A well-known script calls its model "50 lines". Count ours: the lines that run.

# %% objective="gpt.model"
from course_lib.reference import gpt as pieces


def code_lines(*things: object) -> int:
    """Lines of functions, and of the methods of classes, that hold code; docstrings and comments do not count."""
    functions = [f for thing in things for f in (vars(thing).values() if isinstance(thing, type) else [thing])]
    codes = [getattr(f, "__wrapped__", f).__code__ for f in functions if callable(f)]
    return sum(len({line for *_, line in code.co_lines() if line}) for code in codes)


# %% tags=["nbval-ignore-output"] objective="gpt.model"
model_lines = code_lines(pieces.CausalSelfAttention, pieces.Block, pieces.MiniGPT, pieces.init_weights)
print("model and first weights:", model_lines, "lines")
print("batches, training, sampling:", code_lines(pieces.get_batch, pieces.train_gpt, pieces.generate), "lines")

# %% [markdown]
# It is the core of every language model of today. What they have changed, one by one:
#
# | part | here | today, in most models | what it brings |
# |---|---|---|---|
# | position | a row that is learned | rotary: queries and keys are turned by an angle | distances instead of places; no parameters |
# | `ffn` | GELU, D → 4 D → D | SwiGLU: two matrices up, their product, one down | a little loss for the same parameters |
# | heads | as many keys as queries | grouped: fewer keys and values | a smaller cache |
# | norm | RMSNorm | RMSNorm, with an eps of its own | |
# | head | tied | untied in large models | |
#
# Two of them you can count and see. SwiGLU has three matrices instead of two, so its width is cut to 8/3 D:

# %% objective="gpt.model"
D = 384
gelu, swiglu = 2 * D * (4 * D), 3 * D * (8 * D // 3)
print("parameters of an ffn:", f"{gelu:,} and {swiglu:,}")
rotary = pieces.Rotary(max_len=64, head_dim=32)
q, k = torch.randn(2, 1, 32, generator=draws).expand(2, 64, 32)  # one query and one key, at 64 places
scores = rotary(q) @ rotary(k).mT
print("the score depends on the distance alone:", torch.allclose(scores[10, 7], scores[40, 37], atol=1e-4))

# %% [markdown]
# `pieces.RotaryGPT` is our mini GPT with rotary positions and norms without weights. Same steps, same batches:

# %% objective="gpt.training" tags=["nbval-ignore-output"]
torch.manual_seed(0)
modern = pieces.RotaryGPT(len(characters), 96, 3, 3, CONTEXT)
pieces.init_silent_blocks(modern)
modern_losses = train_on(modern, train_data, CONTEXT, 200, lr=3e-3, B=BATCH)
show_losses({"learned positions": losses[:200], "rotary": modern_losses}, {"ln V": math.log(len(characters))})

# %% [markdown]
# nanoGPT, from which many have learned all this, says of itself since 2025 that it is old and deprecated, and points to
# [nanochat](https://github.com/karpathy/nanochat), which has most of the right column.
# And what you can do with a trained model, from chat to retrieval to fine-tuning with LoRA, uses the same loop.
#
# ## 12 Take it further
#
# You have a model and a course full of tools. Use them on it.
#
# **Profile it** (notebook 06). Where does a training step spend its time?

# %% objective="gpt.tools" tags=["nbval-ignore-output"]
from torch.profiler import ProfilerActivity, profile

x, y = next(batches_from(0))
with profile(activities=[ProfilerActivity.CPU]) as prof:
    for _ in range(3):
        next_token(gpt(x), y).backward()
        adamw.step()
hottest = sorted(prof.key_averages(), key=lambda row: -row.self_cpu_time_total)[:4]
total = sum(row.self_cpu_time_total for row in prof.key_averages())
print(*(f"{row.key:50} {row.self_cpu_time_total / total:4.0%}" for row in hottest), sep="\n")

# %% [markdown]
# Matrix products come first, as they should: what is not a matrix product is overhead. Your function agrees?

# %% objective="gpt.tools" tags=["nbval-ignore-output"]
passing("hottest_op")(prof)

# %% [markdown]
# **Weigh it.** A step of the model with 30 million parameters, on 32 sequences of 128 tokens, with tensors that have no
# numbers (notebook 06). The second step is the larger one: by then AdamW has its state. Simulated, not measured:

# %% objective="gpt.tools"
from course_lib.simulation import FULL_SIZE, track_training

step = track_training(FULL_SIZE, batch=32, seq=128, steps=2)
print(f"peak {step.peak / 2**20:.1f} MiB, in {step.phase_at(step.peak_event)}; "
      f"one set of logits alone: {32 * 128 * 50257 * 4 / 2**20:.1f} MiB")

# %% [markdown]
# **Two ranks** (notebook 08). Each takes half of the batch, and the gradients are averaged.
# What must come out is the gradient of the whole batch:

# %% objective="gpt.tools"
import torch.distributed as dist

from course_lib.ranks import launch


def half_of_the_gradient(state: dict, x: Tensor, y: Tensor) -> Tensor:
    """Runs on each rank: the averaged gradient of the table of tokens."""
    model = GPT(8, 32, 2, 1, 8)
    model.load_state_dict(state)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    model(x[mine], y[mine])[1].backward()
    grad = model.tok.weight.grad
    dist.all_reduce(grad)
    return grad / dist.get_world_size()


# %% objective="gpt.tools"
torch.manual_seed(0)
small = GPT(8, 32, 2, 1, 8)
tokens = sample(16, 9, torch.Generator().manual_seed(5))
x, y = tokens[:, :-1], tokens[:, 1:]
outcome = launch(half_of_the_gradient, small.state_dict(), x, y)
small(x, y)[1].backward()
for rank, grad in enumerate(outcome.results):
    print(f"rank {rank}: the gradient of the whole batch:", torch.allclose(grad, small.tok.weight.grad, atol=1e-5))

# %% [markdown]
# In a script `DistributedDataParallel(model)` does the averaging for all parameters, and starts while `backward` is
# still running.
#
# **Export it** (notebook 09), with a length that may change, and without your Python code.
#
# {{predict one_more_token}}

# %%
predict("one_more_token", "b")

# %% objective="gpt.tools" tags=["nbval-ignore-output"]
from torch.export import Dim, export

exported = export(
    gpt.eval(), (torch.zeros(2, 8, dtype=torch.int64),),
    dynamic_shapes=({0: Dim("batch"), 1: Dim("length", max=CONTEXT)},),
).module()
for shape in ((1, 1), (3, 17), (2, 64)):
    x = torch.randint(len(characters), shape)
    print(shape, "the same logits:", torch.allclose(exported(x), gpt(x), atol=1e-5))

# %% tags=["raises-exception", "nbval-ignore-output"] objective="gpt.tools"
exported(torch.zeros(1, CONTEXT + 1, dtype=torch.int64))

# %% [markdown]
# The range is part of the program. `torch.export.save` writes it to a file that needs none of your classes.

# %% [markdown]
# ## The sixty-second race
#
# You have a budget: a model of at most **344,256 parameters**, and **1,100 steps of 768 tokens**.
# On one quiet core that is about a minute.
# **How low can the loss on text that the model has never seen go?**
#
# The loss of the race is that of the *whole* held-out text: every token but the first is predicted once.
# A mean over a few random batches moves by some hundredths from call to call, and entries differ by less.
#
# The corpus is that of section 6, help topics or a text of your own.
# Records are kept for each corpus, by the name that you give it here: losses on two texts do not compare.

# %% objective="gpt.race"
from course_lib import record_race
from course_lib.reference.race import BUDGET, RaceResult, RaceSettings, race

corpus = "topics"
BUDGET

# %% [markdown]
# The driver's choices are in one place.
# `lr` is the rate of AdamW, `matrix_lr` that of an optimizer of which we speak in a moment.
# `final_lr` is where both end on a straight line, as a part of where they began.

# %% objective="gpt.race"
RaceSettings()

# %% [markdown]
# What is beyond the budget is refused before the first step:

# %% tags=["raises-exception"] objective="gpt.race"
race(pieces.RotaryGPT(len(characters), dim=128, n_head=4, n_layer=4, max_len=CONTEXT), train_data, val_data)

# %% [markdown]
# ### All directions at one speed
#
# A weight matrix maps directions to directions, and its gradient says how much each of them is wanted.
# Look at the gradient of a matrix through its *singular values*: the length of each direction.
# A few are long, most are short. A step along such a gradient learns a few things quickly, and the rest hardly at all.
# AdamW evens out the *entries* of a gradient. One can also even out its *directions*:
# keep the singular vectors and set all singular values to 1.
#
# A singular value decomposition in every step would be slow.
# But an odd polynomial of a matrix, such as $a\,x + b\,(x x^\top) x$, acts on the singular values alone.
# So a polynomial that lifts every number in (0, 1] towards 1, applied a few times, does nearly the same with matrix products.
#
# {{exercise orthogonalize}}

# %% exercise="orthogonalize"
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
    ### BEGIN SOLUTION
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = update.shape[-2] > update.shape[-1]
    x = update.mT if tall else update  # the smaller of the two products x @ x.mT and x.mT @ x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    for _ in range(steps):
        g = x @ x.mT
        x = a * x + (b * g + c * g @ g) @ x
    return x.mT if tall else x
    ### END SOLUTION


# %%
check(orthogonalize)

# %% [markdown]
# Here is what it does to the gradient of one matrix in a fresh model.
# It has 96 directions. Which part of its square belongs to the five longest?

# %% tags=["nbval-ignore-output"] objective="gpt.race"
_ = torch.manual_seed(0)
fresh = pieces.RotaryGPT(len(characters), dim=96, n_head=3, n_layer=3, max_len=CONTEXT)
passing(init_weights)(fresh)
fresh(train_data[:768].view(12, 64), train_data[1:769].view(12, 64))[1].backward()
gradient = fresh.blocks[1].attn.qkv.weight.grad
for name, matrix in {"gradient": gradient, "orthogonalized": passing(orthogonalize)(gradient)}.items():
    squares = torch.linalg.svdvals(matrix).square()
    print(f"{name:15} {squares[:5].sum() / squares.sum():.0%} in five of {len(squares)} directions")

# %% [markdown]
# Nearly all of the step would go into five directions. Afterwards some thirty have an equal say;
# the others are so short that five rounds do not reach them.

# %% [markdown]
# `Muon` is momentum whose step is orthogonalized: sixteen lines in `course_lib/reference/race.py`.
# It is for the matrices *inside* the blocks. A row of the embedding belongs to one token and is no direction of a map,
# so embeddings and the head stay with AdamW.
#
# ### The table that you fill
#
# An **ablation** takes one thing away from the best entry, and looks what it costs.
# Each cell below is one run. With `race_steps = 24` it takes seconds, and shows that everything works;
# **the figures mean something at `race_steps = BUDGET.steps`**, about a minute for each cell.
# Set it, and run the cells one by one. First predict, at full length:
#
# {{predict race_ablation}}

# %%
predict("race_ablation", "a")

# %% objective="gpt.race"
race_steps = 24  # BUDGET.steps for a real run
results: dict[str, RaceResult] = {}


def run(name: str, dim: int = 90, own_head: bool = True, steps: int = race_steps, **choices) -> None:
    """Build a model, race it, keep the result for the table, and note it in your record."""
    torch.manual_seed(0)
    model = pieces.RotaryGPT(len(characters), dim, n_head=3, n_layer=3, max_len=CONTEXT)
    passing(init_weights)(model)
    if own_head:  # not tied to the embedding, and undecided at first
        model.head.weight = nn.Parameter(torch.zeros(len(characters), dim))
    result = results[name] = race(model, train_data, val_data, RaceSettings(steps=steps, **choices))
    record_race(corpus, f"{name}: {result.setting}", result.validation_loss)


# %% [markdown]
# The best entry that we know. Its blocks start silent: the matrices that write to the stream are zero,
# so that the model begins as a table of which character follows which, and the blocks are added as they learn something.

# %% tags=["nbval-ignore-output"] objective="gpt.race"
run("the best entry")

# %% [markdown]
# The learning rates stay where they are, instead of going to zero:

# %% tags=["nbval-ignore-output"] objective="gpt.race"
run("no decay", final_lr=1.0)

# %% [markdown]
# AdamW for everything, at the same rate; then at the rate that most examples have:

# %% tags=["nbval-ignore-output"] objective="gpt.race"
run("AdamW alone", matrix_lr=0.0)

# %% tags=["nbval-ignore-output"] objective="gpt.race"
run("AdamW alone, lr 0.001", matrix_lr=0.0, lr=1e-3)

# %% [markdown]
# The blocks speak from the first step on:

# %% tags=["nbval-ignore-output"] objective="gpt.race"
run("outputs not zero", zero_outputs=False)

# %% [markdown]
# The head is the embedding, as in `MiniGPT`. What that saves in parameters goes into the width:

# %% tags=["nbval-ignore-output"] objective="gpt.race"
run("tied head, wider", dim=96, own_head=False)

# %% [markdown]
# And two entries that do about the same number of multiplications:
# half the steps, or a model of about half the size with all of them.

# %% tags=["nbval-ignore-output"] objective="gpt.race"
run("half the steps", steps=race_steps // 2)

# %% tags=["nbval-ignore-output"] objective="gpt.race"
run("half the size", dim=66)

# %% [markdown]
# Your table, the lowest loss first:

# %% tags=["nbval-ignore-output"] objective="gpt.race"
for name, result in sorted(results.items(), key=lambda item: item[1].validation_loss):
    print(f"{result.validation_loss:.3f}  {result.validation_loss / math.log(2):.2f} bits  {name}")

# %% tags=["nbval-ignore-output"] objective="gpt.race"
shown = ("the best entry", "no decay", "AdamW alone")
show_losses({name: results[name].losses for name in shown}, {"ln V": math.log(len(characters))})

# %% objective="gpt.race"
print("entries:", len(results))
print("all in the budget:", all(result.parameters <= BUDGET.parameters for result in results.values()))
print("all below ln V:", all(result.validation_loss < math.log(len(characters)) for result in results.values()))

# %% [markdown]
# ### What we measured
#
# Full runs, measured on a CPU with one thread in PyTorch 2.13, one seed each.
# The text is the one on which small models are usually compared, a megabyte of Shakespeare with 65 characters,
# with its last tenth held out. The model is 96 wide and uses the whole budget where nothing else is said.
#
# | entry | loss, nats | what it costs |
# |---|---|---|
# | the best entry | 1.699 | |
# | outputs not zero | 1.714 | 0.02 |
# | tied head (338,016 parameters) | 1.732 | 0.03 |
# | half the size (66 wide, 165,396 parameters) | 1.742 | 0.04 |
# | AdamW alone | 1.795 | 0.10 |
# | half the steps | 1.799 | 0.10 |
# | no decay | 1.910 | 0.21 |
# | AdamW alone, lr 0.001 | 2.060 | 0.36 |
#
# The help topics (`corpus = "topics"`, as they are in Python 3.11): 1.515 for the best entry, which is 90 wide there.
#
# To measure again, set `race_steps = BUDGET.steps` and run the cells: each is one call of `race`.
# (`dim=96` fits a vocabulary of 65; the 103 characters of the help topics leave room for 90.)
# On another processor sums are rounded in another order, and your figures differ by a hundredth or so.
#
# What do the figures say? The largest prizes are free: a learning rate six times as large as the one that is copied
# from everywhere, and a schedule that ends at zero. Then come the steps, and the optimizer.
# Half the size costs less than half the steps, for about the same multiplications:
# when time is short, a smaller model with more steps is the better buy.
# Silent blocks and a head of its own win hundredths, which count in a race and nowhere else.
#
# Your personal record is kept with your progress, for each corpus: `record_race(...)` after a run lists your best three.
# What else could you try? A warm-up, another momentum, another batch of the same 768 tokens, another shape of the model.
# The budget is fixed; the seed of the batches is one of your choices, and moves the loss too.
# So an improvement is one if it holds for a second seed.

# %% [markdown]
# ## Recap
#
# - Scores over the root of the *head's* width; minus infinity *before* the softmax; softmax over the keys.
# - Queries are the last positions. `is_causal=True` is for squares; True in a boolean mask means "may be seen".
# - Views cut and merge heads: (3, heads, numbers) is a convention, transposing before merging is not.
# - Norms stand in front of branches, branches add to the stream, and 2 L additions want a factor of 1/sqrt(2 L).
# - A tie is one Parameter under two names.
# - First loss near ln V. Last loss at the floor, not below. A later token moves no earlier logit.
# - Targets are inputs, shifted once. Validation text is quoted nowhere in training.
# - One number for a whole text: every token once, in bits.
# - The temperature divides logits. top-k and top-p write minus infinity.
# - A cache is exact, and costs two rows per block and token.

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] write attention on paper, with all shapes, and name five mistakes with their effects? (`causal_attention`, [section 1](#1-Attention-by-hand))
# - [ ] say what `is_causal=True` does with one query, and which kernel runs? (`sdpa_attention`, [section 2](#2-The-fused-function))
# - [ ] follow one number through every view of `CausalSelfAttention`? ([section 3](#3-Several-heads))
# - [ ] write block and model, and count their parameters? (`Block`, `MiniGPT`, [section 4](#4-Block-and-model))
# - [ ] say why a first loss is 83, and what a factor of 1/sqrt(2 L) is for? (`init_weights`, [section 5](#5-The-first-loss))
# - [ ] make a batch, and hold out text honestly? (`get_batch`, [section 6](#6-Text))
# - [ ] compute the floor of a loss? (`entropy_rate`, [section 7](#7-How-low-can-a-loss-get))
# - [ ] prove that a model learned? (`train_gpt`, [section 8](#8-Train-it-and-prove-that-it-learned))
# - [ ] measure a text? (`bits_per_character`, [section 9](#9-Real-text))
# - [ ] sample in four ways? (`filter_logits`, `generate`, [section 10](#10-Let-it-write))
# - [ ] decode with a cache, and price it? (`kv_step`, [section 11](#11-Remember-keys-and-values))
# - [ ] profile, weigh, parallelize and export it? ([section 12](#12-Take-it-further))
# - [ ] say what buys loss under a fixed budget, and what is hardly worth it? (`orthogonalize`, [the race](#The-sixty-second-race))

# %% tags=["nbval-ignore-output"]
progress()
