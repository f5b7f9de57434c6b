"""Lower events about our pods appear on the upper pods, so that ``kubectl describe`` tells the whole story.

A plain list and watch, not an informer: events are many, short-lived and read once, so no cache is kept. The
copy's name derives from the lower event's uid; whatever is seen twice is written once.

Warnings go up at once. Normal events are paced: in a burst of a thousand pods their thousand "Scheduled" must
not cost the pods themselves half their speed. They arrive a little later; nobody waits for them.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from controller_runtime import backoff, resources
from controller_runtime.errors import ApiError, ConfigError, Expired
from controller_runtime.objects import Object
from controller_runtime.rate_limiter import TokenBucket
from virtual_node.controllers.context import ClusterContext
from virtual_node.translate import events

_BACKOFF_BASE = 0.8
_WATCH_PAUSE = 1.0
_BACKOFF_MAXIMUM = 30.0
_LIST_AGAIN = 3
"""Failures in a row after which all events are read again; what is seen twice is written once."""
_NORMAL_QPS = 20.0
"""Normal events per second that go up in the long run: above Kubernetes' own churn limit of 20 pods/s."""
_NORMAL_BURST = 50
_NORMAL_BUFFER = 5000
"""Normal events that may wait; the oldest go first when there are more."""
_FIELD_SELECTOR = "involvedObject.kind=Pod"


class EventMirror:
    """Copies events of lower pods to their upper pods."""

    def __init__(
        self,
        context: ClusterContext,
        *,
        find_lower: Callable[[str, str], Object | None],
        find_upper: Callable[[Object], Object | None],
    ) -> None:
        """Set up.

        Args:
            context: the two clusters.
            find_lower: our lower pod by namespace and name, or None.
            find_upper: the upper pod of a lower pod, or None.
        """
        self._context = context
        self._find_lower = find_lower
        self._find_upper = find_upper
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_NORMAL_BUFFER)
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Mirror until cancelled. Trouble with the lower cluster is waited out."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name=f"{self._context.name} events")
            group.create_task(self._send_waiting(), name=f"{self._context.name} normal events")

    async def _send_waiting(self) -> None:
        bucket = TokenBucket(_NORMAL_QPS, _NORMAL_BURST)
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            await bucket.acquire()
            if self._waiting:
                self._context.recorder.record(self._waiting.popleft())

    async def _follow(self) -> None:
        failures = 0
        resource_version = ""
        while True:
            try:
                if not resource_version:
                    resource_version = await self._catch_up()
                watch = self._context.lower.watch(
                    resources.EVENTS, field_selector=_FIELD_SELECTOR, resource_version=resource_version
                )
                async for event in watch:
                    failures = 0
                    resource_version = event.object.resource_version
                    if event.type in {"ADDED", "MODIFIED"}:
                        self._mirror(event.object)
                # Servers end watches after minutes; one that ends them at once is not to be asked in a loop.
                await asyncio.sleep(_WATCH_PAUSE)
            except (ApiError, ConfigError) as error:
                failures += 1
                if isinstance(error, Expired) or failures >= _LIST_AGAIN:
                    # A server that was restored from a backup has yet to reach our version.
                    resource_version = ""
                delay = backoff.exponential(failures - 1, base=_BACKOFF_BASE, maximum=_BACKOFF_MAXIMUM)
                self._context.log.debug("event watch failed", error=str(error), retry_in=round(delay, 1))
                await asyncio.sleep(delay * (1 + random.random()))  # noqa: S311 - jitter

    async def _catch_up(self) -> str:
        listed = await self._context.lower.list(resources.EVENTS, field_selector=_FIELD_SELECTOR)
        for event in listed.items:
            self._mirror(event)
        return listed.resource_version

    def _mirror(self, event: Object) -> None:
        involved = event.field("involvedObject") or {}
        lower = self._find_lower(involved.get("namespace", ""), involved.get("name", ""))
        if lower is None or lower.uid != involved.get("uid"):
            return
        upper = self._find_upper(lower)
        if upper is None:
            return
        spec = upper.spec or {}
        copy = events.upper_event(
            event.to_dict(), upper.to_dict(), node_name=spec.get("nodeName", ""), namespace=upper.namespace
        )
        if copy.get("type") == "Warning":
            self._context.recorder.record(copy)
            return
        self._waiting.append(copy)
        self._arrived.set()
