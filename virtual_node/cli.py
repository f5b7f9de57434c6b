"""The ``virtual-node`` command: the daemon by default, and subcommands for users."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller_runtime.apimachinery.readable import guess
from controller_runtime.errors import ConfigError
from controller_runtime.process import terminal
from controller_runtime.process.terminal import Parser, complain
from virtual_node.config import program

_INTERRUPTED = 130
_PIPE_CLOSED = 141
"""Exit codes that a shell reports for a program ended by SIGINT and by SIGPIPE."""
_HELP = frozenset({"-h", "--help"})
_DAEMON = ("", "run")
"""The command lines of the daemon, whose failures to write are errors."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``virtual-node``."""

    name: str
    purpose: str
    module: str = ""
    """Module in ``virtual_node.commands``. Its ``main`` takes the arguments and returns the exit code, and its ``parser``
    returns the parser of the flags. Empty: this module runs the command."""
    main: str = "main"
    """Name of the function that takes the arguments."""
    has_light_parser: bool = False
    """Whether the parser is in ``virtual_node.commands.parsers``, so that help and completion do not import ``module``."""


COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        Command("run", "the daemon: virtual nodes for lower clusters"),
        Command(
            "check",
            "check kubeconfigs, versions, clocks, rights and connections before the start",
            "check",
            has_light_parser=True,
        ),
        Command("status", "list the virtual nodes, one line each", "status.command", has_light_parser=True),
        Command(
            "doctor",
            "find the broken link between the upper API and a running container",
            "doctor",
            has_light_parser=True,
        ),
        Command("diagnose", "find why a pod does not run", "diagnose", has_light_parser=True),
        Command(
            "inspect",
            "find leaks, drift, skew, expiring certificates and missing capacity; also for CI",
            "inspect",
            has_light_parser=True,
        ),
        Command(
            "drain",
            "move all pods off a lower cluster without disruption, with progress",
            "drain",
            has_light_parser=True,
        ),
        Command("cordon", "keep new pods off a lower cluster", "drain", main="cordon", has_light_parser=True),
        Command(
            "uncordon",
            "let a lower cluster take pods again; cancels its drain",
            "drain",
            main="uncordon",
            has_light_parser=True,
        ),
        Command(
            "lower-cluster",
            "add a lower cluster, remove it, or make only its accounts",
            "lower_cluster.command",
        ),
        Command(
            "cleanup",
            "remove an installation from all clusters; helm uninstall runs it",
            "cleanup.command",
            has_light_parser=True,
        ),
        Command(
            "completion", "print a script that completes commands in bash, zsh or fish", "completion.command"
        ),
        Command("version", "print the installed version", "version"),
        Command("providers", "list the providers (k8s)"),
        Command("help", "print this list"),
    )
}
"""Every command by its name, in the order of ``help``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code (console script ``virtual-node``)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if sys.stdout is None:  # closed with `>&-`: the output is not wanted
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    terminal.replace_unencodable(sys.stdout)
    if command not in _DAEMON and sys.stderr is not None:  # a log escapes the characters
        terminal.replace_unencodable(sys.stderr)
    try:
        code = _command(command, arguments)
        sys.stdout.flush()  # flush errors must occur here, as they cannot be handled at interpreter exit
    except ConfigError as error:
        return complain(program.name(), error)
    except BrokenPipeError:
        if command in _DAEMON:
            raise
        _forget_output()  # the reader, for example `| head`, has closed the pipe
        return _PIPE_CLOSED
    except OSError as error:
        if command in _DAEMON:
            raise
        # If writing failed, for example because the disk is full, the interpreter would try to write the
        # buffered output again at exit, and fail again.
        _forget_output()
        return complain(program.name(), error)
    except KeyboardInterrupt:
        if command in _DAEMON:
            raise
        return _INTERRUPTED
    return code


def _forget_output() -> None:
    """Discard what is left in the output buffer."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(name: str, arguments: list[str]) -> int:
    command = COMMANDS.get(name)
    if command is not None and command.module:
        # Collect garbage less often: during imports and the decoding of thousands of objects, there is none.
        gc.set_threshold(200_000)
        # Imported here: only commands for users need rich, the daemon does not.
        if command.has_light_parser and not _HELP.isdisjoint(arguments[1:]):
            _parser(command).parse_args(arguments[1:])
        code: int = getattr(_loaded(command.module), command.main)(arguments[1:])
        return code
    match name:
        case "":
            return _as_plugin(arguments) if program.is_plugin() else _daemon(arguments)
        case "run":
            return _daemon(arguments[1:])
        case program.WORKER:
            from virtual_node import daemon  # noqa: PLC0415 - commands for users do not need it

            return daemon.run_worker(arguments[1:])
        case "__complete":  # called by the completion script, as in cobra's commands
            from virtual_node.commands.completion import command as completion  # noqa: PLC0415

            purposes = {name: command.purpose for name, command in COMMANDS.items()}
            return completion.answer(arguments[1:], commands=purposes, parser_of=parser)
        case "help" if len(arguments) > 1:
            return _command(arguments[1], [arguments[1], "--help"])
        case "help":
            terminal.block(overview())
            return 0
        case "providers":
            terminal.line("k8s")
            return 0
        case _:
            hint = guess(name, COMMANDS) or f"; see '{program.name('help')}'"
            raise ConfigError(f"unknown command {name!r}{hint}")


def parser(command: str) -> Parser | None:
    """Return the parser of a command, the daemon's for an empty text; None: the command takes no flags."""
    if command in _DAEMON:
        from virtual_node.config import command_line  # noqa: PLC0415 - commands for users do not need it

        return command_line.PROGRAM.parser()
    known = COMMANDS.get(command)
    if known is None or not known.module:
        return None
    return _parser(known)


def _parser(command: Command) -> Parser:
    """Return the parser of a command with flags."""
    if command.has_light_parser:
        made: Parser = getattr(_loaded("parsers"), command.name)()
    else:
        made = _loaded(command.module).parser()
    return made


def _loaded(module: str) -> Any:
    """Import and return a module of a command."""
    return importlib.import_module(f"virtual_node.commands.{module}")


def complete() -> int:
    """Print completions for kubectl's command line (console script ``kubectl_complete-virtual_node``)."""
    return main(["__complete", *sys.argv[1:]])


def overview() -> str:
    """Return the usage and the list of commands, one per line."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}   {command.purpose}" for name, command in COMMANDS.items()]
    usage = f"usage: {program.name('COMMAND')} [FLAGS]"
    return "\n".join([usage, "", *lines, "", f"The flags of a command: {program.name('COMMAND')} --help"])


def _as_plugin(arguments: list[str]) -> int:
    """Run ``kubectl virtual-node`` without a command: print the commands instead of starting a daemon."""
    if arguments in (["--version"], ["-version"]):
        from controller_runtime.process.program import version  # noqa: PLC0415 - commands do not need it

        terminal.line(version() or "unknown")
        return 0
    if not arguments or arguments[0] in {"-h", "--help"}:
        terminal.block(overview())
        return 0
    raise ConfigError(
        f"{arguments[0]}: the command must be the first argument; {program.name('run')} is the daemon"
    )


def _daemon(arguments: list[str]) -> int:
    # Commands for users do not need these modules, and importing them takes 0.4 s of CPU time.
    from virtual_node.config import command_line  # noqa: PLC0415

    try:
        return command_line.PROGRAM.main(arguments)
    except ConfigError as error:
        if arguments:
            raise
        # Without arguments, the user may not know the commands.
        raise ConfigError(f"{error}; see '{program.name('help')}' for the commands") from None
