"""The objectives of the course: what a learner can do afterwards, and in which notebook it is learned."""

from __future__ import annotations

from typing import NamedTuple


class Objective(NamedTuple):
    id: str
    sentence: str  # completes "After this notebook you can ..."
    notebook: str


START, TENSORS = "00_start_here", "01_tensors"
TRAINING = "05_training"

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
    Objective("training.loop", "write an epoch whose updates and whose loss are right", TRAINING),
    Objective("training.evaluation", "evaluate a model and leave no trace in it", TRAINING),
    Objective("training.stability", "clip gradients, and get over a batch that is not finite", TRAINING),
    Objective(
        "training.optimizer", "say which parameters decay, and give the learning rate its schedule", TRAINING
    ),
    Objective(
        "training.accumulation", "get the step of a large batch from small ones of any sizes", TRAINING
    ),
    Objective("training.precision", "train in float16 or bfloat16 with one loop, on any device", TRAINING),
    Objective(
        "training.checkpoints",
        "stop at the right time, and save and restore all that a run remembers",
        TRAINING,
    ),
    Objective("training.resume", "write a training loop that goes on after a kill, bit for bit", TRAINING),
)
