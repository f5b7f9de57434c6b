"""Seconds from a new worker's readiness to the last acknowledgement of all, on a real API server.

``python -m tests.benchmarks.bench_swarm_cluster [--workers 100] [--jobs 1000] [--rounds 20]``. The workers
are those of the library, all in this process; their pods are simulated. Each round makes one worker unready
for longer than its grace period, so that it loses its jobs, then ready again, which starts the measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from typing import Any

from clusterset.model.names import SWARMS
from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from hack.chart.swarm import definition
from hack.sandbox import Cluster, Sandbox
from swarm.worker import Settings, Worker

NAMESPACE, SWARM = "default", "bench"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    asyncio.run(_run(parser.parse_args()))


async def _run(options: argparse.Namespace) -> None:
    async with Sandbox(lower=0, kwok_nodes=0) as sandbox:
        upper = sandbox.upper
        await upper.apply(definition())
        await upper.kubectl("wait", "--for=condition=established", f"crd/{SWARMS.qualified}")
        await sandbox.start_process(
            "swarm",
            [sys.executable, "-m", "swarm", f"--kubeconfig={upper.kubeconfig}", "--leader-elect=false"],
        )
        config = await kubeconfig.load(str(upper.kubeconfig))
        async with Client(config, qps=0) as client, asyncio.TaskGroup() as group:
            names = [f"worker-{index}" for index in range(options.workers)]
            uids = {name: await _pod(client, name) for name in names}
            await client.create(SWARMS, _swarm(options.jobs), namespace=NAMESPACE)
            tasks = [group.create_task(_worker(upper, name, uids[name])) for name in names]
            start = time.monotonic()
            await _converged(client, options.workers, options.jobs)
            print(
                f"{options.workers} workers, {options.jobs} jobs: {time.monotonic() - start:.2f} s to the first division"
            )
            times = []
            for round_ in range(options.rounds):
                name = names[round_ % len(names)]
                await _set_ready(client, name, ready=False)
                await _converged(client, options.workers - 1, options.jobs)
                await _set_ready(client, name, ready=True)
                start = time.monotonic()
                await _converged(client, options.workers, options.jobs)
                times.append(time.monotonic() - start)
            for task in tasks:
                task.cancel()
            cuts = statistics.quantiles(times, n=100, method="inclusive")
            print(
                f"ready → all acknowledged: p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, max {max(times):.2f} s"
            )


async def _worker(upper: Cluster, name: str, uid: str) -> None:
    async def nothing(_: Any) -> None:
        pass

    settings = Settings(
        swarm=SWARM,
        namespace=NAMESPACE,
        worker=name,
        pod_uid=uid,
        api_server=str(upper.server),
        ca_file=str(upper.ca),
        client_cert_file=str(upper.pki.certificate("admin")),
        client_key_file=str(upper.pki.key("admin")),
        http_port=0,
    )
    with contextlib.suppress(asyncio.CancelledError):
        await Worker(nothing, nothing, settings).run()


async def _converged(client: Client, workers: int, jobs: int) -> None:
    while True:
        status = (await client.get(SWARMS, SWARM, namespace=NAMESPACE)).get("status") or {}
        counts = status.get("workerCount"), status.get("runningCount")
        if counts == (workers, jobs) and is_true(status, "Converged"):
            return
        await asyncio.sleep(0.02)


async def _pod(client: Client, name: str) -> str:
    spec = {"containers": [{"name": "worker", "image": "none"}], "schedulerName": "none"}
    body = {"metadata": {"name": name, "labels": {"app": "worker"}}, "spec": spec}
    made = await client.create(resources.PODS, body, namespace=NAMESPACE)
    await _set_ready(client, name, ready=True)
    return str(made["metadata"]["uid"])


async def _set_ready(client: Client, name: str, *, ready: bool) -> None:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    body = {"status": {"phase": "Running", "conditions": conditions}}
    await client.patch(resources.PODS, name, body, namespace=NAMESPACE, subresource="status")


def _swarm(jobs: int) -> dict[str, Any]:
    return {
        "metadata": {"name": SWARM},
        "spec": {
            "workers": {"selector": {"matchLabels": {"app": "worker"}}},
            "jobs": [{"name": f"stream:{index}"} for index in range(jobs)],
            "unreadyGraceSeconds": 0,
        },
    }


if __name__ == "__main__":
    main()
