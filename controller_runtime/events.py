"""Records Events of a component without blocking it.

``EventRecorder.event`` is a plain function that decides at once to which Event a report is
added and queues that Event; workers write it. An Event that changes again while queued is written once, in
its latest state, so a burst causes only one request per Event. This follows client-go's EventBroadcaster, but
also retries after errors that the server returns.

``EventCorrelator`` decides to which Event a report (``Happening``) is added and whether the Event is sent, in three
stages, as in client-go (``tools/record/events_cache.go``):

1. *Aggregation*: after ten different messages for the same object, type and reason, each within ten minutes
   of the previous message, further messages share one Event, ``(combined from similar events): …``.
2. *Counting*: a repeated report increases the count of the same Event.
3. *Spam filter* (``Pace``): an object may have 25 Events at once, then one every five minutes.

Each stage remembers the 4,096 latest keys.
"""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
from prometheus_client import Counter

from controller_runtime import log, resources
from controller_runtime.apimachinery.timestamps import rfc3339
from controller_runtime.errors import (
    AlreadyExists,
    ApiError,
    ConfigError,
    ConnectionFailed,
    NotFound,
    Unauthorized,
    is_namespace_gone,
    is_retryable,
)
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.util import rate_limiter
from controller_runtime.util.buffers import FairBuffer, Recent
from controller_runtime.util.rate_limiter import Pace

EventType = Literal["Normal", "Warning"]
_WRITTEN = Counter("virtual_node_events_total", "Events written to the apiserver.", ["cluster", "outcome"])
DROPPED = Counter("virtual_node_events_dropped_total", "Events that were not written.", ["cluster", "cause"])
_CAPACITY = 10_000
"""Maximum Events that wait to be written: two for each pod of a burst of 5,000."""
_ROOM = 100
"""Number of waiting Events from which ``wait_for_room`` waits, so that an Event of this process does not wait behind
thousands of mirrored ones."""
_TRIES = 12
_BACKOFF_BASE = 1.0
_BACKOFF_MAXIMUM = 10.0
SIMILAR = 10
SIMILAR_WITHIN = 600.0
MESSAGE_LENGTH = 1024
"""Maximum characters of a note in events.k8s.io; kube-scheduler also cuts its messages to this length."""
COMBINED = "(combined from similar events): "
SPAM_BURST, SPAM_QPS = 25, 1 / 300
"""Events of one object at once, and per second in the long run."""

_CHANGING = ("count", "firstTimestamp", "lastTimestamp", "message", "reason", "series", "type")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_LENGTH = 253


class EventsClient(Protocol):
    """The methods of ``client.Client`` that the recorder uses."""

    @property
    def cluster(self) -> str:
        """Return the cluster's name, for metrics."""

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        """Create an object."""

    async def patch(
        self, resource: Resource, name: str, patch: Any, *, namespace: str | None = None
    ) -> dict[str, Any]:
        """Change parts of an object by a JSON merge patch."""


_RECENT = 50
"""Recent Events of each type that are kept for display."""


