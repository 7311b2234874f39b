"""The exercises and questions of notebook 01: tensors."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from course_lib.checking import Exercise, Question, case, observe
from course_lib.reference import tensors as reference


def whole_storage(x: Tensor) -> Tensor:
    """A copy of every element in the storage behind `x`, those that `x` does not show included."""
    n_elements = x.untyped_storage().nbytes() // x.element_size()
    return x.as_strided((n_elements,), (1,), 0).clone()


def change_in_place(answer: Any, x: Tensor, *args: Any) -> dict[str, Any]:
    """What is there after an in-place function ran: all of the storage behind `x`, and what came back."""
    returned = answer(x, *args)
    return {"storage of x": whole_storage(x), "returned": "x itself" if returned is x else returned}


# ---- flat_index --------------------------------------------------------------------------------------------

flat_index = Exercise(
    reference.flat_index,
    title="Where in the storage?",
    objective="tensors.storage",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value()],
    hints=(
        "Print `x.stride()` and `x.storage_offset()` of a small tensor and of a slice of it. By how many "
        "places does the storage position move when one index grows by 1?",
        "Start at the storage offset. Every dimension then adds its index times its stride.",
        "Use `zip(index, stride)` to go through both tuples together, `sum` the products, and add "
        "`storage_offset` once.",
    ),
    why="A stride says how far apart in the storage two neighbors along that dimension are. So the way from "
    "the first element to the one at `index` is the sum of index times stride, and the first element itself "
    "lies at the offset. This one line is what a tensor adds to its storage.",
)


@flat_index.cases
def _(rng):
    yield case("the second element of a row of numbers", (1,), (1,), 0)
    yield case("row 1, column 2 of a (3, 4) matrix", (1, 2), (4, 1), 0)
    yield case("the same place of its transpose", (2, 1), (1, 4), 0)
    yield case("the first element of x[3:8:2]", (0,), (2,), 3)
    yield case("the third element of x[3:8:2]", (2,), (2,), 3)
    yield case("a tensor without dimensions", (), (), 5)
    yield case("an expanded row: stride 0", (2, 1), (0, 1), 4)
    yield case("a column of a matrix with an offset", (3, 0), (7, 1), 2)
    yield case("every other column", (1, 2), (10, 2), 1)
    for ndim in (3, 4, 5):
        numbers = torch.randint(1, 20, (2, ndim), generator=rng).tolist()
        yield case(f"{ndim} dimensions", tuple(numbers[0]), tuple(numbers[1]), 3 * ndim)


@flat_index.alternative
def adds_step_by_step(index, stride, storage_offset):
    position = storage_offset
    for dim in range(len(index)):
        position += index[dim] * stride[dim]
    return position


@flat_index.alternative
def starts_the_sum_at_the_offset(index, stride, storage_offset):
    return sum(map(int.__mul__, index, stride), storage_offset)


@flat_index.alternative
def multiplies_with_numpy(index, stride, storage_offset):
    return int(np.dot(index, stride)) + storage_offset


@flat_index.alternative
def reads_a_storage_of_positions(index, stride, storage_offset):
    positions = torch.arange(10_000)
    view = positions.as_strided([i + 1 for i in index], stride, storage_offset)
    return view[index].item()


@flat_index.misconception(
    "You left the storage offset out. A slice starts in the middle of its storage, and its first element "
    "lies at the offset."
)
def forgets_the_offset(index, stride, storage_offset):
    return sum(i * s for i, s in zip(index, stride))


@flat_index.misconception(
    "You added the indices up and left the strides out. One step along a dimension moves by its stride in "
    "the storage, and only a stride of 1 moves to the next element."
)
def forgets_the_strides(index, stride, storage_offset):
    return storage_offset + sum(index)


@flat_index.misconception(
    "You took the stride of the last dimension for 1. That holds for a contiguous tensor; in a transpose or "
    "in `x[:, ::2]` neighbors in the last dimension are further apart."
)
def takes_the_last_stride_for_one(index, stride, storage_offset):
    return storage_offset + sum(i * s for i, s in zip(index, (*stride[:-1], 1)))


@flat_index.misconception(
    "You paired the first index with the last stride. Index and stride belong together dimension by "
    "dimension, in the same order."
)
def pairs_in_reverse(index, stride, storage_offset):
    return storage_offset + sum(i * s for i, s in zip(index, reversed(stride)))


@flat_index.misconception(
    "You added the storage offset once for each dimension. It says where the first element lies, so it "
    "counts once."
)
def adds_the_offset_per_dimension(index, stride, storage_offset):
    return sum(i * s + storage_offset for i, s in zip(index, stride))


@flat_index.misconception(
    "You counted bytes of 4-byte numbers. `Tensor.stride()` and `storage_offset()` count elements, so that "
    "nothing has to be multiplied by the size of one; it is NumPy whose strides are bytes."
)
def counts_bytes(index, stride, storage_offset):
    return 4 * (storage_offset + sum(i * s for i, s in zip(index, stride)))


# ---- row_major_strides -------------------------------------------------------------------------------------

row_major_strides = Exercise(
    reference.row_major_strides,
    title="Strides of a new tensor",
    objective="tensors.strides",
    difficulty=2,
    minutes=8,
    points=2,
    stretch=True,
    observes=[observe.value()],
    forbids=(torch, np),
    hints=(
        "Print `torch.empty(2, 3, 4).stride()`. Which sizes are multiplied to make each number, and which "
        "size is never used?",
        "The stride of a dimension is the number of elements in everything to its right: the product of the "
        "later sizes. Then look at `torch.empty(2, 0, 4).stride()`.",
        "Walk through the shape from its end with `step = 1`: note `step`, then multiply it by `max(size, "
        "1)`. Turn the noted steps round at the end.",
    ),
    why="In row-major order the last index moves fastest, so one step in a dimension skips everything to "
    "its right: the product of the later sizes. PyTorch puts 1 in place of a size of 0 there, as otherwise "
    "all strides to the left would be 0.",
)


@row_major_strides.cases
def _(rng):
    yield case("one dimension", (3,))
    yield case("a matrix", (2, 3))
    yield case("no dimensions", ())
    yield case("three dimensions", (2, 3, 4))
    yield case("a size of 1 in front", (1, 5))
    yield case("a size of 1 at the end", (5, 1))
    yield case("a size of 0 in the middle", (2, 0, 3))
    yield case("a size of 0 at the end", (4, 0))
    yield case("a size of 0 in front", (0, 4))
    for ndim in (4, 5):
        yield case(f"{ndim} dimensions", tuple(torch.randint(2, 7, (ndim,), generator=rng).tolist()))


@row_major_strides.alternative
def multiplies_the_later_sizes(shape):
    sizes = [max(size, 1) for size in shape]
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


@row_major_strides.alternative
def accumulates_from_the_right(shape):
    if not shape:
        return ()
    later = [size or 1 for size in shape[:0:-1]]
    return tuple(itertools.accumulate([1, *later], lambda a, b: a * b))[::-1]


@row_major_strides.alternative
def puts_each_stride_in_front(shape):
    strides = ()
    for dim in reversed(range(len(shape))):
        strides = (strides[0] * max(shape[dim + 1], 1) if strides else 1, *strides)
    return strides


@row_major_strides.misconception(
    "Your strides are column-major: the first dimension has stride 1. That is the order of Fortran and "
    "MATLAB. In PyTorch the last dimension is the one whose elements are neighbors."
)
def column_major(shape):
    strides, step = [], 1
    for size in shape:
        strides.append(step)
        step *= max(size, 1)
    return tuple(strides)


@row_major_strides.misconception(
    "Your strides count the bytes of 4-byte numbers, as NumPy counts. `Tensor.stride()` counts elements, so "
    "the last one is 1."
)
def byte_strides(shape):
    sizes = [max(size, 1) for size in shape]
    return tuple(4 * math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


@row_major_strides.misconception(
    "You returned the shape. A shape says how many there are in each dimension; a stride says how far apart "
    "they lie."
)
def returns_the_shape(shape):
    return tuple(shape)


@row_major_strides.misconception(
    "Your strides are right, in reverse order. You met the dimensions from the last to the first; the "
    "result lists them from the first to the last."
)
def reversed_order(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(strides)


@row_major_strides.misconception(
    "You let a size of 0 into the product, which makes every stride to its left 0. PyTorch uses `max(size, "
    "1)`, so that an empty tensor has the strides of the same shape with 1 there."
)
def zero_size_in_the_product(shape):
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


@row_major_strides.misconception(
    "You multiplied each dimension's own size in as well. One step along a dimension skips only what lies "
    "to its right, so the last dimension has stride 1."
)
def includes_its_own_size(shape):
    sizes = [max(size, 1) for size in shape]
    return tuple(math.prod(sizes[dim:]) for dim in range(len(sizes)))


# ---- same_storage ------------------------------------------------------------------------------------------

same_storage = Exercise(
    reference.same_storage,
    title="Do two tensors share a storage?",
    objective="tensors.views",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value()],
    hints=(
        "Two tensors can differ in shape, strides, offset and dtype and still stand on one storage. What do "
        "all views of a storage have in common? Look at `x.untyped_storage()`.",
        "Compare the addresses of the two storages, not those of the first elements. And think of tensors "
        "without elements first.",
        "If one of the two has `numel() == 0`, return False. Otherwise compare "
        "`untyped_storage().data_ptr()` of both.",
    ),
    why="`x.data_ptr()` is the address of the first element of `x`, which moves with the storage offset; "
    "`x.untyped_storage().data_ptr()` is the address of the storage, which is the same for all of its "
    "views. An unallocated storage has the address 0, so two empty tensors would seem to share one.",
)


@same_storage.cases
def _(rng):
    def of_one(label, first, second, x=None):
        """Two tensors that were made from one, which no other case has."""
        x = torch.arange(12) if x is None else x
        return case(label, first(x), second(x))

    def same(x):
        return x

    yield of_one("a tensor and itself", same, same)
    yield of_one("a tensor and a view with another shape", same, lambda x: x.view(3, 4))
    yield of_one("a tensor and its clone", same, torch.clone)
    yield of_one("a tensor and a slice that starts in its middle", same, lambda x: x[5:])
    yield of_one("two slices that do not overlap", lambda x: x[:3], lambda x: x[5:])
    yield of_one("a matrix and its transpose", lambda x: x.view(3, 4), lambda x: x.view(3, 4).t())
    yield of_one(
        "a view of a view and another one", lambda x: x.view(3, 4)[1:], lambda x: x.view(2, 6).t()[2:]
    )
    yield of_one(
        "a matrix and its transpose, copied", lambda x: x.view(3, 4), lambda x: x.view(3, 4).t().contiguous()
    )
    yield case("equal numbers in two storages", torch.ones(3), torch.ones(3))
    yield case("equal numbers in two shapes", torch.ones(6), torch.ones(2, 3))
    yield case("two tensors of one shape with other numbers", torch.zeros(3), torch.ones(3))
    yield case("a row and the row expanded", torch.ones(1, 3), torch.ones(1, 3).expand(2, 3))
    row = torch.randn(3, generator=rng)
    yield of_one("a row and this row expanded", same, lambda x: x.expand(2, 3), row.clone())
    yield of_one("a tensor and the tensor detached", same, torch.detach, row.clone())
    weight = torch.randn(3, generator=rng).requires_grad_()
    yield case("a weight and a slice of it, detached", weight, weight.detach()[1:])
    yield of_one("the same bits as another dtype", same, lambda x: x.view(torch.int32), row.clone())
    yield case("two empty tensors", torch.empty(0), torch.empty(0))
    yield of_one("a tensor and a slice without elements", same, lambda x: x[:0])
    yield of_one("an empty tensor with itself", lambda x: x[3:3], lambda x: x[3:3])


@same_storage.alternative
def compares_storage_handles(a, b):
    return bool(a.numel() and b.numel()) and a.untyped_storage()._cdata == b.untyped_storage()._cdata


@same_storage.alternative
def goes_back_by_the_offset(a, b):
    if 0 in (a.numel(), b.numel()):
        return False
    starts = [t.data_ptr() - t.storage_offset() * t.element_size() for t in (a, b)]
    return starts[0] == starts[1]


@same_storage.alternative
def asks_numpy_for_the_bytes(a, b):
    if a.numel() * b.numel() == 0:
        return False
    whole = [torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).numpy() for t in (a, b)]
    return np.may_share_memory(*whole)


@same_storage.misconception(
    "You compared the Tensor objects. A view is a new object, with its own shape and strides, over the "
    "storage of another one."
)
def compares_objects(a, b):
    return a is b


@same_storage.misconception(
    "You compared the values. Two tensors can hold equal numbers in two different storages, and different "
    "numbers in one."
)
def compares_values(a, b):
    return torch.equal(a.flatten(), b.flatten())


@same_storage.misconception(
    "You compared the addresses of the first elements. A slice that starts further on has another first "
    "element and still the same storage; and tensors without elements have the address 0."
)
def compares_data_ptr(a, b):
    return a.data_ptr() == b.data_ptr()


@same_storage.misconception(
    "You compared the addresses of the first elements. `data_ptr()` moves with the storage offset; the "
    "address of the storage does not."
)
def compares_data_ptr_of_filled(a, b):
    return a.numel() > 0 and b.numel() > 0 and a.data_ptr() == b.data_ptr()


@same_storage.misconception(
    "You left out the tensors without elements. Two empty tensors have no memory, so both addresses are 0 "
    "and look equal; here the answer for an empty tensor is False."
)
def no_guard_for_empty(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@same_storage.misconception(
    "You asked whether the elements overlap. Two slices of one storage may have no element in common and "
    "share it all the same."
)
def asks_for_overlap(a, b):
    if a.numel() == 0 or b.numel() == 0:
        return False
    lengths = [1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) for t in (a, b)]
    ends = [t.data_ptr() + length * t.element_size() for t, length in zip((a, b), lengths)]
    return a.data_ptr() < ends[1] and b.data_ptr() < ends[0]


# ---- reshape_copies ----------------------------------------------------------------------------------------

reshape_copies = Exercise(
    reference.reshape_copies,
    title="Will reshape copy?",
    objective="tensors.contiguity",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value()],
    hints=(
        "`reshape` and `view` differ in one thing. What does `view` do where `reshape` copies?",
        "Either try `t.view(shape)` and see whether it is refused, or reshape and look whether the result "
        "still stands on the storage of `t`. `is_contiguous()` alone does not decide it.",
        "`try:` the view and return False if it worked; `except RuntimeError:` return True.",
    ),
    why="`view` never copies, so it is refused exactly where the new shape cannot be described by strides "
    "over the old storage, and there `reshape` has to copy. Contiguous is enough for a view, not necessary: "
    "splitting a dimension always works, and merging works wherever the strides already fit together.",
)


@reshape_copies.cases
def _(rng):
    def rows():
        return torch.arange(12).view(3, 4)

    def heads():
        return torch.arange(24).view(2, 3, 4)

    yield case("six numbers in a row, as a matrix", torch.arange(6), (2, 3))
    yield case("a transpose, flattened", torch.arange(6).view(2, 3).t(), (6,))
    yield case("a transpose, with its own shape", torch.arange(6).view(2, 3).t(), (3, 2))
    yield case("every other element, as a column", torch.arange(10)[::2], (5, 1))
    yield case("every other element, as a matrix", torch.arange(12)[::2], (2, 3))
    yield case("some columns of a matrix, flattened", rows()[:, 1:3], (6,))
    yield case("some rows of a matrix, flattened", rows()[1:], (-1,))
    yield case("a transpose, one dimension split", heads().transpose(0, 1), (3, 2, 2, 2))
    yield case("a transpose, the untouched dimensions merged", heads().permute(2, 0, 1), (4, 6))
    yield case("the last two dimensions swapped, then merged", heads().transpose(1, 2), (2, -1))
    yield case("a row, transposed and flattened", torch.randn(1, 5, generator=rng).t(), (5,))
    yield case("an expanded row, flattened", torch.arange(4).expand(3, 4), (12,))
    yield case("one number expanded, as a matrix", torch.ones(1).expand(12), (3, -1))
    yield case("heads side by side again", torch.randn(2, 3, 4, 2, generator=rng).transpose(1, 2), (2, 4, 6))
    yield case("a weight, flattened", torch.randn(2, 3, generator=rng).requires_grad_(), (-1,))


@reshape_copies.alternative
def reshapes_and_compares_storages(t, shape):
    return t.reshape(shape).untyped_storage().data_ptr() != t.untyped_storage().data_ptr()


@reshape_copies.alternative
def compares_the_first_address(t, shape):
    return t.reshape(shape).data_ptr() != t.data_ptr()


@reshape_copies.alternative
def fits_the_strides(t, shape):
    """The rule itself: every run of dimensions that lies evenly in the storage may be cut anew."""
    left, step, fits = [], None, True
    for size, stride in zip(reversed(t.shape), reversed(t.stride())):
        if size == 1:
            continue
        if step is None or stride != step:
            left.append(1)
        left[-1] *= size
        step = stride * size
    wanted = [t.numel() // -math.prod(shape) if size == -1 else size for size in shape]
    run = left.pop(0) if left else 1
    for size in reversed(wanted):
        if run == 1 and left:
            run = left.pop(0)
        fits = fits and run % size == 0
        run //= size
    return not fits


@reshape_copies.misconception(
    "Your answer is always False. `reshape` returns a view where it can, and copies where the elements do "
    "not lie as the new shape needs them: flattening a transpose is the classic case."
)
def never_copies(t, shape):
    t.reshape(shape)
    return False


@reshape_copies.misconception(
    "Your answer follows `is_contiguous()`. Contiguous is enough for a view, but not necessary: a dimension "
    "can always be split, and `arange(10)[::2].reshape(5, 1)` is a view too."
)
def copies_if_not_contiguous(t, shape):
    return not t.is_contiguous()


@reshape_copies.misconception(
    "Your answer is always True. `reshape` makes a new Tensor object every time, but a new object is not a "
    "copy of the elements: most of the time it is a view of the same storage. Comparing with `is` sees only "
    "the objects."
)
def compares_identity(t, shape):
    return t.reshape(shape) is not t


@reshape_copies.misconception(
    "You wrote into the result to see whether `t` changes. Where it is a view you have now changed the "
    "tensor that you were asked about. Compare the storages instead: that only looks."
)
def probes_by_writing(t, shape):
    before = t.detach().clone()
    t.detach().reshape(shape).add_(1)
    return torch.equal(before, t)


@reshape_copies.misconception(
    "You called `view` and let its RuntimeError through. That refusal is the answer: `view` cannot copy, so "
    "where it raises, `reshape` would copy. Catch it and return True."
)
def lets_the_refusal_through(t, shape):
    return t.view(shape).untyped_storage().data_ptr() != t.untyped_storage().data_ptr()


@reshape_copies.misconception(
    "You compared the strides before and after. A view may well have other strides than its base: that is "
    "what makes it another view. A copy is another storage."
)
def compares_strides(t, shape):
    return t.reshape(shape).stride() != t.stride()


# ---- clear_ ------------------------------------------------------------------------------------------------

clear_ = Exercise(
    reference.clear_,
    title="Zero it in place",
    objective="tensors.contiguity",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value()],
    hints=(
        "Every step between `x` and the write must keep the storage. Which of `view`, `reshape`, "
        "`contiguous` and `flatten` may hand you a copy instead?",
        "No flattening is needed: an in-place method, or an assignment through an index, follows the "
        "strides by itself.",
        "Call the in-place method that fills with zeros on `x`, or assign to `x[...]`; then return `x`.",
    ),
    why="An in-place operation on `x` walks through the strides of `x`, whatever they are, and touches no "
    "other element. `reshape(-1)`, `flatten()` and `contiguous()` return a copy where the strides do not "
    "fit, and zeros written there are lost. `view(-1)` would at least refuse.",
)


@clear_.scenario
def clear_in_place(answer, x):
    return change_in_place(answer, x)


@clear_.cases
def _(rng):
    yield case("three numbers in a row", torch.tensor([1.0, -2.0, 3.0]))
    yield case("a transpose", torch.arange(1.0, 7.0).view(2, 3).t())
    yield case("every other element", torch.arange(1, 7)[::2])
    yield case("two elements in the middle of a storage", torch.arange(1, 7)[2:4])
    yield case("two columns of a matrix", torch.arange(1, 13).view(3, 4)[:, 1:3])
    yield case("infinity and NaN", torch.tensor([1.0, float("inf"), float("nan"), -float("inf")]))
    yield case("a column of a matrix", torch.arange(1, 5).view(2, 2)[:, 0])
    yield case("three dimensions, permuted", torch.randn(2, 3, 4, generator=rng).permute(2, 0, 1)[1:])


@clear_.alternative
def assigns_through_an_index(x):
    x[...] = 0
    return x


@clear_.alternative
def fills(x):
    return x.fill_(0)


@clear_.alternative
def copies_zeros_in(x):
    return x.copy_(torch.zeros_like(x))


@clear_.alternative
def goes_row_by_row(x):
    for index in np.ndindex(*x.shape):
        x[index] = 0
    return x


@clear_.misconception(
    "You wrote the zeros into `x.reshape(-1)`, or into another tensor that is a view only where the strides "
    "allow it. For a transpose it is a copy, so your zeros went there and `x` kept its numbers."
)
def zeroes_a_reshape(x):
    x.reshape(-1).zero_()
    return x


@clear_.misconception(
    "You wrote the zeros into a tensor that is `x` only where `x` is contiguous, as `x.contiguous()` is. "
    "Where it is not, that is a copy, and `x` kept its numbers."
)
def zeroes_a_contiguous(x):
    x.contiguous().zero_()
    return x


@clear_.misconception(
    "You asked for `x.view(-1)`. A view cannot copy, so it is refused where one stride cannot describe all "
    "the elements. That is honest, but it is not needed: in-place operations follow any strides."
)
def zeroes_a_flat_view(x):
    x.view(-1).zero_()
    return x


@clear_.misconception(
    "You made a new tensor of zeros. The tensor that came in still has its numbers: assigning to the name "
    "`x` inside the function changes what the name means there, not the tensor."
)
def makes_new_zeros(x):
    x = torch.zeros_like(x)
    return x


@clear_.misconception(
    "You multiplied by zero, or subtracted `x` from itself. Infinity and NaN do not become 0 that way, they "
    "become NaN. Assign the zeros."
)
def multiplies_by_zero(x):
    return x.mul_(0)


@clear_.misconception(
    "You cleared the whole storage. `x` shows only a part of it, and the other elements belong to other "
    "views."
)
def clears_the_storage(x):
    x.untyped_storage().fill_(0)
    return x


@clear_.misconception(
    "`x` is unchanged: what you set to zero is another tensor, a copy or a new one under a name that was "
    "bound again."
)
def zeroes_a_clone(x):
    x.clone().zero_()
    return x


@clear_.misconception(
    "`x` is cleared, but your function returned None. A function without `return` does; PyTorch's own "
    "in-place methods return their tensor, so that calls can be chained."
)
def clears_and_returns_nothing(x):
    x.zero_()


@clear_.misconception(
    "You returned the flattened tensor. It is another one, with another shape, and for a transpose its "
    "zeros are in a copy. The caller wants `x` back."
)
def returns_the_reshape(x):
    return x.reshape(-1).zero_()


# ---- sliding_windows ---------------------------------------------------------------------------------------

sliding_windows = Exercise(
    reference.sliding_windows,
    title="Windows without a copy",
    objective="tensors.strides",
    difficulty=3,
    minutes=12,
    points=3,
    stretch=True,
    observes=[observe.value(), observe.shares_storage(), observe.requires_grad()],
    hints=(
        "Two neighbors in one window, and the first elements of two neighboring windows: how far apart do "
        "they lie in the storage of `x`? Draw it with `show_storage`, once for `x[::2]` as well.",
        "You need a shape (n_windows, size) and two strides. Both strides are multiples of `x.stride(0)`. "
        "`as_strided` keeps the storage offset of `x` if you do not pass one.",
        "Count the windows with `(len(x) - size) // step + 1`, then call `x.as_strided` with that shape and "
        "the strides `step * x.stride(0)` and `x.stride(0)`. Or look at what `Tensor.unfold` does.",
    ),
    why="Overlapping windows need no copy, since two elements of a view may lie at the same place. One step "
    "inside a window moves by one element of `x`, and one step to the next window by `step` elements; an "
    "element of `x` is `x.stride(0)` places of the storage. `x.unfold(0, size, step)` builds exactly this "
    "view.",
)


@sliding_windows.cases
def _(rng):
    yield case("four numbers, windows of two", torch.arange(4), 2, 1)
    yield case("every second window", torch.arange(6), 2, 2)
    yield case("windows of three, two apart, one element left over", torch.arange(8), 3, 2)
    yield case("a slice that starts in the middle of its storage", torch.arange(10)[4:], 3, 1)
    yield case("every other element", torch.arange(12)[::2], 3, 1)
    yield case("every other element, two apart", torch.arange(16)[::2], 3, 2)
    yield case("one window that is all of x", torch.arange(5), 5, 3)
    yield case("windows of one element", torch.arange(5), 1, 2)
    yield case("windows with gaps between them", torch.arange(11), 2, 4)
    yield case("a column of a matrix", torch.randn(7, 3, generator=rng)[:, 1], 4, 1)
    yield case("a weight", torch.randn(6, generator=rng).requires_grad_(), 2, 3)


@sliding_windows.alternative
def unfolds(x, size, step):
    return x.unfold(0, size, step)


@sliding_windows.alternative
def unfolds_and_takes_every_step(x, size, step):
    return x.unfold(-1, size, 1)[::step]


@sliding_windows.alternative
def names_the_offset_too(x, size, step):
    (stride,) = x.stride()
    shape = ((x.numel() - size) // step + 1, size)
    return torch.as_strided(x, shape, (stride * step, stride), x.storage_offset())


@sliding_windows.misconception(
    "Your windows have the right numbers in a storage of their own. `torch.stack`, `torch.cat` and indexing "
    "with lists copy. Strides can describe overlapping windows over the elements that are already there."
)
def stacks_slices(x, size, step):
    return torch.stack([x[i : i + size] for i in range(0, len(x) - size + 1, step)])


@sliding_windows.misconception(
    "You took the stride of `x` for 1. In `x[::2]` or a column of a matrix, neighbors lie further apart in "
    "the storage: multiply by `x.stride(0)`."
)
def takes_the_stride_for_one(x, size, step):
    return x.as_strided(((len(x) - size) // step + 1, size), (step, 1))


@sliding_windows.misconception(
    "You multiplied by `x.stride(0)` inside a window, and not from window to window. Both strides count "
    "places of the storage, so `step` elements of `x` are `step * x.stride(0)` places."
)
def steps_through_the_storage(x, size, step):
    return x.as_strided(((len(x) - size) // step + 1, size), (step, x.stride(0)))


@sliding_windows.misconception(
    "One window is missing, the last. Between the first start and the last there are `(n - size) // step` "
    "steps, and that many steps join one more window: count fence posts, not gaps."
)
def misses_the_last_window(x, size, step):
    return x.as_strided(((len(x) - size) // step, size), (step * x.stride(0), x.stride(0)))


@sliding_windows.misconception(
    "Your windows start at the beginning of the storage. `x` may be a slice that starts further on: keep "
    "its storage offset, which `as_strided` does by itself if you pass none."
)
def starts_at_offset_zero(x, size, step):
    return x.as_strided(((len(x) - size) // step + 1, size), (step * x.stride(0), x.stride(0)), 0)


@sliding_windows.misconception(
    "You left `step` out: your windows start at every element. Window `i` starts at element `i * step`."
)
def forgets_the_step(x, size, step):
    return x.unfold(0, size, 1)


@sliding_windows.misconception(
    "Your windows lie side by side: each starts where the one before ended, whatever `step` says. Window "
    "`i` starts at element `i * step`, so windows may overlap, or leave gaps."
)
def puts_windows_side_by_side(x, size, step):
    return x.unfold(0, size, size)


@sliding_windows.misconception(
    "Your result is transposed. Each row is to be a window: the shape is (n_windows, size), and the stride "
    "between windows comes first."
)
def puts_windows_in_columns(x, size, step):
    return x.unfold(0, size, step).t()


# ---- split_heads -------------------------------------------------------------------------------------------

split_heads = Exercise(
    reference.split_heads,
    title="Split attention heads",
    objective="tensors.layout",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(), observe.shares_storage(), observe.requires_grad()],
    hints=(
        "Take batch 1, seq 2, dim 4 and two heads, filled with `torch.arange(8)`, and write down by hand "
        "what head 0 should see at step 0 and at step 1. Which dimension is cut, and which are only moved?",
        "Two moves: cut the last dimension into (n_heads, head_dim), which is a view for any strides; then "
        "swap two dimensions, which is a view as well.",
        "First `x.view(batch, seq, n_heads, dim // n_heads)`. Its dimensions 1 and 2 are in the wrong "
        "order: transpose them.",
    ),
    why="`view` may only cut or merge neighbors, in the order in which the elements are; it never moves a "
    "dimension. Cutting `dim` gives (batch, seq, n_heads, head_dim), and the transpose brings the heads in "
    "front of the steps. Both change only shape and strides, so nothing is copied.",
)


@split_heads.cases
def _(rng):
    yield case("one sequence of two steps, two heads", torch.arange(8).view(1, 2, 4), 2)
    yield case("two sequences, three steps, two heads", torch.arange(36).view(2, 3, 6), 2)
    yield case("as many heads as steps", torch.arange(36).view(2, 3, 6), 3)
    yield case("one head", torch.arange(12).view(1, 3, 4), 1)
    yield case("heads of one feature", torch.arange(24).view(2, 3, 4), 4)
    yield case("a single step", torch.arange(12).view(2, 1, 6), 3)
    yield case("a transpose: steps first in the storage", torch.arange(48).view(3, 2, 8).transpose(0, 1), 4)
    qkv = torch.randn(2, 4, 18, generator=rng)
    yield case("the middle third of a projection", qkv.chunk(3, dim=-1)[1], 2)
    yield case("every other feature", torch.randn(2, 5, 12, generator=rng)[..., ::2], 3)
    yield case("a batch expanded from one sequence", torch.randn(1, 3, 4, generator=rng).expand(2, 3, 4), 2)
    yield case("a weight", torch.randn(2, 3, 8, generator=rng).requires_grad_(), 2)


@split_heads.alternative
def unflattens(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


@split_heads.alternative
def reshapes_and_permutes(x, n_heads):
    batch, seq, _ = x.shape
    return x.reshape(batch, seq, n_heads, -1).permute(0, 2, 1, 3)


@split_heads.alternative
def transposes_first(x, n_heads):
    batch, seq, dim = x.shape
    return x.mT.view(batch, n_heads, dim // n_heads, seq).mT


@split_heads.alternative
def unfolds_the_features(x, n_heads):
    head_dim = x.shape[-1] // n_heads
    return x.unfold(-1, head_dim, head_dim).movedim(2, 1)


@split_heads.alternative
def computes_the_strides(x, n_heads):
    (batch, seq, dim), (sb, ss, sd) = x.shape, x.stride()
    head_dim = dim // n_heads
    return x.as_strided((batch, n_heads, seq, head_dim), (sb, head_dim * sd, ss, sd))


@split_heads.misconception(
    "You reshaped to the final shape at once. The shape is right, but reshape reads the elements in their "
    "old order and moves no dimension, so each head got the features of other steps. Cut the last dimension "
    "first, then transpose."
)
def reshapes_straight(x, n_heads):
    batch, seq, dim = x.shape
    return x.reshape(batch, n_heads, seq, dim // n_heads)


@split_heads.misconception(
    "You viewed `x` in the final shape at once. A view moves no dimension, so each head got the features of "
    "other steps, and for some strides it is refused. Cut the last dimension first, then transpose."
)
def views_straight(x, n_heads):
    batch, seq, dim = x.shape
    return x.view(batch, n_heads, seq, dim // n_heads)


@split_heads.misconception(
    "You cut the last dimension in the order (head_dim, n_heads), so neighboring features went to different "
    "heads. A head takes a block of neighboring features: heads first, then the features of each."
)
def deals_the_features_out(x, n_heads):
    batch, seq, dim = x.shape
    return x.view(batch, seq, dim // n_heads, n_heads).permute(0, 3, 1, 2)


@split_heads.misconception(
    "Your result is (batch, seq, n_heads, head_dim). The cut is right; the heads still have to come in "
    "front of the steps."
)
def leaves_the_heads_behind(x, n_heads):
    batch, seq, dim = x.shape
    return x.view(batch, seq, n_heads, dim // n_heads)


@split_heads.misconception(
    "The values are right, but you copied them. Cutting a dimension and swapping two are views for any "
    "strides, so `contiguous()`, `clone()`, `stack` and `cat` are not needed."
)
def copies_the_heads(x, n_heads):
    return torch.stack(x.chunk(n_heads, dim=-1), dim=1)


@split_heads.misconception(
    "Your result is (batch, n_heads, head_dim, seq), the layout in which the keys enter a matrix product. "
    "Here the steps come before the features of a head."
)
def puts_the_features_first(x, n_heads):
    batch, seq, dim = x.shape
    return x.view(batch, seq, n_heads, dim // n_heads).permute(0, 2, 3, 1)


@split_heads.misconception(
    "You took the number of heads for the size of a head. There are `n_heads` heads of `dim // n_heads` "
    "features each."
)
def takes_heads_for_head_dim(x, n_heads):
    batch, seq, dim = x.shape
    return x.view(batch, seq, dim // n_heads, n_heads).transpose(1, 2)


@split_heads.misconception(
    "You wrote the strides of a contiguous tensor into `as_strided`. `x` may be a transpose or a slice, "
    "whose strides are others: compute with `x.stride()`, or let `view` do it."
)
def writes_contiguous_strides(x, n_heads):
    batch, seq, dim = x.shape
    head_dim = dim // n_heads
    return x.as_strided((batch, n_heads, seq, head_dim), (seq * dim, head_dim, dim, 1))


# ---- merge_heads -------------------------------------------------------------------------------------------

merge_heads = Exercise(
    reference.merge_heads,
    title="Merge attention heads",
    objective="tensors.layout",
    difficulty=2,
    minutes=6,
    points=2,
    observes=[observe.value(), observe.requires_grad()],
    hints=(
        "Do what `split_heads` did, backwards: which of its two moves came last? Check with numbers, since "
        "a wrong order gives the right shape.",
        "First the steps go back in front of the heads, then heads and features are merged. After the first "
        "move the strides mostly do not fit together, so `view` may refuse.",
        "`x.transpose(1, 2)`, then `reshape` or `flatten` the last two dimensions into one.",
    ),
    why="Merging joins neighboring dimensions in the order in which they stand, so the heads must stand "
    "beside their features first. For most strides no view can join them then, and `reshape` copies; where "
    "`x` is a view that came out of `split_heads`, it does not even need to.",
)


@merge_heads.cases
def _(rng):
    yield case("one sequence, two heads, two steps", torch.arange(8).view(1, 2, 2, 2))
    yield case("one sequence, two heads, three steps", torch.arange(12).view(1, 2, 3, 2))
    yield case("two sequences, three heads, two steps", torch.arange(48).view(2, 3, 2, 4))
    yield case("straight from split_heads", torch.arange(24).view(2, 3, 2, 2).transpose(1, 2))
    yield case("one head", torch.arange(12).view(2, 1, 3, 2))
    yield case("a single step", torch.arange(12).view(2, 3, 1, 2))
    yield case("heads of one feature", torch.arange(12).view(2, 3, 2, 1))
    yield case("the features first in the storage", torch.randn(2, 3, 4, 5, generator=rng).transpose(2, 3))
    yield case("some steps only", torch.randn(2, 3, 6, 2, generator=rng)[:, :, 1:5])
    yield case("a weight", torch.randn(1, 2, 3, 2, generator=rng).requires_grad_())


@merge_heads.alternative
def permutes_and_reshapes(x):
    batch, n_heads, seq, head_dim = x.shape
    return x.permute(0, 2, 1, 3).reshape(batch, seq, n_heads * head_dim)


@merge_heads.alternative
def makes_it_contiguous_and_views(x):
    batch, n_heads, seq, head_dim = x.shape
    return x.transpose(1, 2).contiguous().view(batch, seq, n_heads * head_dim)


@merge_heads.alternative
def puts_heads_side_by_side(x):
    return torch.cat(x.unbind(dim=1), dim=-1)


@merge_heads.alternative
def fills_step_by_step(x):
    return torch.stack([x[:, :, t].flatten(1) for t in range(x.shape[2])], dim=1)


@merge_heads.misconception(
    "You reshaped without moving a dimension. The shape is right, but each step now holds features of one "
    "head from several steps. Bring the steps in front of the heads with `transpose(1, 2)` first."
)
def reshapes_without_transpose(x):
    batch, n_heads, seq, head_dim = x.shape
    return x.reshape(batch, seq, n_heads * head_dim)


@merge_heads.misconception(
    "You merged with `view` after the transpose. It works where the strides happen to fit, as straight "
    "after `split_heads`, and is refused elsewhere. `reshape` or `flatten` copy where they must."
)
def views_after_the_transpose(x):
    batch, n_heads, seq, head_dim = x.shape
    return x.transpose(1, 2).view(batch, seq, n_heads * head_dim)


@merge_heads.misconception(
    "You put the features in front of the heads, so the heads are interleaved: feature 0 of every head, "
    "then feature 1. Each head is to keep its features together."
)
def interleaves_the_heads(x):
    return x.permute(0, 2, 3, 1).flatten(2)


@merge_heads.misconception(
    "You brought the steps in front of the heads and stopped. Heads and features are still two dimensions: "
    "merge them into one."
)
def only_transposes(x):
    return x.transpose(1, 2)


@merge_heads.misconception(
    "You put the heads one after another along the steps. They belong side by side along the features: "
    "there are `seq` steps, each with all heads."
)
def appends_heads_as_steps(x):
    return torch.cat(x.unbind(dim=1), dim=1)


@merge_heads.misconception(
    "You added the heads up. Each head keeps its own features in the result; they are only put side by side."
)
def adds_the_heads(x):
    return x.sum(dim=1)


# ---- time_major --------------------------------------------------------------------------------------------

time_major = Exercise(
    reference.time_major,
    title="Steps first",
    objective="tensors.layout",
    difficulty=1,
    minutes=4,
    points=1,
    observes=[observe.value(), observe.shares_storage(), observe.requires_grad()],
    hints=(
        "Two shapes with the same number of elements are not yet the same order. Which operation moves "
        "dimensions, and which only cuts the same order anew?",
        "Swap dimension 0 and dimension 1. That changes shape and strides together, and copies nothing.",
        "`transpose` takes the two dimensions to swap; `permute` takes all of them in the new order.",
    ),
    why="`transpose` swaps two sizes together with their strides, so every element keeps its neighbors. "
    "`view` and `reshape` keep the order of the elements and cut it into other pieces: the shape fits, and "
    "the sequences are mixed.",
)


@time_major.cases
def _(rng):
    yield case("two sequences of three steps", torch.arange(6).view(2, 3, 1))
    yield case("three sequences of two steps, two features", torch.arange(12).view(3, 2, 2))
    yield case("as many sequences as steps", torch.arange(12).view(2, 2, 3))
    yield case("a single sequence", torch.arange(6).view(1, 3, 2))
    yield case("a single step", torch.arange(6).view(2, 1, 3))
    yield case("a batch that is a transpose already", torch.arange(24).view(3, 2, 4).transpose(0, 1))
    yield case("some of the features", torch.randn(2, 3, 6, generator=rng)[..., 1:4])
    yield case("the later steps", torch.randn(2, 5, 3, generator=rng)[:, 2:])
    yield case("a weight", torch.randn(2, 3, 4, generator=rng).requires_grad_())


@time_major.alternative
def permutes(x):
    return x.permute(1, 0, 2)


@time_major.alternative
def moves_the_steps(x):
    return torch.movedim(x, 1, 0)


@time_major.alternative
def says_it_with_einsum(x):
    return torch.einsum("bsd->sbd", x)


@time_major.alternative
def swaps_sizes_and_strides(x):
    (batch, seq, dim), (sb, ss, sd) = x.shape, x.stride()
    return x.as_strided((seq, batch, dim), (ss, sb, sd))


@time_major.misconception(
    "You reshaped. The shape fits, but the elements stay in their order and are cut anew, so the sequences "
    "are mixed. `transpose` or `permute` move a dimension."
)
def reshapes(x):
    batch, seq, dim = x.shape
    return x.reshape(seq, batch, dim)


@time_major.misconception(
    "You used `view`. It cuts the elements anew in the order in which they lie, so the sequences are mixed, "
    "and for some strides it is refused. `transpose` or `permute` move a dimension."
)
def views(x):
    batch, seq, dim = x.shape
    return x.view(seq, batch, dim)


@time_major.misconception(
    "The values are right, but you copied them. Swapping two dimensions only swaps sizes and strides: leave "
    "`contiguous()`, `clone()` and `stack` away."
)
def copies_the_steps(x):
    return torch.stack(x.unbind(dim=1))


@time_major.misconception(
    "You swapped the last two dimensions. Counted from 0, the batch is dimension 0 and the steps are "
    "dimension 1."
)
def swaps_the_last_two(x):
    return x.transpose(1, 2)


@time_major.misconception(
    "You reversed all dimensions: (dim, seq, batch). Only the first two change places; the features stay "
    "last."
)
def reverses_all(x):
    return x.permute(2, 1, 0)


@time_major.misconception(
    "You transposed the caller's tensor in place. `transpose_` changes the shape of `x` itself; `transpose` "
    "returns a new view and leaves `x` as it is."
)
def transposes_in_place(x):
    return x.transpose_(0, 1)


@time_major.misconception(
    "You detached the result. It has the right values, but no gradient flows back to `x`. Swapping "
    "dimensions needs no `detach()` and no `.data`."
)
def detaches(x):
    return x.detach().transpose(0, 1)


# ---- broadcast_shape ---------------------------------------------------------------------------------------

broadcast_shape = Exercise(
    reference.broadcast_shape,
    title="The broadcasting rule",
    objective="tensors.broadcasting",
    difficulty=2,
    minutes=10,
    points=2,
    observes=[observe.value()],
    forbids=(torch, np),
    hints=(
        "Write the two shapes under each other, flush right. Which pairs of sizes may meet, and what "
        "becomes of each pair?",
        "Fill the shorter shape with ones on its left. Then, pair by pair: equal sizes stay, a 1 gives way "
        "to the other size, and anything else is a ValueError. Try 1 against 0 in your head.",
        "Pad with `(1,) * (ndim - len(s))` in front. For a pair `a, b`: raise if `a != b` and neither is 1; "
        "the size is `b` if `a == 1`, else `a`.",
    ),
    why="A dimension of size 1 is stretched to the size it meets, whatever that is, 0 included; so the "
    "result is 'the other one', not the larger one. Shapes are aligned from the right, and a missing "
    "dimension counts as 1.",
)


@broadcast_shape.cases
def _(rng):
    yield case("equal shapes", (3,), (3,))
    yield case("a row and a column", (1, 4), (3, 1))
    yield case("a column and a vector", (3, 1), (4,))
    yield case("a matrix and a row", (2, 3), (3,))
    yield case("a vector and a matrix", (3,), (2, 3))
    yield case("a number and a vector", (), (3,))
    yield case("two numbers", (), ())
    yield case("sizes that do not fit", (3,), (4,))
    yield case("sizes of which one divides the other", (2,), (4,))
    yield case("a vector that fits from the left only", (2, 3), (2,))
    yield case("an empty vector and one number", (0,), (1,))
    yield case("one number and an empty vector", (1,), (0,))
    yield case("an empty vector and three numbers", (0,), (3,))
    yield case("an empty column and a matrix", (0, 1), (1, 4))
    yield case("a batch of empty matrices", (5, 1, 3), (0, 3))
    yield case("four dimensions and three", (8, 1, 6, 1), (7, 1, 5))
    yield case("a mismatch behind sizes that fit", (4, 2, 3), (5, 1, 3))
    sizes = torch.randint(2, 9, (4,), generator=rng).tolist()
    yield case("ones in both", (sizes[0], 1, sizes[2], 1), (1, sizes[1], 1, sizes[3]))


@broadcast_shape.alternative
def zips_from_the_right(s1, s2):
    sizes = []
    for a, b in itertools.zip_longest(reversed(s1), reversed(s2), fillvalue=1):
        if a != b and a != 1 and b != 1:
            raise ValueError("shapes do not broadcast")
        sizes.insert(0, a if b == 1 else b)
    return tuple(sizes)


@broadcast_shape.alternative
def peels_off_the_last_size(s1, s2):
    if not s1 or not s2:
        return tuple(s1 or s2)
    sizes = {s1[-1], s2[-1]} - {1}
    if len(sizes) > 1:
        raise ValueError(f"{s1} against {s2}")
    return (*peels_off_the_last_size(s1[:-1], s2[:-1]), sizes.pop() if sizes else 1)


@broadcast_shape.alternative
def writes_into_the_longer(s1, s2):
    longer, shorter = (list(s1), s2) if len(s1) >= len(s2) else (list(s2), s1)
    for dim in range(1, len(shorter) + 1):
        if longer[-dim] == 1:
            longer[-dim] = shorter[-dim]
        elif shorter[-dim] not in (1, longer[-dim]):
            raise ValueError("no common shape")
    return tuple(longer)


@broadcast_shape.misconception(
    "You aligned the shapes at their first dimensions. They are aligned at the last: a vector meets the "
    "columns of a matrix, and missing dimensions are added in front."
)
def aligns_from_the_left(s1, s2):
    sizes = []
    for a, b in itertools.zip_longest(s1, s2, fillvalue=1):
        if a != b and 1 not in (a, b):
            raise ValueError("shapes do not broadcast")
        sizes.append(b if a == 1 else a)
    return tuple(sizes)


@broadcast_shape.misconception(
    "You took the larger size of each pair without asking whether the two fit. 3 against 4 is an error: "
    "only a size of 1 is stretched."
)
def takes_the_larger_unchecked(s1, s2):
    pairs = itertools.zip_longest(reversed(s1), reversed(s2), fillvalue=1)
    return tuple(max(pair) for pair in pairs)[::-1]


@broadcast_shape.misconception(
    "You took the larger size of each pair. 1 against 0 gives 0: a size of 1 is stretched to the other "
    "size, and here the other size is smaller."
)
def takes_the_larger(s1, s2):
    sizes = []
    for a, b in itertools.zip_longest(reversed(s1), reversed(s2), fillvalue=1):
        if a != b and 1 not in (a, b):
            raise ValueError("shapes do not broadcast")
        sizes.append(max(a, b))
    return tuple(sizes[::-1])


@broadcast_shape.misconception(
    "You refused shapes of different lengths. A missing dimension counts as size 1, so (2, 3) and (3,) "
    "broadcast to (2, 3)."
)
def wants_the_same_length(s1, s2):
    if len(s1) != len(s2):
        raise ValueError("shapes have different lengths")
    if any(a != b and 1 not in (a, b) for a, b in zip(s1, s2)):
        raise ValueError("shapes do not broadcast")
    return tuple(b if a == 1 else a for a, b in zip(s1, s2))


@broadcast_shape.misconception(
    "Your result is as short as the shorter shape: `zip` stops there. The dimensions that only one shape "
    "has belong to the result as well."
)
def stops_at_the_shorter(s1, s2):
    sizes = []
    for a, b in zip(reversed(s1), reversed(s2)):
        if a != b and 1 not in (a, b):
            raise ValueError("shapes do not broadcast")
        sizes.append(b if a == 1 else a)
    return tuple(sizes[::-1])


@broadcast_shape.misconception(
    "You let 0 meet any size. An empty dimension is not stretched and stretches nothing but a 1: 0 against "
    "3 is an error, as 4 against 3 is."
)
def lets_zero_meet_anything(s1, s2):
    sizes = []
    for a, b in itertools.zip_longest(reversed(s1), reversed(s2), fillvalue=1):
        if a != b and not {0, 1} & {a, b}:
            raise ValueError("shapes do not broadcast")
        sizes.append(b if a == 1 else a if b == 1 else min(a, b))
    return tuple(sizes[::-1])


@broadcast_shape.misconception(
    "You stretched only the second shape, as `expand` does. In broadcasting each side may have ones, and "
    "both can be stretched at once: (1, 4) and (3, 1) give (3, 4)."
)
def stretches_only_the_second(s1, s2):
    if len(s2) > len(s1) or any(b not in (1, a) for a, b in zip(reversed(s1), reversed(s2))):
        raise ValueError("the second shape does not fit the first")
    return tuple(s1)


@broadcast_shape.misconception(
    "You returned None where two sizes do not fit. A caller that does not look goes on with it; the "
    "statement asks for a ValueError, which cannot be overlooked."
)
def returns_none_for_a_mismatch(s1, s2):
    sizes = []
    for a, b in itertools.zip_longest(reversed(s1), reversed(s2), fillvalue=1):
        if a != b and 1 not in (a, b):
            return None
        sizes.append(b if a == 1 else a)
    return tuple(sizes[::-1])


# ---- mean_squared_error ------------------------------------------------------------------------------------

mean_squared_error = Exercise(
    reference.mean_squared_error,
    title="A loss that fits by accident",
    objective="tensors.broadcasting",
    difficulty=1,
    minutes=6,
    points=1,
    observes=[observe.value(rtol=1e-5, atol=1e-6), observe.gradients()],
    hints=(
        "Print the shape of `prediction - target` for the shapes (3, 1) and (3,). How many differences did "
        "you want?",
        "Give both the same shape before you subtract, in a way that works for a prediction of shape (n,) "
        "as well.",
        "Reshape the prediction to `target.shape`, subtract, square, take the mean.",
    ),
    why="(n, 1) against (n,) broadcasts to (n, n): every prediction is compared with every target, and even "
    "perfect predictions get a loss above 0. Reshaping to the shape of the target makes the pairs explicit, "
    "and refuses where the numbers of elements differ.",
)


@mean_squared_error.cases
def _(rng):
    target = torch.tensor([1.0, 2.0, 3.0])
    yield case("perfect predictions, as a column", target[:, None].clone(), target.clone())
    yield case("perfect predictions, flat", target.clone(), target.clone())
    yield case("flat predictions", torch.tensor([2.0, -1.0]), torch.tensor([1.0, 1.0]))
    yield case("a column of predictions", torch.tensor([[2.0], [-1.0]]), torch.tensor([1.0, 1.0]))
    yield case("a single prediction, as a column", torch.tensor([[3.0]]), torch.tensor([1.0]))
    yield case("a single prediction, flat", torch.tensor([3.0]), torch.tensor([1.0]))
    yield case(
        "a column cut out of a wider result",
        torch.randn(5, 3, generator=rng)[:, 1:2],
        torch.randn(5, generator=rng),
    )
    yield case(
        "predictions in float64",
        torch.randn(4, 1, generator=rng, dtype=torch.float64),
        torch.randn(4, generator=rng, dtype=torch.float64),
    )
    yield case(
        "a column that requires gradients",
        torch.randn(6, 1, generator=rng).requires_grad_(),
        torch.randn(6, generator=rng),
    )
    yield case(
        "flat predictions that require gradients",
        torch.randn(6, generator=rng).requires_grad_(),
        torch.randn(6, generator=rng),
    )


@mean_squared_error.alternative
def squeezes_and_calls_mse_loss(prediction, target):
    return F.mse_loss(prediction.squeeze(-1).view(target.shape), target)


@mean_squared_error.alternative
def flattens_both(prediction, target):
    return ((prediction.flatten() - target.flatten()) ** 2).mean()


@mean_squared_error.alternative
def shapes_the_target(prediction, target):
    difference = prediction - target.view_as(prediction)
    return (difference * difference).sum() / len(target)


@mean_squared_error.alternative
def takes_pair_by_pair(prediction, target):
    squares = [(p.squeeze() - t) ** 2 for p, t in zip(prediction, target)]
    return torch.stack(squares).mean()


@mean_squared_error.misconception(
    "You subtracted (n,) from (n, 1), which broadcasts to (n, n): every prediction met every target. Give "
    "both the same shape first. `F.mse_loss` does the same and only warns."
)
def subtracts_as_they_are(prediction, target):
    return ((prediction - target) ** 2).mean()


@mean_squared_error.misconception(
    "You always made a column of the target. That repairs (n, 1), and breaks a prediction of shape (n,), "
    "which now broadcasts against the column. Shape one after the other: `prediction.reshape(target.shape)`."
)
def makes_a_column_of_the_target(prediction, target):
    return ((prediction - target.unsqueeze(1)) ** 2).mean()


@mean_squared_error.misconception(
    "You took it for granted that the prediction has two dimensions. It may come as (n,) too, where there "
    "is no dimension 1 to drop. `reshape(target.shape)` works for both."
)
def takes_a_column_for_granted(prediction, target):
    return ((prediction.squeeze(1) - target) ** 2).mean()


@mean_squared_error.misconception(
    "You added the squared differences up and did not divide by their number. The mean does not grow with "
    "the number of predictions."
)
def sums_the_squares(prediction, target):
    return ((prediction.reshape(target.shape) - target) ** 2).sum()


@mean_squared_error.misconception(
    "You took the absolute differences. The squared error weighs a difference of 2 four times as much as a "
    "difference of 1."
)
def takes_absolute_differences(prediction, target):
    return (prediction.reshape(target.shape) - target).abs().mean()


@mean_squared_error.misconception(
    "You took the square root at the end. That is the root mean squared error; the mean squared error stops "
    "before it."
)
def takes_the_root(prediction, target):
    return ((prediction.reshape(target.shape) - target) ** 2).mean().sqrt()


@mean_squared_error.misconception(
    "You returned a Python number. It has the right value, but `.item()` leaves the graph behind: nothing "
    "can be differentiated. Return the tensor without dimensions."
)
def returns_a_number(prediction, target):
    return ((prediction.reshape(target.shape) - target) ** 2).mean().item()


@mean_squared_error.misconception(
    "The value is right, but no gradient reaches `prediction`: it was cut off, as by `detach()`, `.data` or "
    "`no_grad`. A loss must stay connected."
)
def detaches_the_prediction(prediction, target):
    return ((prediction.detach().reshape(target.shape) - target) ** 2).mean()


# ---- masked_rows -------------------------------------------------------------------------------------------

masked_rows = Exercise(
    reference.masked_rows,
    title="Write into expanded rows",
    objective="tensors.aliasing",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value(), observe.shares_storage()],
    hints=(
        "Print the strides of `row.expand(3, 3)`. In how many of its rows does a single write show up?",
        "Repeat the row so that every row of the matrix has memory of its own, before you write. Then put "
        "the zeros on the diagonal with a write, not with a product.",
        "`row.expand(n, n)` followed by `clone()`, or `row.repeat(n, 1)`; then `fill_diagonal_` with 0.",
    ),
    why="`expand` gives the new dimension stride 0: all rows are the same memory, which is that of `row`. "
    "`clone()` of the expanded tensor writes the rows out, and then each diagonal element is a place of its "
    "own. Multiplying by a mask would turn infinity into NaN.",
)


@masked_rows.cases
def _(rng):
    yield case("two numbers", torch.tensor([1.0, 2.0]))
    yield case("three numbers", torch.tensor([1.0, -2.0, 3.0]))
    yield case("one number", torch.tensor([5.0]))
    yield case("a slice that starts in the middle of its storage", torch.arange(1.0, 7.0)[2:5])
    yield case("every other element", torch.arange(1.0, 9.0)[::2])
    yield case("a column of a matrix", torch.randn(4, 3, generator=rng)[:, 1])
    yield case("infinity and NaN", torch.tensor([float("inf"), 1.0, float("nan"), -float("inf")]))
    yield case("numbers in float64", torch.randn(5, generator=rng, dtype=torch.float64))


@masked_rows.alternative
def repeats_and_fills(row):
    rows = row.repeat(len(row), 1)
    rows.fill_diagonal_(0)
    return rows


@masked_rows.alternative
def masks_out_of_place(row):
    n = row.numel()
    return row.expand(n, n).masked_fill(torch.eye(n, dtype=torch.bool), 0)


@masked_rows.alternative
def chooses_with_where(row):
    diagonal = torch.eye(len(row), dtype=torch.bool)
    return torch.where(diagonal, torch.zeros_like(row), row)


@masked_rows.alternative
def builds_row_by_row(row):
    rows = row.new_empty(len(row), len(row))
    for i in range(len(row)):
        rows[i] = row
        rows[i, i] = 0
    return rows


@masked_rows.misconception(
    "All your rows are the same memory, that of `row`: `expand` copies nothing. So the zeros that you wrote "
    "went into `row` itself, one after the other, and showed in every row. Make the rows separate with "
    "`clone()` first."
)
def writes_into_the_expanded(row):
    rows = row.expand(len(row), len(row))
    for i in range(len(row)):
        rows[i, i] = 0
    return rows


@masked_rows.misconception(
    "You cloned the row and expanded afterwards. `row` is safe, but all rows are still one memory, so every "
    "zero shows in all of them. Expand first, then clone."
)
def clones_before_expanding(row):
    rows = row.clone().expand(len(row), len(row))
    for i in range(len(row)):
        rows[i, i] = 0
    return rows


@masked_rows.misconception(
    "You wrote into expanded rows with one whole-tensor operation. PyTorch refuses that where several "
    "elements share one place. Give every row its own memory first, with `clone()`."
)
def multiplies_in_place(row):
    rows = row.expand(len(row), len(row))
    return rows.mul_(1 - torch.eye(len(row), dtype=row.dtype))


@masked_rows.misconception(
    "You relied on `contiguous()` or `reshape` to copy. They copy only where they must, and a single "
    "expanded number is contiguous already: there you wrote into `row`. `clone()` always copies."
)
def relies_on_contiguous(row):
    return row.expand(len(row), len(row)).contiguous().fill_diagonal_(0)


@masked_rows.misconception(
    "You put the zeros in by arithmetic, by a product with a mask or by a difference. Infinity times 0, and "
    "infinity minus infinity, are NaN. Write the zeros, or choose with `torch.where`."
)
def multiplies_by_a_mask(row):
    return row * ~torch.eye(len(row), dtype=torch.bool)


@masked_rows.misconception(
    "Your columns are `row`, not your rows. `row[:, None]` is a column, which is expanded to the right; a "
    "row of the result is `row` itself, so expand it downwards."
)
def makes_columns(row):
    return row[:, None].expand(-1, len(row)).clone().fill_diagonal_(0)


@masked_rows.misconception(
    "You kept the diagonal and cleared the rest. It is the other way round: each row is `row`, except for a "
    "zero on the diagonal."
)
def keeps_only_the_diagonal(row):
    return torch.diag(row)


@masked_rows.misconception(
    "Your result is float32 whatever `row` is: `torch.zeros` and `torch.empty` use the default dtype. Take "
    "the dtype from the row: `row.new_zeros(n, n)`."
)
def forgets_the_dtype(row):
    rows = torch.zeros(len(row), len(row))
    rows[:] = row
    return rows.fill_diagonal_(0)


# ---- repeat_mask -------------------------------------------------------------------------------------------

repeat_mask = Exercise(
    reference.repeat_mask,
    title="One mask for all heads",
    objective="tensors.broadcasting",
    difficulty=1,
    minutes=5,
    points=1,
    observes=[observe.value()],
    hints=(
        "Write down the order of the rows when (batch, n_heads) becomes one dimension: which changes "
        "faster, the sequence or the head?",
        "The heads of one sequence are neighbors, so each row of the mask is repeated in place: s0 s0 s1 "
        "s1, not s0 s1 s0 s1.",
        "`repeat_interleave` along dimension 0 does it; or add a dimension with `mask[:, None]`, expand it "
        "to the heads and flatten.",
    ),
    why="Flattening (batch, n_heads) lets the head change fastest, so the copies of one mask stand next to "
    "each other. `repeat_interleave` repeats every row in place; `repeat` lays the whole mask out again and "
    "again, which would give sequence 0 the padding of sequence 1.",
)


@repeat_mask.cases
def _(rng):
    yield case("two sequences, two heads", torch.tensor([[1, 1], [1, 0]]), 2)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    yield case("two sequences of three steps, three heads", mask, 3)
    yield case("three sequences of two steps", torch.tensor([[1, 2], [3, 4], [5, 6]]), 2)
    yield case("one head", torch.tensor([[True, False], [True, True]]), 1)
    yield case("one sequence", torch.tensor([[True, False, True]]), 4)
    yield case("a mask that is a transpose", torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]).t(), 3)
    yield case("random bools", torch.rand(4, 5, generator=rng) > 0.5, 3)
    yield case("a mask to be added to scores", torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), 2)


@repeat_mask.alternative
def expands_and_flattens(mask, n_heads):
    return mask[:, None].expand(-1, n_heads, -1).flatten(0, 1)


@repeat_mask.alternative
def picks_rows_by_number(mask, n_heads):
    return mask[torch.arange(len(mask) * n_heads) // n_heads]


@repeat_mask.alternative
def stacks_a_new_dimension(mask, n_heads):
    return torch.stack([mask] * n_heads, dim=1).reshape(-1, mask.shape[1])


@repeat_mask.alternative
def lists_the_rows(mask, n_heads):
    return torch.stack([row for row in mask for _ in range(n_heads)])


@repeat_mask.misconception(
    "You laid the whole mask out once per head: s0 s1 s0 s1. In a flattened (batch, n_heads) the heads of "
    "one sequence are neighbors: s0 s0 s1 s1. So one sequence got the padding of another."
)
def tiles_the_mask(mask, n_heads):
    return mask.repeat(n_heads, 1)


@repeat_mask.misconception(
    "You called `repeat_interleave` without a dimension, or flattened the result: it then has one dimension "
    "and repeats every single element. Name the dimension: `dim=0`."
)
def interleaves_every_element(mask, n_heads):
    return mask.repeat_interleave(n_heads)


@repeat_mask.misconception(
    "You repeated each step instead of each sequence. The steps are dimension 1, the sequences dimension 0."
)
def repeats_the_steps(mask, n_heads):
    return mask.repeat_interleave(n_heads, dim=1)


@repeat_mask.misconception(
    "You kept the heads as a dimension of their own: (batch, n_heads, seq). That is the layout to prefer "
    "with broadcasting; here batch and heads are to be one dimension, so flatten the two."
)
def keeps_the_heads_apart(mask, n_heads):
    return mask[:, None].expand(-1, n_heads, -1)


@repeat_mask.misconception(
    "You expanded (batch, seq) to (batch * n_heads, seq). `expand` stretches a size of 1 and no other. Add "
    "a dimension of size 1 first, or repeat."
)
def expands_the_batch(mask, n_heads):
    return mask.expand(len(mask) * n_heads, -1)


@repeat_mask.misconception(
    "You changed the dtype to float. A bool mask has to stay bool: attention reads True and False as keep "
    "and drop, and float numbers as something to add to the scores."
)
def turns_it_into_floats(mask, n_heads):
    return mask.repeat_interleave(n_heads, dim=0).float()


# ---- zero_first_column_ ------------------------------------------------------------------------------------

zero_first_column_ = Exercise(
    reference.zero_first_column_,
    title="Assign under a mask",
    objective="tensors.aliasing",
    difficulty=1,
    minutes=6,
    points=1,
    observes=[observe.value()],
    hints=(
        "Does `x[rows]` share the storage of `x`? Try `same_storage`. What then happens to a value written "
        "into `x[rows][:, 0]`?",
        "Only the last pair of brackets of an assignment writes; everything before it reads, and reading "
        "with a mask copies. So name rows and column in one pair of brackets.",
        "Assign 0 to `x[..., ...]` with the mask in the first place and the column in the second, and "
        "return `x`.",
    ),
    why="`x[rows, 0] = 0` is one indexing operation, which writes into `x`. `x[rows][:, 0] = 0` reads "
    "`x[rows]` first, and indexing with a mask has to copy since its elements lie at no regular distance; "
    "the zeros go into that copy and vanish with it. `x[:, 0][rows] = 0` works as well: a basic slice "
    "first, the mask last.",
)


@zero_first_column_.scenario
def write_in_place(answer, x, rows):
    return change_in_place(answer, x, rows)


@zero_first_column_.cases
def _(rng):
    yield case("the second of two rows", torch.arange(1.0, 7.0).view(2, 3), torch.tensor([False, True]))
    yield case("the first of three rows", torch.ones(3, 2), torch.tensor([True, False, False]))
    yield case("two of three rows", torch.arange(1, 10).view(3, 3), torch.tensor([False, True, True]))
    yield case("a transpose", torch.arange(1, 7).view(2, 3).t(), torch.tensor([True, False, True]))
    first_two = torch.tensor([True, True, False])
    yield case("some columns of a wider matrix", torch.arange(1, 13).view(3, 4)[:, 1:3], first_two.clone())
    yield case("a single column", torch.arange(1, 5).view(4, 1), torch.tensor([False, True, False, True]))
    yield case("no row", torch.ones(2, 3), torch.tensor([False, False]))
    yield case("every row", torch.ones(2, 3), torch.tensor([True, True]))
    inf, nan = float("inf"), float("nan")
    yield case("infinity and NaN", torch.tensor([[inf, nan], [nan, 1.0], [-inf, nan]]), first_two.clone())
    yield case("random rows", torch.randn(6, 4, generator=rng), torch.rand(6, generator=rng) > 0.4)


@zero_first_column_.alternative
def slices_first_and_masks_last(x, rows):
    x[:, 0][rows] = 0
    return x


@zero_first_column_.alternative
def fills_the_masked_column(x, rows):
    x.select(1, 0).masked_fill_(rows, 0)
    return x


@zero_first_column_.alternative
def goes_through_the_rows(x, rows):
    for i, selected in enumerate(rows.tolist()):
        if selected:
            x[i, 0] = 0
    return x


@zero_first_column_.alternative
def puts_by_row_number(x, rows):
    numbers = rows.nonzero().flatten()
    x[numbers, torch.zeros_like(numbers)] = 0
    return x


@zero_first_column_.alternative
def writes_the_column_back(x, rows):
    x[:, 0] = torch.where(rows, torch.zeros_like(x[:, 0]), x[:, 0])
    return x


@zero_first_column_.misconception(
    "`x` is unchanged. Indexing with a mask copies, so whatever is written after `x[rows]` goes into a "
    "temporary copy. Put the mask and the column into one pair of brackets."
)
def writes_into_a_copy(x, rows):
    x[rows][:, 0] = 0
    return x


@zero_first_column_.misconception(
    "You returned the selected rows, changed as they should be: but they are a copy, and `x` is as it was. "
    "Write into `x` in one indexing operation."
)
def returns_the_copy(x, rows):
    selected = x[rows]
    selected[:, 0] = 0
    return selected


@zero_first_column_.misconception(
    "You cleared the whole selected rows. A mask alone selects rows with all of their columns; add the "
    "column: `x[rows, 0]`."
)
def clears_whole_rows(x, rows):
    x[rows] = 0
    return x


@zero_first_column_.misconception(
    "You cleared the first column in every row. Only the rows where the mask is True are selected."
)
def ignores_the_mask(x, rows):
    x[:, 0] = 0
    return x


@zero_first_column_.misconception(
    "You cleared the rows that are not selected. True in the mask means: this row."
)
def inverts_the_mask(x, rows):
    x[~rows, 0] = 0
    return x


@zero_first_column_.misconception(
    "You turned the mask into integers and indexed with those. They are row numbers then: False is row 0 "
    "and True is row 1. A mask selects only while it is bool."
)
def reads_the_mask_as_numbers(x, rows):
    x[rows.long(), 0] = 0
    return x


@zero_first_column_.misconception(
    "You multiplied the column by the mask. Infinity and NaN times 0 are NaN. Assign the zeros."
)
def multiplies_by_the_mask(x, rows):
    x[:, 0] *= ~rows
    return x


@zero_first_column_.misconception(
    "You returned a new tensor with the right values, and `x` itself is unchanged. The underscore in the "
    "name promises a change in place."
)
def works_on_a_clone(x, rows):
    result = x.clone()
    result[rows, 0] = 0
    return result


@zero_first_column_.misconception(
    "`x` is as it should be, but your function returned None. Return `x` at the end, as PyTorch's own "
    "in-place methods do."
)
def zeroes_and_returns_nothing(x, rows):
    x[rows, 0] = 0


# ---- save_compact ------------------------------------------------------------------------------------------

save_compact = Exercise(
    reference.save_compact,
    title="A small file for a small tensor",
    objective="tensors.saving",
    difficulty=2,
    minutes=6,
    points=2,
    observes=[observe.value()],
    hints=(
        "Save `torch.zeros(1_000_000)[:10]` and look at the size of the file. What does `torch.save` write "
        "besides the ten numbers?",
        "Give the numbers a storage of their own before you save. Not every method that sounds like a copy "
        "makes one: `contiguous()` does nothing for a slice that is contiguous already.",
        "Pass `tensor.clone()` to `torch.save`, together with the file.",
    ),
    why="`torch.save` writes the whole storage behind a view, so that tensors which share one still share "
    "it after loading. A clone has a storage with its own elements and nothing else. `contiguous()` returns "
    "the tensor itself where it is contiguous, so a slice of rows keeps its large storage.",
)


@save_compact.scenario
def save_and_load(answer, tensor):
    file = io.BytesIO()
    answer(tensor, file)
    if file.closed:
        return {"loaded": "the file was closed", "bytes too many": None}
    loaded = load(file.getvalue())
    if not isinstance(loaded, Tensor):
        return {"loaded": loaded, "bytes too many": None}
    stored = loaded.untyped_storage().nbytes()
    return {"loaded": loaded, "bytes too many": max(0, stored - tensor.numel() * tensor.element_size())}


def load(content: bytes) -> Any:
    """What `torch.load` makes of a file with this content, or how it fails."""
    try:
        return torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # an odd file may break the unpickler in any way
        return f"torch.load raised {type(error).__name__}"


@save_compact.cases
def _(rng):
    yield case("three numbers of a hundred", torch.arange(100)[2:5])
    yield case("a tensor that is all of its storage", torch.tensor([1.0, 2.0, 3.0]))
    yield case("the first rows of a table", torch.randn(500, 2, generator=rng)[:2])
    yield case("a column of a table", torch.randn(100, 3, generator=rng)[:, 1])
    yield case("a transpose", torch.randn(2, 3, generator=rng).t())
    yield case("a row, expanded", torch.arange(3.0).expand(4, 3))
    yield case("one number of a hundred", torch.arange(100.0)[7])
    yield case("numbers in float64", torch.randn(100, generator=rng, dtype=torch.float64)[10:14])
    yield case("numbers in bfloat16", torch.randn(100, generator=rng).bfloat16()[10:14])
    yield case("bools", (torch.rand(100, generator=rng) > 0.5)[90:])


@save_compact.alternative
def copies_into_a_new_tensor(tensor, file):
    torch.save(torch.empty_like(tensor).copy_(tensor), file)


@save_compact.alternative
def clones_contiguously(tensor, file):
    torch.save(tensor.detach().clone(memory_format=torch.contiguous_format), file)


@save_compact.alternative
def writes_bytes_itself(tensor, file):
    buffer = io.BytesIO()
    torch.save(torch.cat([tensor.reshape(-1)]).reshape(tensor.shape), buffer)
    file.write(buffer.getvalue())


@save_compact.alternative
def forces_a_copy_with_to(tensor, file):
    torch.save(tensor.to(tensor.device, copy=True), file)


@save_compact.misconception(
    "What you saved still stands on the whole storage. `torch.save` writes the storage behind a view, not "
    "only the elements that the view shows; slicing again, `detach()` and even `copy.deepcopy` keep it. "
    "`clone()` makes a new one."
)
def saves_the_view(tensor, file):
    torch.save(tensor, file)


@save_compact.misconception(
    "You relied on `contiguous()`, or on another call that copies only where it must. A slice of rows is "
    "contiguous, so you got the same tensor with the same large storage. `clone()` always copies."
)
def makes_it_contiguous(tensor, file):
    torch.save(tensor.contiguous(), file)


@save_compact.misconception(
    "You saved a list of numbers. It loads as a list: shape and dtype are lost. Save a tensor, cloned."
)
def saves_a_list(tensor, file):
    torch.save(tensor.tolist(), file)


@save_compact.misconception(
    "You rebuilt the tensor from a Python list. Python has one kind of float, so the dtype is lost: float64 "
    "and bfloat16 come back as float32. `clone()` keeps the dtype."
)
def rebuilds_from_a_list(tensor, file):
    torch.save(torch.tensor(tensor.tolist()), file)


@save_compact.misconception(
    "You saved a NumPy array. `torch.load` with `weights_only=True` refuses to unpickle one, and NumPy has "
    "no bfloat16. Save a tensor."
)
def saves_an_array(tensor, file):
    torch.save(tensor.numpy().copy(), file)


@save_compact.misconception(
    "You put the tensor into a dict. `torch.load` gives the dict back, where a tensor was asked for."
)
def saves_a_dict(tensor, file):
    torch.save({"tensor": tensor.clone()}, file)


@save_compact.misconception(
    "You tried to open `file`. It is an open file already, not a path: hand it to `torch.save` as it is."
)
def opens_the_file(tensor, file):
    with open(file, "wb") as opened:
        torch.save(tensor.clone(), opened)


# ---- prepare_batch -----------------------------------------------------------------------------------------

prepare_batch = Exercise(
    reference.prepare_batch,
    title="Move a nested batch",
    objective="tensors.devices",
    difficulty=3,
    minutes=15,
    points=3,
    observes=[observe.value()],
    hints=(
        "What should happen to a single tensor? Write that first. Then: what is a dict of things, if you "
        "can already prepare each thing?",
        "One function with four kinds of `batch`: a tensor, a dict, a list, a namedtuple, and everything "
        "else unchanged. The containers call the function again for each item. `is_floating_point()` "
        "decides who gets the dtype.",
        "Return `batch.to(device, dtype)` for a floating tensor and `batch.to(device)` for another; build "
        "`{key: prepare_batch(...)}` for a dict, a list likewise, and `type(batch)(*items)` for a "
        "namedtuple, which `hasattr(batch, '_fields')` finds.",
    ),
    why="A nested structure is walked by a function that calls itself. `Tensor.to` returns a new tensor, so "
    "its result has to be kept; labels and masks must not become floats, since losses and indexing need "
    "them as they are. A namedtuple takes its fields as separate arguments, unlike other tuples.",
)


class Pair(NamedTuple):
    """A named tuple as datasets return them."""

    inputs: Any
    labels: Any


@prepare_batch.cases
def _(rng):
    floats = torch.randn(2, generator=rng)
    yield case("one tensor of floats", torch.tensor([1.0, 2.0]), "meta")
    yield case("one tensor of labels", torch.tensor([1, 2]), "meta")
    yield case("float64 to float32, on the CPU", torch.tensor([1.0, 2.0], dtype=torch.float64), "cpu")
    yield case("a mask, on the CPU", torch.tensor([True, False]), "cpu")
    yield case("labels, on the CPU", torch.tensor([1, 2]), "cpu")
    yield case("float32 to float64", floats.clone(), "cpu", torch.float64)
    yield case("a dict", {"x": torch.ones(2), "y": torch.tensor([0, 1])}, "meta")
    yield case("a list", [torch.ones(2), torch.tensor([3])], "meta")
    yield case("a named tuple", Pair(torch.ones(2), torch.tensor([0, 1])), "meta")
    named = {"x": torch.ones(2), "name": "a.png", "size": 3, "note": None}
    yield case("a dict with a name and a number", named, "meta")
    yield case("lists in a dict", {"x": [torch.ones(1), torch.ones(2)], "y": torch.tensor([1])}, "meta")
    deep = {"items": [Pair(torch.ones(1), "cat"), torch.zeros(2)]}
    yield case("a named tuple in a list in a dict", deep, "meta")
    yield case("bfloat16 and float64, on the CPU", [floats.bfloat16(), floats.double()], "cpu")
    mixed = [torch.arange(3).byte(), floats.clone()]
    yield case("bytes stay bytes, floats become float16", mixed, "cpu", torch.float16)
    turned = {"x": -torch.arange(6.0).view(2, 3).t(), "y": torch.tensor([-1, 2])}
    yield case("a transpose and negative numbers, on the CPU", turned, "cpu", torch.float64)
    yield case(
        "a torch.device and a dtype by name",
        {"x": floats.double()},
        torch.device("meta"),
        dtype=torch.bfloat16,
    )


@prepare_batch.alternative
def maps_over_the_tree(batch, device, dtype=torch.float32):
    def move(item):
        if not torch.is_tensor(item):
            return item
        return item.to(device=device, dtype=dtype) if item.dtype.is_floating_point else item.to(device)

    return pytree.tree_map(move, batch)


@prepare_batch.alternative
def moves_and_casts_apart(batch, device, dtype=torch.float32):
    if isinstance(batch, Tensor):
        moved = batch.to(device)
        return moved.to(dtype) if torch.is_floating_point(moved) else moved
    if isinstance(batch, dict):
        return dict(zip(batch, (moves_and_casts_apart(value, device, dtype) for value in batch.values())))
    if isinstance(batch, (list, tuple)):
        items = [moves_and_casts_apart(item, device, dtype) for item in batch]
        return batch._make(items) if hasattr(batch, "_make") else type(batch)(items)
    return batch


@prepare_batch.alternative
def builds_new_containers_step_by_step(batch, device, dtype=torch.float32):
    def inner(item):
        return builds_new_containers_step_by_step(item, device, dtype)

    if isinstance(batch, Tensor):
        return batch.to(device=device, dtype=dtype if batch.is_floating_point() else None)
    if hasattr(batch, "_asdict"):
        return type(batch)(**inner(batch._asdict()))
    prepared = copy.copy(batch)
    if isinstance(batch, (dict, list)):
        for key in batch if isinstance(batch, dict) else range(len(batch)):
            prepared[key] = inner(batch[key])
    return prepared


def walk(batch: Any, move: Any) -> Any:
    """`batch` with `move` applied to its tensors: the right way through the containers."""
    if isinstance(batch, Tensor):
        return move(batch)
    if isinstance(batch, dict):
        return {key: walk(value, move) for key, value in batch.items()}
    if isinstance(batch, list):
        return [walk(item, move) for item in batch]
    if hasattr(batch, "_fields"):
        return type(batch)(*(walk(item, move) for item in batch))
    return batch


@prepare_batch.misconception(
    "Your tensors are where they were. `Tensor.to` returns a new tensor and leaves the old one alone, "
    "unlike `Module.to`, which moves the module itself: keep the result."
)
def discards_the_result(batch, device, dtype=torch.float32):
    def move(tensor):
        tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        return tensor

    return walk(batch, move)


@prepare_batch.misconception(
    "You cast every tensor to the floating dtype, labels and masks too. Losses and indexing need integer "
    "labels and bool masks as they are: ask `is_floating_point()` first."
)
def casts_everything(batch, device, dtype=torch.float32):
    return walk(batch, lambda tensor: tensor.to(device, dtype))


@prepare_batch.misconception(
    "You moved the tensors and left their dtype. NumPy data arrive as float64, and half-precision data may "
    "come too: floating tensors are to be in `dtype` afterwards."
)
def only_moves(batch, device, dtype=torch.float32):
    return walk(batch, lambda tensor: tensor.to(device))


@prepare_batch.misconception(
    "You looked only one level deep: what lies in a container inside a container stayed behind. Let the "
    "function call itself for every item."
)
def looks_one_level_deep(batch, device, dtype=torch.float32):
    def move(item):
        return prepare_tensor(item, device, dtype) if isinstance(item, Tensor) else item

    if isinstance(batch, Tensor):
        return move(batch)
    if isinstance(batch, dict):
        return {key: move(value) for key, value in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*map(move, batch))
    return [move(item) for item in batch]


def prepare_tensor(tensor: Tensor, device: Any, dtype: torch.dtype) -> Tensor:
    """One tensor, as it should be."""
    return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)


@prepare_batch.misconception(
    "You called tensor methods on everything that is not a container. A batch may also hold strings, "
    "numbers and None, which have no `.to`: return them as they are."
)
def takes_all_for_tensors(batch, device, dtype=torch.float32):
    if isinstance(batch, dict):
        return {key: takes_all_for_tensors(value, device, dtype) for key, value in batch.items()}
    if isinstance(batch, list):
        return [takes_all_for_tensors(item, device, dtype) for item in batch]
    if hasattr(batch, "_fields"):
        return type(batch)(*(takes_all_for_tensors(item, device, dtype) for item in batch))
    return prepare_tensor(batch, device, dtype)


@prepare_batch.misconception(
    "You built the namedtuple from one list. A namedtuple takes its fields as separate arguments: "
    "`type(batch)(*items)`, or `batch._make(items)`."
)
def hands_a_list_to_the_namedtuple(batch, device, dtype=torch.float32):
    if isinstance(batch, (list, tuple)):
        return type(batch)([hands_a_list_to_the_namedtuple(item, device, dtype) for item in batch])
    if isinstance(batch, dict):
        return {key: hands_a_list_to_the_namedtuple(value, device, dtype) for key, value in batch.items()}
    return prepare_tensor(batch, device, dtype) if isinstance(batch, Tensor) else batch


@prepare_batch.misconception(
    "Your namedtuple became a plain tuple, so `batch.labels` no longer works. Build it anew with its own "
    "type."
)
def loses_the_namedtuple(batch, device, dtype=torch.float32):
    if isinstance(batch, tuple):
        return tuple(loses_the_namedtuple(item, device, dtype) for item in batch)
    if isinstance(batch, list):
        return [loses_the_namedtuple(item, device, dtype) for item in batch]
    if isinstance(batch, dict):
        return {key: loses_the_namedtuple(value, device, dtype) for key, value in batch.items()}
    return prepare_tensor(batch, device, dtype) if isinstance(batch, Tensor) else batch


@prepare_batch.misconception(
    "You left namedtuples as they are, so the tensors in them stayed behind. They are containers too: "
    "prepare their fields and build the same type again."
)
def passes_over_namedtuples(batch, device, dtype=torch.float32):
    if isinstance(batch, dict):
        return {key: passes_over_namedtuples(value, device, dtype) for key, value in batch.items()}
    if isinstance(batch, list):
        return [passes_over_namedtuples(item, device, dtype) for item in batch]
    return prepare_tensor(batch, device, dtype) if isinstance(batch, Tensor) else batch


@prepare_batch.misconception(
    "Your floats are float32 whatever was asked for. The caller chooses with `dtype`; float32 is only its "
    "default."
)
def ignores_the_dtype(batch, device, dtype=torch.float32):
    return walk(batch, lambda tensor: prepare_tensor(tensor, device, torch.float32))


@prepare_batch.misconception(
    "You changed the dicts and lists that came in. The caller may use them again, for the next epoch say: "
    "build new ones."
)
def changes_the_containers(batch, device, dtype=torch.float32):
    if isinstance(batch, (dict, list)):
        for key in batch if isinstance(batch, dict) else range(len(batch)):
            batch[key] = changes_the_containers(batch[key], device, dtype)
        return batch
    if hasattr(batch, "_fields"):
        return type(batch)(*(changes_the_containers(item, device, dtype) for item in batch))
    return prepare_tensor(batch, device, dtype) if isinstance(batch, Tensor) else batch


@prepare_batch.misconception(
    "You cast bool masks and small integers too: your rule spares only int64. Ask `is_floating_point()`, "
    "which is true for floats and for nothing else."
)
def spares_only_int64(batch, device, dtype=torch.float32):
    return walk(batch, lambda t: t.to(device, t.dtype if t.dtype == torch.int64 else dtype))


# ---- to_numpy ----------------------------------------------------------------------------------------------

to_numpy = Exercise(
    reference.to_numpy,
    title="A NumPy array of its own",
    objective="tensors.numpy",
    difficulty=2,
    minutes=8,
    points=2,
    observes=[observe.value()],
    hints=(
        "Call `.numpy()` on a tensor that requires gradients, on a bfloat16 tensor, and on a plain one into "
        "whose array you then write. Which of the three goes wrong without an error?",
        "Leave the graph, go to the CPU, replace bfloat16 by float32, and make a copy. None of the first "
        "steps copies where there is nothing to do.",
        "`t.detach().cpu()`; if its dtype is `torch.bfloat16`, `.float()`; then `.numpy()` and a `.copy()` "
        "of the array.",
    ),
    why="`detach()` shares the storage, `cpu()` returns the tensor itself on a CPU, and `.numpy()` is a "
    "view of the same memory: without the copy, writing into the array would change the model. NumPy has no "
    "bfloat16, and float32 holds every bfloat16 number exactly.",
)


@to_numpy.scenario
def convert_and_write(answer, t):
    """What came back, and what is left of `t` after something was written into the array."""
    array = answer(t)
    facts = {"type": type(array).__name__, **array_facts(array, t)}
    if isinstance(array, np.ndarray):
        with contextlib.suppress(ValueError):  # a read-only array cannot be written, which is safe enough
            array[...] = 7
    return {**facts, "t afterwards": t.detach().clone(), "t requires grad": t.requires_grad}


def array_facts(array: Any, t: Tensor) -> dict[str, Any]:
    if not isinstance(array, np.ndarray):
        return {"dtype": None, "shape": None, "values": array}
    name = array.dtype.name
    if t.dtype == torch.bfloat16 and name in ("float32", "float64"):
        name = "float32 or float64"
    return {"dtype": name, "shape": array.shape, "values": array.tolist()}


@to_numpy.cases
def _(rng):
    yield case("two numbers", torch.tensor([1.0, 2.0]))
    yield case("a weight", torch.tensor([1.0, 2.0]).requires_grad_())
    yield case("bfloat16", torch.tensor([1.5, -2.0]).bfloat16())
    yield case("a weight in bfloat16", torch.tensor([1.5, -2.0]).bfloat16().requires_grad_())
    yield case("a result with a graph", torch.tensor([1.0, 2.0]).requires_grad_() * 2)
    yield case("a tensor without dimensions", torch.tensor(3.5))
    yield case("integers", torch.arange(3))
    yield case("bools", torch.tensor([True, False]))
    yield case("float64", torch.randn(3, generator=rng, dtype=torch.float64))
    yield case("a transpose", torch.randn(2, 3, generator=rng).t())
    yield case("a slice that starts in the middle of its storage", torch.arange(6.0)[3:])
    yield case("an expanded row", torch.arange(3.0).expand(2, 3))


@to_numpy.alternative
def clones_the_tensor(t):
    t = t.detach().cpu().clone()
    return (t.float() if t.dtype == torch.bfloat16 else t).numpy()


@to_numpy.alternative
def lets_numpy_copy(t):
    with torch.no_grad():
        t = t.cpu().double() if t.dtype is torch.bfloat16 else t.cpu()
    return np.array(t.detach())


@to_numpy.alternative
def forces_the_conversion(t):
    dtype = torch.float32 if t.dtype == torch.bfloat16 else t.dtype
    return t.to("cpu", dtype).numpy(force=True).copy()


@to_numpy.misconception(
    "You called `.numpy()` on the tensor as it is. One that requires gradients refuses, and one that does "
    "not shares its memory with the array. `detach()` first, and copy."
)
def calls_numpy(t):
    return t.numpy()


@to_numpy.misconception(
    "A tensor that requires gradients cannot become an array: NumPy would leave the graph behind without a "
    "word, so PyTorch wants you to say it, with `detach()`."
)
def forgets_to_detach(t):
    return (t.float() if t.dtype == torch.bfloat16 else t).cpu().numpy().copy()


@to_numpy.misconception(
    "Your array shares its memory with the tensor: neither `.data` nor `detach()` nor `cpu()` copies, and "
    "writing into the array changes the model. Add a `copy()` or a `clone()`."
)
def aliases_the_data(t):
    t = t.data.cpu()
    return (t.float() if t.dtype == torch.bfloat16 else t).numpy()


@to_numpy.misconception(
    "`t.detach().cpu().numpy()` copies nothing on a CPU: writing into the array changes the tensor. And "
    "NumPy has no bfloat16. Convert that one to float32, and make a copy."
)
def aliases_after_detach(t):
    return t.detach().cpu().numpy()


@to_numpy.misconception(
    "Your copy is safe, but bfloat16 tensors raise a TypeError: NumPy has no such dtype. Turn them into "
    "float32, which holds every bfloat16 number exactly."
)
def has_no_answer_for_bfloat16(t):
    return t.detach().cpu().numpy().copy()


@to_numpy.misconception(
    "You returned a Python list, or for a tensor without dimensions a number. An array was asked for."
)
def returns_a_list(t):
    return t.tolist()


@to_numpy.misconception(
    "Everything became float32: integers, bools and float64 lost their dtype. Convert only what NumPy does "
    "not know, bfloat16."
)
def turns_all_into_float32(t):
    return t.detach().cpu().float().numpy().copy()


@to_numpy.misconception(
    "You built the array from a Python list, which knows no dtypes: float32 became float64. `.numpy()` "
    "keeps the dtype."
)
def builds_from_a_list(t):
    return np.array(t.tolist())


@to_numpy.misconception(
    "You switched gradients off on the caller's tensor, so a weight would no longer be trained. `detach()` "
    "returns another tensor without gradients and leaves this one alone."
)
def switches_gradients_off(t):
    t.detach_()
    return (t.float() if t.dtype == torch.bfloat16 else t).cpu().numpy().copy()


# ---- questions ---------------------------------------------------------------------------------------------

view_write = Question(
    "view_write",
    objective="tensors.views",
    text="""What does this print?

