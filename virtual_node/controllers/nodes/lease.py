"""The Lease that shows the upper cluster that a virtual node's process is alive.

The Lease is renewed every quarter of its duration from the cached copy, as a kubelet does, so a renewal is
one request without a read. The lower cluster's health does not affect it, because the Ready condition shows
that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound
from controller_runtime.leaderelection import record
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.nodes.controller import NodeController
from virtual_node.controllers.nodes.hold import NAMESPACE, NodeHold
from virtual_node.health.reports import Report

_RETRY = 2.0


class HeldElsewhereError(ConfigError):
    """Another process has taken the Lease and mirrors the node."""


@dataclass(eq=False, repr=False)
class NodeLeaseController:
    """Renews one node's Lease."""

    context: ClusterContext
    name: str
    """Name of the virtual node and of its Lease."""
    node: NodeController
    """Registers the node; the Lease is created after that."""
    hold: NodeHold
    report: Callable[[], Report] = Report
    """Returns problems that only this process knows, published with the next renewal."""
    _lease: dict[str, Any] | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    """The Lease's spec as last written; empty: never."""

    async def run(self) -> None:
        """Renew until cancelled.

        Raises:
            HeldElsewhereError: another process has taken the Lease.
        """
        await self.node.registered.wait()
        interval = self.context.settings.lease_duration / 4
        while True:
            try:
                await self._renew()
            except HeldElsewhereError:
                raise
            except (ApiError, ConfigError) as error:
                if isinstance(error, (Conflict, NotFound)) and self._lease is not None:
                    self._lease = None  # changed by another client, so read it again at once
                    await asyncio.sleep(0.1)
                    continue
                self.context.log.warning("lease not renewed", node=self.name, error=str(error))
                await asyncio.sleep(_RETRY)
                continue
            self.spec = dict((self._lease or {}).get("spec") or {})
            await asyncio.sleep(interval)

    async def _renew(self) -> None:
        if self._lease is None:
            self._lease = await self._get_or_create()
            if not self.hold.is_ours(self._lease):
                holder = record.holder_of(self._lease)
                raise HeldElsewhereError(
                    f"node {self.name}: another process, {holder}, has taken its Lease over"
                )
        lease = self._held(self._lease)
        annotations = dict(lease["metadata"].get("annotations") or {})
        annotations.pop(names.ANNOTATION_FAULTS, None)
        annotations[names.ANNOTATION_REPLICA] = socket.gethostname()
        if text := self.report().text():
            annotations[names.ANNOTATION_FAULTS] = text
        lease["metadata"]["annotations"] = annotations
        self._lease = await self.context.upper.update(resources.LEASES, lease)

    async def _get_or_create(self) -> dict[str, Any]:
        upper = self.context.upper
        try:
            return await upper.get(resources.LEASES, self.name, namespace=NAMESPACE)
        except NotFound:
            pass
        body = self._held(record.new(NAMESPACE, self.name))
        try:
            return await upper.create(resources.LEASES, body, namespace=NAMESPACE)
        except AlreadyExists:
            return await upper.get(resources.LEASES, self.name, namespace=NAMESPACE)

    def _held(self, lease: dict[str, Any]) -> dict[str, Any]:
        # Garbage collection deletes the Lease with its Node. A Node that was registered again has a new uid.
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.node.uid}
        return self.hold.held({**lease, "metadata": {**lease["metadata"], "ownerReferences": [owner]}})
