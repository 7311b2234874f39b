"""Comparing two records, and saying in words what a record holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.checking.records import Record, TensorRecord

SHOWN = 24  # elements of a tensor that are written out
MOST_SHOWN = 1_000  # items of a container; a learner's may have millions


@dataclass(frozen=True)
class Difference:
    """The first place at which two records differ, with both sides as text."""

    where: str
    expected: str
    got: str


def difference(
    expected: Any, got: Any, rtol: float = 0, atol: float = 0, where: str = ""
) -> Difference | None:
    """The first difference between two records, or None. Types come first, then shapes, dtypes and values."""
    if type(expected) is not type(got):
        return Difference(where, kind_of(expected), kind_of(got))
    if isinstance(expected, TensorRecord):
        return _tensor_difference(expected, got, rtol, atol, where)
    if isinstance(expected, Record):
        return _container_difference(expected, got, rtol, atol, where)
    if isinstance(expected, (float, complex)):
        same = _close(torch.tensor(expected), torch.tensor(got), rtol, atol).item()
    else:
        same = expected == got
    return None if same else Difference(where, *_told_apart(expected, got))


def _told_apart(expected: Any, got: Any) -> tuple[str, str]:
    """Both in words; numbers that read alike when rounded are given in full."""
    short = describe(expected), describe(got)
    return short if short[0] != short[1] else (_exactly(expected), _exactly(got))


def _tensor_difference(
    expected: TensorRecord, got: TensorRecord, rtol: float, atol: float, where: str
) -> Difference | None:
    for name in ("kind", "shape", "dtype", "device"):
        ours, theirs = getattr(expected, name), getattr(got, name)
        if ours != theirs:
            return Difference(f"{where} {name}".strip(), f"{ours}", f"{theirs}")
    if (expected.data is None) != (got.data is None):
        return Difference(where, describe(expected), describe(got))
    if expected.data is not None and expected.data.numel():
        unequal = ~_close(expected.data, got.data, rtol, atol)
        if unequal.any():
            return _element_difference(expected.data, got.data, unequal, where)
    return difference(expected.state, got.state, rtol, atol, where)


def _element_difference(expected: Tensor, got: Tensor, unequal: Tensor, where: str) -> Difference:
    index = tuple(unequal.nonzero()[0].tolist())
    place = f"{where}{list(index) if index else ''}"
    return Difference(place, *_told_apart(expected[index].item(), got[index].item()))


def _close(expected: Tensor, got: Tensor, rtol: float, atol: float) -> Tensor:
    """Elementwise equality within the tolerance. NaN equals NaN. Both sides have the same shape by now."""
    if expected.is_complex():
        got, expected = got.to(torch.complex128), expected.to(torch.complex128)
        return torch.isclose(got, expected, rtol, atol, equal_nan=True)
    if expected.is_floating_point():
        return torch.isclose(got.double(), expected.double(), rtol, atol, equal_nan=True)
    return expected == got


def _container_difference(
    expected: Record, got: Record, rtol: float, atol: float, where: str
) -> Difference | None:
    if expected.kind != got.kind:
        return Difference(where, expected.kind, got.kind)
    if len(expected.items) != len(got.items):  # before anything is done with what may be endless
        return _key_difference(expected, got, where)
    ours, theirs = _by_key(expected), _by_key(got)
    if ours.keys() != theirs.keys():
        return _key_difference(expected, got, where)
    for key, item in ours.items():
        found = difference(item, theirs[key], rtol, atol, _place(where, key))
        if found:
            return found
    return None


def _key_difference(expected: Record, got: Record, where: str) -> Difference:
    """Missing or extra keys; for sequences, whose keys are counted, the lengths say it better."""
    if all(type(key) is int for key, _ in expected.items + got.items):
        return Difference(where, describe(expected), describe(got))
    verb = " changed" if expected.kind == "changes" else ""
    sides = (", ".join(str(key) for key, _ in side.items[:SHOWN]) or "nothing" for side in (expected, got))
    return Difference(where, *(f"{keys}{verb}" for keys in sides))


def _by_key(record: Record) -> dict[Any, Any]:
    """Keys may repeat (a set's items): number them."""
    return {
        (key, sum(k == key for k, _ in record.items[:i])): item for i, (key, item) in enumerate(record.items)
    }


def _place(where: str, key: tuple[Any, int]) -> str:
    return f"{where}[{key[0]!r}]"


def kind_of(record: Any) -> str:
    """The type of what was recorded, with its value where that is short: `Tensor of shape (3,)`, `bool True`."""
    if isinstance(record, TensorRecord):
        return f"{record.kind} of shape {record.shape}"
    if isinstance(record, Record):
        return record.kind if len(describe(record)) > 60 else f"{record.kind} {describe(record)}"
    return "None" if record is None else f"{type(record).__name__} {describe(record)}"


def describe(record: Any) -> str:
    """A record in one line."""
    if isinstance(record, TensorRecord):
        return _describe_tensor(record)
    if isinstance(record, Record):
        return _describe_container(record)
    if isinstance(record, float):
        text = f"{record:.6g}"
        return text if set(text) & set(".einf") else f"{text}.0"
    text = _exactly(record)
    return text if len(text) <= 200 else text[:197] + "..."


def _exactly(scalar: Any) -> str:
    """Python refuses to write integers of thousands of digits in decimal."""
    return hex(scalar) if type(scalar) is int and scalar.bit_length() > 10_000 else repr(scalar)


def _describe_tensor(record: TensorRecord) -> str:
    device = "" if record.device in ("cpu", "numpy") else f", {record.device}"
    is_hidden = record.data is None or record.data.numel() > SHOWN
    values = "" if is_hidden else f"({_nested(record.data.tolist())})"
    kind = {"Tensor": "tensor", "ndarray": "array"}.get(record.kind, record.kind)
    return f"{kind}{values} of shape {record.shape}, {record.dtype}{device}"


def _nested(values: Any) -> str:
    return f"[{', '.join(map(_nested, values))}]" if isinstance(values, list) else describe(values)


def _describe_container(record: Record) -> str:
    items = record.items
    if len(items) > MOST_SHOWN:
        return f"{record.kind} of {len(items)} items"
    if items and record.kind in ("dtype", "device", "layout", "memory_format"):
        return str(items[0][1])
    if not items:
        empty = {"tuple": "()", "list": "[]", "dict": "{}", "changes": "nothing changed"}
        return empty.get(record.kind, record.kind)
    if all(type(key) is int for key, _ in items) and record.kind != "dict":
        inner = ", ".join(describe(item) for _, item in items)
        comma = "," if record.kind == "tuple" and len(items) == 1 else ""
        return f"[{inner}]" if record.kind == "list" else f"({inner}{comma})"
    if record.kind == "facts" and [key for key, _ in items] == ["result"]:
        return describe(items[0][1])
    inner = ", ".join(f"{key}: {describe(item)}" for key, item in items)
    return inner if record.kind in ("facts", "changes") else f"{record.kind}({inner})"
