"""A client pod that sends requests through a Service without a pause, and counts those that fail."""

from __future__ import annotations

from typing import Any

from clusterset.model.pod.conditions import is_true
from hack.sandbox import Cluster
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, ready
from tests.workloads import deployment, service

REPLICAS = 3
_SERVE = "sleep 6; echo web > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
"""The start takes longer than the end of a pod (``preStop``), as in most applications."""
_REQUEST = "timeout 2 wget -q -O- http://web >/dev/null"
_LOOP = (
    f"until {_REQUEST}; do sleep 1; done; good=0; bad=0; "
    f"while true; do if {_REQUEST}; then good=$((good+1)); else bad=$((bad+1)); fi; "
    "echo $good $bad >/tmp/count; sleep 0.1; done"
)
"""Counts requests from the first that succeeds, because a new Service is not known on the node at once."""


def web(**spec: Any) -> list[dict[str, Any]]:
    """Return Service ``web`` and its Deployment, whose pods may run on every virtual node, unless ``spec`` limits it."""
    container = {
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "3"]}}},
    }
    options = {"nodeSelector": {}, "terminationGracePeriodSeconds": 4, **spec}
    template = pod("web", _SERVE, container=container, **options)
    return [service({"port": 80, "targetPort": 8080}), deployment(template, replicas=REPLICAS)]


async def start_client(upper: Cluster, namespace: str, name: str = "client", **options: Any) -> None:
    """Create a pod that sends requests; ``options`` are those of ``pod``."""
    await create(upper, namespace, pod(name, _LOOP, **options))
    await ready(upper, namespace, name)


async def count(upper: Cluster, namespace: str, name: str = "client", *, above: int) -> tuple[int, int]:
    """Return the requests of the client that succeeded and failed, when more than ``above`` have succeeded."""
    found = (0, 0)

    async def enough() -> bool:
        nonlocal found
        text = (await upper.kubectl("-n", namespace, "exec", name, "--", "cat", "/tmp/count")).stdout
        good, bad = map(int, text.split())
        found = (good, bad)
        return good > above

    await eventually(enough, what=f"more than {above} requests succeed")
    return found


async def run_on(upper: Cluster, namespace: str, node: str) -> None:
    """Wait until all pods of the Deployment are on a node and Ready, and no other is left."""

    async def places() -> list[str]:
        found = (await get(upper, namespace, "pods", labels="app=web"))["items"]
        return [
            item["spec"].get("nodeName", "") if is_true(item["status"], "Ready") else "not Ready"
            for item in found
        ]

    await becomes(places, [node] * REPLICAS, what=f"{REPLICAS} pods are Ready on {node}")
