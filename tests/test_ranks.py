"""The launcher: whatever a rank does, there is a clear report within the limit, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import ranks
from course_lib.ranks import Deadlock, OutOfTime, RankDied, RankRaised, launch

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def own_children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def listening() -> set[str]:
    """Inodes of the TCP sockets of this machine that wait for connections."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == "0A"}


def own_sockets() -> list[str]:
    """Inodes of the listening sockets of this process."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted({link[8:-1] for link in links if link.startswith("socket:[")} & listening())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def soon(condition) -> bool:
    """Whether it comes true: the kernel takes a moment to end what was killed."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        os.sched_yield()
    return condition()


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    children = own_children() if sys.platform == "linux" else set()
    yield
    assert list(folder.glob("ranks-*")) == []  # PyTorch keeps a cache of its own there
    if sys.platform == "linux":
        assert own_children() <= children


# ---- ranks that do what they should ------------------------------------------------------------------------------


def total(start: float) -> torch.Tensor:
    x = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(x)
    return x


def test_results_come_in_order_of_rank():
    outcome = launch(lambda: (dist.get_rank(), dist.get_world_size()), ranks=3)
    assert outcome.results == [(0, 3), (1, 3), (2, 3)]


def test_ranks_talk_to_each_other():
    assert [x.tolist() for x in launch(total, 1.0).results] == [[3.0], [3.0]]


def test_closures_and_what_the_caller_computed_reach_the_ranks():
    torch.mm(torch.randn(300, 300), torch.randn(300, 300))  # OpenMP has run here before the fork
    weight = torch.arange(3.0)
    assert torch.equal(launch(lambda: weight @ weight).results[1], weight @ weight)


def test_a_rank_has_torchruns_variables_one_thread_and_the_callers_random_state():
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)

    def look():
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        return [os.environ[name] for name in names], torch.get_num_threads(), torch.rand(2)

    for rank, (variables, threads, drawn) in enumerate(launch(look).results):
        assert variables == [str(rank), str(rank), "2", "2"]
        assert threads == 1 and torch.equal(drawn, expected)


def test_a_launch_leaves_the_caller_as_it_was():
    before = torch.get_rng_state(), dict(os.environ), threading.active_count()

    def change():
        torch.manual_seed(99)
        torch.set_default_dtype(torch.float64)
        os.environ["LEFT"] = "behind"

    launch(change)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (dict(os.environ), threading.active_count()) == before[1:]
    assert torch.get_default_dtype() is torch.float32 and not dist.is_initialized()


def test_output_is_kept_apart_by_rank_and_labeled():
    def talk():
        print("hello from", dist.get_rank())
        print("a warning", file=sys.stderr)

    outcome = launch(talk)
    assert [report.printed for report in outcome.ranks] == [f"hello from {r}\na warning\n" for r in range(2)]
    assert "[rank 1] hello from 1" in repr(outcome) and "rank 0 returned" in repr(outcome)


def test_what_a_child_process_prints_belongs_to_its_rank():
    command = [sys.executable, "-c", "print('from a child')"]
    assert (
        launch(lambda: subprocess.run(command, check=True).returncode, ranks=1).ranks[0].printed
        == "from a child\n"
    )


def test_the_journal_has_the_collectives_also_those_of_ddp():
    def step():
        ddp = DistributedDataParallel(nn.Linear(4, 1))
        ddp(torch.ones(2, 4)).sum().backward()
        dist.broadcast(torch.ones(3), src=1)

    made = [(call.name, call.numel) for call in launch(step).ranks[0].collectives]
    assert made[-2:] == [("all_reduce", 5), ("broadcast", 3)]


def test_sends_and_receives_name_their_peer():
    def exchange():
        if dist.get_rank() == 0:
            dist.send(torch.ones(2), 1)
        else:
            dist.recv(torch.ones(2))  # from anyone

    first, second = (report.collectives[0] for report in launch(exchange).ranks)
    assert (first.name, first.peer) == ("send", 1) and (second.name, second.peer) == ("recv", None)


# ---- ranks that don't --------------------------------------------------------------------------------------------


