"""Python blocks of the pages about agents can be executed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from multi_scheduler.agent import AgentContext
from multi_scheduler.virtual_node import VirtualNode

DOCS = Path(__file__).resolve().parents[3] / "docs"
_FENCE = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def _python(page: str) -> list[str]:
    found = _FENCE.findall((DOCS / page).read_text(encoding="utf-8"))
    return ["\n".join(line.removeprefix(indent) for line in body.splitlines()) for indent, body in found]


def test_example_agent_scores_nodes():
    """The agent of the guide prefers a cluster where it is night."""
    scope: dict[str, Any] = {"__name__": "night"}
    exec(_python("operate/agents.md")[0], scope)
    client: Any = None
    agent = scope["NightShift"](AgentContext("night-shift", {"label": "utc-offset"}, client, {}))
    nodes = [VirtualNode(f"vn-{hour}", "a", {"utc-offset": f"{hour}"}, {}) for hour in range(24)]
    scores = asyncio.run(agent.score({}, nodes))
    assert sorted(set(scores.values())) == [0.0, 1.0]
    assert sum(scores.values()) == 8


def test_rewards_of_mode_shadow_are_compared(tmp_path, monkeypatch, capsys):
    """The last reward of a pod counts; rewards without a decision are left out."""
    records = [
        {"uid": "1", "best": "a"}, {"uid": "1", "node": "a", "reward": 1.0},
        {"uid": "2", "best": "b"}, {"uid": "2", "best": "a"}, {"uid": "2", "node": "b", "reward": 1.0},
        {"uid": "2", "node": "b", "reward": 0.5}, {"uid": "3", "node": "b", "reward": 1.0},
    ]  # fmt: skip
    (tmp_path / "decisions.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(_python("operate/agents.md")[1], {})
    assert capsys.readouterr().out == "same node: 1.000 (1 pods), another node: 0.500 (1 pods)\n"
