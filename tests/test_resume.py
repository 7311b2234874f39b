"""A training process that is killed with SIGKILL between two steps, five times, ends with the same bits."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.environment import ROOT

N_STEPS, SAVE_EVERY = 40, 4

# Before each step the process says its number and waits for a word. What it prints at the end: every bit that is left.
PROCESS = '''
import hashlib, random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from course_lib.reference.training import ResumableBatches, Trainer, param_groups, warmup_cosine

path, seed = sys.argv[1], int(sys.argv[2])
torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
torch.set_num_threads(1)
x = torch.linspace(-3, 3, 30).unsqueeze(1)
data = TensorDataset(x, x.sin())


class Noise(nn.Module):
    """Draws from all three global generators."""

    def forward(self, h):
        return h * (1 + 0.01 * (random.random() + np.random.rand() + torch.rand(1)))


def make_batches(step):
    sampler = ResumableBatches(len(data), batch_size=7, seed=3, start=step)
    for number, batch in enumerate(DataLoader(data, batch_sampler=sampler, generator=torch.Generator()), step):
        print("step", number, flush=True)
        sys.stdin.readline()
        yield batch


model = nn.Sequential(nn.Linear(1, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), Noise(), nn.Linear(16, 1))
opt = torch.optim.AdamW(param_groups(model, 0.01), lr=1e-2)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: warmup_cosine(step, N_STEPS, 5, 0.1))
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
trainer = Trainer(model, nn.functional.mse_loss, opt, sched, scaler, torch.float16, clip=1.0)
losses = trainer.fit(make_batches, N_STEPS, path, SAVE_EVERY, progress=False)
moments = [state[key] for state in opt.state.values() for key in ("exp_avg", "exp_avg_sq", "step")]
left = [*model.state_dict().values(), *moments, torch.rand(1), torch.tensor([np.random.rand(), random.random()])]
bits = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in left)).hexdigest()
print("end", bits, scaler.get_scale(), sched.get_last_lr(), losses[-1], flush=True)
'''


def run(path: Path, seed: int, kill_at: int | None = None) -> tuple[list[int], str]:
    """Let a process train. It is killed while it stands between two steps, if a step is given.

    The steps that it began, and the last line that it said.
    """
    source = PROCESS.replace("N_STEPS", str(N_STEPS)).replace("SAVE_EVERY", str(SAVE_EVERY))
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(path), str(seed)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        begun, last = [], ""
        for line in process.stdout:
            last = line.strip()
            if not last.startswith("step"):
                continue
            begun.append(int(last.split()[1]))
            if begun[-1] == kill_at:
                process.kill()
                break
            process.stdin.write("go\n")
            process.stdin.flush()
    assert (process.returncode == 0) is (kill_at is None)
    return begun, last


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> str:
    """What is left of a run that nobody killed."""
    begun, last = run(tmp_path_factory.mktemp("whole") / "run.pt", seed=0)
    assert begun == list(range(N_STEPS)) and last.startswith("end")
    return last


def test_a_run_that_is_killed_at_five_places_ends_with_the_same_bits(undisturbed, tmp_path):
    places = sorted(random.Random(5).sample(range(SAVE_EVERY, N_STEPS), 5))  # after the first checkpoint
    resumed_at = 0
    for seed, place in enumerate(places):  # the seed counts until there is a checkpoint, and not after it
        begun, last = run(tmp_path / "run.pt", seed, kill_at=place)
        assert begun == list(range(resumed_at, place + 1)) and not last.startswith("end")
        resumed_at = place // SAVE_EVERY * SAVE_EVERY
    begun, last = run(tmp_path / "run.pt", seed=99)
    assert begun == list(range(resumed_at, N_STEPS))
    assert last == undisturbed


def test_without_the_checkpoint_the_bits_are_others(undisturbed, tmp_path):
    """So that the test above can fail: another seed alone leads elsewhere."""
    assert run(tmp_path / "run.pt", seed=99)[1] != undisturbed
