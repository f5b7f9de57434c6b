"""Copies of lower events that wait for the recorder: bounded, and one upper namespace after the other.

The rate is limited for the lower cluster (``bucket``) and for each upper object (``spam``). Both count writes and not
lower events: an event that changes while its copy waits is written once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from controller_runtime.events.recorder import DROPPED, EventRecorder
from controller_runtime.events.spam_filter import SpamFilter
from controller_runtime.objects import Object
from controller_runtime.util.fair_buffer import FairBuffer
from controller_runtime.util.rate_limiter import TokenBucket
from virtual_node.controllers.events.kinds import MirroredKind

_OVERHEAD = 600
"""Bytes of memory of a copy in addition to its JSON, measured."""


class _Copy(NamedTuple):
    kind: MirroredKind
    upper_key: str
    upper_uid: str
    event: bytes
    """Encoded, because a dict takes four times the memory."""


@dataclass(eq=False, repr=False)
class Outbox:
    """Hands copies to the recorder when it has room, so that copies displace neither each other nor own events."""

    cluster: str
    """The lower cluster's name, in metrics."""
    recorder: EventRecorder
    limit: int
    """Maximum bytes of waiting copies. The namespace with the most loses its oldest ones first."""
    bucket: TokenBucket
    spam: SpamFilter[str]
    """Limits the copies of each upper object, by its uid. The copies above the limit are dropped."""
    _waiting: FairBuffer[str, _Copy] = field(default_factory=FairBuffer)
    """By the name of the copy."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, kind: MirroredKind, upper: Object, event: dict[str, Any]) -> None:
        """Queue a copy; it replaces a waiting copy of an earlier state of the same event."""
        encoded = msgspec.json.encode(event)
        copy = _Copy(kind, upper.key, upper.uid, encoded)
        name = event["metadata"]["name"]
        self._waiting.put(upper.namespace, name, copy, size=len(encoded) + _OVERHEAD)
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
        while (copy := self._waiting.take()) is not None:
            if copy.kind.find_upper(copy.upper_key, copy.upper_uid) is None:
                self._drop("gone")
            elif not self.spam.accepts(copy.upper_uid, at=now):
                self._drop("spam")
            else:
                self.recorder.record(msgspec.json.decode(copy.event))
                return

    def _drop(self, cause: str) -> None:
        DROPPED.labels(self.cluster, cause).inc()
