"""Follows bound upper pods: confirms reservations, finds pods without a reservation, and lists candidates for preemption."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from controller_runtime.objects import Object
from multi_scheduler.agent import AgentContext
from multi_scheduler.bound_pods import BY_GROUP, BY_NODE, PENDING, bound_pods


@dataclass(eq=False)
class BoundPods:
    """Tracks the bound upper pods, and finds those with neither a reservation nor a lower pod on a node."""

    context: AgentContext
    bound: Callable[[Object], bool]
    """Called with every newly bound pod; returns whether a reservation or lower pod counts its room."""
    gone: Callable[[str], None]
    """Called with the UID of a pod that is deleted or finished."""
    _unaccounted: dict[str, Object] = field(default_factory=dict)
    """By UID: bound pods in phase Pending with neither a reservation nor a lower pod on a node."""

    def __post_init__(self) -> None:
        self._pods = self.context.bound_pods or bound_pods(self.context.upper)
        self._pods.add_handler(
            on_add=lambda pod, _initial: self.added(pod),
            on_update=lambda _old, new: self.changed(new),
            on_delete=lambda pod: self.ended(pod.uid),
        )

    async def run(self) -> None:
        """Run the informer until cancelled; return immediately if the multi-scheduler runs a shared one."""
        if self.context.bound_pods is None:
            await self._pods.run()

    @property
    def has_synced(self) -> bool:
        """Report whether the informer has synced."""
        return self._pods.has_synced

    def on(self, node: str) -> list[Object]:
        """Return the pods that are bound to a node."""
        return self._pods.store.by_index(BY_NODE, node)

    def of_group(self, key: str) -> list[Object]:
        """Return the members of a pod group that are bound, not finished and not being deleted."""
        found = self._pods.store.by_index(BY_GROUP, key)
        return [pod for pod in found if pod.metadata.deletion_timestamp is None]

    def unaccounted(self, nodes: Collection[str]) -> list[Object]:
        """Return pods in phase Pending on these nodes with neither a reservation nor a lower pod on a lower node."""
        return [pod for pod in self._unaccounted.values() if (pod.spec or {}).get("nodeName") in nodes]

    def accounted(self, uid: str) -> None:
        """Note that a reservation or the lower pod counts the pod's room."""
        self._unaccounted.pop(uid, None)

    def added(self, pod: Object) -> None:
        """Handle a newly bound pod."""
        if not self.bound(pod) and _is_pending(pod):
            self._unaccounted[pod.uid] = pod

    def changed(self, pod: Object) -> None:
        """Handle a change of a bound pod."""
        if not _is_pending(pod):
            self.accounted(pod.uid)

    def ended(self, uid: str) -> None:
        """Handle a bound pod that was deleted or finished."""
        self.accounted(uid)
        self.gone(uid)


def _is_pending(pod: Object) -> bool:
    return (pod.status or {}).get("phase") == PENDING
