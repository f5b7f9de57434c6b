"""Serves the page, its data and live changes (Server-Sent Events).

The page cannot change anything, but pod names and messages are confidential. So the page is off unless an
address is given, and is meant for loopback or ``kubectl port-forward``.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from controller_runtime.client.client import Client
from controller_runtime.process.listening import is_loopback, parse_address
from controller_runtime.serving.connections import ConnectionLimits
from controller_runtime.serving.server import RETRY_AFTER, HttpsServer
from controller_runtime.util import event_loop
from virtual_node.config.types import Config
from virtual_node.process_health import ProcessHealth
from virtual_node.process_state import ProcessState
from virtual_node.web.groups import View, of_query
from virtual_node.web.overview import Overview, Parts, Swarms
from virtual_node.web.pod_detail import PodEvents, events_of

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
"""Seconds between two checks for changes per watching browser."""
_MOST_PICTURES = 16
"""Maximum number of views that are served within an interval; browsers with the same view share one."""
_SHARE = 10
"""Minimum interval between rebuilds as a multiple of their duration, so that they use at most a tenth of a core."""
_LONGEST = 5.0
"""Maximum interval in seconds, because in a busy process the measured duration includes other work."""
_MOST_STREAMS = 64
"""Maximum number of watching browsers."""
_KEEP_ALIVE = 20.0
"""Seconds without changes after which a stream sends a comment, so that proxies keep it open."""


def page(
    state: ProcessState, config: Config, *, upper: Client, health: ProcessHealth, worker: int = 1
) -> WebServer:
    """Return the page of a process, for ``async with``.

    Args:
        state: of the process.
        config: the configuration at start, with ``webAddress``.
        upper: client of the upper cluster.
        health: evaluates the health of the process.
        worker: number of this process with ``--workers``. The first one serves the page at ``webAddress``, and each
            further one at the next port.
    """
    swarms = Swarms(upper)
    overview = Overview(
        state.clusters,
        leader=state.leader,
        elsewhere=state.elsewhere,
        health=lambda: health.health(swarms.known()),
        failures=lambda: state.failures,
        waiting=health.waiting,
        reach={
            "namespace": config.leader_election.namespace,
            "port": config.web_address.rpartition(":")[2],
        },
        pod_events=PodEvents(events_of(upper)).of,
        swarms=swarms.known,
        inspection=lambda: health.inspection,
    )
    return WebServer(config.web_address, overview=overview, after=worker - 1)


@dataclass(slots=True)
class _Picture:
    """The page's data for one view."""

    drawing: asyncio.Task[Parts]
    good_until: float = float("inf")
    """Loop time after which the data is rebuilt; infinite while it is being built."""


class WebServer(HttpsServer):
    """Serves the page at ``host:port``.

    Args:
        address: address to listen on.
        overview: builds the page's data.
        after: added to the port, unless the port is 0.

    Raises:
        ConfigError: the address cannot be parsed.
    """

    def __init__(self, address: str, *, overview: Overview, after: int = 0) -> None:
        host, port = parse_address(address)
        guards = [_require_same_page, *([_for_this_machine] if is_loopback(host) else [])]
        super().__init__(
            host,
            port and port + after,
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
        """Start the server and the sampling of the history.

        Raises:
            OSError: the address cannot be bound.
        """
        await super().start()
        self._keeping = asyncio.create_task(self._overview.run(), name="page history")

    async def stop(self) -> None:
        """Stop the sampling of the history and the server."""
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
        sent_at = event_loop.now()
        while True:
            parts = await self._picture(view)
            message, is_complete = changes.message(parts) if parts is not None else (b"", True)
            if message:
                await response.write(b"data: " + message + b"\n\n")
                sent_at = event_loop.now()
            elif event_loop.now() - sent_at > _KEEP_ALIVE:
                await response.write(b": still here\n\n")
                sent_at = event_loop.now()
            await asyncio.sleep(pause(len(message), is_complete=is_complete, interval=_INTERVAL))

    async def _picture(self, view: View) -> Parts | None:
        """Return the page's data, shared by all browsers with the same view; None: too many different views."""
        now = event_loop.now()
        self._pictures = {one: picture for one, picture in self._pictures.items() if now < picture.good_until}
        if view not in self._pictures:
            if len(self._pictures) >= _MOST_PICTURES:
                return None
            self._pictures[view] = _Picture(asyncio.create_task(self._draw(view)))
        return await asyncio.shield(self._pictures[view].drawing)

    async def _draw(self, view: View) -> Parts:
        begun = event_loop.now()
        try:
            return await self._overview.parts(view, in_full=self._in_full)
        finally:
            # With more pods or views the interval is longer, so that all views together use little CPU time.
            taken = event_loop.now() - begun
            if (picture := self._pictures.get(view)) is not None:
                wanted = _SHARE * taken * len(self._pictures)
                picture.good_until = begun + min(_LONGEST, max(_INTERVAL, wanted))


@web.middleware
async def _require_same_page(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse data requests of other websites.

    A browser hides the answers from scripts of other websites, but the requests could keep the process busy.
    """
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
    """Refuse requests with a Host other than a loopback name if the page is on loopback, like ``kubectl proxy``.

    With DNS rebinding, a website can point its name to our address while a user visits it. The user's browser
    would then give the page's data to that website.
    """
    if is_loopback(_PORT.sub("", request.host).strip("[]")):
        return await handler(request)
    return web.Response(
        status=403, text="this page is for http://localhost only; a proxy must send it as Host\n"
    )


def _file(file: Path, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    content = file.read_bytes()

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=_HEADERS)

    return serve


_MESSAGE = 32 * 1024
"""Bytes of a message beyond which no further part is added."""
_RATE = 48 * 1024
"""Bytes per second for one browser."""


class Changes:
    """Remembers which parts one browser has.

    Parts are JSON by key and keep their order. What the page shows first is sent first, so that a large page
    appears from top to bottom. A part that changes again before it is sent is sent once, in its latest state.
    """

    def __init__(self) -> None:
        self._sent: dict[str, bytes] = {}

    def message(self, parts: Mapping[str, bytes]) -> tuple[bytes, bool]:
        """Return the next message, and whether the browser is up to date after it; an empty message: no change.

        Args:
            parts: the current page.

        Returns:
            JSON with ``set``, the new or changed parts, ``drop``, the keys of removed parts, and ``now``, the
                server's clock in milliseconds.
        """
        chosen: list[bytes] = []
        size, is_complete = 0, True
        for key, body in parts.items():
            if self._sent.get(key) == body:
                continue
            if size and size + len(body) > _MESSAGE:
                is_complete = False
                break
            chosen.append(_quoted(key) + b":" + body)
            size += len(chosen[-1])
            self._sent[key] = body
        dropped = [key for key in self._sent if key not in parts]
        for key in dropped:
            del self._sent[key]
        if not chosen and not dropped:
            return b"", True
        body = b"".join(
            (
                b'{"now":', str(int(time.time() * 1000)).encode(),
                b',"set":{', b",".join(chosen),
                b'},"drop":[', b",".join(map(_quoted, dropped)), b"]}",
            )
        )  # fmt: skip
        return body, is_complete


def pause(sent: int, *, is_complete: bool, interval: float) -> float:
    """Return the seconds until the next message, so that a browser receives no more than ``_RATE``.

    Args:
        sent: bytes of the message that was sent.
        is_complete: whether the browser is up to date.
        interval: seconds between two checks for a browser that is up to date.
    """
    return max(interval if is_complete else 0.0, sent / _RATE)


def _quoted(key: str) -> bytes:
    return msgspec.json.encode(key)
