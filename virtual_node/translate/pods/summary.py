"""A one-line summary of a pod for people.

Source: kubectl's printer (``pkg/printers/internalversion/printers.go``) for the STATUS column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_finished, is_sidecar, is_true

_NORMAL_WAITS = frozenset({"ContainerCreating", "PodInitializing"})
_INITIALIZING = re.compile(r"Init:\d+/\d+")


def pod_row(upper: Mapping[str, Any], lower: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a pod as a row of a table.

    Args:
        upper: the upper pod.
        lower: its lower pod; None: it does not exist (yet).

    Returns:
        namespace, name, node, lowerNamespace, lowerNode, status (as kubectl prints it), why (empty: no
        problem), ready (``1/2``), restarts, created (RFC 3339), trouble (bool, from ``is_trouble``).
    """
    metadata, spec, status = upper["metadata"], upper["spec"], upper.get("status") or {}
    word, why = status_word(upper)
    if not why:
        why = _condition_message(status) or _exits(status)
    sidecars = _sidecars(spec)
    initial = status.get("initContainerStatuses") or ()
    beside = [one for one in initial if one.get("name") in sidecars]
    if _initializing(upper) is None or is_true(status, "Initialized"):
        main = status.get("containerStatuses") or ()
        ready = sum(_serves(one) for one in main) + sum(_serves(one) for one in beside)
        restarted = [*beside, *main]
    else:
        ready, restarted = sum(_serves(one) for one in beside), [*initial]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "node": spec.get("nodeName", ""),
        "lowerNamespace": lower["metadata"]["namespace"] if lower else "",
        "lowerNode": (lower["spec"].get("nodeName") or "") if lower else "",
        "status": word,
        "why": why,
        "ready": f"{ready}/{len(spec.get('containers') or ()) + len(sidecars)}",
        "restarts": sum(int(one.get("restartCount") or 0) for one in restarted),
        "created": metadata.get("creationTimestamp", ""),
        "trouble": is_trouble(upper, word),
    }


def is_trouble(pod: Mapping[str, Any], word: str) -> bool:
    """Report whether a pod is in none of these states: running, succeeded, starting normally, being deleted.

    Args:
        pod: the pod.
        word: its status, from ``status_word``.
    """
    phase = (pod.get("status") or {}).get("phase")
    if phase in {"Running", "Succeeded"} and word in {"Running", "Completed", "Succeeded"}:
        return False
    is_normal_wait = word in _NORMAL_WAITS or _INITIALIZING.fullmatch(word) is not None
    return not is_normal_wait and not pod["metadata"].get("deletionTimestamp")


def status_word(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Return what ``kubectl get pods`` prints in the STATUS column, and the message for it."""
    status = pod.get("status") or {}
    word, why = status.get("reason") or status.get("phase") or "Unknown", status.get("message") or ""
    if condition(status, "PodScheduled").get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    if (initializing := _initializing(pod)) is not None:
        word, why = initializing
    # The condition Initialized means that all init containers have completed; a sidecar may have ended since then.
    if initializing is None or is_true(status, "Initialized"):
        containers = status.get("containerStatuses") or ()
        for container in reversed(containers):
            state = container.get("state") or {}
            if reason := (state.get("waiting") or {}).get("reason"):
                word, why = reason, state["waiting"].get("message") or why
            elif ended := state.get("terminated"):
                word, why = ended.get("reason") or _exit(ended), ended.get("message") or why
        if word == "Completed" and any(_serves(container) for container in containers):
            word = "Running" if is_true(status, "Ready") else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            word = "Unknown"
        elif not is_finished(pod.get("status")):
            word = "Terminating"
    return word, why


def _initializing(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return status and message of the first init container that has not completed; None: there is none.

    A sidecar counts as completed when it has started.
    """
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    sidecars = _sidecars(spec)
    for number, container in enumerate(status.get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended and ended.get("exitCode") == 0:
            continue
        # Init containers that are not sidecars also have ``started`` set while they run.
        if container.get("name") in sidecars and container.get("started"):
            continue
        if ended:
            return f"Init:{ended.get('reason') or _exit(ended)}", ended.get("message") or ""
        if waiting.get("reason") not in {None, "", "PodInitializing"}:
            return f"Init:{waiting['reason']}", waiting.get("message") or ""
        return f"Init:{number}/{len(spec.get('initContainers') or ())}", ""
    return None


def _sidecars(spec: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of sidecars."""
    return frozenset(
        container["name"] for container in spec.get("initContainers") or () if is_sidecar(container)
    )


def _serves(container: Mapping[str, Any]) -> bool:
    return bool(container.get("ready")) and "running" in (container.get("state") or {})


def _condition_message(status: Mapping[str, Any]) -> str:
    if status.get("phase") not in {None, "Pending"}:
        return ""
    for kind in (names.CONDITION_ADMITTED, "PodScheduled"):
        if (found := condition(status, kind)).get("status") == "False":
            return str(found.get("message") or found.get("reason") or "")
    return ""


def _exits(status: Mapping[str, Any]) -> str:
    """Return a text with the nonzero exit codes of containers; for a waiting container, of its last run."""
    found = []
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = one.get("state") or {}
        ended = state.get("terminated") or (
            (one.get("lastState") or {}).get("terminated") if "waiting" in state else None
        )
        if ended and ended.get("exitCode"):
            found.append(f"container {one.get('name', '')} ended with exit code {ended['exitCode']}")
    return "; ".join(found)


def _exit(ended: Mapping[str, Any]) -> str:
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode')}"
