"""Lower clusters of ClusterProfiles beside those of the configuration file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset import profile_clusters
from clusterset.profile_clusters import ProfileClusters
from controller_runtime.errors import ConfigError, Forbidden
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from virtual_node.config import file as config_file
from virtual_node.rights import daemon

_FILE = """
apiVersion: virtual-node.io/v1alpha1
kind: VirtualNodeConfiguration
clusters:
  - {{name: listed, kubeconfig: listed.yaml, nodes: [{{name: profile-node}}]}}
clusterProfiles:
  {settings}
"""


def _parsed(settings: str) -> Any:
    return config_file.parse(_FILE.format(settings=settings))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("namespace: fleet", "Object missing required field `providersFile` - at `$.clusterProfiles`"),
        ("{namespace: Fleet, providersFile: x}", "clusterProfiles.namespace"),
        ("{namespace: fleet, providersFile: ''}", "clusterProfiles.providersFile"),
        ("{namespace: fleet, providersFile: x, namePrefix: A}", "clusterProfiles.namePrefix"),
        ("{namespace: fleet, providersFile: x, labelSelector: 'a=b=c'}", "clusterProfiles.labelSelector: "),
        ("{namespace: fleet, providersFile: x, defaults: {name: a}}", "clusterProfiles.defaults.name: cannot be"),
        ("{namespace: fleet, providersFile: x, defaults: {nodes: []}}", "clusterProfiles.defaults.nodes: cannot be"),
        ("{namespace: fleet, providersFile: x, defaults: {lables: {}}}", "clusterProfiles.defaults: unknown field `lables`"),
        (
            "{namespace: fleet, providersFile: x, defaults: {clientQPS: fast}}",
            "clusterProfiles.defaults.clientQPS: Expected `float`",
        ),
        (
            "{namespace: fleet, providersFile: x, defaults: {capacity: {reserve: {cpu: much}}}}",
            "clusterProfiles.defaults.capacity.reserve.cpu: 'much'",
        ),
    ],
)  # fmt: skip
def test_refuses_invalid_settings(settings: str, why: str):
    with pytest.raises(ConfigError) as caught:
        _parsed(settings)
    assert why.split(" - at ", maxsplit=1)[0] in str(caught.value)


async def test_profiles_get_the_defaults_and_never_names_of_the_file(tmp_path: Path):
    """A change of the file's clusters keeps those of ClusterProfiles, which give way to a new name in the file."""
    providers = tmp_path / "providers.json"
    providers.write_text(json.dumps({"providers": [{"name": "p", "execConfig": {"command": "x"}}]}), "utf-8")
    config = _parsed(
        f"{{namespace: fleet, providersFile: {providers}, defaults: {{labels: {{from: fleet}}}}}}"
    )
    server = Server()
    server.create("namespaces", {"metadata": {"name": "fleet"}})
    access = {"accessProviders": [{"name": "p", "cluster": {"server": "https://a"}}]}
    for name in ("a", "node"):
        server.create("clusterprofiles", {"metadata": {"name": name, "namespace": "fleet"}, "status": access})
    clusters = ProfileClusters(config)
    client: Any = MemoryClient(server)
    async with clusters.following(client):
        await asyncio.sleep(0.2)
        listed, found = clusters.merged()
        assert (listed.name, found.name, found.labels) == ("listed", "profile-a", {"from": "fleet"})
        assert clusters.names == {"profile-a"}
        assert [one.name for one in clusters.merged([])] == ["profile-a", "profile-node"]
        found.nodes = []
        assert [one.name for one in clusters.merged([found])] == ["profile-a", "profile-node"]
        assert clusters.names == {"profile-node"}


def test_rights_are_limited_to_names_if_these_are_known():
    """In any case, ClusterProfiles are read in their namespace only."""
    for names, limited in (("[]", False), ("[a]", True)):
        rights = daemon.upper(_parsed(f"{{namespace: fleet, providersFile: x, names: {names}}}"))
        patches = [one.names for one in rights if one.resource == "nodes" and one.verbs == ("patch",)]
        assert (() not in patches) == limited
        assert all("profile-a" in one for one in patches) == limited
        (read,) = (one for one in rights if one.resource == "clusterprofiles")
        assert (read.namespace, read.verbs) == ("fleet", ("list", "watch"))


async def test_a_command_reads_the_profiles_once_and_names_the_refused(tmp_path: Path):
    """Their kubeconfigs, which name a plugin, are gone afterwards."""
    providers = tmp_path / "providers.json"
    providers.write_text(json.dumps({"providers": [{"name": "p", "execConfig": {"command": "x"}}]}), "utf-8")
    config = _parsed(f"{{namespace: fleet, providersFile: {providers}, defaults: {{labels: {{a: b}}}}}}")
    server = Server()
    server.create("namespaces", {"metadata": {"name": "fleet"}})
    for name, provider in (("good", "p"), ("bad", "other")):
        access = {"accessProviders": [{"name": provider, "cluster": {"server": "https://a"}}]}
        server.create("clusterprofiles", {"metadata": {"name": name, "namespace": "fleet"}, "status": access})
    client: Any = MemoryClient(server)
    async with profile_clusters.added(config, client) as refused:
        assert list(refused) == ["fleet/bad"]
        listed, found = config.clusters
        assert (listed.name, found.name, found.labels) == ("listed", "profile-good", {"a": "b"})
        assert (
            json.loads(Path(found.kubeconfig).read_text("utf-8"))["users"][0]["user"]["exec"]["command"]
            == "x"
        )
    assert not Path(found.kubeconfig).exists()


async def test_a_command_reports_profiles_that_it_cannot_read(tmp_path: Path):
    providers = tmp_path / "providers.json"
    providers.write_text('{"providers": []}', "utf-8")
    config = _parsed(f"{{namespace: fleet, providersFile: {providers}}}")

    async def refuse(*_args: Any, **_more: Any) -> None:
        raise Forbidden("no list", code=403)

    client: Any = SimpleNamespace(list=refuse)
    with pytest.raises(ConfigError, match="the ClusterProfiles in namespace fleet cannot be read: no list"):
        async with profile_clusters.added(config, client):
            pass
