"""kube-scheduler's filters over the nodes of one lower cluster, with reasons for rejected nodes. No IO.

``NodeFilter`` compares labels, names, taints, cordons and features. Labels and taints change rarely, and all pods of a
Deployment have the same requirements, so answers are cached until a node changes. Nodes with equal values of the relevant
properties are evaluated once.

``Placements`` compares a pod with the placed ones: host ports, topology spread, pod affinity and anti-affinity. Source:
kube-scheduler's plug-ins PodTopologySpread and InterPodAffinity. Of the pod's own terms and constraints, the lower pod has
only those with topology key ``kubernetes.io/hostname`` (``clusterset.model.pod.lower_spec``). Anti-affinity of existing
lower pods may have any key. A domain is the value of the key's label, which need not be a node's name.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from clusterset.model.declared_features import declared
from clusterset.model.names import LABEL_HOSTNAME
from controller_runtime.apimachinery import matching
from multi_scheduler.state.cluster import limits
from multi_scheduler.state.cluster.pod_requirements import (
    Demand,
    NamespaceLabels,
    Placed,
    Port,
    Term,
    node_terms,
)

_KEPT_ANSWERS = 512
_KEPT_COLUMNS = 128
_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
MISSING_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"


@dataclass(slots=True)
class Node:
    """A lower node, reduced to what filters read."""

    name: str
    labels: dict[str, str]
    taints: list[dict[str, Any]]
    taints_key: str
    unschedulable: bool
    features: frozenset[str]
    allocatable: dict[str, int]

    def is_like(self, other: Node) -> bool:
        """Report whether both nodes admit the same pods, apart from free resources."""
        return (
            self.labels == other.labels
            and self.taints_key == other.taints_key
            and self.unschedulable == other.unschedulable
            and self.features == other.features
        )


def read_node(node: Mapping[str, Any]) -> Node:
    """Return a lower Node object, reduced to what filters read. Unreadable taints and resources count as missing."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    taints = limits.taints(spec.get("taints"))
    return Node(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        taints=taints,
        taints_key=repr(taints),
        unschedulable=bool(spec.get("unschedulable")),
        features=declared(node),
        allocatable=limits.amounts(status.get("allocatable")),
    )


@dataclass(slots=True)
class Answer:
    """The slots of the nodes that admit a pod, and the number of rejecting nodes by reason."""

    slots: list[int]
    reasons: Counter[str]
    avoided: dict[int, int]
    """By slot of an admitting node: number of its ``PreferNoSchedule`` taints that the pod does not tolerate, if any."""


class NodeFilter:
    """Finds in one list of nodes those that admit a pod, and caches the answers."""

    def __init__(self, nodes: Sequence[Node | None]) -> None:
        """Create an empty cache.

        Args:
            nodes: by slot; None: empty slot. The caller must call ``changed`` when anything but allocatable resources changes.
        """
        self._nodes = nodes
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._columns: OrderedDict[str, list[Any]] = OrderedDict()
        self._groups: dict[str, Mapping[str | None, Sequence[int]]] = {}
        """Slots by value, by label key."""

    def changed(self) -> None:
        """Clear the cache after a node was added or removed, or its labels, taints, cordon or features changed."""
        self._answers.clear()
        self._columns.clear()
        self._groups.clear()

    def ask(self, key: str, spec: Mapping[str, Any]) -> Answer:
        """Return which nodes admit a pod.

        Args:
            key: cache key; equal for equal specs.
            spec: nodeSelector, affinity, tolerations, required terms of volumes, and features, as returned by ``demand``.
        """
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self._judge(spec)
        self._answers.move_to_end(key)
        if len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def slots_by_label(self, key: str) -> Mapping[str | None, Sequence[int]]:
        """Return the slots of the nodes by their value of a label, without the nodes that lack it."""
        if key not in self._groups:
            groups: dict[str | None, list[int]] = {}
            for slot, value in enumerate(self._label_column(key)):
                if value is not None:
                    groups.setdefault(value, []).append(slot)
            self._groups[key] = groups
        return self._groups[key]

    def _judge(self, spec: Mapping[str, Any]) -> Answer:
        columns = [self._column("", lambda node: (node.unschedulable, node.taints_key))]
        columns += (self._label_column(key) for key in _keys(spec))
        if any(term.get("matchFields") for term in node_terms(spec)):
            columns.append([node.name if node is not None else None for node in self._nodes])
        if spec.get("features"):
            columns.append(self._column("features", lambda node: node.features))
        known: dict[tuple[Any, ...], str] = {}
        states: dict[Any, str] = {}
        slots: list[int] = []
        reasons: Counter[str] = Counter()
        avoided: dict[int, int] = {}
        for slot, values in enumerate(zip(*columns, strict=True)):
            node = self._nodes[slot]
            if node is None:
                continue
            reason = known.get(values)
            if reason is None:
                state = states.get(values[0])
                if state is None:
                    state = states[values[0]] = _state_objection(node, spec)
                reason = known[values] = state or _objection(node, spec)
            if reason:
                reasons[reason] += 1
            else:
                slots.append(slot)
                if node.taints and (count := _avoiding_taints(node, spec)):
                    avoided[slot] = count
        return Answer(slots, reasons, avoided)

    def _label_column(self, key: str) -> list[Any]:
        """Return by slot the value of a label."""
        return self._column(f"label {key}", lambda node: node.labels.get(key))

    def _column(self, name: str, value: Callable[[Node], Any]) -> list[Any]:
        column = self._columns.get(name)
        if column is None:
            column = [value(node) if node is not None else None for node in self._nodes]
            self._columns[name] = column
            if len(self._columns) > _KEPT_COLUMNS:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(name)
        return column


