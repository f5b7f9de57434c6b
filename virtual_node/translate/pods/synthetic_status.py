"""Statuses of upper pods that we create ourselves, because there is no lower pod to copy the status from.

Each is a complete status, based on the pod's current one. ``status.status_patch`` computes the patch. The reasons are
those of the kubelet and the API server, or read from the lower scheduler's message (``rejection``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_true
from controller_runtime.apimachinery import timestamps
from virtual_node.translate.base.fields import cut

Disruption = tuple[str, str]
"""Reason and message of a ``DISRUPTION_TARGET`` condition; empty: none."""
DISRUPTION_TARGET = "DisruptionTarget"
"""Condition of a pod that ends because of its cluster and not of itself. A Job's podFailurePolicy reads it."""
LOWER_POD_DELETED = "LowerPodDeleted"
"""Reason of a pod whose lower pod was deleted in the lower cluster."""
LOWER_POD_TERMINATING = "LowerPodTerminating"
"""Reason of Ready while a lower pod is being deleted in the lower cluster, and not the upper pod."""
DEADLINE_EXCEEDED = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"
"""The kubelet's reason and message for a pod that is active for longer than its activeDeadlineSeconds."""
NAME_CONFLICT = "NameConflict"
"""Reason of a pod that waits because an unmanaged lower pod has its name."""
_REFUSED = "ProviderFailed"
_POD_REASONS = frozenset({_REFUSED, NAME_CONFLICT})
"""Reasons in the statuses of pods that have no lower pod yet."""
_SCHEDULED = "PodScheduled"
_CONTAINER_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_READY = ("Ready", "ContainersReady")
_SIGKILL = 137
RESIZE_PENDING = "PodResizePending"
_MESSAGE = 1024
"""Maximum bytes of a message. It is often the lower API server's, and each container repeats it."""
OTHER = "Other"
"""Reason of a refusal with a reason that is not Kubernetes' own."""
_REASONS = frozenset(
    {
        "AlreadyExists",
        "BadRequest",
        "Conflict",
        "Expired",
        "Forbidden",
        "Gone",
        "InternalError",
        "Invalid",
        "MethodNotAllowed",
        "NotAcceptable",
        "NotFound",
        "RequestEntityTooLarge",
        "ServerTimeout",
        "ServiceUnavailable",
        "StoreReadError",
        "Timeout",
        "TooManyRequests",
        "Unauthorized",
        "UnsupportedMediaType",
    }
)
"""``StatusReason`` of apimachinery ``pkg/apis/meta/v1/types.go``."""
_LARGEST = 256 * 1024
"""Maximum bytes of the statuses of waiting containers. Each repeats the message, and the pod must fit into etcd."""
_FRAME = 200
"""Bytes of such a status without the message, the image and the name."""
UNEXPECTED = "UnexpectedAdmissionError"
"""The kubelet's reason for all other failures."""
_CAUSES = (
    (re.compile(r"(\d{1,9}) Insufficient ([-./a-zA-Z0-9]{0,100}[a-zA-Z0-9])"), r"OutOf\2"),
    (re.compile(r"(\d{1,9}) Too many pods"), "OutOfpods"),
    (re.compile(r"(\d{1,9}) node\(s\) didn't have free ports"), "NodePorts"),
    (re.compile(r"(\d{1,9}) node\(s\) didn't match Pod's node affinity/selector"), "NodeAffinity"),
    (re.compile(r"(\d{1,9}) node\(s\) had untolerated taint"), "TaintToleration"),
)
"""Messages of kube-scheduler's plugins, each after the number of nodes, and the kubelet's reasons. The number of digits is
limited, because every user who may write a pod's status can write the message."""
_LONGEST_READ = 4096
"""Characters of the message that are read and copied."""


