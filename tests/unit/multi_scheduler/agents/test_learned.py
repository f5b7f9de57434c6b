"""The learned agent ranks nodes by the outcomes of earlier pods."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from hack.placement.estimates import Logged, doubly_robust, inverse_propensity
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.learned import Bandit, Decision, LearnedAgent, Memory
from multi_scheduler.virtual_node import VirtualNode
from tests import objects

NODES = [VirtualNode("vn-a", "a", {}, {}), VirtualNode("vn-b", "b", {}, {})]


def test_bandit_finds_the_better_choice_and_follows_changes():
    """Propensities are probabilities, and none is below its share of the exploration."""
    bandit, choices = Bandit(2, discount=0.95, exploration=0.1, seed=1), [[1.0, 0.0], [0.0, 1.0]]
    for better in (0, 1):
        for _ in range(150):
            choice = bandit.choose(choices)
            bandit.add(choices[choice.best], 1.0 if choice.best == better else 0.2)
            assert sum(choice.propensities) == pytest.approx(1)
            assert min(choice.propensities) >= 0.05 - 1e-9
            assert choice.scores[choice.best] == 1.0
        assert bandit.expected(choices[better]) > bandit.expected(choices[1 - better]) + 0.3
        assert choice.propensities[better] > 0.5


def test_choices_are_drawn_with_their_propensities():
    """Without a reward in between."""
    bandit = Bandit(2, exploration=0.5, seed=3)
    first = bandit.choose([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    counts = Counter(bandit.choose([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]).best for _ in range(3000))
    assert [counts[place] / 3000 for place in range(3)] == pytest.approx(first.propensities, abs=0.04)


def test_estimates_the_reward_of_another_policy():
    """The reward is 1 for the second choice and 0 for the first; the model is wrong."""
    log = [Logged([[0.0], [1.0]], chosen, 0.5, float(chosen)) for chosen in (0, 1)] * 200

    def second(_one: Logged) -> list[float]:
        return [0.0, 1.0]

    found = [inverse_propensity(log, second), doubly_robust(log, second, lambda _features: 0.3)]
    for one in found:
        assert one.low <= one.mean <= one.high
        assert one.mean == pytest.approx(1.0, abs=0.05)


def _decision() -> Decision:
    return Decision(["vn-a", "vn-b"], [[1.0, 0.0], [1.0, 1.0]], [0.5, 0.5], "shop/web")


def test_rewards_pods_by_start_time_and_failures():
    """The node that the scheduler chose counts, whatever the agent preferred."""
    memory = Memory(Bandit(2, seed=1))
    memory.decided("u", _decision())
    assert memory.runs("u", 5.0) is None
    assert memory.bound("u", "vn-b", 100.0)
    assert memory.runs("u", 130.0) == 0.5
    assert memory.runs("u", 140.0) is None
    assert memory.failed("u") == 0.0
    assert memory.failed("u") is None
    assert memory.recent("vn-b", "shop/web") == memory.recent("vn-b", "other")
    assert memory.recent("vn-b", "shop/web")[1] < 0.5 == memory.recent("vn-a", "shop/web")[1]
    memory.decided("v", _decision())
    assert not memory.bound("v", "real-node", 1.0)
    assert not memory.pending


def test_loads_saved_state_and_refuses_invalid_state():
    """As JSON."""
    memory, other = Memory(Bandit(2, seed=1)), Memory(Bandit(2, seed=1))
    memory.decided("u", _decision())
    memory.bound("u", "vn-a", 0.0)
    memory.runs("u", 0.0)
    state = json.loads(json.dumps(memory.state()))
    other.restore(state)
    assert other.state() == state
    for wrong in ({}, {**state, "version": 0}, {**state, "weighted": [1]}, {**state, "recent": 3}):
        with pytest.raises(ValueError, match="the state"):
            other.restore(wrong)
    assert other.state() == state


class _Informer:
    def on_change(self, changed: Any, deleted: Any) -> None:
        self.handlers = SimpleNamespace(changed=changed, deleted=deleted)


def _pod(uid: str, phase: str) -> Any:
    return from_dict(objects.pod(uid, node="vn-b", phase=phase, labels={"app": "web"}))


class _View:
    """A view without data."""

    is_used = False

    def whole(self, _pod: Any, _node: VirtualNode) -> tuple[Counter[str], Counter[str]]:
        return Counter(), Counter()

    def nodes(self, _pod: Any, _node: VirtualNode) -> list[Any]:
        return []

    def prediction(self, _pod: Any, _node: VirtualNode) -> None:
        return None


async def test_shadow_decides_logs_and_learns_without_scores(tmp_path):
    """In mode Active the same decisions give scores."""
    files = {"state": str(tmp_path / "state.json"), "decisions": str(tmp_path / "log.jsonl")}
    for mode, rewards in (("Shadow", 1), ("Active", 2)):
        informer, fake = _Informer(), SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
        upper: Any = fake
        bound: Any = informer
        view: Any = _View()
        context = AgentContext("learned", {"mode": mode, **files}, upper, {}, bound_pods=bound, view=view)
        agent = LearnedAgent(context)
        found = await agent.score(_pod(mode, "Pending").to_dict(), NODES)
        assert (found is None) == (mode == "Shadow")
        assert found is None or 1.0 in found.values()
        informer.handlers.changed(_pod(mode, "Pending"))
        informer.handlers.changed(_pod(mode, "Running"))
        assert agent.memory.bandit.rewards == rewards
        agent._save()
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [sorted(set(one) & {"propensities", "reward"}) for one in log] == [
        ["propensities"],
        ["reward"],
    ] * 2
    assert sum(log[0]["propensities"]) == pytest.approx(1)
    assert log[1]["node"] == _pod("Shadow", "Running").spec["nodeName"], (
        "to compare the choice with the actual node"
    )


async def test_learns_from_failed_and_from_unstarted_pods():
    """A deleted pod teaches nothing."""
    informer, pods = _Informer(), {"failed": [_pod("failed", "Failed")], "deleted": []}

    async def listed(*_resource: Any, field_selector: str, **_more: Any) -> Any:
        return SimpleNamespace(items=pods[field_selector.removeprefix("metadata.name=")])

    upper: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"), list=listed)
    bound: Any = informer
    view: Any = _View()
    agent = LearnedAgent(
        AgentContext("learned", {"startSeconds": 60}, upper, {}, bound_pods=bound, view=view)
    )
    for uid in ("failed", "deleted", "slow"):
        await agent.score(_pod(uid, "Pending").to_dict(), NODES)
        informer.handlers.changed(_pod(uid, "Pending"))
    for uid in pods:
        informer.handlers.deleted(_pod(uid, "Pending"))
    task = asyncio.create_task(agent._follow_ended())
    await agent._ended.join()
    task.cancel()
    assert agent.memory.bandit.rewards == 1
    assert list(agent.memory.pending) == ["slow"]
    agent.sweep(agent.memory.pending["slow"].bound + 61)
    assert agent.memory.bandit.rewards == 2
    assert not agent.memory.pending
