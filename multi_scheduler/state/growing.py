"""Pods that wait for nodes which lower clusters must add: their events and metrics, and what happens if no node comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import Counter, Gauge

from controller_runtime import log
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from multi_scheduler.bound_pods import BoundPods
from multi_scheduler.state.future_nodes import Failure
from multi_scheduler.state.lower_state import LowerState
from multi_scheduler.state.reservations import Reservations

_WAITING = "WaitingForNode"
_NOT_ADDED = "NodeNotAdded"
_EXPECTED = Gauge(
    "virtual_node_expected_nodes",
    "Nodes that a lower cluster must add because pods wait for them.",
    ["cluster", "shape"],
)
_FAILED = Counter(
    "virtual_node_expected_nodes_failed_total",
    "Nodes that a lower cluster did not add within autoscaling.provisionSeconds.",
    ["cluster", "shape"],
)


@dataclass(eq=False)
class Growing:
    """Follows the nodes of lower clusters that can grow, and reports pods that wait for new nodes."""

    clusters: Mapping[str, LowerState]
    reservations: Reservations
    bound_pods: BoundPods
    recorder: EventRecorder | None
    """Writes events about the pods; None: no events."""

    def __post_init__(self) -> None:
        self._log = log.get_logger(component="fit")

    def follow(self, lower: LowerState) -> None:
        """Follow the nodes of a lower cluster, if it can grow."""
        if lower.futures:
            lower.feed.follow_nodes(partial(self._node_changed, lower))

    def bound(self, pod: Object, node: str) -> None:
        """Write an event if a bound pod waits for a new node of its lower cluster."""
        kind = self.reservations.waits_for(pod.uid, node)
        if kind is not None and self.recorder is not None:
            limit = kind.pool.autoscaling.provision_seconds
            text = f"Waits for a new lower node of shape {kind.shape.name} behind {node}, at most {limit:g} s"
            self.recorder.event(pod, "Normal", _WAITING, text)

    def landed(self, uid: str, lower_node: Callable[[str, str], str]) -> None:
        """Record that a lower pod has a lower node, which may not be the one that was reserved.

        Args:
            uid: UID of the upper pod.
            lower_node: returns the lower node of an upper pod, given its UID and a lower cluster; empty: none.
        """
        self.reservations.landed(uid, partial(lower_node, uid))

    def expire(self) -> None:
        """Take the reservations from nodes that were not added in time, with an event for each pod.

        Without a lower pod, the autoscaler had no reason to add the node, so nothing is reported.
        """
        for cluster, lower in self.clusters.items():
            for failure in lower.futures.expire():
                if failure.seconds:
                    self._report(cluster, failure)
                for key in failure.keys:
                    self.reservations.not_added(key)
            for shape, number in lower.futures.expected().items():
                _EXPECTED.labels(cluster, shape).set(number)

    def _report(self, cluster: str, failure: Failure) -> None:
        shape, limit = failure.kind.shape.name, failure.kind.pool.autoscaling.provision_seconds
        _FAILED.labels(cluster, shape).inc()
        self._log.warning("no node was added in time", cluster=cluster, shape=shape, pods=len(failure.keys))
        if self.recorder is None:
            return
        text = (
            f"Lower cluster {cluster} added no usable node of shape {shape} within {limit:g} s; "
            f"no pod waits for this shape in the next {failure.seconds:.0f} s"
        )
        uids = {key.partition("@")[0] for key in failure.keys}
        for node in {key.partition("@")[2] for key in failure.keys}:
            for pod in self.bound_pods.on(node):
                if pod.uid in uids:
                    self.recorder.event(pod, "Warning", _NOT_ADDED, text)

    def _node_changed(self, lower: LowerState, name: str, _annotations: Mapping[str, str]) -> None:
        self.reservations.moved(lower.futures.node_changed(name, lower.index.node(name)))
