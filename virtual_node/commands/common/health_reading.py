"""Reads what the health model needs from the upper cluster, for commands that show virtual nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime

from clusterset.model.names import SWARMS
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import Forbidden, NotFound
from controller_runtime.objects import Object
from virtual_node.commands.common.reader import Reader
from virtual_node.health.faults import Health
from virtual_node.health.model import examine, facts_of
from virtual_node.health.objects import Json, key
from virtual_node.health.pods import WAITING
from virtual_node.health.replicas import COMPONENTS, failing


async def judge(
    reader: Reader,
    *,
    nodes: Sequence[Json],
    bound: Sequence[Json] | None,
    leases: Mapping[str, Json] | None,
    now: datetime,
) -> Health:
    """Return the health of an installation; what the caller may not read is reported as unknown.

    Args:
        reader: reader of the upper cluster.
        nodes: all virtual nodes.
        bound: the pods on the virtual nodes; None: the caller may not read pods.
        leases: Leases of the virtual nodes, by name; None: the caller may not read Leases.
        now: current time by the API server's clock.

    Raises:
        ApiError: the cluster does not answer.
    """
    (waiting, components), found_swarms = await asyncio.gather(read(reader), swarms(reader.client))
    replicas = [pod.to_dict() for pod in components or ()]
    words = {key(pod): (await reader.last_words(pod) or [""])[-1] for pod in failing(replicas, now)}
    return examine(
        facts_of(
            now=now,
            nodes=nodes,
            leases=leases,
            bound=bound,
            waiting=None if waiting is None else [pod.to_dict() for pod in waiting],
            replicas=None if components is None else replicas,
            swarms=found_swarms,
            words=words,
        )
    )


async def read(reader: Reader) -> tuple[list[Object] | None, list[Object] | None]:
    """Return the pods without a node, and the pods of our components; None: the list is forbidden.

    Raises:
        ApiError: the cluster does not answer.
    """
    waiting, components = await asyncio.gather(
        reader.all(resources.PODS, field_selector=WAITING),
        reader.all(resources.PODS, label_selector=COMPONENTS),
    )
    return waiting, components


async def swarms(client: Client) -> list[Json]:
    """Return the Swarms of a cluster; empty also if they are not installed, or if reading them is forbidden.

    Raises:
        ApiError: any other error.
    """
    try:
        return [one.to_dict() for one in (await client.list(SWARMS)).items]
    except (Forbidden, NotFound):
        return []
