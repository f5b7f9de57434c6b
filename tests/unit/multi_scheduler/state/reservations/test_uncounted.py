"""Pods of one lower cluster are found without reading those that tenants bind to other or invented nodes."""

from __future__ import annotations

from controller_runtime.objects import Object, from_dict
from multi_scheduler.state.accounting import Uncounted
from multi_scheduler.virtual_node import VirtualNode
from tests import objects


def _pod(uid: str) -> Object:
    return from_dict(objects.pod(uid))


class World:
    """Virtual nodes that are known, and the names that were looked up."""

    def __init__(self, **clusters: str) -> None:
        self.clusters = dict(clusters)
        self.asked: list[str] = []
        self.uncounted = Uncounted(self.find)

    def find(self, name: str) -> VirtualNode | None:
        """Return a node by its name."""
        self.asked.append(name)
        cluster = self.clusters.get(name)
        return VirtualNode(name, cluster, {}, {}, {}) if cluster else None

    def of(self, cluster: str) -> list[str]:
        """Return the UIDs of a cluster's pods."""
        return [pod.uid for pod, _node in self.uncounted.of(cluster)]


def test_pods_are_found_by_the_cluster_of_their_node():
    """Until they are removed."""
    world = World(vn1="a", vn2="a", vn3="b")
    for uid, node in (("1", "vn1"), ("2", "vn2"), ("3", "vn3"), ("4", "vn1"), ("5", "real")):
        world.uncounted.add(_pod(uid), node)
    assert world.of("a") == ["1", "4", "2"]
    assert world.of("b") == ["3"]
    assert not world.of("c")
    world.uncounted.remove("1")
    world.uncounted.remove("1")
    world.uncounted.add(_pod("4"), "vn3")
    assert world.of("a") == ["2"]
    assert world.of("b") == ["3", "4"]


def test_nodes_that_become_known_are_counted():
    """At once if the scheduler offers them; their cluster may change."""
    world = World()
    for number in range(1000):
        world.uncounted.add(_pod(f"x{number}"), f"invented-{number}")
    world.uncounted.add(_pod("1"), "vn1")
    world.clusters["vn1"] = "a"
    world.uncounted.offered(VirtualNode("vn1", "a", {}, {}, {}))
    assert world.of("a") == ["1"]
    world.clusters["vn1"] = "b"
    assert not world.of("a")
    assert world.of("b") == ["1"]
    world.uncounted.add(_pod("2"), "vn2")
    world.clusters["vn2"] = "b"
    for _ in range(11):
        found = world.of("b")
    assert found == ["1", "2"]


def test_invented_nodes_cost_each_call_the_same():
    """However many there are."""
    world = World(vn1="a")
    world.uncounted.add(_pod("1"), "vn1")
    for number in range(5000):
        world.uncounted.add(_pod(f"x{number}"), f"invented-{number}")
    world.asked.clear()
    assert world.of("a") == ["1"]
    assert len(world.asked) == 101
    for number in range(5000):
        world.uncounted.remove(f"x{number}")
    world.uncounted.remove("1")
    assert not world.uncounted._pods
    assert not world.uncounted._node_of
    assert not any(world.uncounted._names.values())


def test_pods_may_be_removed_while_they_are_read():
    """As counting does."""
    world = World(vn1="a", vn2="a")
    for uid, node in (("1", "vn1"), ("2", "vn1"), ("3", "vn2")):
        world.uncounted.add(_pod(uid), node)
    found = []
    for pod, _node in world.uncounted.of("a"):
        world.uncounted.remove(pod.uid)
        found.append(pod.uid)
    assert found == ["1", "2", "3"]
    for uid, node in (("1", "vn1"), ("2", "vn2"), ("3", "vn2")):
        world.uncounted.add(_pod(uid), node)
    found = []
    for pod, _node in world.uncounted.of("a"):
        world.uncounted.remove("2")
        world.uncounted.remove("3")
        found.append(pod.uid)
    assert found == ["1"]
