"""The extender and its reservations: no room is reserved twice, and unused room is released."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from clusterset.config import Cluster
from clusterset.model.policy.config import Policy
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ConfigError
from controller_runtime.objects import from_dict
from multi_scheduler import config
from multi_scheduler.agent import Agent, AgentContext, Rejections, load
from multi_scheduler.agents.fit.agent import FitAgent, FitSettings
from multi_scheduler.agents.template import TemplateAgent
from multi_scheduler.bound_pods import shrink
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, NotReadyError, Weighted
from multi_scheduler.print_configuration import scheduler_configuration
from multi_scheduler.state.cluster.pod_requirements import Placed, required_terms
from multi_scheduler.state.reservations import ATTEMPT_SECONDS
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.unit.multi_scheduler.lower_pods import fit_agent, lower_pod, mark_synced, report


class _Directory:
    known = True

    async def wait(self, _seconds: float) -> bool:
        return self.known

    def find(self, name: str, _node: Any) -> VirtualNode | None:
        if not name.startswith("vn-"):
            return None
        return VirtualNode(name, name.removeprefix("vn-"), {"tier": "gold"} if name == "vn-a" else {}, {})

    def refusal(self, _name: str, _node: Any) -> str:
        return ""


def _pod(uid: str, cpu: str = "2", **labels: str) -> dict[str, Any]:
    return objects.pod(uid, cpu, labels=labels)


def _asked(pod: dict[str, Any], *names: str) -> protocol.Candidates:
    return protocol.Candidates(pod, names, None)


def _fit(
    *, policy: Policy | None = None, settings: dict[str, Any] | None = None, **clusters: str
) -> tuple[FitAgent, Extender]:
    """Return a fit agent for clusters with one node each, with the given cores."""
    fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
    configured = {name: Cluster(name=name, kubeconfig="", policy=policy or Policy()) for name in clusters}
    agent = fit_agent(AgentContext("fit", settings or {}, fake, dict.fromkeys(clusters, fake), configured))
    for name, cpu in clusters.items():
        node = {"metadata": {"name": f"{name}-0"}, "status": {"allocatable": {"cpu": cpu, "pods": "9"}}}
        agent.state.clusters[name].index.upsert_node(node)
    mark_synced(agent.state)
    directory: Any = _Directory()
    return agent, Extender([Weighted("fit", agent, 1.0)], directory, upper=fake)


async def test_real_nodes_always_pass():
    """The scheduler itself decides about them."""
    _, extender = _fit(a="1")
    answer = await extender.filter(_asked(_pod("u"), "real", "vn-a"))
    assert answer.passing == ["real"]
    assert answer.failed == {"vn-a": "lower cluster a: 0/1 nodes are available: 1 Insufficient cpu"}


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_pods_of_a_burst_do_not_share_room():
    """The second pod of two cores is rejected after a short wait, because the first took two of three cores."""
    agent, extender = _fit(a="3")
    assert (await extender.filter(_asked(_pod("one"), "vn-a"))).passing == ["vn-a"]
    with pytest.raises(NotReadyError, match="reserved for pods that are being bound"):
        await extender.filter(_asked(_pod("two"), "vn-a"))
    agent.state.reservations.bind("one", "vn-a")
    assert (await extender.filter(_asked(_pod("two"), "vn-a"))).passing == []


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_binding_releases_reservations_in_other_clusters():
    """The first pod reserves room in both clusters; once it is bound, the second pod gets the other cluster."""
    agent, extender = _fit(a="2", b="2")
    assert (await extender.filter(_asked(_pod("one"), "vn-a", "vn-b"))).passing == ["vn-a", "vn-b"]
    asking = asyncio.ensure_future(extender.filter(_asked(_pod("two"), "vn-a", "vn-b")))
    await asyncio.sleep(0.05)
    assert not asking.done()
    agent.state.reservations.bind("one", "vn-a")
    assert (await asking).passing == ["vn-b"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("passes", "expected"),
    [(True, {"preferred-node", "required-node"}), ("Prefer", {"preferred-node"}), (False, set())],
)
async def test_binding_names_reserved_lower_node(passes, expected):
    """In the request that binds the pod, so that the virtual node never sees the pod without it."""
    _, extender = _fit(settings={"passNode": passes}, a="2", b="2")
    bindings: list[dict[str, Any]] = []

    async def create(_resource: Any, body: dict[str, Any], **_: Any) -> None:
        bindings.append(body)

    upper: Any = extender.upper
    upper.create = create
    await extender.filter(_asked(_pod("one"), "vn-a", "vn-b"))
    assert await extender.bind("shop", "one", "one", "vn-a") == ""
    found = bindings[0]["metadata"]["annotations"]
    assert found == {f"virtual-node.io/{name}": "a-0" for name in expected}
    assert "no room is reserved" in await extender.bind("shop", "unknown", "unknown", "vn-a")
    assert await extender.bind("shop", "unknown", "unknown", "real") == ""
    assert bindings[1]["metadata"]["annotations"] == {}
    assert len(bindings) == 2


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_pod_that_fits_nowhere_is_rejected_without_waiting():
    """A waiting filter call delays every later pod."""
    _, extender = _fit(a="3")
    await extender.filter(_asked(_pod("one"), "vn-a"))
    before = asyncio.get_running_loop().time()
    assert (await extender.filter(_asked(_pod("huge", "4"), "vn-a"))).passing == []
    assert asyncio.get_running_loop().time() == before


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_reservations_expire():
    """For a pod that was bound elsewhere or never, after the longest time that the scheduler may hold it."""
    agent, extender = _fit(a="2")
    await extender.filter(_asked(_pod("one"), "vn-a"))
    await asyncio.sleep(ATTEMPT_SECONDS)
    agent.state.reservations.expire()
    assert len(agent.state.reservations) == 0
    assert (await extender.filter(_asked(_pod("two"), "vn-a"))).passing == ["vn-a"]


async def test_retried_pod_ignores_its_own_reservation():
    """The earlier reservation is released first."""
    _, extender = _fit(a="2")
    for _ in range(3):
        assert (await extender.filter(_asked(_pod("one"), "vn-a"))).passing == ["vn-a"]


async def test_best_fit_prefers_the_smallest_gap():
    """Large gaps stay free for large pods."""
    _, extender = _fit(a="8", b="2")
    asked = _asked(_pod("one"), "vn-a", "vn-b", "real")
    await extender.filter(asked)
    scores = await extender.prioritize(asked)
    assert scores["vn-b"] > scores["vn-a"] > scores["real"] == 0


async def test_preemption_is_accepted_only_where_it_helps():
    """Victims that make no room in the lower cluster are not accepted."""
    agent, extender = _fit(a="2")
    await extender.filter(_asked(_pod("small", "1"), "vn-a"))
    agent.state.reservations.bind("small", "vn-a")
    found = {"vn-a": protocol.Victims(["small"], 0), "real": protocol.Victims(["x"], 1)}
    assert set(await extender.preempt(_pod("large", "2"), found)) == {"vn-a", "real"}
    assert set(await extender.preempt(_pod("huge", "3"), found)) == {"real"}
    assert len(agent.state.reservations) == 1


async def test_rejects_unread_lower_cluster_with_its_error():
    """Nothing is reserved in a cluster with unknown state."""
    agent, extender = _fit(a="8")
    agent.state.clusters["a"].feed._nodes._synced.clear()
    with pytest.raises(NotReadyError, match="cannot be looked into"):  # the scheduler tries again
        await extender.filter(_asked(_pod("one"), "vn-a"))


async def test_several_agents_filter_in_turn_and_score_by_weight():
    """Each agent gets the nodes that earlier agents passed."""

    class Half(Agent):
        async def score(self, pod, nodes):
            return {node.name: 0.5 for node in nodes}

    context = AgentContext("template", {"label": "tier", "prefer": "gold"}, upper=None, lower={})  # type: ignore[arg-type]
    directory: Any = _Directory()
    agents = [Weighted("template", TemplateAgent(context), 3.0), Weighted("half", Half(), 1.0)]
    extender = Extender(agents, directory, upper=None)  # type: ignore[arg-type]
    answer = await extender.filter(_asked(_pod("p", tier="gold"), "vn-a", "vn-b"))
    assert answer.passing == ["vn-a"]
    assert answer.unresolvable == {"vn-b": "the virtual node has no label tier=gold"}
    scores = await extender.prioritize(_asked(_pod("p"), "vn-a", "vn-b"))
    assert scores == {"vn-a": pytest.approx(0.875), "vn-b": pytest.approx(0.125)}


async def test_an_agent_that_passes_one_node_is_asked_last():
    """Otherwise a later agent could reject the only node that is left, at each attempt."""

    class One(Agent):
        is_last = True

        async def filter(self, pod, nodes):
            return Rejections({}, {node.name: "not the first" for node in nodes[1:]})

    context = AgentContext("template", {"label": "tier", "prefer": "gold"}, upper=None, lower={})  # type: ignore[arg-type]
    directory: Any = _Directory()
    agents = [Weighted("one", One(), 1.0), Weighted("template", TemplateAgent(context), 1.0)]
    extender = Extender(agents, directory, upper=None)  # type: ignore[arg-type]
    answer = await extender.filter(_asked(_pod("p", tier="gold"), "vn-b", "vn-a"))
    assert answer.passing == ["vn-a"]


def test_arguments_are_read_in_any_case():
    """As Go's decoder does; result keys are capitalised."""
    pod = _pod("u")
    for body in ({"Pod": pod, "NodeNames": ["a"]}, {"pod": pod, "nodenames": ["a"]}):
        asked = protocol.candidates(msgspec.json.encode(body))
        assert (asked.names, asked.nodes) == (["a"], None)
    whole = protocol.candidates(
        msgspec.json.encode({"Pod": pod, "Nodes": {"items": [{"metadata": {"name": "n"}}]}})
    )
    result = msgspec.json.decode(protocol.filter_result(whole, ["n"], {}, {}))
    assert result["Nodes"]["items"] == [{"metadata": {"name": "n"}}]
    assert result["NodeNames"] is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"Pod": null, "NodeNames": []}', b'{"Pod": {"metadata": {}, "spec": {}}}']
)
def test_bad_arguments_are_errors(body):
    """With a message, not a crash."""
    with pytest.raises(protocol.BadArgumentsError):
        protocol.candidates(body)