@dataclass(eq=False, repr=False)
class EventRecorder:
    """Records core/v1 Events in one cluster. Not thread-safe: call it in the event loop's thread."""

    client: EventsClient
    """Client of the cluster."""
    _: KW_ONLY
    component: str
    """The reporting component, such as ``virtual-node``."""
    host: str = ""
    """Reporting instance; may be empty."""
    capacity: int = _CAPACITY
    """Maximum Events that wait to be written (``queue``)."""
    workers: int = 4
    """Number of concurrent requests."""
    flush_timeout: float = 1.5
    """Seconds that ``run`` continues to write after it was cancelled."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Wall clock, for tests."""

    def __post_init__(self) -> None:
        self._correlator = EventCorrelator(component=self.component, host=self.host)
        self._recorded: Recent[tuple[str, str], Series] = Recent()
        self._queue = EventQueue(self.capacity)
        self._shortened = asyncio.Event()
        self._recent: dict[bool, Recent[tuple[str, str], dict[str, Any]]] = {
            is_warning: Recent(_RECENT) for is_warning in (False, True)
        }
        self._closing = False
        self._rejections: set[tuple[int, str]] = set()
        self._log = log.get_logger(component="events", cluster=self.client.cluster)

    @property
    def recent(self) -> list[dict[str, Any]]:
        """Return the latest Normal and Warning Events for display, also those that are not written.

        The two types are kept separately, so a burst of one does not displace the other.
        """
        return [event for events in self._recent.values() for event in events.values()]

    def event(
        self,
        involved: Mapping[str, Any] | Object,
        type_: EventType,
        reason: str,
        message: str,
    ) -> None:
        """Record an Event about an object; returns at once and never raises an error of the server.

        Args:
            involved: the object, cached or plain, or an ObjectReference, which may have a ``fieldPath``.
                Events of cluster-scoped objects go to namespace ``default``.
            type_: Normal or Warning.
            reason: one CamelCase word, the same for all occurrences.
            message: for users; cut at 1,024 characters.
        """
        reference = reference_to(involved)
        if not reference.get("kind") or not reference.get("name"):
            self._log.error(
                "event without an involved object", reason=reason, message=message, involved=reference
            )
            return
        series = self._correlator.correlate(
            Happening(reference, type_, reason, message),
            at=asyncio.get_running_loop().time(),
            now=self.now(),
        )
        if series is None:
            self._drop("spam")
        else:
            self._enqueue(series)

    def record(self, event: dict[str, Any]) -> None:
        """Queue a complete Event to be written, such as one mirrored from another cluster; returns at once.

        The Event is created. If one of this name exists, its count, times and message are updated. If the
        server already has the Event in this state, no request is sent. There is no aggregation, cut or spam
        filter here: the caller bounds the size and the rate. It must not change the dict afterwards.
        """
        metadata = event.get("metadata") or {}
        key = (metadata.get("namespace") or "", metadata.get("name") or "")
        if not all(key):
            self._log.error("event without a namespace or name", involved=event.get("involvedObject"))
            return
        series = self._recorded.touch(key)
        if series is None:
            series = self._recorded[key] = Series({}, is_mirrored=True)
        is_waiting = bool(series.body)
        series.body = event
        if series.fingerprint() == series.sent and not is_waiting:
            series.body = {}
        else:
            self._enqueue(series)

    async def wait_for_room(self) -> None:
        """Wait until few Events are queued; a caller of ``record`` that does so displaces no Event of the queue."""
        while len(self._queue) >= _ROOM:
            self._shortened.clear()
            await self._shortened.wait()

    async def run(self) -> None:
        """Write Events until cancelled, then write queued Events for at most ``flush_timeout`` seconds."""
        workers = [asyncio.create_task(self._work(), name="event recorder") for _ in range(self.workers)]
        try:
            await asyncio.wait(workers)
        finally:
            self._closing = True
            self._queue.wake()
            try:
                await asyncio.wait(workers, timeout=self.flush_timeout)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                for _ in range(len(self._queue)):
                    self._drop("shutdown")

    def _enqueue(self, series: Series) -> None:
        self._recent[series.body.get("type") == "Warning"][series.namespace, series.name] = series.body
        if self._queue.put(series) is not None:
            self._drop("overflow")

    def _drop(self, cause: str) -> None:
        DROPPED.labels(self.client.cluster, cause).inc()

    async def _work(self) -> None:
        while True:
            series = self._queue.take()
            if series is None:
                if self._closing:
                    return
                await self._queue.wait()
                continue
            self._shortened.set()
            try:
                await self._send(series)
            except asyncio.CancelledError:
                self._drop("shutdown")
                raise
            except Exception:  # noqa: BLE001 - one Event that cannot be written must not end the worker
                self._log.exception(
                    "event not written because of an unexpected error",
                    event_name=series.name,
                    namespace=series.namespace,
                )
                self._drop("rejected")
            finally:
                if not self._queue.done(series) and series.is_mirrored:
                    series.body = {}

    async def _send(self, series: Series) -> None:
        attempts = refusals = 0
        while True:
            try:
                await self._write(series)
            except (ApiError, ConfigError) as error:
                concerns_all = concerns_all_events(error)
                if isinstance(error, ApiError) and not (concerns_all or may_succeed_later(error)):
                    self._reject(series, error)
                    return
                refusals += not concerns_all
                if refusals == _TRIES:
                    break
                delay = rate_limiter.exponential(attempts, base=_BACKOFF_BASE, maximum=_BACKOFF_MAXIMUM)
                delay = max(delay * random.uniform(0.5, 1), getattr(error, "retry_after", None) or 0)  # noqa: S311 - jitter
                attempts += 1
                self._log.debug(
                    "writing an event failed; retrying", error=str(error), retry_in=round(delay, 1)
                )
            else:
                return
            await asyncio.sleep(delay)
        self._log.warning(
            "event dropped after repeated failures",
            event_name=series.name,
            namespace=series.namespace,
            tries=_TRIES,
        )
        self._drop("unanswered")

    async def _write(self, series: Series) -> None:
        fingerprint = series.fingerprint()
        if fingerprint == series.sent:
            return
        create = partial(self.client.create, resources.EVENTS, series.body, namespace=series.namespace)
        patch = partial(
            self.client.patch, resources.EVENTS, series.name, series.changing(), namespace=series.namespace
        )
        if series.sent is None:
            try:
                await create()
            except AlreadyExists:
                # Created by an earlier attempt that got no answer, or mirrored before a restart.
                await patch()
        else:
            try:
                await patch()
            except NotFound:  # Events expire after an hour
                series.sent = None
                await create()
        outcome = "created" if series.sent is None else "updated"
        series.sent = fingerprint
        _WRITTEN.labels(self.client.cluster, outcome).inc()

    def _reject(self, series: Series, error: ApiError) -> None:
        """Count an Event that the server rejects; log a warning once for each kind of rejection."""
        self._drop("rejected")
        if is_namespace_gone(error):
            return
        kind = (error.code, error.reason)
        level = self._log.debug if kind in self._rejections else self._log.warning
        self._rejections.add(kind)
        level(
            "the server rejects an event",
            error=str(error),
            event_name=series.name,
            namespace=series.namespace,
            reason=series.body.get("reason"),
        )


