"""A Prometheus whose figures a test chooses, behind a Service of a real cluster. Answers have Prometheus 3's form."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator

from aiohttp import web

from hack.sandbox import Cluster
from tests.serving import served
from tests.workloads import manifest

SERVICE = "monitoring/prometheus:9090"
_CPU, _MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"


class PrometheusApi:
    """Answers the default queries for the usage of nodes.

    Attributes:
        nodes: by name: CPU in thousandths and memory in MiB. None: the server answers 503, as while it starts.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[int, int]] | None = {}

    async def answer(self, request: web.Request) -> web.Response:
        query = request.query.get("query", "")
        if self.nodes is None:
            return web.Response(text="Service Unavailable", status=503)
        if query.count("(") != query.count(")"):
            text = 'invalid parameter "query": 1:1: parse error: unexpected end of input'
            return web.json_response({"status": "error", "errorType": "bad_data", "error": text}, status=400)
        found: dict[str, float] = {}
        if _CPU in query:
            found = {name: cpu / 1000 for name, (cpu, _) in self.nodes.items()}
        elif _MEMORY in query:
            found = {name: memory * 2**20 for name, (_, memory) in self.nodes.items()}
        values = {name: str(value) for name, value in found.items()}
        if values:
            values |= {"without-samples": "NaN"}
        result = [{"metric": {"node": name}, "value": [time.time(), text]} for name, text in values.items()]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


@contextlib.asynccontextmanager
async def serving(cluster: Cluster, address: str) -> AsyncIterator[PrometheusApi]:
    """Serve one as ``SERVICE`` of a cluster, at an address of this machine that is not a loopback one, until the block ends."""
    api = PrometheusApi()
    namespace, _, rest = SERVICE.partition("/")
    name, _, number = rest.partition(":")
    async with served(web.get("/api/v1/query", api.answer), address=address) as port:
        await cluster.apply(manifest("Namespace", namespace))
        await cluster.apply(*_objects(namespace, name, int(number), address, port))
        status = json.dumps({"status": {"podIP": address, "podIPs": [{"ip": address}]}})
        await cluster.kubectl(
            "-n", namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", status
        )
        yield api


def _objects(namespace: str, name: str, number: int, address: str, port: int) -> list[dict[str, object]]:
    """Return the Service. The API server's proxy reads its Endpoints, and calls only addresses of Pods."""
    metadata = {"name": name, "namespace": namespace}
    endpoint = {"ip": address, "targetRef": {"kind": "Pod", **metadata}}
    containers = [{"name": "prometheus", "image": "prometheus"}]
    ports = [{"name": "web", "port": number, "targetPort": port}]
    subset = {"addresses": [endpoint], "ports": [{"name": "web", "port": port}]}
    return [
        manifest("Pod", name, metadata=metadata, spec={"schedulerName": "none", "containers": containers}),
        manifest("Service", name, metadata=metadata, spec={"ports": ports}),
        manifest("Endpoints", name, metadata=metadata, subsets=[subset]),
    ]
