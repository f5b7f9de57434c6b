"""Keeps events of lower objects that the cache does not have yet. No IO.

The watches of events and of objects are two connections without a common order. In a burst of thousands of pods, an
event may arrive many seconds before its pod. Lower users can write events of objects that never appear, so the events
are limited in size and age.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controller_runtime.events.recorder import DROPPED
from controller_runtime.objects import Object
from controller_runtime.util.fair_buffer import FairBuffer
from virtual_node.controllers.events.packing import pack, unpack

LIMIT = 8 << 20
"""Maximum bytes of all events, about 10,000 of them. The namespace with the most loses its oldest ones first."""
LONGEST = 300.0
"""Seconds after which an event is dropped: longer than a dead watch of pods remains unnoticed (``cache/reflector.py``)."""
_OVERHEAD = 600
"""Bytes of memory of the only event of an object in addition to its text, measured."""


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
        unseen.size += len(packed) + (_OVERHEAD if before is None else -len(before))
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
