"""Mutates a pod that selects lower nodes, so that the upper scheduler can place it. Does no IO.

First, the fields that select lower nodes move into the annotation ``clusterSelector`` and are merged with its
content. Then the pod's tolerations are copied there, and anti-affinity to pods of the same kind moves there if a setting
or annotation asks for it. ResourceClaims move to an annotation of their own.
Finally the pod gets tolerations of the virtual node's taint and of unreachable nodes, affinity to the virtual
nodes of its volumes, and anti-affinity to nodes that were full. The mutation is idempotent, because the API server may call the
webhook again (reinvocation).

The response has the mutation as a JSON patch (RFC 6902), which replaces whole fields.

The upper scheduler takes a virtual node for one host, so required anti-affinity over hostnames to pods of the same kind
allows one replica per lower cluster. In the annotation, only the lower scheduler applies it, and each replica gets a
lower node of its own. A term about other pods stays, because these pods may run on real upper nodes, where the lower
scheduler sees none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from clusterset.model import cluster_selector, names
from clusterset.model.moving import movable, node_avoidance
from clusterset.model.namespace_map import NEVER_MIRRORED
from clusterset.model.pod import affinity_terms, resource_claims
from clusterset.model.policy.rules import matches
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.matching import PREFERRED, REQUIRED
from controller_runtime.objects import Object
from webhook.mutation import selectors, validation
from webhook.mutation.validation import MAX_ENTRIES, RefusedError

_LOST_NODES = {
    key: {"key": key, "operator": "Exists", "effect": "NoExecute"}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
}
_PROVIDER = {"key": names.TAINT_PROVIDER, "operator": "Exists"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State of the upper cluster and settings that the mutation of a pod depends on."""

    ignore_keys: Collection[str] = ("clusterID",)
    """Label keys that stay in the upper spec."""
    virtual_nodes: Collection[str] = ()
    """Names of the virtual nodes."""
    pinned_to: Sequence[Collection[str]] = ()
    """For each claim of the pod whose volume only some virtual nodes can reach: the names of these virtual
    nodes."""
    frozen: Mapping[str, datetime] = field(default_factory=dict)
    """Virtual nodes on which the pod's owner recently had unschedulable pods, each with the time since when."""
    open_nodes: Sequence[Object] = ()
    """Virtual nodes that are Ready and schedulable, with their labels and taints."""
    require_virtual_node: bool = False
    """Whether pods with moved selectors may run on virtual nodes only, because a real upper node does not
    apply the moved fields."""
    move_anti_affinity: Collection[str] = ()
    """Shell patterns of namespaces where required pod anti-affinity over hostnames separates lower nodes, not virtual
    nodes."""
    namespace: str = ""
    """Namespace of the pod."""
    move_resource_claims: bool = False
    """Whether ResourceClaims move to an annotation, because the upper scheduler does not know lower devices."""
    scheduler_name: str = ""
    """Scheduler that calls the multi-scheduler, for pods that name none. Empty: unchanged."""


