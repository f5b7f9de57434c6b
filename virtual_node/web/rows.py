"""What a person wants to know of one pod, in a line: pure functions over pod objects.

Source: kubectl's printer (``pkg/printers/internalversion/printers.go``) for the status word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime.api import names

_WAITING_WELL = frozenset({"ContainerCreating", "PodInitializing"})


def pod_row(upper: Mapping[str, Any], lower: Mapping[str, Any] | None) -> dict[str, Any]:
    """A pod in a table.

    Args:
        upper: the upper pod.
        lower: its lower pod; None: there is none (yet).

    Returns:
        namespace, name, node, lowerNamespace, lowerNode, status (as kubectl prints it), why (empty when all is
        well), ready (``1/2``), restarts, created (RFC 3339), trouble (bool).
    """
    metadata, spec, status = upper["metadata"], upper["spec"], upper.get("status") or {}
    containers = status.get("containerStatuses") or ()
    word, why = status_word(upper)
    if not why:
        why = _condition_message(status)
    settled = status.get("phase") in {"Running", "Succeeded"} and word in {
        "Running",
        "Completed",
        "Succeeded",
    }
    ready = sum(bool(container.get("ready")) for container in containers)
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "node": spec.get("nodeName", ""),
        "lowerNamespace": lower["metadata"]["namespace"] if lower else "",
        "lowerNode": (lower["spec"].get("nodeName") or "") if lower else "",
        "status": word,
        "why": why,
        "ready": f"{ready}/{len(spec.get('containers') or ())}",
        "restarts": sum(int(container.get("restartCount") or 0) for container in containers),
        "created": metadata.get("creationTimestamp", ""),
        "trouble": not settled and word not in _WAITING_WELL and not metadata.get("deletionTimestamp"),
    }


def status_word(pod: Mapping[str, Any]) -> tuple[str, str]:
    """The STATUS column of ``kubectl get pods``, and the message behind it."""
    status = pod.get("status") or {}
    word, why = status.get("reason") or status.get("phase") or "Unknown", status.get("message") or ""
    initial = status.get("initContainerStatuses") or ()
    for number, container in enumerate(initial):
        state = container.get("state") or {}
        ended = state.get("terminated")
        if (ended and ended.get("exitCode") == 0) or container.get("started"):
            continue
        if ended:
            return f"Init:{ended.get('reason') or _exit(ended)}", ended.get("message") or ""
        waiting = state.get("waiting") or {}
        if waiting.get("reason") not in {None, "", "PodInitializing"}:
            return f"Init:{waiting['reason']}", waiting.get("message") or ""
        return f"Init:{number}/{len(initial)}", ""
    for container in reversed(status.get("containerStatuses") or ()):
        state = container.get("state") or {}
        if reason := (state.get("waiting") or {}).get("reason"):
            word, why = reason, state["waiting"].get("message") or why
        elif ended := state.get("terminated"):
            word, why = ended.get("reason") or _exit(ended), ended.get("message") or why
    if word == "Completed" and any(
        "running" in (container.get("state") or {}) for container in status.get("containerStatuses") or ()
    ):
        word = "Running"
    if pod["metadata"].get("deletionTimestamp"):
        word = "Terminating"
    return word, why


def _condition_message(status: Mapping[str, Any]) -> str:
    if status.get("phase") not in {None, "Pending"}:
        return ""
    for kind in (names.CONDITION_ADMITTED, "PodScheduled"):
        for condition in status.get("conditions") or ():
            if condition["type"] == kind and condition.get("status") == "False":
                return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _exit(ended: Mapping[str, Any]) -> str:
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode')}"
