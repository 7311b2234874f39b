"""The exercises and questions of notebook 10: mini GPT.

Letters of shapes: B sequences, T tokens, D numbers per token, H heads, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from course_lib.checking import Exercise, Question, case, observe
from course_lib.checking.observe import Observer
from course_lib.exercises.clinic import StrictDevices
from course_lib.reference import gpt as reference
from course_lib.reference.gpt import Block, CausalSelfAttention, MiniGPT
from course_lib.reference.sources import MarkovSource

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # float32 sums of some dozen terms, in any order
LAYERS = {"rtol": 1e-3, "atol": 2e-4}  # several of them in a row, with an eps of a norm that may be another


def made(answer: Callable, *args: Any) -> Any:
    """What the answer builds. Drawing initial weights is no side effect."""
    with torch.random.fork_rng(devices=[]):
        return answer(*args)


def looked_at(look: Callable[[], Any]) -> Any:
    """What `look()` finds, or that it could not be used: a fact among others."""
    try:
        return look()
    except Exception as error:
        return f"raises {type(error).__name__}"


def fill_by_name(module: nn.Module) -> nn.Module:
    """Weights that follow from the names of the parameters alone; those of norms lie around 1.

    Of a tied weight the last of its names decides.
    """
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters(remove_duplicate=False)):
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = 0.4 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise + 1 if parameter.dim() == 1 else noise)
    return module


def gradients_by_name(module: nn.Module, output: Tensor, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Gradients of inputs and parameters under a cotangent that is not all ones."""
    sources = inputs | dict(module.named_parameters(remove_duplicate=False))
    cotangent = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
    found = torch.autograd.grad(output, list(sources.values()), cotangent, allow_unused=True)
    return dict(zip(sources, found, strict=True))


def ran(layer: nn.Module, x: Tensor) -> dict[str, Any]:
    """A layer's output on a batch, and the gradients of the batch and of its parameters."""
    x = x.detach().requires_grad_()
    output = layer(x)
    return {"output": output.detach(), "gradients": gradients_by_name(layer, output, {"x": x})}


def on_another_device(layer: nn.Module, *inputs: Tensor) -> Any:
    """What a GPU would say: the meta device stands in for it, and refuses tensors from elsewhere."""
    with StrictDevices():
        output = layer.to("meta")(*(x.to("meta") for x in inputs))
    return str(output.device), tuple(output.shape)


def layer_facts(layer: Any, x: Tensor) -> Any:
    """What is judged of a layer from (B, T, D) to (B, T, D)."""
    if not isinstance(layer, nn.Module):
        return layer
    facts = {"registered": observe.registered_in(layer)}
    fill_by_name(layer)
    facts["in train mode"] = looked_at(lambda: ran(layer.train(), x))
    facts["in eval mode"] = looked_at(lambda: ran(layer.eval(), x))
    with sdpa_kernel(SDPBackend.MATH):
        facts["without the fused kernel"] = looked_at(lambda: ran(layer, x))
    facts["on another device"] = looked_at(lambda: on_another_device(layer, x))
    return facts


# ---- causal_attention --------------------------------------------------------------------------------------


def attention_inputs(rng: torch.Generator, B: int, H: int, n_queries: int, n_keys: int, width: int):
    """Queries, keys and values, each with its gradient wanted."""
    sizes = (n_queries, n_keys, n_keys)
    return [torch.randn(B, H, n, width, generator=rng).requires_grad_() for n in sizes]


def transposed_heads(rng: torch.Generator, B: int, H: int, T: int, width: int):
    """As they come out of a layer: (B, T, H, Dh) in memory, (B, H, T, Dh) to look at."""
    return [
        torch.randn(B, T, H, width, generator=rng).transpose(1, 2).requires_grad_(flag)
        for flag in (False, False, False)
    ]


def attention_cases(rng):
    values = torch.tensor([[[[1.0], [-2.0], [4.0]]]])
    yield case("three tokens, one number each", values.clone(), values.clone(), values.clone())
    yield case("two heads of four numbers", *attention_inputs(rng, 1, 2, 3, 3, 4))
    yield case("a batch, five tokens, three heads", *attention_inputs(rng, 2, 3, 5, 5, 4))
    yield case("the last query alone, as with a cache", *attention_inputs(rng, 2, 3, 1, 4, 2))
    yield case("the last two queries of five", *attention_inputs(rng, 1, 2, 2, 5, 4))
    yield case("one token", *attention_inputs(rng, 1, 2, 1, 1, 3))
    yield case("heads that lie transposed in memory", *transposed_heads(rng, 2, 3, 4, 5))
    large = [40 * t.detach() for t in attention_inputs(rng, 1, 1, 4, 4, 4)]
    yield case("large scores", *large)
    yield case("float64", *(t.detach().double() for t in attention_inputs(rng, 1, 2, 3, 3, 4)))


causal_attention = Exercise(
    reference.causal_attention,
    title="Attention by hand",
    objective="gpt.attention",
    difficulty=2,
    minutes=20,
    points=2,
    observes=[observe.value(**CLOSE), observe.gradients(**CLOSE)],
    forbids=(F.scaled_dot_product_attention,),
    hints=(
        "Four steps: scores of all pairs, hide what may not be seen, turn each row into weights, mix the values. "
        "Write the shape of each next to it: only one of them is (..., Tq, Tk) twice.",
        "The scores are `q @ k.mT`, divided by the root of the last size of `q`. A lower triangle of True marks what "
        "may be seen; with fewer queries than keys it is shifted to the right by the difference. Fill before the "
        "softmax, which goes over the keys.",
        "`torch.ones(Tq, Tk, dtype=torch.bool).tril(Tk - Tq)` is the mask. `scores.masked_fill(~mask, -math.inf)`, "
        "then `.softmax(dim=-1)`, then one more matrix product with `v`.",
    ),
    why="The softmax must see the scores with the hidden ones at minus infinity: then their weight is exactly 0, and "
    "the others share all of it. The shift of the triangle is what makes the same function right for decoding: "
    "the last query sees every key, however many there are.",
)
causal_attention.cases(attention_cases)


def seen_by(q: Tensor, k: Tensor) -> Tensor:
    """(Tq, Tk), True where the query may see the key."""
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2])


def scaled_scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


@causal_attention.alternative
def with_an_additive_mask(q, k, v):
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    hidden = torch.full((n_queries, n_keys), -torch.inf, dtype=q.dtype).triu(n_keys - n_queries + 1)
    return F.softmax(q / math.sqrt(q.shape[-1]) @ k.transpose(-2, -1) + hidden, dim=-1) @ v


@causal_attention.alternative
def query_by_query(q, k, v):
    rows = []
    for i in range(q.shape[2]):
        n_seen = k.shape[2] - q.shape[2] + i + 1
        scores = torch.einsum("bhd,bhkd->bhk", q[:, :, i], k[:, :, :n_seen]) / math.sqrt(q.shape[3])
        rows.append(torch.einsum("bhk,bhkd->bhd", scores.softmax(-1), v[:, :, :n_seen]))
    return torch.stack(rows, dim=2)


@causal_attention.alternative
def with_positions_and_a_softmax_of_its_own(q, k, v):
    n_queries, n_keys = q.size(-2), k.size(-2)
    query_at = torch.arange(n_keys - n_queries, n_keys).unsqueeze(1)
    scores = torch.matmul(q, k.transpose(2, 3)) / q.size(-1) ** 0.5
    scores = torch.where(torch.arange(n_keys) <= query_at, scores, -1e9)
    weights = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return torch.matmul(weights / weights.sum(dim=-1, keepdim=True), v)


@causal_attention.misconception(
    "Your mask starts in the upper left corner. The queries are the last positions: with one query and a cache of "
    "four keys, yours sees key 0 alone, and should see all four."
)
def mask_from_the_upper_left(q, k, v):
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return scaled_scores(q, k).masked_fill(~visible, -math.inf).softmax(-1) @ v


@causal_attention.misconception(
    "The scores are not scaled. A sum of Dh products grows like the root of Dh, and the softmax of large numbers "
    "puts all weight on one key: divide by the root of Dh."
)
def no_scale(q, k, v):
    return (q @ k.mT).masked_fill(~seen_by(q, k), -math.inf).softmax(-1) @ v


@causal_attention.misconception(
    "You divide by Dh. It is its square root that keeps the spread of the scores at 1, whatever the width of a head."
)
def divides_by_the_width(q, k, v):
    scores = q @ k.mT / q.shape[-1]
    return scores.masked_fill(~seen_by(q, k), -math.inf).softmax(-1) @ v


@causal_attention.misconception(
    "You scale by the width of the model, H * Dh. A score is a sum over the numbers of one head, so the root of Dh "
    "is the measure. With one head the two agree; with 16 the attention is four times too even."
)
def scales_by_the_model(q, k, v):
    scores = q @ k.mT * (q.shape[1] * q.shape[-1]) ** -0.5
    return scores.masked_fill(~seen_by(q, k), -math.inf).softmax(-1) @ v


@causal_attention.misconception(
    "You scale by the number of heads. It is the second size of `q`; a score is a sum over the last one, Dh."
)
def scales_by_the_heads(q, k, v):
    scores = q @ k.mT * q.shape[1] ** -0.5
    return scores.masked_fill(~seen_by(q, k), -math.inf).softmax(-1) @ v


@causal_attention.misconception(
    "Nothing is masked: every token looks into the future. In training it then copies the answer from its input, "
    "and the loss is better than that of a right model."
)
def no_mask(q, k, v):
    return scaled_scores(q, k).softmax(-1) @ v


@causal_attention.misconception(
    "The triangle is the wrong one: each token sees itself and what comes after it. `tril` keeps the past, `triu` "
    "the future."
)
def sees_the_future(q, k, v):
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(k.shape[-2] - q.shape[-2])
    return scaled_scores(q, k).masked_fill(~visible, -math.inf).softmax(-1) @ v


@causal_attention.misconception(
    "You fill where the mask is True, and your True means 'may be seen'. `masked_fill` overwrites what is True: "
    "invert the mask. The last query has nothing left to see, and its softmax is NaN."
)
def fills_what_may_be_seen(q, k, v):
    return scaled_scores(q, k).masked_fill(seen_by(q, k), -math.inf).softmax(-1) @ v


@causal_attention.misconception(
    "A token can't see itself: your triangle leaves the diagonal out. The first query then sees nothing at all, and "
    "the softmax over nothing is NaN."
)
def not_itself(q, k, v):
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2] - 1)
    return scaled_scores(q, k).masked_fill(~visible, -math.inf).softmax(-1) @ v


@causal_attention.misconception(
    "You hide a score by making it 0. To the softmax 0 is a score like any other, and exp(0) is 1: hidden is minus "
    "infinity."
)
def fills_with_zero(q, k, v):
    return scaled_scores(q, k).masked_fill(~seen_by(q, k), 0.0).softmax(-1) @ v


@causal_attention.misconception(
    "You mask after the softmax. The weights of the future are gone, but its scores are still in the denominator: "
    "rows no longer add up to 1, and the past depends on what comes later."
)
def masks_after_the_softmax(q, k, v):
    return scaled_scores(q, k).softmax(-1) * seen_by(q, k) @ v


@causal_attention.misconception(
    "The softmax goes over the queries. Each *row* must add up to 1: it is one query, and it shares its attention "
    "among the keys, the last dimension."
)
def softmax_over_the_queries(q, k, v):
    return scaled_scores(q, k).masked_fill(~seen_by(q, k), -math.inf).softmax(-2).nan_to_num() @ v


@causal_attention.misconception(
    "Every visible key gets the same weight: the result is the running mean of the values, whatever `q` and `k` say. "
    "Shapes and causality are right. A mask of 0 and -inf, used as if it were one of 1 and 0, does this: adding a "
    "huge number to every allowed score rounds the scores away."
)
def running_mean_of_the_values(q, k, v):
    return (seen_by(q, k) * (0.0 * scaled_scores(q, k))).masked_fill(~seen_by(q, k), -math.inf).softmax(
        -1
    ) @ v


@causal_attention.misconception(
    "Your result holds keys: the weights must mix the *values*. What a token is found by and what it hands over are "
    "two different things."
)
def mixes_the_keys(q, k, v):
    return scaled_scores(q, k).masked_fill(~seen_by(q, k), -math.inf).softmax(-1) @ k + 0 * v


# ---- sdpa_attention ----------------------------------------------------------------------------------------


