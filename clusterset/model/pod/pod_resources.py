"""Sums the resources that a pod requests, as the scheduler does.

Source: ``k8s.io/component-helpers/resource`` (PodRequests), KEP-753 (sidecars), KEP-2837 (pod-level
resources).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime.apimachinery import quantity

_POD_LEVEL = ("cpu", "memory")
_MOST_RENDERED = 16
"""Maximum number of resources of ``rendered``. Users can request thousands; pods with devices request about six."""


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the sum of a pod spec's requests.

    Returns:
        By resource: cpu in thousandths, others in units. Without ``pods``.
    """
    total = _sum(spec, "requests")
    if overhead := spec.get("overhead"):
        _add(total, _counted(overhead))
    return total


def pod_limits(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the sum of a pod spec's limits, as ``pod_requests``; with overhead only for limited resources."""
    total = _sum(spec, "limits")
    if overhead := spec.get("overhead"):
        _add(total, {name: count for name, count in _counted(overhead).items() if total.get(name)})
    return total


def rendered(counts: Mapping[str, int]) -> dict[str, str]:
    """Return the quantities of at most 16 resources, those of Kubernetes first, for caches that bound the size of a pod."""
    kept = sorted(counts, key=lambda name: ("/" in name, name))[:_MOST_RENDERED]
    return {name: quantity.render(name, counts[name]) for name in kept}


def summed(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one container with the sum of a pod spec's requests and limits, in bounded size."""
    resources = {"requests": rendered(pod_requests(spec)), "limits": rendered(pod_limits(spec))}
    return [{"name": "", "resources": resources}]


def has_pod_level(spec: Mapping[str, Any]) -> bool:
    """Report whether a pod has pod-level resources (KEP-2837)."""
    whole = spec.get("resources") or {}
    return any(_is_pod_level(name) for kind in ("requests", "limits") for name in whole.get(kind) or ())


def _sum(spec: Mapping[str, Any], kind: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add(total, amounts(container, kind))
    # Init containers run one after the other, together with the sidecars started before them.
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        asked = amounts(container, kind)
        if container.get("restartPolicy") == "Always":
            _add(total, asked)
            _add(sidecars, asked)
            _peak(peak, sidecars)
        else:
            _peak(peak, {name: count + sidecars.get(name, 0) for name, count in asked.items()})
    _peak(total, peak)
    return total | {name: count for name, count in amounts(spec, kind).items() if _is_pod_level(name)}


def _is_pod_level(name: str) -> bool:
    return name in _POD_LEVEL or name.startswith("hugepages-")


def amounts(holder: Mapping[str, Any], kind: str) -> dict[str, int]:
    """Return the requests or limits of a container, or of a pod's pod-level resources."""
    return _counted((holder.get("resources") or {}).get(kind) or {})


def _counted(quantities: Mapping[str, str]) -> dict[str, int]:
    return {name: quantity.of(name, value) for name, value in quantities.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def _peak(total: dict[str, int], other: Mapping[str, int]) -> None:
    for name, count in other.items():
        if name not in total or count > total[name]:
            total[name] = count
