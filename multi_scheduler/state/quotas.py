"""Limits of lower namespaces: defaults of LimitRanges, the charge of a pod to ResourceQuotas, and why they refuse it. No IO.

Sources: Kubernetes' admission plug-ins LimitRanger and ResourceQuota (``CheckRequest``), and its evaluator of pods
(``pkg/quota/v1/evaluator/core/pods.go``). The messages are the apiserver's. If several LimitRanges of a namespace have
defaults for a resource, it is undefined which wins; here the first one does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from clusterset.model.pod import pod_resources
from controller_runtime.apimachinery import matching, quantity
from multi_scheduler.state.cluster.limits import amount, amounts

_KINDS = ("containers", "initContainers")
_MOST_BOUNDS = 100
"""Number of limits of a LimitRange that are checked."""
_Amounts = Sequence[tuple[Mapping[str, int], Mapping[str, int]]]
"""Requests and limits of the pod, or of each container."""
_COUNTS = ("pods", "count/pods")
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_HAVE_TO_BE_SET = frozenset(f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in ("cpu", "memory"))  # fmt: skip
"""A quota on one of these refuses pods with a container that does not set the resource."""
_OF_PODS = frozenset((*_COUNTS, *(f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in _COMPUTE)))  # fmt: skip
_HUGE_PAGES = "hugepages-"
_MOST_ENTRIES = 100
"""Number of resources and of scopes of a quota that are checked."""
_PRIORITY_CLASS = "PriorityClass"


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


def read_limit_range(limit_range: Mapping[str, Any]) -> LimitRange | None:
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


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of a pod that quota scopes select."""

    is_terminating: bool
    is_best_effort: bool
    priority_class: str | None
    """Empty: none. None: unknown, so quotas of priority classes are assumed not to cover the pod."""
    crosses_namespaces: bool
    """Whether the pod has (anti-)affinity with pods of other namespaces."""


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """What a pod adds to the quotas of its lower namespace."""

    namespace: str
    kind: Kind
    usage: Mapping[str, int]
    """Amounts by resource name as in quotas; cpu in millicores, all else in base units. Without zeros."""
    unset: Mapping[str, Sequence[str]]
    """Resource name as in quotas → containers without a value for the resource, which a quota on it requires."""


@dataclass(frozen=True, slots=True, eq=False)
class Quota:
    """A ResourceQuota, reduced to its rules for pods."""

    name: str
    hard: Mapping[str, int]
    """``status.hard``, which the apiserver enforces, in the units of ``Charge.usage``."""
    used: Mapping[str, int]
    scopes: Sequence[Mapping[str, Any]]
    """``scopeSelector.matchExpressions``, and ``scopes`` in the same form."""

    def covers(self, kind: Kind) -> bool:
        """Report whether the quota counts pods of this kind."""
        return all(_is_in(scope, kind) for scope in self.scopes)

    def objection(self, charge: Charge, promised: Mapping[str, int]) -> str:
        """Return why a pod that the quota covers would be refused; empty: admitted.

        Args:
            charge: the pod's charge.
            promised: charges of pods with reserved room, which ``used`` does not contain.
        """
        missing = [
            f"{name} for: {','.join(charge.unset[name])}"
            for name in sorted(self.hard)
            if name in charge.unset
        ]
        if missing:
            return f"failed quota: {self.name}: must specify {'; '.join(missing)}"
        if unknown := sorted(name for name in self.hard if name not in self.used):
            return f"status unknown for quota: {self.name}, resources: {','.join(unknown)}"
        exceeded = [
            name
            for name, count in sorted(charge.usage.items())
            if name in self.hard and self.used[name] + promised.get(name, 0) + count > self.hard[name]
        ]
        if not exceeded:
            return ""
        reserved = {name: promised[name] for name in exceeded if promised.get(name)}
        reserved_text = f", reserved: {_rendered(reserved)}" if reserved else ""
        return (
            f"exceeded quota: {self.name}, requested: {_rendered({name: charge.usage[name] for name in exceeded})}, "
            f"used: {_rendered({name: self.used[name] for name in exceeded})}{reserved_text}, "
            f"limited: {_rendered({name: self.hard[name] for name in exceeded})}"
        )


def read_quota(quota: Mapping[str, Any]) -> Quota | None:
    """Parse a ResourceQuota; None if it has no rules for pods. Unreadable quantities count as missing."""
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    hard = {
        name: count
        for name, value in (status.get("hard") or {}).items()
        if _is_of_pods(name) and (count := amount(_counted(name), value)) is not None
    }
    if not hard:
        return None
    hard = dict(list(hard.items())[:_MOST_ENTRIES])
    used = {
        name: count
        for name, value in (status.get("used") or {}).items()
        if name in hard and (count := amount(_counted(name), value)) is not None
    }
    scopes = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return Quota(quota["metadata"]["name"], hard, used, scopes[:_MOST_ENTRIES])


