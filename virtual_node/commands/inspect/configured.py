"""Reads the lower clusters and virtual nodes of the configuration for ``virtual-node inspect``."""

from __future__ import annotations

from clusterset.admission import ClusterRules
from clusterset.config import Cluster
from virtual_node.commands.inspect.facts import ClusterFacts, VirtualNode
from virtual_node.config.types import Config
from virtual_node.translate.base.options import pod_options


def lower_cluster(config: Config, cluster: Cluster, cluster_id: str) -> ClusterFacts:
    """Return a lower cluster with its configuration and without objects."""
    rules = ClusterRules(cluster, controllers=config.controllers(cluster), cluster_id=cluster_id)
    nodes = {
        node.name: VirtualNode(
            options=pod_options(config, cluster, rules, node),
            selector=node.node_selector,
            reserve=node.capacity.reserve,
            autoscaling=node.autoscaling,
        )
        for node in cluster.virtual_nodes()
    }
    return ClusterFacts(
        name=cluster.name,
        nodes=nodes,
        removes_namespaces=cluster.namespaces.remove,
        adopt=cluster.namespaces.adopt,
        namespace_map=rules.namespace_map,
    )
