"""The clients of a process while its kubeconfigs change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from clusterset import following
from clusterset.config import Cluster, ClusterProfiles
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from multi_scheduler import shared
from multi_scheduler.config import Config
from multi_scheduler.shared import LowerClients
from tests.background import working
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from tests.kubeconfigs import write_token


class _Program:
    """Sends no request, and notes the clusters that it may use, and those that are connected again."""

    def __init__(self) -> None:
        self.starts = 0
        self.clusters: dict[str, Cluster] = {}
        self.reconnected: list[str] = []
        self.changes: list[str] = []

    async def work(self, upper: Client, lower: LowerClients) -> None:
        """Follow the lower clusters."""
        self.starts += 1
        assert upper.cluster == "upper"
        lower.inform(self)
        await asyncio.Event().wait()

    def add(self, cluster: Cluster, client: Client) -> None:
        """Note a lower cluster."""
        assert client.cluster == cluster.name
        self.clusters[cluster.name] = cluster
        self.changes.append(f"+{cluster.name}")
        client.on_reconnect(partial(self.reconnected.append, cluster.name))

    async def remove(self, cluster: str) -> None:
        """Note that a lower cluster was removed."""
        del self.clusters[cluster]
        self.changes.append(f"-{cluster}")


@contextlib.asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[_Program]:
    clusters = [Cluster(name=name, kubeconfig=str(folder / name)) for name in ("a", "b")]
    for name in ("upper", "a", "b"):
        write_token(folder / name, "first")
    options: Any = SimpleNamespace(
        config=Config(clusters=clusters), kubeconfig=str(folder / "upper"), master=""
    )
    program = _Program()
    async with working(shared.run(options, "program", program.work)) as task:
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
        assert program.starts == 1


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
        assert program.starts == 1


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

        monkeypatch.setattr(shared, "_upper", upper)
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
async def test_clusters_of_profiles_are_added_and_removed_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One with a broken plugin is left out, and keeps its last connection that worked. Others do not notice a change."""
    profiles = _Profiles(monkeypatch, tmp_path)
    profiles.add("b")
    profiles.add("broken", works=False)
    program = _Program()
    async with working(shared.run(profiles.options, "program", program.work)) as task:
        await asyncio.sleep(20)
        assert program.changes == ["+a", "+b"]
        assert program.clusters["b"].virtual_nodes()[0].node_selector == {"pool": "x"}
        profiles.add("c")
        profiles.add("d")
        await asyncio.sleep(5)
        assert program.changes[2:] == ["+c", "+d"]
        profiles.add("b")
        await asyncio.sleep(70)
        assert program.reconnected == ["b"]
        profiles.add("c", works=False)
        profiles.remove("d")
        await asyncio.sleep(70)
        assert program.changes[4:] == ["-d"], "c keeps its last connection that worked"
        profiles.remove("c")
        profiles.add("broken")
        await asyncio.sleep(130)
        assert sorted(program.changes[5:]) == ["+broken", "-c"]
        assert (program.starts, program.reconnected) == (1, ["b"])
        assert not task.done()


@pytest.mark.looptime
@pytest.mark.parametrize("seconds", [1.0, 10.0])
async def test_a_cluster_that_changes_all_the_time_is_followed_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
):
    """Its plugin ends before the next change, or only after it. Other clusters are added meanwhile."""
    profiles = _Profiles(monkeypatch, tmp_path)
    profiles.plugin_seconds = seconds
    program = _Program()

    async def change(times: int) -> None:
        for turn in range(times):
            if turn % 2 == 0:
                profiles.add("flaps")
            if turn % 60 == 59:
                profiles.remove("flaps")
            await asyncio.sleep(2)

    profiles.add("b")
    async with working(shared.run(profiles.options, "program", program.work)):
        await change(60)
        profiles.add("c")
        await change(60)
        assert "c" in program.clusters
        before = len(program.changes)
        await change(400)
        assert len(program.changes) - before <= 20
        assert [one for one in program.changes if "flaps" not in one] == ["+a", "+b", "+c"]
