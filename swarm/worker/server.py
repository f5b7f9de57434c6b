"""A worker's HTTP endpoints: those of k8s-swarm's workers, and metrics."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from aiohttp import web

from swarm.worker.identity import SetupError

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
