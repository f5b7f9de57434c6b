"""Applies the changes that Kubernetes allows on a running upper pod to its lower pod."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterset.model import names
from clusterset.model.overrides.applying import OverrideSet
from clusterset.model.policy.decision import Violation, summary
from controller_runtime import resources
from controller_runtime.apimachinery.translation_budget import TooLargeError, TranslationBudget
from controller_runtime.client.client import PatchType
from controller_runtime.errors import ApiError, Conflict, Invalid, NotFound, RequestTooLarge, is_retryable
from controller_runtime.objects import Object, from_dict
from controller_runtime.util.large_objects import run_apart
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.base.problems import Problem
from virtual_node.controllers.pods.creator import PodCreator
from virtual_node.controllers.pods.record import PodRecord, has_same_mirrored_fields, metadata_digest
from virtual_node.translate.pods import policy, update
from virtual_node.translate.pods.lower_pod import lower_pod as translate_pod
from virtual_node.translate.pods.lower_pod import overridden
from virtual_node.translate.pods.update import PodChanges

_FIRST_GENERATION = 1
"""Generation of a pod whose spec never changed since its creation (KEP-5067; 0 on API servers without it)."""

_Patch = tuple[Mapping[str, Any] | None, str | None]
"""A patch and its subresource."""
_DEBUGGING = "ephemeralcontainers"
_SINGLE = 8
"""Debug containers that are sent alone after a refusal. Refused ones stay in the pod, and each retry sends them again."""

_RESTORE_PAUSE = 30.0
"""Minimum seconds between two restores of one lower pod's metadata, because another client may change it
again at once."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The changes of a lower pod."""

    upper_pod: dict[str, Any]
    changes: PodChanges
    """The changes that the policy allows. Debug containers have no Service variables yet."""
    refused: list[Violation]
    """Why the other changes are not allowed."""
    budget: TranslationBudget
    """What is left for the Service variables."""


