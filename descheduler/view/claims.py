"""Reads the PersistentVolumeClaims of a pod, which may keep it on its virtual node."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from clusterset.model.moving import movable
from controller_runtime import resources
from controller_runtime.client.client import Client, find
from controller_runtime.objects import Object


async def reachable(
    client: Client, pod: Object, *, node: str, elsewhere: Collection[Object]
) -> tuple[list[Object], str]:
    """Return the nodes on which the pod can use all its bound claims; without such a node, also why.

    ``movable.why_pinned`` has the rules.

    Args:
        client: client of the upper cluster.
        pod: cached pod.
        node: virtual node of the pod.
        elsewhere: other virtual nodes that admit the pod.

    Raises:
        ApiError: a request failed.
    """
    left = list(elsewhere)
    for name in movable.claims(pod.spec or {}):
        claim = await find(client, resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=pod.namespace)
        bound_to = movable.volume_of(claim)
        volume = await find(client, resources.PERSISTENT_VOLUMES, bound_to) if bound_to else None
        why = {
            other.name: movable.why_pinned(claim, volume, node=node, elsewhere=[_body(other)])
            for other in left
        }
        if all(why.values()):
            return [], next(iter(why.values()), "")
        left = [other for other in left if not why[other.name]]
    return left, ""


def _body(node: Object) -> dict[str, Any]:
    return {"metadata": {"name": node.name, "labels": node.labels}}


async def has_single_writer(client: Client, pod: Object) -> bool:
    """Report whether a claim of the pod allows no second pod on another lower node.

    Raises:
        ApiError: a request failed.
    """
    for name in movable.claims(pod.spec or {}):
        if movable.is_single_writer(
            await find(client, resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=pod.namespace)
        ):
            return True
    return False