def charge(spec: Mapping[str, Any], *, namespace: str, priority_class: str | None) -> Charge:
    """Return what a pod will add to quotas when it is created in the lower cluster.

    Args:
        spec: the pod's spec with the namespace's defaults.
        namespace: the lower namespace.
        priority_class: the lower pod's PriorityClass; empty: none; None: unknown.
    """
    usage = dict.fromkeys(_COUNTS, 1)
    for name, count in pod_resources.pod_requests(spec).items():
        usage.update(dict.fromkeys(_names(name), count))
    for name, count in pod_resources.pod_limits(spec).items():
        if name in _COMPUTE:
            usage[f"limits.{name}"] = count
    kind = Kind(
        is_terminating=spec.get("activeDeadlineSeconds") is not None,
        is_best_effort=_is_best_effort(spec),
        priority_class=priority_class,
        crosses_namespaces=_crosses_namespaces(spec),
    )
    unset: dict[str, list[str]] = {}
    if not pod_resources.has_pod_level(spec):
        for container in containers(spec):
            for name in _HAVE_TO_BE_SET - set(_set_names(container)):
                unset.setdefault(name, []).append(container.get("name", ""))
    return Charge(
        namespace=namespace,
        kind=kind,
        usage={name: count for name, count in usage.items() if count > 0},
        unset={name: sorted(found) for name, found in unset.items()},
    )


def _is_of_pods(name: str) -> bool:
    if name in _OF_PODS or name.startswith((_HUGE_PAGES, f"requests.{_HUGE_PAGES}")):
        return True
    return name.startswith("requests.") and _is_extended(name)


def _is_extended(name: str) -> bool:
    """Report whether a resource is an extended one: it has a domain that is not Kubernetes' own."""
    return "/" in name and "kubernetes.io/" not in name


def _names(resource: str) -> Sequence[str]:
    """Return the names under which a quota counts requests of a resource."""
    if resource in _COMPUTE or resource.startswith(_HUGE_PAGES):
        return resource, f"requests.{resource}"
    return (f"requests.{resource}",) if _is_extended(resource) else ()


def _set_names(container: Mapping[str, Any]) -> Iterator[str]:
    resources = container.get("resources") or {}
    for name in resources.get("requests") or ():
        yield from _names(name)
    for name in resources.get("limits") or ():
        yield f"limits.{name}"


def _is_in(scope: Mapping[str, Any], kind: Kind) -> bool:
    match scope.get("scopeName"):
        case "Terminating":
            return kind.is_terminating
        case "NotTerminating":
            return not kind.is_terminating
        case "BestEffort":
            return kind.is_best_effort
        case "NotBestEffort":
            return not kind.is_best_effort
        case "PriorityClass":
            if kind.priority_class is None:
                return False
            labels = {_PRIORITY_CLASS: kind.priority_class} if kind.priority_class else {}
            return matching.holds({**scope, "key": _PRIORITY_CLASS}, labels)
        case "CrossNamespacePodAffinity":
            return kind.crosses_namespaces
    return False


def _is_best_effort(spec: Mapping[str, Any]) -> bool:
    """Report whether no container requests or limits cpu or memory (``ComputePodQOS``)."""
    holders = [spec] if spec.get("resources") else containers(spec)
    return not any(
        quantity.of(name, value) > 0
        for holder in holders
        for kind in ("requests", "limits")
        for name, value in ((holder.get("resources") or {}).get(kind) or {}).items()
        if name in ("cpu", "memory")
    )


def _crosses_namespaces(spec: Mapping[str, Any]) -> bool:
    """Report whether a pod affinity term over hostnames selects namespaces; the lower pod keeps no terms with other keys."""
    affinity = spec.get("affinity") or {}
    terms = [
        term
        for kind in ("podAffinity", "podAntiAffinity")
        for preference, member in (("required", ""), ("preferred", "podAffinityTerm"))
        for one in (affinity.get(kind) or {}).get(f"{preference}DuringSchedulingIgnoredDuringExecution") or ()
        if (term := (one.get(member) or {}) if member else one)
    ]
    return any(
        term.get("topologyKey") == names.LABEL_HOSTNAME
        and (term.get("namespaces") or term.get("namespaceSelector") is not None)
        for term in terms
    )


def _rendered(counts: Mapping[str, int]) -> str:
    return ",".join(
        f"{name}={quantity.render(_counted(name), count)}" for name, count in sorted(counts.items())
    )


def _counted(name: str) -> str:
    """Return a quota key's resource: ``requests.cpu`` becomes ``cpu``."""
    return name.removeprefix("requests.").removeprefix("limits.")
