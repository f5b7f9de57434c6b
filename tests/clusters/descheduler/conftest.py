"""One sandbox for the descheduler's tests: an upper cluster, and two simulated lower clusters, one nearly full."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.nodes.kwok import kwok_node
from tests.accounts import install_account
from tests.clusters.descheduler.setup import LARGE, NAS, SMALL
from tests.clusters.pods.test_volumes import STATIC
from tests.clusters.pool import Lend
from tests.waiting import node_ready, own_namespace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """The clusters, and one virtual-node process for both."""
    async with simulated() as running:
        small = running.lower[0]
        await small.kubectl("delete", "node", "--all")
        await small.apply(kwok_node("small-0", cpu="2"), kwok_node("small-1", cpu="2"))
        for node in ("small-0", "small-1"):
            await node_ready(small, node)
        file = running.directory / "virtual-node.yaml"
        document = configuration(running, adopt=True)
        for cluster in document["clusters"]:
            cluster["volumes"] = {"shared": [{"name": "nas", "drivers": [NAS]}], "published": [STATIC]}
        file.write_text(json.dumps(document), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        for node in (SMALL, LARGE):
            await node_ready(running.upper, node)
        await install_account(running, "descheduler", virtualNodes=[SMALL, LARGE])
        yield running


@pytest.fixture
def upper(sandbox: Sandbox) -> Cluster:
    """The cluster of the users."""
    return sandbox.upper


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(sandbox: Sandbox, upper: Cluster) -> AsyncIterator[str]:
    """A namespace for the test; the descheduler keeps its records there, too."""
    async with own_namespace(upper, *sandbox.lower) as name:
        yield name
