"""Reserves room for all members of a group that must start together, or for none of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller_runtime.api import cluster_selector, names
from controller_runtime.api.pod.groups import MOST_MEMBERS, Group
from controller_runtime.objects import Object
from multi_scheduler.agent import VirtualNode
from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.scoring import Strategy, score
from multi_scheduler.fit.groups.standing import Standing
from multi_scheduler.fit.judgement import Judgement
from multi_scheduler.fit.reservations.reservations import Reservations

Judge = Callable[[Mapping[str, Any], Sequence[VirtualNode]], Judgement]
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


@dataclass(slots=True)
class Shortfall:
    """Why a group got no room."""

    reasons: dict[str, str] = field(default_factory=dict)
    """By virtual node."""
    most: dict[str, int] = field(default_factory=dict)
    """By virtual node: the largest number of members for which there was room in one place."""
    counted_by: float = 0.0
    """As in ``Judgement``."""
    is_resolvable: bool = False
    """Whether evicting pods may help."""


def options(
    group: Group, nodes: Sequence[VirtualNode], indexes: Mapping[str, ClusterIndex], homes: Homes
) -> list[Option]:
    """Return the parts of the lower clusters of which one must take all members, in no particular order."""
    if not group.is_one_cluster:
        return [Option("the lower clusters", nodes)]
    found = []
    for cluster in dict.fromkeys(node.cluster for node in nodes):
        if cluster not in indexes or (homes.clusters and cluster not in homes.clusters):
            continue
        there = [node for node in nodes if node.cluster == cluster]
        if not group.topology:
            found.append(Option(f"lower cluster {cluster}", there))
            continue
        for value in homes.domains or _domains(indexes[cluster], group.topology):
            name = f"lower cluster {cluster}, {group.topology}={value}"
            if inside := [limited for node in there if (limited := within(node, group.topology, value))]:
                found.append(Option(name, inside))
    return found


def within(node: VirtualNode, topology: str, value: str) -> VirtualNode | None:
    """Return the virtual node with its pool limited to one domain; None: its pool is in another domain."""
    if node.pool.get(topology, value) != value:
        return None
    return replace(node, pool={**node.pool, topology: value})


def domain_selector(pod: Object, topology: str, value: str) -> dict[str, str]:
    """Return the annotation by which the lower scheduler keeps a pod in one domain, in addition to its own selectors."""
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


class Planner:
    """Reserves room for groups.

    Args:
        judge: predicts the lower nodes of one pod.
        reservations: takes the reservations.
        indexes: indexes by lower cluster.
        strategy: by which clusters are preferred.
    """

    def __init__(
        self,
        judge: Judge,
        reservations: Reservations,
        indexes: Mapping[str, ClusterIndex],
        strategy: Strategy,
    ) -> None:
        self._judge = judge
        self._reservations = reservations
        self._indexes = indexes
        self._strategy = strategy

    def plan(
        self,
        ready: Standing,
        nodes: Sequence[VirtualNode],
        candidates: Mapping[str, Collection[str]],
        homes: Homes,
    ) -> dict[str, VirtualNode] | Shortfall:
        """Reserve room for as many members as possible, if it is enough for those that must start together.

        Args:
            ready: the group.
            nodes: virtual nodes that members may use.
            candidates: names of virtual nodes by UID of a member, if the scheduler already asked about it.
            homes: where other members run.

        Returns:
            the virtual node by UID of each member with room. Otherwise what is lacking, and nothing is reserved.
        """
        members = [
            (one.uid, one.pod.to_dict()) for one in ready.members[:MOST_MEMBERS] if one.pod is not None
        ]
        found = options(ready.group, nodes, self._indexes, homes)
        lacking = Shortfall(
            {node.name: f"pod group {ready.group} has no place for its topology here" for node in nodes}
        )
        if not members or not found:
            return lacking
        for option in sorted(found, key=lambda one: -self._score(members[0][1], one.nodes)):
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
            why = self._place_members(ready, members, option, candidates, placed)
        finally:
            # Also after an error, which the content of a pod can cause.
            if len(placed) < ready.needed:
                for uid in placed:
                    self._reservations.release(uid)
        if len(placed) >= ready.needed:
            return placed
        reason = next(iter([*why.resolvable.values(), *why.unresolvable.values()]), "")
        text = f"pod group {ready.group} needs room for {ready.needed} pods at once; {option.name} has room for {len(placed)}"
        for node in option.nodes:
            if len(placed) >= lacking.most.get(node.name, 0):
                lacking.most[node.name] = len(placed)
                lacking.reasons[node.name] = f"{text}: {reason}" if reason else text
        lacking.counted_by = max(lacking.counted_by, why.counted_by)
        lacking.is_resolvable |= bool(why.resolvable)
        return None

    def _place_members(
        self,
        ready: Standing,
        members: Sequence[tuple[str, Mapping[str, Any]]],
        option: Option,
        candidates: Mapping[str, Collection[str]],
        placed: dict[str, VirtualNode],
    ) -> Judgement:
        """Reserve room for members and note it in ``placed``, until the group cannot start; return the last rejection."""
        why = Judgement()
        for number, (uid, pod) in enumerate(members):
            if len(placed) + len(members) - number < ready.needed:
                break
            allowed = candidates.get(uid)
            nodes = [node for node in option.nodes if allowed is None or node.name in allowed]
            found = self._judge(pod, nodes)
            if not found.places:
                why = found
                continue
            fitting = [node for node in nodes if node.name in found.places]
            node = max(fitting, key=lambda one: self._value(one, found))
            self._reservations.reserve(uid, {node.name: found.places[node.name]}, is_of_group=True)
            placed[uid] = node
        return why

    def _score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> float:
        found = self._judge(pod, nodes)
        return max((self._value(node, found) for node in nodes), default=0.0)

    def _value(self, node: VirtualNode, found: Judgement) -> float:
        return score(self._indexes[node.cluster], found.judged.get(node.name), self._strategy)
