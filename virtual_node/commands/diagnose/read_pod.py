"""Reads what ``diagnose`` needs about a pod from the upper cluster and, with a kubeconfig, from the lower one."""

from __future__ import annotations

import asyncio
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import claim_names
from controller_runtime import resources
from controller_runtime.errors import ConfigError
from virtual_node.commands.common import connect
from virtual_node.commands.diagnose.facts import PodFacts
from virtual_node.examine import probes
from virtual_node.examine.objects import last_seen
from virtual_node.examine.reader import NODE_LEASES, VIRTUAL_NODES, Reader
from virtual_node.translate.base.ownership import mirrored_as

_MOST_CLAIMS = 20


async def gather(reader: Reader, pod: dict[str, Any], *, lower: str, timeout: float) -> PodFacts:  # noqa: ASYNC109 - of each request
    """Return everything about a pod that the caller may read.

    Args:
        reader: reader of the upper cluster.
        pod: the upper pod.
        lower: path of a kubeconfig of the pod's lower cluster; empty: the lower cluster is not read.
        timeout: seconds to wait for each response.

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
    below, silence = await _below(lower, pod, timeout=timeout) if lower else (None, "")
    return PodFacts(
        pod=pod,
        node=node,
        lease=lease,
        lower=below,
        events=events,
        claim_events=claim_events,
        virtual_nodes=None if virtual is None else [one.to_dict() for one in virtual],
        now=now,
        is_lower_read=bool(lower) and not silence,
        lower_error=silence,
        logs=logs,
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


async def _below(path: str, upper: dict[str, Any], *, timeout: float) -> tuple[dict[str, Any] | None, str]:  # noqa: ASYNC109 - of each request
    """Return the lower pod, if there is one, and why the lower cluster could not be read; empty: it was read."""
    metadata = upper["metadata"]
    selector = f"{names.LABEL_UPPER_UID}={metadata['uid']}"
    try:
        async with connect.by_file(path, agent="virtual-node-diagnose", timeout=timeout) as client:
            found = (await client.list(resources.PODS, label_selector=selector)).items
            # Users of the lower cluster can copy the label to other pods.
            mark = (metadata.get("annotations") or {}).get(names.ANNOTATION_LOWER_UID)
            made = mirrored_as(mark, metadata["uid"])
            found = [pod for pod in found if pod.name == metadata["name"] and made in {"", pod.uid}]
    except ConfigError as error:
        return None, str(error)
    return (found[0].to_dict() if found else None), ""
