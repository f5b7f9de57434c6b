"""Checks running virtual nodes: taints that pods do not tolerate, and an unreachable kubelet API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from controller_runtime.api import matching, names
from controller_runtime.api.readable import count, some
from virtual_node.commands.common.probe import PROXY_REFUSES, Probe
from virtual_node.commands.doctor.facts import DoctorFacts, ready_nodes, virtual_nodes, waiting
from virtual_node.commands.doctor.links import Outcome, Rule, broken, ok, skipped
from virtual_node.commands.doctor.verdict import faults, of_faults
from virtual_node.health.connections import Failure, failure
from virtual_node.health.faults import Kind
from virtual_node.health.objects import Json, key
from virtual_node.health.pods import is_for_virtual_nodes

_LIFECYCLE = "node.kubernetes.io/"
"""Prefix of taints that other links report (not-ready, unreachable, unschedulable)."""


def targets_virtual_nodes(facts: DoctorFacts, pod: Json) -> bool:
    """Report whether a waiting pod is for virtual nodes, by the health model's definition."""
    return is_for_virtual_nodes(pod, [node["metadata"]["name"] for node in virtual_nodes(facts)])


def taints(facts: DoctorFacts) -> Outcome:
    """Check that each pod waiting for virtual nodes tolerates the taints of at least one that it selects."""
    nodes = virtual_nodes(facts)
    if closed := faults(facts, Kind.NODE_CLOSED):
        return of_faults(closed)
    repelled: Counter[str] = Counter()
    examples: list[str] = []
    for pod in waiting(facts):
        candidates = [node for node in nodes if _wants(pod, node)]
        missing = [_missing(pod, node) for node in candidates]
        if candidates and all(missing) and targets_virtual_nodes(facts, pod):
            repelled.update({taint for each in missing for taint in each})
            examples.append(key(pod))
    if not examples:
        seen = sorted({_text(taint) for node in nodes for taint in _taints(node)})
        return ok(f"{some(seen) or 'none'}; every pod that waits for a virtual node tolerates them")
    return broken(
        f"{count(len(examples), 'pod lacks', 'pods lack')} a toleration of {some(repelled)} ({some(examples)})",
        f"label the pods' template {names.LABEL_VIRTUAL_POD}=true (the webhook tolerates for them), "
        "or add the toleration",
    )


def kubelet_api(facts: DoctorFacts) -> Outcome:
    """Check that the API server reaches the kubelet API of the virtual nodes."""
    probes = {
        node["metadata"]["name"]: facts.kubelets[node["metadata"]["name"]]
        for node in ready_nodes(facts)
        if node["metadata"]["name"] in facts.kubelets
    }
    if not probes:
        return skipped("no virtual node is Ready")
    if all(_callers(probe) for probe in probes.values()):
        return skipped("you may not get nodes/proxy, or pods/log")
    refused = [name for name, probe in probes.items() if PROXY_REFUSES in probe.text]
    if len(refused) == len(probes):
        return skipped(
            f"the API server does not proxy to loopback or link-local addresses, and {some(refused)} runs no "
            f"pod to test with"
        )
    for name, probe in probes.items():
        if not probe.ok and not _callers(probe) and name not in refused:
            what, step = _kubelet_trouble(probe)
            return broken(f"the API server cannot reach {name}: {what}", step)
    return ok(f"the API server reaches {some(name for name, probe in probes.items() if probe.ok)}")


def _kubelet_trouble(probe: Probe) -> tuple[str, str]:
    kind = failure(probe.text, probe.code)
    text = " ".join(probe.text.split())[:200]
    what = f"{kind.value}: {text}" if kind.value else f"{probe.code} {text}"
    steps = {
        Failure.UNTRUSTED: "give the virtual node a serving certificate of the CA in the API server's "
        "--kubelet-certificate-authority, for the node's address ($APISERVER_CERT_LOCATION, $APISERVER_KEY_LOCATION)",
        Failure.TLS: "the virtual node must trust the CA of the API server's --kubelet-client-certificate: "
        "--client-verify-ca",
        Failure.REFUSED: "does the node's address ($VKUBELET_POD_IP) and port ($KUBELET_PORT) lead to the process?",
        Failure.SILENT: "let the API server reach the node's address ($VKUBELET_POD_IP): routes, firewalls, "
        "network policies, konnectivity",
        Failure.NO_NAME: "give the node an address: $VKUBELET_POD_IP",
        Failure.UNAUTHENTICATED: "the virtual node must trust the CA of the API server's "
        "--kubelet-client-certificate: --client-verify-ca",
        Failure.FORBIDDEN: "bind the API server's kubelet client to ClusterRole system:kubelet-api-admin",
    }
    return what, steps.get(kind, "look at the virtual node's log")


def _callers(probe: Probe) -> bool:
    """Report whether the API server refused the caller, so that the request never reached the kubelet API."""
    return probe.code == 403 and "cannot get resource" in probe.text


def _wants(pod: Json, node: Json) -> bool:
    metadata = node["metadata"]
    return matching.admits(pod["spec"], name=metadata["name"], labels=metadata.get("labels") or {}, taints=())


def _missing(pod: Json, node: Json) -> list[str]:
    """Return the taints of a node that repel a pod."""
    tolerations = pod["spec"].get("tolerations") or ()
    return [
        _text(taint)
        for taint in _taints(node)
        if taint.get("effect") != "PreferNoSchedule"
        and not any(matching.tolerates(one, taint) for one in tolerations)
    ]


def _taints(node: Json) -> Sequence[Json]:
    found = (node.get("spec") or {}).get("taints") or ()
    return [taint for taint in found if not taint["key"].startswith(_LIFECYCLE)]


def _text(taint: Json) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint.get('effect', '')}"


RULES = (
    Rule("taints", "taints tolerated", taints, needs=("virtualNodes",), reads=("pending",)),
    Rule("kubeletApi", "kubelet API, through the API server", kubelet_api, needs=("virtualNodes",)),
)
