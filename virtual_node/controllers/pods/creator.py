"""Creates lower pods after their dependencies, and reports on the upper pod why one cannot be created."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from clusterset.admission import Refusal
from clusterset.model.pod import own_annotations
from controller_runtime import resources
from controller_runtime.apimachinery.translation_budget import TooLargeError, TranslationBudget
from controller_runtime.errors import (
    AlreadyExists,
    ApiError,
    ConnectionFailed,
    NotConnected,
    NotFound,
    RequestTooLarge,
    is_retryable,
)
from controller_runtime.objects import Object, from_dict
from controller_runtime.util.responsive import run_apart
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base.caches import shrink_large
from virtual_node.controllers.base.context import TOO_LARGE_RETRY, ClusterContext
from virtual_node.controllers.base.preconditions import delete_only
from virtual_node.controllers.base.problems import (
    NAMESPACE_PROBLEMS,
    TOO_LARGE,
    Problem,
    namespace_too_large,
)
from virtual_node.controllers.copies.facade import Follow
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.pods import live_reads
from virtual_node.controllers.pods.losses import Losses
from virtual_node.controllers.pods.record import Creation, PodRecord, has_same_mirrored_fields
from virtual_node.controllers.pods.refusals import Refusals
from virtual_node.controllers.pods.service_links import ServiceLinks
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.controllers.pods.waiting import WaitReporter
from virtual_node.controllers.tokens import IdentityController
from virtual_node.controllers.volumes.facade import Volumes
from virtual_node.translate.base import ownership
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.pods import lower_pod, synthetic_status, waits
from virtual_node.translate.pods.waits import Wait

_CONFLICT_RETRY = 30.0
"""Seconds between two tries while an unmanaged lower pod has the name, because its deletion causes no event here."""
_PREDECESSOR_RETRY = 5.0
"""Seconds until a retry while an older lower pod of that name terminates; normally its delete event comes earlier."""
_DEPENDENCY_RETRY = 60.0
"""Seconds until a retry while a dependency is missing; its watch normally requeues the pod earlier."""
_SERVER_ERROR = 500
"""HTTP status from which an error is the server's. It may pass without a change."""
_TOO_LARGE_CHECK = 60.0
"""Seconds until a check whether a pod that was too large, or an object that it is translated with, has changed."""


@dataclass(frozen=True, slots=True)
class _Translated:
    """An upper pod and the lower pod to create for it, without Service variables."""

    upper_pod: dict[str, Any]
    body: dict[str, Any]
    """Empty if the pod may not run."""
    refusal: Refusal | None
    """Why the pod may not run in this lower cluster; None: it may."""
    budget: TranslationBudget
    """What is left for the Service variables."""


