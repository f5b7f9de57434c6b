"""Kubeconfigs of real clusters: with impersonation, and with credentials that are rotated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox, SandboxError
from hack.sandbox.cluster import LOOPBACK
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, eventually, make_namespace, node_ready, ready
from virtual_node.rights import daemon, manifests

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
ACCOUNTS, ACCOUNT = "tenancy", "front"
TENANT, GROUP, TEAM = "tenant", "tenants", "example.com/team"
TOKEN, PLUGIN = "vn-token", "vn-plugin"
GUARDED = {"guarded": "by-team"}
"""Label of lower namespaces that are guarded."""
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Front:
    """A lower cluster that its account may use only while it impersonates the tenant with that group and team."""

    cluster: Cluster
    file: Path
    """Holds the account's token."""

    async def renew(self, secret: str) -> None:
        """Replace the file by one with another token, which is valid as long as a Secret of that name exists."""
        api, accounts = self.cluster.api, f"/api/v1/namespaces/{ACCOUNTS}"
        made = await api.create(f"{accounts}/secrets", {"metadata": {"name": secret}})
        bound = {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": made["metadata"]["uid"]}
        answer = await api.create(
            f"{accounts}/serviceaccounts/{ACCOUNT}/token",
            {"spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}},
        )
        fresh = self.file.with_suffix(".fresh")
        fresh.write_text(answer["status"]["token"], encoding="utf-8")
        fresh.rename(self.file)

    async def revoke(self, secret: str, token: str) -> None:
        """Delete the Secret that a token is bound to, and wait until the API server refuses the token."""
        await self.cluster.api.delete(f"/api/v1/namespaces/{ACCOUNTS}/secrets/{secret}")

        async def refused() -> bool:
            done = await self.cluster.kubectl(
                *("--kubeconfig=/dev/null", f"--server={self.cluster.server}", f"--token={token}"),
                *(f"--certificate-authority={self.cluster.ca}", "auth", "whoami"),
                check=False,
            )
            return "Unauthorized" in done.stderr

        # API servers cache a valid token for ten seconds.
        await eventually(refused, what="the old token is refused")

    def kubeconfig(self, credentials: dict[str, Any]) -> Path:
        """A file with these credentials of the account, and the impersonation."""
        config = json.loads(self.cluster.kubeconfig.read_text(encoding="utf-8"))
        acting = {"as": TENANT, "as-groups": [GROUP], "as-user-extra": {TEAM: ["blue"]}}
        config["users"][0]["user"] = {**credentials, **acting}
        file = self.file.with_suffix(".kubeconfig")
        file.write_text(json.dumps(config), encoding="utf-8")
        return file


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fronts(sandbox: Sandbox) -> AsyncIterator[list[Front]]:
    """A process with a token file for the real lower cluster, and a credential plugin for the simulated one."""
    made = [Front(cluster, sandbox.directory / f"{cluster.name}.token") for cluster in sandbox.lower[:2]]
    for front in made:
        await make_namespace(front.cluster, ACCOUNTS)
        await front.cluster.apply(*_rights(), *_guard())
        await front.renew("first")
    plugin = sandbox.directory / "plugin.sh"
    answer = (
        '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"%s"}}'
    )
    plugin.write_text(f"#!/bin/sh\nprintf '{answer}' \"$(cat {made[1].file})\"\n", encoding="utf-8")
    plugin.chmod(0o700)
    token = made[0].kubeconfig({"tokenFile": str(made[0].file)})
    run = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "kubeconfig": str(sandbox.upper.kubeconfig),
        "kubelet": {"port": 0, "nodeIp": LOOPBACK},
        "clusters": [
            {"name": "token", "kubeconfig": str(token), "nodeName": TOKEN, "namespaces": {"adopt": True}},
            {
                "name": "plugin",
                "kubeconfig": str(made[1].kubeconfig({"exec": run})),
                "nodeName": PLUGIN,
                "namespaces": {"adopt": True},
            },
        ],
    }
    file = sandbox.directory / "fronts.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    process = await sandbox.start_virtual_node("--config", str(file), name="fronts")
    for node in (TOKEN, PLUGIN):
        await node_ready(sandbox.upper, node)
    yield made
    await process.stop()
    await sandbox.upper.kubectl("delete", "node", TOKEN, PLUGIN)


def _rights() -> list[dict[str, Any]]:
    """Grant the group the rights of virtual nodes, and the account only the impersonation of the group."""
    lower_role = manifests.cluster_role(daemon.LOWER, name=GROUP)
    acting = {
        "apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": ACCOUNT},
        "rules": [
            {"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": ["impersonate"]}
            for group, resource, name in (
                ("", "users", TENANT), ("", "groups", GROUP),
                ("authentication.k8s.io", f"userextras/{TEAM}", "blue"),
            )
        ],
    }  # fmt: skip
    subjects = {
        GROUP: {"apiGroup": RBAC, "kind": "Group", "name": GROUP},
        ACCOUNT: {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": ACCOUNTS},
    }
    bindings = [
        {
            "apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}, "subjects": [subject],
        }
        for name, subject in subjects.items()
    ]  # fmt: skip
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": ACCOUNTS},
    }
    return [account, lower_role, acting, *bindings]


