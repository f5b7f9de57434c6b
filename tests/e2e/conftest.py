"""One sandbox for most end-to-end tests: an upper cluster, a lower one with a real node, and a simulated lower one."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.attaching import attached
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.commands.demo import configuration
from hack.sandbox.ports import free_ports
from tests import workloads
from tests.waiting import PATIENCE, becomes, create, eventually, get, make_namespace, node_ready, ready

__all__ = [
    "PATIENCE", "REAL", "SIMULATED", "becomes", "create", "eventually", "get", "make_namespace", "node_ready",
    "pod", "ready",
]  # fmt: skip
REAL, SIMULATED = "vn-lower1", "vn-lower2"
_LONGEST = (
    "test_documents",
    "test_helm",
    "test_helm_rejected",
    "test_version_skew",
    "test_inspect",
    "test_join",
)
"""Modules that take minutes; they start first, so that none of them runs alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run every test on the event loop of the shared sandbox.

    Files with clusters of their own come first, the longest of them at the start, so that the shared clusters do not run
    beside them.
    """
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents and isinstance(item, pytest.Function)]
    for item in ours:
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
    shared = {item.path for item in ours if "sandbox" in item.fixturenames}
    places = [number for number, item in enumerate(items) if item in set(ours)]

    def order(item: pytest.Item) -> tuple[bool, int]:
        stem = item.path.stem
        return item.path in shared, _LONGEST.index(stem) if stem in _LONGEST else len(_LONGEST)

    for place, item in zip(places, sorted(ours, key=order), strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def web_address() -> str:
    """Address of the page of the session's virtual-node process."""
    return f"{LOOPBACK}:{free_ports(1)[0]}"


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def sandbox(web_address: str) -> AsyncIterator[Sandbox]:
    """Clusters and a virtual-node process, shared by the tests of this folder."""
    if os.geteuid() != 0:
        pytest.skip("the end-to-end tests run containers on a real node, which needs root")
    kept = os.environ.get("VIRTUAL_NODE_SANDBOX")  # make e2e
    clusters = attached(Path(kept)) if kept else Sandbox(lower=2, real_node=True, kwok_nodes=2)
    async with clusters as running:
        # An earlier run in kept clusters has left its nodes, with the ports of its kubelet APIs.
        await running.upper.kubectl("delete", "nodes", "-l", "type=virtual-kubelet", "--ignore-not-found")
        file = running.directory / "virtual-node.yaml"
        config = configuration(running, adopt=True)
        for cluster in config["clusters"]:
            cluster["resourceClaims"] = {"enabled": True}
            cluster["volumes"] = {"published": ["local-static"]}
            cluster["policy"] = {"namespaces": {"trusted-*": {"preset": "privileged"}}}
        file.write_text(json.dumps(config), encoding="utf-8")
        await running.start_virtual_node(
            "--config", str(file), f"--web-addr={web_address}", "--log-level=debug"
        )
        for node in (REAL, SIMULATED):
            await node_ready(running.upper, node)
        yield running


@pytest.fixture
def upper(sandbox: Sandbox) -> Cluster:
    """The cluster of the users."""
    return sandbox.upper


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(sandbox: Sandbox) -> AsyncIterator[str]:
    """A namespace for the test, deleted afterwards."""
    name = f"t-{secrets.token_hex(4)}"
    await make_namespace(sandbox.upper, name)
    yield name
    await sandbox.upper.api.delete(f"/api/v1/namespaces/{name}")


def pod(name: str, script: str, *, node: str = REAL, **spec: Any) -> dict[str, Any]:
    """Return a busybox pod on a virtual node that runs a shell script."""
    container = {"command": ["sh", "-c", script], **spec.pop("container", {})}
    selected = {"nodeSelector": {"kubernetes.io/hostname": node}}
    return workloads.pod(name, container, **{**selected, **spec})
