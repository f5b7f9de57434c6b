"""The first links: is there an upper API, may the caller look, are there virtual nodes, do they live?"""

from __future__ import annotations

from controller_runtime.api import timestamps
from virtual_node import program
from virtual_node.commands.doctoring.facts import Facts, condition, virtual_nodes
from virtual_node.commands.doctoring.installation import installation_trouble
from virtual_node.commands.doctoring.links import Outcome, Rule, broken, ok, some

_LEASE_SECONDS = 40.0
RIGHTS = "rights"
_GRACE = 60.0
"""Kubernetes' node-monitor-grace-period (40 or 50 s), and some."""


def upper_api(facts: Facts) -> Outcome:
    """Is there an upper API that knows us?"""
    if facts.trouble is None:
        return ok(f"{facts.server} {facts.answer.text}")
    return broken(facts.trouble.what, facts.trouble.step or "kubectl get --raw '/readyz?verbose'")


def caller_rights(facts: Facts) -> Outcome:
    """May the caller see what is to be looked at?"""
    if "denied" in facts.unread:
        return broken(
            f"nobody says what you may do: {facts.unread['denied']}", "use a kubeconfig with an identity"
        )
    if facts.denied:
        return broken(
            f"you may not {some(facts.denied, limit=12)}",
            "ask for these rights, or use an administrator's kubeconfig",
        )
    return ok("all that is needed for looking")


def presence(facts: Facts) -> Outcome:
    """Are there virtual nodes at all?"""
    found = virtual_nodes(facts)
    if found:
        return ok(f"{len(found)}: {some(node['metadata']['name'] for node in found)}")
    trouble, step = _why_not(facts)
    return broken(f"there is no virtual node; {trouble}", step)


def heartbeat(facts: Facts) -> Outcome:
    """Are they all Ready and heard of?"""
    dead: list[str] = []
    silent: list[str] = []
    for node in virtual_nodes(facts):
        name = node["metadata"]["name"]
        ready = condition(node, "Ready")
        if said := _silence(facts, name, ready=ready.get("status") == "True"):
            silent.append(name)
            dead.append(f"{name}: {said}")
        elif ready.get("status") != "True":
            why = ": ".join(part for part in (ready.get("reason"), ready.get("message")) if part)
            dead.append(f"{name} is not Ready: {why or 'it says nothing'}")
    if not dead:
        return ok(f"{len(virtual_nodes(facts))} Ready, leases fresh")
    detail = some(dead, limit=2)
    if not silent:
        return broken(detail, f"{program.name('check')} with the daemon's flags, from where the daemon runs")
    trouble, step = _why_not(facts)
    return broken(f"{detail}; {trouble}", step)


def _why_not(facts: Facts) -> tuple[str, str]:
    """Why the process does not run, and what to do."""
    if "installation" in facts.unread:
        return (
            f"whether its process runs cannot be seen ({facts.unread['installation']})",
            "look where the process runs",
        )
    return installation_trouble(facts.installation)


def _silence(facts: Facts, name: str, *, ready: bool) -> str:
    """Why a node's process counts as dead; empty: it is alive, or nobody may know."""
    if "leases" in facts.unread:
        return ""
    spec = (facts.leases.get(name) or {}).get("spec") or {}
    if not spec.get("renewTime"):
        return "it has no Lease"
    limit = float(spec.get("leaseDurationSeconds") or _LEASE_SECONDS)
    quiet = (facts.now - timestamps.parse(spec["renewTime"])).total_seconds()
    if quiet <= limit:
        return ""
    # Kubernetes would have called it not Ready by now, had it not seen a renewal: it times them by its own clock.
    doubt = "; it is Ready all the same: do the clocks differ?" if ready and quiet > limit + _GRACE else ""
    return f"its Lease was last renewed {quiet:.0f} s ago (it lasts {limit:.0f} s){doubt}"


RULES = (
    Rule("upperApi", "upper API server", upper_api),
    Rule(RIGHTS, "your rights there", caller_rights, needs=("upperApi",)),
    Rule("virtualNodes", "virtual nodes", presence, needs=("upperApi",), reads=("nodes",)),
    Rule("nodeReady", "virtual nodes Ready, leases fresh", heartbeat, needs=("virtualNodes",)),
)
