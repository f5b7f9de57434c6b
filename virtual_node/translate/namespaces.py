"""What a lower namespace carries, and what in it is somebody else's. Which one it is says ``api.namespace_map``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller_runtime.api import names
from virtual_node.translate import ownership

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
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {**_carried(upper), names.LABEL_UPPER_CLUSTER: cluster_id},
            "annotations": {names.ANNOTATION_UPPER_NAMESPACE: upper_name},
        },
    }


def namespace_patch(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any] | None:
    """A merge patch that brings the carried labels of one of our namespaces in step; None when they are."""
    wanted = _carried(upper)
    present = _carried(lower)
    if wanted == present:
        return None
    return {"metadata": {"labels": {**{key: None for key in present if key not in wanted}, **wanted}}}


def others(objects: Iterable[Mapping[str, Any]], *, group: str, resource: str, cluster_id: str) -> list[str]:
    """Names of the objects of one resource that neither we nor Kubernetes itself put into a namespace."""
    return [
        item["metadata"]["name"]
        for item in objects
        if not ownership.is_owned(item["metadata"].get("labels"), cluster_id)
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
