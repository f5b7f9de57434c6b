"""The webhook configurations that make the API server ask us. Pure; the chart and ``--register`` use the same.

``failurePolicy: Fail`` for pods: one that slips through unchanged would ask the upper scheduler for lower labels and
stay pending for ever. The object selector sees to it that only labelled pods depend on us, the namespace selector
that kube-system never does. Workloads are only warned about, so there ``Ignore`` is right.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from controller_runtime.api import names

NAME = "virtual-node-webhook"
MUTATE_PATH = "/mutate"
VALIDATE_PATH = "/validate"
_TIMEOUT_SECONDS = 5
_NOT_KUBE_SYSTEM = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    ]
}
_WORKLOADS = (
    ("apps", "v1", ("deployments", "statefulsets", "daemonsets")),
    ("batch", "v1", ("jobs", "cronjobs")),
)


def by_url(url: str, path: str, ca_bundle: bytes) -> dict[str, Any]:
    """A clientConfig for a webhook outside the cluster; ``url`` is such as ``https://10.0.0.1:8080``."""
    return {"url": url.rstrip("/") + path, "caBundle": base64.b64encode(ca_bundle).decode()}


def by_service(namespace: str, name: str, path: str, ca_bundle: bytes, *, port: int = 443) -> dict[str, Any]:
    """A clientConfig for a webhook behind a Service of the cluster."""
    return {
        "service": {"namespace": namespace, "name": name, "path": path, "port": port},
        "caBundle": base64.b64encode(ca_bundle).decode(),
    }


def mutating(client_config: Mapping[str, Any], *, name: str = NAME) -> dict[str, Any]:
    """The MutatingWebhookConfiguration for pods."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": NAME}},
        "webhooks": [
            {
                "name": f"pods.{names.DOMAIN}",
                "clientConfig": dict(client_config),
                "admissionReviewVersions": ["v1", "v1beta1"],
                "rules": [_rule("", "v1", ("pods",), ["CREATE"])],
                "objectSelector": {
                    "matchLabels": {names.LABEL_VIRTUAL_POD: "true"},
                    "matchExpressions": [
                        {"key": names.LABEL_CREATED_BY_DESCHEDULER, "operator": "NotIn", "values": ["true"]}
                    ],
                },
                "namespaceSelector": _NOT_KUBE_SYSTEM,
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                # Others may add selectors after us (a namespace's node selector, say): then we are asked again.
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "timeoutSeconds": _TIMEOUT_SECONDS,
            }
        ],
    }


def validating(client_config: Mapping[str, Any], *, name: str = NAME) -> dict[str, Any]:
    """The ValidatingWebhookConfiguration for workloads."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": NAME}},
        "webhooks": [
            {
                "name": f"workloads.{names.DOMAIN}",
                "clientConfig": dict(client_config),
                "admissionReviewVersions": ["v1", "v1beta1"],
                "rules": [
                    _rule(group, version, resources, ["CREATE", "UPDATE"])
                    for group, version, resources in _WORKLOADS
                ],
                "namespaceSelector": _NOT_KUBE_SYSTEM,
                "failurePolicy": "Ignore",
                "matchPolicy": "Equivalent",
                "sideEffects": "None",
                "timeoutSeconds": _TIMEOUT_SECONDS,
            }
        ],
    }


def _rule(group: str, version: str, resources: tuple[str, ...], operations: list[str]) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": list(resources),
        "operations": operations,
        "scope": "Namespaced",
    }
