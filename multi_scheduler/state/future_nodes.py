"""The nodes that one lower cluster may add, in an index of their own, and the pods that wait for them. No IO.

The index has a *spare* node of each kind that can be added. The first reservation on it makes it an *expected* node: the
lower pod will wait for room, and the autoscaler adds a node for it. Pods that fit on an expected node wait for the same node.
When a node of the kind appears in the lower cluster, the reservations move to it. If none appears in time, the
reservations are released, and the kind is not used for a while.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterset.model import autoscaling as settings
from clusterset.model import names
from clusterset.model.autoscaling import Autoscaling, Shape
from clusterset.model.declared_features import REQUIRED
from multi_scheduler.state.cluster.filters import Node
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed

BACKOFF = (300.0, 600.0, 1200.0, 1800.0)
"""Seconds for which a kind is not used after a failure to add a node, by number of failures since the last success."""
_REJECTING = ("NoSchedule", "NoExecute")


@dataclass(slots=True, eq=False)
class Kind:
    """A shape of node that a pool can add."""

    pool: Pool
    shape: Shape
    existing: int = 0
    """Number of nodes with the labels of the shape."""
    expected: int = 0
    """Number of future nodes with reservations."""
    spare: str = ""
    """Name of the future node without reservations; empty: no more nodes can be added."""
    failures: int = 0
    failed_until: float = 0.0

    def failed(self, now: float) -> float:
        """Record that no node was added in time; return for how many seconds the kind is not used."""
        if self.failed_until <= now:
            self.failed_until = now + BACKOFF[min(self.failures, len(BACKOFF) - 1)]
            self.failures += 1
        return self.failed_until - now

    def succeeded(self) -> None:
        """Record that a node was added."""
        self.failures, self.failed_until = 0, 0.0

    def node(self, name: str) -> dict[str, Any]:
        """Return a node of this kind as a Node object."""
        return {
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/os": "linux",
                    names.LABEL_HOSTNAME: name,
                    **settings.labels_of(self.shape, self.pool.selector),
                },
            },
            "spec": {
                "taints": [
                    {"key": taint.key, "value": taint.value, "effect": taint.effect}
                    for taint in self.shape.taints
                ]
            },
            # The features of a new node are unknown. The virtual node declares those of the existing ones.
            "status": {"allocatable": settings.resources_of(self.shape), "declaredFeatures": [*REQUIRED]},
        }

    def is_usable(self, node: Node) -> bool:
        """Report whether an existing node can take pods: it is not cordoned, and has only the taints of the shape."""
        kept = {taint.key for taint in self.shape.taints}
        return not node.unschedulable and not any(
            taint.get("effect") in _REJECTING and taint.get("key") not in kept for taint in node.taints
        )


@dataclass(slots=True, eq=False)
class Pool:
    """A part of a lower cluster that can grow."""

    selector: Mapping[str, str]
    """Labels of the pool's nodes; empty: all nodes of the cluster."""
    autoscaling: Autoscaling
    kinds: list[Kind] = field(init=False)
    existing: int = 0
    """Number of nodes with the labels of any shape."""

    def __post_init__(self) -> None:
        self.kinds = [Kind(self, shape) for shape in self.autoscaling.shapes]

    def matching(self, labels: Mapping[str, str]) -> list[Kind]:
        """Return the kinds that an existing node with these labels may have."""
        found = settings.matching_shapes(self.autoscaling, self.selector, labels)
        return [self.kinds[position] for position in found]

    def count(self, kinds: list[Kind], sign: int) -> None:
        """Add or subtract an existing node of these kinds."""
        self.existing += sign * bool(kinds)
        for kind in kinds:
            kind.existing += sign

    def left(self) -> list[int]:
        """Return by kind how many more nodes may be expected."""
        total = self.existing + sum(kind.expected for kind in self.kinds)
        return settings.left(self.autoscaling, total, [kind.existing + kind.expected for kind in self.kinds])


