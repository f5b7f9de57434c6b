"""The first links, from the upper API to the heartbeats of the virtual nodes."""

from __future__ import annotations

from controller_runtime.apimachinery.readable import count, some
from virtual_node.commands.common.installation import (
    INSTALLED_AS,
    LABEL_NAME,
    installation_trouble,
    node_trouble,
)
from virtual_node.commands.doctor.facts import DoctorFacts, virtual_nodes
from virtual_node.commands.doctor.links import Outcome, Rule, broken, ok, skipped, unknown
from virtual_node.commands.doctor.verdict import health
from virtual_node.health.faults import Kind

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
