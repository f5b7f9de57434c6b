"""Copies the processes' output to this process's output, with the job's name before each line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

_LINE = 64 * 1024
"""Bytes after which a line is split."""


class Output:
    """The file that all processes print to.

    A thread writes, so that a blocked reader blocks the processes and not the event loop.
    """

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file or sys.stdout.buffer
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="output")

    async def copy(self, pipe: int, prefix: str) -> None:
        """Copy a pipe until all processes have closed it, then close it."""
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader(limit=_LINE)
        # The transport closes the file.
        file = os.fdopen(pipe, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), file)
        start, rest = prefix.encode() + b" ", b""
        try:
            while chunk := await stream.read(_LINE):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) >= _LINE:
                    lines, rest = [*lines, rest], b""
                if lines:
                    await loop.run_in_executor(
                        self._writer, self._write, b"".join(start + line + b"\n" for line in lines)
                    )
            if rest:
                await loop.run_in_executor(self._writer, self._write, start + rest + b"\n")
        finally:
            transport.close()

    def _write(self, data: bytes) -> None:
        # If our output is closed, the jobs' pipes are still read, so that the jobs do not end by SIGPIPE.
        with contextlib.suppress(OSError, ValueError):
            self._file.write(data)
            self._file.flush()
