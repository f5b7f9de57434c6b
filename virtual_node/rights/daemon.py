"""The permissions of a virtual node in tables, which ``check`` tests and which the chart and the manifests grant.

Those for copied objects follow from the table of kinds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterset import config as inventory
from clusterset.model import names
from clusterset.model.names import SWARMS
from clusterset.model.rights import LEASE, TOKEN_SECRET, VIRTUAL_NODE
from controller_runtime import rights
from controller_runtime.rights import MANAGE, OWN_NAMESPACE, READ, Right
from virtual_node.config.types import SHARDED, Config
from virtual_node.translate.follow.addresses import KEY_OBJECT
from virtual_node.translate.kinds import CLAIMS, FOLLOWED, Demand, Kind, enabled
from virtual_node.translate.storage.pv import DRIVER

_KEY = Right(
    "",
    "secrets",
    ("get", "update"),
    "the key that signs records of addresses. Create the Secret empty, or grant create too",
    "",
    OWN_NAMESPACE,
    (KEY_OBJECT,),
)


def upper_of_kind(kind: Kind) -> tuple[Right, ...]:
    """Return what a virtual node needs in the upper cluster to copy a kind."""
    resource = kind.resource
    verbs = READ if kind.demand is Demand.REFERENCES else ("list", "watch")
    found = (Right(resource.group, resource.plural, verbs, _purpose(kind)),)
    if kind.addresses is None:
        return found
    status = Right(resource.group, resource.plural, ("patch",), "addresses of their copies", "status")
    return (*found, status, _KEY)


def lower_of_kind(kind: Kind) -> Right:
    """Return what a virtual node needs in a lower cluster to copy a kind."""
    return Right(kind.resource.group, kind.resource.plural, MANAGE, _purpose(kind))


def _purpose(kind: Kind) -> str:
    return kind.purpose or f"copies of {kind.resource.plural}"


_SETTINGS = dict.fromkeys(kind.setting for kind in reversed(FOLLOWED))
UPPER_COPIES: dict[str, tuple[Right, ...]] = {
    setting: tuple(right for kind in FOLLOWED if kind.setting == setting for right in upper_of_kind(kind))
    for setting in _SETTINGS
}
"""Needed in the upper cluster, in addition to ``UPPER``, for each kind in ``clusters[].follow``."""
INSPECTION_COPIES: dict[str, tuple[Right, ...]] = {
    setting: tuple(
        Right(kind.resource.group, kind.resource.plural, ("list",), f"find {_purpose(kind)} that are left")
        for kind in FOLLOWED
        if kind.setting == setting
    )
    for setting in _SETTINGS
}
"""Needed in the upper cluster by the scheduled ``virtual-node inspect``, in addition to ``operator.INSPECTION``, for each
kind in ``clusters[].follow``."""
LOWER_COPIES: dict[str, tuple[Right, ...]] = {
    setting: tuple(lower_of_kind(kind) for kind in FOLLOWED if kind.setting == setting)
    for setting in _SETTINGS
}
"""Needed in a lower cluster, in addition to ``LOWER``, for each kind in its ``follow``."""

_NODE = (VIRTUAL_NODE,)
_LEASES = ("coordination.k8s.io", "leases")
_REQUESTS = ("certificates.k8s.io", "certificatesigningrequests")
_TRUST = ("certificates.k8s.io", "clustertrustbundles")
_POD_REQUESTS = ("certificates.k8s.io", "podcertificaterequests")
_NODE_AS_USER = "request serving certificates as the node"
_APPROVAL = "approve its own requests (--approve-server-certificates)"

UPPER: tuple[Right, ...] = (
    Right("", "namespaces", READ, "the upper cluster's identity; namespaces of pods"),
    # Read access is not limited to names, because `inspect` lists all virtual nodes with these permissions.
    Right("", "nodes", READ, "the virtual node; real nodes with its name; nodes that claims have selected"),
    Right("", "nodes", ("create",), "register the virtual node"),
    Right("", "nodes", ("patch",), "keep its labels and taints", names=_NODE),
    Right("", "nodes", ("patch",), "report capacity and conditions", "status", names=_NODE),
    Right(*_LEASES, ("create",), "node heartbeat", "", names.NODE_LEASES),
    Right(*_LEASES, ("get", "update"), "node heartbeat", "", names.NODE_LEASES, _NODE),
    Right("", "pods", (*READ, "delete"), "mirror pods and finish their deletion"),
    Right("", "pods", ("patch",), "report pod status", "status"),
    *(right for kind in enabled(()) for right in upper_of_kind(kind)),
    Right("", "serviceaccounts", ("create",), "tokens for pods (--enable-serviceaccount)", "token"),
    Right("", "serviceaccounts", ("get",), "certificates for pods (podCertificate volumes)"),
    Right(*_TRUST, ("list", "watch"), "trust anchors of pods (clusterTrustBundle volumes)"),
    Right(*_POD_REQUESTS, ("list", "watch", "create"), "certificates for pods (podCertificate volumes)"),
    Right("", "persistentvolumeclaims", (*READ, "patch"), "claims of pods (PVControllers)"),
    Right("", "persistentvolumeclaims", ("patch",), "resizing of claims (PVControllers)", "status"),
    Right("", "persistentvolumes", MANAGE, "mirrors of volumes (PVControllers)"),
    Right(
        "storage.k8s.io", "storageclasses", ("list", "watch"), "classes of unbound volumes (PVControllers)"
    ),
    Right(
        "storage.k8s.io",
        "csidrivers",
        ("get",),
        "mirrored volumes need no attachment (PVControllers)",
        names=(DRIVER,),
    ),
    Right("", "events", ("list", "create", "patch"), "events of pods and nodes, once also after a restart"),
    Right("authentication.k8s.io", "tokenreviews", ("create",), "authenticate kubelet API callers"),
    Right("authorization.k8s.io", "subjectaccessreviews", ("create",), "authorise kubelet API callers"),
)
"""Needed in the upper cluster. If no chart has created the CSIDriver, the daemon creates it at start, which
needs ``create`` of ``csidrivers``."""

UPPER_ELECTION: tuple[Right, ...] = rights.leader_election(LEASE, "--leader-elect")
"""Needed in the upper cluster, in addition to ``UPPER``, with several replicas."""

UPPER_SHARDS: tuple[Right, ...] = (
    # Not limited to names, because every replica has a Lease with a name of its own.
    Right(
        *_LEASES,
        (*READ, "create", "update", "delete"),
        "divide the lower clusters (--leader-elect-mode=sharded)",
        "",
        OWN_NAMESPACE,
    ),
)
"""Needed in the upper cluster instead of ``UPPER_ELECTION`` with ``leaderElection.mode: Sharded``."""

UPPER_PAGE: tuple[Right, ...] = (
    Right(SWARMS.group, SWARMS.plural, ("list",), "the Swarms that the live page shows"),
)
"""Needed in the upper cluster, in addition to ``UPPER``, with ``webAddress``."""

UPPER_SHARED_TOKENS: tuple[Right, ...] = (
    Right("", "serviceaccounts", ("list", "watch"), "renew shared tokens of recreated ServiceAccounts"),
)
"""Needed in the upper cluster, in addition to ``UPPER``, with ``identities.tokens: node``."""

UPPER_RESOURCE_CLAIMS: tuple[Right, ...] = (
    *(right for kind in CLAIMS for right in upper_of_kind(kind)),
    Right("scheduling.k8s.io", "podgroups", ("get",), "claims that belong to a PodGroup, not to a pod"),
)
"""Needed in the upper cluster, in addition to ``UPPER``, with ``clusters[].resourceClaims.enabled``."""

UPPER_RENEWAL: tuple[Right, ...] = (
    Right(
        "", "secrets", ("get", "patch"), "renew tokens for lower clusters", "", OWN_NAMESPACE, (TOKEN_SECRET,)
    ),
)
"""Needed in the upper cluster, in addition to ``UPPER``, with ``clusters[].tokenSecrets``."""

UPPER_CSR: tuple[Right, ...] = (
    # The request is created as the impersonated node, because the Node authorizer allows every node to create
    # it. Only virtual nodes may be impersonated, because a user that may impersonate any node can read every
    # Secret that a pod on any node uses.
    Right("", "users", ("impersonate",), _NODE_AS_USER, names=(f"system:node:{VIRTUAL_NODE}",)),
    Right("", "groups", ("impersonate",), _NODE_AS_USER, names=("system:nodes",)),
    Right(
        *_REQUESTS, ("get", "watch", "delete"), "follow and delete its own requests for serving certificates"
    ),
)
"""Needed in the upper cluster, in addition to ``UPPER``, with ``kubelet.servingCertificate: CSR``."""

UPPER_CSR_APPROVAL: tuple[Right, ...] = (
    Right(*_REQUESTS, ("update",), _APPROVAL, "approval"),
    Right(
        "certificates.k8s.io", "signers", ("approve",), _APPROVAL, names=("kubernetes.io/kubelet-serving",)
    ),
)
"""Needed in the upper cluster, in addition to ``UPPER_CSR``, with ``kubelet.approveServingCertificate``."""

UPPER_PROFILES: tuple[Right, ...] = inventory.PROFILES
"""Needed in the upper cluster, in addition to ``UPPER``, with ``clusterProfiles``. ``<profiles>`` is their namespace."""

UPPER_PROFILES_ANY: tuple[Right, ...] = (
    Right("", "nodes", ("patch",), "virtual nodes of any ClusterProfile"),
    Right("", "nodes", ("patch",), "virtual nodes of any ClusterProfile", "status"),
    Right(
        *_LEASES, ("get", "update"), "heartbeat of virtual nodes of any ClusterProfile", "", names.NODE_LEASES
    ),
)
"""Needed in the upper cluster, in addition to ``UPPER_PROFILES``, if ``clusterProfiles.names`` is empty: RBAC cannot limit
names to a prefix. The chart's ValidatingAdmissionPolicy does."""


