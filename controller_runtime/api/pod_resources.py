"""What a pod asks of its node, counted as the scheduler counts it.

Source: ``k8s.io/component-helpers/resource`` (PodRequests), KEP-753 (sidecars), KEP-2837 (pod-level resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller_runtime.api import quantity

_POD_LEVEL = ("cpu", "memory")


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Sum a pod spec's requests.

    Returns:
        By resource: cpu in thousandths, all else in whole units. Without ``pods``.
    """
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add(total, _requests(container))
    # Init containers run one after the other, beside the sidecars started before them.
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        asked = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, asked)
            _add(sidecars, asked)
            _peak(peak, sidecars)
        else:
            _peak(peak, {name: count + sidecars.get(name, 0) for name, count in asked.items()})
    _peak(total, peak)
    pod_level = (spec.get("resources") or {}).get("requests") or {}
    for name, value in pod_level.items():
        if name in _POD_LEVEL or name.startswith("hugepages-"):
            total[name] = quantity.of(name, value)
    if overhead := spec.get("overhead"):
        _add(total, {name: quantity.of(name, value) for name, value in overhead.items()})
    return total


def total_requests(specs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Sum several pods' requests."""
    total: dict[str, int] = {}
    for spec in specs:
        _add(total, pod_requests(spec))
    return total


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    requests = resources.get("requests") or {}
    return {name: quantity.of(name, value) for name, value in requests.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def _peak(total: dict[str, int], other: Mapping[str, int]) -> None:
    for name, count in other.items():
        if count > total.get(name, 0):
            total[name] = count
