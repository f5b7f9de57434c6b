"""Judges an installation from facts. All tools use this module, so equal facts give equal faults in each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from virtual_node.config import program
from virtual_node.health import reports
from virtual_node.health.facts import ClusterState, HealthFacts, PodSign
from virtual_node.health.faults import Fault, Health, Kind, Severity
from virtual_node.health.nodes import cluster_faults, cluster_of, node_faults, silence
from virtual_node.health.objects import Json, key, one_line
from virtual_node.health.pods import sign, waiting_sign
from virtual_node.health.replicas import replica_trouble
from virtual_node.health.swarms import swarm_faults

_SEEN = ("nodes", "leases", "signs", "waiting", "replicas", "swarms")
_OBJECTS = 3
"""Maximum number of pod names in one fault."""
_ORDER = {kind: number for number, kind in enumerate(Kind)}
_MORE = {Kind.POD_UNSCHEDULABLE: "; the descheduler moves such pods, the multi-scheduler avoids them"}


def examine(facts: HealthFacts) -> Health:
    """Return all faults and all unknown facts."""
    facts = _with_reports(facts)
    found = [
        *_replicas(facts),
        *rejected_faults(facts.rejected),
        *_no_cluster(facts),
        *cluster_faults(facts),
        *node_faults(facts),
        *_expiring(facts.expiring),
        *_pods(facts),
        *swarm_faults(facts.swarms or (), facts.now),
    ]
    found.sort(key=lambda fault: (fault.severity is not Severity.ERROR, _ORDER[fault.kind]))
    unseen = {name: "not read" for name in _SEEN if getattr(facts, name) is None}
    return Health(found, {**unseen, **facts.unknown})


def facts_of(
    *,
    now: datetime,
    nodes: Sequence[Json] | None,
    leases: Mapping[str, Json] | None,
    bound: Iterable[Json] | None,
    waiting: Iterable[Json] | None,
    **more: Any,
) -> HealthFacts:
    """Return facts with the signs of pods.

    Args:
        now: current time by the API server's clock.
        nodes: the virtual nodes; None, here and below: they could not be read.
        leases: Leases of the virtual nodes, by name.
        bound: pods on virtual nodes.
        waiting: pods without a node; those that are not for virtual nodes do not count.
        more: other fields of ``HealthFacts``.
    """
    names = [node["metadata"]["name"] for node in nodes or ()]
    return HealthFacts(
        now=now,
        nodes=nodes,
        leases=leases,
        signs=None if bound is None else [found for pod in bound if (found := sign(pod))],
        waiting=None
        if waiting is None
        else [found for pod in waiting if (found := waiting_sign(pod, names))],
        **more,
    )


def _with_reports(facts: HealthFacts) -> HealthFacts:
    """Return the facts with what processes report on their virtual nodes' Leases, except on expired Leases."""
    virtual = {node["metadata"]["name"] for node in facts.nodes or ()}
    report = reports.read(
        lease
        for name, lease in (facts.leases or {}).items()
        if name in virtual and not silence(facts, name, ready=True)
    )
    known = {cluster.name: cluster for cluster in facts.clusters}
    for name, why in report.failed.items():
        known[name] = ClusterState(name=name, failed=True, error=why)
    return replace(
        facts,
        clusters=list(known.values()),
        rejected={**report.rejected, **facts.rejected},
        expiring={**report.expiring, **facts.expiring},
    )


def _replicas(facts: HealthFacts) -> Iterator[Fault]:
    for pod in facts.replicas or ():
        if found := replica_trouble(pod, facts.words.get(key(pod), ""), facts.now):
            cause, step = found
            yield Fault(Kind.REPLICA_FAILING, (f"Pod {key(pod)}",), cause, step)


def rejected_faults(rejected: Mapping[str, str]) -> Iterator[Fault]:
    """Yield a fault for each rejected configuration.

    Args:
        rejected: reason by lower cluster; the empty name is the whole file.
    """
    for cluster, why in sorted(rejected.items()):
        subject = f"Cluster {cluster}" if cluster else "Configuration"
        step = "correct it; it is read again by itself"
        yield Fault(Kind.CONFIGURATION_REJECTED, (subject,), f"is not applied: {why}", step, cluster)


def _expiring(causes: Mapping[str, str]) -> Iterator[Fault]:
    for cluster, why in sorted(causes.items()):
        step = "renew the certificate of that API server"
        yield Fault(Kind.CERTIFICATE_EXPIRES, (f"Cluster {cluster}",), why, step, cluster)


def _no_cluster(facts: HealthFacts) -> Iterator[Fault]:
    if facts.nodes is None or facts.nodes or facts.clusters:
        return
    yield Fault(
        Kind.NO_LOWER_CLUSTER,
        ("Installation",),
        "there is no virtual node: no lower cluster is configured, or its process does not run",
        f"{program.name('lower-cluster')} join NAME --client-kubeconfig FILE",
    )


def _pods(facts: HealthFacts) -> Iterator[Fault]:
    """Yield the faults of pods; pods with the same kind, node and reason become one fault."""
    clusters = {node["metadata"]["name"]: cluster_of(node) for node in facts.nodes or ()}
    groups: dict[tuple[Kind, str, str], list[PodSign]] = {}
    for one in (*(facts.waiting or ()), *(facts.signs or ())):
        if (facts.now - one.since).total_seconds() > one.patience:
            groups.setdefault((one.kind, one.node, one.reason), []).append(one)
    for (_, node, _), signs in groups.items():
        yield _pod_fault(signs, clusters.get(node, ""), facts.words)


def _pod_fault(signs: list[PodSign], cluster: str, words: Mapping[str, str]) -> Fault:
    signs.sort(key=lambda one: one.pod)
    first = signs[0]
    cause, message = first.cause, words.get(first.pod)
    if message and first.kind is Kind.POD_NOT_STARTED:
        cause = one_line(f"{cause}: {message}")
    objects = [f"Pod {one.pod}" for one in signs[:_OBJECTS]]
    step = program.name(f"diagnose pod {first.pod}") + _MORE.get(first.kind, "")
    return Fault(first.kind, objects, cause, step, cluster, first.node, len(signs))
