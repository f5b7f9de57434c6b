"""The checks of one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.auth.weaknesses import weaknesses
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Forbidden
from controller_runtime.rights import Right
from virtual_node.cluster import start_checks
from virtual_node.commands.common import connect, permissions, probes
from virtual_node.config.types import Config, LowerClusterConfig
from virtual_node.rights import daemon as rights

_SKEW_LIMIT = 5.0
"""Seconds two clocks may differ before leases, tokens and events become misleading."""
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


async def collected(cluster: str, checks: AsyncIterator[CheckResult]) -> list[CheckResult]:
    """Return all results of one cluster; a ConfigError that stops the checks becomes the last result."""
    found: list[CheckResult] = []
    try:
        async for finding in checks:
            found.append(finding)  # noqa: PERF401 - what came before an error counts
    except ConfigError as error:
        found.append(
            CheckResult(cluster, "kubeconfig", ok=False, detail=str(error), fix="correct the kubeconfig")
        )
    return found


async def upper(config: Config, patience: float) -> AsyncIterator[CheckResult]:
    """Check the upper cluster; yield a result for each check.

    Args:
        config: the clusters.
        patience: seconds to wait for each response.

    Raises:
        ConfigError: the kubeconfig cannot be used.
    """
    loaded = await kubeconfig.load(config.kubeconfig, server=config.server)
    async for finding in _answering(
        "upper",
        loaded,
        rights.upper(config),
        path=config.kubeconfig,
        patience=patience,
        more=lambda client: _nodes(config, client),
    ):
        yield finding


async def lower(cluster: LowerClusterConfig, patience: float) -> AsyncIterator[CheckResult]:
    """Check a lower cluster like ``upper``."""
    context = cluster.context
    loaded = await kubeconfig.load(cluster.kubeconfig, context=context, in_cluster=False)
    async for finding in _answering(
        cluster.name,
        loaded,
        rights.lower(
            cluster.follow,
            resource_claims=cluster.resource_claims.enabled,
            shared_volumes=bool(cluster.volumes.shared),
        ),
        path=cluster.kubeconfig,
        context=context,
        patience=patience,
    ):
        yield finding


async def _nodes(config: Config, client: Client) -> AsyncIterator[CheckResult]:
    """Yield a result for each virtual node, which is a failure if a real node has its name."""
    for cluster in config.clusters:
        for node in cluster.virtual_nodes():
            try:
                await start_checks.refuse_real_nodes(client, [node.name])
            except ConfigError as error:
                yield CheckResult("upper", "node name", ok=False, detail=node.name, fix=str(error))
            except Forbidden:
                return  # The row of the right to get nodes reports this.
            else:
                yield CheckResult("upper", "node name", ok=True, detail=node.name)


async def _answering(
    name: str,
    loaded: ConnectionConfig,
    needed: Sequence[Right],
    *,
    path: str,
    context: str = "",
    patience: float,
    more: Callable[[Client], AsyncIterator[CheckResult]] | None = None,
) -> AsyncIterator[CheckResult]:
    """Yield the results of a cluster and of ``more``; an ApiError becomes the last result."""
    async with Client(loaded, cluster=name, user_agent="virtual-node-check", timeout=patience) as client:
        try:
            async for finding in _cluster(name, client, needed):
                yield finding
            if more is not None:
                async for finding in more(client):
                    yield finding
        except ApiError as error:
            trouble = connect.explain(error, loaded, path=path, context=context, in_cluster=name == "upper")
            yield CheckResult(name, "reachable", ok=False, detail=trouble.what, fix=trouble.step)


async def _cluster(name: str, client: Client, needed: Sequence[Right]) -> AsyncIterator[CheckResult]:
    yield CheckResult(name, "kubeconfig", ok=True, detail=client.config.server)
    for what, step in weaknesses(client.config):
        # Not a failure, because a weak connection works and may be intended.
        yield CheckResult(name, "transport", ok=True, detail=f"warning: {what}", fix=step)
    version = await client.version(timeout=client.timeout)
    git_version = version.get("gitVersion", "?")
    minor = int("".join(filter(str.isdigit, version.get("minor", ""))) or 0)
    yield CheckResult(
        name,
        "version",
        ok=minor >= _OLDEST_MINOR,
        detail=git_version,
        fix="" if minor >= _OLDEST_MINOR else f"Kubernetes 1.{_OLDEST_MINOR} or newer is needed",
    )
    moment = await probes.date(client)
    if moment is not None:
        skew = (moment - datetime.now(UTC)).total_seconds()
        yield CheckResult(
            name,
            "clock",
            ok=abs(skew) <= _SKEW_LIMIT,
            detail=f"{skew:+.0f} s",
            fix="" if abs(skew) <= _SKEW_LIMIT else "let NTP set the clocks of this machine and the cluster",
        )
    limit = asyncio.Semaphore(_PARALLEL)
    rows = _by_resource(needed)
    for finding in await asyncio.gather(*(_rights(name, client, what, rows[what], limit) for what in rows)):
        yield finding
    try:
        system = await client.get(resources.NAMESPACES, "kube-system")
        yield CheckResult(name, "identity", ok=True, detail=str(system["metadata"]["uid"]))
    except ApiError as error:
        if name == "upper":
            yield CheckResult(
                name,
                "identity",
                ok=False,
                detail=str(error),
                fix="grant get on namespace kube-system, or give --cluster-id",
            )


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
    name: str, client: Client, what: str, needed: Sequence[Right], limit: asyncio.Semaphore
) -> CheckResult:
    fixes: list[str] = []
    for right in needed:
        denied = await _denied(client, right, limit)
        if denied:
            group = right.group or '""'
            fixes.append(
                f"grant {', '.join(denied)} on {right.full_resource} (apiGroup {group}): {right.purpose}"
            )
    verbs = dict.fromkeys(verb for right in needed for verb in right.verbs)
    return CheckResult(name, f"may {what}", ok=not fixes, detail=", ".join(verbs), fix="; ".join(fixes))


async def _denied(client: Client, right: Right, limit: asyncio.Semaphore) -> list[str]:
    """Return the denied verbs, each followed by the object name that the right is limited to, if any."""
    async with limit:
        return [
            " ".join(filter(None, (attributes["verb"], attributes.get("name"))))
            for attributes in right.attributes()
            if not await permissions.may(client, attributes)
        ]
