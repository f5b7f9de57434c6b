"""A work queue with client-go's guarantees (``util/workqueue``), for one event loop.

- **Fair**: keys of one priority are returned in the order they were added. If keys belong to flows, the flow that
  used the least time is next, and no flow holds all workers (``fairness``). A flow that uses more than its share of the
  event loop, in all queues of the loop together, waits.
- **Stingy**: only one worker gets a key at a time. A key that is added a hundred times before a worker gets it
  is returned once.
- **Re-queue while processing**: a key added while a worker has it is returned again after ``done``.
- **First adds are immediate**: only ``add_after`` and ``add_rate_limited`` delay a key, and no other key.
- **Shutdown**: adds are ignored, queued keys are drained, then ``get`` raises.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.fairness import Lanes, TimeBudget

K = TypeVar("K", bound=Hashable)

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60)
_DEPTH = Gauge("workqueue_depth", "Keys that wait for a worker.", ["name"])
_ADDS = Counter("workqueue_adds_total", "Keys queued.", ["name"])
_WAIT = Histogram(
    "workqueue_queue_duration_seconds", "Seconds that a key waited in the queue.", ["name"], buckets=_SECONDS
)
_WORK = Histogram(
    "workqueue_work_duration_seconds", "Seconds that a worker took for a key.", ["name"], buckets=_SECONDS
)
_RETRIES = Counter("workqueue_retries_total", "Keys queued again after a failure.", ["name"])
_PAUSED = Counter(
    "workqueue_paused_seconds_total",
    "Seconds that namespaces had to wait because they had used their share of the event loop.",
    ["name"],
)
_UNFINISHED = Gauge(
    "workqueue_unfinished_work_seconds", "Seconds of unfinished work, sum of all keys.", ["name"]
)
_LONGEST = Gauge(
    "workqueue_longest_running_processor_seconds", "Seconds of the longest unfinished work.", ["name"]
)

_MOST_SECONDS = 5.0
"""Seconds of an event loop that one flow may use at once."""
_SHARE = 0.5
"""Share of an event loop that one flow may use in the long run. The rest is for other flows, leases and streams."""
_STALE = 1000
"""The heap is rebuilt when its entries of dropped and replaced times outnumber the delayed keys by more than this."""
_QUEUES: weakref.WeakSet[WorkQueue[Any]] = weakref.WeakSet()
"""All queues of the process."""
_BUDGETS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[TimeBudget]] = (
    weakref.WeakKeyDictionary()
)
"""The budgets of the flows by event loop, common to all queues of the loop. The queues keep them."""


def longest_wait() -> float:
    """Return the seconds for which the oldest key in the queues of this event loop waits; 0: none waits.

    Keys of flows that have used their share of the loop do not count.
    """
    return max((queue.oldest() for queue in list(_QUEUES)), default=0.0)


def _budget_of(loop: asyncio.AbstractEventLoop) -> TimeBudget:
    budget = known() if (known := _BUDGETS.get(loop)) is not None else None
    if budget is None:
        budget = TimeBudget(_MOST_SECONDS, _SHARE, loop.time)
        _BUDGETS[loop] = weakref.ref(budget)
    return budget


class QueueShutDown(Exception):  # noqa: N818 - a signal to stop, not a failure
    """The queue has been shut down and is empty."""


@dataclass(eq=False, repr=False)
class WorkQueue(Generic[K]):
    """Keys to reconcile, each held by at most one worker."""

    name: str
    """The queue's name in metrics."""
    _: KW_ONLY
    rate_limiter: ExponentialBackoff | None = None
    """The delays of failing keys; None: client-go's 5 ms doubling to 1000 s."""
    flow: Callable[[K], str] | None = None
    """Returns the flow of a key, such as its namespace. Flows take turns by the time that ``charge`` counts, and
    have a share of the event loop; priorities count within a flow. None: all keys are one flow, without a limit."""
    workers: int = 0
    """Number of workers, so that no flow holds all of them; 0: no limit."""

    def __post_init__(self) -> None:
        """Create an empty queue."""
        self._limiter = self.rate_limiter or ExponentialBackoff()
        self._lanes: Lanes[K] = Lanes(
            self.flow, workers=self.workers, wait=self._budget_wait, paused=self._pause
        )
        self._budget: TimeBudget | None = None
        self._dirty: dict[K, tuple[int, float]] = {}
        self._processing: dict[K, float] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._waiting: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._ties = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._shut_down = False
        self._loop: asyncio.AbstractEventLoop | None = None
        _QUEUES.add(self)
        self._depth: Any = _DEPTH.labels(self.name)
        self._adds: Any = _ADDS.labels(self.name)
        self._wait: Any = _WAIT.labels(self.name)
        self._work: Any = _WORK.labels(self.name)
        self._retries: Any = _RETRIES.labels(self.name)
        self._paused: Any = _PAUSED.labels(self.name)
        # Weak references, because metrics live as long as the process and must not keep an unused queue and
        # its keys.
        found, ages = weakref.ref(self), weakref.WeakMethod(self._ages)
        self._depth.set_function(lambda: 0 if (queue := found()) is None else len(queue))
        _UNFINISHED.labels(self.name).set_function(lambda: sum((ages() or list)()))
        _LONGEST.labels(self.name).set_function(lambda: max((ages() or list)(), default=0.0))

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker now, without delayed ones."""
        return len(self._lanes)

    def oldest(self) -> float:
        """Return the seconds for which the oldest key waits for a worker, without delayed keys and paused flows.

        0: none waits, or the keys were added in another event loop.
        """
        if self._loop is not asyncio.get_running_loop():
            return 0.0
        # The keys are in the order in which they were added.
        is_paused = self._lanes.is_paused
        return next(
            (self._now() - added for key, (_, added) in self._dirty.items() if not is_paused(key)), 0.0
        )

    def add(self, key: K, *, priority: int = 0) -> None:
        """Queue a key unless it is already queued; keys of higher priority come first.

        A queued key that is added with a higher priority moves to the end of that priority's keys.
        """
        if self._shut_down:
            return
        known = self._dirty.get(key)
        if known is not None:
            if priority > known[0]:
                self._raise(key, priority)
            return
        self._adds.inc()
        self._dirty[key] = (priority, self._now())
        if key not in self._processing:
            self._push(key, priority)

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key after some seconds. Of two times for one key, the earlier one counts."""
        if self._shut_down:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = self._now() + seconds
        known = self._waiting.get(key)
        if known is not None and known <= due:
            return
        self._waiting[key] = due
        heapq.heappush(self._heap, (due, next(self._ties), key))
        if len(self._heap) > 2 * len(self._waiting) + _STALE:
            self._heap = [(due, next(self._ties), one) for one, due in self._waiting.items()]
            heapq.heapify(self._heap)
        self._arm()

    def drop_delayed(self, key: K) -> None:
        """Forget the time of ``add_after`` for a deleted object; otherwise the key stays in memory until then."""
        self._waiting.pop(key, None)

    def add_rate_limited(self, key: K) -> float:
        """Queue a failed key after its back-off; return the back-off in seconds."""
        seconds = self._limiter.when(key)
        self._retries.inc()
        self.add_after(key, seconds)
        return seconds

    def retry_failed(self) -> None:
        """Queue all failed keys now, for example after the end of an outage; keep their back-offs."""
        for key in [key for key in self._waiting if self._limiter.num_requeues(key)]:
            del self._waiting[key]
            self.add(key)

    def forget(self, key: K) -> None:
        """Reset the back-off of a key that succeeded."""
        self._limiter.forget(key)

    def num_requeues(self, key: K) -> int:
        """Return the number of failures of the key since ``forget``."""
        return self._limiter.num_requeues(key)

    async def get(self) -> K:
        """Wait for a key and return it; the caller must call ``done`` with it.

        Raises:
            QueueShutDown: the queue was shut down and is empty.
        """
        while (key := self._lanes.pop()) is None:
            if self._shut_down and not self._lanes:
                self._wake()  # the next waiting getter must raise, too
                raise QueueShutDown(self.name)
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter.done() and not getter.cancelled():
                    self._wake()  # this getter was woken but is cancelled: wake another
                raise
        if self._getters and (self._lanes or self._shut_down):
            self._wake()  # for the next key, or to raise after the last
        _, added = self._dirty.pop(key)
        now = self._now()
        self._processing[key] = now
        self._wait.observe(now - added)
        return key

    def charge(self, key: K, seconds: float) -> None:
        """Charge the flow of a key that a worker holds with time of the event loop that the work took."""
        flow = self._lanes.charge(key, seconds)
        if flow is not None and self._budget is not None:
            self._budget.spend(flow, seconds)

    def done(self, key: K) -> None:
        """Record that the worker has finished with a key, with or without success."""
        started = self._processing.pop(key, None)
        if started is None:
            return  # no worker holds the key: continuing could queue it twice
        self._work.observe(self._now() - started)
        self._lanes.finish(key)
        again = self._dirty.get(key)
        if again is not None:
            self._push(key, again[0])
        elif self._lanes:
            self._wake()

    def shut_down(self) -> None:
        """Ignore further adds and drop delayed ones; ``get`` drains queued keys and then raises."""
        self._shut_down = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._heap.clear()
        self._lanes.resume_all()
        while self._getters:
            self._wake()

    def abandon(self) -> None:
        """Shut down and drop queued keys, which without workers would show as a backlog in metrics."""
        self.shut_down()
        self._lanes.clear()
        self._dirty.clear()

    def _push(self, key: K, priority: int) -> None:
        self._lanes.push(key, priority)
        self._wake()

    def _raise(self, key: K, priority: int) -> None:
        before, added = self._dirty[key]
        self._dirty[key] = (priority, added)
        if key not in self._processing:
            self._lanes.pull(key, before)
            self._push(key, priority)

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _budget_wait(self, flow: str) -> float:
        return 0.0 if self._budget is None or self._shut_down else self._budget.wait(flow)

    def _pause(self, flow: str, seconds: float) -> None:
        self._paused.inc(seconds)
        asyncio.get_running_loop().call_later(seconds, self._resume, flow)

    def _resume(self, flow: str) -> None:
        self._lanes.resume(flow)
        if self._lanes:
            self._wake()

    def _arm(self) -> None:
        if not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._move_due_keys)

    def _move_due_keys(self) -> None:
        self._timer = None
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._waiting.get(key) == due:
                del self._waiting[key]
                self.add(key)
        self._arm()

    def _now(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._budget = _budget_of(self._loop)
        return self._loop.time()

    def _ages(self) -> list[float]:
        if self._loop is None:
            return []
        now = self._loop.time()
        # Copy the values, because metrics are rendered in another thread.
        return [now - started for started in list(self._processing.values())]
