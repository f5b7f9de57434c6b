"""Agents that score lower nodes: the node they choose, the estimated usage, neutral scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.config import Cluster, UsageConfig
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ConfigError
from controller_runtime.objects import from_dict
from multi_scheduler.agent import Agent, AgentContext
from multi_scheduler.agents.congestion import CongestionAgent
from multi_scheduler.agents.cost import CostAgent
from multi_scheduler.agents.fit.agent import FitAgent
from multi_scheduler.agents.load import LoadAgent
from multi_scheduler.agents.pigeon import DemandHistory, PigeonAgent
from multi_scheduler.agents.pressure import PressureAgent
from multi_scheduler.agents.safe import SafeAgent
from multi_scheduler.config import AgentConfig, Config
from multi_scheduler.state.cluster_feed import shrink_pod
from multi_scheduler.usage import Pressure, Sample, Stall
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.background import working
from tests.unit.multi_scheduler.lower_pods import mark_synced, shared_of

AGENTS: dict[str, Callable[[AgentContext], Agent]] = {
    "congestion": CongestionAgent,
    "cost": CostAgent,
    "fit": FitAgent,
    "load": LoadAgent,
    "pigeon": PigeonAgent,
    "pressure": PressureAgent,
    "safe": SafeAgent,
}
REAL = "real"
"""A real node of the upper cluster."""
MIB = 1024**2
START = 1_000_000_000.0
"""Of the samples: 2001-09-09T01:46:40Z."""
BEFORE, AFTER = "2001-09-09T01:45:00Z", "2001-09-09T01:46:50Z"


class Scene:
    """Lower clusters with nodes of 4 CPUs and 4 GiB, and the configured agents."""

    def __init__(self, *agents: AgentConfig, clusters: tuple[str, ...] = ("a", "b"), nodes: int = 1) -> None:
        fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
        config = Config(
            clusters=[Cluster(name=name, kubeconfig="") for name in clusters],
            agents=list(agents),
            upper_usage=UsageConfig(),
        )
        self.shared = shared_of(config, fake)
        self.state = self.shared.state
        # Not by entry points, because the installed package may be older than an agent.
        self.agents: list[Agent] = [AGENTS[one.name](self.shared.context(one)) for one in agents]
        self.virtual = [VirtualNode(f"vn-{name}", name, {}, {}) for name in clusters]
        self.stores = {name: lower.measured.usage for name, lower in self.state.clusters.items()}
        upper, real = self.shared._upper_nodes, self.shared.view.real
        assert upper is not None
        assert real is not None
        self.upper, self.real = upper, real.usage
        for name in clusters:
            for number in range(nodes):
                self.node(f"{name}-{number}")
        mark_synced(self.state)

    def node(self, name: str, **labels: str) -> None:
        """Add a node to the cluster that its name begins with."""
        allocatable = {"cpu": "4", "memory": "4Gi", "pods": "100"}
        node = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}
        if name == REAL:
            self.upper.node(from_dict(node))
        else:
            self.state.clusters[name.partition("-")[0]].index.upsert_node(node)

    def used(self, name: str, cpu: float, memory: float = 0.0, **more: Any) -> None:
        """Add a sample of a node: usage as shares of its capacity."""
        store = self.real if name == REAL else self.stores[name.partition("-")[0]]
        store.add(name, Sample(START, cpu * 4000, memory * 4096 * MIB, **more), capacity=4000)

    def runs(self, node: str, uid: str, *, since: str = BEFORE, cpu: str = "1", limit: str = "") -> None:
        """Place a pod on a node, or on a real node of the upper cluster."""
        resources = {"requests": {"cpu": cpu}, "limits": {"cpu": limit} if limit else {}}
        pod = {
            "metadata": {"name": uid, "namespace": "shop", "uid": uid},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": resources}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}],
            },
        }
        stored = shrink_pod(from_dict(pod))
        if node == REAL:
            self.upper.pod(stored)
        else:
            self.state.clusters[node.partition("-")[0]].feed._pod(stored)

    async def scores(self, pod: dict[str, Any], *, agent: int = -1) -> dict[str, float]:
        """Filter with all agents, then score with one."""
        for one in self.agents:
            await one.filter(pod, self.virtual)
        found = await self.agents[agent].score(pod, self.virtual)
        assert found is not None
        return dict(found)


def pod(cpu: str = "1", *, limit: str = "", uid: str = "new", **metadata: Any) -> dict[str, Any]:
    """Return an upper pod."""
    limits = {"cpu": limit} if limit else {}
    return objects.pod(uid, containers=[objects.container(limits=limits, cpu=cpu)], metadata=metadata)


def agent(name: str, **config: Any) -> AgentConfig:
    """Return an agent's configuration."""
    return AgentConfig(name=name, config=config)