@dataclass(eq=False, repr=False)
class PodCreator:
    """Creates a lower pod, dependencies first."""

    context: ClusterContext
    namespaces: Namespaces
    dependencies: DependencyController
    identities: IdentityController
    volumes: Volumes | None
    service_links: ServiceLinks
    status: StatusWriter
    follow: Follow
    refusals: Refusals
    waits: WaitReporter
    losses: Losses = field(default_factory=Losses)

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._lag = metrics.MIRROR_SECONDS.labels(self.context.name, "down")

    def adopt(self, upper: Object, lower: Object) -> None:
        """Keep the dependencies of a lower pod that an earlier process created."""
        self.dependencies.claim(upper, lower)

    def found_at_start(self, upper: Object, lower: Object) -> None:
        """Keep the dependencies of a lower pod found at start, and recreate a token Secret deleted while no process ran."""
        self.adopt(upper, lower)
        self.identities.adopt(upper)

    async def wait_until_read(self, upper: Object, record: PodRecord) -> Result:
        """Report that a pod's namespace is too large, so that the pod is kept as a stub and cannot be created."""
        limit = self.context.settings.limits.cache_bytes_per_namespace
        problem = namespace_too_large(upper.namespace, "this pod is not read", limit)
        await self._wait_for(upper, record, problem)
        return Result(requeue_after=TOO_LARGE_RETRY)

    def forget_pod(self, uid: str) -> None:
        """Remove what only this pod needed in the lower cluster; its upper pod is gone."""
        self.dependencies.forget_pod(uid)
        self.identities.forget_pod(uid)
        self.refusals.forget(uid)
        self.follow.forget_pod(uid)
        if self.volumes is not None:
            self.volumes.forget_pod(uid)

    def _translated(self, upper: Object, options: PodOptions) -> _Translated:
        """Translate a pod, without IO.

        Raises:
            TooLargeError: the translation exceeds its budget.
        """
        upper_pod, budget = upper.to_dict(), TranslationBudget()
        admitted = self.context.rules.admit(upper_pod, options, budget)
        if isinstance(admitted, Refusal):
            return _Translated(upper_pod, {}, admitted, budget)
        body = lower_pod.created(upper_pod, options, admitted, budget)
        return _Translated(upper_pod, body, None, budget)

    async def create(self, upper: Object, record: PodRecord) -> Result | None:
        """Create the lower pod, or report on the upper pod why it cannot be created yet.

        Raises:
            ApiError: a temporary error; the caller retries with back-off.
        """
        others: int | None = None
        creation = record.creation
        if creation.too_large is not None:
            # Read before the translation. The first refusal has no version, because reading it for each pod would cost
            # time, so a pod that is too large is translated twice.
            others = self._version_of_others(upper)
            refused, with_others = creation.too_large
            if others == with_others and has_same_mirrored_fields(refused, upper):
                creation.too_large = upper, others  # otherwise the older object would stay in memory
                return Result(requeue_after=_TOO_LARGE_CHECK)
            creation.too_large = None
        try:
            return await self._create(upper, record)
        except (TooLargeError, RequestTooLarge) as error:
            await self._refused(upper, record, TOO_LARGE, self.context.rules.too_large(error))
            creation.too_large = upper, others
            return Result(requeue_after=_TOO_LARGE_CHECK)

    def _version_of_others(self, upper: Object) -> int:
        """Return a hash of the other objects that a pod is translated with."""
        return hash((self.service_links.version(upper.namespace), self.dependencies.version(upper.uid)))

    async def _create(self, upper: Object, record: PodRecord) -> Result | None:
        options = self.context.options[(upper.spec or {})["nodeName"]]
        namespace = options.namespace_map(upper.namespace)
        translated = await run_apart(lambda: self._translated(upper, options), size=upper.size)
        upper_pod, body = translated.upper_pod, translated.body
        if (refusal := translated.refusal) is not None:
            if refusal.is_unschedulable:
                status = partial(
                    synthetic_status.unschedulable, message=refusal.reason, now=datetime.now(UTC)
                )
                await self._report(upper, record, "FailedScheduling", refusal.reason, status)
            else:
                await self._refused(upper, record, "NotAllowed", refusal.reason, event="NotMirrored")
            return None
        if (paused := await self._pause(upper, record, namespace, body["spec"])) is not None:
            return paused
        try:
            with self.namespaces.in_use(namespace):
                if problems := await self._missing(upper, upper_pod, options):
                    return await self._wait_for(upper, record, problems[0])
                await self.service_links.settled(upper.namespace)
                await self.service_links.add(body, upper_pod, translated.budget)
                reference = ownership.controller_reference(namespace, await self.namespaces.uid(namespace))
                body["metadata"]["ownerReferences"] = [reference]
                lower = shrink_large(from_dict(body))
                # Asked again, because others were created meanwhile.
                if (problem := self.context.no_room(upper.namespace, lower.memory)) is not None:
                    return await self._wait_for(upper, record, problem)
                with self.context.lower.caches.growing("Pod", namespace, upper.name, lower.memory):
                    created = await self._send(body, record.creation)
        except AlreadyExists:
            return await self._name_is_taken(upper, record)
        except ApiError as error:
            return await self._not_created(upper, record, body, error)
        self.refusals.created(upper.uid, record.creation)
        self._report_ignored(upper)
        self._note_created(record, created["metadata"]["uid"])
        if record.creation.wanted_at:
            self._lag.observe(record.creation.created_at - record.creation.wanted_at)
            record.creation.wanted_at = 0.0
        # Debug containers can only be added to an existing pod, so the next reconcile adds them.
        record.spec.synced = None if upper_pod["spec"].get("ephemeralContainers") else upper
        record.spec.reached = int(created["metadata"].get("generation") or 0)
        return None

    def _report_ignored(self, upper: Object) -> None:
        """Write an event about annotations that have no effect, because most pods are created without a user who sees warnings."""
        if ignored := own_annotations.problems(upper.labels, upper.annotations):
            self.context.warn(upper, own_annotations.EVENT, "; ".join(ignored))

    async def _pause(
        self, upper: Object, record: PodRecord, namespace: str, spec: dict[str, Any]
    ) -> Result | None:
        """Return the requeue of a pod that must not be tried now, because it or others were refused or lost; None: try it."""
        if waiting := self.refusals.pause(upper.uid, record.creation):
            return waiting
        if why := self.refusals.foresee(upper.uid, namespace, spec):
            message = f"Lower cluster {self.context.name} has just refused an equal pod: {why}"
            await self._refused(upper, record, "ExceededQuota", message, is_by_quota=True)
            return self.refusals.follow(upper.uid, namespace, spec)
        left = await self._back_off(upper, record)
        return Result(requeue_after=left) if left > 0 else None

    async def _not_created(
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
            now = asyncio.get_running_loop().time()
            if error.code >= _SERVER_ERROR:
                if record.waiting.left(reason, waits.SHORT, now=now) <= 0:
                    await self._refused(upper, record, reason, message)
            elif not error.code and not isinstance(error, ConnectionFailed):  # which the Node shows
                wait = waits.of_copies(error.message, cluster=self.context.name)
                if record.waiting.left(wait.reason, wait.grace, now=now) <= 0:
                    await self._report_wait(upper, record, wait)
            raise error
        is_by_quota = reason == "ExceededQuota"
        await self._refused(upper, record, reason, message, is_by_quota=is_by_quota)
        namespace, spec = body["metadata"]["namespace"], body["spec"]
        if is_by_quota:
            return self.refusals.refused_by_quota(upper.uid, namespace, spec, error.message)
        return self.refusals.refused(upper.uid, namespace, record.creation)

    @staticmethod
    def _note_created(record: PodRecord, uid: str) -> None:
        record.lower.created(uid)
        record.creation.created_at = asyncio.get_running_loop().time()

    async def _missing(self, upper: Object, upper_pod: dict[str, Any], options: PodOptions) -> list[Problem]:
        """Create what a new pod needs in the lower cluster; return what is missing or cannot be created."""
        if (problem := self.context.too_large(upper.namespace)) is not None:
            return [problem]
        if (problem := self.context.no_room(upper.namespace)) is not None:
            return [problem]
        problem = await self.namespaces.ensure(upper.namespace, is_for_new_pod=True)
        if problem is None:
            problem = await self.follow.ready(upper.namespace, upper.uid)
        if problem is not None:
            return [problem]
        problems = await self.dependencies.ensure(upper, upper_pod)
        if self.volumes is not None:
            problems += await self.volumes.ensure(upper, upper_pod)
        return problems or await self.identities.ensure(upper, upper_pod, options)

    async def _send(self, body: dict[str, Any], creation: Creation) -> dict[str, Any]:
        was_sent, creation.sent = creation.sent, True
        try:
            return await self.context.lower.create(
                resources.PODS, body, namespace=body["metadata"]["namespace"]
            )
        except NotConnected:
            creation.sent = was_sent  # this request has not reached the server
            raise
        except ApiError as error:
            if 400 <= error.code < 500:
                creation.sent = False
            raise

    async def _name_is_taken(self, upper: Object, record: PodRecord) -> Result | None:
        self.refusals.forget(upper.uid)
        existing = await live_reads.lower_named_as(self.context, upper)
        if existing is None:
            return Result(requeue_after=0)
        if live_reads.is_lower_pod_of(self.context, upper, existing, known_uid=record.lower.uid):
            # We created this pod before a restart, or by a request whose response was lost. The informer will
            # show it, unless its labels were removed.
            self._note_created(record, existing.uid)
            return Result(requeue_after=_PREDECESSOR_RETRY)
        if not ownership.is_owned(existing.labels, self.context.cluster_id):
            controller = ownership.lower_controller(existing)
            what = f"a pod {existing.key} that is not ours" + (f", but of {controller}" if controller else "")
            return await self._name_conflict(upper, record, what)
        namespace = ownership.upper_namespace(existing)
        if namespace != upper.namespace:
            what = f"a pod {existing.key} that stands for {namespace}/{upper.name}"
            return await self._name_conflict(upper, record, what)
        # The lower pod was made for an older upper pod of this name. Its deletion requeues ``upper``. The process that
        # should delete it may be gone (a virtual node removed from the configuration), so delete it here if
        # ``upper`` still exists.
        if existing.metadata.deletion_timestamp is None and await live_reads.upper_exists(
            self.context, upper.uid, existing
        ):
            await delete_only(self.context.lower, resources.PODS, existing)
        wait = self.waits.of_predecessor(existing)
        left = record.waiting.left(wait.reason, wait.grace, now=asyncio.get_running_loop().time())
        if left > 0:
            return Result(requeue_after=min(left, _PREDECESSOR_RETRY))
        await self._report_wait(upper, record, wait)
        return Result(requeue_after=_CONFLICT_RETRY)

    async def _back_off(self, upper: Object, record: PodRecord) -> float:
        """Return for how many seconds the pod must not be created, because others of its owner were lost; report it."""
        owner = upper.controller or {}
        uid, now = str(owner.get("uid") or ""), asyncio.get_running_loop().time()
        left = self.losses.pause(uid, now)
        if left > 0:
            wait = waits.of_losses(
                f"{owner.get('kind')} {owner.get('name')}",
                namespace=self.context.lower_namespace(upper.namespace),
                cluster=self.context.name,
                seconds=self.losses.delay(uid),
                by=self.losses.by(uid),
            )
            await self._report_wait(upper, record, wait)
        return left

    async def _report_wait(self, upper: Object, record: PodRecord, wait: Wait) -> None:
        status = partial(synthetic_status.pending, reason=wait.reason, message=wait.text)
        await self._report(upper, record, wait.reason, wait.text, status)

    async def _name_conflict(self, upper: Object, record: PodRecord, what: str) -> Result:
        message = (
            f"Lower cluster {self.context.name} has {what}; it is left alone. Delete or rename one of the two"
        )
        why = "NameConflict"
        status = partial(synthetic_status.pending, reason=why, message=message, pod_reason=why)
        await self._report(upper, record, why, message, status)
        return Result(requeue_after=_CONFLICT_RETRY)

    async def _wait_for(self, upper: Object, record: PodRecord, problem: Problem) -> Result:
        event, message = problem.event_reason, problem.message
        if event in NAMESPACE_PROBLEMS:
            await self._refused(upper, record, "NotAllowed", message, event=event)
        else:
            status = partial(
                synthetic_status.pending, reason=problem.waiting_reason, message=problem.waiting_message
            )
            await self._report(upper, record, event, message, status)
        return Result(requeue_after=_DEPENDENCY_RETRY)

    async def _refused(
        self,
        upper: Object,
        record: PodRecord,
        reason: str,
        message: str,
        *,
        event: str = "FailedCreate",
        is_by_quota: bool = False,
    ) -> None:
        status = partial(synthetic_status.refused, reason=reason, message=message, now=datetime.now(UTC))
        if await self._report(upper, record, event, message, status, is_by_quota=is_by_quota):
            metrics.REFUSED.labels(self.context.name, reason).inc()

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
