"""Real clusters for tests. A test takes the first of these that is enough, because clusters cost time:

- ``sandbox``, ``upper``, ``namespace``: an upper cluster, a lower one with a real node, a simulated lower one, and a
  virtual-node process for both. All tests of a pytest process share them.
- ``alone``: an upper cluster without nodes and programs, which a module's fixture borrows.
- ``simulated``: an upper cluster and lower clusters with simulated nodes, without programs. A module's fixture borrows
  them, starts the programs of the test, and may change and break everything.
- ``Sandbox(…)``: clusters of its own, for other versions, flags or real nodes.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from hack.image import build
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.attaching import attached
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.commands.demo import configuration
from hack.sandbox.ports import free_ports
from tests.clusters.pool import Lend, Pool
from tests.clusters.virtual_nodes import REAL, SIMULATED
from tests.waiting import make_namespace, node_ready

_FOLDERS = tuple(Path(__file__).parents[1] / name for name in ("clusters", "field"))
_ORDER = ("", "alone", "simulated", "web_address")
"""Fixtures with the clusters of a test: own ones, one borrowed, several borrowed, those shared by all."""
_LONGEST = (
    # clusters of their own
    "test_documents", "test_helm", "test_helm_rejected", "test_version_skew", "test_layout", "test_join", "test_swarm",
    # borrowed ones
    "test_manifests", "test_webhook", "test_walk", "test_inspect", "test_resource_claims", "test_same_name",
    # the shared ones
    "test_no_disruption", "test_pods", "test_streams", "test_devices", "test_readiness", "test_earlier_release",
    "test_volumes", "test_like_a_real_node", "test_names", "test_start_page", "test_tenancy", "test_services",
)  # fmt: skip
"""Modules that take minutes. They start first among those with the same clusters, so that the last to end are short."""


def load(config: pytest.Config) -> None:
    """Register this module as a plugin, once for all folders with tests on real clusters.

    Fixtures that several conftests import would start clusters for each of them.
    """
    plugins = config.pluginmanager
    if not plugins.has_plugin(__name__):
        plugins.register(sys.modules[__name__], __name__)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run every test on the event loop of the shared clusters, and those with the same clusters one after the other.

    Files with clusters of their own come first, the longest of them at the start.
    """
    ours = [item for item in items if not set(_FOLDERS).isdisjoint(item.path.parents)]
    for item in ours:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
    known = set(ours)
    places = [number for number, item in enumerate(items) if item in known]
    clusters: dict[Path, int] = {}
    for item in ours:
        clusters[item.path] = max(clusters.get(item.path, 0), _clusters(item))

    def order(item: pytest.Item) -> tuple[int, int]:
        stem = item.path.stem
        return clusters[item.path], _LONGEST.index(stem) if stem in _LONGEST else len(_LONGEST)

    for place, item in zip(places, sorted(ours, key=order), strict=True):
        items[place] = item


def _clusters(item: pytest.Item) -> int:
    """Return the place of a test's clusters in the order of the session."""
    fixtures = getattr(item, "fixturenames", ())
    return max((_ORDER.index(name) for name in _ORDER if name in fixtures), default=0)


@pytest.fixture(scope="session")
def web_address() -> str:
    """Address of the page of the session's virtual-node process."""
    return f"{LOOPBACK}:{free_ports(1)[0]}"


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archive with the image of the current code, built once for all workers."""
    if os.geteuid() != 0:
        pytest.skip("unpacking the image's files needs root")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / "virtual-node-image.tar"
    with (folder / "virtual-node-image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(".part")
            build.build(unfinished)
            unfinished.rename(path)
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pool() -> AsyncIterator[Pool]:
    """The simulated clusters of this pytest process, which start with the first loan."""
    made = Pool()
    yield made
    await made.close()


@pytest.fixture(scope="session")
def simulated(pool: Pool) -> Lend:
    """What lends an upper cluster and simulated lower clusters to a module."""
    return pool.lend


@pytest.fixture(scope="session")
def alone(pool: Pool) -> Lend:
    """What lends one cluster without nodes to a module."""
    return partial(pool.lend, lower=0)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sandbox(web_address: str, pool: Pool) -> AsyncIterator[Sandbox]:
    """Clusters and a virtual-node process, shared by the tests of a session."""
    if os.geteuid() != 0:
        pytest.skip("these tests run containers on a real node, which needs root")
    await pool.close()  # modules that borrow run before; idle API servers would take CPU time
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
