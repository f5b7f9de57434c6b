"""Follows one collection: lists it, then watches it from the list's resourceVersion until cancelled.

A watch that ends is resumed from the last version seen, without a list. 410 Gone means that history is
missing, so the collection is listed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import structlog
from prometheus_client import Counter

from controller_runtime.client.client import Client
from controller_runtime.client.collection import ObjectSelection
from controller_runtime.errors import (
    ApiError,
    ConfigError,
    ConnectionFailed,
    Expired,
    NotConnected,
    without_frames,
)
from controller_runtime.objects import Object, WatchEvent
from controller_runtime.resources import Resource
from controller_runtime.util import event_loop, rate_limiter
from controller_runtime.util.event_loop import Slicer

_RESTARTS = Counter(
    "virtual_node_watch_restarts_total",
    "Watches started again, by reason.",
    ["cluster", "resource", "reason"],
)
_WARN_AFTER = (5.0, 60.0)
"""Seconds of failures after which a warning is logged; restarts of a server are shorter."""
_WATCH_SECONDS = (300.0, 600.0)
_SILENCE_GRACE = 30.0
_BOOKMARK_SILENCE = 180.0
"""Seconds without any event after which the connection counts as dead, if the server has sent a bookmark. API
servers that send bookmarks send one a minute.

client-go's HTTP/2 pings detect this earlier. TCP probes do not, because a proxy or load balancer answers
them."""
_SHORT = 1.0
"""Seconds; a watch that ends earlier without an event is a failure, as in client-go, because it would be
repeated in a loop."""
_FREE_SHORTS = 3
ListTransform = Callable[[Callable[[Object], None]], Callable[[Object], Object | None]]
_QUIET = 120.0
"""Seconds without a failure of a kind after which its back-off restarts."""
_RESUME = 0.05
"""Seconds to wait after the first break of a watch; most breaks are only a proxy's idle timeout."""
_SPREAD = 0.2
"""Seconds over which the lists of many informers are spread if history is missing for all at the same time."""


class _Silent(ConnectionFailed):
    """A watch that no longer receives anything, not even bookmarks."""


class Sink(Protocol):
    """The receiver of the objects that the reflector reads."""

    async def replace(self, items: list[Object], version: str) -> None:
        """Store a complete list of that resourceVersion."""

    def change(self, kind: str, changed: Object) -> None:
        """Store one change; its kind is ADDED, MODIFIED or DELETED."""


