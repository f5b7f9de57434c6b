"""The fit agent and lower quotas: no quota is reserved twice, and each pod is counted once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model.policy.config import Policy
from controller_runtime.objects import from_dict
from multi_scheduler.bound_pods import shrink
from multi_scheduler.state.reservations import ATTEMPT_SECONDS
from tests.unit.multi_scheduler.state.admission.test_admission import Clusters, waiting_pod

pytestmark = pytest.mark.looptime


async def test_rejects_cluster_with_exhausted_quota():
    """Its nodes have room; the reason names namespace and quota, and preemption does not help."""
    clusters = Clusters()
    clusters.quota(used=1)
    answer = await clusters.filter(waiting_pod("one"))
    assert answer.passing == ["vn-b"]
    assert answer.unresolvable == {
        "vn-a": "lower cluster a, namespace shop: "
        "exceeded quota: tight, requested: pods=1, used: pods=1, limited: pods=1"
    }


async def test_quota_applies_only_to_its_namespace():
    """Pods of other namespaces pass."""
    clusters = Clusters()
    clusters.quota(used=1)
    assert await clusters.passing(waiting_pod("one", namespace="other"), "vn-a") == ["vn-a"]


async def test_deleted_or_raised_quota_admits():
    """At the next attempt."""
    clusters = Clusters()
    clusters.quota(used=1)
    assert await clusters.passing(waiting_pod("one"), "vn-a") == []
    clusters.quota(used=1, hard=2)
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]
    clusters.quota(used=2, hard=2)
    clusters.admission.remove_quota("shop", "tight")
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]


async def test_reserved_pods_count_in_quotas():
    """Two pods compete for the last place; the second one's reason shows the reservation."""
    clusters = Clusters()
    clusters.quota()
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]
    clusters.agent.state.reservations.bind("one", "vn-a")
    answer = await clusters.filter(waiting_pod("two"), "vn-a")
    assert "reserved: pods=1" in answer.unresolvable["vn-a"]


async def test_binding_elsewhere_releases_the_quota_charge():
    """The second pod waits for this instead of being rejected."""
    clusters = Clusters()
    clusters.quota()
    assert await clusters.passing(waiting_pod("one")) == ["vn-a", "vn-b"]
    asking = asyncio.ensure_future(clusters.passing(waiting_pod("two"), "vn-a"))
    await asyncio.sleep(0.05)
    assert not asking.done()
    clusters.agent.state.reservations.bind("one", "vn-b")
    assert await asking == ["vn-a"]


async def test_lower_pod_is_charged_by_its_quota_only():
    """Even before it has a node: its room stays reserved, its quota charge does not."""
    clusters = Clusters()
    clusters.quota(hard=2)
    await clusters.filter(waiting_pod("one", "16"), "vn-a")
    clusters.agent.state.reservations.bind("one", "vn-a")
    clusters.quota(used=1, hard=2)
    clusters.below("one")
    assert await clusters.passing(waiting_pod("two", "1m", namespace="shop"), "vn-a") == []  # no room
    clusters.below("one", nodeName="elsewhere")
    assert await clusters.passing(waiting_pod("two"), "vn-a") == ["vn-a"]


@pytest.mark.parametrize("spec", [{}, {"nodeName": "a"}])
async def test_pod_counts_once_if_quota_and_pod_watch_are_out_of_step(spec: dict[str, Any]):
    """At any time there is quota for exactly two pods."""
    clusters = Clusters()
    clusters.quota(hard=2)
    await clusters.filter(waiting_pod("one"), "vn-a")
    clusters.agent.state.reservations.bind("one", "vn-a")
    clusters.quota(used=1, hard=2)
    assert await clusters.passing(waiting_pod("two"), "vn-a") == ["vn-a"]
    clusters.agent.state.reservations.bind("two", "vn-a")
    assert await clusters.passing(waiting_pod("three"), "vn-a") == []
    clusters.quota(used=1, hard=2)
    clusters.below("one", **spec)
    assert await clusters.passing(waiting_pod("three"), "vn-a") == []
    clusters.below("two", **spec)
    clusters.quota(used=2, hard=2)
    clusters.quota(used=2, hard=3)
    assert await clusters.passing(waiting_pod("three"), "vn-a") == ["vn-a"]
    clusters.agent.state.reservations.bind("three", "vn-a")
    assert await clusters.passing(waiting_pod("four"), "vn-a") == []


