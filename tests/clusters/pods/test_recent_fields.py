"""Fields of pods that are newer than Kubernetes 1.34, on a real lower node: they have the same effect as on a node of the cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
SHARED = {"name": "shared", "mountPath": "/shared"}
EMPTY: list[dict[str, Any]] = [{"name": "shared", "emptyDir": {}}]


async def needs(
    sandbox: Sandbox, *, kubelet: int, containerd: tuple[int, int] = (1, 0), feature: str = ""
) -> None:
    """Skip the test if the lower node has an older kubelet or containerd, or its kernel and runtime lack a feature."""
    (node,) = (await get(sandbox.lower[0], "", "nodes"))["items"]
    handlers = node["status"].get("runtimeHandlers") or ()
    if feature and not any((handler.get("features") or {}).get(feature) for handler in handlers):
        pytest.skip(f"the runtime of the lower node does not report {feature}")
    versions = {
        "kubelet": (node["status"]["nodeInfo"]["kubeletVersion"], (1, kubelet)),
        "containerd": (node["status"]["nodeInfo"]["containerRuntimeVersion"], containerd),
    }
    for program, (version, least) in versions.items():
        numbers = re.search(r"(\d+)\.(\d+)", version)
        if numbers is None or (int(numbers[1]), int(numbers[2])) < least:
            pytest.skip(f"the {program} of the lower node is {version}")


async def logs(upper: Cluster, namespace: str, name: str) -> str:
    """Return the output of a pod."""
    return (await upper.kubectl("-n", namespace, "logs", name, "-c", "main")).stdout


async def test_a_pod_has_the_hostname_and_the_variables_that_it_asks_for(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """``hostnameOverride``, and a variable from a file that an init container writes."""
    await needs(sandbox, kubelet=35)
    variable = {
        "name": "KEY",
        "valueFrom": {"fileKeyRef": {"volumeName": "shared", "path": "env", "key": "KEY"}},
    }
    command = ["sh", "-c", "echo \"KEY='from-file'\" > /shared/env"]
    body = pod(
        "recent",
        "echo $(hostname) $KEY; sleep 3600",
        hostnameOverride="chosen.example",
        container={"env": [variable]},
        volumes=EMPTY,
        initContainers=[
            {"name": "writer", "image": "busybox:1.36", "command": command, "volumeMounts": [SHARED]}
        ],
    )
    await create(upper, namespace, body)
    await ready(upper, namespace, "recent")
    await becomes(lambda: logs(upper, namespace, "recent"), "chosen.example from-file\n", what="the output")


async def test_an_exit_restarts_all_containers(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """The init container runs again, and the upper status shows it."""
    await needs(sandbox, kubelet=36)
    count = {"command": ["sh", "-c", "echo x >> /shared/runs"], "volumeMounts": [SHARED]}
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    body = pod(
        "again",
        "[ $(wc -l < /shared/runs) -gt 1 ] || exit 42; sleep 3600",
        restartPolicy="Never",
        container={"volumeMounts": [SHARED], "restartPolicy": "Never", "restartPolicyRules": [rule]},
        volumes=EMPTY,
        initContainers=[{"name": "count", "image": "busybox:1.36", **count}],
    )
    await create(upper, namespace, body)

    async def restarts() -> list[int]:
        status = (await get(upper, namespace, "pod", "again"))["status"]
        return [
            container["restartCount"]
            for kind in ("initContainerStatuses", "containerStatuses")
            for container in status.get(kind) or ()
        ]

    await becomes(restarts, [1, 1], what="both containers ran again")
    await ready(upper, namespace, "again")


async def test_a_container_reads_an_image_volume(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """The lower node mounts the image."""
    await needs(sandbox, kubelet=35, containerd=(2, 1))
    source = {"reference": "busybox:1.36", "pullPolicy": "IfNotPresent"}
    body = pod(
        "image",
        "ls /image/bin/sh; sleep 3600",
        container={"volumeMounts": [{"name": "image", "mountPath": "/image"}]},
        volumes=[{"name": "image", "image": source}],
    )
    await create(upper, namespace, body)
    await ready(upper, namespace, "image")
    await becomes(lambda: logs(upper, namespace, "image"), "/image/bin/sh\n", what="the output")


async def test_a_pod_has_a_user_namespace(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """Root of the container is another user of the lower node."""
    await needs(sandbox, kubelet=33, feature="userNamespaces")
    await create(upper, namespace, pod("users", "cat /proc/self/uid_map; sleep 3600", hostUsers=False))
    await ready(upper, namespace, "users")

    async def is_mapped() -> bool:
        return re.match(r" *0 +[1-9]", await logs(upper, namespace, "users")) is not None

    await becomes(is_mapped, True, what="the mapping of root")
