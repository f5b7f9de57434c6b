"""Rules about ownership: lower objects whose upper object is gone, namespaces, and pods created twice."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from clusterset.model import names, namespace_map
from controller_runtime.apimachinery import readable
from virtual_node.examine import clusters
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.expiry import span
from virtual_node.examine.finding import Findings
from virtual_node.examine.objects import annotations_of, is_deleting, key, labels_of
from virtual_node.examine.snapshot import Fact, Snapshot, View, objects
from virtual_node.translate import services
from virtual_node.translate.kinds import KINDS, REFERENCED
from virtual_node.translate.pods import dependencies
from virtual_node.translate.pods.service_account import token_secrets
from virtual_node.translate.storage import binder_pod

_COPIED = {kind.kind: kind for kind in KINDS}
_KINDS = ("Pod", "PersistentVolumeClaim", *_COPIED)
_NAMED = 5
"""Maximum number of namespaces that a finding names."""
_NEXT_STEP = {
    "Pod": "it has no upper pod: if its virtual node is configured, see that process' log; otherwise delete the lower pod",
    "PersistentVolumeClaim": "it may hold data: copy the data, then delete the lower claim (or configure volumes.orphans)",
}


@rule(Code.OBJECT_LEAKED, where=[clusters.SETTINGS], level=Level.LOWER)
def leaked(snapshot: Snapshot, lower: View) -> Findings:
    """Yield lower objects with our ownership label whose upper object, by UID, is gone."""
    # Rarely needed, and slow with many pods.
    shared = functools.cache(lambda: _shared_tokens(snapshot))
    read = functools.cache(lambda: _read_by_pods(snapshot, lower))
    for kind in _KINDS:
        for one in clusters.owned_heads(snapshot, lower, kind):
            if _is_new_or_deleting(snapshot, one) or (
                kind in _COPIED and not _COPIED[kind].is_marked(labels_of(one))
            ):
                continue
            uid, above = _made_for(kind, one)
            if not snapshot.upper.knows(above) or uid in snapshot.upper.uids(above):
                continue
            if above == "Pod" and uid in shared():
                continue
            if kind in REFERENCED and (kind, key(one)) in read():
                continue  # The copy stays as long as a pod may read it.
            cause = _message(snapshot, one, uid)
            step = _NEXT_STEP.get(kind, "nothing needs it: delete it in the lower cluster")
            severity = Severity.ERROR if kind == "Pod" else None
            yield lower.finding(Code.OBJECT_LEAKED, kind, key(one), cause, step, severity, transient=True)


@rule(Code.OBJECT_LEAKED, needs=[objects("Namespace")], where=[clusters.SETTINGS], level=Level.LOWER)
def leaked_namespaces(snapshot: Snapshot, lower: View) -> Findings:
    """Yield namespaces that we created in a lower cluster and whose upper namespace is gone."""
    above = {namespace["metadata"]["name"] for namespace in snapshot.upper.of("Namespace")}
    for each in (
        clusters.owned(snapshot, lower, "Namespace") if lower[clusters.SETTINGS].removes_namespaces else ()
    ):
        upper_name = annotations_of(each).get(names.ANNOTATION_UPPER_NAMESPACE, each["metadata"]["name"])
        if upper_name not in above and not _is_new_or_deleting(snapshot, each):
            cause = f"made for upper namespace {upper_name}, which is gone"
            step = "it contains unmanaged objects or a claim: empty it and delete it in the lower cluster"
            yield lower.finding(Code.OBJECT_LEAKED, "Namespace", key(each), cause, step, transient=True)


@rule(
    Code.NAMESPACE_NOT_ADOPTED,
    where=[clusters.SETTINGS, objects("Pod"), objects("Namespace")],
    level=Level.LOWER,
)
def not_adopted(snapshot: Snapshot, lower: View) -> Findings:
    """Yield that a lower cluster has namespaces that contain our pods, but in which no new pod starts.

    We neither created nor adopted these namespaces; an earlier release, or another configuration, used them.
    """
    pods = Counter(pod["metadata"]["namespace"] for pod in clusters.owned_heads(snapshot, lower, "Pod"))
    ours = {namespace["metadata"]["name"] for namespace in clusters.owned(snapshot, lower, "Namespace")}
    adopt = lower[clusters.SETTINGS].adopt
    if found := sorted(name for name in pods.keys() - ours if not namespace_map.adopts(name, adopt)):
        adopted = [] if isinstance(adopt, bool) else list(adopt)
        cause = (
            "virtual-node did not create these namespaces, which hold our pods: "
            + ", ".join(f"{name} ({pods[name]})" for name in found)
            + "; these pods keep running, new pods wait"
        )
        step = (
            f"set clusters[].namespaces.adopt of {lower.name} to [{', '.join([*adopted, *found])}], "
            "or move the pods to other namespaces"
        )
        yield lower.finding(Code.NAMESPACE_NOT_ADOPTED, "Cluster", lower.name, cause, step)


@rule(Code.OBJECT_LEAKED, needs=[objects("Node")], where=[clusters.SETTINGS], level=Level.LOWER)
def leaked_marks(snapshot: Snapshot, lower: View) -> Findings:
    """Yield lower Services with the annotation of a virtual node that is neither registered nor configured."""
    registered = {node["metadata"]["name"] for node in snapshot.upper.of("Node")}
    present = registered | clusters.virtual_nodes(snapshot).keys()
    for service in clusters.owned(snapshot, lower, "Service"):
        for node in sorted(services.wanted_by(annotations_of(service)) - present):
            cause = f"is kept for virtual node {node}, which is gone"
            step = (
                "if it does not come back, remove the annotation in the lower cluster: kubectl annotate service "
                f"{service['metadata']['name']} -n {service['metadata']['namespace']} {services.always_mark(node)}-"
            )
            yield lower.finding(Code.OBJECT_LEAKED, "Service", key(service), cause, step, transient=True)


@rule(Code.LOWER_POD_DOUBLED, needs=[clusters.IDENTITY], level=Level.PATH)
def doubled(snapshot: Snapshot) -> Findings:
    """Yield each further lower pod if several were created for the same upper pod."""
    numbers = Counter(uid for _, uid, _ in _made_pods(snapshot))
    places: dict[str, list[tuple[View, str]]] = {}
    if max(numbers.values(), default=0) > 1:
        for lower, uid, pod in _made_pods(snapshot):
            if numbers[uid] > 1:
                places.setdefault(uid, []).append((lower, key(pod)))
    for uid, [(first_cluster, first), *others] in places.items():
        for lower, name in others:
            cause = f"made for upper uid {uid}, as {first} in cluster {first_cluster.name} is"
            step = "keep the one in the cluster of the upper pod's node; of two there, the older one"
            yield lower.finding(Code.LOWER_POD_DOUBLED, "Pod", name, cause, step, transient=True)


def _made_pods(snapshot: Snapshot) -> Iterator[tuple[View, str, Mapping[str, Any]]]:
    """Yield lower pods that are not being deleted, with their cluster and the UID of the upper pod."""
    for lower in snapshot.lowers:
        for pod in clusters.owned_heads(snapshot, lower, "Pod"):
            if (uid := labels_of(pod).get(names.LABEL_UPPER_UID)) and not is_deleting(pod):
                yield lower, uid, pod


@rule(Code.OTHER_UPPER_CLUSTER, needs=[clusters.IDENTITY], level=Level.LOWER)
def of_other_upper_clusters(snapshot: Snapshot, lower: View) -> Findings:
    """Yield how many objects of a lower cluster belong to which other upper cluster."""
    if not (identity := snapshot.upper[clusters.IDENTITY]):
        return
    kinds: tuple[str | Fact[Any], ...] = (*_KINDS, clusters.FOREIGN_PODS, "Namespace")
    owners = Counter(
        owner
        for kind in kinds
        for each in lower.heads(kind)
        if (owner := labels_of(each).get(names.LABEL_UPPER_CLUSTER)) and owner != identity
    )
    for owner, count in sorted(owners.items()):
        cause = (
            f"{readable.count(count, 'object belongs', 'objects belong')} to another upper cluster, {owner}"
        )
        yield lower.finding(Code.OTHER_UPPER_CLUSTER, "Cluster", lower.name, cause)


@rule(Code.OBJECT_MISPLACED, needs=[clusters.IDENTITY], where=[clusters.SETTINGS], level=Level.LOWER)
def misplaced_objects(snapshot: Snapshot, lower: View) -> Findings:
    """Yield the namespaces of others in a lower cluster that have objects with our label."""
    found = Counter(
        each["metadata"]["namespace"] for kind in _KINDS for each in clusters.misplaced(snapshot, lower, kind)
    )
    if found:
        cause = (
            "these namespaces have objects with the label of virtual-node, which neither created nor adopted the "
            "namespaces: "
            + ", ".join(f"{name} ({count})" for name, count in sorted(found.items())[:_NAMED])
            + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
            + "; it ignores these objects"
        )
        step = (
            "they are copies by users of the lower cluster, or left over from another configuration: delete them "
            f"(selector {names.LABEL_UPPER_CLUSTER}={snapshot.upper[clusters.IDENTITY]})"
        )
        yield lower.finding(Code.OBJECT_MISPLACED, "Cluster", lower.name, cause, step)


def _read_by_pods(snapshot: Snapshot, lower: View) -> set[tuple[str, str]]:
    """Return kind and key of the ConfigMaps and Secrets that our lower pods reference."""
    return {
        (need.kind, f"{pod['metadata']['namespace']}/{need.name}")
        for pod in clusters.owned(snapshot, lower, "Pod")
        for need in dependencies.dependencies(pod)
    }


def _shared_tokens(snapshot: Snapshot) -> set[str]:
    """Return ``TokenSecret.id`` of each token Secret that upper pods may share."""
    nodes = {
        name: node.options
        for lower in snapshot.lowers
        for name, node in lower[clusters.SETTINGS].nodes.items()
    }
    return {
        secret.id
        for pod in snapshot.upper.of("Pod")
        if (options := nodes.get(pod["spec"].get("nodeName") or "")) is not None
        for secret in token_secrets(pod, replace(options, shared_tokens=True))
    }


def _is_new_or_deleting(snapshot: Snapshot, one: Mapping[str, Any]) -> bool:
    return (
        is_deleting(one)
        or snapshot.age(one["metadata"].get("creationTimestamp")) <= clusters.limits(snapshot).grace
    )


def _made_for(kind: str, one: Mapping[str, Any]) -> tuple[str, str]:
    """Return UID and kind of the upper object that a lower object was created for."""
    carried = labels_of(one)
    for of_pod in (binder_pod.LABEL_BINDER_OF, names.LABEL_TOKEN_OF):
        if of_pod in carried:
            return carried[of_pod], "Pod"
    return carried.get(names.LABEL_UPPER_UID, ""), kind


def _message(snapshot: Snapshot, one: Mapping[str, Any], uid: str) -> str:
    age = span(snapshot.age(one["metadata"].get("creationTimestamp")))
    node = labels_of(one).get(names.LABEL_NODE)
    by = f" by virtual node {node}" if node else ""
    what = f"upper uid {uid}, which is gone" if uid else "no upper object at all"
    return f"made {age} ago{by} for {what}"
