"""``/metrics``: the process's metrics, for unauthenticated scrapers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

_MANY = 4
"""Number of concurrent scrapes above which scrapers share a page."""
_SHARED_SECONDS = 1.0
"""Maximum age in seconds of a shared page."""
_WRITE_SECONDS = 10.0
"""Seconds within which a scraper must read its page; the same as Prometheus' default timeout."""
_CHUNK = 64 * 1024

Registry = Callable[[], Awaitable[CollectorRegistry]]
"""Returns the metrics of a page."""


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
        async with self._rendering:
            body = self._shared(content_type)
            if body is None:
                now = asyncio.get_running_loop().time()
                # In a thread, because large pages take 50 ms.
                body = await asyncio.to_thread(encoder, await self._registry())
                self._last = (now, content_type, body) if self._scrapes > _MANY else None
        response = web.StreamResponse(headers={"Content-Type": content_type, "Vary": "Accept"})
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
