"""Statuses of upper pods that we have to word ourselves: nothing below speaks for the pod, or nothing any more.

Each is a whole status, made of the pod's present one; ``pod_status.status_patch`` makes a patch of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controller_runtime.api import names, timestamps

_CONTAINER_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_SIGKILL = 137


def lost(upper: Mapping[str, Any], *, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """The status of a pod whose lower half vanished: Failed, and every container that ran is terminated.

    Worded as the kubelet words containers whose fate it does not know.
    """
    status = dict(upper.get("status") or {})
    status |= {"phase": "Failed", "reason": reason, "message": message}
    for field in _CONTAINER_STATUSES:
        if field in status:
            status[field] = [_terminated(container, now) for container in status[field]]
    conditions = []
    for condition in status.get("conditions") or ():
        if condition["type"] in {"Ready", "ContainersReady"} and condition.get("status") != "False":
            conditions.append(
                {
                    **condition,
                    "status": "False",
                    "reason": "PodFailed",
                    "lastTransitionTime": timestamps.rfc3339(now),
                }
            )
        else:
            conditions.append(condition)
    status["conditions"] = conditions
    return status


def pending(upper: Mapping[str, Any], *, reason: str, message: str, pod_reason: str = "") -> dict[str, Any]:
    """The status of a pod that cannot be created below yet: Pending, its containers waiting for a reason.

    Args:
        upper: the upper pod.
        reason: why the containers wait, such as CreateContainerConfigError.
        message: in full.
        pod_reason: shown as the pod's own reason too; empty: only the containers have one.
    """
    status = dict(upper.get("status") or {})
    status["phase"] = "Pending"
    waiting: dict[str, Any] = {"reason": reason}
    if message:
        waiting["message"] = message
    status["containerStatuses"] = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "started": False,
            "state": {"waiting": waiting},
        }
        for container in upper["spec"].get("containers") or ()
    ]
    if pod_reason:
        status |= {"reason": pod_reason, "message": message}
    return status


def refused(upper: Mapping[str, Any], *, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """The status of a pod that the lower cluster refuses to take: Pending, with a condition that says why.

    Args:
        upper: the upper pod.
        reason: ExceededQuota, Forbidden, Invalid, NotAllowed, …, for the condition.
        message: in full.
        now: when it was refused.
    """
    status = pending(upper, reason="ProviderFailed", message=message, pod_reason="ProviderFailed")
    return _with_condition(status, kind=names.CONDITION_ADMITTED, reason=reason, message=message, now=now)


def unschedulable(upper: Mapping[str, Any], *, message: str, now: datetime) -> dict[str, Any]:
    """The status of a pod that no lower node can take: Pending, in the words of a scheduler.

    Args:
        upper: the upper pod.
        message: why no lower node can.
        now: when that was found.
    """
    status = {**(upper.get("status") or {}), "phase": "Pending"}
    return _with_condition(status, kind="PodScheduled", reason="Unschedulable", message=message, now=now)


def refusal_reason(status: int, reason: str, message: str) -> str:
    """One word for why an apiserver refused a pod: its own, but for quota, which it only tells in prose."""
    if "exceeded quota" in message:
        return "ExceededQuota"
    if "violates PodSecurity" in message:
        return "PodSecurity"
    return reason or f"HTTP{status}"


def _with_condition(
    status: dict[str, Any], *, kind: str, reason: str, message: str, now: datetime
) -> dict[str, Any]:
    """The status with a condition that is False; since when it is, if it was before."""
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    old = conditions.get(kind) or {}
    conditions[kind] = {
        "type": kind,
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": old["lastTransitionTime"]
        if old.get("status") == "False"
        else timestamps.rfc3339(now),
    }
    return {**status, "conditions": list(conditions.values())}


def _terminated(container: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    state = container.get("state") or {}
    if "terminated" in state:
        return dict(container)
    ended = {
        "exitCode": _SIGKILL,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was deleted",
        "startedAt": (state.get("running") or {}).get("startedAt"),
        "finishedAt": timestamps.rfc3339(now),
    }
    return {**container, "ready": False, "started": False, "state": {"terminated": ended}}
