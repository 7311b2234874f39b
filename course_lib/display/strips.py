"""Which slot of a storage each element of a tensor reads: the geometry behind `show_storage`.

Legend: a *slot* is one place of a storage, wide enough for one element; a *strip* is a storage as a row of
slots; a *reader* is a tensor that reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

SLOTS_SHOWN = 64
SLOTS_PER_ROW = 16
ROWS_SHOWN = 8
COLUMNS_SHOWN = 16
BLOCKS_SHOWN = 8

Index = tuple[int, ...]
Block = list[list[Index]]  # rows of cells


@dataclass(frozen=True)
class Reader:
    """One tensor of the picture, and its position among all of them."""

    position: int
    name: str
    x: Tensor


@dataclass(frozen=True)
class Strip:
    """One storage and its readers, in slots of `unit` bytes. `shown` slots are drawn, from `first` on."""

    letter: str
    readers: tuple[Reader, ...]
    unit: int
    slots: int
    first: int
    shown: int

    @property
    def has_data(self) -> bool:
        return self.readers[0].x.untyped_storage().device.type != "meta"

    @property
    def by_byte(self) -> bool:
        """Whether elements of different widths read the storage; its slots are numbered in bytes then."""
        return any(reader.x.element_size() != self.unit for reader in self.readers)

    def label(self, slot: int) -> int:
        """The number written on a slot."""
        return slot * self.unit if self.by_byte else slot

    def slots_per_element(self, x: Tensor) -> int:
        """More than 1 where `x` shares the storage with a tensor of narrower elements."""
        return x.element_size() // self.unit

    def slots_of(self, x: Tensor, index: Index) -> range:
        """The slots that hold `x[index]`."""
        width = self.slots_per_element(x)
        start = x.storage_offset() + sum(i * step for i, step in zip(index, x.stride(), strict=True))
        return range(start * width, (start + 1) * width)

    def read_counts(self, x: Tensor) -> list[int]:
        """How many elements of `x` read each slot that is drawn, without visiting the elements.

        Strides are never negative and no tensor starts before `first`, so the drawn slots are enough.
        """
        width = self.slots_per_element(x)
        counts = [0] * self.shown
        start = x.storage_offset() * width - self.first
        if x.numel() and start < self.shown:
            counts[start] = 1
        steps = [(size, step * width) for size, step in zip(x.size(), x.stride(), strict=True)]
        for size, step in [*steps, (width, 1)]:
            counts = _repeat(counts, size, step)
        return counts

    def values(self) -> list[str]:
        """The values in the drawn slots, read from the storage itself; blanks where there is no data."""
        if not self.has_data:
            return [""] * self.shown
        narrow = next(reader.x for reader in self.readers if reader.x.element_size() == self.unit)
        window = torch.empty(0, dtype=narrow.dtype, device=narrow.device)
        window.set_(narrow.untyped_storage(), self.first, (self.shown,), (1,))
        return [short(value) for value in window.cpu().tolist()]


def _repeat(counts: list[int], size: int, step: int) -> list[int]:
    """Each read repeated `size` times, `step` slots apart."""
    if step == 0:
        return [count * size for count in counts]
    starts = (max(slot % step, slot - (size - 1) * step) for slot in range(len(counts)))
    return [sum(counts[start : slot + 1 : step]) for slot, start in enumerate(starts)]


def strips_of(names: list[str], tensors: tuple[Tensor, ...]) -> list[Strip]:
    """One strip for each storage, lettered in the order in which the tensors bring them."""
    groups: dict[int, list[Reader]] = {}
    for position, (name, x) in enumerate(zip(names, tensors, strict=True)):
        groups.setdefault(storage_identity(x), []).append(Reader(position, name, x))
    return [_strip(_letter(i), tuple(readers)) for i, readers in enumerate(groups.values())]


def storage_identity(x: Tensor) -> int:
    """The same number for tensors over one storage; unlike a data pointer it tells empty storages apart."""
    return x.untyped_storage()._cdata


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"A{index - 25}"


def _strip(letter: str, readers: tuple[Reader, ...]) -> Strip:
    unit = min(reader.x.element_size() for reader in readers)
    slots = readers[0].x.untyped_storage().nbytes() // unit
    first = _first_shown(readers, unit) if slots > SLOTS_SHOWN else 0
    return Strip(letter, readers, unit, slots, first, min(SLOTS_SHOWN, slots - first))


def _first_shown(readers: tuple[Reader, ...], unit: int) -> int:
    """The lowest slot that is read, rounded down to the start of a row."""
    starts = [r.x.storage_offset() * r.x.element_size() // unit for r in readers if r.x.numel()]
    return min(starts, default=0) // SLOTS_PER_ROW * SLOTS_PER_ROW


def crop(x: Tensor) -> tuple[slice, ...]:
    """The part of `x` whose elements are drawn, as an index."""
    limits = [BLOCKS_SHOWN] * (x.dim() - 2) + [ROWS_SHOWN, COLUMNS_SHOWN][-x.dim() :]
    return tuple(slice(0, min(size, limit)) for size, limit in zip(x.size(), limits[: x.dim()], strict=True))


def blocks(x: Tensor) -> Iterator[Block]:
    """The indices that are drawn: one block of rows for each index into all but the last two dimensions."""
    if x.numel() == 0:
        return
    ranges = [range(part.stop) for part in crop(x)]
    for lead in itertools.islice(itertools.product(*ranges[:-2]), BLOCKS_SHOWN):
        rows = itertools.product(*ranges[-2:-1])
        yield [[(*lead, *row, *cell) for cell in itertools.product(*ranges[-1:])] for row in rows]


def element_texts(x: Tensor) -> dict[Index, str]:
    """The drawn elements as the tensor reads them, conjugated or negated; empty where there is no data."""
    if x.untyped_storage().device.type == "meta" or not x.numel():
        return {}
    part = x.detach()[crop(x)].cpu()
    indices = itertools.product(*map(range, part.size()))
    return {index: short(value) for index, value in zip(indices, part.flatten().tolist(), strict=True)}


def short(value: bool | int | float | complex) -> str:
    """A value in as few characters as tell it from its neighbors; a float keeps its point."""
    if isinstance(value, complex):
        return f"{value.real:.2g}{value.imag:+.2g}j"
    if isinstance(value, float):
        text = f"{value:.3g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
        return f"{text}." if text.lstrip("-").isdigit() else text
    text = str(value)
    return text if len(text) <= 7 else f"{value:.1e}"
