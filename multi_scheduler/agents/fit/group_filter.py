"""Answers filter calls for pods of groups: a group gets room for all members that must start together, or it waits.

Pods are preempted only if that makes room for a whole group, as kube-scheduler evicts pods of one node for one pod. Here
the node is a virtual node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import Gauge, Histogram

from clusterset.model.pod.groups import Group, group_of
from controller_runtime.client.client import Client
from controller_runtime.util.event_loop import now
from multi_scheduler.agent import NOTHING, Rejections
from multi_scheduler.agents.fit.members import Members, PendingPods, scheduler_of
from multi_scheduler.agents.fit.planning import Planner, Shortfall, within
from multi_scheduler.agents.fit.standing import Attempts, HeldGroups, Standing
from multi_scheduler.malformed import UNREADABLE
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.scoring import Prediction
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.placing import Mirrored, without
from multi_scheduler.state.reservations import RECENT_SECONDS
from multi_scheduler.virtual_node import VirtualNode

_CACHE_SECONDS = 0.5
"""Seconds that a filter call waits for the pod's own watch event. Before it, members that were created earlier may be
missing."""
_SETTLE_SECONDS = 2.0
"""Seconds that a filter call waits for the release of other pods' reservations."""
_MOST_EARLIER = 5
"""Number of groups with precedence that may get room in one filter call."""
_REMEMBERED_SECONDS = 1.0
"""Seconds for which a group that does not fit is not planned again while no room changes."""

_GROUPS = Gauge(
    "virtual_node_pod_groups",
    "Pod groups with all their pods that wait for room, or that have reserved room.",
    ["state"],
)
_START_SECONDS = Histogram(
    "virtual_node_pod_group_start_seconds",
    "Time from the first filter call of a complete pod group until all pods with reserved room are bound.",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 1800),
)
_PREEMPTING_SECONDS = 180.0
"""Seconds for which room stays reserved for a group while victims leave it, including their grace periods."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one pod of a group."""

    judged: Mapping[str, Prediction] = field(default_factory=dict)
    """Predictions by virtual node that passes; empty: none passes."""
    rejections: Rejections = NOTHING
    alone: Sequence[VirtualNode] | None = None
    """The virtual nodes on which the pod may start by itself; None: it starts with its group."""
    shortfall: Shortfall | None = None
    """Set if the group lacks room."""


def rejected(nodes: Sequence[VirtualNode], text: str) -> Verdict:
    """Return the decision that no virtual node takes the pod."""
    return Verdict(rejections=Rejections({}, {node.name: text for node in nodes}))


