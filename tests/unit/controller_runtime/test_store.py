"""The indexed cache: objects by key, and by values of the indexers."""

from __future__ import annotations

import random

import pytest

from controller_runtime.objects import Object, from_dict
from controller_runtime.store import Store
from tests import objects


def pod(name: str, *, node: str = "", groups: str = "") -> Object:
    """A pod on a node, in groups named by single letters."""
    return from_dict(objects.pod(name, namespace="ns", node=node, labels={"groups": groups}))


def node_of(found: Object) -> list[str]:
    """Index by node; pods without one are not in it."""
    node = found.spec.get("nodeName")
    return [node] if node else []


def test_objects_are_found_by_key() -> None:
    """Put returns the replaced object, remove the removed one; otherwise it is a mapping."""
    store = Store()
    first, second = pod("a"), pod("a")
    assert store.put("ns/a", first) is None
    assert store.put("ns/a", second) is first
    assert store.get("ns/a") is second
    assert (len(store), "ns/a" in store, store.keys(), store.list()) == (1, True, ["ns/a"], [second])
    assert store.remove("ns/a") is second
    assert store.remove("ns/a") is None
    assert store.get("ns/a") is None
    assert (len(store), "ns/a" in store, store.list()) == (0, False, [])


def test_index_follows_changes() -> None:
    """An object moves with its value, and leaves with its removal."""
    store = Store({"node": node_of})
    store.put("ns/a", pod("a"))
    assert store._indexes == {"node": {}}
    store.put("ns/a", pod("a", node="n1"))
    store.put("ns/b", pod("b", node="n1"))
    assert store.index_keys("node", "n1") == ["ns/a", "ns/b"]
    moved = pod("a", node="n2")
    store.put("ns/a", moved)
    assert store.index_keys("node", "n1") == ["ns/b"]
    assert store.by_index("node", "n2") == [moved]
    store.remove("ns/a")
    store.remove("ns/b")
    assert store._indexes == {"node": {}}


def test_unknown_value_and_unknown_index() -> None:
    """An unknown value gives nothing; an undeclared index is an error."""
    store = Store({"node": node_of})
    assert (store.by_index("node", "x"), store.index_keys("node", "x")) == ([], [])
    with pytest.raises(KeyError, match="nodes"):
        store.by_index("nodes", "x")


def test_results_may_be_modified() -> None:
    store = Store({"node": node_of})
    store.put("ns/a", pod("a", node="n1"))
    store.list().clear()
    store.keys().clear()
    store.by_index("node", "n1").clear()
    store.index_keys("node", "n1").clear()
    assert len(store) == len(store.by_index("node", "n1")) == len(store.keys()) == 1


def test_returns_objects_in_the_order_in_which_they_were_stored() -> None:
    """Writes follow this order, so a simulation is the same for every PYTHONHASHSEED."""
    store = Store({"node": node_of})
    names = [f"pod-{number * 7 % 20}" for number in range(20)]
    for name in names:
        store.put(f"ns/{name}", pod(name, node="n1"))
    expected = [f"ns/{name}" for name in names]
    assert store.keys() == store.index_keys("node", "n1") == expected
    assert [found.key for found in store.by_index("node", "n1")] == expected


@pytest.mark.parametrize("seed", range(10))
def test_indexes_agree_with_the_objects(seed: int) -> None:
    """After any changes each index equals a rebuilt one; repeated values count once."""
    chance = random.Random(seed)
    store = Store({"node": node_of, "group": lambda found: found.labels["groups"]})
    for _ in range(300):
        name = chance.choice("abcdef")
        if chance.random() < 0.3:
            store.remove(f"ns/{name}")
        else:
            groups = "".join(chance.choices("xyz", k=chance.randrange(4)))
            store.put(f"ns/{name}", pod(name, node=chance.choice(["", "n1", "n2"]), groups=groups))
        for index, values in (("node", ("n1", "n2")), ("group", "xyz")):
            for value in values:
                expected = {
                    found.key
                    for found in store.list()
                    if value in (node_of(found) if index == "node" else found.labels["groups"])
                }
                assert set(store.index_keys(index, value)) == expected
                assert {found.key for found in store.by_index(index, value)} == expected
