"""The ``virtual-node-descheduler`` command."""

from __future__ import annotations

from collections.abc import Sequence

from controller_runtime.process import daemon, lifecycle
from descheduler import flags
from descheduler.config.options import Options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script ``virtual-node-descheduler``; return its exit code."""
    return daemon.main(flags.PROGRAM, argv, parse=flags.parse, run=_run)


async def _run(options: Options) -> int:
    from descheduler import app  # noqa: PLC0415 - `--help` and a bad flag are answered at once without it

    return await lifecycle.run_until_signal(app.run(options))
