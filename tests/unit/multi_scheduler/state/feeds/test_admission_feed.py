"""Informers of a lower cluster's admission rules, with and without the rights to read them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.errors import ApiError, Forbidden
from controller_runtime.resources import Resource
from multi_scheduler.state.admission import Admission
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster_feed import Feed
from tests.fakes.apiserver.client import MemoryClient, refusing, served
from tests.fakes.apiserver.server import Server

pytestmark = pytest.mark.looptime
RULES = (
    resources.RESOURCE_QUOTAS,
    resources.LIMIT_RANGES,
    resources.PRIORITY_CLASSES,
    resources.NAMESPACES,
)
SPEC: dict[str, Any] = {"containers": [{"name": "c", "resources": {}}]}


class _Following:
    def __init__(self) -> None:
        self.cluster = Server("rules")
        self.client = MemoryClient(self.cluster)
        self.client.bookmark_seconds = None
        self.client.ends_watches = True
        self.admission = Admission()
        client: Any = self.client
        self.feed = Feed(
            client,
            ClusterIndex(),
            self.admission,
            changed=lambda _uid, _key, _lower: None,
        )

    def quota(self, used: str = "1") -> None:
        """A quota of one pod."""
        self.cluster.put(
            "resourcequotas",
            {
                "metadata": {"name": "tight", "namespace": "shop"},
                "status": {"hard": {"pods": "1"}, "used": {"pods": used}},
            },
        )

    def refuse(self, *refused: Resource, error: Exception | None = None) -> None:
        """Refuse access to these resources alone, from the next event of their watches on."""
        plurals = [resource.plural for resource in refused]
        error = error or Forbidden("resourcequotas is forbidden", code=403)
        self.client.fault = refusing(error, *plurals) if plurals else served
        self.client.bookmark(*plurals)

    @property
    def refusal(self) -> str:
        """Return why a pod of the namespace is refused; empty: admitted."""
        return self.admission.admit(SPEC, "shop").refusal

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[_Following]:
        task = asyncio.create_task(self.feed.run())
        try:
            await asyncio.sleep(0.1)
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _unknown(resource: Resource) -> float | None:
    return REGISTRY.get_sample_value(
        "virtual_node_extender_unknown_rules", {"cluster": "rules", "resource": resource.plural}
    )


async def test_quotas_limit_ranges_and_classes_are_followed():
    """When they are added, changed and deleted."""
    following = _Following()
    following.quota()
    async with following.running():
        assert "exceeded quota: tight" in following.refusal
        following.quota("0")
        await asyncio.sleep(0.1)
        assert following.refusal == ""
        limits = {"limits": [{"type": "Container", "min": {"cpu": "1"}}]}
        metadata = {"name": "usual", "namespace": "shop"}
        following.cluster.put("limitranges", {"metadata": metadata, "spec": limits})
        await asyncio.sleep(0.1)
        assert "LimitRange usual" in following.refusal
        following.cluster.remove("limitranges", "shop/usual")
        following.cluster.remove("resourcequotas", "shop/tight")
        following.cluster.put(
            "priorityclasses", {"metadata": {"name": "low"}, "value": 1, "globalDefault": True}
        )
        await asyncio.sleep(0.1)
        assert following.refusal == ""
        assert following.admission._priority_class("") == "low"
        following.cluster.remove("priorityclasses", "low")
        await asyncio.sleep(0.1)
        assert following.admission._priority_class("") == ""


async def test_follows_namespaces_with_their_ownership_marks():
    """A removed mark leaves an empty name; a deleted or unreadable namespace is unknown."""
    following = _Following()
    async with following.running():
        metadata: dict[str, Any] = {"name": "shop"}
        following.cluster.put("namespaces", {"metadata": metadata})
        await asyncio.sleep(0.1)
        assert following.admission.marks("shop") == []
        metadata = {"name": "shop", "labels": {names.LABEL_UPPER_CLUSTER: "id"}}
        following.cluster.put("namespaces", {"metadata": metadata})
        await asyncio.sleep(0.1)
        assert following.admission.marks("shop") == [("id", "")]
        metadata = {"name": "shop", "annotations": {names.ANNOTATION_MADE_FOR: "id/store"}}
        following.cluster.put("namespaces", {"metadata": metadata})
        await asyncio.sleep(0.1)
        assert following.admission.marks("shop") == [("id", "store")]
        following.admission.unknown.add("namespaces")
        assert following.admission.marks("shop") is None
        following.admission.unknown.clear()
        following.cluster.remove("namespaces", "shop")
        await asyncio.sleep(0.1)
        assert following.admission.marks("shop") is None


async def test_cluster_with_unreadable_rules_is_still_used():
    """Its nodes are known; the missing rights are logged once and reported by a metric."""
    following = _Following()
    following.quota()
    following.refuse(*RULES)
    with structlog.testing.capture_logs() as logs:
        async with following.running():
            assert following.feed.trouble() == ""
            assert following.refusal == ""
            await asyncio.sleep(300)
            assert [_unknown(resource) for resource in RULES] == [1, 1, 1, 1]
    logged = [
        line["resource"] for line in logs if "rules of the lower cluster cannot be read" in line["event"]
    ]
    assert sorted(logged) == ["limitranges", "namespaces", "priorityclasses", "resourcequotas"]


async def test_rules_apply_again_after_the_right_is_granted():
    """Without a restart."""
    following = _Following()
    following.quota()
    following.refuse(*RULES)
    async with following.running():
        await asyncio.sleep(30)
        following.refuse()
        await asyncio.sleep(300)
        assert "exceeded quota: tight" in following.refusal
        assert _unknown(resources.RESOURCE_QUOTAS) == 0


async def test_revoked_right_removes_known_quotas():
    """A quota that was exhausted earlier may be free now."""
    following = _Following()
    following.quota()
    async with following.running():
        assert following.refusal != ""
        following.refuse(resources.RESOURCE_QUOTAS)
        await asyncio.sleep(30)
        assert following.refusal == ""
        assert following.feed.trouble() == ""
        following.refuse()
        await asyncio.sleep(300)
        following.quota("2")  # or a bookmark: the watch delivers again
        await asyncio.sleep(10)
        assert "exceeded quota: tight" in following.refusal


async def test_temporary_errors_keep_known_quotas():
    """The last known state is the best guess while the cluster responds."""
    following = _Following()
    following.quota()
    async with following.running():
        following.refuse(resources.RESOURCE_QUOTAS, error=ApiError("etcd is slow", code=500))
        await asyncio.sleep(30)
        assert "exceeded quota: tight" in following.refusal
        assert following.feed.trouble() == ""
