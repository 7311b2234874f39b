"""What `check` says of an answer. Several laws read it, so each answer is judged once."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from course_lib.checking import Exercise, Report, judge
from course_lib.checking.trial import global_state
from tests.answers import answer_from


@cache
def judged(exercise: Exercise, answer: Callable) -> tuple[Report, list[str]]:
    """The report on an answer, and what the check left changed, in a process whose switches are not the usual ones."""
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    try:
        before = process_state()
        report = judge(exercise, answer_from(exercise, answer))
        return report, [name for name, value in process_state().items() if value != before[name]]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


def process_state() -> dict[str, Any]:
    """Whatever code can leave changed, in a form that `==` compares."""
    return {
        **global_state(),
        "random state of PyTorch": torch.get_rng_state().tolist(),
        "random state of NumPy": [part.tolist() for part in map(np.asarray, np.random.get_state())],
        "random state of Python": random.getstate(),
        "warning filters": list(warnings.filters),
    }
