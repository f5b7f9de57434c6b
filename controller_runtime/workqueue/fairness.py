"""Fairness of a work queue: charges the time of work to the tenant of a key, limits it, and orders the keys by it.

So many or slow keys of one flow, such as a namespace, do not delay the others.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
import types
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
Charge = Callable[[float], None]
"""Charges seconds of work."""
_LEAST = 0.001
"""Minimum seconds of running work that are charged before the work has ended."""
_charge: ContextVar[Charge | None] = ContextVar("charge", default=None)
"""Charges the key that is reconciled in this context."""
_REMEMBERED = 1000
K = TypeVar("K", bound=Hashable)

_SHARE = 4
"""A flow may take a worker while it holds fewer than this multiple of the free workers. Of 50 workers, one flow
gets 40, a second one 8 and a third one 2."""
_TURN = 0.001
"""Seconds that each key counts in addition to the time that it took, so that flows with short work take turns by
count."""
_PRUNE = 1000
"""Number of flows above which flows without keys are removed."""


@types.coroutine
def charged(work: Awaitable[T], charge: Charge) -> Generator[Any, Any, T]:
    """Await ``work`` and charge the time for which it occupies the event loop, without the time in which it waits.

    The wall clock is used, because blocking the loop without using the CPU delays others, too.
    """
    before = _charge.get()
    _charge.set(charge)
    steps = work.__await__()
    advance: Callable[[Any], Any] = steps.send
    value: Any = None
    seconds = 0.0
    try:
        while True:
            started = time.perf_counter()
            try:
                awaited = advance(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return] # the result of ``work``
            finally:
                seconds += time.perf_counter() - started
            if seconds >= _LEAST:
                charge(seconds)
                seconds = 0.0
            try:
                value = yield awaited
                advance = steps.send
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001 - ``work`` must handle it, as without the measurement
                value, advance = error, steps.throw
    finally:
        _charge.set(before)
        charge(seconds)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread; its CPU time is charged to the key that is reconciled in this context.

    A thread competes with the event loop for the interpreter.
    """
    seconds = 0.0

    def timed() -> T:
        nonlocal seconds
        started = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds = time.thread_time() - started

    try:
        return await asyncio.to_thread(timed)
    finally:
        if (charge := _charge.get()) is not None:
            charge(seconds)


@dataclass(eq=False)
class TimeBudget:
    """Counts the seconds that work took by name, such as a namespace, so that the time left for others does not depend on it.

    A full budget allows ``most`` seconds at once. It grows by ``share`` of each second until it is full again, so in
    the long run a name uses at most this share of one CPU. Work is counted after it was done, so a budget can be
    negative.
    """

    most: float
    """Seconds of a full budget."""
    share: float
    """Seconds by which a budget grows each second."""
    clock: Callable[[], float] = time.monotonic
    _full_at: dict[str, float] = field(default_factory=dict)
    """By name: time of the clock when its budget is full again."""
    _prune_at: int = _REMEMBERED

    def left(self, name: str) -> float:
        """Return the seconds left now; negative if more was used."""
        full_at = self._full_at.get(name)
        return self.most if full_at is None else self.most - self.share * max(0.0, full_at - self.clock())

    def wait(self, name: str) -> float:
        """Return after how many seconds something is left; 0: now."""
        full_at = self._full_at.get(name)
        return 0.0 if full_at is None else max(0.0, full_at - self.clock() - self.most / self.share)

    def spend(self, name: str, seconds: float) -> None:
        """Subtract the time that work took."""
        now = self.clock()
        if len(self._full_at) >= self._prune_at:
            self._full_at = {other: at for other, at in self._full_at.items() if at > now}
            self._prune_at = max(_REMEMBERED, 2 * len(self._full_at))
        self._full_at[name] = max(now, self._full_at.get(name, 0.0)) + seconds / self.share


@dataclass(eq=False, slots=True)
class _Flow(Generic[K]):
    name: str
    used: float
    """Seconds that its keys took. A flow that was idle starts with the least of the active flows, so idle time gives no
    advantage."""
    lanes: dict[int, OrderedDict[K, None]] = field(default_factory=dict)
    held: int = 0
    is_listed: bool = False
    """Whether the heap of flows contains it."""
    is_paused: bool = False


