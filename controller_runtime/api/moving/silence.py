"""The silence of a lower cluster, as the descheduler records it on the virtual node. Does no IO.

While a virtual node is lost, the descheduler keeps the taint ``virtual-node.io/stale-cluster`` and the annotation
``virtual-node.io/silence`` on the Node. The annotation survives a change of the leader. Tenants cannot write Nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from controller_runtime.api import names
from controller_runtime.api.pod.conditions import condition

NO_READY_NODES = "NoReadyLowerNodes"
"""Reason of a virtual node's Ready condition if the lower cluster answers, but no lower node is Ready and schedulable."""

_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Silence(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The value of the annotation ``virtual-node.io/silence``."""

    since: _Moment
    """When the silence began, by the descheduler's clock."""
    running_pods_move_at: _Moment
    """From when on the pods that run in the lower cluster are moved."""


def render(silence: Silence) -> str:
    """Return the value of the annotation."""
    return msgspec.json.encode(silence).decode()


def recorded(annotations: Mapping[str, str]) -> Silence | None:
    """Return the silence in a Node's annotations; None: there is none, or it is not valid."""
    try:
        return msgspec.json.decode(annotations.get(names.ANNOTATION_SILENCE) or "", type=Silence)
    except msgspec.DecodeError:
        return None


def is_silent(status: Mapping[str, Any] | None) -> bool:
    """Report whether a virtual node's status says that nothing is known about the pods in its lower cluster."""
    ready = condition(status, "Ready")
    return ready.get("status") != "True" and ready.get("reason") != NO_READY_NODES