@dataclass(eq=False)
class GroupFilter:
    """Decides about pods of groups."""

    upper: Client
    state: ClusterState
    planner: Planner
    pending: PendingPods
    attempts: Attempts
    _ready_since: dict[str, float] = field(default_factory=dict)
    """By group: time since which it lacks only room."""
    _lacking: dict[str, tuple[object, float, Shortfall]] = field(default_factory=dict)
    """By key of a group that does not fit: state and time of the last plan, and what the group lacked."""

    def __post_init__(self) -> None:
        self._reservations = self.state.reservations
        self.held = HeldGroups(self._reservations.leave_group, self._started, now)
        self.members = Members(self.upper, self.state, self.pending, self.held, self.attempts)
        self.eviction = GroupEviction(self.planner, self.members, self.held, self.state)

    def group(self, pod: Mapping[str, Any]) -> Group | None:
        """Return the group of a pod; None: it starts alone."""
        metadata = pod["metadata"]
        declared = group_of(
            metadata.get("namespace", ""),
            metadata.get("labels") or {},
            metadata.get("annotations") or {},
            pod["spec"],
        )
        return self.members.pod_groups.resolve(declared)

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode], group: Group) -> Verdict:
        """Return the decision about a pod of a group, after reserving room for the group if there is enough."""
        if group.problem:
            return rejected(nodes, f"pod group {group}: {group.problem}")
        uid = await self._wait_for(pod, group)
        self.members.offer(uid, nodes)
        deadline = now() + _SETTLE_SECONDS
        while True:
            verdict = self._decide(uid, pod, nodes, group)
            short = verdict.shortfall
            if short is None:
                return verdict
            may_change = self._may_change(group)
            until = deadline if may_change else min(deadline, short.counted_by)
            if until <= (time := now()):
                with self.planner.growing() as can_grow:
                    if can_grow:
                        verdict = self._decide(uid, pod, nodes, group)
                if may_change and verdict.shortfall is not None:
                    text = f"room for pod group {group} is reserved for pods that may not use it"
                    rejections = replace(verdict.rejections, transient=text)
                    verdict = replace(verdict, rejections=rejections)
                return verdict
            await self._reservations.wait(until - time)

    async def standing(self, pod: Mapping[str, Any], group: Group) -> Standing | None:
        """Return what a pod's group needs to start, with all members created before this pod; None: no usable group."""
        if group.problem:
            return None
        await self._wait_for(pod, group)
        return self.members.standing(group.key)

    async def _wait_for(self, pod: Mapping[str, Any], group: Group) -> str:
        """Wait until the cache contains the pod and the members that were created before it; return the pod's UID."""
        metadata = pod["metadata"]
        uid: str = metadata.get("uid", "")
        key = f"{group.namespace}/{metadata.get('name', '')}"
        await self.pending.wait_for(key, uid, _CACHE_SECONDS)
        self.members.asked_by(scheduler_of(pod["spec"]))
        return uid

    def sweep(self) -> None:
        """Release expired reservations of groups, and forget groups without pending pods."""
        self.held.expire()
        self.eviction.sweep()
        groups = self.pending.groups()
        for key in self._lacking.keys() - groups:
            del self._lacking[key]
        for key in self._ready_since.keys() - groups:
            if key not in self.held:
                del self._ready_since[key]
        _GROUPS.labels("reserved").set(len(self.held))
        _GROUPS.labels("waiting").set(sum(key not in self.held for key in self._ready_since))

    def _started(self, key: str) -> None:
        if (since := self._ready_since.pop(key, None)) is not None:
            _START_SECONDS.observe(now() - since)

    def _decide(
        self, uid: str, pod: Mapping[str, Any], nodes: Sequence[VirtualNode], group: Group
    ) -> Verdict:
        if (passing := self._use_reservation(uid, pod, nodes, group)) is not None:
            return passing
        found = self.members.standing(group.key)
        if found is None or found.waits_for:
            return rejected(nodes, found.waits_for if found is not None else f"pod group {group} is unknown")
        if found.needed:
            self._ready_since.setdefault(group.key, now())
        if self.held.count(group.key) < found.needed:
            self.held.drop(group.key)
            if seconds := self.held.barred_for(group.key):
                text = f"pod group {group} did not use its reserved room; it may reserve again in {seconds:.0f} s"
                return rejected(nodes, text)
            if (short := self._reserve_in_order(found)) is not None:
                reasons = {
                    node.name: short.reasons.get(node.name)
                    or f"pod group {group} needs its room in one place"
                    for node in nodes
                }
                empty: dict[str, str] = {}
                both = (reasons, empty) if short.is_resolvable else (empty, reasons)
                return Verdict(rejections=Rejections(*both), shortfall=short)
            if (passing := self._use_reservation(uid, pod, nodes, group)) is not None:
                return passing
        return self._alone(nodes, found)

    def _use_reservation(
        self, uid: str, pod: Mapping[str, Any], nodes: Sequence[VirtualNode], group: Group
    ) -> Verdict | None:
        """Pass the virtual node on which the group reserved room for the pod.

        Returns:
            the decision. None: the pod has no such room; if the room is lost, the group's reservations are released.
        """
        node = self.held.node(uid)
        if node is None:
            return None
        if self.eviction.is_awaited(group.key):
            return rejected(nodes, f"pod group {group} waits until preempted pods have ended")
        self._reservations.release(uid)
        with self.planner.growing():
            found = self.planner.judge(pod, [node]) if node.name in {each.name for each in nodes} else None
        if found is None or not found.places:
            self.held.drop(group.key)
            return None
        seconds = self.attempts.begin(pod)
        priority = pod["spec"].get("priority") or 0
        self._reservations.reserve(uid, found.places, priority=priority, seconds=seconds, is_of_group=True)
        self.held.passed(uid)
        text = f"room for pod group {group} is reserved on {node.name}"
        others = {one.name: text for one in nodes if one.name != node.name}
        return Verdict(judged=found.judged, rejections=Rejections({}, others))

    def _alone(self, nodes: Sequence[VirtualNode], standing: Standing) -> Verdict:
        """Let a pod start by itself; if the group must run in one place, only where its other members run."""
        homes = self.members.homes(standing.group)
        allowed = [node for node in nodes if not homes.clusters or node.cluster in homes.clusters]
        if homes.domains:
            topology = standing.group.topology
            limited = (within(node, topology, value) for node in allowed for value in homes.domains)
            allowed = [node for node in limited if node is not None]
        names = {node.name for node in allowed}
        text = f"the other pods of pod group {standing.group} run in {', '.join(sorted(homes.clusters))}"
        others = {node.name: text for node in nodes if node.name not in names}
        return Verdict(rejections=Rejections({}, others), alone=allowed)

    def _reserve_in_order(self, ready: Standing) -> Shortfall | None:
        """If a group fits, reserve room for groups with precedence, then for the group; return what it lacks, None: nothing."""
        if (short := self._reserve(ready)) is not None:
            return short
        earlier = [
            found
            for key in self.pending.groups()
            if key not in self.held
            and not self.held.barred_for(key)
            and (found := self.members.standing(key)) is not None
            and found.needed
            and not found.waits_for
            and found.rank < ready.rank
            and any(member.uid in self.members.candidates for member in found.members)
        ]
        if not earlier:
            return None
        self.held.drop(ready.group.key)
        for other in sorted(earlier, key=lambda one: one.rank)[:_MOST_EARLIER]:
            # The pods of another tenant must not cause an error here.
            with contextlib.suppress(*UNREADABLE):
                self._reserve(other)
        return self._reserve(ready)

    def _reserve(self, ready: Standing) -> Shortfall | None:
        """Reserve room for a group. Return the shortfall; None: reserved."""
        key = ready.group.key
        state = (
            (
                self.planner.grows,
                *((member.uid, self.members.candidates.get(member.uid)) for member in ready.members),
            ),
            self._reservations.changes,
            self._changes(),
        )
        known = self._lacking.pop(key, None)
        if known is not None and known[0] == state and now() < known[1] + _REMEMBERED_SECONDS:
            self._lacking[key] = known
            return known[2]
        planned = self._plan(ready)
        if isinstance(planned, Shortfall):
            after = (*state[:1], self._reservations.changes, self._changes())
            self._lacking[key] = after, now(), planned
            return planned
        self.held.hold(key, planned)
        return None

    def _changes(self) -> list[int]:
        return [lower.index.changes for lower in self.state.clusters.values()]

    def _plan(self, ready: Standing, *, is_trial: bool = False) -> dict[str, VirtualNode] | Shortfall:
        return self.planner.plan(
            ready,
            self.members.offered(ready),
            self.members.candidates,
            self.members.homes(ready.group),
            is_trial=is_trial,
        )

    def _may_change(self, group: Group) -> bool:
        """Report whether the group would get room without the tentative reservations of pods outside of groups."""
        found = self.members.standing(group.key)
        if found is None or not any(
            self._reservations.tentative(cluster, at_most=RECENT_SECONDS) for cluster in self.state.clusters
        ):
            return False
        with contextlib.ExitStack() as stack:
            for cluster, lower in self.state.clusters.items():
                recent = self._reservations.tentative(cluster, at_most=RECENT_SECONDS)
                stack.enter_context(without(lower.index, recent))
            planned = self._plan(found, is_trial=True)
            if isinstance(planned, Shortfall):
                return False
            for uid in planned:
                self._reservations.leave_group(uid)
        return True


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

        lower = [candidate for candidate in candidates if candidate.priority < -ready.rank[0]]
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
    placed_ones = (candidate for candidate in candidates if index.placed(candidate.key) is not None)
    ordered = sorted(placed_ones, key=lambda candidate: (candidate.priority, candidate.uid))

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
