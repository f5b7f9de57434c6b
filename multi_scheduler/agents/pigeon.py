"""The pigeon agent: balances lower clusters, consolidates pods in few of them, or packs by the variation of demands.

The objectives are kube-safe-scheduler's, with lower clusters in place of nodes. An objective is computed over all
clusters together, from sums over each cluster's nodes. The fit agent checks whether a single lower node has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from controller_runtime import log
from controller_runtime.errors import ConfigError
from multi_scheduler.agent import NOTHING, AgentContext, Rejections
from multi_scheduler.agents.by_node import AskedPod, ViewAgent
from multi_scheduler.agents.state_file import StateFile
from multi_scheduler.formulas import pigeon
from multi_scheduler.virtual_node import VirtualNode

_SAVE_SECONDS = 30.0
_LEAST = {"cpu": 10, "memory": 16 * 1024**2, "pods": 1}
"""Demand of a pod without a request for the resource; cpu in millicores, memory in bytes."""


class PigeonSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The agent's configuration."""

    objective: pigeon.Objective = "AdaptiveBinPack"
    """LoadBalance: equal utilization of all clusters. Consolidate: few clusters full, the others empty. AdaptiveBinPack:
    utilization of clusters varies as much as pods' demands."""
    resources: Annotated[list[str], Meta(min_length=1, max_length=5)] = msgspec.field(
        default_factory=lambda: ["cpu", "memory"]
    )
    """Resources that the objective uses."""
    primary: str = ""
    """Resource for LoadBalance and Consolidate. Empty: the first of ``resources``."""
    state: str = ""
    """File that keeps the history of demands across restarts, for AdaptiveBinPack. Empty: a restart clears it."""


class PigeonAgent(ViewAgent[PigeonSettings]):
    """Scores by the objective; does not filter. Counts the demand of each pod once."""

    settings_type = PigeonSettings

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        resources, primary = self._settings.resources, self._settings.primary
        if primary and primary not in resources:
            raise ConfigError(f"agents[{context.name}].config: primary: {primary} is not among resources")
        self._primary = resources.index(primary) if primary else 0
        self._history = pigeon.DemandHistory(len(resources))
        self._file = StateFile(self._settings.state, log.get_logger(component=context.name))
        self._file.restore(self._history.restore)
        self._file.saved = self._history.count

    async def run(self) -> None:
        """Save the history until cancelled."""
        try:
            while True:
                await asyncio.sleep(_SAVE_SECONDS)
                self._file.save(self._history.state, self._history.count)
        finally:
            self._file.save(self._history.state, self._history.count)

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Count the pod's demand; reject nothing."""
        self._history.add_once(pod["metadata"].get("uid", ""), self._demand(pod))
        return NOTHING

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Return 1 for the best cluster, 0.1 for the worst one with room, 0 for clusters without room."""
        bins = {}
        for node in nodes:
            total, used = self._view.whole(pod, node)
            bins[node.name] = pigeon.Bin(
                [total.get(name, 0) for name in self._settings.resources],
                [used.get(name, 0) for name in self._settings.resources],
            )
        found = pigeon.objectives(
            bins,
            self._demand(pod),
            self._settings.objective,
            primary=self._primary,
            history=self._history,
        )
        return {name: points / pigeon.BEST for name, points in pigeon.points(found).items()}

    def _demand(self, pod: Mapping[str, Any]) -> list[int]:
        requests = AskedPod(pod).requests
        return [requests.get(name) or _LEAST.get(name, 0) for name in self._settings.resources]
