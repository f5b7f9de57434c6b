"""Counts the open streams of one kubelet port, and cancels them when the virtual node stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from aiohttp import web
from prometheus_client import Counter, Gauge

from virtual_node.kubelet.base.errors import Refusal
from virtual_node.kubelet.streams.limits import StreamLimits

STREAMS = Gauge("virtual_node_kubelet_streams", "Streams open now, by kind.", ["verb"])
STREAM_BYTES = Counter(
    "virtual_node_kubelet_stream_bytes_total",
    "Bytes copied by streams that have ended, towards the upper or the lower cluster.",
    ["verb", "to"],
)


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
