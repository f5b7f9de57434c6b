"""Slots, lists in ConfigMaps, hand-over, restarts, fences, files, and what the API server refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from clusterset.model.names import SWARMS
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Invalid, NotFound
from controller_runtime.objects import Object, from_dict
from hack.chart.swarm import definition
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from swarm.worker import Job, Settings, Worker
from tests.clusters.pool import Lend
from tests.clusters.swarm.node_agent import Link
from tests.waiting import becomes, established, eventually

pytestmark = pytest.mark.e2e
NAMESPACE = "default"
_FENCE = 8
_BUSY = 16.0
"""Seconds that a busy machine adds to the documented time; an idle one adds less than 0.5 s."""


class Pods:
    """Runs a worker of the library in this process for each pod with a label ``swarm``."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self._cluster = cluster
        self._client = client
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self.running: dict[str, set[str]] = {}
        """Names of running jobs by pod UID."""
        self.links: dict[str, Link] = {}
        """The connection of each pod's worker to the API server, by pod UID."""
        self.doubled: list[str] = []
        """Jobs that were started while another worker ran them."""
        self.interrupted: list[str] = []
        """Jobs that were stopped while no other worker ran them."""

    async def follow(self) -> None:
        """Work until cancelled. The worker of a deleted pod ends at once, without a report, as a killed one does."""
        while True:
            with contextlib.suppress(ApiError):
                pods = (await self._client.list(resources.PODS, label_selector="swarm")).items
                present = {
                    pod.uid: pod
                    for pod in pods
                    if pod.metadata.deletion_timestamp is None or pod.metadata.finalizers
                }
                for uid in self._tasks.keys() - present.keys():
                    self._tasks.pop(uid).cancel()
                    del self.running[uid]
                    await self.links.pop(uid).cut()
                for uid, pod in present.items():
                    if uid not in self._tasks and (pod.status or {}).get("phase") == "Running":
                        self.running[uid] = set()
                        link = self.links[uid] = Link(int(str(self._cluster.server).rpartition(":")[2]))
                        await link.start()
                        settings = self.settings(pod, f"https://127.0.0.1:{link.port}")
                        self._tasks[uid] = asyncio.create_task(self.run(uid, settings))
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """End all workers."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=10)
        for link in self.links.values():
            await link.cut()

    def settings(self, pod: Object, api_server: str) -> Settings:
        """Return the settings of a pod's worker."""
        pki = self._cluster.pki
        return Settings(
            swarm=pod.labels["swarm"],
            namespace=NAMESPACE,
            worker=pod.name,
            pod_uid=pod.uid,
            api_server=api_server,
            ca_file=str(self._cluster.ca),
            client_cert_file=str(pki.certificate("admin")),
            client_key_file=str(pki.key("admin")),
            http_port=0,
        )

    async def run(self, uid: str, settings: Settings) -> None:
        """Run a worker until its pod is deleted."""
        running = self.running.setdefault(uid, set())

        def others() -> set[str]:
            return {name for pod, names in self.running.items() if pod != uid for name in names}

        async def start(job: Job) -> None:
            if job.name in others():
                self.doubled.append(job.name)
            running.add(job.name)

        async def stop(job: Job) -> None:
            if job.name not in others():
                self.interrupted.append(job.name)
            running.discard(job.name)

        await Worker(start, stop, settings, exit_now=lambda _: None).run()


class Controller:
    """The controller's process."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.cluster = sandbox.lower[0]
        self._process: Process | None = None

    async def restart(self) -> None:
        """Kill the process, and start another one."""
        if self._process is not None:
            await self._process.kill()
        options = [f"--kubeconfig={self.cluster.kubeconfig}", "--leader-elect=false", "--gone-after=2s"]
        self._process = await self._sandbox.start_process("swarm", [sys.executable, "-m", "swarm", *options])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def controller(simulated: Lend) -> AsyncIterator[Controller]:
    """The controller of a cluster with a simulated node."""
    async with simulated(lower=1) as sandbox:
        cluster = sandbox.lower[0]
        await cluster.apply(definition())
        await established(cluster, SWARMS)
        controller = Controller(sandbox)
        await controller.restart()
        yield controller


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(controller: Controller) -> Cluster:
    """The controller's cluster."""
    return controller.cluster


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of it."""
    async with Client(await kubeconfig.load(str(cluster.kubeconfig)), qps=0) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def pods(cluster: Cluster, client: Client) -> AsyncIterator[Pods]:
    """The workers' processes."""
    pods = Pods(cluster, client)
    task = asyncio.create_task(pods.follow())
    yield pods
    for swarm in (await client.list(SWARMS)).items:  # a failed test must not fail the next ones
        await _remove(client, swarm.name)
    task.cancel()
    await asyncio.wait([task])
    await pods.close()


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
    await client.delete(resources.DEPLOYMENTS, "slots", namespace=NAMESPACE, propagation_policy="Background")


