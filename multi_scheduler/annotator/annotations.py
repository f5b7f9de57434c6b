"""The annotations of nodes: free resources by measured usage and by requests, the requests, and pressure. No IO.

Except for pressure, the keys are those of kube-safe-scheduler's annotators. CPU is in millicores, everything else in
its base unit. A virtual node gets the sums over its lower nodes, the deviation of these sums, and the mean pressure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterset.model import names
from multi_scheduler.usage.node_annotations import DEVIATION, FORECAST, MEAN, number
from multi_scheduler.usage.store import Usage

_SMALL = 0.5
"""The change of a smaller value is compared with this value instead, so that small loads cause fewer writes."""
REQUESTED = ("cpu", "memory", "pods", "ephemeral-storage")
"""Resources whose requests are reported."""
_MEASURED = ("cpu", "memory")
_KEYS = tuple(form.format(resource) for form in (MEAN, DEVIATION, FORECAST) for resource in _MEASURED)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Capacity, requests and measured usage of one lower node."""

    allocatable: Mapping[str, int]
    requested: Mapping[str, int]
    usage: Usage | None


def values(nodes: Iterable[Measurement]) -> dict[str, str | None]:
    """Return the annotations for a group of nodes; value None: unknown, so the annotation is removed.

    Deviations are combined as for independent variables. Only nodes with known usage count for measured values.
    """
    found = list(nodes)
    annotations: dict[str, str | None] = dict.fromkeys(_KEYS)
    loads = [
        1 - score
        for one in found
        if one.usage is not None
        and (score := one.usage.score(one.requested.get("pods", 0), one.allocatable)) is not None
    ]
    annotations[names.ANNOTATION_PRESSURE] = f"{sum(loads) / len(loads):.2f}" if loads else None
    for resource in REQUESTED:
        offered = sum(one.allocatable.get(resource, 0) for one in found)
        requested = sum(one.requested.get(resource, 0) for one in found)
        annotations[f"requested-{resource}"] = str(requested)
        annotations[f"free-{resource}"] = str(max(0, offered - requested))
    for resource in _MEASURED:
        known = [
            (one.allocatable.get(resource, 0), measured)
            for one in found
            if one.usage is not None
            and (measured := one.usage.cpu if resource == "cpu" else one.usage.memory) is not None
        ]
        if known:
            annotations[MEAN.format(resource)] = _whole(sum(size - one.mean for size, one in known))
            annotations[DEVIATION.format(resource)] = _whole(
                math.sqrt(sum(one.deviation**2 for _, one in known))
            )
            if all(one.forecast is not None for _, one in known):
                ahead = sum(size - (one.forecast or 0.0) for size, one in known)
                annotations[FORECAST.format(resource)] = _whole(ahead)
    return annotations


def differ(old: Mapping[str, str | None], new: Mapping[str, str | None], threshold: float) -> bool:
    """Report whether a value was added, was removed, or changed by more than the relative threshold."""
    return any(_differs(number(old.get(key)), number(value), threshold) for key, value in new.items())


def has_usage(found: Mapping[str, str | None]) -> bool:
    """Report whether annotations contain measured values."""
    return any(found.get(key) is not None for key in (*_KEYS, names.ANNOTATION_PRESSURE))


def _differs(old: float | None, new: float | None, threshold: float) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) > threshold * max(abs(old), _SMALL)


def _whole(value: float) -> str:
    return str(round(max(0.0, value)))
