"""Adds and removes the taint of a lost cluster's virtual node."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names, timestamps
from controller_runtime.client.client import Client
from controller_runtime.objects import Object


async def write(client: Client, node: Object, *, since: datetime | None) -> None:
    """Add the taint for lost clusters to a node, or remove it if ``since`` is None.

    Raises:
        ApiError: the request failed; after a Conflict (the node has changed), retry.
    """
    before: list[dict[str, Any]] = (node.spec or {}).get("taints") or []
    taints = [taint for taint in before if taint.get("key") != names.TAINT_STALE_CLUSTER]
    if since is not None:
        moment = timestamps.rfc3339(since)
        taints.append({"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": moment})
    elif len(taints) == len(before):
        return
    # The resourceVersion is a precondition, so that no concurrent change is lost.
    patch = {"metadata": {"resourceVersion": node.resource_version}, "spec": {"taints": taints}}
    await client.patch(resources.NODES, node.name, patch)