def test_an_exception_is_told_with_its_line():
    def raises():
        if dist.get_rank() == 1:
            raise ValueError("a broken sample")

    outcome = launch(raises)
    assert [report.end for report in outcome.ranks] == ["returned", "raised"]
    assert 'raise ValueError("a broken sample")' in outcome.ranks[1].detail
    with pytest.raises(RankRaised, match="rank 1 raised: ValueError: a broken sample"):
        _ = outcome.results


@pytest.mark.parametrize("leave", [sys.exit, lambda: (_ for _ in ()).throw(KeyboardInterrupt)])
def test_exits_and_interrupts_inside_a_rank_are_exceptions_like_others(leave):
    assert launch(lambda: [leave()], ranks=1).ranks[0].end == "raised"


@pytest.mark.parametrize(
    ("die", "reason"),
    [
        (lambda: os._exit(3), "exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: os._exit(0), "exit code 0"),
    ],
    ids=["os._exit", "a signal", "an exit that looks like success"],
)
def test_a_rank_that_dies_is_told_from_one_that_returned(die, reason):
    def one_dies():
        if dist.get_rank() == 1:
            die()
        dist.barrier()

    outcome = launch(one_dies)
    assert outcome.ranks[1].end == "died" and reason in outcome.ranks[1].detail
    with pytest.raises(RankDied, match=reason):
        _ = outcome.results


def joined_by_one():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))


def different_calls():
    dist.all_reduce(torch.ones(1)) if dist.get_rank() else dist.barrier()


def different_roots():
    dist.broadcast(torch.ones(1), src=dist.get_rank())


def all_receive():
    dist.recv(torch.ones(1), 1 - dist.get_rank())


def one_step_more():
    ddp = DistributedDataParallel(nn.Linear(1, 1))
    for _ in range(2 + dist.get_rank()):
        ddp(torch.ones(1, 1)).sum().backward()


@on_linux
@pytest.mark.parametrize(
    "function", [joined_by_one, different_calls, different_roots, all_receive, one_step_more]
)
def test_a_deadlock_is_seen_long_before_the_time_limit(function):
    outcome = launch(function, time_limit=300)
    with pytest.raises(Deadlock, match="waits in"):
        _ = outcome.results


def test_a_rank_that_computes_or_pauses_is_not_taken_for_one_that_waits():
    def slow():
        if dist.get_rank() == 0:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                torch.ones(100).sum()
            threading.Event().wait(0.5)
        return total(0.0).item()

    assert launch(slow).results == [1.0, 1.0]


def test_a_rank_may_wait_for_one_that_waits_for_a_send_that_comes():
    def chain():
        x, rank = torch.zeros(1), dist.get_rank()
        if rank:
            dist.recv(x, rank - 1)
        else:
            threading.Event().wait(0.4)
        if rank < 2:
            dist.send(x + 1, rank + 1)
        return x.item()

    assert launch(chain, ranks=3).results == [0.0, 1.0, 2.0]


def test_the_time_limit_ends_a_rank_that_never_comes():
    def one_pauses():
        if dist.get_rank() == 1:
            threading.Event().wait()
        dist.barrier()

    started = time.monotonic()
    outcome = launch(
        one_pauses, time_limit=5.0
    )  # on a busy machine rank 0 may need seconds to get to the barrier
    assert time.monotonic() - started < 60
    assert outcome.ranks[0].end == "waits" and "rank 1 did not enter" in outcome.ranks[0].detail
    assert outcome.ranks[1].end == "out of time"
    with pytest.raises(OutOfTime, match="stopped after 5 s"):
        _ = outcome.results


def test_the_time_limit_ends_a_rank_that_ignores_signals():
    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            with contextlib.suppress(BaseException):
                threading.Event().wait()

    assert launch(stubborn, ranks=1, time_limit=0.5).ranks[0].end == "out of time"


def test_ten_megabytes_of_output_are_cut_and_both_ends_stay():
    def talkative():
        print("the beginning")
        for _ in range(10_000):
            print("x" * 1000)
        print("the end")

    outcome = launch(talkative)
    printed = outcome.ranks[0].printed
    assert outcome.results == [None, None] and len(printed) < 5000
    assert printed.startswith("the beginning") and printed.endswith("the end\n") and "left out" in printed


