"""The fit agent and lower admission: a pod gets a cluster that admits it, and no quota is reserved twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import multi_scheduler.rights
import virtual_node.rights.daemon
from controller_runtime.api import names
from controller_runtime.api.namespace_map import NamespaceConfig
from controller_runtime.api.policy.config import Policy
from controller_runtime.objects import from_dict
from multi_scheduler.agent import AgentContext, VirtualNode
from multi_scheduler.bound_pods import shrink
from multi_scheduler.config import SchedulerClusterConfig
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.fit.agent import FitAgent
from multi_scheduler.fit.feeds.cluster_feed import shrink_pod

pytestmark = pytest.mark.looptime


class _Directory:
    async def wait(self, _seconds: float) -> bool:
        return True

    def find(self, name: str, _node: Any) -> VirtualNode:
        return VirtualNode(name, name.split("-")[1], {}, {})


class _Clusters:
    """Lower clusters a and b with sixteen cores each."""

    def __init__(self, *, settings: dict[str, str] | None = None, **config: Any) -> None:
        fake: Any = SimpleNamespace(cluster="test")
        lower = {"a": fake, "b": fake}
        clusters = {"a": SchedulerClusterConfig(name="a", kubeconfig="", **config)}
        self.agent = FitAgent(AgentContext("fit", settings or {}, fake, lower, clusters))
        for name in lower:
            node = {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "16", "pods": "99"}}}
            self.agent.indexes[name].upsert_node(node)
            for informer in self.agent.feeds[name].informers:
                informer._synced.set()
        directory: Any = _Directory()
        self.extender = Extender([Weighted("fit", self.agent, 1.0)], directory, upper=fake)
        self.admission = self.agent.admissions["a"]

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
        found: list[str] = (await self.filter(pod, *names)).passing
        return found

    def below(self, uid: str, **spec: Any) -> None:
        """Add a lower pod to cluster a."""
        self.agent.feeds["a"]._pod(self._lower(uid, spec))

    def gone(self, uid: str) -> None:
        """Delete a lower pod of cluster a."""
        self.agent.feeds["a"]._pod_gone(self._lower(uid, {}))

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


def _pod(uid: str, cpu: str = "1", *, namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu} if cpu else {}}}
    metadata = {"name": uid, "namespace": namespace, "uid": uid}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


async def test_rejects_cluster_with_exhausted_quota():
    """Its nodes have room; the reason names namespace and quota, and preemption does not help."""
    clusters = _Clusters()
    clusters.quota(used=1)
    answer = await clusters.filter(_pod("one"))
    assert answer.passing == ["vn-b"]
    assert answer.unresolvable == {
        "vn-a": "lower cluster a, namespace shop: "
        "exceeded quota: tight, requested: pods=1, used: pods=1, limited: pods=1"
    }


async def test_quota_applies_only_to_its_namespace():
    """Pods of other namespaces pass."""
    clusters = _Clusters()
    clusters.quota(used=1)
    assert await clusters.passing(_pod("one", namespace="other"), "vn-a") == ["vn-a"]


async def test_deleted_or_raised_quota_admits():
    """At the next attempt."""
    clusters = _Clusters()
    clusters.quota(used=1)
    assert await clusters.passing(_pod("one"), "vn-a") == []
    clusters.quota(used=1, hard=2)
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    clusters.quota(used=2, hard=2)
    clusters.admission.remove_quota("shop", "tight")
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]


async def test_reserved_pods_count_in_quotas():
    """Two pods compete for the last place; the second one's reason shows the reservation."""
    clusters = _Clusters()
    clusters.quota()
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    clusters.agent.reservations.bind("one", "vn-a")
    answer = await clusters.filter(_pod("two"), "vn-a")
    assert "reserved: pods=1" in answer.unresolvable["vn-a"]


async def test_binding_elsewhere_releases_the_quota_charge():
    """The second pod waits for this instead of being rejected."""
    clusters = _Clusters()
    clusters.quota()
    assert await clusters.passing(_pod("one")) == ["vn-a", "vn-b"]
    asking = asyncio.ensure_future(clusters.passing(_pod("two"), "vn-a"))
    await asyncio.sleep(0.05)
    assert not asking.done()
    clusters.agent.reservations.bind("one", "vn-b")
    assert await asking == ["vn-a"]


