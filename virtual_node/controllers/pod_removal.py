"""Deletion, in both directions and in the right order: the lower pod ends first, the upper object last."""

from __future__ import annotations

import contextlib

from controller_runtime import resources
from controller_runtime.controller import Result
from controller_runtime.errors import Conflict, NotFound
from controller_runtime.objects import Object
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.pod_creation import PodCreator
from virtual_node.controllers.pod_status import StatusWriter
from virtual_node.controllers.records import PodRecord
from virtual_node.translate import pod_status


class PodRemover:
    """Deletes lower pods whose upper pod is going or gone, and upper pods whose lower pod has ended."""

    def __init__(self, context: ClusterContext, *, status: StatusWriter, creator: PodCreator) -> None:
        self._context = context
        self._status = status
        self._creator = creator

    async def upper_gone(self, uid: str, lower: Object | None) -> None:
        """The upper pod does not exist: its lower pod is an orphan and ends with its own grace period."""
        self._creator.release(uid)
        if lower is None or lower.metadata.deletion_timestamp is not None:
            return
        await self._delete_below(lower, grace_period_seconds=None)

    async def upper_deleting(self, upper: Object, lower: Object | None, record: PodRecord) -> Result | None:
        """The upper pod is being deleted: pass the wish on, and finish above once it is fulfilled below."""
        grace = upper.metadata.deletion_grace_period_seconds
        if lower is not None:
            known = record.delete_sent
            if lower.metadata.deletion_timestamp is not None:
                known = lower.metadata.deletion_grace_period_seconds
            shortened = grace is not None and known is not None and grace < known
            if known is None or shortened:
                await self._delete_below(lower, grace_period_seconds=grace)
                record.delete_sent = grace
            return await self._status.mirror(upper, lower, record)
        if record.last_lower is not None:
            await self._status.mirror(upper, record.last_lower, record)
        if upper.metadata.finalizers and not _has_ended(upper) and not _has_ended(record.last_lower):
            # Someone still wants to read the outcome (a Job counts its pods by it): a kubelet ends every
            # pod in a terminal phase, so we do where the lower cluster did not.
            await self._status.lost(upper, reason="Deleted", message="The pod was deleted")
        if grace == 0:
            # Our final deletion is in already; only finalizers of others keep the object.
            return None
        with contextlib.suppress(NotFound, Conflict):
            await self._context.upper.delete(
                resources.PODS, upper.name, namespace=upper.namespace, uid=upper.uid, grace_period_seconds=0
            )
        return None

    async def _delete_below(self, lower: Object, *, grace_period_seconds: int | None) -> None:
        # Gone already, or the name belongs to another pod by now: not ours to delete.
        with contextlib.suppress(NotFound, Conflict):
            await self._context.lower.delete(
                resources.PODS,
                lower.name,
                namespace=lower.namespace,
                uid=lower.uid,
                grace_period_seconds=grace_period_seconds,
            )


def _has_ended(pod: Object | None) -> bool:
    return pod is not None and pod_status.is_finished({"status": pod.status or {}})
