"""Clusters with pods that their lower cluster refuses, and a process that moves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from descheduler.config import EvictionOptions
from descheduler.strategies.unschedulable import Unschedulable, UnschedulableParams
from tests.unit.descheduler.bodies import node, now, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

THRESHOLD = 10.0


def cluster_with(*bodies: dict[str, Any], nodes: tuple[str, ...] = ("a", "b")) -> Cluster:
    """Return a cluster with virtual nodes and pods."""
    cluster = Cluster()
    for name in nodes:
        cluster.put("nodes", node(name))
    for body in bodies:
        cluster.put("pods", body)
    return cluster


def process_on(cluster: Cluster, **options: Any) -> Process:
    """Return a process that moves pods which were refused for ``THRESHOLD`` seconds."""
    process = Process(cluster, options=EvictionOptions(**options))
    process.add(Unschedulable, UnschedulableParams(threshold_seconds=THRESHOLD))
    return process


def frozen(cluster: Cluster) -> dict[str, Any]:
    """Return the frozen nodes that the webhook reads, by owner."""
    found = cluster.find("configmaps", "kube-system/virtual-node-unschedulable")
    return {key: json.loads(value) for key, value in ((found or {}).get("data") or {}).items()}


def names_of(cluster: Cluster) -> list[str]:
    """Return the sorted names of all pods."""
    return sorted(found["metadata"]["name"] for found in cluster.all("pods"))


def controller(cluster: Cluster, *, on: Callable[[int], str] = lambda _: "a") -> Callable[[str], Any]:
    """Return a write hook that acts as a ReplicaSet: it replaces an evicted pod by one that is refused on node ``on``."""
    created = 0

    async def after(what: str) -> None:
        nonlocal created
        alive = [found for found in cluster.all("pods") if "deletionTimestamp" not in found["metadata"]]
        if what == "create eviction" and not alive:
            created += 1
            cluster.put("pods", pod(f"p{created}", owner="rs", on=on(created), refused_at=now()))

    return after
