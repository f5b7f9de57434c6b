"""The informer of bound pods catches up with the API server, in limited memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.pod import pod_resources
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import Forbidden
from controller_runtime.objects import from_dict
from controller_runtime.store import is_stub
from multi_scheduler.bound_pods import BOUND, bound_pods, caught_up, shrink, stub
from tests import objects
from tests.background import working
from tests.fakes.apiserver.client import MemoryClient, refusing
from tests.fakes.apiserver.server import Server

pytestmark = pytest.mark.looptime


@asynccontextmanager
async def _late(server: Server) -> AsyncIterator[tuple[Any, Informer]]:
    """Run an informer with watches that bring nothing until they are released."""
    client: Any = MemoryClient(server)
    informer = bound_pods(client)
    async with working(informer.run()):
        assert await informer.wait_synced(1)
        client.held.add("pods")
        yield client, informer


@pytest.fixture
def server() -> Server:
    """Return a server with a bound pod and a pod that waits for a node."""
    server = Server(namespaces=("shop",))
    server.put("pods", objects.pod("old", uid="", node="vn"))
    server.put("pods", objects.pod("waiting", uid=""))
    return server


async def test_returns_at_once_without_news(server):
    """Pods without a node do not count. The list is read without a resourceVersion, with the informer's selector."""
    async with _late(server) as (client, informer):
        await caught_up(client, informer)
        assert client.asked("list", "pods") == [BOUND] * 2


async def test_waits_for_pods_that_the_watch_has_not_brought_yet(server):
    """Even if the informer seems current: the API server knows more."""
    async with _late(server) as (client, informer):
        server.bind("shop/waiting", "vn")
        server.put("pods", objects.pod("new", uid="", node="vn"))
        waiting = asyncio.create_task(caught_up(client, informer))
        await asyncio.sleep(20)
        assert not waiting.done()
        client.release("pods")
        await waiting
        assert {pod.name for pod in informer.store.list()} == {"old", "waiting", "new"}


async def test_does_not_wait_for_a_pod_that_is_gone_again(server):
    """The watch brings it and its end at the same time."""
    async with _late(server) as (client, informer):
        server.bind("shop/waiting", "vn")
        waiting = asyncio.create_task(caught_up(client, informer))
        await asyncio.sleep(1)
        server.remove("pods", "shop/waiting")
        client.release("pods")
        await waiting
        assert [pod.name for pod in informer.store.list()] == ["old"]


async def test_pod_of_the_same_name_is_another_pod(server):
    """The informer knows the deleted one, and not its successor."""
    async with _late(server) as (client, informer):
        server.remove("pods", "shop/old")
        server.put("pods", objects.pod("old", uid="", node="vn"))
        waiting = asyncio.create_task(caught_up(client, informer))
        await asyncio.sleep(1)
        assert not waiting.done()
        client.release("pods")
        await waiting


async def test_raises_the_error_of_the_list(server):
    async with _late(server) as (client, informer):
        client.fault = refusing(Forbidden("pods is forbidden", code=403), "pods")
        with pytest.raises(Forbidden):
            await caught_up(client, informer)


_LARGE = "x" * 100_000


def _large(phase: str) -> Any:
    """Return a bound pod with large fields that no decision reads, or that only matter to itself."""
    metadata = {
        "name": "p", "namespace": "shop", "uid": "u", "resourceVersion": "1", "labels": {"app": _LARGE},
        "annotations": {"x": _LARGE, names.ANNOTATION_DIVISION: "a=1"}, "finalizers": ["x/y"],
        "ownerReferences": [{"uid": "rs", "kind": "ReplicaSet", "controller": True}, {"uid": _LARGE}],
    }  # fmt: skip
    container = {"name": "c", "image": _LARGE, "resources": {"requests": {"cpu": "1"}}}
    spec = {"nodeName": "vn", "priority": 7, "containers": [container], "affinity": {"x": _LARGE}}
    return from_dict({"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}})


def test_a_running_pod_is_cached_in_two_kilobytes():
    """With its controller and its own annotations, which the division of ReplicaSets needs."""
    shrunk = shrink(_large("Running"))
    assert shrunk.memory < 2000
    assert shrunk.spec == {"nodeName": "vn", "priority": 7}
    assert shrunk.annotations == {names.ANNOTATION_DIVISION: "a=1"}
    assert [one["uid"] for one in shrunk.metadata.owner_references] == ["rs"]


def test_a_pod_beyond_its_namespaces_limit_still_needs_its_resources():
    """Otherwise other pods would be sent to a lower cluster that has no room for them."""
    reduced = stub(shrink(_large("Pending")))
    assert is_stub(reduced)
    assert reduced.memory < 2000
    assert reduced.status == {"phase": "Pending"}
    resources = {"name": "", "resources": {"requests": {"cpu": "1"}}}
    assert reduced.spec == {"nodeName": "vn", "priority": 7, "containers": [resources]}


_GPU = {"resources": {"requests": {"cpu": "2", "x/gpu": "1"}}}


@pytest.mark.parametrize("name", ["c", "c" * 5000])
def test_a_pod_beyond_its_namespaces_limit_needs_all_that_the_scheduler_counts(name: str):
    """Also of init containers, overhead and pod-level resources, and if there are too many containers to keep each."""
    spec = {
        "nodeName": "vn",
        "overhead": {"memory": "1Gi"},
        "resources": {"requests": {"memory": "3Gi"}},
        "containers": [{"name": name, "resources": {"requests": {name.replace("c", "x/c", 1): "1"}}}],
        "initContainers": [{"name": "s", "restartPolicy": "Always", **_GPU}, {"name": "i", **_GPU}],
    }
    whole = _large("Pending").with_fields(spec=spec)
    reduced = stub(shrink(whole))
    assert pod_resources.pod_requests(reduced.spec) == pod_resources.pod_requests(spec)
    assert is_stub(reduced)


def test_a_pod_with_more_resources_than_a_stub_keeps_needs_those_of_kubernetes():
    requests = {f"{number}.x/{'y' * 60}": "1" for number in range(100)} | {"cpu": "1", "memory": "1Gi"}
    spec = {"nodeName": "vn", "containers": [{"name": "c", "resources": {"requests": requests}}]}
    reduced = stub(shrink(_large("Pending").with_fields(spec=spec)))
    needed = pod_resources.pod_requests(reduced.spec)
    assert (needed["cpu"], needed["memory"], len(needed)) == (1000, 1 << 30, 16)


async def test_large_pods_of_one_namespace_displace_no_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("multi_scheduler.bound_pods.BYTES_PER_NAMESPACE", 500_000)
    server = Server(namespaces=("shop", "quiet"))
    for number in range(10):
        body = _large("Pending").to_dict()
        body["metadata"] = {
            **body["metadata"],
            "name": f"p-{number}",
            "finalizers": [],
            "ownerReferences": [],
        }
        server.put("pods", body)
    server.put(
        "pods", {**objects.pod("q", uid="", node="vn"), "metadata": {"name": "q", "namespace": "quiet"}}
    )
    informer = bound_pods(MemoryClient(server))  # type: ignore[arg-type]
    async with working(informer.run()):
        assert await informer.wait_synced(1)
        cached = informer.store.list()
        assert len(cached) == 11
        assert sum(pod.memory for pod in cached) < 600_000
        assert not any(is_stub(pod) for pod in cached if pod.namespace == "quiet")
