"""Reports the health model's faults as findings of ``inspect``."""

from __future__ import annotations

from datetime import timedelta

from virtual_node.certificates.expiry import UPPER
from virtual_node.commands.inspect.facts import COMPONENT_POD, WAITING_POD, Findings, InspectFacts, Subject
from virtual_node.health.facts import ClusterState, HealthFacts
from virtual_node.health.faults import SWARMS, Fault, Kind, Severity
from virtual_node.health.model import examine, facts_of
from virtual_node.health.objects import is_virtual

_CHECKS = {
    Kind.REPLICA_FAILING: "component",
    Kind.CONFIGURATION_REJECTED: "configuration",
    Kind.CLUSTER_FAILED: "cluster",
    Kind.CLUSTER_LOST: "cluster",
    Kind.NO_LOWER_CLUSTER: "node",
    Kind.NODE_MISSING: "node",
    Kind.NODE_SILENT: "node",
    Kind.NODE_NOT_READY: "node",
    Kind.NODE_CLOSED: "node",
    Kind.CERTIFICATE_EXPIRES: "expiry",
    **dict.fromkeys(SWARMS, "swarm"),
}


def faults(facts: InspectFacts) -> Findings:
    """Yield a finding for every fault of the health model."""
    for fault in examine(_seen(facts)).faults:
        kind, _, name = fault.objects[0].partition(" ")
        check = _CHECKS.get(fault.kind, "pods")
        cluster = UPPER if kind in {"Node", "Installation", "Configuration"} else fault.cluster or UPPER
        yield Subject(check, cluster, kind, name or kind.lower()).finding(
            fault.severity.value, _message(fault), fault.next_step, transient=fault.severity is Severity.ERROR
        )


def _message(fault: Fault) -> str:
    more = fault.count - 1
    return f"{fault.cause} (and {more} more such pod{'s' * (more > 1)})" if more else fault.cause


def _seen(facts: InspectFacts) -> HealthFacts:
    """Return the health model's facts from what was read of the upper cluster."""
    upper = facts.upper
    nodes = [node for node in upper.of("Node") if is_virtual(node)]
    names = {node["metadata"]["name"] for node in nodes}
    pods = (pod for pod in upper.of("Pod") if pod["spec"].get("nodeName") in names)
    return facts_of(
        # Leases and conditions have timestamps by the upper cluster's clock.
        now=facts.now + timedelta(seconds=upper.clock_skew or 0.0),
        nodes=nodes if upper.knows("Node") else None,
        leases={one["metadata"]["name"]: one for one in upper.of("Lease")} if upper.knows("Lease") else None,
        bound=pods if upper.knows("Pod") else None,
        waiting=upper.of(WAITING_POD) if upper.knows(WAITING_POD) else None,
        replicas=upper.of(COMPONENT_POD) if upper.knows(COMPONENT_POD) else None,
        swarms=upper.of("Swarm"),
        clusters=[ClusterState(name=one.name, nodes=tuple(one.nodes)) for one in facts.lowers],
    )
