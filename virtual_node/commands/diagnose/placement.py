"""Rules about pods that have not started: binding, health of the virtual node, admission and lower scheduling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller_runtime.api import cluster_selector, names
from controller_runtime.api.pod.conditions import condition
from virtual_node.commands.diagnose import advice, codes, unplaced
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import (
    DiagnoseFinding,
    PodFacts,
    Rule,
    age,
    is_running,
    pod_namespace,
)
from virtual_node.config import program
from virtual_node.health.nodes import UNREACHABLE, cluster_of
from virtual_node.health.pods import SCHEDULING, silent_lower_scheduler

_STALE_SECONDS = 60.0
_WAITING = "WaitingForNode"
_GROWTH = (_WAITING, "NodeNotAdded")
"""Reasons of the multi-scheduler's events about new lower nodes."""
_REFUSALS = {
    "ExceededQuota": ("A ResourceQuota of the lower cluster is used up.", Code.QUOTA),
    "PodSecurity": ("Pod Security in the lower cluster does not admit the pod.", Code.POD_SECURITY),
    "NotAllowed": ("This lower cluster's policy keeps the pod out.", Code.POLICY),
}
"""Reasons of condition Admitted."""


def _selector(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    text = (facts.pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_CLUSTER_SELECTOR)
    if text:
        try:
            cluster_selector.parse(text)
        except ValueError as error:
            yield DiagnoseFinding(
                Code.INVALID_SELECTOR,
                "The clusterSelector annotation cannot be read; the pod is not mirrored with it.",
                [str(error)],
                ["correct or remove the annotation; the pod starts by itself"],
            )


def node(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    """Yield why the virtual node that the pod is bound to does not work."""
    name = facts.pod["spec"].get("nodeName")
    if not name or facts.virtual_nodes is None:
        return
    if facts.node is None:
        yield DiagnoseFinding(
            Code.NODE_MISSING,
            f"The pod is bound to {name}, which does not exist.",
            next_steps=[program.name("status")],
        )
        return
    if (facts.node["metadata"].get("labels") or {}).get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL:
        if not is_running(facts.pod):
            title = f"{name} is a node of the upper cluster itself, not a virtual one."
            yield DiagnoseFinding(Code.NOT_VIRTUAL, title, rank=8)
        return
    ready = condition(facts.node.get("status"), "Ready")
    if ready.get("status") != "True":
        evidence = [f"{ready.get('reason', '?')}: {ready.get('message', '')}"]
        title, code = f"The virtual node {name} is not Ready.", Code.NODE_NOT_READY
        if ready.get("reason") == UNREACHABLE:
            title = f"Lower cluster {cluster_of(facts.node)} is lost: its API server does not answer."
            code = Code.CLUSTER_LOST
        yield DiagnoseFinding(code, title, evidence, [program.name(f"diagnose node {name}")])
    elif facts.heartbeat_seconds is not None and facts.heartbeat_seconds > _STALE_SECONDS:
        yield DiagnoseFinding(
            Code.NODE_SILENT,
            f"The virtual node {name} has sent no heartbeat for {facts.heartbeat_seconds:.0f} s: is its "
            f"process running?",
            next_steps=[program.name(f"diagnose node {name}")],
        )


def _admission(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    refused = condition(facts.pod.get("status"), names.CONDITION_ADMITTED)
    if refused.get("status") != "False":
        return
    title, code = _REFUSALS.get(
        refused.get("reason", ""), ("The lower cluster refuses the pod.", Code.ADMISSION_DENIED)
    )
    yield DiagnoseFinding(code, title, [refused.get("message", "")])


def _conflict(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    for event in facts.events:
        if event.get("reason") == "NameConflict" and facts.lower is None:
            yield DiagnoseFinding(
                Code.NAME_CONFLICT,
                "The lower cluster has a pod of that name that is not ours.",
                [event.get("message", "")],
            )
            return


def _lower_scheduling(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    if not facts.pod["spec"].get("nodeName"):
        return
    scheduled = condition(facts.pod.get("status"), "PodScheduled")
    message = f"{scheduled.get('reason')}: {scheduled.get('message', '')}"
    if scheduled.get("status") == "False":
        growth = [event for event in facts.events if event.get("reason") in _GROWTH][-1:]
        waits = bool(growth) and growth[0].get("reason") == _WAITING
        yield DiagnoseFinding(
            codes.unschedulable(message),
            "The pod waits for a new node in the lower cluster."
            if waits
            else "The lower scheduler finds no node for the pod.",
            [*(event.get("message", "") for event in growth), message],
            [
                *advice.steps(message, namespace=pod_namespace(facts)),
                "run the descheduler (moves the pod), or the multi-scheduler (checks before the pod is bound)",
            ],
        )
    elif age(facts) > SCHEDULING and (name := silent_lower_scheduler(facts.pod)):
        asked = names.ANNOTATION_SCHEDULER_NAME in (facts.pod["metadata"].get("annotations") or {})
        yield DiagnoseFinding(
            Code.NO_SCHEDULER,
            f"No scheduler named {name} in the lower cluster has looked at the pod.",
            [f"annotation {names.ANNOTATION_SCHEDULER_NAME}: {name}"] if asked else [],
            [
                f"run a scheduler named {name} in the lower cluster, or remove the annotation "
                f"{names.ANNOTATION_SCHEDULER_NAME} from the pod's template: its default scheduler is used then"
                if asked
                else "is kube-scheduler of the lower cluster running? "
                "kubectl --kubeconfig LOWER -n kube-system get lease kube-scheduler"
            ],
        )


RULES: Sequence[Rule] = (
    unplaced.unscheduled,
    _selector,
    node,
    _admission,
    _conflict,
    _lower_scheduling,
)
