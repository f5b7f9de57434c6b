"""Filters lower nodes by labels, names, taints and cordons, with reasons for rejected nodes. No IO.

Labels and taints change rarely, and all pods of a Deployment have the same requirements, so answers are cached until a
node changes. Nodes with equal values of the relevant properties are evaluated once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller_runtime.api import matching, quantity

_KEPT_ANSWERS = 512
_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(slots=True)
class Node:
    """A lower node, reduced to what filters read."""

    name: str
    labels: dict[str, str]
    taints: list[dict[str, Any]]
    taints_key: str
    unschedulable: bool
    allocatable: dict[str, int]

    def is_like(self, other: Node) -> bool:
        """Report whether both nodes admit the same pods, apart from free resources."""
        return (
            self.labels == other.labels
            and self.taints_key == other.taints_key
            and self.unschedulable == other.unschedulable
        )


def read_node(node: Mapping[str, Any]) -> Node:
    """Return a lower Node object, reduced to what filters read."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    return Node(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        taints=spec.get("taints") or [],
        taints_key=repr(spec.get("taints") or []),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable={
            key: quantity.of(key, value) for key, value in (status.get("allocatable") or {}).items()
        },
    )


@dataclass(slots=True)
class Answer:
    """The slots of the nodes that admit a pod, and the number of rejecting nodes by reason."""

    slots: list[int]
    reasons: Counter[str]


class NodeFilter:
    """Finds in one list of nodes those that admit a pod, and caches the answers."""

    def __init__(self, nodes: Sequence[Node | None]) -> None:
        """Create an empty cache.

        Args:
            nodes: by slot; None: empty slot. The caller must call ``changed`` when anything but allocatable resources changes.
        """
        self._nodes = nodes
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._columns: dict[str, list[Any]] = {}

    def changed(self) -> None:
        """Clear the cache after a node was added or removed, or its labels, taints or cordon changed."""
        self._answers.clear()
        self._columns.clear()

    def ask(self, key: str, spec: Mapping[str, Any]) -> Answer:
        """Return which nodes admit a pod.

        Args:
            key: cache key; equal for equal specs.
            spec: nodeSelector, affinity, tolerations, and required terms of volumes, as returned by ``demand``.
        """
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self._judge(spec)
        self._answers.move_to_end(key)
        if len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _judge(self, spec: Mapping[str, Any]) -> Answer:
        columns = [self._state_column(), *(self._label_column(key) for key in _keys(spec))]
        if _asks_for_names(spec):
            columns.append([node.name if node is not None else None for node in self._nodes])
        known: dict[tuple[Any, ...], str] = {}
        slots: list[int] = []
        reasons: Counter[str] = Counter()
        for slot, values in enumerate(zip(*columns, strict=True)):
            node = self._nodes[slot]
            if node is None:
                continue
            reason = known.get(values)
            if reason is None:
                reason = known[values] = _objection(node, spec)
            if reason:
                reasons[reason] += 1
            else:
                slots.append(slot)
        return Answer(slots, reasons)

    def _state_column(self) -> list[Any]:
        """Return by slot the node's taints and cordon."""
        return self._column("", lambda node: (node.unschedulable, node.taints_key))

    def _label_column(self, key: str) -> list[Any]:
        """Return by slot the value of a label."""
        return self._column(f"label {key}", lambda node: node.labels.get(key))

    def _column(self, name: str, value: Callable[[Node], Any]) -> list[Any]:
        column = self._columns.get(name)
        if column is None:
            column = [value(node) if node is not None else None for node in self._nodes]
            self._columns[name] = column
        return column


def _objection(node: Node, spec: Mapping[str, Any]) -> str:
    """Return why a node's state, taints or labels reject a pod, in kube-scheduler's words and order; empty: admitted."""
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
    """Return the label keys that a spec refers to."""
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
