"""Declared features: virtual nodes declare those of their lower nodes, and pods that need them run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterset.model.declared_features import NOT_GIVEN, WEBSOCKETS
from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.waiting import becomes, create, eventually, get

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
RESTART_ALL = "RestartAllContainersOnContainerExits"


async def declared(cluster: Cluster, node: str) -> set[str]:
    """Return the features that a Node declares."""
    return set((await get(cluster, "", "node", node))["status"].get("declaredFeatures", ()))


async def test_a_virtual_node_declares_what_its_lower_nodes_declare(sandbox: Sandbox, upper: Cluster):
    """All of a kubelet's features that can be given; for simulated nodes, which declare none, only its own."""
    (lower,) = (await get(sandbox.lower[0], "", "nodes"))["items"]
    features = set(lower["status"]["declaredFeatures"])
    assert RESTART_ALL in features
    assert await declared(upper, REAL) == (features - NOT_GIVEN.keys()) | {WEBSOCKETS}
    assert await declared(upper, SIMULATED) == {WEBSOCKETS}


async def test_a_feature_is_declared_while_all_lower_nodes_have_it(sandbox: Sandbox, upper: Cluster):
    """It appears with the last kubelet, and goes with a lower node that lacks it; a cordoned one does not count."""
    lower = sandbox.lower[1]
    names = [node["metadata"]["name"] for node in (await get(lower, "", "nodes"))["items"]]

    async def declare(name: str, features: list[str]) -> None:
        change = json.dumps({"status": {"declaredFeatures": features}})
        await lower.kubectl("patch", "node", name, "--subresource=status", "-p", change)

    async def of_virtual_node() -> set[str]:
        return await declared(upper, SIMULATED)

    try:
        for name in names:
            assert await of_virtual_node() == {WEBSOCKETS}
            await declare(name, [RESTART_ALL])
        await becomes(of_virtual_node, {WEBSOCKETS, RESTART_ALL}, what="the feature of all lower nodes")
        await declare(names[0], [])
        await becomes(of_virtual_node, {WEBSOCKETS}, what="a node without it")
        await lower.kubectl("cordon", names[0])
        await becomes(of_virtual_node, {WEBSOCKETS, RESTART_ALL}, what="a cordoned node")
    finally:
        await lower.kubectl("uncordon", names[0])
        for name in names:
            await declare(name, [])
    await becomes(of_virtual_node, {WEBSOCKETS}, what="the features before")


async def test_a_pod_that_restarts_all_its_containers_runs(upper: Cluster, namespace):
    """The stock scheduler binds it, and all of its containers start again when the rule applies."""
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]
    leader = {"restartPolicy": "Never", "restartPolicyRules": rules}
    # The second attempt stays: the file is in a volume of the pod.
    script = "test -e /state/tried && sleep 3600; touch /state/tried; exit 42"
    mounts = [{"name": "state", "mountPath": "/state"}]
    made = pod(
        "team",
        script,
        container={**leader, "volumeMounts": mounts},
        volumes=[{"name": "state", "emptyDir": {}}],
    )
    follower = {**made["spec"]["containers"][0], "name": "follower", "command": ["sleep", "3600"]}
    made["spec"]["containers"].append({key: follower[key] for key in follower.keys() - leader.keys()})
    await create(upper, namespace, made)

    async def restarts() -> dict[str, Any]:
        status = (await get(upper, namespace, "pod", "team"))["status"]
        return {one["name"]: (one["restartCount"], one["ready"]) for one in status["containerStatuses"]}

    await becomes(restarts, {"main": (1, True), "follower": (1, True)}, what="both containers start again")

    async def condition_is_gone() -> bool:
        status = (await get(upper, namespace, "pod", "team"))["status"]
        restarting = [c["status"] for c in status["conditions"] if c["type"] == "AllContainersRestarting"]
        return restarting in ([], ["False"])

    await eventually(condition_is_gone, what="the end of the restart")
