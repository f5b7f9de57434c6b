"""Queries of cached pods, and the replacement of a bare pod.

All pods of the upper cluster are cached, because pending pods matter too. ``shrink`` keeps only the fields
that decisions need (half a kilobyte per pod). The complete pod is read from the API before the pod is
re-created. If the pods of a namespace need more than ``BYTES_PER_NAMESPACE``, further ones are stubs (``stub``), which are
not moved.

The replacement is the same pod without fields that the server or scheduler set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from clusterset.model import names
from clusterset.model.moving import movable, node_avoidance
from clusterset.model.pod import affinity_terms, pod_resources
from clusterset.model.pod.conditions import is_finished
from clusterset.model.policy.copied_keys import ZONES
from controller_runtime import store
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object
from controller_runtime.store import Indexer, is_stub

INDEX_NODE = "node"
INDEX_DIVISION = "division"
"""Index of pods that a ReplicaSet divides over lower clusters, by namespace and UID of the ReplicaSet."""
PENDING = "Pending"
BYTES_PER_NAMESPACE, FREE = 16 << 20, 2048
"""Maximum bytes of the pods of a namespace, without the first 2 KiB of each: all of a normal pod."""

_ANNOTATIONS = frozenset(
    {
        movable.ANNOTATION_EVICT,
        "kubernetes.io/config.mirror",
        names.ANNOTATION_DELETION_COST,
        names.ANNOTATION_CLUSTER_SELECTOR,
        names.ANNOTATION_TRIPPED_LABELS,
        names.ANNOTATION_UNSCHEDULABLE_NODE,
        names.ANNOTATION_DESCHEDULE_COUNT,
        names.ANNOTATION_GLOBAL,
    }
)
_SPEC = (
    "nodeName",
    "priority",
    "nodeSelector",
    "affinity",
    "tolerations",
    "overhead",
    "resources",
    "evictionResponders",
    "schedulingGroup",
)
_CONTAINER = ("name", "resources", "restartPolicy")
_STATUS = ("phase", "reason", "message", "conditions")
_KEPT_VOLUMES = (*movable.LOCAL_VOLUMES, "persistentVolumeClaim")


def shrink(pod: Object) -> Object:
    """Return the pod with only the fields that decisions read. Used as the informer's transform."""
    spec, status = pod.spec or {}, pod.status or {}
    kept = pick(spec, _SPEC)
    if node_affinity := (kept.pop("affinity", None) or {}).get("nodeAffinity"):
        kept["affinity"] = {"nodeAffinity": node_affinity}
    for kind in ("containers", "initContainers"):
        if kind in spec:
            kept[kind] = [pick(container, _CONTAINER) for container in spec[kind]]
    volumes = [
        {"name": volume.get("name", ""), kind: volume[kind]}
        for volume in spec.get("volumes") or ()
        for kind in _KEPT_VOLUMES
        if kind in volume
    ]
    if volumes:
        kept["volumes"] = volumes
    kept_status = pick(status, _STATUS)
    waiting = list(waiting_reasons(status))
    if waiting:
        kept_status["containerStatuses"] = [{"state": {"waiting": {"reason": reason}}} for reason in waiting]
    shrunk = pod.with_fields(spec=kept, status=kept_status)
    return shrunk.with_only(
        labels=lambda _key: True,
        annotations=lambda key: names.is_reserved(key) or key in _ANNOTATIONS,
        owners=lambda one: bool(one.get("controller")),
    )


def stub(pod: Object) -> Object:
    """Return a shrunk pod without what its user can write in any size: it uses room on its node, and is not moved."""
    spec, status = pod.spec or {}, pod.status or {}
    ready = [condition for condition in status.get("conditions") or () if condition.get("type") == "Ready"]
    return store.stub(pod).with_fields(
        spec={**pick(spec, ("nodeName", "priority")), "containers": pod_resources.summed(spec)},
        status={**pick(status, ("phase",)), "conditions": [pick(one, ("type", "status")) for one in ready]},
    )


