"""Finds virtual nodes and lower clusters that are lost, failed, silent, not Ready or closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterset.model import names
from clusterset.model.moving.silence import NO_READY_NODES, Silence, of_node
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps
from virtual_node.config import program
from virtual_node.health.facts import HealthFacts
from virtual_node.health.faults import Fault, Kind
from virtual_node.health.leases import NODE_LEASE_SECONDS, lease_age
from virtual_node.health.objects import Json, labels_of, one_line, taints

UNREACHABLE = "LowerClusterUnreachable"
"""Reason of a virtual node's Ready condition while its lower cluster does not answer."""
_GRACE = 60.0
"""Seconds: Kubernetes' node-monitor-grace-period (40 or 50 s) with a margin."""


def cluster_faults(facts: HealthFacts) -> Iterator[Fault]:
    """Yield the faults of lower clusters that do not answer or whose controllers do not run."""
    lost: dict[str, str] = {}
    failed: set[str] = set()
    for cluster in facts.clusters:
        if cluster.failed:
            failed.add(cluster.name)
            step = "correct its configuration or kubeconfig; the virtual node tries again by itself"
            yield _cluster(Kind.CLUSTER_FAILED, cluster.name, f"does not work: {cluster.error}", step)
        elif cluster.reachable is False:
            lost[cluster.name] = f"its API server does not answer: {cluster.error}".rstrip(": ")
    for node in facts.nodes or ():
        ready = condition(node.get("status"), "Ready")
        if ready.get("reason") == UNREACHABLE and ready.get("status") == "False":
            lost.setdefault(cluster_of(node), str(ready.get("message") or "its API server does not answer"))
    for name, cause in sorted(lost.items()):
        if name not in failed:
            step = f"bring its API server back, or make it reachable; {program.name('check')} tests the way to it"
            silent = [node for node in facts.nodes or () if cluster_of(node) == name]
            yield replace(_cluster(Kind.CLUSTER_LOST, name, cause, step), silence=_countdown(silent))


def node_faults(facts: HealthFacts) -> Iterator[Fault]:
    """Yield the faults of virtual nodes: missing, silent, not Ready or closed."""
    nodes = {node["metadata"]["name"]: node for node in facts.nodes or ()}
    for name, node in sorted(nodes.items()):
        yield from _node(facts, name, node)
    if facts.nodes is None:
        return
    explained = {cluster.name for cluster in facts.clusters if cluster.failed}
    for cluster in facts.clusters:
        for name in cluster.nodes:
            if name not in nodes and cluster.name not in explained:
                why = "is configured and not registered"
                yield _fault(Kind.NODE_MISSING, name, cluster.name, why, program.name("doctor"))
    if nodes and all((node.get("spec") or {}).get("unschedulable") for node in nodes.values()):
        first = min(nodes)
        yield _fault(
            Kind.NODE_CLOSED, first, "", "every virtual node is cordoned", f"kubectl uncordon {first}"
        )


def silence(facts: HealthFacts, name: str, *, ready: bool) -> str:
    """Return why a virtual node's process is regarded as dead; empty: it runs, or this cannot be known yet.

    Args:
        facts: everything that was read.
        name: name of the virtual node.
        ready: whether the node is Ready; if so, the text may ask whether clocks differ.
    """
    if facts.leases is None:
        return ""
    age = lease_age(facts.leases.get(name), facts.now)
    if age is None:
        return "" if _is_new(facts, name) else "it has no Lease"
    if not age.is_expired():
        return ""
    # Kubernetes measures renewals by its own clock, so a node that is still Ready must have renewed its Lease.
    is_doubtful = ready and age.seconds > age.duration + _GRACE
    return f"its Lease {age}" + ("; it is Ready all the same: do the clocks differ?" if is_doubtful else "")


def cluster_of(node: Json) -> str:
    """Return the lower cluster's name from a virtual node's label; without this label the node's name."""
    return str(labels_of(node).get(names.LABEL_LOWER_CLUSTER) or node["metadata"]["name"])


def _node(facts: HealthFacts, name: str, node: Json) -> Iterator[Fault]:
    cluster, ready = cluster_of(node), condition(node.get("status"), "Ready")
    is_ready = ready.get("status") == "True"
    diagnose = program.name(f"diagnose node {name}")
    why = ": ".join(part for part in (ready.get("reason"), ready.get("message")) if part)
    why = "" if is_ready else f"is not Ready: {why or 'no reason given'}"
    countdown = _countdown([node])
    if cause := silence(facts, name, ready=is_ready):
        text = f"{cause}{'; it ' * (not is_ready)}{why}"
        yield replace(_fault(Kind.NODE_SILENT, name, cluster, text, diagnose), silence=countdown)
    elif why and ready.get("reason") != UNREACHABLE:
        yield replace(_fault(Kind.NODE_NOT_READY, name, cluster, why, diagnose), silence=countdown)
    elif is_ready and any(taint["key"] == names.TAINT_STALE_CLUSTER for taint in taints(node)):
        yield _fault(
            Kind.NODE_CLOSED,
            name,
            cluster,
            f"the descheduler keeps pods away from it ({names.TAINT_STALE_CLUSTER})",
            "it removes the taint 30 s after the lower cluster is healthy again; without a descheduler: "
            f"kubectl taint node {name} {names.TAINT_STALE_CLUSTER}-",
        )


def _countdown(nodes: Sequence[Json]) -> Silence | None:
    """Return the silence of these virtual nodes after which running pods move first; None: no program counts down."""
    found = (
        of_node(node)
        for node in nodes
        if condition(node.get("status"), "Ready").get("reason") != NO_READY_NODES  # the cluster answers
    )
    return min(filter(None, found), key=lambda one: one.running_pods_move_at, default=None)


def _is_new(facts: HealthFacts, name: str) -> bool:
    """Report whether a node was registered so recently that its Lease may not exist yet."""
    node = next((one for one in facts.nodes or () if one["metadata"]["name"] == name), None)
    created = node["metadata"].get("creationTimestamp") if node else None
    return (
        bool(created) and (facts.now - timestamps.parse(str(created))).total_seconds() <= NODE_LEASE_SECONDS
    )


def _cluster(kind: Kind, name: str, cause: str, step: str) -> Fault:
    return Fault(kind, (f"Cluster {name}",), one_line(cause), step, name)


def _fault(kind: Kind, name: str, cluster: str, cause: str, step: str) -> Fault:
    return Fault(kind, (f"Node {name}",), one_line(cause), step, cluster, name)
