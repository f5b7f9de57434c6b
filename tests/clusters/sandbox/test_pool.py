"""Borrowed clusters: whatever a borrower leaves, the next one gets clusters as after their start."""

from __future__ import annotations

from controller_runtime import resources
from hack.sandbox import Sandbox
from tests.clusters.contents import contents
from tests.clusters.pool import Lend
from tests.gateways import custom_resource
from tests.waiting import established, get
from tests.workloads import kwok_pod, manifest


async def test_next_borrower_finds_nothing_of_the_last_one(simulated: Lend):
    """Objects with finalizers, a webhook that refuses everything, a lost node, and a killed API server."""
    async with simulated(lower=1) as first:
        before = [await contents(cluster) for cluster in first.clusters]
        processes = [process.pid for cluster in first.clusters for process in cluster.processes]
        await _spoil(first)
    assert not any(process.running for process in first.processes)
    async with simulated(lower=1) as second:
        assert second.directory != first.directory
        upper, lower = second.clusters
        assert [await contents(cluster) for cluster in second.clusters] == before
        assert (await get(lower, "", "node", "lower1-node-0"))["spec"].get("unschedulable") is None
        assert all(process.running for process in (*upper.processes, *lower.processes))
        kept = {process.pid for cluster in second.clusters for process in cluster.processes}
        assert len(kept & set(processes)) == len(processes) - 3, "only the API server and its clients are new"


async def _spoil(sandbox: Sandbox) -> None:
    upper, lower = sandbox.clusters
    held = {"finalizers": ["example.com/forever"]}
    await upper.apply(custom_resource(resources.GATEWAYS))
    await established(upper, resources.GATEWAYS)
    gateway = manifest("Gateway", "front", api=resources.GATEWAYS.api_version, metadata=held)
    await upper.apply(
        manifest("Namespace", "shop"),
        {**manifest("ConfigMap", "kept"), "metadata": {"name": "kept", "namespace": "shop", **held}},
        {
            **gateway,
            "metadata": {**gateway["metadata"], "namespace": "shop"},
            "spec": {"gatewayClassName": "a"},
        },
        manifest("ConfigMap", "left", metadata={"namespace": "kube-system"}),
        manifest("ClusterRole", "left", api="rbac.authorization.k8s.io/v1", rules=[]),
    )
    await lower.apply(
        {**kwok_pod("running"), "metadata": {"name": "running", "namespace": "default", **held}}
    )
    await lower.kubectl("cordon", "lower1-node-0")
    await sandbox.start_process("left", ["sleep", "600"])
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}
    await upper.apply(
        manifest(
            "ValidatingWebhookConfiguration", "closed", api="admissionregistration.k8s.io/v1",
            webhooks=[{
                "name": "closed.example.com", "clientConfig": {"url": "https://127.0.0.1:1"}, "rules": [rule],
                "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
            }],
        )
    )  # fmt: skip
    await upper.apiserver.kill()
