"""The descheduler on real clusters: an upper one, and two of simulated nodes below, one of which is nearly full."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from controller_runtime.api import names
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.demo import configuration
from hack.sandbox.kwok import kwok_node
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from hack.sandbox.scheduling import start_webhook, stop_webhook
from tests.waiting import becomes, create, eventually, get, node_ready, own_namespace, ready

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

SMALL, LARGE = "vn-lower1", "vn-lower2"
"""Two lower nodes of 2 CPUs each, and one of 64."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    """The clusters, and one virtual-node process for both."""
    async with Sandbox(lower=2, kwok_nodes=1) as running:
        small = running.lower[0]
        await small.kubectl("delete", "node", "--all")
        await small.apply(kwok_node("small-0", cpu="2"), kwok_node("small-1", cpu="2"))
        for node in ("small-0", "small-1"):
            await node_ready(small, node)
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(running)), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for node in (SMALL, LARGE):
            await node_ready(running.upper, node)
        yield running


@pytest.fixture
def upper(sandbox: Sandbox) -> Cluster:
    """The cluster users talk to."""
    return sandbox.upper


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(sandbox: Sandbox, upper: Cluster) -> AsyncIterator[str]:
    """A namespace of the test's own; what the descheduler remembers is there, too."""
    async with own_namespace(upper, *sandbox.lower) as name:
        yield name


@contextlib.asynccontextmanager
async def descheduler(sandbox: Sandbox, namespace: str, *arguments: str) -> AsyncIterator[Process]:
    """The program with short times; stopped at the end."""
    process = await sandbox.start_process(
        f"descheduler-{secrets.token_hex(3)}",
        [
            sys.executable,
            "-m",
            "descheduler",
            f"--kubeconfig={sandbox.upper.kubeconfig}",
            f"--freeze-namespace={namespace}",
            "--unschedulable-threshold=2s",
            "--stale-after=5s",
            "--heal-after=5s",
            "--leader-elect-lease-duration=4s",
            "--leader-elect-renew-deadline=3s",
            "--leader-elect-retry-period=500ms",
            "--log-level=debug",
            *arguments,
        ],
    )
    try:
        yield process
    finally:
        await process.stop()


def pod(name: str, *, cpu: str = "3", prefer: str = SMALL, **metadata: Any) -> dict[str, Any]:
    """A pod that the upper scheduler likes to bind to one virtual node, and that may go to any."""
    prefers = {
        "weight": 100,
        "preference": {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [prefer]}]
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, "virtual-pod": "true"}, **metadata},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefers]}},
            "tolerations": [
                {"key": "virtual-kubelet.io/provider", "operator": "Exists"},
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
            ],
            "containers": [
                {"name": "main", "image": "busybox:1.36", "resources": {"requests": {"cpu": cpu}}}
            ],
        },
    }


def deployment(name: str, *, replicas: int, **options: Any) -> dict[str, Any]:
    """A Deployment of such pods."""
    template = pod(name, **options)
    del template["metadata"]["name"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }


