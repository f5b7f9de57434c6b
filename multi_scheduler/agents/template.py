"""A template to copy: prefers virtual nodes with a label value, and rejects those without the value that a pod names.

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
from multi_scheduler.agent import NOTHING, Agent, AgentContext, Rejections
from multi_scheduler.virtual_node import VirtualNode


class TemplateAgent(Agent):
    """Filters and scores in as few lines as possible."""

    def __init__(self, context: AgentContext) -> None:
        """Read the agent's settings.

        Raises:
            ConfigError: a setting is missing.
        """
        try:
            self._label, self._prefer = str(context.settings["label"]), str(context.settings["prefer"])
        except KeyError as error:
            raise ConfigError(f"agents[{context.name}].config: {error} is missing") from None

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Reject nodes without the label value that the pod names."""
        wanted = (pod["metadata"].get("labels") or {}).get(self._label)
        if wanted is None:
            return NOTHING
        reason = f"the virtual node has no label {self._label}={wanted}"
        return Rejections({}, {node.name: reason for node in nodes if node.labels.get(self._label) != wanted})

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Return 1 for preferred nodes, 0 for others."""
        return {node.name: float(node.labels.get(self._label) == self._prefer) for node in nodes}