class FusedAttentionRecorder(TorchFunctionMode):
    """Counts the calls of `F.scaled_dot_product_attention`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__name__", "") == "scaled_dot_product_attention"
        return func(*args, **(kwargs or {}))


uses_the_fused_function = Observer(
    "fused attention used",
    lambda trial: trial.logs[FusedAttentionRecorder].count > 0,
    recorders=(FusedAttentionRecorder,),
)

sdpa_attention = Exercise(
    reference.sdpa_attention,
    title="The fused function, safe with a cache",
    objective="gpt.fused",
    difficulty=2,
    minutes=10,
    observes=[observe.value(**CLOSE), observe.gradients(**CLOSE), uses_the_fused_function],
    hints=(
        "`is_causal=True` has a fixed idea of where the queries stand. Is it yours when there are fewer queries "
        "than keys?",
        "Hand over the mask yourself: `attn_mask`, a boolean matrix (Tq, Tk). True means 'may be seen', the opposite "
        "of what `nn.MultiheadAttention` means.",
        "The mask is the same triangle as in `causal_attention`, on the device of `q`. The scale is the function's "
        "own business.",
    ),
    why="`is_causal=True` draws its triangle from the upper left corner, so it is right for square scores alone. An "
    "explicit mask says what you mean. In hot code you would use `is_causal` for the square case and no mask for a "
    "single query: both let the function choose a faster kernel.",
)
sdpa_attention.cases(attention_cases)


@sdpa_attention.alternative
def by_cases(q, k, v):
    if q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if q.shape[-2] == 1:
        return F.scaled_dot_product_attention(q, k, v)
    hidden = torch.full((q.shape[-2], k.shape[-2]), -math.inf, dtype=q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden.triu(k.shape[-2] - q.shape[-2] + 1))


@sdpa_attention.alternative
def with_a_named_bias(q, k, v):
    from torch.nn.attention.bias import causal_lower_right  # here, for it brings the compiler along

    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=causal_lower_right(q.shape[-2], k.shape[-2])._materialize()
    )


@sdpa_attention.alternative
def with_queries_in_front(q, k, v):
    padded = F.pad(q, (0, 0, k.shape[-2] - q.shape[-2], 0))
    return F.scaled_dot_product_attention(padded, k, v, is_causal=True)[..., -q.shape[-2] :, :]


@sdpa_attention.misconception(
    "`is_causal=True` is aligned to the upper left corner. With one query and a cache, the query sees key 0 alone: "
    "the output is the first value, and the model repeats itself."
)
def always_is_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@sdpa_attention.misconception(
    "`is_causal=q.shape[-2] > 1` is right for all tokens and for one, but not for a few new tokens over a cache: "
    "there its triangle starts in the wrong corner."
)
def is_causal_for_more_than_one(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] > 1)


@sdpa_attention.misconception(
    "Without a mask every query sees every key. That is right for one query at the end, and a leak for all others."
)
def never_masked(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@sdpa_attention.misconception(
    "Your mask is True where something is to be hidden. That is the convention of `nn.MultiheadAttention`; for "
    "`scaled_dot_product_attention` True means 'may be seen'."
)
def true_means_hidden(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~seen_by(q, k))


@sdpa_attention.misconception(
    "Your mask is a triangle of ones and zeros in floating point. A float mask is *added* to the scores, so it hides "
    "nothing. Make it boolean, or put minus infinity where something is hidden."
)
def a_float_mask_of_ones(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen_by(q, k).to(q.dtype))


@sdpa_attention.misconception(
    "The scores are scaled twice: the function divides by the root of Dh by itself. Hand over `q` as it is."
)
def scaled_twice(q, k, v):
    return F.scaled_dot_product_attention(q / math.sqrt(q.shape[-1]), k, v, attn_mask=seen_by(q, k))


@sdpa_attention.misconception(
    "The numbers are right, and made by hand. Here the fused function is to do the work: it never writes the whole "
    "matrix of weights to memory."
)
def by_hand(q, k, v):
    return scaled_scores(q, k).masked_fill(~seen_by(q, k), -math.inf).softmax(-1) @ v


# ---- CausalSelfAttention -----------------------------------------------------------------------------------

self_attention = Exercise(
    reference.CausalSelfAttention,
    title="Several heads, one layer",
    objective="gpt.attention",
    difficulty=3,
    minutes=25,
    points=2,
    observes=[observe.value(**LAYERS)],
    hints=(
        "Follow one number of the output of `qkv` through each reshape: which token is it of, which of q, k and v, "
        "which head? A `view` only cuts what lies side by side in memory (notebook 01).",
        "Cut the last dimension of `qkv(x)` into (3, n_head, D // n_head), in this order. Bring the three to the "
        "front and the heads before the tokens. After the attention, the tokens go before the heads again, and only "
        "then are heads and numbers merged.",
        "`.view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)` gives something to unpack into `q, k, v`. Back: "
        "`transpose(1, 2)`, then `reshape`, which may have to copy, then `proj`.",
    ),
    why="One matrix product makes queries, keys and values for all heads; the rest is a matter of views. The order "
    "of the factors in the view is a convention, and every order trains equally well. That is why only given weights "
    "tell a mixed-up order from the right one, and why a checkpoint is more than its shapes.",
)


@self_attention.scenario
def use_attention(answer, dim, n_head, T):
    if dim % n_head:
        return refusal_of(answer, dim, n_head)
    generator = torch.Generator().manual_seed(dim + T)
    return layer_facts(made(answer, dim, n_head), torch.randn(2, T, dim, generator=generator))


def refusal_of(answer: Callable, dim: int, n_head: int) -> Any:
    """A width that the heads can't share is refused by the constructor, with either of two exceptions."""
    try:
        made(answer, dim, n_head)
    except (AssertionError, ValueError):
        return "refused"
    return "accepted"


@self_attention.cases
def _(rng):
    yield case("one head", dim=2, n_head=1, T=3)
    yield case("two heads of three numbers", dim=6, n_head=2, T=4)
    yield case("three heads of two numbers", dim=6, n_head=3, T=5)
    yield case("heads, width and tokens of other sizes", dim=20, n_head=5, T=3)
    yield case("a width that the heads can't share", dim=10, n_head=3, T=3)


