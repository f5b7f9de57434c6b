"""Follows the upper pods without a node, and finds the members of a group among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.informer import BoundedInformer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from multi_scheduler.agents.fit.attempts import FAILURE, NOMINATED, failure
from multi_scheduler.agents.fit.groups.standing import DEFAULT_SCHEDULER, Member
from multi_scheduler.bound_pods import group_key, pods_budget, with_read_metadata

_PENDING = "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(eq=False)
class PendingPods:
    """The upper pods without a node."""

    client: Client
    changed: Callable[[Object], None] = lambda _pod: None
    """Called with every new or changed pod."""
    removed: Callable[[Object], None] = lambda _pod: None
    """Called with every pod that is deleted, or has a node now."""
    _members: dict[str, dict[str, Member]] = field(default_factory=dict)
    """By key of the group and UID."""
    _key_of: dict[str, str] = field(default_factory=dict)
    """Key of the group by UID of a member."""

    def __post_init__(self) -> None:
        """Create the informer; the caller runs it."""
        self.informer = BoundedInformer(
            self.client,
            resources.PODS,
            budget=pods_budget(),
            field_selector=_PENDING,
            transform=_shrink,
            name="pending-pods",
        )
        self._added = asyncio.Event()
        self.informer.on_change(self._put, self._removed)

    async def wait_for(self, key: str, uid: str, seconds: float) -> None:
        """Wait until the cache contains a pod (``key``: namespace/name), and therefore all pods that were created before it."""
        try:
            async with asyncio.timeout(seconds):
                while not self.has(key, uid):
                    self._added.clear()
                    await self._added.wait()
        except TimeoutError:
            return

    def has(self, key: str, uid: str) -> bool:
        """Report whether the cache contains a pod, given its namespace/name and its UID."""
        pod = self.informer.store.get(key)
        return pod is not None and pod.uid == uid

    def groups(self) -> Collection[str]:
        """Return the keys of all groups with pending members."""
        return self._members.keys()

    def members(self, key: str) -> Collection[Member]:
        """Return the members of a group that have no node and are not being deleted."""
        return self._members.get(key, {}).values()

    def pod(self, uid: str) -> Object | None:
        """Return the pending member with this UID; None: there is none."""
        key = self._key_of.get(uid)
        return self._members[key][uid].pod if key is not None else None

    def _put(self, pod: Object) -> None:
        self._added.set()
        self._forget(pod.uid)
        if pod.metadata.deletion_timestamp is None:
            for key in group_key(pod):
                self._members.setdefault(key, {})[pod.uid] = _member(pod)
                self._key_of[pod.uid] = key
        self.changed(pod)

    def _removed(self, pod: Object) -> None:
        self._forget(pod.uid)
        self.removed(pod)

    def _forget(self, uid: str) -> None:
        key = self._key_of.pop(uid, None)
        if key is not None:
            del self._members[key][uid]
            if not self._members[key]:
                del self._members[key]


def _shrink(pod: Object) -> Object:
    """Reduce the status to the outcome of the last attempt; drop the spec of pods that need no room before their filter."""
    status = {key: value for key, value in (
        (NOMINATED, (pod.status or {}).get(NOMINATED)), (FAILURE, failure(pod.status))
    ) if value}  # fmt: skip
    needs_spec = NOMINATED in status or group_key(pod)
    if not needs_spec:
        return with_read_metadata(pod.with_fields(spec={}, status=status))
    return with_read_metadata(pod.with_fields(status=status), all_labels=True)


def scheduler_of(spec: Mapping[str, Any]) -> str:
    """Return the name of the scheduler that a pod asks for."""
    return str(spec.get("schedulerName") or DEFAULT_SCHEDULER)


def _member(pod: Object) -> Member:
    spec = pod.spec or {}
    try:
        created = timestamps.parse(pod.metadata.creation_timestamp or "").timestamp()
    except ValueError:
        created = 0.0
    return Member(
        pod.uid,
        pod.name,
        created,
        spec.get("priority") or 0,
        bool(spec.get("schedulingGates")),
        scheduler_of(spec),
        pod,
    )
