"""Messages between controller and worker, and the worker's membership in its Swarm that connects them. No IO.

The controller writes shares (the jobs that a worker must run), and the worker acknowledges them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from swarm.worker import fence, identity
from swarm.worker.identity import Settings
from swarm.worker.jobs import Held, Job

State = Literal["start", "stop", "hold"]
_STATES = ("start", "stop", "hold")


class ShareError(ValueError):
    """A share is damaged, incomplete, or for another worker."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of a share."""

    name: str
    state: State
    token: int | None = None
    """Fencing token; None: the controller writes no tokens; the version of the share that started the job is used."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Part:
    """One of the texts that a share is split into."""

    version: int
    session: str
    pod_uid: str
    jobs: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Share(Part):
    """The first part of a share, or the complete share from ``join``."""

    exclusive: bool = True
    restart: bool = False
    """Whether later shares take effect only after a restart of this worker."""
    fence_seconds: float = 0.0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Applied:
    """The state that results from the accepted shares."""

    version: int = 0
    """Version of the last share that was applied completely."""
    seen: int = -1
    """Highest accepted version; -1: none."""
    wanted: Mapping[str, Job] | None = None
    """Jobs to run, by name; None before the first share."""
    on_hold: frozenset[str] = frozenset()
    """Jobs with state ``hold`` in the share of ``version``, because another worker could still run them."""
    fence_seconds: float = 0.0


def parse(text: bytes, checksum: str = "") -> Share:
    """Parse the first part of a share.

    Args:
        text: JSON.
        checksum: ``sha256:`` and hex digits; empty: not checked.

    Raises:
        ShareError: the share is invalid.
    """
    raw = _object(text, checksum)
    if raw.get("handover") not in ("Exclusive", "Overlap") or raw.get("refresh") not in ("Signal", "Restart"):
        raise ShareError("handover or refresh has an unknown value")
    part = _part(raw)
    return Share(
        part.version,
        part.session,
        part.pod_uid,
        part.jobs,
        exclusive=raw["handover"] == "Exclusive",
        restart=raw["refresh"] == "Restart",
        fence_seconds=_number(raw, "fenceSeconds"),
        parts=int(_number(raw, "parts", 1)),
    )


def parse_part(text: bytes, checksum: str = "") -> Part:
    """Parse a further part of a share.

    Raises:
        ShareError: the part is invalid.
    """
    return _part(_object(text, checksum))


def join(first: Share, others: Sequence[Part]) -> Share:
    """Return the complete share.

    Raises:
        ShareError: parts are missing or belong to another version.
    """
    if len(others) != first.parts - 1:
        raise ShareError(f"has {first.parts} parts, {len(others) + 1} were found")
    for one in others:
        if (one.version, one.session, one.pod_uid) != (first.version, first.session, first.pod_uid):
            raise ShareError(f"parts have versions {first.version} and {one.version}")
    jobs = [*first.jobs, *(job for one in others for job in one.jobs)]
    if len({job.name for job in jobs}) != len(jobs):
        raise ShareError("a job is listed twice")
    return replace(first, jobs=tuple(jobs))


def accept(applied: Applied, share: Share, *, session: str, pod_uid: str, can_renew: bool) -> Applied:
    """Return the state after reading a complete share; unchanged if the share is not newer.

    Args:
        applied: the state before.
        share: the share.
        session: session of this worker.
        pod_uid: UID of this worker's pod; empty: unknown.
        can_renew: whether this worker renews its Lease, as fencing requires.

    Raises:
        ShareError: the share is not for this worker.
    """
    if pod_uid and share.pod_uid and share.pod_uid != pod_uid:
        raise ShareError(f"is for pod {share.pod_uid}, this is {pod_uid}")
    if share.exclusive and share.session != session:
        raise ShareError(f"is for session {share.session or '(none)'}, this is {session}")
    if share.exclusive and share.fence_seconds > 0 and not can_renew:
        raise ShareError("fenceSeconds needs the API: a worker that reads a file cannot renew its Lease")
    if share.version <= applied.seen:
        return applied
    before = applied.wanted or {}
    fence = share.fence_seconds if share.exclusive else 0.0
    starts = {
        job.name: Job(job.name, _token(job, before, share.version), job.weight)
        for job in share.jobs
        if job.state == "start"
    }
    if applied.wanted is None or not share.restart:
        on_hold = frozenset(job.name for job in share.jobs if job.state == "hold")
        return Applied(share.version, share.version, starts, on_hold, fence)
    released = {name: job for name, job in starts.items() if name in applied.on_hold and name not in before}
    return replace(applied, seen=share.version, wanted={**before, **released}, fence_seconds=fence)


def _token(entry: Entry, before: Mapping[str, Job], version: int) -> int:
    if entry.token is not None:
        return entry.token
    return before[entry.name].token if entry.name in before else version


def _object(text: bytes, checksum: str) -> dict[str, Any]:
    found = "sha256:" + hashlib.sha256(text).hexdigest()
    if checksum and checksum != found:
        raise ShareError(f"checksum is {found}, {checksum} was expected")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShareError(f"is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ShareError("is not an object")
    return raw


def _part(raw: Mapping[str, Any]) -> Part:
    version, session, pod_uid = raw.get("version"), raw.get("session", ""), raw.get("podUID", "")
    jobs = raw.get("jobs")
    if not isinstance(version, int) or not isinstance(session, str) or not isinstance(pod_uid, str):
        raise ShareError("version, session or podUID is missing or has a wrong type")
    if not isinstance(jobs, list):
        raise ShareError("jobs is not a list")
    return Part(version, session, pod_uid, tuple(map(_entry, jobs)))


def _entry(raw: Any) -> Entry:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str) or not raw["name"]:
        raise ShareError("a job has no name")
    token = raw.get("token")
    if raw.get("state") not in _STATES or not isinstance(token, int | None):
        raise ShareError(f"job {raw['name']}: state or token has a wrong value")
    return Entry(raw["name"], raw["state"], token, _number(raw, "weight", 1))


def _number(raw: Mapping[str, Any], key: str, default: float = 0) -> float:
    value = raw.get(key, default)
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ShareError(f"{key} is not a number")
    return value


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
        self.stopped = frozenset(job.name for job in share.jobs if job.state == "stop")
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
