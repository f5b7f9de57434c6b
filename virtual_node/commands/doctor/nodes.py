"""Checks the links from the upper API through the virtual nodes to the lower clusters and the pods that run there."""

from __future__ import annotations

from collections import Counter

from clusterset.model import names
from clusterset.model.pod.conditions import is_true
from controller_runtime.apimachinery.readable import count, some
from virtual_node.commands.common.cluster_dns import DEFAULT_DOMAIN
from virtual_node.commands.common.installation import (
    INSTALLED_AS,
    LABEL_NAME,
    installation_trouble,
    node_trouble,
)
from virtual_node.commands.doctor.facts import DoctorFacts, ready_nodes, virtual_nodes, waiting
from virtual_node.commands.doctor.links import (
    Outcome,
    Rule,
    broken,
    faults,
    health,
    of_faults,
    ok,
    skipped,
    unknown,
)
from virtual_node.config import program
from virtual_node.examine.codes import PODS, Code
from virtual_node.examine.connections import Failure, failure, plain
from virtual_node.examine.objects import Json, is_passing, key, repelling, selects, taint_text
from virtual_node.examine.objects import taints as node_taints
from virtual_node.examine.pods import is_for_virtual_nodes
from virtual_node.examine.probes import PROXY_REFUSES, is_forbidden, kubelet_trouble

RIGHTS = "rights"


def upper_api(facts: DoctorFacts) -> Outcome:
    """Check that the upper API answers."""
    if facts.trouble is None:
        return ok(f"{facts.server} {facts.answer.text}")
    return broken(facts.trouble.what, facts.trouble.step or "kubectl get --raw '/readyz?verbose'")


def caller_rights(facts: DoctorFacts) -> Outcome:
    """Check that the caller has the rights that ``doctor`` needs."""
    if "denied" in facts.unread:
        return broken(
            f"your rights cannot be read: {facts.unread['denied']}", "use a kubeconfig with an identity"
        )
    if facts.denied:
        return broken(
            f"you may not {some(facts.denied, limit=12)}",
            "ask for these rights, or use an administrator's kubeconfig",
        )
    return ok("all rights that this command needs")


def presence(facts: DoctorFacts) -> Outcome:
    """Check that there are virtual nodes."""
    found = virtual_nodes(facts)
    if found:
        return ok(f"{len(found)}: {some(node['metadata']['name'] for node in found)}")
    unread = facts.unread.get("installation", "")
    why, step = installation_trouble(facts.installation, facts.now, unread=unread)
    return broken(f"there is no virtual node; {why}", step)


def heartbeat(facts: DoctorFacts) -> Outcome:
    """Check that all virtual nodes are Ready, with fresh Leases and reachable lower clusters."""
    unread = facts.unread.get("installation", "")
    if trouble := node_trouble(health(facts).faults, facts.installation, facts.now, unread=unread):
        return broken(*trouble)
    if "leases" in facts.unread:
        return unknown(f"all are Ready; their Leases cannot be seen: {facts.unread['leases']}")
    return ok(f"{len(virtual_nodes(facts))} Ready, leases fresh")


def _components(facts: DoctorFacts) -> Outcome:
    found = facts.installation.pods
    if found:
        return ok(f"{count(len(found), 'pod')} of components, none fails")
    return skipped(f"nothing here is labelled {LABEL_NAME}={INSTALLED_AS}: they may run elsewhere")


def targets_virtual_nodes(facts: DoctorFacts, pod: Json) -> bool:
    """Report whether a waiting pod is for virtual nodes, by the health model's definition."""
    return is_for_virtual_nodes(pod, [node["metadata"]["name"] for node in virtual_nodes(facts)])


def taints(facts: DoctorFacts) -> Outcome:
    """Check that each pod that waits for virtual nodes tolerates the taints of one that it selects."""
    nodes = virtual_nodes(facts)
    if closed := faults(facts, Code.NODE_CLOSED):
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
        seen = sorted({taint_text(one) for one in every if not is_passing(one)})
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
    return [taint_text(taint) for taint in repelling(pod, node) if not is_passing(taint)]


