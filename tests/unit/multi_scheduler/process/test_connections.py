"""The clients of a process while its kubeconfigs change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from clusterset.config import Cluster
from clusterset.inventory.settings import ClusterProfiles
from controller_runtime.client.client import Client
from multi_scheduler.config import Config
from multi_scheduler.process import connections
from multi_scheduler.process.profile_clusters import ProfileClusters
from tests.background import working
from tests.kubeconfigs import write_token


class _Program:
    """Sends no request, counts its starts, and notes the clusters that are connected again."""

    began = 0

    def __init__(self) -> None:
        self.reconnected: list[str] = []

    async def work(self, config: Config, upper: Client, lower: Mapping[str, Client]) -> None:
        self.began += 1
        assert [upper.cluster, *lower] == ["upper", "a", "b"]
        for name, client in lower.items():
            client.on_reconnect(partial(self.reconnected.append, name))
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[_Program]:
    clusters = [Cluster(name=name, kubeconfig=str(folder / name)) for name in ("a", "b")]
    for name in ("upper", "a", "b"):
        write_token(folder / name, "first")
    options: Any = SimpleNamespace(
        config=Config(clusters=clusters), kubeconfig=str(folder / "upper"), master=""
    )
    program = _Program()
    async with working(connections.run(options, "program", program.work)) as task:
        await asyncio.sleep(0.1)
        yield program
        assert not task.done()


@pytest.mark.looptime
async def test_connects_again_only_to_the_cluster_with_a_rotated_kubeconfig(tmp_path: Path):
    """Once. The work and the other clusters continue."""
    async with _running(tmp_path) as program:
        write_token((tmp_path / "a"), "second-one")
        await asyncio.sleep(10)
        assert program.reconnected == ["a"]
        assert program.began == 1


@pytest.mark.looptime
async def test_invalid_kubeconfig_keeps_the_running_clients(tmp_path: Path):
    """The error is logged once, and the file is applied when it is valid. Other files are applied at once."""
    async with _running(tmp_path) as program:
        with capture_logs() as logs:
            (tmp_path / "b").write_text("clusters: [", encoding="utf-8")
            write_token((tmp_path / "a"), "second-one")
            await asyncio.sleep(10)
            assert program.reconnected == ["a"]
            assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1
        write_token((tmp_path / "b"), "the-third")
        await asyncio.sleep(10)
        assert program.reconnected == ["a", "b"]
        assert program.began == 1


class _Inventory:
    """Kubeconfigs of ClusterProfiles."""

    has_synced = True

    def __init__(self, folder: Path) -> None:
        self.folder, self.paths = folder, dict[str, str]()

    def kubeconfigs(self, taken: Collection[str]) -> Mapping[str, str]:
        assert taken == {"a"}
        return self.paths

    def add(self, name: str, *, works: bool = True) -> None:
        """Add or change a lower cluster."""
        path = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        write_token(path, "token") if works else path.write_text("{}", encoding="utf-8")
        self.paths = {**self.paths, name: str(path)}


@pytest.mark.looptime
async def test_clusters_of_profiles_are_added_and_removed_with_few_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One with a broken plugin is left out, all changes of a minute cause one restart, and a changed kubeconfig causes none."""
    (tmp_path / "profiles").mkdir()
    inventory = _Inventory(tmp_path / "profiles")
    found: Any = inventory
    config = Config(
        clusters=[Cluster(name="a", kubeconfig=str(tmp_path / "a"))],
        cluster_profiles=ClusterProfiles(
            namespace="fleet", providers_file="unused", defaults={"nodeSelector": {"pool": "x"}}
        ),
    )

    @contextlib.asynccontextmanager
    async def following(_options: Any, program: str) -> AsyncIterator[ProfileClusters]:
        clusters = ProfileClusters(config, found, program)
        yield clusters
        await clusters.close()

    monkeypatch.setattr(connections, "following", following)
    for name in ("upper", "a"):
        write_token(tmp_path / name, "first")
    inventory.add("b")
    inventory.add("broken", works=False)
    starts: list[list[str]] = []
    again: list[str] = []

    async def work(config: Config, _upper: Client, lower: Mapping[str, Client]) -> None:
        starts.append(list(lower))
        for name, client in lower.items():
            client.on_reconnect(partial(again.append, name))
        assert [one.name for one in config.clusters] == list(lower)
        assert all(one.virtual_nodes()[0].node_selector == {"pool": "x"} for one in config.clusters[1:])
        await asyncio.Event().wait()

    options: Any = SimpleNamespace(config=config, kubeconfig=str(tmp_path / "upper"), master="")
    async with working(connections.run(options, "program", work)) as task:
        await asyncio.sleep(20)
        assert starts == [["a", "b"]]
        inventory.add("c")
        await asyncio.sleep(20)
        inventory.add("d")
        assert len(starts) == 1
        await asyncio.sleep(40)
        assert starts[1:] == [["a", "b", "c", "d"]]
        assert again == []
        inventory.add("b")
        await asyncio.sleep(70)
        assert again == ["b"], "connected again, without a restart"
        assert len(starts) == 2
        inventory.add("c", works=False)
        inventory.paths.pop("d")
        await asyncio.sleep(70)
        assert starts[2:] == [["a", "b"]]
        await asyncio.sleep(600)
        assert len(starts) == 3
        assert not task.done()


@pytest.mark.looptime
@pytest.mark.parametrize("seconds", [1.0, 10.0])
async def test_a_cluster_that_changes_all_the_time_neither_blocks_others_nor_restarts_them_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
):
    """Its plugin ends before the next change, or only after it."""
    config = Config(
        clusters=[Cluster(name="a", kubeconfig="")],
        cluster_profiles=ClusterProfiles(namespace="fleet", providers_file="unused"),
    )
    inventory: Any = _Inventory(tmp_path)
    clusters = ProfileClusters(config, inventory, "program")

    async def trouble(path: str) -> str:
        await asyncio.sleep(seconds if Path(path).name.startswith("flaps") else 0)
        return ""

    monkeypatch.setattr("multi_scheduler.process.profile_clusters.kubeconfig.trouble", trouble)
    restarts = 0

    async def polled(times: int) -> None:
        nonlocal restarts
        for turn in range(times):
            if turn % 2 == 0:
                inventory.add("flaps")
            if turn % 60 == 59:
                inventory.paths.pop("flaps", None)
            if clusters.is_changed():
                clusters.config()
                restarts += 1
            await asyncio.sleep(2)

    inventory.add("b")
    await clusters.settle(10)
    clusters.config()
    await polled(60)
    before = restarts
    inventory.add("c")
    await polled(60)
    assert clusters.is_profile("c")
    assert restarts > before
    restarts = 0
    await polled(1200)
    assert restarts <= 4
    await clusters.close()
