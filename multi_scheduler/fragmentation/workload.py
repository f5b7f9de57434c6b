"""Selects typical pods: the most frequent shapes of the pods seen so far. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from multi_scheduler.state.cluster.pod_requirements import Demand

_MOST_SHAPES = 1024
_MOST_UIDS = 20_000
_RESCALE = 1e100


class Shape(NamedTuple):
    """The properties of a pod that matter for fragmentation."""

    cpu: int
    """Millicores."""
    units: int
    """Device units."""
    key: str
    """Equal for pods that the same nodes admit."""


@dataclass(frozen=True, slots=True)
class Typical:
    """A shape and its share of the workload."""

    shape: Shape
    share: float
    spec: Mapping[str, Any]
    """Node requirements of the shape, as ``ClusterIndex.admitted`` reads them."""


def shape_of(demand: Demand, resource: str) -> Shape:
    """Return a pod's shape with regard to a divisible resource."""
    return Shape(demand.requests.get("cpu", 0), demand.requests.get(resource, 0), demand.key)


class Workload:
    """Counts shapes. Older pods count less, and rare shapes are dropped when there are too many."""

    def __init__(self, *, half_life: float, popularity: float = 0.95) -> None:
        """Start without pods.

        Args:
            half_life: number of further pods after which a pod's weight is halved.
            popularity: share of all pods that the typical shapes cover.
        """
        self._growth = 2.0 ** (1.0 / half_life)
        self._popularity = popularity
        self._weight = 1.0
        self._counts: dict[Shape, float] = {}
        self._specs: dict[str, Mapping[str, Any]] = {}
        self._uids: dict[str, None] = {}
        self.seen = 0
        """Number of counted pods."""

    def add(self, uid: str, shape: Shape, spec: Mapping[str, Any]) -> None:
        """Count a pod's shape, once per UID even if the pod is retried."""
        if uid in self._uids:
            return
        self._uids[uid] = None
        if len(self._uids) > _MOST_UIDS:
            del self._uids[next(iter(self._uids))]
        # New pods get a growing weight, so that the weights of old pods need no update.
        self._weight *= self._growth
        self._counts[shape] = self._counts.get(shape, 0.0) + self._weight
        self._specs.setdefault(shape.key, spec)
        self.seen += 1
        if len(self._counts) > _MOST_SHAPES or self._weight > _RESCALE:
            self._trim()

    def typical(self) -> list[Typical]:
        """Return the most frequent shapes with their shares, which sum to 1."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        enough = self._popularity * sum(self._counts.values())
        chosen, covered = [], 0.0
        for shape, count in ordered:
            if covered >= enough:
                break
            chosen.append((shape, count))
            covered += count
        return [Typical(shape, count / covered, self._specs[shape.key]) for shape, count in chosen]

    def _trim(self) -> None:
        kept = sorted(self._counts.items(), key=lambda item: -item[1])[: _MOST_SHAPES * 3 // 4]
        self._counts = {shape: count / self._weight for shape, count in kept}
        self._weight = 1.0
        keys = {shape.key for shape in self._counts}
        self._specs = {key: spec for key, spec in self._specs.items() if key in keys}
