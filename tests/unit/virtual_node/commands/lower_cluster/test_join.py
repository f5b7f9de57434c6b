"""Decisions of `lower-cluster join` and `leave`: releases, values, labels, and reasons not to leave."""

from __future__ import annotations

import argparse
import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from controller_runtime.errors import ApiError, ConfigError, Forbidden
from controller_runtime.objects import from_dict
from tests.unit.controller_runtime.loopback import failure, reply, serve
from tests.unit.virtual_node.commands.installations import Api, thing, virtual
from tests.unit.virtual_node.commands.releases import SPACE, TOKYO, helm, record
from tests.unit.virtual_node.commands.run_command import kubeconfig
from tests.unit.virtual_node.controllers.cluster import Cluster
from virtual_node.commands.lower_cluster import account, helm_release, join, leave, values_file
from virtual_node.commands.lower_cluster.applied import marked as with_mark
from virtual_node.commands.lower_cluster.helm_release import Release

__all__ = ["helm"]


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for Nodes that appear again for one second."""
    monkeypatch.setattr(leave, "_GONE_SECONDS", 1)


def test_only_differences_are_written():
    """Rules are compared as they are, data decoded; an equal object is not written."""
    found = {"rules": [{"verbs": ["get"]}], "data": {"token": base64.b64encode(b"old").decode()}}
    assert join.changes(found, {"rules": [{"verbs": ["get"]}]}) == {}
    assert join.changes(found, {"rules": []}) == {"rules": []}
    assert join.changes(found, {"stringData": {"token": "old"}}) == {}
    assert join.changes(found, {"stringData": {"token": "new"}}) == {"stringData": {"token": "new"}}


@pytest.mark.parametrize(
    ("name", "others", "expected"),
    [
        ("a-tunnel", ["b", "a"], "a"),
        ("a-viewer", ["a"], "a"),
        ("a", ["a-tunnel"], "a-tunnel"),
        ("a", ["a-viewer"], "a-viewer"),
        ("a-viewer", ["a-tunnel"], ""),
        ("a", ["b", "a-b"], ""),
        ("a-viewer", ["a", "a-viewer"], ""),
    ],
)
def test_clusters_with_a_secret_of_the_same_name_are_found(name: str, others: list[str], expected: str):
    """Each would overwrite the other's, and leave would delete it. Known clusters are joined again as before."""
    assert join._same_secrets(name, others) == expected


@pytest.mark.parametrize(
    ("server", "given", "refused"),
    [
        ("https://127.0.0.1:6443", False, True),
        ("https://[::1]:6443", False, True),
        ("https://localhost:6443", False, True),
        ("https://127.0.0.1:6443", True, False),
        ("https://10.0.0.1:6443", False, False),
        ("https://api.example.com", False, False),
    ],
)
def test_a_loopback_address_is_refused(server: str, given: bool, refused: bool):  # noqa: FBT001
    """Kind writes 127.0.0.1 into kubeconfigs; pods of the upper cluster need another address."""
    if not refused:
        join.require_reachable(server, given=given)
        return
    with pytest.raises(ConfigError, match="--server"):
        join.require_reachable(server, given=given)


def test_running_pods_and_bound_volumes_block_leave():
    """Finished pods, those of DaemonSets and volumes without a claim do not."""
    daemon = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u", "apiVersion": "apps/v1"}]}
    pods = [
        thing("Pod", "web", namespace="shop", status={"phase": "Running"}),
        thing("Pod", "done", namespace="shop", status={"phase": "Succeeded"}),
        thing("Pod", "agent", namespace="shop", metadata=daemon),
    ]
    volumes = [
        thing("PersistentVolume", name, status={"phase": phase})
        for name, phase in (("tokyo-data", "Bound"), ("tokyo-free", "Available"))
    ]
    assert leave.holding([from_dict(one) for one in pods], [from_dict(one) for one in volumes]) == [
        "pod shop/web",
        "volume tokyo-data",
    ]


async def test_the_probes_namespace_is_removed_without_the_right_to_delete_pods(
    monkeypatch: pytest.MonkeyPatch,
):
    """Its deletion needs only the right to delete namespaces, and removes the pod, too."""
    monkeypatch.setattr(join, "_REMOVAL", 0)
    upper, lower = Cluster("upper"), Cluster("lower")
    upper.put("namespaces", {"metadata": {"name": "probe"}})
    upper.put("pods", {"metadata": {"name": join._PROBE, "namespace": "probe"}})
    upper.fault = lambda verb, plural, _key: (
        Forbidden("no", code=403) if (verb, plural) == ("delete", "pods") else None
    )
    clients: tuple[Any, Any] = (upper, lower)
    await join._remove_probe(*clients, "probe")
    assert upper.asked("delete", "namespaces") == ["probe"]


