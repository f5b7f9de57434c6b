"""Rules about ownership: lower objects whose upper object is gone, namespaces, and pods created twice."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from clusterset.model import names, namespace_map
from controller_runtime.apimachinery import readable
from virtual_node.certificates.expiry import span
from virtual_node.commands.inspect.facts import (
    ERROR,
    FOREIGN_POD,
    WARNING,
    ClusterFacts,
    Findings,
    InspectFacts,
    Subject,
)
from virtual_node.examine.objects import annotations_of, is_deleting, key, labels_of
from virtual_node.translate.kinds import KINDS, REFERENCED
from virtual_node.translate.pods import dependencies
from virtual_node.translate.pods.token_secrets import token_secrets
from virtual_node.translate.services import services
from virtual_node.translate.storage import binder_pod

_COPIED = {kind.kind: kind for kind in KINDS}
_KINDS = ("Pod", "PersistentVolumeClaim", *_COPIED)
_NAMED = 5
"""Maximum number of namespaces that a finding names."""
_NEXT_STEP = {
    "Pod": "it has no upper pod: if its virtual node is configured, see that process' log; otherwise delete the lower pod",
    "PersistentVolumeClaim": "it may hold data: copy the data, then delete the lower claim (or configure volumes.orphans)",
}


def leaked(facts: InspectFacts) -> Findings:
    """Yield lower objects with our ownership label whose upper object, by UID, is gone."""
    uids = {
        kind: {one["metadata"]["uid"] for one in facts.upper.heads(kind)}
        for kind in _KINDS
        if facts.upper.knows(kind)
    }
    shared = functools.cache(lambda: _shared_tokens(facts))  # rarely needed, and slow with many pods
    for lower in facts.lowers:
        read = functools.cache(functools.partial(_read_by_pods, facts, lower))
        for kind in _KINDS:
            for one in facts.owned_heads(lower, kind):
                if _is_new_or_deleting(facts, one) or not _is_marked(kind, one):
                    continue
                uid, above = _made_for(kind, one)
                if above not in uids or uid in uids[above] or (above == "Pod" and uid in shared()):
                    continue
                if kind in REFERENCED and (kind, key(one)) in read():
                    continue  # The copy stays as long as a pod may read it.
                yield Subject("leaked", lower.name, kind, key(one)).finding(
                    ERROR if kind == "Pod" else WARNING,
                    _message(facts, one, uid),
                    _NEXT_STEP.get(kind, "nothing needs it: delete it in the lower cluster"),
                    transient=True,
                )


def leaked_namespaces(facts: InspectFacts) -> Findings:
    """Yield namespaces that we created in a lower cluster and whose upper namespace is gone."""
    if not facts.upper.knows("Namespace"):
        return
    above = {one["metadata"]["name"] for one in facts.upper.of("Namespace")}
    for lower in facts.lowers:
        if not lower.removes_namespaces:
            continue
        for one in facts.owned(lower, "Namespace"):
            upper_name = annotations_of(one).get(names.ANNOTATION_UPPER_NAMESPACE, one["metadata"]["name"])
            if upper_name in above or _is_new_or_deleting(facts, one):
                continue
            yield Subject("leaked", lower.name, "Namespace", one["metadata"]["name"]).warning(
                f"made for upper namespace {upper_name}, which is gone",
                "it contains unmanaged objects or a claim: empty it and delete it in the lower cluster",
                transient=True,
            )


def not_adopted(facts: InspectFacts) -> Findings:
    """Yield lower clusters with namespaces that contain our pods, but in which no new pod starts.

    We neither created nor adopted these namespaces; an earlier release, or another configuration, used them.
    """
    for lower in facts.lowers:
        if not lower.knows("Pod", "Namespace"):
            continue
        pods = Counter(one["metadata"]["namespace"] for one in facts.owned_heads(lower, "Pod"))
        ours = {one["metadata"]["name"] for one in facts.owned(lower, "Namespace")}
        found = sorted(name for name in pods.keys() - ours if not namespace_map.adopts(name, lower.adopt))
        if not found:
            continue
        adopted = [] if isinstance(lower.adopt, bool) else list(lower.adopt)
        yield Subject("adopt", lower.name, "Cluster", lower.name).warning(
            "virtual-node did not create these namespaces, which hold our pods: "
            + ", ".join(f"{name} ({pods[name]})" for name in found)
            + "; these pods keep running, new pods wait",
            f"set clusters[].namespaces.adopt of {lower.name} to [{', '.join([*adopted, *found])}], "
            "or move the pods to other namespaces",
        )


def leaked_marks(facts: InspectFacts) -> Findings:
    """Yield lower Services with the annotation of a virtual node that is neither registered nor configured."""
    if not facts.upper.knows("Node"):
        return
    present = {node["metadata"]["name"] for node in facts.upper.of("Node")} | facts.virtual_nodes().keys()
    for lower in facts.lowers:
        for one in facts.owned(lower, "Service"):
            for node in sorted(services.wanted_by(annotations_of(one)) - present):
                yield Subject("leaked", lower.name, "Service", key(one)).warning(
                    f"is kept for virtual node {node}, which is gone",
                    "if it does not come back, remove the annotation in the lower cluster: kubectl "
                    "annotate service "
                    f"{one['metadata']['name']} -n {one['metadata']['namespace']} {services.always_mark(node)}-",
                    transient=True,
                )


def doubled(facts: InspectFacts) -> Findings:
    """Yield each further lower pod if several were created for the same upper pod."""
    numbers = Counter(uid for _, uid, _ in _made_pods(facts))
    places: dict[str, list[tuple[str, str]]] = {}
    if max(numbers.values(), default=0) > 1:
        for cluster, uid, pod in _made_pods(facts):
            if numbers[uid] > 1:
                places.setdefault(uid, []).append((cluster, key(pod)))
    for uid, found in places.items():
        for cluster, name in found[1:]:
            first_cluster, first = found[0]
            yield Subject("doubled", cluster, "Pod", name).error(
                f"made for upper uid {uid}, as {first} in cluster {first_cluster} is",
                "keep the one in the cluster of the upper pod's node; of two there, the older one",
                transient=True,
            )


def _made_pods(facts: InspectFacts) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield lower pods that are not being deleted, with their cluster and the UID of the upper pod."""
    for lower in facts.lowers:
        for pod in facts.owned_heads(lower, "Pod"):
            if (uid := labels_of(pod).get(names.LABEL_UPPER_UID)) and not is_deleting(pod):
                yield lower.name, uid, pod


