"""An installation without control planes: daemons against API servers in memory, so that only the daemons are measured.

The API servers (``memory_server``) are in the benchmark's process. Lower cluster i is ``lower-i``, its virtual node ``vn-i``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from clusterset.model.pod.conditions import is_true
from controller_runtime.process import lifecycle
from controller_runtime.tls import key_pairs
from controller_runtime.tls.pem import KeyPair
from hack.sandbox.nodes.kwok import kwok_node
from hack.sandbox.ports import free_ports
from tests.background import working
from tests.benchmarks.canned_pods import NAMESPACE, replica
from tests.benchmarks.memory_server import KwokNodes, MemoryServer
from tests.benchmarks.stage import until
from tests.fakes.apiserver.storage import Commit
from tests.kubeconfigs import whole, write
from tests.serving import served, server_context

LIMIT = 3600.0
"""Seconds after which a wait fails."""
_HOST, _UPPER = "127.0.0.1", "upper"
_COMMITS = 20_000
"""Number of changes of a resource that an API server keeps for watches that begin later."""


class Installation:
    """The API servers of one upper and several lower clusters, and the daemons that connect them."""

    def __init__(self, folder: Path, lower: int) -> None:
        self.upper = MemoryServer(_UPPER)
        self.lower = [MemoryServer(f"lower-{number}") for number in range(lower)]
        self.servers = {server.storage.name: server for server in (self.upper, *self.lower)}
        self.running: set[str] = set()
        """Keys of the upper pods that run."""
        self._folder = folder
        self.upper.storage.observers.append(self._changed)

    def _changed(self, commit: Commit) -> None:
        if commit.plural == "pods":
            is_running = commit.new is not None and (commit.new.get("status") or {}).get("phase") == "Running"
            (self.running.add if is_running else self.running.discard)(commit.key)

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return the configuration of a daemon with a free port for its metrics, and further fields."""
        return {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(self._folder / _UPPER),
            "kubelet": {"address": _HOST, "port": 0},
            "metricsAddress": f"{_HOST}:{free_ports(1)[0]}",
            "clusters": [
                {
                    "name": server.storage.name,
                    "kubeconfig": str(self._folder / server.storage.name),
                    "nodeName": f"vn-{number}",
                    "namespaces": {"adopt": ["*"]},
                    "cacheBytes": 2**30,
                }
                for number, server in enumerate(self.lower)
            ],
            **others,
        }

    @contextlib.asynccontextmanager
    async def daemon(self, tree: Path, settings: Mapping[str, Any]) -> AsyncIterator[Process]:
        """Run the daemon of a checkout until the block ends. Its bytecode is cached before, as in the image."""
        file = self._folder / f"{settings['metricsAddress']}.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / f"life{tree}"),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        run = partial(asyncio.create_subprocess_exec, sys.executable, env=environment, cwd=tree)
        await (await run("-c", "import virtual_node.app")).wait()
        process = await run("-m", "virtual_node", "--config", str(file), "--log-level=error")
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()

    async def ready(self) -> None:
        """Wait until every virtual node is Ready."""
        nodes = self.upper.storage
        names = [f"vn-{number}" for number in range(len(self.lower))]
        await self.until(
            lambda: all(is_true((nodes.find("nodes", name) or {}).get("status"), "Ready") for name in names)
        )

    def requests(self) -> Counter[str]:
        """Return the number of requests by cluster, verb and resource, without watches."""
        return Counter(
            {
                f"{name} {row}": number
                for name, server in self.servers.items()
                for row, number in server.requests.items()
            }
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds."""

        async def check() -> bool:
            return holds()

        await until(check, seconds=LIMIT)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to the server that its path names."""
        return await self.servers[request.match_info["cluster"]].answer(request)

    def fill(self, port: int, pair: KeyPair) -> None:
        """Write the kubeconfigs, and store what exists in the clusters before a daemon starts."""
        ca = pair.certificate.decode()
        for name in self.servers:
            authority = base64.b64encode(pair.certificate).decode()
            cluster = {"server": f"https://{_HOST}:{port}/{name}", "certificate-authority-data": authority}
            write(self._folder / name, whole(cluster=cluster, user={"token": "t"}))
        for namespace in (NAMESPACE, "kube-node-lease"):
            self.upper.storage.put(
                "namespaces", {"metadata": {"name": namespace}, "status": {"phase": "Active"}}
            )
        metadata = {"namespace": NAMESPACE}
        bundle = {"metadata": {"name": "kube-root-ca.crt", **metadata}, "data": {"ca.crt": ca}}
        self.upper.storage.put("configmaps", bundle)
        self.upper.storage.put("serviceaccounts", {"metadata": {"name": "default", **metadata}})
        node = kwok_node("node-0", pods=100_000)
        node["status"] |= {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.34.4"},
        }
        for server in self.lower:
            server.storage.put("nodes", node)

    async def forget(self) -> None:
        """Drop old changes until cancelled; each has a copy of its object."""
        while True:
            await asyncio.sleep(1.0)
            for server in self.servers.values():
                for changes in server.storage.history.values():
                    del changes[:-_COMMITS]


@contextlib.asynccontextmanager
async def installation(*, clusters: int) -> AsyncIterator[Installation]:
    """Serve the API servers until the block ends."""
    pair = key_pairs.self_signed("localhost", hosts=[_HOST])
    with tempfile.TemporaryDirectory() as folder:
        at = Installation(Path(folder), clusters)
        route = web.route("*", "/{cluster}/{path:.*}", at.answer)
        tls = server_context(pair)
        async with (
            served(route, tls=tls, shutdown_timeout=0.1, handler_cancellation=True) as port,
            contextlib.AsyncExitStack() as stack,
        ):
            at.fill(port, pair)
            lifecycle.tune_gc()  # or collections of many objects would stop the API servers for seconds
            for work in (at.forget(), *(KwokNodes(server).run() for server in at.lower)):
                await stack.enter_async_context(working(work))
            yield at


def pod(number: int, *, node: str = "vn-0") -> dict[str, Any]:
    """Return a pod with the volume of its token, as the API server completes it."""
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    volume = f"kube-api-access-{number:05d}"
    mount = {"name": volume, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    return replica(
        f"web-7d4b9c6f5-{number:05d}",
        node,
        container={"volumeMounts": [mount]},
        enableServiceLinks=True,
        priority=0,
        tolerations=[{"operator": "Exists"}],
        volumes=[{"name": volume, "projected": {"defaultMode": 420, "sources": sources}}],
    )
