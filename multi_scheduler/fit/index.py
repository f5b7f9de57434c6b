"""One lower cluster as the fit agent sees it: what is free on which node, kept as nodes and pods change. Pure.

Nodes have numbered slots, free resources are columns over them, so asking "which of five hundred nodes have three
cores left" is one pass over a list of integers. Labels and taints change rarely and are asked the same question by
every pod of a Deployment: those answers are kept until a node changes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller_runtime.api import matching, quantity
from multi_scheduler.fit.demand import Demand, Port, Term

_KEPT_ANSWERS = 512
_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(slots=True)
class _Node:
    name: str
    labels: dict[str, str]
    taints: list[dict[str, Any]]
    taints_key: str
    unschedulable: bool
    allocatable: dict[str, int]


@dataclass(slots=True, eq=False)
class Placed:
    """A pod on a node, or a reservation of one."""

    node: str
    requests: Mapping[str, int]
    ports: tuple[Port, ...] = ()
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    anti_affinity: tuple[Term, ...] = ()


@dataclass(slots=True)
class _Answer:
    version: int
    slots: list[int]
    reasons: Counter[str]


class ClusterIndex:
    """Nodes, pods and reservations of one lower cluster."""

    def __init__(self) -> None:
        self._nodes: list[_Node | None] = []
        self._slots: dict[str, int] = {}
        self._empty: list[int] = []
        self._free: dict[str, list[int]] = {}
        self._placed: dict[str, Placed] = {}
        self._by_node: dict[str, dict[str, Placed]] = {}
        self._with_anti_affinity: dict[str, Placed] = {}
        self._version = 0
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._columns: dict[str, list[Any]] = {}
        self._columns_version = -1
        self.total: Counter[str] = Counter()
        """Allocatable of all nodes."""
        self.used: Counter[str] = Counter()
        """Requests of everything placed on known nodes."""

    def __len__(self) -> int:
        return len(self._slots)

    # --- nodes --------------------------------------------------------------------------------------

    def upsert_node(self, node: Mapping[str, Any]) -> None:
        """A node appeared or changed."""
        metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        name = metadata["name"]
        fresh = _Node(
            name=name,
            labels=metadata.get("labels") or {},
            taints=spec.get("taints") or [],
            taints_key=repr(spec.get("taints") or []),
            unschedulable=bool(spec.get("unschedulable")),
            allocatable={
                key: quantity.of(key, value) for key, value in (status.get("allocatable") or {}).items()
            },
        )
        slot = self._slots.get(name)
        old = self._nodes[slot] if slot is not None else None
        if old is not None and (
            old.labels == fresh.labels
            and old.taints_key == fresh.taints_key
            and old.unschedulable == fresh.unschedulable
        ):
            if old.allocatable == fresh.allocatable:
                return
        else:
            self._version += 1
        if slot is None:
            slot = self._take_slot(name)
        elif old is not None:
            self.total.subtract(old.allocatable)
        self._nodes[slot] = fresh
        self.total.update(fresh.allocatable)
        self._recount(slot, fresh)

    def remove_node(self, name: str) -> None:
        """A node is gone."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return
        node = self._nodes[slot]
        assert node is not None
        self.total.subtract(node.allocatable)
        for placed in self._by_node.get(name, {}).values():
            self.used.subtract(placed.requests)
        self._nodes[slot] = None
        for column in self._free.values():
            column[slot] = 0
        self._empty.append(slot)
        self._version += 1

    def _take_slot(self, name: str) -> int:
        if self._empty:
            slot = self._empty.pop()
        else:
            slot = len(self._nodes)
            self._nodes.append(None)
            for column in self._free.values():
                column.append(0)
        self._slots[name] = slot
        for placed in self._by_node.get(name, {}).values():
            self.used.update(placed.requests)
        return slot

    def _recount(self, slot: int, node: _Node) -> None:
        for resource in node.allocatable:
            if resource not in self._free:
                self._free[resource] = [0] * len(self._nodes)
        taken: Counter[str] = Counter()
        for placed in self._by_node.get(node.name, {}).values():
            taken.update(placed.requests)
        for resource, column in self._free.items():
            column[slot] = node.allocatable.get(resource, 0) - taken.get(resource, 0)

    # --- pods and reservations ----------------------------------------------------------------------

    def place(self, uid: str, placed: Placed) -> None:
        """Something takes room on a node; what the uid took before is given back first."""
        self.remove(uid)
        self._placed[uid] = placed
        self._by_node.setdefault(placed.node, {})[uid] = placed
        if placed.anti_affinity:
            self._with_anti_affinity[uid] = placed
        self._count(placed, 1)

    def remove(self, uid: str) -> Placed | None:
        """What the uid took is free again; returns it."""
        placed = self._placed.pop(uid, None)
        if placed is None:
            return None
        on_node = self._by_node[placed.node]
        del on_node[uid]
        if not on_node:
            del self._by_node[placed.node]
        self._with_anti_affinity.pop(uid, None)
        self._count(placed, -1)
        return placed

    def placed(self, uid: str) -> Placed | None:
        """What a uid takes."""
        return self._placed.get(uid)

    def _count(self, placed: Placed, sign: int) -> None:
        slot = self._slots.get(placed.node)
        if slot is None:
            return
        for resource, count in placed.requests.items():
            self.used[resource] += sign * count
            column = self._free.get(resource)
            if column is not None:
                column[slot] -= sign * count

    # --- questions ----------------------------------------------------------------------------------

    def feasible(self, demand: Demand, reasons: Counter[str] | None = None) -> list[int]:
        """The slots of the nodes that can take a pod, best predicted first not guaranteed.

        Args:
            demand: what it asks.
            reasons: counted up by why nodes cannot, in kube-scheduler's words, when none can.
        """
        answer = self._admitting(demand)
        slots: Sequence[int] = answer.slots
        told: Counter[str] = Counter()
        if demand.ports:
            slots = self._without_conflicts(slots, demand.ports, told)
        before = slots
        for resource, count in demand.requests.items():
            column = self._free.get(resource)
            slots = [slot for slot in slots if column[slot] >= count] if column is not None else []
            if not slots:
                break
        fitting = slots
        if slots:
            slots = self._by_topology(slots, demand, told)
        if not slots and reasons is not None:
            reasons.update(answer.reasons)
            reasons.update(told)
            if not fitting:
                self._tell_insufficient(before, demand, reasons)
            else:
                self._tell_insufficient(
                    [slot for slot in before if slot not in set(fitting)], demand, reasons
                )
        return list(slots)

    def name(self, slot: int) -> str:
        """The node in a slot."""
        node = self._nodes[slot]
        assert node is not None
        return node.name

    def left_over(self, slot: int, demand: Demand) -> float:
        """The larger share of a node's cpu and memory that stays free when it takes a pod: 0 fits exactly."""
        node = self._nodes[slot]
        assert node is not None
        shares = [
            (self._free[resource][slot] - demand.requests.get(resource, 0)) / node.allocatable[resource]
            for resource in ("cpu", "memory")
            if node.allocatable.get(resource)
        ]
        return max(shares, default=0.0)

    def _admitting(self, demand: Demand) -> _Answer:
        """The slots whose labels and taints admit the pod, and why the others do not."""
        kept = self._answers.get(demand.key)
        if kept is not None and kept.version == self._version:
            self._answers.move_to_end(demand.key)
            return kept
        answer = self._answers[demand.key] = self._ask(demand)
        self._answers.move_to_end(demand.key)
        if len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _ask(self, demand: Demand) -> _Answer:
        # Nodes that are alike in what is asked about get the same answer: judged once, looked up after that.
        columns = [self._state_column(), *(self._label_column(key) for key in _keys(demand.spec))]
        if _asks_for_names(demand.spec):
            columns.append([node.name if node is not None else None for node in self._nodes])
        known: dict[tuple[Any, ...], str] = {}
        slots: list[int] = []
        reasons: Counter[str] = Counter()
        for slot, alike in enumerate(zip(*columns, strict=True)):
            node = self._nodes[slot]
            if node is None:
                continue
            reason = known.get(alike)
            if reason is None:
                reason = known[alike] = _objection(node, demand.spec)
            if reason:
                reasons[reason] += 1
            else:
                slots.append(slot)
        return _Answer(self._version, slots, reasons)

    def _state_column(self) -> list[Any]:
        """By slot: what the nodes' taints and cordons are."""
        return self._column("", lambda node: (node.unschedulable, node.taints_key))

    def _label_column(self, key: str) -> list[Any]:
        """By slot: a label's value."""
        return self._column(f"label {key}", lambda node: node.labels.get(key))

    def _column(self, name: str, value: Callable[[_Node], Any]) -> list[Any]:
        if self._columns_version != self._version:
            self._columns.clear()
            self._columns_version = self._version
        column = self._columns.get(name)
        if column is None:
            column = [value(node) if node is not None else None for node in self._nodes]
            self._columns[name] = column
        return column

    def _without_conflicts(
        self, slots: Sequence[int], ports: Sequence[Port], told: Counter[str]
    ) -> list[int]:
        kept = []
        for slot in slots:
            taken = [
                port for placed in self._by_node.get(self.name(slot), {}).values() for port in placed.ports
            ]
            if any(_conflict(one, other) for one in ports for other in taken):
                told["node(s) didn't have free ports for the requested pod ports"] += 1
            else:
                kept.append(slot)
        return kept

    def _by_topology(self, slots: Sequence[int], demand: Demand, told: Counter[str]) -> list[int]:
        found = list(slots)
        if demand.spread:
            found = self._spread(found, demand, told)
        if demand.affinity:
            found = self._near(found, demand, told)
        if demand.anti_affinity or self._with_anti_affinity:
            found = self._apart(found, demand, told)
        return found

    def _spread(self, slots: list[int], demand: Demand, told: Counter[str]) -> list[int]:
        # Every node that admits the pod is a domain, full ones too.
        domains = self._admitting(demand).slots
        for constraint in demand.spread:
            counts = {
                slot: sum(
                    placed.namespace == demand.namespace and constraint.matches(placed.labels)
                    for placed in self._by_node.get(self.name(slot), {}).values()
                )
                for slot in domains
            }
            lowest = min(counts.values(), default=0)
            itself = int(constraint.matches(demand.labels))
            kept = [slot for slot in slots if counts[slot] + itself - lowest <= constraint.max_skew]
            if len(kept) < len(slots):
                told["node(s) didn't match pod topology spread constraints"] += len(slots) - len(kept)
            slots = kept
        return slots

    def _near(self, slots: list[int], demand: Demand, told: Counter[str]) -> list[int]:
        for term in demand.affinity:
            homes = {placed.node for placed in self._placed.values() if _meant(term, placed)}
            if not homes and demand.namespace in term.namespaces and term.matches(demand.labels):
                continue  # the first of a group that wants to be together
            kept = [slot for slot in slots if self.name(slot) in homes]
            if len(kept) < len(slots):
                told["node(s) didn't match pod affinity rules"] += len(slots) - len(kept)
            slots = kept
        return slots

    def _apart(self, slots: list[int], demand: Demand, told: Counter[str]) -> list[int]:
        repelling = {
            placed.node
            for placed in self._with_anti_affinity.values()
            for term in placed.anti_affinity
            if demand.namespace in term.namespaces and term.matches(demand.labels)
        }
        kept = []
        for slot in slots:
            name = self.name(slot)
            if name in repelling:
                told["node(s) didn't satisfy existing pods anti-affinity rules"] += 1
            elif any(
                _meant(term, placed)
                for term in demand.anti_affinity
                for placed in self._by_node.get(name, {}).values()
            ):
                told["node(s) didn't match pod anti-affinity rules"] += 1
            else:
                kept.append(slot)
        return kept

    def _tell_insufficient(self, slots: Sequence[int], demand: Demand, reasons: Counter[str]) -> None:
        for resource, count in demand.requests.items():
            column = self._free.get(resource)
            short = len(slots) if column is None else sum(column[slot] < count for slot in slots)
            if short:
                reasons["Too many pods" if resource == "pods" else f"Insufficient {resource}"] += short


