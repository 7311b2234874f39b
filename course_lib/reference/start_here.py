"""The answers of notebook 00: start here."""

from __future__ import annotations


def count_elements(shape: tuple[int, ...]) -> int:
    """Return how many elements a tensor of this shape has.

    `shape` is a tuple of sizes, none of them negative.
    The shape `()` belongs to a tensor without dimensions, which holds one element.
    A size of 0 means that the tensor holds none.
    The result is a plain `int`.
    """
    count = 1
    for size in shape:
        count *= size
    return count
