"""The learned agent's memory: the model, recent rewards, and decisions about pods that may still fail. No IO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multi_scheduler.formulas.numbers import NEUTRAL
from multi_scheduler.learned.bandit import Bandit

_WEIGHT = 0.1
"""Weight of a new reward in a recent mean."""
_MOST_PENDING = 5000
_MOST_RECENT = 2000
_HALF_SECONDS = 30.0
"""Seconds from binding to Running for which the reward is half of the reward for an immediate start."""
_VERSION = 1


@dataclass(slots=True)
class Decision:
    """One decision."""

    names: Sequence[str]
    features: Sequence[Sequence[float]]
    propensities: Sequence[float]
    kind: str
    """Key of the pod's application, equal for all pods of the application."""
    node: str = ""
    """Node where the pod was bound. Empty: not bound yet."""
    bound: float = 0.0
    """Time of the binding, in seconds of the caller's clock."""
    is_running: bool = False


class Memory:
    """Joins decisions with the outcomes of their pods."""

    def __init__(self, bandit: Bandit) -> None:
        self.bandit = bandit
        self.pending: dict[str, Decision] = {}
        """Decisions by pod UID, oldest first."""
        self._recent: dict[str, float] = {}

    def recent(self, node: str, kind: str) -> tuple[float, float]:
        """Return the recent mean reward of a virtual node, and of pods of this kind on it."""
        of_node = self._recent.get(node, NEUTRAL)
        return of_node, self._recent.get(f"{kind}@{node}", of_node)

    def decided(self, uid: str, decision: Decision) -> None:
        """Keep a decision until the pod fails or is forgotten; it replaces the decision of an earlier attempt."""
        self.pending.pop(uid, None)
        self.pending[uid] = decision
        if len(self.pending) > _MOST_PENDING:
            del self.pending[next(iter(self.pending))]

    def bound(self, uid: str, node: str, now: float) -> bool:
        """Note a pod's node; if the pod's decision did not rank this node, drop the decision and return False."""
        decision = self.pending.get(uid)
        if decision is None or node not in decision.names:
            self.pending.pop(uid, None)
            return False
        if not decision.node:
            decision.node, decision.bound = node, now
        return True

    def runs(self, uid: str, now: float) -> float | None:
        """Learn from a running pod; return the reward, None if it was already learned or there is no decision."""
        decision = self.pending.get(uid)
        if decision is None or not decision.node or decision.is_running:
            return None
        decision.is_running = True
        return self._learn(decision, 2.0 ** (-max(0.0, now - decision.bound) / _HALF_SECONDS))

    def failed(self, uid: str) -> float | None:
        """Learn from a pod that failed, was evicted, or did not start in time; return the reward, None without a decision."""
        decision = self.pending.pop(uid, None)
        return self._learn(decision, 0.0) if decision is not None and decision.node else None

    def forget(self, uid: str) -> None:
        """Drop the decision about a pod; nothing is learned."""
        self.pending.pop(uid, None)

    def _learn(self, decision: Decision, reward: float) -> float:
        # Only the chosen candidate gets a reward, even if another agent or scheduler chose it.
        self.bandit.add(decision.features[decision.names.index(decision.node)], reward)
        for key in (decision.node, f"{decision.kind}@{decision.node}"):
            before = self._recent.pop(key, NEUTRAL)
            self._recent[key] = before + _WEIGHT * (reward - before)
        while len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        return reward

    def state(self) -> dict[str, Any]:
        """Return the state to save across restarts, as JSON values."""
        return {
            "version": _VERSION,
            "precision": self.bandit.precision,
            "weighted": self.bandit.weighted,
            "rewards": self.bandit.rewards,
            "recent": self._recent,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a saved state.

        Raises:
            ValueError: the state is invalid or has another version.
        """
        try:
            size = self.bandit.size
            precision = [[float(value) for value in row] for row in state["precision"]]
            weighted = [float(value) for value in state["weighted"]]
            recent = {str(key): float(value) for key, value in state["recent"].items()}
            numbers = [*weighted, *recent.values(), *(value for row in precision for value in row)]
            fits = len(weighted) == size == len(precision) and all(len(row) == size for row in precision)
            if state["version"] != _VERSION or not fits or not all(map(math.isfinite, numbers)):
                raise ValueError(
                    "the state has another version, another size, or a number that is not finite"
                )
            self.bandit.precision, self.bandit.weighted = precision, weighted
            self.bandit.rewards = int(state["rewards"])
            self._recent = recent
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"the state lacks a field or has one of a wrong type: {error}") from None
