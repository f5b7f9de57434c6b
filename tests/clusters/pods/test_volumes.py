"""Volumes: claims follow pods, data survives them, and no data is deleted by accident."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from clusterset.model import names
from hack.sandbox import Cluster, Sandbox, SandboxError
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
STATIC, DYNAMIC = "local-static", "local-path"


def storage_class(name: str, provisioner: str) -> dict[str, Any]:
    """Return a class with volumes that are bound at first use."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }


def volume(
    name: str, path: Path, node: str, *, storage_class: str, policy: str = "Retain", claim: Any = None
) -> dict[str, Any]:
    """Return a volume in a folder of one node."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": storage_class,
            "hostPath": {"path": str(path), "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            **({"claimRef": claim} if claim else {}),
        },
    }


def claim(name: str, storage_class: str, size: str = "1Gi") -> dict[str, Any]:
    """Return a claim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
        },
    }


async def provision(lower: Cluster, root: Path) -> None:
    """Provision folders for claims that have a node, until cancelled."""
    while True:
        # Refused, or unreachable: the next round is soon.
        with contextlib.suppress(SandboxError):
            await provision_once(lower, root)
        await asyncio.sleep(0.3)


async def provision_once(lower: Cluster, root: Path) -> None:
    """Make volumes for the claims that wait for one, and delete volumes of deleted claims."""
    claims = (await get(lower, "", "pvc"))["items"]
    volumes = {one["metadata"]["name"]: one for one in (await get(lower, "", "pv"))["items"]}
    for found in claims:
        metadata, spec = found["metadata"], found["spec"]
        node = (metadata.get("annotations") or {}).get("volume.kubernetes.io/selected-node")
        name = f"pvc-{metadata['uid']}"
        if spec.get("storageClassName") != DYNAMIC or spec.get("volumeName") or not node or name in volumes:
            continue
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        reference |= {key: metadata[key] for key in ("namespace", "name", "uid")}
        body = volume(name, root / name, node, storage_class=DYNAMIC, policy="Delete", claim=reference)
        body["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": "test/local-path"}
        await create(lower, "", body)
    for name, found in volumes.items():
        done = found["status"].get("phase") in {"Released", "Failed"}
        if found["spec"].get("storageClassName") == DYNAMIC and done:
            await lower.api.delete(f"/api/v1/persistentvolumes/{name}")
            shutil.rmtree(found["spec"]["hostPath"]["path"], ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def root(sandbox: Sandbox) -> AsyncIterator[Path]:
    """Folder of the volumes on the real node; creates the classes of both clusters and the provisioner."""
    folder = sandbox.directory / "volumes"
    folder.mkdir()
    for cluster in sandbox.lower:
        await cluster.apply(
            storage_class(STATIC, "kubernetes.io/no-provisioner"), storage_class(DYNAMIC, "test/local-path")
        )
    await sandbox.upper.apply(
        storage_class(STATIC, "kubernetes.io/no-provisioner"), storage_class(DYNAMIC, "virtual-node.io/lower")
    )
    tasks = [asyncio.create_task(provision(cluster, folder)) for cluster in sandbox.lower]
    yield folder
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def with_claim(name: str, script: str, claim_name: str, *, node: str = REAL, **spec: Any) -> dict[str, Any]:
    """Return a pod that mounts a claim at /data."""
    return pod(
        name, script, node=node,
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}],
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, **spec,
    )  # fmt: skip


async def finished(cluster: Cluster, namespace: str, name: str) -> None:
    """Wait until a pod has succeeded."""
    await cluster.kubectl(
        "-n", namespace, "wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=150s",
    )  # fmt: skip


async def gone(cluster: Cluster, kind: str, name: str, *, namespace: str = "") -> bool:
    """Report whether an object does not exist."""
    return not (await get(cluster, namespace, kind, fields=f"metadata.name={name}"))["items"]


async def test_a_static_volume_keeps_its_data(sandbox: Sandbox, upper: Cluster, namespace, root: Path):
    """No-provisioner and WaitForFirstConsumer, stock scheduler: mirrored to the upper cluster, selected, bound below."""
    lower, name = sandbox.lower[0], f"static-{namespace}"
    await lower.apply(volume(name, root / name, "lower1-node", storage_class=STATIC))

    async def published() -> bool:
        return not await gone(upper, "pv", f"lower1-{name}")

    await eventually(published, what="the free volume appears above")
    writer = with_claim("writer", "echo kept > /data/file", "data", restartPolicy="Never")
    await create(upper, namespace, claim("data", STATIC), writer)
    await finished(upper, namespace, "writer")
    bound = await get(upper, namespace, "pvc", "data")
    assert (bound["status"]["phase"], bound["spec"]["volumeName"]) == ("Bound", f"lower1-{name}")
    assert (await get(lower, namespace, "pvc", "data"))["spec"]["volumeName"] == name
    await upper.kubectl("-n", namespace, "delete", "pod", "writer", "--timeout=150s")
    # Without a node selector, so that only the volume's node affinity selects the cluster.
    reader = with_claim("reader", "cat /data/file", "data", restartPolicy="Never")
    del reader["spec"]["nodeSelector"]
    await create(upper, namespace, reader)
    await finished(upper, namespace, "reader")
    logs = await upper.kubectl("-n", namespace, "logs", "reader")
    assert logs.stdout.strip() == "kept"


