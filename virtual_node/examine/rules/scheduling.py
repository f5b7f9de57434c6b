"""Rules about scheduling in the upper cluster: taints, the scheduler, its extender, free capacity and the descheduler."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_true
from controller_runtime.apimachinery import readable, timestamps
from controller_runtime.apimachinery.readable import count, some
from virtual_node.config import program
from virtual_node.examine import facts
from virtual_node.examine.codes import Code
from virtual_node.examine.connections import Failure, failure
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.finding import Findings
from virtual_node.examine.leases import active_lease, lease_age
from virtual_node.examine.objects import (
    Json,
    allocatable,
    fits,
    involved,
    is_deleting,
    is_for_virtual_nodes,
    key,
    one_line,
    requested,
    selects,
    untolerated,
)
from virtual_node.examine.snapshot import Snapshot

_UNSEEN_SECONDS = 30.0
_FIND_SCHEDULER = (
    "is kube-scheduler running? kubectl -n kube-system get lease kube-scheduler; "
    "kubectl -n kube-system get pods -l component=kube-scheduler"
)
_UNKNOWN_NODE = re.compile(
    r"virtual node (?P<node>\S{1,253}) \([^)]{0,400}\) belongs to no lower cluster of the multi-scheduler's configuration"
    r"( \(its clusters without a virtual node: (?P<clusters>[^)]{1,400})\))?"
)
"""In the reason of the multi-scheduler (``multi_scheduler.directory``)."""
_EXTENDER = re.compile(
    r"extender at URL (?P<url>\S+?),|(?:Post|Get) \"(?P<post>https?://[^\"]+/(?:filter|prioritize|preempt|bind))\"|extender",
    re.IGNORECASE,
)


@rule(Code.TAINT_REPELS, needs=[facts.NODES, facts.WAITING], level=Level.PATH)
def taints(snapshot: Snapshot) -> Findings:
    """Yield that pods wait for virtual nodes because they do not tolerate the taints of any that they select."""
    repelled: Counter[str] = Counter()
    examples: list[str] = []
    for pod in waiting_for_virtual_nodes(snapshot):
        candidates = [node for node in snapshot.upper[facts.NODES] if selects(pod, node)]
        missing = [untolerated(pod, node) for node in candidates]
        if candidates and all(missing):
            repelled.update({taint for each in missing for taint in each})
            examples.append(key(pod))
    if examples:
        cause = f"{count(len(examples), 'pod lacks', 'pods lack')} a toleration of {some(repelled)} ({some(examples)})"
        step = (
            f"label the pods' template {names.LABEL_VIRTUAL_POD}=true (the webhook tolerates for them), "
            "or add the toleration"
        )
        yield snapshot.upper.sentence(Code.TAINT_REPELS, "Pod", examples[0], cause, step)


@rule(Code.SCHEDULER_SILENT, needs=[facts.WAITING], uses=[facts.SCHEDULERS], level=Level.PATH)
def schedulers(snapshot: Snapshot) -> Findings:
    """Yield that kube-scheduler does not run, or that no scheduler has tried to place waiting pods."""
    unseen: dict[str, list[str]] = {}
    for pod in waiting(snapshot):
        created = pod["metadata"].get("creationTimestamp")
        if condition(pod.get("status"), "PodScheduled") or not created:
            continue
        if (snapshot.now - timestamps.parse(created)).total_seconds() > _UNSEEN_SECONDS:
            name = pod["spec"].get("schedulerName") or names.DEFAULT_SCHEDULER
            unseen.setdefault(name, []).append(key(pod))
    if quiet := _lease_trouble(snapshot.upper.get(facts.SCHEDULERS) or (), snapshot.now):
        cause = f"kube-scheduler's Lease {quiet}"
        yield snapshot.upper.sentence(
            Code.SCHEDULER_SILENT, "Lease", facts.SCHEDULER_LEASE, cause, _FIND_SCHEDULER
        )
        return
    for name, keys in unseen.items():
        step = f"start it, or correct spec.schedulerName: {names.DEFAULT_SCHEDULER} is the stock one"
        yield snapshot.upper.sentence(
            Code.SCHEDULER_SILENT,
            "Pod",
            keys[0],
            f"no scheduler named {name} has looked at {count(len(keys), 'pod')} for {_UNSEEN_SECONDS:.0f} s ({some(keys)})",
            _FIND_SCHEDULER if name == names.DEFAULT_SCHEDULER else step,
        )


@rule(Code.EXTENDER_UNREACHABLE, needs=[facts.WAITING], uses=[facts.EVENTS], level=Level.PATH)
def extender(snapshot: Snapshot) -> Findings:
    """Yield that pods wait because the scheduler cannot call the multi-scheduler."""
    for message in _scheduler_messages(snapshot):
        if (found := _EXTENDER.search(message)) is None:
            continue
        url = found["url"] or found["post"] or "the extender"
        steps = {
            Failure.UNTRUSTED: "give the scheduler's configuration the CA of the extender (extenders[].tlsConfig.caFile)",
            Failure.REFUSED: "is virtual-node-multi-scheduler running at that address?",
            Failure.SILENT: "let kube-scheduler reach it, or raise extenders[].httpTimeout",
            Failure.NO_NAME: "correct extenders[].urlPrefix: kube-scheduler often does not use the cluster's DNS",
        }
        cause = f"kube-scheduler gets no valid response from {url}"
        step = steps.get(failure(message), "look at virtual-node-multi-scheduler's log")
        finding = snapshot.upper.sentence(Code.EXTENDER_UNREACHABLE, "Extender", url, cause, step)
        yield replace(finding, evidence=[one_line(message)])
        return


@rule(Code.NODE_UNKNOWN, needs=[facts.WAITING], uses=[facts.EVENTS], level=Level.PATH)
def unknown_nodes(snapshot: Snapshot) -> Findings:
    """Yield that pods wait because the multi-scheduler's configuration lacks a virtual node."""
    found = [match for text in _scheduler_messages(snapshot) for match in _UNKNOWN_NODE.finditer(text)]
    if found:
        unknown = sorted({match["node"] for match in found})
        clusters = next((match["clusters"] for match in found if match["clusters"]), "")
        absent = f"the upper cluster has no virtual node of cluster {clusters}; " if clusters else ""
        cause = f"{absent}virtual nodes without a cluster: {some(unknown)}, which get no pods"
        step = (
            f"in the multi-scheduler's --config, write `nodes: [{{name: {unknown[0]}}}]` into the entry of its cluster "
            "(in tensile-kube's file: name the cluster so), or start the missing virtual node"
        )
        yield snapshot.upper.sentence(Code.NODE_UNKNOWN, "Node", unknown[0], cause, step)


