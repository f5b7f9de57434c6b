"""Rules about why a pod has no node in the upper cluster, or does not start in its lower cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterset.model import cluster_selector, names
from clusterset.model.moving.silence import UNREACHABLE
from clusterset.model.pod.conditions import condition, is_true
from clusterset.model.pod.groups import native_group
from controller_runtime.apimachinery.readable import some
from virtual_node.config import program
from virtual_node.examine import messages
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import detail
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.leases import lease_age
from virtual_node.examine.objects import (
    LIFECYCLE,
    SCHEDULING,
    Json,
    annotations_of,
    cluster_of,
    is_labelled,
    is_passing,
    is_virtual,
    labels_of,
    repelling,
    selects,
    silent_lower_scheduler,
    taints,
    untolerated,
)
from virtual_node.examine.pod_view import PodView, Stage

_GROUP = re.compile(
    r"pod group (?P<group>[\w./-]+)"
    r"(?: has (?P<has>\d+) of (?P<minimum>\d+) pods| needs room for (?P<needed>\d+) pods at once)?"
)
"""The multi-scheduler's reasons about pods that start together."""
_MIN_COUNT = re.compile(r"minCount \((\d+)\) ")
"""kube-scheduler's reason about a PodGroup of Kubernetes (plug-in GangScheduling)."""
_DIVISION = re.compile(
    r"lower cluster (?P<full>\S+) has (?P<has>\d+) of (?P<all>\d+) pods, and one more is above its share and the "
    r"maximum skew of (?P<skew>\d+) .*; lower cluster (?P<behind>\S+) cannot take the pod"
)
"""The multi-scheduler's reason about a pod that waits because of its workload's division over clusters."""

_LOWER_KEYS = frozenset({"kubernetes.io/arch", "kubernetes.io/os"})
"""Labels of virtual nodes that usually select lower nodes: a pod without the webhook's label lacks the label."""

_BELOW = re.compile(r"[Ll]ower cluster|virtual node \S{1,253} \([^)]{0,400}\) belongs to no lower cluster")
"""Start of the multi-scheduler's reasons about lower clusters, and about virtual nodes that it does not know."""


@detail(
    Code.SCHEDULING_GATED,
    Code.NO_VIRTUAL_NODE,
    Code.NODE_UNAVAILABLE,
    Code.POD_GROUP,
    Code.DIVISION,
    Code.NO_CLUSTER_FITS,
    Code.NO_SCHEDULER,
    *messages.SCHEDULING,
)
def unscheduled(view: PodView) -> Findings:
    """Yield why a pod has no node, the cause to remove first at the start; nothing if the pod has a node."""
    if view.pod["spec"].get("nodeName"):
        return
    if gates := [gate["name"] for gate in view.pod["spec"].get("schedulingGates") or ()]:
        title = f"Scheduling gates hold the pod back: {', '.join(gates)}."
        steps = ["find out which controller removes them"]
        yield view.finding(Code.SCHEDULING_GATED, title, next_steps=steps)
        return
    message = str(condition(view.pod.get("status"), "PodScheduled").get("message") or "")
    evidence = [f"kube-scheduler: {message}"] if message else []
    if view.virtual_nodes is not None and not view.virtual_nodes:
        title = "There is no virtual node in this cluster."
        yield view.finding(Code.NO_VIRTUAL_NODE, title, evidence, [program.name("doctor")])
        return
    matching_nodes = [node for node in view.virtual_nodes or () if selects(view.pod, node)]
    if view.virtual_nodes and not matching_nodes:
        yield _no_match(view, view.virtual_nodes, evidence)
        return
    found = list(_repelled(view, matching_nodes, evidence))
    yield from found or _by_message(view, message, evidence)


