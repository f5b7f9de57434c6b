"""Computes the replacement of a bare pod: the same pod without fields that the server or scheduler set. Does no IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec

from clusterset.model import names
from clusterset.model.moving import node_avoidance
from clusterset.model.pod import affinity_terms
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object

_METADATA = ("name", "namespace", "labels", "annotations", "ownerReferences", "finalizers")
_DROPPED_FIELDS = (
    "nodeName",
    "ephemeralContainers",  # forbidden at creation
    "priority",  # computed by admission, which refuses other values
    "preemptionPolicy",
)
_DROPPED_ANNOTATIONS = names.REPORTED_ON_PODS
"""Dropped, because they describe the lower pod of the old pod."""


def of(
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
        usable: names of the ready virtual nodes. If all of them would be avoided, only the latest is avoided,
            and none if there is only one.
        now: wall clock.
        counts: whether to increment ``deschedule-count``.
    """
    metadata = pod["metadata"]
    before = node_avoidance.recorded(metadata.get("annotations") or {})
    frozen = {**avoid, node: now} if node else dict(avoid)
    nodes = {name: frozen[name] for name in node_avoidance.to_avoid(frozen, usable)}
    kept: dict[str, Any] = {field: metadata[field] for field in _METADATA if metadata.get(field)}
    kept["labels"] = {**(metadata.get("labels") or {}), names.LABEL_CREATED_BY_DESCHEDULER: "true"}
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
