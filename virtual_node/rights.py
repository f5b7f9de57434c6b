"""The rights a virtual node needs, in one table: ``check`` asks for them, the chart and the manifests grant them."""

from __future__ import annotations

from collections.abc import Iterable

from controller_runtime.rights import READ, Right

UPPER: tuple[Right, ...] = (
    Right("", "namespaces", READ, "the upper cluster's identity; namespaces that pods need below"),
    Right("", "nodes", (*READ, "create", "patch"), "register the virtual node"),
    Right("", "nodes", ("patch",), "report capacity and conditions", "status"),
    Right(
        "coordination.k8s.io", "leases", ("get", "create", "update"), "node heartbeat", "", "kube-node-lease"
    ),
    Right("", "pods", (*READ, "delete"), "mirror pods and finish their deletion"),
    Right("", "pods", ("patch",), "report pod status", "status"),
    Right("", "services", ("list", "watch"), "service variables; services that follow pods"),
    Right("discovery.k8s.io", "endpointslices", ("list", "watch"), "endpoints of services"),
    Right("", "configmaps", READ, "ConfigMaps that pods name"),
    Right("", "secrets", READ, "Secrets that pods name"),
    Right("", "serviceaccounts", ("create",), "tokens for pods (--enable-serviceaccount)", "token"),
    Right("", "persistentvolumeclaims", (*READ, "patch"), "claims of pods (PVControllers)"),
    Right("", "persistentvolumeclaims", ("patch",), "resizing of claims (PVControllers)", "status"),
    Right(
        "", "persistentvolumes", (*READ, "create", "patch", "delete"), "mirrors of volumes (PVControllers)"
    ),
    Right("storage.k8s.io", "storageclasses", ("list", "watch"), "free volumes (PVControllers)"),
    Right("storage.k8s.io", "csidrivers", ("create",), "nothing to attach to mirrors (PVControllers)"),
    Right("", "events", ("create", "patch"), "tell the story in kubectl describe"),
    Right("coordination.k8s.io", "leases", ("get", "create", "update"), "--leader-elect", "", "kube-system"),
    Right("authentication.k8s.io", "tokenreviews", ("create",), "authenticate kubelet API callers"),
    Right("authorization.k8s.io", "subjectaccessreviews", ("create",), "authorise kubelet API callers"),
)
"""Asked of the upper cluster."""

UPPER_CSR: tuple[Right, ...] = (
    # Creating one is the impersonated node's right, which the Node authorizer gives to every node.
    Right(
        "", "groups", ("impersonate",), "ask for serving certificates as the node", names=("system:nodes",)
    ),
    Right(
        "certificates.k8s.io",
        "certificatesigningrequests",
        ("get", "watch", "delete"),
        "follow our own requests for serving certificates, and remove them",
    ),
)
"""Asked of the upper cluster, besides ``UPPER``, with ``kubelet.servingCertificate: CSR``; see ``upper_csr``."""

UPPER_CSR_APPROVAL: tuple[Right, ...] = (
    Right(
        "certificates.k8s.io",
        "certificatesigningrequests",
        ("update",),
        "approve our own requests (--approve-server-certificates)",
        "approval",
    ),
    Right(
        "certificates.k8s.io",
        "signers",
        ("approve",),
        "approve our own requests (--approve-server-certificates)",
        names=("kubernetes.io/kubelet-serving",),
    ),
)
"""Asked of the upper cluster, besides ``UPPER_CSR``, with ``kubelet.approveServingCertificate``."""


def upper_csr(node_names: Iterable[str], *, approve: bool) -> tuple[Right, ...]:
    """Everything that serving certificates by CSR take in the upper cluster.

    Args:
        node_names: the virtual nodes. Impersonation is granted for these alone: whoever may act as any node may
            read every Secret that a pod on any node uses.
        approve: whether we approve our own requests.
    """
    users = tuple(sorted(f"system:node:{name}" for name in node_names))
    purpose = "ask for serving certificates as the node"
    impersonation = (Right("", "users", ("impersonate",), purpose, names=users),) if users else ()
    return (*impersonation, *UPPER_CSR, *(UPPER_CSR_APPROVAL if approve else ()))


LOWER: tuple[Right, ...] = (
    Right("", "nodes", READ, "capacity"),
    Right("", "nodes", ("get",), "kubectl top, metrics", "proxy"),
    Right("metrics.k8s.io", "pods", ("list",), "metrics where the node proxy is refused"),
    Right("metrics.k8s.io", "nodes", ("list",), "metrics where the node proxy is refused"),
    Right("", "namespaces", (*READ, "create", "patch", "delete"), "namespaces for pods"),
    Right("", "pods", (*READ, "create", "patch", "delete"), "run pods"),
    Right("", "pods", ("get",), "kubectl logs", "log"),
    Right("", "pods", ("get", "create"), "kubectl exec", "exec"),
    Right("", "pods", ("get", "create"), "kubectl attach", "attach"),
    Right("", "pods", ("get", "create"), "kubectl port-forward", "portforward"),
    Right("", "pods", ("patch",), "kubectl debug", "ephemeralcontainers"),
    Right("", "pods", ("patch",), "in-place resize", "resize"),
    Right("", "services", (*READ, "create", "patch", "delete"), "copies of Services; service variables"),
    Right(
        "discovery.k8s.io", "endpointslices", (*READ, "create", "patch", "delete"), "endpoints of services"
    ),
    Right("", "configmaps", (*READ, "create", "patch", "delete"), "copies of ConfigMaps"),
    Right("", "secrets", (*READ, "create", "patch", "delete"), "copies of Secrets, pod tokens"),
    Right(
        "",
        "persistentvolumeclaims",
        (*READ, "create", "patch", "delete"),
        "claims of pods (PVControllers)",
    ),
    Right("", "persistentvolumes", ("list", "watch"), "volumes of claims (PVControllers)"),
    Right("", "events", ("list", "watch"), "lower events on upper pods"),
    Right("", "resourcequotas", READ, "pods that a quota below would refuse (multi-scheduler)"),
    Right("", "limitranges", READ, "what pods below get, and may have (multi-scheduler)"),
    Right("scheduling.k8s.io", "priorityclasses", READ, "quotas of priority classes (multi-scheduler)"),
)
"""Asked of every lower cluster."""
