"""Preempts pods only if that makes room for a whole group. No IO.

Source: kube-scheduler's preemption, which evicts pods of one node for one pod. Here the node is a virtual node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from multi_scheduler.agents.fit.groups.held import HeldGroups
from multi_scheduler.agents.fit.groups.members import Members
from multi_scheduler.agents.fit.groups.planning import Planner, Shortfall
from multi_scheduler.agents.fit.groups.standing import Standing
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.reservations.preemption import Mirrored, without
from multi_scheduler.virtual_node import VirtualNode

_PREEMPTING_SECONDS = 180.0
"""Seconds for which room stays reserved for a group while victims leave it, including their grace periods."""


class _UnfinishedError(Exception):
    """The time for planning was used up, so the victims are unknown."""


@dataclass(eq=False)
class GroupEviction:
    """Chooses victims that make room for groups, and reserves this room for the groups."""

    planner: Planner
    members: Members
    held: HeldGroups
    state: ClusterState
    _awaiting: set[str] = field(default_factory=set)
    """Keys of groups with reservations of room that is not free yet."""

    def preempt(
        self, ready: Standing, node: VirtualNode, candidates: Sequence[Mirrored], ending: Sequence[str]
    ) -> Sequence[str] | None:
        """Reserve room for a group; return UIDs of pods to evict from a virtual node, None: no pod is evicted.

        Args:
            ready: the group.
            node: the virtual node.
            candidates: pods there; those of lower priority than all members may be evicted.
            ending: index keys of pods there that are being deleted.
        """
        key, group = ready.group.key, ready.group
        if key in self.held or self.held.barred_for(key):
            return None
        # Filter calls leave out full nodes, so here all members may use all nodes, not only those offered to each.
        offered = {one.name: one for one in (*self.members.offered(ready), node)}.values()
        nodes = [one for one in offered if not group.is_one_cluster or one.cluster == node.cluster]
        planned: dict[str, VirtualNode] = {}

        def reserve() -> bool:
            planned.clear()
            found = self.planner.plan(ready, nodes, {}, self.members.homes(group), is_trial=True)
            if isinstance(found, Shortfall) and found.is_unfinished:
                raise _UnfinishedError
            planned.update({} if isinstance(found, Shortfall) else found)
            return bool(planned)

        def release() -> None:
            for uid in planned:
                self.state.reservations.leave_group(uid)

        lower = [one for one in candidates if one.priority < -ready.rank[0]]
        index = self.state.clusters[node.cluster].index
        try:
            victims = choose_victims(index, lower, ending, reserve=reserve, release=release)
        except _UnfinishedError:
            victims = None
        if victims is None:
            return None
        leaving = frozenset([*ending, *(one.key for one in lower if one.uid in victims)])
        for uid in planned:
            self.state.reservations.await_end(uid, leaving)
        self.held.hold(key, planned, seconds=_PREEMPTING_SECONDS)
        self._awaiting.add(key)
        return victims or None

    def is_awaited(self, key: str) -> bool:
        """Report whether a group must wait until preempted pods are gone from its reserved room."""
        if key not in self._awaiting:
            return False
        for uid, node in self.held.nodes(key).items():
            lower = self.state.clusters.get(node.cluster)
            placed = lower.index.placed(f"{uid}@{node.name}") if lower is not None else None
            if lower is not None and placed is not None and is_over(lower.index, [placed.node]):
                return True
        self._awaiting.discard(key)
        return False

    def sweep(self) -> None:
        """Forget groups without reservations."""
        self._awaiting = {key for key in self._awaiting if key in self.held}


def choose_victims(
    index: ClusterIndex,
    candidates: Sequence[Mirrored],
    ending: Sequence[str],
    *,
    reserve: Callable[[], bool],
    release: Callable[[], None],
) -> list[str] | None:
    """Return UIDs of the pods of lowest priority to evict so that a group fits; None: evicting all is not enough.

    Unless None is returned, the group's reservations remain, so that no other pod takes the room. Until the victims and
    the ending pods are gone, the free room of their nodes may be negative.

    Args:
        index: the lower cluster.
        candidates: pods that may be evicted.
        ending: index keys of pods that are being deleted, which count as gone.
        reserve: reserves room for the group; returns whether there is enough.
        release: releases these reservations.
    """
    placed_ones = (one for one in candidates if index.placed(one.key) is not None)
    ordered = sorted(placed_ones, key=lambda one: (one.priority, one.uid))

    def fits(count: int) -> bool:
        with without(index, [*ending, *(one.key for one in ordered[:count])]):
            if not reserve():
                return False
            release()
            return True

    least, most = 0, len(ordered)
    if not fits(most):
        return None
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if fits(middle) else (middle + 1, most)
    victims: dict[str, None] = {}
    evicted = ordered[:most]
    with without(index, [*ending, *(one.key for one in evicted)]) as put_back:
        reserve()
        for one in reversed(evicted):
            undo = put_back(one.key)
            placed = index.placed(one.key)
            if placed is not None and is_over(index, [placed.node]):
                undo()
                victims[one.uid] = None
    return list(victims)


def is_over(index: ClusterIndex, nodes: Collection[str]) -> bool:
    """Report whether one of the nodes is overcommitted or unknown."""
    for name in set(nodes):
        node, slot = index.node(name), index.slot(name)
        if node is None or slot is None:
            return True
        if any(index.free(resource)[slot] < 0 for resource in node.allocatable):
            return True
    return False
