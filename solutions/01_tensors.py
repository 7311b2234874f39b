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
# # Tensors: a storage and a view
#
# > You write `y = f(x)`. **Does `y` own its numbers, or is it another way to read the numbers of `x`?**
#
# This is the question of the whole notebook.
# It decides where a write arrives, how many bytes a line of code moves, and how large a checkpoint gets.
# At the end you answer it for any `f`, from four facts that every tensor carries.
#
# **Time:** about 3 hours: one hour to read and predict, two for the exercises.
# It splits well after section 3 and after section 5.
#
# **You need:** notebook 00, Python, and a little PyTorch: you have made a tensor and added two of them.
# No GPU is needed; section 8 says what differs where there is one.
# If an exercise resists, run `hint(its_name)` in a cell of your own.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The words of this notebook
#
# Each term is the name that you will meet in the code.
#
# | term | in code | meaning |
# |---|---|---|
# | storage | `x.untyped_storage()` | one row of bytes in memory; it has no shape |
# | size | `x.size()`, `x.shape` | how many elements along each dimension |
# | stride | `x.stride()` | how many *elements* to move in the storage for one step along each dimension |
# | storage offset | `x.storage_offset()` | the position in the storage of the element `x[0, 0, ...]` |
# | view | `x.view(...)`, `x.transpose(...)` | a new tensor on the same storage |
# | alias | | one of several tensors on one storage: a write through one is seen through all |
# | contiguous | `x.is_contiguous()` | the strides are those of row-major order: the last dimension is dense |
# | broadcast | `x.expand(...)` | repeat elements along a dimension without storing them twice |
#
# Shapes are written with names.
# `(batch, seq, dim)` is a batch of sequences of vectors: the shape that flows through a GPT.

# %%
import io
import os
import warnings
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch.autograd.profiler import profile
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.display import explore, show_storage

_ = torch.manual_seed(0)
os.environ["KINETO_LOG_LEVEL"] = "99"  # or the profiler prints the time and its process id

# %% [markdown]
# ## 1 A storage and four facts about it
#
# One tiny batch will go with you through the whole course.
# It holds two sequences of three tokens, and each token is a vector of four numbers.
# Its values count upwards, so that you always see where an element came from.

# %% objective="tensors.storage"
batch = torch.arange(24).reshape(2, 3, 4)  # (batch, seq, dim)
batch

# %% [markdown]
# Memory has no rows and no columns, so 24 numbers can only lie in a line.
# Here is that line, with the tensor that reads it.

# %% objective="tensors.storage"
show_storage(batch, names=["batch"])

# %% [markdown]
# The strip is the **storage**; the grids are the **tensor**.
# Four facts turn the one into the other: a size, a stride, a storage offset, and what the bytes mean.

# %% objective="tensors.storage"
print("size          ", tuple(batch.size()))
print("stride        ", batch.stride())
print("storage offset", batch.storage_offset())
print("dtype, device ", batch.dtype, batch.device, batch.layout)
print("another layout", torch.eye(3).to_sparse().layout)

# %% [markdown]
# "A tensor is an array with a dtype and a device" is true and leaves out the half that explains its behavior.
# Read the strides aloud: one step along `batch` jumps 12 elements, one along `seq` 4, one along `dim` 1.
# The layout `torch.strided` says that it works in this way at all; a sparse tensor has another layout.
#
# The storage itself knows only bytes.

# %% objective="tensors.storage"
x = torch.arange(12)
print(x.numel(), "elements of", x.element_size(), "bytes; storage of", x.untyped_storage().nbytes(), "bytes")

# %% [markdown]
# Twelve `int64` numbers of 8 bytes: 96 bytes, and nothing in them says "12" or "3 by 4".
# So what does it cost to read them as 3 by 4?
# And who owns the numbers then?
#
# {{predict view_write}}

# %%
predict("view_write", "b")

# %% objective="tensors.views"
x = torch.arange(12)
y = x.view(3, 4)
z = x.reshape(2, 6)
y[0, 0] = 99
print(x[0], z[0, 0])
print(x)

# %% [markdown]
# One write, three tensors changed.
# There is one storage, and `x`, `y` and `z` are three readers of it: they are **aliases**.

# %% objective="tensors.views"
show_storage(x, y, names=["x", "y"])

# %% [markdown]
# PyTorch keeps the relation on record.
# A view knows its base, and base and views share one **version counter** that every in-place write moves on.
# Autograd uses it to notice that you overwrote something it still needed (notebook 02).

# %% objective="tensors.views"
print("y's base is x:", y._base is x)
print("versions:", x._version, y._version, z._version)

# %% [markdown]
# `view` changed the size and the stride.
# A slice changes the third fact.
#
# {{predict slice_offset}}

# %%
predict("slice_offset", "c")

# %% objective="tensors.storage"
x = torch.arange(12)
y = x[3:8:2]
print(y.storage_offset(), y.stride())
print(y)

# %% [markdown]
# Start at position 3, take every second element: offset 3, stride 2.
# No number was moved.
# Offset, size and stride are all there is: with them you can rebuild the slice from `x` by hand.

# %% objective="tensors.storage"
print(x.as_strided(size=(3,), stride=(2,), storage_offset=3))
show_storage(x, y, names=["x", "x[3:8:2]"])

# %% [markdown]
# **Rule 1.** An element lies in the storage at the offset, plus its index times the stride in each dimension.
#
# `batch[1, 2, 3]` lies at `0 + 1*12 + 2*4 + 3*1 = 23`. The slice's last element `y[2]` lies at `3 + 2*2 = 7`.

# %% objective="tensors.storage"
print(batch[1, 2, 3], "at", 0 + 1 * 12 + 2 * 4 + 3 * 1)
print(y[2], "at", 3 + 2 * 2)

# %% [markdown]
# Both tensors count upwards from 0, so value and position agree.
# The rule also tells which requests are impossible.
# Three rows of stride 3 need positions 0 to 8, and six numbers end at 5:

# %% tags=["raises-exception"] objective="tensors.storage"
torch.arange(6).as_strided(size=(3, 3), stride=(3, 1))

# %% [markdown]
# Read the message with the rule in hand.
# The last element would lie at `2*3 + 2*1 = 8`: this takes 9 elements of 8 bytes, 72 bytes, and 48 exist.
#
# Now write the rule once, for any number of dimensions.
# Everything in this notebook is built on this one line of arithmetic.
#
# {{exercise flat_index}}

# %% exercise="flat_index"
def flat_index(index: tuple[int, ...], stride: tuple[int, ...], storage_offset: int) -> int:
    """Return the position in the storage of the element at `index`.

    `index` and `stride` are tuples with one entry per dimension.
    `storage_offset` is the position of the tensor's first element.
    All of them count elements, not bytes, as `Tensor.stride()` and `Tensor.storage_offset()` do.
    No index is negative; a stride may be 0.
    A tensor without dimensions has the index `()`: its element lies at `storage_offset`.
    The result is a plain `int`.
    """
    ### BEGIN SOLUTION
    return storage_offset + sum(i * s for i, s in zip(index, stride))
    ### END SOLUTION

# %%
check(flat_index)

# %% [markdown]
# Where do the strides of a fresh tensor come from?
# From its size alone.
# Compare each size with the strides PyTorch chose:

# %% objective="tensors.strides"
for sizes in [(5,), (3, 4), (2, 3, 4), (1, 5), (2, 0, 3), ()]:
    print(f"{sizes!s:10} -> {torch.empty(sizes).stride()}")

# %% [markdown]
# Read each line from the right.
# The last dimension is dense, and every other one jumps over all that lies to its right.
# This is **row-major** order.
# Two lines are less obvious: a dimension of size 0 counts as 1, and a tensor with no dimensions has no strides.
#
# {{exercise row_major_strides}}

# %% exercise="row_major_strides"
def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a new, contiguous tensor of this shape.

    `shape` is a tuple of sizes, none of them negative.
    The result is a tuple of the same length, `()` for `()`.
    Strides count elements, not bytes, and the last dimension has stride 1.
    Where a size is 0, the strides are those of the same shape with 1 in its place, as in PyTorch.
    Write the rule in plain Python: calls of torch and NumPy are not allowed here.
    """
    ### BEGIN SOLUTION
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
    ### END SOLUTION

# %%
check(row_major_strides)

# %% [markdown]
# ## 2 Views are other eyes on the same storage
#
# If a tensor is four facts over a storage, then a transpose has no need to move anything.
#
# {{predict transpose_stride}}

# %%
predict("transpose_stride", "b")

# %% objective="tensors.views"
x = torch.randn(2, 3, 4)
y = x.transpose(0, 2)
print(tuple(x.size()), x.stride(), "->", tuple(y.size()), y.stride())
print("contiguous:", y.is_contiguous())

# %% [markdown]
# Sizes and strides traded places, both of them.
# "Transpose only changes the strides" forgets the sizes.
# On a matrix you can see what this means: reading the transpose row by row hops through the storage.

# %% objective="tensors.views"
columns = torch.arange(12).view(3, 4).t()
show_storage(columns, names=["a transpose"])

# %% [markdown]
# A transpose is *usually* not contiguous.
# But a dimension of size 1 is never stepped along, so its stride does not count.
# This transpose is still in row-major order:

# %% objective="tensors.contiguity"
row = torch.randn(1, 5)
print(row.t().shape, row.t().stride(), "contiguous:", row.t().is_contiguous())

# %% [markdown]
# For a matrix you may also write `.T`.
# It is the same view, as a write shows:

# %% objective="tensors.views"
x = torch.arange(12).reshape(3, 4)
y = x.T
y[0, 0] = 99
print(tuple(y.shape), x[0, 0])

# %% [markdown]
# On a tensor that is not a matrix, `.T` reverses *all* dimensions, which is hardly ever what a batch needs.
# PyTorch warns today and promises an error.

# %%
def warnings_of(f) -> list[str]:
    """The first sentence of each warning that calling `f()` gives."""
    torch.set_warn_always(True)  # PyTorch gives some only once per process
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f()
    torch.set_warn_always(False)
    return [str(warning.message).split(". ")[0] for warning in caught]


# %% objective="tensors.views"
print(*warnings_of(lambda: print("batch.T ", tuple(batch.T.shape))))
print("batch.mT", tuple(batch.mT.shape), " permute", tuple(batch.permute(2, 0, 1).shape))

# %% [markdown]
# `.mT` transposes the last two dimensions and leaves the batch alone.
# `permute` takes the order of all dimensions from you.
#
# How do you find out whether something *is* a view?
# Equal values prove nothing.
# Nor does `data_ptr()`, the address of the *first element*:

# %% objective="tensors.views"
x = torch.arange(12)
tail = x[3:]
copy = x.clone()
print("clone equal:", torch.equal(x, copy))
print("slice starts", tail.data_ptr() - x.data_ptr(), "bytes later")

# %% [markdown]
# The clone has equal values and its own storage.
# The slice has another address and the same storage: 24 bytes are 3 elements of 8.
# So compare neither values nor first elements; ask each tensor for the thing they may have in common.
#
# {{exercise same_storage}}

# %% exercise="same_storage"
def same_storage(a: Tensor, b: Tensor) -> bool:
    """Return True if `a` and `b` have the same storage, whether or not their elements overlap.

    Views share the storage of their base: slices (two slices without a common element as well), transposes,
    expanded and detached tensors, the same bits read as another dtype.
    Equal numbers in two storages are not shared.
    If `a` or `b` has no elements, the answer is False.
    """
    ### BEGIN SOLUTION
    if a.numel() == 0 or b.numel() == 0:
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    ### END SOLUTION

# %%
check(same_storage)

# %% [markdown]
# From now on you own the instrument of this notebook.
# `passing` hands out your version once it has passed its check, and the course's version until then.

# %% objective="tensors.views"
shares = passing(same_storage)
x = torch.arange(12)
print("view ", shares(x, x.view(3, 4)), " mT     ", shares(batch, batch.mT))
print("slice", shares(x, x[3:]), " permute", shares(batch, batch.permute(2, 0, 1)))
print("clone", shares(x, x.clone()), " x + 0 ", shares(x, x + 0))

# %% [markdown]
# ## 3 When a view is impossible
#
# `view` never copies: it finds strides for the new size, or it refuses.
# A contiguous tensor can always be viewed in another shape.
# And a transposed one?
#
# {{predict view_refuses}}

# %%
predict("view_refuses", "c")

# %% tags=["raises-exception"] objective="tensors.contiguity"
x = torch.arange(12).view(3, 4)
t = x.t()
t.view(12)

# %% [markdown]
# Read the message: *"at least one dimension spans across two contiguous subspaces"*.
# A 1-D tensor has a single stride.
# But reading `t` in order means to visit these positions:

# %% objective="tensors.contiguity"
[position for row in t.tolist() for position in row]

# %% [markdown]
# Steps of 4, then a step of -7, then steps of 4 again.
# No single stride says that.
#
# "So a non-contiguous tensor has no `view`?"
# You can read that in many places, and it is too strict.
# Only *merging* dimensions is delicate.
# Splitting one always works:

# %% objective="tensors.contiguity"
turned = batch.transpose(1, 2)  # (batch, dim, seq)
print(tuple(turned.size()), turned.stride())
split = turned.view(2, 2, 2, 3)
print(tuple(split.size()), split.stride())

# %% [markdown]
# **Rule 2.** Two neighboring dimensions merge without a copy
# if the left stride equals the right size times the right stride.
# Dimensions of size 1 never stand in the way.
#
# In `split`, the two middle dimensions have sizes (2, 2) and strides (2, 1). They fit: 2 = 2 · 1.
# The last two do not: 1 is not 3 · 4.
# So neither of these tensors is contiguous, and both views exist:

# %% objective="tensors.contiguity"
evens = torch.arange(10)[::2]
column = evens.view(5, 1)
print("split:", split.is_contiguous(), split.stride(), "->", split.view(2, 4, 3).stride())
print("evens:", evens.is_contiguous(), evens.stride(), "->", column.stride())

# %% [markdown]
# The error message recommends `.reshape(...)` instead.
# It always works. What does it do?
#
# {{predict reshape_copy}}

# %%
predict("reshape_copy", "a")

# %% objective="tensors.contiguity"
t = torch.arange(12).view(3, 4).t()
r = t.reshape(-1)
r[0] = 777
print("r[0] =", r[0].item(), " t[0, 0] =", t[0, 0].item())

# %% [markdown]
# `r` got 777 and `t` kept its 0.
#
# "But I have read that `reshape` does not copy!"
# You have read about contiguous tensors: in section 1 it returned a view.
# **`reshape` returns a view if it can and a copy if it must, and does not tell you which.**
# "If it can" is rule 2, and not "if it is contiguous":

# %% objective="tensors.contiguity"
r = evens.reshape(5, 1)
r[0, 0] = 777
print("contiguous:", evens.is_contiguous(), " and the write arrived:", evens.tolist())

# %% [markdown]
# Not contiguous, and yet no copy: this is the case that people get wrong.
#
# Can you tell which of the two it will be, before it runs?
#
# {{exercise reshape_copies}}

# %% exercise="reshape_copies"
def reshape_copies(t: Tensor, shape: tuple[int, ...]) -> bool:
    """Return True if `t.reshape(shape)` has to copy the elements of `t`, False if it is a view of `t`.

    `t` may have any strides, and has at least one element.
    `shape` is a tuple that fits the number of elements; one of its sizes may be -1.
    `t` is not changed.
    """
    ### BEGIN SOLUTION
    try:
        t.view(shape)
    except RuntimeError:
        return True
    return False
    ### END SOLUTION

# %%
check(reshape_copies)

# %% [markdown]
# A call you will meet again: a language model is trained on the tokens shifted by one.
# Can those targets be flattened with `view`?

# %% objective="tensors.contiguity"
tokens = torch.arange(10).view(2, 5)
targets = tokens[:, 1:]  # (batch, seq), the next token at each place
print(tuple(targets.size()), targets.stride())
print("reshape(-1) copies:", passing(reshape_copies)(targets, (-1,)))

# %% [markdown]
# They cannot: 5 is not 4 · 1, because a gap lies between the rows.
# Here `reshape` is what you want, since the targets are only read.
#
# > **Classic mistake: "use .reshape instead".**
# > `view` raised, the message named `reshape`, the error went away, and so did the writes.

# %% objective="tensors.aliasing"
x = torch.ones(2, 3)
flat = x.t().reshape(-1)
flat.add_(100)
print("flat", flat.tolist())
print("x   ", x.tolist())

# %% [markdown]
# The sum went into a copy that nobody keeps.
# With `view` the same code would have stopped at its second line: an error that you can see.
# **Use `view` when you mean to write, `reshape` when you mean to read.**
#
# And often you need neither.
# In-place operations walk any strides by themselves.
#
# {{exercise clear_}}

# %% exercise="clear_"
def clear_(x: Tensor) -> Tensor:
    """Set every element of `x` to zero, in place, and return `x` itself.

    `x` has at least one dimension and any strides; no two of its elements share a place in the storage.
    Its elements may be anything, infinity and NaN as well.
    The rest of its storage, which `x` does not show, is left as it is.
    """
    ### BEGIN SOLUTION
    return x.zero_()
    ### END SOLUTION

# %%
check(clear_)

# %% [markdown]
# ### `contiguous()`: a copy, or nothing at all
#
# `x.contiguous()` promises row-major strides.
# "It copies all the data" is the usual description.
#
# {{predict contiguous_noop}}

# %%
predict("contiguous_noop", "b")

# %% objective="tensors.contiguity"
x = torch.zeros(3, 4)
y = x.contiguous()
y[0, 0] = 5
print(x[0, 0], " same object:", y is x)

# %% [markdown]
# Not a copy, and not even a new object: there was nothing to do.
# A transpose has something to do, and gets a storage of its own:

# %% objective="tensors.contiguity"
m = torch.randn(3, 4)
dense = m.t().contiguous()
print(m.t().stride(), "->", dense.stride(), " shares:", shares(m, dense))

# %% [markdown]
# What does such a copy cost?
# In seconds that depends on your machine; in bytes it does not.
# `meta` tensors have sizes and strides but no numbers, so we may ask about a big one for free:

# %% objective="tensors.contiguity"
big = torch.empty(4096, 4096, device="meta")
print("transpose is a view:", big.t()._base is big, " strides", big.t().stride())
print("contiguous() then fills", big.t().contiguous().untyped_storage().nbytes() // 2**20, "MiB")

# %% [markdown]
# The transpose of 16 million numbers is a handful of integers.
# `contiguous()` on it reads 64 MiB and writes 64 MiB, and so does each `reshape` that has to copy.
#
# ### The copies that you did not write
#
# Some operators copy inside, because their kernel wants its rows dense.
# The profiler lists the operators that ran; a hidden copy shows up as `aten::clone`.

# %% objective="tensors.contiguity"
def copies(f) -> bool:
    """Does calling `f()` copy a tensor on its way?"""
    with profile(use_kineto=False) as prof:
        f()
    return "aten::clone" in {event.name for event in prof.function_events}

# %% objective="tensors.contiguity"
copies(lambda: m.t().contiguous()), copies(lambda: m.contiguous())

# %% [markdown]
# The instrument agrees with what we know.
# Now let each operator meet a transposed input.

# %% objective="tensors.contiguity"
image, kernel = torch.randn(1, 2, 5, 6), torch.randn(1, 2, 3, 3)  # (batch, channels, height, width)
copying = {
    "flatten": lambda: m.t().flatten(),
    "softmax": lambda: m.t().softmax(-1),
    "layer_norm": lambda: F.layer_norm(m.t(), (3,)),
    "conv2d": lambda: F.conv2d(image.mT, kernel),
    "mm, inner stride 3": lambda: torch.mm(torch.ones(4, 9)[:, ::3], m),
}
{name: copies(f) for name, f in copying.items()}

# %% [markdown]
# Each of these paid for a copy that stands nowhere in the code.
# "So anything non-contiguous is copied?"
# No:

# %% objective="tensors.contiguity"
reading = {
    "mm": lambda: torch.mm(m.t(), m),
    "add": lambda: torch.add(m.t(), m.t()),
    "relu": lambda: m.t().relu(),
    "cat": lambda: torch.cat([m.t(), m.t()]),
}
{name: copies(f) for name, f in reading.items()}

# %% [markdown]
# Matrix multiplication passes the transposition on to BLAS as a flag; pointwise operators follow the strides.
# They even *keep* them, so that being non-contiguous travels on, also through `clone`:

# %% objective="tensors.contiguity"
print("m.t()   ", m.t().stride())
print("sum     ", (m.t() + m.t()).stride())
print("relu    ", m.t().relu().stride())
print("clone   ", m.t().clone().stride())

# %% [markdown]
# These two lists are those of the CPU kernels of this version.
# Another backend has other kernels and another list, which is why you now own `copies` instead of a table.
#
# ### Another order that is dense: `channels_last`
#
# Row-major is one dense order among several.
# For images there is another one, in which the channels of one pixel lie together.

# %% objective="tensors.layout"
images = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
print(tuple(images.shape), images.stride())
print("contiguous:              ", images.is_contiguous())
print("contiguous channels_last:", images.is_contiguous(memory_format=torch.channels_last))

# %% [markdown]
# The shape still reads (batch, channels, height, width); the stride 1 moved to the channels.
# `is_contiguous()` asks about row-major order only, so its `False` does not mean that the tensor has gaps.
# A convolution hands the order on:

# %% objective="tensors.layout"
F.conv2d(images, torch.ones(6, 3, 2, 2)).is_contiguous(memory_format=torch.channels_last)

# %% [markdown]
# ### Try it yourself
#
# Pick an operation and its arguments, and watch the size, the strides, the offset and the storage.
# Try to make a tensor that refuses `view`, and one that is not contiguous and views all the same.

# %% objective="tensors.views"
explore(batch)

# %% [markdown]
# ## 4 Strides on purpose
#
# `as_strided` lets you choose size, stride and offset freely.
# The diagonal of a matrix, for example, is a walk with a stride of one row plus one column:

# %% objective="tensors.strides"
square = torch.arange(16).view(4, 4)
diagonal = square.as_strided(size=(4,), stride=(5,))
diagonal, torch.equal(diagonal, square.diagonal())

# %% [markdown]
# This is how `diagonal` works: no loop, no copy.
# But `as_strided` takes strides *in the storage*, and not relative to the tensor you call it on.
# The next cell wants the first two elements of every second number, and gets something else.

# %% objective="tensors.strides"
odds = torch.arange(10)[1::2]  # 1, 3, 5, 7, 9
print("wanted", odds[:2].tolist(), " got", odds.as_strided((2,), (1,)).tolist())

# %% [markdown]
# The offset 1 was kept, the stride of 2 was not.
# So build new strides from those of the tensor that you were given.
#
# Two windows over the same signal overlap; stored once, their numbers can be read twice.
# That is what strides can do and a list of slices cannot.
#
# {{exercise sliding_windows}}

# %% exercise="sliding_windows"
def sliding_windows(x: Tensor, size: int, step: int) -> Tensor:
    """Return the windows of a 1-D tensor as a view: (n,) -> (n_windows, size).

    Window `i` holds the `size` elements of `x` from number `i * step` on.
    There are as many windows as fit completely: `n_windows = (n - size) // step + 1`.
    `x` may have any stride and any storage offset; `1 <= size <= n` and `step >= 1`.
    Nothing is copied: the result has the storage of `x`, and gradients flow back through it.
    Any way to make such a view is welcome, `Tensor.unfold` too.
    """
    ### BEGIN SOLUTION
    n_windows = (len(x) - size) // step + 1
    return x.as_strided((n_windows, size), (step * x.stride(0), x.stride(0)))
    ### END SOLUTION

# %%
check(sliding_windows)

# %% [markdown]
# ### Attention heads
#
# Attention cuts the `dim` numbers of each token into heads and works on each head alone.
# We would like to write:
#
# ```python
# q = split_heads(x, n_heads)   # (batch, seq, dim) -> (batch, n_heads, seq, dim // n_heads)
# out = attention(q, k, v)
# y = merge_heads(out)          # and back: (batch, seq, dim)
# ```
#
# The shapes invite one `view`. Look at what it does to our first sequence, cut into 2 heads:

# %% objective="tensors.layout"
wrong = batch.view(2, 2, 3, 2)  # (batch, n_heads, seq, dim // n_heads), says the shape
print("head 0:", wrong[0, 0].tolist())

# %% [markdown]
# Head 0 should hold the first two numbers of *each* token: `[0, 1]`, `[4, 5]`, `[8, 9]`.
# It got everything of token 0 and half of token 1.
# The shape is right and the content is wrong, so nothing ever raises.
#
# `view` re-reads the elements in order. It never moves a dimension past another, and here one has to move.
#
# {{exercise split_heads}}

# %% exercise="split_heads"
def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Split the last dimension among the heads: (batch, seq, dim) -> (batch, n_heads, seq, dim // n_heads).

    Head `h` gets the features from `h * (dim // n_heads)` up to those of head `h + 1`, at every step.
    `n_heads` divides `dim`; `x` may have any strides.
    Nothing is copied: the result is a view of `x`, and gradients flow back through it.
    """
    ### BEGIN SOLUTION
    batch, seq, dim = x.shape
    return x.view(batch, seq, n_heads, dim // n_heads).transpose(1, 2)
    ### END SOLUTION

# %%
check(split_heads)

# %% [markdown]
# And back: `(batch, n_heads, seq, head_dim)` to `(batch, seq, dim)`.
# The same trap waits here, since the number of elements fits:

# %% objective="tensors.layout"
heads = passing(split_heads)(batch, 2)
print("token 0 was   ", batch[0, 0].tolist())
print("token 0 is now", heads.reshape(2, 3, 4)[0, 0].tolist())

# %% [markdown]
# > **Classic mistake: reshaping heads away.**
# > The result has the right shape, and each of its tokens is stitched together from several.
# > No error and no check of shapes will find it; a tensor that counts upwards does.
#
# {{exercise merge_heads}}

# %% exercise="merge_heads"
def merge_heads(x: Tensor) -> Tensor:
    """Put the heads back side by side: (batch, n_heads, seq, head_dim) -> (batch, seq, n_heads * head_dim).

    This undoes `split_heads`: each step has the features of head 0, then those of head 1, and so on.
    `x` may have any strides. The result may be a copy or a view; gradients flow back through it.
    """
    ### BEGIN SOLUTION
    return x.transpose(1, 2).flatten(start_dim=2)
    ### END SOLUTION

# %%
check(merge_heads)

# %% [markdown]
# Does merging copy?
# That depends on how the attention kernel *laid out* its result, and so on which kernel ran.
# Ask both that PyTorch has on a CPU.

# %% objective="tensors.layout"
def attention(q: Tensor, backend: SDPBackend) -> Tensor:
    """(batch, n_heads, seq, head_dim) -> the same"""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


merge = passing(merge_heads)
q = passing(split_heads)(torch.randn(2, 3, 4), 2)
flash, plain = attention(q, SDPBackend.FLASH_ATTENTION), attention(q, SDPBackend.MATH)
print("FLASH_ATTENTION strides", flash.stride(), " merging copies:", copies(lambda: merge(flash)))
print("MATH            strides", plain.stride(), " merging copies:", copies(lambda: merge(plain)))

# %% [markdown]
# One kernel leaves its result in the (batch, seq, heads, dim) order of the input, and merging it is free.
# The other one does not, and merging copies.
# So `view` in the last step would work with the first kernel, by luck. With the second:

# %% tags=["raises-exception"] objective="tensors.layout"
plain.transpose(1, 2).view(2, 3, 4)

# %% [markdown]
# ### Which dimension comes first
#
# Some layers want time first, `(seq, batch, dim)`: an LSTM does unless you tell it otherwise.
# Once more a `view` is tempting:

# %% objective="tensors.layout"
labels = torch.arange(6).reshape(2, 3)  # (batch, seq): 0 1 2 is one sequence, 3 4 5 the other
print("LSTM takes the batch first:", torch.nn.LSTM(4, 4).batch_first)
print("labels.view(3, 2):", labels.view(3, 2).tolist())

# %% [markdown]
# The first "time step" holds 0 and 1: two steps of the *same* sequence.
# It should hold the first step of both sequences, 0 and 3.
#
# {{exercise time_major}}

# %% exercise="time_major"
def time_major(x: Tensor) -> Tensor:
    """Put the steps first: (batch, seq, dim) -> (seq, batch, dim), with `result[t, b] == x[b, t]`.

    `x` may have any strides, and keeps its own shape.
    Nothing is copied: the result is a view of `x`, and gradients flow back through it.
    """
    ### BEGIN SOLUTION
    return x.transpose(0, 1)
    ### END SOLUTION

# %%
check(time_major)

# %% [markdown]
# ## 5 Broadcasting is stride 0
#
# Here is the other half of a first PyTorch session: add a number, sum over a dimension.

# %% objective="tensors.broadcasting"
x = torch.arange(12).reshape(3, 4)
print(x + 1)
print(x.sum(dim=0))

# %% [markdown]
# `1` has no dimensions, `x` has two, and yet they add.
# **Rule 3.** Two sizes are aligned *at the right*.
# A missing dimension counts as 1.
# In each place the sizes are equal, or one of them is 1 and becomes the other.
#
# ```
#   (3, 1)      remains (3, 1)      becomes (3, 4)
# +    (4,)     becomes (1, 4)      becomes (3, 4)
# ```

# %% objective="tensors.broadcasting"
print((torch.zeros(3, 1) + torch.ones(1, 4)).shape)
print((torch.zeros(3, 1) + torch.ones(4)).shape)

# %% [markdown]
# One success with sizes of 1, one with a missing dimension.
# And a failure: `(2, 3)` and `(2,)`.
# It is tempting to think that the 2 goes with the 2.

# %% tags=["raises-exception"] objective="tensors.broadcasting"
torch.zeros(2, 3) + torch.ones(2)

# %% [markdown]
# The message speaks of dimension 1, the last one: aligned at the right, 3 meets 2.
# No padding on the right is ever tried.
#
# One case is left that catches even people who know the rule.
#
# {{predict zero_size_broadcast}}

# %%
predict("zero_size_broadcast", "a")

# %% objective="tensors.broadcasting"
print((torch.ones(0) + torch.ones(1)).shape)
nothing = torch.ones(3, 1) + torch.ones(0)
print(nothing.shape, " mean", nothing.mean())

# %% [markdown]
# "1 becomes the other", and the other is 0.
# So the size of a broadcast is not always the larger of the two.
# Emptiness spreads this way without an error, up to a mean that is `nan`.
#
# Write the rule down in code; the accident after it will then hold no mystery.
#
# {{exercise broadcast_shape}}

# %% exercise="broadcast_shape"
def broadcast_shape(s1: tuple[int, ...], s2: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which two shapes broadcast, as a tuple.

    The shapes are aligned at their last dimensions; a missing dimension counts as size 1.
    Two sizes fit if they are equal, or if one of them is 1: it is stretched to the other. So 1 and 0 give 0.
    Raise ValueError if two sizes do not fit.
    Write the rule in plain Python: calls of torch and NumPy are not allowed here.
    """
    ### BEGIN SOLUTION
    ndim = max(len(s1), len(s2))
    padded1 = (1,) * (ndim - len(s1)) + s1
    padded2 = (1,) * (ndim - len(s2)) + s2
    for a, b in zip(padded1, padded2):
        if a != b and 1 not in (a, b):
            raise ValueError(f"sizes {a} and {b} do not fit: {s1} and {s2} do not broadcast")
    return tuple(b if a == 1 else a for a, b in zip(padded1, padded2))
    ### END SOLUTION

# %%
check(broadcast_shape)

# %% [markdown]
# ### A broadcast that costs a training run
#
# A model with one output returns `(n, 1)`. The targets come as `(n,)`.
# The predictions below are perfect.
#
# {{predict broadcast_loss}}

# %%
predict("broadcast_loss", "b")

# %% objective="tensors.broadcasting"
prediction, target = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 2.0, 3.0])
error = prediction - target
print(tuple(prediction.shape), "-", tuple(target.shape), "->", tuple(error.shape), " loss", (error**2).mean())

# %% [markdown]
# Every prediction met every target.
# What does training do with such a loss? Let it improve three free predictions:

# %% objective="tensors.broadcasting"
guess = torch.zeros(3, 1, requires_grad=True)
for _ in range(50):
    loss = ((guess - target) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, guess)
    guess = (guess - 0.5 * gradient).detach().requires_grad_()
print("guess", guess.flatten().tolist(), " loss", loss)

# %% [markdown]
# It learns the *mean* of the targets, three times.
# And its loss falls, as a loss should, down to their variance: 2/3.
#
# `F.mse_loss` computes the same number, but at least it warns:

# %% objective="tensors.broadcasting"
print(*warnings_of(lambda: print(F.mse_loss(prediction, target))))

# %% [markdown]
# > **Classic mistake: taking the mean to be rid of a shape.**
# > `.mean()` turns the `(n, n)` table into one number and hides the evidence.
# > A loss that is not 0 for perfect predictions is the symptom to look for.
#
# {{exercise mean_squared_error}}

# %% exercise="mean_squared_error"
def mean_squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean of the `n` squared differences, as a tensor without dimensions.

    `target` has the shape (n,); `prediction` has the shape (n,) or, as it comes from a linear layer, (n, 1).
    Prediction `i` belongs to target `i`. Both have the same floating dtype, and so has the result.
    They may have any strides. Gradients flow back to `prediction`.
    """
    ### BEGIN SOLUTION
    return (prediction.reshape(target.shape) - target).square().mean()
    ### END SOLUTION

# %%
check(mean_squared_error)

# %% [markdown]
# ### How 1 becomes 4
#
# Broadcasting fills no memory with repetitions.
# `expand` does by hand what an addition does on its own.

# %% objective="tensors.broadcasting"
row = torch.tensor([1.0, 2.0, 3.0])
rows = row.expand(4, 3)
print(tuple(rows.size()), rows.stride(), "storage:", rows.untyped_storage().nbytes(), "bytes")

# %% [markdown]
# Stride 0: a step along the first dimension goes nowhere.
# Four rows, and still the 12 bytes of three `float32` numbers.

# %% objective="tensors.broadcasting"
show_storage(row, rows, names=["row", "row.expand(4, 3)"])

# %% [markdown]
# To read is harmless.
# To write is not: four elements of `rows` are one number in the storage.
# PyTorch refuses to write all of them in place.

# %% tags=["raises-exception"] objective="tensors.aliasing"
rows += 1

# %% [markdown]
# *"More than one element of the written-to tensor refers to a single memory location."*
# The other direction is refused as well: an in-place result has to fit into the tensor that is written.

# %% tags=["raises-exception"] objective="tensors.broadcasting"
small = torch.ones(1, 3)
small += torch.ones(4, 3)

# %% [markdown]
# Both failures are loud.
# Does PyTorch guard every write?
#
# {{predict expand_stride}}

# %%
predict("expand_stride", "b")

# %% objective="tensors.aliasing"
row = torch.zeros(4)
grid = row.expand(3, 4)
grid[0, 1] = 5
print(grid.sum())
print(grid, row, sep="\n")

# %% [markdown]
# > **Classic mistake: writing one element of an expanded tensor.**
# > One write, a whole column, and the row that it came from: no error, no warning.
# > The guard looks for overlap *within the part that is written*, and one element does not overlap with itself.
#
# Now you need exactly such a table: every row the same, except for the diagonal.
#
# {{exercise masked_rows}}

# %% exercise="masked_rows"
def masked_rows(row: Tensor) -> Tensor:
    """Return a matrix whose rows are all `row`, with zeros on the diagonal: (n,) -> (n, n).

    `row` may have any stride and hold any numbers; infinity and NaN too have a zero put in their place.
    The result has the dtype of `row` and a storage of its own. `row` is not changed.
    """
    ### BEGIN SOLUTION
    n = len(row)
    return row.expand(n, n).clone().fill_diagonal_(0)
    ### END SOLUTION

# %%
check(masked_rows)

# %% [markdown]
# ### Real repetitions, in one of two orders
#
# Sometimes the copies must exist, for instance when batch and heads are flattened into one dimension.
# Then their *order* matters.
# Sample 0 has mask `[1, 1]`, sample 1 has `[1, 0]`, and there are 3 heads:

# %% objective="tensors.broadcasting"
mask = torch.tensor([[1, 1], [1, 0]])  # (batch, seq)
mask.repeat(3, 1)

# %% [markdown]
# `repeat` lays tiles: sample 0, sample 1, sample 0, sample 1, and so on.
# But `(batch, n_heads, ...)` flattened runs through the heads of sample 0 first.
# Rows 0, 1 and 2 should all hold the mask of sample 0; row 1 holds that of sample 1.
#
# {{exercise repeat_mask}}

# %% exercise="repeat_mask"
def repeat_mask(mask: Tensor, n_heads: int) -> Tensor:
    """Repeat each sequence's mask for its heads: (batch, seq) -> (batch * n_heads, seq).

    Row `b * n_heads + h` of the result is `mask[b]`: the order of a (batch, n_heads, ...) tensor whose first
    two dimensions were flattened. `mask` may have any strides; its dtype stays.
    """
    ### BEGIN SOLUTION
    return mask.repeat_interleave(n_heads, dim=0)
    ### END SOLUTION

# %%
check(repeat_mask)

# %% [markdown]
# ## 6 Where a write goes
#
# An index made of slices and integers can be said in strides, so it gives a view.
# An index made of a list or a mask picks arbitrary elements, and no stride can say that: it gives a copy.

# %% objective="tensors.aliasing"
x = torch.arange(12).view(3, 4)
rows = torch.tensor([False, True, True])
print("slices: x[1]     ", shares(x, x[1]), "  x[:, 1:3]", shares(x, x[:, 1:3]))
print("picks:  x[[1, 2]]", shares(x, x[[1, 2]]), " x[rows]  ", shares(x, x[rows]))

# %% [markdown]
# "But `x[rows] = 0` changes `x`!"
# It does.
# An assignment is another call: `x[rows]` reads (`__getitem__`) and makes the copy,
# `x[rows] = 0` writes (`__setitem__`) and makes none.

# %% objective="tensors.aliasing"
x = torch.ones(3, 2)
x[rows] = 0
x

# %% [markdown]
# Now put the two together.
#
# {{predict mask_assign}}

# %%
predict("mask_assign", "a")

# %% objective="tensors.aliasing"
x = torch.ones(3, 5)
x[rows][:, 0] = 0
print(x.sum())

# %% [markdown]
# All 15 ones are still there.
# Python reads this line as `temporary = x[rows]`, then `temporary[:, 0] = 0`.
# Only the *last* pair of brackets is a write, and it wrote into a copy.
# No error is possible, because both halves are legal.
#
# {{exercise zero_first_column_}}

# %% exercise="zero_first_column_"
def zero_first_column_(x: Tensor, rows: Tensor) -> Tensor:
    """Set the first column of `x` to zero in the selected rows, in place, and return `x` itself.

    `x` has the shape (n, m) and any strides; no two of its elements share a place in the storage.
    `rows` is a bool tensor of shape (n,), True where a row is selected.
    What was there may be anything, infinity and NaN as well. Every other element keeps its value.
    """
    ### BEGIN SOLUTION
    x[rows, 0] = 0
    return x
    ### END SOLUTION

# %%
check(zero_first_column_)

# %% [markdown]
# One alias hides well, because its name sounds like a parting: `detach()`.
# It cuts the tensor off from the *graph*, and stays on the storage.

# %% objective="tensors.aliasing"
weight = torch.ones(3, requires_grad=True)
free = weight.detach()
free[0] = 42
print(weight)
print("shares:", shares(weight, free), " versions:", weight._version, free._version)

# %% [markdown]
# The weight changed.
# The version counter moved with it, so autograd will notice if that hurts.
# The old attribute `.data` gives the same alias *without* the counter, and the damage goes unnoticed:

# %% objective="tensors.aliasing"
weight = torch.ones(3, requires_grad=True)
weight.data[0] = 42
print(weight, " version:", weight._version)

# %% [markdown]
# ## 7 Saving a slice
#
# You want ten numbers of a million in a file.
#
# {{predict save_size}}

# %%
predict("save_size", "c")

# %% objective="tensors.saving"
def saved_bytes(tensor: Tensor) -> int:
    """The size of the file that torch.save writes for `tensor`."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.tell()


large = torch.zeros(1_000_000)
print("slice:", large[:10].nbytes, "bytes; file over 4 MB:", saved_bytes(large[:10]) > 4_000_000)

# %% [markdown]
# A file that must restore aliases as aliases has to store the *storage*.
# That is what `torch.save` does, with all that your slice does not read.
#
# "I will add `.contiguous()`, that makes a copy."
# Does it?

# %% objective="tensors.saving"
print("file over 4 MB:", saved_bytes(large[:10].contiguous()) > 4_000_000)

# %% [markdown]
# The slice was contiguous already, so `contiguous()` returned the same object (section 3).
# What the alias is good for shows when you save both readers together: after loading, they share again.

# %% objective="tensors.saving"
file = io.BytesIO()
torch.save({"all": large, "some": large[:10]}, file)
_ = file.seek(0)
loaded = torch.load(file)
print("still aliases:", shares(loaded["all"], loaded["some"]))

# %% [markdown]
# When only the numbers matter, save only the numbers.
#
# {{exercise save_compact}}

# %% exercise="save_compact"
def save_compact(tensor: Tensor, file: BinaryIO) -> None:
    """Write `tensor` to `file` so that no other elements of its storage are written with it.

    `file` is a binary file, open for writing; leave it open.
    `torch.load(file, weights_only=True)` later gives a tensor with the same values, shape and dtype, and its
    storage is no larger than `numel * element_size` bytes.
    `tensor` may be a view of a much larger storage. It does not require gradients.
    """
    ### BEGIN SOLUTION
    torch.save(tensor.clone(), file)
    ### END SOLUTION

# %%
check(save_compact)

# %% [markdown]
# ## 8 What the bytes mean and where they are
#
# ### dtype
#
# A Python number adapts to the tensor.
# Another tensor does not.

# %% objective="tensors.devices"
single, double = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)
print("float32 * 2.5    ->", (single * 2.5).dtype)
print("float32 + float64 ->", (single + double).dtype)
print("bytes:", single.nbytes, "and", double.nbytes)

# %% [markdown]
# One `float64` tensor turns a pointwise result into `float64`: twice the bytes to store and to move.
# (On many GPUs the arithmetic is much slower as well; not measured here.)
# Matrix multiplication does not convert at all:

# %% tags=["raises-exception"] objective="tensors.devices"
single @ double

# %% [markdown]
# PyTorch names the C++ types: `float` is `float32`, `double` is `float64`.
# Where the `float64` comes from, you will see in section 9.
#
# ### Device
#
# A tensor is on one device, the CPU unless someone says otherwise.
# "Otherwise" may stand far away from the line that you read:

# %% objective="tensors.devices"
print(torch.randn(2, 2).device, " default:", torch.get_default_device())
with torch.device("meta"):
    print(torch.empty(2, 2).device)

# %% [markdown]
# Choose the device **once**, and hand it on.
# The same line then runs with and without a GPU:

# %% objective="tensors.devices"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("it is there:", torch.ones(2, device=device).device.type == device.type)

# %% [markdown]
# Device and dtype are changed by the same method, `to`. What exactly does it change?
#
# {{predict to_result}}

# %%
predict("to_result", "a")

# %% objective="tensors.devices"
x = torch.zeros(3)
x.to(torch.float64)
print(x.dtype)

# %% [markdown]
# `Tensor.to` returns a new tensor, and a result that nobody keeps is gone.
#
# For devices the same holds.
# This notebook must run on every machine, so our second device is `meta`.
# Its tensors have sizes, strides and dtypes, but no numbers: enough to learn what moves and what does not.

# %% objective="tensors.devices"
x.to("meta")
print("result dropped:", x.device)
x = x.to("meta")
print("result kept:   ", x.device)

# %% [markdown]
# A module is different: its `to` moves its parameters in place and returns the module itself.

# %% objective="tensors.devices"
model = torch.nn.Linear(3, 2)
moved = model.to("meta")
print("same object:", moved is model, " weight:", model.weight.device)

# %% [markdown]
# So `model.to(device)` alone is enough, and `batch.to(device)` alone does nothing.
# Forget it, and the first operation that meets both devices raises:

# %% objective="tensors.devices"
try:
    model(torch.ones(1, 3))
except RuntimeError as refusal:
    print(refusal)

# %% [markdown]
# The input is on the CPU and the weight on `meta`.
# The wording differs between devices and operators.
# With CUDA it usually begins with "Expected all tensors to be on the same device" and names `cuda:0` and `cpu`.
# (Without a GPU we can't show it.)
#
# One mixture is allowed: a CPU tensor *without dimensions* counts as a plain number.

# %% objective="tensors.devices"
(torch.ones(3, device="meta") * torch.tensor(2.0)).device

# %% [markdown]
# A wart of `meta`: it is not as strict as a GPU.
# This lookup of CPU indices in a `meta` table should raise, and passes.
# Use it to learn how tensors move, not to prove that a model is free of mixtures.

# %% objective="tensors.devices"
F.embedding(torch.tensor([1, 2]), torch.empty(5, 4, device="meta")).device

# %% [markdown]
# And there is no way back: `meta` has no numbers to bring.

# %% tags=["raises-exception"] objective="tensors.devices"
torch.ones(2, device="meta").cpu()

# %% [markdown]
# The way back from a GPU is a copy. And the way from the CPU to the CPU?

# %% objective="tensors.aliasing"
x = torch.ones(3)
y = x.cpu()
y[0] = 99
print(x, " same object:", y is x)

# %% [markdown]
# A move that is not needed is no move: you get the *same object*, from `cpu()` and from `to()`.
# On a GPU the same line copies.
# Code that writes into the result behaves differently on the two machines, unless you ask for a copy:

# %% objective="tensors.devices"
print("to:", x.to("cpu") is x, x.to(torch.float32) is x, x.to("cpu", non_blocking=True) is x)
print("copy=True:", x.to("cpu", copy=True) is x)

# %% [markdown]
# ### What a move would do on a GPU
#
# A small recorder lets you watch moves to CUDA without having it.
# While it is on, PyTorch hands it each call; it prints the moves, and sends them to `meta` instead.

# %% objective="tensors.devices"
class MoveLog(TorchFunctionMode):
    """Print each move, and send moves to CUDA to the `meta` device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func not in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu):
            return func(*args, **kwargs)
        print(f"{func.__name__:5} {args[1:]}  non_blocking={kwargs.get('non_blocking', False)}")
        return args[0].cpu() if func is torch.Tensor.cpu else args[0].to("meta")

# %% [markdown]
# Here are four ways to move, as you find them in training scripts:

# %% objective="tensors.devices"
x = torch.randn(2, 2)
with MoveLog():
    x.to("cuda:0", non_blocking=True)
    x.to("cuda:0")
    x.cuda()
    x.cpu()

# %% [markdown]
# "These are all the same" is a common reading of the first three. They are not:
#
# - only the first one asks to go on without waiting; the default is `non_blocking=False`;
# - `cuda()` names no device at all.
#
# PyTorch's own documentation says where it goes then:

# %% objective="tensors.devices"
for line in torch.Tensor.cuda.__doc__.splitlines():
    if "current" in line or "pinned" in line or "Default: ``False``" in line:
        print(line.strip())

# %% [markdown]
# The *current* device, which `torch.cuda.set_device` may have changed, and not `cuda:0`.
# So "`.to(device)` is asynchronous" is wrong twice.
# You have to ask for it, and a source on the CPU has to lie in **pinned** memory,
# which the operating system promises not to move.
# Ordinary memory is not pinned:

# %% objective="tensors.devices"
torch.randn(2, 2).is_pinned()

# %% [markdown]
# > **Said here, not shown.**
# > This notebook uses no GPU, so the following comes from PyTorch's documentation, without numbers.
# >
# > - From ordinary memory, `x.to("cuda", non_blocking=True)` still waits while the data is staged.
# >   Pin in the data loader (notebook 04): `pin_memory()` in the training loop is itself a copy.
# > - From the GPU, `cpu()` waits for the work that the result depends on, because the CPU is about to read it.
# >   So does `loss.item()`, in every step that calls it.
# > - `x.to("cpu", non_blocking=True)` from a GPU may return *before* the numbers are there.
# >   Call `torch.cuda.synchronize()` before you read them.
# > - A copy within one GPU is queued like any other work there, and the CPU goes on.
# > - A copy from one GPU to another is direct where `torch.cuda.can_device_access_peer` says so.
# >   Elsewhere it passes through the host.

# %% [markdown]
# A batch is seldom one tensor.
# We would like to write `batch = prepare_batch(batch, device)` for whatever a loader returns:
# dicts, lists and named tuples, images as `float64`, labels that must stay integers, file names that are no tensors.
#
# {{exercise prepare_batch}}

# %% exercise="prepare_batch"
def prepare_batch(batch: Any, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Any:
    """Return `batch` with every tensor on `device` and every floating tensor in `dtype`.

    `batch` is a tensor, a dict, a list or a namedtuple, nested to any depth.
    Tensors that are not floating (integers, bool) keep their dtype.
    Dicts stay dicts with the same keys, lists stay lists, a namedtuple keeps its type.
    All else (strings, numbers, None) stays as it is. The batch that came in is not changed.
    """
    ### BEGIN SOLUTION
    if isinstance(batch, Tensor):
        return batch.to(device, dtype if batch.is_floating_point() else batch.dtype)
    if isinstance(batch, dict):
        return {key: prepare_batch(value, device, dtype) for key, value in batch.items()}
    if isinstance(batch, list):
        return [prepare_batch(item, device, dtype) for item in batch]
    if hasattr(batch, "_fields"):
        return type(batch)(*(prepare_batch(item, device, dtype) for item in batch))
    return batch
    ### END SOLUTION

# %%
check(prepare_batch)

# %% [markdown]
# ## 9 The NumPy bridge
#
# NumPy arrays have a buffer, a shape and strides too.
# So the bridge between the two is, once more, a view.

# %% objective="tensors.numpy"
array = np.zeros(3)
tensor = torch.from_numpy(array)
array[0] = 7
print(tensor)

# %% [markdown]
# A write on one side shows on the other.
# For the way from PyTorch to NumPy there are three gates.
# The first: a tensor that autograd follows does not pass.

# %% tags=["raises-exception"] objective="tensors.numpy"
torch.ones(3, requires_grad=True).numpy()

# %% [markdown]
# The message proposes `detach()`.
# In training scripts you find the longer form below, which also works from a GPU.
#
# {{predict cpu_alias}}

# %%
predict("cpu_alias", "b")

# %% objective="tensors.numpy"
weight = torch.ones(3, requires_grad=True)
array = weight.detach().cpu().numpy()
array[0] = 42
print(weight[0].item(), " version:", weight._version)

# %% [markdown]
# > **Classic mistake: plotting code that changes the model.**
# > `weight.detach().cpu().numpy()` is the weight itself, and scaling the array for a plot scales the weight.
# > NumPy knows nothing of version counters: it still says 0, and autograd can't notice.
#
# The second gate: NumPy has no `bfloat16`.

# %% tags=["raises-exception"] objective="tensors.numpy"
torch.ones(3, dtype=torch.bfloat16).numpy()

# %% [markdown]
# The third gate is the device: only CPU memory can be shared.
# A `meta` tensor shows how the refusal sounds.

# %% tags=["raises-exception"] objective="tensors.numpy"
torch.ones(3, device="meta").numpy()

# %% [markdown]
# And what arrives from the other side?
#
# {{predict numpy_dtype}}

# %%
predict("numpy_dtype", "b")

# %% objective="tensors.numpy"
data = torch.from_numpy(np.ones(3))
print((data * torch.ones(3)).dtype)
print("strides:", data.stride(), "elements in PyTorch,", data.numpy().strides, "bytes in NumPy")

# %% [markdown]
# This is where `float64` comes from: it is NumPy's default, the bridge keeps it, and then it wins.
# (NumPy counts strides in bytes, PyTorch in elements.)
# The first linear layer refuses, in words that you can read by now:

# %% tags=["raises-exception"] objective="tensors.numpy"
F.linear(data, torch.ones(2, 3))

# %% [markdown]
# Write the crossing that is safe for every tensor, whatever happens to the array afterwards.
#
# {{exercise to_numpy}}

# %% exercise="to_numpy"
def to_numpy(t: Tensor) -> np.ndarray:
    """Return the values of `t` as a NumPy array with memory of its own.

    `t` may be on any device, and may require gradients. It is not changed: it still requires them afterwards.
    Writing into the array does not change `t`.
    The array has the shape and the dtype of `t`.
    NumPy has no bfloat16: such a tensor becomes float32 or float64.
    """
    ### BEGIN SOLUTION
    t = t.detach().cpu()
    if t.dtype == torch.bfloat16:
        t = t.float()
    return t.numpy().copy()
    ### END SOLUTION

# %%
check(to_numpy)

# %% [markdown]
# ## The answer
#
# > You write `y = f(x)`. Does `y` own its numbers?
#
# It need not, if its elements can be reached in the storage of `x` with an offset and one stride per dimension.
# Whether `f` makes use of that is up to `f`: some always do, some never, some when they can.
# Ask your instrument:

# %% objective="tensors.views"
x = torch.arange(12).view(3, 4)
answers = {
    "always a view": [x.view(4, 3), x.t(), x.mT, x[1:, ::2], x.expand(2, 3, 4), x.detach(), x.diagonal()],
    "always a copy": [x.clone(), x + 0, x[[0, 1]], x[x > 3], x.repeat(2, 1), torch.cat([x])],
    "a view if it can": [x.reshape(12), x.flatten(), x.contiguous(), x.to(torch.int64)],
    "a copy if it must": [x.t().reshape(12), x.t().flatten(), x.t().contiguous(), x.to(torch.float32)],
}
for kind, results in answers.items():
    print(f"{kind:18}", [shares(x, y) for y in results])

# %% [markdown]
# The last two lines are the same four operations.
# What differs is the input, and that is why no list of names can replace the four facts.
#
# ## Recap
#
# - A tensor is a storage and four facts: size, stride, storage offset, and what the bytes mean.
# - An element lies at the offset plus index times stride (rule 1).
# - Neighboring dimensions merge without a copy if their strides fit (rule 2).
# - Sizes align at the right, and 1 becomes the other (rule 3).
# - `view` shares or raises. `reshape` shares or copies. `contiguous` copies or returns its input.
# - A dimension that is repeated has stride 0. Reading it is free, writing through it is a mistake.
# - A list or a mask reads a copy. Only the last brackets of an assignment write.
# - A file holds storages. A move that is not needed is an alias, and so is an array from `numpy()`.

# %% [markdown]
# ## Can you ...?
#
# Say the answer aloud before you go back to look.
#
# - [ ] find any element in its storage from size, stride and offset? (`flat_index`, [section 1](#1-A-storage-and-four-facts-about-it))
# - [ ] say the strides of a fresh tensor of any size? (`row_major_strides`, [section 1](#1-A-storage-and-four-facts-about-it))
# - [ ] prove that two tensors share memory, or that they do not? (`same_storage`, [section 2](#2-Views-are-other-eyes-on-the-same-storage))
# - [ ] explain when `view`, `reshape` and `transpose` do not copy, and when `contiguous()` is needed? (`reshape_copies`, [section 3](#3-When-a-view-is-impossible))
# - [ ] write in place through a transposed tensor and be sure that it arrives? (`clear_`, [section 3](#3-When-a-view-is-impossible))
# - [ ] read overlapping windows without copying? (`sliding_windows`, [section 4](#4-Strides-on-purpose))
# - [ ] split and merge attention heads, and say why one `view` is not enough? (`split_heads`, `merge_heads`, `time_major`, [section 4](#4-Strides-on-purpose))
# - [ ] predict a broadcast shape, with missing dimensions and with size 0? (`broadcast_shape`, [section 5](#5-Broadcasting-is-stride-0))
# - [ ] spot the loss that compares everything with everything? (`mean_squared_error`, [section 5](#5-Broadcasting-is-stride-0))
# - [ ] say which writes through an expanded tensor raise, and which one does not? (`masked_rows`, `repeat_mask`, [section 5](#5-Broadcasting-is-stride-0))
# - [ ] say where the write in `x[mask][:, 0] = 0` goes? (`zero_first_column_`, [section 6](#6-Where-a-write-goes))
# - [ ] save ten numbers in a small file? (`save_compact`, [section 7](#7-Saving-a-slice))
# - [ ] move a nested batch and keep its integers integers? (`prepare_batch`, [section 8](#8-What-the-bytes-mean-and-where-they-are))
# - [ ] hand a tensor to NumPy without handing out the weights? (`to_numpy`, [section 9](#9-The-NumPy-bridge))

# %% tags=["nbval-ignore-output"]
progress()