def upper(config: Config) -> tuple[Right, ...]:
    """Return all permissions that a configuration needs in the upper cluster, with its object names."""
    tables = [*UPPER]
    election = config.leader_election
    if election.enabled:
        tables += UPPER_SHARDS if election.mode == SHARDED else UPPER_ELECTION
    if config.enable_serviceaccount and config.identities.tokens == "node":
        tables += UPPER_SHARED_TOKENS
    profiles = config.cluster_profiles
    follow = {kind for cluster in config.clusters for kind in cluster.follow}
    for kind in sorted(follow.union(profiles.defaults.get("follow", ()) if profiles is not None else ())):
        tables += UPPER_COPIES[kind]
    if config.web_address:
        tables += UPPER_PAGE
    claims = profiles.defaults.get("resourceClaims", {}) if profiles is not None else {}
    if claims.get("enabled") or any(cluster.resource_claims.enabled for cluster in config.clusters):
        tables += UPPER_RESOURCE_CLAIMS
    if config.kubelet.certificate_source == "CSR":
        tables += UPPER_CSR
        if config.kubelet.approve_serving_certificate:
            tables += UPPER_CSR_APPROVAL
    nodes = [node.name for cluster in config.clusters for node in cluster.virtual_nodes()]
    if profiles is not None:
        tables += [replace(right, namespace=profiles.namespace) for right in UPPER_PROFILES]
        tables += () if profiles.names else UPPER_PROFILES_ANY
        nodes += [profiles.name_prefix + name for name in profiles.names]
    found = rights.resolved(
        tables, names={VIRTUAL_NODE: nodes, LEASE: [election.name]}, own_namespace=election.namespace
    )
    for secret in (secret for cluster in config.clusters for secret in cluster.token_secrets):
        found += rights.resolved(
            UPPER_RENEWAL, names={TOKEN_SECRET: [secret.name]}, own_namespace=secret.namespace
        )
    return found


