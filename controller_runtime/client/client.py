"""A client for one API server: raw JSON verbs over a ``Transport``, which paces, retries and maps errors.

Connects a program to a cluster: reads the kubeconfig, and warns if the connection is not protected.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

import aiohttp

from controller_runtime import consistency, log
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.collection import (
    LineSplitter,
    LineTooLong,
    ObjectSelection,
    decode_watch_event,
)
from controller_runtime.client.transport import NETWORK_ERRORS, Transport, next_chunk
from controller_runtime.client.verbs import (
    PatchType,
    Verbs,
    encode,
    find,
    find_listed,
    find_object,
    params_of,
)
from controller_runtime.errors import ApiError, ConnectionFailed
from controller_runtime.objects import Object, WatchEvent
from controller_runtime.process.listening import is_loopback
from controller_runtime.resources import Resource

__all__ = ["Batch", "Client", "PatchType", "WatchOptions", "encode", "find", "find_listed", "find_object"]

_WATCH_GRACE = 30.0
"""Seconds of silence beyond a watch's own timeout after which its connection counts as dead."""
_DEFAULT_WATCH = 300.0
_BATCH = 64
"""Maximum events of a batch, because decoding the thousands of a single read takes tens of milliseconds."""
Lines = list[bytes]
Batch = list[WatchEvent]
"""Aliases, because ``Client.list`` hides the built-in name inside the class."""


class WatchOptions(ObjectSelection, total=False):
    """Options of ``Client.watch`` and ``Client.watch_batches``."""

    resource_version: str | None
    """The version after which changes are sent; None: the server's choice."""
    timeout_seconds: float
    """Seconds after which the server closes the watch (300)."""
    allow_bookmarks: bool
    """Whether the server sends bookmarks (true)."""
    read_timeout: float
    """Seconds of silence after which the connection counts as dead (30 more than ``timeout_seconds``)."""


class Client(Transport, Verbs):
    """A client for one API server, with kept-alive connections and a rate limit (token bucket)."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[Callable[[Object], None]]:
        """Yield a function that counts the objects of a list as memory of the caches of this server."""
        with self.caches.reading() as count:
            yield count

    def deciding(self) -> AbstractAsyncContextManager[object]:
        """Return the lock held while a page is decoded."""
        return self.turn

    def wrote(self, resource: Resource, answer: Mapping[str, Any], *, is_created: bool) -> None:
        """Record the response to a write, so that no controller decides from an older cache."""
        consistency.wrote(self, resource, answer, is_created=is_created)

    async def watch(
        self, resource: Resource, **options: Unpack[WatchOptions]
    ) -> AsyncGenerator[WatchEvent, None]:
        """Watch a collection and yield single events; see ``watch_batches``."""
        async with contextlib.aclosing(self.watch_batches(resource, **options)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_batches(
        self, resource: Resource, **options: Unpack[WatchOptions]
    ) -> AsyncGenerator[Batch, None]:
        """Watch a collection and yield the events of each network read, in batches of at most 64.

        The first batch is empty and means that the server has accepted the watch; the first event may take a
        minute. The iterator ends when the server closes the watch, usually after ``timeout_seconds``.

        Raises:
            Expired: the resourceVersion is too old; list again.
            ConnectionFailed: the connection broke or was silent for ``read_timeout`` seconds.
            ResponseTooLarge: an event exceeds a limit.
            ApiError: the server refused the watch or sent an error event.
        """
        seconds = options.get("timeout_seconds", _DEFAULT_WATCH)
        params = params_of(options, options.get("resource_version")) | {
            "watch": "1",
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        if options.get("allow_bookmarks", True):
            params["allowWatchBookmarks"] = "true"
        path = resource.path(namespace=options.get("namespace"))
        async with self.stream(
            "GET",
            path,
            params=params,
            read_timeout=options.get("read_timeout", seconds + _WATCH_GRACE),
            head_timeout=self.timeout,
            verb="WATCH",
            flow=resource.plural,
        ) as response:
            yield []
            splitter = LineSplitter(self.reader.limits.line)
            while chunk := await self._read(response):
                try:
                    lines = splitter.feed(chunk)
                except LineTooLong as error:
                    raise self.reader.line_too_long(f"WATCH {path}") from error
                for start in range(0, len(lines), _BATCH):
                    events, failure = self._events(lines[start : start + _BATCH], f"WATCH {path}")
                    if events:
                        yield events
                    if failure is not None:
                        raise failure
            if splitter.has_rest:
                raise ConnectionFailed(f"{self.config.server}: the watch ended in the middle of an event")

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await next_chunk(response)
        except NETWORK_ERRORS as error:
            raise self.failure(error) from error

    def _events(self, lines: Lines, what: str) -> tuple[Batch, ApiError | None]:
        """Return the events before the first error, and the error; None if there is none."""
        events: Batch = []
        try:
            for line in lines:
                events.append(self._decode(line, decode_watch_event, what))
        except ApiError as error:
            return events, error
        return events, None

    def __repr__(self) -> str:
        return f"<Client {self.cluster} {self.config.server}>"


@contextlib.asynccontextmanager
async def connected(
    path: str, *, server: str, cluster: str, user_agent: str, qps: float = 50, burst: int = 100
) -> AsyncIterator[Client]:
    """Yield a client of the cluster that a kubeconfig leads to; log the weaknesses of its connection.

    Args:
        path: as for ``kubeconfig.load``.
        server: as for ``kubeconfig.load``.
        cluster: the cluster's name in logs and metrics.
        user_agent: as for ``Client``.
        qps: as for ``Client``.
        burst: as for ``Client``.

    Raises:
        ConfigError: the kubeconfig cannot be used.
    """
    config = await kubeconfig.load(path, server=server)
    warn(config, cluster=cluster)
    async with Client(config, qps=qps, burst=burst, user_agent=user_agent, cluster=cluster) as client:
        yield client


def weaknesses(config: ConnectionConfig) -> Iterator[tuple[str, str]]:
    """Yield each weakness of the connection to an API server with its remedy.

    A server on loopback is excluded: ``kubectl proxy`` and tunnels use plain HTTP there.
    """
    if config.server.lower().startswith("http:") and not is_loopback(config.host):
        what = "credentials and data" if config.has_credentials else "data"
        yield (
            f"server {config.server} is plain HTTP: others on the network path can read and change {what}",
            "give the server's https:// address in the kubeconfig, with certificate-authority-data",
        )
    if not config.verifies_server:
        yield (
            f"insecure-skip-tls-verify: others on the network path can impersonate {config.server}",
            "replace insecure-skip-tls-verify by certificate-authority-data in the kubeconfig",
        )


def warn(config: ConnectionConfig, *, cluster: str) -> None:
    """Log each weakness when a program starts."""
    for what, step in weaknesses(config):
        log.get_logger(component="kubeconfig").warning(
            "the connection to an API server is not protected",
            cluster=cluster,
            source=config.source,
            error=what,
            next=step,
        )
