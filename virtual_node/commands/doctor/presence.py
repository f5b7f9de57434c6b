"""The first links: upper API, rights of the caller, virtual nodes and their heartbeats."""

from __future__ import annotations

from controller_runtime.api.readable import count, some
from virtual_node.commands.doctor.facts import INSTALLED_AS, LABEL_NAME, DoctorFacts, virtual_nodes
from virtual_node.commands.doctor.installation import installation_trouble
from virtual_node.commands.doctor.links import Outcome, Rule, broken, ok, skipped, unknown
from virtual_node.commands.doctor.verdict import faults, of_faults, unless
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


RULES = (
    Rule("upperApi", "upper API server", upper_api),
    Rule(RIGHTS, "your rights there", caller_rights, needs=("upperApi",)),
    Rule(
        "components",
        "components running",
        unless(Kind.REPLICA_FAILING, fine=_components),
        needs=("upperApi",),
        reads=("installation",),
    ),
    Rule("virtualNodes", "virtual nodes", presence, needs=("upperApi",), reads=("nodes",)),
    Rule(
        "configuration",
        "configuration applied",
        unless(Kind.CONFIGURATION_REJECTED, fine=lambda _facts: ok("no virtual node reports a rejected one")),
        needs=("virtualNodes",),
        reads=("leases",),
    ),
    Rule("nodeReady", "virtual nodes Ready, leases fresh", heartbeat, needs=("virtualNodes",)),
)
