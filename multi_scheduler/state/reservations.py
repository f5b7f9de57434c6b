"""Reservations of room that is not used in a lower cluster yet, so that no two pods count on the same room.

All reservations of a lower cluster together fit on its present nodes, besides the pods that run there. When something
changes, ``settle`` places them again (``placing``). A reservation that fits nowhere keeps its claim: it gets the next room.

A reservation is in one of three stages:

- *Tentative* after the filter, for every virtual node that passed, because the scheduler's choice is not known yet. It
  ends when the pod is bound or deleted, the scheduler's attempt fails, or the attempt cannot be running any more.
- *Nominated* after preemption, until the pod is bound or gives up. Pods of higher priority may take the room.
- *Bound* from the binding until the index counts the lower pod on a lower node, or the pod is finished or deleted. It
  never expires, because the lower pod may need the room at any later time.

The pod's charge to lower quotas is held only until the lower pod exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from multi_scheduler.state import placing
from multi_scheduler.state.cluster.pod_requirements import Demand, placed_on
from multi_scheduler.state.cluster.scoring import Lower
from multi_scheduler.state.future_nodes import Kind
from multi_scheduler.state.lower_state import LowerState
from multi_scheduler.state.placing import Entry, without
from multi_scheduler.state.quotas import Charge

ATTEMPT_SECONDS = 900.0
"""Longest time from filter to binding: a plug-in may hold a pod for 15 minutes (Permit), and volumes take up to 10."""
SILENT_SECONDS = 10.0
"""The same for an attempt whose failure would not change the pod, because the last attempt failed in the same way."""
NOMINATION_SECONDS = 10.0
"""Time from the preemption call until the pod must have a nominated node."""
RECENT_SECONDS = 10.0
"""Age up to which a tentative reservation will soon be bound or released in most cases."""


class Stage(enum.IntEnum):
    """How certain it is that the pod uses its room. Lower values keep their room first."""

    BOUND = 0
    NOMINATED = 1
    TENTATIVE = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Room for a pod behind a virtual node."""

    cluster: str
    """Name of the lower cluster."""
    wanted: Demand
    node: str
    """The lower node; empty: no node has room now."""
    charge: Charge | None = None
    """What the pod adds to quotas; None: nothing, or already counted."""
    is_future: bool = False
    """Whether the lower cluster must add the node."""
    moves: Mapping[str, str] = field(default_factory=dict)
    """New lower nodes of other reservations that make way, by index key."""
    can_prefer: bool = False
    """Whether the lower cluster's policy lets the lower pod prefer its node."""
    awaits: frozenset[str] = frozenset()
    """As ``Entry.awaits``."""
    preferred: str = ""
    """As ``Entry.preferred``."""


@dataclass(slots=True)
class _Option:
    cluster: str
    entry: Entry
    is_future: bool
    can_prefer: bool


@dataclass(slots=True)
class _Reservation:
    on: dict[str, _Option]
    """By virtual node."""
    stage: Stage
    priority: int
    number: int
    """Increases from one reservation to the next."""
    since: float
    deadline: float
    is_of_group: bool
    has_failed: bool = False
    """Whether the attempt failed while the group keeps the reservation."""

    def rank(self) -> tuple[int, int, int]:
        return self.stage, -self.priority, self.number


