"""The learned agent: prefers the virtual nodes where similar pods started quickly and did not fail.

It ranks only nodes that passed the filters of all agents. Every decision is logged with its probability (propensity), for
later evaluation. In mode Shadow the agent decides and learns, but returns no scores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from controller_runtime import log, resources
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.by_node import ViewAgent
from multi_scheduler.agents.state_file import StateFile
from multi_scheduler.bound_pods import PENDING
from multi_scheduler.numeric import NEUTRAL, clamp
from multi_scheduler.virtual_node import VirtualNode

Vector = Sequence[float]
_DRAWS = 24
"""Number of sampled models that give the propensities. Choices are drawn with these propensities, so the logged ones
are exact."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A ranking of candidates."""

    best: int
    scores: list[float]
    """From 0 to 1, 1 for the best."""
    propensities: list[float]
    """Probability of each candidate to be drawn as the best."""


@dataclass(eq=False)
class Bandit:
    """A contextual bandit: discounted linear Thompson sampling.

    Rewards are modelled as linear in the features of a choice, plus noise. Older rewards count less, so the bandit follows
    changes of clusters. Each choice is drawn with known probabilities (propensities), so that the rewards of other policies
    can later be estimated from the same decisions.
    """

    size: int
    """Number of features."""
    discount: float = 0.998
    """Factor by which earlier rewards are multiplied at each new reward."""
    exploration: float = 0.05
    """Share of choices that are uniformly random; gives propensities a lower bound."""
    spread: float = 0.3
    """Standard deviation of the sampled models, as a multiple of the posterior's."""
    seed: int | None = None
    """Seed of the random choices; None: a random seed."""
    rewards: int = 0
    """Number of learned rewards."""

    def __post_init__(self) -> None:
        size = self.size
        self._random = random.Random(self.seed)  # noqa: S311 - not for secrets
        self.precision = [[float(row == column) for column in range(size)] for row in range(size)]
        self.weighted = [0.0] * size
        """Sum of rewards times features."""
        self._draws: list[list[float]] = []
        self._mean: list[float] = []

    def add(self, features: Vector, reward: float) -> None:
        """Learn the reward, from 0 to 1, of a choice with these features."""
        keep, prior = self.discount, 1 - self.discount
        for row, values in enumerate(self.precision):
            for column in range(self.size):
                values[column] = keep * values[column] + features[row] * features[column]
            values[row] += prior
            self.weighted[row] = keep * self.weighted[row] + reward * features[row]
        self.rewards += 1
        self._draws = []

    def choose(self, candidates: Sequence[Vector]) -> Choice:
        """Rank candidates by their features; at least one is needed."""
        self._sample()
        wins = [0] * len(candidates)
        for model in self._draws:
            values = [sum(map(mul, model, features)) for features in candidates]
            wins[values.index(max(values))] += 1
        rest = self.exploration / len(candidates)
        propensities = [(1 - self.exploration) * count / len(self._draws) + rest for count in wins]
        [best] = self._random.choices(range(len(candidates)), propensities)
        values = [self.expected(features) for features in candidates]
        low, high = min(values), max(values)
        scores = [0.9 * (value - low) / (high - low) if high > low else 0.5 for value in values]
        scores[best] = 1.0
        return Choice(best, scores, propensities)

    def expected(self, features: Vector) -> float:
        """Return the expected reward of a choice."""
        self._sample()
        return float(sum(map(mul, self._mean, features)))

    def _sample(self) -> None:
        """Draw models from the posterior, unless nothing was learned since the last draw."""
        if self._draws:
            return
        lower = _cholesky(self.precision)
        self._mean = _backward(lower, _forward(lower, self.weighted))
        for _ in range(_DRAWS):
            noise = _backward(lower, [self._random.gauss(0, self.spread) for _ in range(self.size)])
            self._draws.append([one + more for one, more in zip(self._mean, noise, strict=True)])


