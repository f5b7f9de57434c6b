"""Carries the changes that Kubernetes allows on a running pod from the upper pod to the lower one."""

from __future__ import annotations

from typing import Any

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.client import PatchType
from controller_runtime.errors import Invalid, NotFound
from controller_runtime.objects import Object
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.preconditions import patch_only
from virtual_node.controllers.records import PodRecord
from virtual_node.translate import pod_down, pod_update


class PodUpdater:
    """Patches lower pods: metadata and spec, in-place resize, ephemeral containers."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context

    async def follow(self, upper: Object, lower: Object, record: PodRecord) -> None:
        """Bring the lower pod's spec and metadata to what the upper pod asks, if that changed.

        Raises:
            ApiError: the lower cluster does not take the change for now; the caller retries.
        """
        synced = record.synced
        if synced is upper or lower.metadata.deletion_timestamp is not None:
            return
        if synced is not None and same_wish(synced, upper):
            record.synced = upper
            return
        upper_pod = upper.to_dict()
        options = self._context.options[upper_pod["spec"]["nodeName"]]
        desired = pod_down.lower_pod(upper_pod, options)
        changes = pod_update.pod_patch(lower.to_dict(), desired, upper_pod, options)
        try:
            await self._patch(lower, changes.metadata_and_spec, subresource=None)
            await self._patch(lower, changes.resize, subresource="resize")
            await self._patch(lower, changes.ephemeral_containers, subresource="ephemeralcontainers")
        except Invalid as error:
            # The lower cluster will refuse the same change for ever: say so once, keep the pod running.
            self._context.recorder.event(
                upper, "Warning", "UpdateRefused", f"Lower cluster {self._context.name}: {error.message}"
            )
        except NotFound:
            return  # deleted meanwhile: its event follows
        record.synced = upper

    async def _patch(self, lower: Object, patch: dict[str, Any] | None, *, subresource: str | None) -> None:
        if not patch:
            return
        # The name may be another pod's by now: that one is not to take this one's changes.
        await patch_only(
            self._context.lower,
            resources.PODS,
            lower.name,
            patch,
            uid=lower.uid,
            namespace=lower.namespace,
            subresource=subresource,
            patch_type=PatchType.STRATEGIC,
        )


def same_wish(old: Object, new: Object) -> bool:
    """Whether nothing that is carried below differs between two states of one upper pod."""
    return (
        old.has_spec_equal(new)
        and old.labels == new.labels
        and (old.annotations == new.annotations or _carried(old) == _carried(new))
    )


def _carried(pod: Object) -> dict[str, str]:
    return {key: value for key, value in pod.annotations.items() if key != names.ANNOTATION_LOWER_UID}
