"""Marks the virtual node of a lost cluster: a taint while the node may not be used, an annotation while it is silent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from clusterset.model import names
from clusterset.model.moving import silence as silences
from clusterset.model.moving.silence import Silence
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import Client
from controller_runtime.objects import Object


async def mark(client: Client, node: Object, *, since: datetime, silence: Silence) -> None:
    """Give the node of a lost cluster its taint and its annotation.

    Args:
        client: client of the upper cluster.
        node: cached node.
        since: when the node was lost. A taint that is already there stays unchanged.
        silence: the silence that lasts.

    Raises:
        ApiError: the request failed; after a Conflict (the node has changed), retry.
    """
    taints, others = _taints(node)
    if len(others) == len(taints):
        moment = timestamps.rfc3339(since)
        taints = [*others, {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": moment}]
    await _write(client, node, taints, silences.render(silence))


async def clear(client: Client, node: Object, *, keep_taint: bool) -> None:
    """Remove the annotation of a node, and its taint unless ``keep_taint``.

    Raises:
        ApiError: the request failed; after a Conflict (the node has changed), retry.
    """
    taints, others = _taints(node)
    await _write(client, node, taints if keep_taint else others, None)


def _taints(node: Object) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return all taints of a node, and those that are not for lost clusters."""
    taints: list[dict[str, Any]] = (node.spec or {}).get("taints") or []
    return taints, [taint for taint in taints if taint.get("key") != names.TAINT_STALE_CLUSTER]


async def _write(
    client: Client, node: Object, taints: Sequence[dict[str, Any]], annotation: str | None
) -> None:
    """Write what differs. The resourceVersion is a precondition, so that no concurrent change is lost."""
    metadata: dict[str, Any] = {}
    if node.annotations.get(names.ANNOTATION_SILENCE) != annotation:
        metadata["annotations"] = {names.ANNOTATION_SILENCE: annotation}
    spec = {} if list(taints) == _taints(node)[0] else {"spec": {"taints": list(taints)}}
    if metadata or spec:
        metadata["resourceVersion"] = node.resource_version
        await client.patch(resources.NODES, node.name, {"metadata": metadata, **spec})
