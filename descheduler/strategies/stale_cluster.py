"""Pods of a lost cluster are moved; when it heals it is used again. Event-driven.

A virtual node is lost when it has been NotReady, or its Lease silent, for longer than 20 s (kubeleet's rule). It
gets a taint that keeps new pods away, and its pods are moved at a limited rate, each after a last look whether
the cluster is still lost. Once the node has been well for a while the taint goes and what waited may come back
(back-fill); nothing that has moved is moved back, and a node that flaps keeps its taint: there is no ping-pong.
What still ran in the lost cluster is fenced by the virtual node, which removes what nobody upstream wants any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

import msgspec

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import NotFound
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import TokenBucket
from controller_runtime.workqueue.controller import Controller, Result
from descheduler.moving.request import Move
from descheduler.strategies.base import Context, NotNegative, Params, Positive, Strategy, pod_controller
from descheduler.view import pods, taint
from descheduler.view.cluster import is_ready, ready_condition, tainted_since, why_lost
from descheduler.view.heartbeat import Heartbeats

_LEASE_NAMESPACE = "kube-node-lease"
_NO_READY_NODES = "NoReadyLowerNodes"
"""The virtual node's reason when the lower cluster answers, but none of its nodes takes new pods: all cordoned, say."""
_PROOF_RETRY = 2.0
_WORKERS = 4


class StaleClusterParams(Params):
    """Parameters of ``StaleCluster``."""

    stale_after_seconds: Positive = 20.0
    """NotReady or silent for longer than this: lost."""
    heal_after_seconds: NotNegative = 30.0
    """Well for this long: used again."""
    pods_per_second: Positive = 5.0
    burst: Annotated[int, msgspec.Meta(ge=1)] = 10
    """Moves at once before ``podsPerSecond`` applies."""
    disruption_budget_timeout_seconds: NotNegative = 0.0
    """Time after which a refused eviction becomes a deletion, as Kubernetes' own taint eviction does; 0: never."""


@dataclass(slots=True)
class _Lost:
    """A node that is, or was until a moment ago, lost."""

    since: datetime
    marked_at: float
    healthy_at: float | None = None


