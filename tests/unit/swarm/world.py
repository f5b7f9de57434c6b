"""A simulated swarm: an API server, two controllers with stale caches, and workers that follow the contract.

Every method is one atomic step, so a random sequence of steps has kills after any write, stale reads, two leaders and
partitions. Time passes between the steps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec

from swarm import handover, share
from swarm.assignment import Job
from swarm.handover import Acknowledgement, Ledger
from swarm.planning import STATEFUL_SET, Observed, Pod, Wanted, Workers, advance


@dataclass
class Api:
    """Stored objects. Shares keep their history, because readers may have an old copy."""

    record: str = ""
    record_version: int = 0
    shares: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    leases: dict[str, list[Acknowledgement]] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    """Pod UID → session that a controller ended."""
    jobs: list[str] = field(default_factory=list)
    replicas: int = 3
    fence: int = 0
    now: float = 1000.0


@dataclass
class Worker:
    """A pod's process, which follows the contract."""

    api: Api
    pod: Pod
    rng: random.Random
    running: set[str] = field(default_factory=set)
    stopping: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    session: str = ""
    life: int = 0
    version: int = 0
    draining: bool = False
    alive: bool = True
    connected: bool = True
    outgoing: tuple[int, Acknowledgement, float] | None = None
    """Length of the Lease's history, content and time of the report in flight."""
    fence: int = 0
    renewed_at: float = 0.0

    @property
    def all_running(self) -> set[str]:
        return self.running | self.stopping

    def register(self) -> None:
        """Begin a session, if there is a Lease and none has begun, or the controller ended the last one."""
        if not self.connected or self.pod.uid not in self.api.leases:
            return
        lease = self.api.leases[self.pod.uid]
        if self.session and lease and not lease[-1].session:
            self.kill()
        if self.session:
            return
        self.life = max([self.life, *(report.life for report in lease)]) + 1
        self.session = f"{self.pod.uid}-{self.life}-{self.rng.random()}"
        self.renewed_at = self.api.now
        lease.append(self._acknowledgement())

    def follow(self) -> None:
        """Read a possibly stale share, and use it if the contract allows it."""
        shares = self.api.shares.get(self.pod.uid)
        if not shares or not self.connected or not self.session or self.draining:
            return
        found = shares[-1] if self.rng.random() < 0.7 else self.rng.choice(shares)
        if found["version"] <= self.version:
            return
        if found["handover"] == "Exclusive" and found["session"] != self.session:
            return
        fence = found["fenceSeconds"] if found["handover"] == "Exclusive" else 0
        if fence and self.api.now >= self.renewed_at + fence * 2 / 3:
            return  # the worker needs a renewal before it can use this share
        self.version, self.fence = found["version"], fence
        self.wanted = {job["name"] for job in found["jobs"] if job["state"] == "start"}
        self.stopping |= self.running - self.wanted
        self.running = self.wanted - self.stopping

    def finish_stops(self) -> None:
        """Stop some of the jobs to stop; a job that is wanted again starts with the next share."""
        for job in list(self.stopping):
            if self.rng.random() < 0.6:
                self.stopping.discard(job)
                self.running |= self.wanted & {job}

    def report(self) -> None:
        """Send an acknowledgement, or deliver the one in flight."""
        if not self.session or not self.connected:
            return
        lease = self.api.leases.get(self.pod.uid)
        if lease is None:
            return
        if self.outgoing is None:
            if lease and lease[-1].session == self.session:
                self.outgoing = len(lease), self._acknowledgement(), self.api.now
            return
        version, content, sent_at = self.outgoing
        self.outgoing = None
        if len(lease) == version:
            lease.append(content)
            self.renewed_at = sent_at

    def keep_in_time(self) -> None:
        """End the process at the last moment at which a job may run without a renewal."""
        if self.fence and self.api.now >= self.renewed_at + self.fence:
            self.kill()

    def kill(self) -> None:
        """End the process; the container starts again."""
        self.running, self.stopping, self.wanted = set(), set(), set()
        self.session, self.version, self.draining, self.outgoing, self.fence = "", 0, False, None, 0

    def drain(self) -> None:
        self.draining = True
        self.stopping |= self.running
        self.running, self.wanted = set(), set()

    def _acknowledgement(self) -> Acknowledgement:
        return Acknowledgement(
            pod_uid=self.pod.uid,
            session=self.session,
            life=self.life,
            version=self.version,
            running=sorted(self.all_running),
            draining=self.draining,
            fence_seconds=self.fence,
        )


