"""Controllers of the lower cluster, and pods whose labels match their selectors."""

from __future__ import annotations

from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests import workloads
from tests.clusters.virtual_nodes import SIMULATED
from tests.waiting import becomes, create, get, make_namespace, ready
from tests.workloads import kwok_pod

pytestmark = pytest.mark.e2e


def simulated(name: str, **labels: str) -> dict[str, Any]:
    """Return a pod for the virtual node with simulated lower nodes."""
    body = kwok_pod(name, cpu="10m")
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **labels}
    body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": SIMULATED}
    return body


def _controllers() -> list[dict[str, Any]]:
    """Return lower controllers that select app=web; the Job counts pods that others created."""
    template: dict[str, Any] = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "pause"}]},
    }
    selector = {"matchLabels": {"app": "web"}}
    once = {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}
    return [
        workloads.manifest(
            "ReplicaSet",
            "web",
            api="apps/v1",
            spec={"replicas": 1, "selector": selector, "template": template},
        ),
        workloads.manifest(
            "Job",
            "web",
            api="batch/v1",
            spec={"manualSelector": True, "selector": selector, "template": once},
        ),
    ]


async def test_replica_sets_and_jobs_of_the_lower_cluster_do_not_adopt_mirrored_pods(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """A Deployment that is moved exists in both clusters. Its lower ReplicaSet deleted 6 upper pods in 10 s."""
    lower = sandbox.lower[1]
    await make_namespace(lower, namespace)  # the sandbox adopts lower namespaces
    names = [f"web-{number}" for number in range(3)]
    await create(upper, namespace, *(simulated(name, app="web") for name in names))
    for name in names:
        await ready(upper, namespace, name)
    await create(lower, namespace, *_controllers())

    async def own() -> set[str]:
        pods = (await get(lower, namespace, "pods", labels="app=web"))["items"]
        return {one["metadata"]["ownerReferences"][0]["kind"] for one in pods}

    await becomes(own, {"Namespace", "ReplicaSet", "Job"}, what="the controllers have made pods of their own")
    await lower.kubectl("-n", namespace, "wait", "--for=jsonpath={.status.readyReplicas}=1", "rs/web")
    for name in names:
        pod = await get(lower, namespace, "pod", name)
        assert [one["kind"] for one in pod["metadata"]["ownerReferences"]] == ["Namespace"]
        assert "deletionTimestamp" not in pod["metadata"]
        assert (await get(upper, namespace, "pod", name))["status"]["phase"] == "Running"


async def test_pod_without_controller_reference_gets_it_back(sandbox: Sandbox, upper: Cluster, namespace):
    """As a pod of an earlier release."""
    await create(upper, namespace, simulated("web"))
    await ready(upper, namespace, "web")
    lower = sandbox.lower[1]
    await lower.kubectl(
        "-n",
        namespace,
        "patch",
        "pod",
        "web",
        "--type=json",
        "-p",
        '[{"op":"remove","path":"/metadata/ownerReferences"}]',
    )

    async def owners() -> list[str]:
        pod = await get(lower, namespace, "pod", "web")
        return [one["kind"] for one in pod["metadata"].get("ownerReferences") or ()]

    await becomes(owners, ["Namespace"], what="the lower pod has its controller again")


async def test_owner_whose_pods_are_deleted_below_backs_off(sandbox: Sandbox, upper: Cluster, namespace):
    """A program of the lower cluster deletes each pod. There were 3,330 Failed pods in half an hour."""
    template = simulated("web", app="web")
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
    }
    await create(upper, namespace, workloads.manifest("ReplicaSet", "web", api="apps/v1", spec=spec))
    lower = sandbox.lower[1]

    async def below() -> int:
        return len((await get(lower, namespace, "pods", labels="app=web"))["items"])

    for _ in range(2):
        await becomes(below, 1, what="the ReplicaSet has a lower pod")
        await lower.kubectl("-n", namespace, "delete", "pods", "-l", "app=web", "--grace-period=0", "--force")

    async def reasons() -> set[str]:
        return {one["reason"] for one in (await get(upper, namespace, "events"))["items"]} & {
            "LowerPodLostBackOff"
        }

    await becomes(reasons, {"LowerPodLostBackOff"}, what="an event says why the third pod is not created yet")
    assert await below() == 0
    pods = (await get(upper, namespace, "pods", labels="app=web"))["items"]
    assert len(pods) == 3
    await becomes(below, 1, within=30, what="the third pod is created after 10 s")