def needs_mutation(pod: Mapping[str, Any], namespace: str) -> bool:
    """Report whether a pod is labelled, not re-created by the descheduler, and not in kube-system."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return (
        labels.get(names.LABEL_VIRTUAL_POD) == "true"
        and labels.get(names.LABEL_CREATED_BY_DESCHEDULER) != "true"
        and namespace != NEVER_MIRRORED
    )


def mutate(pod: Mapping[str, Any], surroundings: Surroundings) -> dict[str, Any]:
    """Return the mutated pod as a new dict, equal to ``pod`` if nothing changes.

    Raises:
        RefusedError: a moved field or the clusterSelector annotation is invalid, or they contradict each other.
    """
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    validation.check_spec(spec)
    present = validation.read_annotation(metadata.get("annotations"))
    daemon_set = any(owner.get("kind") == "DaemonSet" for owner in metadata.get("ownerReferences") or ())
    decide = selectors.stays(surroundings.ignore_keys, surroundings.virtual_nodes, daemon_set=daemon_set)
    upper, moved = selectors.split(spec, decide)
    selector = _merge(present, moved, spec.get("tolerations") or ())
    upper["tolerations"] = _tolerations(spec.get("tolerations") or ())
    if (
        surroundings.scheduler_name
        and spec.get("schedulerName", names.DEFAULT_SCHEDULER) == names.DEFAULT_SCHEDULER
    ):
        # Only for pods with the default scheduler: a scheduler that the pod names is kept.
        upper["schedulerName"] = surroundings.scheduler_name
    is_free = not daemon_set and not spec.get("nodeName")
    if is_free:
        upper, selector = _move_anti_affinity(upper, selector, metadata, surroundings)
    if surroundings.require_virtual_node and is_free and _requires_nodes(selector):
        upper = node_avoidance.require_virtual(upper)
    upper, claims = _move_claims(pod, upper, wanted=surroundings.move_resource_claims and is_free)
    # Most claims of a pod are in the same lower cluster.
    for nodes in dict.fromkeys(tuple(sorted(nodes)) for nodes in surroundings.pinned_to):
        upper = node_avoidance.require(upper, nodes)
    avoid = [] if spec.get("nodeName") else _avoided(upper, metadata, surroundings)
    if avoid:
        upper = node_avoidance.avoid(upper, avoid)
    result = dict(pod)
    if upper != spec:
        result["spec"] = upper
    annotations: dict[str, str] = dict(metadata.get("annotations") or {})
    if selector and selector != present:
        annotations[names.ANNOTATION_CLUSTER_SELECTOR] = _render(selector)
    if claims:
        annotations[names.ANNOTATION_RESOURCE_CLAIMS] = claims
    if avoid:
        # The descheduler reads this annotation and replaces the pod when the nodes are usable again, because
        # a pod's affinity cannot be changed.
        annotations[names.ANNOTATION_UNSCHEDULABLE_NODE] = ",".join(sorted(avoid))
    if annotations != (metadata.get("annotations") or {}):
        result["metadata"] = {**metadata, "annotations": annotations}
    return result


def _avoided(spec: Mapping[str, Any], metadata: Mapping[str, Any], surroundings: Surroundings) -> list[str]:
    """Return the virtual nodes that a pod avoids. Of those that admit it, at least one is left."""
    if not surroundings.frozen:
        return []
    candidates = movable.admitting(metadata.get("annotations") or {}, spec, surroundings.open_nodes)
    return node_avoidance.to_avoid(surroundings.frozen, [node.name for node in candidates])


def _move_anti_affinity(
    spec: dict[str, Any],
    selector: dict[str, Any],
    metadata: Mapping[str, Any],
    surroundings: Surroundings,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Move anti-affinity to pods of the same kind, if wanted; return the spec, then for virtual nodes only, and the selector."""
    namespace = surroundings.namespace
    if not is_wanted(metadata.get("annotations"), namespace, surroundings.move_anti_affinity):
        return spec, selector
    rest, moved = split(spec, metadata.get("labels") or {}, namespace)
    if not moved:
        return spec, selector
    merged = merge(selector, moved)
    validation.check_merged(merged)
    # On a real upper node, nothing would separate the pods.
    return node_avoidance.require_virtual(rest), merged


def _move_claims(pod: Mapping[str, Any], spec: dict[str, Any], *, wanted: bool) -> tuple[dict[str, Any], str]:
    """Move ResourceClaims to an annotation, if wanted; return the spec, then for virtual nodes only, and the annotation."""
    if why := resource_claims.invalid(pod):
        raise RefusedError(why)
    if not wanted or not spec.get("resourceClaims"):
        return spec, ""
    try:
        rest, claims = resource_claims.move(spec)
    except resource_claims.InvalidError as error:
        raise RefusedError(str(error)) from None
    # A real upper node would start the pod without its devices.
    return node_avoidance.require_virtual(rest), claims


def _requires_nodes(selector: Mapping[str, Any]) -> bool:
    """Report whether a clusterSelector requires particular lower nodes."""
    affinity = (selector.get("affinity") or {}).get("nodeAffinity") or {}
    return bool(selector.get("nodeSelector") or affinity.get(REQUIRED))


