"""Informers of a lower cluster keep its data current, or report it as unreliable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ApiError, ConnectionFailed, Forbidden
from controller_runtime.objects import from_dict
from multi_scheduler.state.admission import Admission
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import demand
from multi_scheduler.state.cluster_feed import Feed, shrink_pod
from tests import objects
from tests.fakes.apiserver.client import MemoryClient, refusing, served
from tests.fakes.apiserver.server import Server

pytestmark = pytest.mark.looptime

ON_A = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}]}  # fmt: skip


class _Feeding:
    def __init__(self) -> None:
        self.cluster = Server()
        self.client = MemoryClient(self.cluster)
        self.client.bookmark_seconds = None
        self.client.ends_watches = True
        self.index = ClusterIndex()
        client: Any = self.client
        self.admission = Admission()
        self.changes: list[Any] = []
        self.feed = Feed(
            client,
            self.index,
            self.admission,
            changed=lambda *change: self.changes.append(change),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[_Feeding]:
        task = asyncio.create_task(self.feed.run())
        try:
            await asyncio.sleep(0.1)
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def bookmark(self) -> None:
        self.client.bookmark("nodes", "pods")


def _volume(name: str, *, phase: str = "Bound", affinity: Any = None, claim: str = "data") -> dict[str, Any]:
    spec: dict[str, Any] = {"claimRef": {"namespace": "shop", "name": claim}}
    if affinity:
        spec["nodeAffinity"] = {"required": affinity}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


async def test_silent_cluster_becomes_unreliable():
    """Its room may be taken meanwhile; it is reliable again when it responds."""
    feeding = _Feeding()
    feeding.cluster.put("nodes", objects.node("a"))
    async with feeding.running():
        assert feeding.feed.trouble() == ""
        feeding.client.fault = refusing(ConnectionFailed("cannot connect to 10.0.0.1:6443"))
        feeding.bookmark()  # the watches end with it
        await asyncio.sleep(20)
        assert "no events for 20 s: cannot connect to 10.0.0.1:6443" in feeding.feed.trouble()
        feeding.client.fault = served
        await asyncio.sleep(120)
        assert feeding.feed.trouble() == ""


async def test_pings_cluster_with_a_hanging_watch():
    """A watch without bookmarks proves nothing, but a response does."""
    feeding = _Feeding()
    async with feeding.running():
        await asyncio.sleep(70)
        assert len(feeding.client.asked("get", "ping")) == 0
        await asyncio.sleep(50)
        assert len(feeding.client.asked("get", "ping")) > 0
        assert feeding.feed.trouble() == ""
        feeding.client.fault = refusing(TimeoutError())
        await asyncio.sleep(20)
        assert "no answer" in feeding.feed.trouble()


async def test_refused_access_makes_a_cluster_unreliable():
    """It answers pings, but its data is not updated."""
    feeding = _Feeding()
    async with feeding.running():
        feeding.client.fault = refusing(Forbidden("pods is forbidden", code=403))
        feeding.bookmark()
        await asyncio.sleep(1)

        async def ping(**_: Any) -> None:
            pass

        feeding.client.ping = ping  # type: ignore[method-assign]
        await asyncio.sleep(120)
        assert "pods is forbidden" in feeding.feed.trouble()


async def test_failing_watches_make_a_responding_cluster_unreliable():
    """Its API server responds, but lists of pods fail, so its data gets old."""
    feeding = _Feeding()
    async with feeding.running():

        async def ping(**_: Any) -> None:
            pass

        feeding.client.ping = ping  # type: ignore[method-assign]
        feeding.client.fault = refusing(ApiError("etcd has no leader", code=500))
        feeding.bookmark()
        await asyncio.sleep(40)
        assert feeding.feed.trouble() == ""
        await asyncio.sleep(60)
        assert "etcd has no leader" in feeding.feed.trouble()


async def test_does_not_ping_a_watched_cluster():
    """Bookmarks arrive every minute."""
    feeding = _Feeding()
    async with feeding.running():
        for _ in range(10):
            await asyncio.sleep(60)
            feeding.bookmark()
        assert len(feeding.client.asked("get", "ping")) == 0


def _exceed(feeding: _Feeding) -> None:
    """Let the next object exceed the memory of the cluster's caches."""
    feeding.client.caches = CacheBudget(1, cluster="large")
    feeding.cluster.put("nodes", objects.node("b"))


async def test_a_cluster_with_another_connection_is_read_again():
    """Because the new kubeconfig may lead to another cluster. Nothing of the former one remains."""
    feeding = _Feeding()
    feeding.cluster.put("nodes", objects.node("a"))
    async with feeding.running():
        assert [node.name for node in feeding.index.nodes()] == ["a"]
        other = Server()
        other.put("nodes", objects.node("b"))
        feeding.client.server = other
        for reconnected in feeding.client.reconnected:
            reconnected()
        await asyncio.sleep(1)
        assert [node.name for node in feeding.index.nodes()] == ["b"]
        assert feeding.feed.has_synced
        assert feeding.feed.trouble() == ""


