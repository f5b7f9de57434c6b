"""A finding: what an examination found wrong with one object, or with several in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from clusterset.model.moving.silence import Silence
from virtual_node.examine.codes import Code, Severity

UPPER = "upper"
"""Name of the upper cluster as the place of an object."""
SHOWN = 3
"""Maximum number of objects that a finding names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One condition of one object, or the same condition of several objects."""

    code: Code
    kind: str
    """Kind of the objects: ``Node``, ``Pod``, ``Cluster``, ``Installation`` …"""
    names: Sequence[str]
    """``namespace/name`` or ``name`` of the first objects, of ``count``; never empty."""
    cause: str
    """The cause in one line."""
    next_steps: Sequence[str] = ()
    """What the user does next, as commands or sentences."""
    evidence: Sequence[str] = ()
    """Lines that prove the cause: messages, log lines."""
    place: str = UPPER
    """Cluster that has the objects."""
    cluster: str = ""
    """Lower cluster that is concerned; empty: none, or several."""
    node: str = ""
    """Virtual node that is concerned; empty: none, or several."""
    count: int = 1
    transient: bool = False
    """Whether the finding also occurs briefly in healthy systems, so that it counts only if two reads have it."""
    rank: int = 0
    """Order among the findings about one object: 0 alone stops it; higher is a consequence, or may pass."""
    since: datetime | None = None
    """When the condition began; None: it counts at once."""
    patience: float = 0.0
    """Seconds since ``since`` that the condition may last before it counts."""
    reason: str = ""
    """Key by which equal findings of several pods become one; empty: they stay apart."""
    silence: Silence | None = None
    """The silence for which a descheduler counts down until it moves running pods; None: it does not."""
    is_sentence: bool = False
    """Whether the cause says which object is concerned, so that it is printed without the objects."""
    other_severity: Severity | None = None
    """The severity; None: that of the code."""

    @property
    def severity(self) -> Severity:
        """The severity, which usually depends on the code alone."""
        return self.other_severity or self.code.severity

    @property
    def name(self) -> str:
        """The first object's ``namespace/name`` or ``name``."""
        return self.names[0]

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Key that is equal for the same finding of two reads: check or code, place, kind and object."""
        return self.code.check or self.code.value, self.place, self.kind, self.name

    @property
    def next_step(self) -> str:
        """The first next step; empty: none is known."""
        return self.next_steps[0] if self.next_steps else ""

    @property
    def subject(self) -> str:
        """The objects as text: ``Pod shop/web, shop/db and 4 more``."""
        named = self.names[:SHOWN]
        more = self.count - len(named)
        return f"{self.kind} {', '.join(named)}".rstrip() + (f" and {more} more" if more > 0 else "")

    def counts_at(self, now: datetime) -> bool:
        """Report whether the condition has lasted long enough to count."""
        return self.since is None or (now - self.since).total_seconds() > self.patience

    def __str__(self) -> str:
        if self.is_sentence:
            return self.cause
        is_predicate = self.cause.startswith(("is ", "has ", "does "))
        return f"{self.subject}{' ' if is_predicate else ': '}{self.cause}"

    def text(self, now: datetime) -> str:
        """Return the finding with the countdown of a silent cluster."""
        return f"{self}; {self.silence.text(now)}" if self.silence is not None else str(self)

    def data(self) -> dict[str, Any]:
        """Return the finding as ``-o json`` and the page show the health of an installation."""
        return {
            "kind": self.code,
            "severity": self.severity,
            "objects": [f"{self.kind} {name}".rstrip() for name in self.names[:SHOWN]],
            "cause": self.cause,
            "cluster": self.cluster,
            "node": self.node,
            "count": self.count,
            "silence": msgspec.to_builtins(self.silence),
            "subject": self.subject,
            "next": self.next_step,
        }


def by_cause(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return groups of findings with the same cause and kind of object, so that each group needs only one text."""
    groups: dict[tuple[str, str, bool], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.cause, each.kind, each.is_sentence), []).append(each)
    return list(groups.values())


def joined(same: Sequence[Finding]) -> Finding:
    """Return one finding about all objects of a group of ``by_cause``."""
    names = list(dict.fromkeys(name for each in same for name in each.names))
    unnamed = sum(each.count - len(each.names) for each in same)
    return replace(same[0], names=names, count=len(names) + unnamed)


Findings = Iterator[Finding]
