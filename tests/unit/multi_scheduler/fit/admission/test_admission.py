"""The fit agent and admission below: a pod goes where it will be let in, and no quota is promised twice."""

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
from multi_scheduler.config import ClusterConfig
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
    """Lower clusters a and b, with sixteen cores each."""

    def __init__(self, *, settings: dict[str, str] | None = None, **config: Any) -> None:
        fake: Any = SimpleNamespace(cluster="test")
        lower = {"a": fake, "b": fake}
        clusters = {"a": ClusterConfig(name="a", kubeconfig="", **config)}
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
        """A lower pod of cluster a is seen."""
        self.agent.feeds["a"]._pod(self._lower(uid, spec))

    def gone(self, uid: str) -> None:
        """One of them is seen no more."""
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


async def test_a_cluster_whose_quota_is_used_up_is_left_out_by_name():
    """Nodes have room there; the reason names namespace and quota, and nobody's end would help."""
    clusters = _Clusters()
    clusters.quota(used=1)
    answer = await clusters.filter(_pod("one"))
    assert answer.passing == ["vn-b"]
    assert answer.unresolvable == {
        "vn-a": "lower cluster a, namespace shop: "
        "exceeded quota: tight, requested: pods=1, used: pods=1, limited: pods=1"
    }


async def test_other_namespaces_are_not_touched():
    """A quota is its namespace's own."""
    clusters = _Clusters()
    clusters.quota(used=1)
    assert await clusters.passing(_pod("one", namespace="other"), "vn-a") == ["vn-a"]


async def test_a_quota_that_is_gone_or_grows_refuses_no_more():
    """At the very next try."""
    clusters = _Clusters()
    clusters.quota(used=1)
    assert await clusters.passing(_pod("one"), "vn-a") == []
    clusters.quota(used=1, hard=2)
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    clusters.quota(used=2, hard=2)
    clusters.admission.remove_quota("shop", "tight")
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]


async def test_what_is_promised_and_has_not_arrived_counts():
    """Two pods ask for the last place: the second is told who is on the way."""
    clusters = _Clusters()
    clusters.quota()
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    clusters.agent.reservations.bind("one", "vn-a")
    answer = await clusters.filter(_pod("two"), "vn-a")
    assert "reserved: pods=1" in answer.unresolvable["vn-a"]


async def test_a_promise_that_is_settled_elsewhere_frees_its_share_at_once():
    """The second waits for that moment instead of being sent away."""
    clusters = _Clusters()
    clusters.quota()
    assert await clusters.passing(_pod("one")) == ["vn-a", "vn-b"]
    asking = asyncio.ensure_future(clusters.passing(_pod("two"), "vn-a"))
    await asyncio.sleep(0.05)
    assert not asking.done()
    clusters.agent.reservations.bind("one", "vn-b")
    assert await asking == ["vn-a"]


async def test_a_pod_that_has_arrived_is_counted_by_its_quota_alone():
    """Also while the lower scheduler looks for its node: the promise of room stays, the one of quota does not."""
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
async def test_a_pod_that_its_quota_reports_before_it_is_seen_counts_once(spec: dict[str, Any]):
    """The quota's watch is ahead of the pods' watch, or behind it: there is room for exactly two pods at any time."""
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


async def test_growth_of_a_quota_by_pods_of_others_offsets_promises_for_a_second_only():
    """Whose pod it was shows by then; the lower API server refuses what was let through meanwhile."""
    clusters = _Clusters()
    clusters.quota(hard=2)
    await clusters.filter(_pod("one"), "vn-a")
    clusters.agent.reservations.bind("one", "vn-a")
    clusters.quota(used=1, hard=2)
    await asyncio.sleep(1.1)
    assert await clusters.passing(_pod("two"), "vn-a") == []
    assert clusters.admission._recently_counted._changes == {}


async def test_a_pod_that_takes_the_place_of_one_that_has_just_gone_waits_until_its_quota_is_counted_again():
    """Nothing in the upper cluster would have it tried once more, for five minutes."""
    clusters = _Clusters()
    clusters.quota(used=1)
    clusters.below("old", nodeName="a")
    clusters.gone("old")
    asking = asyncio.ensure_future(clusters.passing(_pod("new"), "vn-a"))
    await asyncio.sleep(0.5)
    assert not asking.done()
    clusters.quota(used=0)
    assert await asking == ["vn-a"]


