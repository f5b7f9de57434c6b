"""What a tool has read of an installation. If a field is None, the verdict cannot be "healthy"."""

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
    """Virtual node; empty: none."""
    since: datetime
    reason: str
    """Key for grouping: pods with the same kind, node and reason are one fault."""
    cause: str
    patience: float = 0.0
    """Seconds that the state may last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A lower cluster, as known from the process that runs it or from the configuration."""

    name: str
    reachable: bool | None = None
    """Whether its API server answers; None: unknown."""
    error: str = ""
    """Why it does not answer, or why its controllers do not run; empty: no error."""
    failed: bool = False
    """Whether, because of ``error``, its controllers do not run or cannot write its virtual node."""
    nodes: Sequence[str] = ()
    """Names of its configured virtual nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """Everything that was read, at one moment."""

    now: datetime
    """Current time by the upper API server's clock, or by this machine's."""
    nodes: Sequence[Json] | None = None
    """The virtual nodes; None: unknown."""
    leases: Mapping[str, Json] | None = None
    """Leases of the virtual nodes, by name; None: unknown."""
    signs: Iterable[PodSign] | None = None
    """Signs of the pods on virtual nodes, see ``pods.sign``; None: unknown."""
    waiting: Iterable[PodSign] | None = None
    """Signs of pods that wait for a virtual node, see ``pods.waiting_sign``; None: unknown."""
    replicas: Sequence[Json] | None = None
    """Pods of our own components; None: unknown."""
    swarms: Sequence[Json] | None = ()
    """The Swarms; empty also if the caller may not read them, or if they are not installed; None: unknown."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Log line or event that explains a pod whose status does not, by the pod's ``namespace/name``."""
    clusters: Sequence[ClusterState] = ()
    """The configured lower clusters; empty if the tool does not know the configuration."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Why a configuration is not applied, by lower cluster; the empty name is the whole file."""
    expiring: Mapping[str, str] = field(default_factory=dict)
    """Why a credential or certificate needs attention soon, by lower cluster."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a fact could not be read, by its name: a field of this class, or another fact."""
