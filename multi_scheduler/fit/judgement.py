"""What the fit agent finds out about one pod in all lower clusters. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from multi_scheduler.fit.cluster.pod_requirements import Demand
from multi_scheduler.fit.cluster.scoring import Prediction
from multi_scheduler.fit.reservations.reservations import Place


@dataclass(slots=True)
class Judgement:
    """What a look into every cluster has found; by virtual node."""

    judged: dict[str, Prediction] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    resolvable: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    hopeful: list[tuple[str, Demand | None]] = field(default_factory=list)
    """Lower clusters that have rejected the pod for want of room, with what it asks; or of quota, with None."""
    counted_by: float = 0.0
    """Until then a quota that has rejected it may count less."""

    @property
    def rejected(self) -> int:
        """How many virtual nodes are ruled out."""
        return len(self.resolvable) + len(self.unresolvable)
