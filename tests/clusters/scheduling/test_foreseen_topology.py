"""Predicted topology spread and pod (anti-)affinity equal the decisions of a real kube-scheduler."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from hack.sandbox import Cluster
from hack.sandbox.nodes.kwok import kwok_node
from multi_scheduler.state import judge
from multi_scheduler.state.admission import Admission
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import demand
from multi_scheduler.state.cluster_feed import Feed, LowerPod
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready

pytestmark = [pytest.mark.e2e]
NAMESPACE, OTHER = "shop", "other"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NODES = {
    "a": {HOST: "a", ZONE: "1"},
    "b": {HOST: "x", ZONE: "1"},
    "c": {HOST: "x", ZONE: "2"},
    "d": {ZONE: "2"},
}
"""Labels by name. Nodes b and c are one host; d is none."""
WEB = {"matchLabels": {"app": "web"}}
DATABASE = {"matchLabels": {"app": "db"}}
BY_TEAM = {"namespaceSelector": {"matchLabels": {"team": "red"}}}


def _terms(kind: str, *terms: dict[str, Any]) -> dict[str, Any]:
    required = [{"topologyKey": HOST, **term} for term in terms]
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def _spread(selector: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    constraint = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", **more}
    if selector is not None:
        constraint["labelSelector"] = selector
    return {"topologySpreadConstraints": [constraint]}


def _pod(name: str, app: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "busybox:1.36"}],
            **spec,
        },
    }


EXISTING = {
    NAMESPACE: [
        *(_pod(f"web-{number}", "web", nodeName="a") for number in range(3)),
        _pod("zone", "z", nodeName="b", **_terms("podAntiAffinity", {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "zoned"}}})),
        _pod("host", "h", nodeName="c", **_terms("podAntiAffinity", {"labelSelector": {"matchLabels": {"app": "hosted"}}})),
        _pod("teams", "t", nodeName="a", **_terms("podAntiAffinity", {"labelSelector": {"matchLabels": {"app": "far"}}, **BY_TEAM})),
    ],
    OTHER: [_pod("database", "db", nodeName="c")],
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "no requirement": _pod("p", "free"),
    "spread, empty selector": _pod("p", "web", **_spread({}, minDomains=9)),
    "spread, empty selector, label key": _pod("p", "web", **_spread({}, matchLabelKeys=["app"], minDomains=9)),
    "spread, empty selector, unknown label key": _pod("p", "web", **_spread({}, matchLabelKeys=["rev"], minDomains=9)),
    "spread, empty lists": _pod("p", "web", **_spread({"matchLabels": {}, "matchExpressions": []}, minDomains=9)),
    "spread, no selector": _pod("p", "web", **_spread(None, minDomains=9)),
    "spread over few domains": _pod("p", "web", **_spread(WEB, minDomains=9)),
    "spread, all nodes full": _pod("p", "free", **_spread({"matchLabels": {"none": "x"}}, minDomains=9)),
    "spread": _pod("p", "web", **_spread(WEB)),
    "beside web": _pod("p", "free", **_terms("podAffinity", {"labelSelector": WEB})),
    "beside any pod": _pod("p", "free", **_terms("podAffinity", {"labelSelector": {}})),
    "beside no pod": _pod("p", "free", **_terms("podAffinity", {})),
    "first of its kind": _pod("p", "new", **_terms("podAffinity", {"labelSelector": {"matchLabels": {"app": "new"}}})),
    "beside two kinds": _pod("p", "free", **_terms("podAffinity", {"labelSelector": WEB}, {"labelSelector": {"matchLabels": {"app": "h"}}})),
    "beside a database of a team": _pod("p", "free", **_terms("podAffinity", {"labelSelector": DATABASE, **BY_TEAM})),
    "beside a database of the own namespace": _pod("p", "free", **_terms("podAffinity", {"labelSelector": DATABASE})),
    "apart from any pod": _pod("p", "free", **_terms("podAntiAffinity", {"labelSelector": {}})),
    "apart from no pod": _pod("p", "free", **_terms("podAntiAffinity", {})),
    "apart from web, repelled by zone": _pod("p", "zoned", **_terms("podAntiAffinity", {"labelSelector": WEB})),
    "apart from a team, beside web": _pod("p", "free", affinity={
        **_terms("podAntiAffinity", {"labelSelector": DATABASE, **BY_TEAM})["affinity"],
        **_terms("podAffinity", {"labelSelector": WEB})["affinity"],
    }),
    "repelled by zone, beside others": _pod("p", "zoned", **_terms("podAffinity", {"labelSelector": {"matchLabels": {"app": "z"}}})),
    "repelled by host, beside others": _pod("p", "hosted", **_terms("podAffinity", {"labelSelector": {"matchLabels": {"app": "h"}}})),
    "other team is not repelled": _pod("p", "far", **_terms("podAffinity", {"labelSelector": WEB})),
}  # fmt: skip


async def test_prediction_equals_the_decision_of_a_real_scheduler(simulated: Lend):
    """It binds to one of the predicted nodes, or reports the predicted number of nodes for each reason."""
    async with simulated(lower=1) as sandbox:
        (cluster,) = sandbox.lower
        await _prepare(cluster)
        async with Client(await kubeconfig.load(str(cluster.kubeconfig), in_cluster=False)) as client:
            index = ClusterIndex()
            feed = Feed(client, index, Admission(), changed=_ignore)
            task = asyncio.create_task(feed.run())
            try:
                for what, pod in CASES.items():
                    await _compare(cluster, index, what, pod)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def _prepare(cluster: Cluster) -> None:
    """Create nodes and pods; the sandbox's own node gets no pods."""
    await cluster.kubectl("cordon", "lower1-node-0")
    for name, labels in NODES.items():
        node = kwok_node(name, labels=labels)
        if HOST not in labels:
            del node["metadata"]["labels"][HOST]
        await create(cluster, "", node)
    for name in NODES:
        await node_ready(cluster, name)
    await make_namespace(cluster, NAMESPACE)
    await make_namespace(cluster, OTHER, labels={"team": "red"})
    for namespace, pods in EXISTING.items():
        await create(cluster, namespace, *pods)