async def test_unexplained_quota_growth_counts_for_one_second():
    """By then the pod is known; the lower API server refuses pods that passed meanwhile."""
    clusters = Clusters()
    clusters.quota(hard=2)
    await clusters.filter(waiting_pod("one"), "vn-a")
    clusters.agent.state.reservations.bind("one", "vn-a")
    clusters.quota(used=1, hard=2)
    await asyncio.sleep(1.1)
    assert await clusters.passing(waiting_pod("two"), "vn-a") == []
    assert clusters.admission._recently_counted._changes == {}


async def test_replacement_pod_waits_for_the_quota_recount():
    """Otherwise the pod would be retried only after five minutes."""
    clusters = Clusters()
    clusters.quota(used=1)
    clusters.below("old", nodeName="a")
    clusters.gone("old")
    asking = asyncio.ensure_future(clusters.passing(waiting_pod("new"), "vn-a"))
    await asyncio.sleep(0.5)
    assert not asking.done()
    clusters.quota(used=0)
    assert await asking == ["vn-a"]


async def test_pending_quota_recount_delays_calls_briefly():
    """At most a second, and not at all after the recount or for an old deletion."""
    clusters = Clusters()
    clusters.quota(used=1)
    clusters.gone("old")
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert await clusters.passing(waiting_pod("new"), "vn-a") == []
    assert loop.time() - before == pytest.approx(1)
    clusters.gone("older")
    clusters.quota(used=1)
    before = loop.time()
    assert await clusters.passing(waiting_pod("new"), "vn-a") == []
    assert loop.time() == before


async def test_a_pod_counts_once_for_a_cluster_with_several_virtual_nodes():
    """Only one lower pod will be created."""
    clusters = Clusters()
    clusters.quota(hard=2)
    assert await clusters.passing(waiting_pod("one"), "vn-a-1", "vn-a-2") == ["vn-a-1", "vn-a-2"]
    assert await clusters.passing(waiting_pod("two"), "vn-a-1") == ["vn-a-1"]
    assert await clusters.passing(waiting_pod("three"), "vn-a-1") == []
    clusters.agent.state.reservations.narrow("one", {"vn-a-2"})
    assert await clusters.passing(waiting_pod("three"), "vn-a-1") == []


async def test_expired_reservations_release_their_charge():
    """For a pod that was never bound, or is deleted."""
    clusters = Clusters()
    clusters.quota()
    await clusters.filter(waiting_pod("one"), "vn-a")
    await asyncio.sleep(ATTEMPT_SECONDS)
    clusters.agent.state.sweep()
    assert await clusters.passing(waiting_pod("two"), "vn-a") == ["vn-a"]
    clusters.agent.state.reservations.release("two")
    assert clusters.admission._promised == {}


async def test_reservations_count_only_in_quotas_of_their_scope():
    """A reserved batch job takes no quota from pods without a deadline."""
    clusters = Clusters()
    clusters.quota(scopes=["NotTerminating"])
    assert await clusters.passing(waiting_pod("job", activeDeadlineSeconds=9), "vn-a") == ["vn-a"]
    assert await clusters.passing(waiting_pod("web"), "vn-a") == ["vn-a"]
    assert await clusters.passing(waiting_pod("more"), "vn-a") == []


async def test_pod_bound_by_others_is_charged_until_its_lower_pod_exists():
    """Bound by another scheduler, or by this one before a restart."""
    clusters = Clusters()
    clusters.quota()
    other = waiting_pod("other", nodeName="vn-a")
    clusters.agent.state.bound_pods.informer.change(
        "ADDED", shrink(from_dict({**other, "status": {"phase": "Pending"}}))
    )
    assert await clusters.passing(waiting_pod("one"), "vn-a") == []
    clusters.below("other")
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]


