"""Sequences of changes in which a reservation could be forgotten, counted twice, or refuse a pod wrongly. P and Q come first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.objects import from_dict
from multi_scheduler.agents.fit.agent import FitAgent
from multi_scheduler.bound_pods import shrink
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import NotReadyError
from multi_scheduler.state.reservations import Stage
from tests.unit.multi_scheduler.lower_pods import lower_pod, report
from tests.unit.multi_scheduler.state.reservations.scene import Scene, failed, pod

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_lower_scheduler_uses_the_node_that_was_reserved_for_another_pod():
    """k1: P lands on Q's node, so Q gets P's."""
    scene = Scene()
    await scene.place("P")
    await scene.place("Q")
    taken = scene.reserved("Q")
    scene.lower("P", taken)
    assert not await scene.passes(pod("R"))
    assert {taken, scene.reserved("Q")} == {"x", "y"}
    assert scene.events == []


@pytest.mark.parametrize("change", ["cordon", "delete", "native", "shrink", "taint"])
async def test_node_of_a_reservation_no_longer_fits(change):
    """k2, k3, k4, k23: P gets the other node, so R gets none; without another node P is reported and keeps its claim."""
    scene = Scene()
    await scene.place("P")

    def lose(node: str) -> None:
        taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
        {
            "cordon": lambda: scene.node(node, unschedulable=True),
            "delete": lambda: scene.index.remove_node(node),
            "native": lambda: scene.native(node, f"native-{node}"),
            "shrink": lambda: scene.node(node, 3),
            "taint": lambda: scene.node(node, taints=[taint]),
        }[change]()

    first = scene.reserved("P")
    lose(first)
    assert not await scene.passes(pod("R"))
    assert scene.reserved("P") == ({"x", "y"} - {first}).pop()
    assert scene.events == []
    lose(scene.reserved("P"))
    assert not await scene.passes(pod("R"))
    assert scene.events == [("P", "NoLowerRoom")]
    scene.node("z")
    assert not await scene.passes(pod("R"))
    assert scene.reserved("P") == "z"
    assert scene.events == [("P", "NoLowerRoom")], "once for each loss"


async def test_label_of_a_node_is_removed():
    scene = Scene("x")
    selecting = pod("P")
    selecting["metadata"]["annotations"] = {"clusterSelector": '{"nodeSelector": {"disk": "fast"}}'}
    fast = {
        "metadata": {"name": "y", "labels": {"disk": "fast"}},
        "status": {"allocatable": {"cpu": "4", "pods": "9"}},
    }
    scene.index.upsert_node(fast)
    assert await scene.passes(selecting)
    scene.bound(selecting)
    scene.node("y")
    assert await scene.passes(pod("R", "4"))
    assert (scene.reserved("P"), scene.events) == ("", [("P", "NoLowerRoom")])


async def test_bound_pod_waits_for_long():
    """k5: no time limit ends a bound reservation or its quota charge, for example while the virtual node is down."""
    scene = Scene("x")
    quota = {
        "metadata": {"name": "q", "namespace": "store"},
        "status": {"hard": {"pods": "2"}, "used": {"pods": "0"}},
    }
    scene.agent.state.clusters["a"].admission.upsert_quota(quota)
    await scene.place("P")
    await asyncio.sleep(7200)
    scene.agent.state.sweep()
    assert not await scene.passes(pod("R"))
    scene.node("y")
    assert await scene.passes(pod("R"))
    scene.bound(pod("R"))
    scene.node("z")
    assert not await scene.passes(pod("S")), "both pods are charged to the quota of two"


@pytest.mark.parametrize("seconds", [11, 60, 600])
async def test_pod_is_held_before_it_is_bound(seconds):
    """k6: by a Permit plug-in, or in PreBind while a volume is provisioned."""
    scene = Scene("x")
    held = pod("P")
    scene.pending(held)
    assert await scene.passes(held)
    await asyncio.sleep(seconds)
    scene.agent.state.sweep()
    assert not await scene.passes(pod("R"))
    scene.bound(held)
    assert not await scene.passes(pod("R"))


async def test_failed_attempt_releases_its_room():
    """The condition of the pod reports a new failure. One that is older than the attempt does not matter."""
    scene = Scene("x")
    before = pod("P", **failed("0/1 nodes are available"))
    scene.pending(before)
    assert await scene.passes(before)
    scene.pending(pod("P", **failed("0/1 nodes are available")), "MODIFIED")
    assert scene.agent.state.reservations.stage("P") is Stage.TENTATIVE
    scene.pending(pod("P", **failed("a plug-in failed")), "MODIFIED")
    assert await scene.passes(pod("R"))


async def test_attempt_that_may_fail_without_a_sign_holds_room_for_a_short_time():
    """kube-scheduler does not write a condition that is equal to the present one."""
    scene = Scene("x")
    scene.pending(pod("P"))
    assert await scene.passes(pod("P"))
    scene.pending(pod("P", **failed("a plug-in failed")), "MODIFIED")
    assert await scene.passes(pod("P", **failed("a plug-in failed")))
    await asyncio.sleep(11)
    scene.agent.state.sweep()
    assert await scene.passes(pod("R"))


async def test_pod_bound_by_name_to_another_virtual_node_of_the_cluster():
    """k7: R is offered the other virtual node only."""
    scene = Scene("x")
    scene.bound(pod("P"), "vn-2")
    assert not await scene.passes(pod("R"), "vn-1")


async def test_pod_bound_by_name_to_a_full_cluster_gets_the_next_room():
    """k8: its lower pod waits for room, and a pod of a lower user ends."""
    scene = Scene("x")
    scene.native("x")
    scene.bound(pod("P"))
    scene.lower("P")
    scene.agent.state.sweep()
    assert scene.events == [("P", "NoLowerRoom")]
    scene.native("x", kind="DELETED")
    assert not await scene.passes(pod("R"))
    assert scene.reserved("P") == "x"


async def test_restart_with_many_bound_pods():
    """k10: until all of them are counted, no pod is promised room."""
    scene = Scene("x")
    scene.node("x", 100_000)
    for number in range(3000):
        scene.agent.state.bound_pods.informer.change(
            "ADDED", shrink(from_dict(pod(f"P{number}", "1", node="vn-1")))
        )
    passed = 0
    for number in range(1000):
        passed += await scene.passes(pod(f"R{number}", "1"))
        if passed:
            break
    assert len(scene.agent.state.reservations) == 3001
    assert scene.index.used["cpu"] == 3_001_000


async def test_preempting_pod_keeps_the_room_of_its_victims():
    """k11: Q of lower priority is filtered first; a pod of higher priority may still take the room."""
    scene = Scene("x")
    scene.bound(pod("V"))
    scene.lower("V", "x")
    preemptor = pod("P", priority=100)
    found = await scene.extender.preempt(preemptor, {"vn-1": protocol.Victims(["V"], 0)})
    assert list(found["vn-1"].uids) == ["V"]
    scene.pending(pod("P", priority=100, nominatedNodeName="vn-1", **failed("preempts")))
    await asyncio.sleep(60)
    scene.agent.state.sweep()
    assert not await scene.passes(preemptor), "V has not ended"
    scene.bound(pod("V"), kind="DELETED")
    scene.lower("V", "x", "DELETED")
    assert not await scene.passes(pod("Q", priority=1))
    assert await scene.passes(pod("H", priority=1000))
    scene.agent.state.reservations.release("H")
    assert await scene.passes(preemptor)


async def test_preempting_pod_gives_up():
    """Its nominated node is cleared, or it is deleted."""
    scene = Scene("x")
    scene.native("x")
    scene.bound(pod("V"))
    for end in ("cleared", "deleted"):
        preemptor = pod("P", priority=100, nominatedNodeName="vn-1")
        scene.pending(preemptor)  # the multi-scheduler started after the preemption
        scene.agent.state.sweep()
        assert scene.agent.state.reservations.stage("P") is Stage.NOMINATED
        following = asyncio.create_task(scene.agent.attempts.run())
        if end == "cleared":
            scene.pending(pod("P", priority=100), "MODIFIED")
        scene.pending(preemptor, "DELETED")
        await asyncio.sleep(2)
        following.cancel()
        assert scene.agent.state.reservations.stage("P") is None


async def test_scheduler_filters_a_bound_pod_again():
    """k21: it lost the answer to its binding. The reservation stays, and no other node passes."""
    scene = Scene()
    await scene.place("P")
    answer = await scene.extender.filter(protocol.Candidates(pod("P"), ["vn-1", "vn-2"], None))
    assert answer.passing == ["vn-1"]
    await asyncio.sleep(1000)
    scene.agent.state.sweep()
    await scene.place("Q")
    assert not await scene.passes(pod("R"))


async def test_answer_to_the_binding_is_lost_before_the_watch_reports_it():
    """The pod is filtered again as if it were pending, and gets another virtual node; then its binding is reported."""
    scene = Scene("x")
    assert await scene.passes(pod("P"), "vn-1")
    assert await scene.passes(pod("P"), "vn-2")
    scene.bound(pod("P"), "vn-1")
    assert not await scene.passes(pod("R"))
    assert scene.reserved("P", "vn-1") == "x"


@pytest.mark.parametrize(("namespace", "name"), [("team", "P"), ("store", "other")])
async def test_lower_user_writes_the_uid_into_the_label_of_an_own_pod(namespace, name):
    """k22: only the pod with the expected namespace and name is the lower pod of P."""
    scene = Scene("x")
    await scene.place("P")
    scene.lower("P", "elsewhere", namespace=namespace, name=name)
    assert scene.reserved("P") == "x"
    assert not await scene.passes(pod("R"))
    scene.lower("P", "elsewhere", "DELETED", namespace=namespace, name=name)
    assert not await scene.passes(pod("R"))
    scene.lower("P", "x")
    scene.lower("P", "x", "DELETED")
    assert not await scene.passes(pod("R")), "P is still bound, and its lower pod is created again"


async def test_pod_is_deleted_before_it_is_bound():
    """k12: R gets its room as soon as the deletion is certain, although both watches report bound pods in the same way."""
    scene = Scene("x")
    scene.pending(pod("P"))
    assert await scene.passes(pod("P"))
    following = asyncio.create_task(scene.agent.attempts.run())
    asking = asyncio.ensure_future(scene.passes(pod("R")))
    await asyncio.sleep(0.1)
    scene.pending(pod("P"), "DELETED")
    assert await asking
    following.cancel()


async def test_late_watch_does_not_make_a_bound_pod_look_deleted():
    """The watch of pending pods is ahead of the watch of bound pods by a minute."""
    scene = Scene("x")
    scene.pending(pod("P"))
    assert await scene.passes(pod("P"))
    scene.exists = [pod("P", node="vn-1")]
    following = asyncio.create_task(scene.agent.attempts.run())
    scene.pending(pod("P"), "DELETED")
    await asyncio.sleep(60)
    assert not await scene.passes(pod("R"))
    following.cancel()


async def test_binding_without_room_is_refused():
    """The node of the reservation was deleted after the filter, or the process was restarted; the scheduler tries again."""
    scene = Scene("x", binds=True)
    assert await scene.passes(pod("P"))
    scene.index.remove_node("x")
    scene.agent.state.sweep()
    assert "no room is reserved" in await scene.extender.bind("shop", "P", "P", "vn-1")
    scene.created.assert_not_awaited()
    scene.node("x")
    assert await scene.passes(pod("P"))
    assert await scene.extender.bind("shop", "P", "P", "vn-1") == ""
    annotations = scene.created.await_args_list[0].args[1]["metadata"]["annotations"]
    assert annotations == {"virtual-node.io/preferred-node": "x", "virtual-node.io/required-node": "x"}


async def test_pods_of_other_sizes_make_way():
    """Q of two cores is reserved where only P of four fits: a pod that is not bound yet is moved, a bound one is not."""
    for is_bound in (False, True):
        scene = Scene("x", binds=True)
        small = pod("Q", "2")
        assert await scene.passes(small)
        if is_bound:
            assert await scene.extender.bind("shop", "Q", "Q", "vn-1") == ""
        scene.node("y", 2)
        assert await scene.passes(pod("P")) is not is_bound
        assert scene.reserved("Q") == ("x" if is_bound else "y")


async def test_preempt_returns_no_node_without_victims():
    """kube-scheduler fails the whole call otherwise."""

    class Spares(FitAgent):
        async def preempt(self, *_: Any) -> Any:
            return []

    scene = Scene("x")
    scene.agent.__class__ = Spares
    assert await scene.extender.preempt(pod("P", priority=9), {"vn-1": protocol.Victims(["V"], 0)}) == {}


async def test_no_room_is_promised_before_the_upper_pods_are_read():
    """After a restart, a bound pod may be in the list that has not arrived."""
    scene = Scene("x")
    informer = scene.agent.state.bound_pods.informer
    informer._synced.clear()
    with pytest.raises(NotReadyError, match="have not been read yet"):
        await scene.extender.filter(protocol.Candidates(pod("R"), ["vn-1"], None))
    informer.change("ADDED", shrink(from_dict(pod("P", node="vn-1"))))
    informer._synced.set()
    assert not await scene.passes(pod("R"))


async def test_nominated_node_of_a_held_attempt_is_no_preemption():
    """kube-scheduler 1.35 nominates the node of a pod that waits in Permit or PreBind; no other pod may take its room."""
    scene = Scene("x")
    scene.pending(pod("P"))
    assert await scene.passes(pod("P"))
    scene.pending(pod("P", nominatedNodeName="vn-1"), "MODIFIED")
    assert not await scene.passes(pod("H", priority=1000))
    scene.pending(pod("P", nominatedNodeName="vn-1", **failed("a plug-in failed")), "MODIFIED")
    assert await scene.passes(pod("H", priority=1000))


@pytest.mark.parametrize("fails", [False, True])
async def test_group_expires_while_a_member_is_held(fails):
    """The member that is being bound keeps its room; the others lose theirs."""
    scene = Scene("x", "y")
    members = [pod("A"), pod("B")]
    for member in members:
        member["metadata"]["annotations"] = {
            "virtual-node.io/pod-group": "g",
            "virtual-node.io/min-members": "2",
        }
        scene.pending(member)
    assert await scene.passes(members[0])
    if fails:
        again = {**members[0], "status": failed("a plug-in failed")}
        again["metadata"] = {**again["metadata"], "resourceVersion": "later"}
        scene.pending(again, "MODIFIED")
    await asyncio.sleep(61)
    scene.agent.state.sweep()
    free = [await scene.passes(pod(uid)) for uid in ("R", "S")]
    assert free == [True, fails]


async def test_pod_of_a_lower_user_repels_a_pod_from_its_zone():
    """It lands on another node than the reserved one."""
    scene = Scene("x")
    for name in ("x", "y"):
        body = {
            "metadata": {"name": name, "labels": {"zone": "z"}},
            "status": {"allocatable": {"cpu": "4", "pods": "9"}},
        }
        scene.index.upsert_node(body)
    web = pod("P")
    web["metadata"]["labels"] = {"app": "web"}
    assert await scene.passes(web)
    scene.bound(web)
    other = {"x": "y", "y": "x"}[scene.reserved("P")]
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}, "namespaces": ["store"]}
    native = lower_pod("", other, {"cpu": 1000}, name="native", namespace="team")
    spec = {
        **(native.spec or {}),
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
    }
    report(scene.feed, native.with_fields(spec=spec, status={"phase": "Running"}))
    scene.agent.state.sweep()
    assert (scene.reserved("P"), scene.events) == ("", [("P", "NoLowerRoom")])
