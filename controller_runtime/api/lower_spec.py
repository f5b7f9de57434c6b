"""The fields of a lower pod's spec that decide where it runs, and what stays in the upper cluster.

The virtual node creates lower pods from it; the multi-scheduler foresees them with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime.api import cluster_selector, label_keys, names
from controller_runtime.api.policy.rules import Effective, matches
from controller_runtime.api.policy.scheduling import SYSTEM_CLASSES

_UPPER_ONLY = (
    "nodeName",  # the lower scheduler chooses
    "nodeSelector",  # chose the virtual node; the lower one comes from clusterSelector
    "priority",  # computed below from the class
    "preemptionPolicy",
    "priorityClassName",  # a class that is missing below would refuse the pod; see the policy's priorityClasses
    "schedulerName",  # the lower cluster's own
    "schedulingGates",  # lifted above before the pod was bound
    "overhead",  # computed below from the RuntimeClass
    "readinessGates",  # their conditions live above; upper_status computes Ready from them
    "ephemeralContainers",  # refused at creation; carried by the update
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "resourceClaims",  # claims are objects of the upper cluster
    "workloadRef",  # so are Workloads
    "schedulingGroup",  # and PodGroups
)


def lower_spec(
    upper: Mapping[str, Any], rules: Effective, *, node_name: str, node_labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return an upper pod's spec without upper scheduling and with that of the lower cluster.

    With a ``clusterSelector`` annotation its nodeSelector, node affinity and tolerations are put
    back exactly as recorded. Without one, node selector and node affinity chose the virtual node and mean
    nothing below; the user's tolerations are kept, less the virtual node's own. Pod (anti-)affinity and topology
    spread over ``kubernetes.io/hostname`` are carried too: replicas that must not share a node above must not
    share one below either. Other topology keys name upper topology and stay there.

    Args:
        upper: the upper pod.
        rules: the policy for its namespace, which names the PriorityClasses that are carried.
        node_name: the virtual node.
        node_labels: labels of the virtual node that a clusterSelector may ask about.
    """
    above = upper["spec"]
    annotations = upper["metadata"].get("annotations") or {}
    selector = cluster_selector.of(annotations, names.ANNOTATION_CLUSTER_SELECTOR)
    if selector is not None:
        selector = cluster_selector.resolve(selector, node_name=node_name, node_labels=node_labels)
    spec = {key: value for key, value in above.items() if key not in _UPPER_ONLY}
    spec |= _scheduling(above, selector)
    if scheduler := annotations.get(names.ANNOTATION_SCHEDULER_NAME):
        spec["schedulerName"] = scheduler
    priority_class = above.get("priorityClassName") or ""
    # The system's classes are kept where they are not allowed, too: the policy refuses such pods.
    if priority_class in SYSTEM_CLASSES or matches(priority_class, rules.values["priority_classes"]):
        spec["priorityClassName"] = priority_class
    return spec


def _scheduling(above: Mapping[str, Any], selector: Mapping[str, Any] | None) -> dict[str, Any]:
    # The lower apiserver would add to selectors what the upper one has added.
    above = label_keys.settled(above)
    scheduling: dict[str, Any] = {}
    affinity = {
        kind: kept
        for kind in ("podAffinity", "podAntiAffinity")
        if (kept := _per_host((above.get("affinity") or {}).get(kind)))
    }
    if selector is not None:
        if node_selector := selector.get("nodeSelector"):
            scheduling["nodeSelector"] = node_selector
        if node_affinity := (selector.get("affinity") or {}).get("nodeAffinity"):
            affinity["nodeAffinity"] = node_affinity
        tolerations = selector.get("tolerations") or []
    else:
        tolerations = [
            toleration
            for toleration in above.get("tolerations") or ()
            if toleration.get("key") != names.TAINT_PROVIDER
        ]
    if affinity:
        scheduling["affinity"] = affinity
    if tolerations:
        scheduling["tolerations"] = tolerations
    spread = [
        constraint
        for constraint in above.get("topologySpreadConstraints") or ()
        if constraint.get("topologyKey") == names.LABEL_HOSTNAME
    ]
    if spread:
        scheduling["topologySpreadConstraints"] = spread
    return scheduling


def _per_host(affinity: Mapping[str, Any] | None) -> dict[str, Any]:
    """The terms of a pod (anti-)affinity that speak of single nodes."""
    kept: dict[str, Any] = {}
    for term in (affinity or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or ():
        if term.get("topologyKey") == names.LABEL_HOSTNAME:
            kept.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)
    for weighted in (affinity or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        if (weighted.get("podAffinityTerm") or {}).get("topologyKey") == names.LABEL_HOSTNAME:
            kept.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(weighted)
    return kept
