"""Run a command to its end: kubectl, helm, the project's programs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.sandbox.errors import SandboxError


@dataclass(frozen=True, slots=True)
class Completed:
    """The output and exit code of a command."""

    returncode: int
    stdout: str
    stderr: str


async def command(
    argv: Sequence[str | Path],
    *,
    name: str = "",
    input: str | bytes | None = None,  # noqa: A002 - as subprocess.run calls it
    check: bool = True,
    timeout: float = 120,  # noqa: ASYNC109 - of the command
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Completed:
    """Run a command to its end.

    Args:
        argv: the command line.
        name: its name in errors; empty: its beginning.
        input: for its standard input.
        check: whether a failure is an error.
        timeout: seconds after which it is killed.
        env: its whole environment; None: this process's.
        cwd: its working directory; None: this process's.

    Raises:
        SandboxError: it failed, when ``check`` is set, or took too long; quotes its output.
        OSError: it cannot be started.
    """
    name = name or f"{' '.join(map(str, argv[:6]))} …"
    data = input.encode() if isinstance(input, str) else input
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE if data is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        cwd=cwd,
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate(data)
    except TimeoutError:
        raise SandboxError(f"{name}: no end after {timeout:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    done = Completed(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))
    if check and done.returncode:
        raise SandboxError(f"{name}: {(done.stderr or done.stdout).strip()}")
    return done