def heads_of(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (B, H, T, Dh) each."""
    B, T, D = x.shape
    return layer.qkv(x).view(B, T, 3, layer.n_head, D // layer.n_head).permute(2, 0, 3, 1, 4).unbind()


def merged(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def is_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@self_attention.alternative
class three_chunks_by_hand(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        assert dim % n_head == 0, (dim, n_head)
        self.heads, self.size = n_head, dim // n_head
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, self.size)) for part in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.size)
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


@self_attention.alternative
class head_after_head(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        self.size, remainder = divmod(dim, n_head)
        if remainder:
            raise ValueError("the heads can't share the width")
        self.proj = nn.Linear(dim, dim, bias=False)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x):
        parts = [part.split(self.size, dim=-1) for part in self.qkv(x).split(x.shape[-1], dim=-1)]
        heads = [is_causal(q[:, None], k[:, None], v[:, None])[:, 0] for q, k, v in zip(*parts, strict=True)]
        return self.proj(torch.cat(heads, dim=-1))


@self_attention.misconception(
    "You cut the outputs of `qkv` into heads first, and each head into q, k and v. It trains just as well, but it is "
    "another function of the weights: all queries come first, then all keys, then all values."
)
class heads_before_the_three(CausalSelfAttention):
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, self.n_head, 3, D // self.n_head).permute(3, 0, 2, 1, 4)
        return self.proj(merged(is_causal(q, k, v)))


@self_attention.misconception(
    "The numbers of a head must lie side by side: (heads, numbers), not (numbers, heads). You have dealt them out to "
    "the heads like cards."
)
class numbers_before_heads(CausalSelfAttention):
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, D // self.n_head, self.n_head).permute(2, 0, 4, 1, 3)
        return self.proj(merged(is_causal(q, k, v)))


@self_attention.misconception(
    "You unpack keys, queries and values in this order. The first third of `qkv` is the queries."
)
class keys_first(CausalSelfAttention):
    def forward(self, x):
        k, q, v = heads_of(self, x)
        return self.proj(merged(is_causal(q, k, v)))


@self_attention.misconception(
    "You view the outputs as (B, H, T, ...) directly. They lie as (B, T, ...) in memory, so this mixes tokens with "
    "heads, and with them the future into the past. Cut first, then transpose."
)
class views_instead_of_transposing(CausalSelfAttention):
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (part.reshape(B, self.n_head, T, D // self.n_head) for part in self.qkv(x).chunk(3, -1))
        return self.proj(merged(is_causal(q, k, v)))


@self_attention.misconception(
    "You merge the heads without transposing back. (B, H, T, Dh) reshaped to (B, T, D) puts numbers of different "
    "tokens into one row, later tokens among them."
)
class merges_without_transposing(CausalSelfAttention):
    def forward(self, x):
        return self.proj(is_causal(*heads_of(self, x)).reshape(x.shape))


@self_attention.misconception(
    "You transpose to (B, T, Dh, H) before merging: the numbers of the heads are interleaved. The heads go side by "
    "side, each in one piece."
)
class interleaves_the_heads(CausalSelfAttention):
    def forward(self, x):
        return self.proj(is_causal(*heads_of(self, x)).permute(0, 2, 3, 1).flatten(2))


@self_attention.misconception(
    "Nothing is masked: a change of the last token changes the outputs of all tokens before it."
)
class attends_to_all(CausalSelfAttention):
    def forward(self, x):
        return self.proj(merged(F.scaled_dot_product_attention(*heads_of(self, x))))


@self_attention.misconception(
    "The output projection is missing: `proj` is there and never used. Without it the heads can't exchange anything."
)
class without_the_projection(CausalSelfAttention):
    def forward(self, x):
        return merged(is_causal(*heads_of(self, x))) + 0 * self.proj(x)


@self_attention.misconception(
    "`.view` after `transpose` works by luck: the fused kernel of the CPU returns its result in an order in which "
    "the transpose is contiguous. With another kernel (dropout, other shapes, other devices) it raises. `reshape` "
    "copies where it must."
)
class views_by_luck(CausalSelfAttention):
    def forward(self, x):
        return self.proj(is_causal(*heads_of(self, x)).transpose(1, 2).view(x.shape))


@self_attention.misconception(
    "There is one head, of the whole width: `n_head` has no effect. The heads must attend each on its own."
)
class one_head_for_all(CausalSelfAttention):
    def forward(self, x):
        return self.proj(is_causal(*self.qkv(x).chunk(3, dim=-1)))


@self_attention.misconception(
    "You scale by the width of the model. A head has D // H numbers, and the root of that is the measure."
)
class scale_of_the_model(CausalSelfAttention):
    def forward(self, x):
        heads = F.scaled_dot_product_attention(*heads_of(self, x), is_causal=True, scale=x.shape[-1] ** -0.5)
        return self.proj(merged(heads))


@self_attention.misconception(
    "You scale by the number of heads. The measure is the root of the size of a head."
)
class scale_of_the_heads(CausalSelfAttention):
    def forward(self, x):
        heads = F.scaled_dot_product_attention(*heads_of(self, x), is_causal=True, scale=self.n_head**-0.5)
        return self.proj(merged(heads))


@self_attention.misconception(
    "You mask after the softmax: the future is still in the denominator, and the weights of a row no longer add up "
    "to 1."
)
class masks_the_weights(CausalSelfAttention):
    def forward(self, x):
        q, k, v = heads_of(self, x)
        return self.proj(merged(scaled_scores(q, k).softmax(-1).tril() @ v))


@self_attention.misconception(
    "Hidden scores are 0, which is a score like any other. Minus infinity is what gets no weight."
)
class zero_scores(CausalSelfAttention):
    def forward(self, x):
        q, k, v = heads_of(self, x)
        return self.proj(merged(scaled_scores(q, k).tril().softmax(-1) @ v))


@self_attention.misconception(
    "The softmax must go over the keys, the last dimension, and yours goes over the queries."
)
class softmax_of_columns(CausalSelfAttention):
    def forward(self, x):
        q, k, v = heads_of(self, x)
        hidden = ~seen_by(q, k)
        return self.proj(merged(scaled_scores(q, k).masked_fill(hidden, -math.inf).softmax(-2) @ v))


@self_attention.misconception(
    "All visible tokens weigh the same: your result is the running mean of the values. Queries and keys get no "
    "gradient at all."
)
class running_mean(CausalSelfAttention):
    def forward(self, x):
        *_, v = heads_of(self, x)
        counts = torch.arange(1, x.shape[1] + 1, device=x.device).unsqueeze(-1)
        return self.proj(merged(v.cumsum(dim=2) / counts))


@self_attention.misconception(
    "Your mask is True where something is to be hidden. `scaled_dot_product_attention` reads True as 'may be seen'."
)
class inverted_mask(CausalSelfAttention):
    def forward(self, x):
        q, k, v = heads_of(self, x)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.proj(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)))


@self_attention.misconception(
    "The mask is made on the CPU. On a GPU the scores are elsewhere: give `device=x.device` to what you create in "
    "`forward`."
)
class mask_on_the_cpu(CausalSelfAttention):
    def forward(self, x):
        q, k, v = heads_of(self, x)
        heads = scaled_scores(q, k).masked_fill(~seen_by(q, k), -math.inf).softmax(-1) @ v
        return self.proj(merged(heads))


@self_attention.misconception(
    "The two layers have a bias. Here they have none: `bias=False`, or the weights of a checkpoint will not fit."
)
class with_biases(CausalSelfAttention):
    def __init__(self, dim, n_head):
        super().__init__(dim, n_head)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)


@self_attention.misconception(
    "A width of 10 for 3 heads is accepted. `10 // 3` is 3, nine numbers in all, and the error comes later, from a "
    "`view` that says nothing about heads. Refuse it in the constructor."
)
class accepts_any_width(CausalSelfAttention):
    def __init__(self, dim, n_head):
        nn.Module.__init__(self)
        self.n_head = n_head
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)


# ---- Block -------------------------------------------------------------------------------------------------

block = Exercise(
    reference.Block,
    title="Look back, then think",
    objective="gpt.model",
    difficulty=2,
    minutes=12,
    observes=[observe.value(**LAYERS)],
    hints=(
        "Draw the stream as a line that nothing interrupts. Two branches leave it, and each comes back with a plus.",
        "First branch: `norm1`, then `attn`. The second one starts from the stream *after* the first has been added: "
        "`norm2`, then `ffn`.",
        "Two lines of the form `x = x + branch(norm(x))`. The names of the parts are given, as weights are loaded.",
    ),
    why="The stream from the first embedding to the last norm is a sum, so a gradient reaches every block "
    "undiminished. With the norm on the stream itself (as in the paper of 2017) it passes through every norm on its "
    "way, and deep "
    "models need a warm-up to survive their first steps.",
)


@block.scenario
def use_block(answer, dim, n_head, T):
    generator = torch.Generator().manual_seed(dim + T)
    return layer_facts(made(answer, dim, n_head), torch.randn(2, T, dim, generator=generator))


@block.cases
def _(rng):
    yield case("one head, one token", dim=2, n_head=1, T=1)
    yield case("two heads", dim=4, n_head=2, T=3)
    yield case("three heads, five tokens", dim=12, n_head=3, T=5)


@block.alternative
class with_branches_in_place(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        self.attn = CausalSelfAttention(dim, n_head)
        layers = nn.Linear(dim, dim * 4, bias=False), nn.GELU(), nn.Linear(dim * 4, dim, bias=False)
        self.ffn = nn.Sequential(*layers)
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm([dim])

    def forward(self, x):
        stream = x.clone()
        stream += self.attn(self.norm1(x))
        return torch.add(stream, self.ffn(self.norm2(stream)))


@block.alternative
class as_two_named_steps(Block):
    def look_back(self, x):
        return self.attn(self.norm1(x)) + x

    def think(self, x):
        return self.ffn(self.norm2(x)) + x

    def forward(self, x):
        return self.think(self.look_back(x))


@block.misconception(
    "The norm stands on the stream: `norm(x + branch(x))`. That is the order of 2017. Here the norm stands in front "
    "of each branch, and the stream itself is never normalized."
)
class post_norm(Block):
    def forward(self, x):
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.ffn(x))


@block.misconception(
    "What came in is not added to what comes out. Without the sum, a block at the start of training erases what the "
    "stream holds, and the gradient has to pass through every layer."
)
class no_residual(Block):
    def forward(self, x):
        return self.ffn(self.norm2(self.attn(self.norm1(x))))


@block.misconception("The sum after the attention is missing: what came in is lost before the `ffn` sees it.")
class no_residual_around_the_attention(Block):
    def forward(self, x):
        x = self.attn(self.norm1(x))
        return x + self.ffn(self.norm2(x))


@block.misconception(
    "You add the branch to the *normalized* input: `x = norm(x)` has replaced the stream. Only what goes into a "
    "branch is normalized."
)
class normalizes_the_stream(Block):
    def forward(self, x):
        x = self.norm1(x)
        x = x + self.attn(x)
        x = self.norm2(x)
        return x + self.ffn(x)


@block.misconception(
    "Both branches start from the same input. (Some models do this on purpose, to save time.) Here the `ffn` reads "
    "the stream after the attention has been added."
)
class parallel_branches(Block):
    def forward(self, x):
        return x + self.attn(self.norm1(x)) + self.ffn(self.norm2(x))


@block.misconception("`norm1` is used twice, and `norm2` never: it is there, and it gets no gradient.")
class one_norm_for_both(Block):
    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.ffn(self.norm1(x))


@block.misconception("The attention is never called: no token learns anything of the others.")
class no_attention(Block):
    def forward(self, x):
        return x + self.ffn(self.norm2(x)) + 0 * self.attn(self.norm1(x))


@block.misconception(
    "Your activation is a ReLU. It is an `nn.GELU()` here: smooth, and slightly negative below 0."
)
class with_relu(Block):
    def __init__(self, dim, n_head):
        super().__init__(dim, n_head)
        self.ffn[1] = nn.ReLU()


@block.misconception(
    "Between the two linear layers stands nothing. Two linear layers in a row are one linear layer: the activation "
    "makes them more."
)
class no_activation(Block):
    def __init__(self, dim, n_head):
        super().__init__(dim, n_head)
        self.ffn[1] = nn.Identity()


@block.misconception(
    "Your norms subtract the mean: that is LayerNorm. RMSNorm only divides, by the root of the mean square."
)
class with_layer_norm(Block):
    def __init__(self, dim, n_head):
        super().__init__(dim, n_head)
        self.norm1, self.norm2 = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)


@block.misconception(
    "The inner width is `dim`. The `ffn` widens to `4 * dim`: two thirds of a block's weights."
)
class narrow_ffn(Block):
    def __init__(self, dim, n_head):
        super().__init__(dim, n_head)
        self.ffn[0], self.ffn[2] = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)


# ---- MiniGPT -----------------------------------------------------------------------------------------------

mini_gpt = Exercise(
    reference.MiniGPT,
    title="The whole model",
    objective="gpt.model",
    difficulty=3,
    minutes=25,
    points=3,
    observes=[observe.value(**LAYERS)],
    hints=(
        "Two tables, a list of blocks, a norm, a head. Everything must be registered (notebook 03), and one of the "
        "weights has two names.",
        "The positions are the first T rows of the second table; they are added to every sequence. After the "
        "assignment `self.head.weight = ...` there is one Parameter. `cross_entropy` wants (N, V) and (N,).",
        "`self.pos.weight[: idx.shape[1]]` is (T, D), already on the right device. `logits.flatten(0, 1)` and "
        "`targets.flatten()` (or `reshape(-1)`) work for slices as well, which `view(-1)` does not.",
    ),
    why="Tying the head to the table saves V * D parameters, which in a small model is most of them, and lets each "
    "token be read and written in the same coordinates. An assignment of the Parameter itself is a tie; `.data` only "
    "makes two Parameters share a storage, and the optimizer then updates it twice.",
)


@mini_gpt.scenario
def use_model(answer, vocab, dim, n_head, n_layer, max_len, T):
    model = made(answer, vocab, dim, n_head, n_layer, max_len)
    if not isinstance(model, nn.Module):
        return model
    generator = torch.Generator().manual_seed(dim + T)
    tokens = torch.randint(vocab, (3, T + 1), generator=generator)
    idx, targets = tokens[:, :-1], tokens[:, 1:]
    before = tokens.clone()
    facts = {"registered": observe.registered_in(model) | {"parameters": names_and_shapes(model)}}
    facts["tied"] = looked_at(lambda: is_tied(model))
    facts["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    fill_by_name(model)
    for mode in (True, False):
        model.train(mode)
        name = "in train mode" if mode else "in eval mode"
        facts[f"logits {name}"] = looked_at(lambda: model(idx).detach())
        facts[f"with targets {name}"] = looked_at(lambda: loss_facts(model, idx, targets))
    facts["tokens changed"] = not torch.equal(tokens, before)
    facts["tied in float64"] = looked_at(lambda: is_tied(model.double()))
    facts["on another device"] = looked_at(lambda: on_another_device(model, idx))
    return facts


def names_and_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """All parameters by name, a tied one under each of its names."""
    return {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def is_tied(model: nn.Module) -> bool:
    return model.head.weight is model.tok.weight


def loss_facts(model: nn.Module, idx: Tensor, targets: Tensor) -> dict[str, Any]:
    logits, loss = model(idx, targets)
    return {
        "logits": logits.detach(),
        "loss": loss.detach(),
        "gradients": gradients_by_name(model, loss, {}),
    }


@mini_gpt.cases
def _(rng):
    yield case("one block, one head", vocab=3, dim=2, n_head=1, n_layer=1, max_len=4, T=2)
    yield case("two blocks, full length", vocab=7, dim=4, n_head=2, n_layer=2, max_len=5, T=5)
    yield case("three blocks, one token", vocab=11, dim=6, n_head=3, n_layer=3, max_len=6, T=1)
    yield case("more tokens than numbers", vocab=20, dim=8, n_head=2, n_layer=2, max_len=9, T=7)


@mini_gpt.alternative
class tied_the_other_way(nn.Module):
    def __init__(self, vocab, dim, n_head, n_layer, max_len):
        super().__init__()
        self.head = nn.Linear(dim, vocab, bias=False)
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.tok.weight = self.head.weight
        self.norm = nn.RMSNorm(dim)
        self.blocks = nn.ModuleList()
        for _ in range(n_layer):
            self.blocks.append(Block(dim, n_head))

    def forward(self, idx, targets=None):
        stream = self.tok(idx) + self.pos(torch.arange(idx.size(1), device=idx.device))
        for layer in self.blocks:
            stream = layer(stream)
        logits = self.head(self.norm(stream))
        if targets is not None:
            return logits, F.cross_entropy(logits.transpose(1, 2), targets)
        return logits


@mini_gpt.alternative
class with_a_loss_by_hand(MiniGPT):
    def forward(self, idx, targets=None):
        x = F.embedding(idx, self.tok.weight)
        x = x + self.pos.weight[: idx.shape[-1]].unsqueeze(0)
        for layer in self.blocks:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tok.weight)
        if targets is None:
            return logits
        chosen = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1))
        return logits, -chosen.mean()


@mini_gpt.misconception(
    "The head has a weight of its own. `head.weight` is to be the Parameter of `tok`: assign it."
)
class untied(nn.Module):
    def __init__(self, vocab, dim, n_head, n_layer, max_len):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(Block(dim, n_head) for _ in range(n_layer))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]
        for layer in self.blocks:
            x = layer(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@mini_gpt.misconception(
    "The two weights share a storage by `.data`, and are two Parameters all the same. The optimizer updates the "
    "storage twice, and `.to(dtype)` takes them apart. Assign the Parameter, not its data."
)
class tied_by_data(MiniGPT):
    def __init__(self, vocab, dim, n_head, n_layer, max_len):
        super().__init__(vocab, dim, n_head, n_layer, max_len)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight.data = self.tok.weight.data


def through_blocks(model: nn.Module, x: Tensor) -> Tensor:
    for layer in model.blocks:
        x = layer(x)
    return x


def with_loss(logits: Tensor, targets: Tensor | None) -> Any:
    return logits if targets is None else (logits, reference.next_token_loss(logits, targets))


@mini_gpt.misconception(
    "The positions are never added. Attention alone is blind to order: a token would see which tokens came before "
    "it, but not where."
)
class no_positions(MiniGPT):
    def forward(self, idx, targets=None):
        return with_loss(self.head(self.norm(through_blocks(self, self.tok(idx)))), targets)


@mini_gpt.misconception(
    "One row of the position table is added to all tokens: `pos.weight[T - 1]` where `pos.weight[:T]` was meant. "
    "Broadcasting hides it: the shapes fit."
)
class one_position_for_all(MiniGPT):
    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos.weight[idx.shape[1] - 1]
        return with_loss(self.head(self.norm(through_blocks(self, x))), targets)


@mini_gpt.misconception(
    "The norm after the last block is missing. The stream has grown with every block, and the head needs it at a "
    "known size."
)
class no_last_norm(MiniGPT):
    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]
        return with_loss(self.head(through_blocks(self, x)) + 0 * self.norm.weight.sum(), targets)


@mini_gpt.misconception(
    "Your blocks are in a Python list, which registers nothing: they are not trained, not saved and not moved. "
    "Use an `nn.ModuleList`."
)
class blocks_in_a_list(MiniGPT):
    def __init__(self, vocab, dim, n_head, n_layer, max_len):
        super().__init__(vocab, dim, n_head, n_layer, max_len)
        del self.blocks
        self.blocks = [Block(dim, n_head) for _ in range(n_layer)]


@mini_gpt.misconception(
    "All entries of your list are one and the same block: `[Block(...)] * n_layer` repeats the object. Make a new "
    "one for each layer."
)
class one_block_many_times(MiniGPT):
    def __init__(self, vocab, dim, n_head, n_layer, max_len):
        super().__init__(vocab, dim, n_head, n_layer, max_len)
        self.blocks = nn.ModuleList([Block(dim, n_head)] * n_layer)


@mini_gpt.misconception(
    "`torch.arange(T)` makes its numbers on the CPU. With the model on a GPU the lookup raises: give it "
    "`device=idx.device`."
)
class positions_on_the_cpu(MiniGPT):
    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        return with_loss(self.head(self.norm(through_blocks(self, x))), targets)


@mini_gpt.misconception(
    "`targets.view(-1)` refuses a slice: targets cut out of a larger tensor are not contiguous. `flatten` and "
    "`reshape` copy where they must."
)
class views_the_targets(MiniGPT):
    def forward(self, idx, targets=None):
        logits = super().forward(idx)
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@mini_gpt.misconception(
    "You shift inside the model, and the targets are shifted already: yours learns to predict the token after the "
    "next one. Shift once; here the batch does it."
)
class shifts_again(MiniGPT):
    def forward(self, idx, targets=None):
        logits = super().forward(idx)
        if targets is None:
            return logits
        return logits, reference.next_token_loss(logits[:, :-1], targets[:, 1:])


@mini_gpt.misconception(
    "`cross_entropy` gets probabilities. It takes logits, and does the softmax itself: with two of them the loss "
    "can't come near 0."
)
class softmax_before_the_loss(MiniGPT):
    def forward(self, idx, targets=None):
        logits = super().forward(idx)
        return logits if targets is None else (logits, reference.next_token_loss(logits.softmax(-1), targets))


@mini_gpt.misconception(
    "The loss is a sum over the tokens. It is to be their mean: else the gradient grows with the size of the batch."
)
class sums_the_loss(MiniGPT):
    def forward(self, idx, targets=None):
        logits = super().forward(idx)
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@mini_gpt.misconception(
    "Only the last position is judged. Every position predicts its next token: T lessons from one sequence, and you "
    "use one."
)
class loss_of_the_last_token(MiniGPT):
    def forward(self, idx, targets=None):
        logits = super().forward(idx)
        return logits if targets is None else (logits, F.cross_entropy(logits[:, -1], targets[:, -1]))


@mini_gpt.misconception(
    "Without targets your model returns `(logits, None)`. `model(idx)` is to return the logits alone, so that a loop "
    "with a loss function of its own can use it."
)
class always_a_pair(MiniGPT):
    def forward(self, idx, targets=None):
        result = super().forward(idx, targets)
        return (result, None) if targets is None else result


# ---- init_weights ------------------------------------------------------------------------------------------

init_weights = Exercise(
    reference.init_weights,
    title="Undecided at first",
    objective="gpt.initialization",
    difficulty=2,
    minutes=15,
    observes=[observe.value(rtol=0.2, atol=0.0005)],
    hints=(
        "Which layers of the model have matrices? `model.modules()` walks over all of them. Two of each block are "
        "special: the ones whose output is added to the stream.",
        "`nn.init.normal_(layer.weight, std=...)` draws in place. The number of blocks is `len(model.blocks)`. Do the "
        "special layers *after* the loop over all modules, or the loop overwrites them.",
        "`isinstance(module, (nn.Linear, nn.Embedding))` finds the matrices. Then for each block: "
        "`block.attn.proj` and `block.ffn[-1]`, with 0.02 divided by the root of twice the number of blocks.",
    ),
    why="With small weights all logits are near 0, so every token is about equally likely and the loss is ln V. "
    "The table of an `nn.Embedding` starts at standard deviation 1; used as a head, it makes logits of the size of "
    "sqrt(D). Each block adds two branches to the stream, 2L in all: the factor keeps the variance of the sum the "
    "same for any depth.",
)


class MixesNothing(nn.Module):
    """The layers of an attention, under its names; each token stays by itself."""

    def __init__(self, dim: int):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.proj(v + q * k)


class MadeLikeABlock(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.RMSNorm(dim), nn.RMSNorm(dim), MixesNothing(dim)
        layers = nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False)
        self.ffn = nn.Sequential(*layers)


class MadeLikeMiniGPT(nn.Module):
    """The parts and names of MiniGPT: enough to draw weights for, and to ask for a first loss."""

    def __init__(self, vocab: int, dim: int, n_layer: int, max_len: int):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(MadeLikeABlock(dim) for _ in range(n_layer))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]
        for part in self.blocks:
            x = x + part.attn(part.norm1(x))
            x = x + part.ffn(part.norm2(x))
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@init_weights.scenario
def look_at_weights(answer, vocab, dim, n_layer, max_len):
    """The spread of every matrix, and what a first batch says. Drawing weights is no side effect."""
    model = made(MadeLikeMiniGPT, vocab, dim, n_layer, max_len)
    before = observe.registered_in(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.5)
    made(answer, model)
    after = observe.registered_in(model)
    spread = {name: float(p.detach().std()) for name, p in model.named_parameters() if p.dim() > 1}
    facts = {"standard deviation": spread, "first loss": looked_at(lambda: first_loss(model))}
    facts["means are near 0"] = all(abs(p.mean()) < 0.2 * p.std() for p in matrices(model))
    norms = [p.detach() for p in model.parameters() if p.dim() == 1]
    facts["norms as they were"] = all(bool((p == 1.5).all()) for p in norms)
    return facts | {"tied": is_tied(model), "registered as before": before == after}


def matrices(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters() if parameter.dim() > 1]


def first_loss(model: nn.Module) -> str:
    vocab = model.tok.num_embeddings
    tokens = torch.randint(vocab, (4, 17), generator=torch.Generator().manual_seed(0))
    loss = model(tokens[:, :-1], tokens[:, 1:])[1]
    if loss > 1.5 * math.log(vocab):
        return "more than 1.5 ln V"
    loss.backward()
    learns = all(bool(layer.attn.qkv.weight.grad.any()) for layer in model.blocks)
    return "near ln V" if learns else "near ln V, but no gradient reaches the attention"


@init_weights.cases
def _(rng):
    yield case("two blocks", vocab=40, dim=32, n_layer=2, max_len=32)
    yield case("four blocks", vocab=96, dim=48, n_layer=4, max_len=24)


@init_weights.alternative
def by_name(model):
    depth = len(model.blocks)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            writes = name.endswith(("proj.weight", "ffn.2.weight"))
            nn.init.normal_(parameter, mean=0.0, std=0.02 * (2 * depth) ** -0.5 if writes else 0.02)


@init_weights.alternative
def truncated_and_scaled_afterwards(model):
    generator = torch.Generator().manual_seed(1)

    @torch.no_grad()
    def start(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.copy_(torch.randn(module.weight.shape, generator=generator).clamp(-3, 3) * 0.02)

    model.apply(start)
    with torch.no_grad():
        for layer in model.blocks:
            layer.attn.proj.weight.div_(math.sqrt(2 * len(model.blocks)))
            layer.ffn[2].weight.div_(math.sqrt(2 * len(model.blocks)))
    return model


@init_weights.misconception(
    "The model has PyTorch's own initial weights. The table is drawn with a standard deviation of 1, and it is the "
    "head as well: logits in the tens, and a first loss far above ln V."
)
def default_weights(model):
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module is not model.head:
            module.reset_parameters()


@init_weights.misconception(
    "With zeros everywhere the loss is ln V, and it stays there: every gradient but a few is 0, as each layer "
    "multiplies by zero. Numbers must differ to become more different."
)
def all_zeros(model):
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.zeros_(module.weight)


@init_weights.misconception(
    "You have drawn the weights of the norms as well. They are factors that start at 1; at 0.02 they make every "
    "branch fifty times smaller. Take linear layers and embeddings alone."
)
def norms_too(model):
    reference.init_weights(model)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, std=0.02)


@init_weights.misconception(
    "The layers that write to the stream are not scaled. 2L branches are added up, so each must be smaller by the "
    "root of 2L. (If you have scaled them: does a later loop overwrite it?)"
)
def no_residual_scaling(model):
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


@init_weights.misconception(
    "You divide by the root of L. Each block adds two branches, attention and `ffn`: the root of 2L."
)
def one_branch_per_block(model):
    reference.init_weights(model)
    for layer in model.blocks:
        nn.init.normal_(layer.attn.proj.weight, std=0.02 / math.sqrt(len(model.blocks)))
        nn.init.normal_(layer.ffn[-1].weight, std=0.02 / math.sqrt(len(model.blocks)))


@init_weights.misconception(
    "Only the attention's `proj` is scaled. The last layer of `ffn` writes to the stream as well."
)
def only_the_attention_is_scaled(model):
    reference.init_weights(model)
    for layer in model.blocks:
        nn.init.normal_(layer.ffn[-1].weight, std=0.02)


@init_weights.misconception(
    "The embeddings keep their standard deviation of 1. The table of tokens is also the head: it is what makes the "
    "first loss so large."
)
def only_the_blocks(model):
    before = model.tok.weight.detach().clone(), model.pos.weight.detach().clone()
    reference.init_weights(model)
    with torch.no_grad():
        model.tok.weight.copy_(before[0])
        model.pos.weight.copy_(before[1])


@init_weights.misconception(
    "The positions keep a standard deviation of 1. `nn.Linear` alone finds the head, and with it the table of tokens; "
    "the table of positions is an `nn.Embedding`."
)
def positions_forgotten(model):
    before = model.pos.weight.detach().clone()
    reference.init_weights(model)
    with torch.no_grad():
        model.pos.weight.copy_(before)


@init_weights.misconception(
    "You have given the head a new Parameter, and the tie is gone. Draw in place: `nn.init.normal_(layer.weight)`."
)
def breaks_the_tie(model):
    reference.init_weights(model)
    model.head.weight = nn.Parameter(0.02 * torch.randn_like(model.head.weight))


@init_weights.misconception(
    "You took 0.02 for the variance: your weights have a standard deviation of 0.14. `std=0.02`."
)
def variance_for_deviation(model):
    reference.init_weights(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding) and module is not model.head:
                module.weight.mul_(0.02**-0.5)


# ---- get_batch ---------------------------------------------------------------------------------------------

get_batch = Exercise(
    reference.get_batch,
    title="Inputs and targets",
    objective="gpt.data",
    difficulty=2,
    minutes=12,
    observes=[observe.value()],
    hints=(
        "A window of S inputs needs S + 1 tokens. With N tokens, which is the last start that works, and so how many "
        "starts are there?",
        "`torch.randint(high, (B,), generator=generator)` gives numbers below `high`. An index tensor of shape (B, S) "
        "takes all windows at once, and what indexing returns is contiguous.",
        "`starts` as (B, 1) plus `torch.arange(S)` is (B, S): the places of the inputs. The targets are at the same "
        "places plus 1. The number of starts is `len(data) - S`.",
    ),
    why="Every window needs one token after its end, so there are N - S starts, and `randint` excludes its upper "
    "limit: the numbers fit without a correction. Indexing with a tensor copies, so both results are contiguous, "
    "where two slices of one (B, S + 1) tensor would not be.",
)


@get_batch.scenario
def draw_batches(answer, data, B, S):
    """Facts about many windows that hold for every right way to draw them."""
    generator = torch.Generator().manual_seed(1)
    batch = answer(data, B, S, generator)
    if not is_pair(batch) or not all(isinstance(part, Tensor) and part.dim() == 2 for part in batch):
        return batch
    x, y = batch
    facts = {"shapes": (x.shape, y.shape), "dtypes": (x.dtype, y.dtype)}
    facts["contiguous"] = x.is_contiguous(), y.is_contiguous()
    facts["windows"] = looked_at(lambda: window_facts(data, x, y, S))
    again, other = (answer(data, B, S, torch.Generator().manual_seed(seed))[0] for seed in (1, 2))
    many = len(data) - S > 1
    facts["the same for the same seed"] = torch.equal(x, again)
    facts["other windows for another seed"] = many and not torch.equal(x, other)
    facts["other windows in the next batch"] = many and not torch.equal(x, answer(data, B, S, generator)[0])
    return facts


def is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def window_facts(data: Tensor, x: Tensor, y: Tensor, S: int) -> dict[str, Any]:
    """Where the windows start, and how far the targets lie behind. No number occurs twice in the data."""
    place = {token: position for position, token in enumerate(data.tolist())}
    rows = [[place[token] for token in row] for row in x.tolist()]
    starts = [row[0] for row in rows]
    ahead = {place[b] - place[a] for a, b in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)}
    expected = len(rows) / (len(data) - S)
    return {
        "consecutive": all(row == list(range(row[0], row[0] + S)) for row in rows),
        "targets ahead by": sorted(ahead),
        "starts": sorted(set(starts)),
        "each start about as often": all(
            abs(starts.count(s) - expected) < 0.5 * expected for s in set(starts)
        ),
        "neighbors drawn independently": len(rows) < 20 or len(set(pairwise(starts))) > len(set(starts)),
    }


@get_batch.cases
def _(rng):
    yield case("one window fits", torch.tensor([5, -1, 7, 2]), B=2, S=3)
    tokens = torch.tensor([30, -10, 20, 0, 50, 40, 10])
    yield case("three windows fit", tokens, B=400, S=4)
    yield case("six windows of one token", tokens.clone(), B=900, S=1)
    yield case("every second token of a longer row", (torch.arange(16) * 3 - 9)[::2], B=600, S=2)


@get_batch.alternative
def window_by_window(data, B, S, generator):
    starts = torch.randint(0, len(data) - S, (B,), generator=generator).tolist()
    x = torch.stack([data[start : start + S] for start in starts])
    y = torch.stack([data[start + 1 : start + 1 + S] for start in starts])
    return x, y


@get_batch.alternative
def by_unfold(data, B, S, generator):
    windows = data.unfold(0, S + 1, 1)
    chosen = windows[torch.randint(len(windows), (B,), generator=generator)]
    return chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()


def some_starts(high: int, B: int, generator: torch.Generator) -> Tensor:
    return torch.randint(high, (B, 1), generator=generator)


@get_batch.misconception(
    "The targets are the inputs. A model that sees a token and is asked for the same token learns to copy it, and its "
    "loss goes to 0."
)
def targets_not_shifted(data, B, S, generator):
    x = data[some_starts(len(data) - S, B, generator) + torch.arange(S)]
    return x, x.clone()


@get_batch.misconception("The targets are two tokens ahead. Shift once: in the batch, and nowhere else.")
def targets_shifted_twice(data, B, S, generator):
    places = some_starts(len(data) - S, B, generator) + torch.arange(S)
    return data[places], data[(places + 2).clamp(max=len(data) - 1)]


@get_batch.misconception(
    "The last start is one too late: `len(data) - S + 1` starts leave room for the inputs, but not for the target of "
    "the last of them."
)
def starts_too_late(data, B, S, generator):
    starts = torch.randint(len(data) - S + 1, (B,), generator=generator).tolist()
    x = torch.stack([data[start : start + S] for start in starts])
    return x, torch.stack([data[start + 1 : start + 1 + S] for start in starts])


@get_batch.misconception(
    "The last window is never drawn: `randint` excludes its upper limit by itself. There are `len(data) - S` starts."
)
def misses_the_last_start(data, B, S, generator):
    places = some_starts(len(data) - S - 1, B, generator) + torch.arange(S)
    return data[places], data[places + 1]


@get_batch.misconception(
    "The values are right, but both are slices of one tensor of S + 1 columns, so neither is contiguous, and code "
    "that calls `targets.view(-1)` raises. Index twice, or make them contiguous."
)
def slices_of_one_tensor(data, B, S, generator):
    windows = data[some_starts(len(data) - S, B, generator) + torch.arange(S + 1)]
    return windows[:, :-1], windows[:, 1:]


@get_batch.misconception(
    "Your targets are random tokens. There is nothing to learn from them: the best that a model can do is to find "
    "them all equally likely, at a loss of ln V."
)
def random_targets(data, B, S, generator):
    x = data[some_starts(len(data) - S, B, generator) + torch.arange(S)]
    return x, data[torch.randint(len(data), (B, S), generator=generator)]


@get_batch.misconception(
    "Windows start at multiples of S only. They may start anywhere: the model should meet each token at every "
    "position."
)
def starts_at_multiples(data, B, S, generator):
    n_windows = max((len(data) - 1) // S, 1)
    places = some_starts(n_windows, B, generator) * S + torch.arange(S)
    return data[places], data[places + 1]


@get_batch.misconception(
    "You draw without replacement: with `randperm` a batch can't have more windows than there are starts, and the "
    "starts are not independent."
)
def without_replacement(data, B, S, generator):
    starts = torch.randperm(len(data) - S, generator=generator)[:B].unsqueeze(1)
    places = starts + torch.arange(S)
    return data[places], data[places + 1]


@get_batch.misconception(
    "All windows of a batch start at the same place. Draw one start for each of the B rows."
)
def one_start_for_all(data, B, S, generator):
    places = some_starts(len(data) - S, 1, generator).expand(B, 1) + torch.arange(S)
    return data[places], data[places + 1]


@get_batch.misconception(
    "You draw from PyTorch's own generator, not from the one that you are handed: the batches depend on everything "
    "else that draws random numbers."
)
def ignores_the_generator(data, B, S, generator):
    places = some_starts(len(data) - S, B, None) + torch.arange(S)
    return data[places], data[places + 1]


@get_batch.misconception(
    "You seed afresh in every call, so every batch is the same one. The generator that you are handed remembers where "
    "it was."
)
def seeds_afresh(data, B, S, generator):
    places = some_starts(len(data) - S, B, torch.Generator().manual_seed(0)) + torch.arange(S)
    return data[places], data[places + 1]


# ---- entropy_rate ------------------------------------------------------------------------------------------

entropy_rate = Exercise(
    reference.entropy_rate,
    title="The floor of a loss",
    objective="gpt.floor",
    difficulty=2,
    minutes=15,
    observes=[observe.value(rtol=1e-4, atol=1e-6)],
    hints=(
        "Two questions: how surprising is the next token after token a, on average? And how often does the text "
        "stand at a? The rate is the mean of the first, weighted by the second.",
        "The shares are those that one more step leaves alone: `shares @ transition == shares`, and they add up to 1. "
        "These are linear equations. Multiplying by the matrix again and again does not settle where the source "
        "alternates. For p log p at p = 0 there is `torch.special.entr`.",
        "Stack `transition.T - I` on a row of ones; the right side is zeros and a 1 at the end. "
        "`torch.linalg.lstsq(A, b).solution` gives the shares. `entr(transition).sum(dim=1)` is the surprise per row.",
    ),
    why="Cross entropy is the mean surprise of a model, and the source itself is the least surprised of all models. "
    "So its entropy rate is the floor: at the floor the model knows the rule, and below it it has seen the answer.",
)


@entropy_rate.scenario
def rate_of(answer, rows):
    transition = torch.tensor(rows, dtype=torch.float64)
    before = transition.clone()
    rate = answer(transition)
    return rate if torch.equal(transition, before) else "your function has changed its input"


@entropy_rate.cases
def _(rng):
    yield case("a fair coin", rows=[[0.5, 0.5], [0.5, 0.5]])
    yield case("two tokens that take turns", rows=[[0.0, 1.0], [1.0, 0.0]])
    yield case("a sticky token", rows=[[0.9, 0.1], [0.6, 0.4]])
    yield case("three tokens, some pairs never", rows=[[0.0, 0.7, 0.3], [0.2, 0.0, 0.8], [1.0, 0.0, 0.0]])
    alternating = [[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.9, 0.1], [0.3, 0.7, 0.0, 0.0], [0.8, 0.2, 0.0, 0.0]]
    yield case("four tokens in two groups that take turns", rows=alternating)
    yield case("eight tokens", rows=MarkovSource(8, seed=0).transition.tolist())


@entropy_rate.alternative
def by_the_eigenvector(transition):
    values, vectors = torch.linalg.eig(transition.T)
    shares = vectors[:, (values - 1).abs().argmin()].real
    surprise = -torch.where(transition > 0, transition * transition.clamp_min(1e-300).log(), 0.0).sum(1)
    return (shares / shares.sum() * surprise).sum().item()


@entropy_rate.alternative
def by_a_lazy_walk(transition):
    n = len(transition)
    lazy = (transition + torch.eye(n, dtype=transition.dtype)) / 2
    shares = torch.linalg.matrix_power(lazy, 4096)[0]
    return float(-(shares @ torch.xlogy(transition, transition)).sum())


def surprise_of_rows(transition: Tensor) -> Tensor:
    return torch.special.entr(transition).sum(dim=1)


def shares_of(transition: Tensor) -> Tensor:
    n = len(transition)
    lazy = (transition + torch.eye(n, dtype=transition.dtype)) / 2
    return torch.linalg.matrix_power(lazy, 4096)[0]


@entropy_rate.misconception(
    "All rows count alike in your mean. A token that comes often must count more: weigh the rows by how often the "
    "text stands there."
)
def plain_mean_of_rows(transition):
    return float(torch.special.entr(transition).sum(dim=1).mean())


@entropy_rate.misconception(
    "This is the entropy of the tokens on their own, as if each were drawn without looking back. It is what a model "
    "without attention and without memory can reach; the rate is lower."
)
def entropy_of_single_tokens(transition):
    return float(torch.special.entr(shares_of(transition)).sum())


@entropy_rate.misconception(
    "ln V is the loss of a model that knows nothing. The source has a rule, and its rate is lower."
)
def log_of_the_vocabulary(transition):
    return math.log(len(transition))


@entropy_rate.misconception(
    "Your rate is in bits: the logarithm must be the natural one, as in `cross_entropy`."
)
def in_bits(transition):
    return float(shares_of(transition) @ surprise_of_rows(transition)) / math.log(2)


@entropy_rate.misconception(
    "0 * log 0 is NaN in floating point. Its limit is 0: what never happens surprises nobody. `torch.special.entr` "
    "knows."
)
def nan_for_what_never_happens(transition):
    surprise = -(transition * transition.log()).sum(dim=1)
    return float(shares_of(transition) @ surprise)


@entropy_rate.misconception(
    "A high power of the matrix does not settle where the source takes turns: after an even number of steps it is "
    "always at the same half of the tokens. Solve for the shares instead."
)
def power_of_the_matrix(transition):
    shares = torch.linalg.matrix_power(transition, 1000)[0]
    return float(shares @ surprise_of_rows(transition))


@entropy_rate.misconception(
    "You add up along the columns. Row a is the distribution of what follows a, so each row has a surprise of its "
    "own: sum over `dim=1`."
)
def surprise_of_columns(transition):
    return float(shares_of(transition) @ torch.special.entr(transition).sum(dim=0))


# ---- train_gpt ---------------------------------------------------------------------------------------------

train_gpt = Exercise(
    reference.train_gpt,
    title="Train it, and prove that it learned",
    objective="gpt.training",
    difficulty=3,
    minutes=30,
    points=3,
    observes=[observe.value()],
    hints=(
        "The pieces are yours already: a model, its first weights, a batch, a loss, a step. What is the target of the "
        "last token of a sequence, and how many tokens do you need for T inputs?",
        "Sample T + 1 tokens per sequence; inputs are all but the last, targets all but the first. Give the model its "
        "first weights *before* you make the optimizer. Compare the loss with the entropy rate, from both sides.",
        "`tokens = sample(32, 9, generator)`, and `model(tokens[:, :-1], tokens[:, 1:])` gives logits and loss. Then "
        "the words of notebook 05: zero, backward, step, `steps` times.",
    ),
    why="A falling loss proves little: it falls for targets that are not shifted, and it falls fastest without a mask. "
    "Three numbers prove it: the first loss (ln V, or the weights are wrong), the last loss (the entropy rate and not "
    "below), and the change of earlier logits when a later token changes (0).",
)


@cache
def markov_stream(seed: int) -> Tensor:
    """A long text of the source with 8 tokens."""
    return MarkovSource(8, seed=0).tokens(16_000, seed)


def cut(stream: Tensor, B: int, S: int, generator: torch.Generator | None) -> Tensor:
    starts = torch.randint(len(stream) - S + 1, (B, 1), generator=generator)
    return stream[starts + torch.arange(S)]


def sample_markov(B: int, S: int, generator: torch.Generator | None = None) -> Tensor:
    """B sequences of S tokens, (B, S), from places of the text that `generator` chooses."""
    return cut(markov_stream(1), B, S, generator)


@train_gpt.scenario
def train_and_probe(answer, steps):
    """What is true of every model that was trained right, whatever its size."""
    with torch.random.fork_rng(devices=[]):
        model = answer(sample_markov, steps)
    if not isinstance(model, nn.Module):
        return model
    fresh = cut(markov_stream(2), 256, 9, torch.Generator().manual_seed(0))
    model.eval()
    with torch.no_grad():
        logits = looked_at(lambda: logits_of(model, fresh[:, :-1]))
        if not isinstance(logits, Tensor) or logits.shape != (256, 8, 8):
            return logits if isinstance(logits, str) else "model(idx) gives no logits of shape (B, T, 8)"
        loss = F.cross_entropy(logits.flatten(0, 1), fresh[:, 1:].flatten()).item()
        moved = looked_at(lambda: future_moves_the_past(model, fresh[:, :-1]))
    return {"loss": judged_loss(loss, steps), "a later token moves earlier logits": moved}


def logits_of(model: nn.Module, idx: Tensor) -> Any:
    found = model(idx)
    return found[0] if isinstance(found, tuple) else found


def judged_loss(loss: float, steps: int) -> str:
    """The loss in words: between what and what it lies."""
    rate, single, chance = MarkovSource(8, seed=0).entropy_rate(), 1.45, math.log(8)
    if steps == 1:
        return "near ln 8" if loss <= 1.5 * chance else "far above ln 8"
    if loss < rate - 0.05:
        return "below the entropy rate: the model has seen the answer"
    bounds = {
        "at the entropy rate": rate + 0.15,
        "above the entropy rate, as if each token stood alone": single + 0.1,
        "near ln 8: nothing was learned": chance + 0.5,
    }
    return next((words for words, bound in bounds.items() if loss <= bound), "worse than knowing nothing")


def future_moves_the_past(model: nn.Module, idx: Tensor) -> bool:
    changed = idx.clone()
    changed[:, -1] = (changed[:, -1] + 3) % 8
    difference = (logits_of(model, idx) - logits_of(model, changed))[:, :-1]
    return bool(difference.abs().max() > 1e-4)


@train_gpt.cases
def _(rng):
    yield case("one update", steps=1)
    yield case("eighty updates", steps=80)


def small_gpt(model_class: type = MiniGPT) -> nn.Module:
    model = model_class(8, 32, 2, 1, 8)
    reference.init_weights(model)
    return model


def fit(model: nn.Module, batches: Callable[[], tuple[Tensor, Tensor]], steps: int, lr: float = 3e-3):
    """Train a model that returns logits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    for _ in range(steps):
        x, y = batches()
        loss = reference.next_token_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@train_gpt.alternative
def with_a_schedule_and_clipping(sample, steps):
    generator = torch.Generator().manual_seed(3)
    model = MiniGPT(vocab=8, dim=48, n_head=3, n_layer=1, max_len=16)
    reference.init_silent_blocks(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - step / (steps + 1), 0.1))
    for _ in range(steps):
        tokens = sample(24, 12, generator)
        loss = model(tokens[:, :-1], tokens[:, 1:])[1]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


