"""What the descheduler keeps of a pod and asks of it: pure functions on cached objects.

Every pod of the upper cluster is cached, because pods that wait for a node matter too; ``shrink`` keeps of each
what a decision needs (half a kilobyte). The whole pod is read afresh before anything is done to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from controller_runtime.api import node_avoidance, timestamps
from controller_runtime.objects import Object

ANNOTATION_EVICT = "descheduler.alpha.kubernetes.io/evict"
"""Its presence overrules every reason not to evict, as in sigs.k8s.io/descheduler."""
INDEX_NODE = "node"
PENDING, RUNNING = "Pending", "Running"

_SYSTEM_CRITICAL = 2_000_000_000
_SPEC = (
    "nodeName",
    "priority",
    "nodeSelector",
    "affinity",
    "tolerations",
    "overhead",
    "resources",
    "topologySpreadConstraints",
)
_STATUS = ("phase", "reason", "message", "conditions")
_LOCAL_VOLUMES = ("emptyDir", "hostPath")
_KEPT_VOLUMES = (*_LOCAL_VOLUMES, "persistentVolumeClaim")


def shrink(pod: Object) -> Object:
    """The informer's transform: drop what no decision reads."""
    spec, status = pod.spec or {}, pod.status or {}
    kept: dict[str, Any] = {field: spec[field] for field in _SPEC if field in spec}
    for kind in ("containers", "initContainers"):
        if kind in spec:
            kept[kind] = [
                {
                    field: container[field]
                    for field in ("name", "resources", "restartPolicy")
                    if field in container
                }
                for container in spec[kind]
            ]
    volumes = [
        {"name": volume.get("name", ""), kind: volume[kind]}
        for volume in spec.get("volumes") or ()
        for kind in _KEPT_VOLUMES
        if kind in volume
    ]
    if volumes:
        kept["volumes"] = volumes
    said: dict[str, Any] = {field: status[field] for field in _STATUS if field in status}
    waiting = list(waiting_reasons(status))
    if waiting:
        said["containerStatuses"] = [{"state": {"waiting": {"reason": reason}}} for reason in waiting]
    return pod.with_fields(spec=kept, status=said)


def by_node(pod: Object) -> Iterable[str]:
    """Index: the node a pod is bound to, empty while it waits for one."""
    return ((pod.spec or {}).get("nodeName") or "",)


def controller_of(pod: Object) -> dict[str, Any] | None:
    """The owner that makes another pod when this one goes; None for a bare pod.

    An owner that is no controller (``controller`` unset) only has the pod collected with it.
    """
    return next((owner for owner in pod.metadata.owner_references if owner.get("controller")), None)


def owner_key(pod: Object) -> str:
    """Return the key under which a pod's history is kept: of its namespace and controller, or of its own name."""
    owner = controller_of(pod)
    return node_avoidance.owner_key(pod.namespace, str(owner["uid"]) if owner else f"pod.{pod.name}")


def created(pod: Object) -> datetime:
    """When the pod was created."""
    return timestamps.parse(pod.metadata.creation_timestamp or "1970-01-01T00:00:00Z")


def is_active(pod: Object) -> bool:
    """Whether the pod is neither finished nor being deleted."""
    finished = (pod.status or {}).get("phase") in {"Succeeded", "Failed"}
    return not finished and pod.metadata.deletion_timestamp is None


def is_ready(pod: Object) -> bool:
    """Whether it says that it is ready."""
    return condition(pod.status or {}, "Ready").get("status") == "True"


def condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A condition by type; empty when there is none."""
    return next((found for found in status.get("conditions") or () if found.get("type") == kind), {})


def waiting_reasons(status: Mapping[str, Any]) -> Iterable[str]:
    """Why containers wait, such as ImagePullBackOff; init containers included."""
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(field) or ():
            reason = ((container.get("state") or {}).get("waiting") or {}).get("reason")
            if reason:
                yield reason


def claims(spec: Mapping[str, Any]) -> list[str]:
    """Names of the persistent volume claims that the pod mounts."""
    return [
        volume["persistentVolumeClaim"].get("claimName", "")
        for volume in spec.get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    ]


def why_not_evictable(pod: Object, *, local_storage: bool = False, system_critical: bool = False) -> str:
    """Why this pod must be left where it is; empty when it may be moved.

    sigs.k8s.io/descheduler's rules (0.18, as tensile-kube uses them), but that pods without an owner may be
    moved: they are re-created here. Its ``evict`` annotation overrules all but the first two.

    Args:
        pod: a cached pod.
        local_storage: pods with emptyDir or hostPath volumes may go, too.
        system_critical: pods of system priority may go, too.
    """
    if not is_active(pod):
        return "it is ending"
    if pod.namespace == "kube-system":
        return "it is in kube-system"
    if ANNOTATION_EVICT in pod.annotations:
        return ""
    owner = controller_of(pod) or {}
    if owner.get("kind") == "DaemonSet":
        return "a DaemonSet wants it on this very node"
    if "kubernetes.io/config.mirror" in pod.annotations or owner.get("kind") == "Node":
        return "it mirrors a static pod"
    spec = pod.spec or {}
    if not system_critical and (spec.get("priority") or 0) >= _SYSTEM_CRITICAL:
        return "its priority is system critical"
    if not local_storage and any(
        kind in volume for volume in spec.get("volumes") or () for kind in _LOCAL_VOLUMES
    ):
        return "it has local storage (--evict-local-storage-pods)"
    return ""
