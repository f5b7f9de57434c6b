"""The kubeconfig files of ClusterProfiles while these, their file of providers, or the permission to read them change."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from clusterset.config import ClusterProfiles
from clusterset.profile_clusters import Inventory, followed
from controller_runtime.errors import Forbidden, NotFound
from tests.background import working
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server

pytestmark = pytest.mark.looptime
PLURAL = "clusterprofiles"


def _profile(name: str, server: str = "https://a") -> dict[str, Any]:
    return {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {"name": name, "namespace": "fleet", "labels": {"use": "yes"}},
        "status": {"accessProviders": [{"name": "p", "cluster": {"server": server}}]},
    }


@pytest.fixture
def server() -> Server:
    """An upper cluster with one ClusterProfile that the selector matches, and one that it does not."""
    upper = Server()
    upper.create("namespaces", {"metadata": {"name": "fleet"}})
    upper.create(PLURAL, _profile("a"))
    other = _profile("other")
    other["metadata"]["labels"] = {}
    upper.create(PLURAL, other)
    return upper


@pytest.fixture
def settings(tmp_path: Path) -> ClusterProfiles:
    """The setting, with a file of providers."""
    file = tmp_path / "providers.json"
    _write(file, "/bin/one")
    return ClusterProfiles(namespace="fleet", label_selector="use=yes", providers_file=str(file))


def _write(file: Path, command: str) -> None:
    file.write_text(json.dumps({"providers": [{"name": "p", "execConfig": {"command": command}}]}), "utf-8")


async def test_files_follow_profiles_and_providers(server: Server, settings: ClusterProfiles, tmp_path: Path):
    """Their paths change with their content, former ones are deleted, and nothing changes without a reason."""
    client: Any = MemoryClient(server)
    (folder := tmp_path / "made").mkdir()
    inventory = Inventory(client, settings, directory=folder)
    assert inventory.kubeconfigs(()) == {}
    async with working(inventory.run()):
        await asyncio.sleep(1)
        first = inventory.kubeconfigs(())
        assert list(first) == ["profile-a"]
        assert inventory.kubeconfigs(()) is first
        server.create(PLURAL, _profile("b"))
        await asyncio.sleep(1)
        both = inventory.kubeconfigs(())
        assert (list(both), both["profile-a"]) == (["profile-a", "profile-b"], first["profile-a"])
        await asyncio.sleep(10)
        _write(Path(settings.providers_file), "/bin/second")
        changed = inventory.kubeconfigs(())
        assert not set(changed.values()) & set(both.values())
        assert sorted(map(str, folder.iterdir())) == sorted(changed.values())
        with capture_logs() as logs:
            Path(settings.providers_file).write_text("{}", encoding="utf-8")
            assert inventory.kubeconfigs(()) is changed
        assert [entry["event"] for entry in logs] == ["providers not applied"]
        server.delete(PLURAL, "fleet/a")
        await asyncio.sleep(1)
        assert list(inventory.kubeconfigs(())) == ["profile-b"]


@pytest.mark.parametrize("error", [Forbidden("no right", code=403), NotFound("no CRD", code=404)])
async def test_clusters_stay_while_profiles_cannot_be_read(
    server: Server, settings: ClusterProfiles, tmp_path: Path, error: Exception
):
    """Without the right or the definition, the last list stays; an empty list is applied."""
    client: Any = MemoryClient(server)
    inventory = Inventory(client, settings, directory=tmp_path)
    async with working(inventory.run()):
        await asyncio.sleep(1)
        before = inventory.kubeconfigs(())
        client.fault = lambda _verb, plural, _key: error if plural == PLURAL else None
        await asyncio.sleep(3600)
        assert inventory.kubeconfigs(()) is before
        server.delete(PLURAL, "fleet/a")
        client.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(3600)
        assert inventory.kubeconfigs(()) == {}


async def test_a_refused_profile_is_reported_once(server: Server, settings: ClusterProfiles):
    """It is reported again when the reason changes. The directory of kubeconfigs is private and removed at the end."""
    reported: list[tuple[str, str]] = []
    client: Any = MemoryClient(server)
    async with followed(
        client, settings, on_refused=lambda one, why: reported.append((one.name, why))
    ) as found:
        assert found is not None
        await asyncio.sleep(1)
        folder = Path(found.kubeconfigs(())["profile-a"]).parent
        assert folder.stat().st_mode & 0o77 == 0
        for _ in range(2):
            assert found.kubeconfigs({"profile-a"}) == {}
        server.create(PLURAL, _profile("b", "http://plain"))
        await asyncio.sleep(1)
        assert found.kubeconfigs({"profile-a"}) == {}
        assert [name for name, _ in reported] == ["a", "b"]
        assert set(found.refused) == {"fleet/a", "fleet/b"}
    assert not folder.exists()


async def test_a_directory_that_cannot_be_written_keeps_the_clusters(
    server: Server, settings: ClusterProfiles, tmp_path: Path
):
    """It is in memory and has a size, so many large ClusterProfiles can fill it. They must not end the process."""
    (folder := tmp_path / "made").mkdir()
    client: Any = MemoryClient(server)
    inventory = Inventory(client, settings, directory=folder)
    async with working(inventory.run()):
        await asyncio.sleep(1)
        before = inventory.kubeconfigs(())
        server.create(PLURAL, _profile("b"))
        await asyncio.sleep(1)
        (folder / "part").mkdir()  # in place of a full disk
        assert inventory.kubeconfigs(()) is before
        (folder / "part").rmdir()
        assert list(inventory.kubeconfigs(())) == ["profile-a", "profile-b"]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_profile_that_changes_all_the_time_changes_its_cluster_less_and_less_often(
    server: Server, settings: ClusterProfiles, tmp_path: Path, *, is_deleted: bool
):
    """Each change restarts the cluster. The last change is applied, and other clusters are not delayed."""
    client: Any = MemoryClient(server)
    inventory = Inventory(client, settings, directory=tmp_path)
    async with working(inventory.run()):
        await asyncio.sleep(1)
        paths = [inventory.kubeconfigs(()).get("profile-a")]
        for number in range(600):
            server.delete(PLURAL, "fleet/a")
            if is_deleted and number % 2:
                await asyncio.sleep(1)
                inventory.kubeconfigs(())
            server.create(PLURAL, _profile("a", f"https://a{number}"))
            await asyncio.sleep(2)
            paths.append(inventory.kubeconfigs(()).get("profile-a"))
            assert paths[-1] is None or Path(paths[-1]).exists()
        assert len(set(paths)) < 12
        server.create(PLURAL, _profile("b"))
        await asyncio.sleep(1)
        assert "profile-b" in inventory.kubeconfigs(())
        await asyncio.sleep(3600)
        assert "https://a599" in Path(inventory.kubeconfigs(())["profile-a"]).read_text(encoding="utf-8")