LOWER: tuple[Right, ...] = (
    Right("", "nodes", READ, "capacity"),
    Right("", "nodes", ("get",), "kubectl top, metrics", "proxy"),
    Right("metrics.k8s.io", "pods", ("list",), "metrics where the node proxy is refused"),
    Right("metrics.k8s.io", "nodes", ("list",), "metrics where the node proxy is refused"),
    Right("", "namespaces", MANAGE, "namespaces for pods"),
    Right("", "pods", MANAGE, "run pods"),
    Right("", "pods", ("get",), "kubectl logs", "log"),
    Right("", "pods", ("get", "create"), "kubectl exec", "exec"),
    Right("", "pods", ("get", "create"), "kubectl attach", "attach"),
    Right("", "pods", ("get", "create"), "kubectl port-forward", "portforward"),
    Right("", "pods", ("patch",), "kubectl debug", "ephemeralcontainers"),
    Right("", "pods", ("patch",), "in-place resize", "resize"),
    *map(lower_of_kind, enabled(())),
    Right("", "persistentvolumeclaims", MANAGE, "claims of pods (PVControllers)"),
    Right("", "persistentvolumes", ("list", "watch"), "volumes of claims (PVControllers)"),
    Right("", "events", ("list", "watch"), "lower events on upper pods and claims"),
    Right("", "resourcequotas", READ, "pods that a lower quota would refuse (multi-scheduler)"),
    Right("", "limitranges", READ, "defaults and limits of lower pods (multi-scheduler)"),
    Right("scheduling.k8s.io", "priorityclasses", READ, "quotas of priority classes (multi-scheduler)"),
)
"""Needed in every lower cluster."""

