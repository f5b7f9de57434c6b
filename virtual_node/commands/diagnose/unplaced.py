"""Explains why an upper pod has no node, from the labels, taints and conditions of the virtual nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controller_runtime.api import matching, names
from controller_runtime.api.pod.conditions import condition, is_true
from virtual_node.commands.diagnose import advice, codes
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import DiagnoseFinding, PodFacts, age, pairs, pod_namespace
from virtual_node.config import program
from virtual_node.health.nodes import cluster_of
from virtual_node.health.objects import taints
from virtual_node.health.pods import SCHEDULING

_LIFECYCLE = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets on cordoned, unreachable and not Ready nodes."""
_GROUP = re.compile(
    r"pod group (?P<group>[\w./-]+)"
    r"(?: has (?P<has>\d+) of (?P<minimum>\d+) pods| needs room for (?P<needed>\d+) pods at once)?"
)
"""The multi-scheduler's reasons about pods that start together."""
_DIVISION = re.compile(
    r"lower cluster (?P<full>\S+) has (?P<has>\d+) of (?P<all>\d+) pods, and one more is above its share and the "
    r"maximum skew of (?P<skew>\d+) .*; lower cluster (?P<behind>\S+) cannot take the pod"
)
"""The multi-scheduler's reason about a pod that its division keeps from other clusters."""
Json = Mapping[str, Any]


