"""The webhook with a real API server: mutation, denial, warnings, certificates, two replicas."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from clusterset.model.moving import node_avoidance
from controller_runtime.tls.key_pairs import expiry, make_ca, sign
from controller_runtime.tls.own_certificates import Certificates
from hack.sandbox import Cluster, Sandbox, SandboxError
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from tests.clusters.pool import Lend
from tests.waiting import PATIENCE, becomes, eventually, get

pytestmark = pytest.mark.e2e
SECRET = "virtual-node-webhook-tls"
PODS = "/api/v1/namespaces/default/pods"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(alone: Lend) -> AsyncIterator[Sandbox]:
    """An upper cluster with a virtual node's Node object, and the webhook registered by URL."""
    async with alone() as running:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "vn-a", "labels": {"type": "virtual-kubelet"}},
        }
        await running.upper.apply(node)
        yield running


async def start(sandbox: Sandbox, number: int, port: int) -> Process:
    """Start a replica."""
    return await sandbox.start_process(
        f"webhook-{number}",
        [
            sys.executable, "-m", "webhook", f"--kubeconfig={sandbox.upper.kubeconfig}",
            f"--address={LOOPBACK}", f"--port={port}", "--register", f"--url=https://{LOOPBACK}:{port}",
            "--log-level=debug",
        ],
    )  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def webhook(sandbox: Sandbox) -> AsyncIterator[tuple[Cluster, Process, int]]:
    """Run a replica that the API server calls."""
    (port,) = free_ports(1)
    process = await start(sandbox, 0, port)
    await registered(sandbox.upper)
    yield sandbox.upper, process, port
    await process.stop()


async def registered(upper: Cluster) -> None:
    """Wait until labelled pods are mutated."""
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        await upper.kubectl("wait", "--for=create", f"{kind}/virtual-node-webhook", "--timeout=150s")

    async def mutated() -> bool:
        created = await upper.api.create(PODS, pod(), dry_run=True)
        return "virtual-kubelet.io/provider" in json.dumps(created)

    await eventually(mutated, what="labelled pods are mutated")


def pod(name: str = "web", **spec: Any) -> dict[str, Any]:
    """Return a labelled pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"virtual-pod": "true"}},
        "spec": {"containers": [{"name": "c", "image": "busybox"}], **spec},
    }


async def test_a_pod_is_mutated(webhook):
    """The stored pod has its selectors in the annotation, and the fields for the upper cluster."""
    upper, _, _ = webhook
    body = pod(
        "moved",
        nodeSelector={"gpu": "yes", "clusterID": "a"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
    )
    await upper.kubectl("create", "-f", "-", input=json.dumps(body))
    stored = json.loads((await upper.kubectl("get", "pod", "moved", "-o", "json")).stdout)
    assert stored["spec"]["nodeSelector"] == {"clusterID": "a"}
    selector = json.loads(stored["metadata"]["annotations"]["clusterSelector"])
    assert selector["nodeSelector"] == {"gpu": "yes"}
    assert {"key": "gpu", "operator": "Exists"} in selector["tolerations"]
    keys = [toleration["key"] for toleration in stored["spec"]["tolerations"]]
    assert "virtual-kubelet.io/provider" in keys
    lost = next(
        one for one in stored["spec"]["tolerations"] if one["key"] == "node.kubernetes.io/unreachable"
    )
    assert "tolerationSeconds" not in lost


async def test_pods_without_the_label_are_not_touched(webhook):
    """Their creation does not depend on the webhook."""
    upper, _, _ = webhook
    body = pod("plain", nodeSelector={"gpu": "yes"})
    body["metadata"]["labels"] = {}
    await upper.kubectl("create", "-f", "-", input=json.dumps(body))
    stored = json.loads((await upper.kubectl("get", "pod", "plain", "-o", "json")).stdout)
    assert stored["spec"]["nodeSelector"] == {"gpu": "yes"}


async def test_a_wrong_selector_is_refused_with_a_reason(webhook):
    """Kubectl prints the field and the problem."""
    upper, _, _ = webhook
    body = pod("wrong")
    body["metadata"]["annotations"] = {"clusterSelector": '{"nodeSelector": ['}
    done = await upper.kubectl("create", "-f", "-", input=json.dumps(body), check=False)
    assert done.returncode == 1
    assert "metadata.annotations[clusterSelector]" in done.stderr


async def test_moved_fields_are_validated_like_the_api_server(webhook):
    """An affinity that it would refuse in the spec, and would never see once it is moved."""
    upper, _, _ = webhook
    term = {"matchExpressions": [{"key": "gpu", "operator": "Like", "values": ["yes"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    body = pod("wrong", affinity={"nodeAffinity": required})
    done = await upper.kubectl("create", "-f", "-", input=json.dumps(body), check=False)
    assert done.returncode == 1
    assert "nodeSelectorTerms[0].matchExpressions[0].operator" in done.stderr
    body["metadata"]["labels"] = {}
    done = await upper.kubectl("create", "-f", "-", input=json.dumps(body), check=False)
    assert "nodeSelectorTerms[0].matchExpressions[0].operator" in done.stderr


async def test_workloads_get_warnings(webhook):
    """Kubectl prints them; a template that could never make a pod is refused."""
    upper, _, _ = webhook
    template: dict[str, Any] = {
        "metadata": {
            "labels": {"app": "w", "virtual-pod": "true"},
            "annotations": {"virtual-node.io/kubernetes-service": "uper"},
        },
        "spec": {"containers": [{"name": "c", "image": "busybox"}], "priorityClassName": "high"},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "w", "namespace": "default"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "w"}}, "template": template},
    }
    done = await upper.kubectl("apply", "-f", "-", input=json.dumps(deployment))
    assert "Warning: spec.template.spec.priorityClassName" in done.stderr
    field = "spec.template.metadata.annotations[virtual-node.io/kubernetes-service]"
    assert f"Warning: {field}: 'uper': write upper, lower or auto" in done.stderr
    template["metadata"]["annotations"] = {"clusterSelector": "{"}
    done = await upper.kubectl("apply", "-f", "-", input=json.dumps(deployment), check=False)
    assert "spec.template.metadata.annotations[clusterSelector]" in done.stderr
    assert done.returncode == 1


async def test_full_nodes_are_avoided(webhook):
    """The descheduler's record in the API applies in every replica, for the pods of that owner."""
    upper, _, _ = webhook
    for name in ("vn-b", "vn-c"):
        await upper.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"type": "virtual-kubelet"}},
            }
        )
        status = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x",
                  "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}  # fmt: skip
        await upper.kubectl("patch", "node", name, "--subresource=status", "-p", json.dumps(status))
    now = datetime.now(UTC)
    memory = {
        "vn-b": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "vn-c": (now - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    key = node_avoidance.owner_key("default", "owner-1")
    await upper.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "virtual-node-unschedulable", "namespace": "kube-system"},
            "data": {key: json.dumps({"namespace": "default", "nodes": memory})},
        }
    )
    body = pod("owned")
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "owner-1", "controller": True}
    ]

    async def terms() -> Any:
        created = await upper.api.create(PODS, body, dry_run=True)
        affinity = created["spec"]["affinity"]["nodeAffinity"]
        return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["vn-b"]}
    await becomes(terms, [{"matchExpressions": [away]}], what="the node that was full is avoided")


