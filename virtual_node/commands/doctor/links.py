"""One link of the chain, and the rule that looks at it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from virtual_node.commands.doctor.facts import Facts


class State(enum.StrEnum):
    """Whether a link holds."""

    OK = "ok"
    BROKEN = "broken"
    SKIPPED = "skipped"
    """Nothing can be said: an earlier link is broken, or it is not installed."""
    UNKNOWN = "unknown"
    """It could not be seen, so it does not count as holding."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule has found."""

    state: State
    detail: str
    next: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link as it is printed."""

    name: str
    """For programs."""
    title: str
    """For people."""
    state: State
    detail: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a link is judged."""

    name: str
    title: str
    examine: Callable[[Facts], Outcome]
    needs: Sequence[str] = ()
    """Names of earlier links without which nothing can be said here."""
    reads: Sequence[str] = ()
    """Fields of ``Facts`` that it cannot do without."""


def ok(detail: str) -> Outcome:
    """It holds."""
    return Outcome(State.OK, detail)


def broken(detail: str, next_step: str) -> Outcome:
    """It does not."""
    return Outcome(State.BROKEN, detail, next_step)


def skipped(detail: str, next_step: str = "") -> Outcome:
    """Nothing can be said."""
    return Outcome(State.SKIPPED, detail, next_step)


def unknown(detail: str) -> Outcome:
    """It could not be seen."""
    return Outcome(State.UNKNOWN, detail)


def some(names: Iterable[str], *, limit: int = 3) -> str:
    """The first few of many: ``a, b, c and 4 more``."""
    listed = list(names)
    more = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {more} more" if more > 0 else "")