FIT = agent("fit")
near = pytest.approx


@pytest.mark.parametrize("agents", [(agent("load"),), (FIT, agent("load"))], ids=["alone", "with fit"])
async def test_load_prefers_the_idle_cluster(agents) -> None:
    """Mean of usage and deviation with the pod: (0 + 0.25) / 2 and (0.5 + 0.25) / 2."""
    scene = Scene(*agents)
    scene.used("a-0", 0.0)
    scene.used("b-0", 0.5)
    assert await scene.scores(pod()) == near({"vn-a": 1 - 0.25 / 2, "vn-b": 1 - 0.75 / 2})


async def test_unknown_usage_gets_a_neutral_score(monkeypatch) -> None:
    """Without a sample, and in a cluster that cannot be read."""
    scene = Scene(agent("load"))
    scene.used("a-0", 0.0)
    monkeypatch.setattr(scene.state.clusters["a"].feed, "trouble", lambda: "silent")
    assert await scene.scores(pod()) == {"vn-a": 0.5, "vn-b": 0.5}


async def test_pods_bound_after_the_sample_count_by_estimate() -> None:
    """Earlier pods are part of the sample, and the pod's own reservation does not count."""
    scene = Scene(FIT, agent("load"))
    scene.used("a-0", 0.25)
    scene.runs("a-0", "old", since=BEFORE)
    scene.runs("a-0", "young", since=AFTER)
    found = await scene.scores(pod())
    assert found["vn-a"] == near(1 - (0.25 + 0.25 * 0.85 + 0.25) / 2)
    await scene.agents[0].filter(pod(uid="other"), scene.virtual)
    promised = await scene.scores(pod())
    assert promised["vn-a"] == near(found["vn-a"] - 0.25 * 0.85 / 2)


async def test_scores_by_the_most_likely_or_the_best_node() -> None:
    """The stock lower scheduler prefers the node with most room, whatever its usage."""
    for setting, used in (("MostLikely", 0.9), ("Best", 0.1)):
        scene = Scene(agent("load", node=setting), clusters=("a",), nodes=2)
        scene.runs("a-1", "placed", cpu="2")
        scene.used("a-0", 0.9)
        scene.used("a-1", 0.1)
        assert await scene.scores(pod("0")) == near({"vn-a": 1 - used / 2})


async def test_load_by_target_packing() -> None:
    """Limit, or 1.5 times the request; pods younger than a minute are not part of the sample yet."""
    scene = Scene(agent("load", policy="TargetLoadPacking"))
    scene.used("a-0", 0.2)
    scene.used("b-0", 0.2)
    scene.runs("b-0", "young", since="2001-09-09T01:46:00Z", limit="2")
    found = await scene.scores(pod("0.2", limit="0.8"))
    assert found == near({"vn-a": 1.0, "vn-b": 0.4 * (1 - 0.9) / 0.6})


@pytest.mark.parametrize(
    "spec",
    [
        {"resources": {"limits": {"cpu": "800m"}}},
        {"initContainers": [objects.container(limits={"cpu": "500m"}) | {"restartPolicy": "Always"}]},
    ],
)
async def test_load_predicts_pod_level_resources_and_sidecars(spec) -> None:
    """A container without requests counts as 1 CPU only if the pod has no limit, and sidecars run beside it."""
    scene = Scene(agent("load", policy="TargetLoadPacking"), clusters=("a",))
    scene.used("a-0", 0.2)
    limits = {} if "resources" in spec else {"cpu": "300m"}
    asked = objects.pod(containers=[objects.container(limits=limits)], **spec)
    assert await scene.scores(asked) == near({"vn-a": 1.0})


