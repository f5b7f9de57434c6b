"""The facts of the upper cluster by which all tools judge an installation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from virtual_node.examine.objects import Json
from virtual_node.examine.snapshot import Fact, Snapshot, View


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


NODES = Fact[Sequence[Json]]("nodes", kind="Node")
"""The virtual nodes."""
LEASES = Fact[Mapping[str, Json]]("leases", kind="Lease")
"""Leases of the virtual nodes, by name."""
BOUND = Fact[Iterable[Json]]("signs", kind="Pod")
"""Pods on the virtual nodes."""
WAITING = Fact[Iterable[Json]]("waiting", kind="Pod")
"""Pods without a node; also those that are not for virtual nodes."""
COMPONENTS = Fact[Sequence[Json]]("replicas", kind="Pod")
"""Pods of our own components."""
SWARMS = Fact[Sequence[Json]]("swarms", kind="Swarm")
"""The Swarms; empty also if the caller may not read them, or if they are not installed."""
WORDS = Fact[Mapping[str, str]]("words")
"""Log line or event that explains a pod whose status does not, by the pod's ``namespace/name``."""
CLUSTERS = Fact[Sequence[ClusterState]]("clusters")
"""The configured lower clusters."""
REJECTED = Fact[Mapping[str, str]]("rejected")
"""Why a configuration is not applied, by lower cluster; the empty name is the whole file."""
EXPIRING = Fact[Mapping[str, str]]("expiring")
"""Why a credential or certificate needs attention soon, by lower cluster."""


def known(
    now: datetime,
    *,
    nodes: Sequence[Json] | None = None,
    leases: Mapping[str, Json] | None = None,
    bound: Iterable[Json] | None = None,
    waiting: Iterable[Json] | None = None,
    components: Sequence[Json] | None = None,
    swarms: Sequence[Json] | None = (),
    words: Mapping[str, str] | None = None,
    clusters: Sequence[ClusterState] = (),
    rejected: Mapping[str, str] | None = None,
    expiring: Mapping[str, str] | None = None,
    unknown: Mapping[str, str] | None = None,
    lowers: Sequence[View] = (),
) -> Snapshot:
    """Return a snapshot of facts that the caller has; None: not known. The names are those of the facts above."""
    snapshot = Snapshot(now, unknown=unknown or {}, lowers=lowers)
    upper = snapshot.upper
    upper.put_known(NODES, nodes)
    upper.put_known(LEASES, leases)
    upper.put_known(BOUND, bound)
    upper.put_known(WAITING, waiting)
    upper.put_known(COMPONENTS, components)
    upper.put_known(SWARMS, swarms)
    upper.put(WORDS, words or {})
    upper.put(CLUSTERS, clusters)
    upper.put(REJECTED, rejected or {})
    upper.put(EXPIRING, expiring or {})
    return snapshot
