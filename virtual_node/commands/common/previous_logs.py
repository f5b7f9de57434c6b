"""Reads the last log lines of a terminated container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import Client

_LINES = 5


async def of(client: Client, pod: Mapping[str, Any]) -> list[str]:
    """Return the last log lines of a pod's first container that has terminated; empty: none has terminated.

    Raises:
        ApiError: the log cannot be read.
    """
    metadata = pod["metadata"]
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        previous = "terminated" in (status.get("lastState") or {})
        if not previous and "terminated" not in (status.get("state") or {}):
            continue
        path = resources.PODS.path(namespace=metadata["namespace"], name=metadata["name"], subresource="log")
        params = {
            "container": status["name"],
            "tailLines": str(_LINES),
            "previous": "true" if previous else "false",
        }
        return (await client.request("GET", path, params=params)).decode("utf-8", "replace").splitlines()
    return []
