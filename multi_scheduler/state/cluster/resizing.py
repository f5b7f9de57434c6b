"""Requests of a pod during an in-place resize: the most that it may use at any moment. No IO.

Source: KEP-1287, ``k8s.io/component-helpers/resource`` (PodRequests with UseStatusResources).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import quantity

_KINDS = (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses"))


def requests(spec: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, int]:
    """Return the requests of a placed pod: for each container the largest of requested, allocated and actual resources.

    Requested resources do not count if the kubelet reported the resize as infeasible.

    Returns:
        By resource: cpu in millicores, all else in base units. Without ``pods``.
    """
    is_infeasible = condition(status, "PodResizePending").get("reason") == "Infeasible"
    made = dict(spec)
    for kind, reported in _KINDS:
        granted = {one.get("name"): one for one in status.get(reported) or () if _says_something(one)}
        if granted:
            made[kind] = [
                _largest(container, granted[container.get("name")], counts_spec=not is_infeasible)
                if container.get("name") in granted
                else container
                for container in spec.get(kind) or ()
            ]
    return pod_resources.pod_requests(made)


def _says_something(status: Mapping[str, Any]) -> bool:
    return "allocatedResources" in status or "resources" in status


def _largest(container: Mapping[str, Any], status: Mapping[str, Any], *, counts_spec: bool) -> dict[str, Any]:
    asked = (container.get("resources") or {}).get("requests") or {}
    granted = status.get("allocatedResources") or {}
    used = (status.get("resources") or {}).get("requests") or {}
    sources = [granted, used] if not counts_spec and (granted or used) else [asked, granted, used]
    largest: dict[str, str] = {}
    for source in sources:
        for name, value in source.items():
            if name not in largest or quantity.of(name, value) > quantity.of(name, largest[name]):
                largest[name] = value
    return {**container, "resources": {"requests": largest}}