class PlainTransformer(nn.Module):
    """A model of somebody else's making: layers of PyTorch, untied, with sequences in its own order."""

    def __init__(self, vocab: int, dim: int, max_len: int):
        super().__init__()
        self.table, self.places = nn.Embedding(vocab, dim), nn.Parameter(torch.zeros(max_len, dim))
        self.layer = nn.TransformerEncoderLayer(
            dim, 2, 2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx: Tensor) -> Tensor:
        T = idx.shape[1]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        return self.head(self.layer(self.table(idx) + self.places[:T], src_mask=hidden))


@train_gpt.alternative
def with_layers_of_pytorch(sample, steps):
    torch.manual_seed(0)
    model = PlainTransformer(8, 32, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        tokens = sample(32, 9, None)
        loss = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def next_tokens(sample: Callable) -> Callable[[], tuple[Tensor, Tensor]]:
    """Batches of inputs and of targets that are shifted by one."""
    generator = torch.Generator().manual_seed(0)

    def batch() -> tuple[Tensor, Tensor]:
        tokens = sample(32, 9, generator)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


class AttendsToAll(CausalSelfAttention):
    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.scaled_dot_product_attention(*heads_of(self, x)).transpose(1, 2).flatten(2))


class LeakyGPT(MiniGPT):
    def __init__(self, vocab: int, dim: int, n_head: int, n_layer: int, max_len: int):
        super().__init__(vocab, dim, n_head, n_layer, max_len)
        for layer in self.blocks:
            layer.attn = AttendsToAll(dim, n_head)


