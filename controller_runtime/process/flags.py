"""The syntax of flags: Go's durations, booleans and lists, and klog's flags.

Booleans follow Go (``--flag`` and
``--flag=false``), so manifests written for Go programs remain valid.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from controller_runtime.apimachinery.decoding import file_text
from controller_runtime.errors import ConfigError
from controller_runtime.process.listening import parse_address

_DURATION_PART = re.compile(r"(?<![0-9.])([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_KLOG = re.compile(
    r"(?P<flag>--?(?P<prefix>klog\.)?(?P<name>[A-Za-z][\w-]*?))(?:=(?P<value>.*)|(?<=^-v)(?P<short>\d+))?",
    re.ASCII,
)
_KLOG_SWITCHES = frozenset(
    {"add_dir_header", "alsologtostderr", "logtostderr", "one_output", "skip_headers", "skip_log_headers"}
)
_KLOG_VALUES = frozenset(
    {"log_backtrace_at", "log_dir", "log_file", "log_file_max_size", "stderrthreshold", "v", "vmodule"}
)
_DURATION_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?P<value>=.*)?", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Klog:
    """The values of klog's flags."""

    verbosity: int = 0
    ignored: tuple[str, ...] = ()
    """Flags that have no effect, because logs are only written to standard error; as the user wrote them."""


def parse_duration(text: str) -> float:
    """Return the seconds of a Go duration such as ``1m30s``; a bare ``0`` is allowed, as in Go.

    Raises:
        ValueError: the text is not a duration.
    """
    if text == "0":
        return 0.0
    seconds, at = 0.0, 0
    while part := _DURATION_PART.match(text, at):
        seconds += float(part[1]) * _DURATION_UNITS[part[2]]
        at = part.end()
    if not text or at < len(text):
        raise ValueError(f"{text[:80]!r} is not a duration such as 10s or 1m30s")
    return seconds


def format_duration(seconds: float) -> str:
    """Return seconds in Go's syntax, such as ``1h30m``, without the parts that are 0."""
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (left, "s"))
    return "".join(f"{value:g}{unit}" for value, unit in parts if value) or "0"


def duration(text: str) -> float:
    """Return the seconds of a Go duration; an argparse type."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def boolean(text: str) -> bool:
    """Return a Go boolean, as ``strconv.ParseBool``; an argparse type."""
    if text in {"1", "t", "T", "true", "TRUE", "True"}:
        return True
    if text in {"0", "f", "F", "false", "FALSE", "False"}:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def address(text: str) -> str:
    """Return the text if it is ``host:port`` or empty; an argparse type."""
    try:
        if text:
            parse_address(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_flag(group: argparse._ActionsContainer, usage: str, help_text: str, **options: Any) -> None:
    """Add a flag by its usage, such as ``-n --namespace NS``; its default is an empty text."""
    *flags, metavar = usage.split()
    group.add_argument(*flags, metavar=metavar, help=help_text, **{"default": "", **options})


DRY_RUN: Mapping[str, bool] = {"client": True, "server": True, "none": False}
"""Values of kubectl's and helm's flag ``--dry-run``."""


class Switch(argparse.Action):
    """A flag that is usually given without a value; ``--flag=false`` is as in Go."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        """Create the action; ``words`` are values besides Go's booleans, the other options are those of argparse."""
        self.words: Mapping[str, bool] = options.pop("words")
        super().__init__(option_strings, dest, nargs=0, default=False, **options)

    def __call__(self, _parser: Any, namespace: Any, _values: Any, _option: str | None = None) -> None:
        """Switch the flag on. ``with_switches`` has removed flags that are off."""
        setattr(namespace, self.dest, True)


def add_switch(
    group: argparse._ActionsContainer,
    flags: str,
    help_text: str,
    *,
    words: Mapping[str, bool] = MappingProxyType({}),
) -> None:
    """Add a flag without a value by its names, such as ``-w --watch``; ``words`` are values besides Go's booleans."""
    group.add_argument(*flags.split(), action=Switch, words=words, help=help_text)


def with_switches(arguments: Sequence[str], known: Mapping[str, argparse.Action]) -> list[str]:
    """Return arguments in which switches have no value, and other booleans have theirs behind ``=``.

    Go's flags take the value of a boolean only behind ``=``. argparse allows no value for a switch, and takes a following word,
    such as the name of a pod, as the value of another boolean.

    Args:
        arguments: of the command line.
        known: actions of a parser by their flags.

    Raises:
        argparse.ArgumentTypeError: a switch has another value.
    """
    words: list[str] = []
    for position, word in enumerate(arguments):
        if word == "--":
            return [*words, *arguments[position:]]
        flag, equals, value = word.partition("=")
        action = known.get(flag)
        if isinstance(action, Switch) and equals:
            words += [flag] if _switched(flag, value, action.words) else []
        elif (
            action is not None
            and action.type is boolean
            and not equals
            and not _is_boolean(arguments, position + 1)
        ):
            words.append(f"{flag}=true")
        else:
            words.append(word)
    return words


