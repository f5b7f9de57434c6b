"""Attacks with owner references: a pod's author can name any owner, another tenant's ReplicaSet among them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.api import node_avoidance
from descheduler.strategies.duplicates import Duplicates, DuplicatesParams
from tests.unit.descheduler.bodies import pod
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.refusing_clusters import cluster_with, frozen, names_of, process_on

pytestmark = pytest.mark.looptime


def _of_tenant(body: dict[str, Any]) -> dict[str, Any]:
    """The same pod in the attacker's namespace."""
    body["metadata"]["namespace"] = "tenant"
    return body


async def test_owner_of_another_namespace_is_not_frozen_nor_counted():
    """A stuck pod that names a victim's owner says nothing about the victim's pods."""
    cluster = cluster_with(_of_tenant(pod("forged", owner="victim")))
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(60)
        assert list(frozen(cluster)) == ["tenant.victim"]
        victims = node_avoidance.owner_key("default", "victim")
        assert process.memory.frozen(victims) == {}
        assert process.memory.history(victims) is None


async def test_owner_uid_that_is_no_key_does_not_spoil_the_writes_of_others():
    """Changes of several owners are one request, which the API server refuses as a whole for one bad key."""
    bodies = [
        pod("good", owner="good"),
        *(_of_tenant(pod(f"p{uid}", owner=uid)) for uid in ("a/b", "x" * 300)),
    ]
    cluster = cluster_with(*bodies)
    async with process_on(cluster).running():
        await asyncio.sleep(60)
    assert names_of(cluster) == []
    assert "default.good" in frozen(cluster)


@given(uid=st.text(min_size=1), namespace=st.from_regex(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True))
def test_owner_key_is_valid_whatever_the_uid(uid, namespace):
    """Every key is one that a ConfigMap takes, and begins with the namespace, which has no dot."""
    key = node_avoidance.owner_key(namespace, uid)
    assert re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key)
    assert key.partition(".")[0] == namespace


async def test_duplicates_are_counted_within_a_namespace():
    """Pods of a tenant that name a victim's owner do not make the victim's running pods too many."""
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
