"""The state of the lower clusters for agents: nodes that could take a pod, pods on these nodes, and measured usage.

The fit agent's feeds fill this state, even if the fit agent is not configured. Agents only read it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.node_filter import Node
from multi_scheduler.fit.cluster.pod_info import Placed
from multi_scheduler.fit.cluster.scoring import Prediction
from multi_scheduler.formulas import load
from multi_scheduler.usage.store import Usage, UsageStore
from multi_scheduler.usage.window import Measured

if TYPE_CHECKING:
    from multi_scheduler.agent import VirtualNode
    from multi_scheduler.fit.agent import FitAgent


_LOOK_SECONDS = 1.0
"""Seconds for which the predictions for a pod are reused, by all agents in a call and by the next call. Later calls
compute new predictions."""


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
                load.estimated(resource, placed.requests.get(resource, 0), placed.limits.get(resource, 0))
                for placed in self.unmeasured()
            )
        return found


@dataclass(slots=True)
class _Asked:
    """Results for the pod that was queried last, by virtual node. Agents query the same pod one after the other."""

    uid: str
    nodes: dict[str, tuple[Prediction, list[LowerNode]]] = field(default_factory=dict)
    judged: dict[str, Prediction] = field(default_factory=dict)
    """Predictions that the view computed, because the fit agent has none."""
    until: float = 0.0
    """Monotonic time when ``judged`` expires."""


@dataclass(frozen=True, slots=True)
class RealNodes:
    """The upper cluster's real nodes."""

    index: ClusterIndex
    usage: UsageStore


class View:
    """The state of all lower clusters, and of the upper cluster's real nodes."""

    def __init__(self, fit: FitAgent, usage: Mapping[str, UsageStore], real: RealNodes | None = None) -> None:
        """Create a view of the fit agent's feeds and indexes; without ``real``, agents do not score real nodes."""
        self._fit, self._usage, self._real = fit, usage, real
        self.indexes = fit.indexes
        """Indexes by lower cluster."""
        self._last = _Asked("")
        self.is_used = False
        """Whether an agent reads the view, so that it must be filled."""

    def nodes(self, pod: Mapping[str, Any], node: VirtualNode) -> list[LowerNode]:
        """Return the lower nodes that may get a pod, the most likely one first. Empty: no node fits, or the cluster is unreadable."""
        predicted = self.prediction(pod, node)
        if predicted is None:
            return []
        asked = self._asked(pod)
        known = asked.nodes.get(node.name)
        if known is None or known[0] is not predicted:
            known = asked.nodes[node.name] = predicted, self._lower(predicted, node.cluster, asked.uid)
        return known[1]

    def _lower(self, predicted: Prediction, cluster: str, uid: str) -> list[LowerNode]:
        index, usage = self.indexes[cluster], self._usage.get(cluster)
        if predicted.price is not None:
            index = self._fit.futures[cluster].index
        return [
            LowerNode(found, cluster, index.on(name), usage, uid)
            for name in predicted.likely
            if (found := index.node(name)) is not None
        ]

    def real_node(self, pod: Mapping[str, Any], name: str) -> LowerNode | None:
        """Return a real node of the upper cluster, to be scored like a lower node; None: unknown."""
        if self._real is None or (node := self._real.index.node(name)) is None:
            return None
        uid = pod["metadata"].get("uid", "")
        return LowerNode(node, "", self._real.index.on(name), self._real.usage, uid)

    def whole(self, pod: Mapping[str, Any], node: VirtualNode) -> tuple[Counter[str], Counter[str]]:
        """Return sums over a cluster's nodes: allocatable resources, and requests, without the reservation of this pod."""
        index = self.indexes.get(node.cluster)
        if index is None:
            return Counter(), Counter()
        own = index.placed(f"{pod['metadata'].get('uid', '')}@{node.name}")
        used = Counter(index.used)
        if own is not None:
            used.subtract(own.requests)
        return index.total, used

    def prediction(self, pod: Mapping[str, Any], node: VirtualNode) -> Prediction | None:
        """Return the prediction for a pod behind a virtual node; None: the pod does not fit, or the cluster is unreadable."""
        judged = self._fit.judged.get(pod["metadata"].get("uid", ""))
        if judged is None:  # the fit agent does not filter, or runs after this agent
            asked, now = self._asked(pod), time.monotonic()
            if now > asked.until:
                asked.until, asked.judged = now + _LOOK_SECONDS, {}
            judged = asked.judged
            if node.name not in judged:
                judged.update(self._fit.judge(pod, [node]).judged)
        return judged.get(node.name)

    def _asked(self, pod: Mapping[str, Any]) -> _Asked:
        uid = pod["metadata"].get("uid", "")
        if self._last.uid != uid:
            self._last = _Asked(uid)
        return self._last
