"""Pods of workflow engines and Jobs: deadlines, finalizers, statuses that they wait for, and their own containers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, make_namespace, ready
from tests.workloads import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
Status = Mapping[str, Any]
MISSING = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "none", "key": "a"}}}]}
KEPT = {"finalizers": ["example.com/result"]}
UNTIL_TERM = "trap 'exit 7' TERM; while :; do sleep 0.1; done"


def container(name: str, script: str, **fields: Any) -> dict[str, Any]:
    """Return a container that runs a shell script."""
    return {"name": name, "image": "busybox:1.36", "command": ["sh", "-c", script], **fields}


async def reached(
    cluster: Cluster, namespace: str, name: str, check: Callable[[Status], bool]
) -> dict[str, Any]:
    """Wait for a status of a pod, and return the pod."""

    async def so() -> bool:
        return check((await get(cluster, namespace, "pod", name))["status"])

    await eventually(so, what=f"status of pod {name}")
    return await get(cluster, namespace, "pod", name)


def has_ended(status: Status) -> bool:
    """Report whether the pod has a result."""
    return status["phase"] in {"Failed", "Succeeded"}


async def _release(cluster: Cluster, namespace: str, name: str) -> None:
    await cluster.kubectl(
        "-n",
        namespace,
        "patch",
        "pod",
        name,
        "--type=merge",
        "-p",
        json.dumps({"metadata": {"finalizers": None}}),
    )


async def test_a_pod_that_cannot_start_fails_at_its_deadline(upper: Cluster, namespace: str):
    """As on a kubelet, with its reason and message; the containers have no exit code. A Job counts the failure."""
    volume = [{"name": "v", "secret": {"secretName": "none"}}]
    late = pod("late", "true", activeDeadlineSeconds=3, container=MISSING)
    template = {
        "spec": pod("job", "true", activeDeadlineSeconds=3, restartPolicy="Never", volumes=volume)["spec"]
    }
    await create(upper, namespace, late)
    await create(
        upper,
        namespace,
        manifest("Job", "job", api="batch/v1", spec={"backoffLimit": 0, "template": template}),
    )
    status = (await reached(upper, namespace, "late", has_ended))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert status["message"] == "Pod was active on the node longer than the specified deadline"
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"

    async def failed() -> int:
        return int((await get(upper, namespace, "job", "job"))["status"].get("failed", 0))

    await becomes(failed, 1, what="the Job counts the pod")


async def test_a_finalizer_sees_the_result_and_the_generation(upper: Cluster, namespace: str):
    """Exit code, generation and grace period of a deleted pod equal those that a kubelet reports; also if it never started."""
    fields: dict[str, Any] = {"metadata": KEPT, "restartPolicy": "Never", "terminationGracePeriodSeconds": 20}
    await create(upper, namespace, pod("ran", UNTIL_TERM, **fields))
    await create(upper, namespace, pod("waited", "true", container=MISSING, **fields))
    await ready(upper, namespace, "ran")
    await upper.kubectl("-n", namespace, "delete", "pod", "ran", "waited", "--wait=false")
    for name, code in (("ran", 7), ("waited", 137)):
        await reached(upper, namespace, name, has_ended)

        async def kept(name: str = name) -> tuple[int, int]:
            found = await get(upper, namespace, "pod", name)
            metadata, status = found["metadata"], found["status"]
            return metadata["generation"] - status["observedGeneration"], metadata[
                "deletionGracePeriodSeconds"
            ]

        await becomes(kept, (0, 0), what=f"generation and grace period of pod {name}")
        found = await get(upper, namespace, "pod", name)
        terminated = found["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (found["status"]["phase"], terminated["exitCode"]) == ("Failed", code)
        await _release(upper, namespace, name)


def _shape(pod_status: Status) -> dict[str, Any]:
    """Return what readers of a status see, without times, addresses and ids."""
    containers = [
        {
            "name": one["name"],
            "restarts": one["restartCount"],
            "started": one.get("started"),
            **{
                kind: {
                    field: value
                    for field, value in state.items()
                    if field in {"exitCode", "reason", "message"}
                }
                for kind, state in one["state"].items()
            },
            "before": sorted(one["lastState"]),
        }
        for field in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
        for one in pod_status.get(field) or ()
    ]
    conditions = {
        one["type"]: (one["status"], one.get("reason"), one.get("observedGeneration"))
        for one in pod_status["conditions"]
    }
    fields = {field: pod_status.get(field) for field in ("phase", "reason", "message", "observedGeneration")}
    return {**fields, "containers": containers, "conditions": conditions}


async def _step_replaced(cluster: Cluster, namespace: str) -> None:
    """Change the image of a running container, as pipelines do to stop a sidecar when the steps have ended."""
    await reached(cluster, namespace, "steps", lambda status: bool(_ended(status)))
    await cluster.kubectl("-n", namespace, "set", "image", "pod/steps", "side=registry.k8s.io/pause:3.10")


def _ended(status: Status) -> list[str]:
    return [one["name"] for one in status.get("containerStatuses") or () if "terminated" in one["state"]]


async def test_results_equal_those_of_a_real_node(sandbox: Sandbox, upper: Cluster, namespace: str):
    """The same pods on the virtual node and directly on the lower node have the same status in the end."""
    lower = sandbox.lower[0]
    direct = f"{namespace}-direct"
    await make_namespace(lower, direct)
    forever = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    lines = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; exit 1"
    large = "head -c 9000 /dev/zero | tr '\\0' x > /results/t"
    pods = [
        pod("steps", "", containers=[container("step", "sleep 1"), container("side", forever)]),
        pod(
            "messages",
            "",
            containers=[
                container("logs", lines, terminationMessagePolicy="FallbackToLogsOnError"),
                container("large", large, terminationMessagePath="/results/t"),
                container("bytes", "printf 'a\\000b\\377' > /dev/termination-log"),
            ],
        ),
        pod(
            "native",
            "",
            initContainers=[container("setup", "true"), container("proxy", forever, restartPolicy="Always")],
            containers=[container("main", "sleep 1; exit 3")],
        ),
        pod("deadline", "sleep 1000", activeDeadlineSeconds=2),
        pod("start", "", containers=[{"name": "main", "image": "busybox:1.36", "command": ["/none"]}]),
    ]
    selected: dict[str, Any] = {"nodeSelector": {}}
    for cluster, place, node in ((upper, namespace, dict[str, Any]()), (lower, direct, selected)):
        for body in pods:
            await create(cluster, place, {**body, "spec": {**body["spec"], "restartPolicy": "Never", **node}})
    await asyncio.gather(_step_replaced(upper, namespace), _step_replaced(lower, direct))
    for body in pods:
        name = body["metadata"]["name"]
        above = await reached(upper, namespace, name, has_ended)
        below = await reached(lower, direct, name, has_ended)
        assert _shape(above["status"]) == _shape(below["status"]), name
    await lower.api.delete(f"/api/v1/namespaces/{direct}")


async def test_an_address_that_changes_replaces_the_former_one(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """A restarted sandbox has another address; service discovery by pods and by EndpointSlices sees only this one."""
    lower = sandbox.lower[1]
    service = {"selector": {"app": "moved"}, "ports": [{"port": 80}]}
    await create(upper, namespace, manifest("Service", "moved", spec=service))
    await create(upper, namespace, pod("moved", "sleep 1000", node=SIMULATED))
    await ready(upper, namespace, "moved")
    change = {"podIP": "10.99.0.7", "podIPs": [{"$patch": "replace"}, {"ip": "10.99.0.7"}]}
    await lower.kubectl(
        "-n", namespace, "patch", "pod", "moved", "--subresource=status", "-p", json.dumps({"status": change})
    )

    async def addresses(cluster: Cluster) -> list[str]:
        slices = await get(cluster, namespace, "endpointslices")
        return [
            address
            for one in slices["items"]
            if one["metadata"]["labels"].get("kubernetes.io/service-name") == "moved"
            for endpoint in one["endpoints"] or ()
            for address in endpoint["addresses"]
        ]

    for cluster in (upper, lower):
        await becomes(partial(addresses, cluster), ["10.99.0.7"], what=f"address in {cluster.name}")
    status = (await get(upper, namespace, "pod", "moved"))["status"]
    assert (status["podIP"], status["podIPs"]) == ("10.99.0.7", [{"ip": "10.99.0.7"}])
