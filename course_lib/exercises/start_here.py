"""The exercise and the question of notebook 00: start here."""

from __future__ import annotations

import math

import torch

from course_lib.checking import Exercise, Question, case, observe
from course_lib.reference import start_here as reference

# ---- count_elements ----------------------------------------------------------------------------------------

count_elements = Exercise(
    reference.count_elements,
    title="How many elements?",
    objective="start.rhythm",
    difficulty=1,
    minutes=3,
    points=1,
    observes=[observe.value()],
    hints=(
        "A tensor of shape (2, 3) has two rows of three elements each. What do you do with 2 and 3 to count "
        "them? And with a third size?",
        "The count is the product of all sizes. Decide which number to begin with, so that `()` gives 1.",
        "Start with `count = 1`, then go through the sizes and multiply `count` by each of them. "
        "`math.prod` is the same loop, ready made.",
    ),
    why="Each dimension multiplies the number of elements by its size. A product starts at 1, so the shape "
    "`()`, which has nothing to multiply with, gives 1, and a single 0 makes the whole product 0.",
)


@count_elements.cases
def _(rng):
    yield case("one dimension", (3,))
    yield case("two dimensions", (2, 3))
    yield case("no dimensions: a single number", ())
    yield case("a size of 1", (5, 1))
    yield case("an empty tensor", (0,))
    yield case("one size of 0 among others", (4, 0, 2))
    yield case("three dimensions", (2, 3, 4))
    yield case("two equal sizes", (2, 2))
    for ndim in (4, 5):
        yield case(f"{ndim} dimensions", tuple(torch.randint(2, 9, (ndim,), generator=rng).tolist()))


@count_elements.alternative
def uses_math_prod(shape):
    return math.prod(shape)


@count_elements.alternative
def asks_torch_size(shape):
    return torch.Size(shape).numel()


@count_elements.alternative
def asks_a_tensor_without_data(shape):
    return torch.empty(shape, device="meta").numel()


@count_elements.alternative
def goes_dimension_by_dimension(shape):
    return shape[0] * goes_dimension_by_dimension(shape[1:]) if shape else 1


@count_elements.misconception(
    "You added the sizes up. Every row of a (2, 3) tensor has 3 elements, so there are 2 times 3: sizes "
    "multiply."
)
def adds_the_sizes(shape):
    return sum(shape)


@count_elements.misconception(
    "You counted the dimensions. The length of the shape is `Tensor.ndim`; the number of elements is the "
    "product of the sizes in it."
)
def counts_the_dimensions(shape):
    return len(shape)


@count_elements.misconception(
    "Your answer is 0 for every shape. A product that starts at 0 stays there, whatever it is multiplied "
    "by: start at 1."
)
def starts_at_zero(shape):
    count = 0
    for size in shape:
        count *= size
    return count


@count_elements.misconception(
    "You returned the first size. That is `len(tensor)`, the number of rows; the elements in each row count "
    "too."
)
def returns_the_first_size(shape):
    return shape[0]


@count_elements.misconception(
    "You counted no element for the shape `()`. A tensor without dimensions holds one element, as in "
    "`torch.tensor(3.5)`: a product without factors is 1."
)
def takes_a_scalar_for_empty(shape):
    return math.prod(shape) if shape else 0


@count_elements.misconception(
    "You left sizes of 0 out of the product. They belong in it: four times no rows are no rows, so such a "
    "tensor is empty."
)
def skips_sizes_of_zero(shape):
    return math.prod(size for size in shape if size > 0)


# ---- questions ---------------------------------------------------------------------------------------------

first_prediction = Question(
    "first_prediction",
    objective="start.rhythm",
    text="""What does the last line print?

```python
a = torch.zeros(3)
b = a
b += 1
print(a)
```""",
    choices={"a": "`tensor([0., 0., 0.])`", "b": "`tensor([1., 1., 1.])`", "c": "an error"},
    answer="b",
    replies={
        "a": "`b = a` would have to copy the tensor. In Python an assignment copies nothing: it gives the "
        "same object a second name. To get a tensor of its own you write `b = a.clone()`.",
        "b": "Right. `b = a` is a second name for the same tensor, and `b += 1` changes that tensor in "
        "place, so you see the change under both names. `b = b + 1` would have made a new tensor and left "
        "`a` alone.",
        "c": "Nothing here is forbidden: adding a number to a tensor in place is fine. It would fail if `a` "
        "were a leaf that requires gradients, and this one does not.",
    },
)
