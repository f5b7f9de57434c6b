"""Lower namespaces: mapped, guarded by policy, shared by two upper clusters, and deleted when unused."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.command import command
from hack.sandbox.process import Process
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
OTHER = "vn-other"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def other(sandbox: Sandbox) -> AsyncIterator[Cluster]:
    """Another upper cluster with a virtual node for the same simulated lower cluster."""
    upper = await sandbox.add_lower(kwok_nodes=0)
    lower = sandbox.lower[1]
    configuration = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "kubeconfig": str(upper.kubeconfig),
        "kubelet": {"port": 0, "nodeIp": LOOPBACK},
        "clusters": [
            {
                "name": lower.name,
                "kubeconfig": str(lower.kubeconfig),
                "nodeName": OTHER,
                "namespaces": {
                    "prefix": "other-",
                    "map": {"same": "unmapped", "clash": "clash", "shared": "shared"},
                    "allowed": ["t-*", "same", "clash", "shared"],
                    "adopt": ["shared"],
                },
                "podSelector": {
                    "matchExpressions": [{"key": "refused", "operator": "NotIn", "values": ["true"]}]
                },
            }
        ],
    }
    file = sandbox.directory / "other.yaml"
    file.write_text(json.dumps(configuration), encoding="utf-8")
    process: Process = await sandbox.start_virtual_node(
        f"--kubeconfig={upper.kubeconfig}",
        "--config",
        str(file),
        "--log-level=debug",
        name="virtual-node-other",
    )
    await node_ready(upper, OTHER)
    yield upper
    await process.stop()


async def is_there(cluster: Cluster, *what: str) -> bool:
    """Report whether an object exists."""
    done = await cluster.kubectl("get", *what, check=False)
    return done.returncode == 0


async def events(cluster: Cluster, namespace: str, name: str) -> str:
    """Return the messages of an object's events."""
    found = (await get(cluster, namespace, "events", fields=f"involvedObject.name={name}"))["items"]
    return "".join(f"{one['reason']}: {one['message']}\n" for one in found)


async def test_two_upper_clusters_share_a_lower_one(
    sandbox: Sandbox, upper: Cluster, other: Cluster, namespace
):
    """The same pod in the same namespace of both: two lower pods, and each upper cluster deletes its own."""
    lower = sandbox.lower[1]
    await make_namespace(other, namespace, labels={"pod-security.kubernetes.io/enforce": "baseline"})
    await create(upper, namespace, pod("web", "sleep 3600", node=SIMULATED))
    await create(other, namespace, pod("web", "sleep 3600", node=OTHER))
    await asyncio.gather(ready(upper, namespace, "web"), ready(other, namespace, "web"))

    mine = await get(lower, namespace, "pod", "web")
    others = await get(lower, f"other-{namespace}", "pod", "web")
    assert (
        mine["metadata"]["labels"]["virtual-node.io/upper-cluster"]
        != (others["metadata"]["labels"]["virtual-node.io/upper-cluster"])
    )
    carried = (await get(lower, "default", "namespace", f"other-{namespace}"))["metadata"]["labels"]
    assert carried["pod-security.kubernetes.io/enforce"] == "baseline"

    await other.kubectl(
        "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite"
    )

    async def followed() -> bool:
        labels = (await get(lower, "default", "namespace", f"other-{namespace}"))["metadata"]["labels"]
        return bool(labels["pod-security.kubernetes.io/enforce"] == "restricted")

    await eventually(followed, what="the pod security label follows")
    logs = await other.kubectl("-n", namespace, "logs", "web", check=False)
    # A simulated node keeps no logs; its error with the mapped name shows where the request went.
    assert f"other-{namespace}/web" in logs.stderr

    await other.kubectl("delete", "namespace", namespace, "--timeout=150s")

    async def gone() -> bool:
        return not await is_there(lower, "namespace", f"other-{namespace}")

    await eventually(gone, what="the namespace made for the other upper cluster goes")
    assert (await get(lower, namespace, "pod", "web"))["metadata"]["uid"] == mine["metadata"]["uid"]


