"""The ``virtual-node-multi-scheduler`` command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from importlib import metadata

from controller_runtime import lifecycle, log
from controller_runtime.errors import ConfigError
from multi_scheduler import flags

_USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Console script ``virtual-node-multi-scheduler``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["--version"], ["-version"], ["version"]):
        print(_version())  # noqa: T201 - the answer
        return 0
    try:
        options = flags.parse(arguments)
        log.configure(options.log_level, options.log_format, klog_v=options.klog_verbosity)
        return asyncio.run(_run(options))
    except ConfigError as error:
        print(f"{flags.PROGRAM}: {error}", file=sys.stderr)  # noqa: T201 - one line, no traceback
        return _USAGE_ERROR


async def _run(options: flags.Options) -> int:
    from multi_scheduler.app import App  # noqa: PLC0415 - `--help` answers at once without it

    return await lifecycle.run_until_signal(App(options).run())


def _version() -> str:
    try:
        return metadata.version("virtual-node")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"
