"""The memory in ConfigMaps: batched writes, reading by the next leader, pruning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.errors import Unavailable
from descheduler.config import Limits
from descheduler.memory import Memory
from tests.unit.descheduler.bodies import START, now
from tests.unit.descheduler.cluster import Client, Cluster

pytestmark = pytest.mark.looptime


def memory_on(cluster: Cluster, **limits: Any) -> tuple[Memory, Client]:
    """Return the memory of a new leader, and its client."""
    fake = Client(cluster)
    client: Any = fake
    return Memory(client, "ns", 300, Limits(**limits), now), fake


def data_of(cluster: Cluster, name: str) -> dict[str, str]:
    """Return a ConfigMap's data."""
    found = cluster.find("configmaps", f"ns/{name}")
    return dict((found or {}).get("data") or {})


async def test_concurrent_changes_share_writes():
    cluster = Cluster()
    memory, client = memory_on(cluster)
    await memory.freeze("first", "default", ["a"])
    client.writes.clear()
    await asyncio.gather(*(memory.freeze(f"o{number}", "default", ["a"]) for number in range(100)))
    assert len(client.writes) <= 2
    assert len(data_of(cluster, "virtual-node-unschedulable")) == 101


async def test_failed_write_raises_for_all_its_changes_and_stores_none():
    memory, client = memory_on(Cluster())

    async def fail(what: str) -> None:
        raise Unavailable("no", code=503)

    client.before = fail
    outcomes = await asyncio.gather(
        *(memory.freeze(owner, "default", ["a"]) for owner in "xy"), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable]
    assert memory.frozen("x") == {}
    client.before = None
    await memory.freeze("x", "default", ["a"])
    assert list(memory.frozen("x")) == ["a"]


async def test_next_leader_reads_what_was_written():
    cluster = Cluster()
    first, _ = memory_on(cluster)
    await first.freeze("o", "default", ["a"])
    await first.freeze("o", "default", ["b"])
    assert await first.note_round("o", "default") == 1
    assert await first.note_round("o", "default") == 2
    second, _ = memory_on(cluster)
    await second.load()
    assert second.frozen("o") == {"a": START, "b": START}
    found = second.history("o")
    assert found is not None
    assert found.rounds == 2


async def test_prunes_expired_entries_and_notifies_subscribers():
    cluster = Cluster()
    memory, _ = memory_on(cluster, window=1000)
    notified: list[float] = []
    running = asyncio.create_task(memory.run())
    with memory.subscribed(lambda: notified.append(asyncio.get_running_loop().time())):
        await memory.freeze("o", "default", ["a"])
        await memory.note_round("o", "default")
        await asyncio.sleep(100)
        await memory.freeze("o", "default", ["b"])
        await asyncio.sleep(250)
        assert list(memory.frozen("o")) == ["b"]
        assert '"a"' not in data_of(cluster, "virtual-node-unschedulable")["o"]
        await asyncio.sleep(100)
        assert data_of(cluster, "virtual-node-unschedulable") == {}
        assert [round(moment) for moment in notified] == [305, 405]
    assert data_of(cluster, "virtual-node-descheduler").keys() == {"o"}
    await asyncio.sleep(600)
    assert data_of(cluster, "virtual-node-descheduler") == {}
    assert memory.history("o") is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_thaw_keeps_entries_from_before_the_loss():
    memory, _ = memory_on(Cluster())
    await memory.freeze("before", "default", ["a"])
    await asyncio.sleep(50)
    since = now()
    await memory.freeze("after", "default", ["a", "b"])
    await memory.thaw("a", since=since)
    assert list(memory.frozen("before")) == ["a"]
    assert list(memory.frozen("after")) == ["b"]


async def test_drops_oldest_owners_beyond_the_maximum(monkeypatch):
    monkeypatch.setattr("descheduler.memory._MAX_OWNERS", 3)
    cluster = Cluster()
    memory, _ = memory_on(cluster)
    for owner in ("ns.a", "ns.b", "ns.c", "ns.d", "ns.e"):
        await memory.freeze(owner, "ns", ["n"])
        await memory.note_round(owner, "ns")
        await asyncio.sleep(2)
    for name in ("virtual-node-unschedulable", "virtual-node-descheduler"):
        assert data_of(cluster, name).keys() == {"ns.c", "ns.d", "ns.e"}
    assert memory.frozen("ns.a") == {}
    assert memory.history("ns.a") is None


async def test_a_tenant_with_many_owners_does_not_displace_others(monkeypatch):
    """A tenant writes the owner UIDs in its pods, so it can create any number of owners."""
    monkeypatch.setattr("descheduler.memory._MAX_OWNERS", 4)
    cluster = Cluster()
    memory, _ = memory_on(cluster)
    for owner in ("victim.x", *(f"tenant.{number}" for number in range(20))):
        await memory.freeze(owner, owner.partition(".")[0], ["n"])
        await memory.note_round(owner, owner.partition(".")[0])
        await asyncio.sleep(2)
    for name in ("virtual-node-unschedulable", "virtual-node-descheduler"):
        assert data_of(cluster, name).keys() == {"victim.x", "tenant.17", "tenant.18", "tenant.19"}


async def test_recreates_deleted_config_map():
    cluster = Cluster()
    memory, _ = memory_on(cluster)
    await memory.freeze("x", "default", ["a"])
    cluster.remove("configmaps", "ns/virtual-node-unschedulable")
    await memory.freeze("y", "default", ["a"])
    assert data_of(cluster, "virtual-node-unschedulable").keys() == {"y"}