def test_the_probe_is_admitted_under_the_restricted_standard():
    """It runs without root and privileges, with the runtime's seccomp profile, on one virtual node only."""
    spec = join.probe_pod("tokyo", "pause:1")["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "tokyo", "type": "virtual-kubelet"}


def _lower(*, users: dict[str, str], marked: bool, more: tuple[dict[str, Any], ...] = ()) -> Any:
    """Return a lower cluster with the account that these upper clusters use: identity → name there."""
    made = [dict(one) for one in account.objects(_options())]
    if marked:
        made = [with_mark(one) for one in made]
    for one in made:
        one["metadata"] = {**one["metadata"], "uid": f"u-{one['kind']}-{one['metadata']['name']}"}
        if one["kind"] == "ServiceAccount" and one["metadata"]["name"] == "virtual-node":
            users_there = {f"joined.virtual-node.io/{uid}": name for uid, name in users.items()}
            one["metadata"]["annotations"] = {**(one["metadata"].get("annotations") or {}), **users_there}
    return Api(*made, *more)


def _options() -> argparse.Namespace:
    return argparse.Namespace(
        account_namespace="virtual-node", keep_namespaces=False, follow=[], legacy_token=False, usage_source="None", resource_claims=False, shared_volumes=False, dry_run=False, name="tokyo"
    )  # fmt: skip


async def _leave(lower: Any) -> list[str]:
    """Run `leave` for upper cluster ``me``; return what is deleted in the lower cluster."""
    release = Release("vn", SPACE, 1, {"clusterId": "me"})
    await leave.remove_account(_options(), lower, cluster_id=str(release.values["clusterId"]))
    found: list[str] = lower.deleted
    return found


async def test_an_account_that_join_made_is_deleted():
    """No other upper cluster uses it: accounts, roles, bindings and, last, the namespace."""
    deleted = await _leave(_lower(users={"me": "tokyo"}, marked=True))
    assert len(deleted) == 9
    assert deleted[-1] == "Namespace/virtual-node"


@pytest.mark.parametrize(
    "lower",
    [
        _lower(users={"me": "tokyo"}, marked=False),
        _lower(users={"me": "tokyo", "other": "west"}, marked=True),
        _lower(
            users={"me": "tokyo"},
            marked=True,
            more=(thing("Pod", "web", namespace="shop", labels={"virtual-node.io/upper-cluster": "other"}),),
        ),
        _lower(
            users={"me": "tokyo"},
            marked=True,
            more=(thing("Pod", "web", namespace="shop", labels={"virtual-node.io/upper-cluster": "me"}),),
        ),
    ],
    ids=[
        "made by register",
        "joined by another upper cluster",
        "pods of another upper cluster",
        "of another node",
    ],
)
async def test_an_account_of_others_is_kept(lower: Any, capsys: pytest.CaptureFixture[str]):
    """Objects that join did not make, or that another upper cluster uses."""
    assert await _leave(lower) == []
    assert "kept" in capsys.readouterr().out


def _cluster(uid: str, *objects: dict[str, Any]) -> Any:
    """Return a cluster with an identity and a remote address."""
    system = thing("Namespace", "kube-system")
    system["metadata"]["uid"] = uid
    api: Any = Api(system, *objects)
    api.config = SimpleNamespace(server="https://10.0.0.1:6443", context_name="")
    return api


def _secret(**metadata: Any) -> dict[str, Any]:
    return thing("Secret", "virtual-node-tokyo", namespace=SPACE, metadata=metadata)


@pytest.mark.parametrize(
    ("upper", "lower", "words"),
    [
        ([], "upper", "leads to the upper cluster: give"),
        ([thing("Node", "tokyo", spec={})], "lower", "a real node called tokyo"),
        ([_secret()], "lower", "that join did not make"),
    ],
)
async def test_invalid_input_is_refused_before_anything_changes(upper: list[Any], lower: str, words: str):
    """The upper kubeconfig given for the lower one, the name of a real node, a Secret of `register`."""
    above, below = _cluster("upper", *upper), _cluster(lower)
    options = _joining()
    with pytest.raises(ConfigError, match=words):
        await join.Join(options, above, below, Release("vn", SPACE, 1)).run()
    assert (above.patched, below.patched, above.deleted, below.deleted) == ([], [], [], [])


def _joining(**more: Any) -> argparse.Namespace:
    options = _options()
    given = {"server": "", "client_kubeconfig": "f.yaml", "namespace": SPACE, "values": "", "force": False}
    vars(options).update(
        {
            **given,
            "timeout": 1.0,
            "request_timeout": 10.0,
            "as_user": None,
            "as_group": [],
            "lost": False,
            "token_duration": 60.0,
            "via": "",
            "tunnel_address": "",
            **more,
        }
    )
    return options


def _accounts(kind: str, change: Any) -> list[dict[str, Any]]:
    """Return the account's objects in a lower cluster, with changes of one kind."""
    found = [dict(one) for one in account.objects(_options())]
    for one in found:
        one["metadata"] = {**one["metadata"], "namespace": one["metadata"].get("namespace", ""), "uid": "u"}
        if one["kind"] == kind:
            change(one)
    return found


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("ServiceAccount", lambda one: one["metadata"].pop("labels"), "ServiceAccount virtual-node/virtual-node that is not"),
        ("ClusterRole", lambda one: one["metadata"].update(labels={}), "ClusterRole virtual-node that is not"),
        (
            "ClusterRoleBinding",
            lambda one: one.update(roleRef={**one["roleRef"], "name": "cluster-admin"}),
            "binds ClusterRole cluster-admin instead .* 'kubectl delete clusterrolebinding virtual-node' there",
        ),
        (
            "RoleBinding",
            lambda one: one.update(roleRef={**one["roleRef"], "kind": "ClusterRole"}),
            "kubectl delete rolebinding virtual-node-tokens --namespace virtual-node' there",
        ),
        (
            "ClusterRoleBinding",
            lambda one: one.update(subjects=[{**one["subjects"][0], "namespace": "other"}]),
            "is for ServiceAccount other/virtual-node, which would lose its rights: give the --account-namespace",
        ),
    ],
)  # fmt: skip
async def test_an_unmanaged_account_is_refused_before_anything_changes(kind: str, change: Any, words: str):
    """Another tool's account of the same name would get labels and rights; a binding to another role would stay unnoticed."""
    above, below = _cluster("upper"), _cluster("lower", *_accounts(kind, change))
    with pytest.raises(ConfigError, match=words):
        await join.Join(_joining(), above, below, Release("vn", SPACE, 1)).run()
    assert (above.created, below.created, above.patched, below.patched) == ([], [], [], [])
    found = next(one for one in below.objects if one.kind == kind).to_dict()
    body = next(one for one in account.objects(_options()) if one["kind"] == kind)
    assert account.conflict(found, body)  # `register` reads it, too


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["Linux", "Windows"])
@pytest.mark.parametrize("action", ["join", "leave"])
async def test_values_are_edited_instead_of_an_upgrade(
    action: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The release of Argo CD or Flux is not touched; the command prints the next step, and a dry run writes nothing.

    The line ends of the file stay.
    """
    file = tmp_path / "values.yaml"
    options = _joining(values=str(file), release=None, dry_run=True, server="https://10.0.0.1")
    mark = {"annotations": {"virtual-node.io/created-by": "join"}}
    if action == "join":
        file.write_text("# ours\n", encoding="utf-8", newline=end)
        above, below = _cluster("upper"), _cluster("lower", *_accounts("", None))
        below.objects.append(
            from_dict(thing("ConfigMap", "kube-root-ca.crt", namespace="virtual-node", data={"ca.crt": "c"}))
        )
    else:
        file.write_text(
            "virtualNode:\n  clusters:\n    - name: tokyo\n      kubeconfig: k  # its own\n",
            encoding="utf-8",
            newline=end,
        )
        above, below = (
            _cluster("upper", _secret(**mark), virtual("tokyo")),
            _lower(users={"upper": "tokyo"}, marked=True),
        )
    before = file.read_text("utf-8")
    for dry in (True, False):
        options.dry_run = dry
        release = await join.find_release(above, options)
        step: Any = join.Join if action == "join" else leave.Leave
        await step(options, above, below, release).run()
        assert (file.read_text("utf-8") == before) == dry
    printed = capsys.readouterr().out
    assert "then run this command again" in printed
    assert "?" not in printed
    assert file.read_bytes().count(b"\r\n") == (file.read_bytes().count(b"\n") if end == "\r\n" else 0)
    left = helm_release.clusters(values_file.parse(file.read_text("utf-8"), source=""))
    assert [one["name"] for one in left] == (["tokyo"] if action == "join" else [])
    assert above.deleted == []


async def test_a_tunnel_needs_a_chart_that_runs_proxy_servers():
    """The chart of the release is used, which may be of an earlier version; helm would refuse the value only at the end."""
    above, below = _cluster("upper"), _cluster("lower")
    options = _joining(via="konnectivity", tunnel_address="a:1", tunnel_images="")
    release = Release("vn", SPACE, 1, chart={"values": {"virtualNode": {}}})
    with pytest.raises(ConfigError, match="upgrade it first"):
        await join.Join(options, above, below, release).run()
    assert (above.created, below.created, above.patched, below.patched) == ([], [], [], [])


@pytest.mark.parametrize(
    ("tunnel", "flags", "entry"),
    [
        (
            {},
            {"via": "konnectivity", "tunnel_address": "192.0.2.7:443"},
            "tunnel: {address: '192.0.2.7:443'}",
        ),
        ({"address": "a:1"}, {"via": "direct"}, "kubeconfigSecret: {name: virtual-node-tokyo}}"),
    ],
    ids=["to a tunnel", "to a direct connection"],
)
async def test_a_changed_tunnel_is_not_edited_in_a_values_file(
    tmp_path: Path, tunnel: dict[str, str], flags: dict[str, str], entry: str
):
    """The entry may have comments; the message has the new one. Without a change, the entry is left as it is."""
    file = tmp_path / "values.yaml"
    found = {
        "name": "tokyo",
        "kubeconfigSecret": {"name": "virtual-node-tokyo"},
        **({"tunnel": tunnel} if tunnel else {}),
    }
    file.write_text(json.dumps({"virtualNode": {"clusters": [found]}}), encoding="utf-8")
    above = _cluster("upper", _secret(annotations={"virtual-node.io/created-by": "join"}))
    below = _cluster("lower", *_accounts("", None))
    given = {"values": str(file), "release": None, "dry_run": True, "probe_image": "", "tunnel_images": ""}
    for more in ({}, flags):
        options = _joining(**given, **more)
        joining = join.Join(options, above, below, await join.find_release(above, options))
        if more:
            with pytest.raises(
                ConfigError, match=r"replace its entry in virtualNode.clusters by .*" + re.escape(entry)
            ):
                await joining.run()
        else:
            await joining.run()


async def test_leave_of_a_lost_cluster_removes_the_upper_part(helm: Path, capsys: pytest.CaptureFixture[str]):
    """Node and Secrets, and the commands that clean the lower cluster are printed."""
    mark = {"annotations": {"virtual-node.io/created-by": "join"}}
    release = {
        "virtualNode": {
            "clusters": [{**TOKYO, "config": {"nodes": [{"name": "tokyo"}, {"name": "tokyo-gpu"}]}}]
        }
    }
    running = thing("Pod", "web", namespace="shop", spec={"nodeName": "tokyo"}, status={"phase": "Running"})
    above = _cluster(
        "upper", _secret(**mark), virtual("tokyo"), virtual("tokyo-gpu"), running, record(config=release)
    )
    above.stubborn.add("web")
    options = _joining(lost=True, client_kubeconfig="", release=None, kubeconfig="", context="")
    found = Release("vn", SPACE, 2, release)
    with pytest.raises(ConfigError, match="does not answer, so they cannot end in order: with --force"):
        await leave.Leave(options, above, None, found).run()
    options.force = True
    await leave.Leave(options, above, None, found).run()
    assert {"Pod/shop/web", "Node/tokyo", "Node/tokyo-gpu", f"Secret/{SPACE}/virtual-node-tokyo"} <= {
        *above.deleted
    }
    assert above.forced == ["web"]
    assert "tokyo" not in (helm / "values").read_text("utf-8")
    said = capsys.readouterr().out
    assert "virtual-node.io/upper-cluster=upper,virtual-node.io/node in (tokyo-gpu)'" in said
    assert "lower-cluster leave tokyo --client-kubeconfig ADMIN_KUBECONFIG" in said


async def test_a_lost_cluster_is_cleaned_once_it_answers():
    """After --lost the account in the lower cluster suffices for `leave` to remove the rest."""
    above, below = _cluster("upper"), _lower(users={"upper": "tokyo"}, marked=True)
    await leave.Leave(_joining(), above, below, Release("vn", SPACE, 1)).run()
    assert "Namespace/virtual-node" in below.deleted


async def test_an_unreachable_cluster_is_refused_with_the_flag_for_lost_ones():
    """Nothing is changed before the lower cluster has answered."""
    below = _cluster("lower")

    async def version(**_options: float) -> None:
        raise ApiError("no route to host")

    below.version = version
    below.config = SimpleNamespace(server="https://10.0.0.1", source="f.yaml", context_name="", proxy_url="")
    with pytest.raises(ConfigError, match="leave tokyo --lost' changes the upper cluster alone"):
        await leave.require_answer(_joining(client_context=""), below)


@pytest.mark.parametrize(
    ("status", "words"), [(200, "answers: run the command without --lost"), (403, "answers"), (0, "")]
)
async def test_a_reachable_cluster_is_not_lost(tmp_path: Path, status: int, words: str):
    """A busy one would lose its Node and keep its pods; a missing kubeconfig proves nothing about the cluster."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return reply({"gitVersion": "v1.34.4"}) if status == 200 else failure(status, "Forbidden", "no")

    async with serve(answer) as server:
        options = _joining(client_kubeconfig=str(kubeconfig(tmp_path, server.url)), client_context="")
        if status:
            with pytest.raises(ConfigError, match=words):
                await leave.require_unreachable(options)
    if not status:  # the server is closed by now
        await leave.require_unreachable(options)
    options.client_kubeconfig = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match="missing: no such file"):
        await leave.require_unreachable(options)