async def test_a_dynamic_volume_is_provisioned_in_the_lower_cluster(
    sandbox: Sandbox, upper: Cluster, namespace, root: Path
):
    """The upper claim binds when the lower one does; the volume is mirrored with node affinity; deletion follows."""
    lower = sandbox.lower[0]
    await create(
        upper, namespace, claim("data", DYNAMIC), with_claim("web", "date > /data/file; sleep 3600", "data")
    )
    await ready(upper, namespace, "web")
    lower_claim = await get(lower, namespace, "pvc", "data")
    upper_claim = await get(upper, namespace, "pvc", "data")
    mirror = await get(upper, namespace, "pv", upper_claim["spec"]["volumeName"])
    assert mirror["metadata"]["name"] == f"lower1-{lower_claim['spec']['volumeName']}"
    (term,) = mirror["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == [REAL]
    assert "hostPath" not in mirror["spec"]

    async def binders() -> list[Any]:
        found = await get(lower, namespace, "pods", labels="virtual-node.io/binder-of")
        return [one["metadata"]["name"] for one in found["items"]]

    await becomes(binders, [], what="no placeholder is left below")

    async def has_lower_events() -> bool:
        about = f"involvedObject.uid={upper_claim['metadata']['uid']}"
        return bool((await get(upper, namespace, "events", labels=names.LABEL_NODE, fields=about))["items"])

    await eventually(has_lower_events, what="events of the lower claim are on the upper claim")

    await upper.kubectl(
        "-n", namespace, "patch", "pvc", "data", "-p", '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'
    )

    async def grown() -> bool:
        claim_below = await get(lower, namespace, "pvc", "data")
        return bool(claim_below["spec"]["resources"]["requests"]["storage"] == "2Gi")

    await eventually(grown, what="the lower claim is asked to grow")
    # The test's volumes cannot grow; a resizer would write this.
    done = {"status": {"capacity": {"storage": "2Gi"}}}
    await lower.kubectl(
        "patch", "pv", lower_claim["spec"]["volumeName"], "-p", '{"spec":{"capacity":{"storage":"2Gi"}}}'
    )
    await lower.kubectl(
        "-n", namespace, "patch", "pvc", "data", "--subresource=status", "-p", json.dumps(done)
    )

    async def is_reported() -> bool:
        capacity = (await get(upper, namespace, "pvc", "data"))["status"]["capacity"]["storage"]
        volume_above = await get(upper, namespace, "pv", mirror["metadata"]["name"])
        return bool(capacity == volume_above["spec"]["capacity"]["storage"] == "2Gi")

    await eventually(is_reported, what="the new capacity flows back")

    await upper.kubectl("-n", namespace, "delete", "pod/web", "pvc/data", "--timeout=150s")

    async def cleaned() -> bool:
        return (
            await gone(lower, "pvc", "data", namespace=namespace)
            and await gone(lower, "pv", lower_claim["spec"]["volumeName"])
            and await gone(upper, "pv", mirror["metadata"]["name"])
        )

    await eventually(cleaned, what="claim, volume and mirror are gone")


async def test_a_stateful_set_returns_to_its_data(sandbox: Sandbox, upper: Cluster, namespace, root: Path):
    """With two virtual nodes, the pod returns to the one that has its volume."""
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", "echo x >> /data/starts; sleep 3600"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    prefers = {"weight": 100, "preference": {"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [REAL]}
    ]}}  # fmt: skip
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
                    "affinity": {
                        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefers]}
                    },
                    "containers": [container],
                },
            },
            "volumeClaimTemplates": [claim("data", DYNAMIC)],
        },
    }
    await create(upper, namespace, body)
    await ready(upper, namespace, "db-0")
    first = await get(upper, namespace, "pod", "db-0")
    # Now the template prefers the other node.
    prefers["preference"]["matchExpressions"][0]["values"] = [SIMULATED]  # type: ignore[index]
    await upper.kubectl("-n", namespace, "patch", "statefulset", "db", "--type=merge", "-p",
                        json.dumps({"spec": {"template": body["spec"]["template"]}}))  # type: ignore[index]  # fmt: skip

    async def again() -> bool:
        return bool(
            (await get(upper, namespace, "pod", "db-0"))["metadata"]["uid"] != first["metadata"]["uid"]
        )

    await eventually(again, what="the pod is replaced")
    await ready(upper, namespace, "db-0")
    second = await get(upper, namespace, "pod", "db-0")
    assert second["spec"]["nodeName"] == first["spec"]["nodeName"] == REAL

    async def starts() -> list[str]:
        done = await upper.kubectl("-n", namespace, "exec", "db-0", "--", "cat", "/data/starts")
        return done.stdout.split()

    await becomes(starts, ["x", "x"], what="both starts in the volume")
    await upper.kubectl("-n", namespace, "delete", "statefulset/db", "pvc/data-db-0", "--timeout=150s")


