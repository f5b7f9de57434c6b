"""Simulated lower clusters in the caches that the page reads."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clusterset.config import Cluster
from clusterset.model import names
from clusterset.model.moving import silence
from clusterset.model.moving.silence import Silence
from clusterset.model.namespace_map import NamespaceMap
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object, from_dict
from controller_runtime.tls.key_pairs import self_signed
from hack.page.inspection import inspection
from hack.page.pods import waiting_pod, workload_pods
from virtual_node.controllers.base.context import INDEX_UID, INDEX_UPPER_UID, PodCaches
from virtual_node.examine import facts
from virtual_node.examine.engine import of_pod
from virtual_node.examine.facts import ClusterState, known
from virtual_node.examine.finding import Finding
from virtual_node.examine.health import Health, health
from virtual_node.examine.inspections import Inspection
from virtual_node.examine.rules.nodes import rejected
from virtual_node.translate.nodes.capacity import Capacity
from virtual_node.translate.objects.namespaces import Places
from virtual_node.web.overview import Overview

Body = dict[str, Any]
_SILENT = 184.0
"""Seconds since a lost cluster answered."""
_NOBODY: Any = SimpleNamespace(cluster="nowhere", outage=None)


class Scene:
    """Simulated lower clusters with pods, and methods that change them.

    Args:
        pods: number of pods on virtual nodes.
        clusters: number of lower clusters.
        has_trouble: whether some pods cannot run.
        directory: folder for kubeconfigs with tokens that expire soon; None: the clusters have no kubeconfigs.
    """

    def __init__(
        self, pods: int, *, clusters: int = 2, has_trouble: bool = True, directory: Path | None = None
    ) -> None:
        self._random = random.Random(pods)  # noqa: S311 - the same scene every time
        self._version = 0
        self.clusters: dict[str, Any] = {}
        self._findings: dict[str, list[Finding]] = {}
        """By pod UID; found when the pod changes, as in production."""
        self.rejected = ""
        self.leader = ""
        self.elsewhere: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.swarms: list[Body] = []
        self.inspection: Inspection | None = inspection()
        self.waiting = Informer(_NOBODY, resources.PODS, name="waiting")
        for name in ("tokyo", "frankfurt", "oregon", "sydney")[:clusters]:
            self.clusters[name] = _cluster(name, directory, nodes=max(3, pods // clusters // 80))
        for number, pod in enumerate(workload_pods(pods, has_trouble=has_trouble, chance=self._random)):
            self.put(list(self.clusters)[number % clusters], pod)
        if has_trouble:
            started = datetime.now(UTC)
            self.clusters["tokyo"].recent_events = lambda: list(_events("tokyo", started))
            self.waiting.store.put("shop/search-0", from_dict(waiting_pod("shop", "search-0")))

    def put(self, cluster: str, pod: Body) -> None:
        """Add or change an upper pod and its lower pod."""
        self._version += 1
        found = self.clusters[cluster]
        node = f"vn-{cluster}"
        pod["spec"]["nodeName"] = node
        pod["metadata"]["resourceVersion"] = str(self._version)
        self._findings[pod["metadata"]["uid"]] = of_pod(pod, ())
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        found.caches.upper[node].store.put(key, from_dict(pod))
        labels = {names.LABEL_UPPER_UID: pod["metadata"]["uid"]}
        metadata = {**pod["metadata"], "uid": f"below-{pod['metadata']['uid']}", "labels": labels}
        lower_node = f"{cluster}-node-{self._version % len(found.lower_nodes.store)}"
        spec = {**pod["spec"], "nodeName": lower_node if pod["status"].get("containerStatuses") else ""}
        found.caches.lower.store.put(key, from_dict({**pod, "metadata": metadata, "spec": spec}))

    def lose(self, cluster: str) -> None:
        """Simulate a lower cluster that stops answering."""
        found = self.clusters[cluster]
        found.health.reachable = False
        found.health.error = "connect: no route to host 10.4.0.1:6443"
        found.nodes[f"vn-{cluster}"].ready = False
        since = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=_SILENT)
        found.silence = Silence(since=since, running_pods_move_at=since + timedelta(minutes=5))

    def pods(self) -> Iterator[Any]:
        """Return all pods on virtual nodes."""
        for cluster in self.clusters.values():
            for informer in cluster.caches.upper.values():
                yield from informer.store.list()

    def health(self) -> Health:
        """Return the health model's verdict on the scene."""
        now = datetime.now(UTC)
        refused = {"": self.rejected} if self.rejected else {}
        if self.leader:
            return Health(tuple(rejected(known(now, {facts.REJECTED: refused}))))
        nodes = [node for name, cluster in self.clusters.items() for node in _nodes(name, cluster)]
        renewed = {"renewTime": timestamps.micro_time(now), "leaseDurationSeconds": 40}
        snapshot = known(
            now,
            {
                facts.NODES: nodes,
                facts.LEASES: {node["metadata"]["name"]: {"spec": renewed} for node in nodes},
                facts.BOUND: (),
                facts.WAITING: (),
                facts.COMPONENTS: [],
                facts.SWARMS: self.swarms,
                facts.CLUSTERS: [
                    *(
                        ClusterState(name=name, reachable=one.health.reachable, error=one.health.error)
                        for name, one in self.clusters.items()
                    ),
                    *(ClusterState(name=name, error=why, failed=True) for name, why in self.failures.items()),
                ],
                facts.REJECTED: refused,
            },
        )
        waiting = (found for pod in self.waiting.store.list() for found in of_pod(pod.to_dict(), ()))
        return health(
            snapshot, of_pods=[*waiting, *(one for finding in self._findings.values() for one in finding)]
        )

    def overview(self) -> Overview:
        """Return the data that a web server shows."""
        overview = Overview(
            self.clusters,
            leader=lambda: self.leader,
            elsewhere=lambda: self.elsewhere,
            health=self.health,
            failures=lambda: self.failures,
            waiting=self.waiting.store.list,
            reach={"namespace": "virtual-node-system", "port": "8090"},
            pod_events=_records,
            swarms=lambda: self.swarms,
            inspection=lambda: self.inspection,
        )
        for name in self.clusters:
            overview.history.remember(name, list(self._past(name)))
        return overview

    def _past(self, cluster: str) -> Iterator[tuple[int, float | None]]:
        """Yield the last hour's samples: number of pods, mirror lag in seconds."""
        informer = next(iter(self.clusters[cluster].caches.upper.values()))
        for number in range(119):
            share = min(1.0, 0.6 + number / 200 + self._random.random() / 20)
            yield int(len(informer.store) * share), self._random.choice((0.025, 0.05, 0.05, 0.1, None))


