"""Results of namespace selectors are current after every change, and are computed once for all objects."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from controller_runtime.apimachinery.matching import compile_selector
from tests.unit.virtual_node.controllers.copies.follow_setup import Scene
from virtual_node.controllers.copies import surroundings
from virtual_node.controllers.copies.surroundings import SelectedNamespaces
from virtual_node.translate.base.view import MOST_SELECTORS_OF_NAMESPACE

TEAM_A = {"matchLabels": {"team": "a"}}
NOT_A = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}


class Namespaces(dict[str, dict[str, str]]):
    """Upper namespaces with their labels; the selectors get each change."""

    def __init__(self) -> None:
        super().__init__()
        self.selected = SelectedNamespaces(self.get, lambda name: not name.startswith("forbidden"))

    def put(self, name: str, **labels: str) -> None:
        """Create or change a namespace."""
        self[name] = labels
        self.selected.changed(name)

    def remove(self, name: str) -> None:
        """Delete a namespace."""
        del self[name]
        self.selected.changed(name)


def chosen(found: Namespaces, selector: Any) -> list[str] | None:
    """Return the selected namespaces in alphabetical order."""
    names = found.selected.select(selector)
    if names is None:
        return None
    assert len(names) == len(list(names))
    return sorted(names)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the labels of each comparison."""
    calls: list[Any] = []

    def compile_counted(selector: Any) -> Any:
        matches = compile_selector(selector)

        def counts(labels: Any) -> bool:
            calls.append(labels)
            return matches(labels)

        return counts

    monkeypatch.setattr(surroundings, "compile_selector", compile_counted)
    return calls


async def test_result_is_current_after_each_change():
    """Labels change, namespaces appear, disappear and appear again; others reuse their numbers."""
    found = Namespaces()
    for name, team in (("shop", "a"), ("bank", "b"), ("forbidden", "a")):
        found.put(name, team=team)
    assert await found.selected.hold("policy shop/web", "shop", [TEAM_A, NOT_A])
    assert chosen(found, TEAM_A) == ["shop"]
    assert chosen(found, NOT_A) == ["bank"]
    found.put("bank", team="a")
    assert chosen(found, TEAM_A) == ["bank", "shop"]
    found.remove("shop")
    found.put("new", team="b")
    assert chosen(found, TEAM_A) == ["bank"]
    assert chosen(found, NOT_A) == ["new"]
    found.put("shop", team="a")
    assert chosen(found, TEAM_A) == ["bank", "shop"]


@pytest.mark.parametrize("seed", range(20))
async def test_random_changes(seed: int, monkeypatch: pytest.MonkeyPatch):
    """The result is the one of a new evaluation, also if changes were forgotten or happen during an evaluation."""
    monkeypatch.setattr(surroundings, "_MOST_CHANGES", 3)
    monkeypatch.setattr("controller_runtime.util.event_loop._SLICE", -1.0)  # yields after each comparison
    choice, found = random.Random(seed), Namespaces()

    def change() -> None:
        name = f"n{choice.randrange(12)}"
        if name in found and choice.random() < 0.3:
            found.remove(name)
        else:
            found.put(name, team=choice.choice("ab"))

    async def changes() -> None:
        for _ in range(60):
            change()
            await asyncio.sleep(0)

    for _ in range(10):
        change()
    changing = asyncio.create_task(changes())
    for round_number in range(20):
        for selector in (TEAM_A, NOT_A):
            await found.selected.hold(f"{round_number % 3}", "shop", [selector])
            matches = compile_selector(selector)
            assert chosen(found, selector) == sorted(
                name for name, labels in found.items() if matches(labels)
            )
        await asyncio.sleep(0)
    await changing


async def test_equal_selectors_of_many_objects_are_compared_once(monkeypatch: pytest.MonkeyPatch):
    """And after a change of one namespace, once per different selector."""
    calls, found = counted(monkeypatch), Namespaces()
    for number in range(100):
        found.put(f"n{number}", team="a")
    for number in range(50):
        await found.selected.hold(f"p{number}", f"n{number}", [TEAM_A, NOT_A])
        found.selected.select(TEAM_A)
    assert len(calls) == 200
    found.put("n5", team="b")
    for number in range(50):
        await found.selected.hold(f"p{number}", f"n{number}", [TEAM_A, NOT_A])
        found.selected.select(TEAM_A)
    assert len(calls) == 202