async def test_lower_pod_is_charged_by_its_quota_only():
    """Even before it has a node: its room stays reserved, its quota charge does not."""
    clusters = _Clusters()
    clusters.quota(hard=2)
    await clusters.filter(_pod("one", "16"), "vn-a")
    clusters.agent.reservations.bind("one", "vn-a")
    clusters.quota(used=1, hard=2)
    clusters.below("one")
    assert await clusters.passing(_pod("two", "1m", namespace="shop"), "vn-a") == []  # no room
    clusters.below("one", nodeName="elsewhere")
    assert await clusters.passing(_pod("two"), "vn-a") == ["vn-a"]


@pytest.mark.parametrize("spec", [{}, {"nodeName": "a"}])
async def test_pod_counts_once_if_quota_and_pod_watch_are_out_of_step(spec: dict[str, Any]):
    """At any time there is quota for exactly two pods."""
    clusters = _Clusters()
    clusters.quota(hard=2)
    await clusters.filter(_pod("one"), "vn-a")
    clusters.agent.reservations.bind("one", "vn-a")
    clusters.quota(used=1, hard=2)
    assert await clusters.passing(_pod("two"), "vn-a") == ["vn-a"]
    clusters.agent.reservations.bind("two", "vn-a")
    assert await clusters.passing(_pod("three"), "vn-a") == []
    clusters.quota(used=1, hard=2)
    clusters.below("one", **spec)
    assert await clusters.passing(_pod("three"), "vn-a") == []
    clusters.below("two", **spec)
    clusters.quota(used=2, hard=2)
    clusters.quota(used=2, hard=3)
    assert await clusters.passing(_pod("three"), "vn-a") == ["vn-a"]
    clusters.agent.reservations.bind("three", "vn-a")
    assert await clusters.passing(_pod("four"), "vn-a") == []


async def test_unexplained_quota_growth_counts_for_one_second():
    """By then the pod is known; the lower API server refuses pods that passed meanwhile."""
    clusters = _Clusters()
    clusters.quota(hard=2)
    await clusters.filter(_pod("one"), "vn-a")
    clusters.agent.reservations.bind("one", "vn-a")
    clusters.quota(used=1, hard=2)
    await asyncio.sleep(1.1)
    assert await clusters.passing(_pod("two"), "vn-a") == []
    assert clusters.admission._recently_counted._changes == {}


async def test_replacement_pod_waits_for_the_quota_recount():
    """Otherwise the pod would be retried only after five minutes."""
    clusters = _Clusters()
    clusters.quota(used=1)
    clusters.below("old", nodeName="a")
    clusters.gone("old")
    asking = asyncio.ensure_future(clusters.passing(_pod("new"), "vn-a"))
    await asyncio.sleep(0.5)
    assert not asking.done()
    clusters.quota(used=0)
    assert await asking == ["vn-a"]


async def test_pending_quota_recount_delays_calls_briefly():
    """At most a second, and not at all after the recount or for an old deletion."""
    clusters = _Clusters()
    clusters.quota(used=1)
    clusters.gone("old")
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert await clusters.passing(_pod("new"), "vn-a") == []
    assert loop.time() - before == pytest.approx(1)
    clusters.gone("older")
    clusters.quota(used=1)
    before = loop.time()
    assert await clusters.passing(_pod("new"), "vn-a") == []
    assert loop.time() == before


async def test_a_pod_counts_once_for_a_cluster_with_several_virtual_nodes():
    """Only one lower pod will be created."""
    clusters = _Clusters()
    clusters.quota(hard=2)
    assert await clusters.passing(_pod("one"), "vn-a-1", "vn-a-2") == ["vn-a-1", "vn-a-2"]
    assert await clusters.passing(_pod("two"), "vn-a-1") == ["vn-a-1"]
    assert await clusters.passing(_pod("three"), "vn-a-1") == []
    clusters.agent.reservations.narrow("one", {"vn-a-2"})
    assert await clusters.passing(_pod("three"), "vn-a-1") == []


async def test_expired_reservations_release_their_charge():
    """For a pod that was never bound, or is deleted."""
    clusters = _Clusters()
    clusters.quota()
    await clusters.filter(_pod("one"), "vn-a")
    await asyncio.sleep(11)
    clusters.agent.sweep()
    assert await clusters.passing(_pod("two"), "vn-a") == ["vn-a"]
    clusters.agent.reservations.release("two")
    assert clusters.admission._promised == {}


