"""The record of a Swarm: which pod may run which job. It is stored in the Swarm's ``status.record``.

One object with one resourceVersion holds all grants of a Swarm. So two controllers cannot grant the same job twice,
because the second write conflicts. Everything that workers read is derived from a stored record.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec


class Slot(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stable identity of one worker, which a replacement pod takes over: a pod name, or ``slot-N`` for a Deployment."""

    name: str
    index: int
    jobs: list[str] = []
    """Jobs assigned to the slot, including those that do not run yet."""
    pod: str = ""
    uid: str = ""
    """UID of the pod in the slot; empty: no pod."""
    unready_since: float = 0.0
    """Seconds since the epoch; 0: ready."""


class Holder(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pod that may run jobs. It stays in the record until it runs none, even without a slot."""

    pod: str
    uid: str
    node: str = ""
    session: str = ""
    """Session of the worker process that the share is written for; empty: none has registered."""
    life: int = 0
    version: int = 0
    """Version of the share's content."""
    start: list[str] = []
    stop: list[str] = []
    """Revoked jobs that the worker has not acknowledged as stopped."""
    draining: bool = False
    silent: bool = False
    """Whether its worker lost its slot because it does not report, although its pod may be ready: its session was ended
    after the fence time, or it had none for the grace period. The next session clears this."""
    fence: float = 0.0
    """Longest fence time, in seconds, that the session may apply; 0: it may run jobs without a fence."""


class Ledger(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All grants of a Swarm."""

    version: int = 0
    """Version of the newest share or assignment; never decreases."""
    table: int = 0
    """Version of the last change of the assignment."""
    settings: str = ""
    """Digest of the settings that all shares contain; a change gives all shares a new version."""
    slots: dict[str, Slot] = {}
    holders: dict[str, Holder] = {}
    """By pod UID."""

    def holder_of(self, slot: Slot) -> Holder | None:
        """Return the pod in the slot; None: no pod."""
        return self.holders.get(slot.uid)

    def slots_by_uid(self) -> dict[str, Slot]:
        """Return the slot of each pod that has one, by pod UID."""
        return {slot.uid: slot for slot in self.slots.values() if slot.uid}

    def previous(self) -> dict[str, str]:
        """Return the name of each assigned job's slot."""
        return {job: slot.name for slot in self.slots.values() for job in slot.jobs}


_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Text = Annotated[str, msgspec.Meta(max_length=128)]
_Jobs = Annotated[list[Annotated[str, msgspec.Meta(max_length=1024)]], msgspec.Meta(max_length=40_000)]
"""The limits protect the record from a hostile worker. 40,000 is twice the largest number of jobs of a Swarm."""
_ERRORS, _LONGEST_ERROR = 20, 200


class Acknowledgement(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What a worker reports; see docs/swarm-worker.md."""

    pod_uid: _Text = msgspec.field(default="", name="podUID")
    session: _Text = ""
    life: _Number = 0
    version: _Number = 0
    running: _Jobs | None = []
    """Jobs that run, or may start without a newer share; None: the list was too long."""
    running_count: int = 0
    """Number of running jobs if the list was too long."""
    stopped: _Jobs = []
    """Jobs with state ``stop`` in the share, except jobs that still run."""
    failing: dict[str, str] = {}
    draining: bool = False
    fence_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Fence time in seconds that the worker applies; 0: none, or not read yet; None: the worker has no fence."""
    seen: _Number = 0
    """Version of the newest share whose fence time the worker applies. It is above ``version`` with ``refresh:
    Restart``, where later shares change no other settings; 0: the same as ``version``."""
    jobs: _Jobs | None = None
    """Jobs that a worker of k8s-swarm read when it started; it reports only these and the version, over HTTP."""

    def begins_after(self, holder: Holder | None) -> bool:
        """Report whether this is a later session of the pod than the last one in the record."""
        if holder is None:
            return bool(self.session) and self.life > 0
        return self.session not in {"", holder.session} and self.life > holder.life

    def unreleased(self, jobs: Iterable[str]) -> list[str]:
        """Return those of the jobs that run, or can start without a newer share."""
        if self.running is None:
            stopped = set(self.stopped)
            return [job for job in jobs if job not in stopped]
        running = set(self.running)
        return [job for job in jobs if job in running]


def dump(ledger: Ledger) -> str:
    """Return the text for the Swarm's status; compressed, because 10,000 long names would exceed etcd's limit."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(ledger), 6)).decode()


def load(text: str) -> Ledger:
    """Parse the record in a Swarm's status; return an empty one if there is none.

    Raises:
        ValueError: the text is damaged.
    """
    if not text:
        return Ledger()
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), _LIMIT)
        if not stream.eof:
            raise ValueError("incomplete or too large")
        return msgspec.json.decode(data, type=Ledger)
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"status.record cannot be read: {error}") from None


_LIMIT = 64 << 20
"""Bytes; a controller never writes a record that decompresses to more."""


def acknowledgement(text: str) -> Acknowledgement | None:
    """Parse a worker's acknowledgement; None if it is invalid. An invalid one releases no job."""
    try:
        found = msgspec.json.decode(text, type=Acknowledgement)
    except ValueError:
        return None
    shown = sorted(found.failing.items())[:_ERRORS]
    found.failing = {_printable(job): _printable(error) for job, error in shown}
    return found


def _printable(text: str) -> str:
    """Return the beginning of a worker's text without control characters, which a terminal would execute."""
    return "".join(char if char.isprintable() else " " for char in text[:_LONGEST_ERROR])


def contents(ledger: Ledger) -> dict[str, Any]:
    """Return the content of each share by pod UID; changed content gives a share a new version."""
    assigned = {slot.uid: slot.jobs for slot in ledger.slots.values() if slot.uid}
    return {
        uid: (
            holder.session,
            frozenset(holder.start),
            frozenset(holder.stop),
            frozenset(assigned.get(uid, ())).difference(holder.start, holder.stop),
        )
        for uid, holder in ledger.holders.items()
    }
