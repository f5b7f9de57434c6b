"""The webhook at 300 requests per second over TLS, compared with a bare handler that only echoes: p50, p99, ratio.

``python -m tests.benchmarks.bench_webhook``. Server and client are two processes; the rate does not depend on
response times, so a slow response delays no later request.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from controller_runtime.serving.server import HttpsServer
from controller_runtime.tls.key_pairs import self_signed
from controller_runtime.tls.reloader import CertificateReloader
from tests.benchmarks.bench_splice import process
from webhook.mutation.mutate import Surroundings
from webhook.server import WebhookServer

RATE, SECONDS = 300, 10


class _Knowledge:
    async def wait(self, _seconds: float) -> str:
        return ""

    def surroundings(self, _pod: Any, _namespace: str) -> Surroundings:
        return Surroundings(
            virtual_nodes=tuple(f"vn-{number}" for number in range(20)), frozen={"vn-3": datetime.now(UTC)}
        )


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), content_type="application/json")


def _serve(pipe: Connection) -> None:
    async def run() -> None:
        tls = CertificateReloader.from_pair(self_signed("bench", hosts=["127.0.0.1"]))
        bare = HttpsServer("127.0.0.1", 0, tls=tls, metrics=False)
        bare.add_route("POST", "/mutate", _echo)
        async with bare, WebhookServer("127.0.0.1", 0, tls=tls, knowledge=_Knowledge()) as ours:
            pipe.send((bare.port, ours.port))
            await asyncio.Event().wait()

    asyncio.run(run())


def _body(number: int) -> bytes:
    expressions = [
        {"key": "zone", "operator": "In", "values": ["a", "b"]},
        {"key": "clusterID", "operator": "Exists"},
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    pod = {
        "metadata": {"name": f"p-{number}", "labels": {"virtual-pod": "true", "app": "bench"}},
        "spec": {
            "nodeSelector": {"gpu": "yes", "clusterID": "a"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "containers": [
                {
                    "name": f"c{one}",
                    "image": "registry/image:tag",
                    "env": [{"name": f"E{two}", "value": "x" * 20} for two in range(20)],
                }
                for one in range(3)
            ],
        },
    }
    request = {
        "uid": f"u-{number}",
        "kind": {"kind": "Pod"},
        "operation": "CREATE",
        "namespace": "shop",
        "object": pod,
    }
    return msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    )


async def _load(port: int) -> list[float]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    took: list[float] = []
    loop = asyncio.get_running_loop()
    bodies = [_body(number) for number in range(50)]

    async def one(session: aiohttp.ClientSession, body: bytes) -> None:
        at = loop.time()
        async with session.post(
            f"https://127.0.0.1:{port}/mutate", data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 200
            await answer.read()
        took.append(loop.time() - at)

    connector = aiohttp.TCPConnector(ssl=context, limit=50)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(
            *(one(session, bodies[0]) for _ in range(20))
        )  # connections are open from here on
        took.clear()
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(RATE * SECONDS):
                await asyncio.sleep(max(0.0, begun + number / RATE - loop.time()))
                group.create_task(one(session, bodies[number % len(bodies)]))
    return sorted(took)


def _print(name: str, took: list[float]) -> float:
    p99 = took[int(len(took) * 0.99)] * 1000
    print(
        f"{name:<8} {len(took)} requests at {RATE}/s: p50 {statistics.median(took) * 1000:.2f} ms, p99 {p99:.2f} ms, max {took[-1] * 1000:.1f} ms"
    )
    return p99


def main() -> None:
    with process(_serve) as ((bare_port, port), _):
        bare = _print("bare", asyncio.run(_load(bare_port)))
        webhook = _print("webhook", asyncio.run(_load(port)))
        print(f"webhook / bare, p99: {webhook / bare:.2f}")


if __name__ == "__main__":
    main()
