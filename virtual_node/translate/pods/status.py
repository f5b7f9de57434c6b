"""Translation of a lower pod's status to the upper pod's status.

A hostile lower API server sends unknown fields and megabytes of text, and each status is stored in the upper etcd. So
the status is rebuilt from known fields with bounded sizes (``rebuilt``). A status that is still too large loses messages
and details.

Source: core/v1 ``PodStatus`` of Kubernetes 1.31 to 1.37 and its patch strategies, kubelet ``pkg/kubelet/status`` (readiness
gates, patches).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from clusterset.model import names
from clusterset.model.pod.conditions import CONTAINER_KINDS
from controller_runtime.apimachinery import timestamps
from virtual_node.translate.base.fields import (
    Reader,
    choice,
    count,
    fields,
    flag,
    int32,
    int64,
    is_address,
    is_key,
    is_name,
    listed,
    matching,
    moment,
    quantities,
    text,
    word,
)
from virtual_node.translate.pods.containers import of_upper_containers, recorded_debuggers

BASE, PER_CONTAINER, MOST = 64 << 10, 4 << 10, 1 << 20
"""Maximum bytes of a status: for the pod, for each container of the upper pod, and in all. etcd accepts 1.5 MB."""
_TERMINATION_MESSAGE = 4096
"""Bytes of a container's message. The kubelet cuts termination messages at 4,096 bytes."""
_SHORT_MESSAGE = 256
"""Bytes of a message in a status that is too large otherwise."""
_MESSAGE = 1024
_REASON = 256
MOST_CONDITIONS = 32
"""Maximum number of conditions; nine are the kubelet's."""
_MOST_ADDRESSES, _MOST_CONTAINERS, _MOST_MOUNTS, _MOST_DEVICES = 16, 1000, 500, 64
_MOST_GROUPS = 1000
_IMAGE, _ID = 1024, 512
_PATH = 4096

_name = matching(is_name)
_address = matching(is_address)
_volume_health = fields(
    {
        "name": _name,
        "healthConditions": listed(
            fields(
                {"status": word(_REASON), "reason": word(_REASON), "message": text(_MESSAGE)},
                required=("status",),
            ),
            16,
        ),
        "lastTransitionTime": moment,
    },
    required=("name",),
)
_condition = fields(
    {
        "type": matching(is_key),
        "observedGeneration": int64,
        "status": choice("True", "False", "Unknown"),
        "lastProbeTime": moment,
        "lastTransitionTime": moment,
        "reason": text(_REASON),
        "message": text(_MESSAGE),
    },
    required=("type", "status"),
)
_addresses = listed(fields({"ip": _address}, required=("ip",)), _MOST_ADDRESSES)
_resources = fields(
    {
        "limits": quantities,
        "requests": quantities,
        "claims": listed(
            fields({"name": _name, "request": word(_REASON)}, required=("name",)), _MOST_DEVICES
        ),
    }
)
_mounts = listed(
    fields(
        {
            "name": _name,
            "mountPath": word(_PATH),
            "readOnly": flag,
            "recursiveReadOnly": word(_REASON),
            "volumeStatus": fields({"image": fields({"imageRef": word(_IMAGE)})}),
        },
        required=("name", "mountPath"),
    ),
    _MOST_MOUNTS,
)
_user = fields(
    {"linux": fields({"uid": int64, "gid": int64, "supplementalGroups": listed(int64, _MOST_GROUPS)})}
)
_devices = listed(
    fields(
        {
            "name": matching(lambda value: isinstance(value, str) and all(map(is_key, value.split(":")))),
            "resources": listed(
                fields(
                    {
                        "resourceID": word(_ID),
                        "health": choice("Healthy", "Unhealthy", "Unknown"),
                        "message": text(_MESSAGE),
                    },
                    required=("resourceID", "health"),
                ),
                _MOST_DEVICES,
            ),
        },
        required=("name",),
    ),
    _MOST_DEVICES,
)


def _state(message: int) -> Reader:
    return fields(
        {
            "waiting": fields({"reason": text(_REASON), "message": text(message)}),
            "running": fields({"startedAt": moment}),
            "terminated": fields(
                {
                    "exitCode": int32,
                    "signal": int32,
                    "reason": text(_REASON),
                    "message": text(message),
                    "startedAt": moment,
                    "finishedAt": moment,
                    "containerID": word(_ID),
                },
                required=("exitCode",),
            ),
        }
    )


