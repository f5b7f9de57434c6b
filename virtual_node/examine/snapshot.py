"""What is known of an installation at one moment: facts of the upper cluster and of lower clusters.

A fact is read once, when a rule needs it (``source``), or given by a process that has it in its caches. A fact that could not
be read is not known: the rules that need it do not run, and the result says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from virtual_node.examine.finding import UPPER

T = TypeVar("T")
NOT_READ = "not read"


class NotReadError(Exception):
    """A fact is not known; the text says why."""


class Fact(Generic[T]):
    """What can be known of one cluster. Two facts are equal only if they are the same object."""

    def __init__(self, name: str) -> None:
        self.name = name
        """For people and programs, such as ``leases``."""

    def __repr__(self) -> str:
        return f"Fact({self.name!r})"


class View:
    """The known facts of one cluster."""

    def __init__(self, name: str) -> None:
        self.name = name
        """``upper``, or the name of a lower cluster."""
        self._known: dict[Fact[Any], Any] = {}
        self.unread: dict[Fact[Any], str] = {}
        """Facts that could not be read, with the reason."""

    def __getitem__(self, fact: Fact[T]) -> T:
        """Return a fact.

        Raises:
            NotReadError: it is not known.
        """
        if fact not in self._known:
            raise NotReadError(self.why(fact))
        known: T = self._known[fact]
        return known

    def get(self, fact: Fact[T]) -> T | None:
        """Return a fact; None: it is not known."""
        return self._known.get(fact)

    def why(self, fact: Fact[Any]) -> str:
        """Return why a fact is not known; empty: it is known."""
        return "" if fact in self._known else self.unread.get(fact, NOT_READ)

    def put(self, fact: Fact[T], value: T) -> None:
        """Store a fact."""
        self._known[fact] = value
        self.unread.pop(fact, None)

    def put_known(self, fact: Fact[T], value: T | None) -> None:
        """Store a fact unless it is None."""
        if value is not None:
            self.put(fact, value)

    def refuse(self, fact: Fact[Any], why: str) -> None:
        """Record that a fact could not be read."""
        self._known.pop(fact, None)
        self.unread[fact] = why


@dataclass(slots=True)
class Snapshot:
    """The facts of all clusters at one moment."""

    now: datetime
    """Current time by the upper API server's clock, or by this machine's; timezone-aware."""
    _: KW_ONLY
    upper: View = field(default_factory=lambda: View(UPPER))
    lowers: Sequence[View] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Further facts that a process could not read, with the reason."""
