"""A simulated kubelet: a node of a lower cluster, with a real process for each pod.

kwok would delete pods at once, also those with finalizers. Here, as with a kubelet, a pod's process ends
first, then it gets its final status, then its object is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, NotFound
from controller_runtime.objects import Object
from hack.sandbox import Cluster
from hack.sandbox.nodes.kwok import kwok_node
from tests.background import working

CONSUMER = Path(__file__).with_name("consumer.py")
_RENEW = 5.0
_UPPER_UID = "virtual-node.io/upper-uid"


class Link:
    """The connection of one lower cluster's pods to the upper API server, which can be cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen on the same port as the first time."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """End all connections and accept none."""
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upper_reader, upper_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, upper_writer}
        self._open |= both
        try:
            await asyncio.gather(_copy(reader, upper_writer), _copy(upper_reader, writer))
        finally:
            self._open -= both
            for one in both:
                one.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


@dataclass
class Running:
    """A pod's process."""

    process: asyncio.subprocess.Process
    name: str
    ending: bool = False


class NodeAgent:
    """Starts and ends the processes of one lower cluster's pods."""

    def __init__(self, lower: Cluster, upper: Cluster, directory: Path, *, swarm: str) -> None:
        self.lower = lower
        self._upper = upper
        self._directory = directory
        self._swarm = swarm
        self.link = Link(int(str(upper.server).rpartition(":")[2]))
        self.processes: dict[str, Running] = {}
        """By lower pod UID."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.link.start()
        config = await kubeconfig.load(str(self.lower.kubeconfig))
        try:
            async with Client(config, qps=0) as client, working(self._work(client)):
                yield
        finally:
            await self.link.cut()
            for one in self.processes.values():
                with contextlib.suppress(ProcessLookupError):
                    one.process.kill()

    def kill(self, name: str) -> bool:
        """Kill a pod's process; it is restarted as a container is."""
        found = [one for one in self.processes.values() if one.name == name]
        for one in found:
            one.process.kill()
        return bool(found)

    async def _work(self, client: Client) -> None:
        node = f"{self.lower.name}-agent"
        await client.create(resources.NODES, kwok_node(node))
        renewed = 0.0
        while True:
            try:
                async with asyncio.timeout(5):
                    if time.monotonic() - renewed > _RENEW:
                        await self._renew(client, node)
                        renewed = time.monotonic()
                    pods = await client.list(resources.PODS, field_selector=f"spec.nodeName={node}")
                for pod in pods.items:
                    await self._look(client, pod)
            except (ApiError, TimeoutError):
                # The lower API server is unreachable: processes keep running.
                pass
            await asyncio.sleep(0.2)

    @staticmethod
    async def _renew(client: Client, node: str) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        await client.patch(resources.NODES, node, {"status": {"conditions": [ready]}}, subresource="status")
        now = datetime.now(UTC)
        spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": timestamps.micro_time(now)}
        body = {"metadata": {"name": node, "namespace": "kube-node-lease"}, "spec": spec}
        try:
            await client.patch(resources.LEASES, node, body, namespace="kube-node-lease")
        except NotFound:
            await client.create(resources.LEASES, body)

    async def _look(self, client: Client, pod: Object) -> None:
        running = self.processes.get(pod.uid)
        ended = running is not None and running.process.returncode is not None
        if pod.metadata.deletion_timestamp is not None:
            if running is None or ended:
                await _set_status(client, pod, phase="Failed")
                await client.delete(
                    resources.PODS, pod.name, namespace=pod.namespace, uid=pod.uid, grace_period_seconds=0
                )
                self.processes.pop(pod.uid, None)
            elif not running.ending:
                running.ending = True
                running.process.send_signal(signal.SIGTERM)
        elif running is None or (ended and not running.ending):
            self.processes[pod.uid] = Running(await self._start(pod), pod.name)
            await _set_status(client, pod, phase="Running")

    async def _start(self, pod: Object) -> asyncio.subprocess.Process:
        pki = self._upper.pki
        command = f"{sys.executable} -I -S {CONSUMER} {self._directory} {{job}} {{token}}"
        arguments = {
            "exec": command,
            "swarm": self._swarm,
            "namespace": pod.labels["namespace"],
            "worker": pod.name,
            "pod-uid": pod.labels[_UPPER_UID],
            "api-server": f"https://127.0.0.1:{self.link.port}",
            "ca-file": str(self._upper.ca),
            "client-cert-file": str(pki.certificate("admin")),
            "client-key-file": str(pki.key("admin")),
            "http-port": "0",
            "drain-seconds": "5",
        }
        log = (self._directory / f"{pod.name}.log").open("ab")
        with log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "swarm",
                "worker",
                *(f"--{name}={value}" for name, value in arguments.items()),
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                cwd=Path(__file__).parents[3],
            )


async def _set_status(client: Client, pod: Object, *, phase: str) -> None:
    runs = phase == "Running"
    now = timestamps.rfc3339(datetime.now(UTC))
    state = {"running": {"startedAt": now}} if runs else {"terminated": {"exitCode": 143, "finishedAt": now}}
    conditions = [
        {"type": kind, "status": str(runs)} for kind in ("PodScheduled", "Ready", "ContainersReady")
    ]
    container = {"name": "worker", "image": "none", "imageID": "", "restartCount": 0}
    status = {
        "phase": phase, "startTime": now, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": conditions, "containerStatuses": [{**container, "ready": runs, "state": state}],
    }  # fmt: skip
    body = {"metadata": {"uid": pod.uid}, "status": status}
    with contextlib.suppress(NotFound):
        await client.patch(resources.PODS, pod.name, body, namespace=pod.namespace, subresource="status")
