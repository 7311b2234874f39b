"""The answers of notebook 02: autograd.

Words: a leaf is a tensor that no recorded operation made; a cotangent is the gradient of the loss with respect to
a node's output, which backward hands from node to node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def graph_nodes(out: Tensor) -> list[str]:
    """Return the names of all nodes in the autograd graph behind `out`: each node once, in any order.

    `out.grad_fn` is the first node. `node.next_functions` holds pairs `(node, index)`, and its nodes may be None.
    The graph is a DAG: a node that is reached along several ways counts once, and two nodes may have one name.
    The `AccumulateGrad` nodes, in which the graph ends at its leaves, count as well.
    A tensor without a graph gives `[]`. `out` is not itself a leaf that requires grad.
    A name is `node.name()` or `type(node).__name__`, whichever you like.
    """
    names, seen, waiting = [], set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names.append(node.name())
        waiting += [parent for parent, _ in node.next_functions]
    return names


def sqrt_or_zero(x: Tensor) -> Tensor:
    """Return the square root of `x` where `x > 0`, and 0 elsewhere, with gradients that are finite everywhere.

    Where `x > 0` the gradient is that of the square root; elsewhere, at 0 as well, it is 0.
    `x` is a floating tensor of any shape and strides, without NaN, and is not changed.
    """
    positive = x > 0
    safe = torch.where(positive, x, 1.0)
    return torch.where(positive, safe.sqrt(), 0.0)


def accumulate_step(model: nn.Module, opt: torch.optim.Optimizer, microbatches: list) -> None:
    """Make the optimizer step of one large batch, with the memory of one micro-batch.

    `microbatches` is a list of pairs `(x, y)` of shapes (n, features) and (n, 1). `n` may differ from pair to pair.
    The loss is the mean squared error over all samples of all micro-batches together.
    Run the model on one micro-batch at a time, and its backward before the next one, so that there is never
    more than one graph in memory.
    Gradients that are there already, from some earlier batch, do not count. `opt.step()` runs once, at the end.
    What is in `.grad` afterwards is up to you. The model stays in train mode, and no hooks stay on it.
    """
    n_samples = sum(len(x) for x, _ in microbatches)
    opt.zero_grad()
    for x, y in microbatches:
        loss = F.mse_loss(model(x), y, reduction="sum") / n_samples
        loss.backward()
    opt.step()


def distill_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference, with gradients to `student` only.

    Both have the same shape and dtype, any strides, and both may require grad.
    No gradient reaches `teacher`, which is not changed: if it required grad before, it still does.
    The result is a tensor without dimensions.
    """
    return (student - teacher.detach()).square().mean()


def train_in_chunks(cell: nn.Module, chunks: list[Tensor], h: Tensor, opt: torch.optim.Optimizer) -> Tensor:
    """Train a recurrent cell on a long sequence, one optimizer step per chunk, and return the last state.

    `cell(x, h)` gives the next state: (batch, features), (batch, hidden) -> (batch, hidden).
    `chunks` is a list of tensors (seq, batch, features): the sequence, cut into pieces. `h` is the first state.
    The state goes on from chunk to chunk; gradients flow through all steps of a chunk, and not into an earlier one.
    The loss of a chunk is `h.square().mean()` after its last step.
    For each chunk: clear the gradients, run backward, make one step of `opt`. The cell stays in train mode.
    The state that is returned is the one after the last chunk, and does not require grad.
    """
    for chunk in chunks:
        h = h.detach()
        for x in chunk:
            h = cell(x, h)
        opt.zero_grad()
        h.square().mean().backward()
        opt.step()
    return h.detach()


def sgd_step_(params: list[Tensor], lr: float) -> None:
    """Update every parameter in place, `p - lr * p.grad`, and clear its gradient.

    `params` is a list of leaf tensors that require grad. One whose `.grad` is None is left as it is.
    The caller's tensors themselves change: they stay leaves, and still require grad.
    Afterwards each `.grad` is None or zero, whichever you like.
    """
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p -= lr * p.grad
                p.grad = None


class MyReLU(torch.autograd.Function):
    """`MyReLU.apply(x)`: `x` where it is positive, 0 elsewhere, as `torch.relu`.

    The gradient is the cotangent where `x > 0`, and 0 elsewhere, at `x == 0` as well. `x` is never NaN.
    `backward` leaves its cotangent as it was: autograd may have given the same tensor to others.
    If `x` or the output is changed in place between forward and backward, backward refuses or stays right:
    it never gives a wrong gradient without a word.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_out * (x > 0)


class ScaleFeatures(torch.autograd.Function):
    """`ScaleFeatures.apply(x, weight)`: `x * weight`, of shapes (batch, dim) and (dim,) -> (batch, dim).

    `backward` returns a pair: the gradient of `x` and the gradient of `weight`, each with the shape of its input,
    also when it is called directly. It returns None for an input that does not need a gradient.
    It leaves its cotangent as it was. Second derivatives are right as well.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad_x = grad_out * weight if needs_x else None
        grad_weight = (grad_out * x).sum(dim=0) if needs_weight else None
        return grad_x, grad_weight


