"""Lower events that wait, in a third of their size and bounded: for their object, or for their turn to be copied.

``HeldEvents`` wait for an object that the cache does not have yet. The watches of events and of objects are two
connections without a common order. In a burst of thousands of pods, an event may arrive many seconds before its pod.
Lower users can write events of objects that never appear, so these events are limited in size and age.

The events of ``Outbox`` wait until the recorder has room for their copies, one upper namespace after the other. The rate
is limited for the lower cluster (``bucket``) and for each upper object (``spam``). Both count writes and not lower
events: an event that changes while its copy waits is written once.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from controller_runtime.events import DROPPED, EventRecorder
from controller_runtime.objects import Object, decode_object
from controller_runtime.util.buffers import FairBuffer
from controller_runtime.util.rate_limiter import Pace, TokenBucket
from virtual_node.controllers.events.kinds import MirroredKind
from virtual_node.translate.objects import events

LIMIT = 8 << 20
"""Maximum bytes of held events, about 10,000 of them. The namespace with the most loses its oldest ones first."""
LONGEST = 300.0
"""Seconds after which a held event is dropped: longer than a dead watch of pods remains unnoticed
(``cache/reflector.py``)."""
_HELD_OVERHEAD, _QUEUED_OVERHEAD = 600, 420
"""Bytes of memory of the only held event of an object, and of an event in an ``Outbox``, in addition to its text; measured."""
_COMMON = (
    b'"message":"Error: ImagePullBackOff Back-off restarting failed container in pod _Readiness Liveness Startup probe '
    b"failed: FailedMount MountVolume.SetUp failed for volume Killing Stopping container 0/ nodes are available: "
    b"preemption: No preemption victims found for incoming pod. FailedScheduling Pulling Pulling image Successfully pulled "
    b'image \\" in ms ( including waiting). Image size: bytes. Container image \\" already present on machine and can be '
    b'accessed by the pod Container started Container created "reason":"Pulled" "Created" "Started" "BackOff" "Unhealthy" '
    b'"type":"Warning","metadata":{"namespace":"","uid":"-"},"involvedObject":{"namespace":"","name":"-","uid":"-",'
    b'"fieldPath":"spec.containers{"},"source":{"component":"kubelet"},"type":"Normal","reason":"Scheduled",'
    b'"message":"Successfully assigned / to ","source":{"component":"default-scheduler"},"reportingInstance":"",'
    b'"eventTime":"2026-01-01T00:00:00.000000Z","action":"Binding","count":1,"firstTimestamp":"2026-01-01T00:00:00Z",'
    b'"lastTimestamp":"2026-01-01T00:00:00Z","reportingComponent":"kubelet","reportingInstance":"'
)
"""Text that compression refers to: an event is too short to repeat itself. The most frequent text is at the end."""
_LEVEL, _WINDOW, _MEMORY = 6, -11, 4
"""Raw deflate with a window of 2 KiB, for which one event takes 20 KiB of memory instead of 256."""


def pack(event: Object) -> bytes:
    """Return a reduced event in about a third of the length of its JSON."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=_COMMON)
    return packer.compress(event.to_json()) + packer.flush()


def unpack(packed: bytes) -> Object:
    """Return the event of ``pack``."""
    unpacker = zlib.decompressobj(_WINDOW, zdict=_COMMON)
    return decode_object(unpacker.decompress(packed) + unpacker.flush())


@dataclass(slots=True)
class _Unseen:
    """The events of one object."""

    since: float
    events: dict[str, bytes] = field(default_factory=dict)
    """By the event's uid, in its latest state, as ``pack`` returns it."""
    size: int = 0


