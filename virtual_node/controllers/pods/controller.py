"""The pod controller: each upper pod of our virtual nodes has one lower pod, whose status it mirrors.

The work queue is keyed by the *upper uid*. A pod that reuses the name of a deleted pod has another key, so
the state, status or deletion of the old pod does not affect it. Events of both clusters add that key, and
``reconcile`` reads both caches and takes one step. It is level-triggered, so it may run at any time and any
number of times.

    upper        lower          action
    ------------ -------------- ---------------------------------------------------------------
    gone         exists         delete the lower pod (uid precondition): orphan, or forced deletion
    deleting     exists         delete the lower pod with the upper grace period, keep mirroring status
    deleting     gone           write the last status, then delete the upper pod finally
    finished     gone           nothing: its status is final
    finished     not finished   delete the lower pod: its result is not used, its owner may have started another pod
    stub         exists         mirror only the status
    stub         never existed  report that the namespace is too large
    stub         existed, gone  set phase Failed
    exists       never existed  create dependencies, then the lower pod
    exists       existed, gone  set phase Failed: never start a pod twice under one uid without a trace
    exists       unschedulable  with ``onUnschedulable: Reject`` delete the lower pod, set phase Failed (with
                                ``autoscaling`` only after ``provisionSeconds``)
    exists       exists         apply spec changes to the lower pod, mirror its status
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from clusterset.config import REJECT
from clusterset.model import names
from clusterset.model.autoscaling import MARGIN_SECONDS
from clusterset.model.pod.conditions import condition, is_finished
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.namespace_budget import is_stub
from controller_runtime.errors import ApiError
from controller_runtime.objects import Object
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base.context import TOO_LARGE_RETRY, ClusterContext, PodCaches
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.pods import live_reads
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.record import PodRecord
from virtual_node.controllers.pods.remover import PodRemover
from virtual_node.controllers.pods.required_node import RequiredNode, seconds_left
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.controllers.pods.updater import PodUpdater
from virtual_node.translate.base import ownership
from virtual_node.translate.base.ownership import mirrored_as, ownership_labels
from virtual_node.translate.pods.rejection import rejection
from virtual_node.translate.pods.status import number_of_containers

_BREATH = 100
"""Number of pods that ``adopt_all`` handles before control returns to the event loop."""
_STATUS_FIRST = 1
"""Queue priority of changed lower pods, ahead of pods to create. In a burst of thousands of pods, the first
ones are reported Running while the last ones are still being created."""


@dataclass(eq=False, repr=False)
class PodController:
    """Keeps every upper pod of our virtual nodes and its lower pod in sync."""

    context: ClusterContext
    caches: PodCaches
    creator: PodCreator
    status: StatusWriter
    _records: dict[str, PodRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the work queue and register handlers on the caches."""
        self._rejects = self.context.config.on_unschedulable == REJECT
        self._updater = PodUpdater(self.context, creator=self.creator)
        self._required_node = RequiredNode(self.context)
        self._remover = PodRemover(self.context, status=self.status, creator=self.creator)
        workers = self.context.settings.pod_sync_workers
        self.controller = self.context.controller(
            "pods", self.reconcile, workers=workers, first_delay=0.1, flow=self._namespace
        )
        self.creator.refusals.attach(self.controller.queue.add_after)
        self._watch_caches()

    def enqueue(self, uid: str) -> None:
        """Add the upper pod of that uid to the work queue."""
        self.controller.queue.add(uid)

    def devices_changed(self, uid: str) -> None:
        """Compare a pod's upper status with its lower pod again, because its devices may have changed."""
        if (record := self._records.get(uid)) is not None:
            record.compared = ("", "")
        self.enqueue(uid)

    async def resync(self, period: float) -> None:
        """Enqueue every cached pod once per ``period`` seconds, in case an event was missed."""
        while True:
            await asyncio.sleep(period)
            self.enqueue_all()

    def enqueue_all(self) -> None:
        """Enqueue every pod, including pods in the lower cluster without an upper pod."""
        for informer in self.caches.upper.values():
            for pod in informer.store.list():
                self.controller.queue.add(pod.uid)
        for pod in self.caches.lower.store.list():
            if uid := pod.labels.get(names.LABEL_UPPER_UID):
                self.controller.queue.add(uid)

    async def adopt_all(self) -> None:
        """Register the dependencies of pods that have a lower pod, so that their copies are not deleted as unused.

        Call once, at start.
        """
        for informer in self.caches.upper.values():
            for number, pod in enumerate(informer.store.list()):
                if (lower := self.caches.lower_of(pod)) is not None:
                    self.creator.found_at_start(pod, lower)
                if number % _BREATH == _BREATH - 1:
                    await asyncio.sleep(0)

    def mirrored(self) -> int:
        """Return the number of upper pods that this controller handles."""
        return len(self._records)

    def _namespace(self, uid: str) -> str:
        """Return a pod's upper namespace. Namespaces take turns, so one tenant's thousands of pods do not delay others."""
        upper = self.caches.upper_pod(uid)
        if upper is not None:
            return upper.namespace
        lower = self.caches.lower_pod(uid)
        return "" if lower is None else ownership.upper_namespace(lower)

    def _watch_caches(self) -> None:
        queue = self.controller.queue

        def upper_changed(pod: Object) -> None:
            queue.add(pod.uid)

        def lower_changed(pod: Object) -> None:
            if uid := pod.labels.get(names.LABEL_UPPER_UID):
                record = self._records.get(uid)
                if record is not None and not record.changed_at:
                    record.changed_at = asyncio.get_running_loop().time()
                queue.add(uid, priority=_STATUS_FIRST)

        def lower_updated(old: Object, new: Object) -> None:
            lower_changed(new)
            self._note_end(old, new)
            uid = old.labels.get(names.LABEL_UPPER_UID)
            if uid and uid != new.labels.get(names.LABEL_UPPER_UID):
                # The label with the upper uid was removed, so in the cache the upper pod has no lower pod
                # now.
                queue.add(uid)

        def lower_deleted(pod: Object) -> None:
            self.creator.refusals.freed(pod.namespace)
            uid = pod.labels.get(names.LABEL_UPPER_UID)
            if not uid:
                return
            record = self._records.get(uid)
            if record is not None and record.lower_uid in {"", pod.uid} and pod.uid != record.given_up:
                upper = self.caches.upper_pod(uid)
                spec = {} if upper is None else upper.spec or {}
                record.saw_deletion(pod, containers=number_of_containers(spec))
            queue.add(uid, priority=_STATUS_FIRST)
            # The name is free now, and an upper pod of the same name may be waiting for it.
            successor = self.caches.upper_by_name(ownership.upper_namespace(pod), pod.name)
            if successor is not None and successor.uid != uid:
                queue.add(successor.uid)

        for informer in self.caches.upper.values():
            informer.on_change(upper_changed, upper_changed)
        self.caches.lower.add_handler(
            on_add=lambda pod, _initial: lower_changed(pod),
            on_update=lower_updated,
            on_delete=lower_deleted,
        )

    def _note_end(self, old: Object, new: Object) -> None:
        """Retry pods that wait for a quota when a lower pod has finished."""
        if not old.has_status_equal(new) and is_finished(new.status):
            self.creator.refusals.freed(new.namespace)

    async def reconcile(self, uid: str) -> Result | None:
        """Take one step for the upper pod of that uid; see the table in the module docstring."""
        upper = self.caches.upper_pod(uid)
        lower = self.caches.lower_pod(uid) if upper is None else self.caches.lower_of(upper)
        record = self._records.get(uid)
        if upper is None:
            waiting = await self._remover.upper_gone(uid, lower, record)
            if waiting is None:
                self._records.pop(uid, None)
            return waiting
        if record is None:
            record = self._records[uid] = PodRecord(wanted_at=asyncio.get_running_loop().time())
        if lower is not None and lower.uid == record.given_up:
            lower = None  # the cache is behind
        may_start = lower is None and self._may_start(upper, record)
        if not may_start:
            # This pod is not retried, so other pods of the namespace must not wait for its retry.
            self.creator.refusals.forget(uid)
        if lower is not None and (not record.observed or record.last_lower is not lower):
            record.saw(lower)
        if upper.metadata.deletion_timestamp is not None:
            return await self._remover.upper_deleting(upper, lower, record)
        if is_stub(upper):
            return await self._too_large(upper, lower, record)
        if lower is not None:
            return await self._follow(upper, lower, record)
        if may_start:
            return await self.creator.create(upper, record)
        return await self._lower_missing(upper, record) if self._has_started(upper, record) else None

    async def _too_large(self, upper: Object, lower: Object | None, record: PodRecord) -> Result | None:
        """Mirror only the status of a pod that is kept as a stub, until its namespace has room for the pod."""
        if lower is None and (self._has_started(upper, record) or is_finished(upper.status)):
            return await self._lower_missing(upper, record)
        if lower is None:
            return await self.creator.wait_until_read(upper, record)
        self.creator.adopt(upper, lower)
        await self.status.mirror(upper, lower, record)
        return Result(requeue_after=TOO_LARGE_RETRY)

    async def _follow(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        """Apply spec changes to the lower pod and mirror its status; delete it if the upper pod has finished."""
        if self._remover.has_outlived(lower, upper):
            return await self._remover.upper_finished(upper, lower)
        left = seconds_left(lower, datetime.now(UTC))
        if left == 0:
            if not await self._required_node.give_up(upper, lower):
                return Result(requeue_after=live_reads.BEHIND)
            # From here on, the pod is one that never had a lower pod.
            self._records[upper.uid] = PodRecord(given_up=lower.uid)
            return Result(requeue_after=0)
        if left is not None:
            self.controller.queue.add_after(upper.uid, left)
        if self._rejects and (why := rejection(lower.to_dict())) is not None:
            if not (seconds := self._growth_seconds(upper, lower)):
                return await self._remover.reject(upper, lower, *why)
            self.controller.queue.add_after(upper.uid, seconds)
        self.creator.adopt(upper, lower)
        try:
            await self._updater.follow(upper, lower, record)
        except ApiError:
            # The update is retried, maybe for long (e.g. a policy of the lower cluster refuses it), so
            # mirror the status now.
            await self.status.mirror(upper, lower, record)
            raise
        return await self.status.mirror(upper, lower, record)

    def _growth_seconds(self, upper: Object, lower: Object) -> float:
        """Return for how many more seconds a pod without room may wait for a new node of its lower cluster; 0: not any more."""
        growth = self.context.nodes[(upper.spec or {})["nodeName"]].autoscaling
        since = condition(lower.status, "PodScheduled").get("lastTransitionTime")
        if growth is None or not since:
            return 0.0
        limit = growth.provision_seconds + MARGIN_SECONDS
        waited = (datetime.now(UTC) - timestamps.parse(since)).total_seconds()
        # At most the limit, because the lower cluster's clock may be ahead.
        return max(0.0, min(limit, limit - waited))

    @staticmethod
    def _has_started(upper: Object, record: PodRecord) -> bool:
        """Report whether the upper pod has had a lower pod. If a user forges the annotation, only this pod fails."""
        mark = mirrored_as(upper.annotations.get(names.ANNOTATION_LOWER_UID), upper.uid)
        if mark == record.given_up:
            mark = ""
        return bool(record.lower_uid or mark or (upper.status or {}).get("startTime"))

    def _may_start(self, upper: Object, record: PodRecord) -> bool:
        """Report whether an upper pod without a lower pod may get one."""
        is_over = upper.metadata.deletion_timestamp is not None or is_finished(upper.status)
        return not is_over and not self._has_started(upper, record)

    async def _lower_missing(self, upper: Object, record: PodRecord) -> Result | None:
        """Confirm live that a lower pod that is not in the cache is gone, then report it lost."""
        has_finished = is_finished(upper.status)
        if has_finished and record.is_gone:
            return None
        live = await live_reads.lower_pod_of(self.context, upper, known_uid=record.lower_uid)
        if live is not None:
            await self._claim_again(upper, live)
            # The cache may be behind. Then the missing event requeues the pod, and this requeue is only a safeguard.
            return Result(requeue_after=live_reads.BEHIND)
        if has_finished:
            record.is_gone = True
            return None
        last = record.last_lower
        if last is not None and is_finished(last.status):
            return await self.status.mirror(upper, last, record)
        message = f"The pod was deleted in the lower cluster {self.context.name}"
        await self.status.lost(upper, reason="LowerPodDeleted", message=message)
        self.context.warn(upper, "LowerPodDeleted", message)
        metrics.LOST.labels(self.context.name).inc()
        self.context.log.warning("lower pod was deleted unexpectedly", pod=upper.key, uid=upper.uid)
        return None

    async def _claim_again(self, upper: Object, live: Object) -> None:
        """Restore changed ownership marks on an upper pod's lower pod, which would otherwise run unmanaged."""
        labels = ownership_labels(self.context.options[upper.spec["nodeName"]].owner, upper.uid)
        annotations = {names.ANNOTATION_UPPER_NAMESPACE: upper.namespace}
        if labels.items() <= live.labels.items() and annotations.items() <= live.annotations.items():
            return
        self.context.log.warning("lower pod lost its ownership marks; restoring them", pod=live.key)
        marks = {"labels": labels, "annotations": annotations}
        await patch_only(self.context.lower, resources.PODS, live, {"metadata": marks})
