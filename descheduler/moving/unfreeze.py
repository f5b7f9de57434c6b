"""Replaces pending pods that avoid nodes longer than needed, because a pod's affinity cannot be changed.

A pending pod of the upper cluster that avoids nodes is replaced (*released*) when a node's freeze period is
over. The descheduler re-creates a bare pod; it evicts a pod with a controller, which then creates another
pod.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime

from clusterset.model.moving import node_avoidance
from controller_runtime.errors import Conflict, NotFound, TooManyRequests
from controller_runtime.objects import Object
from controller_runtime.util.backoff import ExponentialBackoff
from descheduler.moving import eviction
from descheduler.moving.mover import Mover
from descheduler.moving.record_store import NotRecordedError
from descheduler.view import pods, replacement

_FRESH = 10.0
"""Minimum age in seconds of a pending pod that may be replaced."""
_PAUSE, _LONGEST_PAUSE = 30.0, 7200.0
"""Seconds until the successor of a released pod may be released, too; doubles with each release, up to
``_LONGEST_PAUSE``."""
_NOT_RECORDED_RETRY = 60.0
_MAX_OWNERS = 4096


class Releaser:
    """Replaces pending pods that avoid nodes longer than needed. It counts no round of moving."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._backoff = ExponentialBackoff(1.0, 60.0)
        self._pauses = ExponentialBackoff(_PAUSE, _LONGEST_PAUSE)
        self._rounds: OrderedDict[str, tuple[datetime, float]] = OrderedDict()
        """Owner → time of the last release, and seconds until the next release.

        Without this pause, pods would be released again and again if their template contains the avoidance.
        """

    async def release(self, pod: Object) -> float | None:
        """Replace a pending pod if an avoided node's freeze period is over, or if it avoids all usable nodes.

        Args:
            pod: cached pod that is not bound and avoids nodes.

        Returns:
            Seconds after which to call again; None: when an object changes.

        Raises:
            ApiError: a request to the upper cluster failed.
        """
        if pods.controller_of(pod) is not None:
            return await self._release_owned(pod)
        now = self._mover.now()
        noted = replacement.recorded(pod.annotations)
        active = node_avoidance.active(noted, now=now, freeze_period=self._mover.freeze_period)
        usable = self._mover.view.open_names()
        gives_way = bool(usable) and not usable - active.keys()
        if not noted:
            return None
        if len(active) == len(noted) and not gives_way:
            oldest = min(active.values())
            return self._mover.freeze_period - (now - oldest).total_seconds() + 1.0
        if self._mover.why_not_movable(pod) or self._mover.is_dry_run or not usable:
            return None
        current = await self._mover.read_unchanged(pod)
        if current is None:
            return None
        successor = replacement.of(current, avoid=active, node="", usable=usable, now=now, counts=False)
        try:
            await self._mover.recreator.rehearse(successor)
            await self._mover.recreator.begin(
                current, replacement=successor, reason="it may use all nodes again"
            )
        except NotRecordedError as error:
            self._mover.recorder.event(pod, "Normal", "NotRescheduled", f"Stays: {error}")
            return _NOT_RECORDED_RETRY
        return None

    async def _release_owned(self, pod: Object) -> float | None:
        """Evict a controller's pod, so that it is replaced, if an avoided node is usable and no longer frozen."""
        thawed = (
            replacement.avoided_names(pod.annotations) - self._mover.memory.frozen(pods.owner_key(pod)).keys()
        )
        if (
            not thawed & self._mover.view.open_names()
            or self._mover.why_not_movable(pod)
            or self._mover.is_dry_run
        ):
            return None
        # Wait, because the webhook's replicas may receive the change later than this process.
        rest = max(_FRESH - (self._mover.now() - pods.created(pod)).total_seconds(), self._pause(pod))
        if rest > 0:
            return rest
        try:
            await eviction.evict(self._mover.client, pod)
        except (NotFound, Conflict):
            return None
        except TooManyRequests as error:
            return max(error.retry_after or 0.0, self._backoff.when(pod.uid))
        self._note(pod)
        self._mover.recorder.event(pod, "Normal", "Rescheduled", f"May use {', '.join(sorted(thawed))} again")
        return None

    def _pause(self, pod: Object) -> float:
        """Return the seconds until a pod may be released if it is the successor of a released pod; 0 or less: now."""
        began, pause = self._rounds.get(pods.owner_key(pod), (None, 0.0))
        if began is None or pods.created(pod) < began:
            return 0.0
        return pause - (self._mover.now() - began).total_seconds()

    def _note(self, pod: Object) -> None:
        """Store a release's time, unless the pod was created before the owner's stored time."""
        owner = pods.owner_key(pod)
        began, pause = self._rounds.get(owner, (None, 0.0))
        if began is not None and pods.created(pod) < began:
            return
        now = self._mover.now().replace(microsecond=0)
        if began is None or (now - began).total_seconds() > pause + _LONGEST_PAUSE:
            self._pauses.forget(owner)
        self._rounds[owner] = (now, self._pauses.when(owner))
        self._rounds.move_to_end(owner)
        while len(self._rounds) > _MAX_OWNERS:
            self._pauses.forget(self._rounds.popitem(last=False)[0])
