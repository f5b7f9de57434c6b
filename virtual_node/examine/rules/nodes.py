"""Rules about our components, virtual nodes and lower clusters: failing, lost, silent, not Ready or closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterset.model import names
from clusterset.model.moving.silence import CORDONED, NO_READY_NODES, UNREACHABLE, Silence, of_node
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps
from virtual_node.config import program
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.components import explained, replica_trouble
from virtual_node.examine.connections import proxy_step
from virtual_node.examine.engine import rule
from virtual_node.examine.facts import CLUSTERS, COMPONENTS, EXPIRING, LEASES, NODES, REJECTED, WORDS
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.leases import NODE_LEASE_SECONDS, lease_age
from virtual_node.examine.objects import Json, cluster_of, key, one_line, taints
from virtual_node.examine.snapshot import Snapshot

_GRACE = 60.0
"""Seconds: Kubernetes' node-monitor-grace-period (40 or 50 s) with a margin."""


@rule(Code.REPLICA_FAILING, needs=[COMPONENTS], uses=[WORDS])
def components(snapshot: Snapshot) -> Findings:
    """Yield pods of our components that fail."""
    words = snapshot.upper.get(WORDS) or {}
    for pod in snapshot.upper[COMPONENTS]:
        if found := replica_trouble(pod, words.get(key(pod), ""), snapshot.now):
            cause, step = found
            yield snapshot.upper.finding(Code.REPLICA_FAILING, "Pod", key(pod), cause, step, transient=True)


@rule(Code.CONFIGURATION_REJECTED, needs=[REJECTED])
def rejected(snapshot: Snapshot) -> Findings:
    """Yield configurations that are not applied."""
    for cluster, why in sorted(snapshot.upper[REJECTED].items()):
        kind, cause = "Cluster" if cluster else "Configuration", f"is not applied: {why}"
        step = "correct it; it is read again by itself"
        found = snapshot.upper.finding(Code.CONFIGURATION_REJECTED, kind, cluster, cause, step)
        yield replace(found, cluster=cluster, transient=True)


@rule(Code.NO_LOWER_CLUSTER, needs=[NODES], uses=[CLUSTERS])
def no_lower_cluster(snapshot: Snapshot) -> Findings:
    """Yield that there is neither a virtual node nor a configured lower cluster."""
    known = snapshot.upper.get(CLUSTERS)
    if snapshot.upper[NODES] or known:
        return
    if why := explained(snapshot):
        yield snapshot.upper.sentence(
            Code.NO_LOWER_CLUSTER, "Installation", "", f"there is no virtual node; {why[0]}", why[1]
        )
    else:
        cause = "there is no virtual node: no lower cluster is configured, or its process does not run"
        step = f"{program.name('lower-cluster')} join NAME --client-kubeconfig FILE"
        yield snapshot.upper.finding(Code.NO_LOWER_CLUSTER, "Installation", "", cause, step, transient=True)


@rule(Code.CLUSTER_FAILED, Code.CLUSTER_LOST, uses=[CLUSTERS, NODES])
def clusters(snapshot: Snapshot) -> Findings:
    """Yield lower clusters that do not answer or whose controllers do not run."""
    lost: dict[str, str] = {}
    failed: set[str] = set()
    nodes = snapshot.upper.get(NODES) or ()
    for cluster in snapshot.upper.get(CLUSTERS) or ():
        if cluster.failed:
            failed.add(cluster.name)
            step = "correct its configuration or kubeconfig; the virtual node tries again by itself"
            yield _finding(Code.CLUSTER_FAILED, "", cluster.name, f"does not work: {cluster.error}", step)
        elif cluster.reachable is False:
            lost[cluster.name] = f"its API server does not answer: {cluster.error}".rstrip(": ")
    for node in nodes:
        ready = condition(node.get("status"), "Ready")
        if ready.get("reason") == UNREACHABLE and ready.get("status") == "False":
            lost.setdefault(cluster_of(node), str(ready.get("message") or "its API server does not answer"))
    for name, cause in sorted(lost.items()):
        if name not in failed:
            step = proxy_step(cause) or (
                f"bring its API server back, or make it reachable; {program.name('check')} tests the way to it"
            )
            silent = [node for node in nodes if cluster_of(node) == name]
            yield replace(_finding(Code.CLUSTER_LOST, "", name, cause, step), silence=_countdown(silent))