@dataclass(eq=False, repr=False)
class HeldEvents:
    """Lower events by the uid of their object."""

    cluster: str
    """The lower cluster's name, in metrics."""
    _objects: FairBuffer[str, _Unseen] = field(default_factory=FairBuffer)

    def hold(self, event: Object, uid: str, *, now: float) -> None:
        """Keep a reduced event of the object with that uid; an earlier state of the same event is replaced."""
        unseen = self._objects.get(event.namespace, uid) or _Unseen(now)
        before, packed = unseen.events.get(event.uid), pack(event)
        unseen.events[event.uid] = packed
        unseen.size += len(packed) + (_HELD_OVERHEAD if before is None else -len(before))
        self._objects.put(event.namespace, uid, unseen, size=unseen.size)
        while self._objects.size > LIMIT:
            self._drop(self._objects.evict(), "overflow")

    def release(self, lower: Object) -> list[Object]:
        """Return and forget the events of an object that the cache has now."""
        unseen = self._objects.remove(lower.namespace, lower.uid)
        return [] if unseen is None else [unpack(packed) for packed in unseen.events.values()]

    def expire(self, *, now: float) -> None:
        """Drop the events of objects that have not appeared for too long."""
        while old := [
            (namespace, uid)
            for namespace, uid, unseen in self._objects.oldest()
            if now - unseen.since >= LONGEST
        ]:
            for namespace, uid in old:
                self._drop(self._objects.remove(namespace, uid), "unseen")

    def _drop(self, unseen: _Unseen | None, cause: str) -> None:
        DROPPED.labels(self.cluster, cause).inc(len(unseen.events) if unseen is not None else 0)


class _Waiting(NamedTuple):
    kind: MirroredKind
    upper_key: str
    upper_uid: str
    event: bytes
    """As ``pack`` returns it."""


def copy_of(event: Object, upper: Object, kind: MirroredKind) -> dict[str, Any]:
    """Return the event to create in the upper cluster for an event of a lower object."""
    metadata = {
        "namespace": upper.namespace,
        "name": upper.name,
        "uid": upper.uid,
        "resourceVersion": upper.resource_version,
    }
    head = {"apiVersion": upper.api_version, "kind": upper.kind, "metadata": metadata}
    return events.upper_event(event.to_dict(), head, node_name=kind.node_of(upper))


@dataclass(eq=False, repr=False)
class Outbox:
    """Hands copies to the recorder when it has room, so that copies displace neither each other nor own events."""

    cluster: str
    """The lower cluster's name, in metrics."""
    recorder: EventRecorder
    limit: int
    """Maximum bytes of waiting events. The namespace with the most loses its oldest ones first."""
    bucket: TokenBucket
    spam: Pace[str]
    """Limits the copies of each upper object, by its uid. The copies above the limit are dropped."""
    _waiting: FairBuffer[str, _Waiting] = field(default_factory=FairBuffer)
    """By the uid of the lower event."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, kind: MirroredKind, upper: Object, event: Object) -> None:
        """Queue a reduced lower event; it replaces a waiting earlier state of the same event."""
        packed = pack(event)
        waiting = _Waiting(kind, upper.key, upper.uid, packed)
        self._waiting.put(upper.namespace, event.uid, waiting, size=len(packed) + _QUEUED_OVERHEAD)
        while self._waiting.size > self.limit:
            self._waiting.evict()
            self._drop("overflow")
        self._arrived.set()

    async def run(self) -> None:
        """Send copies until cancelled."""
        while True:
            while not self._waiting.size:
                self._arrived.clear()
                await self._arrived.wait()
            await self.bucket.acquire()
            await self.recorder.wait_for_room()
            self._send_next()

    def _send_next(self) -> None:
        """Send the next copy that is not spam and of which the upper object still exists.

        ``kubectl describe`` shows no events of other objects.
        """
        now = asyncio.get_running_loop().time()
        while (waiting := self._waiting.take()) is not None:
            upper = waiting.kind.find_upper(waiting.upper_key, waiting.upper_uid)
            if upper is None:
                self._drop("gone")
            elif self.spam.wait(waiting.upper_uid, now=now):
                self._drop("spam")
            else:
                self.recorder.record(copy_of(unpack(waiting.event), upper, waiting.kind))
                return

    def _drop(self, cause: str) -> None:
        DROPPED.labels(self.cluster, cause).inc()
