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


class CapacityController:
    """Updates one virtual node's ``Capacity`` from the lower informers."""

    def __init__(self, node: NodeConfig, caches: ClusterCaches, *, changed: Callable[[], None]) -> None:
        """Register handlers on the informers.

        Args:
            node: the virtual node, with its selector and reserve.
            caches: lower nodes and unmanaged lower pods.
            changed: called after every change that may change the sums.
        """
        self.capacity = Capacity(
            node_selector=node.node_selector, reserve=node.capacity.reserve, autoscaling=node.autoscaling
        )
        self._changed = changed
        caches.lower_nodes.on_change(self._node, self._node_gone)
        caches.foreign_pods.on_change(self._pod, self._pod_gone)

    def _node(self, lower: Object) -> None:
        self.capacity.upsert_node(lower.to_dict())
        self._changed()

    def _node_gone(self, lower: Object) -> None:
        self.capacity.remove_node(lower.name)
        self._changed()

    def _pod(self, pod: Object) -> None:
        spec = pod.spec or {}
        node_name = spec.get("nodeName", "")
        counts = bool(node_name) and not is_finished(pod.status)
        requests = pod_resources.pod_requests(spec) if counts else {}
        self.capacity.upsert_pod(pod.uid, node_name, requests, counts=counts)
        self._changed()

    def _pod_gone(self, pod: Object) -> None:
        self.capacity.remove_pod(pod.uid)
        self._changed()
