"""Deletes pods in both clusters in the right order: the upper pod is deleted after the lower pod has terminated."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from clusterset.model import names
from clusterset.model.pod.conditions import claim_names, is_finished
from controller_runtime import resources
from controller_runtime.errors import Conflict, NotFound
from controller_runtime.objects import Object
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import delete_only
from virtual_node.controllers.pods import live_reads
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.record import PodRecord
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.translate.base.ownership import mirrored_as


@dataclass(eq=False, repr=False)
class PodRemover:
    """Deletes lower pods whose upper pod is deleted or gone, and upper pods whose lower pod is gone."""

    context: ClusterContext
    status: StatusWriter
    creator: PodCreator

    async def upper_gone(self, uid: str, lower: Object | None, record: PodRecord | None) -> Result | None:
        """Delete the orphaned lower pod of an upper pod that is gone, with the lower pod's own grace period.

        Args:
            uid: the upper pod's.
            lower: its lower pod.
            record: of the upper pod; None: the cache has never shown the upper pod, so it is read live. A pod
                that the cache showed and no longer shows is gone, so deleting thousands of a Job's finished
                pods needs no such reads.

        Returns a requeue if the upper pod exists and the cache does not show it yet.
        """
        if lower is not None and lower.metadata.deletion_timestamp is None:
            if record is None and await live_reads.has_upper_pod(self.context, lower):
                return Result(requeue_after=live_reads.BEHIND)
            grace = self._grace(lower, None)
            await delete_only(self.context.lower, resources.PODS, lower, grace_period_seconds=grace)
        elif lower is None:
            # Only now, because until it has terminated, the lower pod may read every object that it references.
            self.creator.forget_pod(uid)
            last = record.last_lower if record is not None else None
            if last is not None and (live := await self._stripped(last)):
                await delete_only(self.context.lower, resources.PODS, live)
        return None

    async def upper_deleting(self, upper: Object, lower: Object | None, record: PodRecord) -> Result | None:
        """Delete the lower pod of an upper pod that is being deleted, and when that is done, the upper pod."""
        if lower is not None:
            return await self._end_lower_pod(upper, lower, record)
        made = record.lower_uid or mirrored_as(upper.annotations.get(names.ANNOTATION_LOWER_UID), upper.uid)
        live = None
        if (record.sent or made) and not record.observed:
            # The cache has never shown a lower pod, but one may have been created a moment ago, or have lost
            # its labels while we were stopped. The upper name must stay in use until that pod has terminated.
            live = await live_reads.lower_pod_of(self.context, upper, known_uid=record.lower_uid)
        if live is None and record.last_lower is not None:
            live = await self._stripped(record.last_lower)
        if live is not None:
            await self._end_lower_pod(upper, live, record)
            return Result(requeue_after=live_reads.BEHIND)
        # After our final delete request was accepted, finalizers may keep the pod for long.
        is_kept = upper.metadata.deletion_grace_period_seconds == 0
        waiting = None
        if record.last_lower is not None:
            waiting = await self.status.mirror(upper, record.last_lower, record, is_last=not is_kept)
        if upper.metadata.finalizers and not _has_ended(upper) and not _has_ended(record.last_lower):
            # The finalizer's owner still reads the result (a Job counts its pods by phase). A kubelet sets
            # a terminal phase on every pod, so set one if the lower cluster did not.
            await self.status.lost(upper, reason="Deleted", message="The pod was deleted")
        if is_kept:
            return waiting
        with contextlib.suppress(NotFound, Conflict):
            await self.context.upper.delete(
                resources.PODS, upper.name, namespace=upper.namespace, uid=upper.uid, grace_period_seconds=0
            )
        return None

    @staticmethod
    def has_outlived(lower: Object, upper: Object) -> bool:
        """Report whether the lower pod still runs and is not being deleted, although the upper pod has finished."""
        return _has_ended(upper) and not _has_ended(lower) and lower.metadata.deletion_timestamp is None

    async def upper_finished(self, upper: Object, lower: Object) -> Result:
        """Delete the running lower pod of a finished upper pod, with the lower pod's own grace period.

        A kubelet, too, stops pods that are in a terminal phase in the API (pod_workers.go, UpdatePod). A lower
        pod can outlive its upper pod if a killed process's create request arrives after the pod was reported lost.
        Both clusters are read live, because a lower pod that has just finished looks the same in a cache that
        is behind.
        """
        below = await live_reads.lower_named_as(self.context, upper)
        if below is not None and below.uid == lower.uid and not _has_ended(below):
            above = await live_reads.itself(self.context.upper, upper)
            if _has_ended(above):
                self.context.log.warning(
                    "lower pod of a finished pod is deleted", pod=lower.key, uid=upper.uid
                )
                await delete_only(self.context.lower, resources.PODS, lower)
        return Result(requeue_after=live_reads.BEHIND)

    async def reject(self, upper: Object, lower: Object, reason: str, message: str) -> Result | None:
        """Delete a lower pod that its cluster cannot schedule, and fail the upper pod.

        Returns a requeue if the lower pod has changed meanwhile: it may have a node now.
        """
        try:
            await self.context.lower.delete(
                resources.PODS,
                lower.name,
                namespace=lower.namespace,
                uid=lower.uid,
                resource_version=lower.resource_version,
            )
        except Conflict:
            return Result(requeue_after=live_reads.BEHIND)
        except NotFound:
            return None  # its delete event requeues the pod
        await self.status.lost(upper, reason=reason, message=message)
        self.context.warn(upper, reason, f"Lower cluster {self.context.name} has no room: {message}")
        return None

    async def _stripped(self, last: Object) -> Object | None:
        """Return the live lower pod if it left our cache because its labels were removed; None: gone or deleting."""
        if last.metadata.deletion_timestamp is not None:
            return None
        return await live_reads.itself(self.context.lower, last)

    def _grace(self, lower: Object, grace: int | None) -> int | None:
        """Return ``grace``; for a pod with claims, if this cluster has shared storage, at least 1 s.

        With 0 s, the API server removes the pod immediately, and its containers may still write to the volumes.
        """
        spec = lower.spec or {}
        is_shared = self.context.config.volumes.shared
        if not is_shared or not claim_names({"metadata": {"name": lower.name}, "spec": spec}):
            return grace
        wanted = spec.get("terminationGracePeriodSeconds", 30) if grace is None else grace
        return wanted if wanted > 0 else 1

    async def _end_lower_pod(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        grace = self._grace(lower, upper.metadata.deletion_grace_period_seconds)
        known = record.delete_sent
        if lower.metadata.deletion_timestamp is not None:
            known = lower.metadata.deletion_grace_period_seconds
        shortened = grace is not None and known is not None and grace < known
        if known is None or shortened:
            await delete_only(self.context.lower, resources.PODS, lower, grace_period_seconds=grace)
            record.delete_sent = grace
        return await self.status.mirror(upper, lower, record)


def _has_ended(pod: Object | None) -> bool:
    return pod is not None and is_finished(pod.status)