async def test_bound_pod_with_a_lower_pod_is_charged_once():
    """Its quota counts it although it has no node yet."""
    clusters = Clusters()
    clusters.quota(used=1, hard=2)
    clusters.below("other")
    other = waiting_pod("other", nodeName="vn-a")
    clusters.agent.state.bound_pods.informer.change(
        "ADDED", shrink(from_dict({**other, "status": {"phase": "Pending"}}))
    )
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]


async def test_reserves_room_for_a_lower_pod_that_exhausted_its_quota():
    """It exists and waits for a node, so the quota no longer refuses it."""
    clusters = Clusters()
    clusters.quota(used=1)
    clusters.below("other")
    other = waiting_pod("other", "16", nodeName="vn-a")
    clusters.agent.state.bound_pods.informer.change(
        "ADDED", shrink(from_dict({**other, "status": {"phase": "Pending"}}))
    )
    assert await clusters.passing(waiting_pod("one", namespace="free"), "vn-a") == []


async def test_quotas_use_the_lower_default_priority_class():
    """The virtual node keeps only classes that its policy names."""
    clusters = Clusters(policy=Policy(priority_classes=["system-*"]))
    expression = {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [expression]})
    gold = waiting_pod("one", priorityClassName="low")
    assert await clusters.passing(gold, "vn-a") == ["vn-a"]
    low = {"metadata": {"name": "low"}, "value": 1, "globalDefault": True}
    clusters.admission.upsert_class(low)
    assert await clusters.passing(gold, "vn-a") == []
    # Of two default classes the lower value wins, as in the apiserver.
    clusters.admission.upsert_class({"metadata": {"name": "lowest"}, "value": 0, "globalDefault": True})
    assert await clusters.passing(gold, "vn-a") == ["vn-a"]
    clusters.admission.remove_class("lowest")
    critical = waiting_pod("two", priorityClassName="system-node-critical")
    assert await clusters.passing(critical, "vn-a") == ["vn-a"]


async def test_exhausted_quota_rejects_without_waiting():
    """Reservations of other pods of the namespace are elsewhere, and their release would not help."""
    clusters = Clusters()
    clusters.admission.upsert_quota(
        {
            "metadata": {"name": "tight", "namespace": "shop"},
            "status": {"hard": {"cpu": "10"}, "used": {"cpu": "5"}},
        }
    )
    await clusters.filter(waiting_pod("other"))  # a reservation that may turn out unused
    loop = asyncio.get_running_loop()
    before = loop.time()
    for pod in (waiting_pod("large", "6"), waiting_pod("silent", "")):
        assert await clusters.passing(pod, "vn-a") == []
    assert loop.time() == before


async def test_ignores_priority_class_quotas_while_classes_are_unreadable():
    """The lower cluster may have a default class that the quota does not cover."""
    clusters = Clusters(policy=Policy(priority_classes=["system-*"]))
    without = {"scopeName": "PriorityClass", "operator": "DoesNotExist"}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [without]})
    assert await clusters.passing(waiting_pod("one"), "vn-a") == []
    clusters.admission.unknown.add("priorityclasses")
    assert await clusters.passing(waiting_pod("one"), "vn-a") == ["vn-a"]
    system = {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
    clusters.quota(used=1, scopeSelector={"matchExpressions": [system]})
    assert await clusters.passing(waiting_pod("two", priorityClassName="system-node-critical"), "vn-a") == []


async def test_bound_pod_that_is_not_mirrored_takes_no_room():
    """For example a DaemonSet pod of kube-system that tolerates everything."""
    clusters = Clusters()
    daemon = waiting_pod("daemon", "16", namespace="kube-system", nodeName="vn-a")
    clusters.agent.state.bound_pods.informer.change(
        "ADDED", shrink(from_dict({**daemon, "status": {"phase": "Pending"}}))
    )
    assert await clusters.passing(waiting_pod("one", "16"), "vn-a") == ["vn-a"]
