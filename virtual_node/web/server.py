"""Serves the page, its data, and changes as they happen (Server-Sent Events).

Nothing here can change anything, but pod names and messages are nobody else's business: it is off unless an
address is given, and meant for loopback or ``kubectl port-forward``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from controller_runtime.process.listening import is_loopback, parse_address
from controller_runtime.serving.bodies import RETRY_AFTER
from controller_runtime.serving.connections import ConnectionLimits
from controller_runtime.serving.server import HttpsServer
from virtual_node.web.overview import Overview, Parts
from virtual_node.web.streams import Changes, pause
from virtual_node.web.view import View, of_query

_STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PORT = re.compile(r":\d+$")
_INTERVAL = 1.0
"""Seconds between two looks for a browser that is watching."""
_MOST_PICTURES = 16
"""Views that are answered within an interval; browsers with the same view share one."""
_SHARE = 10
"""Pictures are not drawn more often than this many times the time it takes: at most a tenth of a core goes there."""
_LONGEST = 5.0
"""Seconds after which a picture is drawn again in any case: the time is also that of others, in a busy process."""
_MOST_STREAMS = 64
"""Browsers that watch."""
_KEEP_ALIVE = 20.0
"""Seconds after which a quiet stream says that it is alive, so that proxies do not cut it."""


@dataclass(slots=True)
class _Picture:
    """The page's data for one view."""

    drawing: asyncio.Task[Parts]
    good_until: float = float("inf")
    """Loop time after which it is drawn again; never while it is being drawn."""


class WebServer(HttpsServer):
    """The page at ``host:port``.

    Args:
        address: where to listen.
        overview: what to show.

    Raises:
        ConfigError: the address cannot be understood.
    """

    def __init__(self, address: str, *, overview: Overview) -> None:
        host, port = parse_address(address)
        guards = [_for_our_own_page, *([_for_this_machine] if is_loopback(host) else [])]
        super().__init__(
            host,
            port,
            middlewares=guards,
            health=False,
            metrics=False,
            shutdown_timeout=1.0,
            limits=ConnectionLimits(total=128, strangers=128),
            name="page",
            setting="--web-addr (webAddress)",
        )
        self._overview = overview
        self._in_full = is_loopback(host)
        self._pictures: dict[View, _Picture] = {}
        self._streams = 0
        self._keeping: asyncio.Task[None] | None = None
        for file in sorted(_STATIC.iterdir()):
            path = "/" if file.name == "index.html" else f"/{file.name}"
            self.add_route("GET", path, _file(file, _TYPES[file.suffix]))
        self.add_route("GET", "/api/state", self._state)
        self.add_route("GET", "/api/stream", self._stream)

    async def start(self) -> None:
        """Serve, and keep the last hour.

        Raises:
            OSError: the address cannot be bound.
        """
        await super().start()
        self._keeping = asyncio.create_task(self._overview.run(), name="page history")

    async def stop(self) -> None:
        """End the server."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await super().stop()

    async def _state(self, request: web.Request) -> web.Response:
        parts = await self._picture(of_query(request.query))
        if parts is None:
            return _busy()
        body = msgspec.json.encode({key: msgspec.Raw(part) for key, part in parts.items()})
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= _MOST_STREAMS:
            return _busy()
        self._streams += 1
        try:
            return await self._send_changes(request)
        finally:
            self._streams -= 1

    async def _send_changes(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        view, changes = of_query(request.query), Changes()
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        while True:
            parts = await self._picture(view)
            message, is_complete = changes.message(parts) if parts is not None else (b"", True)
            if message:
                await response.write(b"data: " + message + b"\n\n")
                sent_at = loop.time()
            elif loop.time() - sent_at > _KEEP_ALIVE:
                await response.write(b": still here\n\n")
                sent_at = loop.time()
            await asyncio.sleep(pause(len(message), is_complete=is_complete, interval=_INTERVAL))

    async def _picture(self, view: View) -> Parts | None:
        """Return the page's data; one for all with the same view. None where too many look at something else."""
        now = asyncio.get_running_loop().time()
        self._pictures = {one: picture for one, picture in self._pictures.items() if now < picture.good_until}
        if view not in self._pictures:
            if len(self._pictures) >= _MOST_PICTURES:
                return None
            self._pictures[view] = _Picture(asyncio.create_task(self._draw(view)))
        return await asyncio.shield(self._pictures[view].drawing)

    async def _draw(self, view: View) -> Parts:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return await self._overview.parts(view, in_full=self._in_full)
        finally:
            # All views together take a small share of the time, however many pods there are.
            taken = loop.time() - begun
            if (picture := self._pictures.get(view)) is not None:
                wanted = _SHARE * taken * len(self._pictures)
                picture.good_until = begun + min(_LONGEST, max(_INTERVAL, wanted))


@web.middleware
async def _for_our_own_page(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse data to other websites: their scripts cannot read it, but could have the process search all day."""
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    origin = request.headers.get("Origin")
    is_own = site in {"same-origin", "none"} and (origin is None or urlsplit(origin).netloc == request.host)
    if is_own or not request.path.startswith("/api/"):
        return await handler(request)
    return web.Response(status=403, text="this data is for the page of the same address only\n")


def _busy() -> web.Response:
    return web.Response(status=503, text="too many readers of the page\n", headers=RETRY_AFTER)


@web.middleware
async def _for_this_machine(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A page on loopback is read under loopback's own names, as ``kubectl proxy`` has it.

    Any website may give its name our address while somebody looks at it (DNS rebinding): their browser would then
    hand the page to that website.
    """
    if is_loopback(_PORT.sub("", request.host).strip("[]")):
        return await handler(request)
    return web.Response(
        status=403, text="this page is for http://localhost only; a proxy must say so as Host\n"
    )


def _file(file: Path, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    content = file.read_bytes()

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=_HEADERS)

    return serve
