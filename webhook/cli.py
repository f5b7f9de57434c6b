"""The ``virtual-node-webhook`` command."""

from __future__ import annotations

from collections.abc import Sequence

from controller_runtime.process import daemon, lifecycle
from webhook import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script ``virtual-node-webhook``; return its exit code."""
    return daemon.main(flags.PROGRAM, argv, parse=flags.parse, run=_run)


async def _run(options: flags.Options) -> int:
    from webhook import app  # noqa: PLC0415 - `--help` and a bad flag are answered at once without it

    return await lifecycle.run_until_signal(app.run(options))
