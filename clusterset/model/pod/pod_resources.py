"""Sums the resources that a pod requests, as the scheduler does.

Source: ``k8s.io/component-helpers/resource`` (PodRequests) of Kubernetes 1.37, KEP-753 (sidecars), KEP-2837 and KEP-5419
(pod-level resources and their resize), KEP-1287 (resize).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clusterset.model.pod.conditions import condition, is_sidecar
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
    _add(total, _counted(spec.get("overhead") or {}))
    return total


_STATUSES = ("initContainerStatuses", "containerStatuses")


def placed_requests(spec: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, int]:
    """Return the requests that count for a pod on its node: the most that it may use at any moment of an in-place resize.

    The sums of requested, allocated and actual resources are compared, and not those of each container, so that a resize
    which moves resources from one container to another needs no more room. What is requested does not count if the kubelet
    reported the resize as infeasible.

    Args:
        spec: the pod's.
        status: the pod's, as its kubelet wrote it; empty: there is none yet.

    Returns:
        As ``pod_requests``.
    """
    is_infeasible = condition(status, "PodResizePending").get("reason") == "Infeasible"
    statuses = {one.get("name"): one for field in _STATUSES for one in status.get(field) or ()}
    of_pod = status.get("resources") or {}
    granted, actual = status.get("allocatedResources"), of_pod.get("requests")

    def asked_by(container: Mapping[str, Any]) -> Mapping[str, int]:
        return {} if is_infeasible else amounts(container, "requests")

    def granted_to(container: Mapping[str, Any]) -> Mapping[str, int]:
        found = statuses.get(container.get("name"), {}).get("allocatedResources")
        return asked_by(container) if found is None else _counted(found)

    def actual_of(container: Mapping[str, Any]) -> Mapping[str, int]:
        found = (statuses.get(container.get("name"), {}).get("resources") or {}).get("requests")
        return granted_to(container) if found is None else _counted(found)

    if granted is None or actual is None:
        total = _largest(*(_sum_of(spec, one) for one in (asked_by, granted_to, actual_of)))
    else:
        total = _largest(_sum_of(spec, asked_by), _counted(granted), _counted(actual))
    asked = amounts(spec, "requests")
    if asked and of_pod:
        asked = _largest({} if is_infeasible else asked, _counted(granted or {}), _counted(actual or {}))
    total |= {name: count for name, count in asked.items() if _is_pod_level(name)}
    _add(total, _counted(spec.get("overhead") or {}))
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


def running(spec: Mapping[str, Any], resource: str) -> list[Mapping[str, Any]]:
    """Return what requests a resource while a pod runs: its containers and sidecars, or the pod with its pod-level resources."""
    if any(resource in amounts(spec, kind) for kind in ("requests", "limits")):
        return [spec]
    sidecars = [container for container in spec.get("initContainers") or () if is_sidecar(container)]
    return [*sidecars, *(spec.get("containers") or ())]


def _sum(spec: Mapping[str, Any], kind: str) -> dict[str, int]:
    total = _sum_of(spec, lambda container: amounts(container, kind))
    return total | {name: count for name, count in amounts(spec, kind).items() if _is_pod_level(name)}


def _sum_of(
    spec: Mapping[str, Any], amounts_of: Callable[[Mapping[str, Any]], Mapping[str, int]]
) -> dict[str, int]:
    """Return the sum over a pod's containers, as they run at the same time."""
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add(total, amounts_of(container))
    # Init containers run one after the other, together with the sidecars started before them.
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        asked = amounts_of(container)
        if is_sidecar(container):
            _add(total, asked)
            _add(sidecars, asked)
            _peak(peak, sidecars)
        else:
            _peak(peak, {name: count + sidecars.get(name, 0) for name, count in asked.items()})
    _peak(total, peak)
    return total


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


def _largest(*sums: Mapping[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in sums:
        _peak(total, one)
    return total


def _peak(total: dict[str, int], other: Mapping[str, int]) -> None:
    for name, count in other.items():
        if name not in total or count > total[name]:
            total[name] = count
