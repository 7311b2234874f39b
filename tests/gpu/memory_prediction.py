"""Predicted against measured memory on a CUDA device. Run it by hand; pytest does not collect it:

    python tests/gpu/memory_prediction.py

For each configuration and phase of the second training step it prints the simulated peak, what the allocator
measured, and their ratio. Allocated bytes are compared, not reserved ones. Expected, not promised: a few percent
more than simulated (sizes rounded up to 512 bytes, workspaces of cuBLAS), and less where a fused kernel of the
GPU keeps less than the CPU's operators (RMSNorm; autocast has another list of operators).
Exits with 1 where the peak of a float32 step is off by more than 10 percent, and with 2 without a CUDA device.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import nn

from course_lib.simulation import FULL_SIZE, GPTConfig, MiB, measure_on_gpu, track_training

TOLERANCE = 0.10
WIDE = replace(FULL_SIZE, norm=nn.LayerNorm)
CHARACTERS = GPTConfig(vocab=512, dim=384, n_heads=6, n_layers=6, max_seq=1024)
RUNS = {
    "the full mini GPT, 32 x 128": (FULL_SIZE, 32, 128, {}),
    "the same with LayerNorm": (WIDE, 32, 128, {}),
    "the same, checkpointed": (replace(WIDE, checkpointed=True), 32, 128, {}),
    "the same, 4 micro-batches": (WIDE, 8, 128, {"micro_batches": 4}),
    "the same, bfloat16": (WIDE, 32, 128, {"bf16": True}),
    "a model of characters, 8 x 1024": (CHARACTERS, 8, 1024, {}),
    "the same, checkpointed again": (replace(CHARACTERS, checkpointed=True), 8, 1024, {}),
}


def compare(name: str, config: GPTConfig, batch: int, seq: int, options: dict) -> bool:
    """Print one configuration; whether its peak is as predicted."""
    simulated = track_training(config, batch, seq, steps=2, **options).peaks()
    measured = measure_on_gpu(config, batch, seq, steps=2, **options)
    print(f"\n{name}\n  {'phase':12} {'simulated':>12} {'measured':>12}   ratio")
    for phase in ("batch 2", "forward 2", "backward 2", "optimizer 2"):
        ours, theirs = simulated[phase] / MiB, measured[phase] / MiB
        print(f"  {phase:12} {ours:8.1f} MiB {theirs:8.1f} MiB   {theirs / ours:.3f}")
    ratio = max(measured.values()) / max(simulated.values())
    return bool(options.get("bf16")) or abs(ratio - 1) <= TOLERANCE


def main() -> int:
    if not torch.cuda.is_available():
        print("There is no CUDA device here: nothing was measured.")
        return 2
    print(torch.__version__, torch.cuda.get_device_name())
    torch.ones(64, 64, device="cuda") @ torch.ones(
        64, 64, device="cuda"
    )  # the workspace of cuBLAS, beforehand
    as_predicted = [compare(name, *run) for name, run in RUNS.items()]
    return 0 if all(as_predicted) else 1


if __name__ == "__main__":
    sys.exit(main())
