"""Checks running virtual nodes: taints that pods do not tolerate, and an unreachable kubelet API."""

from __future__ import annotations

from collections import Counter

from clusterset.model import names
from controller_runtime.apimachinery.readable import count, some
from virtual_node.commands.common.probes import PROXY_REFUSES, is_forbidden, kubelet_trouble
from virtual_node.commands.doctor.facts import DoctorFacts, ready_nodes, virtual_nodes, waiting
from virtual_node.commands.doctor.links import Outcome, Rule, broken, ok, skipped
from virtual_node.commands.doctor.verdict import faults, of_faults
from virtual_node.health.faults import Kind
from virtual_node.health.objects import LIFECYCLE, Json, key, repelling, selects, taint_text
from virtual_node.health.objects import taints as node_taints
from virtual_node.health.pods import is_for_virtual_nodes


def targets_virtual_nodes(facts: DoctorFacts, pod: Json) -> bool:
    """Report whether a waiting pod is for virtual nodes, by the health model's definition."""
    return is_for_virtual_nodes(pod, [node["metadata"]["name"] for node in virtual_nodes(facts)])


def taints(facts: DoctorFacts) -> Outcome:
    """Check that each pod that waits for virtual nodes tolerates the taints of one that it selects."""
    nodes = virtual_nodes(facts)
    if closed := faults(facts, Kind.NODE_CLOSED):
        return of_faults(closed)
    repelled: Counter[str] = Counter()
    examples: list[str] = []
    for pod in waiting(facts):
        candidates = [node for node in nodes if selects(pod, node)]
        missing = [_missing(pod, node) for node in candidates]
        if candidates and all(missing) and targets_virtual_nodes(facts, pod):
            repelled.update({taint for each in missing for taint in each})
            examples.append(key(pod))
    if not examples:
        every = (taint for node in nodes for taint in node_taints(node))
        seen = sorted({taint_text(one) for one in every if not one["key"].startswith(LIFECYCLE)})
        return ok(f"{some(seen) or 'none'}; every pod that waits for a virtual node tolerates them")
    return broken(
        f"{count(len(examples), 'pod lacks', 'pods lack')} a toleration of {some(repelled)} ({some(examples)})",
        f"label the pods' template {names.LABEL_VIRTUAL_POD}=true (the webhook tolerates for them), "
        "or add the toleration",
    )


def kubelet_api(facts: DoctorFacts) -> Outcome:
    """Check that the API server reaches the kubelet API of the virtual nodes."""
    ready = [node["metadata"]["name"] for node in ready_nodes(facts)]
    probes = {name: facts.kubelets[name] for name in ready if name in facts.kubelets}
    if not probes:
        return skipped("no virtual node is Ready")
    if all(is_forbidden(probe) for probe in probes.values()):
        return skipped("you may not get nodes/proxy, or pods/log")
    refused = [name for name, probe in probes.items() if PROXY_REFUSES in probe.text]
    if len(refused) == len(probes):
        return skipped(
            f"the API server does not proxy to loopback or link-local addresses, and {some(refused)} runs no "
            f"pod to test with"
        )
    for name, probe in probes.items():
        if trouble := kubelet_trouble(name, probe):
            return broken(*trouble)
    return ok(f"the API server reaches {some(name for name, probe in probes.items() if probe.ok)}")


def _missing(pod: Json, node: Json) -> list[str]:
    """Return the taints of a node that repel a pod, without those that other links report."""
    return [taint_text(taint) for taint in repelling(pod, node) if not taint["key"].startswith(LIFECYCLE)]


RULES = (
    Rule("taints", "taints tolerated", taints, needs=("virtualNodes",), reads=("pending",)),
    Rule("kubeletApi", "kubelet API, through the API server", kubelet_api, needs=("virtualNodes",)),
)
