"""A program that runs until a signal stops it: its declaration, and what all programs have in common.

A program declares its settings, and everything else follows: the flags and their help, the version, the set-up of
the log and of the process, signals, errors in one line and exit codes.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from controller_runtime.errors import ConfigError
from controller_runtime.process import terminal
from controller_runtime.process.flags import ForeignFlags, Klog, address, take_klog
from controller_runtime.process.settings import PROCESS, UPPER, Setting, add_flags, apply
from controller_runtime.process.terminal import Parser, complain

_VERSION = (["version"], ["--version"], ["-version"])
YOUNG_OBJECTS = 20_000
"""Number of new objects after which young objects are collected, from the start on. A collection stops the event loop: 0.15 s for
100,000 objects if 59,000 of them are cyclic garbage, as after thousands of refused requests. A higher number does not make
lists decode faster."""


def version() -> str:
    """Return the installed version; empty when run from sources that are not installed."""
    from importlib import metadata  # noqa: PLC0415 - few commands ask for the version

    try:
        return metadata.version("virtual-node")
    except metadata.PackageNotFoundError:
        return ""


class ProgramSettings(msgspec.Struct, kw_only=True):
    """The settings of every program: those of its log, and its command line."""

    log_level: Annotated[str, Setting(PROCESS, "--log-level LEVEL")] = "info"
    """trace, debug, info, warn or error."""
    log_format: Annotated[Literal["auto", "json", "console"], Setting(PROCESS, "--log-format")] = "auto"
    """json, console, or auto, which is console if stderr is a terminal."""
    klog: Klog = Klog()
    foreign: tuple[str, ...] = ()
    """Flags of the program's ``foreign`` that were given and have no effect."""
    argv: tuple[str, ...] = ()
    """The command line."""
    given: frozenset[str] = frozenset()
    """The flags that the command line has, as attributes of argparse's namespace (``Setting.dest``)."""

    def load(self) -> None:
        """Set values by the files that flags name. Flags and variables are set before, and override the values again.

        Raises:
            ConfigError: a file is invalid; the text names it.
        """

    def check(self) -> None:
        """Check the settings together, and set those that follow from others.

        Raises:
            ConfigError: the settings contradict each other; the text names the flags.
        """


class ClientSettings(ProgramSettings, kw_only=True):
    """The settings of a program with a client of the upper cluster: the arguments of ``kubeconfig.load``."""

    kubeconfig: Annotated[str, Setting(UPPER, "--kubeconfig FILE")] = ""
    """Upper cluster's kubeconfig. Empty: $KUBECONFIG, ~/.kube/config, in-cluster."""
    master: Annotated[str, Setting(UPPER, "--master URL")] = ""
    """Overrides the kubeconfig's server."""


class HealthSettings(ClientSettings, kw_only=True):
    """The settings of a program that has a client of the upper cluster and serves its health."""

    health_addr: Annotated[str, Setting(PROCESS, "--health-addr HOST:PORT", parse=address)] = ""
    """Serve /healthz, /readyz and /metrics on this address. Empty: not served."""


S = TypeVar("S", bound=ProgramSettings)


@dataclass(frozen=True, kw_only=True)
class Program(Generic[S]):
    """The declaration of a program. Calling it runs a command line and returns the exit code."""

    name: str
    about: str
    """What the program does, for its help."""
    settings: type[S]
    """The flags; a structure without required fields."""
    run: str
    """The coroutine function that runs with the settings until it is cancelled, as ``module:function``. Its module is
    imported when the command line is valid, so that ``--help`` and an invalid flag are answered at once."""
    rights: str
    """Module with the tables of rights that the program needs."""
    examples: Sequence[tuple[str, str]] = ()
    """Purpose and arguments of command lines, for the help."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """First argument → what runs with the others instead of the program, and returns the exit code, as
    ``module:function``."""
    foreign: ForeignFlags | None = None
    """Flags of the program that this program replaces; each that is given is reported."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the program; return its exit code. ``argv`` is None for the arguments of the process."""
        try:
            return self.main(list(sys.argv[1:] if argv is None else argv))
        except ConfigError as error:
            return complain(self.name, error)

    def main(self, argv: Sequence[str]) -> int:
        """Run the program; return its exit code.

        Raises:
            ConfigError: a setting or file is wrong and the user must correct it.
        """
        if argv in _VERSION:
            terminal.line(version() or "unknown")
            return 0
        if argv and (command := self.commands.get(argv[0])):
            code: int = load(command)(argv[1:])
            return code
        # Imports and lists create objects that live long. Without this, a tenth of the start would be collections.
        gc.set_threshold(YOUNG_OBJECTS)
        return start(self.parse(argv), self._run)

    def parser(self) -> Parser:
        """Return the parser of the flags."""
        parser = Parser(self.name, about=self.about, examples=self.examples)
        add_flags(parser, self.settings())
        return parser

    def parse(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        *,
        parser: Parser | None = None,
        settings: S | None = None,
    ) -> S:
        """Return the settings that a command line and its environment give.

        Args:
            argv: the arguments.
            environment: the environment.
            parser: a parser of the same flags; None: ``parser()``.
            settings: the settings to change; None: the defaults.

        Raises:
            ConfigError: a value is invalid; the text names the flag or the variable.
            SystemExit: raised by argparse for unknown flags and ``--help``.
        """
        rest, klog = take_klog(argv)
        foreign: tuple[str, ...] = ()
        parser = parser or self.parser()
        if self.foreign is not None:
            own = frozenset(flag.removeprefix("--") for flag in parser.flag_names())
            rest, foreign = self.foreign.take(rest, own)
        flags = parser.parse_given(rest)
        settings = settings or self.settings()
        settings.klog, settings.foreign, settings.argv = klog, foreign, tuple(argv)
        settings.given = frozenset(name for name, value in vars(flags).items() if value is not None)
        apply(settings, flags, environment)
        settings.load()
        apply(settings, flags, environment)
        settings.check()
        return settings

    async def _run(self, settings: S) -> int:
        """Run with the settings until a signal; return the exit code."""
        # Not imported for help and for invalid flags: asyncio, structlog and prometheus_client take half a second.
        from controller_runtime import log  # noqa: PLC0415
        from controller_runtime.process import lifecycle  # noqa: PLC0415

        if self.foreign is not None:
            for flag in settings.foreign:
                log.get_logger(component="flags").warning(
                    f"flag without effect: it is a flag of {self.foreign.program}",
                    flag=flag,
                    next=self.foreign.next,
                )
        return await lifecycle.run_until_signal(load(self.run)(settings))


def start(settings: S, run: Callable[[S], Coroutine[Any, Any, int]]) -> int:
    """Configure the process and run a coroutine in a new event loop; return the exit code.

    Raises:
        ConfigError: the log flags are invalid, or the coroutine ended with errors that only the user can correct.
    """
    import asyncio  # noqa: PLC0415 - see Program._run

    from controller_runtime import log  # noqa: PLC0415
    from controller_runtime.process import lifecycle  # noqa: PLC0415

    log.configure(settings.log_level, settings.log_format, klog_v=settings.klog.verbosity)
    if settings.klog.ignored:
        log.get_logger(component="flags").warning(
            "flags without effect: the log goes to standard error only", flags=list(settings.klog.ignored)
        )
    lifecycle.open_all_files()
    lifecycle.tune_tls()
    return asyncio.run(run(settings))


def load(place: str) -> Callable[..., Any]:
    """Import and return the function that ``module:function`` names."""
    module, _, function = place.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return loaded
