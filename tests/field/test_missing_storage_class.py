"""A claim whose StorageClass only the upper cluster has: the claim and ``diagnose`` name the class."""

from __future__ import annotations

import pytest

from hack.sandbox import Cluster
from tests.clusters.descheduler.setup import command
from tests.clusters.pods.test_volumes import claim, storage_class
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import create, eventually, get

pytestmark = pytest.mark.e2e
_CLASS = "only-upper"


async def test_missing_storage_class_is_named(upper: Cluster, namespace: str):
    await upper.apply(storage_class(_CLASS, "test/only-upper"))
    try:
        made = pod("db", "sleep 3600", node=SIMULATED)
        made["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await create(upper, namespace, claim("data", _CLASS), made)

        async def is_named() -> bool:
            events = (await get(upper, namespace, "events"))["items"]
            return any(f"has no StorageClass {_CLASS}" in one["message"] for one in events)

        await eventually(is_named, what="the claim's event names the class")
        code, text = await command(upper, "diagnose", "pod", "db", f"--namespace={namespace}")
        assert code == 1
        assert f"has no StorageClass {_CLASS}" in text
        assert f"create StorageClass {_CLASS} in lower cluster lower2" in text
    finally:
        await upper.kubectl("delete", "storageclass", _CLASS)
