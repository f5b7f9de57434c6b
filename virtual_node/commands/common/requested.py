"""What pods request in sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from controller_runtime.api import pod_resources

_FINISHED = ("Succeeded", "Failed")


def requested(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """What pods that have not finished ask for, by resource, ``pods`` among it."""
    used: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in _FINISHED:
            used.update({**pod_resources.pod_requests(pod["spec"]), "pods": 1})
    return used
