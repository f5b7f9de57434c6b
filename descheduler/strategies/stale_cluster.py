"""Moves pods off lost clusters; a cluster that recovers is used again. Event-driven.

A virtual node is lost when it was NotReady, or its Lease was not renewed, for longer than ``staleAfterSeconds``. It gets a taint
against new pods, and pods without a lower node are moved. Pods that may run are moved only after ``moveRunningAfterSeconds`` of
silence, if another virtual node has room: their control plane may be away while they run on. All moves have a limited rate, each
after a check that the node is still lost. When the node has been healthy for 30 s, the taint is removed and pending pods may use
the node. Moved pods are not moved back, and a flapping node keeps its taint, so pods do not move back and forth. Pods that
still run in the lost cluster end when it recovers, because the virtual node deletes lower pods without an upper pod.

``LostNodes`` decides without IO. Its times are monotonic seconds, except in the ``Silence`` of the Node's annotation. A node is
stale when its Lease is silent for more than ``stale_after`` seconds; exactly that long is not enough. Three rules avoid wrong
decisions:

- Only the descheduler's clock counts: a renewal has the time at which the descheduler *saw* it.
- After a restart of the descheduler, the time begins again for all nodes.
- If *no* Lease is renewed, the upper API server is the cause. So no node is lost then, and at the first renewal after such a
  gap the time begins again for all nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from descheduler import pods
from descheduler.cluster import tainted_since, why_lost
from descheduler.moving.move_reports import Move
from descheduler.strategies.base import BY_FLAGS, Context, Params, PodQueue, Strategy

DEFAULT_LEASE_DURATION = 40.0
_RENEWALS_PER_DURATION = 4
_SLACK = 1.3
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
            context.mover.client, resources.LEASES, namespace=names.NODE_LEASES, name="node-leases"
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
        lease = await find(self.context.mover.client, resources.LEASES, name, namespace=names.NODE_LEASES)
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
        if self.is_lost(pod.node_name):
            self.pods.enqueue(pod.key)

    def _pod_to_move(self, key: str) -> tuple[Object, Object] | None:
        """Return the pod and its node if the pod must be moved; otherwise None, and it is removed from ``waiting``."""
        pod = self.context.view.pods.store.get(key)
        if pod is None:
            return None
        node = self.context.view.nodes.store.get(pod.node_name)
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


@dataclass(slots=True)
class _Lease:
    renewed: str
    seen_at: float
    duration: float


class Heartbeats:
    """Renewals of all nodes' Leases, as the watch reports them. Times are monotonic seconds."""

    def __init__(self, *, stale_after: float) -> None:
        """Create it without Leases.

        Args:
            stale_after: seconds of silence after which a node is lost. Half the Lease's duration (two renewals) is
                used if that is longer.
        """
        self._after = stale_after
        self._leases: dict[str, _Lease] = {}
        self._last_renewal = float("-inf")
        self._longest_duration = 0.0
        """Longest duration of all Leases ever seen; stored, because it is read at every renewal."""
        self.resumed_at = float("-inf")
        """When a Lease was renewed for the first time after a gap without any renewal."""

    def observe(self, node: str, renew_time: str, *, duration: float, now: float) -> None:
        """Record a Lease from the watch; do nothing if its renewTime is unchanged."""
        known = self._leases.get(node)
        if known is not None and known.renewed == renew_time:
            return
        gap = now - self._last_renewal
        self._last_renewal = now
        lease = self._leases[node] = _Lease(renew_time, now, duration or DEFAULT_LEASE_DURATION)
        self._longest_duration = max(self._longest_duration, lease.duration)
        if gap > self._longest_gap():
            self.resumed_at = now

    def forget(self, node: str) -> None:
        """Forget a deleted Lease."""
        self._leases.pop(node, None)

    def renewed(self, node: str) -> str:
        """Return the last renewTime seen of a node's Lease; empty if no Lease is known."""
        lease = self._leases.get(node)
        return lease.renewed if lease is not None else ""

    def silent_since(self, node: str) -> float | None:
        """Return when the silence of a node's Lease began; None: no Lease is known."""
        lease = self._leases.get(node)
        return None if lease is None else max(lease.seen_at, self.resumed_at)

    def stale_at(self, node: str) -> float | None:
        """Return the monotonic time at which the node is lost unless its Lease is renewed; None: no Lease is known."""
        lease, since = self._leases.get(node), self.silent_since(node)
        return None if lease is None or since is None else since + max(self._after, lease.duration / 2)

    def are_interrupted(self, *, now: float) -> bool:
        """Report whether no Lease has been renewed recently, although Leases are known: renewals may be impossible."""
        return bool(self._leases) and now - self._last_renewal > self._longest_gap()

    def _longest_gap(self) -> float:
        return (self._longest_duration or DEFAULT_LEASE_DURATION) / _RENEWALS_PER_DURATION * _SLACK


@dataclass(slots=True)
class Lost:
    """A virtual node with the taint of a lost cluster."""

    since: datetime
    """When it got the taint."""
    renewed: str | None
    """``renewTime`` of its Lease while it was silent: only a later one is a sign of health. None: it has reported that it is
    Ready."""
    recorded: Silence | None = None
    """The silence that an earlier leader has recorded; None: there is none, or the node has been healthy since."""
    silent_since: float | None = None
    """When its silence began; None: it is recovering, or this process has not seen enough silence yet."""
    healthy_at: float | None = None
    """Since when it is healthy; None: it is not."""


