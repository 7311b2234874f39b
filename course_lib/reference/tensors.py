"""The answers of notebook 01: tensors.

Names of sizes: batch sequences, seq steps in each, dim numbers per step, n_heads attention heads.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor


def flat_index(index: tuple[int, ...], stride: tuple[int, ...], storage_offset: int) -> int:
    """Return the position in the storage of the element at `index`.

    `index` and `stride` are tuples with one entry per dimension.
    `storage_offset` is the position of the tensor's first element.
    All of them count elements, not bytes, as `Tensor.stride()` and `Tensor.storage_offset()` do.
    No index is negative; a stride may be 0.
    A tensor without dimensions has the index `()`: its element lies at `storage_offset`.
    The result is a plain `int`.
    """
    return storage_offset + sum(i * s for i, s in zip(index, stride))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a new, contiguous tensor of this shape.

    `shape` is a tuple of sizes, none of them negative.
    The result is a tuple of the same length, `()` for `()`.
    Strides count elements, not bytes, and the last dimension has stride 1.
    Where a size is 0, the strides are those of the same shape with 1 in its place, as in PyTorch.
    Write the rule in plain Python: calls of torch and NumPy are not allowed here.
    """
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def same_storage(a: Tensor, b: Tensor) -> bool:
    """Return True if `a` and `b` have the same storage, whether or not their elements overlap.

    Views share the storage of their base: slices (two slices without a common element as well), transposes,
    expanded and detached tensors, the same bits read as another dtype.
    Equal numbers in two storages are not shared.
    If `a` or `b` has no elements, the answer is False.
    """
    if a.numel() == 0 or b.numel() == 0:
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def reshape_copies(t: Tensor, shape: tuple[int, ...]) -> bool:
    """Return True if `t.reshape(shape)` has to copy the elements of `t`, False if it is a view of `t`.

    `t` may have any strides, and has at least one element.
    `shape` is a tuple that fits the number of elements; one of its sizes may be -1.
    `t` is not changed.
    """
    try:
        t.view(shape)
    except RuntimeError:
        return True
    return False


def clear_(x: Tensor) -> Tensor:
    """Set every element of `x` to zero, in place, and return `x` itself.

    `x` has at least one dimension and any strides; no two of its elements share a place in the storage.
    Its elements may be anything, infinity and NaN as well.
    The rest of its storage, which `x` does not show, is left as it is.
    """
    return x.zero_()