class StaleCluster(Strategy):
    """Moves pods off lost clusters."""

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
        self._known: set[str] = set()
        self._needs_node: set[str] = set()
        """Pods that would be moved if only there were another node."""
        self._bucket = TokenBucket(params.pods_per_second, params.burst)
        self._leases = Informer(
            context.client, resources.LEASES, namespace=_LEASE_NAMESPACE, name="node-leases"
        )
        self.nodes: Controller[str] = Controller("stalecluster-nodes", self._judge)
        self.pods = pod_controller("stalecluster-pods", self._move, workers=_WORKERS, longest_backoff=60.0)

    async def run(self) -> None:
        """Follow nodes, leases and pods until cancelled."""
        view = self.context.view
        self._leases.add_handler(
            on_add=lambda lease, _initial: self._heard(lease),
            on_update=lambda _old, new: self._heard(new),
            on_delete=lambda lease: self.heartbeats.forget(lease.name),
        )
        registrations = [
            view.nodes.add_handler(
                on_add=lambda node, _initial: self._node_changed(node),
                on_update=self._node_updated,
                on_delete=self._node_deleted,
            ),
            view.pods.add_handler(
                on_add=lambda pod, _initial: self._pod_changed(pod),
                on_update=lambda _old, new: self._pod_changed(new),
            ),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._leases.run(), name="node leases")
                await self._leases.wait_synced()
                group.create_task(self.nodes.run(), name="stale nodes")
                group.create_task(self.pods.run(), name="pods of stale nodes")
        finally:
            for registration in registrations:
                registration.remove()

    # --- nodes ------------------------------------------------------------------------------------

    def _heard(self, lease: Object) -> None:
        spec = lease.spec or {}
        self.heartbeats.heard(
            lease.name,
            spec.get("renewTime") or "",
            duration=float(spec.get("leaseDurationSeconds") or 0),
            now=_time(),
        )
        if self.context.view.is_virtual(lease.name):
            self.nodes.enqueue(lease.name)

    def _node_changed(self, node: Object) -> None:
        if not self.context.view.is_virtual(node.name):
            return
        if node.name not in self._known:
            self._known.add(node.name)
            self._try_again()
        if is_ready(node):
            self._not_ready_since.pop(node.name, None)
        else:
            self._not_ready_since.setdefault(node.name, _time())
            self._relapse(node.name)
        marked = tainted_since(node)
        if marked is not None and node.name not in self._lost:
            # By whoever led before us.
            self._lost[node.name] = _Lost(since=marked, marked_at=_time())
        self.nodes.enqueue(node.name)

    def _node_updated(self, old: Object, new: Object) -> None:
        self._node_changed(new)
        if self._needs_node and self.context.view.matters(old, new):
            self._try_again()

    def _try_again(self) -> None:
        """Pods that had nowhere to go may have now."""
        waiting, self._needs_node = self._needs_node, set()
        for key in sorted(waiting):
            self.pods.enqueue(key)

    def _relapse(self, name: str) -> None:
        """A node that was healing is unwell again: it was not healed."""
        lost = self._lost.get(name)
        if lost is not None and lost.healthy_at is not None:
            lost.healthy_at = None
            for pod in self.context.view.pods_on(name):
                self.pods.enqueue(pod.key)

    def _node_deleted(self, node: Object) -> None:
        self._not_ready_since.pop(node.name, None)
        self._lost.pop(node.name, None)
        self._known.discard(node.name)

    def is_lost(self, node: str) -> bool:
        """Whether a node is lost at this very moment (one that is healing is not)."""
        lost = self._lost.get(node)
        return lost is not None and lost.healthy_at is None

    async def _judge(self, name: str) -> Result | None:
        node = self.context.view.nodes.store.get(name)
        if node is None or not self.context.view.is_virtual(name):
            return None
        now = _time()
        due = self._due(name)
        if due is None:
            return await self._well(node, now, None)
        if now <= due:
            # Not judged lost yet; one that had been is well only when nothing is due for it.
            healing = name in self._lost and name not in self._not_ready_since
            return (
                await self._well(node, now, due - now) if healing else Result(requeue_after=due - now + 0.01)
            )
        if is_ready(node) and not self.heartbeats.others_are_heard(now=now):
            return Result(requeue_after=_PROOF_RETRY)
        if is_ready(node) and await self._has_renewed(name):
            return Result(requeue_after=0)
        await self._mark(node, now)
        return None

    def _due(self, name: str) -> float | None:
        """When the node is lost if nothing changes; None: nothing speaks for that."""
        not_ready = self._not_ready_since.get(name)
        moments = [self.heartbeats.stale_in(name), None if not_ready is None else not_ready + self._after]
        return min((moment for moment in moments if moment is not None), default=None)

    async def _has_renewed(self, name: str) -> bool:
        """A last look at the Lease itself: our watch might be behind."""
        try:
            lease = await self.context.client.get(resources.LEASES, name, namespace=_LEASE_NAMESPACE)
        except NotFound:
            return False
        spec = lease.get("spec") or {}
        renewed = spec.get("renewTime") or ""
        if renewed == self.heartbeats.renewed(name):
            return False
        duration = float(spec.get("leaseDurationSeconds") or 0)
        self.heartbeats.heard(name, renewed, duration=duration, now=_time())
        return True

    async def _mark(self, node: Object, now: float) -> None:
        """The node is lost: keep new pods away and move those that are there."""
        lost = self._lost.get(node.name)
        if lost is None:
            moment = self.context.now()
            self.log.warning("virtual node is lost", node=node.name, why=why_lost(node))
            if not self.context.mover.is_dry_run:
                await taint.mark(self.context.client, node, since=moment)
            self._lost[node.name] = _Lost(since=moment, marked_at=now)
        elif lost.healthy_at is not None:
            self.log.warning("virtual node is lost again", node=node.name, why=why_lost(node))
            lost.healthy_at = None
        for pod in self.context.view.pods_on(node.name):
            self.pods.enqueue(pod.key)

    async def _well(self, node: Object, now: float, next_look: float | None) -> Result | None:
        """The node is well; one that was lost is used again once it has been well for a while."""
        lost = self._lost.get(node.name)
        if lost is not None:
            self.context.mover.waiting.settle(self.name, *self.context.view.pods_on(node.name))
            if lost.healthy_at is None:
                lost.healthy_at = now
                self.log.info("virtual node answers again", node=node.name, used_again_in=self._heal_after)
            rest = lost.healthy_at + self._heal_after - now
            if rest > 0:
                return Result(requeue_after=rest)
            if not self.context.mover.is_dry_run:
                await taint.unmark(self.context.client, node)
                await self.context.memory.thaw(node.name, since=lost.since)
            del self._lost[node.name]
            self.log.info("virtual node is used again", node=node.name)
        return None if next_look is None else Result(requeue_after=next_look + 0.01)

    # --- pods -------------------------------------------------------------------------------------

    def _pod_changed(self, pod: Object) -> None:
        if self.is_lost((pod.spec or {}).get("nodeName") or ""):
            self.pods.enqueue(pod.key)

    def _due_to_go(self, key: str) -> tuple[Object, Object] | None:
        """A pod that is to be moved now, and its node; None: it is gone, or well where it is, or must stay."""
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
            or (ready_condition(node).get("reason") == _NO_READY_NODES and pods.is_ready(pod))
        ):
            self.context.mover.waiting.settle(self.name, pod)
            return None
        return pod, node

    async def _move(self, key: str) -> Result | None:
        if due := self._due_to_go(key):
            await self._bucket.acquire(due[1].name)
            due = self._due_to_go(key)  # the bucket may have kept us for minutes
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
        outcome = await self.context.mover.move(pod, request)
        if outcome.needs_node:
            self._needs_node.add(key)
        return None if outcome.retry_after is None else Result(requeue_after=outcome.retry_after)


def _time() -> float:
    return asyncio.get_running_loop().time()
