"""Translation of a lower pod's status to the upper pod's status.

Source: kubelet ``pkg/kubelet/status`` (readiness gates, patches) and patch strategies of core/v1 PodStatus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model import names
from virtual_node.translate.pods import status_fields

_UPPER_OWN = (
    "nominatedNodeName",  # names an upper node
    "resourceClaimStatuses",  # names claims of the upper cluster
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
    "observedGeneration",  # set from the upper pod's generation
)
"""Fields with values that are valid in one cluster only. The upper pod keeps the values of the upper control
plane, and those of the lower cluster are not copied."""
_KUBELET_CONDITIONS = frozenset(
    {
        "PodScheduled",
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
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


def number_of_containers(spec: Mapping[str, Any]) -> int:
    """Return the number of a pod's containers of all kinds, which decides how large its status may be."""
    return sum(len(spec.get(field) or ()) for field in _CONTAINERS)


def upper_status(
    lower: Mapping[str, Any], upper: Mapping[str, Any], *, reached: int | None = None
) -> dict[str, Any]:
    """Return the status that the upper pod should have.

    It has the lower status' known fields with a bounded size (``status_fields``), except for fields that name
    objects of one cluster and for the QoS class. The API server does not allow changes of the QoS class, but a
    lower LimitRange may change it. Conditions that other clients set on the upper pod stay, including readiness
    gates. As in a kubelet, Ready depends on the readiness gates.

    Args:
        lower: the lower pod with generation and status.
        upper: the upper pod with generation, readiness gates and status.
        reached: lower generation from which on the lower pod has the current upper spec; 0: the lower pod
            does not have it yet; None: the lower pod's current generation.
    """
    containers = number_of_containers(upper["spec"])
    below = status_fields.rebuilt(lower.get("status") or {}, containers=containers)
    above = upper.get("status") or {}
    generation = upper["metadata"].get("generation")
    if reached is None:
        reached = lower["metadata"].get("generation") or 0
    status = {key: value for key, value in below.items() if key not in _UPPER_OWN}
    status |= {key: above[key] for key in _UPPER_OWN if above.get(key)}
    if above.get("qosClass"):
        status["qosClass"] = above["qosClass"]
    if generation and _has_observed(below, reached):
        status["observedGeneration"] = generation
    status["conditions"] = _conditions(
        below.get("conditions") or (), above.get("conditions") or (), upper, reached=reached
    )
    return status


def status_patch(
    current: Mapping[str, Any],
    desired: Mapping[str, Any],
    *,
    uid: str,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """Return a strategic merge patch for ``pods/status`` that turns one status into another; None: nothing to do.

    Conditions are merged by type, so a condition that another client sets between our read and our write is
    kept.

    Args:
        current: the upper pod's status.
        desired: the result of ``upper_status``, or another complete status.
        uid: the upper pod's uid, as a precondition, so that another pod of the same name is not changed.
        annotations: annotations to set in the same patch.
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
    if not change and not annotations:
        return None
    metadata: dict[str, Any] = {"uid": uid}
    if annotations:
        metadata["annotations"] = dict(annotations)
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
        if kind not in conditions and kind not in _KUBELET_CONDITIONS:
            conditions[kind] = dict(foreign)
    gates = upper["spec"].get("readinessGates") or ()
    ready = conditions.get("Ready", {})
    if gates and ready.get("status") == "True" and (unready := _unready_gates(gates, conditions)):
        ready |= {"status": "False", "reason": "ReadinessGatesNotReady", "message": "; ".join(unready)}
        old = before.get("Ready", {})
        if old.get("status") == "False" and old.get("lastTransitionTime"):
            ready["lastTransitionTime"] = old["lastTransitionTime"]
    return list(conditions.values())


def _added(
    lower: Sequence[Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the lower conditions by type, without new types beyond the maximum.

    Conditions of the upper pod stay, so a lower cluster that sends other types each time would add them all.
    """
    room = status_fields.MOST_CONDITIONS - len(before.keys() - _KUBELET_CONDITIONS) - len(_KUBELET_CONDITIONS)
    found: dict[str, dict[str, Any]] = {}
    for condition in lower:
        kind = condition["type"]
        if kind not in before and kind not in _KUBELET_CONDITIONS and kind not in found:
            if room <= 0:
                continue
            room -= 1
        found[kind] = dict(condition)
    return found


def _unready_gates(
    gates: Sequence[Mapping[str, Any]], conditions: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the kubelet's message for each readiness gate that is not True."""
    found = []
    for gate in gates:
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
