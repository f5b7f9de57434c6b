"""Room on virtual nodes: their allocatable minus the requests of the pods that are bound to them. Does no IO.

``Rooms`` books room on other virtual nodes for pods that run in a lost cluster, so that none of them is moved without room.
The free room is read from the caches. The following pods take room before they are bound:

- pods that wait for a node in the upper cluster
- the successors of moved pods, until they exist
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import condition, is_finished
from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.apimachinery.readable import some
from controller_runtime.objects import Object
from controller_runtime.util.event_loop import Slicer
from descheduler import pods
from descheduler.cluster import ClusterView

_REFUSED = timedelta(minutes=1)
"""Time after which a pod that the upper scheduler has refused takes no room: the scheduler has seen the room and not used it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Allocatable and requested resources of a virtual node; cpu in thousandths, others in whole units."""

    name: str
    allocatable: Mapping[str, int]
    requested: Counter[str]

    def percent(self, resource: str) -> float:
        """Return the requests in percent of allocatable; 100 if the resource is requested and not allocatable."""
        allocatable, requested = self.allocatable.get(resource, 0), self.requested[resource]
        if allocatable <= 0:
            return 100.0 if requested else 0.0
        return 100.0 * requested / allocatable

    def with_requests(self, requests: Mapping[str, int]) -> Usage:
        """Return the usage with one more pod."""
        return Usage(self.name, self.allocatable, self.requested + Counter(requests))

    def lacking(self, requests: Mapping[str, int]) -> list[str]:
        """Return the resources of which the node has too little left for one more pod."""
        return [
            resource
            for resource, count in sorted(requests.items())
            if count and self.requested[resource] + count > self.allocatable.get(resource, 0)
        ]


def usage_of(node: Object, on_it: Iterable[Object]) -> Usage:
    """Return a virtual node's usage by the requests of these pods."""
    allocatable = (node.status or {}).get("allocatable") or {}
    requested: Counter[str] = Counter()
    for pod in on_it:
        requested.update(requests_of(pod))
    return Usage(
        node.name, {name: quantity.of(name, value) for name, value in allocatable.items()}, requested
    )


def requests_of(pod: Object) -> dict[str, int]:
    """Return a pod's requests, including ``pods: 1`` for the pod itself."""
    return {**pod_resources.pod_requests(pod.spec or {}), "pods": 1}


def taker(requests: Mapping[str, int], usages: Iterable[Usage]) -> Usage | None:
    """Return the node that would be least used after it has taken a pod; None: no node has room."""
    fitting = [usage for usage in usages if not usage.lacking(requests)]

    def fullest(usage: Usage) -> tuple[float, str]:
        after = usage.with_requests(requests)
        return max(map(after.percent, requests), default=0.0), usage.name

    return min(fitting, key=fullest, default=None)


def why_none(requests: Mapping[str, int], usages: Sequence[Usage]) -> str:
    """Return why no node has room for a pod."""
    lacks = (f"{usage.name} lacks {', '.join(usage.lacking(requests))}" for usage in usages)
    return f"no other ready virtual node has room for it: {some(lacks)}"


def will_take_room(pod: Object, now: datetime) -> bool:
    """Report whether a pod without a node is expected to take room soon.

    A pod that the upper scheduler has refused for a minute is not, for example because no single lower node has room for it.
    """
    scheduled = condition(pod.status, "PodScheduled")
    since = scheduled.get("lastTransitionTime") if scheduled.get("status") == "False" else None
    return pods.is_active(pod) and (since is None or now - timestamps.parse(since) < _REFUSED)


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
        return taker(requests_of(pod), self._of(self.view.alternatives(pod))) is not None

    async def take(self, pod: Object, elsewhere: Sequence[Object]) -> str:
        """Book room for the successor of a pod on one of these nodes; return why there is none; empty: it was booked."""
        await self._read()
        self.give_back(pod)  # booked before, in a dry run
        requests, usages = requests_of(pod), self._of(elsewhere)
        if (usage := taker(requests, usages)) is None:
            return why_none(requests, usages)
        usage.requested.update(requests)
        at = asyncio.get_running_loop().time()
        self._bookings[pod.uid] = _Booking(pod, pods.owner_key(pod), usage.name, at)
        return ""

    def give_back(self, pod: Object) -> None:
        """Undo ``take`` for a pod that was not moved; do nothing if no room was booked for it."""
        booking = self._bookings.pop(pod.uid, None)
        if booking is not None and booking.node in self._usages:
            self._usages[booking.node].requested.subtract(requests_of(pod))

    def _pod_added(self, pod: Object) -> None:
        """Record that a moved pod has a successor, which counts itself from the next read on."""
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
        waiting = [pod for pod in store.by_index(pods.INDEX_NODE, "") if will_take_room(pod, now)]
        self._bookings = {
            uid: booking
            for uid, booking in self._bookings.items()
            if not booking.has_successor and begun - booking.at < _REPLACED
        }
        booked = [booking.pod for booking in self._bookings.values()]
        usages = [usage_of(node, ()) for node in nodes]
        slicer = Slicer()
        for usage, on_it in zip(usages, bound, strict=True):
            for pod in on_it:
                await slicer.tick()
                if not is_finished(pod.status):
                    usage.requested.update(requests_of(pod))
        by_name = {usage.name: usage for usage in usages}
        for pod in [*reversed(pods.least_important_first(waiting)), *booked]:
            await slicer.tick()
            requests = requests_of(pod)
            admitting = [by_name[node.name] for node in self.view.alternatives(pod, among=nodes)]
            if (place := taker(requests, admitting)) is not None:
                place.requested.update(requests)
        return by_name