@dataclass(eq=False, repr=False)
class Reflector:
    """Reads a collection and its changes into a sink.

    Attributes:
        resource_version: the last version seen; empty: the collection must be listed.
        last_error: why the server cannot be followed at the moment; None if it can.
        followed_since: when the server answered first, or first after a failure, on the event loop's clock;
            infinite before the first answer.
    """

    client: Client
    """The cluster."""
    resource: Resource
    """The resource to follow."""
    sink: Sink
    """Receives the objects."""
    _: KW_ONLY
    selection: ObjectSelection
    """Namespace and selectors."""
    transform: Callable[[Object], Object] | None
    """Called on every object before the sink receives it; None: no change."""
    name: str
    """In logs and metrics."""
    list_transform: ListTransform | None = None
    """Called for each list, with a function that counts the memory of an object that is kept; returns the function
    to call on the listed objects instead of ``transform``, which leaves out an object by None. None:
    ``transform``."""
    is_minor: bool = False
    """While the server is unreachable, other reflectors reconnect first. Applies after the first list."""

    def __post_init__(self) -> None:
        """Create a reflector; ``run`` starts it."""
        self.resource_version = ""
        self.last_error: Exception | None = None
        self.followed_since = float("inf")
        self._contact: float | None = None
        self._sends_bookmarks = False
        self._to_list = asyncio.Event()
        """Whether the collection must be listed again."""
        self._silence: asyncio.Timeout | None = None
        """Timeout of the running watch; None: no watch runs."""
        self._log = structlog.get_logger(informer=self.name, cluster=self.client.cluster)

    @property
    def age(self) -> float:
        """Return the seconds since the server last answered; infinite before the first answer."""
        if self._contact is None:
            return float("inf")
        return event_loop.now() - self._contact

    def list_again(self) -> None:
        """End the watch and list the collection, because the sink needs objects that it has ignored so far."""
        self._to_list.set()
        if self._silence is not None and not self._silence.expired():
            self._silence.reschedule(event_loop.now())

    async def run(self) -> None:
        """Follow the server until cancelled; retry failures with back-off."""
        outage = self.client.outage
        patience = WatchBackoff()
        logged = doubts = shorts = 0
        is_answered = False
        while True:
            if not is_answered:
                self.last_error = self.last_error or outage.error
                # The first list is never minor, because, for example, a pod may wait for a Secret in it.
                await outage.turn(is_minor=self.is_minor and self._contact is not None)
            is_answered = False
            patience.begins(event_loop.now())
            try:
                if self._to_list.is_set():
                    self._to_list.clear()
                    self.resource_version = ""
                if not self.resource_version:
                    await self._list()
                begun = event_loop.now()
                await self._watch()
                shorts = shorts + 1 if event_loop.now() - begun < _SHORT else 0
                await asyncio.sleep(_after_short(shorts))
                continue
            except (ApiError, ConfigError) as error:
                trouble = self.last_error = without_frames(error)
            if isinstance(trouble, ConnectionFailed):
                outage.error = trouble
            elif isinstance(trouble, ApiError):
                outage.answered()
                is_answered = True  # so a list after a 410 skips ``outage.turn``
            _RESTARTS.labels(self.client.cluster, self.name, _reason(trouble)).inc()
            doubts = doubts + 1 if _may_be_the_version(trouble) else 0
            if is_history_missing(trouble) or doubts > 1:
                self.resource_version = ""
            delay = patience.pause(trouble, now=event_loop.now(), is_watch=bool(self.resource_version))
            if patience.attempts == 1:
                logged = 0
            lasting = event_loop.now() - patience.since
            level = self._log.debug
            if logged < len(_WARN_AFTER) and lasting >= _WARN_AFTER[logged]:
                logged += 1
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
        with self.client.caches.reading() as count:
            convert = self.list_transform(count) if self.list_transform else self.transform
            listed = await self.client.list(self.resource, transform=convert, **self.selection)
        self._note_contact()
        self.client.outage.answered()
        await self.sink.replace(listed.items, listed.resource_version)
        self.resource_version = listed.resource_version
        self._sends_bookmarks = False  # unknown again: another server may have answered
        self.last_error = None

    async def _watch(self) -> None:
        seconds = random.uniform(*_WATCH_SECONDS)  # noqa: S311 - spreads reconnects
        batches = self.client.watch_batches(
            self.resource,
            resource_version=self.resource_version,
            timeout_seconds=seconds,
            read_timeout=seconds + _SILENCE_GRACE,
            **self.selection,
        )
        patience = _BOOKMARK_SILENCE if self._sends_bookmarks else None
        slicer = Slicer()
        begun = event_loop.now()
        is_empty = True
        try:
            async with contextlib.aclosing(batches), asyncio.timeout(patience) as silence:
                self._silence = silence
                if self._to_list.is_set():
                    return
                async for batch in batches:
                    if is_empty:  # the first batch is empty: the server has accepted the watch
                        self.client.outage.answered()
                        is_empty = not batch
                    self._note_contact()
                    self.last_error = None
                    async with self.client.turn:
                        for event in batch:
                            self._take(event)
                            await slicer.tick()
                    if self._to_list.is_set():
                        return
                    if self._sends_bookmarks:
                        silence.reschedule(event_loop.now() + _BOOKMARK_SILENCE)
        except TimeoutError:
            if self._to_list.is_set():
                return
            raise _Silent(f"the watch has been silent for {_BOOKMARK_SILENCE:g} s") from None
        finally:
            self._silence = None
        if is_empty and event_loop.now() - begun < _SHORT:
            raise ConnectionFailed("the watch ended as soon as it started")

    def _take(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            self._sends_bookmarks = True
        else:
            changed = event.object if self.transform is None else self.transform(event.object)
            self.sink.change(event.type, changed)
        # Set last, so that the event is read again if a line before this fails.
        self.resource_version = event.object.resource_version

    def _note_contact(self) -> None:
        now = event_loop.now()
        if self._contact is None or self.last_error is not None:
            self.followed_since = now
        self._contact = now


def _after_short(shorts: int) -> float:
    """Return the seconds to wait after this number of consecutive short watches; the first few need no pause."""
    return (
        rate_limiter.exponential(shorts - _FREE_SHORTS, base=0.1, maximum=10.0)
        if shorts >= _FREE_SHORTS
        else 0.0
    )


def _reason(error: Exception) -> str:
    if is_history_missing(error):
        return "expired"
    return "disconnected" if isinstance(error, ConnectionFailed) else type(error).__name__


def _may_be_the_version(error: Exception) -> bool:
    """Report whether a list may solve an error that repeating the watch does not.

    The server may be unable to read our version or the changes after it. Or it was restored from a backup and
    has not reached our version yet. It then accepts a watch and sends nothing, not even bookmarks. client-go
    lists after nearly every error of a watch. Here the second of these errors in a row causes a list.
    """
    return isinstance(error, _Silent) or (isinstance(error, ApiError) and error.code in {400, 500})


class WatchBackoff:
    """The delays of one reflector: client-go's if the server may be overloaded, otherwise shorter.

    client-go waits 0.8 s, doubled up to 30 s after every failure, so an informer recovers up to a minute after
    its server. Here three kinds of failures are distinguished, the last two with a back-off of their own:

    - No connection: no delay here, because these watches queue (``Outage`` in ``client/transport.py``).
    - The server cannot continue from our version (410, or a version from the future), as after a restart. One
      list solves this, so the first list is sent within 0.2 s. Later lists are delayed, so that a server with
      versions that always expire is not listed in a loop.
    - Everything else, such as an overloaded server: client-go's delays, and never less than Retry-After.

    Attributes:
        attempts: failures in a row, of any kind.
        since: time of the first of these failures, in the loop's seconds.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.since = float("-inf")
        self._last = float("-inf")
        self._waits = False
        self._history = _Ladder(base=0.4, maximum=30.0)
        self._trouble = _Ladder(base=0.8, maximum=30.0)

    def begins(self, now: float) -> None:
        """Record the start of an attempt; time spent waiting does not count as time without failures."""
        if self._waits:
            self._waits, self._last = False, now

    def pause(self, error: Exception, *, now: float, is_watch: bool) -> float:
        """Return the seconds until the next attempt.

        Args:
            error: why the last attempt failed.
            now: the loop's seconds.
            is_watch: whether the next attempt is a watch rather than a list.
        """
        if now - self._last > _QUIET:
            self.attempts, self.since = 0, now
        self.attempts += 1
        self._last = now
        self._waits = True
        jitter = 1 + random.random()  # noqa: S311 - spreads clients that failed at the same time
        if is_history_missing(error):
            steps = self._history.step(now)
            return steps * jitter if self._history.failures > 1 else _SPREAD * (jitter - 1)
        if isinstance(error, NotConnected):
            return 0.0
        pause = self._trouble.step(now)
        if is_watch and isinstance(error, ConnectionFailed) and self._trouble.failures == 1:
            pause = _RESUME
        asked = error.retry_after if isinstance(error, ApiError) else None
        return max(pause, asked or 0.0) * jitter


@dataclass(slots=True, kw_only=True)
class _Ladder:
    """Doubling delays that restart after a time without failures."""

    base: float
    maximum: float
    failures: int = 0
    last: float = float("-inf")

    def step(self, now: float) -> float:
        """Count a failure and return the seconds to wait, without jitter."""
        if now - self.last > _QUIET:
            self.failures = 0
        self.last = now
        self.failures += 1
        return rate_limiter.exponential(self.failures - 1, base=self.base, maximum=self.maximum)


def is_history_missing(error: Exception) -> bool:
    """Report whether the collection must be listed, because the server cannot continue from our version."""
    return isinstance(error, Expired) or _is_from_the_future(error)


def _is_from_the_future(error: Exception) -> bool:
    """Report whether the server has not reached our version yet, as after a restore from a backup."""
    details = error.status.get("details") if isinstance(error, ApiError) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes
    )
