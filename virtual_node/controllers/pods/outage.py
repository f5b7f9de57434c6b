"""Reports the pods of a lower cluster not ready when the cluster has not been readable for some time.

kube-controller-manager does this for a kubelet that is gone, but only at its own change of the Node from Ready to Unknown.
The virtual node itself reports the Node NotReady, so that the cause is visible, and must report the pods, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from clusterset.config import NOT_READY
from clusterset.model.moving.silence import UNREACHABLE
from clusterset.model.pod.conditions import is_true
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object
from controller_runtime.process import lifecycle
from controller_runtime.util import event_loop
from controller_runtime.util.event_loop import Slicer
from controller_runtime.workqueue.queue import WorkQueue
from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.controllers.nodes import HealthController
from virtual_node.controllers.pods.status_writer import StatusWriter, Unread
from virtual_node.examine.connections import plain

_PERIOD = 2.0
"""Seconds between two comparisons of states in this process. They need no requests."""
_AGAIN = 30.0
"""Seconds until the pods are searched again for Ready ones, when there was none. 10,000 pods take a tenth of a second."""
_AT_ONCE = 8
"""Statuses that are written at once; the limit of the client's requests applies, too."""


@dataclass(eq=False, repr=False)
class OutageController:
    """Follows whether the statuses of a lower cluster's pods can be read."""

    context: ClusterContext
    health: HealthController
    caches: PodCaches
    status: StatusWriter
    queue: WorkQueue[str]
    """The uids of upper pods to mirror again when the cluster can be read."""
    _read_at: float = field(default=0.0, init=False)
    """Loop time at which the statuses could last be read, or at which this process began."""

    async def run(self) -> None:
        """Mark and unmark pods until cancelled; does nothing with ``KeepReady``."""
        config = self.context.config.unreachable
        if config.pods != NOT_READY:
            return
        loop = asyncio.get_running_loop()
        self._read_at, again = loop.time(), 0.0
        while True:
            if not (trouble := self._trouble()):
                self._read_at = self.health.answered_at or loop.time()
                self._end()
                again = 0.0
            elif loop.time() - self._read_at >= config.after_seconds and loop.time() >= again:
                text = f"Lower cluster {self.context.name} does not answer: {trouble}"
                marked = await self.mark(UNREACHABLE, text)
                again = 0.0 if marked else loop.time() + _AGAIN
            await asyncio.sleep(_PERIOD)

    async def mark(self, reason: str, message: str) -> int:
        """Report all Ready pods not ready, with the reason and message of the first call; return their number."""
        if self.status.unread is None:
            self.status.unread = Unread(reason, message)
            self.context.log.warning("pods are reported not ready", reason=reason, cause=message)
        slicer, ready = Slicer(), []
        for informer in self.caches.upper.values():
            for pod in informer.store.list():
                if is_true(pod.status, "Ready"):
                    ready.append(pod)
                await slicer.tick()
        limit = asyncio.Semaphore(_AT_ONCE)

        async def write(pod: Object) -> None:
            async with limit:
                try:
                    await self.status.write_unread(pod)
                except (ApiError, ConfigError) as error:  # a changed pod is tried again in the next period
                    self.context.log.debug("pod not reported not ready yet", pod=pod.key, error=str(error))

        await asyncio.gather(*map(write, ready))
        return len(ready)

    async def stopped(self, reason: str, message: str, *, since: float, longest: float) -> None:
        """Report the pods of a cluster that is not read any more not ready; return then, or at once if it is not time yet.

        Args:
            reason: of the condition.
            message: of the condition.
            since: loop time at which the statuses could last be read.
            longest: seconds that this call may wait, because the cluster is read again after that.
        """
        config = self.context.config.unreachable
        left = since + config.after_seconds - event_loop.now()
        if config.pods != NOT_READY or left > longest:
            return
        async with contextlib.AsyncExitStack() as stack:
            for informer in self.caches.upper.values():  # a write to a pod that has changed would fail
                await stack.enter_async_context(lifecycle.beside(informer.run()))
            await asyncio.sleep(max(left, _PERIOD))
            await self.mark(reason, message)

    def _end(self) -> None:
        if self.status.unread is None:
            return
        self.status.unread = None
        self.context.log.info("pods are reported as their lower cluster does again")
        for informer in self.caches.upper.values():
            for pod in informer.store.list():
                self.queue.add(pod.uid)

    def _trouble(self) -> str:
        """Return why the statuses of the lower pods cannot be read; empty: they can, or are being listed for the first time.

        A cluster without ready nodes can be read; what it reports about its pods is mirrored.
        """
        if self.health.reachable is None:
            return ""  # the first request has not ended
        if not self.health.reachable:
            return self.health.error or "it has not answered yet"
        error = self.caches.lower.last_error
        return "" if error is None else plain(str(error)) or repr(error)