```python
x = torch.arange(12)
y = x.view(3, 4)
y[0, 0] = 99
print(x[0])
```""",
    choices={"a": "`tensor(0)`", "b": "`tensor(99)`", "c": "an error"},
    answer="b",
    replies={
        "a": "For `x[0]` to stay 0, `view` would have to copy the twelve numbers. It copies nothing: `y` "
        "has its own shape and strides over the storage of `x`.",
        "b": "Right. `x` and `y` are two descriptions of one storage, so a write through one is seen "
        "through the other.",
        "c": "Writing through a view is allowed. There would be an error if `view` could not describe the "
        "new shape by strides, or if a leaf that requires gradients were changed in place.",
    },
)

slice_offset = Question(
    "slice_offset",
    objective="tensors.storage",
    text="""What does this print?

```python
y = torch.arange(12)[3:8:2]
print(y.storage_offset(), y.stride())
```""",
    choices={"a": "`0 (1,)`", "b": "`3 (1,)`", "c": "`3 (2,)`", "d": "`24 (16,)`"},
    answer="c",
    replies={
        "a": "That would be a tensor with a storage of its own, holding 3, 5 and 7 side by side. A slice is "
        "a view: the twelve numbers stay where they are, and `y` only says where to begin and how far to "
        "step.",
        "b": "The beginning is right. With a stride of 1 the elements would be 3, 4 and 5; the step of the "
        "slice has to be kept somewhere, and the stride is that place.",
        "c": "Right. The first element lies at position 3 of the storage, and the next one is two places "
        "further.",
        "d": "These are the same distances in bytes, 8 for each int64 number. That is how NumPy counts "
        "strides; PyTorch counts elements.",
    },
)

transpose_stride = Question(
    "transpose_stride",
    objective="tensors.strides",
    text="""`torch.randn(2, 3, 4)` has the strides `(12, 4, 1)`. What does this print?

