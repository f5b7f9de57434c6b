"""What is remembered in ConfigMaps: written sparingly, read by the next leader, pruned in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.errors import Unavailable
from descheduler.config.move_limits import Limits
from descheduler.memory.store import Memory
from tests.unit.descheduler.bodies import START, now
from tests.unit.descheduler.cluster import Client, Cluster

pytestmark = pytest.mark.looptime


def memory_on(cluster: Cluster, **limits: Any) -> tuple[Memory, Client]:
    """A leader's memory."""
    fake = Client(cluster)
    client: Any = fake
    return Memory(client, namespace="ns", freeze_period=300, limits=Limits(**limits), now=now), fake


def data_of(cluster: Cluster, name: str) -> dict[str, str]:
    """A ConfigMap's data."""
    found = cluster.find("configmaps", f"ns/{name}")
    return dict((found or {}).get("data") or {})


async def test_writes_are_shared():
    """A hundred owners at once take two writes, not a hundred."""
    cluster = Cluster()
    memory, client = memory_on(cluster)
    await memory.freeze("first", "default", ["a"])
    client.writes.clear()
    await asyncio.gather(*(memory.freeze(f"o{number}", "default", ["a"]) for number in range(100)))
    assert len(client.writes) <= 2
    assert len(data_of(cluster, "virtual-node-unschedulable")) == 101


async def test_failed_write_is_everybodys():
    """Whoever shares a write that fails is told, and nothing is believed to be remembered."""
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


async def test_next_leader_reads():
    """A new leader knows what the last one wrote."""
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


async def test_pruning():
    """Nodes and owners go when their time is over, each at its own, and who wants to know is told."""
    cluster = Cluster()
    memory, _ = memory_on(cluster, window=1000)
    told: list[float] = []
    unsubscribe = memory.subscribe(lambda: told.append(asyncio.get_running_loop().time()))
    running = asyncio.create_task(memory.run())
    await memory.freeze("o", "default", ["a"])
    await memory.note_round("o", "default")
    await asyncio.sleep(100)
    await memory.freeze("o", "default", ["b"])
    await asyncio.sleep(250)
    assert list(memory.frozen("o")) == ["b"]
    assert '"a"' not in data_of(cluster, "virtual-node-unschedulable")["o"]
    await asyncio.sleep(100)
    assert data_of(cluster, "virtual-node-unschedulable") == {}
    assert [round(moment) for moment in told] == [305, 405]
    unsubscribe()
    assert data_of(cluster, "virtual-node-descheduler").keys() == {"o"}
    await asyncio.sleep(600)
    assert data_of(cluster, "virtual-node-descheduler") == {}
    assert memory.history("o") is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_thaw_spares_older_entries():
    """A healed cluster is forgiven what it was frozen for while lost, not what came before."""
    memory, _ = memory_on(Cluster())
    await memory.freeze("before", "default", ["a"])
    await asyncio.sleep(50)
    since = now()
    await memory.freeze("after", "default", ["a", "b"])
    await memory.thaw("a", since=since)
    assert list(memory.frozen("before")) == ["a"]
    assert list(memory.frozen("after")) == ["b"]


async def test_never_too_many(monkeypatch):
    """A ConfigMap has its limits: the oldest owners are forgotten for new ones."""
    monkeypatch.setattr("descheduler.memory.store._MAX_OWNERS", 3)
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
    """A pod's author writes the owner's uid: a tenant that makes up thousands loses entries of its own."""
    monkeypatch.setattr("descheduler.memory.store._MAX_OWNERS", 4)
    cluster = Cluster()
    memory, _ = memory_on(cluster)
    for owner in ("victim.x", *(f"tenant.{number}" for number in range(20))):
        await memory.freeze(owner, owner.partition(".")[0], ["n"])
        await memory.note_round(owner, owner.partition(".")[0])
        await asyncio.sleep(2)
    for name in ("virtual-node-unschedulable", "virtual-node-descheduler"):
        assert data_of(cluster, name).keys() == {"victim.x", "tenant.17", "tenant.18", "tenant.19"}


async def test_config_map_deleted_by_hand():
    """A ConfigMap that somebody deletes is made again by the next write."""
    cluster = Cluster()
    memory, _ = memory_on(cluster)
    await memory.freeze("x", "default", ["a"])
    cluster.remove("configmaps", "ns/virtual-node-unschedulable")
    await memory.freeze("y", "default", ["a"])
    assert data_of(cluster, "virtual-node-unschedulable").keys() == {"y"}