@train_gpt.misconception(
    "The loss is *below* the entropy rate, which no model of this source can reach: yours looks at the token that it "
    "is asked for. The causal mask is missing."
)
def no_causal_mask(sample, steps):
    torch.manual_seed(0)
    return fit(small_gpt(LeakyGPT), next_tokens(sample), steps, lr=4e-3)


@train_gpt.misconception(
    "The targets are the inputs. Your model has learned to repeat the token that it sees, and is worse than knowing "
    "nothing about the next one."
)
def targets_are_the_inputs(sample, steps):
    torch.manual_seed(0)
    batches = next_tokens(sample)

    def copies():
        x, _ = batches()
        return x, x

    return fit(small_gpt(), copies, steps)


@train_gpt.misconception(
    "The targets are random tokens that have nothing to do with the inputs. The loss falls towards ln 8 and stays "
    "there: there is nothing to learn."
)
def independent_targets(sample, steps):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    def noise():
        x = sample(32, 8, generator)
        return x, torch.randint(8, x.shape, generator=generator)

    return fit(small_gpt(), noise, steps)


@train_gpt.misconception(
    "The first loss is far above ln 8: the model starts with PyTorch's own weights, whose table of tokens is too "
    "large for a head. It recovers from that, so the last loss alone does not tell."
)
def default_first_weights(sample, steps):
    torch.manual_seed(0)
    return fit(MiniGPT(8, 32, 2, 1, 8), next_tokens(sample), steps, lr=2e-2)


class ForgetfulGPT(MiniGPT):
    """It knows at which position it is, and no token."""

    def forward(self, idx: Tensor) -> Tensor:
        x = self.pos.weight[: idx.shape[1]] + 0 * self.tok(idx)
        for layer in self.blocks:
            x = layer(x)
        return self.head(self.norm(x))


@train_gpt.misconception(
    "Your model knows how often each token occurs, and nothing of what came before: its loss is the entropy of single "
    "tokens. The tokens don't reach the logits, or the updates have not got further: a learning rate that is ten "
    "times too large stays here for a long time."
)
def single_tokens_alone(sample, steps):
    torch.manual_seed(0)
    return fit(small_gpt(ForgetfulGPT), next_tokens(sample), steps)


@train_gpt.misconception(
    "Nothing was learned: the optimizer holds the parameters of another model, or its step never comes. The loss is "
    "still where it was before the first update."
)
def no_update(sample, steps):
    torch.manual_seed(0)
    fit(small_gpt(), next_tokens(sample), min(steps, 1))
    return MiniGPT(8, 32, 2, 1, 8)


# ---- bits_per_character ------------------------------------------------------------------------------------

bits_per_character = Exercise(
    reference.bits_per_character,
    title="One number for a whole text",
    objective="gpt.evaluation",
    difficulty=2,
    minutes=15,
    observes=[observe.value(rtol=1e-4)],
    hints=(
        "N tokens hold N - 1 questions. What is the last window when S does not divide that, and how much does it "
        "count?",
        "`data[:-1].split(S)` and `data[1:].split(S)` are the windows and their targets. Add up the losses of all "
        "tokens and divide once, at the end. The mode of every submodule has to come back (notebook 05).",
        "`F.cross_entropy(logits, targets, reduction='sum')` adds. At the end divide by the number of predicted "
        "tokens, and by ln 2.",
    ),
    why="A mean of window means would let a short last window count as much as a full one. A number in bits per "
    "character can be compared with a compressor's (a text of 8 bits per character, packed to a quarter, has 2), "
    "and where the tokens are not characters, divide by the characters instead of the tokens.",
)


class ContextModel(nn.Module):
    """Logits that depend on all tokens so far; in train mode it is another model, as if it had dropout."""

    def __init__(self, vocab: int, max_len: int):
        super().__init__()
        generator = torch.Generator().manual_seed(vocab)
        self.table = nn.Parameter(torch.randn(vocab + 1, vocab, generator=generator))
        self.norm = nn.BatchNorm1d(vocab).eval()  # frozen: its mode is not that of the rest
        self.max_len, self.recorded = max_len, False

    def forward(self, idx: Tensor) -> Tensor:
        if idx.shape[1] > self.max_len:
            raise IndexError("index out of range in self")
        self.recorded |= torch.is_grad_enabled()
        so_far = idx.cumsum(dim=1) % len(self.table)  # one row more than there are tokens
        logits = self.table[idx] + 0.5 * self.table[so_far] + 0.1 * torch.arange(idx.shape[1])[:, None]
        return logits * 3 if self.training or self.norm.training is self.training is True else logits