def of_other_upper_clusters(facts: InspectFacts) -> Findings:
    """Yield, for each lower cluster, how many objects belong to which other upper cluster."""
    if not facts.cluster_id:
        return
    for lower in facts.lowers:
        owners = Counter(
            owner
            for kind in (*_KINDS, FOREIGN_POD, "Namespace")
            for one in lower.heads(kind)
            if (owner := labels_of(one).get(names.LABEL_UPPER_CLUSTER)) and owner != facts.cluster_id
        )
        for owner, count in sorted(owners.items()):
            yield Subject("others", lower.name, "Cluster", lower.name).info(
                f"{readable.count(count, 'object belongs', 'objects belong')} to another upper cluster, {owner}"
            )


def misplaced(facts: InspectFacts) -> Findings:
    """Yield, for each lower cluster, the namespaces of others that have objects with our label."""
    for lower in facts.lowers:
        found = Counter(
            one["metadata"]["namespace"] for kind in _KINDS for one in facts.misplaced(lower, kind)
        )
        if not found:
            continue
        yield Subject("misplaced", lower.name, "Cluster", lower.name).warning(
            "these namespaces have objects with the label of virtual-node, which neither created nor adopted the "
            "namespaces: "
            + ", ".join(f"{name} ({count})" for name, count in sorted(found.items())[:_NAMED])
            + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
            + "; it ignores these objects",
            "they are copies by users of the lower cluster, or left over from another configuration: delete them "
            f"(selector {names.LABEL_UPPER_CLUSTER}={facts.cluster_id})",
        )


def _read_by_pods(facts: InspectFacts, lower: ClusterFacts) -> set[tuple[str, str]]:
    """Return kind and key of the ConfigMaps and Secrets that our lower pods reference."""
    return {
        (need.kind, f"{pod['metadata']['namespace']}/{need.name}")
        for pod in facts.owned(lower, "Pod")
        for need in dependencies.dependencies(pod)
    }


def _shared_tokens(facts: InspectFacts) -> set[str]:
    """Return ``TokenSecret.id`` of each token Secret that upper pods may share."""
    nodes = {name: node.options for lower in facts.lowers for name, node in lower.nodes.items()}
    return {
        secret.id
        for pod in facts.upper.of("Pod")
        if (options := nodes.get(pod["spec"].get("nodeName") or "")) is not None
        for secret in token_secrets(pod, replace(options, shared_tokens=True))
    }


def _is_marked(kind: str, one: Mapping[str, Any]) -> bool:
    return kind not in _COPIED or _COPIED[kind].is_marked(labels_of(one))


def _is_new_or_deleting(facts: InspectFacts, one: Mapping[str, Any]) -> bool:
    return is_deleting(one) or facts.age(one["metadata"].get("creationTimestamp")) <= facts.limits.grace


def _made_for(kind: str, one: Mapping[str, Any]) -> tuple[str, str]:
    """Return UID and kind of the upper object that a lower object was created for."""
    carried = labels_of(one)
    for of_pod in (binder_pod.LABEL_BINDER_OF, names.LABEL_TOKEN_OF):
        if of_pod in carried:
            return carried[of_pod], "Pod"
    return carried.get(names.LABEL_UPPER_UID, ""), kind


def _message(facts: InspectFacts, one: Mapping[str, Any], uid: str) -> str:
    age = span(facts.age(one["metadata"].get("creationTimestamp")))
    node = labels_of(one).get(names.LABEL_NODE)
    by = f" by virtual node {node}" if node else ""
    what = f"upper uid {uid}, which is gone" if uid else "no upper object at all"
    return f"made {age} ago{by} for {what}"
