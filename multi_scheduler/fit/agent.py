"""The fit agent: passes a virtual node only if one of its lower nodes could take the lower pod."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from controller_runtime import log
from controller_runtime.api import names
from controller_runtime.objects import Object
from multi_scheduler.agent import Agent, AgentContext, Rejections, VirtualNode
from multi_scheduler.fit.admission.predictor import Admission
from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.pod_requirements import Demand
from multi_scheduler.fit.cluster.scoring import Prediction, predict, score
from multi_scheduler.fit.feeds.cluster_feed import Feed
from multi_scheduler.fit.groups.group_filter import UNREADABLE, GroupFilter
from multi_scheduler.fit.groups.planning import Planner
from multi_scheduler.fit.growing import Growing, pools
from multi_scheduler.fit.growth.future_nodes import FutureNodes
from multi_scheduler.fit.judge import Judge
from multi_scheduler.fit.judgement import Judgement
from multi_scheduler.fit.reservations import preemption as choosing
from multi_scheduler.fit.reservations.bound_pods import BoundPods
from multi_scheduler.fit.reservations.reservations import Place, Reservations
from multi_scheduler.fit.settings import FitSettings

_SETTLE_SECONDS = 2.0
"""Seconds that a filter call waits for the release of other pods' reservations before it rejects all nodes."""
_SWEEP = 1.0
_KEPT_JUDGEMENTS = 1000
_ADOPTION_SECONDS = 0.02
"""Seconds that a filter call may spend on pods that other schedulers bound; the next call continues."""


