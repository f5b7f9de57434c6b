"""Nodes and pods as the API server has them, with wall-clock times from the loop's virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object, from_dict

START = datetime(2026, 1, 1, tzinfo=UTC)


def now() -> datetime:
    """Return the wall clock of the loop's virtual time."""
    return START + timedelta(seconds=asyncio.get_running_loop().time())


def node(name: str, *, ready: bool = True, cpu: str = "10", **options: Any) -> dict[str, Any]:
    """Return a virtual node."""
    condition = {"type": "Ready", "status": "True" if ready else "False", "reason": options.pop("reason", "")}
    labels = {"type": "virtual-kubelet", "kubernetes.io/hostname": name, **options.pop("labels", {})}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": "virtual-kubelet.io/provider", "effect": "NoSchedule"}], **options},
        "status": {"conditions": [condition], "allocatable": {"cpu": cpu, "memory": "10Gi", "pods": "100"}},
    }


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
    scheduled: dict[str, Any] = {"type": "PodScheduled", "status": "True"}
    if refused_at is not None:
        why = {"reason": "Unschedulable", "message": "0/3 nodes are available"}
        scheduled |= {"status": "False", **why, "lastTransitionTime": timestamps.rfc3339(refused_at)}
    owners = [{"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": True}]
    placed = {"nodeName": on} if on else {}
    owned = {"ownerReferences": owners} if owner else {}
    return {
        "metadata": {"name": name, "namespace": "default", **owned, **metadata},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            **placed,
            **(spec or {}),
        },
        "status": {"phase": phase, "conditions": [scheduled]},
    }


def cached(body: Mapping[str, Any]) -> Object:
    """Return the object of a cache."""
    made = {"uid": "u", "resourceVersion": "1", "creationTimestamp": timestamps.rfc3339(START)}
    metadata = {**made, **body["metadata"]}
    return from_dict({"apiVersion": "v1", "kind": "Pod", **body, "metadata": metadata})
