"""A worker's HTTP endpoints: those of k8s-swarm's workers, and metrics.

Metrics are written in Prometheus' text format without a library, because aiohttp is the only dependency.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from aiohttp import web

from swarm.worker.identity import SetupError
from swarm.worker.jobs import Held, Phase

_DISTRIBUTION = "virtual-node"


@contextlib.asynccontextmanager
async def serving(
    port: int, *, version: Callable[[], dict[str, Any]], metrics: Callable[[], str]
) -> AsyncIterator[int]:
    """Serve within the block; yield the port.

    Args:
        port: port to listen on; 0: any free port.
        version: returns the body of ``/internal/version``.
        metrics: returns the body of ``/metrics``, in Prometheus' text format.

    Raises:
        SetupError: the port is in use.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")

    async def on_version(_: web.Request) -> web.Response:
        return _json(version())

    async def on_health(_: web.Request) -> web.Response:
        return _json({"date": started, "version": release()})

    async def on_metrics(_: web.Request) -> web.Response:
        return web.Response(text=metrics(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_route("*", "/internal/version", on_version)
    app.router.add_route("*", "/internal/health", on_health)
    app.router.add_get("/metrics", on_metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, None, port)
        try:
            await site.start()
        except OSError as error:
            raise SetupError(
                f"HTTP port {port}: {error.strerror}; another port: HTTP_PORT, 0: none"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def release() -> str:
    """Return the installed version of this library; empty if it is not installed."""
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


def _json(content: dict[str, Any]) -> web.Response:
    body = web.json_response(content).text or ""
    return web.Response(text=body + "\n", content_type="application/json")


_PREFIX = "virtual_node_swarm_worker_"


def render(
    held: Mapping[str, Held],
    *,
    version: int,
    failures: int,
    share_problem: bool,
    draining: bool,
    exits: Mapping[int, int],
) -> str:
    """Return the text of ``/metrics``.

    Args:
        held: held jobs.
        version: version of the applied share.
        failures: failures of handlers and jobs since start.
        share_problem: whether the share that was read last is unusable.
        draining: whether the worker is stopping.
        exits: exit code → number of processes that exited with it (sidecar only).
    """
    phases = Counter(one.phase for one in held.values())
    lines = [
        *_metric(
            "jobs", "gauge", "Jobs by phase.", {f'{{phase="{one.value}"}}': phases[one] for one in Phase}
        ),
        *_metric("share_version", "gauge", "Version of the share that is applied.", {"": version}),
        *_metric("share_invalid", "gauge", "1 if the latest share cannot be used.", {"": int(share_problem)}),
        *_metric("job_failures_total", "counter", "Failed handlers and jobs that ended.", {"": failures}),
        *_metric("draining", "gauge", "1 while the worker stops all jobs to exit.", {"": int(draining)}),
    ]
    if exits:
        codes = {f'{{code="{code}"}}': number for code, number in sorted(exits.items())}
        lines += _metric("process_exits_total", "counter", "Ended processes by exit code.", codes)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, values: Mapping[str, int]) -> list[str]:
    full = _PREFIX + name
    head = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    return [*head, *(f"{full}{labels} {value}" for labels, value in values.items())]
