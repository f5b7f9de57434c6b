"""A healthy installation as the doctor reads it, and objects with faults."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from controller_runtime.tls.key_pairs import make_ca
from tests.unit.virtual_node.examine import health_objects
from tests.unit.virtual_node.examine.health_objects import NOW, lease
from virtual_node.commands.doctor import Judged, judged
from virtual_node.examine.clusters import VERSION
from virtual_node.examine.facts import (
    ANSWER,
    BOUND,
    COMPONENTS,
    DENIED,
    DESCHEDULERS,
    DOMAIN,
    EVENTS,
    INSTALLED,
    KUBELETS,
    LEASES,
    NAMES,
    NODES,
    SCHEDULERS,
    SWARMS,
    WAITING,
    WEBHOOK,
    Answer,
    Installation,
    Names,
    Probe,
    Webhook,
)
from virtual_node.examine.objects import Json, is_virtual
from virtual_node.examine.path_reading import BELOW
from virtual_node.examine.snapshot import Fact, Snapshot, View, objects

TAINT = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
TOLERATION = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}
SCHEDULER = lease(holder="master_1", duration=15)
DESCHEDULER = {
    **lease(duration=15),
    "metadata": {"namespace": "kube-system", "name": "virtual-node-descheduler"},
}


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


def working_webhook(**more: Any) -> Webhook:
    """Return a healthy webhook."""
    annotations = {"clusterSelector": '{"nodeSelector":{"virtual-node.io/doctor":"probe"}}'}
    well = Webhook(
        configurations=[configuration()],
        endpoints={"kube-system/webhook": 2},
        dry_run=Probe(201),
        dry_run_pod={"metadata": {"annotations": annotations}},
    )
    return replace(well, **more)


def healthy(
    *,
    trouble: tuple[str, str] | None = None,
    denied: Sequence[str] = (),
    unread: Mapping[Fact[Any], str] | None = None,
    nodes: Sequence[Json] | None = None,
    leases: Mapping[str, Json] | None = None,
    bound: Sequence[Json] | None = None,
    pending: Sequence[Json] = (),
    events: Sequence[Json] = (),
    kubelets: Mapping[str, Probe] | None = None,
    installation: Installation | None = None,
    webhook: Webhook | None = None,
    scheduler: Json | None = SCHEDULER,
    descheduler: Json | None = DESCHEDULER,
    swarms: Sequence[Json] | None = None,
    domain: str = "",
    lower: Sequence[View] = (),
) -> Snapshot:
    """Return what the doctor reads of a healthy installation with all components, with changes.

    Args:
        trouble: error and next step of the upper API server; None: it answers.
        denied: missing rights of the caller.
        unread: why facts could not be read.
        nodes: virtual nodes.
        leases: their Leases.
        bound: pods on them, in addition to those of ``pending``.
        pending: pods in phase Pending; those with a node are bound.
        events: warning events about pods.
        kubelets: answers of the kubelet APIs.
        installation: our components in the upper cluster.
        webhook: our webhook.
        scheduler: its Lease; None: there is none.
        descheduler: its Lease; None: there is none.
        swarms: the Swarms.
        domain: DNS domain of the upper cluster.
        lower: lower clusters.
    """
    found = [running(str(number), cpu=cpu) for number, cpu in enumerate(("1", "0", "0"))]
    installed = installation or Installation()
    snapshot = Snapshot(NOW, lowers=lower)
    upper = snapshot.upper
    if trouble:
        upper.put(ANSWER, Answer(error=trouble[0], step=trouble[1]))
        return snapshot
    upper.put(ANSWER, Answer("https://upper:6443"))
    upper.put(VERSION, "v1.34.1")
    upper.put(DENIED, denied)
    upper.put(NODES, [node()] if nodes is None else [one for one in nodes if is_virtual(one)])
    upper.put(LEASES, {"vn": lease()} if leases is None else leases)
    upper.put(
        BOUND,
        [
            *(found if bound is None else bound),
            *(one for one in pending if one["spec"].get("nodeName") == "vn"),
        ],
    )
    upper.put(WAITING, [one for one in pending if not one["spec"].get("nodeName")])
    upper.put(EVENTS, events)
    upper.put(KUBELETS, {"vn": Probe(200, "ok")} if kubelets is None else kubelets)
    upper.put(INSTALLED, installed)
    upper.put(COMPONENTS, installed.pods)
    upper.put(WEBHOOK, webhook or working_webhook())
    upper.put(SCHEDULERS, [scheduler] if scheduler else [])
    upper.put(DESCHEDULERS, [descheduler] if descheduler else [])
    well = health_objects.swarm("streams", *conditions("Converged", "True")["conditions"])
    upper.put(SWARMS, [well] if swarms is None else swarms)
    upper.put(DOMAIN, domain)
    for fact, why in (unread or {}).items():
        upper.refuse(fact, why)
        if fact is INSTALLED:
            upper.refuse(COMPONENTS, why)
    return snapshot


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


def lower_cluster(
    name: str = "a.yaml",
    *,
    answer: Answer | None = None,
    nodes: Sequence[Json] | None = None,
    pods: Sequence[Json] = (),
    **names: Any,
) -> View:
    """Return a healthy lower cluster; ``names`` are attributes of ``path.Names``."""
    view = View(name)
    view.put(ANSWER, answer or Answer())
    if answer is None:
        view.put(VERSION, "v1.34.1")
        view.put(objects("Node"), [node(virtual=False, taints=())] if nodes is None else nodes)
        view.put(BELOW, pods)
        view.put(NAMES, Names(**names))
    return view


def links_of(facts: Snapshot) -> dict[str, Judged]:
    """Return the doctor's links by name."""
    return {link.name: link for link in judged(facts)}