```python
x = torch.randn(2, 3, 4)
print(x.transpose(0, 2).stride())
```""",
    choices={"a": "`(12, 4, 1)`", "b": "`(1, 4, 12)`", "c": "`(6, 2, 1)`"},
    answer="b",
    replies={
        "a": "The shape becomes (4, 3, 2). With unchanged strides, position 3 of the first dimension would "
        "lie at 36, beyond the 24 elements. Sizes and strides move together.",
        "b": "Right. A transpose swaps two sizes and the two strides that belong to them. Nothing else "
        "happens, and nothing is copied.",
        "c": "Those are the strides of a new, contiguous (4, 3, 2) tensor. To get them the elements would "
        "have to be put into another order, which is a copy: `x.transpose(0, 2).contiguous()`.",
    },
)

view_refuses = Question(
    "view_refuses",
    objective="tensors.contiguity",
    text="""What happens in the last line?

```python
x = torch.arange(12).view(3, 4)
t = x.t()
t.view(12)
```""",
    choices={
        "a": "it gives the columns of `x` one after the other: 0, 4, 8, 1, ...",
        "b": "it gives the storage in its order: 0, 1, 2, 3, ...",
        "c": "an error",
    },
    answer="c",
    replies={
        "a": "That is the right order for a flattened transpose, and `t.reshape(12)` gives it. But in the "
        "storage those elements lie 4 apart and then jump back, which one stride cannot describe; `reshape` "
        "copies, and `view` never does.",
        "b": "Then `view` would undo the transpose without being asked. It keeps the order in which `t` is "
        "read, or refuses.",
        "c": "Right. No single stride walks through 0, 4, 8, 1, 5, ... in the storage, and a view is not "
        "allowed to copy. The message names `reshape`, which is.",
    },
)

reshape_copy = Question(
    "reshape_copy",
    objective="tensors.contiguity",
    text="""What does this print?

