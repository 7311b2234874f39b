"""A notebook's cells in a fresh kernel: nbclient, without two things that it leaves to chance."""

from __future__ import annotations

from typing import Any

from nbclient import NotebookClient
from nbformat import NotebookNode

CELL_SECONDS = 240  # a cell that takes longer than this hangs


class Client(NotebookClient):
    """Executes a notebook as nbclient does, with its options."""

    def run(self, environment: dict[str, str]) -> None:
        """Execute the notebook in place. A kernel that dies before it answers is replaced once.

        Jupyter chooses the ports of a kernel about a second before the kernel takes them, and meanwhile any program
        may take one.
        """
        try:
            self.execute(env=environment)
        except RuntimeError as error:
            if "died before replying" not in str(error):
                raise
            self.execute(env=environment)

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Take in one message of the kernel, and look again whether the reply to the cell is there.

        An output widget makes nbclient write to the socket on which it waits for that reply. Writing consumes the
        socket's signal that something came (ZMQ_FD is edge-triggered, see zmq_getsockopt(3)): a reply that comes
        just then was noticed only when the time limit was over.
        """
        found = super().process_message(msg, cell, cell_index)
        self.kc.shell_channel.socket.poll().cancel()  # asking wakes who waits
        return found
