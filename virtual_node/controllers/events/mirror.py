"""Copies lower events about our pods to the upper pods, so that ``kubectl describe`` shows all of them.

It uses a reflector without an informer's cache, because events are many, short-lived and read once. The
copy's name is derived from the lower event's uid, so an event that is seen twice is written once. After each
list, such as at start, copies are listed too, and an event that has not changed since it was copied is skipped.

Warnings are written at once. Normal events are rate-limited, because in a burst of a thousand pods, a
thousand "Scheduled" events would halve the rate at which pods are written. So Normal events arrive a little
later, and those of pods that are gone by then are dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.cache.reflector import Reflector
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.events.correlator import Series
from controller_runtime.objects import Object, from_dict
from controller_runtime.util.rate_limiter import TokenBucket
from controller_runtime.util.yielding import Slicer
from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.translate.pods import events

_NORMAL_QPS = 20.0
"""Normal events written per second in the long run, the same as Kubernetes' own churn limit of 20 pods/s."""
_NORMAL_BURST = 50
_NORMAL_BUFFER = 20_000
"""Maximum number of waiting Normal events; the oldest are dropped first."""
_PAGE = 500
_NOTHING = from_dict({"metadata": {}})
_LATE = 2.0
"""Seconds after which an event is tried again if its pod is unknown: watches of pods and events have no common order."""


@dataclass(eq=False, repr=False)
class EventMirror:
    """Copies events of lower pods to their upper pods."""

    context: ClusterContext
    pods: PodCaches
    _waiting: deque[tuple[str, bytes]] = field(default_factory=lambda: deque(maxlen=_NORMAL_BUFFER))
    """Uids of upper pods and their events, encoded because a dict takes four times the memory."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Mirror until cancelled; retry while the lower cluster does not answer."""
        reflector = Reflector(
            self.context.lower,
            resources.EVENTS,
            self,
            selection={"field_selector": "involvedObject.kind=Pod"},
            transform=None,
            list_transform=self._of_our_pod,
            name=resources.EVENTS.qualified,
            is_minor=True,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run(), name=f"{self.context.name} events")
            group.create_task(self._send_waiting(), name=f"{self.context.name} normal events")

    async def _send_waiting(self) -> None:
        bucket = TokenBucket(_NORMAL_QPS, _NORMAL_BURST)
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            if self.pods.upper_pod(self._waiting[0][0]) is None:
                self._waiting.popleft()
                continue
            await bucket.acquire()
            if self._waiting:
                self.context.recorder.record(msgspec.json.decode(self._waiting.popleft()[1]))

    async def replace(self, items: list[Object]) -> None:
        """Copy all existing events except those whose copy is up to date."""
        ours = [event for event in items if event is not _NOTHING]
        copied = await self._copied({events.name_suffix(event.uid) for event in ours}) if ours else {}
        slicer = Slicer()
        for event in ours:
            self._mirror(event, copied)
            await slicer.tick()

    def change(self, kind: str, changed: Object) -> None:
        """Copy a new or repeated event; ignore deletions, because events expire after an hour."""
        if kind != "DELETED" and not self._mirror(changed, {}):
            asyncio.get_running_loop().call_later(_LATE, self._mirror, changed, {})

    def _of_our_pod(self, event: Object) -> Object:
        """Return the event; an empty object if it is of another pod: there may be 100,000 events of deleted pods."""
        return _NOTHING if self._lower_pod(event) is None else event

    def _lower_pod(self, event: Object) -> Object | None:
        involved = event.field("involvedObject") or {}
        lower = self.pods.lower.store.get(f"{involved.get('namespace', '')}/{involved.get('name', '')}")
        return None if lower is None or lower.uid != involved.get("uid") else lower

    async def _copied(self, suffixes: Collection[str]) -> dict[str, int]:
        """Return the fingerprints of our copies whose names have these suffixes, by key; empty: none, or no answer.

        A tenant can write such an event, too. But its fingerprint covers the content, so it only replaces an equal
        copy in the tenant's own namespace.
        """
        found: dict[str, int] = {}

        def take(event: Object) -> Object:
            if event.name.rpartition(".")[2] in suffixes:
                found[event.key] = Series(event.to_dict()).fingerprint()
            return _NOTHING  # events may be large

        try:
            await self.context.upper.list(
                resources.EVENTS,
                label_selector=f"{names.LABEL_NODE} in ({','.join(self.context.nodes)})",
                page_size=_PAGE,
                transform=take,
            )
        except (ApiError, ConfigError) as error:
            self.context.log.warning("copied events not listed; events are written again", error=str(error))
        return found

    def _mirror(self, event: Object, copied: Mapping[str, int]) -> bool:
        """Copy an event unless its copy is up to date; return False if its lower pod is unknown."""
        lower = self._lower_pod(event)
        if lower is None:
            return False
        upper = self.pods.upper_pod(lower.labels.get(names.LABEL_UPPER_UID, ""))
        if upper is None:
            return True
        spec = upper.spec or {}
        copy = events.upper_event(
            event.to_dict(), upper.to_dict(), node_name=spec.get("nodeName", ""), namespace=upper.namespace
        )
        known = copied.get(f"{upper.namespace}/{copy['metadata']['name']}")
        if known is not None and known == Series(copy).fingerprint():
            return True
        if copy.get("type") == "Warning":
            self.context.recorder.record(copy)
        else:
            self._waiting.append((upper.uid, msgspec.json.encode(copy)))
            self._arrived.set()
        return True
