"""What tenants and lower clusters write does not decide how long a call takes, or how much memory the index needs."""

from __future__ import annotations

import json
import time
from typing import Any, cast

import pytest

from controller_runtime.objects import from_dict
from multi_scheduler.state.cluster import limits
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.limits import TooManyRequirementsError
from multi_scheduler.state.cluster.pod_requirements import Placed, required_terms
from multi_scheduler.state.cluster_feed import shrink_pod
from tests import objects
from tests.unit.multi_scheduler.lower_pods import demand_of
from tests.unit.multi_scheduler.state.cluster.test_index import _anti, _demand, _names

_PORTS: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "shop", "uid": "p"},
    "spec": {"nodeName": "a"},
}
HOST = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _large(count: int, kind: str = "podAffinity") -> dict[str, Any]:
    expressions = [{"key": "z", "operator": "DoesNotExist"}] * count
    term = {"topologyKey": HOST, "namespaceSelector": {}, "labelSelector": {"matchExpressions": expressions}}
    return {kind: {_REQUIRED: [term]}}


def test_large_pod_affinity_is_left_to_the_lower_scheduler():
    """A term is compared with every pod of the cluster."""
    index = ClusterIndex()
    for number in range(10):
        index.upsert_node(objects.node(f"n{number}"))
    for number in range(1000):
        index.place(f"p{number}", Placed(f"n{number % 10}", {"pods": 1}, namespace="shop"))
    started = time.thread_time()
    assert len(_names(index, _demand(affinity=_large(30_000)))) == 10
    assert time.thread_time() - started < 1.0
    assert len(required_terms({"affinity": _large(limits.MOST_POD_REQUIREMENTS)}, "podAffinity", "shop")) == 1
    for kind in ("podAffinity", "podAntiAffinity"):
        assert not required_terms({"affinity": _large(limits.MOST_POD_REQUIREMENTS + 1, kind)}, kind, "shop")


def test_many_values_of_pod_affinity_are_left_to_the_lower_scheduler():
    """Terms before the large one still apply."""
    terms = _anti("web")
    values = [str(number) for number in range(1000)]
    more = {
        "topologyKey": HOST,
        "labelSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": values}]},
    }
    terms["podAntiAffinity"][_REQUIRED].append(more)
    assert len(required_terms({"affinity": terms}, "podAntiAffinity", "shop")) == 1


@pytest.mark.parametrize(
    "selector",
    [
        {"nodeSelector": {f"k{number}": "v" for number in range(5000)}},
        {"tolerations": [{"key": f"k{number}", "operator": "Exists"} for number in range(5000)]},
        {
            "affinity": {
                "nodeAffinity": {
                    _REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": HOST, "operator": "In", "values": ["v"] * 5000}]}]}
                }
            }
        },
    ],
    ids=["labels", "tolerations", "values"],
)  # fmt: skip
def test_pod_with_too_many_node_requirements_is_rejected(selector):
    """Each is compared with every node."""
    with pytest.raises(TooManyRequirementsError, match="the limits are 100 and 1000"):
        _demand(annotations={"clusterSelector": json.dumps(selector)})


def test_long_values_are_rejected():
    """Caches keep the requirements of many pods."""
    selector = {"nodeSelector": {"k": "v" * 40_000}}
    with pytest.raises(TooManyRequirementsError, match="characters"):
        _demand(annotations={"clusterSelector": json.dumps(selector)})


def test_many_host_ports_take_no_time():
    """Each port of a pod was compared with each port of every pod on the node."""
    index = ClusterIndex()
    ports = {"ports": [{"hostPort": number} for number in range(1, 30_000)]}
    wanted = _demand(container=ports)
    for node in ("a", "b"):
        index.upsert_node(objects.node(node))
        taken = tuple(("10.0.0.1", "UDP", number) for number in range(1, 30_000))
        index.place(node, Placed(node, {"pods": 1}, ports=taken))
    index.place("p", Placed("b", {"pods": 1}, ports=(("10.0.0.1", "TCP", 80),)))
    started = time.thread_time()
    assert _names(index, wanted) == {"a"}
    assert time.thread_time() - started < 0.5
    sent = {**_PORTS, "spec": {**_PORTS["spec"], "containers": [{"name": "c", **ports}]}}
    assert len(shrink_pod(from_dict(sent)).spec["ports"]) == limits.MOST_PORTS


def test_label_columns_are_limited():
    """Pods with different selectors must not fill the memory."""
    index = ClusterIndex()
    index.upsert_node(objects.node("a"))
    for number in range(200):
        selector = {"nodeSelector": {f"key-{number}-{more}": "v" for more in range(10)}}
        assert not _names(index, _demand(annotations={"clusterSelector": json.dumps(selector)}))
    assert len(index._node_filter._columns) <= 128
    assert max(map(len, index._node_filter._answers)) <= 1000


def test_resource_columns_are_limited_and_dropped():
    """A lower cluster may offer different resources on each node, and the native ones still count."""
    index = ClusterIndex()
    for node in range(100):
        extended = {f"example.com/{node}-{number}": "1" for number in range(100)}
        index.upsert_node(objects.node(f"n{node}", more=extended))
    assert len(index._free) == len(index._capacity) == limits.MOST_COLUMNS
    assert len(_names(index, _demand())) == 100
    assert len(_names(index, _demand(extended={"example.com/0-1": "1"}))) == 1
    index.place("p", Placed("n0", {"cpu": 1000, "example.com/0-1": 1, "example.com/unknown": 1}))
    assert _names(index, _demand(extended={"example.com/0-1": "1"})) == set()
    index.remove("p")
    for node in range(100):
        index.remove_node(f"n{node}")
    assert not index._free
    assert not index._capacity
    assert not index.total
    assert not index.used


def test_column_of_a_returned_resource_counts_the_pods_that_take_it():
    """A device plug-in may restart while its pods run."""
    index = ClusterIndex()
    index.upsert_node(objects.node("a", more={"example.com/x": "1"}))
    index.place("p", Placed("a", {"example.com/x": 1}))
    index.upsert_node(objects.node("a"))
    index.upsert_node(objects.node("a", more={"example.com/x": "2"}))
    assert index.free("example.com/x") == [1]


def test_device_list_of_a_node_is_limited():
    index = ClusterIndex({"koordinator.sh/gpu-core": 100})
    index.upsert_node(objects.node("a", more={"koordinator.sh/gpu-core": "1e12"}))
    assert len(index.devices["koordinator.sh/gpu-core"].free[0]) == 128
    assert _names(index, _demand(extended={"koordinator.sh/gpu-core": "50"})) == {"a"}


def test_unreadable_values_of_a_node_count_as_missing():
    """The others are read."""
    taint = {"key": "k", "effect": "NoSchedule"}
    node = objects.node("a", taints=["x", {"key": 1}, taint], more=cast("Any", {"example.com/x": ["1"]}))
    index = ClusterIndex()
    index.upsert_node(node)
    assert _names(index, _demand()) == set()
    pod = {"metadata": {}, "spec": {"tolerations": [{"operator": "Exists"}]}}
    assert _names(index, demand_of(pod)) == {"a"}
    assert index.free("example.com/x") == [0]