def _switched(flag: str, value: str, words: Mapping[str, bool]) -> bool:
    if value in words:
        return words[value]
    try:
        return boolean(value)
    except argparse.ArgumentTypeError as error:
        more = f" ({', '.join(words)})" if words else ""
        raise argparse.ArgumentTypeError(f"{flag}: {error}{more}") from None


def _is_boolean(arguments: Sequence[str], position: int) -> bool:
    """Report whether the argument at a position is a Go boolean. Unlike Go, earlier releases take it as the value of a flag."""
    try:
        boolean(arguments[position])
    except (IndexError, argparse.ArgumentTypeError):
        return False
    return True


def add_boolean(group: argparse._ActionsContainer, flag: str, *, default: bool, help_text: str) -> None:
    """Add a boolean flag as in Go: ``--flag``, ``--flag=true`` or ``--flag=false``."""
    group.add_argument(
        flag, type=boolean, nargs="?", const=True, metavar="BOOL", default=default, help=help_text
    )


def add_duration(group: argparse._ActionsContainer, flag: str, default: float, help_text: str) -> None:
    """Add a flag with a Go duration; its default is in seconds."""
    group.add_argument(flag, type=duration, default=default, metavar="D", help=help_text)


def read_text(flag: str, path: str | Path) -> str:
    """Return the text of a file that a flag names, with its own line ends.

    Raises:
        ConfigError: the file cannot be read; the message names the flag and the file.
    """
    try:
        return file_text(Path(path).read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{flag} {path}: {why}") from None


def comma_list(text: str) -> list[str]:
    """Return the parts of a comma-separated list, stripped and without empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]


def take_klog(argv: Sequence[str]) -> tuple[list[str], Klog]:
    """Remove klog's flags from a command line and return the other arguments and the flags' values.

    ``--v=6``, ``--v 6``, ``-v=6``, ``-v 6``, ``-v6`` and ``--klog.v=6`` set the verbosity. klog's other flags
    have no effect. All spellings of Go programs are accepted: ``-`` or ``_`` in names, one dash or two, and
    node-cli's prefix ``klog.``.

    Raises:
        ConfigError: the verbosity is not a number, or a value is missing.
    """
    rest: list[str] = []
    ignored: list[str] = []
    verbosity = 0
    arguments = iter(argv)
    for argument in arguments:
        found = _KLOG.fullmatch(argument)
        name = found["name"].replace("-", "_") if found else ""
        is_klog = found is not None and (found["prefix"] or name in _KLOG_SWITCHES or name in _KLOG_VALUES)
        if found is None or not is_klog:
            rest.append(argument)
            continue
        flag = found["flag"]
        value = found["value"] or found["short"]
        if value is None and name in _KLOG_VALUES:
            value = next(arguments, None)
            if value is None:
                raise ConfigError(f"{flag}: needs a value")
        if name != "v":
            ignored.append(flag)
        elif value is not None and value.isascii() and value.isdigit():
            verbosity = int(value)
        else:
            raise ConfigError(f"{flag}: {value!r} is not a number")
    return rest, Klog(verbosity, tuple(dict.fromkeys(ignored)))


@dataclass(frozen=True, slots=True)
class ForeignFlags:
    """The flags of another program that a program accepts without effect."""

    program: str
    """The other program, for the log."""
    next: str
    """What to do with the flags, for the log."""
    values: frozenset[str] = frozenset()
    """Names of flags that need a value, without dashes."""
    switches: frozenset[str] = frozenset()
    """Names of flags that may have a value only after ``=``."""

    def take(self, argv: Sequence[str], own: frozenset[str]) -> tuple[list[str], tuple[str, ...]]:
        """Remove the flags from a command line; return the other arguments and the removed flags, each once.

        Names may be written with ``-`` or ``_``, as Go's flags of Kubernetes.

        Args:
            argv: the arguments.
            own: names of the program's own flags, which are never removed.

        Raises:
            ConfigError: a value is missing.
        """
        rest: list[str] = []
        taken: dict[str, None] = {}
        arguments = iter(argv)
        for argument in arguments:
            parts = _FLAG.fullmatch(argument)
            name = parts["name"].replace("_", "-") if parts else ""
            needs_value = name in self.values
            if parts is None or name in own or not (needs_value or name in self.switches):
                rest.append(argument)
                continue
            if needs_value and parts["value"] is None and next(arguments, None) is None:
                raise ConfigError(f"--{name}: needs a value")
            taken[f"--{name}"] = None
        return rest, tuple(taken)
