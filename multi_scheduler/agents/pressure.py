"""The pressure agent: prefers nodes with few pods and little pressure on CPU, memory and IO (PSI).

A node under pressure gets 0. PSI comes from kubelets' Summary API; a node with missing or old PSI gets a neutral score.
"""

from __future__ import annotations

from multi_scheduler.agents.by_node import AskedPod, NodeAgent, NodeSettings
from multi_scheduler.view import LowerNode


class PressureAgent(NodeAgent[NodeSettings]):
    """Scores by number of pods and pressure; does not filter."""

    settings_type = NodeSettings

    def score_node(self, pod: AskedPod, node: LowerNode) -> float | None:
        """Return 1 for an empty node without pressure; None if PSI is missing or old."""
        if node.usage is None or node.usage.pressure is None:
            return None
        return node.usage.score(len(list(node.pods())), node.allocatable)
