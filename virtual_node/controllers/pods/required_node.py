"""Gives up the lower node that a pod requires when the pod does not fit there, so that no choice of a node is final.

The multi-scheduler reserves a lower node for a pod, and the lower pod requires this node, because the lower scheduler may
otherwise use room that is promised to another pod. The node may lose the room: it is cordoned or deleted, or a lower user
creates a pod there. Then the lower pod is replaced by one without the requirement. A lower pod's affinity cannot be changed.

The upper pod is changed first: it loses the mark that it has a lower pod, without which a missing lower pod is created
instead of being reported as lost. So a process that ends between two requests leaves nothing that the next one cannot finish.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import PatchType
from controller_runtime.errors import Conflict, NotFound
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import patch_only

PATIENCE = 3.0
"""Seconds for which a lower pod may be unschedulable: the lower scheduler may see later than others that a pod has ended."""
_EVENT = "LowerNodeGivenUp"


def seconds_left(lower: Object, now: datetime) -> float | None:
    """Return for how long a lower pod still waits for the node that it requires; 0: give up; None: it does not wait."""
    scheduled = condition(lower.status, "PodScheduled")
    is_waiting = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    is_required = bool(lower.annotations.get(names.ANNOTATION_REQUIRED_NODE))
    if not is_waiting or not is_required or lower.metadata.deletion_timestamp is not None:
        return None
    try:
        waited = (now - timestamps.parse(scheduled.get("lastTransitionTime") or "")).total_seconds()
    except ValueError:
        return 0.0
    return min(PATIENCE, max(0.0, PATIENCE - waited))  # the clocks of the clusters may differ


@dataclass(eq=False, repr=False)
class RequiredNode:
    """Deletes lower pods that do not fit on the node that they require."""

    context: ClusterContext

    async def give_up(self, upper: Object, lower: Object) -> bool:
        """Delete a lower pod so that it can be created without a required node; return False if it has changed meanwhile."""
        node = lower.annotations[names.ANNOTATION_REQUIRED_NODE]
        try:
            await self._forget(upper)
            with contextlib.suppress(NotFound):
                await self.context.lower.delete(
                    resources.PODS,
                    lower.name,
                    namespace=lower.namespace,
                    uid=lower.uid,
                    resource_version=lower.resource_version,
                )
        except Conflict:
            return False
        message = f"Node {node} of lower cluster {self.context.name} has no room any more; its scheduler chooses another node"
        self.context.warn(upper, _EVENT, message)
        self.context.log.info("required lower node given up", pod=upper.key, uid=upper.uid, node=node)
        return True

    async def _forget(self, upper: Object) -> None:
        """Remove the required node, and the mark of a lower pod, from an upper pod."""
        if not upper.annotations.get(names.ANNOTATION_REQUIRED_NODE):
            return  # an earlier attempt has done it
        annotations: dict[str, Any] = {names.ANNOTATION_REQUIRED_NODE: "", names.ANNOTATION_LOWER_UID: None}
        await patch_only(
            self.context.upper,
            resources.PODS,
            upper,
            {"metadata": {"annotations": annotations}},
            resource_version=upper.resource_version,
            subresource="status",
            patch_type=PatchType.STRATEGIC,
        )
