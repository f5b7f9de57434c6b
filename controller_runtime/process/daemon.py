"""A daemon's command: the version, flags, logging, the limits of the process; then it runs until told to stop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from controller_runtime import log
from controller_runtime.errors import ConfigError
from controller_runtime.process import lifecycle, version
from controller_runtime.process.argparser import complain
from controller_runtime.process.flags import Klog

_VERSION = (["version"], ["--version"], ["-version"])


class Options(Protocol):
    """What every daemon's options have: the arguments of ``log.configure``."""

    @property
    def log_level(self) -> str:
        """``--log-level``."""

    @property
    def log_format(self) -> str:
        """``--log-format``."""

    @property
    def klog(self) -> Klog:
        """Klog's flags, such as ``--v``."""


_Options = TypeVar("_Options", bound=Options)


def main(
    program: str,
    argv: Sequence[str] | None,
    *,
    parse: Callable[[Sequence[str]], _Options],
    run: Callable[[_Options], Coroutine[Any, Any, int]],
) -> int:
    """Run the command line of a program that is a daemon and nothing else; returns the exit code.

    Args:
        program: its name, for errors.
        argv: the arguments; None: the process's.
        parse: options from arguments; raises ConfigError.
        run: the daemon; returns the exit code (``lifecycle.run_until_signal``).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in _VERSION:
        print(version.version() or "unknown")  # noqa: T201 - the answer
        return 0
    try:
        return start(parse(arguments), run)
    except ConfigError as error:
        return complain(program, error)


def start(options: _Options, run: Callable[[_Options], Coroutine[Any, Any, int]]) -> int:
    """Set the process up and run the daemon in a loop of its own; returns the exit code.

    Raises:
        ConfigError: the log's flags are wrong, or the daemon ended by what only the user can mend.
    """
    log.configure(options.log_level, options.log_format, klog_v=options.klog.verbosity)
    if options.klog.ignored:
        log.get_logger(component="flags").warning(
            "flags without effect: the log goes to standard error only", flags=list(options.klog.ignored)
        )
    lifecycle.open_all_files()
    lifecycle.tune_tls()
    return asyncio.run(run(options))
