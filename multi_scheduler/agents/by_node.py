"""Base of the agents that score a virtual node by the lower node that the pod will get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec

from controller_runtime.api.pod import pod_resources
from controller_runtime.errors import ConfigError
from multi_scheduler.agent import Agent, AgentContext, VirtualNode
from multi_scheduler.formulas.numbers import NEUTRAL
from multi_scheduler.view import LowerNode

T = TypeVar("T", bound=msgspec.Struct)


class NodeSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Settings of all agents that score lower nodes."""

    node: Literal["MostLikely", "Best"] = "MostLikely"
    """MostLikely: score by the node that the stock lower scheduler prefers, which is the one with most room. Best: by the node
    with the best score, for lower schedulers that themselves consider load."""


class AskedPod:
    """The pod that is being scheduled."""

    def __init__(self, pod: Mapping[str, Any]) -> None:
        self._pod = pod

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the pod's labels."""
        return self._pod["metadata"].get("labels") or {}

    @property
    def spec(self) -> Mapping[str, Any]:
        """Return the pod's spec in the upper cluster."""
        found: Mapping[str, Any] = self._pod["spec"]
        return found

    @cached_property
    def requests(self) -> Mapping[str, int]:
        """Return the pod's requests: cpu in millicores, all else in base units."""
        return pod_resources.pod_requests(self.spec)

    @cached_property
    def limits(self) -> Mapping[str, int]:
        """Return the pod's limits: cpu in millicores, all else in base units."""
        return pod_resources.pod_limits(self.spec)


class NodeAgent(Agent):
    """Scores virtual nodes by their lower nodes; an unknown node gets a neutral score."""

    def __init__(self, context: AgentContext, settings: NodeSettings) -> None:
        self._view = context.use_view()
        self._looks_for_best = settings.node == "Best"

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
        found = [self.score_node(pod, node) for node in (nodes if self._looks_for_best else nodes[:1])]
        return max((NEUTRAL if one is None else one for one in found), default=NEUTRAL)


def read_settings(context: AgentContext, kind: type[T]) -> T:
    """Return an agent's settings.

    Raises:
        ConfigError: a setting is wrong.
    """
    try:
        return msgspec.convert(dict(context.settings), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"agents[{context.name}].config: {error}") from None
