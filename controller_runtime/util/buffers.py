"""Containers of bounded size: one that forgets what was not used for the longest time, and one that tenants share. No IO."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_KEPT = 4096
"""Entries that ``Recent`` keeps by default."""


@dataclass(slots=True)
class _Flow(Generic[K, V]):
    values: OrderedDict[K, tuple[V, int]] = field(default_factory=OrderedDict)
    """Values and their sizes, the oldest first. A dict searches from its start after each removal of its first key."""
    size: int = 0


class FairBuffer(Generic[K, V]):
    """Values by flow, such as a namespace, and by key.

    Flows take turns, and a flow that fills the buffer displaces only its own values.

    The owner of the buffer limits it: it calls ``evict`` while ``size`` is above its limit.

    Attributes:
        size: the sum of the sizes of all values.
    """

    def __init__(self) -> None:
        self.size = 0
        self._flows: OrderedDict[str, _Flow[K, V]] = OrderedDict()
        """Flows with values; the first has the next turn."""

    def get(self, flow: str, key: K) -> V | None:
        """Return the value of a key of a flow; None if there is none."""
        values = self._flows[flow].values if flow in self._flows else {}
        return values[key][0] if key in values else None

    def put(self, flow: str, key: K, value: V, *, size: int = 1) -> None:
        """Add a value behind the others of its flow; a value of the same key is replaced and keeps its place."""
        one = self._flows.setdefault(flow, _Flow())
        grown = size - (one.values[key][1] if key in one.values else 0)
        one.values[key] = (value, size)
        one.size += grown
        self.size += grown

    def remove(self, flow: str, key: K) -> V | None:
        """Remove and return a value; None if there is none."""
        return None if self.get(flow, key) is None else self._pop(flow, key)

    def take(self, *, but: Container[K] = ()) -> V | None:
        """Remove and return the oldest value of the flow that has the turn; None if there is none.

        Args:
            but: keys to skip.
        """
        for name, flow in self._flows.items():
            key = next((key for key in flow.values if key not in but), None)
            if key is not None:
                self._flows.move_to_end(name)
                return self._pop(name, key)
        return None

    def evict(self) -> V:
        """Remove and return the oldest value of the largest flow.

        Raises:
            ValueError: the buffer is empty.
        """
        name = max(self._flows, key=lambda name: self._flows[name].size)
        return self._pop(name, next(iter(self._flows[name].values)))

    def oldest(self) -> list[tuple[str, K, V]]:
        """Return the oldest value of each flow, with its flow and key."""
        found = ((name, *next(iter(flow.values.items()))) for name, flow in self._flows.items())
        return [(name, key, value) for name, key, (value, _) in found]

    def _pop(self, name: str, key: K) -> V:
        flow = self._flows[name]
        value, size = flow.values.pop(key)
        flow.size -= size
        self.size -= size
        if not flow.values:
            del self._flows[name]
        return value


class Recent(OrderedDict[K, V], Generic[K, V]):
    """A dict of the latest entries; setting or touching an entry makes it the newest."""

    def __init__(self, size: int = _KEPT) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)

    def touch(self, key: K) -> V | None:
        """Return the entry and make it the newest; None if there is none."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]
