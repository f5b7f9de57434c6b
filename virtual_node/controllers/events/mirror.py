"""Copies lower events about our objects to the upper objects, so that ``kubectl describe`` shows all of them.

It uses a reflector without an informer's cache, because events are many, short-lived and read once. The
copy's name is derived from the lower event's uid, so an event that is seen twice is written once. After each
list, such as at start, copies are listed too, and an event that has not changed since it was copied is skipped.

Events are rate-limited, for the lower cluster and for each object, because a hostile lower cluster could fill the
etcd of the upper cluster with them. Warnings have a burst with which they are written at once. Normal events have
a small one, because in a burst of a thousand pods, a thousand "Scheduled" events would halve the rate at which pods
are written. So Normal events arrive a little later, and those of pods that are gone by then are dropped. An event
that arrives before its object waits for the object (``waiting``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.reflector import Reflector
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.events import DROPPED, SPAM_BURST, SPAM_QPS, Series
from controller_runtime.objects import Object, from_dict
from controller_runtime.util.buffers import FairBuffer, Recent
from controller_runtime.util.event_loop import Slicer
from controller_runtime.util.rate_limiter import Pace, TokenBucket
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.events.kinds import MirroredKind, involved
from virtual_node.controllers.events.waiting import LONGEST, HeldEvents, Outbox, copy_of, pack, unpack
from virtual_node.translate.objects import events

_NORMAL_QPS = 20.0
"""Normal events written per second in the long run, the same as Kubernetes' own churn limit of 20 pods/s."""
_NORMAL_BURST = 50
_WARNING_QPS = 20.0
"""Warnings written per second in the long run. A scheduler repeats its Warning about a pod every five minutes, so these
are the Warnings of 6,000 pending pods. With the Normal events, one lower cluster has at most 150,000 events of 2 kB
in the upper etcd, because events expire after an hour."""
_WARNING_BURST = 1000
OBJECT_BURST, OBJECT_QPS = 4 * SPAM_BURST, 4 * SPAM_QPS
"""Copies of one object at once, and per second in the long run: those of four components that use client-go. The lower
cluster chooses the names of components, so they are not limited one by one."""
_NORMAL_LIMIT, _WARNING_LIMIT = 16 << 20, 4 << 20
"""Bytes of waiting events. A Normal one takes 0.6 kB. The scheduler and the kubelet write five for a new pod, and those of
5,000 pods fit."""
_LISTED_LIMIT = 16 << 20
"""Bytes of listed events that are not compared with their copies yet, about 28,000 events."""
_OVERHEAD = 400
"""Bytes of memory of a listed event in addition to its text, measured."""
_LARGEST = 64 << 10
"""Maximum bytes of an event. Those of Kubernetes have at most a few thousand, but a lower user can write a megabyte."""
_PAGE = 500


@dataclass(eq=False, repr=False)
class EventMirror:
    """Copies events of lower objects to their upper objects."""

    context: ClusterContext
    kinds: Sequence[MirroredKind]

    async def run(self) -> None:
        """Mirror until cancelled; retry while the lower cluster does not answer."""
        context = self.context
        spam: Pace[str] = Pace(burst=OBJECT_BURST, qps=OBJECT_QPS)
        outbox = partial(Outbox, context.name, context.recorder, spam=spam)
        normals = outbox(limit=_NORMAL_LIMIT, bucket=TokenBucket(_NORMAL_QPS, _NORMAL_BURST))
        warnings = outbox(limit=_WARNING_LIMIT, bucket=TokenBucket(_WARNING_QPS, _WARNING_BURST))
        held = HeldEvents(context.name)
        async with asyncio.TaskGroup() as group:
            group.create_task(warnings.run(), name=f"{context.name} warnings")
            group.create_task(normals.run(), name=f"{context.name} normal events")
            group.create_task(_expire(held), name=f"{context.name} early events")
            for kind in self.kinds:
                reader = _Reader(context, kind, held, normals, warnings)
                group.create_task(reader.run(), name=f"{context.name} events of {kind.kind}")


