"""Nodes and pods as the API server has them, with wall-clock times from the loop's virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object, from_dict
from tests import objects

START = datetime(2026, 1, 1, tzinfo=UTC)


def now() -> datetime:
    """Return the wall clock of the loop's virtual time."""
    return START + timedelta(seconds=asyncio.get_running_loop().time())


def node(
    name: str, *, ready: bool = True, cpu: str = "10", reason: str = "", **options: Any
) -> dict[str, Any]:
    """Return a virtual node."""
    body = objects.virtual_node(name, cpu=cpu, memory="10Gi", pods="100", ready=ready, **options)
    body["status"]["conditions"][0]["reason"] = reason
    return body


def pod(
    name: str = "p",
    *,
    on: str = "a",
    owner: str = "",
    kind: str = "ReplicaSet",
    phase: str = "Pending",
    refused_at: datetime | None = START,
    spec: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """Return a pod on a virtual node that its lower scheduler refuses, or with ``refused_at=None`` schedules."""
    scheduled = objects.condition("PodScheduled")
    if refused_at is not None:
        since = timestamps.rfc3339(refused_at)
        scheduled = objects.condition(
            "PodScheduled", "False", "Unschedulable", "0/3 nodes are available", lastTransitionTime=since
        )
    tolerations = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]
    return objects.pod(
        name, "1", node=on, phase=phase, conditions=[scheduled], namespace="default", uid="", owner=owner, owner_kind=kind,
        metadata={"creationTimestamp": "", "resourceVersion": "", **metadata}, **{"tolerations": tolerations, **(spec or {})},
    )  # fmt: skip


def cached(body: Mapping[str, Any]) -> Object:
    """Return the object of a cache."""
    made = {"uid": "u", "resourceVersion": "1", "creationTimestamp": timestamps.rfc3339(START)}
    metadata = {**made, **body["metadata"]}
    return from_dict({"apiVersion": "v1", "kind": "Pod", **body, "metadata": metadata})
