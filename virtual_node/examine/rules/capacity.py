"""Rules about nodes: lower nodes that take no pods, and virtual nodes that promise too much.

A virtual node promises, as its allocatable, the sum of its lower nodes, but a pod must fit on one lower node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from clusterset.model import names
from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime.apimachinery import quantity, readable
from virtual_node.examine.clusters import FOREIGN_PODS, IDENTITY, SETTINGS, VirtualNode, limits
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.expiry import span
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.mirrored import MirroredPod, MirroredRule
from virtual_node.examine.objects import Json, add_requests, allocatable, fits, key, labels_of, requested
from virtual_node.examine.snapshot import Snapshot, View, objects
from virtual_node.translate.nodes.capacity import PODS, Capacity, node_counts

_CAPACITY_TOLERANCE = 1.01
"""Factor by which allocatable may exceed the lower nodes' sum, because percentages in the reserve are rounded."""
_UNUSABLE_SHARE = 0.25
"""Minimum unusable share of the lower nodes' allocatable for a warning; less is normal maintenance."""
_SHOWN = ("cpu", "memory")
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Conditions of nodes that are True in case of a problem."""


@rule(Code.CAPACITY, where=[SETTINGS], level=Level.LOWER)
def lower_nodes(_snapshot: Snapshot, lower: View) -> Findings:
    """Yield our virtual nodes' lower nodes that take no pods."""
    for node in _ours(lower):
        name, ready = node["metadata"]["name"], condition(node.get("status"), "Ready")
        if node_counts(node):
            continue
        if ready.get("status") == "True":
            message, step = "is cordoned", f"kubectl uncordon {name}, when its maintenance is over"
        else:
            message = f"is not Ready: {ready.get('message') or ready.get('reason') or 'no reason given'}"
            step = f"kubectl describe node {name}, in the lower cluster"
        yield lower.finding(Code.CAPACITY, "Node", name, message, step)


@rule(Code.NODE_PRESSURE, where=[SETTINGS], level=Level.LOWER)
def pressure(_snapshot: Snapshot, lower: View) -> Findings:
    """Yield our virtual nodes' lower nodes that run out of memory, disk or processes, or have no network."""
    for node in _ours(lower):
        if found := [kind for kind in _PRESSURES if is_true(node.get("status"), kind)]:
            name = node["metadata"]["name"]
            cause = f"reports {', '.join(found)}: it takes no new pods and may evict pods"
            step = f"kubectl describe node {name}, in the lower cluster"
            yield lower.finding(Code.NODE_PRESSURE, "Node", name, cause, step)


@rule(Code.CAPACITY, where=[SETTINGS, objects("Node"), objects("Pod"), FOREIGN_PODS], level=Level.LOWER)
def promises(snapshot: Snapshot, lower: View) -> Findings:
    """Yield for each virtual node how much of its allocatable pods can use; warn if lower nodes have less in sum."""
    if not snapshot.upper.get(IDENTITY):
        return
    nodes, used = {node["metadata"]["name"]: node for node in snapshot.upper.of("Node")}, _used(lower)
    for name, virtual in lower[SETTINGS].nodes.items():
        selected = [node for node in lower.of("Node") if _selects(virtual, node)]
        if name in nodes and selected:
            promised = (nodes[name].get("status") or {}).get("allocatable") or {}
            yield from _excess_capacity(lower, name, virtual, promised)
            yield _usable(name, promised, selected, _rooms(used, selected), lower)


@rule(Code.CAPACITY, level=Level.MIRRORED)
class Oversized(MirroredRule):
    """Finds pods that wait because no single lower node has room, although the virtual node as a whole has."""

    name = "oversized"

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._rooms: dict[str, list[_Room]] = {}
        """Lower nodes that take pods, by virtual node."""

    def of_pod(self, pod: MirroredPod) -> Findings:
        """Yield the finding about a pod."""
        snapshot, lower, below = self.snapshot, pod.lower, pod.below
        if below is None or below["spec"].get("nodeName") or is_finished(below.get("status")):
            return
        if not lower.knows("Node", FOREIGN_PODS):
            return
        name = pod.upper["spec"]["nodeName"]
        if name not in self._rooms:
            selected = [node for node in lower.of("Node") if _selects(lower[SETTINGS].nodes[name], node)]
            self._rooms[name] = _rooms(_used(lower), selected)
        rooms = self._rooms[name]
        wanted = requested([below])
        never = not any(fits(wanted, room.allocatable) for room in rooms)
        waited = snapshot.age(below["metadata"].get("creationTimestamp"))
        if not never and (waited <= limits(snapshot).grace or any(fits(wanted, room.free) for room in rooms)):
            return
        asked = ", ".join(
            f"{readable.resource(resource, wanted[resource])} {resource}"
            for resource in _SHOWN
            if resource in wanted
        )
        cause = f"asks for {asked or 'a place'}; no lower node of {name} " + (
            "is that large" if never else f"has had that free for {span(waited)}"
        )
        step = "request less, or add a larger lower node" if never else "make room, or add a lower node"
        severity = Severity.ERROR if never else None
        yield lower.finding(Code.CAPACITY, "Pod", key(pod.upper), cause, step, severity, transient=True)


