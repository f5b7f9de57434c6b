"""The pressure agent: prefers nodes with few pods whose tasks do not wait for CPU, memory or IO (PSI).

A node under pressure scores 0. PSI comes from kubelets' Summary API; where it is missing or old a node is neutral.
"""

from __future__ import annotations

from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.by_node import AskedPod, NodeAgent, NodeSettings, read_settings
from multi_scheduler.formulas import pressure
from multi_scheduler.view import LowerNode


class PressureAgent(NodeAgent):
    """Scores only."""

    def __init__(self, context: AgentContext) -> None:
        """Read the settings.

        Raises:
            ConfigError: one is wrong.
        """
        super().__init__(context, read_settings(context, NodeSettings))

    def score_node(self, pod: AskedPod, node: LowerNode) -> float | None:
        """Return 1 for an empty node without pressure; None without a report of it."""
        usage = node.usage
        if usage is None or usage.pressure is None:
            return None
        capacity, cpus = node.allocatable.get("pods", 0), node.allocatable.get("cpu", 0)
        share = sum(1 for _ in node.pods()) / capacity if capacity else 0.0
        utilisation = usage.cpu.latest / cpus if usage.cpu is not None and cpus else None
        return pressure.score(share, usage.pressure, utilisation=utilisation, is_pressed=usage.is_pressed)