async def test_overlap_starts_jobs_before_it_stops_them(client: Client, pods: Pods):
    """While workers are added, no job is stopped before another worker runs it."""
    await client.create(resources.DEPLOYMENTS, _workload("overlap", 1), namespace=NAMESPACE)
    await _create(client, "overlap", {"deployment": "overlap"}, jobs=_jobs(12), handover="Overlap")
    await _settled(client, "overlap", 1, 12)
    (first,) = pods.running
    await client.patch(resources.DEPLOYMENTS, "overlap", {"spec": {"replicas": 3}}, namespace=NAMESPACE)
    await _settled(client, "overlap", 3, 12)
    assert sorted(map(len, pods.running.values())) == [4, 4, 4]
    # More than eight if one of the new workers starts before the other, because then jobs move between these, too.
    moved = set().union(*(names for uid, names in pods.running.items() if uid != first))
    assert len(moved) == 8
    assert moved <= set(pods.doubled), "each moved job ran twice for a moment"
    assert pods.interrupted == []
    await _remove(client, "overlap")


async def test_restart_replaces_workers_one_after_the_other(client: Client, pods: Pods):
    """With ``refresh: Restart`` each pod that has another share is evicted once, and at most one is missing."""
    await client.create(resources.DEPLOYMENTS, _workload("waves", 2), namespace=NAMESPACE)

    async def ready() -> Any:
        deployment = await client.get(resources.DEPLOYMENTS, "waves", namespace=NAMESPACE)
        return deployment["status"].get("readyReplicas")

    await becomes(ready, 2, what="the pods are ready, so that each gets its final share at once")
    await _create(client, "waves", {"deployment": "waves"}, jobs=_jobs(4), refresh="Restart")
    await _settled(client, "waves", 2, 4)
    before = set(pods.running)
    seen = set(before)
    fewest = len(before)

    async def replaced() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum(bool(names) for names in pods.running.values()))
        seen.update(pods.running)
        return not before & pods.running.keys()

    await client.patch(SWARMS, "waves", {"spec": {"jobs": _jobs(6)}}, namespace=NAMESPACE)
    await eventually(replaced, what="each pod was replaced")
    await _settled(client, "waves", 2, 6)
    assert len(before) == 2
    assert seen | pods.running.keys() == before | pods.running.keys(), "no replacement was evicted"
    assert fewest == 1
    assert pods.doubled == []
    await _remove(client, "waves")


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "controller restarted"])
@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "unready"])
async def test_jobs_of_an_unreachable_worker_move_after_the_fence_time(
    client: Client, pods: Pods, controller: Controller, *, is_ready: bool, is_restarted: bool
):
    """Also while its pod is ready, and within the grace period. After a restart, the controller counts again."""
    await client.create(resources.DEPLOYMENTS, _workload("fenced", 3), namespace=NAMESPACE)
    await _create(client, "fenced", {"deployment": "fenced"}, jobs=_jobs(6), fenceSeconds=_FENCE)
    await _settled(client, "fenced", 3, 6)
    name = (await _status(client, "fenced"))["workers"][0]["pod"]
    lost = from_dict(await client.get(resources.PODS, name, namespace=NAMESPACE)).uid
    await pods.links[lost].cut()
    if not is_ready:
        await _set_ready(client, name, "False")  # as the node controller does for an unreachable node
    if is_restarted:
        await controller.restart()
    since = time.monotonic()

    async def owned() -> list[int]:
        return [len(pods.running[lost]), sum(map(len, pods.running.values()))]

    await becomes(owned, [0, 6], what="the other workers run the jobs of the lost one")
    seconds = time.monotonic() - since
    logging.getLogger(__name__).info("new owners after %.1f s", seconds)
    assert seconds < 1.25 * _FENCE + _BUSY
    assert pods.doubled == []
    assert (await _status(client, "fenced"))["workerCount"] == 2

    await pods.links[lost].start()
    await _set_ready(client, name, "True")
    await _settled(client, "fenced", 3, 6)
    assert sorted(map(len, pods.running.values())) == [2, 2, 2]
    assert pods.doubled == []
    await _remove(client, "fenced")


