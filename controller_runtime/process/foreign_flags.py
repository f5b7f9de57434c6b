"""Flags of the program that a program replaces: accepted on its command line and reported, so that a manifest starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from controller_runtime.errors import ConfigError

_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?P<value>=.*)?", re.ASCII | re.DOTALL)


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