def pick(found: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return the given fields of an object, without missing ones."""
    return {field: found[field] for field in fields if field in found}


def by_node(pod: Object) -> Iterable[str]:
    """Return the values of ``INDEX_NODE``: the name of the pod's node; ``""`` for a pending pod."""
    return (pod.node_name,)


def by_division(pod: Object) -> Iterable[str]:
    """Return the values of ``INDEX_DIVISION``; none for a pod without division, or without a ReplicaSet."""
    owner = pod.controller if pod.annotations.get(names.ANNOTATION_DIVISION) else None
    return (f"{pod.namespace}/{owner.get('uid')}",) if owner and owner.get("kind") == "ReplicaSet" else ()


INDEXERS: Mapping[str, Indexer] = {INDEX_NODE: by_node, INDEX_DIVISION: by_division}
"""Indexers of the informer of pods."""


def owner_key(pod: Object) -> str:
    """Return the key of a pod's owner: namespace and controller UID; for a bare pod, namespace and pod name."""
    owner = pod.controller
    return node_avoidance.owner_key(pod.namespace, str(owner["uid"]) if owner else f"pod.{pod.name}")


def created(pod: Object) -> datetime:
    """Return the pod's creation time."""
    return timestamps.parse(pod.metadata.creation_timestamp or "1970-01-01T00:00:00Z")


def least_important_first(found: Sequence[Object]) -> list[Object]:
    """Return the pods by rising priority, the youngest first among equals."""

    def importance(pod: Object) -> tuple[Any, ...]:
        return (pod.spec or {}).get("priority") or 0, -created(pod).timestamp(), pod.name

    return sorted(found, key=importance)


def is_active(pod: Object) -> bool:
    """Report whether the pod is neither finished nor being deleted."""
    return not is_finished(pod.status) and pod.metadata.deletion_timestamp is None


def has_lower_node(pod: Object) -> bool:
    """Report whether a bound pod has a node in its lower cluster (``movable.has_lower_node``)."""
    return movable.has_lower_node({"annotations": pod.annotations}, pod.status)


def waiting_reasons(status: Mapping[str, Any]) -> Iterable[str]:
    """Yield the reasons of waiting containers and init containers, such as ImagePullBackOff."""
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(field) or ():
            reason = ((container.get("state") or {}).get("waiting") or {}).get("reason")
            if reason:
                yield reason


def why_not_evictable(pod: Object, *, local_storage: bool = False, system_critical: bool = False) -> str:
    """Return why the pod may not be moved (``movable.why_not_evictable``); empty if it may."""
    if not is_active(pod):
        return "it is finished or being deleted"
    if is_stub(pod):
        return (
            f"the pods of its namespace need more than {BYTES_PER_NAMESPACE >> 20} MiB of the descheduler's memory: reduce "
            "their labels, annotations, affinities and tolerations"
        )
    metadata = {
        "namespace": pod.namespace,
        "labels": pod.labels,
        "annotations": pod.annotations,
        "ownerReferences": pod.metadata.owner_references,
    }
    return movable.why_not_evictable(
        metadata, pod.spec or {}, local_storage=local_storage, system_critical=system_critical
    )


_METADATA = ("name", "namespace", "labels", "annotations", "ownerReferences", "finalizers")
_DROPPED_FIELDS = (
    "nodeName",
    "ephemeralContainers",  # forbidden at creation
    "priority",  # computed by admission, which refuses other values
    "preemptionPolicy",
)
_DROPPED_ANNOTATIONS = names.REPORTED_ON_PODS
"""Dropped, because they describe the lower pod of the old pod."""


def replacement(
    pod: Mapping[str, Any],
    *,
    avoid: Mapping[str, datetime],
    node: str,
    usable: Collection[str],
    now: datetime,
    counts: bool = True,
) -> dict[str, Any]:
    """Return the replacement of a pod.

    All fields that the user wrote stay, including clusterSelector. The label ``create-by-descheduler`` prevents a
    second mutation by the webhook.

    Args:
        pod: the old pod from the API server.
        avoid: nodes of the old pod that the replacement must still avoid, each with the time since when.
        node: additional node to avoid from now on; empty: none.
        usable: names of the open virtual nodes that admit the pod. If all of them would be avoided, only the latest is
            avoided, and none if there is only one.
        now: wall clock.
        counts: whether to increment ``deschedule-count``.
    """
    metadata = pod["metadata"]
    before = node_avoidance.recorded(metadata.get("annotations") or {})
    frozen = {**avoid, node: now} if node else dict(avoid)
    nodes = {name: frozen[name] for name in node_avoidance.to_avoid(frozen, usable)}
    kept: dict[str, Any] = {field: metadata[field] for field in _METADATA if metadata.get(field)}
    # The zone and region of a bound pod are those of its old place.
    places = ZONES if pod["spec"].get("nodeName") else frozenset()
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key not in places}
    kept["labels"] = {**labels, names.LABEL_CREATED_BY_DESCHEDULER: "true"}
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key not in _DROPPED_ANNOTATIONS
    }
    annotations[names.ANNOTATION_DESCHEDULE_COUNT] = str(count(pod) + counts)
    annotations[names.ANNOTATION_REPLACES] = metadata["uid"]
    annotations.pop(names.ANNOTATION_UNSCHEDULABLE_NODES, None)
    annotations.pop(names.ANNOTATION_UNSCHEDULABLE_NODE, None)
    if nodes:
        moments = {name: timestamps.rfc3339(since) for name, since in sorted(nodes.items())}
        annotations[names.ANNOTATION_UNSCHEDULABLE_NODES] = msgspec.json.encode(moments).decode()
    if node:
        annotations[names.ANNOTATION_UNSCHEDULABLE_NODE] = node
    kept["annotations"] = annotations
    spec = {field: value for field, value in pod["spec"].items() if field not in _DROPPED_FIELDS}
    if spec.get("runtimeClassName"):
        spec.pop("overhead", None)  # computed by admission
    spec = node_avoidance.avoid(node_avoidance.readmit(affinity_terms.settled(spec), before), nodes)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


def count(pod: Mapping[str, Any]) -> int:
    """Return how often a pod was re-created, by its annotation."""
    text = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_DESCHEDULE_COUNT) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def has_avoidance(pod: Object) -> bool:
    """Report whether the descheduler or the webhook made a pod avoid nodes."""
    return bool(pod.annotations) and bool(node_avoidance.avoided_names(pod.annotations))
