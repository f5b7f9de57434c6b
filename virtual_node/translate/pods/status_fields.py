"""The fields of a lower pod's status that the upper pod may get, with bounded sizes.

A hostile lower API server sends unknown fields and megabytes of text, and each status is stored in the upper etcd. So
the status is rebuilt from known fields. A status that is still too large loses messages and details.

Source: core/v1 ``PodStatus`` of Kubernetes 1.31 to 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

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
                    {"resourceID": word(_ID), "health": word(_REASON), "message": text(_MESSAGE)},
                    required=("resourceID",),
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


def _present(status: dict[str, Any] | None) -> dict[str, Any]:
    return {field: value for field, value in (status or {}).items() if value is not None}


def _is_within(status: Mapping[str, Any], limit: int) -> bool:
    return len(msgspec.json.encode(status)) <= limit