async def test_reservations_count_only_in_quotas_of_their_scope():
    """A reserved batch job takes no quota from pods without a deadline."""
    clusters = _Clusters()
    clusters.quota(scopes=["NotTerminating"])
    assert await clusters.passing(_pod("job", activeDeadlineSeconds=9), "vn-a") == ["vn-a"]
    assert await clusters.passing(_pod("web"), "vn-a") == ["vn-a"]
    assert await clusters.passing(_pod("more"), "vn-a") == []


async def test_pod_bound_by_others_is_charged_until_its_lower_pod_exists():
    """Bound by another scheduler, or by this one before a restart."""
    clusters = _Clusters()
    clusters.quota()
    other = _pod("other", nodeName="vn-a")
    clusters.agent._bound_pods.added(shrink(from_dict({**other, "status": {"phase": "Pending"}})))
    assert await clusters.passing(_pod("one"), "vn-a") == []
    clusters.below("other")
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]


async def test_bound_pod_with_a_lower_pod_is_charged_once():
    """Its quota counts it although it has no node yet."""
    clusters = _Clusters()
    clusters.quota(used=1, hard=2)
    clusters.below("other")
    other = _pod("other", nodeName="vn-a")
    clusters.agent._bound_pods.added(shrink(from_dict({**other, "status": {"phase": "Pending"}})))
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]


async def test_reserves_room_for_a_lower_pod_that_exhausted_its_quota():
    """It exists and waits for a node, so the quota no longer refuses it."""
    clusters = _Clusters()
    clusters.quota(used=1)
    clusters.below("other")
    other = _pod("other", "16", nodeName="vn-a")
    clusters.agent._bound_pods.added(shrink(from_dict({**other, "status": {"phase": "Pending"}})))
    assert await clusters.passing(_pod("one", namespace="free"), "vn-a") == []


async def test_limit_range_defaults_count_as_requests():
    """A container without requests gets a default that no node has room for."""
    clusters = _Clusters()
    clusters.limit_range(defaultRequest={"cpu": "17"}, default={"cpu": "17"})
    answer = await clusters.filter(_pod("one", ""))
    assert answer.passing == ["vn-b"]
    assert "Insufficient cpu" in answer.failed["vn-a"]


async def test_limit_range_defaults_satisfy_a_quota():
    """A quota of cpu refuses pods without requests, unless a limit range adds them."""
    clusters = _Clusters()
    status = {"hard": {"requests.cpu": "2"}, "used": {"requests.cpu": "0"}}
    clusters.admission.upsert_quota({"metadata": {"name": "cpu", "namespace": "shop"}, "status": status})
    answer = await clusters.filter(_pod("one", ""), "vn-a")
    assert "failed quota: cpu: must specify requests.cpu for: c" in answer.unresolvable["vn-a"]
    clusters.limit_range(defaultRequest={"cpu": "2"}, default={"cpu": "2"})
    assert await clusters.passing(_pod("one", ""), "vn-a") == ["vn-a"]
    assert await clusters.passing(_pod("two", ""), "vn-a") == []


async def test_limit_range_refuses_pods_out_of_bounds():
    """The reason names the range."""
    clusters = _Clusters()
    clusters.limit_range(min={"cpu": "2"})
    answer = await clusters.filter(_pod("one"))
    assert answer.passing == ["vn-b"]
    assert "LimitRange usual: minimum cpu usage per Container is 2" in answer.unresolvable["vn-a"]


async def test_pod_passes_if_any_of_several_defaults_admits_it():
    """The lower API server's order is undefined, so the pod must not be rejected forever."""
    clusters = _Clusters()
    clusters.limit_range(name="narrow", default={"cpu": "100m"})
    assert await clusters.passing(_pod("one"), "vn-a") == []
    clusters.limit_range(name="wide", default={"cpu": "2"})
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    clusters.limit_range(name="wide", default={"cpu": "200m"})
    assert await clusters.passing(_pod("one"), "vn-a") == []


