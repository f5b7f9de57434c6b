"""LimitRanges of lower namespaces: their defaults for containers, and why they refuse a pod. No IO.

Source: Kubernetes' admission plug-in LimitRanger; the messages are the apiserver's. If several LimitRanges of a namespace
have defaults for a resource, it is undefined which wins; here the first one does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model.pod import pod_resources
from controller_runtime.apimachinery import quantity
from multi_scheduler.state.cluster.limits import amounts

_KINDS = ("containers", "initContainers")
_MOST_BOUNDS = 100
"""Number of limits of a LimitRange that are checked."""
_Amounts = Sequence[tuple[Mapping[str, int], Mapping[str, int]]]
"""Requests and limits of the pod, or of each container."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit of one LimitRange on one resource."""

    verb: str
    """``min``, ``max`` or ``maxLimitRequestRatio``."""
    of: str
    """``Container`` or ``Pod``."""
    resource: str
    value: str


@dataclass(frozen=True, slots=True)
class LimitRange:
    """A LimitRange, reduced to its rules for pods."""

    name: str
    requests: tuple[tuple[str, str], ...]
    """Default requests by resource, for containers without a request; ``limits`` has the default limits."""
    limits: tuple[tuple[str, str], ...]
    bounds: tuple[Bound, ...]


def read(limit_range: Mapping[str, Any]) -> LimitRange | None:
    """Parse a LimitRange; None if it has no rules for pods. Unreadable quantities count as missing."""
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    bounds = []
    for item in (limit_range.get("spec") or {}).get("limits") or ():
        if item.get("type") == "Container":
            requests |= _readable(item.get("defaultRequest"))
            limits |= _readable(item.get("default"))
        if item.get("type") in ("Container", "Pod"):
            bounds += [
                Bound(verb, item["type"], resource, value)
                for verb in _OBJECTIONS
                for resource, value in _readable(item.get(verb)).items()
            ]
    if not requests and not limits and not bounds:
        return None
    return LimitRange(
        limit_range["metadata"]["name"],
        tuple(requests.items()),
        tuple(limits.items()),
        tuple(bounds[:_MOST_BOUNDS]),
    )


def _readable(quantities: Any) -> dict[str, str]:
    return {resource: str(quantities[resource]) for resource in amounts(quantities)}


def with_defaults(spec: Mapping[str, Any], ranges: Sequence[LimitRange]) -> Mapping[str, Any]:
    """Return the pod's spec with default requests and limits filled in."""
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for one in reversed(ranges):
        requests.update(one.requests)
        limits.update(one.limits)
    if not requests and not limits:
        return spec
    made = dict(spec)
    for kind in _KINDS:
        if spec.get(kind):
            made[kind] = [_filled(container, requests, limits) for container in spec[kind]]
    return made


def objection(spec: Mapping[str, Any], ranges: Sequence[LimitRange]) -> str:
    """Return why the limit ranges refuse a pod; empty: admitted. ``spec`` must contain their defaults."""
    if ranges and (problem := _contradiction(spec)):
        return (
            f"a default of LimitRange {', '.join(one.name for one in ranges)} contradicts the pod: {problem}"
        )
    found = {of: list(_amounts(of, spec)) for of in {bound.of for one in ranges for bound in one.bounds}}
    for one in ranges:
        if objections := [text for bound in one.bounds if (text := _objection(bound, found[bound.of]))]:
            return f"LimitRange {one.name}: {', '.join(objections)}"
    return ""


def _filled(
    container: Mapping[str, Any], requests: Mapping[str, str], limits: Mapping[str, str]
) -> Mapping[str, Any]:
    own = container.get("resources") or {}
    filled = {
        **own,
        "requests": {**requests, **(own.get("requests") or {})},
        "limits": {**limits, **(own.get("limits") or {})},
    }
    return {**container, "resources": filled}


def _contradiction(spec: Mapping[str, Any]) -> str:
    """Return the error for a request above its limit, which API validation reports after defaulting; empty: none."""
    for container in containers(spec):
        requests, limits = (
            pod_resources.amounts(container, "requests"),
            pod_resources.amounts(container, "limits"),
        )
        for name, count in requests.items():
            if name in limits and count > limits[name]:
                return (
                    f"container {container.get('name')} requests {quantity.render(name, count)} {name} and may have "
                    f"{quantity.render(name, limits[name])}"
                )
    return ""


def _objection(bound: Bound, amounts: _Amounts) -> str:
    for requests, limits in amounts:
        if problem := _OBJECTIONS[bound.verb](
            bound, requests.get(bound.resource), limits.get(bound.resource)
        ):
            return problem
    return ""


def _amounts(of: str, spec: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, int], Mapping[str, int]]]:
    """Yield requests and limits of the pod, or of each container."""
    if of == "Pod":
        # Unlike in quotas, the overhead of a RuntimeClass does not count here.
        bare = {**spec, "overhead": None}
        yield pod_resources.pod_requests(bare), pod_resources.pod_limits(bare)
        return
    for container in containers(spec):
        yield pod_resources.amounts(container, "requests"), pod_resources.amounts(container, "limits")


def _min(bound: Bound, request: int | None, limit: int | None) -> str:
    return _beyond(bound, "minimum", operator.lt, {"request": request, "limit": limit})


def _max(bound: Bound, request: int | None, limit: int | None) -> str:
    return _beyond(bound, "maximum", operator.gt, {"limit": limit, "request": request})


def _beyond(
    bound: Bound, name: str, is_beyond: Callable[[int, int], bool], found: Mapping[str, int | None]
) -> str:
    """Return the error for an amount beyond the bound, or for a missing first amount; empty: none."""
    rule = f"{name} {bound.resource} usage per {bound.of} is {bound.value}"
    for number, (kind, count) in enumerate(found.items()):
        if count is None and number == 0:
            return f"{rule}, but no {kind} is specified"
        if count is not None and is_beyond(count, quantity.of(bound.resource, bound.value)):
            return f"{rule}, but {kind} is {quantity.render(bound.resource, count)}"
    return ""


def _ratio(bound: Bound, request: int | None, limit: int | None) -> str:
    rule = f"{bound.resource} max limit to request ratio per {bound.of} is {bound.value}"
    if not request:
        return f"{rule}, but no request is specified or request is 0"
    if not limit:
        return f"{rule}, but no limit is specified or limit is 0"
    if limit * 1000 > quantity.milli(bound.value) * request:
        return f"{rule}, but provided ratio is {limit / request:f}"
    return ""


_OBJECTIONS: Mapping[str, Callable[[Bound, int | None, int | None], str]] = {
    "min": _min,
    "max": _max,
    "maxLimitRequestRatio": _ratio,
}


def containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the containers and init containers of a pod."""
    return [container for kind in _KINDS for container in spec.get(kind) or ()]