def lower_api(facts: DoctorFacts) -> Outcome:
    """Check that the lower clusters answer and have schedulable nodes."""
    if not facts.lower:
        return skipped("no --client-kubeconfig given")
    details = []
    for lower in facts.lower:
        if not lower.usable:
            return broken(lower.answer.text, "correct that kubeconfig, or what it calls for credentials")
        if not lower.answer.ok:
            steps = {
                Failure.UNAUTHENTICATED: f"renew its credentials: {program.name('lower-cluster')} register",
                Failure.UNTRUSTED: "give the kubeconfig the CA of that API server",
            }
            kind = failure(lower.answer.text, lower.answer.code)
            otherwise = "is that API server up, and reachable from here and from the virtual node?"
            return broken(f"{lower.file}: {plain(lower.answer.text)}", steps.get(kind, otherwise))
        good = [node for node in lower.nodes if _is_schedulable(node)]
        if not good:
            return broken(
                f"{lower.file}: none of its {len(lower.nodes)} nodes is Ready and schedulable",
                f"kubectl --kubeconfig {lower.file} get nodes",
            )
        details.append(
            f"{lower.file}: {lower.answer.text}, {len(good)} of {len(lower.nodes)} nodes schedulable"
        )
    return ok("; ".join(details))


def peer_names(facts: DoctorFacts) -> Outcome:
    """Check that pods find others by the names of the upper cluster; without a name server, this is only a warning."""
    if not facts.lower:
        return skipped("no --client-kubeconfig given")
    domain = facts.domain or DEFAULT_DOMAIN
    warnings = []
    for lower in facts.lower:
        for server in lower.name_servers:
            if not server.ready:
                space = server.name.partition("/")[0]
                return broken(
                    f"{lower.file}: name server {server.name} has no ready pod",
                    f"kubectl --kubeconfig {lower.file} --namespace {space} get pods",
                )
        reasons = [f"namespace {name} is {below} there" for below, name in sorted(lower.renamed.items())[:1]]
        reasons += [f"its domain is {lower.domain}"] if lower.domain not in ("", domain) else []
        if reasons and not lower.name_servers:
            warnings.append(f"{lower.file}: {' and '.join(reasons)}")
    if not warnings:
        return ok(f"pods find others by NAME.NAMESPACE.svc.{domain}")
    return ok(
        f"warning: pods do not find others by NAME.NAMESPACE.svc.{domain}: {'; '.join(warnings)}",
        f"if they need it: {program.name('lower-cluster')} dns (docs/use/services.md)",
    )


def _started(facts: DoctorFacts) -> Outcome:
    phases = [(pod.get("status") or {}).get("phase") for bound in facts.bound.values() for pod in bound]
    if starting := phases.count("Pending"):
        return ok(f"{count(starting, 'pod')} starting, none stuck")
    return ok("every pod on a virtual node has started")


def _is_schedulable(node: Json) -> bool:
    return is_true(node.get("status"), "Ready") and not (node.get("spec") or {}).get("unschedulable")


RULES = (
    Rule("upperApi", "upper API server", upper_api),
    Rule(RIGHTS, "your rights there", caller_rights, needs=("upperApi",)),
    Rule(
        "components",
        "components running",
        _components,
        needs=("upperApi",),
        reads=("installation",),
        faults={Code.REPLICA_FAILING},
    ),
    Rule("virtualNodes", "virtual nodes", presence, needs=("upperApi",), reads=("nodes",)),
    Rule(
        "configuration",
        "configuration applied",
        lambda _facts: ok("no virtual node reports a rejected one"),
        needs=("virtualNodes",),
        reads=("leases",),
        faults={Code.CONFIGURATION_REJECTED},
    ),
    Rule("nodeReady", "virtual nodes Ready, leases fresh", heartbeat, needs=("virtualNodes",)),
    Rule("taints", "taints tolerated", taints, needs=("virtualNodes",), reads=("pending",)),
    Rule("kubeletApi", "kubelet API, through the API server", kubelet_api, needs=("virtualNodes",)),
)
LOWER_RULES = (
    Rule("lowerApi", "lower clusters reachable", lower_api),
    Rule("names", "names of other pods", peer_names, needs=("lowerApi",)),
    Rule(
        "lowerCertificates",
        "certificates of lower API servers",
        lambda _facts: ok("none is reported to expire soon"),
        needs=("virtualNodes",),
        reads=("leases",),
        faults={Code.CERTIFICATE_EXPIRES},
    ),
    Rule(
        "lowerVerdict",
        "pods run in lower clusters",
        _started,
        needs=("virtualNodes",),
        reads=("bound",),
        faults=PODS - {Code.POD_UNSCHEDULED},
    ),
)
