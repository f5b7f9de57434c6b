"""Watches or polls single upper objects by name, as a kubelet does, so that no other objects are read.

Reading a whole namespace's Secrets to follow three of them would need more rights than necessary. A list and
watch with ``metadata.name=…`` is allowed by the Node authorizer and by RBAC ``resourceNames``. All pods that
reference an object share one watch of it, which ends when the last of these pods is gone.

Each watch has a connection of its own, so the number of watches is limited, per namespace and in total
(``limits`` in the configuration). Further objects are polled (``ObjectPolls``). When all watches are used, a
namespace with few watches takes one from the namespace with most, so that the first tenant does not force
later tenants to polling.

A watch needs a connection, which costs about 300 KiB and a file descriptor. A read costs one request. So an
object is read when a pod that references it is about to start, and otherwise about once a minute. The reads
once a minute share one rate limit: with more objects, each is read less often, but reads for starting pods
are not delayed. Namespaces take turns, so the objects of one do not delay those of another.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find_object
from controller_runtime.errors import ApiError, Unavailable
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.store import NamespaceBudget
from virtual_node.config.types import LimitsConfig
from virtual_node.translate.kinds import REFERENCED

_log = structlog.get_logger()

_SYNC_TIMEOUT = 10.0
"""Seconds that the first read of an object may take. Then ``get`` fails, and the pod that needs it is retried."""
PERIOD = 60.0
"""Seconds between two reads of one object."""
_RATE = 20.0
"""Reads per second to detect changes, of all objects of one lower cluster together."""
_FRESH = 10.0
"""Maximum age in seconds of a read that is used for another pod that starts."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The kind, namespace and name of an upper object that is copied."""

    kind: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def resource(self) -> Resource:
        """Return the resource of the kind."""
        return REFERENCED[self.kind].resource

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


