"""Pods that a lower cluster refuses are moved: bare ones, owned ones, and for configured reasons."""

from __future__ import annotations

import asyncio
import json

import aiohttp

from clusterset.model import names
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.ports import free_ports
from tests.clusters.descheduler.setup import (
    LARGE,
    SMALL,
    cordoned,
    deployment,
    descheduler,
    events_of,
    no_records,
    pod,
    pods_of,
    refused_below,
    run_on,
    webhook,
)
from tests.waiting import becomes, create, eventually, get, ready


async def test_bare_pod_moves(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A pod that no lower node fits is re-created for the other cluster, and records its previous node."""
    clusters = json.dumps({"tolerations": [{"key": "k", "operator": "Exists"}]})
    await create(upper, namespace, pod("bare", annotations={"clusterSelector": clusters, "mine": "kept"}))
    await refused_below(upper, namespace)
    before = await get(upper, namespace, "pod", "bare")
    assert before["spec"]["nodeName"] == SMALL
    async with descheduler(sandbox, namespace):
        await run_on(upper, namespace, LARGE, count=1)
        after = await get(upper, namespace, "pod", "bare")
        metadata = after["metadata"]
        assert metadata["uid"] != before["metadata"]["uid"]
        assert metadata["labels"] == {"app": "bare", "virtual-pod": "true", "create-by-descheduler": "true"}
        annotations = metadata["annotations"]
        assert annotations["clusterSelector"] == clusters
        assert annotations["mine"] == "kept"
        assert annotations["unschedulable-node"] == SMALL
        assert annotations["sigs.k8s.io/deschedule-count"] == "1"
        terms = after["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [SMALL]}
        assert terms == {"nodeSelectorTerms": [{"matchExpressions": [away]}]}

        async def is_reported() -> bool:
            found = await events_of(upper, namespace, "Rescheduled")
            return len(found) == 1 and found[0].startswith(f"Moved off {SMALL}: Unschedulable for ")

        await eventually(is_reported, what="event Rescheduled")
        await no_records(upper, namespace)
        assert not await pods_of(sandbox.lower[0], namespace)


async def test_deployment_pods_move(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A controller's pods are evicted, and the nodes to avoid are stored where the webhook reads them."""
    await create(upper, namespace, deployment("web", replicas=2, cpu="1.9"))
    await run_on(upper, namespace, SMALL, count=2)
    # The small cluster has enough in sum for a pod of 200m, but on no node: 2 x 100m.
    await create(upper, namespace, deployment("stuck", replicas=1, cpu="0.2"))
    await refused_below(upper, namespace)
    owner = next(
        item["metadata"]["ownerReferences"][0]["uid"]
        for item in await pods_of(upper, namespace)
        if item["metadata"]["labels"]["app"] == "stuck"
    )
    # Without the webhook only this keeps the next pod away.
    async with cordoned(upper, SMALL), descheduler(sandbox, namespace):

        async def moved() -> bool:
            found = await pods_of(upper, namespace)
            places = sorted(
                (item["metadata"]["labels"]["app"], item["spec"].get("nodeName"), item["status"]["phase"])
                for item in found
            )
            return places == [("stuck", LARGE, "Running")] + [("web", SMALL, "Running")] * 2

        await eventually(moved, what="the stuck pod on the other cluster, the others untouched")
        memory = await get(upper, namespace, "configmap", "virtual-node-unschedulable")
        value = json.loads(memory["data"][f"{namespace}.{owner}"])
        assert value["namespace"] == namespace
        assert list(value["nodes"]) == [SMALL]


async def test_dry_run_changes_nothing(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A dry run reports what it would do, and leaves pods, ConfigMaps, Leases and nodes unchanged."""
    nowhere = {"clusterSelector": json.dumps({"nodeSelector": {"no": "where"}})}
    await create(
        upper,
        namespace,
        pod("bare", cpu="100m", annotations=nowhere),
        deployment("owned", replicas=1, cpu="100m", annotations=nowhere),
    )
    await refused_below(upper, namespace, count=2)
    before = {item["metadata"]["uid"] for item in await pods_of(upper, namespace)}
    (port,) = free_ports(1)
    arguments = ("--dry-run", f"--health-addr=127.0.0.1:{port}")
    async with descheduler(sandbox, namespace, *arguments) as process, aiohttp.ClientSession() as session:

        async def is_reported() -> bool:
            return len(await events_of(upper, namespace, "WouldReschedule")) == 2

        await eventually(is_reported, what="an event for each pod")
        await asyncio.sleep(2)
        assert process.running
        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 200
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert "virtual_node_descheduler_moved_total{" not in await answer.text()
    assert {item["metadata"]["uid"] for item in await pods_of(upper, namespace)} == before
    found = [
        item["metadata"]["name"]
        for kind in ("configmaps", "leases")
        for item in (await get(upper, namespace, kind))["items"]
    ]
    assert set(found) <= {"kube-root-ca.crt"}
    assert not await events_of(upper, namespace, "Rescheduled")


async def test_deployment_moves_with_the_webhook(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """The webhook reads the descheduler's record, and keeps a controller's next pod off the full cluster."""
    async with webhook(sandbox, namespace):
        async with cordoned(upper, LARGE):
            await create(upper, namespace, deployment("web", replicas=1))
            await refused_below(upper, namespace)
        async with descheduler(sandbox, namespace):
            await run_on(upper, namespace, LARGE, count=1)
        (found,) = await pods_of(upper, namespace)
        required = found["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [SMALL]}
        assert required == {"nodeSelectorTerms": [{"matchExpressions": [away]}]}
        assert found["metadata"]["annotations"]["unschedulable-node"] == SMALL


async def test_freeze_ends(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A pod that has no node because of the freeze gets one when the freeze is over."""
    freeze = "--freeze-period=15s"
    # Nearly all of the large cluster is taken: a pod of three CPUs finds no room there.
    await create(upper, namespace, pod("taken", cpu="62", prefer=LARGE))
    await run_on(upper, namespace, LARGE, count=1)
    async with webhook(sandbox, namespace, freeze), descheduler(sandbox, namespace, freeze):
        await create(upper, namespace, deployment("web", replicas=1))

        async def web(*, node: str | None, avoids: bool) -> bool:
            found = [item for item in await pods_of(upper, namespace) if item["metadata"]["name"] != "taken"]
            return [
                (
                    item["spec"].get("nodeName"),
                    "unschedulable-node" in (item["metadata"].get("annotations") or {}),
                )
                for item in found
            ] == [(node, avoids)]

        await eventually(lambda: web(node=None, avoids=True), what="the next pod waiting above")
        await eventually(lambda: web(node=SMALL, avoids=False), what="one that avoids nothing")


async def test_pods_that_the_lower_quota_refuses_move(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Only with ``--include-failures=quota``."""
    small = sandbox.lower[0]
    await create(upper, namespace, pod("first", cpu="10m"))
    await run_on(upper, namespace, SMALL, count=1)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": namespace},
    }
    await small.apply({**quota, "spec": {"hard": {"pods": "1"}}})

    async def enforced() -> bool:
        done = await small.kubectl(
            "-n", namespace, "get", "resourcequota", "full", "-o", "jsonpath={.status.used.pods}"
        )
        return done.stdout == "1"

    await eventually(enforced, what="the quota is in force")
    await create(upper, namespace, pod("second", cpu="10m"))

    async def refused() -> str:
        found = await get(upper, namespace, "pod", "second")
        conditions = {one["type"]: one.get("reason") for one in found["status"].get("conditions") or ()}
        return conditions.get(names.CONDITION_ADMITTED) or ""

    await becomes(refused, "ExceededQuota", what="the lower cluster refuses the pod for its quota")
    async with descheduler(sandbox, namespace):
        await asyncio.sleep(5)
        assert (await get(upper, namespace, "pod", "second"))["spec"]["nodeName"] == SMALL
    async with descheduler(sandbox, namespace, "--include-failures=quota"):

        async def moved() -> str:
            return str((await get(upper, namespace, "pod", "second"))["spec"].get("nodeName"))

        await becomes(moved, LARGE, what="the pod has moved")
        await ready(upper, namespace, "second")


async def test_pods_with_failing_image_pulls_move(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """Only with ``--include-failures=image``."""
    await create(upper, namespace, pod("main", cpu="10m"))
    await run_on(upper, namespace, SMALL, count=1)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    status = {
        "phase": "Pending",
        "containerStatuses": [
            {"name": "main", "image": "busybox:1.36", "imageID": "", "ready": False, "restartCount": 0,
             "state": {"waiting": waiting}},
        ],
    }  # fmt: skip
    await sandbox.lower[0].kubectl(
        "-n", namespace, "patch", "pod", "main", "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}),
    )  # fmt: skip

    async def phase() -> str:
        found = await get(upper, namespace, "pod", "main")
        return str(found["status"]["phase"])

    await becomes(phase, "Pending", what="the pod waits above, too")
    async with descheduler(sandbox, namespace):
        await asyncio.sleep(5)
        assert (await get(upper, namespace, "pod", "main"))["spec"]["nodeName"] == SMALL
    async with descheduler(sandbox, namespace, "--include-failures=image"):
        await run_on(upper, namespace, LARGE, count=1)


async def test_a_bare_pod_with_match_label_keys_moves(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Terms that matchLabelKeys added to a stored pod are not added twice, or the pod would be refused."""
    body = pod("bare")
    selecting = {
        "labelSelector": {"matchLabels": {"app": "other"}},
        "matchLabelKeys": ["revision"],
        "topologyKey": "kubernetes.io/hostname",
    }
    body["metadata"]["labels"]["revision"] = "7"
    body["spec"]["affinity"]["podAntiAffinity"] = {
        "requiredDuringSchedulingIgnoredDuringExecution": [selecting]
    }
    body["spec"]["topologySpreadConstraints"] = [
        {**selecting, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    ]
    await create(upper, namespace, body)
    await refused_below(upper, namespace)
    async with descheduler(sandbox, namespace):
        await run_on(upper, namespace, LARGE, count=1)
