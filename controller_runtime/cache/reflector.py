"""Follows one collection: list, then watch from the list's version, for ever.

A watch that ends is resumed from the last version seen, without a list. 410 Gone means that history is missing:
list again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog
from prometheus_client import Counter

from controller_runtime.cache.watch_backoff import WatchBackoff, is_history_missing
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, ConnectionFailed, without_frames
from controller_runtime.objects import Object, WatchEvent
from controller_runtime.resources import Resource
from controller_runtime.util import backoff
from controller_runtime.util.yielding import Slicer

_RESTARTS = Counter(
    "virtual_node_watch_restarts_total", "Watches started again, by why.", ["cluster", "resource", "reason"]
)

_TELL_AFTER = (5.0, 60.0)
"""Seconds of trouble after which people are told: a server that is restarted is none of their business."""
_WATCH_SECONDS = (300.0, 600.0)
_SILENCE_GRACE = 30.0
_BOOKMARK_SILENCE = 180.0
"""Seconds of silence after a bookmark that mean that nobody is there: apiservers send one a minute where they send any.

client-go's HTTP/2 pings find out sooner. TCP's own probes do not: a proxy or load balancer answers them itself."""
_SHORT = 1.0
"""Seconds; a watch that ends sooner without a word is a failure, as in client-go, or it would be repeated in a loop."""

_FREE_SHORTS = 3


class _Silent(ConnectionFailed):
    """A watch that brings not even bookmarks any more."""


class Sink(Protocol):
    """Who keeps what the reflector reads."""

    async def replace(self, items: list[Object]) -> None:
        """Take over a whole list."""

    def change(self, kind: str, changed: Object) -> None:
        """Take over one change; its kind is ADDED, MODIFIED or DELETED."""


class Reflector:
    """Reads a collection and its changes into a sink.

    Attributes:
        resource_version: the last one seen; empty: the collection must be listed.
        last_error: why the server cannot be followed at the moment; None when it can.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        sink: Sink,
        *,
        selection: Mapping[str, Any],
        transform: Callable[[Object], Object] | None,
        page_size: int,
        name: str,
        is_minor: bool = False,
    ) -> None:
        """Set up.

        Args:
            client: the cluster.
            resource: what to follow.
            sink: where to.
            selection: namespace and selectors, as ``Client.list`` takes them.
            transform: called on every object before the sink has it; None: they are taken as they come.
            page_size: objects per page of a list; 0: all at once.
            name: in logs and metrics.
            is_minor: once it has something, it comes after the others when many wait for a server to be back.
        """
        self.resource_version = ""
        self.last_error: Exception | None = None
        self._client = client
        self._resource = resource
        self._sink = sink
        self._selection = selection
        self._transform = transform
        self._page_size = page_size
        self._name = name
        self._is_minor = is_minor
        self._contact: float | None = None
        self._sends_bookmarks = False
        self._log = structlog.get_logger(informer=name, cluster=client.cluster)

    @property
    def age(self) -> float:
        """Seconds since the server was last heard; infinite before the first time."""
        if self._contact is None:
            return float("inf")
        return asyncio.get_running_loop().time() - self._contact

    async def run(self) -> None:
        """Follow the server until cancelled; trouble is waited out with back-off."""
        loop = asyncio.get_running_loop()
        outage = self._client.outage
        patience = WatchBackoff()
        told = doubts = shorts = 0
        is_answered = False
        while True:
            if not is_answered:
                self.last_error = self.last_error or outage.error
                # Somebody may wait for the first list, as a pod does for its Secret.
                await outage.turn(is_minor=self._is_minor and self._contact is not None)
            is_answered = False
            patience.begins(loop.time())
            try:
                if not self.resource_version:
                    await self._list()
                begun = loop.time()
                await self._watch()
                shorts = shorts + 1 if loop.time() - begun < _SHORT else 0
                await asyncio.sleep(_after_short(shorts))
                continue
            except (ApiError, ConfigError) as error:
                trouble = self.last_error = without_frames(error)
            if isinstance(trouble, ConnectionFailed):
                outage.found_nobody(trouble)
            elif isinstance(trouble, ApiError):
                outage.answered()
                is_answered = True  # has stood in line; a 410 is to be followed by its list
            _RESTARTS.labels(self._client.cluster, self._name, _reason(trouble)).inc()
            doubts = doubts + 1 if _may_be_the_version(trouble) else 0
            if is_history_missing(trouble) or doubts > 1:
                self.resource_version = ""
            delay = patience.pause(trouble, now=loop.time(), is_watch=bool(self.resource_version))
            if patience.attempts == 1:
                told = 0
            lasting = loop.time() - patience.since
            level = self._log.debug
            if told < len(_TELL_AFTER) and lasting >= _TELL_AFTER[told]:
                told += 1
                level = self._log.warning
            level(
                "watch failed",
                error=str(trouble),
                retry_in=round(delay, 1),
                attempt=patience.attempts,
                for_seconds=round(lasting),
            )
            await asyncio.sleep(delay)

    async def _list(self) -> None:
        listed = await self._client.list(
            self._resource, limit=self._page_size, transform=self._transform, **self._selection
        )
        self._heard()
        self._client.outage.answered()
        await self._sink.replace(listed.items)
        self.resource_version = listed.resource_version
        self._sends_bookmarks = False  # until one comes: this may be another server
        self.last_error = None

    async def _watch(self) -> None:
        seconds = random.uniform(*_WATCH_SECONDS)  # noqa: S311 - spreads reconnects
        batches = self._client.watch_batches(
            self._resource,
            resource_version=self.resource_version,
            timeout_seconds=seconds,
            read_timeout=seconds + _SILENCE_GRACE,
            **self._selection,
        )
        slicer = Slicer()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        is_empty = True
        try:
            async with contextlib.aclosing(batches), asyncio.timeout(self._patience()) as silence:
                async for batch in batches:
                    if is_empty:  # the first has nothing but the news that the server has begun to answer
                        self._client.outage.answered()
                        is_empty = not batch
                    self._heard()
                    self.last_error = None
                    async with self._client.turn:
                        for event in batch:
                            self._take(event)
                            await slicer.tick()
                    if self._sends_bookmarks:
                        silence.reschedule(loop.time() + _BOOKMARK_SILENCE)
        except TimeoutError:
            raise _Silent(f"the watch has been silent for {_BOOKMARK_SILENCE:g} s") from None
        if is_empty and loop.time() - begun < _SHORT:
            raise ConnectionFailed("the watch ended as soon as it began")

    def _take(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            self._sends_bookmarks = True
        else:
            changed = event.object if self._transform is None else self._transform(event.object)
            self._sink.change(event.type, changed)
        # Last, so that a failure above is met by reading the event again.
        self.resource_version = event.object.resource_version

    def _patience(self) -> float | None:
        return _BOOKMARK_SILENCE if self._sends_bookmarks else None

    def _heard(self) -> None:
        self._contact = asyncio.get_running_loop().time()


def _after_short(shorts: int) -> float:
    """Seconds to wait after watches in a row that brought something and ended at once; a few need no pause."""
    return (
        backoff.exponential(shorts - _FREE_SHORTS, base=0.1, maximum=10.0) if shorts >= _FREE_SHORTS else 0.0
    )


def _reason(error: Exception) -> str:
    """Why a watch is started again, in metrics."""
    if is_history_missing(error):
        return "expired"
    return "disconnected" if isinstance(error, ConnectionFailed) else type(error).__name__


def _may_be_the_version(error: Exception) -> bool:
    """Whether a list may mend what repeating the watch does not: the server cannot go on from the version that we know.

    It may be unable to read it, or what follows it; or it was restored from a backup and has yet to reach it: then a
    watch is accepted and brings nothing, not even bookmarks. client-go lists after nearly every error of a watch; here,
    after the second in a row of those that a list may mend.
    """
    return isinstance(error, _Silent) or (isinstance(error, ApiError) and error.code in {400, 500})