LOWER_RESOURCE_CLAIMS: tuple[Right, ...] = tuple(map(lower_of_kind, CLAIMS))
"""Needed in a lower cluster, in addition to ``LOWER``, with ``resourceClaims.enabled``. Granted by
``lower-cluster register --resource-claims``."""


LOWER_SHARED_VOLUMES: tuple[Right, ...] = (
    Right("", "persistentvolumes", ("get", "create", "delete"), "volumes on shared storage (volumes.shared)"),
)
"""Needed in a lower cluster, in addition to ``LOWER``, with ``volumes.shared``. Granted by
``lower-cluster register --shared-volumes``."""


def lower(
    follow: Iterable[str], *, resource_claims: bool = False, shared_volumes: bool = False
) -> tuple[Right, ...]:
    """Return all permissions that a virtual node needs in a lower cluster.

    Args:
        follow: kinds of objects that follow pods there.
        resource_claims: whether ResourceClaims follow pods there.
        shared_volumes: whether volumes on shared storage follow pods there.
    """
    following = [right for kind in sorted(set(follow)) for right in LOWER_COPIES[kind]]
    return (
        *LOWER,
        *following,
        *(LOWER_RESOURCE_CLAIMS if resource_claims else ()),
        *(LOWER_SHARED_VOLUMES if shared_volumes else ()),
    )


LOWER_VIEWER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "capacity of every lower node"),
    Right("", "pods", ("list", "watch"), "pods that use it"),
    Right("", "persistentvolumes", ("list", "watch"), "nodes that volumes are tied to"),
    Right("", "resourcequotas", ("list", "watch"), "pods that a quota would refuse"),
    Right("", "limitranges", ("list", "watch"), "defaults and limits of pods"),
    Right("", "namespaces", ("list", "watch"), "namespaces that the virtual node must not use"),
    Right("scheduling.k8s.io", "priorityclasses", ("list", "watch"), "quotas of priority classes"),
)
"""Granted in every lower cluster to the read-only account that ``lower-cluster register`` creates for the
multi-scheduler."""

LOWER_VIEWER_METRICS_API: tuple[Right, ...] = (
    Right("metrics.k8s.io", "nodes", ("list",), "usage of lower nodes (MetricsAPI)"),
)
"""Also granted to the multi-scheduler's account by ``lower-cluster register --usage-source MetricsAPI``."""

LOWER_VIEWER_KUBELETS: tuple[Right, ...] = (
    Right("", "nodes", ("get",), "usage of lower nodes (Summary, Resource)", "proxy"),
)
"""Also granted to the multi-scheduler's account by ``lower-cluster register --usage-source Summary`` or ``Resource``."""

LOWER_RENEWAL: tuple[Right, ...] = (
    Right(
        "",
        "serviceaccounts",
        ("create",),
        "renew the tokens of both accounts",
        "token",
        OWN_NAMESPACE,
        ("virtual-node", "virtual-node-viewer"),
    ),
)
"""Granted to the virtual node's account in its own namespace of every lower cluster."""
