"""The record of a Swarm: which pod may run which job. It is the Swarm's status field ``record``.

One object with one resourceVersion holds all grants of a Swarm, so two controllers cannot grant one job twice: the
second write conflicts. Everything that workers read is derived from a record that was written before.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec


class Slot(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A stable place for one worker: the pod of a StatefulSet, or a numbered slot of a Deployment."""

    name: str
    index: int
    jobs: list[str] = []
    """The jobs assigned to the slot, whether they run yet or not."""
    pod: str = ""
    uid: str = ""
    """Of the pod that has the slot; empty while there is none."""
    unready_since: float = 0.0
    """Seconds since the epoch; 0: ready."""


class Holder(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pod that may run jobs. It stays in the record until it runs none, even without a slot."""

    pod: str
    uid: str
    node: str = ""
    session: str = ""
    """The life of the worker process for which the share is written; empty: none has registered."""
    life: int = 0
    version: int = 0
    """Of the share's content."""
    start: list[str] = []
    stop: list[str] = []
    """Revoked, and not acknowledged yet."""
    draining: bool = False


class Ledger(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All grants of a Swarm."""

    version: int = 0
    """Of the newest share; never decreases."""
    table: int = 0
    """The version at which the assignment changed last."""
    settings: str = ""
    """What else the content of shares depends on; a change gives all of them a new version."""
    slots: dict[str, Slot] = {}
    holders: dict[str, Holder] = {}
    """By pod UID."""

    def holder_of(self, slot: Slot) -> Holder | None:
        """The pod that has the slot."""
        return self.holders.get(slot.uid)

    def previous(self) -> dict[str, str]:
        """Job → slot."""
        return {job: slot.name for slot in self.slots.values() for job in slot.jobs}


class Acknowledgement(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What a worker reports; see docs/swarm-worker.md."""

    pod_uid: str = msgspec.field(default="", name="podUID")
    session: str = ""
    life: int = 0
    version: int = 0
    running: list[str] | None = []
    """Everything that runs, or may be started without a newer share; None: too long to be listed."""
    stopped: list[str] = []
    """Jobs of the share with state ``stop`` that do not run."""
    failing: dict[str, str] = {}
    draining: bool = False
    fence_seconds: float = 0.0
    """The fence time that the worker keeps to; 0: none, or it has not read it yet."""
    jobs: list[str] | None = None
    """All that workers of k8s-swarm report over HTTP, besides the version: what they read when they started."""

    def releases(self, job: str) -> bool:
        """Whether a job does not run and will not be started without a newer share."""
        return job in self.stopped if self.running is None else job not in self.running


def dump(ledger: Ledger) -> str:
    """Return the text for the Swarm's status: compressed, because 10,000 long names would not fit into etcd."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(ledger), 6)).decode()


def load(text: str) -> Ledger:
    """Return the record in a Swarm's status; an empty one if there is none.

    Raises:
        ValueError: the text is damaged.
    """
    if not text:
        return Ledger()
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), _LIMIT)
        if not stream.eof:
            raise ValueError("it is incomplete or too large")
        return msgspec.json.decode(data, type=Ledger)
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"status.record cannot be read: {error}") from None


_LIMIT = 64 << 20
"""Bytes: a record that decompresses to more was not written by a controller."""


def acknowledgement(text: str) -> Acknowledgement | None:
    """Return what a worker wrote; None if it cannot be read, which releases nothing."""
    try:
        return msgspec.json.decode(text, type=Acknowledgement)
    except msgspec.MsgspecError:
        return None


def contents(ledger: Ledger) -> dict[str, Any]:
    """Return, by pod UID, what the version of a share depends on."""
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
