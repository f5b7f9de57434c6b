"""Reserves room for all members of a group that must start together, or for none of them."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterset.model import cluster_selector, names
from clusterset.model.pod import pod_resources
from clusterset.model.pod.groups import MOST_MEMBERS, Group
from controller_runtime.objects import Object
from controller_runtime.workqueue.fairness import TimeBudget
from multi_scheduler.agents.fit.standing import Standing
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.scoring import Strategy, score
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.judge import Judgement
from multi_scheduler.state.lower_state import LowerState
from multi_scheduler.virtual_node import VirtualNode

_MOST_DOMAINS = 64
"""Number of values of a topology label that are tried per cluster."""


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the bound members of a group run. Empty: no restriction."""

    clusters: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    """Values of the group's topology label."""


@dataclass(frozen=True, slots=True)
class Option:
    """One part of the lower clusters in which a group may run."""

    name: str
    """For messages."""
    nodes: Sequence[VirtualNode]
    most: int = MOST_MEMBERS
    """Upper bound of the number of members with room."""


def parts(
    group: Group,
    nodes: Sequence[VirtualNode],
    clusters: Mapping[str, LowerState],
    homes: Homes,
    least: Mapping[str, int],
) -> list[Option]:
    """Return parts of the lower clusters, in no order; a single part must take all members of the group.

    Args:
        group: the group.
        nodes: virtual nodes that members may use.
        clusters: the lower clusters by name.
        homes: where the bound members run.
        least: by resource, what each member requests at least; empty: do not compute the number of members with room.
    """
    if not group.is_one_cluster:
        return [Option("the lower clusters", nodes)]
    found = []
    for cluster in dict.fromkeys(node.cluster for node in nodes):
        if cluster not in clusters or (homes.clusters and cluster not in homes.clusters):
            continue
        there = [node for node in nodes if node.cluster == cluster]
        index = clusters[cluster].index
        rooms = _rooms(index, group.topology, least) if least else {}
        if not group.topology:
            found.append(
                Option(f"lower cluster {cluster}", there, rooms.get("", MOST_MEMBERS if not least else 0))
            )
            continue
        for value in homes.domains or _domains(index, group.topology):
            name = f"lower cluster {cluster}, {group.topology}={value}"
            if inside := [limited for node in there if (limited := within(node, group.topology, value))]:
                found.append(Option(name, inside, rooms.get(value, 0)))
    return found


def within(node: VirtualNode, topology: str, value: str) -> VirtualNode | None:
    """Return the virtual node with its pool limited to one domain; None: its pool is in another domain."""
    if node.pool.get(topology, value) != value:
        return None
    return replace(node, pool={**node.pool, topology: value})


def domain_selector(pod: Object, topology: str, value: str) -> dict[str, str]:
    """Return the annotation that restricts a lower pod to one domain, in addition to the annotation's present selectors."""
    selector = cluster_selector.of(pod.annotations, names.ANNOTATION_CLUSTER_SELECTOR)
    if selector is None:
        # With the annotation, the virtual node no longer uses the pod's own tolerations.
        own = (pod.spec or {}).get("tolerations") or ()
        selector = {"tolerations": [one for one in own if one.get("key") != names.TAINT_PROVIDER]}
    selected = {**(selector.get("nodeSelector") or {}), topology: value}
    text = json.dumps({**selector, "nodeSelector": selected}, separators=(",", ":"))
    return {names.ANNOTATION_CLUSTER_SELECTOR: text}


def _domains(index: ClusterIndex, topology: str) -> list[str]:
    """Return the values of a label, those with most nodes first."""
    counts: dict[str, int] = {}
    for node in index.nodes():
        if value := node.labels.get(topology):
            counts[value] = counts.get(value, 0) + 1
    return sorted(counts, key=lambda value: (-counts[value], value))[:_MOST_DOMAINS]