def test_output_without_end_is_stopped():
    def endless():
        while True:
            print("x" * 100_000)

    outcome = launch(endless, time_limit=300)
    assert {report.end for report in outcome.ranks} == {"out of time"}
    assert "printing more than 64 MB" in outcome.ranks[0].detail


def test_what_is_no_plain_value_does_not_cross():
    with pytest.raises(RankRaised, match="can't leave its process"):
        _ = launch(lambda: object()).results


def test_a_failed_launch_has_no_results_even_of_the_ranks_that_returned():
    outcome = launch(joined_by_one)
    with pytest.raises(Deadlock):
        _ = outcome.results


# ---- nothing is left behind --------------------------------------------------------------------------------------


@on_linux
def test_a_hundred_runs_leave_no_process_no_port_and_no_file():
    launch(total, 0.0)  # what is imported once
    before = own_children(), len(os.listdir("/proc/self/fd"))
    endings = [own_sockets, joined_by_one, one_raises, one_exits]
    outcomes = [launch(endings[number % 4]) for number in range(100)]
    ports = {inode for outcome in outcomes[::4] for found in outcome.results for inode in found}
    assert len(ports) >= 50  # each rank listens while it lives
    assert not ports & listening()
    assert (own_children(), len(os.listdir("/proc/self/fd"))) == before
    assert list(Path(tempfile.gettempdir()).glob("ranks-*")) == []


def one_raises():
    if dist.get_rank():
        raise RuntimeError("no")
    dist.barrier()


def one_exits():
    if dist.get_rank():
        os._exit(1)
    dist.barrier()


@on_linux
@pytest.mark.parametrize("own_session", [False, True], ids=["of the rank's group", "of its own session"])
def test_processes_that_a_rank_started_end_with_it(own_session):
    def parent():
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        return subprocess.Popen(command, start_new_session=own_session).pid

    pids = launch(parent).results
    assert soon(lambda: not any(map(is_running, pids)))


@on_linux
def test_an_interrupt_of_the_launcher_ends_the_ranks(tmp_path):
    def pause(file: str):
        Path(file).write_text(str(os.getpid()))
        threading.Event().wait()

    file = tmp_path / "pid"

    def interrupt():
        soon(lambda: file.exists() and bool(file.read_text()))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        launch(pause, str(file), ranks=1)
    assert not is_running(int(file.read_text()))


@on_linux
def test_ranks_end_when_their_launcher_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, threading\n"
        "from course_lib.ranks import launch\n"
        "def pause():\n"
        "    print(os.getpid())\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "    threading.Event().wait()\n"
        "launch(pause, ranks=1, time_limit=300)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(tmp_path)}
    launcher = subprocess.Popen([sys.executable, str(script)], env=environment)
    file = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        os.sched_yield()
    launcher.kill()
    launcher.wait()
    pid = int(file.read_text())
    assert soon(lambda: not is_running(pid))


# ---- where a process can't be forked -----------------------------------------------------------------------------


NOTEBOOK = """
import torch
import torch.distributed as dist
from torch import nn

FACTOR = 3.0

class Scale(nn.Module):
    def forward(self, x):
        return helper(x) * FACTOR

def helper(x):
    return x + dist.get_rank()

def work(x):
    result = Scale()(x)
    dist.all_reduce(result)
    return result
"""


def test_a_fresh_interpreter_rebuilds_what_a_notebook_defines(monkeypatch):
    monkeypatch.setattr(ranks, "CAN_FORK", False)
    names: dict = {"__name__": "__main__"}
    ranks.remember_source("<a cell>", NOTEBOOK)
    exec(compile(NOTEBOOK, "<a cell>", "exec"), names)
    outcome = launch(names["work"], torch.ones(2), time_limit=120)
    assert [x.tolist() for x in outcome.results] == [[9.0, 9.0], [9.0, 9.0]]


def test_a_fresh_interpreter_shows_a_deadlock_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr(ranks, "CAN_FORK", False)
    outcome = launch(joined_by_one, time_limit=120)
    assert [report.end for report in outcome.ranks] == ["waits", "returned"]
