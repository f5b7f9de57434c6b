"""What delays the creation of a lower pod: reported on its upper pod, with the time of the next try.

``refusals`` decides when a pod that was refused is tried again, and ``Losses`` when one whose owner lost others is.

The owner of a lost pod replaces it immediately. If a program of the lower cluster deletes each replacement, the upper cluster
gets thousands of Failed pods. So the next lower pods of the owner are delayed, as a kubelet delays containers in
CrashLoopBackOff: not after the first loss, then 10 s, doubled each time, at most 5 min.

Reports on upper pods what their lower pods wait for (``translate/pods/waits.py``), once for each cause, after a grace period.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from clusterset.admission import Refusal
from clusterset.model.pod.conditions import is_finished
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import (
    ApiError,
    ConnectionFailed,
    NotFound,
    RequestTooLarge,
    is_retryable,
)
from controller_runtime.objects import Object
from controller_runtime.util import event_loop, rate_limiter
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base.context import TOO_LARGE_RETRY, ClusterContext
from virtual_node.controllers.base.problems import (
    NAMESPACE_PROBLEMS,
    Problem,
    namespace_too_large,
)
from virtual_node.controllers.pods.record import PodRecord, Waiting
from virtual_node.controllers.pods.refusals import Refusals
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.translate.pods import synthetic_status, waits
from virtual_node.translate.pods.waits import Wait

_AGAIN = 60.0
"""Seconds until a pod that may begin to wait is looked at again, because a change of its node causes no event of the pod."""
_LATE = 5.0
"""Seconds after the end of a grace period until a lower pod counts as late: kubelets need a moment."""


@dataclass(eq=False, repr=False)
class WaitReporter:
    """Writes events about the waits of one lower cluster's pods."""

    context: ClusterContext
    nodes: Informer
    """The lower nodes."""

    def check(self, upper: Object, lower: Object, waiting: Waiting) -> float | None:
        """Report what a lower pod waits for, if it is time; return the seconds until the next check, None: no need."""
        deleted = lower.metadata.deletion_timestamp
        if deleted is None and upper.metadata.deletion_timestamp is not None:
            return None  # it is deleted next, see ``deletion_refused``
        if deleted is None and _has_started(lower):
            waiting.ends()
            return None
        if (wait := self._of_pod(lower)) is None:
            waiting.ends()
            return _AGAIN if deleted is None else max(_LATE, _seconds_until(deleted) + _LATE)
        return self._report(upper, wait, waiting)

    def of_predecessor(self, older: Object) -> Wait:
        """Return what a pod waits for if an older lower pod has its name."""
        body = older.to_dict()
        return waits.of_predecessor(body, self._node(body), cluster=self.context.name, now=datetime.now(UTC))

    def deletion_refused(self, upper: Object, lower: Object, waiting: Waiting, error: ApiError) -> None:
        """Report that the lower cluster refuses to delete a lower pod, unless it does not answer, which the Node shows."""
        if error.code:
            wait = waits.of_refused_deletion(lower.to_dict(), error.message, cluster=self.context.name)
            self._report(upper, wait, waiting)

    def _report(self, upper: Object, wait: Wait, waiting: Waiting) -> float | None:
        left = waiting.left(wait.reason, wait.grace, now=event_loop.now())
        if left > 0:
            return left
        if waiting.reported != wait.text:
            waiting.reported = wait.text
            self.context.warn(upper, wait.reason, wait.text)
            self.context.log.info(
                "pod waits", pod=upper.key, uid=upper.uid, reason=wait.reason, why=wait.message
            )
        return _AGAIN

    def _of_pod(self, lower: Object) -> Wait | None:
        body = lower.to_dict()
        return waits.of_pod(body, self._node(body), cluster=self.context.name, now=datetime.now(UTC))

    def _node(self, lower: dict[str, object]) -> dict[str, object] | None:
        spec = lower.get("spec")
        name = spec.get("nodeName") if isinstance(spec, dict) else None
        node = self.nodes.store.get(name) if name else None
        return None if node is None else node.to_dict()


def _seconds_until(deleted: str) -> float:
    try:
        return (timestamps.parse(deleted) - datetime.now(UTC)).total_seconds()
    except ValueError:
        return _AGAIN


def _has_started(lower: Object) -> bool:
    status = lower.status or {}
    return status.get("phase") == "Running" or is_finished(status)


PREDECESSOR_RETRY = 5.0
"""Seconds until a retry while an older lower pod of that name terminates; normally its delete event comes earlier."""
_CONFLICT_RETRY = 30.0
"""Seconds between two tries while an unmanaged lower pod has the name, because its deletion causes no event here."""
_DEPENDENCY_RETRY = 60.0
"""Seconds until a retry while a dependency is missing; its watch normally requeues the pod earlier."""
_SERVER_ERROR = 500
"""HTTP status from which an error is the server's. It may pass without a change."""
_FIRST, _LONGEST = 10.0, 300.0
_QUIET = 600.0
"""Seconds that a pod lived, or since the last loss, after which earlier losses do not count, as of a kubelet."""
_MOST = 4096
"""Maximum number of recorded owners. Owners with the oldest losses are removed first."""