def _merge(
    present: Mapping[str, Any], moved: selectors.Moved, tolerations: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a clusterSelector that requires both the present clusterSelector and the moved fields."""
    merged = dict(present)
    node_selector = dict(present.get("nodeSelector") or {})
    for key, value in moved.node_selector.items():
        if node_selector.get(key, value) != value:
            raise RefusedError(
                f"spec.nodeSelector[{key}]: {value!r} contradicts {node_selector[key]!r} in the annotation "
                f"{names.ANNOTATION_CLUSTER_SELECTOR}; no lower node can have both"
            )
        node_selector[key] = value
    if node_selector:
        merged["nodeSelector"] = node_selector
    _merge_affinity(merged, present, moved)
    ours = [_PROVIDER]
    if any(_covers_provider(toleration) for toleration in tolerations):
        # Not copied: an earlier mutation added these tolerations, or a toleration of all taints includes
        # them.
        ours += _LOST_NODES.values()
    kept = list(present.get("tolerations") or ())
    kept += selectors.without(tolerations, [*kept, *ours])
    if kept:
        merged["tolerations"] = kept
    validation.check_merged(merged)
    return merged


def _merge_affinity(merged: dict[str, Any], present: Mapping[str, Any], moved: selectors.Moved) -> None:
    if not moved.required and not moved.preferred:
        return
    affinity = dict(present.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    if moved.required:
        existing = (node_affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
        upper = present.get(cluster_selector.UPPER_TERMS) or [{}] * len(existing)
        own_upper = moved.upper_required or [{}] * len(moved.required)
        count = max(_product(existing, moved.required), _product(upper, own_upper))
        if count > validation.MAX_ENTRIES:
            raise RefusedError(
                f"spec.affinity.nodeAffinity.{REQUIRED}: its {len(moved.required)} terms times the {len(existing)} of "
                f"the annotation {names.ANNOTATION_CLUSTER_SELECTOR} have {count} expressions. Write at most "
                f"{validation.MAX_ENTRIES}"
            )
        node_affinity[REQUIRED] = {"nodeSelectorTerms": selectors.conjunction(existing, moved.required)}
        if moved.upper_required or cluster_selector.UPPER_TERMS in present:
            # Combined in the same way as the required terms, so that both lists have the same order.
            merged[cluster_selector.UPPER_TERMS] = selectors.conjunction(upper, own_upper)
    if moved.preferred:
        existing = node_affinity.get(PREFERRED) or []
        node_affinity[PREFERRED] = [
            *existing,
            *selectors.without(moved.preferred, existing),
        ]
    merged["affinity"] = {**affinity, "nodeAffinity": node_affinity}


def _product(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of expressions of "first AND second"."""
    if not first or not second:
        return selectors.size(first or second)
    return len(second) * selectors.size(first) + len(first) * selectors.size(second)


def _tolerations(given: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the upper pod's tolerations: its own, unreachable nodes without a time limit, the virtual node's taint.

    Pods in an unreachable lower cluster keep running. After a taint eviction in the upper cluster they would
    run twice, so only the descheduler moves them.
    """
    wanted: list[Mapping[str, Any]] = []
    for toleration in given:
        key = toleration.get("key") or ""
        is_limited = key in _LOST_NODES and toleration.get("effect") == "NoExecute"
        wanted.append(_LOST_NODES[key] if is_limited else toleration)
    result = selectors.unique([*wanted, *_LOST_NODES.values()])
    if not any(_covers_provider(toleration) for toleration in result):
        result.append(_PROVIDER)
    return result


def _covers_provider(toleration: Mapping[str, Any]) -> bool:
    key = toleration.get("key")
    return toleration.get("operator") == "Exists" and not toleration.get("effect") and key in {
        None, "", names.TAINT_PROVIDER,
    }  # fmt: skip


def _render(selector: Mapping[str, Any]) -> str:
    order = ("nodeSelector", "affinity", cluster_selector.UPPER_TERMS, "tolerations")
    return msgspec.json.encode({key: selector[key] for key in order if selector.get(key)}).decode()


_FIELDS = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "schedulerName",
    "resourceClaims",
    "containers",
    "initContainers",
)
"""Fields of the spec that the mutation may change."""


def pod_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operations that change pod ``before`` into ``after``; empty if they are equal."""
    operations: list[dict[str, Any]] = []
    for name in _FIELDS:
        old, new = (before.get("spec") or {}).get(name), (after.get("spec") or {}).get(name)
        path = f"/spec/{name}"
        if old is not None and new is None:
            operations.append({"op": "remove", "path": path})
        elif old != new:
            operations.append({"op": "add" if old is None else "replace", "path": path, "value": new})
    return operations + _annotations(before.get("metadata") or {}, after.get("metadata") or {})


def _annotations(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    old, new = before.get("annotations"), after.get("annotations")
    if old == new or not new:
        return []
    if not old:
        return [{"op": "add", "path": "/metadata/annotations", "value": dict(new)}]
    return [
        {
            "op": "replace" if key in old else "add",
            "path": f"/metadata/annotations/{key.replace('~', '~0').replace('/', '~1')}",
            "value": value,
        }
        for key, value in new.items()
        if old.get(key) != value
    ]


_KIND = "podAntiAffinity"
_ANNOTATION = names.ANNOTATION_MOVE_ANTI_AFFINITY


def is_wanted(annotations: Mapping[str, str] | None, namespace: str, namespaces: Collection[str]) -> bool:
    """Report whether the terms of a pod move.

    Args:
        annotations: of the pod; the one for this decision overrides the setting.
        namespace: of the pod.
        namespaces: shell patterns of the namespaces whose pods move their terms.

    Raises:
        RefusedError: the annotation has another value than true and false.
    """
    value = (annotations or {}).get(_ANNOTATION)
    if value not in {None, "true", "false"}:
        raise RefusedError(f"metadata.annotations[{_ANNOTATION}]: {value!r}: write true or false")
    return value == "true" if value is not None else matches(namespace, tuple(namespaces))


def split(
    spec: Mapping[str, Any], labels: Mapping[str, str], namespace: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a pod spec without the moving terms, and these terms.

    A moving term has the requirements of its ``matchLabelKeys``, which the API server adds only to the spec.

    Raises:
        RefusedError: there are too many terms.
    """
    affinity = spec.get("affinity") or {}
    anti_affinity = affinity.get(_KIND) or {}
    terms = anti_affinity.get(REQUIRED) or ()
    if len(terms) > MAX_ENTRIES:
        raise RefusedError(
            f"spec.affinity.{_KIND}.{REQUIRED}: {len(terms)} entries. Write at most {MAX_ENTRIES}"
        )
    staying, moving = [], []
    for term in terms:
        complete = affinity_terms.expanded(term, labels)
        if _selects_its_own_pod(complete, labels, namespace):
            moving.append(complete)
        else:
            staying.append(term)
    if not moving:
        return dict(spec), []
    rest, kept, kept_anti_affinity = dict(spec), dict(affinity), dict(anti_affinity)
    selectors.put(kept_anti_affinity, REQUIRED, staying)
    selectors.put(kept, _KIND, kept_anti_affinity)
    selectors.put(rest, "affinity", kept)
    return rest, moving


def merge(selector: Mapping[str, Any], moved: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a clusterSelector that also has the moved terms."""
    affinity = dict(selector.get("affinity") or {})
    present = (affinity.get(_KIND) or {}).get(REQUIRED) or []
    affinity[_KIND] = {REQUIRED: [*present, *selectors.without(moved, present)]}
    return {**selector, "affinity": affinity}


def _selects_its_own_pod(term: Mapping[str, Any], labels: Mapping[str, str], namespace: str) -> bool:
    """Report whether a term over hostnames selects the pod that has it; False: also if that is not known."""
    if term.get("topologyKey") != names.LABEL_HOSTNAME or term.get("labelSelector") is None:
        return False
    named, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    # An empty selector means all namespaces. The labels of the namespace are not known here.
    is_about_own = namespace in named or selector == {} or (not named and selector is None)
    try:
        return is_about_own and matching.compile_selector(term["labelSelector"])(labels)
    except ValueError:
        return False  # the API server names the field
