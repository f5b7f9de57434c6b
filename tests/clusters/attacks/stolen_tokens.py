"""Requests with the tokens of the accounts that the chart creates."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from hack.sandbox import Cluster
from hack.sandbox.commands.helm import NAMESPACE, RELEASE
from tests.waiting import eventually

VIRTUAL_NODE = f"{RELEASE}-virtual-node"
WEBHOOK, DESCHEDULER, SWARM, ANNOTATOR, MULTI_SCHEDULER, TEST, UNINSTALL = (
    f"{VIRTUAL_NODE}-{part}"
    for part in ("webhook", "descheduler", "swarm", "annotator", "multi-scheduler", "test", "uninstall")
)

Attack = tuple[str, str, str, Mapping[str, Any] | None]
"""Account, HTTP method, path, body."""


@contextlib.asynccontextmanager
async def clients(upper: Cluster, accounts: Iterable[str]) -> AsyncIterator[dict[str, Client]]:
    """Yield a client for each account, with its token."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for account in accounts:
            token = (await upper.kubectl("-n", NAMESPACE, "create", "token", account)).stdout.strip()
            config = await kubeconfig.load(str(token_kubeconfig(upper, account, token)), in_cluster=False)
            found[account] = await stack.enter_async_context(Client(config, cluster="upper"))
        yield found


async def enforced(attackers: Mapping[str, Client], attack: Attack) -> None:
    """Wait until a policy refuses a request, so the API server knows the policies."""

    async def refused() -> bool:
        return "denied request" in await refusal_of(attackers, attack)

    await eventually(refused, what=f"the API server knows the policy of {attack[0]}")


def token_kubeconfig(upper: Cluster, account: str, token: str) -> Path:
    """Write a kubeconfig with a token; return its path."""
    config = json.loads(upper.kubeconfig.read_text("utf-8"))
    config["users"][0]["user"] = {"token": token}
    path = upper.directory / f"{account}.kubeconfig"
    path.write_text(json.dumps(config), "utf-8")
    return path


async def refusal_of(attackers: Mapping[str, Client], attack: Attack) -> str:
    """Send a request; return why it is refused, empty when it is not."""
    account, method, path, body = attack
    if body and method == "PUT" and "/leases/" in path:  # the API server requires the version of Leases
        current = json.loads(await attackers[account].request("GET", path))
        version = current["metadata"]["resourceVersion"]
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        await attackers[account].request(
            method, path, body=json.dumps(body).encode() if body else None, headers={"Content-Type": kind}
        )
    except ApiError as error:
        return error.message if error.code == 403 else f"not refused, but {error}"
    return ""