def test_agents_are_found_by_entry_point():
    """The error about an unknown agent lists the installed ones."""
    context = AgentContext("template", {"label": "a", "prefer": "b"}, upper=None, lower={})  # type: ignore[arg-type]
    assert isinstance(load("template", context), TemplateAgent)
    with pytest.raises(ConfigError, match=r"fit, .*template"):
        load("nobody", context)


def test_reads_tensile_kubes_configuration():
    """The arguments of its plug-in contain clusters and kubeconfigs."""
    text = '{"pluginConfig": [{"name": "multi-scheduler", "args": {"cluster_configuration": {"vk1": {"kube_config": "/k"}}}}]}'
    (cluster,) = config.parse(text).clusters
    assert (cluster.name, cluster.kubeconfig, cluster.nodes[0].name) == ("vk1", "/k", "vk1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clusters: []", "clusters"),
        ("clusters: [{name: a}]", "kubeconfig"),
        ("clusters: [{name: a, kubeconfig: k, colour: red}]", "colour"),
        (
            "clusters: [{name: a, kubeconfig: k, nodes: [{name: n, autoscaling: {maxNodes: 1, shapes: []}}]}]",
            r"clusters\[0\].nodes\[0\].autoscaling.shapes: at least one shape",
        ),
        ("clusters: [{name: a, kubeconfig: k}, {name: a, kubeconfig: k}]", "there twice"),
        (
            "clusters: [{name: a, kubeconfig: k, enableControllers: [PVController]}]",
            r"clusters\[0\].enableControllers: unknown 'PVController', known are PVControllers",
        ),
        (
            "clusterProfiles: {namespace: n, providersFile: f, defaults: {enableControllers: [All]}}",
            "clusterProfiles.defaults.enableControllers: unknown 'All'",
        ),
        (
            '{"pluginConfig": [{"name": "multi-scheduler", "args": {"cluster_configuration": {"a": {}}}}]}',
            "kube_config",
        ),
        ("- 1", "mapping"),
    ],
)
def test_configuration_errors_name_the_field(text, expected):
    """Each case is one mistake."""
    with pytest.raises(ConfigError, match=expected):
        config.parse(text)


