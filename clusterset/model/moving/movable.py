"""Rules for pods that leave a virtual node, for the descheduler and for commands that predict its moves. Does no IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clusterset.model import names
from clusterset.model.moving import drain, node_avoidance, silence
from clusterset.model.pod.conditions import is_true
from controller_runtime.apimachinery import matching, quantity
from controller_runtime.objects import Object

MAY_RUN = "its lower cluster does not answer, and the pod may run there"
"""Why a pod with a lower node is not moved off a silent cluster, except by the strategy ``StaleCluster``."""
ANNOTATION_EVICT = "descheduler.alpha.kubernetes.io/evict"
"""If present, most rules that keep a pod do not apply (``why_not_evictable``), as in
sigs.k8s.io/descheduler."""
_SYSTEM_CRITICAL = 2_000_000_000
LOCAL_VOLUMES = ("emptyDir", "hostPath")

Json = Mapping[str, Any]


def why_not_evictable(
    metadata: Json, spec: Json, *, local_storage: bool = False, system_critical: bool = False
) -> str:
    """Return why an active pod may not be moved; empty if it may.

    The rules are those of sigs.k8s.io/descheduler 0.18, as tensile-kube uses them, except that bare pods may be
    moved, because they are re-created. Annotation ``ANNOTATION_EVICT`` overrides all rules except the first
    two.

    Args:
        metadata: of the pod.
        spec: of the pod.
        local_storage: whether pods with emptyDir or hostPath volumes may be moved.
        system_critical: whether pods of system priority may be moved.
    """
    annotations = metadata.get("annotations") or {}
    if metadata.get("namespace") == "kube-system":
        return "it is in kube-system"
    if drain.is_released(metadata.get("labels") or {}, annotations):
        return "its replacement is already being started"
    if ANNOTATION_EVICT in annotations:
        return ""
    owner = controller(metadata) or {}
    if owner.get("kind") == "DaemonSet":
        return "its DaemonSet requires it on this node"
    if "kubernetes.io/config.mirror" in annotations or owner.get("kind") == "Node":
        return "it mirrors a static pod"
    if not system_critical and (spec.get("priority") or 0) >= _SYSTEM_CRITICAL:
        return "its priority is system critical"
    if not local_storage and any(
        kind in volume for volume in spec.get("volumes") or () for kind in LOCAL_VOLUMES
    ):
        return "it has local storage (allow it: drain --delete-emptydir-data, or --evict-local-storage-pods of the descheduler)"
    return ""


def has_lower_node(metadata: Json, status: Json | None) -> bool:
    """Report whether a bound pod has a node in its lower cluster, as last reported, so that its containers may run.

    The upper API server itself sets PodScheduled=True when a pod is bound, and the condition stays until the lower scheduler
    reports. So the virtual node's annotation with the lower node decides, too.
    """
    if (status or {}).get("phase", "Pending") != "Pending":
        return True
    reported = {names.ANNOTATION_LOWER_UID, names.ANNOTATION_LOWER_NODE}
    return reported <= (metadata.get("annotations") or {}).keys() and is_true(status, "PodScheduled")


def may_run_unseen(metadata: Json, status: Json | None, node_status: Json | None) -> bool:
    """Report whether a pod may run in a lower cluster that does not answer, whatever its own status says.

    Args:
        metadata: of the pod.
        status: of the pod.
        node_status: of its virtual node.
    """
    return silence.is_silent(node_status) and has_lower_node(metadata, status)


def is_of_node(owner: Json | None) -> bool:
    """Report whether the owner of a pod requires the pod on its node, so that a drain ignores the pod."""
    return (owner or {}).get("kind") in {"DaemonSet", "Node"}


def controller(metadata: Json) -> Json | None:
    """Return the ownerReference of the controller; None: there is none.

    An owner without ``controller: true`` does not replace a deleted pod; it matters only for garbage collection.
    """
    owners = metadata.get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def claims(spec: Json) -> list[str]:
    """Return the names of the PersistentVolumeClaims in a pod's volumes."""
    return [
        volume["persistentVolumeClaim"].get("claimName", "")
        for volume in spec.get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    ]


def volume_of(claim: Json | None) -> str:
    """Return the name of the volume to which a claim is bound; empty: it is not bound."""
    if claim is None or (claim.get("status") or {}).get("phase") != "Bound":
        return ""
    return str((claim.get("spec") or {}).get("volumeName") or "")


def why_pinned(claim: Json | None, volume: Json | None, *, node: str, elsewhere: Iterable[Json]) -> str:
    """Return why a claim keeps its pods on their virtual node; empty if it does not.

    A volume with node affinity keeps the pods unless the affinity matches a node in ``elsewhere``, the other virtual
    nodes that admit the pod. Without node affinity, the claim keeps the pods on the claim's selected node.
    """
    if claim is None or (claim.get("status") or {}).get("phase") != "Bound":
        return ""
    name = claim["metadata"].get("name")
    required = (((volume or {}).get("spec") or {}).get("nodeAffinity") or {}).get("required")
    if not required:
        is_here = (claim["metadata"].get("annotations") or {}).get(names.ANNOTATION_SELECTED_NODE) == node
        return f"its claim {name} was provisioned for this node" if is_here else ""
    if any(
        matching.matches_term(
            term, name=other["metadata"]["name"], labels=other["metadata"].get("labels") or {}
        )
        for other in elsewhere
        for term in required.get("nodeSelectorTerms") or ()
    ):
        return ""
    return (
        f"its claim {name} is bound to volume {volume_of(claim)}, which no other ready virtual node reaches"
    )


def admitting(annotations: Mapping[str, str], spec: Json, nodes: Iterable[Object]) -> list[Object]:
    """Return the nodes that a pod's own selector, affinity and tolerations allow, also those that it avoids for a time.

    Free resources are not checked, because a pod that does not run can wait for resources in the upper cluster as well.

    Args:
        annotations: of the pod.
        spec: of the pod.
        nodes: open nodes (``is_open``).
    """
    own = node_avoidance.own_spec(spec, annotations)
    return [
        node
        for node in nodes
        if matching.admits(
            own, name=node.name, labels=node.labels, taints=(node.spec or {}).get("taints") or ()
        )
    ]


def is_single_writer(claim: Json | None) -> bool:
    """Report whether all pods of a claim must run on one lower node, so one may have to end before another starts."""
    modes = set(((claim or {}).get("spec") or {}).get("accessModes") or ())
    # With ReadWriteOnce and ReadOnlyMany, either one node writes, or many nodes read.
    return bool(modes) and "ReadWriteMany" not in modes and modes != {"ReadOnlyMany"}


def has_places(status: Json | None) -> bool:
    """Report whether a node is ready and may have pods.

    A virtual node without allocatable pods is as a cordoned one: all nodes of its lower cluster are cordoned.
    """
    allocatable = (status or {}).get("allocatable") or {}
    return is_true(status, "Ready") and quantity.of("pods", allocatable.get("pods", 0)) > 0


def is_open(spec: Json, status: Json | None, *, is_deleted: bool) -> bool:
    """Report whether a node has places for pods, and is not cordoned, not being deleted and without the stale-cluster taint."""
    taints = spec.get("taints") or ()
    return (
        has_places(status)
        and not spec.get("unschedulable")
        and not is_deleted
        and not any(taint.get("key") == names.TAINT_STALE_CLUSTER for taint in taints)
    )
