"""Moves all pods off virtual nodes whose annotation ``virtual-node.io/drain`` requests it. Event-driven.

The request and its status are in ``clusterset/model/moving/drain.py``. A drain moves pods only off a cordoned node. If a
replacement is not Ready in time, all pods of its owner stay. The drain stops when this happens in several namespaces, so
that one tenant cannot stop it. A changed request starts the drain again: moves in progress continue, and pods that stayed
are tried again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from clusterset.model import names
from clusterset.model.moving import drain, movable, node_avoidance
from clusterset.model.moving.drain import PodState, Request
from clusterset.model.pod.conditions import is_finished
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from descheduler import pods
from descheduler.moving.departure import Departure, share
from descheduler.moving.move_reports import Move
from descheduler.strategies.base import Context, Params, Strategy

_STAYING = frozenset(
    {"not evictable", "no node", "claim", "several budgets", "replacement refused", "not recorded"}
)
"""Causes of the mover for which a pod stays until an administrator acts."""
_SETTLE = 0.3
"""Seconds for which events of a node's pods are collected."""
_POLL = 5.0
_STAYING_POLL = 30.0
_STOP_AFTER = 3
"""Number of namespaces with failed moves after which a drain stops, because the cause is probably not in the pods."""
_ENDING = 60.0
"""Seconds for which a pod counts for the wave after its deletion was requested. Also seconds after the end of its grace
period in which it must end.

A pod's author chooses the grace period, so the wave does not wait for it.
"""
_STARTING = "its replacement is not Ready yet"
_NOT_CORDONED = "the node is not cordoned"


@dataclass(slots=True)
class _Drain:
    """A node's drain in this process."""

    text: str
    """Text of the drain request."""
    moved: int = 0
    stopped: str = ""
    pods: dict[str, PodState] = field(default_factory=dict)
    """By UID: the pods that are still on the node."""
    retry_at: dict[str, float] = field(default_factory=dict)
    """UID of a pod that cannot move → monotonic time of the next attempt."""
    refused: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Owner whose pod could not move → monotonic time of the next attempt for any of its pods, and why."""
    failing: dict[str, float] = field(default_factory=dict)
    """Owner with pods that could not be moved yet → monotonic time of the first failed request."""
    failed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Owner with pods that stay because a move was undone → its namespace, and the reason."""


