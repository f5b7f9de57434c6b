"""The Helm release that `lower-cluster join` and `leave` change: its record, its values, the upgrade."""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller_runtime.errors import ConfigError
from tests.unit.virtual_node.commands.installations import Api
from tests.unit.virtual_node.commands.releases import CHART, SPACE, TOKYO, helm, record
from virtual_node.commands.lower_cluster import helm_release

__all__ = ["helm"]


def test_a_release_is_read_from_its_record():
    """Name, revision, the user's values and the chart."""
    found = record(config={"virtualNode": {"clusters": [TOKYO]}})
    release = helm_release.decode(found["data"]["release"])
    assert (release.name, release.namespace, release.revision) == ("vn", SPACE, 2)
    assert helm_release.cluster(release.values, "tokyo") == TOKYO
    assert helm_release.cluster(release.values, "paris") is None
    assert helm_release.decode(record()["data"]["release"]).values == {}


def test_a_recorded_chart_is_written_to_files():
    """Templates, files, the schema and the defaults, including null."""
    files = helm_release.chart_files(CHART)
    assert files["templates/a.yaml"] == b"a: {{ 1 }}"
    assert files["files/rights.yaml"] == b""
    assert files["values.schema.json"] == b"{}"
    assert b"replicas: null" in files["values.yaml"]
    assert b"name: virtual-node" in files["Chart.yaml"]


def test_joining_and_leaving_restores_the_values():
    """A cluster is added after the others; after its removal all values are as before."""
    before = {"virtualNode": {"clusters": [TOKYO], "replicas": 1}, "log": {"level": "debug"}}
    joined = helm_release.with_cluster(before, helm_release.entry("paris"))
    assert [one["name"] for one in joined["virtualNode"]["clusters"]] == ["tokyo", "paris"]
    assert joined["virtualNode"]["replicas"] == 1
    assert helm_release.without_cluster(joined, "paris") == before
    tunnelled = helm_release.with_tunnel(TOKYO, "a:1")
    assert helm_release.clusters(helm_release.with_cluster(before, tunnelled)) == [
        {**TOKYO, "tunnel": {"address": "a:1"}}
    ]
    own = {**TOKYO, "tunnel": {"address": "a:1", "service": {"type": "ClusterIP"}}}
    assert helm_release.with_tunnel(own, "b:1")["tunnel"] == {
        "address": "b:1",
        "service": {"type": "ClusterIP"},
    }
    assert helm_release.with_tunnel(own, "") == TOKYO
    assert helm_release.without_cluster(helm_release.with_cluster({}, TOKYO), "tokyo") == {}


def _upgrading(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{
            "namespace": SPACE,
            "release": None,
            "kubeconfig": "",
            "timeout": 60.0,
            "as_user": None,
            "as_group": [],
            **more,
        }
    )


async def test_an_upgrade_keeps_the_chart_and_all_other_values(helm: Path):
    """Helm gets the recorded chart, and the current values: another command may have changed them meanwhile."""
    api: Any = Api(record(config={"virtualNode": {"clusters": [TOKYO]}, "log": {"level": "debug"}}))
    revision = await helm_release.upgrade(
        api, _upgrading(),
        lambda values: helm_release.with_cluster(values, helm_release.entry("paris")), why="joined",
    )  # fmt: skip
    assert revision == 3
    values = json.loads((helm / "values").read_text("utf-8"))
    assert [one["name"] for one in values["virtualNode"]["clusters"]] == ["tokyo", "paris"]
    assert values["log"] == {"level": "debug"}
    assert "Chart.yaml" in (helm / "chart").read_text("utf-8")
    arguments = (helm / "arguments").read_text("utf-8")
    assert arguments.startswith("upgrade vn ")
    assert "--reset-values" in arguments
    assert "--kube-context" not in arguments


async def test_helm_impersonates_the_user_of_the_flags(helm: Path):
    """As the requests of the command do."""
    api: Any = Api(record())
    await helm_release.upgrade(api, _upgrading(as_user="alice", as_group=["a", "b,c"]), dict, why="")
    arguments = (helm / "arguments").read_text("utf-8")
    assert "--kube-as-user=alice --kube-as-group=a --kube-as-group=b,c" in arguments


