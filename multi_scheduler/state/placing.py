"""Finds lower nodes for all reservations of a lower cluster together, after a change or for an additional pod. No IO.

A reservation stays on its node as long as it fits there. ``settle`` gives those that no longer fit another node; if no
node has room, it also moves other reservations. A reservation is movable unless the lower pod prefers its present node,
because the lower scheduler will use that node. ``arrange`` tries all combinations within a limit of work, so it is exact
for common small sets. Past the limit it reports that there is no room, because a wrong promise is worse than a refusal.

Pods to preempt make room on one lower node; the index is unchanged afterwards. kube-scheduler chooses victims by the
virtual node's totals, and the same ones at every attempt. If their room is spread over several lower nodes, evicting them
does not help, while other victims might. An extender may return other victims (extender/v1, ExtenderPreemptionResult).
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed, Term, placed_on
from multi_scheduler.state.cluster.scoring import Lower, predict

MOST_MOVABLE = 24
"""Number of reservations that are moved for one pod. With more, only those on nodes that could take the pod are tried."""
_WORK = 60_000
"""Work of one search: each step costs the number of nodes, plus ``_STEP``. About 20 ms."""
_STEP = 20
_MOST_DISTANT = 50
"""Number of reservations that depend on pods on other nodes up to which all are checked after a change of any node."""
_COMPARED = ("cpu", "memory")
_LOWEST_PRIORITY = 2**31


@dataclass(slots=True, eq=False)
class Entry:
    """A reservation in one lower cluster: the pod's requirements, and the lower node where room is reserved."""

    key: str
    """Key in the index."""
    wanted: Demand
    rank: tuple[int, int, int] = (0, 0, 0)
    """Of two reservations for the same room, the one with the lower rank keeps it."""
    node: str = ""
    """The lower node; empty: no node has room."""
    preferred: str = ""
    """The lower node that the lower pod prefers; empty: the lower scheduler is free to choose."""
    awaits: frozenset[str] = frozenset()
    """Index keys of pods that are being evicted to make this room, so they count as gone for this reservation."""
    waits: bool = False
    """Whether no node had room at the last placing, so that only nodes that changed later can have room."""
    is_skipped: bool = False
    """Whether the last placing reached the limit of work before it tried this reservation."""

    @property
    def is_movable(self) -> bool:
        """Report whether the reservation may get another node to make room, unless a reservation with affinity follows it.

        A pod with affinity is not moved, because the pods that it follows may be reservations, too.
        """
        is_free = not self.preferred or self.preferred != self.node
        return bool(self.node) and is_free and not self.awaits and not self.wanted.affinity

    @property
    def is_plain(self) -> bool:
        """Report whether only resources and node properties matter, not the other pods on a node."""
        wanted = self.wanted
        return not (wanted.ports or wanted.spread or wanted.affinity or wanted.anti_affinity or self.awaits)


@dataclass(slots=True)
class Work:
    """Limits the work of searches."""

    left: int = _WORK
    is_spent: bool = False
    """Whether a search ended because of the limit, so that there may be room."""

    def step(self, index: ClusterIndex) -> bool:
        """Count one step; return False past the limit."""
        self.left -= len(index) + _STEP
        self.is_spent |= self.left < 0
        return not self.is_spent


def settle(
    index: ClusterIndex,
    entries: Mapping[str, Entry],
    *,
    lower: Lower = "LeastAllocated",
    work: Work | None = None,
) -> list[Entry]:
    """Place all reservations of a cluster, by key, on its present nodes; return those that lost their room.

    Afterwards, ``Entry.node`` and the index agree, and ``index.touched`` is empty. Reservations without room get a node as
    soon as there is one. A tenant can make thousands of them, so past the limit of work the rest is skipped, and comes
    first next time.
    """
    touched = set(index.touched)
    index.touched.clear()
    lifted = [entry for node in touched for key in index.on(node) if (entry := entries.get(key)) is not None]
    # Pods on other nodes matter for spread constraints, and if pods repel others from whole zones.
    is_wide = index.repels_beyond_nodes
    distant = [entry for entry in entries.values() if entry.node and (is_wide or entry.wanted.spread)]
    if touched and len(distant) <= _MOST_DISTANT:
        lifted += [entry for entry in distant if entry.node not in touched]
    for entry in lifted:
        index.remove(entry.key)
    displaced = set()
    for entry in sorted(lifted, key=_rank):
        if _fits(index, entry, entry.node):
            index.place(entry.key, placed_on(entry.node, entry.wanted))
        else:
            displaced.add(entry.key)
            entry.node = ""
    touched |= _return_to_preferred(index, entries.values())
    homeless = sorted(
        (entry for entry in entries.values() if not entry.node),
        key=lambda entry: (not entry.is_skipped, entry.rank),
    )
    if homeless:
        _rehouse(index, homeless, entries.values(), lower, work or Work(), touched=touched)
    return [entry for entry in homeless if not entry.node and entry.key in displaced]


