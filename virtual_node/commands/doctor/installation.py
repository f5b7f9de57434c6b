"""Explains why the virtual node's process does not run, from objects of the upper cluster."""

from __future__ import annotations

from datetime import datetime

from controller_runtime.api.pod.conditions import condition
from virtual_node.commands.doctor.facts import INSTALLED_AS, LABEL_NAME, Installation
from virtual_node.config import program
from virtual_node.health.objects import Json, key, labels_of
from virtual_node.health.replicas import replica_trouble

_LABEL_COMPONENT = "app.kubernetes.io/component"
_UNLABELLED = f"none is labelled {LABEL_NAME}={INSTALLED_AS}"


def installation_trouble(installation: Installation, now: datetime) -> tuple[str, str]:
    """Return why no virtual node is registered or renewed, as far as this cluster shows, and the next step."""
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
    """Report whether an object runs virtual nodes, unlike the webhook's or those of a failed `helm test`."""
    component = labels_of(one).get(_LABEL_COMPONENT)
    return component in {None, INSTALLED_AS}
