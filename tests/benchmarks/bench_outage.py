"""Cost of an unreachable API server: watches of single objects, and twenty informers, of one client wait for it.

``python -m tests.benchmarks.bench_outage --objects 1000 --seconds 30``. A fake apiserver, in a process of its
own, is killed and started again with a newer state, so that every watch gets 410. The program prints the requests
sent and the CPU time used during the outage. Afterwards it prints the seconds until the informers, and until
everything, is current, and the number of requests in the busiest second.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import socket
import time
from multiprocessing.process import BaseProcess

import structlog
from aiohttp import web
from prometheus_client import REGISTRY

from controller_runtime import resources
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from hack.sandbox.ports import free_ports
from virtual_node.config.types import LimitsConfig
from virtual_node.controllers.copies.single_objects import ObjectKey, ObjectWatches

_INFORMERS = 20
_AT_ONCE = 50


def _serve(listening: socket.socket, version: str) -> None:
    """Answer lists with one object of this version; keep watches from it silent."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            name = request.query.get("fieldSelector", "=all").partition("=")[2]
            metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": version}
            body = {"metadata": {"resourceVersion": version}, "items": [{"metadata": metadata}]}
            return web.json_response(body)
        if request.query["resourceVersion"] != version:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            return web.json_response(status, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    web.run_app(application, sock=listening, print=None, access_log=None, backlog=4096)


def _start(port: int, version: str) -> BaseProcess:
    """Start the fake apiserver."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(4096)
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listening, version), daemon=True
        )
        process.start()
    return process


def _requests() -> int:
    """Return the number of requests sent so far, answered or not."""
    return int(
        sum(
            sample.value
            for metric in REGISTRY.collect()
            if metric.name == "rest_client_requests"
            for sample in metric.samples
            if sample.name.endswith("_total")
        )
    )


async def _measure(objects: int, seconds: float) -> None:
    (port,) = free_ports(1)
    server = _start(port, "1")
    client = Client(ConnectionConfig(f"http://127.0.0.1:{port}"), qps=500, burst=1000, cluster="bench")
    informers = [Informer(client, resources.PODS, name=f"informer-{number}") for number in range(_INFORMERS)]
    limits = LimitsConfig(watches_per_namespace=objects, watches=objects)
    watches = ObjectWatches(client, on_change=lambda _key: None, limits=limits)
    keys = [ObjectKey("Secret", "n", f"s-{number}") for number in range(objects)]
    async with client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(informer.run()) for informer in informers]
        tasks.append(group.create_task(watches.run()))
        for informer in informers:
            await informer.wait_synced()
        for start in range(0, objects, _AT_ONCE):
            await asyncio.gather(*(watches.get(key) for key in keys[start : start + _AT_ONCE]))
        await asyncio.sleep(2)

        server.kill()
        server.join()
        sent, spent = _requests(), time.process_time()
        await asyncio.sleep(seconds)
        sent, spent = _requests() - sent, time.process_time() - spent
        print(f"away for {seconds:g} s: {sent} requests ({sent / seconds:.1f}/s), {spent / seconds:.1%} CPU")

        server = _start(port, "2")
        begun = time.monotonic()
        waiting: dict[str, list[Informer | ObjectKey]] = {
            "informers": [*informers],
            "everything": [*informers, *keys],
        }
        counts = [_requests()]
        while waiting["everything"]:
            await asyncio.sleep(0.1)
            counts.append(_requests())
            for what, before in waiting.items():
                waiting[what] = [each for each in before if not _is_current(each, watches)]
                if before and not waiting[what]:
                    print(f"back: {what} current after {time.monotonic() - begun:.1f} s")
        busiest = max(late - early for early, late in zip(counts, counts[10:] or counts[-1:], strict=False))
        print(f"back: {counts[-1] - counts[0]} requests, {busiest} in the busiest second")
        for task in tasks:
            task.cancel()
    server.kill()


def _is_current(each: Informer | ObjectKey, watches: ObjectWatches) -> bool:
    found = each.store.get("n/all") if isinstance(each, Informer) else watches.peek(each)
    return found is not None and found.resource_version == "2"


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    asyncio.run(_measure(given.objects, given.seconds))
