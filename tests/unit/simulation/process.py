"""A virtual-node process on simulated clusters: the real wiring of one lower cluster, less the kubelet API."""

from __future__ import annotations

import asyncio
import traceback
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import structlog

from clusterset.config import Cluster
from controller_runtime.errors import ConfigError
from controller_runtime.process import lifecycle
from tests.fakes.apiserver.server import Server
from tests.unit.simulation.connection import Connection
from tests.unit.simulation.network import Weather
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.config import types as configuration
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.node_lease import Identity, NodeLease

CLUSTER_ID = "upper-id"
_RESTART = 2.0
"""Seconds until a process that has failed is started again."""


class Process:
    """One process: started, it works until it is stopped or killed, and begins anew when it fails."""

    def __init__(
        self, name: str, *, upper: Server, lower: Server, weathers: tuple[Weather, Weather],
        seed: str, cluster: Cluster, settings: configuration.Config,
    ) -> None:  # fmt: skip
        self.name, self.lower = name, lower
        self.nodes = [node.name for node in cluster.virtual_nodes()]
        self.connections = (
            Connection(upper, weathers[0], seed=seed, who=f"vn:{name}"),
            Connection(lower, weathers[1], seed=seed, who=f"vn:{name}"),
        )
        self.faults: list[str] = []
        """Errors that it should have known."""
        self.context = context_between(*self.connections, cluster=cluster, settings=settings)
        self._task = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for connection in self.connections:
            connection.kill()

    async def kill(self) -> None:
        """It ends where it is."""
        for connection in self.connections:
            connection.kill()
        await self.stop()

    async def _supervise(self) -> None:
        while True:
            config, settings = self.context.config, self.context.settings
            cluster = LowerCluster(config, settings=settings, cluster_id=CLUSTER_ID, endpoints=endpoints())
            cluster.leases = leases(self.context)
            try:
                await cluster._run_controllers(self.context, [])
            except ConfigError as error:
                self.faults.append(str(error))
            except Exception as error:  # noqa: BLE001 - it is started again, whatever it was
                if not _is_known(error):
                    self.faults.append("".join(traceback.format_exception(error))[-900:])
            await asyncio.sleep(_RESTART)


def context_between(
    upper: Any, lower: Any, *, cluster: Cluster, settings: configuration.Config
) -> ClusterContext:
    """Return what controllers know of two clusters, with their connections; events are not stored."""
    recorder: Any = SimpleNamespace(recent=[], run=asyncio.Event().wait, event=lambda *_, **__: None)
    return ClusterContext(
        name=cluster.name, cluster_id=CLUSTER_ID, upper=upper, lower=lower, settings=settings, config=cluster,
        nodes={node.name: node for node in cluster.virtual_nodes()}, recorder=recorder, log=structlog.get_logger(),
    )  # fmt: skip


def _is_known(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_known, error.exceptions))
    return lifecycle.describe(error) is not None


def endpoints() -> Any:
    """Return what stands for the kubelet APIs: every virtual node has one, and nobody calls it."""
    return SimpleNamespace(
        begin_work=lambda: None,
        begin_shutdown=lambda **_: None,
        serve=AsyncMock(return_value=SimpleNamespace(port=10250)),
        addresses=lambda _node: [{"type": "InternalIP", "address": "10.0.0.1"}],
    )


def leases(context: ClusterContext) -> dict[str, NodeLease]:
    """Return the Leases of the virtual nodes, which only one process at a time mirrors here."""
    return {name: NodeLease(context, name, Identity(name, is_exclusive=True)) for name in context.nodes}