@rule(
    *(Code.NODE_MISSING, Code.NODE_SILENT, Code.NODE_NOT_READY, Code.NODE_CLOSED),
    needs=[NODES],
    uses=[LEASES, CLUSTERS],
)
def virtual_nodes(snapshot: Snapshot) -> Findings:
    """Yield virtual nodes that are missing, silent, not Ready or closed."""
    nodes = {node["metadata"]["name"]: node for node in snapshot.upper[NODES]}
    for name, node in sorted(nodes.items()):
        yield from _node(snapshot, name, node)
    known = snapshot.upper.get(CLUSTERS) or ()
    explained = {cluster.name for cluster in known if cluster.failed}
    for cluster in known:
        for name in cluster.nodes:
            if name not in nodes and cluster.name not in explained:
                why = "is configured and not registered"
                yield _finding(Code.NODE_MISSING, name, cluster.name, why, program.name("doctor"))
    if nodes and all((node.get("spec") or {}).get("unschedulable") for node in nodes.values()):
        first = min(nodes)
        step = f"kubectl uncordon {first}"
        yield replace(_finding(Code.NODE_CLOSED, first, "", "every virtual node is cordoned", step), node="")


@rule(Code.CERTIFICATE_EXPIRES, needs=[EXPIRING])
def expiring(snapshot: Snapshot) -> Findings:
    """Yield lower API servers whose serving certificate expires soon."""
    for cluster, why in sorted(snapshot.upper[EXPIRING].items()):
        yield _finding(Code.CERTIFICATE_EXPIRES, "", cluster, why, "renew the certificate of that API server")


def silence(snapshot: Snapshot, name: str, *, ready: bool) -> str:
    """Return why a virtual node's process is regarded as dead; empty: it runs, or this cannot be known yet.

    Args:
        snapshot: the known facts.
        name: name of the virtual node.
        ready: whether the node is Ready; if so, the text may ask whether clocks differ.
    """
    leases = snapshot.upper.get(LEASES)
    if leases is None:
        return ""
    age = lease_age(leases.get(name), snapshot.now)
    if age is None:
        return "" if _is_new(snapshot, name) else "it has no Lease"
    if not age.is_expired():
        return ""
    # Kubernetes measures renewals by its own clock, so a node that is still Ready must have renewed its Lease.
    is_doubtful = ready and age.seconds > age.duration + _GRACE
    return f"its Lease {age}" + ("; it is Ready all the same: do the clocks differ?" if is_doubtful else "")


def _node(snapshot: Snapshot, name: str, node: Json) -> Findings:
    cluster, ready = cluster_of(node), condition(node.get("status"), "Ready")
    is_ready = ready.get("status") == "True"
    diagnose = program.name(f"diagnose node {name}")
    why = ": ".join(part for part in (ready.get("reason"), ready.get("message")) if part)
    why = "" if is_ready else f"is not Ready: {why or 'no reason given'}"
    countdown = _countdown([node])
    if cause := silence(snapshot, name, ready=is_ready):
        text = f"{cause}{'; it ' * (not is_ready)}{why}"
        found = replace(_finding(Code.NODE_SILENT, name, cluster, text, diagnose), silence=countdown)
        process = explained(snapshot)
        yield replace(found, evidence=process[:1], next_steps=process[1:]) if process else found
    elif why and ready.get("reason") != UNREACHABLE:
        yield replace(_finding(Code.NODE_NOT_READY, name, cluster, why, diagnose), silence=countdown)
    elif is_ready and any(taint["key"] == names.TAINT_STALE_CLUSTER for taint in taints(node)):
        yield _finding(
            Code.NODE_CLOSED,
            name,
            cluster,
            f"the descheduler keeps pods away from it ({names.TAINT_STALE_CLUSTER})",
            "it removes the taint 30 s after the lower cluster is healthy again; without a descheduler: "
            f"kubectl taint node {name} {names.TAINT_STALE_CLUSTER}-",
        )
    elif ready.get("reason") == CORDONED:
        cause = f"takes no new pods: {ready.get('message') or CORDONED}"
        yield _finding(Code.NODE_CLOSED, name, cluster, cause, "uncordon nodes of the lower cluster")


def _countdown(nodes: Sequence[Json]) -> Silence | None:
    """Return the silence of these virtual nodes after which running pods move first; None: no program counts down."""
    found = (
        of_node(node)
        for node in nodes
        if condition(node.get("status"), "Ready").get("reason") != NO_READY_NODES  # the cluster answers
    )
    return min(filter(None, found), key=lambda one: one.running_pods_move_at, default=None)


def _is_new(snapshot: Snapshot, name: str) -> bool:
    """Report whether a node was registered so recently that its Lease may not exist yet."""
    node = next((each for each in snapshot.upper.get(NODES) or () if each["metadata"]["name"] == name), None)
    created = node["metadata"].get("creationTimestamp") if node else None
    return (
        bool(created)
        and (snapshot.now - timestamps.parse(str(created))).total_seconds() <= NODE_LEASE_SECONDS
    )


def _finding(code: Code, node: str, cluster: str, cause: str, step: str) -> Finding:
    """Return a finding about a virtual node; empty: about the lower cluster. A second read must confirm errors."""
    return Finding(
        code=code,
        kind="Node" if node else "Cluster",
        names=[node or cluster],
        cause=one_line(cause),
        next_steps=[step],
        cluster=cluster,
        node=node,
        transient=code.severity is Severity.ERROR,
    )