@dataclass(eq=False, repr=False)
class _Reader:
    """Reads lower events about objects of one kind, and queues their copies."""

    _context: ClusterContext
    _kind: MirroredKind
    _held: HeldEvents
    _normals: Outbox
    _warnings: Outbox
    _deleted: Recent[str, tuple[str, str]] = field(default_factory=Recent)
    """Key and uid of the upper object by the uid of the lower one that was deleted, such as an evicted pod: its last
    events may arrive later."""
    _listed: FairBuffer[str, tuple[str, bytes]] = field(default_factory=FairBuffer)
    """Uids and packed events of a list, by uid, until the list is complete."""

    def __post_init__(self) -> None:
        self._of_kind = f"involvedObject.kind={self._kind.kind}"

    async def run(self) -> None:
        for informer in (self._kind.lower, *self._kind.upper):
            await informer.wait_synced()
        reflector = Reflector(
            self._context.lower,
            resources.EVENTS,
            self,
            selection={"field_selector": self._of_kind},
            transform=None,
            list_transform=lambda _count: self._take_listed,
            name=resources.EVENTS.qualified,
            is_minor=True,
        )
        with self._kind.lower.add_handler(
            on_add=lambda lower, _initial: self._appeared(lower), on_delete=self._disappeared
        ):
            await reflector.run()

    async def replace(self, _items: list[Object], _version: str) -> None:
        """Copy all listed events except those whose copy is up to date."""
        ours = list(iter(self._listed.take, None))
        copied = await self._copied({events.name_suffix(uid) for uid, _ in ours}) if ours else {}
        slicer = Slicer()
        for _, packed in ours:
            self._mirror(unpack(packed), copied)
            await slicer.tick()

    def change(self, kind: str, changed: Object) -> None:
        """Copy a new or repeated event; ignore deletions, because events expire after an hour."""
        if kind != "DELETED" and (event := self._accepted(changed)) is not None:
            self._mirror(event, {})

    def _take_listed(self, event: Object) -> None:
        """Keep an event of a list until the list is complete; the list itself stays empty.

        There may be 100,000 events of deleted pods, and a lower user can write as many about one of our pods.
        """
        if (ours := self._accepted(event)) is not None:
            packed = pack(ours)
            self._listed.put(ours.namespace, ours.uid, (ours.uid, packed), size=len(packed) + _OVERHEAD)
            while self._listed.size > _LISTED_LIMIT:
                self._listed.evict()
                self._drop("overflow")

    def _accepted(self, event: Object) -> Object | None:
        """Return the fields that a copy needs, with bounded sizes, of an event of an object that we made, or may have made.

        None: the event is not copied.
        """
        key, uid = involved(event)
        kind = self._kind
        if kind.find_lower(key, uid) is None and uid not in self._deleted and not kind.awaits(key):
            return None
        kept = events.reduced(event.to_dict()) if event.size <= _LARGEST else None
        if kept is None:
            self._drop("oversized")
            return None
        return from_dict(kept)

    async def _copied(self, suffixes: Collection[str]) -> dict[str, int]:
        """Return the fingerprints of our copies whose names have these suffixes, by key; empty: none, or no answer.

        A tenant can write such an event, too. But its fingerprint covers the content, so it only replaces an equal
        copy in the tenant's own namespace.
        """
        found: dict[str, int] = {}

        def take(event: Object) -> None:  # the list stays empty, because events may be large
            if event.name.rpartition(".")[2] in suffixes:
                found[event.key] = Series(event.to_dict()).fingerprint()

        try:
            await self._context.upper.list(
                resources.EVENTS,
                label_selector=f"{names.LABEL_NODE} in ({','.join(self._context.nodes)})",
                field_selector=self._of_kind,
                page_size=_PAGE,
                transform=take,
            )
        except (ApiError, ConfigError) as error:
            self._context.log.warning("copied events not listed; events are written again", error=str(error))
        return found

    def _mirror(self, event: Object, copied: Mapping[str, int]) -> None:
        """Copy an event unless its copy is up to date; hold it if its object is not in the cache yet."""
        key, uid = involved(event)
        lower = self._kind.find_lower(key, uid)
        if lower is not None:
            upper = self._kind.upper_of(lower)
        elif uid in self._deleted:
            upper = self._kind.find_upper(*self._deleted[uid])
        else:
            self._held.hold(event, uid, now=asyncio.get_running_loop().time())
            return
        if upper is None:
            self._drop("gone")
        else:
            self._copy(event, upper, copied)

    def _copy(self, event: Object, upper: Object, copied: Mapping[str, int]) -> None:
        if copied:
            copy = copy_of(event, upper, self._kind)
            known = copied.get(f"{upper.namespace}/{copy['metadata']['name']}")
            if known is not None and known == Series(copy).fingerprint():
                return
        outbox = self._warnings if event.field("type") == "Warning" else self._normals
        outbox.put(self._kind, upper, event)

    def _drop(self, cause: str) -> None:
        DROPPED.labels(self._context.name, cause).inc()

    def _disappeared(self, lower: Object) -> None:
        if (upper := self._kind.upper_of(lower)) is not None:
            self._deleted[lower.uid] = (upper.key, upper.uid)

    def _appeared(self, lower: Object) -> None:
        for event in self._held.release(lower):
            self._mirror(event, {})


async def _expire(held: HeldEvents) -> None:
    while True:
        await asyncio.sleep(LONGEST / 5)
        held.expire(now=asyncio.get_running_loop().time())
