"""Index of a lower cluster's nodes, pods, free resources and free devices, updated with every change. No IO.

Nodes have numbered slots, and free resources are columns over the slots. Finding the nodes with three free cores
among 500 is one pass over a list of integers.

Of some resources, a pod can take a part of one device (``DeviceColumn``): a request below one device's units takes a share of a
single device; a larger one takes whole devices. Koordinator's ``koordinator.sh/gpu-core`` (100 units) and Alibaba's
``alibabacloud.com/gpu-milli`` (1000 units) are counted this way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterset.model.names import LABEL_HOSTNAME
from multi_scheduler.state.cluster import filters, limits
from multi_scheduler.state.cluster.filters import Node, NodeFilter, read_node
from multi_scheduler.state.cluster.pod_requirements import Demand, NamespaceLabels, Placed

_MOST_DEVICES = 128
"""Maximum devices counted per node; a lower cluster may report any number."""
Taking = tuple[str, int, Sequence[int]]
"""UID of a pod, its units, and the numbers of its devices; no numbers: unknown."""


class ClusterIndex:
    """Nodes, pods and reservations of one lower cluster."""

    def __init__(self, devices: Mapping[str, int] | None = None) -> None:
        """Create an empty index; ``devices`` has the units of one device by divisible resource.

        A pod takes a part of one device, or whole devices.
        """
        self.devices = {resource: DeviceColumn(units, 0) for resource, units in (devices or {}).items()}
        self._nodes: list[Node | None] = []
        self._names: list[str] = []
        """Node names by slot; empty: no node."""
        self._slots: dict[str, int] = {}
        self._empty: list[int] = []
        self._free: dict[str, list[int]] = {}
        self._capacity: dict[str, list[float]] = {}
        """Allocatable amounts by resource and slot; infinite if the node does not offer the resource, so that its free
        share is 0."""
        self._offering: Counter[str] = Counter()
        """Number of nodes that offer a resource, by resource."""
        self._placed: dict[str, Placed] = {}
        self._by_node: dict[str, dict[str, Placed]] = {}
        self._taken: dict[str, dict[str, int]] = {}
        """Sums of the requests by node, also of unknown nodes. Not summed when a node changes: it may have any number of pods."""
        self._with_anti_affinity: dict[str, Placed] = {}
        self._node_filter = NodeFilter(self._nodes)
        self._namespaces: dict[str, Mapping[str, str]] = {}
        """Labels by name; empty: namespaces cannot be read."""
        self._placements = filters.Placements(
            self._nodes, self._slots, self._by_node, self._placed, self._with_anti_affinity, self._namespaces
        )
        self.total: Counter[str] = Counter()
        """Sums of the allocatable resources of all nodes."""
        self.used: Counter[str] = Counter()
        """Sums of the requests of pods and reservations on known nodes."""
        self.version = 0
        """Increases when a node is added or removed, or its labels, taints, cordon or features change."""
        self.changes = 0
        """Increases with every change of nodes, pods and reservations."""
        self.touched: set[str] = set()
        """Names of the nodes whose own state or pods changed; who places reservations checks them and clears the set."""

    def __len__(self) -> int:
        return len(self._slots)

    # --- nodes --------------------------------------------------------------------------------------

    def upsert_node(self, node: Mapping[str, Any]) -> None:
        """Store a new or changed node."""
        fresh = read_node(node)
        self.changes += 1
        slot = self._slots.get(fresh.name)
        old = self._nodes[slot] if slot is not None else None
        if old is None or not old.is_like(fresh):
            self._nodes_changed()
        elif old.allocatable == fresh.allocatable:
            return
        self.touched.add(fresh.name)
        if slot is None:
            slot = self._take_slot(fresh.name)
        self._nodes[slot] = fresh
        self.total.update(fresh.allocatable)
        self._offering.update(fresh.allocatable.keys())
        if old is not None:
            self._withdraw(old)
        self._recount(slot, fresh)

    def remove_node(self, name: str) -> None:
        """Forget a deleted node."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return
        node = self._nodes[slot]
        assert node is not None
        self._withdraw(node)
        limits.subtract(self.used, self._taken.get(name, {}))
        self._nodes[slot], self._names[slot] = None, ""
        for column in self._free.values():
            column[slot] = 0
        for devices in self.devices.values():
            devices.reset(slot, 0, ())
        self._empty.append(slot)
        self.touched.add(name)
        self._nodes_changed()

    def _withdraw(self, node: Node) -> None:
        """Subtract what a node offered, and drop the columns of resources that no node offers any more."""
        limits.subtract(self.total, node.allocatable)
        limits.subtract(self._offering, dict.fromkeys(node.allocatable, 1))
        for resource in node.allocatable.keys() - self._offering.keys():
            self._free.pop(resource, None)
            self._capacity.pop(resource, None)

    def _nodes_changed(self) -> None:
        self._node_filter.changed()
        self.version += 1
        self.changes += 1

    def _take_slot(self, name: str) -> int:
        if self._empty:
            slot = self._empty.pop()
        else:
            slot = len(self._nodes)
            self._nodes.append(None)
            self._names.append("")
            for column in self._free.values():
                column.append(0)
            for capacity in self._capacity.values():
                capacity.append(math.inf)
            for devices in self.devices.values():
                devices.append()
        self._slots[name] = slot
        self._names[slot] = name
        self.used.update(self._taken.get(name, {}))
        return slot

    def _recount(self, slot: int, node: Node) -> None:
        for resource in node.allocatable:
            if resource not in self._free and len(self._free) < limits.MOST_COLUMNS:
                # Count pods that take the resource on nodes that do not offer it now, for example while a device plug-in is down.
                column = self._free[resource] = [0] * len(self._names)
                for name, at in self._slots.items():
                    column[at] = -self._taken.get(name, {}).get(resource, 0)
                self._capacity[resource] = [math.inf] * len(self._names)
        taken = self._taken.get(node.name, {})
        for resource, column in self._free.items():
            column[slot] = node.allocatable.get(resource, 0) - taken.get(resource, 0)
            self._capacity[resource][slot] = node.allocatable.get(resource) or math.inf
        for resource, devices in self.devices.items():
            taking = [
                (uid, count, one.devices)
                for uid, one in (self.on(node.name).items() if taken.get(resource) else ())
                if (count := one.requests.get(resource))
            ]
            devices.reset(slot, node.allocatable.get(resource, 0), taking)

    # --- namespaces ---------------------------------------------------------------------------------

    def upsert_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Store the labels of a new or changed namespace."""
        self.changes += 1
        self._namespaces[name] = labels

    def remove_namespace(self, name: str) -> None:
        """Forget a deleted namespace."""
        self.changes += 1
        self._namespaces.pop(name, None)

    # --- pods and reservations ----------------------------------------------------------------------

    def place(self, uid: str, placed: Placed) -> None:
        """Place a pod or reservation on a node; replaces its earlier placement."""
        self.remove(uid)
        self._placed[uid] = placed
        self._by_node.setdefault(placed.node, {})[uid] = placed
        if placed.anti_affinity:
            self._with_anti_affinity[uid] = placed
        self._count(uid, placed, 1)

    def remove(self, uid: str) -> Placed | None:
        """Remove a pod or reservation; return it, None if it was not placed."""
        placed = self._placed.pop(uid, None)
        if placed is None:
            return None
        on_node = self._by_node[placed.node]
        del on_node[uid]
        if not on_node:
            del self._by_node[placed.node]
        self._with_anti_affinity.pop(uid, None)
        self._count(uid, placed, -1)
        return placed

    def placed(self, uid: str) -> Placed | None:
        """Return the placement of a UID; None: not placed."""
        return self._placed.get(uid)

    def _count(self, uid: str, placed: Placed, sign: int) -> None:
        self.changes += 1
        if (on_node := self._taken.get(placed.node)) is None:
            on_node = self._taken[placed.node] = {}
        _add(on_node, placed.requests, sign)
        if not on_node:
            del self._taken[placed.node]
        slot = self._slots.get(placed.node)
        if slot is None:
            return
        _add(self.used, placed.requests, sign)
        for resource, count in placed.requests.items():
            column = self._free.get(resource)
            if column is not None:
                column[slot] -= sign * count
        for resource, devices in self.devices.items():
            taken = placed.requests.get(resource, 0)
            if taken and sign > 0:
                devices.take(slot, uid, taken, placed.devices)
            elif taken:
                devices.give(slot, uid, taken)

    # --- queries ------------------------------------------------------------------------------------

    def feasible(self, demand: Demand, reasons: Counter[str] | None = None, *, only: str = "") -> list[int]:
        """Return the slots of the nodes that can take a pod, in no particular order.

        Args:
            demand: the pod's demand.
            reasons: if no node can, incremented by the number of nodes for each reason, in kube-scheduler's words.
            only: check only this node; empty: all nodes.
        """
        answer = self._node_filter.ask(demand.key, demand.spec)
        slots: Sequence[int] = answer.slots
        if only:
            slots = [slot] if (slot := self._slots.get(only, -1)) in slots else []
        rejections: Counter[str] = Counter()
        if demand.ports:
            slots = filters.without_conflicts(slots, demand.ports, self._placements, rejections)
        before = slots
        for resource, count in demand.requests.items():
            column = self._free.get(resource)
            slots = [slot for slot in slots if column[slot] >= count] if column is not None else []
            if resource in self.devices:
                slots = self.devices[resource].fitting(slots, count)
            if not slots:
                break
        fitting = set(slots)
        if slots:
            slots = filters.remaining(slots, demand, self._placements, self._node_filter, rejections)
        if not slots and reasons is not None:
            reasons.update(answer.reasons)
            reasons.update(rejections)
            self._count_insufficient([slot for slot in before if slot not in fitting], demand, reasons)
        return list(slots)

    def name(self, slot: int) -> str:
        """Return the name of the node in a slot."""
        return self._names[slot]

    def slot(self, name: str) -> int | None:
        """Return the slot of a node; None: unknown."""
        return self._slots.get(name)

    @property
    def namespaces(self) -> NamespaceLabels:
        """Return the labels of the namespaces by name. Read only."""
        return self._namespaces

    @property
    def repels_beyond_nodes(self) -> bool:
        """Report whether a placed pod repels other pods from a domain that may have several nodes, such as a zone."""
        terms = (term for placed in self._with_anti_affinity.values() for term in placed.anti_affinity)
        return any(term.topology_key != LABEL_HOSTNAME for term in terms)

    @property
    def has_anti_affinity(self) -> bool:
        """Report whether a placed pod or reservation repels other pods."""
        return bool(self._with_anti_affinity)

    def pods(self) -> Iterable[tuple[str, Placed]]:
        """Return all placements, by UID."""
        return self._placed.items()

    def free(self, resource: str) -> Sequence[int]:
        """Return the free amount of a resource by slot. Read only."""
        return self._free.get(resource) or [0] * len(self._nodes)

    def admitted(self, key: str, spec: Mapping[str, Any]) -> Sequence[int]:
        """Return the slots of the nodes whose labels and taints admit a pod, given its ``Demand.key`` and ``Demand.spec``."""
        return self._node_filter.ask(key, spec).slots

    def avoided(self, key: str, spec: Mapping[str, Any]) -> Mapping[int, int]:
        """Return by slot how many taints make a pod avoid a node that admits it, arguments as for ``admitted``."""
        return self._node_filter.ask(key, spec).avoided

    def node(self, name: str) -> Node | None:
        """Return a node; None: unknown."""
        slot = self._slots.get(name)
        return self._nodes[slot] if slot is not None else None

    def nodes(self) -> list[Node]:
        """Return all nodes."""
        return [node for node in self._nodes if node is not None]

    def cpus(self) -> dict[str, float]:
        """Return the allocatable CPU of all nodes by name, in millicores."""
        return {node.name: node.allocatable.get("cpu", 0) for node in self.nodes()}

    def on(self, name: str) -> Mapping[str, Placed]:
        """Return the placements on a node, by UID. Read only."""
        return self._by_node.get(name, {})

    def left_over(self, slots: Sequence[int], demand: Demand, resource: str) -> list[float]:
        """Return for each slot the share of a resource that stays free with the pod on the node; 0: exact fit, or not offered."""
        free, wanted = self.free(resource), demand.requests.get(resource, 0)
        capacity = self._capacity.get(resource)
        if capacity is None:
            return [0.0] * len(slots)
        return [(free[slot] - wanted) / capacity[slot] for slot in slots]

    def _count_insufficient(self, slots: Sequence[int], demand: Demand, reasons: Counter[str]) -> None:
        for resource, count in demand.requests.items():
            column = self._free.get(resource)
            having = [slot for slot in slots if column[slot] >= count] if column is not None else []
            if resource in self.devices:
                having = self.devices[resource].fitting(having, count)
            short = len(slots) - len(having)
            if short:
                reasons["Too many pods" if resource == "pods" else f"Insufficient {resource}"] += short


def _add(sums: dict[str, int], requests: Mapping[str, int], sign: int) -> None:
    for resource, count in requests.items():
        if total := sums.get(resource, 0) + sign * count:
            sums[resource] = total
        else:
            sums.pop(resource, None)


def parts(count: int, units: int) -> tuple[int, int]:
    """Return how many devices a request takes, and how many units of each."""
    return (1, count) if count < units else (-(-count // units), units)


class DeviceColumn:
    """Free units of one resource by slot and device."""

    def __init__(self, units: int, slots: int) -> None:
        """Create the column for an index with ``slots``; one device has ``units``."""
        self.units = units
        self.free: list[tuple[int, ...]] = [()] * slots
        """By slot: free units of each device."""
        self._largest = [0] * slots
        self._whole = [0] * slots
        self._taken: list[dict[str, tuple[int, ...]]] = [{} for _ in range(slots)]

    def append(self) -> None:
        """Add an empty slot."""
        self.free.append(())
        self._largest.append(0)
        self._whole.append(0)
        self._taken.append({})

    def reset(self, slot: int, total: int, taken: Iterable[Taking]) -> None:
        """Set a node's devices and the pods that use them."""
        total = min(total, self.units * _MOST_DEVICES)
        rest = total % self.units
        self._taken[slot] = {}
        self._set(slot, [self.units] * (total // self.units) + ([rest] if rest else []))
        for uid, count, devices in taken:
            self.take(slot, uid, count, devices)

    def take(self, slot: int, uid: str, count: int, devices: Sequence[int] = ()) -> None:
        """Take a pod's units from the given devices if they are valid, otherwise from those where they fit most tightly."""
        free = list(self.free[slot])
        number, share = parts(count, self.units)
        if len(devices) != number or not all(0 <= device < len(free) for device in devices):
            fitting = sorted((left, device) for device, left in enumerate(free) if left >= share)
            # If too few fit, the devices with most free units go below zero.
            others = sorted(
                ((left, device) for device, left in enumerate(free) if left < share), reverse=True
            )
            devices = [device for _left, device in (fitting + others)[:number]]
        for device in devices:
            free[device] -= share
        self._taken[slot][uid] = tuple(devices)
        self._set(slot, free)

    def give(self, slot: int, uid: str, count: int) -> None:
        """Release the units of a pod."""
        free = list(self.free[slot])
        share = parts(count, self.units)[1]
        for device in self._taken[slot].pop(uid, ()):
            if device < len(free):
                free[device] += share
        self._set(slot, free)

    def fitting(self, slots: Sequence[int], count: int) -> list[int]:
        """Return the slots with a device, or enough whole devices, for the request."""
        if count < self.units:
            largest = self._largest
            return [slot for slot in slots if largest[slot] >= count]
        number, whole = parts(count, self.units)[0], self._whole
        return [slot for slot in slots if whole[slot] >= number]

    def _set(self, slot: int, free: Sequence[int]) -> None:
        self.free[slot] = tuple(free)
        self._largest[slot] = max(free, default=0)
        self._whole[slot] = sum(left >= self.units for left in free)
