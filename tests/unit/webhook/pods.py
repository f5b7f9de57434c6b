"""Pods for tests of the webhook, and helpers to read their mutation."""

from __future__ import annotations

import json
from typing import Any

from webhook.mutation.mutate import Surroundings

VIRTUAL = Surroundings(virtual_nodes=("vn-a", "vn-b"))


NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}


UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}


PROVIDER = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}


def web_pod(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return a pod with the label for mutation."""
    labels = {"virtual-pod": "true"}
    return {
        "metadata": {"name": "web", "labels": labels, **metadata},
        "spec": {"containers": [], **(spec or {})},
    }


def an_expression(key: str, *values: str, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def requiring(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return required node affinity with these terms."""
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    }


def a_term(*expressions: dict[str, Any]) -> dict[str, Any]:
    """Return a node selector term with these expressions."""
    return {"matchExpressions": list(expressions)}


def selector_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the decoded clusterSelector annotation."""
    found: dict[str, Any] = json.loads(pod["metadata"]["annotations"]["clusterSelector"])
    return found
