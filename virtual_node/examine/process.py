"""Explains from our Deployments and pods why no virtual node is registered, or why none is renewed."""

from __future__ import annotations

from datetime import datetime

from clusterset.model.pod.conditions import condition
from virtual_node.config import program
from virtual_node.examine.components import replica_trouble
from virtual_node.examine.objects import Json, key, labels_of
from virtual_node.examine.path import INSTALLED, Installation
from virtual_node.examine.snapshot import Snapshot

LABEL_NAME = "app.kubernetes.io/name"
INSTALLED_AS = "virtual-node"
LABEL_PART_OF = "app.kubernetes.io/part-of"
"""Label that does not change with the chart's nameOverride, unlike the name label."""
_LABEL_COMPONENT = "app.kubernetes.io/component"
_UNLABELLED = f"none is labelled {LABEL_NAME}={INSTALLED_AS}"


def explained(snapshot: Snapshot) -> tuple[str, str] | None:
    """Return why no process registers or renews virtual nodes, and the next step; None: this was not read."""
    if why := snapshot.upper.unread.get(INSTALLED):
        return f"whether its process runs cannot be seen ({why})", "look where the process runs"
    installation = snapshot.upper.get(INSTALLED)
    return None if installation is None else process_trouble(installation, snapshot.now)


def process_trouble(installation: Installation, now: datetime) -> tuple[str, str]:
    """Return why no virtual node is registered or renewed, as far as this cluster shows, and the next step.

    Args:
        installation: our components.
        now: current time by the API server's clock.
    """
    processes = list(filter(_runs_virtual_nodes, installation.pods))
    for pod in processes:
        logs = installation.logs.get(key(pod)) or ("",)
        if found := replica_trouble(pod, logs[-1], now, patience=0):
            return f"its pod {key(pod)} {found[0]}", found[1]
    for deployment in filter(_runs_virtual_nodes, installation.deployments):
        wanted = (deployment.get("spec") or {}).get("replicas", 1)
        namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        if wanted == 0:
            return (
                f"Deployment {namespace}/{name} is scaled to 0",
                f"kubectl -n {namespace} scale deployment {name} --replicas=1",
            )
        failed = condition(deployment.get("status"), "ReplicaFailure")
        if failed.get("status") == "True" or not processes:
            return (
                f"Deployment {namespace}/{name} has no pods: {failed.get('message') or _UNLABELLED}",
                f"kubectl -n {namespace} describe deployment {name}",
            )
    if not processes:
        return (
            f"nothing here is labelled {LABEL_NAME}={INSTALLED_AS}",
            f"start it ({program.name('run')} --help), or look where it runs: it need not be in this cluster",
        )
    pod = processes[0]
    logs = f"kubectl -n {pod['metadata']['namespace']} logs {pod['metadata']['name']}"
    return (
        f"its pod {key(pod)} runs, so it has no lower cluster, or cannot register it",
        f"{program.name('lower-cluster')} join NAME --client-kubeconfig FILE; else {logs}",
    )


def _runs_virtual_nodes(one: Json) -> bool:
    """Report whether a pod or Deployment runs virtual nodes; false for the webhook or a `helm test`."""
    component = labels_of(one).get(_LABEL_COMPONENT)
    return component in {None, INSTALLED_AS}