@rule(Code.NO_ROOM, needs=[facts.NODES, facts.WAITING, facts.BOUND], level=Level.PATH)
def capacity(snapshot: Snapshot) -> Findings:
    """Yield that a waiting pod fits on no virtual node, by total or by free capacity."""
    totals = _totals(snapshot)
    if not totals:
        return
    if not any(total.get("cpu") and total.get("pods") for total in totals.values()):
        cause = f"{some(totals)} have no free capacity: the allocatable of lower nodes is 0, or used up by other pods"
        step = f"{program.name('status')}; kubectl --kubeconfig LOWER get nodes"
        yield snapshot.upper.sentence(Code.NO_ROOM, "Node", min(totals), cause, step)
        return
    asked = {key(pod): requested([pod]) for pod in waiting_for_virtual_nodes(snapshot)}
    for rooms, what in (
        (totals, "no virtual node has as much"),
        (_free(snapshot, totals), "no virtual node has as much left"),
    ):
        unfit = [
            resource
            for resource, want in asked.items()
            if not any(fits(want, room) for room in rooms.values())
        ]
        if unfit:
            worst = max(unfit, key=lambda one: (asked[one]["cpu"], asked[one]["memory"]))
            cause = (
                f"{what}: {count(len(unfit), 'pod')} such as {worst} ({_render(asked[worst])}); "
                f"the largest has {_render(_largest(rooms))}"
            )
            step = "request less, or add lower nodes; " + program.name("status")
            yield snapshot.upper.sentence(Code.NO_ROOM, "Pod", worst, cause, step)
            return


