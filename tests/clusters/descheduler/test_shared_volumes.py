"""A volume on storage that two lower clusters reach follows its pod in a drain, and its data stays."""

from __future__ import annotations

from typing import Any

from hack.sandbox import Cluster, Sandbox
from tests.clusters.descheduler.setup import (
    LARGE,
    NAS,
    SMALL,
    command,
    cordoned,
    deployment,
    descheduler,
    run_on,
)
from tests.clusters.pods.test_volumes import claim, storage_class
from tests.waiting import becomes, create, eventually, get
from virtual_node.translate.storage.shared import ANNOTATION_USED_IN, LABEL_GUEST, node_label

_CLASS = "nas"


async def test_drain_moves_volume_on_shared_storage_and_back(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """The guest cluster has a claim and a volume only while the pod runs there; the home cluster keeps its own."""
    home, guest = sandbox.lower
    mirror = f"lower1-nas-{namespace}"
    for cluster in (upper, home):
        await cluster.apply(storage_class(_CLASS, NAS if cluster is home else "virtual-node.io/lower"))
    for cluster in (home, guest):
        await cluster.apply(_driver())
    await home.apply(_volume(f"nas-{namespace}", namespace))
    template = deployment("db", replicas=1, cpu="100m")
    template["spec"]["template"]["spec"]["volumes"] = [
        {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
    ]
    stateful = {**template, "kind": "StatefulSet", "spec": {**template["spec"], "serviceName": "db"}}
    await create(upper, namespace, claim("data", _CLASS), stateful)
    await run_on(upper, namespace, SMALL, count=1)
    at_home = await get(home, namespace, "persistentvolumeclaim", "data")

    async def used_in() -> str:
        found = await get(upper, "", "persistentvolume", mirror)
        return str(found["metadata"]["annotations"].get(ANNOTATION_USED_IN, ""))

    assert await used_in() == "lower1"
    for node in (SMALL, LARGE):
        assert (await get(upper, "", "node", node))["metadata"]["labels"][node_label("nas")] == "true"
    code, text = await command(upper, "drain", SMALL, "--dry-run")
    assert (code, [line.split()[1:] for line in text.splitlines() if f"{namespace}/db-0" in line]) == (
        0, [[f"{namespace}/db-0", "evicted,", "one", "at", "a", "time"]],
    ), text  # fmt: skip

    async with descheduler(sandbox, namespace):
        await upper.kubectl(
            "-n", namespace, "wait", "--for=create", "lease/virtual-node-descheduler", "--timeout=150s"
        )
        code, text = await command(upper, "drain", SMALL, "--timeout=120s")
        assert code == 0, text
    await run_on(upper, namespace, LARGE, count=1)
    assert await used_in() == "lower2"
    await guest.kubectl(
        "-n", namespace, "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s"
    )
    (volume,) = await _guest_volumes(guest)
    assert volume["spec"]["csi"] == {"driver": NAS, "volumeHandle": f"vol-{namespace}"}
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"

    await command(upper, "uncordon", SMALL)
    async with cordoned(upper, LARGE):
        # Without --wait=false, kubectl can wait forever for the new pod: kubernetes/kubernetes#135562.
        await upper.kubectl("-n", namespace, "delete", "pod", "db-0", "--wait=false")
        await run_on(upper, namespace, SMALL, count=1)
    await becomes(used_in, "lower1", what="only the home cluster uses the volume")

    async def left() -> tuple[int, int]:
        claims = (await get(guest, namespace, "persistentvolumeclaims"))["items"]
        return len(claims), len(await _guest_volumes(guest))

    await becomes(left, (0, 0), what="nothing is left in the guest cluster")
    found = await get(home, namespace, "persistentvolumeclaim", "data")
    assert (found["metadata"]["uid"], found["status"]["phase"]) == (at_home["metadata"]["uid"], "Bound")

    await upper.kubectl("-n", namespace, "delete", "statefulset/db", "pvc/data")

    async def is_deleted() -> bool:
        above, below = [
            (await get(one, namespace, "persistentvolumeclaims"))["items"] for one in (upper, home)
        ]
        return not above and not below

    await eventually(is_deleted, what="the home cluster deletes the claim")


async def _guest_volumes(cluster: Cluster) -> list[dict[str, Any]]:
    found = (await get(cluster, "", "persistentvolumes"))["items"]
    return [one for one in found if LABEL_GUEST in (one["metadata"].get("labels") or {})]


def _driver() -> dict[str, Any]:
    """Return a driver that attaches nothing, because no node has it."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": NAS},
        "spec": {"attachRequired": False},
    }


def _volume(name: str, namespace: str) -> dict[str, Any]:
    """Return a volume for the claim ``data``, as a provisioner creates it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": _CLASS,
            "csi": {"driver": NAS, "volumeHandle": f"vol-{namespace}"},
            "claimRef": {"namespace": namespace, "name": "data"},
        },
    }
