"""Follows bound upper pods: confirms reservations, finds pods without one, and lists candidates for preemption."""

from __future__ import annotations

from collections.abc import Callable, Collection

from controller_runtime.objects import Object
from multi_scheduler.agent import AgentContext
from multi_scheduler.bound_pods import BY_NODE, PENDING, bound_pods


class BoundPods:
    """The bound upper pods, and those among them whose room is not counted yet."""

    def __init__(
        self, context: AgentContext, *, bound: Callable[[Object], bool], gone: Callable[[str], None]
    ) -> None:
        """Register handlers on the informer of bound pods.

        Args:
            context: context of the agent.
            bound: called with every newly bound pod; returns whether its room is counted.
            gone: called with the UID of a pod that is deleted or finished.
        """
        self._bound = bound
        self._gone = gone
        self._unaccounted: dict[str, Object] = {}
        """By UID: bound pods that do not run yet and whose room is not counted."""
        self._is_shared = context.bound_pods is not None
        self._pods = context.bound_pods or bound_pods(context.upper)
        self._pods.add_handler(
            on_add=lambda pod, _initial: self.added(pod),
            on_update=lambda _old, new: self.changed(new),
            on_delete=lambda pod: self.ended(pod.uid),
        )

    async def run(self) -> None:
        """Follow the upper cluster until cancelled, unless the multi-scheduler runs the shared informer."""
        if not self._is_shared:
            await self._pods.run()

    @property
    def has_synced(self) -> bool:
        """Report whether the informer has synced."""
        return self._pods.has_synced

    def on(self, node: str) -> list[Object]:
        """Return the pods that are bound to a node."""
        return self._pods.store.by_index(BY_NODE, node)

    def unaccounted(self, nodes: Collection[str]) -> list[Object]:
        """Return pending pods on these nodes that another scheduler bound."""
        return [pod for pod in self._unaccounted.values() if (pod.spec or {}).get("nodeName") in nodes]

    def accounted(self, uid: str) -> None:
        """Note that the pod's room is counted."""
        self._unaccounted.pop(uid, None)

    def added(self, pod: Object) -> None:
        """Handle a newly bound pod."""
        if not self._bound(pod) and _is_pending(pod):
            self._unaccounted[pod.uid] = pod

    def changed(self, pod: Object) -> None:
        """Handle a change of a bound pod."""
        if not _is_pending(pod):
            self.accounted(pod.uid)

    def ended(self, uid: str) -> None:
        """Handle a bound pod that was deleted or finished."""
        self.accounted(uid)
        self._gone(uid)


def _is_pending(pod: Object) -> bool:
    return (pod.status or {}).get("phase") == PENDING