@dataclass
class Controller:
    """A leader, or a former leader that has not noticed its loss."""

    api: Api
    rng: random.Random
    handover: str
    seen_leases: dict[str, Acknowledgement] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    record: tuple[int, Ledger] = (0, Ledger())
    pending: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    renewals: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Pod UID → length of its Lease's history in the cache, and when this was first seen."""

    def refresh(self) -> None:
        """Update some of the caches."""
        if self.rng.random() < 0.6:
            self.pods = list(self.api.pods.values())
        for uid, lease in self.api.leases.items():
            if lease and self.rng.random() < 0.6:
                self.seen_leases[uid] = lease[-1]
                if self.renewals.get(uid, (0, 0.0))[0] != len(lease):
                    self.renewals[uid] = len(lease), self.api.now
        if self.rng.random() < 0.6:
            self.record = self.api.record_version, handover.load(self.api.record)

    def reconcile(self) -> None:
        """Write the next record over the one read, then queue the shares."""
        version, before = self.record
        # Absence is checked live; see swarm.controller.liveness.
        existing = {pod.uid for pod in self.api.pods.values()}
        gone = {uid for uid in before.holders if uid not in existing and uid not in self.api_ghosts}
        wanted = Wanted(
            jobs=[Job(name) for name in self.api.jobs],
            workers=Workers(STATEFUL_SET, self.api.replicas, grace=5),
            handover=self.handover,
            fence=self.api.fence,
            settings=str(self.api.fence),
        )
        settings = share.Settings("s", self.handover, "Signal", fence_seconds=self.api.fence)
        observed = Observed(self.pods, self.seen_leases, gone, self.end_sessions(before))
        after, _ = advance(before, wanted, observed, now=self.api.now)
        if after != before:
            if version != self.api.record_version:
                self.record = self.api.record_version, handover.load(self.api.record)
                return
            self.api.record = handover.dump(after)
            self.api.record_version += 1
            self.record = self.api.record_version, after
        for holder in after.holders.values():
            self.api.leases.setdefault(holder.uid, [])
            text = share.render(after.slots_by_uid().get(holder.uid), holder, settings)[0]
            self.pending.append((holder.uid, msgspec.json.decode(text)))

    def end_sessions(self, ledger: Ledger) -> set[str]:
        """End the sessions of silent workers by a write to their Leases, as ``swarm.controller.reports`` does."""
        ended = set()
        for uid, holder in ledger.holders.items():
            length, since = self.renewals.get(uid, (0, self.api.now))
            lease = self.api.leases.get(uid, [])
            is_over = bool(holder.fence) and self.api.now - since >= holder.fence * 1.25
            if is_over and len(lease) == length and lease[-1].session == holder.session:
                lease.append(Acknowledgement(pod_uid=uid))
                self.api.ended[uid] = holder.session
            if holder.session and self.api.ended.get(uid) == holder.session:
                ended.add(uid)
        return ended

    def write(self) -> None:
        """Write one share unless a newer one exists."""
        if not self.pending:
            return
        uid, content = self.pending.pop(self.rng.randrange(len(self.pending)))
        stored = self.api.shares.setdefault(uid, [])
        if not stored or stored[-1]["version"] < content["version"]:
            stored.append(content)

    def kill(self) -> None:
        """Restart with empty caches and without unwritten state."""
        self.pending.clear()
        self.seen_leases.clear()
        self.renewals.clear()
        self.pods = []
        self.record = self.api.record_version, handover.load(self.api.record)

    api_ghosts: set[str] = field(default_factory=set)
    """Pods without object that may still run: the liveness rules do not call them gone."""
