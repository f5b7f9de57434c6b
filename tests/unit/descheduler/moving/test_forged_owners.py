"""Attacks with owner references: a pod's author can name any owner, even another tenant's ReplicaSet."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model.moving import node_avoidance
from controller_runtime.errors import Unavailable
from descheduler.strategies.duplicates import Duplicates, DuplicatesParams
from tests.unit.descheduler.bodies import pod
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.refusing_clusters import cluster_with, frozen, names_of, process_on

pytestmark = pytest.mark.looptime


def _of_tenant(body: dict[str, Any]) -> dict[str, Any]:
    """Return the pod, moved to the attacker's namespace."""
    body["metadata"]["namespace"] = "tenant"
    return body


async def test_forged_owner_does_not_affect_history_of_real_owner():
    cluster = cluster_with(_of_tenant(pod("forged", owner="victim")))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(60)
        assert list(frozen(cluster)) == ["tenant.victim"]
        victims = node_avoidance.owner_key("default", "victim")
        assert process.mover.memory.frozen(victims) == {}
        assert process.mover.memory.history(victims) is None


async def test_owner_uid_with_invalid_characters_does_not_fail_writes_of_others():
    """The API server would refuse a whole batch for one invalid key."""
    bodies = [
        pod("good", owner="good"),
        *(_of_tenant(pod(f"p{len(uid)}", owner=uid)) for uid in ("a/b", "x" * 300)),
    ]
    cluster = cluster_with(*bodies)
    async with process_on(cluster).running():
        await asyncio.sleep(60)
    assert names_of(cluster) == []
    assert "default.good" in frozen(cluster)


@given(uid=st.text(min_size=1), namespace=st.from_regex(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True))
def test_owner_key_is_valid_config_map_key_for_any_uid(uid, namespace):
    key = node_avoidance.owner_key(namespace, uid)
    assert re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key)
    assert key.partition(".")[0] == namespace


async def test_duplicates_counts_pods_of_one_namespace_only():
    started: dict[str, Any] = {"phase": "Running", "refused_at": None, "owner": "victim"}
    young = "2026-01-01T00:00:00Z"
    bodies = [
        pod("v0", creationTimestamp=young, **started),
        pod("v1", on="b", creationTimestamp=young, **started),
    ]
    old = "2020-01-01T00:00:00Z"
    bodies += [_of_tenant(pod(f"f{n}", creationTimestamp=old, **started)) for n in range(4)]
    cluster = cluster_with(*bodies)
    process = Process(cluster)
    process.add(Duplicates, DuplicatesParams())
    async with process.running():
        await asyncio.sleep(5)
    assert {"v0", "v1"} <= set(names_of(cluster))
    assert cluster.find("pods", "default/v0") is not None


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
@pytest.mark.parametrize("name", ["web/status", "..", "."])
async def test_owner_with_impossible_name_does_not_keep_others(kind, name):
    """Kubernetes only requires that the name in an ownerReference is not empty."""
    ready = {"type": "Ready", "status": "True"}
    bodies = [
        pod(f"p{number}", owner="o", kind=kind, phase="Running", refused_at=None) for number in range(2)
    ]
    for body in bodies:
        body["metadata"]["ownerReferences"][0]["name"] = name
        body["metadata"]["labels"] = {"pod-template-hash": "h"}
        body["status"]["conditions"].append(ready)
    bodies += [
        pod(f"q{number}", owner="q", kind="X", phase="Running", refused_at=None) for number in range(2)
    ]
    cluster = cluster_with(*bodies)
    process = Process(cluster)
    process.add(Duplicates, DuplicatesParams())
    async with process.running():
        await asyncio.sleep(20)
    assert names_of(cluster) == ["p0", "q0"]


async def test_error_for_one_pod_does_not_end_pass():
    bodies = [
        pod(f"{owner}{n}", owner=owner, kind="X", phase="Running", refused_at=None)
        for owner in "pq"
        for n in (0, 1)
    ]
    cluster = cluster_with(*bodies)
    process = Process(cluster)
    process.client.fault = lambda _verb, plural, key: (
        Unavailable("broken", code=500) if (plural, key) == ("pods/eviction", "default/p1") else None
    )
    process.add(Duplicates, DuplicatesParams())
    async with process.running():
        await asyncio.sleep(20)
    assert names_of(cluster) == ["p0", "p1", "q0"]
