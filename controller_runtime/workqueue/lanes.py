"""Queued keys of a work queue by flow and priority, and the number of workers that each flow holds. No IO."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SHARE = 4
"""A flow may take a worker while it holds fewer than this multiple of the free workers. Of 50 workers, one flow
gets 40, a second one 8 and a third one 2."""


@dataclass(slots=True)
class _Flow(Generic[K]):
    lanes: dict[int, OrderedDict[K, None]] = field(default_factory=dict)
    held: int = 0


class Lanes(Generic[K]):
    """Keys in the order in which workers get them.

    Flows take turns. Within a flow, keys of higher priority come first, then keys that were added first.
    """

    def __init__(self, flow: Callable[[K], str] | None = None, *, workers: int = 0) -> None:
        """Create empty lanes; the arguments are those of ``WorkQueue``."""
        self._flow = flow
        self._free = workers
        self._is_bounded = workers > 0 and flow is not None
        self._flows: dict[str, _Flow[K]] = {}
        self._turns: OrderedDict[str, _Flow[K]] = OrderedDict()
        """Flows with queued keys, the next one first."""
        self._flow_of: dict[K, str] = {}
        """The flow of each key that is queued or held."""

    def __len__(self) -> int:
        return sum(len(lane) for flow in self._turns.values() for lane in flow.lanes.values())

    def __bool__(self) -> bool:
        return bool(self._turns)

    def push(self, key: K, priority: int) -> None:
        """Queue a key that is neither queued nor held."""
        name = ""
        if self._flow is not None:
            name = self._flow_of[key] = self._flow(key)
        flow = self._flows.setdefault(name, _Flow())
        flow.lanes.setdefault(priority, OrderedDict())[key] = None
        self._turns.setdefault(name, flow)

    def pull(self, key: K, priority: int) -> None:
        """Remove a queued key."""
        name = self._flow_of.pop(key, "")
        self._take(name, self._flows[name], key, priority)
        self._forget(name)

    def pop(self) -> K | None:
        """Remove and return the next key; None: none is queued, or all flows with queued keys hold too many workers."""
        for name, flow in self._turns.items():
            if self._is_bounded and flow.held >= _SHARE * self._free:
                continue
            priority = max(flow.lanes)
            key = next(iter(flow.lanes[priority]))
            if self._flow is not None:
                self._turns.move_to_end(name)
                flow.held += 1
                self._free -= 1
            self._take(name, flow, key, priority)
            return key
        return None

    def finish(self, key: K) -> None:
        """Record that a worker is done with a key."""
        name = self._flow_of.pop(key, None)
        if name is not None:
            self._flows[name].held -= 1
            self._free += 1
            self._forget(name)

    def clear(self) -> None:
        """Remove all queued keys."""
        for name, flow in list(self._turns.items()):
            for lane in flow.lanes.values():
                for key in lane:
                    self._flow_of.pop(key, None)
            flow.lanes.clear()
            del self._turns[name]
            self._forget(name)

    def _take(self, name: str, flow: _Flow[K], key: K, priority: int) -> None:
        lane = flow.lanes[priority]
        del lane[key]
        if not lane:
            del flow.lanes[priority]
            if not flow.lanes:
                del self._turns[name]

    def _forget(self, name: str) -> None:
        flow = self._flows[name]
        if not flow.held and not flow.lanes:
            del self._flows[name]
