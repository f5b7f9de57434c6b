"""Reservations of room that is not used in a lower cluster yet, so that no two pods count on the same room.

After the filter, a pod has a *tentative* reservation for every virtual node that passed, because the scheduler's choice
is not known yet. When the upper pod is bound, only the reservation for its node remains and is now *bound*. It is released
when the index counts the lower pod on a lower node, the pod finishes, or the time expires. The pod's charge to lower
quotas is held only until the lower pod exists.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from multi_scheduler.fit.admission.predictor import Admission
from multi_scheduler.fit.admission.quotas import Charge
from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.pod_info import Placed
from multi_scheduler.fit.growth.future_nodes import FutureNodes
from multi_scheduler.fit.growth.kinds import Kind

TENTATIVE_SECONDS = 10.0
"""Seconds after the filter in which the scheduler must bind the pod; later the tentative reservation is released."""
BOUND_SECONDS = 120.0
"""Seconds after binding in which the lower pod must get a node; later the bound reservation is released."""


@dataclass(frozen=True, slots=True)
class Place:
    """A lower node that a pod may get."""

    cluster: str
    """Name of the lower cluster."""
    placed: Placed
    charge: Charge | None = None
    """What the pod adds to quotas; None: nothing, or already counted."""
    is_future: bool = False
    """Whether the lower cluster must add the node."""


@dataclass(slots=True)
class _Reservation:
    on: dict[str, str]
    """Virtual node → lower cluster."""
    deadline: float
    is_bound: bool = False


@dataclass(eq=False)
class Reservations:
    """The reservations in all lower clusters."""

    indexes: Mapping[str, ClusterIndex]
    admissions: Mapping[str, Admission]
    """Admission rules by lower cluster; they hold the charges."""
    futures: Mapping[str, FutureNodes]
    """Nodes that may be added, by lower cluster. ``FutureNodes`` decides when bound reservations on them expire."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    changes: int = 0
    """Number of changes so far."""
    _held: dict[str, _Reservation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tentative: dict[str, set[str]] = {cluster: set() for cluster in self.indexes}
        self._changed = asyncio.Event()
        for admission in self.admissions.values():
            admission.recounted = self._note

    def __len__(self) -> int:
        return len(self._held)

    def reserve(self, uid: str, places: Mapping[str, Place], *, is_of_group: bool = False) -> None:
        """Reserve places for a pod; replaces its earlier reservation.

        Args:
            uid: UID of the upper pod.
            places: place by virtual node.
            is_of_group: keep the reservation until ``release`` or ``bind``. Filter calls do not wait for its release,
                because the group's other pods are filtered only after such a call.
        """
        self.release(uid)
        if not places:
            return
        self._held[uid] = _Reservation(
            on={node: place.cluster for node, place in places.items()},
            deadline=math.inf if is_of_group else self.clock() + TENTATIVE_SECONDS,
        )
        for node, place in places.items():
            target = self.futures[place.cluster] if place.is_future else self.indexes[place.cluster]
            target.place(_key(uid, node), place.placed)
            if not is_of_group:
                self._tentative[place.cluster].add(uid)
            if place.charge is not None:
                # ``hold`` counts the charge once, even if several virtual nodes represent the cluster.
                self.admissions[place.cluster].hold(uid, place.charge)

    def narrow(self, uid: str, nodes: Collection[str]) -> None:
        """Release the pod's places except those on these nodes."""
        held = self._held.get(uid)
        if held is None:
            return
        self._drop(uid, [node for node in held.on if node not in nodes])
        if not held.on:
            del self._held[uid]
        self._note()

    def bind(self, uid: str, node: str) -> bool:
        """Note that the upper pod was bound to a node; return whether it had a reservation there."""
        held = self._held.get(uid)
        if held is None or node not in held.on:
            self.release(uid)
            return False
        if held.is_bound:
            return True
        self._drop(uid, [other for other in held.on if other != node])
        held.is_bound = True
        held.deadline = math.inf if self.waits_for(uid, node) else self.clock() + BOUND_SECONDS
        self._tentative[held.on[node]].discard(uid)
        self._note()
        return True

    def place(self, uid: str, node: str) -> str:
        """Return the lower node that is reserved for a pod behind a virtual node; empty: none."""
        held = self._held.get(uid)
        cluster = held.on.get(node) if held is not None else None
        placed = self.indexes[cluster].placed(_key(uid, node)) if cluster is not None else None
        return placed.node if placed is not None else ""

    def waits_for(self, uid: str, node: str) -> Kind | None:
        """Return the kind of the new lower node for which a pod has a reservation behind a virtual node; None: it has none."""
        held = self._held.get(uid)
        cluster = held.on.get(node) if held is not None else None
        return self.futures[cluster].waits_for(_key(uid, node)) if cluster is not None else None

    def moved(self, keys: Iterable[str]) -> None:
        """Note that a new lower node exists, to which these reservations moved."""
        for key in keys:
            held = self._held.get(key.partition("@")[0])
            if held is not None and held.is_bound:
                held.deadline = self.clock() + BOUND_SECONDS
            self._note()

    def landed(self, uid: str, name: Callable[[str], str]) -> None:
        """Note that a pod that waits for a new lower node got an existing one.

        Args:
            uid: UID of the upper pod.
            name: returns the lower node of this pod in a lower cluster; empty: it has none.
        """
        held = self._held.get(uid)
        for node, cluster in held.on.items() if held is not None else ():
            futures = self.futures[cluster]
            if futures and futures.waits_for(_key(uid, node)) is not None and (real := name(cluster)):
                other = self._held.get(futures.landed(_key(uid, node), real).partition("@")[0])
                if other is not None:
                    other.deadline = math.inf

    def arrived(self, uid: str, *, has_node: bool = False) -> None:
        """Release the pod's charges, because its lower pod exists, and quotas count lower pods even without a node.

        ``has_node`` tells whether the lower pod has a node. A lower pod without a node may wait for a new one, which
        the autoscaler sees from now on.
        """
        if (held := self._held.get(uid)) is not None:
            for node, cluster in held.on.items():
                self.admissions[cluster].arrived(uid)
                if not has_node:
                    self.futures[cluster].arrived(_key(uid, node))
            self._note()

    def release(self, uid: str) -> None:
        """Release all of a pod's places, when its lower pod has a node, or it finished or will not be created."""
        held = self._held.get(uid)
        if held is None:
            return
        self._drop(uid, list(held.on))
        del self._held[uid]
        self._note()

    def expire(self) -> None:
        """Release reservations whose time expired."""
        now = self.clock()
        for uid in [uid for uid, held in self._held.items() if held.deadline <= now]:
            self.release(uid)

    def tentative(self, cluster: str, *, besides: str) -> list[str]:
        """Return index keys of other pods' tentative reservations in a cluster; they may stay unused."""
        return [
            _key(uid, node)
            for uid in self._tentative[cluster]
            if uid != besides
            for node, where in self._held[uid].on.items()
            if where == cluster
        ]

    async def wait(self, seconds: float) -> bool:
        """Wait until a reservation or a quota changes; return False after the timeout."""
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
            self.indexes[cluster].remove(_key(uid, node))
            self.futures[cluster].remove(_key(uid, node))
            if cluster not in held.on.values():
                self._tentative[cluster].discard(uid)
                self.admissions[cluster].drop(uid)

    def _note(self) -> None:
        self.changes += 1
        self._changed.set()


def _key(uid: str, node: str) -> str:
    return f"{uid}@{node}"
