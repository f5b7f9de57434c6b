"""``cleanup --dry-run`` reports everything and changes nothing."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from clusterset.config import Cluster
from clusterset.model import names
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import NotFound
from tests.unit.virtual_node.commands.installations import CLUSTER, Api, ours, thing, virtual
from tests.unit.virtual_node.commands.run_command import kubeconfig as kubeconfig_of
from virtual_node.commands import parsers
from virtual_node.commands.cleanup import command
from virtual_node.commands.cleanup.command import dry_run_client
from virtual_node.config.types import Config
from virtual_node.translate.storage import pv

pytestmark = pytest.mark.looptime

GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


class ReadOnly(Api):
    """An API server that refuses writes, and lists the content of a namespace."""

    def __init__(self, cluster: str, *objects: dict[str, Any]) -> None:
        super().__init__(*objects)
        self.cluster = cluster

    async def delete(self, *_args: Any, **_more: Any) -> None:
        raise AssertionError("deleted")

    async def patch(self, *_args: Any, **_more: Any) -> None:
        raise AssertionError("patched")

    async def read(self, path, **_more):
        if path == "/api/v1":
            kind = {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["list"]}
            return {"resources": [kind]}
        if path.endswith("/pods"):
            pods = [one.to_dict() for one in self.objects if one.kind == "Pod"]
            return {"items": pods}
        return await super().read(path)


async def _rehearse(monkeypatch: Any, *apis: ReadOnly, arguments: Sequence[str] = ()) -> None:
    by_name = {api.cluster: api for api in apis}

    async def load(*_args: Any, **_more: Any) -> None:
        return None

    monkeypatch.setattr(kubeconfig, "load", load)
    monkeypatch.setattr(
        "controller_runtime.client.client.Client",
        lambda *_args, cluster, **_more: contextlib.nullcontext(by_name[cluster]),
    )
    own = parsers.cleanup().parse_args(["--dry-run", *arguments])
    clusters = [Cluster(name="tokyo", kubeconfig="k", node_name="vn")]
    await command._run(Config(cluster_id=CLUSTER, clusters=clusters), own)


async def test_reports_all_deletions_and_writes_nothing(monkeypatch, capsys):
    """In both clusters; a namespace that would become empty, too, and no missing objects."""
    above = ReadOnly(
        "upper",
        virtual("vn"),
        thing("Pod", "web", namespace="shop", spec={"nodeName": "vn"}),
        thing("Pod", "ends-already", namespace="shop", spec={"nodeName": "vn"}, metadata=GOING),
        thing("CSIDriver", pv.DRIVER),
        thing("Deployment", "virtual-node", namespace="system", labels={"app": "vn"}),
        thing("Pod", "virtual-node-1", namespace="system", labels={"app": "vn"}),
        thing("Lease", "vn", namespace="system"),
    )
    below = ReadOnly(
        "tokyo",
        thing("Namespace", "shop", labels={names.LABEL_UPPER_CLUSTER: CLUSTER}),
        ours("Pod", "web"),
        ours("Pod", "ends-already", metadata=GOING),
        ours("ConfigMap", "settings"),
        ours("ConfigMap", "theirs", node="another"),
    )
    flags = ["--namespace=system", "--selector=app=vn", "--leases=vn,gone", "--secrets=tls"]
    await _rehearse(monkeypatch, above, below, arguments=flags)
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        f"{what} (dry run)"
        for what in (
            "upper: Node vn changed",
            "upper: Pod shop/web deleted",
            "upper: Deployment system/virtual-node changed",
            "tokyo: Pod shop/web deleted",
            "tokyo: ConfigMap shop/settings deleted",
            "tokyo: Namespace shop deleted",
            "upper: Node vn deleted",
            f"upper: CSIDriver {pv.DRIVER} deleted",
            "upper: Lease system/vn deleted",
        )
    ]
    assert all(line.endswith("(dry run)") for line in told.err.splitlines())
    assert "still drain" not in told.err, "nobody was told to end"


async def test_an_unreachable_lower_cluster_is_reported(monkeypatch, capsys, tmp_path):
    """With its kubeconfig, and how to find the remaining objects; the rest is reported."""
    file = kubeconfig_of(tmp_path, "http://127.0.0.1:1")
    upper = ReadOnly("upper", virtual("vn"))

    def client(*args: Any, cluster: str, **more: Any) -> Any:
        is_upper = cluster == "upper"
        return contextlib.nullcontext(upper) if is_upper else Client(*args, cluster=cluster, **more)

    monkeypatch.setattr("controller_runtime.client.client.Client", client)
    own = parsers.cleanup().parse_args(["--dry-run", f"--kubeconfig={file}"])
    clusters = [Cluster(name="tokyo", kubeconfig=file, node_name="vn")]
    await command._run(Config(kubeconfig=file, cluster_id=CLUSTER, clusters=clusters), own)
    told = capsys.readouterr().err
    assert (
        f"tokyo: not cleaned (http://127.0.0.1:1 (kubeconfig {file}, context prod): nothing listens there"
        in told
    )
    assert f"what is left there carries the label virtual-node.io/upper-cluster={CLUSTER}" in told


async def test_kept_objects_are_reported_with_the_reason(monkeypatch, capsys):
    """The same reasons as of the command itself."""
    below = ReadOnly("tokyo", ours("PersistentVolumeClaim", "data"), ours("Namespace", "shop", namespace=""))
    await _rehearse(monkeypatch, ReadOnly("upper", virtual("vn")), below)
    assert "tokyo: claim shop/data is kept: it was kept before (dry run)" in capsys.readouterr().err


async def test_missing_objects_are_not_reported():
    """A Secret that is deleted by name is looked up first."""
    told: list[str] = []
    client: Any = ReadOnly("upper", thing("Secret", "tls", namespace="system"))
    rehearsal = dry_run_client(client, told.append)
    await rehearsal.delete(resources.SECRETS, "tls", namespace="system")
    with pytest.raises(NotFound):
        await rehearsal.delete(resources.SECRETS, "gone", namespace="system")
    assert told == ["upper: Secret system/tls deleted"]


@pytest.mark.parametrize("flag", ["--dry-run=all", "--dryrun", "--dry_run", "--dry-run=clients"])
def test_a_misspelt_dry_run_does_not_run(flag, monkeypatch):
    """It ends before any request."""
    monkeypatch.setattr(command, "_run", None)
    with pytest.raises(SystemExit) as raised:
        command.main(["--no-clusters", flag])
    assert raised.value.code == 2


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("--dry-run", True), ("--dry-run=client", True), ("--dry-run=server", True), ("--dry-run=none", False)],
)
def test_the_values_of_kubectls_dry_run_are_known(flag, expected, monkeypatch):
    given: list[bool] = []

    async def run(_config: object, own: argparse.Namespace) -> None:
        given.append(own.dry_run)

    monkeypatch.setattr(command, "_run", run)
    assert command.main(["--no-clusters", flag]) == 0
    assert given == [expected]
