"""Reads what is known of one pod in depth with the user's rights."""

from __future__ import annotations

import asyncio
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import claim_names
from controller_runtime import resources
from controller_runtime.client.verbs import Verbs
from virtual_node.examine import probes
from virtual_node.examine.objects import Json, last_seen
from virtual_node.examine.pod_view import PodView
from virtual_node.examine.reader import NODE_LEASES, VIRTUAL_NODES, Reader
from virtual_node.examine.rules import in_depth  # noqa: F401 - registers the rules about what is read
from virtual_node.translate.base.ownership import mirrored_as

_MOST_CLAIMS = 20


async def read_pod(reader: Reader, pod: dict[str, Any]) -> PodView:
    """Return everything about a pod in the upper cluster that the caller may read.

    Raises:
        ApiError: the upper cluster does not answer.
    """
    node_name = pod["spec"].get("nodeName", "")
    # Two gathers, because the types of asyncio.gather know at most six results.
    (virtual, node, lease), (events, claim_events, logs, now) = await asyncio.gather(
        asyncio.gather(
            reader.all(resources.NODES, label_selector=VIRTUAL_NODES),
            _nothing() if not node_name else reader.get(resources.NODES, node_name),
            _nothing() if not node_name else reader.get(resources.LEASES, node_name, namespace=NODE_LEASES),
        ),
        asyncio.gather(
            reader.events_about(pod),
            _claim_events(reader, pod),
            reader.previous_log(pod),
            probes.clock(reader.client),
        ),
    )
    return PodView(
        pod=pod,
        node=node,
        lease=lease,
        lower=None,
        events=events,
        claim_events=claim_events,
        virtual_nodes=None if virtual is None else [each.to_dict() for each in virtual],
        now=now,
        logs=logs,
    )


async def read_lower(lower: Verbs, upper: Json) -> dict[str, Any] | None:
    """Return the lower pod of an upper pod; None: there is none.

    Raises:
        ApiError: the lower cluster does not answer, or forbids it.
    """
    metadata = upper["metadata"]
    selector = f"{names.LABEL_UPPER_UID}={metadata['uid']}"
    listed = (await lower.list(resources.PODS, label_selector=selector)).items
    # Users of the lower cluster can copy the label to other pods.
    made = mirrored_as((metadata.get("annotations") or {}).get(names.ANNOTATION_LOWER_UID), metadata["uid"])
    return next(
        (pod.to_dict() for pod in listed if pod.name == metadata["name"] and made in {"", pod.uid}), None
    )


async def _claim_events(reader: Reader, pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the warnings about the claims of a pending pod that are not bound, the oldest first."""
    found: list[Any] = []
    if (pod.get("status") or {}).get("phase") not in {None, "Pending"}:
        return found
    for name in claim_names(pod)[:_MOST_CLAIMS]:
        claim = await reader.get(
            resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=pod["metadata"]["namespace"]
        )
        if claim is not None and (claim.get("status") or {}).get("phase") != "Bound":
            found += [event for event in await reader.events_about(claim) if event.get("type") == "Warning"]
    return sorted(found, key=last_seen)


async def _nothing() -> None:
    return None
