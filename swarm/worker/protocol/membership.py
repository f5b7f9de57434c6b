"""A worker's membership in its Swarm: its session, the shares that it accepts, its acknowledgements. No IO."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

from swarm.worker import fence, identity
from swarm.worker.identity import Settings
from swarm.worker.jobs.state import Held, Job
from swarm.worker.protocol.share import Applied, Share, ShareError, accept

_ROOM = 200 * 1024
"""Bytes of JSON for lists of jobs in an acknowledgement; an object may have 256 KiB of annotations."""
_MOST_ERRORS, _LONGEST_ERROR = 20, 200


class Membership:
    """A worker's session, applied share and deadlines."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.stopped: frozenset[str] = frozenset()
        """Jobs with state ``stop`` in the last applied share."""
        self._pending: Share | None = None
        """A share that enables fencing; applied after the next renewal."""
        self.session = identity.new_session()
        self.sessions = {self.session}
        """All sessions of this process."""
        self.life = _clock()
        """Number that increases with each session of a pod."""
        self.applied = Applied()
        self.renewed_at: float | None = None
        """When the last successful acknowledgement of this session was sent; None: none yet."""
        self.draining = False
        self.fenced = False
        """Whether this session is over: all jobs are being stopped, then a new session begins."""
        self.problem = ""
        """Why the last share was refused; empty: it was not refused."""

    @property
    def wanted(self) -> Mapping[str, Job]:
        """Return the jobs that must run."""
        return {} if self.draining or self.fenced else self.applied.wanted or {}

    @property
    def times(self) -> fence.Times | None:
        """Return when to renew, stop and exit; None without fencing or before the first acknowledgement."""
        if not self.applied.fence_seconds or self.renewed_at is None:
            return None
        return fence.times(self.renewed_at, self.applied.fence_seconds)

    def offer(self, share: Share, now: float) -> bool:
        """Accept a complete share if it is newer and for this session.

        Returns:
            Whether the worker must write an acknowledgement before the share can be used.
        """
        if self.fenced:
            return False
        self._pending = None
        try:
            applied = accept(
                self.applied,
                share,
                session=self.session,
                pod_uid=self._settings.pod_uid,
                can_renew=not self._settings.file,
            )
        except ShareError as error:
            self.problem = str(error)
            return False
        self.problem = ""
        if applied is self.applied:
            return False
        if self._is_late(applied, now):
            if self.renewed_at is None or (self.applied.wanted and not self.applied.fence_seconds):
                self._pending = share
                return True
            self.fenced = True
            return False
        self.applied = applied
        self.stopped = frozenset(one.name for one in share.jobs if one.state == "stop")
        return False

    def renewed(self, sent_at: float, now: float) -> None:
        """Record a successful acknowledgement, and apply a share that waited for it."""
        self.renewed_at = sent_at
        if self._pending is not None:
            self.offer(self._pending, now)

    def succeed(self, acknowledged: str) -> None:
        """Raise ``life`` above that of the last session in the Lease, if that session belongs to this pod."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            before = json.loads(acknowledged)
            if before["podUID"] == self._settings.pod_uid:
                self.life = max(self.life, int(before["life"]) + 1)

    def begin_session(self) -> None:
        """Begin a new session with no running jobs, as a new process would."""
        self.session = identity.new_session()
        self.sessions.add(self.session)
        self.life = max(self.life + 1, _clock())
        self.applied, self.renewed_at, self.fenced = Applied(), None, False
        self.stopped = frozenset()

    def acknowledgement(self, held: Mapping[str, Held]) -> dict[str, Any]:
        """Return the acknowledgement to write. It guarantees that only jobs in ``running`` run.

        Args:
            held: jobs that run or may run.
        """
        failing = {name: one.error[:_LONGEST_ERROR] for name, one in sorted(held.items()) if one.error}
        running: dict[str, Any] = {"running": sorted(held)}
        room = _ROOM - len(compact(running))
        if room < 0:
            running = {"running": None, "runningCount": len(held)}
            room = _ROOM
        return {
            "podUID": self._settings.pod_uid,
            "session": self.session,
            "life": self.life,
            "version": self.applied.version,
            **running,
            "failing": dict(list(failing.items())[:_MOST_ERRORS]),
            "draining": self.draining,
            "fenceSeconds": self.applied.fence_seconds,
            "seen": max(self.applied.seen, 0),
            "stopped": _that_fit(sorted(self.stopped - held.keys()), room),
        }

    def _is_late(self, applied: Applied, now: float) -> bool:
        if not applied.fence_seconds:
            return False
        return self.renewed_at is None or now >= fence.times(self.renewed_at, applied.fence_seconds).stop_at


def _clock() -> int:
    """Return Unix milliseconds: higher than for earlier processes of the pod, even if the Lease was deleted."""
    return int(time.time() * 1000)


def compact(content: Any) -> str:
    """Return JSON without spaces, in ASCII."""
    return json.dumps(content, separators=(",", ":"))


def _that_fit(names: list[str], room: int) -> list[str]:
    """Return the first names that fit into ``room`` bytes of JSON. Later acknowledgements contain the other names."""
    sizes = itertools.accumulate(len(compact(name)) + 1 for name in names)
    return [name for name, size in zip(names, sizes, strict=True) if size <= room]
