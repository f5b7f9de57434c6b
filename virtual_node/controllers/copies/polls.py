"""Polls single upper objects when there are too many to watch.

A watch needs a connection, which costs about 300 KiB and a file descriptor. A read costs one request. So an
object is read when a pod that references it is about to start, and otherwise about once a minute. The reads
once a minute share one rate limit: with more objects, each is read less often, but reads for starting pods
are not delayed. Namespaces take turns, so the objects of one do not delay those of another.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller_runtime.cache.namespace_budget import NamespaceBudget
from controller_runtime.client.client import Client, find_object
from controller_runtime.errors import ApiError
from controller_runtime.objects import Object
from virtual_node.controllers.base.object_key import ObjectKey

PERIOD = 60.0
"""Seconds between two reads of one object."""
_RATE = 20.0
"""Reads per second to detect changes, of all objects of one lower cluster together."""
_FRESH = 10.0
"""Maximum age in seconds of a read that is used for another pod that starts."""


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