async def test_certificates_are_renewed_without_a_refused_pod(webhook):
    """CA and serving certificate near their end: a new CA is announced, then used, while pods are created."""
    upper, _, _ = webhook
    old = datetime.now(UTC) - timedelta(days=3600)
    ca = make_ca("virtual-node-webhook-ca", validity=timedelta(days=3650), now=old)
    serving = sign(ca, "virtual-node-webhook", hosts=[LOOPBACK], validity=timedelta(days=3650), now=old)
    await upper.kubectl(
        "-n", "kube-system", "patch", "secret", SECRET, "--type=merge",
        "-p", json.dumps({"data": Certificates((ca,), serving).data()}),
    )  # fmt: skip
    failures: list[str] = []
    renewed, since = False, 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while since < 20 and loop.time() < deadline:
        try:
            await upper.api.create(PODS, pod("r"), dry_run=True)
        except SandboxError as error:
            if renewed:  # until the test's old CA is announced, API servers do not know it
                failures.append(str(error))
        secret = await get(upper, "kube-system", "secret", SECRET)
        certificate = base64.b64decode(secret["data"]["tls.crt"])
        now_renewed = (
            expiry(certificate) - datetime.now(UTC) < timedelta(days=91)
            and certificate != serving.certificate
        )
        renewed = renewed or now_renewed
        since += renewed
        await asyncio.sleep(0.2)
    assert renewed
    assert failures == []


async def test_a_second_replica_serves_the_same_certificate(sandbox: Sandbox, webhook):
    """Both follow the Secret. When one is killed, the other replica renews the certificate."""
    upper, process, _ = webhook
    (other_port,) = free_ports(1)
    other = await start(sandbox, 1, other_port)
    try:
        log = sandbox.directory / "webhook-1.log"

        async def serves() -> bool:
            return "serving" in log.read_text()

        await eventually(serves, what="the second replica serves")
        await process.kill()
        await upper.kubectl("-n", "kube-system", "delete", "secret", SECRET)
        await upper.kubectl("-n", "kube-system", "wait", "--for=create", f"secret/{SECRET}", "--timeout=150s")
        await registered(upper)
        wanted = f"https://{LOOPBACK}:{other_port}/mutate"
        configuration = await upper.kubectl(
            "get", "mutatingwebhookconfiguration", "virtual-node-webhook", "-o", "json"
        )
        assert json.loads(configuration.stdout)["webhooks"][0]["clientConfig"]["url"] == wanted
        assert "leading" in log.read_text()
    finally:
        await other.stop()
