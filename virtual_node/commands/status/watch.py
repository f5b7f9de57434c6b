"""``virtual-node status --watch``: prints a line for each virtual node that changes, like kubectl."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from virtual_node.commands.status import rows
from virtual_node.node_summary import Lag, summarize, summary_of

_COALESCE = 0.5
"""Seconds for which changes are collected, so that a rollout prints a few lines and not one per pod."""
_PASSING = frozenset({"lag", "heartbeatSeconds", "ageSeconds"})
"""Fields that change without an event; a change of these alone is not printed."""

Described = dict[str, Any]
Show = Callable[[Sequence[Described]], None]


@dataclass(eq=False, repr=False)
class StatusWatch:
    """Watches virtual nodes, their Leases and their pods, and prints changed nodes."""

    client: Client
    """Client of the upper cluster."""
    _: KW_ONLY
    selector: str
    """Label selector of the nodes."""
    names: Collection[str]
    """Only these nodes; empty: all."""
    before: Sequence[Described]
    """Data of the nodes that were printed already."""
    pods_seen: bool
    """Whether the caller may list pods."""
    leases_seen: bool
    """Whether the caller may list the nodes' Leases."""
    lag_of: Callable[[str], Awaitable[Lag | None]]
    """Returns the lag of the node with this name."""
    show: Show
    """Called with changed nodes; a deleted node has readiness ``Gone``."""

    def __post_init__(self) -> None:
        """Create the watch."""
        self._before = {each["name"]: each for each in self.before}
        self._dirty = asyncio.Event()
        self._nodes = Informer(self.client, resources.NODES, label_selector=self.selector)
        self._wake_on_changes(self._nodes)
        # A heartbeat alone prints nothing, so this informer has no handler.
        self._leases = (
            Informer(self.client, resources.LEASES, namespace=names.NODE_LEASES) if self.leases_seen else None
        )
        self._pods: dict[str, Informer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Print changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in filter(None, (self._nodes, self._leases)):
                group.create_task(informer.run())
                await informer.wait_synced()
            while True:
                self._dirty.clear()
                chosen = self._chosen()
                await self._follow_pods([node.name for node in chosen], group)
                await self._print_changes({node.name: self._describe(node) for node in chosen})
                await self._dirty.wait()
                await asyncio.sleep(_COALESCE)

    async def _follow_pods(self, nodes: Sequence[str], group: asyncio.TaskGroup) -> None:
        """Watch the pods of these nodes, and of no others; return when they are listed."""
        for name in self._pods.keys() - set(nodes):
            self._tasks.pop(name).cancel()
            del self._pods[name]
        for name in nodes if self.pods_seen else ():
            if name not in self._pods:
                pods = Informer(self.client, resources.PODS, field_selector=f"spec.nodeName={name}")
                self._wake_on_changes(pods)
                self._pods[name] = pods
                self._tasks[name] = group.create_task(pods.run())
        await asyncio.gather(*(pods.wait_synced() for pods in self._pods.values()))

    async def _print_changes(self, now: dict[str, Described]) -> None:
        before, self._before = self._before, now
        changed = [
            each for name, each in now.items() if _shown_values(each) != _shown_values(before.get(name, {}))
        ]
        # Only these are asked, and at the same time: a process that has ended answers only after seconds.
        lags = await asyncio.gather(*(self.lag_of(each["name"]) for each in changed))
        changed = [{**each, "lag": lag} for each, lag in zip(changed, lags, strict=True)]
        changed += [{**item, "ready": "Gone"} for name, item in before.items() if name not in now]
        if changed:
            self.show(changed)

    def _chosen(self) -> list[Object]:
        found = [node for node in self._nodes.store.list() if not self.names or node.name in self.names]
        return sorted(found, key=lambda node: node.name)

    def _describe(self, node: Object) -> Described:
        lease = self._leases.store.get(f"{names.NODE_LEASES}/{node.name}") if self._leases else None
        bound = self._pods[node.name].store.list() if self.pods_seen else None
        return rows.describe(
            node.to_dict(),
            None if bound is None else summarize(summary_of(pod.to_dict()) for pod in bound),
            None if lease is None else lease.to_dict(),
            now=datetime.now(UTC),
        )

    def _wake_on_changes(self, informer: Informer) -> None:
        informer.on_change(lambda _: self._dirty.set(), lambda _: self._dirty.set())


def _shown_values(described: Described) -> Described:
    return {key: value for key, value in described.items() if key not in _PASSING}