_DETAILS: Mapping[str, Reader] = {
    "allocatedResources": quantities,
    "resources": _resources,
    "volumeMounts": _mounts,
    "user": _user,
    "allocatedResourcesStatus": _devices,
    "stopSignal": word(_REASON),
}
"""Fields of a container that a status without room loses first."""


def _containers(message: int, details: Mapping[str, Reader]) -> Reader:
    container = fields(
        {
            "name": _name,
            "state": _state(message),
            "lastState": _state(message),
            "ready": flag,
            "restartCount": count,
            "image": word(_IMAGE),
            "imageID": word(_IMAGE),
            "containerID": word(_ID),
            "started": flag,
            **details,
        },
        required=("name",),
    )
    return listed(container, _MOST_CONTAINERS)


def _status(containers: Reader) -> Reader:
    return fields(
        {
            "observedGeneration": int64,
            "phase": choice("Pending", "Running", "Succeeded", "Failed", "Unknown"),
            "conditions": listed(_condition, MOST_CONDITIONS),
            "message": text(_MESSAGE),
            "reason": text(_REASON),
            "hostIP": _address,
            "hostIPs": _addresses,
            "podIP": _address,
            "podIPs": _addresses,
            "startTime": moment,
            "initContainerStatuses": containers,
            "containerStatuses": containers,
            "ephemeralContainerStatuses": containers,
            "qosClass": choice("Guaranteed", "Burstable", "BestEffort"),
            "resize": word(_REASON),
            "allocatedResources": quantities,
            "resources": _resources,
            "volumeHealth": listed(_volume_health, _MOST_MOUNTS),
        }
    )


_COMPLETE = _status(_containers(_TERMINATION_MESSAGE, _DETAILS))
_REDUCED = (_status(_containers(_SHORT_MESSAGE, _DETAILS)), _status(_containers(_SHORT_MESSAGE, {})))
_CONTAINER_LISTS = ("ephemeralContainerStatuses", "initContainerStatuses", "containerStatuses")
_LARGE = ("volumeHealth", "allocatedResources", "resources")


def rebuilt(status: Mapping[str, Any], *, containers: int) -> dict[str, Any]:
    """Return a lower pod's status with its known fields, and with a bounded size.

    Args:
        status: the lower pod's.
        containers: number of containers of the upper pod, of all kinds; each adds 4 KiB to the limit.
    """
    limit = min(BASE + PER_CONTAINER * containers, MOST)
    found = _present(_COMPLETE(status))
    for reduce in _REDUCED:
        if _is_within(found, limit):
            return found
        found = _present(reduce(status))
    for field in (*_LARGE, *_CONTAINER_LISTS, "conditions"):
        if _is_within(found, limit):
            break
        found.pop(field, None)
    return found


