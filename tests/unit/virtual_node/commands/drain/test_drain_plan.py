"""``virtual-node drain --dry-run`` predicts what the descheduler does."""

from __future__ import annotations

import pytest

from controller_runtime import resources
from tests.unit.virtual_node.commands.doctor_facts import conditions, node, pod
from tests.unit.virtual_node.commands.run_command import NODES, SHOP, Person

RUNNING = {"phase": "Running", **conditions("Ready", "False", "NodeNotReady")}
"""Kubernetes marks the pods of a NotReady node as not Ready, whether they run or not."""
WHY = "waits: its lower cluster does not answer, and the pod may run there"


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("LowerClusterUnreachable", RUNNING, WHY),
        ("LowerClusterUnreachable", {}, ""),
        ("NoReadyLowerNodes", RUNNING, ""),
    ],
)
async def test_pods_that_may_run_in_a_silent_cluster_wait(person: Person, reason, status, why):
    silent = {**node("a"), "status": conditions("Ready", "False", reason)}
    owner = {"kind": "Job", "name": "j", "uid": "j", "controller": True}
    found = pod("web", nodeName="a", **({"status": status} if status else {}))
    found["metadata"]["ownerReferences"] = [owner]
    objects = {NODES: [silent, node("b")], SHOP: [found], resources.DEPLOYMENTS.path(): []}
    code, out, _ = await person.types("drain", "a", "--dry-run", objects=objects)
    row = out.splitlines()[1].split(maxsplit=3)
    assert (code, row[:3]) == (0, ["a", "shop/web", "evicted"])
    assert (row[3] if len(row) > 3 else "") == why


@pytest.mark.parametrize(
    "annotations",
    [{"unschedulable-node": "b"}, {"virtual-node.io/unschedulable-nodes": '{"b":"2026-01-01T00:00:00Z"}'}],
    ids=["by the webhook", "by the descheduler"],
)
async def test_pod_that_came_from_a_lost_cluster_may_return_to_it(person: Person, annotations):
    """The affinity that an earlier move added does not count, as in the drain itself."""
    avoids = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["b"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [avoids]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    found = pod("web", nodeName="a", affinity=affinity, status=RUNNING)
    other = node("b")
    other["metadata"]["labels"]["kubernetes.io/hostname"] = "b"
    for noted, expected in (({}, ["stays", 1]), (annotations, ["re-created", 0])):
        found["metadata"]["annotations"] = noted
        objects = {NODES: [node("a"), other], SHOP: [found], resources.DEPLOYMENTS.path(): []}
        code, out, _ = await person.types("drain", "a", "--dry-run", objects=objects)
        assert [out.splitlines()[1].split()[2], code] == expected
