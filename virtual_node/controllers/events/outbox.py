"""Lower events that wait until the recorder has room for their copies: bounded, and one upper namespace after the other.

The rate is limited for the lower cluster (``bucket``) and for each upper object (``spam``). Both count writes and not
lower events: an event that changes while its copy waits is written once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from controller_runtime.events.recorder import DROPPED, EventRecorder
from controller_runtime.objects import Object
from controller_runtime.util.fair_buffer import FairBuffer
from controller_runtime.util.pace import Pace
from controller_runtime.util.rate_limiter import TokenBucket
from virtual_node.controllers.events.kinds import MirroredKind
from virtual_node.controllers.events.packing import pack, unpack
from virtual_node.translate.objects import events

_OVERHEAD = 420
"""Bytes of memory of a waiting event in addition to its text, measured."""


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
        self._waiting.put(upper.namespace, event.uid, waiting, size=len(packed) + _OVERHEAD)
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
