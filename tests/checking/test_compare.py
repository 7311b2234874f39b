"""Records and their comparison: types before shapes before values, nothing broadcast, NaN equal to NaN."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from course_lib.checking.compare import describe, difference
from course_lib.checking.records import freeze

Point = namedtuple("Point", "x y")
nan = float("nan")

SAME = [
    (torch.Size([2, 3]), (2, 3)),
    (nn.Parameter(torch.ones(2)), torch.ones(2)),
    (torch.tensor([nan, 1]), torch.tensor([nan, 1])),
    (nan, nan),
    (torch.ones(2, 3).t().contiguous(), torch.ones(2, 3).t()),
    ({"a": [1, torch.ones(1)], "b": None}, {"b": None, "a": [1, torch.ones(1)]}),
    (Point(1, 2), Point(1, 2)),
    ({3, 1, 2}, {1, 2, 3}),
    (np.arange(3), np.arange(3)),
    (torch.empty(0, 3), torch.empty(0, 3)),
    (torch.float16, torch.float16),
]
DIFFERENT = [
    (True, 1),
    (1, 1.0),
    ((1, 2), [1, 2]),
    (True, torch.tensor(True)),
    (True, np.bool_(True)),
    (torch.tensor(6), torch.tensor([6])),
    (torch.tensor([6, 6]), torch.tensor([6])),
    (torch.ones(2, 1), torch.ones(1, 2)),
    (torch.ones(2), torch.ones(2, dtype=torch.float64)),
    (torch.tensor([1.0, nan]), torch.tensor([1.0, 0.0])),
    (torch.ones(2), torch.ones(2, device="meta")),
    (torch.ones(2), np.ones(2, dtype=np.float32)),
    (Point(1, 2), (1, 2)),
    ({"a": 1}, {"a": 1, "b": 2}),
    ([1, 2], [1]),
    (torch.tensor([1.0]), torch.tensor([1.0 + 2e-7])),
    (torch.float16, torch.bfloat16),
    ("1", 1),
    (None, 0),
]


@pytest.mark.parametrize(("left", "right"), SAME, ids=lambda value: type(value).__name__)
def test_equal_records(left, right):
    assert difference(freeze(left), freeze(right)) is None


@pytest.mark.parametrize(("left", "right"), DIFFERENT, ids=lambda value: type(value).__name__)
def test_different_records(left, right):
    for a, b in ((left, right), (right, left)):
        found = difference(freeze(a), freeze(b), rtol=0)
        assert found and found.expected != found.got


def test_tolerance_is_relative_and_absolute():
    one, near = freeze(torch.tensor([1.0, 0.0])), freeze(torch.tensor([1.0 + 1e-5, 1e-6]))
    assert difference(one, near, rtol=1e-4, atol=1e-5) is None
    assert difference(one, near, rtol=1e-4, atol=1e-7)


def test_the_first_difference_is_named():
    found = difference(
        freeze([{"x": torch.tensor([[1, 2], [3, 4]])}]), freeze([{"x": torch.tensor([[1, 2], [5, 4]])}])
    )
    assert (found.where, found.expected, found.got) == ("[0]['x'][1, 0]", "3", "5")


class Liar:
    """Equal to everything, and slow to print."""

    def __eq__(self, other):
        return True

    def __repr__(self):
        raise AssertionError("never asked")

    def __len__(self):
        return 3


class LyingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("never asked")


class LyingList(list):
    def __iter__(self):
        raise AssertionError("never asked")


@pytest.mark.parametrize(
    "liar",
    [Liar(), torch.ones(2).as_subclass(LyingTensor), LyingList([1.0, 1.0])],
    ids=["object", "tensor", "list"],
)
def test_objects_that_lie_equal_nothing(liar):
    assert difference(freeze(torch.ones(2)), freeze(liar))
    assert describe(freeze(liar))


def test_a_record_does_not_change_with_its_tensor():
    x = torch.zeros(2)
    record = freeze(x)
    x += 1
    assert difference(record, freeze(torch.zeros(2))) is None


def test_inputs_carry_their_autograd_state():
    x = torch.ones(2, requires_grad=True)
    before = freeze(x, with_state=True)
    x.sum().backward()
    assert difference(before, freeze(x, with_state=True)) and difference(
        before, freeze(x.detach(), with_state=True)
    )


def test_modules_are_seen_with_mode_hooks_and_buffers():
    def changed(change):
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        before = freeze(module, with_state=True)
        change(module)
        return difference(before, freeze(module, with_state=True))

    assert changed(lambda m: m[1].eval())
    assert changed(lambda m: m[0].register_forward_hook(lambda *a: None))
    assert changed(lambda m: m(torch.randn(4, 2)))
    assert changed(lambda m: m[0].weight.requires_grad_(False))
    assert not changed(lambda m: m.state_dict())


def test_a_huge_expanded_result_is_not_copied():
    record = freeze(torch.zeros(1).expand(10**12))
    assert record.data is None and "1000000000000" in describe(record)
