"""The fragmentation agent: prefers clusters where a pod leaves divisible devices usable for typical pods.

Computes fragmentation gradient descent (Weng and others, USENIX ATC 2023) on the lower scheduler's most likely node.
Typical pods are learned from the pods on the lower nodes at start, and from every later pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from controller_runtime.errors import ConfigError
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.by_node import ViewAgent
from multi_scheduler.formulas.numbers import NEUTRAL
from multi_scheduler.fragmentation.gradient import BETWEEN_CLUSTERS, Fragmentation
from multi_scheduler.fragmentation.workload import Shape, Workload, shape_of
from multi_scheduler.virtual_node import VirtualNode

_LEARNED_EVERY = 100
"""Number of pods after which the typical pods are selected again."""
_NEXT = 0.9
"""Highest score of the second-best cluster, because the best must differ on kube-scheduler's scale of eleven steps."""


class FragmentationSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The agent's configuration."""

    resource: str
    """The divisible resource; one of the fit agent's ``devices``."""
    half_life: Annotated[float, Meta(ge=1)] = 2000.0
    """Number of later pods after which a pod's weight in the choice of typical pods is halved."""
    popularity: Annotated[float, Meta(gt=0, le=1)] = 0.95
    """Share of all pods that the typical pods cover."""


class FragmentationAgent(ViewAgent[FragmentationSettings]):
    """Scores clusters against each other: 1 for the best, 0 for the worst."""

    settings_type = FragmentationSettings

    def __init__(self, context: AgentContext) -> None:
        """Read the settings.

        Raises:
            ConfigError: a setting is wrong, or the resource is not among the fit agent's devices.
        """
        super().__init__(context)
        self._resource = self._settings.resource
        units = {
            index.devices[self._resource].units
            for index in self._view.indexes.values()
            if self._resource in index.devices
        }
        if len(units) != 1:
            raise ConfigError(
                f"agents[{context.name}].config.resource: {self._resource} is not among agents[fit].config.devices"
            )
        [self._units] = units
        self._workload = Workload(half_life=self._settings.half_life, popularity=self._settings.popularity)
        self._chosen_at = -1
        """Number of pods seen when the typical pods were selected; -1: never."""
        self._fragmentation = Fragmentation([], self._resource, self._units)

    def filtered(self, pod: Mapping[str, Any], passing: Sequence[VirtualNode]) -> None:
        """Add a pod that fits somewhere to the workload from which typical pods are selected."""
        predicted = self._view.prediction(pod, passing[0]) if passing else None
        if predicted is not None:
            wanted = predicted.wanted
            self._workload.add(pod["metadata"].get("uid", ""), shape_of(wanted, self._resource), wanted.spec)

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Score clusters by the fragmentation that the pod adds; without a prediction, the score is neutral."""
        self._choose_typical()
        keys = {node.name: key for node in nodes if (key := self._key(pod, node)) is not None}
        low, high = min(keys.values(), default=0.0), max(keys.values(), default=0.0)
        found = {
            name: 1.0 if key == low else _NEXT * (high - key) / (high - low) for name, key in keys.items()
        }
        return {node.name: found.get(node.name, NEUTRAL) for node in nodes}

    def _key(self, pod: Mapping[str, Any], node: VirtualNode) -> float | None:
        """Return the fragmentation that a pod adds to a cluster, less is better; None: unknown."""
        predicted, index = self._view.prediction(pod, node), self._view.indexes.get(node.cluster)
        slot = index.slot(predicted.place.node) if predicted is not None and index is not None else None
        if predicted is None or index is None or slot is None:
            return None
        # Leave out the pod's own reservation, which may be on that node.
        own = f"{pod['metadata'].get('uid', '')}@{node.name}"
        promise = index.remove(own)
        try:
            shape = shape_of(predicted.wanted, self._resource)
            [key] = self._fragmentation.keys(index, shape, [slot], width=BETWEEN_CLUSTERS)
        finally:
            if promise is not None:
                index.place(own, promise)
        return key

    def _choose_typical(self) -> None:
        if self._chosen_at < 0:
            for index in self._view.indexes.values():
                for uid, placed in index.pods():
                    shape = Shape(placed.requests.get("cpu", 0), placed.requests.get(self._resource, 0), "")
                    self._workload.add(uid, shape, {})
        elif self._workload.seen < self._chosen_at + _LEARNED_EVERY:
            return
        self._chosen_at = self._workload.seen
        self._fragmentation = Fragmentation(self._workload.typical(), self._resource, self._units)
