"""Queries of the upper cluster: virtual nodes, their pods, and other nodes that admit a pod."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from clusterset.model import names
from clusterset.model.autoscaling import MARGIN_SECONDS
from clusterset.model.moving import movable
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import matching, timestamps
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from descheduler import pods

_VIRTUAL = f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}"


@dataclass(eq=False)
class ClusterView:
    """Queries of the caches of nodes and pods."""

    nodes: Informer
    pods: Informer
    """Informer with transform ``pods.shrink`` and indexers ``pods.INDEXERS``."""
    node_selector: str = ""
    """Label selector of the virtual nodes to deschedule from; empty: all."""
    leaving: set[str] = field(default_factory=set)
    """UIDs of pods that leave their node as soon as their replacement is Ready, and of restored pods (``Held``)."""

    def __post_init__(self) -> None:
        selectors = filter(None, (_VIRTUAL, self.node_selector))
        self._selects = matching.parse_selector(",".join(selectors))

    def is_virtual(self, name: str) -> bool:
        """Report whether a node is one of the selected virtual nodes."""
        node = self.nodes.store.get(name)
        return node is not None and self._selects(node.labels)

    def is_on_virtual_node(self, pod: Object) -> bool:
        """Report whether a pod is bound to a selected virtual node."""
        return self.is_virtual(pod.node_name)

    def on_virtual_node(self, key: str) -> Object | None:
        """Return the pod with a key if it is bound to a selected virtual node."""
        pod = self.pods.store.get(key)
        return pod if pod is not None and self.is_on_virtual_node(pod) else None

    def may_run_unseen(self, pod: Object) -> bool:
        """Report whether a pod may run in a lower cluster that does not answer."""
        node = self.nodes.store.get(pod.node_name)
        return node is not None and movable.may_run_unseen(
            {"annotations": pod.annotations}, pod.status, node.status
        )

    def lower_cluster(self, name: str) -> str:
        """Return the lower cluster that a virtual node's labels name; the node's name if they name none."""
        node = self.nodes.store.get(name)
        labels = node.labels if node is not None else {}
        return labels.get(names.LABEL_LOWER_CLUSTER) or labels.get(names.LABEL_CLUSTER_ID) or name

    def provision_seconds(self, pod: Object) -> float:
        """Return the seconds for which a bound pod must not be moved, because its lower cluster may add a node; 0: it adds none."""
        node = self.nodes.store.get(pod.node_name)
        text = node.annotations.get(names.ANNOTATION_PROVISION_SECONDS) if node is not None else None
        try:
            return float(text) + MARGIN_SECONDS if text else 0.0
        except ValueError:
            return 0.0

    def virtual_nodes(self) -> list[Object]:
        """Return the selected virtual nodes, sorted by name."""
        found = [node for node in self.nodes.store.list() if self._selects(node.labels)]
        return sorted(found, key=lambda node: node.name)

    def open_nodes(self) -> list[Object]:
        """Return the virtual nodes for which ``is_open`` holds."""
        return [node for node in self.virtual_nodes() if is_open(node)]

    def open_nodes_for(self, pod: Object, among: Sequence[Object] | None = None) -> list[Object]:
        """Return the open nodes that the pod's own selector, affinity and tolerations allow.

        Args:
            pod: cached pod.
            among: the open nodes, if the caller has them already.
        """
        nodes = self.open_nodes() if among is None else among
        return movable.admitting(pod.annotations, pod.spec or {}, nodes)

    def open_names_for(self, pod: Object) -> set[str]:
        """Return the names of ``open_nodes_for``."""
        return {node.name for node in self.open_nodes_for(pod)}

    def alternatives(self, pod: Object, among: Sequence[Object] | None = None) -> list[Object]:
        """Return the other virtual nodes that admit the pod; arguments as in ``open_nodes_for``."""
        here = pod.node_name
        return [node for node in self.open_nodes_for(pod, among) if node.name != here]

    def pods_on(self, node: str) -> list[Object]:
        """Return the pods bound to a node that are not finished, being deleted or being replaced."""
        return [
            pod
            for pod in self.pods.store.by_index(pods.INDEX_NODE, node)
            if pods.is_active(pod) and pod.uid not in self.leaving
        ]

    def matters(self, old: Object, new: Object) -> bool:
        """Report whether a change of a node may make it admit more pods."""
        if old.labels != new.labels:
            return True
        return is_open(new) and (not is_open(old) or not old.has_spec_equal(new))


def why_lost(node: Object) -> str:
    """Return why a node is lost: its Ready condition's message, or that its Lease is not renewed."""
    ready = condition(node.status, "Ready")
    if ready.get("status") == "True":
        return "its Lease is no longer renewed"
    return ready.get("message") or ready.get("reason") or "its node is not ready"


def is_open(node: Object) -> bool:
    """Report whether a node is ready, not cordoned, not being deleted and not lost."""
    is_deleted = node.metadata.deletion_timestamp is not None
    return movable.is_open(node.spec or {}, node.status, is_deleted=is_deleted)


def tainted_since(node: Object) -> datetime | None:
    """Return since when a node has the taint for lost clusters; None if it does not have the taint."""
    for taint in (node.spec or {}).get("taints") or ():
        if taint.get("key") == names.TAINT_STALE_CLUSTER:
            text = taint.get("timeAdded") or node.metadata.creation_timestamp
            return timestamps.parse(text or "1970-01-01T00:00:00Z")
    return None
