"""The API server in memory: the cases that tests/clusters/runtime runs on a real one, and its watches."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime import resources
from controller_runtime.errors import Expired, TooManyRequests
from tests.fakes.apiserver.case_runner import run
from tests.fakes.apiserver.cases import CASES
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server


@pytest.fixture
def server():
    """Return a server with one namespace."""
    return Server(namespaces=["default"])


@pytest.fixture
def client(server):
    """Return a client of it."""
    return MemoryClient(server)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_answers_as_a_real_server(case, client):
    """tests/clusters/runtime/test_preconditions.py runs the same cases on a real server."""
    await run(case, client)


async def test_watch_sees_objects_enter_and_leave_its_selection(server, client):
    """An object that leaves the selection is DELETED, with the version of the change."""
    server.put("configmaps", {"metadata": {"name": "a", "namespace": "default"}})
    found = await client.list(resources.CONFIG_MAPS, label_selector="x in (y, z)")
    watch = client.watch_batches(
        resources.CONFIG_MAPS, resource_version=found.resource_version, label_selector="x in (y, z)"
    )
    for labels in ({"x": "y"}, {"x": "z"}, {"x": "other"}):
        server.change("configmaps", "default/a", metadata={"labels": labels})
    (batch,) = [await anext(watch)]
    await watch.aclose()
    assert [event.type for event in batch] == ["ADDED", "MODIFIED", "DELETED"]
    assert batch[-1].object.metadata.resource_version == str(server.version)


async def test_watch_from_a_compacted_version_expires(server, client):
    """The watch fails with 410."""
    server.floor = server.version
    with pytest.raises(Expired):
        await anext(client.watch_batches(resources.PODS, resource_version="1"))


@pytest.mark.looptime
async def test_idle_watch_brings_bookmarks(server, client):
    """A bookmark carries the newest version, that of another resource too."""
    watch = client.watch_batches(resources.PODS, resource_version=str(server.version))
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(1)
    server.put("secrets", {"metadata": {"name": "a", "namespace": "default"}})
    (event,) = await waiting
    await watch.aclose()
    assert (event.type, event.object.metadata.resource_version) == ("BOOKMARK", str(server.version))


async def test_lists_page_by_page(server):
    """The token of a page is empty after the last one."""
    for number in range(5):
        server.put("configmaps", {"metadata": {"name": f"c{number}", "namespace": "default"}})
    pages, token = [], ""
    while True:
        found, _version, token = server.page("configmaps", lambda _body: True, limit=2, after=token)
        pages.append([item.name for item in found])
        if not token:
            break
    assert pages == [["c0", "c1"], ["c2", "c3"], ["c4"]]


async def test_budget_refuses_eviction(server, client):
    """The answer is 429."""
    metadata = {"name": "p", "namespace": "default", "labels": {"app": "a"}}
    server.put("pods", {"metadata": metadata, "spec": {}})
    server.put(
        "poddisruptionbudgets",
        {
            "metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": {"disruptionsAllowed": 0},
        },
    )
    with pytest.raises(TooManyRequests):
        await client.create(resources.PODS, {}, name="p", namespace="default", subresource="eviction")
