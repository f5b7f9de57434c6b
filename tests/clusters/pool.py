"""Simulated clusters that modules borrow one after the other, because a start of three clusters takes 7 s of CPU time."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from hack.sandbox import Cluster, Sandbox, SandboxError
from hack.sandbox.nodes.kwok import add_nodes, kwok_node
from hack.sandbox.process import Process
from tests.clusters.contents import Contents, contents, restore

_LOWER = 2
Lend = Callable[..., AbstractAsyncContextManager[Sandbox]]
"""``Pool.lend``."""


class Pool:
    """An upper cluster and two lower clusters with simulated nodes, for one borrower at a time."""

    def __init__(self) -> None:
        """Start nothing: the first borrower does."""
        self._sandbox: Sandbox | None = None
        self._before: dict[str, tuple[Contents, Process]] = {}
        """Cluster → its objects and its scheduler at the start."""
        self._loans = 0

    @contextlib.asynccontextmanager
    async def lend(self, *, lower: int = _LOWER, kwok_nodes: int = 1) -> AsyncIterator[Sandbox]:
        """Yield clusters without objects of other tests, and at the end stop the programs that were started in them.

        The borrower may change and stop everything. What it leaves is deleted before the next loan.

        Args:
            lower: number of lower clusters, at most two.
            kwok_nodes: simulated nodes of each lower cluster.
        """
        whole = await self._clean(kwok_nodes)
        self._loans += 1
        lent = copy.copy(whole)
        lent.clusters = whole.clusters[: 1 + lower]
        lent.processes = []
        lent.directory = whole.directory / f"loan-{self._loans}"
        lent.directory.mkdir()
        try:
            yield lent
        finally:
            await asyncio.gather(*(process.stop() for process in lent.processes))

    async def close(self) -> None:
        """Stop the clusters; the next borrower starts new ones."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    async def _clean(self, kwok_nodes: int) -> Sandbox:
        """Return the clusters as after their start; start new ones if that is not possible."""
        if self._sandbox is not None:
            try:
                await asyncio.gather(*map(self._restore, self._sandbox.clusters))
                await self._renew_nodes(self._sandbox, kwok_nodes)
            except SandboxError as error:
                logging.getLogger(__name__).warning("new clusters are started: %s", error)
                await self.close()
            else:
                return self._sandbox
        self._sandbox = await Sandbox(lower=_LOWER, kwok_nodes=kwok_nodes).__aenter__()
        self._before = {
            cluster.name: (await contents(cluster), cluster.scheduler) for cluster in self._sandbox.clusters
        }
        return self._sandbox

    async def _restore(self, cluster: Cluster) -> None:
        """Restart what a borrower has stopped, and delete what it has created."""
        before, scheduler = self._before[cluster.name]
        if not cluster.apiserver.running:
            await cluster.restore()
        if cluster.scheduler is not scheduler:
            await cluster.scheduler.kill()
            cluster.scheduler = scheduler
        for process in cluster.processes:
            if not process.running:
                await process.start()
        await restore(cluster, before)

    async def _renew_nodes(self, sandbox: Sandbox, count: int) -> None:
        """Delete the nodes that differ from those of a new cluster, and create the missing ones."""
        for cluster in sandbox.clusters:
            wanted = {}
            if cluster is not sandbox.upper:
                names = [f"{cluster.name}-node-{number}" for number in range(count)]
                wanted = {name: _essence(kwok_node(name)) for name in names}
            there = {
                node["metadata"]["name"]: _essence(node)
                for node in (await cluster.api.read("/api/v1/nodes"))["items"]
            }
            for name, found in there.items():
                if found != wanted.get(name):
                    await cluster.kubectl("delete", "node", name)
            missing = [name for name in wanted if there.get(name) != wanted[name]]
            if missing:
                await add_nodes(cluster, cluster.nodes[0], missing)


def _essence(node: dict[str, Any]) -> tuple[object, ...]:
    """Return what a borrower may have changed of a node."""
    spec = node["spec"]
    labels = {
        key: value
        for key, value in node["metadata"]["labels"].items()
        if not key.startswith("beta.kubernetes.io/")
    }
    return (
        labels,
        spec.get("taints") or [],
        bool(spec.get("unschedulable")),
        node["status"]["allocatable"],
    )
