"""Applies the changes that Kubernetes allows on a running upper pod to its lower pod."""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from controller_runtime import resources
from controller_runtime.apimachinery import readable
from controller_runtime.apimachinery.translation_budget import TooLargeError
from controller_runtime.client.client import PatchType, find
from controller_runtime.errors import ApiError, Conflict, Invalid, NotFound, RequestTooLarge, is_retryable
from controller_runtime.objects import Object, from_dict
from controller_runtime.util import event_loop
from controller_runtime.util.event_loop import run_apart
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.base.problems import Problem, too_large
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.controllers.pods.record import SpecSync, has_same_mirrored_fields, metadata_digest
from virtual_node.controllers.pods.service_links import ServiceLinks
from virtual_node.translate.base.fields import cut
from virtual_node.translate.pods import containers, dependencies, update
from virtual_node.translate.pods.containers import DEBUGGING
from virtual_node.translate.pods.update import KnownPairs, SpecPlan

_Patch = tuple[Mapping[str, Any] | None, str | None]
"""A patch and its subresource."""
_Container = Mapping[str, Any]
_SINGLE = 8
"""Debug containers that are sent alone after a refusal. Refused ones stay in the pod, and each retry sends them again."""

_MESSAGE = 1024
"""Bytes of a refused resize's message that are kept for the status of the upper pod."""
_RESTORE_PAUSE = 30.0
"""Minimum seconds between two restores of one lower pod's metadata, because another client may change it
again at once."""