@dataclass(slots=True)
class _FutureNode:
    name: str
    kind: Kind
    deadline: float = math.inf
    """Until when the node must appear; infinite: no pod waits for it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A future node with room for a pod."""

    slot: int
    kind: Kind
    rank: tuple[bool, float, int, bool, float]
    """Offers with a lower rank are used first: expected nodes, then lowest price, then highest priority.

    Further nodes of the same price and priority are added in a cluster that already grows, so that a burst of pods does not
    make several clusters grow.
    """


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that was not added in time."""

    kind: Kind
    keys: list[str]
    """Keys of the reservations on the expected node."""
    seconds: float
    """Seconds for which the kind is not used; 0: there was no lower pod that the autoscaler could see."""


@dataclass(eq=False)
class FutureNodes:
    """The nodes that one lower cluster may add."""

    pools: Sequence[Pool]
    """The parts of the cluster that can grow; empty: it cannot."""
    real: ClusterIndex
    """The index of the existing nodes, which receives the reservations of nodes that appear."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    devices: Mapping[str, int] | None = None
    """As for ``ClusterIndex``."""
    _nodes: dict[str, _FutureNode] = field(default_factory=dict)
    _created: int = 0
    _existing: dict[str, list[Kind]] = field(default_factory=dict)
    """Matching kinds by name of an existing node."""
    _started: set[str] = field(default_factory=set)
    """Names of existing nodes that are or were usable."""
    _moved: set[str] = field(default_factory=set)
    """Keys of reservations that moved to an existing node."""
    _arrived: set[str] = field(default_factory=set)
    """Keys of reservations whose lower pods exist."""

    def __post_init__(self) -> None:
        self.index = ClusterIndex(self.devices)
        self._refresh()

    def __bool__(self) -> bool:
        return bool(self.pools)

    def offer(self, wanted: Demand) -> Offer | None:
        """Return the best future node for a pod; None: no new node would help, or none can be added."""
        # A pod with required affinity must run beside other pods, which a new node does not have.
        if not self.pools or wanted.affinity:
            return None
        now = self.clock()
        is_growing = any(kind.expected for kind in self._kinds())
        offers = []
        for slot in self.index.feasible(wanted):
            node = self._nodes[self.index.name(slot)]
            kind, deadline = node.kind, node.deadline
            if kind.failed_until <= now:
                priority = kind.pool.autoscaling.priority
                rank = math.isinf(deadline), kind.shape.price, -priority, not is_growing, deadline
                offers.append(Offer(slot, kind, rank))
        return min(offers, key=lambda offer: offer.rank, default=None)

    def why_not(self, wanted: Demand) -> str:
        """Return for users why no new node is offered to a pod; empty: the cluster cannot grow."""
        if self.pools and wanted.affinity:
            return "a pod with required pod affinity waits for no new node"
        now = self.clock()
        found = []
        for kind in self._kinds():
            if kind.failed_until > now:
                limit = kind.pool.autoscaling.provision_seconds
                found.append(f"no node of shape {kind.shape.name} was added within {limit:g} s")
            elif not kind.spare:
                found.append(f"no more nodes of shape {kind.shape.name} can be added")
            else:
                reasons: Counter[str] = Counter()
                self.index.feasible(wanted, reasons, only=kind.spare)
                why = f" ({', '.join(sorted(reasons))})" if reasons else ""
                found.append(f"a new node of shape {kind.shape.name} would not help{why}")
        return ", ".join(found)

    def waits_for(self, key: str) -> Kind | None:
        """Return the kind of the future node that has a reservation; None: no future node has it."""
        placed = self.index.placed(key)
        return self._nodes[placed.node].kind if placed is not None else None

    def expected(self) -> dict[str, int]:
        """Return the number of expected nodes by shape."""
        numbers: Counter[str] = Counter()
        for kind in self._kinds():
            numbers[kind.shape.name] += kind.expected
        return numbers

    def place(self, key: str, placed: Placed) -> None:
        """Place a reservation on a future node, which is expected from now on."""
        self.index.place(key, placed)
        node = self._nodes[placed.node]
        if math.isinf(node.deadline):
            self._restart(node)
            node.kind.expected += 1
            node.kind.spare = ""
            self._refresh()

    def arrived(self, key: str) -> None:
        """Record that the lower pod of a reservation exists. The first such pod restarts the time limit of its node."""
        placed = self.index.placed(key)
        if placed is not None and not self._is_requested(placed.node):
            self._restart(self._nodes[placed.node])
        if placed is not None or key in self._moved:
            self._arrived.add(key)

    def remove(self, key: str) -> None:
        """Remove a reservation; a node without reservations is no longer expected.

        When the last lower pod that waits for a node is gone, the autoscaler no longer adds the node, so the time limit
        restarts.
        """
        had_arrived = key in self._arrived
        self._moved.discard(key)
        self._arrived.discard(key)
        placed = self.index.remove(key)
        if placed is None:
            return
        if not self.index.on(placed.node):
            self._forget(self._nodes[placed.node])
        elif had_arrived and not self._is_requested(placed.node):
            self._restart(self._nodes[placed.node])

    def node_changed(self, name: str, node: Node | None) -> list[str]:
        """Record an existing node that was added, changed or, with None, deleted; return keys of reservations that moved to it."""
        before = self._existing.pop(name, [])
        after: list[Kind] = []
        for pool in self.pools:
            matching = pool.matching(node.labels) if node is not None else []
            pool.count([kind for kind in before if kind.pool is pool], -1)
            pool.count(matching, 1)
            after += matching
        if after:
            self._existing[name] = after
        if before != after:
            self._refresh()
        if node is None:
            self._started.discard(name)
        elif name not in self._started and any(kind.is_usable(node) for kind in after):
            self._started.add(name)
            return self._appeared(name, after)
        return []

    def landed(self, key: str, name: str) -> str:
        """Record that a pod with a reservation on a future node got an existing node.

        If that node has a moved reservation that is not larger, the two reservations exchange their nodes.

        Returns:
            the key of the other reservation; empty: there is none.
        """
        mine = self.index.placed(key)
        if mine is None:
            return ""
        there = {one: placed for one, placed in self.real.on(name).items() if one in self._moved}
        other = next(
            (one for one, placed in there.items() if _is_at_most(placed.requests, mine.requests)), ""
        )
        if other:
            was_requested = self._is_requested(mine.node)
            self.real.remove(other)
            self._moved.discard(other)
            self.index.place(other, replace(there[other], node=mine.node))
            self.index.remove(key)
            self.real.place(key, replace(mine, node=name))
            if self._is_requested(mine.node) != was_requested:
                self._restart(self._nodes[mine.node])
        return other

    def expire(self) -> list[Failure]:
        """Return the expected nodes that were not added in time; the caller must release their reservations."""
        now = self.clock()
        return [
            Failure(
                node.kind,
                list(self.index.on(node.name)),
                node.kind.failed(now) if self._is_requested(node.name) else 0.0,
            )
            for node in self._nodes.values()
            if node.deadline <= now
        ]

    def _is_requested(self, name: str) -> bool:
        """Report whether a lower pod waits for a node. Otherwise, the autoscaler has no reason to add it."""
        return not self._arrived.isdisjoint(self.index.on(name))

    def _restart(self, node: _FutureNode) -> None:
        node.deadline = self.clock() + node.kind.pool.autoscaling.provision_seconds

    def _kinds(self) -> Iterator[Kind]:
        return (kind for pool in self.pools for kind in pool.kinds)

    def _appeared(self, name: str, kinds: Sequence[Kind]) -> list[str]:
        """Move the reservations of the expected node with the earliest deadline to an existing one."""
        for kind in kinds:
            kind.succeeded()
        expected = [
            node for node in self._nodes.values() if node.kind in kinds and not math.isinf(node.deadline)
        ]
        if not expected:
            return []
        node = min(expected, key=lambda one: one.deadline)
        moved = dict(self.index.on(node.name))
        for key, placed in moved.items():
            self.index.remove(key)
            self.real.place(key, replace(placed, node=name))
        self._moved.update(moved)
        self._forget(node)
        return list(moved)

    def _forget(self, node: _FutureNode) -> None:
        node.kind.expected -= 1
        self.index.remove_node(node.name)
        del self._nodes[node.name]
        self._refresh()

    def _refresh(self) -> None:
        """Keep one spare node of each kind that can be added."""
        self.index.touched.clear()  # future nodes change only here
        for pool in self.pools:
            for kind, number in zip(pool.kinds, pool.left(), strict=True):
                if number and not kind.spare:
                    self._created += 1
                    kind.spare = f"new {kind.shape.name} node {self._created}"
                    self._nodes[kind.spare] = _FutureNode(kind.spare, kind)
                    self.index.upsert_node(kind.node(kind.spare))
                elif not number and kind.spare:
                    self.index.remove_node(kind.spare)
                    del self._nodes[kind.spare]
                    kind.spare = ""


def _is_at_most(requests: Mapping[str, int], others: Mapping[str, int]) -> bool:
    return all(count <= others.get(resource, 0) for resource, count in requests.items())
