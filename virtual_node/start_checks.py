"""What a lower cluster is not started with: names and kubeconfigs by which we would change what is not ours."""

from __future__ import annotations

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.errors import ConfigError, Forbidden, NotFound
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.credential_renewal import kube_system


async def refuse_upper_as_lower(context: ClusterContext) -> None:
    """A lower kubeconfig that leads to the upper cluster would mirror every pod onto itself."""
    try:
        system = await kube_system(context)
        upper = await context.upper.get(resources.NAMESPACES, "kube-system")
    except (Forbidden, NotFound):
        return
    if system["metadata"]["uid"] == upper["metadata"]["uid"]:
        raise ConfigError(f"lower cluster {context.name}: its kubeconfig leads to the upper cluster")


async def refuse_real_nodes(context: ClusterContext) -> None:
    """A virtual node with a real one's name would take that one's pods for its own."""
    for name in context.nodes:
        try:
            node = await context.upper.get(resources.NODES, name)
        except NotFound:
            continue
        if (node["metadata"].get("labels") or {}).get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL:
            raise ConfigError(
                f"node {name}: the upper cluster has a Node of that name that is not virtual; choose another nodeName"
            )