async def _compare(cluster: Cluster, index: ClusterIndex, what: str, pod: dict[str, Any]) -> None:
    existing = sum(map(len, EXISTING.values()))

    async def seen() -> tuple[int, int]:
        return len(index), len(list(index.pods()))

    await becomes(seen, (1 + len(NODES), existing), what=f"{what}: the feed has nodes and pods")
    counted: Counter[str] = Counter()
    metadata = {**pod["metadata"], "namespace": NAMESPACE}
    slots = index.feasible(demand({**pod, "metadata": metadata}), counted)
    await create(cluster, NAMESPACE, pod)

    async def decision() -> Any:
        found = (await get(cluster, NAMESPACE, "pod", "p"))["status"]
        (scheduled,) = [one for one in found["conditions"] if one["type"] == "PodScheduled"]
        return scheduled

    async def is_decided() -> bool:
        return bool(await decision())

    await eventually(is_decided, what=f"{what}: the scheduler decides")
    decided = await decision()
    node = (await get(cluster, NAMESPACE, "pod", "p"))["spec"].get("nodeName")
    if slots:
        assert node in {index.name(slot) for slot in slots}, (what, decided)
    else:
        assert node is None, what
        assert decided["message"].partition(". ")[0] == judge.no_fit(len(index), counted), what
    await cluster.kubectl("-n", NAMESPACE, "delete", "pod", "p", "--wait=true")


def _ignore(_uid: str, _key: str, _lower: LowerPod | None) -> None:
    """Do nothing when a lower pod of an upper pod changes, because there is none."""
