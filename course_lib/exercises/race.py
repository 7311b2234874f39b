"""The exercise and the question of the sixty-second race, the last section of notebook 10."""

from __future__ import annotations

import torch

from course_lib.checking import Exercise, Question, case, observe
from course_lib.reference import race as reference

# ---- orthogonalize -----------------------------------------------------------------------------------------

orthogonalize = Exercise(
    reference.orthogonalize,
    title="An update with all singular values near 1",
    objective="gpt.race",
    difficulty=3,
    minutes=20,
    points=3,
    stretch=True,
    observes=[observe.value(rtol=1e-3, atol=1e-4)],  # float32, five times a polynomial of degree five
    hints=(
        "No decomposition is needed: an odd polynomial of a matrix acts on its singular values alone. What has to be "
        "true of them before the first round, and what must work for a stack of matrices?",
        "Divide each matrix by the root of the sum of its squares (not by 0). Then, `steps` times: the small square "
        "matrix `g`, its square, and the three terms of the polynomial.",
        "`x.norm(dim=(-2, -1), keepdim=True)` has one norm per matrix, and `clamp_min` keeps it off 0. `g` belongs to "
        "the current `x`, so it is made anew in each round. `@` multiplies matrices, `*` does not.",
    ),
    why="With x = U S Vᵀ, g is U S² Uᵀ, and (b g + c g²) x is U (b S³ + c S⁵) Vᵀ: the singular vectors stay, and each "
    "singular value s becomes a s + b s³ + c s⁵. At small s the factor is a, more than 3, so five rounds lift what is "
    "not tiny into the band around 1. They do not converge there: c is chosen for speed. The course's answer turns a "
    "tall matrix over first, because x xᵀ of its short side is smaller; the result is the same.",
)


@orthogonalize.cases
def _(rng):
    def randn(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=rng, dtype=dtype)

    yield case("singular values 4 and 3", torch.tensor([[0.0, -4.0], [3.0, 0.0]]), 1)
    yield case("one row", torch.tensor([[3.0, -4.0]]), 2)
    yield case("one column", torch.tensor([[3.0], [-4.0]]), 2)
    yield case("a square", randn(4, 4))
    yield case("more columns than rows", 5 * randn(2, 6))
    yield case("more rows than columns", 0.1 * randn(6, 3), 4)
    yield case("a transposed matrix", randn(5, 3).t(), 3)
    yield case("no rounds", randn(2, 3), 0)
    yield case("zeros", torch.zeros(2, 3))
    yield case("a stack of a large and a small one", randn(2, 3, 4) * torch.tensor([10.0, 0.5]).view(2, 1, 1))
    yield case("in float64", randn(3, 4, dtype=torch.float64))


@orthogonalize.alternative
def always_from_the_left(update, steps=5):
    x = update / (update.norm(dim=(-2, -1), keepdim=True) + 1e-12)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x - 4.7750 * g @ x + 2.0315 * g @ g @ x
    return x


@orthogonalize.alternative
def always_from_the_right(update, steps=5):
    x = update / update.square().sum(dim=(-2, -1), keepdim=True).sqrt().clamp(min=1e-12)
    for _ in range(steps):
        g = x.mT @ x
        x = x @ (3.4445 * torch.eye(g.shape[-1], dtype=g.dtype) - 4.7750 * g + 2.0315 * g @ g)
    return x


