"""The fit agent: passes a virtual node only if one of its lower nodes could take the lower pod."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from clusterset.model import names
from controller_runtime.objects import Object
from multi_scheduler.agent import Agent, AgentContext, Rejections, VirtualNode
from multi_scheduler.fit.accounting import Accounting
from multi_scheduler.fit.admission.predictor import Admission
from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.pod_requirements import Demand
from multi_scheduler.fit.cluster.scoring import Prediction, score
from multi_scheduler.fit.feeds.cluster_feed import Feed, LowerPod
from multi_scheduler.fit.feeds.upper_namespaces import UpperNamespaceFeed
from multi_scheduler.fit.groups.group_filter import GroupFilter
from multi_scheduler.fit.groups.planning import Planner
from multi_scheduler.fit.growing import Growing, pools
from multi_scheduler.fit.growth.future_nodes import FutureNodes
from multi_scheduler.fit.judge import Judge
from multi_scheduler.fit.judgement import Judgement
from multi_scheduler.fit.reservations import preemption as choosing
from multi_scheduler.fit.reservations.attempts import Attempts
from multi_scheduler.fit.reservations.bound_pods import BoundPods, node_of, priority_of
from multi_scheduler.fit.reservations.reservations import RECENT_SECONDS, Place, Reservations, Stage
from multi_scheduler.fit.settings import FitSettings

_SETTLE_SECONDS = 2.0
"""Seconds that a filter call waits for the release of other pods' reservations before it rejects all nodes."""
_SWEEP = 1.0
_KEPT_JUDGEMENTS = 1000
_NODE_ANNOTATIONS: Mapping[bool | str, Sequence[str]] = {
    # A pod that gives up the required node still prefers it.
    True: (names.ANNOTATION_PREFERRED_NODE, names.ANNOTATION_REQUIRED_NODE),
    "Prefer": (names.ANNOTATION_PREFERRED_NODE,),
}
_UNREAD = "the upper cluster's pods and namespaces have not been read yet"