@dataclass(eq=False, repr=False)
class PodUpdater:
    """Patches lower pods: metadata and spec, in-place resize, ephemeral containers."""

    context: ClusterContext
    dependencies: DependencyController
    service_links: ServiceLinks

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._known: defaultdict[str, KnownPairs] = defaultdict(KnownPairs)
        """By virtual node."""

    async def follow(self, upper: Object, lower: Object, sync: SpecSync) -> None:
        """Update the lower pod's spec and metadata to the upper pod's, if those changed.

        What was changed in the lower cluster stays until it changes in the upper cluster, because admission, a network
        plugin or an autoscaler of the lower cluster may have set it. Our own labels and annotations are restored.

        Raises:
            ApiError: the lower cluster does not accept the change for now; the caller retries.
        """
        if lower.metadata.deletion_timestamp is not None:
            return
        is_same_request = sync.synced is not None and has_same_mirrored_fields(sync.synced, upper)
        if is_same_request:
            sync.synced = upper
            if sync.followed == metadata_digest(lower):
                return
        shown, lower = lower, sync.written or lower
        node = upper.node_name
        try:
            plan = await run_apart(
                partial(
                    update.plan,
                    upper,
                    lower,
                    self.context.options[node],
                    self.context.rules.policy.of(upper.namespace),
                    before=sync.synced if sync.reached and not sync.resized else None,
                    was_resized=sync.resized,
                    known=self._known[node],
                ),
                size=upper.size + lower.size,
            )
        except TooLargeError as error:
            # Refused once, and again only after one of the two pods changes.
            self._report_refused(upper, sync, str(error))
            sync.matches(upper, shown=shown, reached=0)
            return
        growth = update.growth(lower, plan.changes)
        full = None if is_same_request else self.context.no_room(upper.namespace, growth)
        self._report_refused(upper, sync, plan.refusal if full is None else full.message)
        if full is not None:
            raise Conflict(full.message, code=409)
        if is_same_request:
            await self._restore(lower, sync, plan.changes.metadata_and_spec or {})
            sync.followed = metadata_digest(shown)
            return
        with self.context.lower.caches.growing("Pod", lower.namespace, lower.name, max(0, growth)):
            await self._apply(upper, lower, sync, plan, shown=shown)

    async def _apply(
        self, upper: Object, lower: Object, sync: SpecSync, plan: SpecPlan, *, shown: Object
    ) -> None:
        """Send the changes of a plan; ``shown``: the lower pod as the informer shows it.

        Raises:
            ApiError: as ``follow``; patches that the lower cluster accepts were sent.
        """
        await self._record_earlier_debuggers(upper, lower, sync, plan.upper_pod)
        is_refused = plan.is_spec_refused
        debugging: list[_Container] = []
        waiting: dict[str, Problem] = {}
        if plan.changes.debug_containers:
            try:
                debugging, waiting = await self._ready_debug_containers(upper, plan)
            except TooLargeError as error:
                # The other changes do not depend on the debug containers, which users cannot remove.
                self._refused(upper, str(error))
                is_refused = True
            self._report_waiting(upper, sync, waiting)
        sync.synced = None  # until all is applied; after a partial update a revert must be sent, too
        patches = (
            (plan.changes.resize, "resize"),
            (_adding(debugging), DEBUGGING),
            (plan.changes.metadata_and_spec, None),
        )
        reached = await self._send(upper, lower, sync, patches)
        if reached is not None and not waiting:
            sync.matches(upper, shown=shown, reached=0 if is_refused else reached)

    async def _record_earlier_debuggers(
        self, upper: Object, lower: Object, sync: SpecSync, upper_pod: Mapping[str, Any]
    ) -> None:
        """Record debug containers that we added, but did not record; report those that the lower cluster has added.

        An earlier release did not record them. A process may have crashed before it did, or lost the answer.
        """
        recorded = containers.recorded_debuggers(lower.annotations)
        found = containers.unrecorded_debuggers(upper_pod["spec"], lower.spec or {}, recorded)
        if found <= sync.foreign:
            return
        client = self.context.lower
        live = await find(client, resources.PODS, lower.name, namespace=lower.namespace)
        if live is None or live["metadata"]["uid"] != lower.uid:
            return
        if ours := found & containers.debuggers_added_by(client.field_manager, live):
            await self._record_debuggers(lower, sync, live["metadata"], ours)
        sync.foreign = found - ours
        if sync.foreign:
            self._refused(
                upper,
                f"the lower pod has debug containers of these names that were added in the lower cluster: "
                f"{readable.some(sorted(sync.foreign))}. Add one with another name",
            )

    async def _record_debuggers(
        self, lower: Object, sync: SpecSync, metadata: Mapping[str, Any], added: Collection[str]
    ) -> None:
        """Record that we added these debug containers; ``metadata``: the lower pod's, as its API server has it."""
        recorded = containers.recorded_debuggers(metadata.get("annotations") or {})
        patch = {"metadata": {"annotations": containers.record_of_debuggers(recorded.union(added))}}
        # In any version, because a kubelet changes the pod at once when a debug container is added.
        await self._patch(lower, sync, patch, subresource=None, is_any_version=True)

    async def _ready_debug_containers(
        self,
        upper: Object,
        plan: SpecPlan,
    ) -> tuple[list[_Container], dict[str, Problem]]:
        """Return the containers that may be added now, with Service variables, and by name why the others wait.

        Raises:
            ApiError: a temporary error; the caller retries with back-off.
            TooLargeError: not even one container fits the budget. If some fit, the others wait for the next update.
        """
        problems = await self.dependencies.ensure(upper, plan.upper_pod)
        ready, waiting = _split(plan.changes.debug_containers, problems)
        await self.service_links.settled(upper.namespace)
        count = len(ready)
        while count:
            spec = {"ephemeralContainers": ready[:count]}
            try:
                await self.service_links.add_to_containers(spec, plan.upper_pod, plan.budget.copy())
            except TooLargeError as error:
                if count == 1:
                    raise
                count //= 2
                waiting |= {container["name"]: too_large(str(error)) for container in ready[count:]}
            else:
                return spec["ephemeralContainers"], waiting
        return [], waiting

    async def _restore(self, lower: Object, sync: SpecSync, changes: Mapping[str, Any]) -> None:
        """Restore our labels and annotations that were changed, at most once per ``_RESTORE_PAUSE``."""
        patch = update.without_spec(changes)
        if not sync.reached:  # a change was refused, so the annotation must not list it as requested
            patch = update.without_note(patch, lower.annotations)
        if not patch:
            return
        now = event_loop.now()
        if sync.restored_at is not None and now - sync.restored_at < _RESTORE_PAUSE:
            raise Conflict(
                f"labels or annotations of pod {lower.key} are changed repeatedly by another program",
                code=409,
            )
        sync.restored_at = now
        self.context.log.warning("metadata of a lower pod was changed; it is restored", pod=lower.key)
        with contextlib.suppress(NotFound):
            await self._patch(lower, sync, patch, subresource=None)

    async def _send(
        self,
        upper: Object,
        lower: Object,
        sync: SpecSync,
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
                generation, single = await self._patch_or_split(lower, sync, patch, subresource)
                reached.append(generation)
                unsent.extendleft(reversed(single))
                if subresource == "resize":
                    sync.unresized = ("", "")
                    sync.resized = sync.resized or bool(patch)
                elif subresource is None:
                    sync.resized = False
            except ApiError as error:
                if is_retryable(error):
                    sync.resized = sync.resized or subresource == "resize"  # the request may have arrived
                    raise
                is_unknown = isinstance(error, NotFound)
                if is_unknown and (subresource is None or _names_the_pod(error)):
                    return None  # deleted meanwhile; its event requeues the pod
                # Resize came with Kubernetes 1.33; without it, the pod stays as it is.
                why = f"it does not know pods/{subresource}" if is_unknown else error.message
                self._refused(upper, why)
                is_final = is_unknown or _is_final(error)
                if subresource == "resize":
                    sync.unresized = ("Infeasible" if is_final else "Deferred", cut(why, _MESSAGE))
                    is_resize_due = True
                if is_final:
                    # The lower cluster always refuses this change, so report it once and keep the pod running.
                    reached.append(0)
                    if subresource is None and sync.resized:
                        await self._note_resize(lower, sync, patch or {})
                else:
                    # A quota or policy of the lower cluster refuses the patch. It may change without an event
                    # here, so retry later and send the other patches now.
                    postponed = error
        if postponed is not None:
            raise postponed
        return 0 if 0 in reached else max(reached)

    async def _patch_or_split(
        self, lower: Object, sync: SpecSync, patch: Mapping[str, Any] | None, subresource: str | None
    ) -> tuple[int, list[_Patch]]:
        """Send a patch; return the lower pod's generation, and what to send in its place if it is refused."""
        try:
            return await self._patch(lower, sync, patch, subresource=subresource), []
        except ApiError as error:
            single = _single_debuggers(patch, subresource)
            if not single or isinstance(error, NotFound) or is_retryable(error):
                raise
            return lower.metadata.generation, single

    async def _note_resize(self, lower: Object, sync: SpecSync, refused: Mapping[str, Any]) -> None:
        """Record in the lower pod's annotation that a resize was applied, but the remaining change was refused.

        Without this record, a process started later would not apply a reverted resize.
        """
        note = update.without_note(refused, lower.annotations).get("metadata")
        if note:
            with contextlib.suppress(Invalid, NotFound):
                await self._patch(lower, sync, {"metadata": note}, subresource=None)

    def _report_waiting(self, upper: Object, sync: SpecSync, waiting: Mapping[str, Problem]) -> None:
        """Write an event about waiting debug containers, once."""
        message = "; ".join(f"Debug container {name} waits: {one.message}" for name, one in waiting.items())
        if message and sync.debugging != message:
            reason = next(iter(waiting.values())).event_reason
            self.context.warn(upper, reason, message)
        sync.debugging = message

    def _report_refused(self, upper: Object, sync: SpecSync, why: str) -> None:
        """Write an event about changes that are refused without asking the lower cluster, once."""
        if why and sync.refused != why:
            self._refused(upper, why)
        sync.refused = why

    def _refused(self, upper: Object, why: str) -> None:
        self.context.warn(upper, "UpdateRefused", f"Lower cluster {self.context.name}: {why}")

    async def _patch(
        self,
        lower: Object,
        sync: SpecSync,
        patch: Mapping[str, Any] | None,
        *,
        subresource: str | None,
        is_any_version: bool = False,
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
            resource_version=None if is_any_version else (sync.written or lower).resource_version,
            subresource=subresource,
            patch_type=PatchType.STRATEGIC,
        )
        if changed["metadata"].get("resourceVersion") != lower.resource_version:
            sync.wrote(from_dict(changed), lower)
        if subresource == DEBUGGING:
            added = {container["name"] for container in patch["spec"]["ephemeralContainers"]}
            await self._record_debuggers(lower, sync, changed["metadata"], added)
        return int(changed["metadata"].get("generation") or 0)


_INFEASIBLE = frozenset({"NodeCapacity", "UnsupportedPlatform"})
"""Causes with which the API server's admission plug-in PodResizeValidator refuses what no kubelet of the node could apply."""


def _is_final(error: ApiError) -> bool:
    """Report whether the lower cluster refuses a change for good: as invalid, or as a resize that its node cannot apply."""
    details = error.status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    reasons = (
        [str(cause.get("reason")) for cause in causes if isinstance(cause, dict)]
        if isinstance(causes, list)
        else []
    )
    return isinstance(error, (Invalid, RequestTooLarge)) or not _INFEASIBLE.isdisjoint(reasons)


def _names_the_pod(error: ApiError) -> bool:
    """Report whether the Status names the pod, so the pod was not found. If the path is unknown, it names none."""
    return bool((error.status.get("details") or {}).get("name"))


def _adding(debug_containers: Sequence[_Container]) -> dict[str, Any] | None:
    """Return the patch that adds debug containers; None: there are none."""
    return {"spec": {"ephemeralContainers": debug_containers}} if debug_containers else None


def _single_debuggers(patch: Mapping[str, Any] | None, subresource: str | None) -> list[_Patch]:
    """Return a patch for each of the last debug containers of a patch; none if it has only one.

    Users cannot remove a debug container that the lower cluster refuses, so it must not block later ones.
    """
    added = (patch or {}).get("spec", {}).get("ephemeralContainers") or ()
    if subresource != DEBUGGING or len(added) == 1:
        return []
    return [(_adding([container]), DEBUGGING) for container in added[-_SINGLE:]]


def _split(
    containers: Iterable[_Container], problems: Iterable[Problem]
) -> tuple[list[_Container], dict[str, Problem]]:
    """Return the containers whose ConfigMaps and Secrets exist, and by name the Problems of the others.

    A container that references a missing object is not added yet. In the lower pod it would start as soon as
    any user creates an object of that name in the lower cluster.

    Args:
        containers: debug containers.
        problems: of objects that the pod references and that are missing, or unmanaged in the lower cluster.
    """
    by_object = {problem.about: problem for problem in problems}
    ready: list[_Container] = []
    waiting: dict[str, Problem] = {}
    for container in containers:
        needs = dependencies.dependencies({"spec": {"ephemeralContainers": [container]}})
        missing = [by_object[key] for need in needs if (key := (need.kind, need.name)) in by_object]
        if of_pod := by_object.get(("", "")):
            missing = [of_pod]  # a problem of the whole pod, reported before its objects were checked
        if missing:
            waiting[container["name"]] = missing[0]
        else:
            ready.append(container)
    return ready, waiting
