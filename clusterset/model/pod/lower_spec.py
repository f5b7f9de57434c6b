"""Computes the lower pod's spec: fields for the lower scheduler, without those of the upper cluster.

The virtual node creates lower pods from it; the multi-scheduler predicts them with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterset.model import cluster_selector, names
from clusterset.model.pod import affinity_terms, resource_claims
from clusterset.model.pod.affinity_terms import Reach
from clusterset.model.pod.spec_fields import SCHEDULING, UPPER_ONLY
from clusterset.model.policy.rules import Effective, matches
from clusterset.model.policy.scheduling import SYSTEM_CLASSES
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.translation_budget import TranslationBudget, json_size

_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME = 253
_NAME_FIELD = "metadata.name"
_TERMS = f"The required node in each nodeSelectorTerm of annotation {names.ANNOTATION_CLUSTER_SELECTOR}"
_WEIGHT = 100
"""Weight of the preference for a node, the highest that Kubernetes allows."""
_LEFT_OUT = UPPER_ONLY.keys() | SCHEDULING


def lower_spec(
    upper: Mapping[str, Any],
    rules: Effective,
    *,
    node_name: str,
    node_labels: Mapping[str, str],
    reach: Reach,
    budget: TranslationBudget | None = None,
) -> dict[str, Any]:
    """Return an upper pod's spec with scheduling fields for the lower cluster instead of the upper cluster.

    With a ``clusterSelector`` annotation, the nodeSelector, node affinity and tolerations of the annotation are used
    (``cluster_selector.resolve``). Without one, the node selector and node affinity selected the virtual node and are
    dropped, and the user's tolerations are kept except that of the virtual node's taint. Pod (anti-)affinity and topology
    spread over ``kubernetes.io/hostname`` are kept: replicas that must not share an upper node must not share a lower
    node either; ``reach`` limits the pods that the terms select. Required pod anti-affinity of the annotation is added.
    Other topology keys name upper topology and are dropped. The annotation ``preferred-node`` adds a preference for one
    lower node, and ``required-node`` a requirement, with no effect if the policy forbids their key. A PriorityClass is
    kept only if the policy allows it, or if it is a system class; a ServiceAccount only if the policy allows it.

    Raises:
        TooLargeError: the translation exceeds the budget; None: a new one.
    """
    above = upper["spec"]
    annotations = upper["metadata"].get("annotations") or {}
    selector = cluster_selector.of(annotations, names.ANNOTATION_CLUSTER_SELECTOR)
    if selector is not None:
        selector = cluster_selector.resolve(selector, node_name=node_name, node_labels=node_labels)
    spec = {key: value for key, value in above.items() if key not in _LEFT_OUT}
    spec |= _scheduling(
        above,
        selector,
        reach,
        budget or TranslationBudget(),
        preferred=preferred_node(annotations, rules),
        required=required_node(annotations, rules),
    )
    resource_claims.restore(spec, upper)
    if scheduler := annotations.get(names.ANNOTATION_SCHEDULER_NAME):
        spec["schedulerName"] = scheduler
    priority_class = above.get("priorityClassName") or ""
    # System classes are kept even if not allowed, so that the policy refuses these pods.
    if priority_class in SYSTEM_CLASSES or matches(priority_class, rules.values["priority_classes"]):
        spec["priorityClassName"] = priority_class
    account = above.get("serviceAccountName") or ""
    if matches(account, rules.values["service_accounts"]):
        spec["serviceAccountName"] = account
    return spec


def depends_on_cluster(upper: Mapping[str, Any]) -> bool:
    """Report whether a pod's ``lower_spec`` depends on the virtual node or cluster, not only on the pod and the cluster's rules."""
    affinity = upper["spec"].get("affinity") or {}
    selector = cluster_selector.of(upper["metadata"].get("annotations"), names.ANNOTATION_CLUSTER_SELECTOR)
    return (
        "podAffinity" in affinity
        or "podAntiAffinity" in affinity
        or bool(upper["spec"].get("topologySpreadConstraints"))
        or bool(cluster_selector.anti_affinity(selector))
        or bool(selector and selector.get(cluster_selector.UPPER_TERMS))
    )


def preferred_node(annotations: Mapping[str, str], rules: Effective) -> str:
    """Return the lower node that an upper pod prefers; empty: none, or no valid name, or the policy forbids a choice by name."""
    return _chosen_node(annotations.get(names.ANNOTATION_PREFERRED_NODE) or "", rules)


def required_node(annotations: Mapping[str, str], rules: Effective) -> str:
    """Return the lower node that an upper pod requires while it fits there; empty as for ``preferred_node``."""
    return _chosen_node(annotations.get(names.ANNOTATION_REQUIRED_NODE) or "", rules)


def is_node_name(text: str) -> bool:
    """Report whether a text is a valid name of a Node."""
    return len(text) <= _LONGEST_NAME and _NODE_NAME.fullmatch(text) is not None


def _chosen_node(name: str, rules: Effective) -> str:
    return name if is_node_name(name) and matches(_NAME_FIELD, rules.values["node_selector_keys"]) else ""


def _preferring(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return a node affinity with an additional preference for a node."""
    term = {"matchFields": [_is_node(node)]}
    kind = matching.PREFERRED
    return {**affinity, kind: [*(affinity.get(kind) or ()), {"weight": _WEIGHT, "preference": term}]}


def _requiring(affinity: Mapping[str, Any], node: str, budget: TranslationBudget) -> dict[str, Any]:
    """Return a node affinity that also requires a node; terms are alternatives, so each of them gets the requirement."""
    kind = matching.REQUIRED
    terms = (affinity.get(kind) or {}).get("nodeSelectorTerms") or [{}]
    added = _is_node(node)
    budget.add(len(terms) * json_size(added), _TERMS, "use fewer terms")
    required = [{**term, "matchFields": [*(term.get("matchFields") or ()), added]} for term in terms]
    return {**affinity, kind: {"nodeSelectorTerms": required}}


def _is_node(name: str) -> dict[str, Any]:
    return {"key": _NAME_FIELD, "operator": "In", "values": [name]}


def _scheduling(
    above: Mapping[str, Any],
    selector: Mapping[str, Any] | None,
    reach: Reach,
    budget: TranslationBudget,
    *,
    preferred: str,
    required: str,
) -> dict[str, Any]:
    # Without this, the lower API server would add the expressions for matchLabelKeys again and refuse the
    # pod.
    above = cluster_selector.with_anti_affinity(affinity_terms.settled(above), selector)
    affinity = reach.lower_affinity(above)
    node_selector = None
    if selector is not None:
        node_selector, tolerations = selector.get("nodeSelector"), selector.get("tolerations")
        if node_affinity := (selector.get("affinity") or {}).get("nodeAffinity"):
            affinity["nodeAffinity"] = node_affinity
    else:
        tolerations = [
            toleration
            for toleration in above.get("tolerations") or ()
            if toleration.get("key") != names.TAINT_PROVIDER
        ]
    if preferred:
        affinity["nodeAffinity"] = _preferring(affinity.get("nodeAffinity") or {}, preferred)
    if required:
        affinity["nodeAffinity"] = _requiring(affinity.get("nodeAffinity") or {}, required, budget)
    scheduling = {
        "nodeSelector": node_selector,
        "affinity": affinity,
        "tolerations": tolerations,
        "topologySpreadConstraints": reach.lower_spread(above),
    }
    return {field: value for field, value in scheduling.items() if value}
