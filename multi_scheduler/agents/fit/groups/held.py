"""Which groups hold reservations for members that are not bound yet, and how long. No IO.

The reservations themselves are in ``state.reservations``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from multi_scheduler.virtual_node import VirtualNode

HELD_SECONDS = 60.0
"""Seconds without progress after which a group loses its reservations. Progress: a member passes the filter or is bound."""
_PENALTIES = (30.0, 120.0, 600.0)
"""Seconds during which a group may not reserve room after its reservations expired once, twice, more often."""
_REMEMBERED = 1000


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
        """Note reservations for members of a group that had none; other groups lose these members.

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
        """Note that a member passed the filter."""
        if (key := self._group_of.get(uid)) is not None:
            self._held[key].deadline = self.clock() + HELD_SECONDS

    def bound(self, uid: str) -> None:
        """Note that a member is bound; its reservation no longer belongs to the group."""
        self.passed(uid)
        if key := self._forget(uid):
            self._expiries.pop(key, None)
            if key not in self._held:
                self.started(key)

    def deleted(self, uid: str) -> None:
        """Note that a pod was deleted."""
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