def _return_to_preferred(index: ClusterIndex, entries: Collection[Entry]) -> set[str]:
    """Move reservations back to the nodes that their lower pods prefer and that have room again: these nodes will be used.

    Returns:
        the nodes that they leave.
    """
    left = set()
    away = [entry for entry in entries if entry.node and entry.preferred not in ("", entry.node)]
    for entry in sorted(away, key=_rank):
        index.remove(entry.key)
        if _fits(index, entry, entry.preferred):
            left.add(entry.node)
            entry.node = entry.preferred
        index.place(entry.key, placed_on(entry.node, entry.wanted))
    return left


def _rehouse(
    index: ClusterIndex,
    homeless: Sequence[Entry],
    entries: Collection[Entry],
    lower: Lower,
    work: Work,
    *,
    touched: set[str],
) -> None:
    """Give reservations without a node a node, in the given order, if there is one; ``touched``: nodes that changed."""
    hopeless: set[object] = set()
    room = _most_free(index, touched)
    for entry in homeless:
        if entry.waits and not touched:
            continue
        entry.is_skipped = work.left <= 0
        if entry.is_skipped:
            entry.waits = False  # all nodes must be tried next time
            continue
        kind, has_waited, entry.waits = _kind(entry), entry.waits, True
        if entry.is_plain and kind in hopeless:
            continue
        is_local = has_waited and not entry.wanted.spread and not entry.awaits
        may_fit = not is_local or all(
            count <= room.get(name, 0) for name, count in entry.wanted.requests.items()
        )
        if may_fit:
            work.left -= len(index) + _STEP
            if node := best_node(index, entry, lower):
                entry.node, entry.waits = node, False
                index.place(entry.key, placed_on(node, entry.wanted))
                continue
        moved = make_room(index, entry, entries, work)
        if moved is None:
            hopeless.add(kind)
            continue
        entry.waits = False
        touched |= {other.node for other in entries if other.node and other.key in moved}
        apply(index, entries, moved)
        room = _most_free(index, touched)
        entry.node = moved[entry.key]
        index.place(entry.key, placed_on(entry.node, entry.wanted))


def best_node(index: ClusterIndex, entry: Entry, lower: Lower) -> str:
    """Return the free node that the lower scheduler most likely chooses for a reservation; empty: no node has room."""
    with without(index, entry.awaits):
        slots = index.feasible(entry.wanted)
    if not slots:
        return ""
    if entry.preferred and index.slot(entry.preferred) in slots:
        return entry.preferred
    return predict(index, entry.wanted, slots, lower).place.node


def make_room(
    index: ClusterIndex, entry: Entry, others: Collection[Entry], work: Work
) -> dict[str, str] | None:
    """Return nodes by key for a pod that fits on no node, and for the movable reservations that make way for it.

    None: there is no such arrangement, or none within the limit of work.
    """
    work.left -= len(others)
    placed = [other for other in others if index.placed(other.key) is not None]
    followed: dict[str, list[Term]] = {}
    for other in placed:
        if other.wanted.affinity:
            followed.setdefault(other.node, []).extend(other.wanted.affinity)
    movable = [
        other
        for other in placed
        if other.is_movable
        and not any(
            term.covers(other.wanted.namespace, index.namespaces) and term.matches(other.wanted.labels)
            for term in followed.get(other.node, ())
        )
    ]
    if not movable or entry.wanted.affinity or entry.awaits:
        return None
    helpful = _helpful_nodes(index, entry.wanted, movable)
    if not helpful:
        return None
    if len(movable) > MOST_MOVABLE:
        movable = [other for other in movable if other.node in helpful]
        if len(movable) > MOST_MOVABLE:
            work.is_spent = True
            return None
    return arrange(index, [entry], movable, work)


def apply(index: ClusterIndex, entries: Iterable[Entry], nodes: Mapping[str, str]) -> None:
    """Move placed reservations to the given nodes."""
    moved = [entry for entry in entries if entry.node and nodes.get(entry.key, entry.node) != entry.node]
    for entry in moved:
        index.remove(entry.key)
    for entry in moved:
        entry.node = nodes[entry.key]
        index.place(entry.key, placed_on(entry.node, entry.wanted))