class FitAgent(Agent):
    """Checks every lower cluster for room for a pod, and reserves this room."""

    def __init__(self, context: AgentContext) -> None:
        """Create an index, feeds and admission rules for each lower cluster; ``run`` fills them.

        Raises:
            ConfigError: a setting is wrong.
        """
        self._settings = context.read_settings(FitSettings)
        self.indexes = {cluster: ClusterIndex(self._settings.devices) for cluster in context.lower}
        self.admissions = {cluster: Admission(clock=_now) for cluster in context.lower}
        self.futures = {
            cluster: FutureNodes(pools(context.clusters.get(cluster)), index, _now, self._settings.devices)
            for cluster, index in self.indexes.items()
        }
        self.reservations = Reservations(self.indexes, self.admissions, self.futures, clock=_now)
        self.feeds = {
            cluster: Feed(
                client,
                self.indexes[cluster],
                self.admissions[cluster],
                arrived=self.reservations.arrived,
                seen=self._seen_below,
                unseen=self.reservations.release,
            )
            for cluster, client in context.lower.items()
        }
        self._judge = Judge(
            self._settings, context.clusters, self.indexes, self.admissions, self.feeds, self.futures
        )
        self._bound_pods = BoundPods(context, bound=self._bound_above, gone=self.reservations.release)
        self._growing = Growing(
            self.futures, self.feeds, self.reservations, self._bound_pods, context.recorder
        )
        grow = self._judge.grow if any(self.futures.values()) else None
        planner = Planner(self.judge, self.reservations, self.indexes, self._settings.score, grow)
        self.groups = GroupFilter(context.upper, planner, self.feeds, self._bound_pods)
        self._log = log.get_logger(component="fit")
        self.judged: dict[str, dict[str, Prediction]] = {}
        """Predictions of filter calls by pod UID and virtual node, until the pod is bound."""

    async def run(self) -> None:
        """Follow the upper pods and all lower clusters until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (self._bound_pods.run, self.groups.members.run, self._sweeping):
                group.create_task(work())
            for feed in self.feeds.values():
                group.create_task(feed.run())

    def unready(self) -> str | None:
        """Return why the agent is not ready; None: ready. One synced lower cluster is enough, as others may be unreachable."""
        if not self._bound_pods.has_synced or not self.groups.members.pending.informer.has_synced:
            return "the upper cluster's pods have not been read yet"
        if self.feeds and not any(feed.has_synced for feed in self.feeds.values()):
            return "no lower cluster has been read yet"
        return None

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Reject every virtual node without a lower node for the pod, or without room for the pod's group."""
        if (group := self.groups.group(pod)) is None:
            return await self._filter_alone(pod, nodes)
        verdict = await self.groups.filter(pod, nodes, group)
        if verdict.alone is not None:
            found = await self._filter_alone(pod, verdict.alone)
            return Rejections(found.resolvable, {**found.unresolvable, **verdict.rejections.unresolvable})
        self._remember(pod["metadata"].get("uid", ""), dict(verdict.judged))
        return verdict.rejections

    async def _filter_alone(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        uid = pod["metadata"].get("uid", "")
        # Release the reservation of an earlier attempt first, so that it does not block the pod itself.
        self.reservations.release(uid)
        deadline = _now() + _SETTLE_SECONDS
        while True:
            found = self.judge(pod, nodes)
            if found.rejected < len(nodes):
                break
            # Other pods hold reservations in several clusters and will use only one, so wait until the rest is released.
            until = deadline if self._may_change(uid, found.retryable) else min(deadline, found.counted_by)
            if until <= (now := _now()):
                break
            await self.reservations.wait(until - now)
        if nodes and found.rejected == len(nodes):
            self._judge.grow(nodes, found)
        self._remember(uid, found.judged)
        # Reserve before other agents answer, so that a concurrent call does not count on the same room.
        self.reservations.reserve(uid, found.places)
        return Rejections(found.resolvable, found.unresolvable)

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
        if self.groups.held.node(uid) is None:  # otherwise the group keeps its room
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
        priority, uid = pod["spec"].get("priority") or 0, pod["metadata"].get("uid", "")
        if self.groups.held.node(uid) is not None:
            return None  # its room is reserved, even if ``standing`` needs none while members are being bound
        bound = [
            (one, choosing.Mirrored(one.uid, key, (one.spec or {}).get("priority") or 0))
            for one in self._bound_pods.on(node.name)
            for key in self._keys(feed, one.uid, node)
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
        self.reservations.release(uid)  # an earlier attempt must not block the pod
        gated = self._judge.gates[node.cluster].judge(pod, node)
        if gated.refusal:
            return None
        wanted = self._judge.demand(gated, node)
        keys = [key for one in victims for key in self._keys(feed, one, node)]
        if choosing.suffices(index, wanted, keys):
            return victims
        return choosing.choose(index, wanted, candidates) or None

    def _keys(self, feed: Feed, uid: str, node: VirtualNode) -> list[str]:
        """Return the index keys of an upper pod: the UID of its lower pod, and the key of its reservation."""
        return [key for key in (feed.lower_uid.get(uid, ""), f"{uid}@{node.name}") if key]

    def annotations(self, uid: str, node: str) -> Mapping[str, str]:
        """Return annotations for the domain of the pod's group and, with ``passNode``, for the reserved lower node."""
        chosen = self.reservations.place(uid, node) if self._settings.pass_node else ""
        domain = self.groups.members.annotations(uid)
        return {**domain, **({names.ANNOTATION_PREFERRED_NODE: chosen} if chosen else {})}

    def bound(self, uid: str, node: str) -> None:
        """Mark the reservation as bound, because the extender itself bound the pod."""
        self.reservations.bind(uid, node)

    def judge(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Judgement:
        """Predict the pod's lower node behind each virtual node, or the reason for rejection, without reserving room."""
        self._adopt(nodes)
        return self._judge.judge(pod, nodes)

    def _may_change(self, uid: str, retryable: Sequence[tuple[str, Demand | None]]) -> bool:
        """Report whether the pod may fit when tentative reservations of other pods are released."""
        for cluster, wanted in retryable:
            keys = self.reservations.tentative(cluster, besides=uid)
            if keys and (wanted is None or choosing.suffices(self.indexes[cluster], wanted, keys)):
                return True
        return False

    def _bound_above(self, pod: Object) -> bool:
        """Handle a newly bound upper pod; return whether its lower pod or a reservation counts its room."""
        self.judged.pop(pod.uid, None)
        self.groups.members.bound(pod.uid)
        if any(pod.uid in feed.visible for feed in self.feeds.values()):
            self.reservations.release(pod.uid)
            return True
        node = (pod.spec or {}).get("nodeName", "")
        is_reserved = self.reservations.bind(pod.uid, node)
        self._growing.bound(pod, node)
        return is_reserved

    def _seen_below(self, uid: str) -> None:
        self._growing.landed(uid)
        # The feed skips ``arrived`` if the first event of a pod has a node.
        self.reservations.arrived(uid, has_node=True)
        self.reservations.release(uid)
        self._bound_pods.accounted(uid)

    def _adopt(self, nodes: Sequence[VirtualNode]) -> None:
        """Reserve room for pods that other schedulers bound to these nodes, because they will need room in the lower cluster.

        Any tenant can create such pods with ``spec.nodeName``, so errors caused by their content are logged, and the time
        spent on them is limited.
        """
        known = {node.name: node for node in nodes}
        deadline = time.perf_counter() + _ADOPTION_SECONDS
        for pod in self._bound_pods.unaccounted(known.keys()):
            node = known[(pod.spec or {})["nodeName"]]
            feed = self.feeds.get(node.cluster)
            if feed is None or feed.trouble():
                continue
            self._bound_pods.accounted(pod.uid)
            try:
                self._adopt_one(pod, node, feed)
            except UNREADABLE as error:
                self._log.warning("no room reserved for a bound pod", pod=pod.key, error=repr(error))
            if time.perf_counter() > deadline:
                break

    def _adopt_one(self, pod: Object, node: VirtualNode, feed: Feed) -> None:
        gated = self._judge.gates[node.cluster].judge(pod.to_dict(), node)
        has_arrived = pod.uid in feed.lower_uid
        if gated.refusal and not has_arrived:
            return  # the lower pod is never created, or only after another pod is gone
        index, wanted = self.indexes[node.cluster], self._judge.demand(gated, node)
        charge = None if has_arrived else gated.charge
        found = Judgement(lacking={node.name: (wanted, charge)})
        if slots := index.feasible(wanted):
            place = predict(index, wanted, slots, self._settings.lower).place
            found.places[node.name] = Place(node.cluster, place, charge)
        else:
            self._judge.grow([node], found)
        if found.places:
            self.reservations.reserve(pod.uid, found.places)
            self.reservations.bind(pod.uid, node.name)
            if has_arrived:
                self.reservations.arrived(pod.uid)
            self._growing.bound(pod, node.name)

    def sweep(self) -> None:
        """Release expired reservations, and drop the oldest predictions above the limit."""
        self.reservations.expire()
        self._growing.expire()
        self.groups.sweep()
        for uid in list(self.judged)[: max(0, len(self.judged) - _KEPT_JUDGEMENTS)]:
            del self.judged[uid]

    async def _sweeping(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            self.sweep()


def _now() -> float:
    return asyncio.get_running_loop().time()
