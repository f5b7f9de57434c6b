"""The informer of bound upper pods, shared by the agents and by the Events about placements."""

from __future__ import annotations

import asyncio

from controller_runtime import resources
from controller_runtime.api.pod.groups import group_of
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object

BY_NODE = "node"
"""Name of the index from a node's name to its pods."""
BY_UID = "uid"
"""Name of the index from a UID to its pod."""
BY_GROUP = "group"
"""Name of the index from a pod group's key to its pods."""
PENDING = "Pending"
BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


def bound_pods(client: Client) -> Informer:
    """Return an informer of the upper cluster's bound pods that have not finished."""
    return Informer(
        client,
        resources.PODS,
        field_selector=BOUND,
        transform=shrink,
        indexers={
            BY_UID: lambda pod: [pod.uid],
            BY_NODE: lambda pod: [(pod.spec or {}).get("nodeName", "")],
            BY_GROUP: group_key,
        },
        name="bound-pods",
    )


async def caught_up(client: Client, informer: Informer) -> None:
    """Return when the informer of bound pods knows all pods that are bound now.

    The list is read without a resourceVersion, so it contains every binding that the API server has confirmed, even if the
    informer's watch is late.

    Raises:
        ApiError: the pods cannot be listed.
    """
    known: set[str] = set()
    news = asyncio.Event()

    def note(pod: Object, _initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        known.add(pod.uid)
        news.set()

    with informer.add_handler(on_add=note):
        uids, _ = await client.list_as(
            resources.PODS, lambda pod: pod.uid, field_selector=BOUND, metadata_only=True
        )
        while not known.issuperset(uids):
            news.clear()
            await news.wait()


def group_key(pod: Object) -> list[str]:
    """Return the key of the pod's group; empty: it has none."""
    group = group_of(pod.namespace, pod.labels, pod.annotations)
    return [group.key] if group is not None else []


def shrink(pod: Object) -> Object:
    """Reduce a pod to its node and priority; a pending pod keeps its spec, by which agents reserve room."""
    phase = (pod.status or {}).get("phase", "")
    if phase == PENDING:
        return pod.with_fields(status={"phase": phase})
    spec = pod.spec or {}
    kept = {name: spec[name] for name in ("nodeName", "priority") if spec.get(name)}
    return pod.with_fields(spec=kept, status={})