class FitAgent(Agent):
    """Checks every lower cluster for room for a pod, and reserves this room."""

    settings_type = FitSettings

    def __init__(self, context: AgentContext) -> None:
        """Create an index, feeds and admission rules for each lower cluster; ``run`` fills them.

        Raises:
            ConfigError: a setting is wrong.
        """
        self._settings = context.read_settings(self.settings_type)
        self.indexes = {cluster: ClusterIndex(self._settings.devices) for cluster in context.lower}
        self.admissions = {cluster: Admission(clock=_now) for cluster in context.lower}
        self.futures = {
            cluster: FutureNodes(pools(context.clusters.get(cluster)), index, _now, self._settings.devices)
            for cluster, index in self.indexes.items()
        }
        self.reservations = Reservations(
            self.indexes,
            self.admissions,
            self.futures,
            clock=_now,
            lost=self._lost,
            lower=self._settings.lower,
        )
        self.feeds = {
            cluster: Feed(
                client,
                self.indexes[cluster],
                self.admissions[cluster],
                changed=partial(self._lower_changed, cluster),
            )
            for cluster, client in context.lower.items()
        }
        self._namespaces = UpperNamespaceFeed(context.upper)
        self._judge = Judge(
            self._settings,
            context.clusters,
            self.indexes,
            self.admissions,
            self.feeds,
            self.futures,
            self.reservations.entries,
            self._namespaces.namespaces,
        )
        self._find_node = context.find_node
        self._known_nodes: dict[str, VirtualNode] = {}
        """Virtual nodes that the scheduler offered."""
        self._bound_pods = BoundPods(context, changed=self._bound_changed, gone=self._gone)
        self._growing = Growing(
            self.futures, self.feeds, self.reservations, self._bound_pods, context.recorder, self._lower_node
        )
        self.accounting = Accounting(
            self._node,
            self._judge,
            self.indexes,
            self.feeds,
            self.reservations,
            self._bound_pods,
            self._growing,
            context.recorder,
        )
        self.attempts = Attempts(
            context.upper,
            self.reservations,
            self.accounting.nominated,
            self._deleted_pending,
            self._is_pending,
            self._is_bound,
        )
        grow = self._judge.grow if any(self.futures.values()) else None
        planner = Planner(self.judge, self.reservations, self.indexes, self._settings.score, grow)
        self.groups = GroupFilter(
            context.upper, planner, self.accounting.index_keys, self._bound_pods, self.attempts
        )
        self.judged: dict[str, dict[str, Prediction]] = {}
        """Predictions of filter calls by pod UID and virtual node, until the pod is bound."""

    async def run(self) -> None:
        """Follow the upper pods and all lower clusters until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (
                self._bound_pods.run,
                self._namespaces.run,
                self.groups.members.run,
                self.attempts.run,
                self._sweeping,
            ):
                group.create_task(work())
            for feed in self.feeds.values():
                group.create_task(feed.run())

    def unready(self) -> str | None:
        """Return why the agent is not ready; None: ready. One synced lower cluster is enough, as others may be unreachable."""
        if not self._has_read_upper():
            return _UNREAD
        if self.feeds and not any(feed.has_synced for feed in self.feeds.values()):
            return "no lower cluster has been read yet"
        return None

    def _has_read_upper(self) -> bool:
        return (
            self._bound_pods.has_synced
            and self.groups.members.pending.informer.has_synced
            and self._namespaces.is_settled
        )

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Reject every virtual node without a lower node for the pod, or without room for the pod's group."""
        uid = pod["metadata"].get("uid", "")
        for node in nodes:
            self._know(node)
        for informer in (self._bound_pods, self.groups.members.pending.informer):
            await informer.wait_synced(_SETTLE_SECONDS)
        await self._namespaces.wait(_SETTLE_SECONDS)
        if (bound := self._bound_pods.get(uid)) is not None or self.reservations.stage(uid) is Stage.BOUND:
            # The scheduler asks again if it has lost the answer to its binding. The reservation stays as it is.
            name = node_of(bound) if bound is not None else self.reservations.bound_to(uid)
            text = f"the pod is bound to node {name} already"
            return Rejections({}, {node.name: text for node in nodes if node.name != name})
        if (group := self.groups.group(pod)) is None:
            return await self._filter_alone(pod, nodes)
        verdict = await self.groups.filter(pod, nodes, group)
        if verdict.alone is not None:
            found = await self._filter_alone(pod, verdict.alone)
            return replace(found, unresolvable={**found.unresolvable, **verdict.rejections.unresolvable})
        self._remember(uid, dict(verdict.judged))
        return verdict.rejections

    async def _filter_alone(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        uid, priority = pod["metadata"].get("uid", ""), pod["spec"].get("priority") or 0
        deadline = _now() + _SETTLE_SECONDS
        while True:
            found = self._judge_alone(pod, nodes, uid, priority)
            if found.rejected < len(nodes):
                break
            # Other pods hold reservations in several clusters and will use only one, so wait until the rest is released.
            may_change = self._may_change(uid, found.retryable, at_most=_SETTLE_SECONDS)
            until = deadline if may_change else min(deadline, found.counted_by)
            if until <= (now := _now()):
                break
            await self.reservations.wait(until - now)
        if nodes and found.rejected == len(nodes):
            self._judge.grow(nodes, found)
        self._remember(uid, found.judged)
        # Reserve before other agents answer, so that a concurrent call does not count on the same room.
        if found.places:
            seconds = self.attempts.begin(pod)
            self.reservations.reserve(uid, found.places, priority=priority, seconds=seconds)
        elif self.reservations.stage(uid) is not Stage.NOMINATED:  # preempted pods may not have ended yet
            self.reservations.release(uid)
        transient = self._transient(uid, priority, found) if found.rejected == len(nodes) else ""
        return Rejections(found.resolvable, found.unresolvable, transient)

    def _judge_alone(
        self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode], uid: str, priority: int
    ) -> Judgement:
        """Predict the pod's lower nodes as if its own reservation of an earlier attempt did not exist."""
        unfinished = self._prepare(nodes)
        with self.reservations.without_own(uid, priority):
            return self._judge_prepared(pod, nodes, unfinished)

    def _transient(self, uid: str, priority: int, found: Judgement) -> str:
        """Return why no node passes now but one may in a few seconds; empty: the rejections stay right."""
        recent = self._may_change(uid, found.retryable, at_most=RECENT_SECONDS)
        if recent or (priority <= 0 and self._may_change(uid, found.retryable)):
            return "room is reserved for pods that are being bound and may not use it"
        if found.unknown and not found.resolvable:
            return next(text for name, text in found.unresolvable.items() if name in found.unknown)
        return ""

    def _remember(self, uid: str, judged: dict[str, Prediction]) -> None:
        self.judged.pop(uid, None)  # so that the newest predictions are last
        self.judged[uid] = judged

    def bars_real_nodes(self, pod: Mapping[str, Any]) -> str:
        """Return a reason for pods of groups: no room is reserved on real nodes."""
        group = self.groups.group(pod)
        return f"pods of pod group {group} start together on virtual nodes only" if group is not None else ""

    def filtered(self, pod: Mapping[str, Any], passing: Sequence[VirtualNode]) -> None:
        """Keep the pod's reservations only on nodes that the scheduler may still choose."""
        uid = pod["metadata"].get("uid", "")
        is_held = self.groups.held.node(uid) is not None  # the group keeps its room
        if not is_held and self.reservations.stage(uid) is Stage.TENTATIVE:
            self.reservations.narrow(uid, {node.name for node in passing})

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Return a score for each virtual node by the configured strategy; 0 or less without room on existing lower nodes."""
        judged = self.judged.get(pod["metadata"].get("uid", ""), {})
        return {
            node.name: score(self.indexes[node.cluster], judged.get(node.name), self._settings.score)
            for node in nodes
            if node.cluster in self.indexes
        }

    async def preempt(
        self, pod: Mapping[str, Any], node: VirtualNode, victims: Sequence[str]
    ) -> Sequence[str] | None:
        """Return the given victims if evicting them makes room in the lower cluster, otherwise others; None: no victims help."""
        feed, index = self.feeds.get(node.cluster), self.indexes.get(node.cluster)
        if feed is None or index is None or feed.trouble():
            return victims if self._settings.unreachable == "Pass" else None
        self._know(node)
        self.accounting.prepare(node.cluster)
        priority, uid = pod["spec"].get("priority") or 0, pod["metadata"].get("uid", "")
        if self.groups.held.node(uid) is not None:
            return None  # its room is reserved, even if ``standing`` needs none while members are being bound
        bound = [
            (one, choosing.Mirrored(one.uid, key, priority_of(one)))
            for one in self._bound_pods.on(node.name)
            for key in self.accounting.index_keys(one.uid, node)
        ]
        candidates = [
            found
            for one, found in bound
            if one.metadata.deletion_timestamp is None and found.priority < priority
        ]
        if (group := self.groups.group(pod)) is not None:
            standing = await self.groups.standing(pod, group)
            if standing is None or standing.waits_for:
                return None  # room for single pods does not help
            if standing.needed:
                ending = [at.key for one, at in bound if one.metadata.deletion_timestamp is not None]
                return self.groups.eviction.preempt(standing, node, candidates, ending)
        gated = self._judge.gates[node.cluster].judge(pod, node)
        if gated.refusal:
            return None
        wanted = self._judge.demand(gated, node)
        with self.reservations.without_own(uid, priority):
            keys = [key for victim in victims for key in self.accounting.index_keys(victim, node)]
            chosen = (
                victims
                if choosing.suffices(index, wanted, keys)
                else choosing.choose(index, wanted, candidates)
            )
            if not chosen:
                return None
            leaving = {at.key for one, at in bound if one.uid in chosen or one.metadata.deletion_timestamp}
            place = choosing.place_without(index, wanted, leaving)
        if place:
            self.reservations.hold_for_preemption(
                uid,
                node.name,
                Place(node.cluster, wanted, place, gated.charge, awaits=frozenset(leaving)),
                priority=priority,
            )
        return chosen

    def annotations(self, uid: str, node: str) -> Mapping[str, str]:
        """Return annotations for the domain of the pod's group and, with ``passNode``, for the reserved lower node."""
        mode = self._settings.pass_node
        chosen = self.reservations.prefer(uid, node) if mode else ""
        domain = self.groups.members.annotations(uid)
        return {**domain, **(dict.fromkeys(_NODE_ANNOTATIONS[mode], chosen) if chosen else {})}

    def bars_binding(self, uid: str, node: str) -> str:
        """Return that a pod's room is no longer reserved, for example after a restart; empty: the pod may be bound.

        The pod's room on other virtual nodes is released, because the scheduler has chosen this one.
        """
        virtual, pod = self._node(node), self._bound_pods.get(uid)
        if virtual is None or virtual.cluster not in self.feeds or self.reservations.choose(uid, node):
            return ""
        if pod is not None and node_of(pod) == node:
            return ""  # the scheduler has lost the answer to the binding
        if self._settings.unreachable == "Pass" and self.feeds[virtual.cluster].trouble():
            return ""
        return f"no room is reserved for the pod on {node} any more; the scheduler tries again"

    def bound(self, uid: str, node: str) -> None:
        """Mark the reservation as bound, because the extender itself bound the pod."""
        self.reservations.bind(uid, node)

    def judge(
        self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode], *, moves_others: bool = True
    ) -> Judgement:
        """Predict the pod's lower node behind each virtual node, or the reason for rejection, without reserving room."""
        unfinished = self._prepare(nodes) if moves_others else {}
        return self._judge_prepared(pod, nodes, unfinished, moves_others=moves_others)

    def _judge_prepared(
        self,
        pod: Mapping[str, Any],
        nodes: Sequence[VirtualNode],
        unfinished: Mapping[str, str],
        *,
        moves_others: bool = True,
    ) -> Judgement:
        known = [node for node in nodes if node.cluster not in unfinished]
        found = self._judge.judge(pod, known, moves_others=moves_others)
        for node in nodes:
            if node.cluster in unfinished:
                found.unresolvable[node.name] = unfinished[node.cluster]
                found.unknown.add(node.name)
        return found

    def _prepare(self, nodes: Sequence[VirtualNode]) -> dict[str, str]:
        """Count all bound pods of these nodes' clusters; return reasons by cluster where this is unfinished."""
        self._known_nodes |= {node.name: node for node in nodes}
        clusters = {node.cluster for node in nodes}
        if not self._has_read_upper():
            return dict.fromkeys(clusters, _UNREAD)
        found = {cluster: self.accounting.prepare(cluster) for cluster in clusters}
        return {cluster: why for cluster, why in found.items() if why}

    def _may_change(
        self, uid: str, retryable: Sequence[tuple[str, Demand | None]], *, at_most: float = math.inf
    ) -> bool:
        """Report whether the pod may fit when tentative reservations of other pods up to this age are released."""
        for cluster, wanted in retryable:
            keys = self.reservations.tentative(cluster, besides=uid, at_most=at_most)
            if keys and (wanted is None or choosing.suffices(self.indexes[cluster], wanted, keys)):
                return True
        return False

    # --- changes ------------------------------------------------------------------------------------

    def _bound_changed(self, pod: Object, *, is_new: bool) -> None:
        if is_new:
            self.judged.pop(pod.uid, None)
            self.groups.members.bound(pod.uid)
            self.attempts.bound(pod.uid)
        self.accounting.pod_changed(pod, is_new=is_new)

    def _gone(self, uid: str) -> None:
        self.accounting.pod_gone(uid)

    def _is_pending(self, key: str, uid: str) -> bool:
        return self.groups.members.pending.has(key, uid)

    def _is_bound(self, uid: str) -> bool:
        return self._bound_pods.get(uid) is not None

    def _deleted_pending(self, uid: str) -> None:
        self.groups.held.deleted(uid)
        self.groups.members.candidates.pop(uid, None)
        self.judged.pop(uid, None)

    def _lower_changed(self, cluster: str, uid: str, key: str, lower: LowerPod | None) -> None:
        self.accounting.lower_changed(cluster, uid, key, lower)

    def _lower_node(self, uid: str, cluster: str) -> str:
        return self.accounting.lower_node(uid, cluster)

    def _lost(self, uid: str, node: str) -> None:
        self.accounting.report(uid, node)

    def _node(self, name: str) -> VirtualNode | None:
        return self._find_node(name) or self._known_nodes.get(name)

    def _know(self, node: VirtualNode) -> None:
        self._known_nodes[node.name] = node
        self.accounting.offered(node)

    def sweep(self) -> None:
        """Release expired reservations, place the others again, and drop the oldest predictions above the limit."""
        self.reservations.expire()
        self._growing.expire()
        self.groups.sweep()
        self.accounting.sweep(list(self.indexes))
        self._namespaces.look()
        for uid in list(self.judged)[: max(0, len(self.judged) - _KEPT_JUDGEMENTS)]:
            del self.judged[uid]

    async def _sweeping(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            self.sweep()


def _now() -> float:
    return asyncio.get_running_loop().time()
