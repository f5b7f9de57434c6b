"""The index of a lower cluster gives kube-scheduler's results."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed
from multi_scheduler.state.cluster.scoring import Lower, predict
from multi_scheduler.state.judge import no_fit
from tests import objects
from tests.unit.multi_scheduler.lower_pods import demand_of


def _demand(
    cpu: str = "1", *, uid: str = "u", annotations: dict[str, str] | None = None, **spec: Any
) -> Demand:
    requests = {"cpu": cpu, **spec.pop("extended", {})}
    container = {"name": "c", "resources": {"requests": requests}, **spec.pop("container", {})}
    labels = spec.pop("labels", {"app": "web"})
    pod = {
        "metadata": {"uid": uid, "namespace": "shop", "labels": labels, "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }
    return demand_of(pod)


def _index(*nodes: dict[str, Any]) -> ClusterIndex:
    index = ClusterIndex()
    for node in nodes:
        index.upsert_node(node)
    return index


def _names(index: ClusterIndex, wanted: Demand) -> set[str]:
    return {index.name(slot) for slot in index.feasible(wanted)}


def _why(index: ClusterIndex, wanted: Demand) -> str:
    reasons: Counter[str] = Counter()
    assert index.feasible(wanted, reasons) == []
    return no_fit(len(index), reasons)


def test_pod_must_fit_on_a_single_node():
    """The sum over nodes does not count."""
    index = _index(objects.node("a", "4"), objects.node("b", "4"))
    for name in "ab":
        index.place(f"p-{name}", Placed(name, {"cpu": 3000, "pods": 1}))
    assert _names(index, _demand("1")) == {"a", "b"}
    assert _why(index, _demand("1500m")) == "0/2 nodes are available: 2 Insufficient cpu"


def test_counts_reasons_like_kube_scheduler():
    """One reason per node for labels and taints; every insufficient resource for the other nodes."""
    taint = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
    index = _index(
        objects.node("full", "0", "0", pods="0"),
        objects.node("tainted", taints=[taint]),
        objects.node("cordoned", unschedulable=True),
    )
    text = '{"nodeSelector": {"gpu": "yes"}}'
    assert _why(index, _demand()) == (
        "0/3 nodes are available: 1 Insufficient cpu, 1 Too many pods, "
        "1 node(s) had untolerated taint {dedicated: db}, 1 node(s) were unschedulable"
    )
    assert "1 node(s) didn't match Pod's node affinity/selector" in _why(
        index, _demand(annotations={"clusterSelector": text})
    )


def test_cluster_selector_chooses_the_node():
    """Selector and tolerations of the annotation apply, not those of the upper spec."""
    taint = {"key": "gpu", "effect": "NoSchedule"}
    index = _index(objects.node("gpu", labels={"gpu": "yes"}, taints=[taint]), objects.node("plain"))
    text = '{"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}'
    assert _names(index, _demand(annotations={"clusterSelector": text})) == {"gpu"}
    assert _names(index, _demand()) == {"plain"}


def test_pod_needs_a_node_that_declares_its_features():
    """A node that declares them later is asked again; other pods run on any node."""
    old, new = objects.node("old"), objects.node("new")
    new["status"]["declaredFeatures"] = ["RestartAllContainersOnContainerExits"]
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]
    wanted = _demand(container={"restartPolicyRules": rules})
    index = _index(old)
    assert _why(index, wanted) == "0/1 nodes are available: 1 node(s) didn't match Pod's required features"
    index.upsert_node(new)
    assert _names(index, wanted) == {"new"}
    assert _names(index, _demand()) == {"old", "new"}
    index.upsert_node({**old, "status": new["status"]})
    assert _names(index, wanted) == {"old", "new"}


def test_unknown_resource_is_insufficient_on_all_nodes():
    """Extended resources are compared like cpu."""
    index = _index(objects.node("a", more={"nvidia.com/gpu": "1"}), objects.node("b"))
    assert _names(index, _demand(extended={"nvidia.com/gpu": "1"})) == {"a"}
    assert _why(index, _demand(extended={"example.com/x": "1"})) == (
        "0/2 nodes are available: 2 Insufficient example.com/x"
    )


def test_host_ports_conflict_by_port_protocol_and_address():
    """Another protocol does not conflict."""
    index = _index(objects.node("a"))
    index.place("p", Placed("a", {"pods": 1}, ports=(("", "TCP", 80),)))
    port = {"ports": [{"containerPort": 80, "hostPort": 80}]}
    assert "free ports" in _why(index, _demand(container=port))
    udp = {"ports": [{"containerPort": 80, "hostPort": 80, "protocol": "UDP"}]}
    assert _names(index, _demand(container=udp)) == {"a"}


def _anti(label: str) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": label}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_anti_affinity_works_both_ways():
    """The pod's own terms, and those of placed pods."""
    index = _index(objects.node("a"), objects.node("b"))
    index.place("p", Placed("a", {"pods": 1}, namespace="shop", labels={"app": "web"}))
    assert _names(index, _demand(affinity=_anti("web"))) == {"b"}
    repelling = _demand(affinity=_anti("web"), labels={"app": "db"})
    index.place("q", Placed("b", {"pods": 1}, namespace="shop", anti_affinity=repelling.anti_affinity))
    assert _names(index, _demand()) == {"a"}


