"""``cleanup`` of an installation, with fake clusters."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.config import Cluster
from clusterset.model import names
from controller_runtime.auth import kubeconfig
from controller_runtime.errors import ConfigError, Forbidden
from tests.unit.virtual_node.commands.installations import CLUSTER, Api, thing, virtual
from virtual_node.commands.cleanup import command as cleanup
from virtual_node.commands.cleanup.upper import UpperCleanup
from virtual_node.commands.common import connect
from virtual_node.config.types import Config
from virtual_node.translate.storage import pv, pvc, shared

pytestmark = pytest.mark.looptime


def _upper(api: Any) -> tuple[UpperCleanup, list[str]]:
    said: list[str] = []
    return UpperCleanup(api, nodes=["vn"], clusters=["tokyo"], say=said.append), said


async def test_only_own_virtual_nodes_are_cordoned_and_deleted():
    """Real nodes and the virtual nodes of another installation stay."""
    api = Api(virtual("vn"), virtual("another"), thing("Node", "worker", spec={}))
    cleanup, _ = _upper(api)
    await cleanup.cordon()
    await cleanup.remove(namespace="", leases=[], secrets=[])
    assert api.patched == [("vn", {"spec": {"unschedulable": True}})]
    assert api.deleted == ["Node/vn"]


async def test_pods_end_gracefully_and_the_last_ones_are_forced():
    """A pod that its lower cluster does not end delays the uninstall by a limited time."""
    api = Api(
        thing("Pod", "quick", namespace="shop", spec={"nodeName": "vn"}),
        thing("Pod", "stuck", namespace="shop", spec={"nodeName": "vn"}),
        thing("Pod", "elsewhere", namespace="shop", spec={"nodeName": "worker"}),
    )
    api.stubborn.add("stuck")
    cleanup, said = _upper(api)
    await cleanup.delete_pods(deadline=30.0)
    assert api.forced == ["stuck"]
    assert [one.name for one in api.objects] == ["elsewhere"]
    assert any("stuck did not end in time" in line for line in said)


async def test_only_pods_of_daemons_delay_the_cleanup():
    """A finished pod of the inspection stays until its Job is deleted."""
    labels = {"app.kubernetes.io/instance": "vn", "app.kubernetes.io/component": "inspection"}
    inspection = thing("Pod", "inspection-1", namespace="vn", labels=labels)
    cleanup, said = _upper(Api(inspection))
    await cleanup.stop_daemons("vn", "app.kubernetes.io/instance=vn", seconds=45)
    assert said == []


async def test_a_refused_deletion_is_logged_once(monkeypatch):
    """An admission webhook may keep a pod: one line of the Job's log, not two a second."""
    api = Api(virtual("vn"), thing("Pod", "kept", namespace="shop", spec={"nodeName": "vn"}))

    async def refuse(*_args, **_more):
        raise Forbidden("kept by policy", code=403)

    monkeypatch.setattr(api, "delete", refuse)
    cleanup, said = _upper(api)
    await cleanup.delete_pods(deadline=30.0)
    assert len([line for line in said if "kept by policy" in line]) == 1


async def test_pods_of_a_real_node_with_the_configured_name_are_left_alone():
    """A wrong nodeName, which the daemon refuses, must not drain a real node when the release is removed."""
    api = Api(
        thing("Node", "vn", spec={}),
        thing("Pod", "database", namespace="shop", spec={"nodeName": "vn"}),
    )
    cleanup, said = _upper(api)
    await cleanup.cordon()
    await cleanup.delete_pods(deadline=30.0)
    await cleanup.remove(namespace="", leases=[], secrets=[])
    assert (api.deleted, api.patched) == ([], [])
    assert said == ["node vn is not virtual; its pods are not changed"]


async def test_pods_of_a_deleted_virtual_node_are_deleted():
    api = Api(thing("Pod", "web", namespace="shop", spec={"nodeName": "vn"}))
    cleanup, _ = _upper(api)
    await cleanup.delete_pods(deadline=30.0)
    assert api.deleted == ["Pod/shop/web"]


