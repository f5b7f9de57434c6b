"""The containers that an upper and a lower pod have in common: their statuses, and which of them users may reach.

Admission of the lower cluster may add containers, and users there may add debug containers. The upper spec has none of them,
so kubectl would count them as ready containers that the pod does not have (``2/1``), and the API server would treat a native
sidecar as a container that never restarts, and refuse its statuses. It also refuses the health of devices that the upper
container does not request.

Source: ``ValidatePodStatusUpdate`` in pkg/apis/core/validation of Kubernetes 1.34 to 1.37; ``printPod`` of kubectl.

``reachable`` is for ``exec``, ``attach`` and ``logs``. Names of containers that the lower cluster has added appear in events.
Users of the upper pod can add a debug container of such a name to it, which the lower API server does not accept a second time,
and would reach a container that is not theirs. So a debug container of the lower pod counts as the upper pod's only if an
annotation of the lower pod says that we added it. It is written after the addition has succeeded. Without it, as after a crash
or an upgrade, the ``managedFields`` of the lower pod show who added the container.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from clusterset.model import names
from clusterset.model.declared_features import restarts_all
from controller_runtime.apimachinery import readable
from controller_runtime.apimachinery.decoding import decode

FINISHES_AFTER = "The pod finishes after"
"""Begin of the message of a pod that only containers which the lower cluster added keep from finishing."""
_SHOWN = 5
"""Containers that a message names."""

_Body = Mapping[str, Any]
DEBUGGING = "ephemeralcontainers"
"""The subresource of pods that adds debug containers."""
_DEBUG = "ephemeralContainers"
_DEBUG_STATUSES = "ephemeralContainerStatuses"
_DEVICES = "allocatedResourcesStatus"
_ITEM = "k:"
"""Begin of a key of ``fieldsV1`` for an item of a list, before the JSON of the fields that identify the item."""
_LISTS = {
    "initContainerStatuses": "initContainers",
    "containerStatuses": "containers",
    _DEBUG_STATUSES: _DEBUG,
}
"""Lists of a status, and the lists of the spec that they describe."""
_KINDS = ("containers", "initContainers", _DEBUG)


def of_upper_containers(below: _Body, spec: _Body, above: _Body, recorded: Container[str]) -> dict[str, Any]:
    """Return a lower pod's status with the statuses of the containers that the upper pod has.

    A container that has finished for good in the upper pod stays finished. The API server refuses another state, which occurs
    if the lower cluster has changed the restart policy. A debug container that is not recorded as added by us keeps its previous
    status, because it may be the lower cluster's.

    Args:
        below: the lower pod's status, as ``rebuilt`` returns it.
        spec: the upper pod's spec.
        above: the upper pod's status.
        recorded: the result of ``recorded_debuggers`` for the lower pod.
    """
    if not spec.get("containers"):
        return dict(below)  # the cache keeps only a stub of the pod, so its containers are unknown
    found = dict(below)
    for field, kind in _LISTS.items():
        containers = {container["name"]: container for container in spec.get(kind) or ()}
        before = {status["name"]: status for status in above.get(field) or ()}
        statuses: list[_Body] = []
        for status in below.get(field) or ():
            name = status["name"]
            if name not in containers:
                continue
            if field != _DEBUG_STATUSES or name in recorded:
                shown = _of_upper_devices(status, containers[name])
                statuses.append(_final(shown, before.get(name), containers[name], spec, field))
            elif name in before:
                statuses.append(before[name])
        if statuses:
            found[field] = statuses
        else:
            found.pop(field, None)
    if not found.get("message") and (message := _waiting_for_others(below, found, spec)):
        found["message"] = message
    return found


def _of_upper_devices(status: _Body, container: _Body) -> _Body:
    """Return a container's status without the health of devices that the upper container does not request.

    They are requested by ResourceClaims that the webhook has moved to an annotation, by an override, or by lower admission. The
    upper API server would refuse the statuses of all containers (``validateContainerStatusAllocatedResourcesStatus``).
    """
    if not (devices := status.get(_DEVICES)):
        return status
    requested = container.get("resources") or {}
    known = {
        *(requested.get("requests") or ()),
        *(
            f"claim:{one['name']}/{one['request']}" if one.get("request") else f"claim:{one['name']}"
            for one in requested.get("claims") or ()
        ),
    }
    kept = [one for one in devices if one["name"] in known]
    rest = {key: value for key, value in status.items() if key != _DEVICES}
    return {**rest, _DEVICES: kept} if kept else rest


def _final(status: _Body, before: _Body | None, container: _Body, spec: _Body, field: str) -> _Body:
    """Return a container's status, or the previous one if that is final."""
    if before is None or (exit_code := _exit_code(before)) is None or _exit_code(status) is not None:
        return status
    may_restart = field != _DEBUG_STATUSES and _may_restart(container, spec, exit_code)
    return status if may_restart else before