def test_scheduler_configuration_binds_through_the_extender():
    made = scheduler_configuration("http://127.0.0.1:1", bind=True)
    assert made["profiles"] == [{"schedulerName": "default-scheduler"}]
    assert made["extenders"][0]["bindVerb"] == "bind"


def test_agents_reject_nothing_by_default():
    """An agent that only scores needs no filter."""
    assert asyncio.run(Agent().filter({}, [])) == Rejections({}, {})


class _Slow(Agent):
    """An agent that awaits before it answers."""

    async def filter(self, pod, nodes):
        await asyncio.sleep(0.1)
        return Rejections({}, {})


@pytest.mark.looptime
async def test_reserves_room_before_the_next_agent_filters():
    """Two concurrent calls must not get the same room."""
    _, extender = _fit(a="3")
    extender = Extender([*extender.agents, Weighted("slow", _Slow(), 1.0)], extender.directory, upper=None)  # type: ignore[arg-type]
    asked = [extender.filter(_asked(_pod(uid), "vn-a")) for uid in ("one", "two")]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(answers[1], NotReadyError)
    assert answers[0].passing == ["vn-a"]  # type: ignore[union-attr]


async def test_releases_nodes_that_a_later_agent_rejects():
    """Other pods get the room immediately."""

    class Never(Agent):
        async def filter(self, pod, nodes):
            return Rejections({}, {node.name: "never" for node in nodes if node.name == "vn-a"})

    agent, extender = _fit(a="2", b="2")
    extender = Extender([*extender.agents, Weighted("never", Never(), 1.0)], extender.directory, upper=None)  # type: ignore[arg-type]
    assert (await extender.filter(_asked(_pod("one"), "vn-a", "vn-b"))).passing == ["vn-b"]
    assert agent.state.clusters["a"].index.used["cpu"] == 0
    assert agent.state.clusters["b"].index.used["cpu"] == 2000


