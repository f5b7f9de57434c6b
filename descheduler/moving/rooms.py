"""Books room on other virtual nodes for pods that run in a lost cluster, so that none of them is moved without room.

The free room is read from the caches. The following pods take room before they are bound:

- pods that wait for a node in the upper cluster
- the successors of moved pods, until they exist
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from clusterset.model.pod.conditions import is_finished
from controller_runtime.objects import Object
from controller_runtime.util.yielding import Slicer
from descheduler.view import pods, room
from descheduler.view.cluster import ClusterView
from descheduler.view.room import Usage

_REPLACED = 60.0
"""Seconds for which room is kept for the successor of a moved pod that does not exist yet."""
_SHORTEST, _LONGEST = 1.0, 10.0
"""Limits of the seconds between two reads of the caches."""
_SHARE = 20
"""Interval of reads as a multiple of their duration, so that they use at most 5 % of a core."""


@dataclass(slots=True)
class _Booking:
    """Room for the successor of a moved pod."""

    pod: Object
    owner: str
    """Key of the pod's owner."""
    node: str
    at: float
    """Monotonic time of the booking."""
    has_successor: bool = False


@dataclass(eq=False)
class Rooms:
    """Free room on the open virtual nodes, minus the room that was booked."""

    view: ClusterView
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._usages: dict[str, Usage] = {}
        self._fresh_until = float("-inf")
        self._reading = asyncio.Lock()
        self._bookings: dict[str, _Booking] = {}
        """By UID of the moved pod."""
        self.view.pods.add_handler(on_add=lambda pod, _initial: self._pod_added(pod))

    async def has(self, pod: Object) -> bool:
        """Report whether another virtual node that admits the pod has room for it."""
        await self._read()
        return room.taker(room.requests_of(pod), self._of(self.view.alternatives(pod))) is not None

    async def take(self, pod: Object, elsewhere: Sequence[Object]) -> str:
        """Book room for the successor of a pod on one of these nodes; return why there is none; empty: it was booked."""
        await self._read()
        self.give_back(pod)  # booked before, in a dry run
        requests, usages = room.requests_of(pod), self._of(elsewhere)
        if (usage := room.taker(requests, usages)) is None:
            return room.why_none(requests, usages)
        usage.requested.update(requests)
        at = asyncio.get_running_loop().time()
        self._bookings[pod.uid] = _Booking(pod, pods.owner_key(pod), usage.name, at)
        return ""

    def give_back(self, pod: Object) -> None:
        """Undo ``take`` for a pod that was not moved; do nothing if no room was booked for it."""
        booking = self._bookings.pop(pod.uid, None)
        if booking is not None and booking.node in self._usages:
            self._usages[booking.node].requested.subtract(room.requests_of(pod))

    def _pod_added(self, pod: Object) -> None:
        """Note that a moved pod has a successor, which counts itself from the next read on."""
        owner = pods.owner_key(pod) if self._bookings else ""
        for uid, booking in self._bookings.items():
            if booking.owner == owner and uid != pod.uid and not booking.has_successor:
                booking.has_successor = True
                return

    def _of(self, nodes: Sequence[Object]) -> list[Usage]:
        return [self._usages[node.name] for node in nodes if node.name in self._usages]

    async def _read(self) -> None:
        """Read the room from the caches if the last read is too old."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            begun = loop.time()
            if begun < self._fresh_until:
                return
            self._usages = await self._free_room(begun)
            taken = loop.time() - begun
            self._fresh_until = loop.time() + min(_LONGEST, max(_SHORTEST, _SHARE * taken))

    async def _free_room(self, begun: float) -> dict[str, Usage]:
        """Return the usages of all open nodes with the pods that will take room there."""
        # All lists are taken at one moment, so that every pod is counted once.
        store, nodes, now = self.view.pods.store, self.view.open_nodes(), self.now()
        bound = [store.by_index(pods.INDEX_NODE, node.name) for node in nodes]
        waiting = [pod for pod in store.by_index(pods.INDEX_NODE, "") if room.will_take_room(pod, now)]
        self._bookings = {
            uid: booking
            for uid, booking in self._bookings.items()
            if not booking.has_successor and begun - booking.at < _REPLACED
        }
        booked = [booking.pod for booking in self._bookings.values()]
        usages = [room.usage_of(node, ()) for node in nodes]
        slicer = Slicer()
        for usage, on_it in zip(usages, bound, strict=True):
            for pod in on_it:
                await slicer.tick()
                if not is_finished(pod.status):
                    usage.requested.update(room.requests_of(pod))
        by_name = {usage.name: usage for usage in usages}
        for pod in [*reversed(pods.least_important_first(waiting)), *booked]:
            await slicer.tick()
            requests = room.requests_of(pod)
            admitting = [by_name[node.name] for node in self.view.alternatives(pod, among=nodes)]
            if (place := room.taker(requests, admitting)) is not None:
                place.requested.update(requests)
        return by_name
