"""The fit agent and lower admission: a pod gets a cluster that admits it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import multi_scheduler.program
import virtual_node.rights.daemon
from clusterset.config import Cluster
from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from multi_scheduler.agent import AgentContext
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, NotReadyError, Weighted
from multi_scheduler.state.cluster_feed import shrink_pod
from multi_scheduler.virtual_node import VirtualNode
from tests.unit.multi_scheduler.lower_pods import fit_agent, mark_synced

pytestmark = pytest.mark.looptime


class _Directory:
    async def wait(self, _seconds: float) -> bool:
        return True

    def find(self, name: str, _node: Any) -> VirtualNode:
        return VirtualNode(name, name.split("-")[1], {}, {})


_CLAIMING: tuple[dict[str, Any], ...] = (
    {"persistentVolumeClaim": {"claimName": "data"}},
    {"ephemeral": {"volumeClaimTemplate": {}}},
)
"""Volumes with claims."""


class Clusters:
    """Lower clusters a and b with sixteen cores each."""

    def __init__(self, *, settings: dict[str, str] | None = None, **config: Any) -> None:
        fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
        lower = {"a": fake, "b": fake}
        clusters = {"a": Cluster(name="a", kubeconfig="", **config)}
        self.agent = fit_agent(AgentContext("fit", settings or {}, fake, lower, clusters))
        for name in lower:
            node = {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"allocatable": {"cpu": "16", "pods": "99"}},
            }
            self.agent.state.clusters[name].index.upsert_node(node)
        mark_synced(self.agent.state)
        directory: Any = _Directory()
        self.extender = Extender([Weighted("fit", self.agent, 1.0)], directory, upper=fake)
        self.admission = self.agent.state.clusters["a"].admission

    def quota(self, *, used: int = 0, hard: int = 1, namespace: str = "shop", **spec: Any) -> None:
        status = {"hard": {"pods": str(hard)}, "used": {"pods": str(used)}}
        metadata = {"name": "tight", "namespace": namespace}
        self.admission.upsert_quota({"metadata": metadata, "spec": spec, "status": status})

    def limit_range(self, *, namespace: str = "shop", name: str = "usual", **item: Any) -> None:
        metadata = {"name": name, "namespace": namespace}
        self.admission.upsert_range(
            {"metadata": metadata, "spec": {"limits": [{"type": "Container", **item}]}}
        )

    async def filter(self, pod: dict[str, Any], *names: str) -> Any:
        return await self.extender.filter(protocol.Candidates(pod, names or ("vn-a", "vn-b"), None))

    async def passing(self, pod: dict[str, Any], *names: str) -> list[str]:
        """Return the virtual nodes that pass; none if the scheduler must try again."""
        try:
            found: list[str] = (await self.filter(pod, *names)).passing
        except NotReadyError:
            return []
        return found

    def below(self, uid: str, **spec: Any) -> None:
        """Add a lower pod to cluster a."""
        self.agent.state.clusters["a"].feed._pod(self._lower(uid, spec))

    def gone(self, uid: str) -> None:
        """Delete a lower pod of cluster a."""
        self.agent.state.clusters["a"].feed._pod_gone(self._lower(uid, {}))

    @staticmethod
    def _lower(uid: str, spec: dict[str, Any]) -> Any:
        lower = {
            "metadata": {
                "name": uid, "namespace": "shop", "uid": f"lower-{uid}", "labels": {"virtual-node.io/upper-uid": uid},
            },
            "spec": {"containers": [], **spec},
            "status": {"phase": "Pending"},
        }  # fmt: skip
        return shrink_pod(from_dict(lower))


def waiting_pod(uid: str, cpu: str = "1", *, namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu} if cpu else {}}}
    metadata = {"name": uid, "namespace": namespace, "uid": uid}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


async def test_limit_range_defaults_count_as_requests():
    """A container without requests gets a default that no node has room for."""
    clusters = Clusters()
    clusters.limit_range(defaultRequest={"cpu": "17"}, default={"cpu": "17"})
    answer = await clusters.filter(waiting_pod("one", ""))
    assert answer.passing == ["vn-b"]
    assert "Insufficient cpu" in answer.failed["vn-a"]


async def test_limit_range_defaults_satisfy_a_quota():
    """A quota of cpu refuses pods without requests, unless a limit range adds them."""
    clusters = Clusters()
    status = {"hard": {"requests.cpu": "2"}, "used": {"requests.cpu": "0"}}
    clusters.admission.upsert_quota({"metadata": {"name": "cpu", "namespace": "shop"}, "status": status})
    answer = await clusters.filter(waiting_pod("one", ""), "vn-a")
    assert "failed quota: cpu: must specify requests.cpu for: c" in answer.unresolvable["vn-a"]
    clusters.limit_range(defaultRequest={"cpu": "2"}, default={"cpu": "2"})
    assert await clusters.passing(waiting_pod("one", ""), "vn-a") == ["vn-a"]
    assert await clusters.passing(waiting_pod("two", ""), "vn-a") == []


async def test_limit_range_refuses_pods_out_of_bounds():
    """The reason names the range."""
    clusters = Clusters()
    clusters.limit_range(min={"cpu": "2"})
    answer = await clusters.filter(waiting_pod("one"))
    assert answer.passing == ["vn-b"]
    assert "LimitRange usual: minimum cpu usage per Container is 2" in answer.unresolvable["vn-a"]


async def test_pod_passes_if_any_of_several_defaults_admits_it():
    """The lower API server's order is undefined, so the pod must not be rejected forever."""
    clusters = Clusters()
    clusters.limit_range(name="narrow", default={"cpu": "100m"})
    assert await clusters.passing(waiting_pod("one"), "vn-a") == []
    clusters.limit_range(name="wide", default={"cpu": "2"})
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]
    clusters.limit_range(name="wide", default={"cpu": "200m"})
    assert await clusters.passing(waiting_pod("one"), "vn-a") == []


