"""The answers of notebook 06: memory and profiling.

Names of sizes: batch sequences, seq tokens in each, dim numbers per token, n_heads attention heads.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint


def training_bytes(model: nn.Module, opt: str) -> dict[str, int]:
    """Return what stays in memory from step to step: `{"params": ..., "grads": ..., "opt": ...}` in bytes.

    `opt` is "sgd" (no momentum), "momentum" (SGD with momentum) or "adamw".
    "params" counts all parameters, trained or frozen; a tied weight is there once. Buffers do not count.
    "grads" counts the gradients that exist after a backward pass that reaches every trained parameter.
    "opt" counts what the optimizer keeps for the trained parameters after its first step, in their dtype.
    Leave out the few bytes in which Adam counts its steps.
    The values are plain `int`. The model is not changed, and need not be run.
    """
    params = sum(p.nbytes for p in model.parameters())
    grads = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    copies = {"sgd": 0, "momentum": 1, "adamw": 2}[opt]
    return {"params": params, "grads": grads, "opt": copies * grads}


def saved_activation_bytes(model: nn.Module, fn: Callable[[], Any]) -> int:
    """Return how many bytes autograd keeps for the backward pass of what `fn()` computes.

    `fn()` runs a forward pass with `model` and returns its output, which you hold while you count.
    Everything that is saved for the backward pass counts, the batch too, with the bytes of its whole storage.
    A storage counts once, however many tensors on it are saved.
    The parameters of `model` do not count, whether they are trained or frozen: they are there anyway.
    Call `fn` once. Where nothing is saved the answer is 0.
    """
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn()
    del output
    return sum(kept.values())


def gpt_activation_bytes(batch: int, seq: int, dim: int, n_heads: int, n_layers: int, vocab: int) -> int:
    """Return how many bytes the forward pass of this notebook's mini GPT leaves behind for the backward pass.

    The numbers are float32, nothing is checkpointed. Count what grows with the batch, as in the table above:
    each of the `n_layers` blocks, then the last norm, the head and the loss. The batch itself (the token numbers)
    does not count. The result is a plain `int`.
    """
    rows = batch * seq
    norm = rows * dim + 2 * rows
    attention = 4 * rows * dim + n_heads * rows
    mlp = 8 * rows * dim
    block = 2 * rows * dim + 2 * norm + attention + mlp
    head = rows * dim + norm + rows * vocab
    return 4 * (n_layers * block + head)


class PeakTracker(TorchDispatchMode):
    """Count the bytes of all storages that operators make: `with PeakTracker() as tracker: ...`.

    `tracker.now` is what is in use at this moment, `tracker.peak` the most that ever was; both start at 0.
    A storage counts with all its bytes from the operator that makes it until the last tensor on it is gone.
    Views and results written in place bring no new storage. The tracker keeps nothing alive.
    Results may be a tensor, or tuples, lists and dicts that hold tensors. Operators work as without the tracker.
    Everything that the code inside the block uses is made inside the block.
    """

    def __init__(self):
        super().__init__()
        self.sizes = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(result)):
            self.meet(tensor.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def meet(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            weakref.finalize(storage, self.sizes.pop, key)

    @property
    def now(self) -> int:
        return sum(self.sizes.values())


def peak_stage(events: list[tuple[str, int]]) -> tuple[int, str]:
    """Return the most bytes that were ever in use, and the stage in which that was so: `(bytes, stage)`.

    `events` is a list of `(stage, bytes)` in order of time: a positive number of bytes was allocated in that
    stage, a negative number was freed. Nothing is in use at the beginning.
    There is at least one event, and the peak is reached only once. The list is not changed.
    """
    now, peak, where = 0, 0, ""
    for stage, nbytes in events:
        now += nbytes
        if now > peak:
            peak, where = now, stage
    return peak, where


def fake_peak(build: Callable[[], nn.Module], batch_shape: tuple[int, ...]) -> int:
    """Return the peak of training `build()` with AdamW, in bytes, without allocating the model or a batch.

    `build()` makes the model. A step is: a float32 batch of `batch_shape`, the sum of the output as the loss,
    backward, `optimizer.step()`. Take the peak over whole steps, one or two: everything that is in use counts,
    parameters, gradients, optimizer state, activations, and the temporary tensors of the optimizer's step.
    The result is a plain `int`. As optimizers do their steps in more than one way, it is right from 4 to 5.2 times
    the bytes of the parameters in these cases. `build()` must make no real parameters: think of models that are too
    large for that.
    """
    from torch.distributed._tools.mem_tracker import MemTracker  # here, for it brings the compiler along

    with FakeTensorMode():
        model = build()
        opt = torch.optim.AdamW(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, opt)
        with tracker:
            model(torch.randn(batch_shape)).sum().backward()
            opt.step()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    return peak["Total"]


def forward_checkpointed(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    """Return `x` passed through all `blocks`, keeping of each block only its input.

    `x` is `(batch, dim)`, and so is what each block returns. Each block is checkpointed by itself: what it computes
    inside is thrown away, and computed a second time in the backward pass.
    The result and all gradients are those of the plain loop, whether or not `x` requires a gradient,
    and also where a block draws random numbers (dropout).
    """
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


def profile_window(fn: Callable[[int], Any], wait: int, warmup: int, active: int) -> list[str]:
    """Profile some calls of `fn` on the CPU, and return the names of those that were recorded, sorted.

    Call `fn(0)`, `fn(1)`, ... `wait + warmup + active` times, one call a step. Let the profiler wait for `wait` steps,
    warm up for `warmup` (at least 1) and record `active` (at least 1), once.
    Each `fn(i)` marks its work with `record_function(f"user_{i}")`; the names to return begin with "user_".
    """
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as prof:
        for i in range(wait + warmup + active):
            fn(i)
            prof.step()
    return sorted(row.key for row in prof.key_averages() if row.key.startswith("user_"))


def hottest_op(prof: profile) -> str:
    """Return the name of the aten operator that takes the most CPU time itself: in all its calls together,
    without the operators that it calls.

    `prof` is a finished profile. The names of aten operators begin with "aten::"; ranges of your own and Python
    functions are in the profile too, and are no operators. No two operators take the same time.
    """
    operators = [row for row in prof.key_averages() if row.key.startswith("aten::")]
    return max(operators, key=lambda row: row.self_cpu_time_total).key


def self_times(events: list[dict[str, Any]]) -> dict[str, int]:
    """Return for each name in a trace the time spent in its calls themselves, without the calls inside them.

    `events` is the list `"traceEvents"` of a profiler's trace, in any order. A call is an event with `"ph"` equal to
    "X" and `"cat"` equal to "cpu_op" or "user_annotation"; all other events are to be passed over.
    A call has a `"name"`, a start `"ts"`, a duration `"dur"` (in whole microseconds, at least 1), a thread `"tid"`.
    Within one thread calls lie side by side or one inside the other; of two that start together the longer is outside.
    A call that starts when another ends is not inside it. Calls in different threads are never inside each other.
    The result has one entry for each name, summed over its calls. The events are not changed.
    """
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    times = defaultdict(int)
    open_calls = defaultdict(list)
    for call in sorted(calls, key=lambda call: (call["ts"], -call["dur"])):
        outside = open_calls[call["tid"]]
        while outside and outside[-1]["ts"] + outside[-1]["dur"] <= call["ts"]:
            outside.pop()
        if outside:
            times[outside[-1]["name"]] -= call["dur"]
        times[call["name"]] += call["dur"]
        outside.append(call)
    return dict(times)


def count_host_syncs(fn: Callable[[], Any]) -> int:
    """Return how often `fn()` asks a tensor for its number, so that on a GPU the CPU would have to wait for it.

    `.item()`, `float(x)`, `int(x)`, `bool(x)`, `if x:` and `f"{x:.3f}"` each ask once: each dispatches the operator
    `aten::_local_scalar_dense`. Reading a whole tensor (`tolist()`, `cpu()`, `print(x)`) does not occur.
    Call `fn` once. The result is a plain `int`.
    """
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        fn()
    counts = {row.key: row.count for row in prof.key_averages()}
    return counts.get("aten::_local_scalar_dense", 0)
