"""Reads the lower clusters and virtual nodes of the configuration for ``virtual-node inspect``."""

from __future__ import annotations

from clusterset.config import Cluster
from clusterset.model import names
from clusterset.model.namespace_map import NamespaceMap
from clusterset.model.overrides.applying import OverrideSet
from clusterset.model.policy.rules import PolicySet
from virtual_node.commands.inspect.facts import ClusterFacts, VirtualNode
from virtual_node.config.types import Config
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.base.ownership import Owner


def lower_cluster(config: Config, cluster: Cluster, cluster_id: str) -> ClusterFacts:
    """Return a lower cluster with its configuration and without objects."""
    mapping = NamespaceMap(cluster.namespaces.prefix, cluster.namespaces.map)
    nodes = {
        node.name: VirtualNode(
            options=PodOptions(
                owner=Owner(cluster_id=cluster_id, node_name=node.name),
                ignore_labels=tuple(config.ignore_labels),
                service_accounts=config.enable_serviceaccount,
                shared_tokens=config.identities.tokens == "node",
                namespace_map=mapping,
                node_labels={
                    names.LABEL_HOSTNAME: node.name,
                    names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL,
                    names.LABEL_LOWER_CLUSTER: cluster.name,
                    **node.labels,
                },
                policy=PolicySet(
                    cluster.policy, cluster=cluster.name, host_paths=cluster.volumes.allowed_host_paths
                ),
                overrides=OverrideSet(cluster.overrides),
            ),
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
        namespace_map=mapping,
    )