def _rooms(index: ClusterIndex, topology: str, least: Mapping[str, int]) -> Counter[str]:
    """Return for each value of a label, or for all nodes, how many pods with these requests the nodes could take at most."""
    columns = [(index.free(resource), count) for resource, count in least.items()]
    found: Counter[str] = Counter()
    for node in index.nodes():
        value, slot = node.labels.get(topology) if topology else "", index.slot(node.name)
        if value is not None and slot is not None:
            found[value] += min(max(0, column[slot]) // count for column, count in columns)
    return found


_LARGE = 50
"""Number of members from which clusters without enough room are excluded first, to save time."""
MOST_SECONDS = 2.0
"""CPU seconds that a namespace with a full budget may use to plan groups without a result."""
SHARE = 0.1
"""CPU seconds by which the budget of a namespace grows each second, until it is full."""


@dataclass(slots=True)
class Shortfall:
    """Why a group got no room."""

    reasons: dict[str, str] = field(default_factory=dict)
    """Reason by virtual node."""
    most: dict[str, int] = field(default_factory=dict)
    """By virtual node: the largest number of members for which there was room in one place."""
    counted_by: float = 0.0
    """As ``Judgement.counted_by``."""
    is_resolvable: bool = False
    """Whether evicting pods may help."""
    is_unfinished: bool = False
    """Whether the time for planning was used up, so that there may be room."""

    def note(self, option: Option, count: int, text: str) -> None:
        """Record for how many members an option has room, and why not for more."""
        for node in option.nodes:
            if count >= self.most.get(node.name, 0):
                self.most[node.name] = count
                self.reasons[node.name] = text


class _TimeIsUpError(Exception):
    """The planning time of a namespace is used up."""


def _least(members: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, int]:
    """Return by resource what each member requests at least, including ``pods``."""
    requests = [pod_resources.pod_requests(pod["spec"]) for _uid, pod in members]
    least = {name: min(request.get(name, 0) for request in requests) for name in requests[0]}
    return {**{name: count for name, count in least.items() if count > 0}, "pods": 1}


@dataclass(eq=False)
class Planner:
    """Reserves room for groups."""

    state: ClusterState
    strategy: Strategy
    """Strategy by which clusters are preferred."""
    grows: bool = False
    """Whether members may wait for nodes that lower clusters must add."""
    budget: TimeBudget = field(default_factory=lambda: TimeBudget(MOST_SECONDS, SHARE))
    """CPU seconds by namespace, because planning blocks all calls."""
    cpu: Callable[[], float] = time.thread_time
    """Returns the CPU seconds of this thread, which other programs on the machine do not affect."""
    _until: float = 0.0
    """CPU time at which the calculation must end."""
    _is_trial: bool = False

    @contextlib.contextmanager
    def growing(self) -> Iterator[bool]:
        """Let members wait for new nodes inside the block, which must not await. Yields whether any cluster can grow."""
        self.grows = any(lower.futures for lower in self.state.clusters.values())
        try:
            yield self.grows
        finally:
            self.grows = False

    def judge(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Judgement:
        """Predict the lower nodes of one pod, including nodes that must be added if ``grows`` is set."""
        found = self.state.predict(pod, nodes, moves_others=not self._is_trial)
        if self.grows and not found.places:
            self.state.judge.grow(nodes, found)
        return found

    def plan(
        self,
        ready: Standing,
        nodes: Sequence[VirtualNode],
        candidates: Mapping[str, Collection[str]],
        homes: Homes,
        *,
        is_trial: bool = False,
    ) -> dict[str, VirtualNode] | Shortfall:
        """Reserve room for as many members as possible; for none if fewer than ``ready.needed`` have room.

        Members that are being bound keep their room, and count as members with room.

        The time is limited by namespace, because a tenant decides about the size of groups.

        Args:
            ready: the group.
            nodes: virtual nodes that members may use.
            candidates: by UID of a member, names of the virtual nodes that it may use; without an entry: all.
            homes: where the bound members run.
            is_trial: whether some pods of the index count as gone, so that no other reservation may be moved.

        Returns:
            the virtual node by UID of each member with room. Otherwise what is lacking, and nothing is reserved.
        """
        namespace, started = ready.group.namespace, self.cpu()
        self._until, self._is_trial = started + self.budget.left(namespace), is_trial
        try:
            shortfall = self._plan(ready, nodes, candidates, homes)
        except _TimeIsUpError:
            text = f"planning the pod groups of namespace {namespace} takes too long; group {ready.group} is tried again later"
            shortfall = Shortfall({node.name: text for node in nodes}, is_unfinished=True)
        finally:
            self._is_trial = False
        if is_trial or isinstance(shortfall, Shortfall):
            self.budget.spend(namespace, self.cpu() - started)
        return shortfall

    def _plan(
        self,
        ready: Standing,
        nodes: Sequence[VirtualNode],
        candidates: Mapping[str, Collection[str]],
        homes: Homes,
    ) -> dict[str, VirtualNode] | Shortfall:
        self._check_time()
        members = [
            (member.uid, member.pod.to_dict())
            for member in ready.members[:MOST_MEMBERS]
            if member.pod is not None
        ]
        # ``options`` computes room on existing nodes only.
        is_large = (bool(ready.group.topology) or ready.needed >= _LARGE) and not self.grows
        found = parts(
            ready.group, nodes, self.state.clusters, homes, _least(members) if members and is_large else {}
        )
        lacking = Shortfall(
            {node.name: f"pod group {ready.group} has no place for its topology here" for node in nodes}
        )
        if not members or not found:
            return lacking
        needed = ready.needed - sum(bool(self.state.reservations.attempted_on(uid)) for uid, _pod in members)
        for option in found:
            if option.most < needed:
                lacking.note(option, option.most, _too_small(ready, option, option.most))
                lacking.is_resolvable = True
        # If all nodes are too small, the largest one gives the reason.
        large = [option for option in found if option.most >= needed] or [
            max(found, key=lambda option: option.most)
        ]
        for option in sorted(large, key=lambda one: -self._score(members[0][1], one.nodes)):
            if (placed := self._place(ready, members, option, candidates, lacking)) is not None:
                return placed
        return lacking

    def _place(
        self,
        ready: Standing,
        members: Sequence[tuple[str, Mapping[str, Any]]],
        option: Option,
        candidates: Mapping[str, Collection[str]],
        lacking: Shortfall,
    ) -> dict[str, VirtualNode] | None:
        """Reserve room within an option; None: not enough, so that nothing is reserved and ``lacking`` has the reason."""
        placed: dict[str, VirtualNode] = {}
        why = Judgement()
        try:
            for number, (uid, pod) in enumerate(members):
                missing = ready.needed - len(placed)
                # Stop if the group cannot start, or if it can and time is up.
                if missing > len(members) - number or (missing <= 0 and self._is_late()):
                    break
                self._check_time()
                if attempted := self.state.reservations.attempted_on(uid):
                    if node := next((node for node in option.nodes if node.name in attempted), None):
                        placed[uid] = node
                    continue
                allowed = candidates.get(uid)
                nodes = [node for node in option.nodes if allowed is None or node.name in allowed]
                found = self.judge(pod, nodes)
                if not found.places:
                    why = found
                    continue
                fitting = [node for node in nodes if node.name in found.places]
                node = max(fitting, key=lambda one: self._value(one, found))
                place = {node.name: found.places[node.name]}
                priority = pod["spec"].get("priority") or 0
                self.state.reservations.reserve(
                    uid, place, priority=priority, seconds=math.inf, is_of_group=True
                )
                placed[uid] = node
        finally:
            # Release even after an error that a pod's content causes.
            if len(placed) < ready.needed:
                for uid in placed:
                    self.state.reservations.leave_group(uid)
        if len(placed) >= ready.needed:
            for uid in placed:
                self.state.reservations.join_group(uid)
            return placed
        reason = next(iter([*why.resolvable.values(), *why.unresolvable.values()]), "")
        text = _too_small(ready, option, len(placed))
        lacking.note(option, len(placed), f"{text}: {reason}" if reason else text)
        lacking.counted_by = max(lacking.counted_by, why.counted_by)
        lacking.is_resolvable |= bool(why.resolvable)
        return None

    def _check_time(self) -> None:
        if self._is_late():
            raise _TimeIsUpError

    def _is_late(self) -> bool:
        return self.cpu() >= self._until

    def _score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> float:
        self._check_time()
        found = self.judge(pod, nodes)
        return max((self._value(node, found) for node in nodes), default=0.0)

    def _value(self, node: VirtualNode, judgement: Judgement) -> float:
        return score(self.state.clusters[node.cluster].index, judgement.judged.get(node.name), self.strategy)


def _too_small(ready: Standing, option: Option, count: int) -> str:
    return f"pod group {ready.group} needs room for {ready.needed} pods at once; {option.name} has room for {count}"
