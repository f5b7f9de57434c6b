"""Room that is promised but not yet taken below: no two pods are promised the same.

A pod that passes the filter is *tentative* on every node that passed, for nobody has told us yet which of them the
scheduler takes. Once the upper pod is seen bound it is *bound*: kept on that node's cluster only, until its lower pod
is seen on a lower node (which then counts by itself), the pod ends, or the time runs out. What quotas below will charge
it is held besides, only until the lower pod exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from multi_scheduler.fit.admission.predictor import Admission
from multi_scheduler.fit.admission.quotas import Charge
from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.pod_info import Placed

TENTATIVE_SECONDS = 10.0
"""What a scheduler takes at most from filter to bind; afterwards it has decided otherwise."""
BOUND_SECONDS = 120.0
"""What a virtual node takes at most to create a pod below."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod may go."""

    cluster: str
    """The lower one."""
    placed: Placed
    charge: Charge | None = None
    """What it will count in quotas; None: nothing, or it is counted already."""


@dataclass(slots=True)
class _Reservation:
    on: dict[str, str]
    """Virtual node → lower cluster."""
    deadline: float
    is_bound: bool = False


class Reservations:
    """The promises of all lower clusters."""

    def __init__(
        self,
        indexes: Mapping[str, ClusterIndex],
        admissions: Mapping[str, Admission],
        *,
        clock: Callable[[], float],
    ) -> None:
        """Set up.

        Args:
            indexes: by lower cluster; so are ``admissions``.
            admissions: where the charges are held.
            clock: monotonic seconds.
        """
        self._indexes = indexes
        self._admissions = admissions
        self._clock = clock
        self._held: dict[str, _Reservation] = {}
        self._tentative: dict[str, set[str]] = {cluster: set() for cluster in indexes}
        self._changed = asyncio.Event()
        for admission in admissions.values():
            admission.recounted = self._note

    def __len__(self) -> int:
        return len(self._held)

    def promise(self, uid: str, places: Mapping[str, Place]) -> None:
        """A pod may go to any of these.

        Args:
            uid: the upper pod's.
            places: by virtual node.
        """
        self.release(uid)
        if not places:
            return
        self._held[uid] = _Reservation(
            on={node: place.cluster for node, place in places.items()},
            deadline=self._clock() + TENTATIVE_SECONDS,
        )
        for node, place in places.items():
            self._indexes[place.cluster].place(_key(uid, node), place.placed)
            self._tentative[place.cluster].add(uid)
            if place.charge is not None:
                # Once for a cluster, however many virtual nodes stand for it.
                self._admissions[place.cluster].hold(uid, place.charge)

    def narrow(self, uid: str, nodes: Collection[str]) -> None:
        """Of the places that a pod may go to only these are left."""
        held = self._held.get(uid)
        if held is None:
            return
        self._drop(uid, [node for node in held.on if node not in nodes])
        if not held.on:
            del self._held[uid]
        self._note()

    def bind(self, uid: str, node: str) -> bool:
        """The upper pod is bound; tells whether there was a promise on that node."""
        held = self._held.get(uid)
        if held is None or node not in held.on:
            self.release(uid)
            return False
        if held.is_bound:
            return True
        self._drop(uid, [other for other in held.on if other != node])
        held.is_bound = True
        held.deadline = self._clock() + BOUND_SECONDS
        self._tentative[held.on[node]].discard(uid)
        self._note()
        return True

    def arrived(self, uid: str) -> None:
        """The lower pod exists: quotas count it from now on, though it may not have its room yet."""
        if (held := self._held.get(uid)) is not None:
            for cluster in set(held.on.values()):
                self._admissions[cluster].arrived(uid)
            self._note()

    def release(self, uid: str) -> None:
        """The pod is seen below, has ended, or was never to come."""
        held = self._held.get(uid)
        if held is None:
            return
        self._drop(uid, list(held.on))
        del self._held[uid]
        self._note()

    def expire(self) -> None:
        """Give back what has been promised for too long."""
        now = self._clock()
        for uid in [uid for uid, held in self._held.items() if held.deadline <= now]:
            self.release(uid)

    def tentative(self, cluster: str, *, besides: str) -> list[str]:
        """What pods other than one hold in a cluster's index and may soon turn out not to use: its keys there."""
        return [
            _key(uid, node)
            for uid in self._tentative[cluster]
            if uid != besides
            for node, where in self._held[uid].on.items()
            if where == cluster
        ]

    async def wait(self, seconds: float) -> bool:
        """Wait for any promise to be settled, or a quota to be counted again; False when none was in time."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _drop(self, uid: str, nodes: list[str]) -> None:
        held = self._held[uid]
        for node in nodes:
            cluster = held.on.pop(node)
            self._indexes[cluster].remove(_key(uid, node))
            if cluster not in held.on.values():
                self._tentative[cluster].discard(uid)
                self._admissions[cluster].drop(uid)

    def _note(self) -> None:
        self._changed.set()


def _key(uid: str, node: str) -> str:
    return f"{uid}@{node}"
