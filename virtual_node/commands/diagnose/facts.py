"""What was gathered about one pod, and what is concluded: the vocabulary that reading, rules and printing share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller_runtime.api import timestamps

FINE = 9


@dataclass(frozen=True, slots=True)
class Facts:
    """What was gathered about one pod."""

    pod: Mapping[str, Any]
    node: Mapping[str, Any] | None
    """The node that it is bound to."""
    heartbeat_seconds: float | None
    """Since the node's Lease was renewed; None: unknown."""
    lower: Mapping[str, Any] | None
    """Its lower pod, as far as the lower cluster was asked."""
    events: Sequence[Mapping[str, Any]]
    """About the pod, the oldest first."""
    virtual_nodes: Sequence[Mapping[str, Any]] | None
    """None: they may not be seen, which says nothing about nodes."""
    now: datetime
    asked_below: bool = False
    """Whether the lower cluster was asked, and has answered."""
    silence_below: str = ""
    """Why it has not answered."""
    logs: Sequence[str] = field(default_factory=tuple)
    """The last lines of the container that fails."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or the one thing that is right."""

    rank: int
    """0: this alone stops the pod; higher: follows from something, or may be transient; ``FINE``: all is well."""
    title: str
    evidence: Sequence[str] = ()
    next_steps: Sequence[str] = ()


Rule = Callable[[Facts], Iterator[Finding]]


def is_running(pod: Mapping[str, Any]) -> bool:
    """Whether it runs, ready or not."""
    return bool((pod.get("status") or {}).get("phase") == "Running")


def age(facts: Facts) -> float:
    """Seconds since the pod was created; 0 where that is not known."""
    created = facts.pod["metadata"].get("creationTimestamp")
    return (facts.now - timestamps.parse(created)).total_seconds() if created else 0.0


def pod_namespace(facts: Facts) -> str:
    """The pod's."""
    return str(facts.pod["metadata"]["namespace"])


def pod_name(facts: Facts) -> str:
    """The pod's."""
    return str(facts.pod["metadata"]["name"])


def pairs(labels: Mapping[str, str]) -> str:
    """``a=b, c=d``."""
    return ", ".join(f"{key}={value}" for key, value in labels.items())
