"""Pods that have finished do not run again, whatever happens to their lower pods, and others do not run twice."""

from __future__ import annotations

from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, ready
from tests.workloads import deployment, manifest

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
_KEPT = "example.com/kept"


async def _statuses(upper: Cluster, namespace: str, names: list[str]) -> dict[str, Any]:
    return {name: (await get(upper, namespace, "pod", name))["status"] for name in names}


async def _finished(upper: Cluster, namespace: str, names: list[str]) -> dict[str, Any]:
    async def phases() -> bool:
        found = await _statuses(upper, namespace, names)
        return all(status["phase"] in {"Succeeded", "Failed"} for status in found.values())

    await eventually(phases, what=f"{names} have finished")
    return await _statuses(upper, namespace, names)


async def test_finished_pods_stay_finished_without_their_lower_namespace(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """Their lower pods are deleted below with the namespace, while the process runs and while it does not."""
    lower, process = sandbox.lower[0], sandbox.processes[0]
    names = ["succeeded", "failed", "deadline", "kept"]
    await create(
        upper,
        namespace,
        pod("succeeded", "true", restartPolicy="OnFailure"),
        pod("failed", "exit 1", restartPolicy="Never"),
        pod("deadline", "sleep 3600", activeDeadlineSeconds=2),
        pod("kept", "sleep 3600", metadata={"finalizers": [_KEPT]}),
        deployment(pod("web", "sleep 3600"), replicas=1),
        manifest("Service", "web", spec={"selector": {"app": "web"}, "ports": [{"port": 80}]}),
    )
    await ready(upper, namespace, "kept")
    await upper.kubectl("-n", namespace, "rollout", "status", "deployment/web")
    await upper.kubectl("-n", namespace, "delete", "pod", "kept", "--wait=false")
    before = await _finished(upper, namespace, names)
    await lower.kubectl("delete", "namespace", namespace)

    async def replaced() -> list[str]:
        await upper.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=60s")
        assert (await get(lower, namespace, "service", "web"))["spec"]["ports"][0]["port"] == 80
        return [one["metadata"]["labels"]["app"] for one in (await get(lower, namespace, "pods"))["items"]]

    await becomes(replaced, ["web"], what="only the Deployment has a new pod")
    assert await _statuses(upper, namespace, names) == before
    await process.stop()
    try:
        arguments = ("delete", "pods", "--all", "--grace-period=0", "--force")
        await lower.kubectl("-n", namespace, *arguments)
    finally:
        await process.start()
    await create(upper, namespace, pod("later", "sleep 3600"))
    await ready(upper, namespace, "later")
    lower_pods = (await get(lower, namespace, "pods"))["items"]
    assert {one["metadata"]["labels"]["app"] for one in lower_pods} <= {"later", "web"}
    assert await _statuses(upper, namespace, names) == before
    await upper.kubectl(
        "-n", namespace, "patch", "pod", "kept", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
    )
    await upper.kubectl("-n", namespace, "wait", "--for=delete", "pod/kept", "--timeout=60s")
