"""Coordination with other virtual-node processes of the same upper cluster in the same lower cluster.

Each process keeps the lower copies equal to the upper objects. If a copy changed and its cached upper object
did not, then either the copy was edited, or our cache is behind and another process wrote the current state.
In the second case the two processes would undo each other's writes until our cache has caught up. So a process
reads the upper object live before it writes the copy.
"""

from __future__ import annotations

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client, find_listed, find_object
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
    there = await find_listed(client, resource, cached.name, namespace=cached.namespace)
    return there is not None and there.uid == cached.uid and there.resource_version == cached.resource_version


async def exists(client: Client, resource: Resource, key: str) -> bool:
    """Report whether a cluster has an object of that key that is not being deleted. Reads live."""
    namespace, _, name = key.partition("/")
    there = await find_listed(client, resource, name, namespace=namespace)
    return there is not None and there.metadata.deletion_timestamp is None


async def is_virtual_node(upper: Client, node: str) -> bool:
    """Report whether the upper cluster has a virtual node of that name, of any process. Reads live."""
    found = await find_object(upper, resources.NODES, node)
    return found is not None and names.LABEL_LOWER_CLUSTER in found.labels
