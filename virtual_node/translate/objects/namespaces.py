"""What a lower namespace carries, and what in it is somebody else's. Which one it is says ``api.namespace_map``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from controller_runtime.api import names
from virtual_node.translate.base import labels as label_record
from virtual_node.translate.base import ownership


class Named(ownership.Marked, Protocol):
    """A lower object with its marks and its name."""

    @property
    def name(self) -> str:
        """Its name."""


_CARRIED_PREFIXES = ("pod-security.kubernetes.io/",)
"""Labels that decide what the pods of a namespace may do: without them an upper pod that Pod Security admitted
would be refused below, or the other way round. https://kubernetes.io/docs/concepts/security/pod-security-admission/"""
_COUNT_NOT = {("", "events"), ("events.k8s.io", "events"), ("metrics.k8s.io", "pods"), ("", "endpoints")}
"""Resources that speak of other objects, which count themselves."""


def lower_namespace(
    upper: Mapping[str, Any] | None, *, name: str, upper_name: str, cluster_id: str
) -> dict[str, Any]:
    """The Namespace to create below.

    Args:
        upper: the upper Namespace as far as it is known.
        name: the lower name.
        upper_name: the upper name.
        cluster_id: the upper cluster's identity, for the ownership label.
    """
    carried = _carried(upper)
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {**carried, names.LABEL_UPPER_CLUSTER: cluster_id},
            "annotations": {
                names.ANNOTATION_UPPER_NAMESPACE: upper_name,
                names.ANNOTATION_MADE_FOR: f"{cluster_id}/{upper_name}",
                names.ANNOTATION_APPLIED: label_record.record(carried),
            },
        },
    }


def upper_name(lower: Named) -> str:
    """Return the upper namespace that one of our lower namespaces was made for."""
    recorded = lower.annotations.get(names.ANNOTATION_MADE_FOR, "").partition("/")[2]
    return lower.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, recorded) or lower.name


def marks(lower: ownership.Marked) -> list[tuple[str, str]]:
    """Return the upper clusters, each with an upper namespace, that a lower namespace names as its origin.

    Empty if virtual-node did not create it. They agree, unless somebody changed one. An empty name: that was removed.
    """
    found = []
    if cluster_id := lower.labels.get(names.LABEL_UPPER_CLUSTER):
        found.append((cluster_id, lower.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, "")))
    if names.ANNOTATION_MADE_FOR in lower.annotations:
        cluster_id, _, name = lower.annotations[names.ANNOTATION_MADE_FOR].partition("/")
        found.append((cluster_id, name))
    return found


def upper_names(lower: Named) -> list[str]:
    """Return what the marks of one of our lower namespaces call its upper one: two names if somebody changed a mark."""
    _, _, name = lower.annotations.get(names.ANNOTATION_MADE_FOR, "").partition("/")
    return list(dict.fromkeys(one for one in (upper_name(lower), name) if one))


def marks_patch(lower: ownership.Marked, *, upper_name: str, cluster_id: str) -> dict[str, Any] | None:
    """Return a merge patch that puts back the marks of one of our namespaces, or None if it has them."""
    marks = lower_namespace(None, name="", upper_name=upper_name, cluster_id=cluster_id)["metadata"]
    del marks["name"], marks["annotations"][names.ANNOTATION_APPLIED]
    current = {"labels": lower.labels, "annotations": lower.annotations}
    return (
        None
        if all(marks[field].items() <= current[field].items() for field in marks)
        else {"metadata": marks}
    )


def namespace_patch(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch that makes the carried labels of one of our namespaces follow the upper one, or None.

    A mode (``enforce``, ``audit``, ``warn``) whose label or version label differs from what we set, or was removed,
    belongs to the lower administrator from then on: we never weaken it and never take it away.
    """
    wanted, present = _carried(upper), _carried(lower)
    ours = label_record.recorded(lower["metadata"])
    if ours is None:  # made by a release that kept no record
        ours = {key: value for key, value in present.items() if wanted.get(key) == value}
    theirs = {_mode(key) for key in {*present, *ours} if present.get(key) != ours.get(key)}
    change = {
        key: wanted.get(key)
        for key in sorted({*wanted, *ours})
        if _mode(key) not in theirs and present.get(key) != wanted.get(key)
    }
    record = {key: value for key, value in ours.items() if _mode(key) in theirs}
    record |= {key: value for key, value in wanted.items() if _mode(key) not in theirs}
    metadata: dict[str, Any] = {"labels": change} if change else {}
    if label_record.recorded(lower["metadata"]) != record:
        metadata["annotations"] = {names.ANNOTATION_APPLIED: label_record.record(record)}
    return {"metadata": metadata} if metadata else None


def others(
    objects: Iterable[Mapping[str, Any]], *, group: str, resource: str, cluster_id: str, upper_name: str
) -> list[str]:
    """Return the names of objects that neither we, for one upper namespace, nor Kubernetes put into a lower one.

    Args:
        objects: of one resource.
        group: its API group.
        resource: its plural name.
        cluster_id: the upper cluster's identity.
        upper_name: the upper namespace that the lower one was made for.
    """
    return [
        item["metadata"]["name"]
        for item in objects
        if not ownership.is_owned_by(ownership.Marks.of(item["metadata"]), cluster_id, upper_name)
        and not _is_kubernetes_own(item["metadata"], group, resource)
    ]


def _is_kubernetes_own(metadata: Mapping[str, Any], group: str, resource: str) -> bool:
    match group, resource:
        case "", "configmaps":
            return bool(metadata["name"] == "kube-root-ca.crt")
        case "", "serviceaccounts":
            return bool(metadata["name"] == "default")
        case "", "secrets":
            return "kubernetes.io/service-account.name" in (metadata.get("annotations") or {})
        case "discovery.k8s.io", "endpointslices":
            owners = metadata.get("ownerReferences") or ()
            return any(owner.get("kind") == "Service" for owner in owners)
        case kind:
            return kind in _COUNT_NOT


def _carried(namespace: Mapping[str, Any] | None) -> dict[str, str]:
    labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
    return {key: value for key, value in labels.items() if key.startswith(_CARRIED_PREFIXES)}


def _mode(key: str) -> str:
    """Return the label of a Pod Security mode, for that label and for its version label."""
    return key.removesuffix("-version")