async def test_rules_are_those_of_the_lower_namespace():
    """For mapped namespaces, as with two upper clusters in one lower cluster."""
    clusters = Clusters(namespaces=NamespaceConfig(prefix="u1-", map={"special": "other"}))
    clusters.quota(used=1, namespace="u1-shop")
    assert await clusters.passing(waiting_pod("one")) == ["vn-b"]
    assert await clusters.passing(waiting_pod("two", namespace="special"), "vn-a") == ["vn-a"]
    clusters.quota(used=1, namespace="other")
    assert await clusters.passing(waiting_pod("three", namespace="special"), "vn-a") == []


@pytest.mark.parametrize(
    ("config", "pod", "expected"),
    [
        ({}, waiting_pod("one", namespace="kube-system"), "Pods in kube-system are not mirrored"),
        (
            {},
            waiting_pod("one", resourceClaims=[{"name": "gpu"}]),
            "Pods with resourceClaims are not mirrored",
        ),
        (
            {},
            {
                **waiting_pod("one"),
                "metadata": {
                    **waiting_pod("one")["metadata"],
                    "annotations": {"clusterSelector": "{nodeSelector"},
                },
            },
            # Both refusals come from the virtual node; otherwise the pod would fit on any lower node.
            "Annotation clusterSelector: not JSON",
        ),
        (
            {"namespaces": NamespaceConfig(allowed=["team-*"])},
            waiting_pod("one"),
            "Lower cluster a takes no pods of namespace shop",
        ),
        (
            {"pod_selector": {"matchLabels": {"tier": "batch"}}},
            waiting_pod("one"),
            "Lower cluster a does not take pods with these labels",
        ),
        *(
            (
                {"enable_controllers": ["ServiceControllers"]},
                waiting_pod("one", volumes=[{"name": "data", **volume}]),
                "Pods with PersistentVolumeClaims are not mirrored to lower cluster a: add PVControllers",
            )
            for volume in _CLAIMING
        ),
    ],
    ids=[
        "kube-system",
        "resource claims",
        "an unreadable selector",
        "namespaces",
        "labels",
        "claims",
        "ephemeral volumes",
    ],
)
async def test_rejects_pods_that_the_virtual_node_would_not_create(config, pod, expected):
    """They would stay Pending forever."""
    answer = await Clusters(**config).filter(pod, "vn-a")
    assert expected in answer.unresolvable["vn-a"]


@pytest.mark.parametrize("controllers", [["PVControllers"], ["PVControllers", "ServiceControllers"]])
async def test_passes_pods_with_claims_if_claims_are_mirrored(controllers):
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    clusters = Clusters(enable_controllers=controllers)
    assert await clusters.passing(waiting_pod("one", volumes=volumes), "vn-a") == ["vn-a"]


async def test_passes_pods_without_claims_if_claims_are_not_mirrored():
    volumes: list[dict[str, Any]] = [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]
    clusters = Clusters(enable_controllers=[])
    assert await clusters.passing(waiting_pod("one", volumes=volumes), "vn-a") == ["vn-a"]


async def test_volumes_are_those_of_the_lower_namespace():
    """The claim of a mapped namespace is bound to the nodes of its lower volume."""
    clusters = Clusters(namespaces=NamespaceConfig(prefix="u1-"))
    elsewhere = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}]
    }
    volume = {
        "metadata": {"name": "v"},
        "spec": {"claimRef": {"namespace": "u1-shop", "name": "data"}, "nodeAffinity": {"required": elsewhere}},
        "status": {"phase": "Bound"},
    }  # fmt: skip
    clusters.agent.state.clusters["a"].feed._volume(from_dict(volume))
    claim = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    answer = await clusters.filter(waiting_pod("one", volumes=claim), "vn-a")
    assert "volume node affinity conflict" in answer.unresolvable["vn-a"]