async def pods_of(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """All pods of a namespace that are not ending."""
    items = (await get(cluster, namespace, "pods"))["items"]
    return [item for item in items if "deletionTimestamp" not in item["metadata"]]


async def events_of(upper: Cluster, namespace: str, reason: str) -> list[str]:
    """The messages of a namespace's events of one reason."""
    found = await get(upper, namespace, "events", fields=f"reason={reason}")
    return [item["message"] for item in found["items"]]


async def run_on(upper: Cluster, namespace: str, node: str, *, count: int) -> None:
    """Wait until so many pods are there, all Running on that node."""

    async def settled() -> bool:
        found = await pods_of(upper, namespace)
        return len(found) == count and all(
            item["spec"].get("nodeName") == node and item["status"]["phase"] == "Running" for item in found
        )

    await eventually(settled, what=f"{count} pods Running on {node}")


async def refused_below(upper: Cluster, namespace: str, *, count: int = 1) -> None:
    """Wait until so many pods are bound and refused by their lower scheduler."""

    async def stuck() -> bool:
        found = await pods_of(upper, namespace)
        refused = [
            condition
            for item in found
            for condition in item["status"].get("conditions") or ()
            if item["spec"].get("nodeName") and condition.get("reason") == "Unschedulable"
        ]
        return len(refused) == count

    await eventually(stuck, what=f"{count} pods refused below")


async def test_bare_pod_moves(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A pod that no lower node fits is re-created for the other cluster, and says where it has been."""
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

        async def told() -> bool:
            found = await events_of(upper, namespace, "Rescheduled")
            return len(found) == 1 and found[0].startswith(f"Moved off {SMALL}: Unschedulable for ")

        await eventually(told, what="event Rescheduled")
        await no_records(upper, namespace)
        assert not await pods_of(sandbox.lower[0], namespace)


async def no_records(upper: Cluster, namespace: str) -> None:
    """Wait until nothing is being re-created any more."""

    async def none() -> bool:
        return not (
            await get(upper, namespace, "configmaps", labels=f"{names.LABEL_DESCHEDULER_RECORD}=true")
        )["items"]

    await eventually(none, what="no records left")


async def test_killed_between_delete_and_create(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """Kill -9 of the leader while the old pod ends: the standby makes the new one, exactly once."""
    await create(upper, namespace, pod("bare", finalizers=["example.com/hold"]))
    await refused_below(upper, namespace)
    uid = (await get(upper, namespace, "pod", "bare"))["metadata"]["uid"]
    release = json.dumps({"metadata": {"finalizers": None}})
    async with descheduler(sandbox, namespace) as leader:

        async def ending() -> bool:
            return "deletionTimestamp" in (await get(upper, namespace, "pod", "bare"))["metadata"]

        await eventually(ending, what="the pod ends")
        async with descheduler(sandbox, namespace):
            await leader.kill()
            await upper.kubectl("-n", namespace, "patch", "pod", "bare", "--type=merge", "-p", release)
            await run_on(upper, namespace, LARGE, count=1)
            await no_records(upper, namespace)
    after = await get(upper, namespace, "pod", "bare")
    assert after["metadata"]["uid"] != uid
    assert after["metadata"]["annotations"]["virtual-node.io/replaces"] == uid
    await upper.kubectl("-n", namespace, "patch", "pod", "bare", "--type=merge", "-p", release)


async def test_deployment_pods_move(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A controller's pods are evicted, and what its next ones avoid is where the webhook reads it."""
    await create(upper, namespace, deployment("web", replicas=2, cpu="1.9"))
    await run_on(upper, namespace, SMALL, count=2)
    # What is left of the small cluster is enough in sum for a pod of 200m, and on no node: 2 x 100m.
    await create(upper, namespace, deployment("stuck", replicas=1, cpu="0.2"))
    await refused_below(upper, namespace)
    owner = next(
        item["metadata"]["ownerReferences"][0]["uid"]
        for item in await pods_of(upper, namespace)
        if item["metadata"]["labels"]["app"] == "stuck"
    )
    # Without the webhook nothing else would keep the next pod away.
    await upper.kubectl("cordon", SMALL)
    try:
        async with descheduler(sandbox, namespace):

            async def moved() -> bool:
                found = await pods_of(upper, namespace)
                places = sorted(
                    (item["metadata"]["labels"]["app"], item["spec"].get("nodeName"), item["status"]["phase"])
                    for item in found
                )
                return places == [("stuck", LARGE, "Running")] + [("web", SMALL, "Running")] * 2

            await eventually(moved, what="the stuck pod on the other cluster, the others untouched")
            memory = await get(upper, namespace, "configmap", "virtual-node-unschedulable")
            value = json.loads(memory["data"][owner])
            assert value["namespace"] == namespace
            assert list(value["nodes"]) == [SMALL]
    finally:
        await upper.kubectl("uncordon", SMALL)


async def test_dry_run_changes_nothing(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A dry run tells what it would do, and leaves pods, ConfigMaps, Leases and nodes as they are."""
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

        async def told() -> bool:
            return len(await events_of(upper, namespace, "WouldReschedule")) == 2

        await eventually(told, what="an event for each pod")
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
    assert found == ["kube-root-ca.crt"]
    assert not await events_of(upper, namespace, "Rescheduled")


async def test_lost_cluster(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A lost cluster's pods wait for their disruption budget, then move; none moves back, none runs twice."""
    lost = sandbox.lower[1]
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "owned"}}},
    }
    await create(
        upper,
        namespace,
        budget,
        deployment("owned", replicas=2, cpu="100m", prefer=LARGE),
        pod("bare", cpu="100m", prefer=LARGE),
    )
    await run_on(upper, namespace, LARGE, count=3)
    async with descheduler(sandbox, namespace):
        await asyncio.sleep(1)
        await lost.apiserver.kill()
        try:

            async def bare_moved() -> bool:
                found = await pods_of(upper, namespace)
                return any(
                    item["metadata"]["name"] == "bare"
                    and item["spec"].get("nodeName") == SMALL
                    and item["status"]["phase"] == "Running"
                    for item in found
                )

            await eventually(bare_moved, what="the bare pod on the other cluster")

            async def budget_heard() -> bool:
                return bool(await events_of(upper, namespace, "RescheduleDelayed"))

            await eventually(budget_heard, what="a refused eviction")
            owned = [item for item in await pods_of(upper, namespace) if item["metadata"]["name"] != "bare"]
            assert [item["spec"]["nodeName"] for item in owned] == [LARGE, LARGE]
            taints = (await get(upper, "", "node", LARGE))["spec"]["taints"]
            assert names.TAINT_STALE_CLUSTER in {taint["key"] for taint in taints}
            await upper.kubectl("-n", namespace, "delete", "pdb", "all")
            await run_on(upper, namespace, SMALL, count=3)
        finally:
            await lost.restore()
        moved = {item["metadata"]["uid"] for item in await pods_of(upper, namespace)}
        await node_ready(upper, LARGE)

        async def healed() -> bool:
            taints = (await get(upper, "", "node", LARGE))["spec"].get("taints") or ()
            return all(taint["key"] != names.TAINT_STALE_CLUSTER for taint in taints)

        await eventually(healed, what="the taint gone")

        async def fenced() -> bool:
            return not (await get(lost, namespace, "pods"))["items"]

        await eventually(fenced, what="nothing left in the cluster that was lost")
        await asyncio.sleep(3)
        assert {item["metadata"]["uid"] for item in await pods_of(upper, namespace)} == moved
        # Back-fill: the healed cluster is used again.
        late = pod("late", cpu="100m")
        # It would rather be anywhere than wait until the last lower node is Ready again.
        late["spec"]["nodeSelector"] = {"kubernetes.io/hostname": LARGE}
        await create(upper, namespace, late)
        await ready(upper, namespace, "late")


