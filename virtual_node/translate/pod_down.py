"""An upper pod as it is created in the lower cluster.

What is *about the upper cluster* stays there: its node, its scheduling, its priority, its owners, its identity.
What is *about the workload* is carried to the letter, fields unknown to us included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller_runtime.api import cluster_selector, label_keys, names
from virtual_node.translate import downward, service_account, volumes
from virtual_node.translate import labels as tripping
from virtual_node.translate.ownership import Owner, ownership_labels

_UPPER_ONLY = (
    "nodeName",  # the lower scheduler chooses
    "nodeSelector",  # chose the virtual node; the lower one comes from clusterSelector
    "priority",  # computed below from the class
    "preemptionPolicy",
    "priorityClassName",  # a class that is missing below would refuse the pod; see keep_priority_class
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
)
_SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")
_CONTAINER_KINDS = ("containers", "initContainers")


def same_namespace(namespace: str) -> str:
    """The default namespace mapping: none."""
    return namespace


@dataclass(frozen=True, slots=True)
class PodOptions:
    """How the pods of one virtual node are translated."""

    owner: Owner
    ignore_labels: tuple[str, ...] = ()
    service_accounts: bool = True
    """Pods below get tokens of the upper cluster; off: the lower cluster's own identity."""
    namespace_map: Callable[[str], str] = same_namespace
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the virtual node that a clusterSelector may ask about."""
    keep_priority_class: bool = False
    """Carry priorityClassName below, where the class must then exist."""


def lower_pod(upper: Mapping[str, Any], options: PodOptions) -> dict[str, Any]:
    """The pod to create below for an upper pod.

    Scheduling: with a ``clusterSelector`` annotation its nodeSelector, node affinity and tolerations are put
    back exactly as recorded. Without one, node selector and node affinity chose the virtual node and mean
    nothing below; the user's tolerations are kept, less the virtual node's own. Pod (anti-)affinity and topology
    spread over ``kubernetes.io/hostname`` are carried too: replicas that must not share a node above must not
    share one below either. Other topology keys name upper topology and stay there.
    """
    metadata = upper["metadata"]
    carried, tripped = tripping.trip(metadata.get("labels"), options.ignore_labels)
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key not in (names.ANNOTATION_LAST_APPLIED, names.ANNOTATION_LOWER_UID)
    }
    applied = {"labels": sorted(carried), "annotations": sorted(annotations)}
    if tripped:
        annotations[names.ANNOTATION_TRIPPED_LABELS] = tripping.render(tripped)
    annotations[names.ANNOTATION_UPPER_NAMESPACE] = metadata["namespace"]
    spec = _lower_spec(upper, options, tripped)
    if spec.get("volumes"):
        spec["volumes"], told = downward.volumes(spec["volumes"], upper)
        annotations |= told
    annotations[names.ANNOTATION_APPLIED] = json.dumps(
        {**applied, "spec": _digest(spec)}, separators=(",", ":")
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": metadata["name"],
            "namespace": options.namespace_map(metadata["namespace"]),
            "labels": {
                **carried,
                names.LABEL_VIRTUAL_POD: "true",
                **ownership_labels(options.owner, metadata["uid"]),
            },
            "annotations": annotations,
        },
        "spec": spec,
    }


def ephemeral_containers(upper: Mapping[str, Any], options: PodOptions) -> list[Mapping[str, Any]]:
    """The ephemeral containers to add below for those of an upper pod."""
    above = upper["spec"]
    _, tripped = tripping.trip(upper["metadata"].get("labels"), options.ignore_labels)
    spec = {
        "volumes": above.get("volumes") or [],
        "ephemeralContainers": [
            _literal_fields(container, upper, tripped) for container in above.get("ephemeralContainers") or ()
        ],
    }
    if not options.service_accounts:
        service_account.with_lower_identity(spec)
    return spec["ephemeralContainers"]


def _digest(spec: Mapping[str, Any]) -> str:
    """A short name for what may change on a running pod and is asked of the lower one: the same while that is."""
    asked = [
        [(one["name"], one.get("image"), one.get("resources")) for one in spec.get(kind) or ()]
        for kind in _CONTAINER_KINDS
    ]
    wanted = [asked, spec.get("activeDeadlineSeconds"), spec.get("tolerations")]
    if of_pod := spec.get("resources"):
        wanted.append(of_pod)
    text = json.dumps(wanted, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lower_spec(upper: Mapping[str, Any], options: PodOptions, tripped: Collection[str]) -> dict[str, Any]:
    above = upper["spec"]
    spec = {key: value for key, value in above.items() if key not in _UPPER_ONLY}
    annotations = upper["metadata"].get("annotations") or {}
    selector = cluster_selector.of(annotations, names.ANNOTATION_CLUSTER_SELECTOR)
    if selector is not None:
        selector = cluster_selector.resolve(
            selector, node_name=options.owner.node_name, node_labels=options.node_labels
        )
    spec |= _scheduling(above, selector)
    if scheduler := annotations.get(names.ANNOTATION_SCHEDULER_NAME):
        spec["schedulerName"] = scheduler
    priority_class = above.get("priorityClassName")
    if priority_class and (options.keep_priority_class or priority_class in _SYSTEM_CLASSES):
        spec["priorityClassName"] = priority_class
    for kind in _CONTAINER_KINDS:
        if kind in spec:
            spec[kind] = [_literal_fields(container, upper, tripped) for container in spec[kind]]
    volumes.with_claims(spec, upper)
    if options.service_accounts:
        service_account.with_upper_identity(spec, upper, cluster_id=options.owner.cluster_id)
    else:
        service_account.with_lower_identity(spec)
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


def _literal_fields(
    container: Mapping[str, Any], upper: Mapping[str, Any], tripped: Collection[str]
) -> Mapping[str, Any]:
    """Environment that the lower kubelet would fill with lower values becomes the upper value."""
    env = container.get("env")
    if not env or not any("valueFrom" in variable for variable in env):
        return container
    return {**container, "env": [downward.literal(variable, upper, tripped) for variable in env]}
