"""Keeps controllers of the lower cluster from adopting lower pods, and reports those that were adopted.

New lower pods are created with a controller (``ownership.controller_reference``). This controller adds it to pods of earlier
releases, and to pods whose reference was removed. It changes one pod at a time, so that thousands of pods after an
upgrade do not delay the creation of other pods.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from clusterset.model.pod.conditions import is_finished
from controller_runtime import resources
from controller_runtime.client.client import PatchType
from controller_runtime.errors import Conflict, Invalid, NotFound
from controller_runtime.objects import Object
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.translate.base import ownership

ADOPTED = "AdoptedInLowerCluster"


@dataclass(eq=False, repr=False)
class LowerOwners:
    """Gives every lower pod its Namespace as controller."""

    context: ClusterContext
    caches: PodCaches
    namespaces: Namespaces

    def __post_init__(self) -> None:
        """Register a handler on the informer of lower pods."""
        self.controller = self.context.controller("owners", self.reconcile, workers=1, first_delay=1.0)
        self.caches.lower.add_handler(
            on_add=lambda pod, _initial: self._changed(pod),
            on_update=lambda old, new: self._changed(new, old),
        )

    def _changed(self, pod: Object, old: Object | None = None) -> None:
        if pod.metadata.deletion_timestamp is not None:
            return
        if pod.controller is None or ownership.lower_controller(pod):
            before = None if old is None else old.metadata.raw_owner_references
            if before is None or bytes(before) != bytes(pod.metadata.raw_owner_references):
                self.controller.queue.add(pod.key)

    async def reconcile(self, key: str) -> Result | None:
        """Add the controller to a lower pod without one; report a lower pod with a controller of the lower cluster."""
        lower = self.caches.lower.store.get(key)
        if lower is None or lower.metadata.deletion_timestamp is not None or is_finished(lower.status):
            return None
        if controller := ownership.lower_controller(lower):
            self._report(lower, controller)
        elif lower.controller is None:
            uid = await self.namespaces.uid(lower.namespace)
            reference = ownership.controller_reference(lower.namespace, uid)
            # Gone, replaced, or adopted meanwhile: the next event of the pod queues it again.
            with contextlib.suppress(NotFound, Conflict, Invalid):
                await patch_only(
                    self.context.lower,
                    resources.PODS,
                    lower,
                    {"metadata": {"ownerReferences": [reference]}},
                    patch_type=PatchType.STRATEGIC,
                )
        return None

    def _report(self, lower: Object, controller: str) -> None:
        upper = self.caches.upper_of(lower)
        if upper is None:
            return
        message = (
            f"{controller} in namespace {lower.namespace} of lower cluster {self.context.name} has adopted the lower pod and "
            f"may delete it. Delete {controller} or change its selector, then delete this pod, so that its owner replaces it"
        )
        self.context.warn(upper, ADOPTED, message)
        self.context.log.warning("lower pod was adopted", pod=lower.key, uid=upper.uid, controller=controller)