class EventQueue:
    """Waiting Events.

    Args:
        capacity: maximum number of waiting Events. Above it, the oldest Normal Event is dropped, or the
            oldest Warning if there is no Normal Event, of the namespace with the most.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._warnings: FairBuffer[int, Series] = FairBuffer()
        self._normals: FairBuffer[int, Series] = FairBuffer()
        self._taken: set[int] = set()
        self._event = asyncio.Event()

    def __len__(self) -> int:
        return self._warnings.size + self._normals.size

    def put(self, series: Series) -> Series | None:
        """Add an Event unless it waits already; return the Event that was dropped for it, or None."""
        lane = self._warnings if series.body.get("type") == "Warning" else self._normals
        if lane.get(series.namespace, id(series)) is not None:
            return None
        lane.put(series.namespace, id(series), series)
        self.wake()
        if len(self) <= self._capacity:
            return None
        return (self._normals if self._normals.size else self._warnings).evict()

    def take(self) -> Series | None:
        """Remove and return the next Event that no other worker is writing; None if there is none."""
        for lane in (self._warnings, self._normals):
            series = lane.take(but=self._taken)
            if series is not None:
                self._taken.add(id(series))
                return series
        return None

    def done(self, series: Series) -> bool:
        """Mark an Event from ``take`` as written; report whether it was queued again meanwhile."""
        self._taken.discard(id(series))
        lanes = (self._warnings, self._normals)
        waits = any(lane.get(series.namespace, id(series)) is not None for lane in lanes)
        if waits:
            self.wake()
        return waits

    def wake(self) -> None:
        """Wake all waiting workers."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until there may be an Event to take."""
        self._event.clear()
        await self._event.wait()


def concerns_all_events(error: ApiError | ConfigError) -> bool:
    """Report whether no Event can be written now: the server is not reached, or does not accept our credentials.

    Such an Event waits without a limit of tries, because dropping it would make no other Event arrive earlier.
    """
    return isinstance(error, (ConnectionFailed, Unauthorized, ConfigError))


def may_succeed_later(error: ApiError) -> bool:
    """Report whether this Event may be written later; also if it was created meanwhile, because it can be patched then."""
    if is_namespace_gone(error):
        return False
    return is_retryable(error) or isinstance(error, AlreadyExists)