def room(snapshot: Snapshot) -> str:
    """Return the free capacity of the largest Ready virtual node; empty: there is none."""
    totals = _totals(snapshot)
    return _render(_largest(_free(snapshot, totals))) if totals else ""


@rule(Code.DESCHEDULER_SILENT, needs=[facts.DESCHEDULERS], level=Level.PATH)
def descheduler(snapshot: Snapshot) -> Findings:
    """Yield that the descheduler is installed and does not renew its Lease."""
    leases = snapshot.upper[facts.DESCHEDULERS]
    if quiet := _lease_trouble(leases, snapshot.now):
        metadata = (active_lease(leases) or {})["metadata"]
        cause = f"its Lease in namespace {metadata.get('namespace')} {quiet}"
        step = "is virtual-node-descheduler running? Until then, pods stuck in lower clusters are not moved"
        yield snapshot.upper.sentence(
            Code.DESCHEDULER_SILENT,
            "Lease",
            f"{metadata.get('namespace')}/{metadata.get('name')}",
            cause,
            step,
        )


def waiting(snapshot: Snapshot) -> list[Json]:
    """Return pods that a scheduler should bind and has not bound yet."""
    return [
        pod
        for pod in snapshot.upper.get(facts.WAITING) or ()
        if not pod["spec"].get("schedulingGates") and not is_deleting(pod)
    ]


def waiting_for_virtual_nodes(snapshot: Snapshot) -> list[Json]:
    """Return the waiting pods that are for virtual nodes."""
    virtual = [node["metadata"]["name"] for node in snapshot.upper.get(facts.NODES) or ()]
    return [pod for pod in waiting(snapshot) if is_for_virtual_nodes(pod, virtual)]


def _scheduler_messages(snapshot: Snapshot) -> Iterator[str]:
    """Yield messages of schedulers about waiting pods: conditions, then events, the newest first."""
    keys = {key(pod): pod for pod in waiting(snapshot)}
    for pod in keys.values():
        yield str(condition(pod.get("status"), "PodScheduled").get("message") or "")
    for event in reversed(snapshot.upper.get(facts.EVENTS) or ()):
        if event.get("reason") == "FailedScheduling" and involved(event) in keys:
            yield str(event.get("message") or "")


def _lease_trouble(leases: Sequence[Json], now: datetime) -> str:
    """Return why Leases show no active leader; empty: there is a leader, or no Lease."""
    if not leases:
        return ""
    age = lease_age(active_lease(leases), now, duration=15.0)
    if age is None or not age.holder:
        return "has no holder"
    return str(age) if age.is_expired() else ""


def _totals(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Return the allocatable of the Ready virtual nodes, by node name."""
    nodes = snapshot.upper.get(facts.NODES) or ()
    return {
        node["metadata"]["name"]: allocatable(node) for node in nodes if is_true(node.get("status"), "Ready")
    }


def _free(snapshot: Snapshot, totals: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the allocatable without the requests of bound pods."""
    bound: dict[str, list[Json]] = {name: [] for name in totals}
    for pod in snapshot.upper.get(facts.BOUND) or ():
        if (name := pod["spec"].get("nodeName")) in bound:
            bound[name].append(pod)
    used = {name: requested(pods) for name, pods in bound.items()}
    return {
        name: {resource: amount - used[name].get(resource, 0) for resource, amount in total.items()}
        for name, total in totals.items()
    }


def _largest(rooms: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    return max(rooms.values(), key=lambda amounts: (amounts.get("cpu", 0), amounts.get("memory", 0)))


def _render(amounts: Mapping[str, int]) -> str:
    shown: Counter[str] = Counter({name: max(0, amount) for name, amount in amounts.items()})
    order = ["cpu", "memory", *sorted(set(shown) - {"cpu", "memory", "pods", "ephemeral-storage"})]
    parts = [f"{name} {readable.resource(name, shown[name])}" for name in order if name in shown]
    return ", ".join(parts) or "no requests"
