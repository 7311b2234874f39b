"""The answers of notebook 02 against PyTorch: the engine on random graphs, the Functions against gradcheck."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from course_lib.reference import autograd as reference
from course_lib.reference.autograd import MyReLU, ScaledExp, ScaleFeatures, Value

SHAPES = [(3, 3), (3, 3), (3,), (3, 1), (1, 3), ()]


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def random_program(rng: random.Random, leaves: list) -> Any:
    """Ten operations on two matrices and smaller leaves, the same for values and for tensors."""
    matrices = leaves[:2]
    for _ in range(10):
        a, b, small = rng.choice(matrices), rng.choice(matrices), rng.choice(leaves[2:])
        operation = rng.choice(["add", "mul", "matmul", "exp"])
        if operation == "exp":
            matrices.append((a * leaves[-1]).exp() + small)
        else:
            matrices.append({"add": a + b, "mul": small * a, "matmul": a @ b}[operation])
    return (matrices[-1] * matrices[-2] + matrices[-3]).sum()


@pytest.mark.parametrize("seed", range(50))
def test_the_engine_agrees_with_torch_on_random_graphs(seed):
    data = [0.3 * leaf(*shape, seed=100 * seed + i).detach() for i, shape in enumerate(SHAPES)]
    values, tensors = [Value(d) for d in data], [d.clone().requires_grad_() for d in data]
    for leaves in (values, tensors):
        out = random_program(random.Random(seed), leaves)
        out.backward(**({"retain_graph": True} if leaves is tensors else {}))
        out.backward()
    used = [(ours, theirs) for ours, theirs in zip(values, tensors) if theirs.grad is not None]
    assert used and all((a.grad is None) == (b.grad is None) for a, b in zip(values, tensors))
    for ours, theirs in used:
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_engine_has_less_than_80_lines():
    pieces = (Value, reference.topological_order, reference.unbroadcast)
    lines = [line for piece in pieces for line in inspect.getsource(piece).splitlines()]
    documented = [line for piece in pieces for line in piece.__doc__.splitlines()]
    assert len(lines) - len(documented) < 80


def test_my_relu_has_the_slopes_of_relu():
    x = torch.tensor([-2.0, -0.0, 0.0, 1e-30, 3.0])
    slopes = []
    for f in (MyReLU.apply, torch.relu):
        copy = x.clone().requires_grad_()
        slopes.append(torch.autograd.grad(f(copy).sum(), copy)[0])
    assert torch.equal(*slopes)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (ScaleFeatures, (leaf(4, 3), leaf(3, seed=1))),
        (ScaledExp, (leaf(2, 3), -1.5)),
        (ScaledExp, (leaf(2), 2)),
    ],
    ids=["ScaleFeatures", "ScaledExp, a float", "ScaledExp, an int"],
)
def test_first_and_second_derivatives(function, inputs):
    assert gradcheck(function.apply, inputs) and gradgradcheck(function.apply, inputs)


@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 3), (1, 1), (), (2, 3)])
def test_unbroadcast_is_what_autograd_does(shape):
    small, large = leaf(*shape), leaf(2, 3, seed=1)
    cotangent = leaf(2, 3, seed=2).detach()
    (expected,) = torch.autograd.grad(small + large, small, cotangent)
    torch.testing.assert_close(reference.unbroadcast(cotangent, shape), expected)


def test_numerical_gradient_is_the_gradient():
    x = leaf(2, 3)
    (expected,) = torch.autograd.grad(x.exp().prod(), x)
    measured = reference.numerical_gradient(lambda x: x.exp().prod(), x)
    torch.testing.assert_close(measured, expected, rtol=1e-5, atol=1e-8)
