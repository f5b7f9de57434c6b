"""Writes upper pod statuses: the complete lower status, or a status of our own if there is no lower pod.

When the lower cluster has not been readable for some time, its pods are reported not ready (``OutageController``).
kube-controller-manager does this for a kubelet that is gone, but only at its own change of the Node from Ready to Unknown. The
virtual node itself reports the Node NotReady, so that the cause is visible, and must report the pods, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from clusterset.config import NOT_READY
from clusterset.model import names
from clusterset.model.moving.silence import UNREACHABLE
from clusterset.model.pod.conditions import is_finished, is_true
from controller_runtime import resources
from controller_runtime.client.client import PatchType
from controller_runtime.errors import ApiError, ConfigError, Invalid, NotFound
from controller_runtime.objects import Object
from controller_runtime.process import lifecycle
from controller_runtime.store import is_stub
from controller_runtime.util import event_loop
from controller_runtime.util.event_loop import Slicer
from controller_runtime.workqueue.controller import Result
from controller_runtime.workqueue.queue import WorkQueue
from virtual_node import metrics
from virtual_node.controllers.base.context import SHORTEST_PAUSE, ClusterContext, PodCaches
from virtual_node.controllers.nodes import HealthController
from virtual_node.controllers.pods.record import PodRecord, SpecSync, StatusRate
from virtual_node.examine.connections import plain
from virtual_node.translate.base.fields import is_name
from virtual_node.translate.base.ownership import proof_of_mirroring
from virtual_node.translate.pods import dependencies, downward_api, synthetic_status, waits
from virtual_node.translate.pods import status as pod_status

_MINOR_PATCH_DELAY = 9.0
"""Seconds after a lower pod's creation for which a minor patch (``_is_minor_patch``) waits for the next lower status.
A busy lower cluster needs several seconds from a pod's creation to its first container status."""
_MAX_MINOR_PATCH_DELAY = 60.0
"""Limit of this delay while pods of the lower cluster start slowly, as after the creation of many pods."""
_LONGEST_UID = 64
"""Characters of a lower pod's uid that is written to the upper pod. A UUID has 36; a hostile server may send any text."""
_MINOR_FIELDS = frozenset({"conditions", "qosClass", "observedGeneration"})
_PERIOD = 2.0
"""Seconds between two comparisons of states in this process. They need no requests."""
_AGAIN = 30.0
"""Seconds until the pods are searched again for Ready ones, when there was none. 10,000 pods take a tenth of a second."""
_AT_ONCE = 8
"""Statuses that are written at once; the limit of the client's requests applies, too."""


class Unread(NamedTuple):
    """Why the pods are reported not ready, although the lower cluster last reported them ready."""

    reason: str
    message: str