async def test_data_outlives_a_lost_upper_claim(sandbox: Sandbox, upper: Cluster, namespace, root: Path):
    """After a finalizer was removed by hand or etcd was restored: the deletion of the data was not requested."""
    lower = sandbox.lower[0]
    await create(
        upper,
        namespace,
        claim("data", DYNAMIC),
        with_claim("web", "echo kept > /data/file; sleep 3600", "data"),
    )
    await ready(upper, namespace, "web")

    async def data() -> str:
        return (await upper.kubectl("-n", namespace, "exec", "web", "--", "cat", "/data/file")).stdout

    await becomes(data, "kept\n", what="the data")
    await upper.kubectl("-n", namespace, "delete", "pod", "web", "--timeout=150s")
    await sandbox.processes[0].stop()
    await upper.kubectl(
        "-n", namespace, "patch", "pvc", "data", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
    )
    await upper.kubectl("-n", namespace, "delete", "pvc", "data", "--timeout=150s")
    await sandbox.processes[0].start()

    async def is_reported() -> bool:
        return "upper claim disappeared; keeping the lower claim" in (
            sandbox.directory / "virtual-node.log"
        ).read_text(encoding="utf-8")

    await eventually(is_reported, what="the orphan in the log")
    kept = await get(lower, namespace, "pvc", "data")
    assert kept["status"]["phase"] == "Bound"
    assert (root / kept["spec"]["volumeName"] / "file").read_text(encoding="utf-8") == "kept\n"
    await lower.kubectl("-n", namespace, "delete", "pvc", "data", "--timeout=150s")


async def test_the_claim_of_an_ephemeral_volume_is_the_upper_clusters(
    sandbox: Sandbox, upper: Cluster, namespace, root: Path
):
    """It is mirrored to the lower cluster, and deleted with the pod."""
    body = pod(
        "scratch", "echo x > /data/file; sleep 3600",
        volumes=[{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": claim("x", DYNAMIC)["spec"]}}}],
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    )  # fmt: skip
    await create(upper, namespace, body)
    await ready(upper, namespace, "scratch")
    assert (await get(sandbox.lower[0], namespace, "pvc", "scratch-data"))["status"]["phase"] == "Bound"
    await upper.kubectl("-n", namespace, "delete", "pod", "scratch", "--timeout=150s")

    async def cleaned() -> bool:
        return await gone(sandbox.lower[0], "pvc", "scratch-data", namespace=namespace)

    await eventually(cleaned, what="the claim goes with the pod")


async def test_a_volume_that_no_lower_node_can_have_is_rescheduled(
    sandbox: Sandbox, upper: Cluster, namespace, root: Path
):
    """The upper scheduler gets the lower scheduler's reason, and may select another virtual node."""
    body = with_claim("web", "sleep 3600", "data", node=SIMULATED)
    body["metadata"]["annotations"] = {"clusterSelector": '{"nodeSelector": {"no": "such-node"}}'}
    await create(upper, namespace, claim("data", DYNAMIC), body)

    async def is_reported() -> bool:
        done = await upper.kubectl(
            "-n", namespace, "get", "events", "--field-selector=involvedObject.name=data"
        )
        return "ProvisioningFailed" in done.stdout and "0/2 nodes are available" in done.stdout

    await eventually(is_reported, what="the reason in the claim's events")
    await upper.kubectl("-n", namespace, "delete", "pod/web", "pvc/data", "--timeout=150s")


async def test_host_paths_need_a_policy(upper: Cluster, namespace):
    """Refused with the setting that would allow them."""
    body = pod("host", "sleep 3600", volumes=[{"name": "etc", "hostPath": {"path": "/etc"}}])
    await create(upper, namespace, body)

    async def refused() -> bool:
        status = (await get(upper, namespace, "pod", "host"))["status"]
        return any(
            one["type"] == "virtual-node.io/Admitted" and "hostPaths: spec.volumes[etc]" in one["message"]
            for one in status.get("conditions", ())
        )

    await eventually(refused, what="the condition names the policy")
