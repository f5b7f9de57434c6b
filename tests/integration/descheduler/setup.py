"""The clusters' names, the pods, the programs and the waits of the descheduler's tests."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from typing import Any

from controller_runtime.api import names
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.process import Process
from hack.sandbox.scheduling import start_webhook, stop_webhook
from tests.waiting import eventually, get, node_ready

SMALL, LARGE = "vn-lower1", "vn-lower2"
"""Two lower nodes of 2 CPUs each, and one of 64."""


@contextlib.asynccontextmanager
async def descheduler(sandbox: Sandbox, namespace: str, *arguments: str) -> AsyncIterator[Process]:
    """The program with short times; stopped at the end."""
    process = await sandbox.start_process(
        f"descheduler-{secrets.token_hex(3)}",
        [
            sys.executable,
            "-m",
            "descheduler",
            f"--kubeconfig={sandbox.upper.kubeconfig}",
            f"--freeze-namespace={namespace}",
            "--unschedulable-threshold=2s",
            "--stale-after=5s",
            "--heal-after=5s",
            "--leader-elect-lease-duration=4s",
            "--leader-elect-renew-deadline=3s",
            "--leader-elect-retry-period=500ms",
            "--log-level=debug",
            *arguments,
        ],
    )
    try:
        yield process
    finally:
        await process.stop()


@contextlib.asynccontextmanager
async def webhook(sandbox: Sandbox, namespace: str, *arguments: str) -> AsyncIterator[Process]:
    """The webhook, as soon as it changes pods; stopped and unregistered at the end."""
    process = await start_webhook(
        sandbox, "--leader-elect=false", f"--namespace={namespace}", f"--freeze-namespace={namespace}", *arguments
    )  # fmt: skip
    try:
        yield process
    finally:
        # Until the API server has forgotten it no labelled pod can be created.
        await stop_webhook(sandbox, process)


@contextlib.asynccontextmanager
async def cordoned(upper: Cluster, node: str) -> AsyncIterator[None]:
    """Nothing is scheduled to a virtual node meanwhile; afterwards it is as free as before."""
    await upper.kubectl("cordon", node)
    try:
        yield
    finally:
        await upper.kubectl("uncordon", node)
        await node_ready(upper, node)


def pod(name: str, *, cpu: str = "3", prefer: str = SMALL, **metadata: Any) -> dict[str, Any]:
    """A pod that the upper scheduler likes to bind to one virtual node, and that may go to any."""
    prefers = {
        "weight": 100,
        "preference": {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [prefer]}]
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, "virtual-pod": "true"}, **metadata},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefers]}},
            "tolerations": [
                {"key": "virtual-kubelet.io/provider", "operator": "Exists"},
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
            ],
            "containers": [
                {"name": "main", "image": "busybox:1.36", "resources": {"requests": {"cpu": cpu}}}
            ],
        },
    }


def deployment(name: str, *, replicas: int, **options: Any) -> dict[str, Any]:
    """A Deployment of such pods."""
    template = pod(name, **options)
    del template["metadata"]["name"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }


async def pods_of(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """All pods of a namespace that are not ending."""
    items = (await get(cluster, namespace, "pods"))["items"]
    return [item for item in items if "deletionTimestamp" not in item["metadata"]]


async def events_of(upper: Cluster, namespace: str, reason: str) -> list[str]:
    """The messages of a namespace's events of one reason."""
    found = await get(upper, namespace, "events", fields=f"reason={reason}")
    return [item["message"] for item in found["items"]]


async def run_on(upper: Cluster, namespace: str, node: str, *, count: int) -> None:
    """Wait until so many pods are there, all Running on that node."""

    async def settled() -> bool:
        found = await pods_of(upper, namespace)
        return len(found) == count and all(
            item["spec"].get("nodeName") == node and item["status"]["phase"] == "Running" for item in found
        )

    await eventually(settled, what=f"{count} pods Running on {node}")


async def refused_below(upper: Cluster, namespace: str, *, count: int = 1) -> None:
    """Wait until so many pods are bound and refused by their lower scheduler."""

    async def stuck() -> bool:
        found = await pods_of(upper, namespace)
        refused = [
            condition
            for item in found
            for condition in item["status"].get("conditions") or ()
            if item["spec"].get("nodeName") and condition.get("reason") == "Unschedulable"
        ]
        return len(refused) == count

    await eventually(stuck, what=f"{count} pods refused below")


async def no_records(upper: Cluster, namespace: str) -> None:
    """Wait until nothing is being re-created any more."""

    async def none() -> bool:
        return not (
            await get(
                upper, namespace, "controllerrevisions", labels=f"{names.LABEL_DESCHEDULER_RECORD}=true"
            )
        )["items"]

    await eventually(none, what="no records left")
