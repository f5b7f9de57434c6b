"""The ``virtual-node-multi-scheduler`` command."""

from __future__ import annotations

from collections.abc import Sequence

from controller_runtime.process import daemon, lifecycle
from multi_scheduler import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Console script ``virtual-node-multi-scheduler``."""
    return daemon.main(flags.PROGRAM, argv, parse=flags.parse, run=_run)


async def _run(options: flags.Options) -> int:
    # Imported here so that `--help` and flag errors do not wait for these imports.
    from multi_scheduler import app  # noqa: PLC0415
    from multi_scheduler.process import config_waiting  # noqa: PLC0415

    return await lifecycle.run_until_signal(config_waiting.run(options, flags.PROGRAM, app.run))
