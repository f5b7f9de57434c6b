"""The rights that the multi-scheduler needs in the upper cluster and in lower clusters."""

from __future__ import annotations

from clusterset import config as inventory
from clusterset.model.rights import EXTENDER_LEASE, EXTENDER_SECRET
from controller_runtime.rights import OWN_NAMESPACE, Right, leader_election

UPPER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "map virtual nodes to lower clusters"),
    Right("", "pods", ("list", "watch"), "bound pods without a lower pod yet, and pods of groups"),
    Right("", "namespaces", ("list", "watch"), "labels that the affinity terms of pods select"),
    Right(
        "scheduling.x-k8s.io",
        "podgroups",
        ("list", "watch"),
        "minimum of a pod group, if this API is installed",
    ),
    Right(
        "scheduling.k8s.io", "podgroups", ("list", "watch"), "minCount of a native group (Kubernetes 1.37)"
    ),
    Right("", "events", ("create", "patch"), "Events about the choice of a pod's node"),
    # No right to create: a new Secret of type service-account-token gets the token of any account in the namespace.
    Right(
        "",
        "secrets",
        ("get", "update"),
        "certificates of extender and scheduler (--secret-name)",
        "",
        OWN_NAMESPACE,
        (EXTENDER_SECRET,),
    ),
    *leader_election(EXTENDER_LEASE, "only one of several replicas answers (--active-lease)"),
)

BIND: tuple[Right, ...] = (Right("", "pods", ("create",), "bind pods (bindVerb)", "binding"),)
"""Added to ``UPPER`` if the extender binds pods."""

PROFILES: tuple[Right, ...] = inventory.PROFILES
"""Added to ``UPPER`` with ``clusterProfiles``. ``<profiles>`` stands for the namespace of the ClusterProfiles."""

UPPER_METRICS_API: tuple[Right, ...] = (
    Right("metrics.k8s.io", "nodes", ("list",), "usage of real nodes (upperUsage.source MetricsAPI)"),
)
"""Added to ``UPPER`` for ``upperUsage.source`` MetricsAPI."""

UPPER_KUBELETS: tuple[Right, ...] = (
    Right("", "nodes", ("get",), "usage of real nodes (upperUsage.source Summary or Resource)", "proxy"),
)
"""Added to ``UPPER`` for ``upperUsage.source`` Summary or Resource, see ``LOWER_KUBELETS``."""

LOWER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "capacity of every lower node"),
    Right("", "pods", ("list", "watch"), "pods that use this room"),
    Right("", "persistentvolumes", ("list", "watch"), "nodes that volumes are bound to"),
    # Without these rights, pods are sent to lower clusters that may refuse them.
    Right("", "resourcequotas", ("list", "watch"), "pods that a lower quota would refuse"),
    Right("", "limitranges", ("list", "watch"), "defaults and limits of lower pods"),
    Right(
        "",
        "namespaces",
        ("list", "watch"),
        "namespaces that the virtual node must not use, and their labels for affinity",
    ),
    Right("scheduling.k8s.io", "priorityclasses", ("list", "watch"), "lower quotas of priority classes"),
)
"""Rights that ``virtual-node lower-cluster register`` grants to the read-only account."""

LOWER_METRICS_API: tuple[Right, ...] = (
    Right("metrics.k8s.io", "nodes", ("list",), "usage of lower nodes (usage.source MetricsAPI)"),
)
"""Added to ``LOWER`` for ``usage.source`` MetricsAPI: ``lower-cluster register --usage-source MetricsAPI`` grants this."""

LOWER_KUBELETS: tuple[Right, ...] = (
    Right("", "nodes", ("get",), "usage of lower nodes (usage.source Summary or Resource)", "proxy"),
)
"""Added to ``LOWER`` for ``usage.source`` Summary or Resource: ``lower-cluster register --usage-source Summary`` grants this.
RBAC cannot limit the right to metrics. With this right an account can read logs, and on some releases run commands, through any
kubelet."""
