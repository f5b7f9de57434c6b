"""Copies lower events about our objects to the upper objects, so that ``kubectl describe`` shows all of them.

It uses a reflector without an informer's cache, because events are many, short-lived and read once. The
copy's name is derived from the lower event's uid, so an event that is seen twice is written once. After each
list, such as at start, copies are listed too, and an event that has not changed since it was copied is skipped.

Events are rate-limited, for the lower cluster and for each object, because a hostile lower cluster could fill the
etcd of the upper cluster with them. Warnings have a burst with which they are written at once. Normal events have
a small one, because in a burst of a thousand pods, a thousand "Scheduled" events would halve the rate at which pods
are written. So Normal events arrive a little later, and those of pods that are gone by then are dropped. An event
that arrives before its object waits for the object (``HeldEvents``).

``HeldEvents`` wait for an object that the cache does not have yet. The watches of events and of objects are two
connections without a common order. In a burst of thousands of pods, an event may arrive many seconds before its pod.
Lower users can write events of objects that never appear, so these events are limited in size and age.

The events of ``Outbox`` wait until the recorder has room for their copies, one upper namespace after the other. The rate
is limited for the lower cluster (``bucket``) and for each upper object (``spam``). Both count writes and not lower
events: an event that changes while its copy waits is written once.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.cache.reflector import Reflector
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.events import DROPPED, SPAM_BURST, SPAM_QPS, EventRecorder, Series
from controller_runtime.objects import Object, decode_object, from_dict
from controller_runtime.util.buffers import FairBuffer, Recent
from controller_runtime.util.event_loop import Slicer
from controller_runtime.util.rate_limiter import Pace, TokenBucket
from virtual_node.controllers.base.context import INDEX_LOWER_KEY, ClusterContext, PodCaches
from virtual_node.translate.base import ownership
from virtual_node.translate.objects import events
from virtual_node.translate.storage.pvc import selected_node

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
LIMIT = 8 << 20
"""Maximum bytes of held events, about 10,000 of them. The namespace with the most loses its oldest ones first."""
LONGEST = 300.0
"""Seconds after which a held event is dropped: longer than a dead watch of pods remains unnoticed
(``cache/reflector.py``)."""
_HELD_OVERHEAD, _QUEUED_OVERHEAD = 600, 420
"""Bytes of memory of the only held event of an object, and of an event in an ``Outbox``, in addition to its text; measured."""
_COMMON = (
    b'"message":"Error: ImagePullBackOff Back-off restarting failed container in pod _Readiness Liveness Startup probe '
    b"failed: FailedMount MountVolume.SetUp failed for volume Killing Stopping container 0/ nodes are available: "
    b"preemption: No preemption victims found for incoming pod. FailedScheduling Pulling Pulling image Successfully pulled "
    b'image \\" in ms ( including waiting). Image size: bytes. Container image \\" already present on machine and can be '
    b'accessed by the pod Container started Container created "reason":"Pulled" "Created" "Started" "BackOff" "Unhealthy" '
    b'"type":"Warning","metadata":{"namespace":"","uid":"-"},"involvedObject":{"namespace":"","name":"-","uid":"-",'
    b'"fieldPath":"spec.containers{"},"source":{"component":"kubelet"},"type":"Normal","reason":"Scheduled",'
    b'"message":"Successfully assigned / to ","source":{"component":"default-scheduler"},"reportingInstance":"",'
    b'"eventTime":"2026-01-01T00:00:00.000000Z","action":"Binding","count":1,"firstTimestamp":"2026-01-01T00:00:00Z",'
    b'"lastTimestamp":"2026-01-01T00:00:00Z","reportingComponent":"kubelet","reportingInstance":"'
)
"""Text that compression refers to: an event is too short to repeat itself. The most frequent text is at the end."""
_LEVEL, _WINDOW, _MEMORY = 6, -11, 4
"""Raw deflate with a window of 2 KiB, for which one event takes 20 KiB of memory instead of 256."""


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


@dataclass(frozen=True, slots=True)
class MirroredKind:
    """The lower objects of a kind that we made, and the upper objects that they stand for."""

    kind: str
    """Such as ``Pod``."""
    lower: Informer
    upper: Collection[Informer]
    """Indexed by ``index_lower_key``."""
    index_lower_key: str
    """Index of upper objects by the namespace and name that their lower object has."""
    upper_of: Callable[[Object], Object | None]
    """Returns the upper object of a lower one; None: not cached."""
    node_of: Callable[[Object], str]
    """Returns the name of the virtual node that an upper object belongs to."""

    def find_upper(self, key: str, uid: str) -> Object | None:
        """Return the upper object of that name and uid; None: not cached."""
        found = (informer.store.get(key) for informer in self.upper)
        return next((upper for upper in found if upper is not None and upper.uid == uid), None)

    def find_lower(self, key: str, uid: str) -> Object | None:
        """Return the lower object of that name and uid; None: it is not ours, or not cached."""
        lower = self.lower.store.get(key)
        return None if lower is None or lower.uid != uid else lower

    def awaits(self, lower_key: str) -> bool:
        """Report whether a lower object of that name that we made may appear in the cache.

        That is if an upper object needs a lower one of this name, and the cache has none for it. So lower users cannot
        make us keep events for names that they choose.
        """
        lower = self.lower.store.get(lower_key)
        known = None if lower is None else lower.labels.get(names.LABEL_UPPER_UID)
        return any(
            upper.uid != known
            for informer in self.upper
            for upper in informer.store.by_index(self.index_lower_key, lower_key)
        )


def pods(caches: PodCaches) -> MirroredKind:
    """Return the pods of our virtual nodes."""

    def node_of(upper: Object) -> str:
        return upper.node_name

    return MirroredKind("Pod", caches.lower, caches.upper.values(), INDEX_LOWER_KEY, caches.upper_of, node_of)


def claims(context: ClusterContext, *, lower: Informer, upper: Informer) -> MirroredKind:
    """Return the PersistentVolumeClaims that we made in the lower cluster."""

    def upper_of(claim: Object) -> Object | None:
        found = upper.store.get(ownership.upper_key(claim))
        if found is None or context.lower_key(found.key) != claim.key:
            return None  # a lower user changed the annotation with the upper namespace
        return found if found.uid == claim.labels.get(names.LABEL_UPPER_UID) else None

    def node_of(claim: Object) -> str:
        selected = selected_node(claim.to_dict())
        return selected if selected in context.nodes else next(iter(context.nodes))

    return MirroredKind("PersistentVolumeClaim", lower, (upper,), context.index_lower_key, upper_of, node_of)


def involved(event: Object) -> tuple[str, str]:
    """Return the key and uid of the object that an event is about; empty if the server sends no valid reference."""
    reference = event.field("involvedObject")
    if not isinstance(reference, dict):
        return "", ""
    key = f"{reference.get('namespace', '')}/{reference.get('name', '')}"
    return key, str(reference.get("uid", ""))


def pack(event: Object) -> bytes:
    """Return a reduced event in about a third of the length of its JSON."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=_COMMON)
    return packer.compress(event.to_json()) + packer.flush()


