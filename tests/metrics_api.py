"""A metrics API (``metrics.k8s.io``) whose figures a test chooses, behind a real API server's aggregation layer.

It serves v1. metrics-server 0.9, which other tests run, serves v1beta1.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from aiohttp import web

from controller_runtime.apimachinery.timestamps import micro_time
from hack.sandbox import Cluster
from hack.sandbox.components.metrics_server import register_metrics_api
from tests.serving import served

_VERSION = "v1"
_GROUP_VERSION = f"metrics.k8s.io/{_VERSION}"


class MetricsApi:
    """Serves the usage of nodes.

    Attributes:
        nodes: by name: CPU in thousandths and memory in MiB. None: the API answers 503.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[int, int]] | None = {}

    async def answer(self, request: web.Request) -> web.Response:
        """Answer discovery and the list of nodes."""
        if request.path == f"/apis/{_GROUP_VERSION}":
            return web.json_response(
                {"kind": "APIResourceList", "groupVersion": _GROUP_VERSION, "resources": []}
            )
        if self.nodes is None:
            return web.json_response({"kind": "Status", "code": 503}, status=503)
        now = micro_time(datetime.now(UTC))
        items = [
            {
                "metadata": {"name": name},
                "timestamp": now,
                "window": "10s",
                "usage": {"cpu": f"{cpu * 1_000_000}n", "memory": f"{memory}Mi"},
            }
            for name, (cpu, memory) in self.nodes.items()
        ]
        return web.json_response({"kind": "NodeMetricsList", "apiVersion": _GROUP_VERSION, "items": items})


@contextlib.asynccontextmanager
async def serving(cluster: Cluster, address: str) -> AsyncIterator[MetricsApi]:
    """Serve one to a cluster, at an address of this machine that is not a loopback one, until the block ends."""
    api = MetricsApi()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cluster.pki.certificate("apiserver"), cluster.pki.key("apiserver"))
    async with served(web.get("/{path:.*}", api.answer), address=address, tls=context) as port:
        await register_metrics_api(cluster, address, port, version=_VERSION)
        yield api
