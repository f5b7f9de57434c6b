"""Collects a group's pending members, its bound members, and the virtual nodes that they may use.

``NativeGroups`` follows kube-scheduler's cycles for PodGroups of Kubernetes (``spec.schedulingGroup``, from 1.36 on).

The scheduler decides about such a group, not this agent. In one cycle it filters pod after pod, binds none of them before the
group's ``minCount`` is reached, and otherwise rejects all. So each pod that passes the filter keeps its room until the cycle
ends. Extenders are not told of that end. But a scheduler has one cycle at a time: its next call for a pod outside of the group,
or again for a pod of the group, comes after the cycle. If too few pods had passed by then, the group was rejected.

If a group is rejected, the scheduler may repeat the calls as if all pods of lower priority were gone, to find out whether
evicting them helps. Extenders are not told of that either, and ``preempt`` is not called for groups. Such a call is recognized
because the scheduler itself would have rejected the virtual node for lack of room.

Source: ``pkg/scheduler/schedule_one_podgroup.go`` and ``framework/preemption/podgrouppreemption.go``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterset.model import names
from clusterset.model.pod.groups import MOST_MEMBERS, NATIVE_FIELDS, Group, group_of
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.informer import BoundedInformer, Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from multi_scheduler.agents.fit.planning import Homes, domain_selector
from multi_scheduler.agents.fit.standing import (
    FAILURE,
    NOMINATED,
    Attempts,
    HeldGroups,
    Member,
    Standing,
    failure,
    standing,
)
from multi_scheduler.bound_pods import BoundPods, group_key, native_key, pods_budget, with_read_metadata
from multi_scheduler.state.cluster import limits
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.reservations import Reservations, Stage
from multi_scheduler.virtual_node import VirtualNode

_LOOK = 60.0
"""Seconds between checks whether the API is installed and readable."""
_PENDING = "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"


async def follow_installed(client: Client, informer: Informer, resource: Resource) -> None:
    """Wait until an optional API can be read, then run its informer until cancelled."""
    while True:
        try:
            await client.exists(resource)
        except (ApiError, ConfigError):
            await asyncio.sleep(_LOOK)
        else:
            break
    await informer.run()


class PodGroups:
    """The PodGroup objects of the upper cluster that scheduler-plugins defines."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.informer = Informer(
            client, resources.POD_GROUPS, transform=_shrink, name="pod-groups", is_minor=True
        )

    async def run(self) -> None:
        """Wait until the API can be read, then follow it until cancelled."""
        await follow_installed(self._client, self.informer, resources.POD_GROUPS)

    def resolve(self, group: Group | None) -> Group | None:
        """Return a group with the minimum of its PodGroup object, unless the pod declares another minimum.

        Returns:
            None: no group, or a minimum that is unknown until PodGroups have been read.
        """
        if group is None or group.source != "PodGroup" or group.minimum or group.problem:
            return group
        if not self.informer.has_synced:
            return None
        found = self.informer.store.get(f"{group.namespace}/{group.name}")
        if found is None:
            return replace(group, problem="its PodGroup does not exist")
        minimum = (found.spec or {}).get("minMember")
        if not isinstance(minimum, int) or not 1 <= minimum <= MOST_MEMBERS:
            return replace(
                group, problem=f"minMember of its PodGroup is not a number from 1 to {MOST_MEMBERS}"
            )
        return replace(group, minimum=minimum)


def _shrink(found: Object) -> Object:
    minimum = (found.spec or {}).get("minMember")
    return found.without("status").with_fields(spec={"minMember": minimum}).with_only()


def _declared(pod: Object | None) -> Group | None:
    return group_of(pod.namespace, pod.labels, pod.annotations, pod.spec) if pod is not None else None


_MOST_SCHEDULERS = 100


