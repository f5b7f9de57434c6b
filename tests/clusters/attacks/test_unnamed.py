"""Stolen tokens where RBAC cannot name the objects: Leases of replicas, and Nodes of ClusterProfiles of any name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller_runtime.client.client import Client
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm
from tests.clusters.attacks.stolen_tokens import (
    UNINSTALL,
    VIRTUAL_NODE,
    Attack,
    clients,
    enforced,
    refusal_of,
)
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, make_namespace

pytestmark = pytest.mark.e2e

SHOP, FLEET = "shop", "fleet"
OURS, PROFILE, REAL = "tokyo", "profile-a", "real"
VALUES = {
    "virtualNode": {
        "mode": "Sharded",
        "clusters": [{"name": OURS, "kubeconfigSecret": {"name": "tokyo"}}],
        "clusterProfiles": {
            "namespace": FLEET,
            "namePrefix": "profile-",
            "providers": [{"name": "files", "execConfig": {"command": "./plugin"}}],
        },
    },
    "webhook": {"enabled": False},
    "descheduler": {"enabled": False},
}
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_OTHERS = ("virtual-node-descheduler", "virtual-node-swarm", f"{VIRTUAL_NODE}-scheduler")
_CORDON = {"spec": {"unschedulable": True}}


def _lease(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"holderIdentity": "a"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def attackers(alone: Lend) -> AsyncIterator[dict[str, Client]]:
    """Clients of the accounts of the virtual node and of ``helm uninstall``; the API server knows the policies."""
    async with alone() as sandbox:
        upper = sandbox.upper
        await _install(sandbox)
        await make_namespace(upper, SHOP)
        for name in (OURS, PROFILE, REAL):
            await upper.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            running = pod(f"on-{name}", "sleep 3600")
            await create(upper, SHOP, {**running, "spec": {**running["spec"], "nodeName": name}})
        for name in _OTHERS:
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **_lease(name)}
            await create(upper, NAMESPACE, lease)
        async with clients(upper, (VIRTUAL_NODE, UNINSTALL)) as found:
            for account in found:
                await enforced(found, (account, "PATCH", f"/api/v1/nodes/{REAL}?dryRun=All", _CORDON))
            yield found


async def _install(sandbox: Sandbox) -> Cluster:
    """Install the chart, with the account and the policy that exist only while ``helm uninstall`` runs."""
    upper = sandbox.upper
    for namespace in (NAMESPACE, FLEET):
        await upper.kubectl("create", "namespace", namespace)
    await helm(
        sandbox, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--no-hooks", values=VALUES
    )
    rendered = await helm(
        *(sandbox, "template", RELEASE, str(CHART), f"--namespace={NAMESPACE}"),
        *("--show-only=templates/uninstall/cleanup.yaml", "--kube-version=1.34.0"),
        values=VALUES,
    )
    hooks = [body for body in yaml.safe_load_all(rendered.stdout) if body and body["kind"] != "Job"]
    await upper.apply(*hooks)
    return upper


REFUSED: list[tuple[Attack, str]] = [
    # Two descheduler replicas would work at the same time.
    *(
        ((VIRTUAL_NODE, method, f"{_LEASES}/{name}", body), f"of its own election; this is {name}")
        for name in _OTHERS
        for method, body in (("PUT", _lease(name)), ("DELETE", None))
    ),
    ((VIRTUAL_NODE, "POST", _LEASES, _lease("other")), "of its own election; this is other"),
    ((VIRTUAL_NODE, "DELETE", f"/api/v1/namespaces/{SHOP}/pods/on-{REAL}", None), "this pod is on node real"),
    ((UNINSTALL, "DELETE", f"/api/v1/namespaces/{SHOP}/pods/on-{REAL}", None), "this pod is on node real"),
    *(
        ((UNINSTALL, method, f"/api/v1/nodes/{REAL}", body), "only nodes that it may patch; this is real")
        for method, body in (("PATCH", _CORDON), ("DELETE", None))
    ),
    ((UNINSTALL, "DELETE", f"{_LEASES}/virtual-node-swarm", None), "of its own election"),
]
ALLOWED: list[Attack] = [
    *(
        request
        for name in (f"{VIRTUAL_NODE}-replica-a", f"{VIRTUAL_NODE}-cluster-{OURS}")
        for request in (
            (VIRTUAL_NODE, "POST", _LEASES, _lease(name)),
            (VIRTUAL_NODE, "PUT", f"{_LEASES}/{name}", _lease(name)),
        )
    ),
    (VIRTUAL_NODE, "DELETE", f"{_LEASES}/{VIRTUAL_NODE}-replica-a", None),
    (UNINSTALL, "DELETE", f"{_LEASES}/{VIRTUAL_NODE}-cluster-{OURS}", None),
    (UNINSTALL, "DELETE", f"{_LEASES}/virtual-node-descheduler", None),
    *(
        request
        for name in (OURS, PROFILE)
        for request in (
            (UNINSTALL, "PATCH", f"/api/v1/nodes/{name}", _CORDON),
            (UNINSTALL, "DELETE", f"/api/v1/namespaces/{SHOP}/pods/on-{name}", None),
            (UNINSTALL, "DELETE", f"/api/v1/nodes/{name}", None),
        )
    ),
]


async def test_refuses_access_to_objects_of_others(attackers: dict[str, Client]):
    """RBAC allows each of these requests; the policies refuse it."""
    for attack, expected in REFUSED:
        assert expected in (await refusal_of(attackers, attack)).replace('"', ""), attack


async def test_allows_what_the_programs_do(attackers: dict[str, Client]):
    """The Leases of the election, and the Nodes of the clusters in the values and with the prefix."""
    for request in ALLOWED:
        assert await refusal_of(attackers, request) == "", request