class LostNodes:
    """The virtual nodes with the taint of a lost cluster, and the health of all virtual nodes."""

    def __init__(self, *, stale_after: float, move_running_after: float) -> None:
        """Create it without nodes.

        Args:
            stale_after: seconds of silence after which a node is lost.
            move_running_after: seconds of silence after which pods that may run move.
        """
        self.heartbeats = Heartbeats(stale_after=stale_after)
        self.tainted: dict[str, Lost] = {}
        """By name, with recovering nodes."""
        self._after = stale_after
        self._move_running_after = move_running_after
        self._not_ready_since: dict[str, float] = {}

    def observe(self, node: Object, *, now: float) -> None:
        """Record the state of a virtual node."""
        since, lost = tainted_since(node), self.tainted.get(node.name)
        if since is not None and lost is None:
            # An earlier leader added the taint. Before pods move, this process must see the silence, too.
            recorded = silences.recorded(node.annotations)
            lost = self.tainted[node.name] = Lost(since, self.heartbeats.renewed(node.name), recorded)
        if not is_true(node.status, "Ready"):
            self._not_ready_since.setdefault(node.name, now)
            if lost is not None:
                lost.healthy_at = None
        elif self._not_ready_since.pop(node.name, None) is not None and lost is not None:
            lost.renewed = lost.recorded = lost.silent_since = None

    def forget(self, node: str) -> None:
        """Forget a deleted node."""
        self._not_ready_since.pop(node, None)
        self.tainted.pop(node, None)

    def due(self, node: str) -> float | None:
        """Return after which time the node is lost if nothing changes; None: it is Ready and has no Lease."""
        stale_at, not_ready = self.heartbeats.stale_at(node), self._not_ready(node)
        moments = [stale_at, None if not_ready is None else not_ready + self._after]
        return min((moment for moment in moments if moment is not None), default=None)

    def is_lost(self, node: str, *, now: float) -> bool:
        """Report whether pods move off a node now; False for a recovering node, and while no Lease is renewed."""
        lost, due = self.tainted.get(node), self.due(node)
        if lost is None or lost.silent_since is None or due is None:
            return False
        return due < now and not self.heartbeats.are_interrupted(now=now)

    def is_recovering(self, node: str) -> bool:
        """Report whether a node that was lost is Ready and has shown that its process runs."""
        lost = self.tainted.get(node)
        if lost is None or node in self._not_ready_since:
            return False
        return lost.healthy_at is not None or lost.renewed != self.heartbeats.renewed(node)

    def silence(self, node: Object, *, now: float, wall: datetime) -> Silence:
        """Return the silence of a node that is lost now. It may have begun before this process was the leader.

        Args:
            node: cached node.
            now: monotonic time.
            wall: wall clock.
        """
        moments = [self.heartbeats.silent_since(node.name), self._not_ready(node.name)]
        began = min((moment for moment in moments if moment is not None), default=now)
        lost, renewed = self.tainted.get(node.name), self.heartbeats.renewed(node.name)
        since = continued(
            lost.recorded if lost is not None else None,
            node.status,
            renewed,
            observed=(wall - timedelta(seconds=now - began)).replace(microsecond=0),
        )
        return Silence(since=since, running_pods_move_at=since + timedelta(seconds=self._move_running_after))

    def mark(self, node: str, silence: Silence, *, now: float, wall: datetime) -> None:
        """Record that a node is lost and has its taint."""
        lost = self.tainted.setdefault(node, Lost(wall, ""))
        lost.renewed = self.heartbeats.renewed(node)
        lost.healthy_at, lost.silent_since = None, now - (wall - silence.since).total_seconds()

    def seconds_until_move(self, node: str, *, has_lower_node: bool, now: float) -> float:
        """Return the seconds until a pod of a lost node may move; 0 or less: now."""
        since = self.tainted[node].silent_since
        return since + self._move_running_after - now if has_lower_node and since is not None else 0.0

    def lost_for(self, node: str, *, now: float) -> float:
        """Return for how many seconds a lost node is lost."""
        since = self.tainted[node].silent_since
        return 0.0 if since is None else now - since - self._after

    def _not_ready(self, node: str) -> float | None:
        """Return since when a node is not Ready, as far as its health could be reported; None: it is Ready."""
        since = self._not_ready_since.get(node)
        return None if since is None else max(since, self.heartbeats.resumed_at)


def continued(
    recorded: Silence | None, status: Mapping[str, Any] | None, renew_time: str, *, observed: datetime
) -> datetime:
    """Return when a silence began that an earlier leader may have recorded.

    The recorded time counts if no object shows that the node was healthy afterwards. Clocks that differ can only make the silence
    shorter, so that running pods move later.

    Args:
        recorded: the silence in the Node's annotation; None: no earlier leader has recorded one.
        status: the Node's status.
        renew_time: ``renewTime`` of its Lease; empty: it has none.
        observed: when the silence began as far as this process has seen.
    """
    if recorded is None:
        return observed
    ready = condition(status, "Ready")
    # A virtual node that reports that it is not Ready was Ready before. Otherwise its last report is its Lease.
    reported = (ready.get("lastTransitionTime") or "") if ready.get("status") == "False" else renew_time
    healthy = timestamps.parse(reported) if reported else recorded.since
    return min(observed, max(recorded.since, healthy))
