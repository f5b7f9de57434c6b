"""Moves pods that their lower cluster cannot schedule. Event-driven, with a timer per pod.

A pod that its lower scheduler refused for longer than the threshold is moved. There is no polling: the condition
arrives by watch, the queue delays the key for the rest of the threshold, and then the pod is judged again.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from controller_runtime.objects import Object
from controller_runtime.process.flags import duration
from controller_runtime.process.settings import Positive, Setting
from controller_runtime.workqueue.controller import Result
from descheduler.moving.request import Move
from descheduler.strategies.base import BY_FLAGS, Context, Params, PodQueue, Strategy
from descheduler.view import pods, replacement, unschedulable

_WORKERS = 16


class UnschedulableParams(Params):
    """Parameters of ``Unschedulable``."""

    threshold_seconds: Annotated[
        Positive, Setting(BY_FLAGS, "--unschedulable-threshold D", parse=duration)
    ] = 180.0
    """Time for which a lower cluster may try to schedule a pod before the pod is moved. If the lower cluster adds nodes,
    at least ``autoscaling.provisionSeconds``."""
    failures: Annotated[
        list[Literal["image", "quota", "admission"]], Setting(BY_FLAGS, "--include-failures LIST")
    ] = msgspec.field(default_factory=list)
    """Failures in the lower cluster that count besides PodScheduled=False: image, quota, admission. Empty: none."""
    waiting_reasons: list[str] = msgspec.field(default_factory=list)
    """Additional reasons of waiting containers that count, such as CreateContainerError."""


class Unschedulable(Strategy):
    """Moves pods that do not start in their lower cluster."""

    name: ClassVar[str] = "Unschedulable"
    params_type: ClassVar[type[Params]] = UnschedulableParams

    def __init__(self, context: Context, params: UnschedulableParams, *, where: str = "") -> None:
        super().__init__(context, params, where=where)
        self._threshold = params.threshold_seconds
        self._failures = frozenset(params.failures)
        self._waiting = frozenset(params.waiting_reasons)
        self.controller = PodQueue(self.name.lower(), self.reconcile, workers=_WORKERS, longest_backoff=120.0)

    async def run(self) -> None:
        """Follow pods and nodes until cancelled."""
        view = self.context.view
        with (
            view.pods.on_change(self._pod_changed),
            view.nodes.add_handler(
                on_add=lambda _node, _initial: self._nodes_changed(),
                on_update=lambda old, new: self._nodes_changed() if view.matters(old, new) else None,
            ),
            self.context.mover.memory.subscribed(self._thawed),
        ):
            await self.controller.run()

    def judge(self, pod: Object) -> unschedulable.Stuck | None:
        """Return why the pod does not start; None if it starts or the parameters do not select it."""
        if not self.context.view.is_on_virtual_node(pod) or not self.concerns(pod):
            return None
        return unschedulable.find(pod, failures=self._failures, waiting=self._waiting)

    async def reconcile(self, key: str) -> Result | None:
        """Move the pod, requeue it until its threshold, or do nothing.

        Raises:
            ApiError: a request to the upper cluster failed; the caller must retry.
        """
        pod = self.context.view.pods.store.get(key)
        self.controller.needs_node.discard(key)
        if pod is None:
            return None
        if not (pod.spec or {}).get("nodeName"):
            return await self._release(pod)
        found = self.judge(pod)
        if found is None:
            return None
        waited = (self.context.mover.now() - found.since).total_seconds()
        threshold = max(self._threshold, self.context.view.provision_seconds(pod))
        if waited < threshold:
            self.context.mover.waiting.settle(self.name, pod)
            # At most the threshold, because the lower cluster's clock may be ahead by any amount.
            return Result(requeue_after=min(threshold, threshold - waited))
        reason = f"{found.reason} for {waited:.0f} s: {found.message}".rstrip(": ")
        outcome = await self.context.mover.move(pod, Move(strategy=self.name, reason=reason))
        return self.controller.result(key, outcome)

    async def _release(self, pod: Object) -> Result | None:
        """Replace or evict a pending pod if its avoidance has expired or covers all nodes."""
        if (
            not replacement.has_avoidance(pod)
            or not unschedulable.is_waiting_for_node(pod)
            or not self.concerns(pod)
        ):
            return None
        return Result(requeue_after=await self.context.releaser.release(pod))

    def _pod_changed(self, pod: Object) -> None:
        """Enqueue an added or changed pod if it is stuck or avoids nodes."""
        is_stuck = self.judge(pod) is not None
        if not is_stuck:
            self.context.mover.waiting.settle(self.name, pod)
        if is_stuck or replacement.has_avoidance(pod):
            self.controller.enqueue(pod.key)

    def _nodes_changed(self) -> None:
        self.controller.requeue_waiting()
        self._thawed()

    def _thawed(self) -> None:
        """Enqueue pending pods that avoid nodes, because nodes may have become usable."""
        for pod in self.context.view.pods.store.by_index(pods.INDEX_NODE, ""):
            if replacement.has_avoidance(pod):
                self.controller.enqueue(pod.key)
