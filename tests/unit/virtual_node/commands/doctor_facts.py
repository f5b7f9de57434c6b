"""A healthy installation as the doctor reads it, and objects with faults."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import timedelta
from typing import Any

from controller_runtime.tls.key_pairs import make_ca
from tests.unit.virtual_node.examine import health_objects
from tests.unit.virtual_node.examine.health_objects import NOW, lease
from virtual_node.commands.common.installation import Installation
from virtual_node.commands.doctor.chain import examine
from virtual_node.commands.doctor.facts import DoctorFacts, LowerFacts, Webhook
from virtual_node.commands.doctor.links import Link
from virtual_node.examine.objects import Json
from virtual_node.examine.probes import Probe

TAINT = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
TOLERATION = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}


def conditions(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, Any]:
    """Return a status with one condition, five minutes old."""
    return {"conditions": [health_objects.condition(kind, status, reason, message, age=300)]}


def node(name: str = "vn", *, virtual: bool = True, taints: Any = (TAINT,), **spec: Any) -> dict[str, Any]:
    """Return a Ready node."""
    ready = health_objects.condition("Ready", "True", age=300)
    labels = {"type": "virtual-kubelet"} if virtual else {}
    found = health_objects.node(name, ready=ready, taints=taints, **spec)
    return {**found, "metadata": {"name": name, "labels": labels}}


def pod(name: str = "web", *, age: float = 300, labels: Any = None, **spec: Any) -> dict[str, Any]:
    """Return a pod that waits in the upper cluster, and tolerates virtual nodes."""
    status = spec.pop("status", conditions("PodScheduled", "False", "Unschedulable"))
    found = health_objects.pod(name, age=age, labels=labels)
    return {
        **found,
        "spec": {**found["spec"], "tolerations": [TOLERATION], **spec},
        "status": {"phase": "Pending", **status},
    }


def asking(**amounts: str) -> list[dict[str, Any]]:
    """Return containers with requests."""
    return [{"name": "c", "resources": {"requests": amounts}}]


def configuration(client: Json | None = None) -> dict[str, Any]:
    """Return the webhook's configuration, with a valid CA."""
    bundle = base64.b64encode(make_ca("ca", now=NOW - timedelta(days=1)).certificate).decode()
    service = {"namespace": "kube-system", "name": "webhook"}
    hook = {
        "name": "pods.virtual-node.io",
        "clientConfig": client or {"service": service, "caBundle": bundle},
    }
    return {"metadata": {"name": "virtual-node-webhook"}, "webhooks": [hook]}


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
        swarms=[health_objects.swarm("streams", *conditions("Converged", "True")["conditions"])],
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
