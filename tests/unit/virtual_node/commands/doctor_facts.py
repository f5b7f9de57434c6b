"""A healthy installation as the doctor reads it, and objects with faults."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from controller_runtime.api import timestamps
from controller_runtime.tls.key_pairs import make_ca
from virtual_node.commands.common.probe import Probe
from virtual_node.commands.doctor.chain import examine
from virtual_node.commands.doctor.facts import DoctorFacts, Installation, LowerFacts, Webhook
from virtual_node.commands.doctor.links import Link
from virtual_node.health.objects import Json

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TAINT = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
TOLERATION = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}


def ago(seconds: float) -> str:
    """Return a time before now, as objects have it."""
    return timestamps.micro_time(NOW - timedelta(seconds=seconds))


def conditions(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, Any]:
    """A status with one condition, five minutes old."""
    one = {"type": kind, "status": status, "reason": reason, "message": message}
    return {"conditions": [{**one, "lastTransitionTime": timestamps.rfc3339(NOW - timedelta(minutes=5))}]}


def node(name: str = "vn", *, virtual: bool = True, taints: Any = (TAINT,), **spec: Any) -> dict[str, Any]:
    """A node that is Ready."""
    return {
        "metadata": {"name": name, "labels": {"type": "virtual-kubelet"} if virtual else {}},
        "spec": {"taints": list(taints), **spec},
        "status": {
            **conditions("Ready", "True"),
            "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "100"},
        },
    }


def lease(age: float = 3, *, holder: str = "vn_1", duration: int = 40) -> dict[str, Any]:
    """A Lease that was renewed some seconds ago."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": ago(age)}
    return {"metadata": {"name": "vn"}, "spec": spec}


def pod(name: str = "web", *, age: float = 300, labels: Any = None, **spec: Any) -> dict[str, Any]:
    """Return a pod that waits in the upper cluster, and tolerates virtual nodes."""
    status = spec.pop("status", conditions("PodScheduled", "False", "Unschedulable"))
    created = timestamps.rfc3339(NOW - timedelta(seconds=age))
    return {
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "labels": labels or {}, "creationTimestamp": created,
        },
        "spec": {"containers": [{"name": "c"}], "tolerations": [TOLERATION], **spec},
        "status": {"phase": "Pending", **status},
    }  # fmt: skip


def swarm(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, Any]:
    """Return a Swarm with one condition, five minutes old."""
    metadata = {"namespace": "shop", "name": "streams"}
    return {"metadata": metadata, "status": conditions(kind, status, reason, message)}


def asking(**amounts: str) -> list[dict[str, Any]]:
    """Return containers with requests."""
    return [{"name": "c", "resources": {"requests": amounts}}]


def configuration(client: Json | None = None) -> dict[str, Any]:
    """Return the webhook's configuration, with a valid CA."""
    bundle = base64.b64encode(make_ca("ca", now=NOW - timedelta(days=1)).certificate).decode()
    service = {"namespace": "kube-system", "name": "webhook"}
    return {
        "metadata": {"name": "virtual-node-webhook"},
        "webhooks": [
            {
                "name": "pods.virtual-node.io",
                "clientConfig": client or {"service": service, "caBundle": bundle},
            }
        ],
    }


def webhook(**more: Any) -> Webhook:
    """Return a healthy webhook."""
    annotations = {"clusterSelector": '{"nodeSelector":{"virtual-node.io/doctor":"probe"}}'}
    well = Webhook(
        configurations=[configuration()],
        endpoints={"kube-system/webhook": 2},
        dry_run=Probe(201),
        dry_run_pod={"metadata": {"annotations": annotations}},
    )
    return replace(well, **more)


def healthy(**more: Any) -> DoctorFacts:
    """Return a healthy installation with all components."""
    well = DoctorFacts(
        now=NOW,
        server="https://upper:6443",
        answer=Probe(200, "v1.34.1"),
        nodes=[node()],
        leases={"vn": lease()},
        bound={"vn": [running(str(number), cpu=cpu) for number, cpu in enumerate(("1", "0", "0"))]},
        kubelets={"vn": Probe(200, "ok")},
        installation=Installation(),
        webhook=webhook(),
        scheduler=lease(holder="master_1", duration=15),
        descheduler=lease(duration=15),
        swarms=[swarm("Converged", "True")],
    )
    found = replace(well, **more)
    ours = [one for one in found.pending if one["spec"].get("nodeName") == "vn"]
    return replace(found, bound={**found.bound, "vn": [*found.bound.get("vn", ()), *ours]})


def running(name: str, *, cpu: str) -> dict[str, Any]:
    """Return a pod that runs on the virtual node."""
    status = {"phase": "Running", **conditions("Ready", "True")}
    return pod(name, nodeName="vn", containers=asking(cpu=cpu), status=status)


def bound(**more: Any) -> dict[str, Any]:
    """Return a pod that is bound to the virtual node and has not started."""
    return pod(nodeName="vn", **more)


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A status of one container."""
    return {"containerStatuses": [{"name": "c", "image": "reg/x:1", "state": state, **more}]}


def lower_cluster(**more: Any) -> LowerFacts:
    """Return a healthy lower cluster."""
    well = LowerFacts("a.yaml", Probe(200, "v1.34.1"), [node(virtual=False, taints=())])
    return replace(well, **more)


def links_of(facts: DoctorFacts) -> dict[str, Link]:
    """Return the doctor's links by name."""
    return {link.name: link for link in examine(facts)}