def _cholesky(matrix: Sequence[Vector]) -> list[list[float]]:
    """Return the lower triangular Cholesky factor of a positive definite matrix."""
    lower = [[0.0] * len(matrix) for _ in matrix]
    for row, values in enumerate(matrix):
        for column in range(row + 1):
            rest = values[column] - sum(map(mul, lower[row][:column], lower[column][:column]))
            lower[row][column] = (
                math.sqrt(max(rest, 1e-12)) if row == column else rest / lower[column][column]
            )
    return lower


def _forward(lower: Sequence[Vector], right: Vector) -> list[float]:
    found: list[float] = []
    for row, value in enumerate(right):
        found.append((value - sum(map(mul, lower[row][:row], found))) / lower[row][row])
    return found


def _backward(lower: Sequence[Vector], right: Vector) -> list[float]:
    """Solve the linear system of the transposed lower triangular matrix."""
    found = list(right)
    for row in range(len(found) - 1, -1, -1):
        found[row] = (
            found[row] - sum(lower[below][row] * found[below] for below in range(row + 1, len(found)))
        ) / lower[row][row]
    return found


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
        """Record a pod's node; if the pod's decision did not rank this node, drop the decision and return False."""
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


_FEATURES = 9
_LARGE_CPU = 16_000
_SAVE_SECONDS = 30.0
_ENDED = 1000
_LOG_BYTES = 16 * 1024 * 1024
"""Bytes above which the log of decisions is renamed with suffix ``.1``; an older log of that name is replaced."""


class LearnedSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The agent's configuration."""

    mode: Literal["Shadow", "Active"] = "Shadow"
    """Shadow: decide, log and learn, without affecting scores."""
    exploration: Annotated[float, Meta(ge=0.01, le=1)] = 0.05
    """Share of decisions that are uniformly random."""
    discount: Annotated[float, Meta(gt=0.5, lt=1)] = 0.998
    """Factor by which earlier rewards are multiplied at each new reward."""
    start_seconds: Annotated[float, Meta(ge=1)] = 600.0
    """Seconds from binding until a pod must run; otherwise it counts as failed."""
    watch_seconds: Annotated[float, Meta(ge=1)] = 1800.0
    """Seconds after binding in which a failure or an eviction counts."""
    state: str = ""
    """File that keeps the state across restarts. Empty: a restart clears it."""
    decisions: str = ""
    """File to which decisions and rewards are appended as JSON lines. Empty: no log."""


