"""Which pods are typical: shapes of the pods that were seen, by how often. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from multi_scheduler.fit.cluster.pod_requirements import Demand

_MOST_SHAPES = 1024
_MOST_UIDS = 20_000
_RESCALE = 1e100


class Shape(NamedTuple):
    """What matters of a pod."""

    cpu: int
    """Thousandths."""
    units: int
    """Of the devices."""
    key: str
    """Equal for all pods that the same nodes admit."""


@dataclass(frozen=True, slots=True)
class Typical:
    """A shape, and its share of the workload."""

    shape: Shape
    share: float
    spec: Mapping[str, Any]
    """What nodes that admit the shape are found by."""


def shape_of(demand: Demand, resource: str) -> Shape:
    """Return the shape of a pod that takes a divisible resource, or none of it."""
    return Shape(demand.requests.get("cpu", 0), demand.requests.get(resource, 0), demand.key)


class Workload:
    """Counts shapes. Older pods count less, and rare shapes are forgotten where there are very many."""

    def __init__(self, *, half_life: float, popularity: float = 0.95) -> None:
        """Start without any pod.

        Args:
            half_life: after how many further pods a pod counts half.
            popularity: share of all pods that the typical shapes cover.
        """
        self._growth = 2.0 ** (1.0 / half_life)
        self._popularity = popularity
        self._weight = 1.0
        self._counts: dict[Shape, float] = {}
        self._specs: dict[str, Mapping[str, Any]] = {}
        self._uids: dict[str, None] = {}
        self.seen = 0
        """How many pods have been counted."""

    def add(self, uid: str, shape: Shape, spec: Mapping[str, Any]) -> None:
        """Count a pod, once by uid however often it is tried."""
        if uid in self._uids:
            return
        self._uids[uid] = None
        if len(self._uids) > _MOST_UIDS:
            del self._uids[next(iter(self._uids))]
        # A growing weight of new pods instead of a shrinking one of all old ones.
        self._weight *= self._growth
        self._counts[shape] = self._counts.get(shape, 0.0) + self._weight
        self._specs.setdefault(shape.key, spec)
        self.seen += 1
        if len(self._counts) > _MOST_SHAPES or self._weight > _RESCALE:
            self._trim()

    def typical(self) -> list[Typical]:
        """Return the most frequent shapes with their shares, which add up to 1."""
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