async def test_a_quota_that_has_not_counted_the_pod_that_went_holds_nobody_up_for_long():
    """It may be about other pods: a second, and at once when it has been counted or the pod went long ago."""
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
    """It will be created there once."""
    clusters = _Clusters()
    clusters.quota(hard=2)
    assert await clusters.passing(_pod("one"), "vn-a-1", "vn-a-2") == ["vn-a-1", "vn-a-2"]
    assert await clusters.passing(_pod("two"), "vn-a-1") == ["vn-a-1"]
    assert await clusters.passing(_pod("three"), "vn-a-1") == []
    clusters.agent.reservations.narrow("one", {"vn-a-2"})
    assert await clusters.passing(_pod("three"), "vn-a-1") == []


async def test_promises_that_run_out_give_their_share_back():
    """A pod that was never bound, or is gone."""
    clusters = _Clusters()
    clusters.quota()
    await clusters.filter(_pod("one"), "vn-a")
    await asyncio.sleep(11)
    clusters.agent.sweep()
    assert await clusters.passing(_pod("two"), "vn-a") == ["vn-a"]
    clusters.agent.reservations.release("two")
    assert clusters.admission._promised == {}


async def test_only_promises_within_a_quotas_scopes_count_in_it():
    """A batch job on its way takes nothing from those without a deadline."""
    clusters = _Clusters()
    clusters.quota(scopes=["NotTerminating"])
    assert await clusters.passing(_pod("job", activeDeadlineSeconds=9), "vn-a") == ["vn-a"]
    assert await clusters.passing(_pod("web"), "vn-a") == ["vn-a"]
    assert await clusters.passing(_pod("more"), "vn-a") == []


async def test_a_pod_that_somebody_else_has_bound_counts_until_it_has_arrived():
    """Another scheduler, or this one before a restart."""
    clusters = _Clusters()
    clusters.quota()
    other = _pod("other", nodeName="vn-a")
    clusters.agent._bound_pods.added(shrink(from_dict({**other, "status": {"phase": "Pending"}})))
    assert await clusters.passing(_pod("one"), "vn-a") == []
    clusters.below("other")
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]


async def test_a_pod_that_is_below_already_when_it_is_found_bound_is_not_counted_twice():
    """Its quota counts it, though it has no node yet."""
    clusters = _Clusters()
    clusters.quota(used=1, hard=2)
    clusters.below("other")
    other = _pod("other", nodeName="vn-a")
    clusters.agent._bound_pods.added(shrink(from_dict({**other, "status": {"phase": "Pending"}})))
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]


async def test_a_pod_that_has_used_up_the_quota_itself_takes_its_room_all_the_same():
    """It is below and waits for its node; nothing refuses it any more."""
    clusters = _Clusters()
    clusters.quota(used=1)
    clusters.below("other")
    other = _pod("other", "16", nodeName="vn-a")
    clusters.agent._bound_pods.added(shrink(from_dict({**other, "status": {"phase": "Pending"}})))
    assert await clusters.passing(_pod("one", namespace="free"), "vn-a") == []


async def test_defaults_of_a_limit_range_take_room():
    """A container that asks for nothing asks for what it gets: as much as no node has."""
    clusters = _Clusters()
    clusters.limit_range(defaultRequest={"cpu": "17"}, default={"cpu": "17"})
    answer = await clusters.filter(_pod("one", ""))
    assert answer.passing == ["vn-b"]
    assert "Insufficient cpu" in answer.failed["vn-a"]


async def test_defaults_of_a_limit_range_are_what_a_quota_demands():
    """Where a quota of cpu refuses pods without requests, a limit range makes them good."""
    clusters = _Clusters()
    status = {"hard": {"requests.cpu": "2"}, "used": {"requests.cpu": "0"}}
    clusters.admission.upsert_quota({"metadata": {"name": "cpu", "namespace": "shop"}, "status": status})
    answer = await clusters.filter(_pod("one", ""), "vn-a")
    assert "failed quota: cpu: must specify requests.cpu for: c" in answer.unresolvable["vn-a"]
    clusters.limit_range(defaultRequest={"cpu": "2"}, default={"cpu": "2"})
    assert await clusters.passing(_pod("one", ""), "vn-a") == ["vn-a"]
    assert await clusters.passing(_pod("two", ""), "vn-a") == []