@dataclass(eq=False)
class Reservations:
    """The reservations in all lower clusters."""

    clusters: Mapping[str, LowerState]
    """By name; ``forget_cluster`` must be called before one is removed."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    lost: Callable[[str, str], None] = lambda _uid, _node: None
    """Called with UID and virtual node of a bound pod when no lower node has room for it any more."""
    lower: Lower = "LeastAllocated"
    """Strategy of the lower schedulers."""
    changes: int = 0
    """Number of changes so far."""
    _held: dict[str, _Reservation] = field(default_factory=dict)
    _created: int = 0

    _entries: defaultdict[str, dict[str, Entry]] = field(default_factory=lambda: defaultdict(dict))
    """Reservations on existing lower nodes, and those without room, by lower cluster and index key."""
    _tentative: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """UIDs by lower cluster."""
    _nominated: set[str] = field(default_factory=set)
    _unsettled: set[str] = field(default_factory=set)
    """Lower clusters with reservations that the last placing did not try."""

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()

    def forget_cluster(self, cluster: str) -> None:
        """Release all places in a lower cluster."""
        for uid, held in list(self._held.items()):
            if any(option.cluster == cluster for option in held.on.values()):
                self.narrow(uid, [node for node, option in held.on.items() if option.cluster != cluster])
        for kept in (self._entries, self._tentative):
            kept.pop(cluster, None)
        self._unsettled.discard(cluster)

    def __len__(self) -> int:
        return len(self._held)

    # --- life of a reservation -----------------------------------------------------------------------

    def reserve(
        self,
        uid: str,
        places: Mapping[str, Place],
        *,
        stage: Stage = Stage.TENTATIVE,
        priority: int = 0,
        seconds: float = ATTEMPT_SECONDS,
        is_of_group: bool = False,
    ) -> None:
        """Reserve places for a pod; replaces its earlier reservation.

        Args:
            uid: UID of the upper pod.
            places: place by virtual node.
            stage: the stage.
            priority: priority of the pod.
            seconds: time until a reservation that is not bound expires.
            is_of_group: the pod's group keeps the reservation, even if an attempt fails. Filter calls do not wait for its
                release, because the group's other pods are filtered only after such a call.
        """
        self.release(uid)
        if not places:
            return
        self._created += 1
        now = self.clock()
        deadline = math.inf if stage is Stage.BOUND else now + seconds
        held = _Reservation({}, stage, priority, self._created, now, deadline, is_of_group)
        self._held[uid] = held
        for node, place in places.items():
            entry = Entry(
                _key(uid, node), place.wanted, held.rank(), place.node, place.preferred, place.awaits
            )
            held.on[node] = _Option(place.cluster, entry, place.is_future, place.can_prefer)
            self._put(held.on[node], place, priority)
            if stage is Stage.TENTATIVE and not is_of_group:
                self._tentative[place.cluster].add(uid)
            if place.charge is not None:
                # ``hold`` counts the charge once, even if several virtual nodes represent the cluster.
                self.clusters[place.cluster].admission.hold(uid, place.charge)
        if stage is Stage.NOMINATED:
            self._nominated.add(uid)
        self.changes += 1

    def _put(self, option: _Option, place: Place, priority: int) -> None:
        cluster, entry = option.cluster, option.entry
        if option.is_future:
            self.clusters[cluster].futures.place(entry.key, placed_on(entry.node, entry.wanted))
            return
        index, entries = self.clusters[cluster].index, self._entries[cluster]
        if place.moves:
            index.touched.update(entries[key].node for key in place.moves.keys() & entries.keys())
            placing.apply(index, entries.values(), place.moves)
        entries[entry.key] = entry
        self._displace_nominated(cluster, {entry.node, *place.moves.values()} - {""}, priority)
        if entry.node:
            index.place(entry.key, placed_on(entry.node, entry.wanted))
        else:
            self._unsettled.add(cluster)

    def _displace_nominated(self, cluster: str, nodes: Collection[str], priority: int) -> None:
        """Take the room of nominated pods of lower priority on these lower nodes; ``settle`` places them again."""
        for uid in self._nominated:
            held = self._held[uid]
            for option in held.on.values():
                if held.priority < priority and option.cluster == cluster and option.entry.node in nodes:
                    self.clusters[cluster].index.remove(option.entry.key)
                    self.clusters[cluster].index.touched.add(option.entry.node)
                    option.entry.node = ""

    def narrow(self, uid: str, nodes: Collection[str]) -> None:
        """Release the pod's places except those on these nodes."""
        held = self._held.get(uid)
        if held is None:
            return
        self._drop(uid, [node for node in held.on if node not in nodes])
        if not held.on:
            self._forget(uid)
        self.note_change()

    def choose(self, uid: str, node: str) -> bool:
        """Release the pod's places except that on the chosen node; return whether room is still reserved there."""
        if (option := self._option(uid, node)) is None:
            return False
        self.narrow(uid, {node})
        self.settle(option.cluster)
        return bool(option.entry.node)

    def bind(self, uid: str, node: str) -> bool:
        """Record that the upper pod was bound to a node; return whether it had a reservation there."""
        held = self._held.get(uid)
        if held is None or node not in held.on:
            self.release(uid)
            return False
        if held.stage is not Stage.BOUND:
            self._drop(uid, [other for other in held.on if other != node])
            self._set_stage(uid, held, Stage.BOUND)
            option = held.on[node]
            if not option.entry.node:
                self.settle(option.cluster)  # the pod's other places in the cluster may have taken the room
            if not option.entry.node:
                self.lost(uid, node)
            self.note_change()
        return True

    def hold_for_preemption(self, uid: str, node: str, place: Place, *, priority: int) -> None:
        """Reserve the room that preempted pods will leave behind a virtual node, until the pod has a nominated node."""
        held = self._held.get(uid)
        places = {node: place}
        if held is not None and held.stage is Stage.NOMINATED:
            places |= {
                other: Place(
                    option.cluster, option.entry.wanted, option.entry.node, awaits=option.entry.awaits
                )
                for other, option in held.on.items()
                if other != node
            }
        self.reserve(uid, places, stage=Stage.NOMINATED, priority=priority, seconds=NOMINATION_SECONDS)

    def await_end(self, uid: str, keys: frozenset[str]) -> None:
        """Record that the pods with these index keys are being evicted for a pod, so they count as gone for its reservation."""
        held = self._held.get(uid)
        for option in held.on.values() if held is not None else ():
            option.entry.awaits = keys

    def nominate(self, uid: str, node: str, *, has_failed: bool) -> bool:
        """Record the nominated node of a pending pod; return whether the pod has a reservation there.

        kube-scheduler nominates a node after preemption, and from 1.35 on also while a plug-in holds an attempt that
        has not failed.
        """
        held = self._held.get(uid)
        if held is None or node not in held.on:
            return False
        if held.stage is not Stage.BOUND:
            self._drop(uid, [other for other in held.on if other != node])
            if held.stage is Stage.NOMINATED or has_failed:
                self._set_stage(uid, held, Stage.NOMINATED)
            self.note_change()
        return True

    def _set_stage(self, uid: str, held: _Reservation, stage: Stage) -> None:
        held.stage, held.deadline = stage, math.inf
        (self._nominated.add if stage is Stage.NOMINATED else self._nominated.discard)(uid)
        for option in held.on.values():
            option.entry.rank = held.rank()
            self._tentative[option.cluster].discard(uid)

    def release(self, uid: str) -> None:
        """Release all of a pod's places, when its lower pod has a node, or it finished or will not be created."""
        held = self._held.get(uid)
        if held is None:
            return
        self._drop(uid, list(held.on))
        self._forget(uid)
        self.note_change()

    def fail(self, uid: str) -> bool:
        """Release a pod's reservation after a failed attempt; return whether it was released.

        It is kept if the pod's group keeps it, or if the scheduler has not written the nominated node yet.
        """
        held = self._held.get(uid)
        if held is None or held.stage is Stage.BOUND:
            return False
        if held.is_of_group:
            held.has_failed = True
            return False
        if held.stage is Stage.NOMINATED and not math.isinf(held.deadline):
            return False
        self.release(uid)
        return True

    def attempted_on(self, uid: str) -> Collection[str]:
        """Return the virtual nodes with room for a pod that is being bound, while no group keeps this room."""
        held = self._held.get(uid)
        if held is None or held.stage is not Stage.TENTATIVE or held.is_of_group:
            return ()
        return held.on.keys()

    def join_group(self, uid: str) -> None:
        """Record that a pod's group keeps its reservation, as with ``is_of_group``."""
        held = self._held[uid]
        held.is_of_group = True
        for option in held.on.values():
            self._tentative[option.cluster].discard(uid)

    def leave_group(self, uid: str) -> None:
        """Record that a pod's group no longer keeps its room: only an attempt that goes on still needs it."""
        held = self._held.get(uid)
        if held is None or held.stage is Stage.BOUND:
            return
        if held.has_failed or math.isinf(held.deadline):
            self.release(uid)
            return
        held.is_of_group = False
        for option in held.on.values():
            self._tentative[option.cluster].add(uid)

    def expire(self) -> None:
        """Release reservations that are not bound and whose time expired."""
        now = self.clock()
        for uid in [uid for uid, held in self._held.items() if held.deadline <= now]:
            self.release(uid)

    def arrived(self, uid: str, *, has_node: bool = False) -> None:
        """Release the pod's charges, because its lower pod exists, and quotas count lower pods even without a node.

        ``has_node`` tells whether the lower pod has a node. A lower pod without a node may wait for a new one, which
        the autoscaler sees from now on.
        """
        if (held := self._held.get(uid)) is not None:
            for node, option in held.on.items():
                self.clusters[option.cluster].admission.arrived(uid)
                if not has_node:
                    self.clusters[option.cluster].futures.arrived(_key(uid, node))
            self.note_change()

    # --- placing ------------------------------------------------------------------------------------

    def settle(self, cluster: str) -> None:
        """Place the reservations of a cluster on its present nodes after a change, and report those that lost their room."""
        index, entries = self.clusters[cluster].index, self._entries[cluster]
        if not index.touched and cluster not in self._unsettled:
            return
        self._unsettled.discard(cluster)
        if not entries:
            index.touched.clear()
            return
        lost = placing.settle(index, entries, lower=self.lower)
        if any(entry.is_skipped for entry in entries.values()):
            self._unsettled.add(cluster)
        for entry in lost:
            uid, _, node = entry.key.partition("@")
            if self._held[uid].stage is Stage.BOUND:
                self.lost(uid, node)

    def prefer(self, uid: str, node: str) -> str:
        """Record and return the lower node that a pod's lower pod should prefer; empty: none."""
        option = self._option(uid, node)
        if option is None or option.is_future or not option.can_prefer:
            return ""
        option.entry.preferred = option.entry.node
        return option.entry.node

    def awaited(self, uid: str, node: str) -> str:
        """Return the lower node of a reservation that counts on evicted pods; empty: it does not, or there is none."""
        option = self._option(uid, node)
        return option.entry.node if option is not None and option.entry.awaits else ""

    def waiting(self, uid: str, node: str) -> Demand | None:
        """Return the requirements of a pod whose reservation behind a virtual node has no room; None: it has room."""
        option = self._option(uid, node)
        return option.entry.wanted if option is not None and not option.entry.node else None

    def homeless(self, cluster: str) -> list[tuple[str, str]]:
        """Return UID and virtual node of the bound pods in a cluster whose reservations have no room."""
        pods = (entry.key.partition("@") for entry in self._entries[cluster].values() if not entry.node)
        return [(uid, node) for uid, _, node in pods if self._held[uid].stage is Stage.BOUND]

    def stage(self, uid: str) -> Stage | None:
        """Return the stage of a pod's reservation; None: there is none."""
        held = self._held.get(uid)
        return held.stage if held is not None else None

    def bound_to(self, uid: str) -> str:
        """Return the virtual node to which a pod with a bound reservation is bound; empty: it has none."""
        held = self._held.get(uid)
        return next(iter(held.on)) if held is not None and held.stage is Stage.BOUND else ""

    def entries(self, cluster: str) -> Collection[Entry]:
        """Return the reservations in a cluster on existing lower nodes, and those without room."""
        return self._entries[cluster].values()

    def keys(self, uid: str, cluster: str) -> list[str]:
        """Return the index keys of a pod's reservation in a cluster."""
        held = self._held.get(uid)
        on = held.on.values() if held is not None else ()
        return [option.entry.key for option in on if option.cluster == cluster]

    def lower_key(self, uid: str, cluster: str) -> str:
        """Return namespace/name that the lower pod of a pod with a reservation in a cluster will have; empty: no reservation."""
        held = self._held.get(uid)
        wanted = (
            option.entry.wanted for option in (held.on.values() if held else ()) if option.cluster == cluster
        )
        return next((f"{one.namespace}/{one.name}" for one in wanted), "")

    @contextlib.contextmanager
    def without_own(self, uid: str, priority: int) -> Iterator[None]:
        """Count a pod's own reservation, and those of nominated pods of lower priority, as free inside the block."""
        lifted = [uid, *(other for other in self._nominated if self._held[other].priority < priority)]
        with contextlib.ExitStack() as stack:
            for cluster, lower in self.clusters.items():
                if keys := [key for other in lifted for key in self.keys(other, cluster)]:
                    stack.enter_context(without(lower.index, keys))
            yield

    def tentative(
        self, cluster: str, *, besides: Collection[str] = (), at_most: float = math.inf
    ) -> list[str]:
        """Return index keys of the tentative reservations in a cluster, which may stay unused.

        Args:
            cluster: name of the lower cluster.
            besides: UIDs of pods whose reservations are left out.
            at_most: age in seconds of the reservations to return.
        """
        oldest = self.clock() - at_most
        return [
            _key(uid, node)
            for uid in self._tentative[cluster]
            if uid not in besides and self._held[uid].since >= oldest
            for node, option in self._held[uid].on.items()
            if option.cluster == cluster
        ]

    def counts(self, cluster: str) -> Counter[str]:
        """Return the number of reservations in a cluster by state: bound, nominated, tentative, or waiting (without room)."""
        found: Counter[str] = Counter()
        for entry in self._entries[cluster].values():
            found["waiting" if not entry.node else Stage(entry.rank[0]).name.lower()] += 1
        return found

    # --- nodes that a cluster adds -------------------------------------------------------------------

    def waits_for(self, uid: str, node: str) -> Kind | None:
        """Return the kind of the new lower node for which a pod has a reservation behind a virtual node; None: it has none."""
        option = self._option(uid, node)
        return (
            self.clusters[option.cluster].futures.waits_for(_key(uid, node)) if option is not None else None
        )

    def moved(self, keys: Iterable[str]) -> None:
        """Record that a new lower node exists, to which these reservations moved."""
        for key in keys:
            self._reread(key)
        self.note_change()

    def landed(self, uid: str, name: Callable[[str], str]) -> None:
        """Record that a pod that waits for a new lower node got an existing one.

        Args:
            uid: UID of the upper pod.
            name: returns the lower node of this pod in a lower cluster; empty: it has none.
        """
        held = self._held.get(uid)
        for node, option in list(held.on.items()) if held is not None else ():
            futures, key = self.clusters[option.cluster].futures, _key(uid, node)
            if futures and futures.waits_for(key) is not None and (real := name(option.cluster)):
                other = futures.landed(key, real)
                for exchanged in (key, other):
                    self._reread(exchanged)

    def not_added(self, key: str) -> None:
        """Record that the new lower node of a reservation was not added in time: bound pods wait for any room."""
        uid, _, node = key.partition("@")
        held, option = self._held.get(uid), self._option(uid, node)
        if held is None or option is None:
            return
        if held.stage is not Stage.BOUND:
            self.narrow(uid, held.on.keys() - {node})
            return
        self.clusters[option.cluster].futures.remove(key)
        option.is_future, option.entry.node = False, ""
        self._entries[option.cluster][key] = option.entry
        self._unsettled.add(option.cluster)
        self.note_change()

    def _reread(self, key: str) -> None:
        """Update a reservation after ``FutureNodes`` moved it between future and existing nodes."""
        uid, _, node = key.partition("@")
        option = self._option(uid, node)
        if option is None:
            return
        futures, index = self.clusters[option.cluster].futures, self.clusters[option.cluster].index
        option.is_future = futures.waits_for(key) is not None
        placed = (futures.index if option.is_future else index).placed(key)
        option.entry.node = placed.node if placed is not None else ""
        if option.is_future:
            self._entries[option.cluster].pop(key, None)
        else:
            self._entries[option.cluster][key] = option.entry
            index.touched.add(option.entry.node)

    # --- waiting ------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> bool:
        """Wait until a reservation or a quota changes; return False after the timeout."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _option(self, uid: str, node: str) -> _Option | None:
        held = self._held.get(uid)
        return held.on.get(node) if held is not None else None

    def _drop(self, uid: str, nodes: list[str]) -> None:
        held = self._held[uid]
        for node in nodes:
            option, key = held.on.pop(node), _key(uid, node)
            cluster = option.cluster
            self.clusters[cluster].index.remove(key)
            self.clusters[cluster].futures.remove(key)
            entry = self._entries[cluster].pop(key, None)
            if entry is not None and entry.node:
                self.clusters[cluster].index.touched.add(entry.node)  # another reservation may get the room
            if all(other.cluster != cluster for other in held.on.values()):
                self._tentative[cluster].discard(uid)
                self.clusters[cluster].admission.drop(uid)

    def _forget(self, uid: str) -> None:
        del self._held[uid]
        self._nominated.discard(uid)

    def note_change(self) -> None:
        """Wake up calls that wait, because room or a quota changed."""
        self.changes += 1
        self._changed.set()


def _key(uid: str, node: str) -> str:
    return f"{uid}@{node}"
