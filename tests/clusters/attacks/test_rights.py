"""Stolen tokens of the virtual node and the descheduler on a real API server: what RBAC and the policies refuse and allow."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import Forbidden
from hack.sandbox import Cluster
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm
from tests.clusters.attacks import descheduler_requests, virtual_node_requests
from tests.clusters.attacks.stolen_tokens import (
    DESCHEDULER,
    MULTI_SCHEDULER,
    VIRTUAL_NODE,
    WEBHOOK,
    clients,
    enforced,
    refusal_of,
)
from tests.clusters.attacks.victims import (
    CSR,
    OPERATORS,
    OURS,
    PODS,
    SHOP,
    create_victims,
    eviction,
    for_pod,
    signing_request,
    token,
)
from tests.clusters.chart.installation import read
from tests.clusters.pool import Lend
from tests.waiting import eventually

pytestmark = pytest.mark.e2e

VALUES = {
    "virtualNode": {
        "clusters": [
            {
                "name": OURS,
                "kubeconfigSecret": {"name": "virtual-node-tokyo"},
                "config": {"follow": ["ingresses", "gateways"]},
            }
        ],
        "kubelet": {"servingCertificate": "CSR", "approveServingCertificate": True},
        # The setting with which the account may request more tokens.
        "config": {"identities": {"tokens": "node"}},
    },
    "admissionPolicy": {"protectedNamespaces": [OPERATORS]},
}
REFUSED = [*virtual_node_requests.REFUSED, *descheduler_requests.REFUSED]
ALLOWED = [*virtual_node_requests.ALLOWED, *descheduler_requests.ALLOWED]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def upper(alone: Lend) -> AsyncIterator[Cluster]:
    """An upper cluster with the chart's rights and policies, a virtual node, a real one, and pods on both."""
    async with alone() as sandbox:
        upper = sandbox.upper
        await upper.kubectl("create", "namespace", NAMESPACE)
        await helm(
            sandbox, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--no-hooks", values=VALUES
        )
        await create_victims(upper)
        yield upper


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def attackers(upper: Cluster) -> AsyncIterator[dict[str, Client]]:
    """A client for each account, with its token; the API server knows the policies."""
    async with clients(upper, (VIRTUAL_NODE, DESCHEDULER)) as found:
        await enforced(found, (VIRTUAL_NODE, "DELETE", f"{PODS}/a-real?dryRun=All", None))
        yield found


async def test_refuses_access_to_objects_of_others(upper: Cluster, attackers: dict[str, Client]):
    """Each attack is refused, by RBAC or by a policy with a message that names what the account may do."""
    for attack, expected in REFUSED:
        refusal = await refusal_of(attackers, attack)
        assert expected in refusal.replace('"', ""), attack
        assert "expression" not in refusal, "the message is a sentence, not the source of the policy"
    for name in ("a-real", "waiting"):
        left = await read(upper, "-n", SHOP, "pod", name)
        assert "deletionTimestamp" not in left["metadata"]
        assert left["status"].get("message") != "forged"


async def test_account_may_act_as_its_node_only_to_request_a_serving_certificate(
    attackers: dict[str, Client],
):
    """The Node authorizer gives a node tokens for all its pods, also in kube-system, and a client certificate."""
    client_certificate = {
        **signing_request(OURS)["spec"],
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }
    system = await attackers[VIRTUAL_NODE].get(resources.PODS, "system", namespace="kube-system")
    bound = {**for_pod("system"), "uid": system["metadata"]["uid"]}
    attacks: list[tuple[str, Mapping[str, Any]]] = [
        ("/api/v1/namespaces/kube-system/serviceaccounts/default/token", token(boundObjectRef=bound)),
        ("/api/v1/namespaces/kube-system/pods/system/eviction", eviction("system", "kube-system")),
        (CSR, {**signing_request(OURS), "metadata": {"name": "client"}, "spec": client_certificate}),
    ]
    impersonation = {
        "Content-Type": "application/json",
        "Impersonate-User": f"system:node:{OURS}",
        "Impersonate-Group": "system:nodes",
    }
    for path, body in attacks:
        with pytest.raises(Forbidden, match="may act as its node only to request a serving certificate"):
            await attackers[VIRTUAL_NODE].request(
                "POST", path, body=json.dumps(body).encode(), headers=impersonation
            )
    own = {**signing_request(OURS), "metadata": {"name": "own"}}
    await attackers[VIRTUAL_NODE].request("POST", CSR, body=json.dumps(own).encode(), headers=impersonation)


async def test_allows_the_same_access_to_own_objects(upper: Cluster, attackers: dict[str, Client]):
    """Own nodes, pods, volumes and requests; other users are not restricted."""
    for request in ALLOWED:
        assert await refusal_of(attackers, request) == "", request
    await upper.kubectl("-n", SHOP, "delete", "pod", "b-real", "--grace-period=0", "--force")


async def test_policies_have_no_type_errors(upper: Cluster):
    """The API server checks expressions against the types of the objects they apply to."""

    async def checked() -> bool:
        found = (await read(upper, "validatingadmissionpolicies"))["items"]
        wanted = {
            f"{NAMESPACE}.{account}" for account in (VIRTUAL_NODE, DESCHEDULER, WEBHOOK, MULTI_SCHEDULER)
        }
        checks = [(one.get("status") or {}).get("typeChecking") for one in found]
        return {one["metadata"]["name"] for one in found} == wanted and all(check == {} for check in checks)

    await eventually(checked, what="type checks without warnings")