async def test_bounds_of_a_limit_range_refuse():
    """With the range's name."""
    clusters = _Clusters()
    clusters.limit_range(min={"cpu": "2"})
    answer = await clusters.filter(_pod("one"))
    assert answer.passing == ["vn-b"]
    assert "LimitRange usual: minimum cpu usage per Container is 2" in answer.unresolvable["vn-a"]


async def test_a_pod_that_gets_in_by_one_of_several_defaults_is_let_in():
    """Which of them the lower API server takes is chance; the same pod must not be kept out for ever."""
    clusters = _Clusters()
    clusters.limit_range(name="narrow", default={"cpu": "100m"})
    assert await clusters.passing(_pod("one"), "vn-a") == []
    clusters.limit_range(name="wide", default={"cpu": "2"})
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    clusters.limit_range(name="wide", default={"cpu": "200m"})
    assert await clusters.passing(_pod("one"), "vn-a") == []


async def test_rules_are_those_of_the_lower_namespace():
    """Where namespaces have other names below, as for two upper clusters in one."""
    clusters = _Clusters(namespaces=NamespaceConfig(prefix="u1-", map={"special": "other"}))
    clusters.quota(used=1, namespace="u1-shop")
    assert await clusters.passing(_pod("one")) == ["vn-b"]
    assert await clusters.passing(_pod("two", namespace="special"), "vn-a") == ["vn-a"]
    clusters.quota(used=1, namespace="other")
    assert await clusters.passing(_pod("three", namespace="special"), "vn-a") == []


@pytest.mark.parametrize(
    ("config", "pod", "told"),
    [
        ({}, _pod("one", namespace="kube-system"), "Pods in kube-system are not mirrored"),
        ({}, _pod("one", resourceClaims=[{"name": "gpu"}]), "Pods with resourceClaims are not mirrored"),
        (
            {},
            {
                **_pod("one"),
                "metadata": {**_pod("one")["metadata"], "annotations": {"clusterSelector": "{nodeSelector"}},
            },
            # The virtual node's own words: both refuse a pod that would otherwise run on any lower node.
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
async def test_what_the_virtual_node_would_not_create_is_not_sent_to_it(config, pod, told):
    """It would stay Pending for ever."""
    answer = await _Clusters(**config).filter(pod, "vn-a")
    assert told in answer.unresolvable["vn-a"]


async def test_the_lower_clusters_default_priority_class_decides_about_its_quotas():
    """The virtual node carries no class but those that its policy names."""
    clusters = _Clusters(policy=Policy(priority_classes=["system-*"]))
    expression = {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [expression]})
    gold = _pod("one", priorityClassName="low")
    assert await clusters.passing(gold, "vn-a") == ["vn-a"]
    low = {"metadata": {"name": "low"}, "value": 1, "globalDefault": True}
    clusters.admission.upsert_class(low)
    assert await clusters.passing(gold, "vn-a") == []
    # Of two defaults the lower one counts, as in the apiserver.
    clusters.admission.upsert_class({"metadata": {"name": "lowest"}, "value": 0, "globalDefault": True})
    assert await clusters.passing(gold, "vn-a") == ["vn-a"]
    clusters.admission.remove_class("lowest")
    critical = _pod("two", priorityClassName="system-node-critical")
    assert await clusters.passing(critical, "vn-a") == ["vn-a"]


async def test_volumes_are_those_of_the_lower_namespace():
    """A claim of a namespace that has another name below is tied to the nodes of the volume that it has there."""
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


async def test_pods_of_two_upper_clusters_with_namespaces_of_one_name_keep_out_of_each_others_way():
    """Anti-affinity is about the lower namespace, and they have two."""
    clusters = _Clusters(namespaces=NamespaceConfig(prefix="u1-"))
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    clusters.below("stranger", nodeName="a")  # in namespace shop
    assert await clusters.passing(_pod("one", affinity=alone), "vn-a") == ["vn-a"]
    clusters.agent.reservations.bind("one", "vn-a")
    assert await clusters.passing(_pod("two", affinity=alone), "vn-a") == []


async def test_a_pod_that_nobodys_promise_keeps_out_is_answered_at_once():
    """A filter call that waits holds up every pod behind it."""
    clusters = _Clusters()
    clusters.limit_range(min={"cpu": "2"})
    await clusters.filter(_pod("other", namespace="other"), "vn-a")  # a promise that may turn out unused
    loop = asyncio.get_running_loop()
    before = loop.time()
    for pod in (_pod("small"), _pod("daemon", namespace="kube-system")):
        assert await clusters.passing(pod, "vn-a") == []
    assert loop.time() == before


async def test_a_pod_whose_quota_is_used_up_without_anybodys_promise_is_answered_at_once():
    """What others of its namespace are promised elsewhere would not help it, nor one that says too little."""
    clusters = _Clusters()
    clusters.admission.upsert_quota(
        {
            "metadata": {"name": "tight", "namespace": "shop"},
            "status": {"hard": {"cpu": "10"}, "used": {"cpu": "5"}},
        }
    )
    await clusters.filter(_pod("other"))  # a promise that may turn out unused
    loop = asyncio.get_running_loop()
    before = loop.time()
    for pod in (_pod("large", "6"), _pod("silent", "")):
        assert await clusters.passing(pod, "vn-a") == []
    assert loop.time() == before


async def test_quotas_of_priority_classes_refuse_nobody_while_the_classes_are_kept_from_us():
    """The lower cluster may have a default class, under which the quota is not about the pod."""
    clusters = _Clusters(policy=Policy(priority_classes=["system-*"]))
    without = {"scopeName": "PriorityClass", "operator": "DoesNotExist"}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [without]})
    assert await clusters.passing(_pod("one"), "vn-a") == []
    clusters.admission.unknown.add("priorityclasses")
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    system = {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [system]})
    assert await clusters.passing(_pod("two", priorityClassName="system-node-critical"), "vn-a") == []


