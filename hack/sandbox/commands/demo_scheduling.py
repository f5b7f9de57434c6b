"""The demo's second half: selectors moved to lower pods, and capacity checked before a pod is bound."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from hack.sandbox.builds.programs import Progress
from hack.sandbox.components.scheduling import start_descheduler, start_multi_scheduler, start_webhook
from hack.sandbox.errors import SandboxError
from hack.sandbox.sandbox import Sandbox

Show = Callable[[str, Sequence[str]], Awaitable[None]]
"""Runs kubectl in a cluster and prints command and output."""
_FITTING = 2


async def run(sandbox: Sandbox, report: Progress, show: Show) -> None:
    """Run the second half on the last lower cluster, which has simulated nodes with 64 cores each.

    Raises:
        SandboxError: something does not work.
    """
    upper, lower = sandbox.upper, sandbox.lower[-1]
    report("starting the webhook, the descheduler, and the stock scheduler with the multi-scheduler")
    await start_webhook(sandbox)
    await start_descheduler(sandbox)
    await start_multi_scheduler(sandbox)
    report("creating a labelled Deployment: three pods of 40 cores, for nodes of the lower label type=kwok")
    await upper.apply(_workload())
    for _ in range(300):
        done = await upper.kubectl("-n", "demo", "get", "pods", "-l", "app=large", "-o", "json")
        pods = json.loads(done.stdout)["items"]
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        waiting = [pod for pod in pods if _refused(pod)]
        if running == _FITTING and waiting:
            break
        await asyncio.sleep(0.1)
    else:
        raise SandboxError(f"{running} of the large pods run, {len(waiting)} have a reason why they wait")
    report("128 cores have room for three, two nodes of 64 only for two, so the third pod waits")
    await show("upper", ["-n", "demo", "get", "pods", "-l", "app=large", "-o", "wide"])
    await show(lower.name, ["-n", "demo", "get", "pods", "-l", "app=large", "-o", "wide"])
    name = waiting[0]["metadata"]["name"]
    path = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}{'\\n'}"
    await show("upper", ["-n", "demo", "get", "pod", name, "-o", path])
    path = "jsonpath={.metadata.annotations.clusterSelector}{'\\n'}"
    await show("upper", ["-n", "demo", "get", "pod", name, "-o", path])


def _refused(pod: dict[str, object]) -> bool:
    status = json.dumps(pod["status"])
    return "nodes are available" in status and "Insufficient cpu" in status


def _workload() -> dict[str, object]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "large", "namespace": "demo"},
        "spec": {
            "replicas": _FITTING + 1,
            "selector": {"matchLabels": {"app": "large"}},
            "template": {
                "metadata": {"labels": {"app": "large", "virtual-pod": "true"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": {"type": "kwok"},
                    "containers": [
                        {
                            "name": "main",
                            "image": "busybox:1.36",
                            "command": ["sleep", "3600"],
                            "resources": {"requests": {"cpu": "40"}},
                        }
                    ],
                },
            },
        },
    }