async def test_a_daemon_set_that_tolerates_everything_does_not_block():
    """kube-proxy's pod is recreated on a cordoned node after each deletion."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "proxy", "uid": "ds", "controller": True}
    api = Api(
        virtual("vn"),
        thing(
            "Pod", "proxy", namespace="shop", spec={"nodeName": "vn"}, metadata={"ownerReferences": [owner]}
        ),
    )
    api.daemon_sets.add("proxy")
    cleanup, _ = _upper(api)
    await cleanup.delete_pods(deadline=30.0)
    assert api.deleted == ["Pod/shop/proxy"]
    assert asyncio.get_running_loop().time() < 5
    assert api.forced == []


async def test_pods_that_wait_for_the_charts_scheduler_are_recreated():
    """No other scheduler would place them. A bare pod is only reported, because nothing would recreate it."""
    labels = {names.LABEL_VIRTUAL_POD: "true"}
    owned = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]}

    def pod(name: str, scheduler: str = "ours", metadata: Any = owned, **spec: str) -> dict[str, Any]:
        return thing(
            *("Pod", name), namespace="shop", labels=labels, metadata=metadata, spec={"schedulerName": scheduler, **spec}
        )  # fmt: skip

    unlabelled = pod("stranger")
    unlabelled["metadata"]["labels"] = {}
    api = Api(
        pod("web"),
        pod("bare", metadata={}),
        pod("bound", nodeName="worker"),
        pod("other", scheduler="volcano"),
        unlabelled,
    )
    cleanup, said = _upper(api)
    await cleanup.delete_waiting_pods("")
    assert (api.deleted, said) == ([], [])
    await cleanup.delete_waiting_pods("ours")
    assert api.deleted == ["Pod/shop/web"]
    assert said == [
        "pod shop/web waited for ours; its controller makes a new one",
        "pod shop/bare waits for ours, which is removed: create the pod again",
    ]


async def test_a_claim_loses_only_our_finalizer():
    """A user's claim stays, and can then be deleted without the virtual node."""
    mirror = thing(
        "PersistentVolume", "tokyo-pv", labels={names.LABEL_LOWER_CLUSTER: "tokyo"}, status={"phase": "Bound"},
        spec={"csi": {"driver": pv.DRIVER, "volumeHandle": "tokyo/pv"}},
    )  # fmt: skip
    claim = thing(
        "PersistentVolumeClaim", "data", namespace="shop", spec={"volumeName": "tokyo-pv"},
        metadata={"finalizers": ["kubernetes.io/pvc-protection", pvc.FINALIZER]},
    )  # fmt: skip
    api = Api(mirror, claim)
    cleanup, _ = _upper(api)
    await cleanup.remove(namespace="", leases=[], secrets=[])
    ((name, patch),) = api.patched
    assert name == "data"
    assert patch["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert patch["metadata"]["uid"] == "u-data"
    assert api.deleted == [], "a bound mirror holds a claim's data together"


async def test_unused_mirrors_are_deleted_with_their_driver():
    """The last installation deletes the inert CSI driver."""
    mirror = thing(
        "PersistentVolume", "tokyo-pv", labels={names.LABEL_LOWER_CLUSTER: "tokyo"}, status={"phase": "Available"},
        spec={"csi": {"driver": pv.DRIVER, "volumeHandle": "tokyo/pv"}},
    )  # fmt: skip
    api = Api(mirror, thing("CSIDriver", pv.DRIVER), thing("CSIDriver", "ebs.csi.aws.com"))
    cleanup, _ = _upper(api)
    await cleanup.remove(namespace="", leases=[], secrets=[])
    assert api.deleted == ["PersistentVolume/tokyo-pv", f"CSIDriver/{pv.DRIVER}"]


async def test_volumes_can_be_used_elsewhere_after_their_cluster_is_removed():
    """A single-writer volume would be refused for ever, because no process removes the record."""

    def mirror(name: str, used_in: str) -> dict[str, Any]:
        return thing(
            "PersistentVolume", name, labels={names.LABEL_LOWER_CLUSTER: "paris", shared.LABEL_SHARED: "nas"},
            metadata={"annotations": {shared.ANNOTATION_USED_IN: used_in}},
            spec={"csi": {"driver": pv.DRIVER, "volumeHandle": f"paris/{name}"}, "nodeAffinity": {"required": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": shared.node_label("nas"), "operator": "Exists"}]}]
            }}},
        )  # fmt: skip

    foreign = thing(
        "PersistentVolume", "theirs", labels={shared.LABEL_SHARED: "nas"}, spec={"nfs": {}},
        metadata={"annotations": {shared.ANNOTATION_USED_IN: "tokyo"}},
    )  # fmt: skip
    api = Api(mirror("a", "tokyo"), mirror("b", "osaka,tokyo"), mirror("c", "osaka"), foreign)
    cleanup, said = _upper(api)
    await cleanup.volumes.release({"tokyo"})
    written = [
        (name, patch["metadata"]["annotations"][shared.ANNOTATION_USED_IN]) for name, patch in api.patched
    ]
    assert written == [("a", None), ("b", "osaka")]
    assert len(said) == 2


async def test_missing_leases_and_secrets_are_no_error():
    """Cleaning up twice has the same result."""
    api = Api(thing("Lease", "vn", namespace="system"))
    cleanup, _ = _upper(api)
    for _ in range(2):
        await cleanup.remove(namespace="system", leases=["vn"], secrets=["tls"])
    assert api.deleted == ["Lease/system/vn"]