async def test_a_real_node_of_the_name_is_neither_cordoned_nor_uncordoned():
    """The virtual node has refused its name: its pods belong to others and do not block `leave`."""
    mark = {"annotations": {"virtual-node.io/created-by": "join"}}
    above = _cluster(
        "upper", _secret(**mark), virtual("tokyo"), thing("Node", "metal", spec={}),
        thing("Pod", "db", namespace="shop", spec={"nodeName": "metal"}, status={"phase": "Running"}),
        thing("Pod", "web", namespace="shop", spec={"nodeName": "tokyo"}, status={"phase": "Running"}),
    )  # fmt: skip
    entry = {**TOKYO, "config": {"nodes": [{"name": "metal"}, {"name": "tokyo"}]}}
    release = Release("vn", SPACE, 1, {"virtualNode": {"clusters": [entry]}})
    with pytest.raises(ConfigError, match=r"in use: pod shop/web\. Move"):
        await leave.Leave(_joining(), above, _lower(users={"upper": "tokyo"}, marked=True), release).run()
    assert {name for name, _ in above.patched} == {"tokyo"}


async def test_leave_refuses_clusters_that_join_did_not_make():
    """The Secrets of `register` carry no label: the error refers to the manual steps, and nothing is cordoned."""
    above = _cluster("upper", _secret(), virtual("tokyo"))
    options = _joining()
    release = Release("vn", SPACE, 1, {"virtualNode": {"clusters": [TOKYO]}})
    with pytest.raises(ConfigError, match="Remove it by hand"):
        await leave.Leave(options, above, _cluster("lower"), release).run()
    assert above.patched == []