class LearnedAgent(ViewAgent[LearnedSettings]):
    """Ranks by discounted linear Thompson sampling."""

    settings_type = LearnedSettings

    def __init__(self, context: AgentContext) -> None:
        """Read the settings and the saved state.

        Raises:
            ConfigError: a setting is wrong, or there is no informer of bound pods.
        """
        super().__init__(context)
        self._upper = context.upper
        if context.bound_pods is None:
            raise ConfigError(f"agents[{context.name}]: the informer of bound pods is missing in its context")
        self._log = log.get_logger(component=context.name)
        self.memory = Memory(
            Bandit(_FEATURES, discount=self._settings.discount, exploration=self._settings.exploration)
        )
        self._state = StateFile(self._settings.state, self._log)
        self._state.restore(self.memory.restore)
        self._state.saved = self.memory.bandit.rewards
        self._ended: asyncio.Queue[Object] = asyncio.Queue(_ENDED)
        context.bound_pods.on_change(self._bound, self._gone)

    async def run(self) -> None:
        """Learn how pods finished, and save the state, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_ended())
                group.create_task(self._keep())
        finally:
            self._save()

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float] | None:
        """Rank the nodes, and log the decision; return scores, or None in mode Shadow or without nodes."""
        if not nodes:
            return None
        kind = _kind(pod)
        features = [self._features(pod, node, kind) for node in nodes]
        choice = self.memory.bandit.choose(features)
        names = [node.name for node in nodes]
        uid = pod["metadata"].get("uid", "")
        self.memory.decided(uid, Decision(names, features, choice.propensities, kind))
        self._write(
            uid=uid, nodes=names, features=features, propensities=choice.propensities, best=names[choice.best],
            mode=self._settings.mode,
        )  # fmt: skip
        return dict(zip(names, choice.scores, strict=True)) if self._settings.mode == "Active" else None

    def _features(self, pod: Mapping[str, Any], node: VirtualNode, kind: str) -> list[float]:
        total, used = self._view.whole(pod, node)
        shares = [used[one] / total[one] if total.get(one) else NEUTRAL for one in ("cpu", "memory")]
        cpu = deviation = NEUTRAL
        is_pressed = False
        likely = self._view.nodes(pod, node)[:1]
        if likely and (usage := likely[0].usage) is not None:
            capacity = likely[0].allocatable.get("cpu", 0)
            is_pressed = usage.is_pressed
            if usage.cpu is not None and capacity:
                cpu, deviation = usage.cpu.mean / capacity, usage.cpu.deviation / capacity
        predicted = self._view.prediction(pod, node)
        asked = predicted.wanted.requests.get("cpu", 0) if predicted is not None else 0
        recent = self.memory.recent(node.name, kind)
        found = (*shares, cpu, deviation, float(is_pressed), asked / _LARGE_CPU, *recent)
        return [1.0, *(clamp(one) for one in found)]

    def _bound(self, pod: Object) -> None:
        if not self.memory.bound(pod.uid, pod.node_name, time.monotonic()):
            return
        if (pod.status or {}).get("phase", "") != PENDING:
            self._learn(pod.uid, runs=True)

    def _gone(self, pod: Object) -> None:
        if pod.uid in self.memory.pending:
            with contextlib.suppress(asyncio.QueueFull):
                self._ended.put_nowait(pod)

    async def _follow_ended(self) -> None:
        """Learn how pods finished: succeeded pods count as running, failed and evicted ones as failed; ignore deleted pods."""
        while True:
            pod = await self._ended.get()
            try:
                found = await self._upper.list(
                    resources.PODS, namespace=pod.namespace, field_selector=f"metadata.name={pod.name}"
                )
            except ApiError as error:
                self._log.info("outcome of a pod is unknown", pod=pod.key, error=str(error))
                continue
            finally:
                self._ended.task_done()
            phases = [(one.status or {}).get("phase") for one in found.items if one.uid == pod.uid]
            if phases == ["Failed"]:
                self._learn(pod.uid, runs=False)
            elif phases == ["Succeeded"]:
                self._learn(pod.uid, runs=True)
            self.memory.forget(pod.uid)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_SECONDS)
            self.sweep(time.monotonic())
            self._save()

    def sweep(self, now: float) -> None:
        """Count pods that did not start in time as failed; forget pods after ``watch_seconds``."""
        for uid, decision in list(self.memory.pending.items()):
            age = now - decision.bound if decision.node else 0.0
            if not decision.is_running and age > self._settings.start_seconds:
                self._learn(uid, runs=False)
            elif age > self._settings.watch_seconds:
                self.memory.forget(uid)

    def _learn(self, uid: str, *, runs: bool) -> None:
        """Learn that a pod runs, or that it failed, was evicted, or did not start in time."""
        decision = self.memory.pending.get(uid)
        reward = self.memory.runs(uid, time.monotonic()) if runs else self.memory.failed(uid)
        if decision is not None and reward is not None:
            self._write(uid=uid, node=decision.node, reward=reward)

    def _save(self) -> None:
        self._state.save(self.memory.state, self.memory.bandit.rewards)

    def _write(self, **record: Any) -> None:
        """Append a decision or a reward to the log. Errors are logged and otherwise ignored."""
        if not self._settings.decisions:
            return
        path = Path(self._settings.decisions)
        try:
            if path.exists() and path.stat().st_size > _LOG_BYTES:
                path.replace(f"{path}.1")
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": time.time(), **record}, separators=(",", ":")) + "\n")
        except OSError as error:
            self._log.warning("decision not logged", file=str(path), error=str(error))


def _kind(pod: Mapping[str, Any]) -> str:
    """Return a key that pods of one application share."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    name = labels.get("app.kubernetes.io/name") or labels.get("app") or metadata.get("generateName") or ""
    return f"{metadata.get('namespace', '')}/{name}"