@bits_per_character.scenario
def measure(answer, model, N, S):
    data = torch.randint(model.table.shape[1], (2 * N,), generator=torch.Generator().manual_seed(N))
    data = data[::2]  # every second token of a longer row
    before = data.clone()
    bits = answer(model, data, S)
    facts = {"bits": bits, "data as it was": torch.equal(data, before), "graph recorded": model.recorded}
    model.recorded = False
    return facts


@bits_per_character.cases
def _(rng):
    yield case("one question", ContextModel(3, 4), N=2, S=4)
    yield case("two full windows", ContextModel(4, 5), N=11, S=5)
    yield case("a last window of one token", ContextModel(5, 4), N=14, S=4)
    yield case("a model in eval mode", ContextModel(6, 7).eval(), N=40, S=7)
    yield case("windows of one token", ContextModel(4, 1), N=9, S=1)


def modes_of(model: nn.Module) -> dict[nn.Module, bool]:
    return {module: module.training for module in model.modules()}


def set_modes(modes: dict[nn.Module, bool]) -> None:
    for module, mode in modes.items():
        module.training = mode


@bits_per_character.alternative
def full_windows_at_once(model, data, S):
    modes = modes_of(model)
    model.eval()
    n_full = (len(data) - 1) // S * S
    losses = []
    with torch.inference_mode():
        if n_full:
            logits = model(data[:n_full].reshape(-1, S))
            losses.append(F.cross_entropy(logits.flatten(0, 1), data[1 : n_full + 1], reduction="none"))
        if n_full < len(data) - 1:
            logits = model(data[n_full:-1].unsqueeze(0))
            losses.append(F.cross_entropy(logits[0], data[n_full + 1 :], reduction="none"))
    set_modes(modes)
    return torch.cat(losses).mean().item() / math.log(2)


@bits_per_character.alternative
def with_logarithms_to_base_two(model, data, S):
    modes, total, n = modes_of(model), 0.0, len(data) - 1
    for module in modes:
        module.training = False
    for start in range(0, n, S):
        stop = min(start + S, n)
        with torch.no_grad():
            p = model(data[None, start:stop])[0].softmax(dim=-1)
        total -= p[torch.arange(stop - start), data[start + 1 : stop + 1]].log2().sum().item()
    set_modes(modes)
    return total / n


def mean_nats(model: nn.Module, x: Tensor, y: Tensor, reduction: str = "mean") -> float:
    with torch.no_grad():
        return F.cross_entropy(model(x[None])[0], y, reduction=reduction).item()


def nats_of_windows(model: nn.Module, data: Tensor, S: int) -> list[tuple[float, int]]:
    """The sum and the number of tokens of each window, with the modes restored."""
    modes = modes_of(model)
    model.eval()
    pairs = zip(data[:-1].split(S), data[1:].split(S), strict=True)
    found = [(mean_nats(model, x, y, "sum"), len(x)) for x, y in pairs]
    set_modes(modes)
    return found


@bits_per_character.misconception("This is the loss in nats. Divide by ln 2 = 0.693 to have bits.")
def nats(model, data, S):
    return sum(loss for loss, _ in nats_of_windows(model, data, S)) / (len(data) - 1)


@bits_per_character.misconception(
    "This is the perplexity, e to the loss. Bits are the logarithm to base 2 of it."
)
def perplexity(model, data, S):
    return math.exp(sum(loss for loss, _ in nats_of_windows(model, data, S)) / (len(data) - 1))


@bits_per_character.misconception(
    "You average the means of the windows. The last one is shorter, and its tokens count more than the others."
)
def mean_of_window_means(model, data, S):
    means = [loss / n for loss, n in nats_of_windows(model, data, S)]
    return sum(means) / len(means) / math.log(2)


@bits_per_character.misconception(
    "The end of the text is left out: the last window may be shorter, and it counts as well."
)
def drops_the_last_window(model, data, S):
    full = [(loss, n) for loss, n in nats_of_windows(model, data, S) if n == S]
    return sum(loss for loss, _ in full) / max(1, sum(n for _, n in full)) / math.log(2)


@bits_per_character.misconception(
    "You divide by N. The first token is not predicted by anything: there are N - 1 questions."
)
def counts_the_first_token(model, data, S):
    return sum(loss for loss, _ in nats_of_windows(model, data, S)) / len(data) / math.log(2)


@bits_per_character.misconception(
    "The model works in the mode in which it happens to be. In train mode dropout makes the number worse, and another "
    "one each time."
)
def in_train_mode(model, data, S):
    pairs = zip(data[:-1].split(S), data[1:].split(S), strict=True)
    return sum(mean_nats(model, x, y, "sum") for x, y in pairs) / (len(data) - 1) / math.log(2)


@bits_per_character.misconception(
    "The model is left in eval mode: whoever trains on after the evaluation trains without dropout."
)
def leaves_it_in_eval_mode(model, data, S):
    model.eval()
    pairs = zip(data[:-1].split(S), data[1:].split(S), strict=True)
    return sum(mean_nats(model, x, y, "sum") for x, y in pairs) / (len(data) - 1) / math.log(2)


@bits_per_character.misconception(
    "`model.train()` at the end switches on every submodule, also a frozen one that was in eval mode on purpose. "
    "Remember the mode of each."
)
def one_mode_for_all(model, data, S):
    was_training = model.training
    model.eval()
    pairs = zip(data[:-1].split(S), data[1:].split(S), strict=True)
    total = sum(mean_nats(model, x, y, "sum") for x, y in pairs)
    model.train(was_training)
    return total / (len(data) - 1) / math.log(2)


@bits_per_character.misconception(
    "A graph is recorded for every window, and nobody asks for it: work without one."
)
def records_a_graph(model, data, S):
    modes = modes_of(model)
    model.eval()
    pairs = zip(data[:-1].split(S), data[1:].split(S), strict=True)
    total = sum(F.cross_entropy(model(x[None])[0], y, reduction="sum").item() for x, y in pairs)
    set_modes(modes)
    return total / (len(data) - 1) / math.log(2)


@bits_per_character.misconception(
    "The whole text goes into the model at once. It has positions for S tokens, and no more."
)
def all_at_once(model, data, S):
    modes = modes_of(model)
    model.eval()
    bits = mean_nats(model, data[:-1], data[1:]) / math.log(2)
    set_modes(modes)
    return bits


@bits_per_character.misconception(
    "Your windows overlap: each token is predicted from the S tokens before it. That costs S times as much and gives "
    "another number; here the windows lie side by side."
)
def sliding_windows_of_context(model, data, S):
    modes = modes_of(model)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for i in range(1, len(data)):
            logits = model(data[None, max(0, i - S) : i])[0, -1]
            total -= logits.log_softmax(-1)[data[i]].item()
    set_modes(modes)
    return total / (len(data) - 1) / math.log(2)


# ---- filter_logits -----------------------------------------------------------------------------------------

top_filter = Exercise(
    reference.filter_logits,
    title="Which tokens may be drawn",
    objective="gpt.sampling",
    difficulty=3,
    minutes=20,
    points=2,
    observes=[observe.value()],
    hints=(
        "Each row has its own ranking and its own threshold. Whatever you sort, the result must be in the old order.",
        "`topk(k).values[:, -1:]` is the smallest logit that stays, one per row. For `top_p` sort, take the softmax, "
        "and add up: `cumsum` includes a token's own probability, and the rule asks for those before it.",
        "`cumsum - p >= top_p` marks, in sorted order, what is dropped. `order.argsort(-1)` says where each token "
        "stands in the sorted row: `gather` with it brings the marks home. `masked_fill` writes -inf.",
    ),
    why="Minus infinity is a weight of 0 after the softmax, and the rest is renormalized by itself. For `top_p` the "
    "token that crosses the line stays: otherwise a single very likely token would leave nothing. The inverse of a "
    "permutation is its `argsort`.",
)


@top_filter.cases
def _(rng):
    row = torch.tensor([[1.0, 3.0, -2.0, 0.5]])
    yield case("the two largest", row, top_k=2)
    yield case("the largest alone", row.clone(), top_k=1)
    yield case("more than half of the probability", row.clone(), top_p=0.6)
    yield case("nine tenths of it", row.clone(), top_p=0.9)
    yield case("nothing to filter", row.clone())
    yield case("a top_k larger than the vocabulary", row.clone(), top_k=9)
    rows = torch.tensor(
        [[0.1, 2.0, -3.0, 1.0, 0.4], [4.0, -1.0, 0.0, 3.0, 5.0], [-5.0, -4.0, -6.0, -1.0, -2.0]]
    )
    yield case("three rows, each with its own largest", rows, top_k=3)
    yield case("three rows, each with its own line", rows.clone(), top_p=0.8)
    yield case("both", rows.clone(), top_k=3, top_p=0.75)
    yield case("a top_p that one token has alone", rows.clone(), top_p=0.05)
    yield case("all of the probability", rows.clone(), top_p=1.0)
    wide = torch.randperm(40, generator=rng).reshape(4, 10) / 7.0 - 3
    yield case("logits that lie transposed in memory", wide.t(), top_k=2, top_p=0.7)
    yield case("float64", wide.double(), top_p=0.7)


@top_filter.alternative
def by_places(logits, top_k=None, top_p=None):
    result = torch.full_like(logits, -math.inf)
    for i, row in enumerate(logits):
        order = row.argsort(descending=True)
        if top_k is not None:
            order = order[:top_k]
        if top_p is not None:
            before = F.pad(row[order].softmax(0).cumsum(0), (1, -1))
            order = order[before < top_p]
        result[i, order] = row[order]
    return result


@top_filter.alternative
def by_scattering(logits, top_k=None, top_p=None):
    ranked, order = logits.sort(descending=True, dim=-1, stable=True)
    rank = torch.arange(logits.shape[-1]).expand_as(ranked)
    if top_k is not None:
        ranked = torch.where(rank < top_k, ranked, -math.inf)
    if top_p is not None:
        p = ranked.softmax(-1)
        before = torch.cat([torch.zeros_like(p[:, :1]), p.cumsum(-1)[:, :-1]], dim=-1)
        ranked = torch.where((before < top_p) | (rank == 0), ranked, -math.inf)
    return torch.empty_like(logits).scatter_(-1, order, ranked)


def only_top_k(logits: Tensor, top_k: int | None) -> Tensor:
    return reference.filter_logits(logits, top_k)


def only_top_p(logits: Tensor, top_p: float | None) -> Tensor:
    return reference.filter_logits(logits, None, top_p)


@top_filter.misconception(
    "`>` drops the k-th token itself: with `top_k=1` nothing is left. Its own value must pass: `>=` stays, `<` goes."
)
def larger_than_the_kth(logits, top_k=None, top_p=None):
    if top_k is not None:
        smallest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits <= smallest, -math.inf)
    return only_top_p(logits, top_p)


@top_filter.misconception(
    "A `top_k` larger than the vocabulary raises in `topk`. It means that nothing is filtered: take the smaller of "
    "the two."
)
def raises_for_a_large_k(logits, top_k=None, top_p=None):
    if top_k is not None:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -math.inf)
    return only_top_p(logits, top_p)


@top_filter.misconception(
    "One threshold serves all rows: you look for the k largest of the whole batch. Each row is a sequence of its own."
)
def one_threshold_for_all_rows(logits, top_k=None, top_p=None):
    if top_k is not None:
        smallest = logits.flatten().topk(min(top_k, logits.numel())).values[-1]
        logits = logits.masked_fill(logits < smallest, -math.inf)
    return only_top_p(logits, top_p)


@top_filter.misconception(
    "You drop the token that crosses the line. Where one token has more than `top_p` alone, nothing is left to draw. "
    "The rule asks for the probabilities *before* a token."
)
def drops_the_crossing_token(logits, top_k=None, top_p=None):
    logits = only_top_k(logits, top_k)
    if top_p is None:
        return logits
    ranked, order = logits.sort(dim=-1, descending=True)
    drop = ranked.softmax(-1).cumsum(-1) > top_p + 1e-6
    return logits.masked_fill(drop.gather(-1, order.argsort(-1)), -math.inf)


@top_filter.misconception(
    "The marks are in sorted order, and you apply them to logits in the old one. Bring them back with the inverse of "
    "the ranking."
)
def forgets_the_old_order(logits, top_k=None, top_p=None):
    logits = only_top_k(logits, top_k)
    if top_p is None:
        return logits
    p = logits.sort(dim=-1, descending=True).values.softmax(-1)
    return logits.masked_fill(p.cumsum(-1) - p >= top_p, -math.inf)


@top_filter.misconception(
    "You return the sorted logits: column 0 is the largest of each row, and no longer token 0."
)
def returns_them_sorted(logits, top_k=None, top_p=None):
    return reference.filter_logits(logits, top_k, top_p).sort(dim=-1, descending=True).values


@top_filter.misconception(
    "The order from `sort` says which token stands at a rank; to bring the marks back you need the rank at which a "
    "token stands. That is the inverse: `order.argsort(-1)`."
)
def gathers_with_the_order(logits, top_k=None, top_p=None):
    logits = only_top_k(logits, top_k)
    if top_p is None:
        return logits
    ranked, order = logits.sort(dim=-1, descending=True)
    p = ranked.softmax(-1)
    drop = p.cumsum(-1) - p >= top_p
    return logits.masked_fill(drop.gather(-1, order), -math.inf)


@top_filter.misconception(
    "You add up the probabilities in the order of the vocabulary. The ranking comes first: the largest before the "
    "others."
)
def adds_up_unsorted(logits, top_k=None, top_p=None):
    logits = only_top_k(logits, top_k)
    if top_p is None:
        return logits
    p = logits.softmax(-1)
    return logits.masked_fill(p.cumsum(-1) - p >= top_p, -math.inf)


@top_filter.misconception(
    "You keep what is itself at least as likely as `top_p`. `top_p` is about a sum: the smallest set of top tokens "
    "that holds that much together."
)
def compares_single_probabilities(logits, top_k=None, top_p=None):
    logits = only_top_k(logits, top_k)
    return logits if top_p is None else logits.masked_fill(logits.softmax(-1) < top_p, -math.inf)


