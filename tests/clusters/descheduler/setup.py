"""The clusters' names, the pods, the programs and the waits of the descheduler's tests."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from typing import Any

from clusterset.model import names
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.helm import RELEASE
from hack.sandbox.components.scheduling import start_webhook, stop_webhook
from hack.sandbox.process import Process
from tests import workloads
from tests.accounts import grant_own_objects
from tests.waiting import eventually, get, node_ready

SMALL, LARGE = "vn-lower1", "vn-lower2"
"""Two lower nodes of 2 CPUs each, and one of 64."""
NAS = "nas.csi.example.com"
"""CSI driver of the storage that both lower clusters reach."""


@contextlib.asynccontextmanager
async def descheduler(sandbox: Sandbox, namespace: str, *arguments: str) -> AsyncIterator[Process]:
    """Run the program with short times, as the chart's account; stop it at the end."""
    account = f"{RELEASE}-virtual-node-descheduler"
    await grant_own_objects(sandbox.upper, account, namespace)
    process = await sandbox.start_process(
        f"descheduler-{secrets.token_hex(3)}",
        [
            sys.executable,
            "-m",
            "descheduler",
            f"--kubeconfig={sandbox.upper.directory / account}.kubeconfig",
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
    """Run the webhook until the end of the context, then stop and unregister it."""
    process = await start_webhook(
        sandbox, "--leader-elect=false", f"--namespace={namespace}", f"--freeze-namespace={namespace}", *arguments
    )  # fmt: skip
    try:
        yield process
    finally:
        # No labelled pod can be created until the API server has removed the registration.
        await stop_webhook(sandbox, process)


@contextlib.asynccontextmanager
async def cordoned(upper: Cluster, node: str) -> AsyncIterator[None]:
    """Cordon a virtual node in the context, so that nothing is scheduled to it."""
    await upper.kubectl("cordon", node)
    try:
        yield
    finally:
        await upper.kubectl("uncordon", node)
        await node_ready(upper, node)


def pod(name: str, *, cpu: str = "3", prefer: str = SMALL, **metadata: Any) -> dict[str, Any]:
    """Return a pod with a preference for one virtual node, which may run on any."""
    prefers = {
        "weight": 100,
        "preference": {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [prefer]}]
        },
    }
    made = workloads.pod(
        name,
        {"resources": {"requests": {"cpu": cpu}}},
        metadata={"labels": {"app": name, "virtual-pod": "true"}, **metadata},
        affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefers]}},
    )
    made["spec"]["tolerations"] += [
        {"key": f"node.kubernetes.io/{reason}", "operator": "Exists", "effect": "NoExecute"}
        for reason in ("not-ready", "unreachable")
    ]
    return made


def deployment(name: str, *, replicas: int, **options: Any) -> dict[str, Any]:
    """Return a Deployment of pods as ``pod`` returns them."""
    return workloads.deployment(pod(name, **options), replicas=replicas)


async def pods_of(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Return all pods of a namespace that are not ending."""
    items = (await get(cluster, namespace, "pods"))["items"]
    return [item for item in items if "deletionTimestamp" not in item["metadata"]]


async def events_of(upper: Cluster, namespace: str, reason: str) -> list[str]:
    """Return the messages of a namespace's events of one reason."""
    found = await get(upper, namespace, "events", fields=f"reason={reason}")
    return [item["message"] for item in found["items"]]


async def run_on(upper: Cluster, namespace: str, node: str, *, count: int) -> None:
    """Wait until that many pods exist, all Running on that node."""

    async def settled() -> bool:
        found = await pods_of(upper, namespace)
        return len(found) == count and all(
            item["spec"].get("nodeName") == node and item["status"]["phase"] == "Running" for item in found
        )

    await eventually(settled, what=f"{count} pods Running on {node}")


async def refused_below(upper: Cluster, namespace: str, *, count: int = 1) -> None:
    """Wait until that many pods are bound and refused by their lower scheduler."""

    async def stuck() -> bool:
        bound = [item for item in await pods_of(upper, namespace) if item["spec"].get("nodeName")]
        conditions = [one for item in bound for one in item["status"].get("conditions") or ()]
        return [one.get("reason") for one in conditions].count("Unschedulable") == count

    await eventually(stuck, what=f"{count} pods refused below")


async def no_records(upper: Cluster, namespace: str) -> None:
    """Wait until no re-creation is in progress."""

    async def none() -> bool:
        labels = f"{names.LABEL_DESCHEDULER_RECORD}=true"
        return not (await get(upper, namespace, "controllerrevisions", labels=labels))["items"]

    await eventually(none, what="no records left")


async def command(upper: Cluster, *arguments: str) -> tuple[int, str]:
    """Run ``virtual-node`` as a user does; return the exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "virtual_node", arguments[0], f"--kubeconfig={upper.kubeconfig}", *arguments[1:]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()