def _state_objection(node: Node, spec: Mapping[str, Any]) -> str:
    """Return why a node's cordon or taints reject a pod, in kube-scheduler's words and order; empty: they admit it."""
    tolerations = spec.get("tolerations") or ()
    if node.unschedulable and not _tolerated(_UNSCHEDULABLE_TAINT, tolerations):
        return "node(s) were unschedulable"
    for taint in node.taints:
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and not _tolerated(taint, tolerations):
            return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value') or ''}}}"
    return ""


def _avoiding_taints(node: Node, spec: Mapping[str, Any]) -> int:
    tolerations = spec.get("tolerations") or ()
    return sum(
        taint.get("effect") == "PreferNoSchedule" and not _tolerated(taint, tolerations)
        for taint in node.taints
    )


def _objection(node: Node, spec: Mapping[str, Any]) -> str:
    """Return why a node's name, labels or features reject a pod, in kube-scheduler's words; empty: they admit it."""
    if not matching.admits({**spec, "tolerations": ()}, name=node.name, labels=node.labels, taints=()):
        return "node(s) didn't match Pod's node affinity/selector"
    for required in spec.get("volumes") or ():
        terms = required.get("nodeSelectorTerms") or ()
        if not any(matching.matches_term(term, name=node.name, labels=node.labels) for term in terms):
            return "node(s) had volume node affinity conflict"
    if not node.features.issuperset(spec.get("features") or ()):
        return "node(s) didn't match Pod's required features"
    return ""


def _tolerated(taint: Mapping[str, Any], tolerations: Collection[Mapping[str, Any]]) -> bool:
    return any(matching.tolerates(toleration, taint) for toleration in tolerations)


