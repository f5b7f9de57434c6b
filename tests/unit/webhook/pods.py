"""Pods as their authors write them, and what of them is for the lower cluster."""

from __future__ import annotations

import json
from typing import Any

from webhook.mutation.mutate import Surroundings

VIRTUAL = Surroundings(virtual_nodes=("vn-a", "vn-b"))


NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}


UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}


PROVIDER = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}


def web_pod(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A pod that asks to be mutated."""
    labels = {"virtual-pod": "true"}
    return {
        "metadata": {"name": "web", "labels": labels, **metadata},
        "spec": {"containers": [], **(spec or {})},
    }


def an_expression(key: str, *values: str, operator: str = "In") -> dict[str, Any]:
    """A requirement on a label."""
    return {"key": key, "operator": operator, "values": list(values)}


def requiring(*terms: dict[str, Any]) -> dict[str, Any]:
    """Required node affinity: one of these terms."""
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    }


def a_term(*expressions: dict[str, Any]) -> dict[str, Any]:
    """All of these requirements."""
    return {"matchExpressions": list(expressions)}


def selector_of(pod: dict[str, Any]) -> dict[str, Any]:
    """What was moved to the lower cluster."""
    found: dict[str, Any] = json.loads(pod["metadata"]["annotations"]["clusterSelector"])
    return found