def _exit_code(status: _Body) -> int | None:
    """Return the exit code of a terminated container; None: it has not terminated."""
    terminated = (status.get("state") or {}).get("terminated")
    return None if terminated is None else terminated.get("exitCode", 0)


def _may_restart(container: _Body, spec: _Body, exit_code: int) -> bool:
    """Report whether a container with that exit code may start again (KEP-753, KEP-5307, KEP-5532)."""
    if restarts_all(spec):
        return True
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (exit_code in (codes.get("values") or ())) == (codes.get("operator") == "In"):
            return True
    policy = container.get("restartPolicy") or spec.get("restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _waiting_for_others(below: _Body, found: _Body, spec: _Body) -> str:
    """Return the message of a pod that has not finished only because added containers run; empty: it is another pod."""
    statuses: Sequence[_Body] = found.get("containerStatuses") or ()
    containers = {container["name"]: container for container in spec["containers"]}
    if below.get("phase") != "Running" or len(statuses) < len(containers):
        return ""
    for status in statuses:
        code = _exit_code(status)
        if code is None or _may_restart(containers[status["name"]], spec, code):
            return ""
    others = [
        status["name"]
        for status in below.get("containerStatuses") or ()
        if status["name"] not in containers and _exit_code(status) is None
    ]
    if not others:
        return ""
    return (
        f"{FINISHES_AFTER} {readable.some(others, limit=_SHOWN)}: a container that was added in the lower cluster, "
        "and still runs"
    )


def reachable(above: _Body, recorded: Container[str]) -> frozenset[str]:
    """Return the names of an upper pod's containers, of its debug containers only those that we added to the lower pod.

    Args:
        above: the upper pod's spec.
        recorded: the result of ``recorded_debuggers`` for the lower pod.
    """
    return frozenset(
        container["name"]
        for kind in _KINDS
        for container in above.get(kind) or ()
        if kind != _DEBUG or container["name"] in recorded
    )


def recorded_debuggers(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the debug containers that we added to a lower pod, by its annotations."""
    return frozenset(filter(None, annotations.get(names.ANNOTATION_DEBUG_CONTAINERS, "").split(",")))


def record_of_debuggers(added: Iterable[str]) -> dict[str, str]:
    """Return the annotation of a lower pod to which we added these debug containers."""
    return {names.ANNOTATION_DEBUG_CONTAINERS: ",".join(sorted(added))}


def unrecorded_debuggers(above: _Body, below: _Body, recorded: Container[str]) -> frozenset[str]:
    """Return the names of debug containers that both pod specs have, and that are not recorded as added by us."""
    of_lower = {container["name"] for container in below.get(_DEBUG) or ()}
    of_upper = {container["name"] for container in above.get(_DEBUG) or ()}
    return frozenset(name for name in of_lower & of_upper if name not in recorded)


def debuggers_added_by(manager: str, live: _Body) -> frozenset[str]:
    """Return the names of the debug containers that a field manager added to a pod, by the pod's ``managedFields``.

    Debug containers cannot change, so no other field manager can own their fields later.

    Args:
        manager: the ``fieldManager`` of the requests.
        live: the pod as the API server returns it. Without valid ``managedFields``, nothing is proved.
    """
    try:
        return frozenset(
            str(decode(key.removeprefix(_ITEM))["name"])
            for entry in live["metadata"].get("managedFields") or ()
            if entry.get("manager") == manager and entry.get("subresource") == DEBUGGING
            for key in ((entry.get("fieldsV1") or {}).get("f:spec") or {}).get(f"f:{_DEBUG}") or ()
            if key.startswith(_ITEM)
        )
    except (ValueError, TypeError, LookupError, AttributeError):  # an API server may send anything
        return frozenset()
