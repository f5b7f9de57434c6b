"""Namespaces share watches and polls evenly, for any number of references."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.store import NamespaceBudget
from virtual_node.controllers.copies.single_objects import (
    ObjectKey,
    ObjectPolls,
    namespace_to_shrink,
    next_namespace,
)


@given(st.lists(st.integers(0, 9), max_size=200), st.integers(0, 20))
def test_watches_become_even_shares(requests, limit):
    """First come, first served until all are used; then each namespace can reach an even share."""
    watches: Counter[str] = Counter()
    for number in [*requests, *(number for number in range(10) for _ in range(limit))]:
        namespace = str(number)
        if watches.total() >= limit:
            largest = namespace_to_shrink(watches, namespace)
            if largest is None:
                continue
            assert watches[largest] > watches[namespace] + 1
            watches[largest] -= 1
        watches[namespace] += 1
        assert watches.total() <= limit
    assert max(watches.values(), default=0) - min(watches[str(number)] for number in range(10)) <= 1


@pytest.mark.parametrize(
    ("queues", "expected"),
    [([("a", 5.0), ("b", 1.0)], "a"),
     ([("a", 11.0), ("b", 9.0), ("c", 1.0)], "b"),
     ([("a", 12.0), ("b", 11.0)], "b")],
)  # fmt: skip
def test_the_namespace_that_is_due_first_is_next(queues, expected):
    assert next_namespace(queues, 10.0) == expected


class Upper:
    """An upper cluster in which every object exists."""

    def __init__(self) -> None:
        self.versions: Counter[tuple[str, str]] = Counter()
        self.reads: Counter[str] = Counter()

    async def get(self, _resource: Any, name: str, *, namespace: str) -> dict[str, Any]:
        """Return an object."""
        self.reads[namespace] += 1
        version = str(self.versions[namespace, name])
        return {"metadata": {"name": name, "namespace": namespace, "uid": "u", "resourceVersion": version}}


@pytest.mark.looptime
async def test_references_of_many_namespaces_do_not_delay_reads_of_another():
    """The attack: 30 namespaces with 300 references each. In one rotation each object is read every 7 minutes."""
    upper = Upper()
    changed: list[ObjectKey] = []
    polls = ObjectPolls(upper, on_change=changed.append, budget=NamespaceBudget(10**6))  # type: ignore[arg-type]
    for namespace in range(30):
        for number in range(300):
            await polls.get(ObjectKey("Secret", f"attacker-{namespace}", str(number)))
    key = ObjectKey("Secret", "victim", "a")
    await polls.get(key)
    task = asyncio.create_task(polls.run())
    for _ in range(3):
        await asyncio.sleep(90)
        upper.versions["victim", "a"] += 1
        changed.clear()
        await asyncio.sleep(75)
        assert changed == [key]
    task.cancel()
    shares = [upper.reads[f"attacker-{namespace}"] for namespace in range(30)]
    assert max(shares) - min(shares) <= 1


@pytest.mark.looptime
async def test_an_object_that_pods_read_often_does_not_delay_others_of_its_namespace():
    """A crashing pod reads its objects at each start."""
    upper = Upper()
    changed: list[ObjectKey] = []
    polls = ObjectPolls(upper, on_change=changed.append, budget=NamespaceBudget(10**6))  # type: ignore[arg-type]
    often, key = ObjectKey("Secret", "shop", "often"), ObjectKey("Secret", "shop", "a")
    for other in (often, key):
        await polls.get(other)
    task = asyncio.create_task(polls.run())
    upper.versions["shop", "a"] += 1
    for _ in range(7):
        await asyncio.sleep(11)
        await polls.get(often)
    assert changed == [key]
    task.cancel()


@pytest.mark.looptime
async def test_a_change_while_a_watch_becomes_a_poll_is_reported():
    """The last state of the watch is compared with the first read."""
    upper = Upper()
    changed: list[ObjectKey] = []
    polls = ObjectPolls(upper, on_change=changed.append, budget=NamespaceBudget(10**6))  # type: ignore[arg-type]
    key = ObjectKey("Secret", "shop", "a")
    await polls.get(key)
    found = polls.peek(key)
    polls.stop(key)
    upper.versions["shop", "a"] += 1
    polls.take_over(key, found)
    assert polls.peek(key) is found
    task = asyncio.create_task(polls.run())
    await asyncio.sleep(75)
    assert changed == [key]
    task.cancel()
