"""Adds and removes the taint of a lost cluster's virtual node."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names, timestamps
from controller_runtime.client.client import Client
from controller_runtime.objects import Object


async def mark(client: Client, node: Object, *, since: datetime) -> None:
    """Add the taint to a node.

    Raises:
        ApiError: the request failed; after a Conflict (the node has changed), retry.
    """
    taint = {
        "key": names.TAINT_STALE_CLUSTER,
        "effect": "NoSchedule",
        "timeAdded": timestamps.rfc3339(since),
    }
    await _write(client, node, [*_others(node), taint])


async def unmark(client: Client, node: Object) -> None:
    """Remove the taint from a node.

    Raises:
        ApiError: the request failed; after a Conflict (the node has changed), retry.
    """
    others = _others(node)
    if len(others) != len(_taints(node)):
        await _write(client, node, others)


async def _write(client: Client, node: Object, taints: list[dict[str, Any]]) -> None:
    """Replace the list of taints. The resourceVersion is a precondition, so that no concurrent change is lost."""
    patch = {"metadata": {"resourceVersion": node.resource_version}, "spec": {"taints": taints}}
    await client.patch(resources.NODES, node.name, patch)


def _others(node: Object) -> list[dict[str, Any]]:
    return [taint for taint in _taints(node) if taint.get("key") != names.TAINT_STALE_CLUSTER]


def _taints(node: Object) -> list[dict[str, Any]]:
    return (node.spec or {}).get("taints") or []
