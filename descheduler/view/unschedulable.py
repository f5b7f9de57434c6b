"""Decides whether, why and since when a lower cluster cannot start a pod. Does no IO.

The virtual node copies the lower pod's conditions to the upper pod. So PodScheduled=False of a bound upper pod means
that the *lower* scheduler has refused it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object
from descheduler.view import pods

UNSCHEDULABLE = frozenset({"Unschedulable", "SchedulerError"})
IMAGE, QUOTA, ADMISSION = "image", "quota", "admission"
FAILURES = (IMAGE, QUOTA, ADMISSION)
"""Failures of the lower cluster that count only if they are configured."""

IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_QUOTA_REASON = "ExceededQuota"


@dataclass(frozen=True, slots=True)
class Stuck:
    """Why and since when a pod does not start in its lower cluster."""

    reason: str
    """One word such as Unschedulable, SchedulerError, ImagePullBackOff or ExceededQuota."""
    message: str
    since: datetime


def find(pod: Object, *, failures: Collection[str] = (), waiting: Collection[str] = ()) -> Stuck | None:
    """Return why a pod does not start in its lower cluster.

    Args:
        pod: cached upper pod.
        failures: values of ``FAILURES`` that count besides PodScheduled=False.
        waiting: additional reasons of waiting containers that count, such as CreateContainerError.

    Returns:
        None for a pod that is unbound, being deleted, started or only slow (pulling an image is not a failure).
    """
    status = pod.status or {}
    if status.get("phase") != pods.PENDING or not pods.is_active(pod) or not (pod.spec or {}).get("nodeName"):
        return None
    scheduled = condition(status, "PodScheduled")
    moved = _moment(scheduled.get("lastTransitionTime"), pod)
    if scheduled.get("status") == "False":
        if scheduled.get("reason") in UNSCHEDULABLE:
            return Stuck(scheduled["reason"], scheduled.get("message") or "", moved)
        return None
    wanted = set(waiting) | (IMAGE_REASONS if IMAGE in failures else frozenset())
    for reason in pods.waiting_reasons(status):
        if reason in wanted:
            return Stuck(reason, status.get("message") or "", moved)
    admitted = condition(status, names.CONDITION_ADMITTED)
    if admitted.get("status") == "False":
        reason = admitted.get("reason") or "Refused"
        if (QUOTA if reason == _QUOTA_REASON else ADMISSION) in failures:
            return Stuck(
                reason, admitted.get("message") or "", _moment(admitted.get("lastTransitionTime"), pod)
            )
    return None


def is_waiting_for_node(pod: Object) -> bool:
    """Report whether the upper scheduler has found no node for the pod."""
    unbound = not (pod.spec or {}).get("nodeName")
    return unbound and pods.is_active(pod) and condition(pod.status, "PodScheduled").get("status") == "False"


def _moment(text: str | None, pod: Object) -> datetime:
    """Return a time of a lower cluster, but at least the upper pod's creation time, because clocks differ."""
    born = pods.created(pod)
    return max(timestamps.parse(text), born) if text else born