async def test_load_by_over_commitment() -> None:
    """Limits of 6 CPUs on a node with 4 are a risk; a pod without requests is a risk on no single node."""
    scene = Scene(agent("load", policy="LowRiskOverCommitment"))
    for name in ("a-0", "b-0"):
        scene.used(name, 0.1)
        scene.runs(name, f"on-{name}", cpu="1", limit="5" if name == "a-0" else "")
    found = await scene.scores(pod("1"))
    assert found["vn-a"] < found["vn-b"]
    assert await scene.scores(pod("0")) == {"vn-a": 0.5, "vn-b": 0.5}


def test_wrong_settings_are_refused() -> None:
    """The error names the agent and the setting."""
    with pytest.raises(ConfigError, match=r"agents\[load\]\.config: .*targetUtilization"):
        Scene(agent("load", targetUtilization=200))


async def test_safe_rejects_only_nodes_known_to_be_at_risk() -> None:
    """95 % usage on every node that could take the pod is too much; unknown usage is no reason."""
    scene = Scene(FIT, agent("safe"), clusters=("a", "b", "c"), nodes=2)
    for name in ("a-0", "a-1", "b-0"):
        scene.used(name, 0.95)
    rejected = (await scene.agents[1].filter(pod("0"), scene.virtual)).unresolvable
    assert list(rejected) == ["vn-a"]
    assert "would exceed 90 % with a probability of 100%" in rejected["vn-a"]


async def test_safe_scores_by_risk_and_balance() -> None:
    """Both scores of kube-safe-scheduler, with its weights 1 and 10; the worse resource counts."""
    scene = Scene(agent("safe", forecastWeight=0), clusters=("a", "b", "c"))
    scene.used("a-0", 0.5, 0.1)
    scene.used("b-0", 0.1, 0.5)
    balanced = 1 - 0.5 / 2
    assert await scene.scores(pod("0")) == near(
        {"vn-a": (1 + 10 * balanced) / 11, "vn-b": (1 + 10 * balanced) / 11, "vn-c": 0.5}
    )


async def test_pressure_scores_by_pods_and_stalls() -> None:
    """A node under pressure gets 0; CPU stalls count only on busy nodes."""
    scene = Scene(agent("pressure"), clusters=("a", "b", "c", "d"))
    stalled = Pressure(cpu=Stall(some10=40, some60=40))
    scene.used("a-0", 0.2, pressure=stalled)
    scene.used("b-0", 0.9, pressure=stalled)
    scene.used("c-0", 0.2, pressure=Pressure(memory=Stall(full10=30, full60=30)))
    scene.used("d-0", 0.2)
    for number in range(10):
        scene.runs("a-0", f"pod-{number}", cpu="10m")
    assert await scene.scores(pod()) == near({"vn-a": 0.96, "vn-b": 0.92, "vn-c": 0.0, "vn-d": 0.5})


async def test_congestion_reads_the_virtual_node_first() -> None:
    """Without its annotation, the lower node's is read."""
    scene = Scene(agent("congestion", maximum=10))
    scene.virtual[0] = VirtualNode("vn-a", "a", {}, {}, {"congestion-factor": "4"})
    for name, factor in (("a-0", "9"), ("b-0", "1")):
        scene.stores[name[0]].annotate(name, {"congestion-factor": factor})
    assert await scene.scores(pod()) == near({"vn-a": 0.6, "vn-b": 0.9})


@pytest.mark.parametrize(
    ("objective", "best"), [("LoadBalance", "vn-b"), ("Consolidate", "vn-a"), ("AdaptiveBinPack", "vn-b")]
)
async def test_pigeon_treats_clusters_as_nodes(objective, best) -> None:
    """The pod's own reservations do not count."""
    scene = Scene(FIT, agent("pigeon", objective=objective))
    scene.runs("a-0", "one", cpu="2")
    found = await scene.scores(pod("500m"))
    assert max(found, key=lambda name: found[name]) == best
    assert sorted(found.values()) == [0.1, 1.0]
    assert await scene.scores(pod("500m")) == found


