"""Informers in which the objects of one namespace use limited memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.cache.informer import BoundedInformer, BudgetKey
from controller_runtime.client.collection import ObjectList
from controller_runtime.errors import Unavailable
from controller_runtime.objects import WatchEvent, from_dict
from controller_runtime.store import NamespaceBudget, is_stub
from tests.background import working
from tests.unit.controller_runtime.cache.conftest import Recorder, ScriptedServer
from tests.unit.controller_runtime.cache.test_memory import large

pytestmark = pytest.mark.looptime


def _bounded(server: ScriptedServer) -> tuple[BoundedInformer, NamespaceBudget[BudgetKey]]:
    budget: NamespaceBudget[BudgetKey] = NamespaceBudget(15_000)
    return BoundedInformer(server, resources.PODS, budget=budget), budget  # type: ignore[arg-type]


async def test_handlers_learn_that_a_stub_is_being_deleted(server: ScriptedServer):
    """Its finalizer must be removed, and a stub has no version by which two states differ."""
    server.lists = [([large("a"), large("b")], "1")]
    informer, _ = _bounded(server)
    recorder = Recorder(informer)
    async with working(informer.run()):
        await informer.wait_synced(5)
        cached = {pod.name: is_stub(pod) for pod in informer.store.list()}
        assert cached == {"a": False, "b": True}
        body = large("b", 2).to_dict()
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        feed = await server.watches.get()
        feed.put_nowait([WatchEvent("MODIFIED", from_dict(body))])
        await recorder.until(lambda: recorder.calls[-1][:2] == ("update", "b"))
    (stub,) = (pod for pod in informer.store.list() if is_stub(pod))
    assert stub.metadata.deletion_timestamp


async def test_an_object_that_replaces_another_of_its_name_is_counted(server: ScriptedServer):
    """The handler of the deletion runs after the new object was counted."""
    server.lists = [([large("a")], "1")]
    informer, budget = _bounded(server)
    async with working(informer.run()):
        await informer.wait_synced(5)
        body = large("a", 2).to_dict()
        body["metadata"]["uid"] = "new"
        feed = await server.watches.get()
        feed.put_nowait([WatchEvent("MODIFIED", from_dict(body)), WatchEvent("ADDED", large("b", 3))])
        await asyncio.sleep(1)
        assert budget.stubs("ns") == 1


async def test_the_deletion_of_an_object_that_was_not_cached_is_not_counted(server: ScriptedServer):
    """A list may have removed it before the watch reports its deletion."""
    server.lists = [([], "1")]
    informer, budget = _bounded(server)
    async with working(informer.run()):
        await informer.wait_synced(5)
        feed = await server.watches.get()
        feed.put_nowait([WatchEvent("DELETED", large("gone", 2)), WatchEvent("ADDED", large("a", 3))])
        await asyncio.sleep(1)
        assert budget.stubs("ns") == 0


class _Interrupted(ScriptedServer):
    """A server that fails after the first page of its first list."""

    async def list(self, resource: Any, *, transform: Any = None, **selection: Any) -> ObjectList:
        found = await super().list(resource, transform=transform, **selection)
        if self.listed == 1:
            raise Unavailable("restarting", code=503)
        return found


async def test_objects_of_a_failed_list_that_are_gone_later_are_not_counted():
    """They never were in the cache, so nothing reports their deletion; otherwise their namespace would wait for ever."""
    server = _Interrupted()
    server.lists = [([large("gone"), large("also-gone")], "1"), ([large("a", 2)], "2")]
    informer, budget = _bounded(server)
    async with working(informer.run()):
        await informer.wait_synced(60)
        await server.watches.get()
        assert {key[1] for key in [*budget.counted(), *budget.fitting()]} == {"ns/a"}
    await informer.clear()
    assert not budget.counted()


async def test_an_interrupted_list_counts_nothing_after_clear():
    """The last user of a common cache may stop before the first list is complete."""
    server = _Interrupted()
    server.lists = [([large("gone")], "1"), *[Unavailable("restarting", code=503)] * 100]
    informer, budget = _bounded(server)
    async with working(informer.run()):
        await asyncio.sleep(1)
        assert budget.counted()
    await informer.clear()
    assert not budget.counted()


async def test_informers_of_one_resource_share_a_budget_and_forget_only_own_objects(server: ScriptedServer):
    """Such as those of the pods of two virtual nodes."""
    budget: NamespaceBudget[BudgetKey] = NamespaceBudget(15_000)
    first, second = (
        BoundedInformer(server, resources.PODS, budget=budget, name=name)  # type: ignore[arg-type]
        for name in ("pods-vn1", "pods-vn2")
    )
    server.lists = [([large("a")], "1")]
    async with working(first.run()):
        await first.wait_synced(5)
        server.lists = [([large("b")], "1")]
        async with working(second.run()):
            await second.wait_synced(5)
            assert budget.stubs("ns") == 1
            assert {key[1] for key in budget.counted()} == {"ns/a", "ns/b"}