@top_filter.misconception(
    "What is filtered out has a logit of 0. That is no probability of 0: exp(0) is 1. Use minus infinity."
)
def fills_logits_with_zero(logits, top_k=None, top_p=None):
    kept = reference.filter_logits(logits, top_k, top_p)
    return kept.masked_fill(kept.isinf(), 0.0)


@top_filter.misconception(
    "With both, the probabilities for `top_p` are those of the tokens that `top_k` has left: they add up to 1 again. "
    "Yours are of the whole vocabulary."
)
def both_on_the_whole_vocabulary(logits, top_k=None, top_p=None):
    kept = only_top_k(logits, top_k)
    return kept.masked_fill(only_top_p(logits, top_p).isinf(), -math.inf)


@top_filter.misconception("You return probabilities. Logits go in, and logits come out.")
def returns_probabilities(logits, top_k=None, top_p=None):
    return reference.filter_logits(logits, top_k, top_p).softmax(-1)


@top_filter.misconception(
    "You write into the logits that you are handed. Whoever calls you may need them as they were: `masked_fill` "
    "instead of `masked_fill_`."
)
def writes_in_place(logits, top_k=None, top_p=None):
    return logits.copy_(reference.filter_logits(logits, top_k, top_p))


# ---- generate ----------------------------------------------------------------------------------------------

generate = Exercise(
    reference.generate,
    title="Let it write",
    objective="gpt.sampling",
    difficulty=3,
    minutes=25,
    points=2,
    observes=[observe.value(atol=0.06)],
    hints=(
        "The model gives logits for every position. Which one do you need? And what does the model do with more "
        "tokens than it has positions for?",
        "A loop of n rounds: crop to the *last* positions, run the model, take the last logits, divide by the "
        "temperature, filter, draw, append. Before it eval mode, after it the mode that was. Dividing by a "
        "temperature of 0 is not the way to the largest logit.",
        "`torch.multinomial(probabilities, 1, generator=generator)` draws one token per row, as (B, 1), ready for "
        "`torch.cat([idx, token], dim=1)`. `argmax(-1, keepdim=True)` for a temperature of 0. A decorator: "
        "`@torch.no_grad()`.",
    ),
    why="Each round runs the model over the whole context and uses one row of logits: the rest was known before. That "
    "is the waste that a KV cache takes away. The temperature divides the *logits*: a factor on probabilities is lost "
    "as soon as they are normalized.",
)


class Puzzle(nn.Module):
    """A model whose next token follows from its whole context; in train mode it says something else.

    The logits of the right token lie far above the others. At other positions than the last another token is right.
    """

    def __init__(self, vocab: int, max_len: int):
        super().__init__()
        self.pos, self.vocab = nn.Embedding(max_len, 1), vocab
        self.inner = nn.Sequential(nn.Dropout(0.5))
        self.recorded = False

    def forward(self, idx: Tensor) -> Tensor:
        T = idx.shape[1]
        if self.pos.num_embeddings < T:
            raise IndexError("index out of range in self")
        self.recorded |= torch.is_grad_enabled()
        place = torch.arange(1, T + 1)
        following = (3 * idx + idx[:, :1] + place + self.inner.training) % self.vocab
        return 9.0 * F.one_hot(following, self.vocab) + torch.linspace(0, 1, self.vocab)


class Chances(nn.Module):
    """A model whose logits depend on the last token alone, with every token possible."""

    def __init__(self, max_len: int = 4):
        super().__init__()
        self.pos = nn.Embedding(max_len, 1)
        self.table = nn.Parameter(torch.tensor([[2.0, 1.0, 0.2, -1.0], [-1.0, 1.5, 0.0, 2.0]]).repeat(2, 1))

    def forward(self, idx: Tensor) -> Tensor:
        return self.table[idx]


@generate.scenario
def let_it_write(answer, model, B, T, n, temperature, top_k, seed):
    idx = (torch.arange(B * T) % 4).reshape(T, B).t()
    before, modes = idx.clone(), list(modes_of(model).values())
    options = {"temperature": temperature, "top_k": top_k}
    if isinstance(model, Chances):
        return chances_facts(answer, model, n, options, seed)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    found = answer(model, idx, n, **options, generator=generator)
    facts = {"tokens": found, "graph recorded": model.recorded}
    model.recorded = False
    facts["modes as before"] = list(modes_of(model).values()) == modes
    return facts | {"idx as it was": torch.equal(idx, before)}


N_DRAWN = 3000


def chances_facts(answer: Callable, model: nn.Module, n: int, options: dict, seed: int | None) -> Any:
    """How often which tokens are drawn after token 0, over many rows; and what the generator decides."""

    def draw(rows: int, number: int) -> Any:
        idx = torch.zeros(rows, 2, dtype=torch.int64)
        if seed is not None:
            return answer(model, idx, n, **options, generator=torch.Generator().manual_seed(number))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            return answer(model, idx, n, **options, generator=None)

    found = draw(N_DRAWN, 1)
    if not isinstance(found, Tensor) or found.dtype != torch.int64 or found.shape != (N_DRAWN, 2 + n):
        return found if isinstance(found, Tensor) else type(found).__name__
    counts = torch.stack([torch.bincount(column, minlength=4) for column in found[:, 2:].T]) / N_DRAWN
    followed = torch.bincount(4 * found[:, -2] + found[:, -1], minlength=16) / N_DRAWN
    return {
        "share of each token, by place": counts,
        "never drawn": (counts == 0).tolist(),
        "share of each pair at the end": followed,
        "the same for the same seed": torch.equal(draw(50, 7), draw(50, 7)),
        "others for another seed": not torch.equal(draw(50, 7), draw(50, 8)),
    }


@generate.cases
def _(rng):
    def puzzle(**options):
        return {"temperature": 0.0, "top_k": None, "seed": None} | options

    yield case("greedy, one token", Puzzle(5, 8), B=1, T=2, n=1, **puzzle())
    yield case("greedy, within the context", Puzzle(7, 8), B=2, T=3, n=4, **puzzle())
    yield case("greedy, longer than the context", Puzzle(7, 4), B=3, T=3, n=6, **puzzle(seed=3))
    yield case("a prompt longer than the context", Puzzle(5, 3), B=2, T=5, n=2, **puzzle())
    yield case("no token", Puzzle(5, 3), B=2, T=2, n=0, **puzzle())
    yield case("greedy, in eval mode", Puzzle(6, 5).eval(), B=2, T=2, n=2, **puzzle(top_k=2))

    def chances(**options):
        return {"B": N_DRAWN, "T": 2, "n": 2, "temperature": 1.0, "top_k": None, "seed": 1} | options

    yield case("drawn", Chances(), **chances())
    yield case("drawn, hot", Chances(), **chances(temperature=2.5))
    yield case("drawn, cold", Chances(), **chances(temperature=0.7))
    yield case("drawn, two candidates", Chances(), **chances(top_k=2))
    yield case("drawn, one candidate", Chances(), **chances(top_k=1, n=3))
    yield case("drawn, more candidates than tokens", Chances(), **chances(top_k=10))
    yield case("drawn from PyTorch's own generator", Chances(), **chances(seed=None, n=1))


@generate.alternative
def with_gumbel_noise(model, idx, n, temperature=1.0, top_k=None, generator=None):
    modes = modes_of(model)
    model.eval()
    tokens = [idx]
    with torch.inference_mode():
        for _ in range(n):
            context = torch.cat(tokens, dim=1)[:, -model.pos.num_embeddings :]
            logits = model(context)[:, -1, :]
            if top_k is not None and top_k < logits.shape[-1]:
                kept = logits.topk(top_k)
                logits = torch.full_like(logits, -math.inf).scatter(-1, kept.indices, kept.values)
            if temperature > 0:
                uniform = torch.rand(logits.shape, generator=generator).clamp_min(1e-9)
                logits = logits / temperature - torch.log(-torch.log(uniform))
            tokens.append(logits.max(dim=-1, keepdim=True).indices)
    set_modes(modes)
    return torch.cat(tokens, dim=1).clone()


@generate.alternative
@torch.no_grad()
def by_the_cumulated_chances(model, idx, n, temperature=1.0, top_k=None, generator=None):
    was_training, length = model.training, idx.shape[1]
    model.train(False)
    result = torch.cat([idx, idx.new_zeros(len(idx), n)], dim=1)
    for position in range(length, length + n):
        first = max(0, position - model.pos.num_embeddings)
        logits = model(result[:, first:position])[:, -1]
        if temperature == 0:
            result[:, position] = logits.argmax(-1)
            continue
        ranked, order = (logits / temperature).sort(-1, descending=True)
        ranked[:, top_k if top_k is not None else ranked.shape[-1] :] = -math.inf
        sums = ranked.softmax(-1).cumsum(-1)
        rank = (torch.rand(len(idx), 1, generator=generator) * sums[:, -1:] >= sums).sum(-1, keepdim=True)
        result[:, position] = order.gather(-1, rank.clamp(max=sums.shape[-1] - 1))[:, 0]
    model.train(was_training)
    return result


def drawn(logits: Tensor, temperature: float, top_k: int | None, generator: Any) -> Tensor:
    """One token per row, (B, 1)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    probabilities = reference.filter_logits(logits / temperature, top_k).softmax(dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)


def written(model, idx, n, choose: Callable[[Tensor], Tensor], crop: Callable[[Tensor], Tensor]) -> Tensor:
    """The loop of `generate` with another way to choose and to crop."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for _ in range(n):
            idx = torch.cat([idx, choose(model(crop(idx))[:, -1])], dim=1)
    model.train(was_training)
    return idx


def last_positions(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda idx: idx[:, -model.pos.num_embeddings :]


@generate.misconception(
    "The context is never cropped. As soon as there are more tokens than positions the model raises an IndexError."
)
def never_crops(model, idx, n, temperature=1.0, top_k=None, generator=None):
    return written(
        model, idx, n, lambda logits: drawn(logits, temperature, top_k, generator), lambda idx: idx
    )


@generate.misconception(
    "You keep the *first* tokens of a context that is too long, so the model never sees what it has written itself. "
    "Keep the last."
)
def keeps_the_first_tokens(model, idx, n, temperature=1.0, top_k=None, generator=None):
    return written(
        model,
        idx,
        n,
        lambda logits: drawn(logits, temperature, top_k, generator),
        lambda idx: idx[:, : model.pos.num_embeddings],
    )


@generate.misconception(
    "You read the logits of the first position. The next token of the sequence is what the *last* one predicts."
)
@torch.no_grad()
def reads_the_first_position(model, idx, n, temperature=1.0, top_k=None, generator=None):
    was_training = model.training
    model.eval()
    for _ in range(n):
        logits = model(idx[:, -model.pos.num_embeddings :])[:, 0]
        idx = torch.cat([idx, drawn(logits, temperature, top_k, generator)], dim=1)
    model.train(was_training)
    return idx


@generate.misconception("The model writes in train mode, with its dropout on. Switch to eval mode first.")
@torch.no_grad()
def writes_in_train_mode(model, idx, n, temperature=1.0, top_k=None, generator=None):
    for _ in range(n):
        logits = model(idx[:, -model.pos.num_embeddings :])[:, -1]
        idx = torch.cat([idx, drawn(logits, temperature, top_k, generator)], dim=1)
    return idx


@generate.misconception(
    "The model is left in eval mode. Whoever prints a sample in the middle of training goes on without dropout."
)
def stays_in_eval_mode(model, idx, n, temperature=1.0, top_k=None, generator=None):
    found = written(
        model, idx, n, lambda logits: drawn(logits, temperature, top_k, generator), last_positions(model)
    )
    model.eval()
    return found


@generate.misconception(
    "The model is in train mode afterwards, whatever it was before. Remember its mode and give it back."
)
def always_ends_in_train_mode(model, idx, n, temperature=1.0, top_k=None, generator=None):
    found = written(
        model, idx, n, lambda logits: drawn(logits, temperature, top_k, generator), last_positions(model)
    )
    model.train()
    return found


@generate.misconception("Every round records a graph, which nobody will use. Write under `torch.no_grad()`.")
def records_graphs(model, idx, n, temperature=1.0, top_k=None, generator=None):
    was_training = model.training
    model.eval()
    for _ in range(n):
        logits = model(idx[:, -model.pos.num_embeddings :])[:, -1]
        idx = torch.cat([idx, drawn(logits, temperature, top_k, generator)], dim=1)
    model.train(was_training)
    return idx


@generate.misconception("You multiply by the temperature. Hot is to mean more even: divide.")
def multiplies_by_the_temperature(model, idx, n, temperature=1.0, top_k=None, generator=None):
    def choose(logits):
        return drawn(logits * temperature, float(temperature > 0), top_k, generator)

    return written(model, idx, n, choose, last_positions(model))


@generate.misconception(
    "The temperature has no effect: you divide the probabilities by it, and the draw normalizes them again. It "
    "belongs to the logits."
)
def divides_the_probabilities(model, idx, n, temperature=1.0, top_k=None, generator=None):
    def choose(logits):
        return drawn(logits, float(temperature > 0), top_k, generator)

    return written(model, idx, n, choose, last_positions(model))


@generate.misconception("`top_k` has no effect: every token can be drawn.")
def ignores_top_k(model, idx, n, temperature=1.0, top_k=None, generator=None):
    return written(
        model, idx, n, lambda logits: drawn(logits, temperature, None, generator), last_positions(model)
    )


@generate.misconception(
    "One token too few passes your `top_k`: `>` drops the k-th itself, and with `top_k=1` no token is left."
)
def top_k_without_the_kth(model, idx, n, temperature=1.0, top_k=None, generator=None):
    def choose(logits):
        if top_k is not None and temperature:
            smallest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits <= smallest, -math.inf)
        return drawn(logits, temperature, None, generator)

    return written(model, idx, n, choose, last_positions(model))


@generate.misconception("You return the new tokens alone. The prompt belongs to the result: (B, T + n).")
def without_the_prompt(model, idx, n, temperature=1.0, top_k=None, generator=None):
    found = written(
        model, idx, n, lambda logits: drawn(logits, temperature, top_k, generator), last_positions(model)
    )
    return found[:, idx.shape[1] :]


@generate.misconception(
    "You always take the most likely token. That is right for a temperature of 0 alone; otherwise the token is drawn."
)
def always_greedy(model, idx, n, temperature=1.0, top_k=None, generator=None):
    return written(model, idx, n, lambda logits: drawn(logits, 0, top_k, generator), last_positions(model))


