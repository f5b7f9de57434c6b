"""A template to copy: prefers virtual nodes that carry a label, and keeps pods with another one away.

Configuration::

    agents:
      - name: template
        weight: 1
        config: {label: tier, prefer: gold}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller_runtime.errors import ConfigError
from multi_scheduler.agent import Agent, AgentContext, Rejections, VirtualNode


class TemplateAgent(Agent):
    """Both verbs, in as few lines as they take."""

    def __init__(self, context: AgentContext) -> None:
        """Read the agent's settings.

        Raises:
            ConfigError: one is missing.
        """
        try:
            self._label, self._prefer = str(context.settings["label"]), str(context.settings["prefer"])
        except KeyError as error:
            raise ConfigError(f"agents[{context.name}].config: {error} is missing") from None

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """A pod that names a value of the label goes only to nodes that have it."""
        wanted = (pod["metadata"].get("labels") or {}).get(self._label)
        if wanted is None:
            return Rejections({}, {})
        reason = f"the virtual node has no label {self._label}={wanted}"
        return Rejections({}, {node.name: reason for node in nodes if node.labels.get(self._label) != wanted})

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """1 for preferred nodes, 0 for others."""
        return {node.name: float(node.labels.get(self._label) == self._prefer) for node in nodes}
