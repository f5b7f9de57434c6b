"""The rules about scheduling: control-plane nodes, taints, node labels, schedulers, priority and RuntimeClasses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterset.model import names
from clusterset.model.moving import node_avoidance
from clusterset.model.policy.rules import Effective, FieldValue, matches
from controller_runtime.apimachinery import matching

Pod = Mapping[str, Any]
CONTROL_PLANE_KEYS = (
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/controlplane",
    "node-role.kubernetes.io/etcd",
)
"""Labels and taints of control-plane nodes: those of kubeadm, of older releases, and of Rancher's
distributions."""
SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")
"""PriorityClasses that every cluster has. Their pods preempt all others."""
_ADDED_BY_API_SERVERS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that every pod tolerates for some time (admission plug-in DefaultTolerationSeconds)."""
_CHOOSING = frozenset({"In", "Exists", "Gt", "Lt"})


def control_plane(pod: Pod) -> Iterator[FieldValue]:
    """Yield fields that select control-plane nodes or tolerate their taints by name."""
    for key, where, operator in _selected(pod["spec"]):
        if key in CONTROL_PLANE_KEYS and operator in _CHOOSING:
            yield where, operator
    for toleration in pod["spec"].get("tolerations") or ():
        if (key := toleration.get("key")) in CONTROL_PLANE_KEYS:
            yield f"spec.tolerations[{key}]", toleration.get("operator") or "Equal"


def toleration_keys(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield taints that the pod tolerates and that are not allowed."""
    for toleration in pod["spec"].get("tolerations") or ():
        key = toleration.get("key") or ""
        if key not in _ADDED_BY_API_SERVERS and not (key and matches(key, allowed)):
            yield f"spec.tolerations[{key}]", key or "every taint"


def node_selector_keys(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield forbidden node labels in selectors; also ``NotIn``, because it selects all other nodes."""
    for key, where, operator in _selected(pod["spec"]):
        if not matches(key, allowed):
            yield where, operator


def scheduler_names(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield the lower cluster's scheduler that the pod selects, if it is not allowed."""
    name = pod["spec"].get("schedulerName") or names.DEFAULT_SCHEDULER
    if name != names.DEFAULT_SCHEDULER and not matches(name, allowed):
        is_annotated = names.ANNOTATION_SCHEDULER_NAME in (pod["metadata"].get("annotations") or {})
        where = f"metadata.annotations[{names.ANNOTATION_SCHEDULER_NAME}]"
        yield where if is_annotated else "spec.schedulerName", name


def priority_classes(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield the PriorityClass that the pod has in the lower cluster, if it is not allowed."""
    name = pod["spec"].get("priorityClassName")
    if name and not matches(name, allowed):
        yield "spec.priorityClassName", name


def runtime_classes(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield the pod's RuntimeClass, if not allowed; classes set a handler, node selector and tolerations."""
    name = pod["spec"].get("runtimeClassName")
    if name and not matches(name, allowed):
        yield "spec.runtimeClassName", name


def keep_off_control_plane(spec: dict[str, Any], rules: Effective) -> dict[str, Any]:
    """Return a lower pod's spec that excludes control-plane nodes if the policy forbids them.

    Only a pod that tolerates their taints is changed, for example one that tolerates every taint: it gets a node
    affinity. Other pods may run on control-plane nodes without a taint, such as the only node of a small cluster.
    """
    if rules.values["control_plane"]:
        return spec
    tolerations = spec.get("tolerations") or ()
    taints = [
        {"key": key, "effect": effect} for key in CONTROL_PLANE_KEYS for effect in ("NoSchedule", "NoExecute")
    ]
    if not any(matching.tolerates(toleration, taint) for toleration in tolerations for taint in taints):
        return spec
    for key in CONTROL_PLANE_KEYS:
        spec = node_avoidance.with_expression(spec, {"key": key, "operator": "DoesNotExist"})
    return spec


def _selected(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each node label in a pod's selectors: key, field, operator."""
    for key in spec.get("nodeSelector") or {}:
        yield key, f"spec.nodeSelector[{key}]", "In"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = (affinity.get(matching.REQUIRED) or {}).get("nodeSelectorTerms")
    preferred = affinity.get(matching.PREFERRED)
    for term in [*(required or ()), *(one.get("preference") or {} for one in preferred or ())]:
        for expression in [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]:
            key = expression.get("key") or ""
            yield key, f"spec.affinity.nodeAffinity[{key}]", expression.get("operator") or ""