def _kubeconfig(name: str, directory: Path) -> str:
    """Write a kubeconfig with a token that expires in nine days; return its path."""
    ends = datetime.now(UTC) + timedelta(days=9, hours=1)
    claims = (
        base64.urlsafe_b64encode(json.dumps({"exp": int(ends.timestamp())}).encode()).decode().rstrip("=")
    )
    file = directory / f"{name}.json"
    entry = {
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": "https://10.4.0.1:6443"}}],
        "users": [{"name": name, "user": {"token": f"e30.{claims}.e30"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }  # fmt: skip
    file.write_text(json.dumps(entry), encoding="utf-8")
    return str(file)


def _cluster(name: str, directory: Path | None, *, nodes: int) -> Any:
    """Return the attributes of a LowerCluster that the page uses."""
    node = f"vn-{name}"
    kubeconfig = _kubeconfig(name, directory) if directory is not None else "/nowhere"
    upper = Informer(_NOBODY, resources.PODS, indexers={INDEX_UID: lambda pod: (pod.uid,)})
    lower = Informer(
        _NOBODY,
        resources.PODS,
        indexers={INDEX_UPPER_UID: lambda pod: (pod.labels.get(names.LABEL_UPPER_UID, ""),)},
    )
    lower_nodes, capacity = Informer(_NOBODY, resources.NODES), Capacity()
    for number in range(nodes):
        body = _lower_node(f"{name}-node-{number}", cordoned=number == 2 and name == "tokyo")
        lower_nodes.store.put(body["metadata"]["name"], from_dict(body))
        capacity.upsert_node(body)
    capacity.upsert_pod("other", f"{name}-node-0", {"cpu": 9_000, "memory": 20 * 1024**3}, counts=True)
    now = asyncio.get_running_loop().time()
    for informer in (upper, lower, lower_nodes):
        informer._reflector._contact = now - _SILENT  # noqa: SLF001 - as if the informer had synced
    return SimpleNamespace(
        config=Cluster(name=name, kubeconfig=kubeconfig, node_name=node),
        caches=PodCaches(upper={node: upper}, lower=lower, places=Places("upper", NamespaceMap())),
        lower_nodes=lower_nodes,
        nodes={node: SimpleNamespace(ready=True, capacity=capacity)},
        health=SimpleNamespace(
            reachable=True,
            error="",
            context=SimpleNamespace(lower_version="v1.37.2"),
            served_certificate=_served(),
        ),
        recent_events=list,
        silence=None,
    )


@cache
def _served() -> bytes:
    """Return the serving certificate of an API server, which expires in ten years."""
    return ssl.PEM_cert_to_DER_cert(self_signed("page", hosts=["127.0.0.1"]).certificate.decode())


def _lower_node(name: str, *, cordoned: bool) -> Body:
    room = {"cpu": "32", "memory": "131072000Ki", "pods": "110"}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": room, "capacity": room, "nodeInfo": {"kubeletVersion": "v1.34.4"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }  # fmt: skip


def _nodes(name: str, cluster: Any) -> Iterator[Body]:
    for node, controller in cluster.nodes.items():
        ready: Body = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        if not controller.ready:
            ready |= {"status": "False", "reason": "LowerClusterUnreachable", "message": cluster.health.error}
        labels = {names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL, names.LABEL_LOWER_CLUSTER: name}
        metadata: Body = {"name": node, "labels": labels}
        taints = []
        if cluster.silence is not None:
            metadata["annotations"] = {names.ANNOTATION_SILENCE: silence.render(cluster.silence)}
            taints = [{"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule"}]
        yield {"metadata": metadata, "spec": {"taints": taints}, "status": {"conditions": [ready]}}


def _records(pod: Object) -> list[Body]:
    """Return Events of other components about a pod."""
    created = pod.to_dict()["metadata"]["creationTimestamp"]
    node, earlier = (pod.spec or {}).get("nodeName", ""), f"{pod.key.rpartition('-')[0]}-x2k9f"
    scored = (
        f"Bound to {node}. Agent fit: {node} 87, vn-oregon 40 (weight 1); "
        "rejected: vn-sydney (lower cluster sydney: 0/3 nodes are available: 3 Insufficient cpu)"
    )
    told = [
        ("virtual-node-multi-scheduler", "NodeScored", pod.key, scored),
        ("virtual-node-descheduler", "Rescheduled", earlier, "Moved off vn-sydney: unschedulable for 1m0s"),
    ]
    return [
        {
            "time": created, "type": "Normal", "reason": reason, "message": message, "object": f"Pod {key}",
            "cluster": source, "isCurrent": key == pod.key,
        }
        for source, reason, key, message in told if node
    ]  # fmt: skip


def _events(cluster: str, started: datetime) -> Iterator[Body]:
    web = "shop/web-7d4b9c6f5-0"
    found = [
        (40, "Normal", "Scheduled", f"Successfully assigned {web} to node-1", web),
        (38, "Normal", "Pulled", 'Container image "registry.example/web:2.4" already present', web),
        (36, "Normal", "Started", "Container main started", web),
        (
            310,
            "Warning",
            "Rescheduled",
            "The pod waited 5m0s for a node of lower cluster oregon",
            "batch/report-2",
        ),
        (
            12,
            "Warning",
            "BackOff",
            'Back-off pulling image "registry.example/checkout:3.0"',
            "shop/checkout-5f6d8-1",
        ),
    ]
    for seconds, kind, reason, message, name in found:
        moment = timestamps.rfc3339(started - timedelta(seconds=seconds))
        yield {
            "time": moment, "type": kind, "reason": reason, "message": message, "object": f"Pod {name}",
            "cluster": cluster,
        }  # fmt: skip
