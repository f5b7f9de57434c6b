"""Splits selectors: the part for virtual nodes stays, the part for lower nodes moves to the annotation. No IO.

A key *stays* if ``--ignore-selector-keys`` lists it, if it is ``virtual-node.io/lower-cluster``, which only virtual nodes
have, if it is ``kubernetes.io/hostname`` or field ``metadata.name`` with the name of a virtual node (in a DaemonSet's pod,
``metadata.name`` with any name), or if it is ``type`` with the value virtual-kubelet. All other keys select lower nodes.

Required node affinity is an OR of terms, each an AND of expressions. A term has a staying part K and a moving part M.
If all terms have the same K, "K in the upper cluster, OR of all M in the lower cluster" is equivalent. If they
differ, as in "(clusterID=A and gpu) or zone=z", no such split exists. Then the staying parts are also stored in the
member ``upperNodeSelectorTerms`` beside the moved terms, and the virtual node drops the terms whose K does not match
it (``clusterset.model.cluster_selector.resolve``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from clusterset.model import names
from controller_runtime.apimachinery.matching import PREFERRED, REQUIRED

_NODE_NAME_FIELD = "metadata.name"
_KINDS = ("matchExpressions", "matchFields")
T = TypeVar("T")
Stays = Callable[[str, Collection[str]], bool]
Term = dict[str, Any]


@dataclass(slots=True)
class Moved:
    """Fields that move into the annotation."""

    node_selector: dict[str, str] = field(default_factory=dict)
    required: list[Term] = field(default_factory=list)
    upper_required: list[Term] = field(default_factory=list)
    """For each term in ``required``, its staying part; empty if the upper scheduler alone can apply the
    staying parts."""
    preferred: list[dict[str, Any]] = field(default_factory=list)


def stays(ignore_keys: Collection[str], virtual_nodes: Collection[str], *, daemon_set: bool) -> Stays:
    """Return a function that reports whether a requirement with a key and values stays in the upper spec.

    Args:
        ignore_keys: label keys that always stay.
        virtual_nodes: names of the virtual nodes.
        daemon_set: whether the pod belongs to a DaemonSet, whose controller selects its upper node by a match field.
    """

    def decide(key: str, values: Collection[str]) -> bool:
        if key in ignore_keys or key == names.LABEL_LOWER_CLUSTER:
            return True
        if key == _NODE_NAME_FIELD:
            return daemon_set or any(value in virtual_nodes for value in values)
        if key == names.LABEL_NODE_TYPE:
            return names.NODE_TYPE_VIRTUAL in values
        return key == names.LABEL_HOSTNAME and any(value in virtual_nodes for value in values)

    return decide


def split(spec: Mapping[str, Any], decide: Stays) -> tuple[dict[str, Any], Moved]:
    """Return a pod spec without the moving fields, and these fields.

    Only nodeSelector and node affinity are split. Pod (anti-)affinity and topology spread constraints stay.
    """
    moved = Moved()
    rest = dict(spec)
    selector = spec.get("nodeSelector") or {}
    moved.node_selector = {key: value for key, value in selector.items() if not decide(key, (value,))}
    if moved.node_selector:
        put(
            rest,
            "nodeSelector",
            {key: value for key, value in selector.items() if key not in moved.node_selector},
        )
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    terms = (node_affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    if terms:
        kept = _split_required(terms, decide, moved)
        put(node_affinity, REQUIRED, {"nodeSelectorTerms": kept} if kept else {})
    weighted = node_affinity.get(PREFERRED) or []
    if weighted:
        put(node_affinity, PREFERRED, _split_preferred(weighted, decide, moved))
    if terms or weighted:
        put(affinity, "nodeAffinity", node_affinity)
        put(rest, "affinity", affinity)
    return rest, moved


def conjunction(first: Sequence[Term], second: Sequence[Term]) -> list[Term]:
    """Return the terms of "first AND second"; a list of terms is an OR, and an empty list is no restriction.

    Expressions that are in both terms are not repeated.
    """
    if not first or not second:
        return list(first or second)
    return [_and(one, other) for one in first for other in second]


def size(terms: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of expressions of all terms; a term without expressions counts as one."""
    return sum(max(1, sum(len(term.get(kind) or ()) for kind in _KINDS)) for term in terms)


def without(entries: Sequence[T], known: Sequence[T]) -> list[T]:
    """Return the entries that are not equal to a known one. Takes time in proportion to the length of both."""
    codes = set(map(_code, known)) if known else set[bytes]()
    return [entry for entry in entries if _code(entry) not in codes] if codes else list(entries)


def unique(entries: Iterable[T]) -> list[T]:
    """Return the entries without repetitions, in their order."""
    return list({_code(entry): entry for entry in entries}.values())


def _code(entry: object) -> bytes:
    return msgspec.json.encode(entry, order="sorted")


def _split_required(terms: Sequence[Mapping[str, Any]], decide: Stays, moved: Moved) -> list[Term]:
    parts = [_split_term(term, decide) for term in terms if _has_expressions(term)]
    staying = [kept for kept, _ in parts]
    moving = [gone for _, gone in parts]
    if not parts:
        # All terms are empty and match no node: they stay, so that the pod matches no node.
        return [dict(term) for term in terms]
    if not any(moving):
        return staying
    if all(kept == staying[0] for kept in staying):
        # (K and M1) or (K and M2) = K and (M1 or M2), where K is kept and M is moved. If one term has no M, the OR is
        # true and nothing moves.
        if all(moving):
            moved.required = moving
        return [staying[0]] if staying[0] else []
    moved.required, moved.upper_required = moving, staying
    return unique(staying) if all(staying) else []


def _split_preferred(
    weighted: Sequence[Mapping[str, Any]], decide: Stays, moved: Moved
) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for entry in weighted:
        staying, moving = _split_term(entry.get("preference") or {}, decide)
        if moving:
            moved.preferred.append({**entry, "preference": moving})
        if staying or not moving:
            kept.append({**entry, "preference": staying})
    return kept


def _split_term(term: Mapping[str, Any], decide: Stays) -> tuple[Term, Term]:
    staying: Term = {}
    moving: Term = {}
    for kind in _KINDS:
        for expression in term.get(kind) or ():
            side = staying if decide(expression.get("key", ""), expression.get("values") or ()) else moving
            side.setdefault(kind, []).append(expression)
    return staying, moving


def _has_expressions(term: Mapping[str, Any]) -> bool:
    """Report whether a term has expressions. A term without expressions matches no node, so an OR can omit it."""
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _and(one: Mapping[str, Any], other: Mapping[str, Any]) -> Term:
    joined: Term = {}
    for kind in _KINDS:
        expressions = [*(one.get(kind) or ())]
        expressions += without(other.get(kind) or (), expressions)
        if expressions:
            joined[kind] = expressions
    return joined


def put(target: dict[str, Any], key: str, value: Any) -> None:
    """Set a member, or remove it if the value is empty."""
    if value:
        target[key] = value
    else:
        target.pop(key, None)