def test_spread_keeps_the_skew():
    """No node may exceed the emptiest one by more than maxSkew."""
    index = _index(objects.node("a"), objects.node("b"))
    index.place("p", Placed("a", {"pods": 1}, namespace="shop", labels={"app": "web"}))
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    assert _names(index, _demand(topologySpreadConstraints=[constraint])) == {"b"}


def test_changed_node_is_filtered_again():
    """Answers about labels are cached only until a node changes."""
    index = _index(objects.node("a"))
    text = '{"nodeSelector": {"gpu": "yes"}}'
    assert _names(index, _demand(annotations={"clusterSelector": text})) == set()
    index.upsert_node(objects.node("a", labels={"gpu": "yes"}))
    assert _names(index, _demand(annotations={"clusterSelector": text})) == {"a"}
    index.remove_node("a")
    assert _names(index, _demand()) == set()


def test_counts_pods_placed_before_their_node_is_known():
    """Informers guarantee no order between resources."""
    index = ClusterIndex()
    index.place("p", Placed("a", {"cpu": 4000, "pods": 1}))
    index.upsert_node(objects.node("a", "4"))
    assert _names(index, _demand()) == set()
    index.remove("p")
    assert _names(index, _demand()) == {"a"}


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["node", "gone", "place", "remove"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(min_value=0, max_value=6),
    ),
    max_size=40,
)


@given(actions=ACTIONS, wanted=st.integers(min_value=1, max_value=8))
def test_free_columns_equal_the_plain_sum(actions, wanted):
    """In any order of adding and removing nodes and pods."""
    index = ClusterIndex()
    nodes: dict[str, int] = {}
    pods: dict[str, tuple[str, int]] = {}
    for action, name, number in actions:
        match action:
            case "node":
                nodes[name] = number
                index.upsert_node(objects.node(name, str(number)))
            case "gone":
                nodes.pop(name, None)
                index.remove_node(name)
            case "place":
                pods[f"p{number}"] = (name, number)
                index.place(f"p{number}", Placed(name, {"cpu": number * 1000, "pods": 1}))
            case "remove":
                pods.pop(f"p{number}", None)
                index.remove(f"p{number}")
    free = {
        name: cpu - sum(count for where, count in pods.values() if where == name)
        for name, cpu in nodes.items()
    }
    assert _names(index, _demand(str(wanted))) == {name for name, left in free.items() if left >= wanted}
    assert index.total["cpu"] == sum(nodes.values()) * 1000
    assert index.used["cpu"] == sum(count for where, count in pods.values() if where in nodes) * 1000


def test_a_change_of_a_node_costs_little_whatever_the_number_of_its_pods():
    """A hostile cluster sends thousands of such changes per second, in small events."""
    index = _index(objects.node("a"))
    for number in range(20_000):
        index.place(str(number), Placed("a", {"cpu": 1, "pods": 1, "x/gpu": 1}))
    started = time.thread_time()
    for number in range(300):
        index.upsert_node(objects.node("a", str(number), more={"x/gpu": "8"} if number % 2 else {}))
        index.remove_node("a")
    assert time.thread_time() - started < 1
    index.upsert_node(objects.node("a", "64", more={"x/gpu": "20001"}))
    free = {resource: list(index.free(resource)) for resource in ("cpu", "x/gpu")}
    assert free == {"cpu": [44_000], "x/gpu": [1]}
    assert index.used == {"cpu": 20_000, "pods": 20_000, "x/gpu": 20_000}


@given(actions=ACTIONS)
def test_a_resource_that_a_node_offers_later_counts_on_all_nodes(actions):
    """Pods may take it already, for example while a device plug-in is down."""
    index = _index(objects.node("a"), objects.node("b"), objects.node("c"))
    pods: dict[str, str] = {}
    for action, name, number in actions:
        if action == "place":
            pods[f"p{number}"] = name
            index.place(f"p{number}", Placed(name, {"x/gpu": 1}))
        elif action == "remove":
            pods.pop(f"p{number}", None)
            index.remove(f"p{number}")
    index.upsert_node(objects.node("a", more={"x/gpu": "8"}))
    taken = Counter(pods.values())
    assert list(index.free("x/gpu")) == [8 - taken["a"], -taken["b"], -taken["c"]]


@pytest.mark.parametrize("total", [0, 3])
def test_message_without_reasons_is_complete(total):
    """There is always a message."""
    assert no_fit(total, {}).startswith(f"0/{total} nodes are available")


@pytest.mark.parametrize("lower", ["LeastAllocated", "MostAllocated"])
@pytest.mark.parametrize(
    ("tolerations", "expected"), [([], "plain"), ([{"key": "old", "operator": "Exists"}], "avoided")]
)
def test_predicts_a_node_without_taints_that_the_pod_avoids(
    tolerations: list[dict[str, str]], expected: str, lower: Lower
):
    """kube-scheduler's TaintToleration plug-in has more weight than room, and than a preference for one node."""
    cores = {"LeastAllocated": ("64", "8"), "MostAllocated": ("8", "64")}[lower]
    taints = [{"key": "old", "effect": "PreferNoSchedule"}]
    index = _index(objects.node("avoided", cores[0], taints=taints), objects.node("plain", cores[1]))
    wanted = _demand(tolerations=tolerations)
    assert predict(index, wanted, index.feasible(wanted), lower).place.node == expected
    only = index.feasible(wanted, only="avoided")
    assert predict(index, wanted, only, lower).place.node == "avoided"