async def test_rules_are_those_of_the_lower_namespace():
    """For mapped namespaces, as with two upper clusters in one lower cluster."""
    clusters = _Clusters(namespaces=NamespaceConfig(prefix="u1-", map={"special": "other"}))
    clusters.quota(used=1, namespace="u1-shop")
    assert await clusters.passing(_pod("one")) == ["vn-b"]
    assert await clusters.passing(_pod("two", namespace="special"), "vn-a") == ["vn-a"]
    clusters.quota(used=1, namespace="other")
    assert await clusters.passing(_pod("three", namespace="special"), "vn-a") == []


@pytest.mark.parametrize(
    ("config", "pod", "expected"),
    [
        ({}, _pod("one", namespace="kube-system"), "Pods in kube-system are not mirrored"),
        ({}, _pod("one", resourceClaims=[{"name": "gpu"}]), "Pods with resourceClaims are not mirrored"),
        (
            {},
            {
                **_pod("one"),
                "metadata": {**_pod("one")["metadata"], "annotations": {"clusterSelector": "{nodeSelector"}},
            },
            # Both refusals come from the virtual node; otherwise the pod would fit on any lower node.
            "Annotation clusterSelector: not JSON",
        ),
        (
            {"namespaces": NamespaceConfig(allowed=["team-*"])},
            _pod("one"),
            "Lower cluster a takes no pods of namespace shop",
        ),
        (
            {"pod_selector": {"matchLabels": {"tier": "batch"}}},
            _pod("one"),
            "Lower cluster a does not take pods with these labels",
        ),
    ],
    ids=["kube-system", "resource claims", "an unreadable selector", "namespaces", "labels"],
)
async def test_rejects_pods_that_the_virtual_node_would_not_create(config, pod, expected):
    """They would stay Pending forever."""
    answer = await _Clusters(**config).filter(pod, "vn-a")
    assert expected in answer.unresolvable["vn-a"]


async def test_quotas_use_the_lower_default_priority_class():
    """The virtual node keeps only classes that its policy names."""
    clusters = _Clusters(policy=Policy(priority_classes=["system-*"]))
    expression = {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [expression]})
    gold = _pod("one", priorityClassName="low")
    assert await clusters.passing(gold, "vn-a") == ["vn-a"]
    low = {"metadata": {"name": "low"}, "value": 1, "globalDefault": True}
    clusters.admission.upsert_class(low)
    assert await clusters.passing(gold, "vn-a") == []
    # Of two default classes the lower value wins, as in the apiserver.
    clusters.admission.upsert_class({"metadata": {"name": "lowest"}, "value": 0, "globalDefault": True})
    assert await clusters.passing(gold, "vn-a") == ["vn-a"]
    clusters.admission.remove_class("lowest")
    critical = _pod("two", priorityClassName="system-node-critical")
    assert await clusters.passing(critical, "vn-a") == ["vn-a"]


async def test_volumes_are_those_of_the_lower_namespace():
    """The claim of a mapped namespace is bound to the nodes of its lower volume."""
    clusters = _Clusters(namespaces=NamespaceConfig(prefix="u1-"))
    elsewhere = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}]
    }
    volume = {
        "metadata": {"name": "v"},
        "spec": {"claimRef": {"namespace": "u1-shop", "name": "data"}, "nodeAffinity": {"required": elsewhere}},
        "status": {"phase": "Bound"},
    }  # fmt: skip
    clusters.agent.feeds["a"]._volume(from_dict(volume))
    claim = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    answer = await clusters.filter(_pod("one", volumes=claim), "vn-a")
    assert "volume node affinity conflict" in answer.unresolvable["vn-a"]


async def test_anti_affinity_applies_to_lower_namespaces():
    """Two upper clusters have namespaces of the same name, which map to two lower ones."""
    clusters = _Clusters(namespaces=NamespaceConfig(prefix="u1-"))
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    clusters.below("stranger", nodeName="a")  # in namespace shop
    assert await clusters.passing(_pod("one", affinity=alone), "vn-a") == ["vn-a"]
    clusters.agent.reservations.bind("one", "vn-a")
    assert await clusters.passing(_pod("two", affinity=alone), "vn-a") == []


async def test_rejects_without_waiting_if_no_reservation_is_in_the_way():
    """A waiting filter call delays every later pod."""
    clusters = _Clusters()
    clusters.limit_range(min={"cpu": "2"})
    await clusters.filter(_pod("other", namespace="other"), "vn-a")  # a reservation that may turn out unused
    loop = asyncio.get_running_loop()
    before = loop.time()
    for pod in (_pod("small"), _pod("daemon", namespace="kube-system")):
        assert await clusters.passing(pod, "vn-a") == []
    assert loop.time() == before


