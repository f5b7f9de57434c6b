"""Attacks and accidents: two upper namespaces, or two upper clusters, are mapped to one lower namespace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig
from tests import objects
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene, clusters, mirroring

pytestmark = pytest.mark.looptime

BOTH = NamespaceConfig(map={"shop": "both", "market": "both"}, adopt=True)
KEY = "both/db"


def secret(namespace: str, value: str) -> dict[str, Any]:
    """A Secret of one of the two tenants."""
    return objects.secret("db", {"of": value}, namespace=namespace, uid="")


def naming(name: str) -> dict[str, Any]:
    """A spec that mounts a Secret."""
    return {"volumes": [{"name": "v", "secret": {"secretName": name}}]}


@contextlib.asynccontextmanager
async def native_namespace() -> AsyncIterator[Scene]:
    """Map both upper namespaces to an existing lower one."""
    upper, lower = clusters()
    upper.put("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "market"}})
    lower.put("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "both"}})
    async with mirroring(Scene(upper, lower, namespaces=BOTH)) as scene:
        yield scene


async def test_another_tenants_secret_does_not_overwrite_a_copy():
    """Tenant 2 has a Secret of the same name: its pod waits with a reason, tenant 1's copy stays."""
    async with native_namespace() as scene:
        scene.upper.put("secrets", secret("shop", "one"))
        scene.upper.put("secrets", secret("market", "two"))
        scene.bind("one", uid="u-1", **naming("db"))
        await asyncio.sleep(10)
        scene.bind("two", uid="u-2", namespace="market", **naming("db"))
        await asyncio.sleep(120)
        copy = scene.lower.the("secrets", KEY)
        assert copy["data"] == {"of": "one"}
        assert copy["metadata"]["annotations"][names.ANNOTATION_UPPER_NAMESPACE] == "shop"
        assert scene.lower.find("pods", "both/two") is None
        assert [reason for reason, _ in scene.events] == ["DependencyConflict"]


async def test_another_tenants_ended_pod_does_not_delete_a_copy():
    """Tenant 2 no longer references it; nothing of tenant 1 is removed."""
    async with native_namespace() as scene:
        scene.upper.put("secrets", secret("shop", "one"))
        scene.upper.put("secrets", secret("market", "two"))
        scene.bind("one", uid="u-1", **naming("db"))
        await asyncio.sleep(10)
        scene.bind("two", uid="u-2", namespace="market", **naming("db"))
        await asyncio.sleep(10)
        scene.upper.remove("pods", "market/two")
        scene.upper.remove("secrets", "market/db")
        await asyncio.sleep(1200)
        assert scene.lower.asked("delete", "secrets") == []


async def test_copy_with_a_changed_namespace_annotation_is_repaired():
    """Its uid label still names the original."""
    async with native_namespace() as scene:
        scene.upper.put("secrets", secret("shop", "one"))
        scene.bind("one", uid="u-1", **naming("db"))
        await asyncio.sleep(10)
        scene.lower.change(
            "secrets", KEY, metadata={"annotations": {names.ANNOTATION_UPPER_NAMESPACE: "nowhere"}}
        )
        scene.upper.change("secrets", "shop/db", data={"of": "new"})
        await asyncio.sleep(60)
        copy = scene.lower.the("secrets", KEY)
        assert copy["data"] == {"of": "new"}
        assert copy["metadata"]["annotations"][names.ANNOTATION_UPPER_NAMESPACE] == "shop"
