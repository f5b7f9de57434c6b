"""``docs/reference/flags.md``: every flag of every program, read from the parsers, and the environment variables."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

import msgspec

from clusterset.config import Cluster
from controller_runtime.process.flags import boolean, duration, format_duration
from controller_runtime.process.settings import attribute_docstrings, settings
from hack.docs import markdown
from hack.programs import DAEMON, programs
from virtual_node import cli
from virtual_node.config.command_line import DaemonSettings
from virtual_node.config.types import Config, KubeletConfig, LeaderElectionConfig

_INTRODUCTION = """# Flags

Every flag of every program. `--help` says the same.

- Booleans are Go's: `--flag`, `--flag=true`, `--flag=false`.
- Durations are Go's: `10s`, `1m30s`, `2h`.
- Lists are comma-separated.
- A flag overrides the environment, the environment a file of `--config`, the file the default. An empty default cell means: see the text.
- A flag cannot be shortened. An unknown flag is an error (exit code 2).
- klog's flags: `--v=N` (`-v N`, `--klog.v=N`) sets the verbosity of every program, 4 and more is `--log-level=debug`;
  `--logtostderr`, `--vmodule`, `--log_dir` and the others are accepted and named once in the log: they have no effect.
- `--version`, or `version`, as the only argument prints the version.
- `virtual-node check` and `virtual-node inspect` take the flags of `virtual-node` beside their own."""
_PATHS: dict[type[msgspec.Struct], str] = {
    Config: "",
    Cluster: "clusters[].",
    KubeletConfig: "kubelet.",
    LeaderElectionConfig: "leaderElection.",
}


def parser_of(program: str) -> argparse.ArgumentParser:
    """Return the parser of a program or of a subcommand of the virtual node.

    Raises:
        LookupError: the program has no parser.
    """
    if program in programs():
        return programs()[program].parser()
    found = cli.parser(program.removeprefix(f"{DAEMON} "))
    if found is None:
        raise LookupError(f"{program} has no parser")
    return found


def _subcommands() -> Iterator[str]:
    """Return the virtual node's subcommands that have flags of their own."""
    for command in cli.COMMANDS:
        if command == "run":
            continue
        with contextlib.suppress(LookupError):
            program = f"{DAEMON} {command}"
            if any(_own_groups(program)):
                yield program


def _own_groups(program: str) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Return title and flags of each group of a program; omit a subcommand's groups that the daemon also has."""
    shared = [] if program in programs() else parser_of(DAEMON)._action_groups[2:]  # noqa: SLF001
    known = {group.title for group in shared}
    for group in parser_of(program)._action_groups:  # noqa: SLF001 - argparse offers no other way to its groups
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001
        if actions and group.title not in known:
            yield group.title or "", actions


def flag_names(program: str) -> set[str]:
    """Return every spelling of every flag of a program."""
    return {name for action in parser_of(program)._actions for name in action.option_strings}  # noqa: SLF001


def render() -> str:
    """Return the page."""
    parts = [markdown.note(), _INTRODUCTION]
    for program in PROGRAMS:
        parts += [f"## {program}", *_groups(program)]
        if program == DAEMON:
            rows = ((markdown.code(name), text) for name, text in variables().items())
            parts += ["### environment", markdown.table(("variable", "meaning"), rows)]
    return markdown.page(parts)


def _groups(program: str) -> Iterator[str]:
    for title, actions in _own_groups(program):
        if title and title not in {"options", "positional arguments"}:
            yield f"### {title}"
        yield markdown.table(("flag", "value", "default", "meaning"), map(_row, actions))


def _row(action: argparse.Action) -> tuple[str, str, str, str]:
    name = ", ".join(markdown.code(one) for one in action.option_strings)
    return name or _value(action), _value(action) if name else "", _default(action), action.help or ""


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return ", ".join(markdown.code(str(choice)) for choice in action.choices)
    if action.nargs == 0:
        return ""
    return markdown.code(str(action.metavar or action.dest.upper()))


def _default(action: argparse.Action) -> str:
    value = action.default
    if action.type is boolean or isinstance(value, bool):
        return "" if value is None else markdown.code(str(value).lower())
    if not value:
        return ""
    if action.type is duration:
        return markdown.code(format_duration(value))
    if isinstance(value, list | tuple):
        return markdown.code(",".join(map(str, value)))
    return markdown.code(f"{value:g}" if isinstance(value, float) else str(value))


PROGRAMS = (*programs(), *_subcommands())
"""Every program and subcommand that the page has a section for."""


def variables() -> dict[str, str]:
    """Return every environment variable that the virtual node reads, and its meaning."""
    found = {
        "KUBECONFIG": "the upper cluster's kubeconfig, or several with `:` between them; `--kubeconfig` beats it"
    }
    told = attribute_docstrings(DaemonSettings)
    for field, setting in settings(DaemonSettings):
        for name in setting.environment:
            overridden = f" `{setting.flag}` overrides it." if setting.flag else ""
            default = f" Default: {markdown.code(str(field.default))}." if field.default else ""
            found[name] = f"{markdown.prose(told[field.name])}{default}{overridden}"
    for kind, prefix in _PATHS.items():
        for field, setting in settings(kind):
            overridden = f"; `{setting.flag}` overrides it" if setting.flag else ""
            for name in setting.environment:
                found[name] = f"sets {markdown.code(prefix + field.encode_name)}{overridden}"
    return dict(sorted(found.items()))