@dataclass(slots=True)
class _Loss:
    at: float
    again: int = 0
    """Losses after the first one. Pods that are lost together count once."""
    by: str = ""


class Losses:
    """The owners that lost pods in one lower cluster, by uid."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, _Loss] = OrderedDict()

    def lost(self, owner: str, *, created_at: float, now: float, by: str = "") -> None:
        """Count the loss of a pod.

        Args:
            owner: uid of the upper pod's controller; empty: nothing creates another pod.
            created_at: when the lower pod was created; 0: unknown, long ago.
            now: the current time, of the same clock.
            by: the lower controller that had adopted the pod; empty: none.
        """
        if not owner or not created_at or now - created_at >= _QUIET:
            return
        known = self._owners.get(owner)
        if known is not None and created_at < known.at:
            known.by = known.by or by
            return  # it was lost together with others
        is_again = known is not None and now - known.at < _QUIET
        again = known.again + 1 if known is not None and is_again else 0
        self._owners[owner] = _Loss(now, again, by)
        self._owners.move_to_end(owner)
        while len(self._owners) > _MOST:
            self._owners.popitem(last=False)

    def pause(self, owner: str, now: float) -> float:
        """Return the seconds until the next lower pod of an owner may be created; 0: now."""
        known = self._owners.get(owner)
        if known is None or not known.again:
            return 0.0
        return max(0.0, known.at + self.delay(owner) - now)

    def delay(self, owner: str) -> float:
        """Return the seconds of an owner's last back-off; 0: none."""
        known = self._owners.get(owner)
        if known is None or not known.again:
            return 0.0
        return rate_limiter.exponential(known.again - 1, base=_FIRST, maximum=_LONGEST)

    def by(self, owner: str) -> str:
        """Return the lower controller that had adopted the last lost pod of an owner; empty: none, or unknown."""
        known = self._owners.get(owner)
        return "" if known is None else known.by


