"""Slots of Deployments, lists in ConfigMaps, deletion, and what the API server refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Invalid
from hack.sandbox import Cluster, Sandbox
from swarm import crd
from swarm.spec import SWARMS
from swarm.worker import Job, Settings, Worker
from tests.waiting import becomes, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]
NAMESPACE = "default"


class Pods:
    """Runs a worker of the library in this process for each pod with a label ``swarm``."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self._cluster = cluster
        self._client = client
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self.running: dict[str, set[str]] = {}
        """By pod UID."""

    async def follow(self) -> None:
        """Work until cancelled. The worker of a deleted pod ends without a message, as a killed one does."""
        while True:
            with contextlib.suppress(ApiError):
                pods = (await self._client.list(resources.PODS, label_selector="swarm")).items
                present = {pod.uid: pod for pod in pods if pod.metadata.deletion_timestamp is None}
                for uid in self._tasks.keys() - present.keys():
                    self._tasks.pop(uid).cancel()
                    del self.running[uid]
                for uid, pod in present.items():
                    if uid not in self._tasks and (pod.status or {}).get("phase") == "Running":
                        self.running[uid] = set()
                        self._tasks[uid] = asyncio.create_task(self._run(pod.name, uid, pod.labels["swarm"]))
            await asyncio.sleep(0.1)

    async def _run(self, name: str, uid: str, swarm: str) -> None:
        running = self.running[uid]

        async def start(job: Job) -> None:
            running.add(job.name)

        async def stop(job: Job) -> None:
            running.discard(job.name)

        pki = self._cluster.pki
        settings = Settings(
            swarm=swarm,
            namespace=NAMESPACE,
            worker=name,
            pod_uid=uid,
            api_server=str(self._cluster.server),
            ca_file=str(self._cluster.ca),
            client_cert_file=str(pki.certificate("admin")),
            client_key_file=str(pki.key("admin")),
            http_port=0,
        )
        await Worker(start, stop, settings).run()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    """A cluster with a simulated node, and the controller."""
    async with Sandbox(lower=1, kwok_nodes=1) as sandbox:
        cluster = sandbox.lower[0]
        await cluster.apply(crd.definition())
        await cluster.kubectl("wait", "--for=condition=established", f"crd/{SWARMS.qualified}")
        await sandbox.start_process(
            "swarm",
            [
                *(sys.executable, "-m", "swarm", f"--kubeconfig={cluster.kubeconfig}"),
                *("--leader-elect=false", "--gone-after=2s"),
            ],
        )
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of it."""
    async with Client(await kubeconfig.load(str(cluster.kubeconfig)), qps=0) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def pods(cluster: Cluster, client: Client) -> AsyncIterator[Pods]:
    """The workers' processes."""
    pods = Pods(cluster, client)
    task = asyncio.create_task(pods.follow())
    yield pods
    task.cancel()
    await asyncio.wait([task])


async def test_slots_lists_and_deletion(client: Client, pods: Pods):
    """A replacement pod takes over its predecessor's jobs; the list is a ConfigMap; deleting stops the jobs."""
    names = [f"job-{index}" for index in range(9)]
    await client.create(
        resources.CONFIG_MAPS,
        {"metadata": {"name": "list"}, "data": {"jobs": "\n".join(names)}},
        namespace=NAMESPACE,
    )
    await client.create(resources.DEPLOYMENTS, _workload("slots", 3), namespace=NAMESPACE)
    await _create(
        client, "slots", {"deployment": "slots"}, jobsFrom={"configMap": {"name": "list"}}, configMap="table"
    )
    await _settled(client, "slots", 3, 9)
    assert sorted(job for running in pods.running.values() for job in running) == names
    before = await _status(client, "slots")
    assert [worker["name"] for worker in before["workers"]] == ["slot-0", "slot-1", "slot-2"]

    table = await client.get(resources.CONFIG_MAPS, "table", namespace=NAMESPACE)
    found = yaml.safe_load(table["data"]["config.yml"])
    assert found["version"] == before["tableVersion"]
    assert {slot: one["jobs"] for slot, one in found["workloads"].items()} == {
        worker["name"]: worker["jobs"] for worker in before["workers"]
    }

    gone = before["workers"][1]
    await client.delete(resources.PODS, gone["pod"], namespace=NAMESPACE, grace_period_seconds=0)

    async def taken_over() -> bool:
        worker = (await _status(client, "slots"))["workers"][1]
        return bool(worker["pod"] != gone["pod"] and worker["jobs"] == gone["jobs"])

    await eventually(taken_over, what="another pod has slot-1 with its jobs")
    await _settled(client, "slots", 3, 9)
    after = await _status(client, "slots")
    assert after["tableVersion"] == before["tableVersion"], "nothing moved"

    await client.delete(resources.CONFIG_MAPS, f"slots.{after['workers'][0]['pod']}", namespace=NAMESPACE)
    await client.patch(resources.CONFIG_MAPS, "list", {"data": {"jobs": "job-0"}}, namespace=NAMESPACE)
    await _settled(client, "slots", 3, 1)
    assert (await _status(client, "slots"))["version"] > after["version"]

    await client.delete(SWARMS, "slots", namespace=NAMESPACE)

    async def left() -> Any:
        return [len((await client.list(SWARMS)).items), sum(map(len, pods.running.values()))]

    await becomes(left, [0, 0], what="the Swarm is gone, and nothing runs")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("a", {"workers": {}}, "set exactly one of statefulSet, deployment, selector"),
        ("a", {"workers": {"statefulSet": "a", "deployment": "b"}}, "set exactly one of"),
        ("a", {"jobs": [], "jobsFrom": {"configMap": {"name": "a"}}}, "set jobs or jobsFrom, not both"),
        ("a", {"fenceSeconds": 3}, "fenceSeconds must be 0 or at least 5"),
        ("a", {"jobs": [{"name": "a"}, {"name": "a"}]}, "Duplicate value"),
        ("a.b", {}, "must be a DNS label"),
        ("a", {"strategy": "Best"}, "Unsupported value"),
    ],
)
async def test_the_api_server_refuses_invalid_specs(client: Client, name, changes, message):
    """By the schema's rules, before the controller sees them."""
    spec = {"workers": {"statefulSet": "a"}, **changes}
    with pytest.raises(Invalid, match=message):
        await client.create(SWARMS, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)


async def _create(client: Client, name: str, workers: dict[str, Any], **spec: Any) -> None:
    body = {"metadata": {"name": name}, "spec": {"workers": workers, "unreadyGraceSeconds": 60, **spec}}
    await client.create(SWARMS, body, namespace=NAMESPACE)


async def _status(client: Client, name: str) -> dict[str, Any]:
    return dict((await client.get(SWARMS, name, namespace=NAMESPACE)).get("status") or {})


async def _settled(client: Client, name: str, workers: int, jobs: int) -> None:
    async def state() -> Any:
        found = await _status(client, name)
        holds = {one["type"]: one["status"] for one in found.get("conditions") or ()}
        fields = ("workerCount", "jobCount", "runningCount")
        return [*(found.get(field) for field in fields), holds.get("Converged"), holds.get("Degraded")]

    await becomes(state, [workers, jobs, jobs, "True", "False"], what=f"Swarm {name} has converged")


def _workload(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name, "swarm": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "worker", "image": "none"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"metadata": {"name": name}, "spec": json.loads(json.dumps(spec))}
