"""The pressure agent: prefers nodes with few pods and little pressure on CPU, memory and IO (PSI).

A node under pressure gets 0. PSI comes from kubelets' Summary API; a node with missing or old PSI gets a neutral score.
"""

from __future__ import annotations

from multi_scheduler.agents.by_node import AskedPod, NodeAgent, NodeSettings
from multi_scheduler.formulas import pressure
from multi_scheduler.view import LowerNode


class PressureAgent(NodeAgent[NodeSettings]):
    """Scores by pressure; does not filter."""

    settings_type = NodeSettings

    def score_node(self, pod: AskedPod, node: LowerNode) -> float | None:
        """Return 1 for an empty node without pressure; None if PSI is missing or old."""
        usage = node.usage
        if usage is None or usage.pressure is None:
            return None
        capacity, cpus = node.allocatable.get("pods", 0), node.allocatable.get("cpu", 0)
        share = sum(1 for _ in node.pods()) / capacity if capacity else 0.0
        utilization = usage.cpu.latest / cpus if usage.cpu is not None and cpus else None
        return pressure.score(share, usage.pressure, utilization=utilization, is_pressed=usage.is_pressed)