def unpack(packed: bytes) -> Object:
    """Return the event of ``pack``."""
    unpacker = zlib.decompressobj(_WINDOW, zdict=_COMMON)
    return decode_object(unpacker.decompress(packed) + unpacker.flush())


@dataclass(slots=True)
class _Unseen:
    """The events of one object."""

    since: float
    events: dict[str, bytes] = field(default_factory=dict)
    """By the event's uid, in its latest state, as ``pack`` returns it."""
    size: int = 0


@dataclass(eq=False, repr=False)
class HeldEvents:
    """Lower events by the uid of their object."""

    cluster: str
    """The lower cluster's name, in metrics."""
    _objects: FairBuffer[str, _Unseen] = field(default_factory=FairBuffer)

    def hold(self, event: Object, uid: str, *, now: float) -> None:
        """Keep a reduced event of the object with that uid; an earlier state of the same event is replaced."""
        unseen = self._objects.get(event.namespace, uid) or _Unseen(now)
        before, packed = unseen.events.get(event.uid), pack(event)
        unseen.events[event.uid] = packed
        unseen.size += len(packed) + (_HELD_OVERHEAD if before is None else -len(before))
        self._objects.put(event.namespace, uid, unseen, size=unseen.size)
        while self._objects.size > LIMIT:
            self._drop(self._objects.evict(), "overflow")

    def release(self, lower: Object) -> list[Object]:
        """Return and forget the events of an object that the cache has now."""
        unseen = self._objects.remove(lower.namespace, lower.uid)
        return [] if unseen is None else [unpack(packed) for packed in unseen.events.values()]

    def expire(self, *, now: float) -> None:
        """Drop the events of objects that have not appeared for too long."""
        while old := [
            (namespace, uid)
            for namespace, uid, unseen in self._objects.oldest()
            if now - unseen.since >= LONGEST
        ]:
            for namespace, uid in old:
                self._drop(self._objects.remove(namespace, uid), "unseen")

    def _drop(self, unseen: _Unseen | None, cause: str) -> None:
        DROPPED.labels(self.cluster, cause).inc(len(unseen.events) if unseen is not None else 0)


