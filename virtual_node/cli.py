"""The ``virtual-node`` command: the daemon by default, and subcommands for people."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Sequence
from importlib import metadata

from controller_runtime import lifecycle, log
from controller_runtime.errors import ConfigError
from virtual_node import flags

_USAGE_ERROR = 2
COMMANDS = ("run", "check", "status", "diagnose", "lower-cluster", "version", "providers")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Console script ``virtual-node``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    try:
        match command:
            case "":
                return _daemon(arguments)
            case "run":
                return _daemon(arguments[1:])
            case "check":
                from virtual_node import check  # noqa: PLC0415 - rich is for people; the daemon does without

                return check.main(arguments[1:])
            case "status":
                from virtual_node.commands import status  # noqa: PLC0415

                return status.main(arguments[1:])
            case "diagnose":
                from virtual_node.commands import diagnose  # noqa: PLC0415

                return diagnose.main(arguments[1:])
            case "lower-cluster":
                from virtual_node.commands import lower_cluster  # noqa: PLC0415

                return lower_cluster.main(arguments[1:])
            case "version":
                print(version())  # noqa: T201 - the answer
                return 0
            case "providers":
                print("k8s")  # noqa: T201 - the answer
                return 0
            case _:
                print(  # noqa: T201 - one line, no traceback
                    f"virtual-node: unknown command {command!r}: {', '.join(COMMANDS)} are known{_guess(command)}",
                    file=sys.stderr,
                )
                return _USAGE_ERROR
    except ConfigError as error:
        print(f"virtual-node: {error}", file=sys.stderr)  # noqa: T201 - one line, no traceback
        return _USAGE_ERROR


def _guess(command: str) -> str:
    close = difflib.get_close_matches(command, COMMANDS, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def version() -> str:
    """The installed version."""
    try:
        return metadata.version("virtual-node")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _daemon(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-version"]):
        print(version())  # noqa: T201 - the answer
        return 0
    options = flags.parse(arguments)
    log.configure(options.log_level, options.log_format, klog_v=options.klog_verbosity)

    async def run() -> int:
        from virtual_node.app import App  # noqa: PLC0415 - `virtual-node --help` answers at once without it

        return await lifecycle.run_until_signal(App(options).run())

    return asyncio.run(run())
