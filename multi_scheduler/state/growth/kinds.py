"""The kinds of nodes that a lower cluster can add: how many more, and which were not added in time. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import autoscaling as settings
from clusterset.model import names
from clusterset.model.autoscaling import Autoscaling, Shape
from multi_scheduler.state.cluster.node_filter import Node

BACKOFF = (300.0, 600.0, 1200.0, 1800.0)
"""Seconds for which a kind is not used after a failure to add a node, by number of failures since the last success."""
_REJECTING = ("NoSchedule", "NoExecute")


@dataclass(slots=True, eq=False)
class Kind:
    """A shape of node that a pool can add."""

    pool: Pool
    shape: Shape
    existing: int = 0
    """Number of nodes with the labels of the shape."""
    expected: int = 0
    """Number of future nodes with reservations."""
    spare: str = ""
    """Name of the future node without reservations; empty: no more nodes can be added."""
    failures: int = 0
    failed_until: float = 0.0

    def failed(self, now: float) -> float:
        """Note that no node was added in time; return for how many seconds the kind is not used."""
        if self.failed_until <= now:
            self.failed_until = now + BACKOFF[min(self.failures, len(BACKOFF) - 1)]
            self.failures += 1
        return self.failed_until - now

    def succeeded(self) -> None:
        """Note that a node was added."""
        self.failures, self.failed_until = 0, 0.0

    def node(self, name: str) -> dict[str, Any]:
        """Return a node of this kind as a Node object."""
        return {
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/os": "linux",
                    names.LABEL_HOSTNAME: name,
                    **settings.labels_of(self.shape, self.pool.selector),
                },
            },
            "spec": {
                "taints": [
                    {"key": one.key, "value": one.value, "effect": one.effect} for one in self.shape.taints
                ]
            },
            "status": {"allocatable": settings.resources_of(self.shape)},
        }

    def is_usable(self, node: Node) -> bool:
        """Report whether an existing node can take pods: it is not cordoned, and has only the taints of the shape."""
        kept = {taint.key for taint in self.shape.taints}
        return not node.unschedulable and not any(
            taint.get("effect") in _REJECTING and taint.get("key") not in kept for taint in node.taints
        )


@dataclass(slots=True, eq=False)
class Pool:
    """A part of a lower cluster that can grow."""

    selector: Mapping[str, str]
    """Labels of the pool's nodes; empty: all nodes of the cluster."""
    autoscaling: Autoscaling
    kinds: list[Kind] = field(init=False)
    existing: int = 0
    """Number of nodes with the labels of any shape."""

    def __post_init__(self) -> None:
        self.kinds = [Kind(self, shape) for shape in self.autoscaling.shapes]

    def matching(self, labels: Mapping[str, str]) -> list[Kind]:
        """Return the kinds that an existing node with these labels may have."""
        found = settings.matching_shapes(self.autoscaling, self.selector, labels)
        return [self.kinds[position] for position in found]

    def count(self, kinds: list[Kind], sign: int) -> None:
        """Add or subtract an existing node of these kinds."""
        self.existing += sign * bool(kinds)
        for kind in kinds:
            kind.existing += sign

    def left(self) -> list[int]:
        """Return by kind how many more nodes may be expected."""
        total = self.existing + sum(kind.expected for kind in self.kinds)
        return settings.left(self.autoscaling, total, [kind.existing + kind.expected for kind in self.kinds])