@dataclass(frozen=True, slots=True)
class _Room:
    """One lower node that takes pods, with its allocatable and free resources."""

    allocatable: Mapping[str, int]
    free: Mapping[str, int]


def _selects(virtual: VirtualNode, node: Mapping[str, Any]) -> bool:
    carried = labels_of(node)
    return all(carried.get(name) == value for name, value in virtual.selector.items())


def _ours(lower: View) -> Iterator[Json]:
    """Yield the lower nodes of our virtual nodes."""
    for node in lower.of("Node"):
        if any(_selects(each, node) for each in lower[SETTINGS].nodes.values()):
            yield node


def _used(lower: View) -> dict[str, Counter[str]]:
    """Return the requests of all pods by lower node."""
    used: dict[str, Counter[str]] = {}
    for pod in chain(lower.of("Pod"), lower.of(FOREIGN_PODS)):
        if node := pod["spec"].get("nodeName"):
            add_requests(used.setdefault(node, Counter()), pod)
    return used


def _rooms(used: Mapping[str, Mapping[str, int]], selected: Sequence[Mapping[str, Any]]) -> list[_Room]:
    rooms = []
    for node in filter(node_counts, selected):
        amounts, taken = allocatable(node), used.get(node["metadata"]["name"], {})
        free = {resource: max(0, count - taken.get(resource, 0)) for resource, count in amounts.items()}
        rooms.append(_Room(amounts, free))
    return rooms


def _excess_capacity(lower: View, name: str, virtual: VirtualNode, promised: Mapping[str, Any]) -> Findings:
    capacity = Capacity(
        node_selector=virtual.selector, reserve=virtual.reserve, autoscaling=virtual.autoscaling
    )
    for node in lower.of("Node"):
        capacity.upsert_node(node)
    for pod in lower.of(FOREIGN_PODS):
        node_name = pod["spec"].get("nodeName", "")
        status = pod.get("status") or {}
        counts = bool(node_name) and not is_finished(status)
        requests = pod_resources.placed_requests(pod["spec"], status) if counts else {}
        capacity.upsert_pod(pod["metadata"]["uid"], node_name, requests, counts=counts)
    for pod in lower.of("Pod"):
        metadata, status = pod["metadata"], pod.get("status") or {}
        if (metadata.get("labels") or {}).get(names.LABEL_NODE) == name and not is_finished(status):
            requests = pod_resources.placed_requests(pod["spec"], status)
            capacity.hold(metadata["uid"], pod["spec"].get("nodeName", ""), requests)
    _, available = capacity.totals()
    too_much = [
        f"{_amount(resource, promised[resource])} (there are {_amount(resource, available.get(resource, '0'))})"
        for resource in (*_SHOWN, PODS)
        if resource in promised
        and quantity.of(resource, promised[resource])
        > quantity.of(resource, available.get(resource, "0")) * _CAPACITY_TOLERANCE
    ]
    if too_much:
        cause = f"promises more than its lower nodes have: {', '.join(too_much)}"
        step = "does the virtual node's process run? Its capacity is not up to date"
        yield lower.finding(Code.CAPACITY, "Node", name, cause, step, transient=True)


def _usable(
    name: str,
    promised: Mapping[str, Any],
    selected: Sequence[Mapping[str, Any]],
    rooms: Sequence[_Room],
    lower: View,
) -> Finding:
    parts, worst = [], 0.0
    for one in _SHOWN:
        total = sum(allocatable(node).get(one, 0) for node in selected)
        # Free CPU on a node without free memory, or without room for one more pod, cannot be used either.
        stranded = sum(room.free.get(one, 0) for room in rooms if not _has_place(room))
        counting = sum(room.allocatable.get(one, 0) for room in rooms)
        lost = (total - counting + stranded) / total if total else 0.0
        worst = max(worst, lost)
        largest = max((room.free.get(one, 0) for room in rooms if _has_place(room)), default=0)
        parts.append(
            f"{_amount(one, promised.get(one, '0'))} "
            f"(largest place {readable.resource(one, largest)}, {lost:.0%} not usable)"
        )
    cause = f"promises {', '.join(parts)}"
    step, severity = "", Severity.INFO
    if worst >= _UNUSABLE_SHARE:
        step, severity = "repair or uncordon lower nodes", Severity.WARNING
    return lower.finding(Code.CAPACITY, "Node", name, cause, step, severity)


def _amount(resource: str, text: str) -> str:
    """Return an amount with its resource: ``7.5 cpu``, ``23.5 GiB memory``, ``1 pod``."""
    if resource == PODS:
        return readable.count(quantity.of(PODS, text), "pod")
    return f"{readable.text(resource, text)} {resource}"


def _has_place(room: _Room) -> bool:
    return all(room.free.get(resource, 0) > 0 for resource in (*_SHOWN, PODS))