@pytest.mark.parametrize(("kubeconfig", "expected"), [("~/a:b", "{home}/a:b"), ("", "mine")])
async def test_helm_works_on_the_cluster_from_which_the_release_was_read(
    helm: Path, monkeypatch: pytest.MonkeyPatch, kubeconfig: str, expected: str
):
    """Variables for helm would lead it to another cluster, which may have a release of the same name."""
    monkeypatch.setenv("HOME", str(helm))
    monkeypatch.setenv("KUBECONFIG", "mine")
    for name in ("HELM_KUBECONTEXT", "HELM_KUBEAPISERVER", "HELM_KUBETOKEN", "HELM_NAMESPACE", "HELM_DRIVER"):
        monkeypatch.setenv(name, "wrong")
    monkeypatch.setenv("HELM_CACHE_HOME", "kept")
    api: Any = Api(record())
    api.config = SimpleNamespace(context_name="east")
    await helm_release.upgrade(api, _upgrading(kubeconfig=kubeconfig), dict, why="")
    lines = (helm / "environment").read_text("utf-8").splitlines()
    seen = dict(line.split("=", 1) for line in lines if line.startswith(("HELM_", "KUBECONFIG=")))
    assert seen == {"KUBECONFIG": expected.format(home=helm), "HELM_CACHE_HOME": "kept"}
    assert "--kube-context east" in (helm / "arguments").read_text("utf-8")


async def test_a_failed_upgrade_quotes_helm_and_the_next_step(helm: Path):
    """The error names commands that show more."""
    (helm / "code").write_text("1", encoding="utf-8")
    api: Any = Api(record())
    with pytest.raises(ConfigError, match=r"Error: it broke; .*helm history vn --namespace"):
        await helm_release.upgrade(api, _upgrading(), dict, why="")


async def test_a_chart_with_a_file_outside_of_it_is_refused(helm: Path):
    """A record must not write outside of the temporary folder."""
    chart = {**CHART, "files": [{"name": "../../outside", "data": ""}]}
    api: Any = Api(record(chart=chart))
    with pytest.raises(ConfigError, match="a file outside of it"):
        await helm_release.upgrade(api, _upgrading(), dict, why="")
    assert not (helm / "arguments").exists()


def test_without_helm_the_error_links_its_download(monkeypatch: pytest.MonkeyPatch):
    """Before anything is changed."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="helm is not on the PATH"):
        helm_release.require_helm()


@pytest.mark.parametrize(
    ("config", "nodes"),
    [({}, ["tokyo"]), ({"nodeName": "vn"}, ["vn"]), ({"nodes": [{"name": "a"}, {"name": "b"}]}, ["a", "b"])],
)
def test_virtual_nodes_of_an_entry_are_found(config: dict[str, Any], nodes: list[str]):
    """The cluster's name, its nodeName, or each of its nodes."""
    assert helm_release.node_names({**TOKYO, "config": config}) == nodes


async def test_the_deployed_release_of_the_chart_is_found():
    """Earlier revisions and releases of other charts do not count."""
    other = {**CHART, "metadata": {"name": "redis"}}
    api: Any = Api(record(version=1, status="superseded"), record(), record("cache", version=1, chart=other))
    assert (await helm_release.find(api, SPACE, None)).revision == 2


def _broken(data: str, name: str = "cache") -> dict[str, Any]:
    found = record(name)
    return {**found, "data": {"release": base64.b64encode(data.encode()).decode()}}


BROKEN = (
    "",
    "no base64!",
    base64.b64encode(b"\x1f\x8bcut").decode(),
    base64.b64encode(b"[]").decode(),
    base64.b64encode(b'{"name": "cache", "namespace": "a", "version": "one"}').decode(),
    base64.b64encode(b'{"name": "cache"}').decode(),
)


async def test_malformed_records_of_other_charts_do_not_matter():
    """A Secret with Helm's label may have any content; without the release, the error names the Secrets."""
    odd = [_broken(one) for one in BROKEN]
    strange = record("odd", chart={"metadata": []})
    api: Any = Api(*odd, {**odd[0], "data": None}, strange, record())
    assert (await helm_release.find(api, SPACE, None)).name == "vn"
    api = Api(*odd)
    with pytest.raises(ConfigError, match=r"not a Helm release record: Secret .*\.cache\.v2"):
        await helm_release.find(api, SPACE, None)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (
            [],
            "helm install virtual-node charts/virtual-node --namespace virtual-node-system --create-namespace",
        ),
        ([record(status="failed")], "release vn in namespace virtual-node-system is failed"),
        ([record(), record("two")], "choose one with --release: two, vn"),
    ],
)
async def test_without_one_deployed_release_the_next_step_is_named(records: list[Any], words: str):
    """None: the command that installs it; a broken one: where to look; several: the flag that selects one."""
    api: Any = Api(*records)
    with pytest.raises(ConfigError, match=words):
        await helm_release.find(api, SPACE, None)
