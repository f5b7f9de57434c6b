"""Writes upper pod statuses: what the lower cluster says, unabridged, and our own word where it says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.client import PatchType
from controller_runtime.controller import Result
from controller_runtime.errors import Conflict, Invalid, NotFound
from controller_runtime.objects import Object
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.records import PodRecord
from virtual_node.translate import pod_status

_ANNOTATION_DELAY = 1.0
"""Seconds to wait for a status worth writing before the lower uid is written for its own sake."""


class StatusWriter:
    """Patches pods/status in the upper cluster, only with what changed and only for the very pod (uid)."""

    def __init__(self, context: ClusterContext, *, node_ip: str | None = None) -> None:
        self._context = context
        self._node_ip = node_ip

    async def mirror(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        """Bring the upper status to what the lower pod's status means upstream.

        Returns a requeue when nothing but the lower uid annotation is missing: nearly always the next lower
        status comes first and takes the annotation along, which saves one write per pod.
        """
        pair = (upper.resource_version, lower.resource_version)
        if record.compared == pair:
            return None
        upper_pod = upper.to_dict()
        current = upper_pod.get("status") or {}
        desired = pod_status.upper_status(lower.to_dict(), upper_pod, node_ip=self._node_ip)
        if pod_status.is_finished(upper_pod) and desired.get("phase") not in {"Succeeded", "Failed"}:
            # A finished pod stays finished, as with a kubelet.
            record.compared = pair
            return None
        annotations: dict[str, str] = {}
        if upper.annotations.get(names.ANNOTATION_LOWER_UID) != lower.uid:
            annotations[names.ANNOTATION_LOWER_UID] = lower.uid
        patch = pod_status.status_patch(current, desired, uid=upper.uid, annotations=annotations)
        if patch is None:
            record.compared = pair
            return None
        if annotations and not patch.get("status"):
            waited = asyncio.get_running_loop().time() - record.created_at
            if waited < _ANNOTATION_DELAY:
                return Result(requeue_after=_ANNOTATION_DELAY - waited)
        await self._patch(upper, patch)
        record.compared = pair
        record.complaint = ""
        return None

    async def say(self, upper: Object, status: Mapping[str, Any]) -> None:
        """Write a status of our own making (missing dependency, refused below, lost)."""
        current = upper.status or {}
        patch = pod_status.status_patch(current, dict(status), uid=upper.uid)
        if patch is not None:
            await self._patch(upper, patch)

    async def lost(self, upper: Object, *, reason: str, message: str) -> None:
        """Report that the pod's lower half is gone for good: phase Failed, containers terminated."""
        status = pod_status.lost_status(
            upper.to_dict(), reason=reason, message=message, now=datetime.now(UTC)
        )
        await self.say(upper, status)

    async def _patch(self, upper: Object, patch: dict[str, Any]) -> None:
        try:
            await self._context.upper.patch(
                resources.PODS,
                upper.name,
                patch,
                namespace=upper.namespace,
                subresource="status",
                patch_type=PatchType.STRATEGIC,
            )
        except (NotFound, Conflict):
            # The pod is gone, or another one has its name (uid precondition): its own events follow.
            return
        except Invalid as error:
            # The upper cluster does not take this status (older validation, say). Retrying cannot help;
            # the next lower status may.
            self._context.log.warning(
                "upper cluster refuses a pod status", pod=upper.key, uid=upper.uid, error=str(error)
            )
