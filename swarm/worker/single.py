"""Ensures a single process per worker, because a second one would run the same jobs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import socket
import sys
from collections.abc import AsyncIterator

_log = logging.getLogger(__name__)

_POLL = 0.5


@contextlib.asynccontextmanager
async def alone(worker: str) -> AsyncIterator[None]:
    """Wait until no other process in this network namespace runs as the worker, and hold the lock within the block.

    The lock is an abstract socket name, which the kernel releases when the process ends for any reason. On systems
    other than Linux there is no lock.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        is_logged = False
        while sys.platform == "linux" and not _take(held, worker):
            if not is_logged:
                _log.warning("waiting until another process of worker %s exits", worker)
            is_logged = True
            await asyncio.sleep(_POLL)
        yield
    finally:
        held.close()


def _take(held: socket.socket, worker: str) -> bool:
    try:
        held.bind(f"\0virtual-node-swarm/{hashlib.sha256(worker.encode()).hexdigest()}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
