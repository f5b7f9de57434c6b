"""Cleans up after a killed owner: a test run ended with SIGKILL leaves no container, bridge or mount.

The janitor waits until its standard input ends. The owner holds the other end of that pipe and never writes to it,
so its end means that the owner has ended, for any reason; then ``python -m hack.sandbox.janitor DIRECTORY`` cleans up.
An owner that exits normally has cleaned up by itself and ends the janitor, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from hack.sandbox.errors import SandboxError
from hack.sandbox.stopping import stop_all

_WAIT = """
import os, sys
os.nice(10)
while os.read(0, 4096):
    pass
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Waits with few modules, because most janitors are ended while they wait: importing this one takes 0.4 s of CPU time."""


class Janitor:
    """The owner's handle of a janitor process, which cleans up when this end of the pipe is closed."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: int) -> None:
        """Keep the pipe open until the owner ends."""
        self._process = process
        self._pipe = pipe

    @classmethod
    async def start(cls, directory: Path, *, remove: bool) -> Self:
        """Start a janitor for a sandbox' folder, optionally one that removes the folder, too."""
        clean = ["-m", __name__, str(directory), *(["--remove"] if remove else [])]
        argv = [sys.executable, "-I", "-S", "-c", _WAIT, *clean]
        theirs, ours = os.pipe()
        try:
            # A session of its own, so that Ctrl-C in a terminal reaches only the owner.
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=theirs,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parents[2],
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return cls(process, ours)

    async def stop(self) -> None:
        """Stop the janitor, because everything is cleaned up."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def main(argv: Sequence[str] | None = None) -> int:
    """Stop all remaining processes of a sandbox whose owner has ended; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.sandbox.janitor", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--remove", action="store_true", help="the folder, too")
    options = parser.parse_args(argv)
    try:
        asyncio.run(stop_all(options.directory, remove=options.remove))
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