def lost(
    upper: Mapping[str, Any],
    *,
    reason: str,
    message: str,
    now: datetime,
    disruption: Disruption = ("", ""),
) -> dict[str, Any]:
    """Return the status of a pod whose lower pod disappeared: Failed, with all started containers terminated.

    The texts are those of the kubelet for containers with an unknown state.

    Args:
        upper: the upper pod.
        reason: of the status.
        message: of the status.
        now: time of the result.
        disruption: the condition ``DISRUPTION_TARGET`` to add.
    """
    status = dict(upper.get("status") or {})
    status |= {"phase": "Failed", "reason": reason, "message": cut(message, _MESSAGE)}
    for field in _CONTAINER_STATUSES:
        if field in status:
            status[field] = [_terminated(container, now) for container in status[field]]
    unready = {"status": "False", "reason": "PodFailed", "lastTransitionTime": timestamps.rfc3339(now)}
    status["conditions"] = [
        {**one, **unready} if one["type"] in _READY and one.get("status") != "False" else one
        for one in status.get("conditions") or ()
    ]
    if disruption[0]:
        cause = {"type": DISRUPTION_TARGET, "status": "True", "reason": disruption[0]}
        cause |= {
            "message": cut(disruption[1], _MESSAGE),
            "lastTransitionTime": timestamps.rfc3339(now),
        }
        others = [one for one in status["conditions"] if one["type"] != DISRUPTION_TARGET]
        status["conditions"] = [*others, cause]
    return _observed(status, upper)


