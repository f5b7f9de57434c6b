"""Capacity of the virtual nodes, kept current by watch events of the lower cluster.

Every change of a lower node or of an unmanaged pod updates its entry in ``Capacity``. The sums are written to
the upper cluster at most a few times per second, and only when they changed.
"""

from __future__ import annotations

from collections.abc import Callable

from controller_runtime.api.pod import pod_resources
from controller_runtime.api.pod.conditions import is_finished
from controller_runtime.objects import Object
from virtual_node.config.types import NodeConfig
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.translate.nodes.capacity import Capacity


def followed_capacity(node: NodeConfig, caches: ClusterCaches, *, changed: Callable[[], None]) -> Capacity:
    """Return a virtual node's capacity, which handlers on the informers keep current.

    Args:
        node: the virtual node, with its selector and reserve.
        caches: lower nodes and unmanaged lower pods.
        changed: called after every change that may change the sums.
    """
    capacity = Capacity(
        node_selector=node.node_selector, reserve=node.capacity.reserve, autoscaling=node.autoscaling
    )

    def node_changed(lower: Object) -> None:
        capacity.upsert_node(lower.to_dict())
        changed()

    def node_gone(lower: Object) -> None:
        capacity.remove_node(lower.name)
        changed()

    def pod_changed(pod: Object) -> None:
        spec = pod.spec or {}
        node_name = spec.get("nodeName", "")
        counts = bool(node_name) and not is_finished(pod.status)
        requests = pod_resources.pod_requests(spec) if counts else {}
        capacity.upsert_pod(pod.uid, node_name, requests, counts=counts)
        changed()

    def pod_gone(pod: Object) -> None:
        capacity.remove_pod(pod.uid)
        changed()

    caches.lower_nodes.on_change(node_changed, node_gone)
    caches.foreign_pods.on_change(pod_changed, pod_gone)
    return capacity
