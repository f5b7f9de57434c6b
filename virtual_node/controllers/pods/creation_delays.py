"""What delays the creation of a lower pod: reported on its upper pod, with the time of the next try.

``refusals`` decides when a pod is tried again after a refusal or after losses of its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from clusterset.admission import Refusal
from controller_runtime.errors import (
    NAMESPACE_TERMINATING,
    ApiError,
    ConnectionFailed,
    NotFound,
    RequestTooLarge,
    is_namespace_terminating,
    is_retryable,
)
from controller_runtime.objects import Object
from controller_runtime.util import event_loop
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base.context import TOO_LARGE_RETRY, ClusterContext
from virtual_node.controllers.base.problems import (
    NAMESPACE_PROBLEMS,
    Problem,
    namespace_too_large,
)
from virtual_node.controllers.pods.record import PodRecord
from virtual_node.controllers.pods.refusals import Losses, Refusals
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.controllers.pods.wait_reporter import WaitReporter
from virtual_node.translate.pods import synthetic_status, waits
from virtual_node.translate.pods.waits import Wait

PREDECESSOR_RETRY = 5.0
"""Seconds until a retry while an older lower pod of that name terminates; normally its delete event comes earlier."""
_CONFLICT_RETRY = 30.0
"""Seconds between two tries while an unmanaged lower pod has the name, because its deletion causes no event here."""
_DEPENDENCY_RETRY = 60.0
"""Seconds until a retry while a dependency is missing; its watch normally requeues the pod earlier."""
_SERVER_ERROR = 500
"""HTTP status from which an error is the server's. It may pass without a change."""


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
            # The Node shows lost connections.
            elif is_namespace_terminating(error) or not (error.code or isinstance(error, ConnectionFailed)):
                wait = waits.of_copies(error.message, cluster=self.context.name)
                if record.waiting.left(wait.reason, wait.grace, now=now) > 0:
                    raise error
                if is_namespace_terminating(error):
                    # The namespace may never end, so this is a refusal, of which the descheduler may move the pod.
                    await self.refused(upper, record, NAMESPACE_TERMINATING, wait.text, event=wait.reason)
                else:
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
        status = partial(
            synthetic_status.pending, reason=wait.reason, message=wait.text, now=datetime.now(UTC)
        )
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
        why = synthetic_status.NAME_CONFLICT
        status = partial(
            synthetic_status.pending, reason=why, message=message, now=datetime.now(UTC), pod_reason=why
        )
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
