"""Limits of open streams (exec, attach, port-forward, logs, run) in the process and in one namespace.

The API server uses one certificate for all of its users, so the user of a request is unknown here. Streams
are therefore divided between the namespaces of upper pods. One user may have several namespaces, so the last
streams are reserved for namespaces that have few.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Iterator, Mapping
from typing import Literal

from aiohttp import web
from prometheus_client import Counter, Gauge

from virtual_node.kubelet.base import Refusal

REFUSED = Counter(
    "virtual_node_kubelet_streams_refused_total",
    "Streams refused because too many are open, in the namespace or in all.",
    ["limit"],
)
_LONG_HEAD = 64 * 1024
"""Bytes of a request's target that count as one more stream, because an exec may contain a script of a
megabyte."""
_RESERVES = ((5, 5), (10, 1))
"""(divisor, streams): the last total/divisor streams are reserved for namespaces that have at most ``streams``
open streams, including the new one."""
# For requests without upgrade the API server replaces the text of a 429, but passes on the text of a 400.
_STATUS = {"logs": 400, "run": 400}
STREAMS = Gauge("virtual_node_kubelet_streams", "Streams open now, by kind.", ["verb"])
STREAM_BYTES = Counter(
    "virtual_node_kubelet_stream_bytes_total",
    "Bytes copied by streams that have ended, towards the upper or the lower cluster.",
    ["verb", "to"],
)


class StreamLimits:
    """Counts open streams; shared by the virtual nodes of a process.

    Args:
        total: Maximum number of open streams.
        per_namespace: Maximum number of open streams to pods of one upper namespace.
    """

    def __init__(self, total: int = 1000, per_namespace: int = 100) -> None:
        self._total = total
        self._per_namespace = per_namespace
        self._open: collections.Counter[str] = collections.Counter()
        for limit in ("namespace", "total"):
            REFUSED.labels(limit)

    @contextlib.contextmanager
    def hold(self, verb: str, namespace: str, target: str) -> Iterator[None]:
        """Count a stream while the block runs, or refuse it.

        Args:
            verb: exec, attach, portforward, logs or run.
            namespace: The upper pod's namespace.
            target: Path and query of the request. A long target counts as several streams.

        Raises:
            Refusal: Too many streams are open; the text names the setting.
        """
        weight = 1 + len(target) // _LONG_HEAD
        limit = exceeded(self._open, namespace, weight, total=self._total, per_namespace=self._per_namespace)
        if limit is not None:
            REFUSED.labels(limit).inc()
            if limit == "namespace":
                which = f" to pods of namespace {namespace}"
                setting = f"streamsPerNamespace of the virtual node is {self._per_namespace}"
            else:
                which, setting = "", f"streams of the virtual node is {self._total}"
                if self._open.total() < self._total:
                    setting += ", and the last are kept for namespaces with few"
            text = (
                f"too many open streams (exec, attach, port-forward, logs){which}: kubelet.limits.{setting}"
            )
            raise Refusal(_STATUS.get(verb, 429), text)
        self._open[namespace] += weight
        try:
            yield
        finally:
            self._open[namespace] -= weight
            if not self._open[namespace]:
                del self._open[namespace]


def exceeded(
    streams: Mapping[str, int], namespace: str, weight: int, *, total: int, per_namespace: int
) -> Literal["namespace", "total"] | None:
    """Return the limit that one more stream would exceed; None: it exceeds none.

    Args:
        streams: Number of open streams by namespace.
        namespace: The new stream's namespace.
        weight: Number of streams that the new stream counts as.
        total: Maximum number of open streams. The last streams are reserved (``_RESERVES``).
        per_namespace: Maximum number of open streams of one namespace.
    """
    held = streams.get(namespace, 0) + weight
    if held > per_namespace:
        return "namespace"
    free = total - sum(streams.values()) - weight
    if free < 0 or any(free < total // divisor and held > few for divisor, few in _RESERVES):
        return "total"
    return None


class StreamRegistry:
    """The tasks of all open streams.

    Args:
        limits: Limits of open streams, shared with other ports; None: own limits.
    """

    def __init__(self, limits: StreamLimits | None = None) -> None:
        self._limits = limits or StreamLimits()
        self._tasks: dict[object, asyncio.Task[object]] = {}
        self._changed = asyncio.Event()
        self._draining = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextlib.contextmanager
    def track(self, verb: str, request: web.Request) -> Iterator[None]:
        """Count the current task as a stream while the block runs.

        Args:
            verb: exec, attach, portforward, logs or run.
            request: The stream's request; its path contains the pod's namespace.

        Raises:
            Refusal: 503 if the virtual node is shutting down, 400 or 429 if too many streams are open.
        """
        if self._draining:
            raise Refusal(503, "the virtual node is shutting down")
        task = asyncio.current_task()
        assert task is not None
        key = object()
        with self._limits.hold(verb, request.match_info["namespace"], request.raw_path):
            self._tasks[key] = task
            STREAMS.labels(verb).inc()
            try:
                yield
            finally:
                del self._tasks[key]
                STREAMS.labels(verb).dec()
                self._changed.set()

    async def drain(self, grace: float, *, after: asyncio.Event | None = None) -> int:
        """Accept no more streams, wait for open ones to end, then cancel the rest.

        Args:
            grace: Maximum seconds to wait.
            after: ``grace`` begins when this event is set; None: now.

        Returns:
            The number of cancelled streams.
        """
        self._draining = True
        if after is not None:
            waits = [asyncio.create_task(self._wait_empty()), asyncio.create_task(after.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._wait_empty()
        ended = len(self._tasks)
        for task in tuple(self._tasks.values()):
            task.cancel()
        return ended

    async def _wait_empty(self) -> None:
        while self._tasks:
            self._changed.clear()
            await self._changed.wait()
