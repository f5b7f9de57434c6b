"""Splitting scheduling fields: what chooses the virtual node stays, what chooses a node below moves. Pure.

A key *stays* when the user lists it (``--ignore-selector-keys``), when it is ``kubernetes.io/hostname`` and names a
virtual node, or when it is ``type`` and says virtual-kubelet. Everything else speaks of lower nodes.

Required node affinity is an OR of terms, each an AND of expressions. A term splits into its staying part K and its
moving part M. As long as all terms have the same K, "K above, OR of M below" says exactly what the user said. Where
they differ, "(clusterID=A and gpu) or zone=z" cannot be cut in two: the staying parts then travel along, in the
member ``upperNodeSelectorTerms`` beside the moved terms, and the virtual node drops the terms whose K it does not
fulfil (``controller_runtime.api.cluster_selector.resolve``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller_runtime.api import names

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_NODE_NAME_FIELD = "metadata.name"
Stays = Callable[[str, Collection[str]], bool]
Term = dict[str, Any]


@dataclass(slots=True)
class Moved:
    """What goes into the annotation."""

    node_selector: dict[str, str] = field(default_factory=dict)
    required: list[Term] = field(default_factory=list)
    upper_required: list[Term] = field(default_factory=list)
    """The staying parts of ``required``, term by term; empty when the upper cluster has judged them alone."""
    preferred: list[dict[str, Any]] = field(default_factory=list)


def stays(ignore_keys: Collection[str], virtual_nodes: Collection[str], *, daemon_set: bool) -> Stays:
    """The test for what stays in the upper cluster.

    Args:
        ignore_keys: label keys that the user wants above.
        virtual_nodes: names of the virtual nodes.
        daemon_set: the pod belongs to a DaemonSet, whose controller pins it to an upper node by a match field.
    """

    def decide(key: str, values: Collection[str]) -> bool:
        if key in ignore_keys:
            return True
        if key == _NODE_NAME_FIELD:
            return daemon_set or any(value in virtual_nodes for value in values)
        if key == names.LABEL_NODE_TYPE:
            return names.NODE_TYPE_VIRTUAL in values
        return key == names.LABEL_HOSTNAME and any(value in virtual_nodes for value in values)

    return decide


def split(spec: Mapping[str, Any], decide: Stays) -> tuple[dict[str, Any], Moved]:
    """A pod spec without what moves, and what moves.

    Only nodeSelector and node affinity are looked at; pod (anti-)affinity and topology spread stay as they are.
    """
    moved = Moved()
    rest = dict(spec)
    selector = spec.get("nodeSelector") or {}
    moved.node_selector = {key: value for key, value in selector.items() if not decide(key, (value,))}
    if moved.node_selector:
        _put(
            rest,
            "nodeSelector",
            {key: value for key, value in selector.items() if key not in moved.node_selector},
        )
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    terms = (node_affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    if terms:
        kept = _split_required(terms, decide, moved)
        _put(node_affinity, REQUIRED, {"nodeSelectorTerms": kept} if kept else {})
    weighted = node_affinity.get(PREFERRED) or []
    if weighted:
        _put(node_affinity, PREFERRED, _split_preferred(weighted, decide, moved))
    if terms or weighted:
        _put(affinity, "nodeAffinity", node_affinity)
        _put(rest, "affinity", affinity)
    return rest, moved


def conjunction(first: Sequence[Term], second: Sequence[Term]) -> list[Term]:
    """The terms of "first and second", each an OR of terms; an empty list says nothing.

    Terms that are in both already are not doubled.
    """
    if not first or not second:
        return list(first or second)
    return [_and(one, other) for one in first for other in second]


def _split_required(terms: Sequence[Mapping[str, Any]], decide: Stays, moved: Moved) -> list[Term]:
    parts = [_split_term(term, decide) for term in terms if _says_something(term)]
    staying = [kept for kept, _ in parts]
    moving = [gone for _, gone in parts]
    if not parts:
        # Only terms that match nothing: the user asked for no node at all, and gets none.
        return [dict(term) for term in terms]
    if not any(moving):
        return staying
    if all(kept == staying[0] for kept in staying):
        # (K and M1) or (K and M2) = K and (M1 or M2); a term without M makes the OR true.
        if all(moving):
            moved.required = moving
        return [staying[0]] if staying[0] else []
    moved.required, moved.upper_required = moving, staying
    return _unique(staying) if all(staying) else []


def _split_preferred(
    weighted: Sequence[Mapping[str, Any]], decide: Stays, moved: Moved
) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for entry in weighted:
        above, below = _split_term(entry.get("preference") or {}, decide)
        if below:
            moved.preferred.append({**entry, "preference": below})
        if above or not below:
            kept.append({**entry, "preference": above})
    return kept


def _split_term(term: Mapping[str, Any], decide: Stays) -> tuple[Term, Term]:
    above: Term = {}
    below: Term = {}
    for kind in ("matchExpressions", "matchFields"):
        for expression in term.get(kind) or ():
            side = above if decide(expression.get("key", ""), expression.get("values") or ()) else below
            side.setdefault(kind, []).append(expression)
    return above, below


def _says_something(term: Mapping[str, Any]) -> bool:
    """A term without expressions matches no node: in an OR it can be left out."""
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _and(one: Mapping[str, Any], other: Mapping[str, Any]) -> Term:
    joined: Term = {}
    for kind in ("matchExpressions", "matchFields"):
        expressions = [*(one.get(kind) or ())]
        expressions += [entry for entry in other.get(kind) or () if entry not in expressions]
        if expressions:
            joined[kind] = expressions
    return joined


def _unique(terms: Sequence[Term]) -> list[Term]:
    return list({json.dumps(term, sort_keys=True): term for term in terms}.values())


def _put(target: dict[str, Any], key: str, value: Any) -> None:
    """Set, or remove what would be empty: nothing is left behind that says nothing."""
    if value:
        target[key] = value
    else:
        target.pop(key, None)
