"""Compares the resource requests of pods with the allocatable of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import is_finished
from controller_runtime.apimachinery import quantity


def requested(pods: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the total requests of unfinished pods by resource; resource ``pods`` counts these pods."""
    used: Counter[str] = Counter()
    for pod in pods:
        if not is_finished(pod.get("status")):
            used.update({**pod_resources.pod_requests(pod["spec"]), "pods": 1})
    return used


def allocatable(node: Mapping[str, Any]) -> dict[str, int]:
    """Return a Node's allocatable by resource."""
    found = (node.get("status") or {}).get("allocatable") or {}
    return {name: quantity.of(name, value) for name, value in found.items()}


def fits(requests: Mapping[str, int], room: Mapping[str, int]) -> bool:
    """Report whether there is room for all requests."""
    return all(count <= room.get(name, 0) for name, count in requests.items() if count)
