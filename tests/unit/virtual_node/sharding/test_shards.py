"""Replicas in virtual time over a server in memory: no cluster has two owners, and each gets one again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime import resources
from controller_runtime.errors import ConnectionFailed
from controller_runtime.leaderelection import LeaderElector
from controller_runtime.objects import from_dict
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from tests.thorough import seeds, size
from virtual_node.config.types import LeaderElectionConfig
from virtual_node.sharding import Member, Shards

pytestmark = pytest.mark.looptime(noop_cycles=5)

ELECTION = LeaderElectionConfig(enabled=True, mode="Sharded", namespace="kube-system", name="release")
CLUSTERS = [f"c{number}" for number in range(8)]


class Replica:
    """A replica with a network of its own. ``running`` are the clusters that it may write to."""

    def __init__(
        self, server: Server, clusters: list[str], *, seed: int = 0, others: Sequence[Replica] = ()
    ) -> None:
        self.client: Any = MemoryClient(server)
        self.others = others
        """All replicas; ``twice`` are the clusters that one of them ran when this one started them."""
        self.twice: set[str] = set()
        self.random = random.Random(seed)
        self.running: set[str] = set()
        self.starts = 0
        self.clusters = clusters
        self.member = Member(ELECTION)
        self.member.name = f"replica-{seed}"
        self.shards: Shards | None = None
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        elector = LeaderElector(
            self.client,
            namespace=ELECTION.namespace,
            name=self.member.lease,
            identity=self.member.name,
            metadata=self.member.metadata,
            on_started=self._work,
        )
        await elector.run()

    async def _work(self) -> None:
        self.shards = Shards(
            self.client,
            ELECTION,
            member=self.member,
            clusters=lambda: self.clusters,
            start=self._start,
            stop=self._stop,
        )
        try:
            await self.shards.run()
        finally:
            await self._stop(list(self.running))
            await self.shards.release(list(self.shards.held))

    def _start(self) -> None:
        assert self.shards is not None
        fresh = self.shards.held.keys() - self.running
        self.starts += len(fresh)
        self.twice |= {cluster for cluster in fresh for other in self.others if cluster in other.running}
        self.running |= self.shards.held.keys()

    async def _stop(self, clusters: Collection[str]) -> None:
        await asyncio.sleep(self.random.uniform(0, 1))
        self.running -= set(clusters)

    def partition(self) -> None:
        """Cut the network: requests fail, and watches bring nothing."""
        self.client.fault = lambda *_: ConnectionFailed("no route")
        self.client.held.add("leases")

    def heal(self) -> None:
        """End ``partition`` and ``hold_watch``."""
        self.client.fault = lambda *_: None
        self.client.release("leases")

    async def stop(self) -> None:
        """SIGTERM."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def kill(self) -> None:
        """SIGKILL: nothing is released. The process runs no cluster any more."""
        self.partition()
        self.task.cancel()
        self.running.clear()


def _server() -> Server:
    server = Server("upper")
    server.create("namespaces", {"metadata": {"name": "kube-system"}})
    return server


def _owned(replicas: list[Replica]) -> list[int]:
    return sorted(len(replica.running) for replica in replicas)


async def test_replicas_share_the_clusters_and_a_stopped_one_hands_over_at_once():
    server = _server()
    first = Replica(server, CLUSTERS)
    await asyncio.sleep(3)
    assert _owned([first]) == [8]
    second = Replica(server, CLUSTERS, seed=1)
    await asyncio.sleep(6)
    assert _owned([first, second]) == [4, 4]
    await first.stop()
    await asyncio.sleep(1)
    assert _owned([first, second]) == [0, 8]
    await second.stop()
    assert {lease["spec"]["holderIdentity"] for lease in _leases(server)} == {""}


async def test_the_clusters_of_a_killed_replica_are_taken_within_the_lease_duration():
    server = _server()
    first, second = Replica(server, CLUSTERS), Replica(server, CLUSTERS, seed=1)
    await asyncio.sleep(10)
    first.kill()
    await asyncio.sleep(ELECTION.lease_duration + ELECTION.retry_period)
    assert _owned([first, second]) == [0, 8]
    await second.stop()


async def test_only_changes_of_owners_write_the_leases_of_clusters():
    server = _server()
    replicas = [Replica(server, CLUSTERS, seed=number) for number in range(3)]
    await asyncio.sleep(20)
    for replica in replicas:
        replica.client.calls.clear()
    await asyncio.sleep(size(120, 600))
    calls = [call for replica in replicas for call in replica.client.calls]
    assert {key for verb, _, key in calls if verb in {"update", "create"}} == {
        f"kube-system/{replica.member.lease}" for replica in replicas
    }
    assert not [call for call in calls if call[0] in {"get", "list"}]
    for replica in replicas:
        await replica.stop()


async def test_an_old_cache_takes_nothing_from_a_working_replica():
    """The watch of one replica brings nothing for minutes, so all others seem to have ended."""
    server = _server()
    replicas: list[Replica] = []
    replicas += [Replica(server, CLUSTERS, seed=number, others=replicas) for number in range(2)]
    first, second = replicas
    await asyncio.sleep(10)
    before = [set(first.running), set(second.running)]
    second.client.held.add("leases")
    await asyncio.sleep(300)
    assert not first.twice | second.twice
    assert [first.running, second.running] == before
    for replica in (first, second):
        await replica.stop()