async def test_a_share_above_one_mebibyte_is_split(client: Client, pods: Pods):
    """One worker runs 1,100 jobs with long names, from two ConfigMaps."""
    names = [f"{number:04}-{'x' * 995}" for number in range(1100)]
    for part in range(2):
        metadata = {"name": f"long-{part}", "labels": {"list": "long"}}
        data = {"jobs": "\n".join(names[part::2])}
        await client.create(resources.CONFIG_MAPS, {"metadata": metadata, "data": data}, namespace=NAMESPACE)
    await client.create(resources.DEPLOYMENTS, _workload("long", 1), namespace=NAMESPACE)
    selector = {"selector": {"matchLabels": {"list": "long"}}}
    await _create(client, "long", {"deployment": "long"}, jobsFrom=selector)
    await _settled(client, "long", 1, 1100)
    shares = await client.list(resources.CONFIG_MAPS, label_selector="swarm.virtual-node.io/swarm=long")
    assert len(shares.items) == 2
    (running,) = pods.running.values()
    assert sorted(running) == names
    await _remove(client, "long")


async def test_workers_that_read_a_file_report_over_http(client: Client, pods: Pods, tmp_path: Path):
    """The controller reads the reports of workers that have no API server, only a mounted ConfigMap."""
    port = free_ports(1)[0]
    # With hostNetwork the simulated node gives the pod its own address, 127.0.0.1.
    spec = {"containers": [{"name": "worker", "image": "none"}], "hostNetwork": True}
    body = {"metadata": {"name": "reader", "labels": {"app": "reader"}}, "spec": spec}
    pod = from_dict(await client.create(resources.PODS, body, namespace=NAMESPACE))
    settings = Settings(swarm="reader", worker="reader", pod_uid=pod.uid, file=str(tmp_path), http_port=port)
    worker = asyncio.create_task(pods.run(pod.uid, settings))
    workers = {"selector": {"matchLabels": {"app": "reader"}}, "httpPort": port}
    await _create(client, "reader", workers, jobs=_jobs(3), configMap="mounted")

    async def running() -> list[str]:
        """Write the ConfigMap's keys as the kubelet does, and return the running jobs."""
        with contextlib.suppress(NotFound):
            mounted = await client.get(resources.CONFIG_MAPS, "mounted", namespace=NAMESPACE)
            for name, text in (mounted.get("data") or {}).items():
                (tmp_path / name).write_text(text, encoding="utf-8")
        return sorted(pods.running[pod.uid])

    await becomes(running, ["job-0", "job-1", "job-2"], what="the worker runs the jobs of its file")
    await _settled(client, "reader", 1, 3)
    await client.delete(SWARMS, "reader", namespace=NAMESPACE)
    await becomes(running, [], what="the worker has stopped its jobs")
    await _absent(client, "reader")
    worker.cancel()
    await asyncio.wait([worker])
    await client.delete(resources.PODS, "reader", namespace=NAMESPACE, grace_period_seconds=0)


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


def _jobs(count: int) -> list[dict[str, str]]:
    return [{"name": f"job-{number}"} for number in range(count)]


async def _set_ready(client: Client, pod: str, status: str) -> None:
    body = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    await client.patch(resources.PODS, pod, body, namespace=NAMESPACE, subresource="status")


async def _remove(client: Client, name: str) -> None:
    """Delete a Swarm and its workers."""
    await client.delete(SWARMS, name, namespace=NAMESPACE)
    await _absent(client, name)
    await client.delete(resources.DEPLOYMENTS, name, namespace=NAMESPACE, propagation_policy="Background")

    async def pods() -> int:
        return len((await client.list(resources.PODS, label_selector=f"swarm={name}")).items)

    await becomes(pods, 0, what="its pods are gone")


async def _absent(client: Client, name: str) -> None:
    async def left() -> list[str]:
        return [found.name for found in (await client.list(SWARMS)).items]

    await becomes(left, [], what=f"Swarm {name} is gone")


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
