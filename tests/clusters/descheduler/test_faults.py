"""Kills, lost clusters and preemption: every pod is recreated exactly once."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
from typing import Any

from clusterset.model import names
from hack.sandbox import Cluster, Sandbox
from tests.clusters.descheduler.setup import (
    LARGE,
    SMALL,
    command,
    deployment,
    descheduler,
    events_of,
    no_records,
    pod,
    pods_of,
    refused_below,
    run_on,
)
from tests.waiting import becomes, create, eventually, get, node_ready, ready


async def test_killed_between_delete_and_create(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """Kill -9 of the leader while the old pod ends: the standby creates the new one, exactly once."""
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


async def places_of(upper: Cluster, namespace: str) -> dict[str, set[str]]:
    """Return phase and node of the pods that are not ending, by their label app."""
    found: dict[str, set[str]] = {}
    for item in await pods_of(upper, namespace):
        where = found.setdefault(item["metadata"]["labels"]["app"], set())
        where.add(f"{item['status']['phase']} on {item['spec'].get('nodeName')}")
    return found


async def test_pods_of_a_lost_cluster_move_once(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """Without a lower node at once; running ones later, if there is room and the budget allows it. None runs twice."""
    lost = sandbox.lower[1]
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "owned"}}},
    }
    nowhere = {"clusterSelector": json.dumps({"nodeSelector": {"no": "node"}})}
    await create(
        upper,
        namespace,
        budget,
        deployment("owned", replicas=2, cpu="100m", prefer=LARGE),
        pod("bare", cpu="100m", prefer=LARGE),
        pod("large", cpu="3980m", prefer=LARGE),
    )
    await run_on(upper, namespace, LARGE, count=4)
    await create(upper, namespace, pod("waits", cpu="50m", prefer=LARGE, annotations=nowhere))
    await refused_below(upper, namespace)

    there, here = {f"Running on {LARGE}"}, {f"Running on {SMALL}"}
    stay = {"large": there, "waits": {f"Pending on {SMALL}"}}
    places = functools.partial(places_of, upper, namespace)
    flags = ("--unschedulable-threshold=10m", "--move-running-after")
    async with descheduler(sandbox, namespace, *flags, "10m"):
        await asyncio.sleep(1)
        await lost.apiserver.kill()
        await becomes(places, {"owned": there, "bare": there, **stay}, what="the waiting pod moved")
        taints = (await get(upper, "", "node", LARGE))["spec"]["taints"]
        assert names.TAINT_STALE_CLUSTER in {taint["key"] for taint in taints}
        _, text = await command(upper, "status")
        assert re.search(r"silent for \d+ s; running pods move in \d+ s", text)
    async with descheduler(sandbox, namespace, *flags, "1s"):
        try:
            await becomes(places, {"owned": there, "bare": here, **stay}, what="the bare pod moved")

            async def budget_is_observed() -> bool:
                return bool(await events_of(upper, namespace, "RescheduleDelayed"))

            await eventually(budget_is_observed, what="a refused eviction")
            assert (await places())["owned"] == there
            await upper.kubectl("-n", namespace, "delete", "pdb", "all")
            await becomes(places, {"owned": here, "bare": here, **stay}, what="all pods with room moved")
            (why,) = await events_of(upper, namespace, "NotRescheduled")
            assert why == f"Stays: no other ready virtual node has room for it: {SMALL} lacks cpu"
            await upper.kubectl("-n", namespace, "delete", "pod", "waits")
        finally:
            await lost.restore()
        moved = {item["metadata"]["uid"] for item in await pods_of(upper, namespace)}
        await node_ready(upper, LARGE)

        async def healed() -> bool:
            taints = (await get(upper, "", "node", LARGE))["spec"].get("taints") or ()
            return all(taint["key"] != names.TAINT_STALE_CLUSTER for taint in taints)

        await eventually(healed, what="the taint gone")
        assert (
            names.ANNOTATION_SILENCE not in (await get(upper, "", "node", LARGE))["metadata"]["annotations"]
        )

        async def left() -> list[str]:
            return [item["metadata"]["name"] for item in (await get(lost, namespace, "pods"))["items"]]

        await becomes(left, ["large"], what="moved pods gone from the cluster that was lost")
        await asyncio.sleep(3)
        assert {item["metadata"]["uid"] for item in await pods_of(upper, namespace)} == moved
        # The recovered cluster is used again.
        late = pod("late", cpu="100m")
        # It moves rather than waits until the last lower node is Ready again.
        late["spec"]["nodeSelector"] = {"kubernetes.io/hostname": LARGE}
        await create(upper, namespace, late)
        await ready(upper, namespace, "late")


async def test_stock_preemption(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """A high-priority pod that fits no virtual node preempts in the upper cluster; the lower victim ends and it runs."""
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
    lower_pods = await pods_of(sandbox.lower[0], namespace)
    assert len(lower_pods) == 2
    assert "important" in {item["metadata"]["name"] for item in lower_pods}


async def test_killed_every_second(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """Forty bare pods and a descheduler that is killed repeatedly: every pod is recreated exactly once."""
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
    lower_pods = await pods_of(sandbox.lower[1], namespace)
    assert sorted(item["metadata"]["name"] for item in lower_pods) == [
        body["metadata"]["name"] for body in bodies
    ]