def unscheduled(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    """Yield why a pod has no node, with the cause to remove first at the start; nothing if it has one."""
    if facts.pod["spec"].get("nodeName"):
        return
    if gates := [gate["name"] for gate in facts.pod["spec"].get("schedulingGates") or ()]:
        yield DiagnoseFinding(
            0,
            f"Scheduling gates hold the pod back: {', '.join(gates)}.",
            [],
            ["find out which controller removes them"],
            code=Code.SCHEDULING_GATED,
        )
        return
    message = str(condition(facts.pod.get("status"), "PodScheduled").get("message") or "")
    evidence = [f"kube-scheduler: {message}"] if message else []
    if facts.virtual_nodes is not None and not facts.virtual_nodes:
        yield DiagnoseFinding(
            0,
            "There is no virtual node in this cluster.",
            evidence,
            [program.name("doctor")],
            code=Code.NO_VIRTUAL_NODE,
        )
        return
    matching_nodes = [node for node in facts.virtual_nodes or () if _matches(facts.pod, node)]
    if facts.virtual_nodes and not matching_nodes:
        yield _no_match(facts, facts.virtual_nodes, evidence)
        return
    found = list(_repelled(facts, matching_nodes, evidence))
    yield from found or _by_message(facts, message, evidence)


def _repelled(facts: PodFacts, nodes: Sequence[Json], evidence: Sequence[str]) -> Iterator[DiagnoseFinding]:
    """Yield why no virtual node that matches the pod's selectors takes the pod; nothing if one does."""
    missing = {name: _untolerated(facts.pod, node) for node in nodes if (name := node["metadata"]["name"])}
    away = [node for node in nodes if _is_away(facts.pod, node)]
    open_ = [
        node
        for node in nodes
        if not missing[node["metadata"]["name"]]
        and not (node.get("spec") or {}).get("unschedulable")
        and node not in away
    ]
    if open_ or not nodes:
        return
    if all(missing.values()):
        yield _no_toleration(facts, sorted({taint for each in missing.values() for taint in each}), evidence)
    if away:
        count = "The virtual node" if len(nodes) == 1 else "Every virtual node"
        lost = len(away) == len(nodes)
        yield DiagnoseFinding(
            1 if all(missing.values()) else 0,
            f"{count} that the pod may run on is not available."
            if not lost
            else f"{count} that the pod may run on is lost or not Ready.",
            [*(_state(node) for node in away), *evidence],
            [program.name(f"diagnose node {node['metadata']['name']}") for node in away[:3]],
            code=Code.NODE_UNAVAILABLE,
        )
    cordoned = [node["metadata"]["name"] for node in nodes if (node.get("spec") or {}).get("unschedulable")]
    if cordoned and not all(missing.values()):
        yield DiagnoseFinding(
            1 if away else 0,
            f"Virtual nodes that the pod may run on are cordoned: {', '.join(cordoned)}.",
            [] if away else evidence,
            [f"kubectl uncordon {cordoned[0]}"],
            code=Code.CORDONED,
        )


def _by_message(facts: PodFacts, message: str, evidence: Sequence[str]) -> Iterator[DiagnoseFinding]:
    """Yield findings from the scheduler's message."""
    doctor, status = program.name("doctor"), program.name("status")
    namespace = pod_namespace(facts)
    if found := _GROUP.search(message):
        yield _group(found, evidence, namespace)
    elif found := _DIVISION.search(message):
        yield _division(found, evidence)
    elif "lower cluster" in message:
        # The text before these words is about real nodes of the upper cluster.
        below = advice.steps(message[message.index("lower cluster") :], namespace=namespace)
        title = "No lower cluster has a node for the pod."
        yield DiagnoseFinding(0, title, evidence, below or [doctor], code=Code.NO_CLUSTER_FITS)
    elif "Insufficient" in message:
        step = f"request less, or add nodes to a lower cluster; {status} shows what is left"
        title = "No virtual node has enough free resources."
        yield DiagnoseFinding(0, title, evidence, [step], code=codes.unschedulable(message))
    elif message:
        steps = advice.missing(message, namespace=namespace)
        title = "The upper scheduler finds no node."
        yield DiagnoseFinding(1, title, evidence, steps or [doctor], code=codes.unschedulable(message))
    elif age(facts) > SCHEDULING:
        name = facts.pod["spec"].get("schedulerName") or "default-scheduler"
        yield DiagnoseFinding(
            0,
            f"No scheduler named {name} has looked at the pod.",
            [],
            [
                f"start it, or correct spec.schedulerName of the pod; {doctor} says whether kube-scheduler runs"
            ],
            code=Code.NO_SCHEDULER,
        )


def _group(found: re.Match[str], evidence: Sequence[str], namespace: str) -> DiagnoseFinding:
    """Return why a pod waits that starts only together with its group."""
    if found["has"] is not None:
        why = f"{found['has']} of {found['minimum']} pods exist"
        step = (
            "find out why the other pods are missing or have scheduling gates: "
            f"kubectl --namespace {namespace} get pods,events"
        )
    elif found["needed"] is not None:
        why = f"there is no room for {found['needed']} pods at once"
        step = f"add nodes to a lower cluster, or let other pods end; {program.name('status')} shows what is left"
    else:
        why, step = "the scheduler's message has the reason", "follow the scheduler's message"
    title = f"The pod waits with pod group {found['group']}: {why}."
    return DiagnoseFinding(0, title, evidence, [step], code=Code.POD_GROUP)


def _division(found: re.Match[str], evidence: Sequence[str]) -> DiagnoseFinding:
    """Return why a pod waits that would exceed the maximum skew of its division."""
    title = (
        f"Lower cluster {found['behind']} cannot take the pod, and {found['full']} has reached its share of the "
        f"workload's pods and the maximum skew of {found['skew']}."
    )
    steps = [
        f"raise {names.ANNOTATION_DIVISION_MAX_SKEW} in the pod's template, or make room in {found['behind']}",
        program.name("status"),
    ]
    return DiagnoseFinding(0, title, evidence, steps, code=Code.DIVISION)


def _no_match(facts: PodFacts, nodes: Sequence[Json], evidence: Sequence[str]) -> DiagnoseFinding:
    selector = facts.pod["spec"].get("nodeSelector") or {}
    known = [node["metadata"].get("labels") or {} for node in nodes]
    lost = {key: value for key, value in selector.items() if not any(one.get(key) == value for one in known)}
    wanted = pairs(lost or selector) if selector else ""
    if not wanted:
        return DiagnoseFinding(
            0,
            "No virtual node matches the pod's node affinity.",
            evidence,
            [f"kubectl get nodes -l {names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL} --show-labels"],
            code=Code.AFFINITY,
        )
    if not lost:
        return DiagnoseFinding(
            0,
            f"No virtual node matches all of the pod's selectors ({wanted}, node affinity).",
            evidence,
            [f"kubectl get nodes -l {names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL} --show-labels"],
            code=Code.AFFINITY,
        )
    if _is_labelled(facts.pod):
        return DiagnoseFinding(
            0,
            f"No virtual node has {wanted}: the webhook has not moved the selector. Was it down, or are these "
            "keys in its --ignore-selector-keys?",
            evidence,
            ["kubectl get mutatingwebhookconfigurations", program.name("doctor")],
            code=Code.AFFINITY,
        )
    return DiagnoseFinding(
        0,
        f"No virtual node has {wanted}, and the pod is not labelled {names.LABEL_VIRTUAL_POD}=true: "
        "the webhook leaves its selector in the upper cluster.",
        evidence,
        [f"label the pod's template {names.LABEL_VIRTUAL_POD}=true"],
        code=Code.AFFINITY,
    )


def _no_toleration(facts: PodFacts, missing: Sequence[str], evidence: Sequence[str]) -> DiagnoseFinding:
    if any(taint.startswith(names.TAINT_PROVIDER) for taint in missing):
        step = (
            "create the pod again: the webhook did not add the toleration, was it down? "
            + program.name("doctor")
            if _is_labelled(facts.pod)
            else f"tolerate {names.TAINT_PROVIDER}, or label the pod {names.LABEL_VIRTUAL_POD}=true (the webhook does it)"
        )
    else:
        step = "add a toleration of it to the pod's template, or remove the taint from the virtual node"
    return DiagnoseFinding(
        0,
        f"The pod does not tolerate {', '.join(missing)} of the virtual nodes.",
        evidence,
        [step],
        code=Code.TAINT,
    )


def _matches(pod: Json, node: Json) -> bool:
    metadata = node["metadata"]
    return matching.admits(pod["spec"], name=metadata["name"], labels=metadata.get("labels") or {}, taints=())


def _untolerated(pod: Json, node: Json) -> list[str]:
    """Return taints that the pod does not tolerate and that stay when the cluster recovers."""
    return [
        f"{taint['key']}{'=' if taint.get('value') else ''}{taint.get('value') or ''}:{taint.get('effect', '')}"
        for taint in _keeping_away(pod, node)
        if not _is_passing(taint)
    ]


def _is_away(pod: Json, node: Json) -> bool:
    """Report whether the node is not Ready, or has a taint of a lost node that the pod does not tolerate.

    The taint of a cordoned node does not count.
    """
    if not is_true(node.get("status"), "Ready"):
        return True
    cordon = f"{_LIFECYCLE}unschedulable"
    return any(_is_passing(taint) and taint["key"] != cordon for taint in _keeping_away(pod, node))


def _keeping_away(pod: Json, node: Json) -> Iterator[Json]:
    tolerations = pod["spec"].get("tolerations") or ()
    for taint in taints(node):
        if taint.get("effect") != "PreferNoSchedule" and not any(
            matching.tolerates(one, taint) for one in tolerations
        ):
            yield taint


def _is_passing(taint: Json) -> bool:
    return bool(taint["key"].startswith(_LIFECYCLE)) or taint["key"] == names.TAINT_STALE_CLUSTER


def _state(node: Json) -> str:
    ready = condition(node.get("status"), "Ready")
    name = f"{node['metadata']['name']} (lower cluster {cluster_of(node)})"
    if ready.get("status") != "True":
        return f"{name}: {ready.get('reason', 'not Ready')}: {ready.get('message', '')}".rstrip(": ")
    keys = ", ".join(taint["key"] for taint in taints(node) if _is_passing(taint))
    return f"{name} is tainted {keys}, although it is Ready again: the taint is removed within a minute"


def _is_labelled(pod: Json) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(names.LABEL_VIRTUAL_POD) == "true")