def _repelled(view: PodView, nodes: Sequence[Json], evidence: Sequence[str]) -> Findings:
    """Yield why no virtual node that matches the pod's selectors takes the pod; nothing if one does."""
    missing = {name: untolerated(view.pod, node) for node in nodes if (name := node["metadata"]["name"])}
    away = [node for node in nodes if _is_away(view.pod, node)]
    open_ = [
        node
        for node in nodes
        if not missing[node["metadata"]["name"]]
        and not (node.get("spec") or {}).get("unschedulable")
        and node not in away
    ]
    if open_ or not nodes:
        return
    all_repel = all(missing.values())
    if all_repel:
        yield _no_toleration(view, sorted({taint for each in missing.values() for taint in each}), evidence)
    if away:
        which = "The virtual node" if len(nodes) == 1 else "Every virtual node"
        state = "lost or not Ready" if len(away) == len(nodes) else "not available"
        title = f"{which} that the pod may run on is {state}."
        states = [*map(_state, away), *evidence]
        steps = [program.name(f"diagnose node {node['metadata']['name']}") for node in away[:3]]
        yield view.finding(Code.NODE_UNAVAILABLE, title, states, steps, rank=int(all_repel))
    cordoned = [node["metadata"]["name"] for node in nodes if (node.get("spec") or {}).get("unschedulable")]
    if cordoned and not all_repel:
        title = f"Virtual nodes that the pod may run on are cordoned: {', '.join(cordoned)}."
        steps = [f"kubectl uncordon {cordoned[0]}"]
        yield view.finding(Code.CORDONED, title, [] if away else evidence, steps, rank=int(bool(away)))


def _by_message(view: PodView, message: str, evidence: Sequence[str]) -> Findings:
    """Yield findings from the scheduler's message."""
    doctor, status = program.name("doctor"), program.name("status")
    if group := _group(view, message):
        name, why, step = group
        yield view.finding(Code.POD_GROUP, f"The pod waits with pod group {name}: {why}.", evidence, [step])
    elif found := _DIVISION.search(message):
        yield _division(view, found, evidence)
    elif found := _BELOW.search(message):
        # The text before this is about real nodes of the upper cluster.
        below = messages.next_steps(message[found.start() :], namespace=view.namespace)
        title = "No lower cluster has a node for the pod."
        yield view.finding(Code.NO_CLUSTER_FITS, title, evidence, below or [doctor])
    elif "Insufficient" in message:
        step = f"request less, or add nodes to a lower cluster; {status} shows what is left"
        title = "No virtual node has enough free resources."
        yield view.finding(messages.unschedulable(message), title, evidence, [step])
    elif message:
        steps = messages.missing_steps(message, namespace=view.namespace)
        title = "The upper scheduler finds no node."
        yield view.finding(messages.unschedulable(message), title, evidence, steps or [doctor], rank=1)
    elif view.age > SCHEDULING and not view.claim_events:  # while claims wait, the scheduler reports nothing
        name = view.pod["spec"].get("schedulerName") or "default-scheduler"
        title = f"No scheduler named {name} has looked at the pod."
        step = (
            f"start it, or correct spec.schedulerName of the pod; {doctor} says whether kube-scheduler runs"
        )
        yield view.finding(Code.NO_SCHEDULER, title, next_steps=[step])


def _group(view: PodView, message: str) -> tuple[str, str, str] | None:
    """Return the pod group that a pod waits for, why, and the next step; None: it waits for no group."""
    room = f"add nodes to a lower cluster, or let other pods end; {program.name('status')} shows what is left"
    listing = f"kubectl --namespace {view.namespace} get"
    if found := _GROUP.search(message):
        if found["has"] is not None:
            step = f"find out why the other pods are missing or have scheduling gates: {listing} pods,events"
            return found["group"], f"{found['has']} of {found['minimum']} pods exist", step
        if found["needed"] is not None:
            return found["group"], f"there is no room for {found['needed']} pods at once", room
        return found["group"], "the scheduler's message has the reason", "follow the scheduler's message"
    native = native_group(view.pod["spec"])
    if native and (found := _MIN_COUNT.search(message)):
        return native, f"there is no room for {found[1]} pods at once", room
    if native and not message and view.age > SCHEDULING:
        # The scheduler does not look at the pods of an incomplete group.
        why = "fewer pods than its minCount exist, or there is no such PodGroup"
        return native, why, f"{listing} podgroups.scheduling.k8s.io,pods,events"
    return None


def _division(view: PodView, found: re.Match[str], evidence: Sequence[str]) -> Finding:
    """Return why a pod waits: it would exceed the maximum skew of its workload's division."""
    title = (
        f"Lower cluster {found['behind']} cannot take the pod, and {found['full']} has reached its share of the "
        f"workload's pods and the maximum skew of {found['skew']}."
    )
    steps = [
        f"raise {names.ANNOTATION_DIVISION_MAX_SKEW} in the pod's template, or make room in {found['behind']}",
        program.name("status"),
    ]
    return view.finding(Code.DIVISION, title, evidence, steps)


