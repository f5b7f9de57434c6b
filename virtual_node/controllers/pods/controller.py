"""The pod controller: each upper pod of our virtual nodes has one lower pod, whose status it mirrors.

The work queue is keyed by the *upper uid*. A pod that reuses the name of a deleted pod has another key, so
the state, status or deletion of the old pod does not affect it. Events of both clusters add that key, and
``reconcile`` reads both caches, lets ``decision`` choose one step, and takes it. It is level-triggered, so it may
run at any time and any number of times.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prometheus_client import Histogram

from clusterset.config import REJECT
from clusterset.model import names
from clusterset.model.autoscaling import MARGIN_SECONDS
from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import ApiError
from controller_runtime.objects import Object
from controller_runtime.util import event_loop
from controller_runtime.workqueue.controller import Controller, Result
from controller_runtime.workqueue.queue import WorkQueue
from virtual_node import metrics
from virtual_node.controllers.base.context import TOO_LARGE_RETRY, ClusterContext, PodCaches
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.pods import remover
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.decision import (
    Decision,
    Rules,
    Step,
    decide,
    disruption,
    node_name,
    was_ended,
)
from virtual_node.controllers.pods.record import Creation, LowerState, PodRecord
from virtual_node.controllers.pods.remover import PodRemover
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.controllers.pods.updater import PodUpdater
from virtual_node.translate.base import ownership
from virtual_node.translate.base.ownership import ownership_labels
from virtual_node.translate.pods.status import number_of_containers
from virtual_node.translate.pods.synthetic_status import DISRUPTION_TARGET, LOWER_POD_DELETED, Disruption
from virtual_node.translate.pods.waits import WaitReason

_BREATH = 100
"""Number of pods that ``adopt_all`` handles before control returns to the event loop."""
_REPLACED_AFTER = 40.0
"""Seconds for which the lower cluster may terminate a pod before the upper pod is deleted, too. Most pods end within the
default grace period of 30 s, and are reported with their result."""
_STATUS_FIRST = 1
"""Queue priority of changed lower pods, ahead of pods to create. In a burst of thousands of pods, the first
ones are reported Running while the last ones are still being created."""


@dataclass(eq=False, repr=False)
class PodController:
    """Keeps every upper pod of our virtual nodes and its lower pod in sync."""

    context: ClusterContext
    caches: PodCaches
    lower_nodes: Informer
    queue: WorkQueue[str]
    """Uids of upper pods, which all that a pod waits for is added to."""
    creator: PodCreator
    updater: PodUpdater
    status: StatusWriter
    _records: dict[str, PodRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Register handlers on the caches."""
        config, settings = self.context.config, self.context.settings
        self._rules = Rules(
            rejects=config.on_unschedulable == REJECT,
            provision={
                name: node.autoscaling.provision_seconds + MARGIN_SECONDS
                for name, node in self.context.nodes.items()
                if node.autoscaling is not None
            },
        )
        self._remover = PodRemover(self.context, status=self.status, waits=self.creator.delays.waits)
        self.controller = Controller(
            self.queue.name, self.reconcile, workers=settings.pod_sync_workers, queue=self.queue
        )
        self._watch_caches()

    async def resync(self, period: float) -> None:
        """Enqueue every pod once per ``period`` seconds, in case an event was missed; also lower pods without upper pod."""
        while True:
            await asyncio.sleep(period)
            for informer in self.caches.upper.values():
                for pod in informer.store.list():
                    self.queue.add(pod.uid)
            for pod in self.caches.lower.store.list():
                if uid := pod.labels.get(names.LABEL_UPPER_UID):
                    self.queue.add(uid)

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

    def _watch_caches(self) -> None:
        queue = self.queue

        def upper_changed(pod: Object) -> None:
            queue.add(pod.uid)

        def lower_changed(pod: Object) -> None:
            if uid := pod.labels.get(names.LABEL_UPPER_UID):
                record = self._records.get(uid)
                if record is not None and not record.status.changed_at:
                    record.status.changed_at = event_loop.now()
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
            self.creator.delays.refusals.freed(pod.namespace)
            uid = pod.labels.get(names.LABEL_UPPER_UID)
            if not uid:
                return
            if (record := self._records.get(uid)) is not None:
                upper = self.caches.upper_pod(uid)
                spec = {} if upper is None else upper.spec or {}
                record.saw_deletion(pod, containers=number_of_containers(spec))
            queue.add(uid, priority=_STATUS_FIRST)
            # The name is free now, and an upper pod of the same name may be waiting for it.
            successor = self.caches.upper_by_name(ownership.upper_namespace(pod), pod.name)
            if successor is not None and successor.uid != uid:
                queue.add(successor.uid)

        for informer in self.caches.upper.values():
            informer.add_handler(
                on_add=lambda pod, _initial: upper_changed(pod),
                on_update=self._upper_updated,
                on_delete=upper_changed,
            )
        self.caches.lower.add_handler(
            on_add=lambda pod, _initial: lower_changed(pod),
            on_update=lower_updated,
            on_delete=lower_deleted,
        )

    def _upper_updated(self, old: Object, new: Object) -> None:
        """Queue a changed upper pod, unless the change is our own, nothing follows from it, and nothing waits for it."""
        record, uid = self._records.get(new.uid), new.uid
        if record is None or not record.status.is_own_write(old, new) or self.controller.is_waiting(uid):
            self.queue.add(uid)
        elif record.spec.synced is old:
            record.spec.synced = new  # the lower pod matches it, too, and the older state can be freed

    def _note_end(self, old: Object, new: Object) -> None:
        """Retry pods that wait for a quota when a lower pod has finished."""
        if not old.has_status_equal(new) and is_finished(new.status):
            self.creator.delays.refusals.freed(new.namespace)

    async def reconcile(self, uid: str) -> Result | None:
        """Take one step for the upper pod of that uid, and measure it."""
        upper = self.caches.upper_pod(uid)
        if upper is None:
            return await self._reconcile(uid, None, self.caches.lower_pod(uid))
        lower = self.caches.lower_of(upper)
        with self._work(upper, lower).time():
            return await self._reconcile(uid, upper, lower)

    def _work(self, upper: Object, lower: Object | None) -> Histogram:
        """Return the measure of a step for a pod, with the operation as a kubelet names it."""
        name = upper.node_name
        operation = "kill" if upper.metadata.deletion_timestamp else "create" if lower is None else "sync"
        return self.context.pod_work[name].labels(operation)

    async def _reconcile(self, uid: str, upper: Object | None, lower: Object | None) -> Result | None:
        record = self._record(uid, upper)
        if upper is not None and lower is not None:
            if lower.uid == record.lower.given_up:
                lower = None  # the cache is behind
            else:
                record.saw(lower)
        again = None
        if upper is not None and lower is not None:
            again = self.creator.delays.waits.check(upper, lower, record.waiting)
        decided = decide(
            upper,
            lower,
            record.lower,
            rules=self._rules,
            now=datetime.now(UTC),
            waited=record.creation.waited(event_loop.now()),
            is_stuck=self._is_stuck(uid, lower, record),
        )
        if decided.step is not Step.CREATE:
            # This pod is not retried, so other pods of the namespace must not wait for its retry.
            self.creator.delays.refusals.forget(uid)
        for seconds in (decided.again, again):
            if seconds is not None:
                self.queue.add_after(uid, seconds)
        if upper is None:
            result = await self._without_upper(decided.step, uid, lower, record)
            self._records.pop(uid, None)
            return result
        if lower is None:
            return await self._without_lower(decided.step, upper, record)
        return await self._with_both(decided, upper, lower, record)

    def _is_stuck(self, uid: str, lower: Object | None, record: PodRecord) -> bool:
        """Report whether a lower pod that is being deleted does not end, or takes long; otherwise look again in time."""
        if lower is None or lower.metadata.deletion_timestamp is None:
            return False
        now = event_loop.now()
        record.lower.terminating_since = record.lower.terminating_since or now
        left = record.lower.terminating_since + _REPLACED_AFTER - now
        if left > 0:
            self.queue.add_after(uid, left)
        return left <= 0 or bool(record.waiting.reported)

    def _record(self, uid: str, upper: Object | None) -> PodRecord:
        record = self._records.get(uid)
        if record is None:
            if upper is None:
                return PodRecord(LowerState(has_seen_upper=False))
            now = event_loop.now()
            record = self._records[uid] = PodRecord(creation=Creation(wanted_at=now))
        return record

    async def _without_upper(
        self, step: Step, uid: str, lower: Object | None, record: PodRecord
    ) -> Result | None:
        if lower is not None and step is not Step.NOTHING:
            return await self._remover.delete_orphan(lower, is_certain=step is Step.DELETE_ORPHAN)
        if step is Step.FORGET:
            # Only now, because until it has terminated, the lower pod may read every object that it references.
            self.creator.forget_pod(uid)
            await self._remover.delete_stripped(record.lower.last)
        return None

    async def _without_lower(self, step: Step, upper: Object, record: PodRecord) -> Result | None:
        match step:
            case Step.CREATE:
                return await self.creator.create(upper, record)
            case Step.EXPIRE:
                await self.status.expired(upper)
            case Step.WAIT_UNTIL_READ:
                return await self.creator.delays.wait_until_read(upper, record)
            case Step.REPORT_LOST | Step.CONFIRM_GONE:
                return await self._lower_missing(upper, record)
            case Step.END_UPPER:
                return await self._remover.end_upper(upper, record)
        return None

    async def _with_both(
        self, decided: Decision, upper: Object, lower: Object, record: PodRecord
    ) -> Result | None:
        match decided.step:
            case Step.REPORT_LOST:
                return await self._report_ended(upper, lower, record)
            case Step.END_LOWER:
                return await self._remover.end_lower(upper, lower, record)
            case Step.DELETE_UPPER:
                return await self._delete_upper(upper, lower, record)
            case Step.DELETE_OUTLIVED:
                return await self._remover.delete_outlived(upper, lower)
            case Step.REJECT:
                return await self._remover.reject(upper, lower, *decided.rejection)
            case Step.GIVE_UP_NODE:
                if not await self._remover.give_up_node(upper, lower):
                    return Result(requeue_after=remover.BEHIND)
                # From here on, treat the pod as if it never had a lower pod.
                self._records[upper.uid] = PodRecord(LowerState(given_up=lower.uid))
                return Result(requeue_after=0)
            case Step.MIRROR_STATUS:
                self.creator.adopt(upper, lower)
                await self.status.mirror(upper, lower, record)
                return Result(requeue_after=TOO_LARGE_RETRY)
        return await self._follow(upper, lower, record)

    async def _follow(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        """Apply spec changes to the lower pod and mirror its status."""
        if (undone := await self.creator.undo_unanswered(upper, lower, record)) is not None:
            return undone
        self.creator.adopt(upper, lower)
        try:
            await self.updater.follow(upper, lower, record.spec)
        except ApiError:
            # The update is retried, maybe for long (e.g. a policy of the lower cluster refuses it), so
            # mirror the status now.
            await self.status.mirror(upper, lower, record)
            raise
        return await self.status.mirror(upper, lower, record)

    async def _lower_missing(self, upper: Object, record: PodRecord) -> Result | None:
        """Confirm live that a lower pod that is not in the cache is gone, then report its end unless that is done."""
        live = await remover.lower_pod_of(self.context, upper, known_uid=record.lower.uid)
        if live is not None:
            await self._claim_again(upper, live)
            # The cache may be behind. Then the missing event requeues the pod, and this requeue is only a safeguard.
            return Result(requeue_after=remover.BEHIND)
        if is_finished(upper.status):
            record.lower.is_gone = True
            return None
        last = record.lower.last
        if last is not None and is_finished(last.status):
            if not was_ended(last, record.lower):
                return await self.status.mirror(upper, last, record)
            return await self._report_ended(upper, last, record)
        # What the lower cluster announced before it removed the pod counts first.
        announced = condition(last.status, DISRUPTION_TARGET) if last is not None else {}
        cause = (str(announced.get("reason") or ""), str(announced.get("message") or ""))
        if announced.get("status") != "True":
            cause = await self._disruption(upper, last)
        message = self._deleted(last) if not cause[1] else f"{self._deleted(last)}: {cause[1]}"
        await self.status.lost(upper, reason=LOWER_POD_DELETED, message=message, disruption=cause)
        self._note_lost(upper, record, message, is_disruption=bool(cause[0]))
        return None

    async def _report_ended(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        """Mirror the last status of a lower pod that ended because it was deleted in the lower cluster, as that of a lost pod."""
        waiting = await self.status.mirror(upper, lower, record, lost=self._deleted(lower))
        if waiting is None:
            self._note_lost(upper, record, self._deleted(lower))
        return waiting

    async def _delete_upper(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        """Delete the upper pod of a lower pod that is being deleted and does not end, such as one on a lost node.

        On a real node, the pod itself is deleted. Its controller then creates another pod at once, or, as a StatefulSet,
        when the end of this one is confirmed. The upper pod keeps its name until then.
        """
        if record.lower.has_ended_upper:
            return await self.status.mirror(upper, lower, record)  # our cache does not show the deletion yet
        try:
            record.lower.has_ended_upper = await self._remover.delete_upper(upper, lower)
        except ApiError:
            # An admission webhook may refuse it for long, so mirror the status now.
            await self.status.mirror(upper, lower, record)
            raise
        if record.lower.has_ended_upper:
            message = f"{self._deleted(lower)}, and has not ended yet, so it is deleted here, too"
            is_disruption = (
                is_true(lower.status, DISRUPTION_TARGET) or record.waiting.reason == WaitReason.NODE
            )
            self._note_lost(upper, record, message, is_disruption=is_disruption)
        return Result(requeue_after=remover.BEHIND)

    async def _disruption(self, upper: Object, last: Object | None) -> Disruption:
        name = node_name(upper, last)
        node = await remover.lower_node(self.context, self.lower_nodes, name) if name else None
        return disruption(upper, last, node, is_restored=self._is_restored(last))

    def _is_restored(self, last: Object | None) -> bool:
        """Report whether the lower cluster is at an earlier revision than the state in which its pod was last seen."""
        try:
            return last is not None and int(self.caches.lower.resource_version) < int(last.resource_version)
        except ValueError:
            return False

    def _deleted(self, lower: Object | None) -> str:
        message = f"The pod was deleted in the lower cluster {self.context.name}"
        by = "" if lower is None else ownership.lower_controller(lower)
        return f"{message}. {by} of that cluster had adopted it" if by else message

    def _note_lost(
        self, upper: Object, record: PodRecord, message: str, *, is_disruption: bool = False
    ) -> None:
        """Report by event, metric and log that a lower pod was deleted unexpectedly, and count it for its owner's back-off.

        Disruptions do not count: the pods of nodes that are removed again and again must be replaced at once.
        """
        last = record.lower.last
        if not is_disruption:
            self.creator.delays.losses.lost(
                str((upper.controller or {}).get("uid") or ""),
                created_at=record.creation.created_at,
                now=event_loop.now(),
                by="" if last is None else ownership.lower_controller(last),
            )
        # The garbage collector deletes pods if their namespace was recreated and we have not noticed.
        self.creator.namespaces.doubt(self.context.lower_namespace(upper.namespace))
        self.context.warn(upper, LOWER_POD_DELETED, message)
        metrics.LOST.labels(self.context.name).inc()
        self.context.log.warning("lower pod was deleted unexpectedly", pod=upper.key, uid=upper.uid)

    async def _claim_again(self, upper: Object, live: Object) -> None:
        """Restore changed ownership marks on an upper pod's lower pod, which would otherwise run unmanaged."""
        labels = ownership_labels(self.context.options[upper.spec["nodeName"]].owner, upper.uid)
        annotations = {names.ANNOTATION_UPPER_NAMESPACE: upper.namespace}
        if labels.items() <= live.labels.items() and annotations.items() <= live.annotations.items():
            return
        self.context.log.warning("lower pod lost its ownership marks; restoring them", pod=live.key)
        marks = {"labels": labels, "annotations": annotations}
        await patch_only(self.context.lower, resources.PODS, live, {"metadata": marks})
