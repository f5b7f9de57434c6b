"""Lower pods that end without the will of the upper cluster: what their upper pods report, and what Jobs make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterset.model.pod.conditions import condition
from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, ready
from tests.workloads import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

_JOBS = 3
_TRAP = "trap 'exit 0' TERM; while true; do sleep 0.1; done"


async def end(upper: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """Return the status of a pod when it has finished."""
    found: dict[str, Any] = {}

    async def has_finished() -> bool:
        found.update((await get(upper, namespace, "pod", name))["status"])
        return found["phase"] in {"Failed", "Succeeded"}

    await eventually(has_finished, what=f"pod {name} has finished")
    return found


async def lost(upper: Cluster, namespace: str) -> list[str]:
    """Return the pods that have an event about a lost lower pod."""
    items = (await get(upper, namespace, "events"))["items"]
    return sorted(one["involvedObject"]["name"] for one in items if one["reason"] == "LowerPodDeleted")


async def test_running_pod_that_is_deleted_in_the_lower_cluster_is_lost(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """A real kubelet writes the result of the containers first; an eviction, and a deletion in the upper cluster, differ."""
    lower = sandbox.lower[0]
    await create(
        upper,
        namespace,
        pod("killed", "sleep 3600"),
        pod("clean", _TRAP),
        pod("evicted", "sleep 3600"),
        pod("deleted", "sleep 3600"),
    )
    for name in ("killed", "clean", "evicted", "deleted"):
        await ready(upper, namespace, name)
    await lower.kubectl("-n", namespace, "delete", "pod", "killed", "clean", "--wait=false")
    body = manifest("Eviction", "evicted", api="policy/v1", metadata={"namespace": namespace})
    path = f"/api/v1/namespaces/{namespace}/pods/evicted/eviction"
    await lower.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(body))
    await upper.kubectl("-n", namespace, "delete", "pod", "deleted", "--wait=false")

    for name, phase in (("killed", "Failed"), ("clean", "Succeeded")):
        status = await end(upper, namespace, name)
        assert (status["phase"], status.get("reason")) == (phase, "LowerPodDeleted")
        assert status["message"] == "The pod was deleted in the lower cluster lower1"
        assert status["containerStatuses"][0]["state"]["terminated"]["containerID"]  # the kubelet's
        assert not condition(status, "DisruptionTarget")
    status = await end(upper, namespace, "evicted")
    assert status.get("reason") is None
    assert condition(status, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    await upper.kubectl("-n", namespace, "wait", "--for=delete", "pod/deleted", "--timeout=60s")

    async def reported() -> list[str]:
        return await lost(upper, namespace)

    await becomes(reported, ["clean", "killed"], what="events of lost pods")


async def test_jobs_whose_lower_node_was_removed_during_an_absence_do_not_fail(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """The lower cluster's PodGC deletes such pods, and their last status is not seen. A user's deletion fails its Job."""
    lower, process = sandbox.lower[1], sandbox.processes[0]
    policy = {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    }
    names = [f"job-{number}" for number in range(_JOBS)] + ["by-user"]
    for name in names:
        node = "lower2-node-0" if name == "by-user" else "lower2-node-1"
        selector = {"nodeSelector": {"kubernetes.io/hostname": node}}
        template = pod(name, "sleep 3600", node=SIMULATED, restartPolicy="Never")
        template["metadata"]["annotations"] = {"clusterSelector": json.dumps(selector)}
        del template["metadata"]["name"], template["apiVersion"], template["kind"]
        spec = {"backoffLimit": 0, "podFailurePolicy": policy, "template": template}
        await create(upper, namespace, manifest("Job", name, api="batch/v1", spec=spec))

    async def running() -> int:
        items = (await get(upper, namespace, "pods"))["items"]
        return sum(one["status"]["phase"] == "Running" for one in items)

    await becomes(running, len(names), what="the pods of the Jobs run")
    removed = await get(lower, "", "node", "lower2-node-1")
    await process.kill()
    try:
        await lower.kubectl("delete", "node", "lower2-node-1")
        # PodGC would do this after 40 s, with a condition that no process records.
        await lower.kubectl("-n", namespace, "delete", "pods", "--all", "--force", "--grace-period=0")
    finally:
        await process.start()

    async def failed() -> list[str]:
        jobs = (await get(upper, namespace, "jobs"))["items"]
        return sorted(
            job["metadata"]["name"]
            for job in jobs
            if condition(job["status"], "Failed").get("status") == "True" or job["status"].get("failed")
        )

    try:
        await becomes(failed, ["by-user"], what="only the Job whose pod a user deleted fails")

        async def excused() -> int:
            items = (await get(upper, namespace, "pods"))["items"]
            causes = [condition(one["status"], "DisruptionTarget").get("reason") for one in items]
            return causes.count("DeletionByPodGC")

        await becomes(excused, _JOBS, what="the lost pods are reported as those of a removed node")
        assert await failed() == ["by-user"]
    finally:
        metadata = {key: removed["metadata"][key] for key in ("name", "labels", "annotations")}
        await create(lower, "", {**removed, "metadata": metadata})
