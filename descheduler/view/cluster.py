"""The upper cluster as the strategies see it: virtual nodes, the pods on them, and where a pod could go instead."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from controller_runtime.api import matching, names, node_avoidance, timestamps
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from descheduler.config.options import DEFAULT_NODE_SELECTOR
from descheduler.view import pods, replacement


class ClusterView:
    """Reads two caches; writes nothing."""

    def __init__(self, *, nodes: Informer, pods: Informer, node_selector: str = "") -> None:
        """Set up.

        Args:
            nodes: of the upper cluster.
            pods: of the upper cluster, shrunk, indexed by node.
            node_selector: which virtual nodes are ours; empty: all.

        Raises:
            ValueError: the selector cannot be read.
        """
        self.nodes = nodes
        self.pods = pods
        whole = f"{DEFAULT_NODE_SELECTOR},{node_selector}" if node_selector else DEFAULT_NODE_SELECTOR
        self._selects = matching.parse_selector(whole)

    def is_virtual(self, name: str) -> bool:
        """Whether a node is one of the virtual nodes we look after."""
        node = self.nodes.store.get(name)
        return node is not None and self._selects(node.labels)

    def is_on_virtual_node(self, pod: Object) -> bool:
        """Whether a pod is bound to one of them."""
        return self.is_virtual((pod.spec or {}).get("nodeName") or "")

    def virtual_nodes(self) -> list[Object]:
        """All of them, by name."""
        found = [node for node in self.nodes.store.list() if self._selects(node.labels)]
        return sorted(found, key=lambda node: node.name)

    def open_nodes(self) -> list[Object]:
        """Those that are ready and take new pods, as far as the node alone is concerned."""
        return [node for node in self.virtual_nodes() if is_open(node)]

    def open_names(self) -> set[str]:
        """Names of ``open_nodes``."""
        return {node.name for node in self.open_nodes()}

    def open_nodes_for(self, pod: Object) -> list[Object]:
        """The open nodes that the pod's own selector, affinity and tolerations allow."""
        spec = _without_avoidance(pod)
        return [node for node in self.open_nodes() if _admits(node, spec)]

    def alternatives(self, pod: Object) -> list[Object]:
        """Where a pod could go instead of where it is.

        Resources are left to the scheduler: a pod that waits for room above is no worse off than one below.
        """
        here = (pod.spec or {}).get("nodeName")
        return [node for node in self.open_nodes_for(pod) if node.name != here]

    def pods_on(self, node: str) -> list[Object]:
        """The pods bound to a node that are neither finished nor ending."""
        return [pod for pod in self.pods.store.by_index(pods.INDEX_NODE, node) if pods.is_active(pod)]

    def matters(self, old: Object, new: Object) -> bool:
        """Whether a change of a node may open it to pods that it did not take before."""
        if old.labels != new.labels:
            return True
        return is_open(new) and (not is_open(old) or not old.has_spec_equal(new))


def ready_condition(node: Object) -> dict[str, Any]:
    """A node's Ready condition; empty when it has none."""
    return pods.condition(node.status or {}, "Ready")


def is_ready(node: Object) -> bool:
    """Whether a node says that it is ready."""
    return ready_condition(node).get("status") == "True"


def why_lost(node: Object) -> str:
    """What speaks for a node being lost: what it says itself, or that it says nothing any more."""
    condition = ready_condition(node)
    if condition.get("status") == "True":
        return "its Lease is no longer renewed"
    return condition.get("message") or condition.get("reason") or "its node is not ready"


def is_open(node: Object) -> bool:
    """Whether a node is ready, not cordoned and not lost."""
    spec = node.spec or {}
    return (
        is_ready(node)
        and not spec.get("unschedulable")
        and node.metadata.deletion_timestamp is None
        and tainted_since(node) is None
    )


def tainted_since(node: Object) -> datetime | None:
    """Since when a node carries our taint for lost clusters; None when it does not."""
    for taint in (node.spec or {}).get("taints") or ():
        if taint.get("key") == names.TAINT_STALE_CLUSTER:
            text = taint.get("timeAdded") or node.metadata.creation_timestamp
            return timestamps.parse(text or "1970-01-01T00:00:00Z")
    return None


def _admits(node: Object, spec: dict[str, Any]) -> bool:
    return matching.admits(
        spec, name=node.name, labels=node.labels, taints=(node.spec or {}).get("taints") or ()
    )


def _without_avoidance(pod: Object) -> dict[str, Any]:
    """The pod's spec as its owner wants it: what we or the webhook make it avoid is not for ever."""
    return node_avoidance.readmit(pod.spec or {}, replacement.named(pod.annotations))
