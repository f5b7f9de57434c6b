"""The ``virtual-node`` command: the daemon by default, and subcommands for users."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from controller_runtime.apimachinery.readable import guess
from controller_runtime.errors import ConfigError
from controller_runtime.process import terminal, version
from controller_runtime.process.argparser import Parser, complain
from virtual_node.config import program
from virtual_node.workers import worker

if TYPE_CHECKING:
    from virtual_node.config import command_line

_INTERRUPTED = 130
_PIPE_CLOSED = 141
"""Exit codes that a shell reports for a program ended by SIGINT and by SIGPIPE."""
_DAEMON = ("", "run")
COMMANDS: Mapping[str, str] = {
    "run": "the daemon: virtual nodes for lower clusters",
    "check": "check kubeconfigs, versions, clocks, rights and connections before the start",
    "status": "list the virtual nodes, one line each",
    "doctor": "find the broken link between the upper API and a running container",
    "diagnose": "find why a pod does not run",
    "inspect": "find leaks, drift, skew, expiring certificates and missing capacity; also for CI",
    "drain": "move all pods off a lower cluster without disruption, with progress",
    "cordon": "keep new pods off a lower cluster",
    "uncordon": "let a lower cluster take pods again; cancels its drain",
    "lower-cluster": "create a least-privilege account in a lower cluster, and its kubeconfig",
    "cleanup": "remove an installation from all clusters; helm uninstall runs it",
    "completion": "print a script that completes commands in bash, zsh or fish",
    "version": "print the installed version",
    "providers": "list the providers (k8s)",
    "help": "print this list",
}
"""Every command and its purpose, in the order of ``help``."""
_MODULES: Mapping[str, str] = {
    **{
        name: f"virtual_node.commands.{name}.command"
        for name in ("check", "status", "doctor", "diagnose", "inspect", "drain", "cleanup", "completion")
    },
    "cordon": "virtual_node.commands.drain.cordon",
    "uncordon": "virtual_node.commands.drain.uncordon",
    "lower-cluster": "virtual_node.commands.lower_cluster.command",
    "version": "virtual_node.commands.version",
}
"""Modules of commands, whose ``main`` takes the arguments and returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code (console script ``virtual-node``)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if sys.stdout is None:  # closed with `>&-`: the output is not wanted
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Replace characters that the locale lacks, instead of failing.
        sys.stdout.reconfigure(errors="replace")
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


def _command(command: str, arguments: list[str]) -> int:
    if module := _MODULES.get(command):
        # Collect garbage less often: during imports and the decoding of thousands of objects, there is none.
        gc.set_threshold(200_000)
        # Imported here: only commands for users need rich, the daemon does not.
        code: int = importlib.import_module(module).main(arguments[1:])
        return code
    match command:
        case "":
            return _as_plugin(arguments) if program.is_plugin() else _daemon(arguments)
        case "run":
            return _daemon(arguments[1:])
        case worker.COMMAND:
            return _worker(arguments[1:])
        case "__complete":  # called by the completion script, as in cobra's commands
            from virtual_node.commands.completion import command as completion  # noqa: PLC0415

            return completion.answer(arguments[1:], commands=COMMANDS, parser_of=parser)
        case "help" if len(arguments) > 1:
            return _command(arguments[1], [arguments[1], "--help"])
        case "help":
            terminal.block(overview())
            return 0
        case "providers":
            terminal.line("k8s")
            return 0
        case _:
            hint = guess(command, COMMANDS) or f"; see '{program.name('help')}'"
            raise ConfigError(f"unknown command {command!r}{hint}")


def parser(command: str) -> Parser | None:
    """Return the parser of a command; None: it takes no flags."""
    if command in _DAEMON:
        from virtual_node.config import command_line  # noqa: PLC0415

        return command_line.parser()
    module = _MODULES.get(command)
    found: Parser | None = importlib.import_module(module).parser() if module else None
    return found


def complete() -> int:
    """Print completions for kubectl's command line (console script ``kubectl_complete-virtual_node``)."""
    return main(["__complete", *sys.argv[1:]])


def overview() -> str:
    """Return the usage and the list of commands, one per line."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}   {purpose}" for name, purpose in COMMANDS.items()]
    usage = f"usage: {program.name('COMMAND')} [FLAGS]"
    return "\n".join([usage, "", *lines, "", f"The flags of a command: {program.name('COMMAND')} --help"])


def _as_plugin(arguments: list[str]) -> int:
    """Run ``kubectl virtual-node`` without a command: print the commands instead of starting a daemon."""
    if arguments in (["--version"], ["-version"]):
        terminal.line(version.version() or "unknown")
        return 0
    if not arguments or arguments[0] in {"-h", "--help"}:
        terminal.block(overview())
        return 0
    raise ConfigError(
        f"{arguments[0]}: the command must be the first argument; {program.name('run')} is the daemon"
    )


def _daemon(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-version"]):
        terminal.line(version.version() or "unknown")
        return 0
    # Commands for users do not need these modules, and importing them takes 0.4 s of CPU time.
    from controller_runtime.process import daemon  # noqa: PLC0415
    from virtual_node.config import command_line  # noqa: PLC0415

    try:
        options = command_line.parse(
            arguments, prog=program.name("run") if program.is_plugin() else "virtual-node"
        )
    except ConfigError as error:
        if arguments:
            raise
        # Without arguments, the user may not know the commands.
        raise ConfigError(f"{error}; see '{program.name('help')}' for the commands") from None
    return daemon.start(options, lambda given: _run(given, arguments))


async def _run(options: command_line.Options, arguments: list[str]) -> int:
    # Imported here, so that `virtual-node --help` does not load them.
    from controller_runtime.process import lifecycle  # noqa: PLC0415
    from virtual_node import config_waiting  # noqa: PLC0415
    from virtual_node.config import command_line  # noqa: PLC0415

    if options.waits:
        waiting = config_waiting.Waiting(options, lambda: command_line.parse(arguments))
        code = await lifecycle.run_until_signal(waiting.run())
        if not waiting.is_over:  # stopped by a signal
            return code
        options = waiting.options
    if options.config.workers > 1:
        from virtual_node.workers import parent  # noqa: PLC0415

        grace = options.config.kubelet.drain_timeout + parent.GRACE
        return await lifecycle.run_until_signal(parent.Parent(options.config, arguments).run(), grace=grace)
    from virtual_node.app import App  # noqa: PLC0415

    app = App(options)
    return await lifecycle.run_until_signal(app.run(), grace=app.grace)


def _worker(arguments: list[str]) -> int:
    """Run a process of ``--workers``. An invalid configuration ends the process, and the parent restarts it."""
    import structlog  # noqa: PLC0415

    from controller_runtime.process import daemon, lifecycle  # noqa: PLC0415
    from virtual_node.config import command_line  # noqa: PLC0415

    this, rest = worker.Worker.parse(arguments)
    structlog.contextvars.bind_contextvars(worker=this.number)  # in every line of the log

    async def run(options: command_line.Options) -> int:
        from virtual_node.app import App  # noqa: PLC0415

        this.stop_with_parent()
        app = App(options, worker=this)
        return await lifecycle.run_until_signal(app.run(), grace=app.grace)

    options = command_line.parse(rest)
    if options.rejected:
        raise ConfigError(options.rejected)
    # The parent decided at its start whether metrics are served. The configuration file may have changed since then.
    options.config.metrics_address = f"{worker.LOOPBACK}:0" if this.listener >= 0 else ""
    return daemon.start(options, run)
