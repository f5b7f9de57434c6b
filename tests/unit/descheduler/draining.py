"""A fake cluster of which one node is drained, and what the tests of drains read from it."""

from __future__ import annotations

import json
from typing import Any

from clusterset.model import names
from clusterset.model.moving import drain
from descheduler.config import EvictionOptions
from descheduler.moving.departure import Departure
from descheduler.strategies.base import Params
from descheduler.strategies.drain import Drain
from tests.unit.descheduler.bodies import node
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process

REPLICAS = 4
REQUEST = json.dumps({"podTimeoutSeconds": 30})


def draining_cluster(*, is_draining: bool = True) -> Cluster:
    cluster = Cluster()
    body = node("a", unschedulable=is_draining)
    if is_draining:
        body["metadata"]["annotations"] = {names.ANNOTATION_DRAIN: REQUEST}
    cluster.put("nodes", body)
    cluster.put("nodes", node("b"))
    return cluster


def drain_process(cluster: Cluster, **options: Any) -> Process:
    process = Process(cluster, options=EvictionOptions(**options))
    process.add(Drain, Params())
    return process


def drain_status(cluster: Cluster) -> drain.Status | None:
    return drain.status_of(cluster.get("nodes", "a")["metadata"].get("annotations") or {})


def departure(owner: str, namespace: str) -> Departure:
    return Departure(
        namespace=namespace, pod_name="p", old_uid=owner, node="a", strategy="Drain", reason="", owner_name=owner,
        owner_uid=owner, template_hash="h1", need=1, deadline="2026-01-01T00:00:00Z", request=REQUEST,
    )  # fmt: skip


def places(cluster: Cluster) -> str:
    return "".join(sorted(found["spec"]["nodeName"] for found in cluster.all("pods")))


def is_clean(cluster: Cluster) -> bool:
    """Report whether no record and no released pod is left."""
    return not cluster.all("controllerrevisions") and hashes(cluster) == {"h1"}


def hashes(cluster: Cluster) -> set[str]:
    return {found["metadata"]["labels"]["pod-template-hash"] for found in cluster.all("pods")}
