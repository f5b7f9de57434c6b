"""What a worker process gets from its parent, on its command line."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

COMMAND = "__worker"
"""The command of ``virtual-node`` that runs a worker; only the parent uses it."""
LOOPBACK = "127.0.0.1"
_STDIN = 0


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the processes of ``--workers N``.

    Attributes:
        number: number of the worker, from 1.
        member: name of the replica. A restarted worker has the same name, so it gets its lower clusters back without
            waiting until its Lease expires. The parent has waited for the end of the earlier process.
        listener: file descriptor of the listening socket for health and metrics; -1: they are not served.
    """

    number: int
    member: str
    listener: int

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> tuple[Self, list[str]]:
        """Return the worker and the daemon's own arguments, given the arguments that follow ``COMMAND``."""
        number, member, listener, *rest = arguments
        return cls(int(number), member, int(listener)), rest

    def arguments(self, rest: Sequence[str]) -> list[str]:
        """Return the command and its arguments, followed by the daemon's own."""
        return [COMMAND, str(self.number), self.member, str(self.listener), *rest]

    def socket(self) -> socket.socket:
        """Return the listening socket that the parent has bound."""
        return socket.socket(fileno=self.listener)

    def stop_with_parent(self) -> None:
        """Send SIGTERM to this process when the parent ends, even if the parent was killed.

        Standard input is a pipe to which the parent writes nothing, so it becomes readable when the parent ends.
        """
        import asyncio  # noqa: PLC0415 - each command reads the name of the worker's command from this module

        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(_STDIN)
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(_STDIN, ended)
