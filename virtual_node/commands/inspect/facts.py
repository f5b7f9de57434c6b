"""What ``virtual-node inspect`` knows and what it says: the vocabulary that reading, rules and printing share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controller_runtime.api import names, timestamps
from virtual_node.certificates.expiry import Expiry, Limits
from virtual_node.translate.base.options import PodOptions

FOREIGN_POD = "ForeignPod"
"""Kind under which a lower cluster's pods that are not ours are kept; only what capacity needs of them."""
COMPONENT_POD = "ComponentPod"
"""Kind under which the upper cluster's pods that run our own components are kept."""
WAITING_POD = "WaitingPod"
"""Kind under which the upper cluster's pods without a node are kept."""
ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is worth knowing, and what to do about it."""

    severity: str
    """``error``, ``warning``, or ``info``, which never fails a check."""
    check: str
    """Which rule speaks: leaked, missing, drift, …; stable, for programs."""
    cluster: str
    kind: str
    object: str
    """``namespace/name``, or ``name``."""
    message: str
    next_step: str = ""
    transient: bool = False
    """Also true of healthy systems for a moment, while a change is on its way: to be seen twice."""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What the same finding of another look has in common with this one."""
        return (self.check, self.cluster, self.kind, self.object)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNode:
    """One virtual node as the configuration has it."""

    options: PodOptions
    """How its pods are translated."""
    selector: Mapping[str, str] = field(default_factory=dict)
    reserve: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """What was read of one cluster."""

    name: str
    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By kind. A kind that is not there could not be listed: that says nothing about its objects."""
    unread: dict[str, str] = field(default_factory=dict)
    """Kinds that could not be listed, and why."""
    error: str = ""
    """Why the cluster as a whole could not be read; empty: it could."""
    version: str = ""
    """``v1.34.1``; empty: unknown."""
    clock_skew: float | None = None
    """Seconds its clock is ahead of ours; None: unknown."""
    nodes: Mapping[str, VirtualNode] = field(default_factory=dict)
    """Of a lower cluster: its virtual nodes."""
    removes_namespaces: bool = True
    """Of a lower cluster: whether namespaces that we made are to go after their upper ones."""

    adopt: bool | Sequence[str] = False
    """Of a lower cluster: which namespaces that we did not create may be used (``namespaces.adopt``)."""

    def knows(self, *kinds: str) -> bool:
        """Whether all these kinds could be listed."""
        return not self.error and all(kind in self.objects for kind in kinds)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind; none where they could not be listed."""
        return self.objects.get(kind, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was read, at one moment."""

    upper: Cluster
    lowers: Sequence[Cluster]
    cluster_id: str
    """The upper cluster's identity on what was made below; empty: unknown, so nothing below can be judged."""
    now: datetime
    release: str = ""
    """Of this command; empty: unknown."""
    expiries: Sequence[Expiry] = ()
    weaknesses: Sequence[tuple[str, str, str]] = ()
    """Of the ways to the API servers: cluster, what is weak, what to do."""
    limits: Limits = field(default_factory=Limits)

    def virtual_nodes(self) -> dict[str, Cluster]:
        """Names of the configured virtual nodes, each with its lower cluster."""
        return {name: lower for lower in self.lowers for name in lower.nodes}

    def owned(self, lower: Cluster, kind: str) -> Iterator[dict[str, Any]]:
        """The objects of a kind below that were made for this upper cluster."""
        for one in lower.of(kind):
            if self.cluster_id and labels_of(one).get(names.LABEL_UPPER_CLUSTER) == self.cluster_id:
                yield one

    def age(self, moment: str | None) -> timedelta:
        """How long ago something was; nothing for what never was."""
        return self.now - timestamps.parse(moment) if moment else timedelta()


def is_virtual_node(one: Mapping[str, Any]) -> bool:
    """Return whether a Node is a virtual node, of whatever installation."""
    return labels_of(one).get(names.LABEL_NODE_TYPE) == names.NODE_TYPE_VIRTUAL


def labels_of(one: Mapping[str, Any]) -> Mapping[str, str]:
    """An object's labels."""
    found: Mapping[str, str] = one["metadata"].get("labels") or {}
    return found


def annotations_of(one: Mapping[str, Any]) -> Mapping[str, str]:
    """An object's annotations."""
    found: Mapping[str, str] = one["metadata"].get("annotations") or {}
    return found


def key(one: Mapping[str, Any]) -> str:
    """``namespace/name``, or ``name`` of a cluster-scoped object."""
    metadata = one["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]


def is_deleting(one: Mapping[str, Any]) -> bool:
    """Whether an object is on its way out."""
    return bool(one["metadata"].get("deletionTimestamp"))


def by_upper_uid(pods: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Lower pods by the uid of the upper pod that they were made for."""
    found: dict[str, list[dict[str, Any]]] = {}
    for pod in pods:
        if uid := labels_of(pod).get(names.LABEL_UPPER_UID):
            found.setdefault(uid, []).append(pod)
    return found
