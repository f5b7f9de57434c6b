"""Carries the changes that Kubernetes allows on a running pod from the upper pod to the lower one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.client import PatchType
from controller_runtime.errors import ApiError, Invalid, NotFound, is_retryable
from controller_runtime.objects import Object, from_dict
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.pod_creation import PodCreator
from virtual_node.controllers.preconditions import patch_only
from virtual_node.controllers.records import PodRecord
from virtual_node.translate import pod_down, pod_update

_FIRST_GENERATION = 1
"""Of a pod in whose spec nothing has changed since it was created (KEP-5067; 0 where the API server counts none)."""


class PodUpdater:
    """Patches lower pods: metadata and spec, in-place resize, ephemeral containers."""

    def __init__(self, context: ClusterContext, *, creator: PodCreator) -> None:
        self._context = context
        self._creator = creator

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
        lower = record.written or lower
        upper_pod, lower_pod = upper.to_dict(), lower.to_dict()
        options = self._context.options[upper_pod["spec"]["nodeName"]]
        desired = pod_down.lower_pod(upper_pod, options)
        changes = pod_update.pod_patch(lower_pod, desired, upper_pod, options)
        main = changes.metadata_and_spec or {}
        resize = changes.resize
        is_as_created = upper.metadata.generation == _FIRST_GENERATION
        if not record.resized and pod_update.has_been_asked(lower_pod, desired, is_as_created=is_as_created):
            main = {field: change for field, change in main.items() if field != "spec"}
            resize = None
        if changes.ephemeral_containers:
            await self._creator.prepare_debugging(upper, upper_pod, changes.ephemeral_containers)
        record.synced = None  # a part of it may go down; then what was wanted before is a change, too
        patches = ((resize, "resize"), (changes.ephemeral_containers, "ephemeralcontainers"), (main, None))
        reached = await self._send(upper, lower, record, patches)
        if reached is not None:
            record.synced = upper
            record.reached = reached

    async def _send(
        self,
        upper: Object,
        lower: Object,
        record: PodRecord,
        patches: Iterable[tuple[Mapping[str, Any] | None, str | None]],
    ) -> int | None:
        """Send patches, each with its subresource, the pod's own last: it notes in an annotation what was asked for.

        Returns the generation that the lower pod has with them, 0 when something was refused; None: it is gone.

        Raises:
            ApiError: as ``follow``; whatever else could be sent was.
        """
        reached = [lower.metadata.generation]
        postponed: ApiError | None = None
        is_resize_due = False
        for patch, subresource in patches:
            if is_resize_due and subresource is None:
                patch = pod_update.without_resize(patch or {}, lower.annotations)  # noqa: PLW2901 - but for the note
            try:
                reached.append(await self._patch(lower, record, patch, subresource=subresource))
                if patch and subresource == "resize":
                    record.resized = True
                elif subresource is None:
                    record.resized = False
            except Invalid as error:
                # The lower cluster will refuse the same change for ever: say so once, keep the pod running.
                reached.append(0)
                self._refused(upper, error.message)
            except NotFound as error:
                if subresource is None or _names_the_pod(error):
                    return None  # deleted meanwhile: its event follows
                # Older than the subresource (resize came with Kubernetes 1.33): the pod keeps what it has.
                reached.append(0)
                self._refused(upper, f"it does not know pods/{subresource}")
            except ApiError as error:
                if is_retryable(error):
                    record.resized = record.resized or subresource == "resize"  # it may have arrived
                    raise
                # A quota or a policy below says no. It may change, and nothing tells when: the rest goes down now.
                self._refused(upper, error.message)
                postponed = error
                is_resize_due = is_resize_due or subresource == "resize"
        if postponed is not None:
            raise postponed
        return 0 if 0 in reached else max(reached)

    def _refused(self, upper: Object, why: str) -> None:
        self._context.recorder.event(
            upper, "Warning", "UpdateRefused", f"Lower cluster {self._context.name}: {why}"
        )

    async def _patch(
        self, lower: Object, record: PodRecord, patch: Mapping[str, Any] | None, *, subresource: str | None
    ) -> int:
        """Send a patch, if there is one; the generation that the lower pod has with it."""
        if not patch:
            return lower.metadata.generation
        # The name may be another pod's by now: that one is not to take this one's changes.
        changed = await patch_only(
            self._context.lower,
            resources.PODS,
            lower.name,
            patch,
            uid=lower.uid,
            namespace=lower.namespace,
            subresource=subresource,
            patch_type=PatchType.STRATEGIC,
        )
        if changed["metadata"].get("resourceVersion") != lower.resource_version:
            record.written = from_dict(changed)
        return int(changed["metadata"].get("generation") or 0)


def _names_the_pod(error: NotFound) -> bool:
    """Whether it is the pod that was not found; a path that a server does not know has no name in its Status."""
    return bool((error.status.get("details") or {}).get("name"))


def same_wish(old: Object, new: Object) -> bool:
    """Whether nothing that is carried below differs between two states of one upper pod."""
    return (
        old.has_spec_equal(new)
        and old.labels == new.labels
        and (old.annotations == new.annotations or _carried(old) == _carried(new))
    )


def _carried(pod: Object) -> dict[str, str]:
    return {key: value for key, value in pod.annotations.items() if key != names.ANNOTATION_LOWER_UID}