def arrange(
    index: ClusterIndex, homeless: Sequence[Entry], movable: Sequence[Entry], work: Work
) -> dict[str, str] | None:
    """Return a node by key for each entry so that all fit together; None: there is none within the limit of work.

    The index is unchanged afterwards.
    """
    with without(index, [entry.key for entry in movable]):
        search = _Search(
            index, sorted([*homeless, *movable], key=lambda entry: _size(index, entry.wanted)), work
        )
        return search.nodes if search.run() else None


@dataclass(eq=False)
class _Search:
    """A depth-first search: the largest entry first, its present node first, then the fullest node."""

    index: ClusterIndex
    entries: Sequence[Entry]
    work: Work
    nodes: dict[str, str] = field(default_factory=dict)
    _failed: set[tuple[int, tuple[tuple[object, tuple[int, ...]], ...]]] = field(default_factory=set)
    """States that lead to no solution: position, and what was placed on nodes of which class."""
    _on: dict[str, list[int]] = field(default_factory=dict)
    """Kinds of the placed entries by node."""

    def __post_init__(self) -> None:
        kinds: dict[object, int] = {}
        # Pods with other ports, labels or affinity are not the same, even if they request the same.
        are_plain = all(entry.is_plain for entry in self.entries) and not self.index.has_anti_affinity
        self._kinds = [
            kinds.setdefault(_kind(entry) if are_plain else entry.key, len(kinds)) for entry in self.entries
        ]
        demands = {entry.wanted.key: entry.wanted for entry in self.entries}
        self._admitted = [set(self.index.admitted(wanted.key, wanted.spec)) for wanted in demands.values()]
        self._resources = sorted({name for entry in self.entries for name in entry.wanted.requests})
        self._is_plain = are_plain and self.index.devices.keys().isdisjoint(self._resources)
        self._classes: dict[int, object] = {}

    def run(self, position: int = 0) -> bool:
        """Place the entries from this position on; return whether all of them have a node."""
        if position == len(self.entries):
            return True
        state = position, self._state()
        if state in self._failed:
            return False
        entry, kind, tried = self.entries[position], self._kinds[position], set()
        for slot in self._slots(entry):
            name = self.index.name(slot)
            same = self._class(slot), tuple(self._on.get(name, ()))
            if same in tried:
                continue
            tried.add(same)
            with self._placed(entry, kind, name):
                if self.run(position + 1):
                    return True
            if self.work.is_spent:
                return False
        self._failed.add(state)
        return False

    @contextmanager
    def _placed(self, entry: Entry, kind: int, name: str) -> Iterator[None]:
        self.index.place(entry.key, placed_on(name, entry.wanted))
        self._on.setdefault(name, []).append(kind)
        self.nodes[entry.key] = name
        try:
            yield
        finally:
            self.index.remove(entry.key)
            self._on[name].pop()

    def _slots(self, entry: Entry) -> list[int]:
        if not self.work.step(self.index):
            return []
        slots = self.index.feasible(entry.wanted)
        left = (self.index.left_over(slots, entry.wanted, resource) for resource in _COMPARED)
        rooms = dict(zip(slots, map(max, *left), strict=True))
        home = self.index.slot(entry.node)
        return sorted(slots, key=lambda slot: (slot != home, rooms[slot]))

    def _class(self, slot: int) -> object:
        """Return a value that is equal for nodes that are the same for all entries, apart from placed entries."""
        if not self._is_plain:
            return slot
        known = self._classes.get(slot)
        if known is None:
            index, here = self.index, self.index.on(self.index.name(slot))
            own = [placed for entry in self.entries if (placed := here.get(entry.key)) is not None]
            known = self._classes[slot] = (
                tuple(
                    index.free(name)[slot] + sum(placed.requests.get(name, 0) for placed in own)
                    for name in self._resources
                ),
                tuple(slot in slots for slots in self._admitted),
            )
        return known

    def _state(self) -> tuple[tuple[object, tuple[int, ...]], ...]:
        placed = [
            (self._class(slot), tuple(sorted(kinds)))
            for name, kinds in self._on.items()
            if kinds and (slot := self.index.slot(name)) is not None
        ]
        return tuple(sorted(placed, key=repr))


def _most_free(index: ClusterIndex, nodes: Iterable[str]) -> dict[str, int]:
    """Return the largest free amount of each resource on any of these nodes."""
    found: dict[str, int] = {}
    for node in nodes:
        known, slot = index.node(node), index.slot(node)
        if known is None or slot is None:
            continue
        for resource in known.allocatable:
            found[resource] = max(found.get(resource, 0), index.free(resource)[slot])
    return found


