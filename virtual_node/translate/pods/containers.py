"""The containers that an upper and a lower pod have in common: their statuses, and which of them users may reach.

Admission of the lower cluster may add containers, and users there may add debug containers. The upper spec has none of them,
so kubectl would count them as ready containers that the pod does not have (``2/1``), and the API server would treat a native
sidecar as a container that never restarts, and refuse its statuses.

Source: ``ValidatePodStatusUpdate`` in pkg/apis/core/validation of Kubernetes 1.34; ``printPod`` of kubectl.

``reachable`` is for ``exec``, ``attach`` and ``logs``. Names of containers that the lower cluster has added appear in events. Users of the upper pod can add a debug container of such
a name to it, which the lower API server does not accept a second time, and would reach a container that is not theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model.policy.decision import violations
from clusterset.model.policy.findings import DEBUG_CONTAINERS
from clusterset.model.policy.rules import Effective
from controller_runtime.apimachinery import readable

_LISTS = {
    "initContainerStatuses": "initContainers",
    "containerStatuses": "containers",
    "ephemeralContainerStatuses": "ephemeralContainers",
}
"""Lists of a status, and the lists of the spec that they describe."""
FINISHES_AFTER = "The pod finishes after"
"""Begin of the message of a pod that only containers which the lower cluster added keep from finishing."""
_SHOWN = 5
"""Containers that a message names."""

_Body = Mapping[str, Any]
_DEBUG = "ephemeralContainers"
_KINDS = ("containers", "initContainers", _DEBUG)


def of_upper_containers(below: _Body, spec: _Body, above: _Body) -> dict[str, Any]:
    """Return a lower pod's status with the statuses of the containers that the upper pod has.

    A container that has finished for good in the upper pod stays finished. The API server refuses another state, which occurs
    if the lower cluster has changed the restart policy.

    Args:
        below: the lower pod's status, as ``rebuilt`` returns it.
        spec: the upper pod's spec.
        above: the upper pod's status.
    """
    if not spec.get("containers"):
        return dict(below)  # the cache keeps only a stub of the pod, so its containers are unknown
    found = dict(below)
    for field, kind in _LISTS.items():
        containers = {container["name"]: container for container in spec.get(kind) or ()}
        before = {status["name"]: status for status in above.get(field) or ()}
        statuses = [
            _final(status, before.get(status["name"]), containers[status["name"]], spec, field)
            for status in below.get(field) or ()
            if status["name"] in containers
        ]
        if statuses:
            found[field] = statuses
        else:
            found.pop(field, None)
    if not found.get("message") and (message := _waiting_for_others(below, found, spec)):
        found["message"] = message
    return found


def _final(status: _Body, before: _Body | None, container: _Body, spec: _Body, field: str) -> _Body:
    """Return a container's status, or the previous one if that is final."""
    if before is None or (exit_code := _exit_code(before)) is None or _exit_code(status) is not None:
        return status
    may_restart = field != "ephemeralContainerStatuses" and _may_restart(container, spec, exit_code)
    return status if may_restart else before


def _exit_code(status: _Body) -> int | None:
    """Return the exit code of a terminated container; None: it has not terminated."""
    terminated = (status.get("state") or {}).get("terminated")
    return None if terminated is None else terminated.get("exitCode", 0)


def _may_restart(container: _Body, spec: _Body, exit_code: int) -> bool:
    """Report whether a container with that exit code may start again (KEP-753, KEP-5307, KEP-5532)."""
    if _restarts_all(spec):
        return True
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (exit_code in (codes.get("values") or ())) == (codes.get("operator") == "In"):
            return True
    policy = container.get("restartPolicy") or spec.get("restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _restarts_all(spec: _Body) -> bool:
    """Report whether the exit of some container restarts all containers."""
    return any(
        rule.get("action") == "RestartAllContainers"
        for kind in ("initContainers", "containers")
        for container in spec.get(kind) or ()
        for rule in container.get("restartPolicyRules") or ()
    )


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


def reachable(above: Mapping[str, Any], below: Mapping[str, Any], rules: Effective) -> frozenset[str]:
    """Return the names of an upper pod's containers, without those under which the lower pod has another container.

    That is a container of another kind, or a debug container with rights that the policy does not allow in the upper pod. An
    administrator of the lower cluster has added it.

    Args:
        above: the upper pod's spec.
        below: the lower pod's spec.
        rules: the policy for the upper namespace.
    """
    kinds = {container["name"]: kind for kind in _KINDS for container in below.get(kind) or ()}
    found = {
        container["name"]
        for kind in _KINDS
        for container in above.get(kind) or ()
        if kinds.get(container["name"], kind) == kind
    }
    debugging = [container for container in below.get(_DEBUG) or () if container["name"] in found]
    if debugging:
        spec = {"securityContext": below.get("securityContext"), _DEBUG: debugging}
        refused = violations({"metadata": {}, "spec": spec}, rules)
        # Overrides may choose images that users must not choose.
        fields = [one.field for one in refused if one.rule != "images"]
        found -= {field.removeprefix(DEBUG_CONTAINERS).partition("]")[0] for field in fields}
    return frozenset(found)
