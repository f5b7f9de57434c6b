"""The predicted verdict of a lower API server on a pod equals that of a real one, requested with dryRun."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from clusterset.model.pod import pod_resources
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import Forbidden, Invalid
from hack.sandbox import Cluster
from multi_scheduler.state.admission import Admission
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, make_namespace

pytestmark = pytest.mark.e2e
NAMESPACE = "foreseen"
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "memory"},
    "spec": {"scopes": ["NotTerminating"], "hard": {"requests.memory": "1Gi", "pods": "5"}},
}
BOUNDS = {
    "type": "Container",
    "default": {"cpu": "800m"},
    "max": {"cpu": "2"},
    "min": {"cpu": "100m"},
}
RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "cpu"},
    "spec": {"limits": [BOUNDS]},
}


def _asking(limits: dict[str, str], requests: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    amounts = {"requests": {**limits, **(requests or {})}, "limits": limits}
    return {"containers": [{"name": "c", "image": "busybox", "resources": amounts}], **spec}


PODS = {
    "nothing said": _asking({}),
    "nothing said, out of the quota's scope": _asking({}, activeDeadlineSeconds=60),
    "within all bounds": _asking({"cpu": "500m", "memory": "64Mi"}),
    "more than the default limit": _asking({}, {"cpu": "900m", "memory": "64Mi"}),
    "more than a container may": _asking({"cpu": "3", "memory": "64Mi"}),
    "less than a container must": _asking({"cpu": "10m", "memory": "64Mi"}),
    "more than the quota": _asking({"cpu": "1", "memory": "2Gi"}),
    "no memory said": _asking({"cpu": "500m"}),
    "an init container says nothing": _asking(
        {"cpu": "500m", "memory": "64Mi"}, initContainers=[{"name": "i", "image": "busybox"}]
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(alone: Lend) -> AsyncIterator[Cluster]:
    """One cluster, no nodes."""
    async with alone() as running:
        yield running.upper


async def test_prediction_equals_the_verdict_of_a_real_server(cluster: Cluster):
    """It refuses the same pods, and gives the others the same limits."""
    await make_namespace(cluster, NAMESPACE)
    await create(cluster, NAMESPACE, QUOTA, RANGE)

    async def counted() -> bool:
        return "pods" in (await get(cluster, NAMESPACE, "resourcequota", "memory"))["status"]["used"]

    await eventually(counted, what="the quota is in force")
    admission = Admission()
    admission.upsert_quota(await get(cluster, NAMESPACE, "resourcequota", "memory"))
    admission.upsert_range(await get(cluster, NAMESPACE, "limitrange", "cpu"))
    ours = {what: admission.admit(spec, NAMESPACE) for what, spec in PODS.items()}
    foreseen = {
        what: "refused" if one.refusal else pod_resources.pod_limits(one.spec) for what, one in ours.items()
    }
    async with Client(await kubeconfig.load(str(cluster.kubeconfig), in_cluster=False)) as client:

        async def answers() -> dict[str, Any]:
            return {what: await _rehearsed(client, spec) for what, spec in PODS.items()}

        # Admission reads rules from its own caches, so the first responses may be outdated.
        await becomes(answers, foreseen, what="the server's answers are those that we foresee")
    assert [what for what, one in foreseen.items() if one != "refused"] == [
        "nothing said, out of the quota's scope",
        "within all bounds",
    ]


async def _rehearsed(client: Client, spec: dict[str, Any]) -> Any:
    """Return the limits of a pod that would be created, or that it is refused."""
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    try:
        made = await client.create(resources.PODS, body, namespace=NAMESPACE, params={"dryRun": "All"})
    except (Forbidden, Invalid):
        return "refused"
    return pod_resources.pod_limits(made["spec"])
