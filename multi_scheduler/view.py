"""The state of the lower clusters for agents: nodes that could take a pod, pods on these nodes, and measured usage.

Agents only read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from multi_scheduler.state.cluster.filters import Node
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Placed
from multi_scheduler.state.cluster.scoring import Prediction
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.lower_state import MeasuredNodes
from multi_scheduler.usage import Measured, Usage, UsageStore
from multi_scheduler.virtual_node import VirtualNode

_ESTIMATED = {"cpu": 0.85, "memory": 0.7}
"""Predicted usage as a share of the request or limit."""
_WITHOUT_REQUEST = {"cpu": 250, "memory": 200 * 1024**2}


class LowerNode:
    """A lower node, or a real upper node, to be scored for one pod: without the reservation of that pod."""

    def __init__(
        self, node: Node, cluster: str, pods: Mapping[str, Placed], usage: UsageStore | None, uid: str
    ) -> None:
        self.name, self.labels, self.cluster = node.name, node.labels, cluster
        self.allocatable = node.allocatable
        """Allocatable resources: cpu in millicores, all else in base units."""
        self._pods, self._store = pods, usage
        self._own = f"{uid}@"
        self._expected: dict[str, float] = {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the node's annotations that agents read."""
        return self._store.annotations(self.name) if self._store is not None else {}

    def measured(self, resource: str) -> Measured | None:
        """Return the measured usage of ``cpu`` or ``memory``; None: missing or old."""
        usage = self.usage
        if usage is None:
            return None
        return usage.cpu if resource == "cpu" else usage.memory

    @cached_property
    def usage(self) -> Usage | None:
        """Return the measured usage; None: missing or old."""
        return self._store.usage(self.name) if self._store is not None else None

    def pods(self) -> Iterator[Placed]:
        """Yield the pods on the node and the reservations of other pods."""
        # Leave out the reservation of the pod that is being scheduled.
        return (placed for uid, placed in self._pods.items() if not uid.startswith(self._own))

    def unmeasured(self, *, settling: float = 0.0) -> Iterator[Placed]:
        """Yield the pods that the last usage sample does not contain: those bound later, and reservations.

        Args:
            settling: also yield pods that were bound less than this many seconds before the sample.
        """
        since = self.usage.time - settling if self.usage is not None else 0.0
        return (placed for placed in self.pods() if placed.since > since)

    def expected(self, resource: str) -> float:
        """Return the estimated usage of the pods that the last sample does not contain; cpu in millicores, memory in bytes."""
        found = self._expected.get(resource)
        if found is None:
            found = self._expected[resource] = sum(
                estimated(resource, placed.requests.get(resource, 0), placed.limits.get(resource, 0))
                for placed in self.unmeasured()
            )
        return found


def estimated(resource: str, request: int, limit: int) -> float:
    """Return the predicted usage of a pod without measurements, by Koordinator's factors and defaults."""
    asked = max(request, limit)
    if not asked:
        return _WITHOUT_REQUEST.get(resource, 0)
    return asked * _ESTIMATED.get(resource, 1.0)


@dataclass(slots=True)
class _Call:
    """What agents asked about a pod in one call of the extender, by virtual node. All agents get the same pod object."""

    pod: Mapping[str, Any]
    predictions: dict[str, Prediction] = field(default_factory=dict)
    """Computed here, because the fit agent has made none."""
    nodes: dict[str, tuple[Prediction, list[LowerNode]]] = field(default_factory=dict)


@dataclass(eq=False)
class View:
    """The state of all lower clusters, and of the upper cluster's real nodes."""

    state: ClusterState
    real: MeasuredNodes | None = None
    """The upper cluster's real nodes; None: agents do not score them."""
    is_used: bool = False
    """Whether an agent reads the view, so that it must be filled."""
    _last: _Call = field(default_factory=lambda: _Call({}))

    @property
    def indexes(self) -> Mapping[str, ClusterIndex]:
        """Return the indexes by lower cluster."""
        return {name: lower.index for name, lower in self.state.clusters.items()}

    def nodes(self, pod: Mapping[str, Any], node: VirtualNode) -> list[LowerNode]:
        """Return the lower nodes that may get a pod, the most likely one first. Empty: no node fits, or the cluster is unreadable."""
        predicted = self.prediction(pod, node)
        if predicted is None:
            return []
        call = self._call(pod)
        known = call.nodes.get(node.name)
        if known is None or known[0] is not predicted:
            lower = self._lower(predicted, node.cluster, pod["metadata"].get("uid", ""))
            known = call.nodes[node.name] = predicted, lower
        return known[1]

    def _lower(self, predicted: Prediction, cluster: str, uid: str) -> list[LowerNode]:
        lower = self.state.clusters[cluster]
        index = lower.index if predicted.price is None else lower.futures.index
        return [
            LowerNode(found, cluster, index.on(name), lower.measured.usage, uid)
            for name in predicted.likely
            if (found := index.node(name)) is not None
        ]

    def real_node(self, pod: Mapping[str, Any], name: str) -> LowerNode | None:
        """Return a real node of the upper cluster, to be scored like a lower node; None: unknown."""
        if self.real is None or (node := self.real.index.node(name)) is None:
            return None
        uid = pod["metadata"].get("uid", "")
        return LowerNode(node, "", self.real.index.on(name), self.real.usage, uid)

    def whole(self, pod: Mapping[str, Any], node: VirtualNode) -> tuple[Counter[str], Counter[str]]:
        """Return sums over a cluster's nodes: allocatable resources, and requests, without the reservation of this pod."""
        lower = self.state.clusters.get(node.cluster)
        if lower is None:
            return Counter(), Counter()
        index = lower.index
        own = index.placed(f"{pod['metadata'].get('uid', '')}@{node.name}")
        used = Counter(index.used)
        if own is not None:
            used.subtract(own.requests)
        return index.total, used

    def prediction(self, pod: Mapping[str, Any], node: VirtualNode) -> Prediction | None:
        """Return the prediction for a pod behind a virtual node; None: the pod does not fit, or the cluster is unreadable."""
        predictions = self.state.predictions.get(pod["metadata"].get("uid", ""))
        if predictions is None:  # the fit agent does not filter, or runs after this agent
            predictions = self._call(pod).predictions
            if node.name not in predictions:
                predictions.update(self.state.predict(pod, [node]).judged)
        return predictions.get(node.name)

    def _call(self, pod: Mapping[str, Any]) -> _Call:
        if self._last.pod is not pod:
            self._last = _Call(pod)
        return self._last
