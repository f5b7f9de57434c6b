"""Before a pod starts: does it have a node, is that alive, does the lower cluster take the pod?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller_runtime.api import cluster_selector, names
from virtual_node import program
from virtual_node.commands.diagnosing.facts import Facts, Finding, Rule, condition, is_running, pairs

_STALE_SECONDS = 60.0


def _unscheduled(facts: Facts) -> Iterator[Finding]:
    if facts.pod["spec"].get("nodeName"):
        return
    if gates := [gate["name"] for gate in facts.pod["spec"].get("schedulingGates") or ()]:
        yield Finding(
            0, f"Scheduling gates hold the pod back: {', '.join(gates)}.", [], ["find out who lifts them"]
        )
        return
    said = condition(facts.pod, "PodScheduled").get("message", "")
    evidence = [f"kube-scheduler: {said}"] if said else []
    if facts.virtual_nodes is not None and not facts.virtual_nodes:
        yield Finding(0, "There is no virtual node in this cluster.", evidence, [program.name("doctor")])
        return
    labels = facts.pod["metadata"].get("labels") or {}
    selector = facts.pod["spec"].get("nodeSelector") or {}
    known = [node["metadata"].get("labels") or {} for node in facts.virtual_nodes or ()]
    lost = {
        key: value
        for key, value in selector.items()
        if known and not any(one.get(key) == value for one in known)
    }
    if lost and labels.get(names.LABEL_VIRTUAL_POD) != "true":
        yield Finding(
            0,
            f"No virtual node has {pairs(lost)}, and the pod is not labelled {names.LABEL_VIRTUAL_POD}=true: "
            "the webhook leaves its selector in the upper cluster.",
            evidence,
            [f"label the pod's template {names.LABEL_VIRTUAL_POD}=true"],
        )
    elif lost:
        yield Finding(
            0,
            f"No virtual node has {pairs(lost)}: the webhook has not moved the selector. Was it down, or are these "
            "keys in its --ignore-selector-keys?",
            evidence,
            ["kubectl get mutatingwebhookconfigurations", program.name("doctor")],
        )
    elif "lower cluster" in said:
        yield Finding(0, "No lower cluster has a node for the pod.", evidence, [program.name("status")])
    elif "untolerated taint" in said:
        yield Finding(
            0,
            "The pod does not tolerate the virtual nodes' taint.",
            evidence,
            [
                f"tolerate {names.TAINT_PROVIDER}, or label the pod {names.LABEL_VIRTUAL_POD}=true (the webhook does it)"
            ],
        )
    elif "Insufficient" in said:
        yield Finding(0, "No virtual node has enough left.", evidence, [program.name("status")])
    elif said:
        yield Finding(1, "The upper scheduler finds no node.", evidence)


def _selector(facts: Facts) -> Iterator[Finding]:
    text = (facts.pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_CLUSTER_SELECTOR)
    if text:
        try:
            cluster_selector.parse(text)
        except ValueError as error:
            yield Finding(
                0, "The clusterSelector annotation cannot be read, and is not applied.", [str(error)]
            )


def _node(facts: Facts) -> Iterator[Finding]:
    name = facts.pod["spec"].get("nodeName")
    if not name or facts.virtual_nodes is None:
        return
    if facts.node is None:
        yield Finding(0, f"The pod is bound to {name}, which does not exist.", [], [program.name("status")])
        return
    if (facts.node["metadata"].get("labels") or {}).get(names.LABEL_NODE_TYPE) != names.NODE_TYPE_VIRTUAL:
        if not is_running(facts.pod):
            yield Finding(8, f"{name} is a node of the upper cluster itself, not a virtual one.")
        return
    ready = condition(facts.node, "Ready")
    if ready.get("status") != "True":
        evidence = [f"{ready.get('reason', '?')}: {ready.get('message', '')}"]
        yield Finding(
            0, f"The virtual node {name} is not Ready.", evidence, [program.name(f"diagnose node {name}")]
        )
    elif facts.heartbeat_seconds is not None and facts.heartbeat_seconds > _STALE_SECONDS:
        yield Finding(
            0,
            f"The virtual node {name} has not been heard of for {facts.heartbeat_seconds:.0f} s: is its process running?",
            [],
            [program.name(f"diagnose node {name}")],
        )


def _admission(facts: Facts) -> Iterator[Finding]:
    refused = condition(facts.pod, names.CONDITION_ADMITTED)
    if refused.get("status") != "False":
        return
    titles = {
        "ExceededQuota": "A ResourceQuota of the lower cluster is used up.",
        "PodSecurity": "Pod Security in the lower cluster does not admit the pod.",
        "NotAllowed": "This lower cluster's policy keeps the pod out.",
    }
    title = titles.get(refused.get("reason", ""), "The lower cluster refuses the pod.")
    yield Finding(0, title, [refused.get("message", "")])


def _conflict(facts: Facts) -> Iterator[Finding]:
    for event in facts.events:
        if event.get("reason") == "NameConflict" and facts.lower is None:
            yield Finding(
                0, "The lower cluster has a pod of that name that is not ours.", [event.get("message", "")]
            )
            return


def _scheduled_below(facts: Facts) -> Iterator[Finding]:
    if not facts.pod["spec"].get("nodeName"):
        return
    scheduled = condition(facts.pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield Finding(
            0,
            "The lower scheduler finds no node for the pod.",
            [f"{scheduled.get('reason')}: {scheduled.get('message', '')}"],
            [
                "run the descheduler (it moves the pod), or the multi-scheduler (it looks before the pod is bound)"
            ],
        )


RULES: Sequence[Rule] = (
    _unscheduled,
    _selector,
    _node,
    _admission,
    _conflict,
    _scheduled_below,
)
