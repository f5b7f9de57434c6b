"""Kubernetes health endpoints: named checks at ``/healthz``, ``/livez`` and ``/readyz``.

The output is exactly the API server's, including ``?verbose``, ``?exclude=name`` and ``/readyz/name``.
The reason of a failure is only logged, not answered, because probes are not authenticated.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import prometheus_client
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from controller_runtime import log

_log = log.get_logger(component="health")
Check = Callable[[], "str | Awaitable[str | None] | None"]
"""A health check: returns None if healthy, otherwise the reason. An exception counts as a failure. May be a
coroutine function."""
_CHECK_TIMEOUT = 5.0
_HEADERS = {"Cache-Control": "no-cache, no-store", "X-Content-Type-Options": "nosniff"}
_MANY = 4
"""Number of concurrent scrapes above which scrapers share a page."""
_SHARED_SECONDS = 1.0
"""Maximum age in seconds of a shared page."""
_WRITE_SECONDS = 10.0
"""Seconds within which a scraper must read its page; the same as Prometheus' default timeout."""
_CHUNK = 64 * 1024
Registry = Callable[[], Awaitable[CollectorRegistry]]
"""Returns the metrics of a page."""


class HealthChecks:
    """The named checks of one server and the three endpoints that report them."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}
        self._failing: dict[str, str] = {}
        self.add("ping", lambda: None, live=True)

    def add(self, name: str, check: Check, *, live: bool = False) -> None:
        """Add or replace a check of ``/readyz``; with ``live`` also of ``/livez`` and ``/healthz``.

        Use ``live`` only for failures that a restart repairs, not for an unreachable cluster.
        """
        known = self._checks.get(name)
        self._checks[name] = (check, live or (known is not None and known[1]))

    def add_routes(self, app: web.Application) -> None:
        """Add routes for ``/healthz``, ``/livez`` and ``/readyz``, and for each check below them."""
        for endpoint in ("healthz", "livez", "readyz"):
            app.router.add_get(f"/{endpoint}", self.summary(endpoint))
            app.router.add_get(f"/{endpoint}/{{name}}", self.single(endpoint))

    def _names(self, endpoint: str) -> list[str]:
        return [name for name, (_, live) in self._checks.items() if live or endpoint == "readyz"]

    def summary(self, endpoint: str) -> Handler:
        """Return the handler that reports all checks of an endpoint."""

        async def handle(request: web.Request) -> web.Response:
            excluded = {name for value in request.query.getall("exclude", []) for name in value.split(",")}
            names = self._names(endpoint)
            reasons = await asyncio.gather(*(self._run(name) for name in names if name not in excluded))
            results = dict(zip((name for name in names if name not in excluded), reasons, strict=True))
            lines = [_line(name, results.get(name), excluded=name in excluded) for name in names]
            unknown = sorted(excluded - set(names))
            if unknown:
                quoted = ",".join(f'"{name}"' for name in unknown)
                lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
            failed = any(results.values())
            lines.append(f"{endpoint} check {'failed' if failed else 'passed'}")
            verbose = failed or "verbose" in request.query
            return _text("\n".join(lines) + "\n" if verbose else "ok", status=500 if failed else 200)

        return handle

    def single(self, endpoint: str) -> Handler:
        """Return the handler that reports the check whose name is in the path."""

        async def handle(request: web.Request) -> web.Response:
            name = request.match_info["name"]
            if name not in self._names(endpoint):
                return _text("404 page not found\n", status=404)
            failed = await self._run(name) is not None
            if failed:
                return _text("internal server error: reason withheld\n", status=500)
            return _text("ok")

        return handle

    async def _run(self, name: str) -> str | None:
        """Return why a check fails, None if it passes; log only when a failure begins, changes or ends."""
        reason: str | None
        try:
            answer = self._checks[name][0]()
            if inspect.isawaitable(answer):
                async with asyncio.timeout(_CHECK_TIMEOUT):
                    answer = await answer
            reason = answer or None
        except TimeoutError:
            reason = f"no answer within {_CHECK_TIMEOUT:g} s"
        except Exception as error:  # noqa: BLE001 - a broken check is a failed check
            reason = repr(error)
        before = self._failing.pop(name, None)
        if reason is not None:
            self._failing[name] = reason
            if reason != before:
                _log.warning("health check fails", check=name, reason=reason)
        elif before is not None:
            _log.info("health check passes again", check=name)
        return reason


def _line(name: str, reason: str | None, *, excluded: bool) -> str:
    if excluded:
        return f"[+]{name} excluded: ok"
    return f"[-]{name} failed: reason withheld" if reason else f"[+]{name} ok"


def _text(body: str, *, status: int = 200) -> web.Response:
    return web.Response(text=body, status=status, headers=_HEADERS)


async def of_this_process() -> CollectorRegistry:
    """Return the metrics of the process."""
    return prometheus_client.REGISTRY


class MetricsPage:
    """Serves Prometheus text or OpenMetrics, as the scraper requests.

    A page may have megabytes, which stay in memory while a client does not read them. So concurrent clients
    share a page if they are many, and a page is written in parts within a time limit.
    """

    def __init__(self, registry: Registry = of_this_process) -> None:
        self._registry = registry
        self._scrapes = 0
        self._rendering = asyncio.Lock()
        self._last: tuple[float, str, bytes] | None = None

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Return the answer to a scrape."""
        self._scrapes += 1
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                return await self._answer(request)
        except TimeoutError:
            # Abort, because data that the client does not read would stay in memory.
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        finally:
            self._scrapes -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        headers = {"Content-Type": content_type, "Vary": "Accept"}
        if request.method == "HEAD":
            # aiohttp sends what is written to a StreamResponse, and the client takes it for its next response.
            return web.Response(headers=headers)
        async with self._rendering:
            body = self._shared(content_type)
            if body is None:
                now = asyncio.get_running_loop().time()
                # In a thread, because large pages take 50 ms.
                body = await asyncio.to_thread(encoder, await self._registry())
                self._last = (now, content_type, body) if self._scrapes > _MANY else None
        response = web.StreamResponse(headers=headers)
        response.enable_compression()
        await response.prepare(request)
        for at in range(0, len(body), _CHUNK):
            await response.write(body[at : at + _CHUNK])
        await response.write_eof()
        return response

    def _shared(self, content_type: str) -> bytes | None:
        """Return the last page if there are many scrapers and it is recent enough; otherwise None."""
        if self._scrapes <= _MANY or self._last is None:
            return None
        made, kind, body = self._last
        is_new = asyncio.get_running_loop().time() - made < _SHARED_SECONDS
        return body if is_new and kind == content_type else None
