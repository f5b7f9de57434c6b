"""Corner cases of kube-scheduler's rules: quantities, sums of requests, changing resources, pools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterset.admission import Admitted, ClusterRules
from clusterset.config import Cluster
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed, demand
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.unit.multi_scheduler.lower_pods import demand_of

HOST = "kubernetes.io/hostname"


def _demand(*, labels: dict[str, str] | None = None, selector: str = "", **spec: Any) -> Demand:
    metadata = {"uid": "u", "namespace": "shop", "labels": labels or {"app": "web"}}
    if selector:
        metadata["annotations"] = {"clusterSelector": selector}
    requests = spec.pop("requests", {"cpu": "1"})
    pod = {"metadata": metadata, "spec": {"containers": [{"resources": {"requests": requests}}], **spec}}
    return demand_of(pod)


def _index(*nodes: dict[str, Any], **pods: Placed) -> ClusterIndex:
    index = ClusterIndex()
    for node in nodes:
        index.upsert_node(node)
    for uid, placed in pods.items():
        index.place(uid, placed)
    return index


def _names(index: ClusterIndex, wanted: Demand) -> set[str]:
    return {index.name(slot) for slot in index.feasible(wanted)}


def test_new_resource_keeps_usage_on_nodes_without_it():
    """Pods on a node without its device plug-in still hold devices."""
    index = _index(objects.node("a"), p=Placed("a", {"example.com/gpu": 1, "pods": 1}))
    index.upsert_node(objects.node("b", more={"example.com/gpu": "1"}))
    index.place("q", Placed("b", {"example.com/gpu": 1, "pods": 1}))
    index.remove("p")
    assert _names(index, _demand(requests={"example.com/gpu": "1"})) == set()


@pytest.mark.parametrize(
    ("resource", "asked", "enough", "short"),
    [
        ("cpu", "1.5", "1500m", "1499m"),
        ("cpu", "0.0001", "1m", "0"),
        ("memory", "1e3", "1000", "999"),
        ("memory", "100m", "1", "0"),
        ("memory", "0.1Gi", "107374183", "107374182"),
        ("memory", "1Ki", "1024", "1023"),
        ("memory", "9007199254740993", "9007199254740993", "9007199254740992"),
        ("ephemeral-storage", "1.5M", "1500000", "1499999"),
        ("hugepages-2Mi", "4Mi", "4Mi", "2Mi"),
        ("example.com/fpga", "3", "3", "2"),
    ],
)
def test_quantities_are_compared_exactly(resource, asked, enough, short):
    """Rounded up like in kube-scheduler, without floats; the last byte counts."""
    for there, fits in ((enough, True), (short, False)):
        node = objects.node("a", more={resource: there})
        assert (_names(_index(node), _demand(requests={resource: asked})) == {"a"}) is fits


def test_requests_include_sidecars_overhead_and_pod_level_resources():
    """Pod-level resources replace sums."""
    container = {"resources": {"requests": {"cpu": "1"}}}
    sidecar = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}
    init = {"resources": {"requests": {"cpu": "2"}}}
    spec = {"initContainers": [sidecar, init], "overhead": {"cpu": "250m"}}
    metadata = {"uid": "u", "namespace": "n"}
    pod: dict[str, Any] = {"metadata": metadata, "spec": {"containers": [container], **spec}}
    assert demand_of(pod).requests == {"cpu": 2750, "pods": 1}
    pod["spec"]["resources"] = {"requests": {"cpu": "3"}}
    assert demand_of(pod).requests == {"cpu": 3250, "pods": 1}


def test_enforces_the_pod_limit_of_a_node():
    """Pods without requests also count."""
    node = objects.node("a")
    node["status"]["allocatable"]["pods"] = "1"
    index = _index(node)
    assert _names(index, _demand(requests={})) == {"a"}
    index.place("p", Placed("a", {"pods": 1}))
    assert _names(index, _demand(requests={})) == set()


@pytest.mark.parametrize(("zone", "fits"), [("a", True), ("b", False)])
@pytest.mark.parametrize("affinity", [{}, {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}}])  # fmt: skip
def test_pool_does_not_override_the_pods_selector(zone, affinity, fits):
    """A virtual node of zone a has no node for a pod of zone b."""
    index = _index(objects.node("a", labels={"zone": "a"}), objects.node("b", labels={"zone": "b"}))
    selector = json.dumps({"nodeSelector": {"zone": zone}, "affinity": affinity})
    metadata = {"uid": "u", "namespace": "n", "annotations": {"clusterSelector": selector}}
    pod = {"metadata": metadata, "spec": {"containers": []}}
    rules = ClusterRules(Cluster(name="c", kubeconfig=""), controllers=())
    admitted = rules.admit(pod, VirtualNode("vn", "c", {}, {"zone": "a"}))
    assert (_names(index, demand(admitted.pod)) if isinstance(admitted, Admitted) else set()) == (
        {"a"} if fits else set()
    )