@generate.misconception(
    "Dividing by a temperature of 0 gives infinities and NaN, and the draw raises. Zero needs a branch of its own: "
    "the largest logit."
)
def divides_by_zero(model, idx, n, temperature=1.0, top_k=None, generator=None):
    def choose(logits):
        probabilities = reference.filter_logits(logits / temperature, top_k).softmax(dim=-1)
        return torch.multinomial(probabilities, 1, generator=generator)

    return written(model, idx, n, choose, last_positions(model))


@generate.misconception(
    "All rows get the token that is drawn for the first one. Each sequence draws for itself."
)
def one_draw_for_all_rows(model, idx, n, temperature=1.0, top_k=None, generator=None):
    def choose(logits):
        return drawn(logits[:1], temperature, top_k, generator).expand(len(logits), 1)

    return written(model, idx, n, choose, last_positions(model))


@generate.misconception("The generator that you are handed is not used: the sample can't be repeated.")
def draws_without_the_generator(model, idx, n, temperature=1.0, top_k=None, generator=None):
    return written(
        model, idx, n, lambda logits: drawn(logits, temperature, top_k, None), last_positions(model)
    )


@generate.misconception(
    "The model runs once, and all n tokens are drawn from the same logits. Each new token changes what comes next."
)
@torch.no_grad()
def runs_the_model_once(model, idx, n, temperature=1.0, top_k=None, generator=None):
    was_training = model.training
    model.eval()
    logits = model(idx[:, -model.pos.num_embeddings :])[:, -1]
    for _ in range(n):
        idx = torch.cat([idx, drawn(logits, temperature, top_k, generator)], dim=1)
    model.train(was_training)
    return idx


# ---- kv_step -----------------------------------------------------------------------------------------------

kv_step = Exercise(
    reference.kv_step,
    title="Remember keys and values",
    objective="gpt.cache",
    difficulty=3,
    minutes=20,
    stretch=True,
    points=2,
    observes=[observe.value(**CLOSE)],
    hints=(
        "What does a new token need of the old ones? Their keys and values, not their queries. And which mask does "
        "one query at the end need?",
        "With a cache: concatenate along the tokens, old before new. Then attend, with a mask that is right for many "
        "queries without a cache and for one query with it. Return the concatenated pair.",
        "`torch.cat([cache[0], k], dim=-2)`, and the same for the values. The attention of this notebook that is "
        "aligned to the lower right corner is right in both cases.",
    ),
    why="Keys and values of a token depend on what came before it alone, so they never change once they are computed. "
    "That makes the cache exact, not an approximation. Its price is memory: two tensors per layer, for every token.",
)


@kv_step.scenario
def step_by_step(answer, q, k, v, prompt):
    """The prompt first, and then one token at a time: outputs, the cache at the end, and whether inputs changed."""
    chunks = [slice(0, prompt), *(slice(t, t + 1) for t in range(prompt, q.shape[-2]))]
    cache, outputs, unchanged = None, [], True
    for chunk in chunks:
        new = [part[..., chunk, :].clone() for part in (q, k, v)]
        copies = [part.clone() for part in new]
        found = answer(*new, cache)
        if not is_pair(found) or not is_pair(found[1]):
            return found
        out, cache = found
        unchanged &= all(map(torch.equal, new, copies))
        outputs.append(out)
    joined = looked_at(lambda: torch.cat(outputs, -2))
    return {"outputs": joined, "K": cache[0], "V": cache[1], "inputs as they were": unchanged}


@kv_step.cases
def _(rng):
    def heads(*shape):
        return [torch.randn(shape, generator=rng) for _ in range(3)]

    yield case("a prompt of two tokens and one more", *heads(1, 1, 3, 2), prompt=2)
    yield case("a prompt of one token", *heads(2, 2, 4, 3), prompt=1)
    yield case("a prompt and nothing more", *heads(1, 3, 5, 4), prompt=5)
    yield case("heads that lie transposed in memory", *transposed_heads(rng, 2, 3, 6, 4), prompt=3)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_scores(q, k).masked_fill(~seen_by(q, k), -math.inf).softmax(-1) @ v


def extended(cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    if cache is None:
        return k, v
    return torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)


@kv_step.alternative
def by_hand_with_a_list(q, k, v, cache):
    memory = extended(cache, k, v)
    return attend(q, *memory), list(memory)


@kv_step.alternative
def causal_only_at_first(q, k, v, cache):
    if cache is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True), (k, v)
    K, V = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
    return F.scaled_dot_product_attention(q, K, V), (K, V)


@kv_step.misconception(
    "`is_causal=True` in every step: the single query of a decoding step is taken for the first position, and sees "
    "key 0 alone."
)
def causal_in_every_step(q, k, v, cache):
    memory = extended(cache, k, v)
    return F.scaled_dot_product_attention(q, *memory, is_causal=True), memory


@kv_step.misconception(
    "There is no mask at all. One new token may see everything; the tokens of a prompt must not see each other's "
    "future."
)
def causal_in_no_step(q, k, v, cache):
    memory = extended(cache, k, v)
    return F.scaled_dot_product_attention(q, *memory), memory


@kv_step.misconception(
    "The cache is overwritten with the new keys and values. It has to grow: all tokens so far."
)
def overwrites_the_cache(q, k, v, cache):
    return attend(q, *extended(cache, k, v)), (k, v)


@kv_step.misconception("The new token attends to itself alone: the cache grows, and nobody reads it.")
def does_not_read_the_cache(q, k, v, cache):
    return attend(q, k, v), extended(cache, k, v)


@kv_step.misconception(
    "The new keys stand in front of the old ones. The order of tokens is the order of time: old first."
)
def new_before_old(q, k, v, cache):
    memory = (k, v) if cache is None else (torch.cat([k, cache[0]], 2), torch.cat([v, cache[1]], 2))
    return F.scaled_dot_product_attention(q, *memory, is_causal=cache is None), memory


@kv_step.misconception(
    "Keys are remembered, values are not: the values in the cache are those of the prompt, and the weights of new "
    "tokens have nothing to weigh."
)
def forgets_new_values(q, k, v, cache):
    memory = extended(cache, k, v)
    if cache is not None:
        memory = memory[0], torch.cat([cache[1], torch.zeros_like(v)], dim=2)
    return attend(q, *memory), memory


@kv_step.misconception(
    "You remember queries in the place of keys. An old query has done its work; what new tokens ask for are the old "
    "keys."
)
def remembers_queries(q, k, v, cache):
    memory = extended(cache, q, v)
    return attend(q, *extended(cache, k, v)), memory


# ---- predictions -------------------------------------------------------------------------------------------

# ---- predictions -------------------------------------------------------------------------------------------

late_mask = Question(
    "late_mask",
    objective="gpt.attention",
    text="Somebody hides the future *after* the softmax: the weights are computed from all scores, and those of "
    "later tokens are then multiplied by 0. The matrix of weights is lower triangular.\n\n"
    "You change the last token. What happens to the outputs of the tokens before it?",
    choices={
        "a": "nothing: their weights on the last token are 0",
        "b": "they change",
        "c": "they become NaN, as rows no longer add up to 1",
    },
    answer="b",
    replies={
        "a": "The weights on the last token are 0, but the other weights are not what they were. What did the softmax "
        "divide by?",
        "b": "Right: the score of the last token is in the denominator of every row, so all weights of the row depend "
        "on it. The picture looks causal, and the numbers are not.",
        "c": "Rows that add up to less than 1 give smaller outputs, and nothing worse. What is it that leaks?",
    },
)

cached_query = Question(
    "cached_query",
    objective="gpt.fused",
    text="`q`, `k` and `v` are (1, 1, 6, 4). What is this?\n\n```python\n"
    "F.scaled_dot_product_attention(q[..., -1:, :], k, v, is_causal=True)\n```",
    choices={
        "a": "the last row of the full causal attention",
        "b": "`v[..., :1, :]`, the first value",
        "c": "an error, as the sizes of `q` and `k` differ",
    },
    answer="b",
    replies={
        "a": "It would be, if the triangle were drawn from the lower right corner. Which keys does the first row of a "
        "triangle from the upper left corner hold?",
        "b": "Right. The one query is taken for position 0, which sees key 0 alone. No error and no warning: the model "
        "repeats itself, and you look for the bug in the sampling.",
        "c": "Different numbers of queries and keys are allowed, and nothing is said.",
    },
)

mixed_layout = Question(
    "mixed_layout",
    objective="gpt.attention",
    text="Two people write `CausalSelfAttention`. One cuts the output of `qkv` as (3, heads, numbers), the other as "
    "(heads, 3, numbers). Everything else is the same. How do the two models compare?",
    choices={
        "a": "the second raises an error in `view`",
        "b": "the second is not causal",
        "c": "both train equally well, but weights of one are garbage in the other",
    },
    answer="c",
    replies={
        "a": "3 * heads * numbers is the same product in any order: the view fits.",
        "b": "Tokens are not mixed: only the numbers of one token are dealt out in another way. So the mask still does "
        "its work.",
        "c": "Right: the rows of the weight matrix are used in another order. From a random start that makes no "
        "difference, and with a checkpoint it makes all of it. Only given weights tell the two apart.",
    },
)

tied_count = Question(
    "tied_count",
    objective="gpt.model",
    text="A GPT with V = 50257, D = 384 and six blocks ties its head to its table of tokens. You count its numbers in "
    "two ways: over `model.parameters()`, and over `model.state_dict().values()`.",
    choices={
        "a": "30.3 million and 30.3 million",
        "b": "30.3 million and 49.6 million",
        "c": "49.6 million and 49.6 million",
    },
    answer="b",
    replies={
        "a": "`parameters()` gives a tied Parameter once. A state dict has a key for each name, and the weight has two "
        "names.",
        "b": "Right: the state dict has both names, so the table of 19.3 million is counted twice. "
        "(On disk it is once: `torch.save` sees that the storage is shared.)",
        "c": "`parameters()` gives a tied Parameter once, or the optimizer would update it twice.",
    },
)

first_loss_of_a_gpt = Question(
    "first_loss_of_a_gpt",
    objective="gpt.initialization",
    text="A mini GPT with V = 65 and D = 128, tied, with PyTorch's own initial weights. It knows nothing, and "
    "ln 65 is 4.17. What is its first loss on random tokens, about?",
    choices={"a": "0.02", "b": "4.2", "c": "83"},
    answer="c",
    replies={
        "a": "That would be a model that knows the answers.",
        "b": "That is what a model without an opinion has. Is this one without an opinion? The table of an "
        "`nn.Embedding` is drawn with a standard deviation of 1, and here it is the head as well.",
        "c": "Right, twenty times too much. The model is certain, and wrong: each token, it says, repeats itself.",
    },
)

noise_floor = Question(
    "noise_floor",
    objective="gpt.floor",
    text="A training script that you find draws inputs *and* targets at random in every step, independently of each "
    "other, from 16 tokens. Its loss has fallen from 15 to 2.9. How low can it get? (ln 16 is 2.77.)",
    choices={"a": "0", "b": "2.77", "c": "it depends on the size of the model"},
    answer="b",
    replies={
        "a": "A large model can learn a *fixed* batch by heart. These targets are new in every step.",
        "b": "Right. Nothing in the input says anything about the target, so the best is to find all tokens equally "
        "likely. What falls from 15 to 2.9 is the mistake in the first weights, and nothing is learned at all.",
        "c": "The best prediction of a fair die is the same for a model of any size.",
    },
)

no_mask_loss = Question(
    "no_mask_loss",
    objective="gpt.training",
    text="Two models are trained on a source with an entropy rate of 0.81 nats. They are the same, but "
    "one has no causal mask. What is the loss of the one without a mask, compared with the right one?",
    choices={
        "a": "higher: it is distracted by tokens that it should not see",
        "b": "the same: what comes later does not help",
        "c": "lower, and even below 0.81",
    },
    answer="c",
    replies={
        "a": "What it should not see is, one place to the right, the very answer.",
        "b": "The input at the next position *is* the target of this one.",
        "c": "Right. It copies the answer from its input, and the better loss is the proof that something is wrong: "
        "nobody can predict a source better than its entropy rate.",
    },
)

cold_sampling = Question(
    "cold_sampling",
    objective="gpt.sampling",
    text="Two tokens have probabilities 0.8 and 0.2. The logits are divided by a temperature of 0.5. What are the "
    "probabilities now?",
    choices={"a": "0.8 and 0.2", "b": "0.94 and 0.06", "c": "0.67 and 0.33"},
    answer="b",
    replies={
        "a": "Dividing by 0.5 doubles the distance of the two logits, and the softmax lives on distances.",
        "b": "Right: doubling the logits squares the probabilities, 0.64 to 0.04, and they are normalized again. Cold "
        "sampling likes what is likely already.",
        "c": "That is a temperature of 2: the square roots, normalized. Cold makes the likely more likely.",
    },
)

cache_bytes = Question(
    "cache_bytes",
    objective="gpt.cache",
    text="A model with 32 blocks and a width of 4096 keeps keys and values in 16 bits. How much memory does "
    "the cache of *one* sequence of 4096 tokens take?",
    choices={"a": "32 MiB", "b": "2 GiB", "c": "14 GiB, as much as the weights"},
    answer="b",
    replies={
        "a": "That is the cache of a single block, and of the keys alone.",
        "b": "Right: 2 tensors, 32 blocks, 4096 tokens, 4096 numbers, 2 bytes. A batch of eight takes more than the "
        "weights of such a model (about 13 GiB).",
        "c": "The weights do not enter: 2 tensors for each block, for each token a row of the width.",
    },
)

one_more_token = Question(
    "one_more_token",
    objective="gpt.tools",
    text="The mini GPT has positions for 64 tokens. It is exported with a dynamic length of at most 64. Somebody "
    "calls the exported program with 65 tokens. What happens?",
    choices={
        "a": "it computes, and the last token gets no position",
        "b": "it refuses: the range of the length is part of the program",
        "c": "it is exported again for the new length",
    },
    answer="b",
    replies={
        "a": "The program has a contract about the shapes of its inputs. Is 65 within it?",
        "b": "Right: the range that you declared is checked at every call, and the message says which input is out of "
        "range.",
        "c": "`torch.compile` would do that. An exported program stands alone: the Python code is no longer there.",
    },
)


# ---- the race ----------------------------------------------------------------------------------------------

from course_lib.exercises.race import orthogonalize, race_ablation  # noqa: E402, F401 - asked last
