"""All conditions that an examination can find, in the order of a report: causes before their effects.

A code is stable: programs, metrics and docs/operate/troubleshooting.md use it. Each tool selects codes and prints their findings.
"""

from __future__ import annotations

import enum
from typing import Self


class Severity(enum.StrEnum):
    """Severity of a finding, the worst first."""

    ERROR = "error"
    """A part of the installation does not work."""
    WARNING = "warning"
    """The installation works, but pods do not run or something needs attention soon."""
    INFO = "info"
    """A remark, which never changes an exit code."""


class Code(enum.StrEnum):
    """Code of a finding, with its usual severity and the name of its check in ``inspect``."""

    severity: Severity
    check: str

    def __new__(cls, value: str, severity: Severity = Severity.WARNING, check: str = "") -> Self:
        """Return a member; ``check`` is empty if ``inspect`` does not report the code."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.severity, member.check = severity, check
        return member

    # The installation, found by all tools.
    REPLICA_FAILING = "ReplicaFailing", Severity.ERROR, "component"
    """A pod of one of our components crashes, cannot start or is not Ready."""
    CONFIGURATION_REJECTED = "ConfigurationRejected", Severity.ERROR, "configuration"
    """A configuration or kubeconfig is not applied; the previous one may still be used."""
    NO_LOWER_CLUSTER = "NoLowerCluster", Severity.ERROR, "node"
    """There is no virtual node, and no configured lower cluster is known."""
    CLUSTER_FAILED = "ClusterFailed", Severity.ERROR, "cluster"
    """The controllers of a lower cluster do not run, or cannot register its virtual node."""
    CLUSTER_LOST = "ClusterLost", Severity.ERROR, "cluster"
    """The API server of a lower cluster does not answer."""
    NODE_MISSING = "NodeMissing", Severity.ERROR, "node"
    """A virtual node is configured but not registered."""
    NODE_SILENT = "NodeSilent", Severity.ERROR, "node"
    """The Lease of a virtual node is not renewed: its process does not run."""
    NODE_NOT_READY = "NodeNotReady", Severity.ERROR, "node"
    """A virtual node is not Ready for another reason than a lost cluster."""
    NODE_CLOSED = "NodeClosed", Severity.WARNING, "node"
    """The descheduler keeps pods away from a virtual node, or every virtual node is cordoned."""
    CERTIFICATE_EXPIRES = "CertificateExpires", Severity.WARNING, "expiry"
    """The serving certificate of a lower API server expires soon. After the expiry the cluster is lost."""
    POD_UNSCHEDULED = "PodUnscheduled", Severity.WARNING, "pods"
    """A pod for virtual nodes has no node in the upper cluster."""
    POD_UNSCHEDULABLE = "PodUnschedulable", Severity.WARNING, "pods"
    """The scheduler of a lower cluster finds no node for a pod."""
    POD_REFUSED = "PodRefused", Severity.WARNING, "pods"
    """A lower cluster, or its policy, refuses a pod."""
    POD_NOT_STARTED = "PodNotStarted", Severity.WARNING, "pods"
    """A pod has a node but has not started for minutes."""
    POD_FAILING = "PodFailing", Severity.WARNING, "pods"
    """A container of a pod crashes or cannot be created: image, ConfigMap, Secret, command."""
    SWARM_DEGRADED = "SwarmDegraded", Severity.WARNING, "swarm"
    """Condition Degraded of a Swarm is true."""
    SWARM_UNASSIGNED = "SwarmUnassigned", Severity.WARNING, "swarm"
    """Jobs of a Swarm have no worker."""
    SWARM_NOT_CONVERGED = "SwarmNotConverged", Severity.WARNING, "swarm"
    """The workers of a Swarm have not run exactly their assigned jobs for minutes."""
    RULE_FAILED = "RuleFailed", Severity.ERROR, "rule"
    """A rule of the examination failed, so its findings are missing."""


PODS = frozenset(code for code in Code if code.name.startswith("POD_"))
"""Codes of users' pods."""
SWARMS = frozenset(code for code in Code if code.name.startswith("SWARM_"))
"""Codes of Swarms. They are not in the metrics: the process reads Swarms only for its page."""
