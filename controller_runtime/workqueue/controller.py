"""Workers that reconcile the keys of a work queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import structlog

from controller_runtime.consistency import OwnWrites
from controller_runtime.errors import ApiError, ConfigError, RequestTooLarge
from controller_runtime.util.event_loop import Slicer
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.fairness import charged
from controller_runtime.workqueue.queue import QueueShutDown, WorkQueue

K = TypeVar("K", bound=Hashable)
_QUIET_FAILURES = 3
"""Number of failures of one key that are only logged at debug level, because conflicts resolve themselves."""
_STALE_RETRY = 1.0
"""Seconds until a key that waits for our last write is checked again. Normally the watch event of the write queues
the key earlier."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a successful reconciliation requests."""

    requeue_after: float | None = None
    """Seconds after which the key is reconciled again; None: only after a change."""


class Controller(Generic[K]):
    """Runs N workers that take keys from one queue and call ``reconcile(key)``.

    An error requeues its key with the key's own back-off and does not delay other keys. ``RequestTooLarge`` does not
    requeue it. A result may requeue the key. Success resets the key's back-off.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result | None]],
        *,
        workers: int = 1,
        backoff: ExponentialBackoff | None = None,
        flow: Callable[[K], str] | None = None,
        queue: WorkQueue[K] | None = None,
    ) -> None:
        """Create a controller; ``run`` starts the workers.

        Args:
            name: in logs and metrics.
            reconcile: called with a key; level-triggered, so it may run at any time and any number of times.
            workers: keys reconciled at the same time.
            backoff: the delays of failing keys, as in ``WorkQueue``.
            flow: returns the flow of a key, as in ``WorkQueue``; no flow holds all workers. The time that ``reconcile``
                takes is charged to it.
            queue: the work queue; None: a new one with this back-off and flow.
        """
        self.name = name
        if queue is None:
            queue = WorkQueue(name, rate_limiter=backoff, flow=flow, workers=workers if flow else 0)
        self.queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._own_writes: OwnWrites[K] = OwnWrites(name)
        self._log = structlog.get_logger(controller=name)

    def enqueue(self, key: K) -> None:
        """Queue a key for reconciliation."""
        self.queue.add(key)

    def is_waiting(self, key: K) -> bool:
        """Report whether a key waits for a cache that does not show our last write for it yet."""
        return self._own_writes.is_waiting(key)

    async def run(self) -> None:
        """Work until cancelled or the queue is shut down and drained. Call once: it shuts down the queue."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            self.queue.abandon()

    async def _work(self) -> None:
        slicer = Slicer()
        while True:
            # Keys that need no request would otherwise be reconciled without a pause while the queue has keys.
            await slicer.tick()
            try:
                key = await self.queue.get()
            except QueueShutDown:
                return
            try:
                if self._own_writes.must_wait(key):
                    self.queue.add_after(key, _STALE_RETRY)
                    continue
                with self._own_writes.noting(key):
                    result = await charged(self._reconcile(key), partial(self.queue.charge, key))
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # The awaited operation was cancelled, not this task. Without this the worker would end
                # unnoticed.
                self._failed(key, RuntimeError(f"an operation inside reconcile was cancelled: {error!r}"))
            except RequestTooLarge as error:
                # The next attempt would fail, too, until one of the objects changes.
                self.queue.forget(key)
                self._log.warning("object is too large and is not retried", key=str(key), error=str(error))
            except Exception as error:  # noqa: BLE001 - a failing key must not affect other keys
                self._failed(key, error)
            else:
                self.queue.forget(key)
                if result is not None and result.requeue_after is not None:
                    self.queue.add_after(key, result.requeue_after)
            finally:
                self.queue.done(key)

    def _failed(self, key: K, error: Exception) -> None:
        failures = self.queue.num_requeues(key)
        delay = self.queue.add_rate_limited(key)
        details = {"key": str(key), "error": str(error), "attempt": failures + 1, "retry_in": round(delay, 3)}
        if isinstance(error, (ApiError, ConfigError, TimeoutError)):
            level = self._log.debug if failures < _QUIET_FAILURES else self._log.warning
            level("reconcile failed", kind=type(error).__name__, **details)
        else:
            # A programming error: log it with its traceback the first time, then in one line.
            self._log.error("reconcile failed", exc_info=error if not failures else None, **details)
