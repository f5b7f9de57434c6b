"""The clients of a process while its kubeconfigs change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from clusterset import following
from clusterset.config import Cluster
from clusterset.inventory.settings import ClusterProfiles
from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from multi_scheduler.config import Config
from multi_scheduler.process import connections
from tests.background import working
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
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
        await asyncio.sleep(1)
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


class _Profiles:
    """ClusterProfiles in an upper cluster in memory, with plugins that need some time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.server, self.plugin_seconds = Server(), 0.0
        self.server.create("namespaces", {"metadata": {"name": "fleet"}})
        providers = folder / "providers.json"
        providers.write_text('{"providers": [{"name": "p", "execConfig": {"command": "x"}}]}', "utf-8")
        write_token(folder / "a", "first")
        self.options: Any = SimpleNamespace(
            config=Config(
                clusters=[Cluster(name="a", kubeconfig=str(folder / "a"))],
                cluster_profiles=ClusterProfiles(
                    namespace="fleet",
                    providers_file=str(providers),
                    name_prefix="",
                    defaults={"nodeSelector": {"pool": "x"}},
                ),
            )
        )
        self._changes, self._names = 0, set[str]()

        def upper(_options: Any, _program: str) -> Any:
            return contextlib.nullcontext(MemoryClient(self.server))

        async def connection(cluster: Cluster) -> ConnectionConfig:
            await asyncio.sleep(self.plugin_seconds if cluster.name != "a" else 0)
            if "unusable" in Path(cluster.kubeconfig).read_text("utf-8"):
                raise ConfigError("the plugin failed")
            return ConnectionConfig("http://127.0.0.1")

        monkeypatch.setattr(connections, "_upper", upper)
        monkeypatch.setattr(following, "connection", connection)

    def add(self, name: str, *, works: bool = True) -> None:
        """Add or change a lower cluster."""
        self._changes += 1
        self.remove(name)
        self._names.add(name)
        host = f"https://{'works' if works else 'unusable'}{self._changes}"
        status = {"accessProviders": [{"name": "p", "cluster": {"server": host}}]}
        metadata = {"name": name, "namespace": "fleet"}
        self.server.create("clusterprofiles", {"metadata": metadata, "status": status})

    def remove(self, name: str) -> None:
        """Remove a lower cluster if there is one of that name."""
        if name in self._names:
            self._names.remove(name)
            self.server.delete("clusterprofiles", f"fleet/{name}")


@pytest.mark.looptime
async def test_clusters_of_profiles_are_added_and_removed_with_few_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One with a broken plugin is left out, all changes of a minute cause one restart, and a changed kubeconfig causes none."""
    profiles = _Profiles(monkeypatch, tmp_path)
    profiles.add("b")
    profiles.add("broken", works=False)
    starts: list[list[str]] = []
    again: list[str] = []

    async def work(config: Config, _upper: Client, lower: Mapping[str, Client]) -> None:
        starts.append(list(lower))
        for name, client in lower.items():
            client.on_reconnect(partial(again.append, name))
        assert [one.name for one in config.clusters] == list(lower)
        assert all(one.virtual_nodes()[0].node_selector == {"pool": "x"} for one in config.clusters[1:])
        await asyncio.Event().wait()

    async with working(connections.run(profiles.options, "program", work)) as task:
        await asyncio.sleep(20)
        assert starts == [["a", "b"]]
        profiles.add("c")
        await asyncio.sleep(20)
        profiles.add("d")
        assert len(starts) == 1
        await asyncio.sleep(40)
        assert starts[1:] == [["a", "b", "c", "d"]]
        assert again == []
        profiles.add("b")
        await asyncio.sleep(70)
        assert again == ["b"], "connected again, without a restart"
        assert len(starts) == 2
        profiles.add("c", works=False)
        profiles.remove("d")
        await asyncio.sleep(70)
        assert starts[2:] == [["a", "b", "c"]], "c keeps its last connection that worked"
        profiles.remove("c")
        profiles.add("broken")
        await asyncio.sleep(130)
        assert starts[3:] == [["a", "b", "broken", "c"], ["a", "b", "broken"]], "the removal of c waits"
        await asyncio.sleep(600)
        assert len(starts) == 5
        assert again == ["b"]
        assert not task.done()


@pytest.mark.looptime
@pytest.mark.parametrize("seconds", [1.0, 10.0])
async def test_a_cluster_that_changes_all_the_time_neither_blocks_others_nor_restarts_them_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
):
    """Its plugin ends before the next change, or only after it."""
    profiles = _Profiles(monkeypatch, tmp_path)
    profiles.plugin_seconds = seconds
    starts: list[list[str]] = []

    async def work(_config: Config, _upper: Client, lower: Mapping[str, Client]) -> None:
        starts.append(list(lower))
        await asyncio.Event().wait()

    async def change(times: int) -> None:
        for turn in range(times):
            if turn % 2 == 0:
                profiles.add("flaps")
            if turn % 60 == 59:
                profiles.remove("flaps")
            await asyncio.sleep(2)

    profiles.add("b")
    async with working(connections.run(profiles.options, "program", work)):
        await change(60)
        profiles.add("c")
        await change(60)
        assert "c" in starts[-1]
        before = len(starts)
        await change(1200)
        assert len(starts) - before <= 4