```python
t = torch.arange(12).view(3, 4).t()
r = t.reshape(-1)
r[0] = 777
print(t[0, 0])
```""",
    choices={"a": "`tensor(0)`", "b": "`tensor(777)`", "c": "an error"},
    answer="a",
    replies={
        "a": "Right. A flattened transpose needs another order of the elements, so `reshape` copied them, "
        "without a word, and the 777 is in the copy.",
        "b": "Then `r` would have to be a view of `t`. With `torch.arange(12).view(3, 4)` it would be one; "
        "for the transpose no stride fits, and `reshape` falls back to a copy.",
        "c": "`view(-1)` would raise here. `reshape` does not: where it cannot make a view, it copies.",
    },
)

contiguous_noop = Question(
    "contiguous_noop",
    objective="tensors.contiguity",
    text="""What does this print?

```python
x = torch.zeros(3, 4)
y = x.contiguous()
y[0, 0] = 5
print(x[0, 0])
```""",
    choices={"a": "`tensor(0.)`", "b": "`tensor(5.)`", "c": "an error"},
    answer="b",
    replies={
        "a": "Then `contiguous()` would have to copy in every case. It copies only a tensor that is not "
        "contiguous, and this one is. For a copy in every case there is `clone()`.",
        "b": "Right. `x` is contiguous already, so `x.contiguous()` is `x` itself.",
        "c": "Nothing here is refused: `y` is an ordinary tensor. More than that, it is `x`.",
    },
)

expand_stride = Question(
    "expand_stride",
    objective="tensors.broadcasting",
    text="""What does this print?

