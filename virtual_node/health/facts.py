"""What a tool has seen of an installation. A field that is None was not seen, so the verdict cannot be "healthy"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from virtual_node.health.faults import Kind
from virtual_node.health.objects import Json


@dataclass(frozen=True, slots=True)
class PodSign:
    """A state of one pod that is a fault once it has lasted longer than ``patience``."""

    kind: Kind
    pod: str
    """``namespace/name``."""
    node: str
    """Virtual node; empty: none yet."""
    since: datetime
    reason: str
    """Pods with the same kind, node and reason are reported together."""
    cause: str
    patience: float = 0.0
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A lower cluster as the process that runs it, or the configuration, knows it."""

    name: str
    reachable: bool | None = None
    """Whether its API server answers; None: not known (yet)."""
    error: str = ""
    """Why it does not answer, or why its controllers do not run."""
    failed: bool = False
    """Its controllers have ended with ``error`` and are started again later."""
    nodes: Sequence[str] = ()
    """Names of its configured virtual nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was seen, at one moment."""

    now: datetime
    """By the upper API server's clock, or by that of this machine."""
    nodes: Sequence[Json] | None = None
    """The virtual nodes."""
    leases: Mapping[str, Json] | None = None
    """Their Leases, by name."""
    signs: Iterable[PodSign] | None = None
    """Of the pods on virtual nodes; see ``pods.sign``."""
    waiting: Iterable[PodSign] | None = None
    """Of the pods without a node that are meant for virtual nodes; see ``pods.waiting_sign``."""
    replicas: Sequence[Json] | None = None
    """Pods of our own components."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What is known of a pod that says nothing itself, such as its last log line or event, by ``namespace/name``."""
    clusters: Sequence[ClusterState] = ()
    """Lower clusters that are configured, as far as the tool knows the configuration."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Why a configuration is not applied, by what it is for: a lower cluster's name, or empty for all."""
    expiring: Mapping[str, str] = field(default_factory=dict)
    """Why a credential or certificate needs attention soon, by lower cluster."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a field could not be read, by its name; also other things that the tool cannot see."""