@dataclass(eq=False, repr=False)
class ObjectWatches:
    """The upper objects that pods reference. Each is watched or polled from its first use on."""

    client: Client
    """The upper cluster."""
    on_change: Callable[[ObjectKey], None]
    """Called when an object has changed."""
    limits: LimitsConfig
    """Maximum numbers of watches and of bytes; objects without a watch are polled."""
    _watched: Counter[str] = field(default_factory=Counter)
    """Number of watches by namespace."""
    _informers: dict[ObjectKey, tuple[Informer, asyncio.Task[None]]] = field(default_factory=dict)
    _faults: asyncio.Queue[BaseException] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        """Create an empty set."""
        self._budget: NamespaceBudget[ObjectKey] = NamespaceBudget(self.limits.bytes_per_namespace)
        self._polls = ObjectPolls(self.client, on_change=self.on_change, budget=self._budget)

    async def run(self) -> None:
        """Keep the watches until cancelled, then end all of them.

        Raises:
            Exception: the exception that ended a watch. It is a programming error, and the watched object
                would become stale unnoticed, so the caller must start again.
        """
        polls = asyncio.create_task(self._polls.run(), name="polls of single objects")
        polls.add_done_callback(self._ended)
        try:
            raise await self._faults.get()
        finally:
            tasks = [polls, *(task for _, task in self._informers.values())]
            self._informers.clear()
            self._watched.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def get(self, key: ObjectKey) -> Object | None:
        """Return the object as the upper cluster has it now, and follow it from then on; None: it does not exist.

        Returns a stub if the namespace has no room for the object's content (``budget``).

        Raises:
            ApiError: the upper cluster refuses the read, or does not answer.
        """
        if self._budget.fits_now(key):
            self._end(key)
        entry = self._informers.get(key)
        if entry is None:
            if key in self._polls or not self._make_room(key):
                return await self._polls.get(key)
            self._watched[key.namespace] += 1
            entry = self._informers[key] = self._start(key)
        informer = entry[0]
        # An informer that has failed keeps retrying; the pod does not wait for that.
        patience = _SYNC_TIMEOUT if informer.last_error is None else 0
        if not informer.has_synced and not await informer.wait_synced(patience):
            if key in self._polls:  # its watch was given to another namespace meanwhile
                return await self._polls.get(key)
            error = informer.last_error
            raise error if isinstance(error, ApiError) else Unavailable(f"{key} cannot be read yet: {error}")
        return informer.store.get(key.path)

    def peek(self, key: ObjectKey) -> Object | None:
        """Return the object as last seen, without waiting."""
        entry = self._informers.get(key)
        if entry is None:
            return self._polls.peek(key)
        return entry[0].store.get(key.path)

    def stop(self, key: ObjectKey) -> None:
        """Stop following an object that no pod needs."""
        self._end(key)
        self._budget.forget(key)

    def _end(self, key: ObjectKey) -> None:
        """Stop following an object; the next ``get`` starts again."""
        self._polls.stop(key)
        entry = self._informers.pop(key, None)
        if entry is not None:
            self._watched -= Counter([key.namespace])
            entry[1].cancel()

    def __len__(self) -> int:
        return len(self._informers) + len(self._polls)

    def _make_room(self, key: ObjectKey) -> bool:
        """Report whether one more object may be watched; may switch another namespace's object to polling."""
        watched = self._watched[key.namespace]
        is_full = len(self._informers) >= self.limits.watches
        if watched < self.limits.watches_per_namespace and not is_full:
            return True
        if not len(self._polls):
            _log.info(
                "objects are polled, because too many are watched",
                cluster=self.client.cluster,
                namespace=key.namespace,
                watched=watched,
                watched_in_all=len(self._informers),
            )
        if watched >= self.limits.watches_per_namespace:
            return False
        largest = namespace_to_shrink(self._watched, key.namespace)
        if largest is None:
            return False
        # Take the oldest watch: it has synced, so its object's state is known.
        oldest = next(other for other in self._informers if other.namespace == largest)
        found = self.peek(oldest)
        self._end(oldest)
        self._polls.take_over(oldest, found)
        return True

    def _start(self, key: ObjectKey) -> tuple[Informer, asyncio.Task[None]]:
        informer = Informer(
            self.client,
            key.resource,
            namespace=key.namespace,
            field_selector=f"metadata.name={key.name}",
            transform=lambda found: self._budget.fit(key, found),
            name=f"single-{key.resource.plural}",
            is_minor=True,
        )
        informer.on_change(lambda _: self.on_change(key), lambda _: self.on_change(key))
        task = asyncio.create_task(informer.run(), name=f"watch {key}")
        task.add_done_callback(self._ended)
        return informer, task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._faults.put_nowait(task.exception() or RuntimeError(f"{task.get_name()} ended"))


def namespace_to_shrink(watches: Mapping[str, int], namespace: str) -> str | None:
    """Return the namespace that gives up a watch to the given one when all are used; None: no namespace.

    It is the namespace with most watches, if it has at least two more than the given one. So repeated calls
    end with equal numbers, and two namespaces never take a watch from each other in turns.

    Args:
        watches: number of watches by namespace.
        namespace: the namespace that needs one more.
    """
    most = max(watches, key=lambda name: watches[name], default=None)
    return most if most is not None and watches[most] > watches.get(namespace, 0) + 1 else None


