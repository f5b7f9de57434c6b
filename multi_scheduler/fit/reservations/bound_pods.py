"""The upper pods that are bound: whose promise is settled, who went without one, and who could be preempted."""

from __future__ import annotations

from collections.abc import Callable, Collection

from controller_runtime.objects import Object
from multi_scheduler.agent import AgentContext
from multi_scheduler.bound_pods import BY_NODE, PENDING, bound_pods


class BoundPods:
    """Follows them."""

    def __init__(
        self, context: AgentContext, *, bound: Callable[[Object], bool], gone: Callable[[str], None]
    ) -> None:
        """Set up.

        Args:
            context: the agent's.
            bound: called with every pod that is bound; tells whether its room is accounted for.
            gone: called with the uid of a pod that is gone or has ended.
        """
        self._bound = bound
        self._gone = gone
        self._strangers: dict[str, Object] = {}
        """By uid: pods that are bound, do not run yet, and whose room nobody has accounted for."""
        self._is_shared = context.bound_pods is not None
        self._pods = context.bound_pods or bound_pods(context.upper)
        self._pods.add_handler(
            on_add=lambda pod, _initial: self.added(pod),
            on_update=lambda _old, new: self.changed(new),
            on_delete=lambda pod: self.ended(pod.uid),
        )

    async def run(self) -> None:
        """Follow the cluster until cancelled, unless the multi-scheduler does so for all agents."""
        if not self._is_shared:
            await self._pods.run()

    @property
    def has_synced(self) -> bool:
        """Whether all of them have been read."""
        return self._pods.has_synced

    def on(self, node: str) -> list[Object]:
        """The pods that are bound to a node."""
        return self._pods.store.by_index(BY_NODE, node)

    def strangers(self, nodes: Collection[str]) -> list[Object]:
        """The pods on these nodes that somebody else has bound, and that do not run yet."""
        return [pod for pod in self._strangers.values() if (pod.spec or {}).get("nodeName") in nodes]

    def accounted(self, uid: str) -> None:
        """The pod's room is accounted for now."""
        self._strangers.pop(uid, None)

    def added(self, pod: Object) -> None:
        """A pod is bound."""
        if not self._bound(pod) and _is_pending(pod):
            self._strangers[pod.uid] = pod

    def changed(self, pod: Object) -> None:
        """A bound pod says something new."""
        if not _is_pending(pod):
            self.accounted(pod.uid)

    def ended(self, uid: str) -> None:
        """A bound pod is gone, or needs no room any more."""
        self.accounted(uid)
        self._gone(uid)


def _is_pending(pod: Object) -> bool:
    return (pod.status or {}).get("phase") == PENDING
