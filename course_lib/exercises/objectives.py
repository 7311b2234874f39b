"""The objectives of the course: what a learner can do afterwards, and in which notebook it is learned."""

from __future__ import annotations

from typing import NamedTuple


class Objective(NamedTuple):
    id: str
    sentence: str  # completes "After this notebook you can ..."
    notebook: str


START, TENSORS, AUTOGRAD = "00_start_here", "01_tensors", "02_autograd"
MODULES, DATA = "03_modules", "04_data"
TRAINING, MEMORY, PITFALLS = "05_training", "06_memory", "07_pitfalls"
DISTRIBUTED = "08_distributed"
INFERENCE = "09_inference"
GPT = "10_gpt"

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
    Objective("autograd.graph", "read the graph that your code records, down to its leaves", AUTOGRAD),
    Objective("autograd.backward", "say what backward computes, where it puts it, and why it adds", AUTOGRAD),
    Objective(
        "autograd.stopping", "stop gradients in the right place, with the right one of five tools", AUTOGRAD
    ),
    Objective(
        "autograd.inplace",
        "tell which edits in place autograd allows, which it refuses and which it misses",
        AUTOGRAD,
    ),
    Objective(
        "autograd.functions", "write a custom Function whose first and second derivatives are right", AUTOGRAD
    ),
    Objective("autograd.gradcheck", "check a gradient, and say what the check can't see", AUTOGRAD),
    Objective("autograd.engine", "build a reverse-mode engine yourself", AUTOGRAD),
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
    Objective("data.datasets", "write a dataset whose items are the same on every visit", DATA),
    Objective(
        "data.batches", "say how a loader makes batches, and average over samples instead of batches", DATA
    ),
    Objective("data.collate", "pad sequences of different lengths, and say what is padding", DATA),
    Objective("data.splits", "split data so that nothing of validation reaches training", DATA),
    Objective(
        "data.seeding", "make the order of training repeatable, whatever else draws random numbers", DATA
    ),
    Objective("data.workers", "say what a worker process has for itself, and when workers pay", DATA),
    Objective("data.streams", "read a stream with several workers, each item once", DATA),
    Objective("data.transfer", "say what pinning and non_blocking do, and what they do not", DATA),
    Objective("data.tokens", "cut a stream of tokens into inputs and targets, shifted by one", DATA),
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
    Objective(
        "distributed.ranks",
        "start several processes that form a group, and read what became of each of them",
        DISTRIBUTED,
    ),
    Objective(
        "distributed.collectives", "say what a collective moves, and build one out of sends", DISTRIBUTED
    ),
    Objective(
        "distributed.ddp", "make replicas that start equal and stay equal, with DDP and by hand", DISTRIBUTED
    ),
    Objective(
        "distributed.communication",
        "count the collectives of a training step, and leave out those that are needless",
        DISTRIBUTED,
    ),
    Objective(
        "distributed.data",
        "give each rank its share of every epoch, also where it does not divide",
        DISTRIBUTED,
    ),
    Objective(
        "distributed.template",
        "turn your training template into its DDP form, and launch it with torchrun",
        DISTRIBUTED,
    ),
    Objective(
        "distributed.memory", "say what each GPU holds under ZeRO and FSDP, and what that costs", DISTRIBUTED
    ),
    Objective("inference.modes", "answer questions with a model and leave no trace in it", INFERENCE),
    Objective(
        "inference.determinism",
        "make a run repeatable, and say what that costs and what it misses",
        INFERENCE,
    ),
    Objective(
        "inference.requests",
        "answer requests of unequal lengths in one batch, each as if it were alone",
        INFERENCE,
    ),
    Objective(
        "inference.compile", "count graphs, breaks and recompiles, and write code that has few", INFERENCE
    ),
    Objective(
        "inference.export",
        "export a model for every batch size, and prove that the artifact is the model",
        INFERENCE,
    ),
    Objective("inference.trust", "load a file from a stranger without running what is in it", INFERENCE),
    Objective("inference.weights", "save and load tied weights in a format that holds no code", INFERENCE),
    Objective(
        "gpt.attention", "write causal attention by hand, and tell its usual mistakes by their effect", GPT
    ),
    Objective("gpt.fused", "use the fused attention with the right mask, and say which kernel runs", GPT),
    Objective("gpt.model", "build a decoder with tied weights, and account for its parameters", GPT),
    Objective("gpt.initialization", "judge a first loss against ln V, and repair the weights behind it", GPT),
    Objective("gpt.data", "cut a text into inputs and targets, and hold out what is quoted nowhere", GPT),
    Objective("gpt.floor", "say how low a loss can get, and take a lower one for a leak", GPT),
    Objective("gpt.training", "train a GPT, and prove that it learned and does not cheat", GPT),
    Objective("gpt.evaluation", "measure a whole text in bits per character, each token once", GPT),
    Objective("gpt.sampling", "draw tokens with a temperature, top-k and top-p", GPT),
    Objective("gpt.cache", "decode with a cache of keys and values, to the same numbers", GPT),
    Objective("gpt.tools", "profile, parallelize and export a model of your own", GPT),
    Objective("gpt.race", "find by ablation what lowers a loss under a fixed budget", GPT),
)
