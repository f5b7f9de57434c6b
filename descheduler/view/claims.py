"""Finds PersistentVolumeClaims that bind a pod to its virtual node."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from controller_runtime import resources
from controller_runtime.api import matching
from controller_runtime.client.client import Client
from controller_runtime.client.reads import find
from controller_runtime.objects import Object
from descheduler.view import pods

_SELECTED_NODE = "volume.kubernetes.io/selected-node"


async def pinning(client: Client, pod: Object, *, node: str, elsewhere: Collection[Object]) -> str:
    """Return the name of a bound claim that keeps the pod on its virtual node; empty if there is none.

    The volume's node affinity decides. Without node affinity, the claim keeps the pod on the claim's selected
    node.

    Args:
        client: client of the upper cluster.
        pod: cached pod.
        node: virtual node of the pod.
        elsewhere: other virtual nodes that admit the pod.

    Raises:
        ApiError: a request failed.
    """
    for name in pods.claims(pod.spec or {}):
        claim = await find(client, resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=pod.namespace)
        if claim is None or (claim.get("status") or {}).get("phase") != "Bound":
            continue
        bound_to = (claim.get("spec") or {}).get("volumeName")
        volume = await find(client, resources.PERSISTENT_VOLUMES, bound_to) if bound_to else None
        required = (((volume or {}).get("spec") or {}).get("nodeAffinity") or {}).get("required")
        if required:
            is_pinned = not any(_admits(required, other) for other in elsewhere)
        else:
            is_pinned = (claim["metadata"].get("annotations") or {}).get(_SELECTED_NODE) == node
        if is_pinned:
            return name
    return ""


def _admits(required: Mapping[str, Any], node: Object) -> bool:
    terms = required.get("nodeSelectorTerms") or ()
    return any(matching.matches_term(term, name=node.name, labels=node.labels) for term in terms)
