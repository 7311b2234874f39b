"""What the course asks: the table of notebooks, and the exercises, questions and objectives of each.

A topic's module holds its exercises and questions as module-level objects, in the order in which its notebook
asks them. Adding one there is all it takes: the notebook, the checks, the laws and the map of the course find it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import NamedTuple

from course_lib.checking import Exercise, Question
from course_lib.exercises.objectives import OBJECTIVES


class Notebook(NamedTuple):
    """A notebook of the course. `name` is its file name without suffix, `topic` the module of its exercises."""

    name: str
    title: str

    @property
    def topic(self) -> str:
        return self.name[3:]


NOTEBOOKS = (
    Notebook("00_start_here", "Start here"),
    Notebook("01_tensors", "Tensors: a storage and a view"),
    Notebook("02_autograd", "Autograd: the graph behind a number"),
    Notebook("03_modules", "Modules: what is registered is what exists"),
    Notebook("04_data", "Data: from a dataset to a batch"),
    Notebook("05_training", "Training: a loop to take to work"),
    Notebook("06_memory", "Memory and profiling"),
    Notebook("07_pitfalls", "The pitfalls clinic"),
    Notebook("08_distributed", "Distributed: several processes, one model"),
    Notebook("09_inference", "Inference and deployment"),
    Notebook("10_gpt", "Mini GPT"),
)


@cache
def exercises_of(notebook: str) -> tuple[Exercise, ...]:
    """The exercises of a notebook (`01_tensors`), numbered, in order."""
    found = tuple(item for item in vars(_topic(notebook)).values() if isinstance(item, Exercise))
    for position, item in enumerate(found, start=1):
        item.number = f"{notebook[:2]}.{position}"
    return found


@cache
def questions_of(notebook: str) -> tuple[Question, ...]:
    """The predictions of a notebook, in order."""
    return tuple(item for item in vars(_topic(notebook)).values() if isinstance(item, Question))


def _topic(notebook: str):
    return import_module(f"course_lib.exercises.{notebook[3:]}")


def all_exercises() -> dict[str, Exercise]:
    """Every exercise of the course by name."""
    return {item.name: item for notebook in NOTEBOOKS for item in exercises_of(notebook.name)}


def all_questions() -> dict[str, Question]:
    """Every prediction of the course by name."""
    return {item.name: item for notebook in NOTEBOOKS for item in questions_of(notebook.name)}


def exercise(name: str) -> Exercise:
    """The exercise of that name. Raises KeyError where there is none."""
    return all_exercises()[name]


def question(name: str) -> Question:
    """The prediction of that name. Raises KeyError where there is none."""
    return all_questions()[name]


def objectives_of(notebook: str) -> list[tuple[str, str]]:
    """(id, sentence) of what a notebook teaches."""
    return [(item.id, item.sentence) for item in OBJECTIVES if item.notebook == notebook]