@pytest.mark.parametrize("score", ["BestFit", "Spread", "BinPack"])
async def test_unread_cluster_gets_the_lowest_score(score):
    """The score matters only with ``unreachable: Pass``."""
    agent, extender = _fit(a="8", b="8")
    agent._settings = agent.state.judge.settings = FitSettings(score=score, unreachable="Pass")
    agent.state.clusters["b"].feed._unreachable = "no answer"
    await extender.filter(_asked(_pod("first"), "vn-a"))
    asked = _asked(_pod("one"), "vn-a", "vn-b")
    assert (await extender.filter(asked)).passing == ["vn-a", "vn-b"]
    scores = await extender.prioritize(asked)
    assert scores["vn-a"] > scores["vn-b"] == 0


async def test_drops_only_the_oldest_of_many_predictions():
    """Newer pods still get scores."""
    agent, extender = _fit(a="8")
    for number in range(1500):
        await extender.filter(_asked(_pod(f"waiting-{number}", "99"), "vn-a"))
    asked = _asked(_pod("one"), "vn-a")
    await extender.filter(asked)
    agent.state.sweep()
    assert len(agent.state.predictions) <= 1000
    assert (await extender.prioritize(asked))["vn-a"] > 0


async def test_ignores_scores_of_unknown_nodes():
    """An agent's mistake does not affect the other scores."""

    class Odd(Agent):
        async def score(self, pod, nodes):
            return {"vn-x": 1.0, **{node.name: 0.5 for node in nodes}}

    directory: Any = _Directory()
    extender = Extender([Weighted("odd", Odd(), 1.0)], directory, upper=None)  # type: ignore[arg-type]
    assert await extender.prioritize(_asked(_pod("p"), "vn-a")) == {"vn-a": 0.5}


async def test_distinguishes_resolvable_from_unresolvable_rejections():
    """Preemption can free a host port, but cannot add a label."""
    agent, extender = _fit(policy=Policy(host_ports=True), a="8")
    taken = Placed("a-0", {"pods": 1}, ports=(("", "TCP", 80),))
    agent.state.clusters["a"].index.place("p", taken)
    pod = _pod("one")
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    assert set((await extender.filter(_asked(pod, "vn-a"))).failed) == {"vn-a"}
    pod = _pod("two")
    pod["metadata"]["annotations"] = {"clusterSelector": '{"nodeSelector": {"gpu": "yes"}}'}
    assert set((await extender.filter(_asked(pod, "vn-a"))).unresolvable) == {"vn-a"}


async def test_refuses_calls_until_virtual_nodes_are_listed():
    """Until then virtual nodes look like real nodes, which always pass."""
    agent, extender = _fit(a="1")
    directory: Any = extender.directory
    directory.known = False
    with pytest.raises(NotReadyError, match="nodes"):
        await extender.filter(_asked(_pod("one", "99"), "vn-a"))
    with pytest.raises(NotReadyError):
        await extender.preempt(_pod("one", "99"), {"vn-a": protocol.Victims([], 0)})
    directory.known = True
    assert (await extender.filter(_asked(_pod("one", "99"), "vn-a"))).passing == []
    assert len(agent.state.reservations) == 0


def _add(agent: FitAgent, *pods: Any) -> None:
    """Let the watch of bound pods report new pods."""
    for pod in pods:
        agent.state.bound_pods.informer.change("ADDED", pod)


def _bound(uid: str, node: str, *, phase: str = "Pending", cpu: str = "2") -> Any:
    return shrink(
        from_dict(objects.pod(uid, cpu, node=node, phase=phase, metadata={"resourceVersion": phase}))
    )