async def test_exhausted_quota_rejects_without_waiting():
    """Reservations of other pods of the namespace are elsewhere, and their release would not help."""
    clusters = _Clusters()
    clusters.admission.upsert_quota(
        {
            "metadata": {"name": "tight", "namespace": "shop"},
            "status": {"hard": {"cpu": "10"}, "used": {"cpu": "5"}},
        }
    )
    await clusters.filter(_pod("other"))  # a reservation that may turn out unused
    loop = asyncio.get_running_loop()
    before = loop.time()
    for pod in (_pod("large", "6"), _pod("silent", "")):
        assert await clusters.passing(pod, "vn-a") == []
    assert loop.time() == before


async def test_ignores_priority_class_quotas_while_classes_are_unreadable():
    """The lower cluster may have a default class that the quota does not cover."""
    clusters = _Clusters(policy=Policy(priority_classes=["system-*"]))
    without = {"scopeName": "PriorityClass", "operator": "DoesNotExist"}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [without]})
    assert await clusters.passing(_pod("one"), "vn-a") == []
    clusters.admission.unknown.add("priorityclasses")
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    system = {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [system]})
    assert await clusters.passing(_pod("two", priorityClassName="system-node-critical"), "vn-a") == []


async def test_bound_pod_that_is_not_mirrored_takes_no_room():
    """For example a DaemonSet pod of kube-system that tolerates everything."""
    clusters = _Clusters()
    daemon = _pod("daemon", "16", namespace="kube-system", nodeName="vn-a")
    clusters.agent._bound_pods.added(shrink(from_dict({**daemon, "status": {"phase": "Pending"}})))
    assert await clusters.passing(_pod("one", "16"), "vn-a") == ["vn-a"]


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
    clusters = _Clusters(namespaces=NamespaceConfig(adopt=adopt))
    if marks is not None:
        clusters.admission.upsert_namespace({"metadata": {"name": "shop", **marks}})
    assert await clusters.passing(_pod("one")) == (["vn-a", "vn-b"] if passes else ["vn-b"])


async def test_no_preemption_for_a_pod_that_admission_refuses():
    """Victims would make room, but the pod would not be created."""
    clusters = _Clusters()
    await clusters.filter(_pod("small", "16"), "vn-a")
    clusters.agent.reservations.bind("small", "vn-a")
    victims = {"vn-a": protocol.Victims(["small"], 0)}
    assert set(await clusters.extender.preempt(_pod("large", "16"), victims)) == {"vn-a"}
    clusters.quota(used=1)
    assert await clusters.extender.preempt(_pod("large", "16"), victims) == {}


async def test_admission_pass_ignores_quotas_and_limit_ranges():
    """Lower webhooks may change the pod before its quota is checked. The virtual node's own rules still apply."""
    clusters = _Clusters(settings={"admission": "Pass"}, namespaces=NamespaceConfig(allowed=["shop"]))
    clusters.quota(used=1)
    clusters.limit_range(min={"cpu": "2"})
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    assert await clusters.passing(_pod("two", namespace="other"), "vn-a") == []


async def test_unreadable_rules_are_not_enforced():
    """Their last known state may be outdated."""
    clusters = _Clusters()
    clusters.quota(used=1)
    clusters.limit_range(min={"cpu": "2"})
    clusters.admission.unknown |= {"resourcequotas", "limitranges"}
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]


def test_register_grants_the_needed_rights():
    """Exactly these to the read-only account, and at least these to the virtual node's, which is used if there is none."""

    def grants(table):
        return {(right.group, right.full_resource, verb) for right in table for verb in right.verbs}

    ours, theirs = multi_scheduler.rights, virtual_node.rights.daemon
    for asked, granted in (
        (ours.LOWER, theirs.LOWER_VIEWER),
        (ours.LOWER_METRICS_API, theirs.LOWER_VIEWER_METRICS_API),
        (ours.LOWER_KUBELETS, theirs.LOWER_VIEWER_KUBELETS),
    ):
        assert grants(asked) == grants(granted)
        assert grants(asked) <= grants(theirs.LOWER)
    assert {verb for _, _, verb in grants(virtual_node.rights.daemon.LOWER_VIEWER)} == {"list", "watch"}