```python
row = torch.zeros(4)
grid = row.expand(3, 4)
grid[0, 1] = 5
print(grid.sum())
```""",
    choices={"a": "`tensor(5.)`", "b": "`tensor(15.)`", "c": "an error"},
    answer="b",
    replies={
        "a": "That needs three rows with memory of their own. `expand` copies nothing: it gives the new "
        "dimension stride 0, so all three rows are `row`. With `row.repeat(3, 1)` you would be right.",
        "b": "Right. The stride of the new dimension is 0: three rows on paper, one in memory. A single "
        "write shows in all of them, and in `row`.",
        "c": "For a whole-tensor write, such as `grid += 1`, PyTorch does refuse. A write to one element "
        "goes through, which is what makes this mistake quiet.",
    },
)

broadcast_loss = Question(
    "broadcast_loss",
    objective="tensors.broadcasting",
    text="""The predictions are perfect. What does this print?

```python
prediction = torch.tensor([[1.], [2.], [3.]])
target = torch.tensor([1., 2., 3.])
print(((prediction - target) ** 2).mean())
```""",
    choices={"a": "`tensor(0.)`", "b": "`tensor(1.3333)`", "c": "an error, since the shapes differ"},
    answer="b",
    replies={
        "a": "It would be 0 if each prediction met its own target. But (3, 1) and (3,) broadcast to (3, 3): "
        "each prediction meets all three targets.",
        "b": "Right. The difference has the shape (3, 3), with zeros only on its diagonal; the nine squares "
        "sum to 12, and 12 / 9 is 1.3333. No error, and a loss that is smallest when every prediction is "
        "the mean of the targets.",
        "c": "An error would be welcome. But (3, 1) and (3,) do broadcast: the vector counts as (1, 3), and "
        "both are stretched to (3, 3).",
    },
)

zero_size_broadcast = Question(
    "zero_size_broadcast",
    objective="tensors.broadcasting",
    text="""What does this print?

