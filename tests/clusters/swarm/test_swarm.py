"""A Swarm over two virtual nodes: at most one owner of each job at any time, whatever fails in between."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from clusterset.model.names import SWARMS
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.commands.helm import NAMESPACE as RELEASE_NAMESPACE
from hack.sandbox.process import Process
from tests.accounts import install_account
from tests.clusters.swarm.node_agent import NodeAgent
from tests.waiting import becomes, create, established, eventually, make_namespace, node_ready

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_LONGEST_GAP = 30.0
"""Seconds on a busy machine; on an idle one at most 5."""
NAMESPACE, SWARM, JOBS = "streams", "feed", [f"stream-{index}" for index in range(20)]


@dataclass
class Scene:
    """Clusters, the controllers, and the workers' processes."""

    sandbox: Sandbox
    agents: list[NodeAgent]
    directory: Path
    account: Path
    """A kubeconfig with the rights and policies of the chart."""
    controllers: list[Process]
    started: int = 0
    jobs: list[str] = field(default_factory=list)
    """Jobs that shall have an owner; empty until all have one for the first time."""
    gaps: dict[str, float] = field(default_factory=dict)
    """Job → the longest time without an owner, in seconds."""

    @property
    def upper(self) -> Cluster:
        return self.sandbox.upper

    async def start_controller(self) -> None:
        self.started += 1
        arguments = [
            f"--kubeconfig={self.account}",
            f"--lease-namespace={RELEASE_NAMESPACE}",
            "--gone-after=3s",
        ]
        arguments += ["--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s"]
        arguments += ["--leader-elect-retry-period=500ms"]
        self.controllers.append(
            await self.sandbox.start_process(
                f"swarm-{self.started}", [sys.executable, "-m", "swarm", *arguments]
            )
        )

    async def replace_controllers(self) -> None:
        """Kill all controllers, the leader included, and start others."""
        for controller in self.controllers:
            await controller.kill()
        self.controllers.clear()
        for _ in range(2):
            await self.start_controller()

    async def scale(self, replicas: int) -> None:
        await self.upper.kubectl(
            "--namespace", NAMESPACE, "scale", "statefulset", "worker", f"--replicas={replicas}"
        )

    async def settled(self, workers: int, jobs: list[str] = JOBS) -> None:
        """Wait until every job is owned, and the Swarm's status agrees; check that nothing was owned twice."""

        async def state() -> Any:
            swarm = await self.upper.api.read(SWARMS.path(namespace=NAMESPACE, name=SWARM))
            found = swarm["status"]
            conditions = {one["type"]: one["status"] for one in found["conditions"]}
            return [found["workerCount"], found["runningCount"], self.owned(jobs), conditions["Converged"]]

        await becomes(state, [workers, len(jobs), len(jobs), "True"], what="every job is owned")
        self.check()
        self.jobs = jobs

    def owned(self, jobs: list[str] = JOBS) -> int:
        """Return the number of jobs that are owned now, which is the number of held locks."""
        return len(self._owned(jobs))

    def _owned(self, jobs: list[str]) -> set[str]:
        # Locking a file to find out would make a consumer fail that starts at this moment.
        locks = [line.split() for line in Path("/proc/locks").read_text("utf-8").splitlines()]
        held = {fields[5].rpartition(":")[2] for fields in locks if fields[1] == "FLOCK"}
        files = {job: self.directory / f"{job}.lock" for job in jobs}
        return {job for job, file in files.items() if file.exists() and str(file.stat().st_ino) in held}

    async def watch(self) -> None:
        """Measure the times without an owner until cancelled."""
        since: dict[str, float] = {}
        while True:
            now, owned = time.monotonic(), self._owned(self.jobs)
            for job in owned | (since.keys() - self.jobs):
                since.pop(job, None)
            for job in set(self.jobs) - owned:
                self.gaps[job] = max(self.gaps.get(job, 0.0), now - since.setdefault(job, now))
            await asyncio.sleep(0.05)

    def check(self) -> None:
        violations = self.directory / "violations"
        assert not violations.exists(), violations.read_text(encoding="utf-8")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Two lower clusters, two controllers, a StatefulSet of three workers and a Swarm."""
    directory = tmp_path_factory.mktemp("swarm")
    async with Sandbox(lower=2, kwok_nodes=0) as sandbox, contextlib.AsyncExitStack() as stack:
        upper = sandbox.upper
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(sandbox)), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        account = await install_account(sandbox, "swarm")
        agents = [NodeAgent(cluster, upper, directory, swarm=SWARM) for cluster in sandbox.lower]
        for agent in agents:
            await stack.enter_async_context(agent.running())
            await node_ready(upper, f"vn-{agent.lower.name}")
        scene = Scene(sandbox, agents, directory, account, [])
        await scene.start_controller()
        await scene.start_controller()
        await make_namespace(upper, NAMESPACE)
        await established(upper, SWARMS)
        await create(upper, NAMESPACE, _stateful_set())
        await upper.api.create(SWARMS.path(namespace=NAMESPACE), _swarm())
        watch = asyncio.create_task(scene.watch())
        yield scene
        watch.cancel()
        await asyncio.wait([watch])


async def test_each_job_has_one_owner_at_any_time(scene: Scene):
    """Scaling, killed workers, deleted pods, killed controllers, a changed list and a partition."""
    await scene.settled(3)
    await scene.scale(7)
    await scene.settled(7)
    await scene.replace_controllers()
    await scene.scale(2)
    await scene.settled(2)
    await scene.scale(4)
    await scene.settled(4)

    assert any(agent.kill("worker-1") for agent in scene.agents)
    await scene.settled(4)
    await scene.upper.kubectl("--namespace", NAMESPACE, "delete", "pod", "worker-2", "--wait=false")
    await scene.replace_controllers()
    await scene.settled(4)

    fewer = scene.jobs = JOBS[5:]
    await _set_jobs(scene, fewer)
    await scene.settled(4, fewer)
    await _set_jobs(scene, JOBS)
    await scene.settled(4)

    await _lose_a_cluster(scene)
    logging.getLogger(__name__).info("longest time without an owner: %.1f s", max(scene.gaps.values()))
    assert max(scene.gaps.values()) < _LONGEST_GAP, scene.gaps


async def _lose_a_cluster(scene: Scene) -> None:
    """Cut a lower cluster off; check that its workers keep their jobs until they are known to have ended."""
    agent = scene.agents[1]
    mine = {one.name for one in agent.processes.values() if one.process.returncode is None}
    assert mine
    apiserver = next(one for one in agent.lower.processes if one.name.endswith("apiserver"))
    await agent.link.cut()
    with _suspended(apiserver):
        await scene.upper.kubectl("--namespace", NAMESPACE, "delete", "pod", *sorted(mine), "--wait=false")

        async def revoked() -> bool:
            swarm = await scene.upper.api.read(SWARMS.path(namespace=NAMESPACE, name=SWARM))
            return any(worker.get("stopping") for worker in swarm["status"]["workers"])

        await eventually(revoked, what="the jobs of the lost workers are assigned to others")
        # It is unknown whether they still run, so no other worker may start them; they do run.
        assert scene.owned() == len(JOBS)
        scene.check()
    await agent.link.start()
    await scene.settled(4)


async def _set_jobs(scene: Scene, jobs: list[str]) -> None:
    patch = json.dumps({"spec": {"jobs": [{"name": job} for job in jobs]}})
    await scene.upper.kubectl(
        "--namespace", NAMESPACE, "patch", "swarm", SWARM, "--type=merge", f"--patch={patch}"
    )


@contextlib.contextmanager
def _suspended(process: Process) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def _swarm() -> dict[str, Any]:
    return {
        "apiVersion": SWARMS.api_version,
        "kind": SWARMS.kind,
        "metadata": {"name": SWARM},
        "spec": {
            "workers": {"statefulSet": "worker"},
            "jobs": [{"name": job} for job in JOBS],
            "unreadyGraceSeconds": 3,
        },
    }


def _stateful_set() -> dict[str, Any]:
    labels = {"app": "worker", "namespace": NAMESPACE}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "worker"},
        "spec": {
            "replicas": 3,
            "serviceName": "worker",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "worker"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 20,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "worker", "image": "none"}],
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": "kubernetes.io/hostname",
                            "whenUnsatisfiable": "DoNotSchedule",
                            "labelSelector": {"matchLabels": {"app": "worker"}},
                        }
                    ],
                },
            },
        },
    }
