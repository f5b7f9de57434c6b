"""Definitions of the Gateway API for API servers of tests."""

from __future__ import annotations

from typing import Any

from controller_runtime.resources import Resource


def custom_resource(resource: Resource) -> dict[str, Any]:
    """Return a definition with the names of the Gateway API and without its schema."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": resource.version, "served": True, "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}},
        "subresources": {"status": {}},
    }  # fmt: skip
    name = f"{resource.plural}.{resource.group}"
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/2997"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "annotations": approved},
        "spec": {
            "group": resource.group, "scope": "Namespaced", "versions": [version],
            "names": {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()},
        },
    }  # fmt: skip
