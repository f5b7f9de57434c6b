"""Pods with volumes in a drain: ``--dry-run`` predicts what the descheduler does, with the same reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model.moving.drain import How
from controller_runtime.objects import from_dict
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.draining import drain_process, drain_status, draining_cluster, places
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.replica_sets import ReplicaSets
from virtual_node.commands import drain
from virtual_node.examine.reader import Reader

pytestmark = pytest.mark.looptime

_CLAIM = {"persistentVolumeClaim": {"claimName": "data"}}
_LOCAL = "it has local storage (allow it: drain --delete-emptydir-data, or --evict-local-storage-pods of the descheduler)"
_BOUND = "its claim data is bound to volume pv, which no other ready virtual node reaches"
_PROVISIONED = "its claim data was provisioned for this node"


@pytest.mark.parametrize(
    ("volume", "claim", "reachable", "how", "why"),
    [
        ({"configMap": {"name": "x"}}, None, "", How.REPLACED_FIRST, ""),
        ({"ephemeral": {"volumeClaimTemplate": {}}}, None, "", How.REPLACED_FIRST, ""),
        ({"nfs": {"server": "x", "path": "/"}}, None, "", How.REPLACED_FIRST, ""),
        ({"emptyDir": {}}, None, "", How.STAYS, _LOCAL),
        ({"hostPath": {"path": "/"}}, None, "", How.STAYS, _LOCAL),
        (_CLAIM, None, "", How.REPLACED_FIRST, ""),
        (_CLAIM, ("Pending", "ReadWriteMany", "a"), "", How.REPLACED_FIRST, ""),
        (_CLAIM, ("Lost", "ReadWriteMany", "a"), "", How.REPLACED_FIRST, ""),
        (_CLAIM, ("Bound", "ReadWriteMany", "a"), "", How.STAYS, _PROVISIONED),
        (_CLAIM, ("Bound", "ReadWriteMany", ""), "", How.REPLACED_FIRST, ""),
        (_CLAIM, ("Bound", "ReadWriteMany", ""), "a", How.STAYS, _BOUND),
        (_CLAIM, ("Bound", "ReadWriteOnce", "a"), "a", How.STAYS, _BOUND),
        (_CLAIM, ("Bound", "ReadWriteMany", "a"), "ab", How.REPLACED_FIRST, ""),
        (_CLAIM, ("Bound", "ReadOnlyMany", "a"), "ab", How.REPLACED_FIRST, ""),
        (_CLAIM, ("Bound", "ReadWriteOnce", "a"), "ab", How.ONE_AT_A_TIME, ""),
        (_CLAIM, ("Bound", "ReadWriteOncePod", "a"), "ab", How.ONE_AT_A_TIME, ""),
    ],
)
async def test_dry_run_and_drain_agree_on_pods_with_volumes(volume, claim, reachable, how, why):
    """``claim``: phase, access mode and selected node; ``reachable``: nodes in the affinity of its volume."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2)
    for found in cluster.all("pods"):
        key = f"default/{found['metadata']['name']}"
        cluster.change("pods", key, spec={"volumes": [{"name": "v", **volume}]})
    if claim is not None:
        _put_claim(cluster, *claim, reachable=reachable)
    process = drain_process(cluster)
    assert await _predictions(process, cluster) == [(how, why)] * 2
    async with owner.running(), process.running():
        await asyncio.sleep(120)
    status = drain_status(cluster)
    assert status is not None
    assert [one.why for one in status.pods] == [why] * (2 if how is How.STAYS else 0)
    assert places(cluster) == ("aa" if how is How.STAYS else "bb")
    assert owner.fewest == (1 if how is How.ONE_AT_A_TIME else 2)


@pytest.mark.parametrize(
    ("annotations", "how"), [({"unschedulable-node": "b"}, How.REPLACED_FIRST), ({}, How.STAYS)]
)
async def test_dry_run_and_drain_agree_on_pods_that_came_from_a_lost_cluster(annotations, how):
    """The affinity that keeps them off it does not count, unless the user has written it."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=2)
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["b"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    for found in cluster.all("pods"):
        key = f"default/{found['metadata']['name']}"
        cluster.change(
            "pods", key, spec={"affinity": {"nodeAffinity": required}}, metadata={"annotations": annotations}
        )
    process = drain_process(cluster)
    assert [predicted for predicted, _ in await _predictions(process, cluster)] == [how] * 2
    async with owner.running(), process.running():
        await asyncio.sleep(120)
    assert places(cluster) == ("aa" if how is How.STAYS else "bb")


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany"])
async def test_pods_that_share_a_single_node_claim_do_not_wait_for_each_other_for_ever(mode):
    """A replacement cannot start before the last of them has ended."""
    cluster = draining_cluster()
    owner = ReplicaSets(cluster, replicas=3, ready_after=None)
    deployment = cluster.get("deployments", "default/web")
    cluster.put("deployments", {**deployment, "spec": {"replicas": 3, "strategy": {"type": "Recreate"}}})
    for found in cluster.all("pods"):
        cluster.change(
            "pods", f"default/{found['metadata']['name']}", spec={"volumes": [{"name": "v", **_CLAIM}]}
        )
    _put_claim(cluster, "Bound", mode, "", reachable="ab")
    process = drain_process(cluster)
    async with owner.running(), process.running():
        await asyncio.sleep(60)
        assert places(cluster) == "aab"
        await asyncio.sleep(540)
    assert places(cluster) == ("bbb" if mode == "ReadWriteOnce" else "aab")


def _put_claim(cluster: Cluster, phase: str, mode: str, selected: str, *, reachable: str) -> None:
    values = list(reachable)
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": values}]}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}} if reachable else {}
    cluster.put("persistentvolumes", {"metadata": {"name": "pv"}, "spec": affinity})
    annotations = {"volume.kubernetes.io/selected-node": selected} if selected else {}
    body = {
        "metadata": {"name": "data", "namespace": "default", "annotations": annotations},
        "spec": {"accessModes": [mode], "volumeName": "pv"},
        "status": {"phase": phase},
    }
    cluster.put("persistentvolumeclaims", body)


async def _predictions(process: Process, cluster: Cluster) -> list[tuple[How, str]]:
    client: Any = process.client
    nodes = [from_dict(cluster.get("nodes", "b"))]
    deployments = {"default/web": cluster.get("deployments", "default/web")}
    return [
        await drain._judge(Reader(client), found, nodes, deployments, local_storage=False)
        for found in cluster.all("pods")
    ]
