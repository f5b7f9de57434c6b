"""Decides whether a group may start now, which group is first, and how long groups hold reservations.

The reservations themselves are in ``state.reservations``.

``Attempts`` follows what becomes of the scheduler's attempts to place a pod, because it does not report failures to extenders.

After the filter, the scheduler may hold a pod for minutes, for example while a volume is provisioned. The room stays
reserved until one of these facts is known: the pod is bound or deleted, it has a nominated node, or its condition
PodScheduled reports a new failure. The scheduler does not write the same failure twice, so an attempt after a failure that
came after a passed filter may fail without a sign. Room for such an attempt is reserved for a short time only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from clusterset.model.pod.groups import Group
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
from multi_scheduler.virtual_node import VirtualNode

DERIVED_PATIENCE = 60.0
"""Seconds until the pods of an incomplete group start alone, if only labels declare the group. Its controller may
create the other pods only when the first one is Ready, which no label of the pods shows."""
HELD_SECONDS = 60.0
"""Seconds without progress after which a group loses its reservations. Progress: a member passes the filter or is bound."""
_PENALTIES = (30.0, 120.0, 600.0)
"""Seconds during which a group may not reserve room after its reservations expired once, twice, more often."""
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a group that has no node yet."""

    uid: str
    name: str
    created: float
    """Seconds since the epoch."""
    priority: int = 0
    is_gated: bool = False
    """Whether scheduling gates keep the pod from the scheduler."""
    scheduler: str = names.DEFAULT_SCHEDULER
    """Name of the scheduler that the pod asks for."""
    pod: Object | None = None
    """The Pod object; None in tests."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a group needs to start."""

    group: Group
    members: Sequence[Member]
    """Members without a node and without scheduling gates, in the order in which they get room."""
    bound: int
    """Number of members that have a node."""
    needed: int = 0
    """Number of members that must get room together; 0: each member starts alone."""
    waits_for: str = ""
    """What the group lacks apart from room; empty: nothing."""

    @property
    def rank(self) -> tuple[int, float, str]:
        """Return the key by which groups are sorted: highest priority first, then the oldest.

        The member of lowest priority counts, so that one important pod does not advance its group.
        """
        priority = min((member.priority for member in self.members), default=0)
        return -priority, min((member.created for member in self.members), default=0.0), self.group.key


def standing(group: Group, pending: Collection[Member], bound: int, *, now: float) -> Standing:
    """Return what a group needs to start.

    A group with bound members, but fewer pods than its minimum, started earlier and lost pods. Its new pods start
    alone, because its bound pods do not wait for room.

    Args:
        group: the group, with its minimum.
        pending: members without a node.
        bound: number of members with a node that are neither finished nor being deleted.
        now: seconds since the epoch.
    """
    members = sorted(
        (one for one in pending if not one.is_gated), key=lambda one: (-one.priority, one.created, one.name)
    )
    needed = group.minimum - bound
    if needed <= 0:
        return Standing(group, members, bound)
    if len(members) >= needed:
        return Standing(group, members, bound, needed)
    oldest = min((one.created for one in pending), default=now)
    if bound or (group.is_derived and now - oldest >= DERIVED_PATIENCE):
        return Standing(group, members, bound)
    gated = len(pending) - len(members)
    text = f"pod group {group} has {len(members)} of {group.minimum} pods"
    if gated:
        text += f" ({gated} more have scheduling gates)"
    return Standing(group, members, bound, needed, text)


@dataclass(slots=True)
class _Held:
    nodes: dict[str, VirtualNode]
    """UID of a member → virtual node, until the member is bound."""
    deadline: float


@dataclass(eq=False)
class HeldGroups:
    """The groups with reservations."""

    leave: Callable[[str], None]
    """Called with the UID of a pod that loses its group's reservation: releases it unless the pod is being bound."""
    started: Callable[[str], None]
    """Called with the key of a group when all its reservations are used."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _group_of: dict[str, str] = field(default_factory=dict)
    """Key of the group by UID of a member with a reservation."""
    _expiries: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By group: how often its reservations expired, and until when it may not reserve."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def hold(self, key: str, nodes: Mapping[str, VirtualNode], *, seconds: float = HELD_SECONDS) -> None:
        """Record reservations for members of a group that had none; other groups lose these members.

        ``nodes`` are by UID of a member. ``seconds`` is the time until the reservations expire without progress.
        """
        for uid in nodes:
            self._forget(uid)  # held by another group if a user changed the pod's group
        if nodes:
            self._held[key] = _Held(dict(nodes), self.clock() + seconds)
            self._group_of.update(dict.fromkeys(nodes, key))

    def node(self, uid: str) -> VirtualNode | None:
        """Return the virtual node on which a member has a reservation; None: it has none."""
        key = self._group_of.get(uid)
        return self._held[key].nodes[uid] if key is not None else None

    def nodes(self, key: str) -> Mapping[str, VirtualNode]:
        """Return the virtual nodes by UID of a group's members with reservations."""
        held = self._held.get(key)
        return held.nodes if held is not None else {}

    def count(self, key: str) -> int:
        """Return the number of a group's members with reservations."""
        return len(self.nodes(key))

    def passed(self, uid: str) -> None:
        """Record that a member passed the filter."""
        if (key := self._group_of.get(uid)) is not None:
            self._held[key].deadline = self.clock() + HELD_SECONDS

    def bound(self, uid: str) -> None:
        """Record that a member is bound; its reservation no longer belongs to the group."""
        self.passed(uid)
        if key := self._forget(uid):
            self._expiries.pop(key, None)
            if key not in self._held:
                self.started(key)

    def deleted(self, uid: str) -> None:
        """Record that a pod was deleted."""
        self._forget(uid)

    def drop(self, key: str) -> None:
        """Release all reservations of a group, except of members that are being bound."""
        held = self._held.get(key)
        for uid in list(held.nodes) if held is not None else ():
            self._forget(uid)
            self.leave(uid)

    def expire(self) -> None:
        """Release reservations of groups without progress."""
        now = self.clock()
        for key in [key for key, held in self._held.items() if held.deadline <= now]:
            self.drop(key)
            times = self._expiries.pop(key, (0, 0.0))[0]
            self._expiries[key] = times + 1, now + _PENALTIES[min(times, len(_PENALTIES) - 1)]
        for key in list(self._expiries)[: max(0, len(self._expiries) - _REMEMBERED)]:
            del self._expiries[key]

    def barred_for(self, key: str) -> float:
        """Return the seconds during which a group may not reserve room, because its reservations expired unused."""
        return max(0.0, self._expiries.get(key, (0, 0.0))[1] - self.clock())

    def _forget(self, uid: str) -> str:
        """Forget a member's reservation; return the key of its group, or an empty string."""
        key = self._group_of.pop(uid, "")
        if key:
            held = self._held[key]
            del held.nodes[uid]
            if not held.nodes:
                del self._held[key]
        return key


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
    """By UID of a pod: the failure of its last attempt after the filter had passed."""
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
