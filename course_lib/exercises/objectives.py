"""The objectives of the course: what a learner can do afterwards, and in which notebook it is learned."""

from __future__ import annotations

from typing import NamedTuple


class Objective(NamedTuple):
    id: str
    sentence: str  # completes "After this notebook you can ..."
    notebook: str


START, TENSORS = "00_start_here", "01_tensors"
MODULES = "03_modules"
MEMORY = "06_memory"

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
        "modules.registration",
        "say of everything that you assign to a module whether it is trained, saved and moved",
        MODULES,
    ),
    Objective(
        "modules.containers",
        "build models of many parts, all of them registered, and count their numbers",
        MODULES,
    ),
    Objective("modules.saving", "keep, rename and load a state, and know what was not loaded", MODULES),
    Objective("modules.tying", "tie two weights, and notice what breaks the tie", MODULES),
    Objective("modules.meta", "build a model without memory and give it weights afterwards", MODULES),
    Objective(
        "modules.modes", "say what train and eval mode change, layer by layer, and what they do not", MODULES
    ),
    Objective("modules.freezing", "freeze a part of a model so that it really stays as it is", MODULES),
    Objective("modules.hooks", "look into a model with hooks, and leave none behind", MODULES),
    Objective(
        "memory.budget", "say what parameters, gradients and optimizer take, before the first batch", MEMORY
    ),
    Objective(
        "memory.activations", "count what autograd keeps of a forward pass, on paper and with hooks", MEMORY
    ),
    Objective(
        "memory.timeline",
        "weigh a training step of a GPU that is not there, and find the moment of its peak",
        MEMORY,
    ),
    Objective(
        "memory.savings", "choose between checkpointing, accumulation and bfloat16 by what each saves", MEMORY
    ),
    Objective("memory.profiling", "record the steps that you mean, and rank operators by self time", MEMORY),
    Objective(
        "memory.traces", "read a trace as data: self times, host syncs, copies that nobody asked for", MEMORY
    ),
)
