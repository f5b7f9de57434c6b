"""Attach to clusters that keep running after the command that started them (``python -m hack.sandbox up``)."""

from __future__ import annotations

import asyncio
import io
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from hack.sandbox.builds.programs import Progress
from hack.sandbox.errors import SandboxError
from hack.sandbox.process import Identity
from hack.sandbox.sandbox import Sandbox
from hack.sandbox.stopping import running, silent

_FILE = "attach.pickle"


def save(sandbox: Sandbox, progress: Progress) -> None:
    """Write the sandbox to a file in its directory, for ``attached``.

    Args:
        sandbox: clusters to keep.
        progress: the callback that the sandbox was made with; ``attached`` gets a silent one.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, progress).dump(sandbox)
    path = sandbox.directory / _FILE
    path.touch(mode=0o600)
    path.write_bytes(buffer.getvalue())


@asynccontextmanager
async def attached(directory: Path) -> AsyncIterator[Sandbox]:
    """Yield the sandbox that runs in a directory; at the end stop the processes started meanwhile, but no cluster.

    Raises:
        SandboxError: no sandbox runs there.
    """
    directory = directory.absolute()
    if "etcd" not in running(directory) or not (directory / _FILE).exists():
        raise SandboxError(f"no clusters run in {directory}; start them with make up")
    with (directory / _FILE).open("rb") as file:
        sandbox: Sandbox = _Unpickler(file).load()
    sandbox._keep = False  # noqa: SLF001 - what is started from now on ends with this process
    for process in (process for cluster in sandbox.clusters for process in cluster.processes):
        process.identity = Identity.read(process.pid_file)  # a test may have restarted it
    try:
        yield sandbox
    finally:
        await asyncio.gather(*(process.stop() for process in sandbox.processes))
        await sandbox.disconnect()


class _Pickler(pickle.Pickler):
    """Leaves out objects that belong to one process."""

    def __init__(self, file: io.BytesIO, progress: Progress) -> None:
        super().__init__(file)
        self._progress = progress

    def persistent_id(self, value: object) -> str | None:
        """Return the name of a value that is not written, otherwise None."""
        if value is self._progress:
            return "progress"
        return "nothing" if isinstance(value, aiohttp.ClientSession | asyncio.subprocess.Process) else None


class _Unpickler(pickle.Unpickler):
    """Reads files of ``_Pickler``."""

    def persistent_load(self, pid: str) -> object:
        """Return the replacement of a value that was not written."""
        return silent if pid == "progress" else None