async def test_a_pod_that_was_bound_and_will_not_come_takes_no_room():
    """Such as a daemon of kube-system, that tolerates everything."""
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
async def test_cluster_with_a_namespace_that_must_not_be_used_does_not_fit(marks, adopt, passes):
    """The virtual node would let the pod wait with NamespaceNotAdopted or NamespaceConflict; other clusters take it."""
    clusters = _Clusters(namespaces=NamespaceConfig(adopt=adopt))
    if marks is not None:
        clusters.admission.upsert_namespace({"metadata": {"name": "shop", **marks}})
    assert await clusters.passing(_pod("one")) == (["vn-a", "vn-b"] if passes else ["vn-b"])


async def test_nobody_ends_for_a_pod_that_admission_refuses():
    """Victims would make room, and the pod would not come."""
    clusters = _Clusters()
    await clusters.filter(_pod("small", "16"), "vn-a")
    clusters.agent.reservations.bind("small", "vn-a")
    victims = {"vn-a": protocol.Victims(["small"], 0)}
    assert set(await clusters.extender.preempt(_pod("large", "16"), victims)) == {"vn-a"}
    clusters.quota(used=1)
    assert await clusters.extender.preempt(_pod("large", "16"), victims) == {}


async def test_rules_that_webhooks_below_comply_with_refuse_nobody_where_that_is_said():
    """They change the pod before its quota is asked, and nobody here knows how. The virtual node's own rules stay."""
    clusters = _Clusters(settings={"admission": "Pass"}, namespaces=NamespaceConfig(allowed=["shop"]))
    clusters.quota(used=1)
    clusters.limit_range(min={"cpu": "2"})
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]
    assert await clusters.passing(_pod("two", namespace="other"), "vn-a") == []


async def test_rules_that_are_kept_from_us_are_not_enforced():
    """What was known of them may be long out of date."""
    clusters = _Clusters()
    clusters.quota(used=1)
    clusters.limit_range(min={"cpu": "2"})
    clusters.admission.unknown |= {"resourcequotas", "limitranges"}
    assert await clusters.passing(_pod("one"), "vn-a") == ["vn-a"]


def test_registering_a_lower_cluster_grants_what_is_asked_for():
    """Exactly that to the read-only account, and at least that to the virtual node's, which serves where there is none."""

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
