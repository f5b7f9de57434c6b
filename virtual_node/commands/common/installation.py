"""Reads what the health model needs from the upper cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime

from controller_runtime import resources
from controller_runtime.objects import Object
from virtual_node.examine import health as model
from virtual_node.examine.components import SELECTOR, failing
from virtual_node.examine.engine import of_all_pods
from virtual_node.examine.facts import known
from virtual_node.examine.finding import Finding
from virtual_node.examine.health import Health
from virtual_node.examine.objects import Json, key
from virtual_node.examine.pods import WAITING
from virtual_node.examine.reader import Reader


async def judge(
    reader: Reader,
    *,
    nodes: Sequence[Json],
    bound: Sequence[Json] | None,
    leases: Mapping[str, Json] | None,
    now: datetime,
    of_bound: Sequence[Finding] = (),
) -> Health:
    """Return the health of an installation; what the caller may not read is reported as unknown.

    Args:
        reader: reader of the upper cluster.
        nodes: all virtual nodes.
        bound: the pods on the virtual nodes; None: the caller may not read pods.
        leases: Leases of the virtual nodes, by name; None: the caller may not read Leases.
        now: current time by the API server's clock.
        of_bound: findings about more pods on the virtual nodes, which are examined already.

    Raises:
        ApiError: the cluster does not answer.
    """
    (waiting, components), swarms = await asyncio.gather(prefetch(reader), reader.swarms())
    replicas = [pod.to_dict() for pod in components or ()]
    words = {key(pod): (await reader.last_words(pod) or [""])[-1] for pod in failing(replicas, now)}
    snapshot = known(
        now,
        nodes=nodes,
        leases=leases,
        bound=bound,
        waiting=None if waiting is None else [pod.to_dict() for pod in waiting],
        components=None if components is None else replicas,
        swarms=swarms,
        words=words,
    )
    return model.health(snapshot, of_pods=[*of_all_pods(snapshot), *of_bound])


async def prefetch(reader: Reader) -> tuple[list[Object] | None, list[Object] | None]:
    """Return the pods without a node, and the pods of our components; None: the list is forbidden.

    Raises:
        ApiError: the cluster does not answer.
    """
    waiting, components = await asyncio.gather(
        reader.all(resources.PODS, field_selector=WAITING),
        reader.all(resources.PODS, label_selector=SELECTOR),
    )
    return waiting, components