class Drain(Strategy):
    """Moves all pods off virtual nodes that an administrator drains."""

    name: ClassVar[str] = "Drain"

    def __init__(self, context: Context, params: Params, *, where: str = "") -> None:
        super().__init__(context, params, where=where)
        self._drains: dict[str, _Drain] = {}
        self.controller: Controller[str] = Controller(
            "drain", self._reconcile, workers=2, backoff=ExponentialBackoff(0.5, 30.0)
        )

    async def run(self) -> None:
        """Follow nodes and pods until cancelled."""
        view = self.context.view
        with (
            view.nodes.on_change(self._node_changed, self._node_changed),
            view.pods.on_change(self._pod_changed, self._pod_changed),
            self.context.mover.departures.subscribed(self._ended),
        ):
            await self.controller.run()

    def _node_changed(self, node: Object) -> None:
        if node.name in self._drains or node.annotations.keys() & {
            names.ANNOTATION_DRAIN,
            names.ANNOTATION_DRAIN_STATUS,
        }:
            self.controller.enqueue(node.name)

    def _pod_changed(self, pod: Object) -> None:
        node = pod.node_name if self._drains else None
        if node in self._drains:
            self.controller.queue.add_after(node, _SETTLE)

    def _ended(self, departure: Departure, why: str) -> None:
        found = self._drains.get(departure.node)
        if found is None:
            return
        if why and departure.request == found.text:
            text = f"{departure.pod} stays: {why}"
            owner = node_avoidance.owner_key(departure.namespace, departure.owner_uid)
            found.failed[owner] = (departure.namespace, text)
            if len({namespace for namespace, _ in found.failed.values()}) >= _STOP_AFTER:
                found.stopped = f"moves failed in {_STOP_AFTER} namespaces: {text}"
        self.controller.enqueue(departure.node)

    async def _reconcile(self, name: str) -> Result | None:
        view = self.context.view
        node = view.nodes.store.get(name)
        text = drain.requested(node.annotations) if node is not None and view.is_virtual(name) else None
        if node is None or text is None:
            if self._drains.pop(name, None):
                self.context.mover.waiting.settle(self.name, *view.pods_on(name))
                bound = view.pods.store.by_index(pods.INDEX_NODE, name)
                self.context.mover.evictor.cancel(pod.uid for pod in bound)
            if node is not None and names.ANNOTATION_DRAIN_STATUS in node.annotations:
                await self._annotate(name, None)
            return None
        found = self._drain_of(node, text)
        try:
            request = drain.parse(text)
        except ValueError as error:
            request, stopped = Request(), f"annotation {names.ANNOTATION_DRAIN} is not valid: {error}"
        else:
            is_cordoned = (node.spec or {}).get("unschedulable")
            stopped = found.stopped if is_cordoned else f"{_NOT_CORDONED}: kubectl cordon {name}"
        await self._work_through(name, found, request, stopped)
        status = drain.summary(found.pods, request=text, moved=found.moved, stopped=stopped or found.stopped)
        before = drain.status_of(node.annotations)
        if before != status and not self.context.mover.options.dry_run:
            await self._annotate(name, msgspec.json.encode(status).decode())
            self._report(node, before, status)
        if status.is_over:
            return Result(requeue_after=_STAYING_POLL) if status.staying else None
        return Result(requeue_after=_POLL)

    def _drain_of(self, node: Object, text: str) -> _Drain:
        """Return the state of a node's drain; a new state starts from the node's status annotation."""
        found = self._drains.get(node.name)
        if found is None or found.text != text:
            before = drain.status_of(node.annotations)
            found = self._drains[node.name] = _Drain(text)
            if before is not None:
                found.moved = before.moved
                found.stopped = "" if before.stopped.startswith(_NOT_CORDONED) else before.stopped
        return found

    async def _work_through(self, name: str, drain: _Drain, request: Request, stopped: str) -> None:
        """Request the move of every pod on the node that can move now, and store the state of each."""
        bound = [
            pod
            for pod in self.context.view.pods.store.by_index(pods.INDEX_NODE, name)
            if not movable.is_of_node(pod.controller) and not is_finished(pod.status)
        ]
        here = {pod.uid for pod in bound}
        for uid in drain.pods.keys() - here:
            drain.moved += 1
            del drain.pods[uid]
            drain.retry_at.pop(uid, None)
        now = asyncio.get_running_loop().time()
        drain.refused = {owner: one for owner, one in drain.refused.items() if now < one[0]}
        blocked: dict[str, str] = {}
        wave = self.context.mover.departures.wave
        moving = Counter(pod.namespace for pod in bound if self._is_in_wave(pod))
        for pod in sorted(
            pods.least_important_first(bound), key=lambda one: drain.retry_at.get(one.uid, 0.0)
        ):
            if sum(min(count, share(wave)) for count in moving.values()) >= wave:
                blocked[""] = f"{wave} pods are moving (--pods-per-wave)"
            elif moving[pod.namespace] >= share(wave):
                blocked[f"{pod.namespace}/"] = (
                    "other pods of its namespace are moving (half of --pods-per-wave)"
                )
            was_moving = self._is_in_wave(pod)
            state = await self._judge(pod, drain, request, stopped or drain.stopped, blocked)
            drain.pods[pod.uid] = state
            is_starting = state.state == "moving" and state.why.startswith(_STARTING)
            moving[pod.namespace] += is_starting and not was_moving

    def _is_in_wave(self, pod: Object) -> bool:
        """Report whether a pod counts for the wave. A deleted pod counts for ``_ENDING`` seconds, even if it ends later."""
        if pod.metadata.deletion_timestamp is None:
            return pod.uid in self.context.mover.departures.active
        return self._overdue(pod) + (pod.metadata.deletion_grace_period_seconds or 0) < _ENDING

    def _overdue(self, pod: Object) -> float:
        """Return the seconds since the end of a deleted pod's grace period."""
        ends = timestamps.parse(pod.metadata.deletion_timestamp or "")
        return (self.context.mover.now() - ends).total_seconds()

    def _unchanged(self, pod: Object) -> PodState | None:
        """Return the state of a pod that is already leaving or that the policy excludes; None: it may be moved."""
        if pod.metadata.deletion_timestamp is not None:
            if self._overdue(pod) >= _ENDING:
                return PodState(pod.key, "stays", "it was deleted, but does not end (finalizers?)")
            is_late = (pod.metadata.deletion_grace_period_seconds or 0) > _ENDING
            ends = f", {drain.ENDS_AT} {pod.metadata.deletion_timestamp}" if is_late else ""
            return PodState(pod.key, "moving", f"it is ending{ends}")
        if pod.uid in self.context.view.leaving:
            waits = self.context.mover.departures.waits.get(pod.uid)
            return PodState(pod.key, "moving", f"{_STARTING}; {waits}" if waits else _STARTING)
        if not self.concerns(pod):
            return PodState(pod.key, "stays", "the descheduler's policy excludes it")
        return None

    async def _judge(
        self, pod: Object, drain: _Drain, request: Request, stopped: str, blocked: dict[str, str]
    ) -> PodState:
        """Request the move of a pod unless it is moving or must wait; return its state."""
        if (state := self._unchanged(pod)) is not None:
            return state
        now, owner = asyncio.get_running_loop().time(), pods.owner_key(pod)
        before = drain.pods.get(pod.uid)
        is_early = before is not None and now < drain.retry_at.get(pod.uid, 0.0)
        if owner in drain.failed:
            return PodState(pod.key, "stays", drain.failed[owner][1])
        if before is not None and is_early and before.state == "stays":
            return before
        if why := stopped or blocked.get("") or blocked.get(f"{pod.namespace}/") or blocked.get(owner, ""):
            return PodState(pod.key, "waiting", why)
        until, why = drain.refused.get(owner, (0.0, ""))
        if now < until:
            return PodState(pod.key, "waiting", why)
        if before is not None and is_early:
            return before
        move = Move(
            strategy=self.name,
            reason=f"{pod.node_name} is being drained",
            avoid=False,  # the node is cordoned
            counts=False,
            timeout=request.pod_timeout_seconds,
            drain=drain.text,
            local_storage=request.delete_empty_dir_data,
        )
        outcome = await self.try_move(pod, move)
        since = drain.failing.setdefault(owner, now)
        if outcome.cause != "request failed":
            since = now
            del drain.failing[owner]
        if outcome.moved:
            return PodState(pod.key, "moving", _STARTING)
        if outcome.cause in _STAYING or now - since >= request.pod_timeout_seconds:
            drain.retry_at[pod.uid] = now + _STAYING_POLL
            return PodState(pod.key, "stays", outcome.why)
        if outcome.cause == "wave":
            blocked["" if outcome.is_total else owner] = outcome.why
        else:  # the owner's other pods would probably be refused, too; another one is tried next
            wait = outcome.retry_after or _POLL
            drain.retry_at[pod.uid] = now + wait
            drain.refused[owner] = (now + min(wait, _POLL), outcome.why)
        return PodState(pod.key, "waiting", outcome.why)

    async def _annotate(self, node: str, value: str | None) -> None:
        patch: Mapping[str, object] = {"metadata": {"annotations": {names.ANNOTATION_DRAIN_STATUS: value}}}
        await self.context.mover.client.patch(resources.NODES, node, patch)

    def _report(self, node: Object, before: drain.Status | None, status: drain.Status) -> None:
        """Record an event when the drain begins, stops or is over."""
        recorder = self.context.mover.recorder
        if before is None:
            recorder.event(node, "Normal", "DrainStarted", f"Pods are moved off {node.name}")
        if status.stopped and (before is None or before.stopped != status.stopped):
            recorder.event(node, "Warning", "DrainStopped", status.stopped)
        elif status.is_over and (before is None or not before.is_over):
            text = f"{status.moved} pods moved, {status.staying} stay"
            recorder.event(node, "Normal", "Drained", text)
