"""The checks of one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from clusterset.config import Cluster
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.client.connecting import weaknesses
from controller_runtime.errors import ApiError, ConfigError, Forbidden
from controller_runtime.rights import Right
from virtual_node.cluster import start_checks
from virtual_node.commands.common import connect, permissions, probes
from virtual_node.config.types import Config
from virtual_node.rights import daemon as rights

AGENT = "virtual-node-check"
_SKEW_LIMIT = 5.0
"""Maximum seconds between two clocks; with more, leases, tokens and events are misleading."""
_OLDEST_MINOR = 24
_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One row of the report."""

    cluster: str
    check: str
    ok: bool
    detail: str
    fix: str = ""


async def upper(config: Config, patience: float) -> list[CheckResult]:
    """Return the results for the upper cluster.

    Args:
        config: the clusters.
        patience: seconds to wait for each response.
    """

    async def checks(client: Client) -> AsyncIterator[CheckResult]:
        async for one in _cluster(client, rights.upper(config)):
            yield one
        async for one in _nodes(config, client):
            yield one

    path, server = config.kubeconfig, config.server
    return await _results("upper", checks, patience, path=path, server=server, in_cluster=True)


async def lower(cluster: Cluster, patience: float) -> list[CheckResult]:
    """Return the results for a lower cluster, see ``upper``."""
    needed = rights.lower(
        cluster.follow,
        resource_claims=cluster.resource_claims.enabled,
        shared_volumes=bool(cluster.volumes.shared),
    )
    return await _results(
        cluster.name,
        lambda client: _cluster(client, needed),
        patience,
        path=cluster.kubeconfig,
        context=cluster.context,
        server=cluster.server,
    )


async def _results(
    name: str,
    checks: Callable[[Client], AsyncIterator[CheckResult]],
    patience: float,
    *,
    path: str,
    context: str = "",
    server: str = "",
    in_cluster: bool = False,
) -> list[CheckResult]:
    """Return the results of ``checks``; an error that stops them becomes the last result."""
    found: list[CheckResult] = []
    try:
        config = await kubeconfig.load(path, context=context, server=server, in_cluster=in_cluster)
        try:
            async with Client(config, cluster=name, user_agent=AGENT, timeout=patience) as client:
                async for one in checks(client):
                    found.append(one)  # noqa: PERF401 - what came before an error counts
        except ApiError as error:  # ``explain`` raises ConfigError if the kubeconfig has changed meanwhile.
            trouble = connect.explain(error, config, path=path, context=context, in_cluster=in_cluster)
            found.append(CheckResult(name, "reachable", ok=False, detail=trouble.what, fix=trouble.step))
    except ConfigError as error:
        fix = "correct the kubeconfig"
        found.append(CheckResult(name, "kubeconfig", ok=False, detail=str(error), fix=fix))
    return found


async def _nodes(config: Config, client: Client) -> AsyncIterator[CheckResult]:
    """Yield a result for each virtual node: a failure if a real node has the same name."""
    for cluster in config.clusters:
        for node in cluster.virtual_nodes():
            try:
                await start_checks.refuse_real_nodes(client, [node.name])
            except ConfigError as error:
                yield CheckResult("upper", "node name", ok=False, detail=node.name, fix=str(error))
            except Forbidden:
                return  # Row ``may nodes`` reports the missing right.
            else:
                yield CheckResult("upper", "node name", ok=True, detail=node.name)


async def _cluster(client: Client, needed: Sequence[Right]) -> AsyncIterator[CheckResult]:
    name = client.cluster
    yield CheckResult(name, "kubeconfig", ok=True, detail=client.config.server)
    for what, step in weaknesses(client.config):
        # Not a failure, because a weak connection works and may be intended.
        yield CheckResult(name, "transport", ok=True, detail=f"warning: {what}", fix=step)
    version = await client.version(timeout=client.timeout)
    git_version = version.get("gitVersion", "?")
    minor = int("".join(filter(str.isdigit, version.get("minor", ""))) or 0)
    is_new, fix = minor >= _OLDEST_MINOR, f"Kubernetes 1.{_OLDEST_MINOR} or newer is needed"
    yield CheckResult(name, "version", ok=is_new, detail=git_version, fix="" if is_new else fix)
    moment = await probes.date(client)
    if moment is not None:
        skew = (moment - datetime.now(UTC)).total_seconds()
        is_near, fix = abs(skew) <= _SKEW_LIMIT, "let NTP set the clocks of this machine and the cluster"
        yield CheckResult(name, "clock", ok=is_near, detail=f"{skew:+.0f} s", fix="" if is_near else fix)
    limit = asyncio.Semaphore(_PARALLEL)
    rows = _by_resource(needed)
    for finding in await asyncio.gather(*(_rights(client, what, rows[what], limit) for what in rows)):
        yield finding
    try:
        system = await client.get(resources.NAMESPACES, "kube-system")
        yield CheckResult(name, "identity", ok=True, detail=str(system["metadata"]["uid"]))
    except ApiError as error:
        if name == "upper":
            fix = "grant get on namespace kube-system, or give --cluster-id"
            yield CheckResult(name, "identity", ok=False, detail=str(error), fix=fix)


def _by_resource(needed: Sequence[Right]) -> dict[str, list[Right]]:
    """Group rights by resource. The key includes the API group if two groups have a resource of that name."""
    groups: dict[str, set[str]] = {}
    for right in needed:
        groups.setdefault(right.full_resource, set()).add(right.group)
    rows: dict[str, list[Right]] = {}
    for right in needed:
        is_alone = len(groups[right.full_resource]) == 1 or not right.group
        name = right.full_resource if is_alone else f"{right.full_resource}.{right.group}"
        rows.setdefault(name, []).append(right)
    return rows


async def _rights(
    client: Client, what: str, needed: Sequence[Right], limit: asyncio.Semaphore
) -> CheckResult:
    fixes: list[str] = []
    for right in needed:
        if denied := await _denied(client, right, limit):
            group = right.group or '""'
            fixes.append(
                f"grant {', '.join(denied)} on {right.full_resource} (apiGroup {group}): {right.purpose}"
            )
    verbs = dict.fromkeys(verb for right in needed for verb in right.verbs)
    return CheckResult(
        client.cluster, f"may {what}", ok=not fixes, detail=", ".join(verbs), fix="; ".join(fixes)
    )


async def _denied(client: Client, right: Right, limit: asyncio.Semaphore) -> list[str]:
    """Return the denied verbs, each followed by the object name that the right is limited to, if any."""
    async with limit:
        return [
            " ".join(filter(None, (attributes["verb"], attributes.get("name"))))
            for attributes in right.attributes()
            if not await permissions.may(client, attributes)
        ]