@orthogonalize.alternative
def polynomial_of_the_singular_values(update, steps=5):
    u, s, vh = torch.linalg.svd(update, full_matrices=False)
    s = s / torch.linalg.vector_norm(s, dim=-1, keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ torch.diag_embed(s) @ vh


@orthogonalize.misconception(
    "You start from the update as it is. The polynomial lifts values below 1 and blows up those above: divide by the "
    "norm of the matrix first."
)
def does_not_normalize(update, steps=5):
    x = update
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x + 0.0


@orthogonalize.misconception(
    "A stack has one norm in your answer, so a large matrix makes the small ones beside it smaller still. Each matrix "
    "has its own: `dim=(-2, -1), keepdim=True`."
)
def one_norm_for_the_stack(update, steps=5):
    x = update / update.norm().clamp_min(1e-12)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "You divide each row by its own norm. That turns the singular vectors, which are to stay: one number per matrix."
)
def normalizes_rows(update, steps=5):
    x = update / update.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "You divide by the largest singular value. That is a tighter start, but it needs the decomposition that the "
    "iteration avoids. The statement asks for the Frobenius norm."
)
def divides_by_the_largest_singular_value(update, steps=5):
    x = update / torch.linalg.matrix_norm(update, 2, keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "You divide by the largest entry. The singular values can still be larger than 1, and then they grow."
)
def divides_by_the_largest_entry(update, steps=5):
    x = update / update.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "You normalize again in every round, so the singular values are kept small: their squares add up to 1."
)
def normalizes_in_every_round(update, steps=5):
    x = update / update.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "A matrix of zeros becomes NaN: you divide by its norm, which is 0. Keep it off 0."
)
def divides_zero_by_zero(update, steps=5):
    x = update / update.norm(dim=(-2, -1), keepdim=True)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "You turn a tall matrix over to save work, and do not turn it back: the shape is that of the transpose."
)
def does_not_turn_back(update, steps=5):
    x = update.mT if update.shape[-2] > update.shape[-1] else update
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "You make `g` once, before the rounds. It belongs to the `x` of its round: from the second on yours is an old one."
)
def keeps_the_first_g(update, steps=5):
    x = update / update.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    g = x @ x.mT
    for _ in range(steps):
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "`g * g` squares each entry. The square of the matrix is `g @ g`; it has the fourth powers of the singular values."
)
def squares_the_entries(update, steps=5):
    x = update / update.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g * g) @ x
    return x


@orthogonalize.misconception("You always make five rounds. Their number is an argument: `steps`.")
def always_five_rounds(update, steps=5):
    x = update / update.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    for _ in range(5):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "You computed the limit itself, with all singular values exactly 1. It is what the idea aims at, but a "
    "decomposition in every step costs far more than five rounds, and the statement asks for these rounds."
)
def takes_the_decomposition(update, steps=5):
    u, _, vh = torch.linalg.svd(update, full_matrices=False)
    return u @ vh


@orthogonalize.misconception(
    "You take the sign of each entry. That equalizes entries; the directions of a matrix are its singular vectors."
)
def takes_the_sign(update, steps=5):
    return update.sign()


@orthogonalize.misconception(
    "You divide the update in place. It is the momentum of the optimizer, which needs it in the next step."
)
def divides_in_place(update, steps=5):
    x = update.div_(update.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12))
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


@orthogonalize.misconception(
    "The coefficients b and c have changed places. b, the negative one, stands with `g`, and c with its square."
)
def swaps_the_coefficients(update, steps=5):
    x = update / update.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        g = x @ x.mT
        x = 3.4445 * x + (2.0315 * g - 4.7750 * g @ g) @ x
    return x


# ---- questions ---------------------------------------------------------------------------------------------

race_ablation = Question(
    "race_ablation",
    objective="gpt.race",
    text="The best entry uses Muon for the matrices, learning rates that go down to zero, and a head of its own. "
    "One of the three is taken away, at full length. Which loss costs most?",
    choices={
        "a": "the decay: the rates stay what they are at the start",
        "b": "Muon: AdamW trains the matrices too, at its own rate",
        "c": "the head: it shares its weights with the embedding",
    },
    answer="a",
    replies={
        "a": "Yes, by far: about 0.2 of the loss, twice as much as the optimizer. A large rate covers ground quickly, "
        "but the weights then rattle around a low place without getting into it. The decay lets them settle.",
        "b": "It costs, about 0.1, but not most. The optimizer gets the attention, and the schedule gets more of the "
        "loss: what a large rate won is only collected when it goes down.",
        "c": "It costs least, some hundredths. A tied head has one matrix do two jobs, and saves parameters.",
    },
)