@dataclass(eq=False)
class Members:
    """The members of all groups."""

    upper: Client
    state: ClusterState
    pending: PendingPods
    held: HeldGroups
    attempts: Attempts
    candidates: dict[str, frozenset[str]] = field(default_factory=dict)
    """By UID of a pending member: the virtual nodes that the scheduler offered last."""
    _nodes: dict[str, VirtualNode] = field(default_factory=dict)
    """All virtual nodes that were candidates so far."""
    _schedulers: set[str] = field(default_factory=set)
    """Names of the schedulers that ask this extender. Pods of other schedulers would not use their room."""

    def __post_init__(self) -> None:
        self.pending.changed, self.pending.removed = self.attempts.changed, self._removed
        self.pod_groups = PodGroups(self.upper)

    def asked_by(self, scheduler: str) -> None:
        """Record the name of a scheduler that calls this extender."""
        if len(self._schedulers) < _MOST_SCHEDULERS:
            self._schedulers.add(scheduler)

    def offer(self, uid: str, nodes: Sequence[VirtualNode]) -> None:
        """Record the virtual nodes that the scheduler offers to a member."""
        self._nodes |= {node.name: node for node in nodes}
        self.candidates[uid] = frozenset(node.name for node in nodes)

    async def run(self) -> None:
        """Follow the pods without a node, and PodGroups, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pending.informer.run())
            tasks.create_task(self.pod_groups.run())

    def bound(self, uid: str) -> None:
        """Record that a pod is bound."""
        self.held.bound(uid)
        self.candidates.pop(uid, None)

    def standing(self, key: str) -> Standing | None:
        """Return what a group needs to start, as its oldest pending member declares the group; None: no member is usable."""
        members = [member for member in self.pending.members(key) if member.scheduler in self._schedulers]
        if not members:
            return None
        pod = min(members, key=lambda member: (member.created, member.name)).pod
        declared = _declared(pod)
        group = self.pod_groups.resolve(declared)
        if group is None or group.problem:
            return None
        bound = {one.uid for one in self.state.bound_pods.of_group(key)}
        pending = [member for member in members if member.uid not in bound]
        return standing(group, pending, len(bound), now=time.time())

    def offered(self, ready: Standing) -> list[VirtualNode]:
        """Return the virtual nodes that the scheduler offered to any of the members."""
        names = {name for member in ready.members for name in self.candidates.get(member.uid, ())}
        nodes = [self._nodes[name] for name in sorted(names)]
        return [node for node in nodes if node.cluster in self.state.clusters]

    def homes(self, group: Group) -> Homes:
        """Return where the bound members of a group run; empty unless the group must run in one place."""
        if not group.is_one_cluster:
            return Homes()
        clusters, domains = set(), set()
        for pod in self.state.bound_pods.of_group(group.key):
            node = self._nodes.get(pod.node_name)
            if node is None or node.cluster not in self.state.clusters:
                continue
            clusters.add(node.cluster)
            if group.topology:
                domains.add(self._domain(pod.uid, node, group.topology))
        return Homes(frozenset(clusters), frozenset(domains - {""}))

    def annotations(self, uid: str) -> Mapping[str, str]:
        """Return the annotation that selects the lower nodes of the domain of a pod's group; empty: there is no domain."""
        pod = self.pending.pod(uid)
        group = _declared(pod)
        if pod is None or group is None or not group.topology:
            return {}
        node = self.held.node(uid)
        domains = self.homes(group).domains if node is None else {node.pool.get(group.topology, "")}
        return domain_selector(pod, group.topology, min(domains)) if len(domains) == 1 else {}

    def _domain(self, uid: str, node: VirtualNode, topology: str) -> str:
        """Return the domain of the lower node on which a bound pod is, or has reserved room; empty: unknown."""
        index = self.state.clusters[node.cluster].index
        placed = next(filter(None, map(index.placed, self.state.accounting.index_keys(uid, node))), None)
        lower = index.node(placed.node) if placed is not None else None
        return lower.labels.get(topology, "") if lower is not None else ""

    def _removed(self, pod: Object) -> None:
        self.candidates.pop(pod.uid, None)
        self.attempts.removed(pod)


