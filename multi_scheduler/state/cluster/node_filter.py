"""Filters lower nodes by labels, names, taints, cordons and features, with reasons for rejected nodes. No IO.

Labels and taints change rarely, and all pods of a Deployment have the same requirements, so answers are cached until a
node changes. Nodes with equal values of the relevant properties are evaluated once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model.declared_features import declared
from controller_runtime.apimachinery import matching
from multi_scheduler.state.cluster import limits
from multi_scheduler.state.cluster.pod_requirements import node_terms

_KEPT_ANSWERS = 512
_KEPT_COLUMNS = 128
_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


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
