"""The pod that takes a bare pod's place: the same one, less what the server and the old node had added. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from controller_runtime.api import label_keys, names, node_avoidance, timestamps
from controller_runtime.api.decoding import decode
from controller_runtime.objects import Object

_METADATA = ("name", "namespace", "labels", "annotations", "ownerReferences", "finalizers")
_NOT_TO_CREATE = (
    "nodeName",
    "ephemeralContainers",  # not allowed at creation
    "priority",  # computed by admission, which refuses other values than its own
    "preemptionPolicy",
)
_OF_THE_OLD_POD = (names.ANNOTATION_LOWER_UID,)
"""Annotations that would make the virtual node take the new pod for one that had run already."""


def of(
    pod: Mapping[str, Any],
    *,
    avoid: Mapping[str, datetime],
    node: str,
    usable: Collection[str],
    now: datetime,
    counts: bool = True,
) -> dict[str, Any]:
    """The replacement.

    Everything the user wrote stays, clusterSelector included: the label ``create-by-descheduler`` keeps the webhook
    from mutating the pod a second time.

    Args:
        pod: the old pod as the server has it.
        avoid: the nodes it avoids already, and since when, without expired ones.
        node: the node it was stuck on, to be avoided from now on; empty: none is.
        usable: the names of the virtual nodes that are ready; when none would be left, only the last one is
            avoided, and none when there is but one.
        now: the time.
        counts: whether ``deschedule-count`` grows.
    """
    metadata = pod["metadata"]
    before = avoided(pod, now, None)
    frozen = {**avoid, node: now} if node else dict(avoid)
    nodes = {name: frozen[name] for name in node_avoidance.to_avoid(frozen, usable)}
    kept: dict[str, Any] = {field: metadata[field] for field in _METADATA if metadata.get(field)}
    kept["labels"] = {**(metadata.get("labels") or {}), names.LABEL_CREATED_BY_DESCHEDULER: "true"}
    annotations = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if key not in _OF_THE_OLD_POD
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
    spec = {field: value for field, value in pod["spec"].items() if field not in _NOT_TO_CREATE}
    if spec.get("runtimeClassName"):
        spec.pop("overhead", None)  # computed by admission, too
    spec = node_avoidance.avoid(node_avoidance.readmit(label_keys.settled(spec), before), nodes)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


def count(pod: Mapping[str, Any]) -> int:
    """How often a pod has been re-created, by its annotation."""
    text = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_DESCHEDULE_COUNT) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def avoided(pod: Mapping[str, Any], now: datetime, period: float | None) -> dict[str, datetime]:
    """The nodes that a re-created pod avoids, and since when.

    Args:
        pod: with its annotations.
        now: the time.
        period: seconds after which an entry has expired; None: expired ones, too.
    """
    found = noted(pod["metadata"].get("annotations") or {})
    if period is None:
        return found
    return {node: since for node, since in found.items() if now - since < timedelta(seconds=period)}


def noted(annotations: Mapping[str, str]) -> dict[str, datetime]:
    """The nodes that a pod was made to avoid, expired or not, by its annotation."""
    text = annotations.get(names.ANNOTATION_UNSCHEDULABLE_NODES) or ""
    try:
        entries = decode(text) if text else {}
        return {str(node): timestamps.parse(since) for node, since in entries.items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # somebody else's handwriting


def named(annotations: Mapping[str, str]) -> set[str]:
    """The nodes that a pod was made to avoid, by us or by the webhook (``unschedulable-node``, comma-separated)."""
    texts = (annotations.get(names.ANNOTATION_UNSCHEDULABLE_NODE) or "").split(",")
    return set(noted(annotations)) | {text.strip() for text in texts if text.strip()}


def has_avoidance(pod: Object) -> bool:
    """Whether a pod was made to avoid nodes."""
    return bool(pod.annotations) and bool(named(pod.annotations))
