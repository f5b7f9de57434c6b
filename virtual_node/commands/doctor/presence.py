"""The first links, from the upper API to the heartbeats of the virtual nodes."""

from __future__ import annotations

from datetime import datetime

from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery.readable import count, some
from virtual_node.commands.doctor.facts import (
    INSTALLED_AS,
    LABEL_NAME,
    DoctorFacts,
    Installation,
    virtual_nodes,
)
from virtual_node.commands.doctor.links import Outcome, Rule, broken, ok, skipped, unknown
from virtual_node.commands.doctor.verdict import faults, of_faults
from virtual_node.config import program
from virtual_node.health.faults import Kind
from virtual_node.health.objects import Json, key, labels_of
from virtual_node.health.replicas import replica_trouble

RIGHTS = "rights"
_LABEL_COMPONENT = "app.kubernetes.io/component"
_UNLABELLED = f"none is labelled {LABEL_NAME}={INSTALLED_AS}"


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
    trouble, step = _why_not(facts)
    return broken(f"there is no virtual node; {trouble}", step)


def heartbeat(facts: DoctorFacts) -> Outcome:
    """Check that all virtual nodes are Ready, with fresh Leases and reachable lower clusters."""
    found = faults(facts, Kind.CLUSTER_FAILED, Kind.CLUSTER_LOST, Kind.NODE_SILENT, Kind.NODE_NOT_READY)
    if not found:
        if "leases" in facts.unread:
            return unknown(f"all are Ready; their Leases cannot be seen: {facts.unread['leases']}")
        return ok(f"{len(virtual_nodes(facts))} Ready, leases fresh")
    outcome = of_faults(found)
    if found[0].kind is Kind.NODE_SILENT:
        trouble, step = _why_not(facts)
        return broken(f"{outcome.detail}; {trouble}", step)
    return outcome


def _components(facts: DoctorFacts) -> Outcome:
    found = facts.installation.pods
    if found:
        return ok(f"{count(len(found), 'pod')} of components, none fails")
    return skipped(f"nothing here is labelled {LABEL_NAME}={INSTALLED_AS}: they may run elsewhere")


def _why_not(facts: DoctorFacts) -> tuple[str, str]:
    """Return why the virtual node's process does not run, and the next step."""
    if "installation" in facts.unread:
        return (
            f"whether its process runs cannot be seen ({facts.unread['installation']})",
            "look where the process runs",
        )
    return installation_trouble(facts.installation, facts.now)


def installation_trouble(installation: Installation, now: datetime) -> tuple[str, str]:
    """Return why no virtual node is registered or renewed, as far as this cluster shows, and the next step."""
    processes = list(filter(_runs_virtual_nodes, installation.pods))
    for pod in processes:
        logs = installation.logs.get(key(pod)) or ("",)
        if found := replica_trouble(pod, logs[-1], now, patience=0):
            return f"its pod {key(pod)} {found[0]}", found[1]
    for deployment in filter(_runs_virtual_nodes, installation.deployments):
        wanted = (deployment.get("spec") or {}).get("replicas", 1)
        namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        if wanted == 0:
            return (
                f"Deployment {namespace}/{name} is scaled to 0",
                f"kubectl -n {namespace} scale deployment {name} --replicas=1",
            )
        failed = condition(deployment.get("status"), "ReplicaFailure")
        if failed.get("status") == "True" or not processes:
            return (
                f"Deployment {namespace}/{name} has no pods: {failed.get('message') or _UNLABELLED}",
                f"kubectl -n {namespace} describe deployment {name}",
            )
    if not processes:
        return (
            f"nothing here is labelled {LABEL_NAME}={INSTALLED_AS}",
            f"start it ({program.name('run')} --help), or look where it runs: it need not be in this cluster",
        )
    pod = processes[0]
    logs = f"kubectl -n {pod['metadata']['namespace']} logs {pod['metadata']['name']}"
    return (
        f"its pod {key(pod)} runs, so it has no lower cluster, or cannot register it",
        f"{program.name('lower-cluster')} join NAME --client-kubeconfig FILE; else {logs}",
    )


def _runs_virtual_nodes(one: Json) -> bool:
    """Report whether a pod or Deployment runs virtual nodes; false for the webhook or a `helm test`."""
    component = labels_of(one).get(_LABEL_COMPONENT)
    return component in {None, INSTALLED_AS}


RULES = (
    Rule("upperApi", "upper API server", upper_api),
    Rule(RIGHTS, "your rights there", caller_rights, needs=("upperApi",)),
    Rule(
        "components",
        "components running",
        _components,
        needs=("upperApi",),
        reads=("installation",),
        faults={Kind.REPLICA_FAILING},
    ),
    Rule("virtualNodes", "virtual nodes", presence, needs=("upperApi",), reads=("nodes",)),
    Rule(
        "configuration",
        "configuration applied",
        lambda _facts: ok("no virtual node reports a rejected one"),
        needs=("virtualNodes",),
        reads=("leases",),
        faults={Kind.CONFIGURATION_REJECTED},
    ),
    Rule("nodeReady", "virtual nodes Ready, leases fresh", heartbeat, needs=("virtualNodes",)),
)
