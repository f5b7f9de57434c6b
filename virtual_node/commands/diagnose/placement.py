"""Rules about pods that have not started: binding, health of the virtual node, admission and lower scheduling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterset.model import cluster_selector, names
from clusterset.model.pod.conditions import condition
from virtual_node.commands.diagnose import advice, codes, unplaced
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import DiagnoseFinding, PodFacts, Rule
from virtual_node.config import program
from virtual_node.health.leases import lease_age
from virtual_node.health.nodes import UNREACHABLE, cluster_of
from virtual_node.health.objects import annotations_of, is_virtual
from virtual_node.health.pods import SCHEDULING, silent_lower_scheduler

_WAITING = "WaitingForNode"
_GROWTH = (_WAITING, "NodeNotAdded")
"""Reasons of the multi-scheduler's events about new lower nodes."""
_REFUSALS = {
    "ExceededQuota": ("A ResourceQuota of the lower cluster is used up.", Code.QUOTA),
    "PodSecurity": ("Pod Security in the lower cluster does not admit the pod.", Code.POD_SECURITY),
    "NotAllowed": ("This lower cluster's policy keeps the pod out.", Code.POLICY),
}
"""Title and code by reason of condition Admitted."""


def _selector(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    if text := annotations_of(facts.pod).get(names.ANNOTATION_CLUSTER_SELECTOR):
        try:
            cluster_selector.parse(text)
        except ValueError as error:
            title = "The clusterSelector annotation cannot be read; the pod is not mirrored with it."
            step = "correct or remove the annotation; the pod starts by itself"
            yield DiagnoseFinding(Code.INVALID_SELECTOR, title, [str(error)], [step])


def node(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    """Yield why the virtual node that the pod is bound to does not work."""
    name = facts.pod["spec"].get("nodeName")
    if not name or facts.virtual_nodes is None:
        return
    if facts.node is None:
        title = f"The pod is bound to {name}, which does not exist."
        yield DiagnoseFinding(Code.NODE_MISSING, title, next_steps=[program.name("status")])
        return
    if not is_virtual(facts.node):
        if not facts.is_running:
            title = f"{name} is a node of the upper cluster itself, not a virtual one."
            yield DiagnoseFinding(Code.NOT_VIRTUAL, title, rank=8)
        return
    ready, steps = condition(facts.node.get("status"), "Ready"), [program.name(f"diagnose node {name}")]
    if ready.get("status") != "True":
        evidence = [f"{ready.get('reason', '?')}: {ready.get('message', '')}"]
        title, code = f"The virtual node {name} is not Ready.", Code.NODE_NOT_READY
        if ready.get("reason") == UNREACHABLE:
            title = f"Lower cluster {cluster_of(facts.node)} is lost: its API server does not answer."
            code = Code.CLUSTER_LOST
        yield DiagnoseFinding(code, title, evidence, steps)
    elif (age := lease_age(facts.lease, facts.now)) is not None and age.is_expired():
        title = (
            f"The virtual node {name} has sent no heartbeat for {age.seconds:.0f} s: is its process running?"
        )
        yield DiagnoseFinding(Code.NODE_SILENT, title, next_steps=steps)


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
            title = "The lower cluster has a pod of that name that is not ours."
            yield DiagnoseFinding(Code.NAME_CONFLICT, title, [event.get("message", "")])
            return


def _lower_scheduling(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    if not facts.pod["spec"].get("nodeName"):
        return
    scheduled = condition(facts.pod.get("status"), "PodScheduled")
    message = f"{scheduled.get('reason')}: {scheduled.get('message', '')}"
    if scheduled.get("status") == "False":
        growth = [event for event in facts.events if event.get("reason") in _GROWTH][-1:]
        waits = bool(growth) and growth[0].get("reason") == _WAITING
        title = "The lower scheduler finds no node for the pod."
        if waits:
            title = "The pod waits for a new node in the lower cluster."
        evidence = [*(event.get("message", "") for event in growth), message]
        steps = advice.steps(message, namespace=facts.namespace)
        move = "run the descheduler (moves the pod), or the multi-scheduler (checks before the pod is bound)"
        yield DiagnoseFinding(codes.unschedulable(message), title, evidence, [*steps, move])
    elif facts.age > SCHEDULING and (name := silent_lower_scheduler(facts.pod)):
        evidence = []
        step = (
            "is kube-scheduler of the lower cluster running? "
            "kubectl --kubeconfig LOWER -n kube-system get lease kube-scheduler"
        )
        if names.ANNOTATION_SCHEDULER_NAME in annotations_of(facts.pod):
            evidence = [f"annotation {names.ANNOTATION_SCHEDULER_NAME}: {name}"]
            step = (
                f"run a scheduler named {name} in the lower cluster, or remove the annotation "
                f"{names.ANNOTATION_SCHEDULER_NAME} from the pod's template: its default scheduler is used then"
            )
        title = f"No scheduler named {name} in the lower cluster has looked at the pod."
        yield DiagnoseFinding(Code.NO_SCHEDULER, title, evidence, [step])


RULES: Sequence[Rule] = (unplaced.unscheduled, _selector, node, _admission, _conflict, _lower_scheduling)
