"""Moves pods off lost clusters; a cluster that recovers is used again. Event-driven.

A virtual node is lost when it was NotReady, or its Lease was not renewed, for longer than ``staleAfterSeconds``. It gets a taint
against new pods, and pods without a lower node are moved. Pods that may run are moved only after ``moveRunningAfterSeconds`` of
silence, if another virtual node has room: their control plane may be away while they run on. All moves have a limited rate, each
after a check that the node is still lost. When the node has been healthy for 30 s, the taint is removed and pending pods may use
the node. Moved pods are not moved back, and a flapping node keeps its taint, so pods do not move back and forth. Pods that
still run in the lost cluster end when it recovers, because the virtual node deletes lower pods without an upper pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec

from clusterset.model import names
from clusterset.model.moving import silence as silences
from clusterset.model.moving.silence import NO_READY_NODES, Silence
from clusterset.model.pod.conditions import condition, is_true
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find
from controller_runtime.objects import Object
from controller_runtime.process.flags import duration
from controller_runtime.process.settings import NotNegative, Positive, Setting
from controller_runtime.util import event_loop
from controller_runtime.util.rate_limiter import TokenBucket
from controller_runtime.workqueue.controller import Controller, Result
from descheduler.moving.move_reports import Move
from descheduler.strategies.base import BY_FLAGS, Context, Params, PodQueue, Strategy
from descheduler.view import pods
from descheduler.view.cluster import why_lost
from descheduler.view.lost import LostNodes

_LEASE_NAMESPACE = "kube-node-lease"
_PROOF_RETRY = 2.0
_WORKERS = 4


class StaleClusterParams(Params):
    """Parameters of ``StaleCluster``."""

    stale_after_seconds: Annotated[Positive, Setting(BY_FLAGS, "--stale-after D", parse=duration)] = 20.0
    """Time of NotReady, or without renewal of the Lease, after which a virtual node is lost."""
    move_running_after_seconds: Annotated[
        Positive, Setting(BY_FLAGS, "--move-running-after D", parse=duration)
    ] = 300.0
    """Time of this silence after which pods that may run are moved if another virtual node has room, at least
    ``staleAfterSeconds``. 20 seconds is the rule of project kubeleet."""
    heal_after_seconds: Annotated[NotNegative, Setting(BY_FLAGS, "--heal-after D", parse=duration)] = 30.0
    """Time that a lost virtual node must be healthy before it is used again."""
    pods_per_second: Annotated[Positive, Setting(BY_FLAGS, "--stale-pods-per-second N")] = 5.0
    """Moves per second off lost clusters."""
    burst: Annotated[int, msgspec.Meta(ge=1)] = 10
    """Number of moves before ``podsPerSecond`` limits their rate."""
    disruption_budget_timeout_seconds: NotNegative = 0.0
    """Seconds after the loss from which pods are deleted even if a disruption budget refuses their eviction;
    0: never."""


class StaleCluster(Strategy):
    """Taints virtual nodes of lost clusters and moves their pods."""

    name: ClassVar[str] = "StaleCluster"
    params_type: ClassVar[type[Params]] = StaleClusterParams

    def __init__(self, context: Context, params: StaleClusterParams, *, where: str = "") -> None:
        super().__init__(context, params, where=where)
        self._heal_after = params.heal_after_seconds
        self._budget_timeout = params.disruption_budget_timeout_seconds
        self._lost = LostNodes(
            stale_after=params.stale_after_seconds, move_running_after=params.move_running_after_seconds
        )
        self._bucket = TokenBucket(params.pods_per_second, params.burst)
        self._leases = Informer(
            context.mover.client, resources.LEASES, namespace=_LEASE_NAMESPACE, name="node-leases"
        )
        self.nodes: Controller[str] = Controller("stalecluster-nodes", self._judge)
        self.pods = PodQueue("stalecluster-pods", self._move, workers=_WORKERS, longest_backoff=60.0)

    async def run(self) -> None:
        """Follow nodes, leases and pods until cancelled."""
        view, heartbeats = self.context.view, self._lost.heartbeats
        self._leases.on_change(self._lease_changed, lambda lease: heartbeats.forget(lease.name))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._leases.run(), name="node leases")
            # Only a Lease that is renewed after the first list proves that a node with the taint is healthy again.
            await self._leases.wait_synced()
            nodes = view.nodes.add_handler(
                on_add=self._node_added,
                on_update=self._node_updated,
                on_delete=lambda node: self._lost.forget(node.name),
            )
            with nodes, view.pods.on_change(self._pod_changed):
                await asyncio.gather(self.nodes.run(), self.pods.run())

    # --- nodes ------------------------------------------------------------------------------------

    def _lease_changed(self, lease: Object) -> None:
        self._observe(lease.name, lease.spec or {})
        if self.context.view.is_virtual(lease.name):
            self.nodes.enqueue(lease.name)

    def _observe(self, name: str, spec: Mapping[str, Any]) -> None:
        heartbeats = self._lost.heartbeats
        duration, resumed = float(spec.get("leaseDurationSeconds") or 0), heartbeats.resumed_at
        heartbeats.observe(name, spec.get("renewTime") or "", duration=duration, now=event_loop.now())
        if heartbeats.resumed_at != resumed:  # lost nodes must be silent for some time again
            for lost in self._lost.tainted:
                self.nodes.enqueue(lost)

    def _node_changed(self, node: Object) -> None:
        if self.context.view.is_virtual(node.name):
            self._lost.observe(node, now=event_loop.now())
            self.nodes.enqueue(node.name)

    def _node_added(self, node: Object, _initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        self._node_changed(node)
        self.pods.requeue_waiting()

    def _node_updated(self, old: Object, new: Object) -> None:
        self._node_changed(new)
        if self.pods.needs_node and self.context.view.matters(old, new):
            self.pods.requeue_waiting()

    def is_lost(self, node: str) -> bool:
        """Report whether a node is lost now; False for a recovering node."""
        return self._lost.is_lost(node, now=event_loop.now())

    async def _judge(self, name: str) -> Result | None:
        node = self.context.view.nodes.store.get(name)
        if node is None or not self.context.view.is_virtual(name):
            return None
        now = event_loop.now()
        due = self._lost.due(name)
        if due is None:
            return await self._handle_healthy(node, now, None)
        if now <= due:
            # Not lost now. A node that was lost is recovering only after a sign of health.
            if self._lost.is_recovering(name):
                return await self._handle_healthy(node, now, due - now)
            return Result(requeue_after=due - now + 0.01)
        if self._lost.heartbeats.are_interrupted(now=now):
            return Result(requeue_after=_PROOF_RETRY)
        if is_true(node.status, "Ready") and await self._has_renewed(name):
            return Result(requeue_after=0)
        await self._handle_lost(node, now)
        return None

    async def _has_renewed(self, name: str) -> bool:
        """Read the Lease from the API, because the watch may be delayed; report whether it was renewed."""
        lease = await find(self.context.mover.client, resources.LEASES, name, namespace=_LEASE_NAMESPACE)
        spec = (lease or {}).get("spec") or {}
        if lease is None or (spec.get("renewTime") or "") == self._lost.heartbeats.renewed(name):
            return False
        self._observe(name, spec)
        return True

    async def _handle_lost(self, node: Object, now: float) -> None:
        """Mark the node as lost and move its pods."""
        lost = self._lost.tainted.get(node.name)
        if lost is None or lost.silent_since is None:
            wall = self.context.mover.now()
            silence = self._lost.silence(node, now=now, wall=wall)
            self.log.warning(
                "virtual node is lost",
                node=node.name,
                why=why_lost(node),
                silent_since=timestamps.rfc3339(silence.since),
                running_pods_move_at=timestamps.rfc3339(silence.running_pods_move_at),
            )
            if not self.context.mover.options.dry_run:
                since = wall if lost is None else lost.since
                await mark(self.context.mover.client, node, since=since, silence=silence)
            self._lost.mark(node.name, silence, now=now, wall=wall)
        # With little room elsewhere, the most important pods get it.
        for pod in reversed(pods.least_important_first(self.context.view.pods_on(node.name))):
            self.pods.enqueue(pod.key)

    async def _handle_healthy(self, node: Object, now: float, next_look: float | None) -> Result | None:
        """Handle a healthy node: if it was lost, remove the taint after ``healAfterSeconds``."""
        lost = self._lost.tainted.get(node.name)
        if lost is not None:
            self.context.mover.waiting.settle(self.name, *self.context.view.pods_on(node.name))
            if lost.healthy_at is None:
                lost.healthy_at, lost.recorded, lost.silent_since = now, None, None
                self.log.info("virtual node is healthy again", node=node.name, used_again_in=self._heal_after)
            rest = lost.healthy_at + self._heal_after - now
            if not self.context.mover.options.dry_run:
                await clear(self.context.mover.client, node, keep_taint=rest > 0)
            if rest > 0:
                return Result(requeue_after=rest)
            if not self.context.mover.options.dry_run:
                await self.context.mover.memory.thaw(node.name, since=lost.since)
            self._lost.tainted.pop(node.name, None)
            self.log.info("virtual node is used again", node=node.name)
        return None if next_look is None else Result(requeue_after=next_look + 0.01)

    # --- pods -------------------------------------------------------------------------------------

    def _pod_changed(self, pod: Object) -> None:
        if self.is_lost((pod.spec or {}).get("nodeName") or ""):
            self.pods.enqueue(pod.key)

    def _pod_to_move(self, key: str) -> tuple[Object, Object] | None:
        """Return the pod and its node if the pod must be moved; otherwise None, and it is removed from ``waiting``."""
        pod = self.context.view.pods.store.get(key)
        if pod is None:
            return None
        node = self.context.view.nodes.store.get((pod.spec or {}).get("nodeName") or "")
        if (
            node is None
            or not self.is_lost(node.name)
            or not pods.is_active(pod)
            or not self.concerns(pod)
            or self.context.mover.why_not_movable(pod)
            or (
                condition(node.status, "Ready").get("reason") == NO_READY_NODES
                and is_true(pod.status, "Ready")
            )
        ):
            self.context.mover.waiting.settle(self.name, pod)
            return None
        return pod, node

    def _seconds_until_move(self, pod: Object, node: Object) -> float:
        may_run = pods.has_lower_node(pod)
        return self._lost.seconds_until_move(node.name, has_lower_node=may_run, now=event_loop.now())

    async def _move(self, key: str) -> Result | None:
        due = self._pod_to_move(key)
        # The mover only reports a pod without room, which must not delay others.
        if due and self._seconds_until_move(*due) <= 0 and await self.context.mover.has_room(due[0]):
            await self._bucket.acquire(due[1].name)
            due = self._pod_to_move(key)  # acquire may have waited for minutes
        if due is None:
            return None
        pod, node = due
        if (rest := self._seconds_until_move(pod, node)) > 0:
            self.context.mover.waiting.settle(self.name, pod)
            return Result(requeue_after=rest)
        lost_for = self._lost.lost_for(node.name, now=event_loop.now())
        request = Move(
            strategy=self.name,
            reason=f"cluster is lost: {why_lost(node)}",
            counts=False,
            force=True,
            budget_matters=not self._budget_timeout or lost_for < self._budget_timeout,
        )
        return self.pods.result(key, await self.context.mover.move(pod, request))


async def mark(client: Client, node: Object, *, since: datetime, silence: Silence) -> None:
    """Give the node of a lost cluster its taint and its annotation.

    Args:
        client: client of the upper cluster.
        node: cached node.
        since: when the node was lost. A taint that is already there stays unchanged.
        silence: the silence that lasts.

    Raises:
        ApiError: the request failed; after a Conflict (the node has changed), retry.
    """
    taints, others = _taints(node)
    if len(others) == len(taints):
        moment = timestamps.rfc3339(since)
        taints = [*others, {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": moment}]
    await _write(client, node, taints, silences.render(silence))


async def clear(client: Client, node: Object, *, keep_taint: bool) -> None:
    """Remove the annotation of a node, and its taint unless ``keep_taint``.

    Raises:
        ApiError: the request failed; after a Conflict (the node has changed), retry.
    """
    taints, others = _taints(node)
    await _write(client, node, taints if keep_taint else others, None)


def _taints(node: Object) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return all taints of a node, and those that are not for lost clusters."""
    taints: list[dict[str, Any]] = (node.spec or {}).get("taints") or []
    return taints, [taint for taint in taints if taint.get("key") != names.TAINT_STALE_CLUSTER]


async def _write(
    client: Client, node: Object, taints: Sequence[dict[str, Any]], annotation: str | None
) -> None:
    """Write what differs. The resourceVersion is a precondition, so that no concurrent change is lost."""
    metadata: dict[str, Any] = {}
    if node.annotations.get(names.ANNOTATION_SILENCE) != annotation:
        metadata["annotations"] = {names.ANNOTATION_SILENCE: annotation}
    spec = {} if list(taints) == _taints(node)[0] else {"spec": {"taints": list(taints)}}
    if metadata or spec:
        metadata["resourceVersion"] = node.resource_version
        await client.patch(resources.NODES, node.name, {"metadata": metadata, **spec})
