"""The demo's second half: selectors moved to lower pods, and capacity checked before a pod is bound.

Each statement that it prints is checked first, against the same pods that it shows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from clusterset.model.pod.conditions import condition
from hack.sandbox.builds.programs import Progress
from hack.sandbox.cluster import Cluster
from hack.sandbox.components.scheduling import start_descheduler, start_multi_scheduler, start_webhook
from hack.sandbox.errors import SandboxError
from hack.sandbox.sandbox import Sandbox

Show = Callable[[str, Sequence[str]], Awaitable[str]]
"""Runs kubectl in a cluster, prints command and output, and returns the output."""
Pod = Mapping[str, Any]
_CPU = 40
"""Cores of a pod."""
_SELECTOR = {"type": "kwok"}
_SECONDS = 60.0
"""Seconds until all pods must run or have a reason why they wait."""
_LARGE = ("-n", "demo", "get", "pods", "-l", "app=large")


async def run(sandbox: Sandbox, report: Progress, show: Show) -> None:
    """Run the second half on the last lower cluster, which has simulated nodes.

    Raises:
        SandboxError: something does not work, or a statement is wrong.
    """
    upper, lower = sandbox.upper, sandbox.lower[-1]
    report("starting the webhook, the descheduler, and the stock scheduler with the multi-scheduler")
    await start_webhook(sandbox)
    await start_descheduler(sandbox)
    await start_multi_scheduler(sandbox)
    cores = await _cores(lower)
    replicas = fitting(cores) + 1
    report(
        f"creating a labelled Deployment: {replicas} pods of {_CPU} cores, for nodes of {lower.name} with the label type=kwok"
    )
    await upper.apply(_workload(f"vn-{lower.name}", replicas))
    waiting = await _settled(upper, cores)
    report(statement(cores))
    await show("upper", [*_LARGE, "-o", "wide"])
    await show(lower.name, [*_LARGE, "-o", "wide"])
    name = waiting["metadata"]["name"]
    path = 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}{"\\n"}'
    await show("upper", ["-n", "demo", "get", "pod", name, "-o", path])
    path = 'jsonpath={.metadata.annotations.clusterSelector}{"\\n"}'
    selector = await show("upper", ["-n", "demo", "get", "pod", name, "-o", path])
    # Read again, so that what was shown is still so.
    pods = await _pods(upper)
    if why := overcommitment(pods, cores) or difference(pods, await _pods(lower), cores):
        raise SandboxError(why)
    if json.loads(selector).get("nodeSelector") != _SELECTOR:
        raise SandboxError(
            f"the webhook has not moved the selector {_SELECTOR}: clusterSelector is {selector}"
        )


def fitting(cores: Sequence[int]) -> int:
    """Return how many pods fit on lower nodes with these cores."""
    return sum(core // _CPU for core in cores)


def statement(cores: Sequence[int]) -> str:
    """Return why one pod more than fits on lower nodes with these cores has to wait."""
    sizes = " and ".join(map(str, sorted(set(cores))))
    nodes = f"{len(cores)} {'node' if len(cores) == 1 else 'nodes'} of {sizes}"
    room, total = fitting(cores), sum(cores)
    if total // _CPU > room:
        return f"{total} cores have room for {room + 1} pods, {nodes} only for {room}, so one pod waits"
    return f"{nodes} {'has' if len(cores) == 1 else 'have'} room for {room}, so one pod waits"


def overcommitment(pods: Sequence[Pod], cores: Sequence[int]) -> str:
    """Return which upper pods are bound although they do not fit; empty: there are none."""
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    if len(bound) <= fitting(cores):
        return ""
    stuck = [pod for pod in bound if pod["status"].get("phase") != "Running"] or bound
    return (
        f"{len(bound)} of {len(pods)} pods are bound, but only {fitting(cores)} fit on lower nodes of {list(cores)} cores: "
        + "; ".join(
            f"{pod['metadata']['name']} on {pod['spec']['nodeName']}: {_reason(pod)}" for pod in stuck
        )
    )


def waiting_pods(pods: Sequence[Pod], cores: Sequence[int]) -> list[Pod]:
    """Return the upper pods without a node for which the scheduler reports that every lower node lacks CPU."""
    reason = f"0/{len(cores)} nodes are available: {len(cores)} Insufficient cpu"
    return [pod for pod in pods if not pod["spec"].get("nodeName") and reason in _reason(pod)]


def difference(upper: Sequence[Pod], lower: Sequence[Pod], cores: Sequence[int]) -> str:
    """Return how the shown pods differ from the statement; empty: all that fit run in both clusters, the other one waits."""
    above, below = _running(upper), _running(lower)
    if len(above) == fitting(cores) and above == below and len(waiting_pods(upper, cores)) == 1:
        return ""
    reasons = "; ".join(f"{pod['metadata']['name']}: {_reason(pod)}" for pod in upper if _reason(pod))
    return (
        f"{fitting(cores)} pods must run and one must wait, but in the upper cluster {_names(above)} run, in the lower "
        f"cluster {_names(below)} ({reasons or 'no reason is reported'})"
    )


async def _settled(upper: Cluster, cores: Sequence[int]) -> Pod:
    """Wait until all pods that fit run and the other one has a reason why it waits; return that pod.

    Raises:
        SandboxError: a pod is bound that does not fit, or the time has passed.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SECONDS
    while True:
        pods = await _pods(upper)
        if why := overcommitment(pods, cores):
            raise SandboxError(why)
        waiting = waiting_pods(pods, cores)
        if len(_running(pods)) == fitting(cores) and waiting:
            return waiting[0]
        if loop.time() > deadline:
            raise SandboxError(difference(pods, pods, cores))
        await asyncio.sleep(0.1)


async def _cores(lower: Cluster) -> list[int]:
    """Return the cores of each simulated lower node.

    Raises:
        SandboxError: there is none.
    """
    done = await lower.kubectl("get", "nodes", "-l", "type=kwok", "-o", "json")
    cores = [int(node["status"]["allocatable"]["cpu"]) for node in json.loads(done.stdout)["items"]]
    if not cores:
        raise SandboxError(f"{lower.name} has no simulated nodes; give --kwok-nodes")
    return cores


async def _pods(cluster: Cluster) -> list[Pod]:
    done = await cluster.kubectl(*_LARGE, "-o", "json")
    found: list[Pod] = json.loads(done.stdout)["items"]
    return found


def _running(pods: Sequence[Pod]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"}


def _names(pods: set[str]) -> str:
    return ", ".join(sorted(pods)) or "none"


def _reason(pod: Pod) -> str:
    return str(condition(pod["status"], "PodScheduled").get("message") or "")


def _workload(node: str, replicas: int) -> dict[str, object]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "large", "namespace": "demo"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "large"}},
            "template": {
                "metadata": {"labels": {"app": "large", "virtual-pod": "true"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    # The webhook leaves the host name, which selects the virtual node, and moves the other label.
                    "nodeSelector": {"kubernetes.io/hostname": node, **_SELECTOR},
                    "containers": [
                        {
                            "name": "main",
                            "image": "busybox:1.36",
                            "command": ["sleep", "3600"],
                            "resources": {"requests": {"cpu": str(_CPU)}},
                        }
                    ],
                },
            },
        },
    }