def _no_match(view: PodView, nodes: Sequence[Json], evidence: Sequence[str]) -> Finding:
    selector = view.pod["spec"].get("nodeSelector") or {}
    known = list(map(labels_of, nodes))
    lost = {
        key: value for key, value in selector.items() if not any(each.get(key) == value for each in known)
    }
    wanted = ", ".join(f"{key}={value}" for key, value in (lost or selector).items())
    offered = {key: sorted({each[key] for each in known if key in each}) for key in lost}
    steps = [f"kubectl get nodes -l {names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL} --show-labels"]
    if not wanted:
        title = "No virtual node matches the pod's node affinity."
    elif not lost:
        title = f"No virtual node matches all of the pod's selectors ({wanted}, node affinity)."
    elif all(offered.values()) and not _LOWER_KEYS & offered.keys():
        title = f"No virtual node has {wanted}."
        values = "; ".join(f"{key}: {some(found, limit=5)}" for key, found in offered.items())
        steps = [f"correct the pod's nodeSelector; virtual nodes have {values}", *steps]
    elif is_labelled(view.pod):
        title = (
            f"No virtual node has {wanted}: the webhook has not moved the selector. Was it down, or are these "
            "keys in its --ignore-selector-keys?"
        )
        steps = ["kubectl get mutatingwebhookconfigurations", program.name("doctor")]
    else:
        title = (
            f"No virtual node has {wanted}, and the pod is not labelled {names.LABEL_VIRTUAL_POD}=true: "
            "the webhook leaves its selector in the upper cluster."
        )
        steps = [f"label the pod's template {names.LABEL_VIRTUAL_POD}=true"]
    return view.finding(Code.AFFINITY, title, evidence, steps)


def _no_toleration(view: PodView, missing: Sequence[str], evidence: Sequence[str]) -> Finding:
    if any(taint.startswith(names.TAINT_PROVIDER) for taint in missing):
        step = (
            "create the pod again: the webhook did not add the toleration, was it down? "
            + program.name("doctor")
            if is_labelled(view.pod)
            else f"tolerate {names.TAINT_PROVIDER}, or label the pod {names.LABEL_VIRTUAL_POD}=true (the webhook does it)"
        )
    else:
        step = "add a toleration of it to the pod's template, or remove the taint from the virtual node"
    title = f"The pod does not tolerate {', '.join(missing)} of the virtual nodes."
    return view.finding(Code.TAINT, title, evidence, [step])


def _is_away(pod: Json, node: Json) -> bool:
    """Report whether the node is not Ready, or has a taint of a lost node that the pod does not tolerate.

    The taint of a cordoned node does not count.
    """
    if not is_true(node.get("status"), "Ready"):
        return True
    cordon = f"{LIFECYCLE}unschedulable"
    return any(is_passing(taint) and taint["key"] != cordon for taint in repelling(pod, node))


def _state(node: Json) -> str:
    ready = condition(node.get("status"), "Ready")
    name = f"{node['metadata']['name']} (lower cluster {cluster_of(node)})"
    if ready.get("status") != "True":
        return f"{name}: {ready.get('reason', 'not Ready')}: {ready.get('message', '')}".rstrip(": ")
    keys = ", ".join(taint["key"] for taint in taints(node) if is_passing(taint))
    return f"{name} is tainted {keys}, although it is Ready again: the taint is removed within a minute"


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
        # The virtual node's own message comes first: it names the lower cluster. Copied lower events do not.
        evidence = sorted(distinct, key=lambda text: not text.startswith("Lower cluster"))[:_CLAIM_MESSAGES]
        steps = messages.missing_steps(evidence[0], namespace=view.namespace)
        step = f"kubectl -n {view.namespace} describe persistentvolumeclaim {name}"
        title = f"Claim {name} of the pod is not provisioned."
        yield view.finding(Code.VOLUME, title, evidence, steps or [step])


@detail(Code.NAME_CONFLICT)
def name_conflict(view: PodView) -> Findings:
    """Yield that a pod of others has the name in the lower cluster."""
    reason, message = view.newest("NameConflict")
    if reason and view.lower is None:
        title = "The lower cluster has a pod of that name that is not ours."
        yield view.finding(Code.NAME_CONFLICT, title, [message])


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
        growth, news = view.newest(*_GROWTH)
        title = "The lower scheduler finds no node for the pod."
        if growth == _WAITING:
            title = "The pod waits for a new node in the lower cluster."
        evidence = [news, message] if growth else [message]
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
