"""Simulated clusters that modules borrow one after the other, because the start of each takes 3 s of CPU time."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from hack.sandbox import Cluster, Sandbox, SandboxError
from hack.sandbox.nodes.kwok import add_nodes, kwok_node
from hack.sandbox.process import Process
from tests.clusters.contents import Contents, contents, restore

Lend = Callable[..., AbstractAsyncContextManager[Sandbox]]
"""``Pool.lend``."""
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_WATCH_SECONDS = 0.5
"""Time in which kwok sees a deleted Lease; it retries a renewal that fails only after 10 s."""
_LEASE_LOOKS = 20
"""Number of times to look for the Lease of a new node, ``_WATCH_SECONDS`` apart."""


class Pool:
    """An upper cluster and lower clusters with simulated nodes, for one borrower at a time."""

    def __init__(self) -> None:
        """Start nothing: the first borrower does."""
        self._sandbox: Sandbox | None = None
        self._before: dict[str, tuple[Contents, Process]] = {}
        """Cluster → its objects and its scheduler at the start."""
        self._used: list[Cluster] = []
        """What the last borrower had."""
        self._loans = 0

    @contextlib.asynccontextmanager
    async def lend(self, *, lower: int = 2, kwok_nodes: int = 1) -> AsyncIterator[Sandbox]:
        """Yield clusters without objects of other tests, and at the end stop the programs that were started in them.

        The borrower may change and stop everything. What it leaves is deleted before the next loan.

        Args:
            lower: number of lower clusters.
            kwok_nodes: simulated nodes of each lower cluster.
        """
        whole = await self._clean(lower, kwok_nodes)
        self._loans += 1
        lent = copy.copy(whole)
        lent.clusters = self._used = whole.clusters[: 1 + lower]
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

    async def _clean(self, lower: int, kwok_nodes: int) -> Sandbox:
        """Return at least so many clusters, as after their start; start new ones if that is not possible."""
        if self._sandbox is not None:
            try:
                await asyncio.gather(*map(self._restore, self._used))
            except SandboxError as error:
                logging.getLogger(__name__).warning("new clusters are started: %s", error)
                await self.close()
        if self._sandbox is None:
            self._sandbox = await Sandbox(lower=lower, kwok_nodes=kwok_nodes).__aenter__()
            self._before = {}
        while len(self._sandbox.lower) < lower:
            await self._sandbox.add_lower(kwok_nodes=kwok_nodes)
        for cluster in self._sandbox.clusters:
            if cluster.name not in self._before:
                self._before[cluster.name] = await contents(cluster), cluster.scheduler
            await self._renew_nodes(cluster, 0 if cluster is self._sandbox.upper else kwok_nodes)
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

    async def _renew_nodes(self, cluster: Cluster, count: int) -> None:
        """Delete the nodes that differ from those of a new cluster, and create the missing ones."""
        names = [f"{cluster.name}-node-{number}" for number in range(count)]
        wanted = {name: _essence(kwok_node(name)) for name in names}
        listed = await cluster.api.read("/api/v1/nodes")
        there = {node["metadata"]["name"]: _essence(node) for node in listed["items"]}
        changed = [name for name, found in there.items() if found != wanted.get(name)]
        for name in changed:
            await cluster.api.delete(f"/api/v1/nodes/{name}")
            # The garbage collector would delete the Lease when the new node is already Ready. Without a Lease, kwok
            # ignores new pods, and does not return to them.
            with contextlib.suppress(SandboxError):
                await cluster.api.delete(f"{_LEASES}/{name}")
        if changed:
            await asyncio.sleep(_WATCH_SECONDS)
        missing = [name for name in wanted if there.get(name) != wanted[name]]
        if missing:
            await add_nodes(cluster, cluster.nodes[0], missing)
            await self._have_leases(cluster, missing)

    async def _have_leases(self, cluster: Cluster, names: Sequence[str]) -> None:
        """Wait for the Leases of new nodes; restart a kwok that has missed the deletion of the earlier ones.

        It would renew those in vain for ever, and the nodes would become not Ready during a test.
        """
        kwok = cluster.nodes[0]
        for is_last in (False, True):
            for _ in range(_LEASE_LOOKS):
                leases = (await cluster.api.read(_LEASES))["items"]
                if {*names} <= {lease["metadata"]["name"] for lease in leases}:
                    return
                await asyncio.sleep(_WATCH_SECONDS)
            if not is_last:
                await kwok.kill()
                await kwok.start()
        raise SandboxError(f"{cluster.name}: kwok renews no Lease of {', '.join(names)} (log: {kwok.log})")


def _essence(node: dict[str, Any]) -> tuple[object, ...]:
    """Return what a borrower may have changed of a node."""
    spec = node["spec"]
    labels = {
        key: value
        for key, value in (node["metadata"].get("labels") or {}).items()
        if not key.startswith("beta.kubernetes.io/")
    }
    return (
        labels,
        spec.get("taints") or [],
        bool(spec.get("unschedulable")),
        node["status"].get("allocatable"),
    )
