"""Predicts a pod's lower node, and scores clusters by it. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed, placed_on

Strategy = Literal["BestFit", "Spread", "BinPack"]
Lower = Literal["LeastAllocated", "MostAllocated"]
_RESOURCES = ("cpu", "memory")
_LOOKED_AT = 64
"""Minimum size of the sample of feasible nodes that is compared. A larger one would take time and change little."""
_KEPT = 8
"""Number of most likely nodes that are kept for other agents."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The lower node that will probably run a pod, and what the pod leaves free there."""

    place: Placed
    """Placement on the most likely node."""
    left_over: float
    """Share of cpu or memory, the larger of both, that the pod leaves free on the node where it fits most tightly."""
    likely: Sequence[str]
    """Nodes that the lower scheduler may choose, the most likely one first."""
    wanted: Demand
    """The pod's requirements."""
    price: float | None = None
    """Price of the node if the lower cluster must add it; None: the node exists."""


def predict(
    index: ClusterIndex, wanted: Demand, slots: Sequence[int], lower: Lower = "LeastAllocated"
) -> Prediction:
    """Return the prediction of the lower scheduler's choice.

    Args:
        index: the lower cluster.
        wanted: the pod's requirements.
        slots: slots of the nodes that can take the pod; at least one.
        lower: strategy of the lower scheduler. LeastAllocated, kube-scheduler's default: the node with most cpu and memory
            free on average. MostAllocated: the node with least free, counting divisible devices as well. In both cases
            a node with fewer ``PreferNoSchedule`` taints comes first, because kube-scheduler scores them with up to 300, and a
            preferred node with 200.
    """
    looked_at = slots[:: max(1, len(slots) // _LOOKED_AT)]
    left = [index.left_over(looked_at, wanted, resource) for resource in _RESOURCES]
    if lower == "LeastAllocated":
        rooms = [sum(shares) for shares in zip(*left, strict=True)]
    else:
        devices = (device for device in index.devices if device in wanted.requests)
        more = [index.left_over(looked_at, wanted, resource) for resource in devices]
        rooms = [-sum(shares) for shares in zip(*left, *more, strict=True)]
    avoided = index.avoided(wanted.key, wanted.spec)
    order = sorted(range(len(rooms)), key=lambda one: (avoided.get(looked_at[one], 0), -rooms[one]))
    likely = [index.name(looked_at[one]) for one in order[:_KEPT]]
    return Prediction(placed_on(likely[0], wanted), min(map(max, *left)), likely, wanted)


def score(index: ClusterIndex, predicted: Prediction | None, strategy: Strategy) -> float:
    """Return a cluster's score from 0 to 1 by the strategy; 0 without a prediction, negative for a new node."""
    if predicted is None:
        return 0.0
    if predicted.price is not None:
        return -1.0 - predicted.price
    if strategy == "BestFit":
        return 1.0 - predicted.left_over
    shares = [
        index.used[resource] / index.total[resource] for resource in _RESOURCES if index.total.get(resource)
    ]
    used = max(shares, default=0.0)
    return used if strategy == "BinPack" else 1.0 - used