async def test_selectors_of_a_namespace_are_limited():
    """Those of other namespaces, and those that other objects of the namespace have, do not count again."""
    found = Namespaces()
    many = [{"matchLabels": {"team": f"t{number}"}} for number in range(MOST_SELECTORS_OF_NAMESPACE)]
    for number, selector in enumerate(many):
        assert await found.selected.hold(f"p{number}", "shop", [selector])
    assert not await found.selected.hold("more", "shop", [many[0], TEAM_A])
    assert chosen(found, many[0]) == []
    assert chosen(found, TEAM_A) is None
    assert await found.selected.hold("other", "bank", [TEAM_A])
    found.selected.release("p7")
    assert await found.selected.hold("more", "shop", [many[0], TEAM_A])
    assert await found.selected.hold("p8", "shop", [NOT_A]), "an object may replace its selector"


async def test_released_selectors_are_forgotten():
    """Also if an object is written again without them."""
    found = Namespaces()
    await found.selected.hold("a", "shop", [TEAM_A, NOT_A])
    await found.selected.hold("b", "shop", [TEAM_A])
    await found.selected.hold("a", "shop", [])
    assert chosen(found, NOT_A) is None
    assert chosen(found, TEAM_A) == []
    found.selected.release("b")
    found.selected.release("b")
    assert not found.selected._entries
    assert not found.selected._held
    assert not found.selected._counts


async def test_numbers_and_changes_do_not_grow():
    """Namespaces come and go."""
    found = Namespaces()
    for number in range(20_000):
        found.put(f"n{number}")
        found.remove(f"n{number}")
    assert len(found.selected._names) == 1
    assert len(found.selected._changes) <= 2000


@pytest.fixture
def _without_garbage_collection() -> Iterator[None]:
    """A collection stops all tasks, the longer the more objects earlier tests have left."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_garbage_collection")
async def test_first_evaluation_lets_other_tasks_run():
    """4,000 namespaces are compared with 20 selectors of 50 requirements."""
    found = Namespaces()
    for number in range(4000):
        found.put(f"n{number}", team="a")
    selectors = [
        {
            "matchExpressions": [
                {"key": f"k{n}", "operator": "NotIn", "values": [f"{number}-{n}"]} for n in range(50)
            ]
        }
        for number in range(20)
    ]
    longest, last = 0.0, time.thread_time()

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    watching = asyncio.create_task(watch())
    cpu = time.thread_time()
    await found.selected.hold("p", "shop", selectors)
    first = time.thread_time() - cpu
    watching.cancel()
    assert longest < max(0.1, first / 3)
    found.put("n7", team="b")
    cpu = time.thread_time()
    await found.selected.hold("p", "shop", selectors)
    assert sum(len(found.selected.select(selector) or ()) for selector in selectors) == 80_000
    assert time.thread_time() - cpu < first / 4


async def test_objects_of_a_namespace_share_the_limit():
    """A policy beyond it is copied without the peer, with an event, and is tried again later."""
    scene = Scene()
    scene.add_pod()
    for number in range(MOST_SELECTORS_OF_NAMESPACE):
        await scene.surroundings.selected.hold(
            f"x{number}", "shop", [{"matchLabels": {"team": f"t{number}"}}]
        )
    peers = [{"namespaceSelector": {"matchLabels": {"team": "other"}}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
    key = scene.add({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]})
    result = await scene.controller.reconcile(key)
    assert result is not None
    assert result.requeue_after == 600
    assert (scene.copy() or {})["spec"]["ingress"] == [{"from": peers[1:]}]
    assert scene.reported[0][0] == "PartlyMirrored"
    scene.surroundings.selected.release("x0")
    assert await scene.controller.reconcile(key) is None
    assert len((scene.copy() or {})["spec"]["ingress"][0]["from"]) == 2
    scene.upper.remove(scene.kind.resource.plural, key)
    await scene.controller.reconcile(key)
    assert not any("networkpolicies" in user for user in scene.surroundings.selected._held)
