"""Other virtual-node processes of the same upper cluster in the same lower one: what we share with them."""

from __future__ import annotations

from controller_runtime import resources
from controller_runtime.api import names
from virtual_node.controllers.context import ClusterContext


async def have_pods_in(context: ClusterContext, namespace: str) -> bool:
    """Whether another process has pods in a lower namespace, so that copies there may be in use: asked, not cached."""
    ours = ",".join(context.nodes)
    selector = f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id},{names.LABEL_NODE} notin ({ours})"
    page = await context.lower.list(resources.PODS, namespace=namespace, label_selector=selector, limit=1)
    return bool(page.items)
