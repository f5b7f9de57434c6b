"""Workers in a ``Scene``, in virtual time: they follow the contract, renew their Leases, and can be cut off."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from swarm import share
from swarm.worker.identity import Settings
from swarm.worker.jobs import Held, Phase
from swarm.worker.protocol import Membership, compact, parse
from tests.unit.swarm.controller.scene import NAMESPACE, Scene

_TICK = 0.1
_parsed = functools.lru_cache(maxsize=100)(parse)
"""Parses a share once, although each worker reads its share ten times per second."""
_ACKNOWLEDGED = "swarm.virtual-node.io/acknowledged"


class Worker:
    """The process of one pod. Its jobs start and stop at once."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene = scene
        self._lease = f"s.{name}"
        pod = scene.find("pods", name) or {}
        self.name, self.uid = name, pod["metadata"]["uid"]
        self._membership = Membership(Settings(swarm="s", worker=name, pod_uid=self.uid))
        self._written: dict[str, Any] = {}
        self._registered = ""
        self.connected = True
        self.reads = True
        """Whether it sees changes of its share."""
        self.running: set[str] = set()

    def act(self, now: float) -> None:
        """Stop in time, write the Lease, read the share."""
        member = self._membership
        if member.fenced or (member.times is not None and now >= member.times.stop_at):
            self._begin_session()
        if self.connected:
            lease = self._scene.find("leases", self._lease)
            if (
                lease is not None
                and lease["metadata"]["annotations"]["swarm.virtual-node.io/pod-uid"] == self.uid
            ):
                self._renew(lease, now)
            found = self._scene.find("configmaps", self._lease)
            if found is not None and self.reads and self._registered:
                member.offer(_parsed(found["data"][share.KEY].encode()), now)
        self.running = set(member.wanted)

    def _renew(self, lease: dict[str, Any], now: float) -> None:
        member = self._membership
        if self._registered == member.session and not lease["spec"].get("holderIdentity"):
            self._begin_session()  # the controller ended the last one
        if self._registered != member.session:
            member.succeed(lease["metadata"]["annotations"].get(_ACKNOWLEDGED, ""))
        held = {name: Held(job, Phase.RUNNING) for name, job in member.wanted.items()}
        content = member.acknowledgement(held)
        if content == self._written and (member.times is None or now < member.times.renew_at):
            return
        self._scene.server.change(
            "leases",
            f"{NAMESPACE}/{self._lease}",
            metadata={"annotations": {_ACKNOWLEDGED: compact(content)}},
            spec={"holderIdentity": member.session, "renewTime": str(now)},
        )
        self._written, self._registered = content, member.session
        member.renewed(now, now)

    def _begin_session(self) -> None:
        self.running = set()
        self._membership.begin_session()


@dataclass
class Workers:
    """All workers of a Scene; measures how long jobs have no owner."""

    scene: Scene
    jobs: list[str]
    by_name: dict[str, Worker] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)
    """Job → its longest time without an owner, in seconds, since ``measure``."""
    doubled: set[str] = field(default_factory=set)
    """Jobs that ran in two workers at the same time."""
    _since: dict[str, float] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    def start(self, *names: str) -> None:
        """Start the processes of pods."""
        for name in names:
            self.by_name[name] = Worker(self.scene, name)
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """End all processes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def owners(self) -> Counter[str]:
        """Return the number of workers that run each job."""
        return Counter(job for worker in self.by_name.values() for job in worker.running)

    def all_run(self) -> bool:
        """Report whether each job runs in one worker."""
        return self.owners() == Counter(self.jobs)

    def measure(self) -> None:
        """Forget the times so far."""
        self.gaps.clear()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for worker in list(self.by_name.values()):
                worker.act(loop.time())
            owners = self.owners()
            self.doubled |= {job for job, count in owners.items() if count > 1}
            for job in self.jobs:
                if owners[job]:
                    self._since.pop(job, None)
                else:
                    since = self._since.setdefault(job, loop.time())
                    self.gaps[job] = max(self.gaps.get(job, 0.0), loop.time() - since)
            await asyncio.sleep(_TICK)