class ScaledExp(torch.autograd.Function):
    """`ScaledExp.apply(x, k)`: `exp(k * x)`, where `k` is a Python number and has no gradient.

    `x` has any shape and strides; `k` may be an int or a float, and may be negative.
    First and second derivatives with respect to `x` are right. `backward` leaves its cotangent as it was.
    If `x` or the output is changed in place between forward and backward, backward refuses or stays right.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        y = torch.exp(k * x)
        ctx.save_for_backward(y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return grad_out * ctx.k * y, None


def numerical_gradient(f: Callable[[Tensor], Tensor], x: Tensor, eps: float = 1e-3) -> Tensor:
    """Estimate the gradient of `f` at `x` by central differences, one element of `x` at a time.

    `f` takes a tensor of the shape of `x` and returns a tensor without dimensions.
    Element `i` of the result is `(f(x + eps * e_i) - f(x - eps * e_i)) / (2 * eps)`, where `e_i` is 1 in place `i`
    and 0 elsewhere. The result has the shape and dtype of `x` and does not require grad.
    `x` is a float64 tensor of any shape and strides, and holds its old values afterwards.
    """
    gradient = torch.zeros_like(x, memory_format=torch.contiguous_format)
    with torch.no_grad():
        for index in range(x.numel()):
            step = torch.zeros(x.numel(), dtype=x.dtype)
            step[index] = eps
            step = step.view(x.shape)
            gradient.view(-1)[index] = (f(x + step) - f(x - step)) / (2 * eps)
    return gradient


def unbroadcast(grad: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo broadcasting: sum `grad` down to `shape`.

    `shape` is the shape that an input had, and `grad.shape` is one to which it was broadcast.
    An element that was repeated gets the sum of the gradients of its copies.
    Dimensions that were added in front vanish; a dimension that was stretched from 1 has size 1 again.
    `grad` has any strides and is not changed. Where nothing was broadcast, the result may be `grad` itself.
    """
    while grad.dim() > len(shape):
        grad = grad.sum(dim=0)
    for dim, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(dim=dim, keepdim=True)
    return grad


def topological_order(root: Any) -> list:
    """Return `root` and everything it was made from as a list in which every node stands after its parents.

    `node.parents` is a tuple of the nodes that a node was made from; leaves have an empty one.
    A node may be a parent of several others, or twice of the same one. It stands in the list once.
    So leaves come early and `root` is last. Which of the possible orders you return is up to you.
    The nodes are left as they were, so that a second call gives the same.
    """
    order, seen = [], set()

    def visit(node: Any) -> None:
        if node in seen:
            return
        seen.add(node)
        for parent in node.parents:
            visit(parent)
        order.append(node)

    visit(root)
    return order


class Value:
    """A tensor that remembers how it was made: a reverse-mode engine.

    `Value(data)` is a leaf. `data` is a tensor that does not require grad; nothing here uses torch's own autograd.
    `a + b` and `a * b` broadcast as tensors do; `a @ b` multiplies (n, k) by (k, m).
    `a.exp()` works element by element; `a.sum()` adds up all elements, to a value without dimensions.
    Each of them returns a new Value. `parents` holds the values that it was made from.
    `out.backward()`, for an `out` without dimensions, adds the gradient of `out` to the `grad` of every leaf behind it,
    in the shape of the leaf's `data`. Before that `grad` is None. A second call adds the same once more.
    Each node is visited once: the work grows with the number of nodes, not with the number of paths.
    What values other than leaves keep in `grad` is up to you. No `data` is changed.
    """

    def __init__(self, data, parents=(), pull=None):
        self.data, self.parents, self.pull = data, parents, pull  # pull: cotangent -> one for each parent
        self.grad = None

    def __add__(self, other):
        def pull(g):
            return unbroadcast(g, self.data.shape), unbroadcast(g, other.data.shape)

        return Value(self.data + other.data, (self, other), pull)

    def __mul__(self, other):
        def pull(g):
            return unbroadcast(g * other.data, self.data.shape), unbroadcast(g * self.data, other.data.shape)

        return Value(self.data * other.data, (self, other), pull)

    def __matmul__(self, other):
        return Value(self.data @ other.data, (self, other), lambda g: (g @ other.data.mT, self.data.mT @ g))

    def exp(self):
        result = self.data.exp()
        return Value(result, (self,), lambda g: (g * result,))

    def sum(self):
        return Value(self.data.sum(), (self,), lambda g: (g.expand(self.data.shape),))

    def backward(self):
        cotangents = {self: torch.ones_like(self.data)}
        for node in reversed(topological_order(self)):
            g = cotangents.pop(node)
            if not node.parents:
                node.grad = g if node.grad is None else node.grad + g
                continue
            for parent, part in zip(node.parents, node.pull(g)):
                cotangents[parent] = cotangents[parent] + part if parent in cotangents else part
