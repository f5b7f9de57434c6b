"""Checks scheduling in the upper cluster: the scheduler, its extender, the descheduler and free capacity."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime

from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import readable, timestamps
from controller_runtime.apimachinery.readable import count, some
from virtual_node.commands.doctor.facts import (
    SCHEDULER_LEASE,
    DoctorFacts,
    ready_nodes,
    waiting,
)
from virtual_node.commands.doctor.links import WARNING, Outcome, Rule, broken, ok, skipped
from virtual_node.commands.doctor.nodes import targets_virtual_nodes
from virtual_node.config import program
from virtual_node.examine.codes import SWARMS, Code
from virtual_node.examine.connections import Failure, failure
from virtual_node.examine.leases import lease_age
from virtual_node.examine.objects import Json, allocatable, fits, key, requested
from virtual_node.examine.reader import DESCHEDULER_LEASE
from virtual_node.translate.pods.api_server import NOT_USABLE

_UNSEEN_SECONDS = 30.0
_DEFAULT_SCHEDULER = "default-scheduler"
_UNKNOWN_NODE = re.compile(
    r"virtual node (?P<node>\S{1,253}) \([^)]{0,400}\) belongs to no lower cluster of the multi-scheduler's configuration"
    r"( \(its clusters without a virtual node: (?P<clusters>[^)]{1,400})\))?"
)
"""In the reason of the multi-scheduler (``multi_scheduler.directory``)."""
_EXTENDER = re.compile(
    r"extender at URL (?P<url>\S+?),|(?:Post|Get) \"(?P<post>https?://[^\"]+/(?:filter|prioritize|preempt|bind))\"|extender",
    re.IGNORECASE,
)


def scheduler(facts: DoctorFacts) -> Outcome:
    """Check that kube-scheduler runs and that each waiting pod's scheduler has tried to place the pod."""
    unseen: dict[str, list[str]] = {}
    for pod in waiting(facts):
        created = pod["metadata"].get("creationTimestamp")
        if condition(pod.get("status"), "PodScheduled") or not created:
            continue
        if (facts.now - timestamps.parse(created)).total_seconds() > _UNSEEN_SECONDS:
            name = pod["spec"].get("schedulerName") or _DEFAULT_SCHEDULER
            unseen.setdefault(name, []).append(key(pod))
    if quiet := lease_trouble(facts.scheduler, facts.now):
        return broken(f"kube-scheduler's Lease {quiet}", _FIND_SCHEDULER)
    for name, keys in unseen.items():
        step = f"start it, or correct spec.schedulerName: {_DEFAULT_SCHEDULER} is the stock one"
        return broken(
            f"no scheduler named {name} has looked at {count(len(keys), 'pod')} for {_UNSEEN_SECONDS:.0f} s ({some(keys)})",
            _FIND_SCHEDULER if name == _DEFAULT_SCHEDULER else step,
        )
    if facts.scheduler is None:
        return ok(f"it has no Lease {SCHEDULER_LEASE} here, but no pod waits to be looked at")
    holder = str((facts.scheduler.get("spec") or {}).get("holderIdentity") or "")
    return ok(f"Lease fresh, held by {holder.partition('_')[0]}")


_FIND_SCHEDULER = (
    "is kube-scheduler running? kubectl -n kube-system get lease kube-scheduler; "
    "kubectl -n kube-system get pods -l component=kube-scheduler"
)


def extender(facts: DoctorFacts) -> Outcome:
    """Check whether pods wait because the scheduler cannot call the multi-scheduler."""
    keys = {key(pod): pod for pod in waiting(facts)}
    for message in _scheduler_messages(facts, keys):
        found = _EXTENDER.search(message)
        if found is None:
            continue
        url = found["url"] or found["post"] or "the extender"
        kind = failure(message)
        steps = {
            Failure.UNTRUSTED: "give the scheduler's configuration the CA of the extender (extenders[].tlsConfig.caFile)",
            Failure.REFUSED: "is virtual-node-multi-scheduler running at that address?",
            Failure.SILENT: "let kube-scheduler reach it, or raise extenders[].httpTimeout",
            Failure.NO_NAME: "correct extenders[].urlPrefix: kube-scheduler often does not use the cluster's DNS",
        }
        return broken(
            f"kube-scheduler gets no valid response from {url}: {' '.join(message.split())[-200:]}",
            steps.get(kind, "look at virtual-node-multi-scheduler's log"),
        )
    if not keys:
        return ok("no pod waits to be scheduled")
    return ok(f"{count(len(keys), 'pod waits', 'pods wait')}, none for an extender")


def known_nodes(facts: DoctorFacts) -> Outcome:
    """Check whether pods wait because the multi-scheduler's configuration lacks a virtual node."""
    keys = {key(pod): pod for pod in waiting(facts)}
    found = [match for text in _scheduler_messages(facts, keys) for match in _UNKNOWN_NODE.finditer(text)]
    if not found:
        return ok("no pod waits because of an unknown virtual node")
    unknown = sorted({match["node"] for match in found})
    clusters = next((match["clusters"] for match in found if match["clusters"]), "")
    absent = f"the upper cluster has no virtual node of cluster {clusters}; " if clusters else ""
    return broken(
        f"{absent}virtual nodes without a cluster: {some(unknown)}, which get no pods",
        f"in the multi-scheduler's --config, write `nodes: [{{name: {unknown[0]}}}]` into the entry of its cluster "
        "(in tensile-kube's file: name the cluster so), or start the missing virtual node",
    )