@dataclass(eq=False, repr=False)
class StatusWriter:
    """Patches pods/status in the upper cluster: only changed fields, and only if the pod still has the same uid."""

    context: ClusterContext
    missing_secrets: Callable[[str, Sequence[str]], list[str]]
    """Returns which Secrets of these names an upper namespace lacks."""
    devices: Callable[[Object], str] = lambda _lower: ""
    """Returns the annotation's value with the devices of a lower pod; empty: none is known."""
    unread: Unread | None = None
    """Set while Ready pods are reported not ready, because the lower cluster cannot be read; None: it can."""
    _rate: StatusRate = field(default_factory=StatusRate)
    _last_start: tuple[float, float] = (0.0, 0.0)
    """Last write of more than a minor patch for a starting pod: loop time, and seconds since creation."""

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._lag = metrics.MIRROR_SECONDS.labels(self.context.name, "up")
        self._delayed = metrics.STATUSES_DELAYED.labels(self.context.name)

    async def mirror(
        self, upper: Object, lower: Object, record: PodRecord, *, is_last: bool = False, lost: str = ""
    ) -> Result | None:
        """Update the upper status from the lower pod's status.

        Returns a requeue if the pod is new and the patch minor (``_is_minor_patch``). The next lower status nearly
        always comes before the requeue and is written with these changes, which saves one write per pod. Returns a
        requeue, too, if the status changes too often (``status_rate``).

        Args:
            upper: the upper pod.
            lower: its lower pod.
            record: the pod's record.
            is_last: write at once, because the upper pod is about to be deleted.
            lost: why the lower pod has ended, if it was deleted in the lower cluster; empty: it was not.
        """
        sync, devices = record.status, self.devices(lower)
        unresized = record.spec.unresized
        compared = (upper.resource_version, lower.resource_version, devices, str(self.unread), *unresized)
        if sync.compared == compared:
            return None
        current = upper.status or {}
        # Only what ``upper_status`` reads, because decoding the rest takes longer than all else here.
        desired = pod_status.upper_status(
            {
                "metadata": {"generation": lower.metadata.generation, "annotations": lower.annotations},
                "status": lower.status,
            },
            {
                "metadata": {"generation": upper.metadata.generation},
                "spec": upper.spec or {},
                "status": current,
            },
            reached=_reached(upper, lower, record.spec),
            now=datetime.now(UTC),
        )
        desired |= _loss(current, desired, lost)
        waits.name_gates(desired, lower, cluster=self.context.name)
        desired = self._if_unread(self._if_terminating(desired, upper, lower), current)
        if unresized[0] and not is_finished(desired):
            desired = synthetic_status.unresized(
                desired,
                current,
                reason=unresized[0],
                message=unresized[1],
                generation=upper.metadata.generation,
                now=datetime.now(UTC),
            )
        if is_finished(current) and not is_finished(desired):
            # A finished pod stays finished, as on a kubelet.
            sync.compared = compared
            return None
        annotations = _changed_annotations(upper, lower, devices)
        labels = self._zones(upper, lower)
        patch = pod_status.status_patch(
            current, desired, uid=upper.uid, annotations=annotations, labels=labels
        )
        if patch is None or (not annotations and not labels and sync.dropped == _digest(patch)):
            sync.compared = compared
            sync.changed_at = 0.0
            return None
        now = event_loop.now()
        waited = now - record.creation.created_at
        is_minor = _is_minor_patch(patch)
        if is_minor and (remaining := self._minor_patch_delay(now) - waited) > 0:
            return Result(requeue_after=max(remaining, SHORTEST_PAUSE))
        size = len(msgspec.json.encode(patch))
        if (seconds := self._rate.wait(sync.turn, size=size, now=now)) and not is_last:
            self._delayed.inc()
            return Result(requeue_after=max(seconds, SHORTEST_PAUSE))
        if not is_minor and record.creation.created_at and not current.get("containerStatuses"):
            self._last_start = (now, waited)
        since, sync.changed_at = sync.changed_at, 0.0
        stored = await self._patch(upper, patch)
        self._report_pull_secrets(upper, current, desired)
        if since:
            self._lag.observe(event_loop.now() - since)
        # An API server drops fields that its version does not know, without an error.
        dropped = (
            pod_status.status_patch(stored.get("status") or {}, desired, uid=upper.uid) if stored else None
        )
        sync.dropped = _digest(dropped) if dropped else 0
        # Remember the version of the stored pod: the informer reports it next, and it needs no comparison.
        version = stored["metadata"]["resourceVersion"] if stored else upper.resource_version
        sync.compared = (version, *compared[1:])
        return None

    def _report_pull_secrets(
        self, upper: Object, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        """Write the event of a kubelet whose pull failed without a pull secret. The lower kubelet finds our placeholders."""
        secrets = dependencies.pull_secrets(upper.spec or {})
        if not secrets or not pod_status.has_failed_to_pull(before, after):
            return
        if missing := self.missing_secrets(upper.namespace, secrets):
            self.context.warn(
                upper,
                "FailedToRetrieveImagePullSecret",
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); attempting to pull the image may "
                "not succeed.",
            )

    def _zones(self, upper: Object, lower: Object) -> dict[str, str]:
        """Return the labels with the zone and region of the lower pod that the upper pod lacks."""
        options = self.context.options.get(upper.node_name)
        if options is None or is_stub(upper):
            return {}
        return downward_api.zones_to_report(upper.labels, lower.labels, options.labels)

    def _minor_patch_delay(self, now: float) -> float:
        """Return the delay of a minor patch in seconds. While pods start slowly, it is longer than their start."""
        at, seconds = self._last_start
        delay = min(1.5 * seconds, _MAX_MINOR_PATCH_DELAY)
        return delay if now - at < delay and delay > _MINOR_PATCH_DELAY else _MINOR_PATCH_DELAY

    async def write_own(self, upper: Object, status: Mapping[str, Any]) -> None:
        """Write a status that the lower cluster did not report (missing dependency, refusal, lost pod)."""
        current = upper.status or {}
        patch = pod_status.status_patch(current, dict(status), uid=upper.uid)
        if patch is not None:
            await self._patch(upper, patch)

    async def write_unread(self, upper: Object) -> None:
        """Report a pod not ready, because ``unread`` is set."""
        current = upper.status or {}
        await self.write_own(upper, self._if_unread(current, current))

    def _if_unread(self, status: dict[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
        if self.unread is None:
            return status
        reason, message = self.unread
        return synthetic_status.not_ready(
            status, current, reason=reason, message=message, now=datetime.now(UTC)
        )

    def _if_terminating(self, status: dict[str, Any], upper: Object, lower: Object) -> dict[str, Any]:
        """Return a status that is not ready, if the lower cluster deletes a pod that is not being deleted in the upper one.

        Kubelets leave Ready as it is, because Services stop to use a pod at its deletion timestamp. The upper pod has none.
        """
        if lower.metadata.deletion_timestamp is None or upper.metadata.deletion_timestamp is not None:
            return status
        return synthetic_status.not_ready(
            status,
            upper.status or {},
            reason=synthetic_status.LOWER_POD_TERMINATING,
            message=f"The pod is being deleted in the lower cluster {self.context.name}",
            now=datetime.now(UTC),
        )

    async def lost(
        self,
        upper: Object,
        *,
        reason: str,
        message: str,
        disruption: synthetic_status.Disruption = ("", ""),
    ) -> None:
        """Report on the upper pod that its lower pod is gone: phase Failed, containers terminated."""
        status = synthetic_status.lost(
            upper.to_dict(), reason=reason, message=message, now=datetime.now(UTC), disruption=disruption
        )
        await self.write_own(upper, status)

    async def expired(self, upper: Object) -> None:
        """Report on the upper pod that it has not started within its activeDeadlineSeconds: phase Failed."""
        await self.write_own(upper, synthetic_status.expired(upper.to_dict()))
        self.context.warn(upper, synthetic_status.DEADLINE_EXCEEDED, synthetic_status.DEADLINE_MESSAGE)

    async def _patch(self, upper: Object, patch: dict[str, Any]) -> dict[str, Any] | None:
        """Patch the status; return the pod that the upper cluster stored, or None if it stored none."""
        try:
            changed = await self.context.upper.patch(
                resources.PODS,
                upper.name,
                # The resourceVersion makes a delayed request of a killed process fail.
                {**patch, "metadata": {**patch["metadata"], "resourceVersion": upper.resource_version}},
                namespace=upper.namespace,
                subresource="status",
                patch_type=PatchType.STRATEGIC,
            )
        except NotFound:
            return None  # the pod is gone; its delete event requeues it
        except Invalid as error:
            # The upper cluster refuses this status (e.g. its validation differs from the lower cluster's). A
            # retry cannot help, but the next lower status may. Send the other fields.
            self.context.log.warning(
                "upper cluster refuses a pod status", pod=upper.key, uid=upper.uid, error=str(error)
            )
            change = patch.get("status") or {}
            rest = {field: value for field, value in change.items() if field not in _refused(error)}
            if rest and len(rest) < len(change):
                return await self._patch(upper, {**patch, "status": rest})
            return None
        return changed


def _reached(upper: Object, lower: Object, spec: SpecSync) -> int | None:
    """Return the lower generation from which on the lower pod has the upper spec, as for ``upper_status``.

    A deletion increments the generation of both pods. It is reported as observed together with the result, so that it
    costs no status patch of its own.
    """
    is_ended = is_finished(lower.status) and lower.metadata.deletion_timestamp is not None
    if is_ended and upper.metadata.deletion_timestamp is not None:
        return None
    return spec.reached if spec.synced is upper else 0


def _loss(current: Mapping[str, Any], desired: Mapping[str, Any], message: str) -> dict[str, Any]:
    """Return reason and message of a pod whose lower pod was deleted; empty: not deleted, or it has another reason.

    Args:
        current: the upper status.
        desired: the lower status.
        message: why the lower pod has ended; empty: unknown, or reported before.
    """
    if is_finished(current) and current.get("reason") == synthetic_status.LOWER_POD_DELETED:
        message = message or current.get("message") or ""
    is_unexplained = message and not desired.get("reason")
    return {"reason": synthetic_status.LOWER_POD_DELETED, "message": message} if is_unexplained else {}


def _changed_annotations(upper: Object, lower: Object, devices: str) -> dict[str, str | None]:
    """Return the annotations ``names.REPORTED_ON_PODS`` of an upper pod that are not current; None: to be removed.

    A user may have changed them, or created the pod from the manifest of another pod, which has its own.
    """
    name = lower.node_name
    current: dict[str, str | None] = {names.ANNOTATION_LOWER_NODE: name if is_name(name) else None}
    if len(lower.uid) <= _LONGEST_UID:
        current[names.ANNOTATION_LOWER_UID] = proof_of_mirroring(lower.uid, upper.uid)
    if devices:
        current[names.ANNOTATION_ALLOCATED_DEVICES] = devices
    return {key: value for key, value in current.items() if upper.annotations.get(key) != value}


def _refused(error: Invalid) -> set[str]:
    """Return the rejected status fields: ``containerStatuses`` for ``status.containerStatuses[0].state``."""
    paths = [cause.get("field") or "" for cause in (error.status.get("details") or {}).get("causes") or ()]
    return {path.split(".")[1].partition("[")[0] for path in paths if path.startswith("status.")}


def _digest(patch: Mapping[str, Any]) -> int:
    """Return a number that identifies a patch's status changes; never 0."""
    return hash(msgspec.json.encode(patch.get("status"))) or 1


def _is_minor_patch(patch: Mapping[str, Any]) -> bool:
    """Report whether a status patch changes only PodScheduled=True, qosClass or observedGeneration."""
    change = patch.get("status") or {}
    return change.keys() <= _MINOR_FIELDS and all(
        condition.get("type") == "PodScheduled" and condition.get("status") == "True"
        for condition in change.get("conditions") or ()
    )


@dataclass(eq=False, repr=False)
class OutageController:
    """Follows whether the statuses of a lower cluster's pods can be read."""

    context: ClusterContext
    health: HealthController
    caches: PodCaches
    status: StatusWriter
    queue: WorkQueue[str]
    """The uids of upper pods to mirror again when the cluster can be read."""
    _read_at: float = field(default=0.0, init=False)
    """Loop time at which the statuses could last be read, or at which this process began."""

    async def run(self) -> None:
        """Mark and unmark pods until cancelled; does nothing with ``KeepReady``."""
        config = self.context.config.unreachable
        if config.pods != NOT_READY:
            return
        loop = asyncio.get_running_loop()
        self._read_at, again = loop.time(), 0.0
        while True:
            if not (trouble := self._trouble()):
                self._read_at = self.health.answered_at or loop.time()
                self._end()
                again = 0.0
            elif loop.time() - self._read_at >= config.after_seconds and loop.time() >= again:
                text = f"Lower cluster {self.context.name} does not answer: {trouble}"
                marked = await self.mark(UNREACHABLE, text)
                again = 0.0 if marked else loop.time() + _AGAIN
            await asyncio.sleep(_PERIOD)

    async def mark(self, reason: str, message: str) -> int:
        """Report all Ready pods not ready, with the reason and message of the first call; return their number."""
        if self.status.unread is None:
            self.status.unread = Unread(reason, message)
            self.context.log.warning("pods are reported not ready", reason=reason, cause=message)
        slicer, ready = Slicer(), []
        for informer in self.caches.upper.values():
            for pod in informer.store.list():
                if is_true(pod.status, "Ready"):
                    ready.append(pod)
                await slicer.tick()
        limit = asyncio.Semaphore(_AT_ONCE)

        async def write(pod: Object) -> None:
            async with limit:
                try:
                    await self.status.write_unread(pod)
                except (ApiError, ConfigError) as error:  # a changed pod is tried again in the next period
                    self.context.log.debug("pod not reported not ready yet", pod=pod.key, error=str(error))

        await asyncio.gather(*map(write, ready))
        return len(ready)

    async def stopped(self, reason: str, message: str, *, since: float, longest: float) -> None:
        """Report the pods of a cluster that is not read any more not ready; return then, or at once if it is not time yet.

        Args:
            reason: of the condition.
            message: of the condition.
            since: loop time at which the statuses could last be read.
            longest: seconds that this call may wait, because the cluster is read again after that.
        """
        config = self.context.config.unreachable
        left = since + config.after_seconds - event_loop.now()
        if config.pods != NOT_READY or left > longest:
            return
        async with contextlib.AsyncExitStack() as stack:
            for informer in self.caches.upper.values():  # a write to a pod that has changed would fail
                await stack.enter_async_context(lifecycle.beside(informer.run()))
            await asyncio.sleep(max(left, _PERIOD))
            await self.mark(reason, message)

    def _end(self) -> None:
        if self.status.unread is None:
            return
        self.status.unread = None
        self.context.log.info("pods are reported as their lower cluster does again")
        for informer in self.caches.upper.values():
            for pod in informer.store.list():
                self.queue.add(pod.uid)

    def _trouble(self) -> str:
        """Return why the statuses of the lower pods cannot be read; empty: they can, or are being listed for the first time.

        A cluster without ready nodes can be read; what it reports about its pods is mirrored.
        """
        if self.health.reachable is None:
            return ""  # the first request has not ended
        if not self.health.reachable:
            return self.health.error or "it has not answered yet"
        error = self.caches.lower.last_error
        return "" if error is None else plain(str(error)) or repr(error)
