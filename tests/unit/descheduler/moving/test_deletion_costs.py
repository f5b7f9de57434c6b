"""Deletion costs: the pods that a ReplicaSet deletes first, few writes, and costs of users."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import division, names
from controller_runtime.errors import Forbidden, Invalid
from controller_runtime.objects import Object
from descheduler.moving.deletion_costs import DeletionCosts, new_costs
from descheduler.strategies.duplicates import Duplicates, DuplicatesParams
from tests.unit.descheduler.bodies import cached, node, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

COST, WRITTEN = names.ANNOTATION_DELETION_COST, names.ANNOTATION_DELETION_COST_WRITTEN


def _body(name: str, on: str, text: str = "a=3,b=1", **annotations: str) -> dict[str, Any]:
    found = {names.ANNOTATION_DIVISION: text, **annotations}
    return pod(
        name, on=on, owner="web", phase="Running", refused_at=None, annotations=found, uid=f"uid-{name}"
    )


class Pods:
    """Pods of one ReplicaSet, on nodes with the names of their clusters."""

    def __init__(self, text: str, counts: dict[str, int]) -> None:
        self.text = text
        self.pods: dict[str, Object] = {}
        self.made = 0
        for cluster, count in counts.items():
            for _ in range(count):
                self.add(cluster)

    def add(self, cluster: str, **annotations: str) -> None:
        """Add a pod."""
        name = f"p{self.made:03}"
        self.made += 1
        self.pods[name] = cached(_body(name, cluster, self.text, **annotations))

    def write(self) -> int:
        """Write the costs as the descheduler does; return how many."""
        costs = new_costs(list(self.pods.values()), lambda name: name)
        for name, cost in costs.items():
            node_name = (self.pods[name].spec or {})["nodeName"]
            self.pods[name] = cached(
                _body(name, node_name, self.text, **{COST: str(cost), WRITTEN: str(cost)})
            )
        return len(costs)

    def delete(self, count: int) -> dict[str, int]:
        """Delete pods as a ReplicaSet does; return the number of those left by cluster."""
        for _ in range(count):
            del self.pods[min(self.pods, key=lambda name: int(self.pods[name].annotations[COST]))]
        return dict(sorted(Counter((one.spec or {})["nodeName"] for one in self.pods.values()).items()))


def test_scaling_down_keeps_the_weights() -> None:
    """Pods above the share of their cluster are deleted first."""
    found = Pods("a=3,b=1", {"a": 6, "b": 6, "gone": 1})
    assert found.write() == 13
    assert len({one.annotations[COST] for one in found.pods.values()}) == 13
    assert found.delete(1) == {"a": 6, "b": 6}
    assert found.delete(4) == {"a": 6, "b": 2}
    assert found.delete(4) == {"a": 3, "b": 1}
    assert found.write() == 0


def test_room_and_price_keep_the_proportion_of_the_pods() -> None:
    """The descheduler does not know the free room when the pods were placed."""
    found = Pods("room", {"a": 8, "b": 4})
    found.write()
    assert found.delete(6) == {"a": 4, "b": 2}
    assert found.write() == 0


@given(
    counts=st.dictionaries(st.sampled_from("abc"), st.integers(0, 12)),
    text=st.sampled_from(["a=3,b=1", "a=1,b=1,c=7", "room", "d=1"]),
    gone=st.integers(0, 40),
    cluster=st.sampled_from("abcd"),
)
def test_few_pods_are_written_again(counts, text, gone, cluster) -> None:
    """After all costs are written: none without a change, none after a scale-down, one for a new pod by the division."""
    found = Pods(text, counts)
    found.write()
    assert found.write() == 0
    if division.parse({names.ANNOTATION_DIVISION: text}) == division.Division("room", {}):
        return
    found.delete(min(gone, len(found.pods)))
    assert found.write() == 0
    weights = {"a=3,b=1": {"a": 3, "b": 1}, "a=1,b=1,c=7": {"a": 1, "b": 1, "c": 7}}.get(text, {"d": 1})
    here = Counter((one.spec or {})["nodeName"] for one in found.pods.values())
    found.add(cluster)
    if all(one in weights for one in here) and here == _exact(weights, here.total()):
        expected = division.behind(weights, here)[0]
        assert found.write() == 1 or cluster != expected


def _exact(weights: dict[str, int], pods: int) -> Counter[str]:
    return Counter(division.kept(weights, dict.fromkeys(weights, pods))[:pods])


@pytest.mark.parametrize("text", ["-5", "7", "", "x" * 1000, "9" * 10_000])
def test_costs_of_users_are_not_changed(text) -> None:
    """A cost is changed only if the record has the same value."""
    found = Pods("a=3,b=1", {"a": 1})
    found.add("b", **{COST: text, WRITTEN: "999999"})
    found.add("b", **{COST: text})
    assert set(new_costs(list(found.pods.values()), lambda name: name)) == {"p000"}
    found.add("b", **{COST: text, WRITTEN: text})
    assert set(new_costs(list(found.pods.values()), lambda name: name)) == {"p000", "p003"}


@pytest.mark.parametrize("text", ["a=0", "x" * 300_000, "a=1;b=1"])
def test_invalid_divisions_are_ignored(text) -> None:
    """The annotation of another pod of the ReplicaSet is used."""
    found = Pods(text, {"a": 1, "b": 1})
    assert found.write() == 0
    found.text = "b=1"
    found.add("b")
    assert found.write() == 3


def test_thousands_of_invalid_divisions_cost_no_time() -> None:
    """Only the newest pods are searched for a valid division."""
    text = ",".join([*(f"{'a' * 100}{number}=1" for number in range(99)), "!"])
    found = Pods(text, {"a": 5000})
    before = time.process_time()
    assert found.write() == 0
    assert time.process_time() - before < 0.5  # 0.9 s if each is parsed


@pytest.mark.looptime
async def test_large_replica_sets_do_not_delay_others() -> None:
    """A user who changes weights again and again causes a write for each pod."""
    cluster = Cluster()
    cluster.put("nodes", node("a", labels={names.LABEL_LOWER_CLUSTER: "a"}))
    for number in range(1000):
        body = _body(f"p{number:03}", "a")
        body["metadata"]["namespace"] = ("one", "two")[number % 2]
        cluster.put("pods", body)
    small = _body("small", "a")
    small["metadata"]["namespace"] = "zzz"
    cluster.put("pods", small)
    process = Process(cluster, interval=5)
    client: Any = process.client
    written: list[str] = []
    patch = client.patch

    async def noted(resource: Any, name: str, *given: Any, **more: Any) -> Any:
        written.append(name)
        return await patch(resource, name, *given, **more)

    client.patch = noted
    async with process.running():
        task = asyncio.create_task(DeletionCosts(client, view=process.view).run())
        await asyncio.sleep(30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(written) == 1001
    assert written.index("small") < 500


@pytest.mark.looptime
async def test_leader_writes_costs_and_leaves_divided_pods_where_they_are() -> None:
    """Bare pods, pods of other owners and pods of other strategies stay as they are."""
    cluster = Cluster()
    for name in "ab":
        cluster.put("nodes", node(name, labels={names.LABEL_LOWER_CLUSTER: name}))
    for number in range(8):
        cluster.put("pods", _body(f"p{number}", "a" if number < 6 else "b"))
    cluster.put(
        "pods", {**_body("job", "a"), "metadata": {**_body("job", "a")["metadata"], "ownerReferences": []}}
    )
    process = Process(cluster, interval=5)
    process.add(Duplicates, DuplicatesParams())
    client: Any = process.client
    costs = DeletionCosts(client, view=process.view)
    async with process.running():
        task = asyncio.create_task(costs.run())
        await asyncio.sleep(30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert process.client.writes == ["patch pods"] * 8
    found = {one["metadata"]["name"]: one["metadata"]["annotations"] for one in cluster.all("pods")}
    assert COST not in found.pop("job")
    assert all(one[COST] == one[WRITTEN] for one in found.values())
    first = sorted(found, key=lambda name: int(found[name][COST]))[:4]
    assert sorted(name < "p6" for name in first) == [False, True, True, True]


def test_many_clusters_and_pods_block_nothing() -> None:
    """The order of 3,000 pods on as many nodes took ten seconds of the event loop."""
    found = Pods("room", {f"node-{number}": 1 for number in range(3000)})
    began = time.process_time()
    assert found.write() == 0
    assert time.process_time() - began < 2


@pytest.mark.looptime
@pytest.mark.parametrize("error", [Forbidden("no rights"), Invalid("annotations are too long")])
async def test_pods_on_other_nodes_and_refusals_cost_few_requests(error) -> None:
    """Users choose nodeName; a refusal is not repeated for each pod of the ReplicaSet."""
    cluster = Cluster()
    cluster.put("nodes", node("a", labels={names.LABEL_LOWER_CLUSTER: "a"}))
    cluster.put("nodes", {"metadata": {"name": "real", "labels": {}}})
    for number in range(400):
        cluster.put("pods", _body(f"p{number}", ("a", "real", "unknown")[number % 3], "room"))
    process = Process(cluster, interval=5)
    client: Any = process.client
    refused: list[str] = []

    async def refuse(_resource: Any, name: str, *_: Any, **__: Any) -> None:
        refused.append(name)
        raise error

    client.patch = refuse
    async with process.running():
        task = asyncio.create_task(DeletionCosts(client, view=process.view).run())
        await asyncio.sleep(30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(refused) == 1
    assert int(refused[0][1:]) % 3 == 0