@dataclass(eq=False, repr=False)
class PodUpdater:
    """Patches lower pods: metadata and spec, in-place resize, ephemeral containers."""

    context: ClusterContext
    creator: PodCreator

    async def follow(self, upper: Object, lower: Object, record: PodRecord) -> None:
        """Update the lower pod's spec and metadata to the upper pod's, if those changed.

        Labels and annotations that were changed in the lower cluster are restored. Images and resources are
        not, because admission or an autoscaler of that cluster may have set them.

        Raises:
            ApiError: the lower cluster does not accept the change for now; the caller retries.
        """
        if lower.metadata.deletion_timestamp is not None:
            return
        shown = lower
        is_same_request = record.synced is not None and has_same_mirrored_fields(record.synced, upper)
        if is_same_request:
            record.synced = upper
            if record.followed == metadata_digest(shown):
                return
        lower = record.written or lower
        try:
            plan = await run_apart(
                functools.partial(self._plan, upper, lower, record), size=upper.size + lower.size
            )
        except TooLargeError as error:
            # Refused once, and again only after one of the two pods changes.
            self._tell_refused(upper, record, str(error))
            record.synced, record.followed, record.reached = upper, metadata_digest(shown), 0
            return
        changes, refused = plan.changes, plan.refused
        growth = update.growth(lower, changes)
        full = None if is_same_request else self.context.no_room(upper.namespace, growth)
        self._tell_refused(upper, record, _of_policy(refused) if full is None else full.message)
        if full is not None:
            raise Conflict(full.message, code=409)
        main = changes.metadata_and_spec or {}
        if is_same_request:
            await self._restore(lower, record, main)
            record.followed = metadata_digest(shown)
            return
        debugging = changes.ephemeral_containers
        waiting: dict[str, Problem] = {}
        is_spec_refused = any(not one.field.startswith("metadata.") for one in refused)
        if debugging:
            try:
                waiting = await self.creator.prepare_debugging(upper, plan.upper_pod, debugging, plan.budget)
            except TooLargeError as error:
                # The other changes do not depend on the debug containers, which users cannot remove.
                self._refused(upper, str(error))
                debugging, is_spec_refused = None, True
            self._tell_waiting(upper, record, waiting)
        if debugging and not debugging["spec"]["ephemeralContainers"]:
            debugging = None
        record.synced = None  # until all is applied; after a partial update a revert must be sent, too
        patches = ((changes.resize, "resize"), (debugging, _DEBUGGING), (main, None))
        with self.context.lower.caches.growing("Pod", lower.namespace, lower.name, max(0, growth)):
            reached = await self._send(upper, lower, record, patches)
        if reached is not None and not waiting:
            record.synced = upper
            record.followed = metadata_digest(shown)
            record.reached = 0 if is_spec_refused else reached

    def _plan(self, upper: Object, lower: Object, record: PodRecord) -> _Plan:
        """Compare a lower pod with the translation of its upper pod, without IO.

        Raises:
            TooLargeError: the translation exceeds its budget.
        """
        upper_pod, lower_pod, budget = upper.to_dict(), lower.to_dict(), TranslationBudget()
        options = self.context.options[upper_pod["spec"]["nodeName"]]
        requested = translate_pod(upper_pod, options, budget)
        desired = overridden(requested, upper_pod, options, budget)
        changes = update.pod_patch(lower_pod, desired, upper_pod, options, budget)
        asked = (
            update.pod_patch(lower_pod, requested, upper_pod, replace(options, overrides=OverrideSet()))
            if names.ANNOTATION_OVERRIDES in desired["metadata"]["annotations"]
            else None
        )
        is_as_created = upper.metadata.generation == _FIRST_GENERATION
        if not record.resized and update.is_already_requested(
            lower_pod, desired, is_as_created=is_as_created
        ):
            main = update.without_spec(changes.metadata_and_spec or {})
            changes = replace(changes, metadata_and_spec=main, resize=None)
        changes, refused = policy.allowed_changes(
            lower_pod,
            replace(changes, metadata_and_spec=changes.metadata_and_spec or {}),
            self.context.policy.of(upper.namespace),
            asked,
        )
        return _Plan(upper_pod, changes, refused, budget)

    async def _restore(self, lower: Object, record: PodRecord, changes: Mapping[str, Any]) -> None:
        """Restore labels and annotations changed in the lower cluster, at most once per ``_RESTORE_PAUSE``."""
        patch = update.without_spec(changes)
        if not record.reached:  # a change was refused, so the annotation must not list it as requested
            patch = update.without_note(patch, lower.annotations)
        if not patch:
            return
        now = asyncio.get_running_loop().time()
        if record.restored_at is not None and now - record.restored_at < _RESTORE_PAUSE:
            raise Conflict(
                f"labels or annotations of pod {lower.key} are changed repeatedly by another program",
                code=409,
            )
        record.restored_at = now
        self.context.log.warning("metadata of a lower pod was changed; it is restored", pod=lower.key)
        with contextlib.suppress(NotFound):
            await self._patch(lower, record, patch, subresource=None)

    async def _send(
        self,
        upper: Object,
        lower: Object,
        record: PodRecord,
        patches: Iterable[_Patch],
    ) -> int | None:
        """Send patches. The patch without subresource is the last, because its annotation records what was requested.

        Returns the generation at which the lower pod has the changes, or 0 if any was refused. None: the pod
        is gone.

        Raises:
            ApiError: as ``follow``; patches that the lower cluster accepts were sent.
        """
        reached = [lower.metadata.generation]
        postponed: ApiError | None = None
        is_resize_due = False
        unsent = deque(patches)
        while unsent:
            patch, subresource = unsent.popleft()
            if is_resize_due and subresource is None:
                patch = update.without_note(patch or {}, lower.annotations)
            try:
                generation, single = await self._patch_or_split(lower, record, patch, subresource)
                reached.append(generation)
                unsent.extendleft(reversed(single))
                if patch and subresource == "resize":
                    record.resized = True
                elif subresource is None:
                    record.resized = False
            except (Invalid, RequestTooLarge) as error:
                # The lower cluster always refuses this change, so report it once and keep the pod running.
                reached.append(0)
                self._refused(upper, error.message)
                if subresource is None and record.resized:
                    await self._note_resize(lower, record, patch or {})
            except NotFound as error:
                if subresource is None or _names_the_pod(error):
                    return None  # deleted meanwhile; its event requeues the pod
                # The API server does not know the subresource (resize came with Kubernetes 1.33), so the pod
                # stays as it is.
                reached.append(0)
                self._refused(upper, f"it does not know pods/{subresource}")
            except ApiError as error:
                if is_retryable(error):
                    record.resized = record.resized or subresource == "resize"  # the request may have arrived
                    raise
                # A quota or policy of the lower cluster refuses the patch. It may change without an event
                # here, so retry later and send the other patches now.
                self._refused(upper, error.message)
                postponed = error
                is_resize_due = is_resize_due or subresource == "resize"
        if postponed is not None:
            raise postponed
        return 0 if 0 in reached else max(reached)

    async def _patch_or_split(
        self, lower: Object, record: PodRecord, patch: Mapping[str, Any] | None, subresource: str | None
    ) -> tuple[int, list[_Patch]]:
        """Send a patch; return the lower pod's generation, and what to send in its place if it is refused."""
        try:
            return await self._patch(lower, record, patch, subresource=subresource), []
        except ApiError as error:
            single = _single_debuggers(patch, subresource)
            if not single or isinstance(error, NotFound) or is_retryable(error):
                raise
            return lower.metadata.generation, single

    async def _note_resize(self, lower: Object, record: PodRecord, refused: Mapping[str, Any]) -> None:
        """Record in the lower pod's annotation that a resize was applied, but the remaining change was refused.

        Without this record, a process started later would not apply a reverted resize.
        """
        note = update.without_note(refused, lower.annotations).get("metadata")
        if note:
            with contextlib.suppress(Invalid, NotFound):
                await self._patch(lower, record, {"metadata": note}, subresource=None)

    def _tell_waiting(self, upper: Object, record: PodRecord, waiting: Mapping[str, Problem]) -> None:
        """Write an event about waiting debug containers, once."""
        message = "; ".join(f"Debug container {name} waits: {one.message}" for name, one in waiting.items())
        if message and record.debugging != message:
            reason = next(iter(waiting.values())).event_reason
            self.context.warn(upper, reason, message)
        record.debugging = message

    def _tell_refused(self, upper: Object, record: PodRecord, why: str) -> None:
        """Write an event about changes that are refused without asking the lower cluster, once."""
        if why and record.refused != why:
            self._refused(upper, why)
        record.refused = why

    def _refused(self, upper: Object, why: str) -> None:
        self.context.warn(upper, "UpdateRefused", f"Lower cluster {self.context.name}: {why}")

    async def _patch(
        self, lower: Object, record: PodRecord, patch: Mapping[str, Any] | None, *, subresource: str | None
    ) -> int:
        """Send a patch, if any; return the lower pod's generation after it."""
        if not patch:
            return lower.metadata.generation
        # The name may belong to another pod by now, which must not get these changes.
        changed = await patch_only(
            self.context.lower,
            resources.PODS,
            lower,
            patch,
            resource_version=(record.written or lower).resource_version,
            subresource=subresource,
            patch_type=PatchType.STRATEGIC,
        )
        if changed["metadata"].get("resourceVersion") != lower.resource_version:
            record.wrote(from_dict(changed), lower)
        return int(changed["metadata"].get("generation") or 0)


def _names_the_pod(error: NotFound) -> bool:
    """Report whether the Status names the pod, so the pod was not found. If the path is unknown, it names none."""
    return bool((error.status.get("details") or {}).get("name"))


def _of_policy(refused: Sequence[Violation]) -> str:
    return f"its policy does not allow the change: {summary(refused)}" if refused else ""


def _single_debuggers(patch: Mapping[str, Any] | None, subresource: str | None) -> list[_Patch]:
    """Return a patch for each of the last debug containers of a patch; none if it has only one.

    Users cannot remove a debug container that the lower cluster refuses, so it must not block later ones.
    """
    added = (patch or {}).get("spec", {}).get("ephemeralContainers") or ()
    if subresource != _DEBUGGING or len(added) == 1:
        return []
    return [({"spec": {"ephemeralContainers": [container]}}, _DEBUGGING) for container in added[-_SINGLE:]]
