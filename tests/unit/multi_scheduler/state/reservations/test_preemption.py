"""Preemption chooses the fewest victims that make room on one lower node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from multi_scheduler.agent import Agent, AgentContext
from multi_scheduler.bound_pods import shrink
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.state.cluster.pod_requirements import Placed, demand
from multi_scheduler.state.reservations import Place, Stage
from multi_scheduler.virtual_node import VirtualNode
from tests.unit.multi_scheduler.lower_pods import fit_agent, lower_pod, mark_synced, report


def _two_cores() -> dict[str, Any]:
    return {"containers": [{"resources": {"requests": {"cpu": "2"}}}]}


class _Directory:
    async def wait(self, _seconds: float) -> bool:
        return True

    def find(self, name: str, _node: Any) -> VirtualNode | None:
        return VirtualNode(name, "a", {}, {}) if name.startswith("vn") else None

    def refusal(self, _name: str, _node: Any) -> str:
        return ""


class _Cluster:
    """A lower cluster with nodes of four cores, full of mirrored pods."""

    def __init__(self, *nodes: str) -> None:
        fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
        self.agent = fit_agent(AgentContext("fit", {}, upper=fake, lower={"a": fake}))
        self.feed = self.agent.state.clusters["a"].feed
        self.index = self.agent.state.clusters["a"].index
        mark_synced(self.agent.state)
        for name in nodes:
            self.index.upsert_node(
                {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}}
            )
        directory: Any = _Directory()
        self.extender = Extender([Weighted("fit", self.agent, 1.0)], directory, upper=fake)

    def pod(self, uid: str, node: str, *, cores: int, priority: int, on: str = "vn", **metadata: Any) -> None:
        """Add an upper pod and its lower pod."""
        whole = {"name": uid, "namespace": "shop", "uid": uid, **metadata}
        above = {"metadata": whole, "spec": {"nodeName": on, "priority": priority, "containers": []}}
        self.agent.state.bound_pods.informer.store.put(f"shop/{uid}", shrink(from_dict(above)))
        report(self.feed, lower_pod(uid, node, {"cpu": cores * 1000}))

    async def victims(self, cores: int, *given: str, priority: int = 100) -> set[str] | None:
        container = {"name": "c", "resources": {"requests": {"cpu": str(cores)}}}
        pod = {
            "metadata": {"name": "p", "namespace": "shop", "uid": "p"},
            "spec": {"containers": [container], "priority": priority},
        }
        before = dict(self.index.used)
        found = await self.extender.preempt(pod, {"vn": protocol.Victims(given, 1)})
        assert self.agent.state.reservations.stage("p") is Stage.NOMINATED or not found
        self.agent.state.reservations.release("p")
        assert dict(self.index.used) == before
        assert all(one.pdb_violations == 1 for one in found.values())
        return set(found["vn"].uids) if found else None


async def test_keeps_the_schedulers_victims_if_they_help():
    """The scheduler knows budgets and start times."""
    cluster = _Cluster("a", "b")
    for uid, node in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        cluster.pod(uid, node, cores=2, priority=0)
    assert await cluster.victims(4, "b1", "b2") == {"b1", "b2"}


async def test_replaces_victims_that_are_on_different_nodes():
    """Two cores on each of two nodes sum to four; the scheduler would choose the same pair every time."""
    cluster = _Cluster("a", "b")
    for uid, node in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        cluster.pod(uid, node, cores=2, priority=0)
    assert await cluster.victims(4, "a1", "b1") in ({"a1", "a2"}, {"b1", "b2"})


async def test_chooses_few_victims_of_low_priority():
    """By the highest priority among them first, as kube-scheduler chooses between nodes."""
    cluster = _Cluster("a", "b")
    cluster.pod("a1", "a", cores=2, priority=5)
    cluster.pod("a2", "a", cores=2, priority=50)
    cluster.pod("b1", "b", cores=2, priority=10)
    cluster.pod("b2", "b", cores=1, priority=9)
    cluster.pod("b3", "b", cores=1, priority=1)
    assert await cluster.victims(2, "b3") == {"a1"}
    assert await cluster.victims(4, "b3") == {"b1", "b2", "b3"}


async def test_spares_pods_of_equal_priority_and_useless_victims():
    """Unmanaged pods, pods of other virtual nodes, and pods that are being deleted."""
    cluster = _Cluster("a", "b")
    cluster.pod("same", "a", cores=4, priority=100)
    cluster.pod("elsewhere", "b", cores=1, priority=0, on="vn-2")
    cluster.pod("ending", "b", cores=1, priority=0, deletionTimestamp="2026-01-01T00:00:00Z")
    cluster.index.place("native", Placed("b", {"cpu": 2000, "pods": 1}))
    assert await cluster.victims(4) is None
    assert await cluster.victims(1, priority=101) == {"same"}


async def test_own_reservation_needs_no_additional_victim():
    """The reservation of an earlier attempt is released first."""
    cluster = _Cluster("a")
    for uid in ("a1", "a2"):
        cluster.pod(uid, "a", cores=2, priority=0)
    wanted = demand({"metadata": {}, "spec": _two_cores()})
    cluster.agent.state.reservations.reserve("p", {"vn": Place("a", wanted, "a")})
    pod = {
        "metadata": {"name": "p", "namespace": "shop", "uid": "p"},
        "spec": {**_two_cores(), "priority": 100},
    }
    found = await cluster.extender.preempt(pod, {"vn": protocol.Victims(["a1"], 0)})
    assert found["vn"].uids == ["a1"]


async def test_one_agent_can_veto_preemption():
    """Its answer excludes the node."""

    class Never(Agent):
        async def preempt(self, pod, node, victims):
            return None

    cluster = _Cluster("a")
    cluster.pod("a1", "a", cores=4, priority=0)
    assert await cluster.victims(4, "a1") == {"a1"}
    directory: Any = _Directory()
    both = [Weighted("fit", cluster.agent, 1.0), Weighted("never", Never(), 1.0)]
    cluster.extender = Extender(both, directory, upper=SimpleNamespace())  # type: ignore[arg-type]
    assert await cluster.victims(4, "a1") is None
