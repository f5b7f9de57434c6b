"""Pods of simulated workloads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery import timestamps

Body = dict[str, Any]
_WORKLOADS = (
    ("shop", "Deployment", "web"),
    ("shop", "Deployment", "checkout"),
    ("shop", "StatefulSet", "orders-db"),
    ("payments", "Deployment", "gateway"),
    ("payments", "Deployment", "fraud-scoring"),
    ("batch", "Job", "nightly-report"),
    ("ml", "StatefulSet", "trainer"),
)
_PULL = (
    'Back-off pulling image "registry.example/checkout:3.0": ErrImagePull: failed to pull and unpack image: '
    "registry.example/checkout:3.0: not found"
)
_NO_ROOM = (
    "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu. "
    "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
)


def workload_pods(count: int, *, has_trouble: bool, chance: random.Random) -> Iterator[Body]:
    """Yield ``count`` pods, divided evenly over workloads; from 300 pods, each workload has several copies."""
    copies = max(1, count // 150)
    for number in range(count):
        namespace, kind, name = _WORKLOADS[number % len(_WORKLOADS)]
        if copies > 1:
            name = f"{name}-{number // len(_WORKLOADS) % copies}"
        ago = timedelta(minutes=chance.randrange(5, 4000))
        yield _pod((namespace, kind, name), number, ago, _status(name, number, has_trouble=has_trouble))


def waiting_pod(namespace: str, name: str) -> Body:
    """Return an upper pod that no scheduler has placed."""
    pod = _pod(
        (namespace, "StatefulSet", name.rpartition("-")[0]), 0, timedelta(minutes=6), {"phase": "Pending"}
    )
    pod["metadata"]["name"] = name
    pod["metadata"]["uid"] = f"uid-{name}"
    pod["status"]["conditions"] = [
        {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/5 nodes are available: 2 node(s) had untolerated taint {virtual-node.io/stale-cluster: }.",
            "lastTransitionTime": _ago(timedelta(minutes=6)),
        }
    ]  # fmt: skip
    return pod


def _pod(workload: tuple[str, str, str], number: int, ago: timedelta, status: Body) -> Body:
    namespace, kind, name = workload
    owner, labels, hashed = name, {"app": name, names.LABEL_VIRTUAL_POD: "true"}, name
    if kind == "Deployment":
        kind, hashed, labels = "ReplicaSet", f"{name}-7d4b9c6f5", {**labels, "pod-template-hash": "7d4b9c6f5"}
        owner = hashed
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace, "name": f"{hashed}-{number}", "uid": f"uid-{number}", "labels": labels,
            "creationTimestamp": _ago(ago),
            "ownerReferences": [{"kind": kind, "name": owner, "controller": True}],
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "restartPolicy": "Always",
            "tolerations": [{"key": names.TAINT_PROVIDER, "operator": "Exists"}],
            "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
            "containers": [
                {
                    "name": "main", "image": f"registry.example/{name}:2.4", "args": ["--password=hunter2"],
                    "env": [{"name": "API_KEY", "value": "do-not-show-me"}],
                    "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
                }
            ],
        },
        "status": status,
    }  # fmt: skip


def _status(name: str, number: int, *, has_trouble: bool) -> Body:
    def container(state: Body, *, ready: bool = False, restarts: int = 0) -> list[Body]:
        return [{"name": "main", "ready": ready, "restartCount": restarts, "state": state}]

    def waiting(reason: str, message: str = "", restarts: int = 0) -> list[Body]:
        return container({"waiting": {"reason": reason, "message": message}}, restarts=restarts)

    moment = _ago(timedelta(minutes=4))
    if has_trouble:
        if name.startswith("checkout"):
            return {"phase": "Pending", "containerStatuses": waiting("ImagePullBackOff", _PULL)}
        if name.startswith("trainer") and number % 2:
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            return {
                "phase": "Pending",
                "conditions": [{**scheduled, "message": _NO_ROOM, "lastTransitionTime": moment}],
            }
        if name.startswith("gateway") and number % 8 == 3:
            why = f"back-off 5m0s restarting failed container=main pod={name}-7d4b9c6f5-{number}_payments(uid-{number})"
            return {"phase": "Running", "containerStatuses": waiting("CrashLoopBackOff", why, restarts=7)}
    if name.startswith("nightly"):
        ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        return {"phase": "Succeeded", "containerStatuses": container(ended)}
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": moment}]
    return {
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": container({"running": {"startedAt": moment}}, ready=True),
    }


def _ago(time: timedelta) -> str:
    return timestamps.rfc3339(datetime.now(UTC) - time)
