"""Clusters whose pods are refused below, and a process that moves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from descheduler.config.options import EvictionOptions
from descheduler.strategies.unschedulable import Unschedulable, UnschedulableParams
from tests.unit.descheduler.bodies import node, now, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

THRESHOLD = 10.0


def cluster_with(*bodies: dict[str, Any], nodes: tuple[str, ...] = ("a", "b")) -> Cluster:
    """Virtual nodes, and pods."""
    cluster = Cluster()
    for name in nodes:
        cluster.put("nodes", node(name))
    for body in bodies:
        cluster.put("pods", body)
    return cluster


def process_on(cluster: Cluster, **options: Any) -> Process:
    """A process that moves what is refused below for ten seconds."""
    process = Process(cluster, options=EvictionOptions(**options))
    process.add(Unschedulable, UnschedulableParams(threshold_seconds=THRESHOLD))
    return process


def frozen(cluster: Cluster) -> dict[str, Any]:
    """What the webhook reads."""
    found = cluster.find("configmaps", "kube-system/virtual-node-unschedulable")
    return {key: json.loads(value) for key, value in ((found or {}).get("data") or {}).items()}


def names_of(cluster: Cluster) -> list[str]:
    """The names of all pods."""
    return sorted(found["metadata"]["name"] for found in cluster.all("pods"))


def controller(cluster: Cluster, *, on: Callable[[int], str] = lambda _: "a") -> Callable[[str], Any]:
    """A ReplicaSet: when a pod of its goes, there is another, placed where ``on`` says, and refused there."""
    made = 0

    async def after(what: str) -> None:
        nonlocal made
        alive = [found for found in cluster.all("pods") if "deletionTimestamp" not in found["metadata"]]
        if what == "create eviction" and not alive:
            made += 1
            cluster.put("pods", pod(f"p{made}", owner="rs", on=on(made), refused_at=now()))

    return after