@dataclass(eq=False)
class PendingPods:
    """The upper pods without a node."""

    client: Client
    changed: Callable[[Object], None] = lambda _pod: None
    """Called with every new or changed pod."""
    removed: Callable[[Object], None] = lambda _pod: None
    """Called with every pod that is deleted, or has a node now."""
    _members: dict[str, dict[str, Member]] = field(default_factory=dict)
    """By key of the group and UID."""
    _key_of: dict[str, str] = field(default_factory=dict)
    """Key of the group by UID of a member."""

    def __post_init__(self) -> None:
        """Create the informer; the caller runs it."""
        self.informer = BoundedInformer(
            self.client,
            resources.PODS,
            budget=pods_budget(),
            field_selector=_PENDING,
            transform=_shrink_pod,
            name="pending-pods",
        )
        self._added = asyncio.Event()
        self.informer.on_change(self._put, self._removed)

    async def wait_for(self, key: str, uid: str, seconds: float) -> None:
        """Wait until the cache contains a pod (``key``: namespace/name), and therefore all pods that were created before it."""
        try:
            async with asyncio.timeout(seconds):
                while not self.has(key, uid):
                    self._added.clear()
                    await self._added.wait()
        except TimeoutError:
            return

    def has(self, key: str, uid: str) -> bool:
        """Report whether the cache contains a pod, given its namespace/name and its UID."""
        pod = self.informer.store.get(key)
        return pod is not None and pod.uid == uid

    def groups(self) -> Collection[str]:
        """Return the keys of all groups with pending members."""
        return self._members.keys()

    def members(self, key: str) -> Collection[Member]:
        """Return the members of a group that have no node and are not being deleted."""
        return self._members.get(key, {}).values()

    def pod(self, uid: str) -> Object | None:
        """Return the pending member with this UID; None: there is none."""
        key = self._key_of.get(uid)
        return self._members[key][uid].pod if key is not None else None

    def _put(self, pod: Object) -> None:
        self._added.set()
        self._forget(pod.uid)
        if pod.metadata.deletion_timestamp is None:
            for key in group_key(pod):
                self._members.setdefault(key, {})[pod.uid] = _member(pod)
                self._key_of[pod.uid] = key
        self.changed(pod)

    def _removed(self, pod: Object) -> None:
        self._forget(pod.uid)
        self.removed(pod)

    def _forget(self, uid: str) -> None:
        key = self._key_of.pop(uid, None)
        if key is not None:
            del self._members[key][uid]
            if not self._members[key]:
                del self._members[key]


def _shrink_pod(pod: Object) -> Object:
    """Reduce the status to the outcome of the last attempt; drop the spec of pods that need no room before their filter."""
    status = {key: value for key, value in (
        (NOMINATED, (pod.status or {}).get(NOMINATED)), (FAILURE, failure(pod.status))
    ) if value}  # fmt: skip
    needs_spec = NOMINATED in status or group_key(pod)
    if not needs_spec:
        native = {field: value for field in NATIVE_FIELDS if (value := (pod.spec or {}).get(field))}
        return with_read_metadata(pod.with_fields(spec=native, status=status))
    return with_read_metadata(pod.with_fields(status=status), all_labels=True)


def scheduler_of(spec: Mapping[str, Any]) -> str:
    """Return the name of the scheduler that a pod asks for."""
    return str(spec.get("schedulerName") or names.DEFAULT_SCHEDULER)


def _member(pod: Object) -> Member:
    spec = pod.spec or {}
    try:
        created = timestamps.parse(pod.metadata.creation_timestamp or "").timestamp()
    except ValueError:
        created = 0.0
    return Member(
        pod.uid,
        pod.name,
        created,
        spec.get("priority") or 0,
        bool(spec.get("schedulingGates")),
        scheduler_of(spec),
        pod,
    )


_POLICY = "schedulingPolicy"


class Minimums:
    """The ``minCount`` of the PodGroups in the upper cluster."""

    def __init__(self, client: Client) -> None:
        """Create the informer; ``run`` starts it."""
        self._client = client
        self.informer = Informer(
            client,
            resources.NATIVE_POD_GROUPS,
            transform=_shrink_native,
            name="native-pod-groups",
            is_minor=True,
        )

    async def run(self) -> None:
        """Wait until the API can be read, then follow it until cancelled."""
        await follow_installed(self._client, self.informer, resources.NATIVE_POD_GROUPS)

    def __getitem__(self, key: str) -> int:
        """Return how many pods of a group must get a node at once, 1 with the basic policy; 0: unknown."""
        group = self.informer.store.get(key)
        if group is None:
            return 0
        gang = ((group.spec or {}).get(_POLICY) or {}).get("gang")
        count = gang.get("minCount") if isinstance(gang, Mapping) else 1
        return count if isinstance(count, int) else 0


