"""Reports on upper pods what their lower pods wait for (``translate/pods/waits.py``), once for each cause, after a grace period.

``creation_delays`` reports the waits of pods without a lower pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from clusterset.model.pod.conditions import is_finished
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import ApiError
from controller_runtime.objects import Object
from controller_runtime.util import event_loop
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.pods.record import Waiting
from virtual_node.translate.pods import waits
from virtual_node.translate.pods.waits import Wait

_AGAIN = 60.0
"""Seconds until a pod that may begin to wait is checked again, because a change of its node causes no event of the pod."""
_LATE = 5.0
"""Seconds after the end of a grace period until a lower pod counts as late: kubelets need a moment."""


@dataclass(eq=False, repr=False)
class WaitReporter:
    """Writes events about the waits of one lower cluster's pods."""

    context: ClusterContext
    nodes: Informer
    """The lower nodes."""

    def check(self, upper: Object, lower: Object, waiting: Waiting) -> float | None:
        """Report what a lower pod waits for after its grace period; return the seconds until the next check, None: no check."""
        deleted = lower.metadata.deletion_timestamp
        if deleted is None and upper.metadata.deletion_timestamp is not None:
            return None  # it is deleted next, see ``deletion_refused``
        if deleted is None and _has_started(lower):
            waiting.ends()
            return None
        if (wait := self._of_pod(lower)) is None:
            waiting.ends()
            return _AGAIN if deleted is None else max(_LATE, _seconds_until(deleted) + _LATE)
        return self._report(upper, wait, waiting)

    def of_predecessor(self, older: Object) -> Wait:
        """Return what a pod waits for if an older lower pod has its name."""
        body = older.to_dict()
        return waits.of_predecessor(body, self._node(body), cluster=self.context.name, now=datetime.now(UTC))

    def deletion_refused(self, upper: Object, lower: Object, waiting: Waiting, error: ApiError) -> None:
        """Report that the lower cluster refuses to delete a lower pod, unless it does not answer, which the Node shows."""
        if error.code:
            wait = waits.of_refused_deletion(lower.to_dict(), error.message, cluster=self.context.name)
            self._report(upper, wait, waiting)

    def _report(self, upper: Object, wait: Wait, waiting: Waiting) -> float | None:
        left = waiting.left(wait.reason, wait.grace, now=event_loop.now())
        if left > 0:
            return left
        if waiting.reported != wait.text:
            waiting.reported = wait.text
            self.context.warn(upper, wait.reason, wait.text)
            self.context.log.info(
                "pod waits", pod=upper.key, uid=upper.uid, reason=wait.reason, why=wait.message
            )
        return _AGAIN

    def _of_pod(self, lower: Object) -> Wait | None:
        body = lower.to_dict()
        return waits.of_pod(body, self._node(body), cluster=self.context.name, now=datetime.now(UTC))

    def _node(self, lower: dict[str, object]) -> dict[str, object] | None:
        spec = lower.get("spec")
        name = spec.get("nodeName") if isinstance(spec, dict) else None
        node = self.nodes.store.get(name) if name else None
        return None if node is None else node.to_dict()


def _seconds_until(deleted: str) -> float:
    try:
        return (timestamps.parse(deleted) - datetime.now(UTC)).total_seconds()
    except ValueError:
        return _AGAIN


def _has_started(lower: Object) -> bool:
    status = lower.status or {}
    return status.get("phase") == "Running" or is_finished(status)
