"""What nbclient leaves to chance: a port that another program takes, and a reply that nobody notices."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import nbformat
import pytest
import zmq.asyncio
from jupyter_client.connect import LocalPortCache
from nbclient.exceptions import CellExecutionError

from course_lib.authoring import environment
from course_lib.execution import Client


def notebook(source: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])


def test_a_kernel_whose_port_another_program_takes_is_replaced(monkeypatch, tmp_path):
    find, sum_of_ones = LocalPortCache.find_available_port, notebook("1 + 1")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        offered = [other.getsockname()[1]]
        monkeypatch.setattr(
            LocalPortCache,
            "find_available_port",
            lambda cache, ip: offered.pop() if offered else find(cache, ip),
        )
        Client(sum_of_ones).run(environment(tmp_path))
    assert not offered
    assert sum_of_ones.cells[0].outputs[0].data["text/plain"] == "2"


def test_a_cell_that_fails_is_not_run_again(tmp_path):
    counts = f"print(file=open({str(tmp_path / 'runs')!r}, 'a'))\nraise RuntimeError('died before replying')"
    with pytest.raises(CellExecutionError):
        Client(notebook(counts)).run(environment(tmp_path))
    assert (tmp_path / "runs").read_text() == "\n"


def test_a_reply_whose_signal_was_consumed_is_noticed():
    async def scene() -> int:
        with (
            zmq.asyncio.Context() as context,
            context.socket(zmq.PAIR) as ours,
            context.socket(zmq.PAIR) as other,
        ):
            other.bind("inproc://reply")
            ours.connect("inproc://reply")
            client = Client(nbformat.v4.new_notebook(), record_timing=False)
            client.kc = SimpleNamespace(shell_channel=SimpleNamespace(socket=ours))
            waits = asyncio.ensure_future(ours.poll(60_000))
            await asyncio.sleep(0)
            await other.send(b"the reply")
            zmq.Socket.shadow(ours.underlying).get(zmq.EVENTS)  # as a write to this socket does
            busy = {"msg_type": "status", "content": {"execution_state": "busy"}, "parent_header": {}}
            client.process_message(busy, nbformat.v4.new_code_cell(), 0)
            return await asyncio.wait_for(waits, 30)

    assert asyncio.run(scene()) == zmq.POLLIN
