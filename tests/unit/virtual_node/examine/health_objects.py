"""Small objects of an installation for the tests of the health model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from controller_runtime.apimachinery import timestamps
from virtual_node.examine import facts
from virtual_node.examine.facts import known
from virtual_node.examine.snapshot import Snapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ago(seconds: float) -> str:
    """A time before now, as objects have it."""
    return timestamps.micro_time(NOW - timedelta(seconds=seconds))


def condition(kind: str, status: str, reason: str = "", message: str = "", *, age: float = 600) -> Any:
    """A condition that last changed some seconds ago."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": ago(age),
    }


def node(
    name: str = "vn-a", *, cluster: str = "a", ready: Any = None, taints: Any = (), **spec: Any
) -> dict[str, Any]:
    """A virtual node, Ready by default."""
    labels = {"type": "virtual-kubelet", "virtual-node.io/lower-cluster": cluster}
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": ago(3600)},
        "spec": {"taints": list(taints), **spec},
        "status": {
            "conditions": [ready or condition("Ready", "True", "KubeletReady")],
            "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "100"},
        },
    }


def swarm(name: str = "streams", *conditions: Any) -> dict[str, Any]:
    """A Swarm with two workers and three jobs."""
    status = {"workerCount": 2, "jobCount": 3, "runningCount": 3, "conditions": list(conditions)}
    metadata = {"namespace": "shop", "name": name, "creationTimestamp": ago(3600)}
    return {"kind": "Swarm", "metadata": metadata, "status": status}


def lease(age: float = 3, *, holder: str = "vn_1", duration: int = 40) -> dict[str, Any]:
    """Return a Lease that was renewed some seconds ago."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": ago(age)}
    return {"metadata": {"name": "vn"}, "spec": spec}


def pod(
    name: str = "web",
    *,
    age: float = 600,
    phase: str = "Pending",
    conditions: Any = (),
    containers: Any = (),
    labels: Any = None,
    **spec: Any,
) -> dict[str, Any]:
    """An upper pod."""
    return {
        "metadata": {
            "namespace": "shop", "name": name, "uid": f"uid-{name}", "labels": labels or {},
            "creationTimestamp": ago(age),
        },
        "spec": {"containers": [{"name": "c"}], **spec},
        "status": {"phase": phase, "conditions": list(conditions), "containerStatuses": list(containers)},
    }  # fmt: skip


def waits(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    """Status of a container that waits."""
    return {
        "name": "c",
        "image": "reg/x:1",
        "state": {"waiting": {"reason": reason, "message": message}},
        **more,
    }


def healthy(**more: Any) -> Snapshot:
    """An installation with one virtual node and no fault, of which everything was seen, with other facts."""
    usual = {
        facts.NODES: [node()],
        facts.LEASES: {"vn-a": lease()},
        facts.BOUND: [],
        facts.WAITING: [],
        facts.COMPONENTS: [],
    }
    unknown = more.pop("unknown", None)
    return known(
        NOW, usual | {getattr(facts, name.upper()): fact for name, fact in more.items()}, unknown=unknown
    )
