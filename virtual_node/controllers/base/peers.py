"""Coordination with other virtual-node processes of the same upper cluster in the same lower cluster.

Each process keeps the lower copies equal to the upper objects. If a copy changed and its cached upper object
did not, then either the copy was edited, or our cache is behind and another process wrote the current state.
In the second case the two processes would undo each other's writes until our cache has caught up. So a process
reads the upper object live before it writes the copy.
"""

from __future__ import annotations

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.client.client import Client
from controller_runtime.client.reads import find_object
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.controllers.base.context import ClusterContext


async def have_pods_in(context: ClusterContext, namespace: str) -> bool:
    """Report whether another process has pods in a lower namespace, so that copies there may be in use. Reads live."""
    ours = ",".join(context.nodes)
    selector = f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id},{names.LABEL_NODE} notin ({ours})"
    return await context.lower.exists(resources.PODS, namespace=namespace, label_selector=selector)


async def is_current(client: Client, resource: Resource, cached: Object) -> bool:
    """Report whether a cluster has an object in exactly the cached state. Reads live."""
    return any(
        one.uid == cached.uid and one.resource_version == cached.resource_version
        for one in await _named(client, resource, cached.key)
    )


async def exists(client: Client, resource: Resource, key: str) -> bool:
    """Report whether a cluster has an object of that key that is not being deleted. Reads live."""
    return any(one.metadata.deletion_timestamp is None for one in await _named(client, resource, key))


async def _named(client: Client, resource: Resource, key: str) -> list[Object]:
    namespace, _, name = key.partition("/")
    return (await client.list(resource, namespace=namespace, field_selector=f"metadata.name={name}")).items


async def is_virtual_node(upper: Client, node: str) -> bool:
    """Report whether the upper cluster has a virtual node of that name, of any process. Reads live."""
    found = await find_object(upper, resources.NODES, node)
    return found is not None and names.LABEL_LOWER_CLUSTER in found.labels
