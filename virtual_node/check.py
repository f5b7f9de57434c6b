"""``virtual-node check``: would it work? Both kubeconfigs, versions, clocks, rights and reachability, in a table."""

from __future__ import annotations

import asyncio
import email.utils
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from controller_runtime import kubeconfig, resources
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.rights import Right
from virtual_node import flags, program, rights
from virtual_node.config import ClusterConfig, Config

_SKEW_LIMIT = 5.0
"""Seconds two clocks may differ before leases, tokens and events start to mislead."""
_OLDEST_MINOR = 24
_TIMEOUT = 10.0
_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    cluster: str
    check: str
    ok: bool
    detail: str
    fix: str = ""


def main(argv: Sequence[str]) -> int:
    """Check what the given daemon flags describe. Exit code 0: all good, 1: something is not."""
    arguments = list(argv)
    as_json = False
    for spelling in (["-o", "json"], ["--output", "json"], ["-ojson"], ["-o=json"], ["--output=json"]):
        for position in range(len(arguments)):
            if arguments[position : position + len(spelling)] == spelling:
                del arguments[position : position + len(spelling)]
                as_json = True
                break
    options = flags.parse(arguments, prog=program.name("check"))
    findings = asyncio.run(run(options.config))
    if as_json:
        json.dump([asdict(finding) for finding in findings], sys.stdout, indent=2)
        print()  # noqa: T201 - the answer
    else:
        Console().print(_table(findings))
    return 0 if all(finding.ok for finding in findings) else 1


async def run(config: Config) -> list[Finding]:
    """Check the upper cluster and every lower one, all at the same time."""
    pending = [_collect("upper", _upper(config))]
    pending += [_collect(cluster.name, _lower(cluster)) for cluster in config.clusters]
    gathered = await asyncio.gather(*pending)
    findings = [finding for group in gathered for finding in group]
    return findings + _same_cluster(findings)


async def _collect(cluster: str, checks: AsyncIterator[Finding]) -> list[Finding]:
    """All findings of one cluster; the error that ends them early is the last one."""
    found: list[Finding] = []
    try:
        async for finding in checks:
            found.append(finding)  # noqa: PERF401 - what came before an error counts
    except ConfigError as error:
        found.append(
            Finding(cluster, "kubeconfig", ok=False, detail=str(error), fix="correct the kubeconfig")
        )
    except ApiError as error:
        fix = "is the address right, and reachable from here?" if error.code == 0 else "see the message"
        found.append(Finding(cluster, "reachable", ok=False, detail=str(error), fix=fix))
    return found


async def _upper(config: Config) -> AsyncIterator[Finding]:
    loaded = await kubeconfig.load(config.kubeconfig or None, server=config.server or None)
    async with Client(loaded, cluster="upper", user_agent="virtual-node-check", timeout=_TIMEOUT) as client:
        async for finding in _cluster("upper", client, _upper_rights(config)):
            yield finding


def _upper_rights(config: Config) -> tuple[Right, ...]:
    if config.kubelet.certificate_source != "CSR":
        return rights.UPPER
    nodes = [node.name for cluster in config.clusters for node in cluster.virtual_nodes()]
    return (*rights.UPPER, *rights.upper_csr(nodes, approve=config.kubelet.approve_serving_certificate))


async def _lower(cluster: ClusterConfig) -> AsyncIterator[Finding]:
    loaded = await kubeconfig.load(cluster.kubeconfig, context=cluster.context or None, in_cluster=False)
    async with Client(
        loaded, cluster=cluster.name, user_agent="virtual-node-check", timeout=_TIMEOUT
    ) as client:
        async for finding in _cluster(cluster.name, client, rights.LOWER):
            yield finding


async def _cluster(name: str, client: Client, needed: Sequence[Right]) -> AsyncIterator[Finding]:
    yield Finding(name, "kubeconfig", ok=True, detail=client.config.server)
    version = await client.version(timeout=_TIMEOUT)
    git_version = version.get("gitVersion", "?")
    minor = int("".join(filter(str.isdigit, version.get("minor", ""))) or 0)
    yield Finding(
        name,
        "version",
        ok=minor >= _OLDEST_MINOR,
        detail=git_version,
        fix="" if minor >= _OLDEST_MINOR else f"Kubernetes 1.{_OLDEST_MINOR} or newer is needed",
    )
    skew = await _clock_skew(client)
    if skew is not None:
        yield Finding(
            name,
            "clock",
            ok=abs(skew) <= _SKEW_LIMIT,
            detail=f"{skew:+.0f} s",
            fix="" if abs(skew) <= _SKEW_LIMIT else "let NTP set the clocks of this machine and the cluster",
        )
    limit = asyncio.Semaphore(_PARALLEL)
    for finding in await asyncio.gather(*(_right(name, client, right, limit) for right in needed)):
        yield finding
    try:
        system = await client.get(resources.NAMESPACES, "kube-system")
        yield Finding(name, "identity", ok=True, detail=str(system["metadata"]["uid"]))
    except ApiError as error:
        if name == "upper":
            yield Finding(
                name,
                "identity",
                ok=False,
                detail=str(error),
                fix="let us get namespace kube-system, or give --cluster-id",
            )


async def _right(name: str, client: Client, right: Right, limit: asyncio.Semaphore) -> Finding:
    denied: list[str] = []
    async with limit:
        for attributes in right.attributes():
            review = await client.create(
                resources.SELF_SUBJECT_ACCESS_REVIEWS,
                {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": attributes},
                },
            )
            if not (review.get("status") or {}).get("allowed"):
                denied.append(" ".join(filter(None, (attributes["verb"], attributes.get("name")))))
    fix = ""
    if denied:
        group = right.group or '""'
        fix = f"grant {', '.join(denied)} on {right.full_resource} (apiGroup {group}): {right.purpose}"
    return Finding(name, f"may {right.full_resource}", ok=not denied, detail=", ".join(right.verbs), fix=fix)


async def _clock_skew(client: Client) -> float | None:
    """Seconds the cluster's clock is ahead of ours, from the Date header; None when it sends none."""
    async with client.stream("GET", "/version") as response:
        text = response.headers.get("Date")
    if not text:
        return None
    return (email.utils.parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()


def _same_cluster(findings: Sequence[Finding]) -> list[Finding]:
    """A lower cluster that is the upper one would mirror its pods onto themselves."""
    identities = {
        finding.cluster: finding.detail for finding in findings if finding.check == "identity" and finding.ok
    }
    upper = identities.pop("upper", None)
    return [
        Finding(
            name,
            "not the upper cluster",
            ok=False,
            detail=identity,
            fix="its kubeconfig leads to the upper cluster",
        )
        for name, identity in identities.items()
        if identity == upper
    ]


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(title="virtual-node check", title_justify="left")
    for column in ("cluster", "check", "", "detail", "what to do"):
        table.add_column(column, overflow="fold")
    previous = ""
    for finding in findings:
        if previous and finding.cluster != previous:
            table.add_section()
        mark = "[green]ok[/]" if finding.ok else "[bold red]no[/]"
        shown = finding.cluster if finding.cluster != previous else ""
        table.add_row(shown, finding.check, mark, finding.detail, finding.fix)
        previous = finding.cluster
    return table