def _meant(term: Term, placed: Placed) -> bool:
    return placed.namespace in term.namespaces and term.matches(placed.labels)


def _objection(node: _Node, spec: Mapping[str, Any]) -> str:
    """Why a node's state, taints or labels keep a pod out, in kube-scheduler's words and order; empty: they do not."""
    tolerations = spec.get("tolerations") or ()
    if node.unschedulable and not _tolerated(_UNSCHEDULABLE_TAINT, tolerations):
        return "node(s) were unschedulable"
    for taint in node.taints:
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and not _tolerated(taint, tolerations):
            return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value') or ''}}}"
    if not matching.admits({**spec, "tolerations": ()}, name=node.name, labels=node.labels, taints=()):
        return "node(s) didn't match Pod's node affinity/selector"
    for required in spec.get("volumes") or ():
        terms = required.get("nodeSelectorTerms") or ()
        if not any(matching.matches_term(term, name=node.name, labels=node.labels) for term in terms):
            return "node(s) had volume node affinity conflict"
    return ""


def _tolerated(taint: Mapping[str, Any], tolerations: Collection[Mapping[str, Any]]) -> bool:
    return any(matching.tolerates(toleration, taint) for toleration in tolerations)


def _keys(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The label keys that a spec asks about."""
    keys = set(spec.get("nodeSelector") or ())
    for term in _terms(spec):
        keys.update(expression.get("key", "") for expression in term.get("matchExpressions") or ())
    return tuple(sorted(keys))


def _asks_for_names(spec: Mapping[str, Any]) -> bool:
    return any(term.get("matchFields") for term in _terms(spec))


def _terms(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    found = list(required.get("nodeSelectorTerms") or ())
    for volume in spec.get("volumes") or ():
        found += volume.get("nodeSelectorTerms") or ()
    return found


def _conflict(one: Port, other: Port) -> bool:
    if one[1:] != other[1:]:
        return False
    return not one[0] or not other[0] or one[0] == other[0]
