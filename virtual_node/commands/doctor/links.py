"""Types of ``doctor``'s chain: a link is one condition for pods to run, and a rule judges it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from virtual_node.commands.doctor.facts import DoctorFacts
from virtual_node.health.faults import Kind


class State(enum.StrEnum):
    """The state of a link."""

    OK = "ok"
    BROKEN = "broken"
    SKIPPED = "skipped"
    """Not judged, for example because an earlier link is broken or the component is not installed."""
    UNKNOWN = "unknown"
    """Its facts could not be read, so the link does not count as holding."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a rule."""

    state: State
    detail: str
    next: str = ""
    """The next step; empty: none."""


@dataclass(frozen=True, slots=True)
class Link:
    """A judged link as it is printed."""

    name: str
    """Stable name for programs."""
    title: str
    """Title for people."""
    state: State
    detail: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a link is judged."""

    name: str
    title: str
    examine: Callable[[DoctorFacts], Outcome]
    """Judges the link if there are no ``faults``."""
    needs: Sequence[str] = ()
    """Names of earlier links that must hold; otherwise this link cannot be judged."""
    reads: Sequence[str] = ()
    """Fields of ``DoctorFacts`` that the rule needs."""
    faults: Collection[Kind] = ()
    """Kinds of the health model's faults that break the link."""


ok = partial(Outcome, State.OK)
broken = partial(Outcome, State.BROKEN)
skipped = partial(Outcome, State.SKIPPED)
unknown = partial(Outcome, State.UNKNOWN)
