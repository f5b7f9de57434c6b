"""The verdicts of ``diagnose`` if no rule explains a pod, and those about a workload, or a virtual node, by its pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterset.model.pod.conditions import condition, is_true
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.readable import count, some
from virtual_node.config import program
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import detail
from virtual_node.examine.finding import SHOWN, Finding, Findings
from virtual_node.examine.objects import SCHEDULING, STARTING, Json, key
from virtual_node.examine.pod_view import PodView, Stage
from virtual_node.examine.rules.containers import has_completed_partly
from virtual_node.translate.pods.summary import pod_row, status_word


def of_workload(kind: str, workload: Json, verdicts: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """Return the findings of a workload as a whole, from those of its pods by name; equal verdicts become one finding."""
    result = list(_controller(kind, workload, len(verdicts)))
    same: dict[str, list[str]] = {}
    for pod, (verdict, *_) in verdicts.items():
        if verdict.severity is not Severity.INFO:
            same.setdefault(verdict.cause, []).append(pod)
    for cause, pods in sorted(same.items(), key=lambda item: -len(item[1])):
        first = verdicts[pods[0]][0]
        names = [verdicts[pod][0].name for pod in pods[:SHOWN]]
        share = f"{len(pods)} of {count(len(verdicts), 'pod')}: {cause}"
        evidence = [some(pods), *first.evidence]
        result.append(replace(first, names=names, count=len(pods), cause=share, evidence=evidence))
    if not result:
        cause = f"Nothing is wrong with its {count(len(verdicts), 'pod')}."
        return [_finding(Code.HEALTHY, kind, workload, cause, rank=LAST)]
    return sorted(result, key=lambda one: one.rank)


def of_node(node: Json, bound: Sequence[Json]) -> Findings:
    """Yield what concerns the pods of a virtual node: that it is cordoned, and that some are in trouble."""
    if (node.get("spec") or {}).get("unschedulable"):
        step = f"kubectl uncordon {key(node)}"
        cause = "It is cordoned: nothing new is bound to it."
        yield _finding(Code.CORDONED, "Node", node, cause, step=step, rank=1)
    if troubled := [key(pod) for pod in bound if pod_row(pod, None)["trouble"]]:
        cause = f"{len(troubled)} of its {count(len(bound), 'pod')} in trouble."
        step = program.name(f"diagnose pod {troubled[0]}")
        yield _finding(Code.PODS_IN_TROUBLE, "Node", node, cause, [some(troubled)], step=step, rank=1)


def healthy_node(node: Json, bound: Sequence[Json]) -> Finding:
    """Return the finding about a virtual node with which nothing is wrong."""
    cause = f"The virtual node is Ready; nothing is wrong with it, or with its {count(len(bound), 'pod')}."
    return _finding(Code.HEALTHY, "Node", node, cause, rank=LAST)


def _controller(kind: str, workload: Json, pods: int) -> Findings:
    """Yield why a workload's controller fails, or why it has created no pods."""
    for failure in ("ReplicaFailure", "Failed"):
        failed = condition(workload.get("status"), failure)
        if failed.get("status") == "True":
            cause, evidence = (
                f"Its controller fails: {failed.get('reason', failure)}.",
                [failed.get("message", "")],
            )
            yield _finding(Code.CONTROLLER_FAILS, kind, workload, cause, evidence)
            return
    if pods:
        return
    spec = workload["spec"]
    if spec.get("replicas") == 0 or spec.get("suspend") or spec.get("paused"):
        cause = "It asks for no pods (replicas: 0, suspended, or paused)."
        yield _finding(Code.NO_PODS, kind, workload, cause)
    elif not is_true(workload.get("status"), "Complete"):
        name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
        step = f"kubectl -n {namespace} events | grep {name}"
        yield _finding(Code.NO_PODS, kind, workload, "It has no pods.", step=step)


def _finding(
    code: Code,
    kind: str,
    one: Json,
    cause: str,
    evidence: Sequence[str] = (),
    *,
    step: str = "",
    rank: int = 0,
) -> Finding:
    steps = [step] if step else []
    return Finding(
        code=code, kind=kind, names=[key(one)], cause=cause, evidence=evidence, next_steps=steps, rank=rank
    )


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