def sliding_windows(x: Tensor, size: int, step: int) -> Tensor:
    """Return the windows of a 1-D tensor as a view: (n,) -> (n_windows, size).

    Window `i` holds the `size` elements of `x` from number `i * step` on.
    There are as many windows as fit completely: `n_windows = (n - size) // step + 1`.
    `x` may have any stride and any storage offset; `1 <= size <= n` and `step >= 1`.
    Nothing is copied: the result has the storage of `x`, and gradients flow back through it.
    Any way to make such a view is welcome, `Tensor.unfold` too.
    """
    n_windows = (len(x) - size) // step + 1
    return x.as_strided((n_windows, size), (step * x.stride(0), x.stride(0)))


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Split the last dimension among the heads: (batch, seq, dim) -> (batch, n_heads, seq, dim // n_heads).

    Head `h` gets the features from `h * (dim // n_heads)` up to those of head `h + 1`, at every step.
    `n_heads` divides `dim`; `x` may have any strides.
    Nothing is copied: the result is a view of `x`, and gradients flow back through it.
    """
    batch, seq, dim = x.shape
    return x.view(batch, seq, n_heads, dim // n_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Put the heads back side by side: (batch, n_heads, seq, head_dim) -> (batch, seq, n_heads * head_dim).

    This undoes `split_heads`: each step has the features of head 0, then those of head 1, and so on.
    `x` may have any strides. The result may be a copy or a view; gradients flow back through it.
    """
    return x.transpose(1, 2).flatten(start_dim=2)


def time_major(x: Tensor) -> Tensor:
    """Put the steps first: (batch, seq, dim) -> (seq, batch, dim), with `result[t, b] == x[b, t]`.

    `x` may have any strides, and keeps its own shape.
    Nothing is copied: the result is a view of `x`, and gradients flow back through it.
    """
    return x.transpose(0, 1)


def broadcast_shape(s1: tuple[int, ...], s2: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which two shapes broadcast, as a tuple.

    The shapes are aligned at their last dimensions; a missing dimension counts as size 1.
    Two sizes fit if they are equal, or if one of them is 1: it is stretched to the other. So 1 and 0 give 0.
    Raise ValueError if two sizes do not fit.
    Write the rule in plain Python: calls of torch and NumPy are not allowed here.
    """
    ndim = max(len(s1), len(s2))
    padded1 = (1,) * (ndim - len(s1)) + s1
    padded2 = (1,) * (ndim - len(s2)) + s2
    for a, b in zip(padded1, padded2):
        if a != b and 1 not in (a, b):
            raise ValueError(f"sizes {a} and {b} do not fit: {s1} and {s2} do not broadcast")
    return tuple(b if a == 1 else a for a, b in zip(padded1, padded2))


def mean_squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean of the `n` squared differences, as a tensor without dimensions.

    `target` has the shape (n,); `prediction` has the shape (n,) or, as it comes from a linear layer, (n, 1).
    Prediction `i` belongs to target `i`. Both have the same floating dtype, and so has the result.
    They may have any strides. Gradients flow back to `prediction`.
    """
    return (prediction.reshape(target.shape) - target).square().mean()


def masked_rows(row: Tensor) -> Tensor:
    """Return a matrix whose rows are all `row`, with zeros on the diagonal: (n,) -> (n, n).

    `row` may have any stride and hold any numbers; infinity and NaN too have a zero put in their place.
    The result has the dtype of `row` and a storage of its own. `row` is not changed.
    """
    n = len(row)
    return row.expand(n, n).clone().fill_diagonal_(0)


def repeat_mask(mask: Tensor, n_heads: int) -> Tensor:
    """Repeat each sequence's mask for its heads: (batch, seq) -> (batch * n_heads, seq).

    Row `b * n_heads + h` of the result is `mask[b]`: the order of a (batch, n_heads, ...) tensor whose first
    two dimensions were flattened. `mask` may have any strides; its dtype stays.
    """
    return mask.repeat_interleave(n_heads, dim=0)


def zero_first_column_(x: Tensor, rows: Tensor) -> Tensor:
    """Set the first column of `x` to zero in the selected rows, in place, and return `x` itself.

    `x` has the shape (n, m) and any strides; no two of its elements share a place in the storage.
    `rows` is a bool tensor of shape (n,), True where a row is selected.
    What was there may be anything, infinity and NaN as well. Every other element keeps its value.
    """
    x[rows, 0] = 0
    return x


def save_compact(tensor: Tensor, file: BinaryIO) -> None:
    """Write `tensor` to `file` so that no other elements of its storage are written with it.

    `file` is a binary file, open for writing; leave it open.
    `torch.load(file, weights_only=True)` later gives a tensor with the same values, shape and dtype, and its
    storage is no larger than `numel * element_size` bytes.
    `tensor` may be a view of a much larger storage. It does not require gradients.
    """
    torch.save(tensor.clone(), file)


def prepare_batch(batch: Any, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Any:
    """Return `batch` with every tensor on `device` and every floating tensor in `dtype`.

    `batch` is a tensor, a dict, a list or a namedtuple, nested to any depth.
    Tensors that are not floating (integers, bool) keep their dtype.
    Dicts stay dicts with the same keys, lists stay lists, a namedtuple keeps its type.
    All else (strings, numbers, None) stays as it is. The batch that came in is not changed.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, dtype if batch.is_floating_point() else batch.dtype)
    if isinstance(batch, dict):
        return {key: prepare_batch(value, device, dtype) for key, value in batch.items()}
    if isinstance(batch, list):
        return [prepare_batch(item, device, dtype) for item in batch]
    if hasattr(batch, "_fields"):
        return type(batch)(*(prepare_batch(item, device, dtype) for item in batch))
    return batch


def to_numpy(t: Tensor) -> np.ndarray:
    """Return the values of `t` as a NumPy array with memory of its own.

    `t` may be on any device, and may require gradients. It is not changed: it still requires them afterwards.
    Writing into the array does not change `t`.
    The array has the shape and the dtype of `t`.
    NumPy has no bfloat16: such a tensor becomes float32 or float64.
    """
    t = t.detach().cpu()
    if t.dtype == torch.bfloat16:
        t = t.float()
    return t.numpy().copy()
