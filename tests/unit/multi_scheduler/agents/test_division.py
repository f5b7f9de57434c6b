"""The division agent: which cluster passes, what counts, and annotations that have no effect."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.config import Cluster
from clusterset.model import names
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import Object, from_dict
from multi_scheduler.agents.division import DividedPods, DivisionAgent
from multi_scheduler.agents.fit.agent import FitAgent
from multi_scheduler.bound_pods import bound_pods
from multi_scheduler.config import Config
from multi_scheduler.shared import Shared
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.unit.clusterset.model.test_division import HOSTILE
from tests.unit.multi_scheduler.agents.test_scoring_agents import agent
from tests.unit.multi_scheduler.lower_pods import mark_synced

WEIGHTS = "a=3,b=1"


class Scene:
    """Lower clusters a and b, with the agents fit and division, as the extender asks them."""

    def __init__(self, *, cpus: dict[str, int] | None = None, **settings: Any) -> None:
        self.cpus = cpus or {"a": 100, "b": 100}
        self.virtual = [VirtualNode(f"vn-{name}", name, {}, {}) for name in self.cpus]
        fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
        self.events: list[tuple[str, str]] = []
        recorder: Any = SimpleNamespace(
            event=lambda _pod, _kind, reason, text: self.events.append((reason, text))
        )
        directory: Any = SimpleNamespace(
            find=lambda name, _: next((one for one in self.virtual if one.name == name), None)
        )
        config = Config(
            clusters=[Cluster(name=name, kubeconfig="") for name in self.cpus],
            agents=[agent("fit"), agent("division", **settings)],
        )
        self.bound = bound_pods(fake)
        self.bound._synced.set()
        shared = Shared(config, fake, self.bound, recorder, directory=directory)
        for cluster in config.clusters:
            shared.add(cluster, fake)
        self.fit = FitAgent(shared.context(config.agents[0]))
        self.division = DivisionAgent(shared.context(config.agents[1]))
        for name, cpu in self.cpus.items():
            allocatable = {"cpu": str(cpu), "memory": "400Gi", "pods": "1000"}
            self.fit.state.clusters[name].index.upsert_node(
                {"metadata": {"name": f"{name}-0"}, "status": {"allocatable": allocatable}}
            )
        mark_synced(self.fit.state)
        self.reasons: dict[str, str] = {}

    async def place(self, asked: dict[str, Any], *, is_bound: bool = True) -> str:
        """Filter as the extender does, and bind the pod to the first node that is left; return the node or nothing."""
        rejected = await self.fit.filter(asked, self.virtual)
        self.reasons = {**rejected.resolvable, **rejected.unresolvable}
        left = [node for node in self.virtual if node.name not in self.reasons]
        divided = await self.division.filter(asked, left)
        self.reasons |= {**divided.resolvable, **divided.unresolvable}
        left = [node for node in left if node.name not in self.reasons]
        for one in (self.fit, self.division):
            one.filtered(asked, left)
        if left and is_bound:
            self.bind(asked, left[0].name)
        return left[0].name if left else ""

    def bind(self, asked: dict[str, Any], node: str, **metadata: Any) -> Object:
        """Report a pod as bound."""
        body = {"metadata": {**asked["metadata"], **metadata}, "spec": {**asked["spec"], "nodeName": node}}
        pod = from_dict({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"}, **body})
        self.fit.state.reservations.bind(pod.uid, node)
        self.division.pods.changed(pod)
        return pod


def pod(
    uid: str, text: str = WEIGHTS, *, owner: str = "web", namespace: str = "shop", **more: str
) -> dict[str, Any]:
    """Return a pod of one CPU with a division."""
    annotations = {names.ANNOTATION_DIVISION: text}
    annotations |= {f"virtual-node.io/{key.replace('_', '-')}": value for key, value in more.items()}
    return objects.pod(uid, "1", namespace=namespace, annotations=annotations, owner=owner)


async def _places(
    scene: Scene, count: int, text: str = WEIGHTS, *, is_bound: bool = True, **more: str
) -> dict[str, int]:
    found = [await scene.place(pod(f"p{number}", text, **more), is_bound=is_bound) for number in range(count)]
    return {node: found.count(node) for node in sorted(set(found))}


@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "not bound yet"])
async def test_divides_by_weight(is_bound) -> None:
    """Also if the scheduler filters all pods before the first binding is known."""
    scene = Scene()
    assert await _places(scene, 12, is_bound=is_bound) == {"vn-a": 9, "vn-b": 3}
    assert scene.events == []


async def test_divides_by_room_and_by_price() -> None:
    """60 and 20 free CPUs; a price that is three times as high, from the settings or from labels."""
    assert await _places(Scene(cpus={"a": 60, "b": 20}), 16, "room") == {"vn-a": 12, "vn-b": 4}
    priced = Scene(prices={"a": {"cpu": 1}, "b": {"cpu": 3}})
    assert await _places(priced, 8, "price") == {"vn-a": 6, "vn-b": 2}
    priced = Scene(prices={"a": {"cpu": 1}, "b": {"cpu": 3}})
    priced.virtual[1] = VirtualNode("vn-b", "b", {"virtual-node.io/price-cpu": "1"}, {})
    assert await _places(priced, 8, "price") == {"vn-a": 4, "vn-b": 4}
    one = Scene(prices={"a": {"cpu": 1}})
    assert await _places(one, 2, "price") == {"vn-a": 2}
    assert one.reasons["vn-b"].startswith("lower cluster b has no price")
    none = Scene(prices={"a": {"cpu": float("inf")}})
    assert await none.place(pod("new", "price"))
    assert none.events[0][0] == "InvalidDivision"


async def test_full_cluster_spills_over() -> None:
    """Without a maximum skew, the other cluster takes the rest, with an event."""
    scene = Scene(cpus={"a": 2, "b": 100})
    assert await _places(scene, 12) == {"vn-a": 2, "vn-b": 10}
    assert scene.events[-1] == (
        "DivisionExceeded", "Lower cluster b gets more than its share, because a cannot take the pod",
    )  # fmt: skip


async def test_maximum_skew_makes_pods_wait() -> None:
    """Two pods above the share: 1/4 of 5 is 1.25."""
    scene = Scene(cpus={"a": 2, "b": 100})
    assert await _places(scene, 12, division_max_skew="2") == {"": 7, "vn-a": 2, "vn-b": 3}
    assert scene.reasons["vn-b"] == (
        "lower cluster b has 3 of 5 pods, and one more is above its share and the maximum skew of 2 "
        "(annotation virtual-node.io/division); lower cluster a cannot take the pod"
    )


async def test_no_pod_is_preempted_for_nothing() -> None:
    """Where the division would reject the pod afterwards; without a division, or with an invalid one, the victims stay."""
    scene = Scene(cpus={"a": 2, "b": 100})
    await _places(scene, 6, division_max_skew="1")
    a, b = scene.virtual
    for asked, on_a, on_b in (
        (pod("new", division_max_skew="1"), ["v"], None),
        (pod("new"), ["v"], ["v"]),
        (pod("new", "b=1"), None, ["v"]),
        (pod("new", "price"), None, None),
        (pod("new", "room", division_max_skew="1"), ["v"], ["v"]),
        (pod("new", ""), ["v"], ["v"]),
        (pod("new", "a=0"), ["v"], ["v"]),
    ):
        assert await scene.division.preempt(asked, a, ["v"]) == on_a
        assert await scene.division.preempt(asked, b, ["v"]) == on_b


@pytest.mark.looptime
async def test_waits_for_the_list_of_pods() -> None:
    """After a start, all clusters would look empty, and the first pods would go to the cluster with most weight."""
    scene = Scene()
    scene.bound._synced.clear()
    assert scene.division.unready()
    assert await scene.place(pod("1")) == ""
    placing = asyncio.create_task(scene.place(pod("1")))
    await asyncio.sleep(1)
    for number in range(3):
        scene.bind(pod(f"old-{number}"), "vn-a")
    scene.bound._synced.set()
    assert await placing == "vn-b"
    assert not scene.division.unready()


async def test_clusters_without_weight_take_no_pods() -> None:
    """The reason names the annotation."""
    scene = Scene()
    assert await _places(scene, 3, "b=1") == {"vn-b": 3}
    assert scene.reasons == {"vn-a": "lower cluster a is not in annotation virtual-node.io/division"}
    assert scene.division.bars_real_nodes(pod("new"))


async def test_counts_pods_of_one_controller_only() -> None:
    """A new ReplicaSet, and another namespace in which a user forged the controller, begin with no pods."""
    scene = Scene()
    assert await _places(scene, 3) == {"vn-a": 2, "vn-b": 1}
    for other in (pod("new", owner="next"), pod("forged", namespace="other")):
        assert await scene.place(other) == "vn-a"
    assert scene.division.pods.count("shop/web") == {"a": 2, "b": 1}


async def test_deleted_pods_do_not_count() -> None:
    """Neither pods that are being deleted, nor those that a later agent rejected, nor finished ones."""
    scene = Scene()
    first, second = pod("1"), pod("2")
    assert await scene.place(first) == "vn-a"
    scene.bind(first, "vn-a", deletionTimestamp="2026-01-01T00:00:00Z")
    assert scene.division.pods.count("shop/web") == {}
    assert await scene.place(second, is_bound=False) == "vn-a"
    scene.division.filtered(second, [])
    assert scene.division.pods.count("shop/web") == {}
    scene.division.pods.deleted(scene.bind(second, "vn-a"))
    assert not scene.division.pods._bound
    assert not scene.division.pods._on


def test_assumed_pods_expire() -> None:
    """A pod that is never bound counts for a minute."""
    now = [0.0]
    found = DividedPods({"vn-a": "a"}.get, clock=lambda: now[0])
    found.assume("1", "shop/web", "a")
    assert found.count("shop/web") == {"a": 1}
    now[0] = 61.0
    assert found.count("shop/web") == {}
    assert not found._assumed
    assert not found._controller


def test_assumed_pods_of_controllers_that_are_gone_expire() -> None:
    """Users can create and delete pods, each with a new controller, without end."""
    now = [0.0]
    found = DividedPods({"vn-a": "a"}.get, clock=lambda: now[0])
    for number in range(300):
        now[0] += 1.0
        found.assume(f"pod-{number}", f"shop/forged-{number}", "a")
    assert len(found._assumed) == len(found._controller) == 60


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        *((pod("new", text), "annotation virtual-node.io/division: ") for text in HOSTILE),
        (pod("new", division_max_skew="0"), "annotation virtual-node.io/division-max-skew: write a number"),
        (pod("new", "a=1,typo=1"), "annotation virtual-node.io/division: there is no lower cluster typo"),
        (pod("new", owner=""), "annotation virtual-node.io/division: the pod has no controller"),
        (
            pod("new", pod_group="g", min_members="1"),
            "annotation virtual-node.io/division: the pod is in a pod group",
        ),
    ],
)
async def test_unusable_annotation_has_no_effect(asked, why) -> None:
    """It only causes an event that names it."""
    scene = Scene()
    rejected = await scene.division.filter(asked, scene.virtual)
    assert not rejected.resolvable
    assert not rejected.unresolvable
    assert not scene.division.bars_real_nodes(asked)
    [(reason, text)] = scene.events
    assert reason == "InvalidDivision"
    assert text.startswith(f"The division has no effect: {why}")


async def test_pods_without_annotation_are_not_affected() -> None:
    """They are not counted either."""
    scene = Scene()
    asked = pod("new", "")
    await scene.place(asked)
    assert scene.reasons == {}
    assert scene.division.pods.count("shop/web") == {}