async def test_pigeon_keeps_its_history_over_a_restart(tmp_path) -> None:
    """In the same form; a state for other resources is not loaded."""
    file = str(tmp_path / "pigeon.json")

    def history(**settings: Any) -> DemandHistory:
        (found,) = Scene(agent("pigeon", state=file, **settings)).agents
        assert isinstance(found, PigeonAgent)
        return found._history

    scene = Scene(agent("pigeon", state=file))
    for uid, cpu in (("one", "100m"), ("two", "3")):
        await scene.scores(pod(cpu, uid=uid))
    (running,) = scene.agents
    async with working(running.run()):
        await asyncio.sleep(0)
    assert (history().count, history().mean[0]) == (2, 1550)
    assert history(resources=["cpu"]).count == 0
    Path(file).write_text("[]", encoding="utf-8")
    assert history().count == 0


async def test_cost_reads_labels_then_configuration_then_file(tmp_path) -> None:
    """A cluster without a price gets a neutral score."""
    (tmp_path / "prices.yaml").write_text("b: {cpu: 0.2}\nc: {cpu: 9}\n", encoding="utf-8")
    settings = {"prices": {"c": {"cpu": 0.4}}, "file": str(tmp_path / "prices.yaml")}
    scene = Scene(agent("cost", **settings), clusters=("a", "b", "c", "d"))
    scene.node("a-0", **{"virtual-node.io/price-cpu": "0.1"})
    found = await scene.scores(pod())
    assert found["vn-a"] == near(1.0)
    assert found["vn-b"] > found["vn-c"] > 0
    assert found["vn-d"] == 0.5


async def test_cost_avoids_preemptible_nodes_for_unselected_pods() -> None:
    """Only selected pods get the discount."""
    preemptible = {
        "nodeSelector": {"pool": "spot"},
        "podSelector": {"matchLabels": {"spot": "yes"}},
        "discount": 0.7,
    }
    scene = Scene(agent("cost", prices={"a": {"cpu": 0.1}, "b": {"cpu": 0.05}}, preemptible=preemptible))
    scene.node("a-0", pool="spot")
    meant = await scene.scores(pod(uid="one", labels={"spot": "yes"}))
    assert meant["vn-a"] > meant["vn-b"]
    scene.node("b-0", pool="spot")
    scene.node("a-0")
    other = await scene.scores(pod(uid="two"))
    assert other["vn-a"] > other["vn-b"]
    unpriced = Scene(agent("cost", prices={"a": {"cpu": 0.1}}, preemptible=preemptible))
    unpriced.node("b-0", pool="spot")
    assert await unpriced.scores(pod()) == near({"vn-a": 1, "vn-b": 0.25}), "b has no price"


async def test_cost_prefers_the_order_of_clusters_over_prices() -> None:
    """The order applies regardless of cost."""
    scene = Scene(agent("cost", priority=["b"], prices={"a": {"cpu": 0.1}, "b": {"cpu": 5}}))
    found = await scene.scores(pod())
    assert found["vn-b"] > found["vn-a"]


async def test_cost_prefers_the_order_of_clusters_without_prices() -> None:
    """A cluster in the order needs no price; clusters that are not in the order come last, with or without a price."""
    scene = Scene(
        agent("cost", priority=["c", "b"], prices={"a": {"cpu": 0.1}}), clusters=("a", "b", "c", "d")
    )
    found = await scene.scores(pod())
    assert found == near({"vn-c": 2.5 / 3, "vn-b": 1.5 / 3, "vn-a": 1 / 3, "vn-d": 0.5 / 3})


async def test_reads_usage_from_annotations_of_lower_nodes() -> None:
    """It is updated and removed with the nodes."""
    scene = Scene(agent("load"))
    found = {"mean-free-cpu": "3000", "std-free-cpu": "0"}
    measured = scene.state.clusters["a"].measured
    measured.config = UsageConfig(source="Annotations")
    for name in ("a-0", "a-9"):
        measured.annotated(name, found)
    assert len(scene.stores["a"]) == 1
    assert await scene.scores(pod("0")) == near({"vn-a": 1 - 0.25 / 2, "vn-b": 0.5})
    measured.annotated("a-0", {"free-cpu": "3000"})
    neutral = near({"vn-a": 0.5, "vn-b": 0.5})
    assert await scene.scores(pod("0", uid="two")) == neutral, "the annotator does not know the usage"
    measured.annotated("a-0", found)
    scene.state.clusters["a"].index.remove_node("a-0")
    measured.annotated("a-0", {})
    assert len(scene.stores["a"]) == 0
