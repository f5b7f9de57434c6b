"""Scores of the upper cluster's real nodes."""

from __future__ import annotations

from typing import Any

import pytest

from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.extender.protocol import Candidates
from multi_scheduler.usage import Pressure, Stall
from multi_scheduler.virtual_node import VirtualNode
from tests.unit.multi_scheduler.agents.test_scoring_agents import REAL, Scene, agent, near, pod


class _Directory:
    """One virtual node."""

    def __init__(self, node: VirtualNode) -> None:
        self._node = node

    async def wait(self, _seconds: float) -> bool:
        return True

    def find(self, name: str, _node: Any) -> VirtualNode | None:
        return self._node if name == self._node.name else None

    def refusal(self, _name: str, _node: Any) -> str:
        return ""


@pytest.mark.parametrize("cpu", [0.1, 0.6, None])
@pytest.mark.parametrize("name", ["load", "safe", "pressure", "congestion", "pigeon"])
async def test_real_nodes_are_scored_like_lower_nodes(name, cpu) -> None:
    """Same capacity, usage and pods, same score. Neutral: without usage, for an unknown node, for agents of whole clusters."""
    scene = Scene(agent(name), clusters=("a",))
    scene.node(REAL)
    for node in ("a-0", REAL):
        scene.runs(node, f"on-{node}", cpu="500m")
        if cpu is not None:
            scene.used(node, cpu, pressure=Pressure(cpu=Stall(some10=30)))
    directory: Any = _Directory(scene.virtual[0])
    upper: Any = None
    asked = Candidates(pod("0.2"), ["vn-a", REAL, "unknown"], None)
    extender = Extender(
        [Weighted(name, scene.agents[0], 2.0)], directory, upper=upper, scores_real_nodes=True
    )
    await extender.filter(asked)
    found = await extender.prioritize(asked)
    assert found[REAL] == near(0.5 if name == "pigeon" else found["vn-a"])
    assert found["unknown"] == 0.5
    by_default = await Extender([Weighted(name, scene.agents[0], 2.0)], directory, upper=upper).prioritize(
        asked
    )
    assert by_default == near({"vn-a": found["vn-a"], REAL: 0, "unknown": 0})