def expired(upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a pod that has not started within its deadline: Failed.

    Its containers stay waiting, as in a kubelet's status. They have no exit code that a Job's podFailurePolicy could match.
    """
    status = {**(upper.get("status") or {}), "phase": "Failed"}
    return _observed(status | {"reason": DEADLINE_EXCEEDED, "message": DEADLINE_MESSAGE}, upper)


def not_ready(
    status: Mapping[str, Any], current: Mapping[str, Any], *, reason: str, message: str, now: datetime
) -> dict[str, Any]:
    """Return a status with Ready set to False, as kube-controller-manager does for a node that is gone.

    Args:
        status: the status last reported by the lower cluster; returned as it is unless Ready is True.
        current: the upper status; if Ready is False there, its transition time is kept.
        reason: of the condition.
        message: of the condition.
        now: the current time.
    """
    if not is_true(status, "Ready"):
        return dict(status)
    before = condition(current, "Ready")
    since = before.get("lastTransitionTime") if before.get("status") == "False" else None
    changes = {"status": "False", "reason": reason, "message": cut(message, _MESSAGE)}
    changes["lastTransitionTime"] = since or timestamps.rfc3339(now)
    conditions = [{**one, **changes} if one["type"] == "Ready" else one for one in status["conditions"]]
    return {**status, "conditions": conditions}


def unresized(
    status: Mapping[str, Any],
    current: Mapping[str, Any],
    *,
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> dict[str, Any]:
    """Return a status with a kubelet's condition of a resize that is not applied, because the lower cluster refuses it.

    The scheduler reads it: an infeasible resize takes no room.

    Args:
        status: the status last reported by the lower cluster.
        current: the upper status, for the transition time.
        reason: ``Deferred`` or ``Infeasible``.
        message: of the condition.
        generation: the upper pod's.
        now: the current time.
    """
    before = condition(current, RESIZE_PENDING)
    since = before.get("lastTransitionTime") if before.get("status") == "True" else None
    added = {
        "type": RESIZE_PENDING,
        **({"observedGeneration": generation} if generation else {}),
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or timestamps.rfc3339(now),
    }
    kept = [one for one in status.get("conditions") or () if one["type"] != RESIZE_PENDING]
    return {**status, "conditions": [*kept, added]}


def pending(
    upper: Mapping[str, Any], *, reason: str, message: str, now: datetime, pod_reason: str = ""
) -> dict[str, Any]:
    """Return the status of a pod that has no lower pod yet: Pending, with waiting containers unless there are too many.

    Args:
        upper: the upper pod.
        reason: why the containers wait, such as CreateContainerConfigError.
        message: why, for users; cut at 1,024 bytes.
        now: the current time.
        pod_reason: also the reason in the pod's status; empty: only the containers have a reason.
    """
    message = cut(message, _MESSAGE)
    status = {**_without_earlier(upper, now), "phase": "Pending"}
    waiting = {"reason": reason, **({"message": message} if message else {})}
    containers = upper["spec"].get("containers") or ()
    if pod_reason:
        status |= {"reason": pod_reason, "message": message}
    if len(containers) * (len(message) + _FRAME) > _LARGEST:
        return status
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
        for container in containers
    ]
    return status


def _without_earlier(upper: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the status of a pod that has no lower pod, without what these functions have reported about earlier causes.

    Programs act on it: the descheduler moves pods that are refused or unschedulable.
    """
    status = dict(upper.get("status") or {})
    if status.get("reason") in _POD_REASONS:
        del status["reason"]
        status.pop("message", None)
    conditions = [one for one in status.get("conditions") or () if one["type"] != names.CONDITION_ADMITTED]
    scheduled = condition(status, _SCHEDULED)
    if scheduled.get("status") == "False" and upper["spec"].get("nodeName"):
        bound = {"type": _SCHEDULED, "status": "True", "lastTransitionTime": timestamps.rfc3339(now)}
        conditions = [bound if one is scheduled else one for one in conditions]
    if "conditions" in status:
        status["conditions"] = conditions
    return status


def unmounted(upper: Mapping[str, Any], *, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """Return the status of a pod that waits for an object which it references: ``pending``, with a kubelet's conditions.

    Args:
        upper: the upper pod.
        reason: as of ``pending``.
        message: as of ``pending``.
        now: the current time.
    """
    status = pending(upper, reason=reason, message=message, now=now)
    unready = " ".join(container["name"] for container in upper["spec"].get("containers") or ())
    text = f"containers with unready status: [{unready}]"
    for kind in _READY:
        status = _with_condition(status, upper, kind=kind, reason="ContainersNotReady", message=text, now=now)
    return status


def refused(upper: Mapping[str, Any], *, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """Return the status of a pod that the lower cluster refuses: Pending, with a condition that says why.

    Args:
        upper: the upper pod.
        reason: reason of the condition: ExceededQuota, Forbidden, Invalid, NotAllowed, …
        message: why, for users; cut at 1,024 bytes.
        now: time of the refusal.
    """
    status = pending(upper, reason=_REFUSED, message=message, pod_reason=_REFUSED, now=now)
    return _with_condition(
        status, upper, kind=names.CONDITION_ADMITTED, reason=reason, message=message, now=now
    )


def unschedulable(upper: Mapping[str, Any], *, message: str, now: datetime) -> dict[str, Any]:
    """Return the status of a pod that no lower node can run: Pending, with a scheduler's Unschedulable condition.

    Args:
        upper: the upper pod.
        message: why no lower node can run it.
        now: time of the result.
    """
    status = {**_without_earlier(upper, now), "phase": "Pending"}
    status.pop("containerStatuses", None)
    return _with_condition(status, upper, kind=_SCHEDULED, reason="Unschedulable", message=message, now=now)


def refusal_reason(reason: str, message: str) -> str:
    """Return the API server's reason for refusing a pod, or our own reason for quota and Pod Security.

    For these two, only the API server's message gives the cause. The result is one of a fixed set, because it is a metric
    label: a hostile server, or a webhook with texts as reasons, would add a series with each refusal.
    """
    if "exceeded quota" in message:
        return "ExceededQuota"
    if "violates PodSecurity" in message:
        return "PodSecurity"
    return reason if reason in _REASONS else OTHER


def _with_condition(
    status: dict[str, Any], upper: Mapping[str, Any], *, kind: str, reason: str, message: str, now: datetime
) -> dict[str, Any]:
    """Return the status with a condition that is False; if it is False in the upper pod, its transition time is kept."""
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    old = condition(upper.get("status"), kind)
    since = old["lastTransitionTime"] if old.get("status") == "False" else timestamps.rfc3339(now)
    conditions[kind] = {
        "type": kind,
        "status": "False",
        "reason": reason,
        "message": cut(message, _MESSAGE),
        "lastTransitionTime": since,
    }
    return {**status, "conditions": list(conditions.values())}


def _observed(status: dict[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return a final status with the generation of the pod that it is about, which a deletion has incremented."""
    generation = upper["metadata"].get("generation")
    return {**status, "observedGeneration": generation} if generation else status


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


def rejection(lower: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the reason and message with which a kubelet would reject a pod that is unschedulable.

    The reason is the one that applies to the most lower nodes. None: the pod is not unschedulable, is being deleted, or
    preempts others.

    Args:
        lower: the lower pod.
    """
    spec, status = lower.get("spec") or {}, lower.get("status") or {}
    scheduled = condition(status, "PodScheduled")
    is_refused = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    if (
        not is_refused
        or spec.get("nodeName")
        or status.get("nominatedNodeName")
        or lower["metadata"].get("deletionTimestamp")
    ):
        return None
    message = str(scheduled.get("message") or "")[:_LONGEST_READ]
    # The part after "preemption:" is about nodes on which evictions would not help.
    found = [
        (int(match[1]), match.expand(reason))
        for pattern, reason in _CAUSES
        for match in pattern.finditer(message.partition("preemption:")[0])
    ]
    return max(found, key=lambda cause: cause[0], default=(0, UNEXPECTED))[1], f"Pod was rejected: {message}"
