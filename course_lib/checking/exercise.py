"""What an author writes: an exercise is a reference, cases, observers and misconceptions; a question has replies."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from course_lib.checking import observe
from course_lib.checking.observe import Observer
from course_lib.checking.rules import Forbidden
from course_lib.checking.trial import Case


@dataclass(frozen=True)
class Misconception:
    """A wrong answer that people write, and what they believe."""

    name: str
    sentence: str
    answer: Callable


def _call(answer: Callable, *args: Any, **kwargs: Any) -> Any:
    return answer(*args, **kwargs)


@dataclass(eq=False)
class Exercise:
    """One graded task. Its name and statement are those of the reference."""

    reference: Callable
    title: str
    objective: str
    difficulty: int  # 1 to 3
    minutes: int
    hints: tuple[str, str, str]  # where to look; what to compute; nearly the code
    why: str  # shown with the solution
    observes: list[Observer]
    points: float = 1
    stretch: bool = False
    forbids: tuple[Forbidden, ...] = ()
    number: str = field(default="", init=False)  # such as 01.3; the course's table gives it
    misconceptions: list[Misconception] = field(default_factory=list, init=False)
    alternatives: list[Callable] = field(default_factory=list, init=False)
    expected: list | None = field(default=None, init=False, repr=False)  # what the reference showed
    seen_of_misconceptions: dict[str, list] = field(default_factory=dict, init=False, repr=False)
    builder: Callable[[torch.Generator], Iterator[Case]] | None = field(default=None, init=False, repr=False)
    _scenario: Callable = field(default_factory=lambda: _call, init=False, repr=False)

    def cases(self, build: Callable[[torch.Generator], Iterator[Case]]) -> Callable:
        """Decorator: a generator function that yields the cases, small ones first."""
        self.builder = build
        return build

    def scenario(self, run: Callable) -> Callable:
        """Decorator: what to do with the answer on a case, where calling it is not enough."""
        self._scenario = run
        return run

    def alternative(self, answer: Callable) -> Callable:
        """Decorator: another correct answer. It must pass."""
        self.alternatives.append(answer)
        return answer

    def misconception(self, sentence: str) -> Callable:
        """Decorator: a wrong answer, with what the person believes and what is true."""

        def add(answer: Callable) -> Callable:
            self.misconceptions.append(Misconception(answer.__name__, sentence, answer))
            return answer

        return add

    @property
    def name(self) -> str:
        return self.reference.__name__

    @property
    def statement(self) -> str:
        return inspect.getdoc(self.reference) or ""

    @property
    def run(self) -> Callable:
        return self._scenario

    @cached_property
    def observers(self) -> tuple[Observer, ...]:
        return (*observe.STANDING, *self.observes)

    @cached_property
    def recorders(self) -> list[type]:
        return list(dict.fromkeys(recorder for observer in self.observers for recorder in observer.recorders))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the inputs, for saying which one is meant."""
        runs_plainly = self._scenario is _call and callable(self.reference)
        names = list(inspect.signature(self.reference if runs_plainly else self._scenario).parameters)
        return tuple(names if runs_plainly else names[1:])

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    def fresh_cases(self) -> list[Case]:
        """The cases, built anew from the same seed, so that no run sees what another run left."""
        return build_cases(self.builder, self.seed)


def build_cases(builder: Callable[[torch.Generator], Iterator[Case]], seed: int) -> list[Case]:
    """Modules draw their weights from the global generator, so it is seeded as well, and put back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return list(builder(torch.Generator().manual_seed(seed)))


@dataclass(frozen=True)
class Question:
    """A prediction: every choice has its own reply."""

    name: str
    objective: str
    text: str
    choices: dict[str, str]
    answer: str
    replies: dict[str, str]
    points: float = 1