```python
print((torch.ones(0) + torch.ones(1)).shape)
```""",
    choices={"a": "`torch.Size([0])`", "b": "`torch.Size([1])`", "c": "an error"},
    answer="a",
    replies={
        "a": "Right. A size of 1 is stretched to the size it meets, and here that is 0. So the larger of "
        "two sizes is not the rule.",
        "b": "That is the larger of the two sizes, which is the answer as long as neither is 0. The rule "
        "is: a 1 gives way to the other size. And what should the single sum be, with nothing to add to?",
        "c": "0 against 2 would be an error. A size of 1 fits any other, 0 too.",
    },
)

mask_assign = Question(
    "mask_assign",
    objective="tensors.aliasing",
    text="""What does this print?

```python
x = torch.ones(3, 5)
rows = torch.tensor([False, True, True])
x[rows][:, 0] = 0
print(x.sum())
```""",
    choices={"a": "`tensor(15.)`", "b": "`tensor(13.)`", "c": "`tensor(5.)`", "d": "an error"},
    answer="a",
    replies={
        "a": "Right. `x[rows]` is a copy, since no strides describe an arbitrary choice of rows. The zeros "
        "were written into this copy, which nobody keeps. To reach `x`, one pair of brackets has to say it all.",
        "b": "That is what was meant, and what a single pair of brackets would do. Here the first brackets read, and "
        "reading with a mask copies; only the last brackets write, into the copy.",
        "c": "Then both selected rows would be cleared entirely, as `x[rows] = 0` does. Here a `[:, 0]` "
        "follows, and it changes what is written, and into what.",
        "d": "There is no error, and that is the trap: writing into a temporary copy is allowed, it only "
        "has no effect.",
    },
)

save_size = Question(
    "save_size",
    objective="tensors.saving",
    text="""How large is the file, roughly?

