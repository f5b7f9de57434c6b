"""The last step of a released pod: it is evicted, deleted, or gets its label back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import Counter

from clusterset.model import names
from clusterset.model.moving.drain import How
from controller_runtime import log, resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.objects import Object, from_dict
from descheduler.moving import eviction
from descheduler.view import departure as steps
from descheduler.view.departure import Departure

_log = log.get_logger(component="departures")
_ROLLED_BACK = Counter(
    "virtual_node_descheduler_rolled_back_total",
    "Moves that were undone because the replacement was not Ready in time.",
    ["strategy"],
)


@dataclass(frozen=True, slots=True)
class Endings:
    """Evicts, deletes and restores released pods."""

    client: Client
    recorder: EventRecorder
    now: Callable[[], datetime]

    async def evict(self, one: Departure, pod: dict[str, Any]) -> str | None:
        """Evict a pod; return an empty text, or why the pod must stay; None: try again later.

        Raises:
            ApiError: a request failed.
        """
        try:
            await eviction.evict(self.client, from_dict(pod))
        except NotFound:
            pass
        except Conflict:
            return None
        except ApiError as error:
            return self._why_restored(one, error)
        self._left(one, pod)
        return ""

    async def delete(self, one: Departure, pod: dict[str, Any]) -> None:
        """Delete a pod whose owner was deleted. Disruption budgets do not apply, as in garbage collection.

        Raises:
            ApiError: a request failed.
        """
        try:
            await self.client.delete(resources.PODS, one.pod_name, namespace=one.namespace, uid=one.old_uid)
        except (NotFound, Conflict):
            return  # the pod is gone; another pod may have its name
        self._left(one, pod)

    async def restore(self, one: Departure, pod: Mapping[str, Any], why: str) -> bool:
        """Restore the label of a pod, so that its ReplicaSet adopts it; return False if the pod has changed.

        Raises:
            ApiError: a request failed.
        """
        patch = steps.restore(one.old_uid, pod["metadata"]["resourceVersion"], one.template_hash)
        try:
            await self.client.patch(resources.PODS, one.pod_name, patch, namespace=one.namespace)
        except (Conflict, NotFound):
            return False
        _ROLLED_BACK.labels(one.strategy).inc()
        _log.warning(
            "pod stays, its replacement is given up",
            pod=one.pod,
            uid=one.old_uid,
            node=one.node,
            why=why,
        )
        self.recorder.event(pod, "Warning", "RescheduleRolledBack", f"Stays on {one.node}: {why}")
        return True

    async def restore_unrecorded(self, pod: Object) -> None:
        """Restore the label of a pod that is marked as released (``drain.is_released``) but has no record.

        Raises:
            ApiError: a request failed.
        """
        patch = steps.restore(pod.uid, pod.resource_version, pod.annotations[names.ANNOTATION_LEAVING])
        try:
            await self.client.patch(resources.PODS, pod.name, patch, namespace=pod.namespace)
        except (NotFound, Conflict):
            return  # a changed pod is queued again
        except (Invalid, Forbidden) as error:
            _log.warning("label is not restored", pod=pod.key, error=str(error))

    def _why_restored(self, one: Departure, error: ApiError) -> str | None:
        """Return why a pod whose eviction failed must stay; None: try again.

        Raises:
            ApiError: ``error``, if it is not TooManyRequests, and either the deadline is not over or the server
                did not respond.
        """
        is_late = self.now() >= timestamps.parse(one.deadline)
        if eviction.is_final(error) or (is_late and eviction.is_budget(error)):
            return f"its disruption budget refuses the eviction: {error.message}"
        if isinstance(error, TooManyRequests):
            return None
        if is_late and error.code:
            return f"its eviction failed: {error.message}"
        raise error

    def _left(self, one: Departure, pod: dict[str, Any]) -> None:
        eviction.MOVED.labels(one.node, one.strategy, str(How.REPLACED_FIRST)).inc()
        _log.info(
            "pod moved after its replacement was ready",
            pod=one.pod,
            uid=one.old_uid,
            node=one.node,
            strategy=one.strategy,
        )
        self.recorder.event(pod, "Normal", "Rescheduled", f"Moved off {one.node}: {one.reason}")
