"""What the learned agent remembers: the model, recent rewards, and decisions whose reward is not known yet. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multi_scheduler.formulas.numbers import NEUTRAL
from multi_scheduler.learned.bandit import Bandit

_WEIGHT = 0.1
"""Of a new reward in a recent mean."""
_MOST_PENDING = 5000
_MOST_RECENT = 2000
_HALF_SECONDS = 30.0
"""A pod that takes this long from binding to Running has half the reward of one that starts at once."""
_VERSION = 1


@dataclass(slots=True)
class Decision:
    """One choice that was made."""

    names: Sequence[str]
    features: Sequence[Sequence[float]]
    propensities: Sequence[float]
    kind: str
    """Of the pod: pods of one application have the same."""
    node: str = ""
    """Where the pod was bound. Empty: it is not."""
    bound: float = 0.0
    """When, in seconds of the caller's clock."""
    is_running: bool = False


class Memory:
    """Joins decisions with what became of the pods."""

    def __init__(self, bandit: Bandit) -> None:
        self.bandit = bandit
        self.pending: dict[str, Decision] = {}
        """By uid, the oldest first."""
        self._recent: dict[str, float] = {}

    def recent(self, node: str, kind: str) -> tuple[float, float]:
        """Return the recent mean reward of a node, and that of pods of a kind there."""
        of_node = self._recent.get(node, NEUTRAL)
        return of_node, self._recent.get(f"{kind}@{node}", of_node)

    def decided(self, uid: str, decision: Decision) -> None:
        """Keep a decision until its reward is known; that of an earlier try is dropped."""
        self.pending.pop(uid, None)
        self.pending[uid] = decision
        if len(self.pending) > _MOST_PENDING:
            del self.pending[next(iter(self.pending))]

    def bound(self, uid: str, node: str, now: float) -> bool:
        """Keep where a pod was bound; tells whether a decision about it is known."""
        decision = self.pending.get(uid)
        if decision is None or node not in decision.names:
            self.pending.pop(uid, None)
            return False
        if not decision.node:
            decision.node, decision.bound = node, now
        return True

    def runs(self, uid: str, now: float) -> float | None:
        """Learn from a pod that runs; returns the reward, None: it was known, or nothing was decided."""
        decision = self.pending.get(uid)
        if decision is None or not decision.node or decision.is_running:
            return None
        decision.is_running = True
        return self._learn(decision, 2.0 ** (-max(0.0, now - decision.bound) / _HALF_SECONDS))

    def failed(self, uid: str) -> float | None:
        """Learn from a pod that failed, was evicted, or did not start in time; returns the reward."""
        decision = self.pending.pop(uid, None)
        return self._learn(decision, 0.0) if decision is not None and decision.node else None

    def forget(self, uid: str) -> None:
        """Drop a decision: the pod is gone, and nothing can be learnt from that."""
        self.pending.pop(uid, None)

    def _learn(self, decision: Decision, reward: float) -> float:
        # Of all candidates only the one that was taken has a reward, whoever took it.
        self.bandit.add(decision.features[decision.names.index(decision.node)], reward)
        for key in (decision.node, f"{decision.kind}@{decision.node}"):
            before = self._recent.pop(key, NEUTRAL)
            self._recent[key] = before + _WEIGHT * (reward - before)
        while len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        return reward

    def state(self) -> dict[str, Any]:
        """Return what has to survive a restart, as JSON."""
        return {
            "version": _VERSION,
            "precision": self.bandit.precision,
            "weighted": self.bandit.weighted,
            "rewards": self.bandit.rewards,
            "recent": self._recent,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: it is not one, or of another version.
        """
        try:
            size = self.bandit.size
            precision = [[float(value) for value in row] for row in state["precision"]]
            weighted = [float(value) for value in state["weighted"]]
            recent = {str(key): float(value) for key, value in state["recent"].items()}
            numbers = [*weighted, *recent.values(), *(value for row in precision for value in row)]
            fits = len(weighted) == size == len(precision) and all(len(row) == size for row in precision)
            if state["version"] != _VERSION or not fits or not all(map(math.isfinite, numbers)):
                raise ValueError("it is of another version")
            self.bandit.precision, self.bandit.weighted = precision, weighted
            self.bandit.rewards = int(state["rewards"])
            self._recent = recent
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"it has no {error}") from None