```python
large = torch.zeros(1_000_000)
torch.save(large[:10], file)
```""",
    choices={"a": "40 bytes", "b": "1.5 kilobytes", "c": "4 megabytes"},
    answer="c",
    replies={
        "a": "Ten float32 numbers take 40 bytes, but a file also says what is in it: format, dtype, shape, "
        "strides. And then there is what it stores besides the ten numbers.",
        "b": "That is the size for ten numbers with a storage of their own: 40 bytes and the description. "
        "This slice is a view, and `torch.save` writes the storage behind it.",
        "c": "Right. `torch.save` writes the whole storage of a million numbers, and with it the note that "
        "this tensor shows ten of them. `contiguous()` would not help: the slice is contiguous already.",
    },
)

to_result = Question(
    "to_result",
    objective="tensors.devices",
    text="""What does this print?

```python
x = torch.zeros(3)
x.to(torch.float64)
print(x.dtype)
```""",
    choices={"a": "`torch.float32`", "b": "`torch.float64`", "c": "an error"},
    answer="a",
    replies={
        "a": "Right. `Tensor.to` returns a new tensor, and this one was thrown away. Write `x = x.to(...)`.",
        "b": "Then `to` would have to change `x` itself. `Module.to` does change its module, which is where "
        "the habit comes from; `Tensor.to` returns another tensor.",
        "c": "Calling `to` without keeping the result is allowed, and useless.",
    },
)

cpu_alias = Question(
    "cpu_alias",
    objective="tensors.numpy",
    text="""What does this print on a machine without a GPU?

