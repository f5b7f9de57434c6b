"""Follows the bound upper pods, for reservations and as candidates for preemption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from multi_scheduler.bound_pods import BY_GROUP, BY_NODE, BY_UID, bound_pods


class Changed(Protocol):
    """Handles a new or changed bound pod."""

    def __call__(self, pod: Object, *, is_new: bool) -> None:
        """Handle the pod; `is_new` tells whether it was not known before."""


class BoundPods:
    """The bound upper pods that have not finished."""

    def __init__(self, upper: Client, shared: Informer | None) -> None:
        """Use the shared informer, which the caller runs, or an own one that ``run`` runs."""
        self._is_own = shared is None
        self.informer = shared or bound_pods(upper)

    def on_change(self, changed: Changed, gone: Callable[[str], None]) -> None:
        """Call ``changed`` with every new or changed bound pod, and ``gone`` with the UID of a deleted or finished pod."""
        self.informer.add_handler(
            on_add=lambda pod, _initial: changed(pod, is_new=True),
            on_update=lambda _old, new: changed(new, is_new=False),
            on_delete=lambda pod: gone(pod.uid),
        )

    async def run(self) -> None:
        """Run an own informer until cancelled; return immediately if the informer is shared."""
        if self._is_own:
            await self.informer.run()

    def has(self, uid: str) -> bool:
        """Report whether the pod with this UID is known to be bound."""
        return self.get(uid) is not None

    def get(self, uid: str) -> Object | None:
        """Return a bound pod by its UID; None: unknown."""
        return next(iter(self.informer.store.by_index(BY_UID, uid)), None)

    def on(self, node: str) -> list[Object]:
        """Return the pods that are bound to a node."""
        return self.informer.store.by_index(BY_NODE, node)

    def of_group(self, key: str) -> list[Object]:
        """Return the members of a pod group that are bound, not finished and not being deleted."""
        found = self.informer.store.by_index(BY_GROUP, key)
        return [pod for pod in found if pod.metadata.deletion_timestamp is None]


def priority_of(pod: Object) -> int:
    """Return the priority of a pod."""
    return int((pod.spec or {}).get("priority") or 0)


def node_of(pod: Object) -> str:
    """Return the upper node of a pod; empty: not bound."""
    return str((pod.spec or {}).get("nodeName") or "")
