"""The fragmentation agent places pods where they fragment divisible devices least."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.config import Cluster
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ConfigError
from multi_scheduler.agents.fit.agent import FitAgent
from multi_scheduler.agents.fragmentation import Fragmentation, FragmentationAgent, Shape, Typical, Workload
from multi_scheduler.config import AgentConfig, Config
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed, demand
from multi_scheduler.virtual_node import VirtualNode
from tests.unit.multi_scheduler.lower_pods import mark_synced, shared_of

GPU = "alibabacloud.com/gpu-milli"
WORKLOAD = [(4000, 500, 0.4), (8000, 1000, 0.3), (32000, 4000, 0.1), (2000, 0, 0.2)]


def _typical(*shapes: tuple[int, int, float]) -> list[Typical]:
    return [Typical(Shape(cpu, units, _key()), share, _demand(1, 0).spec) for cpu, units, share in shapes]


def _key() -> str:
    return _demand(1, 0).key


def _shape(cpu: int, units: int) -> Shape:
    return Shape(cpu, units, _key())


def _demand(cpu: int, units: int) -> Demand:
    container = {"name": "c", "resources": {"requests": {"cpu": f"{cpu}m", GPU: str(units)}}}
    return demand({"metadata": {}, "spec": {"containers": [container]}})


def _index(*nodes: tuple[int, int], **extra: Any) -> ClusterIndex:
    index = ClusterIndex({GPU: 1000})
    for number, (cpu, gpu) in enumerate(nodes):
        index.upsert_node(
            {
                "metadata": {"name": f"n{number}"},
                "spec": extra,
                "status": {"allocatable": {"cpu": f"{cpu}m", "pods": "110", GPU: str(gpu)}},
            }
        )
    return index


def _fragments(cpu: int, devices: list[int]) -> float:
    """Return the fragments by definition, pod by pod."""
    total, found = sum(devices), 0.0
    for wanted, units, share in WORKLOAD:
        number, each = (1, units) if units < 1000 else (units // 1000, 1000)
        fits = units and cpu >= wanted and sum(left >= each for left in devices) >= number
        found += share * (sum(left for left in devices if left < each) if fits else total)
    return found


@given(
    st.integers(4000, 64000),
    st.lists(st.sampled_from([0, 300, 500, 700, 1000]), min_size=1, max_size=8),
    st.sampled_from([(4000, 500), (8000, 1000), (4000, 0), (3000, 300)]),
)
def test_gradient_equals_the_difference_of_fragments(cpu, free, pod):
    """Computed by tables, and pod by pod."""
    wanted, units = pod
    index = _index((cpu, 1000 * len(free)))
    for device, left in enumerate(free):
        if left < 1000:
            index.place(f"p{device}", Placed("n0", {GPU: 1000 - left}, devices=[device]))
    asked = _demand(wanted, units)
    if not index.feasible(asked):
        return
    [step] = Fragmentation(_typical(*WORKLOAD), GPU, 1000).steps(index, _shape(wanted, units), [0])
    after = [
        [one - units * (place == device) for place, one in enumerate(free)]
        for device, left in enumerate(free)
        if left >= units
    ]
    least = min(_fragments(cpu - wanted, devices) for devices in after)
    assert step.gradient == pytest.approx(least - _fragments(cpu, free), abs=1e-6)


ONE_CLASS = 101
"""Width of a class that contains every gradient, so that only the room of nodes decides."""


def test_prefers_filled_devices():
    """To idle ones, on the same node and on others."""
    index = _index((64000, 2000), (64000, 2000), (16000, 1000))
    index.place("half", Placed("n1", {GPU: 500}, devices=[0]))
    fragmentation = Fragmentation(_typical(*WORKLOAD), GPU, 1000)
    keys = fragmentation.keys(index, _shape(4000, 500), [0, 1, 2])
    assert keys.index(min(keys)) == 1
    [_, step, _] = fragmentation.steps(index, _shape(4000, 500), [0, 1, 2])
    assert step.device == 500
    idle, half = fragmentation.keys(index, _shape(4000, 500), [0, 1], width=ONE_CLASS)
    assert idle > half


def test_does_not_prefer_small_nodes_for_pods_with_devices():
    """They may be the only ones with a model that other pods require: equal gradients are decided by the share in use."""
    index = _index((64000, 8000), (16000, 2000), (16000, 2000))
    fragmentation = Fragmentation(_typical(*WORKLOAD), GPU, 1000)
    large, small, _ = fragmentation.keys(index, _shape(4000, 500), [0, 1, 2], width=ONE_CLASS)
    assert large == small
    index.place("half", Placed("n0", {"cpu": 16000, GPU: 4000}))
    large, small, _ = fragmentation.keys(index, _shape(4000, 500), [0, 1, 2], width=ONE_CLASS)
    assert large < small


def test_keeps_the_cpu_of_nodes_with_many_free_devices_for_pods_with_devices():
    """A pod without devices goes to the node with the least free cpu and devices."""
    index = _index((64000, 8000), (64000, 2000), (16000, 2000))
    fragmentation = Fragmentation(_typical(*WORKLOAD), GPU, 1000)
    many, few, small = fragmentation.keys(index, _shape(2000, 0), [0, 1, 2], width=ONE_CLASS)
    assert many > few > small


def test_a_node_that_lost_its_devices_has_a_key():
    """A prediction can be older than the removal of a device plug-in."""
    keys = Fragmentation(_typical(*WORKLOAD), GPU, 1000).keys(
        _index((64000, 0), (64000, 1000)), _shape(4000, 500), [0, 1]
    )
    assert keys[0] > keys[1]


def test_node_that_typical_pods_avoid_has_gradient_zero():
    """Its free devices already count as fragments."""
    taint = {"key": "dedicated", "effect": "NoSchedule"}
    free, tainted = _index((64000, 1000)), _index((64000, 1000), taints=[taint])
    fragmentation = Fragmentation(_typical(*WORKLOAD), GPU, 1000)
    [here], [there] = (fragmentation.steps(index, _shape(4000, 300), [0]) for index in (free, tainted))
    assert there.gradient == -300 < here.gradient
    tainted.upsert_node(
        {
            "metadata": {"name": "n0"},
            "status": {"allocatable": {"cpu": "64000m", "pods": "110", GPU: "1000"}},
        }
    )
    assert fragmentation.steps(tainted, _shape(4000, 300), [0]) == [here]


def test_typical_pods_cover_most_of_the_workload_and_forget_old_ones():
    """A retried pod counts once."""
    workload = Workload(half_life=20)
    for number in range(100):
        workload.add(f"a{number}", Shape(1, 500, "k"), {})
    for number in range(200):
        workload.add(f"b{number}", Shape(2, 1000 if number % 40 else 250, "k"), {})
        workload.add(f"b{number}", Shape(3, 700, "k"), {})
    [most] = workload.typical()
    assert most.shape == Shape(2, 1000, "k")
    assert most.share == 1.0
    assert workload.seen == 300


def test_the_workload_is_bounded():
    """Rare shapes and selectors are dropped."""
    workload = Workload(half_life=10)
    for number in range(5000):
        workload.add(f"{number}", Shape(number, 1, f"k{number}"), {})
    assert len(workload._counts) <= 1024
    assert len(workload._specs) <= 1025
    assert sum(one.share for one in workload.typical()) == pytest.approx(1)


class _Scene:
    """Two lower clusters with one node each, and both agents."""

    def __init__(self, settings: dict[str, Any], fit: dict[str, Any] | None = None) -> None:
        fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
        agents = [AgentConfig(name="fit", config=fit or {"devices": {GPU: 1000}})]
        config = Config(clusters=[Cluster(name=name, kubeconfig="") for name in "ab"], agents=agents)
        shared = shared_of(config, fake)
        self.fit = FitAgent(shared.context(agents[0]))
        self.agent = FragmentationAgent(shared.context(AgentConfig(name="fragmentation", config=settings)))
        self.nodes = [VirtualNode(f"vn-{name}", name, {}, {}) for name in "ab"]
        for name in "ab":
            self.fit.state.clusters[name].index.upsert_node(
                {
                    "metadata": {"name": name},
                    "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110", GPU: "2000"}},
                }
            )
        mark_synced(self.fit.state)

    async def scores(self, uid: str, units: int) -> dict[str, float]:
        """Filter and score like the extender."""
        container = {"name": "c", "resources": {"requests": {"cpu": "4", GPU: str(units)}}}
        pod = {"metadata": {"uid": uid, "namespace": "shop"}, "spec": {"containers": [container]}}
        rejected = await self.fit.filter(pod, self.nodes)
        assert not rejected.unresolvable
        left = [node for node in self.nodes if node.name not in rejected.resolvable]
        for agent in (self.fit, self.agent):
            agent.filtered(pod, left)
        found = dict(await self.agent.score(pod, left))
        self.fit.state.reservations.release(uid)
        return found


async def test_prefers_the_cluster_with_an_exact_gap():
    """The pod's own reservation does not count."""
    scene = _Scene({"resource": GPU})
    for number in range(4):
        scene.fit.state.clusters["b"].index.place(f"p{number}", Placed("b", {"cpu": 4000, GPU: 500}))
    scene.fit.state.clusters["b"].index.remove("p3")
    before = scene.fit.state.clusters["b"].index.devices[GPU].free
    assert await scene.scores("u", 500) == {"vn-a": 0.0, "vn-b": 1.0}
    assert scene.fit.state.clusters["b"].index.devices[GPU].free == before
    assert await scene.scores("v", 1000) == {"vn-a": 1.0}


def test_resource_must_be_among_the_fit_agents_devices():
    """Otherwise single devices are unknown."""
    with pytest.raises(ConfigError, match=r"resource: alibabacloud.com/gpu-milli is not among agents\[fit\]"):
        _Scene({"resource": GPU}, fit={"score": "BestFit"})