@dataclass(eq=False, repr=False)
class CreationDelays:
    """Reports on upper pods why they have no lower pod yet."""

    context: ClusterContext
    status: StatusWriter
    refusals: Refusals
    waits: WaitReporter
    losses: Losses = field(default_factory=Losses)

    async def wait_until_read(self, upper: Object, record: PodRecord) -> Result:
        """Report that a pod's namespace is too large, so that the pod is kept as a stub and cannot be created."""
        limit = self.context.settings.limits.cache_bytes_per_namespace
        problem = namespace_too_large(upper.namespace, "this pod is not read", limit)
        await self.wait_for(upper, record, problem)
        return Result(requeue_after=TOO_LARGE_RETRY)

    async def not_admitted(self, upper: Object, record: PodRecord, refusal: Refusal) -> None:
        """Report that the pod may not run in this lower cluster."""
        if refusal.is_unschedulable:
            status = partial(synthetic_status.unschedulable, message=refusal.reason, now=datetime.now(UTC))
            await self._report(upper, record, "FailedScheduling", refusal.reason, status)
        else:
            await self.refused(upper, record, "NotAllowed", refusal.reason, event="NotMirrored")

    async def pause(
        self, upper: Object, record: PodRecord, namespace: str, spec: dict[str, Any]
    ) -> Result | None:
        """Return the requeue of a pod that must not be tried now, because it or others were refused or lost; None: try it."""
        if waiting := self.refusals.pause(upper.uid, record.creation):
            return waiting
        if why := self.refusals.foresee(upper.uid, namespace, spec):
            message = f"Lower cluster {self.context.name} has just refused an equal pod: {why}"
            await self.refused(upper, record, "ExceededQuota", message, is_by_quota=True)
            return self.refusals.follow(upper.uid, namespace, spec)
        left = await self._back_off(upper, record)
        return Result(requeue_after=left) if left > 0 else None

    async def not_created(
        self, upper: Object, record: PodRecord, body: dict[str, Any], error: ApiError
    ) -> Result:
        """Report why the lower cluster does not accept a pod; return the requeue.

        Raises:
            ApiError: the error, if the same request may succeed later; it is reported if it lasts.
        """
        reason = synthetic_status.refusal_reason(error.reason, error.message)
        message = f"Lower cluster {self.context.name} refused the pod: {error.message}"
        if advice := waits.webhook_advice(error.message, body):
            message = f"{message}. {advice}"
        if is_retryable(error) or isinstance(error, NotFound | RequestTooLarge):
            now = event_loop.now()
            if error.code >= _SERVER_ERROR:
                if record.waiting.left(reason, waits.SHORT, now=now) <= 0:
                    await self.refused(upper, record, reason, message)
            elif not error.code and not isinstance(error, ConnectionFailed):  # which the Node shows
                wait = waits.of_copies(error.message, cluster=self.context.name)
                if record.waiting.left(wait.reason, wait.grace, now=now) <= 0:
                    await self.report_wait(upper, record, wait)
            raise error
        is_by_quota = reason == "ExceededQuota"
        await self.refused(upper, record, reason, message, is_by_quota=is_by_quota)
        namespace, spec = body["metadata"]["namespace"], body["spec"]
        if is_by_quota:
            return self.refusals.refused_by_quota(upper.uid, namespace, spec, error.message)
        return self.refusals.refused(upper.uid, namespace, record.creation)

    async def report_wait(self, upper: Object, record: PodRecord, wait: Wait) -> None:
        """Report what the pod waits for."""
        status = partial(synthetic_status.pending, reason=wait.reason, message=wait.text)
        await self._report(upper, record, wait.reason, wait.text, status)

    async def wait_for_predecessor(self, upper: Object, record: PodRecord, existing: Object) -> Result:
        """Report, after a grace period, that an older lower pod of that name terminates; return the requeue."""
        wait = self.waits.of_predecessor(existing)
        left = record.waiting.left(wait.reason, wait.grace, now=event_loop.now())
        if left > 0:
            return Result(requeue_after=min(left, PREDECESSOR_RETRY))
        await self.report_wait(upper, record, wait)
        return Result(requeue_after=_CONFLICT_RETRY)

    async def name_conflict(self, upper: Object, record: PodRecord, what: str) -> Result:
        """Report that an unmanaged lower pod has the name; return the requeue."""
        message = (
            f"Lower cluster {self.context.name} has {what}; it is left alone. Delete or rename one of the two"
        )
        why = "NameConflict"
        status = partial(synthetic_status.pending, reason=why, message=message, pod_reason=why)
        await self._report(upper, record, why, message, status)
        return Result(requeue_after=_CONFLICT_RETRY)

    async def wait_for(self, upper: Object, record: PodRecord, problem: Problem) -> Result:
        """Report a dependency that is missing or cannot be created; return the requeue."""
        event, message = problem.event_reason, problem.message
        if event in NAMESPACE_PROBLEMS:
            await self.refused(upper, record, "NotAllowed", message, event=event)
        else:
            status = partial(
                synthetic_status.unmounted,
                reason=problem.waiting_reason,
                message=problem.waiting_message,
                now=datetime.now(UTC),
            )
            await self._report(upper, record, event, message, status)
        return Result(requeue_after=_DEPENDENCY_RETRY)

    async def refused(
        self,
        upper: Object,
        record: PodRecord,
        reason: str,
        message: str,
        *,
        event: str = "FailedCreate",
        is_by_quota: bool = False,
    ) -> None:
        """Report that the lower cluster, or its configuration, refuses the pod; count a new report."""
        status = partial(synthetic_status.refused, reason=reason, message=message, now=datetime.now(UTC))
        if await self._report(upper, record, event, message, status, is_by_quota=is_by_quota):
            metrics.REFUSED.labels(self.context.name, reason).inc()

    async def _back_off(self, upper: Object, record: PodRecord) -> float:
        """Return for how many seconds the pod must not be created, because others of its owner were lost; report it."""
        owner = upper.controller or {}
        uid, now = str(owner.get("uid") or ""), event_loop.now()
        left = self.losses.pause(uid, now)
        if left > 0:
            wait = waits.of_losses(
                f"{owner.get('kind')} {owner.get('name')}",
                namespace=self.context.lower_namespace(upper.namespace),
                cluster=self.context.name,
                seconds=self.losses.delay(uid),
                by=self.losses.by(uid),
            )
            await self.report_wait(upper, record, wait)
        return left

    async def _report(
        self,
        upper: Object,
        record: PodRecord,
        reason: str,
        message: str,
        status: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        *,
        is_by_quota: bool = False,
    ) -> bool:
        """Report on the upper pod why it has no lower pod; return False if that was the last report, too.

        The event follows the status, and both are repeated if the status cannot be written.

        Args:
            upper: the upper pod.
            record: of the pod.
            reason: of the event.
            message: of the event.
            status: returns the status for an upper pod.
            is_by_quota: the pod waits for a quota, and not for something else.
        """
        if not is_by_quota:
            self.refusals.forget(upper.uid)
        if record.creation.complaint == (reason, message):
            return False
        await self.status.write_own(upper, status(upper.to_dict()))
        record.creation.complaint = (reason, message)
        self.context.warn(upper, reason, message)
        self.context.log.info("pod has to wait", pod=upper.key, uid=upper.uid, reason=reason, why=message)
        return True