def _kind(entry: Entry) -> object:
    """Return a value that is equal for reservations with equal requirements and requests."""
    return entry.wanted.key, tuple(sorted(entry.wanted.requests.items()))


def _rank(entry: Entry) -> tuple[int, int, int]:
    return entry.rank


def _fits(index: ClusterIndex, entry: Entry, node: str) -> bool:
    with without(index, entry.awaits):
        return bool(index.feasible(entry.wanted, only=node))


def _helpful_nodes(index: ClusterIndex, wanted: Demand, movable: Sequence[Entry]) -> set[str]:
    """Return the nodes that admit a pod and would have room for it without their movable reservations."""
    admitted = set(index.admitted(wanted.key, wanted.spec))
    on_node: dict[str, list[Placed]] = {}
    for entry in movable:
        if (placed := index.placed(entry.key)) is not None:
            on_node.setdefault(placed.node, []).append(placed)
    return {
        name
        for name, there in on_node.items()
        if (slot := index.slot(name)) is not None
        and slot in admitted
        and all(
            index.free(resource)[slot] + sum(placed.requests.get(resource, 0) for placed in there) >= count
            for resource, count in wanted.requests.items()
        )
    }


def _size(index: ClusterIndex, wanted: Demand) -> tuple[float, str]:
    """Return the sort key that puts pods first that take the largest share of a resource."""
    shares = (count / index.total[name] for name, count in wanted.requests.items() if index.total.get(name))
    return -max(shares, default=0.0), wanted.key


@dataclass(frozen=True, slots=True)
class Mirrored:
    """An upper pod that has a lower pod or a reservation in the index of the lower cluster."""

    uid: str
    key: str
    """UID of the lower pod, or key of the reservation."""
    priority: int


def suffices(index: ClusterIndex, wanted: Demand, keys: Iterable[str]) -> bool:
    """Report whether the pod would fit without the pods with these index keys."""
    with without(index, keys):
        return bool(index.feasible(wanted))


def place_without(index: ClusterIndex, wanted: Demand, keys: Iterable[str]) -> str:
    """Return a node where the pod fits without the pods with these index keys; empty: there is none."""
    with without(index, keys):
        slots = index.feasible(wanted)
        return index.name(slots[0]) if slots else ""


def choose(index: ClusterIndex, wanted: Demand, candidates: Iterable[Mirrored]) -> list[str]:
    """Return UIDs of the upper pods to evict so that the pod fits on one node; empty: preemption does not help.

    As in kube-scheduler, the node is chosen where the most important victim has the lowest priority; ties are decided by
    the sum of priorities, then by the number of victims.
    """
    by_node: defaultdict[str, list[Mirrored]] = defaultdict(list)
    for candidate in candidates:
        placed = index.placed(candidate.key)
        if placed is not None:
            by_node[placed.node].append(candidate)
    found = [victims for node, there in by_node.items() if (victims := _on_node(index, wanted, node, there))]
    return [one.uid for one in min(found, key=_cost)] if found else []


def _on_node(index: ClusterIndex, wanted: Demand, node: str, candidates: list[Mirrored]) -> list[Mirrored]:
    """Return the victims on one node. Candidates are kept while the pod still fits, those with the highest priority first."""
    candidates.sort(key=lambda candidate: (-candidate.priority, candidate.uid))
    with without(index, [candidate.key for candidate in candidates]) as put_back:
        if not index.feasible(wanted, only=node):
            return []
        victims = []
        for candidate in candidates:
            lift = put_back(candidate.key)
            if not index.feasible(wanted, only=node):
                lift()
                victims.append(candidate)
    return victims


def _cost(victims: list[Mirrored]) -> tuple[int, int, int]:
    priorities = [victim.priority for victim in victims]
    return (
        max(priorities, default=0),
        sum(priority + _LOWEST_PRIORITY for priority in priorities),
        len(victims),
    )


@contextlib.contextmanager
def without(index: ClusterIndex, keys: Iterable[str]) -> Iterator[Callable[[str], Callable[[], object]]]:
    """Remove pods from the index inside the block. Yields a function that puts one pod back and returns its undo."""
    lifted = {key: placed for key in keys if (placed := index.remove(key)) is not None}

    def put_back(key: str) -> Callable[[], object]:
        index.place(key, lifted[key])
        return lambda: index.remove(key)

    try:
        yield put_back
    finally:
        for key, placed in lifted.items():
            index.place(key, placed)