async def test_stock_preemption(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A high-priority pod that fits no virtual node preempts upstream; below, the victim goes and it runs."""
    low, high = f"low-{namespace}", f"high-{namespace}"
    for name, value in ((low, 1), (high, 1000)):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await upper.apply({**kind, "value": value})

    def with_class(name: str, priority_class: str) -> dict[str, Any]:
        body = pod(name, cpu="1.9")
        body["spec"] |= {
            "priorityClassName": priority_class,
            "nodeSelector": {"kubernetes.io/hostname": SMALL},
        }
        return body

    await create(upper, namespace, with_class("first", low), with_class("second", low))
    await run_on(upper, namespace, SMALL, count=2)
    await create(upper, namespace, with_class("important", high))

    async def preempted() -> bool:
        found = {
            item["metadata"]["name"]: item["status"]["phase"] for item in await pods_of(upper, namespace)
        }
        return found.get("important") == "Running" and len(found) == 2

    await eventually(preempted, what="the important pod in place of one of the others")
    below = await pods_of(sandbox.lower[0], namespace)
    assert len(below) == 2
    assert "important" in {item["metadata"]["name"] for item in below}


@contextlib.asynccontextmanager
async def webhook(sandbox: Sandbox, namespace: str, *arguments: str) -> AsyncIterator[Process]:
    """The webhook, as soon as it changes pods; stopped and unregistered at the end."""
    process = await start_webhook(
        sandbox, "--leader-elect=false", f"--namespace={namespace}", f"--freeze-namespace={namespace}", *arguments
    )  # fmt: skip
    try:
        yield process
    finally:
        # Until the API server has forgotten it no labelled pod can be created.
        await stop_webhook(sandbox, process)


async def test_deployment_moves_with_the_webhook(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """The webhook reads what the descheduler remembers, and keeps a controller's next pod off the full cluster."""
    async with webhook(sandbox, namespace):
        await upper.kubectl("cordon", LARGE)
        try:
            await create(upper, namespace, deployment("web", replicas=1))
            await refused_below(upper, namespace)
        finally:
            await upper.kubectl("uncordon", LARGE)
        async with descheduler(sandbox, namespace):
            await run_on(upper, namespace, LARGE, count=1)
        (found,) = await pods_of(upper, namespace)
        required = found["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [SMALL]}
        assert required == {"nodeSelectorTerms": [{"matchExpressions": [away]}]}
        assert found["metadata"]["annotations"]["unschedulable-node"] == SMALL


async def test_freeze_ends(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A pod that the freeze leaves without a node gets one back when the freeze is over."""
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


async def test_killed_again_and_again(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """Forty bare pods, and a descheduler that is killed every second: every pod arrives, each of them once."""
    await sandbox.lower[1].kubectl("label", "node", "--all", "chosen=yes", "--overwrite")
    chosen = {"clusterSelector": json.dumps({"nodeSelector": {"chosen": "yes"}})}
    bodies = [pod(f"p{number:02d}", cpu="1m", annotations=chosen) for number in range(40)]
    await create(upper, namespace, *bodies)
    await refused_below(upper, namespace, count=40)
    for _ in range(6):
        async with descheduler(sandbox, namespace, "--leader-elect=false", "--backoff=100ms") as process:
            await asyncio.sleep(random.uniform(1.0, 2.5))
            await process.kill()
    arguments = ("--leader-elect=false", "--backoff=100ms", "--max-deschedules=0")
    async with descheduler(sandbox, namespace, *arguments):
        await run_on(upper, namespace, LARGE, count=40)
        await no_records(upper, namespace)
    found = await pods_of(upper, namespace)
    assert [item["metadata"]["name"] for item in found] == [body["metadata"]["name"] for body in bodies]
    assert {item["metadata"]["annotations"]["sigs.k8s.io/deschedule-count"] for item in found} == {"1"}
    below = await pods_of(sandbox.lower[1], namespace)
    assert sorted(item["metadata"]["name"] for item in below) == [body["metadata"]["name"] for body in bodies]


async def test_duplicates_spread(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A policy file with RemoveDuplicates: four pods of one owner end as two in each cluster, and stay so."""
    policy = sandbox.directory / f"policy-{namespace}.yaml"
    policy.write_text(
        """
        apiVersion: descheduler/v1alpha2
        kind: DeschedulerPolicy
        profiles:
        - name: spread
          plugins:
            balance:
              enabled: [RemoveDuplicates]
        """,
        encoding="utf-8",
    )
    async with webhook(sandbox, namespace):
        await upper.kubectl("cordon", LARGE)
        try:
            await create(upper, namespace, deployment("web", replicas=4, cpu="100m"))
            await run_on(upper, namespace, SMALL, count=4)
        finally:
            await upper.kubectl("uncordon", LARGE)

        async def spread() -> bool:
            found = await pods_of(upper, namespace)
            places = sorted(item["spec"].get("nodeName", "") for item in found)
            return places == [SMALL, SMALL, LARGE, LARGE]

        arguments = (f"--policy-config-file={policy}", "--descheduling-interval=2s")
        async with descheduler(sandbox, namespace, *arguments):
            await eventually(spread, what="two pods in each cluster")
            await asyncio.sleep(5)
            assert await spread()


async def test_clusters_are_evened_out(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """LowNodeUtilization: an overused cluster gives the underused one pods until it is at its target, and no more."""
    policy = sandbox.directory / f"policy-{namespace}.yaml"
    policy.write_text(
        """
        apiVersion: descheduler/v1alpha2
        kind: DeschedulerPolicy
        profiles:
        - name: even
          pluginConfig:
          - name: LowNodeUtilization
            args: {thresholds: {cpu: 20}, targetThresholds: {cpu: 50}}
          plugins:
            balance:
              enabled: [LowNodeUtilization]
        """,
        encoding="utf-8",
    )
    async with webhook(sandbox, namespace):
        await upper.kubectl("cordon", LARGE)
        try:
            await create(upper, namespace, deployment("web", replicas=4, cpu="900m"))
            await run_on(upper, namespace, SMALL, count=4)
        finally:
            await upper.kubectl("uncordon", LARGE)

        async def even() -> list[str]:
            return sorted(item["spec"].get("nodeName", "") for item in await pods_of(upper, namespace))

        arguments = (f"--policy-config-file={policy}", "--descheduling-interval=2s")
        async with descheduler(sandbox, namespace, *arguments):
            await becomes(even, [SMALL, SMALL, LARGE, LARGE], what="half of the small cluster's room is free")
            await asyncio.sleep(5)
            assert await even() == [SMALL, SMALL, LARGE, LARGE]


async def test_pods_that_the_lower_quota_refuses_move(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Only when that is asked for: ``--include-failures=quota``."""
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


async def test_pods_whose_image_cannot_be_pulled_move(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """Only when that is asked for: ``--include-failures=image``."""
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

    async def told() -> str:
        found = await get(upper, namespace, "pod", "main")
        return str(found["status"]["phase"])

    await becomes(told, "Pending", what="the pod waits above, too")
    async with descheduler(sandbox, namespace):
        await asyncio.sleep(5)
        assert (await get(upper, namespace, "pod", "main"))["spec"]["nodeName"] == SMALL
    async with descheduler(sandbox, namespace, "--include-failures=image"):
        await run_on(upper, namespace, LARGE, count=1)


async def test_a_bare_pod_that_is_told_apart_by_revision_moves(
    sandbox: Sandbox, upper: Cluster, namespace: str
) -> None:
    """What matchLabelKeys have added to a stored pod is not told twice, above or below: the pod would be refused."""
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
