"""Moves pods that their lower cluster cannot schedule. Event-driven, with a timer per pod.

A pod that its lower scheduler refused for longer than the threshold is moved. There is no polling: the condition
arrives by watch, the queue delays the key for the rest of the threshold, and then the pod is judged again.

The virtual node copies the lower pod's conditions to the upper pod. So PodScheduled=False of a bound upper pod means
that the *lower* scheduler has refused it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object
from controller_runtime.process.flags import duration
from controller_runtime.process.settings import Positive, Setting
from controller_runtime.workqueue.controller import Result
from descheduler import pods
from descheduler.cluster import is_open
from descheduler.moving.move_reports import Move
from descheduler.strategies.base import BY_FLAGS, Context, Params, PodQueue, Strategy

UNSCHEDULABLE = frozenset({"Unschedulable", "SchedulerError"})
IMAGE, QUOTA, ADMISSION = "image", "quota", "admission"
FAILURES = (IMAGE, QUOTA, ADMISSION)
"""Failures of the lower cluster that count only if they are configured."""

IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_QUOTA_REASON = "ExceededQuota"


@dataclass(frozen=True, slots=True)
class Stuck:
    """Why and since when a pod does not start in its lower cluster."""

    reason: str
    """One word such as Unschedulable, SchedulerError, ImagePullBackOff or ExceededQuota."""
    message: str
    since: datetime


def find(pod: Object, *, failures: Collection[str] = (), waiting: Collection[str] = ()) -> Stuck | None:
    """Return why a pod does not start in its lower cluster.

    Args:
        pod: cached upper pod.
        failures: values of ``FAILURES`` that count besides PodScheduled=False.
        waiting: additional reasons of waiting containers that count, such as CreateContainerError.

    Returns:
        None for a pod that is unbound, being deleted, started or only slow (pulling an image is not a failure).
    """
    status = pod.status or {}
    if status.get("phase") != pods.PENDING or not pods.is_active(pod) or not pod.node_name:
        return None
    scheduled = condition(status, "PodScheduled")
    moved = _moment(scheduled.get("lastTransitionTime"), pod)
    if scheduled.get("status") == "False":
        if scheduled.get("reason") in UNSCHEDULABLE:
            return Stuck(scheduled["reason"], scheduled.get("message") or "", moved)
        return None
    wanted = set(waiting) | (IMAGE_REASONS if IMAGE in failures else frozenset())
    for reason in pods.waiting_reasons(status):
        if reason in wanted:
            return Stuck(reason, status.get("message") or "", moved)
    admitted = condition(status, names.CONDITION_ADMITTED)
    if admitted.get("status") == "False":
        reason = admitted.get("reason") or "Refused"
        if (QUOTA if reason == _QUOTA_REASON else ADMISSION) in failures:
            return Stuck(
                reason, admitted.get("message") or "", _moment(admitted.get("lastTransitionTime"), pod)
            )
    return None


def is_waiting_for_node(pod: Object) -> bool:
    """Report whether the upper scheduler has found no node for the pod."""
    unbound = not pod.node_name
    return unbound and pods.is_active(pod) and condition(pod.status, "PodScheduled").get("status") == "False"


def _moment(text: str | None, pod: Object) -> datetime:
    """Return a time of a lower cluster, but at least the upper pod's creation time, because clocks differ."""
    born = pods.created(pod)
    return max(timestamps.parse(text), born) if text else born


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

    def __init__(
        self, context: Context, params: UnschedulableParams | PodLifeTimeParams, *, where: str = ""
    ) -> None:
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
                on_update=self._node_updated,
                on_delete=lambda _node: self._thawed(),
            ),
            self.context.mover.memory.subscribed(self._thawed),
        ):
            await self.controller.run()

    def judge(self, pod: Object) -> Stuck | None:
        """Return why the pod does not start; None if it starts or the parameters do not select it."""
        if not self.context.view.is_on_virtual_node(pod) or not self.concerns(pod):
            return None
        return find(pod, failures=self._failures, waiting=self._waiting)

    async def reconcile(self, key: str) -> Result | None:
        """Move the pod, requeue it until its threshold, or do nothing.

        Raises:
            ApiError: a request to the upper cluster failed; the caller must retry.
        """
        pod = self.context.view.pods.store.get(key)
        self.controller.needs_node.discard(key)
        if pod is None:
            return None
        if not pod.node_name:
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
        if not pods.has_avoidance(pod) or not is_waiting_for_node(pod) or not self.concerns(pod):
            return None
        return Result(requeue_after=await self.context.mover.release(pod))

    def _pod_changed(self, pod: Object) -> None:
        """Enqueue an added or changed pod if it is stuck or avoids nodes."""
        is_stuck = self.judge(pod) is not None
        if not is_stuck:
            self.context.mover.waiting.settle(self.name, pod)
        if is_stuck or pods.has_avoidance(pod):
            self.controller.enqueue(pod.key)

    def _node_updated(self, old: Object, new: Object) -> None:
        if self.context.view.matters(old, new):
            self._nodes_changed()
        elif is_open(old) and not is_open(new):
            self._thawed()  # a pod may avoid all nodes that are left

    def _nodes_changed(self) -> None:
        self.controller.requeue_waiting()
        self._thawed()

    def _thawed(self) -> None:
        """Enqueue pending pods that avoid nodes, because nodes may have become usable."""
        for pod in self.context.view.pods.store.by_index(pods.INDEX_NODE, ""):
            if pods.has_avoidance(pod):
                self.controller.enqueue(pod.key)


_STARTED = frozenset({"Running", "Succeeded", "Failed", "Unknown"})


class PodLifeTimeParams(Params, kw_only=True):
    """Parameters of ``PodLifeTime``."""

    max_pod_life_time_seconds: Positive
    states: list[str] = msgspec.field(default_factory=list)
    """v1alpha2: Pending, and reasons of waiting containers such as ImagePullBackOff."""
    pod_status_phases: list[str] = msgspec.field(default_factory=list)
    """v1alpha1: Pending."""
    failures: ClassVar[tuple[str, ...]] = ()

    @property
    def threshold_seconds(self) -> float:
        """Return ``UnschedulableParams.threshold_seconds``."""
        return self.max_pod_life_time_seconds

    @property
    def waiting_reasons(self) -> list[str]:
        """Return ``UnschedulableParams.waiting_reasons``."""
        return [state for state in self.states if state != "Pending"]


class PodLifeTime(Unschedulable):
    """PodLifeTime of sigs.k8s.io/descheduler as tensile-kube's policies use it: moves pods that do not start.

    ``maxPodLifeTimeSeconds`` is the threshold of ``Unschedulable``. Two things differ from tensile-kube on
    purpose. A pod that is pulling its image is not moved (``states`` may name waiting reasons for which pods are
    moved). The time begins when the lower scheduler refuses the pod, not at the pod's creation.
    """

    name: ClassVar[str] = "PodLifeTime"
    params_type: ClassVar[type[Params]] = PodLifeTimeParams

    def __init__(self, context: Context, params: PodLifeTimeParams, *, where: str = "") -> None:
        for field, values in (("states", params.states), ("podStatusPhases", params.pod_status_phases)):
            started = sorted(_STARTED & set(values))
            if started:
                raise ConfigError(
                    f"{where}.{field}: {started[0]}: pods that have started are not moved by age; write Pending"
                )
        super().__init__(context, params, where=where)
