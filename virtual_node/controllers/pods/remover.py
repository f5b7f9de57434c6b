"""Deletion, in both directions and in the right order: the lower pod ends first, the upper object last."""

from __future__ import annotations

import contextlib

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.errors import Conflict, NotFound
from controller_runtime.objects import Object
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.pods import live_reads
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.record import PodRecord
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.translate.base.ownership import mirrored_as
from virtual_node.translate.pods import status as pod_status


class PodRemover:
    """Deletes lower pods whose upper pod is going or gone, and upper pods whose lower pod has ended."""

    def __init__(self, context: ClusterContext, *, status: StatusWriter, creator: PodCreator) -> None:
        self._context = context
        self._status = status
        self._creator = creator

    async def upper_gone(self, uid: str, lower: Object | None, record: PodRecord | None) -> Result | None:
        """The upper pod does not exist: its lower pod is an orphan and ends with its own grace period.

        Args:
            uid: the upper pod's.
            lower: its lower pod.
            record: what we know of it; None: the cache has not shown the upper pod before. It is behind no more for
                one that it has shown and shows no longer, so thousands of a Job's finished pods, which go at once,
                cost no further request.

        Returns a requeue when it does exist, and only the cache does not show it yet.
        """
        if lower is not None and lower.metadata.deletion_timestamp is None:
            if record is None and await live_reads.has_upper_pod(self._context, lower):
                return Result(requeue_after=live_reads.BEHIND)
            await live_reads.delete_below(self._context, lower, grace_period_seconds=None)
        elif lower is None:
            # Not earlier: until it has ended, the lower pod may read whatever has the names that it references.
            self._creator.release(uid)
            last = record.last_lower if record is not None else None
            if last is not None and (live := await self._stripped(last)):
                await live_reads.delete_below(self._context, live, grace_period_seconds=None)
        return None

    async def upper_deleting(self, upper: Object, lower: Object | None, record: PodRecord) -> Result | None:
        """The upper pod is being deleted: pass the wish on, and finish above once it is fulfilled below."""
        if lower is not None:
            return await self._end_below(upper, lower, record)
        made = record.lower_uid or mirrored_as(upper.annotations.get(names.ANNOTATION_LOWER_UID), upper.uid)
        if (record.sent or made) and not record.observed:
            # The cache has shown none, but one may have been made a moment ago, or have lost its labels while nobody
            # looked; the name above is not free before that has ended.
            live = await live_reads.lower_named_as(self._context, upper)
            if live is not None and live_reads.is_lower_pod_of(
                self._context, upper, live, known_uid=record.lower_uid
            ):
                await self._end_below(upper, live, record)
                return Result(requeue_after=live_reads.BEHIND)
        if record.last_lower is not None and (live := await self._stripped(record.last_lower)):
            await self._end_below(upper, live, record)
            return Result(requeue_after=live_reads.BEHIND)
        if record.last_lower is not None:
            await self._status.mirror(upper, record.last_lower, record)
        if upper.metadata.finalizers and not _has_ended(upper) and not _has_ended(record.last_lower):
            # Someone still wants to read the outcome (a Job counts its pods by it): a kubelet ends every
            # pod in a terminal phase, so we do where the lower cluster did not.
            await self._status.lost(upper, reason="Deleted", message="The pod was deleted")
        if upper.metadata.deletion_grace_period_seconds == 0:
            # Our final deletion is in already; only finalizers of others keep the object.
            return None
        with contextlib.suppress(NotFound, Conflict):
            await self._context.upper.delete(
                resources.PODS, upper.name, namespace=upper.namespace, uid=upper.uid, grace_period_seconds=0
            )
        return None

    @staticmethod
    def has_outlived(lower: Object, upper: Object) -> bool:
        """Whether the lower pod works on, unasked to end, though the upper one has finished."""
        return _has_ended(upper) and not _has_ended(lower) and lower.metadata.deletion_timestamp is None

    async def upper_finished(self, upper: Object, lower: Object) -> Result:
        """The upper pod has finished and its lower one has not: it ends, with its own grace period.

        A kubelet, too, tears down what is in a terminal phase in the API (pod_workers.go, UpdatePod). Here it comes
        of a creation that a killed process had on its way, and that arrives after its successor has called the pod
        lost. Both clusters are asked: to a cache that is behind, a pod looks like that which has finished below.
        """
        below = await live_reads.lower_named_as(self._context, upper)
        if below is not None and below.uid == lower.uid and not _has_ended(below):
            above = await live_reads.itself(self._context.upper, upper)
            if _has_ended(above):
                self._context.log.warning(
                    "lower pod of a finished pod is deleted", pod=lower.key, uid=upper.uid
                )
                await live_reads.delete_below(self._context, lower, grace_period_seconds=None)
        return Result(requeue_after=live_reads.BEHIND)

    async def _stripped(self, last: Object) -> Object | None:
        """A lower pod that has left our cache without ending: somebody took our labels off, and it would run on."""
        if last.metadata.deletion_timestamp is not None:
            return None
        return await live_reads.itself(self._context.lower, last)

    async def _end_below(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        grace = upper.metadata.deletion_grace_period_seconds
        known = record.delete_sent
        if lower.metadata.deletion_timestamp is not None:
            known = lower.metadata.deletion_grace_period_seconds
        shortened = grace is not None and known is not None and grace < known
        if known is None or shortened:
            await live_reads.delete_below(self._context, lower, grace_period_seconds=grace)
            record.delete_sent = grace
        return await self._status.mirror(upper, lower, record)


def _has_ended(pod: Object | None) -> bool:
    return pod is not None and pod_status.is_finished({"status": pod.status or {}})