@pytest.mark.looptime
async def test_reserves_room_for_pods_that_others_bound():
    """By another scheduler, by this one before a restart, or after the reservation expired."""
    agent, extender = _fit(a="3")
    _add(agent, _bound("other", "vn-a"), _bound("real", "real-1"), _bound("running", "vn-a", phase="Running"))
    assert (await extender.filter(_asked(_pod("one"), "vn-a"))).passing == []
    assert len(agent.state.reservations) == 1
    report(
        agent.state.clusters["a"].feed, lower_pod("other", "elsewhere")
    )  # it is on a lower node and counts itself
    assert (await extender.filter(_asked(_pod("one"), "vn-a"))).passing == ["vn-a"]


@pytest.mark.looptime
async def test_counts_pod_with_a_lower_pod_once():
    """The lower cluster may be listed after the upper one."""
    agent, extender = _fit(a="3")
    agent.state.clusters["a"].feed._nodes._synced.clear()
    _add(agent, _bound("other", "vn-a"))
    with pytest.raises(NotReadyError, match="cannot be looked into"):
        await extender.filter(_asked(_pod("one"), "vn-a"))
    report(agent.state.clusters["a"].feed, lower_pod("other", "elsewhere"))
    agent.state.clusters["a"].feed._nodes._synced.set()
    assert (await extender.filter(_asked(_pod("one"), "vn-a"))).passing == ["vn-a"]


@pytest.mark.looptime
async def test_forgets_bound_pods_that_finish_or_run():
    """Whatever their node."""
    agent, extender = _fit(a="3")
    for uid in ("gone", "started"):
        _add(agent, _bound(uid, "vn-a"))
    agent.state.bound_pods.informer.change("DELETED", _bound("gone", "vn-a"))
    agent.state.bound_pods.informer.change("MODIFIED", _bound("started", "vn-a", phase="Running"))
    assert (await extender.filter(_asked(_pod("one", "3"), "vn-a"))).passing == ["vn-a"]


async def test_unreadable_bound_pod_does_not_fail_other_calls(monkeypatch):
    """Any tenant can bind pods with spec.nodeName and arbitrary content."""
    agent, extender = _fit(a="3")
    _add(agent, _bound("broken", "vn-a"))
    judge = agent.state.clusters["a"].gate.judge

    def fail(pod: Any, node: VirtualNode) -> Any:
        if pod["metadata"]["uid"] == "broken":
            raise TypeError("not what the API describes")
        return judge(pod, node)

    monkeypatch.setattr(agent.state.clusters["a"].gate, "judge", fail)
    assert (await extender.filter(_asked(_pod("one"), "vn-a"))).passing == ["vn-a"]


async def test_many_bound_pods_do_not_delay_other_calls(monkeypatch):
    """They are counted a few at a time, and until then no pod gets room."""
    monkeypatch.setattr("multi_scheduler.state.accounting._SLICE", 0.0)
    agent, extender = _fit(a="9")
    _add(agent, *(_bound(f"other-{number}", "vn-a", cpu="1") for number in range(3)))
    for left in (2, 1):
        with pytest.raises(NotReadyError, match=f"{left} pods that are bound to lower cluster a"):
            await extender.filter(_asked(_pod("one", "1"), "vn-a"))
    assert (await extender.filter(_asked(_pod("one", "1"), "vn-a"))).passing == ["vn-a"]
    assert len(agent.state.reservations) == 4


def test_evaluates_a_limited_number_of_affinity_terms():
    """Each term is compared with all pods of the cluster, so ten thousand terms would delay all calls."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    spec = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term] * 10_000}}
    }
    assert len(required_terms(spec, "podAntiAffinity", "ns")) == 10


async def test_settles_answers_once_and_only_for_virtual_nodes():
    """A pod on a real node, or without answers, gets no Event."""
    _, extender = _fit(a="1", b="4", c="8")
    answer = await extender.filter(_asked(_pod("u"), "real", "vn-a", "vn-b", "vn-c"))
    await extender.prioritize(_asked(_pod("u"), *answer.passing))
    await extender.filter(_asked(_pod("v"), "real", "vn-a"))
    assert extender.settle("u", "vn-b") == (
        "Bound to vn-b. Agent fit: vn-b 50, vn-c 25 (weight 1); "
        "rejected: vn-a (lower cluster a: 0/1 nodes are available: 1 Insufficient cpu)"
    )
    assert extender.settle("u", "vn-b") == ""
    assert extender.settle("v", "real") == ""
    assert extender.settle("never", "vn-b") == ""
