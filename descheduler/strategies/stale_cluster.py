"""Moves pods off lost clusters; a cluster that recovers is used again. Event-driven.

A virtual node is lost when it was NotReady, or its Lease was not renewed, for longer than 20 s (the rule
of project kubeleet). It gets a taint against new pods. Its pods are moved at a limited rate, each after a check
that the node is still lost. When the node has been healthy for 30 s, the taint is removed and pending pods may use the
node. Moved pods are not moved back, and a flapping node keeps its taint, so pods do not move back and forth.
Pods that still run in the lost cluster end when it recovers, because the virtual node deletes lower pods
without an upper pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec

from controller_runtime import resources
from controller_runtime.api.pod.conditions import condition, is_true
from controller_runtime.cache.informer import Informer
from controller_runtime.client.reads import find
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import TokenBucket
from controller_runtime.workqueue.controller import Controller, Result
from descheduler.moving.request import Move
from descheduler.strategies.base import Context, NotNegative, Params, PodQueue, Positive, Strategy
from descheduler.view import pods, taint
from descheduler.view.cluster import tainted_since, why_lost
from descheduler.view.heartbeat import Heartbeats

_LEASE_NAMESPACE = "kube-node-lease"
_NO_READY_NODES = "NoReadyLowerNodes"
"""Reason of the Ready condition if the lower cluster responds, but no node is Ready and schedulable. Ready pods stay."""
_PROOF_RETRY = 2.0
_WORKERS = 4


class StaleClusterParams(Params):
    """Parameters of ``StaleCluster``."""

    stale_after_seconds: Positive = 20.0
    """Seconds of NotReady, or without renewal of the Lease, after which a virtual node is lost."""
    heal_after_seconds: NotNegative = 30.0
    """Seconds that a virtual node must be healthy before it is used again."""
    pods_per_second: Positive = 5.0
    burst: Annotated[int, msgspec.Meta(ge=1)] = 10
    """Number of moves before ``podsPerSecond`` limits their rate."""
    disruption_budget_timeout_seconds: NotNegative = 0.0
    """Seconds after the loss from which pods are deleted even if a disruption budget refuses their eviction;
    0: never."""


@dataclass(slots=True)
class _Lost:
    """A virtual node that is lost or recovering."""

    since: datetime
    marked_at: float
    healthy_at: float | None = None


class StaleCluster(Strategy):
    """Taints virtual nodes of lost clusters and moves their pods."""

    name: ClassVar[str] = "StaleCluster"
    params_type: ClassVar[type[Params]] = StaleClusterParams

    def __init__(self, context: Context, params: StaleClusterParams, *, where: str = "") -> None:
        super().__init__(context, params, where=where)
        self._after = params.stale_after_seconds
        self._heal_after = params.heal_after_seconds
        self._budget_timeout = params.disruption_budget_timeout_seconds
        self.heartbeats = Heartbeats(stale_after=self._after)
        self._not_ready_since: dict[str, float] = {}
        self._lost: dict[str, _Lost] = {}
        self._bucket = TokenBucket(params.pods_per_second, params.burst)
        self._leases = Informer(
            context.mover.client, resources.LEASES, namespace=_LEASE_NAMESPACE, name="node-leases"
        )
        self.nodes: Controller[str] = Controller("stalecluster-nodes", self._judge)
        self.pods = PodQueue("stalecluster-pods", self._move, workers=_WORKERS, longest_backoff=60.0)

    async def run(self) -> None:
        """Follow nodes, leases and pods until cancelled."""
        view = self.context.view
        self._leases.on_change(self._lease_changed, lambda lease: self.heartbeats.forget(lease.name))
        nodes = view.nodes.add_handler(
            on_add=self._node_added, on_update=self._node_updated, on_delete=self._node_deleted
        )
        with nodes, view.pods.on_change(self._pod_changed):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._leases.run(), name="node leases")
                await self._leases.wait_synced()
                group.create_task(self.nodes.run(), name="stale nodes")
                group.create_task(self.pods.run(), name="pods of stale nodes")

    # --- nodes ------------------------------------------------------------------------------------

    def _lease_changed(self, lease: Object) -> None:
        self._observe(lease.name, lease.spec or {})
        if self.context.view.is_virtual(lease.name):
            self.nodes.enqueue(lease.name)

    def _observe(self, name: str, spec: Mapping[str, Any]) -> None:
        duration = float(spec.get("leaseDurationSeconds") or 0)
        self.heartbeats.observe(name, spec.get("renewTime") or "", duration=duration, now=_time())

    def _node_changed(self, node: Object) -> None:
        if not self.context.view.is_virtual(node.name):
            return
        if is_true(node.status, "Ready"):
            self._not_ready_since.pop(node.name, None)
        else:
            self._not_ready_since.setdefault(node.name, _time())
            self._handle_not_ready(node.name)
        marked = tainted_since(node)
        if marked is not None and node.name not in self._lost:
            # An earlier leader added the taint.
            self._lost[node.name] = _Lost(since=marked, marked_at=_time())
        self.nodes.enqueue(node.name)

    def _node_added(self, node: Object, _initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        self._node_changed(node)
        self.pods.requeue_waiting()

    def _node_updated(self, old: Object, new: Object) -> None:
        self._node_changed(new)
        if self.pods.needs_node and self.context.view.matters(old, new):
            self.pods.requeue_waiting()

    def _handle_not_ready(self, name: str) -> None:
        """If the node was recovering, treat it as lost again."""
        lost = self._lost.get(name)
        if lost is not None and lost.healthy_at is not None:
            lost.healthy_at = None
            for pod in self.context.view.pods_on(name):
                self.pods.enqueue(pod.key)

    def _node_deleted(self, node: Object) -> None:
        self._not_ready_since.pop(node.name, None)
        self._lost.pop(node.name, None)

    def is_lost(self, node: str) -> bool:
        """Report whether a node is lost now; False for a recovering node."""
        lost = self._lost.get(node)
        return lost is not None and lost.healthy_at is None

    async def _judge(self, name: str) -> Result | None:
        node = self.context.view.nodes.store.get(name)
        if node is None or not self.context.view.is_virtual(name):
            return None
        now = _time()
        due = self._due(name)
        if due is None:
            return await self._handle_healthy(node, now, None)
        if now <= due:
            # Not lost now. A node that was lost is recovering only if it is Ready.
            if name in self._lost and name not in self._not_ready_since:
                return await self._handle_healthy(node, now, due - now)
            return Result(requeue_after=due - now + 0.01)
        if is_true(node.status, "Ready"):
            if not self.heartbeats.any_renewed_recently(now=now):
                return Result(requeue_after=_PROOF_RETRY)
            if await self._has_renewed(name):
                return Result(requeue_after=0)
        await self._handle_lost(node, now)
        return None

    def _due(self, name: str) -> float | None:
        """Return when the node is lost if nothing changes (monotonic time); None: it is Ready and has no Lease."""
        not_ready = self._not_ready_since.get(name)
        moments = [self.heartbeats.stale_at(name), None if not_ready is None else not_ready + self._after]
        return min((moment for moment in moments if moment is not None), default=None)

    async def _has_renewed(self, name: str) -> bool:
        """Read the Lease from the API, because the watch may be delayed; report whether it was renewed."""
        lease = await find(self.context.mover.client, resources.LEASES, name, namespace=_LEASE_NAMESPACE)
        spec = (lease or {}).get("spec") or {}
        if lease is None or (spec.get("renewTime") or "") == self.heartbeats.renewed(name):
            return False
        self._observe(name, spec)
        return True

    async def _handle_lost(self, node: Object, now: float) -> None:
        """Mark the node as lost: taint it and move its pods."""
        lost = self._lost.get(node.name)
        if lost is None:
            moment = self.context.mover.now()
            self.log.warning("virtual node is lost", node=node.name, why=why_lost(node))
            if not self.context.mover.is_dry_run:
                await taint.write(self.context.mover.client, node, since=moment)
            self._lost[node.name] = _Lost(since=moment, marked_at=now)
        elif lost.healthy_at is not None:
            self.log.warning("virtual node is lost again", node=node.name, why=why_lost(node))
            lost.healthy_at = None
        for pod in self.context.view.pods_on(node.name):
            self.pods.enqueue(pod.key)

    async def _handle_healthy(self, node: Object, now: float, next_look: float | None) -> Result | None:
        """Handle a healthy node: if it was lost, remove the taint after ``healAfterSeconds``."""
        lost = self._lost.get(node.name)
        if lost is not None:
            self.context.mover.waiting.settle(self.name, *self.context.view.pods_on(node.name))
            if lost.healthy_at is None:
                lost.healthy_at = now
                self.log.info("virtual node is healthy again", node=node.name, used_again_in=self._heal_after)
            rest = lost.healthy_at + self._heal_after - now
            if rest > 0:
                return Result(requeue_after=rest)
            if not self.context.mover.is_dry_run:
                await taint.write(self.context.mover.client, node, since=None)
                await self.context.mover.memory.thaw(node.name, since=lost.since)
            del self._lost[node.name]
            self.log.info("virtual node is used again", node=node.name)
        return None if next_look is None else Result(requeue_after=next_look + 0.01)

    # --- pods -------------------------------------------------------------------------------------

    def _pod_changed(self, pod: Object) -> None:
        if self.is_lost((pod.spec or {}).get("nodeName") or ""):
            self.pods.enqueue(pod.key)

    def _pod_to_move(self, key: str) -> tuple[Object, Object] | None:
        """Return the pod and its node if the pod must be moved now; otherwise None, and it is removed from ``waiting``."""
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
            or (condition(node.status, "Ready").get("reason") == _NO_READY_NODES and pods.is_ready(pod))
        ):
            self.context.mover.waiting.settle(self.name, pod)
            return None
        return pod, node

    async def _move(self, key: str) -> Result | None:
        if due := self._pod_to_move(key):
            await self._bucket.acquire(due[1].name)
            due = self._pod_to_move(key)  # acquire may have waited for minutes
        if due is None:
            return None
        pod, node = due
        marked_at = self._lost[node.name].marked_at
        budget_matters = not self._budget_timeout or _time() - marked_at < self._budget_timeout
        request = Move(
            strategy=self.name,
            reason=f"cluster is lost: {why_lost(node)}",
            counts=False,
            force=True,
            budget_matters=budget_matters,
        )
        return self.pods.result(key, await self.context.mover.move(pod, request))


def _time() -> float:
    return asyncio.get_running_loop().time()