async def test_leases_of_replicas_are_removed_by_their_election():
    """With mode Sharded each replica has a Lease of its own; Leases of other elections stay."""
    ours, theirs = {names.LABEL_ELECTION: "vn"}, {names.LABEL_ELECTION: "other"}
    api = Api(
        thing("Lease", "vn-cluster-tokyo", namespace="system", labels=ours),
        thing("Lease", "vn-replica-a", namespace="system", labels=ours),
        thing("Lease", "other-replica-a", namespace="system", labels=theirs),
        thing("Lease", "vn-replica-b", namespace="elsewhere", labels=ours),
    )
    cleanup, _ = _upper(api)
    await cleanup.remove(namespace="system", leases=[], secrets=[], elections=["vn"])
    assert sorted(api.deleted) == ["Lease/system/vn-cluster-tokyo", "Lease/system/vn-replica-a"]


def test_a_misspelt_flag_is_an_error(capsys):
    """Also without clusters."""
    with pytest.raises(SystemExit) as raised:
        cleanup.main(["--no-clusters", "--webhook-configuraton=a"])
    assert raised.value.code == 2
    assert "--webhook-configuraton=a" in capsys.readouterr().err


async def test_lower_clusters_have_a_minimum_of_time(monkeypatch):
    """Slow pods and daemons may use up a short time-out; lower objects are deleted nevertheless."""
    api = Api(virtual("vn"), thing("Pod", "slow", namespace="shop", spec={"nodeName": "vn"}))
    api.stubborn.add("slow")
    given: list[float] = []

    async def slow(*_args, **_more):
        await asyncio.sleep(45)

    async def lower(*_args, deadline: float):
        given.append(deadline - asyncio.get_running_loop().time())

    async def load(*_args, **_more):
        return None

    monkeypatch.setattr(kubeconfig, "load", load)
    monkeypatch.setattr(
        "controller_runtime.client.client.Client", lambda *_args, **_more: contextlib.nullcontext(api)
    )
    monkeypatch.setattr(UpperCleanup, "stop_daemons", slow)
    monkeypatch.setattr(cleanup, "_lower", lower)
    own = argparse.Namespace(
        as_hook=False,
        dry_run=False,
        timeout=60.0,
        selector="a=b",
        namespace="ns",
        webhook_configuration="",
        scheduler_name="",
        leases=[],
        elections=[],
        secrets=[],
    )
    config = Config(cluster_id=CLUSTER, clusters=[Cluster(name="tokyo", kubeconfig="k", node_name="vn")])
    await cleanup._run(config, own)
    assert given == [15.0]


_REJECTED = """
apiVersion: virtual-node.io/v1alpha1
kind: VirtualNodeConfiguration
clusters: [{name: a, kubeconfig: /etc/a, lables: {}}, {name: b, kubeconfig: /etc/b, clientQps: fast, nodeName: x}]
"""


def test_the_hook_cleans_up_after_a_rejected_configuration(monkeypatch, tmp_path, capsys):
    """It must not block the uninstall; by hand the file has to be corrected."""
    file = tmp_path / "virtual-node.yaml"
    file.write_text(_REJECTED, encoding="utf-8")
    ran: list[Config] = []

    async def run(config: Config, _own: Any) -> None:
        ran.append(config)

    monkeypatch.setattr(cleanup, "_run", run)
    assert cleanup.main(["--as-hook", f"--config={file}"]) == 0
    assert [node.name for cluster in ran[0].clusters for node in cluster.virtual_nodes()] == ["a", "x"]
    assert "configuration rejected" in (told := capsys.readouterr().err)
    assert "lables" in told
    with pytest.raises(ConfigError, match="lables"):
        cleanup.main([f"--config={file}"])
    assert "it has no valid lower cluster" not in told
    file.write_text("{", encoding="utf-8")
    assert cleanup.main(["--as-hook", f"--config={file}"]) == 0
    assert "it has no valid lower cluster" in capsys.readouterr().err


async def test_a_cluster_without_a_kubeconfig_gets_no_default(monkeypatch, capsys):
    """The default kubeconfig may lead to the upper or any other cluster."""
    monkeypatch.setattr(connect, "by_file", None)
    own: Any = SimpleNamespace(dry_run=False)
    await cleanup._lower(Cluster(name="a"), "id", frozenset(), own, deadline=1e9)
    assert "a: not cleaned (it has no kubeconfig)" in capsys.readouterr().err


def test_uninstallation_ends_with_the_commands_that_remove_the_rest():
    """One set for each lower cluster; nothing of them if there are none."""
    lines = cleanup.kept(["tokyo", "paris"], "vn")
    text = "\n".join(lines)
    for name in ("TOKYO", "PARIS"):
        assert f"kubectl --kubeconfig {name}_ADMIN.yaml delete namespace virtual-node" in text
    assert (
        "delete secret virtual-node-tokyo virtual-node-tokyo-viewer virtual-node-paris virtual-node-paris-viewer"
        in text
    )
    assert "--namespace vn" in text
    assert "kubectl delete namespace vn" in lines[-1]
    assert len(cleanup.kept([], "vn")) == 2
