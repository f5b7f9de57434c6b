"""Follows kube-scheduler's cycles for PodGroups of Kubernetes (``spec.schedulingGroup``, from 1.36 on).

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

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from multi_scheduler.agents.fit.attempts import NOMINATED
from multi_scheduler.agents.fit.members import follow_installed, scheduler_of
from multi_scheduler.bound_pods import BoundPods, native_key
from multi_scheduler.state.cluster import limits
from multi_scheduler.state.reservations import Reservations, Stage

_POLICY = "schedulingPolicy"


class Minimums:
    """The ``minCount`` of the PodGroups in the upper cluster."""

    def __init__(self, client: Client) -> None:
        """Create the informer; ``run`` starts it."""
        self._client = client
        self.informer = Informer(
            client, resources.NATIVE_POD_GROUPS, transform=_shrink, name="native-pod-groups", is_minor=True
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


def _shrink(group: Object) -> Object:
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
