"""Base classes: ``ViewAgent`` for agents that read the view, ``NodeAgent`` for those that score single lower nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import msgspec

from clusterset.model.pod import pod_resources
from multi_scheduler.agent import Agent, AgentContext, S
from multi_scheduler.numeric import NEUTRAL
from multi_scheduler.view import LowerNode
from multi_scheduler.virtual_node import VirtualNode


class NodeSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Settings of all agents that score lower nodes."""

    node: Literal["MostLikely", "Best"] = "MostLikely"
    """MostLikely: score by the lower node that the lower scheduler probably chooses (``lower`` of the fit agent). Best:
    by the node with the best score, for lower schedulers that themselves consider load."""


class AskedPod:
    """The pod that is being scheduled: its labels, its spec in the upper cluster, and its requests and limits."""

    def __init__(self, pod: Mapping[str, Any]) -> None:
        self.labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
        self.spec: Mapping[str, Any] = pod["spec"]

    @cached_property
    def requests(self) -> Mapping[str, int]:
        """Return the pod's requests: cpu in millicores, all else in base units."""
        return pod_resources.pod_requests(self.spec)

    @cached_property
    def limits(self) -> Mapping[str, int]:
        """Return the pod's limits: cpu in millicores, all else in base units."""
        return pod_resources.pod_limits(self.spec)


class ViewAgent(Agent, Generic[S]):
    """An agent with settings that reads the view."""

    settings_type: type[S]
    """Set by each subclass that does not pass ``settings`` to the constructor."""

    def __init__(self, context: AgentContext, settings: S | None = None) -> None:
        """Read the settings.

        Raises:
            ConfigError: a setting is wrong.
        """
        self._settings = context.read_settings(self.settings_type) if settings is None else settings
        self._view = context.use_view()


N = TypeVar("N", bound=NodeSettings)


class NodeAgent(ViewAgent[N]):
    """Scores virtual nodes by their lower nodes; without data, the score is neutral."""

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Return a score from 0 to 1 for each virtual node."""
        asked = AskedPod(pod)
        return {node.name: self._score(asked, self._view.nodes(pod, node)) for node in nodes}

    async def score_real(self, pod: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, float]:
        """Return scores of real upper nodes by the formula for lower nodes."""
        asked = AskedPod(pod)
        found = {name: self._view.real_node(pod, name) for name in names}
        return {name: self._score(asked, [node]) for name, node in found.items() if node is not None}

    def score_node(self, pod: AskedPod, node: LowerNode) -> float | None:
        """Return a score from 0 to 1 for a pod on a lower node; None: unknown."""
        raise NotImplementedError

    def _score(self, pod: AskedPod, nodes: Sequence[LowerNode]) -> float:
        candidates = nodes if self._settings.node == "Best" else nodes[:1]
        found = [self.score_node(pod, node) for node in candidates]
        return max((NEUTRAL if one is None else one for one in found), default=NEUTRAL)