def _scheduler_messages(facts: DoctorFacts, pods_by_key: Mapping[str, Json]) -> Iterator[str]:
    """Yield messages of schedulers about waiting pods: conditions, then events, the newest first."""
    for pod in pods_by_key.values():
        yield str(condition(pod.get("status"), "PodScheduled").get("message") or "")
    for event in reversed(facts.events):
        involved = event.get("involvedObject") or {}
        name = f"{involved.get('namespace')}/{involved.get('name')}"
        if event.get("reason") == "FailedScheduling" and name in pods_by_key:
            yield str(event.get("message") or "")


def capacity(facts: DoctorFacts) -> Outcome:
    """Check that each waiting pod fits on a virtual node, by total and by free capacity."""
    nodes = {node["metadata"]["name"]: allocatable(node) for node in ready_nodes(facts)}
    if not nodes:
        return skipped("no virtual node is Ready")
    if not any(total.get("cpu") and total.get("pods") for total in nodes.values()):
        return broken(
            f"{some(nodes)} have no free capacity: the allocatable of lower nodes is 0, or used up by other pods",
            f"{program.name('status')}; kubectl --kubeconfig LOWER get nodes",
        )
    asked = {key(pod): requested([pod]) for pod in waiting(facts) if targets_virtual_nodes(facts, pod)}
    used = {name: requested(facts.bound.get(name, ())) for name in nodes}
    free = {
        name: {resource: count - used[name].get(resource, 0) for resource, count in total.items()}
        for name, total in nodes.items()
    }
    for rooms, what in ((nodes, "no virtual node has as much"), (free, "no virtual node has as much left")):
        unfit = [one for one, want in asked.items() if not any(fits(want, room) for room in rooms.values())]
        if unfit:
            worst = max(unfit, key=lambda one: (asked[one]["cpu"], asked[one]["memory"]))
            return broken(
                f"{what}: {count(len(unfit), 'pod')} such as {worst} ({_render(asked[worst])}); "
                f"the largest has {_render(_largest(rooms))}",
                "request less, or add lower nodes; " + program.name("status"),
            )
    waits = f"{count(len(asked), 'pod waits and fits', 'pods wait and fit')} by requests"
    return ok(
        f"{waits if asked else 'no pod waits for room'}; the largest virtual node has {_render(_largest(free))} left"
    )


def descheduler(facts: DoctorFacts) -> Outcome:
    """Check that the descheduler renews its Lease, if it is installed."""
    if facts.descheduler is None:
        return skipped(f"not installed (no Lease {DESCHEDULER_LEASE})")
    namespace = facts.descheduler["metadata"].get("namespace")
    if quiet := lease_trouble(facts.descheduler, facts.now):
        return broken(
            f"its Lease in namespace {namespace} {quiet}",
            "is virtual-node-descheduler running? Until then, pods stuck in lower clusters are not moved",
        )
    return ok(f"Lease fresh in namespace {namespace}")


def lease_trouble(lease: Json | None, now: datetime) -> str:
    """Return why a Lease shows no active leader; empty: there is a leader, or no Lease."""
    if lease is None:
        return ""
    age = lease_age(lease, now, duration=15.0)
    if age is None or not age.holder:
        return "has no holder"
    return str(age) if age.is_expired() else ""


def _largest(rooms: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    return max(rooms.values(), key=lambda room: (room.get("cpu", 0), room.get("memory", 0)))


def _render(amounts: Mapping[str, int]) -> str:
    shown: Counter[str] = Counter({name: max(0, count) for name, count in amounts.items()})
    order = ["cpu", "memory", *sorted(set(shown) - {"cpu", "memory", "pods", "ephemeral-storage"})]
    parts = [f"{name} {readable.resource(name, shown[name])}" for name in order if name in shown]
    return ", ".join(parts) or "no requests"


def _swarms(facts: DoctorFacts) -> Outcome:
    return ok(count(len(facts.swarms), "Swarm")) if facts.swarms else skipped("there are none")


RULES = (
    Rule("scheduler", "scheduler running", scheduler, needs=("upperApi",), reads=("pending",)),
    Rule("extender", "scheduler reaches its extender", extender, needs=("scheduler",)),
    Rule("knownNodes", "extender knows the virtual nodes", known_nodes, needs=("extender",)),
    Rule("capacity", "room on virtual nodes", capacity, needs=("virtualNodes",), reads=("pending", "bound")),
    Rule(
        "scheduled",
        "pods get a virtual node",
        lambda _facts: ok("no pod for virtual nodes waits for one"),
        needs=("virtualNodes",),
        reads=("pending",),
        faults={Code.POD_UNSCHEDULED},
    ),
)


def _api_of_pods(facts: DoctorFacts) -> Outcome:
    """Check that virtual nodes did not report that pods cannot use the Kubernetes API; pods may not need it."""
    messages = [
        str(event.get("message") or "") for event in facts.events if event.get("reason") == NOT_USABLE
    ]
    if not messages:
        return ok("no virtual node reports that pods cannot use the upper API server")
    what, _, step = messages[-1].rpartition(": ")
    return ok(f"{WARNING}{what}", step)


LAST_RULES = (
    Rule(
        "apiOfPods",
        "Kubernetes API of lower pods",
        _api_of_pods,
        needs=("upperApi",),
        reads=("events",),
    ),
    Rule("descheduler", "descheduler running", descheduler, needs=("upperApi",), reads=("descheduler",)),
    Rule("swarms", "Swarms run their jobs", _swarms, needs=("upperApi",), reads=("swarms",), faults=SWARMS),
)