def has_failed_to_pull(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Report whether a pull of a pod's images has failed since an earlier status; a back-off alone is no new failure."""
    earlier = dict(_pull_failures(before))
    return any(
        reason == "ErrImagePull" != earlier.get(name) or name not in earlier
        for name, reason in _pull_failures(after)
    )


def _pull_failures(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and reason of each container whose image could not be pulled. Names are unique in a pod."""
    for field in _CONTAINER_LISTS:
        for container in status.get(field) or ():
            reason = ((container.get("state") or {}).get("waiting") or {}).get("reason")
            if reason in ("ErrImagePull", "ImagePullBackOff"):
                yield container["name"], reason


def _present(status: dict[str, Any] | None) -> dict[str, Any]:
    return {field: value for field, value in (status or {}).items() if value is not None}


def _is_within(status: Mapping[str, Any], limit: int) -> bool:
    return len(msgspec.json.encode(status)) <= limit


_UPPER_OWN = (
    "nominatedNodeName",  # names an upper node
    "resourceClaimStatuses",  # names claims of the upper cluster
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
    "observedGeneration",  # set from the upper pod's generation
)
"""Fields with values that are valid in one cluster only. The upper pod keeps the values of the upper control
plane, and those of the lower cluster are not copied."""
_SCHEDULED = "PodScheduled"
_KUBELET_CONDITIONS = frozenset(
    {
        _SCHEDULED,
        "Initialized",
        "ContainersReady",
        "Ready",
        "PodReadyToStartContainers",
        "PodResizePending",
        "PodResizeInProgress",
        "AllContainersRestarting",
        names.CONDITION_ADMITTED,
    }
)
"""Conditions that describe the lower pod. They are removed when the lower pod no longer has them; other
conditions of the upper pod stay. DisruptionTarget is not included, because the upper control plane sets it,
too (eviction, preemption), and a Job's podFailurePolicy reads it. Source: kubelet ``PodConditionByKubelet``,
``PodConditionSharedByKubelet``."""
_REPLACED_LISTS = ("podIPs", "hostIPs")


def number_of_containers(spec: Mapping[str, Any]) -> int:
    """Return the number of a pod's containers of all kinds, which decides how large its status may be."""
    return sum(len(spec.get(field) or ()) for field in CONTAINER_KINDS)


def upper_status(
    lower: Mapping[str, Any],
    upper: Mapping[str, Any],
    *,
    reached: int | None = None,
    now: datetime | None = None,
) -> dict[str, Any]:
    """Return the status that the upper pod should have.

    It has the lower status' known fields with a bounded size (``rebuilt``), except for fields that name
    objects of one cluster and for the QoS class. The API server does not allow changes of the QoS class, but a
    lower LimitRange may change it. Containers that were added in the lower cluster are left out (``containers``), but
    phase and conditions are those of the whole lower pod. Conditions that other clients set on the upper pod stay,
    including readiness gates. As in a kubelet, Ready depends on the readiness gates.

    Args:
        lower: the lower pod with generation, annotations and status.
        upper: the upper pod with generation, readiness gates and status.
        reached: lower generation from which on the lower pod has the current upper spec; 0: the lower pod
            does not have it yet; None: the lower pod's current generation.
        now: the current time, at which a readiness gate changes Ready; None: when the lower pod became Ready.
    """
    containers = number_of_containers(upper["spec"])
    above = upper.get("status") or {}
    below = of_upper_containers(
        rebuilt(lower.get("status") or {}, containers=containers),
        upper["spec"],
        above,
        recorded_debuggers(lower["metadata"].get("annotations") or {}),
    )
    generation = upper["metadata"].get("generation")
    if reached is None:
        reached = lower["metadata"].get("generation") or 0
    status = {key: value for key, value in below.items() if key not in _UPPER_OWN}
    status |= {key: above[key] for key in _UPPER_OWN if above.get(key)}
    if health := status.pop("volumeHealth", None):
        # Lower admission may add volumes. The API server refuses names that are not in the spec.
        volumes = {volume["name"] for volume in upper["spec"].get("volumes") or ()}
        if known := [one for one in health if one["name"] in volumes]:
            status["volumeHealth"] = known
    if above.get("qosClass"):
        status["qosClass"] = above["qosClass"]
    if generation and _has_observed(below, reached):
        status["observedGeneration"] = generation
    status["conditions"] = _conditions(
        below.get("conditions") or (), above.get("conditions") or (), upper, reached=reached, now=now
    )
    return status


def status_patch(
    current: Mapping[str, Any],
    desired: Mapping[str, Any],
    *,
    uid: str,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """Return a strategic merge patch for ``pods/status`` that turns one status into another; None: nothing to do.

    Conditions are merged by type, so a condition that another client sets between our read and our write is
    kept.

    Args:
        current: the upper pod's status.
        desired: the result of ``upper_status``, or another complete status.
        uid: the upper pod's uid, as a precondition, so that another pod of the same name is not changed.
        annotations: annotations to set in the same patch, or to remove (None).
        labels: labels to set in the same patch.
    """
    change: dict[str, Any] = {}
    for field, value in desired.items():
        before = current.get(field)
        if before == value:
            continue
        if field == "conditions":
            if merged := _merge_conditions(before or (), value):
                change[field] = merged
        elif field in _REPLACED_LISTS:
            change[field] = [{"$patch": "replace"}, *value]
        else:
            change[field] = value
    for field, value in current.items():
        if field in desired or value is None:
            continue
        change[field] = [{"$patch": "replace"}] if field in _REPLACED_LISTS else None
    if not change and not annotations and not labels:
        return None
    metadata: dict[str, Any] = {"uid": uid}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    return {"metadata": metadata, "status": change} if change else {"metadata": metadata}


def _has_observed(status: Mapping[str, Any], reached: int) -> bool:
    """Report whether a lower status or condition was observed for the current upper spec."""
    return bool(reached) and (status.get("observedGeneration") or 0) >= reached


def _conditions(
    lower: Sequence[Mapping[str, Any]],
    above: Sequence[Mapping[str, Any]],
    upper: Mapping[str, Any],
    *,
    reached: int,
    now: datetime | None,
) -> list[dict[str, Any]]:
    before = {condition["type"]: condition for condition in above}
    conditions = _added(lower, before)
    for kind, condition in conditions.items():
        if "observedGeneration" in condition:
            seen = before.get(kind, {}).get("observedGeneration")
            if _has_observed(condition, reached):
                seen = upper["metadata"].get("generation")
            if seen:
                condition["observedGeneration"] = seen
            else:
                del condition["observedGeneration"]
    for kind, foreign in before.items():
        # The upper scheduler has bound the pod. Until the lower one looks at it, there is no other condition.
        is_bound = kind == _SCHEDULED and foreign.get("status") == "True"
        if kind not in conditions and (is_bound or kind not in _KUBELET_CONDITIONS):
            conditions[kind] = dict(foreign)
    ready = conditions.get("Ready", {})
    if ready.get("status") == "True" and upper["spec"].get("readinessGates"):
        if unready := _unready_gates(upper["spec"], conditions):
            ready |= {"status": "False", "reason": "ReadinessGatesNotReady", "message": ", ".join(unready)}
        if since := _gated_since(ready, before.get("Ready", {}), now):
            ready["lastTransitionTime"] = since
    return list(conditions.values())


def _gated_since(ready: Mapping[str, Any], before: Mapping[str, Any], now: datetime | None) -> str:
    """Return when a pod with readiness gates became Ready, or not Ready; empty: unknown.

    The gates change it later than the lower pod's containers, and Deployments count ``minReadySeconds`` from this time. As in a
    kubelet (``updateLastTransitionTime``), it is kept until the status changes.

    Args:
        ready: the condition with its new status and the time at which the lower pod became Ready.
        before: the upper pod's condition; empty: none.
        now: as of ``upper_status``.
    """
    is_same = before.get("status") == ready["status"]
    since = before.get("lastTransitionTime") if is_same else None
    since = str(since or (timestamps.rfc3339(now) if now is not None else ""))
    if ready["status"] != "True":
        return since
    try:  # it may have become unready in between, unnoticed
        return max(since, str(ready.get("lastTransitionTime") or ""), key=timestamps.parse)
    except ValueError:
        return since


def _added(
    lower: Sequence[Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the lower conditions by type, without new types beyond the maximum.

    Conditions of the upper pod stay, so a lower cluster that sends other types each time would add them all.
    """
    room = MOST_CONDITIONS - len(before.keys() - _KUBELET_CONDITIONS) - len(_KUBELET_CONDITIONS)
    found: dict[str, dict[str, Any]] = {}
    for condition in lower:
        kind = condition["type"]
        if kind not in before and kind not in _KUBELET_CONDITIONS and kind not in found:
            if room <= 0:
                continue
            room -= 1
        found[kind] = dict(condition)
    return found


def unready_gates(spec: Mapping[str, Any], upper: Mapping[str, Any], lower: Mapping[str, Any]) -> list[str]:
    """Return the kubelet's message for each readiness gate of an upper pod that is not True.

    Args:
        spec: the upper pod's.
        upper: status of the upper pod.
        lower: status of its lower pod.
    """
    found = [*(upper.get("conditions") or ()), *(lower.get("conditions") or ())]
    return _unready_gates(spec, {condition["type"]: condition for condition in found})


def _unready_gates(spec: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = []
    for gate in spec.get("readinessGates") or ():
        kind = gate["conditionType"]
        status = conditions.get(kind, {}).get("status")
        if kind not in conditions:
            found.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif status != "True":
            found.append(f'the status of pod readiness gate "{kind}" is not "True", but {status}')
    return found


def _merge_conditions(
    current: Sequence[Mapping[str, Any]], desired: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    before = {condition["type"]: condition for condition in current}
    after = {condition["type"]: condition for condition in desired}
    changes: list[dict[str, Any]] = []
    for kind, condition in after.items():
        old = before.get(kind)
        if old == condition:
            continue
        removed = {key: None for key in old if key not in condition} if old else {}
        changes.append({**condition, **removed})
    changes += [
        {"$patch": "delete", "type": kind}
        for kind in before
        if kind not in after and kind in _KUBELET_CONDITIONS
    ]
    return changes
