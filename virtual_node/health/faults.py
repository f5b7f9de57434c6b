"""Results of the health model: faults, unknown facts, and the verdict."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from clusterset.model.moving.silence import Silence

_SHOWN = 3


class Severity(enum.StrEnum):
    """Severity of a fault."""

    ERROR = "error"
    """A part of the installation does not work."""
    WARNING = "warning"
    """The installation works, but pods do not run or something needs attention soon."""


class Kind(enum.StrEnum):
    """Kind of a fault, in the order of a report: causes before their effects."""

    REPLICA_FAILING = "ReplicaFailing"
    """A pod of one of our components crashes, cannot start or is not Ready."""
    CONFIGURATION_REJECTED = "ConfigurationRejected"
    """A configuration or kubeconfig is not applied; the previous one may still be used."""
    NO_LOWER_CLUSTER = "NoLowerCluster"
    """There is no virtual node, and no configured lower cluster is known."""
    CLUSTER_FAILED = "ClusterFailed"
    """The controllers of a lower cluster do not run, or cannot register its virtual node."""
    CLUSTER_LOST = "ClusterLost"
    """The API server of a lower cluster does not answer."""
    NODE_MISSING = "NodeMissing"
    """A virtual node is configured but not registered."""
    NODE_SILENT = "NodeSilent"
    """The Lease of a virtual node is not renewed: its process does not run."""
    NODE_NOT_READY = "NodeNotReady"
    """A virtual node is not Ready for another reason than a lost cluster."""
    NODE_CLOSED = "NodeClosed"
    """The descheduler keeps pods away from a virtual node, or every virtual node is cordoned."""
    CERTIFICATE_EXPIRES = "CertificateExpires"
    """The serving certificate of a lower API server expires soon. After the expiry the cluster is lost."""
    POD_UNSCHEDULED = "PodUnscheduled"
    """A pod for virtual nodes has no node in the upper cluster."""
    POD_UNSCHEDULABLE = "PodUnschedulable"
    """The scheduler of a lower cluster finds no node for a pod."""
    POD_REFUSED = "PodRefused"
    """A lower cluster, or its policy, refuses a pod."""
    POD_NOT_STARTED = "PodNotStarted"
    """A pod has a node but has not started for minutes."""
    POD_FAILING = "PodFailing"
    """A container of a pod crashes or cannot be created: image, ConfigMap, Secret, command."""
    SWARM_DEGRADED = "SwarmDegraded"
    """Condition Degraded of a Swarm is true."""
    SWARM_UNASSIGNED = "SwarmUnassigned"
    """Jobs of a Swarm have no worker."""
    SWARM_NOT_CONVERGED = "SwarmNotConverged"
    """The workers of a Swarm have not run exactly their assigned jobs for minutes."""


_ERRORS = frozenset(
    {
        *(Kind.REPLICA_FAILING, Kind.CONFIGURATION_REJECTED, Kind.NO_LOWER_CLUSTER, Kind.CLUSTER_FAILED),
        *(Kind.CLUSTER_LOST, Kind.NODE_MISSING, Kind.NODE_SILENT, Kind.NODE_NOT_READY),
    }
)
PODS = frozenset(kind for kind in Kind if kind.name.startswith("POD_"))
"""Kinds of faults of users' pods."""
SWARMS = frozenset(kind for kind in Kind if kind.name.startswith("SWARM_"))
"""Kinds of faults of Swarms. They are not in the metrics: the process reads Swarms only for its page."""


class Verdict(enum.StrEnum):
    """Overall result."""

    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNKNOWN = "unknown"
    """No fault was found, but not everything could be read."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, or the same fault of several objects."""

    kind: Kind
    objects: Sequence[str]
    """``Node vn-tokyo``, ``Cluster tokyo``, ``Pod shop/web``: up to 3 of ``count`` objects."""
    cause: str
    """The cause in one line."""
    next_step: str
    """What the user does next, as a command or a sentence."""
    cluster: str = ""
    """Lower cluster; empty: none, or several."""
    node: str = ""
    """Virtual node; empty: none, or several."""
    count: int = 1
    silence: Silence | None = None
    """The silence for which a descheduler counts down until it moves running pods; None: it does not."""

    @property
    def severity(self) -> Severity:
        """Return the severity, which depends on the kind alone."""
        return Severity.ERROR if self.kind in _ERRORS else Severity.WARNING

    @property
    def subject(self) -> str:
        """Return the objects as text: ``Pod shop/web, shop/db and 4 more``."""
        first = self.objects[0]
        others = [one.partition(" ")[2] for one in self.objects[1:_SHOWN]]
        more = self.count - 1 - len(others)
        return ", ".join([first, *others]) + (f" and {more} more" if more > 0 else "")

    def __str__(self) -> str:
        is_predicate = self.cause.startswith(("is ", "has ", "does "))
        return f"{self.subject}{' ' if is_predicate else ': '}{self.cause}"

    def text(self, now: datetime) -> str:
        """Return the fault with the countdown of a silent cluster."""
        return f"{self}; {self.silence.text(now)}" if self.silence is not None else str(self)

    def data(self) -> dict[str, Any]:
        """Return the fault for ``-o json`` and the page, with key ``next`` for ``next_step``."""
        row = {"kind": self.kind, "severity": self.severity, **asdict(self), "objects": list(self.objects)}
        row |= {"subject": self.subject, "next": row.pop("next_step")}
        row["silence"] = msgspec.to_builtins(self.silence)
        return row


@dataclass(frozen=True, slots=True)
class Health:
    """The result of ``examine``: faults, causes before their effects, and unknown facts."""

    faults: Sequence[Fault] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Facts that could not be read (``leases``, ``pods`` …), with the reason."""

    @property
    def verdict(self) -> Verdict:
        """Return faulty if there are faults, unknown if there are none but a fact is unknown, otherwise healthy."""
        if self.faults:
            return Verdict.FAULTY
        return Verdict.UNKNOWN if self.unknown else Verdict.HEALTHY

    @property
    def is_broken(self) -> bool:
        """Whether a part of the installation does not work."""
        return any(fault.severity is Severity.ERROR for fault in self.faults)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.faults:
            first = self.faults[0]
            more = len(self.faults) - 1
            return f"{first}" + (f" (and {more} more fault{'s' * (more > 1)})" if more else "")
        if self.unknown:
            return f"No fault is seen, but this is not known: {', '.join(sorted(self.unknown))}."
        return "No fault is seen."

    def counts(self) -> Mapping[Kind, int]:
        """Return the number of faulty objects for every kind; 0 for kinds without a fault."""
        found = Counter(dict.fromkeys(Kind, 0))
        for fault in self.faults:
            found[fault.kind] += fault.count
        return found

    def data(self) -> dict[str, Any]:
        """Return the result for ``-o json`` and the page."""
        return {
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "faults": [fault.data() for fault in self.faults],
            "unknown": dict(self.unknown),
        }
