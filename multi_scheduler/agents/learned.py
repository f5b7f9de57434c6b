"""The learned agent: prefers the virtual nodes where similar pods started quickly and did not fail.

It ranks only nodes that passed the filters of all agents. Every decision is logged with its probability (propensity), for
later evaluation. In mode Shadow the agent decides and learns, but returns no scores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
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
from multi_scheduler.formulas.numbers import NEUTRAL, clamp
from multi_scheduler.learned.bandit import Bandit
from multi_scheduler.learned.memory import Decision, Memory
from multi_scheduler.virtual_node import VirtualNode

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
        if not self.memory.bound(pod.uid, (pod.spec or {}).get("nodeName", ""), time.monotonic()):
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