class Lanes(Generic[K]):
    """Keys in the order in which workers get them.

    The flow that used the least time is next. Within a flow, keys of higher priority come first, then keys that were
    added first. A flow without time left in its budget gets no worker until ``resume``.
    """

    def __init__(
        self,
        flow: Callable[[K], str] | None = None,
        *,
        workers: int = 0,
        wait: Callable[[str], float] = lambda _name: 0.0,
        paused: Callable[[str, float], None] = lambda _name, _seconds: None,
    ) -> None:
        """Create empty lanes.

        Args:
            flow: as in ``WorkQueue``.
            workers: as in ``WorkQueue``.
            wait: returns after how many seconds a flow has time left in its budget; 0: now.
            paused: called with a flow that gets no worker, and the seconds after which to call ``resume``.
        """
        self._flow = flow
        self._wait, self._paused = wait, paused
        self._free = workers
        self._is_bounded = workers > 0 and flow is not None
        self._most = max(1, workers - 1)
        self._flows: dict[str, _Flow[K]] = {}
        self._queued: set[str] = set()
        """Flows with queued keys."""
        self._heap: list[tuple[float, int, _Flow[K]]] = []
        """Flows with queued keys that are not paused, and some that have none anymore. ``used`` may have grown since."""
        self._ties = itertools.count()
        self._now = 0.0
        """``used`` of the flow that got the last worker."""
        self._latest = 0.0
        """Largest ``used`` of all flows."""
        self._held = 0
        self._prune_at = _PRUNE
        self._flow_of: dict[K, str] = {}
        """The flow of each key that is queued or held."""

    def __len__(self) -> int:
        return sum(len(lane) for name in self._queued for lane in self._flows[name].lanes.values())

    def __bool__(self) -> bool:
        return bool(self._queued)

    def is_paused(self, key: K) -> bool:
        """Report whether a key waits because its flow has no time left in its budget."""
        flow = self._flows.get(self._flow_of.get(key, ""))
        return flow is not None and flow.is_paused

    def push(self, key: K, priority: int) -> None:
        """Queue a key that is neither queued nor held."""
        name = ""
        if self._flow is not None:
            name = self._flow_of[key] = self._flow(key)
        if not self._queued:
            self._now = self._latest  # no flow waits, so it does not matter which one used most
        flow = self._flows.get(name)
        if flow is None:
            self._prune()
            flow = self._flows[name] = _Flow(name, self._now)
        flow.lanes.setdefault(priority, OrderedDict())[key] = None
        if name not in self._queued:
            self._queued.add(name)
            if not flow.held:
                flow.used = max(flow.used, self._now)
            self._list(flow)

    def pull(self, key: K, priority: int) -> None:
        """Remove a queued key."""
        flow = self._flows[self._flow_of.pop(key, "")]
        self._take(flow, key, priority)
        self._settle()

    def pop(self) -> K | None:
        """Remove and return the next key; None: none is queued, or all flows with queued keys must wait."""
        heap, aside = self._heap, list[tuple[float, int, _Flow[K]]]()
        key = None
        while heap:
            entry = heap[0]
            flow = entry[2]
            if not flow.lanes:
                heapq.heappop(heap)
                flow.is_listed = False
            elif entry[0] < flow.used:
                heapq.heapreplace(heap, (flow.used, next(self._ties), flow))
            elif self._is_bounded and flow.held >= min(_SHARE * self._free, self._most):
                aside.append(heapq.heappop(heap))
            elif self._flow is not None and (seconds := self._wait(flow.name)) > 0:
                heapq.heappop(heap)
                flow.is_listed, flow.is_paused = False, True
                self._paused(flow.name, seconds)
            else:
                priority = max(flow.lanes)
                key = next(iter(flow.lanes[priority]))
                if self._flow is not None:
                    self._now = flow.used
                    self._use(flow, _TURN)
                    flow.held += 1
                    self._held += 1
                    self._free -= 1
                self._take(flow, key, priority)
                break
        for entry in aside:
            heapq.heappush(heap, entry)
        return key

    def charge(self, key: K, seconds: float) -> str | None:
        """Add the time that a held key took since ``pop`` or the last ``charge``; return its flow, if it has one."""
        name = self._flow_of.get(key)
        if name is not None:
            self._use(self._flows[name], seconds)
        return name

    def finish(self, key: K) -> None:
        """Record that a worker is done with a key."""
        name = self._flow_of.pop(key, None)
        if name is not None:
            self._flows[name].held -= 1
            self._held -= 1
            self._free += 1
            self._settle()

    def resume(self, name: str) -> None:
        """Let a paused flow take workers again if it has time left in its budget."""
        flow = self._flows.get(name)
        if flow is not None and flow.is_paused:
            flow.is_paused = False
            if flow.lanes:
                self._list(flow)

    def resume_all(self) -> None:
        """Let all paused flows take workers again."""
        for name in list(self._flows):
            self.resume(name)

    def clear(self) -> None:
        """Remove all queued keys."""
        for name in self._queued:
            flow = self._flows[name]
            for lane in flow.lanes.values():
                for key in lane:
                    self._flow_of.pop(key, None)
            flow.lanes.clear()
        self._queued.clear()
        self._settle()

    def _use(self, flow: _Flow[K], seconds: float) -> None:
        flow.used += seconds
        self._latest = max(self._latest, flow.used)

    def _list(self, flow: _Flow[K]) -> None:
        if not flow.is_listed and not flow.is_paused:
            flow.is_listed = True
            heapq.heappush(self._heap, (flow.used, next(self._ties), flow))

    def _take(self, flow: _Flow[K], key: K, priority: int) -> None:
        lane = flow.lanes[priority]
        del lane[key]
        if not lane:
            del flow.lanes[priority]
            if not flow.lanes:
                self._queued.discard(flow.name)

    def _settle(self) -> None:
        """Forget what each flow used when no key is left, because then no other flow has waited for it."""
        if not self._queued and not self._held:
            self._flows.clear()
            self._heap.clear()
            self._now = self._latest = 0.0
            self._prune_at = _PRUNE

    def _prune(self) -> None:
        """Forget flows without keys that used no more than the others."""
        if len(self._flows) >= self._prune_at:
            self._flows = {
                name: flow
                for name, flow in self._flows.items()
                if flow.lanes or flow.held or flow.is_listed or flow.used > self._now
            }
            self._prune_at = max(_PRUNE, 2 * len(self._flows))
