"""Follows the bound upper pods, for reservations and as candidates for preemption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controller_runtime.objects import Object
from multi_scheduler.agent import AgentContext
from multi_scheduler.bound_pods import BY_GROUP, BY_NODE, BY_UID, bound_pods


class Changed(Protocol):
    """Handles a new or changed bound pod."""

    def __call__(self, pod: Object, *, is_new: bool) -> None:
        """Handle the pod; `is_new` tells whether it was not known before."""


@dataclass(eq=False)
class BoundPods:
    """The bound upper pods that have not finished."""

    context: AgentContext
    changed: Changed
    """Called with every new or changed bound pod."""
    gone: Callable[[str], None]
    """Called with the UID of a pod that is deleted or finished."""

    def __post_init__(self) -> None:
        self._pods = self.context.bound_pods or bound_pods(self.context.upper)
        self._pods.add_handler(
            on_add=lambda pod, _initial: self.changed(pod, is_new=True),
            on_update=lambda _old, new: self.changed(new, is_new=False),
            on_delete=lambda pod: self.gone(pod.uid),
        )

    async def run(self) -> None:
        """Run the informer until cancelled; return immediately if the multi-scheduler runs a shared one."""
        if self.context.bound_pods is None:
            await self._pods.run()

    @property
    def has_synced(self) -> bool:
        """Report whether the informer has synced."""
        return self._pods.has_synced

    async def wait_synced(self, seconds: float) -> bool:
        """Wait until the informer has synced; return False after the timeout."""
        return await self._pods.wait_synced(seconds)

    def get(self, uid: str) -> Object | None:
        """Return a bound pod by its UID; None: unknown."""
        return next(iter(self._pods.store.by_index(BY_UID, uid)), None)

    def on(self, node: str) -> list[Object]:
        """Return the pods that are bound to a node."""
        return self._pods.store.by_index(BY_NODE, node)

    def of_group(self, key: str) -> list[Object]:
        """Return the members of a pod group that are bound, not finished and not being deleted."""
        found = self._pods.store.by_index(BY_GROUP, key)
        return [pod for pod in found if pod.metadata.deletion_timestamp is None]


def priority_of(pod: Object) -> int:
    """Return the priority of a pod."""
    return int((pod.spec or {}).get("priority") or 0)


def node_of(pod: Object) -> str:
    """Return the upper node of a pod; empty: not bound."""
    return str((pod.spec or {}).get("nodeName") or "")
