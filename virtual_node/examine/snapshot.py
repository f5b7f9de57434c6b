"""What is known of an installation at one moment: facts of the upper cluster and of lower clusters.

A fact is read once, when a rule needs it (``source``), or given by a process that has it in its caches. A fact that could not
be read is not known: the rules that need it do not run, and the result says so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from controller_runtime.apimachinery import timestamps
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.finding import UPPER, Finding
from virtual_node.examine.objects import Json
from virtual_node.examine.packed import PackedObjects

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
NOT_READ = "not read"


class NotReadError(Exception):
    """A fact is not known; the text says why."""


class Fact(Generic[T_co]):
    """The key of a value that can be read from a cluster, such as its Leases. Facts are compared by identity."""

    def __init__(self, name: str, *, kind: str = "") -> None:
        self.name = name
        """For people and programs, such as ``leases``."""
        self.kind = kind
        """Kind of the objects that it is a list of; empty: it is no list of objects."""

    def __repr__(self) -> str:
        return f"Fact({self.name!r})"


@functools.cache
def objects(kind: str) -> Fact[Sequence[Json]]:
    """Return the fact that has a cluster's objects of a kind, see ``View.of``."""
    return Fact(kind, kind=kind)


class View:
    """The known facts of one cluster."""

    def __init__(self, name: str) -> None:
        self.name = name
        """``upper``, or the name of a lower cluster."""
        self._known: dict[Fact[Any], Any] = {}
        self.unread: dict[Fact[Any], str] = {}
        """Facts that could not be read, with the reason."""
        self.error = ""
        """Why the cluster could not be read at all; empty: it was read."""
        self._uids: dict[str, frozenset[str]] = {}

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

    def refuse(self, fact: Fact[Any], why: str) -> None:
        """Record that a fact could not be read."""
        self._known.pop(fact, None)
        self.unread[fact] = why

    def knows(self, *lists: str | Fact[Any]) -> bool:
        """Report whether all these lists of objects, by kind or fact, could be read."""
        return not self.error and all(_fact(each) in self._known for each in lists)

    def of(self, listed: str | Fact[Any]) -> Sequence[Json]:
        """Return the objects of a list, by kind or fact; empty if it could not be read."""
        known: Sequence[Json] = self._known.get(_fact(listed), ())
        return known

    def heads(self, listed: str | Fact[Any]) -> Iterable[Json]:
        """Return the objects of a list with at least metadata, node and phase, in less time than ``of``."""
        known = self.of(listed)
        return known.heads() if isinstance(known, PackedObjects) else known

    def uids(self, kind: str) -> frozenset[str]:
        """Return the UIDs of the objects of a kind; computed once, because each lower cluster is compared with them."""
        if kind not in self._uids:
            self._uids[kind] = frozenset(each["metadata"]["uid"] for each in self.heads(kind))
        return self._uids[kind]

    def fail(self, error: str) -> None:
        """Record that the cluster could not be read, and drop its objects, because their lists may not be complete."""
        self.error = self.error or error
        self._known = {fact: value for fact, value in self._known.items() if not fact.kind}

    def mark_malformed(self, error: Exception) -> None:
        """Record that the cluster sent a malformed object, on which all rules may fail."""
        self.fail(f"it sent a malformed object: {type(error).__name__}: {error}")

    def finding(  # noqa: PLR0917 - in the order of the report
        self,
        code: Code,
        kind: str,
        name: str,
        cause: str,
        step: str = "",
        severity: Severity | None = None,
        **more: Any,
    ) -> Finding:
        """Return a finding about an object of the cluster; ``more`` are further attributes of ``Finding``."""
        return Finding(
            code=code,
            kind=kind,
            names=[name],
            cause=cause,
            next_steps=[step] if step else [],
            place=self.name,
            other_severity=severity,
            **more,
        )

    def sentence(self, code: Code, kind: str, name: str, cause: str, step: str = "") -> Finding:
        """Return a finding whose cause says which object is concerned."""
        return self.finding(code, kind, name, cause, step, is_sentence=True)


def _fact(listed: str | Fact[Any]) -> Fact[Any]:
    return objects(listed) if isinstance(listed, str) else listed


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

    @property
    def clusters(self) -> Sequence[View]:
        """All clusters, the upper one first."""
        return (self.upper, *self.lowers)

    def age(self, moment: str | None) -> timedelta:
        """Return the time since a timestamp; zero for None."""
        return self.now - timestamps.parse(moment) if moment else timedelta()