```python
weight = torch.ones(3, requires_grad=True)
array = weight.detach().cpu().numpy()
array[0] = 42
print(weight[0].item())
```""",
    choices={"a": "`1.0`", "b": "`42.0`", "c": "an error"},
    answer="b",
    replies={
        "a": "One of the three calls would have to copy. On a CPU none does: `detach` shares the storage, "
        "`cpu()` returns the same tensor when it is there already, and `numpy()` looks at the same memory. "
        "From a GPU, `cpu()` would have copied.",
        "b": "Right. All three share one memory, so you have changed the weight without autograd noticing. "
        "Whoever wants an independent array has to ask for it.",
        "c": "`weight.numpy()` would raise, since the weight requires gradients. `detach()` answers that "
        "objection, and takes its protection away.",
    },
)

numpy_dtype = Question(
    "numpy_dtype",
    objective="tensors.numpy",
    text="""What does this print?

```python
data = torch.from_numpy(np.ones(3))
print((data * torch.ones(3)).dtype)
```""",
    choices={"a": "`torch.float32`", "b": "`torch.float64`", "c": "an error"},
    answer="b",
    replies={
        "a": "float32 is the default of PyTorch: `torch.ones(3)` has it. But NumPy makes float64, "
        "`from_numpy` keeps it, and where two floating dtypes meet, the larger one wins.",
        "b": "Right. NumPy's float64 came along through `from_numpy` and then won over float32. Twice the "
        "memory, and slower: convert once, at the door, with `.float()`.",
        "c": "A matrix product, `data @ torch.ones(3)`, does refuse two dtypes. Elementwise operations "
        "convert to the larger one instead.",
    },
)
