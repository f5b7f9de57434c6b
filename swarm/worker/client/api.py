"""Client for the requests of a worker to its API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from swarm.worker.identity import Settings, SetupError

_log = logging.getLogger(__name__)

_REQUEST = 10.0
"""Time limit of a request in seconds."""
_WATCH = 240.0, 300.0
"""Range of seconds after which the server ends a watch; random, so that workers do not reconnect together."""
_SILENCE = 90.0
"""Seconds without a byte after which a watch is restarted. Servers send a bookmark each minute."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_LONGEST_EVENT = 4 * 1024 * 1024
"""Longest line of a watch in bytes; an object has at most 1.5 MiB."""

Object = dict[str, Any]


class RequestError(Exception):
    """The server returned an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


FAILURES = (RequestError, aiohttp.ClientError, OSError, ValueError, TimeoutError)
"""Exceptions that any request may raise."""


class Pause:
    """Waits between attempts, longer after each failure."""

    def __init__(self) -> None:
        self._seconds = _FIRST_PAUSE

    def reset(self) -> None:
        """Reset the delay after a successful attempt."""
        self._seconds = _FIRST_PAUSE

    async def wait(self, event: asyncio.Event | None = None) -> None:
        """Sleep for the delay or until the event is set, then double the delay."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds * random.uniform(0.8, 1.2)):  # noqa: S311 - spreads requests
                await (event or asyncio.Event()).wait()
        self._seconds = min(self._seconds * 2, _LONGEST_PAUSE)


@contextlib.asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Api]:
    """Yield a client, and close its connections after the block.

    Raises:
        SetupError: a certificate cannot be read.
    """
    tls = _tls(settings) if settings.api_server.startswith("https:") else True
    connector = aiohttp.TCPConnector(ssl=tls, limit=0, socket_factory=_socket)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=_LONGEST_EVENT // 2) as session:
        yield Api(settings, session)


@dataclass(frozen=True, slots=True)
class Api:
    """Client for an API server; paths begin with ``/api``."""

    settings: Settings
    session: aiohttp.ClientSession

    async def get(self, path: str) -> Object:
        """Return an object or a list.

        Raises:
            RequestError: the server refused; status 404: it does not exist.
        """
        return await self._send("GET", path)

    async def put(self, path: str, body: Object, *, within: float = _REQUEST) -> Object:
        """Replace an object; return the stored object.

        Raises:
            RequestError: the server refused; status 409: the object changed since it was read.
        """
        return await self._send("PUT", path, body, within=within)

    async def follow(self, collection: str, name: str, changed: Callable[[Object | None], None]) -> None:
        """Call ``changed`` with the object, now and after every change; with None if it does not exist. Never returns."""
        pause = Pause()
        loop = asyncio.get_running_loop()
        path = f"{collection}?fieldSelector=metadata.name%3D{name}"
        while True:
            begun = loop.time()
            try:
                listed = await self.get(path)
                changed(next(iter(listed.get("items") or ()), None))
                await self._watch(f"{path}&resourceVersion={listed['metadata']['resourceVersion']}", changed)
            except FAILURES as error:
                _log.warning("following %s/%s: %s", collection, name, str(error) or type(error).__name__)
            if loop.time() - begun > _LONGEST_PAUSE:
                pause.reset()
            await pause.wait()

    async def _watch(self, path: str, changed: Callable[[Object | None], None]) -> None:
        """Call ``changed`` after each change, until the server ends the watch or sends nothing for ``_SILENCE`` seconds."""
        limit = random.uniform(*_WATCH)  # noqa: S311 - spreads requests
        url = self._url(f"{path}&watch=1&allowWatchBookmarks=true&timeoutSeconds={limit:.0f}")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST, sock_read=_SILENCE)
        async with self.session.get(
            url, headers=self._headers(), timeout=timeout, allow_redirects=False
        ) as answer:
            await _check(answer)
            with contextlib.suppress(TimeoutError):
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return  # usually 410: the resourceVersion is too old
                    if event["type"] != "BOOKMARK":
                        changed(None if event["type"] == "DELETED" else event["object"])

    async def _send(
        self, method: str, path: str, body: Object | None = None, *, within: float = _REQUEST
    ) -> Object:
        timeout = aiohttp.ClientTimeout(total=within)
        async with self.session.request(
            method,
            self._url(path),
            json=body,
            headers=self._headers(),
            timeout=timeout,
            allow_redirects=False,
        ) as answer:
            await _check(answer)
            found: Object = await answer.json()
            return found

    def _url(self, path: str) -> str:
        return self.settings.api_server + path

    def _headers(self) -> dict[str, str]:
        # Read for each request, because the kubelet replaces tokens before they expire.
        file = self.settings.token_file
        return {"Authorization": f"Bearer {Path(file).read_text(encoding='utf-8').strip()}"} if file else {}


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status >= 300:
        text = await answer.text()
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            message = text[:200]
        raise RequestError(answer.status, message)


def _tls(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.client_cert_file:
            context.load_cert_chain(settings.client_cert_file, settings.client_key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"certificates cannot be read: {error}") from error
    return context


def _socket(address: Any) -> socket.socket:
    """Return a socket that detects within half a minute that the peer is unreachable."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
