"""Gathers what ``diagnose`` judges a pod by, in the upper cluster and, where a kubeconfig is given, below."""

from __future__ import annotations

import asyncio
import difflib
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names, timestamps
from controller_runtime.errors import ConfigError, Forbidden, NotFound
from virtual_node.commands import connect
from virtual_node.commands.callers_rights import need
from virtual_node.commands.diagnosing.facts import Facts
from virtual_node.commands.reader import Reader

_LEASES = "kube-node-lease"
_VIRTUAL = f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}"


async def find(reader: Reader, namespace: str, name: str) -> dict[str, Any]:
    """The pod itself.

    Raises:
        ConfigError: there is none of that name, or it may not be seen.
    """
    try:
        return await reader.client.get(resources.PODS, name, namespace=namespace)
    except NotFound:
        there = [pod.name for pod in await reader.all(resources.PODS, namespace=namespace) or ()]
        close = difflib.get_close_matches(name, there, n=1)
        guess = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"there is no pod {namespace}/{name} in the upper cluster{guess}") from None
    except Forbidden:
        right = need("get", resources.PODS, namespace=namespace)
        raise ConfigError(
            f"nothing can be said without the right to {right.words}: {right.question}"
        ) from None


async def gather(reader: Reader, pod: dict[str, Any], *, lower: str, timeout: float) -> Facts:  # noqa: ASYNC109 - of each request
    """Everything about a pod that this person may see.

    Args:
        reader: of the upper cluster.
        pod: the upper pod.
        lower: path of a kubeconfig of its lower cluster; empty: that is not asked.
        timeout: seconds for one answer.

    Raises:
        ApiError: the upper cluster does not answer.
    """
    metadata = pod["metadata"]
    node_name = pod["spec"].get("nodeName", "")
    virtual, node, heartbeat, events, logs = await asyncio.gather(
        reader.all(resources.NODES, label_selector=_VIRTUAL),
        _nothing() if not node_name else reader.get(resources.NODES, node_name),
        _nothing() if not node_name else _heartbeat(reader, node_name),
        reader.all(
            resources.EVENTS,
            namespace=metadata["namespace"],
            field_selector=f"involvedObject.uid={metadata['uid']}",
        ),
        reader.last_words(pod),
    )
    below, silence = await _below(lower, metadata["uid"], timeout=timeout) if lower else (None, "")
    listed = [event.to_dict() for event in events or ()]
    listed.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return Facts(
        pod=pod,
        node=node,
        heartbeat_seconds=heartbeat,
        lower=below,
        events=listed,
        virtual_nodes=None if virtual is None else [one.to_dict() for one in virtual],
        now=datetime.now(UTC),
        asked_below=bool(lower) and not silence,
        silence_below=silence,
        logs=logs,
    )


async def _nothing() -> None:
    return None


async def _heartbeat(reader: Reader, node: str) -> float | None:
    lease = await reader.get(resources.LEASES, node, namespace=_LEASES)
    renewed = ((lease or {}).get("spec") or {}).get("renewTime")
    return (datetime.now(UTC) - timestamps.parse(renewed)).total_seconds() if renewed else None


async def _below(path: str, uid: str, *, timeout: float) -> tuple[dict[str, Any] | None, str]:  # noqa: ASYNC109 - of each request
    """The lower pod, and why it cannot be seen; a lower cluster that is away keeps nobody from a verdict."""
    selector = f"{names.LABEL_UPPER_UID}={uid}"
    try:
        async with connect.by_file(path, agent="virtual-node-diagnose", timeout=timeout) as client:
            found = (await client.list(resources.PODS, label_selector=selector)).items
    except ConfigError as error:
        return None, str(error)
    return (found[0].to_dict() if found else None), ""