@dataclass(slots=True, eq=False)
class Series:
    """One Event object over time."""

    body: dict[str, Any]
    """The complete core/v1 Event in its desired state."""
    sent: int | None = None
    """``fingerprint()`` of the server's Event; None if the server may not have the Event."""
    is_mirrored: bool = False
    """True if each report contains the complete Event; ``body`` is then emptied after the Event was written."""

    @property
    def namespace(self) -> str:
        """Return the Event's own namespace."""
        return str(self.body["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Return the Event's own name."""
        return str(self.body["metadata"]["name"])

    def changing(self) -> dict[str, Any]:
        """Return the fields that differ between occurrences, as a merge patch, without null fields."""
        return {key: self.body[key] for key in _CHANGING if self.body.get(key) is not None}

    def fingerprint(self) -> int:
        """Return a hash of ``changing()``; a hash, because thousands of Events are remembered."""
        return hash(msgspec.json.encode(self.changing()))


@dataclass(frozen=True, slots=True)
class Happening:
    """What a component reports about an object."""

    involved: dict[str, str]
    """An ObjectReference."""
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Similar:
    last: float
    messages: set[str] = field(default_factory=set)


def reference_to(involved: Mapping[str, Any] | Object) -> dict[str, str]:
    """Return the ObjectReference of a cached or plain object; an ObjectReference is copied."""
    if isinstance(involved, Object):
        found = {
            "apiVersion": involved.api_version,
            "kind": involved.kind,
            "namespace": involved.namespace,
            "name": involved.name,
            "uid": involved.uid,
            "resourceVersion": involved.resource_version,
        }
    else:
        metadata = involved.get("metadata", involved)
        found = {key: involved.get(key, "") for key in ("apiVersion", "kind", "fieldPath")}
        found |= {key: metadata.get(key, "") for key in ("namespace", "name", "uid", "resourceVersion")}
    return {key: str(value) for key, value in found.items() if value}


class EventCorrelator:
    """Turns reports (``Happening``) into Events of one component.

    Args:
        component: reporting component, such as ``virtual-node``.
        host: reporting instance, such as the node's or pod's name; may be empty.
    """

    def __init__(self, *, component: str, host: str = "") -> None:
        self._component = component
        self._host = host
        self._similar: Recent[tuple[str, ...], _Similar] = Recent()
        self._series: Recent[tuple[str, ...], Series] = Recent()
        self._spam: Pace[tuple[str, ...]] = Pace(burst=SPAM_BURST, qps=SPAM_QPS)
        self._last_stamp = 0

    def correlate(self, what: Happening, *, at: float, now: datetime) -> Series | None:
        """Return the Event to write for a happening; None if the object has had too many.

        The message is cut at 1,024 characters. ``at`` is the same moment as ``now`` in seconds of a monotonic clock.
        """
        involved = what.involved
        subject = tuple(involved.get(key, "") for key in ("kind", "namespace", "name", "uid", "apiVersion"))
        kind = (*subject, what.type, what.reason)
        message = what.message
        key = (*kind, involved.get("fieldPath", ""), message)
        if self._is_one_of_many(kind, message, at):
            message, key = COMBINED + message, kind
        if len(message) > MESSAGE_LENGTH:
            message = message[: MESSAGE_LENGTH - 4] + " ..."
        series = self._series.touch(key)
        if series is None:
            series = self._series[key] = Series(self._event(what, now))
        else:
            series.body["count"] += 1
            series.body["lastTimestamp"] = rfc3339(now)
        series.body["message"] = message
        return None if self._spam.wait(subject, now=at) else series

    def _is_one_of_many(self, kind: tuple[str, ...], message: str, at: float) -> bool:
        similar = self._similar.touch(kind)
        if similar is None or at - similar.last > SIMILAR_WITHIN:
            similar = self._similar[kind] = _Similar(at)
        similar.last = at
        if message in similar.messages:
            return False
        if len(similar.messages) >= SIMILAR:
            return True
        similar.messages.add(message)
        return False

    def _event(self, what: Happening, now: datetime) -> dict[str, Any]:
        involved = what.involved
        metadata = {
            "name": self._name(involved.get("name", ""), now),
            "namespace": involved.get("namespace") or "default",
        }
        source = {"component": self._component}
        if self._host:
            source["host"] = self._host
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": involved,
            "type": what.type,
            "reason": what.reason,
            "message": what.message,
            "source": source,
            "firstTimestamp": rfc3339(now),
            "lastTimestamp": rfc3339(now),
            "count": 1,
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }

    def _name(self, involved: str, now: datetime) -> str:
        """Return a unique ``<object>.<nanoseconds in hex>``; if that is no valid name, with a UUID as object."""
        stamp = int(now.timestamp()) * 10**9 + now.microsecond * 1000
        self._last_stamp = stamp = max(stamp, self._last_stamp + 1)
        name = f"{involved}.{stamp:x}"
        if len(name) > _NAME_LENGTH or not _DNS_SUBDOMAIN.fullmatch(name):
            return f"{uuid.uuid4()}.{stamp:x}"
        return name
