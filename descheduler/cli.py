"""The ``virtual-node-descheduler`` command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from importlib import metadata

from controller_runtime import lifecycle, log
from controller_runtime.errors import ConfigError
from descheduler import command_line, flags

_USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["version"], ["--version"], ["-version"]):
        print(version())  # noqa: T201 - the answer
        return 0
    try:
        options = flags.parse(arguments)
        log.configure(options.log_level, options.log_format, klog_v=options.klog_verbosity)
    except ConfigError as error:
        print(f"{command_line.PROGRAM}: {error}", file=sys.stderr)  # noqa: T201 - one line, no traceback
        return _USAGE_ERROR

    async def run() -> int:
        from descheduler.app import App  # noqa: PLC0415 - a bad flag is answered at once without it

        return await lifecycle.run_until_signal(App(options).run())

    return asyncio.run(run())


def version() -> str:
    """The installed version."""
    try:
        return metadata.version("virtual-node")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"
