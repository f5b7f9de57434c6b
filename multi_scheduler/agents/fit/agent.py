"""The fit agent: passes a virtual node only if one of its lower nodes could take the lower pod."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from clusterset.model import names
from clusterset.model.pod.groups import is_native, native_group
from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object
from controller_runtime.util.event_loop import now
from multi_scheduler.agent import Agent, AgentContext, Rejections
from multi_scheduler.agents.fit.group_filter import GroupFilter, is_over
from multi_scheduler.agents.fit.members import Minimums, NativeGroups, PendingPods, is_full
from multi_scheduler.agents.fit.planning import Planner
from multi_scheduler.agents.fit.standing import Attempts
from multi_scheduler.bound_pods import node_of, priority_of
from multi_scheduler.state import placing as choosing
from multi_scheduler.state.cluster.pod_requirements import Demand
from multi_scheduler.state.cluster.scoring import Strategy, score
from multi_scheduler.state.judge import Judgement
from multi_scheduler.state.lower_state import StateSettings
from multi_scheduler.state.reservations import RECENT_SECONDS, Place, Stage
from multi_scheduler.virtual_node import VirtualNode


class FitSettings(StateSettings, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The agent's configuration."""

    score: Strategy = "BestFit"
    """BestFit: prefer the cluster where the pod leaves the least free, which keeps large gaps. Spread: the emptiest cluster.
    BinPack: the fullest."""
    pass_node: bool | Literal["Prefer"] = msgspec.field(default=True, name="passNode")
    """Annotate the pod with the lower node that has reserved room. true: the lower pod requires this node as long as it fits
    there. Prefer: it prefers the node. false: the lower scheduler chooses freely. Only with true, pods of different sizes always
    find the room that they were promised. Only with ``--bind``."""


_SETTLE_SECONDS = 2.0
"""Seconds that a filter call waits for the release of other pods' reservations before it rejects all nodes."""
_NODE_ANNOTATIONS: Mapping[bool | str, Sequence[str]] = {
    # A pod that gives up the required node still prefers it.
    True: (names.ANNOTATION_PREFERRED_NODE, names.ANNOTATION_REQUIRED_NODE),
    "Prefer": (names.ANNOTATION_PREFERRED_NODE,),
}


