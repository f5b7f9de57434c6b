"""Distributes lower clusters over the replicas of a process by Leases (``leaderElection.mode: Sharded``).

There are two kinds of Leases, in the namespace of the election:

- Each replica renews a Lease of its own (``leaderelection.elector``). The replica works only while it is renewed.
- Each lower cluster has a Lease whose holder is the replica that runs it. It is written only when the holder changes.
  It is valid as long as the Lease of its holder.

So the number of renewals does not depend on the number of clusters, and all clusters of a replica that has ended can
be taken at the same time. Two replicas do not run a cluster at the same time:

- A replica starts a cluster only after it has written the cluster's Lease, even if it is the holder already. The write
  fails if another replica wrote first.
- A replica takes a cluster from another one only if the other one's Lease, read from the API server, has not changed
  for ``leaseDuration`` on the replica's own clock. By then, a replica that cannot renew its Lease has stopped its
  clusters (``renewDeadline``).
- A replica that gives a cluster away releases the Lease after the cluster has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from prometheus_client import Gauge

from clusterset.model import names
from controller_runtime import leaderelection, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find
from controller_runtime.errors import AlreadyExists, ApiError, Conflict, NotFound
from controller_runtime.objects import Object, from_dict
from controller_runtime.process import lifecycle
from controller_runtime.util import event_loop
from controller_runtime.workqueue.queue import longest_wait
from virtual_node.config.types import LeaderElectionConfig

_OWNED = Gauge(
    "virtual_node_owned_cluster",
    "1 for each lower cluster that this replica runs, with mode Sharded.",
    ["cluster"],
)
_RELEASING = 2.0
"""Seconds that the release of Leases may take when the process stops; otherwise they expire."""
_FORGOTTEN = 20
"""Number of lease durations after which the Lease of a replica that has ended is deleted."""
_ROUNDING = 1e-9
"""Subtracted before rounding up, so that an error of floating point does not add a cluster."""


@dataclass(eq=False, repr=False)
class Shards:
    """The lower clusters of one replica.

    Attributes:
        held: Leases of the clusters that this replica may run, as last written, by cluster.
    """

    client: Client
    """Client of the upper cluster."""
    election: LeaderElectionConfig
    """Namespace, name and durations of the Leases."""
    _: KW_ONLY
    member: Member
    """This replica."""
    clusters: Callable[[], Collection[str]]
    """Returns the names of all configured lower clusters."""
    start: Callable[[], None]
    """Called after ``held`` has grown."""
    stop: Callable[[Collection[str]], Awaitable[None]]
    """Stops clusters; returns when they write no more."""

    def __post_init__(self) -> None:
        """Create without any IO."""
        self.held: dict[str, dict[str, Any]] = {}
        self._leases = Informer(
            self.client,
            resources.LEASES,
            namespace=self.election.namespace,
            label_selector=f"{names.LABEL_ELECTION}={self.election.name}",
            name="shards",
        )
        self._changed = asyncio.Event()
        self._observed: dict[str, tuple[int, float]] = {}
        """Newest known resourceVersion of a replica's Lease, and loop time when this process saw it first, by name."""
        self._log = structlog.get_logger(component="sharding", replica=self.member.name)

    async def run(self) -> None:
        """Take and release clusters until cancelled; the caller then stops them and calls ``release``."""

        def changed(_lease: Object) -> None:
            self._changed.set()

        self._leases.on_change(changed, changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._leases.run(), name="shards informer")
            await self._leases.wait_synced()
            while True:
                self._changed.clear()
                load = Load(delay=lifecycle.recent(), busy=lifecycle.busy(), age=longest_wait())
                self.member.evaluate(load, event_loop.now())
                try:
                    await self._reconcile()
                except ApiError as error:
                    self._log.warning("clusters not distributed", error=str(error))
                await event_loop.wait(self._changed, self.election.retry_period)

    def _owners(self, working: Collection[str]) -> dict[str, str]:
        """Return the working replica of each cluster as the cache shows it; clusters without one are absent."""
        found = {
            cluster: holder
            for lease in self._leases.store.list()
            if (cluster := lease.labels.get(names.LABEL_LOWER_CLUSTER))
            and (holder := _holder(lease)) in working
        }
        return found | dict.fromkeys(self.held, self.member.name)

    def elsewhere(self) -> dict[str, str]:
        """Return the host names of the other replicas that run clusters, by cluster."""
        return {
            cluster: host_of(owner)
            for cluster, owner in self._owners(self._working()).items()
            if cluster not in self.held
        }

    async def release(self, clusters: Collection[str]) -> None:
        """Release the Leases of stopped clusters, so that other replicas start them immediately."""
        await self._release_all({cluster: self._drop(cluster) for cluster in clusters})

    def _drop(self, cluster: str) -> dict[str, Any]:
        _OWNED.remove(cluster)
        return self.held.pop(cluster)

    async def _release_all(self, leases: Mapping[str, dict[str, Any]]) -> None:
        await asyncio.gather(*(self._release(cluster, lease) for cluster, lease in leases.items()))

    async def _release(self, cluster: str, lease: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(_RELEASING):
                if cluster in self.clusters():
                    await self.client.update(
                        resources.LEASES, leaderelection.released(lease, now=datetime.now(UTC))
                    )
                else:  # removed from the configuration
                    await self._delete(from_dict(lease))
        except (Conflict, NotFound):
            self._log.debug("lease taken before it was released", cluster=cluster)
        except (ApiError, TimeoutError) as error:
            self._log.warning("lease not released", cluster=cluster, error=str(error))

    async def _delete(self, lease: Object) -> None:
        await self.client.delete(
            resources.LEASES,
            lease.name,
            namespace=lease.namespace,
            uid=lease.uid,
            resource_version=lease.resource_version,
        )

    # --- one pass -------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        working = self._working()
        shares = working | {self.member.name: self.member.share}
        wanted = assign(self.clusters(), shares, self._owners(working))
        mine = {cluster for cluster, owner in wanted.items() if owner == self.member.name}
        taken = {cluster for cluster in self.held if self._is_taken(cluster)}
        if going := {cluster for cluster in self.held if cluster not in mine} | taken:
            self._log.info("giving clusters away", clusters=sorted(going))
            # Not held from now on, so that nothing starts these clusters again.
            leases = {cluster: self._drop(cluster) for cluster in going}
            await self.stop(going)
            await self._release_all(
                {cluster: lease for cluster, lease in leases.items() if cluster not in taken}
            )
        await self._release_again(mine)
        await self._take_all(sorted(mine - self.held.keys()))
        await self._forget_ended(shares)

    async def _release_again(self, mine: Collection[str]) -> None:
        """Release Leases that still name this replica as their holder after a release that failed."""
        for lease in self._leases.store.list():
            cluster = lease.labels.get(names.LABEL_LOWER_CLUSTER)
            if not cluster or cluster in mine or cluster in self.held:
                continue
            if _holder(lease) == self.member.name:
                await self._release(cluster, lease.to_dict())

    def _is_taken(self, cluster: str) -> bool:
        """Report whether another replica, or an administrator, has written the Lease of a held cluster."""
        ours, lease = self.held[cluster], self._cached(cluster)
        return (
            lease is not None
            and int(lease.resource_version) > int(ours["metadata"]["resourceVersion"])
            and _holder(lease) != self.member.name
        )

    async def _take_all(self, clusters: Collection[str]) -> None:
        """Take clusters, then start them together: a cluster that starts would delay the requests for the others."""
        holders = {_holder(lease) for cluster in clusters if (lease := self._cached(cluster)) is not None}
        free = {"", self.member.name}
        free |= {holder for holder in sorted(holders - free) if await self._has_ended(holder)}
        taking = (self._take(cluster, free) for cluster in clusters)
        answers = dict(zip(clusters, await asyncio.gather(*taking, return_exceptions=True), strict=True))
        if taken := [cluster for cluster, answer in answers.items() if answer is True]:
            self._log.info("took clusters", clusters=taken)
            self.start()
        for answer in answers.values():
            if isinstance(answer, BaseException):
                raise answer

    async def _take(self, cluster: str, free: Collection[str]) -> bool:
        """Write the Lease of a cluster; return whether this replica may run it.

        Args:
            cluster: its name.
            free: holders whose clusters may be taken.
        """
        name, cached = self._lease_of_cluster(cluster), self._cached(cluster)
        lease = cached.to_dict() if cached is not None else leaderelection.new(self.election.namespace, name)
        if leaderelection.holder_of(lease) not in free:
            return False
        labels = {names.LABEL_ELECTION: self.election.name, names.LABEL_LOWER_CLUSTER: cluster}
        lease["metadata"] = {**lease["metadata"], "labels": labels}
        body = leaderelection.held(
            lease, identity=self.member.name, duration=self.election.lease_duration, now=datetime.now(UTC)
        )
        try:
            if cached is None:
                self.held[cluster] = await self.client.create(
                    resources.LEASES, body, namespace=self.election.namespace
                )
            else:
                self.held[cluster] = await self.client.update(resources.LEASES, body)
        except (AlreadyExists, Conflict, NotFound):
            return False  # the cache is old; its next change causes a new pass
        _OWNED.labels(cluster).set(1)
        return True

    # --- other replicas -------------------------------------------------------------------------------

    def _working(self) -> dict[str, float]:
        """Return the shares of the replicas whose Leases are renewed, as far as the cache shows."""
        found = {}
        for lease in self._leases.store.list():
            if names.LABEL_LOWER_CLUSTER in lease.labels:
                continue
            if self._is_renewed(lease.name, lease.to_dict()):
                found[_holder(lease)] = share_of(lease)
        return found

    async def _has_ended(self, member: str) -> bool:
        """Report whether a replica no longer works; read from the API server, because the cache may be old.

        A deleted Lease counts as not renewed since it was last seen, because its replica may not know yet of the
        deletion.
        """
        name = lease_of(self.election.name, member)
        lease = await find(self.client, resources.LEASES, name, namespace=self.election.namespace)
        return not self._is_renewed(name, lease)

    def _is_renewed(self, name: str, lease: Mapping[str, Any] | None) -> bool:
        """Report whether a replica's Lease has changed within its duration on this replica's clock."""
        if lease is not None and not leaderelection.holder_of(lease):
            return False
        version = int(lease["metadata"]["resourceVersion"]) if lease is not None else 0
        known = self._observed.get(name)
        if known is None or version > known[0]:
            self._observed[name] = known = (version, event_loop.now())
        duration = leaderelection.spec_of(lease).get("leaseDurationSeconds") or self.election.lease_duration
        return event_loop.now() < known[1] + float(duration)

    async def _forget_ended(self, working: Collection[str]) -> None:
        """Delete the Leases of replicas that ended long ago; only the first replica by name does it."""
        if self.member.name != min(working):
            return
        for lease in self._leases.store.list():
            _, renewed = self._observed.get(lease.name, (0, event_loop.now()))
            if event_loop.now() - renewed > _FORGOTTEN * self.election.lease_duration:
                with contextlib.suppress(Conflict, NotFound):
                    await self._delete(lease)

    def _lease_of_cluster(self, cluster: str) -> str:
        return f"{self.election.name}-cluster-{cluster}"

    def _cached(self, cluster: str) -> Object | None:
        return self._leases.store.get(f"{self.election.namespace}/{self._lease_of_cluster(cluster)}")


def assign(
    clusters: Collection[str], shares: Mapping[str, float], holders: Mapping[str, str]
) -> dict[str, str]:
    """Return the replica that shall run each cluster; empty if there is no replica.

    Every replica computes this from what it has read. Replicas that have read different states may disagree for a
    moment, and then the Lease of the cluster decides. A cluster stays with its holder while the holder has room, so a
    change of the replicas moves as few clusters as possible. Any other cluster goes to the replica with room
    that has the highest score.

    Args:
        clusters: names of the lower clusters.
        shares: weight of each working replica, greater than 0; 1 unless it is overloaded.
        holders: replica that holds the cluster's Lease, by cluster; clusters without a working holder are absent.
    """
    room = limits(len(clusters), shares)
    owners: dict[str, str] = {}
    waiting: list[str] = []
    for cluster in sorted(clusters, key=lambda name: -_score(name, holders.get(name, ""))):
        holder = holders.get(cluster, "")
        if room.get(holder, 0) > 0:
            owners[cluster] = holder
            room[holder] -= 1
        else:
            waiting.append(cluster)
    for cluster in sorted(waiting):
        free = [member for member, left in room.items() if left > 0]
        if free:
            owner = max(free, key=lambda member: _score(cluster, member))
            owners[cluster] = owner
            room[owner] -= 1
    return owners


def limits(clusters: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return how many clusters each replica may run: its share of them, rounded up. The sum is at least ``clusters``."""
    total = sum(shares.values())
    return {
        member: math.ceil(clusters * share / total - _ROUNDING) for member, share in sorted(shares.items())
    }


def _score(cluster: str, member: str) -> int:
    digest = hashlib.sha256(f"{member}\0{cluster}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


OVERLOADED = 0.2
"""Mean delay of the event loop's timers in seconds above which a replica counts as overloaded."""
RELAXED = 0.05
"""Mean delay in seconds below which a replica may take clusters back."""
OLD = 30.0
"""Age of the oldest waiting work in seconds above which a replica counts as overloaded, if it also is ``BUSY``."""
FRESH = 5.0
"""Age of the oldest waiting work in seconds below which a busy replica may take clusters back."""
BUSY = 0.7
"""Share of a core that the event loop uses, above which old work is a sign of overload. Behind a slow API server or a
rate limit, work becomes old on every replica."""
LEAST = 0.125
"""Smallest share. A share is never 0, because a slow replica is better than none."""
_WINDOW = 30.0
"""Seconds between two reductions of the share, because moved clusters take time to start."""
_FIRST_PAUSE = 300.0
_LONGEST_PAUSE = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much a replica has to do.

    Attributes:
        delay: mean delay of the event loop's timers in seconds.
        busy: share of a core that the event loop uses.
        age: seconds for which the oldest key in the work queues has waited.
    """

    delay: float = 0.0
    busy: float = 0.0
    age: float = 0.0

    def is_high(self) -> bool:
        """Report whether other replicas should take lower clusters."""
        return self.delay > OVERLOADED or (self.age > OLD and self.busy > BUSY)

    def is_low(self) -> bool:
        """Report whether the replica can take lower clusters back."""
        return self.delay < RELAXED and (self.age < FRESH or self.busy <= BUSY)


class Member:
    """This replica.

    Attributes:
        name: unique; only a restarted worker gets the name of an earlier process.
        share: weight of this replica in ``assignment.assign``: 1 normally, halved while the load is high.
    """

    def __init__(self, election: LeaderElectionConfig, *, name: str = "") -> None:
        """Create for an election; an empty ``name`` means a new random name."""
        self.name = name or f"{local_host()}-{secrets.token_hex(4)}"
        self.share = 1.0
        self._election = election.name
        self._pause = _FIRST_PAUSE
        self._decided_at: float | None = None

    @property
    def lease(self) -> str:
        """Return the name of the replica's Lease."""
        return lease_of(self._election, self.name)

    def metadata(self) -> dict[str, Any]:
        """Return labels and annotations of the replica's Lease."""
        return {
            "labels": {names.LABEL_ELECTION: self._election},
            "annotations": {names.ANNOTATION_SHARE: f"{self.share:g}"},
        }

    def evaluate(self, load: Load, now: float) -> None:
        """Reduce or raise the share.

        The share rises after a pause, which doubles each time a share of 1 is reduced again. So a replica on a slow
        machine does not take the same clusters every few minutes and lose them again.

        Args:
            load: this replica's load.
            now: monotonic time in seconds.
        """
        since = float("inf") if self._decided_at is None else now - self._decided_at
        if load.is_high() and self.share > LEAST and since >= _WINDOW:
            if self.share == 1.0 and self._decided_at is not None:
                self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            self.share, self._decided_at = self.share / 2, now
        elif load.is_low() and self.share < 1.0 and since >= self._pause:
            self.share, self._decided_at = self.share * 2, now


def local_host() -> str:
    """Return the name of this host as part of a Lease's name, without dots."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower())[:63].strip("-") or "replica"


def lease_of(election: str, member: str) -> str:
    """Return the name of a replica's Lease."""
    return f"{election}-replica-{member}"


def host_of(member: str) -> str:
    """Return a replica's host name (in a cluster, its pod's name); a worker's ends with ``.`` and its number."""
    return member.rpartition("-")[0]


def _holder(lease: Object) -> str:
    """Return the holder of a cached Lease; decodes only the spec, because each pass asks for all Leases."""
    return leaderelection.holder_of({"spec": lease.spec})


def share_of(lease: Object) -> float:
    """Return the share that a replica has written to its Lease; 1 if it is absent or invalid."""
    try:
        share = float(lease.annotations.get(names.ANNOTATION_SHARE, "1"))
    except ValueError:
        return 1.0
    return share if LEAST <= share <= 1 else 1.0
