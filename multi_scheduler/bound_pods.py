"""The upper pods that are bound: one informer, shared by the agents and the Events about their choice."""

from __future__ import annotations

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object

BY_NODE = "node"
"""Index: the pods of a node."""
PENDING = "Pending"
_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


def bound_pods(client: Client) -> Informer:
    """Return an informer on the pods that are bound and have not ended.

    Args:
        client: of the upper cluster.
    """
    return Informer(
        client,
        resources.PODS,
        field_selector=_BOUND,
        transform=shrink,
        indexers={BY_NODE: lambda pod: [(pod.spec or {}).get("nodeName", "")]},
        name="bound-pods",
    )


def shrink(pod: Object) -> Object:
    """Keep of a pod its node and its priority, and all it asks for until it runs."""
    phase = (pod.status or {}).get("phase", "")
    if phase == PENDING:
        return pod.with_fields(status={"phase": phase})
    spec = pod.spec or {}
    kept = {name: spec[name] for name in ("nodeName", "priority") if spec.get(name)}
    return pod.with_fields(spec=kept, status={})