class _Waiting(NamedTuple):
    kind: MirroredKind
    upper_key: str
    upper_uid: str
    event: bytes
    """As ``pack`` returns it."""


def copy_of(event: Object, upper: Object, kind: MirroredKind) -> dict[str, Any]:
    """Return the event to create in the upper cluster for an event of a lower object."""
    metadata = {
        "namespace": upper.namespace,
        "name": upper.name,
        "uid": upper.uid,
        "resourceVersion": upper.resource_version,
    }
    head = {"apiVersion": upper.api_version, "kind": upper.kind, "metadata": metadata}
    return events.upper_event(event.to_dict(), head, node_name=kind.node_of(upper))


@dataclass(eq=False, repr=False)
class Outbox:
    """Hands copies to the recorder when it has room, so that copies displace neither each other nor own events."""

    cluster: str
    """The lower cluster's name, in metrics."""
    recorder: EventRecorder
    limit: int
    """Maximum bytes of waiting events. The namespace with the most loses its oldest ones first."""
    bucket: TokenBucket
    spam: Pace[str]
    """Limits the copies of each upper object, by its uid. The copies above the limit are dropped."""
    _waiting: FairBuffer[str, _Waiting] = field(default_factory=FairBuffer)
    """By the uid of the lower event."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, kind: MirroredKind, upper: Object, event: Object) -> None:
        """Queue a reduced lower event; it replaces a waiting earlier state of the same event."""
        packed = pack(event)
        waiting = _Waiting(kind, upper.key, upper.uid, packed)
        self._waiting.put(upper.namespace, event.uid, waiting, size=len(packed) + _QUEUED_OVERHEAD)
        while self._waiting.size > self.limit:
            self._waiting.evict()
            self._drop("overflow")
        self._arrived.set()

    async def run(self) -> None:
        """Send copies until cancelled."""
        while True:
            while not self._waiting.size:
                self._arrived.clear()
                await self._arrived.wait()
            await self.bucket.acquire()
            await self.recorder.wait_for_room()
            self._send_next()

    def _send_next(self) -> None:
        """Send the next copy that is not spam and of which the upper object still exists.

        ``kubectl describe`` shows no events of other objects.
        """
        now = asyncio.get_running_loop().time()
        while (waiting := self._waiting.take()) is not None:
            upper = waiting.kind.find_upper(waiting.upper_key, waiting.upper_uid)
            if upper is None:
                self._drop("gone")
            elif self.spam.wait(waiting.upper_uid, now=now):
                self._drop("spam")
            else:
                self.recorder.record(copy_of(unpack(waiting.event), upper, waiting.kind))
                return

    def _drop(self, cause: str) -> None:
        DROPPED.labels(self.cluster, cause).inc()
