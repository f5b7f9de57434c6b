"""The silence of a lower cluster, as the descheduler records it on the virtual node, and who counts down. Does no IO.

While a virtual node is lost, the descheduler keeps the taint ``virtual-node.io/stale-cluster`` and the annotation
``virtual-node.io/silence`` on the Node. The annotation survives a change of the leader. Other programs read the time from it at
which running pods move. Without a descheduler there is no annotation. Tenants cannot write Nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from clusterset.model import names
from clusterset.model.pod.conditions import condition

UNREACHABLE = "LowerClusterUnreachable"
"""Reason of a virtual node's Ready condition while its lower cluster does not answer."""
NO_READY_NODES = "NoReadyLowerNodes"
"""Reason of a virtual node's Ready condition if the lower cluster answers, but no lower node is Ready."""
CORDONED = "LowerNodesCordoned"
"""Reason of a virtual node's Ready condition, which is True, while all Ready lower nodes are cordoned: new pods find no room."""

_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Silence(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The value of the annotation ``virtual-node.io/silence``."""

    since: _Moment
    """When the silence began, by the descheduler's clock."""
    running_pods_move_at: _Moment
    """From when on the pods that run in the lower cluster are moved."""

    def text(self, now: datetime) -> str:
        """Return how long the cluster is silent, and when its running pods move."""
        silent = max(0.0, (now - self.since).total_seconds())
        left = (self.running_pods_move_at - now).total_seconds()
        moves = (
            f"running pods move in {left:.0f} s" if left > 0 else "running pods move to clusters with room"
        )
        return f"silent for {silent:.0f} s; {moves}"


def render(silence: Silence) -> str:
    """Return the value of the annotation."""
    return msgspec.json.encode(silence).decode()


def recorded(annotations: Mapping[str, str]) -> Silence | None:
    """Return the silence in a Node's annotations; None: there is none, or it is not valid."""
    try:
        return msgspec.json.decode(annotations.get(names.ANNOTATION_SILENCE) or "", type=Silence)
    except msgspec.DecodeError:
        return None


def of_node(node: Mapping[str, Any]) -> Silence | None:
    """Return the silence for which a descheduler counts down; None: there is none.

    Without the taint, the annotation is left over: an administrator has removed the taint by hand.
    """
    taints = (node.get("spec") or {}).get("taints") or ()
    if all(taint.get("key") != names.TAINT_STALE_CLUSTER for taint in taints):
        return None
    return recorded(node["metadata"].get("annotations") or {})


def is_silent(status: Mapping[str, Any] | None) -> bool:
    """Report whether a virtual node's status says that nothing is known about the pods in its lower cluster."""
    ready = condition(status, "Ready")
    return ready.get("status") != "True" and ready.get("reason") != NO_READY_NODES
