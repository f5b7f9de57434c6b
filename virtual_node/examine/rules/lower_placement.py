"""Rules about why a pod with a node does not start in its lower cluster: the virtual node, admission, claims, the scheduler."""

from __future__ import annotations

from clusterset.model import cluster_selector, names
from clusterset.model.moving.silence import UNREACHABLE
from clusterset.model.pod.conditions import condition
from virtual_node.config import program
from virtual_node.examine import messages
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import detail
from virtual_node.examine.finding import Findings
from virtual_node.examine.leases import lease_age
from virtual_node.examine.objects import (
    annotations_of,
    cluster_of,
    is_virtual,
)
from virtual_node.examine.pod_view import PodView, Stage
from virtual_node.examine.pods import SCHEDULING, silent_lower_scheduler

_WAITING = "WaitingForNode"
_GROWTH = (_WAITING, "NodeNotAdded")
"""Reasons of the multi-scheduler's events about new lower nodes."""
_REFUSALS = {
    "ExceededQuota": ("A ResourceQuota of the lower cluster is used up.", Code.QUOTA),
    "PodSecurity": ("Pod Security in the lower cluster does not admit the pod.", Code.POD_SECURITY),
    "NotAllowed": ("This lower cluster's policy keeps the pod out.", Code.POLICY),
}
"""Title and code by reason of condition Admitted."""
_CLAIM_MESSAGES = 3
"""Maximum number of messages about a claim."""


@detail(Code.INVALID_SELECTOR)
def selector(view: PodView) -> Findings:
    """Yield that the annotation clusterSelector is not valid."""
    if text := annotations_of(view.pod).get(names.ANNOTATION_CLUSTER_SELECTOR):
        try:
            cluster_selector.parse(text)
        except ValueError as error:
            title = "The clusterSelector annotation cannot be read; the pod is not mirrored with it."
            step = "correct or remove the annotation; the pod starts by itself"
            yield view.finding(Code.INVALID_SELECTOR, title, [str(error)], [step])


@detail(
    *(Code.NODE_MISSING, Code.NOT_VIRTUAL, Code.NODE_NOT_READY, Code.CLUSTER_LOST, Code.NODE_SILENT),
    stages=(Stage.ALIVE, Stage.FAILED, Stage.DELETING),
)
def node(view: PodView) -> Findings:
    """Yield why the virtual node that the pod is bound to does not work."""
    name = view.pod["spec"].get("nodeName")
    if not name or view.virtual_nodes is None:
        return
    rank = int(view.stage is Stage.FAILED)  # its node may be gone for another reason
    if view.node is None:
        title = f"The pod is bound to {name}, which does not exist."
        yield view.finding(Code.NODE_MISSING, title, next_steps=[program.name("status")], rank=rank)
        return
    if not is_virtual(view.node):
        if not view.is_running:
            title = f"{name} is a node of the upper cluster itself, not a virtual one."
            yield view.finding(Code.NOT_VIRTUAL, title, rank=8)
        return
    ready, steps = condition(view.node.get("status"), "Ready"), [program.name(f"diagnose node {name}")]
    if ready.get("status") != "True":
        evidence = [f"{ready.get('reason', '?')}: {ready.get('message', '')}"]
        title, code = f"The virtual node {name} is not Ready.", Code.NODE_NOT_READY
        if ready.get("reason") == UNREACHABLE:
            title = f"Lower cluster {cluster_of(view.node)} is lost: its API server does not answer."
            code = Code.CLUSTER_LOST
        yield view.finding(code, title, evidence, steps, rank=rank)
    elif (age := lease_age(view.lease, view.now)) is not None and age.is_expired():
        title = (
            f"The virtual node {name} has sent no heartbeat for {age.seconds:.0f} s: is its process running?"
        )
        yield view.finding(Code.NODE_SILENT, title, next_steps=steps, rank=rank)