@dataclass(slots=True)
class _Polled:
    found: Object | None = None
    """The object at the last read; None: it did not exist."""
    read_at: float | None = None
    """Loop time of the last successful read. -inf: ``found`` comes from a watch. None: not read yet."""
    tried_at: float = 0.0
    """Loop time of the last read, successful or not."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False, repr=False)
class ObjectPolls:
    """A set of polled objects."""

    client: Client
    """The upper cluster."""
    on_change: Callable[[ObjectKey], None]
    """Called when a read shows another state than the previous read."""
    budget: NamespaceBudget[ObjectKey]
    """Decides which objects are kept with their content."""
    _queues: dict[str, dict[ObjectKey, _Polled]] = field(default_factory=dict)
    """Objects by namespace. Namespaces are in the order of their turns, the objects of each in the order
    of ``tried_at``."""
    _added: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            if not self._queues:
                self._added.clear()
                await self._added.wait()
            now = asyncio.get_running_loop().time()
            first = ((name, next(iter(queue.values())).tried_at) for name, queue in self._queues.items())
            namespace = next_namespace(first, now - PERIOD)
            queue = self._queues[namespace] = self._queues.pop(namespace)  # moved to the end
            key, polled = next(iter(queue.items()))
            await asyncio.sleep(max(1 / _RATE, polled.tried_at + PERIOD - now))
            if self._find(key) is not polled:
                continue
            try:
                await self._read(key, polled, newer_than=now)
            except ApiError:
                continue

    async def get(self, key: ObjectKey) -> Object | None:
        """Return an object, at most ten seconds old, and poll it from then on; None: it does not exist.

        Raises:
            ApiError: the upper cluster refuses the read, or does not answer.
        """
        polled = self._find(key) or self._add(key, _Polled())
        await self._read(key, polled, newer_than=asyncio.get_running_loop().time() - _FRESH)
        return polled.found

    def take_over(self, key: ObjectKey, found: Object | None) -> None:
        """Poll an object that was watched until now; report changes since its last known state.

        Args:
            key: the object.
            found: its last known state; None: it did not exist.
        """
        self._add(key, _Polled(found, read_at=-math.inf, tried_at=asyncio.get_running_loop().time()))

    def peek(self, key: ObjectKey) -> Object | None:
        """Return the object as it was at the last read; None: it did not exist, or is not polled."""
        polled = self._find(key)
        return polled.found if polled is not None else None

    def stop(self, key: ObjectKey) -> None:
        """Stop polling an object."""
        if (queue := self._queues.get(key.namespace)) is not None:
            queue.pop(key, None)
            if not queue:
                del self._queues[key.namespace]

    def __contains__(self, key: ObjectKey) -> bool:
        return self._find(key) is not None

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def _find(self, key: ObjectKey) -> _Polled | None:
        return self._queues.get(key.namespace, {}).get(key)

    def _add(self, key: ObjectKey, polled: _Polled) -> _Polled:
        self._queues.setdefault(key.namespace, {})[key] = polled
        self._added.set()
        return polled

    async def _read(self, key: ObjectKey, polled: _Polled, *, newer_than: float) -> None:
        async with polled.lock:
            before, is_first = polled.found, polled.read_at is None
            if polled.read_at is not None and polled.read_at >= newer_than:
                return
            polled.tried_at = asyncio.get_running_loop().time()
            if self._find(key) is polled:
                queue = self._queues[key.namespace]
                queue[key] = queue.pop(key)
            found = await find_object(self.client, key.resource, key.name, namespace=key.namespace)
            # An object that is no longer polled uses no budget, because no pod needs it.
            if found is not None and self._find(key) is polled:
                found = self.budget.fit(key, found)
            polled.read_at = asyncio.get_running_loop().time()
            if is_first or _version(found) != _version(before):
                polled.found = found
            if not is_first and polled.found is not before:
                self.on_change(key)


def next_namespace(queues: Iterable[tuple[str, float]], due: float) -> str:
    """Return the first namespace with an object that is due; if none is due, the one whose object is due first.

    Args:
        queues: namespaces in the order of their turns, each with the time of the last read of its next
            object. At least one.
        due: objects last read at or before this time are due.
    """
    first, earliest = "", math.inf
    for namespace, read_at in queues:
        if read_at <= due:
            return namespace  # With many objects some are always due, so this ends early.
        if read_at < earliest:
            first, earliest = namespace, read_at
    return first


def _version(found: Object | None) -> tuple[str, str]:
    return ("", "") if found is None else (found.uid, found.resource_version)