async def test_anti_affinity_applies_to_lower_namespaces():
    """Two upper clusters have namespaces of the same name, which map to two lower ones."""
    clusters = Clusters(namespaces=NamespaceConfig(prefix="u1-"))
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    clusters.below("stranger", nodeName="a")  # in namespace shop
    assert await clusters.passing(waiting_pod("one", affinity=alone), "vn-a") == ["vn-a"]
    clusters.agent.state.reservations.bind("one", "vn-a")
    assert await clusters.passing(waiting_pod("two", affinity=alone), "vn-a") == []


async def test_rejects_without_waiting_if_no_reservation_is_in_the_way():
    """A waiting filter call delays every later pod."""
    clusters = Clusters()
    clusters.limit_range(min={"cpu": "2"})
    await clusters.filter(
        waiting_pod("other", namespace="other"), "vn-a"
    )  # a reservation that may turn out unused
    loop = asyncio.get_running_loop()
    before = loop.time()
    for pod in (waiting_pod("small"), waiting_pod("daemon", namespace="kube-system")):
        assert await clusters.passing(pod, "vn-a") == []
    assert loop.time() == before


@pytest.mark.parametrize(
    ("marks", "adopt", "passes"),
    [
        (None, False, True),
        ({}, False, False),
        ({}, True, True),
        ({}, ["sh*"], True),
        ({}, ["other"], False),
        ({"labels": {names.LABEL_UPPER_CLUSTER: "id"}}, False, True),
        ({"annotations": {names.ANNOTATION_MADE_FOR: "id/shop"}}, False, True),
        ({"annotations": {names.ANNOTATION_MADE_FOR: "id/other"}}, True, False),
    ],
    ids=[
        "none",
        "not ours",
        "all adopted",
        "adopted",
        "others adopted",
        "ours",
        "ours, label removed",
        "of another",
    ],
)
async def test_rejects_cluster_with_a_namespace_that_must_not_be_used(marks, adopt, passes):
    """The pod would wait with NamespaceNotAdopted or NamespaceConflict, while other clusters take it."""
    clusters = Clusters(namespaces=NamespaceConfig(adopt=adopt))
    if marks is not None:
        clusters.admission.upsert_namespace({"metadata": {"name": "shop", **marks}})
    assert await clusters.passing(waiting_pod("one")) == (["vn-a", "vn-b"] if passes else ["vn-b"])


async def test_rejects_cluster_whose_adopted_namespace_is_mapped_to_another_upper_one():
    """The virtual node uses it for the upper namespace that the map names."""
    clusters = Clusters(namespaces=NamespaceConfig(adopt=True, map={"special": "shop"}))
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]  # it does not exist yet
    clusters.admission.upsert_namespace({"metadata": {"name": "shop"}})
    answer = await clusters.filter(waiting_pod("one"), "vn-a")
    assert "stands for upper namespace special" in answer.unresolvable["vn-a"]
    assert await clusters.passing(waiting_pod("one", namespace="special"), "vn-a") == ["vn-a"]


async def test_no_preemption_for_a_pod_that_admission_refuses():
    """Victims would make room, but the pod would not be created."""
    clusters = Clusters()
    await clusters.filter(waiting_pod("small", "16"), "vn-a")
    clusters.agent.state.reservations.bind("small", "vn-a")
    victims = {"vn-a": protocol.Victims(["small"], 0)}
    assert set(await clusters.extender.preempt(waiting_pod("large", "16"), victims)) == {"vn-a"}
    clusters.quota(used=1)
    assert await clusters.extender.preempt(waiting_pod("large", "16"), victims) == {}


async def test_admission_pass_ignores_quotas_and_limit_ranges():
    """Lower webhooks may change the pod before its quota is checked. The virtual node's own rules still apply."""
    clusters = Clusters(settings={"admission": "Pass"}, namespaces=NamespaceConfig(allowed=["shop"]))
    clusters.quota(used=1)
    clusters.limit_range(min={"cpu": "2"})
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]
    assert await clusters.passing(waiting_pod("two", namespace="other"), "vn-a") == []


async def test_unreadable_rules_are_not_enforced():
    """Their last known state may be outdated."""
    clusters = Clusters()
    clusters.quota(used=1)
    clusters.limit_range(min={"cpu": "2"})
    clusters.admission.unknown |= {"resourcequotas", "limitranges"}
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]


def test_register_grants_the_needed_rights():
    """Exactly these to the read-only account, and at least these to the virtual node's, which is used if there is none."""

    def grants(table):
        return {(right.group, right.full_resource, verb) for right in table for verb in right.verbs}

    ours, theirs = multi_scheduler.program, virtual_node.rights.daemon
    for asked, granted in (
        (ours.LOWER, theirs.LOWER_VIEWER),
        (ours.LOWER_METRICS_API, theirs.LOWER_VIEWER_METRICS_API),
        (ours.LOWER_KUBELETS, theirs.LOWER_VIEWER_KUBELETS),
    ):
        assert grants(asked) == grants(granted)
        assert grants(asked) <= grants(theirs.LOWER)
    assert {verb for _, _, verb in grants(virtual_node.rights.daemon.LOWER_VIEWER)} == {"list", "watch"}
