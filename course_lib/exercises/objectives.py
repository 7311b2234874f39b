"""The objectives of the course: what a learner can do afterwards, and in which notebook it is learned."""

from __future__ import annotations

from typing import NamedTuple


class Objective(NamedTuple):
    id: str
    sentence: str  # completes "After this notebook you can ..."
    notebook: str


START, TENSORS = "00_start_here", "01_tensors"
PITFALLS = "07_pitfalls"

OBJECTIVES = (
    Objective(
        "start.rhythm", "predict what a cell prints, run it, solve an exercise and read its report", START
    ),
    Objective(
        "tensors.storage", "find any element of a tensor in its storage by offset and strides", TENSORS
    ),
    Objective(
        "tensors.views", "tell which tensors share a storage, and what a write through one changes", TENSORS
    ),
    Objective(
        "tensors.contiguity", "say when view, reshape and contiguous copy, and when they do not", TENSORS
    ),
    Objective("tensors.strides", "compute strides, and make new views by choosing them", TENSORS),
    Objective("tensors.layout", "move and split dimensions without mixing up what they hold", TENSORS),
    Objective(
        "tensors.broadcasting",
        "apply the broadcasting rule, and notice a shape that fits by accident",
        TENSORS,
    ),
    Objective(
        "tensors.aliasing", "write through indexing and expanded tensors and hit what you meant to", TENSORS
    ),
    Objective("tensors.saving", "save a small part of a large tensor in a small file", TENSORS),
    Objective("tensors.devices", "move a nested batch to a device and a dtype", TENSORS),
    Objective("tensors.numpy", "exchange numbers with NumPy without sharing memory by accident", TENSORS),
    Objective(
        "pitfalls.shapes",
        "find shapes, masks and devices that meet by accident, and make them meet on purpose",
        PITFALLS,
    ),
    Objective(
        "pitfalls.gradients",
        "tell where a gradient comes from, who applies it, and what a write to a tensor does to it",
        PITFALLS,
    ),
    Objective(
        "pitfalls.loop",
        "repair a training loop by its symptoms, and keep every feature that it had",
        PITFALLS,
    ),
    Objective(
        "pitfalls.data",
        "make randomness depend on a seed alone, and keep the data as they were handed to you",
        PITFALLS,
    ),
    Objective(
        "pitfalls.memory", "find graphs that live too long, and the places where the host waits", PITFALLS
    ),
    Objective(
        "pitfalls.precision", "choose half precision for a machine, and numbers that fit into it", PITFALLS
    ),
    Objective(
        "pitfalls.saving", "resume a run bit for bit, and load weights without undoing a tie", PITFALLS
    ),
)
