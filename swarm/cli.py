"""The ``virtual-node-swarm`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from controller_runtime.process import daemon, lifecycle
from swarm import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Console script ``virtual-node-swarm``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["worker"]:
        return _work(arguments[1:])
    return daemon.main(flags.PROGRAM, arguments, parse=flags.parse, run=_run)


def _work(arguments: Sequence[str]) -> int:
    from swarm.worker.sidecar import command  # noqa: PLC0415 - the controller does not need it

    parser = argparse.ArgumentParser(f"{flags.PROGRAM} worker", description="Runs one worker of a Swarm.")
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


async def _run(options: flags.Options) -> int:
    from swarm.app import App  # noqa: PLC0415 - `--help` and a bad flag are answered at once without it

    return await lifecycle.run_until_signal(App(options).run())