def _guard() -> list[dict[str, Any]]:
    """Allow only the tenant of team blue to create pods in guarded namespaces."""
    version, name = "admissionregistration.k8s.io/v1", {"name": ACCOUNTS}
    who = f"request.userInfo.username == '{TENANT}' && request.userInfo.extra['{TEAM}'] == ['blue']"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": name,
        "spec": {
            "matchConstraints": {"resourceRules": [pods], "namespaceSelector": {"matchLabels": GUARDED}},
            "validations": [{"expression": who, "message": "not of team blue"}],
        },
    }  # fmt: skip
    binding = {
        "apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": name,
        "spec": {"policyName": ACCOUNTS, "validationActions": ["Deny"]},
    }  # fmt: skip
    return [policy, binding]


async def test_the_lower_cluster_sees_the_impersonated_user(
    upper: Cluster, fronts: list[Front], namespace: str
):
    """User, groups and extra of every request, including streams; the account by itself has no rights."""
    stranger = {"metadata": {"name": "stranger"}, "spec": pod("stranger", "")["spec"]}
    for front in fronts:
        await make_namespace(front.cluster, namespace, labels=GUARDED)

        async def guarded(front: Front = front) -> bool:
            try:
                await front.cluster.api.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", stranger)
            except SandboxError as error:
                return "not of team blue" in str(error)
            return False

        await eventually(guarded, what="the policy is in force")
    await create(
        upper, namespace, *(pod(node, "echo said; sleep 3600", node=node) for node in (TOKEN, PLUGIN))
    )
    for node in (TOKEN, PLUGIN):
        await ready(upper, namespace, node)
    assert (await upper.kubectl("-n", namespace, "exec", TOKEN, "--", "echo", "done")).stdout == "done\n"


async def test_credentials_are_read_again_when_the_server_refuses_them(
    upper: Cluster, fronts: list[Front], namespace: str
):
    """A replaced token file, and a plugin with another token: requests and streams work again."""
    await create(upper, namespace, pod("before", "sleep 3600", node=TOKEN))
    await ready(upper, namespace, "before")
    for front in fronts:
        old = front.file.read_text(encoding="utf-8")
        await front.renew("second")
        await front.revoke("first", old)
    assert (await upper.kubectl("-n", namespace, "exec", "before", "--", "echo", "done")).stdout == "done\n"
    await create(upper, namespace, *(pod(node, "sleep 3600", node=node) for node in (TOKEN, PLUGIN)))
    for node in (TOKEN, PLUGIN):
        await ready(upper, namespace, node)