async def test_an_explicit_name_wins_over_the_prefix(sandbox: Sandbox, other: Cluster):
    """namespaces.map."""
    await make_namespace(other, "same")
    await create(other, "same", pod("web", "sleep 3600", node=OTHER))
    await ready(other, "same", "web")
    assert await is_there(sandbox.lower[1], "-n", "unmapped", "pod/web")
    await other.kubectl("delete", "namespace", "same", "--timeout=150s")


async def test_a_namespace_with_an_unmanaged_object_is_kept(sandbox: Sandbox, other: Cluster):
    """Of any kind, because deleting the namespace would delete it."""
    lower, name = sandbox.lower[1], f"t-{secrets.token_hex(4)}"
    await make_namespace(other, name)
    await create(other, name, pod("web", "sleep 3600", node=OTHER))
    await ready(other, name, "web")
    await lower.kubectl(
        "-n", f"other-{name}", "create", "deployment", "stranger", "--image=x", "--replicas=0"
    )
    await other.kubectl("delete", "namespace", name, "--timeout=150s")

    async def is_logged() -> bool:
        log = (sandbox.directory / "virtual-node-other.log").read_text(encoding="utf-8")
        return "lower namespace kept" in log and "stranger" in log

    await eventually(is_logged, what="the log has the reason why the namespace is kept")
    assert await is_there(lower, "-n", f"other-{name}", "deployment/stranger")


async def test_a_namespace_made_for_one_upper_cluster_is_refused_to_another(
    sandbox: Sandbox, upper: Cluster, other: Cluster
):
    """Without a mapping the second cluster's pod waits, with a reason; nothing of it enters the first one's namespace."""
    await make_namespace(upper, "clash")
    await make_namespace(other, "clash")
    await create(upper, "clash", pod("web", "sleep 3600", node=SIMULATED))
    await ready(upper, "clash", "web")
    await create(other, "clash", pod("web", "sleep 3600", node=OTHER))

    async def is_reported() -> bool:
        return "NamespaceConflict: Namespace clash in lower cluster" in await events(other, "clash", "web")

    await eventually(is_reported, what="the conflict in the second pod's events")
    lower = await get(sandbox.lower[1], "clash", "pod", "web")
    assert lower["metadata"]["labels"]["virtual-node.io/node"] == SIMULATED
    await other.kubectl("delete", "namespace", "clash", "--timeout=150s")
    assert await is_there(sandbox.lower[1], "-n", "clash", "pod/web")
    await upper.kubectl("delete", "namespace", "clash", "--timeout=150s")


async def test_policy_keeps_pods_out(other: Cluster):
    """A namespace that is not allowed, and a pod that the selector excludes: Pending, with a reason."""
    await make_namespace(other, "elsewhere")
    await create(other, "elsewhere", pod("web", "sleep 3600", node=OTHER))
    name = f"t-{secrets.token_hex(4)}"
    await make_namespace(other, name)
    refused = pod("refused", "sleep 3600", node=OTHER)
    refused["metadata"]["labels"]["refused"] = "true"
    await create(other, name, refused)

    async def is_reported() -> bool:
        return "takes no pods of namespace elsewhere" in await events(
            other, "elsewhere", "web"
        ) and "podSelector" in await events(other, name, "refused")

    await eventually(is_reported, what="events name the policy")

    async def admitted() -> list[tuple[str, str, str]]:
        status = (await get(other, "elsewhere", "pod", "web"))["status"]
        return [
            (status["phase"], one["status"], one["reason"])
            for one in status["conditions"]
            if one["type"] == "virtual-node.io/Admitted"
        ]

    await becomes(admitted, [("Pending", "False", "NotAllowed")], what="the reason in the condition")
    await other.kubectl("delete", "namespace", "elsewhere", name, "--timeout=150s")


