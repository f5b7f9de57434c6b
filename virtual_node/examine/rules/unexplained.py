"""What a pod is if no rule explains why it does not run: healthy, completed, starting, ending, or unexplained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterset.model.pod.conditions import condition, is_true
from controller_runtime.apimachinery import timestamps
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import detail
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.objects import key
from virtual_node.examine.pod_view import PodView, Stage
from virtual_node.examine.pods import SCHEDULING, STARTING
from virtual_node.examine.rules.containers import has_completed_partly
from virtual_node.translate.pods.summary import status_word

LAST = 9
"""Rank of the statement that nothing is wrong."""
_NORMAL = re.compile(r"Pending|ContainerCreating|PodInitializing|Init:\d+/\d+")
"""Status words of pods that start."""
_HEALTHY = "The pod is running; nothing is wrong that can be seen from here."


@detail(
    *(Code.COMPLETED, Code.HEALTHY, Code.TERMINATING, Code.STARTING, Code.NOT_STARTED),
    stages=tuple(Stage),
    is_fallback=True,
)
def unexplained(view: PodView) -> Findings:
    """Yield the finding about a pod that no rule explains."""
    word, why = status_word(view.pod)
    if word in {"Completed", "Succeeded"}:
        yield view.finding(Code.COMPLETED, "The pod has completed; nothing is wrong.", rank=LAST)
    elif word == "Running" or has_completed_partly(view.pod):
        yield view.finding(Code.HEALTHY, _HEALTHY, rank=LAST)
    elif view.stage is Stage.DELETING:
        title = "The pod is being deleted, within its grace period."
        yield view.finding(Code.TERMINATING, title, rank=LAST)
    elif _NORMAL.fullmatch(word) and _is_new(view):
        yield view.finding(Code.STARTING, "The pod is starting.", rank=LAST)
    else:
        title = f"The pod is {word}; nothing explains it yet."
        steps = [f"kubectl -n {view.namespace} describe pod {view.name}"]
        yield view.finding(Code.NOT_STARTED, title, [why] if why else [], steps, rank=LAST - 1)


def healthy(pod: Mapping[str, Any]) -> Finding | None:
    """Return that a pod is healthy by its own status, running and ready or completed; None: it is not."""
    word, _ = status_word(pod)
    if word == "Completed" or (word == "Running" and is_true(pod.get("status"), "Ready")):
        return Finding(code=Code.HEALTHY, kind="Pod", names=[key(pod)], cause=_HEALTHY, rank=LAST)
    return None


def _is_new(view: PodView) -> bool:
    """Report whether the pod waits for no longer than a scheduler and an image normally take."""
    if not view.pod["metadata"].get("creationTimestamp"):
        return False
    if not view.pod["spec"].get("nodeName"):
        return view.age <= SCHEDULING
    bound = condition(view.pod.get("status"), "PodScheduled").get("lastTransitionTime")
    since = (view.now - timestamps.parse(bound)).total_seconds() if bound else view.age
    return since <= STARTING
