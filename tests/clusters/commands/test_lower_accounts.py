"""`lower-cluster register` on real API servers: two accounts with tokens of limited life, and their renewal."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import pytest_asyncio
import structlog

from clusterset.config import Cluster, TokenSecret
from clusterset.model.token_life import TokenLife, token_life
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError, Forbidden
from hack.sandbox import Sandbox
from hack.sandbox.command import command
from tests.clusters.chart.installation import read
from tests.clusters.pool import Lend
from virtual_node.cluster.credential_renewal import CredentialRenewal, kube_system
from virtual_node.controllers.base.context import ClusterContext

pytestmark = pytest.mark.e2e

SPACE = "virtual-node-system"
FULL, VIEWER = SECRETS = [
    TokenSecret(namespace=SPACE, name=name) for name in ("virtual-node-lower1", "virtual-node-lower1-viewer")
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(simulated: Lend) -> AsyncIterator[Sandbox]:
    """An upper cluster and a registered lower one."""
    async with simulated(lower=1) as sandbox:
        await sandbox.upper.kubectl("create", "namespace", SPACE)
        await _register(sandbox, "--token-duration=2h")
        yield sandbox


async def _register(sandbox: Sandbox, *more: str) -> None:
    await command(
        [
            *(sys.executable, "-m", "virtual_node", "lower-cluster", "register", "--name=lower1"),
            f"--client-kubeconfig={sandbox.lower[0].kubeconfig}",
            *(f"--kubeconfig={sandbox.upper.kubeconfig}", f"--namespace={SPACE}", *more),
        ]
    )


async def _mount(sandbox: Sandbox, secret: TokenSecret) -> Path:
    """Write the files of a Secret as a volume has them; return the kubeconfig's path."""
    found = await read(sandbox.upper, "-n", SPACE, "secret", secret.name)
    folder = sandbox.directory / secret.name
    folder.mkdir(exist_ok=True)
    for name, value in found["data"].items():
        (folder / name).write_bytes(base64.b64decode(value))
    return folder / "kubeconfig"


async def _client(sandbox: Sandbox, secret: TokenSecret) -> Client:
    config = await kubeconfig.load(str(await _mount(sandbox, secret)), in_cluster=False)
    return Client(config, cluster="lower1")


async def _token(sandbox: Sandbox, secret: TokenSecret) -> str:
    return (await _mount(sandbox, secret)).with_name("token").read_text("utf-8")


async def _life(sandbox: Sandbox, secret: TokenSecret) -> TokenLife:
    found = token_life(await _token(sandbox, secret))
    assert found is not None
    return found


async def test_accounts_have_tokens_of_limited_life(clusters: Sandbox):
    """No Secret in the lower cluster contains one, and the kubeconfig refers to the token file."""
    for secret, account in ((FULL, "virtual-node"), (VIEWER, "virtual-node-viewer")):
        life = await _life(clusters, secret)
        assert (life.namespace, life.account) == ("virtual-node", account)
        assert life.ends is not None
        assert life.ends - life.starts == timedelta(hours=2)
        assert "tokenFile: token" in (await _mount(clusters, secret)).read_text("utf-8")
    assert (await read(clusters.lower[0], "-n", "virtual-node", "secrets"))["items"] == []


async def test_the_viewer_account_is_read_only(clusters: Sandbox):
    """It lists what the multi-scheduler needs; Secrets, writes and tokens are refused."""
    async with await _client(clusters, VIEWER) as viewer:
        await viewer.list(resources.PODS)
        with pytest.raises(Forbidden):
            await viewer.list(resources.SECRETS)
        with pytest.raises(Forbidden):
            await viewer.create(resources.PODS, {"metadata": {"name": "p"}}, namespace="default")
        for account in ("virtual-node", "virtual-node-viewer"):
            with pytest.raises(Forbidden):
                await _request(viewer, account)


async def _request(client: Client, account: str, namespace: str = "virtual-node") -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    await client.create(
        resources.SERVICE_ACCOUNTS, body, namespace=namespace, name=account, subresource="token"
    )


async def test_renews_both_tokens_and_no_others(clusters: Sandbox):
    """The virtual node's own lower account suffices; processes that mount the Secrets read the new tokens."""
    before = [await _token(clusters, secret) for secret in SECRETS]
    upper_config = await kubeconfig.load(str(clusters.upper.kubeconfig), in_cluster=False)
    async with (
        Client(upper_config, cluster="upper") as upper,
        await _client(clusters, FULL) as lower,
        await _client(clusters, VIEWER) as viewer,
    ):
        for account, namespace in (("default", "virtual-node"), ("default", "kube-system")):
            with pytest.raises(Forbidden):
                await _request(lower, account, namespace)
        config = Cluster(name="lower1", token_secrets=SECRETS)
        context = SimpleNamespace(
            name="lower1", upper=upper, lower=lower, config=config, log=structlog.get_logger()
        )
        soon = datetime.now(UTC) + timedelta(hours=1.7)
        renewal = CredentialRenewal(cast("ClusterContext", context), SECRETS, now=lambda: soon)
        for secret in SECRETS:
            await renewal.renew(secret)
        after = [await _token(clusters, secret) for secret in SECRETS]
        assert not set(before) & set(after)
        for client in (lower, viewer):
            await client.config.headers(refresh=True)
            await client.list(resources.PODS)


async def test_reports_the_command_to_run_when_a_token_is_refused(clusters: Sandbox):
    """As after its expiry; registering again suffices."""
    path = await _mount(clusters, FULL)
    (path.parent / "token").write_text("expired", "utf-8")
    async with Client(await kubeconfig.load(str(path), in_cluster=False), cluster="lower1") as lower:
        config = Cluster(name="lower1", token_secrets=SECRETS)
        context = cast("ClusterContext", SimpleNamespace(name="lower1", lower=lower, config=config))
        with pytest.raises(ConfigError, match=f"lower-cluster register lower1 .* --namespace {SPACE}"):
            await kube_system(context)
        await _register(clusters)
        await _mount(clusters, FULL)
        await lower.config.headers(refresh=True)
        await lower.list(resources.PODS)


async def test_legacy_tokens_are_made_on_request(clusters: Sandbox):
    """Inside the kubeconfig, for a file that nothing renews; older installations continue with theirs."""
    done = await command(
        [
            *(sys.executable, "-m", "virtual_node", "lower-cluster", "register", "--name=lower1"),
            *(f"--client-kubeconfig={clusters.lower[0].kubeconfig}", "--legacy-token"),
        ]
    )
    assert done.stdout.count("token: ey") == 2
    assert "tokenFile" not in done.stdout
    made = json.dumps(await read(clusters.lower[0], "-n", "virtual-node", "secrets"))
    assert '"virtual-node-token"' in made
