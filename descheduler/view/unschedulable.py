"""Is a pod on a virtual node one that its lower cluster cannot start, why, and since when? Pure.

The virtual node copies the lower pod's conditions up, so a bound upper pod whose PodScheduled is False is one that
the *lower* scheduler has refused: the upper one has long bound it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from controller_runtime.api import names, timestamps
from controller_runtime.objects import Object
from descheduler.view import pods

UNSCHEDULABLE = frozenset({"Unschedulable", "SchedulerError"})
IMAGE, QUOTA, ADMISSION = "image", "quota", "admission"
FAILURES = (IMAGE, QUOTA, ADMISSION)
"""Failures of the lower cluster that count only where they are asked for."""

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
    """Why a pod does not start below."""

    reason: str
    """One word: Unschedulable, SchedulerError, ImagePullBackOff, ExceededQuota…"""
    message: str
    since: datetime


def find(pod: Object, *, failures: Collection[str] = (), waiting: Collection[str] = ()) -> Stuck | None:
    """Judge one pod.

    Args:
        pod: a cached upper pod.
        failures: of ``FAILURES``, those that count besides lower PodScheduled=False.
        waiting: further reasons of waiting containers that count, such as CreateContainerError.

    Returns:
        None for a pod that is unbound, ending, started or merely slow (an image being pulled is no failure).
    """
    status = pod.status or {}
    if status.get("phase") != pods.PENDING or not pods.is_active(pod) or not (pod.spec or {}).get("nodeName"):
        return None
    scheduled = pods.condition(status, "PodScheduled")
    moved = _moment(scheduled.get("lastTransitionTime"), pod)
    if scheduled.get("status") == "False":
        if scheduled.get("reason") in UNSCHEDULABLE:
            return Stuck(scheduled["reason"], scheduled.get("message") or "", moved)
        return None
    wanted = set(waiting) | (IMAGE_REASONS if IMAGE in failures else frozenset())
    for reason in pods.waiting_reasons(status):
        if reason in wanted:
            return Stuck(reason, status.get("message") or "", moved)
    admitted = pods.condition(status, names.CONDITION_ADMITTED)
    if admitted.get("status") == "False":
        reason = admitted.get("reason") or "Refused"
        if (QUOTA if reason == _QUOTA_REASON else ADMISSION) in failures:
            return Stuck(
                reason, admitted.get("message") or "", _moment(admitted.get("lastTransitionTime"), pod)
            )
    return None


def is_waiting_for_node(pod: Object) -> bool:
    """Whether the upper scheduler has found no node for the pod."""
    status = pod.status or {}
    unbound = not (pod.spec or {}).get("nodeName")
    return unbound and pods.is_active(pod) and pods.condition(status, "PodScheduled").get("status") == "False"


def _moment(text: str | None, pod: Object) -> datetime:
    """A lower cluster's time, never before the upper pod was created: clocks differ."""
    born = pods.created(pod)
    return max(timestamps.parse(text), born) if text else born