async def test_a_cluster_that_is_removed_from_the_configuration_leaves_no_lease():
    server, clusters = _server(), list(CLUSTERS)
    replica = Replica(server, clusters)
    await asyncio.sleep(3)
    clusters.remove("c3")
    await asyncio.sleep(4)
    assert "c3" not in replica.running
    assert not [lease for lease in _leases(server) if lease["metadata"]["name"] == "release-cluster-c3"]
    await replica.stop()


async def test_a_lease_that_an_administrator_takes_stops_the_cluster():
    server = _server()
    replica = Replica(server, CLUSTERS)
    await asyncio.sleep(3)
    key = "kube-system/release-cluster-c1"
    server.patch("leases", key, {"spec": {"holderIdentity": "release-replica-by-hand"}})
    await asyncio.sleep(1.5)
    assert replica.running == set(CLUSTERS) - {"c1"}
    await asyncio.sleep(ELECTION.lease_duration + 4)
    assert replica.running == set(CLUSTERS)
    await replica.stop()


async def test_the_lease_of_a_replica_that_ended_is_deleted_later():
    server = _server()
    first, second = Replica(server, CLUSTERS), Replica(server, CLUSTERS, seed=1)
    await asyncio.sleep(10)
    first.kill()
    await asyncio.sleep(400)
    assert not [one for one in _leases(server) if one["metadata"]["name"] == first.member.lease]
    assert [one for one in _leases(server) if one["metadata"]["name"] == second.member.lease]
    await second.stop()


async def test_a_release_that_failed_is_repeated():
    """Otherwise the Lease would name a working replica that does not run the cluster, and no replica would take it."""
    server = _server()
    first = Replica(server, CLUSTERS)
    await asyncio.sleep(3)
    first.client.fault = lambda verb, _plural, key: (
        ConnectionFailed("reset") if verb == "update" and "-cluster-" in key else None
    )
    second = Replica(server, CLUSTERS, seed=1)
    await asyncio.sleep(10)
    assert _owned([first, second]) == [0, 4]
    first.heal()
    await asyncio.sleep(5)
    assert _owned([first, second]) == [4, 4]
    for replica in (first, second):
        await replica.stop()


@pytest.mark.parametrize("seed", seeds(1, 20))
async def test_no_cluster_ever_has_two_owners(seed: int):
    """Replicas start, stop, are killed, and lose the network or only their watches, at random moments."""
    chance, server = random.Random(seed), _server()
    replicas: list[Replica] = []
    replicas += [Replica(server, CLUSTERS, seed=seed + number, others=replicas) for number in range(3)]
    with capture_logs():
        for _ in range(40):
            await asyncio.sleep(chance.choice([0.1, 1, 5, 20]))
            replica = chance.choice(replicas)
            match chance.randrange(6):
                case 0:
                    replica.partition()
                case 1:
                    replica.client.held.add("leases")
                case 2:
                    await replica.stop()
                case 3:
                    replica.kill()
                case _:
                    replica.heal()
            alive = [one for one in replicas if not one.task.done() and not one.task.cancelling()]
            if len(alive) < 2:
                replicas.append(Replica(server, CLUSTERS, seed=chance.randrange(10**9), others=replicas))
        alive = [one for one in replicas if not one.task.done() and not one.task.cancelling()]
        for replica in alive:
            replica.heal()
        await asyncio.sleep(60)
    assert not any(replica.twice for replica in replicas)
    assert sum(_owned(alive)) == len(CLUSTERS)
    assert max(_owned(alive)) <= -(-len(CLUSTERS) // len(alive))
    starts = sum(replica.starts for replica in alive)
    await asyncio.sleep(300)
    assert sum(replica.starts for replica in alive) == starts
    for replica in alive:
        await replica.stop()


def _leases(server: Server) -> list[dict[str, Any]]:
    found, _ = server.list(resources.LEASES.plural, lambda _lease: True)
    return [from_dict(lease).to_dict() if isinstance(lease, dict) else lease.to_dict() for lease in found]


async def test_clusters_are_taken_together_and_a_failed_request_holds_up_no_other():
    """A cluster that starts delays all requests of its process, so no cluster starts before the last was taken."""
    server = _server()
    replica = Replica(server, CLUSTERS)
    calls: list[set[str]] = []
    start = replica._start

    def starting() -> None:
        assert replica.shards is not None
        calls.append(set(replica.shards.held))
        start()

    replica._start = starting  # type: ignore[method-assign]
    replica.client.fault = lambda _verb, _plural, key: (
        ConnectionFailed("reset") if key.endswith("-c3") else None
    )
    with capture_logs():
        await asyncio.sleep(3)
    assert calls[0] == {*CLUSTERS} - {"c3"}
    replica.client.fault = lambda *_: None
    await asyncio.sleep(3)
    assert (calls[1:], replica.running) == ([{*CLUSTERS}], {*CLUSTERS})
    await replica.stop()
