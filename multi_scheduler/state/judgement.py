"""The fit agent's results about one pod. No IO."""

from __future__ import annotations

from dataclasses import dataclass, field

from multi_scheduler.state.admission.gate import GateResult
from multi_scheduler.state.cluster.pod_requirements import Demand
from multi_scheduler.state.cluster.scoring import Prediction
from multi_scheduler.state.reservations.reservations import Place


@dataclass(slots=True)
class Judgement:
    """Results for all virtual nodes of a call, by virtual node."""

    judged: dict[str, Prediction] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    resolvable: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    retryable: list[tuple[str, Demand | None]] = field(default_factory=list)
    """Lower clusters where a retry may succeed, with the pod's demand if room was lacking, or None if a quota refused."""
    counted_by: float = 0.0
    """Time by which the quota controller recounts the refusing quotas, by the event loop's clock; 0: none is due."""
    lacking: dict[str, tuple[Demand, GateResult]] = field(default_factory=dict)
    """By virtual node where only room is lacking: what the pod needs, and its admission."""
    unknown: set[str] = field(default_factory=set)
    """Rejected virtual nodes that may have room: the lower cluster is not known well enough now."""

    @property
    def rejected(self) -> int:
        """Return the number of rejected virtual nodes."""
        return len(self.resolvable) + len(self.unresolvable)
