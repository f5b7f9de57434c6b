"""A daemon's command: version, flags, logging and process limits, then the daemon until a signal stops it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from controller_runtime import log
from controller_runtime.errors import ConfigError
from controller_runtime.process import lifecycle, terminal, version
from controller_runtime.process.argparser import complain
from controller_runtime.process.flags import LogOptions

_VERSION = (["version"], ["--version"], ["-version"])


_Options = TypeVar("_Options", bound=LogOptions)


def main(
    program: str,
    argv: Sequence[str] | None,
    *,
    parse: Callable[[Sequence[str]], _Options],
    run: Callable[[_Options], Coroutine[Any, Any, int]],
) -> int:
    """Run the command line of a program that is only a daemon; return the exit code.

    Args:
        program: its name, for errors.
        argv: the arguments; None: those of the process.
        parse: returns the options for the arguments, or raises ConfigError.
        run: the daemon; returns the exit code (``lifecycle.run_until_signal``).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in _VERSION:
        terminal.line(version.version() or "unknown")
        return 0
    try:
        return start(parse(arguments), run)
    except ConfigError as error:
        return complain(program, error)


def start(options: _Options, run: Callable[[_Options], Coroutine[Any, Any, int]]) -> int:
    """Configure the process and run the daemon in a new event loop; return the exit code.

    Raises:
        ConfigError: the log flags are invalid, or the daemon ended with errors that only the user can
            correct.
    """
    log.configure(options.log_level, options.log_format, klog_v=options.klog.verbosity)
    if options.klog.ignored:
        log.get_logger(component="flags").warning(
            "flags without effect: the log goes to standard error only", flags=list(options.klog.ignored)
        )
    lifecycle.open_all_files()
    lifecycle.tune_tls()
    return asyncio.run(run(options))
