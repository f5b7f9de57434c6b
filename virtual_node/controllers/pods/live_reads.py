"""Reads pods live from the API servers. A pod is never deleted because of a cache alone, which may be behind."""

from __future__ import annotations

from typing import Any

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find, find_object
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.translate.base import ownership

BEHIND = 5.0
"""Seconds until a requeue while a cache is behind; normally the missing event requeues the pod earlier."""


async def lower_named_as(context: ClusterContext, upper: Object) -> Object | None:
    """Return the lower pod that has an upper pod's name, owned or unmanaged; None: there is none."""
    namespace = context.lower_namespace(upper.namespace)
    return await find_object(context.lower, resources.PODS, upper.name, namespace=namespace)


async def lower_pod_of(context: ClusterContext, upper: Object, *, known_uid: str) -> Object | None:
    """Return the lower pod of an upper pod's name if it was created for the upper pod, as ``is_lower_pod_of``."""
    live = await lower_named_as(context, upper)
    return live if live is not None and is_lower_pod_of(context, upper, live, known_uid=known_uid) else None


def is_lower_pod_of(context: ClusterContext, upper: Object, live: Object, *, known_uid: str) -> bool:
    """Report whether a pod read from the lower cluster was created for an upper pod.

    Args:
        context: the two clusters.
        upper: the upper pod.
        live: the lower pod.
        known_uid: uid of the lower pod that this process created or saw with our labels; empty: none. Never
            take it from the upper pod, because users can write there.
    """
    if live.uid == known_uid or ownership.is_confirmed(live, upper):
        return True
    origin = {"namespace": upper.namespace, "name": upper.name, "uid": upper.uid}
    is_in_place = context.places.stands_for(live.namespace, upper.namespace)
    return is_in_place and ownership.is_made_for(live, context.cluster_id, origin)


async def itself(cluster: Client, pod: Object) -> Object | None:
    """Return the current state of a pod; None: the pod of that uid is gone."""
    live = await find_object(cluster, resources.PODS, pod.name, namespace=pod.namespace)
    return live if live is not None and live.uid == pod.uid else None


async def lower_node(context: ClusterContext, nodes: Informer, name: str) -> Object | None:
    """Return a lower node; None: it does not exist. Reads live if the cache does not have it and is not current."""
    node = nodes.store.get(name)
    if node is not None or (nodes.has_synced and nodes.last_error is None):
        return node
    return await find_object(context.lower, resources.NODES, name)


async def upper_exists(context: ClusterContext, uid: str, lower: Object) -> bool:
    """Report whether the upper cluster has the pod of that uid, under the name that a lower pod was created with."""
    upper = await _upper_named_as(context, lower)
    return upper is not None and upper["metadata"]["uid"] == uid


async def has_upper_pod(context: ClusterContext, lower: Object) -> bool:
    """Report whether the upper cluster has the pod that a lower pod was created for. Reads live.

    The uid label or the ``made-for`` annotation suffices, so changing only one does not get the pod deleted.
    """
    upper = await _upper_named_as(context, lower)
    return upper is not None and ownership.is_made_for(lower, context.cluster_id, upper["metadata"])


async def _upper_named_as(context: ClusterContext, lower: Object) -> dict[str, Any] | None:
    return await find(context.upper, resources.PODS, lower.name, namespace=ownership.upper_namespace(lower))
