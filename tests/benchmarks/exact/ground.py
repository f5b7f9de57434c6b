"""The clusters of the benchmark: three lower clusters with exchangeable nodes behind one virtual-node process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.apimachinery import quantity
from controller_runtime.client.client import Client
from hack.sandbox.nodes.kwok import kwok_node
from tests.benchmarks.exact.bursts import Player
from tests.benchmarks.exact.pods import NAMESPACE
from tests.benchmarks.exact.variants import SETTINGS
from tests.benchmarks.exact.watching import watching
from tests.benchmarks.load import for_all, make_namespace
from tests.benchmarks.stage import Stage, entry, stage, start_nodes, until

_LIMIT = 150.0


@contextlib.asynccontextmanager
async def ground(**options: Any) -> AsyncIterator[tuple[Stage, Player]]:
    """Yield running clusters and a player of bursts on them; ``options`` are arguments of ``Sandbox``."""
    async with stage(lower=3, kwok_nodes=1, **options) as at:
        for client in (at.upper, *at.lower):
            await make_namespace(client, NAMESPACE)
        await start_nodes(at.sandbox, [entry(cluster, **SETTINGS) for cluster in at.sandbox.lower])
        async with watching(at.upper, at.lower) as watched:
            yield at, Player(watched)


async def set_nodes(
    at: Stage, nodes: Mapping[str, Sequence[Mapping[str, Any]]], pods: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Replace the nodes of all lower clusters, and wait until the virtual nodes show them.

    Args:
        at: the clusters.
        nodes: Node objects by lower cluster; clusters that are not named get one tiny node, on which no pod fits.
        pods: pods of lower users; the names of their nodes begin with the cluster's name.
    """
    wanted = {
        client.cluster: nodes.get(client.cluster) or [kwok_node(f"{client.cluster}-tiny", cpu="1m")]
        for client in at.lower
    }
    await asyncio.gather(*(_replace(client, wanted[client.cluster]) for client in at.lower))
    for client in at.lower:
        for pod in pods:
            if pod["spec"]["nodeName"].startswith(f"{client.cluster}-"):
                await client.create(resources.PODS, pod, namespace=pod["metadata"]["namespace"])
    totals = {
        f"vn-{name}": sum(quantity.milli(node["status"]["allocatable"]["cpu"]) for node in there)
        for name, there in wanted.items()
    }

    async def are_shown() -> bool:
        found = await at.upper.list(resources.NODES)
        shown = {
            node.name: quantity.milli(((node.status or {}).get("allocatable") or {}).get("cpu", "0"))
            for node in found.items
        }
        # Pods of lower users take less than one core from the virtual node.
        return all(total - 1000 <= shown.get(name, 0) <= total for name, total in totals.items())

    await until(are_shown, seconds=_LIMIT)


async def _replace(client: Client, nodes: Sequence[Mapping[str, Any]]) -> None:
    pods = await client.list(resources.PODS)
    for pod in pods.items:
        await client.delete(resources.PODS, pod.name, namespace=pod.namespace, grace_period_seconds=0)
    old = [node.name for node in (await client.list(resources.NODES)).items]
    await for_all(old, lambda name: client.delete(resources.NODES, name), clients=8)
    await for_all(nodes, lambda node: client.create(resources.NODES, node), clients=8)

    async def are_ready() -> bool:
        found = (await client.list(resources.NODES)).items
        return len(found) == len(nodes) and all(
            is_true(node.status, "Ready")
            and not any(taint["key"].startswith("node.kubernetes.io/") for taint in (node.spec or {}).get("taints") or ())
            for node in found
        )  # fmt: skip

    await until(are_ready, seconds=_LIMIT)