@detail(Code.ADMISSION_DENIED, Code.NAMESPACE, *(code for _, code in _REFUSALS.values()))
def admission(view: PodView) -> Findings:
    """Yield why the lower cluster, or its policy, refuses the pod."""
    refused = condition(view.pod.get("status"), names.CONDITION_ADMITTED)
    if refused.get("status") != "False":
        return
    title, code = _REFUSALS.get(
        refused.get("reason", ""), ("The lower cluster refuses the pod.", Code.ADMISSION_DENIED)
    )
    message = str(refused.get("message") or "")
    if messages.NAMESPACE.search(message):
        title, code = "The lower cluster has this namespace already, and pods may not use it.", Code.NAMESPACE
    yield view.finding(code, title, [message], messages.next_steps(message, namespace=view.namespace))


@detail(Code.VOLUME)
def claims(view: PodView) -> Findings:
    """Yield why a claim of a pending pod is not provisioned; only events of the claim say so."""
    about: dict[str, dict[str, None]] = {}
    for event in reversed(view.claim_events):
        name = (event.get("involvedObject") or {}).get("name", "")
        about.setdefault(name, {})[str(event.get("message") or "")] = None
    for name, distinct in about.items():
        # The virtual node's message names the lower cluster, which a copied message of its controllers does not.
        evidence = sorted(distinct, key=lambda text: not text.startswith("Lower cluster"))[:_CLAIM_MESSAGES]
        steps = messages.missing_steps(evidence[0], namespace=view.namespace)
        step = f"kubectl -n {view.namespace} describe persistentvolumeclaim {name}"
        title = f"Claim {name} of the pod is not provisioned."
        yield view.finding(Code.VOLUME, title, evidence, steps or [step])


@detail(Code.NAME_CONFLICT)
def name_conflict(view: PodView) -> Findings:
    """Yield that a pod of others has the name in the lower cluster."""
    for event in view.events:
        if event.get("reason") == "NameConflict" and view.lower is None:
            title = "The lower cluster has a pod of that name that is not ours."
            yield view.finding(Code.NAME_CONFLICT, title, [event.get("message", "")])
            return


@detail(Code.NO_SCHEDULER, *messages.SCHEDULING)
def lower_scheduling(view: PodView) -> Findings:
    """Yield why the lower scheduler finds no node for the pod."""
    if not view.pod["spec"].get("nodeName"):
        return
    scheduled = condition(view.pod.get("status"), "PodScheduled")
    message = f"{scheduled.get('reason')}: {scheduled.get('message', '')}"
    if scheduled.get("reason") == Code.SCHEDULING_GATED:
        return  # ``waits`` has the gates
    if scheduled.get("status") == "False":
        growth = [event for event in view.events if event.get("reason") in _GROWTH][-1:]
        waits = bool(growth) and growth[0].get("reason") == _WAITING
        title = "The lower scheduler finds no node for the pod."
        if waits:
            title = "The pod waits for a new node in the lower cluster."
        evidence = [*(event.get("message", "") for event in growth), message]
        steps = messages.next_steps(message, namespace=view.namespace)
        move = "run the descheduler (moves the pod), or the multi-scheduler (checks before the pod is bound)"
        yield view.finding(messages.unschedulable(message), title, evidence, [*steps, move])
    elif view.age > SCHEDULING and (name := silent_lower_scheduler(view.pod)):
        evidence = []
        step = (
            "is kube-scheduler of the lower cluster running? "
            "kubectl --kubeconfig LOWER -n kube-system get lease kube-scheduler"
        )
        if names.ANNOTATION_SCHEDULER_NAME in annotations_of(view.pod):
            evidence = [f"annotation {names.ANNOTATION_SCHEDULER_NAME}: {name}"]
            step = (
                f"run a scheduler named {name} in the lower cluster, or remove the annotation "
                f"{names.ANNOTATION_SCHEDULER_NAME} from the pod's template: its default scheduler is used then"
            )
        title = f"No scheduler named {name} in the lower cluster has looked at the pod."
        yield view.finding(Code.NO_SCHEDULER, title, evidence, [step])
