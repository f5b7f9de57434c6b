"""Pods for the tests of policies, and what a policy says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model.policy.config import Policy
from clusterset.model.policy.decision import Violation, violations
from clusterset.model.policy.rules import PolicySet
from tests import objects
from tests.generated_pods import SAFE

_NAMESPACE = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
INJECTED: Sequence[Mapping[str, Any]] = (
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": _NAMESPACE}]}},
)
"""The sources of the token volume that API servers add to pods."""


def pod(
    *,
    of_pod: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod that every preset allows, unless the arguments say otherwise."""
    context = {"securityContext": of_pod} if of_pod is not None else {}
    return objects.pod(
        labels=labels, annotations=annotations, **{**context, "containers": [container()], **spec}
    )


def container(*without: str, **context: Any) -> dict[str, Any]:
    """A container that every preset allows, with other fields of the security context or without some."""
    merged = {key: value for key, value in {**SAFE, **context}.items() if key not in without}
    return {"name": "app", "image": "web:1", "securityContext": merged}


def judge(body: Mapping[str, Any], namespace: str = "shop", **policy: Any) -> list[Violation]:
    """The violations of a pod in a cluster ``edge`` with a policy."""
    return violations(body, PolicySet(Policy(**policy), cluster="edge").of(namespace))


def broken(body: Mapping[str, Any], **policy: Any) -> list[tuple[str, str]]:
    """The rules and fields of the violations."""
    return [(one.rule, one.field) for one in judge(body, **policy)]
