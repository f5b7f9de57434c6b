"""The directory tells virtual nodes of configured lower clusters from real nodes and from unknown virtual nodes."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from clusterset.config import Cluster, ClusterProfiles, NodeConfig
from clusterset.model import names
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from multi_scheduler.agent import Agent
from multi_scheduler.config import Config, parse
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.extender.protocol import Candidates, Victims
from virtual_node.examine import messages

Labels = dict[str, str]
_VERSIONS = itertools.count(1)
VIRTUAL = {names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL}
POD: dict[str, Any] = {"metadata": {"name": "p", "namespace": "shop", "uid": "u"}, "spec": {"containers": []}}


def _of(cluster: str) -> Labels:
    return {**VIRTUAL, names.LABEL_LOWER_CLUSTER: cluster}


def _cluster(name: str, *nodes: str) -> Cluster:
    return Cluster(name=name, kubeconfig="k", nodes=[NodeConfig(name=node) for node in nodes])


def _directory(
    *clusters: Cluster, unknown: Literal["Reject", "Pass"] = "Reject", **nodes: Labels
) -> NodeDirectory:
    """Return a directory that has read these Nodes; ``vn_a`` is Node ``vn-a``."""
    fake: Any = SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper"))
    directory = NodeDirectory(fake, Config(unknown_nodes=unknown))
    for cluster in clusters:
        directory.add(cluster, fake)
    for name, labels in nodes.items():
        _put(directory, name.replace("_", "-"), labels)
    directory.nodes._synced.set()
    return directory


def _put(directory: NodeDirectory, name: str, labels: Labels) -> None:
    metadata = {"name": name, "uid": name, "resourceVersion": str(next(_VERSIONS)), "labels": labels}
    directory.nodes.change("MODIFIED", from_dict({"metadata": metadata}))


def _delete(directory: NodeDirectory, name: str) -> None:
    directory.nodes.change("DELETED", from_dict({"metadata": {"name": name, "uid": name}}))


def _extender(directory: NodeDirectory) -> Extender:
    """Return an extender without the fit agent."""
    upper: Any = SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper"))
    return Extender([Weighted("any", Agent(), 1.0)], directory, upper=upper)


def _unknown_nodes() -> float:
    value = REGISTRY.get_sample_value("virtual_node_extender_unknown_nodes")
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("name", "labels", "cluster"),
    [
        ("vn-a", {}, "a"),
        ("other", _of("a"), "a"),
        ("other", {**VIRTUAL, names.LABEL_CLUSTER_ID: "a"}, "a"),
        ("a", VIRTUAL, "a"),
    ],
    ids=["name in nodes", "label", "tensile-kube's label", "name of the cluster"],
)
def test_finds_virtual_nodes_of_configured_clusters(name, labels, cluster):
    directory = _directory(_cluster("a", "vn-a"))
    found = directory.find(name, {"metadata": {"name": name, "labels": labels}})
    assert found is not None
    assert found.cluster == cluster
    assert directory.refusal(name, {"metadata": {"name": name, "labels": labels}}) == ""


@pytest.mark.parametrize("labels", [{}, {names.LABEL_LOWER_CLUSTER: "b"}, {"type": "other"}])
def test_node_without_the_label_of_virtual_nodes_is_real(labels):
    directory = _directory(_cluster("a", "vn-a"))
    node = {"metadata": {"name": "worker", "labels": labels}}
    assert directory.find("worker", node) is None
    assert directory.refusal("worker", node) == ""
    assert directory.refusal("worker", None) == ""


@pytest.mark.parametrize("sends_nodes", [True, False])
async def test_no_pod_gets_an_unknown_virtual_node(sends_nodes):
    """Also without the fit agent. The reason says what to write where, and real nodes still pass."""
    directory = _directory(_cluster("a", "vn-a"), vn_a=_of("a"), vn_b=_of("b"), vn_c=VIRTUAL)
    labels: dict[str, Labels] = {"vn-a": _of("a"), "vn-b": _of("b"), "vn-c": VIRTUAL, "worker": {}}
    nodes = {name: {"metadata": {"name": name, "labels": found}} for name, found in labels.items()}
    answer = await _extender(directory).filter(Candidates(POD, list(nodes), nodes if sends_nodes else None))
    assert answer.passing == ["vn-a", "worker"]
    assert answer.failed == {}
    assert answer.unresolvable == {
        "vn-b": (
            "virtual node vn-b (label virtual-node.io/lower-cluster: b) belongs to no lower cluster of the "
            "multi-scheduler's configuration: write `nodes: [{name: vn-b}]` into the entry of its cluster in clusters "
            "(with the chart: add the cluster to virtualNode.clusters), or set unknownNodes: Pass"
        ),
        "vn-c": (
            "virtual node vn-c (no label virtual-node.io/lower-cluster) belongs to no lower cluster of the "
            "multi-scheduler's configuration: write `nodes: [{name: vn-c}]` into the entry of its cluster in clusters "
            "(with the chart: add the cluster to virtualNode.clusters), or set unknownNodes: Pass"
        ),
    }


def test_diagnosis_knows_the_reason():
    """It shows the next step for each unknown virtual node."""
    directory = _directory(_cluster("a"), vn_b=_of("b"))
    (step,) = messages.next_steps(directory.refusal("vn-b", None), namespace="shop")
    assert step.startswith("write virtual node vn-b into nodes of its cluster")


def test_reason_mentions_cluster_profiles_if_they_are_used():
    """A ClusterProfile with an unusable kubeconfig is left out of the configuration."""
    fake: Any = SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper"))
    profiles = ClusterProfiles(namespace="fleet", providers_file="providers.yaml")
    directory = NodeDirectory(fake, Config(cluster_profiles=profiles))
    _put(directory, "profile-b", _of("profile-b"))
    assert "find in the log why its ClusterProfile is not used" in directory.refusal("profile-b", None)


async def test_no_pod_is_evicted_on_an_unknown_virtual_node():
    directory = _directory(_cluster("a", "vn-a"), vn_a=_of("a"), vn_b=_of("b"))
    victims = {name: Victims(["v"], 0) for name in ("vn-a", "vn-b", "worker")}
    assert list(await _extender(directory).preempt(POD, victims)) == ["vn-a", "worker"]


async def test_setting_passes_unknown_virtual_nodes():
    """The log still names them."""
    with capture_logs() as logs:
        directory = _directory(_cluster("a"), unknown="Pass", vn_b=_of("b"))
    answer = await _extender(directory).filter(Candidates(POD, ["vn-b"], None))
    assert answer.passing == ["vn-b"]
    assert list(await _extender(directory).preempt(POD, {"vn-b": Victims(["v"], 0)})) == ["vn-b"]
    assert directory.unready() is None
    assert [(one["log_level"], one["node"], one["effect"]) for one in logs] == [
        ("warning", "vn-b", "pods get it without any check")
    ]


def test_logs_and_counts_each_unknown_virtual_node_once():
    """Again only if the node was known or deleted in between."""
    with capture_logs() as logs:
        directory = _directory(_cluster("a"), vn_a=_of("a"), vn_b=_of("b"), vn_c=_of("c"))
        assert _unknown_nodes() == 2
        _put(directory, "vn-b", {**_of("b"), "zone": "z"})
        assert [one["node"] for one in logs] == ["vn-b", "vn-c"]
        assert logs[0]["lower_cluster"] == "b"
        assert "nodes: [{name: vn-b}]" in logs[0]["next"]
        _put(directory, "vn-b", _of("a"))
        assert _unknown_nodes() == 1
        _put(directory, "vn-b", _of("b"))
        _delete(directory, "vn-c")
        assert _unknown_nodes() == 1
        assert [one["node"] for one in logs] == ["vn-b", "vn-c", "vn-b"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({}, None),
        ({"vn_a": _of("a")}, None),
        ({"vn_a": _of("a"), "vn_b": _of("b")}, None),
        ({"vn_b": _of("b")}, "all virtual nodes (vn-b) belong to no configured lower cluster; configured: a"),
    ],
    ids=["no virtual node yet", "known", "one of two", "none"],
)
def test_is_ready_unless_no_virtual_node_belongs_to_a_configured_cluster(nodes, expected):
    """One wrong name must not stop scheduling for the others."""
    directory = _directory(_cluster("a"), **nodes)
    assert directory.unready() == expected


def test_is_not_ready_before_the_nodes_are_read():
    directory = _directory(_cluster("a"))
    directory.nodes._synced.clear()
    assert directory.unready() == "the upper cluster's nodes have not been read yet"


@pytest.mark.looptime
async def test_logs_a_configured_cluster_without_virtual_node():
    """Once, after a minute, because its virtual node may be registered after the multi-scheduler has started."""
    directory = _directory(_cluster("a", "vn-a"), _cluster("b", "vn-b"), vn_a=_of("a"), vn_x=_of("x"))
    with capture_logs() as logs:
        task = asyncio.create_task(directory._report_absent())
        await asyncio.sleep(59)
        assert logs == []
        await asyncio.sleep(600)
        task.cancel()
    (entry,) = logs
    assert (entry["log_level"], entry["cluster"], entry["nodes"]) == ("warning", "b", ["vn-b"])
    assert entry["unknown_nodes"] == ["vn-x"]


@pytest.mark.looptime
async def test_logs_no_cluster_whose_virtual_node_appears_within_a_minute():
    directory = _directory(_cluster("a", "vn-a"))
    with capture_logs() as logs:
        task = asyncio.create_task(directory._report_absent())
        await asyncio.sleep(50)
        _put(directory, "vn-a", _of("a"))
        await asyncio.sleep(600)
        task.cancel()
    assert logs == []


def test_configuration_of_unknown_nodes():
    clusters = "clusters: [{name: a, kubeconfig: k}]"
    assert parse(clusters).unknown_nodes == "Reject"
    assert parse(f"{clusters}\nunknownNodes: Pass").unknown_nodes == "Pass"


@pytest.mark.parametrize("configured", ["vn-a", ""])
def test_allocatable_resources_come_from_the_scheduler_or_from_the_cache(configured):
    """The scheduler sends complete Nodes unless nodeCacheCapable is set."""
    directory = _directory(_cluster("a", *filter(None, [configured])), vn_a=_of("a"))
    node: dict[str, Any] = {
        "metadata": {"name": "vn-a", "labels": _of("a")},
        "status": {"allocatable": {"cpu": "8"}},
    }
    sent, cached = directory.find("vn-a", node), directory.find("vn-a", None)
    assert sent is not None
    assert sent.allocatable == {"cpu": "8"}
    assert cached is not None
    assert cached.allocatable == {}
    changed = {**node, "metadata": {**node["metadata"], "uid": "u", "resourceVersion": str(next(_VERSIONS))}}
    directory.nodes.change("MODIFIED", from_dict(changed))
    found = directory.find("vn-a", None)
    assert found is not None
    assert found.allocatable == {"cpu": "8"}