def _shrink_native(group: Object) -> Object:
    policy = (group.spec or {}).get(_POLICY)
    return group.without("status").with_fields(spec={_POLICY: policy}).with_only()


@dataclass(slots=True)
class _Cycle:
    """A scheduler's present cycle for a group."""

    key: str
    """Namespace/name of the group."""
    last: str = ""
    """UID of the pod that was asked about last. The scheduler may repeat it: first for its nominated node, then for all."""
    asked: set[str] = field(default_factory=set)
    passed: dict[str, str] = field(default_factory=dict)
    """By UID of a pod that passed the filter: its nominated node; empty: it has none."""


@dataclass(eq=False)
class NativeGroups:
    """The groups that are being scheduled, and the room of their pods until the scheduler has decided."""

    reservations: Reservations
    bound_pods: BoundPods
    minimum: Callable[[str], int]
    """Returns how many pods of a group must get a node at once; 0: unknown."""
    _cycles: dict[str, _Cycle] = field(default_factory=dict)
    """By name of the scheduler."""

    def called(self, pod: Mapping[str, Any]) -> None:
        """Note a filter call, which may show that the last cycle of this scheduler has ended."""
        scheduler, uid = scheduler_of(pod["spec"]), pod["metadata"].get("uid", "")
        key = native_key(pod["metadata"].get("namespace", ""), pod["spec"])
        cycle = self._cycles.get(scheduler)
        if cycle is not None and (cycle.key != key or (uid in cycle.asked and uid != cycle.last)):
            del self._cycles[scheduler]
            self._ended(cycle)
            cycle = None
        if not key:
            return
        if cycle is None:
            cycle = self._cycles[scheduler] = _Cycle(key)
        cycle.asked.add(uid)
        cycle.last = uid
        cycle.passed.pop(uid, None)

    def passed(self, pod: Mapping[str, Any]) -> None:
        """Note that a pod passed the filters of all agents."""
        cycle, uid = self._cycles.get(scheduler_of(pod["spec"])), pod["metadata"].get("uid", "")
        if cycle is not None and uid in cycle.asked:
            cycle.passed[uid] = str((pod.get("status") or {}).get(NOMINATED) or "")

    def companions(self, pod: Mapping[str, Any]) -> Collection[str]:
        """Return the UIDs of the pods that passed in the same cycle as a pod, and keep their room until it ends."""
        cycle, uid = self._cycles.get(scheduler_of(pod["spec"])), pod["metadata"].get("uid", "")
        return cycle.passed.keys() if cycle is not None and uid in cycle.asked else ()

    def _ended(self, cycle: _Cycle) -> None:
        """Release the room of a rejected group; a pod that has a nominated node keeps its room there."""
        bound = {pod.uid for pod in self.bound_pods.of_native_group(cycle.key)}
        if len(bound | cycle.passed.keys()) >= self.minimum(cycle.key):
            return
        for uid, node in cycle.passed.items():
            if self.reservations.stage(uid) is not Stage.TENTATIVE:
                continue
            if not (node and self.reservations.nominate(uid, node, has_failed=True)):
                self.reservations.release(uid)


def is_full(
    allocatable: Mapping[str, Any], used: Collection[Mapping[str, int]], wanted: Mapping[str, int]
) -> bool:
    """Report whether the scheduler would find too little room on a virtual node.

    Args:
        allocatable: the node's allocatable resources, as quantities.
        used: requests of the pods that are bound to the node, or that the scheduler has assumed there.
        wanted: requests of one more pod.
    """
    total: Counter[str] = Counter()
    for requests in used:
        total.update(requests)
    room = limits.amounts(allocatable)
    return any(count and total[name] + count > room[name] for name, count in wanted.items() if name in room)
