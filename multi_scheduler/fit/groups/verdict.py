"""The decision about one pod of a group. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multi_scheduler.agent import Rejections, VirtualNode
from multi_scheduler.fit.cluster.scoring import Prediction
from multi_scheduler.fit.groups.planning import Shortfall


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one pod of a group."""

    judged: Mapping[str, Prediction] = field(default_factory=dict)
    """Predictions by virtual node that passes; empty: none passes."""
    rejections: Rejections = field(default_factory=lambda: Rejections({}, {}))
    alone: Sequence[VirtualNode] | None = None
    """The virtual nodes on which the pod may start by itself; None: it starts with its group."""
    shortfall: Shortfall | None = None
    """Set if the group lacks room."""


def rejected(nodes: Sequence[VirtualNode], text: str) -> Verdict:
    """Return the decision that no virtual node takes the pod."""
    return Verdict(rejections=Rejections({}, {node.name: text for node in nodes}))