def _keys(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the label keys that a spec refers to."""
    keys = set(spec.get("nodeSelector") or ())
    for term in node_terms(spec):
        keys.update(expression.get("key", "") for expression in term.get("matchExpressions") or ())
    return tuple(sorted(keys))


@dataclass(frozen=True, slots=True)
class Placements:
    """Nodes, namespaces and placements of one lower cluster: the index's own lists and dicts, read only."""

    nodes: Sequence[Node | None]
    """By slot; None: no node."""
    slots: Mapping[str, int]
    """By node name."""
    by_node: Mapping[str, Mapping[str, Placed]]
    all_placed: Mapping[str, Placed]
    with_anti_affinity: Mapping[str, Placed]
    namespaces: NamespaceLabels

    def on(self, slot: int) -> Collection[Placed]:
        """Return the placements on the node in a slot."""
        node = self.nodes[slot]
        return self.by_node.get(node.name, {}).values() if node is not None else ()

    def label(self, slot: int | None, key: str) -> str | None:
        """Return the value of a label of the node in a slot; None: no such node or label."""
        node = self.nodes[slot] if slot is not None else None
        return node.labels.get(key) if node is not None else None

    def host(self, slot: int) -> str | None:
        """Return the value of the node's label ``kubernetes.io/hostname``; None: no such node or label."""
        return self.label(slot, LABEL_HOSTNAME)


def remaining(
    slots: Sequence[int],
    demand: Demand,
    placements: Placements,
    node_filter: NodeFilter,
    rejections: Counter[str],
) -> list[int]:
    """Return the slots that satisfy the pod's topology spread and pod (anti-)affinity constraints.

    ``node_filter`` finds the nodes over which pods are spread. ``rejections`` is incremented by the number of rejected
    nodes for each reason, in kube-scheduler's words.
    """
    found = list(slots)
    if demand.spread:
        found = _spread(found, demand, placements, node_filter, rejections)
    if demand.affinity:
        found = _near(found, demand, placements, rejections)
    if demand.anti_affinity or placements.with_anti_affinity:
        found = _apart(found, demand, placements, node_filter, rejections)
    return found


def without_conflicts(
    slots: Sequence[int], ports: Sequence[Port], placements: Placements, rejections: Counter[str]
) -> list[int]:
    """Return the slots of the nodes where no pod uses one of the host ports; count the others in ``rejections``."""
    addresses: dict[tuple[str, int], set[str]] = {}
    for address, protocol, number in ports:
        addresses.setdefault((protocol, number), set()).add(address)
    kept = [
        slot
        for slot in slots
        if not any(
            port[1:] in addresses and _overlap(port[0], addresses[port[1:]])
            for placed in placements.on(slot)
            for port in placed.ports
        )
    ]
    if len(kept) < len(slots):
        rejections["node(s) didn't have free ports for the requested pod ports"] += len(slots) - len(kept)
    return kept


def _overlap(address: str, others: Collection[str]) -> bool:
    """Report whether a host IP conflicts with one of the others; empty: all addresses."""
    return not address or "" in others or address in others


def _spread(
    slots: list[int],
    demand: Demand,
    placements: Placements,
    node_filter: NodeFilter,
    rejections: Counter[str],
) -> list[int]:
    labelled = [slot for slot in slots if placements.host(slot) is not None]
    if len(labelled) < len(slots):
        rejections[MISSING_LABEL] += len(slots) - len(labelled)
    slots = labelled
    for constraint in demand.spread:
        # Nodes without room are domains as well, by default also those with taints that reject the pod.
        domains = node_filter.ask(constraint.domain_key, constraint.domain_spec).slots
        counts: dict[str | None, int] = {}
        for slot in domains:
            if (host := placements.host(slot)) is not None:
                counts[host] = counts.get(host, 0) + sum(
                    placed.namespace == demand.namespace
                    and not placed.is_ending
                    and constraint.counts(placed.labels)
                    for placed in placements.on(slot)
                )
        lowest = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
        most = constraint.max_skew + lowest - constraint.counts_itself
        kept = [slot for slot in slots if counts.get(placements.host(slot), 0) <= most]
        if len(kept) < len(slots):
            rejections["node(s) didn't match pod topology spread constraints"] += len(slots) - len(kept)
        slots = kept
    return slots


def _near(slots: list[int], demand: Demand, placements: Placements, rejections: Counter[str]) -> list[int]:
    terms = [term for term in demand.affinity if term.is_known(placements.namespaces)]
    if not terms:
        return slots

    @cache
    def is_covered(namespace: str) -> bool:
        return all(term.covers(namespace, placements.namespaces) for term in terms)

    # One existing pod must match all terms.
    homes = {
        placements.label(placements.slots.get(placed.node), LABEL_HOSTNAME)
        for placed in placements.all_placed.values()
        if is_covered(placed.namespace) and all(term.matches(placed.labels) for term in terms)
    } - {None}
    is_first = (
        not homes and is_covered(demand.namespace) and all(term.matches(demand.labels) for term in terms)
    )
    kept = [
        slot
        for slot in slots
        # The first pod that matches its own terms may go to any node with a hostname label.
        if (host := placements.host(slot)) is not None and (is_first or host in homes)
    ]
    if len(kept) < len(slots):
        rejections["node(s) didn't match pod affinity rules"] += len(slots) - len(kept)
    return kept


def _apart(
    slots: list[int],
    demand: Demand,
    placements: Placements,
    node_filter: NodeFilter,
    rejections: Counter[str],
) -> list[int]:
    terms = [term for term in demand.anti_affinity if term.is_known(placements.namespaces)]
    hosts = node_filter.slots_by_label(LABEL_HOSTNAME) if terms else {}
    repelling = _repelling(demand, placements)
    kept = []
    for slot in slots:
        # A node without the label is in no domain, so no pod repels others from it.
        if any(
            _is_meant(term, placed.namespace, placed.labels, placements)
            for term in terms
            for neighbour in hosts.get(placements.host(slot), ())
            for placed in placements.on(neighbour)
        ):
            rejections["node(s) didn't match pod anti-affinity rules"] += 1
        elif any(placements.label(slot, key) in values for key, values in repelling.items()):
            rejections["node(s) didn't satisfy existing pods anti-affinity rules"] += 1
        else:
            kept.append(slot)
    return kept


def _repelling(demand: Demand, placements: Placements) -> dict[str, set[str]]:
    """Return the domains from which existing pods' anti-affinity repels the pod: values by topology key."""
    found: dict[str, set[str]] = {}
    for placed in placements.with_anti_affinity.values():
        slot = placements.slots.get(placed.node)
        for term in placed.anti_affinity:
            value = placements.label(slot, term.topology_key)
            if (
                value is not None
                and term.is_known(placements.namespaces)
                and _is_meant(term, demand.namespace, demand.labels, placements)
            ):
                found.setdefault(term.topology_key, set()).add(value)
    return found


def _is_meant(term: Term, namespace: str, labels: Mapping[str, str], placements: Placements) -> bool:
    """Report whether a term selects a pod with this namespace and these labels."""
    return term.covers(namespace, placements.namespaces) and term.matches(labels)