async def test_pods_over_a_lower_quota_wait_with_a_reason(sandbox: Sandbox, upper: Cluster, namespace):
    """A condition and an event name the quota; the pod runs as soon as there is room."""
    lower = sandbox.lower[1]
    await make_namespace(lower, namespace)
    await lower.kubectl("-n", namespace, "create", "quota", "tight", "--hard=pods=1")

    async def counted() -> bool:
        quota = await get(lower, namespace, "resourcequota", "tight")
        return "pods" in (quota.get("status") or {}).get("used", {})

    await eventually(counted, what="the quota counts")
    await create(upper, namespace, pod("first", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "first")
    await create(upper, namespace, pod("second", "sleep 3600", node=SIMULATED))

    async def refused() -> bool:
        status = (await get(upper, namespace, "pod", "second"))["status"]
        return any(
            one["type"] == "virtual-node.io/Admitted" and one["reason"] == "ExceededQuota"
            for one in status.get("conditions", ())
        )

    await eventually(refused, what="the condition names the quota")

    async def is_reported() -> bool:
        return "exceeded quota: tight" in await events(upper, namespace, "second")

    await eventually(is_reported, what="the event names the quota")
    await upper.kubectl("-n", namespace, "delete", "pod", "first", "--timeout=150s")
    await ready(upper, namespace, "second")

    async def waits() -> list[dict[str, Any]]:
        status = (await get(upper, namespace, "pod", "second"))["status"]
        return [one for one in status["conditions"] if one["type"] == "virtual-node.io/Admitted"]

    await becomes(waits, [], what="the condition is gone")


async def test_lower_objects_of_another_upper_cluster_stay(sandbox: Sandbox, upper: Cluster, other: Cluster):
    """The last test of the other one: it stops, leaves orphans and is cleaned up, without effect on this one.

    Both adopt a namespace of the lower cluster.
    """
    lower = sandbox.lower[1]
    await make_namespace(lower, "shared")
    volumes = [{"name": "v", "configMap": {"name": "settings"}}]
    for cluster, name in ((upper, "ours"), (other, "theirs")):
        await make_namespace(cluster, "shared")
        await cluster.kubectl("-n", "shared", "create", "configmap", "settings", f"--from-literal=of={name}")
    await create(upper, "shared", pod("ours", "sleep 3600", node=SIMULATED, volumes=volumes))
    await ready(upper, "shared", "ours")
    blocked = pod("blocked", "sleep 3600", node=OTHER, volumes=volumes)
    await create(other, "shared", blocked, pod("theirs", "sleep 3600", node=OTHER))
    await ready(other, "shared", "theirs")

    async def is_reported() -> bool:
        return "ConfigMap shared/settings that is not ours" in await events(other, "shared", "blocked")

    await eventually(is_reported, what="the unmanaged ConfigMap in the pod's event")

    async def lower_objects(owner: Cluster) -> set[str]:
        uid = (await get(owner, "", "namespace", "kube-system"))["metadata"]["uid"]
        label = f"virtual-node.io/upper-cluster={uid}"
        return {
            f"{kind} {found['metadata']['uid']}"
            for kind in ("pods", "secrets", "configmaps")
            for found in (await get(lower, "shared", kind, labels=label))["items"]
        }

    async def sizes() -> tuple[int, int]:
        return len(await lower_objects(upper)), len(await lower_objects(other))

    await becomes(sizes, (4, 3))
    ours, others = await lower_objects(upper), await lower_objects(other)
    (process,) = [one for one in sandbox.processes if one.name == "virtual-node-other"]
    await process.stop()
    await other.kubectl("-n", "shared", "delete", "pods", "--all", "--grace-period=0", "--force")
    # By the time that another pod runs, this process would have acted.
    await create(upper, "shared", pod("later", "sleep 3600", node=SIMULATED))
    await ready(upper, "shared", "later")
    assert await lower_objects(other) == others
    await command(
        [
            *(sys.executable, "-m", "virtual_node", "cleanup"),
            f"--config={sandbox.directory / 'other.yaml'}",  # it adopts the namespace
        ]
    )
    await becomes(lambda: lower_objects(other), set(), what="nothing of the other upper cluster is left")
    assert ours < await lower_objects(upper)
    assert (await get(lower, "shared", "configmap", "settings"))["data"] == {"of": "ours"}
    await upper.kubectl("delete", "namespace", "shared", "--timeout=150s")
    await lower.kubectl("delete", "namespace", "shared", "--timeout=150s")
