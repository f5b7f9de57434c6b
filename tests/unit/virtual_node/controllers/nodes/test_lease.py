"""The Lease of a virtual node: renewed, and with a report of its process."""

from __future__ import annotations

import asyncio
import copy
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from tests.background import working
from virtual_node.controllers.node_lease import Identity, NodeLease
from virtual_node.examine.leases import Report

KEY = "virtual-node.io/faults"


class _Upper:
    """An API server with the Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {"metadata": {"name": "vn", "annotations": {"theirs": ""}}}

    async def get(self, _resource: Any, _name: str, **_more: Any) -> dict[str, Any]:
        return copy.deepcopy(self.lease)

    async def update(self, _resource: Any, lease: dict[str, Any]) -> dict[str, Any]:
        self.lease = copy.deepcopy(lease)
        return lease


@pytest.mark.looptime
async def test_publishes_and_removes_a_report():
    """With the next renewal, and its identity and host name always. Annotations of others stay, and the process knows the spec."""
    always = {
        "theirs": "",
        "virtual-node.io/process": "vn 0",
        "virtual-node.io/replica": socket.gethostname(),
    }
    upper = _Upper()
    found = Report({"": "unknown field"})
    registered = asyncio.Event()
    registered.set()
    node: Any = SimpleNamespace(registered=registered, uid="u")
    context: Any = SimpleNamespace(
        upper=upper, settings=SimpleNamespace(lease_duration=40.0), log=structlog.get_logger()
    )
    lease = NodeLease(context, "vn", Identity("vn", is_exclusive=True))
    assert lease.spec == {}
    async with working(lease.run(node, lambda: found)):
        await asyncio.sleep(1)
        assert upper.lease["metadata"]["annotations"] == always | {KEY: found.text()}
        assert lease.spec["renewTime"] == upper.lease["spec"]["renewTime"]
        found = Report()
        await asyncio.sleep(11)
        assert upper.lease["metadata"]["annotations"] == always
