"""An extender with tensile-kube's rule: a virtual node passes if at least one lower node fits. It reserves nothing.

``python -m tests.benchmarks.exact.any_node CONFIG KUBECONFIG PORT``. It reads the lower clusters with the same rules as the
agent ``fit``, so that only the reservations differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from hack.sandbox.cluster import LOOPBACK
from multi_scheduler import config as configuration
from multi_scheduler.agent import Agent, Rejections
from multi_scheduler.bound_pods import BoundPods, bound_pods
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.extender.server import ExtenderServer
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.state.lower_state import StateSettings
from multi_scheduler.virtual_node import VirtualNode


class AnyNodeAgent(Agent):
    """Passes a virtual node if a lower node fits."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    async def run(self) -> None:
        """Follow the lower clusters until cancelled."""
        await self._state.run_lower(measures=False)

    def unready(self) -> str | None:
        """Return that a lower cluster has not been read yet; None: all have been read."""
        found = [name for name, lower in self._state.clusters.items() if not lower.feed.has_synced]
        return f"not read yet: {', '.join(found)}" if found else None

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Return the virtual nodes without a fitting lower node."""
        found = self._state.predict(pod, nodes, moves_others=False)
        return Rejections(found.resolvable, found.unresolvable)


async def main(config_file: str, upper_kubeconfig: str, port: int) -> None:
    """Serve until the process is stopped."""
    config = configuration.load(config_file)
    async with contextlib.AsyncExitStack() as stack:
        loaded = await kubeconfig.load(upper_kubeconfig)
        upper = await stack.enter_async_context(Client(loaded, qps=0, user_agent="any-node", cluster="upper"))
        directory = NodeDirectory(upper, config)
        state = ClusterState(StateSettings(), upper, BoundPods(bound_pods(upper)))
        for cluster in config.clusters:
            loaded = await kubeconfig.load(cluster.kubeconfig)
            client = Client(loaded, qps=0, user_agent="any-node", cluster=cluster.name)
            await stack.enter_async_context(client)
            directory.add(cluster, client)
            state.add(cluster, client, config.controllers(cluster))
        agent = AnyNodeAgent(state)
        extender = Extender([Weighted("any-node", agent, 1)], directory, upper=upper)
        server = ExtenderServer(LOOPBACK, port, tls=None, extender=extender)
        server.health.add("any-node", agent.unready)
        server.health.add("nodes", directory.unready)
        await server.start()
        stack.push_async_callback(server.stop)
        await asyncio.gather(directory.nodes.run(), agent.run())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
