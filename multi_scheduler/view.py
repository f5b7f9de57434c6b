"""What all agents see of the lower clusters: the nodes that could take a pod, who is on them, and what is used.

The fit agent's feeds fill it, whether that agent filters or not. Agents read and keep nothing of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
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
"""For all agents of one call, and the call after it; a pod that is tried again is looked at again."""


class LowerNode:
    """One node of a lower cluster, as one pod would find it."""

    def __init__(
        self, node: Node, cluster: str, pods: Mapping[str, Placed], usage: UsageStore | None, uid: str
    ) -> None:
        self._node, self._pods, self._store = node, pods, usage
        self._own = f"{uid}@"
        self._expected: dict[str, float] = {}
        self.cluster = cluster

    @property
    def name(self) -> str:
        """Return its name."""
        return self._node.name

    @property
    def labels(self) -> Mapping[str, str]:
        """Return its labels."""
        return self._node.labels

    @property
    def allocatable(self) -> Mapping[str, int]:
        """Return what pods may request: cpu in thousandths, all else in whole units."""
        return self._node.allocatable

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the annotations that agents read."""
        return self._store.annotations(self._node.name) if self._store is not None else {}

    def measured(self, resource: str) -> Measured | None:
        """Return what is measured of ``cpu`` or ``memory``; None: it is missing or old."""
        usage = self.usage
        if usage is None:
            return None
        return usage.cpu if resource == "cpu" else usage.memory

    @cached_property
    def usage(self) -> Usage | None:
        """Return what is measured; None: it is missing or old."""
        return self._store.usage(self._node.name) if self._store is not None else None

    def pods(self) -> Iterator[Placed]:
        """Yield the pods on the node, and promises to others."""
        # The pod that is being scheduled has a promise of its own.
        return (placed for uid, placed in self._pods.items() if not uid.startswith(self._own))

    def unmeasured(self, *, settling: float = 0.0) -> Iterator[Placed]:
        """Yield the pods that the last sample does not contain: each is bound later, or is a promise.

        Args:
            settling: seconds before the sample in which pods were too young to have an effect on it.
        """
        since = self.usage.time - settling if self.usage is not None else 0.0
        return (placed for placed in self.pods() if placed.since > since)

    def expected(self, resource: str) -> float:
        """Return the estimated usage of the pods that the last sample does not contain."""
        found = self._expected.get(resource)
        if found is None:
            found = self._expected[resource] = sum(
                load.estimated(resource, placed.requests.get(resource, 0), placed.limits.get(resource, 0))
                for placed in self.unmeasured()
            )
        return found


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was found for the pod that was asked about last."""

    uid: str
    until: float
    judged: dict[str, Prediction]


@dataclass(frozen=True, slots=True)
class _Found:
    """The nodes for the pod that was asked about last: agents ask one after the other."""

    uid: str
    nodes: dict[str, tuple[Prediction, list[LowerNode]]]


class View:
    """All lower clusters."""

    def __init__(self, fit: FitAgent, usage: Mapping[str, UsageStore]) -> None:
        """Set up.

        Args:
            fit: whose feeds and indexes these are.
            usage: by lower cluster.
        """
        self._fit = fit
        self._usage = usage
        self._looked = _Looked("", 0.0, {})
        self._found = _Found("", {})
        self.is_used = False
        """An agent reads it, so it has to be filled."""

    def nodes(self, pod: Mapping[str, Any], node: VirtualNode) -> list[LowerNode]:
        """Return the lower nodes that may get a pod, the most likely one first; none: nothing is known of them."""
        predicted = self.prediction(pod, node)
        if predicted is None:
            return []
        uid = pod["metadata"].get("uid", "")
        if self._found.uid != uid:
            self._found = _Found(uid, {})
        known = self._found.nodes.get(node.name)
        if known is None or known[0] is not predicted:
            known = self._found.nodes[node.name] = predicted, self._lower(predicted, node.cluster, uid)
        return known[1]

    def _lower(self, predicted: Prediction, cluster: str, uid: str) -> list[LowerNode]:
        index, usage = self._fit.indexes[cluster], self._usage.get(cluster)
        return [
            LowerNode(found, cluster, index.on(name), usage, uid)
            for name in predicted.likely
            if (found := index.node(name)) is not None
        ]

    def whole(self, pod: Mapping[str, Any], node: VirtualNode) -> tuple[Counter[str], Counter[str]]:
        """Return what all nodes of a cluster offer, and what others request of it."""
        index = self._fit.indexes.get(node.cluster)
        if index is None:
            return Counter(), Counter()
        own = index.placed(f"{pod['metadata'].get('uid', '')}@{node.name}")
        used = Counter(index.used)
        if own is not None:
            used.subtract(own.requests)
        return index.total, used

    def index(self, cluster: str) -> ClusterIndex | None:
        """Return the nodes of a lower cluster and what is free on them; None: it is not configured."""
        return self._fit.indexes.get(cluster)

    @property
    def indexes(self) -> Collection[ClusterIndex]:
        """Return those of all lower clusters."""
        return self._fit.indexes.values()

    def prediction(self, pod: Mapping[str, Any], node: VirtualNode) -> Prediction | None:
        """Return where a pod will most likely be behind a virtual node; None: it does not fit, or nothing is known."""
        uid = pod["metadata"].get("uid", "")
        judged = self._fit.judged.get(uid)
        if judged is None:  # the fit agent does not filter, or comes later
            now = time.monotonic()
            if self._looked.uid != uid or now > self._looked.until:
                self._looked = _Looked(uid, now + _LOOK_SECONDS, {})
            judged = self._looked.judged
            if node.name not in judged:
                judged.update(self._fit.judge(pod, [node]).judged)
        return judged.get(node.name)