async def test_a_cluster_with_pods_does_not_leave_and_is_uncordoned():
    """The cordon keeps new pods away meanwhile."""
    mark = {"annotations": {"virtual-node.io/created-by": "join"}}
    running = thing("Pod", "web", namespace="shop", spec={"nodeName": "tokyo"}, status={"phase": "Running"})
    above = _cluster("upper", _secret(**mark), virtual("tokyo"), running)
    options = _joining()
    release = Release("vn", SPACE, 1, {"virtualNode": {"clusters": [TOKYO]}})
    with pytest.raises(ConfigError, match=r"in use: pod shop/web.*virtual-node drain tokyo"):
        await leave.Leave(options, above, _lower(users={"upper": "tokyo"}, marked=True), release).run()
    cordons = [patch["spec"]["unschedulable"] for _, patch in above.patched]
    assert cordons == [True, None]
    assert above.deleted == []


@pytest.mark.parametrize(
    ("users", "entries", "words"),
    [
        ({"upper": "paris"}, [TOKYO], "is joined as paris"),
        ({"upper": "paris"}, [], "is joined as paris"),
        ({"other": "tokyo"}, [TOKYO], "is not joined to this upper cluster"),
    ],
    ids=["another member", "another member, after an interruption", "no member"],
)
async def test_the_kubeconfig_of_another_lower_cluster_is_refused(
    users: dict[str, str], entries: list[Any], words: str
):
    """Otherwise the account of another cluster would be deleted; nothing is changed in either cluster."""
    mark = {"annotations": {"virtual-node.io/created-by": "join"}}
    above, below = _cluster("upper", _secret(**mark), virtual("tokyo")), _lower(users=users, marked=True)
    options = _joining(force=True, client_kubeconfig="paris.yaml")
    release = Release("vn", SPACE, 1, {"virtualNode": {"clusters": entries}})
    with pytest.raises(ConfigError, match=words):
        await leave.Leave(options, above, below, release).run()
    assert (above.patched, above.deleted, below.patched, below.deleted) == ([], [], [], [])
