"""The webhook configurations, used by the chart and by ``--register``. Does no IO.

The webhook for pods has ``failurePolicy: Fail``, because an unmutated pod would request labels of lower nodes
from the upper scheduler and stay pending forever. Its selectors exclude pods without the label and pods of
kube-system, so these do not depend on the webhook. Workloads mostly only get warnings, so ``Ignore`` is
sufficient for them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from clusterset.model import names

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
    """Return the clientConfig of a webhook outside the cluster at a URL such as ``https://10.0.0.1:8080``."""
    return {"url": url.rstrip("/") + path, "caBundle": base64.b64encode(ca_bundle).decode()}


def by_service(namespace: str, name: str, path: str, ca_bundle: bytes) -> dict[str, Any]:
    """Return the clientConfig of a webhook behind a Service of the cluster."""
    return {
        "service": {"namespace": namespace, "name": name, "path": path, "port": 443},
        "caBundle": base64.b64encode(ca_bundle).decode(),
    }


def mutating(client_config: Mapping[str, Any], *, name: str = NAME) -> dict[str, Any]:
    """Return the MutatingWebhookConfiguration for pods."""
    webhook = {
        "name": f"pods.{names.DOMAIN}",
        "clientConfig": dict(client_config),
        "rules": [_rule("", "v1", ("pods",), ["CREATE"])],
        "objectSelector": {
            "matchLabels": {names.LABEL_VIRTUAL_POD: "true"},
            "matchExpressions": [
                {"key": names.LABEL_CREATED_BY_DESCHEDULER, "operator": "NotIn", "values": ["true"]}
            ],
        },
        "failurePolicy": "Fail",
        # IfNeeded, because an admission plugin may add selectors later, such as a namespace's node selector.
        "reinvocationPolicy": "IfNeeded",
    }
    return _configuration("MutatingWebhookConfiguration", name, webhook)


def validating(client_config: Mapping[str, Any], *, name: str = NAME) -> dict[str, Any]:
    """Return the ValidatingWebhookConfiguration for workloads."""
    webhook = {
        "name": f"workloads.{names.DOMAIN}",
        "clientConfig": dict(client_config),
        "rules": [
            _rule(group, version, resources, ["CREATE", "UPDATE"]) for group, version, resources in _WORKLOADS
        ],
        "failurePolicy": "Ignore",
    }
    return _configuration("ValidatingWebhookConfiguration", name, webhook)


def _configuration(kind: str, name: str, webhook: dict[str, Any]) -> dict[str, Any]:
    common = {
        "admissionReviewVersions": ["v1", "v1beta1"],
        "namespaceSelector": _NOT_KUBE_SYSTEM,
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": _TIMEOUT_SECONDS,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": NAME}},
        "webhooks": [{**webhook, **common}],
    }


def _rule(group: str, version: str, resources: tuple[str, ...], operations: list[str]) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": list(resources),
        "operations": operations,
        "scope": "Namespaced",
    }
