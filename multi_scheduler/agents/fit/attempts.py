"""Follows what becomes of the scheduler's attempts to place a pod, because it does not report failures to extenders.

After the filter, the scheduler may hold a pod for minutes, for example while a volume is provisioned. The room stays
reserved until one of these facts is known: the pod is bound or deleted, it has a nominated node, or its condition
PodScheduled reports a new failure. The scheduler does not write the same failure twice, so an attempt after a failure that
came after a passed filter may fail without a sign. Room for such an attempt is reserved for a short time only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterset.model.pod.conditions import condition
from controller_runtime import log, resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object, from_dict
from controller_runtime.util.event_loop import now
from multi_scheduler.state.reservations import (
    ATTEMPT_SECONDS,
    SILENT_SECONDS,
    Reservations,
    Stage,
)

NOMINATED = "nominatedNodeName"
FAILURE = "failure"
"""Field of a cached pod's status with the digest of the last failure."""
_PATIENCE = 0.5
"""Seconds to wait for a watch event about an unknown pod, before the pod is read from the API server."""
_AGAIN = 5.0
"""Seconds after which an unknown pod is read from the API server again."""


def failure(status: Mapping[str, Any] | None) -> str:
    """Return a digest of the scheduler's last failure in a pod's status; empty: no failure."""
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") != "False":
        return ""
    text = f"{scheduled.get('reason')}: {scheduled.get('message')}"
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


@dataclass(eq=False)
class Attempts:
    """The scheduler's attempts for pods with tentative reservations."""

    upper: Client
    reservations: Reservations
    nominated: Callable[[Object, str], None]
    """Called with a pending pod and its nominated node, if no room is reserved for the pod there; empty: it has none."""
    gone: Callable[[str], None]
    """Called with the UID of a deleted pod; its reservation is released already."""
    is_pending: Callable[[str, str], bool]
    """Returns whether the watch of pending pods has reported a pod, given its namespace/name and its UID."""
    is_bound: Callable[[str], bool]
    """Returns whether the watch of bound pods has reported a pod, given its UID."""
    _asked: dict[str, str] = field(default_factory=dict)
    """By UID of a pod that was filtered: its last failure at that time."""
    _failed: dict[str, str] = field(default_factory=dict)
    """By UID: the failure of an attempt that had passed the filter."""
    _left: dict[str, tuple[Object, float]] = field(default_factory=dict)
    """By UID: pods with reservations that no watch contains, and when they are read."""

    def __post_init__(self) -> None:
        self._has_left = asyncio.Event()
        self._log = log.get_logger(component="fit")

    def begin(self, pod: Mapping[str, Any]) -> float:
        """Record a filter call that passes; return for how many seconds its attempt can go on."""
        known = from_dict({"metadata": pod["metadata"]})
        uid, last = known.uid, failure(pod.get("status"))
        self._asked[uid] = last
        if not self.is_pending(known.key, uid):
            self._leave(known)  # it may have been deleted while the call waited
        return SILENT_SECONDS if last and self._failed.get(uid) == last else ATTEMPT_SECONDS

    def changed(self, pod: Object) -> None:
        """Handle a new or changed pending pod, as ``PendingPods`` stores it."""
        uid, status = pod.uid, pod.status or {}
        self._left.pop(uid, None)
        node, last = status.get(NOMINATED) or "", status.get(FAILURE) or ""
        has_failed = bool(last) and uid in self._asked and last != self._asked[uid]
        if node and self.reservations.nominate(uid, node, has_failed=has_failed):
            return
        self.nominated(pod, node)
        if has_failed or (not node and self.reservations.stage(uid) is Stage.NOMINATED):
            is_released = self.reservations.fail(uid)
            if is_released and has_failed:
                self._failed[uid] = last

    def removed(self, pod: Object) -> None:
        """Handle a pod that is no longer pending: it is bound or deleted."""
        self._forget(pod.uid)
        self.nominated(pod, "")
        if self.reservations.stage(pod.uid) is not None and not self.is_bound(pod.uid):
            self._leave(pod)

    def bound(self, uid: str) -> None:
        """Record that a pod is bound."""
        self._left.pop(uid, None)
        self._forget(uid)

    async def run(self) -> None:
        """Release the reservations of deleted pods until cancelled.

        Pods that no watch contains are read until one reports them, because a watch that restarts with a list does not
        report pods that were bound and deleted meanwhile.
        """
        while True:
            await self._has_left.wait()
            await asyncio.sleep(_PATIENCE)
            for uid, (pod, due) in list(self._left.items()):
                if self.reservations.stage(uid) is None:
                    self._left.pop(uid, None)
                elif due <= now():
                    await self._read(pod)
            if not self._left:
                self._has_left.clear()

    def _leave(self, pod: Object) -> None:
        self._left[pod.uid] = pod, now() + _PATIENCE
        self._has_left.set()

    async def _read(self, pod: Object) -> None:
        """Release the reservation of a pod if it was deleted; otherwise it is read again."""
        self._left[pod.uid] = pod, now() + _AGAIN
        try:
            is_gone = await self._is_gone(pod)
        except (ApiError, ConfigError) as error:
            self._log.warning("cannot read whether a pod was deleted", pod=pod.key, error=str(error))
            return
        if is_gone and self._left.pop(pod.uid, None) is not None:
            self._forget(pod.uid)
            self.reservations.release(pod.uid)
            self.gone(pod.uid)

    def _forget(self, uid: str) -> None:
        self._asked.pop(uid, None)
        self._failed.pop(uid, None)

    async def _is_gone(self, pod: Object) -> bool:
        found = await self.upper.list(
            resources.PODS, namespace=pod.namespace, field_selector=f"metadata.name={pod.name}"
        )
        return all(one.uid != pod.uid for one in found.items)
