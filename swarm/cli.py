"""The ``virtual-node-swarm`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from controller_runtime.process import daemon, lifecycle
from swarm import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Console script ``virtual-node-swarm``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["worker"]:
        from swarm.worker.sidecar import command  # noqa: PLC0415 - the controller does not need it

        return command.main(arguments[1:], command.PROGRAM)
    return daemon.main(flags.PROGRAM, arguments, parse=flags.parse, run=_run)


async def _run(options: flags.Options) -> int:
    from swarm import app  # noqa: PLC0415 - `--help` and a bad flag are answered at once without it

    return await lifecycle.run_until_signal(app.run(options))