class FitAgent(Agent):
    """Checks every lower cluster for room for a pod, and reserves this room."""

    settings_type = FitSettings

    def __init__(self, context: AgentContext) -> None:
        """Create the filter of pod groups; ``run`` follows the pending pods.

        Raises:
            ConfigError: a setting is wrong, or the context has no state.
        """
        self._settings = context.read_settings(self.settings_type)
        if context.state is None:
            raise ConfigError(
                f"agents[{context.name}]: the state of the lower clusters is missing in its context"
            )
        self.state = state = context.state
        pending = PendingPods(context.upper)
        self.attempts = Attempts(
            context.upper,
            state.reservations,
            state.accounting.nominated,
            self._pod_deleted,
            pending.has,
            state.bound_pods.has,
        )
        planner = Planner(state, self._settings.score)
        self.groups = GroupFilter(context.upper, state, planner, pending, self.attempts)
        self._minimums = Minimums(context.upper)
        self._native = NativeGroups(state.reservations, state.bound_pods, self._minimums.__getitem__)
        state.follow(pending.informer, bound=self._pod_bound, swept=self.groups.sweep)

    async def run(self) -> None:
        """Follow the pending upper pods until cancelled. The caller runs the state."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.groups.members.run())
            group.create_task(self.attempts.run())
            group.create_task(self._minimums.run())

    def unready(self) -> str | None:
        """Return why the agent is not ready; None: ready."""
        return self.state.unready()

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Reject every virtual node without a lower node for the pod, or without room for the pod's group."""
        uid = pod["metadata"].get("uid", "")
        self.state.know(nodes)
        await self.state.wait_read(_SETTLE_SECONDS)
        self._native.called(pod)
        if (bound := self.state.bound_pods.get(uid)) is not None or self.state.reservations.stage(
            uid
        ) is Stage.BOUND:
            # The scheduler asks again if it has lost the answer to its binding. The reservation stays as it is.
            name = node_of(bound) if bound is not None else self.state.reservations.bound_to(uid)
            text = f"the pod is bound to node {name} already"
            return Rejections({}, {node.name: text for node in nodes if node.name != name})
        if (group := self.groups.group(pod)) is None:
            return await self._filter_alone(pod, nodes)
        verdict = await self.groups.filter(pod, nodes, group)
        if verdict.alone is not None:
            found = await self._filter_alone(pod, verdict.alone)
            return replace(found, unresolvable={**found.unresolvable, **verdict.rejections.unresolvable})
        self.state.remember(uid, dict(verdict.judged))
        return verdict.rejections

    async def _filter_alone(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        uid, priority = pod["metadata"].get("uid", ""), pod["spec"].get("priority") or 0
        besides = {uid, *self._native.companions(pod)}
        deadline = now() + _SETTLE_SECONDS
        while True:
            found = self._judge_alone(pod, nodes, uid, priority)
            if found.rejected < len(nodes):
                break
            if node := self._reserve_after_eviction(pod, nodes, found):
                resolvable = {name: why for name, why in found.resolvable.items() if name != node}
                unresolvable = {name: why for name, why in found.unresolvable.items() if name != node}
                return Rejections(resolvable, unresolvable)
            # Other pods hold reservations in several clusters and will use only one, so wait until the rest is released.
            may_change = self._may_change(besides, found.retryable, at_most=_SETTLE_SECONDS)
            until = deadline if may_change else min(deadline, found.counted_by)
            if until <= (time := now()):
                break
            await self.state.reservations.wait(until - time)
        if nodes and found.rejected == len(nodes):
            self.state.judge.grow(nodes, found)
        self.state.remember(uid, found.judged)
        # Reserve before other agents answer, so that a concurrent call does not count on the same room.
        if found.places:
            seconds = self.attempts.begin(pod)
            self.state.reservations.reserve(uid, found.places, priority=priority, seconds=seconds)
        elif (
            self.state.reservations.stage(uid) is not Stage.NOMINATED
        ):  # preempted pods may not have ended yet
            self.state.reservations.release(uid)
        transient = self._transient(besides, priority, found) if found.rejected == len(nodes) else ""
        return Rejections(found.resolvable, found.unresolvable, transient)

    def _judge_alone(
        self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode], uid: str, priority: int
    ) -> Judgement:
        """Predict the pod's lower nodes as if its own reservation of an earlier attempt did not exist."""
        unfinished = self.state.prepare(nodes)
        with self.state.reservations.without_own(uid, priority):
            return self.state.predict(pod, nodes, unfinished=unfinished)

    def _reserve_after_eviction(
        self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode], judgement: Judgement
    ) -> str:
        """Reserve the room of pods of lower priority for a pod of a native group that the scheduler filters as if they were gone.

        Returns:
            the virtual node; empty: there is none, or the scheduler does not ask in this way.
        """
        if not native_group(pod["spec"]):
            return ""
        uid, priority = pod["metadata"].get("uid", ""), pod["spec"].get("priority") or 0
        for node in nodes:
            pods = self.state.bound_pods.on(node.name)
            if node.name not in judgement.lacking or all(priority_of(one) >= priority for one in pods):
                continue
            wanted, gated = judgement.lacking[node.name]
            index, bound = self.state.clusters[node.cluster].index, self._bound_on(node)
            there = {one.key for _, one in bound} | {
                f"{other}@{node.name}" for other in self._native.companions(pod)
            }
            used = [placed.requests for placed in map(index.placed, there) if placed is not None]
            victims = frozenset(one.key for _, one in bound if one.priority < priority)
            if not is_full(node.allocatable, used, wanted.requests):
                continue
            with self.state.reservations.without_own(uid, priority):
                place = choosing.place_without(index, wanted, victims)
            if place:
                room = Place(node.cluster, wanted, place, gated.charge, awaits=victims)
                self.state.reservations.hold_for_preemption(uid, node.name, room, priority=priority)
                return node.name
        return ""

    def _bound_on(self, node: VirtualNode) -> list[tuple[Object, choosing.Mirrored]]:
        """Return the upper pods that are bound to a virtual node, each with its entry in the index of the lower cluster."""
        return [
            (one, choosing.Mirrored(one.uid, key, priority_of(one)))
            for one in self.state.bound_pods.on(node.name)
            for key in self.state.accounting.index_keys(one.uid, node)
        ]

    def _transient(self, besides: Collection[str], priority: int, judgement: Judgement) -> str:
        """Return why no node passes now but one may in a few seconds; empty: the rejections stay right."""
        recent = self._may_change(besides, judgement.retryable, at_most=RECENT_SECONDS)
        if recent or (priority <= 0 and self._may_change(besides, judgement.retryable)):
            return "room is reserved for pods that are being bound and may not use it"
        if judgement.unknown and not judgement.resolvable:
            return next(text for name, text in judgement.unresolvable.items() if name in judgement.unknown)
        return ""

    def bars_real_nodes(self, pod: Mapping[str, Any]) -> str:
        """Return a reason for pods of groups: no room is reserved on real nodes."""
        group = self.groups.group(pod)
        return f"pods of pod group {group} start together on virtual nodes only" if group is not None else ""

    def filtered(self, pod: Mapping[str, Any], passing: Sequence[VirtualNode]) -> None:
        """Keep the pod's reservations only on nodes that the scheduler may still choose."""
        uid = pod["metadata"].get("uid", "")
        is_held = self.groups.held.node(uid) is not None  # the group keeps its room
        if not is_held and self.state.reservations.stage(uid) is Stage.TENTATIVE:
            self.state.reservations.narrow(uid, {node.name for node in passing})
        if passing and not is_held:
            self._native.passed(pod)

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Return a score for each virtual node by the configured strategy; 0 or less without room on existing lower nodes."""
        judged = self.state.predictions.get(pod["metadata"].get("uid", ""), {})
        return {
            node.name: score(lower.index, judged.get(node.name), self._settings.score)
            for node in nodes
            if (lower := self.state.clusters.get(node.cluster)) is not None
        }

    async def preempt(
        self, pod: Mapping[str, Any], node: VirtualNode, victims: Sequence[str]
    ) -> Sequence[str] | None:
        """Return the given victims if evicting them makes room in the lower cluster, otherwise others; None: no victims help."""
        lower = self.state.clusters.get(node.cluster)
        if lower is None or lower.feed.trouble():
            return victims if self._settings.unreachable == "Pass" else None
        index = lower.index
        self.state.know([node])
        self.state.accounting.prepare(node.cluster)
        priority, uid = pod["spec"].get("priority") or 0, pod["metadata"].get("uid", "")
        if self.groups.held.node(uid) is not None:
            return None  # its room is reserved, even if ``standing`` needs none while members are being bound
        bound = self._bound_on(node)
        # Only the scheduler knows whether it may evict pods of its groups one by one (disruptionMode).
        candidates = [
            found
            for one, found in bound
            if one.metadata.deletion_timestamp is None
            and found.priority < priority
            and not is_native(one.spec)
        ]
        if (group := self.groups.group(pod)) is not None:
            standing = await self.groups.standing(pod, group)
            if standing is None or standing.waits_for:
                return None  # room for single pods does not help
            if standing.needed:
                ending = [at.key for one, at in bound if one.metadata.deletion_timestamp is not None]
                return self.groups.eviction.preempt(standing, node, candidates, ending)
        gated = lower.gate.judge(pod, node)
        if gated.refusal:
            return None
        wanted = self.state.judge.demand(gated, node)
        with self.state.reservations.without_own(uid, priority):
            keys = [key for victim in victims for key in self.state.accounting.index_keys(victim, node)]
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
            self.state.reservations.hold_for_preemption(
                uid,
                node.name,
                Place(node.cluster, wanted, place, gated.charge, awaits=frozenset(leaving)),
                priority=priority,
            )
        return chosen

    def annotations(self, uid: str, node: str) -> Mapping[str, str]:
        """Return annotations for the domain of the pod's group and, with ``passNode``, for the reserved lower node."""
        mode = self._settings.pass_node
        chosen = self.state.reservations.prefer(uid, node) if mode else ""
        domain = self.groups.members.annotations(uid)
        return {**domain, **(dict.fromkeys(_NODE_ANNOTATIONS[mode], chosen) if chosen else {})}

    def bars_binding(self, uid: str, node: str) -> str:
        """Return that a pod's room is no longer reserved, for example after a restart; empty: the pod may be bound.

        The pod's room on other virtual nodes is released, because the scheduler has chosen this one.
        """
        virtual, pod = self.state.node(node), self.state.bound_pods.get(uid)
        if (
            virtual is None
            or virtual.cluster not in self.state.clusters
            or self.state.reservations.choose(uid, node)
        ):
            return self._bars_until_eviction(uid, node)
        if pod is not None and node_of(pod) == node:
            return ""  # the scheduler has lost the answer to the binding
        if self._settings.unreachable == "Pass" and self.state.clusters[virtual.cluster].feed.trouble():
            return ""
        return f"no room is reserved for the pod on {node} any more; the scheduler tries again"

    def _bars_until_eviction(self, uid: str, node: str) -> str:
        """Return that the pods whose room is reserved for a pod have not ended; empty: they have, or there are none."""
        lower = self.state.reservations.awaited(uid, node)
        virtual = self.state.node(node)
        if not lower or virtual is None or not is_over(self.state.clusters[virtual.cluster].index, [lower]):
            return ""
        return f"the pods that make room on {node} have not ended; the scheduler tries again"

    def bound(self, uid: str, node: str) -> None:
        """Mark the reservation as bound, because the extender itself bound the pod."""
        self.state.reservations.bind(uid, node)

    def _may_change(
        self,
        besides: Collection[str],
        retryable: Sequence[tuple[str, Demand | None]],
        *,
        at_most: float = math.inf,
    ) -> bool:
        """Report whether a pod may fit after other pods' tentative reservations are released.

        Args:
            besides: pods whose reservations stay.
            retryable: clusters that lack room, with the demand there; None: unknown.
            at_most: maximum age of these reservations, in seconds.
        """
        for cluster, wanted in retryable:
            keys = self.state.reservations.tentative(cluster, besides=besides, at_most=at_most)
            if keys and (
                wanted is None or choosing.suffices(self.state.clusters[cluster].index, wanted, keys)
            ):
                return True
        return False

    def _pod_bound(self, uid: str) -> None:
        self.groups.members.bound(uid)
        self.attempts.bound(uid)

    def _pod_deleted(self, uid: str) -> None:
        self.groups.held.deleted(uid)
        self.groups.members.candidates.pop(uid, None)
        self.state.predictions.pop(uid, None)
