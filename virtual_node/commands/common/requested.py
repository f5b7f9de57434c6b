"""Sums the resource requests of pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from controller_runtime.api.pod import pod_resources
from controller_runtime.api.pod.conditions import is_finished


def requested(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """Return the total requests of unfinished pods by resource; ``pods`` is their number."""
    used: Counter[str] = Counter()
    for pod in pods:
        if not is_finished(pod.get("status")):
            used["pods"] += 1
            for name, count in pod_resources.pod_requests(pod["spec"]).items():
                used[name] += count
    return used
