"""The permissions of people and jobs in the upper cluster; ``daemon`` has those of the virtual node."""

from __future__ import annotations

from clusterset.model import names
from clusterset.model.moving import node_avoidance
from clusterset.model.names import SWARMS
from clusterset.model.rights import (
    INSPECTION_HISTORY,
    LEASES,
    VIRTUAL_NODE,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_SECRET,
)
from controller_runtime.rights import OWN_NAMESPACE, READ, Right
from virtual_node.translate.storage.pv import DRIVER

_LOOK = ("get", "list")
_LEASES = ("coordination.k8s.io", "leases")
_REGISTRATION = "admissionregistration.k8s.io"
_WEBHOOKS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
MEMORY = (node_avoidance.CONFIG_MAP, "virtual-node-descheduler")
"""Names of the descheduler's ConfigMaps."""

DOCTOR: tuple[Right, ...] = (
    Right("", "nodes", _LOOK, "the virtual nodes"),
    # Only virtual nodes, because kubelets accept `get` for exec over WebSocket: it would open all pods of
    # other nodes.
    Right(
        "", "nodes", ("get",), "their kubelet APIs, through the API server", "proxy", names=(VIRTUAL_NODE,)
    ),
    Right("", "namespaces", _LOOK, "the cluster's identity"),
    Right("", "pods", _LOOK, "pods that wait"),
    Right("", "pods", ("create",), "a dry-run pod that the webhook should change", namespace="default"),
    Right("", "pods", ("get",), "logs of the components", "log"),
    Right("", "events", _LOOK, "why pods wait"),
    Right("", "services", _LOOK, "the webhook's Service"),
    Right("discovery.k8s.io", "endpointslices", _LOOK, "endpoints of that Service"),
    Right("apps", "deployments", _LOOK, "the components"),
    Right(*_LEASES, _LOOK, "Leases of nodes and components"),
    Right(SWARMS.group, SWARMS.plural, ("list",), "Swarms that do not run their jobs"),
    *(Right(_REGISTRATION, kind, _LOOK, "registration of the webhook") for kind in _WEBHOOKS),
)
"""Permissions of ``virtual-node doctor`` and ``helm test``."""

INSPECTION: tuple[Right, ...] = (
    Right("", "namespaces", _LOOK, "the upper cluster's identity; namespaces of pods"),
    *(
        Right("", kind, ("list",), "compare with the lower clusters")
        for kind in ("nodes", "pods", "services", "configmaps", "persistentvolumeclaims", "persistentvolumes")
    ),
    Right("", "secrets", ("list",), "find differences and leaks of copies"),
    Right("discovery.k8s.io", "endpointslices", ("list",), "Services without endpoints"),
    Right(*_LEASES, ("get",), "Leases of virtual nodes", "", names.NODE_LEASES),
    Right("apps", "deployments", ("list",), "workloads at risk of disruption"),
    Right("apps", "statefulsets", ("list",), "workloads at risk of disruption"),
    Right("policy", "poddisruptionbudgets", ("list",), "workloads at risk of disruption"),
    Right(SWARMS.group, SWARMS.plural, ("list",), "Swarms that do not run their jobs"),
    *(Right(_REGISTRATION, kind, ("list",), "webhooks that cannot answer") for kind in _WEBHOOKS),
    Right("", "configmaps", ("get", "patch"), "its history", "", OWN_NAMESPACE, (INSPECTION_HISTORY,)),
)
"""Permissions of the scheduled ``virtual-node inspect`` (``inspection.enabled`` of the chart). They only read, except
for the history."""

UNINSTALL: tuple[Right, ...] = (
    Right("", "namespaces", ("get",), "the upper cluster's identity"),
    *(
        Right(_REGISTRATION, kind, ("delete",), "unregister the webhook", names=(WEBHOOK_CONFIGURATION,))
        for kind in _WEBHOOKS
    ),
    Right("", "nodes", _LOOK, "the virtual nodes"),
    Right("", "nodes", ("patch", "delete"), "cordon and remove the virtual nodes", names=(VIRTUAL_NODE,)),
    Right("", "pods", ("list", "delete"), "delete their pods"),
    Right("", "persistentvolumeclaims", ("list", "patch"), "remove the finalizer of the virtual node"),
    Right("", "persistentvolumes", ("list", "delete", "patch"), "remove unused mirrors"),
    Right("storage.k8s.io", "csidrivers", ("get", "delete"), "remove the driver of mirrors", names=(DRIVER,)),
    Right(
        "certificates.k8s.io",
        "certificatesigningrequests",
        ("list", "delete"),
        "requests for serving certificates",
    ),
    Right("apps", "deployments", READ, "which components run", "", OWN_NAMESPACE),
    Right("batch", "jobs", ("get", "list"), "whether Helm or kubectl created the Job", "", OWN_NAMESPACE),
    Right(
        "apps",
        "deployments",
        ("patch",),
        "stop components before their nodes are deleted",
        "scale",
        OWN_NAMESPACE,
    ),
    Right(*_LEASES, ("delete",), "remove leader election", "", OWN_NAMESPACE, (LEASES,)),
    Right(
        "", "secrets", ("delete",), "remove the webhook's certificates", "", OWN_NAMESPACE, (WEBHOOK_SECRET,)
    ),
    Right("", "configmaps", ("delete",), "remove the descheduler's memory", "", OWN_NAMESPACE, MEMORY),
    Right(
        "apps",
        "controllerrevisions",
        ("list", "delete"),
        "remove the descheduler's records",
        "",
        OWN_NAMESPACE,
    ),
)
"""Permissions of ``virtual-node cleanup``, which ``helm uninstall`` runs. No account has them afterwards."""

UNINSTALL_SHARDS: tuple[Right, ...] = (
    # Not limited to names, because every replica had a Lease with a name of its own.
    Right(*_LEASES, ("list", "delete"), "remove Leases of replicas", "", OWN_NAMESPACE),
)
"""Added to ``UNINSTALL`` with ``leaderElection.mode: Sharded``."""

UNINSTALL_PROFILES_ANY: tuple[Right, ...] = (
    Right("", "nodes", ("patch", "delete"), "cordon and remove virtual nodes of any ClusterProfile"),
)
"""Added to ``UNINSTALL`` if ``clusterProfiles.names`` is empty: RBAC cannot limit a rule to names with a prefix."""
