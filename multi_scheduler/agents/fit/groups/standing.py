"""Decides whether a group may start now, and which group is first. No IO."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clusterset.model.pod.groups import Group
from controller_runtime.objects import Object

DERIVED_PATIENCE = 60.0
"""Seconds until the pods of an incomplete group start alone, if only labels declare the group. Its controller may
create the other pods only when the first one is Ready, which no label of the pods shows."""
DEFAULT_SCHEDULER = "default-scheduler"


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
    scheduler: str = DEFAULT_SCHEDULER
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
        priority = min((one.priority for one in self.members), default=0)
        return -priority, min((one.created for one in self.members), default=0.0), self.group.key


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
