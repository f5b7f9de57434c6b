"""Reads fields of pods, and conditions of any object's status. Does no IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model import names

CONTAINER_KINDS = ("initContainers", "containers", "ephemeralContainers")
"""Fields of a pod's spec with containers."""
FINISHED = ("Succeeded", "Failed")
"""Phases in which no container of a pod runs again."""
_STARTING = frozenset({None, "", "ContainerCreating", "PodInitializing"})
"""Reasons of waiting containers that nothing prevents from starting."""


def is_sidecar(container: Mapping[str, Any]) -> bool:
    """Report whether an init container of a pod's spec runs as long as the pod (KEP-753)."""
    return container.get("restartPolicy") == "Always"


def is_finished(status: Mapping[str, Any] | None) -> bool:
    """Report whether a pod's status has phase Succeeded or Failed."""
    return (status or {}).get("phase") in FINISHED


def condition(status: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """Return the condition of this type in an object's status; empty if it has none."""
    for listed in (status or {}).get("conditions") or ():
        if listed.get("type") == kind:
            return listed  # type: ignore[no-any-return]
    return {}


def is_true(status: Mapping[str, Any] | None, kind: str) -> bool:
    """Report whether an object's status has the condition of this type with status True."""
    return condition(status, kind).get("status") == "True"


def why_not_started(status: Mapping[str, Any] | None) -> str:
    """Return the reason and message of the condition or container that keeps a pod from starting; empty: none is known."""
    status = status or {}
    conditions = (condition(status, kind) for kind in (names.CONDITION_ADMITTED, "PodScheduled"))
    reasons = [each for each in conditions if each.get("status") == "False"]
    for field in ("initContainerStatuses", "containerStatuses"):
        states = (container.get("state") or {} for container in status.get(field) or ())
        waiting = (state.get("waiting") or {} for state in states)
        reasons += (each for each in waiting if each.get("reason") not in _STARTING)
    texts = (f"{each.get('reason') or ''}: {each.get('message') or ''}".strip(": ") for each in reasons)
    return next((" ".join(text.split()) for text in texts if text), "")


def claim_names(pod: Mapping[str, Any]) -> list[str]:
    """Return the names of the PVCs of a pod's volumes; for a generic ephemeral volume ``<pod>-<volume>``.

    A pod without a name yet, as in admission, has no PVCs of ephemeral volumes.
    """
    found: dict[str, None] = {}
    for volume in pod["spec"].get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            found[claim.get("claimName") or ""] = None
        elif "ephemeral" in volume and pod["metadata"].get("name"):
            found[f"{pod['metadata']['name']}-{volume['name']}"] = None
    return [name for name in found if name]
