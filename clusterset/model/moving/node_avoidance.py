"""Nodes that a pod avoids: the ConfigMap that stores them, and affinity that excludes or requires nodes.

ConfigMap ``virtual-node-unschedulable``: per owner (``owner_key``) a JSON ``{"namespace": …, "nodes": {name:
RFC 3339}}``. The time is when the node was found unschedulable. The owner's pods avoid the node (it is
*frozen*) until the freeze period has passed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.decoding import decode
from controller_runtime.apimachinery.matching import REQUIRED

CONFIG_MAP = "virtual-node-unschedulable"
_KEY = re.compile(r"[\w.-]{1,253}", re.ASCII)

Frozen = tuple[str, dict[str, datetime]]
"""Namespace of an owner, and the time from which the owner's pods avoid each node."""


def owner_key(namespace: str, uid: str) -> str:
    """Return the key of an owner's entry; valid in a ConfigMap, and distinct for owners in other namespaces.

    Args:
        namespace: the pod's namespace.
        uid: of the owner in the pod's ownerReferences. Users can write any value there, such as the uid of
            another tenant's ReplicaSet.
    """
    key = f"{namespace}.{uid}"
    return key if _KEY.fullmatch(key) else f"{namespace}.{hashlib.sha256(uid.encode()).hexdigest()}"


def parse_all(data: Mapping[str, Any] | None) -> dict[str, Frozen]:
    """Return the entries of the ConfigMap's data; invalid ones are omitted."""
    found: dict[str, Frozen] = {}
    for owner, text in (data or {}).items():
        try:
            value = decode(text)
            nodes = {str(node): timestamps.parse(since) for node, since in value["nodes"].items()}
            found[owner] = (str(value.get("namespace") or ""), nodes)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def render(namespace: str, nodes: Mapping[str, datetime]) -> str:
    """Return the value of one owner's entry."""
    moments = {node: timestamps.rfc3339(since) for node, since in sorted(nodes.items())}
    return msgspec.json.encode({"namespace": namespace, "nodes": moments}).decode()


def avoid(spec: Mapping[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """Return the spec with ``kubernetes.io/hostname NotIn nodes`` in every required node affinity term.

    Terms are ORed, so each one needs the expression; without any term, one is added. A term without
    expressions and fields matches no node and is not changed.
    """
    if not nodes:
        return dict(spec)
    return with_expression(spec, {"key": names.LABEL_HOSTNAME, "operator": "NotIn", "values": sorted(nodes)})


def with_expression(spec: Mapping[str, Any], expression: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with an expression in every required node affinity term, or in a new term."""
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    terms = (node_affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    wanted = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), expression]}
        if any(term.values()) and expression not in (term.get("matchExpressions") or ())
        else term
        for term in terms
    ]
    node_affinity[REQUIRED] = {"nodeSelectorTerms": wanted or [{"matchExpressions": [expression]}]}
    affinity["nodeAffinity"] = node_affinity
    return {**spec, "affinity": affinity}


def require(spec: Mapping[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """Return the spec with ``kubernetes.io/hostname In nodes`` in every term of its required node affinity.

    A term that has this expression is not changed, so the function is idempotent.
    """
    requirement = {"key": names.LABEL_HOSTNAME, "operator": "In", "values": sorted(nodes)}
    return with_expression(spec, requirement)


def require_virtual(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with ``type In [virtual-kubelet]`` in every term of its required node affinity."""
    virtual = {"key": names.LABEL_NODE_TYPE, "operator": "In", "values": [names.NODE_TYPE_VIRTUAL]}
    return with_expression(spec, virtual)


def active(nodes: Mapping[str, datetime], *, now: datetime, freeze_period: float) -> dict[str, datetime]:
    """Return the nodes that were found unschedulable less than ``freeze_period`` seconds ago."""
    oldest = now - timedelta(seconds=freeze_period)
    return {node: since for node, since in nodes.items() if since > oldest}


def to_avoid(frozen: Mapping[str, datetime], candidates: Collection[str]) -> list[str]:
    """Return the frozen nodes to avoid, so that at least one candidate is left.

    If all candidates are frozen, only the candidate that was frozen last is avoided. A single candidate is
    never avoided, because the pod would have no node. Other frozen nodes are always avoided.

    Args:
        frozen: node → time of its active freeze.
        candidates: the virtual nodes that are Ready, schedulable, have places for pods, and admit the pod.
    """
    avoided = sorted(frozen)
    if not candidates or any(node not in frozen for node in candidates):
        return avoided
    if len(candidates) == 1:
        return [node for node in avoided if node not in candidates]
    latest = max(candidates, key=lambda node: (frozen[node], node))
    return [node for node in avoided if node not in candidates or node == latest]


def readmit(spec: Mapping[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """Return the spec without these nodes in any ``hostname NotIn``; the inverse of ``avoid``.

    Expressions, terms and lists that become empty are removed, because an empty term would match no node.
    """
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(REQUIRED)
    if not required or not nodes:
        return dict(spec)
    found = required.get("nodeSelectorTerms") or ()
    terms = [left for term in found if (left := _without(term, nodes)) or not term]
    node_affinity = {name: value for name, value in node_affinity.items() if name != REQUIRED}
    if terms:
        node_affinity[REQUIRED] = {"nodeSelectorTerms": terms}
    rest = {name: value for name, value in affinity.items() if name != "nodeAffinity"}
    if node_affinity:
        rest["nodeAffinity"] = node_affinity
    changed = {name: value for name, value in spec.items() if name != "affinity"}
    return {**changed, "affinity": rest} if rest else changed


def _without(term: Mapping[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    expressions = []
    for expression in term.get("matchExpressions") or ():
        kept = expression
        if expression.get("key") == names.LABEL_HOSTNAME and expression.get("operator") == "NotIn":
            values = [value for value in expression.get("values") or () if value not in nodes]
            if not values:
                continue
            kept = {**expression, "values": values}
        expressions.append(kept)
    left = {name: value for name, value in term.items() if name != "matchExpressions"}
    return {**left, "matchExpressions": expressions} if expressions else left


def recorded(annotations: Mapping[str, str]) -> dict[str, datetime]:
    """Return the nodes in a re-created pod's annotation, also expired entries, each with the time when it began."""
    text = annotations.get(names.ANNOTATION_UNSCHEDULABLE_NODES) or ""
    try:
        entries = decode(text) if text else {}
        return {str(node): timestamps.parse(since) for node, since in entries.items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # not written by the descheduler


def avoided_names(annotations: Mapping[str, str]) -> set[str]:
    """Return the nodes that the descheduler or the webhook (``unschedulable-node``) made a pod avoid."""
    texts = (annotations.get(names.ANNOTATION_UNSCHEDULABLE_NODE) or "").split(",")
    return set(recorded(annotations)) | {text.strip() for text in texts if text.strip()}


def own_spec(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod's spec without the affinity that the descheduler or the webhook added to avoid nodes."""
    return readmit(spec, avoided_names(annotations))