async def test_a_cluster_that_was_too_large_is_used_again_with_its_rules_only(
    monkeypatch: pytest.MonkeyPatch,
):
    """Otherwise pods that a quota refuses would be sent to it while its quotas are being listed."""
    feeding = _Feeding()
    feeding.cluster.put("nodes", objects.node("a"))
    async with feeding.running():
        assert feeding.feed.has_synced
        _exceed(feeding)
        await asyncio.sleep(1)
        assert "raise cacheBytes" in feeding.feed.trouble()
        assert len(feeding.index) == 0
        feeding.client.caches = CacheBudget(0, cluster="large")
        answers, listed = asyncio.Event(), feeding.client.list

        async def slow(resource: Any, *arguments: Any, **options: Any) -> Any:
            if resource is resources.RESOURCE_QUOTAS:
                await answers.wait()
            return await listed(resource, *arguments, **options)

        monkeypatch.setattr(feeding.client, "list", slow)
        await asyncio.sleep(310)
        assert len(feeding.index) == 2
        assert "are being listed" in feeding.feed.trouble()
        answers.set()
        await asyncio.sleep(1)
        assert feeding.feed.trouble() == ""


async def test_claim_uses_the_affinity_of_its_bound_volume():
    """Not of a former volume, because released volumes keep the reference."""
    feeding = _Feeding()
    feeding.cluster.put("persistentvolumes", _volume("old", affinity=ON_A))
    async with feeding.running():
        assert feeding.feed.volume_affinity("shop", "data") == ON_A
        feeding.cluster.put("persistentvolumes", _volume("old", phase="Released", affinity=ON_A))
        feeding.cluster.put("persistentvolumes", _volume("new"))
        await asyncio.sleep(0.1)
        assert feeding.feed.volume_affinity("shop", "data") is None
        feeding.cluster.put("persistentvolumes", _volume("newer", affinity=ON_A))
        await asyncio.sleep(0.1)
        feeding.cluster.remove("persistentvolumes", "old")
        await asyncio.sleep(0.1)
        assert feeding.feed.volume_affinity("shop", "data") == ON_A


async def test_follows_labels_and_deletion_of_pods():
    """Both affect other pods' placement, and neither is in the spec."""
    feeding = _Feeding()
    feeding.cluster.put("nodes", objects.node("a"))
    pod: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "shop", "uid": "p", "labels": {"app": "web"}},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": "Running"},
    }
    feeding.cluster.put("pods", pod)
    async with feeding.running():
        metadata = {**pod["metadata"], "labels": {"app": "db"}}
        feeding.cluster.put("pods", {**pod, "metadata": metadata})
        await asyncio.sleep(0.1)
        placed = feeding.index.placed("p")
        assert placed is not None
        assert placed.labels == {"app": "db"}
        assert not placed.is_ending
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        feeding.cluster.put("pods", {**pod, "metadata": metadata})
        await asyncio.sleep(0.1)
        placed = feeding.index.placed("p")
        assert placed is not None
        assert placed.is_ending


async def test_affinity_sees_labels_of_lower_namespaces():
    """A namespaceSelector of a term reads them."""
    feeding = _Feeding()
    feeding.cluster.put("nodes", objects.node("a"))
    feeding.cluster.put("namespaces", {"metadata": {"name": "shop", "labels": {"team": "red"}}})
    selector = {"matchLabels": {"team": "red"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": selector}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = {
        "metadata": {"name": "p", "namespace": "other", "uid": "p"},
        "spec": {"nodeName": "a", "containers": [], "affinity": affinity},
        "status": {"phase": "Running"},
    }
    feeding.cluster.put("pods", pod)
    wanted = demand({"metadata": {"name": "q", "namespace": "shop"}, "spec": {"containers": []}})
    async with feeding.running():
        assert feeding.index.feasible(wanted) == []
        feeding.cluster.put("namespaces", {"metadata": {"name": "shop", "labels": {"team": "blue"}}})
        await asyncio.sleep(0.1)
        assert feeding.index.feasible(wanted) == [0]


def test_a_large_pod_of_a_lower_user_takes_little_memory():
    """Ten pods with 100,000 labels or terms would fill the memory of their cluster, and end scheduling to it."""
    invented = {f"k{number}": "v" for number in range(20_000)}
    label = {"virtual-node.io/upper-uid": "u1"}
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    huge = {**term, "namespaces": [f"ns-{number}" for number in range(20_000)]}
    rule = "DuringSchedulingIgnoredDuringExecution"
    anti = {
        f"required{rule}": [term] * 3 + [huge] + [term] * 1000,
        f"preferred{rule}": [{"podAffinityTerm": huge}],
    }
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {**invented, **label}},
        "spec": {"nodeName": "n1", "containers": [], "affinity": {"podAntiAffinity": anti}},
    }
    small = shrink_pod(from_dict(pod))
    assert small.memory < 20_000
    assert len(small.labels) == 64
    assert small.labels.items() >= {**label, "k0": "v"}.items()
    assert small.spec["affinity"] == {"podAntiAffinity": {f"required{rule}": [term] * 3}}


@pytest.mark.parametrize(
    ("wanted", "allocated", "actual", "conditions", "counts"),
    [
        ("1", "1", "1", [], 1000),
        ("1", "3", "3", [], 3000),
        ("1", "1", "3", [], 3000),
        ("4", "2", "2", [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}], 4000),
        ("9", "2", "2", [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}], 2000),
    ],
    ids=["settled", "shrinking", "not yet shrunk", "deferred", "infeasible"],
)
async def test_resizing_pod_takes_the_most_it_may_use(wanted, allocated, actual, conditions, counts):
    """The largest of requested, allocated and actual resources, without infeasible requests (KEP-1287)."""
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": wanted}}}]},
        "status": {
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": "c",
                    "allocatedResources": {"cpu": allocated},
                    "resources": {"requests": {"cpu": actual}},
                }
            ],
        },
    }
    assert shrink_pod(from_dict(pod)).spec["requests"] == {"cpu": counts, "pods": 1}
