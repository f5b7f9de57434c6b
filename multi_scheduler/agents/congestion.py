"""The congestion agent: prefers nodes with a low ``congestion-factor``, an annotation that another program writes.

The virtual node's own annotation is used, otherwise the annotation of the lower node that the pod will get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from multi_scheduler.agents.by_node import AskedPod, NodeAgent, NodeSettings
from multi_scheduler.numeric import rounded
from multi_scheduler.usage import CONGESTION
from multi_scheduler.view import LowerNode
from multi_scheduler.virtual_node import VirtualNode

DEFAULT_MAXIMUM = 100


def factor_score(factor: str | None, maximum: int = DEFAULT_MAXIMUM) -> float:
    """Return 1 for a node without congestion, 0 at the maximum or above.

    Args:
        factor: value of the annotation; anything but a positive integer: no congestion.
        maximum: factor of a fully congested node.
    """
    try:
        value = int(factor or "")
    except ValueError:
        value = 0
    return 1 - min(max(value, 0), maximum) / maximum


def factor_points(factor: str | None, maximum: int = DEFAULT_MAXIMUM) -> int:
    """Return kube-safe-scheduler's integer, 0 to 10."""
    return rounded(10 * factor_score(factor, maximum))


class CongestionSettings(NodeSettings):
    """The agent's configuration."""

    maximum: Annotated[int, Meta(ge=1)] = DEFAULT_MAXIMUM
    """Factor of a fully congested node; ``CONGESTION_FACTOR_MAX`` in kube-safe-scheduler."""


class CongestionAgent(NodeAgent[CongestionSettings]):
    """Scores by the annotation; does not filter."""

    settings_type = CongestionSettings

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Return 1 for a node without congestion, 0 for a fully congested one."""
        found = dict(await super().score(pod, [node for node in nodes if not _factor(node)]))
        for node in nodes:
            if factor := _factor(node):
                found[node.name] = factor_score(factor, self._settings.maximum)
        return found

    def score_node(self, pod: AskedPod, node: LowerNode) -> float:
        """Return the score by the lower node's annotation; 1 without the annotation."""
        return factor_score(node.annotations.get(CONGESTION), self._settings.maximum)


def _factor(node: VirtualNode) -> str:
    return node.annotations.get(CONGESTION, "")
