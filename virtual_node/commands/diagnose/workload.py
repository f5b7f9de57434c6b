"""Finds the pods of a Deployment, StatefulSet, DaemonSet, ReplicaSet or Job and merges their verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterset.model.pod.conditions import condition, is_true
from controller_runtime import resources
from controller_runtime.apimachinery.readable import count, some
from controller_runtime.resources import Resource
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import FINE, DiagnoseFinding
from virtual_node.examine.reader import Reader, refusal

_OPERATORS = {"In": "in", "NotIn": "notin"}


async def pods_of(
    reader: Reader, resource: Resource, namespace: str, name: str
) -> tuple[Any, list[dict[str, Any]]]:
    """Return a workload and its pods, without pods that are being deleted.

    Raises:
        ConfigError: there is no such workload, or reading it or its pods is forbidden.
    """
    workload = await reader.find(resource, name, namespace=namespace)
    found = await reader.all(
        resources.PODS,
        namespace=namespace,
        label_selector=selector_text(workload["spec"].get("selector") or {}),
    )
    if found is None:
        raise refusal("list", resources.PODS, namespace=namespace)
    return workload, [pod.to_dict() for pod in found if not pod.metadata.deletion_timestamp]


def judge(
    workload: Mapping[str, Any], verdicts: Mapping[str, Sequence[DiagnoseFinding]]
) -> list[DiagnoseFinding]:
    """Return the findings of a workload as a whole; equal verdicts of several pods become one finding.

    Args:
        workload: the Deployment, Job or other object.
        verdicts: findings of the workload's pods, by pod name.
    """
    found = list(_controller(workload, len(verdicts)))
    by_title: dict[str, list[str]] = {}
    for pod, (verdict, *_) in verdicts.items():
        if verdict.rank < FINE:
            by_title.setdefault(verdict.title, []).append(pod)
    for title, pods in sorted(by_title.items(), key=lambda item: -len(item[1])):
        one = verdicts[pods[0]][0]
        share = f"{len(pods)} of {count(len(verdicts), 'pod')}: {title}"
        found.append(replace(one, title=share, evidence=[some(pods), *one.evidence]))
    if not found:
        title = f"Nothing is wrong with its {count(len(verdicts), 'pod')}."
        return [DiagnoseFinding(Code.HEALTHY, title, rank=FINE)]
    return sorted(found, key=lambda one: one.rank)


def selector_text(selector: Mapping[str, Any]) -> str:
    """Return a LabelSelector in the syntax of the API's labelSelector parameter."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or ():
        match one["operator"]:
            case "Exists":
                parts.append(one["key"])
            case "DoesNotExist":
                parts.append(f"!{one['key']}")
            case operator:
                parts.append(f"{one['key']} {_OPERATORS[operator]} ({','.join(one['values'])})")
    return ",".join(parts)


def _controller(workload: Mapping[str, Any], pods: int) -> Iterator[DiagnoseFinding]:
    """Yield why a workload's controller fails, or why it has created no pods."""
    for kind in ("ReplicaFailure", "Failed"):
        failed = condition(workload.get("status"), kind)
        if failed.get("status") == "True":
            title = f"Its controller fails: {failed.get('reason', kind)}."
            yield DiagnoseFinding(Code.CONTROLLER_FAILS, title, [failed.get("message", "")])
            return
    if pods:
        return
    spec = workload["spec"]
    if spec.get("replicas") == 0 or spec.get("suspend") or spec.get("paused"):
        title = "It asks for no pods (replicas: 0, suspended, or paused)."
        yield DiagnoseFinding(Code.NO_PODS, title)
    elif not is_true(workload.get("status"), "Complete"):
        name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
        steps = [f"kubectl -n {namespace} events | grep {name}"]
        yield DiagnoseFinding(Code.NO_PODS, "It has no pods.", next_steps=steps)
